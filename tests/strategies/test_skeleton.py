"""Skeleton-of-thought with scripted predictors: outline, threads, conclusion, and every way to end."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from manyhands.cache.step import Choice, Step
from manyhands.errors import InvalidRequest
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.strategies.events import (
    AnswerFound,
    ReplyWritten,
    StepBegun,
    StepEnded,
    WorkerJoined,
    WorkerStopped,
)
from manyhands.strategies.settings import EndSettings, SkeletonSettings
from manyhands.strategies.skeleton import dealt, skeleton
from manyhands.text import Text
from tests.strategies.driver import Dice, Played, Scripts, SeenRow, boxed, feed, play, small_text
from tests.text.small_tokenizers import byte_level, sentence_piece

TEXT = small_text()
PROMPT = SkeletonPrompt(rules="Q: {question}", finisher="\nFinal \\boxed{")
NO_END = EndSettings(finisher=False)
START = "user\nQ: who\nassistant\n"
OUTLINE = START + "1. wind\n2. sun\n3. rain"
SAID: dict[str, Sequence[str | int | None]] = {
    "writer": [" wind\n2. sun\n3. rain\n\n", "So \\boxed{7}", None],
    "point_1": ["It blows.", None],
    "point_2": ["Hot\n\n### Point 3"],
    "point_3": [None],
}
HEADINGS = {i: f"\n\n### Point {i}: {t}\n" for i, t in enumerate(("wind", "sun", "rain"), 1)}
JOINED = (
    OUTLINE
    + HEADINGS[1]
    + "It blows."
    + HEADINGS[2]
    + "Hot\n\n"
    + HEADINGS[3]
    + "\n\n### Taken together\n"
)


def run(
    settings: SkeletonSettings | None = None,
    text: Text = TEXT,
    prompt: SkeletonPrompt = PROMPT,
    context: int | None = None,
    **said: Sequence[str | int | None],
) -> Played:
    settings = settings or SkeletonSettings(end=NO_END, budget=120)
    strategy = skeleton("who", text, boxed(settings), prompt, context=context)
    lines = {name.replace("_", " "): words for name, words in (said or SAID).items()}
    return play(strategy, Scripts(text, **lines))


def starts(played: Played, writer: str, text: Text = TEXT) -> str:
    """The text that a writer's first row reads. (Some tokenizers put a blank before a line break.)"""
    return text.decode(played.rows(writer)[0].context).replace(" \n", "\n")


# -- the three stages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [TEXT, Text(byte_level()), Text(sentence_piece())], ids=["glued", "bytes", "pieces"]
)
def test_three_stages(text: Text) -> None:
    played = run(text=text)
    answer = played.answer
    assert (answer.answer, answer.finish_reason) == ("7", "answer")
    start = text.decode(text.chat_prompt("Q: who"))
    for i, heading in HEADINGS.items():
        assert starts(played, f"point {i}", text) == start + OUTLINE.removeprefix(START) + heading
    last = played.passes[-1].row("writer")
    whole = start + JOINED.removeprefix(START) + "So \\boxed{7}"
    assert text.decode(last.context).replace(" \n", "\n") == whole
    reply = JOINED.removeprefix(OUTLINE).replace("Hot\n\n", "Hot") + "So \\boxed{7}"
    assert answer.text == reply.strip()
    assert sorted((step.worker, step.step, step.text) for step in answer.steps) == [
        (0, 1, "1. wind\n2. sun\n3. rain"),
        (0, 2, "So \\boxed{7}"),
        (1, 1, "It blows."),
        (2, 1, "Hot"),
    ]


def test_the_critical_path_is_counted() -> None:
    """The outline, the longest thread and the conclusion; everything else went along."""
    played = run()
    written = {name: len(played.written(name)) for name in ("writer", "point 1", "point 2")}
    assert played.answer.forward_passes == len(played.passes)
    longest = max(written["point 1"], written["point 2"])
    assert played.answer.forward_passes == written["writer"] + longest
    assert played.answer.tokens == (
        written["writer"] - 1,  # without the end of the turn
        written["point 1"] - 1,
        written["point 2"],
        0,
    )


