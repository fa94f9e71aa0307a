"""Traces: written, read back, and played once more; damaged ones are refused with a line number."""

from __future__ import annotations

import json
import random
import weakref
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cache.block import Block
from manyhands.cache.layouts import LAYOUTS
from manyhands.cache.step import GREEDY, Choice, Row, Step
from manyhands.cache.view import View
from manyhands.errors import BrokenTrace, InvalidRequest, OutOfMemory
from manyhands.prompts.load import Prompts
from manyhands.replay.retold import answer_from
from manyhands.replay.trace import SCHEMA, SCORE, Trace, header_of, parse_trace, read_trace, record
from manyhands.schema.lines import Line
from manyhands.strategies.base import Answer, FinishedStep, Strategy
from manyhands.strategies.events import Event, StepEnded, TokenWritten
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.listening import Heard, Listen
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import Away, EndSettings, SoloSettings, TeamSettings
from tests.strategies.driver import PROMPT, Dice, Pass, Played, feed, play, small_text

TEXT = small_text()
TEAM = TeamSettings(
    budget=25, check_every=9, snapshots=(4, 11), away=(Away(0, 6, 8),),
    choice=Choice(temperature=1.0), end=EndSettings(finisher_tokens=4, reply_tokens=3),
)  # fmt: skip


def recorded(strategy: Strategy) -> tuple[Played, list[dict[str, Any]]]:
    """A run, and its lines as they come back from a file."""
    lines: list[dict[str, Any]] = []
    played = play(record(strategy, {"model": "dice", "seed": 0}, lines.append), Dice(TEXT, boxes=0))
    return played, [json.loads(json.dumps(line)) for line in lines]


def team_run(**more: Any) -> tuple[Played, list[dict[str, Any]]]:
    return recorded(hogwild("2+3", TEXT, replace(TEAM, **more), PROMPT))


def played_again(trace: Trace) -> list[Pass]:
    return [Pass(feed(step), tuple(row.token for row in rows)) for step, rows in trace.steps()]


def without_choices(passes: list[Pass]) -> list[Pass]:
    """How a token was chosen is the strategy's business and no part of a trace."""
    return [
        Pass(tuple(replace(row, choice=GREEDY) for row in one.rows), one.tokens) for one in passes
    ]


# -- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_team_is_played_again(layout: str, workers: int) -> None:
    played, lines = team_run(layout=layout, workers=workers)
    trace = parse_trace(lines)
    assert played_again(trace) == without_choices(played.passes)
    assert trace.is_complete
    said_once = [str(line) for line in lines if line["kind"] in ("block", "view", "freeze")]
    assert len(set(said_once)) == len(said_once)
    assert trace.header == {"kind": "header", "schema": SCHEMA, "model": "dice", "seed": 0}
    assert trace.num_tokens == sum(len(row.feed) for one in played.passes for row in one.rows)


def test_one_alone_is_played_again() -> None:
    settings = SoloSettings(budget=20, snapshots=(5,))
    played, lines = recorded(sequential("2+3", TEXT, settings, PROMPT))
    assert played_again(parse_trace(lines)) == without_choices(played.passes)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_recorded_run_is_the_run(layout: str) -> None:
    team = replace(TEAM, layout=layout)
    plain = play(hogwild("2+3", TEXT, team, PROMPT), Dice(TEXT, boxes=0))
    played, lines = team_run(layout=layout)
    assert (played.passes, played.events, played.reserved, played.answer) == (
        plain.passes,
        plain.events,
        plain.reserved,
        plain.answer,
    )
    events = [line for line in lines if line["kind"] == "event"]
    assert [(e["event"], e["forward_pass"]) for e in events] == [
        (type(e).__name__, e.forward_pass) for e in plain.events
    ]
    words = [e["text"] for e in events if e["event"] == "TokenWritten"]
    assert words == [event.text for event in plain.of(TokenWritten)]
    assert lines[-1]["answer"] == json.loads(json.dumps(asdict(plain.answer)))
    assert parse_trace(lines).answer == lines[-1]["answer"]


def test_a_file_comes_back(tmp_path: Path) -> None:
    _, lines = team_run()
    path = write(tmp_path, lines)
    trace = read_trace(path)
    assert trace == parse_trace(lines)
    assert read_trace(str(path)) == trace


# -- the recorder is no burden -------------------------------------------------------------------


def let_go(blocks: list[weakref.ref[Block]]) -> Strategy:
    """A strategy that uses a fresh block in every pass; `blocks` counts those still alive."""
    for _ in range(5):
        block = Block()
        blocks.append(weakref.ref(block))
        yield Step([Row(View([block]), (1,))])
        del block
    return Answer("done")


