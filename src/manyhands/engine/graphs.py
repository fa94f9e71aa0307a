"""Forward passes as CUDA graphs: which recording serves a plan, when one is made, and what is begun before it is asked for.

A decode pass of a large model is some five hundred launches, and a host that makes them one by one takes longer than the GPU takes
to run them. So passes are recorded, and replayed where a recording has room for a plan and the kernels that it wants. How one is
recorded and fed stands in `engine/graph.py`.

**Lookahead.** While the host looks at the tokens of a pass and decides what comes next, the device would have
nothing to do. In plain decoding the next pass is nearly always the same rows with the tokens they just chose,
so it is begun before the host has read those tokens. If something else is asked for (a step ended), the
result is dropped: the pass wrote only to slots that are written again before they are read.

A dropped pass costs its time. So a recording has parts, and before the host has decided only the *head*
is begun: the first few, about as long as the host takes (`engine/heads.py`). The rest follows when the guess was right.
Where no head is long enough, the whole pass is begun while guesses have been right ninety-nine times of a hundred.

**Ahead of time.** A recording takes some hundredths of a second, and all runs wait for it. Before there is anything to serve, `record_ahead` makes
*wide* recordings for every number of tokens that passes come in, with room for long lists of everything
else (`engine/capacities.py`). Plans are cut for their kernels (`Cutting`). Kernels are compiled before that, all at
once, those of other tiles too (`uncommon_capacities`). A plan that wants other kernels, such
as large tiles for a long history, or that finds room in wide recordings with other kernels alone, gets a recording of its own when its
capacity has been met again and again; one that fits none, the second time, or, if a prompt is in it, much later.

Without wide recordings a capacity is recorded when it is asked for the second time, so that widths that come up once cost
nothing; or later, while a recording that is a little wider serves it. Where a recording fails (no memory left, a network that waits for the device in its forward),
none is tried again: passes go by those that are there, or launch by launch, and `trouble` says why.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import TypeVar

import numpy as np
import torch

from manyhands.attention.attend import LayerCall
from manyhands.attention.compile_at_once import Kernels, compiling_at_once, counting_new_kernels
from manyhands.attention.prepared import Capacity, Prepared
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import (
    Cutting,
    Stretches,
    Work,
    cut,
    power_of_two,
)
from manyhands.cache.logprobs import Targets
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
from manyhands.engine.graph import Graph, LayerKind, make_harmless
from manyhands.engine.heads import Heads, part_ends
from manyhands.engine.passes import ALONE, Late, Others, Passes, PassOutcome
from manyhands.engine.recorder import GraphRecorder
from manyhands.engine.sampling import Chosen, get_ready
from manyhands.errors import ManyhandsError, RanksFailed
from manyhands.model.adapter import ModelAdapter, experts_of_a_token, weight_bytes
from manyhands.model.experts import load_for_prompts
from manyhands.model.memory import Memory, free_bytes, num_weights

T = TypeVar("T")
MOST_TOKENS = capacities.AHEAD  # of any recorded pass, ahead of time or for a plan
_SURE_ENOUGH = 0.99  # share of right guesses from which on whole passes are begun
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
# Tokens, beyond which all products are the library's: those of four bits are ours for longest.
_MOST_OF_OUR_PRODUCTS = 256
_GUESSES = 32  # about so many of the last ones count


@dataclass(frozen=True, eq=False)
class _Lookahead:
    """The pass after the newest one if every row goes on with the token it chose; its head was begun, or all of it."""

    chosen: Chosen
    outcome: PassOutcome | None  # of the whole pass; None: of its head there is none


class GraphedPasses(Passes):
    """Runs plans by recorded graphs where it can."""

    backend: TritonBackend

    def __init__(
        self,
        adapter: ModelAdapter,
        memory: Memory,
        backend: TritonBackend,
        recorder: GraphRecorder,
        others: Others = ALONE,
    ) -> None:
        super().__init__(adapter, memory, backend, others)
        self.recorder = recorder
        self.trouble: str | None = None  # why nothing more is recorded
        self.seconds_recording = 0.0
        self._graphs: dict[Capacity, Graph] = {}
        self._ahead: dict[tuple[int, Wide], Graph] = {}  # of those the wide ones, by their tokens
        # About how often, in the last passes; what was asked for last stands last.
        self._seen: Counter[Capacity] = Counter()
        self._num_passed = 0  # passes that count, since the counts were halved
        self._kinds: Counter[_Kind] = Counter()  # of plans that wide recordings serve
        # The wide recording for the newest plan of a kind that was looked at.
        self._meant_for: dict[_Kind, Wide] = {}
        self._kinds_with_own: set[_Kind] = set()
        self._kinds_due: set[_Kind] = set()  # the next plan of these may be recorded
        self._to_look_at: tuple[Plan, Stretches | None] | None = None  # while the device works
        # The capacity of the newest plan that was made anew, if its recording has other kernels than that wants; whether
        # passes that follow it are looked at, since a wide recording was taken for it at once; and their number.
        self._unserved: Capacity | None = None
        self._is_looked_at = False
        self._is_astray = False  # goes on by another recording than the one that is meant for it
        self._going_on = 0
        self._newest: tuple[Graph, Plan] | None = None
        self._lookahead: _Lookahead | None = None
        self._passed: object = None  # the newest one before: let go of while the device works
        self._sureness = 1.0
        self.layer_kinds: dict[LayerKind, tuple[torch.Size, LayerCall]] = {}
        self.part_ends = part_ends(weight_bytes(adapter), adapter.num_layers)
        self.heads = Heads(self.part_ends, recorder.mark)
        self._layer_bytes = _layer_bytes(adapter)

    @property
    def about(self) -> str | None:
        """How many shapes of passes were recorded and how long that took, or why they were not."""
        if not self._graphs:
            return self.trouble and f"passes are not recorded as CUDA graphs: {self.trouble}"
        recorded = (
            f"passes of {self.num_graphs} sizes were recorded as CUDA graphs in "
            f"{self.seconds_recording:.1f} s"
        )
        return f"{recorded}, and no more can be: {self.trouble}" if self.trouble else recorded

    @property
    def num_graphs(self) -> int:
        """Capacities recorded so far."""
        return len(self._graphs)

    @property
    def recordings(self) -> list[Graph]:
        """All recordings by their numbers, which other ranks are told."""
        return list(self._graphs.values())

    def forget(self) -> None:
        """See `Passes.forget`. What was begun with them goes, too."""
        self._graphs.clear()
        self._ahead.clear()
        self._newest = self._lookahead = self._to_look_at = self._passed = self._unserved = None

    def run(self, plan: Plan, targets: Targets | None = None) -> PassOutcome:
        """See `Passes.run`. A pass with targets is never recorded: prompts differ in length."""
        if targets is not None:
            lookahead, self._lookahead, self._newest = self._lookahead, None, None
            if lookahead is not None:
                self._was_right(lookahead, None)
            return self.launch(plan, targets)
        if (outcome := self._next(plan)) is not None:
            return outcome
        if (found := self._recorded(plan)) is None:
            return self.launch(plan)
        graph, work = found
        self._newest = graph, plan
        self.counts.replayed += 1
        return graph.start(plan, work)

    def settle(self) -> None:
        """See `Passes.settle`. NCCL allows no other of its calls while a recording with some of them runs."""
        if self.others is not ALONE and self._graphs:
            self.recorder.recover()

    def launch(self, plan: Plan, targets: Targets | None = None) -> PassOutcome:
        """See `Passes.launch`."""
        self.settle()
        return super().launch(plan, targets)

    plans_ahead = True

    def tokens_at_once(self, num_tokens: int) -> int:
        """See `Executor.tokens_at_once`: as many as the largest recording has, where a pass of all of them would wait for the host.

        Of experts each part reads all weights, and where there were three parts it took longer than one pass that was launched.
        """
        largest = max((tokens for tokens, _ in self._ahead), default=num_tokens)
        if self.expanded is not None and self.expanded.are_many(num_tokens):
            return num_tokens
        is_over_ranks = self.others is not ALONE
        for_host = capacities.most_for_host(self._layer_bytes, is_over_ranks=is_over_ranks)
        most = min(2 * largest, for_host)
        return largest if largest < num_tokens <= most else num_tokens

    def begin(self, plan: Plan, late: Late) -> PassOutcome:
        """See `Passes.begin`."""
        newest, self._newest, self._lookahead = self._newest, None, None
        if newest is not None and self._goes_on(plan, newest[1]):
            self._newest = newest[0], plan
            self.counts.planned_ahead += 1
            self.counts.followed += 1
            return newest[0].next(plan, late)
        if (found := self._recorded(plan)) is None:
            return super().begin(plan, late)
        graph, work = found
        self._newest = graph, plan
        self.counts.planned_ahead += 1
        self.counts.replayed += 1
        return graph.start(plan, work, late)

    def begin_head(self, plan: Plan, late: Late) -> bool:
        """See `Passes.begin_head`. Nothing is recorded for a guess."""
        self._newest = self._lookahead = self._unserved = None
        self._is_looked_at, self._is_astray, self._going_on = False, False, 0
        if not self._may_be_recorded(plan):
            return False
        stretches = Stretches.of(plan, self.backend.tiling)
        if (found := self._wide_at_once(plan, stretches)) is None:
            work = cut(plan, self.backend.tiling, None, stretches)
            found = self._at_hand(plan, work, capacity_of(plan, work), stretches)
        if found is None:
            return False
        graph, work = found
        graph.start_head(plan, work, self.heads, late)
        self._newest = graph, plan
        self.counts.planned_ahead += 1
        self.counts.heads += 1
        return True

    def finish_head(self, plan: Plan) -> PassOutcome:
        """See `Passes.finish_head`."""
        assert self._newest is not None, "its head was begun"
        graph, begun = self._newest
        assert begun is plan, "nothing was run in between"
        self.heads.was_right()
        self.counts.replayed += 1
        return graph.finish(plan)

    def _next(self, plan: Plan) -> PassOutcome | None:
        """The pass that follows the newest one, perhaps begun already; None if this is another."""
        newest, self._newest = self._newest, None
        lookahead, self._lookahead = self._lookahead, None
        self._passed = newest
        if newest is None:
            return None
        graph, last = newest
        follows = self._goes_on(plan, last)
        was_right = lookahead is None or self._was_right(lookahead, plan if follows else None)
        if not follows or not was_right:
            return None
        self._newest = graph, plan
        self.counts.followed += 1
        if lookahead is None:
            return graph.next(plan)
        if lookahead.outcome is not None:
            return lookahead.outcome
        self.heads.was_right()
        return graph.finish(plan)

    def _goes_on(self, plan: Plan, last: Plan) -> bool:
        """Whether a plan follows the last one by its recording.

        It does not where that has other kernels than the plan wants and has gone on for as long as a capacity must be met to
        get a recording of its own: rows that write side by side are laid out anew with every page alone. Where it is not known
        what the plan wants, one of so many that follow is looked at.
        """
        if self._is_astray or not _follows(plan, last):
            return False
        self._going_on += 1
        if self._is_looked_at and self._going_on % _LOOKED_AT == 0:
            self._to_look_at = plan, None
        if (capacity := self._unserved) is None:
            self._pass_by(plan)
            return True
        if self.trouble is not None or self._going_on < _VERY_OFTEN:
            return True  # it would ask for that capacity, so it makes none rarer
        self._unserved = None
        self._seen[capacity] = max(self._seen[capacity], _VERY_OFTEN)
        self._kinds_due.add(_kind(plan))
        return False

    def look_ahead(self, chosen: Chosen) -> None:
        """See `Passes.look_ahead`."""
        if self._newest is None:
            return
        graph, plan = self._newest
        self.counts.lookaheads += 1
        graph.look_ahead(plan, chosen.on_device, self.heads)
        is_whole = self._sureness >= _SURE_ENOUGH and self.heads.are_too_short
        self.counts.heads += not is_whole
        outcome = graph.finish(plan) if is_whole else None
        self._lookahead = _Lookahead(chosen, outcome)

    def _was_right(self, lookahead: _Lookahead, plan: Plan | None) -> bool:
        """Whether `plan`, if it follows at all, feeds what was chosen; remembered for next time."""
        is_right = (
            plan is not None
            and plan.token_ids.tolist() == list(lookahead.chosen.tokens())
            and lookahead.chosen.are_on_device()
        )
        self._sureness += (is_right - self._sureness) / _GUESSES
        self.counts.dropped += not is_right
        return is_right

    def _may_be_recorded(self, plan: Plan) -> bool:
        """Whether there may be a recording for a plan of so many tokens, now or in a moment."""
        if self.expanded is not None and self.expanded.has_prompts(plan):
            return False
        return plan.num_tokens <= MOST_TOKENS and (self.trouble is None or bool(self._graphs))

    def _recorded(self, plan: Plan) -> tuple[Graph, Work] | None:
        """A recording that serves this plan, and the plan cut for it; it may be made here.

        Its own; or while its capacity is rare, one that is a little wider, or a wide one.
        """
        self._unserved = None
        self._is_looked_at, self._is_astray, self._going_on = False, False, 0
        if not self._may_be_recorded(plan):
            return None
        stretches = Stretches.of(plan, self.backend.tiling)
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
        if (found := self._at_hand(plan, work, capacity, stretches)) is not None:
            if not self._has_kernels_of(found[0], plan, work):
                self._unserved = capacity
            return found
        # A prompt comes once, and waits twice as long for its first token where its pass is recorded.
        drafted = 0 if plan.num_drafted is None else int(plan.num_drafted.sum())
        has_prompt = plan.num_tokens - drafted > plan.num_rows
        least = _VERY_OFTEN if has_prompt and self._ahead else 2
        if times < least or self.trouble is not None:
            return None
        if (graph := self._record(plan.page_size, capacity)) is None:
            return None
        self._kinds_with_own.add(_kind(plan))
        return graph, work

    def _wide_at_once(self, plan: Plan, stretches: Stretches) -> tuple[Graph, Work] | None:
        """The wide recording, for most plans of few tokens or small tiles: to look for their own, they would be cut twice."""
        kind = _kind(plan)
        if kind in self._kinds_with_own or not self._ahead:
            return None
        found = self._wide(plan, stretches, Wide.ENDED)
        is_looked_at = plan.num_tokens <= capacities.ALL_SMALL or found is not None
        if is_looked_at:
            self._kinds[kind] += 1
            if self._kinds[kind] % _LOOKED_AT == 0:
                self._to_look_at = plan, stretches
        elif plan.num_tokens > capacities.MOST_ALONE or not stretches.are_small(
            self.backend.tiling
        ):
            # One with large tiles would launch them for nothing where the plan wants none.
            return self._large_at_once(plan, stretches)
        found = found or self._wide(plan, stretches, *self._small_for(plan, stretches))
        self._is_looked_at = is_looked_at and found is not None
        return found

    def _large_at_once(self, plan: Plan, stretches: Stretches) -> tuple[Graph, Work] | None:
        """The wide recording with large tiles, where it has those that the plan wants: `_at_hand` would find the same one.

        So a crowd's plans are cut once each; cut for themselves they would be to no end.
        """
        kernels = stretches.large_tiles(self.backend.tiling)
        if not kernels[0] and plan.num_tokens <= capacities.MOST_ALONE:
            return None
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
            self._look_at(plan, cut(plan, tiling, None, stretches))
        meant = self._meant_for[of_plan]
        return (Wide.SMALL,) if meant is Wide.SMALL else (meant, Wide.SEVERAL, Wide.SMALL)

    def meanwhile(self) -> None:
        """See `Passes.meanwhile`: look whether a plan that a wide recording has served wants one of its own."""
        self._passed = None
        put_off, self._to_look_at = self._to_look_at, None
        if put_off is None or self.trouble is not None:
            return
        plan, stretches = put_off
        work = cut(plan, self.backend.tiling, None, stretches)
        capacity = capacity_of(plan, work)
        self._note(plan, capacity)
        self._look_at(plan, work)
        is_served_well = self._is_served_well(plan, work)
        # The next pass may have begun already, and by a recording of its own: nothing is said of that.
        if stretches is None and is_served_well and self._going_on:
            self._is_looked_at = False
            self._is_astray = self._goes_by_another(plan, work)
        wants_own = not is_served_well and self._seen[capacity] >= _VERY_OFTEN
        if capacity in self._graphs or wants_own:
            self._kinds_due.add(_kind(plan))

    def _goes_by_another(self, plan: Plan, work: Work) -> bool:
        """Whether the newest pass goes by a recording with other kernels than the wide one that is meant for its plan."""
        if self._newest is None or self._has_kernels_of(self._newest[0], plan, work):
            return False
        tiling = self.backend.tiling
        kinds = kinds_meant(kind_ahead(plan, work, tiling))
        found = self._wide(plan, Stretches.of(plan, tiling), *kinds)
        return found is not None and found[0] is not self._newest[0]

    def _look_at(self, plan: Plan, work: Work) -> None:
        """Remember the wide recording that is meant for plans like this one, which was cut alone as `work`."""
        self._meant_for[_kind(plan)] = kind_ahead(plan, work, self.backend.tiling)

    def _note(self, plan: Plan, capacity: Capacity) -> None:
        """A plan asks for a capacity. Counts are halved now and then, so that older times count less; one that is due is kept."""
        if capacity in self._graphs:
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

    def _at_hand(
        self, plan: Plan, work: Work, capacity: Capacity, stretches: Stretches
    ) -> tuple[Graph, Work] | None:
        """A recording that is there already and serves this plan, which was cut alone as `work`."""
        if (own := self._graphs.get(capacity)) is not None:
            return own, work
        kind, times = kind_ahead(plan, work, self.backend.tiling), self._seen[capacity]
        times = times if self.trouble is None else 0  # it can have none of its own
        if self._is_served_well(plan, work):
            if (found := self._wide(plan, stretches, *kinds_meant(kind))) is not None:
                return found
        elif times >= _VERY_OFTEN:
            return None  # it is to have its own
        if fitting := [graph for known, graph in self._graphs.items() if known.serves(capacity)]:
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
                graph = self._ahead.get((tokens, kind))
                if graph is not None and graph.capacity.rows >= len(plan.heads):
                    yield graph

    def record_ahead(
        self, page_size: int, told: Callable[[int, int], None], most_tokens: int
    ) -> None:
        """Compile kernels and make the wide recordings; `told` how far that has come. Stops where one cannot be made."""
        tiling = self.backend.tiling
        is_over_ranks = self.others is not ALONE
        most = capacities.most_ahead(self._layer_bytes, most_tokens, is_over_ranks=is_over_ranks)
        wide = {
            (tokens, kind): capacities.wide_capacity(tokens, tiling, kind)
            for tokens, kind in capacities.kinds_ahead(most, tiling)
        }
        uncommon = capacities.uncommon_capacities(tiling)
        first, *rest = wide.values()
        at_once = self._can_compile_at_once
        num_wide = len(wide)
        with counting_new_kernels() as met:
            is_cold = at_once and self._compile(page_size, [first], [], _untold).num_new > 0
            num_compiled = 0
            for index, (kind, capacity) in enumerate(wide.items()):
                told(num_compiled + index, num_compiled + num_wide)
                if kind in self._ahead or self.trouble is not None:
                    continue
                if capacities.is_to_spare(*kind) and not self._have_to_spare(capacities.SPARE):
                    continue
                # Where the cache on disk has some kernels it mostly has all, and then a pass more for each would be in vain.
                if at_once and (is_cold or met.num_new):
                    more = _with_kernels_of_their_own(rest[max(0, index - 1) :])
                    kernels = self._compile(
                        page_size,
                        more,
                        uncommon,
                        lambda done, whole: told(done, whole + num_wide),
                    )
                    num_compiled, at_once = kernels.num_noted, False
                # A plan may have asked for the very same one before.
                graph = self._graphs.get(capacity) or self._record(page_size, capacity)
                if graph is not None:
                    self._ahead[kind] = graph
        if self.trouble is not None:
            uncommon = []
        self.others.load(page_size, [astuple(each) for each in uncommon])
        self.load(page_size, uncommon)
        self.recorder.recover()  # recordings are repeated while the next is made: a fault is said here at the latest
        told(num_compiled + num_wide, num_compiled + num_wide)

    def _have_to_spare(self, num_bytes: int) -> bool:
        self.others.ask_room(num_bytes)
        return self.have_to_spare(num_bytes)

    def have_to_spare(self, num_bytes: int) -> bool:
        """Whether so many bytes are free on every rank's device: the same answer on all, which ask at once."""
        self.settle()
        has_room = free_bytes(self.adapter.device) >= num_bytes
        trouble = None if has_room else "no memory to spare"
        return self.others.any_trouble(trouble, made_sums=False) is None

    @property
    def _can_compile_at_once(self) -> bool:
        return not self.backend.interpreted

    def load(self, page_size: int, uncommon: Sequence[Capacity]) -> None:
        """Launch what no recording has, so that it is there: attention of such passes, and what prompts and late tokens want besides.

        No sum is in it, so no rank waits for another one.
        """
        for capacity in uncommon:
            self._attend(page_size, capacity)
        self._load_for_prompts(page_size)
        self.memory.move((), self.backend)  # carrying nothing loads its kernel
        self._fill_nothing()

    def _compile(
        self,
        page_size: int,
        wide: Sequence[Capacity],
        uncommon: Sequence[Capacity],
        told: Callable[[int, int], None],
    ) -> Kernels:
        """Compile at once what passes of these capacities launch. Whatever hinders it, recordings will say.

        Other ranks find it in the cache on disk.
        """
        try:
            with self.others.alone(), compiling_at_once(told) as kernels:
                for index, capacity in enumerate(wide):
                    logits, _ = Graph(self, capacity, page_size).try_out(self)
                    if index == 0:
                        get_ready(logits[:1])
                        self._fill_nothing()
                for capacity in uncommon:
                    self._attend(page_size, capacity)
                self._load_for_prompts(page_size)
        except Exception:  # no memory, or a Triton that notes launches in another way
            self.recorder.recover()
            return Kernels()
        return kernels

    @torch.inference_mode()
    def _attend(self, page_size: int, capacity: Capacity) -> None:
        """The attention alone of such a pass, for one layer of each kind that has been met, with nothing but padding."""
        device = self.adapter.device
        integers = torch.zeros(capacity.num_integers, dtype=torch.int32, device=device)
        make_harmless(integers, capacity)
        prepared = Prepared(integers, capacity, page_size)
        for shape, call in self.layer_kinds.values():
            q = torch.zeros(capacity.tokens, *shape, dtype=self.adapter.dtype, device=device)
            self.backend.attend(self.memory.stores[call.layer], q, prepared, call)

    def _load_for_prompts(self, page_size: int) -> None:
        """Launch what passes with long prompts have besides, which no recording has."""
        load_for_prompts(self.adapter.model)
        if self.expanded is not None:
            self.expanded.load(self.memory, page_size)

    def _fill_nothing(self) -> None:
        """Launch what puts late tokens in their places, for none."""
        first = np.zeros(1, dtype=np.int64)
        token_ids, chosen = torch.zeros(2, 2, dtype=torch.int64, device=self.adapter.device)
        Late(chosen[1:], first, first).fill(token_ids.int())

    def _tried(self, work: Callable[[], T]) -> T | None:
        """The result of this part of a recording; None, with the trouble, if a rank cannot have it."""
        done, trouble = None, None
        try:
            done = work()
        except RanksFailed:
            raise
        except (torch.OutOfMemoryError, RuntimeError, ManyhandsError) as error:
            self.recorder.recover()
            lines = str(error).strip().splitlines() or [type(error).__name__]
            trouble = lines[0][:200]
        if (found := self.others.any_trouble(trouble)) is None:
            return done
        self.trouble = found
        return None

    def _record(self, page_size: int, capacity: Capacity) -> Graph | None:
        self.others.record(astuple(capacity), page_size, self.part_ends)
        return self.record(capacity, page_size)

    def record(self, capacity: Capacity, page_size: int) -> Graph | None:
        """A recording of this capacity, if it can be made on all ranks; its number is the next one.

        A rank that has no room for its buffer says so before any begins. Where the network cannot be
        recorded, all find it at the same place. Where one rank alone fails and all are in step all the same, all give the recording up;
        where others wait in a sum that it never makes, the ranks cannot go on: RanksFailed.
        """
        began = time.perf_counter()
        self.settle()
        graph = self._tried(lambda: Graph(self, capacity, page_size))
        if graph is None or not self._tried(lambda: graph.record(self)):
            return None
        self.seconds_recording += time.perf_counter() - began
        self.counts.recorded += 1
        self._graphs[capacity] = graph
        return graph


