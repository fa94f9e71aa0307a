"""Known stories told a little differently: one word changed, or people with names made of syllables.

    reworded(rng, template, unseen=False)   "bought" becomes "purchased", or some word becomes "belomir"
    reworded(rng, template, unseen=True)    "bought" becomes "acquired": words that training never puts there

The numbers and the work of a story do not change, so whoever reads the rest of it can still solve it. A
word that a story turns on (more, fewer, off) changes into one of its own meaning or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType

from manyhands.tasks.arithmetic.templates.template import PLACEHOLDER, Template
from manyhands.tasks.needles import made_up_names

# Word: one that training puts in its place, one that only exams do.
_MEANINGS = """
    bought purchased acquired   got received obtained     gave handed granted     found discovered spotted
    lost mislaid misplaced      picked gathered plucked   ate munched swallowed   holds contains stores
    caught hooked netted        planted sowed grew        saved banked stashed     made produced created
    took grabbed removed        has owns possesses         had owned kept          buys purchases acquires
    now presently currently     together altogether jointly   remain stay linger  wants wishes desires
    bus coach tram              train railcar subway      school college academy  farmer grower rancher
    market fair bazaar          shop store boutique       coins dollars pennies   pages sheets chapters
    people persons passengers   children kids youngsters     students learners scholars  flowers roses tulips
    trees oaks pines            fish trout salmon         miles kilometres leagues    boxes crates cartons
    bags sacks pouches          rows lines ranks          tickets permits vouchers    chairs stools armchairs
    book novel diary            red green purple          blue yellow orange      morning dawn daybreak
    evening dusk twilight       noon midday lunchtime     lake pond lagoon        cakes tarts pastries
    party feast picnic          baker cook chef           birds ducks swans       table desk counter
    tables desks counters       minutes moments seconds   garden yard orchard     hens geese turkeys
"""
_LISTED = _MEANINGS.split()
TAUGHT_WORDS: Mapping[str, str] = MappingProxyType(
    dict(zip(_LISTED[::3], _LISTED[1::3], strict=True))
)
UNSEEN_WORDS: Mapping[str, str] = MappingProxyType(
    dict(zip(_LISTED[::3], _LISTED[2::3], strict=True))
)

# Words that tell two stories apart: no made-up word stands in their place.
_TURNING_WORDS = """
    more fewer less each every all both total left lost gave got sold bought on off in out first second third
    than together ate used paid pays pay saved still not before Before after After and many much How What does
    did do how takes took came found shorter long back away need needs needed one two Each Every Together
"""
_TURNING = frozenset(_TURNING_WORDS.split())
_MADE_UP = 0.5  # of the changed words of training


def reworded(rng: Random, template: Template, *, unseen: bool) -> Template:
    """The story with one word changed wherever it stands; the same story if it has no such word."""
    words = {word for piece in _pieces(template.text)[::2] for word in _words(piece)}
    meanings = UNSEEN_WORDS if unseen else TAUGHT_WORDS
    if not unseen and rng.random() < _MADE_UP:
        word, other = rng.choice(sorted(words - _TURNING)), made_up_names(rng, 1, held_out=False)[0]
        return _with(template, word, other if word[0].isupper() else other.lower())
    known = sorted(words & set(meanings))
    if not known:
        return template
    word = rng.choice(known)
    return _with(template, word, meanings[word])


def _with(template: Template, word: str, other: str) -> Template:
    pieces = _pieces(template.text)
    for place in range(0, len(pieces), 2):
        parts = pieces[place].split(" ")
        pieces[place] = " ".join(_swapped(part, word, other) for part in parts)
    return replace(template, text="".join(pieces))


def _swapped(part: str, word: str, other: str) -> str:
    core = part.strip(".,?")
    return part.replace(core, other) if core == word else part


def _words(piece: str) -> list[str]:
    return [core for part in piece.split(" ") if (core := part.strip(".,?")).isalpha()]


def _pieces(text: str) -> list[str]:
    """Plain text and gaps, in turns; it begins and ends with text."""
    pieces, end = list[str](), 0
    for gap in PLACEHOLDER.finditer(text):
        pieces += [text[end : gap.start()], gap[0]]
        end = gap.end()
    return [*pieces, text[end:]]
