"""Word problems: the arithmetic of bare lines told in plain English.

A tenth of the templates is held out: the bundled model never meets them in training, so they show
whether it reads or only recognises.
"""

from __future__ import annotations

import re
from functools import cache
from random import Random

from manyhands.tasks.arithmetic.problem import Problem
from manyhands.tasks.arithmetic.templates.nouns import NAMES, THINGS
from manyhands.tasks.arithmetic.templates.one_step import ONE_STEP
from manyhands.tasks.arithmetic.templates.template import PLACEHOLDER, Template
from manyhands.tasks.arithmetic.templates.three_steps import THREE_STEPS
from manyhands.tasks.arithmetic.templates.two_steps import TWO_STEPS

_TEMPLATES: tuple[Template, ...] = (*ONE_STEP, *TWO_STEPS, *THREE_STEPS)

WORD = re.compile(r"[A-Za-z]+")


@cache
def known_templates() -> tuple[Template, ...]:
    """The templates that training uses."""
    return tuple(template for template in _TEMPLATES if not template.held_out)


@cache
def held_out_templates() -> tuple[Template, ...]:
    """The templates that only tests use."""
    return tuple(template for template in _TEMPLATES if template.held_out)


@cache
def vocabulary() -> frozenset[str]:
    """Every word that training uses, names and things included, as it is spelled."""
    told = " ".join(PLACEHOLDER.sub(" ", template.text) for template in known_templates())
    return frozenset(WORD.findall(told)) | frozenset(NAMES) | frozenset(THINGS)


def is_known_story(text: str) -> bool:
    """Whether training uses a template that tells this story."""
    return any(template.tells(text) for template in known_templates())


def word_problem(rng: Random, held_out: bool = False) -> Problem:
    """A fresh problem of one to three steps; every template is equally likely."""
    return rng.choice(held_out_templates() if held_out else known_templates()).problem(rng)
