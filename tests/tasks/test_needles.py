"""Needles: every fact stands once in the text, every question has its own answer there."""

from __future__ import annotations

import random
import re

import pytest

from manyhands.errors import InvalidRequest
from manyhands.tasks.needles import COLOURS, ask, haystack, is_held_out


def test_256_questions_over_one_text() -> None:
    hay = haystack(random.Random(1), 64, 40)
    assert len(hay.needles) == 256
    assert len({needle.question for needle in hay.needles}) == 256
    assert {needle.answer for needle in hay.needles} <= set(COLOURS)
    assert haystack(random.Random(1), 64, 40) == hay
    assert haystack(random.Random(2), 64, 40) != hay


def test_the_text_says_what_the_answers_say() -> None:
    hay = haystack(random.Random(3), 20, 30)
    for needle in hay.needles:
        asked = r"What colour (?:is|are) the (\w+) of the dog named (\w+)\? Box the colour\."
        match = re.fullmatch(asked, needle.question)
        assert match is not None
        part, name = match.groups()
        (sentence,) = re.findall(rf"The dog named {name} has [^.]*\.", hay.document)
        (found,) = re.findall(rf"\b{part} that (?:is|are) (\w+)", sentence)
        assert found == needle.answer
    assert ask(hay.document, "Why?") == hay.document + "\n\nWhy?"


def test_facts_and_other_sentences_are_mixed() -> None:
    hay = haystack(random.Random(4), 30, 100)
    sentences = re.findall(r"[^.]+\.", hay.document)
    assert len(sentences) == 130
    places = [place for place, s in enumerate(sentences) if "The dog named" in s]
    assert len(places) == 30
    assert places[0] < 40
    assert places[-1] > 90
    assert max(len(p.split(". ")) for p in hay.document.split("\n\n")) <= 8
    assert [dog.name for dog in hay.dogs] == re.findall(r"The dog named (\w+)", hay.document)
    assert haystack(random.Random(4), 5, 0).document.count(".") == 5


def test_held_out_names_are_never_trained() -> None:
    for held_out in (False, True):
        hay = haystack(random.Random(5), 200, 0, held_out)
        assert len({dog.name for dog in hay.dogs}) == 200
        assert {is_held_out(dog.name) for dog in hay.dogs} == {held_out}


def test_what_cannot_be_asked_is_refused() -> None:
    for count in (0, 2001):
        with pytest.raises(InvalidRequest, match=f"a text about {count} dogs"):
            haystack(random.Random(0), count, 5)
    with pytest.raises(InvalidRequest, match="-1 other sentences"):
        haystack(random.Random(0), 1, -1)
