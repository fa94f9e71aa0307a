"""A simulation is a run: its lesson holds the same passes as a recorded trace of it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from manyhands.cache.layouts import LAYOUTS
from manyhands.replay.forward import merge_trace, replay_logits
from manyhands.replay.lessons import trace_lesson
from manyhands.replay.simulate import Simulation
from manyhands.replay.trace import parse_trace, record
from manyhands.schema.lines import Line
from manyhands.school.arithmetic_team import ArithmeticTeam
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import TeamSettings
from manyhands.tasks.arithmetic.problem_list import problem_list
from tests.replay.runs import LIST_PROMPT, list_network, list_text


def simulation(layout: str, lines: list[Line] | None = None) -> Simulation:
    rng = random.Random(5)
    problems = problem_list(rng, 3, "bare")
    settings = TeamSettings(workers=2, layout=layout, check_every=60, snapshots=(30,), budget=400)
    names = LIST_PROMPT.team(2)
    team = ArithmeticTeam(
        problems, list_text(), names, LIST_PROMPT, rng, sees_desks=LAYOUTS[layout].sees_desks
    )
    strategy = hogwild(problems.question, list_text(), settings, LIST_PROMPT)
    return Simulation(
        record(strategy, {}, (lines if lines is not None else list[Line]()).append), team
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lesson_is_the_trace_of_its_run(layout: str) -> None:
    lines: list[Line] = []
    lesson = simulation(layout, lines).lesson()
    trace = parse_trace(json.loads(json.dumps(lines)))
    merged = merge_trace(trace)
    for name in ("token_ids", "row_indptr", "positions"):
        assert np.array_equal(getattr(lesson.merged.plan, name), getattr(merged.plan, name))
    again = trace_lesson(trace)
    assert np.array_equal(lesson.targets, again.targets)
    assert np.array_equal(lesson.weights > 0, again.weights > 0)
    adapter = list_network()
    with torch.no_grad():
        difference = replay_logits(adapter, lesson.merged) - replay_logits(adapter, merged)
    assert float(difference.abs().max()) < 1e-5


def test_running_and_learning_end_alike() -> None:
    run, lesson = simulation("combined"), simulation("combined")
    answer = run.run()
    lesson.lesson()
    assert lesson.answer == answer
    assert lesson.targets == run.targets
    assert lesson.weights == run.weights


def test_targets_are_what_comes_next() -> None:
    """The token chosen for a row is the first one that its writer is fed in its next row."""
    watched = simulation("combined")
    last: dict[str, int] = {}
    for step in watched.steps():
        chosen = watched.targets[-len(step.rows) :]
        for row, token in zip(step.rows, chosen, strict=True):
            if row.writer in last:
                assert row.feed[0] == last[row.writer]
            if row.writer in ("Alice", "Bob"):
                last[row.writer] = token
            row.view.own.tokens.extend(row.feed)
    assert set(last) == {"Alice", "Bob"}
