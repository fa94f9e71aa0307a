"""Forward passes as CUDA graphs: a pass goes by a recording, and the next one is begun before it is asked for.

A decode pass of a large model is some five hundred launches, and a host that makes them one by one takes longer than the GPU takes
to run them. So passes are recorded, and replayed where a recording has room for a plan and the kernels that it wants:

    matching.py     which recording serves a plan
    recordings.py   those that are there, and how another one is made
    graph.py        one of them, and how it is fed

**Lookahead.** While the host looks at the tokens of a pass and decides what comes next, the device would have
nothing to do. In plain decoding the next pass is nearly always the same rows with the tokens they just chose,
so it is begun before the host has read those tokens. If something else is asked for (a step ended), the
result is dropped: the pass wrote only to slots that are written again before they are read, and left states in slots of no text.

A dropped pass costs its time. So a recording has parts, and before the host has decided only the *head*
is begun: the first few, about as long as the host takes (`engine/heads.py`). The rest follows when the guess was right.
Where no head is long enough, the whole pass is begun while guesses have been right ninety-nine times of a hundred.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from manyhands.attention.triton_backend import TritonBackend
from manyhands.cache.logprobs import Targets
from manyhands.cache.plan import Plan
from manyhands.engine import capacities
from manyhands.engine.graph import Graph
from manyhands.engine.heads import Heads
from manyhands.engine.matching import PlanMatcher
from manyhands.engine.passes import ALONE, Late, Others, Passes, PassOutcome
from manyhands.engine.recorder import GraphRecorder
from manyhands.engine.recordings import Recordings
from manyhands.engine.sampling import Chosen
from manyhands.model.adapter import ModelAdapter
from manyhands.model.memory import Memory
from manyhands.model.recurrent import States

_SURE_ENOUGH = 0.99  # share of right guesses from which on whole passes are begun
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
        states: States | None = None,
    ) -> None:
        super().__init__(adapter, memory, backend, others, states)
        # Where states are kept, a pass of the same rows alone is begun ahead: the slots of any other are not known before this one has succeeded.
        self.plans_ahead = states is None
        self.recordings = Recordings(
            adapter, memory, backend, recorder, others, self.expanded, self.counts, states
        )
        self.matcher = PlanMatcher(self.recordings)
        self.heads = Heads(self.recordings.part_ends, recorder.mark)
        self._newest: tuple[Graph, Plan] | None = None
        self._lookahead: _Lookahead | None = None
        self._passed: object = None  # the newest one before: let go of while the device works
        self._sureness = 1.0

    @property
    def about(self) -> str | None:
        """How many shapes of passes were recorded and how long that took, or why they were not."""
        return self.recordings.about

    def forget(self) -> None:
        """See `Passes.forget`. What was begun with them goes, too."""
        self.recordings.forget()
        self.matcher.forget()
        self._newest = self._lookahead = self._passed = None

    def run(self, plan: Plan, targets: Targets | None = None) -> PassOutcome:
        """See `Passes.run`. A pass with targets is never recorded: prompts differ in length."""
        if targets is not None:
            self.drop_begun()
            return self.launch(plan, targets)
        if (outcome := self._next(plan)) is not None:
            return outcome
        if (found := self.matcher.recorded(plan)) is None:
            return self.launch(plan)
        graph, work = found
        self._newest = graph, plan
        self.counts.replayed += 1
        return graph.start(plan, work)

    def drop_begun(self) -> None:
        """See `Passes.drop_begun`. The next pass follows none."""
        lookahead, self._lookahead, self._newest = self._lookahead, None, None
        if lookahead is not None:
            self._was_right(lookahead, None)

    def settle(self) -> None:
        """See `Passes.settle`."""
        self.recordings.settle()

    def launch(self, plan: Plan, targets: Targets | None = None) -> PassOutcome:
        """See `Passes.launch`."""
        self.recordings.settle()
        return super().launch(plan, targets)

    def tokens_at_once(self, num_tokens: int) -> int:
        """See `Executor.tokens_at_once`: as many as the largest recording has, where a pass of all of them would wait for the host.

        Of experts each part reads all weights, and where there were three parts it took longer than one pass that was launched.
        """
        if self.states is not None:  # prompts are launched, whatever their lengths
            return num_tokens
        largest = max((tokens for tokens, _ in self.recordings.ahead), default=num_tokens)
        if self.expanded is not None and self.expanded.are_many(num_tokens):
            return num_tokens
        is_over_ranks = self.others is not ALONE
        for_host = capacities.most_for_host(
            self.recordings.layer_bytes, is_over_ranks=is_over_ranks
        )
        most = min(2 * largest, for_host)
        return largest if largest < num_tokens <= most else num_tokens

    def begin(self, plan: Plan, late: Late) -> PassOutcome:
        """See `Passes.begin`."""
        newest, self._newest, self._lookahead = self._newest, None, None
        if newest is not None and self.matcher.goes_on(plan, newest[1]):
            self._newest = newest[0], plan
            self.counts.planned_ahead += 1
            self.counts.followed += 1
            return newest[0].next(plan, late)
        if (found := self.matcher.recorded(plan)) is None:
            return super().begin(plan, late)
        graph, work = found
        self._newest = graph, plan
        self.counts.planned_ahead += 1
        self.counts.replayed += 1
        return graph.start(plan, work, late)

    def begin_head(self, plan: Plan, late: Late) -> bool:
        """See `Passes.begin_head`. Nothing is recorded for a guess."""
        self._newest = self._lookahead = None
        if (found := self.matcher.at_hand(plan)) is None:
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
        follows = self.matcher.goes_on(plan, last)
        # A pass that was begun has left its states in the slots that were meant for the next plan.
        is_meant = last.states is None or (
            plan.states is not None and plan.states.goes_on(last.states)
        )
        was_right = lookahead is None or self._was_right(
            lookahead, plan if follows and is_meant else None
        )
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

    def look_ahead(self, chosen: Chosen) -> None:
        """See `Passes.look_ahead`."""
        if self._newest is None:
            return
        graph, plan = self._newest
        if plan.states is not None and not plan.states.following:
            return
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

    def meanwhile(self) -> None:
        """See `Passes.meanwhile`: look whether a plan that a wide recording has served wants one of its own."""
        self._passed = None
        if self.matcher.to_look_at is not None:
            self.matcher.look(None if self._newest is None else self._newest[0])

    def record_ahead(
        self, page_size: int, told: Callable[[int, int], None], most_tokens: int
    ) -> None:
        """See `Passes.record_ahead`."""
        self.recordings.record_ahead(page_size, told, most_tokens)
