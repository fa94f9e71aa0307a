"""Nested parts through a real engine: replay, restoring from a trace, and leaving memory in between.

The network is random and its words are pieces of forks, so runs part at any depth, in any join.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch

from manyhands.cache.step import Choice
from manyhands.engine.engine import Engine
from manyhands.model.adapter import ModelAdapter
from manyhands.prompts.profiled import ProfilePrompt
from manyhands.replay.forward import merge_trace, replay_logits
from manyhands.replay.trace import parse_trace, record
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.events import WorkerJoined
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import EndSettings, ProfileSettings
from tests.engine.small import counting, story, story_of
from tests.engine.test_preemption import preempt, unbounded
from tests.model.lean import make_lean
from tests.replay.runs import network, recorded
from tests.strategies.specs import spec_of
from tests.strategies.test_nested_parts import END, FORK, OPEN, TEXT

MEMORY = 20_000
WORDS = ProfilePrompt(rules="Q: {question}", finisher="\nFinal \\boxed{")
PIECES = frozenset(t for piece in (OPEN, FORK, END, "a", "b") for t in TEXT.markup(piece))


@cache
def lean_network() -> ModelAdapter:
    adapter: ModelAdapter = network.__wrapped__("qwen3")
    make_lean(adapter.model)
    return adapter


def spec(join: str, seed: int) -> RunSpec:
    settings = ProfileSettings(
        profile="multiverse",
        budget=60,
        parts_join=join,
        part_tokens=12,
        run_tokens=150,
        seed=seed,
        choice=Choice(temperature=1.0, allowed=PIECES),
        snapshots=(9, 33),
        end=EndSettings(answer="boxed", finisher_tokens=3),
    )
    return spec_of(settings, WORDS, "What is it?", 1024)


SEEDS = {"reencode": 0, "stitch": 4, "keep": 6}  # where the search ended last time


@cache
def nested(join: str) -> RunSpec:
    """The first of such runs that parts three levels deep."""
    for seed in (SEEDS[join], *range(40)):
        found = spec(join, seed)
        events = Engine(lean_network(), memory_tokens=MEMORY).stream(found.strategy(TEXT))
        names = [event.name for event in events if isinstance(event, WorkerJoined)]
        if any(name.count("/") >= 2 for name in names):
            return found
    raise AssertionError("no run parts three levels deep: the tests would prove nothing")


@pytest.mark.parametrize("join", JOINS)
def test_nested_runs_are_replayed_and_restored(join: str) -> None:
    adapter, run = lean_network(), nested(join)
    trace, seen, answer = recorded(adapter, run.strategy(TEXT))
    with torch.no_grad():
        replayed = replay_logits(adapter, merge_trace(trace))
    assert float((replayed - seen).abs().max()) < 2e-5
    assert seen.std() > 0.1
    engine, lines = Engine(adapter, memory_tokens=MEMORY), []  # type: Engine, list[dict[str, Any]]
    assert engine.run(record(run.strategy(TEXT), run.to_plain(), lines.append)) == answer
    lines = json.loads(json.dumps(lines))
    passes = [at for at, line in enumerate(lines) if line["kind"] == "pass"]
    for cut in (*(at + 1 for at in passes[5::52]), len(lines)):
        more: list[dict[str, Any]] = []
        strategy = RunSpec.from_plain(lines[0]).strategy(TEXT)
        restored = engine.restore(strategy, parse_trace(lines[:cut]), write=more.append)
        assert engine.run(restored) == answer, cut
        assert json.loads(json.dumps(more)) == lines[cut:], cut
    assert engine.pool.num_free_pages == engine.pool.num_pages


@pytest.mark.parametrize("join", JOINS)
def test_a_nested_run_leaves_memory_and_comes_back(join: str) -> None:
    """Preempted every few passes, in the company of one that never is."""
    adapter, run = lean_network(), nested(join)
    alone = story(Engine(adapter, memory_tokens=MEMORY), run.strategy(TEXT))
    engine = Engine(adapter, memory_tokens=MEMORY)
    first = engine.submit(counting((9, 8, 7), 200))
    engine.step()
    again = engine.submit(unbounded(run.strategy(TEXT)))
    num_passes = 0
    while not again.done:
        engine.step()
        num_passes += 1
        if num_passes % 5 == 2:
            preempt(engine)
    assert story_of(again) == alone
    assert again.num_preemptions >= 4
    engine.cancel(first)
    assert engine.pool.num_free_pages == engine.pool.num_pages
