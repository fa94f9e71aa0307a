"""Runs of the scripted team are the same for the same seed, and every kind of run is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.school.arithmetic_team import ArithmeticTeam
from manyhands.school.curriculum import Curriculum
from manyhands.strategies.listening import DismissWorker, Heard, Item
from tests.replay.runs import LIST_PROMPT, list_text
from tests.replay.test_lessons import SMALL, draw, same

_WHOLE = {"contiguous": 0.0, "interleaved": 0.0}
_LONG = {"fewest_problems": 12, "most_problems": 12, "wide": 1.0, "word_problems": 0.0}


def test_a_draw_depends_on_its_seed_alone() -> None:
    first = draw("1/2/3")
    draw("4/5/6")  # nothing is remembered from one draw to the next
    assert same(draw("1/2/3"), first)
    assert not same(draw("1/2/4"), first)


def test_lists_are_as_long_as_is_said() -> None:
    """Lists of five are drawn most where they may be drawn, and nowhere else."""
    for fewest, most in ((1, 2), (3, 3), (2, 8)):
        curriculum = Curriculum(fewest_problems=fewest, most_problems=most)
        drawn = [len(curriculum._problems(Random(seed)).problems) for seed in range(60)]
        assert {*drawn} == {*range(fewest, most + 1)}
    assert max({*drawn}, key=drawn.count) == 5, "control"


def test_settings_by_which_no_lesson_could_be_made() -> None:
    """Every pause followed by another is a list without an end; a team has a bound of its own."""
    odd: dict[str, Any]
    for odd in ({"pauses": 1.0}, {"most_workers": 300}):
        with pytest.raises(InvalidRequest):
            Curriculum(**odd)


def test_every_kind_of_run_is_drawn() -> None:
    """With every probability at one or zero the draw still works, and shows what was asked for."""
    team = {"Alice", "Bob", "Carol", "Dave"}
    kinds: dict[str, dict[str, Any]] = {
        "solo": {"solo": 1.0},
        "one worker": {"solo": 0.0, "most_workers": 1},
        "forced": {"solo": 0.0, "forced_claims": 1.0, "irregular": 0.0},
        "checks": {"solo": 0.0, "checks": 1.0, "most_problems": 8},
        "no checks": {"solo": 0.0, "checks": 0.0},
        "early": {"solo": 0.0, "early_answers": 1.0},
        "trouble": {"solo": 0.0, "irregular": 1.0, "pauses": 0.9, "contiguous": 1.0},
        "interleaved": {"solo": 0.0, "contiguous": 0.0, "interleaved": 1.0},
        "slips": {"solo": 0.0, "most_workers": 1, "slips": 1.0, **_LONG, **_WHOLE},
        "planted": {"solo": 0.0, "most_workers": 1, "planted": 1.0, **_WHOLE},
        "eight": {"solo": 0.0, "most_workers": 8},
        "one problem": {"fewest_problems": 1, "most_problems": 1, "early_answers": 1.0},
        "varied": {"stories": "varied", "word_problems": 1.0, "mixed_lists": 0.0},
    }
    expected = {
        "solo": ["Solve this list alone."],
        # The words of one, the steps of a team.
        "one worker": ["Solve this list alone.", "Alice"],
        "forced": ["taken."],
        "checks": [LIST_PROMPT.redundancy_check],
        "early": ["Time is up"],
        "trouble": ["solve this list together"],
        "interleaved": ["solve this list together"],
        "slips": [", not ", "=-", "#12:"],
        "planted": [", not "],
        "eight": ["Grace"],
        "one problem": ["#1 is"],
    }
    unheard = {
        "solo": team,
        "one worker": {"Bob"},
        "no checks": {LIST_PROMPT.redundancy_check},
        "trouble": {", not "},
    }
    assert set(kinds) == {*expected, *unheard, "varied"}
    for name, settings in kinds.items():
        missing = set(expected.get(name, ()))
        for n in range(6):
            if name in expected and name not in unheard and not missing:
                break  # all that was looked for has been said
            lesson = draw(f"{n}", replace(SMALL, **settings))
            said = list_text().decode(lesson.merged.plan.token_ids.tolist())
            missing = {each for each in missing if each not in said}
            assert not any(each in said for each in unheard.get(name, ())), name
        assert missing == set(), name


def test_lessons_speak_the_prompt_they_are_given() -> None:
    lesson = draw("0", prompt=replace(LIST_PROMPT, own_header="\n\n### Mine"))
    assert "### Mine" in list_text().decode(lesson.merged.plan.token_ids.tolist())


def test_workers_leave_in_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Item] = []

    def heard(
        team: ArithmeticTeam, asked: Callable[[ArithmeticTeam], Heard] = ArithmeticTeam.heard
    ) -> Heard:
        found = asked(team)
        said.extend(found.items)
        return found

    monkeypatch.setattr(ArithmeticTeam, "heard", heard)
    settings: dict[str, Any] = {
        "solo": 0.0,
        "leaves": 1.0,
        "pauses": 0.0,
        "irregular": 0.0,
        **_WHOLE,
    }
    for number in range(12):
        draw(f"leaves/{number}", replace(SMALL, most_workers=4, **settings))
    assert len(said) > 3
    assert all(isinstance(item, DismissWorker) for item in said)
    draw("leaves/none", replace(SMALL, solo=0.0, leaves=1.0, contiguous=1.0, interleaved=0.0))
    num_said = len(said)
    draw("leaves/none", replace(SMALL, solo=0.0, contiguous=1.0, interleaved=0.0))
    assert len(said) == num_said
