"""One forward pass: a plan goes in, logits come out. It stands behind the executor (`engine/local_executor.py`).

`Passes` runs the network's layers one launch after the other. On a CUDA device `GraphedPasses`
(`engine/graphs.py`) does the same by replaying recorded launches where a plan has a shape it knows.

    T  new tokens      R  rows      V  vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.attention.attend import AttendFn, Backend, LayerCall
from manyhands.cache.logprobs import Targets
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan
from manyhands.engine.expanded import AttendingInForms, ExpandedForm
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.sampling import Chosen, ToldLogprobs, sent
from manyhands.model import kernels
from manyhands.model.adapter import ModelAdapter
from manyhands.model.memory import Memory
from manyhands.model.recurrent import StateCall, States


@dataclass(frozen=True, eq=False)
class PassOutcome:
    """The tensors that a pass leaves on the device, for the H tokens whose logits it makes (`Plan.heads`).

    `greedy` [1 + H], where it was made along with the logits: 1 if all of them are sound, and the likeliest
    token of each. A recorded pass writes both to the same place again. `told`: the logprobs of the targets, part by part.
    """

    logits: Tensor  # [H, V]
    greedy: Tensor | None = None
    told: Sequence[ToldLogprobs] = ()


@dataclass(frozen=True, eq=False)
class Late:
    """Tokens of a plan that the pass before it chooses: they go from its choice to this plan's tokens on the device."""

    chosen: Tensor  # [R] of the pass before
    at: Ints  # [L]: packed indices of the plan's tokens
    sources: Ints  # [L]: the rows that choose them

    def mark(self, token_ids: Ints) -> None:
        """Write in their places among the plan's tokens [T], on the host, which row chooses each: row 0 as -1, row 1 as -2."""
        token_ids[self.at] = -1 - self.sources

    def fill(self, token_ids: Tensor) -> Tensor:
        """Put them where tokens [T], on the device, are marked; the same tensor."""
        if not len(self.at):
            return token_ids
        if kernels.run_on(token_ids.device) and token_ids.dtype == torch.int32:
            from manyhands.model.kernels import late

            late.fill(token_ids, self.chosen)
            return token_ids
        rows = (-1 - token_ids).clamp_(min=0)
        chosen = self.chosen.to(token_ids.dtype).index_select(0, rows)
        return token_ids.copy_(torch.where(token_ids < 0, chosen, token_ids))


