"""Replayed logits are the run's logits: all passes of a run in one parallel forward.

Tolerances. Both sides do the same arithmetic on the same numbers, in another order: products of other
shapes, partial sums of other pieces, keys rotated once or twice. Logits are of size a few; float32
errors of 1e-7 relative, through two layers, stay under 2e-5, and float64 ones under 1e-12.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from manyhands.cache.layouts import LAYOUTS
from manyhands.errors import InvalidRequest
from manyhands.replay.forward import Replay, merge_trace, replay_logits
from manyhands.replay.merged import side_by_side
from manyhands.replay.trace import Trace
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import EndSettings, SoloSettings
from tests.covers import spared
from tests.model.double import DoublePrecision
from tests.replay.runs import SETTINGS, TEXT, network, recorded, team_run
from tests.strategies.driver import PROMPT

FAMILIES = ("qwen3", "gemma3_text")  # the second has windows of 5 tokens, two ropes, three layers


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@pytest.mark.pairs
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("workers", [1, 2, 4, *spared(3)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_replayed_logits_are_the_runs(layout: str, workers: int, family: str) -> None:
    adapter = network(family)
    settings = replace(SETTINGS, layout=layout, workers=workers)
    trace, seen, answer = team_run(adapter, settings)
    assert answer.extra_passes > 0
    assert answer.snapshots
    with torch.no_grad():
        replayed = replay_logits(adapter, merge_trace(trace))
    assert replayed.shape == seen.shape
    assert worst(replayed, seen) < 2e-5
    assert seen.std() > 0.1  # there is something to get wrong


def test_steps_that_are_encoded_again() -> None:
    adapter = network("qwen3")
    trace, seen, _ = team_run(adapter, replace(SETTINGS, workers=3, moves="reencode"))
    rows = [row for one in trace.passes[1:] for row in one]
    again = [row for row in rows if row.writer is None and len(row.feed) > 3]
    assert again, "no step has ended: the test proves nothing"
    with torch.no_grad():
        assert worst(replay_logits(adapter, merge_trace(trace)), seen) < 2e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_double_precision(layout: str) -> None:
    adapter = network("qwen3", torch.float64)
    with DoublePrecision(), torch.no_grad():
        trace, seen, _ = team_run(adapter, replace(SETTINGS, layout=layout, workers=3))
        replayed = replay_logits(adapter, merge_trace(trace))
    assert seen.dtype == torch.float64
    assert worst(replayed, seen) < 1e-12


def test_sinks_and_softcap() -> None:
    for family in ("gpt_oss", "gemma2"):
        adapter = network(family)
        trace, seen, _ = team_run(adapter, replace(SETTINGS, workers=2))
        with torch.no_grad():
            assert worst(replay_logits(adapter, merge_trace(trace)), seen) < 2e-5


@pytest.mark.parametrize("reencode", [False, True])
def test_one_alone(reencode: bool) -> None:
    adapter = network("qwen3")
    end = EndSettings(finisher_tokens=4, reencode=reencode)
    settings = SoloSettings(budget=20, choice=SETTINGS.choice, seed=1, snapshots=(7,), end=end)
    trace, seen, _ = recorded(adapter, sequential("2+3", TEXT, settings, PROMPT))
    with torch.no_grad():
        assert worst(replay_logits(adapter, merge_trace(trace)), seen) < 2e-5


def test_a_trace_that_was_cut() -> None:
    adapter = network("qwen3")
    trace, seen, _ = team_run(adapter, SETTINGS)
    del trace.passes[11:]
    rows = sum(map(len, trace.passes))
    with torch.no_grad():
        assert worst(replay_logits(adapter, merge_trace(trace)), seen[:rows]) < 2e-5


def test_a_wrong_view_shows() -> None:
    """Mutation control: the comparison above notices two blocks in the wrong order."""
    adapter = network("qwen3")
    trace, seen, _ = team_run(adapter, SETTINGS)
    used = next(rows for rows in trace.passes if len(rows) == 2 and len(rows[0].feed) == 1)
    view = list(trace.views[used[0].view])
    view[0], view[1] = view[1], view[0]
    trace.views[used[0].view] = tuple(view)
    with torch.no_grad():
        assert worst(replay_logits(adapter, merge_trace(trace)), seen) > 1e-2


def test_a_wrong_token_shows_only_where_it_is_seen() -> None:
    adapter = network("qwen3")
    trace, seen, _ = team_run(adapter, SETTINGS)
    last = trace.passes[-1]
    trace.passes[-1] = (replace(last[0], feed=(last[0].feed[0] + 1,)), *last[1:])
    with torch.no_grad():
        replayed = replay_logits(adapter, merge_trace(trace))
    before = sum(map(len, trace.passes[:-1]))
    assert worst(replayed[:before], seen[:before]) < 2e-5
    assert worst(replayed[before:], seen[before:]) > 1e-2


def test_no_rows() -> None:
    adapter = network("qwen3")
    trace, seen, _ = team_run(adapter, SETTINGS)
    with torch.no_grad():
        assert replay_logits(adapter, merge_trace(trace), []).shape == (0, seen.shape[1])


def test_a_trace_without_a_pass_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the trace has no pass that could be replayed"):
        merge_trace(Trace({}))
    wrong: Any = "run.jsonl"
    with pytest.raises(InvalidRequest, match="a str was given to be replayed; expected a Trace"):
        merge_trace(wrong)


def test_some_rows_only() -> None:
    adapter = network("qwen3")
    trace, seen, _ = team_run(adapter, SETTINGS)
    rows = [3, 0, len(seen) - 1]
    with torch.no_grad():
        assert worst(replay_logits(adapter, merge_trace(trace), rows), seen[rows]) < 2e-5


@pytest.mark.parametrize("budget", [64, 4096, 1 << 26])
def test_small_products_give_the_same(budget: int) -> None:
    adapter = network("qwen3")
    trace, seen, _ = team_run(adapter, SETTINGS)
    with torch.no_grad():
        replay = Replay.of(merge_trace(trace), budget=budget).to(torch.device("cpu"))
        assert worst(replay.logits(adapter), seen) < 2e-5


def test_runs_side_by_side() -> None:
    """A batch of runs gives each what it gives alone, whatever the layout of its neighbours."""
    adapter = network("gemma3_text")
    runs = [
        team_run(adapter, replace(SETTINGS, layout=layout, workers=workers, seed=workers))
        for layout, workers in (("combined", 3), ("interleaved", 1), ("contiguous", 2))
    ]
    merged = [merge_trace(trace) for trace, _, _ in runs]
    batch = side_by_side(merged)
    assert batch.plan.num_tokens == sum(one.plan.num_tokens for one in merged)
    assert batch.pass_indptr[-1] == batch.plan.num_rows == sum(len(seen) for _, seen, _ in runs)
    with torch.no_grad():
        together = replay_logits(adapter, batch)
    assert worst(together, torch.cat([seen for _, seen, _ in runs])) < 2e-5


def test_one_run_side_by_side_is_itself() -> None:
    merged = merge_trace(team_run(network("qwen3"), SETTINGS)[0])
    alone = side_by_side([merged])
    for name in ("token_ids", "row_indptr", "positions", "offsets", "slots"):
        assert getattr(alone.plan, name).tolist() == getattr(merged.plan, name).tolist()
    assert alone.slot_token.tolist() == merged.slot_token.tolist()
    assert alone.pass_indptr.tolist() == merged.pass_indptr.tolist()
