"""Preemption: runs are admitted although memory might not suffice for all, and some leave for a while.

What a run reserves is an upper bound, and most runs end long before they reach it. So runs are admitted
until the bounds of all of them come to `overcommit` times the memory. The first of them, whose bounds
fit together and leave some room, are certain to end undisturbed. The others are preemptible:

    oldest                                                                             youngest
    | certain: up to 1 / overcommit of the memory | preemptible: up to overcommit times it | waiting

When a pass does not fit, the youngest preemptible run is preempted: its pages are freed, its blocks keep
their tokens. When there is room, the oldest preempted run comes back: one replay of what it was fed
makes its keys again (`engine/rebuild.py`), and its strategy, which has not noticed, is sent the next
tokens. Prefixes that it shares with others stay in memory meanwhile.

No run waits for ever. The oldest run is certain; while a run is preempted no new one is admitted; and
what any run has reserved always fits beside the prefixes in use, if all preemptible runs leave. A run
that reserves nothing counts as though it might need all there is. Where keys are in eight bits a run that
has reserved stays, so there all others are preemptible, the oldest too while one that has reserved is there.

Sums over runs are kept in two ledgers, so that no question here walks over all runs. An interrupt may leave
them half changed; `recount` makes them anew from four facts, each of which changes in one store: the state
of a run, its age, its past (a preemptible run has one) and what it reserved.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain, count

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.engine.past import Past
from manyhands.engine.run import Queues, Run, RunState
from manyhands.errors import InvalidRequest, ManyhandsError, OutOfMemory, RanksFailed

Rebuild = Callable[[Past, Collection[Block]], None]
# A row that writes leaves a state in each pass, and another one where the pass behind it is begun ahead; a run that comes feeds a
# prompt, perhaps in two parts, and then writes.
_STATES_OF_A_ROW, _STATES_OF_A_RUN = 2, 4
_MARGIN = 16  # a run comes back if a 16th of the memory stays free: else it left in the next pass


class Preemption:
    """Which runs are certain and which preemptible; who leaves and who comes back.

    `rebuild` writes keys again; without it no run is preemptible. `reserved_stay`: what it writes is not the same to the bit,
    so runs that have reserved are not preempted, and those that reserve nothing leave in their place, the oldest too.
    """

    def __init__(
        self,
        pool: PagePool,
        rebuild: Rebuild | None,
        overcommit: float,
        queues: Queues,
        *,
        reserved_stay: bool = False,
        is_fetching: Callable[[], bool] = lambda: False,
    ) -> None:
        if not overcommit >= 1:
            raise InvalidRequest(
                f"overcommit is {overcommit}; expected 1 (only what is certain to fit) or more"
            )
        self.pool = pool
        self.rebuild = rebuild
        self._reserved_stay = reserved_stay
        self._is_fetching = is_fetching  # see `Scheduler`
        self.overcommit = overcommit if rebuild is not None else 1.0
        self._running = queues[RunState.RUNNING]
        self._preempted = queues[RunState.PREEMPTED]
        self._ages = count()
        self.num_preemptions = 0  # of all runs
        # The pages that the oldest run outside needed, and those that there were, when there was no room for it.
        self._no_room: tuple[int, int] | None = None
        self.recount(())

    def recount(self, runs: Iterable[Run]) -> None:
        """Make the ledgers anew. `runs` have not ended; one without an age is not admitted yet."""
        self._certain = _Ledger(self.pool.num_pages)
        self._preemptible = _Ledger(self.pool.num_pages)
        self._inside = _ByAge()  # preemptible, and in memory
        self._outside = _ByAge()  # preempted
        for run in runs:
            if run.age is not None:
                self._enter(run)

    def _enter(self, run: Run) -> None:
        if not run.is_preemptible:
            self._certain.add(run)
            return
        self._preemptible.add(run)
        (self._outside if run.state is RunState.PREEMPTED else self._inside).add(run)

    @property
    def num_pages_promised(self) -> int:
        """Pages that are reserved, or hold prefixes in use."""
        reserved = self._certain.num_reserved + self._preemptible.num_reserved
        return reserved + self.pool.num_pages_in_use_by_keepers

    def may_have(self, run: Run, pages: int, shared: int) -> bool:
        """Whether `run` may be promised so many pages, `shared` of them in the prefix tree."""
        if run.age is None and (self._outside or not self._may_have_states()):
            return False
        size, kept = self.pool.num_pages, self.pool.num_pages_in_use_by_keepers
        promised = self.num_pages_promised + pages
        promised -= run.reserved_pages if run.age is not None else 0
        if promised <= size:
            return True
        if run.age is not None and not run.is_preemptible:
            return False  # it was certain, and what it was fed is not written down
        most = max(self._certain.num_reserved, self._preemptible.largest_besides(run))
        return (
            promised <= self.overcommit * size
            and pages + kept <= size
            and most + shared + kept <= size
        )

    def _may_have_states(self) -> bool:
        """Whether one more run finds states beside those that are there, as far as their steps tell.

        Runs may come to ask for more; then the youngest leave. A crowd in which each holds no more than its prompt could not go on.
        """
        states, num_admitted = self.pool.states, self._certain.num_runs + self._preemptible.num_runs
        if states is None or not num_admitted:
            return True
        steps = [(run, run.step) for run in self._running if run.step is not None]
        num_rows = sum(len(step.rows) for _, step in steps)
        # Beside those that have a step, which need not be admitted yet, admitted ones wait for others and then feed a prompt.
        num_new = 1 + num_admitted - sum(run.age is not None for run, _ in steps)
        return states.could_have(_STATES_OF_A_ROW * num_rows + _STATES_OF_A_RUN * num_new)

    def admit(self, run: Run) -> None:
        """Number a run that takes part from now on, and follow it if it is not certain."""
        is_first = not self._certain.num_runs + self._preemptible.num_runs
        taken = self._certain.bound + self._preemptible.bound + self._certain.bound_of(run)
        stays = not self._preemptible.num_runs and (is_first or self._is_certain(taken))
        if self._reserved_stay:
            stays = bool(run.reserved_pages)
        run.past = None if self.rebuild is None or stays else Past()
        run.age = next(self._ages)  # behind the past: a run with an age takes part
        self._enter(run)

    def reserve(self, run: Run, pages: int) -> None:
        """Promise a run so many pages, in place of what it was promised before."""
        ledger = self._preemptible if run.is_preemptible else self._certain
        if run.age is not None:
            ledger.remove(run)
        run.reserved_pages = pages
        if run.age is not None:
            ledger.add(run)

    def forget(self, run: Run) -> None:
        """Take a run that has ended out of the accounts."""
        if run.age is None:
            return
        was_preemptible = self._inside.discard(run) or self._outside.discard(run)
        (self._preemptible if was_preemptible else self._certain).remove(run)

    def promote(self) -> None:
        """Some have ended: the oldest preemptible runs may be certain now, and are followed no more."""
        taken = self._certain.bound
        while (run := self._inside.oldest) is not None:
            taken += self._certain.bound_of(run)
            if self._certain.num_runs and not self._is_certain(taken):
                return
            if self._reserved_stay and not run.reserved_pages:
                return  # one that reserves may come, and need its pages
            if self._outside.oldest is not None and _age(self._outside.oldest) < _age(run):
                return  # an older one that is preempted comes first
            self._inside.discard(run)
            self._preemptible.remove(run)
            self._certain.add(run)
            run.past = None

    def preempt(self) -> bool:
        """Preempt the youngest run that can come back; False if there is none."""
        readers = self._readers()
        # One run in memory stays: a certain one, one that has reserved and so cannot leave, or the oldest.
        another_stays = self._certain.num_runs > 0
        if self._reserved_stay:
            another_stays |= self._preemptible.num_reserved > 0
        for run in self._inside.youngest_first():
            if run is self._inside.oldest and not another_stays:
                break
            if self._reserved_stay and run.reserved_pages:
                continue
            if self._preempt(run, readers):
                return True
        return False

    def bring_back(self) -> None:
        """Let preempted runs return, the oldest first, while there is room for them.

        What is kept for later goes only for a run that comes back, and as much as it needs.
        """
        if not self._outside:
            return
        for run in self._outside.oldest_first():
            is_quiet = not self._running and not self._is_fetching()
            margin = 0 if is_quiet else self.pool.num_pages // _MARGIN
            need = self._num_pages_to_return(run)
            if self._has_pages(need + margin, is_quiet=is_quiet) and self._has_states(run):
                self._return(run)
            elif is_quiet:
                run.fail_step(_stays_out(need, self.pool), self.pool)
            else:
                break
        self.promote()

    def _is_certain(self, bound: int) -> bool:
        """Whether runs whose bounds come to so many pages may be sure of them.

        Not all of the memory is promised that firmly: preemptible runs bring prefixes, which stay. Of states no run says
        how many it needs, so where there are any none is sure of them.
        """
        if self.pool.states is not None:
            return False
        taken = bound + self.pool.num_pages_in_use_by_keepers
        return taken * self.overcommit <= self.pool.num_pages

    def _readers(self) -> Mapping[Block, Run | None]:
        """For each block that is about to be read the run that does; None where several do."""
        readers: dict[Block, Run | None] = {}
        for run in chain(self._running, self._preempted):
            for row in run.step.rows if run.step is not None else ():
                for block in row.view.blocks:
                    readers[block] = run if readers.get(block, run) is run else None
        return readers

    def _preempt(self, run: Run, readers: Mapping[Block, Run | None]) -> bool:
        """Free the pages of a run; False if it could not come back."""
        assert run.past is not None, "only a preemptible run is preempted"
        blocks = run.past.ours(self.pool, lambda block: readers.get(block, run) is not run)
        if blocks is None:
            return False
        self.pool.evict(blocks, run.strips)
        self.num_preemptions += bool(blocks)
        self._inside.discard(run)
        self._outside.add(run)
        run.enter(RunState.PREEMPTED)
        return True

    def _has_pages(self, num_pages: int, *, is_quiet: bool) -> bool:
        """Whether so many pages could be had. They are not looked for while there are no more than when they were not found."""
        there = self.pool.num_free_pages + sum(each.num_pages_idle for each in self.pool.keepers)
        if self._no_room is not None and not is_quiet:
            needed, were_there = self._no_room
            if num_pages >= needed and there <= were_there:
                return False
        found = self.pool.could_have(num_pages)
        self._no_room = None if found else (num_pages, there)
        return found

    def _has_states(self, run: Run) -> bool:
        """Whether there are slots for the states of a run that comes back, and for the next pass with it."""
        if self.pool.states is None:
            return True
        assert run.past is not None, "only a preemptible run was preempted"
        evicted = self._evicted(run)
        num_blocks = sum(block.num_tokens > 0 for block in evicted)
        num_blocks += sum(
            run.lengths.get(block, 0) > 0 for block in evicted
        )  # see `past.before_step`
        steps = [each.step for each in (*self._running, run)]
        num_rows = sum(len(step.rows) for step in steps if step is not None)
        return self.pool.states.make_room(num_blocks + num_rows)

    def _evicted(self, run: Run) -> list[Block]:
        """The blocks of a preempted run that have lost their pages."""
        assert run.past is not None, "only a preemptible run was preempted"
        strips = set(run.strips)
        return [b for b in run.past.blocks().values() if self.pool.place(b).strip in strips]

    def _num_pages_to_return(self, run: Run) -> int:
        growth = dict.fromkeys(run.strips, 0)
        for row in run.step.rows if run.step is not None else ():
            growth[self.pool.place(row.view.own).strip] = len(row.feed)
        return self.pool.num_pages_to_add(growth)

    def _return(self, run: Run) -> None:
        """Give a run its pages and make its keys again; if that fails, it is where it was."""
        assert run.past is not None, "only a preemptible run was preempted"
        assert self.rebuild is not None, "without it no run is preemptible"
        blocks = self._evicted(run)
        try:
            self.pool.bring_back(run.strips)
            if blocks:
                self.rebuild(run.past, blocks)
        except ManyhandsError as error:
            self.pool.evict(blocks, run.strips)
            if isinstance(error, RanksFailed):
                raise  # not one run's own error: no run can have another pass
            problem = error.with_traceback(None)  # its way through the engine would hold blocks
        except BaseException:
            self.pool.evict(blocks, run.strips)
            raise
        else:
            run.strips = []  # before it runs: a run with strips is preempted
            self._outside.discard(run)
            self._inside.add(run)
            run.enter_as_requested()
            return
        del blocks
        run.fail_step(problem, self.pool)


class _Ledger:
    """The bounds of some runs: the pages they were promised, and the most they may need."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_runs = 0
        self.num_reserved = 0  # pages
        self.bound = 0  # pages
        self._sizes: list[int] = []  # reserved by each run, in order

    def bound_of(self, run: Run) -> int:
        """Pages that a run may need: all there are if it has not said how many."""
        return run.reserved_pages or self.num_pages

    def add(self, run: Run) -> None:
        """Enter a run."""
        self._count(run, 1)
        insort(self._sizes, run.reserved_pages)

    def remove(self, run: Run) -> None:
        """Strike a run out; its reservation is what it was when it was entered."""
        self._count(run, -1)
        del self._sizes[bisect_left(self._sizes, run.reserved_pages)]

    def largest_besides(self, run: Run) -> int:
        """The most that one of the others has reserved. `run` may be of this ledger, or new."""
        is_here = run.age is not None and self._sizes[-1:] == [run.reserved_pages]
        return next(iter(self._sizes[-2:-1] if is_here else self._sizes[-1:]), 0)

    def _count(self, run: Run, sign: int) -> None:
        self.num_runs += sign
        self.num_reserved += sign * run.reserved_pages
        self.bound += sign * self.bound_of(run)


