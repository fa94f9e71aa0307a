"""Many strategies in one forward pass (continuous batching).

Each live run waits for the tokens of one step. A pass gathers the rows of all of them, runs the model
once and hands every run its own tokens back. Runs know nothing of each other: what one of them is
sent is what it would be sent alone, and what goes wrong in one ends that one.

A run that reserves memory is admitted when its reservation fits beside those of the runs before it, or
a little beyond, as a guest (`engine/guests.py`): reservations are upper bounds, and most runs end before
they reach theirs. Until then it waits, in order. One that could never fit is told so at once. Who asks
again, for no more than it has, goes on before the next pass: it has only waited for others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from manyhands.cache.pages import PagePool
from manyhands.cache.step import Step
from manyhands.cache.usage import Usage
from manyhands.engine.guests import Guests, Rebuild
from manyhands.engine.run import Run
from manyhands.errors import ManyhandsError, OutOfMemory
from manyhands.strategies.base import Reserve, Strategy
from manyhands.strategies.events import Admitted

__all__ = ["Run", "Scheduler"]


class Scheduler:
    """Drives runs. `predict` runs the model on a step and returns one token per row.

    It must change nothing if it raises: the steps of the other runs are then asked for again.
    `usage_of_each` says what the steps of the newest pass have cost, for the runs' own accounts.
    `rebuild` and `overcommit`: see `engine/guests.py`. Without `rebuild` nobody is ever set aside.
    """

    def __init__(
        self,
        predict: Callable[[Step], tuple[int, ...]],
        pool: PagePool,
        max_tokens_per_pass: int,
        usage_of_each: Callable[[Sequence[Step]], Sequence[Usage]] | None = None,
        *,
        rebuild: Rebuild | None = None,
        overcommit: float = 1.0,
    ) -> None:
        self.predict = predict
        self.pool = pool
        self.max_tokens_per_pass = max_tokens_per_pass
        self.usage_of_each = usage_of_each
        self.guests = Guests(pool, rebuild, overcommit)
        self.runs: deque[Run] = deque()

    def submit(self, strategy: Strategy, *, lifecycle: bool = False) -> Run:
        """Begin a strategy; it takes part from the next pass on. `lifecycle`: see Run."""
        run = Run(strategy, lifecycle=lifecycle)
        self.runs.append(run)
        run.resume(None)
        return run

    def step(self) -> bool:
        """One forward pass for everybody who waits for one; False when nobody is left."""
        _tell(list(self.runs))  # those whom an interrupt kept from their tokens
        self._admit()
        self.guests.bring_back(self.runs)
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
            if run.step is None or run.is_away:
                continue
            if run.number is None:
                run.happened(Admitted)
                self.guests.begin(run, self.runs)
            num_tokens += sum(len(row.feed) for row in run.step.rows)
            if ready and num_tokens > self.max_tokens_per_pass:
                break
            ready.append(run)
        if len(ready) < len(self.runs):
            self.runs = deque([run for run in self.runs if run not in ready] + ready)
        return ready

    def _answer(self, ready: Sequence[Run]) -> None:
        """One pass for them. Where memory does not suffice, the youngest guest leaves; else it fails."""
        while ready:
            try:
                answers = self._pass(ready)
            except ManyhandsError as error:
                problem = error.with_traceback(None)  # its way through the engine would hold blocks
            else:
                for run, tokens in zip(ready, answers, strict=True):
                    run.step, run.untold = None, tokens
                _tell(ready)
                return
            if not isinstance(problem, OutOfMemory) or not self._make_room(ready):
                break
            ready = [run for run in ready if not run.is_away]
        if len(ready) == 1:
            ready[0].fail(problem)
        else:  # find out whose it is; nothing has changed yet
            for run in ready:
                self._answer([run] if not run.is_away else [])

    def _make_room(self, ready: Sequence[Run]) -> bool:
        """Set a run aside. No: nobody can be, or one of these asks for more than there is at all."""
        steps = [run.step for run in ready if run.step is not None]
        most = max(self.guests.num_pages_at_least(step) for step in steps)
        return most <= self.pool.num_pages and self.guests.preempt(self.runs)

    def _pass(self, ready: Sequence[Run]) -> list[tuple[int, ...]]:
        """Each run's own tokens, by one forward pass over the rows of all of them."""
        steps = [run.step for run in ready if run.step is not None]
        tokens = iter(self.predict(Step(row for step in steps for row in step.rows)))
        if self.usage_of_each is not None:
            for run, usage in zip(ready, self.usage_of_each(steps), strict=True):
                run.usage += usage
        for run in ready:
            if run.past is not None and run.step is not None:
                run.past.remember(run.step)
        return [tuple(islice(tokens, len(step.rows))) for step in steps]

    def _admit(self) -> None:
        """Let runs in that wait for memory, in order, while their reservations fit."""
        for run in [run for run in self.runs if run.asked is not None and run.reserved_pages]:
            if self._pages(run.asked) <= run.reserved_pages:
                self._grant(run)
        for run in self.runs:
            if run.asked is None:
                continue
            asked = run.asked.now()
            pages = self._pages(asked)
            if run.reserved_pages and pages <= run.reserved_pages:
                continue
            if pages > self.pool.num_pages:
                run.fail(_never_fits(asked, self.pool))
            elif self.guests.may_have(run, pages, self._shared_pages(asked), self.runs):
                self._grant(run)
            else:
                if all(other.step is None for other in self.runs):
                    run.fail(_deadlock(asked, self.guests.num_pages_promised(self.runs), self.pool))
                break

    def _grant(self, run: Run) -> None:
        """Give a run what it asks for. If it gives some of that back at once, it need not wait."""
        if run.number is None:
            run.happened(Admitted)
        while True:
            run.reserved_pages = self._pages(run.asked)
            run.resume(None)
            if run.asked is None or self._pages(run.asked) >= run.reserved_pages:
                break
        if run.number is None:
            self.guests.begin(run, self.runs)

    def _pages(self, asked: Reserve | None) -> int:
        assert asked is not None, "only a run that asks is granted something"
        now = asked.now()
        return now.num_tokens // self.pool.page_size + now.num_blocks

    def _shared_pages(self, asked: Reserve) -> int:
        """How many of them the prefix tree would answer for."""
        if not asked.num_shared_tokens:
            return 0
        return asked.num_shared_tokens // self.pool.page_size + asked.num_blocks

    def _sweep(self) -> None:
        runs = deque(run for run in self.runs if not run.done)
        if len(runs) < len(self.runs):
            self.guests.promote(runs)
        self.runs = runs


def _tell(runs: Sequence[Run]) -> None:
    """Send each the tokens that were chosen for it. What was fed is fed, so nobody asks for it again."""
    for run in runs:
        if run.untold is not None and not run.done:
            tokens, run.untold = run.untold, None
            run.resume(tokens)


def _never_fits(asked: Reserve, pool: PagePool) -> OutOfMemory:
    return OutOfMemory(
        f"the run may need {asked.num_tokens} tokens in {asked.num_blocks} blocks, "
        f"and the memory holds {pool.num_slots} tokens in {pool.num_pages} pages",
        hint="Lower the budget or the number of workers, or give the engine more memory_tokens.",
    )


def _deadlock(asked: Reserve, taken: int, pool: PagePool) -> OutOfMemory:
    return OutOfMemory(
        f"the run asks for {asked.num_tokens} tokens in {asked.num_blocks} blocks, {taken} of "
        f"{pool.num_pages} pages are promised already, and every other run waits for memory too",
        hint="Let a strategy reserve once, at its beginning, or give the engine more memory_tokens.",
    )
