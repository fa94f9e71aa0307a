"""FP8 checkpoints with scales per block of 128 x 128, written here in the layout of Qwen3-8B-FP8."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from manyhands.errors import InvalidRequest, ManyhandsError, ModelNotFound, UnsupportedModel
from manyhands.model.adapter import ModelAdapter
from manyhands.model.loading import load_adapter
from manyhands.model.quantised import block_scales
from manyhands.model.quantised.block_scales import BLOCK, BlockScales, read_block_scales
from manyhands.model.quantised.linear import Float8Linear, Quantised
from manyhands.model.quiet import quiet
from manyhands.model.self_test import exact_attention
from tests.model.families_zoo import VOCABULARY, some_tokens, tiny_model

SAID = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
    "modules_to_not_convert": ["lm_head", "model.layers.1.mlp.down_proj"],
}
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
LAYOUT = BlockScales()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def published(weight: Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """A weight in the layout, block by block: each block's largest number becomes 448."""
    blocks = [-(-size // BLOCK) for size in weight.shape]
    scales = torch.empty(blocks)
    values = torch.empty_like(weight)
    for i in range(blocks[0]):
        for j in range(blocks[1]):
            at = slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK)
            scales[i, j] = (weight[at].abs().max() / 448).to(dtype)
            values[at] = (weight[at] / scales[i, j]).nan_to_num()  # 0 / 0 in a block of zeros
    values = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": scales.to(dtype)}


def meant(tensors: dict[str, Tensor]) -> Tensor:
    """The numbers of a published weight, one by one, in float64."""
    weight, scales = tensors["weight"].double(), tensors["weight_scale_inv"].double()
    n, k = (torch.arange(size) // BLOCK for size in weight.shape)
    return weight * scales[n][:, k]


# -- one layer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(128, 128), (1, 1), (300, 130), (16, 272), (129, 127)])
def test_the_numbers_are_those_that_are_meant(shape: tuple[int, int], dtype: torch.dtype) -> None:
    tensors = published(torch.randn(shape), dtype)
    assert torch.equal(LAYOUT.dequantised(tensors, torch.float64), meant(tensors))
    # One rounding: a number of 4 bits times a scale, to 24 or 8 bits.
    assert torch.equal(LAYOUT.dequantised(tensors, torch.float32), meant(tensors).float())
    half = LAYOUT.dequantised(tensors, torch.bfloat16)
    torch.testing.assert_close(half.double(), meant(tensors), rtol=2**-8, atol=0)


@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_eight_bits_move_by_a_sixteenth_at_most(spread: float) -> None:
    """Blocks with an output's largest scale stay as they are, the others are rounded once more."""
    weight = torch.randn(272, 400)
    weight[:, :BLOCK] *= spread
    tensors = published(weight)
    layer = LAYOUT.to_layer(tensors, None)
    assert layer is not None
    exact, kept = meant(tensors), layer.dequantised(torch.float64)
    top = layer.scales.double()[:, None]
    moved = (kept - exact).abs()
    assert bool((moved <= torch.maximum(exact.abs() / 16, top / 1024) * (1 + 1e-6)).all())
    assert moved.max() > 0
    if spread > 1:
        assert torch.equal(kept[:, :BLOCK], exact[:, :BLOCK])


def test_outputs_with_one_scale_do_not_move() -> None:
    tensors = published(torch.randn(272, 128))
    layer = LAYOUT.to_layer(tensors, None)
    assert layer is not None
    assert torch.equal(layer.weight.view(torch.uint8), tensors["weight"].view(torch.uint8))
    assert torch.equal(layer.dequantised(torch.float64), meant(tensors))


def test_blocks_of_zeros() -> None:
    weight = torch.randn(128, 256)
    weight[:, BLOCK:] = 0
    for tensors in (published(weight), published(weight * 0)):
        layer = LAYOUT.to_layer(tensors, None)
        assert layer is not None
        assert torch.equal(layer.dequantised(torch.float64), meant(tensors))


def test_shapes_that_eight_bits_cannot_have_become_ordinary() -> None:
    assert LAYOUT.to_layer(published(torch.randn(300, 128)), None) is None
    assert LAYOUT.to_layer(published(torch.randn(304, 128)), None) is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight_block_size": None}, "one scale per tensor"),
        (
            {"weight_block_size": [64, 128]},
            r"blocks of \[64, 128\] \(weight_block_size\), not \[128",
        ),
        ({"weight_block_size": 128}, "blocks of 128"),
        ({"activation_scheme": "static"}, "'static' scales of activations"),
        ({"fmt": "e5m2"}, r"'e5m2' \(fmt\), not e4m3"),
    ],
)
def test_what_is_not_read(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words) as caught:
        read_block_scales(SAID | change)
    assert "128 x 128" in caught.value.hint
    assert read_block_scales(SAID) == LAYOUT
    assert read_block_scales({**SAID, **change, "quant_method": "awq"}) is None


