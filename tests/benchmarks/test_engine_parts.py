"""Parts of an engine that a benchmark has loaded."""

from __future__ import annotations

import torch

from benchmarks.engine_parts import executor_of
from manyhands.engine.engine import Engine


def test_the_executor_of_an_engine() -> None:
    engine = Engine.load("bundled", device="cpu", memory_tokens=256)
    assert executor_of(engine) is engine.executor
    assert executor_of(engine).adapter.device == torch.device("cpu")
