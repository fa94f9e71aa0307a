"""GGUF files, written by the package of the format's authors and read by us.

Weights are compared bit by bit with that package's own unpacking. Damaged files are this one, cut off at many
places and with numbers of its header replaced: each must end in an error of ours, at once.
"""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from torch import Tensor

from manyhands import bundled
from manyhands.cache.step import Choice
from manyhands.errors import ManyhandsError, ModelNotFound, OutOfMemory, UnsupportedModel
from manyhands.model import host_memory
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import size_of
from manyhands.model.generation import own_choice
from manyhands.model.gguf import header as headers
from manyhands.model.gguf.header import read_header
from manyhands.model.gguf.tensors import name_of
from manyhands.model.gguf.tokenizer import read_tokenizer
from manyhands.model.loading import find_format, load_adapter
from manyhands.model.lora import add_lora, lora_layers, save_lora
from manyhands.model.quantised.w4a16 import Int4Linear
from manyhands.model.self_test import exact_attention
from tests.model.families_zoo import some_tokens, tiny_model
from tests.model.gguf_files import Kind, real_tokens, write
from tests.smollm2 import smollm2

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
}
NETWORKS = {
    "llama": hf.LlamaConfig(**SIZES),
    "qwen2": hf.Qwen2Config(**{**SIZES, "head_dim": 16}, tie_word_embeddings=True),
    "qwen3": hf.Qwen3Config(**SIZES),
    "llama with biases": hf.LlamaConfig(**SIZES, attention_bias=True),
    "qwen3 with biases": hf.Qwen3Config(**SIZES, attention_bias=True),
}


LINEAR = {"llama.rope.scaling.type": "linear"}
YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}


def _write(path: Path, name: str = "llama", kind: Kind = Kind.F32, **more: Any) -> Any:
    return write(path, tiny_model(NETWORKS[name]), kind, **more)


def _load(path: Path, **options: Any) -> ModelAdapter:
    return load_adapter(path, device="cpu", dtype="float32", **options)[0]


def _logits(adapter: ModelAdapter) -> Tensor:
    with torch.no_grad():
        return adapter.forward(some_tokens(20), None, exact_attention(adapter.ropes))


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("llama", Kind.F32), ("llama", Kind.Q4_0), ("llama", Kind.Q4_1), ("llama", Kind.F16)),
        *(("qwen2", Kind.Q8_0), ("qwen3", Kind.BF16), ("qwen3", Kind.Q4_1)),
        *(("llama with biases", Kind.Q4_0), ("qwen3 with biases", Kind.F32)),
    ],
)
def test_the_network_is_that_of_the_file(tmp_path: Path, name: str, kind: Kind) -> None:
    expected = _write(tmp_path / "it.gguf", name, kind)
    adapter = _load(tmp_path / "it.gguf", quantise="none")
    state = adapter.model.state_dict()
    for key, value in expected.items():
        assert torch.equal(state[key], value), key
    twin = tiny_model(NETWORKS[name])
    twin.load_state_dict(expected, strict=False)
    with torch.no_grad():
        theirs = twin(input_ids=some_tokens(20)[None], use_cache=False).logits[0]
    assert float((_logits(adapter) - theirs).abs().max()) < 3e-5


@pytest.mark.parametrize("quantise", ["auto", "fp16", "none"])
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.F32])
def test_an_adapter_is_added_before_numbers_are_rounded(
    tmp_path: Path, kind: Kind, quantise: str
) -> None:
    """With an adapter a file is held as it is without one: in float16 where its numbers were rounded before."""
    place = tmp_path / "it.gguf"
    _write(place, kind=kind)
    whole = _load(place, quantise="none")
    add_lora(whole.model, 2, 4.0)
    for layer in lora_layers(whole.model).values():
        layer.lora_B.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(7))
    save_lora(whole.model, tmp_path / "mine", base="it", dtype=torch.float32)
    found = _load(place, quantise=quantise, adapted=tmp_path / "mine").model
    is_halved = quantise == "fp16" or (quantise == "auto" and kind == Kind.Q8_0)
    for name, layer in lora_layers(whole.model).items():
        weight: Any = found.get_submodule(name).weight
        assert torch.equal(weight, weight.half().float()) == is_halved
        torch.testing.assert_close(weight, layer.merged(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1])
