"""Many kernels compiled at once, by processes, before any of them is launched.

Triton compiles a kernel when it is launched for the first time with arguments of a kind: one after the other, half a second
each. Half of that is Python, so threads would wait for each other.

    with compiling_at_once(told) as kernels:
        ...                launch whatever will be needed, with arguments of the right kinds

Within the block a launch by this thread of a kernel that is not compiled yet is noted and launches nothing: its results are
what memory held before. So only what is harmless with any numbers belongs there. At the end of the block this process is forked;
its children compile what was noted into Triton's cache on disk, touch no device, and end; and this process loads each from there.
What a child cannot compile is left to the launch that needs it, and so is all the rest if one says nothing for long.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_MOST_PROCESSES = 16
_PATIENCE = 120.0  # seconds for the next kernel, of which the slowest takes ten

Noted = Callable[[], Any]  # compiles a kernel for a kind of arguments, or loads it


class Kernels:
    """Kernels that are compiled or loaded, and those that are to be."""

    def __init__(self, listener: Any = None) -> None:
        """`listener`: one that stood in Triton before, told as ever of what this process compiles or loads."""
        self._thread, self._listener = threading.get_ident(), listener
        self._noted: dict[tuple[int, str], Noted] = {}
        self.num_new = 0  # compiled by now, since Triton's cache on disk had them not

    def meet(
        self, *, fn: Any, compile: dict[str, Any], is_manual_warmup: bool, **_: object
    ) -> bool:
        """Triton's hook in front of compiling; if it is true, the launch compiles and launches nothing."""
        if is_manual_warmup or threading.get_ident() != self._thread:
            return False  # one that was noted, or a launch of another thread
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

    def compile(self, told: Callable[[int, int], None]) -> None:
        """Compile those that were noted; `told` is called with how many of how many are.

        One that fails will fail again when it is launched, and say why.
        """
        if not self._noted:
            return
        noted = list(self._noted.values())
        with _processes(noted) as processes:
            compiled = processes.imap_unordered(_compiled, range(len(noted)))
            for done in range(len(noted)):
                try:
                    index, num_new = compiled.next(timeout=_PATIENCE)
                except multiprocessing.TimeoutError:
                    return
                if num_new is not None:
                    noted[index]()
                    self.num_new += num_new
                told(done + 1, len(noted))


_inherited: list[Noted] = []  # of a child: what its parent had noted when it was forked


@contextmanager
def _processes(noted: list[Noted]) -> Iterator[Any]:
    """A pool of children that know these. None is left behind the block."""
    from triton.runtime import driver

    num_processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), len(noted))
    begin = noted, _NoDevice(driver.active)
    with warnings.catch_warnings():
        # A fork of a process with threads: a child takes up nothing that one of these might have held.
        warnings.simplefilter("ignore", DeprecationWarning)
        context = multiprocessing.get_context("fork")
        processes = context.Pool(num_processes, _begin_child, begin)
    with processes:
        yield processes


class _NoDevice:
    """As much of Triton's driver as compiling asks for: a forked process must not touch the device."""

    def __init__(self, driver: Any) -> None:
        self._device, self._target = driver.get_current_device(), driver.get_current_target()

    def get_current_device(self) -> Any:
        """The device's number in the parent."""
        return self._device

    def get_current_target(self) -> Any:
        """The architecture that kernels are compiled for."""
        return self._target


def _begin_child(noted: list[Noted], device: _NoDevice) -> None:
    """An interrupt is the parent's business, and it ends its children."""
    from triton.runtime import driver

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    driver.set_active(device)
    _inherited[:] = noted


def _compiled(index: int) -> tuple[int, int | None]:
    """In a child: compile one. (Its number; how many were not on disk, or None if it failed.)"""
    try:
        with counting_new_kernels() as kernels:
            _inherited[index]()
    except Exception:
        return index, None
    return index, kernels.num_new


@contextmanager
def compiling_at_once(told: Callable[[int, int], None]) -> Iterator[Kernels]:
    """See the module; `told` as in `Kernels.compile`.

    A hook or a listener that stood there before has its place back behind the block.
    """
    from triton import knobs

    with counting_new_kernels() as kernels:
        hook = knobs.runtime.jit_cache_hook
        knobs.runtime.jit_cache_hook = kernels.meet
        try:
            yield kernels
            kernels.compile(told)
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
