"""Writers that speak from a script: the teacher of methods in which a plan is worked through.

The scripted team of `arithmetic_team.py` decides at every step from what it sees. In a sequential run, a
run with branches or one with a skeleton there is nothing to decide between writers: each begins with
words that were put in its mouth (a title, a point, an open box), and what it has to say follows from
these. So a `Script` is asked whenever a writer is fed other words than its own, and what it answers is
spoken token by token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from manyhands.cache.step import Row, Step
from manyhands.text import Text

# Weights of tokens: decisions are few among many copied words. As in `arithmetic_team`.
DECISION, ANSWER = 3.0, 2.0


@dataclass(frozen=True)
class Said:
    """Words of a script; no words end the turn. `done`: the part that is finished with them."""

    words: str = ""
    weight: float = 1.0
    done: int | None = None


END = Said(weight=DECISION)


class Script(Protocol):
    """The words of the writers."""

    def __call__(self, writer: str, fed: str, done: frozenset[int]) -> Sequence[Said]:
        """The words of `writer` behind the words `fed`; `done` are the parts finished so far."""


class ScriptedWriters:
    """A `Predictor` that follows a script."""

    def __init__(self, text: Text, script: Script) -> None:
        self.text = text
        self.script = script
        self.done: set[int] = set()
        self._queues: dict[str, deque[tuple[int, float, int | None]]] = {}
        self._last: dict[str, int] = {}  # the token that each writer said last

    def __call__(self, step: Step) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """See `Predictor`."""
        chosen = [self._choose(row) for row in step.rows]
        # A row sees what others have been fed, not what they choose in the same pass.
        self.done |= {done for _, _, done in chosen if done is not None}
        return tuple(token for token, _, _ in chosen), tuple(weight for _, weight, _ in chosen)

    def _choose(self, row: Row) -> tuple[int, float, int | None]:
        if row.writer is None:
            return 0, 0.0, None
        if row.feed != (self._last.get(row.writer),):  # something was put in its mouth
            said = self.script(row.writer, self.text.decode(row.feed), frozenset(self.done))
            self._queues[row.writer] = deque(
                token for words in said for token in _tokens(self.text, words)
            )
        chosen = self._queues[row.writer].popleft()
        self._last[row.writer] = chosen[0]
        return chosen


@lru_cache(maxsize=20_000)
def _tokens(text: Text, said: Said) -> tuple[tuple[int, float, int | None], ...]:
    """Tokens, weights, and what is done with the last of them."""
    tokens = text.encode(said.words) if said.words else (min(text.eos),)
    last = len(tokens) - 1
    return tuple(
        (token, said.weight, said.done if place == last else None)
        for place, token in enumerate(tokens)
    )
