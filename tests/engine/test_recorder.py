"""When a CUDA graph's work runs and when it is repeated, with stand-ins for the device; `test_on_gpu.py` has the same with one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.engine.recorder import CudaRecorder


class Device:
    """A device that keeps what it is asked for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.streams = 0
        self.is_recording = self.is_spoilt = False
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        device = self

        class Graph:
            def __init__(self) -> None:
                device.graphs.add(self)

            def capture_begin(self, pool: object, capture_error_mode: str) -> None:
                assert not device.is_recording
                device.is_recording = True
                self.given = pool
                device.asked.append("begins" if pool is None else f"begins in {pool}")

            def capture_end(self) -> None:
                was_spoilt, device.is_spoilt = device.is_spoilt, False
                device.is_recording = False
                if was_spoilt:
                    raise RuntimeError("the recording was not ended")

            def pool(self) -> object:
                return "a pool"

            def replay(self) -> None:
                assert not device.is_recording
                device.asked.append("repeats")

        def stream(*_: object) -> object:
            self.streams += 1
            return SimpleNamespace(wait_stream=lambda other: None)

        cuda: dict[str, Any] = {
            "CUDAGraph": Graph,
            "Stream": stream,
            "current_stream": lambda _: SimpleNamespace(wait_stream=lambda other: None),
            "stream": lambda _: nullcontext(),
            "synchronize": lambda _: self.asked.append("waits"),
            "empty_cache": lambda: None,
        }
        for name, each in cuda.items():
            monkeypatch.setattr(torch.cuda, name, each)
        # PyTorch makes no tensor of a device's memory without one.
        monkeypatch.setattr("manyhands.engine.recorder._lent", lambda tensor, graphs: tensor)

    def work(self, cut: Callable[[], None]) -> tuple[Tensor, Tensor]:
        """Work of two parts."""
        self.asked.append("is recorded" if self.is_recording else "runs")
        cut()
        return torch.zeros(1), torch.ones(1)

    def new_work(self, cut: Callable[[], None]) -> tuple[Tensor, Tensor]:
        """Work that meets something for the first time until it has run: the device takes no part of that into a recording."""
        if self.is_recording and "runs" not in self.asked:
            self.is_spoilt = True
            raise RuntimeError("not while it is recorded")
        return self.work(cut)


RUN_FIRST = ["runs", "waits"]


def test_the_first_work_runs_and_others_are_repeated_behind_their_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing waits for the device between them. One stream serves all."""
    device = Device(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda"))
    recording = recorder.record(device.work)
    assert device.asked == [*RUN_FIRST, "begins", "is recorded", "begins in a pool"]
    for _ in range(2):
        device.asked.clear()
        assert len(recorder.record(device.work).parts) == len(recording.parts) == 2
        assert device.asked == [
            *("begins in a pool", "is recorded", "begins in a pool"),
            *("repeats", "repeats"),
        ]
    assert device.streams == 1


def test_work_that_cannot_be_recorded_at_once_runs_and_is_recorded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a pool of its own: the other one has been left in the midst of a recording. All work behind it runs first, too."""
    device = Device(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda"))
    recorder.record(device.work)
    device.asked.clear()
    recorder.record(device.new_work)
    gc.collect()
    assert len(device.graphs) == 1, "torch's allocator goes on asking it"
    assert device.asked == [
        *("begins in a pool", "waits"),
        *(*RUN_FIRST, "begins", "is recorded", "begins in a pool"),
    ]
    device.asked.clear()
    recorder.record(device.work)
    assert device.asked == [*RUN_FIRST, "begins in a pool", "is recorded", "begins in a pool"]


def test_with_ranks_every_work_runs_first_and_none_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All ranks make the same sums, whatever one of them meets."""
    device = Device(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda"), always_runs=True)
    for _ in range(2):
        device.asked.clear()
        recorder.record(device.work)
        assert device.asked[:2] == RUN_FIRST
        assert "repeats" not in device.asked


def test_work_that_can_never_be_recorded_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda"))
    recorder.record(device.work)

    def never(cut: Callable[[], None]) -> tuple[Tensor, Tensor]:
        if device.is_recording:
            raise RuntimeError("never")
        return device.work(cut)

    for _ in range(2):
        with pytest.raises(RuntimeError, match="never"):
            recorder.record(never)
        assert not device.is_recording


@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_recording_that_was_broken_off_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, num_parts: int
) -> None:
    """An interrupt ends it in order, so its graphs are let go of, and the pool and the stream serve the next one."""
    device = Device(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda"))
    kept = recorder.record(device.work)

    def interrupted(cut: Callable[[], None]) -> tuple[Tensor, Tensor]:
        if num_parts > 1:
            cut()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.record(interrupted)
    gc.collect()
    assert len(device.graphs) == len(kept.parts) == 2
    device.asked.clear()
    recorder.record(device.work)
    assert device.asked[0] == "begins in a pool"
    assert device.streams == 1
