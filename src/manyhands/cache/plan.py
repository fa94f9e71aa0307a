"""A Plan: the integers of one forward pass. Which rows read which keys, at which offset, how many.

    T  new tokens, packed over rows      R  rows      n  reads (one row meeting some keys of a strip)
    D  drafted tokens of all rows

Everything follows from the lengths of blocks (Hogwild! Inference, section 3.4). Row r meets read n
with its strip's ruler shifted to `base[n]`: key j of the strip stands at position base[n] + j of the
view. So for a query at view position p

    the query is rotated by    p - base[n]                    (the key already is, by j)
    key j is visible iff       low[n] <= j < high[n]  and  j <= p - base[n]
    within a sliding window    (p - base[n]) - j < window     (a distance in the view)

Only on the row's own block does `j <= p - base` cut anything: it is the causal mask. No mask is stored.

Reads are sorted by strip: all rows that read a strip stand together, and attention loads its keys
once for all of them. That grouping is the whole of Hydragen's speed-up, at any depth of sharing.
A strip may hold several blocks that a row meets at different places of its view, a team's history and the header
behind it. The reads of either stand together, so that rows which meet one do not walk over the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from manyhands.cache.places import Ints
from manyhands.cache.states import RowStates


class PageTables:
    """The page tables of strips one behind another: `tables[s]` are the pages of strip s, cut out when it is asked for."""

    __slots__ = ("indptr", "joined")

    def __init__(self, joined: Ints, indptr: Ints) -> None:
        """`indptr` [strips + 1]: where the table of each begins among the pages `joined`."""
        self.joined, self.indptr = joined, indptr

    @classmethod
    def of(cls, tables: Iterable[Ints]) -> PageTables:
        """Page tables of tables that lie apart."""
        tables = list(tables)
        indptr = np.array([0, *accumulate(map(len, tables))], dtype=np.int64)
        return cls(np.concatenate(tables) if tables else indptr[:0], indptr)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, strip: int) -> Ints:
        return self.joined[self.indptr[strip] : self.indptr[strip + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self.joined[begin:end] for begin, end in pairwise(self.indptr.tolist()))


@dataclass(frozen=True, eq=False)
class Reads:
    """Which row reads what. All arrays [n], sorted by strip, the reads of a strip by their first index."""

    row: Ints  # the row that reads
    base: (
        Ints  # view position of the strip's index 0 (negative if the block lies far into its strip)
    )
    low: Ints  # first index read
    high: Ints  # one past the last index read
    strip_indptr: Ints  # [strips + 1]: reads strip_indptr[s] .. strip_indptr[s + 1] are of strip s
    pages: PageTables


@dataclass(frozen=True, eq=False)
class Growth:
    """The growth of every number when the same views are fed one token each once more.

    All of a plan is linear in time as long as nothing else happens, so a device can keep its own copy
    up to date without being told (cache/lockstep.py, engine/graph.py).
    """

    position: Ints  # [R]
    base: Ints  # [n]
    high: Ints  # [n]


@dataclass(frozen=True, eq=False)
class Plan:
    """One forward pass in integers."""

    token_ids: Ints  # [T]
    row_indptr: Ints  # [R + 1]: tokens row_indptr[r] .. row_indptr[r + 1] are those of row r
    positions: Ints  # [T]: position in the row's view
    offsets: Ints  # [T]: index on the own strip's ruler; the new key is rotated by it
    slots: Ints  # [T]: where the new key and value are written
    reads: Reads
    page_size: int
    own_strip: Ints | None = None  # [R]: which of the strips each row writes to; None in a replay
    growth: Growth | None = None  # None in a replay, and while a row writes in lanes
    # Plans that follow from each other share a mark and are numbered (cache/lockstep.py).
    lockstep: object = None
    lockstep_index: int = 0
    num_drafted: Ints | None = None  # [R]: of each row's tokens the last ones; None: no row has any
    states: RowStates | None = None  # where linear layers find and leave theirs, if there are any

    @property
    def num_tokens(self) -> int:
        """T, the tokens fed by all rows."""
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        """R, the rows of the step."""
        return len(self.row_indptr) - 1

    @property
    def last(self) -> Ints:
        """[R]: packed index of each row's last token that is no guess; its logits choose the next one."""
        last = self.row_indptr[1:] - 1
        return last if self.num_drafted is None else last - self.num_drafted

    @cached_property
    def heads(self) -> Ints:
        """[R + D]: packed indices of the tokens whose logits are made: `last`, then every drafted one."""
        if self.num_drafted is None:
            return self.last
        ends = np.repeat(self.row_indptr[1:], self.num_drafted)
        behind = np.repeat(np.cumsum(self.num_drafted), self.num_drafted)
        return np.concatenate((self.last, ends - behind + np.arange(len(ends))))

    @property
    def num_keys_read(self) -> int:
        """Keys that all reads name, before the causal cut: what would be loaded with nothing shared."""
        return int((self.reads.high - self.reads.low).sum())

    @property
    def num_keys_loaded(self) -> int:
        """Keys loaded when each is loaded once for all rows that read it."""
        return int(self.keys_loaded.sum())

    @cached_property
    def keys_loaded(self) -> Ints:
        """[strips]: the same, strip by strip."""
        reads = self.reads
        first = reads.strip_indptr[:-1]
        # The keys of a strip lie above those of the strips before it; reads stand in the order of their first keys.
        above = np.arange(len(first)) * int(reads.high.max())
        above = above.repeat(reads.strip_indptr[1:] - first)
        low, high = reads.low + above, reads.high + above
        known = np.maximum.accumulate(high)
        low[1:] = np.maximum(low[1:], known[:-1])
        loaded: Ints = np.add.reduceat(np.maximum(0, high - low), first)
        return loaded


