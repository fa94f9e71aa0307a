"""The kernels beside a network's products, each against its twin in plain torch or float64.

Without a GPU they run under Triton's interpreter, which cuts bfloat16 off where a GPU rounds: there a
result may be one step of the dtype away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.model import kernels
from manyhands.model import skinny as model_skinny
from manyhands.model.layers import FORMS, Form, HeadNorms, Norm, join
from manyhands.model.quantised.linear import _plain_rows
from manyhands.model.quantised.w4a16 import Int4Linear, pack, unpack, without_nothing
from manyhands.model.skinny import SkinnyLinear
from tests.covers import spared
from tests.model.interpreted import HOLDS_ANYTHING

pytest.importorskip("triton", reason="Triton exists for Linux alone")
from manyhands.model.kernels import (
    experts,
    experts_many,
    gate_up,
    gated,
    norms,
    ring,
    rows,
    skinny,
    w4a16,
    w4a16_tiles,
)
from manyhands.model.quantised.linear import Float8Linear

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
# Of a value around 1: a few steps of the dtype, because two roundings may fall apart.
STEPS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", STEPS, ids=str)
TWO_BYTES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


def _close(ours: Tensor | None, expected: Tensor) -> None:
    assert ours is not None
    assert ours.dtype == expected.dtype
    step = STEPS[expected.dtype]
    torch.testing.assert_close(ours, expected, rtol=step, atol=4 * step)


def test_no_kernel_takes_what_a_gradient_goes_back_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be lost without a word, in whichever layer."""
    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    x: Any = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, device=None, requires_grad=True)
    assert not kernels.usable(x)
    with torch.no_grad():
        assert kernels.usable(x)
    x.requires_grad = False
    assert kernels.usable(x)


