"""Advice: small models without words of their own are told of; others are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from manyhands import Engine, bundled
from manyhands.cli.advice import SMALLEST_TEAM, too_small_a_team
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.prompts.load import Prompts, model_prompts
from tests.model.families_zoo import tiny_models

OWN = Prompts(team=replace(TeamPrompt(), rules="{names}: {problem}"))


def test_who_is_told() -> None:
    tiny, words = Engine.load(tiny_models()["qwen3"](), memory_tokens=64).facts, Prompts()
    assert too_small_a_team(tiny, words, 2, "hogwild") is None
    facts = replace(tiny, num_weights=135_000_000)
    assert "the model has 135 million weights" in str(too_small_a_team(facts, words, 2, "hogwild"))
    assert "docs/smollm2.md" in str(too_small_a_team(facts, words, 2, "hogwild"))
    assert too_small_a_team(facts, words, 1, "hogwild") is None
    assert too_small_a_team(facts, words, 2, "branches") is None
    assert too_small_a_team(facts, OWN, 2, "hogwild") is None
    assert too_small_a_team(facts, model_prompts(bundled.path()), 2, "hogwild") is None
    large = replace(facts, num_weights=SMALLEST_TEAM)
    assert too_small_a_team(large, words, 2, "hogwild") is None


@pytest.mark.parametrize("fuse", ["off", "on"])
@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe", "gemma2"])
def test_weights_are_counted_once_and_however_they_lie(name: str, fuse: Any) -> None:
    model = tiny_models()[name]()
    expected = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1)
    found = Engine.load(model, memory_tokens=64, fuse=fuse).facts.num_weights
    assert expected <= found < 1.03 * expected  # norms and biases are the rest
