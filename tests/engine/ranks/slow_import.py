"""A life whose import takes longer than any test waits."""

from __future__ import annotations

import time

from manyhands.engine.ranks.channel import OtherEnd

time.sleep(60)


def body(heard: OtherEnd) -> None:
    """Never reached."""
