r"""Needles: many small questions about one long text (Hydragen, section 4.3, in our own words).

    … In the evening the baker carries a lamp to the library. The dog named Tamiro has fur that is red,
    eyes that are green, a ball that is blue and a cup that is red. On Sunday two children paint the old boat. …

    What colour is the fur of the dog named Tamiro? Box the colour.

The text comes first and the question after it, so that all questions share one prefix, which needs to
be in memory once. Four questions can be asked about every dog: sixty-four dogs make 256 questions. The
text is our own, made from small parts; dogs' names are made of syllables, and one in eight is held out
from training.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from manyhands.errors import InvalidRequest

COLOURS = (
    *("red", "blue", "white", "pink", "gold", "green"),
    *("black", "grey", "brown", "silver", "copper", "tan"),
)
PARTS = ("fur", "eyes", "ball", "cup")
MOST_DOGS = 2000

_VERBS = ("is", "are", "is", "is")
QUESTION = "What colour {verb} the {part} of the dog named {name}? Box the colour."

_ONSETS = (*"bdfghklmnprstvz", "br", "dr", "gr", "kr", "pl", "st", "tr")
_VOWELS = "aeiou"
_CODAS = ("", "", "", "n", "r", "s", "l", "k")

_TIMES = (
    *("In the morning", "In the evening", "At noon", "After lunch", "At night", "On Sunday"),
    *("On Monday", "On Friday", "Before the party", "Later", "Every day", "In June", "In July"),
)
_PEOPLE = (
    *("the baker", "the farmer", "a teacher", "two girls", "three boys", "the porter", "a painter"),
    *("the children", "an old woman", "his parents", "some students", "the whole class"),
)
_DEEDS = (
    *("brought {thing} to {place}", "found {thing} at {place}", "left {thing} near {place}"),
    *(
        "sold {thing} in front of {place}",
        "carried {thing} past {place}",
        "kept {thing} in {place}",
    ),
    *("looked for {thing} behind {place}", "talked about {thing} at {place}"),
)
_OBJECTS = (
    *("a lamp", "the tickets", "an old map", "two chairs", "a box of apples", "some letters"),
    *("a bag of coins", "the piano", "a warm coat", "three books", "a cup of tea", "the flowers"),
    *("a rope", "the drum", "a basket of eggs", "her bike", "the table", "a picture"),
)
_PLACES = (
    *("the library", "the market", "the station", "the lake", "the school", "the garden"),
    *("the farm", "the bakery", "the park", "the hall", "the kitchen", "the road to the sea"),
)


@dataclass(frozen=True)
class Dog:
    """One planted sentence: a dog, and what colour its four belongings have."""

    name: str
    colours: tuple[str, str, str, str]

    @property
    def sentence(self) -> str:
        """As it stands in the text."""
        fur, eyes, ball, cup = self.colours
        return (
            f"The dog named {self.name} has fur that is {fur}, eyes that are {eyes}, "
            f"a ball that is {ball} and a cup that is {cup}."
        )

    @property
    def needles(self) -> tuple[Needle, ...]:
        """The four questions about it."""
        return tuple(
            Needle(QUESTION.format(verb=verb, part=part, name=self.name), colour)
            for verb, part, colour in zip(_VERBS, PARTS, self.colours, strict=True)
        )


@dataclass(frozen=True)
class Needle:
    """One question about the text, and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Haystack:
    """A long text and the dogs that are in it, in the order of the text."""

    document: str
    dogs: tuple[Dog, ...]

    @property
    def needles(self) -> tuple[Needle, ...]:
        """All that can be asked: four questions about every dog."""
        return tuple(needle for dog in self.dogs for needle in dog.needles)


def ask(document: str, question: str) -> str:
    """The text that a user would type: the shared text first."""
    return f"{document}\n\n{question}"


def haystack(rng: Random, num_dogs: int, num_sentences: int, held_out: bool = False) -> Haystack:
    """A text about `num_dogs` dogs among `num_sentences` other sentences.

    `held_out` draws names that are never trained on.
    """
    if not 1 <= num_dogs <= MOST_DOGS:
        raise InvalidRequest(
            f"a text about {num_dogs} dogs was asked for", hint=f"ask for 1 to {MOST_DOGS} of them"
        )
    if num_sentences < 0:
        raise InvalidRequest(
            f"a text with {num_sentences} other sentences was asked for", hint="ask for 0 or more"
        )
    dogs = tuple(_dog(rng, name) for name in made_up_names(rng, num_dogs, held_out))
    sentences = [_filler(rng) for _ in range(num_sentences)]
    places = sorted(rng.randint(0, num_sentences) for _ in dogs)
    for already, (place, dog) in enumerate(zip(places, dogs, strict=True)):
        sentences.insert(place + already, dog.sentence)
    return Haystack(_paragraphs(rng, sentences), dogs)


def is_held_out(name: str) -> bool:
    """Whether a dog of this name occurs in tests only. One name in eight does."""
    return zlib.crc32(name.encode()) % 8 == 0


def _dog(rng: Random, name: str) -> Dog:
    fur, eyes, ball, cup = (rng.choice(COLOURS) for _ in PARTS)
    return Dog(name, (fur, eyes, ball, cup))


def made_up_names(rng: Random, count: int, held_out: bool) -> list[str]:
    """`count` different names made of syllables; `held_out`: of those that are never trained on."""
    names: dict[str, None] = {}
    while len(names) < count:
        name = _name(rng)
        if is_held_out(name) == held_out:
            names[name] = None
    return list(names)


def _name(rng: Random) -> str:
    syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 3)))]
    return ("".join(syllables) + rng.choice(_CODAS)).capitalize()


def _filler(rng: Random) -> str:
    deed = rng.choice(_DEEDS).format(thing=rng.choice(_OBJECTS), place=rng.choice(_PLACES))
    return f"{rng.choice(_TIMES)} {rng.choice(_PEOPLE)} {deed}."


def _paragraphs(rng: Random, sentences: Sequence[str]) -> str:
    """The text in paragraphs of four to eight sentences."""
    paragraphs, first = [], 0
    while first < len(sentences):
        last = first + rng.randint(4, 8)
        paragraphs.append(" ".join(sentences[first:last]))
        first = last
    return "\n\n".join(paragraphs)