def test_what_the_strategy_lets_go_is_let_go() -> None:
    blocks: list[weakref.ref[Block]] = []
    lines: list[dict[str, Any]] = []
    strategy = record(let_go(blocks), {}, lines.append)
    strategy.send(None)
    for _ in range(4):
        strategy.send((0,))
        assert sum(ref() is not None for ref in blocks) <= 2  # the last step's and this one's
    assert [line["id"] for line in lines if line["kind"] == "block"] == [0, 1, 2, 3]


def careful(log: list[str]) -> Strategy:
    try:
        yield Step([Row(View([Block()]), (1,))])
    except OutOfMemory as error:
        log.append(str(error))
    yield Step([Row(View([Block()]), (2,))])
    return Answer("recovered")


def told(answer: Any, *events: Event, header: dict[str, Any] | None = None) -> Trace:
    """The trace of a strategy of one's own."""

    def strategy() -> Strategy:
        view, tokens = View([Block(np.str_("prompt"))]), np.arange(3)
        yield Step([Row(view, tokens, writer="Alice")])  # type: ignore[arg-type]
        yield from events
        return answer  # type: ignore[no-any-return]

    lines: list[dict[str, Any]] = []
    play(record(strategy(), header or {}, lines.append), Dice(TEXT, boxes=0))
    return parse_trace([json.loads(json.dumps(line)) for line in lines])


def test_numbers_of_other_libraries_come_back_as_pythons_own() -> None:
    number: Any = np.int64
    tokens: Any = np.arange(2)
    last: Any = torch.tensor(2)
    steps: Any = [FinishedStep(number(0), 1, "a", 1, last)]
    answer = Answer(
        "x", "4", tokens=tokens, forward_passes=number(3), snapshots={number(2): "4"}, steps=steps
    )
    trace = told(answer, StepEnded(number(1), 0, 1, "a"), header={"seed": number(3)})
    assert answer_from(trace) == answer
    assert trace.events == [StepEnded(1, 0, 1, "a")]
    assert trace.header["seed"] == 3


@dataclass(frozen=True)
class Marked(Answer):
    """An answer of one's own."""

    marks: Any = ()


def test_an_answer_of_ones_own_comes_back_as_far_as_it_is_known() -> None:
    trace = told(Marked("x", "4", marks=np.ones(2)))
    assert trace.answer is not None
    assert trace.answer["marks"] == [1.0, 1.0]
    assert answer_from(trace) == Answer("x", "4")


def test_what_would_not_come_back_is_refused_while_it_is_written() -> None:
    with pytest.raises(InvalidRequest, match="the Marked of a strategy cannot be written: marks"):
        told(Marked("x", marks=Path("x")))
    with pytest.raises(InvalidRequest, match="the event StepEnded does not fit its class: step"):
        told(Answer("x"), StepEnded(1, 0, "one", ""))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="the header of a trace cannot be written: where is"):
        told(Answer("x"), header={"where": Path("x")})


@pytest.mark.parametrize("end", [None, "42"])
def test_an_end_that_is_no_answer_is_the_engines_to_refuse(end: Any) -> None:
    lines: list[dict[str, Any]] = []

    def strategy() -> Strategy:
        yield Listen()
        return end  # type: ignore[no-any-return]

    recorded = record(strategy(), {}, lines.append)
    next(recorded)
    with pytest.raises(StopIteration) as ended:
        recorded.send(Heard())
    assert ended.value.value == end
    assert [line["kind"] for line in lines] == ["header"]


def test_an_error_reaches_the_strategy() -> None:
    log: list[str] = []
    lines: list[dict[str, Any]] = []
    strategy = record(careful(log), {}, lines.append)
    strategy.send(None)
    strategy.throw(OutOfMemory("no room"))
    with pytest.raises(StopIteration) as end:
        strategy.send((3,))
    assert end.value.value.text == "recovered"
    assert log == ["no room"]
    assert parse_trace(lines).passes[0][0].feed == (2,)


def test_an_error_that_nobody_handles_comes_out() -> None:
    strategy = record(let_go([]), {}, list[Line]().append)
    strategy.send(None)
    with pytest.raises(OutOfMemory, match="no room"):
        strategy.throw(OutOfMemory("no room"))


def test_closing_closes_the_strategy() -> None:
    log = []

    def strategy() -> Generator[Step, Any, Any]:
        try:
            yield Step([Row(View([Block()]), (1,))])
        finally:
            log.append("closed")

    wrapped = record(strategy(), {}, list[Line]().append)
    wrapped.send(None)
    wrapped.close()
    assert log == ["closed"]


# -- damaged files -------------------------------------------------------------------------------


def write(folder: Path, lines: Sequence[Any], end: str = "\n") -> Path:
    path = folder / "run.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + end)
    return path


