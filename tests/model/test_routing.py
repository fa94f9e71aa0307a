"""Routers of all kinds: how each is found to choose, its choice in 16 and in 32 bits, and routers that differ in one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.afmoe.modeling_afmoe import AfmoeTokenChoiceRouter
from transformers.models.axk1.modeling_axk1 import AXK1TopkRouter
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.dots1.modeling_dots1 import Dots1TopkRouter
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeTopKRouter
from transformers.models.exaone_moe.modeling_exaone_moe import ExaoneMoeTopkRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import Glm4MoeLiteTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.hy_v3.modeling_hy_v3 import HYV3TopKRouter
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter
from transformers.models.mistral4.modeling_mistral4 import Mistral4TopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter
from transformers.models.solar_open.modeling_solar_open import SolarOpenTopkRouter

from manyhands.model import experts, kernels
from manyhands.model.experts import fuse_experts
from manyhands.model.routing import (
    GIVEN,
    ExpertGroups,
    Routing,
    Scoring,
    plain_choice,
    routing_of,
)
from manyhands.model.skinny import fuse_linears

pytest.importorskip("triton", reason="Triton exists for Linux alone")
from manyhands.model.kernels import experts as own
from manyhands.model.kernels import skinny

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
FLOAT = torch.float32
K = 64  # inputs of a router
CORRECTION = "e_score_correction_bias"
_AMONG: dict[str, Any] = {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
_ONE: dict[str, Any] = {"n_group": 1, "topk_group": 1}


def _by_sigmoid(groups: ExpertGroups | None, scale: float, added: float = 1e-20) -> Scoring:
    return Scoring(by_sigmoid=True, groups=groups, added=added, scale=scale)


# Routers in sizes that are published, or near them, and how each chooses.
ROUTERS: dict[str, tuple[Callable[[], Any], Routing]] = {
    "deepseek_v3": (
        lambda: DeepseekV3TopkRouter(
            hf.DeepseekV3Config(
                hidden_size=K, n_routed_experts=256, num_experts_per_tok=8, **_AMONG
            )
        ),
        Routing(8, True, FLOAT, True, _by_sigmoid(ExpertGroups(8, 4, 2), 2.5), CORRECTION),
    ),
    "kimi": (
        lambda: DeepseekV3TopkRouter(
            hf.DeepseekV3Config(
                hidden_size=K, n_routed_experts=384, num_experts_per_tok=8, **{**_AMONG, **_ONE}
            )
        ),
        Routing(8, True, FLOAT, True, _by_sigmoid(None, 2.5), CORRECTION),
    ),
    "axk1": (
        lambda: AXK1TopkRouter(
            hf.AXK1Config(hidden_size=K, n_routed_experts=192, num_experts_per_tok=8, **_AMONG)
        ),
        Routing(8, True, FLOAT, True, _by_sigmoid(ExpertGroups(8, 4, 2), 2.5), CORRECTION),
    ),
    "glm4_moe": (
        lambda: Glm4MoeTopkRouter(
            hf.Glm4MoeConfig(
                hidden_size=K,
                n_routed_experts=160,
                num_experts_per_tok=8,
                **{**_AMONG, **_ONE},
            )
        ),
        Routing(8, True, FLOAT, True, _by_sigmoid(None, 2.5), CORRECTION),
    ),
    "glm4_moe_lite": (
        lambda: Glm4MoeLiteTopkRouter(
            hf.Glm4MoeLiteConfig(
                hidden_size=K,
                n_routed_experts=64,
                num_experts_per_tok=4,
                routed_scaling_factor=1.8,
                **_ONE,
            )
        ),
        Routing(4, True, FLOAT, True, _by_sigmoid(None, 1.8), CORRECTION),
    ),
    "dots1": (
        lambda: Dots1TopkRouter(
            hf.Dots1Config(
                hidden_size=K,
                n_routed_experts=128,
                num_experts_per_tok=6,
                norm_topk_prob=False,
                **{**_AMONG, **_ONE},
            )
        ),
        Routing(6, False, FLOAT, True, _by_sigmoid(None, 2.5, 0.0), CORRECTION),
    ),
    "exaone_moe": (
        lambda: ExaoneMoeTopkRouter(
            hf.ExaoneMoeConfig(hidden_size=K, num_experts=128, num_experts_per_tok=8, **_ONE)
        ),
        Routing(8, True, FLOAT, True, _by_sigmoid(None, 2.5), CORRECTION),
    ),
    "solar_open": (
        lambda: SolarOpenTopkRouter(
            hf.SolarOpenConfig(hidden_size=K, n_routed_experts=128, num_experts_per_tok=8, **_AMONG)
        ),
        Routing(8, True, FLOAT, True, _by_sigmoid(ExpertGroups(8, 4, 2), 2.5), CORRECTION),
    ),
    "minimax_m2": (
        lambda: MiniMaxM2TopKRouter(
            hf.MiniMaxM2Config(hidden_size=K, num_local_experts=256, num_experts_per_tok=8)
        ),
        Routing(8, True, FLOAT, False, _by_sigmoid(None, 1.0, 0.0), GIVEN),
    ),
    "hy_v3": (
        lambda: HYV3TopKRouter(
            hf.HYV3Config(
                hidden_size=K, num_experts=192, num_experts_per_tok=8, router_scaling_factor=2.826
            )
        ),
        Routing(8, True, FLOAT, True, _by_sigmoid(None, 2.826), GIVEN),
    ),
    "afmoe": (
        lambda: AfmoeTokenChoiceRouter(
            hf.AfmoeConfig(hidden_size=K, num_experts=128, num_experts_per_tok=8, route_scale=2.826)
        ),
        Routing(8, True, FLOAT, False, _by_sigmoid(None, 2.826), GIVEN, "gate.weight"),
    ),
    "ernie4_5_moe": (
        lambda: Ernie4_5_MoeTopKRouter(
            hf.Ernie4_5_MoeConfig(hidden_size=K, moe_num_experts=64, moe_k=6)
        ),
        Routing(6, True, None, True, Scoring(least=1e-12), f"moe_statics.{CORRECTION}"),
    ),
    "deepseek_v2": (
        lambda: DeepseekV2TopkRouter(
            hf.DeepseekV2Config(
                hidden_size=K,
                n_routed_experts=160,
                num_experts_per_tok=6,
                topk_method="group_limited_greedy",
                n_group=8,
                topk_group=3,
                routed_scaling_factor=16.0,
            )
        ),
        Routing(6, False, FLOAT, True, Scoring(groups=ExpertGroups(8, 3, 1), scale=16.0)),
    ),
    "deepseek_v2_lite": (
        lambda: DeepseekV2TopkRouter(
            hf.DeepseekV2Config(
                hidden_size=K, n_routed_experts=64, num_experts_per_tok=6, topk_method="greedy"
            )
        ),
        Routing(6, False, FLOAT, True),
    ),
    "mistral4": (
        lambda: Mistral4TopkRouter(
            hf.Mistral4Config(
                hidden_size=K, n_routed_experts=128, num_experts_per_tok=4, n_group=4, topk_group=2
            )
        ),
        Routing(4, True, None, False, Scoring(groups=ExpertGroups(4, 2, 2))),
    ),
    "qwen3_moe": (
        lambda: Qwen3MoeTopKRouter(
            hf.Qwen3MoeConfig(
                hidden_size=K, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True
            )
        ),
        Routing(8, True, None),
    ),
    "gpt_oss": (
        lambda: GptOssTopKRouter(
            hf.GptOssConfig(hidden_size=K, num_local_experts=32, num_experts_per_tok=4)
        ),
        Routing(4, True, None),
    ),
}


def _router(name: str, dtype: torch.dtype = torch.float32) -> tuple[Any, tuple[Tensor, ...]]:
    """A router with random weights and a correction that changes its choice; and what it is given beside its inputs."""
    torch.manual_seed(0)
    router = ROUTERS[name][0]()
    with torch.no_grad():
        for number in [*router.parameters(), *router.buffers()]:
            wide = number.dim() == 2 and number.shape[0] > 1
            number.copy_(torch.randn(number.shape) * (2 * K**-0.5 if wide else 0.5))
    its = ROUTERS[name][1]
    experts = len(its.weight_of(router))
    given = (0.5 * torch.randn(experts),) if its.correction == GIVEN else ()
    router = router.to(DEVICE, dtype).eval().requires_grad_(False)
    return router, tuple(each.to(DEVICE) for each in given)


def _inputs(tokens: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(1, tokens, K).to(DEVICE, dtype)


@pytest.mark.parametrize("name", ROUTERS)
def test_routers_that_are_known(name: str) -> None:
    router, _ = _router(name)
    assert routing_of(router) == ROUTERS[name][1]
    fuse_linears(router)  # which makes another module of one inside a router
    assert routing_of(router) == ROUTERS[name][1]
    assert routing_of(router.bfloat16()) == ROUTERS[name][1]


@pytest.mark.parametrize("name", [name for name in ROUTERS if ROUTERS[name][1].correction])
def test_corrections_and_groups_are_at_stake(name: str) -> None:
    """Or these tests would say nothing of them."""
    router, given = _router(name)
    its = ROUTERS[name][1]
    x = _inputs(40, torch.float32)
    logits = functional.linear(x[0], its.weight_of(router))
    correction = its.correction_of(router, given)
    assert correction is not None
    _, index = plain_choice(logits, its, correction)
    others = [plain_choice(logits, its)[1]]
    if its.scoring.groups is not None:
        for groups in (None, its.scoring.groups._replace(best=1)):
            other = its._replace(scoring=its.scoring._replace(groups=groups))
            others.append(plain_choice(logits, other, correction)[1])
    for each in others:
        is_other = (index.sort(-1).values != each.sort(-1).values).any(-1)
        assert float(is_other.float().mean()) > 0.3


def _in_order(shares: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    index, order = index.sort(-1)
    return shares.gather(-1, order), index


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tokens", [5, 70])
@pytest.mark.parametrize("name", ROUTERS)
def test_choices_are_those_of_the_modelling_code(
    name: str, tokens: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices of few tokens, whose product is ours, and of more. Where logits are rounded, most are the same."""
    if GPU and dtype == torch.float32:
        pytest.skip("a GPU leaves float32 to the modelling code")
    router, given = _router(name, dtype)
    its = ROUTERS[name][1]
    x = _inputs(tokens, dtype)
    flat = x if name == "afmoe" else x[0]
    logits, shares, index = router(flat, *given)
    assert fuse_experts(router) == (0, 1)
    if not GPU:
        monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(experts, "DTYPES", (dtype,))
    chosen = []
    made = own.choose
    monkeypatch.setattr(
        own, "choose", lambda *given, **how: chosen.append(1) or made(*given, **how)
    )
    ours = router(flat, *given)
    assert chosen == [1]
    assert [each.dtype for each in ours[1:]] == [shares.dtype, index.dtype]
    exact = dtype == torch.float32 or its.is_wide
    step = 1e-5 if exact else 2e-2 if dtype == torch.bfloat16 else 2e-3
    torch.testing.assert_close(ours[0].float(), logits.float(), rtol=step, atol=step)
    shares, index = _in_order(shares.float(), index)
    our_shares, our_index = _in_order(ours[1].float(), ours[2])
    same = (our_index == index).all(-1)
    assert float(same.float().mean()) > (0.99 if exact else 0.6)
    error = max(step, 1e-2 if shares.dtype != ours[1].dtype else step)
    torch.testing.assert_close(our_shares[same], shares[same], rtol=4 * error, atol=error / 10)


