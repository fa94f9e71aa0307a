"""Self-consistency and best-of-n with scripted predictors: who reads what, and what comes of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from manyhands.cache.step import GREEDY, Choice, Step
from manyhands.errors import InvalidRequest, UnsupportedModel
from manyhands.prompts.votes import VotesPrompt
from manyhands.strategies.base import Strategy
from manyhands.strategies.best_of_n import best_of_n
from manyhands.strategies.events import AnswerFound, ReplyWritten, WorkerStopped
from manyhands.strategies.self_consistency import self_consistency
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import BestSettings, EndSettings, SoloSettings, VoteSettings
from manyhands.text import Text
from tests.strategies.driver import PROMPT as TEAM
from tests.strategies.driver import Dice, Played, Scripts, SeenRow, boxed, feed, play, small_text
from tests.text.small_tokenizers import byte_level, sentence_piece

TEXT = small_text()
PROMPT = VotesPrompt(
    rules="Q: {question}",
    between="\n\nNext:\n",
    final="\nFinal \\boxed{",
    finisher="\nTime \\boxed{",
    grade="\nGrade:",
    reply="\nReply:{think_end}",
)
START = "user\nQ: who\nassistant\n"
SHORT = EndSettings(finisher_tokens=4, reply_tokens=3)
SAID: dict[str, Sequence[str | int | None]] = {
    "attempt 1": ["x \\boxed{7}", None],
    "attempt 2": ["yy ", "\\boxed{8", "}", None],
    "attempt 3": ["zzz"],
}
Settings = VoteSettings | BestSettings


def strategy(settings: Settings, text: Text = TEXT, context: int | None = None) -> Strategy:
    if isinstance(settings, BestSettings):
        return best_of_n("who", text, boxed(settings), PROMPT, context=context)
    return self_consistency("who", text, boxed(settings), PROMPT, context=context)


def run(
    settings: Settings,
    text: Text = TEXT,
    context: int | None = None,
    **said: Sequence[str | int | None],
) -> Played:
    lines = {name.replace("_", " "): words for name, words in said.items()}
    lines = {name.replace("attempt 3s", "attempt 3's"): words for name, words in lines.items()}
    return play(strategy(settings, text, context), Scripts(text, **SAID | lines))


def vote(mode: str = "vote", **more: Any) -> VoteSettings:
    return VoteSettings(**{"mode": mode, "workers": 3, "budget": 20, "end": SHORT, **more})


def best(**more: Any) -> BestSettings:
    return BestSettings(**{"workers": 3, "budget": 20, "end": SHORT, **more})


EVERY = pytest.mark.parametrize("settings", [vote(), vote("final"), best()], ids=str)
KINDS = pytest.mark.parametrize("make", [vote, lambda **m: vote("final", **m), best])
Make = Callable[..., Settings]


# -- the attempts ----------------------------------------------------------------------------------


@KINDS
def test_nobody_reads_anybody_else(make: Make) -> None:
    played = run(make())
    for index in (1, 2, 3):
        for row in played.rows(f"attempt {index}"):
            others = {f"attempt {other}" for other in (1, 2, 3) if other != index}
            assert others.isdisjoint(row.blocks)
            assert f"attempt {index}" in row.blocks[-1]


@KINDS
def test_each_attempt_is_an_ordinary_run(make: Make) -> None:
    """Prompt and own words, token for token; the first pass writes already."""
    played = run(make())
    prompt = TEXT.chat_prompt("Q: who")
    for index in (1, 2, 3):
        rows, written = played.rows(f"attempt {index}"), played.written(f"attempt {index}")
        for count, row in enumerate(rows):
            assert row.context == prompt + tuple(written[:count])


def test_one_attempt_reads_what_a_sequential_run_reads() -> None:
    one = play(strategy(vote(workers=1, choice=GREEDY)), Dice(TEXT))
    words = replace(TEAM, solo_rules="Q: {problem}")
    settings = SoloSettings(budget=20, end=SHORT)
    solo = play(sequential("who", TEXT, settings, words), Dice(TEXT))
    assert one.written("attempt 1") == solo.written("writer")


@KINDS
@pytest.mark.parametrize("text", [TEXT, Text(byte_level()), Text(sentence_piece())])
def test_another_worker_changes_nobodys_tokens(make: Make, text: Text) -> None:
    """The draws are each worker's own."""
    written = []
    for workers in (1, 2, 5, 8):
        played = play(strategy(make(workers=workers, seed=3), text), Dice(text))
        written.append([played.written(f"attempt {i}") for i in range(1, workers + 1)])
    for few, many in pairwise(written):
        assert many[: len(few)] == few
    assert len({tuple(words) for words in written[-1]}) == 8
    others = play(strategy(make(workers=2, seed=4), text), Dice(text))
    assert others.written("attempt 1") != written[0][0]


