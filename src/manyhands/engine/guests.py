"""Guests: runs that are let in although memory might not suffice for all, and how they leave.

What a run reserves is an upper bound, and most runs end long before they reach it. So runs are admitted
until the bounds of all of them come to `overcommit` times the memory. The first of them, whose bounds
fit together and leave some room, are certain to end undisturbed. The others are guests:

    oldest                                                                        youngest
    | certain: up to 1 / overcommit of the memory | guests: up to overcommit times it | waiting

When a pass does not fit, the youngest guest is set aside (preempted): its pages are freed, its blocks
keep their tokens. When there is room, the guest that has been there longest comes back: one replay of
what it was fed makes its keys again (`engine/rebuild.py`), and its strategy, which has not noticed, is
sent the next tokens. Prefixes that it shares with others stay in memory meanwhile.

Nobody waits for ever. The oldest run is certain; while somebody is away nobody new is let in; and what
any run has reserved always fits beside the prefixes in use, if all guests leave. A run that reserves
nothing counts as though it might need all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import count

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Step
from manyhands.engine.past import Past
from manyhands.engine.run import Run
from manyhands.errors import InvalidRequest, ManyhandsError, OutOfMemory
from manyhands.strategies.events import Preempted, Resumed

Rebuild = Callable[[Past, Collection[Block]], None]
_MARGIN = 16  # who comes back leaves a 16th of the memory free, so as not to leave in the next pass


class Guests:
    """Who is certain and who is a guest. `rebuild` writes keys again; without it there are no guests."""

    def __init__(self, pool: PagePool, rebuild: Rebuild | None, overcommit: float) -> None:
        if not overcommit >= 1:
            raise InvalidRequest(
                f"overcommit is {overcommit}; expected 1 (only what is certain to fit) or more"
            )
        self.pool = pool
        self.rebuild = rebuild
        self.overcommit = overcommit if rebuild is not None else 1.0
        self._numbers = count()

    def may_have(self, run: Run, pages: int, shared: int, runs: Iterable[Run]) -> bool:
        """Whether `run` may be promised so many pages, `shared` of them in the prefix tree."""
        others = [other for other in runs if other is not run]
        if run.number is None and any(other.is_away for other in others):
            return False
        size, kept = self.pool.num_pages, self.pool.num_pages_in_use_by_keepers
        promised = sum(other.reserved_pages for other in others)
        if promised + pages + kept <= size:
            return True
        if run.number is not None and run.past is None:
            return False  # it was certain, and nobody has written down what it was fed
        certain = sum(other.reserved_pages for other in others if other.past is None)
        most = max([certain, *(other.reserved_pages for other in others)])
        return (
            promised + pages + kept <= self.overcommit * size
            and pages + kept <= size
            and most + shared + kept <= size
        )

    def num_pages_promised(self, runs: Iterable[Run]) -> int:
        """Pages that are reserved, or hold prefixes in use."""
        return sum(run.reserved_pages for run in runs) + self.pool.num_pages_in_use_by_keepers

    def begin(self, run: Run, runs: Iterable[Run]) -> None:
        """Number a run that has just been let in, and follow it if it is a guest."""
        others = [other for other in runs if other.number is not None]
        run.number = next(self._numbers)
        if self.rebuild is None or not others:
            return
        has_guests = any(other.past is not None for other in others)
        taken = self.pool.num_pages_in_use_by_keepers
        taken += sum(self._bound(each) for each in (run, *others))
        if has_guests or not self._is_certain(taken):
            run.past = Past()

    def promote(self, runs: Iterable[Run]) -> None:
        """Some have ended: the oldest guests may be certain now, and need not be followed any more."""
        if all(run.past is None for run in runs):
            return
        taken = self.pool.num_pages_in_use_by_keepers
        for index, run in enumerate(_by_age(runs)):
            taken += self._bound(run)
            if index and not self._is_certain(taken):
                break
            if not run.is_away:
                run.past = None

    def preempt(self, runs: Iterable[Run]) -> bool:
        """Set the youngest guest aside; False if there is none that can come back."""
        inside = [run for run in _by_age(runs) if not run.is_away]
        for run in reversed(inside[1:]):
            if run.past is None:
                continue
            read = {block for other in runs if other is not run for block in _reads(other.step)}
            blocks = run.past.ours(self.pool, read)
            if blocks is not None:  # none at all: its first step did not fit, and waits
                run.away = self.pool.evict(blocks)
                run.num_preemptions += bool(blocks)
                run.happened(Preempted)
                return True
        return False

    def bring_back(self, runs: Iterable[Run]) -> None:
        """Let guests return, the oldest first, while there is room for them."""
        if all(run.away is None for run in runs):
            return
        for run in [run for run in _by_age(runs) if run.is_away]:
            is_quiet = all(other.step is None or other.is_away for other in runs)
            margin = 0 if is_quiet else self.pool.num_pages // _MARGIN
            need = self._num_pages_to_return(run)
            if self.pool.make_room(need + margin):
                self._return(run)
            elif is_quiet:
                run.fail(_stays_out(need, self.pool))
            else:
                return
        self.promote(runs)

    def num_pages_at_least(self, step: Step) -> int:
        """Pages that hold what the rows of a step write to, after it."""
        sizes = (row.view.own.num_tokens + len(row.feed) for row in step.rows)
        return sum(-(-size // self.pool.page_size) for size in sizes)

    def _is_certain(self, taken: int) -> bool:
        """Whether those whose bounds come to so many pages may be sure of them.

        Not all of the memory is promised that firmly: guests bring prefixes along, which stay.
        """
        return taken * self.overcommit <= self.pool.num_pages

    def _bound(self, run: Run) -> int:
        return run.reserved_pages or self.pool.num_pages

    def _num_pages_to_return(self, run: Run) -> int:
        growth = dict.fromkeys(run.away or (), 0)
        for row in run.step.rows if run.step is not None else ():
            growth[self.pool.place(row.view.own).strip] = len(row.feed)
        return self.pool.num_pages_to_add(growth)

    def _return(self, run: Run) -> None:
        """Give a run its pages and make its keys again; if that fails, it is where it was."""
        assert run.away is not None, "it is away"
        assert run.past is not None, "nobody leaves unfollowed"
        assert self.rebuild is not None, "nobody leaves who cannot come back"
        strips = set(run.away)
        blocks = [b for b in run.past.blocks().values() if self.pool.place(b).strip in strips]
        self.pool.bring_back(run.away)
        try:
            if blocks:
                self.rebuild(run.past, blocks)
        except ManyhandsError as error:
            run.away = self.pool.evict(blocks)
            problem = error.with_traceback(None)  # its way through the engine would hold blocks
        except BaseException:
            run.away = self.pool.evict(blocks)
            raise
        else:
            run.away = None
            run.happened(Resumed)
            return
        del blocks
        run.fail(problem)


def _by_age(runs: Iterable[Run]) -> list[Run]:
    """Those that have begun, the oldest first."""
    begun = [(run.number, run) for run in runs if run.number is not None and not run.done]
    return [run for _, run in sorted(begun, key=lambda each: each[0])]


def _reads(step: Step | None) -> Iterable[Block]:
    return (block for row in step.rows for block in row.view.blocks) if step is not None else ()


def _stays_out(need: int, pool: PagePool) -> OutOfMemory:
    return OutOfMemory(
        f"a run that was set aside needs {need} of {pool.num_pages} pages to come back, and "
        f"{pool.num_free_pages} are free though nobody else can go on",
        hint="Give the engine more memory (memory_tokens), or run fewer strategies at once.",
    )
