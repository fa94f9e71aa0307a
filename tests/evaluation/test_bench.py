"""The bench: a made-up history is one that attention can read, and the account of passes adds up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.engine_parts import executor_of
from manyhands.attention.rotary import rotate
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.local_executor import made_up
from manyhands.errors import OutOfMemory
from manyhands.evaluation import bench
from manyhands.evaluation.life import fill_memory
from tests.engine.small import CONTEXT, small_engine, story, team


def test_a_made_up_history_lies_rotated_in_memory() -> None:
    engine = small_engine()
    block = bench.fill(engine, Block(), 21, seed=3)
    place = engine.pool.place(block)
    slots = engine.pool.slots(place.strip, 0, 21)
    executor = executor_of(engine)
    for layer, store in enumerate(executor.memory.stores):
        k, v = made_up(executor.adapter, layer, 21, seed=3)
        assert torch.equal(store.keys[slots], rotate(k, torch.arange(21), store.rope))
        assert torch.equal(store.values[slots], v)
    again = bench.fill(engine, Block(), 21, seed=3)
    views = [View([history, Block()]) for history in (block, again)]
    logits = engine.forward(Step([Row(view, (1,)) for view in views]))
    assert torch.allclose(logits[0], logits[1], atol=1e-5)


def test_a_team_is_seated_in_the_combined_layout() -> None:
    engine = small_engine()
    history = bench.fill(engine, Block(), 40, seed=0).freeze()
    views = bench.views_of(bench.seat(engine, history, 3, desk=10))
    extra = 2 * bench.HEADER_TOKENS
    assert {view.num_tokens for view in views} == {40 + extra + 30 + 2 * bench.MARKER_TOKENS}
    assert bench.tokens_in_use(views) == 40 + extra + 30 + bench.MARKER_TOKENS
    assert [view.own.num_tokens for view in views] == [10, 10, 10]


def test_passes_are_timed_and_nothing_stays_behind() -> None:
    engine = small_engine()
    pages = engine.pool.num_free_pages
    timings = list(bench.bench(engine, (1, 3), (64, 32), desk=4, passes=4, warm_up=1))
    assert [(t.history, t.workers) for t in timings] == [(32, 1), (32, 3), (64, 1), (64, 3)]
    for timing in timings:
        assert timing.floor_ms is not None
        assert timing.ms_p10 <= timing.ms <= timing.ms_p90
        assert timing.tokens_per_second == pytest.approx(
            1e3 * timing.workers / timing.ms_mean, 1e-2
        )
    assert engine.pool.num_free_pages == pages
    assert not engine.step(), "no run is left"


def test_only_one_history_and_one_team_are_held_at_a_time() -> None:
    engine = small_engine(memory_tokens=16 * 26)
    longest = min(bench.longest_histories(engine, 2, desk=4, passes=4))
    lengths = (longest - 20, longest - 10, longest)
    timings = list(bench.bench(engine, (1, 2), lengths, desk=4, passes=3, warm_up=1))
    assert len(timings) == 6


def test_an_error_of_the_engine_reaches_who_asked() -> None:
    engine = small_engine(memory_tokens=96)
    views = bench.views_of(bench.seat(engine, Block("history").freeze(), 2, desk=1))
    with pytest.raises(OutOfMemory):
        bench.time_passes(engine, views, passes=40)


def test_what_fits_can_be_timed_and_one_more_cannot() -> None:
    engine = small_engine()
    longest = min(bench.longest_histories(engine, 2, desk=4, passes=6))
    assert CONTEXT - 100 < longest < CONTEXT
    assert list(bench.bench(engine, (2,), (longest,), desk=4, passes=3, warm_up=3))


def test_weights_are_counted_as_they_are_read() -> None:
    engine = small_engine()
    model: Any = executor_of(engine).adapter.model
    table = model.get_input_embeddings().weight
    everything = sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() for b in model.buffers())
    read = engine.facts.weight_bytes
    assert 4 * (everything - table.numel()) <= read <= 4 * (everything - table.numel() + buffers)


def test_a_copy_has_a_speed() -> None:
    assert bench.copy_bandwidth(torch.device("cpu")) > 1e8


def test_memory_is_filled_with_prompts_that_no_run_reads() -> None:
    """They go as soon as a run needs their room, and the run reads nothing of them."""
    engine = small_engine(memory_tokens=2048)
    alone = story(engine, team(3))
    assert fill_memory(engine, prompt=90) > 10
    pool = engine.pool
    assert pool.num_free_pages * pool.page_size <= 2 * 90
    assert pool.num_pages_in_use_by_keepers == 0
    assert story(engine, team(3)) == alone
    engine.prefixes.clear()
    assert pool.num_free_pages == pool.num_pages
