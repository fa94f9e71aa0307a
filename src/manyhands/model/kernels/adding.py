"""Adding up the parts of a product whose inputs were cut into parts for several programs.

Every program leaves its part in memory and counts itself; the last one to arrive adds up all parts,
in their order, so that results repeat whoever is last.
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_up(acc, partial, where, mask, size, counter, part, PARTS: tl.constexpr):
    """(The sum of all parts, whether this program is the last); only the last one's sum is whole.

    `partial` holds PARTS pieces of `size` float32; `counter` is 0 before and after.
    """
    tl.store(partial + part * size + where, acc, mask=mask)
    tl.debug_barrier()  # of all threads, before the one that counts
    last = tl.atomic_add(counter, 1, sem="acq_rel") == PARTS - 1
    if last:
        acc = tl.zeros_like(acc)
        for other in range(PARTS):
            at = partial + other * size + where
            acc += tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
        tl.store(counter, 0)  # ready for the next product
    return acc, last


@triton.jit
def is_last(counter, parts):
    """Whether all other parts have left their sums. The last part puts the counter back to 0 when it has read them."""
    tl.debug_barrier()  # of all threads, before the one that counts
    return tl.atomic_add(counter, 1, sem="acq_rel") == parts - 1


@triton.jit
def sum_of_parts(partial, where, mask, size, parts, BATCH: tl.constexpr):
    """The sums that all parts have left at `where`, added in their order; BATCH of them are asked for at a time."""
    total = tl.zeros_like(where).to(tl.float32)
    for first in range(0, parts, BATCH):
        for i in tl.static_range(BATCH):
            at = partial + (first + i) * size + where
            is_one = mask & (tl.full(where.shape, first + i, tl.int32) < parts)
            total += tl.load(at, mask=is_one, other=0.0, cache_modifier=".cg")
    return total
