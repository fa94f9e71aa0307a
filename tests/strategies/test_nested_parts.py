"""Parts that part again: who reads what, how they join, where they stop, and what a trace says of it."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import AddedToken

from manyhands.replay.trace import parse_trace, record
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.events import (
    ForkRefused,
    Snapshot,
    StepBegun,
    StepEnded,
    WorkerJoined,
    WorkerStopped,
)
from manyhands.strategies.profiled import profiled
from manyhands.strategies.profiles import PROFILES
from manyhands.strategies.settings import EndSettings, ProfileSettings
from manyhands.text import Text
from tests.strategies.driver import Pass, Played, SeenRow, play
from tests.strategies.test_profiled import NO_END, NPR, PROMPT, Marked, last_read, text_of
from tests.text.small_tokenizers import byte_level

ONE = "<guideline><plan>1: a</plan></guideline>"
TWO = "<guideline><plan>1: a</plan><plan>2: b</plan></guideline>"
HEADERS = "\n<step>\n1:", "\n<step>\n2:"
NESTED: dict[str, Any] = {
    "writer": [TWO, "So 3.", None],
    "part 1": [f"u{TWO}", "v</step>"],
    "part 2": ["w" * 150, "</step>"],
    "part 3": ["x</step>"],
    "part 4": ["yyy</step>"],
}
INNER = f"u{TWO}{HEADERS[0]}x</step>{HEADERS[1]}yyy</step><takeaway>\nv</step>"


def run(said: dict[str, list[Any]], profile: str = "npr", **choices: Any) -> tuple[Text, Played]:
    text = text_of(profile)
    choices = {"budget": 2000, "end": NO_END, **choices}
    settings = ProfileSettings(profile=profile, **choices)
    return text, play(profiled("?", text, settings, PROMPT), Marked(text, **said))


def seen(text: Text, row: SeenRow) -> str:
    return text.decode(row.context).partition("assistant\n")[2]


@pytest.mark.parametrize("join", JOINS)
def test_a_part_parts_and_goes_on_behind_its_own_parts(join: str) -> None:
    text, played = run(NESTED, parts_join=join)
    assert seen(text, played.rows("part 3")[0]) == f"{TWO}{HEADERS[0]}u{TWO}{HEADERS[0]}"
    assert seen(text, played.rows("part 4")[-1]) == f"{TWO}{HEADERS[0]}u{TWO}{HEADERS[1]}yyy"
    assert seen(text, played.rows("part 1")[-1]) == f"{TWO}{HEADERS[0]}{INNER[: -len('</step>')]}"
    assert seen(text, played.rows("part 2")[-1]) == f"{TWO}{HEADERS[1]}{'w' * 150}"
    whole = f"{TWO}{HEADERS[0]}{INNER}{HEADERS[1]}{'w' * 150}</step><takeaway>\nSo 3."
    assert last_read(text, played) == whole
    assert played.answer.tokens == (
        len(text.markup(TWO)) + len(text.encode("So 3.")),
        len(text.markup(f"u{TWO}")) + 1,
        150,
        1,
        3,
    )


def test_the_account_of_nested_parts() -> None:
    """Each step of a part is told and kept once, under the number of the fork behind which it was written."""
    _, played = run(NESTED)
    assert [event.name for event in played.of(WorkerJoined)] == [
        *("part 1", "part 2", "part 1/1", "part 1/2"),
    ]
    ended = [(e.worker, e.step, e.text) for e in played.of(StepEnded)]
    assert ended == [
        *((0, 1, TWO), (1, 1, f"u{TWO}"), (3, 2, "x"), (4, 2, "yyy"), (1, 2, "v")),
        (2, 1, "w" * 150),
    ]
    begun = [(e.worker, e.step) for e in played.of(StepBegun)]
    assert begun == [(1, 1), (2, 1), (3, 2), (4, 2), (1, 2), (0, 2)]
    kept = {(step.worker, step.step): step for step in played.answer.steps}
    assert kept.keys() == {*((worker, step) for worker, step, _ in ended), (0, 2)}
    assert len(kept) == len(played.answer.steps)
    for step in kept.values():
        assert 1 <= step.first_pass <= step.last_pass
    assert (
        kept[1, 1].last_pass < kept[3, 2].first_pass <= kept[4, 2].last_pass < kept[1, 2].first_pass
    )
    stopped = [event.worker for event in played.of(WorkerStopped)]
    assert sorted(stopped) == [0, 1, 2, 3, 4]


def test_a_name_that_says_where_it_belongs_is_not_said_twice() -> None:
    said: dict[str, Any] = {
        "writer": [ONE, None],
        "part 1": ["<guideline><plan>1.1: a</plan><plan>2: b</plan></guideline>", "</step>"],
        "part 2": ["</step>"],
        "part 3": ["</step>"],
    }
    _, played = run(said)
    assert [e.name for e in played.of(WorkerJoined)] == ["part 1", "part 1.1", "part 1/2"]


def refused(played: Played) -> list[tuple[int, str]]:
    return [(event.worker, event.reason) for event in played.of(ForkRefused)]


def test_the_sixth_level_is_text() -> None:
    chain = {f"part {level}": [ONE, "</step>"] for level in range(1, 6)}
    _, played = run({"writer": [ONE, None], **chain})
    assert played.rows("part 5")
    assert not played.rows("part 6")
    assert refused(played) == [(5, "the fork is 6 deep, and npr forks 5 deep at most")]
    assert played.answer.finish_reason == "stopped"
    _, shallow = run({"writer": [ONE, None], "part 1": [ONE, "</step>"], "part 2": ["</step>"]})
    assert refused(shallow) == []


@pytest.mark.parametrize(
    ("profile", "said", "budget", "reason"),
    [
        ("npr", "x</guideline>", 2000, "no <guideline> stands before </guideline>"),
        (
            "npr",
            "<guideline>x</guideline>",
            2000,
            "no part is named between <guideline> and </guideline>",
        ),
        (
            "npr",
            "<guideline>" + "".join(f"<plan>{n}: a</plan>" for n in range(6)) + "</guideline>",
            2000,
            "6 parts are named, and npr has 5 at most",
        ),
        ("npr", NPR, 1000, "forward passes left, and npr forks with 1024 or more"),
        ("parallel-r1", "<Parallel>" * 5, 2000, "a run of parallel-r1 forks 4 times at most"),
    ],
)
def test_a_fork_that_is_refused_says_why(profile: str, said: str, budget: int, reason: str) -> None:
    paths = {f"part {n}": ["</Path>"] for n in range(1, 9)} if profile != "npr" else {}
    _, played = run({"writer": [said, None], **paths}, profile, budget=budget)
    ((worker, told),) = refused(played)
    assert worker == 0
    assert told.endswith(reason)
    assert played.answer.finish_reason == "stopped"


def test_a_part_of_a_profile_without_levels_does_not_part() -> None:
    said: dict[str, Any] = {
        "writer": ["<Parallel>", None],
        "part 1": ["<Parallel></Path>"],
        "part 2": ["</Path>"],
    }
    _, played = run(said, "parallel-r1")
    assert refused(played) == [(1, "the fork is 2 deep, and parallel-r1 forks 1 deep at most")]
    assert not played.rows("part 3")


def test_all_workers_together_write_no_more_than_the_run_may() -> None:
    text = text_of("npr")
    spent = len(text.markup(TWO))
    cut: dict[str, Any] = {
        name: said for name, said in NESTED.items() if name in ("writer", "part 2")
    }
    _, played = run({**cut, "part 1": ["a" * 200]}, run_tokens=spent + 21)
    assert sum(played.answer.tokens) == spent + 20, "two more would be one too many"
    assert played.answer.finish_reason == "budget"
    _, exact = run({**cut, "part 1": ["a" * 200]}, run_tokens=spent + 20)
    assert exact.answer.tokens == played.answer.tokens
    before = spent + 2 * len(text.markup(f"u{TWO}"))
    _, late = run(NESTED, run_tokens=before + 2)
    (told,) = refused(late)
    assert told == (1, f"3 workers would write more than the {before + 2} tokens of the run")
    _, room = run(NESTED, run_tokens=before + 3)
    assert refused(room) == []
    assert sum(room.answer.tokens) == before + 3


@pytest.mark.parametrize("join", JOINS)
def test_the_budget_may_end_in_the_midst_of_nested_parts(join: str) -> None:
    """The finisher reads all that stands there, every fork closed."""
    said = "<Goal><Outline>1: a</Outline></Goal>"
    text = text_of("multiverse")
    spent = 2 * len(text.markup(said)) + 3
    settings = ProfileSettings(
        profile="multiverse",
        budget=spent,
        parts_join=join,
        end=EndSettings(answer="boxed", finisher_tokens=3),
    )
    lines = {"writer": [said], "part 1": [said], "finisher": ["7}"]}
    played = play(profiled("?", text, settings, PROMPT), Marked(text, **lines))
    assert (played.answer.answer, played.answer.finish_reason) == ("7", "budget")
    assert played.answer.forward_passes == spent
    inner = "\n<Path>\n1:aaa</Path><Conclusion>\n</Path>"
    read = seen(text, played.rows("finisher")[0])
    assert read == f"{said}\n<Path>\n1:{said}{inner}<Conclusion>\n\nFinal \\boxed{{"
    stopped = [(e.worker, e.reason) for e in played.of(WorkerStopped)]
    assert stopped == [(2, "budget"), (1, "budget")]
    assert played.answer.tokens[1:] == (len(text.markup(said)), 3)


# -- random runs -----------------------------------------------------------------------------------

OPEN, FORK, END = "<Goal><Outline>1: a</Outline><Outline>2: b", "</Goal>", "</Path>"
PIECES = [OPEN] * 8 + [FORK] * 12 + [END] * 5 + ["a", "b", "7}", "\\boxed{9", "c\n", "d "] * 2
BUDGET = 40


def glued_text() -> Text:
    """A tokenizer in which forks are two tokens."""
    tokenizer = byte_level()
    marks = [
        OPEN,
        *(f"<{slash}{word}>" for word in PROFILES["multiverse"].hidden for slash in "/"),
        "\\boxed{9",
    ]
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return Text(tokenizer)


TEXT = glued_text()


class Noise:
    """Pieces, each the same for the same context."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tokens = [token for piece in PIECES for token in TEXT.markup(piece)]
        self.tokens.append(min(TEXT.eos))

    def __call__(self, row: SeenRow) -> int:
        seen = repr((self.seed, row.context)).encode()
        return self.tokens[zlib.crc32(seen) % len(self.tokens)]


