"""AWQ and GPTQ checkpoints, written here from tiny networks and read as the ordinary ones they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from manyhands.errors import InvalidRequest, ManyhandsError, ModelNotFound, UnsupportedModel
from manyhands.model import kernels
from manyhands.model.adapter import ModelAdapter
from manyhands.model.loading import load_adapter
from manyhands.model.quantised.linear import Quantised
from manyhands.model.quantised.packing import Packing, from_layer, read_packing
from manyhands.model.quantised.w4a16 import Int4Linear, unpack
from manyhands.model.quiet import quiet
from manyhands.model.self_test import exact_attention
from tests.model.families_zoo import some_tokens, tiny_models

ZOO = tiny_models()
AWQ, GPTQ = Packing("awq"), Packing("gptq", zeros_less_one=True)
LAYOUTS = {
    "awq": (AWQ, {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}),
    "gptq": (GPTQ, {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True}),
    "gptq_v2": (
        replace(GPTQ, zeros_less_one=False),
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq_v2"},
    ),
}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


# -- one layer -------------------------------------------------------------------------------------


def test_awq_by_hand() -> None:
    """Eight outputs to an int32, in the order 0 2 4 6 1 3 5 7."""
    q = torch.arange(8)[:, None].expand(8, 32).int()  # output n has the number n everywhere
    layer = AWQ.to_layer(
        {
            "qweight": torch.full((32, 1), 0x75316420, dtype=torch.int32),
            "qzeros": torch.full((1, 1), 0x75316420, dtype=torch.int32),
            "scales": torch.ones(1, 8, dtype=torch.float16),
        },
        None,
    )
    assert torch.equal(unpack(layer.packed, 8), q.to(torch.uint8))
    assert layer.zeros.tolist() == [list(range(8))]
    assert not layer.dequantised(torch.float32).any()


def test_gptq_by_hand() -> None:
    """Eight inputs to an int32, in order; zeros are stored less one, outputs in order."""
    tensors = {
        "qweight": torch.full((4, 8), 0x76543210, dtype=torch.int32),
        "qzeros": torch.full((1, 1), 0x76543210, dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5, dtype=torch.float16),
        "g_idx": torch.zeros(32, dtype=torch.int32),
    }
    weight = GPTQ.to_layer(tensors, None).dequantised(torch.float32)
    k, n = torch.arange(32) % 8, torch.arange(8)
    assert torch.equal(weight, 0.5 * (k[None, :] - (n[:, None] + 1)))
    weight = replace(GPTQ, zeros_less_one=False).dequantised(tensors, torch.float32)
    assert torch.equal(weight, 0.5 * (k[None, :] - n[:, None]))


def test_a_zero_of_0_borrows_from_its_neighbour() -> None:
    """The 1 is taken from words of eight zeros, as GPTQModel does with asymmetric groups."""
    zeros = [0, 7, 0, 0, 15, 1, 8, 0]
    word = sum(zero << 4 * place for place, zero in enumerate(zeros))
    word = (word - 0x11111111) % (1 << 32)
    tensors = {
        "qweight": torch.zeros(4, 8, dtype=torch.int32),
        "qzeros": torch.tensor([[word - (1 << 32)]], dtype=torch.int32),
        "scales": torch.ones(1, 8, dtype=torch.float16),
        "g_idx": torch.zeros(32, dtype=torch.int32),
    }
    assert word >= 1 << 31
    layer = GPTQ.to_layer(tensors, None)
    assert layer.zeros.tolist() == [zeros]
    assert torch.equal(from_layer(layer, GPTQ)["qzeros"], tensors["qzeros"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inputs", [32, 64, 384])
def test_there_and_back(layout: str, inputs: int) -> None:
    packing, _ = LAYOUTS[layout]
    layer = Int4Linear.from_weight(torch.randn(24, inputs), None)
    published = from_layer(layer, packing)
    again = packing.to_layer(published, None)
    assert torch.equal(again.dequantised(torch.float32), layer.dequantised(torch.float32))
    assert again.order is None
    for name, tensor in from_layer(again, packing).items():
        assert torch.equal(tensor, published[name]), name


@pytest.mark.parametrize("group", [256, 512])
def test_larger_groups_are_cut(group: int) -> None:
    """A group of 256 is two of 128 with the same scale; group_size -1 is one group of all inputs."""
    layer = Int4Linear.from_weight(torch.randn(16, 512), None)
    repeats = group // 128
    layer.scales, layer.zeros = (
        x[::repeats].repeat_interleave(repeats, dim=0) for x in (layer.scales, layer.zeros)
    )
    published = from_layer(layer, AWQ)
    published |= {name: published[name][::repeats] for name in ("scales", "qzeros")}
    again = AWQ.to_layer(published, None)
    assert again.group == 128
    assert torch.equal(again.dequantised(torch.float32), layer.dequantised(torch.float32))


def test_inputs_in_another_order() -> None:
    """GPTQ's act-order: the group of an input is what g_idx says."""
    layer = Int4Linear.from_weight(torch.randn(24, 256), torch.randn(24))
    layer.order = torch.randperm(256).int()
    published = from_layer(layer, GPTQ)
    again = GPTQ.to_layer(published, layer.bias)
    assert again.order is not None
    weight = layer.dequantised(torch.float64)
    assert torch.equal(again.dequantised(torch.float64), weight)
    g_idx = published["g_idx"].long()
    by_definition = (_gptq_numbers(published["qweight"]).t() - _zeros(published)[g_idx]) * (
        published["scales"].double()[g_idx]
    )
    assert torch.equal(by_definition.t(), weight)
    x = torch.randn(3, 256, dtype=torch.float64)
    assert layer.bias is not None
    torch.testing.assert_close(again(x), x @ weight.t() + layer.bias.double())


