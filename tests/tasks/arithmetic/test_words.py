"""Word problems: every template tells a whole, true and solvable story, whatever the seed."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.tasks.arithmetic.problem import Problem
from manyhands.tasks.arithmetic.templates.composed import DOMAINS, KINDS, Kinds, composed
from manyhands.tasks.arithmetic.templates.composed.domain_words import (
    ACTIVITIES,
    COUNTED,
    MEASURES,
    RATES,
)
from manyhands.tasks.arithmetic.templates.fresh import FRESH
from manyhands.tasks.arithmetic.templates.late import LATE
from manyhands.tasks.arithmetic.templates.nouns import NAMES, THINGS
from manyhands.tasks.arithmetic.templates.template import PLACEHOLDER, Template
from manyhands.tasks.arithmetic.words import (
    WORD,
    held_out_templates,
    is_known_story,
    known_templates,
    told_apart,
    vocabulary,
    word_problem,
)

ALL = (*known_templates(), *held_out_templates())
EQUATION = re.compile(r"(\d+)([+*-])(\d+)=(\d+)")


SAID = {"eight": 8, "week": 7, "twice": 2}  # numbers in words


def check(problem: Problem) -> None:
    """The promises of `problem.py`, by an evaluation of its own."""
    available = [int(number) for number in re.findall(r"\d+", problem.text)]
    assert all(number >= 2 for number in available)  # nouns stay plural
    available += [number for word, number in SAID.items() if word in problem.text]
    for equation in problem.work:
        match = EQUATION.fullmatch(equation)
        assert match is not None
        left, right, result = int(match[1]), int(match[3]), int(match[4])
        assert {left, right} <= set(available)
        assert result == {"+": left + right, "-": left - right, "*": left * right}[match[2]]
        assert 0 < result <= 299
        if match[2] == "*":
            assert 2 <= min(left, right) <= 9
            assert max(left, right) <= 12
        available.append(result)
    assert problem.answer == available[-1]


@pytest.mark.parametrize("template", ALL, ids=lambda template: template.name)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_every_story_is_whole_and_true(template: Template, seed: int) -> None:
    problem = template.problem(Random(seed))
    check(problem)
    assert (problem.kind, problem.template) == ("word", template.name)
    assert problem.num_steps == template.num_steps
    assert re.fullmatch(r"[A-Z][A-Za-z0-9 .,]*\?", problem.text)
    assert "  " not in problem.text
    assert 12 <= len(problem.text.split()) <= 35
    assert set(WORD.findall(problem.text)) <= vocabulary()


@pytest.mark.parametrize("template", ALL, ids=lambda template: template.name)
def test_every_number_told_is_needed(template: Template) -> None:
    told = set(template.ranges)
    used = set(re.findall(r"[a-z]", template.work))
    results = set("pqr"[: template.num_steps - 1])
    assert used == told | results
    gaps = [gap[1] for gap in PLACEHOLDER.finditer(template.text)]
    assert set(gaps) <= told | {"who", "friend", "third", "things"}


@pytest.mark.parametrize("template", ALL, ids=lambda template: template.name)
def test_a_story_is_told_by_its_template_alone(template: Template) -> None:
    rng = Random(5)
    for story in (template.problem(rng).text for _ in range(20)):
        assert [other.name for other in ALL if other.tells(story)] == [template.name]
        assert is_known_story(story) is not template.held_out
        assert not template.tells(f"{story} ")


@pytest.mark.parametrize("template", ALL, ids=lambda template: template.name)
def test_a_story_varies(template: Template) -> None:
    rng = Random(0)
    problems = [template.problem(rng) for _ in range(100)]
    assert len({problem.text for problem in problems}) > 90
    assert len({problem.answer for problem in problems}) > 20


def test_there_are_enough_templates_and_a_tenth_is_held_out() -> None:
    assert len(known_templates()) >= 62
    assert 0.1 <= len(held_out_templates()) / len(ALL) <= 0.12
    assert Counter(template.num_steps for template in held_out_templates()) == {1: 3, 2: 3, 3: 3}
    assert {template.num_steps for template in known_templates()} == {1, 2, 3}
    assert not set(known_templates()) & set(held_out_templates())


def test_no_template_is_told_twice() -> None:
    def wording(template: Template) -> str:
        return PLACEHOLDER.sub("_", template.text)

    assert len({template.name for template in ALL}) == len(ALL)
    assert len({wording(template) for template in ALL}) == len(ALL)


def test_held_out_stories_use_known_words() -> None:
    def words(templates: tuple[Template, ...]) -> set[str]:
        return {
            word
            for template in templates
            for word in WORD.findall(PLACEHOLDER.sub("", template.text))
        }

    assert words(held_out_templates()) <= words(known_templates()) | set(THINGS)


def test_names_and_things_are_many_and_plain() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 80
    assert len(THINGS) == len(set(THINGS)) >= 60
    assert all(re.fullmatch(r"[A-Z][a-z]{1,5}", name) for name in NAMES)
    assert all(re.fullmatch(r"[a-z]+s", thing) for thing in THINGS)


@pytest.mark.parametrize("held_out", [False, True])
def test_word_problems_come_from_the_right_side(held_out: bool) -> None:
    rng = Random(7)
    expected = held_out_templates() if held_out else known_templates()
    drawn = {word_problem(rng, "held-out" if held_out else "known").template for _ in range(1500)}
    assert drawn == {template.name for template in expected}


def test_a_seed_decides_everything() -> None:
    assert word_problem(Random(3)) == word_problem(Random(3))
    assert word_problem(Random(3)) != word_problem(Random(4))


_WORDS_OF_TEMPLATES = frozenset(WORD.findall(" ".join(template.text for template in ALL)))


def test_what_is_unseen_has_nothing_of_what_is_taught() -> None:
    taught, unseen = told_apart()
    for own, other in zip(taught, unseen, strict=True):
        assert not set(own) & set(other)
    assert len(unseen.templates) >= 0.3 * len(known_templates() + held_out_templates())
    assert {t.num_steps for t in unseen.templates} == {t.num_steps for t in taught.templates}
    rng = Random(5)
    for _ in range(200):
        words = set(WORD.findall(word_problem(rng, "unseen").text))
        assert words.isdisjoint(taught.names)
        assert words.isdisjoint(set(taught.things) - _WORDS_OF_TEMPLATES)


@pytest.mark.parametrize("kinds", [KINDS, DOMAINS], ids=["kinds", "domains"])
def test_composed_stories_are_worked_out_from_their_numbers(kinds: Kinds) -> None:
    """Every equation is right, the last one is the answer, and no operand comes from nowhere."""
    taught, unseen = told_apart()
    rng = Random(8)
    texts = set()
    for _ in range(600):
        problem = composed(rng, taught.names, taught.things, kinds)
        assert 1 <= problem.num_steps <= 3
        known = {int(number) for number in re.findall(r"\d+", problem.text)}
        known |= {2} if re.search("twice|double|two", problem.text) else set()
        for line in problem.work:
            found = EQUATION.fullmatch(line)
            assert found is not None
            left, sign, right, result = found[1], found[2], found[3], int(found[4])
            assert {int(left), int(right)} <= known, problem
            assert result == {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](
                int(left), int(right)
            )
            known.add(result)
        assert problem.answer == result
        assert set(WORD.findall(problem.text)).isdisjoint(unseen.names)
        never = (*unseen.templates, *FRESH, *LATE)
        assert not any(template.tells(problem.text) for template in never)
        compares = re.search(
            r"as many|double|more than|less than|fewer than|beats|for each", problem.text
        )
        assert not (compares and "together: " in problem.text), "the other one has a number already"
        texts.add(re.sub(r"\d+", "n", problem.text))
    assert len(texts) > 590, "hardly two are worded alike"


def test_stories_of_domains_are_plain_and_use_every_number_once() -> None:
    """And no thing that an exam keeps for itself."""
    taught, unseen = told_apart()
    rng = Random("domains")
    for _ in range(600):
        problem = composed(rng, taught.names, taught.things, DOMAINS)
        assert re.fullmatch(r"[A-Z0-9][A-Za-z0-9 .,]*\?", problem.text), problem.text
        assert not re.search(r"[.] [a-z]|  |[{}]", problem.text), problem.text
        told = [int(number) for number in re.findall(r"\d+", problem.text)]
        assert len(told) <= 1 + problem.num_steps, problem
        assert set(WORD.findall(problem.text)).isdisjoint(set(unseen.things) - _WORDS_OF_TEMPLATES)


def test_makes_of_sentences_are_many() -> None:
    """Stories without their numbers, names and the nouns of their domain: what is left is the make."""
    taught, _ = told_apart()
    nouns = {
        word for table in (COUNTED, RATES, ACTIVITIES, MEASURES) for row in table for word in row
    }
    own = re.compile("|".join(map(re.escape, sorted({*nouns, *taught.names}, key=len)[::-1])))

    def makes(kinds: Kinds) -> int:
        rng = Random("makes")
        told = (composed(rng, taught.names, taught.things, kinds).text for _ in range(1500))
        firsts = (story.split(". ")[0] for story in told)
        return len({re.sub(r"\d+", "n", own.sub("_", first)).lower() for first in firsts})

    assert makes(DOMAINS) > 150


def test_most_stories_of_domains_are_composed() -> None:
    rng = Random(3)
    taught = {template.name for template in told_apart()[0].templates}
    drawn = [word_problem(rng, "domains") for _ in range(400)]
    assert 0.08 < sum(story.template in taught for story in drawn) / len(drawn) < 0.22
    assert {story.template for story in drawn} <= {*taught, "composed"}


def test_most_of_composed_lists_are_composed() -> None:
    rng = Random(3)
    drawn = [word_problem(rng, "composed").template for _ in range(400)]
    assert 0.65 < drawn.count("composed") / len(drawn) < 0.85
    assert "composed" not in {word_problem(rng, "taught").template for _ in range(200)}


@pytest.mark.parametrize("template", [*FRESH, *LATE], ids=lambda template: template.name)
def test_fresh_stories_are_whole_and_true_and_of_their_own(template: Template) -> None:
    rng = Random(2)
    for _ in range(20):
        problem = template.problem(rng)
        check(problem)
        assert re.fullmatch(r"[A-Z0-9][A-Za-z0-9 .,'-]*\?", problem.text)
        assert not any(other.tells(problem.text) for other in ALL)
    used = set(re.findall(r"[a-z]", template.work))
    in_vain = set(template.ranges) - used
    assert len(in_vain) <= (template in LATE)
    assert used | in_vain == set(template.ranges) | set("pqr"[: template.num_steps - 1])


def test_as_many_fresh_stories_of_each_length() -> None:
    assert Counter(template.num_steps for template in FRESH) == {1: 14, 2: 14, 3: 14}
    assert min(Counter(template.num_steps for template in LATE).values()) == 12
    names = [template.name for template in (*FRESH, *LATE, *ALL)]
    assert len(set(names)) == len(names)
    taught, _ = told_apart()
    for _ in range(50):
        words = set(WORD.findall(word_problem(Random(3), "fresh").text))
        assert words.isdisjoint(taught.names)
