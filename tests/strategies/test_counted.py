"""The course that all runs share: passes are counted, and rows that put prompts into memory are kept apart."""

from __future__ import annotations

import pytest

from manyhands.cache.block import Block
from manyhands.cache.logprobs import Logprobs, Tokens, prompt_logprobs_of
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.strategies.base import Answer, Reserve, Sent, Work
from manyhands.strategies.budgeted import BudgetedRun
from manyhands.strategies.counted import CountedRun
from manyhands.strategies.shared_prefix import shared_prefix
from tests.strategies.driver import small_text


class Twice(CountedRun):
    """One row for two passes; a prompt is fed with the first, and something is fed behind the work."""

    def begin(self) -> Work[None]:
        yield Reserve(8, 3)
        prompt = Row(View((Block("prompt"),)), (1, 2, 3))
        self.opening.append(prompt)

    def work(self) -> Work[None]:
        self.seen = []
        own = View((Block("own"),))
        for _ in range(2):
            chosen = yield from self.forward([Row(own, (4,))])
            self.seen.append((chosen, self.logprobs, self.opened))

    def end(self) -> Work[None]:
        yield from self.forward([Row(View((Block("end"),)), (5,))])

    def result(self) -> Answer:
        return Answer("done", forward_passes=self.passes)


def test_a_course_and_what_its_passes_bring() -> None:
    run = Twice()
    strategy = run.play()
    assert next(strategy) == Reserve(8, 3)
    told, of_prompt = Logprobs(-1.0), (Logprobs(-2.0), Logprobs(-3.0))
    answers = (Tokens((7, 8), {1: told}, {0: of_prompt}), (9,), (6,))
    sent: Sent = None
    for tokens, size in zip(answers, (2, 1, 1), strict=True):  # rows that open are fed once
        asked = strategy.send(sent)
        assert isinstance(asked, Step)
        assert len(asked.rows) == size
        sent = tokens
    with pytest.raises(StopIteration) as end:
        strategy.send(sent)
    assert end.value.value == Answer("done", forward_passes=3)
    (first, logprobs, opened), second = run.seen
    assert (first, list(logprobs)) == ((8,), [told])
    assert opened == (7,), "the row that fed the prompt comes first"
    assert prompt_logprobs_of(opened, 0) == of_prompt
    assert second == ((9,), (None,), ())


def test_completions_and_methods_run_the_same_course() -> None:
    strategy = shared_prefix([(1, 2)], small_text())
    assert strategy.gi_code is CountedRun.play.__code__  # type: ignore[attr-defined]
    assert BudgetedRun.play is CountedRun.play
