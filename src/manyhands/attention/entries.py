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

from manyhands.cache.pages import Ints
from manyhands.cache.plan import Plan


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
        indptr = plan.row_indptr
        sizes = (indptr[1:] - indptr[:-1])[reads.row]  # tokens of the reading row
        ends = sizes.cumsum()
        within = np.arange(ends[-1]) - (ends - sizes).repeat(sizes)
        read = np.arange(len(sizes)).repeat(sizes)
        token = indptr[reads.row].repeat(sizes) + within
        return cls(
            token=token,
            read=read,
            offset=plan.positions[token] - reads.base[read],
            low=reads.low[read],
            high=reads.high[read],
            strip_indptr=np.concatenate(([0], ends))[reads.strip_indptr],
        )

    def stretches(self, least: int) -> tuple[Ints, Ints]:
        """Where the stretches of all strips begin [stretches + 1], in entries, and the strip of each [stretches].

        A strip of at most `least` keys is one stretch. Entries that are not sorted by what they see make fewer and larger ones.
        """
        first, stop = self.strip_indptr[:-1], self.strip_indptr[1:]
        strip = np.arange(len(first)).repeat(stop - first)
        # The keys of a strip lie above all those of the strips before it.
        shift = strip * (int(self.high.max()) + 1)
        seen = np.maximum.accumulate(self.high + shift)
        to_see = np.minimum.accumulate((self.low + shift)[::-1])[::-1]
        begins = to_see[1:] >= seen[:-1]
        is_long = (
            np.maximum.reduceat(self.high, first) - np.minimum.reduceat(self.low, first) > least
        )
        begins &= is_long[strip[1:]]
        begins[stop[:-1] - 1] = True
        indptr = np.concatenate(([0], begins.nonzero()[0] + 1, [len(strip)]))
        return indptr, strip[indptr[:-1]]
