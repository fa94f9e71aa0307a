"""How a team's steps begin and end: breaks, checks, absences, turns, words put in a mouth."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.step import Step
from manyhands.strategies.base import Asked, Strategy
from manyhands.strategies.events import (
    AnswerFound,
    CheckAsked,
    ReplyWritten,
    StepBegun,
    StepEnded,
    TokenWritten,
    WorkerStopped,
)
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import Away, EndSettings, TeamSettings
from manyhands.strategies.writer import Writer
from tests.strategies.driver import PROMPT, Dice, Played, Scripts, SeenRow, play, seen, small_text

TEXT = small_text()
NO_END = EndSettings(finisher=False, reply=False)


def run(settings: TeamSettings, **said: Sequence[str | int | None]) -> Played:
    return play(hogwild("2+3", TEXT, settings, PROMPT), Scripts(TEXT, **said))


def settings(**more: Any) -> TeamSettings:
    return TeamSettings(**{"budget": 12, "check_every": 0, "end": NO_END, **more})


def ended(played: Played) -> list[tuple[int, int, int, str]]:
    """(pass, worker, step, text) of every step that ended."""
    return [(e.forward_pass, e.worker, e.step, e.text) for e in played.of(StepEnded)]


# -- where a step ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "said",
    [
        ["So", ".\n\n"],  # a full stop and the break in one token
        ["So", ".", "\n\n"],  # the break alone
        ["So", ".", "\n", "\n"],  # a break of two tokens
        ["So", ".", "**", "\n", "\n"],  # closing marks hide nothing
        ["So:\n\nx=1", ".\n\n"],  # the colon goes on, the full stop ends
        ["So", ":\n\n", "x=1.\n```\na.", "\n\n", "b\n```\nDone", ".\n\n"],  # a fence is one step
    ],
    ids=["one token", "break token", "two line feeds", "closing marks", "colon", "fence"],
)
def test_a_step_ends_once_at_its_end(layout: str, said: list[str]) -> None:
    tokens = [token for piece in said for token in TEXT.encode(piece)]
    played = run(settings(layout=layout, budget=len(tokens) + 3), Alice=said)
    whole = "".join(said)
    assert ended(played) == [(len(tokens), 0, 1, whole.strip())]
    # The next row feeds the break token and the new prefix: no pass is lost.
    row = played.rows("Alice")[len(tokens)]
    assert row.feed == (tokens[-1], *TEXT.encode("**Alice [2]:**"))
    assert played.rows("Alice")[len(tokens) + 1].feed == TEXT.encode("a")
    assert len(played.rows("Alice")) == len(tokens) + 3


@pytest.mark.parametrize("said", [["So", ":\n\n"], ["\n\n"], ["one, ", "\n", "\n"]])
def test_a_break_after_no_sentence_ends_no_step(said: list[str]) -> None:
    assert ended(run(settings(), Alice=said)) == []


@pytest.mark.parametrize(
    ("layout", "own_before", "own_after"),
    [
        ("combined", ("Bob 1", "more to come", "own header", "Alice 1"), "Alice 2"),
        ("interleaved", ("prompt", "own header", "Alice 1"), "Alice 2"),
        ("contiguous", ("Bob 1", "more to come", "own header", "Alice 1"), "Alice 1"),
    ],
)
def test_the_finished_desk_joins_the_history(
    layout: str, own_before: tuple[str, ...], own_after: str
) -> None:
    rows = run(settings(layout=layout), Alice=["So", ".\n\n"]).rows("Alice")
    before, after = rows[1].blocks, rows[2].blocks
    assert before[-len(own_before) :] == own_before
    assert after[-1] == own_after
    assert ("Alice 1" in after[:-1]) == LAYOUTS[layout].keeps_history
    if LAYOUTS[layout].keeps_history:
        assert after[1] == "Alice 1"  # right behind the prompt


def test_two_who_finish_in_one_pass_join_in_worker_order() -> None:
    step = ["So", ".\n\n"]
    played = run(settings(workers=3), Alice=["a", "b"], Bob=step, Carol=step)
    assert ended(played) == [(2, 1, 1, "So."), (2, 2, 1, "So.")]
    assert played.rows("Alice")[2].blocks[:3] == ("prompt", "Bob 1", "Carol 1")
    later = run(settings(workers=3), Bob=["So", "a", ".\n\n"], Carol=step)
    assert later.rows("Alice")[4].blocks[:3] == ("prompt", "Carol 1", "Bob 1")


def test_steps_are_numbered_for_each_worker() -> None:
    played = run(settings(), Alice=["a", ".\n\n", "b", ".\n\n", "c"], Bob=["x", "y", ".\n\n"])
    assert [(e.worker, e.step, e.text) for e in played.of(StepBegun)] == [
        (0, 1, "**Alice [1]:**"),
        (1, 1, "**Bob [1]:**"),
        (0, 2, "**Alice [2]:**"),
        (1, 2, "**Bob [2]:**"),
        (0, 3, "**Alice [3]:**"),
    ]
    assert [(s.worker, s.step, s.text, s.first_pass, s.last_pass) for s in played.answer.steps] == [
        (0, 1, "a.", 1, 2),
        (1, 1, "xy.", 1, 3),
        (0, 2, "b.", 3, 4),
        (0, 3, "caaaaaaa", 5, 12),
        (1, 2, "aaaaaaaaa", 4, 12),
    ]


# -- redundancy checks ---------------------------------------------------------------------------


def test_a_check_goes_to_the_next_worker_that_begins_a_step() -> None:
    """Asked after 5 tokens: Alice's step ends at 4, Bob's at 6, Alice's next at 10."""
    played = run(
        settings(check_every=5, budget=8),
        Alice=["a", ".\n\n", "a", "a", ".\n\n"],
        Bob=["a", "a", ".\n\n"],
    )
    assert [(e.forward_pass, e.worker, e.step) for e in played.of(CheckAsked)] == [(3, 1, 2)]
    assert TEXT.decode(played.rows("Bob")[3].feed) == ".\n\n**Bob [2]:** Twice?"
    assert TEXT.decode(played.rows("Alice")[2].feed) == ".\n\n**Alice [2]:**"
    # 6 tokens were written at the first check: 11 are not reached at Alice's step end in pass 5
    assert TEXT.decode(played.rows("Alice")[5].feed) == ".\n\n**Alice [3]:**"


