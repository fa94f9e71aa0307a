"""The (token, read) pairs of a plan: one query meeting one read.

A row with three new tokens that reads two strips makes six entries. They are sorted by strip, so that
a backend can load a strip's keys once for all the entries that stand together.

A *stretch* of a strip are neighbouring keys that a run of its entries sees, and no other entry of the strip: a team's history,
say, and the header behind it, which a row meets at different places of its view.

    E  entries
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan
from manyhands.native import compiled as native


class Entries(NamedTuple):
    """All arrays [E]."""

    token: Ints  # packed index of the query
    read: Ints  # which of the plan's reads
    offset: (
        Ints  # position - base: where the query stands on the strip's ruler; the last key it sees
    )
    low: Ints
    high: Ints
    strip_indptr: Ints  # [strips + 1], in entries

    @classmethod
    def of(cls, plan: Plan) -> Entries:
        """The pairs of `plan`, in the order of its reads, the tokens of a row in theirs."""
        reads = plan.reads
        return cls(
            *native.entries(
                plan.row_indptr,
                plan.positions,
                reads.row,
                reads.base,
                reads.low,
                reads.high,
                reads.strip_indptr,
            )
        )

    def of_tokens(self, first: int, stop: int) -> tuple[Entries, Ints]:
        """The entries of the tokens first, ..., stop - 1, in their order, and the strips [strips] that these tokens meet."""
        is_picked = (self.token >= first) & (self.token < stop)
        counts = np.add.reduceat(is_picked, self.strip_indptr[:-1], dtype=np.int64)
        strips = counts.nonzero()[0]
        indptr = np.concatenate(([0], counts[strips].cumsum()))
        token, read, offset, low, high = (each[is_picked] for each in self[:-1])
        return Entries(token, read, offset, low, high, indptr), strips

    def stretches(self, least: int) -> tuple[Ints, Ints]:
        """Where the stretches of all strips begin [stretches + 1], in entries, and the strip of each [stretches].

        A strip of at most `least` keys is one stretch. Entries that are not sorted by what they see make fewer and larger ones.
        """
        return native.stretches(self.low, self.high, self.strip_indptr, least)
