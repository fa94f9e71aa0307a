"""Recorded passes of networks whose linear layers keep states: the same tokens as launch by launch, and as each run alone.

Recordings are those of `test_graphs.py`, which run all again. A recording serves passes whose rows are fed one token each; a prompt, and a
row that goes on from what another one leaves in the same pass, are launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.cache.block import Block
from manyhands.cache.plan import Plan
from manyhands.cache.states import EMPTY, RowStates, StateBook
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import capacities
from manyhands.engine.capacities import Wide
from manyhands.engine.engine import Engine
from manyhands.engine.graph import Graph, _Slots
from manyhands.engine.graphs import GraphedPasses
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.recordings import Recordings
from manyhands.engine.sampling import Chosen
from manyhands.errors import ManyhandsError
from manyhands.model.adapter import ModelAdapter
from manyhands.model.delta import DeltaLayer
from manyhands.model.recurrent import States
from manyhands.prompts.votes import VotesPrompt
from manyhands.replay.trace import parse_trace, record
from manyhands.strategies.base import Strategy
from manyhands.strategies.events import UsageCounted
from manyhands.strategies.self_consistency import self_consistency
from manyhands.strategies.settings import VoteSettings
from tests.covers import spared
from tests.engine.small import (
    PROBLEM,
    SHORT_END,
    TEXT,
    TOKENIZER,
    counting,
    finish,
    solo,
    story_of,
)
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
        Again(),
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
    monkeypatch.setattr(DeltaLayer, "serves", lambda *_: True)
    runs = [engine.submit(make()) for make in few_kinds().values()]
    finish(engine, *runs)
    for run, expected in zip(runs, alone, strict=True):
        assert [each for each in story_of(run) if not isinstance(each, UsageCounted)] == expected
    counts = passes.counts
    assert counts.recorded > 0
    assert counts.replayed + counts.followed > 2 * counts.eager > 0, "prompts are launched"
    assert counts.followed > 5
    assert counts.lookaheads > counts.dropped > 0
    assert not counts.planned_ahead
    for store in states_of(engine).stores.values():
        assert not store.states[EMPTY].any(), "the empty text has no state"
        assert not store.inputs[EMPTY].any()


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("mistake", ["sources", "targets"])
def test_control_slots_of_the_pass_before(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that is not sent its slots, or those of the pass that it begins for a guess."""
    expected = told(short(), hybrid_engine())
    right = _Slots.write

    def stale(slots: _Slots, sources: Sequence[int], targets: Sequence[int]) -> None:
        before = slots._host.clone()
        right(slots, sources, targets)
        kept = ["sources", "targets"].index(mistake)
        if sources:
            slots._host[kept] = before[kept]

    monkeypatch.setattr(_Slots, "write", stale)
    engine = recorded_engine()
    run = engine.submit(short())
    found = None
    with suppress(ManyhandsError):  # of a poisoned state there are no logits
        finish(engine, run)
        found = story_of(run)
    assert found != expected


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


class Sent:
    """A mark of what is sent to the device: the host's slots may be written again once it has been waited for."""

    def __init__(self) -> None:
        self.is_open = self.is_marked = False

    def record(self) -> None:
        self.is_marked = self.is_open

    def synchronize(self) -> None:
        self.is_open &= not self.is_marked

    def query(self) -> bool:
        return False


def test_slots_are_not_written_while_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = recorded_engine()
    recordings = passes_of(engine).recordings
    monkeypatch.setattr(recordings.recorder, "mark", Sent)
    num_written, write, send = 0, _Slots.write, _Slots.send

    def mark_of(slots: _Slots) -> Sent | None:
        """While a graph is made nothing is replayed, and recording it waits for all."""
        marks: list[Any] = [each.sent for each in recordings.numbered if each.slots is slots]
        return marks[0] if marks else None

    def written(slots: _Slots, *rows: Sequence[int]) -> None:
        nonlocal num_written
        if (mark := mark_of(slots)) is not None:
            assert not mark.is_open
            num_written += 1
        write(slots, *rows)

    def sent(slots: _Slots) -> None:
        send(slots)
        if (mark := mark_of(slots)) is not None:
            mark.is_open, mark.is_marked = True, False

    monkeypatch.setattr(_Slots, "write", written)
    monkeypatch.setattr(_Slots, "send", sent)
    engine.run(short())
    counts = passes_of(engine).counts
    assert counts.lookaheads > 5
    assert num_written == counts.replayed + counts.lookaheads


@pytest.mark.parametrize("feed", [(8,), (8, 9)], ids=["in waves", "a prompt"])
def test_other_passes_are_launched_however_often_they_come(feed: tuple[int, ...]) -> None:
    """A text goes on, and a new row forks from where it has come to."""
    told: list[torch.Tensor] = []
    for engine in (hybrid_engine(), recorded_engine()):
        text = Block()
        trunk = View([text])
        logits = [engine.forward(Step([Row(trunk, (5, 6, 7))]))]
        for token in (10, 11, 12, 13):
            fork = View([text, Block()])
            logits.append(engine.forward(Step([Row(trunk, feed), Row(fork, (token,))])))
        told.append(torch.cat(logits))
    counts = passes_of(engine).counts
    assert (counts.eager, counts.recorded) == (5, 0)
    assert (told[0] - told[1]).abs().max() < FLOAT32


def test_padding_goes_on_from_the_empty_text_and_leaves_nothing() -> None:
    """Whatever rows stood there in the pass before."""
    engine = recorded_engine(states=8)
    recordings = passes_of(engine).recordings
    states = states_of(engine)
    slots = _Slots(states, recordings, 4)
    padding = [EMPTY] * 4, [states.nowhere] * 4
    assert slots._buffer.tolist() == [*padding]
    slots.write((1, 2, 3, 4), (5, 6, 7, 8))
    slots.write((5,), (2,))
    assert slots._host.tolist() == [[5, *padding[0][1:]], [2, *padding[1][1:]]]