def test_only_one_worker_is_asked() -> None:
    step = ["a", "a", ".\n\n"]
    played = run(settings(check_every=4), Alice=step, Bob=step)
    assert [(e.forward_pass, e.worker) for e in played.of(CheckAsked)] == [(3, 0)]
    assert [(s.worker, s.step) for s in played.answer.steps if s.checked] == [(0, 2)]


def test_a_check_waits_for_a_step_to_begin() -> None:
    played = run(settings(check_every=3, budget=9), Alice=["a"] * 6 + [".\n\n"])
    assert [e.forward_pass for e in played.of(CheckAsked)] == [7]


def test_checks_come_again() -> None:
    step = ["a", ".\n\n"]
    played = run(settings(workers=1, check_every=3, budget=13), Alice=step * 6)
    assert [e.forward_pass for e in played.of(CheckAsked)] == [4, 8, 12]


def test_inserted_words_are_not_counted_as_written() -> None:
    played = run(settings(workers=1, check_every=4), Alice=["a", ".\n\n", "a", ".\n\n"])
    assert [e.forward_pass for e in played.of(CheckAsked)] == [4]
    assert played.answer.tokens == (12,)


@pytest.mark.parametrize("check_every", [0, 1000])
def test_no_checks(check_every: int) -> None:
    played = run(settings(check_every=check_every), Alice=["a", ".\n\n"] * 5)
    assert played.of(CheckAsked) == []


# -- words put in a worker's mouth ---------------------------------------------------------------


