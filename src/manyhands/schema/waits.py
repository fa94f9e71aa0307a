"""Seconds that a caller gives, as the waits of Python take them.

Python's own end at different lengths, with an OverflowError: a lock waits 292 years at most, a pipe or a socket 24 days,
since `poll` counts milliseconds in 31 bits. None of them takes nan, or a number of another library.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.schema.setting import as_found, is_number, own_number

LONGEST_WAIT = (
    2_000_000  # seconds that a choice may say where pipes, sockets or processes wait: 23 days
)


def seconds_of(name: str, value: Any, *, expected: str = "seconds") -> float:
    """A number of seconds of any library; inf for one beyond the largest float, as it is for inf itself.

    Raises InvalidRequest for what is no real number: nan, True, a text.
    """
    found = own_number(value)
    if not is_number(found) or found != found:
        raise InvalidRequest(
            f"{name} is {as_found(value)}; expected {expected}",
            hint=f"Write {name}=60, for instance.",
        )
    try:
        return float(found)
    except OverflowError:
        return math.inf if found > 0 else -math.inf


def lock_wait(seconds: float) -> float | None:
    """The same as a lock, a condition or a thread takes it: none below 0, and without an end where it cannot count so far."""
    return None if seconds > threading.TIMEOUT_MAX else max(0.0, seconds)
