"""One graph: all launches of a pass of one capacity, recorded once, and replayed with one call.

Its integers lie in one buffer that stays where it is, on the device: those of the pass, and by how much each of them grows in plain
decoding (`attention/prepared.py`). The graph itself adds the growth. So whatever plan fits its capacity needs but a few words:

    start         another plan: the buffer is written anew, in one transfer
    next          the plan of the pass before, one token later: only its tokens are sent
    look_ahead    the same with tokens that stand on the device: nothing is sent, and a head of the pass is begun

Rows to spare are padding (`make_harmless`): their keys are stored nowhere and they read nothing.

Of a network whose linear layers keep states (`model/recurrent.py`) a graph serves passes whose rows are fed one token each, and has one
more buffer, for the slots of their states. The slots change from pass to pass and are always sent; a plan also names those of the pass behind it, for
`look_ahead`. A row to spare goes on from the empty text, and leaves its state where none is read.

A recording has parts. `start_head` and `look_ahead` begin the first ones, and `finish` makes the rest. Other ranks are told first of
whatever is begun. They have the same graph by the same number, and `take`, `follow`, `begin` and `go_on` are a rank's own part of it.

Which graph serves a plan, and when one is made, is decided in `engine/matching.py`. A graph sees of all recordings
(`engine/recordings.py`) only what it is recorded with: `RecordedWith`.

    R  rows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyhands.attention.attend import LayerCall
from manyhands.attention.prepared import NO_PAGE, Capacity, Prepared, pack, pack_growth
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import Work
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan
from manyhands.cache.states import EMPTY, RowStates
from manyhands.engine.heads import Heads
from manyhands.engine.passes import Attending, Late, Others, PassOutcome
from manyhands.engine.recorder import Cut, GraphRecorder, Recording
from manyhands.engine.sampling import likeliest
from manyhands.model.adapter import ModelAdapter
from manyhands.model.memory import Memory
from manyhands.model.recurrent import StateCall, States

LayerKind = tuple[object, ...]  # the part of a layer that kernels of attention are compiled for


class RecordedWith(Protocol):
    """The means of recording a graph, as far as the graph asks for them."""

    adapter: ModelAdapter
    memory: Memory
    states: States | None  # of a network whose linear layers keep some
    backend: TritonBackend
    others: Others
    recorder: GraphRecorder
    part_ends: tuple[int, ...]  # the layers at which parts of a recording end
    layer_kinds: dict[LayerKind, tuple[torch.Size, LayerCall]]  # a layer of each kind that was met

    @property
    def num_graphs(self) -> int:
        """Capacities recorded so far: the number of the next one."""


class _Noting(Attending):
    """Attention that notes one layer of each kind."""

    def __init__(
        self, prepared: Prepared, given: RecordedWith, cuts: Mapping[int, Callable[[], None]]
    ) -> None:
        super().__init__(prepared, given.memory, given.backend, cuts)
        self._kinds = given.layer_kinds

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        """See `Attending`."""
        store = self.memory.stores[call.layer]
        rope = store.rope and (store.rope.rotary_dim, store.rope.interleaved)
        heads = q.shape[1:], store.keys.shape[1:], store.value_dim
        options = call.scaling, call.window, call.chunk, call.softcap, call.query_scale
        kind = *heads, rope, *options, call.sinks is not None
        self._kinds.setdefault(kind, (q.shape[1:], call))
        return super().__call__(q, k, v, call)


class Graph:
    """The recording of one capacity."""

    recording: Recording

    def __init__(self, given: RecordedWith, capacity: Capacity, page_size: int) -> None:
        self.number = given.num_graphs
        self.others = given.others
        self.capacity = capacity
        self.page_size = page_size
        size = capacity.num_integers
        self.buffer = torch.zeros(2, size, dtype=torch.int32, device=given.adapter.device)
        self.host = given.recorder.host_buffer(2, size)
        self.integers = self.host.numpy()  # [2, size]: to be sent, and their growth
        self.sent = given.recorder.mark()
        self.num_begun = 0  # parts of the pass that was begun last
        self.num_used = 0  # integers that are sent
        # Whether the plan's integers grow; and whether the growth on the device may be another one than the host's, which is sent then.
        self.grows, self.may_grow = False, False
        make_harmless(self.buffer[0], capacity)
        self.slots = None if given.states is None else _Slots(given.states, given, capacity.tokens)

    def record(self, given: RecordedWith) -> Graph:
        """Record the pass; afterwards it can be replayed."""
        self.recording = given.recorder.record(lambda cut: self._pass(given, cut))
        self.logits, self.greedy = self.recording.lent, self.recording.kept
        return self

    def try_out(self, given: RecordedWith) -> tuple[Tensor, Tensor]:
        """Launch every kernel of the pass once, with nothing but padding, and record nothing; see `_pass`."""
        with torch.inference_mode():
            return given.adapter.with_few_layers(lambda: self._pass(given, lambda: None))

    def _pass(self, given: RecordedWith, cut: Cut) -> tuple[Tensor, Tensor]:
        integers, growth = self.buffer
        # Tokens that rank 0 alone knows, or those that all have been told. It stands in the recording since NCCL allows
        # none of its calls beside a replay that is under way.
        self.others.hand_over(integers[: self.capacity.tokens])
        grown = self.capacity.num_growing
        integers[:grown].add_(growth[:grown])
        prepared = Prepared(integers, self.capacity, self.page_size)
        cuts = dict.fromkeys(given.part_ends, cut)
        attend = _Noting(prepared, given, cuts)
        token_ids, keep = prepared.token_ids_and_last()
        states = None if self.slots is None else self.slots.call()
        logits = given.adapter.forward(token_ids, keep, attend, states)
        # The logits of padding are those of the first head once more, so they are sound if all others are.
        return logits, likeliest(logits)

    def start(self, plan: Plan, work: Work, late: Late | None = None) -> PassOutcome:
        """Any plan that fits: send all of it, but for tokens that are there already."""
        self._pack(plan, work, late, len(self.recording.parts))
        self._send(late)
        self._all()
        return self._outcome(plan)

    def start_head(self, plan: Plan, work: Work, heads: Heads, late: Late | None = None) -> None:
        """The head of such a pass; `finish` makes the rest."""
        self._pack(plan, work, late, heads.num_parts)
        self._send(late)
        self.begin(heads.num_parts, heads)

    def _pack(self, plan: Plan, work: Work, late: Late | None, num_parts: int) -> None:
        """Write all of it into the host's buffer, once that is free, and tell other ranks how many parts are begun with it."""
        self.sent.synchronize()
        integers, growth = self.integers
        pack(plan, work, self.capacity, integers)
        self.num_used = self.capacity.num_used(work)
        if late is not None:
            late.mark(integers[: plan.num_tokens])
        if self.slots is not None:
            self.slots.write_of(plan.states)
        grown, self.grows = self.capacity.num_growing, plan.lockstep is not None
        if self.grows:
            self.may_grow = True  # before it does: an interrupt may strike in between
            pack_growth(plan, work, self.capacity, growth[:grown])
            integers[:grown] -= growth[:grown]  # the pass begins by adding it
        elif self.may_grow:
            growth[:grown] = 0
        self.others.start(
            self.number,
            num_parts,
            self.host[0, : self.num_used],
            self.host[1, : grown * self.may_grow],
        )

    def next(self, plan: Plan, late: Late | None = None) -> PassOutcome:
        """The plan that follows: send its tokens, which are all that the graph cannot know."""
        self.others.follow(self.number, plan.token_ids)
        self.follow(plan.token_ids, late, plan.states)
        return self._outcome(plan)

    def look_ahead(self, plan: Plan, tokens: Tensor, heads: Heads) -> None:
        """Begin what follows `plan` if every row is fed its token of `tokens` [R], known on the device only."""
        self.others.begin(self.number, heads.num_parts)
        self.buffer[0, : plan.num_tokens].copy_(tokens)
        if self.slots is not None and plan.states is not None:
            self.sent.synchronize()
            self.slots.write(plan.states.targets, plan.states.following)
            self.slots.send()
            self.sent.record()
        self.begin(heads.num_parts, heads)

    def finish(self, plan: Plan) -> PassOutcome:
        """The rest of a pass that has begun."""
        self.others.finish(self.number)
        self.go_on()
        return self._outcome(plan)

    # -- without a word to other ranks: what each of them does -------------------------------------

    def take(self, num_parts: int, integers: NDArray[np.int32], growth: NDArray[np.int32]) -> None:
        """The first parts of a pass, with what rank 0 has told (`Others.start`)."""
        self.sent.synchronize()
        self.num_used, self.may_grow = len(integers), bool(len(growth))
        self.integers[0, : len(integers)] = integers
        self.integers[1, : len(growth)] = growth
        self._send(None)
        self.begin(num_parts)

    def _send(self, late: Late | None) -> None:
        """In two transfers, or in one where the device has the growth: pages that are no plan's would be most of it."""
        used, grown = self.num_used, self.capacity.num_growing
        self.buffer[0, :used].copy_(self.host[0, :used], non_blocking=True)
        if self.may_grow:
            self.buffer[1, :grown].copy_(self.host[1, :grown], non_blocking=True)
            self.may_grow = self.grows
        if self.slots is not None:
            self.slots.send()
        self.sent.record()
        if late is not None:
            late.fill(self.buffer[0, : self.capacity.tokens])

    def _all(self) -> None:
        for repeat in self.recording.parts:
            repeat()

    def follow(
        self, token_ids: Ints, late: Late | None = None, states: RowStates | None = None
    ) -> None:
        """A whole pass, one token later."""
        self.sent.synchronize()
        held = self.host[0, : len(token_ids)]
        known = held.numpy()
        known[:] = token_ids
        if late is not None:
            late.mark(known)
        tokens = self.buffer[0, : len(token_ids)]
        tokens.copy_(held, non_blocking=True)
        if self.slots is not None:
            self.slots.write_of(states)
            self.slots.send()
        self.sent.record()
        if late is not None:
            late.fill(tokens)
        self._all()

    def begin(self, num_parts: int, heads: Heads | None = None) -> None:
        """The first parts of a pass whose tokens lie on rank 0's device. The length of `heads` is looked at."""
        self.num_begun = num_parts
        parts = self.recording.parts[:num_parts]
        if heads is not None:
            heads.begin(parts)
            return
        for repeat in parts:
            repeat()

    def go_on(self) -> None:
        """The other parts of that pass."""
        for repeat in self.recording.parts[self.num_begun :]:
            repeat()

    def _outcome(self, plan: Plan) -> PassOutcome:
        rows = len(plan.heads)
        return PassOutcome(self.logits[:rows], self.greedy[: 1 + rows])  # their soundness first


