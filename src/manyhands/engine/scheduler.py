"""Many strategies in one forward pass (continuous batching).

Each live run waits for the tokens of one step. A pass gathers the rows of all of them, runs the model
once and hands every run its own tokens back. Runs know nothing of each other: what one of them is
sent is what it would be sent alone.

A run that reserves memory is admitted when its reservation fits beside those of the runs before it;
until then it waits, in order. One that could never fit is told so at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from manyhands.cache.pages import PagePool
from manyhands.cache.step import Row, Step
from manyhands.errors import ManyhandsError, OutOfMemory
from manyhands.strategies.base import Answer, Event, Reserve, Strategy


class Run:
    """One live strategy: the step it waits for, what it reported, how it ended."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.step: Step | None = None
        self.asked: Reserve | None = None  # waiting for this much memory
        self.reserved_pages = 0
        self.events: deque[Event] = deque()
        self.answer: Answer | None = None
        self.error: BaseException | None = None
        self.done = False

    def resume(self, tokens: tuple[int, ...] | None) -> None:
        """Send tokens in; take what comes out, up to the next step, reservation or end."""
        self._advance(lambda: self.strategy.send(tokens))

    def fail(self, error: ManyhandsError) -> None:
        """Throw an error in; the strategy may handle it and go on."""
        self._advance(lambda: self.strategy.throw(error))

    def cancel(self) -> None:
        """End the run; its blocks are freed."""
        self.done = True
        self.step = self.asked = None
        self.strategy.close()

    def result(self) -> Answer:
        """The answer of a run that is done; raises what the strategy raised."""
        assert self.done, "the run has not ended"
        if self.error is not None:
            raise self.error
        assert self.answer is not None, "the run was cancelled"
        return self.answer

    def _advance(self, move: Callable[[], Step | Reserve | Event]) -> None:
        self.step = None
        try:
            asked = move()
            while isinstance(asked, Event):
                self.events.append(asked)
                asked = self.strategy.send(None)
        except StopIteration as end:
            self.answer, self.done = end.value, True
        except ManyhandsError as error:
            self.error, self.done = error, True
        else:
            if isinstance(asked, Reserve):
                self.asked = asked
            elif isinstance(asked, Step):
                self.step = asked
            else:
                kind = type(asked).__name__
                self.fail(ManyhandsError(f"a strategy yielded a {kind}; expected Step, Reserve or Event"))


class Scheduler:
    """Drives runs. `predict` runs the model on a step and returns one token per row."""

    def __init__(
        self,
        predict: Callable[[Step], tuple[int, ...]],
        pool: PagePool,
        max_tokens_per_pass: int,
    ) -> None:
        self.predict = predict
        self.pool = pool
        self.max_tokens_per_pass = max_tokens_per_pass
        self.runs: deque[Run] = deque()

    def submit(self, strategy: Strategy) -> Run:
        """Begin a strategy; it takes part from the next pass on."""
        run = Run(strategy)
        self.runs.append(run)
        run.resume(None)
        return run

    def step(self) -> bool:
        """One forward pass for everybody who waits for one; False when nobody is left."""
        self._admit()
        ready = self._gather()
        if ready:
            self._answer(ready)
        self._sweep()
        return bool(self.runs)

    def cancel(self, run: Run) -> None:
        """End a run before its time; nobody else's tokens change."""
        run.cancel()
        self._sweep()

    def _gather(self) -> list[Run]:
        """Runs with a step, up to the size of a pass; who had to wait comes first the next time."""
        ready: list[Run] = []
        num_tokens = 0
        for run in self.runs:
            if run.step is None:
                continue
            num_tokens += sum(len(row.feed) for row in run.step.rows)
            if ready and num_tokens > self.max_tokens_per_pass:
                break
            ready.append(run)
        if len(ready) < len(self.runs):
            self.runs = deque([run for run in self.runs if run not in ready] + ready)
        return ready

    def _answer(self, ready: Sequence[Run]) -> None:
        steps = [run.step for run in ready if run.step is not None]
        rows: list[Row] = [row for step in steps for row in step.rows]
        try:
            tokens = self.predict(Step(rows))
        except ManyhandsError as error:
            if len(ready) == 1:
                ready[0].fail(error)
            else:  # find out whose it is; nothing has changed yet
                for run in ready:
                    self._answer([run])
            return
        start = 0
        for run, step in zip(ready, steps, strict=True):
            stop = start + len(step.rows)
            run.resume(tokens[start:stop])
            start = stop

    def _admit(self) -> None:
        """Let runs in that wait for memory, in order, while their reservations fit."""
        taken = sum(run.reserved_pages for run in self.runs)
        for run in self.runs:
            if run.asked is None:
                continue
            pages = run.asked.num_tokens // self.pool.page_size + run.asked.num_blocks
            if pages > self.pool.num_pages:
                asked, run.asked = run.asked, None
                run.fail(_never_fits(asked, self.pool))
            elif taken - run.reserved_pages + pages <= self.pool.num_pages:
                taken += pages - run.reserved_pages
                run.reserved_pages, run.asked = pages, None
                run.resume(None)
            else:
                break

    def _sweep(self) -> None:
        self.runs = deque(run for run in self.runs if not run.done)


def _never_fits(asked: Reserve, pool: PagePool) -> OutOfMemory:
    return OutOfMemory(
        f"the run may need {asked.num_tokens} tokens in {asked.num_blocks} blocks, "
        f"and the memory holds {pool.num_slots} tokens in {pool.num_pages} pages",
        hint="Lower the budget or the number of workers, or give the engine more memory_tokens.",
    )