def test_insertions() -> None:
    played = run(
        settings(insertions={(0, 1): " Hi.", (1, 2): " I do #2:", (7, 1): "nobody"}),
        Alice=["a"],
        Bob=["x", ".\n\n"],
    )
    assert TEXT.decode(played.rows("Alice")[0].feed) == "\n\n**Alice [1]:** Hi."
    assert TEXT.decode(played.rows("Bob")[2].feed) == ".\n\n**Bob [2]:** I do #2:"
    assert [e.text for e in played.of(StepBegun)] == [
        "**Alice [1]:** Hi.",
        "**Bob [1]:**",
        "**Bob [2]:** I do #2:",
    ]


def test_first_words_begin_the_first_step_of_each_worker() -> None:
    words = replace(PROMPT, first_words=(" I plan:", " I count:"))
    chosen = settings(insertions={(1, 1): " Hi."})
    said = {"Alice": ["a", ".\n\n"], "Bob": ["x"]}
    played = play(hogwild("2+3", TEXT, chosen, words), Scripts(TEXT, **said))
    begun = [e.text for e in played.of(StepBegun)]
    assert begun == ["**Alice [1]:** I plan:", "**Bob [1]:** Hi.", "**Alice [2]:**"]
    alone = play(hogwild("2+3", TEXT, settings(workers=1), words), Scripts(TEXT, Alice=["a"]))
    assert [e.text for e in alone.of(StepBegun)] == ["**Alice [1]:**"]


def test_an_insertion_follows_the_check() -> None:
    played = run(
        settings(workers=1, check_every=1, insertions={(0, 2): " no."}), Alice=["a", ".\n\n"]
    )
    assert TEXT.decode(played.rows("Alice")[2].feed) == ".\n\n**Alice [2]:** Twice? no."


# -- absences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_joining_late(layout: str) -> None:
    played = run(settings(layout=layout, away=(Away(1, 1, 3),)), Alice=["a"], Bob=["x"])
    assert [one.writers for one in played.passes[:5]] == [
        ("Alice",),
        ("Alice",),
        ("Alice",),
        ("Alice", "Bob"),
        ("Alice", "Bob"),
    ]
    assert TEXT.decode(played.rows("Bob")[0].feed) == "\n\n**Bob [1]:**"
    assert played.answer.tokens == (12, 9)
    if layout == "combined":  # nothing of Bob is to be seen, though the marker is
        seen = TEXT.decode(played.passes[2].row("Alice").context)
        assert seen.endswith("\nOthers<..>\nOwn\n\n**Alice [1]:**aa")


def test_a_pause() -> None:
    played = run(settings(away=(Away(0, 3, 4), Away(0, 6, 6))), Alice=["a", "b", "c", "d"])
    present = ["Alice" in one.writers for one in played.passes]
    assert present[:7] == [True, True, False, False, True, False, True]
    # the token written before the pause is fed after it, and is seen by nobody before that
    assert TEXT.decode(played.passes[4].row("Alice").feed) == "b"
    assert TEXT.decode(played.passes[3].row("Bob").context).count("**Alice [1]:**a<..>") == 1
    assert TEXT.decode(played.passes[4].row("Bob").context).count("**Alice [1]:**ab<..>") == 1


def test_a_pass_without_rows_is_no_pass() -> None:
    """Where all are away, the one who comes back first writes in the very next pass."""
    both = (Away(0, 3, 5), Away(1, 3, 7))
    played = run(settings(away=both), Alice=["a", "b", "c"])
    assert played.answer.forward_passes == len(played.passes) == 12
    assert {e.forward_pass for e in played.of(TokenWritten)} == {*range(1, 13)}
    assert [one.writers for one in played.passes[1:6]] == [
        ("Alice", "Bob"),
        ("Alice",),  # by the clock of absences the sixth
        ("Alice",),
        ("Alice", "Bob"),
        ("Alice", "Bob"),
    ]
    assert TEXT.decode(played.passes[2].row("Alice").feed) == "b"


