"""Stacks of experts and routers of all families: which are known, and networks that have their faster way.

The kernels run under Triton's interpreter, in float32, which a GPU leaves to the modelling code: there
`tests/model/test_on_gpu.py` has the same networks in 16 bits.
"""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyhands.attention.compile_at_once import compiling_at_once
from manyhands.errors import InvalidRequest
from manyhands.model import experts, kernels, routing
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import bare_model
from manyhands.model.experts import (
    are_fused,
    block_of,
    fuse_experts,
    gate_of,
    hand_over,
    let_sums_add_experts,
    load_for_prompts,
    usual_of,
)
from manyhands.model.fusion import fuse_modules, is_fused
from manyhands.model.products import fuse_mlps
from manyhands.model.routing import Routing, routing_of
from manyhands.model.self_test import exact_attention
from manyhands.model.skinny import fuse_linears
from tests.covers import in_turns
from tests.model.families_zoo import (
    configurations,
    repeating_models,
    some_tokens,
    tiny_model,
    tiny_models,
)
from tests.model.interpreted import HOLDS_ANYTHING

pytest.importorskip("triton", reason="Triton exists for Linux alone")
from manyhands.model.kernels import experts as own
from manyhands.model.kernels import experts_many as own_many

ZOO = tiny_models() | repeating_models()
OF_THEIR_OWN = {
    "llama4_text",
    "llama4_text_experts",
}  # stacks that are no known ones, and routers that weigh inputs
# Families whose routers are not known: they choose twice, or by norms and scales of their own.
NO_ROUTERS = OF_THEIR_OWN | {"gemma4_text_experts", "phimoe"}
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="in float32, by the interpreter")


def _parts(model: nn.Module) -> tuple[int, int, int]:
    """Stacks of experts, and of these and of routers how many are known."""
    names = [type(module).__name__ for module in model.modules()]
    modules = list(model.modules())
    stacks = sum(name.endswith("Experts") for name in names)
    return (
        stacks,
        sum(map(_is_stack, modules)),
        sum(routing_of(each) is not None for each in modules),
    )


def _is_stack(module: Any) -> bool:
    return gate_of(module) is not None


# Written down: to find them all networks are made, which is a test's work and not that of collecting tests.
WITH_EXPERTS = [
    *("afmoe", "axk1", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "exaone_moe"),
    *("flex_olmo", "gemma4_text_experts", "glm4_moe", "glm4_moe_lite", "gpt_oss", "granitemoe"),
    *("hy_v3", "llama4_text", "llama4_text_experts", "mellum", "minimax_m2", "mistral4"),
    *("mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe", "solar_open"),
]


def test_the_zoo_has_experts() -> None:
    networks = {name: bare_model(ZOO[name].args[0], torch.float32) for name in ZOO}
    assert [name for name in sorted(ZOO) if _parts(networks[name])[0]] == WITH_EXPERTS
    assert set(WITH_EXPERTS) > NO_ROUTERS


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_stacks_and_routers_that_are_known(name: str) -> None:
    stacks, known, routers = _parts(ZOO[name]())
    assert known == (0 if name in OF_THEIR_OWN else stacks)
    assert routers == (0 if name in NO_ROUTERS else stacks)


def _logits(adapter: ModelAdapter, tokens: int) -> Tensor:
    with torch.no_grad():
        return adapter.forward(some_tokens(tokens), None, exact_attention(adapter.ropes))


