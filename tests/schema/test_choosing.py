"""`name=value` into settings, typed by the dataclass."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, get_type_hints

import numpy as np
import pytest

from manyhands.errors import InvalidRequest
from manyhands.schema.choosing import choosable, choose, pairs, read
from manyhands.schema.setting import setting, settings_of
from manyhands.strategies.methods import METHODS
from manyhands.strategies.settings import SharedSettings, SoloSettings, TeamSettings


def test_values_get_the_types_of_their_fields() -> None:
    chosen = pairs(["workers=3", "layout=contiguous", "end.finisher=no", "choice.temperature=0.6"])
    settings = choose(TeamSettings(), {**chosen, "end.finisher_tokens": "16", "snapshots": "2,4"})
    assert (settings.workers, settings.layout, settings.snapshots) == (3, "contiguous", (2, 4))
    assert settings.end.finisher is False
    assert settings.end.finisher_tokens == 16
    assert settings.choice.temperature == 0.6
    assert settings.check_every == TeamSettings().check_every


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *((bool, text, True) for text in ("true", "True", "yes", "YES", "1")),
        *((bool, text, False) for text in ("false", "False", "no", "NO", "0")),
        (int, "7", 7),
        (int | None, "7", 7),
        (float | None, "0.5", 0.5),
        (str | None, "7", "7"),
        (tuple[int, ...], "7, 8", (7, 8)),
        (tuple[int, ...], " ", ()),
        (Mapping[int, float], "7:-5,8:2,", {7: -5.0, 8: 2.0}),
    ],
)
def test_a_text_stands_for_a_value_of_its_type(kind: Any, text: str, value: Any) -> None:
    found = read("it", kind, text)
    assert (found, type(found)) == (value, type(value))


def declared(kind: type, prefix: str = "") -> Iterator[str]:
    """The paths of all settings that are declared for users."""
    for name, one in settings_of(kind).items():
        if one.by != "code":
            inner = get_type_hints(kind)[name]
            is_more = isinstance(inner, type) and is_dataclass(inner)
            yield from declared(inner, f"{prefix}{name}.") if is_more else [prefix + name]


@pytest.mark.parametrize("kind", [SharedSettings, *(m.settings for m in METHODS.values())])
def test_whatever_is_declared_for_users_can_be_chosen(kind: type[Any]) -> None:
    assert set(choosable(kind())) == set(declared(kind))
    assert choose(kind(), {}) == kind()


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"wrkers": "3"}, "TeamSettings have no 'wrkers'"),
        ({"end": "no"}, "have no 'end'"),
        ({"end.nothing": "1"}, "have no 'end.nothing'"),
        ({"workers": "three"}, "workers is 'three'; expected a whole number"),
        ({"end.finisher": "maybe"}, "end.finisher is 'maybe'; expected true or false"),
        ({"choice.draw": "0.5"}, "have no 'choice.draw'"),
        ({"layout": "round"}, "layout is 'round'; expected one of"),
        ({"workers": "0"}, "workers is 0; expected 1 to 256"),
        ({"snapshots": "1,x"}, "snapshots is '1,x'; expected numbers with commas"),
        ({"away": "1"}, "have no 'away'"),
    ],
)
def test_what_cannot_be_is_said(chosen: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as found:
        choose(TeamSettings(), chosen)
    if "have no" in said:
        assert "check_every" in found.value.hint
        assert "draw" not in found.value.hint


@dataclass(frozen=True)
class OddlyBounded:
    """Bounds that JSON has no numbers for, and those of another library."""

    most: float = setting(1.0, "a", above=-math.inf, at_most=math.inf)
    rounds: int = setting(np.int64(2), "b", at_least=np.int64(1), below=np.float32(9.5))


def test_bounds_are_told_as_numbers_that_json_has() -> None:
    told = {path: one.schema for path, one in choosable(OddlyBounded()).items()}
    assert told == {
        "most": {"type": "number", "default": 1.0, "description": "a"},
        "rounds": {
            "type": "integer",
            "minimum": 1,
            "exclusiveMaximum": 9.5,
            "default": 2,
            "description": "b",
        },
    }
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_a_pair_needs_a_sign() -> None:
    with pytest.raises(InvalidRequest, match="expected name=value"):
        pairs(["layout"])
    with pytest.raises(InvalidRequest, match="twice: --set workers=2 and --set workers=3"):
        pairs(["workers=2", " workers = 3"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_given_what_an_exam_gives(method: str) -> None:
    own = METHODS[method].settings()
    settings = choose(own, {"budget": 9, "snapshots": (3,), "seed": 1, "end.reply": False})
    assert (settings.budget, settings.snapshots, settings.end.reply) == (9, (3,), False)
    assert "choice.temperature" in choosable(own)


def test_one_alone_has_no_layout() -> None:
    with pytest.raises(InvalidRequest, match="SoloSettings have no 'layout'"):
        choose(SoloSettings(), {"layout": "combined"})
