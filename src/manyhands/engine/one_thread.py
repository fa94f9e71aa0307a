"""One thread at a time: whoever calls an engine beside the thread that is inside is told so at once.

    with self.inside:
        ...                 # InvalidRequest in every thread but this one

The thread inside notices nothing, and may come in again. Going in and out takes less than a microsecond. A fork of the process
is told as well (`one_process.py`).
"""

from __future__ import annotations

from threading import RLock, current_thread

from manyhands.engine.one_process import Here, check_process
from manyhands.errors import InvalidRequest


class OneThread:
    """A door that lets in one thread at a time, and refuses all others instead of letting them wait."""

    __slots__ = ("_lock", "_process")

    def __init__(self) -> None:
        self._lock = RLock()
        self._process = Here.number

    def __enter__(self) -> None:
        if Here.number != self._process:
            check_process(self._process, "the engine")
        if not self._lock.acquire(blocking=False):
            raise InvalidRequest(
                f"the engine was called by the thread {current_thread().name!r} while another thread is inside",
                hint="Let a Service have the engine (manyhands.engine.service): its `submit` takes runs from any "
                "thread and from asyncio, and their rows share passes.",
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
