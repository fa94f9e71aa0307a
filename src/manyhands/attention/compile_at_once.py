"""Many kernels compiled at once, by processes, before any of them is launched.

Triton compiles a kernel when it is launched for the first time with arguments of a kind: one after the other, half a second
each. Half of that is Python, so threads would wait for each other.

    with compiling_at_once(told) as kernels:
        ...                launch whatever will be needed, with arguments of the right kinds

Within the block a launch by this thread of a kernel that is not compiled yet is noted and launches nothing: its results are
what memory held before. So only what is harmless with any numbers belongs there. Places in memory that a kernel takes from
another's results begin as zeros (`may_launch_nothing`): the one may be compiled already, and the other not. At the end of the
block this process loads what Triton's cache on disk has of it, and is forked for the rest, if there is any: its children
compile that into the cache, touch no device, and end; and this process loads each from there. What a child cannot compile is
left to the launch that needs it, and so is all the rest if one says nothing for long.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

from manyhands.hub import no_warnings

_MOST_CHILDREN = 16
_PATIENCE = 120.0  # seconds for the next kernel, of which the slowest takes ten

# Hooks and listeners of Triton's are those of the whole process, and have to be put back in order: one thread at a time.
_ONE_AT_A_TIME = threading.RLock()
_NOTING: set[int] = set()  # threads within `compiling_at_once`

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
        noted: list[Noted] = []
        done, whole = 0, len(self._noted)
        for each in self._noted.values():
            if _is_loaded(each):
                done += 1
                told(done, whole)
            else:
                noted.append(each)
        num_children = min(_MOST_CHILDREN, len(os.sched_getaffinity(0)), len(noted))
        waiting = iter(range(len(noted)))
        children: dict[Connection, int] = {}
        try:
            for _ in range(num_children):
                _fork(noted, children)
            for child in children:
                _ask(child, next(waiting, None))
            # One that ends takes the kernel with it that it was at; that is all.
            while children and (ready := wait(list(children), _PATIENCE)):
                for child in [each for each in ready if isinstance(each, Connection)]:
                    try:
                        index, num_new = child.recv()
                    except (EOFError, OSError):
                        _end(child, children.pop(child))
                        continue
                    _ask(child, next(waiting, None))
                    if num_new is not None:
                        with suppress(Exception):  # the launch says it again
                            noted[index]()
                        self.num_new += num_new
                    done += 1
                    told(done, whole)
        finally:
            for child, process in children.items():
                _end(child, process)


class _NotThereError(Exception):
    """The cache on disk has no such kernel."""


def _is_loaded(noted: Noted) -> bool:
    """Load a kernel from Triton's cache on disk; False where it is not there, or Triton would not have it."""
    from triton.compiler.compiler import make_backend
    from triton.runtime import driver

    # Stages of compiling are asked for when the cache has been looked through in vain.
    kind: Any = type(make_backend(driver.active.get_current_target()))
    usual, own = kind.add_stages, threading.get_ident()

    def add_stages(*args: Any) -> Any:
        if threading.get_ident() == own:
            raise _NotThereError
        return usual(*args)

    kind.add_stages = add_stages
    try:
        noted()
    except Exception:
        return False
    finally:
        kind.add_stages = usual
    return True


_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _fork(noted: Sequence[Noted], children: dict[Connection, int]) -> None:
    """One child more, with its number. It has these signals blocked for good: they are its parent's business, and it is killed."""
    from triton.runtime import driver

    device = _NoDevice(driver.active)
    ours, theirs = Pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        # A fork of a process with threads: a child takes up nothing that one of these might have held, so it never leaves this block.
        with no_warnings():
            process = os.fork()
            if process == 0:
                _be_child(noted, device, ours, theirs)
        children[ours] = process
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()


def _ask(child: Connection, index: int | None) -> None:
    with suppress(OSError):  # it has ended, which is seen when it is waited for
        child.send(index)


def _end(child: Connection, process: int) -> None:
    child.close()
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(process, 0)


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


def _be_child(
    noted: Sequence[Noted], device: _NoDevice, ours: Connection, theirs: Connection
) -> NoReturn:
    """Compile the kernels that are asked for, until none is left or nothing is there that asks; nothing of the parent's is run."""
    from triton.runtime import driver

    try:
        ours.close()
        driver.set_active(device)
        while (index := theirs.recv()) is not None:
            theirs.send((index, _num_new(noted[index])))
    finally:
        os._exit(0)


def _num_new(compiled: Noted) -> int | None:
    """How many kernels were compiled that were not on disk; None if it failed."""
    try:
        with counting_new_kernels() as kernels:
            compiled()
    except Exception:
        return None
    return kernels.num_new


def begin_key() -> threading.Thread | None:
    """Have a thread find out what Triton's cache on disk names kernels by: for that all of Triton is read, half a gigabyte.

    While weights are loaded that costs nothing, and it is done once in a process. None: this Triton has no such thing.
    """
    try:
        from triton.runtime.cache import triton_key
    except Exception:  # nor should one that cannot be imported stop what may do without it
        return None

    def find() -> None:
        with suppress(Exception):  # the first kernel says it again
            triton_key()

    thread = threading.Thread(target=find, name="triton key", daemon=True)
    thread.start()
    return thread


def may_launch_nothing() -> bool:
    """Whether this thread is within `compiling_at_once`: a kernel may run, and the one that writes its places not."""
    return threading.get_ident() in _NOTING


@contextmanager
def compiling_at_once(told: Callable[[int, int], None]) -> Iterator[Kernels]:
    """See the module; `told` as in `Kernels.compile`.

    A hook or a listener that stood there before has its place back behind the block.
    """
    from triton import knobs

    with counting_new_kernels() as kernels:
        hook, own = knobs.runtime.jit_cache_hook, threading.get_ident()
        is_within = own in _NOTING
        knobs.runtime.jit_cache_hook = kernels.meet
        _NOTING.add(own)
        try:
            yield kernels
            kernels.compile(told)
        finally:
            if not is_within:
                _NOTING.discard(own)
            knobs.runtime.jit_cache_hook = hook


@contextmanager
def counting_new_kernels() -> Iterator[Kernels]:
    """Count in `num_new` the kernels that are compiled within the block. Another thread that comes to one waits for its end."""
    from triton import knobs

    with _ONE_AT_A_TIME:
        listener = knobs.compilation.listener
        kernels = Kernels(listener)
        knobs.compilation.listener = kernels.listen
        try:
            yield kernels
        finally:
            knobs.compilation.listener = listener
