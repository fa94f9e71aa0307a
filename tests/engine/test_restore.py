"""A run that is gone from memory comes back from its trace and goes on as if it had never stopped.

The strictest thing to ask of it: wherever the trace was cut, the restored run gives the same answer, and
writes, line for line, what the trace lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.cache.block import Block
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.errors import BrokenTrace, ContextTooLong, InvalidRequest, OutOfMemory
from manyhands.prompts import BranchPrompt
from manyhands.replay.forward import merge_trace
from manyhands.replay.trace import Trace, parse_trace, record
from manyhands.schema.lines import Line
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.events import Event
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import (
    BranchSettings,
    EndSettings,
    Settings,
    SoloSettings,
    TeamSettings,
)
from tests.covers import is_every_case
from tests.engine.small import CONTEXT, LETTERS, PROMPTS, TEXT, small_engine, solo, story
from tests.strategies.specs import method_of, spec_of

END = EndSettings(finisher_tokens=3, reply_tokens=4)
SAMPLED = Choice(temperature=1.0, allowed=LETTERS)
# Few enough tokens that random text holds whole blocks.
HASHES = Choice(temperature=1.0, allowed=frozenset(TEXT.encode("#")[:1] + TEXT.encode("a:")))
RUNS = {
    "combined": TeamSettings(
        workers=3, layout="combined", budget=24, check_every=10, snapshots=(9,), end=END
    ),
    "contiguous": TeamSettings(workers=2, layout="contiguous", budget=24, end=END),
    "interleaved": TeamSettings(workers=2, layout="interleaved", budget=24, end=END),
    "encoded again": TeamSettings(
        workers=3,
        layout="combined",
        budget=24,
        moves="reencode",
        choice=SAMPLED,
        seed=5,
        snapshots=(9,),
        end=END,
    ),
    "sampled": TeamSettings(
        workers=3, layout="combined", budget=24, choice=SAMPLED, seed=5, end=END
    ),
    "sequential": SoloSettings(budget=24, choice=SAMPLED, snapshots=(9,), end=END),
    **{
        join: BranchSettings(
            budget=60,
            join=join,
            branch_tokens=8,
            max_branches=3,
            choice=HASHES,
            seed=1,
            snapshots=(9, 25),
            end=END,
        )
        for join in JOINS
    },
}
WORDS = replace(PROMPTS, branches=BranchPrompt("Q: {question}"))


def recorded(engine: Engine, settings: Settings) -> tuple[list[dict[str, Any]], Any]:
    """A whole run: its lines and its answer."""
    lines: list[dict[str, Any]] = []
    context = engine.facts.max_positions
    prompt = getattr(WORDS, method_of(settings).prompt)
    spec = spec_of(settings, prompt, "What is it?", context)
    answer = engine.run(record(spec.strategy(TEXT), spec.to_plain(), lines.append))
    return json.loads(json.dumps(lines)), answer


def again(engine: Engine, trace: Trace, write: Callable[[Line], None] | None = None) -> Strategy:
    """The run of a trace, restored."""
    strategy = RunSpec.from_plain(trace.header).strategy(TEXT)
    return engine.restore(strategy, trace, write=write)


@pytest.mark.parametrize("name", RUNS)
def test_a_restored_run_ends_as_it_would_have(name: str, pytestconfig: pytest.Config) -> None:
    """Cut at six places; each kind of run at every other one of them, and its neighbours at the others."""
    engine = small_engine()
    lines, answer = recorded(engine, RUNS[name])
    assert name not in JOINS or len(answer.branches) > 2
    passes = [at for at, line in enumerate(lines) if line["kind"] == "pass"]
    cuts = {1, passes[0] + 1, passes[7] + 1, passes[7] + 2, passes[-2] + 1, len(lines)}
    step = 1 if is_every_case(pytestconfig) else 2
    for cut in sorted(cuts)[list(RUNS).index(name) % step :: step]:
        continued: list[dict[str, Any]] = []
        restored = engine.run(again(engine, parse_trace(lines[:cut]), continued.append))
        assert restored == answer, cut
        assert json.loads(json.dumps(continued)) == lines[cut:], cut
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_only_what_is_new_is_reported() -> None:
    engine = small_engine()
    lines, _ = recorded(engine, RUNS["combined"])
    cut = [at for at, line in enumerate(lines) if line["kind"] == "pass"][10] + 1
    trace = parse_trace(lines[:cut])
    *reported, answer = story(engine, again(engine, trace))
    assert isinstance(answer, Answer)
    assert all(isinstance(event, Event) for event in reported)
    told = [line["event"] for line in lines if line["kind"] == "event"]
    assert [type(event).__name__ for event in reported] == told[len(trace.events) :]
    assert answer.forward_passes == 24


def test_another_run_than_the_traces() -> None:
    engine = small_engine()
    lines, _ = recorded(engine, RUNS["combined"])
    trace = parse_trace(lines)
    other = spec_of(RUNS["combined"], WORDS.team, "Something else?")
    with pytest.raises(BrokenTrace, match="pass 1 of the trace is not what its strategy asks for"):
        engine.run(engine.restore(other.strategy(TEXT), trace))
    vocabulary = engine.facts.vocab_size
    first = next(line for line in lines if line["kind"] == "pass")
    first["rows"][-1][2] = vocabulary
    with pytest.raises(BrokenTrace, match=f"has the token {vocabulary}"):
        engine.run(again(engine, parse_trace(lines)))


def test_a_restored_strategy_handles_errors_as_before() -> None:
    def careful() -> Generator[Any, Any, Answer]:
        block = Block("all")
        view, feed = View([block]), (5, 6, 7)
        try:
            for _ in range(4):
                feed = yield Step([Row(view, feed)])
            yield Step([Row(view, (1,) * (CONTEXT + 1))])
        except ContextTooLong:
            feed = yield Step([Row(view, feed)])
        return Answer(text=f"{block.tokens} {feed}")

    engine = small_engine()
    lines: list[dict[str, Any]] = []
    answer = engine.run(record(careful(), {}, lines.append))
    assert answer.text.startswith("[5, 6, 7")
    for cut in [at for at, line in enumerate(lines) if line["kind"] == "pass"][:4]:
        trace = parse_trace(json.loads(json.dumps(lines[: cut + 1])))
        assert engine.run(engine.restore(careful(), trace)) == answer, cut


def test_no_room_for_it() -> None:
    lines, _ = recorded(small_engine(), RUNS["combined"])
    engine = small_engine(memory_tokens=64)
    restored = again(engine, parse_trace(lines[:-1]))
    with pytest.raises(OutOfMemory):
        engine.run(restored)


def test_what_cannot_be_replayed_is_refused() -> None:
    lines: list[Line] = []
    engine = small_engine()
    engine.run(record(solo(), {}, lines.append))
    trace = parse_trace(lines)
    merged = merge_trace(trace)
    wrong: Any = trace
    with pytest.raises(InvalidRequest, match="a Trace was given to be replayed; expected a Merged"):
        engine.replay(wrong)
    for rows in ([merged.plan.num_rows], [-merged.plan.num_rows - 1], "x", [0.5], 3):
        with pytest.raises(InvalidRequest, match="were asked for; expected numbers below"):
            engine.replay(merged, rows)  # type: ignore[arg-type]
    last, of_numpy = engine.replay(merged, [-1]), engine.replay(merged, np.arange(1))  # type: ignore[arg-type]
    every = engine.replay(merged)
    torch.testing.assert_close(last, every[-1:])
    torch.testing.assert_close(of_numpy, every[:1])
    with pytest.raises(InvalidRequest, match="was given as a strategy"):
        next(engine.restore(None, trace))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="was given to be restored; expected a Trace"):
        engine.restore(solo(), None)  # type: ignore[arg-type]
