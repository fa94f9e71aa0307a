"""Many kernels compiled at once, by threads, before any of them is launched.

Triton compiles a kernel when it is launched for the first time with arguments of a kind: one after the other, half a second
each. Much of it is LLVM and the assembler, which hold no lock of Python's, so threads help.

    with compiling_at_once(device) as kernels:
        ...                launch whatever will be needed, with arguments of the right kinds

Within the block a launch by this thread of a kernel that is not compiled yet is noted and launches nothing: its results are
what memory held before. So only what is harmless with any numbers belongs there. At the end of the block all that were noted are
compiled; not before, since sixteen threads that want Python's lock leave next to nothing of it to the one that launches.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

import torch

_MOST_THREADS = 16


class Kernels:
    """Kernels that are compiled or loaded, and those that are to be."""

    def __init__(self, listener: Any = None) -> None:
        """`listener`: one that stood in Triton before, told as ever."""
        self._thread, self._listener = threading.get_ident(), listener
        self._noted: dict[tuple[int, str], Callable[[], Any]] = {}
        self.num_new = 0  # compiled by now, since Triton's cache on disk had them not

    def meet(
        self, *, fn: Any, compile: dict[str, Any], is_manual_warmup: bool, **_: object
    ) -> bool:
        """Triton's hook in front of compiling; if it is true, the launch compiles and launches nothing."""
        if is_manual_warmup or threading.get_ident() != self._thread:
            return False  # by one of our threads, or a launch of another one
        kernel, asked = fn.jit_function, compile["specialization_data"]
        self._noted.setdefault((id(kernel), compile["key"]), lambda: kernel.preload(asked))
        return True

    def listen(self, *, cache_hit: bool, **facts: Any) -> None:
        """Triton's listener behind compiling."""
        self.num_new += not cache_hit
        if self._listener is not None:
            self._listener(cache_hit=cache_hit, **facts)

    @property
    def num_noted(self) -> int:
        """Kernels that the block has launched and that were not there."""
        return len(self._noted)

    def compile(self, device: torch.device, told: Callable[[int, int], None]) -> None:
        """Compile those that were noted; `told` is called with how many of how many are.

        One that fails will fail again when it is launched, and say why.
        """
        num_threads = min(_MOST_THREADS, os.cpu_count() or 1)
        # Triton compiles for the device that is current in a thread.
        at_first = torch.cuda.set_device, (device,)
        threads = ThreadPoolExecutor(num_threads, "manyhands-compile", *at_first)
        try:
            asked = [threads.submit(work) for work in self._noted.values()]
            for done, _ in enumerate(as_completed(asked)):
                told(done + 1, self.num_noted)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def compiling_at_once(device: torch.device, told: Callable[[int, int], None]) -> Iterator[Kernels]:
    """See the module; `told` as in `Kernels.compile`.

    A hook or a listener that stood there before has its place back behind the block.
    """
    from triton import knobs

    with counting_new_kernels() as kernels:
        hook = knobs.runtime.jit_cache_hook
        knobs.runtime.jit_cache_hook = kernels.meet
        try:
            yield kernels
            kernels.compile(device, told)
        finally:
            knobs.runtime.jit_cache_hook = hook


@contextmanager
def counting_new_kernels() -> Iterator[Kernels]:
    """Count in `num_new` the kernels that are compiled within the block."""
    from triton import knobs

    listener = knobs.compilation.listener
    kernels = Kernels(listener)
    knobs.compilation.listener = kernels.listen
    try:
        yield kernels
    finally:
        knobs.compilation.listener = listener