def test_nothing_is_encoded_twice() -> None:
    """Every token of the final view was fed once, in the block where it is read."""
    played = run()
    fed = sum(len(row.feed) for one in played.passes for row in one.rows)
    final = len(played.passes[-1].row("writer").context)
    cut = len(TEXT.encode("### Point"))  # fed, but no part of any text; and line breaks of the list
    assert final <= fed <= final + cut + 2


def test_threads_do_not_read_each_other() -> None:
    for name in ("point 1", "point 2", "point 3"):
        for row in run().rows(name):
            assert row.blocks[-1] == name
            assert not any("point" in block for block in row.blocks if block != name)


def test_a_worker_more_or_another_thread_changes_nobodys_words() -> None:
    """The text of a point's thread depends on outline, point and seed alone."""
    settings = SkeletonSettings(
        budget=200, thread_tokens=15, choice=Choice(temperature=1.0), seed=5, end=NO_END
    )
    dice = Dice(TEXT, ends=3)

    def predict(row: SeenRow) -> int:
        return outline(row) if row.writer == "writer" and outline.lines["writer"] else dice(row)

    written = {}
    for workers in (0, 1, 2, 3, 4, 7):
        outline = Scripts(TEXT, writer=[" a\n2. b\n3. c\n4. d\n5. e\n\n"])
        strategy = skeleton("who", TEXT, replace(settings, workers=workers), PROMPT)
        played = play(strategy, predict)
        written[workers] = [played.written(f"point {i}") for i in range(1, 6)]
    assert all(found == written[0] for found in written.values())
    assert len({tuple(words) for words in written[0]}) == 5


# -- workers ---------------------------------------------------------------------------------------


def test_points_are_dealt_in_turn() -> None:
    titles = ["a", "b", "c", "d", "e"]
    hands = {worker: [p.title for p in points] for worker, points in dealt(titles, 2).items()}
    assert hands == {1: ["a", "c", "e"], 2: ["b", "d"]}
    assert [p.number for p in dealt(titles, 2)[1]] == [1, 3, 5]
    assert [p.step for p in dealt(titles, 2)[1]] == [1, 2, 3]
    assert list(dealt(titles, 0)) == list(dealt(titles, 9)) == [1, 2, 3, 4, 5]


def test_two_workers_take_three_points_without_losing_a_pass() -> None:
    said: dict[str, Any] = {**SAID, "point_3": ["wet", None]}
    played = run(SkeletonSettings(workers=2, end=NO_END), **said)
    who = [tuple(w for w in one.writers if w != "writer") for one in played.passes]
    first = next(i for i, names in enumerate(who) if names)
    assert who[first] == ("point 1", "point 2")
    ended = first + len(played.written("point 1"))
    assert [who[ended - 1][0], who[ended][0]] == ["point 1", "point 3"]
    begun = [(e.worker, e.step, e.text) for e in played.of(StepBegun)]
    assert begun == [
        (0, 1, "1."),
        (1, 1, "### Point 1: wind"),
        (2, 1, "### Point 2: sun"),
        (1, 2, "### Point 3: rain"),
        (0, 2, "### Taken together"),
    ]
    assert [e.name for e in played.of(WorkerJoined)] == ["Worker 1", "Worker 2"]
    assert {e.worker for e in played.of(WorkerStopped)} == {0, 1, 2}
    assert played.answer.tokens[1:] == (
        len(played.written("point 1")) - 1 + len(played.written("point 3")) - 1,
        len(played.written("point 2")),
    )
    # in the order of the points, whoever wrote them
    assert "wind\nIt blows.\n\n### Point 2: sun\nHot" in played.answer.text


def test_points_take_turns_where_fewer_workers_may_write_at_once() -> None:
    said: dict[str, Any] = {**SAID, "point_3": ["wet", None]}
    bounds: tuple[dict[str, Any], ...] = ({"most_workers": 2}, {"workers": 2})
    bounded, two = (run(SkeletonSettings(end=NO_END, **given), **said) for given in bounds)
    assert (bounded.passes, bounded.events) == (two.passes, two.events)
    free = run(SkeletonSettings(end=NO_END, most_workers=3), **said)
    assert [e.name for e in free.of(WorkerJoined)] == ["wind", "sun", "rain"]


def test_every_worker_has_the_name_of_its_only_point() -> None:
    played = run()
    assert [(e.worker, e.name) for e in played.of(WorkerJoined)] == [
        (1, "wind"),
        (2, "sun"),
        (3, "rain"),
    ]
    reasons = {e.worker: e.reason for e in played.of(WorkerStopped)}
    assert reasons == {1: "stopped", 2: "marker", 3: "stopped", 0: "stopped"}


