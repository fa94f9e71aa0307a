"""Stories that were written one by one: what a grammar of sentences does not think of.

    home.toml       kitchen, garden, pets, clothes, parties; much of it spoken
    trades.toml     shops, workshops, farms, ships, offices; notices and reports
    outdoors.toml   school, sport, nature, measurements; differences and comparisons
    forms.toml      any subject, every story of another make: the question first, facts in reverse, numbers in vain
    groups.toml     equal groups and rates, and what looks like these
    comparing.toml  comparisons in both directions, and their totals
    changes.toml    gains and losses, parts of a whole, what is missing to a goal
    measures.toml   money, time, lengths, weights
    chains.toml     two and three operations, told in any order
    pairs.toml      one scene told several times: one word is another, and so is the operation

    everyday.toml, schoolbook.toml, makings.toml    any subject, plain
    workplaces.toml, childhood.toml, costs.toml     shops and ships; games, pets and journeys; prices and growth
    differences.toml, rates.toml, gains.toml        comparisons; so many each; changes, their beginnings and ends
    steps.toml      mostly three operations
    orders.toml, voices.toml                        facts in any order; questions first, notices, letters, riddles
    scenes.toml, turns.toml                         families: a scene told again with one clause that turns the operation

Each is a story with gaps, as a `Template` is, with wordings in brackets, of which one is drawn:

    text = "[On the sill stand|{who} keeps] {a:3-9} pots of {b:2-12} ferns each. How many ferns is that?"
    work = "a * b"

They are for training alone, and were written without a look at the stories that exams keep (`words.py`). A test
compares the two, phrase by phrase.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random

from manyhands.tasks.arithmetic.templates.template import Template

FILES = (
    *("home", "trades", "outdoors", "forms"),
    *("groups", "comparing", "changes", "measures", "chains", "pairs"),
    *("everyday", "schoolbook", "makings", "workplaces", "childhood", "costs", "differences"),
    *("rates", "gains", "steps", "orders", "voices", "scenes", "turns"),
)
_WORDINGS = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True)
class Written:
    """A story with gaps and wordings, and the operations that solve it."""

    name: str
    text: str
    work: str

    def template(self, rng: Random) -> Template:
        """The story in wordings that are drawn."""
        text = _WORDINGS.sub(lambda found: rng.choice(found[1].split("|")), self.text)
        return Template(self.name, text, self.work)

    def wordings(self) -> tuple[str, ...]:
        """All that any wording says, in pieces that stand side by side in the story."""
        return tuple(
            piece
            for index, part in enumerate(_WORDINGS.split(self.text))
            for piece in (part.split("|") if index % 2 else [part])
        )


@cache
def written_stories() -> tuple[Written, ...]:
    """All of them."""
    folder = files(__package__)
    tables = (tomllib.loads((folder / f"{n}.toml").read_text(encoding="utf-8")) for n in FILES)
    return tuple(Written(**story) for table in tables for story in table["story"])
