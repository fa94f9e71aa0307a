"""Signals that end a command, or halt it for a while.

    SIGINT   Ctrl-C                                    exit code 130
    SIGTERM  kill, systemd, a batch queue              143
    SIGHUP   the terminal has gone                     129
    SIGTSTP  Ctrl-Z; SIGCONT ends the halt             none: the command goes on

The first three are one thing: an interrupt, and its exit code is 128 and the signal's number. Every command
runs in `interruptible`, where all three raise `Stopped`, a KeyboardInterrupt: whatever restores a terminal,
closes a file or keeps a checkpoint on Ctrl-C does it for all of them. A
`StopRequest` makes a request of the first signal, and leaves the second one as it was.

Before a command begins and when it has ended there is nothing to put away: `leave_at_signals` has the process
end at once there. Python's own KeyboardInterrupt is never raised: where one strikes source text that is compiled
as it is run, as each dataclass and named tuple has some, Python notes it and ends the process by the signal
itself, even if the interrupt is handled (`unhandled_keyboard_interrupt` in CPython's pythonrun.c). And none is raised
in the midst of importing a library: torch calls Python from C++ there, where an exception ends the process (SIGABRT).
It waits for the end of that import, and a second signal ends the process at once.

A signal that the process ignores, as under `nohup` or in the background of a shell, stays ignored, and a
handler of a program that embeds us stays in place.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, Self

Handler = Callable[[int, FrameType | None], object]


def _known(*names: str) -> tuple[signal.Signals, ...]:
    """The signals of these names, as far as the system has them; Windows has few."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


_ENDS = _known("SIGINT", "SIGTERM", "SIGHUP")
_AGAIN = 0.01  # seconds until a signal strikes again
_AT_LEAST_EVERY = 1.0  # seconds between strikes that nobody has heard
_HALTS = _known("SIGTSTP", "SIGCONT")
_WORDS = {"SIGTERM": "terminated", "SIGHUP": "the terminal has gone"}


class Stopped(KeyboardInterrupt):
    """An interrupt by a signal. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def number_of(interrupt: KeyboardInterrupt) -> int:
    """The signal that an interrupt came with."""
    return interrupt.number if isinstance(interrupt, Stopped) else signal.SIGINT


def exit_code_of(number: int) -> int:
    """How a command ends that was interrupted by this signal."""
    return 128 + number


def word_for(number: int) -> str:
    """`interrupted`, for a person."""
    return _WORDS.get(signal.Signals(number).name, "interrupted")


_waiting: set[int] = set()  # signals that wait for the end of an import
_unheard: set[int] = set()  # signals that strike once more, until their handler has begun


def _stop(number: int, frame: FrameType | None) -> None:
    _unheard.discard(number)
    if not _imports_library(frame):
        raise Stopped(number)
    if number in _waiting:
        _leave(number, frame)
    _waiting.add(number)
    _soon(number)


def _imports_library(frame: FrameType | None) -> bool:
    """Whether code of ours has begun an import, in which no body of a module of ours runs.

    Behind the body of a module Python's own import has still to end: a strike there takes the module out of `sys.modules`, and torch cannot be
    imported a second time.
    """
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] == "manyhands":
            return False
        if name == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False


def _soon(number: int) -> None:
    """Have the signal strike the main thread once more, in a moment; now where there are no more threads."""

    def strike() -> None:
        _waiting.discard(number)
        _unheard.add(number)
        pause = _AGAIN
        while number in _unheard:
            _strike_main_thread(number)
            if not _says_that_it_hears(signal.getsignal(number)):
                break
            time.sleep(pause)
            pause = min(2 * pause, _AT_LEAST_EVERY)

    timer = threading.Timer(_AGAIN, strike)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:
        raise Stopped(number) from None


def _strike_main_thread(number: int) -> None:
    """Send the signal to the thread that handles all of them: one that strikes another thread ends no wait of the main one.

    Nor does one that strikes the moment before a wait begins, which is likely: the main thread hands over to this one there.
    """
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, number)
    else:  # Windows
        signal.raise_signal(number)


def _says_that_it_hears(handler: object) -> bool:
    """Whether it ends the strikes, so that it is called once however many there are."""
    return getattr(handler, "__func__", handler) in (_stop, _leave, StopRequest._hear)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at once. Prints are written before, unless the signal has struck that very writing."""
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{word_for(number)}\n".encode())
    os._exit(exit_code_of(number))