def test_a_thread_ends_with_its_tokens() -> None:
    settings = SkeletonSettings(thread_tokens=4, end=NO_END, budget=60)
    played = run(settings, writer=SAID["writer"])
    assert [len(played.written(f"point {i}")) for i in (1, 2, 3)] == [4, 4, 4]
    assert {e.reason for e in played.of(WorkerStopped) if e.worker} == {"budget"}
    final = TEXT.decode(played.passes[-1].row("writer").context)
    assert final.count("aaaa") == 3  # the newest token of each is read as well


def test_points_beyond_the_most_are_left_to_the_main_line() -> None:
    played = run(SkeletonSettings(max_points=2, end=NO_END, budget=80))
    assert [e.worker for e in played.of(WorkerJoined)] == [1, 2]
    assert starts(played, "point 1") == OUTLINE + HEADINGS[1]


# -- how an outline ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "outline"),
    [
        ([" wind\n2. sun\n\n"], "1. wind\n2. sun"),
        ([" wind\n2. sun", "\n", "\n"], "1. wind\n2. sun"),
        ([" wind\n2. sun", None], "1. wind\n2. sun"),  # the end of a turn that ends the list only
        ([" wind\n2. sun\n", None], "1. wind\n2. sun\n"),
        ([" wind\n   cold\n2. sun\n\n"], "1. wind\n   cold\n2. sun"),
    ],
)
def test_an_outline_ends_with_an_empty_line_or_the_turn(
    pieces: Sequence[str | int | None], outline: str
) -> None:
    played = run(writer=[*pieces, "So", None], point_1=[None], point_2=[None])
    assert starts(played, "point 2") == START + outline + HEADINGS[2]
    assert played.answer.text.endswith("### Taken together\nSo")
    assert played.answer.finish_reason == "stopped"


def test_an_introduction_may_stand_before_the_list() -> None:
    prompt = replace(PROMPT, opening="")
    said = ["Sure!\n\n", "Outline:\n1. wind\n2. sun\n\n", "So", None]
    played = run(prompt=prompt, writer=said, point_1=["x", None], point_2=["y", None])
    assert starts(played, "point 1") == (START + "Sure!\n\nOutline:\n1. wind\n2. sun" + HEADINGS[1])
    assert played.answer.steps[0].text == "Sure!\n\nOutline:\n1. wind\n2. sun"


def test_a_short_form_for_a_small_model() -> None:
    prompt = SkeletonPrompt(
        rules="{question}",
        opening="",
        point="{number}) {title}",
        close="==",
        thread="\n{number}) {title}: ",
        stop="\n",
        join="\n==",
        finisher="\\boxed{",
    )
    said: dict[str, Any] = {
        "writer": ["1) a\n2) b==", "ab", None],
        "point_1": ["x\n"],
        "point_2": ["y", None],
    }
    played = run(prompt=prompt, **said)
    assert played.answer.text == "1) a: x\n2) b: y\n==ab"
    assert TEXT.decode(played.passes[-1].row("writer").context) == (
        "user\nwho\nassistant\n1) a\n2) b\n1) a: x\n2) b: y\n==ab"
    )


@pytest.mark.parametrize(
    "pieces",
    [
        ["\n\nNo list ", "here.\n\nAt all.", None],
        ["\n2.\n\n3.", "\n\n", None],
        [None],
        [" one long line " * 6, None],  # no empty line in time
    ],
)
def test_without_an_outline_it_is_ordinary_decoding(pieces: Sequence[str | int | None]) -> None:
    """Nothing is lost: every token that was written is read, in order, and once."""
    settings = SkeletonSettings(outline_tokens=40, budget=120, end=NO_END)
    played = run(settings, writer=pieces)
    assert not played.of(WorkerJoined)
    assert all(one.writers == ("writer",) for one in played.passes)
    written = played.written("writer")
    said = "".join(piece for piece in pieces if isinstance(piece, str))
    assert played.answer.text == said.strip()
    last = played.passes[-1].row("writer").context
    start = TEXT.chat_prompt("Q: who") + TEXT.encode("1.")
    assert last == start + tuple(written[:-1])
    assert played.answer.finish_reason == "stopped"
    assert "".join(e.text for e in played.of(ReplyWritten)) == said