@EVERY
def test_who_ends_its_turn_leaves_the_pass(settings: Settings) -> None:
    played = run(settings)
    assert [event.worker for event in played.of(WorkerStopped)] == [0, 1]
    assert played.passes[19].writers == ("attempt 3",)
    assert played.answer.forward_passes == 20
    assert played.answer.finish_reason == "budget"
    assert played.answer.tokens[2] == 20


@KINDS
def test_all_may_end_before_the_budget(make: Make) -> None:
    played = run(make(), attempt_3=["z", None])
    assert played.answer.finish_reason == "answer"
    assert played.answer.forward_passes == max(map(len, map(played.written, SAID)))
    nothing = run(make(), attempt_1=["x", None], attempt_2=["y", None], attempt_3=["z", None])
    assert nothing.answer.finish_reason == "stopped"


# -- how many become one ---------------------------------------------------------------------------


def test_the_final_row_reads_all_attempts_and_is_not_charged() -> None:
    played = run(vote("final"), finisher=["42}"])
    assert played.answer.answer == "42"
    assert TEXT.decode(played.rows("finisher")[0].context) == (
        START + "x \\boxed{7}\n\nNext:\nyy \\boxed{8}\n\nNext:\nzzz" + "a" * 17 + "\nFinal \\boxed{"
    )
    assert played.answer.extra_passes == 3 + 3  # the box and the reply
    assert played.of(AnswerFound)[-1] == AnswerFound(20, None, "42")
    assert played.rows("reply")[0].context[: len(played.rows("finisher")[0].context)] == (
        played.rows("finisher")[0].context
    )
    assert "".join(e.text for e in played.of(ReplyWritten)) == played.answer.text == "aaa"


def test_one_attempt_with_an_answer_needs_no_final_row() -> None:
    played = run(vote("final", workers=1, choice=GREEDY))
    assert (played.answer.answer, played.answer.text) == ("7", "x \\boxed{7}")
    assert played.answer.extra_passes == 0


def test_one_attempt_without_an_answer_is_asked_for_it() -> None:
    played = run(vote("final", workers=1), attempt_1=["Hm.", None], finisher=["9}"])
    assert (played.answer.answer, len(played.rows("finisher"))) == ("9", 2)


def test_nothing_is_encoded_twice_for_the_final_row() -> None:
    played = run(vote("final"), finisher=["42}"])
    fed = sum(len(row.feed) for one in played.passes for row in one.rows)
    read = len(played.passes[-1].rows[-1].context)
    between = len(TEXT.encode(PROMPT.between))
    assert fed == read + 2 - between  # the last token of the prompt, by each worker; one separator


def test_the_majority_wins_and_who_has_no_answer_is_asked() -> None:
    played = run(vote(), attempt_3s_finisher=["8}"])
    assert played.answer.answer == "8"
    assert "attempt 1's finisher" not in {w for one in played.passes for w in one.writers}
    assert TEXT.decode(played.rows("attempt 3's finisher")[0].context) == (
        START + "zzz" + "a" * 17 + "\nTime \\boxed{"
    )
    assert played.answer.extra_passes == 2
    assert played.answer.text == "yy \\boxed{8}"  # the earliest attempt with that answer


def test_ties_go_to_the_earliest() -> None:
    assert run(vote(), attempt_3s_finisher=["9}"]).answer.answer == "7"
    assert run(vote(), attempt_1=["x", None], attempt_3=["\\boxed{7}", None]).answer.answer == "8"