def test_a_trace_that_was_cut_is_good_up_to_its_last_whole_line(tmp_path: Path) -> None:
    _, lines = team_run()
    whole = write(tmp_path, lines).read_bytes()
    last_pass = max(n for n, line in enumerate(lines) if line["kind"] == "pass")
    offset = sum(len(json.dumps(line)) + 1 for line in lines[: last_pass + 1])
    for size in (offset, offset - 1, offset - 20):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(whole[:size])
        trace = read_trace(path)
        assert not trace.is_complete
        assert trace.answer is None
        expected = parse_trace(lines[: last_pass + (size == offset)])
        assert trace == expected
        assert len(list(trace.steps())) == len(expected.passes)


def test_any_cut_gives_a_trace_or_says_so(tmp_path: Path) -> None:
    _, lines = team_run(budget=5, snapshots=())
    whole = write(tmp_path, lines).read_bytes()
    path = tmp_path / "cut.jsonl"
    header = len(json.dumps(lines[0])) + 1
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        if size < header:
            with pytest.raises(BrokenTrace, match="holds no whole line"):
                read_trace(path)
        else:
            played_again(read_trace(path))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no whole line"),
        (["{"], "line 1 of .* is not JSON"),
        (["[1, 2]"], "line 1 of .* is not a line of a trace"),
        (['{"a": 1}'], "line 1 of .* is not a line of a trace"),
        (["null"], "line 1 of .* is not a line of a trace"),
        (
            ['{"kind": "header", "schema": 2}'],
            "'header', schema 2; expected the header of a trace, schema 1",
        ),
        (['{"kind": "header"}'], "schema None; expected the header of a trace"),
        (['{"kind": "pass", "rows": []}'], "begins with 'pass'"),
        (['{"kind": ["header"], "schema": 1}'], "begins with"),
        (["[" * 100_000], "line 1 of .* is not JSON"),
        (['{"kind": ' + "9" * 5000 + "}"], "line 1 of .* is not JSON"),
    ],
)
def test_foreign_files(tmp_path: Path, lines: list[Any] | list[str], message: str) -> None:
    end = "\n" if lines else ""
    with pytest.raises(BrokenTrace, match=message):
        read_trace(write(tmp_path, lines, end))


@pytest.mark.parametrize("wrong", [5, None, 1.5])
def test_a_number_is_no_file(wrong: Any) -> None:
    """It was taken for an open file of somebody else's, which was read, waited for and closed."""
    with pytest.raises(InvalidRequest, match="was given as a file; expected its path"):
        read_trace(wrong)


@pytest.mark.parametrize("wrong", [[], [1], ["x"], [{"kind": "header", "schema": SCHEMA}, None]])
def test_lines_that_are_no_objects(wrong: Any) -> None:
    with pytest.raises(BrokenTrace, match="is no list of JSON objects"):
        parse_trace(wrong)


@pytest.mark.parametrize("wrong", [None, hogwild])
def test_what_is_no_strategy_is_refused_before_a_line_is_written(wrong: Any) -> None:
    lines: list[dict[str, Any]] = []
    with pytest.raises(InvalidRequest, match="was given as a strategy; expected a generator"):
        next(record(wrong, {}, lines.append))
    assert not lines


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read: No such file"):
        read_trace(tmp_path / "nothing.jsonl")
    with pytest.raises(InvalidRequest, match="cannot be read: Is a directory"):
        read_trace(tmp_path)
    with pytest.raises(InvalidRequest, match="cannot be read: embedded null"):
        read_trace("a\0b")
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(BrokenTrace, match="is not a trace"):
        read_trace(tmp_path / "noise")


START = [
    {"kind": "header", "schema": SCHEMA},
    {"kind": "block", "id": 0, "name": "prompt"},
    {"kind": "block", "id": 1, "name": "desk"},
    {"kind": "view", "id": 0, "blocks": [0]},
    {"kind": "view", "id": 1, "blocks": [0, 1]},
    {"kind": "freeze", "block": 0},
]


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "block", "id": 3, "name": "x"},
        {"kind": "block", "id": 2},
        {"kind": "view", "id": 2, "blocks": [7]},
        {"kind": "view", "id": 2, "blocks": [-1]},
        {"kind": "view", "id": 2, "blocks": []},
        {"kind": "view", "id": 2, "blocks": [1, 0, 1]},
        {"kind": "view", "id": 1, "blocks": [0]},
        {"kind": "view", "id": 2, "blocks": 5},
        {"kind": "freeze", "block": 2},
        {"kind": "freeze", "block": 0.5},
        {"kind": "freeze", "block": True},
        {"kind": "view", "id": 2, "blocks": [0, True]},
        {"kind": "view", "id": 2.0, "blocks": [0, 1]},
        {"kind": "pass"},
        {"kind": "pass", "rows": []},
        {"kind": "pass", "rows": [[1, [5], 6]]},
        {"kind": "pass", "rows": [[2, [5], 6, None]]},
        {"kind": "pass", "rows": [[1, [], 6, None]]},
        {"kind": "pass", "rows": [[1, "56", 6, None]]},
        {"kind": "pass", "rows": [[1, [5.5], 6, None]]},
        {"kind": "pass", "rows": [[1, [-5], 6, None]]},
        {"kind": "pass", "rows": [[True, [5], 6, None]]},
        {"kind": "pass", "rows": [[1, [True], 6, None]]},
        {"kind": "pass", "rows": [[1, [5], True, None]]},
        {"kind": "pass", "rows": [[1, [10**30], 6, None]]},
        {"kind": "pass", "rows": [[1, [5], float("inf"), None]]},
        {"kind": "pass", "rows": [[1, [5], None, None]]},
        {"kind": "pass", "rows": [[1, [5], 6, ["Alice"]]]},
        {"kind": "pass", "rows": [[1, [5], 6, None], [1, [5], 6, None]]},
        {"kind": "pass", "rows": [[0, [5], 6, None]]},  # its block is frozen
        {"kind": "end", "answer": None},
        {"kind": "end"},
    ],
    ids=json.dumps,
)
def test_lines_that_do_not_fit(line: dict[str, Any]) -> None:
    with pytest.raises(BrokenTrace, match=r"^line 7 of the trace does not fit") as caught:
        parse_trace([*START, line])
    assert caught.value.hint == "The file is damaged."