class _ByAge:
    """Admitted runs, in the order of their admission."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def oldest(self) -> Run | None:
        """The run that was admitted first."""
        return self._runs[0] if self._runs else None

    def oldest_first(self) -> Iterable[Run]:
        """The runs as they are now."""
        return tuple(self._runs)

    def youngest_first(self) -> Iterable[Run]:
        """The runs as they are now, from the end."""
        return tuple(reversed(self._runs))

    def add(self, run: Run) -> None:
        """Put a run where its age belongs."""
        insort(self._runs, run, key=_age)

    def discard(self, run: Run) -> bool:
        """Take a run out; False if it was not here."""
        at = bisect_left(self._runs, _age(run), key=_age)
        is_here = self._runs[at : at + 1] == [run]
        if is_here:
            del self._runs[at]
        return is_here


def _age(run: Run) -> int:
    assert run.age is not None, "only admitted runs have an age"
    return run.age


def _stays_out(need: int, pool: PagePool) -> OutOfMemory:
    if pool.states is not None and need <= pool.num_free_pages:
        return OutOfMemory(
            f"{pool.states.num_free} of {pool.states.num_slots} states are free, which a preempted run needs to come "
            "back, though no other run can go on",
            hint="Give the engine more states (--states), or run fewer strategies at once.",
        )
    return OutOfMemory(
        f"a preempted run needs {need} of {pool.num_pages} pages to come back, and "
        f"{pool.num_free_pages} are free though no other run can go on",
        hint="Give the engine more memory (memory_tokens), or run fewer strategies at once.",
    )
