"""Stories that were written one by one: whole, true, of one answer, and not those of an exam."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from manyhands.tasks.arithmetic.templates.fresh import FRESH
from manyhands.tasks.arithmetic.templates.late import LATE
from manyhands.tasks.arithmetic.templates.template import PLACEHOLDER, Template
from manyhands.tasks.arithmetic.templates.written import FILES, Written, written_stories
from manyhands.tasks.arithmetic.words import WORD, told_apart, word_problem
from tests.covers import is_every_case

MOST_STORIES = 14_000  # tests are found before stories are read
EQUATION = re.compile(r"(\d+)([+*-])(\d+)=(\d+)")
# Numbers that stories tell in words.
SAID = {
    1: "one|single|a ",
    2: "twice|double|two|pair|both|half|couple|again|return|as many|there and back|right|round",
    3: "three|third|thrice|treble|triple",
    4: "four",
    5: "five|school day|Monday to Friday",
    6: "six|half a dozen",
    7: "seven|week|every day|Monday to Sunday",
    8: "eight|spider|octopus",
    9: "nine",
    10: "ten",
    12: "twelve|dozen|year",
    20: "twenty",
    24: "hours|day",
    30: "thirty",
    50: "fifty",
    60: "sixty|hour|minute",
    100: "hundred|per cent|percent|metre",
}
# Numbers that follow from what a story tells.
FOLLOWS = {
    "pills_three_times": 3,
    "age_sum_twins": 2,
    "there_and_back": 2,
    "there_and_back_again": 2,
    "aquarium_as_many_as_both": 2,
    "voyage_of_the_swallow": 2,
    "uncle_mice_cheese": 6,
    "opening_hours": 5,
    "fingers_rings": 2,
    "apiece_shells": 3,
    "dog_biscuits": 2,
    "leaflets_houses_false": 2,
    "staircase_vases": 2,
    "violin_practice": 2,
    "twins_weights": 2,
    "transfer_equal_gap": 2,
    "pillars_temple": 2,
}
_PHRASE = 5  # words
MOST_ALIKE = 0.2


def test_every_story_is_there_once() -> None:
    stories = written_stories()
    assert len(FILES) == 24
    assert 13_000 < len(stories) <= MOST_STORIES
    assert max(Counter(story.name for story in stories).values()) == 1
    steps = Counter(story.work.count(";") + 1 for story in stories)
    assert min(steps[n] for n in (1, 2, 3)) > 0.2 * len(stories)


@pytest.mark.parametrize("start", range(0, MOST_STORIES, 1000))
def test_stories_are_worked_out_from_their_numbers(start: int, pytestconfig: pytest.Config) -> None:
    """Every equation is right, no operand comes from nowhere, and the text is plain."""
    times = 8 if is_every_case(pytestconfig) else 4
    taught, unseen = told_apart()
    for story in written_stories()[start : start + 1000]:
        rng = Random(story.name)
        for _ in range(times):
            problem = story.template(rng).problem(rng, taught.names, taught.things)
            assert not re.search(r"[\[\]{}|]|  | [.,?]", problem.text), problem.text
            assert re.fullmatch(r"[A-Z0-9\"'].*[.?!]['\"]?", problem.text), problem.text
            assert problem.text.isascii()
            known = {int(number) for number in re.findall(r"\d+", problem.text)}
            assert min(known) >= 2
            known.add(FOLLOWS.get(story.name, min(known)))
            for line in problem.work:
                found = EQUATION.fullmatch(line)
                assert found is not None
                left, sign, right, result = int(found[1]), found[2], int(found[3]), int(found[4])
                sums = {"+": left + right, "-": left - right, "*": left * right}
                told = all(n in known or is_said(n, problem.text) for n in (left, right))
                assert told, (story.name, problem)
                assert result == sums[sign]
                known.add(result)
            assert problem.answer == result
            assert set(WORD.findall(problem.text)).isdisjoint(unseen.names)


def is_said(number: int, text: str) -> bool:
    """In words."""
    return number in SAID and re.search(SAID[number], text, re.IGNORECASE) is not None


Phrase = tuple[str, ...]


def phrases(text: str) -> set[Phrase]:
    """All runs of so many words, gaps alike."""
    words = re.findall(r"[a-z']+|_", PLACEHOLDER.sub("_", text).lower())
    return set(zip(*(words[at:] for at in range(_PHRASE)), strict=False))


def alike(templates: Sequence[Template], stories: Sequence[Written]) -> list[float]:
    """Of each template, the largest share of its phrases that one story has too, in any of its wordings."""
    own = [phrases(template.text) for template in templates]
    of_any = frozenset[Phrase]().union(*own)
    shares = [0.0] * len(own)
    for story in stories:
        if found := of_any & told_of(story):
            shares = [
                max(share, len(each & found) / len(each))
                for share, each in zip(shares, own, strict=True)
            ]
    return shares


def told_of(story: Written) -> set[Phrase]:
    """The phrases of a story in twelve drawings of its wordings."""
    rng = Random(story.name)
    texts = {story.template(rng).text for _ in range(12)}
    return set[Phrase]().union(*map(phrases, texts))


def test_no_story_is_one_of_an_exam() -> None:
    """Phrase by phrase. The control: a story of an exam, told as though it had been written."""
    _, unseen = told_apart()
    templates = (*FRESH, *LATE, *unseen.templates)
    shares = alike(templates, written_stories())
    for template, share in zip(templates, shares, strict=True):
        assert share <= MOST_ALIKE, template.name
    copied = Written("copied", FRESH[0].text, FRESH[0].work)
    assert alike(FRESH[:1], (*written_stories()[:9], copied)) == [1]


def test_no_thing_of_an_exam_is_written_of() -> None:
    _, unseen = told_apart()
    said = {
        word for story in written_stories() for word in WORD.findall(" ".join(story.wordings()))
    }
    of_templates = {word for each in told_apart()[0].templates for word in WORD.findall(each.text)}
    assert said.isdisjoint(set(unseen.things) - of_templates)
    assert said.isdisjoint(unseen.names)


def test_most_of_written_lists_are_written() -> None:
    rng = Random(3)
    names = {story.name for story in written_stories()}
    drawn = [word_problem(rng, "written").template in names for _ in range(400)]
    assert 0.6 < sum(drawn) / len(drawn) < 0.8