_Kind = tuple[int, int, int]


def _layer_bytes(adapter: ModelAdapter) -> float:
    """Bytes of a layer's weights for a token, as if they had 16 bits: a prompt is multiplied with so many numbers, however few bits
    they are kept in.
    """
    size = weight_bytes(adapter)
    if experts_of_a_token(adapter.config) is None:
        size = max(size, 2 * num_weights(adapter))
    return size / adapter.num_layers


def _kind(plan: Plan) -> _Kind:
    """Plans of different kinds have different capacities: tokens, reads and strips, rounded up."""
    sizes = plan.num_tokens, len(plan.reads.row), len(plan.reads.pages)
    tokens, reads, strips = map(power_of_two, sizes)
    return tokens, reads, strips


def _with_kernels_of_their_own(wide: Sequence[Capacity]) -> list[Capacity]:
    """Capacities that between them launch every kernel: of more tokens than our products serve, one of each kind."""
    found = {(min(each.tokens, _MOST_OF_OUR_PRODUCTS + 1), each.cutting): each for each in wide}
    return list(found.values())


def _untold(done: int, whole: int) -> None:
    """Progress that is none yet."""


def _follows(plan: Plan, last: Plan) -> bool:
    """Whether this plan is the last one, one token later."""
    return (
        plan.lockstep is not None
        and plan.lockstep is last.lockstep
        and plan.lockstep_index == last.lockstep_index + 1
    )
