"""Garbage: a collection that is near comes while the device works (`engine/garbage.py`)."""

from __future__ import annotations

import gc
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
