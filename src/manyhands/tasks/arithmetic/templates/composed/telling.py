"""A story while it is told: its persons, its sentences, and the work that its numbers make."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}

_FIRST_LETTER = re.compile(r"(?:^|(?<=\. ))[a-z]")


@dataclass
class Telling:
    """A story as far as it is told."""

    rng: Random
    who: str
    friend: str
    third: str
    things: str
    sentences: list[str] = field(default_factory=list)
    work: list[str] = field(default_factory=list)
    value: int = 0

    def say(self, wordings: Sequence[str], **gaps: object) -> None:
        """One of these, drawn; the first letter of each of its sentences becomes large."""
        told = self.worded(wordings, **gaps)
        self.sentences.append(_FIRST_LETTER.sub(lambda found: found[0].upper(), told))

    def worded(self, wordings: Sequence[str], **gaps: object) -> str:
        """One of these, with its gaps filled."""
        people = {"who": self.who, "friend": self.friend, "third": self.third}
        return self.rng.choice(wordings).format(**{"things": self.things, **people, **gaps})

    def compute(self, left: int, sign: str, right: int) -> int:
        """A step of the work; its result."""
        result = _OPERATIONS[sign](left, right)
        self.work.append(f"{left}{sign}{right}={result}")
        return result

    def change(self, sign: str, number: int) -> None:
        """The number that is counted becomes more or less."""
        self.value = self.compute(self.value, sign, number)

    def is_likely(self, chance: float) -> bool:
        """Whether something happens that does so with this chance."""
        return self.rng.random() < chance

    def factors(self) -> tuple[int, int]:
        """Two numbers whose product a child knows by heart: 2 to 9, and 2 to 12."""
        return self.rng.randint(2, 9), self.rng.randint(2, 12)
