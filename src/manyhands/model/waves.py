"""The rows of a pass through layers that keep a state, wave by wave, in integers.

A row that forks from a text which this very pass feeds is made behind it; all others are made at once (`cache/states.py::RowStates.waves`).
Such rows are a wave. They may be fed any number of tokens each, and are ordered by that number. Three readers want the same rows differently:

    Hugging Face's forward    rows that are fed equally many tokens, as one batch (`alike`)
    kernels of one token      the rows in front that are fed one (`num_single`)
    kernels of chunks         the others, cut into chunks of 64 tokens, and these into launches (`cuts`)

A row that is cut by the end of a launch goes on in the next one from its own target:

    rows of 1, 1, 70, 2100 tokens     chunks of 64 6 | 64 ... 64      pieces of a launch: both of row 2 and 30 of row 3
                                             64 64 52                                     3 of row 3, which has begun

What is made of rows is made once for a pass, when a layer first asks for it, and lies on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64  # tokens
MOST_CHUNKS = 32  # of one launch: they bound the memory that chunks need at once
# Integers of a chunk, and of a piece: a row's chunks in one launch.
#   chunk   first token, tokens, tokens of its row in front of it, row, whether it is the row's last
#   piece   first token, tokens, first chunk in the launch, row, whether the row has begun in an earlier one
COLUMNS = 5


class Alike(NamedTuple):
    """Rows of a wave that are fed equally many tokens."""

    at: Tensor  # [rows, length] int64: their tokens
    sources: Tensor  # [rows] int64
    targets: Tensor  # [rows] int64


class ChunkLaunch(NamedTuple):
    """The chunks of one launch."""

    chunks: Tensor  # [chunks, COLUMNS] int32
    pieces: Tensor  # [rows of them, COLUMNS] int32


@dataclass(frozen=True, eq=False)
class Wave:
    """Rows that are made at once: none reads what another one leaves. Rows that are fed fewest tokens come first."""

    first_tokens: tuple[int, ...]  # of each row, whose tokens lie one behind another
    counts: tuple[int, ...]  # tokens of each row, ascending
    begins: Tensor  # [rows] int64: the first tokens
    sources: Tensor  # [rows] int64: slots, which may be named twice
    targets: Tensor  # [rows] int64; those of padding may be one slot

    @cached_property
    def num_single(self) -> int:
        """Rows that are fed one token: they come first."""
        return self.counts.count(1)

    @cached_property
    def single_tokens(self) -> Tensor | None:
        """[num_single] int64: the tokens of these; None if they are the first ones of the pass in order."""
        firsts = self.first_tokens[: self.num_single]
        return None if firsts == tuple(range(len(firsts))) else self.begins[: len(firsts)]

    @cached_property
    def alike(self) -> tuple[Alike, ...]:
        """All rows, by how many tokens they are fed."""
        found = []
        for count, group in groupby(range(len(self.counts)), self.counts.__getitem__):
            rows = list(group)
            own = slice(rows[0], rows[-1] + 1)
            at = self.begins[own, None]
            if count > 1:
                at = at + torch.arange(count, device=at.device)
            found.append(Alike(at, self.sources[own], self.targets[own]))
        return tuple(found)

    @cached_property
    def _table(self) -> tuple[Tensor, list[tuple[int, int]]]:
        """All chunks and the pieces of all launches, and how many chunks and pieces each launch has."""
        chunks = list(self._chunks())
        launches = [chunks[i : i + MOST_CHUNKS] for i in range(0, len(chunks), MOST_CHUNKS)]
        pieces, sizes = [], []
        for launch in launches:
            own = []
            for row, group in groupby(enumerate(launch), lambda each: each[1][3]):
                numbered = list(group)
                number, (first, _, before, *_) = numbered[0]
                tokens = sum(chunk[1] for _, chunk in numbered)
                own.append((first, tokens, number, row, int(before > 0)))
            pieces += own
            sizes.append((len(launch), len(own)))
        table = torch.tensor(chunks + pieces, dtype=torch.int32, device=self.begins.device)
        return table.reshape(-1, COLUMNS), sizes

    def _chunks(self) -> Iterator[tuple[int, int, int, int, int]]:
        for row, (first, count) in enumerate(zip(self.first_tokens, self.counts, strict=True)):
            for before in range(0, count if count > 1 else 0, CHUNK):
                left = count - before
                yield first + before, min(CHUNK, left), before, row, int(left <= CHUNK)

    @property
    def chunks(self) -> Tensor:
        """[chunks, COLUMNS] int32: of all rows that are fed more than one token."""
        table, sizes = self._table
        return table[: sum(chunks for chunks, _ in sizes)]

    @cached_property
    def cuts(self) -> tuple[ChunkLaunch, ...]:
        """The launches that these chunks take, in their order."""
        if self.num_single == len(self.counts):
            return ()
        table, sizes = self._table
        chunk, piece, found = 0, sum(chunks for chunks, _ in sizes), []
        for chunks, pieces in sizes:
            found.append(ChunkLaunch(table[chunk : chunk + chunks], table[piece : piece + pieces]))
            chunk, piece = chunk + chunks, piece + pieces
        return tuple(found)