def test_who_is_away_for_good_is_not_waited_for() -> None:
    """Bob has stopped and Alice never comes back: no pass is left to be counted."""
    played = run(
        settings(budget=1000, away=(Away(0, 3, 1000),), end=EndSettings(reply=False)),
        Alice=["a", "b"],
        Bob=["x", "y", "z", None],
        finisher=["7", "}"],
    )
    assert played.answer.finish_reason == "stopped"
    assert played.answer.forward_passes == len(played.passes) - played.answer.extra_passes == 4
    assert played.answer.tokens == (2, 3)
    assert played.answer.answer == "7"


def test_who_comes_back_in_time_is_waited_for() -> None:
    """The control: an absence that ends within the budget, by one pass."""
    played = run(
        settings(budget=1000, away=(Away(0, 3, 999),)),
        Alice=["a", "b", None],
        Bob=["x", "y", "z", None],
    )
    assert played.answer.forward_passes == 5
    assert played.passes[4].writers == ("Alice",)


def test_a_long_pause_spends_no_budget() -> None:
    """By the clock of absences the budget is long over, and both go on to its end."""
    pauses = tuple(Away(i, 3, 11) for i in (0, 1))
    played = run(settings(away=pauses))
    assert (played.answer.finish_reason, played.answer.tokens) == ("budget", (12, 12))


def test_nobody_ever_comes() -> None:
    played = run(settings(workers=1, away=(Away(0, 1, 99),)))
    assert (played.answer.finish_reason, played.answer.forward_passes) == ("stopped", 0)
    assert played.answer.tokens == (0,)
    assert played.passes == []


def test_nobody_ever_comes_and_the_finisher_reads_the_prompt() -> None:
    played = run(
        settings(workers=2, away=(Away(0, 1, 99), Away(1, 1, 99)), end=EndSettings(reply=False)),
        finisher=["7", "}"],
    )
    assert played.answer.answer == "7"
    assert (played.answer.forward_passes, played.answer.extra_passes) == (0, 2)
    seen = TEXT.decode(played.passes[0].row("finisher").context)
    assert seen.endswith("\nPast\nOthers<..>\nOwn\nFinal \\boxed{")


# -- turns ---------------------------------------------------------------------------------------


def test_a_worker_ends_its_own_turn_only() -> None:
    played = run(settings(), Alice=["a", "b", None], Bob=["x", "y", "z"])
    assert [one.writers for one in played.passes[:5]] == [("Alice", "Bob")] * 3 + [("Bob",)] * 2
    assert [(e.forward_pass, e.worker) for e in played.of(WorkerStopped)] == [(3, 0)]
    assert [(s.worker, s.first_pass, s.last_pass) for s in played.answer.steps] == [
        (0, 1, 3),
        (1, 1, 12),
    ]
    assert played.answer.finish_reason == "budget"
    assert played.answer.tokens == (2, 12)
    assert "**Alice [1]:**ab<..>" in TEXT.decode(played.passes[8].row("Bob").context)


def test_all_have_stopped() -> None:
    played = run(settings(), Alice=["a", None], Bob=["x", ".\n\n", "y", None])
    assert played.answer.finish_reason == "stopped"
    assert played.answer.forward_passes == len(played.passes) == 4
    assert played.answer.answer is None
    assert played.answer.text == "a\n\nx.\n\ny"
    assert played.answer.tokens == (1, 3)


def test_the_end_of_thinking_ends_a_turn() -> None:
    text = small_text(thinking=True)
    said = {"Alice": ["a", text.think_end, "b"]}
    team = hogwild("2+3", text, settings(workers=1), PROMPT)
    played = play(team, Scripts(text, **said))
    assert played.answer.finish_reason == "stopped"
    assert played.answer.forward_passes == 2


# -- events --------------------------------------------------------------------------------------


