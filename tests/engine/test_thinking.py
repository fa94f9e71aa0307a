"""`thinking` of the settings reaches the prompts of a reasoning model."""

from __future__ import annotations

import pytest

from manyhands.engine.engine import Engine
from manyhands.errors import InvalidRequest
from manyhands.model.adapter import ModelAdapter
from tests.model.families_zoo import tiny_models
from tests.text.small_tokenizers import SILENCED, byte_level, harmony


@pytest.mark.parametrize(("said", "opens"), [("auto", True), ("on", True), ("off", False)])
def test_a_reasoning_model_thinks_unless_it_is_told_not_to(said: str, opens: bool) -> None:
    adapter = ModelAdapter(tiny_models()["qwen3"]())
    engine = Engine(adapter, byte_level(SILENCED), memory_tokens=64, thinking=said)
    assert engine.text.thinking is opens
    assert (engine.text.think_end in engine.text.chat_prompt("2 + 2?")) is not opens


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_an_effort_is_told_to_the_template(effort: str) -> None:
    adapter = ModelAdapter(tiny_models()["qwen3"]())
    engine = Engine(adapter, harmony(), memory_tokens=64, thinking=effort)
    text = engine.text
    assert text is not None
    assert text.thinking
    prompt = text.decode(text.chat_prompt("2 + 2?"), special=True)
    assert f"Reasoning: {effort}<|end|>" in prompt
    assert text.at_effort(effort) is text, "a request that asks for the same changes nothing"
    with pytest.raises(InvalidRequest, match=f"thinking is '{effort}', and the chat template"):
        Engine(adapter, byte_level(SILENCED), memory_tokens=64, thinking=effort)


def test_a_word_that_is_none() -> None:
    with pytest.raises(InvalidRequest, match="thinking is 'no'"):
        Engine(ModelAdapter(tiny_models()["qwen3"]()), memory_tokens=64, thinking="no")
