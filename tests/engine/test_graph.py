"""One recorded pass without a GPU: what its buffer holds, and what padding does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.attention.prepared import pack
from manyhands.attention.work import cut
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import capacities
from manyhands.engine.capacities import Wide
from manyhands.engine.graph import Graph
from tests.engine.test_graphs import (
    a_team_of,
    graphed_engine,
    passes_of,
    small_capacities,
    walking,
)
from tests.poison import poison

pytestmark = [
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="the kernels are compiled here, and run on the GPU only"
    ),
    pytest.mark.usefixtures(small_capacities.__name__),
]


def test_what_has_grown_grows_no_more_behind_another_plan() -> None:
    """The growth of plain decoding is taken out of the buffer once, by the first plan that has none."""
    engine = graphed_engine()
    engine.run(walking(a_team_of(2), 6, {}))
    passes = passes_of(engine)
    graph = next(each for each in passes.recordings.numbered if each.integers[1].any())
    for feed in ((1, 2), (3, 4)):
        plan = engine.planner.plan(Step([Row(View([Block()]), feed)]))
        assert plan.lockstep is None
        work = cut(plan, passes.backend.tiling, graph.capacity.cutting)
        graph._pack(plan, work, None, 1)
        expected = np.full(graph.capacity.num_integers, 7, dtype=np.int32)
        pack(plan, work, graph.capacity, expected)
        for name, start, size in graph.capacity.sections():
            section = slice(start, min(start + size, graph.num_used))
            assert graph.integers[0, section].tolist() == expected[section].tolist(), name
        assert not graph.integers[1].any()
    assert graph.may_grow, "until it is sent that nothing grows any more"
    with torch.inference_mode():
        graph._send(None)
    assert not graph.buffer[1].any()
    assert not graph.may_grow


@pytest.mark.parametrize("kind", [Wide.SMALL, Wide.LARGE])
def test_a_pass_of_padding_alone_reads_nothing_and_stores_nothing(kind: Wide) -> None:
    """A recording is tried out so before any plan is there, in memory that holds runs."""
    engine = graphed_engine()
    passes = passes_of(engine)
    poison(passes.memory)
    capacity = capacities.wide_capacity(16, passes.backend.tiling, kind)
    graph = Graph(passes.recordings, capacity, engine.facts.page_size)
    with torch.inference_mode():
        logits, greedy = graph._pass(passes.recordings, lambda: None)
    assert logits.isfinite().all()
    assert greedy[0] == 1, "they are sound"
    for store in passes.memory.stores:
        assert store.keys.isnan().all()
        assert store.values.isnan().all()
