"""A ring in shared memory, through which weights of four bits and x of up to 8 tokens come to the threads.

With so few tokens a product takes as long as its bytes, and bytes come as fast as enough of them are on their way. A
load holds registers from when it is asked for, which limits `w4a16` to the weights of two spans of inputs ahead, and to
an x that is asked for when it is needed. A copy into shared memory (cp.async) holds none: here three or four spans of
weights, scales, zeros and x are on their way. From 9 tokens on x takes so much of the room that registers are faster.

A stage of the ring holds one span, in planes of 16 bytes for every thread:

    SPAN / 32 planes     words of weights
    SPAN / GROUP         8 bytes of scales, 4 of zeros, 4 that are free
    SPAN / 32            x of one token

Every thread copies what it will read itself, into its own 16 bytes of a plane. So threads never wait for each other,
and there is no barrier; a thread waits for its own copies alone. They are counted in groups (`commit`), one for every
span, an empty one where no span is left. With STAGES - 1 groups still on their way the oldest span has arrived; it is
read and multiplied, and its stage asked to be filled with the span that is STAGES further. Weights of two spans are
asked for before the launch in front has ended, x when it has.

The interpreter has no such copies: there, tiles with a ring go the way of those that have none. What Triton does not
see and the code relies on:

- A statement that reads has a row of four for each thread, like all operands of products; `held` brings that about,
  and `tests/compiled.py` looks whether it did.
- `allocated` is one number to Triton and another one in every thread. It is not a tensor because Triton repeats a
  statement, pure or not, for every layout that its result is wanted in: that would be two rings.
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

# The most of a ring: with what Triton takes beside it, the 48 KiB of a launch for which the driver is asked for no more. Triton
# asks by what it takes itself, and does not see the ring.
MOST_KIB = 45


def stage_bytes(span: int, group: int, threads: int = 64) -> int:
    """Shared memory of one span."""
    return 16 * threads * (2 * (span // 32) + span // group)


def _memory(kib: int) -> str:
    """Where a thread's 16 bytes of the first plane lie.

    If ptxas 12.8 sees that a part of this is the same in all threads, it may put the part into a uniform register, for
    which a copy with a policy has no place (`LDGSTS [R+UR], desc[UR]`): an illegal instruction. A shuffle of every
    thread with itself hides it.
    """
    return f"""{{
.shared .align 16 .b8 ring[{1024 * kib}];
.reg .b32 at, lane;
mov.u32 at, ring;
mov.u32 lane, %tid.x;
mad.lo.u32 at, lane, 16, at;
mov.u32 lane, %laneid;
shfl.sync.idx.b32 $0, at, lane, 31, 0xffffffff;
}}"""


def _copy(how: str, policy: str = "") -> str:
    """A copy to $1 from $2 if $3 is not 0; Triton wants a result, $0."""
    return f"{{\n.reg .pred there;\n{policy}setp.ne.b32 there, $3, 0;\n@there cp.async.{how};\nmov.b32 $0, 0;\n}}"


MEMORY = tl.constexpr(tuple(_memory(kib) for kib in range(MOST_KIB + 1)))
COPY_4 = tl.constexpr(_copy("ca.shared.global [$1], [$2], 4"))
COPY_8 = tl.constexpr(_copy("ca.shared.global [$1], [$2], 8"))
COPY_16 = tl.constexpr(_copy("ca.shared.global [$1], [$2], 16"))
COPY_ONCE = tl.constexpr(  # of weights, which no other program reads
    _copy(
        "cg.shared.global.L2::cache_hint [$1], [$2], 16, policy",
        ".reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n",
    )
)
COMMIT = tl.constexpr("cp.async.commit_group; // $0")
WAIT = tl.constexpr(tuple(f"cp.async.wait_group {count}; // $0" for count in range(8)))
READ_1 = tl.constexpr("ld.shared.b32 $0, [$4]; mov.b32 $1, $0; mov.b32 $2, $0; mov.b32 $3, $0;")
READ_2 = tl.constexpr("ld.shared.v2.b32 {$0, $1}, [$4]; mov.b32 $2, $0; mov.b32 $3, $1;")
READ_4 = tl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")


@triton.jit
def _copied(TEXT: tl.constexpr, slot, at, there):
    tl.inline_asm_elementwise(
        TEXT, "=r,r,l,r", [slot, at, there], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _read(TEXT: tl.constexpr, slot):
    """Words [threads, 4] at a slot [threads, 4], four times the same; of fewer than four, the same ones again."""
    return tl.inline_asm_elementwise(
        TEXT, "=r,=r,=r,=r,r,r,r,r", [slot], dtype=tl.int32, is_pure=False, pack=4
    )


@triton.jit
def held(x, thread, T):
    """Zeros int32 [threads, 4] that make every thread hold a row, once they are added to where it reads.

    Threads hold what they load as it lies in memory, and what is made of it likewise. So this is a load, of nothing.
    Triton does not see that the shifts leave zeros; LLVM does, and takes out both them and the load.
    """
    at = x + thread * 4 + tl.arange(0, 4)[None, :]
    none = tl.load(at, mask=tl.full((1, 4), T, tl.int32) < 0, other=0)
    return (none.to(tl.uint32, bitcast=True) >> 16 >> 16).to(tl.int32, bitcast=True)


@triton.jit
def allocated(BYTES: tl.constexpr):
    """So many bytes of shared memory: where each thread's slot of the first plane lies."""
    return tl.inline_asm_elementwise(
        MEMORY[BYTES // 1024], "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def ask_weights(
    slot,  # [threads, 1] int32, of the stage's first plane
    source,  # pointers [threads, 1] to words, scales and zeros; words from group to group of the last two
    span,
    end,
    STEPS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Ask for weights, scales and zeros of one span before the end."""
    PLANE: tl.constexpr = 16 * slot.shape[0]
    at_words, at_scales, at_zeros, scales_apart, zeros_apart = source
    there = (tl.full(slot.shape, span, tl.int32) < end).to(tl.int32)
    for step in tl.static_range(STEPS):
        _copied(COPY_ONCE, slot + step * PLANE, at_words + (span * STEPS + step) * 256, there)
    for i in tl.static_range(GROUPS):
        group, here = span * GROUPS + i, slot + (STEPS + i) * PLANE
        _copied(COPY_8, here, at_scales + group * scales_apart, there)
        _copied(COPY_4, here + 8, at_zeros + group * zeros_apart, there)


@triton.jit
def ask_inputs(slot, at_x, span, end, STEPS: tl.constexpr, GROUPS: tl.constexpr):
    """Ask for x of one span before the end, of one eight of tokens: at_x is one tensor of pointers [threads, 1]."""
    PLANE: tl.constexpr = 16 * slot.shape[0]
    there = (tl.full(slot.shape, span, tl.int32) < end).to(tl.int32)
    for step in tl.static_range(STEPS):
        here = slot + (STEPS + GROUPS + step) * PLANE
        _copied(COPY_16, here, at_x[0] + (span * STEPS + step) * 16, there)


@triton.jit
def commit():
    """All copies asked for since the last time are one group."""
    tl.inline_asm_elementwise(COMMIT, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def weights(slot, STAGES: tl.constexpr, STEPS: tl.constexpr, GROUPS: tl.constexpr):
    """Wait for the oldest span, at a slot [threads, 4]; its words (r, j), and of every group scales (r) and zeros (r, h)."""
    PLANE: tl.constexpr = 16 * slot.shape[0]
    tl.inline_asm_elementwise(WAIT[STAGES - 1], "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    words, factors = (), ()
    # Triton cannot unpack a tuple into another one, so tuples are added.
    for step in tl.static_range(STEPS):
        words = words + (_read(READ_4, slot + step * PLANE),)  # noqa: RUF005
    for i in tl.static_range(GROUPS):
        here = slot + (STEPS + i) * PLANE
        factors = factors + (_read(READ_2, here), _read(READ_1, here + 8))  # noqa: RUF005
    return words, factors


@triton.jit
def inputs(slot, step, STEPS: tl.constexpr, GROUPS: tl.constexpr):
    """X (j, c) of one step of the span that `weights` waited for."""
    PLANE: tl.constexpr = 16 * slot.shape[0]
    return _read(READ_4, slot + (STEPS + GROUPS + step) * PLANE)
