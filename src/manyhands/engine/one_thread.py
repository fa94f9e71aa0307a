"""One thread at a time: whoever calls an engine beside the thread that is inside is told so at once.

    with self.inside:
        ...                 # InvalidRequest in every thread but this one

The thread inside notices nothing, and may come in again. Going in and out takes about a microsecond. A fork of the process
is told as well (`one_process.py`).

Ctrl-C may strike behind any call of a function of Python's. Behind the one that takes the lock and in front of the block that gives it
back the door would stay shut to all other threads: of 3 000 signals that struck an empty block, 2 000 left it so. So what goes in and out
is made of functions in C alone, between which Python looks at no signal, and the block begins and ends with them: none of 3 000
left it so, with Python 3.11, 3.12 and 3.13.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import RLock, current_thread
from typing import NoReturn

from manyhands.engine.one_process import Here, check_process
from manyhands.errors import InvalidRequest

_NOT_BLOCKING = (False,)


class _Taken(dict[bool, None]):
    """Answers to attempts to take the lock: none, or InvalidRequest."""

    def __missing__(self, key: bool) -> NoReturn:
        raise InvalidRequest(
            f"the engine was called by the thread {current_thread().name!r} while another thread is inside",
            hint="Let a Service have the engine (manyhands.engine.service): its `submit` takes runs from any "
            "thread and from asyncio, and their rows share passes.",
        )


class OneThread:
    """A door that lets in one thread at a time, and refuses all others instead of letting them wait."""

    __slots__ = ("_acquire", "_check", "_process", "_release")

    def __init__(self) -> None:
        lock = RLock()
        self._acquire: Callable[[bool], bool] = lock.acquire
        self._release: Callable[..., None] = lock.__exit__
        self._check = _Taken({True: None}).__getitem__
        self._process = Here.number

    @property
    def __enter__(self) -> Callable[[], None]:
        """A function that takes the lock and looks at what came of it, all in C."""
        if Here.number != self._process:
            check_process(self._process, "the engine")
        return partial(next, map(self._check, map(self._acquire, _NOT_BLOCKING)))

    @property
    def __exit__(self) -> Callable[..., None]:
        """The lock's own function that gives it back."""
        return self._release
