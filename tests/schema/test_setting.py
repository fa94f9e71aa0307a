"""A setting is declared at its field: default, help and range are checked and quoted from there."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import manyhands
from manyhands.cache.layouts import LAYOUTS
from manyhands.errors import InvalidRequest
from manyhands.schema.plain import to_plain
from manyhands.schema.setting import (
    Setting,
    check,
    in_brief,
    like,
    setting,
    settings_of,
    whole_number,
)
from manyhands.strategies.settings import Away, EndSettings, SharedSettings, TeamSettings

HUGE = 10**5000  # more digits than Python writes
LONG = "a number of more than 308 digits"


@dataclass(frozen=True)
class Small:
    workers: int = setting(2, "How many.", at_least=1, at_most=256, names=("--workers", "-n"))
    every: int = setting(10, "How often.", at_least=0, zero="never", unit="tokens")
    share: float = setting(0.5, "How much.", above=0, at_most=1)
    draw: float = setting(0.0, "Luck.", at_least=0, below=1)
    layout: str = setting("combined", "Who reads what.", one_of=LAYOUTS)
    lengths: tuple[int, ...] = setting((), "Of texts.", at_least=1)
    memory: int | None = setting(None, "Tokens held.", at_least=1, unset="what fits")
    words: dict[int, str] = setting({}, "Said first.", by="code")
    seed: int = setting(0, "Luck.")
    reply: bool = setting(True, "Whether to reply.")
    snapshots: tuple[int, ...] = setting((), "Budgets.")
    sizes: tuple[int, ...] | None = setting(None, "Of teams.", at_least=1, unset="all")
    free: str = "no setting"

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize("low", ["at_least", "above"])
@pytest.mark.parametrize("high", ["at_most", "below"])
def test_an_end_belongs_to_a_range_or_not(low: str, high: str) -> None:
    bounds: dict[str, Any] = {low: 0, high: 1}
    one = Setting("Luck.", **bounds)
    assert [one.allows(value) for value in (-1, 0, 0.5, 1, 2)] == [
        False,
        low == "at_least",
        True,
        high == "at_most",
        False,
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": 0}, "workers is 0; expected 1 to 256"),
        ({"workers": 257}, "workers is 257; expected 1 to 256"),
        ({"workers": None}, "workers is None; expected a whole number, 1 to 256"),
        ({"workers": "2"}, "workers is '2'; expected a whole number, 1 to 256"),
        ({"every": -1}, "every is -1; expected 0 (never) or more tokens"),
        ({"share": 0.0}, "share is 0.0; expected above 0, at most 1"),
        ({"share": math.nan}, "share is nan; expected above 0, at most 1"),
        ({"draw": 1.0}, "draw is 1.0; expected 0 or more, below 1"),
        ({"layout": "round"}, "layout is 'round'; expected one of " + ", ".join(LAYOUTS)),
        ({"layout": ["combined"]}, "layout is ['combined']; expected one of " + ", ".join(LAYOUTS)),
        ({"lengths": (3, 0)}, "lengths has 0; expected 1 or more"),
        ({"memory": 0}, "memory is 0; expected 1 or more"),
        ({"memory": math.inf}, "memory is inf; expected 1 or more"),
        ({"workers": 2.0}, "workers is 2.0; expected a whole number, 1 to 256"),
        ({"workers": (2,)}, "workers is (2,); expected a whole number, 1 to 256"),
        ({"workers": True}, "workers is True; expected a whole number, 1 to 256"),
        ({"memory": 1e3}, "memory is 1000.0; expected a whole number, 1 or more"),
        ({"memory": True}, "memory is True; expected a whole number, 1 or more"),
        ({"share": True}, "share is True; expected a number, above 0, at most 1"),
        ({"lengths": (3, 2.5)}, "lengths has 2.5; expected a whole number, 1 or more"),
        ({"lengths": [3, 0]}, "lengths has 0; expected 1 or more"),
        ({"seed": "7"}, "seed is '7'; expected a whole number"),
        ({"seed": None}, "seed is None; expected a whole number"),
        ({"reply": "false"}, "reply is 'false'; expected True or False"),
        ({"snapshots": ("64",)}, "snapshots has '64'; expected a whole number"),
        ({"sizes": (2, 0)}, "sizes has 0; expected 1 or more"),
        ({"workers": HUGE}, "workers is a number of more than 308 digits; expected 1 to 256"),
        ({"share": HUGE}, "share is a number of more than 308 digits; expected above 0, at most 1"),
        (
            {"every": HUGE},
            "every is a number of more than 308 digits; expected 0 (never) or more tokens",
        ),
        ({"seed": -HUGE}, f"seed is {LONG}; expected a whole number of at most 308 digits"),
        (
            {"snapshots": (1, HUGE)},
            f"snapshots has {LONG}; expected a whole number of at most 308 digits",
        ),
        ({"snapshots": HUGE}, f"snapshots is {LONG}; expected a tuple of them"),
        (
            {"share": (HUGE,)},
            "share is a tuple with a number of too many digits; expected a number, above 0, at most 1",
        ),
        ({"reply": HUGE}, f"reply is {LONG}; expected True or False"),
        ({"layout": HUGE}, f"layout is {LONG}; expected one of " + ", ".join(LAYOUTS)),
    ],
)
def test_what_is_out_of_range(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Small(**given)  # type: ignore[arg-type]  # wrong on purpose
    assert str(caught.value) == said


def test_numbers_of_any_library_are_numbers() -> None:
    given = {"workers": np.int64(3), "share": np.float32(0.5), "seed": np.int32(4), "draw": 0}
    assert Small(**given) == replace(Small(), workers=3, share=0.5, seed=4)  # type: ignore[arg-type]
    assert Small(share=1, snapshots=(1, 2), sizes=(3,), memory=None).share == 1


@pytest.mark.parametrize("number", [np.array, torch.tensor])
def test_numbers_of_other_libraries_are_held_as_our_own(number: Callable[[object], Any]) -> None:
    """Settings are written to files, and True and False of another library are that."""
    found = Small(workers=number(3), share=number(0.5), reply=number(False), memory=number(7))
    assert found == Small(workers=3, share=0.5, reply=False, memory=7)
    lengths, snapshots = number([3, 4]), [number(1)]
    found = Small(lengths=lengths, snapshots=snapshots, sizes=number([2]), words={1: "a"})  # type: ignore[arg-type]
    assert found == Small(lengths=(3, 4), snapshots=(1,), sizes=(2,), words={1: "a"})
    assert json.loads(json.dumps(to_plain(found)))["lengths"] == [3, 4]


def test_scalars_of_numpy_are_held_as_our_own() -> None:
    found = Small(workers=np.int64(3), share=np.float32(0.5), reply=np.bool_(False))  # type: ignore[arg-type]
    assert [*map(type, (found.workers, found.share, found.reply))] == [int, float, bool]
    snapshots: Any = (np.int64(3),)
    plain = to_plain(replace(found, snapshots=snapshots, words={}))
    assert json.loads(json.dumps(plain))["snapshots"] == [3]


def test_what_is_listed_in_another_way_is_a_tuple() -> None:
    """A generator is gone through once, and a list may change."""
    found = Small(lengths=(size for size in (3, 4)), snapshots=range(2), sizes=[1])  # type: ignore[arg-type]
    assert (found.lengths, found.snapshots, found.sizes) == ((3, 4), (0, 1), (1,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"workers": np.array([2, 3])},
            r"workers is array\(\[2, 3\]\); expected a whole number, 1 to 256",
        ),
        (
            {"workers": torch.tensor([2, 3])},
            r"workers is tensor\(\[2, 3\]\); expected a whole number, 1 to 256",
        ),
        ({"lengths": np.array(3)}, r"lengths is array\(3\); expected a tuple of them"),
        ({"snapshots": np.array([[1, 2]])}, r"snapshots has array\(\[1, 2\]\); expected a whole"),
        ({"sizes": 3}, "sizes is 3; expected a tuple of them"),
        ({"workers": torch.tensor(2.5)}, "workers is 2.5; expected a whole number"),
        ({"reply": np.int64(1)}, "reply is 1; expected True or False"),
    ],
)
def test_many_numbers_are_no_number(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{said}"):
        Small(**given)


def test_the_ends_of_a_range_belong_to_it() -> None:
    for given in ({"workers": 256}, {"every": 0}, {"share": 1.0}, {"lengths": (1,)}):
        assert Small(**given) == replace(Small(), **given)


def test_the_field_stays_an_ordinary_one() -> None:
    assert Small() == Small(2, 10, 0.5, 0.0, "combined", (), None, {})
    assert Small().words is not Small().words
    assert set(settings_of(Small)) == {one.name for one in fields(Small)} - {"free"}
    assert settings_of(Small)["workers"].help == "How many."


def test_a_setting_that_has_to_be_given() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Asked:
        task: str = setting(..., "What is asked.")

    with pytest.raises(TypeError, match="task"):
        Asked()
    assert Asked(task="x").task == "x"


def test_a_setting_like_another() -> None:
    @dataclass(frozen=True)
    class Other:
        workers: int = like(Small, "workers", default=0, at_least=0, zero="one for each")

        def __post_init__(self) -> None:
            check(self)

    own, first = settings_of(Other)["workers"], settings_of(Small)["workers"]
    assert Other().workers == 0
    assert own == replace(first, at_least=0, zero="one for each")
    with pytest.raises(InvalidRequest, match=r"workers is 300; expected 0 \(one for each\) to 256"):
        Other(300)


def test_what_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="at_lest"):
        setting(1, "How many.", at_lest=1)
    assert not Setting("No bounds.").is_bounded


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SharedSettings(choice=1.2), "choice is 1.2; expected a Choice"),  # type: ignore[arg-type]
        (lambda: TeamSettings(choice=None), "choice is None; expected a Choice"),  # type: ignore[arg-type]
        (lambda: TeamSettings(end=3), "end is 3; expected an EndSettings"),  # type: ignore[arg-type]
        (lambda: TeamSettings(snapshots=5), "snapshots is 5; expected a tuple"),  # type: ignore[arg-type]
        (lambda: SharedSettings(stop="END"), "stop is 'END', one text; expected a tuple"),  # type: ignore[arg-type]
        (lambda: EndSettings(stop="END"), "stop is 'END', one text; expected a tuple"),  # type: ignore[arg-type]
        (lambda: TeamSettings(insertions=3), "insertions is 3; expected a mapping"),  # type: ignore[arg-type]
        (lambda: TeamSettings(insertions={3: "a"}), "insertions has 3: 'a'; expected numbers"),  # type: ignore[dict-item]
        (lambda: TeamSettings(insertions={(0, 1): 2}), r"insertions has \(0, 1\): 2; expected"),  # type: ignore[dict-item]
        (lambda: TeamSettings(insertions={(0, "b"): "a"}), r"insertions has \(0, 'b'\): 'a'"),  # type: ignore[dict-item]
        (lambda: TeamSettings(away=(3,)), "away has 3; expected pauses of workers"),  # type: ignore[arg-type]
        (lambda: Away(0, 2.5, 3), "first is 2.5; expected a whole number, 1 or more"),  # type: ignore[arg-type]
        (lambda: Away(-1, 2, 3), "worker is -1; expected 0 or more"),
        (
            lambda: TeamSettings(workers=3, most_workers=2),
            "workers is 3; expected at most most_workers, 2",
        ),
    ],
)
def test_a_value_of_another_kind_than_the_default(make: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        make()
    TeamSettings(snapshots=[1, 2], insertions={})  # type: ignore[arg-type]


def test_places_in_the_numbers_of_another_library_are_held_in_our_own() -> None:
    one = np.int64(1)
    found = TeamSettings(away=(Away(one, one, one),), insertions={(one, one): "a"})  # type: ignore[arg-type, dict-item]
    assert found == TeamSettings(away=(Away(1, 1, 1),), insertions={(1, 1): "a"})
    assert json.loads(json.dumps(to_plain(found)))["insertions"] == [[1, 1, "a"]]


def settings_with_numbers() -> Iterator[tuple[type[Any], str]]:
    """Every field of every class of settings that holds one number."""
    for path in sorted(Path(manyhands.__path__[0]).rglob("*.py")):
        if "settings.py" in path.name or "= setting(" in path.read_text(encoding="utf-8"):
            place = path.relative_to(manyhands.__path__[0]).with_suffix("")
            room = importlib.import_module(".".join(("manyhands", *place.parts)))
            kinds = [each for each in vars(room).values() if isinstance(each, type)]
            for kind in kinds:
                if is_dataclass(kind) and kind.__module__ == room.__name__:
                    found = settings_of(kind)
                    numbers = [one for one in fields(kind) if one.name in found]
                    yield from (
                        (kind, one.name) for one in numbers if re.match("int|float", str(one.type))
                    )


NO_NUMBERS = {
    "huge": HUGE,
    "low": -HUGE,
    "large": 10**400,
    "nan": math.nan,
    "-inf": -math.inf,
    "a truth": True,
    "complex": 1j,
}


@pytest.mark.parametrize("number", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_no_setting_holds_what_is_no_number_to_work_with(number: Any) -> None:
    """Each class checks itself, and names the field in its own error, whatever it is made of."""
    seen = 0
    for kind, name in settings_with_numbers():
        needed = [one.name for one in fields(kind) if one.default is one.default_factory]
        words = {one: found.one_of for one, found in settings_of(kind).items() if found.one_of}
        given = {one: next(iter(words.get(one, (1,)))) for one in needed}
        with pytest.raises(InvalidRequest, match=f"^{name} is "):
            kind(**{**given, name: number})
        seen += 1
    assert seen > 100


def test_what_is_shown_in_brief() -> None:
    """`reprlib` of Python 3.11 raises ValueError for a list with a number of thousands of digits."""
    assert in_brief([1, 2]) == "[1, 2]"
    assert len(in_brief(list(range(10_000)))) < 100
    assert in_brief(10**400) == "a number of more than 308 digits"
    for hidden in ([10**5000], {"a": 10**5000}, (1, [10**5000])):
        assert in_brief(hidden)


def test_a_whole_number_is_pythons_own() -> None:
    for given in (3, np.int8(3), torch.tensor(3)):
        found = whole_number("count", given, 1)
        assert (found, type(found)) == (3, int)
    for wrong in (0, -1, 3.0, "3", True, None, float("nan"), np.ones(2)):
        with pytest.raises(
            InvalidRequest, match=r"count is .*; expected a whole number, 1 or more"
        ):
            whole_number("count", wrong, 1)
