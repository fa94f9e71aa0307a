"""Which kernels of attention a pass launches that an engine has not tried out when it got ready; without a GPU.

    python -m tests.tried_out

Launches are noted and left out; nothing is compiled. Prints JSON: how many kernels were tried out, for each plan those that it
launches besides, and the same if only what is recorded were there. In a process of its own, because Triton decides on import whether it interprets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from benchmarks import situations
from manyhands.attention import fitting
from manyhands.attention.attend import LayerCall
from manyhands.attention.eight_bits import EightBitStore
from manyhands.attention.kernels import overlap
from manyhands.attention.prepared import Capacity, Prepared, pack
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerShape, LayerStore
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import cut
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import capacities

CPU, DTYPE, DIM, PAGE = torch.device("cpu"), torch.bfloat16, 128, situations.PAGE_SIZE
PROCESSORS = 132  # of an H200
HEADS = ((32, 8), (40, 8), (8, 1), (32, 32))
IN_EIGHT_BITS = ((40, 8),)  # rows of four workers have tiles of their own there
Kernel = tuple[str, ...]
_NOT = {"grid", "num_pieces"}  # the latter by the kernels' own word


class Launches:
    """Every launch, in place of Triton's: what its kernel is compiled for."""

    def __init__(self) -> None:
        self.met: set[Kernel] = set()

    def run(self, kernel: Any, *args: object, **options: object) -> None:
        """A launch; of numbers that are no constants Triton tells apart whether they are 1, and multiples of 16.

        Unless the kernel says that it need not.
        """
        told_apart = {
            name: str(each.dtype) if isinstance(each, torch.Tensor) else each
            for name, each in options.items()
            if name not in _NOT
        }
        kinds = [
            str(each.dtype) if isinstance(each, torch.Tensor) else (each == 1, each % 16 == 0)
            for each, taken in zip(args, kernel.params, strict=False)
            if isinstance(each, torch.Tensor)
            or (isinstance(each, int) and not taken.do_not_specialize)
        ]
        self.met.add((kernel.__name__, f"{told_apart} {kinds}"))


