"""Experts that keep the bits in which they are published: how they are packed, multiplied and loaded.

The oracle is transformers' own function that unpacks them, and the modelling code with what that gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from manyhands.errors import ModelNotFound, UnsupportedModel
from manyhands.model import kernels, loading
from manyhands.model.adapter import weight_bytes
from manyhands.model.dummy import dummy_model
from manyhands.model.experts import fuse_experts, let_sums_add_experts, load_for_prompts
from manyhands.model.fusion import fuse_modules
from manyhands.model.loading import load_adapter
from manyhands.model.quantised import mxfp4
from manyhands.model.quantised.mxfp4 import PARTS, PRODUCTS, Mxfp4Stack, is_mxfp4, keeps_mxfp4
from manyhands.model.self_test import exact_attention
from tests.covers import spared
from tests.hub_cache import keep, use_alone
from tests.model.mxfp4_files import published, write
from tests.model.parallel.threads import Meeting, ThreadCollectives

pytest.importorskip("triton", reason="Triton exists for Linux alone")
from manyhands.attention.launches import has_gluon
from manyhands.model.kernels import copies
from manyhands.model.kernels import experts as ordinary
from manyhands.model.kernels import mxfp4 as own
from manyhands.model.kernels import mxfp4_many as many

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
CPU = torch.device("cpu")
STEP = 2e-2  # the interpreter cuts bfloat16 off where a GPU rounds
SIZES = (
    5,
    96,
    64,
)  # experts, inputs and outputs, width: blocks of 64 outputs that are not full, spans that are not
ALPHA, LIMIT = 1.702, 7.0


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def _stack_of(experts: int, hidden: int, width: int) -> Any:
    return SimpleNamespace(
        num_experts=experts,
        hidden_size=hidden,
        intermediate_size=width,
        alpha=ALPHA,
        limit=LIMIT,
    )


def _made(*sizes: int) -> tuple[Mxfp4Stack, dict[str, Tensor]]:
    found = published(*sizes)
    return Mxfp4Stack.published(_stack_of(*sizes), found, torch.bfloat16), found


def _weights(stack: Mxfp4Stack) -> list[own.PackedWeights]:
    parts = ("words", "factors", "bias")
    return [
        own.PackedWeights(*(getattr(stack, f"{name}_{part}") for part in parts))
        for name in PRODUCTS
    ]


# -- bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [SIZES, (2, 64, 128), (1, 32, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_numbers_are_those_of_the_checkpoint(
    sizes: tuple[int, int, int], dtype: torch.dtype
) -> None:
    stack, found = _made(*sizes)
    for name in PRODUCTS:
        expected = convert_moe_packed_tensors(
            found[f"{name}_blocks"], found[f"{name}_scales"], dtype=dtype
        )
        for expert in range(sizes[0]):
            assert torch.equal(stack.dequantised(name, expert, dtype), expected[expert].T)


def test_all_bits_and_all_scales_that_can_be_kept() -> None:
    """Each of 256 bytes with each scale from the least to the largest."""
    scales = torch.arange(129).repeat_interleave(16)[None, :, None].to(torch.uint8)
    blocks = torch.arange(256).view(16, 16).repeat(129, 1)[None, :, None].to(torch.uint8)
    words = mxfp4.words_of(blocks[0])[None]
    factors = mxfp4.factors_of(scales)
    found = Mxfp4Stack.empty(_stack_of(1, 64, 32), CPU, torch.bfloat16)
    found.gate_up_proj_words, found.gate_up_proj_factors = words, factors
    found.gate_up_proj_bias = torch.nn.Parameter(torch.zeros(1, 129 * 16))
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)[0].T
    assert torch.equal(found.dequantised("gate_up_proj", 0, torch.float32), expected)


def test_a_scale_that_is_too_large_is_named() -> None:
    found = published(*SIZES)
    found["down_proj_scales"][3, 2, 1] = 255
    with pytest.raises(UnsupportedModel, match="that is no number") as caught:
        Mxfp4Stack.published(_stack_of(*SIZES), found, torch.bfloat16)
    assert "none" not in str(caught.value.hint)  # unpacked, these would be infinite
    found["down_proj_scales"][3, 2, 1] = 129
    with pytest.raises(UnsupportedModel, match=r"2 \*\* 2, and at most 2 \*\* 1") as caught:
        Mxfp4Stack.published(_stack_of(*SIZES), found, torch.bfloat16)
    assert 'quantise="none"' in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gate_up_proj_blocks", lambda x: x[:, :-1], r"gate_up_proj_blocks \[5, 127, 3, 16\]"),
        ("down_proj_scales", lambda x: x[..., :-1], r"down_proj_scales .*expected \[5, 96, 2\]"),
        ("down_proj_bias", lambda x: x[0], r"down_proj_bias \[96\]"),
        ("down_proj_blocks", lambda x: x.int(), "of torch.int32, not bytes"),
        ("down_proj_bias", lambda x: x.to(torch.uint8), "of torch.uint8, not ordinary numbers"),
        ("down_proj_bias", lambda x: x.to(torch.float8_e4m3fn), "float8_e4m3fn, not ordinary"),
    ],
)
def test_odd_tensors_are_named(name: str, change: Any, message: str) -> None:
    found = published(*SIZES)
    found[name] = change(found[name])
    with pytest.raises(UnsupportedModel, match=message):
        Mxfp4Stack.published(_stack_of(*SIZES), found, torch.bfloat16)


def test_made_up_weights_have_about_the_spread_that_was_asked_for() -> None:
    stack = Mxfp4Stack.empty(_stack_of(*SIZES), CPU, torch.bfloat16)
    stack.fill(0.02)
    for name in PRODUCTS:
        weight = stack.dequantised(name, 1, torch.float32)
        assert float(weight.std()) == pytest.approx(0.02, rel=0.4)
        assert abs(float(weight.mean())) < 0.002


# -- products --------------------------------------------------------------------------------------

TILES = [
    *(own.Tiles(), own.Tiles(row_warps=2, input_warps=2, span=3), own.Tiles(pairs=2, span=1)),
    own.Tiles(row_warps=4, input_warps=1),
]
RINGS = [  # without a GPU they are tiles without a ring, and the first is one of the others
    own.Tiles(row_warps=2, input_warps=2, span=3, stages=4),
    *(own.Tiles(row_warps=4, input_warps=1, span=4, stages=5), own.Tiles(span=1, stages=9)),
    own.Tiles(input_warps=1, span=2, stages=3),
]


def _run(stack: Mxfp4Stack, x: Tensor, index: Tensor, shares: Tensor, **options: Any) -> Tensor:
    gate = ordinary.ExpertGate(clamped=(ALPHA, LIMIT))
    first, second = _weights(stack)
    return own.experts(x, index, shares, first, second, gate, fast=GPU, **options)


def _asked(tokens: int, chosen: int) -> tuple[Tensor, Tensor, Tensor]:
    experts, hidden, _ = SIZES
    x = torch.randn(tokens, hidden).to(DEVICE, torch.bfloat16)
    index = torch.rand(tokens, experts).topk(chosen).indices.to(DEVICE)
    return x, index, torch.rand(tokens, chosen).to(DEVICE, torch.bfloat16)


def _far(ours: Tensor, expected: Tensor) -> float:
    return float((ours.float() - expected.float()).abs().max() / expected.float().abs().max())


@pytest.mark.parametrize("tokens", [1, 8, 9, 70, *spared(2, 5, 20)])
def test_experts_of_few_and_of_many_tokens(tokens: int) -> None:
    """Fewer pairs than experts, more, and lists with one, two and four eights of columns."""
    stack = _made(*SIZES)[0].to(DEVICE)
    x, index, shares = _asked(tokens, 2)
    expected = stack.one_by_one(x.float(), index, shares.float())
    ours = _run(stack, x, index, shares)
    assert _far(ours, expected) < STEP
    parts = _run(stack, x, index, shares, in_parts=True)
    assert parts.shape == (2, tokens, SIZES[1])
    assert _far(parts.sum(0), expected) < STEP
    assert _far(_run(stack, x, (index + 1) % SIZES[0], shares), expected) > 10 * STEP


@pytest.mark.values
@pytest.mark.parametrize("tiles", [*TILES, *(RINGS if GPU else RINGS[1:])], ids=str)
@pytest.mark.parametrize(("tokens", "eights"), [(3, 1), (12, 2), (12, 1), (30, 4)])
def test_every_tile_gives_the_same(tiles: own.Tiles, tokens: int, eights: int) -> None:
    stack = _made(*SIZES)[0].to(DEVICE)
    x, index, shares = _asked(tokens, 3)
    expected = stack.one_by_one(x.float(), index, shares.float())
    assert _far(_run(stack, x, index, shares, tiles=(tiles, tiles), eights=eights), expected) < STEP


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize(("tokens", "eights"), [(1, 1), (12, 1), (30, 2)])
def test_a_ring_changes_no_bit(ring: own.Tiles, tokens: int, eights: int) -> None:
    # 65 and 33 steps: the last round has some for one warp and none for another.
    stack = _made(8, 2080, 1056)[0].to(DEVICE)
    x = torch.randn(tokens, 2080).to(DEVICE, torch.bfloat16)
    _, index, shares = _asked(tokens, 3)
    plain = replace(ring, stages=0)
    expected = _run(stack, x, index, shares, tiles=(plain, plain), eights=eights)
    for _ in range(3):
        ours = _run(stack, x, index, shares, tiles=(ring, ring), eights=eights)
        assert torch.equal(ours, expected)


def test_rings_are_where_they_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for room, is_ringed in ((232448, True), (101376, False)):
        monkeypatch.setattr(own, "shared_memory", lambda device, room=room: room)
        for tokens in range(1, ordinary.MOST_TOKENS + 1):
            for eights in (1, 2, 4):
                both = own.choose_tiles(tokens, eights, CPU)
                assert any(each.stages for each in both) == (is_ringed and eights <= 2)
                assert all(each.ring_bytes <= copies.MOST_KIB << 10 for each in both)
                assert all(each.stages == 0 or 3 <= each.stages <= 9 for each in both)


@pytest.mark.parametrize("tokens", [6, 40])
def test_a_token_gets_what_it_gets_whatever_is_beside_it(tokens: int) -> None:
    stack = _made(*SIZES)[0].to(DEVICE)
    x, index, shares = _asked(tokens, 2)
    whole = _run(stack, x, index, shares)
    order = torch.randperm(tokens).to(DEVICE)
    assert torch.equal(_run(stack, x[order], index[order], shares[order]), whole[order])
    x[1] = float("nan")
    alone = _run(stack, x, index, shares)
    assert not alone[1].isfinite().any()
    others = torch.arange(tokens, device=DEVICE) != 1
    assert torch.equal(alone[others], whole[others])


WIDE = [*many.TILES, many.Tiles(columns=128, warps=8, stages=5), many.Tiles(16, 4, 3)]
# Nine blocks of 64 outputs behind ten: the last tile is half there. Nine and five spans of inputs.
MANY = 6, 576, 320
is_hopper = pytest.mark.skipif(
    not (GPU and has_gluon(DEVICE)), reason="needs a GPU with Hopper's instructions"
)


def _wide(
    stack: Mxfp4Stack,
    x: Tensor,
    index: Tensor,
    shares: Tensor,
    tiles: many.Tiles,
    *,
    in_parts: bool = False,
) -> Tensor:
    gate = ordinary.ExpertGate(clamped=(ALPHA, LIMIT))
    both, down = _weights(stack)
    return many.experts(x, index, shares, both, down, gate, tiles, in_parts=in_parts)


def _many(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first expert has every token and the last one none."""
    x = torch.randn(tokens, MANY[1]).to(DEVICE, torch.bfloat16)
    liked = torch.rand(tokens, MANY[0]) + torch.tensor([2.0, 0, 0, 0, 0, -2.0])
    index = liked.topk(3).indices.to(DEVICE)
    return x, index, torch.rand(tokens, 3).to(DEVICE, torch.bfloat16)