def _gptq_numbers(qweight: Tensor) -> Tensor:
    """Inputs of a GPTQ layer, written out: [N, K]."""
    words = qweight.long() % (1 << 32)
    return torch.stack([(words >> 4 * i) % 16 for i in range(8)], dim=1).flatten(0, 1).t()


def _zeros(published: dict[str, Tensor]) -> Tensor:
    words = published["qzeros"].long() % (1 << 32)
    return torch.stack([(words >> 4 * i) % 16 for i in range(8)], dim=2).flatten(1) + 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 3}, "3 bits"),
        ({"quant_method": "awq", "version": "gemv"}, "'gemv'"),
        ({"quant_method": "awq", "format": "gemv_fast"}, "'gemv_fast'"),
        ({"format": "marlin"}, "'marlin'"),
        (
            {"checkpoint_format": "gptq", "format": "gptq_v2"},
            "has checkpoint_format 'gptq' and format 'gptq_v2'",
        ),
        ({"checkpoint_format": "marlin"}, "'marlin'"),
        (
            {"dynamic": {"-:lm_head": {}, "+:.*down_proj": {"group_size": 32, "bits": 8}}},
            r"its layers '\.\*down_proj' are packed in another way than the others: bits 8 in dynamic, and 4 in its",
        ),
        ({"dynamic": {r".*up.*": {"pack_dtype": "int16"}}}, "pack_dtype 'int16' in dynamic"),
        ({"dynamic": {r".*up.*": {"format": "gptq_v2"}}}, "format 'gptq_v2' in dynamic, and None"),
        ({"dynamic": {r".*up.*": 8}}, "'.*up.*' are packed in another way than the others: 8 in"),
        ({"dynamic": ["lm_head"]}, "has dynamic"),
    ],
)
def test_what_is_not_read(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words) as caught:
        read_packing({**LAYOUTS["gptq"][1], **change})
    assert "not quantised" in caught.value.hint


