"""Signals that end a command, or halt it for a while.

    SIGINT   Ctrl-C                                    exit code 130
    SIGTERM  kill, systemd, a batch queue              143
    SIGHUP   the terminal has gone                     129
    SIGTSTP  Ctrl-Z; SIGCONT ends the halt             none: the command goes on

The first three are one thing: an interrupt, and its exit code is 128 and the signal's number. Every command
runs in `interruptible`, where SIGTERM and SIGHUP raise `Stopped`, as Ctrl-C raises KeyboardInterrupt:
whatever restores a terminal, closes a file or keeps a checkpoint on Ctrl-C does it for all of them. A
`StopRequest` makes a request of the first signal, and leaves the second one as it was.

A signal that the process ignores, as under `nohup` or in the background of a shell, stays ignored, and a
handler of a program that embeds us stays in place.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], object]


def _known(*names: str) -> tuple[signal.Signals, ...]:
    """The signals of these names, as far as the system has them; Windows has few."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


_ENDS = _known("SIGTERM", "SIGHUP")  # besides Ctrl-C, which Python raises by itself
_HALTS = _known("SIGTSTP", "SIGCONT")
_WORDS = {"SIGTERM": "terminated", "SIGHUP": "the terminal has gone"}


class Stopped(KeyboardInterrupt):
    """An interrupt by another signal than Ctrl-C. `number` is the signal's."""

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


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt what is done inside, as Ctrl-C does."""
    with _handling(dict.fromkeys(_ENDS, _stop), instead_of=(signal.SIG_DFL,)):
        yield


@contextmanager
def _handling(
    handlers: dict[signal.Signals, Handler], instead_of: tuple[object, ...]
) -> Iterator[None]:
    """These handlers, where one of `instead_of` was in place; afterwards, what was there."""
    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                found = signal.getsignal(number)
                if found in instead_of:
                    before[number] = found
                    signal.signal(number, handler)
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)


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
        signals = (signal.SIGINT, *_ENDS)
        self._context = _handling(dict.fromkeys(signals, self._hear), instead_of=usual)

    @property
    def asked(self) -> bool:
        """Whether there was one."""
        return self.number is not None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)
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
