"""Garbage: a collection that is near comes while the device works (`engine/garbage.py`)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from manyhands.engine.garbage import collect_if_near, keep_loaded

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


class _Ring:
    """Refers to itself: only a collection finds that nothing else does."""

    def __init__(self) -> None:
        self.own = self


def test_a_process_that_serves_leaves_out_what_is_loaded_and_no_garbage(seen: list[int]) -> None:
    gone, loaded = weakref.ref(_Ring()), _Ring()
    kept_before = gc.get_freeze_count()
    keep_loaded()
    try:
        assert gone() is None
        assert gc.get_freeze_count() > kept_before
        reference = weakref.ref(loaded)
        del loaded
        gc.collect()
        assert reference() is not None, "it is left out, for good"
    finally:
        gc.unfreeze()
    gc.collect()
    assert reference() is None


def test_full_collections_are_seldom_in_a_process_that_serves(seen: list[int]) -> None:
    def of_a_long_run() -> set[int]:
        """The generations that are collected while objects come, as tokens and blocks do, and stay."""
        seen.clear()
        held = [_made(gc.get_threshold()[0] + 1) for _ in range(150)]
        del held
        return set(seen)

    assert of_a_long_run() == {0, 1, 2}  # the control: Python's own
    keep_loaded()
    gc.unfreeze()
    assert of_a_long_run() == {0, 1}
