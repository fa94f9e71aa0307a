"""Plans, pasts and moves as lists of integers, and back: what travels between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from manyhands.cache.logprobs import Targets
from manyhands.cache.places import Ints, Move
from manyhands.cache.plan import PageTables, Plan, Reads
from manyhands.replay.merged import Merged

Arrays = list[Ints]
_PLAIN = ("token_ids", "row_indptr", "positions", "offsets", "slots")
_READS = ("row", "base", "low", "high", "strip_indptr")


def pack_int32(*arrays: NDArray[np.int32]) -> Arrays:
    """Arrays of int32 [n], two numbers in one: a recording's integers are a hundred kilobytes in every pass of a crowd."""
    sizes = list(map(len, arrays))
    packed = np.zeros(-(-sum(sizes) // 2), dtype=np.int64)
    np.concatenate(arrays, out=packed.view(np.int32)[: sum(sizes)])
    return [np.array(sizes, dtype=np.int64), packed]


def unpack_int32(arrays: Iterator[Ints]) -> list[NDArray[np.int32]]:
    """The arrays again; takes what holds them off the iterator."""
    ends = np.cumsum(next(arrays))
    return np.split(next(arrays).view(np.int32), ends)[:-1]


def pack_plan(plan: Plan) -> Arrays:
    """All of a plan that a pass needs; the marks that plans share stay with rank 0."""
    reads = plan.reads
    none = np.zeros(0, dtype=np.int64)
    perhaps = (plan.own_strip, plan.num_drafted)
    return [
        np.array([plan.page_size, *(each is not None for each in perhaps)], dtype=np.int64),
        *(getattr(plan, name) for name in _PLAIN),
        *(getattr(reads, name) for name in _READS),
        reads.pages.indptr,
        reads.pages.joined,
        *(none if each is None else each for each in perhaps),
    ]


def unpack_plan(arrays: Iterator[Ints]) -> Plan:
    """The plan again; takes its arrays off the iterator."""
    page_size, has_own, has_drafted = next(arrays).tolist()
    token_ids, row_indptr, positions, offsets, slots = (next(arrays) for _ in _PLAIN)
    row, base, low, high, strip_indptr = (next(arrays) for _ in _READS)
    indptr, pages = next(arrays), next(arrays)
    own, drafted = next(arrays), next(arrays)
    return Plan(
        token_ids=token_ids,
        row_indptr=row_indptr,
        positions=positions,
        offsets=offsets,
        slots=slots,
        reads=Reads(row, base, low, high, strip_indptr, PageTables(pages, indptr)),
        page_size=page_size,
        own_strip=own if has_own else None,
        num_drafted=drafted if has_drafted else None,
    )


def pack_targets(targets: Targets | None) -> Arrays:
    """One array [3, P], or none."""
    if targets is None:
        return []
    return [np.array((targets.at, targets.tokens, targets.top), dtype=np.int64).reshape(-1)]


def unpack_targets(arrays: Iterator[Ints]) -> Targets | None:
    """The targets again, if an array is left."""
    found = next(arrays, None)
    if found is None:
        return None
    at, tokens, top = found.reshape(3, -1).tolist()
    return Targets(tuple(at), tuple(tokens), tuple(top))


def pack_moves(moves: Sequence[Move]) -> Arrays:
    """Shifts, sizes, and all slots one behind another."""
    return [
        np.array([move.shift for move in moves], dtype=np.int64),
        np.array([len(move.sources) for move in moves], dtype=np.int64),
        *(
            np.concatenate([getattr(move, name) for move in moves])
            for name in ("sources", "targets")
        ),
    ]


def unpack_moves(arrays: Iterator[Ints]) -> list[Move]:
    """The moves again."""
    shifts, sizes, sources, targets = (next(arrays) for _ in range(4))
    ends = np.cumsum(sizes)[:-1]
    return [
        Move(sources=source, targets=target, shift=shift)
        for shift, source, target in zip(
            shifts.tolist(), np.split(sources, ends), np.split(targets, ends), strict=True
        )
    ]


def pack_merged(merged: Merged) -> Arrays:
    """A whole past."""
    return [*pack_plan(merged.plan), merged.slot_token, merged.slot_offset, merged.pass_indptr]


def unpack_merged(arrays: Iterator[Ints]) -> Merged:
    """The past again."""
    return Merged(unpack_plan(arrays), next(arrays), next(arrays), next(arrays))
