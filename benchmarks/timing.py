"""Stopwatches: one piece of work on the device, without the host in the way.

On a GPU the work is captured in a CUDA graph, several times in a row, and the graph is replayed; the
median over replays, divided by the number of calls, is its time. With the second-level cache flushed,
every call is preceded by reading a buffer larger than that cache, and what the reading alone takes is
taken off again. Reading, because that is what goes through the cache in a pass: weights. A buffer that is
written leaves lines that must be written back first, in the time of the work that wants their place. On
a CPU the work is simply called.

How fast the host is by itself says `python_loop_ms`: hosts of one kind of machine differ, and one host within minutes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

Work = Callable[[], object]
_FLUSH_BYTES = 1 << 27  # the cache of an H200 holds 60 MB
_GRAPH_MS = 4.0  # about how long one replay should take
_MOST_CALLS = 20
_WARM_UP, _REPLAYS = 3, 15
_LOOPS, _TURNS = 5, 20_000


def python_loop_ms() -> float:
    """Milliseconds of a fixed loop in Python, the median of five: how fast this host is now.

    It reads no clock and waits for nothing, so only the processor, its neighbours and the build of Python count.
    """
    times = []
    for _ in range(_LOOPS):
        began = time.perf_counter()
        held: dict[int, int] = {}
        mixed = 0
        for turn in range(_TURNS):
            held[turn & 1023] = mixed
            mixed = (mixed + len(str(turn))) ^ turn
        times.append(time.perf_counter() - began)
    return round(1e3 * statistics.median(times), 3)


def milliseconds(work: Work, device: torch.device, *, flushed: bool = False) -> float:
    """Median time of one call of `work`."""
    if device.type != "cuda":
        return _called(work)
    once = _once(work)
    calls = max(1, min(_MOST_CALLS, round(_GRAPH_MS / max(once, 1e-3))))
    if not flushed:
        return _replayed(recorded([work] * calls)) / calls
    buffer = torch.zeros(_FLUSH_BYTES // 4, dtype=torch.float32, device=device)
    empty, full = recorded([buffer.sum] * calls), recorded([buffer.sum, work] * calls)
    return _replayed(full, without=empty) / calls


def _called(work: Work) -> float:
    work()
    times = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def _once(work: Work) -> float:
    """Roughly: kernels are compiled and tuned by the first calls."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began)


def recorded(works: list[Work]) -> torch.cuda.CUDAGraph:
    """All of these, one behind the other, to be replayed without the host; each is called once first."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for work in dict.fromkeys(works):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for work in works:
            work()
    return graph


def _replayed(graph: torch.cuda.CUDAGraph, without: torch.cuda.CUDAGraph | None = None) -> float:
    """Median time of a replay; with a second graph, of the difference, both replayed in turns."""
    times = []
    for _ in range(_WARM_UP + _REPLAYS):
        spare = _replay(without) if without is not None else 0.0
        times.append(_replay(graph) - spare)
    return statistics.median(times[_WARM_UP:])


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a large square product."""
    size = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / (1e-3 * milliseconds(lambda: torch.matmul(a, b, out=out), device))


def linears_ms(
    products: list[tuple[int, int]], rows: list[int], device: torch.device, dtype: torch.dtype
) -> dict[int, float]:
    """Milliseconds of all linear layers of one pass and nothing else, by the number of rows."""
    weights = [
        torch.empty(width, depth, device=device, dtype=dtype).normal_(std=0.02)
        for depth, width in products
    ]
    times = {}
    for count in rows:
        inputs: dict[int, Tensor] = {
            depth: torch.randn(count, depth, device=device, dtype=dtype) for depth, _ in products
        }

        def work(inputs: dict[int, Tensor] = inputs) -> None:
            for weight in weights:
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)

        times[count] = milliseconds(work, device)
    return times
