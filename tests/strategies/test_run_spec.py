"""A spec that went through a file is the same spec, and makes the same run, token for token."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from manyhands.cache.step import Choice, Step
from manyhands.errors import BrokenTrace, InvalidRequest
from manyhands.prompts import BranchPrompt, TeamPrompt
from manyhands.schema.plain import to_plain
from manyhands.strategies.base import Answer, Sent, Strategy
from manyhands.strategies.branches import branches
from manyhands.strategies.events import (
    AnswerFound,
    Event,
    Snapshot,
    StepBegun,
    TokenWritten,
    WorkerJoined,
    WorkerStopped,
)
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.listening import Heard, Listen
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import (
    Away,
    BranchSettings,
    EndSettings,
    Settings,
    SoloSettings,
    TeamSettings,
)
from manyhands.text import Text
from manyhands.text.markers import MarkerProfile
from tests.strategies.specs import spec_of
from tests.text.small_tokenizers import byte_level

TEXT = Text(byte_level())
CHOICE = Choice(0.7, 40, 0.9, 0.05, 0.0, frozenset({5, 3, 4}), frozenset({9, 3}))
END = EndSettings(False, 5, True, False, 7)
TEAM = TeamSettings(
    workers=3,
    layout="interleaved",
    budget=12,
    check_every=4,
    headers="alone",
    choice=CHOICE,
    seed=11,
    snapshots=(2, 5),
    away=(Away(1, 1, 3), Away(2, 4, 5)),
    insertions={(0, 1): " Hi.\n", (2, 3): "Wait"},
    end=END,
)
SOLO = SoloSettings(budget=12, choice=CHOICE, seed=11, snapshots=(2,), end=END)
WORDS = TeamPrompt(names=("Ada", "Ben"), step_prefix="{name}:")


def through_json(settings: Settings) -> dict[str, Any]:
    header = spec_of(settings, WORDS, "1 + 2", 900).to_plain()
    loaded: dict[str, Any] = json.loads(json.dumps(header))
    assert loaded == json.loads(json.dumps(loaded))
    return loaded


@pytest.mark.parametrize("settings", [TEAM, SOLO, TeamSettings(), SoloSettings()])
def test_there_and_back(settings: Settings) -> None:
    header = through_json(settings)
    assert RunSpec.from_plain(header) == spec_of(settings, WORDS, "1 + 2", 900)
    assert header["settings"] == json.loads(json.dumps(to_plain(settings)))
    assert header["names"] == list(spec_of(settings, WORDS, "1 + 2", 900).names)
    assert (header["problem"], header["context"]) == ("1 + 2", 900)
    assert header["seed"] == settings.seed


MARKS = MarkerProfile("@@", "=>", "....", "@@end")
BRANCHES = BranchSettings(
    budget=30,
    join="keep",
    max_blocks=2,
    max_branches=5,
    branch_tokens=9,
    title_tokens=11,
    choice=CHOICE,
    seed=4,
    snapshots=(3, 8),
    join_distance=True,
    markers=MARKS,
    end=END,
)


@pytest.mark.parametrize("settings", [BRANCHES, BranchSettings()])
def test_branches_there_and_back(settings: BranchSettings) -> None:
    words = BranchPrompt("{marker} {question}", finisher="Well: \\boxed{")
    spec = spec_of(settings, words, "1 + 2")
    again = RunSpec.from_plain(json.loads(json.dumps(spec.to_plain())))
    assert again == spec
    assert again.method.name == "branches"
    made = branches("1 + 2", TEXT, settings, words)
    assert told(again.strategy(TEXT)) == told(made)


def test_a_header_of_the_first_days_is_read() -> None:
    """As it stood in traces before there was a table of methods."""
    header = {
        "kind": "header",
        "schema": 1,
        "method": "hogwild",
        "workers": 2,
        "settings": {
            "workers": 2,
            "insertions": [[0, 1, " Hi."]],
            "away": [{"worker": 1, "first": 1, "last": 3}],
            "snapshots": [3],
            "choice": {"temperature": 0, "allowed": None, "forbidden": [4]},
        },
        "prompt": {"rules": "{names}: {problem}", "names": ["Ada", "Ben"]},
        "problem": "1 + 2",
    }
    spec = RunSpec.from_plain(header)
    assert spec.settings == TeamSettings(
        insertions={(0, 1): " Hi."},
        away=(Away(1, 1, 3),),
        snapshots=(3,),
        choice=Choice(forbidden=frozenset({4})),
    )
    assert spec.prompt == TeamPrompt(rules="{names}: {problem}", names=("Ada", "Ben"))


def test_every_field_is_described() -> None:
    from dataclasses import fields

    for settings in (TEAM, SOLO):
        described = to_plain(settings)
        assert set(described) == {field.name for field in fields(settings)}
        assert set(described["choice"]) == {field.name for field in fields(Choice)}
        assert set(described["end"]) == {field.name for field in fields(EndSettings)}


def told(strategy: Strategy) -> list[Any]:
    """All that a strategy asks and reports, if every token is answered by a number of its own."""
    seen: list[Any] = []
    tokens: Sent = None
    try:
        while True:
            asked = strategy.send(tokens)
            tokens = Heard() if isinstance(asked, Listen) else None
            if isinstance(asked, Step):
                for row in asked.rows:
                    row.view.own.tokens.extend(row.feed)
                seen.append([(row.feed, row.choice, row.writer) for row in asked.rows])
                tokens = tuple((7 * len(seen) + i) % 300 for i in range(len(asked.rows)))
            elif isinstance(asked, Event):
                seen.append(asked)
    except StopIteration as end:
        return [*seen, end.value]


def through_a_file(settings: Settings, context: int | None) -> Strategy:
    """The context is that of the engine which goes on with it."""
    return replace(RunSpec.from_plain(through_json(settings)), context=context).strategy(TEXT)


@pytest.mark.parametrize("context", [None, 300])
def test_the_same_strategy(context: int | None) -> None:
    team = hogwild("1 + 2", TEXT, TEAM, WORDS, context=context)
    assert told(through_a_file(TEAM, context)) == told(team)
    solo = sequential("1 + 2", TEXT, SOLO, WORDS, context=context)
    assert told(through_a_file(SOLO, context)) == told(solo)


def test_a_setting_that_is_left_out_has_its_default() -> None:
    header = through_json(TeamSettings())
    header["settings"] = {"workers": 4}
    assert RunSpec.from_plain(header).settings == TeamSettings(workers=4)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("method", "magic"),
        ("method", ["hogwild"]),
        ("settings", None),
        ("settings", {"wrokers": 2}),
        ("settings", {"workers": 0}),
        ("settings", {"workers": "2"}),
        ("settings", {"workers": 2.5}),
        ("settings", {"budget": None}),
        ("settings", {"layout": ["combined"]}),
        ("settings", {"choice": 5}),
        ("settings", {"choice": {"temperature": "hot"}}),
        ("settings", {"choice": {"allowed": ["a"]}}),
        ("settings", {"end": {"reply": "no"}}),
        ("settings", {"end": 3}),
        ("settings", {"insertions": [[1, 2]]}),
        ("settings", {"away": [{"worker": 1}]}),
        ("settings", {"snapshots": 5}),
        ("prompt", None),
        ("prompt", {"rules": "no problem here"}),
        ("prompt", {"colour": "red"}),
        ("problem", 12),
        ("problem", None),
        ("context", "900"),
        ("context", 1.5),
    ],
)
def test_headers_that_do_not_describe_a_run(place: str, value: Any) -> None:
    header = through_json(TEAM) | {place: value}
    with pytest.raises(BrokenTrace, match=f"field '{place}'"):
        RunSpec.from_plain(header)


def test_what_makes_no_run_is_refused() -> None:
    whole = spec_of(TeamSettings(), TeamPrompt(), "1 + 2")
    for wrong, said in (
        ({"method": None}, "the method of a run is of type NoneType"),
        ({"method": "hogwild"}, "the method of a run is of type str"),
        ({"settings": None}, "expected TeamSettings"),
        ({"settings": SoloSettings()}, "of type SoloSettings; expected TeamSettings"),
        ({"prompt": None}, "the words of a run are of type NoneType; expected TeamPrompt"),
        ({"prompt": BranchPrompt()}, "of type BranchPrompt; expected TeamPrompt"),
        ({"problem": None}, "the problem of a conversation is of type NoneType"),
        ({"earlier": ("x",)}, "a list of messages was expected"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            replace(whole, **wrong)


@pytest.mark.parametrize("header", [{}, {"method": None}, {"method": "race"}])
def test_a_strategy_of_ones_own_is_not_called_damaged(header: dict[str, Any]) -> None:
    """Its trace is whole, and a program can do with it what no command can."""
    with pytest.raises(BrokenTrace, match="field 'method'") as raised:
        RunSpec.from_plain(header)
    hint = raised.value.hint or ""
    assert "engine.restore(strategy, trace)" in hint
    assert "damaged" not in hint


def reporting(*events: Event, names: int) -> Strategy:
    """A run of a method of one's own with so many names, which reports these events and nothing else."""

    def make(*given: Any, **more: Any) -> Strategy:
        yield from events
        return Answer("done")

    known = tuple(f"W{number}" for number in range(names))
    method = replace(METHODS["hogwild"], name="own", make=make, names=lambda *of: known)
    return RunSpec(method, TeamSettings(), WORDS).strategy(TEXT)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            [TokenWritten(3, 2, 5, "x")],
            "the worker of a TokenWritten in pass 3 is 2; expected 0 or 1",
        ),
        ([StepBegun(1, -1, 1, "")], "the worker of a StepBegun in pass 1 is -1; expected 0 or 1"),
        ([WorkerJoined(2, 3, "D")], "the worker of a WorkerJoined in pass 2 is 3; expected 2, for"),
        ([WorkerJoined(2, 1, "B")], "the worker of a WorkerJoined in pass 2 is 1; expected 2, for"),
        (
            [WorkerJoined(2, 2, "C"), WorkerStopped(4, 3, "stopped")],
            "the worker of a WorkerStopped in pass 4 is 3; expected 0 to 2",
        ),
    ],
)
def test_a_worker_that_has_not_come_is_refused(events: list[Event], said: str) -> None:
    """The command line ended in a traceback, and a server's stream in the midst: nothing had a name for it."""
    with pytest.raises(InvalidRequest) as refused:
        list(reporting(*events, names=2))
    assert said in str(refused.value)


def test_workers_that_come_are_known() -> None:
    events = [
        TokenWritten(1, 0, 5, "x"),
        WorkerJoined(1, 1, "B"),
        TokenWritten(2, 1, 5, "x"),
        AnswerFound(2, None, "5"),
        Snapshot(2, "5"),
    ]
    assert list(reporting(*events, names=1)) == events


def test_a_method_that_makes_no_strategy_is_refused() -> None:
    def make(*given: Any, **more: Any) -> Any:
        return []

    method = replace(METHODS["hogwild"], make=make)
    with pytest.raises(InvalidRequest, match="a list was given as a strategy"):
        RunSpec(method, TeamSettings(), WORDS).strategy(TEXT)
