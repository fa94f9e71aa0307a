"""How passes are filled, for crowds of any kind: nothing is lost, no row stands still, and no pass is longer than it may be."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import filling
from manyhands.engine.filling import Filling
from manyhands.engine.run import Run
from manyhands.engine.scheduler import Scheduler
from manyhands.strategies.base import Answer, Strategy


@dataclass(frozen=True)
class Asked:
    """A run: passes before it comes, tokens of its prompt, rows that write behind it, tokens of each."""

    comes: int
    prompt: int
    rows: int
    written: int


@dataclass(frozen=True)
class Sizes:
    """Tokens that passes may have: the choices of `Filling`."""

    most: int
    beside: int
    alone: int

    def filling(self) -> Filling:
        return Filling(self.most, prompt_tokens=self.beside, prompt_tokens_alone=self.alone)


SIZES = st.builds(
    Sizes, most=st.integers(160, 240), beside=st.integers(4, 40), alone=st.integers(8, 80)
)
RUNS = st.lists(
    st.builds(
        Asked,
        comes=st.sampled_from([0, 0, 0, 1, 3, 9]),
        prompt=st.one_of(st.integers(1, 12), st.integers(20, 120), st.just(900)),
        rows=st.integers(1, 3),
        written=st.integers(1, 12),
    ),
    min_size=1,
    max_size=14,
)


class Crowd:
    """Runs that a scheduler drives, and the tokens that each was fed in each pass."""

    def __init__(self, sizes: Sizes, asked: list[Asked]) -> None:
        self.sizes, self.asked = sizes, sorted(asked, key=lambda each: each.comes)
        self.own: dict[Block, int] = {}  # the run of each block
        self.fed: list[dict[int, list[int]]] = []  # by pass and run: tokens of each row
        self.first: dict[int, int] = {}  # the pass in which a run's first tokens came
        self.scheduler = Scheduler(self._predict, PagePool(4000), sizes.filling())
        self.runs: list[Run] = []
        while len(self.runs) < len(self.asked) or any(not run.done for run in self.runs):
            for index in range(len(self.runs), len(self.asked)):
                if self.asked[index].comes <= len(self.fed):
                    self.runs.append(self.scheduler.submit(self._strategy(index)))
            before = len(self.fed)
            self.scheduler.step()
            if len(self.fed) == before:
                self.fed.append({})
            assert len(self.fed) < 3000, "it comes to its end"

    def _strategy(self, index: int) -> Strategy:
        def strategy() -> Generator[Any, Any, Answer]:
            asked = self.asked[index]
            prompt = Block("prompt")
            own = [Block("own") for _ in range(asked.rows)]
            self.own |= dict.fromkeys([prompt, *own], index)
            views = [View([prompt, block]) for block in own]
            feed = tuple(range(asked.prompt))
            rows = [Row(View([prompt]), feed[:-1])] if asked.prompt > 1 else []
            feeds = [feed[-1:]] * asked.rows
            for _ in range(asked.written):
                writing = [Row(view, tokens) for view, tokens in zip(views, feeds, strict=True)]
                chosen = yield Step([*rows, *writing])
                self.first.setdefault(index, len(self.fed) - 1)
                rows, feeds = [], [(token,) for token in chosen[-asked.rows :]]
            return Answer(str([*prompt.tokens, *(tuple(block.tokens) for block in own)]))

        return strategy()

    def _predict(self, step: Step) -> tuple[int, ...]:
        fed: dict[int, list[int]] = {}
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
            fed.setdefault(self.own[row.view.own], []).append(len(row.feed))
        self.fed.append(fed)
        return tuple(len(row.view.own.tokens) for row in step.rows)

    def is_very_long(self, index: int) -> bool:
        asked = self.asked[index]
        beside = min(self.sizes.beside, self.sizes.most)
        return asked.prompt - 1 + asked.rows > filling._VERY_LONG * beside

    def is_writing(self, index: int, number: int) -> bool:
        """Whether a run had its first tokens before this pass, and has not had all of them."""
        first = self.first.get(index)
        return first is not None and first < number and not self._has_ended_before(index, number)

    def _has_ended_before(self, index: int, number: int) -> bool:
        return all(index not in fed for fed in self.fed[number:])


@settings(deadline=None)
@given(SIZES, RUNS)
def test_every_run_is_fed_all_of_its_tokens_once(sizes: Sizes, asked: list[Asked]) -> None:
    crowd = Crowd(sizes, asked)
    for index, run in enumerate(crowd.runs):
        alone = Crowd(Sizes(10_000, 10_000, 10_000), [crowd.asked[index]])
        assert run.result() == alone.runs[0].result()


@settings(deadline=None)
@given(SIZES, RUNS)
def test_no_pass_is_longer_than_it_may_be(sizes: Sizes, asked: list[Asked]) -> None:
    crowd = Crowd(sizes, asked)
    beside = min(sizes.beside, sizes.most)
    least_part = -(-beside // filling._LEAST_PARTS)
    for number, fed in enumerate(crowd.fed):
        assert sum(map(sum, fed.values())) <= sizes.most
        writing = sum(sum(fed[run]) for run in fed if crowd.is_writing(run, number))
        others = sum(map(sum, fed.values())) - writing
        if not writing or not others:
            continue
        # Whatever stands beside it, a prompt goes on by the least part, and so does a very long one.
        most = max(beside, writing) + 2 * least_part
        # Rows of a step whose prompt ends come besides, and those that write and stand behind it in the queue.
        if ends := [crowd.asked[run].rows + 1 for run in fed if crowd.first[run] == number]:
            most += sum(ends) + writing
        assert writing + others <= most


@settings(deadline=None)
@given(SIZES, RUNS)
def test_rows_that_write_stand_in_every_pass(sizes: Sizes, asked: list[Asked]) -> None:
    """But where all of them, and prompts beside them, are more than a pass may have."""
    crowd = Crowd(sizes, asked)
    for number, fed in enumerate(crowd.fed):
        writing = [run for run in crowd.first if crowd.is_writing(run, number)]
        if sum(crowd.asked[run].rows for run in writing) + 2 * sizes.beside <= sizes.most:
            assert set(writing) <= set(fed)


@settings(deadline=None)
@given(SIZES, RUNS)
def test_prompts_have_their_first_tokens_in_the_order_in_which_they_came(
    sizes: Sizes, asked: list[Asked]
) -> None:
    """A very long one is passed by those behind it; it goes on in every pass all the same."""
    crowd = Crowd(sizes, asked)
    # One of two tokens feeds one of each row, as rows that write do.
    usual = [run for run, asked_of in enumerate(crowd.asked) if asked_of.prompt > 2]
    usual = [run for run in usual if not crowd.is_very_long(run)]
    firsts = [crowd.first[run] for run in usual]
    assert firsts == sorted(firsts)


@settings(deadline=None)
@given(SIZES, RUNS)
def test_a_very_long_prompt_that_waits_for_the_longest_goes_on_in_every_pass(
    sizes: Sizes, asked: list[Asked]
) -> None:
    crowd = Crowd(sizes, asked)
    for number, fed in enumerate(crowd.fed):
        waiting = [run for run, asked_of in enumerate(crowd.asked) if asked_of.comes < number]
        waiting = [run for run in waiting if crowd.first[run] >= number]
        if waiting and crowd.is_very_long(waiting[0]):
            assert waiting[0] in fed