def test_odd_tensors() -> None:
    good = published(torch.randn(300, 200))
    scales = good["weight_scale_inv"]
    cases = {
        r"scales of torch.float32 \[2, 2\], not float32 or bfloat16 \[3, 2\]": {
            "weight_scale_inv": scales[:2]
        },
        r"scales of torch.float32 \[\]": {"weight_scale_inv": scales[0, 0]},
        "scales of torch.float16": {"weight_scale_inv": scales.half()},
        "weight of torch.bfloat16": {"weight": torch.ones(300, 200, dtype=torch.bfloat16)},
        "not finite": {"weight_scale_inv": scales / 0},
        "negative": {"weight_scale_inv": -scales},
    }
    for words, change in cases.items():
        with pytest.raises(UnsupportedModel, match=words):
            LAYOUT.to_layer(good | change, None)
        with pytest.raises(UnsupportedModel, match=words):
            LAYOUT.dequantised(good | change, torch.float32)


# -- checkpoints -----------------------------------------------------------------------------------


def _write(folder: Path, dtype: torch.dtype = torch.float32) -> ModelAdapter:
    """A checkpoint of a tiny network, no size a multiple of 128; returns the network that it means."""
    config = hf.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=208,
        intermediate_size=300,  # no multiple of 16 either: these layers cannot keep eight bits
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=16,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = tiny_model(config)
    with quiet():
        model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for key, module in model.named_modules():
        if type(module) is nn.Linear and key not in SAID["modules_to_not_convert"]:
            packed = published(module.weight.data, dtype)
            tensors |= {f"{key}.{part}": tensor for part, tensor in packed.items()}
            module.weight.data = meant(packed).float()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _configure(quantization_config=SAID)(folder)
    return ModelAdapter(model)


