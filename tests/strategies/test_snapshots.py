"""One run gives the answer at every smaller budget, and goes on as though it had not been asked.

The predictor's choice depends on every token a row can see, so a view that differs anywhere between
two runs makes them part ways.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.step import Choice
from manyhands.strategies.events import Snapshot
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import Away, EndSettings, SoloSettings, TeamSettings
from tests.strategies.driver import PROMPT, Dice, Pass, Played, SeenRow, play, small_text

TEXT = small_text()
ASKED = (1, 4, 9, 10, 17, 25)
SAMPLED = Choice(temperature=1.0)


def team(problem: str, settings: TeamSettings) -> Played:
    return play(hogwild(problem, TEXT, settings, PROMPT), Dice(TEXT))


def solo(problem: str, settings: SoloSettings) -> Played:
    return play(sequential(problem, TEXT, settings, PROMPT), Dice(TEXT))


def work_of(played: Played, writers: tuple[str, ...]) -> list[Pass]:
    return [one for one in played.passes if set(one.writers) & set(writers)]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "checks": {"check_every": 9},
    "sampled": {"choice": SAMPLED, "seed": 3},
    "absences": {"away": (Away(0, 3, 11), Away(1, 9, 10))},
    "encoded anew": {"end": EndSettings(finisher_tokens=9, reencode=True, reply_tokens=5)},
    "headers alone": {"headers": "alone"},
    "no finisher": {"end": EndSettings(finisher=False, reply_tokens=5)},
}


@pytest.mark.pairs
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_team(layout: str, workers: int, variant: str) -> None:
    answers = _asked_in_passing(workers, layout=layout, **VARIANTS[variant])
    if variant != "no finisher":
        assert answers - {None}, "the dice never closed a box: the test proves little"


@pytest.mark.parametrize("workers", [1, 3])
def test_a_team_whose_steps_are_encoded_again(workers: int) -> None:
    assert _asked_in_passing(workers, moves="reencode") - {None}


def _asked_in_passing(workers: int, **more: Any) -> set[str | None]:
    """All answers of teams at smaller budgets, each what a run of that budget says."""
    base = {"check_every": 0, "end": EndSettings(finisher_tokens=9, reply_tokens=5)}
    settings = TeamSettings(workers=workers, budget=30, **{**base, **more})
    names = PROMPT.team(workers)
    answers = set()
    for problem in ("2+3", "1+1", "9-8"):
        plain = team(problem, settings)
        asked = team(problem, replace(settings, snapshots=ASKED))
        ended = plain.answer.forward_passes
        due = {budget for budget in ASKED if budget < ended}
        early = set(asked.answer.snapshots) - due
        assert due <= set(asked.answer.snapshots)
        assert not early or settings.away  # a budget is over where all are away until behind it
        for budget, answer in asked.answer.snapshots.items():
            assert team(problem, replace(settings, budget=budget)).answer.answer == answer
            answers.add(answer)
        told = [(event.forward_pass, event.answer) for event in asked.of(Snapshot)]
        assert told == list(asked.answer.snapshots.items())
        # and the run with snapshots is the run without
        assert work_of(asked, names) == work_of(plain, names)
        assert [e for e in asked.events if not isinstance(e, Snapshot)] == plain.events
        same = replace(asked.answer, snapshots={}, extra_passes=plain.answer.extra_passes)
        assert same == plain.answer
    return answers


@pytest.mark.parametrize("variant", ["plain", "sampled", "encoded anew", "no finisher"])
@pytest.mark.parametrize("thinking", [False, True])
def test_one_alone(variant: str, thinking: bool) -> None:
    text = small_text(thinking=thinking)
    base: dict[str, Any] = {"end": EndSettings(finisher_tokens=9)}
    settings = SoloSettings(budget=30, **{**base, **VARIANTS[variant]})

    def run(problem: str, settings: SoloSettings) -> Played:
        return play(sequential(problem, text, settings, PROMPT), Dice(text, ends=0))

    for problem in ("2+3", "1+1", "9-8", "5"):
        plain = run(problem, settings)
        asked = run(problem, replace(settings, snapshots=ASKED))
        assert set(asked.answer.snapshots) == set(ASKED)
        for budget, answer in asked.answer.snapshots.items():
            assert run(problem, replace(settings, budget=budget)).answer.answer == answer
        assert work_of(asked, ("writer",)) == work_of(plain, ("writer",))
        same = replace(asked.answer, snapshots={}, extra_passes=plain.answer.extra_passes)
        assert same == plain.answer


def test_passes_of_snapshots_are_extra() -> None:
    settings = TeamSettings(
        budget=12, check_every=0, end=EndSettings(finisher_tokens=3, reply=False)
    )
    dice = Dice(TEXT, boxes=0, ends=0)
    closing = TEXT.encode("}")[0]

    def predict(row: SeenRow) -> int:
        token = dice(row)
        return dice.tokens[0] if token == closing else token

    plain = play(hogwild("2+3", TEXT, settings, PROMPT), predict).answer
    asked = play(hogwild("2+3", TEXT, replace(settings, snapshots=(2, 5)), PROMPT), predict).answer
    assert plain.forward_passes == asked.forward_passes == 12
    assert (plain.extra_passes, asked.extra_passes) == (3, 9)