def test_events_of_a_run_in_order() -> None:
    played = run(
        TeamSettings(budget=9, check_every=2, end=EndSettings(reply_tokens=2)),
        Alice=["a", ".\n\n", "\\boxed{7}"],
        Bob=["x", None],
        reply=["y", None],
    )
    assert [(type(e), e.forward_pass, getattr(e, "worker", "-")) for e in played.events] == [
        (StepBegun, 0, 0),
        (StepBegun, 0, 1),
        (TokenWritten, 1, 0),
        (TokenWritten, 1, 1),
        (TokenWritten, 2, 0),
        (StepEnded, 2, 0),
        (StepBegun, 2, 0),
        (CheckAsked, 2, 0),
        (TokenWritten, 2, 1),
        (WorkerStopped, 2, 1),
        (TokenWritten, 3, 0),
        (AnswerFound, 3, 0),
        (ReplyWritten, 3, "-"),
    ]
    assert played.answer.forward_passes == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_events_tell_every_token(layout: str) -> None:
    played = play(
        hogwild("2+3", TEXT, settings(layout=layout, budget=40, workers=3), PROMPT), Dice(TEXT)
    )
    for worker, name in enumerate(PROMPT.team(3)):
        told = [e.token for e in played.of(TokenWritten) if e.worker == worker]
        assert told == played.written(name)
    passes = [e.forward_pass for e in played.events]
    assert passes == sorted(passes)


# -- what is done while a pass is made -------------------------------------------------------------


def prepared(strategy: Strategy) -> Strategy:
    """The same, and with every step that it asks for it does all that it can do meanwhile."""

    def see(asked: Asked) -> None:
        if isinstance(asked, Step) and asked.meanwhile is not None:
            asked.meanwhile()
            asked.meanwhile()

    return seen(strategy, see)


def any_piece(row: SeenRow) -> int:
    """One of three, by all that the row can see; a step ends with the last of them."""
    (piece,) = TEXT.encode(("a", "b", ".\n\n")[zlib.crc32(repr(row.context).encode()) % 3])
    return piece


@pytest.mark.parametrize("check_every", [0, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_prepared_changes_nothing(layout: str, check_every: int) -> None:
    made = settings(layout=layout, check_every=check_every, workers=3, budget=60)
    usual, other = (
        play(change(hogwild("2+3", TEXT, made, PROMPT)), any_piece)
        for change in (lambda each: each, prepared)
    )
    assert len(ended(usual)) > 5
    assert (usual.answer, usual.events) == (other.answer, other.events)
    feeds = [[(row.writer, row.feed) for row in each.rows] for each in usual.passes]
    assert feeds == [[(row.writer, row.feed) for row in each.rows] for each in other.passes]


def test_each_step_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not with every pass: many teams at a time have many passes without an end of a step."""
    made: list[str] = []
    prepare = Writer.prepare
    monkeypatch.setattr(
        Writer, "prepare", lambda writer: (made.append(writer.name), prepare(writer))
    )
    strategy = prepared(hogwild("2+3", TEXT, settings(workers=3, budget=60), PROMPT))
    played = play(strategy, any_piece)
    begun = [PROMPT.team(3)[event.worker] for event in played.of(StepBegun)]
    assert len(ended(played)) > 5
    assert sorted(made) == sorted(begun[: len(made)])
    assert len(begun) - len(made) <= 3, "but of steps that begin behind the last pass"


def test_nothing_is_encoded_when_a_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = TEXT.encode
    said = [token for _ in range(4) for piece in ("So", ".\n\n") for token in encode(piece)]
    scripts = Scripts(TEXT, Alice=["So", ".\n\n"] * 4)
    strategy = prepared(hogwild("2+3", TEXT, settings(workers=1, budget=len(said)), PROMPT))

    def noted(text: str, **choices: bool) -> tuple[int, ...]:
        encoded.append(text)
        return encode(text, **choices)

    def behind(row: SeenRow) -> int:
        encoded.clear()  # from here on the pass has its tokens
        return scripts(row)

    monkeypatch.setattr(TEXT, "encode", noted)
    monkeypatch.setattr(TEXT, "words", noted)  # or what other runs have asked for would not be seen
    left: list[list[str]] = []

    def see(asked: Asked) -> None:
        if isinstance(asked, StepBegun):
            left.append(list(encoded))

    played = play(seen(strategy, see), behind)
    assert len(ended(played)) == 4
    assert left[1:] == [[]] * 4
