"""One worker alone: ordinary decoding, with and without the finisher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest
from manyhands.strategies.events import (
    AnswerFound,
    ReplyWritten,
    Snapshot,
    TokenWritten,
    WorkerStopped,
)
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import EndSettings, SoloSettings
from manyhands.text import Text
from tests.strategies.driver import PROMPT, Dice, Played, Scripts, SeenRow, play, small_text
from tests.text.small_tokenizers import byte_level

TEXT, THINKER = small_text(), small_text(thinking=True)
START = "user\nAlone: 2+3\nassistant\n"


def run(
    settings: SoloSettings | None = None,
    text: Text = TEXT,
    context: int | None = None,
    **said: Sequence[str | int | None],
) -> Played:
    strategy = sequential("2+3", text, settings, PROMPT, context=context)
    return play(strategy, Scripts(text, **said))


def test_it_is_ordinary_decoding() -> None:
    played = run(SoloSettings(budget=4), writer=["a", "b", "c", "d"])
    reads = [TEXT.decode(row.context) for row in played.rows("writer")[:4]]
    assert reads == [START, START + "a", START + "ab", START + "abc"]
    first, second = played.passes[0], played.passes[1]
    assert [row.blocks for row in first.rows] == [("prompt",), ("prompt", "writer")]
    # the first pass writes already: the prompt's last token is the writer's first feed
    assert [len(row.feed) for row in first.rows] == [len(TEXT.chat_prompt("Alone: 2+3")) - 1, 1]
    assert len(second.rows) == 1
    assert played.answer.tokens == (4,)
    assert played.answer.forward_passes == 4


def test_the_model_ends_its_turn() -> None:
    played = run(writer=["It is ", "\\boxed{7}", ".", None, "never"])
    answer = played.answer
    assert (answer.answer, answer.finish_reason) == ("7", "answer")
    assert answer.text == "It is \\boxed{7}."
    assert answer.extra_passes == 0
    assert [type(e) for e in played.events][-2:] == [TokenWritten, WorkerStopped]
    assert played.of(AnswerFound)[0].worker == 0
    assert [(s.worker, s.step, s.text) for s in answer.steps] == [(0, 1, "It is \\boxed{7}.")]


def test_the_last_box_counts() -> None:
    played = run(writer=["\\boxed{7}", " no, ", "\\boxed{8", "}", None])
    assert played.answer.answer == "8"
    assert [e.answer for e in played.of(AnswerFound)] == ["7", "8"]


def test_a_turn_without_an_answer_asks_the_finisher() -> None:
    played = run(writer=["no idea", None], finisher=["4", "}"])
    assert (played.answer.answer, played.answer.finish_reason) == ("4", "stopped")
    assert TEXT.decode(played.rows("finisher")[0].context) == START + "no idea\nFinal \\boxed{"
    assert played.answer.text == "no idea"


def test_at_the_budget_the_finisher_reads_the_newest_token_too() -> None:
    played = run(SoloSettings(budget=3), writer=["a", "b", "c"], finisher=["4", "}"])
    rows = played.rows("finisher")
    assert TEXT.decode(rows[0].context) == START + "abc\nFinal \\boxed{"
    assert rows[0].blocks == ("prompt", "writer", "newest", "finisher")
    fed = [row.feed for one in played.passes[1:] for row in one.rows if row.writer is None]
    assert fed == [TEXT.encode("c")]
    assert (played.answer.finish_reason, played.answer.answer) == ("budget", "4")
    assert (played.answer.forward_passes, played.answer.extra_passes) == (3, 2)
    assert played.of(AnswerFound) == [AnswerFound(3, None, "4")]


def test_no_finisher_when_there_is_an_answer() -> None:
    played = run(SoloSettings(budget=3), writer=["a", "\\boxed{7}", "c"])
    assert (played.answer.answer, played.answer.extra_passes) == ("7", 0)


def test_without_a_finisher() -> None:
    end = EndSettings(finisher=False)
    played = run(SoloSettings(budget=3, snapshots=(2,), end=end), writer=["a", "b", "c"])
    assert played.answer.answer is None
    assert played.answer.text == "abc"
    assert len(played.passes) == 3
    assert played.of(Snapshot) == [Snapshot(2, None)]


def test_all_encoded_anew() -> None:
    end = EndSettings(reencode=True)
    played = run(SoloSettings(budget=2, end=end), writer=["a", "b"], finisher=["4", "}"])
    first = played.rows("finisher")[0]
    assert first.blocks == ("finisher",)
    assert TEXT.decode(first.feed) == START + "ab\nFinal \\boxed{"
    assert played.answer.answer == "4"


def test_what_follows_the_thinking_is_the_reply() -> None:
    said = ["let me see", THINKER.think_end, "It", " is ", "\\boxed{7}", None]
    played = run(text=THINKER, writer=said)
    assert played.answer.text == "It is \\boxed{7}"
    assert "".join(e.text for e in played.of(ReplyWritten)) == "It is \\boxed{7}"
    assert played.answer.answer == "7"
    assert played.answer.finish_reason == "answer"


def test_a_thinking_that_never_closes() -> None:
    played = run(SoloSettings(budget=3), text=THINKER, writer=["a", "b", "c"], finisher=["4", "}"])
    assert played.of(ReplyWritten) == []
    assert played.answer.text == "4"  # an unfinished thinking is no reply
    assert played.answer.steps[0].text == "abc"


def test_a_snapshot_takes_a_box_that_stands_there() -> None:
    settings = SoloSettings(budget=9, snapshots=(1, 3))
    played = run(settings, writer=["a", "\\boxed{7}"], finisher=["4", "}"])
    assert played.answer.snapshots == {1: "4", 3: "7"}
    assert played.answer.extra_passes == 2


@pytest.mark.parametrize("room", range(30))
def test_it_stops_in_time_for_its_ending(room: int) -> None:
    end = EndSettings(finisher_tokens=5, reply_tokens=1)
    settings = SoloSettings(budget=500, end=end)
    dice = Dice(TEXT, boxes=0, ends=0)
    letter, closing = TEXT.encode("a")[0], TEXT.encode("}")[0]

    def predict(row: SeenRow) -> int:
        token = dice(row)
        return letter if token == closing else token

    shortest = play(
        sequential("2+3", TEXT, SoloSettings(budget=1, end=end), PROMPT), predict
    ).longest_view
    context = shortest + room
    played = play(sequential("2+3", TEXT, settings, PROMPT, context=context), predict)
    assert played.answer.finish_reason == "context"
    assert context - 12 < played.longest_view <= context


def test_a_model_without_a_template() -> None:
    text = type(TEXT)(byte_level(template=None))
    played = play(
        sequential("2+3", text, SoloSettings(budget=2), PROMPT), Scripts(text, writer=["a"])
    )
    assert text.decode(played.rows("writer")[1].context) == "Alone: 2+3\n\na"


def test_draws_are_seeded() -> None:
    def draws(seed: int, name: str = "writer") -> list[float]:
        settings = SoloSettings(budget=6, choice=Choice(temperature=1.0), seed=seed)
        return [row.choice.draw for row in run(settings).rows(name)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert len(set(draws(1))) == 6
    assert draws(1, "finisher") == draws(1, "finisher") != draws(1)[:64]


def test_memory_reserved_covers_the_run() -> None:
    played = run(SoloSettings(budget=40))
    fed = sum(len(row.feed) for one in played.passes for row in one.rows)
    assert fed <= played.reserved[0].num_tokens


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"budget": 0}, "budget is 0; expected 1 or more forward passes"),
        (
            {"budget": 5, "snapshots": (5,)},
            r"snapshots are \(5,\); expected passes below the budget of 5",
        ),
    ],
)
def test_settings_out_of_range(setting: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        SoloSettings(**setting)