def test_a_paragraph_is_no_title() -> None:
    """A model that writes its whole answer as a list has written its answer."""
    settings = SkeletonSettings(title_tokens=8, budget=120, end=NO_END)
    played = run(settings, writer=[" The wind blows.\n\n2. The sun shines.\n\n", "So", None])
    assert not played.of(WorkerJoined)
    assert played.answer.text == "The wind blows.\n\n2. The sun shines.\n\nSo"


def test_a_list_that_comes_too_late_is_text() -> None:
    settings = SkeletonSettings(outline_tokens=3, budget=60, end=NO_END)
    played = run(settings, writer=[" wind and more\n2. sun\n\nSo", None])
    assert not played.of(WorkerJoined)
    assert played.answer.text == "wind and more\n2. sun\n\nSo"


# -- thinking --------------------------------------------------------------------------------------


def test_all_stages_may_be_thoughts() -> None:
    text = small_text(thinking=True)
    end = text.think_end
    said: dict[str, Any] = {
        **SAID,
        "writer": [" wind\n2. sun\n\n", "So", end, "It is \\boxed{7}.", None],
    }
    said["point_1"] = ["It blows.", end]
    played = run(text=text, **said)
    assert played.answer.text == "It is \\boxed{7}."
    assert played.answer.answer == "7"
    assert {e.worker for e in played.of(StepEnded)} == {0, 1, 2}


def test_an_outline_may_follow_the_thoughts() -> None:
    text = small_text(thinking=True)
    said: dict[str, Any] = {**SAID, "writer": ["Hm.\n\nHm", text.think_end, *SAID["writer"]]}
    said["writer"][2] = "1. wind\n2. sun\n\n"
    played = run(text=text, prompt=replace(PROMPT, opening=""), **said)
    assert [e.name for e in played.of(WorkerJoined)] == ["wind", "sun"]
    assert played.answer.answer == "7"
    assert "Hm" not in played.answer.text
    assert [step.text for step in played.answer.steps[:2]] == ["Hm.\n\nHm", "1. wind\n2. sun"]
    assert [e.step for e in played.of(StepEnded) if not e.worker] == [1, 2]


def test_an_outline_may_follow_thoughts_that_the_model_has_opened_by_itself() -> None:
    text = small_text()
    outline = "1. wind\n2. sun\n\n"
    writer = ["Hm. " * 9, text.think_end, outline, *SAID["writer"][1:]]
    points = {name: words for name, words in SAID.items() if name != "writer"}
    settings = SkeletonSettings(end=NO_END, budget=120, outline_tokens=40)
    played = run(settings, text, replace(PROMPT, opening=""), None, writer=writer, **points)
    assert [e.name for e in played.of(WorkerJoined)] == ["wind", "sun"]
    (first, *_) = (e.text for e in played.of(StepEnded) if not e.worker)
    assert first == played.answer.steps[0].text == "Hm. " * 9 + "1. wind\n2. sun"


def test_the_end_of_the_outline_does_not_begin_in_the_thinking() -> None:
    text = small_text(thinking=True)
    said = ["Hm.\n", text.think_end, "\nIt is 7", None]
    played = run(text=text, prompt=replace(PROMPT, opening=""), writer=said)
    assert "".join(e.text for e in played.of(ReplyWritten)) == "\nIt is 7"


def test_what_the_reply_begins_with_is_not_taken_for_the_opening() -> None:
    text = small_text(thinking=True)
    played = run(text=text, writer=[" Hm.", text.think_end, "1.5", " is it", None])
    assert played.answer.text == "1.5 is it"


# -- the end ---------------------------------------------------------------------------------------


def test_boxes_of_threads_are_not_the_answer() -> None:
    said: dict[str, Any] = {
        **SAID,
        "point_1": ["\\boxed{8", "}", None],
        "writer": [*SAID["writer"][:1], "So", None],
    }
    played = run(**said)
    assert played.answer.answer is None
    assert played.answer.finish_reason == "stopped"
    end = EndSettings(finisher_tokens=4)
    played = run(SkeletonSettings(end=end), finisher=["9}"], **said)
    assert played.answer.answer == "9"
    assert played.of(AnswerFound)[-1] == AnswerFound(played.answer.forward_passes, None, "9")


