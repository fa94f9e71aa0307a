"""A step of a strategy is checked where it is made."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.cache import step
from manyhands.cache.block import Block
from manyhands.cache.step import GREEDY, Choice, Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest
from manyhands.schema.plain import to_plain


def test_a_row_takes_any_sequence_of_ids() -> None:
    row = Row(View([Block()]), [1, 2])  # type: ignore[arg-type]  # lists are welcome
    assert row.feed == (1, 2)
    assert row.choice is GREEDY
    assert row.writer is None


def test_a_row_feeds_something() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Row(View([Block("desk")]), ())
    assert str(caught.value) == "the row that writes to Block('desk', 0 tokens) feeds no token"
    assert caught.value.hint == "Feed at least one token, or leave the row out of the step."


def test_a_row_writes_to_no_frozen_block() -> None:
    view = View([Block(), Block("desk").freeze()])
    with pytest.raises(InvalidRequest, match="is frozen"):
        Row(view, (1,))


def test_a_row_reads_frozen_blocks() -> None:
    assert Row(View([Block().freeze(), Block()]), (1,)).feed == (1,)


def test_a_step_has_rows() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Step([])
    assert str(caught.value) == "a step was made of no rows"
    assert caught.value.hint == "Ask for at least one row."


def test_rows_of_a_step_write_to_different_blocks() -> None:
    shared, desk = Block("shared"), Block("desk")
    rows = [Row(View([shared, desk]), (1,)), Row(View([desk]), (2,))]
    with pytest.raises(InvalidRequest) as caught:
        Step(rows)
    assert str(caught.value) == "two rows of one step write to Block('desk', 0 tokens)"
    assert "block of its own" in caught.value.hint


def test_rows_may_read_what_others_write() -> None:
    left, right = Block(), Block()
    step = Step(Row(view, (1,)) for view in (View([left, right]), View([right, left])))
    assert len(step.rows) == 2


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; expected 0 to 100"),
        ({"temperature": float("inf")}, "temperature is inf; expected 0 to 100"),
        ({"temperature": 1e308}, "temperature is 1e+308; expected 0 to 100"),
        ({"temperature": float("nan")}, "temperature is nan; expected 0 to 100"),
        ({"top_k": -1}, "top_k is -1; expected 0 (all) or more"),
        ({"top_p": 0.0}, "top_p is 0.0; expected above 0, at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1; expected above 0, at most 1"),
        ({"min_p": -0.5}, "min_p is -0.5; expected 0 to 1"),
        ({"min_p": 2.0}, "min_p is 2.0; expected 0 to 1"),
        ({"draw": 1.0}, "draw is 1.0; expected 0 or more, below 1"),
        ({"draw": -0.01}, "draw is -0.01; expected 0 or more, below 1"),
    ],
)
def test_a_choice_out_of_range(setting: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Choice(**setting)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"temperature": 2.5, "top_k": 1, "top_p": 1.0, "min_p": 1.0, "draw": 0.999},
        {"allowed": frozenset({3}), "forbidden": frozenset({4})},
        {"forbidden": frozenset({4})},
    ],
)
def test_choices_in_range(setting: dict[str, Any]) -> None:
    Choice(**setting)


@pytest.mark.parametrize("forbidden", [frozenset({1, 2}), frozenset({1, 2, 3})])
def test_something_must_be_left_to_choose(forbidden: frozenset[int]) -> None:
    with pytest.raises(InvalidRequest, match="no token is left to choose from"):
        Choice(allowed=frozenset({1, 2}), forbidden=forbidden)


def test_allowing_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no token is left to choose from"):
        Choice(allowed=frozenset())


HUGE = 10**5000  # more digits than Python writes
READ = Block("notes")


@pytest.mark.parametrize(
    ("make", "said", "mend"),
    [
        (lambda: Row(View([READ]), "hi"), "is 'hi'; expected token ids", "engine.text.encode"),  # type: ignore[arg-type]
        (lambda: Row(View([READ]), "12"), "is '12'; expected token ids", "engine.text.encode"),  # type: ignore[arg-type]
        (lambda: Row(View([READ]), 5), "is 5; expected token ids", "(token,)"),  # type: ignore[arg-type]
        (lambda: Row(View([READ]), None), "is None; expected token ids", "engine.text.encode"),  # type: ignore[arg-type]
        (lambda: Row(View([READ]), [1.5]), r"is \[1.5\]; expected token ids", "engine.text.encode"),  # type: ignore[arg-type]
        (lambda: Row(View([READ]), [1], targets=3), "the targets of .* is 3; expected token", "(t"),  # type: ignore[arg-type]
        (lambda: Row(View([READ]), [1], draft="2"), "the draft of .* is '2'; expected token", "(t"),  # type: ignore[arg-type]
        (
            lambda: Row(View([READ]), [1], tally=3),  # type: ignore[arg-type]
            "the tally of a row is of type int",
            "choice.tally()",
        ),
        (
            lambda: Row(View([READ]), [1], writer=3),  # type: ignore[arg-type]
            "the writer of a row is of type int",
            "writer='solver'",
        ),
        (
            lambda: Row([READ], [1]),  # type: ignore[arg-type]
            "view of a row is of type list; expected a View",
            "Row(View([block])",
        ),
        (
            lambda: Row(READ, [1]),  # type: ignore[arg-type]
            "view of a row is of type Block; expected a View",
            "Row(View([block])",
        ),
        (
            lambda: Row(View([READ]), [1], 0.7),  # type: ignore[arg-type]
            "choice of a row is of type float",
            "temperature=0.7",
        ),
        (lambda: Step(Row(View([READ]), [1])), "one Row; expected a list of rows", "Step([Row("),  # type: ignore[arg-type]
        (lambda: Step([View([READ])]), "a View where a Row was expected", "Step([Row("),  # type: ignore[list-item]
        (
            lambda: Choice(allowed=[1]),  # type: ignore[arg-type]
            r"allowed is \[1\]; expected a frozenset",
            "allowed=frozenset",
        ),
        (
            lambda: Choice(forbidden=3),  # type: ignore[arg-type]
            "forbidden is 3; expected a frozenset",
            "forbidden=frozenset",
        ),
        (lambda: Choice(forbidden=()), r"forbidden is \(\); expected a frozenset", "frozenset({id"),  # type: ignore[arg-type]
        (
            lambda: Choice(allowed={1}),  # type: ignore[arg-type]
            r"allowed is \{1\}; expected a frozenset",
            "allowed=frozenset",
        ),
        (lambda: Choice(logit_bias=3), "logit_bias is 3; expected a mapping", "logit_bias={"),  # type: ignore[arg-type]
        (lambda: Choice(logit_bias={"a": 3}), "logit_bias has 'a': 3; expected token ids", ""),  # type: ignore[dict-item]
        (lambda: Choice(logit_bias={1: "b"}), "logit_bias has 1: 'b'; expected token ids", ""),  # type: ignore[dict-item]
        (lambda: Choice(mask=[1]), "mask is of type list; expected bytes", ""),  # type: ignore[arg-type]
        (
            lambda: Choice(logit_bias={1: HUGE}),
            "adds a number of more than 308 digits to token 1",
            "",
        ),
        (lambda: Choice(logit_bias={1: -HUGE}), "adds a number of more than 308 digits", ""),
        (
            lambda: Choice(logit_bias={1: Fraction(HUGE)}),  # type: ignore[dict-item]
            "adds a number of more than 308 digits",
            "",
        ),
        (lambda: Choice(logit_bias={-HUGE: 1.0}), "to token a number of more than 308 digits", ""),
        (lambda: Choice(logit_bias={1: math.nan}), "adds nan to token 1", ""),
        (lambda: Choice(logit_bias={1: math.inf}), "adds inf to token 1", ""),
        (lambda: Choice(logit_bias={1: True}), "logit_bias has 1: True; expected token ids", ""),
        (lambda: Choice(logit_bias={1: 100.5}), "logit_bias adds 100.5 to token 1; expected", ""),
        (lambda: Choice(allowed=HUGE), "allowed is a number of more than 308 digits", "frozenset"),  # type: ignore[arg-type]
        (
            lambda: Choice(allowed=frozenset({True})),
            "allowed has True; expected token ids",
            "encode",
        ),
        (lambda: Choice(forbidden=frozenset({"3"})), "forbidden has '3'; expected token", "encode"),  # type: ignore[arg-type]
    ],
)
def test_slips_say_what_was_found_and_how_to_mend_it(
    make: Callable[..., Any], said: str, mend: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        make()
    assert mend in caught.value.hint


def test_a_mistake_of_whatever_makes_the_rows_stays_its_own() -> None:
    def rows() -> Iterator[Row]:
        yield len(3)  # type: ignore[arg-type, misc]

    with pytest.raises(TypeError, match="has no len"):
        Step(rows())


def test_token_ids_of_any_kind_are_taken() -> None:
    ids: Any = np.array([3, 4])
    row = Row(View([Block("own")]), ids, targets=ids[1:], draft=ids)
    assert (row.feed, row.targets, row.draft) == ((3, 4), (4,), (3, 4))
    assert {type(token) for token in (*row.feed, *row.targets, *row.draft)} == {int}


@pytest.mark.parametrize("number", [np.int64, np.int32, torch.tensor])
def test_choices_in_the_numbers_of_another_library_are_held_in_our_own(
    number: Callable[[int], Any],
) -> None:
    """A choice stands in files, as settings do."""
    ids = frozenset({number(3), 4})
    found = Choice(allowed=ids, forbidden=frozenset({number(5)}), logit_bias={number(3): number(2)})
    assert found == Choice(allowed=frozenset({3, 4}), forbidden=frozenset({5}), logit_bias={3: 2})
    plain = json.loads(json.dumps(to_plain(found)))
    assert (plain["allowed"], plain["forbidden"]) == ([3, 4], [5])
    assert plain["logit_bias"] == {"3": 2}


def test_a_bias_in_the_numbers_of_another_library_is_held_in_our_own() -> None:
    """A choice stands in files, as settings do."""
    bias: dict[Any, Any] = {np.int64(3): np.float32(0.5), 4: 1}
    choice = Choice(logit_bias=bias)
    assert choice == Choice(logit_bias={3: 0.5, 4: 1})
    assert json.loads(json.dumps(to_plain(choice)))["logit_bias"] == {"3": 0.5, "4": 1}


def test_a_bias_of_own_numbers_needs_no_closer_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice is made anew for every token of a text with a grammar, and a bias may have hundreds of parts."""
    bias = dict.fromkeys(range(300), 0.5) | {7: -100, 8: 100.0}

    def looked_at(*part: object) -> None:
        raise AssertionError(part)

    monkeypatch.setattr(step, "_own_bias", looked_at)
    choice = replace(Choice(logit_bias=bias), mask=b"\xff")
    assert choice.logit_bias == bias
    for wrong in ({-1: 0.5}, {1: 100.5}, {1: math.nan, 2: 1.0}, {1: 2.0, 2: math.nan}, {1: True}):
        with pytest.raises(AssertionError):
            Choice(logit_bias=wrong)


def test_a_feed_with_a_number_beyond_measure_is_named() -> None:
    for feed in ([1.5, 10**5000], [[10**5000]]):
        with pytest.raises(InvalidRequest, match="expected token ids"):
            Row(View([Block()]), feed)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [b"a", {3}, {3: 4}])
def test_targets_stand_in_an_order_too(wrong: Any) -> None:
    with pytest.raises(
        InvalidRequest, match=r"the targets of the row that writes to .* is of type"
    ):
        Row(View([Block()]), (1, 2), targets=wrong)


@pytest.mark.parametrize("wrong", [3, "ab", ()])
def test_what_cannot_be_done_meanwhile_is_named(wrong: Any) -> None:
    """Its error was swallowed, and the work done late in every pass."""
    with pytest.raises(InvalidRequest, match="to a step as `meanwhile`; expected a function"):
        Step([Row(View([Block()]), (1,))], wrong)