def of_rows(plan: Plan, rows: Sequence[int], most: int | None = None) -> tuple[Plan, Ints]:
    """The plan of these rows alone, in this order, and where their tokens stand in the whole one.

    Of a row with more than `most` tokens it has so many, from the first to the last. It says what attention needs:
    growth and states stay with the whole plan.
    """
    chosen = np.asarray(rows, dtype=np.int64)
    number = np.full(plan.num_rows, -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    reads = plan.reads
    kept = number[reads.row] >= 0
    strip = np.arange(len(reads.pages)).repeat(np.diff(reads.strip_indptr))
    strips, counts = np.unique(strip[kept], return_counts=True)
    first, sizes = plan.row_indptr[chosen], np.diff(plan.row_indptr)[chosen]
    if most is None:
        tokens = (first + sizes - sizes.cumsum()).repeat(sizes) + np.arange(sizes.sum())
    else:
        last, sizes = first + sizes - 1, np.minimum(sizes, most)
        ends = zip(first, last, sizes, strict=True)
        tokens = np.concatenate([np.linspace(*each).astype(np.int64) for each in ends])
    part = Reads(
        row=number[reads.row[kept]],
        base=reads.base[kept],
        low=reads.low[kept],
        high=reads.high[kept],
        strip_indptr=np.concatenate(([0], counts.cumsum())),
        pages=PageTables.of(reads.pages[s] for s in strips.tolist()),
    )
    # A row reads what it writes, so its own strip is among those that are left.
    own = None if plan.own_strip is None else np.searchsorted(strips, plan.own_strip[chosen])
    drafted = None if plan.num_drafted is None or most is not None else plan.num_drafted[chosen]
    alone = replace(
        plan,
        token_ids=plan.token_ids[tokens],
        row_indptr=np.concatenate(([0], sizes.cumsum())),
        positions=plan.positions[tokens],
        offsets=plan.offsets[tokens],
        slots=plan.slots[tokens],
        reads=part,
        own_strip=own,
        growth=None,
        lockstep=None,
        lockstep_index=0,
        num_drafted=drafted,
        states=None,
    )
    return alone, tokens


def over_copied_pages(plan: Plan) -> tuple[Plan, Ints]:
    """The plan over a copy of the pages that its rows read, and which pages the copy holds, in its order.

    Of each strip these are the pages from the first key that is read to the last: backends load some keys that lie
    between two reads. Elsewhere tables name the copy's page 0. The plan is for reading alone: its slots are
    those of the whole memory.
    """
    reads, size = plan.reads, plan.page_size
    starts = reads.strip_indptr[:-1]
    begins = np.minimum.reduceat(reads.low, starts) // size
    ends = -(-np.maximum.reduceat(reads.high, starts) // size)
    spans = list(zip(begins.tolist(), ends.tolist(), strict=True))
    met = np.concatenate(
        [pages[begin:end] for pages, (begin, end) in zip(reads.pages, spans, strict=True)]
    )
    _, first, which = np.unique(met, return_index=True, return_inverse=True)
    copied = met[np.sort(first)]
    numbers = np.argsort(np.argsort(first))[which]
    tables, done = [], 0
    for pages, (begin, end) in zip(reads.pages, spans, strict=True):
        table = np.zeros_like(pages)
        here = table[begin:end]
        here[:] = numbers[done : done + len(here)]
        tables.append(table)
        done += len(here)
    return replace(plan, reads=replace(reads, pages=PageTables.of(tables)), own_strip=None), copied
