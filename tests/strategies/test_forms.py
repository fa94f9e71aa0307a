"""Completions that follow a grammar, and those that may not end yet: every row allows what it should."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completion, Completions, shared_prefix
from manyhands.text import Text
from manyhands.text.grammar import Grammar
from tests.strategies.driver import Played, SeenRow, play, small_text
from tests.text.test_grammar import SCHEMA, follows_schema, tokens_in

pytest.importorskip("llguidance", reason="the extra `structured` is not installed")

TEXT, THINKING = small_text(), small_text(thinking=True)
(END,) = TEXT.eos
FORM = Grammar("json_schema", json.dumps(SCHEMA))


class Scribble:
    """Draws any token that the row allows; what ends a turn rarely."""

    def __init__(self, text: Text, seed: int) -> None:
        self.text, self.rng = text, random.Random(seed)
        self.every = [
            token for token in range(len(text.tokenizer.get_vocab())) if not text.hides(token)
        ]

    def __call__(self, row: SeenRow) -> int:
        allowed = self.every if row.choice.mask is None else tokens_in(row.choice.mask)
        allowed = [token for token in allowed if token not in row.choice.forbidden]
        assert allowed, "something may always come"
        return self.rng.choice(allowed)


def run(
    text: Text, predict: Callable[[SeenRow], int], **settings: Any
) -> tuple[Played, Completion]:
    played = play(shared_prefix(["Hi"], text, SharedSettings(**settings)), predict)
    assert isinstance(played.answer, Completions)
    return played, played.answer.completions[0]


@pytest.mark.parametrize("seed", range(6))
def test_a_message_follows_its_grammar(seed: int) -> None:
    _, found = run(TEXT, Scribble(TEXT, seed), max_tokens=2000, grammar=FORM)
    assert found.finish_reason == "stop"
    assert follows_schema(found.text), found.text
    assert END not in found.tokens


def test_it_ends_with_the_grammar() -> None:
    """No pass is made for the token that would end the turn."""
    played, found = run(TEXT, Scribble(TEXT, 1), grammar=Grammar("choice", '["**"]'))
    assert (found.text, found.finish_reason, len(found.tokens)) == ("**", "stop", 1)
    assert len(played.rows("prompt 0, sample 0")) == 1
    played, found = run(TEXT, Scribble(TEXT, 1), grammar=Grammar("regex", "a+"), max_tokens=4)
    assert (found.text, found.finish_reason) in {("a" * n, "stop") for n in (1, 2, 3)} | {
        ("aaaa", "length")
    }


def test_a_thinking_is_free() -> None:
    """The grammar begins behind it."""
    assert THINKING.think_end is not None
    thoughts = [*THINKING.encode("hm ab"), THINKING.think_end]
    scribble = Scribble(THINKING, 3)

    def predict(row: SeenRow) -> int:
        if row.writer is None:
            return 0
        if thoughts:
            assert row.choice.mask is None
            return thoughts.pop(0)
        assert row.choice.mask is not None
        return scribble(row)

    told = Choice(logprobs=0)
    _, found = run(THINKING, predict, grammar=FORM, max_tokens=2000, choice=told)
    assert found.thinking == "hm ab"
    assert found.thinking_tokens == len(THINKING.encode("hm ab")) + 1
    assert follows_schema(found.text)
    assert found.logprobs is not None
    assert [token for token, _ in found.logprobs] == list(found.tokens)


def test_a_text_does_not_end_before_its_time() -> None:
    letter, stop = TEXT.encode("a")[0], "**"
    (mark,) = TEXT.encode(stop)
    written = [letter, mark, letter, mark, letter]

    def predict(row: SeenRow) -> int:
        if row.writer is None:
            return 0
        seen = len(row.context) - len(TEXT.chat_prompt("Hi"))
        assert (END in row.choice.forbidden) == (seen < 3)
        return written[seen]

    choice = Choice(min_tokens=3)
    _, found = run(TEXT, predict, choice=choice, stop=(stop,), max_tokens=9)
    assert (found.text, found.finish_reason) == ("a**a", "stop")
    assert found.tokens == tuple(written[:4])
    with pytest.raises(InvalidRequest, match="min_tokens is 3; expected at most max_tokens, 2"):
        SharedSettings(choice=choice, max_tokens=2)


def test_a_grammar_that_is_at_its_end_ends_before_that() -> None:
    for rules, expected in (("a{2}", "aa"), ("a*", "a" * 5)):
        grammar = Grammar("regex", rules)
        choice = Choice(min_tokens=5)
        _, found = run(TEXT, Scribble(TEXT, 1), grammar=grammar, choice=choice, max_tokens=50)
        assert found.text.startswith(expected)
