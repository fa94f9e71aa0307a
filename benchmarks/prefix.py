"""Many completions of one prompt, end to end: Hydragen's sweep (section 4.1) on one GPU.

    python -m benchmarks.prefix --models codellama-7b,codellama-13b --minutes 5

Every completion writes 128 tokens (`--tokens`) behind a prefix that all share; the prefix is made up (random keys and
values), so only decoding is timed, as in the paper. Ceiling: the same steps with an attention that returns
zeros. Peer: the same engine, told that every row reads the (physically shared) prefix for itself.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from benchmarks.decode import check_engine_op, each_network, free, how, recording, steady
from benchmarks.engine_parts import executor_of
from benchmarks.gate import check_step
from benchmarks.op_peers import unshared
from benchmarks.results import Clock, Results, parser
from benchmarks.shapes import SHAPES, TINY, Shape
from manyhands.attention.attend import Backend
from manyhands.attention.store import LayerStore
from manyhands.cache.block import Block
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Step
from manyhands.cache.view import View
from manyhands.engine.backends import make_passes
from manyhands.engine.engine import Engine
from manyhands.evaluation.bench import fill, time_passes

PREFIXES, TOKENS, LONGEST = (
    (1024, 2048, 4096, 8192),
    128,
    16384,
)  # the last prefix ends in time for them
BATCHES = {
    "codellama-7b": (1024, 256, 64),
    "codellama-13b": (512, 128),
    "codellama-34b": (512, 128),
}
UNSHARED = ((1024, 1024), (512, 1024), (256, 1024), (256, 4096))  # (batch, prefix), if measured
_CHECKED_ROWS = 4
_PAGE = 64  # tokens, the largest that an engine uses
_SHARE_OF_MEMORY = 0.9
_EDGE = 16  # passes at the beginning and at the end whose times are told apart


class Prefix:
    """One network: batches by prefixes."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        self.arguments, self.clock = arguments, clock
        self.device = torch.device(arguments.device)
        tiny = arguments.tiny
        self.shape: Shape = TINY if tiny else SHAPES[name]
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        tokens: int = arguments.tokens
        self.prefixes: tuple[int, ...] = (32, 64) if tiny else (*PREFIXES, LONGEST - tokens)
        self.tokens = 6 if tiny else tokens
        self.batches: tuple[int, ...] = (8, 4) if tiny else BATCHES[name]
        own = "" if tokens == TOKENS else f"_{tokens}"
        self.results = Results(f"prefix_{name}{own}", arguments, clock)

    def run(self) -> None:
        """The longest batch first: it is what the targets speak of."""
        with tempfile.TemporaryDirectory() as folder:
            engine = self._engine(self.shape.write(Path(folder)))
        self.results.put(
            model=self.shape.title,
            dtype=str(self.dtype).removeprefix("torch."),
            tokens=self.tokens,
            kv_bytes_per_token=self.shape.token_bytes(self.dtype.itemsize),
            backend=engine.facts.backend,
        )
        for batch in self.batches:
            for prefix in self.prefixes:
                self._cell(engine, batch, prefix)
            self._ceiling(engine, batch)
        if not self.arguments.no_peers:
            for batch, prefix in ((8, 32),) if self.arguments.tiny else UNSHARED:
                if batch in self.batches:
                    self._unshared(engine, batch, prefix)
        self.results.put(**recording(engine))
        del engine
        free(self.device)

    def _engine(self, place: Path) -> Engine:
        """An engine whose memory holds the largest batch; a batch that cannot fit is made smaller."""
        token = self.shape.token_bytes(self.dtype.itemsize)
        weights = sum(a * b for a, b in self.shape.products()) * self.dtype.itemsize
        room = 1 << 30
        if self.device.type == "cuda":
            room = int(_SHARE_OF_MEMORY * torch.cuda.mem_get_info(self.device)[0]) - weights
        while self._most() * token > room and max(self.batches) > 1:
            halved = max(self.batches) // 2
            self.results.leave_out(f"batch {max(self.batches)}", f"out of memory; {halved} instead")
            self.batches = tuple(sorted({min(b, halved) for b in self.batches}, reverse=True))
        return Engine.load(
            place,
            device=self.arguments.device,
            dtype=str(self.dtype).removeprefix("torch."),
            backend=self.arguments.backend,
            weights="dummy",
            memory_tokens=self._most(),
        )

    def _most(self) -> int:
        """Tokens of memory that the largest cell takes, pages that are partly empty included."""
        completion = -(-self.tokens // _PAGE) * _PAGE
        return max(self.prefixes) + completion * max(self.batches) + (_CHECKED_ROWS + 4) * _PAGE

    def _cell(self, engine: Engine, batch: int, prefix: int) -> None:
        what = f"batch {batch}, prefix {prefix}"
        if not self.clock.allows(10):
            self.results.leave_out(what, "the time was over")
            return
        shared = fill(engine, Block("prefix"), prefix, seed=0).freeze()
        gate = self._gate(engine, shared, batch)
        if gate is None:
            self.results.add("red", batch=batch, prefix=prefix)
            return
        seconds = self._write(engine, shared, batch)
        line = account(seconds, batch)
        self.results.add("cells", batch=batch, prefix=prefix, **line, gate=gate, **how(engine))

    def _write(self, engine: Engine, shared: Block, batch: int) -> list[float]:
        """Seconds of each pass of `tokens` passes from empty completions, after a few on others."""
        time_passes(engine, fresh(shared, batch), passes=1, warm_up=3)
        return steady(
            engine,
            lambda: time_passes(engine, fresh(shared, batch), passes=self.tokens, warm_up=0),
        )

    def _gate(self, engine: Engine, shared: Block, batch: int) -> dict[str, Any] | None:
        views, twins = fresh(shared, batch), fresh(shared, min(batch, _CHECKED_ROWS))
        step = check_step(engine, views, twins)
        op = check_engine_op(engine, views, sorted({0, batch // 2, batch - 1}))
        green = step.is_green and op.is_green
        return {"step": asdict(step), "op": asdict(op)} if green else None

    def _ceiling(self, engine: Engine, batch: int) -> None:
        """No attention at all: wrong on purpose, and the most that any attention could reach."""
        if not self.clock.allows(8):
            self.results.leave_out(f"ceiling of batch {batch}", "the time was over")
            return
        shared = fill(engine, Block("prefix"), self.prefixes[0], seed=0).freeze()
        executor = executor_of(engine)
        silent = no_attention(executor.backend)
        passes = make_passes(executor.adapter, executor.memory, silent, graphs=True)
        with replaced(executor, "passes", passes):
            seconds = self._write(engine, shared, batch)
        self.results.add("ceiling", batch=batch, **account(seconds, batch), **how(engine))

    def _unshared(self, engine: Engine, batch: int, prefix: int) -> None:
        what = f"nothing shared: batch {batch}, prefix {prefix}"
        if not self.clock.allows(20):
            self.results.leave_out(what, "the time was over")
            return
        shared = fill(engine, Block("prefix"), prefix, seed=0).freeze()
        with replaced(engine, "planner", Apart(engine.planner)):
            gate = self._gate(engine, shared, batch)
            if gate is None:
                self.results.leave_out(what, "its answer is wrong")
                return
            seconds = time_passes(engine, fresh(shared, batch), passes=min(16, self.tokens))
        line = account(seconds, batch)
        self.results.add("unshared", batch=batch, prefix=prefix, **line, gate=gate)


def fresh(shared: Block, batch: int) -> list[View]:
    """Completions that have not begun."""
    return [View([shared, Block()]) for _ in range(batch)]


def account(seconds: Sequence[float], batch: int) -> dict[str, Any]:
    """Throughput of the whole, and how the passes grow longer as the completions do."""
    first, last = seconds[:_EDGE], seconds[-_EDGE:]
    return {
        "tokens_per_second": round(batch * len(seconds) / sum(seconds), 1),
        "ms": round(1e3 * statistics.median(seconds), 4),
        "ms_first": round(1e3 * statistics.median(first), 4),
        "ms_last": round(1e3 * statistics.median(last), 4),
    }


def no_attention(backend: Backend) -> Backend:
    """The same backend, and an `attend` that reads nothing."""

    def attend(
        _self: Backend, store: LayerStore, q: Tensor, *_rest: object, **_more: object
    ) -> Tensor:
        return q.new_zeros(*q.shape[:2], store.value_dim)

    silent = copy.copy(backend)
    silent.attend = MethodType(attend, silent)  # type: ignore[method-assign]  # that is the point
    return silent


class Apart:
    """A planner whose plans group nothing: every row reads for itself."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner

    def plan(self, step: Step) -> Plan:
        """The same plan, ungrouped."""
        return unshared(self.planner.plan(step))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.planner, name)


@contextmanager
def replaced(whole: Any, name: str, part: Any) -> Iterator[None]:
    """An engine, or its executor, with another part for a while."""
    first = getattr(whole, name)
    setattr(whole, name, part)
    try:
        yield
    finally:
        setattr(whole, name, first)


def main(words: list[str] | None = None) -> None:
    """Measure the networks that were asked for."""
    options = parser(__doc__, minutes=5.0)
    options.add_argument("--models", default="codellama-7b,codellama-13b")
    options.add_argument("--tokens", type=int, default=TOKENS, help="of one completion")
    arguments = options.parse_args(words)
    each_network(arguments, Prefix)


if __name__ == "__main__":
    main()