@pytest.mark.parametrize("is_wrong", [False, True], ids=["", "control"])
def test_an_interrupt_behind_a_pass_that_was_begun_ahead_leaves_the_states_from_before(
    is_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the pass to come has run by then, and this one is taken back: it is made again from the same sources.

    Control: a pass that is begun ahead into the slots that this one goes on from, which are free if it succeeds.
    """
    expected = told(short(), hybrid_engine())
    engine = recorded_engine()
    run = engine.submit(short())
    arrived, ahead, num_struck = LocalExecutor._arrived, Graph.look_ahead, 0

    def struck(executor: LocalExecutor, chosen: Chosen) -> tuple[int, ...]:
        nonlocal num_struck
        num_struck += 1
        if num_struck in (5, 6, 9):
            raise KeyboardInterrupt
        return arrived(executor, chosen)

    def early(graph: Graph, plan: Plan, *rest: Any) -> None:
        assert plan.states is not None
        states = replace(plan.states, following=plan.states.sources)
        ahead(graph, replace(plan, states=states if is_wrong else plan.states), *rest)

    monkeypatch.setattr(LocalExecutor, "_arrived", struck)
    monkeypatch.setattr(Graph, "look_ahead", early)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            finish(engine, run)
    finish(engine, run)
    assert passes_of(engine).counts.lookaheads > 5
    assert (story_of(run) == expected) != is_wrong


@pytest.mark.parametrize("is_wrong", [False, True], ids=["", "control"])
def test_a_run_that_is_restored_and_cancelled_between_two_passes_leaves_another_one_as_it_is(
    is_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its states are left in slots that are free, where a pass that was begun ahead has left its own; cancelled, it gives them back.

    Control: the pass that was begun is taken up all the same.
    """
    if is_wrong:
        monkeypatch.setattr(GraphedPasses, "drop_begun", lambda _: None)
    lines: list[dict[str, Any]] = []
    hybrid_engine().run(record(counting((5, 6, 7), 8), {}, lines.append))
    passes = [at for at, line in enumerate(lines) if line["kind"] == "pass"]
    trace = parse_trace(lines[: passes[3] + 1])
    expected = told(short(), hybrid_engine())
    engine = recorded_engine()
    run = engine.submit(short())
    num_met, taken = 0, States.copy

    def met(states: States, other: States, slots: Sequence[tuple[int, int]]) -> None:
        nonlocal num_met
        if states is states_of(engine):
            num_met += following == {slot for _, slot in slots}
        taken(states, other, slots)

    monkeypatch.setattr(States, "copy", met)
    with suppress(ManyhandsError):
        while engine.step():
            newest = passes_of(engine)._newest
            if newest is not None and newest[1].states is not None:
                following = {*newest[1].states.following}
                engine.cancel(engine.submit(engine.restore(counting((5, 6, 7), 8), trace)))
    assert num_met > 5, "it has taken the very slots"
    assert (story_of(run) == expected) != is_wrong


def test_no_pass_is_begun_ahead_where_no_slot_is_left_for_it() -> None:
    """A text has one slot, one more while it is written, and a third for the pass to come."""
    for num_states in (3, 2):
        engine = recorded_engine(states=num_states)
        run = engine.submit(counting((5, 6, 7), 9))
        finish(engine, run)
        assert story_of(run) == told(counting((5, 6, 7), 9), hybrid_engine())
        counts = passes_of(engine).counts
        assert counts.followed > 5
        assert (counts.lookaheads > 5) is (num_states == 3)
        assert (counts.lookaheads > 0) is (num_states == 3)


def test_a_pass_that_was_begun_into_other_slots_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A book that forgets what it has told to follow: its plans name the first slots that are free."""

    def free(book: StateBook, least: int) -> list[int]:
        book._meant = {}
        return right(book, least)

    right = StateBook.all_free
    monkeypatch.setattr(StateBook, "all_free", free)
    expected = told(short(), hybrid_engine())
    engine = recorded_engine()
    run = engine.submit(short())
    finish(engine, run)
    assert story_of(run) == expected
    assert passes_of(engine).counts.dropped > 5


def test_slots_that_follow_are_no_text_s_and_are_taken() -> None:
    """Rows that go on take turns between three slots each; with two each none is told to follow."""
    for num_slots, has_more in ((6, True), (5, False)):
        book = StateBook(num_slots)
        blocks = [Block(), Block()]
        rows = [Row(View([block]), (1,)) for block in blocks]
        before: RowStates | None = None
        for index in range(7):
            now = book.take(Step(rows), lambda block: (len(block.tokens),))
            if before is not None:
                assert now.goes_on(before) is bool(before.following)
                assert now.sources == before.targets
            assert bool(now.following) is (has_more or index == 0)
            assert not {*now.following} & {*now.sources, *now.targets}
            before = now
            if index == 3:  # it fails: the same sources again, and none of them was written to
                again = book.take(Step(rows), lambda block: (len(block.tokens),))
                assert again.sources == now.sources
                assert not {*again.targets, *again.following} & {*now.sources}
                before = again
            for block in blocks:
                block.tokens.append(1)


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
        passes.recordings.ahead[64, Wide.SMALL] = Graph(
            passes.recordings, capacities.wide_capacity(64, executor.backend.tiling, Wide.SMALL), 64
        )
        assert passes.tokens_at_once(100) == 100, "prompts are launched"
        passes.states = None
        assert passes.tokens_at_once(100) == 64, "control"
        assert not passes.plans_ahead, "a planned pass would name no slots"
