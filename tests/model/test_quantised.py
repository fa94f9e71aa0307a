"""Quantised layers by themselves, and networks that have them: how near, how stable, how refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.errors import InvalidRequest
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import dummy_model
from manyhands.model.fusion import fuse_modules
from manyhands.model.loading import load_adapter
from manyhands.model.quantised.linear import Float8Linear, Quantised
from manyhands.model.quantised.quantise import KINDS
from manyhands.model.quantised.w4a16 import Int4Linear, group_for, pack, unpack
from manyhands.model.quiet import quiet
from manyhands.model.self_test import exact_attention
from tests.model.families_zoo import some_tokens, tiny_models

ZOO = tiny_models()
CPU = torch.device("cpu")
# The error that remains in a layer's output: e4m3 has 3 bits of mantissa on both sides, int4 has 16 levels.
NEAR = {"fp8": 0.05, "int4": 0.12}
KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def _made(kind: str, outputs: int = 48, inputs: int = 256, *, bias: bool = True) -> Any:
    return KINDS[kind].from_weight(
        torch.randn(outputs, inputs), torch.randn(outputs) if bias else None
    )


def _logits(adapter: ModelAdapter) -> Tensor:
    with torch.no_grad():
        return adapter.forward(some_tokens(20), None, exact_attention(adapter.ropes))


# -- layers ----------------------------------------------------------------------------------------


@KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_near_the_ordinary_layer(kind: str, dtype: torch.dtype) -> None:
    weight, bias, x = torch.randn(48, 256), torch.randn(48), torch.randn(2, 5, 256)
    layer = KINDS[kind].from_weight(weight, bias)
    ours = layer(x.to(dtype))
    expected = functional.linear(x, weight, bias)
    assert ours.dtype == dtype
    assert ours.shape == expected.shape
    assert float((ours - expected).norm() / expected.norm()) < NEAR[kind]
    near = layer.dequantised(torch.float32)
    assert float((near - weight).norm() / weight.norm()) < NEAR[kind]


def test_int4_is_the_product_with_its_dequantised_weight() -> None:
    layer, x = _made("int4"), torch.randn(3, 256, dtype=torch.float64)
    expected = functional.linear(x, layer.dequantised(torch.float64), layer.bias.double())
    torch.testing.assert_close(layer(x), expected)


def test_float8_is_the_product_of_float8_numbers() -> None:
    layer, x = _made("fp8"), torch.randn(3, 256)
    scales = x.abs().amax(dim=1, keepdim=True) / 448
    rounded = (x / scales).to(torch.float8_e4m3fn).double() * scales.double()
    expected = functional.linear(rounded, layer.dequantised(torch.float64), layer.bias.double())
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=1e-4)


@KIND
def test_exact_numbers_stay(kind: str) -> None:
    """Weights that the layer can hold are held."""
    layer = _made(kind)
    again = KINDS[kind].from_weight(layer.dequantised(torch.float64), None)
    assert float((again.dequantised(torch.float32) - layer.dequantised(torch.float32)).norm()) < (
        1e-2 * float(layer.dequantised(torch.float32).norm())
    )


@KIND
def test_a_weight_of_zeros(kind: str) -> None:
    layer = KINDS[kind].from_weight(torch.zeros(16, 64), None)
    assert torch.equal(layer(torch.randn(2, 64)), torch.zeros(2, 16))
    assert torch.isfinite(layer(torch.zeros(2, 64))).all()


@KIND
def test_dtypes_of_packed_numbers_are_not_for_changing(kind: str) -> None:
    """`network.to(dtype)` would round scales, and turn float8 into something four times as large."""
    layer = _made(kind)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    layer.to(torch.bfloat16).double().half()
    for name, buffer in layer.named_buffers():
        assert buffer.dtype == before[name].dtype
        assert torch.equal(buffer.view(torch.uint8), before[name].view(torch.uint8))
    assert layer.bias.dtype == torch.float16
    meta = layer.to("meta")
    assert all(buffer.is_meta for buffer in meta.buffers())


@KIND
def test_joined_layers_give_what_their_parts_give(kind: str) -> None:
    parts = [_made(kind, 16), _made(kind, 32, bias=False), _made(kind, 16)]
    x = torch.randn(3, 256)
    one = KINDS[kind].joined(parts)
    assert one is not None
    torch.testing.assert_close(one(x), torch.cat([part(x) for part in parts], dim=-1))
    assert KINDS[kind].joined([_made(kind), _made(kind, inputs=128)]) is None


def test_layers_with_different_orders_of_inputs_are_not_joined() -> None:
    first, second, third = (_made("int4") for _ in range(3))
    second.order = torch.randperm(256).int()
    third.order = second.order.clone()
    assert Int4Linear.joined([first, second]) is None
    joined = Int4Linear.joined([second, third])
    assert joined is not None
    assert joined.order is not None
    assert second.order is not None
    assert torch.equal(joined.order, second.order)


@pytest.mark.parametrize(("outputs", "inputs"), [(5, 96), (64, 32), (150, 256)])
def test_packing(outputs: int, inputs: int) -> None:
    """Every number is where the formulas say, and comes back."""
    q = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    packed = pack(q)
    assert packed.shape == (-(-outputs // 64), inputs // 32, 256)
    assert torch.equal(unpack(packed, outputs), q)
    for _ in range(50):
        n, k = random.randrange(outputs), random.randrange(inputs)
        (g, p, r, h), (t, j, c, e) = _digits(n % 64, 8, 2, 2, 2), _digits(k % 32, 4, 2, 2, 2)
        word = int(packed[n // 64, k // 32, 128 * p + 4 * (4 * g + t) + 2 * r + j])
        assert word >> 4 * (4 * e + 2 * c + h) & 0xF == q[n, k]


def _digits(number: int, *bases: int) -> list[int]:
    digits = []
    for base in reversed(bases):
        number, digit = divmod(number, base)
        digits.append(digit)
    return digits[::-1]


def test_joined_and_parted_within_a_block() -> None:
    """Outputs lie in blocks of 64; where a layer ends within one, what follows is packed anew."""
    layers = [_made("int4", outputs) for outputs in (128, 40, 64)]
    joined = Int4Linear.joined(layers)
    assert joined is not None
    weights = torch.cat([layer.dequantised(torch.float64) for layer in layers])
    assert torch.equal(joined.dequantised(torch.float64), weights)
    for pieces in (((0, 64), (128, 192)), ((0, 40), (100, 232)), ((64, 128),)):
        part = joined.part(0, pieces, None)
        rows = [row for piece in pieces for row in range(*piece)]
        assert part.out_features == len(rows)
        assert torch.equal(part.dequantised(torch.float64), weights[rows])


def test_groups() -> None:
    assert [group_for(inputs) for inputs in (5120, 192, 96, 48)] == [128, 64, 32, None]


# -- networks --------------------------------------------------------------------------------------


@KIND
@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "gemma2", "phi3", "qwen3_moe", "gpt_oss", "llama4_text"]
)
def test_a_network_is_quantised_in_place(kind: str, name: str) -> None:
    expected = _logits(ModelAdapter(ZOO[name]()))
    adapter, _ = load_adapter(ZOO[name](), quantise=kind)
    layers = [m for m in adapter.model.modules() if isinstance(m, Quantised)]
    assert len(layers) >= 2 * adapter.num_layers
    assert type(adapter.model.get_output_embeddings()) is nn.Linear
    found = _logits(adapter)
    assert not torch.equal(found, expected)
    # Random networks this small, with attention this sharp, carry every rounding to the end.
    assert float((found - expected).norm() / expected.norm()) < 1.0


@KIND
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma3_text", "glm4", "olmo2"])
def test_fused_modules_join_quantised_layers(kind: str, name: str) -> None:
    adapter, _ = load_adapter(ZOO[name](), quantise=kind)
    expected = _logits(adapter)
    report = fuse_modules(adapter, "on")
    assert report.products >= adapter.num_layers
    first: Any = adapter.model.base_model.layers[0]  # type: ignore[index]
    assert isinstance(first.self_attn.qkv_proj.linear, KINDS[kind])
    torch.testing.assert_close(_logits(adapter), expected, rtol=0, atol=2e-5)


@KIND
def test_dummy_weights_are_quantised_from_the_start(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ordinary weight of such a layer ever has memory; and all are filled."""

    def never(*_: Any) -> None:
        raise AssertionError("an ordinary weight was made first")

    monkeypatch.setattr(KINDS[kind], "from_weight", never)
    config = ZOO["qwen2"]().config
    model: Any = dummy_model(config, device=CPU, dtype=torch.bfloat16, quantise=kind)
    again = dummy_model(config, device=CPU, dtype=torch.bfloat16, quantise=kind)
    layer = model.base_model.layers[0].self_attn.q_proj
    assert isinstance(layer, KINDS[kind])
    assert float(layer.dequantised(torch.float32).std()) == pytest.approx(0.02, rel=0.1)
    assert layer.bias is not None
    assert not layer.bias.any()
    assert layer.bias.dtype == torch.bfloat16
    for a, b in zip(model.buffers(), again.buffers(), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    assert _logits(ModelAdapter(model)).isfinite().all()


@KIND
def test_dummy_weights_have_no_mean(kind: str) -> None:
    """With one of half a step in four bits, thousands of inputs had added it up alike, and all rows had the same logits."""
    shell = nn.Linear(2048, 512, bias=False, device="meta", dtype=torch.bfloat16)
    layer: Any = KINDS[kind].empty(shell).to_empty(device="cpu")
    torch.manual_seed(0)
    layer.fill(0.02)
    weight = layer.dequantised(torch.float32)
    assert float(weight.std()) == pytest.approx(0.02, rel=0.02)
    assert abs(float(weight.mean())) < 4 * 0.02 / weight.numel() ** 0.5, "four standard errors"
    assert float(weight.abs().max()) < 0.12


@KIND
def test_an_ordinary_checkpoint_is_quantised_at_load(kind: str, tmp_path: Path) -> None:
    with quiet():
        ZOO["qwen2"]().save_pretrained(tmp_path)
    tokenizer: Any = object()
    options: Any = {"device": "cpu", "tokenizer": tokenizer}
    adapter, _ = load_adapter(tmp_path, quantise=kind, **options)
    expected, _ = load_adapter(ZOO["qwen2"](), quantise=kind)
    assert torch.equal(_logits(adapter), _logits(expected))
    for word in ("auto", "none"):
        ordinary, _ = load_adapter(tmp_path, quantise=word, **options)
        assert not any(isinstance(m, Quantised) for m in ordinary.model.modules())


def test_what_cannot_be_quantised() -> None:
    with pytest.raises(InvalidRequest, match="'int3'"):
        load_adapter(ZOO["llama"](), quantise="int3")  # as a user may write it
    narrow = ZOO["llama"]().config
    narrow.hidden_size, narrow.num_attention_heads, narrow.num_key_value_heads = 24, 3, 1
    narrow.head_dim, narrow.intermediate_size = 8, 24
    with pytest.raises(InvalidRequest, match="no layers that int4 can hold"):
        dummy_model(narrow, device=CPU, dtype=torch.float32, quantise="int4")


def test_the_choice_of_experts_stays_exact() -> None:
    class Expertly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.router, self.up_proj = (nn.Linear(64, 64) for _ in range(3))

    model: Any = ZOO["llama"]()
    model.base_model.layers[0].mlp = Expertly()
    model.base_model.layers = model.base_model.layers[:1]
    load_adapter(model, quantise="int4")
    mlp = model.base_model.layers[0].mlp
    assert type(mlp.gate) is type(mlp.router) is nn.Linear
    assert isinstance(mlp.up_proj, Int4Linear)
    assert not isinstance(mlp.up_proj, Float8Linear)


@pytest.mark.parametrize("dim", [0, 1])
def test_offsets_are_parted_with_their_weights(dim: int) -> None:
    """Parts side by side are the whole weight."""
    layer = Int4Linear.from_weight(torch.randn(32, 256), None)
    layer.offsets = torch.randn(len(layer.scales), 32)
    half = (32, 256)[dim] // 2
    parts = [layer.part(dim, [(start, start + half)], None) for start in (0, half)]
    joined = torch.cat([part.dequantised(torch.float32) for part in parts], dim=dim)
    assert torch.equal(joined, layer.dequantised(torch.float32))
