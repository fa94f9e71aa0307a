"""A work list on its device: one buffer of integers, sent in one piece.

Every array of the list has its section in one int32 buffer, so that a pass costs one transfer, however
many rows it has. A section may be larger than its array: the rest is padding that the kernels skip. With
sizes fixed that way (`Capacity`), the buffer stays where it is, and a CUDA graph can be replayed over it.

For a graph the buffer also has a twin, `growth`: what is added to it when the same rows are fed one token
each once more. A step of plain decoding then sends nothing at all.

    T  new tokens      R  rows      E  entries      I  items
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyhands.attention.kernels.overlap import launch_options
from manyhands.attention.kernels.tables import tables_kernel
from manyhands.attention.rotary import Rope
from manyhands.attention.work import ALIGNED, Cutting, Occupancy, Work, power_of_two
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan
from manyhands.native import compiled as native
from manyhands.native.plain import ITEM_FIELDS

# Fields of a capacity: its launches.
_CHOSEN_BY = ("small_rows", "large_rows", "occupancy", "is_specialised")
_SIZES = ("tokens", "rows", "entries", "pages", "small", "large", "partials")
Int32s = NDArray[np.int32]
# Tokens of passes of a team in which steps have ended: most are no powers of two.
ENDED = (12, 24, 28, 32, 40, 48)
_COSTLY = 128  # tokens, from which on a pass takes longer the more it has
_CLOSE = 208  # tokens up to which it takes longer with every sixteen; beyond, with every tile of a product
_TOKENS_APART = 64  # sizes of passes beyond that; a tile of a product
_TOKENS_CLOSE = 16
_TABLE = 1024  # cosines of a program
NO_PAGE = -1  # in `key_page`: a token of padding, whose key is not stored


@dataclass(frozen=True)
class Capacity:
    """How much of everything a buffer has room for, and what its launches are chosen by."""

    tokens: int
    rows: int
    entries: int
    pages: int
    small: int  # items
    large: int
    partials: int
    most_partials: int  # of one token
    small_rows: int
    large_rows: int
    occupancy: int  # of the list itself, whatever room it has
    is_specialised: bool = False  # whether large tiles are specialised
    in_turns: bool = False  # whether a program for each processor takes several of these
    first_merged: int = 0  # tokens, see `Work`
    end_merged: int = 0

    @classmethod
    def of(cls, plan: Plan, work: Work) -> Capacity:
        """Exactly what this work list needs."""
        return cls(
            tokens=plan.num_tokens,
            rows=len(plan.heads),
            entries=len(work.entries.token),
            pages=len(work.pages),
            small=len(work.small),
            large=len(work.large),
            partials=work.num_partials,
            most_partials=work.most_partials,
            small_rows=work.small_rows,
            large_rows=work.large_rows,
            occupancy=work.occupancy,
            is_specialised=work.is_specialised and len(work.large) > 0,
            in_turns=work.in_turns,
            first_merged=work.first_merged,
            end_merged=work.end_merged,
        )

    def rounded(self) -> Capacity:
        """With every size rounded up to a power of two, so that few capacities serve many passes.

        Tokens are rounded up to tiles of the products where they cost: those of 576 take three quarters of the
        time of those of 768. The facts by which launches are chosen stay as they are; occupancy is less than three.
        """

        def up(size: int) -> int:
            return 1 << (size - 1).bit_length() if size else 0

        sizes: dict[str, Any] = {
            field.name: up(getattr(self, field.name)) for field in fields(self)
        }
        sizes |= {"tokens": rounded_tokens(self.tokens)}
        sizes |= {"small_rows": self.small_rows, "large_rows": self.large_rows}
        sizes |= {"is_specialised": self.is_specialised, "in_turns": self.in_turns}
        # One partial per token would be taken to be the output itself, and padding has none.
        return Capacity(**sizes | {"most_partials": max(2, sizes["most_partials"])})

    @cached_property
    def cutting(self) -> Cutting:
        """The kernels that are launched with this capacity: a plan is to be cut for them."""
        large_rows = self.large_rows if self.large else 0
        is_specialised = self.is_specialised and large_rows > 0
        return Cutting(self.small_rows, large_rows, Occupancy(self.occupancy), is_specialised)

    def holds(self, plan: Plan, work: Work) -> bool:
        """Whether a plan fits that was cut for these kernels, whatever it costs.

        Partials are merged in as many rounds as a token has, so the most of one token need not fit.
        """
        return (
            self.tokens >= plan.num_tokens
            and self.rows >= len(plan.heads)
            and self.entries >= len(work.entries.token)
            and self.pages >= len(work.pages)
            and self.small >= len(work.small)
            and self.large >= len(work.large)
            and self.partials >= work.num_partials
        )

    def serves(self, other: Capacity) -> bool:
        """Whether passes of the other capacity can be run with this one, at not much more than their cost."""
        return (
            all(getattr(self, name) >= getattr(other, name) for name in _SIZES)
            and self.most_partials >= other.most_partials
            and all(getattr(self, name) == getattr(other, name) for name in _CHOSEN_BY)
            and self.tokens <= max(16, other.tokens)
            and bool(self.small) == bool(other.small)
            and bool(self.large) == bool(other.large)
        )

    def sections(self) -> Iterator[tuple[str, int, int]]:
        """Name, beginning and size of every section, in order.

        Each begins at a multiple of 16 bytes: Triton compiles a kernel anew for every combination of
        pointers that do and do not.
        """
        start = 0
        for name, size in self._sizes():
            yield name, start, size
            start += -(-size // ALIGNED) * ALIGNED

    @cached_property
    def places(self) -> tuple[tuple[str, ...], Ints]:
        """Names of the sections, and where they begin and how long they are [2, sections]."""
        names, starts, sizes = zip(*self.sections(), strict=True)
        return names, np.array((starts, sizes), dtype=np.int64)

    def _sizes(self) -> Iterator[tuple[str, int]]:
        # The two lists of offsets stand together: tables of rotation are made of both at once.
        yield "token_ids", self.tokens
        yield "last", self.rows
        yield "key_page", self.tokens
        yield "position", self.tokens
        yield "entry_token", self.entries
        yield "entry_low", self.entries
        yield "entry_high", self.entries
        yield "entry_partial", self.entries
        yield "entry_offset", self.entries
        yield "key_offset", self.tokens
        yield "partial_indptr", self.tokens + 1
        yield "small", self.small * ITEM_FIELDS
        yield "large", self.large * ITEM_FIELDS
        yield "pages", self.pages

    @property
    def num_integers(self) -> int:
        """Size of the buffer."""
        return sum(-(-size // ALIGNED) * ALIGNED for _, size in self._sizes())

    @cached_property
    def num_growing(self) -> int:
        """Integers, from the first one on, of which some grow from step to step."""
        return next(start for name, start, _ in self.sections() if name == "partial_indptr")

    def num_used(self, work: Work) -> int:
        """Integers, from the first one on, that a plan's are in."""
        _, places = self.places
        return int(places[0, -1]) + len(work.pages)


