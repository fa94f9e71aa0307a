"""Stories put together of sentences: thousands of wordings where a list of templates has dozens.

A model that could read before learns the words of a template by heart when it meets few of them. So what it is
taught is composed. A kind of story says what is computed; each of its sentences has many wordings, and any goes
with any.

    telling.py      a story while it is told: persons, sentences, and the work of its numbers
    changing.py     a number of things, and what happens to it:          4 * 9, then - 7
    comparing.py    two numbers of which one is told by the other:       14, and 14 + 5; both together
    grouping.py     two groups of products; groups of a sum:             4 * 9 + 3 * 6;  (4 + 3) * 6
    spending.py     what is taken, a product at a time, from a store:    120 - 4 * 9
    domains.py      all of these once more, in frames for many domains, with the words of domain_words.py;
                    a set of kinds of its own

Nothing here is taken from the templates that are unseen or fresh (`words.py`), and a test looks that no composed
story is told by one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from manyhands.tasks.arithmetic.problem import LARGEST_RESULT, Problem
from manyhands.tasks.arithmetic.templates.composed.changing import changes, differs, three_numbers
from manyhands.tasks.arithmetic.templates.composed.comparing import (
    compares_deeds,
    compares_prices,
    compares_things,
    compares_three,
    compares_times,
)
from manyhands.tasks.arithmetic.templates.composed.domains import (
    counted,
    divided,
    measured,
    priced,
    rated,
    worked,
)
from manyhands.tasks.arithmetic.templates.composed.grouping import (
    groups_of_a_sum,
    two_groups,
    two_rates,
)
from manyhands.tasks.arithmetic.templates.composed.spending import spends, takes
from manyhands.tasks.arithmetic.templates.composed.telling import Telling

MOST_STEPS = 3
Kinds = tuple[tuple[Callable[[Telling], None], int], ...]
# Each kind and how often it is drawn, beside the others.
KINDS: Kinds = (
    (changes, 8),
    (differs, 2),
    (three_numbers, 2),
    (compares_things, 3),
    (compares_deeds, 3),
    (compares_times, 3),
    (compares_prices, 2),
    (compares_three, 1),
    (two_groups, 4),
    (two_rates, 3),
    (groups_of_a_sum, 2),
    (spends, 4),
    (takes, 3),
)

DOMAINS: Kinds = (
    (counted, 5),
    (rated, 4),
    (worked, 3),
    (measured, 4),
    (divided, 3),
    (priced, 3),
)


def composed(
    rng: Random, names: Sequence[str], things: Sequence[str], kinds_of: Kinds = KINDS
) -> Problem:
    """A fresh story of one to three steps, told of these people and things; `kinds_of`: `KINDS` or `DOMAINS`.

    Stories whose numbers leave the small world are drawn again, so every result is 1 to `LARGEST_RESULT`.
    """
    kinds, weights = zip(*kinds_of, strict=True)
    kind = rng.choices(kinds, weights)[0]
    while True:
        who, friend, third = rng.sample(names, 3)
        story = Telling(rng, who, friend, third, rng.choice(things))
        kind(story)
        results = [int(line.partition("=")[2]) for line in story.work]
        if 1 <= len(results) <= MOST_STEPS and all(1 <= n <= LARGEST_RESULT for n in results):
            text = " ".join(story.sentences)
            return Problem(text, tuple(story.work), results[-1], kind="word", template="composed")
