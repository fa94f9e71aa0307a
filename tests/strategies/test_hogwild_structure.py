"""Workers who write the team's own structure: their step ends before the line, in every layout.

A worker's tokens are followed by hand: what the others, the finisher and the next steps read must be
the team's own prefixes and the text before the line, once each, and nothing of the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken

from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.step import Choice
from manyhands.strategies.account import Account
from manyhands.strategies.events import StepBegun, StepCut, StepEnded, WorkerStopped
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.listening import DismissWorker, Item, PauseWorker, ResumeWorker
from manyhands.strategies.settings import Away, EndSettings, TeamSettings
from manyhands.text import Text
from tests.strategies.driver import PROMPT, Dice, Played, Scripts, play, small_text
from tests.text.small_tokenizers import CHATML, sentence_piece

TEXT = small_text()
SAMPLED = Choice(temperature=1.0)
ENDING = EndSettings(finisher_tokens=2, reply=False)
LINES = (
    "**Bob [4]:** so",
    "**Alice [9]:**",
    "**Carol [1]:**",
    "  <..> b",
    "Past\n",
    " own \n",
    "OTHERS\n",
)
INNOCENT = (
    "**Eve [4]:**",
    "**Bob**",
    "a <..> b",
    "Past steps\n",
    "\\**Bob [4]:**",
    "a **Bob [4]:**",
)


def run(
    settings: TeamSettings,
    text: Text = TEXT,
    said: Mapping[int, Sequence[Item]] | None = None,
    **scripts: Sequence[str | int | None],
) -> Played:
    return play(hogwild("2+3", text, settings, PROMPT), Scripts(text, **scripts), said)


def settings(**more: Any) -> TeamSettings:
    return TeamSettings(**{"budget": 30, "check_every": 0, "end": ENDING, **more})


def read_at_the_end(played: Played, text: Text = TEXT) -> str:
    """The text that the finisher reads."""
    return text.decode(played.rows("finisher")[0].context)


def cut(played: Played) -> list[tuple[int, int, str]]:
    return [(e.worker, e.step, e.text) for e in played.of(StepCut)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("before", ["So\n", "So.\n", "So:\n\n", "So\n\n\n"])
@pytest.mark.parametrize("line", LINES)
def test_a_step_ends_before_a_line_that_could_pass_for_structure(
    layout: str, before: str, line: str
) -> None:
    played = run(settings(layout=layout), Alice=[before, line])
    ((worker, step, dropped),) = cut(played)
    assert (worker, step) == (0, 1)
    assert line.startswith(dropped)
    (ended,) = (e for e in played.of(StepEnded) if e.worker == 0)
    assert (ended.step, ended.text) == (1, before.strip())
    read = read_at_the_end(played)
    assert read.count("**Alice [1]:**" + before.strip()) == 1
    assert f"{before.strip()}\n\n**Alice [2]:**" in read or layout != "contiguous"
    assert "\n\n**Alice [2]:**" in read
    assert line.strip() not in read.replace("**Alice [1]:**", "").replace("\nPast", "").replace(
        "\nOwn", ""
    ).replace("\nOthers", "").replace("<..>\n", "")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("line", INNOCENT)
def test_control_other_lines_are_left_alone(layout: str, line: str) -> None:
    played = run(settings(layout=layout), Alice=["So\n", line, " c"])
    assert not cut(played)
    assert "So\n" + line + " c" in read_at_the_end(played)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_from_the_next_pass_on_nobody_reads_the_line(layout: str) -> None:
    played = run(settings(layout=layout), Alice=["So\n", "**Bob [4]:**"])
    (at,) = (e.forward_pass for e in played.of(StepCut))
    for number, one in enumerate(played.passes, 1):
        seen = ["**Bob [4]" in TEXT.decode(row.context) for row in one.rows]
        assert not any(seen) or number <= at
    if layout != "interleaved":  # the control: while it was written, it stood on the desk
        assert "**Bob [4]" in TEXT.decode(played.passes[at - 1].row("Bob").context)


def test_the_line_is_found_in_any_tokenisation() -> None:
    line = "**Bob [4]:**"
    for size in range(1, len(line) + 1):
        pieces = [line[start : start + size] for start in range(0, len(line), size)]
        assert cut(run(settings(), Alice=["So\n", *pieces]))
    assert cut(run(settings(), Alice=["So.\n**", "Bob [4]:**"]))


def test_a_token_that_goes_on_behind_the_text_before_the_line_is_encoded_anew() -> None:
    text = small_text()
    glued = AddedToken("x\n**Bo", special=False, normalized=False)
    text.tokenizer.add_tokens([glued])  # type: ignore[attr-defined]
    played = run(settings(), text, Alice=["So ", "x\n**Bo", "b [4]:**"])
    assert [e.text for e in played.of(StepEnded)] == ["So x"]
    assert "**Alice [1]:**So x\n\n**Alice [2]:**" in read_at_the_end(played, text).replace(
        "\nOthers", ""
    ).replace("**Bob [1]:**", "")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_without_other_text_is_begun_again_otherwise(layout: str) -> None:
    """Greedy decoding would write the line again for ever: its first token is forbidden."""
    first = TEXT.encode("**")[0]
    played = run(settings(layout=layout), Alice=["**", "Bob [4]:**", "\n", "**Bob [5]:**", "b"])
    assert [text for _, _, text in cut(played)] == ["**Bob [4]:**", "**Bob [5]:**"]
    assert not [e for e in played.of(StepEnded) if e.worker == 0]
    assert [e.step for e in played.of(StepBegun) if e.worker == 0] == [1]
    rows = played.rows("Alice")
    fresh = [row for row in rows if row.feed[-1] == rows[0].feed[-1] and len(row.feed) > 1]
    assert [row.feed for row in fresh] == [rows[0].feed] * 3
    assert [row.choice.forbidden for row in fresh] == [
        frozenset(),
        {first},
        {first, TEXT.encode("\n")[0]},
    ]
    assert not any(row.choice.forbidden for row in rows if row not in fresh)
    assert read_at_the_end(played).count("**Alice [1]:**b") == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_worker_that_stops_behind_a_header_keeps_the_text_before_it(layout: str) -> None:
    played = run(settings(layout=layout), Alice=["So\nOwn", None])
    assert cut(played) == [(0, 1, "Own")]
    assert [e.worker for e in played.of(WorkerStopped)] == [0]
    assert [step.text for step in played.answer.steps if step.worker == 0] == ["So"]
    assert "**Alice [1]:**So" in read_at_the_end(played)
    assert "So\nOwn" not in read_at_the_end(played)


@pytest.mark.parametrize("moves", ["rotate", "reencode"])
@pytest.mark.parametrize("both", [["So\n**Al", "ice [4]:**"], ["So\n**", "Alice [4]:**", "."]])
def test_two_steps_that_end_in_one_pass_join_in_worker_order(moves: str, both: list[str]) -> None:
    end = "\n**Alice [4]:**"
    played = run(settings(moves=moves), Alice=["A" + end], Bob=["B" + end])
    assert [e.worker for e in played.of(StepEnded)] == [0, 1]
    read = read_at_the_end(played)
    assert "**Alice [1]:**A\n\n**Bob [1]:**B" in read.replace("\nOthers", "")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_is_away_after_the_cut_is_still_read(layout: str) -> None:
    size = len(TEXT.encode("So\n")) + len(TEXT.encode("**Bob [4]:**"))
    away = (Away(0, size + 1, 40),)
    played = run(settings(layout=layout, away=away), Alice=["So\n", "**Bob [4]:**"])
    assert "**Alice [1]:**So" in TEXT.decode(played.passes[size].row("Bob").context)
    said: dict[int, Sequence[Item]] = {size: [PauseWorker(0)], size + 3: [ResumeWorker(0)]}
    paused = run(settings(layout=layout), said=said, Alice=["So\n", "**Bob [4]:**"])
    assert "**Alice [1]:**So" in TEXT.decode(paused.passes[size].row("Bob").context)
    assert read_at_the_end(paused).count("**Alice [1]:**So") == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stops", [False, True])
def test_who_is_dismissed_after_the_cut_is_still_read(layout: str, stops: bool) -> None:
    line = ["So\nOwn", None] if stops else ["So\n", "**Bob [4]:**"]
    size = sum(len(TEXT.encode(piece)) if piece else 1 for piece in line)
    said = {size: [DismissWorker(0)]}
    played = run(settings(layout=layout), said=said, Alice=line)
    assert cut(played)
    assert read_at_the_end(played).count("**Alice [1]:**So") == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("passes", range(1, 24))
def test_a_snapshot_is_what_the_smaller_budget_answers(layout: str, passes: int) -> None:
    team: dict[str, Any] = {
        "Alice": ["So\n", "**Bob [4]:**"],
        "Bob": ["A:\n\n<..>", ".\n\n", "Own\n"],
    }
    short = run(settings(layout=layout, budget=passes), **team)
    long = run(settings(layout=layout, snapshots=(passes,)), **team)
    assert read_at_the_end(long) == read_at_the_end(short)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(6))
def test_random_teams(layout: str, seed: int) -> None:
    """No token is lost or read twice, an account follows, and the room that was left is kept."""
    text, pieces = small_text(), ("**Bob [99]:**", "\n**Bob [99]:**", "c\n**Bob [99]:**")
    marks = [AddedToken(piece, special=False, normalized=False) for piece in pieces]
    text.tokenizer.add_tokens(marks)  # type: ignore[attr-defined]
    dice = Dice(text, boxes=0, ends=0)
    brace = text.encode("}")[0]
    dice.tokens = [token for token in dice.tokens if token != brace]
    dice.tokens += [text.encode(piece)[0] for piece in pieces] * 4
    chosen = settings(layout=layout, workers=3, budget=120, choice=SAMPLED, seed=seed)
    played = play(hogwild("2+3", text, chosen, PROMPT, context=2000), dice)
    assert cut(played)
    assert played.longest_view <= 2000
    account = Account(["Alice", "Bob", "Carol"])
    for event in played.events:
        account.take(event)
    assert sorted(s.text for s in account.steps()) == sorted(s.text for s in played.answer.steps)
    read = read_at_the_end(played, text)
    pairs = zip(played.events, played.events[1:], strict=False)
    ended_by_cut = {
        (a.worker, a.step) for a, b in pairs if type(a) is StepCut and type(b) is StepEnded
    }
    assert ended_by_cut
    for step in played.answer.steps:
        name = PROMPT.prefix(["Alice", "Bob", "Carol"][step.worker], step.step)
        assert read.count(name) == 1
        if (step.worker, step.step) in ended_by_cut:
            assert re.search(re.escape(name) + r"\s*" + re.escape(step.text), read)
    assert "\n**Bob [99]:**" not in read


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tokenizer_that_hides_blanks(layout: str) -> None:
    text = Text(sentence_piece(CHATML))
    played = run(settings(layout=layout), text, Alice=["so it is\n", "**Bob [99]:**"])
    assert [e.text for e in played.of(StepEnded) if e.worker == 0] == ["so it is"]
    assert "so it is" in read_at_the_end(played, text)