def noise(seed: int, settings: ProfileSettings, context: int | None = None) -> Played:
    return play(profiled("?", TEXT, settings, PROMPT, context=context), Noise(seed))


def work_of(played: Played) -> list[Pass]:
    return [one for one in played.passes if "finisher" not in one.writers]


@pytest.mark.parametrize("join", JOINS)
def test_snapshots_are_the_answers_of_smaller_budgets(join: str) -> None:
    """Wherever a run is cut, nested parts or not; and asking changes nothing of it."""
    settings = ProfileSettings(
        profile="multiverse",
        budget=BUDGET,
        parts_join=join,
        part_tokens=12,
        run_tokens=150,
        end=EndSettings(answer="boxed", finisher_tokens=9),
    )
    everywhere = replace(settings, snapshots=tuple(range(1, BUDGET)))
    answers, deepest, workers = set(), 0, 0
    for seed in range(12):
        plain, asked = noise(seed, settings), noise(seed, everywhere)
        assert [one.tokens[-1] for one in work_of(asked)] == [
            one.tokens[-1] for one in work_of(plain)
        ]
        assert replace(asked.answer, snapshots={}, extra_passes=0) == replace(
            plain.answer, extra_passes=0
        )
        assert {e.forward_pass: e.answer for e in asked.of(Snapshot)} == asked.answer.snapshots
        for at, answer in asked.answer.snapshots.items():
            if at % 4 == seed % 4:  # every budget is some seed's
                smaller = noise(seed, replace(settings, budget=at))
                assert smaller.answer.answer == answer, (seed, at)
            answers.add(answer)
        deepest = max([deepest, *(e.name.count("/") for e in plain.of(WorkerJoined))])
        workers = max(workers, len(plain.answer.tokens))
        (reserved,) = plain.reserved
        assert settings.run_tokens is not None
        assert sum(plain.answer.tokens) <= settings.run_tokens
        assert plain.longest_view <= reserved.num_tokens
    assert len(answers) > 2
    assert deepest >= 2
    assert workers > 6


