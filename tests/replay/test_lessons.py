"""Lessons and batches are the same for the same seed, wherever and by whom they are made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from manyhands.prompts.hogwild import TeamPrompt
from manyhands.replay.curriculum import Curriculum
from manyhands.replay.lessons import Batch, Batches, Recorded, Simulated, trace_lesson
from manyhands.replay.simulate import Lesson
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


def test_a_draw_depends_on_its_seed_alone():
    first = draw("1/2/3")
    draw("4/5/6")  # nothing is remembered from one draw to the next
    assert same(draw("1/2/3"), first)
    assert not same(draw("1/2/4"), first)


def test_every_kind_of_run_is_drawn():
    """With every probability at one or zero the draw still works, and shows what was asked for."""
    team = {"Alice", "Bob", "Carol", "Dave"}
    spoken = {
        name: " ".join(
            list_text().decode(draw(f"{n}", replace(SMALL, **settings)).merged.plan.token_ids)
            for n in range(6)
        )
        for name, settings in {
            "solo": {"solo": 1.0},
            "one worker": {"solo": 0.0, "most_workers": 1},
            "forced": {"solo": 0.0, "forced_claims": 1.0, "irregular": 0.0},
            "checks": {"solo": 0.0, "checks": 1.0},
            "no checks": {"solo": 0.0, "checks": 0.0},
            "early": {"solo": 0.0, "early_answers": 1.0},
            "trouble": {"solo": 0.0, "irregular": 1.0, "pauses": 0.9, "contiguous": 1.0},
            "interleaved": {"solo": 0.0, "contiguous": 0.0, "interleaved": 1.0},
        }.items()
    }
    assert "Solve this list alone." in spoken["solo"]
    assert not any(name in spoken["solo"] for name in team)
    assert "Alice solve this list" in spoken["one worker"]
    assert "Bob" not in spoken["one worker"]
    assert "taken." in spoken["forced"]
    assert LIST_PROMPT.redundancy_check in spoken["checks"]
    assert LIST_PROMPT.redundancy_check not in spoken["no checks"]
    assert "Time is up" in spoken["early"]
    assert all("solve this list together" in spoken[name] for name in ("trouble", "interleaved"))


def test_lessons_speak_the_prompt_they_are_given():
    lesson = draw("0", prompt=replace(LIST_PROMPT, own_header="\n\n### Mine"))
    assert "### Mine" in list_text().decode(lesson.merged.plan.token_ids)


# -- batches -------------------------------------------------------------------------------------


def batches(seed: int = 1, num_tokens: int = 600) -> Batches:
    return Batches(Simulated(SMALL, list_text(), LIST_PROMPTS), seed, num_tokens)


def equal(one: Batch, other: Batch) -> bool:
    tensors = [
        (batch.targets, batch.weights, batch.replay.token_ids, batch.replay.slot_token)
        for batch in (one, other)
    ]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


def test_batch_i_is_batch_i():
    made = [batches()[step] for step in range(3)]
    assert equal(batches()[2], made[2])
    assert not equal(made[0], made[1])
    assert not equal(batches(seed=2)[0], made[0])


def test_a_batch_is_as_large_as_asked():
    for num_tokens in (1, 600, 2000):
        assert batches(num_tokens=num_tokens)[0].num_tokens >= num_tokens


def test_only_rows_with_a_weight_are_predicted():
    lesson = draw("5")
    batch = Batch.of([lesson, lesson], budget=1 << 20)
    assert len(batch.targets) == 2 * int((lesson.weights > 0).sum())
    assert bool((batch.weights > 0).all())
    moved = batch.to(torch.device("cpu"))
    assert equal(moved, batch)


# -- recorded runs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace():
    return team_run(network("qwen3"), SETTINGS)[0]


def test_a_recorded_run_teaches_what_was_written(trace):
    lesson = trace_lesson(trace)
    rows = [row for rows in trace.passes for row in rows]
    assert lesson.targets.tolist() == [row.token for row in rows]
    assert lesson.weights.tolist() == [float(row.writer is not None) for row in rows]
    assert lesson.num_tokens == trace.num_tokens


def test_recorded_runs_are_drawn_by_seed(trace):
    shorter = replace(trace, passes=trace.passes[:5])
    lessons = Recorded([trace, shorter])
    sizes = [lessons.draw(f"{seed}").num_tokens for seed in range(12)]
    assert set(sizes) == {trace.num_tokens, shorter.num_tokens}
    assert sizes == [lessons.draw(f"{seed}").num_tokens for seed in range(12)]
