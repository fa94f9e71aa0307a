"""The device as a CUDA graph needs it: buffers that stay, a recording, a mark in the stream.

`engine/matching.py` decides what is recorded and `engine/graphs.py` when it is replayed, and neither asks for a device itself. So all
of that is tested without a GPU, with a recorder that runs everything again instead of replaying it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Repeat = Callable[[], None]
Cut = Callable[[], None]  # called in the midst of the work: here one part ends, and another begins
# Its results: a large one, which is lent, and a small one, which is kept (`Recording`).
Work = Callable[[Cut], tuple[Tensor, Tensor]]


class Mark(Protocol):
    """A place in the order of the device's work."""

    def record(self) -> None:
        """Put it behind all that was asked for so far."""

    def synchronize(self) -> None:
        """Wait until the device has come to it."""

    def query(self) -> bool:
        """Whether the device has come to it."""


class Recording(NamedTuple):
    """A recording that repeats the work part by part, in their order, and its results once all have been repeated.

    What is kept stands until this recording is repeated again. What is lent stands until any recording is: a batch of logits takes
    up to 80 MB with a vocabulary of 152 000 tokens, and an engine has some fifty recordings.
    """

    parts: tuple[Repeat, ...]
    lent: Tensor
    kept: Tensor


class GraphRecorder(Protocol):
    """Records work on a device and repeats it."""

    def host_buffer(self, rows: int, size: int) -> Tensor:
        """Zeros [rows, size] int32 on the host, from which a transfer need not wait."""

    def mark(self) -> Mark:
        """A mark that nobody has to wait for yet."""

    def record(self, work: Work) -> Recording:
        """Record `work`, which cuts itself into parts. Raises RuntimeError if it cannot be recorded."""

    def recover(self) -> None:
        """Be ready again after a recording that failed, or behind one that is under way."""


class CudaRecorder:
    """CUDA graphs. All share one pool of memory: one runs at a time.

    The first work runs once before it is recorded, so that whatever is made once and kept is there. Others are recorded
    at once and repeated when that is done, which says as much of faults: the device works while the host records the next. A work
    that cannot be recorded so, since something in it is met for the first time, runs once and is recorded again, and so is every
    work behind it: where one kernel cannot be loaded within a recording, none can.
    """

    def __init__(self, device: torch.device, *, always_runs: bool = False) -> None:
        """`always_runs`: every work runs before it is recorded, and is not repeated behind that."""
        self.device = device
        self._always_runs = always_runs
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None
        # Graphs whose recording was not ended: torch's allocator goes on asking these.
        self._not_ended: list[Any] = []

    def host_buffer(self, rows: int, size: int) -> Tensor:
        """See `GraphRecorder`."""
        return torch.zeros(rows, size, dtype=torch.int32, pin_memory=True)

    def mark(self) -> Mark:
        """See `GraphRecorder`."""
        return torch.cuda.Event()

    def record(self, work: Work) -> Recording:
        """See `GraphRecorder`. All parts share one pool of memory, and each reads what those before it left."""
        if self._pool is not None and not self._always_runs:
            try:
                return self._recorded(work, repeats=True)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                self._always_runs = True
            self.recover()
        ours, current = self._stream, torch.cuda.current_stream(self.device)
        ours.wait_stream(current)
        with torch.cuda.stream(ours):
            work(_go_on)  # loads kernels and sets up libraries
        current.wait_stream(ours)
        self.recover()
        return self._recorded(work, repeats=False)

    def recover(self) -> None:
        """See `GraphRecorder`."""
        torch.cuda.synchronize(self.device)

    @property
    def _stream(self) -> torch.cuda.Stream:
        # One for all: a library keeps a workspace for each stream that it has met, an allocator its blocks.
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)
        return self._side

    def _recorded(self, work: Work, *, repeats: bool) -> Recording:
        torch.cuda.empty_cache()  # a recording's memory is its own
        graphs, before = [torch.cuda.CUDAGraph()], len(self._not_ended)
        try:
            with ExitStack() as recording:

                def cut() -> None:
                    recording.close()
                    graphs.append(torch.cuda.CUDAGraph())
                    recording.enter_context(self._capture(graphs[-1], graphs[0].pool()))

                recording.enter_context(self._capture(graphs[0], self._pool))
                results = work(cut)
        except BaseException:
            if len(self._not_ended) > before:
                self._pool = self._side = None  # both may be in the midst of it for good
            raise
        self._pool = graphs[0].pool()
        if repeats:
            for graph in graphs:
                graph.replay()
        lent, kept = results
        return Recording(tuple(graph.replay for graph in graphs), _lent(lent, graphs), kept)

    @contextmanager
    def _capture(self, graph: Any, pool: Any) -> Iterator[None]:
        """A recording of what this thread launches; it waits for nothing, as `torch.cuda.graph` would for the device.

        Other threads, such as NCCL's, may ask the device for anything meanwhile.
        """
        with torch.cuda.stream(self._stream):
            self._not_ended.append(graph)
            try:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                yield
            finally:
                graph.capture_end()
                self._not_ended.pop()


class _Lent:
    """Memory of a recording's pool as PyTorch takes it from other libraries.

    A tensor made of it keeps the graphs, and through them the pool, and no part of the pool for itself.
    """

    def __init__(self, tensor: Tensor, graphs: Sequence[Any]) -> None:
        self._graphs = graphs
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "strides": tuple(step * tensor.itemsize for step in tensor.stride()),
            "typestr": f"<i{tensor.itemsize}",  # it has no name for bfloat16
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _lent(tensor: Tensor, graphs: Sequence[Any]) -> Tensor:
    """The same numbers at the same place, which other recordings of the pool may write over."""
    return torch.as_tensor(_Lent(tensor, graphs), device=tensor.device).view(tensor.dtype)


def _go_on() -> None:
    """No cut."""
