"""Every event and everything that can be said comes back from JSON as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from manyhands.cache.logprobs import LEAST_LOGPROB, Logprobs
from manyhands.cache.usage import Usage
from manyhands.errors import BrokenTrace, InvalidRequest
from manyhands.strategies.account import Account
from manyhands.strategies.events import (
    EVENTS,
    Admitted,
    EngineEvent,
    Event,
    Queued,
    StepEnded,
    TokenWritten,
    UsageCounted,
    ViewsChanged,
    WorkerJoined,
    WorkerPaused,
    WorkerResumed,
    WorkerStopped,
    from_line,
    to_line,
)
from manyhands.strategies.listening import (
    ITEMS,
    MAX_SAID_CHARS,
    AddWorker,
    DismissWorker,
    Item,
    PauseWorker,
    ResumeWorker,
    Said,
)
from manyhands.strategies.registry import Registry

KINDS = [
    *((EVENTS, kind) for kind in EVENTS.kinds.values()),
    *((ITEMS, k) for k in ITEMS.kinds.values()),
]


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Objects of a dataclass, by the types of its fields."""
    types = get_type_hints(kind)
    values = {field.name: st.from_type(types[field.name]) for field in fields(kind)}
    if kind is ViewsChanged:  # lanes hold lanes, which no type says
        values["views"] = st.dictionaries(st.text(), st.lists(_ITEM, max_size=3).map(tuple))
    return st.fixed_dictionaries(values)


def _tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=3).map(tuple)


def check(registry: Registry[Any], kind: type[Any], values: Mapping[str, Any]) -> None:
    """It comes back from a line of JSON, under its own name."""
    try:
        value = kind(**values)
    except InvalidRequest:  # the class itself refuses this one
        reject()
    line = registry.to_line(value)
    assert next(iter(line)) == registry.tag
    again = registry.from_line(json.loads(json.dumps(line, allow_nan=False)))
    assert type(again) is kind
    assert again == value


# Logprobs are finite: they end at LEAST_LOGPROB.
_LOGPROB = st.floats(LEAST_LOGPROB, 0)
_TOP = st.lists(st.tuples(st.integers(0), _LOGPROB), max_size=3).map(tuple)
st.register_type_strategy(Logprobs, st.builds(Logprobs, _LOGPROB, _TOP))
_ITEM: st.SearchStrategy[Any] = st.recursive(
    st.integers(0), lambda item: _tuples(_tuples(item)), max_leaves=5
)


