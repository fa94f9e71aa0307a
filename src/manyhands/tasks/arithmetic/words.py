"""Word problems: the arithmetic of bare lines told in plain English.

Some stories are kept from training, so that an exam shows whether a model reads or only recognises. There are
two ways to part them, and known stories can be told a little differently (`reworded.py`):

    known, held-out   of the bundled model: a tenth of the templates is held out
    taught, unseen    of models that could read before: a third of the templates, half of the names and
                      a third of the things are unseen, and no story has anything of both sides
    fresh             templates of their own (`templates/fresh.py`), with the names and things that are unseen:
                      nothing that is taught was made or chosen with a look at them
    late              the same, written after the last training (`templates/late.py`)
    composed, domains for training: taught templates, and mostly stories that are put together of sentences; `domains` has
                      frames that go with many domains beside them
    written           for training: all of these, and mostly stories that were written one by one (`templates/written/`)
    varied            for training: known templates, many with a changed word, and composed stories; people
                      with known names, or with names made of syllables
    changed, renamed  for exams: known templates with a word changed that training never puts there, and
                      known templates about people whose names are held out
"""

from __future__ import annotations

import re
from functools import cache
from random import Random
from typing import Literal, NamedTuple

from manyhands.tasks.arithmetic.problem import Problem
from manyhands.tasks.arithmetic.reworded import UNSEEN_WORDS, reworded
from manyhands.tasks.arithmetic.templates.composed import DOMAINS, KINDS, composed
from manyhands.tasks.arithmetic.templates.fresh import FRESH
from manyhands.tasks.arithmetic.templates.late import LATE
from manyhands.tasks.arithmetic.templates.nouns import NAMES, THINGS
from manyhands.tasks.arithmetic.templates.one_step import ONE_STEP
from manyhands.tasks.arithmetic.templates.template import PEOPLE, PLACEHOLDER, Template
from manyhands.tasks.arithmetic.templates.three_steps import THREE_STEPS
from manyhands.tasks.arithmetic.templates.two_steps import TWO_STEPS
from manyhands.tasks.arithmetic.templates.written import written_stories
from manyhands.tasks.needles import made_up_names

_TEMPLATES: tuple[Template, ...] = (*ONE_STEP, *TWO_STEPS, *THREE_STEPS)

Stories = Literal[
    "known",
    "held-out",
    "taught",
    "composed",
    "domains",
    "written",
    "unseen",
    "fresh",
    "late",
    "varied",
    "changed",
    "renamed",
]
COMPOSED = 0.75  # of the stories that are mostly composed
_DOMAINS, _NOT_TAUGHT = (
    0.55,
    0.85,
)  # of stories of many domains: these, and these or composed as before
_WRITTEN = 0.7  # of the stories that are mostly written; the others are of many domains
_VARIED_COMPOSED, _VARIED_WORDS, _VARIED_NAMES = 0.3, 0.5, 0.5  # of varied ones
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


def word_problem(rng: Random, stories: Stories = "known") -> Problem:
    """A fresh problem of one to three steps; every template is equally likely.

    Of `composed` ones and of `domains` most are put together of sentences (`templates/composed/`), the others are taught.
    Of `written` ones most were written one by one.
    """
    if stories == "varied":
        return _varied(rng)
    if stories == "changed":
        return reworded(rng, rng.choice(_changeable()), unseen=True).problem(rng)
    if stories == "renamed":
        names = made_up_names(rng, len(PEOPLE), held_out=True)
        return rng.choice(_named()).problem(rng, names)
    if stories == "written" and rng.random() < _WRITTEN:
        told = _told("taught")
        return rng.choice(written_stories()).template(rng).problem(rng, told.names, told.things)
    if stories in ("domains", "written"):
        return _of_domains(rng)
    told = _told("taught" if stories == "composed" else stories)
    if stories == "composed" and rng.random() < COMPOSED:
        return composed(rng, told.names, told.things)
    return rng.choice(told.templates).problem(rng, told.names, told.things)


def _varied(rng: Random) -> Problem:
    names = NAMES
    if rng.random() < _VARIED_NAMES:
        names = tuple(made_up_names(rng, len(PEOPLE), held_out=False))
    if rng.random() < _VARIED_COMPOSED:
        return composed(rng, names, THINGS)
    template = rng.choice(known_templates())
    if rng.random() < _VARIED_WORDS:
        template = reworded(rng, template, unseen=False)
    return template.problem(rng, names)


def _of_domains(rng: Random) -> Problem:
    told, roll = _told("taught"), rng.random()
    if roll < _NOT_TAUGHT:
        return composed(rng, told.names, told.things, DOMAINS if roll < _DOMAINS else KINDS)
    return rng.choice(told.templates).problem(rng, told.names, told.things)


@cache
def _named() -> tuple[Template, ...]:
    """The known templates that name somebody."""
    return tuple(t for t in known_templates() if "{who}" in t.text)


@cache
def _changeable() -> tuple[Template, ...]:
    """The known templates that have a word which only exams change."""
    return tuple(
        t
        for t in known_templates()
        if set(WORD.findall(PLACEHOLDER.sub(" ", t.text))) & set(UNSEEN_WORDS)
    )


class Told(NamedTuple):
    """The parts that stories are made of."""

    templates: tuple[Template, ...]
    names: tuple[str, ...]
    things: tuple[str, ...]


@cache
def _told(stories: Stories) -> Told:
    if stories in ("known", "held-out"):
        own = known_templates() if stories == "known" else held_out_templates()
        return Told(own, NAMES, THINGS)
    taught, unseen = told_apart()
    if stories in ("fresh", "late"):
        return unseen._replace(templates=FRESH if stories == "fresh" else LATE)
    return unseen if stories == "unseen" else taught


@cache
def told_apart() -> tuple[Told, Told]:
    """The taught and the unseen parts; of each number of steps a third of the templates is unseen."""
    unseen = {
        template.name
        for steps in (ONE_STEP, TWO_STEPS, THREE_STEPS)
        for template in sorted(steps, key=lambda each: each.name)[::3]
    }

    def side(is_unseen: bool) -> Told:
        return Told(
            tuple(t for t in _TEMPLATES if (t.name in unseen) is is_unseen),
            tuple(name for n, name in enumerate(NAMES) if bool(n % 2) is is_unseen),
            tuple(thing for n, thing in enumerate(THINGS) if (n % 3 == 1) is is_unseen),
        )

    return side(is_unseen=False), side(is_unseen=True)
