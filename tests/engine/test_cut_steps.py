"""Steps that are cut before a line of structure: such runs come back, and are recomputed, as any other."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.step import Choice
from manyhands.cli.verify import verify
from manyhands.replay.trace import parse_trace, record
from manyhands.strategies.base import Strategy
from manyhands.strategies.events import StepCut, StepEnded, to_line
from tests.covers import is_every_case
from tests.engine.small import TEXT, cut_team, executor_of, small_engine, story

TWO = frozenset(TEXT.encode("a") + TEXT.encode("c"))
KINDS = {layout: {"layout": layout} for layout in LAYOUTS} | {
    "encoded again": {"moves": "reencode"}
}


@pytest.mark.parametrize("name", KINDS)
def test_a_run_comes_back_from_its_trace(name: str, pytestconfig: pytest.Config) -> None:
    def busy() -> Strategy:
        return cut_team(**KINDS[name], snapshots=(7, 12), seed=3)

    engine = small_engine()
    lines: list[dict[str, Any]] = []
    answer = engine.run(record(busy(), {}, lines.append))
    lines = json.loads(json.dumps(lines))
    told = [line["event"] for line in lines if line["kind"] == "event"]
    again, ended = (
        sum(pair == ("StepCut", after) for pair in pairwise(told))
        for after in ("TokenWritten", "StepEnded")
    )
    assert again, "a step was begun again"
    assert ended, "a step was ended"
    cuts = [at + 1 for at, line in enumerate(lines) if line["kind"] == "pass"]
    for cut in cuts if is_every_case(pytestconfig) else cuts[3 * [*KINDS].index(name) :: 14]:
        continued: list[Any] = []
        restored = engine.restore(busy(), parse_trace(lines[:cut]), write=continued.append)
        assert engine.run(restored) == answer, cut
        assert json.loads(json.dumps(continued)) == lines[cut:], cut
    assert engine.pool.num_free_pages == engine.pool.num_pages


@pytest.mark.parametrize("name", KINDS)
def test_every_token_of_a_greedy_run_is_recomputed(name: str) -> None:
    """Forbidden tokens stand in the trace: without it, the model would write something else."""
    engine, greedy, num_forbidden = small_engine(), Choice(allowed=TWO), 0
    for mark in "ac":  # the network prefers one of them
        lines: list[Any] = []
        team = cut_team(mark, **KINDS[name], choice=greedy)
        engine.run(record(team, {}, lines.append))
        lines = json.loads(json.dumps(lines))
        found = verify(executor_of(engine).adapter, parse_trace(lines), greedy)
        assert found.num_agreeing == found.num_tokens > 30
        bare = [row for line in lines if line["kind"] == "pass" for row in line["rows"] if row[4:]]
        num_forbidden += len(bare)
        for row in bare:
            del row[4:]
        control = verify(executor_of(engine).adapter, parse_trace(lines), greedy)
        assert control.num_tokens - control.num_agreeing == len(bare)
    assert num_forbidden


def test_the_trace_says_so() -> None:
    events = [e for e in story(small_engine(), cut_team(seed=3)) if isinstance(e, StepCut)]
    assert events
    assert to_line(events[0]) == {
        "event": "StepCut",
        "forward_pass": events[0].forward_pass,
        "worker": events[0].worker,
        "step": events[0].step,
        "text": events[0].text,
    }
    assert all(e.text.lstrip(" ").startswith(("a!", "b!", "c")) for e in events)


def test_a_team_in_company_writes_what_it_writes_alone() -> None:
    engine = small_engine()
    alone = [story(engine, cut_team(seed=seed)) for seed in range(3)]
    runs = [engine.submit(cut_team(seed=seed)) for seed in range(3)]
    while not all(run.done for run in runs):
        engine.step()
    assert [run.result() for run in runs] == [one[-1] for one in alone]
    assert any(isinstance(event, StepEnded) for event in alone[0])
