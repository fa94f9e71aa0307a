"""The gate's own queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import decode
from benchmarks.engine_parts import executor_of
from benchmarks.gate import Checked
from manyhands.cache.block import Block
from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import made_up
from manyhands.evaluation.bench import fill, seat, views_of
from manyhands.model.seeded import seeded


def test_queries_are_no_made_up_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that is a key sees that key alone, and the gate would see one token of a history."""
    engine = Engine.load("bundled", device="cpu", memory_tokens=1024)
    history = fill(engine, Block("history"), 40, seed=0).freeze()
    views = views_of(seat(engine, history, 2, 6))
    asked: list[torch.Tensor] = []

    def noted(out: object, store: object, q: torch.Tensor, *rest: Any) -> Checked:
        asked.append(q)
        return Checked(0.0, 0.0)

    monkeypatch.setattr(decode, "check_op", noted)
    keys = made_up(executor_of(engine).adapter, 0, 40, 0)[0].flatten()
    with seeded(0):
        assert torch.equal(torch.randn(keys.shape), keys)
    with seeded(0):
        decode.check_engine_op(engine, views, [0])
    q = asked[0].flatten()
    assert not torch.isclose(q[:32], keys[:32]).any()
