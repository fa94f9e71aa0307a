"""Waits of tests: for as long as the busiest machine may need, and no longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable


def soon(is_true: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it becomes true; it is looked at once more when the time is over, in which a machine may have stood still."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        if is_true():
            return True
        time.sleep(0.01)
    return is_true()
