"""Garbage: a collection that is near comes while the device works (`engine/garbage.py`)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from manyhands.engine.garbage import collect_if_near

_MOST = 1000


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """The generations that are collected, with a threshold of `_MOST` objects and none made yet."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            found.append(info["generation"])

    before, was_enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(_MOST, *before[1:])
    gc.enable()
    gc.collect()
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*before)
    (gc.enable if was_enabled else gc.disable)()


def _made(count: int) -> list[list[int]]:
    """So many objects that count."""
    return [[] for _ in range(count)]


def test_a_collection_that_is_near_comes_at_once(seen: list[int]) -> None:
    held = _made(8 * _MOST // 10)
    assert not seen
    collect_if_near()
    assert seen
    assert gc.get_count()[0] < _MOST / 2
    del held


def test_nothing_is_collected_while_it_is_far(seen: list[int]) -> None:
    held = _made(_MOST // 10)
    collect_if_near()
    assert not seen
    del held


def test_where_collection_is_off_it_stays_off(seen: list[int]) -> None:
    gc.disable()
    held = _made(8 * _MOST // 10)
    collect_if_near()
    gc.set_threshold(0)
    gc.enable()
    collect_if_near()
    assert not seen
    del held


SERVES = """
import gc
import weakref
from manyhands.engine.garbage import collect_while_idle, keep_loaded

class Ring:
    # Refers to itself: only a collection finds that nothing else does.
    def __init__(self):
        self.own = self

def of_a_long_run():
    # The generations that are collected while objects come, as tokens and blocks do, and stay.
    seen.clear()
    held = [[[] for _ in range(gc.get_threshold()[0] + 1)] for _ in range(150)]
    del held
    return sorted(set(seen))

seen = []
gc.callbacks.append(lambda phase, info: phase == "stop" and seen.append(info["generation"]))
gc.collect()
gc.freeze()  # so that what is imported makes no full collection rare
print("by Python", of_a_long_run())
gone, loaded = weakref.ref(Ring()), Ring()
keep_loaded()
print("garbage is there", gone() is not None)
reference = weakref.ref(loaded)
del loaded
gc.collect()
print("loaded is there", reference() is not None)
print("while it serves", of_a_long_run())
collect_while_idle()
print("idle, and not much was made", sorted(set(seen)))
for _ in range(14):
    of_a_long_run()
old = Ring()
gc.collect(1)
gone = weakref.ref(old)
del old
gc.collect(1)
print("old garbage is there", gone() is not None)
seen.clear()
collect_while_idle()
print("idle", seen)
print("old garbage is there", gone() is not None)
seen.clear()
collect_while_idle()
print("idle again", seen)
gc.set_threshold(2_000, 2, 4_000)
held = [[[] for _ in range(2_001)] for _ in range(4)]
for _ in range(600):
    gc.collect(1)
seen.clear()
collect_while_idle()
print("where others have set it", seen)
"""


def test_a_process_that_serves_leaves_out_what_is_loaded_and_collects_all_seldom() -> None:
    """In a process of its own: in this one the thresholds and what is left out are all tests'."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", SERVES], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "by Python [0, 1, 2]",
        "garbage is there False",
        "loaded is there True",
        "while it serves [0, 1]",
        "idle, and not much was made [0, 1]",
        "old garbage is there True",
        "idle [2]",
        "old garbage is there False",
        "idle again []",
        "where others have set it []",
    ]