@pytest.mark.parametrize("name", ["checkpoint_format", "format"])
def test_a_layout_by_its_old_name_and_by_its_new_one(name: str) -> None:
    """GPTQModel calls the older name an alias; without a look at the other zeros would be off by one."""
    for layout, less_one in (("gptq", True), ("GPTQ_V2", False)):
        packing = read_packing({"quant_method": "gptq", "bits": 4, name: layout})
        assert packing is not None
        assert packing.zeros_less_one is less_one


def test_odd_layers() -> None:
    good = from_layer(Int4Linear.from_weight(torch.randn(16, 64), None), GPTQ)
    uneven = good | {"g_idx": torch.tensor([0] * 40 + [1] * 24)}
    cases = {
        "differ in size": uneven | {"scales": good["scales"].repeat(2, 1)},
        "do not belong": good | {"scales": good["scales"][:, :8]},
        "multiples of 32": {
            "qweight": good["qweight"],
            "scales": good["scales"].repeat(4, 1),
            "qzeros": good["qzeros"].repeat(4, 1),
            "g_idx": torch.arange(64) // 16,
        },
        # Bits of other dtypes were read as those of words of 32.
        "qweight of torch.int16": good | {"qweight": good["qweight"].to(torch.int16)},
        "qzeros of torch.float32": good | {"qzeros": good["qzeros"].float()},
        "scales of torch.int8 .*expected torch.float16 or": good
        | {"scales": good["scales"].char()},
        r"scales of torch.float16 \[16\], .* in 2 dims": good | {"scales": good["scales"][0]},
        r"scales of torch.float16 \[0, 16\]": good | {"scales": good["scales"][:0]},
        "scales that are not finite": good | {"scales": good["scales"] * float("nan")},
        # Groups were counted up to the largest, however large.
        "the groups 0 to 1099511627776 of 64 inputs": uneven
        | {"g_idx": torch.tensor([0] * 63 + [1 << 40])},
        "the groups -1 to 0 of 64 inputs": good | {"g_idx": torch.tensor([-1] + [0] * 63)},
        r"of 32 inputs \(g_idx\), expected 0 to 0 of 64": good | {"g_idx": good["g_idx"][:32]},
    }
    for words, tensors in cases.items():
        with pytest.raises(UnsupportedModel, match=words):
            GPTQ.to_layer(tensors, None)