@pytest.mark.parametrize(
    ("registry", "kind"), KINDS, ids=lambda found: getattr(found, "__name__", "")
)
def test_every_kind_comes_back(registry: Registry[Any], kind: type[Any]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(any_of(kind))
    def comes_back(values: Mapping[str, Any]) -> None:
        check(registry, kind, values)

    comes_back()


def test_control_a_kind_whose_fields_json_does_not_know() -> None:
    registry: Registry[Any] = Registry("event")

    @dataclass(frozen=True)
    class Odd:
        anything: Any

    registry.add(Odd)
    check(registry, Odd, {"anything": [1, "two", None]})
    for odd in ((1, 2), {1: 2}):
        with pytest.raises(AssertionError):
            check(registry, Odd, {"anything": odd})


def test_nothing_is_missing() -> None:
    def below(kind: type[Any]) -> set[type[Any]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    ours = {kind for kind in below(Event) - {Event} if kind.__module__.startswith("manyhands.")}
    assert ours <= set(EVENTS.kinds.values())
    assert len(ours) > 15
    assert set(ITEMS.kinds.values()) == below(Item) - {Item}
    assert {kind.__name__ for kind in below(EngineEvent)} == {
        "EngineEvent",
        "Queued",
        "Admitted",
        "Preempted",
        "Resumed",
        "ViewsChanged",
        "UsageCounted",
    }


def test_lines_are_what_traces_have_always_held() -> None:
    event = StepEnded(7, 0, 1, "Done.")
    line = {"event": "StepEnded", "forward_pass": 7, "worker": 0, "step": 1, "text": "Done."}
    assert to_line(event) == line
    assert from_line(line) == event
    old = {"event": "WorkerJoined", "forward_pass": 3, "worker": 2, "name": "Dana"}
    assert from_line(old) == WorkerJoined(3, 2, "Dana"), "a new field has a default"


def test_a_line_has_logprobs_only_where_they_were_asked_for() -> None:
    plain = TokenWritten(3, 0, 17, "a")
    assert "logprobs" not in to_line(plain)
    assert from_line(to_line(plain)) == plain
    told = replace(plain, logprobs=Logprobs(-0.5, ((17, -0.5), (4, -2.0))))
    assert to_line(told)["logprobs"] == {"logprob": -0.5, "top": [[17, -0.5], [4, -2.0]]}
    assert from_line(json.loads(json.dumps(to_line(told)))) == told


def test_nested_fields_come_back_as_they_were() -> None:
    seen = ViewsChanged(4, {"Alice": (0, ((1,), (2, 3)), 5)}, {5: "Alice 2"})
    assert from_line(json.loads(json.dumps(to_line(seen)))) == seen
    deep = ViewsChanged(4, {"a": (0, ((1, ((2,), (3, ((4,), (5,)), 6)), 7), (8,)), 9)})
    assert from_line(json.loads(json.dumps(to_line(deep)))) == deep
    counted = UsageCounted(2, Usage(2, 30, 4, 1000, 500))
    assert from_line(json.loads(json.dumps(to_line(counted)))) == counted


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            {"event": "WorkerTeleported", "forward_pass": 1},
            "the event 'WorkerTeleported' is unknown",
        ),
        ({"forward_pass": 1}, "the event None is unknown"),
        ({"event": ["StepEnded"]}, "is unknown"),
        ({"event": "StepEnded", "forward_pass": 1}, "StepEnded does not fit its class"),
        ({"event": "Queued", "forward_pass": "1"}, "forward_pass is '1'; expected a whole number"),
        (
            {"event": "ViewsChanged", "forward_pass": 1, "views": {"a": [0, [[[1, 2]]], 3]}},
            "expected lanes, each a list of blocks",
        ),
        (
            {"event": "ViewsChanged", "forward_pass": 1, "views": {"a": [0, [["1"]], 3]}},
            "expected the number of a block",
        ),
        ({"event": "Queued", "forward_pass": 1, "more": 2}, "Queued has no field 'more'"),
    ],
)
def test_a_line_that_is_no_event(line: dict[str, Any], said: str) -> None:
    with pytest.raises(BrokenTrace, match=said):
        from_line(line)


def test_what_a_class_refuses_is_a_damaged_line() -> None:
    with pytest.raises(BrokenTrace, match="Said does not fit its class: Dana said nothing"):
        ITEMS.from_line({"item": "Said", "text": " ", "author": "Dana"})


def test_an_event_of_ones_own_is_entered_where_it_is_defined() -> None:
    @dataclass(frozen=True)
    class BookOpened(Event):
        title: str

    try:
        assert from_line(to_line(BookOpened(1, "Euclid"))) == BookOpened(1, "Euclid")
        with pytest.raises(TypeError, match="there are two classes BookOpened"):
            EVENTS.add(type("BookOpened", (), {"__module__": "elsewhere"}))
        with pytest.raises(TypeError, match="has a field 'event'"):
            EVENTS.add(type("Sly", (), {"__annotations__": {"event": "str"}}))
    finally:
        EVENTS.kinds.pop("BookOpened")
        EVENTS.kinds.pop("Sly", None)


def test_numbers_of_other_libraries_are_pythons_own_in_a_line() -> None:
    event = TokenWritten(np.int64(1), np.int32(0), torch.tensor(5), np.str_("a"))  # type: ignore[arg-type]
    line = to_line(event)
    assert json.loads(json.dumps(line)) == to_line(TokenWritten(1, 0, 5, "a"))
    assert from_line(line) == TokenWritten(1, 0, 5, "a")


