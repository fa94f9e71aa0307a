"""Which recording serves a plan, and when a plan gets one of its own.

A recording serves what fits its capacity and is cut for its kernels (`engine/capacities.py`). Wide ones, made ahead of time
(`engine/recordings.py`), have room for most of what comes. A plan that wants other kernels, such as large tiles for a long history, or
that finds room in wide recordings with other kernels alone, gets a recording of its own when its capacity has been met again and again;
one that fits none, the second time, or, if a prompt is in it, much later.

Without wide recordings a capacity is recorded when it is asked for the second time, so that widths that come up once cost
nothing; or later, while a recording that is a little wider serves it.

The device waits while a plan is cut, so most plans are cut once, for the wide recording that is likely to be theirs (`PlanMatcher._wide_at_once`).
Whether another one would have suited them better is looked at now and then, while the device works (`PlanMatcher.look`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from manyhands.attention.prepared import Capacity
from manyhands.attention.work import Cutting, Stretches, Work, cut, power_of_two
from manyhands.cache.plan import Plan
from manyhands.engine import capacities
from manyhands.engine.capacities import (
    Wide,
    capacity_of,
    kind_ahead,
    kinds_instead,
    kinds_meant,
    sizes_of,
)
from manyhands.engine.graph import Graph
from manyhands.engine.recordings import Recordings

MOST_TOKENS = capacities.AHEAD  # of any recorded pass, ahead of time or for a plan
# Times that a capacity is asked for, until it gets a recording beside one that serves it: one that is a little
# wider, or a wide one that was made ahead.
_VERY_OFTEN = 32
# About so many of the last passes count: a capacity that crowds meet now and then would keep all runs waiting for a tenth
# of a second, and serve one pass in forty. Of few tokens those count that were looked at.
_COUNTED = 256
_MOST_SEEN = 1024  # capacities whose times are known; of more, those that were not asked for the longest are forgotten
# Where a wide recording serves small tiles alone, a plan is cut for it at once, and one of so many for itself too, or of
# so many passes that have followed it.
_LOOKED_AT = 8
_Kind = tuple[int, int, int]  # see `_kind`


class PlanMatcher:
    """Finds recordings for plans, and remembers what they have asked for."""

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self.backend = recordings.backend
        self.expanded = recordings.expanded
        # About how often, in the last passes; what was asked for last stands last.
        self._seen: Counter[Capacity] = Counter()
        self._num_passed = 0  # passes that count, since the counts were halved
        self._kinds: Counter[_Kind] = Counter()  # of plans that wide recordings serve
        # The wide recording for the newest plan of a kind that was looked at.
        self._meant_for: dict[_Kind, Wide] = {}
        self._kinds_with_own: set[_Kind] = set()
        self._kinds_due: set[_Kind] = set()  # the next plan of these may be recorded
        self.to_look_at: tuple[Plan, Stretches | None] | None = None  # while the device works
        # The capacity of the newest plan that was made anew, if its recording has other kernels than that wants; whether
        # passes that follow it are looked at, since a wide recording was taken for it at once; and their number.
        self._unserved: Capacity | None = None
        self._is_looked_at = False
        self._is_astray = False  # goes on by another recording than the one that is meant for it
        self._going_on = 0

    def forget(self) -> None:
        """All recordings were dropped: no plan that was put off is looked at."""
        self.to_look_at = self._unserved = None

    def recorded(self, plan: Plan) -> tuple[Graph, Work] | None:
        """A recording that serves this plan, and the plan cut for it; it may be made here. None: the plan is launched.

        Its own; or while its capacity is rare, one that is a little wider, or a wide one.
        """
        if (stretches := self._stretches_of(plan)) is None:
            return None
        is_due = bool(self._kinds_due) and _kind(plan) in self._kinds_due
        if not is_due and (found := self._wide_at_once(plan, stretches)) is not None:
            if not self._is_looked_at:
                self._pass_by(plan)
            return found
        self._kinds_due.discard(_kind(plan))
        work = cut(plan, self.backend.tiling, None, stretches)
        capacity = capacity_of(plan, work)
        self._note(plan, capacity)
        times = self._seen[capacity]
        if (found := self._serving(plan, work, capacity, stretches)) is not None:
            if not self._has_kernels_of(found[0], plan, work):
                self._unserved = capacity
            return found
        # A prompt comes once, and waits twice as long for its first token where its pass is recorded.
        drafted = 0 if plan.num_drafted is None else int(plan.num_drafted.sum())
        has_prompt = plan.num_tokens - drafted > plan.num_rows
        least = _VERY_OFTEN if has_prompt and self.recordings.ahead else 2
        if times < least or self.recordings.trouble is not None:
            return None
        if (graph := self.recordings.make(plan.page_size, capacity)) is None:
            return None
        self._kinds_with_own.add(_kind(plan))
        return graph, work

    def at_hand(self, plan: Plan) -> tuple[Graph, Work] | None:
        """The same for a guess at what comes next: one that is there already, and nothing is noted."""
        if (stretches := self._stretches_of(plan)) is None:
            return None
        if (found := self._wide_at_once(plan, stretches)) is not None:
            return found
        work = cut(plan, self.backend.tiling, None, stretches)
        return self._serving(plan, work, capacity_of(plan, work), stretches)

    def goes_on(self, plan: Plan, last: Plan) -> bool:
        """Whether a plan follows the last one by its recording.

        It does not where that has other kernels than the plan wants and has gone on for as long as a capacity must be met to
        get a recording of its own: rows that write side by side are laid out anew with every page alone. Where it is not known
        what the plan wants, one of so many that follow is looked at.
        """
        if self._is_astray or not _follows(plan, last):
            return False
        self._going_on += 1
        if self._is_looked_at and self._going_on % _LOOKED_AT == 0:
            self.to_look_at = plan, None
        if (capacity := self._unserved) is None:
            self._pass_by(plan)
            return True
        if self.recordings.trouble is not None or self._going_on < _VERY_OFTEN:
            return True  # it would ask for that capacity, so it makes none rarer
        self._unserved = None
        self._seen[capacity] = max(self._seen[capacity], _VERY_OFTEN)
        self._kinds_due.add(_kind(plan))
        return False

    def look(self, newest: Graph | None) -> None:
        """Look whether the plan that was put off, which a wide recording has served, wants one of its own.

        The `newest` pass goes by that recording, if by any.
        """
        put_off, self.to_look_at = self.to_look_at, None
        if put_off is None or self.recordings.trouble is not None:
            return
        plan, stretches = put_off
        work = cut(plan, self.backend.tiling, None, stretches)
        capacity = capacity_of(plan, work)
        self._note(plan, capacity)
        kind = _kind(plan)
        self._meant_for[kind] = kind_ahead(plan, work, self.backend.tiling)
        is_served_well = self._is_served_well(plan, work)
        # The next pass may have begun already, and by a recording of its own: nothing is said of that.
        if stretches is None and is_served_well and self._going_on:
            self._is_looked_at = False
            self._is_astray = newest is not None and self._goes_by_another(newest, plan, work)
        wants_own = not is_served_well and self._seen[capacity] >= _VERY_OFTEN
        if capacity in self.recordings.graphs or wants_own:
            self._kinds_due.add(kind)

    def _stretches_of(self, plan: Plan) -> Stretches | None:
        """Of a plan that is made anew; None if there can be no recording for it, now or in a moment."""
        self._unserved = None
        self._is_looked_at, self._is_astray, self._going_on = False, False, 0
        if self.expanded is not None and self.expanded.has_prompts(plan):
            return None
        if plan.states is not None and not plan.states.are_one_each:
            return None
        recordings = self.recordings
        if plan.num_tokens > MOST_TOKENS or (
            recordings.trouble is not None and not recordings.graphs
        ):
            return None
        return Stretches.of(plan, self.backend.tiling)

    def _wide_at_once(self, plan: Plan, stretches: Stretches) -> tuple[Graph, Work] | None:
        """The wide recording, for most plans of few tokens or small tiles: to look for their own, they would be cut twice."""
        kind = _kind(plan)
        if kind in self._kinds_with_own or not self.recordings.ahead:
            return None
        found = self._wide(plan, stretches, Wide.ENDED)
        is_looked_at = plan.num_tokens <= capacities.ALL_SMALL or found is not None
        if is_looked_at:
            self._kinds[kind] += 1
            if self._kinds[kind] % _LOOKED_AT == 0:
                self.to_look_at = plan, stretches
        elif plan.num_tokens > capacities.MOST_ALONE or not stretches.are_small(
            self.backend.tiling
        ):
            # One with large tiles would launch them for nothing where the plan wants none.
            return self._large_at_once(plan, stretches)
        found = found or self._wide(plan, stretches, *self._small_for(plan, stretches))
        self._is_looked_at = is_looked_at and found is not None
        return found

    def _large_at_once(self, plan: Plan, stretches: Stretches) -> tuple[Graph, Work] | None:
        """The wide recording with large tiles, where it has those that the plan wants: `_serving` would find the same one.

        So a crowd's plans are cut once each; cut for themselves they would be to no end.
        """
        kernels = stretches.large_tiles(self.backend.tiling)
        kinds = Wide.LARGE, Wide.AMPLE
        if not any(self._has_large(wide, *kernels) for wide in self._with_room(plan, *kinds)):
            return None
        found = self._wide(plan, stretches, *kinds)
        return found if found is not None and self._has_large(found[0], *kernels) else None

    def _small_for(self, plan: Plan, stretches: Stretches) -> Sequence[Wide]:
        """The kinds of recordings with small tiles for a plan, the best one first, where there are several.

        Of few tokens it is found once for all plans of a kind.
        """
        tiling = self.backend.tiling
        others = Wide.LONE, Wide.SEVERAL, Wide.TEAMS, Wide.LARGE_TEAMS
        if not any(True for _ in self._with_room(plan, *others)):
            return (Wide.SMALL,)
        if plan.num_tokens > capacities.ALL_SMALL:
            sizes = stretches.sizes(tiling)
            kind = capacities.kind_of_small(stretches.small_rows(tiling), *sizes, tiling)
            return tuple(dict.fromkeys((kind, Wide.SMALL)))
        if (of_plan := _kind(plan)) not in self._meant_for:
            self._meant_for[of_plan] = kind_ahead(plan, cut(plan, tiling, None, stretches), tiling)
        meant = self._meant_for[of_plan]
        return (Wide.SMALL,) if meant is Wide.SMALL else (meant, Wide.SEVERAL, Wide.SMALL)

    def _goes_by_another(self, newest: Graph, plan: Plan, work: Work) -> bool:
        """Whether the newest pass goes by a recording with other kernels than the wide one that is meant for its plan."""
        if self._has_kernels_of(newest, plan, work):
            return False
        tiling = self.backend.tiling
        kinds = kinds_meant(kind_ahead(plan, work, tiling))
        found = self._wide(plan, Stretches.of(plan, tiling), *kinds)
        return found is not None and found[0] is not newest

    def _note(self, plan: Plan, capacity: Capacity) -> None:
        """A plan asks for a capacity. Counts are halved now and then, so that older times count less; one that is due is kept."""
        if capacity in self.recordings.graphs:
            self._pass_by(plan)
            return
        if halvings := self._num_passed // _COUNTED:
            self._num_passed %= _COUNTED
            for known, times in self._seen.items():
                if known != capacity or times < _VERY_OFTEN:
                    self._seen[known] = max(1, times >> halvings)
        self._num_passed += 1
        self._seen[capacity] = self._seen.pop(capacity, 0) + 1
        if len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    def _pass_by(self, plan: Plan) -> None:
        """A pass asks for no capacity. Of many tokens it counts: what others ask for is as rare as it is among all passes."""
        self._num_passed += plan.num_tokens > capacities.ALL_SMALL

    def _serving(
        self, plan: Plan, work: Work, capacity: Capacity, stretches: Stretches
    ) -> tuple[Graph, Work] | None:
        """A recording that is there already and serves this plan, which was cut alone as `work`."""
        if (own := self.recordings.graphs.get(capacity)) is not None:
            return own, work
        kind, times = kind_ahead(plan, work, self.backend.tiling), self._seen[capacity]
        times = times if self.recordings.trouble is None else 0  # it can have none of its own
        if self._is_served_well(plan, work):
            if (found := self._wide(plan, stretches, *kinds_meant(kind))) is not None:
                return found
        elif times >= _VERY_OFTEN:
            return None  # it is to have its own
        if fitting := [
            graph for known, graph in self.recordings.graphs.items() if known.serves(capacity)
        ]:
            return min(fitting, key=lambda graph: graph.capacity.num_integers), work
        if (found := self._wide(plan, stretches, *kinds_meant(kind))) is not None:
            return found
        if times >= _VERY_OFTEN:
            return None  # it is to have its own
        return self._wide(plan, stretches, *kinds_instead(kind))

    def _is_served_well(self, plan: Plan, work: Work) -> bool:
        """Whether a wide recording has the kernels that a plan, cut alone as `work`, wants.

        What is padded then costs next to nothing, and a recording of its own would keep all runs waiting for some hundredths of a
        second. Where runs come and go there is a capacity for every few passes.
        """
        meant = kind_ahead(plan, work, self.backend.tiling)
        ahead = self._with_room(plan, *kinds_meant(meant))
        return any(self._has_kernels_of(wide, plan, work) for wide in ahead)

    @classmethod
    def _has_kernels_of(cls, wide: Graph, plan: Plan, work: Work) -> bool:
        """Whether a recording has the kernels that a plan, cut alone as `work`, wants. Of many tokens the large ones count."""
        large_rows = work.large_rows if len(work.large) else 0
        if plan.num_tokens <= capacities.ALL_SMALL:
            own = Cutting(work.small_rows, large_rows, work.occupancy, work.is_specialised)
            cutting = wide.capacity.cutting
            if not len(work.small):
                cutting = cutting._replace(small_rows=own.small_rows, occupancy=own.occupancy)
            return own == cutting
        return cls._has_large(wide, large_rows, work.is_specialised)

    @staticmethod
    def _has_large(wide: Graph, large_rows: int, is_specialised: bool) -> bool:
        """Whether a recording has large tiles of so many rows; any has none, which are 0 rows."""
        kernels = wide.capacity.large_rows, wide.capacity.is_specialised
        return not large_rows or (large_rows, is_specialised) == kernels

    def _wide(self, plan: Plan, stretches: Stretches, *kinds: Wide) -> tuple[Graph, Work] | None:
        """The first wide recording of these kinds that the plan fits into, the smallest for so many tokens or the next one."""
        works: dict[Cutting, Work] = {}  # several sizes have the same kernels
        for graph in self._with_room(plan, *kinds):
            cutting = graph.capacity.cutting
            if (work := works.get(cutting)) is None:
                work = works[cutting] = cut(plan, self.backend.tiling, cutting, stretches)
            if graph.capacity.holds(plan, work):
                return graph, work
        return None

    def _with_room(self, plan: Plan, *kinds: Wide) -> Iterator[Graph]:
        """The wide recordings of these kinds that have room for this plan's tokens and logits, the smallest first."""
        for kind in kinds:
            for tokens in sizes_of(kind, plan.num_tokens):
                graph = self.recordings.ahead.get((tokens, kind))
                if graph is not None and graph.capacity.rows >= len(plan.heads):
                    yield graph


def _kind(plan: Plan) -> _Kind:
    """Plans of different kinds have different capacities: tokens, reads and strips, rounded up."""
    sizes = plan.num_tokens, len(plan.reads.row), len(plan.reads.pages)
    tokens, reads, strips = map(power_of_two, sizes)
    return tokens, reads, strips


def _follows(plan: Plan, last: Plan) -> bool:
    """Whether this plan is the last one, one token later."""
    return (
        plan.lockstep is not None
        and plan.lockstep is last.lockstep
        and plan.lockstep_index == last.lockstep_index + 1
    )
