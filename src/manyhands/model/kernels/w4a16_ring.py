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
each warp for itself, x took a tenth of the time of four tokens. Copies are counted in groups (`commit`), one for every
span, an empty one where no span is left. With STAGES - 2 groups still on their way a thread's share of the oldest span
has arrived, and behind a barrier that of all threads (`arrived`). By then all have read the span before, whose stage is
asked to be filled anew. All weights that the ring has room for are asked for before the launch in front has ended, x
when it has.

The interpreter has no such copies: there, tiles with a ring go the way of those that have none. What Triton does not
see and the code relies on:

- A statement that reads has a row of four for each thread, like all operands of products; `held` brings that about,
  and `tests/compiled.py` looks whether it did.
- `allocated` is one number, not a tensor, because Triton repeats a statement, pure or not, for every layout that its
  result is wanted in: that would be two rings.
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

# The most of a ring: with what Triton takes beside it, the 48 KiB of a launch for which the driver is asked for no more. Triton
# asks by what it takes itself, and does not see the ring.
MOST_KIB = 44


def stage_bytes(span: int, group: int, eights: int = 1, warps: int = 4) -> int:
    """Shared memory of one span."""
    return 512 * (span // 32) * (warps + eights) + 128 * (span // group) * warps


def _memory(kib: int) -> str:
    """Where it lies.

    If ptxas 12.8 sees that a part of an address is the same in all threads, it may put the part into a uniform register,
    for which a copy with a policy has no place (`LDGSTS [R+UR], desc[UR]`): an illegal instruction. A shuffle of every
    thread with itself hides it.
    """
    return f"""{{
.shared .align 16 .b8 ring[{1024 * kib}];
.reg .b32 at, lane;
mov.u32 at, ring;
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
COPY_ONCE = tl.constexpr(  # of one step's weights, which no other program reads
    tuple(
        _copy(
            f"cg.shared.global.L2::cache_hint [$1], [$2 + {1024 * step}], 16, policy",
            ".reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n",
        )
        for step in range(4)
    )
)
COMMIT = tl.constexpr("cp.async.commit_group; // $0")
WAIT = tl.constexpr(tuple(f"cp.async.wait_group {count};\nbar.sync 0; // $0" for count in range(8)))
READ_1 = tl.constexpr("ld.shared.b32 $0, [$4]; mov.b32 $1, $0; mov.b32 $2, $0; mov.b32 $3, $0;")
READ_2 = tl.constexpr("ld.shared.v2.b32 {$0, $1}, [$4]; mov.b32 $2, $0; mov.b32 $3, $1;")
READ_4 = tl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")


@triton.jit
def _copied(TEXT: tl.constexpr, slot, at, there):
    tl.inline_asm_elementwise(
        TEXT, "=r,r,l,r", [slot, at, there], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _copied_once(STEP: tl.constexpr, slot, at, there):
    tl.inline_asm_elementwise(
        COPY_ONCE[STEP], "=r,r,l,r", [slot, at, there], dtype=tl.int32, is_pure=False, pack=1
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
    """Where so many bytes of shared memory lie."""
    return tl.inline_asm_elementwise(
        MEMORY[(BYTES + 1023) // 1024], "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


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
        _copied_once(step, slot, at_words + span * (STEPS * 256), there.to(tl.int32))
    is_first = (there & (thread % 4 == 0)).to(tl.int32)
    for i in tl.static_range(GROUPS):
        group, slot = span * GROUPS + i, stage + thread * 4 + (4 * STEPS + i) * (4 * THREADS)
        _copied(COPY_8, slot, at_scales + group * scales_apart, is_first)
        _copied(COPY_4, slot + 8, at_zeros + group * zeros_apart, is_first)


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
        _copied(COPY_16, slot, at_x[i] + span * (STEPS * 16), is_plane.to(tl.int32))


@triton.jit
def commit():
    """All copies asked for since the last time are one group."""
    tl.inline_asm_elementwise(COMMIT, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def arrived(STAGES: tl.constexpr):
    """Wait for the oldest span, and until all threads have read the one before."""
    tl.inline_asm_elementwise(WAIT[STAGES - 2], "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def weights(stage, thread, STEPS: tl.constexpr, GROUPS: tl.constexpr):
    """Of a stage [threads, 4] its words (r, j), and of every group scales (r) and zeros (r, h)."""
    THREADS: tl.constexpr = thread.shape[0]
    words, factors = (), ()
    # Triton cannot unpack a tuple into another one, so tuples are added.
    for step in tl.static_range(STEPS):
        words = words + (_read(READ_4, stage + thread * 16 + step * (16 * THREADS)),)  # noqa: RUF005
    for i in tl.static_range(GROUPS):
        slot = stage + thread // 4 * 16 + (4 * STEPS + i) * (4 * THREADS)
        factors = factors + (_read(READ_2, slot), _read(READ_1, slot + 8))  # noqa: RUF005
    return words, factors


@triton.jit
def inputs(stage, thread, plane, STEPS: tl.constexpr, GROUPS: tl.constexpr):
    """Of a stage [threads, 4] x (j, c) of one plane."""
    THREADS: tl.constexpr = thread.shape[0]
    slot = stage + thread % 32 * 16 + (4 * STEPS + GROUPS) * (4 * THREADS) + plane * 512
    return _read(READ_4, slot)
