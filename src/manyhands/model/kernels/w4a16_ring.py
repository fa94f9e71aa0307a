"""A ring in shared memory, through which weights of four bits and x of up to 16 tokens come to the threads.

With so few tokens a product takes as long as its bytes, and bytes come as fast as enough of them are on their way. A
load holds registers from when it is asked for, which limits `w4a16` to the weights of two spans of inputs ahead, and to
an x that is asked for when it is needed. A copy into shared memory (cp.async) holds none: here two or three spans of
weights, scales, zeros and x are on their way.

A stage of the ring holds one span, in planes of 16 bytes for a thread:

    SPAN / 32 planes of all threads             words of weights
    SPAN / GROUP of every fourth thread         8 bytes of scales, 4 of zeros, 4 that are free
    SPAN / 32 for each eight of tokens, of 32   x

Words, scales and zeros are read by the warp that copied them, x by all warps of a program, so it comes once: copied by
each warp for itself, x took a tenth of the time of four tokens. One group of copies (`copies.py`) is one span. All weights that
the ring has room for are asked for before the launch in front has ended, x when it has.
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from manyhands.model.kernels import copies


def stage_bytes(span: int, group: int, eights: int = 1, warps: int = 4) -> int:
    """Shared memory of one span."""
    return 512 * (span // 32) * (warps + eights) + 128 * (span // group) * warps


@triton.jit
def ask_weights(
    stage,
    thread,  # [threads, 1] int32
    source,  # pointers [threads, 1] to words, scales and zeros; words from group to group of the last two
    span,
    end,
    STEPS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Ask for weights, scales and zeros of one span before the end."""
    THREADS: tl.constexpr = thread.shape[0]
    at_words, at_scales, at_zeros, scales_apart, zeros_apart = source
    there = tl.full(thread.shape, span, tl.int32) < end
    for step in tl.static_range(STEPS):
        slot = stage + thread * 16 + step * (16 * THREADS)
        copies.copied_once(step, slot, at_words + span * (STEPS * 256), there.to(tl.int32))
    is_first = (there & (thread % 4 == 0)).to(tl.int32)
    for i in tl.static_range(GROUPS):
        group, slot = span * GROUPS + i, stage + thread * 4 + (4 * STEPS + i) * (4 * THREADS)
        copies.copied(copies.COPY_8, slot, at_scales + group * scales_apart, is_first)
        copies.copied(copies.COPY_4, slot + 8, at_zeros + group * zeros_apart, is_first)


@triton.jit
def ask_inputs(
    stage,
    thread,
    at_x,  # pointers [threads, 1] to x of the planes that a thread copies
    span,
    end,
    STEPS: tl.constexpr,
    GROUPS: tl.constexpr,
    PLANES: tl.constexpr,
):
    """Ask for x of one span before the end."""
    THREADS: tl.constexpr = thread.shape[0]
    there = tl.full(thread.shape, span, tl.int32) < end
    for i in tl.static_range(len(at_x)):
        slot = stage + (thread + i * THREADS) * 16 + (4 * STEPS + GROUPS) * (4 * THREADS)
        is_plane = there & (thread + i * THREADS < 32 * PLANES)
        copies.copied(copies.COPY_16, slot, at_x[i] + span * (STEPS * 16), is_plane.to(tl.int32))


@triton.jit
def weights(stage, thread, STEPS: tl.constexpr, GROUPS: tl.constexpr):
    """Of a stage [threads, 4] its words (r, j), and of every group scales (r) and zeros (r, h)."""
    THREADS: tl.constexpr = thread.shape[0]
    words, factors = (), ()
    # Triton cannot unpack a tuple into another one, so tuples are added.
    for step in tl.static_range(STEPS):
        words = words + (copies.read(copies.READ_4, stage + thread * 16 + step * (16 * THREADS)),)  # noqa: RUF005
    for i in tl.static_range(GROUPS):
        slot = stage + thread // 4 * 16 + (4 * STEPS + i) * (4 * THREADS)
        factors = factors + (copies.read(copies.READ_2, slot), copies.read(copies.READ_1, slot + 8))  # noqa: RUF005
    return words, factors


@triton.jit
def inputs(stage, thread, plane, STEPS: tl.constexpr, GROUPS: tl.constexpr):
    """Of a stage [threads, 4] x (j, c) of one plane."""
    THREADS: tl.constexpr = thread.shape[0]
    slot = stage + thread % 32 * 16 + (4 * STEPS + GROUPS) * (4 * THREADS) + plane * 512
    return copies.read(copies.READ_4, slot)
