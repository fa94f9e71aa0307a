"""Fingerprints: the same for the same weights, however they lie; another for any other weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from manyhands import bundled
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import dummy_model
from manyhands.model.fingerprint import fingerprint
from manyhands.model.fusion import fuse_modules
from manyhands.model.loading import load_adapter
from manyhands.model.quantised.quantise import KINDS, quantise_network
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
    expected = fingerprint(adapter.model)
    assert len(expected) == 32
    assert fingerprint(again.model) == expected
    assert fuse_modules(again, "on").products > 0
    assert fingerprint(again.model) == expected
    norm = next(p for name, p in again.model.named_parameters() if "norm" in name)
    with torch.no_grad():
        norm[0] = torch.nextafter(norm[0], norm[0] + 1)
    assert fingerprint(again.model) != expected


@pytest.mark.parametrize("name", ZOO)
def test_fused_modules_change_nothing(name: str) -> None:
    adapter = ModelAdapter(ZOO[name]())
    before = fingerprint(adapter.model)
    fuse_modules(adapter, "on")
    assert fingerprint(adapter.model) == before


@pytest.mark.parametrize("kind", KINDS)
def test_nor_do_they_with_quantised_layers(kind: str) -> None:
    model = ZOO["qwen3"]()
    ordinary = fingerprint(model)
    quantise_network(model, kind, CPU)
    adapter, before = ModelAdapter(model), fingerprint(model)
    assert before != ordinary
    assert fuse_modules(adapter, "on").products > 0
    assert fingerprint(model) == before


def test_random_weights_have_the_one_of_their_seed() -> None:
    config = ZOO["qwen3"]().config
    seeds = (0, 0, 1)
    found = [
        fingerprint(dummy_model(config, device=CPU, dtype=torch.bfloat16, seed=seed))
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
    assert fingerprint(other) != fingerprint(model)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8],
    ids=str,
)
def test_one_bit_in_any_dtype(dtype: torch.dtype) -> None:
    """Also behind the first chunk, in a weight that is not contiguous, and by the sign alone."""
    weight = torch.ones(1025, 1030).to(dtype)
    same = torch.ones(1030, 1025).to(dtype).t()
    expected = fingerprint(_Weight(weight))
    assert fingerprint(_Weight(same)) == expected
    weight.view(torch.uint8)[-1, -1] ^= 128
    assert fingerprint(_Weight(weight)) != expected


def test_sums_are_exact_where_they_do_not_fit() -> None:
    """The largest squares, so many that int64 wraps around: they are added modulo 2^64."""
    from manyhands.model.fingerprint import _sums

    lowest = torch.full((600_003,), -(2**31), dtype=torch.int32)
    count, square = 600_003, 2**62
    wrapped = (count * square + 2**63) % 2**64 - 2**63
    assert _sums(lowest).tolist() == [-(2**31) * count, wrapped]