@on_cpu
@pytest.mark.parametrize(
    ("name", "tokens"), in_turns([name for name in WITH_EXPERTS if name not in OF_THEIR_OWN], 3, 20)
)
def test_networks(name: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    adapter = ModelAdapter(ZOO[name]().eval())
    expected = _logits(adapter, tokens)
    stacks, routers = fuse_experts(adapter.model)
    assert (stacks > 0, routers > 0) == (True, name not in NO_ROUTERS)
    assert torch.equal(_logits(adapter, tokens), expected)  # float32 on a CPU goes the usual way
    calls: dict[str, int] = {"few": 0, "many": 0, "chosen": 0}
    for what, module, of in (
        *(("few", own, "experts"), ("many", own_many, "experts")),
        ("chosen", own, "choose"),
    ):
        _count(monkeypatch, calls, what, (module, of))
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(experts, "DTYPES", (torch.float32,))
    ours = _logits(adapter, tokens)
    assert (calls["few"] + calls["many"], calls["chosen"]) == (stacks, routers)
    few = calls["few"]
    assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-5
    monkeypatch.setattr(own_many, "MOST_TOKENS", tokens - 1)
    ours = _logits(adapter, tokens)
    assert calls == {"few": few, "many": 2 * stacks - few, "chosen": 2 * routers}
    assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-5
    monkeypatch.setattr(own, "MOST_TOKENS", tokens - 1)
    monkeypatch.setattr(kernels, "have_warpgroups", lambda device: False)
    ours = _logits(adapter, tokens)
    assert calls == {"few": few, "many": 2 * stacks - few, "chosen": 3 * routers}, (
        "not on older GPUs"
    )
    assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-5


@on_cpu
@pytest.mark.parametrize("dims", [2, 1], ids=["of stacks", "of routers"])
def test_biases_that_lie_apart(dims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As views of more, in a network that was given as an object. Kernels go along them number by number."""
    adapter = ModelAdapter(ZOO["gpt_oss"]().eval())
    for module in list(adapter.model.modules()):
        for name, held in list(module.named_parameters(recurse=False)):
            if name.endswith("bias") and held.dim() == dims:
                setattr(module, name, nn.Parameter(torch.randn(*held.shape, 2)[..., 0]))
    expected = _logits(adapter, 5)
    assert fuse_experts(adapter.model)[0] > 0
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(experts, "DTYPES", (torch.float32,))
    ours = _logits(adapter, 5)
    assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-5


@on_cpu
def test_kernels_of_prompts_are_launched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all layers that are alike, with each kind of tiles; none where the modelling code serves."""
    model: Any = ZOO["qwen3_moe"]().eval()
    launched = []
    made = own_many.experts

    def noted(x: Tensor, index: Tensor, shares: Tensor, *others: Any, **how: Any) -> Tensor:
        launched.append((index.shape[1], others[-1]))
        return made(x, index, shares, *others, **how)

    monkeypatch.setattr(own_many, "experts", noted)
    fuse_experts(model)
    load_for_prompts(model)
    assert not launched, "in float32 on a CPU"
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(experts, "DTYPES", (torch.float32,))
    load_for_prompts(model)
    chosen = model.config.num_experts_per_tok
    assert launched == [(chosen, tiles) for tiles in own_many.TILES]


@on_cpu
@HOLDS_ANYTHING
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "mixtral", "gpt_oss", "granitemoe"])
def test_kernels_that_are_launched_ahead_are_those_of_a_prompt(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares in float32 have kernels of their own, and so have long lists, and what each expert gives to a sum behind the block."""
    model: Any = ZOO[name]().eval().to(torch.bfloat16)
    adapter = ModelAdapter(model)
    fuse_modules(adapter, "on")
    launched, listed = set(), []
    made, lists = own_many.experts, own.list_pairs

    def noted(x: Tensor, index: Tensor, shares: Tensor, *others: Any, **how: Any) -> Tensor:
        in_parts = how.get("in_parts", False)
        launched.add((x.dtype, index.dtype, shares.dtype, index.shape[1], in_parts))
        return made(x, index, shares, *others, **how)

    def noted_list(index: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
        listed.append(len(index))
        return lists(index, num_experts)

    monkeypatch.setattr(own_many, "experts", noted)
    monkeypatch.setattr(own, "list_pairs", noted_list)
    monkeypatch.setattr(own_many, "is_faster", lambda *_: True)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    load_for_prompts(model)
    ahead = set(launched)
    assert max(listed) > own.MOST_TOKENS
    assert {in_parts for *_, in_parts in ahead} == {False, name in HANDED_OVER}
    launched.clear()
    _logits(adapter, 5)
    monkeypatch.setattr(own, "MOST_TOKENS", 4)
    _logits(adapter, 5)
    assert launched == ahead


class _Noted:
    """A kernel that is launched as ever, and notes what it is compiled for."""

    def __init__(self, kernel: Any, launched: set[tuple[Any, ...]]) -> None:
        self.kernel, self.launched = kernel, launched

    def __getitem__(self, grid: Any) -> Any:
        def launch(*given: Any, **how: Any) -> None:
            kinds = tuple(str(getattr(each, "dtype", type(each))) for each in given)
            self.launched.add((self.kernel.__name__, kinds, *sorted(map(str, how.items()))))
            self.kernel[grid](*given, **how)

        return launch


@on_cpu
@HOLDS_ANYTHING
@pytest.mark.parametrize(("width", "down"), [(64, "_mapped_down"), (68, "_many_down")])
def test_what_lies_by_tile_ahead_lies_so_in_a_prompt(
    width: int, down: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each product is launched with all that it is compiled for, whatever number of tokens a prompt has."""
    config = configurations()["qwen3_moe"]
    config.moe_intermediate_size = width
    model: Any = tiny_model(config).eval().to(torch.bfloat16)
    fuse_experts(model)
    launched: set[tuple[Any, ...]] = set()
    for name in ("_many_gated", "_many_down", "_mapped_down"):
        monkeypatch.setattr(own_many, name, _Noted(getattr(own_many, name), launched))
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    load_for_prompts(model)
    ahead = set(launched)
    assert {name for name, *_ in ahead} == {"_many_gated", "_many_down", down}
    launched.clear()
    monkeypatch.setattr(own_many, "is_faster", lambda *_: True)
    adapter = ModelAdapter(model)
    for tiles, tokens in ((tiles, tokens) for tiles in own_many.TILES for tokens in (1, 7, 130)):
        monkeypatch.setattr(own_many, "choose_tiles", lambda *_, tiles=tiles: tiles)
        _logits(adapter, tokens)
    assert launched == ahead


def _count(
    monkeypatch: pytest.MonkeyPatch, calls: dict[str, int], what: str, place: tuple[Any, str]
) -> None:
    usual = getattr(*place)

    def counted(*given: Any, **how: Any) -> Any:
        calls[what] += 1
        return usual(*given, **how)

    monkeypatch.setattr(*place, counted)


# Blocks that are a router and a stack, and perhaps a shared expert, and nothing else, in layers whose sums we make.
HANDED_OVER = {
    *("flex_olmo", "gpt_oss", "mellum", "minimax_m2", "mixtral", "olmoe", "qwen3_moe"),
    *("deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "exaone_moe", "glm4_moe"),
    *("glm4_moe_lite", "hy_v3", "mistral4", "solar_open"),
}


@on_cpu
@pytest.mark.parametrize(
    ("name", "tokens"), in_turns([name for name in WITH_EXPERTS if name not in NO_ROUTERS], 20, 3)
)
def test_sums_add_up_what_experts_give(
    name: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    adapter = ModelAdapter(ZOO[name]().eval())
    expected = _logits(adapter, tokens)
    report = fuse_modules(adapter, "on")
    torch.testing.assert_close(_logits(adapter, tokens), expected, rtol=1e-4, atol=1e-4)
    parts = []
    made = own.experts

    def noted(*given: Any, **how: Any) -> Tensor:
        parts.append(how["in_parts"])
        return made(*given, **how)

    monkeypatch.setattr(own_many, "is_faster", lambda tokens, *_: tokens > own.MOST_TOKENS)
    monkeypatch.setattr(own, "experts", noted)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(experts, "DTYPES", (torch.float32,))
    ours = _logits(adapter, tokens)
    assert parts == [name in HANDED_OVER] * report.experts
    assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-4
    for module in (own, own_many):
        monkeypatch.setattr(module, "MOST_TOKENS", tokens - 1)
    torch.testing.assert_close(_logits(adapter, tokens), expected, rtol=1e-4, atol=1e-4)
    assert len(parts) == report.experts


@on_cpu
@pytest.mark.parametrize(
    "change",
    [
        *("scaled", "scaled in place", "shares scaled in place", "inputs scaled in place"),
        *("another order", "a bias of its own"),
    ],
)
def test_blocks_that_do_more_do_not_hand_over(change: str) -> None:
    """Found by a pass of a network of the same kind."""
    model: Any = ZOO["qwen3_moe"]().eval()
    adapter = ModelAdapter(model)

    def run() -> Tensor:
        return _logits(adapter, 3)

    assert hand_over(model, run)
    block = model.base_model.layers[-1].mlp
    router, stack = block.gate, block.experts

    def other(x: Tensor) -> Tensor:
        if change == "inputs scaled in place":
            x *= 2
        flat = x.reshape(-1, x.shape[-1])
        _, shares, index = router(flat)
        if change == "another order":
            index, shares = index.flip(1), shares.flip(1)
        if change == "shares scaled in place":
            shares *= 2
        out = stack(flat, index, shares)
        if change == "scaled in place":
            out *= 2
        return (2 * out if change == "scaled" else out).view(x.shape)  # type: ignore[no-any-return]

    block.forward = other
    if change == "a bias of its own":
        block.bias = nn.Parameter(torch.zeros(4))
        assert block_of(block) is None
    else:
        assert not hand_over(model, run)


@on_cpu
@pytest.mark.parametrize("change", ["", "another", "changed", "two", "elsewhere"])
def test_corrections_that_blocks_give_their_routers(change: str) -> None:
    """A block that is handed over gives its router the one number for each expert that it has, and no other."""
    model: Any = ZOO["minimax_m2"]().eval()
    adapter = ModelAdapter(model)
    block = model.base_model.layers[-1].mlp
    router, stack, bias = block.gate, block.experts, block.e_score_correction_bias

    def other(x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        given = bias.clone() if change == "another" else bias
        if change == "changed":
            given = given * 2
        _, shares, index = router(flat, given)
        out: Tensor = stack(flat, index, shares)
        return out.view(x.shape)

    block.forward = other
    if change == "two":
        block.register_buffer("other", torch.zeros(4))
    if change == "elsewhere":
        del block.e_score_correction_bias
    assert (block_of(block) is None) == (change in ("two", "elsewhere"))
    if not change or block_of(block) is not None:
        assert hand_over(model, lambda: _logits(adapter, 3)) == (not change)


@on_cpu
@pytest.mark.parametrize(
    "change",
    [
        *("", "weighed", "averaged", "left out", "of other inputs", "of changed inputs", "changed"),
        *("changed in place", "two of them", "gated", "normed", "of more"),
    ],
)
def test_shared_experts_that_are_more_than_added(change: str) -> None:
    model: Any = ZOO["glm4_moe"]().eval()
    adapter = ModelAdapter(model)
    block = model.base_model.layers[-1].mlp
    router, stack, shared = block.gate, block.experts, block.shared_experts

    def other(x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        _, shares, index = router(flat)
        out: Tensor = stack(flat, index, shares)
        if change == "left out":
            return out.view(x.shape)
        if change == "of changed inputs":
            flat *= 2
        more = (out,) if change == "of more" else ()
        beside = shared(2 * flat if change == "of other inputs" else flat, *more)
        if change == "changed in place":
            beside *= 2
        if change == "weighed":
            beside = beside * 0.5
        out = out + beside
        if change == "averaged":
            out = out / 2
        if change == "changed":
            out += 1
        return out.view(x.shape)

    block.forward = other
    if change == "of more":
        shared.forward = lambda x, *_: type(shared).forward(shared, x)
    if change == "two of them":
        block.other = copy.deepcopy(shared)
    if change == "gated":
        block.shared_gate = nn.Linear(64, 1)
    if change == "normed":
        block.norm = nn.LayerNorm(64)
    found = block_of(block)
    assert (found is None) == (change in ("two of them", "gated", "normed"))
    if found is not None:
        assert found.shared is shared
        assert hand_over(model, lambda: _logits(adapter, 3)) == (not change)


@pytest.mark.pairs
@on_cpu
@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("tokens", [3, 40, 70])
@pytest.mark.parametrize("name", sorted(HANDED_OVER))
def test_blocks_in_16_bits(
    name: str, tokens: int, dtype: torch.dtype, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts in float32, by the kernels of few tokens and of more, beside the modelling code with the same weights in float32.

    The interpreter cuts bfloat16 off where a GPU rounds.
    """
    torch.manual_seed(0)
    model: Any = ZOO[name]().eval().to(dtype).requires_grad_(False)
    layer = model.base_model.layers[-1]
    found = block_of(layer.mlp)
    assert found is not None
    x = torch.randn(1, tokens, 64).to(dtype)
    out: Any = copy.deepcopy(layer.mlp).float()(x.float())
    exact = out[0] if isinstance(out, tuple) else out
    fuse_mlps([layer], set())
    fuse_linears(layer)
    fuse_experts(layer)
    let_sums_add_experts([layer])
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    parts = layer.mlp(x)
    assert parts.dtype == torch.float32
    routing = routing_of(found.router)
    assert routing is not None
    assert parts.shape == (routing.chosen + (found.shared is not None), *x.shape)
    error = (parts.sum(0) - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert float(error.median()) < most  # logits that are rounded may choose another expert
    if found.shared is not None:  # it is one of them, and few tokens' is not rounded
        assert torch.equal(parts[-1], parts[-1].to(dtype).float()) == (tokens > 64)
        assert float((parts[:-1].sum(0) - exact).abs().max()) > 0.1 * float(exact.abs().max())


@on_cpu
def test_what_is_reported() -> None:
    adapter = ModelAdapter(ZOO["qwen3_moe"]().eval())
    assert not is_fused(adapter.model)
    report = fuse_modules(adapter)
    layers = adapter.num_layers
    assert (report.experts, report.routers) == (layers, layers)
    assert f"{layers} stacks of experts, {layers} routers" in str(report)
    assert sum(are_fused(module) for module in adapter.model.modules()) == 3 * layers  # and blocks
    assert is_fused(adapter.model)
    with pytest.raises(InvalidRequest, match="cannot be saved"):
        adapter.model.save_pretrained("nowhere")


def _router(kind: str = "TopKRouter", name: str = "qwen3_moe", **facts: Any) -> Any:
    """A router of Qwen3's or another kind, of which the test changes something."""
    model: Any = ZOO[name]()
    found = next(each for each in model.modules() if type(each).__name__.endswith(kind))
    for fact in facts:
        setattr(found, fact, facts[fact])
    return found


def test_routers_that_do_something_else_are_left_alone() -> None:
    assert routing_of(_router(norm_topk_prob=True)) == Routing(2, True, None)
    assert routing_of(_router(norm_topk_prob=False)) == Routing(2, False, None)
    scaled = type("ScaledTopKRouter", (type(_router()),), {"forward": _scaled})
    other = _router()
    other.__class__ = scaled
    assert routing_of(other) is None
    biased = _router()
    biased.register_buffer("e_score_correction_bias", torch.zeros(5))
    assert routing_of(biased) is None
    assert routing_of(nn.Linear(64, 4)) is None


@on_cpu
@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_routers_that_give_a_token_an_expert_twice(
    name: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No known one does. Beside one that is not known the kernels give what the modelling code gives, in each of its layers."""
    torch.manual_seed(0)
    adapter = ModelAdapter(ZOO[name]().eval())
    routers = [each for each in adapter.model.modules() if routing_of(each) is not None]
    usual, is_asked = type(routers[0]).forward, [False]

    def chosen(self: Any, *given: Any) -> Any:
        logits, shares, index = usual(self, *given)
        is_asked[0] = True
        index = index.clone()
        index[::2] = index[::2, -1:]
        return logits, shares, index

    monkeypatch.setattr(type(routers[0]), "forward", chosen)
    fresh = functools.cache(routing._routing_of_form.__wrapped__)
    monkeypatch.setattr(routing, "_routing_of_form", fresh)  # classes are others now
    expected = _logits(adapter, tokens)
    stacks, known = fuse_experts(adapter.model)
    assert (stacks, known) == (len(routers), 0)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(experts, "DTYPES", (torch.float32,))
    for has_warpgroups in (False, True):
        monkeypatch.setattr(kernels, "have_warpgroups", lambda device, has=has_warpgroups: has)
        ours = _logits(adapter, tokens)
        assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-5
    assert is_asked == [True]


def test_stacks_beside_known_routers_are_given_what_these_have_chosen() -> None:
    """Of others it is looked at for each token whether it has an expert twice, which takes a launch more."""
    for name in WITH_EXPERTS:
        if name in OF_THEIR_OWN:
            continue
        model = ZOO[name]()
        fuse_experts(model)
        stacks: list[Any] = [each for each in model.modules() if _is_stack(each)]
        assert {each.forward.args[3] for each in stacks} == {name not in NO_ROUTERS}, name


@on_cpu
@pytest.mark.parametrize("change", ["", "shares twice"])
def test_routers_that_give_experts_first(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Granite's do before transformers 5.21; a block of the same kind hands over what its experts give."""
    torch.manual_seed(0)
    adapter = ModelAdapter(ZOO["qwen3_moe"]().eval())
    expected = _logits(adapter, 3)
    network: Any = adapter.model
    block = network.base_model.layers[-1].mlp
    of_block, of_router = type(block), type(block.gate)
    usual = of_router.forward

    def chosen(self: Any, x: Tensor) -> Any:
        return usual(self, x)[::-1]

    def blocked(self: Any, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        index, shares, _ = self.gate(flat)
        out: Tensor = self.experts(flat, index, 2 * shares if change else shares)
        return out.view(x.shape)

    monkeypatch.setattr(of_router, "forward", chosen)
    monkeypatch.setattr(of_block, "forward", blocked)
    fresh = functools.cache(routing._routing_of_form.__wrapped__)
    monkeypatch.setattr(routing, "_routing_of_form", fresh)  # classes are others now
    its = Routing(2, even=False, dtype=None, is_reversed=True)
    assert {routing_of(each) for each in adapter.model.modules()} == {None, its}
    if not change:
        assert torch.equal(_logits(adapter, 3), expected)
    expected = _logits(adapter, 3)
    report = fuse_modules(adapter, "on")
    assert report.routers == adapter.num_layers
    assert are_fused(block) == (not change)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(experts, "DTYPES", (torch.float32,))
    ours = _logits(adapter, 3)
    assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-5
    _, shares, logits = block.gate(torch.randn(3, 64))
    assert (shares.shape, logits.shape) == ((3, 2), (3, 4))


def test_routers_with_logits_in_float32() -> None:
    """In 16 bits, logits of most routers by sigmoids are made in float32, and those of others are rounded as their inputs are."""
    wide = {
        name: bool(found and found.is_wide)
        for name in WITH_EXPERTS
        if name not in NO_ROUTERS
        for found in [routing_of(_router("Router", name=name))]
    }
    assert {name for name, is_wide in wide.items() if not is_wide} == {
        *("afmoe", "flex_olmo", "gpt_oss", "granitemoe", "mellum", "minimax_m2", "mistral4"),
        *("mixtral", "olmoe", "qwen2_moe", "qwen3_moe"),
    }


def test_modules_that_were_given_another_forward_keep_it() -> None:
    model: Any = ZOO["qwen3_moe"]()
    given = {}
    for module in model.modules():
        if _is_stack(module) or routing_of(module) is not None:
            given[module] = module.forward = functools.partial(type(module).forward, module)
    assert fuse_experts(model) == (0, 0)
    for module, forward in given.items():
        assert module.forward is forward
    fresh: Any = ZOO["qwen3_moe"]()
    block = fresh.base_model.layers[0].mlp
    assert fuse_experts(fresh) == (len(given) // 2, len(given) // 2)
    assert fuse_experts(fresh) == (0, 0)
    block.forward = forward
    let_sums_add_experts(fresh.base_model.layers)
    assert block.forward is forward
    assert are_fused(fresh.base_model.layers[1].mlp)


@on_cpu
def test_a_copy_of_a_network_computes_with_its_own_weights() -> None:
    model: Any = ZOO["qwen3_moe"]().eval()
    fuse_experts(model)
    let_sums_add_experts(model.base_model.layers[:1])
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        of_its_own = set(copied.modules())
        for module in filter(are_fused, of_its_own):
            held = [each for each in module.forward.args if isinstance(each, nn.Module)]
            assert held
            assert of_its_own.issuperset(held)
            usual: Any = usual_of(module)
            assert usual.__self__ is module


def _scaled(self: Any, x: Tensor) -> Any:
    logits, shares, index = super(type(self), self).forward(x)
    return logits, 1.7 * shares, index


def _clamped(limit: float) -> Any:
    """The gate of a stack between limits, in two halves, as deepseek_v4 has it."""

    def gate(both: Tensor) -> Tensor:
        gates, values = both.chunk(2, dim=-1)
        return nn.functional.silu(gates.clamp(max=limit)) * values.clamp(-limit, limit)

    return gate


def test_stacks_that_do_something_else_are_left_alone() -> None:
    model: Any = ZOO["qwen3_moe"]()
    stack = next(each for each in model.modules() if _is_stack(each))
    assert gate_of(stack) == ("silu", None)
    stack.has_post_expert_norm = False  # before transformers 5.20 there is no such norm
    for name, fact in (
        ("has_post_expert_norm", True),
        ("has_gate", False),
        ("num_experts", 3),
        ("is_transposed", True),
        ("act_fn", nn.ReLU()),
        ("act_fn", nn.Bilinear(2, 2, 2)),  # of both halves at once
        ("_apply_gate", lambda gate, up: gate * up),
        ("_apply_gate", lambda both: both.chunk(2, dim=-1)[0]),
        *[("_apply_gate", _clamped(limit)) for limit in (0.5, 10.0, 30.0, 1000.0)],
    ):
        kept = getattr(stack, name)
        setattr(stack, name, fact)
        assert gate_of(stack) is None, name
        setattr(stack, name, kept)
    assert gate_of(stack) is not None


class _Skipped:
    """A kernel that is not compiled yet, where launches are only noted."""

    def __getitem__(self, grid: object) -> Any:
        return lambda *given, **named: None


def test_places_are_sound_where_the_kernel_that_writes_them_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an engine that gets ready beside, or behind, another one: the kernels that read them may be compiled already."""

    def unsound(*size: int, **named: Any) -> Tensor:
        return torch.full(size, 1 << 30, **named)

    monkeypatch.setattr(torch, "empty", unsound)
    for name in ("_choose", "_list"):
        monkeypatch.setattr(own, name, _Skipped())

    def places() -> list[Tensor]:
        _, index = own.choose(torch.zeros(32, 8), 2)
        return [index, *own.list_pairs(index, 8)]

    with compiling_at_once(lambda done, whole: None):
        with compiling_at_once(lambda done, whole: None):
            pass
        assert not any(each.any() for each in places())
    assert all((each == 1 << 30).all() for each in places())