@pytest.mark.parametrize("kind", ["surprise", None])
def test_lines_of_another_kind(kind: object) -> None:
    said = f"^line 7 of the trace: its kind is {kind!r}, which no line of a trace has\n"
    with pytest.raises(BrokenTrace, match=said) as caught:
        parse_trace([*START, {"kind": kind}])
    assert "or is no trace" in caught.value.hint


def test_a_damaged_line_in_the_middle_of_a_file(tmp_path: Path) -> None:
    _, lines = team_run(budget=5, snapshots=())
    lines[8] = json.dumps(lines[8])[:-3]  # type: ignore[call-overload]
    with pytest.raises(BrokenTrace, match=r"^line 9 of .*run\.jsonl' is not JSON"):
        read_trace(write(tmp_path, lines))


LINES = team_run(budget=4, snapshots=(), workers=2)[1]
JUNK: st.SearchStrategy[Any] = (
    st.none() | st.integers(-3, 40) | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), JUNK)
def test_junk_in_any_place_is_refused_or_harmless(rng: random.Random, junk: Any) -> None:
    """Whatever a line holds, either parsing says which line is wrong or the run can be played."""
    lines = json.loads(json.dumps(LINES))
    place = lines[rng.randrange(1, len(lines))]
    while True:  # go down to some leaf
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.3:
            break
        place = place[key]
    place[key] = junk
    problem = ""
    try:
        trace = parse_trace(lines)
    except BrokenTrace as error:
        problem = str(error)
    else:
        played_again(trace)
    assert problem == "" or problem.startswith("line ")


@pytest.mark.parametrize("score", ["x", 2, -0.5, True, 10**400, float("nan"), [1]])
def test_a_score_that_is_none_is_refused(score: Any) -> None:
    header = {"kind": "header", "schema": 1, SCORE: score}
    with pytest.raises(BrokenTrace, match=r"it has the score .*; expected 0 to 1"):
        parse_trace([header])
    assert parse_trace([{**header, SCORE: 1}]).score == 1.0
    assert parse_trace([{**header, SCORE: None}]).score is None


@pytest.mark.parametrize("wrong", [None, 3, "x", [1]])
def test_what_is_no_header_and_cannot_be_called_is_named(wrong: Any) -> None:
    strategy = hogwild("2+3", TEXT, TEAM, PROMPT)
    with pytest.raises(InvalidRequest, match="as the header of a trace; expected a Mapping"):
        next(record(strategy, wrong, list[Line]().append))
    with pytest.raises(InvalidRequest, match="to be given lines; expected a function"):
        next(record(strategy, {}, wrong))
    with pytest.raises(InvalidRequest, match="as the header of a trace; expected a Mapping"):
        RunSpec.from_plain(wrong)
    if wrong != [1]:
        with pytest.raises(
            (InvalidRequest, BrokenTrace), match=r"lines of a trace|no list of JSON"
        ):
            parse_trace(wrong)


def test_one_header_at_every_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of an installed method's distribution joins those that are known."""
    spec = RunSpec(METHODS["sequential"], SoloSettings(), Prompts().team)
    place = {"model": "small", "versions": {"torch": "2"}}
    assert header_of(spec, place) == {**place, **spec.to_plain()}
    assert header_of(spec, {"model": "small"})["versions"] == {}
    monkeypatch.setattr(type(METHODS), "version", lambda *_: {"my-relay": "1.0"})
    assert header_of(spec, place)["versions"] == {"torch": "2", "my-relay": "1.0"}
