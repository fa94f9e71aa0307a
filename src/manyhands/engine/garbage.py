"""Garbage is collected while the device works.

Python collects garbage whenever so many new objects live. Where that happens between the tokens of one pass and the
launch of the next, the device stands still for it: some tenths of a millisecond, once in a hundred passes a whole one or more.
A collection that is near is brought about while the device works instead, if it still does. Which generations it looks at is
Python's own decision, and where collection is switched off nothing is done.

A process that serves for long leaves out what it has loaded, and looks at all that is left seldom (`keep_loaded`): that takes 0.2 s where
10 000 prompts and completions are kept, and 2 s with 100 000, and every run waits. So it does while no run is under way, if there is such a time
before Python finds a full collection due (`collect_while_idle`).
"""

from __future__ import annotations

import gc

# In processes that serve, as `gc.set_threshold` has it: objects made from one collection to the next; how many of these come between
# two that look at what they have left; and how many of the latter between two full ones. Nothing of a run stands in cycles, and yet a full one
# walks over the tokens and blocks of all runs while they wait, and one of the middle kind over all since the last.
_SELDOM = 2_000, 2, 5_000
# Share of the collections between two full ones, after which a full one is brought about while no run is under way.
_EARLY = 0.1
_NEAR = 0.4  # share of the objects that make a collection due; a wait for the host makes fewer than are left


def collect_if_near() -> None:
    """Have Python collect garbage now, if it would do so soon."""
    most = gc.get_threshold()[0]
    if gc.isenabled() and gc.get_count()[0] > _NEAR * most > 0:
        made: list[list[object]] = [[] for _ in range(most)]  # with so many objects more it is due
        made.clear()


def collect_while_idle() -> None:
    """Have Python look at all objects now, if it would do so in a while. No run is under way, so no token waits.

    Only in processes whose garbage is collected as `keep_loaded` has it: of others that is their programs' own business.
    """
    is_ours = gc.isenabled() and gc.get_threshold() == _SELDOM
    if is_ours and gc.get_count()[2] > _EARLY * _SELDOM[2]:
        gc.collect()


def keep_loaded() -> None:
    """Leave out of collections all that is there now and stays: a network, its recordings, what was imported; and collect seldom.

    For processes of commands, other ranks and benchmarks, which serve until they end. A full collection in the midst of a run would
    walk over all of it, and everybody's tokens would wait: for 0.2 s because of what is imported, and for 0.05 because of a network
    (two cores).
    """
    gc.collect()  # or garbage would stay
    gc.freeze()
    gc.set_threshold(*_SELDOM)