def test_the_last_box_of_an_attempt_counts() -> None:
    said = ["\\boxed{7}", "no, ", "\\boxed{8", "}", None]
    assert run(vote(workers=1, choice=GREEDY), attempt_1=said).answer.answer == "8"


def test_all_who_are_asked_are_asked_in_the_same_passes() -> None:
    played = run(vote(), attempt_1=["x"], attempt_2=["y"])
    assert played.answer.answer is None
    assert played.answer.extra_passes == SHORT.finisher_tokens
    for one in played.passes[20:]:
        assert one.writers == tuple(f"attempt {i}'s finisher" for i in (1, 2, 3))


def test_without_a_finisher() -> None:
    """No box, no vote; and the final row is only written when all have ended their turn."""
    end = EndSettings(finisher=False, reply=False)
    assert run(vote(end=end), attempt_1=["x"]).answer.answer == "8"
    assert run(vote("final", end=end), finisher=["42}"]).answer.answer is None
    ended = run(vote("final", end=end), attempt_3=["z", None], finisher=["42}"])
    assert ended.answer.answer == "42"


@pytest.mark.parametrize(
    ("grades", "answer"), [("399", "8"), ("599", "8"), ("959", "7"), ("555", "7"), ("019", "9")]
)
def test_the_best_grade_wins(grades: str, answer: str) -> None:
    graded = {f"attempt {i}'s grade": [grade] for i, grade in enumerate(grades, 1)}
    lines = Scripts(TEXT, **SAID, **graded, **{"attempt 3's finisher": ["9}"]})
    played = play(strategy(best()), lines)
    assert played.answer.answer == answer
    assert played.answer.extra_passes == 3  # two for the missing answer, one for all grades
    last = played.passes[-1]
    assert last.writers == tuple(f"attempt {i}'s grade" for i in (1, 2, 3))
    seen = [TEXT.decode(last.row(writer).context) for writer in last.writers]
    assert seen[0] == START + "x \\boxed{7}\nGrade:"
    assert seen[2] == START + "zzz" + "a" * 17 + "\nTime \\boxed{9}\nGrade:"
    digits = last.row("attempt 1's grade").choice.allowed
    assert digits is not None
    assert {TEXT.decode([token]).strip() for token in digits} == set("0123456789")


def test_who_has_no_answer_is_chosen_only_if_nobody_has_one() -> None:
    graded = {f"attempt {i}'s grade": [grade] for i, grade in enumerate("109", 1)}
    settings = best(end=EndSettings(finisher=False))
    assert play(strategy(settings), Scripts(TEXT, **SAID, **graded)).answer.answer == "7"
    lines = Scripts(TEXT, **{"attempt 1": ["x", None]}, **graded)
    played = play(strategy(settings), lines)
    assert (played.answer.answer, played.answer.text) == (None, "a" * 20)


def test_one_attempt_needs_no_grade() -> None:
    played = run(best(workers=1, choice=GREEDY))
    assert not any("grade" in (w or "") for one in played.passes for w in one.writers)
    assert played.answer.answer == "7"


def test_a_vocabulary_without_digits() -> None:
    class Numberless(Text):
        def decode(self, tokens: Any, *, special: bool = False) -> str:
            return super().decode(tokens, special=special).replace("5", "five")

    text = Numberless(byte_level())
    with pytest.raises(UnsupportedModel, match="digits"):
        run(best(), text)


def test_a_reply_follows_the_thoughts_of_the_chosen_one() -> None:
    text = small_text(thinking=True)
    end = text.think_end
    said: dict[str, Any] = {
        "attempt_1": ["x \\boxed{7}", end],
        "attempt_2": ["y \\boxed{8", "}", end],
        "attempt_3": ["z \\boxed{8", "}", end],
    }
    played = run(vote(), text, **said)
    assert played.answer.answer == "8"
    (writer,) = {w for one in played.passes for w in one.writers if "reply" in w}
    assert writer == "attempt 2's reply"
    assert "y \\boxed{8}\nReply:" in text.decode(played.rows(writer)[0].context)
    assert played.answer.text == "aaa"
    final = run(vote("final"), text, **said, finisher=["8}"])
    assert "Reply:" in text.decode(final.rows("reply")[0].context)
    quiet = run(vote(end=replace(SHORT, reply=False)), text, **said)
    assert (quiet.answer.text, quiet.of(ReplyWritten)) == ("8", [])


