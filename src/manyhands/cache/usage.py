"""Counts of what was computed: passes, tokens, and the keys and values that were read for them.

Every row of a pass reads all of its view. Keys of one strip are loaded once for all rows that read
it; `kv_bytes_saved` is what it would have cost to load it for each of them. Counted from the integers
of the plan, with a few sums per pass.

    loaded   the keys that any row reads, each once                        Plan.num_keys_loaded
    saved    sum over reads of the keys that they name  -  loaded          Plan.num_keys_read

Where several runs meet on a strip, each is charged for it by how much of it its rows read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from manyhands.cache.step import Step

if TYPE_CHECKING:  # a command line that asks for help needs no arrays
    from manyhands.cache.places import Ints
    from manyhands.cache.plan import Plan


@dataclass(frozen=True, init=False)
class Usage:
    """The work of an engine, or of one run, so far.

    `tokens_chosen` counts rows that have a writer (`Row.writer`). `prefix_tokens_found` and
    `prefix_tokens_fed` are those of the engine's prefix tree: of all prompts that asked there, what was
    found and what had to be fed. `tokens_drafted` are the engine's guesses that passes have checked, and of them
    `tokens_accepted` were what a row then wrote (`engine/speculation.py`).
    """

    forward_passes: int = 0
    tokens_fed: int = 0
    tokens_chosen: int = 0
    kv_bytes_loaded: int = 0
    kv_bytes_saved: int = 0
    prefix_tokens_found: int = 0
    prefix_tokens_fed: int = 0
    tokens_drafted: int = 0
    tokens_accepted: int = 0

    def __init__(
        self,
        forward_passes: int = 0,
        tokens_fed: int = 0,
        tokens_chosen: int = 0,
        kv_bytes_loaded: int = 0,
        kv_bytes_saved: int = 0,
        prefix_tokens_found: int = 0,
        prefix_tokens_fed: int = 0,
        tokens_drafted: int = 0,
        tokens_accepted: int = 0,
    ) -> None:
        # Two for each run of each pass: that of a frozen dataclass takes twice as long.
        counts = self.__dict__
        counts["forward_passes"], counts["tokens_fed"] = forward_passes, tokens_fed
        counts["tokens_chosen"] = tokens_chosen
        counts["kv_bytes_loaded"], counts["kv_bytes_saved"] = kv_bytes_loaded, kv_bytes_saved
        counts["prefix_tokens_found"] = prefix_tokens_found
        counts["prefix_tokens_fed"] = prefix_tokens_fed
        counts["tokens_drafted"], counts["tokens_accepted"] = tokens_drafted, tokens_accepted

    def __add__(self, other: Self) -> Self:
        total = object.__new__(type(self))  # every run of every pass is charged by it
        counts, ours, theirs = total.__dict__, self.__dict__, other.__dict__
        for name in _COUNTS:
            counts[name] = ours[name] + theirs[name]
        return total

    def __sub__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]
        return type(self)(*(getattr(self, name) - getattr(other, name) for name in names))


_COUNTS = tuple(field.name for field in fields(Usage))


def usage_of(plan: Plan, step: Step, token_bytes: int) -> Usage:
    """The work of one pass; `token_bytes` are those of one token's keys and values in all layers."""
    loaded = plan.num_keys_loaded
    return Usage(
        1,
        plan.num_tokens,
        sum(row.writer is not None for row in step.rows),
        loaded * token_bytes,
        (plan.num_keys_read - loaded) * token_bytes,
    )


def usage_of_each(
    plan: Plan,
    owner: Sequence[int],
    is_written: Sequence[bool],
    num_owners: int,
    token_bytes: int,
) -> list[Usage]:
    """The work of one pass for each owner of rows in it; bytes add up to those of `usage_of`, but for rounding.

    Of each row of the plan, `owner` says whose it is, `is_written` whether its token is for a writer
    (`Row.writer`). An owner without a row has made no pass.
    """
    import numpy as np

    owners = np.asarray(owner)
    reads = plan.reads
    sizes = reads.high - reads.low
    starts, ends = reads.strip_indptr[:-1], reads.strip_indptr[1:]
    charge = plan.keys_loaded / np.maximum(1, np.add.reduceat(sizes, starts))
    loaded: Any = sizes * charge.repeat(ends - starts)
    readers = owners[reads.row]  # [n]: whose each read is

    def each(index: Ints, amount: Ints | None = None) -> Ints:
        sums: Ints = np.bincount(index, amount, num_owners)
        return sums

    of_loaded, of_read = each(readers, loaded), each(readers, sizes)
    counts = (
        np.minimum(each(owners), 1),
        each(owners, plan.row_indptr[1:] - plan.row_indptr[:-1]),
        each(owners, np.asarray(is_written)),
        of_loaded * token_bytes,
        (of_read - of_loaded) * token_bytes,
    )
    whole = np.rint(counts).astype(np.int64)  # [counts, owners]
    return [Usage(*counted) for counted in whole.T.tolist()]