def _configure(**changes: Any) -> Callable[[Path], None]:
    def configure(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return configure


def _edit(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return edit


def _load(folder: Path, **options: Any) -> ModelAdapter:
    tokenizer: Any = object()
    return load_adapter(folder, device="cpu", tokenizer=tokenizer, **options)[0]


def _logits(adapter: ModelAdapter) -> Tensor:
    with torch.no_grad():
        return adapter.forward(some_tokens(20), None, exact_attention(adapter.ropes)).double()


def _kinds(adapter: ModelAdapter) -> set[type[nn.Module]]:
    return {type(module) for module in adapter.model.modules() if isinstance(module, Quantised)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantise", ["auto", "none"])
def test_on_a_cpu_a_checkpoint_is_the_network_it_means(
    quantise: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    expected = _logits(_write(tmp_path, dtype))
    adapter = _load(tmp_path, quantise=quantise)
    assert _kinds(adapter) == set()
    torch.testing.assert_close(_logits(adapter), expected, rtol=0, atol=1e-5)


def test_control_one_wrong_scale_is_seen(tmp_path: Path) -> None:
    expected = _logits(_write(tmp_path))
    _edit(lambda t: t[f"{Q}.weight_scale_inv"][1, 1].mul_(1.5))(tmp_path)
    assert (_logits(_load(tmp_path)) - expected).abs().max() > 1e-2


def test_a_network_of_bfloat16(tmp_path: Path) -> None:
    expected = _logits(_write(tmp_path))
    adapter = _load(tmp_path, dtype="bfloat16")
    assert adapter.model.get_submodule(Q).weight.dtype == torch.bfloat16
    error = (_logits(adapter) - expected).pow(2).mean().sqrt() / expected.std()
    assert error < 0.05


def test_eight_bits_are_kept(tmp_path: Path) -> None:
    """Weights and activations are rounded once more: a hundredth to a tenth of the logits' spread."""
    expected = _logits(_write(tmp_path))
    adapter = _load(tmp_path, quantise="fp8")
    layers = dict(adapter.model.named_modules())
    assert type(layers[Q]) is Float8Linear
    assert type(layers[DOWN]) is nn.Linear  # 300 inputs
    assert type(layers["lm_head"]) is nn.Linear
    error = (_logits(adapter) - expected).pow(2).mean().sqrt() / expected.std()
    assert 0.001 < error < 0.15


def test_auto_keeps_eight_bits_where_they_are_multiplied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path)
    monkeypatch.setattr(block_scales, "multiplies_float8", lambda device: True)
    assert _kinds(_load(tmp_path)) == {Float8Linear}
    assert _kinds(_load(tmp_path, quantise="none")) == set()
    assert _kinds(_load(tmp_path, weights="dummy")) == {Float8Linear}
    assert _kinds(_load(tmp_path, weights="dummy", quantise="none")) == set()


def test_eight_bits_do_not_become_four(tmp_path: Path) -> None:
    _write(tmp_path)
    with pytest.raises(InvalidRequest, match="eight bits already"):
        _load(tmp_path, quantise="int4")


BROKEN: dict[str, tuple[Callable[[Path], Any], type[ManyhandsError], str]] = {
    "a scale is missing": (
        _edit(lambda t: t.pop(f"{Q}.weight_scale_inv")),
        ModelNotFound,
        f"packed weights without scales .{Q}.weight: torch.float8_e4m3fn",
    ),
    "a weight is missing": (_edit(lambda t: t.pop(f"{Q}.weight")), ModelNotFound, f"{Q}.weight"),
    "scales for one block": (
        _edit(lambda t: t.update({f"{Q}.weight_scale_inv": torch.ones(1, 1)})),
        UnsupportedModel,
        rf"{Q}: an FP8 layer .* scales of torch.float32 \[1, 1\]",
    ),
    "static scales of activations": (
        _edit(lambda t: t.update({f"{Q}.input_scale": torch.ones(1)})),
        ModelNotFound,
        f"1 weight without a place: {Q}.input_scale",
    ),
    "one scale per tensor": (
        _configure(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"}),
        UnsupportedModel,
        "cannot be read: its FP8 weights have one scale per tensor",
    ),
    "nothing is packed": (
        _edit(lambda t: [t.pop(key) for key in list(t) if key.endswith("scale_inv")]),
        ModelNotFound,
        r"packed layers \(fp8: \*.weight_scale_inv\)",
    ),
    "another width": (_configure(hidden_size=224), ModelNotFound, "another shape"),
    "experts": (
        _edit(lambda t: t.update({"model.layers.0.mlp.experts.3.weight_scale_inv": torch.ones(1)})),
        UnsupportedModel,
        "experts are one stack",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_has_one_clear_error(case: str, tmp_path: Path) -> None:
    _write(tmp_path)
    break_it, kind, words = BROKEN[case]
    break_it(tmp_path)
    with pytest.raises(kind, match=words) as caught:
        _load(tmp_path)
    assert caught.value.hint
