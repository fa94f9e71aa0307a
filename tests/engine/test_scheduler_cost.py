"""The cost of a pass for the scheduler: its own rows, however many runs wait, are preempted or come later.

Work is counted in calls of functions, Python's and C's. A search through a list makes no call, so runs
are compared by a function here, which is one: what looks for a run among others is seen.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import filling
from manyhands.engine.filling import Filling
from manyhands.engine.run import Run, RunState
from manyhands.engine.scheduler import Scheduler
from manyhands.errors import OutOfMemory
from manyhands.strategies.base import Answer, Reserve, Strategy

FEW, MANY = 20, 200


@pytest.fixture(autouse=True)
def _comparisons_are_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(Run, "__eq__", lambda one, other: one is other)
        patch.setattr(Run, "__hash__", object.__hash__)
        yield


def decoding(reserve: Reserve | None = None) -> Strategy:
    """One row, a token a pass, without end."""

    def strategy() -> Generator[Any, Any, Answer]:
        if reserve is not None:
            yield reserve
        view, feed = View([Block()]), (1,)
        while True:
            feed = yield Step([Row(view, feed)])

    return strategy()


def predict(step: Step) -> tuple[int, ...]:
    for row in step.rows:
        row.view.own.tokens.extend(row.feed)
    return (7,) * len(step.rows)


def calls(scheduler: Scheduler) -> Counter[str]:
    """Which functions are called how often by eight passes."""
    return calls_of(lambda: [scheduler.step() for _ in range(8)])


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """Which functions are called how often."""
    counted = Counter[str]()

    def count(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            counted[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            counted[arg.__qualname__] += 1

    gc.collect()
    gc.disable()  # blocks of other tests may be found at any time, and are accounted for then
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


def with_waiting(num_running: int, num_waiting: int) -> Scheduler:
    """Runs that fill the memory with their reservations, and others that wait for it."""
    scheduler = Scheduler(
        predict, PagePool(num_running), Filling(10_000), rebuild=lambda past, blocks: None
    )
    for _ in range(num_running + num_waiting):
        scheduler.submit(decoding(Reserve(0, 1)))
    scheduler.step()
    states = Counter(run.state for run in scheduler.runs)
    assert (states[RunState.RUNNING], states[RunState.WAITING]) == (num_running, num_waiting)
    return scheduler


def with_crowd(num_running: int, overcommit: float = 1.0) -> Scheduler:
    """Runs of which 8 take part in a pass. With `overcommit` most are preemptible."""
    rebuild = (lambda past, blocks: None) if overcommit > 1 else None
    pool = PagePool(1000)
    scheduler = Scheduler(predict, pool, Filling(8), rebuild=rebuild, overcommit=overcommit)
    for _ in range(num_running):
        scheduler.submit(decoding(Reserve(0, 4)))
    for _ in range(num_running):
        scheduler.step()  # all have begun
    return scheduler


def with_preempted(num_preempted: int) -> Scheduler:
    """Eight that run, and others that have been preempted, for which there is no room."""
    pool = PagePool(1000)
    scheduler = Scheduler(
        predict, pool, Filling(10_000), rebuild=lambda past, blocks: None, overcommit=4
    )
    for _ in range(8 + num_preempted):
        scheduler.submit(decoding())
    scheduler.step()
    pool.reserve([(block := Block(), 16 * 995)])
    for _ in range(num_preempted):
        assert scheduler.preemption.preempt()
    scheduler.step()
    assert Counter(run.state for run in scheduler.runs)[RunState.PREEMPTED] == num_preempted
    vars(scheduler)["filler"] = block  # its pages are taken as long as it lives
    return scheduler


def reading(size: int) -> Strategy:
    """A prompt, and a row behind it that writes without end."""

    def strategy() -> Generator[Any, Any, Answer]:
        view, feed = View([Block()]), (1,) * size
        while True:
            feed = yield Step([Row(view, feed)])

    return strategy()


def with_prompts(num_prompts: int, *, num_last: int = 0) -> Scheduler:
    """Rows that write, prompts of which none ends soon, and others that write and came behind these."""
    scheduler = Scheduler(predict, PagePool(1000), Filling(10_000, prompt_tokens=16))
    for _ in range(8):
        scheduler.submit(decoding())
    scheduler.step()
    for _ in range(filling._MOST_PROMPTS + num_prompts):
        scheduler.submit(reading(200))
    for _ in range(num_last):
        scheduler.submit(decoding())
    scheduler.step()
    return scheduler


def test_rows_that_write_behind_many_prompts_stand_in_every_pass() -> None:
    """Whether they came later, have been preempted, or go on where their prompt has failed."""
    scheduler = with_prompts(MANY, num_last=3)
    last, cancelled = scheduler.runs[-3:], scheduler.runs[MANY]
    seen: list[int] = []

    def strategy() -> Generator[Any, Any, Answer]:
        view = View([Block()])
        with suppress(OutOfMemory):
            yield Step([Row(view, (1,) * 200)])
        while True:
            seen.append((yield Step([Row(view, (1,))]))[0])

    failing = scheduler.submit(strategy())
    scheduler.step()
    assert not failing.num_passes
    failing.fail_step(OutOfMemory("no more"), scheduler.pool)
    scheduler.cancel(cancelled)
    for _ in range(5):
        before = [run.num_passes for run in last]
        scheduler.step()
        assert [run.num_passes for run in last] == [count + 1 for count in before]
    assert seen == [7] * 5


def test_every_prompt_of_many_has_its_turn() -> None:
    """The oldest first, and each goes on writing in every pass from then on."""
    scheduler = Scheduler(predict, PagePool(1000), Filling(10_000, prompt_tokens=64))
    runs = [scheduler.submit(reading(40)) for _ in range(2 * filling._MOST_PROMPTS)]
    runs.insert(0, scheduler.submit(decoding()))
    ends: list[Run] = []
    while len(ends) < len(runs):
        begun = [(run, run.num_passes) for run in ends]
        scheduler.step()
        assert all(run.num_passes == count + 1 for run, count in begun)
        ends += [run for run in runs if run.num_passes and run not in ends]
    assert ends == runs


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(with_prompts, id="prompts"),
        pytest.param(lambda n: with_waiting(8, n), id="waiting"),
        pytest.param(with_crowd, id="beyond the size of a pass"),
        pytest.param(lambda n: with_crowd(n, 1.5), id="preemptible, beyond the size of a pass"),
        pytest.param(with_preempted, id="preempted"),
    ],
)
def test_runs_that_take_no_part_cost_nothing(make: Callable[[int], Scheduler]) -> None:
    assert calls(make(MANY)) == calls(make(FEW))


@pytest.mark.parametrize("num_waiting", [0, 50])
def test_every_run_of_a_pass_costs_the_same(num_waiting: int) -> None:
    one, two, three = (calls(with_waiting(n, num_waiting)).total() for n in (50, 100, 150))
    assert three - two == two - one


@pytest.mark.parametrize("overcommit", [1.0, 1.5])
def test_every_end_costs_the_same(overcommit: float) -> None:
    """But for the search by age, which halves a list again and again."""

    def each(num_runs: int) -> float:
        scheduler = with_crowd(num_runs, overcommit)
        runs = scheduler.runs[::-1]
        return calls_of(lambda: [scheduler.cancel(run) for run in runs]).total() / num_runs

    assert each(160) < each(40) + 20


def test_a_run_that_comes_or_goes_between_two_passes_costs_the_others_nothing() -> None:
    """Nothing was interrupted, so no account is made anew."""

    def each(num_waiting: int) -> Counter[str]:
        scheduler = with_waiting(8, num_waiting)
        first = scheduler.runs[0]

        def work() -> None:
            scheduler.cancel(first)
            scheduler.step()
            scheduler.submit(decoding(Reserve(0, 1)))
            scheduler.step()

        return calls_of(work)

    assert each(MANY) == each(FEW)


# -- controls: mistakes that the count must see -----------------------------------------------------


class Searching(Scheduler):
    """Looks for every run among those that are ready."""

    def _gather(self) -> list[tuple[Run, Step]]:
        ready = super()._gather()
        runs = [run for run, _ in ready]
        assert all(run in runs or run.done for run in self.runs if run.step is not None)
        return ready


class Walking(Scheduler):
    """Looks at every run that waits."""

    def _admit(self) -> None:
        super()._admit()
        assert sum(run.reserved_pages for run in self._waiting) == 0


def test_control_a_search_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Scheduler", Searching)
    one, two, three = (calls(with_waiting(n, 0)).total() for n in (50, 100, 150))
    assert three - two > two - one + 8 * 50 * 49


def test_control_a_walk_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Scheduler", Walking)
    assert calls(with_waiting(8, MANY)).total() >= calls(with_waiting(8, FEW)).total() + 8 * 180