@DTYPES
@pytest.mark.parametrize("form", [0, 1, 2])
@pytest.mark.parametrize("width", [64, 80, 129])
@pytest.mark.parametrize("parts", ["norm", "sum, norm", "norm, sum", "norm, sum, norm"])
def test_join(
    dtype: torch.dtype, form: Form, width: int, parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    residual = _normal(1, 5, width, dtype=dtype) if "sum" in parts else None
    x = _normal(1, 5, 2 * width, dtype=dtype)[..., :width]  # rows of a wider product
    both = [Norm(nn.Parameter(_normal(width, dtype=dtype)), eps, form) for eps in (1e-6, 1e-3)]
    post = both[0] if parts.startswith("norm, sum") else None
    pre = both[1] if not parts.endswith("sum") else None
    post_parts, pre_parts = (norm.parts if norm else None for norm in (post, pre))
    total, normed = norms.join(residual, x, post_parts, pre_parts, form, is_early=width == 80)
    monkeypatch.setattr(kernels, "usable", lambda x: False)
    expected = join(residual, x, post, pre)
    assert (total is None, normed is None) == (residual is None, pre is None)
    if total is not None:
        _close(total, expected[0])
    if normed is not None:
        _close(normed, expected[1])


@TWO_BYTES
@pytest.mark.parametrize("parts", ["sum", "sum, norm", "norm, sum, norm"])
def test_join_adds_up_products_in_parts(
    dtype: torch.dtype, parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    residual, x = _normal(1, 5, 80, dtype=dtype), _normal(2, 1, 5, 80)
    both = [Norm(nn.Parameter(_normal(80, dtype=dtype)), eps, 0) for eps in (1e-6, 1e-3)]
    post = both[0] if parts.startswith("norm") else None
    pre = both[1] if parts.endswith("norm") else None
    whole = join(residual, x.sum(0).to(dtype), post, pre)
    for usable in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda x, usable=usable: usable)
        for ours, expected in zip(join(residual, x, post, pre), whole, strict=True):
            _close(ours, expected)


@DTYPES
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("size", "num_heads"), [(16, 4), (80, 4), (80, 21), (256, 9)])
def test_head_norms(
    dtype: torch.dtype, size: int, num_heads: int, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last two have several programs to a token, one with heads of both kinds and one that is not full."""
    query, key = (Norm(nn.Parameter(_normal(size, dtype=dtype)), eps, form) for eps in (1e-6, 1e-1))
    module = HeadNorms(query, key)
    qkv = _normal(3, num_heads + 4, size, dtype=dtype)
    expected = qkv.clone()
    for x, usable in ((expected, False), (qkv, True)):
        monkeypatch.setattr(kernels, "usable", lambda x, usable=usable: usable)
        with torch.no_grad():
            module(x[:, :num_heads], x[:, num_heads:-2])
    _close(qkv, expected)


@DTYPES
@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "gelu"])
def test_gated(dtype: torch.dtype, name: str) -> None:
    approximate = "tanh" if name == "gelu_tanh" else "none"
    gate_up = 2 * _normal(3, 2 * 1100, dtype=dtype)
    gate, up = gate_up.chunk(2, dim=-1)
    act = (
        functional.silu(gate) if name == "silu" else functional.gelu(gate, approximate=approximate)
    )
    ours = gated.gated(gate_up, name)
    torch.testing.assert_close(ours, act * up, rtol=2 * STEPS[dtype], atol=2 * STEPS[dtype])


@DTYPES
def test_rows_in_float8(dtype: torch.dtype) -> None:
    x = _normal(4, 300, dtype=dtype) * torch.tensor([[1.0], [30.0], [1e-3], [0.0]]).to(
        DEVICE, dtype
    )
    values, scales = rows.quantise_rows(x, torch.float8_e4m3fn if GPU else torch.float32)
    expected, expected_scales = _plain_rows(x)
    torch.testing.assert_close(scales[:, 0], expected_scales)
    assert torch.equal(values.to(torch.float8_e4m3fn).float(), expected.float())
    assert float(values.float().abs().max()) == 448.0


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, of the interpreter
def test_a_row_in_float8_without_sound_numbers_is_alone_with_them() -> None:
    """A bound in the place of a number that is none would make products of damaged weights finite."""
    x = _normal(4, 300)
    x[1, 7], x[2], x[3, 5] = float("nan"), float("nan"), float("inf")
    values, scales = rows.quantise_rows(x, torch.float8_e4m3fn if GPU else torch.float32)
    expected, expected_scales = _plain_rows(x)
    torch.testing.assert_close(scales[:, 0], expected_scales, equal_nan=True)
    ours, theirs = (each.float().isnan() for each in (values, expected))
    assert ours.sum(1).tolist() == [0, 300, 300, 1]
    assert torch.equal(ours, theirs)


def test_nothing_to_do() -> None:
    """A pass may have no tokens in one of its parts."""
    nothing = _normal(0, 8)
    _, normed = norms.join(None, nothing, None, (_normal(8), 1e-6), 0)
    assert normed is not None
    assert normed.shape == (0, 8)
    assert gated.gated(nothing, "silu").shape == (0, 4)
    assert gate_up.gated_product(nothing, _normal(6, 8), None, "silu").shape == (0, 3)
    assert rows.quantise_rows(nothing)[0].shape == (0, 8)
    assert skinny.product(nothing, _normal(3, 8), None, nothing).shape == (0, 3)
    assert experts.choose(nothing, 2)[1].shape == (0, 2)
    both = experts.ExpertWeights(_normal(4, 6, 8)), experts.ExpertWeights(_normal(4, 8, 3))
    chosen = nothing[:, :2].long()
    assert experts.experts(nothing, chosen, nothing[:, :2], *both, experts.ExpertGate()).shape == (
        0,
        8,
    )


# -- few tokens ------------------------------------------------------------------------------------


def _few(inputs: int, outputs: int, tokens: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    weight = (_normal(outputs, inputs) / inputs**0.5).to(dtype)
    return _normal(tokens, inputs, dtype=dtype), weight, _normal(outputs, dtype=dtype)


@TWO_BYTES
@pytest.mark.parametrize(
    ("tokens", "inputs", "parts"),
    [
        *[(1, 512, 1), (1, 512, 4), (4, 640, 2), (17, 200, 1), (17, 328, 3), (32, 256, 2)],
        *[(33, 200, 1), (64, 256, 2)],
    ],
)
def test_products_of_few_tokens(tokens: int, inputs: int, parts: int, dtype: torch.dtype) -> None:
    """Outputs and inputs that do not fill a tile; split inputs; with a bias and without."""
    x, weight, bias = _few(inputs, 150, tokens, dtype)
    arrived = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    tiles = skinny.Tiles(parts=parts)
    for added in (None, bias):
        wide = None if added is None else added.double()
        expected = functional.linear(x.double(), weight.double(), wide).to(dtype)
        ours = skinny.product(x, weight, added, arrived, tiles=tiles)
        _close(ours, expected)
        assert not arrived.any()
        assert torch.equal(ours, skinny.product(x, weight, added, arrived, tiles=tiles))


@TWO_BYTES
@pytest.mark.parametrize(("tokens", "parts"), [(5, 1), (5, 3), (40, 1)])
@pytest.mark.parametrize("name", gated.ACTIVATIONS)
def test_gated_products_of_few_tokens(
    name: str, tokens: int, parts: int, dtype: torch.dtype
) -> None:
    x, weight, bias = _few(320, 2 * 90, tokens, dtype)
    arrived = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    for added in (None, bias):
        both = functional.linear(
            x.float(), weight.float(), None if added is None else added.float()
        )
        expected = gated.gated(both.to(dtype), name)
        ours = skinny.product(x, weight, added, arrived, name, skinny.Tiles(parts=parts))
        torch.testing.assert_close(ours, expected, rtol=4 * STEPS[dtype], atol=4 * STEPS[dtype])
        assert not arrived.any()


@pytest.mark.pairs
@pytest.mark.skipif(
    GPU and torch.cuda.get_device_capability() < (9, 0), reason="tensor maps begin with Hopper"
)
@TWO_BYTES
@pytest.mark.parametrize("name", gated.ACTIVATIONS)
@pytest.mark.parametrize(("tokens", "inputs", "width"), [(33, 200, 90), (128, 320, 192)])
def test_gated_products_of_many_tokens(
    name: str, tokens: int, inputs: int, width: int, dtype: torch.dtype
) -> None:
    """Tokens, outputs and inputs that do not fill a tile, and some that do; results repeat."""
    x, weight, bias = _few(inputs, 2 * width, tokens, dtype)
    for added in (None, bias):
        both = functional.linear(
            x.float(), weight.float(), None if added is None else added.float()
        )
        expected = gated.gated(both.to(dtype), name)
        ours = gate_up.gated_product(x, weight, added, name)
        torch.testing.assert_close(ours, expected, rtol=4 * STEPS[dtype], atol=4 * STEPS[dtype])
        assert torch.equal(ours, gate_up.gated_product(x, weight, added, name))


HOPPER = pytest.mark.skipif(
    not GPU or torch.cuda.get_device_capability()[0] != 9, reason="Gluon has no interpreter"
)
RAGGED = pytest.mark.parametrize(
    ("tokens", "inputs"), [(33, 64), (64, 1024), (65, 704), (96, 2048), (128, 4096)]
)


@HOPPER
@TWO_BYTES
@RAGGED
def test_products_of_the_ring(tokens: int, inputs: int, dtype: torch.dtype) -> None:
    """Fewer stages than there is room for, many more, and parts of which one is longer; results repeat."""
    x, weight, bias = _few(inputs, 192, tokens, dtype)
    for added in (None, bias):
        exact = functional.linear(
            x.double(), weight.double(), None if added is None else added.double()
        )
        ours = ring.product(x, weight, added)
        torch.testing.assert_close(ours.double(), exact, rtol=STEPS[dtype], atol=STEPS[dtype])
        parts = ring.product_in_parts(x, weight, added)
        assert (parts.shape, parts.dtype) == ((2, tokens, 192), torch.float32)
        torch.testing.assert_close(parts.double().sum(0), exact, rtol=1e-5, atol=1e-4)
        assert all(torch.equal(ours, ring.product(x, weight, added)) for _ in range(20))
        assert all(torch.equal(parts, ring.product_in_parts(x, weight, added)) for _ in range(20))


@HOPPER
@RAGGED
@pytest.mark.parametrize(
    ("groups", "name"), [(1, "silu"), (2, "gelu"), (3, "silu"), (3, "gelu_tanh")]
)
def test_gated_products_of_the_ring(groups: int, name: str, tokens: int, inputs: int) -> None:
    """The last program has outputs for one group only, if it has more of them."""
    dtype = torch.bfloat16
    x, weight, bias = _few(inputs, 2 * 224, tokens, dtype)
    for added in (None, bias):
        both = functional.linear(
            x.float(), weight.float(), None if added is None else added.float()
        )
        expected = gated.gated(both.to(dtype), name)
        ours = ring.gated_product(x, weight, added, name, groups)
        torch.testing.assert_close(ours, expected, rtol=4 * STEPS[dtype], atol=4 * STEPS[dtype])
        again = [ring.gated_product(x, weight, added, name, groups) for _ in range(20)]
        assert all(torch.equal(ours, each) for each in again)


def _ring_of(outputs: int, inputs: int, **kind: Any) -> int:
    return ring.groups_for(
        torch.empty(outputs, inputs, dtype=torch.bfloat16, device="meta"), **kind
    )


def test_weights_that_a_ring_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs have a processor each, and most processors have one."""
    assert not _ring_of(6144, 4096), "only for Hopper"
    monkeypatch.setattr(ring, "has_gluon", lambda device: True)
    assert [_ring_of(n, 4096) for n in (3072, 6144, 7168, 8448, 8512)] == [0, 1, 1, 1, 0]
    assert [_ring_of(n, 8192, parts=2) for n in (2048, 4096, 4224, 5120)] == [0, 1, 1, 0]
    halves = (2 * 2048, 2 * 4096, 2 * 6144, 2 * 12288, 2 * 13824)
    assert [_ring_of(n, 4096, gated=True) for n in halves] == [0, 1, 2, 3, 0]
    assert not _ring_of(6144, 4096 + 32)
    assert not _ring_of(4096, 64, parts=2), "a part without inputs"
    assert not _ring_of(6144 + 32, 4096)
    monkeypatch.setattr(kernels, "num_processors", lambda device: 78)
    assert [_ring_of(n, 4096) for n in (3072, 6144)] == [0, 0]


def test_a_layer_writes_what_it_gives_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens unrounded, by the kernel of few; more, and those that the ring takes, as the layer gives them."""
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    linear = nn.Linear(128, 72, device=DEVICE, dtype=torch.bfloat16).requires_grad_(False)
    layer = SkinnyLinear.of(linear)
    for tokens in (5, 64, 70):
        x = _normal(tokens, 128, dtype=torch.bfloat16)
        room = torch.full((2, tokens, 72), torch.nan, device=DEVICE)
        layer.put(x, room[1])
        exact = functional.linear(x.double(), linear.weight.double(), linear.bias.double())
        error = float((room[1] - exact).abs().max())
        assert error < 1e-5 if tokens <= skinny.MOST_TOKENS else 1e-4 < error < 2e-2
        assert room[0].isnan().all()
    monkeypatch.setattr(model_skinny, "has_gluon", lambda device: True)
    monkeypatch.setattr(ring, "groups_for", lambda *_, **__: 1)
    monkeypatch.setattr(ring, "product", lambda x, *_: torch.ones(len(x), 72, device=DEVICE))
    room = torch.zeros(40, 72, device=DEVICE)
    layer.put(_normal(40, 128, dtype=torch.bfloat16), room)
    assert torch.equal(room, torch.ones_like(room))


def test_a_layer_takes_the_ring_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 33 tokens up to 128; parts for callers that add up, where their programs fill the processors."""
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    for module in (ring, model_skinny):
        monkeypatch.setattr(module, "has_gluon", lambda device: True)
    monkeypatch.setattr(skinny, "product", lambda x, *_: x.new_zeros(len(x), 6144))
    taken: list[tuple[str, int]] = []

    def noted(name: str, x: Tensor, *shape: int) -> Tensor:
        taken.append((name, len(x)))
        return torch.zeros(*shape)

    def in_parts(x: Tensor, weight: Tensor, *_: object) -> Tensor:
        return noted("parts", x, 2, len(x), len(weight))

    def gated(x: Tensor, weight: Tensor, *_: object) -> Tensor:
        return noted("gated", x, len(x), len(weight) // 2)

    monkeypatch.setattr(ring, "product", lambda x, *_: noted("whole", x, len(x), 6144))
    monkeypatch.setattr(ring, "product_in_parts", in_parts)
    monkeypatch.setattr(ring, "gated_product", gated)
    counts = (32, 33, 64, 65, 128, 129)
    for outputs, gives in ((6144, False), (6144, True), (4096, True)):
        layer = SkinnyLinear.of(
            nn.Linear(128, outputs, bias=False, device=DEVICE, dtype=torch.bfloat16)
        )
        layer.gives_parts = gives
        for tokens in counts:
            x = _normal(1, tokens, 128, dtype=torch.bfloat16)
            out = layer(x)
            in_two = outputs == 4096 and 33 <= tokens <= 128
            assert out.shape == (
                (2, 1, tokens, 4096) if in_two else (1, tokens, 6144 if tokens <= 128 else outputs)
            )
    many = (33, 64, 65, 128)
    whole = [("whole", tokens) for tokens in many]
    assert taken == [*whole, *whole, *(("parts", tokens) for tokens in many)]
    taken.clear()
    layer = SkinnyLinear.of(nn.Linear(64, 8192, bias=False, device=DEVICE, dtype=torch.bfloat16))
    for tokens in (33, 128):
        out = layer.gated(_normal(1, tokens, 64, dtype=torch.bfloat16), "silu")
        assert out is not None
        assert out.shape == (1, tokens, 4096)
    assert taken == [("gated", 33), ("gated", 128)]


def test_a_gated_layer_takes_the_kernel_of_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """One up to 64 tokens, one up to 128, and none beyond."""
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    taken: list[str] = []
    layer = SkinnyLinear.of(nn.Linear(16, 12, bias=False, device=DEVICE, dtype=torch.bfloat16))

    def noted(name: str, tokens: int) -> Tensor:
        taken.append(name)
        return torch.zeros(tokens, 6)

    monkeypatch.setattr(skinny, "product", lambda x, *_: noted("skinny", len(x)))
    monkeypatch.setattr(gate_up, "gated_product", lambda x, *_: noted("gate_up", len(x)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for tokens in (64, 65, 128, 129):
        out = layer.gated(_normal(1, tokens, 16, dtype=torch.bfloat16), "silu")
        assert (out is None) == (tokens == 129)
    assert taken == ["skinny", "gate_up", "gate_up"]
    x = _normal(70, 16, dtype=torch.bfloat16)
    shifted = _normal(12 * 16 + 4, dtype=torch.bfloat16)[4:].view(12, 16)
    for weight in (shifted, _normal(16, 12, dtype=torch.bfloat16).t()):
        layer.weight = nn.Parameter(weight, requires_grad=False)
        assert layer.gated(x, "silu") is None, "no tensor map begins there"
    assert layer.gated(x[:9], "silu") is None, "the kernel of few tokens wants rows in one piece"
    assert torch.equal(layer(x[:9]), functional.linear(x[:9], layer.weight))


@pytest.mark.skipif(
    GPU and torch.cuda.get_device_capability() < (9, 0), reason="float8 products begin with Hopper"
)
@pytest.mark.parametrize(
    ("tokens", "inputs", "parts"), [(1, 512, 1), (3, 1024, 4), (17, 320, 1), (32, 512, 2)]
)
def test_float8_products_of_few_tokens(tokens: int, inputs: int, parts: int) -> None:
    """The product of the very float8 numbers, scaled, and rounded once to bfloat16."""
    layer = Float8Linear.from_weight(_normal(150, inputs) / inputs**0.5, _normal(150))
    values, scales = _plain_rows(_normal(tokens, inputs))
    both = layer.scales, scales
    arrived = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    tiles = skinny.Tiles(inputs=256, parts=parts)
    assert layer.bias is not None
    ours = skinny.product(values, layer.weight, layer.bias, arrived, tiles=tiles, scales=both)
    exact = (values.double() * scales.double()[:, None]) @ layer.dequantised(torch.float64).t()
    torch.testing.assert_close(
        ours.double(),
        exact + layer.bias.double(),
        rtol=2.0**-7,
        atol=2.0**-7,
    )
    assert not arrived.any()


@TWO_BYTES
def test_a_token_does_not_see_its_neighbours(dtype: torch.dtype) -> None:
    x, weight, bias = _few(384, 100, 16, dtype)
    arrived = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    together = skinny.product(x, weight, bias, arrived)
    alone = torch.cat([skinny.product(row[None], weight, bias, arrived) for row in x])
    assert torch.equal(together, alone)


def test_tiles_of_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program a processor where outputs are few, or two, and long inputs in shares."""
    processors = 132
    monkeypatch.setattr(kernels, "num_processors", lambda device: processors)

    def chosen(outputs: int, inputs: int, tokens: int = 4, *, gated: bool = False) -> skinny.Tiles:
        return skinny.choose_tiles(tokens, outputs, inputs, torch.device("cpu"), gated=gated)

    def parts_and_stages(outputs: int, inputs: int, *, gated: bool = False) -> tuple[int, int]:
        tiles = chosen(outputs, inputs, gated=gated)
        assert (tiles.outputs, tiles.inputs, tiles.warps) == (64, 128, 4)
        assert gated or tiles == chosen(outputs, inputs, 32)  # sums are made in the same order
        return tiles.parts, tiles.stages

    assert parts_and_stages(256 * processors, 5120) == (1, 4)
    assert parts_and_stages(255 * processors, 5120) == (1, 3)
    assert parts_and_stages(6144, 2048, gated=True) == (1, 3)
    assert parts_and_stages(6144, 4096) == (1, 6)
    assert parts_and_stages(4096, 4096) == (2, 6)
    assert parts_and_stages(512, 512) == (1, 6)  # never into crumbs
    for outputs, inputs, parts in ((32, 2880, 9), (128, 2048, 8), (256, 7168, 16), (8, 64, 1)):
        router = skinny.Tiles(outputs=16, inputs=64, parts=parts, warps=2)
        assert chosen(outputs, inputs) == chosen(outputs, inputs, 64) == router
    assert [parts_and_stages(4096, k) for k in (11008, 12288)] == [(2, 6)] * 2
    assert parts_and_stages(5120, 27648) == (3, 4)  # 240 programs, and not 160 or 320
    assert chosen(24576, 4096, 16, gated=True) == skinny.Tiles(stages=3)
    assert chosen(24576, 4096, 17, gated=True) == skinny.Tiles(inputs=64, stages=4)
    assert chosen(55296, 5120, 17, gated=True).inputs == 128  # too many to run at once
    # With more than 32 tokens three stages of a program take as much room as four did.
    assert chosen(256 * processors, 5120, 33) == skinny.Tiles(stages=3)
    assert chosen(55296, 5120, 33, gated=True) == skinny.Tiles(inputs=64, stages=4)
    assert chosen(5120, 27648, 64) == skinny.Tiles(parts=3, stages=3)
    assert chosen(4096, 12288, 64) == skinny.Tiles(parts=2, stages=6)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 16, 17, 32, 64])
def test_stages_find_room(tokens: int, gated: bool) -> None:
    """In the shared memory of a consumer's GPU too, where there is less than half."""
    for room in (232448, 101376):
        tiles = skinny.Tiles(stages=6).fitted(room, tokens, gated=gated)
        assert tiles.num_bytes(tokens, gated=gated) <= room
        assert 2 <= tiles.stages <= 6
    assert skinny.Tiles(stages=6).fitted(1, tokens, gated=gated).stages == 1


# -- four bits -------------------------------------------------------------------------------------

FAST = pytest.mark.parametrize(
    "fast", [False, pytest.param(True, marks=pytest.mark.skipif(not GPU, reason="needs a GPU"))]
)


def _layer(outputs: int, inputs: int, *, bias: bool, group: int | None = None) -> Int4Linear:
    layer = Int4Linear.from_weight(_normal(outputs, inputs) / inputs**0.5, None)
    if group is not None:  # smaller groups than we would have made ourselves
        repeat = layer.group // group
        q = unpack(layer.packed, outputs)
        scales, zeros = (x.repeat_interleave(repeat, 0) for x in (layer.scales, layer.zeros))
        stretched = scales * (1 + torch.arange(len(scales), device=scales.device) % 5)[:, None]
        layer = Int4Linear(pack(q), stretched.to(scales.dtype), zeros, None)
    layer.bias = nn.Parameter(_normal(outputs)) if bias else None
    return layer


def _product(
    layer: Int4Linear,
    x: Tensor,
    tiles: w4a16_tiles.Tiles,
    fast: bool,
    activation: str | None = None,
) -> Tensor:
    parts = (layer.packed, layer.scales, layer.zeros, layer.bias, layer.group)
    return w4a16.product(x, *parts, layer.arrived, tiles, activation=activation, fast=fast)


def _repeats(ours: Tensor, again: Callable[[], Tensor]) -> bool:
    """The same numbers again; the interpreter runs one program after the other, so there nothing could differ."""
    return not GPU or torch.equal(ours, again())


def _stored(layer: Int4Linear) -> tuple[Tensor, Tensor, Tensor, int]:
    return layer.packed, layer.scales, layer.zeros, layer.group


def _exact(layer: Int4Linear, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.double()
    return functional.linear(x.double(), layer.dequantised(torch.float64), bias)


TILES = {
    "one eight": w4a16_tiles.Tiles(),
    "two eights": w4a16_tiles.Tiles(eights=2, ahead=1, parts=2),
    "whole blocks": w4a16_tiles.Tiles(pairs=2, eights=4, ahead=1, hold=False, compact=True),
    "ring": w4a16_tiles.Tiles(row_warps=2, stages=3, parts=2),
    "ring of shares": w4a16_tiles.Tiles(eights=2, stages=3, programs=3),
    "warps for tokens": w4a16_tiles.Tiles(2, 2, row_warps=2, token_warps=2, parts=3, compact=True),
}


@pytest.mark.pairs
@FAST
@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
@pytest.mark.parametrize(("tokens", "inputs"), [(1, 512), (4, 640), (17, 192), (40, 96)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_of_four_bits(
    tokens: int, inputs: int, tiles: w4a16_tiles.Tiles, dtype: torch.dtype, fast: bool
) -> None:
    """Groups of 128, 64 and 32; outputs and tokens that do not fill a tile; more parts than spans."""
    layer = _layer(150, inputs, bias=tokens > 1)
    x = _normal(tokens, inputs, dtype=dtype)
    ours = _product(layer, x, tiles, fast)
    _close(ours, _exact(layer, x).to(dtype))
    assert not layer.arrived.any()
    assert _repeats(ours, lambda: _product(layer, x, tiles, fast))


@pytest.mark.pairs
@FAST
@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
@pytest.mark.parametrize(("tokens", "inputs", "width"), [(4, 640, 64), (17, 192, 192)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gated_products_of_four_bits(
    tokens: int, inputs: int, width: int, tiles: w4a16_tiles.Tiles, dtype: torch.dtype, fast: bool
) -> None:
    """One launch gives what a product and its gates in two give, bit for bit; widths that do not fill a tile."""
    layer = _layer(2 * width, inputs, bias=tokens > 4)
    x = _normal(tokens, inputs, dtype=dtype)
    both = _product(layer, x, tiles, fast)
    # The interpreter has no tiles in the step in which the activation is.
    has_all = GPU or tiles == TILES["one eight"]
    for activation in gated.ACTIVATIONS if has_all else ["silu"]:
        ours = _product(layer, x, tiles, fast, activation)
        assert ours.shape == (tokens, width)
        assert torch.equal(ours, gated.gated(both, activation))
    assert not layer.arrived.any()


# Four stages of groups of 32 would leave Triton no shared memory.
RINGS = [
    *((32, 2, 1), (32, 3, 3), (32, 3, 5)),
    *((group, *each) for group in (64, 128) for each in ((2, 1), (3, 3), (4, 5))),
]


@FAST
@pytest.mark.parametrize(
    ("tokens", "group", "stages", "parts"),
    # The interpreter has no ring, so there tokens and groups have nothing to do with each other.
    [
        (tokens, *each)
        for tokens in (1, 3, 4, 8)
        for each in RINGS
        if GPU or tokens == 3 or each == RINGS[4]
    ],
)
def test_rings(tokens: int, group: int, stages: int, parts: int, fast: bool) -> None:
    """More spans than stages and fewer; what lies behind the last token is of no account, nor is a token to others."""
    inputs = 1152 if GPU else 640  # spans for the longest ring and one more; as many as parts
    layer = _layer(100, inputs, bias=True, group=group)
    rows = torch.full((9, inputs), torch.nan, device=DEVICE, dtype=torch.bfloat16)
    x = rows[:tokens].copy_(_normal(tokens, inputs))
    tiles = w4a16_tiles.Tiles(row_warps=2, stages=stages, parts=parts)
    ours = _product(layer, x, tiles, fast)
    _close(ours, _exact(layer, x).to(x.dtype))
    assert _repeats(ours, lambda: _product(layer, x, tiles, fast))
    assert torch.equal(ours[-1:], _product(layer, x[-1:], tiles, fast))


@FAST
@pytest.mark.parametrize("programs", [1, 5, 17, 99, *spared(2, 3, 7, 45)])
def test_shares(programs: int, fast: bool) -> None:
    """Programs with several tiles, with parts of two, and more programs than there are spans (45)."""
    layer = _layer(600, 1152, bias=True, group=128)
    x = _normal(11, 1152, dtype=torch.bfloat16)
    tiles = w4a16_tiles.Tiles(eights=2, stages=3, programs=programs)
    ours = _product(layer, x, tiles, fast)
    _close(ours, _exact(layer, x).to(x.dtype))
    assert not layer.arrived.any()
    assert _repeats(ours, lambda: _product(layer, x, tiles, fast))


@FAST
@pytest.mark.parametrize("tiles", TILES.values(), ids=TILES)
def test_inputs_out_of_line(tiles: w4a16_tiles.Tiles, fast: bool) -> None:
    """Rows apart, and rows that begin between two places that 16 bytes can be loaded from."""
    layer, x = _layer(72, 256, bias=False), _normal(3, 256, dtype=torch.float16)
    expected = _product(layer, x, tiles, fast)
    apart = functional.pad(x, (0, 8))[:, :256]
    begun = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(3, 256)
    assert torch.equal(_product(layer, apart, tiles, fast), expected)
    assert torch.equal(_product(layer, begun, tiles, fast), expected)


@FAST
@pytest.mark.parametrize("compact", [False, True])
def test_every_weight_is_in_its_place(compact: bool, fast: bool) -> None:
    """Each input alone, so that nothing averages out: the products are the weights, exactly."""
    layer = _layer(128, 64, bias=False)
    layer.scales.fill_(0.5)
    x = torch.eye(64, device=DEVICE, dtype=torch.float16)
    ours = _product(layer, x, w4a16_tiles.Tiles(pairs=2, eights=4, ahead=1, compact=compact), fast)
    assert torch.equal(ours.t(), layer.dequantised(torch.float16))
    assert torch.equal(ours, _product(layer, x, w4a16_tiles.Tiles(row_warps=2, stages=3), fast))


@FAST
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("scales", [torch.float16, torch.bfloat16], ids=str)
def test_scales_of_every_kind(scales: torch.dtype, compact: bool, fast: bool) -> None:
    """A group without weights among others has a scale of 0; GGUF has scales below 0."""
    layer, x = _layer(72, 512, bias=False, group=32), _normal(3, 512, dtype=torch.float16)
    layer.scales = (layer.scales * torch.randn_like(layer.scales.float()).sign()).to(scales)
    layer.scales[0] = layer.scales[5:7] = layer.scales[-1] = 0
    ours = _product(layer, x, w4a16_tiles.Tiles(eights=2, parts=2, compact=compact), fast)
    _close(ours, _exact(layer, x).to(torch.float16))


@FAST
@pytest.mark.parametrize("compact", [False, True])
def test_a_scale_of_0_is_nothing_however_large_an_input_is(compact: bool, fast: bool) -> None:
    """Layouts exchange the numbers of such a group, for in compact form the kernel takes 2^-24 for the scale."""
    layer, x = _layer(72, 512, bias=False, group=32), torch.zeros(3, 512, device=DEVICE).half()
    layer.scales[1] = layer.scales[7] = 0
    x[:, 32:64], x[:, 7 * 32 : 8 * 32] = 30000, -60000
    tiles = w4a16_tiles.Tiles(eights=2, parts=2, compact=compact)
    assert bool(_product(layer, x, tiles, fast).any()) is compact, "control"
    numbers = unpack(layer.packed, 72)
    layer.packed = pack(without_nothing(numbers, layer.scales, layer.zeros))
    assert not _product(layer, x, tiles, fast).any()


@FAST
@pytest.mark.parametrize("scales", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("group", [32, 64])
def test_spans_of_several_groups(group: int, scales: torch.dtype, fast: bool) -> None:
    layer, x = _layer(72, 512, bias=True, group=group), _normal(3, 512, dtype=torch.float16)
    layer.scales = layer.scales.to(scales)
    _close(_product(layer, x, w4a16_tiles.Tiles(parts=2), fast), _exact(layer, x).to(torch.float16))
    ours = w4a16.dequantise(*_stored(layer), torch.float32)
    torch.testing.assert_close(ours, layer.dequantised(torch.float32), rtol=1e-6, atol=0)


@DTYPES
@pytest.mark.parametrize("inputs", [32, 64, 384])
def test_unpacking(dtype: torch.dtype, inputs: int) -> None:
    layer = _layer(40, inputs, bias=False).cpu()
    expected = layer.dequantised(dtype).to(DEVICE)
    layer.to(DEVICE)
    ours = w4a16.dequantise(*_stored(layer), dtype)
    torch.testing.assert_close(ours, expected, rtol=STEPS[dtype] / 2, atol=0)


def test_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are cut until one more part would not be at work at once with the others, and no further."""
    device = torch.device("cpu")  # 132 processors
    monkeypatch.setattr(w4a16_tiles, "shared_memory", lambda device: 101376)
    assert w4a16_tiles.choose_tiles(1, 55296, 40, device) == w4a16_tiles.Tiles()
    assert w4a16_tiles.choose_tiles(1, 5120, 216, device).parts == 13
    assert w4a16_tiles.choose_tiles(8, 7168, 40, device).parts == 8  # as long as if they were nine
    assert w4a16_tiles.choose_tiles(4, 4096, 32, device).parts == 11  # of three spans, not of two
    assert w4a16_tiles.choose_tiles(1, 64, 2, device).parts == 1
    assert w4a16_tiles.choose_tiles(16, 5120, 40, device) == w4a16_tiles.Tiles(eights=2, parts=8)
    long = w4a16_tiles.Tiles(eights=2, row_warps=2, ahead=1, parts=13)
    assert w4a16_tiles.choose_tiles(16, 5120, 216, device) == long
    assert w4a16_tiles.choose_tiles(16, 24576, 32, device) == w4a16_tiles.Tiles(eights=2, parts=2)
    assert w4a16_tiles.choose_tiles(16, 55296, 40, device) == w4a16_tiles.Tiles(eights=2, ahead=1)
    wide, medium = (w4a16_tiles.choose_tiles(32, outputs, 40, device) for outputs in (55296, 24576))
    assert (wide.outputs, wide.parts, medium.outputs, medium.parts) == (256, 1, 128, 2)
    assert w4a16_tiles.choose_tiles(17, 5120, 216, device).parts == 6
    assert w4a16_tiles.choose_tiles(64, 5120, 216, device).parts == 6
    assert w4a16_tiles.choose_tiles(256, 5120, 216, device).parts == 3


def test_tiles_with_a_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many programs as a processor has room for; where tiles have no two parts, equal shares."""
    device = torch.device("cpu")
    monkeypatch.setattr(w4a16_tiles, "shared_memory", lambda device: 232448)

    def parts_or_programs(tokens: int, inputs: int, outputs: int) -> int:
        tiles = w4a16_tiles.choose_tiles(tokens, outputs, inputs // 128, device)
        few, sixteen = (
            w4a16_tiles.Tiles(row_warps=2, stages=4),
            w4a16_tiles.Tiles(eights=2, stages=3),
        )
        if tiles.programs:
            few = w4a16_tiles.Tiles(stages=4)
        base = few if tokens <= 8 else sixteen
        assert tiles == replace(base, parts=tiles.parts, programs=tiles.programs)
        return tiles.programs or tiles.parts

    qwq = (5120, 7168), (5120, 5120), (5120, 55296), (27648, 5120)
    assert [parts_or_programs(8, *each) for each in qwq] == [8, 8, 3 * 132, 13]
    assert [parts_or_programs(9, *each) for each in qwq] == [8, 8, 4 * 132, 13]
    qwen3 = (4096, 6144), (4096, 4096), (4096, 24576), (12288, 4096)
    assert [parts_or_programs(8, *each) for each in qwen3] == [7, 7, 2, 16]
    assert [parts_or_programs(16, *each) for each in qwen3] == [7, 7, 2, 16]
    assert parts_or_programs(8, 256, 64) == 1
    assert parts_or_programs(8, 5120, 152064) == 3 * 132
    assert (
        w4a16_tiles.choose_tiles(8, 5120, 40, device, 128, 32).stages == 3
    )  # scales take their room
    assert w4a16_tiles.choose_tiles(17, 5120, 40, device).stages == 0


# -- experts ---------------------------------------------------------------------------------------

CLAMPED = experts.ExpertGate(clamped=(1.702, 1.5))
FEW_AND_MANY = pytest.mark.parametrize(
    "made", [experts.experts, experts_many.experts], ids=["few", "many"]
)


def _stack(
    gate: experts.ExpertGate, sizes: tuple[int, ...], dtype: torch.dtype, *, biased: bool
) -> tuple[experts.ExpertWeights, experts.ExpertWeights]:
    """Weights of so many experts, inputs, numbers inside and outputs; a clamped gate's lie transposed."""
    num, inputs, width, outputs = sizes
    shapes = (2 * width, inputs), (outputs, width)
    made = [(_normal(num, *each) / each[1] ** 0.5).to(dtype) for each in shapes]
    biases = [_normal(num, each[0], dtype=dtype) if biased else None for each in shapes]
    if gate.clamped:
        made = [weight.transpose(1, 2).contiguous() for weight in made]
    first, second = (experts.ExpertWeights(*each) for each in zip(made, biases, strict=True))
    return first, second


def _one_by_one(
    x: Tensor, index: Tensor, shares: Tensor, stack: Any, gate: experts.ExpertGate
) -> Tensor:
    """Each token through its experts in float64, as the modelling code writes it down."""
    wide = [[None if each is None else each.double() for each in weights] for weights in stack]
    (both, both_bias), (down, down_bias) = wide
    out = []
    for token, its, weights in zip(x.double(), index.tolist(), shares.double(), strict=True):
        total = torch.zeros((), dtype=torch.float64, device=x.device)
        for expert, share in zip(its, weights, strict=True):
            first, second = (w[expert].T if gate.clamped else w[expert] for w in (both, down))  # type: ignore[index]
            product = first @ token + (0 if both_bias is None else both_bias[expert])
            if gate.clamped:
                alpha, limit = gate.clamped
                turned, value = product[::2].clamp(max=limit), product[1::2].clamp(-limit, limit)
                inner = turned * torch.sigmoid(alpha * turned) * (1 + value)
            else:
                turned, value = product.chunk(2)
                inner = functional.silu(turned) * value
            total = total + share * (
                second @ inner + (0 if down_bias is None else down_bias[expert])
            )
        out.append(total)
    return torch.stack(out)


def _chosen(tokens: int, num_experts: int, chosen: int) -> tuple[Tensor, Tensor]:
    return experts.choose(2 * _normal(tokens, num_experts), chosen)


@pytest.mark.pairs
@TWO_BYTES
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("gate", [experts.ExpertGate(), CLAMPED], ids=["halves", "in turns"])
@pytest.mark.parametrize(
    ("tokens", "num_experts", "chosen", "inputs", "width", "outputs"),
    [
        *[(1, 8, 2, 192, 40, 72), (3, 16, 4, 72, 48, 130), (16, 4, 4, 128, 32, 64)],
        *[(17, 8, 3, 72, 40, 72), (70, 4, 2, 64, 48, 130)],
    ],
)
def test_experts(
    tokens: int,
    num_experts: int,
    chosen: int,
    inputs: int,
    width: int,
    outputs: int,
    gate: experts.ExpertGate,
    biased: bool,
    dtype: torch.dtype,
) -> None:
    """Fewer pairs than experts, more, and lists; sizes that fill no tile. Another token's experts are far from right."""
    stack = _stack(gate, (num_experts, inputs, width, outputs), dtype, biased=biased)
    x = _normal(tokens, inputs, dtype=dtype)
    shares, index = _chosen(tokens, num_experts, chosen)
    ours = experts.experts(x, index, shares, *stack, gate)
    expected = _one_by_one(x, index, shares, stack, gate)
    largest = expected.abs().max()
    assert float((ours - expected).abs().max() / largest) < STEPS[dtype]
    parts = experts.experts(x, index, shares, *stack, gate, in_parts=True)
    assert parts.shape == (chosen, tokens, outputs)
    _close(parts.sum(0).to(dtype), ours)
    others = experts.experts(x, (index + 1) % num_experts, shares, *stack, gate)
    assert float((others - expected).abs().max() / largest) > 10 * STEPS[dtype]


@TWO_BYTES
@pytest.mark.parametrize("num_experts", [4, 5, 40])
@pytest.mark.parametrize("tokens", [3, 40])
@FEW_AND_MANY
def test_a_token_that_has_an_expert_twice(
    made: Any, tokens: int, num_experts: int, dtype: torch.dtype
) -> None:
    """In all of its places, in some, or in none: then nothing changes."""
    stack = _stack(experts.ExpertGate(), (num_experts, 64, 32, 64), dtype, biased=False)
    x = _normal(tokens, 64, dtype=dtype)
    shares, index = _chosen(tokens, num_experts, 4)
    same, as_they_were = experts.distinct(index, shares, num_experts)
    assert torch.equal(same, index)
    assert torch.equal(as_they_were, shares)
    index[0] = index[0, 1]
    index[1, 2:] = index[1, :2].flip(0)
    others, weighed = experts.distinct(index, shares, num_experts)
    assert all(len({*row}) == 4 for row in others.tolist())
    assert 0 <= int(others.min()) <= int(others.max()) < num_experts
    assert torch.equal(others[2:], index[2:])
    assert torch.equal(weighed[2:], shares[2:])
    assert not weighed[0, 1:].any()
    expected = _one_by_one(x, index, shares, stack, experts.ExpertGate())
    largest = expected.abs().max()
    ours = made(x, others, weighed, *stack, experts.ExpertGate())
    # The rounding of one expert stays whole, where that of four evens out.
    assert float((ours - expected).abs().max() / largest) < 2 * STEPS[dtype]
    assert experts.distinct(index[:0], shares[:0], num_experts)[0].shape == (0, 4)


@HOLDS_ANYTHING
@pytest.mark.pairs
@TWO_BYTES
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("gate", [experts.ExpertGate(), CLAMPED], ids=["halves", "in turns"])
@pytest.mark.parametrize("tiles", experts_many.TILES, ids=["wide", "narrow"])
@pytest.mark.parametrize(
    ("tokens", "num_experts", "chosen", "inputs", "width", "outputs"),
    [(1, 8, 2, 192, 40, 72), (150, 4, 3, 64, 48, 130), (70, 5, 2, 72, 64, 300)],
)
def test_experts_of_prompts(
    tokens: int,
    num_experts: int,
    chosen: int,
    inputs: int,
    width: int,
    outputs: int,
    tiles: tuple[experts_many.Tiles, experts_many.Tiles],
    gate: experts.ExpertGate,
    biased: bool,
    dtype: torch.dtype,
) -> None:
    """Experts of one tile, of several, and of none; sizes that fill no tile. Another token's experts are far from right."""
    stack = _stack(gate, (num_experts, inputs, width, outputs), dtype, biased=biased)
    x = _normal(tokens, inputs, dtype=dtype)
    shares, index = _chosen(tokens, num_experts - 1, chosen)
    ours = experts_many.experts(x, index, shares, *stack, gate, tiles)
    expected = _one_by_one(x, index, shares, stack, gate)
    largest = expected.abs().max()
    assert float((ours - expected).abs().max() / largest) < STEPS[dtype]
    parts = experts_many.experts(x, index, shares, *stack, gate, tiles, in_parts=True, beside=1)
    assert parts.shape == (chosen + 1, tokens, outputs)
    assert parts.dtype == torch.float32
    _close(parts[:-1].sum(0).to(dtype), ours)
    others = experts_many.experts(x, (index + 1) % num_experts, shares, *stack, gate, tiles)
    assert float((others - expected).abs().max() / largest) > 10 * STEPS[dtype]


@HOLDS_ANYTHING
@pytest.mark.parametrize("tokens", [5, 40])
@FEW_AND_MANY
def test_what_a_token_gets_does_not_depend_on_the_others(tokens: int, made: Any) -> None:
    stack = _stack(experts.ExpertGate(), (8, 64, 32, 64), torch.bfloat16, biased=False)
    x = _normal(tokens, 64, dtype=torch.bfloat16)
    shares, index = _chosen(tokens, 8, 2)
    whole = made(x, index, shares, *stack, experts.ExpertGate())
    order = torch.randperm(tokens).to(DEVICE)
    turned = made(x[order], index[order], shares[order], *stack, experts.ExpertGate())
    assert torch.equal(turned, whole[order])
    assert made(x[:0], index[:0], shares[:0], *stack, experts.ExpertGate()).shape == (0, 64)


class _Noted:
    """A kernel that is launched as ever; `launched` is told how often, and `change` what it is given first."""

    def __init__(self, kernel: Any, launched: list[str], change: Callable[[Any], None]) -> None:
        self.kernel, self.launched, self.change = kernel, launched, change

    def __getitem__(self, grid: Any) -> Any:
        def launch(inner: Any, *others: Any, **how: Any) -> None:
            self.launched.append(self.kernel.__name__)
            self.change(inner)
            self.kernel[grid](inner, *others, **how)

        return launch


def _note_downs(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None] = lambda inner: None
) -> list[str]:
    """The names of second products, as they are launched; `change` is given what those by maps multiply."""
    launched: list[str] = []
    own_changes = {"_many_down": lambda inner: None, "_mapped_down": change}
    for name, its in own_changes.items():
        kernel = getattr(experts_many, name)
        monkeypatch.setattr(experts_many, name, _Noted(kernel, launched, its))
    return launched


def _with_rows(counts: list[int], *, first: int) -> Tensor:
    """Two experts for each token, different ones, so that experts from `first` on have so many tokens: sorted, none more than half."""
    pairs = [first + expert for expert, count in enumerate(counts) for _ in range(count)]
    index = torch.tensor(pairs).view(2, -1).T.contiguous().to(DEVICE)
    assert bool((index[:, 0] != index[:, 1]).all())
    return index


def _without_numbers(made: Callable[[], Tensor]) -> Tensor:
    """Its result, where memory that nothing has written holds no number."""
    torch.use_deterministic_algorithms(True)
    try:
        return made()
    finally:
        torch.use_deterministic_algorithms(False)


@HOLDS_ANYTHING
@pytest.mark.pairs
@TWO_BYTES
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("gate", "width", "outputs", "expected"),
    [
        (experts.ExpertGate(), 128, 256, "_mapped_down"),
        (experts.ExpertGate(), 72, 264, "_mapped_down"),
        (experts.ExpertGate(), 68, 258, "_many_down"),
        (CLAMPED, 64, 264, "_mapped_down"),
        (CLAMPED, 64, 258, "_many_down"),
        (CLAMPED, 72, 264, "_many_down"),
    ],
)
@pytest.mark.parametrize("by_maps", [True, False], ids=["by tile", "by pair"])
def test_tiles_of_experts_with_more_and_fewer_tokens(
    gate: experts.ExpertGate,
    width: int,
    outputs: int,
    expected: str,
    biased: bool,
    by_maps: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiles that are full, nearly, half or hardly, around an expert that has none; rows of no token are no numbers.

    With its rows one place further a product by maps is far from right, and so it is with a row's expert exchanged.
    """
    counts = [129, 128, 127, 0, 65, 64, 1]
    index = _with_rows(counts, first=1)
    tokens, num_experts = len(index), len(counts) + 2
    stack = _stack(gate, (num_experts, 64, width, outputs), dtype, biased=biased)
    x, shares = _normal(tokens, 64, dtype=dtype), torch.rand(tokens, 2).to(DEVICE, dtype)
    first, second = experts_many.TILES[0]
    tiles = first, replace(second, by_maps=by_maps)
    if not (by_maps and kernels.have_warpgroups(index.device)):
        expected = "_many_down"
    truth = _one_by_one(x, index, shares, stack, gate)
    largest = truth.abs().max()

    def worst() -> float:
        ours = _without_numbers(lambda: experts_many.experts(x, index, shares, *stack, gate, tiles))
        return float(((ours - truth).abs().max() / largest).nan_to_num(nan=torch.inf))

    with monkeypatch.context() as patch:
        launched = _note_downs(patch)
        assert worst() < STEPS[dtype]
        assert launched == [expected]
    if expected != "_mapped_down":
        return
    held = []

    def roll(inner: Any) -> None:
        held.append(inner.base.isnan().any(1).sum())
        inner.base.copy_(inner.base.roll(1, 0))

    with monkeypatch.context() as patch:
        _note_downs(patch, roll)
        assert worst() > 10 * STEPS[dtype]
    # All rows but those of pairs, which are written in all their columns.
    rows = 128 * (2 * tokens // 128 + num_experts)
    assert [int(each) for each in held] == [rows - 2 * tokens]


@pytest.mark.parametrize("turned", [False, True])
def test_second_weights_that_tensor_maps_bring(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any change by which a map would bring something else, or the driver would refuse it, is seen."""
    device = torch.device("cpu")

    def weight(num: int, width: int, outputs: int, **other: Any) -> Tensor:
        size = (num, width, outputs) if turned else (num, outputs, width)
        return torch.empty(size, **{"dtype": torch.bfloat16, "device": device, **other})

    def mapped(weight: Tensor) -> bool:
        return experts_many._are_mapped(weight, 64, turned=turned)

    assert mapped(weight(2, 128, 136))
    assert mapped(weight(2, 128, 136, dtype=torch.float16))
    assert mapped(weight(2, 72, 128)) == (not turned)
    assert not mapped(weight(2, 124, 128))
    # A weight by outputs may have any number of them: its rows are of inputs.
    assert mapped(weight(2, 128, 132)) == (not turned)
    assert not mapped(weight(2, 128, 128, dtype=torch.float32))
    assert not mapped(weight(2, 128, 256)[..., ::2])
    assert not mapped(weight(2, 128, 128).transpose(1, 2))
    unaligned = weight(3, 128, 128).view(-1)[1 : 2 * 128 * 128 + 1].view(2, 128, 128)
    assert unaligned.is_contiguous()
    assert not mapped(unaligned)
    # 2^31 rows, of no memory.
    for num, is_few in ((2**21, False), (2**21 - 1, True)):
        assert mapped(weight(num, 1024, 1024, device="meta")) == is_few
    monkeypatch.setattr(kernels, "have_warpgroups", lambda device: False)
    assert not mapped(weight(2, 128, 136))


@HOLDS_ANYTHING
def test_a_second_weight_that_is_not_aligned_is_multiplied_by_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, dtype = experts.ExpertGate(), torch.bfloat16
    first, second = _stack(gate, (4, 64, 64, 72), dtype, biased=False)
    room = torch.empty(second.weight.numel() + 1, dtype=dtype, device=DEVICE)
    unaligned = room[1:].view(second.weight.shape).copy_(second.weight)
    x = _normal(150, 64, dtype=dtype)
    shares, index = _chosen(150, 4, 2)
    launched = _note_downs(monkeypatch)
    wide, _ = experts_many.TILES
    made = [
        experts_many.experts(x, index, shares, first, second._replace(weight=each), gate, wide)
        for each in (second.weight, unaligned)
    ]
    mapped = "_mapped_down" if kernels.have_warpgroups(x.device) else "_many_down"
    assert launched == [mapped, "_many_down"]
    _close(made[0], made[1])


def test_experts_of_many_tokens_have_kernels_that_use_each_weight_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cpu")
    assert [experts_many.is_faster(n, 8, 128, device) for n in (383, 384)] == [False, True]
    assert [experts_many.is_faster(n, 1, 256, device) for n in (1024, 1025)] == [False, True]
    wide, narrow = experts_many.TILES
    assert [experts_many.choose_tiles(n, 8, 128) for n in (1023, 1024)] == [narrow, wide]
    monkeypatch.setattr(kernels, "have_warpgroups", lambda device: False)
    assert not experts_many.is_faster(8192, 8, 128, device)


@pytest.mark.parametrize("skewed", [False, True])
def test_lists_of_more_pairs_than_a_program_sees_at_once(skewed: bool) -> None:
    tokens, num_experts = 2 * experts.MOST_TOKENS + 7, 9
    shares = torch.rand(tokens, num_experts)
    if skewed:
        shares[:, 4] = 2
    index = shares.topk(5).indices.to(DEVICE)
    pairs, counts = experts.list_pairs(index, num_experts)
    for expert in range(num_experts):
        its = (index.flatten() == expert).nonzero()[:, 0]
        assert int(counts[expert]) == len(its)
        assert torch.equal(pairs[expert, : len(its)].long(), its)


@pytest.mark.parametrize("columns", [16, 32])
def test_more_tokens_than_columns_of_one_expert(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens choose the same two experts, so each has several tiles of columns, the last of which is not full."""
    monkeypatch.setattr(experts, "_num_columns", lambda *sizes: columns)
    stack = _stack(experts.ExpertGate(), (8, 64, 32, 64), torch.float16, biased=False)
    x = _normal(37, 64, dtype=torch.float16)
    index = torch.tensor([[6, 2]], device=DEVICE).repeat(37, 1)
    shares = torch.rand(37, 2).to(DEVICE, torch.float16)
    ours = experts.experts(x, index, shares, *stack, experts.ExpertGate())
    expected = _one_by_one(x, index, shares, stack, experts.ExpertGate())
    largest = expected.abs().max()
    assert float((ours - expected).abs().max() / largest) < STEPS[torch.float16]


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize(("num_experts", "chosen"), [(4, 1), (60, 4), (128, 8)])
def test_choice_of_experts(num_experts: int, chosen: int, even: bool) -> None:
    logits = 3 * _normal(9, num_experts)
    shares, index = experts.choose(logits, chosen, even=even)
    expected, which = logits.softmax(-1).topk(chosen)
    if even:
        expected = expected / expected.sum(-1, keepdim=True)
    assert torch.equal(index, which)
    torch.testing.assert_close(shares, expected, rtol=1e-5, atol=1e-7)
    half = experts.choose(logits.bfloat16(), chosen, even=even, dtype=torch.float32)[0]
    assert half.dtype == torch.float32


def test_experts_that_a_token_has_twice_are_in_no_other_list() -> None:
    index = torch.tensor([[3, 3], [0, 1]], device=DEVICE).repeat(20, 1)
    pairs, counts = experts.list_pairs(index, 5)
    assert counts.tolist() == [20, 20, 0, 40, 0]
    assert pairs[0, :20].tolist() == [2 * (2 * each + 1) for each in range(20)]
    crowded = torch.full((40, 2), 2, device=DEVICE)
    crowded[:5, 0] = 3
    pairs, counts = experts.list_pairs(crowded, 5)
    assert counts.tolist() == [0, 0, 40, 5, 0]
    assert pairs[3, :5].tolist() == [0, 2, 4, 6, 8]


@FEW_AND_MANY
def test_a_token_without_sound_numbers_is_alone_with_them(made: Any) -> None:
    """It gets experts that are there, since a weight elsewhere would end the process, and the others get what they get."""
    logits = _normal(3, 12)
    expected = experts.choose(logits, 3)
    logits[1, 4] = float("nan")
    assert experts.choose(logits, 3, even=False)[0][1].isnan().all()
    shares, index = experts.choose(logits, 3)
    assert shares[1].isnan().all()
    assert 0 <= int(index.min()) <= int(index.max()) < 12
    assert len(set(index[1].tolist())) == 3
    for ours, theirs in ((shares, expected[0]), (index, expected[1])):
        assert torch.equal(ours[::2], theirs[::2])
    stack = _stack(experts.ExpertGate(), (12, 64, 32, 64), torch.float16, biased=False)
    x = _normal(3, 64, dtype=torch.float16)
    right_shares, right_index = expected
    sound = made(x, right_index, right_shares, *stack, experts.ExpertGate())
    x[1] = float("nan")
    out = made(x, index, shares, *stack, experts.ExpertGate())
    assert torch.equal(out[::2], sound[::2])
    assert not out[1].isfinite().any()


@FEW_AND_MANY
def test_a_bound_of_a_gate_leaves_a_number_that_is_none(made: Any) -> None:
    """A token without sound numbers has no sound result, as it has none with the modelling code."""
    stack = _stack(CLAMPED, (4, 64, 32, 64), torch.bfloat16, biased=False)
    x = _normal(3, 64, dtype=torch.bfloat16)
    x[1] = float("nan")
    shares, index = _chosen(3, 4, 2)
    out = made(x, index, shares, *stack, CLAMPED)
    assert not out[1].isfinite().any()
    assert out[::2].isfinite().all()


def test_experts_that_are_equally_likely_are_different_ones() -> None:
    """Logits of 16 bits are often the same; the first of them is taken, and never twice."""
    logits = torch.zeros(2, 12, device=DEVICE, dtype=torch.bfloat16)
    logits[1, 5] = -float("inf")
    index = experts.choose(logits, 4)[1]
    assert index.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    few = torch.full((1, 4), -float("inf"), device=DEVICE)
    few[0, 2] = 0.0
    assert sorted(experts.choose(few, 4)[1][0].tolist()) == [0, 1, 2, 3]
