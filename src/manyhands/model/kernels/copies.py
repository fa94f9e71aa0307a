"""Copies into shared memory that the hardware makes by itself (cp.async), for a ring of stages through which weights come.

A load holds registers from when it is asked for, a copy holds none, so more bytes are on their way. Copies are counted in groups
(`commit`), an empty one where nothing is left to be asked for. With STAGES - 2 groups still on their way a thread's share of the
oldest stage has arrived, and behind a barrier that of all threads that share it: of a program (`arrived`), or of a warp that
reads nothing but its own (`arrived_in_warp`). By then all of them have read the stage before, which may be filled anew.

The interpreter has no such copies: there, tiles with a ring go the way of tiles that have none. What Triton does not
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
COPY_4_OR_ZERO = tl.constexpr(  # zeros if $3 is 0
    "{\n.reg .b32 size;\nshl.b32 size, $3, 2;\n"
    "cp.async.ca.shared.global [$1], [$2], 4, size;\nmov.b32 $0, 0;\n}"
)
COMMIT = tl.constexpr("cp.async.commit_group; // $0")
WAIT = tl.constexpr(tuple(f"cp.async.wait_group {count};\nbar.sync 0; // $0" for count in range(8)))
WAIT_OF_WARP = tl.constexpr(
    tuple(f"cp.async.wait_group {count};\nbar.warp.sync 0xffffffff; // $0" for count in range(8))
)
READ_1 = tl.constexpr("ld.shared.b32 $0, [$4]; mov.b32 $1, $0; mov.b32 $2, $0; mov.b32 $3, $0;")
READ_2 = tl.constexpr("ld.shared.v2.b32 {$0, $1}, [$4]; mov.b32 $2, $0; mov.b32 $3, $1;")
READ_4 = tl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")


@triton.jit
def copied(TEXT: tl.constexpr, slot, at, there):
    """Ask for a copy to slots from pointers, where `there` is not 0."""
    tl.inline_asm_elementwise(
        TEXT, "=r,r,l,r", [slot, at, there], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def copied_once(STEP: tl.constexpr, slot, at, there):
    """Ask for 16 bytes of one step of weights, each of which is read once; pointers are those of the first step."""
    tl.inline_asm_elementwise(
        COPY_ONCE[STEP], "=r,r,l,r", [slot, at, there], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def read(TEXT: tl.constexpr, slot):
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
def commit():
    """All copies asked for since the last time are one group."""
    tl.inline_asm_elementwise(COMMIT, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def arrived(STAGES: tl.constexpr):
    """Wait for the oldest stage, and until all threads have read the one before."""
    tl.inline_asm_elementwise(WAIT[STAGES - 2], "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def arrived_in_warp(STAGES: tl.constexpr):
    """The same of stages in which every warp reads what it has copied itself."""
    tl.inline_asm_elementwise(
        WAIT_OF_WARP[STAGES - 2], "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
