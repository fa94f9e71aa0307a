"""Any frozen dataclass goes to plain data and back; whatever does not fit is named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from manyhands.schema.plain import from_plain, hold_own, plain_as, to_plain

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass(frozen=True)
class Inner:
    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class Outer:
    kind: ClassVar[str] = "outer"

    count: int = 1
    flag: bool = False
    inner: Inner = Inner("a")
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (1, "x")
    some: frozenset[int] = frozenset()
    maybe: frozenset[int] | None = None
    by_number: Mapping[int, str | None] = field(default_factory=dict)
    by_place: Mapping[tuple[int, int], str] = field(default_factory=dict)
    words: Sequence[str] = ()
    way: Literal["up", "down"] = "up"
    anything: Any = None


FULL = Outer(
    count=3,
    flag=True,
    inner=Inner("b", 2.5),
    many=(Inner("c"), Inner("d", 0.0)),
    pair=(7, "y"),
    some=frozenset({5, 3}),
    maybe=frozenset({9}),
    by_number={4: "four", -5: None},
    by_place={(2, 1): "later", (0, 3): "first"},
    words=("one", "two"),
    way="down",
    anything={"deep": [1, None]},
)


@pytest.mark.parametrize("value", [Outer(), FULL])
def test_there_and_back_through_json(value: Outer) -> None:
    assert from_plain(Outer, to_plain(value)) == value
    assert from_plain(Outer, json.loads(json.dumps(to_plain(value)))) == value


def test_what_json_lacks() -> None:
    plain = to_plain(FULL)
    assert plain["some"] == [3, 5]
    assert plain["by_place"] == [[0, 3, "first"], [2, 1, "later"]]
    assert "kind" not in plain


def test_an_integer_is_a_float_but_no_other_way_round() -> None:
    assert from_plain(Inner, {"name": "a", "weight": 3}) == Inner("a", 3.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", "1"),
        ("count", True),
        ("count", 1.5),
        ("flag", 1),
        ("inner", "a"),
        ("inner", {}),
        ("inner", {"name": "a", "colour": "red"}),
        ("many", {"name": "a"}),
        ("many", [{"name": 5}]),
        ("pair", [1]),
        ("pair", ["x", 1]),
        ("some", "35"),
        ("some", ["3"]),
        ("maybe", 5),
        ("by_number", {"four": "x"}),
        ("by_number", 5),
        ("by_number", {"9" * 5000: "x"}),
        ("by_place", [[1, "x"]]),
        ("by_place", [5]),
        ("words", "one"),
        ("way", "left"),
        ("colour", "red"),
        ("inner", {"name": "a", "weight": 10**400}),
        ("many", [10**5000]),
    ],
)
def test_what_does_not_fit(field: str, value: Any) -> None:
    with pytest.raises(TypeError):
        from_plain(Outer, {field: value})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"name": "a", "colour": "red"},
            "Inner has no field 'colour'; its fields are name, weight",
        ),
        ({"weight": 3}, "Inner lacks name"),
    ],
)
def test_fields_that_are_too_many_or_too_few_are_named(value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{said}"):
        from_plain(Inner, value)


# -- as annotations say it --------------------------------------------------------------------------

OTHERS = Outer(
    count=np.int64(3),  # type: ignore[arg-type]
    flag=torch.tensor(True),  # type: ignore[arg-type]
    inner=Inner("b", np.float32(2.5)),  # type: ignore[arg-type]
    pair=(torch.tensor(7), np.str_("y")),  # type: ignore[arg-type]
    some=frozenset({np.int32(5), np.int32(3)}),  # type: ignore[arg-type]
    by_number={np.int64(4): "four"},  # type: ignore[dict-item]
    by_place={(np.int64(2), 1): "later"},  # type: ignore[dict-item]
    words=["one"],
    anything={"deep": np.ones((1, 2)), "one": torch.tensor(0.5, dtype=torch.bfloat16)},
)
OWN = Outer(
    count=3,
    flag=True,
    inner=Inner("b", 2.5),
    pair=(7, "y"),
    some=frozenset({5, 3}),
    by_number={4: "four"},
    by_place={(2, 1): "later"},
    words=("one",),
    anything={"deep": [[1.0, 1.0]], "one": 0.5},
)


@pytest.mark.parametrize("write", [to_plain, lambda value: plain_as(Outer, value)])
@pytest.mark.parametrize(("value", "comes_back"), [(FULL, FULL), (OTHERS, OWN), (OWN, OWN)])
def test_numbers_of_other_libraries_come_back_as_pythons_own(
    write: Any, value: Outer, comes_back: Outer
) -> None:
    written = json.dumps(write(value), allow_nan=False)
    assert from_plain(Outer, json.loads(written)) == comes_back


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"count": "3"}, "count is '3'; expected a whole number"),
        ({"count": np.float64(3)}, "count is .*; expected a whole number"),
        ({"count": True}, "count is True; expected a whole number"),
        ({"count": np.ones(2)}, "count is array.*; expected a whole number"),
        ({"flag": 1}, "flag is 1; expected true or false"),
        ({"inner": "b"}, "inner is 'b'; expected Inner"),
        ({"inner": Inner("b", float("nan"))}, "weight is nan; expected a finite number"),
        ({"inner": Inner("b", 10**400)}, "weight is a number of more than 308 digits; expected"),
        ({"many": "one"}, "many is 'one'; expected a list"),
        ({"many": (1,)}, "many is 1; expected Inner"),
        ({"pair": (1, "x", 2)}, "pair is .*; expected a list"),
        ({"some": 3}, "some is 3; expected frozenset"),
        ({"maybe": (None,)}, "maybe is .*; expected frozenset or nothing"),
        ({"by_number": [1]}, "by_number is .*; expected a mapping"),
        ({"by_number": {"4": "four"}}, "by_number is '4'; expected a whole number"),
        ({"words": (b"one",)}, "words is b'one'; expected a text"),
        ({"way": "left"}, "way is 'left'; expected"),
        ({"anything": {"where": Path("x")}}, "where is PosixPath.*; expected numbers, texts, None"),
        ({"anything": [float("inf")]}, "anything is inf; expected a finite number"),
        ({"anything": {(1, 2): {3}, 4: 5}}, "."),
    ],
)
def test_what_would_not_come_back_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        plain_as(Outer, Outer(**wrong))


def test_an_annotation_that_no_json_says() -> None:
    @dataclass(frozen=True)
    class Holder:
        array: np.ndarray

    @dataclass(frozen=True)
    class Unread:
        price: Decimal

    with pytest.raises(TypeError, match="array is a ndarray, which is no plain data"):
        plain_as(Holder, Holder(np.ones(2)))
    with pytest.raises(TypeError, match="the fields of Unread cannot be read: name 'Decimal'"):
        plain_as(Unread, Unread(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["ab", {"a": 1, "b": 2}, ("a",), ("a", "b", "c"), None, 2])
def test_a_pair_is_written_as_one_and_nothing_else(wrong: Any) -> None:
    kind = tuple[str, str]
    assert plain_as(kind, ("a", "b")) == plain_as(kind, ["a", "b"]) == ["a", "b"]
    with pytest.raises(TypeError, match="expected a list"):
        plain_as(kind, wrong)
    with pytest.raises(TypeError, match="expected a list"):
        from_plain(kind, list(wrong) if isinstance(wrong, tuple) else wrong)


def test_a_field_that_is_made_is_not_written() -> None:
    @dataclass(frozen=True)
    class Counted:
        words: tuple[str, ...]
        count: int = field(init=False, default=2)

    assert plain_as(Counted, Counted(("a",))) == {"words": ["a"]}
    assert from_plain(Counted, {"words": ["a"]}) == Counted(("a",))


def test_an_object_holds_pythons_own() -> None:
    @dataclass(frozen=True)
    class Held:
        count: int
        words: tuple[str, ...] = ()
        by_number: Mapping[int, str | None] = field(default_factory=dict)
        steps: tuple[Inner, ...] = ()

        def __post_init__(self) -> None:
            hold_own(self, Held)

    held = Held(np.int64(3), ["a"], {np.int8(1): None}, [Inner("b")])  # type: ignore[arg-type, dict-item]
    assert held == Held(3, ("a",), {1: None}, (Inner("b"),))
    assert (type(held.count), type(held.words)) == (int, tuple)
    with pytest.raises(TypeError, match="words is 'ab'; expected a list"):
        Held(1, "ab")  # type: ignore[arg-type]
