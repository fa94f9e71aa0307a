"""Forward passes as CUDA graphs: all launches of a pass recorded once, replayed with one call.

A decode pass of a large model is some five hundred launches, and a host that makes them one by one takes
longer than the GPU takes to run them. A graph takes its integers from one buffer that stays where it is
(`attention/prepared.py`), so the same recording serves every plan that fits its capacity:

    another step           the buffer is written anew, in one transfer
    plain decoding         the graph itself adds the growth of every integer to the buffer; only the
                           new token ids are sent
    rows to spare          padding: their keys are stored nowhere and they read nothing

A capacity is recorded when it is asked for the second time, so that widths that come up once cost
nothing. Where recording fails (no memory left, a network that waits for the device in its forward),
passes go on launch by launch, and `trouble` says why.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from manyhands.attention.prepared import Capacity, Prepared, pack, pack_growth
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import Work, cut
from manyhands.cache.plan import Plan
from manyhands.engine.passes import Attending, Outcome, Passes
from manyhands.model.adapter import ModelAdapter
from manyhands.model.memory import Memory

MOST_TOKENS = 2048  # of a recorded pass; wider ones are long enough to hide their launches
# Sizes are rounded up to at least these, so that a team's growing history changes its capacity rarely.
_LEAST = Capacity(
    tokens=1,
    rows=1,
    entries=16,
    pages=512,
    small=64,
    large=0,
    partials=256,
    most_partials=32,
    small_rows=16,
    large_rows=16,
)


class GraphedPasses(Passes):
    """Runs plans by recorded graphs where it can."""

    backend: TritonBackend

    def __init__(self, adapter: ModelAdapter, memory: Memory, backend: TritonBackend) -> None:
        super().__init__(adapter, memory, backend)
        self.trouble: str | None = None
        self.seconds_recording = 0.0
        self._graphs: dict[Capacity, _Graph] = {}
        self._seen: set[Capacity] = set()
        self._newest: tuple[_Graph, Plan] | None = None
        self._pool: Any = None  # memory that all graphs share: one runs at a time

    @property
    def about(self) -> str | None:
        """How many shapes of passes were recorded and how long that took, or why they were not."""
        if self.trouble is not None or not self._graphs:
            return self.trouble
        count = (
            f"{self.num_graphs} shapes of passes" if self.num_graphs > 1 else "a shape of passes"
        )
        return f"{count} recorded as CUDA graphs in {self.seconds_recording:.1f} s"

    @property
    def num_graphs(self) -> int:
        """Capacities recorded so far."""
        return len(self._graphs)

    def forward(self, plan: Plan) -> Outcome:
        """See `Passes.forward`."""
        if self._newest is not None and _follows(plan, self._newest[1]):
            graph, _ = self._newest
            self._newest = graph, plan
            return graph.next(plan)
        self._newest = None
        if plan.num_tokens > MOST_TOKENS or self.trouble is not None:
            return super().forward(plan)
        work = cut(plan, self.backend.tiling)
        capacity = _capacity(plan, work)
        recorded = self._graphs.get(capacity) or self._record(plan, capacity)
        if recorded is None:
            return super().forward(plan)
        self._newest = recorded, plan
        return recorded.start(plan, work)

    def _record(self, plan: Plan, capacity: Capacity) -> _Graph | None:
        if capacity not in self._seen:
            self._seen.add(capacity)
            return None
        began = time.perf_counter()
        try:
            graph = _Graph(self, capacity, plan.page_size, self._pool)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            torch.cuda.synchronize(self.adapter.device)
            reason = str(error).strip().splitlines()[0][:200]
            self.trouble = f"passes are not recorded as CUDA graphs: {reason}"
            return None
        self.seconds_recording += time.perf_counter() - began
        self._pool = graph.graph.pool()
        self._graphs[capacity] = graph
        return graph


class _Graph:
    """The recording of one capacity."""

    def __init__(
        self, passes: GraphedPasses, capacity: Capacity, page_size: int, pool: Any
    ) -> None:
        self.capacity = capacity
        self.page_size = page_size
        device = passes.adapter.device
        size = capacity.num_integers
        self.buffer = torch.zeros(2, size, dtype=torch.int32, device=device)
        self.host = torch.zeros(2, size, dtype=torch.int32, pin_memory=True)
        self.sent = torch.cuda.Event()
        self._make_harmless()
        self.graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self._pass(passes)  # compiles kernels and sets up libraries, which a recording must not
        torch.cuda.current_stream(device).wait_stream(side)
        with torch.cuda.graph(self.graph, pool=pool):
            self.logits, self.greedy = self._pass(passes)

    def _make_harmless(self) -> None:
        """All padding: nothing is stored or read while the launches are tried out."""
        at = 0
        for name, size in self.capacity.sections():
            if name == "key_page":
                self.buffer[0, at : at + size] = -1
            at += size

    def _pass(self, passes: GraphedPasses) -> tuple[Tensor, Tensor]:
        integers, growth = self.buffer
        integers.add_(growth)
        prepared = Prepared(integers, self.capacity, self.page_size)
        attend = Attending(prepared, passes.memory, passes.backend)
        token_ids, keep = prepared.token_ids.long(), prepared.last.long()
        logits = passes.adapter.forward(token_ids, keep, attend)
        # Padding may hold anything in networks that divide by what it lacks; its rows are left out.
        sound = (logits < float("inf")).all(dim=-1).to(torch.int64)
        return logits, torch.stack((logits.argmax(dim=-1), sound))

    def start(self, plan: Plan, work: Work) -> Outcome:
        """Any plan that fits: send all of it."""
        self.sent.synchronize()
        integers, growth = self.host.numpy()
        pack(plan, work, self.capacity, integers)
        if plan.lockstep is None:
            growth[:] = 0
        else:
            pack_growth(plan, work, self.capacity, growth)
        integers -= growth  # the pass begins by adding it
        self.buffer.copy_(self.host, non_blocking=True)
        return self._replay(plan)

    def next(self, plan: Plan) -> Outcome:
        """The plan that follows: send its tokens, which are all that the graph cannot know."""
        self.sent.synchronize()
        token_ids = self.host[0, : plan.num_tokens]
        token_ids.numpy()[:] = plan.token_ids
        self.buffer[0, : plan.num_tokens].copy_(token_ids, non_blocking=True)
        return self._replay(plan)

    def _replay(self, plan: Plan) -> Outcome:
        self.sent.record()
        self.graph.replay()
        rows = plan.num_rows
        tokens, sound = self.greedy[0, :rows], self.greedy[1, :rows]
        return Outcome(self.logits[:rows], torch.cat((tokens, sound.min().view(1))))


def _follows(plan: Plan, last: Plan) -> bool:
    """Whether this plan is the last one, one token later."""
    return (
        plan.lockstep is not None and plan.lockstep is last.lockstep and plan.turn == last.turn + 1
    )


def _capacity(plan: Plan, work: Work) -> Capacity:
    """What to record for this plan: sizes rounded up, to few different ones."""
    exact = vars(Capacity.of(plan, work))
    sizes = {name: max(size, getattr(_LEAST, name)) for name, size in exact.items()}
    return Capacity(**sizes).rounded()
