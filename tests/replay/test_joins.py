"""How far a join is from the exact text: nought for the exact join, and what a dense computation says."""

from __future__ import annotations

import json
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.cache.step import Choice
from manyhands.engine.engine import Engine
from manyhands.model.adapter import ModelAdapter
from manyhands.replay.forward import merge_trace, replay_logits
from manyhands.replay.joins import LogitsOf, causal_logits, join_distances, measure_joins
from manyhands.replay.trace import Trace, parse_trace, record
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.branches import BranchAnswer, branches
from manyhands.strategies.settings import BranchSettings
from tests.engine.small import TEXT as BYTES
from tests.engine.test_branches import PROMPT, SHORT, SKELETON, play
from tests.model.families_zoo import tiny_model
from tests.replay.runs import network

LETTERS = frozenset(t for word in "abc.\n" for t in BYTES.encode(word))
TWO_BLOCKS = SKELETON + "So.\n####Eve:Fay:%%%%"


def by(adapter: ModelAdapter) -> LogitsOf:
    return partial(replay_logits, adapter)


@cache
def recorded(
    adapter: ModelAdapter, join: str, said: str = TWO_BLOCKS
) -> tuple[Trace, list[Tensor]]:
    """A run's trace, as it comes back from a file, and the logits it saw; tests leave both as they are."""
    settings = BranchSettings(
        choice=Choice(allowed=LETTERS), branch_tokens=9, budget=90, join=join, end=SHORT
    )
    lines: list[dict[str, Any]] = []
    strategy = record(branches("who", BYTES, settings, PROMPT), {}, lines.append)
    run = play(Engine(adapter, memory_tokens=4096), strategy, BYTES.encode(said))
    return parse_trace(json.loads(json.dumps(lines))), run.logits


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "gemma3_text"])
@pytest.mark.parametrize("join", JOINS)
def test_a_replayed_run_has_the_logits_it_saw(family: str, join: str) -> None:
    """Lanes are written to a trace and read back, whoever stands behind them."""
    adapter = network(family)
    trace, logits = recorded(adapter, join)
    assert any(isinstance(item, tuple) for view in trace.views for item in view) == (join == "keep")
    with torch.no_grad():
        replayed = replay_logits(adapter, merge_trace(trace))
    assert (replayed - torch.cat(logits)).abs().max() < 2e-4


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "gemma3_text"])
def test_only_the_exact_join_is_at_no_distance(family: str) -> None:
    adapter = network(family)
    found = {join: join_distances(recorded(adapter, join)[0], by(adapter)) for join in JOINS}
    for join, distances in found.items():
        assert [distance.block for distance in distances] == [1, 2]
        for distance in distances:
            if join == "reencode":
                assert distance.largest < 1e-5
                assert distance.kl < 1e-6
            else:
                assert distance.largest > 1e-4
                assert distance.kl > 1e-6
    assert found["stitch"] != found["keep"]


@pytest.mark.parametrize("join", JOINS)
def test_a_distance_is_what_hugging_faces_own_forward_says(join: str) -> None:
    adapter = network("qwen3")
    trace, logits = recorded(adapter, join, SKELETON)
    close = BYTES.encode("####%%%%\n")
    row = first = 0
    for step, rows in trace.steps():  # the row that feeds the end of the block
        for at in step.rows:
            at.view.own.tokens.extend(at.feed)
        if rows[-1].feed == close:
            whole = [t for block in step.rows[-1].view.blocks for t in block.tokens]
            row = first + len(rows) - 1
        first += len(rows)
    own = tiny_model(adapter.model.config)  # Hugging Face's, which no adapter has touched
    own.load_state_dict(adapter.model.state_dict())
    with torch.no_grad():
        plain = own(input_ids=torch.tensor([whole]), use_cache=False).logits[0, -1]
    assert (plain - causal_logits(tuple(whole), by(adapter))).abs().max() < 1e-4
    ours, theirs = torch.cat(logits)[row].softmax(-1), plain.softmax(-1)
    (distance,) = join_distances(trace, by(adapter))
    assert distance.largest == pytest.approx(float((ours - theirs).abs().max()), abs=1e-6)
    kl = torch.nn.functional.kl_div(ours.log(), theirs, reduction="sum")
    assert distance.kl == pytest.approx(float(kl), abs=1e-5)


def test_the_measured_run_is_the_same_run() -> None:
    adapter = network("qwen3")
    settings = BranchSettings(
        choice=Choice(allowed=LETTERS), branch_tokens=5, budget=70, join="keep"
    )
    answers = []
    for wrap in (lambda strategy: strategy, lambda strategy: measure_joins(strategy, by(adapter))):
        strategy = wrap(branches("who", BYTES, settings, PROMPT))
        run = play(Engine(adapter, memory_tokens=4096), strategy, BYTES.encode(SKELETON))
        assert isinstance(run.answer, BranchAnswer)
        answers.append(run.answer)
    plain, measured = answers
    assert plain.join_distances == ()
    (distance,) = measured.join_distances
    assert distance.kl > 0
    assert (measured.text, measured.branches) == (plain.text, plain.branches)
    assert measured.extra_passes == plain.extra_passes


def test_a_run_without_blocks_has_no_joins() -> None:
    adapter = network("qwen3")
    assert join_distances(recorded(adapter, "stitch", "Nothing to part.")[0], by(adapter)) == ()
