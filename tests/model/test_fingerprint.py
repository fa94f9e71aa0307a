"""Fingerprints: the same for the same weights, however they lie; another for any other weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from manyhands import Engine, bundled
from manyhands.cli.loading import traced_facts
from manyhands.model import fingerprint as remembered
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import dummy_model
from manyhands.model.fingerprint import fingerprint as fingerprint_of
from manyhands.model.fusion import fuse_modules
from manyhands.model.loading import load_adapter
from manyhands.model.quantised.quantise import KINDS, quantise_network
from manyhands.model.settings import ModelSettings
from tests.model.families_zoo import tiny_models

ZOO = tiny_models()
CPU = torch.device("cpu")


class _Weight(nn.Module):
    """One weight by itself."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)


def test_the_bundled_model() -> None:
    adapter, again = (load_adapter(bundled.path(), device="cpu")[0] for _ in range(2))
    expected = fingerprint_of(adapter.model)
    assert len(expected) == 32
    assert fingerprint_of(again.model) == expected
    assert fuse_modules(again, "on").products > 0
    assert fingerprint_of(again.model) == expected
    norm = next(p for name, p in again.model.named_parameters() if "norm" in name)
    with torch.no_grad():
        norm[0] = torch.nextafter(norm[0], norm[0] + 1)
    assert fingerprint_of(again.model) != expected


@pytest.mark.parametrize("name", ZOO)
def test_fused_modules_change_nothing(name: str) -> None:
    adapter = ModelAdapter(ZOO[name]())
    before = fingerprint_of(adapter.model)
    fuse_modules(adapter, "on")
    assert fingerprint_of(adapter.model) == before


@pytest.mark.parametrize("kind", KINDS)
def test_nor_do_they_with_quantised_layers(kind: str) -> None:
    model = ZOO["qwen3"]()
    ordinary = fingerprint_of(model)
    quantise_network(model, kind, CPU)
    adapter, before = ModelAdapter(model), fingerprint_of(model)
    assert before != ordinary
    assert fuse_modules(adapter, "on").products > 0
    assert fingerprint_of(model) == before


def test_random_weights_have_the_one_of_their_seed() -> None:
    config = ZOO["qwen3"]().config
    seeds = (0, 0, 1)
    found = [
        fingerprint_of(dummy_model(config, device=CPU, dtype=torch.bfloat16, seed=seed))
        for seed in seeds
    ]
    assert found[0] == found[1] != found[2]


def test_layers_that_change_places() -> None:
    model = ZOO["qwen3"]()
    other = copy.deepcopy(model)
    layers = other.model.layers
    first, second = layers[0].state_dict(), copy.deepcopy(layers[1].state_dict())
    layers[1].load_state_dict(first)
    layers[0].load_state_dict(second)
    assert fingerprint_of(other) != fingerprint_of(model)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8],
    ids=str,
)
def test_one_bit_in_any_dtype(dtype: torch.dtype) -> None:
    """Also behind the first chunk, in a weight that is not contiguous, and by the sign alone."""
    weight = torch.ones(1025, 1030).to(dtype)
    same = torch.ones(1030, 1025).to(dtype).t()
    expected = fingerprint_of(_Weight(weight))
    assert fingerprint_of(_Weight(same)) == expected
    weight.view(torch.uint8)[-1, -1] ^= 128
    assert fingerprint_of(_Weight(weight)) != expected


def _count_readings(patch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The networks whose weights are read from now on, once for each reading."""
    read: list[nn.Module] = []

    def sums_of(model: nn.Module) -> dict[int, Tensor]:
        read.append(model)
        return real(model)

    real = remembered.sums_of
    patch.setattr(remembered, "sums_of", sums_of)
    return read


@pytest.mark.parametrize("fuse", ["on", "off"])
def test_a_loaded_network_is_read_once(monkeypatch: pytest.MonkeyPatch, fuse: str) -> None:
    adapter = load_adapter(bundled.path(), device="cpu")[0]
    fuse_modules(adapter, fuse)
    expected = fingerprint_of(adapter.model)
    read = _count_readings(monkeypatch)
    assert [adapter.fingerprint() for _ in range(3)] == [expected] * 3
    assert read == [adapter.model]


def test_a_server_with_a_cache_folder_reads_its_weights_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder has the fingerprint in the names of its files, and each trace in its header."""
    read = _count_readings(monkeypatch)
    settings = ModelSettings("bundled", device="cpu", memory_tokens=1024, cache=str(tmp_path))
    engine = Engine.load(settings)
    assert engine.executor.sheets is not None
    facts = traced_facts(engine, engine.text, settings)
    assert len(read) == 1
    assert facts["fingerprint"] == fingerprint_of(read[0])


def _step(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _round(model: nn.Module) -> None:
    model.to(torch.bfloat16).to(torch.float32)


def _exchange(model: nn.Module) -> None:
    old = model.get_submodule("lm_head")
    assert isinstance(old, nn.Linear)
    model.register_module("lm_head", nn.Linear(old.in_features, old.out_features, bias=False))


@pytest.mark.parametrize("change", [_step, _round, _exchange])
def test_changed_weights_are_read_anew(change: Callable[[nn.Module], None]) -> None:
    adapter = ModelAdapter(ZOO["qwen3"]())
    before = adapter.fingerprint()
    change(adapter.model)
    assert adapter.fingerprint() == fingerprint_of(adapter.model) != before


def test_weights_without_a_count_of_writes_are_not_remembered() -> None:
    with torch.inference_mode():
        adapter = ModelAdapter(ZOO["qwen3"]())
        before = adapter.fingerprint()
        next(adapter.model.parameters()).add_(1)
        assert adapter.fingerprint() == fingerprint_of(adapter.model) != before


def test_sums_are_exact_where_they_do_not_fit() -> None:
    """The largest squares, so many that int64 wraps around: they are added modulo 2^64."""
    from manyhands.model.fingerprint import _sums

    lowest = torch.full((600_003,), -(2**31), dtype=torch.int32)
    count, square = 600_003, 2**62
    wrapped = (count * square + 2**63) % 2**64 - 2**63
    assert _sums(lowest).tolist() == [-(2**31) * count, wrapped]
