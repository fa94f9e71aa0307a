"""The mixed-in lessons: each kind can be drawn, is the same for the same seed, and replays."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from manyhands.errors import InvalidRequest
from manyhands.prompts.load import Prompts
from manyhands.replay.lessons import Batch
from manyhands.replay.simulate import Simulation
from manyhands.replay.train import batch_loss
from manyhands.school.curriculum import Curriculum
from manyhands.school.curriculum_parts import PartsMix
from manyhands.school.endings import BoxedAnswers, endings
from manyhands.school.recipe import read_recipe
from manyhands.school.scripted import ScriptedWriters
from manyhands.school.simulated import Simulated
from manyhands.tasks.needles import ask, haystack
from tests.replay.runs import LIST_PROMPTS, RECIPE, list_network, list_text

TEXT = list_text()
PROMPTS = read_recipe(RECIPE / "further.toml").prompts
SMALL: dict[str, Any] = {"most_students": 6, "most_dogs": 4}


def source(prompts: Prompts = PROMPTS, **mix: Any) -> Simulated:
    return Simulated(Curriculum(), TEXT, prompts, PartsMix(**{**SMALL, **mix}))


def spoken(lessons: Simulated, count: int = 12) -> Iterator[str]:
    """The text of each of some lessons; a test that has found its words draws no more."""
    for n in range(count):
        yield TEXT.decode(lessons.draw(f"{n}").merged.plan.token_ids.tolist())


@pytest.mark.parametrize(
    ("mix", "said"),
    [
        ({"needles": 1.0}, "Box the colour."),
        ({"needles": 1.0, "bare": 0.0}, "Solve this list alone.\n\n"),
        ({"retrieval": 1.0, "branches": 1.0, "skeleton": 0.0}, "####%%%%"),
        ({"retrieval": 1.0, "branches": 0.0, "skeleton": 1.0}, "First list the parts of this."),
        ({"retrieval": 1.0, "branches": 0.0, "skeleton": 0.0, "drafts": 0.0}, ", so yes ("),
        ({"retrieval": 1.0, "hurried": 1.0}, "Time is up"),
        ({"lists": 1.0, "branches": 1.0, "skeleton": 0.0}, "####1:......"),
        ({"lists": 1.0, "branches": 0.0, "skeleton": 1.0}, "-1\n-2"),
        ({"lists": 1.0, "branches": 0.0, "skeleton": 0.0}, "All attempts are read."),
        ({"lists": 1.0, "branches": 0.0, "skeleton": 0.0}, "Is this right, from 0 to 9?"),
        ({"lists": 1.0, "drafted_lists": 1.0}, "Think in drafts"),
        ({"drafted_lists": 1.0}, "Think in drafts"),
        ({"retrieval": 1.0, "drafts": 1.0}, "Think in drafts"),
    ],
)
def test_every_kind_of_lesson(mix: dict[str, Any], said: str) -> None:
    assert any(said in each for each in spoken(source(**mix)))


def test_without_parts_lessons_are_what_they_were() -> None:
    curriculum = Curriculum(fewest_problems=2, most_problems=2)
    one = Simulated(curriculum, TEXT, LIST_PROMPTS).draw("1/2/3")
    other = curriculum.draw("1/2/3", TEXT, LIST_PROMPTS.team)
    assert one.targets.tolist() == other.targets.tolist()


def test_a_draw_depends_on_its_seed_alone() -> None:
    lessons = source(retrieval=0.4, lists=0.3, needles=0.3)
    first = [lessons.draw(f"{n}").targets.tolist() for n in range(8)]
    assert [lessons.draw(f"{n}").targets.tolist() for n in reversed(range(8))][::-1] == first


def test_lessons_can_be_learned_from() -> None:
    """Side by side in one batch, and a few steps on them lower their loss."""
    lessons = source(retrieval=0.4, lists=0.3, needles=0.3)
    batch = Batch.of([lessons.draw(f"{n}") for n in range(6)], 1 << 22)
    adapter = list_network()
    optimizer = torch.optim.Adam(adapter.model.parameters(), 1e-2)
    losses = []
    for _ in range(4):
        loss, _ = batch_loss(adapter, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]


def test_many_endings_of_one_text() -> None:
    hay = haystack(random.Random(1), 8, 10)
    prompts = [TEXT.chat_prompt(ask(hay.document, needle.question)) for needle in hay.needles]
    script = BoxedAnswers([needle.answer for needle in hay.needles])
    simulation = Simulation(endings(prompts, TEXT), ScriptedWriters(TEXT, script))
    answer = simulation.run()
    assert answer.text.split("\n") == [f"\\boxed{{{needle.answer}}}" for needle in hay.needles]
    lesson = Simulation(endings(prompts, TEXT), ScriptedWriters(TEXT, script)).lesson(9000)
    assert lesson.num_tokens < 0.3 * sum(map(len, prompts))
    with pytest.raises(InvalidRequest, match="no prompt"):
        next(endings([], TEXT))


@pytest.mark.parametrize(
    "mix",
    [
        {"retrieval": 1.5},
        {"drafts": -0.1},
        {"retrieval": 0.6, "needles": 0.6},
        {"branches": 0.9, "skeleton": 0.3},
        {"many_students": 0.7, "few_students": 0.4},
        {"most_students": 2},
        {"most_dogs": 1},
    ],
)
def test_an_impossible_mix_is_refused(mix: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        PartsMix(**mix)


def test_no_lesson_is_longer_than_one_can_be() -> None:
    """A bound that a setting lacks was met by a lesson in the midst of a training."""
    for odd in ({"most_students": 101}, {"most_dogs": 257}):
        with pytest.raises(InvalidRequest, match="expected"):
            PartsMix(**odd)


def test_an_outline_of_as_many_students_as_there_may_be_is_closed() -> None:
    """It was cut behind 256 tokens, and the script had nothing to say to that."""
    many: dict[str, Any] = {"most_students": 100, "many_students": 1.0, "few_students": 0.0}
    lessons = source(retrieval=1.0, skeleton=1.0, branches=0.0, **many)
    assert all(len(lessons.draw(f"{n}").targets) > 100 for n in range(3))
