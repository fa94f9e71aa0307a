"""Where a pass spends its time: attention, linear layers, the rest of the network, set-up, an idle device.

On a GPU, events around the replay of a recorded pass say how long the device was busy; what a pass takes
beyond that is the host's whole cost, whatever the host did meanwhile. The profiler says when every kernel
ran; kernels are told apart by their names. A kernel may be brought in while the one in front still runs,
and then waits for it: where several are there, the time belongs to the one that came first. Under the
profiler all kernels take longer, so its times are scaled to what the device takes without it.
Set-up (planning, and preparing the plan for the backend) is measured on the host, with a clock around the
two calls; it hides behind the device or it does not, so it is no summand.
"""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from benchmarks.engine_parts import executor_of, recordings_of
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.recorder import Recording
from manyhands.evaluation.bench import time_passes

# In this order: the first that is found in a kernel's name decides.
KINDS = (
    (
        "collectives",
        re.compile(r"nccl|cross_device_reduce|^_meet", re.I),
    ),  # of several ranks, with the wait for the others
    (
        "attention",
        re.compile(
            r"attend|attention|append|queries|merge|partial|lone_|specialised_|small_eight_bits|flash|fmha",
            re.I,
        ),
    ),
    (
        "linears",
        re.compile(
            r"gemm|gemv|nvjet|cutlass|cublas|split_?k|matmul|w4a16|wgmma|skinny|^_ring|^_gate_up",
            re.I,
        ),
    ),
)
_NAMED_KERNELS = 12


class Kernel(NamedTuple):
    """One run of a kernel, in microseconds."""

    name: str
    start: float
    end: float


def breakdown(engine: Engine, views: Sequence[View], ms: float, *, passes: int) -> dict[str, Any]:
    """Milliseconds per pass by kind; `ms` is what the whole pass takes without a profiler."""
    with _stopwatch(engine) as times, _device_clock(engine) as replays:
        time_passes(engine, views, passes=passes)
    parts: dict[str, Any] = {
        "ms": ms,
        **{f"ms_{name}": _median_ms(times[name]) for name in ("plan", "prepare")},
    }
    if not engine.facts.is_on_gpu:
        return parts
    kernels = _kernels(engine, views, passes)
    if not kernels:
        return {**parts, "note": "the profiler saw no kernels"}
    busy = statistics.median(begin.elapsed_time(end) for begin, end in replays) if replays else None
    return {**parts, **account(kernels, ms, passes, busy)}


def account(
    kernels: list[Kernel], ms: float, passes: int, busy: float | None = None
) -> dict[str, Any]:
    """The share of each kind of kernel in one of so many passes, which keeps the device busy for `busy` ms."""
    by_kind: dict[str, float] = defaultdict(float)
    by_name: dict[str, float] = defaultdict(float)
    for kernel, microseconds in charged(kernels):
        spent = 1e-3 * microseconds / passes
        by_kind[kind_of(kernel.name)] += spent
        by_name[kernel.name] += spent
    most = sorted(by_name.items(), key=lambda item: -item[1])[:_NAMED_KERNELS]
    profiled = sum(by_kind.values())
    scale = 1.0 if busy is None else busy / profiled
    told = ("attention", "linears", "rest", *(each for each in ("collectives",) if each in by_kind))
    return {
        **{f"ms_{kind}": round(scale * by_kind[kind], 4) for kind in told},
        "ms_idle": round(ms - scale * profiled, 4),
        "ms_profiled": round(profiled, 4),
        "kernels": [[name[:70], round(scale * spent, 4)] for name, spent in most],
    }


def charged(kernels: Iterable[Kernel]) -> Iterator[tuple[Kernel, float]]:
    """Every kernel, and the microseconds from when those in front of it were over until it was."""
    until = float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: (kernel.start, kernel.end)):
        yield kernel, max(0.0, kernel.end - max(kernel.start, until))
        until = max(until, kernel.end)


def kind_of(kernel: str) -> str:
    """The purpose of a kernel of this name."""
    return next((kind for kind, pattern in KINDS if pattern.search(kernel)), "rest")


def _kernels(engine: Engine, views: Sequence[View], passes: int) -> list[Kernel]:
    """Everything that ran on the device during so many passes."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        time_passes(engine, views, passes=passes, warm_up=0)
    return [
        Kernel(event.name, event.time_range.start, event.time_range.end)
        for event in seen.events()
        if event.device_type == DeviceType.CUDA
    ]


@contextmanager
def _stopwatch(engine: Engine) -> Iterator[dict[str, list[float]]]:
    """Clocks around planning and preparing, and gone again."""
    times: dict[str, list[float]] = defaultdict(list)
    backend = executor_of(engine).backend
    watched: dict[str, tuple[object, str]] = {
        "plan": (engine.planner, "plan"),
        "prepare": (backend, "prepare"),
    }
    for name, (owner, verb) in watched.items():
        setattr(owner, verb, _timed(getattr(owner, verb), times[name]))
    try:
        yield times
    finally:
        for owner, verb in watched.values():
            delattr(owner, verb)  # the class's own shows again


@contextmanager
def _device_clock(engine: Engine) -> Iterator[list[tuple[torch.cuda.Event, torch.cuda.Event]]]:
    """Events in front of and behind every replay of a recorded pass, while the clock is there."""
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    recordings = recordings_of(engine)
    graphs = [] if recordings is None else recordings.numbered
    usual = [graph.recording for graph in graphs]

    def clocked(recording: Recording) -> Recording:
        begun: list[torch.cuda.Event] = []
        head, *between, tail = recording.parts

        def first() -> None:
            begun[:] = [torch.cuda.Event(enable_timing=True)]
            begun[0].record()
            head()

        def last() -> None:
            end = torch.cuda.Event(enable_timing=True)
            tail()
            end.record()
            events.append((begun[0], end))

        return recording._replace(parts=(first, *between, last))

    try:
        for graph, recording in zip(graphs, usual, strict=True):
            graph.recording = clocked(recording)
        yield events
        if events:
            torch.cuda.synchronize()
    finally:
        for graph, recording in zip(graphs, usual, strict=True):
            graph.recording = recording


def _timed(call: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            times.append(time.perf_counter() - began)

    return timed


def _median_ms(seconds: list[float]) -> float | None:
    return round(1e3 * statistics.median(seconds), 4) if seconds else None
