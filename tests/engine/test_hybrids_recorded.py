"""Recorded passes of networks whose linear layers keep states: the same tokens as launch by launch, and as each run alone.

Recordings are those of `test_graphs.py`, which run all again. A recording serves passes whose rows are fed one token each; a prompt, and a
row that goes on from what another one leaves in the same pass, are launched.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.cache.block import Block
from manyhands.cache.plan import Plan
from manyhands.cache.states import EMPTY, RowStates
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import capacities
from manyhands.engine.engine import Engine
from manyhands.engine.graph import Graph, _Slots
from manyhands.engine.graphs import GraphedPasses
from manyhands.engine.passes import PassOutcome
from manyhands.engine.recordings import Recordings
from manyhands.errors import ManyhandsError
from manyhands.model.adapter import ModelAdapter
from manyhands.model.delta import DeltaStep
from manyhands.prompts.votes import VotesPrompt
from manyhands.strategies.base import Strategy
from manyhands.strategies.events import UsageCounted
from manyhands.strategies.self_consistency import self_consistency
from manyhands.strategies.settings import VoteSettings
from tests.covers import spared
from tests.engine.small import PROBLEM, SHORT_END, TEXT, TOKENIZER, finish, solo, story_of
from tests.engine.test_graphs import Again, passes_of, small_capacities
from tests.engine.test_hybrids import (
    FLOAT32,
    SAMPLED,
    hybrid,
    hybrid_engine,
    states_of,
    told,
)

pytestmark = [
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="the kernels are compiled here, and run on the GPU only"
    ),
    pytest.mark.usefixtures(small_capacities.__name__),
]
__all__ = ["small_capacities"]


def recorded_engine(name: str = "qwen3_5_text", **choices: Any) -> Engine:
    engine = hybrid_engine(name, backend="triton", **choices)
    executor: Any = engine.executor
    executor.passes = GraphedPasses(
        executor.adapter,
        executor.memory,
        executor.backend,
        Again(in_parts=False),
        states=executor.states,
    )
    return engine


def short() -> Strategy:
    """A text alone."""
    return solo(choice=SAMPLED, seed=4, budget=12)


def few_kinds() -> dict[str, Callable[[], Strategy]]:
    """A text alone, and forks of one."""
    attempts = VoteSettings(workers=2, budget=8, mode="vote", end=SHORT_END, choice=SAMPLED)
    return {
        "sequential": short,
        "attempts": lambda: self_consistency(PROBLEM, TEXT, attempts, VotesPrompt()),
    }


@pytest.mark.parametrize("name", ["qwen3_5_text", *spared("qwen3_next", "qwen3_5_moe_text")])
def test_together_by_recordings_is_as_alone_without(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernels of a GPU. Slots are poisoned: a state that was not written, or is padding's, would be no number."""
    alone = [told(make(), hybrid_engine(name)) for make in few_kinds().values()]
    engine = recorded_engine(name)
    passes = passes_of(engine)
    monkeypatch.setattr(DeltaStep, "serves", lambda *_: True)
    runs = [engine.submit(make()) for make in few_kinds().values()]
    finish(engine, *runs)
    for run, expected in zip(runs, alone, strict=True):
        assert [each for each in story_of(run) if not isinstance(each, UsageCounted)] == expected
    counts = passes.counts
    assert counts.recorded > 0
    assert counts.replayed + counts.followed > 2 * counts.eager > 0, "prompts are launched"
    assert counts.followed > 5
    assert not counts.planned_ahead + counts.lookaheads + counts.heads
    for store in states_of(engine).stores.values():
        assert not store.states[EMPTY].any(), "the empty text has no state"
        assert not store.inputs[EMPTY].any()


@pytest.mark.parametrize("mistake", ["sources", "targets"])
def test_control_slots_of_the_pass_before(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that follows and is not sent its slots."""
    expected = told(short(), hybrid_engine())
    right = _Slots.write

    def stale(slots: _Slots, rows: RowStates | None) -> None:
        before = slots._host.clone()
        right(slots, rows)
        kept = ["sources", "targets"].index(mistake)
        if rows is not None:
            slots._host[kept] = before[kept]

    monkeypatch.setattr(_Slots, "write", stale)
    engine = recorded_engine()
    run = engine.submit(short())
    with suppress(ManyhandsError):  # of a poisoned state there are no logits
        finish(engine, run)
    assert story_of(run) != expected


def test_which_passes_are_recorded() -> None:
    one_each = RowStates((0, 1, 2), (3, 3), (4, 5))
    assert one_each.are_one_each, "two that fork from one text"
    assert not RowStates((0, 2, 3), (3, 3), (4, 5)).are_one_each, "a prompt is in it"
    assert not RowStates((0, 1, 2), (3, 4), (4, 5)).are_one_each, "one goes on from the other"
    assert not RowStates((0, 1, 2), (3, 3), (4, 5), (1, 0)).are_one_each, "in another order"


def test_a_row_that_goes_on_from_another_one_s_state_is_launched() -> None:
    """Each pass in turn: a prompt, a text with its fork, and three times both of them apart."""
    told: list[torch.Tensor] = []
    for engine in (hybrid_engine(), recorded_engine()):
        text, fork = Block(), Block()
        trunk, behind = View([text]), View([text, fork])
        prompt, both = Step([Row(trunk, (5, 6, 7))]), Step([Row(trunk, (8,)), Row(behind, (9,))])
        own = View([fork])
        logits = [engine.forward(prompt), engine.forward(both)]
        text.freeze()
        logits += [engine.forward(Step([Row(behind, (token,))])) for token in (10, 11, 12)]
        told.append(torch.cat(logits))
        assert own.own is fork
    counts = passes_of(engine).counts
    assert (counts.eager, counts.recorded) == (3, 1), "a capacity is recorded the second time"
    assert (told[0] - told[1]).abs().max() < FLOAT32


def test_an_interrupt_in_a_recorded_pass_leaves_the_states_from_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of the pass has run by then; it is made again from the same sources."""
    expected = told(short(), hybrid_engine())
    engine = recorded_engine()
    run = engine.submit(short())
    right, num_struck = Graph._outcome, 0

    def struck(graph: Graph, plan: Plan) -> PassOutcome:
        nonlocal num_struck
        outcome = right(graph, plan)
        num_struck += 1
        if num_struck in (3, 4, 9):
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(Graph, "_outcome", struck)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            finish(engine, run)
    finish(engine, run)
    assert story_of(run) == expected


def test_wide_recordings_have_rows_for_the_states_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recording of more rows than there are slots would serve no pass."""
    made: list[int] = []
    monkeypatch.setattr(
        Recordings, "make", lambda self, size, capacity: made.append(capacity.tokens)
    )
    for num_states, most in ((12, 12), (4096, capacities.MOST_ALONE)):
        engine = Engine(
            ModelAdapter(hybrid()),
            TOKENIZER,
            memory_tokens=2048,
            states=num_states,
            backend="triton",
        )
        executor: Any = engine.executor
        passes = GraphedPasses(
            executor.adapter, executor.memory, executor.backend, Again(), states=executor.states
        )
        made.clear()
        passes.record_ahead(64, lambda *_: None, 512)
        assert max(made) == most
        assert passes.tokens_at_once(700) == 700
