"""The device as a CUDA graph needs it: buffers that stay, a recording, a mark in the stream.

`engine/graphs.py` decides what is recorded and when it is replayed, and asks for no device itself. So all
of that is tested without a GPU, with a recorder that runs everything again instead of replaying it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Repeat = Callable[[], None]
Cut = Callable[[], None]  # called in the midst of the work: here one part ends, and another begins


Work = Callable[[Cut], tuple[Tensor, ...]]


class Mark(Protocol):
    """A place in the order of the device's work."""

    def record(self) -> None:
        """Put it behind all that was asked for so far."""

    def synchronize(self) -> None:
        """Wait until the device has come to it."""

    def query(self) -> bool:
        """Whether the device has come to it."""


class Recording(NamedTuple):
    """A recording that repeats the work part by part, in their order, and its results once all have been repeated."""

    parts: tuple[Repeat, ...]
    results: tuple[Tensor, ...]


class GraphRecorder(Protocol):
    """Records work on a device and repeats it."""

    def host_buffer(self, rows: int, size: int) -> Tensor:
        """Zeros [rows, size] int32 on the host, from which a transfer need not wait."""

    def mark(self) -> Mark:
        """A mark that nobody has to wait for yet."""

    def record(self, work: Work, first: Callable[[], object] | None = None) -> Recording:
        """Record `work`, which cuts itself into parts. Raises RuntimeError if it cannot be recorded.

        `first` is done in front: it launches every kernel that `work` launches, at least once, and is shorter than that.
        """

    def recover(self) -> None:
        """Be ready again after a recording that failed, or behind one that is under way."""


class CudaRecorder:
    """CUDA graphs. All share one pool of memory: one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    def host_buffer(self, rows: int, size: int) -> Tensor:
        """See `GraphRecorder`."""
        return torch.zeros(rows, size, dtype=torch.int32, pin_memory=True)

    def mark(self) -> Mark:
        """See `GraphRecorder`."""
        return torch.cuda.Event()

    def record(self, work: Work, first: Callable[[], object] | None = None) -> Recording:
        """See `GraphRecorder`. All parts share one pool of memory, and each reads what those before it left."""
        if first is not None:
            self._launch(first)
            try:
                return self._recorded(work)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # it wants something that `first` has not loaded
                self.recover()
        self._launch(lambda: work(_go_on))
        return self._recorded(work)

    def _launch(self, work: Callable[[], object]) -> None:
        """Compile and load kernels and set up libraries, which a recording must not."""
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream(self.device).wait_stream(side)

    def _recorded(self, work: Work) -> Recording:
        graphs = [torch.cuda.CUDAGraph()]
        with ExitStack() as recording:

            def cut() -> None:
                recording.close()
                graphs.append(torch.cuda.CUDAGraph())
                recording.enter_context(_capture(graphs[-1], graphs[0].pool()))

            recording.enter_context(_capture(graphs[0], self._pool))
            results = work(cut)
        self._pool = graphs[0].pool()
        return Recording(tuple(graph.replay for graph in graphs), results)

    def recover(self) -> None:
        """See `GraphRecorder`."""
        torch.cuda.synchronize(self.device)


def _capture(graph: Any, pool: Any) -> Any:
    """A recording of what this thread launches. Other threads, such as NCCL's, may ask the device for anything."""
    return torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")


def _go_on() -> None:
    """No cut."""
