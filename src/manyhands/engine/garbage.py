"""Garbage is collected while the device works.

Python collects garbage whenever so many new objects live. Where that happens between the tokens of one pass and the
launch of the next, the device stands still for it: some tenths of a millisecond, once in a hundred passes a whole one or more.
A collection that is near is brought about while the device works instead, if it still does. Which generations it looks at is
Python's own decision, and where collection is switched off nothing is done.

A process that serves for long leaves out of all collections what it has loaded (`keep_loaded`), and, between passes, what has stayed since
(`collect_between_passes`): a collection of all takes 0.2 s where 10 000 prompts and completions are kept, and 2 s with 100 000, and every run
would wait. What is left out and let go of is gone at once, as ever, but for circles: of these the ones that stood when they were left out stay,
until all objects are looked at again (`collect_while_idle`). Circles are few: a connection of Python 3.11 leaves seven objects, one of 3.12 none.
Python 3.14.0 to 3.14.4 collects old objects bit by bit and says that it has two thresholds alone; there all of this is left to Python.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass

# In processes that serve, as `gc.set_threshold` has it: objects made from one collection to the next; how many of these come between
# two that look at what they have left; and how many of the latter between two full ones. Nothing of a run stands in cycles, and yet a full one
# walks over the tokens and blocks of all runs while they wait, and one of the middle kind over all since the last.
_SELDOM = 2_000, 2, 5_000
_OFTEN = 3  # of the middle kind, after which what is not left out is looked at between passes
_MANY = 20_000  # objects that this leaves, before they are left out: what it walks over is this and three of the middle kind at most
# Blocks of memory more than when all objects had been looked at, with which all are looked at in the midst of runs. 100 000 prompts and
# completions take half as many, so a server that only fills up does not come so far; in circles they would be half a GB.
_MOST = 8_000_000
_EARLY = 0.25  # share of these, after which it is done while no run is under way
_NEAR = 0.4  # share of the objects that make a collection due; a wait for the host makes fewer than are left


def collect_if_near() -> None:
    """Have Python collect garbage now, if it would do so soon."""
    most = gc.get_threshold()[0]
    if gc.isenabled() and gc.get_count()[0] > _NEAR * most > 0:
        made: list[list[object]] = [[] for _ in range(most)]  # with so many objects more it is due
        made.clear()


@dataclass
class _LeftOut:
    """Objects left out of collections: how many blocks of memory Python had in use when all objects had been looked at."""

    blocks: int = 0

    def has_grown_by(self, most: float) -> bool:
        """Whether so many more are in use now. Counting them takes a millisecond, where counting objects takes half a second."""
        return sys.getallocatedblocks() - self.blocks > most

    def leave_out(self) -> None:
        """Collect among the objects that are not left out, and leave out what stays."""
        gc.collect()
        gc.freeze()
        self.blocks = sys.getallocatedblocks()

    def look_at_all(self) -> None:
        """Collect among all objects, and leave out what stays."""
        gc.unfreeze()
        self.leave_out()


_left_out = _LeftOut()


def collect_between_passes() -> None:
    """Now and then, collect among the objects that are not left out, and leave out those that stay once they are many.

    Only in processes whose garbage is collected as `keep_loaded` has it: of others that is their programs' own business.
    """
    if not _is_ours() or gc.get_count()[2] < _OFTEN:
        return
    gc.collect()
    if len(gc.get_objects()) > _MANY:
        gc.freeze()
        if _left_out.has_grown_by(_MOST):
            _left_out.look_at_all()


def collect_while_idle() -> None:
    """Look at all objects, if many were left out and live still. No run is under way, so no token waits.

    In the same processes as `collect_between_passes`.
    """
    if _is_ours() and _left_out.has_grown_by(_EARLY * _MOST):
        _left_out.look_at_all()


def _is_ours() -> bool:
    return gc.isenabled() and gc.get_threshold() == _SELDOM


def keep_loaded() -> None:
    """Leave out of collections all that is there now and stays: a network, its recordings, what was imported; and collect seldom.

    For processes of commands, other ranks and benchmarks, which serve until they end. A full collection in the midst of a run would
    walk over all of it, and everybody's tokens would wait: for 0.2 s because of what is imported, and for 0.05 because of a network
    (two cores).
    """
    _left_out.leave_out()  # garbage would stay
    gc.set_threshold(*_SELDOM)