@cache
def rounded_tokens(count: int) -> int:
    """The size of a recorded pass of so many tokens: a power of two, then a multiple of sixteen, then one of a tile.

    Between small powers stand those of `ENDED`: products read their inputs as often as there are tiles of outputs,
    padding too.
    """
    if count <= _COSTLY:
        return tokens_of_ended(count) or 1 << (count - 1).bit_length()
    if count <= _CLOSE:
        return -(-count // _TOKENS_CLOSE) * _TOKENS_CLOSE
    apart = max(_TOKENS_APART, (1 << (count - 1).bit_length()) // 16)
    return -(-count // apart) * apart


@cache
def tokens_of_ended(count: int) -> int:
    """The size of `ENDED` for so many tokens; 0 if a power of two is as near."""
    power = 1 << (count - 1).bit_length()
    return next((size for size in ENDED if count <= size <= power), 0)


def pack(plan: Plan, work: Work, capacity: Capacity, buffer: Int32s) -> None:
    """Write everything into its section of `buffer` [num_integers]; what is left is padding.

    But for pages, which stand last: nothing looks behind the plan's own, so these stay what they were, and need not be sent.
    """
    entries = work.entries
    arrays = {
        "token_ids": plan.token_ids,
        "last": plan.heads,
        "key_page": work.key_page,
        "position": plan.positions,
        "entry_token": entries.token,
        "entry_low": entries.low,
        "entry_high": entries.high,
        "entry_partial": work.entry_partial,
        "entry_offset": entries.offset,
        "key_offset": plan.offsets,
        "partial_indptr": work.partial_indptr,
        "small": work.small,
        "large": work.large,
        "pages": work.pages,
    }
    padding = {"key_page": NO_PAGE, "partial_indptr": work.num_partials}
    padding["last"] = int(plan.heads[0]) if len(plan.heads) else 0  # sound if the others are
    names, places = capacity.places
    assert names == tuple(arrays), "sections are written in their order"
    places = places.copy()
    places[1, -1] = len(work.pages)
    native.pack(buffer, places, [padding.get(name, 0) for name in names], list(arrays.values()))


def pack_growth(plan: Plan, work: Work, capacity: Capacity, buffer: Int32s) -> None:
    """The growth of the first integers, into `buffer` [num_growing], from one step of plain decoding to the next."""
    assert plan.growth is not None, "a replayed plan does not grow"
    read = work.entries.read
    row = plan.reads.row[read]
    arrays = {
        "entry_offset": plan.growth.position[row] - plan.growth.base[read],
        "entry_high": plan.growth.high[read],
        "key_offset": np.ones(plan.num_tokens, dtype=np.int64),
        "position": plan.growth.position,
    }
    buffer[:] = 0
    for name, start, _ in capacity.sections():
        if name in arrays:
            buffer[start : start + len(arrays[name])] = arrays[name]


class Prepared:
    """The sections of a buffer [num_integers] on a device, and the rotation tables made of its offsets."""

    token_ids: Tensor
    last: Tensor
    key_page: Tensor
    position: Tensor
    entry_token: Tensor
    entry_low: Tensor
    entry_high: Tensor
    entry_partial: Tensor
    entry_offset: Tensor
    key_offset: Tensor
    partial_indptr: Tensor
    small: Tensor
    large: Tensor
    pages: Tensor

    def __init__(self, buffer: Tensor, capacity: Capacity, page_size: int) -> None:
        self.buffer = buffer
        self.capacity = capacity
        self.page_size = page_size
        starts = {}
        for name, start, size in capacity.sections():
            setattr(self, name, buffer[start : start + size])
            starts[name] = start
        first, self.key_tables = (
            starts["entry_offset"],
            starts["key_offset"] - starts["entry_offset"],
        )
        self._offsets = buffer[first : first + self.key_tables + capacity.tokens]
        self._tables: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._lows: dict[int, Tensor] = {}

    def token_ids_and_last(self) -> tuple[Tensor, Tensor]:
        """Tokens [T] and heads [R], as int64: what a network looks up with. Both stand at the beginning, so it is one launch."""
        begin = self.last.storage_offset() - self.buffer.storage_offset()
        both = self.buffer[: begin + self.capacity.rows].long()
        return both[: self.capacity.tokens], both[begin:]

    def tables(self, rope: Rope | None, half: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [n, half] float32: of the entries' offsets, from `key_tables` on of the keys'.

        Pairs that are not rotated have frequency 0. Made once per pass and set of frequencies.
        """
        key = (id(rope), half)
        if key not in self._tables:
            self._tables[key] = _tables(self._offsets, rope, half)
        return self._tables[key]

    def lows(self, chunk: int | None) -> Tensor:
        """First keys [entries] int32 that entries see in a layer with such chunks. Made once per pass and chunk.

        A chunk begins at a multiple of its length in the view, so on each strip elsewhere for every row.
        """
        if chunk is None:
            return self.entry_low
        if chunk not in self._lows:
            behind = (self.position % chunk).index_select(0, self.entry_token)
            self._lows[chunk] = torch.maximum(self.entry_low, self.entry_offset - behind)
        return self._lows[chunk]


def _tables(offsets: Tensor, rope: Rope | None, half: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, half] float32 of offsets [N] int32, in one launch."""
    cos = torch.empty(len(offsets), half, dtype=torch.float32, device=offsets.device)
    sin = torch.empty_like(cos)
    rotated = cos[:0, 0] if rope is None else rope.inv_freq.float()
    width = power_of_two(half)
    rows = max(1, _TABLE // width)
    kernel: Any = tables_kernel
    kernel[(-(-len(offsets) // rows),)](
        offsets,
        rotated,
        cos,
        sin,
        len(offsets),
        len(rotated),
        HALF=half,
        WIDTH=width,
        ROWS=rows,
        **launch_options(offsets.device),
    )
    return cos, sin


def frequencies(rope: Rope | None, half: int, device: torch.device) -> Tensor:
    """Radians per position of every pair of dims [half] float32; 0 for pairs that are not rotated."""
    if rope is None:
        return torch.zeros(half, device=device)
    rotary = rope.inv_freq.float()
    return torch.nn.functional.pad(rotary, (0, half - len(rotary)))