@pytest.mark.parametrize(
    "event",
    [
        StepEnded(1, 0, "one", ""),  # type: ignore[arg-type]
        StepEnded(1, 0, 1, None),  # type: ignore[arg-type]
        StepEnded(1, 0, 1, b"Done."),  # type: ignore[arg-type]
        TokenWritten(1, 0, np.float32(5), ""),  # type: ignore[arg-type]
        TokenWritten(1, 0, np.arange(2), ""),  # type: ignore[arg-type]
        TokenWritten(1, 0, 5, "", Logprobs(float("nan"))),
    ],
)
def test_an_event_that_would_not_come_back_is_refused(event: Event) -> None:
    with pytest.raises(InvalidRequest, match=f"the event {type(event).__name__} does not fit"):
        to_line(event)


# -- what may be said -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " \n\t", "\x00\x1b", "\ufeff"])
def test_nothing_said_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Dana said nothing"):
        Said(text, "Dana")


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "a\u2028b", "x" * 81])
def test_a_name_is_one_short_line(name: str) -> None:
    with pytest.raises(InvalidRequest, match="the author's name is"):
        Said("Hello.", name)
    with pytest.raises(InvalidRequest, match="the worker's name is"):
        AddWorker(name)


@pytest.mark.parametrize("wrong", [None, 5, b"x", ["x"]])
def test_what_is_said_is_a_text_by_a_name(wrong: Any) -> None:
    for make in (lambda: Said(wrong, "Dana"), lambda: Said("x", wrong), lambda: AddWorker(wrong)):
        with pytest.raises(
            InvalidRequest, match=f"is of type {type(wrong).__name__}; expected a text"
        ):
            make()


@pytest.mark.parametrize("wrong", [None, "1", 1.5, True, 10**400, -(10**4000)])
def test_a_worker_is_named_by_its_number(wrong: Any) -> None:
    for kind in (PauseWorker, ResumeWorker, DismissWorker):
        with pytest.raises(InvalidRequest, match=r"the worker is .*; expected its number"):
            kind(wrong)


def test_too_much_at_once() -> None:
    assert len(Said("x" * MAX_SAID_CHARS, "Dana").text) == MAX_SAID_CHARS
    with pytest.raises(InvalidRequest, match=f"expected at most {MAX_SAID_CHARS}"):
        Said("x" * (MAX_SAID_CHARS + 1), "Dana")


def test_words_are_cleaned_as_a_problem_is() -> None:
    assert Said(" a\r\nb\x00\ud800 ", "Dana").text == "a\nb\ufffd"


# -- the account ------------------------------------------------------------------------------------


def test_the_account_knows_people_and_pauses() -> None:
    account = Account(["Alice", "Bob"])
    for event in (
        WorkerJoined(3, 2, "Dana", is_person=True),
        StepEnded(3, 2, 1, "Try it mod 7."),
        WorkerPaused(4, 0),
    ):
        account.take(event)
    assert account.hands[2].is_person
    assert not account.hands[2].came_late
    assert account.hands[0].paused
    assert account.transcript(account.steps()) == "Dana [1]: Try it mod 7."
    account.take(WorkerResumed(5, 0))
    assert not account.hands[0].paused


def test_workers_who_came_are_gone_when_all_have_stopped_and_others_come() -> None:
    account = Account(["Writer"], solo=True)

    def present(*events: Event) -> list[str]:
        for event in events:
            account.take(event)
        return [hand.name for _, hand in account.present]

    assert present(WorkerJoined(1, 1, "a"), WorkerJoined(1, 2, "b")) == ["Writer", "a", "b"]
    assert present(WorkerStopped(2, 1, "answer")) == ["Writer", "a", "b"]
    assert present(WorkerJoined(3, 3, "c")) == ["Writer", "a", "b", "c"], "b still writes"
    assert present(WorkerStopped(4, 2, "answer"), WorkerStopped(5, 3, "stopped"))[1:] == [*"abc"]
    assert present(WorkerJoined(6, 4, "d")) == ["Writer", "d"]
    with pytest.raises(IndexError, match="worker 7 comes as number 5"):
        present(WorkerJoined(6, 7, "e"))


def test_the_account_leaves_the_engines_events_alone() -> None:
    account = Account(["Alice"])
    for event in (Queued(0), Admitted(900), ViewsChanged(900, {}, {})):
        account.take(event)
    assert account.forward_passes == 0