def test_scales_of_32_bits_go_the_slower_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reads those of 16."""
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    good = from_layer(Int4Linear.from_weight(torch.randn(16, 64), None), AWQ)
    x = torch.randn(2, 64, dtype=torch.bfloat16)
    assert AWQ.to_layer(good, None)._is_for(x)
    wide = AWQ.to_layer(good | {"scales": good["scales"].float()}, None)
    assert not wide._is_for(x)
    assert torch.equal(wide(x), x @ AWQ.dequantised(good, x.dtype).t())


# -- checkpoints -----------------------------------------------------------------------------------


def _write(folder: Path, name: str, layout: str) -> ModelAdapter:
    """A packed checkpoint of a tiny network; returns the ordinary network that it means."""
    packing, said = LAYOUTS[layout]
    model: Any = ZOO[name]()
    with quiet():
        model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for key, module in model.base_model.layers.named_modules():
        if type(module) is not nn.Linear or module.in_features % 32:
            continue
        layer = Int4Linear.from_weight(module.weight, None)
        if said.get("desc_act"):
            layer.order = torch.randperm(layer.in_features).int()
        del tensors[f"model.layers.{key}.weight"]
        for part, tensor in from_layer(layer, packing).items():
            tensors[f"model.layers.{key}.{part}"] = tensor.contiguous()
        module.weight.data = layer.dequantised(torch.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    return ModelAdapter(model)


def _load(folder: Path, **options: Any) -> ModelAdapter:
    tokenizer: Any = object()
    return load_adapter(folder, device="cpu", tokenizer=tokenizer, **options)[0]


def _logits(adapter: ModelAdapter) -> Tensor:
    with torch.no_grad():
        return adapter.forward(some_tokens(20), None, exact_attention(adapter.ropes))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name", ["llama_llama3", "qwen2_yarn", "qwen3", "gemma2", "gemma4_text", "phi3", "glm4"]
)
def test_a_checkpoint_is_the_network_it_means(name: str, layout: str, tmp_path: Path) -> None:
    expected = _logits(_write(tmp_path, name, layout))
    adapter = _load(tmp_path)
    assert any(isinstance(module, Int4Linear) for module in adapter.model.modules())
    torch.testing.assert_close(_logits(adapter), expected, rtol=0, atol=1e-5)
    unpacked = _load(tmp_path, quantise="none")
    assert not any(isinstance(module, Quantised) for module in unpacked.model.modules())
    torch.testing.assert_close(_logits(unpacked), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_layers_that_are_left_as_they_are_and_groups_of_another_size(
    name: str, tmp_path: Path
) -> None:
    """GPTQModel names them by patterns in `dynamic`."""
    adapter = _write(tmp_path, name, "gptq")
    left, finer = "model.layers.0.mlp.gate_proj", "model.layers.1.mlp.up_proj"
    packing, said = LAYOUTS["gptq"]

    def change(tensors: dict[str, Tensor]) -> None:
        for part in packing.tensors:
            del tensors[f"{left}.{part}"]
            del tensors[f"{finer}.{part}"]
        plain: Any = adapter.model.get_submodule(left)
        tensors[f"{left}.weight"] = torch.randn_like(plain.weight)
        plain.weight.data = tensors[f"{left}.weight"].clone()
        module: Any = adapter.model.get_submodule(finer)
        layer = Int4Linear.from_weight(torch.randn_like(module.weight), None)
        repeat = layer.group // 32
        scales, zeros = (x.repeat_interleave(repeat, dim=0) for x in (layer.scales, layer.zeros))
        layer = Int4Linear(
            layer.packed, scales * (1 + torch.arange(len(scales)) % 2)[:, None], zeros, None
        )
        for part, tensor in from_layer(layer, packing).items():
            tensors[f"{finer}.{part}"] = tensor.contiguous()
        module.weight.data = layer.dequantised(torch.float32)

    _edit(change)(tmp_path)
    dynamic = {rf"-:{left}": {}, r"+:.*layers\.1\.mlp\.up_proj": {"bits": 4, "group_size": 32}}
    _configure(quantization_config={**said, "dynamic": dynamic})(tmp_path)
    loaded = _load(tmp_path)
    assert type(loaded.model.get_submodule(left)) is nn.Linear
    assert isinstance(loaded.model.get_submodule(finer), Int4Linear)
    torch.testing.assert_close(_logits(loaded), _logits(adapter), rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_group_whose_scale_is_0_is_exactly_nothing(layout: str) -> None:
    """Whatever its numbers are. The kernel has 2^-24 in the place of 0, which a large input would show."""
    packing, _ = LAYOUTS[layout]
    layer = Int4Linear.from_weight(torch.randn(24, 384), None)
    layer.scales[1], layer.scales[:, 3], layer.scales[2, 5] = 0, 0, -0.0
    before = layer.dequantised(torch.float32)
    again = packing.to_layer(from_layer(layer, packing), None)
    assert torch.equal(again.dequantised(torch.float32), before)
    nothing = again.scales == 0
    assert nothing.sum() > 24
    numbers = unpack(again.packed, 24).view(24, len(again.scales), -1)
    less = numbers.int() - again.zeros.t()[..., None].int()
    assert not less[nothing.t()].any()
    assert less[~nothing.t()].any()


def test_its_shape_alone_with_dummy_weights(tmp_path: Path) -> None:
    _write(tmp_path, "qwen2", "awq")
    for quantise, kinds in (("auto", {Int4Linear}), ("none", set())):
        model = _load(tmp_path, weights="dummy", quantise=quantise).model
        assert {type(m) for m in model.modules() if isinstance(m, Quantised)} == kinds


def test_biases_of_zeros_and_frequencies_are_no_surprise(tmp_path: Path) -> None:
    expected = _logits(_write(tmp_path, "llama", "gptq"))
    path = tmp_path / "model.safetensors"
    more = {
        "model.layers.0.self_attn.q_proj.bias": torch.zeros(64),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
    }
    save_file({**load_file(path), **more}, path)
    torch.testing.assert_close(_logits(_load(tmp_path)), expected, rtol=0, atol=1e-5)
    save_file({**load_file(path), next(iter(more)): torch.ones(64)}, path)
    assert _load(tmp_path).model.get_submodule("model.layers.0.self_attn.q_proj").bias is not None


def rename_table(folder: Path) -> None:
    """The one tensor of tied weights by its second name, under which some writers leave it."""
    _edit(lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}))(folder)


def test_tied_weights_by_either_name(tmp_path: Path) -> None:
    expected = _logits(_write(tmp_path, "gemma2", "awq"))
    rename_table(tmp_path)
    torch.testing.assert_close(_logits(_load(tmp_path)), expected, rtol=0, atol=1e-5)


def test_an_output_layer_of_its_own_beside_a_configuration_that_ties_it(tmp_path: Path) -> None:
    """Transformers takes both as they are, and so does whatever loads a whole; here it was left out without a word."""
    expected = _logits(_write(tmp_path, "qwen3", "awq"))
    _configure(tie_word_embeddings=True)(tmp_path)
    adapter = _load(tmp_path, quantise="none")
    torch.testing.assert_close(_logits(adapter), expected, rtol=0, atol=1e-5)
    with quiet():
        adapter.model.save_pretrained(tmp_path / "again")
    kept = load_file(tmp_path / "again" / "model.safetensors")
    assert not torch.equal(kept["lm_head.weight"], kept["model.embed_tokens.weight"])
    assert not json.loads((tmp_path / "again" / "config.json").read_text())["tie_word_embeddings"]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_list_of_zeros_is_none(in_order: bool) -> None:
    layer = Int4Linear.from_weight(torch.randn(24, 384), None)
    published = from_layer(layer, GPTQ)
    published["g_idx"] = torch.zeros(384, dtype=torch.int32)
    packing = replace(GPTQ, is_in_order=in_order)
    if in_order:
        assert torch.equal(
            packing.dequantised(published, torch.float32), layer.dequantised(torch.float32)
        )
    else:
        with pytest.raises(UnsupportedModel, match="differ in size"):
            packing.to_layer(published, None)


@pytest.mark.parametrize("in_order", [True, False])
def test_groups_of_inputs_in_order_need_no_list(tmp_path: Path, in_order: bool) -> None:
    """Without act-order `g_idx` says nothing; where a checkpoint may have act-order it is missing."""
    expected = _logits(_write(tmp_path, "qwen3", "gptq_v2"))
    _edit(lambda t: [t.pop(key) for key in list(t) if key.endswith("g_idx")])(tmp_path)
    said = LAYOUTS["gptq_v2"][1] | ({"desc_act": False} if in_order else {})
    _configure(quantization_config=said)(tmp_path)
    if in_order:
        torch.testing.assert_close(_logits(_load(tmp_path)), expected, rtol=0, atol=1e-5)
    else:
        with pytest.raises(ModelNotFound, match=r"no weights for .*\.g_idx"):
            _load(tmp_path)


def test_several_files(tmp_path: Path) -> None:
    expected = _logits(_write(tmp_path, "qwen3", "awq"))
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    where = {key: names[index % 2] for index, key in enumerate(sorted(tensors))}
    for name in names:
        save_file({key: tensors[key] for key in where if where[key] == name}, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    torch.testing.assert_close(_logits(_load(tmp_path)), expected, rtol=0, atol=1e-5)
    (tmp_path / names[1]).unlink()
    with pytest.raises(ModelNotFound, match=names[1]):
        _load(tmp_path)
    index.write_text("[]")
    with pytest.raises(ModelNotFound, match="index that cannot be read"):
        _load(tmp_path)


def _edit(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return edit


def _configure(**changes: Any) -> Callable[[Path], None]:
    def configure(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return configure


Q = "model.layers.0.self_attn.q_proj"
BROKEN: dict[str, tuple[Callable[[Path], Any], type[ManyhandsError], str]] = {
    "a part is missing": (_edit(lambda t: t.pop(f"{Q}.scales")), ModelNotFound, f"{Q}.scales"),
    "a norm is missing": (_edit(lambda t: t.pop("model.norm.weight")), ModelNotFound, "model.norm"),
    "a layer too many": (
        _edit(lambda t: t.update({"model.layers.7.mlp.weight": torch.ones(1)})),
        ModelNotFound,
        "1 weight without a place: model.layers.7",
    ),
    "nothing is packed": (
        _edit(lambda t: [t.pop(key) for key in list(t) if key.endswith("qweight")]),
        ModelNotFound,
        "packed layers",
    ),
    "another width": (_configure(hidden_size=32), ModelNotFound, "another shape"),
    "another number of heads": (
        _configure(num_attention_heads=2, num_key_value_heads=1),
        ModelNotFound,
        r"another shape .*_proj \(\d+, \d+\), expected \(\d+, \d+\)",
    ),
    "packed where nothing is": (
        _edit(lambda t: t.update({"model.layers.0.mlp.experts.3.qweight": torch.ones(1)})),
        UnsupportedModel,
        "experts are one stack",
    ),
    "a bias that torch would repeat": (
        _edit(lambda t: t.update({f"{Q}.bias": torch.ones(1)})),
        ModelNotFound,
        r"another shape .*q_proj.bias \(1,\), expected \(\d+,\)",
    ),
    "a bias of bytes": (
        _edit(lambda t: t.update({f"{Q}.bias": torch.ones(64, dtype=torch.int8)})),
        ModelNotFound,
        "q_proj.bias: torch.int8",
    ),
    "scales of a dim less": (
        _edit(lambda t: t.update({f"{Q}.scales": t[f"{Q}.scales"][0]})),
        UnsupportedModel,
        "q_proj: a packed layer has scales of torch.float16 .* in 2 dims",
    ),
    "cut off": (
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:-999]
        ),
        ModelNotFound,
        "unreadable weights",
    ),
    "three bits": (
        _configure(quantization_config={**LAYOUTS["awq"][1], "bits": 3}),
        UnsupportedModel,
        "AWQ weights have 3 bits",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_has_one_clear_error(case: str, tmp_path: Path) -> None:
    _write(tmp_path, "qwen3", "awq")
    break_it, kind, words = BROKEN[case]
    break_it(tmp_path)
    with pytest.raises(kind, match=words) as caught:
        _load(tmp_path)
    assert caught.value.hint


def test_experts_one_by_one_are_not_missing(tmp_path: Path) -> None:
    _write(tmp_path, "qwen3_moe", "awq")
    with pytest.raises(UnsupportedModel, match=r"one by one \(model\.layers\.0\.mlp\.experts\.0\."):
        _load(tmp_path)


@pytest.mark.parametrize("size", [(), (2,)], ids=str)
def test_a_buffer_of_another_shape_is_named(size: tuple[int, ...], tmp_path: Path) -> None:
    """Torch would repeat one number, and end in an error of its own with two."""
    _write(tmp_path, "gemma4_text", "awq")
    _edit(lambda t: t.update({"model.layers.0.layer_scalar": torch.ones(size)}))(tmp_path)
    with pytest.raises(ModelNotFound, match=r"another shape .*layer_scalar .*, expected \(1,\)"):
        _load(tmp_path)


def test_four_bits_do_not_become_eight(tmp_path: Path) -> None:
    _write(tmp_path, "qwen3", "awq")
    with pytest.raises(InvalidRequest, match="four bits already"):
        _load(tmp_path, quantise="fp8")