@pytest.mark.parametrize("join", JOINS)
def test_no_view_of_nested_parts_outgrows_the_context(join: str) -> None:
    """The finisher's, which reads everything, is the longest."""
    end = EndSettings(answer="boxed", finisher_tokens=9)
    settings = ProfileSettings(
        profile="multiverse", budget=90, parts_join=join, part_tokens=12, end=end
    )
    for context in (140, 180, 240):
        for seed in range(4):
            played = noise(seed, settings, context)
            assert played.longest_view <= context, (context, seed)
    text, long = text_of("npr"), {**NESTED, "part 4": ["y" * 60, "</step>"], "part 2": ["w" * 400]}
    settings = ProfileSettings(profile="npr", budget=2000, parts_join=join, end=end)
    played = play(profiled("?", text, settings, PROMPT, context=300), Marked(text, **long))
    assert played.answer.finish_reason == "context"
    assert 260 < played.longest_view <= 300
    assert played.rows("part 1")[-1].feed == text.encode("v"), "it went on behind its parts"


def test_a_trace_of_nested_parts_holds_lanes_in_lanes() -> None:
    text, lines = text_of("npr"), []  # type: Text, list[dict[str, Any]]
    strategy = profiled("?", text, ProfileSettings(profile="npr", budget=2000, end=NO_END), PROMPT)
    played = play(record(strategy, {"model": "scripted"}, lines.append), Marked(text, **NESTED))
    trace = parse_trace(json.loads(json.dumps(lines)))
    again = [tuple(row.view for row in step.rows) for step, _ in _stepped(trace)]
    assert len(again) == len(played.passes)
    *_, (last, _) = _stepped(trace)
    (row,) = last.rows
    outer = next(item for item in row.view.items if hasattr(item, "lanes"))
    assert any(hasattr(item, "lanes") for item in outer.lanes[0])
    assert [token for block in row.view.blocks for token in block.tokens] == list(
        played.rows("writer")[-1].context
    )
    assert trace.events == played.events


def _stepped(trace: Any) -> Any:
    for step, rows in trace.steps():
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        yield step, rows
