"""The (token, read) pairs of a plan: one query meeting one stretch of one strip.

A row with three new tokens that reads two strips makes six entries. They are sorted by strip, so that
a backend can load a strip's keys once for all the entries that stand together.

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
