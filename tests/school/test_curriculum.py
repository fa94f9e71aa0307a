"""Runs of the scripted team are the same for the same seed, and every kind of run is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from manyhands.school.arithmetic_team import ArithmeticTeam
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


def test_every_kind_of_run_is_drawn() -> None:
    """With every probability at one or zero the draw still works, and shows what was asked for."""
    team = {"Alice", "Bob", "Carol", "Dave"}
    kinds: dict[str, dict[str, Any]] = {
        "solo": {"solo": 1.0},
        "one worker": {"solo": 0.0, "most_workers": 1},
        "forced": {"solo": 0.0, "forced_claims": 1.0, "irregular": 0.0},
        "checks": {"solo": 0.0, "checks": 1.0},
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
    spoken = {
        name: " ".join(
            list_text().decode(
                draw(f"{n}", replace(SMALL, **settings)).merged.plan.token_ids.tolist()
            )
            for n in range(6)
        )
        for name, settings in kinds.items()
    }
    assert "Solve this list alone." in spoken["solo"]
    assert not any(name in spoken["solo"] for name in team)
    assert "Solve this list alone." in spoken["one worker"]  # the words of one, the steps of a team
    assert "Alice" in spoken["one worker"]
    assert "Bob" not in spoken["one worker"]
    assert "taken." in spoken["forced"]
    assert LIST_PROMPT.redundancy_check in spoken["checks"]
    assert LIST_PROMPT.redundancy_check not in spoken["no checks"]
    assert "Time is up" in spoken["early"]
    assert ", not " in spoken["slips"]
    assert "=-" in spoken["slips"]
    assert ", not " not in spoken["trouble"]
    assert ", not " in spoken["planted"]
    assert "#12:" in spoken["slips"]
    assert "Grace" in spoken["eight"]
    assert "#1 is" in spoken["one problem"]
    assert all("solve this list together" in spoken[name] for name in ("trouble", "interleaved"))


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
