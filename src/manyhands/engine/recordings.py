"""The recordings of a network's passes: those that are there, and how another one is made.

A recording takes some hundredths of a second, and all runs wait for it. So before there is anything to serve, `record_ahead` makes
*wide* recordings for every number of tokens that passes come in, with room for long lists of everything
else (`engine/capacities.py`). Kernels are compiled before that, all at once, those of other tiles too (`uncommon_capacities`). Which
other capacities are recorded, and when, is decided in `engine/matching.py`.

Where a recording fails (no memory left, a network that waits for the device in its forward), none is tried again: passes go by those
that are there, or launch by launch, and `trouble` says why. Over several ranks all make the same ones in the same order, or none: rank 0
tells the others what is recorded (`make`), and each then does what they all do (`record`). They know recordings by their numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import TypeVar

import numpy as np
import torch

from manyhands.attention.attend import LayerCall
from manyhands.attention.compile_at_once import Kernels, compiling_at_once, counting_new_kernels
from manyhands.attention.prepared import Capacity, Prepared
from manyhands.attention.triton_backend import TritonBackend
from manyhands.engine import capacities
from manyhands.engine.capacities import Wide
from manyhands.engine.expanded import ExpandedForm
from manyhands.engine.graph import Graph, LayerKind, make_harmless
from manyhands.engine.heads import part_ends
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.passes import ALONE, Late, Others
from manyhands.engine.recorder import GraphRecorder
from manyhands.engine.sampling import get_ready
from manyhands.errors import ManyhandsError, RanksFailed
from manyhands.model.adapter import ModelAdapter, experts_of_a_token, weight_bytes
from manyhands.model.experts import load_for_prompts
from manyhands.model.memory import Memory, free_bytes, num_weights
from manyhands.model.recurrent import States

T = TypeVar("T")
# Tokens, beyond which all products are the library's: those of four bits are ours for longest.
_MOST_OF_OUR_PRODUCTS = 256


class Recordings:
    """The recordings of one network, by what they have room for."""

    def __init__(
        self,
        adapter: ModelAdapter,
        memory: Memory,
        backend: TritonBackend,
        recorder: GraphRecorder,
        others: Others,
        expanded: ExpandedForm | None,
        counts: PassCounts,
        states: States | None = None,
    ) -> None:
        """`expanded`: of a network with latents, the form that its prompts have. `counts` are told of each that is made.

        `states`: of a network whose linear layers keep some.
        """
        self.adapter = adapter
        self.memory = memory
        self.backend = backend
        self.recorder = recorder
        self.others = others
        self.expanded = expanded
        self.counts = counts
        self.states = states
        self.trouble: str | None = None  # why nothing more is recorded
        self.seconds = 0.0  # that recording took
        self.graphs: dict[Capacity, Graph] = {}  # all of them, in the order of their numbers
        self.ahead: dict[tuple[int, Wide], Graph] = {}  # of those the wide ones, by tokens and kind
        self.layer_kinds: dict[LayerKind, tuple[torch.Size, LayerCall]] = {}
        attending = list(range(adapter.num_layers))
        if states is not None:
            attending = [layer for layer in attending if layer not in states.stores]
        self.part_ends = part_ends(weight_bytes(adapter), adapter.num_layers, attending)
        self.layer_bytes = _layer_bytes(adapter)

    @property
    def about(self) -> str | None:
        """How many shapes of passes were recorded and how long that took, or why they were not."""
        if not self.graphs:
            return self.trouble and f"passes are not recorded as CUDA graphs: {self.trouble}"
        recorded = (
            f"passes of {self.num_graphs} sizes were recorded as CUDA graphs in "
            f"{self.seconds:.1f} s"
        )
        return f"{recorded}, and no more can be: {self.trouble}" if self.trouble else recorded

    @property
    def num_graphs(self) -> int:
        """Capacities recorded so far."""
        return len(self.graphs)

    @property
    def numbered(self) -> list[Graph]:
        """All recordings by their numbers, which other ranks are told."""
        return list(self.graphs.values())

    def forget(self) -> None:
        """Drop all of them; the next one is the first again."""
        self.graphs.clear()
        self.ahead.clear()

    def settle(self) -> None:
        """See `Passes.settle`. NCCL allows no other of its calls while a recording with some of them runs."""
        if self.others is not ALONE and self.graphs:
            self.recorder.recover()

    def record_ahead(
        self, page_size: int, told: Callable[[int, int], None], most_tokens: int
    ) -> None:
        """Compile kernels and make the wide recordings; `told` how far that has come. Stops where one cannot be made."""
        tiling = self.backend.tiling
        is_over_ranks = self.others is not ALONE
        most = capacities.most_ahead(self.layer_bytes, most_tokens, is_over_ranks=is_over_ranks)
        # Rows that are fed one token each have a state each.
        if self.states is not None:
            most = min(most, capacities.MOST_ALONE, self.states.num_slots)
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
                if kind in self.ahead or self.trouble is not None:
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
                graph = self.graphs.get(capacity) or self.make(page_size, capacity)
                if graph is not None:
                    self.ahead[kind] = graph
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

    def make(self, page_size: int, capacity: Capacity) -> Graph | None:
        """A recording of this capacity, which all ranks are told to make (`record`); None, and `trouble`, where it cannot be."""
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
        self.seconds += time.perf_counter() - began
        self.counts.recorded += 1
        self.graphs[capacity] = graph
        return graph


def _layer_bytes(adapter: ModelAdapter) -> float:
    """Bytes of a layer's weights for a token, as if they had 16 bits: a prompt is multiplied with so many numbers, however few bits
    they are kept in.
    """
    size = weight_bytes(adapter)
    if experts_of_a_token(adapter.config) is None:
        size = max(size, 2 * num_weights(adapter))
    return size / adapter.num_layers


def _with_kernels_of_their_own(wide: Sequence[Capacity]) -> list[Capacity]:
    """Capacities that between them launch every kernel: of more tokens than our products serve, one of each kind."""
    found = {(min(each.tokens, _MOST_OF_OUR_PRODUCTS + 1), each.cutting): each for each in wide}
    return list(found.values())


def _untold(done: int, whole: int) -> None:
    """Progress that is none yet."""
