"""Many kernels compiled at once, by threads, before any of them is launched.

Triton compiles a kernel when it is launched for the first time with arguments of a kind: one after the other, half a second
each. Most of it is LLVM and the assembler, which hold no lock of Python's, so threads help.

    with compiling_at_once(device) as kernels:
        ...                launch whatever will be needed, with arguments of the right kinds

Within the block a launch of a kernel that is not compiled yet leaves it to the threads and launches nothing: its results are
what memory held before. So only what is harmless with any numbers belongs there. Behind the block all are compiled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch

_MOST_THREADS = 16


class Kernels:
    """The kernels that were met."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._met: dict[tuple[int, str], Future[Any]] = {}
        self.num_new = 0  # compiled by now, since Triton's cache on disk had them not

    def meet(
        self, *, fn: Any, compile: dict[str, Any], is_manual_warmup: bool, **_: object
    ) -> bool:
        """Triton's hook in front of compiling; if it is true, the launch compiles and launches nothing."""
        if is_manual_warmup:
            return False  # by a thread
        key = id(fn.jit_function), compile["key"]
        if key not in self._met:
            asked = compile["specialization_data"]
            self._met[key] = self._threads.submit(fn.jit_function.preload, asked)
        return True

    def note(self, *, cache_hit: bool, **_: object) -> None:
        """Triton's listener behind compiling."""
        self.num_new += not cache_hit

    def wait(self) -> None:
        """Until those that were met are compiled. One that fails will fail again when it is launched, and say why."""
        wait(self._met.values())


@contextmanager
def compiling_at_once(device: torch.device) -> Iterator[Kernels]:
    """See the module. A hook or a listener that stood there before has its place back behind the block."""
    from triton import knobs

    # Triton compiles for the device that is current in a thread.
    num_threads = min(_MOST_THREADS, os.cpu_count() or 1)
    at_first = torch.cuda.set_device, (device,)
    threads = ThreadPoolExecutor(num_threads, "manyhands-compile", *at_first)
    kernels = Kernels(threads)
    hook, listener = knobs.runtime.jit_cache_hook, knobs.compilation.listener
    knobs.runtime.jit_cache_hook, knobs.compilation.listener = kernels.meet, kernels.note
    try:
        yield kernels
        kernels.wait()
    finally:
        knobs.runtime.jit_cache_hook, knobs.compilation.listener = hook, listener
        threads.shutdown(wait=False, cancel_futures=True)
