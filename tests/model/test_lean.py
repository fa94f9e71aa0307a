"""The network of the engine's tests gives what Hugging Face's own code gives, to the bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from manyhands.model.adapter import ModelAdapter
from manyhands.model.self_test import exact_attention
from tests.engine.small import NUM_IDS, small_config
from tests.model.families_zoo import tiny_model
from tests.model.lean import make_lean

TOKENS = torch.arange(3, 40) * 7 % NUM_IDS
KEPT = [torch.tensor([2]), torch.tensor([5, 36])]


@pytest.fixture
def adapters() -> tuple[ModelAdapter, ModelAdapter]:
    own, lean = (ModelAdapter(tiny_model(small_config())) for _ in range(2))
    make_lean(lean.model)
    return own, lean


def logits_of(adapter: ModelAdapter, keep: torch.Tensor | None = None) -> torch.Tensor:
    return adapter.forward(TOKENS, keep, exact_attention(adapter.ropes))


@pytest.mark.parametrize("keep", [None, torch.tensor([4, 30])])
def test_logits(keep: torch.Tensor | None, adapters: tuple[ModelAdapter, ModelAdapter]) -> None:
    with torch.inference_mode():
        own, lean = (logits_of(adapter, keep) for adapter in adapters)
        parts = [
            torch.cat(list(adapter.forward_in_parts(TOKENS, KEPT, exact_attention(adapter.ropes))))
            for adapter in adapters
        ]
    assert torch.equal(own, lean)
    assert torch.equal(*parts)


def test_weights_are_read_at_each_pass(adapters: tuple[ModelAdapter, ModelAdapter]) -> None:
    own, lean = adapters
    with torch.inference_mode():
        before = logits_of(lean)
        weights: list[tuple[Any, Any]] = list(
            zip(own.model.parameters(), lean.model.parameters(), strict=True)
        )
        for mine, its in weights:
            was = its.clone()
            its.mul_(1.5)
            assert not torch.equal(logits_of(lean), before), "each is used"
            its.copy_(was)
            for parameter in (mine, its):
                parameter.add_(0.1)
            before = logits_of(lean)
        assert torch.equal(logits_of(own), before)


def test_a_copy_has_weights_of_its_own(adapters: tuple[ModelAdapter, ModelAdapter]) -> None:
    lean = adapters[1]
    copied = ModelAdapter(copy.deepcopy(lean.model))
    with torch.inference_mode():
        before = logits_of(copied)
        for parameter in lean.model.parameters():
            parameter.zero_()
        assert torch.equal(logits_of(copied), before)