@pytest.mark.parametrize("budget", range(1, 60, 3))
def test_the_budget_may_end_it_anywhere(budget: int) -> None:
    """The finisher then reads everything there is, and its passes are not charged."""
    end = EndSettings(finisher_tokens=3)
    said: dict[str, Any] = {
        **SAID,
        "writer": [*SAID["writer"][:1], "So", "a" * 90],
        "finisher": ["5}"],
    }
    played = run(SkeletonSettings(budget=budget, end=end), **said)
    answer = played.answer
    assert (answer.answer, answer.finish_reason) == ("5", "budget")
    assert (answer.forward_passes, answer.extra_passes) == (budget, 2)
    seen = starts(played, "finisher").removesuffix("\nFinal \\boxed{")
    every = {name: TEXT.decode(played.written(name)) for name in ("point 1", "point 2")}
    for name, words in every.items():
        assert words.partition("\n\n###")[0] in seen, name
    assert seen.startswith(START + "1.")
    assert answer.text


def test_the_context_may_end_it() -> None:
    for context in range(60, 200, 7):
        settings = SkeletonSettings(end=EndSettings(finisher_tokens=3), budget=400)
        said: dict[str, Any] = {
            **SAID,
            "point_2": ["b" * 300],
            "writer": [*SAID["writer"][:1], "c" * 300],
        }
        played = run(settings, context=context, finisher=["5}"], **said)
        assert played.answer.finish_reason == "context"
        assert played.longest_view <= context
        assert played.answer.answer == "5"


def test_a_snapshot_is_the_answer_of_that_budget_and_changes_nothing() -> None:
    end = EndSettings(finisher_tokens=6)

    def played(budget: int, snapshots: tuple[int, ...] = ()) -> Played:
        scripts = Scripts(TEXT, writer=[" a\n2. b\n3. c\n\n"])

        def predict(row: SeenRow) -> int:
            if row.writer == "writer" and scripts.lines["writer"]:
                return scripts(row)
            if row.writer is not None and "finisher" in row.writer:  # any answer, by what it reads
                number = zlib.crc32(repr(row.context).encode()) % 10
                return TEXT.encode(f"{number}}}")[len(row.feed) == 1]
            return dice(row)

        dice = Dice(TEXT, boxes=0, ends=0)
        settings = SkeletonSettings(
            budget=budget, snapshots=snapshots, workers=2, thread_tokens=12, end=end
        )
        return play(skeleton("who", TEXT, boxed(settings), PROMPT), predict)

    every = tuple(range(1, 50))
    whole = played(50, every)
    plain = played(50)
    assert whole.answer.forward_passes == 50
    assert replace(whole.answer, snapshots={}, extra_passes=0) == replace(
        plain.answer, snapshots={}, extra_passes=0
    )
    assert whole.answer.snapshots == {b: played(b).answer.answer for b in every}
    assert len(set(whole.answer.snapshots.values())) > 3


@pytest.mark.parametrize("passes", [0, 5, 25, 40])
def test_closing_it_cancels_it(passes: int) -> None:
    strategy = skeleton("who", TEXT, SkeletonSettings(end=NO_END), PROMPT)
    scripts = Scripts(TEXT, **{name.replace("_", " "): words for name, words in SAID.items()})
    asked = next(strategy)
    for _ in range(passes):
        tokens = None
        if isinstance(asked, Step):
            tokens = tuple(scripts(row) for row in feed(asked))
        asked = strategy.send(tokens)
    strategy.close()
    with pytest.raises(StopIteration):
        next(strategy)


def test_what_is_reserved_is_enough() -> None:
    settings = SkeletonSettings(workers=2, budget=90, max_points=5, thread_tokens=20, end=NO_END)
    played = run(settings, writer=SAID["writer"])
    (reserve,) = played.reserved
    fed = sum(len(row.feed) for one in played.passes for row in one.rows)
    assert fed <= reserve.num_tokens


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workers", -1),
        ("workers", 257),
        ("budget", 0),
        ("outline_tokens", 0),
        ("title_tokens", 0),
        ("max_points", 0),
        ("thread_tokens", 0),
        ("snapshots", (0,)),
        ("snapshots", (2048,)),
    ],
)
def test_mistakes(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=field):
        SkeletonSettings(**{field: value})  # type: ignore[arg-type]
