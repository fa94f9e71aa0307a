"""A strategy that says nothing but its views has all the rest: `examples/debate.py`, and passes without rows."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest
from manyhands.strategies.base import check_generator
from manyhands.strategies.events import AnswerFound, ReplyWritten, Snapshot, TokenWritten
from manyhands.strategies.settings import EndSettings, SoloSettings
from tests.strategies.driver import PROMPT, Dice, Played, Scripts, play, small_text

TEXT = small_text()
EXAMPLE = Path(__file__).parents[2] / "examples" / "debate.py"
SETTINGS = SoloSettings(budget=30, end=EndSettings(finisher_tokens=9, reply_tokens=5))


def debate_class() -> Any:
    spec = importlib.util.spec_from_file_location("debate", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Debate


DEBATE = debate_class()


def debate(settings: SoloSettings, predict: Any, context: int | None = None) -> Played:
    return play(DEBATE("2+3", TEXT, settings, PROMPT, context).play(), predict)


def work_of(played: Played) -> list[Any]:
    return [one for one in played.passes if set(one.writers) & {"Alice", "Bob"}]


def test_each_hears_the_other_when_both_have_ended_a_paragraph() -> None:
    said = Scripts(TEXT, Alice=["a.", "\n\n", "b"], Bob=["x", "y", "z.", "\n\n", "w"])
    played = debate(replace(SETTINGS, budget=8), said)
    first = [TEXT.decode(row.context) for row in played.rows("Alice")]
    assert all("x" not in seen for seen in first[:3])
    assert "**Bob [1]:**xyz.\n\n**Alice [2]:**" in first[-1].replace("\n\n\n\n", "\n\n")
    assert [one.writers for one in work_of(played)][3:6] == [("Bob",), ("Bob",), ("Alice", "Bob")]


def test_budget_finisher_reply_and_what_is_counted_apart() -> None:
    said = Scripts(TEXT, finisher=["7", "}"], reply=["Hi", None])
    played = debate(replace(SETTINGS, budget=6), said)
    answer = played.answer
    assert (answer.finish_reason, answer.answer, answer.text) == ("budget", "7", "Hi")
    assert (answer.forward_passes, answer.extra_passes) == (6, 2 + len(TEXT.encode("Hi")) + 1)
    assert len(played.passes) == answer.forward_passes + answer.extra_passes
    assert answer.tokens == (6, 6)
    assert len(played.of(TokenWritten)) == 12
    assert played.of(AnswerFound) == [AnswerFound(6, None, "7")]
    assert "".join(event.text for event in played.of(ReplyWritten)) == "Hi"
    asked = TEXT.decode(played.rows("finisher")[0].context)
    assert asked.endswith("**Alice [1]:**aaaaaa\n\n\n**Bob [1]:**aaaaaa\nFinal \\boxed{")


@pytest.mark.parametrize("choice", [Choice(), Choice(temperature=1.0)])
@pytest.mark.parametrize("reencode", [False, True])
def test_a_snapshot_is_the_answer_of_that_budget_and_changes_nothing(
    choice: Choice, reencode: bool
) -> None:
    answers = set()
    for seed in range(4):
        end = replace(SETTINGS.end, reencode=reencode)
        settings = replace(SETTINGS, choice=choice, seed=seed, end=end)
        everywhere = replace(settings, snapshots=tuple(range(1, settings.budget)))
        dice = Dice(TEXT, boxes=0, ends=0)
        plain, asked = debate(settings, dice), debate(everywhere, dice)
        assert work_of(asked) == work_of(plain)
        assert [e for e in asked.events if not isinstance(e, Snapshot)] == plain.events
        assert set(asked.answer.snapshots) == set(range(1, plain.answer.forward_passes))
        for budget, answer in asked.answer.snapshots.items():
            smaller = debate(replace(settings, budget=budget), dice)
            assert smaller.answer.answer == answer
            answers.add(answer)
    assert answers - {None}, "the dice never closed a box: the test proves little"


@pytest.mark.parametrize("room", range(0, 40, 3))
def test_it_stops_in_time_for_its_ending(room: int) -> None:
    never = {token: TEXT.encode("a")[0] for token in TEXT.encode("}")}
    dice = Dice(TEXT, boxes=0, ends=0)
    letters = lambda row: never.get(dice(row), dice(row))  # noqa: E731
    shortest = debate(replace(SETTINGS, budget=1), letters).longest_view
    played = debate(replace(SETTINGS, budget=500), letters, context=shortest + room)
    assert played.answer.finish_reason == "context"
    assert shortest + room - 40 < played.longest_view <= shortest + room


def test_what_is_reserved_is_enough() -> None:
    played = debate(replace(SETTINGS, budget=40), Dice(TEXT, boxes=0, ends=0))
    fed = sum(len(row.feed) for one in played.passes for row in one.rows)
    assert fed <= played.reserved[0].num_tokens


def test_a_part_that_is_no_generator_is_named() -> None:
    class Forgetful(DEBATE):  # type: ignore[misc, valid-type]
        def work(self) -> Any:
            self.write([0])

    said = "`work` of a Forgetful returned a NoneType; expected a generator"
    strategy = Forgetful("2+3", TEXT, SETTINGS, PROMPT, None)
    with pytest.raises(InvalidRequest, match=said):
        play(strategy.play(), Scripts(TEXT))
    with pytest.raises(InvalidRequest, match="a Forgetful was given as a strategy") as caught:
        check_generator(strategy)
    assert caught.value.hint == "Give what its `play` returns."


def test_what_follows_may_be_nothing() -> None:
    class Silent(DEBATE):  # type: ignore[misc, valid-type]
        def follow(self, worker: int, piece: str) -> None:
            self.finish_reason = "stopped"

    played = play(
        Silent("2+3", TEXT, SETTINGS, PROMPT, None).play(), Scripts(TEXT, Alice=["a"], Bob=["b"])
    )
    assert (played.answer.finish_reason, played.answer.forward_passes) == ("stopped", 1)
