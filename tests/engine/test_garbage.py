"""Garbage: a collection that is near comes while the device works (`engine/garbage.py`)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.garbage import collect_if_near
from manyhands.engine.loop import run_passes
from manyhands.strategies.base import Answer, Strategy
from tests.engine.small import small_engine

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


def _two_steps() -> Strategy:
    view = View([Block()])
    feed = yield Step([Row(view, (1,))])
    yield Step([Row(view, feed)])
    return Answer(text="")


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
from manyhands.engine import garbage
from manyhands.engine.garbage import collect_between_passes, collect_while_idle, keep_loaded

class Ring:
    # Refers to itself: only a collection finds that nothing else does.
    def __init__(self):
        self.own = self

def made(count):
    return [[] for _ in range(count)]

def of_a_long_run():
    # The generations that are collected while objects come, as tokens and blocks do, and stay.
    seen.clear()
    held = [made(gc.get_threshold()[0] + 1) for _ in range(150)]
    del held
    return sorted(set(seen))

def many_passes(num_passes):
    # As many objects come and stay as in a pass of many runs.
    for _ in range(num_passes):
        kept.extend(made(700))
        collect_between_passes()

def note(phase, info):
    if phase == "start":
        walks[info["generation"]].append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))
    else:
        seen.append(info["generation"])

seen, kept, walks = [], [], ([], [], [])
gc.callbacks.append(note)
gc.collect()
gc.freeze()  # so that what is imported makes no full collection rare
"""
BEGINS = """
print("by Python", of_a_long_run())
gone, loaded = weakref.ref(Ring()), Ring()
keep_loaded()
print("garbage is there", gone() is not None)
reference = weakref.ref(loaded)
del loaded
gc.collect()
print("loaded is there", reference() is not None)
print("while it serves", of_a_long_run())
"""
BETWEEN_PASSES = """
keep_loaded()
walks[2].clear()
old, lone = Ring(), set()
many_passes(1000)  # 700 thousand objects stay
most = garbage._MANY + (garbage._OFTEN + 1) * (garbage._SELDOM[1] + 1) * garbage._SELDOM[0]
print("a walk over", max(map(max, walks)) <= most, "of", gc.get_freeze_count() > 600_000)
print("how many", len(walks[2]) > 20)
gone = weakref.ref(lone)
del lone
print("let go of", gone() is not None)
gone, new = weakref.ref(old), Ring()
reference = weakref.ref(new)
del old, new
many_passes(60)
print("old garbage is there", gone() is not None, "new", reference() is not None)
lately, num_before = Ring(), gc.get_freeze_count()
def quiet_passes():
    # Nothing stays of what is looked at.
    for _ in range(garbage._OFTEN):
        gc.collect(1)
    walks[2].clear()
    collect_between_passes()
    return len(walks[2])
looks = quiet_passes()
gone = weakref.ref(lately)
del lately
print("quiet", looks, quiet_passes(), gone() is not None, gc.get_freeze_count() > num_before)
"""
LATER = """
loaded = made(500_000)
keep_loaded()
garbage._MOST = 400_000
def a_while(num_passes):
    walks[2].clear()
    many_passes(num_passes)
    return max(walks[2]) > 400_000  # the others are of some ten thousand
def idle():
    seen.clear()
    collect_while_idle()
    return seen
print("idle, and not much was left out", idle())
print("many come and go", [(a_while(300), kept.clear()) for _ in range(4)][-1], "idle", idle())
old = Ring()
a_while(500)
gone = weakref.ref(old)
del old
print("old garbage is there", gone() is not None)
print("idle", idle(), "old garbage is there", gone() is not None)
print("idle again", idle())
old = Ring()
gone = weakref.ref(old)
a_while(300)
del old
print("never idle", a_while(600), "old garbage is there", gone() is not None)
gc.set_threshold(2_000, 2, 4_000)
seen.clear()
many_passes(100)
garbage._MOST = 0
print("where others have set it", 2 in seen, idle())
gc.set_threshold(*garbage._SELDOM)
gc.collect(1), gc.collect(1), gc.collect(1)
gc.disable()
seen.clear()
collect_between_passes()
print("where it is off", list(seen), idle())
"""


def _told(program: str) -> list[str]:
    """Lines that it prints in a process of its own: in this one the thresholds and what is left out are all tests'."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", SERVES + program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_process_that_serves_leaves_out_what_is_loaded_and_collects_all_seldom() -> None:
    assert _told(BEGINS) == [
        "by Python [0, 1, 2]",
        "garbage is there False",
        "loaded is there True",
        "while it serves [0, 1]",
    ]


def test_between_passes_what_has_come_is_looked_at_and_what_stays_is_left_out() -> None:
    """However much is kept, no collection walks over more than has come lately."""
    assert _told(BETWEEN_PASSES) == [
        "a walk over True of True",
        "how many True",
        "let go of False",
        "old garbage is there True new False",
        "quiet 1 1 False False",
    ]


def test_what_was_left_out_is_looked_at_once_much_of_it_lives() -> None:
    """While no run is under way where there is such a time, and else in the midst of runs, for there is a bound."""
    assert _told(LATER) == [
        "idle, and not much was left out []",
        "many come and go (False, None) idle []",
        "old garbage is there True",
        "idle [2] old garbage is there False",
        "idle again []",
        "never idle True old garbage is there False",
        "where others have set it False []",
        "where it is off [] []",
    ]


def test_runs_are_handed_over_first() -> None:
    """Tokens of a pass do not wait for a collection."""
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "manyhands.engine.loop.collect_between_passes", lambda: told.append("collect")
        )
        passes = run_passes(small_engine(), [(None, _two_steps())])
        told.extend(f"{len(each.runs)} run" for each in passes)
    assert told == ["1 run", "collect"] * 3