class _Slots:
    """The slots of the states of a pass, a source and a target for each token, where its recording reads them."""

    def __init__(self, states: States, given: RecordedWith, num_tokens: int) -> None:
        self._states = states
        self._buffer = torch.zeros(2, num_tokens, dtype=torch.int32, device=states.device)
        self._host = given.recorder.host_buffer(2, num_tokens)
        self.write((), ())
        self.send()

    def call(self) -> StateCall:
        """The rows of a pass, as the network is told of them; recorded along with it."""
        sources, targets = self._buffer.long()
        return StateCall.one_each(self._states, sources, targets)

    def write_of(self, rows: RowStates | None) -> None:
        """Write on the host those of a plan."""
        assert rows is not None, "the network keeps states, and the plan says of none"
        assert rows.are_one_each, "other passes are launched"
        self.write(rows.sources, rows.targets)

    def write(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Write these on the host, and behind them padding's."""
        held, size = self._host.numpy(), len(sources)
        held[0, :size], held[1, :size] = sources, targets
        held[0, size:], held[1, size:] = EMPTY, self._states.nowhere

    def send(self) -> None:
        """Send them all."""
        self._buffer.copy_(self._host, non_blocking=True)


def make_harmless(integers: Tensor, capacity: Capacity) -> None:
    """All padding: nothing is stored or read by a pass with these integers, all zeros before."""
    for name, start, size in capacity.sections():
        if name == "key_page":
            integers[start : start + size] = NO_PAGE