def test_four_bits_are_kept(tmp_path: Path, kind: Kind) -> None:
    _write(tmp_path / "it.gguf", kind=kind)
    plain, kept = (_load(tmp_path / "it.gguf", quantise=word) for word in ("none", "int4"))
    layers = {n: m for n, m in kept.model.named_modules() if isinstance(m, Int4Linear)}
    assert len(layers) == 2 * 7
    for name, layer in layers.items():
        weight: Any = plain.model.get_submodule(name).weight
        torch.testing.assert_close(layer.dequantised(torch.float32), weight, rtol=0, atol=1e-6)
        assert layer.dequantised(torch.bfloat16).dtype == torch.bfloat16
    assert float((_logits(plain) - _logits(kept)).abs().max()) < 3e-5


def test_room_for_four_bits_is_enough_where_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "it.gguf", kind=Kind.Q4_0)
    whole = size_of(_load(tmp_path / "it.gguf", quantise="none").model)
    kept = size_of(_load(tmp_path / "it.gguf", quantise="int4").model)
    assert kept < whole * 0.6, "control"
    monkeypatch.setattr(host_memory, "most_host_bytes", lambda: kept)
    _load(tmp_path / "it.gguf", quantise="int4")
    with pytest.raises(OutOfMemory, match="this process may have"):
        _load(tmp_path / "it.gguf", quantise="none")
    monkeypatch.setattr(host_memory, "most_host_bytes", lambda: kept // 2)
    with pytest.raises(OutOfMemory, match="this process may have"):
        _load(tmp_path / "it.gguf", quantise="int4")


def test_offsets_are_a_product_of_sums(tmp_path: Path) -> None:
    """A GPU adds behind its kernel the terms that the unpacked weight holds."""
    _write(tmp_path / "it.gguf", kind=Kind.Q4_1)
    layer: Any = _load(tmp_path / "it.gguf", quantise="int4").model.get_submodule(
        "model.layers.0.mlp.up_proj"
    )
    x = torch.randn(5, 64)
    whole = layer(x)
    added = layer._of_offsets(x)
    offsets, layer.offsets = layer.offsets, None
    torch.testing.assert_close(layer(x) + added, whole, rtol=1e-4, atol=1e-4)
    twice = Int4Linear.joined([layer, layer])
    assert twice is not None
    assert twice.offsets is None
    without = Int4Linear(layer.packed, layer.scales, layer.zeros, None)
    layer.offsets = offsets
    assert Int4Linear.joined([layer, without]) is None
    joined = Int4Linear.joined([layer, layer])
    assert joined is not None
    torch.testing.assert_close(joined(x), torch.cat((whole, whole), dim=1))


def test_frequencies_divided_by_factors(tmp_path: Path) -> None:
    """Llama 3.1's, which come as a tensor, are those that transformers computes."""
    rope = {
        **{"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0},
        **{"high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    }
    model = tiny_model(hf.LlamaConfig(**SIZES, rope_parameters=rope))
    expected = ModelAdapter(model).ropes[0]
    plain = ModelAdapter(tiny_model(NETWORKS["llama"])).ropes[0]
    assert expected is not None
    assert plain is not None
    factors = (plain.inv_freq / expected.inv_freq).numpy()
    assert factors.max() > 2
    write(tmp_path / "it.gguf", model, tensors={"rope_freqs.weight": factors.astype(np.float32)})
    found = _load(tmp_path / "it.gguf").ropes[0]
    assert found is not None
    torch.testing.assert_close(found.inv_freq, expected.inv_freq)


@pytest.mark.parametrize(("count", "kind"), [(15, None), (17, None), (32, None), (16, "linear")])
def test_factors_that_do_not_fit_are_refused(tmp_path: Path, count: int, kind: str | None) -> None:
    facts = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 2.0}
    tensors = {"rope_freqs.weight": np.ones(count, np.float32)}
    _write(tmp_path / "it.gguf", facts=facts if kind else None, tensors=tensors)
    with pytest.raises(
        UnsupportedModel, match=rf"rope_freqs.weight of {count} numbers beside {kind!r}"
    ):
        _load(tmp_path / "it.gguf")


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_a_factor_that_nothing_is_divided_by_is_named(tmp_path: Path, factor: float) -> None:
    factors = np.ones(SIZES["head_dim"] // 2, np.float32)
    factors[3] = factor
    _write(tmp_path / "it.gguf", tensors={"rope_freqs.weight": factors})
    with pytest.raises(
        ModelNotFound, match=r"rope_freqs\.weight with a number that is not above 0"
    ):
        _load(tmp_path / "it.gguf")


@pytest.mark.parametrize("factor", [0.0, 2.0])
def test_a_factor_without_a_type_is_a_linear_one(tmp_path: Path, factor: float) -> None:
    """So llama.cpp takes it; 0 is none there."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
    if factor:
        rope |= {"rope_type": "linear", "factor": factor}
    model = tiny_model(hf.LlamaConfig(**SIZES, rope_parameters=rope))
    write(tmp_path / "it.gguf", model, facts={"llama.rope.scaling.factor": factor})
    ours, theirs = _logits(_load(tmp_path / "it.gguf")), _logits(ModelAdapter(model))
    assert float((ours - theirs).abs().max()) < 3e-5


@pytest.mark.parametrize("kind", [None, "none", "linear", "yarn"])
def test_a_factor_of_scores_is_refused_whatever_the_type(tmp_path: Path, kind: str | None) -> None:
    facts: dict[str, Any] = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 2.0}
    for factor in (1.0, 1.5):
        _write(tmp_path / "it.gguf", facts=facts | {"llama.rope.scaling.attn_factor": factor})
        if factor == 1.0:
            _load(tmp_path / "it.gguf")
            continue
        with pytest.raises(UnsupportedModel, match=r"rope\.scaling\.attn_factor = 1\.5"):
            _load(tmp_path / "it.gguf")


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaled_rotations(tmp_path: Path, kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    facts = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 2.0}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = 64
        facts["llama.rope.scaling.original_context_length"] = 64
    model = tiny_model(hf.LlamaConfig(**SIZES, rope_parameters=rope))
    write(tmp_path / "it.gguf", model, facts=facts)
    ours, theirs = _logits(_load(tmp_path / "it.gguf")), _logits(ModelAdapter(model))
    assert float((ours - theirs).abs().max()) < 3e-5


# -- tokens ----------------------------------------------------------------------------------------

SAID = "Bob has 123 apples,  and  it's 4.5 more:\n\n<|end|> x=12345; naïve 数学 🙂\tend "


def test_tokens_are_those_of_the_tokenizer_file(tmp_path: Path) -> None:
    _write(tmp_path / "it.gguf", tokens=real_tokens("smollm"))
    ours = read_tokenizer(read_header(tmp_path / "it.gguf"))
    theirs = Tokenizer.from_file(str(bundled.path() / "tokenizer.json"))
    said = SAID.replace("\n\n", " ")  # the bundled model's own rule differs in line feeds alone
    assert ours.encode(said) == theirs.encode(said).ids
    assert ours.decode(ours.encode(said)) == said


def test_scores_become_merges(tmp_path: Path) -> None:
    """SentencePiece merges the best-scored pair of neighbours first; so "abc" is not "ab" and "c" here."""
    words = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "b", "c", "bc", "ab", "\u2581a"]
    scores = [0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0]

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(words)
        writer.add_token_scores(scores)
        writer.add_token_types([2, 3, 3, 6, *[1] * 7])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    _write(tmp_path / "it.gguf", tokens=add)
    tokenizer = read_tokenizer(read_header(tmp_path / "it.gguf"))
    assert tokenizer.tokenize("abc\n") == ["\u2581a", "bc", "<0x0A>"]
    assert tokenizer.encode("ab") == [1, 4, 9]  # opened by <s>, and "ab" before "\u2581a"
    assert tokenizer.decode([4, 9, 3, 4, 7], skip_special_tokens=True) == "ab\n c"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == tuple(
        words[i] for i in (1, 2, 0)
    )


def test_chat_template_and_turn_ends_come_with_the_file(tmp_path: Path) -> None:
    template = "{{ messages[0]['content'] }}"
    facts = {"tokenizer.chat_template": template, "tokenizer.ggml.eot_token_id": 3}
    _write(tmp_path / "it.gguf", facts=facts)
    adapter, tokenizer = load_adapter(tmp_path / "it.gguf", device="cpu")
    assert tokenizer is not None
    assert tokenizer.chat_template == template
    assert adapter.config.eos_token_id == [27, 3]


def test_how_the_model_samples(tmp_path: Path) -> None:
    path = tmp_path / "it.gguf"
    _write(path)
    assert own_choice(str(path)) is None
    said = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    _write(path, facts=said)
    assert own_choice(str(path)) == Choice(temperature=0.5, top_k=20)
    _write(path, facts={"general.sampling.temp": -1.0})
    with pytest.raises(ModelNotFound, match="cannot be used: temperature"):
        own_choice(str(path))


# -- one choice of a format ------------------------------------------------------------------------


def test_every_format_is_recognised(tmp_path: Path) -> None:
    _write(tmp_path / "it.gguf")
    (tmp_path / "it.gguf").rename(tmp_path / "blob")  # as caches name them
    assert find_format(str(tmp_path / "blob")).format == "gguf"
    assert find_format(str(tmp_path / "blob")).layout is None
    _write(tmp_path / "four.gguf", kind=Kind.Q4_0)
    layout = find_format(tmp_path / "four.gguf").layout
    assert layout is not None
    assert [layout.kind_on(torch.device(d)) for d in ("cuda", "cpu")] == ["int4", "none"]
    assert find_format(bundled.path()).format == "plain"
    for method, bits in (("awq", 4), ("gptq", 4), ("fp8", 8)):
        folder = tmp_path / method
        folder.mkdir()
        config = NETWORKS["llama"].to_dict()
        entry = {"quant_method": method, "bits": bits, "group_size": 32}
        if method == "fp8":
            entry["weight_block_size"] = [128, 128]
        config["quantization_config"] = entry
        (folder / "config.json").write_text(json.dumps(config))
        assert find_format(folder, with_weights=False).format == method


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'; read are llama, qwen2, qwen3"),
        ({"llama.expert_count": 8}, "llama.expert_count = 8"),
        ({"llama.attention.scale": 0.5}, "llama.attention.scale = 0.5"),
        ({"llama.rope.dimension_count": 16}, "a part of each head"),
        ({"llama.attention.value_length": 16}, "heads whose keys and values differ in size"),
        ({"llama.rope.scaling.type": "su"}, "rope.scaling.type = 'su'"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"tokenizer.ggml.pre": "quux"}, "the rule 'quux'; known are gpt-2, smollm"),
        ({"tokenizer.ggml.model": "bert"}, "'bert' as tokenizer.ggml.model"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    tmp_path: Path, facts: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "it.gguf"
    _write(path)
    read = dict(read_header(path).facts) | facts
    if "split.count" in facts:
        _write(path, facts=facts)
    else:
        changed = headers.Header(path, read, read_header(path).tensors)  # type: ignore[arg-type]
        monkeypatch.setattr("manyhands.model.gguf.network.read_header", lambda _: changed)
    with pytest.raises(UnsupportedModel) as caught:
        _load(path)
    assert named in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"llama.block_count": 1 << 30}, "tensors of 2 layers, and 1073741824 are announced"),
        ({"llama.block_count": None}, "nothing as llama.block_count; expected a whole number"),
        ({"llama.embedding_length": 128}, "another shape than its configuration"),
        ({"llama.attention.head_count": 0}, "0 as llama.attention.head_count"),
        ({"llama.rope.freq_base": float("nan")}, "nan as llama.rope.freq_base"),
        ({"tokenizer.ggml.bos_token_id": 999}, "999 as bos_token_id, of 28 tokens"),
        (
            {"tokenizer.ggml.bos_token_id": [1]},
            "'[1]' as tokenizer.ggml.bos_token_id; expected the",
        ),
        ({"tokenizer.ggml.unknown_token_id": True}, "'True' as tokenizer.ggml.unknown_token_id"),
        ({"tokenizer.chat_template": ["a"]}, "as tokenizer.chat_template; expected a text"),
        ({"tokenizer.ggml.scores": ["a"]}, "as tokenizer.ggml.scores; expected a list of numbers"),
        ({"tokenizer.ggml.add_bos_token": 1}, "'1' as tokenizer.ggml.add_bos_token; expected true"),
        (
            {**LINEAR, "llama.rope.scaling.factor": 0.0},
            "0.0 as llama.rope.scaling.factor; expected a",
        ),
        (
            {**LINEAR, "llama.rope.scaling.factor": "x"},
            "x as llama.rope.scaling.factor; expected a",
        ),
        (LINEAR, "nothing as llama.rope.scaling.factor; expected a number above 0"),
        (
            {**YARN, "llama.rope.scaling.original_context_length": 0},
            "0 as llama.rope.scaling.original_context_length; expected a whole number",
        ),
        (
            {
                "llama.attention.head_count": 7,
                "llama.attention.key_length": None,
                "llama.attention.value_length": None,
            },
            "facts that make no configuration",
        ),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, facts: dict[str, Any], named: str) -> None:
    path = tmp_path / "it.gguf"
    _write(path, facts=facts)
    with pytest.raises(ModelNotFound) as caught:
        _load(path)
    assert named in str(caught.value)


def test_tensors_that_are_missing_or_unknown(tmp_path: Path) -> None:
    path = tmp_path / "it.gguf"
    _write(path, tensors={"blk.1.attn_sinks.weight": np.zeros(4, np.float32)})
    with pytest.raises(ModelNotFound, match=r"weight without a place: blk\.1\.attn_sinks\.weight"):
        _load(path)
    content = _small(path)
    path.write_bytes(content.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
    with pytest.raises(ModelNotFound, match=r"no weights for model\.layers\.1\.mlp\.up_proj"):
        _load(path)


def test_two_tensors_for_one_place_are_named(tmp_path: Path) -> None:
    """The last one was taken."""
    path = tmp_path / "it.gguf"
    _write(path, tensors={"model.norm.weight": np.zeros(64, np.float32)})
    with pytest.raises(ModelNotFound, match=r"place: output_norm\.weight and model\.norm\.weight"):
        _load(path)


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "it.gguf"
    _write(path, kind=Kind.Q4_0)
    start = read_header(path).tensors["blk.0.ffn_up.weight"].start
    content = bytearray(path.read_bytes())
    content[start : start + 2] = struct.pack("<e", float("nan"))
    path.write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"up_proj: its blocks have scales that are not fin"):
        _load(path)


@pytest.mark.parametrize("name", ["output_norm.weight", "rope_freqs.weight"])
def test_a_tensor_larger_than_all_memory_is_not_read(tmp_path: Path, name: str) -> None:
    """A file may be of holes, and take no room on a disk."""
    path = tmp_path / "it.gguf"
    _write(path, tensors={"rope_freqs.weight": np.ones(SIZES["head_dim"] // 2, np.float32)})
    tensor = read_header(path).tensors[name]
    content, first = bytearray(path.read_bytes()), tensor.start
    begin = min(each.start for each in read_header(path).tensors.values())
    entry = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", 1)
    at = content.index(entry) + len(entry)
    assert struct.unpack_from("<QIQ", content, at) == (*tensor.shape, 0, first - begin)
    struct.pack_into("<Q", content, at, 1 << 35)
    path.write_bytes(content)
    os.truncate(path, first + (4 << 35))
    with pytest.raises(ModelNotFound, match=rf"{re.escape(name)}.* \(34359738368,\)"):
        _load(path)


def _small(path: Path) -> bytes:
    _write(path)
    return path.read_bytes()


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    whole = _small(tmp_path / "it.gguf")
    path = tmp_path / "cut.gguf"
    for size in (*range(0, 200, 7), *range(200, 5000, 61), len(whole) - 5000, len(whole) - 40):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelNotFound) as caught:
            read_header(path)
        assert "truncated" in caught.value.hint


@pytest.mark.parametrize(
    ("place", "raw", "named"),
    [
        (0, b"GGML", "b'GGML' where a GGUF file has b'GGUF'"),
        (4, struct.pack("<I", 9), "version 9"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 1 << 62), "the number of tensors, more than the file has bytes for"),
        (16, struct.pack("<Q", (1 << 64) - 1), "the number of facts, more"),
        (24, struct.pack("<Q", (1 << 64) - 1), "the length of the name of fact 1, more"),
        (24, struct.pack("<Q", 70_000), "expected at most 65,536"),
        (52, struct.pack("<I", 77), "general.architecture of type 77"),
        (52, struct.pack("<I", 4), ""),
    ],
)
def test_a_header_that_lies(tmp_path: Path, place: int, raw: bytes, named: str) -> None:
    path = tmp_path / "it.gguf"
    whole = _small(path)
    assert whole[32:52] == b"general.architecture"
    path.write_bytes(whole[:place] + raw + whole[place + len(raw) :])
    with pytest.raises(ManyhandsError) as caught:
        read_header(path)
    assert named in str(caught.value)


def test_sizes_that_overflow(tmp_path: Path) -> None:
    """2^33 times 2^31 numbers are 0 of them in 64 bits."""
    path = tmp_path / "it.gguf"
    whole = _small(path)
    sizes = struct.pack("<IQQ", 2, 64, 97)
    assert whole.count(sizes) == 2  # of the embeddings and of the output layer
    path.write_bytes(whole.replace(sizes, struct.pack("<IQQ", 2, 1 << 33, 1 << 31)))
    with pytest.raises(ModelNotFound, match="ends at byte 73,786,976"):
        read_header(path)
    path.write_bytes(whole.replace(sizes, struct.pack("<IQQ", 7, 64, 97)))
    with pytest.raises(ModelNotFound, match="with 7 dimensions"):
        read_header(path)


@pytest.mark.parametrize("name", ["none.gguf", "./there/none.gguf"])
def test_no_such_file(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"no file .*none\.gguf"):
        load_adapter(name)


# -- a real one ------------------------------------------------------------------------------------


def test_smollm2_is_what_the_package_unpacks() -> None:
    path = smollm2()
    adapter, tokenizer = load_adapter(path, device="cpu", quantise="none")
    assert tokenizer is not None
    state = adapter.model.state_dict()
    heads = {"attn_q": 9, "attn_k": 3}
    for place in read_header(path).tensors.values():
        if not place.name.startswith(("token_embd", "blk.0.", "blk.29.")):
            continue
        raw = np.fromfile(path, np.uint8, place.size, offset=place.start)
        raw = raw.reshape(*place.shape[:-1], -1)
        rows = gguf.dequantize(raw, gguf.GGMLQuantizationType(place.number))
        part = place.name.split(".")[-2]
        if part in heads:  # as the converter of Llama has it, backwards
            pairs = rows.reshape(heads[part], -1, 2, rows.shape[1])
            rows = pairs.swapaxes(1, 2).reshape(rows.shape)
        found = state[name_of(place.name)].numpy()
        assert np.array_equal(found, rows.reshape(found.shape)), place.name
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    reply = tokenizer.encode("The capital of France is Paris.<|im_end|>")
    tokens = torch.tensor([*ids["input_ids"], *reply])
    with torch.no_grad():
        likeliest = adapter.forward(tokens, None, exact_attention(adapter.ropes)).argmax(-1)
    assert likeliest[-len(reply) - 1 : -1].tolist() == reply
