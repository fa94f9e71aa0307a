"""Answers of runs that are cut short: what was written up to then, and a reason that says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.server.chat import finish_reason
from manyhands.server.partial import CUT_SHORT, partial_answer
from manyhands.strategies.base import Answer
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, Prompt, shared_prefix
from tests.strategies.driver import Scripts, play, small_text
from tests.strategies.test_channels import FINAL, harmony_text


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer("7", answer="7", finish_reason="answer"), "stop"),
        (Answer("7", finish_reason="stopped"), "stop"),
        (Answer("7", answer="7", finish_reason="budget"), "stop"),  # the finisher has it
        (Answer("7 and th", answer="7", finish_reason="budget", is_cut=True), "length"),
        (Answer("7", answer="7", finish_reason="answer", is_cut=True), "length"),  # of 1 token
        (Answer("hm", finish_reason="budget"), "length"),
        (Answer("hm", finish_reason="context"), "length"),
        (
            Answer("so th", answer="7", finish_reason=CUT_SHORT),
            "length",
        ),  # in the midst of its reply
    ],
)
def test_why_an_answer_ends(answer: Answer, told: str) -> None:
    assert finish_reason(answer) == told


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("family", ["channels", "one mark"])
def test_samples_that_are_whole_are_told_as_the_whole_answer_tells_them(
    family: str, chat: bool
) -> None:
    """The token that ends a sample is none of its own, of its thinking neither."""
    text = harmony_text() if family == "channels" else small_text(thinking=True)
    close = f"<|end|>{FINAL}" if family == "channels" else "</think>"
    end = min(text.eos)
    said = [[*text.markup(f"Hm.{close}It is 7."), end], [*text.markup("Hm."), end], []]
    names = {f"prompt 0, sample {n}": list(one) for n, one in enumerate(said)}
    prompt = Prompt(text.chat_prompt("3+4?"), thinking=chat, chat=chat)
    settings = SharedSettings(max_tokens=40, samples=3)
    played = play(shared_prefix([prompt], text, settings), Scripts(text, **names))
    moments = [SimpleNamespace(events=played.events, num_passes=len(played.passes))]
    asked: Any = SimpleNamespace(spec=None, settings=settings, prompts=[prompt])
    handle: Any = SimpleNamespace(moments=lambda first: (moments, 0))
    found, whole = partial_answer(asked, handle, text), played.answer
    assert isinstance(found, Completions)
    assert isinstance(whole, Completions)
    assert found.tokens == whole.tokens
    for one, other in zip(found.completions, whole.completions, strict=True):
        assert (one.tokens, one.thinking_tokens) == (other.tokens, other.thinking_tokens)
        assert (one.text, one.thinking) == (other.text, other.thinking)
        assert one.finish_reason == other.finish_reason
