"""Lessons and batches are the same for the same seed, wherever and by whom they are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.replay.forward import replay_logits
from manyhands.replay.lessons import Batch, Batches, Mixed, Reading, Recorded, trace_lesson
from manyhands.replay.merged import merge_passes
from manyhands.replay.simulate import Lesson
from manyhands.replay.trace import Trace
from manyhands.school.curriculum import Curriculum
from manyhands.school.simulated import Simulated
from tests.replay.runs import LIST_PROMPT, LIST_PROMPTS, SETTINGS, list_text, network, team_run

SMALL = Curriculum(fewest_problems=2, most_problems=3)


def draw(seed: str, curriculum: Curriculum = SMALL, prompt: TeamPrompt = LIST_PROMPT) -> Lesson:
    return curriculum.draw(seed, list_text(), prompt)


def same(one: Lesson, other: Lesson) -> bool:
    pairs = (
        (one.targets, other.targets),
        (one.weights, other.weights),
        (one.merged.plan.token_ids, other.merged.plan.token_ids),
        (one.merged.plan.positions, other.merged.plan.positions),
        (one.merged.slot_token, other.merged.slot_token),
    )
    return all(np.array_equal(a, b) for a, b in pairs)


# -- batches -------------------------------------------------------------------------------------


def batches(seed: int = 1, num_tokens: int = 600) -> Batches:
    return Batches(Simulated(SMALL, list_text(), LIST_PROMPTS), seed, num_tokens)


def equal(one: Batch, other: Batch) -> bool:
    tensors = [
        (batch.targets, batch.weights, batch.replay.token_ids, batch.replay.slot_token)
        for batch in (one, other)
    ]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


def test_batch_i_is_batch_i() -> None:
    made = [batches()[step][0] for step in range(3)]
    assert equal(batches()[2][0], made[2])
    assert not equal(made[0], made[1])
    assert not equal(batches(seed=2)[0][0], made[0])


def test_a_batch_is_as_large_as_asked() -> None:
    for num_tokens in (1, 600, 2000):
        assert batches(num_tokens=num_tokens)[0][0].num_tokens >= num_tokens


def test_only_rows_with_a_weight_are_predicted() -> None:
    lesson = draw("5")
    batch = Batch.of([lesson, lesson], budget=1 << 20)
    assert len(batch.targets) == 2 * int((lesson.weights > 0).sum())
    assert bool((batch.weights > 0).all())
    moved = batch.to(torch.device("cpu"))
    assert equal(moved, batch)


# -- recorded runs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace() -> Trace:
    return team_run(network("qwen3"), SETTINGS)[0]


def test_a_recorded_run_teaches_what_was_written(trace: Trace) -> None:
    lesson = trace_lesson(trace)
    rows = [row for rows in trace.passes for row in rows]
    assert lesson.targets.tolist() == [row.token for row in rows]
    assert lesson.weights.tolist() == [float(row.writer is not None) for row in rows]
    assert lesson.num_tokens == trace.num_tokens


def test_recorded_runs_are_drawn_by_seed(trace: Trace) -> None:
    shorter = replace(trace, passes=trace.passes[:5])
    lessons = Recorded([trace, shorter])
    sizes = [lessons.draw(f"{seed}").num_tokens for seed in range(12)]
    assert set(sizes) == {trace.num_tokens, shorter.num_tokens}
    assert sizes == [lessons.draw(f"{seed}").num_tokens for seed in range(12)]


# -- ordinary text -------------------------------------------------------------------------------


def test_text_is_read_as_one_causal_sequence() -> None:
    """Logits are those of the network over the piece, and each token is learned but the first."""
    adapter = network("qwen3")
    tokens = [5, 9, 2, 30, 8, 1, 77]
    lesson = Reading([tokens, [3]], num_tokens=20).draw("any")
    assert lesson.targets.tolist() == tokens[1:]
    assert lesson.weights.tolist() == [1.0] * 6
    with torch.no_grad():
        together = replay_logits(adapter, lesson.merged)
        whole = merge_passes([Step([Row(View([Block("text")]), tuple(tokens[:-1]))])], 6)
        assert torch.allclose(together[-1], replay_logits(adapter, whole)[0], atol=1e-5)
    pieces = {len(Reading([tokens], 3).draw(f"{n}").targets) for n in range(9)}
    assert pieces == {3}


def test_kinds_are_mixed_by_their_shares(trace: Trace) -> None:
    mixed = Mixed([(Recorded([trace]), 0.8), (Reading([[1, 2, 3]], 2), 0.2)])
    sizes = [mixed.draw(f"{seed}").num_tokens for seed in range(400)]
    assert sizes == [mixed.draw(f"{seed}").num_tokens for seed in range(400)]
    assert 50 < sizes.count(2) < 110
    assert set(sizes) == {2, trace.num_tokens}


def test_recorded_runs_of_which_nothing_can_be_learned(trace: Trace) -> None:
    """Their mean loss is no number, and so were the weights after one step."""
    graded = replace(trace, header=trace.header | {"score": 0.0})
    unnamed = replace(
        trace, passes=[tuple(replace(row, writer=None) for row in rows) for rows in trace.passes]
    )
    for traces in ([], [graded], [unnamed, graded], iter([graded])):
        with pytest.raises(InvalidRequest, match=r"in none of . recorded runs? to learn from"):
            Recorded(traces)
    assert len(Recorded(iter([trace, graded, unnamed])).lessons) == 1
    (part,) = Batches(Recorded([trace, graded]), 0, 1)[0]
    assert part.weight > 0


def test_a_batch_without_a_weight_is_refused(trace: Trace) -> None:
    class Nothing:
        def draw(self, seed: str) -> Lesson:
            return replace(trace_lesson(trace), weights=np.zeros(len(trace_lesson(trace).weights)))

    with pytest.raises(InvalidRequest, match="no token of the 1 lessons of step 3 has a weight"):
        Batches(Nothing(), 0, 1)[3]


@pytest.mark.parametrize("documents", [[], [[]], [[3], [4]], ["text"], [["a", "b"]], 5, None])
def test_what_cannot_be_read(documents: Any) -> None:
    with pytest.raises(InvalidRequest, match="documents"):
        Reading(documents, 20)


def test_how_much_is_read_at_once(trace: Trace) -> None:
    for wrong in (0, -1, 1.5, "3"):
        with pytest.raises(InvalidRequest, match="num_tokens is"):
            Reading([[1, 2, 3]], wrong)  # type: ignore[arg-type]
    arrays: list[Any] = [np.arange(5), torch.arange(5)]
    size: Any = np.int64(9)
    of_arrays = Reading((each for each in arrays), size)
    assert of_arrays.documents == [tuple(range(5))] * 2


@pytest.mark.parametrize(
    "shares", [(), (0.0,), (-1.0, 2.0), (float("nan"),), (float("inf"), 1), ("1",)]
)
def test_shares_of_which_none_can_be_drawn(shares: Any) -> None:
    with pytest.raises(InvalidRequest, match="the shares of lessons are"):
        Mixed([(Reading([[1, 2]], 2), share) for share in shares])
