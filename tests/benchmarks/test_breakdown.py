"""Where a pass goes: what is recorded is found, and its clock stands around each replay."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes for Linux only")

from benchmarks import breakdown
from benchmarks.engine_parts import recordings_of
from manyhands.cache.block import Block
from manyhands.cache.view import View
from manyhands.evaluation.bench import time_passes
from tests.engine.test_graphs import graphed_engine, plain_engine, small_capacities

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="its recordings are stand-ins"),
    pytest.mark.usefixtures(small_capacities.__name__),
]
__all__ = ["small_capacities"]


class Event:
    """An event of a device that takes no time."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.is_recorded = False

    def record(self) -> None:
        self.is_recorded = True


def test_replays_are_clocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    engine = graphed_engine()
    views = [View([Block()]) for _ in range(2)]
    time_passes(engine, views, passes=4)
    recordings = recordings_of(engine)
    assert recordings is not None
    before = [graph.recording for graph in recordings.numbered]
    assert before
    with breakdown._device_clock(engine) as replays:
        time_passes(engine, views, passes=3, warm_up=0)
        assert len(replays) >= 3
    assert all(vars(event)["is_recorded"] for pair in replays for event in pair)
    assert [graph.recording for graph in recordings.numbered] == before
    assert recordings_of(plain_engine()) is None