def leave_with(code: object) -> NoReturn:
    """End the process with what SystemExit has brought, and leave it to the system to take it apart.

    Python itself looks at each object that was imported once more, which takes a second or two. As at its own end, threads are waited for
    and functions that are registered for it are called (`multiprocessing` ends its processes so). Under a profiler or a debugger, which
    want to say something yet, Python ends as ever.
    """
    tools = getattr(sys, "monitoring", None)  # from Python 3.12 on
    is_watched = tools is not None and any(map(tools.get_tool, range(6)))
    is_watched |= sys.getprofile() is not None or sys.gettrace() is not None
    if is_watched or not (code is None or isinstance(code, int)):
        raise SystemExit(code)
    end_threads: Callable[[], None] = vars(threading)["_shutdown"]
    run_registered: Callable[[], None] = vars(atexit)["_run_exitfuncs"]
    end_threads()
    run_registered()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or there is no reader
            stream.flush()
    os._exit((code or 0) & 0xFF)


_USUAL = (signal.SIG_DFL, signal.default_int_handler, _leave)


def leave_at_signals() -> None:
    """From now on the three end this process at once, with their word and exit code, wherever it is in no command.

    They stay so to the process's end; its last moments, when Python takes itself apart, hear none.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    # The function that is registered first is called last.
    atexit.register(_hear_no_more)
    sys.unraisablehook = _hear_again
    for number in _ENDS:
        if signal.getsignal(number) in _USUAL:
            signal.signal(number, _leave)


def _hear_no_more() -> None:
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)


def _hear_again(found: sys.UnraisableHookArgs) -> None:
    """An interrupt that has struck a place from which no error leaves, as the end of an object, strikes once more."""
    if isinstance(found.exc_value, KeyboardInterrupt):
        _soon(number_of(found.exc_value))
    else:
        sys.__unraisablehook__(found)


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The interrupt that has led to this error; None if there was none.

    Libraries in C make an ImportError of whatever ends their import.
    """
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        if isinstance(behind, KeyboardInterrupt):
            return behind
        seen.add(id(behind))
        behind = behind.__cause__ or behind.__context__
    return None


@contextmanager
def interruptible() -> Iterator[None]:
    """The signals interrupt what is done inside."""
    with _handling(dict.fromkeys(_ENDS, _stop), instead_of=_USUAL):
        yield


@contextmanager
def _handling(
    handlers: dict[signal.Signals, Handler], instead_of: tuple[object, ...]
) -> Iterator[None]:
    """These handlers, where one of `instead_of` was in place; afterwards, what was there."""
    with ExitStack() as before:  # puts back all of them, also where a signal strikes meanwhile
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                found = signal.getsignal(number)
                if found in instead_of:
                    before.callback(signal.signal, number, found)
                    signal.signal(number, handler)
        yield


class _Hearing:
    """Hears signals by the handlers of `_context` while it is entered."""

    _context: AbstractContextManager[None]

    def __enter__(self) -> Self:
        self._context.__enter__()
        return self

    def __exit__(self, *trouble: Any) -> None:
        self._context.__exit__(*trouble)


class StopRequest(_Hearing):
    """While it is entered, the first interrupting signal sets `number`; a second one interrupts as usual."""

    def __init__(self) -> None:
        self.number: int | None = None
        usual = (signal.default_int_handler, _stop)
        self._context = _handling(dict.fromkeys(_ENDS, self._hear), instead_of=usual)

    @property
    def asked(self) -> bool:
        """Whether there was one."""
        return self.number is not None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        _unheard.discard(number)
        if self.asked:
            _stop(number, frame)
        self.number = number


class HaltRequest(_Hearing):
    """While it is entered, Ctrl-Z sets `asked`, and the end of a halt sets `is_over`.

    So a screen is put away before the shell has the terminal, and comes back behind it: `halt` stops the
    process, and returns when it goes on.
    """

    def __init__(self) -> None:
        self.asked = self.is_over = False
        self._context = _handling(dict.fromkeys(_HALTS, self._hear), instead_of=(signal.SIG_DFL,))

    def halt(self) -> None:
        """Stop here, as Ctrl-Z would have, and go on with SIGCONT."""
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.kill(os.getpid(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, ours)
            self.asked = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self.asked = True
        else:
            self.is_over = True
