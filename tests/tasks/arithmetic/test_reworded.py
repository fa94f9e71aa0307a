"""Stories told differently: the same sums, and words of the exam that training never meets."""

from __future__ import annotations

from random import Random

import pytest

from manyhands.tasks.arithmetic.bare import WIDE_OPERATIONS, WIDE_RESULT, parse_bare, wide_problem
from manyhands.tasks.arithmetic.reworded import TAUGHT_WORDS, UNSEEN_WORDS, reworded
from manyhands.tasks.arithmetic.templates.nouns import NAMES, THINGS
from manyhands.tasks.arithmetic.words import (
    WORD,
    held_out_templates,
    is_known_story,
    known_templates,
    vocabulary,
    word_problem,
)
from manyhands.tasks.needles import is_held_out


@pytest.mark.parametrize("unseen", [True, False])
def test_one_word_changes_and_no_gap(unseen: bool) -> None:
    rng, num_changed = Random(0), 0
    for template in known_templates():
        other = reworded(rng, template, unseen=unseen)
        before, after = template.text.split(), other.text.split()
        assert len(before) == len(after)
        assert (other.ranges, other.work) == (template.ranges, template.work)
        differs = {
            (a.strip(".,?"), b.strip(".,?")) for a, b in zip(before, after, strict=True) if a != b
        }
        assert len(differs) <= 1
        num_changed += len(differs)
        assert not unseen or all(UNSEEN_WORDS[a] == b for a, b in differs)
    assert num_changed > 0.9 * len(known_templates())


def test_words_of_the_exam_are_not_taught() -> None:
    """Neither in templates, nor in their place, nor in composed stories."""
    rng, own = Random("words"), vocabulary() - set(NAMES) - set(THINGS)
    taught = {word for _ in range(400) for word in WORD.findall(word_problem(rng, "varied").text)}
    unseen = set(UNSEEN_WORDS.values())
    assert set(UNSEEN_WORDS) <= own
    assert not unseen & (own | set(TAUGHT_WORDS.values()) | taught)


def test_names_of_the_exam_are_held_out() -> None:
    rng = Random("names")
    for _ in range(50):
        problem = word_problem(rng, "renamed")
        strange = set(WORD.findall(problem.text)) - vocabulary()
        assert strange
        assert all(is_held_out(word) for word in strange)


def test_what_is_varied_is_no_held_out_story() -> None:
    rng = Random("varied")
    told = [word_problem(rng, "varied").text for _ in range(400)]
    assert not [t for t in told if any(template.tells(t) for template in held_out_templates())]
    assert 40 < sum(map(is_known_story, told)) < 200  # the others are reworded, renamed or composed


def test_wide_lines_keep_their_range_and_fill_it() -> None:
    rng = Random("wide")
    lines = [parse_bare(wide_problem(rng).text) for _ in range(400)]
    results = [result for line in lines if line is not None for result in line.results]
    assert len(lines) == 400
    assert None not in lines
    assert -WIDE_RESULT <= min(results) < -700
    assert 900 < max(results) <= WIDE_RESULT
    assert 0.15 < sum(result < 0 for result in results) / len(results) < 0.6
    assert {len(line.rest) for line in lines if line} == {
        *range(WIDE_OPERATIONS[0], WIDE_OPERATIONS[1] + 1)
    }
