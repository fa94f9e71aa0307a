"""A loaded network is saved as one that comes back equal, or says why it is not; whatever it was made of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.errors import InvalidRequest
from manyhands.model import loading
from manyhands.model.adapter import ModelAdapter
from manyhands.model.fusion import fuse_modules
from manyhands.model.loading import load_adapter
from manyhands.model.lora import add_lora, lora_layers, save_lora
from manyhands.model.quantised.mxfp4 import is_mxfp4
from manyhands.model.quiet import quiet
from manyhands.model.self_test import exact_attention
from tests.covers import in_turns
from tests.model import (
    gguf_files,
    mxfp4_files,
    test_block_scales,
    test_gguf,
    test_packed_checkpoint,
)
from tests.model.families_zoo import some_tokens, tiny_model, tiny_models
from tests.model.parallel.threads import Meeting
from tests.model.test_recurrent import CONFIGS

ZOO = tiny_models()
WHOLE = ("llama", "gpt_oss", "deepseek_v3", "llama4_text", "gemma4_shared", "phi3_longrope")
_LOADING = threading.Lock()  # transformers is not made for threads
VERBS = ("save_pretrained", "push_to_hub", "add_adapter", "load_adapter")


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def _plain(place: Path) -> Path:
    with quiet():
        ZOO["qwen3_moe"]().save_pretrained(place)
    return place


def _gguf(kind: gguf_files.Kind) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        place.mkdir()
        test_gguf._write(place / "it.gguf", kind=kind)
        return place / "it.gguf"

    return write


def _packed(layout: str) -> Callable[[Path], Path]:
    def write(place: Path) -> Path:
        test_packed_checkpoint._write(place, "llama", layout)
        return place

    return write


def _eight_bits(place: Path) -> Path:
    test_block_scales._write(place)
    return place


FORMATS: dict[str, Callable[[Path], Path]] = {
    "plain": _plain,
    "awq": _packed("awq"),
    "gptq": _packed("gptq"),
    "fp8": _eight_bits,
    "mxfp4": mxfp4_files.write,
    "gguf": _gguf(gguf_files.Kind.F32),
    "gguf in eight bits": _gguf(gguf_files.Kind.Q8_0),
    "gguf in four bits": _gguf(gguf_files.Kind.Q4_0),
}


def _load(place: Path, **options: Any) -> ModelAdapter:
    tokenizer: Any = object()
    return load_adapter(place, device="cpu", tokenizer=tokenizer, **options)[0]


def _logits(adapter: ModelAdapter) -> Tensor:
    with torch.no_grad():
        return adapter.forward(some_tokens(20), None, exact_attention(adapter.ropes))


def _check_comes_back(adapter: ModelAdapter, place: Path, **options: Any) -> None:
    """The same names, bits and logits."""
    with quiet():
        adapter.model.save_pretrained(place)
    again = _load(place, **options)
    own, found = (each.model.state_dict() for each in (adapter, again))
    assert own.keys() == found.keys()
    assert all(torch.equal(own[name], found[name]) for name in own)
    if not adapter.keeps_states:
        assert torch.equal(_logits(adapter), _logits(again))


def _check_is_refused(adapter: ModelAdapter, place: Path, why: str, mend: str) -> None:
    model: Any = adapter.model
    for verb in VERBS:
        with pytest.raises(InvalidRequest, match=why) as caught:
            getattr(model, verb)(place)
        assert caught.value.hint == f"load it with {mend}"
    assert not place.exists()


@pytest.mark.parametrize(
    ("form", "quantise"),
    [*((form, "auto") for form in FORMATS), *in_turns(FORMATS, "none", "fp16", "int4", "fp8")],
)
def test_of_every_format(tmp_path: Path, form: str, quantise: str) -> None:
    place = FORMATS[form](tmp_path / "it")
    try:
        adapter = _load(place, quantise=quantise)
    except InvalidRequest:
        assert quantise in ("int4", "fp8")  # bits that the file does not have
        return
    is_packed = quantise in ("int4", "fp8") or (form in ("awq", "gptq") and quantise == "auto")
    if is_packed:
        why, mend = "packed, in an order that no checkpoint has", 'quantise="none"'
        _check_is_refused(adapter, tmp_path / "out", why, mend)
    else:
        _check_comes_back(adapter, tmp_path / "out")
    fuse_modules(adapter, "on")
    mend = 'fuse="off"' + is_packed * ', quantise="none"'
    _check_is_refused(adapter, tmp_path / "fused", "inference only", mend)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_that_were_unpacked(tmp_path: Path, dtype: str) -> None:
    place = mxfp4_files.write(tmp_path / "it")
    _check_comes_back(_load(place, dtype=dtype), tmp_path / "out", dtype=dtype)


def test_experts_that_keep_their_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = mxfp4_files.write(tmp_path / "it")
    monkeypatch.setattr(loading, "keeps_mxfp4", lambda config, device, dtype: is_mxfp4(config))
    for options in ({}, {"weights": "dummy"}):
        adapter = _load(place, dtype="bfloat16", **options)
        _check_is_refused(adapter, tmp_path / "out", "packed", 'quantise="none"')


def test_random_weights(tmp_path: Path) -> None:
    place = FORMATS["plain"](tmp_path / "it")
    _check_comes_back(_load(place, weights="dummy"), tmp_path / "out")
    adapter = _load(place, weights="dummy", quantise="int4")
    _check_is_refused(adapter, tmp_path / "no", "packed", 'quantise="none"')


@pytest.mark.parametrize("name", WHOLE)
def test_what_an_adapter_takes_over_is_saved_as_it_came(tmp_path: Path, name: str) -> None:
    model: Any = ZOO[name]()
    with quiet():
        model.save_pretrained(tmp_path / "it")
    _check_comes_back(_load(tmp_path / "it"), tmp_path / "out")
    _check_comes_back(load_adapter(model)[0], tmp_path / "taken over")


@pytest.mark.parametrize("name", CONFIGS)
def test_hybrids(tmp_path: Path, name: str) -> None:
    with quiet():
        tiny_model(CONFIGS[name]).save_pretrained(tmp_path / "it")
    _check_comes_back(_load(tmp_path / "it"), tmp_path / "out")


@pytest.mark.parametrize("form", FORMATS)
def test_with_an_adapter(tmp_path: Path, form: str) -> None:
    """Its numbers are in the weights, and need no adapter when they come back."""
    place = FORMATS[form](tmp_path / "it")
    whole = _load(place, quantise="none")
    before = _logits(whole)
    add_lora(whole.model, 2, 4.0)
    for layer in lora_layers(whole.model).values():
        layer.lora_B.data.normal_(0, 0.1)
    save_lora(whole.model, tmp_path / "mine", base="it", dtype=torch.float32)
    adapter = _load(place, adapted=tmp_path / "mine")
    assert not torch.equal(_logits(adapter), before)
    _check_comes_back(adapter, tmp_path / "out")


def test_a_network_of_a_caller_that_was_packed(tmp_path: Path) -> None:
    model: Any = ZOO["llama"]()
    adapter, _ = load_adapter(model, quantise="int4")
    _check_is_refused(adapter, tmp_path / "out", "packed", 'quantise="none"')


def test_the_part_of_a_rank(tmp_path: Path) -> None:
    """It would load as a smaller network, with other answers."""
    place = tmp_path / "it"
    with quiet():
        ZOO["llama"]().save_pretrained(place)

    def one(collectives: Any) -> None:
        tokenizer: Any = object()
        with _LOADING:
            adapter, _ = load_adapter(
                place, tokenizer=tokenizer, device="cpu", collectives=collectives
            )
        _check_is_refused(adapter, tmp_path / "out", "one rank's part of a network", "ranks=1")

    Meeting(2).run(one)
