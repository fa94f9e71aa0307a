"""A Tally: a writer's count of its own tokens, and how that weighs on its next one.

Penalties and biases change the logits of some tokens before one is chosen. A writer counts its tokens
in a Tally, which says of every token it knows how that token's logit changes:

    factor    repetition_penalty, if the writer has read or written the token; else 1
    offset    logit_bias - frequency_penalty * count - presence_penalty * (count > 0)

    logit > 0:  logit / factor + offset
    otherwise:  logit * factor + offset

`count` is how often the writer has written the token. A token that it has read counts for the repetition penalty
alone (Keskar et al. 2019, section 4.1, as Hugging Face and vLLM have it); frequency and presence are OpenAI's.

    tally = choice.tally(prompt)       None if nothing is weighed
    row = Row(view, feed, choice, "writer", tally)
    tally.take(token)                  after the pass, of every token

A tally may hold ten thousand tokens, and one token changes one `Weight` of it. So a `TallyBook` remembers what
has been sent of each, and a pass sends the weights that have changed, as numbers (`Weighing`). They are sent as they
stand, not as differences: sent twice, they do the same as once, so a pass that failed can be asked for again.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Weight(NamedTuple):
    """How the logit of one token changes."""

    token: int
    factor: float
    offset: float


class Tally:
    """One writer's counts, and the weights that follow from them."""

    def __init__(
        self,
        *,
        repetition: float = 1.0,
        frequency: float = 0.0,
        presence: float = 0.0,
        bias: Mapping[int, float] | None = None,
        prompt: Iterable[int] = (),
    ) -> None:
        self.repetition, self.frequency, self.presence = repetition, frequency, presence
        self.bias = dict(bias or {})
        self.weights: list[Weight] = []
        self.changes: list[int] = []  # indices of the weights that have changed, one after another
        self._index_of: dict[int, int] = {}
        self._lowest, self._highest = 1 << 62, -1
        self._counts: dict[int, int] = {}
        self._read = frozenset(prompt) if repetition != 1 else frozenset()
        self._counts_matter = repetition != 1 or frequency != 0 or presence != 0
        for token in sorted(self._read | self.bias.keys()):
            self._weigh(token)

    @property
    def span(self) -> tuple[int, ...]:
        """The lowest and the highest token that is weighed; () if none is."""
        return (self._lowest, self._highest) if self.weights else ()

    def take(self, token: int) -> None:
        """The writer has written this token."""
        if self._counts_matter:
            self._counts[token] = self._counts.get(token, 0) + 1
            self._weigh(token)

    def _weigh(self, token: int) -> None:
        count = self._counts.get(token, 0)
        offset = self.bias.get(token, 0.0) - self.frequency * count
        if count:
            offset -= self.presence
        is_known = bool(count) or token in self._read
        weight = Weight(token, self.repetition if is_known else 1.0, offset)
        index = self._index_of.setdefault(token, len(self.weights))
        if index == len(self.weights):
            self.weights.append(weight)
            self._lowest, self._highest = min(self._lowest, token), max(self._highest, token)
        elif self.weights[index] == weight:
            return
        else:
            self.weights[index] = weight
        self.changes.append(index)


@dataclass(frozen=True)
class Weighing:
    """The numbers that a pass gets of tallies: which rows have one, where it is kept, which weights are new.

    Of the n rows that have one, `slots` says where the executor keeps their weights, `sizes` how many of
    these count. Of the m weights that have changed, `new_slots` and `new_columns` say where they belong.
    """

    rows: tuple[int, ...]  # [n]
    slots: tuple[int, ...]  # [n]
    sizes: tuple[int, ...]  # [n], each above 0
    new_slots: tuple[int, ...]  # [m]
    new_columns: tuple[int, ...]  # [m]
    weights: tuple[Weight, ...]  # [m]


@dataclass
class _Kept:
    slot: int
    num_sent: int = 0  # of the tally's changes
    num_sending: int = 0


class TallyBook:
    """Where the executor keeps each tally, and how much of it was sent there."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Tally, _Kept] = weakref.WeakKeyDictionary()
        self._free: deque[int] = deque()
        self._num_slots = 0
        self._sending: list[_Kept] = []

    def weighing(self, tallies: Sequence[Tally | None]) -> Weighing | None:
        """The numbers for the pass of these rows; None if no row has a tally with a weight."""
        rows = [row for row, tally in enumerate(tallies) if tally is not None and tally.weights]
        self._sending = []
        if not rows:
            return None
        slots, sizes = [], []
        new: list[tuple[int, int, Weight]] = []
        for row in rows:
            tally = tallies[row]
            assert tally is not None, "rows without one were left out"
            kept = self._kept_of(tally)
            slots.append(kept.slot)
            sizes.append(len(tally.weights))
            columns = dict.fromkeys(tally.changes[kept.num_sent :])
            new += [(kept.slot, column, tally.weights[column]) for column in columns]
            kept.num_sending = len(tally.changes)
            self._sending.append(kept)
        new_slots, new_columns, weights = zip(*new, strict=True) if new else ((), (), ())
        return Weighing(tuple(rows), tuple(slots), tuple(sizes), new_slots, new_columns, weights)

    def sent(self) -> None:
        """The pass was made: the weights that it got need not be sent again."""
        for kept in self._sending:
            kept.num_sent = kept.num_sending
        self._sending = []

    def _kept_of(self, tally: Tally) -> _Kept:
        kept = self._kept.get(tally)
        if kept is None:
            if self._free:
                slot = self._free.popleft()
            else:
                slot, self._num_slots = self._num_slots, self._num_slots + 1
            kept = self._kept[tally] = _Kept(slot)
            weakref.finalize(tally, self._free.append, slot).atexit = False
        return kept
