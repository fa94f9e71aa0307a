"""Any frozen dataclass goes to plain data and back; whatever does not fit is named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from manyhands.schema.plain import from_plain, to_plain


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
