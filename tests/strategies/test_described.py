"""A described run is the same run: through JSON and back, token for token."""

from __future__ import annotations

import json
from typing import Any

import pytest

from manyhands.cache.step import Choice, Step
from manyhands.errors import BrokenTrace
from manyhands.prompts import BranchPrompt, TeamPrompt
from manyhands.strategies.base import Sent, Strategy
from manyhands.strategies.branches import branches
from manyhands.strategies.described import (
    describe,
    describe_run,
    prompt_from,
    settings_from,
    strategy_from,
)
from manyhands.strategies.events import Event
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.listening import Heard, Listen
from manyhands.strategies.methods import Settings
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import (
    Away,
    BranchSettings,
    EndSettings,
    SoloSettings,
    TeamSettings,
)
from manyhands.text import Text
from manyhands.text.markers import MarkerProfile
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
    header = describe_run("1 + 2", settings, WORDS, context=900)
    loaded: dict[str, Any] = json.loads(json.dumps(header))
    assert loaded == json.loads(json.dumps(loaded))
    return loaded


@pytest.mark.parametrize("settings", [TEAM, SOLO, TeamSettings(), SoloSettings()])
def test_there_and_back(settings: Settings) -> None:
    header = through_json(settings)
    assert settings_from(header) == settings
    assert prompt_from(header) == WORDS
    assert header["settings"] == describe(settings)
    assert (header["problem"], header["context"]) == ("1 + 2", 900)


MARKS = MarkerProfile("@@", "=>", "....", "@@end")
BRANCHES = BranchSettings(
    30, "keep", 2, 5, 9, 11, CHOICE, 4, (3, 8), join_distance=True, markers=MARKS, end=END
)


@pytest.mark.parametrize("settings", [BRANCHES, BranchSettings()])
def test_branches_there_and_back(settings: BranchSettings) -> None:
    words = BranchPrompt("{marker} {question}", finisher="Well: \\boxed{")
    header = json.loads(json.dumps(describe_run("1 + 2", settings, words, context=None)))
    assert header["method"] == "branches"
    assert settings_from(header) == settings
    assert prompt_from(header) == words
    made = branches("1 + 2", TEXT, settings, words)
    assert told(strategy_from(header, TEXT, None)) == told(made)


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
    settings = settings_from(header)
    assert settings == TeamSettings(
        insertions={(0, 1): " Hi."},
        away=(Away(1, 1, 3),),
        snapshots=(3,),
        choice=Choice(forbidden=frozenset({4})),
    )
    assert prompt_from(header) == TeamPrompt(rules="{names}: {problem}", names=("Ada", "Ben"))


def test_every_field_is_described() -> None:
    from dataclasses import fields

    for settings in (TEAM, SOLO):
        described = describe(settings)
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


@pytest.mark.parametrize("context", [None, 300])
def test_the_same_strategy(context: int | None) -> None:
    team = hogwild("1 + 2", TEXT, TEAM, WORDS, context=context)
    assert told(strategy_from(through_json(TEAM), TEXT, context)) == told(team)
    solo = sequential("1 + 2", TEXT, SOLO, WORDS, context=context)
    assert told(strategy_from(through_json(SOLO), TEXT, context)) == told(solo)


def test_a_setting_that_is_left_out_has_its_default() -> None:
    header = through_json(TeamSettings())
    header["settings"] = {"workers": 4}
    assert settings_from(header) == TeamSettings(workers=4)


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
    ],
)
def test_headers_that_do_not_describe_a_run(place: str, value: Any) -> None:
    header = through_json(TEAM) | {place: value}
    with pytest.raises(BrokenTrace, match=f"field '{place}'"):
        strategy_from(header, TEXT, None)
