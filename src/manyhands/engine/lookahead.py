"""Lookahead of several runs: the next pass is planned and begun while the device makes this one.

Other engines call it overlap scheduling, or asynchronous scheduling.

Between two passes the host has much to do: it hands out tokens, strategies decide, rows come and go, a plan is made.
If the device waits meanwhile, a pass of many runs takes as long as both together. So once the tokens of a
pass are being chosen, and before the host has read them, the step that is *expected* next is planned and begun:

    a run that took part    its rows again, each fed the token that it is about to get; or the next part of its prompt
    a run that waits        the step that it asks for

Tokens stay on the device: the begun pass is fed from there. When they have arrived and the strategies have asked for
their next steps, every run whose step is the expected one *goes on* in the pass that was begun. For the others
(a worker ended its step, a run ended) the rows were fed in vain; they take part in the next pass, which
is planned at that moment, with their true steps. What was written for them in vain lies behind the ends of their
blocks, and is written again before it is read.

A run that is alone turns elsewhere with all its rows. While its passes follow one another token by token, the next
one needs no plan (`engine/graphs.py`). Behind a pass that was planned anew (a step has ended, and a fresh desk was
fed its first tokens) it does: that plan is made while the device works, and the head of its pass is begun, so a wrong
guess costs the first layers alone.

So a run gets the tokens that it would get alone, one pass later now and then. The pool knows nothing of
expected feeds: room for them is lent (`PagePool.lend`), and what was begun holds only while the pool's `generation`
stays. An interrupt anywhere leaves at worst a pass that nothing takes up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import ManyhandsError

KNOWN = -1  # in `Expected.sources`: the row's feed is known


def those_that_write(step: Step) -> Sequence[int]:
    """The numbers of its rows that go on with the tokens that are chosen for them.

    A row without a writer beside others that have one, such as a prompt in front of its workers, is fed once. Where none has one,
    all of them go on.
    """
    writers = [row.writer for row in step.rows]
    if None not in writers:
        return range(len(writers))
    return [n for n, name in enumerate(writers) if name is not None] or range(len(writers))


class Expected(NamedTuple):
    """The step that a run is expected to ask for next.

    Of each row, `sources` says which row of the pass before chooses the token that it is fed (its feed holds one
    token, of no meaning); KNOWN: its feed is what it says.
    """

    step: Step
    sources: tuple[int, ...]

    @classmethod
    def going_on(cls, step: Step, first: int) -> Expected:
        """The step of a run that took part as rows `first`, ... of the pass before, one token later."""
        rows = step.rows
        going_on = those_that_write(step)
        if len(going_on) < len(rows) or max([len(row.feed) for row in rows]) > 1:
            own = [rows[number] for number in going_on]
            step = Step([Row(row.view, (0,), writer=row.writer) for row in own])
        # Else it serves again, whatever it feeds.
        return cls(step, tuple([first + number for number in going_on]))

    @classmethod
    def asked(cls, step: Step) -> Expected:
        """A step that is asked for already, or part of one."""
        return cls(step, (KNOWN,) * len(step.rows))


class Begun(NamedTuple):
    """All that the executor needs to begin a pass: its plan, and of every token the row that chooses it, or KNOWN.

    If it is not `is_sure`, its head alone is begun: all of it is in vain where a single run turns elsewhere.
    """

    plan: Plan
    sources: Ints  # [T]
    is_sure: bool = True


Ahead = Callable[[], Begun | None]


# A row of the pass that was begun: its view; its feed; the row that chooses it, or KNOWN; how long its own block is when it is
# fed; its number among all rows; that of its run. A bare tuple, for one is made for each row of each pass.
_Row = tuple[weakref.ref[View], tuple[int, ...], int, int, int, int]


class Lookahead:
    """At most one pass that was begun, and what must be true for a step to take part in it."""

    def __init__(
        self,
        planner: Planner,
        pool: PagePool,
        *,
        check: Callable[[Step], None],
        move: Callable[[], None],
    ) -> None:
        """`check` raises for a step that cannot be fed; `move` makes the moves that the pool owes."""
        self._planner = planner
        self._pool = pool
        self._check = check
        self._move = move
        self._rows: dict[
            int, _Row
        ] = {}  # by the ids of their own blocks, which live as long as the views
        # By the same ids, what `fed_of` has found: the rows that they feed, and their numbers.
        self._given: dict[int, tuple[weakref.ref[Row], int]] = {}
        self._sizes: list[int] = []  # of each run: its rows
        self._plan: Plan | None = None
        self._generation = -1
        self._chosen: tuple[int, ...] | None = None  # by the pass before; None: not known yet

    @property
    def num_rows(self) -> int:
        """The rows of the pass that was begun; 0: none was."""
        return 0 if self._plan is None else len(self._rows)

    def forget(self) -> None:
        """Nothing is begun."""
        self._plan = None
        self._rows, self._given = {}, {}
        self._sizes = []
        self._chosen = None

    def plan(
        self, expected: Sequence[Expected], fed: Step, *, is_sure: bool = True
    ) -> Begun | None:
        """Plan the pass of these steps, behind the one that feeds `fed`; None if it cannot be.

        The pass counts as begun from then on. `is_sure`: see `Begun`.
        """
        self.forget()
        if not expected:
            return None
        pending = {row.view.own: len(row.feed) for row in fed.rows}
        steps = [each.step for each in expected]
        try:
            for each in expected:
                if KNOWN in each.sources:
                    self._check(each.step)
            together = Step(row for step in steps for row in step.rows)
            plan = self._planner.plan_ahead(together, pending)
        except ManyhandsError:  # a token is none, a view is full: the run's own step will say so
            return None
        if plan is None:
            return None
        self._move()
        rows = self._known_rows(expected, pending)
        chosen_by = np.array([*chain.from_iterable([each.sources for each in expected])])
        sources = chosen_by.repeat(plan.row_indptr[1:] - plan.row_indptr[:-1])
        self._rows, self._sizes = rows, [len(step.rows) for step in steps]
        self._generation = self._pool.generation
        self._plan = plan
        return Begun(plan, sources, is_sure)

    def _known_rows(
        self, expected: Sequence[Expected], pending: Mapping[Block, int]
    ) -> dict[int, _Row]:
        rows: dict[int, _Row] = {}
        reference, to_come = weakref.ref, pending.get
        for run, (step, sources) in enumerate(expected):
            for row, source in zip(step.rows, sources, strict=True):
                view = row.view
                own = view.own
                length = len(own.tokens) + to_come(own, 0)
                rows[id(own)] = reference(view), row.feed, source, length, len(rows), run
        return rows

    def was_chosen(self, tokens: tuple[int, ...], *, is_begun: bool) -> None:
        """The tokens of the pass before have arrived. `is_begun`: the begun pass is fed them."""
        if is_begun:
            self._chosen = tokens
        else:
            self.forget()

    def fed_of(self, step: Step) -> Step | None:
        """The part of a run's step that is fed by the pass that was begun: all of it, a part of it, or None."""
        if not self._holds:
            return None
        found: list[Row] = []
        indices: list[int] = []
        sizes: list[int] = []  # tokens of what is fed of each
        run = num_whole = 0
        for row in step.rows:
            if (known := self._rows.get(id(row.view.own))) is None:
                continue
            if not self._is_fed(row, known):
                return None
            _, fed, _, _, index, run = known
            num_whole += len(fed) == len(row.feed)
            found.append(row)
            indices.append(index)
            sizes.append(len(fed))
        # The rows of a run have a block of their own, which no other run feeds.
        if not found or len(found) != self._sizes[run]:
            return None  # a row that was expected is not asked for, and others have read what it was fed
        if num_whole == len(step.rows):
            part = step
        elif num_whole:
            return None
        else:
            beginnings = zip(found, sizes, strict=True)
            part = Step([Row(row.view, row.feed[:size]) for row, size in beginnings])
        for row, index in zip(part.rows, indices, strict=True):
            self._given[id(row.view.own)] = weakref.ref(row), index
        return part

    def _is_fed(self, row: Row, known: _Row) -> bool:
        """Whether the begun pass feeds what this row feeds, or the beginning of it."""
        of_view, fed, source, length, _, _ = known
        view = row.view
        if row.draft or row.targets or of_view() is not view or len(view.own.tokens) != length:
            return False
        if source == KNOWN:
            return row.feed[: len(fed)] == fed
        assert self._chosen is not None, "asked only once the tokens are there"
        return row.feed == (self._chosen[source],)

    def take(self, step: Step) -> tuple[Plan, list[int]] | None:
        """The plan of the begun pass and, of each row of `step`, its number there; then it is taken.

        `step` has rows that `fed_of` gave, of any number of runs. None if nothing was begun, if another row is among them, or
        if the pool has changed since.
        """
        plan = self._plan if self._holds else None
        found: list[int] = []
        for row in step.rows:
            given = self._given.get(id(row.view.own))
            if given is not None and given[0]() is row:
                found.append(given[1])
        self.forget()
        return None if plan is None or len(found) < len(step.rows) else (plan, found)

    @property
    def _holds(self) -> bool:
        """Whether a pass was begun whose tokens are known, and which lies where it was planned to lie."""
        is_known = self._plan is not None and self._chosen is not None
        return is_known and self._generation == self._pool.generation
