"""Garbage is collected while the device works.

Python collects garbage when so many objects have been made. Where that happens between the tokens of one pass and the
launch of the next, the device stands still for it: some tenths of a millisecond, once in a hundred passes a whole one or more.
A collection that is near is brought about while the device works instead, if it still does. Which generations it looks at is
Python's own decision, and where collection is switched off nothing is done.
"""

from __future__ import annotations

import gc

_NEAR = 0.4  # share of the objects that make a collection due; a wait for the host makes fewer than are left


def collect_if_near() -> None:
    """Have Python collect garbage now, if it would do so soon."""
    most = gc.get_threshold()[0]
    if gc.isenabled() and gc.get_count()[0] > _NEAR * most > 0:
        made: list[list[object]] = [[] for _ in range(most)]  # with so many objects more it is due
        made.clear()
