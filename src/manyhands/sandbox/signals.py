"""Signals that end a command reach all of its processes: a terminal, `timeout`, systemd and Slurm send them to the group, or to all.

A process that helps another leaves them to that one, which may have something to finish and to keep. It ends when its
caller lets it go, closes its pipe or kills it.

In the process itself Ctrl-C may strike between any two lines. What has to be done as a whole, such as a verb that several ranks make together or
one step of a training, would be left half done. So a signal that would interrupt is noted there, and handled when it is done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

_ENDS = ("SIGINT", "SIGTERM", "SIGHUP")  # as far as the system has them; Windows has few


def leave_ends_to_caller() -> None:
    """Ignore the signals that end a command, in this process and in those that it starts."""
    for name in _ENDS:
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_IGN)


_Came = Sequence[tuple[int, FrameType | None]]


@contextmanager
def held_back(most: int | None = None) -> Iterator[None]:
    """No signal's handler runs inside; those that came are run at the end. Elsewhere than in the main thread: nothing.

    `most`: so many signals are held, and the next one is not, where what is done inside may never end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    before: dict[int, Callable[..., Any]] = {}

    def hold(number: int, frame: FrameType | None) -> None:
        if most is not None and len(came) >= most:
            before[number](number, frame)
        else:
            came.append((number, frame))

    try:
        for name in _ENDS:
            number = getattr(signal, name, None)
            if number is not None and callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        try:
            _put_back(list(before.items()))
        finally:
            _handle(came, before)


def _put_back(handlers: Sequence[tuple[int, Callable[..., Any]]]) -> None:
    """Put these back, also where a signal strikes one of them that is back already."""
    if handlers:
        (number, handler), *rest = handlers
        try:
            signal.signal(number, handler)
        finally:
            _put_back(rest)


def _handle(came: _Came, handlers: Mapping[int, Callable[..., Any]]) -> None:
    """Run the handlers of all that came, also behind one that raises."""
    if came:
        (number, frame), *rest = came
        try:
            handlers[number](number, frame)
        finally:
            _handle(rest, handlers)