class Stream:
    """As much of a stream as tiles side by side ask for."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def wait_stream(self, other: Stream) -> None:
        """Nothing runs."""


class Layer:
    """One layer of a network with such heads, as on an H200."""

    def __init__(
        self, heads: tuple[int, int], launches: Launches, *, eight_bits: bool = False
    ) -> None:
        self.heads, self.launches = heads, launches
        shape, dtype = LayerShape(*heads, DIM, DIM), torch.int8 if eight_bits else DTYPE
        self.backend = TritonBackend([shape], DTYPE, CPU, eight_bits=eight_bits)
        self.backend.interpreted = False
        keys, values = (torch.empty(64 * PAGE, heads[1], DIM, dtype=dtype) for _ in range(2))
        rope = Rope(torch.ones(DIM // 2), DIM)
        self.store = LayerStore(keys, values, rope)
        if eight_bits:
            scales = torch.ones(2, 64 * PAGE, heads[1])
            self.store = EightBitStore(keys, values, rope, *scales)

    def launched(self, capacity: Capacity, integers: torch.Tensor) -> set[Kernel]:
        """The kernels of a pass."""
        self.launches.met = set()
        prepared = Prepared(integers, capacity, PAGE)
        q = torch.empty(capacity.tokens, self.heads[0], DIM, dtype=DTYPE)
        self.backend.attend(self.store, q, prepared, LayerCall(layer=0, scaling=0.1))
        return self.launches.met

    def recorded(self) -> set[Kernel]:
        """The kernels of wide recordings."""
        sizes = (
            capacities.wide_capacity(tokens, self.backend.tiling, kind)
            for tokens, kind in capacities.kinds_ahead(capacities.AHEAD, self.backend.tiling)
        )
        return self._of(*sizes)

    def uncommon(self) -> set[Kernel]:
        """The kernels that are tried out besides."""
        return self._of(*capacities.uncommon_capacities(self.backend.tiling))

    def _of(self, *sizes: Capacity) -> set[Kernel]:
        return set[Kernel]().union(*(self.launched(each, zeros(each)) for each in sizes))

    def needed(self, plan: Plan) -> set[Kernel]:
        """The kernels of a pass that is made for this plan alone."""
        work = cut(plan, self.backend.tiling).leaving(self.backend.tiling)
        capacity = Capacity.of(plan, work)
        integers = zeros(capacity)
        pack(plan, work, capacity, integers.numpy())
        return self.launched(capacity, integers)


def zeros(capacity: Capacity) -> torch.Tensor:
    """Its integers."""
    return torch.zeros(capacity.num_integers, dtype=torch.int32)


def prompt(new: int, history: int = 0, others: int = 0) -> Plan:
    """A part of a prompt, with a row that writes right behind it and others that write elsewhere."""
    text = situations.block_of(history)
    ends = [Block() for _ in range(1 if others else 0)]
    elsewhere = [situations.block_of(900) for _ in range(others - 1)]
    blocks = [text, *ends, *elsewhere]
    pages = sum(-(-(each.num_tokens + new) // PAGE) for each in (text, *ends))
    pool = PagePool(pages + len(elsewhere) * (900 // PAGE + 1), PAGE)
    pool.reserve((each, each.num_tokens) for each in blocks)
    views: Sequence[View] = [*(View([text, end]) for end in ends), *map(_alone, elsewhere)]
    rows = [Row(View([text]), (0,) * new), *(Row(view, (0,)) for view in views)]
    return Planner(pool).plan(Step(rows))


def beside(new: int, workers: int) -> Plan:
    """A part of a prompt, beside a team that writes."""
    history, desks = situations.block_of(5000), [Block() for _ in range(workers)]
    pool = PagePool((5000 + new) // PAGE + 3 + workers, PAGE)
    pool.reserve([(history, history.num_tokens)])
    team = [Row(View([history, own]), (0,)) for own in desks]
    return Planner(pool).plan(Step([Row(View([Block()]), (0,) * new), *team]))


def _alone(block: Block) -> View:
    return View([block])


def plans() -> Iterator[tuple[str, Plan]]:
    """Passes as they come: parts of prompts, teams, completions, trees."""
    for new in (769, 1000, 2047, 4096):
        for history in (0, 500, 5000):
            for others in (0, 1, 2, 16, 128):
                yield f"{new} behind {history}, {others} others", prompt(new, history, others)
    for workers in (2, 4, 8):
        yield f"1000 beside {workers} workers", beside(1000, workers)
    for workers in (1, 2, 4, 8, 16, 28):
        for common in (100, 1024, 16384, 65536):
            for prefixes in (0, 1):
                plan, _ = situations.live_team(workers, common, 100, prefixes=prefixes)
                yield f"{workers} workers, {common}, {prefixes} ended", plan
    make = partial(situations.planned, num_new=1)
    for batch, prefix, suffix in ((8, 100, 1), (64, 2048, 64), (512, 1024, 128), (1024, 2048, 64)):
        views = situations.completions(batch, prefix, suffix)
        yield f"{batch} completions behind {prefix}", make(views)[0]
    for shape in situations.TREES:
        yield shape, make(situations.tree(shape))[0]


def main() -> None:
    """See the module."""
    launches = Launches()
    patched: Any = JITFunction
    patched.run = lambda kernel, *args, **options: launches.run(kernel, *args, **options)
    cuda: Any = torch.cuda
    cuda.Stream, cuda.current_stream, cuda.stream = Stream, Stream, lambda _: nullcontext()
    cuda.is_current_stream_capturing = lambda: True
    overlap._can_overlap = lambda device: True  # type: ignore[assignment]
    fits: Any = fitting
    fits._num_processors = lambda device: PROCESSORS
    fits._can_map = lambda _shape, stored, _device: stored.itemsize == 2
    fits._can_specialise = lambda *_: True
    found: dict[str, Any] = {"tried": {}, "besides": {}, "only_recorded": {}}
    passes = list(plans())  # the same for all heads
    kinds = [*((heads, False) for heads in HEADS), *((heads, True) for heads in IN_EIGHT_BITS)]
    for heads, eight_bits in kinds:
        layer = Layer(heads, launches, eight_bits=eight_bits)
        each = layer.backend.launches
        layer.backend.launches = tuple(replace(one, is_mapped=not eight_bits) for one in each)
        recorded = layer.recorded()
        tried = recorded | layer.uncommon()
        name = "/".join(map(str, heads)) + ", eight bits" * eight_bits
        found["tried"][name] = len(tried)
        for what, plan in passes:
            needed = layer.needed(plan)
            for part, there in (("besides", tried), ("only_recorded", recorded)):
                if more := needed - there:
                    found[part][f"{name}: {what}"] = sorted(" ".join(one) for one in more)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