@pytest.mark.parametrize("name", [name for name in ROUTERS if ROUTERS[name][1].is_wide])
def test_weights_in_float32_beside_inputs_of_16_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ERNIE's are loaded."""
    router, given = _router(name)
    x = _inputs(6, torch.bfloat16)[0]
    _, shares, index = router(x, *given)
    fuse_experts(router)
    if not GPU:
        monkeypatch.setattr(kernels, "usable", lambda x: True)
    made: list[Tensor] = []
    choose = own.choose
    monkeypatch.setattr(skinny, "product", lambda *_: pytest.fail("its weight would be rounded"))
    monkeypatch.setattr(
        own, "choose", lambda *given, **how: made.append(given[0]) or choose(*given, **how)
    )
    ours = router(x, *given)
    assert [each.dtype for each in made] == [torch.float32]
    torch.testing.assert_close(
        _in_order(ours[1].float(), ours[2])[0],
        _in_order(shares.float(), index)[0],
        rtol=1e-2 if shares.dtype == torch.bfloat16 else 1e-5,
        atol=1e-6,
    )
    assert torch.equal(_in_order(*ours[1:])[1], index.sort(-1).values)


def test_weights_in_float32_that_make_other_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a router makes its logits in the dtype of its weight, which is not looked at."""
    router, given = _router("minimax_m2")
    x = _inputs(6, torch.bfloat16)[0]
    expected = router(x, *given)
    fuse_experts(router)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(own, "choose", lambda *given, **how: pytest.fail("chosen by our kernel"))
    for ours, theirs in zip(router(x, *given), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_call_of_another_kind_goes_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(experts, "DTYPES", (torch.float32,))
    monkeypatch.setattr(own, "choose", lambda *given, **how: pytest.fail("chosen by our kernel"))
    router, given = _router("minimax_m2")
    x = _inputs(3, torch.float32)[0]
    expected = router(x, *given)
    fuse_experts(router)
    named = router(hidden_states=x, e_score_correction_bias=given[0])
    for ours, theirs in zip(named, expected, strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(TypeError, match="e_score_correction_bias"):
        router(x)
    with pytest.raises(TypeError):
        router(x, None)
    other, _ = _router("glm4_moe")
    fuse_experts(other)
    with pytest.raises(TypeError, match="scale"):
        other(x, scale=2.0)


# -- routers that differ in one thing --------------------------------------------------------------


class _Likened(nn.Module):
    """DeepSeek-V3's router of 32 experts in four groups; what `change` names is another way."""

    change = ""

    def __init__(self) -> None:
        super().__init__()
        self.top_k, self.num_experts, self.hidden_dim = 4, 32, K
        self.num_group, self.topk_group, self.routed_scaling_factor = 4, 2, 2.5
        self.weight = nn.Parameter(torch.randn(32, K))
        self.register_buffer(CORRECTION, torch.randn(32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        change = self.change
        bias: Any = self.e_score_correction_bias
        logits = functional.linear(x.view(-1, self.hidden_dim).float(), self.weight.float())
        scores = _score(change, logits)
        if "uncorrected" in change:
            bias = torch.zeros_like(bias)
        wanted = scores + (2 * bias if change == "corrected twice" else bias)
        if change == "corrected by a product":
            wanted = scores * (1 + bias)
        if change == "corrected logits":
            wanted = (logits + bias).sigmoid()
        if change == "corrected within limits":
            wanted = scores + bias.clamp(-1, 1)
        grouped = scores if change == "groups without a correction" else wanted
        apart = grouped.view(-1, self.num_group, self.num_experts // self.num_group)
        best = apart.topk(3 if change == "three of a group" else 2, dim=-1).values.sum(-1)
        if change == "means of groups":
            best = apart.mean(-1)
        kept = torch.zeros_like(best)
        kept.scatter_(1, best.topk(self.topk_group, dim=-1, sorted=False)[1], 1)
        size = self.num_experts // self.num_group
        if change == "groups of every fourth expert":
            mask = kept[:, None, :].expand(-1, size, -1).reshape(-1, 32)
        else:
            mask = kept[..., None].expand(-1, -1, size).reshape(-1, 32)
        below = 0.0 if change == "left out by zero" else float("-inf")
        index = wanted.masked_fill(~mask.bool(), below).topk(self.top_k, sorted=False)[1]
        if change == "the least likely":
            index = wanted.masked_fill(~mask.bool(), float("inf"))
            index = index.topk(self.top_k, largest=False)[1]
        shares = (wanted if change == "corrected shares" else scores).gather(1, index)
        shares = _made_even(change, shares, scores) * self.routed_scaling_factor
        if change == "scaled otherwise":
            shares = shares * 1.7
        if change == "shares between limits":
            shares = shares.clamp(max=2.0)
        if change == "another dtype":
            shares = shares.to(x.dtype)
        return (index, shares, logits) if change == "experts first" else (logits, shares, index)


def _score(change: str, logits: Tensor) -> Tensor:
    if change == "warmer":
        return (logits / 2).sigmoid()
    if change == "sound whatever comes":
        return logits.sigmoid().nan_to_num(0.0)
    if change == "scores no less than a limit":
        return logits.sigmoid().clamp(min=1e-8)
    if change == "between -1 and 1":
        return logits.tanh()
    if change == "square roots":
        return functional.softplus(logits).sqrt()
    return logits.softmax(-1) if change == "by a softmax" else logits.sigmoid()


def _made_even(change: str, shares: Tensor, scores: Tensor) -> Tensor:
    if change == "not even":
        return shares
    if change == "by a norm":
        return shares / shares.norm(dim=-1, keepdim=True)  # type: ignore[no-any-return]
    if change == "by all":
        return shares / scores.sum(-1, keepdim=True)
    if change == "softmax of shares":
        return shares.softmax(-1)
    if change == "no less than a limit":
        return shares / shares.sum(-1, keepdim=True).clamp(min=1e-6)
    added = {
        "more is added": 1e-6,
        "uncorrected, and more is added": 1e-18,
        "uncorrected, and less is added": 1e-25,
    }
    return shares / (shares.sum(-1, keepdim=True) + added.get(change, 1e-20))


def _likened(change: str) -> Any:
    return type("Likened", (_Likened,), {"change": change})()


PLAIN = Routing(4, True, FLOAT, True, _by_sigmoid(ExpertGroups(4, 2, 2), 2.5), CORRECTION)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("", PLAIN),
        ("by a softmax", PLAIN._replace(scoring=PLAIN.scoring._replace(by_sigmoid=False))),
        ("not even", PLAIN._replace(even=False, scoring=PLAIN.scoring._replace(added=0.0))),
        ("another dtype", PLAIN._replace(dtype=None)),
        ("uncorrected", PLAIN._replace(correction=None)),
        ("experts first", PLAIN._replace(is_reversed=True)),  # as Granite's before 5.21
    ],
)
def test_what_differs_and_is_known(change: str, found: Routing) -> None:
    its = routing_of(_likened(change))
    assert its is not None
    if change == "by a softmax":  # the sum of such shares is no less than one of 1e-20 can change
        its = its._replace(scoring=its.scoring._replace(added=1e-20))
    assert its == found


@pytest.mark.parametrize(
    "change",
    [
        *("corrected twice", "corrected by a product", "corrected logits"),
        *("corrected within limits", "groups without a correction", "three of a group"),
        *("means of groups", "groups of every fourth expert", "left out by zero"),
        *("the least likely", "corrected shares", "scaled otherwise", "shares between limits"),
        *("warmer", "sound whatever comes", "scores no less than a limit", "between -1 and 1"),
        *("square roots", "by a norm", "by all", "softmax of shares", "no less than a limit"),
        *("more is added", "uncorrected, and more is added", "uncorrected, and less is added"),
    ],
)
def test_what_differs_and_is_not_known(change: str) -> None:
    assert routing_of(_likened(change)) is None


def test_other_numbers_that_are_not_known() -> None:
    """A second number for each expert, one of another size, a correction where a product has its bias, and none of both."""
    for change in ("second", "size", "bias", "number"):
        router = _likened("")
        if change == "second":
            router.register_buffer("other", torch.zeros(32))
        if change == "size":
            router.register_buffer("other", torch.zeros(3))
        if change == "number":
            router.scale = nn.Parameter(torch.ones(()))
        if change == "bias":
            router.register_buffer("bias", router.e_score_correction_bias)
            del router.e_score_correction_bias
            router.__class__ = type(
                "Biased",
                (_Likened,),
                {CORRECTION: property(lambda self: self.bias)},
            )
        assert routing_of(router) is None
    narrow = _likened("")  # rows of its weight begin anywhere
    narrow.hidden_dim, narrow.weight = K - 4, nn.Parameter(torch.randn(32, K - 4))
    assert routing_of(narrow) is None
    alone = _likened("the least likely")
    alone.top_k = 1  # even shares of one expert are 1, whichever it is
    assert routing_of(alone) is None
    for other in (nn.Linear(K, 32), nn.Embedding(32, K), nn.LayerNorm(K), nn.Identity()):
        assert routing_of(other) is None


def test_numbers_of_a_router_are_its_own() -> None:
    """Two routers of one class that differ in a number are not taken for each other."""
    one, other = _likened(""), _likened("")
    other.routed_scaling_factor, other.topk_group, other.top_k = 1.5, 1, 3
    assert routing_of(one) == PLAIN
    scoring = PLAIN.scoring._replace(scale=1.5, groups=ExpertGroups(4, 1, 2))
    assert routing_of(other) == PLAIN._replace(chosen=3, scoring=scoring)
    other.num_group, other.topk_group, other.top_k = 8, 7, 1  # one group of eight is left out
    scoring = PLAIN.scoring._replace(scale=1.5, groups=ExpertGroups(8, 7, 2))
    assert routing_of(other) == PLAIN._replace(chosen=1, scoring=scoring)
    other.num_group, other.topk_group, other.top_k = 16, 1, 4  # four of two
    assert routing_of(other) is None
    one.limit = float("inf")
    assert routing_of(one) == PLAIN


# -- the kernel ------------------------------------------------------------------------------------

SCORINGS = [
    Scoring(),
    Scoring(by_sigmoid=True),
    Scoring(scale=2.5),
    Scoring(by_sigmoid=True, added=1e-20, scale=2.5),
    Scoring(least=1e-12),
]


def _logits(tokens: int, num_experts: int) -> Tensor:
    return (2 * torch.randn(tokens, num_experts)).to(DEVICE)


@pytest.mark.pairs
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("correction", [0.0, 0.5, 3.0])
@pytest.mark.parametrize(
    ("num_experts", "chosen", "groups"),
    [
        (12, 3, None),
        (12, 3, ExpertGroups(3, 2, 2)),
        (160, 6, ExpertGroups(8, 3, 1)),
        (256, 8, ExpertGroups(8, 4, 2)),
        (8, 4, ExpertGroups(4, 2, 2)),
        (8, 2, ExpertGroups(8, 3, 1)),
    ],
)
def test_the_kernel_and_its_twin(
    num_experts: int,
    chosen: int,
    groups: ExpertGroups | None,
    correction: float,
    scoring: Scoring,
    even: bool,
) -> None:
    torch.manual_seed(0)
    scoring = scoring._replace(groups=groups)
    logits = _logits(9, num_experts)
    logits[4:6] -= 46.0
    bias = correction * torch.randn(num_experts).to(DEVICE) if correction else None
    if bias is not None:
        logits[6, bias.argmin()] += 60.0  # all that are chosen may be hardly likely
    its = Routing(chosen, even, FLOAT, scoring=scoring)
    shares, index = own.choose(logits, chosen, even=even, scoring=scoring, correction=bias)
    expected, which = plain_choice(logits, its, bias)
    assert torch.equal(index, which)
    torch.testing.assert_close(shares, expected, rtol=1e-4, atol=1e-30)
    if bias is not None:
        half = own.choose(
            *(logits.bfloat16(), chosen),
            even=even,
            dtype=FLOAT,
            scoring=scoring,
            correction=bias.bfloat16()[None].reshape(-1),
        )
        _, which = plain_choice(logits.bfloat16(), its, bias.bfloat16())
        assert half[0].dtype == FLOAT
        wide = logits.bfloat16().float()
        wanted = wide.sigmoid() if scoring.by_sigmoid else wide.softmax(-1)
        wanted = wanted + bias.bfloat16().float()
        # Of equal ones any may be chosen.
        torch.testing.assert_close(wanted.gather(1, half[1]), wanted.gather(1, which))
        assert {len(set(each)) for each in half[1].tolist()} == {chosen}


@pytest.mark.parametrize("groups", [None, ExpertGroups(3, 2, 2)])
@pytest.mark.parametrize("by_sigmoid", [False, True])
def test_numbers_that_are_none(by_sigmoid: bool, groups: ExpertGroups | None) -> None:
    """Such a token gets different experts that are there, shares that are none, and leaves others theirs."""
    scoring = Scoring(by_sigmoid, groups)
    bias = torch.randn(12).to(DEVICE)
    logits = _logits(3, 12)
    expected = own.choose(logits, 4, scoring=scoring, correction=bias)
    logits[1, 7] = float("nan")
    shares, index = own.choose(logits, 4, scoring=scoring, correction=bias)
    assert shares[1].isnan().all()
    assert 0 <= int(index.min()) <= int(index.max()) < 12
    assert len(set(index[1].tolist())) == 4
    assert torch.equal(shares[::2], expected[0][::2])
    assert torch.equal(index[::2], expected[1][::2])
    bias[3] = float("nan")
    shares, index = own.choose(logits, 4, scoring=scoring, correction=bias)
    assert shares.isnan().all()
    assert {len(set(each)) for each in index.tolist()} == {4}


@pytest.mark.parametrize("groups", [None, ExpertGroups(3, 2, 2), ExpertGroups(3, 2, 1)])
def test_experts_that_are_equally_likely(groups: ExpertGroups | None) -> None:
    """The first of them, and never one twice; whether they are likely, or forbidden by their correction, or both."""
    scoring = Scoring(True, groups, added=1e-20)
    logits = torch.zeros(2, 12, device=DEVICE)
    logits[1] = -float("inf")
    assert own.choose(logits, 4, scoring=scoring)[1].tolist() == [[0, 1, 2, 3]] * 2
    forbidden = torch.zeros(12, device=DEVICE)
    forbidden[1:] = -float("inf")
    index = own.choose(logits, 4, scoring=scoring, correction=forbidden)[1]
    assert {tuple(sorted(each)) for each in index.tolist()} == {(0, 1, 2, 3)}
    open_ones = torch.full((12,), -float("inf"), device=DEVICE)
    open_ones[[9, 10]] = 0.0
    index = own.choose(logits, 2, scoring=scoring, correction=open_ones)[1]
    assert index.tolist() == [[9, 10]] * 2


def test_a_group_left_out_is_taken_from_before_none_is() -> None:
    """Of kept groups with fewer experts than are chosen there would be none left; the assertion says so."""
    with pytest.raises(AssertionError):
        own.choose(_logits(1, 12), 5, scoring=Scoring(True, ExpertGroups(3, 1, 2)))


def test_the_twin_of_the_choice() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    shares, index = plain_choice(logits, Routing(2, True, None))
    assert index.tolist() == [[1, 2]]
    torch.testing.assert_close(shares, torch.tensor([[0.7310586, 0.2689414]]))
    assert plain_choice(logits.half(), Routing(2, False, torch.float32))[0].dtype == torch.float32
    corrected = Routing(1, False, None, scoring=Scoring(True, None, scale=3.0), correction="x")
    shares, index = plain_choice(logits, corrected, torch.tensor([2.0, 0.0, 0.0]))
    assert (index.tolist(), shares.tolist()) == ([[0]], [[1.5]])
