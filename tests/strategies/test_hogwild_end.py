"""How a team's run ends: a box, the budget, the context; the finisher and the reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from manyhands.cache.layouts import LAYOUTS
from manyhands.strategies.events import AnswerFound, ReplyWritten, TokenWritten
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import Away, EndSettings, TeamSettings
from tests.strategies.driver import PROMPT, Dice, Played, Scripts, SeenRow, play, small_text

TEXT = small_text()
START = "user\nAlice and Bob: 2+3\nassistant\n\nPast"


def run(settings: TeamSettings, **said: Sequence[str | int | None]) -> Played:
    return play(hogwild("2+3", TEXT, settings, PROMPT), Scripts(TEXT, **said))


def settings(**more: Any) -> TeamSettings:
    return TeamSettings(**{"budget": 30, "check_every": 0, **more})


def end(**more: Any) -> EndSettings:
    return EndSettings(**{"finisher_tokens": 6, "reply": False, **more})


def fed_nobody(played: Played) -> list[str]:
    """The tokens that rows without a writer fed, the opening left out."""
    rows = [row for one in played.passes[1:] for row in one.rows if row.writer is None]
    return [TEXT.decode(row.feed) for row in rows]


# -- the box -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_box_ends_the_run_in_the_middle_of_a_step(layout: str) -> None:
    said = ["so ", "\\boxed{8", "}", "never"]
    played = run(settings(layout=layout, end=end()), Alice=["x", ".\n\n", "y"], Bob=said)
    passes = sum(len(TEXT.encode(piece)) for piece in said[:3])
    assert played.answer.answer == "8"
    assert played.answer.finish_reason == "answer"
    assert played.answer.forward_passes == len(played.passes) == passes
    assert [(e.forward_pass, e.worker, e.answer) for e in played.of(AnswerFound)] == [
        (passes, 1, "8")
    ]
    assert played.answer.extra_passes == 0  # no finisher was needed
    assert played.answer.steps[-1].text == "so \\boxed{8}"


def test_nested_braces_are_no_end() -> None:
    played = run(settings(end=end()), Alice=["\\boxed{8", "{1}", "\\}", "}"])
    assert played.answer.answer == "8{1}\\}"


@pytest.mark.parametrize("content", ["", "...", "your answer"])
def test_a_box_to_be_filled_in_is_no_answer(content: str) -> None:
    played = run(settings(end=end(finisher=False)), Alice=["\\boxed{", content, "}"])
    assert played.answer.answer is None
    assert played.answer.finish_reason == "budget"


def test_all_tokens_of_the_last_pass_are_read() -> None:
    """Two boxes in one pass: the first worker's is the answer, the other's token is not lost."""
    played = run(settings(end=end()), Alice=["\\boxed{7}"], Bob=["\\boxed{8", "}"])
    assert played.answer.answer == "7"
    assert [(e.worker, e.token) for e in played.of(TokenWritten)] == [
        (0, TEXT.encode("\\boxed{7}")[0]),
        (1, TEXT.encode("\\boxed{8")[0]),
    ]
    both = run(settings(end=end()), Alice=["a", "\\boxed{7}"], Bob=["\\boxed{8", "}"])
    assert both.answer.answer == "7"


def test_the_finished_step_that_holds_the_box() -> None:
    played = run(settings(end=end()), Alice=["\\boxed{8", "}.\n\n"])
    assert (played.answer.answer, played.answer.finish_reason) == ("8", "answer")


# -- the finisher --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_finisher_reads_everything(layout: str) -> None:
    """Whatever the layout, and what was written in the last pass too, which nobody has been fed."""
    played = run(
        settings(layout=layout, budget=3, end=end()),
        Alice=["a", ".\n\n", "b"],
        Bob=["x", "y", "z"],
        finisher=["4", "2}"],
    )
    first = played.passes[3]
    assert first.writers == ("finisher",)
    alice, bob = "\n\n**Alice [1]:**a.\n\n**Alice [2]:**b", "\n\n**Bob [1]:**xyz"
    if not LAYOUTS[layout].keeps_history:
        expected = f"{START}\nOthers{alice}<..>\nOwn{bob}"
    else:
        done, rest = alice[: alice.index(".")], alice[alice.index(".") :]
        expected = f"{START}{done}\nOthers{rest}<..>\nOwn{bob}"
    assert TEXT.decode(first.row("finisher").context) == expected + "\nFinal \\boxed{"
    assert TEXT.decode(played.passes[4].row("finisher").context).endswith("\\boxed{4")
    assert played.answer.answer == "42"
    assert played.answer.finish_reason == "budget"
    assert (played.answer.forward_passes, played.answer.extra_passes) == (3, 3)
    assert fed_nobody(played) == ["b", "z"]  # each tail once
    assert played.of(AnswerFound) == [AnswerFound(3, None, "42")]


def test_tails_are_read_where_they_would_have_stood() -> None:
    rows = run(settings(budget=2, end=end()), Alice=["a", "b"], Bob=["x", "y"]).passes[2].rows
    assert [row.blocks[-4:] for row in rows] == [
        ("more to come", "own header", "Alice 1", "Alice's newest"),
        ("more to come", "own header", "Bob 1", "Bob's newest"),
        ("own header", "Bob 1", "Bob's newest", "finisher"),
    ]


def test_no_tail_of_who_has_stopped() -> None:
    played = run(settings(budget=3, end=end()), Alice=["a", None], Bob=["x", "y", "z"])
    assert fed_nobody(played) == ["z"]


def test_a_break_is_fed_without_the_next_prefix() -> None:
    """A step that ended in the last pass: its break is read, the prefix never came to be."""
    played = run(settings(budget=2, end=end()), Alice=["a", ".\n\n"], Bob=["x", "y"])
    assert fed_nobody(played) == [".\n\n", "y"]
    seen = TEXT.decode(played.rows("finisher")[0].context)
    assert "[2]" not in seen
    assert "**Alice [1]:**a\nOthers.\n\n<..>" in seen


def test_the_finisher_gives_up_in_time() -> None:
    played = run(settings(budget=2, end=end(finisher_tokens=4)), finisher=["1", "2", "3", "4", "}"])
    assert played.answer.answer is None
    assert played.written("finisher") == [TEXT.encode(digit)[0] for digit in "1234"]
    assert played.answer.extra_passes == 4
    assert played.of(AnswerFound) == [AnswerFound(2, None, None)]


def test_the_finisher_may_end_its_turn() -> None:
    played = run(settings(budget=2, end=end()), finisher=["1", None])
    assert played.answer.answer is None
    assert played.answer.extra_passes == 2


def test_the_finisher_balances_braces() -> None:
    played = run(settings(budget=2, end=end(finisher_tokens=9)), finisher=["{1}", "{2}", "}"])
    assert played.answer.answer == "{1}{2}"


def test_the_finisher_is_asked_when_all_have_stopped() -> None:
    played = run(settings(workers=1, end=end()), Alice=["a", None], finisher=["7", "}"])
    assert (played.answer.finish_reason, played.answer.answer) == ("stopped", "7")


def test_without_a_finisher() -> None:
    played = run(settings(budget=3, end=end(finisher=False)), Alice=["a", "b", "c"])
    assert played.answer.answer is None
    assert played.answer.extra_passes == 0
    assert len(played.passes) == 3
    assert played.answer.text == "abc\n\naaa"


def test_the_finisher_encodes_all_anew_if_asked() -> None:
    played = run(
        settings(budget=3, end=end(reencode=True)),
        Alice=["a", ".\n\n", "b"],
        Bob=["x", "y", "z"],
        finisher=["4", "}"],
    )
    (first, second) = played.rows("finisher")
    assert first.blocks == second.blocks == ("finisher",)
    whole = START + "\n\n**Alice [1]:**a.\n\n**Alice [2]:**b\n\n**Bob [1]:**xyz\nFinal \\boxed{"
    assert TEXT.decode(first.context) == whole
    assert first.feed == first.context  # one ordinary sequence, in one go
    assert TEXT.decode(second.context) == whole + "4"
    assert played.answer.answer == "4"


@pytest.mark.parametrize("reencode", [False, True])
def test_a_prompt_may_leave_the_last_words_empty(reencode: bool) -> None:
    """A run must not fail at its very end because there is nothing to feed."""
    bare = replace(PROMPT, finisher="", reply="{think_end}")
    team = settings(budget=2, end=end(reply=True, reencode=reencode))
    said = Scripts(TEXT, finisher=["\\boxed{7}"], reply=["Hi", None])
    played = play(hogwild("2+3", TEXT, team, bare), said)
    assert (played.answer.answer, played.answer.text) == ("7", "Hi")


# -- the reply -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_reply_after_an_answer(layout: str) -> None:
    played = run(
        settings(layout=layout, end=end(reply=True)),
        Alice=["a", "\\boxed{7}"],
        Bob=["x", "y"],
        reply=["It", " is", " 7", None],
    )
    replies = played.rows("reply")
    assert len(replies) == played.answer.extra_passes
    assert TEXT.decode(replies[0].context) == (
        f"{START}\nOthers\n\n**Alice [1]:**a\\boxed{{7}}<..>\nOwn\n\n**Bob [1]:**xy\nReply:"
    )
    assert fed_nobody(played) == ["\\boxed{7}", "y"]
    assert played.answer.text == "It is 7"
    assert "".join(e.text for e in played.of(ReplyWritten)) == "It is 7"
    assert played.answer.forward_passes == 2


def test_the_reply_after_the_finisher_reads_its_box() -> None:
    played = run(settings(budget=2, end=end(reply=True)), finisher=["4", "}"], reply=["Yes", None])
    first = played.rows("reply")[0]
    assert TEXT.decode(first.context).endswith("aa\nFinal \\boxed{4}\nReply:")
    assert fed_nobody(played) == ["a", "a", "}"]
    assert played.answer.text == "Yes"
    assert played.answer.answer == "4"


def test_the_reply_after_a_finisher_that_ended_its_turn() -> None:
    played = run(settings(budget=2, end=end(reply=True)), finisher=["4", None], reply=["No", None])
    assert TEXT.decode(played.rows("reply")[0].context).endswith("\nFinal \\boxed{4\nReply:")
    assert fed_nobody(played) == ["a", "a"]


def test_the_reply_has_its_own_budget() -> None:
    played = run(settings(budget=2, end=end(reply=True, reply_tokens=3)), Alice=["\\boxed{7}"])
    assert played.answer.text == "aaa"
    assert played.answer.extra_passes == 3


def test_the_reply_closes_an_open_thinking() -> None:
    text = small_text(thinking=True)
    team = hogwild("2+3", text, settings(budget=2, end=end(reply=True)), PROMPT)
    played = play(team, Scripts(text, Alice=["\\boxed{7}"], reply=["Hi", None]))
    assert played.rows("reply")[0].feed == (*text.encode("\nReply:"), text.think_end)
    assert played.answer.text == "Hi"


def test_without_a_reply_the_answer_is_the_text() -> None:
    assert run(settings(end=end()), Alice=["\\boxed{7}"]).answer.text == "7"


# -- the context ---------------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("reencode", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_team_stops_in_time_for_its_ending(layout: str, workers: int, reencode: bool) -> None:
    """No view ever exceeds the context, finisher and reply included, and little of it is wasted."""
    ending = EndSettings(finisher_tokens=7, reply_tokens=9, reencode=reencode)
    away = (Away(0, 4, 9),)

    def longest(budget: int, context: int | None) -> tuple[int, Played]:
        team = settings(layout=layout, workers=workers, budget=budget, end=ending, away=away)
        # no worker ends a turn or closes a box: endings take all they may
        dice = Dice(TEXT, boxes=0, ends=0)
        closing = set(TEXT.encode("}"))

        def predict(row: SeenRow) -> int:
            token = dice(row)
            return TEXT.encode("a")[0] if token in closing else token

        played = play(hogwild("2+3", TEXT, team, PROMPT, context=context), predict)
        return played.longest_view, played

    shortest, _ = longest(1, None)
    # The next pass might have been as wide as a prefix for everybody; and if all is encoded anew,
    # the reply does not read the finisher's words.
    slack = 15 * workers + (30 if reencode else 10)
    for context in range(shortest, shortest + 60):
        length, played = longest(1000, context)
        assert played.answer.finish_reason == "context"
        assert length <= context
        assert length > context - slack


def test_a_prompt_that_leaves_no_room_for_work() -> None:
    played = play(
        hogwild("2+3", TEXT, settings(), PROMPT, context=10), Scripts(TEXT, finisher=["7", "}"])
    )
    assert played.answer.finish_reason == "context"
    assert played.answer.forward_passes == 1