@is_hopper
@pytest.mark.parametrize("tiles", WIDE, ids=str)
@pytest.mark.parametrize("tokens", [9, 64, 300, 700])
def test_wide_tiles_give_the_same(tiles: many.Tiles, tokens: int) -> None:
    stack = _made(*MANY)[0].to(DEVICE)
    x, index, shares = _many(tokens)
    expected = stack.one_by_one(x.float(), index, shares.float())
    parts = _wide(stack, x, index, shares, tiles, in_parts=True)
    assert _far(parts.sum(0), expected) < STEP
    narrow = _run(stack, x, index, shares, tiles=(own.Tiles(), own.Tiles()), in_parts=True)
    assert _far(parts, narrow) < STEP  # each expert's share, not their sum alone
    for _ in range(3):
        assert torch.equal(_wide(stack, x, index, shares, tiles, in_parts=True), parts)
    assert _far(_wide(stack, x, index.flip(1), shares, tiles), expected) > 10 * STEP


@is_hopper
@pytest.mark.parametrize("tiles", [*many.PROMPT_TILES, many.Tiles(columns=32, warps=8)], ids=str)
@pytest.mark.parametrize("tokens", [512, 513, 1025, 3000])
def test_tiles_laid_out_give_what_parts_of_all_tokens_give(
    tiles: many.Tiles, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit; what is rounded on its way to the sum is as far from it as a rounding."""
    stack = _made(*MANY)[0].to(DEVICE)
    x, index, shares = _many(tokens)
    laid_out = _wide(stack, x, index, shares, tiles, in_parts=True)
    rounded = _wide(stack, x, index, shares, tiles)
    for _ in range(3):
        assert torch.equal(_wide(stack, x, index, shares, tiles, in_parts=True), laid_out)
    monkeypatch.setattr(many, "_LEAST_BY_TILE", many.MOST_LISTED + 1)
    monkeypatch.setattr(many, "MOST_TOKENS", many.MOST_LISTED)
    parts = _wide(stack, x, index, shares, tiles, in_parts=True)
    assert torch.equal(laid_out, parts)
    assert _far(rounded, parts.sum(0)) < STEP
    exact = stack.one_by_one(x[:64].float(), index[:64], shares[:64].float())
    assert _far(parts.sum(0)[:64], exact) < STEP


@is_hopper
@pytest.mark.parametrize("tiles", WIDE, ids=str)
@pytest.mark.parametrize("tokens", [70, 1100])
def test_a_token_in_wide_tiles_gets_what_it_gets_whatever_is_beside_it(
    tiles: many.Tiles, tokens: int
) -> None:
    stack = _made(*MANY)[0].to(DEVICE)
    x, index, shares = _many(tokens)
    whole = _wide(stack, x, index, shares, tiles)
    order = torch.randperm(tokens).to(DEVICE)
    assert torch.equal(_wide(stack, x[order], index[order], shares[order], tiles), whole[order])
    x[1] = float("nan")
    alone = _wide(stack, x, index, shares, tiles)
    assert not alone[1].isfinite().any()
    others = torch.arange(tokens, device=DEVICE) != 1
    assert torch.equal(alone[others], whole[others])


def test_wide_tiles_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a device has them and widths are right, from twelve tokens of an expert on."""
    seen: list[tuple[str, int]] = []

    def kernel(name: str, x: Tensor, *others: Any, in_parts: bool) -> Tensor:
        seen.append((name, len(x)))
        return x

    for name, room in (("few", own), ("many", many)):
        monkeypatch.setattr(room, "experts", partial(kernel, name))
    monkeypatch.setattr(kernels, "num_processors", lambda device: 132)
    for is_there, sizes, last in (
        *((True, MANY, "many"), (False, MANY, "few")),
        *((True, (6, 96, 320), "few"), (True, (6, 192, 96), "few")),
    ):
        monkeypatch.setattr(mxfp4, "has_gluon", lambda device, is_there=is_there: is_there)
        stack = _made(*sizes)[0].to(DEVICE)
        for tokens in (9, 23, 24):
            x, index, shares = _many(tokens)
            stack.product(x[:, : sizes[1]], index, shares)
        assert seen == [("few", 9), ("few", 23), (last, 24)]
        seen.clear()


def test_which_wide_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the tokens of an expert; gpt-oss-120b has four times as many programs as gpt-oss-20b. None for other widths."""
    monkeypatch.setattr(kernels, "num_processors", lambda device: 132)
    gpt_20, gpt_120 = 32, 128  # their experts
    sizes = 2880, 2880
    widest, wide, narrow, of_many = many.TILES
    for tokens, experts, expected in (
        *((64, gpt_20, None), (95, gpt_20, None), (96, gpt_20, narrow), (255, gpt_20, narrow)),
        *((256, gpt_20, wide), (1024, gpt_20, wide), (255, gpt_120, None)),
        *((256, gpt_120, of_many), (768, gpt_120, of_many), (1024, gpt_120, wide)),
        *((2048, gpt_20, wide), (4096, gpt_20, widest), (8192, gpt_20, widest)),
        *((4096, gpt_120, wide), (8192, gpt_120, widest)),
    ):
        assert many.choose_tiles(tokens, 4, experts, sizes, CPU) == expected
    for odd in ((2880, 2912), (2912, 2880)):
        assert many.choose_tiles(1024, 4, gpt_20, odd, CPU) is None
    # Eight tokens have no list.
    assert many.choose_tiles(8, 2, 1, sizes, CPU) is None
    assert many.choose_tiles(9, 2, 1, sizes, CPU) is not None
    assert all(each.ring_bytes <= copies.MOST_KIB << 10 for each in WIDE)


def test_the_order_of_inputs_that_tensor_cores_read() -> None:
    """As `fragments.py` says: a thread t has inputs 8 t + 4 j + 2 c + e, and tensor cores take them for 16 j + 8 c + 2 t + e."""
    x = torch.arange(3 * 96, dtype=torch.float32).view(3, 96).bfloat16()
    ordered = many.in_order(x)
    for block in range(3):
        for place in range(32):
            j, c, t, e = place // 16, place // 8 % 2, place // 2 % 4, place % 2
            asked = x[:, 32 * block + 8 * t + 4 * j + 2 * c + e]
            assert torch.equal(ordered[:, 32 * block + place], asked)


def test_inputs_that_lie_apart() -> None:
    stack = _made(*SIZES)[0].to(DEVICE)
    x, index, shares = _asked(6, 2)
    expected = _run(stack, x, index, shares)
    apart = torch.cat((x, x + 1), dim=1)[:, : SIZES[1]]
    turned = [each.t().contiguous().t() for each in (index, shares)]
    assert not any(each.is_contiguous() for each in (apart, *turned))
    assert torch.equal(_run(stack, apart, *turned), expected)


def test_published_tensors_that_are_views_of_more() -> None:
    """As the parts that ranks read of a file are."""
    found = published(*SIZES)
    x, index, shares = _asked(6, 2)
    stack = _stack_of(*SIZES)
    expected = _run(Mxfp4Stack.published(stack, found, torch.bfloat16).to(DEVICE), x, index, shares)
    views = {
        name: torch.cat((each, each + 1), dim=1)[:, : each.shape[1]] for name, each in found.items()
    }
    assert not any(each.is_contiguous() for each in views.values())
    ours = Mxfp4Stack.published(stack, views, torch.bfloat16)
    assert all(each.is_contiguous() for each in ours.state_dict().values())
    assert torch.equal(_run(ours.to(DEVICE), x, index, shares), expected)


def test_inputs_that_the_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient goes back through experts that are unpacked, lest it be lost without a word."""
    stack = _made(*SIZES)[0].to(DEVICE)
    x, index, shares = _asked(3, 2)
    if not GPU:
        monkeypatch.setattr(kernels, "usable", lambda x: not kernels.has_gradient(x))
    assert stack.is_for(x)
    assert not stack.is_for(x.half())
    assert not stack.is_for(x.float())
    assert not stack.is_for(x[None])
    learned = x.clone().requires_grad_()
    with torch.no_grad():
        assert stack.is_for(learned)
    assert not stack.is_for(learned)
    stack(learned, index, shares).float().sum().backward()
    exact = x.float().requires_grad_()
    stack.one_by_one(exact, index, shares.float()).sum().backward()
    assert learned.grad is not None
    assert exact.grad is not None
    assert _far(learned.grad, exact.grad) < STEP


def test_the_layer_takes_any_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the kernel takes at once are cut; elsewhere than on a GPU experts are unpacked one by one."""
    stack = _made(*SIZES)[0].to(DEVICE)
    x, index, shares = _asked(50, 2)
    expected = stack.one_by_one(x.float(), index, shares.float())
    assert _far(stack.one_by_one(x, index, shares), expected) < STEP
    seen: list[int] = []

    def product(*parts: Tensor) -> Tensor:
        seen.append(len(parts[0]))
        return _run(stack, *parts)

    monkeypatch.setattr(ordinary, "MOST_TOKENS", 20)
    monkeypatch.setattr(stack, "is_for", lambda x: True)
    monkeypatch.setattr(stack, "product", product)
    assert _far(stack(x, index, shares), expected) < STEP
    assert seen == [20, 20, 10]
    monkeypatch.setattr(stack, "_tiles", lambda x, index: many.TILES[0])
    for most, sizes in ((50, [50]), (30, [30, 20])):
        seen.clear()
        monkeypatch.setattr(many, "MOST_LISTED", most)
        assert _far(stack(x, index, shares), expected) < STEP
        assert seen == sizes


def test_kernels_of_prompts_are_launched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of prompts too long for recordings are, with the dtype of this router's shares; none where other kernels serve."""
    launched: list[Any] = []

    def noted(x: Tensor, index: Tensor, shares: Tensor, *others: Any, in_parts: bool) -> Tensor:
        assert not in_parts
        assert index.unique().tolist() == [0, 1, 2]
        launched.append((len(x), shares.dtype, others[-1]))
        return x

    monkeypatch.setattr(many, "experts", noted)
    monkeypatch.setattr(kernels, "num_processors", lambda device: 132)
    stack = _made(*MANY)[0].to(DEVICE)
    for is_there in (False, True):
        monkeypatch.setattr(mxfp4, "has_gluon", lambda device, is_there=is_there: is_there)
        monkeypatch.setattr(stack, "is_for", lambda x: True)
        stack.load_for_prompts(3, torch.float32)
        stack.load_for_prompts(3, None)
        stack.load_for_prompts(ordinary.MOST_CHOSEN + 1, None)
        dtypes = (torch.float32, torch.bfloat16) if is_there else ()
        tiles = many.PROMPT_TILES
        assert launched == [(1025, dtype, each) for dtype in dtypes for each in tiles]


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny gpt-oss with experts of random bits."""
    return write(tmp_path)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts keep their bits on this device, too."""
    monkeypatch.setattr(loading, "keeps_mxfp4", lambda config, device, dtype: is_mxfp4(config))


def _load(folder: Path | str, **options: Any) -> Any:
    options = {"device": "cpu", "dtype": "bfloat16", **options}
    tokenizer: Any = SimpleNamespace()
    return load_adapter(folder, tokenizer=tokenizer, **options)[0]


def _logits(adapter: Any) -> Tensor:
    tokens = torch.arange(19, device=adapter.device)
    with torch.no_grad():
        found: Tensor = adapter.forward(tokens, None, exact_attention(adapter.ropes))
    return found


@pytest.mark.usefixtures("kept")
def test_a_pass_reads_the_packed_experts_of_a_token_alone(folder: Path) -> None:
    packed = _load(folder)
    stacks = [each for each in packed.model.modules() if isinstance(each, Mxfp4Stack)]
    buffers = sum(buffer.nbytes for stack in stacks for buffer in stack.buffers())
    held = sum(each.nbytes for each in (*packed.model.parameters(), *packed.model.buffers()))
    config = packed.config
    held -= 0 if config.tie_word_embeddings else packed.model.get_input_embeddings().weight.nbytes
    others = buffers * (1 - config.num_experts_per_tok / config.num_local_experts)
    assert others > 0
    assert weight_bytes(packed) == pytest.approx(held - others, abs=1)


@pytest.mark.usefixtures("kept")
def test_a_checkpoint_keeps_its_bits_and_gives_the_same_logits(folder: Path) -> None:
    whole = _load(folder, quantise="none", dtype="float32")
    packed = _load(folder, dtype="float32")
    stacks = [each for each in packed.model.modules() if isinstance(each, Mxfp4Stack)]
    assert len(stacks) == packed.config.num_hidden_layers
    assert not any(isinstance(each, Mxfp4Stack) for each in whole.model.modules())
    expected = _logits(whole)
    torch.testing.assert_close(_logits(packed), expected, rtol=1e-5, atol=1e-5)
    for name, weight in packed.model.named_parameters():
        if "experts" not in name:
            assert torch.equal(weight, whole.model.get_parameter(name)), name
    report = fuse_modules(packed, "on")
    assert report.experts == len(stacks)
    torch.testing.assert_close(_logits(packed), expected, rtol=1e-4, atol=1e-4)
    stacks[0].down_proj_words ^= 0x01C001C0
    assert not torch.allclose(_logits(packed), expected, atol=1e-3)


def test_experts_that_are_unpacked_have_the_dtype_that_was_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions of transformers leave them in bfloat16."""
    read: Any = AutoModelForCausalLM.from_pretrained

    def older(*given: Any, **options: Any) -> Any:
        model, report = read(*given, **options)
        for layer in model.base_model.layers:
            layer.mlp.experts.to(torch.bfloat16)
        return model, report

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", older)
    model = _load(folder, dtype="float32").model
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


@pytest.mark.skipif(not GPU, reason="the kernel's way is a GPU's")
def test_a_checkpoint_on_a_gpu(folder: Path) -> None:
    """By the kernel, with blocks that hand over what each expert gives, as near to float32 as the same numbers in 16 bits."""
    exact = _logits(_load(folder, device="cuda", dtype="float32", quantise="none"))
    far = {}
    for quantise in ("auto", "none"):
        adapter = _load(folder, device="cuda", quantise=quantise)
        stacks = [each for each in adapter.model.modules() if isinstance(each, Mxfp4Stack)]
        assert len(stacks) == (adapter.num_layers if quantise == "auto" else 0)
        fuse_modules(adapter, "on")
        far[quantise] = float((_logits(adapter).float() - exact).norm(dim=-1).median())
    assert far["auto"] < 1.5 * far["none"]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("tokens", [3, 20])
def test_blocks_hand_over_what_each_expert_gives(
    folder: Path, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel, beside the modelling code with the same numbers in float32."""
    packed = _load(folder, device=DEVICE.type).model.requires_grad_(False)
    whole = _load(folder, device=DEVICE.type, dtype="float32", quantise="none").model
    x = torch.randn(1, tokens, 64).to(DEVICE, torch.bfloat16)
    with torch.no_grad():
        exact = whole.base_model.layers[-1].mlp(x.float())[0]
    layer = packed.base_model.layers[-1]
    assert fuse_experts(layer) == (1, 1)
    let_sums_add_experts([layer])
    ahead: list[Any] = []
    monkeypatch.setattr(Mxfp4Stack, "load_for_prompts", lambda *found: ahead.append(found[1:]))
    load_for_prompts(packed)
    assert ahead == [(packed.config.num_experts_per_tok, None)]
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(own, "experts", partial(own.experts, fast=GPU))
    parts = layer.mlp(x)
    assert parts.dtype == torch.float32
    assert parts.shape == (packed.config.num_experts_per_tok, *x.shape)
    error = (parts.sum(0) - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert float(error.median()) < STEP
    assert float((parts[1:].sum(0) - exact).abs().max()) > 0.1 * float(exact.abs().max())


@pytest.mark.usefixtures("kept")
def test_linear_layers_may_have_four_bits_beside_them(folder: Path) -> None:
    packed = _load(folder, quantise="int4")
    kinds = {type(each).__name__ for each in packed.model.modules()}
    assert {"Mxfp4Stack", "Int4Linear"} <= kinds


@pytest.mark.usefixtures("kept")
def test_random_weights_are_packed_as_well(folder: Path) -> None:
    adapter = _load(folder, weights="dummy")
    model = adapter.model
    assert any(isinstance(each, Mxfp4Stack) for each in model.modules())
    assert _logits(adapter).isfinite().all()
    again = dummy_model(model.config, device=CPU, dtype=torch.bfloat16, mxfp4=True)
    for (name, ours), (_, theirs) in zip(model.named_buffers(), again.named_buffers(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("part", PARTS)
def test_a_missing_tensor_is_named(folder: Path, part: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    lost = f"model.layers.1.mlp.experts.down_proj_{part}"
    del tensors[lost]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelNotFound, match=lost):
        _load(folder)


def _without(part: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.__delitem__(INSIDE + part)


def _changed(part: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.update({INSIDE + part: change(tensors[INSIDE + part])})


INSIDE = "model.layers.1.mlp.experts."
ODD: dict[str, Callable[[dict[str, Tensor]], None]] = {
    "no weights for .*gate_up_proj_blocks": _without("gate_up_proj_blocks"),
    "no weights for .*down_proj_scales": _without("down_proj_scales"),
    "no weights for .*down_proj_bias": _without("down_proj_bias"),
    r"of F32, not U8 \(.*gate_up_proj_blocks": _changed("gate_up_proj_blocks", lambda x: x / 3),
    r"of BF16, not U8 \(.*down_proj_scales": _changed("down_proj_scales", Tensor.bfloat16),
    r"not floating-point ones \(.*bias: I64": _changed("down_proj_bias", Tensor.long),
    "are not those of their blocks: .*gate_up": _changed("gate_up_proj_scales", lambda x: x[:3]),
    "are not those of their blocks: .*down": _changed("down_proj_blocks", lambda x: x.flatten(2)),
    "a scale that is no number": _changed("down_proj_scales", lambda x: x | 255),
    "the weights of .*gate_up_proj twice": lambda tensors: tensors.update(
        {f"{INSIDE}gate_up_proj": torch.zeros(4, 64, 64)}
    ),
}


@pytest.mark.parametrize("said", ODD)
def test_what_would_be_unpacked_to_other_numbers_is_named(folder: Path, said: str) -> None:
    """On a CPU as well, where transformers unpacks them."""
    place = folder / "model.safetensors"
    tensors = load_file(place)
    ODD[said](tensors)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, place, metadata={"format": "pt"})
    with pytest.raises(ModelNotFound, match=said):
        _load(folder)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("said", ["not U8", "a scale that is no number"])
def test_so_it_is_on_the_hub(
    said: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_alone(tmp_path, monkeypatch)
    place = write(keep(tmp_path, "some/oss", {})) / "model.safetensors"
    tensors = load_file(place)
    next(change for words, change in ODD.items() if said in words)(tensors)
    save_file(tensors, place, metadata={"format": "pt"})
    first = ThreadCollectives(0, Meeting(2)) if ranks > 1 else None
    with pytest.raises(ModelNotFound, match=said):
        _load("some/oss", collectives=first)


# Names of gpt-oss's first layout, in the place of those behind "model.layers.0.".
FIRST_NAMES = {
    "mlp.experts.gate_up_proj_blocks": "mlp.mlp1_weight.blocks",
    "mlp.experts.gate_up_proj_scales": "mlp.mlp1_weight.scales",
    "mlp.experts.gate_up_proj_bias": "mlp.mlp1_bias",
    "mlp.experts.down_proj_blocks": "mlp.mlp2_weight.blocks",
    "mlp.experts.down_proj_scales": "mlp.mlp2_weight.scales",
    "mlp.experts.down_proj_bias": "mlp.mlp2_bias",
    "self_attn.o_proj.weight": "attn.out.weight",
}


@pytest.mark.parametrize("keeps", [False, True])
def test_the_layout_in_which_it_was_published_first_is_named(
    folder: Path, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "keeps_mxfp4", lambda config, device, dtype: keeps)
    place = folder / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(place).items():
        head, _, rest = name.removeprefix("model.layers.").partition(".")
        renamed[f"block.{head}.{FIRST_NAMES[rest]}" if rest in FIRST_NAMES else name] = tensor
    save_file(renamed, place, metadata={"format": "pt"})
    said = r"found block\.0\.mlp\.mlp1_weight\.blocks, expected .*experts\.gate_up_proj_blocks"
    with pytest.raises(UnsupportedModel, match=said) as caught:
        _load(folder)
    assert "not its folder `original`" in str(caught.value.hint)


def test_names_of_a_network_without_a_head(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read where experts are unpacked."""
    place = folder / "model.safetensors"
    renamed = {name.removeprefix("model."): each for name, each in load_file(place).items()}
    save_file(renamed, place, metadata={"format": "pt"})
    assert _logits(_load(folder)).isfinite().all()
    monkeypatch.setattr(loading, "keeps_mxfp4", lambda config, device, dtype: True)
    said = r"found embed_tokens\.weight, expected names such as model\.layers"
    with pytest.raises(UnsupportedModel, match=said) as caught:
        _load(folder)
    assert 'quantise="none"' in str(caught.value.hint)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("sliding_window", 0, "sliding_window is 0; expected 1 or more"),
        ("sliding_window", -1, "sliding_window is -1; expected 1 or more"),
        ("sliding_window", None, "sliding_window is None; expected a number of tokens, since 1 of"),
        ("swiglu_limit", 0.0, r"swiglu_limit is 0\.0; expected a positive number"),
        ("swiglu_limit", -7.0, r"swiglu_limit is -7\.0; expected a positive number"),
        ("swiglu_limit", None, "swiglu_limit.* expected float, got None"),
    ],
)
def test_windows_and_limits_that_none_can_have_are_named(
    folder: Path, field: str, value: Any, said: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(UnsupportedModel, match=said):
        _load(folder)
    config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    if field == "sliding_window":  # no layer asks for it
        (folder / "config.json").write_text(json.dumps(config | {field: value}))
        assert _logits(_load(folder)).isfinite().all()


@pytest.mark.usefixtures("kept")
def test_a_tensor_without_a_place_and_one_that_is_odd(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    odd = "model.layers.0.mlp.experts.gate_up_proj_scales"
    save_file(
        tensors | {"model.layers.0.more": torch.zeros(1)},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(ModelNotFound, match=r"without a place: model\.layers\.0\.more"):
        _load(folder)
    save_file(
        tensors | {odd: tensors[odd][:, :-2].contiguous()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(UnsupportedModel, match=r"layers\.0\.mlp\.experts: .*gate_up_proj_scales"):
        _load(folder)


def test_where_bits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = SimpleNamespace(quantization_config={"quant_method": "mxfp4"}, num_experts_per_tok=4)
    plain = SimpleNamespace(quantization_config=None)
    assert not keeps_mxfp4(packed, CPU, torch.bfloat16)
    if not GPU:
        monkeypatch.setattr(kernels, "run_on", lambda device: True)
    assert keeps_mxfp4(packed, DEVICE, torch.bfloat16)
    assert not keeps_mxfp4(packed, DEVICE, torch.float16)
    assert not keeps_mxfp4(plain, DEVICE, torch.bfloat16)
    packed.num_experts_per_tok = ordinary.MOST_CHOSEN
    assert keeps_mxfp4(packed, DEVICE, torch.bfloat16)
    packed.num_experts_per_tok += 1
    assert not keeps_mxfp4(packed, DEVICE, torch.bfloat16)