# -- budgets and bounds ----------------------------------------------------------------------------


@KINDS
def test_a_snapshot_is_the_answer_of_that_budget_and_changes_nothing(make: Make) -> None:
    def played(budget: int, snapshots: tuple[int, ...] = ()) -> Played:
        dice = Dice(TEXT, boxes=0, ends=0)

        def predict(row: SeenRow) -> int:
            seen = zlib.crc32(repr(row.context).encode())
            if row.choice.allowed is not None:
                return sorted(row.choice.allowed)[seen % len(row.choice.allowed)]
            if "finisher" in (row.writer or ""):  # any answer, by what it reads
                return TEXT.encode(f"{seen % 10}}}")[len(row.feed) == 1]
            return dice(row)

        settings = make(budget=budget, snapshots=snapshots)
        return play(strategy(settings), predict)

    every = tuple(range(1, 24))
    whole, plain = played(24, every), played(24)
    same: dict[str, Any] = {"snapshots": {}, "extra_passes": 0}
    assert replace(whole.answer, **same) == replace(plain.answer, **same)
    assert whole.answer.snapshots == {budget: played(budget).answer.answer for budget in every}
    assert len(set(whole.answer.snapshots.values())) > 3


@KINDS
def test_the_context_may_end_it(make: Make) -> None:
    for context in range(90, 160, 7):
        played = run(make(budget=500), context=context)
        assert played.answer.finish_reason == "context"
        assert played.longest_view <= context


@KINDS
def test_text_may_be_encoded_anew(make: Make) -> None:
    end = replace(SHORT, reencode=True)
    played = run(make(end=end), attempt_3s_finisher=["8}"], finisher=["42}"])
    rows = [row for one in played.passes for row in one.rows if "finisher" in (row.writer or "")]
    assert rows[0].blocks == ("finisher",)
    plain = run(make(), attempt_3s_finisher=["8}"], finisher=["42}"])
    same = [row for one in plain.passes for row in one.rows if "finisher" in (row.writer or "")]
    assert rows[0].context == same[0].context
    assert played.answer.answer == plain.answer.answer


@KINDS
def test_what_is_reserved_is_enough(make: Make) -> None:
    played = run(make(snapshots=(5, 9)))
    (reserve,) = played.reserved
    assert sum(len(row.feed) for one in played.passes for row in one.rows) <= reserve.num_tokens


@KINDS
@pytest.mark.parametrize("passes", [0, 4, 19, 22])
def test_closing_it_cancels_it(make: Make, passes: int) -> None:
    closed = strategy(make())
    scripts = Scripts(TEXT, **SAID)
    asked = next(closed)
    while passes:
        tokens = None
        if isinstance(asked, Step):
            tokens, passes = tuple(scripts(row) for row in feed(asked)), passes - 1
        asked = closed.send(tokens)
    closed.close()
    with pytest.raises(StopIteration):
        next(closed)


@pytest.mark.parametrize("kind", [VoteSettings, BestSettings])
def test_mistakes(kind: Any) -> None:
    for field, value in (
        ("workers", 0),
        ("workers", 257),
        ("budget", 0),
        ("snapshots", (0,)),
        ("snapshots", (2048,)),
    ):
        with pytest.raises(InvalidRequest, match=field):
            kind(**{field: value})
    with pytest.raises(InvalidRequest, match="temperature 0") as error:
        kind(choice=GREEDY)
    assert "0.7" in str(error.value.hint)
    assert kind(workers=1, choice=GREEDY).choice.temperature == 0
    assert kind(choice=Choice(temperature=0.1)).workers == 4
    with pytest.raises(InvalidRequest, match="mode"):
        VoteSettings(mode="loudest")