def _handed() -> Late:
    """No tokens of one's own."""
    return Late(torch.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


# Numbers of the logits at targets; 110 places with a vocabulary of 152 000. Putting them in order takes some
# twenty bytes for each.
LOGITS_AT_ONCE = 1 << 24


class Others:
    """The other ranks of the network, which make every pass together with this one.

    Each verb is called before this process does its own part, with the integers that the others need for
    theirs. Here there are none, and nothing is done; `engine/ranks/told.py` has them.
    """

    def launch(self, plan: Plan, targets: Targets | None) -> None:
        """A pass, launch by launch."""

    def launch_late(self, plan: Plan) -> None:
        """A pass, launch by launch, some of whose tokens rank 0 hands over on the device."""

    def launched(self, plan: Plan, logits: Tensor) -> None:
        """The pass is made: a chance to compare."""

    def record(self, capacity: Sequence[int], page_size: int, ends: Sequence[int]) -> None:
        """A pass of this capacity is recorded, in parts that end at these layers."""

    def forget(self) -> None:
        """All recordings are dropped; the next one is the first again."""

    def load(self, page_size: int, capacities: Sequence[Sequence[int]]) -> None:
        """The kernels of attention of such passes are loaded, and those that no recording has (`Recordings.load`)."""

    def alone(self) -> AbstractContextManager[None]:
        """Inside, this rank launches without the others, and what that gives means nothing."""
        return nullcontext()

    def ask_room(self, num_bytes: int) -> None:
        """All ranks say whether so many bytes of their devices are free."""

    def any_trouble(self, own: str | None, *, made_sums: bool = True) -> str | None:
        """Trouble that a rank has had with what all have tried, this one's `own` included; None if all could do it. All ranks get the same.

        `made_sums`: it was something with sums, so that a rank with trouble may have left the others in one.
        """
        return own

    def start(self, number: int, num_parts: int, integers: Tensor, growth: Tensor) -> None:
        """The first parts of the recording of this number are replayed, with these integers [used] and, where there is any, this growth
        [growing]. Tokens that are not known yet are handed over on the device.
        """

    def follow(self, number: int, token_ids: Ints) -> None:
        """All of it is replayed one token later, with these tokens, or with those that are handed over."""

    def begin(self, number: int, num_parts: int) -> None:
        """Its first parts are replayed one token later, with tokens that rank 0 hands over on the device."""

    def hand_over(self, tokens: Tensor) -> None:
        """These tokens, where every rank's recording reads them, become rank 0's."""

    def finish(self, number: int) -> None:
        """The rest of its parts is replayed."""


ALONE = Others()


class Passes:
    """Runs plans, launch by launch."""

    def __init__(
        self,
        adapter: ModelAdapter,
        memory: Memory,
        backend: Backend,
        others: Others = ALONE,
        states: States | None = None,
    ) -> None:
        """`states`: of a network whose linear layers keep some."""
        self.adapter = adapter
        self.states = states
        self.others = others
        self.memory = memory
        self.backend = backend
        self.expanded = ExpandedForm.of(adapter, backend)
        self.counts = PassCounts()

    @property
    def about(self) -> str | None:
        """A sentence for the user about how passes have run, if there is anything to say."""
        return None

    def look_ahead(self, chosen: Chosen) -> None:
        """These tokens were chosen: begin, if it can be done, the pass in which each row is fed its own.

        Only called when that pass would have room (`Planner.can_look_ahead`). Launch by launch nothing is
        gained by it, so nothing is begun.
        """

    def meanwhile(self) -> None:
        """Do what has been put off: tokens are being chosen, and the next pass is begun, if any is. Here nothing is."""

    def record_ahead(
        self, page_size: int, told: Callable[[int, int], None], most_tokens: int
    ) -> None:
        """Get ready for passes of all sizes; `told` how far that has come. Launch by launch nothing is needed.

        `most_tokens` are fed in one pass.
        """

    def forget(self) -> None:
        """Drop all recordings; launch by launch there are none."""

    def drop_begun(self) -> None:
        """Take up no pass that was begun for a guess: states are about to be left in slots by something else than a pass.

        The slots in which such a pass leaves its states are no text's yet, so they may be among these. Launch by launch none is begun.
        """

    def settle(self) -> None:
        """Wait for recordings under way, in front of sums over ranks that are not recorded."""

    def tokens_at_once(self, num_tokens: int) -> int:
        """See `Executor.tokens_at_once`: launch by launch all of them."""
        return num_tokens

    # Whether a pass is begun ahead (`engine/lookahead.py`): where the host waits for each launch, it gains nothing.
    plans_ahead: bool = False

    def run(self, plan: Plan, targets: Targets | None = None) -> PassOutcome:
        """The pass itself; the moves that it relies on have been made."""
        return self.launch(plan, targets)

    def begin(self, plan: Plan, late: Late) -> PassOutcome:
        """The pass of a plan some of whose tokens are on the device alone; of several ranks, on rank 0's."""
        self.others.launch_late(plan)
        self.counts.planned_ahead += 1
        return self.launch_late(plan, late)

    def launch_late(self, plan: Plan, late: Late | None = None) -> PassOutcome:
        """Such a pass, launch by launch. `late` is rank 0's: the others are handed all tokens."""
        self.settle()
        outcome = self._launched(plan, None, late or _handed())
        self.others.launched(plan, outcome.logits)
        return outcome

    def begin_head(self, plan: Plan, late: Late) -> bool:
        """Begin the first layers of such a pass, whose tokens are a guess; `finish_head` makes the rest.

        False, and nothing is begun, where no recording serves the plan. Launch by launch none does.
        """
        return False

    def finish_head(self, plan: Plan) -> PassOutcome:
        """The rest of the pass whose head was begun last."""
        raise AssertionError("launch by launch no head is begun")

    def launch(self, plan: Plan, targets: Targets | None = None) -> PassOutcome:
        """The pass, launch by launch."""
        self.others.launch(plan, targets)
        outcome = self._launched(plan, targets)
        self.others.launched(plan, outcome.logits)
        return outcome

    def _launched(
        self, plan: Plan, targets: Targets | None, late: Late | None = None
    ) -> PassOutcome:
        self.counts.eager += 1
        device = self.adapter.device
        attend = self._attending(plan)
        known = plan.token_ids
        if late is not None:
            known = known.copy()
            late.mark(known)
        token_ids = torch.as_tensor(known, device=device)
        if late is not None:
            late.fill(token_ids)
            self.others.hand_over(token_ids)
        keep = torch.as_tensor(plan.heads, device=device)
        states = None
        if self.states is not None:
            assert plan.states is not None, "the network keeps states, and the plan says of none"
            states = StateCall.of(self.states, plan.states)
        if targets is None:
            return PassOutcome(self.adapter.forward(token_ids, keep, attend, states))
        size = max(1, LOGITS_AT_ONCE // self.adapter.vocab_size)
        places = sent(targets.at, torch.int64, device).split(size)
        tokens = sent(targets.tokens, torch.int64, device).split(size)
        tops = [targets.top[at : at + size] for at in range(0, len(targets.top), size)]
        parts = self.adapter.forward_in_parts(token_ids, (keep, *places), attend, states)
        logits = next(parts)
        told = [
            ToldLogprobs(part, own, top).settle()
            for part, own, top in zip(parts, tokens, tops, strict=True)
        ]
        return PassOutcome(logits, told=told)

    def _attending(self, plan: Plan) -> AttendFn:
        rows = None if self.expanded is None else self.expanded.rows_of(plan)
        if self.expanded is not None and rows is not None:
            return AttendingInForms(plan, rows, self.expanded, self.memory, self.backend)
        return Attending(self.backend.prepare(plan, self.memory.device), self.memory, self.backend)


class Attending:
    """The attention that the network's layers call during one pass: write all rows, then read.

    A layer that reads what an earlier one stored writes nothing.
    """

    def __init__(
        self,
        prepared: Any,
        memory: Memory,
        backend: Backend,
        cuts: Mapping[int, Callable[[], None]] | None = None,
    ) -> None:
        """`cuts`: what is called when a layer is reached, by its number."""
        self.prepared = prepared
        self.memory = memory
        self.backend = backend
        self.cuts = cuts or {}

    def takes_norms(self, layer: int) -> bool:
        """Whether the norms of this layer's heads may be left to what stores its keys."""
        return self.backend.takes_norms and self.memory.writes(layer)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        """One layer; see `attention.attend.AttendFn`."""
        if call.layer in self.cuts:
            self.cuts[call.layer]()
        store = self.memory.stores[call.layer]
        if self.memory.writes(call.layer):
            return self.backend.run_layer(store, q, k, v, self.prepared, call)
        return self.backend.attend(store, q, self.prepared, call)
