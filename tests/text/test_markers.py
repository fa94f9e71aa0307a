"""Marks are found in text, however it is cut, and nothing else is mistaken for one."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.text.markers import MarkerProfile, MarkerWatch, TitleReader

PROFILE = MarkerProfile()
BOTH = (PROFILE.marker, PROFILE.terminator)


def cuts(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", range(1, 12))
def test_the_first_mark_is_found_however_the_text_is_cut(size: int) -> None:
    watch, certain = MarkerWatch(["####"]), ""
    for piece in cuts("# a ## b ### c\n####Anna", size):
        if watch.found is None:
            certain += watch.push(piece)
    assert (certain, watch.found, watch.pending) == ("# a ## b ### c\n", "####", "")
    assert "Anna".startswith(watch.rest)


def test_what_may_become_a_mark_is_held_back_and_no_more() -> None:
    watch = MarkerWatch(BOTH)
    assert [watch.push(piece) for piece in ("a", "b##", "#", "c", "#")] == [
        "a",
        "b",
        "",
        "###c",
        "",
    ]
    assert (watch.pending, watch.found) == ("#", None)


def test_the_longer_of_two_marks_wins_where_both_stand() -> None:
    watch = MarkerWatch(BOTH)
    assert watch.push("so ####%%%% and") == "so "
    assert (watch.found, watch.rest) == ("####%%%%", " and")
    watch = MarkerWatch(BOTH)
    watch.push("x####y####%%%%")
    assert (watch.found, watch.rest) == ("####", "y####%%%%")


def test_a_mark_that_overlaps_itself() -> None:
    watch = MarkerWatch(["[[b"])
    assert watch.push("[[") + watch.push("[") + watch.push("b!") == "["
    assert (watch.found, watch.rest) == ("[[b", "!")


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(
    ("text", "outcome", "title"),
    [
        ("Anna Lee:", "title", "Anna Lee"),
        (" 12 : ", "title", "12"),
        ("%%%%", "closed", ""),
        (" %%%%", "closed", ""),
        ("%%: a", "title", "%%"),
        ("%%%\nso", "broken", ""),
        ("Heading\n", "broken", ""),
        ("\nSo: a", "broken", ""),
        (":", "broken", ""),
        ("a####b:", "broken", ""),
        ("Anna", None, ""),
        ("%%%", None, ""),
        ("", None, ""),
    ],
)
def test_what_stands_behind_a_marker(size: int, text: str, outcome: str | None, title: str) -> None:
    reader = TitleReader(PROFILE)
    for piece in cuts(text, size):
        if reader.outcome is None:
            reader.push(piece)
    assert (reader.outcome, reader.title) == (outcome, title)


def test_what_a_token_says_beyond_the_title_is_known() -> None:
    reader = TitleReader(PROFILE)
    reader.push("Anna: is")
    assert reader.rest == " is"
    reader = TitleReader(PROFILE)
    reader.push("%%%%\nSo")
    assert reader.rest == "\nSo"


def test_other_marks() -> None:
    profile = MarkerProfile("<b>", "=>", "...", "</all>")
    assert (profile.closing, profile.title("x"), profile.between_titles()) == (
        "</all>",
        "<b>x=>",
        "...\n<b>",
    )
    reader = TitleReader(profile)
    reader.push("a = b =")
    assert reader.outcome is None
    reader.push("> c")
    assert (reader.title, reader.rest) == ("a = b", " c")


@pytest.mark.parametrize(
    "marks",
    [
        {"marker": ""},
        {"title_end": " "},
        {"placeholder": "a\nb"},
        {"terminator": "####"},
        {"placeholder": "..####"},
        {"marker": 4},
    ],
)
def test_marks_that_cannot_be_told_apart_are_refused(
    marks: dict[str, Any],
) -> None:
    with pytest.raises(InvalidRequest):
        MarkerProfile(**marks)
