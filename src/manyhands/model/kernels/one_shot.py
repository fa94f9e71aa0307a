"""Sums over ranks in one launch, together with the residual sum and the norm behind them.

Each rank has a buffer that all others can write to (`model/parallel/peers.py`). One program takes one token, on
every rank:

    push     its row of x into every other rank's buffer
    wait     until the rows of all others are in the own buffer
    sum      the rows in the order of ranks, in float32, rounded once: the same bits on every rank
    join     residual + y, and the norm of that, as `norms.py` makes them

NCCL's sum and the launch behind it do the same in two launches. Nothing here is ordered between tokens. There are two ways to
know that a row has come:

*By words*, for few tokens. Each number travels in a word together with its token's epoch, and the reader waits until all words bear
it. A word is twice as wide as a number (32 bits for those of 16, 64 for those of 32) and is written as a whole. So nothing
is ordered: neither a fence, which would wait until the other GPU has answered, nor a flag behind it. It is the shortest wait, for twice the bytes.

*By flags*, for many tokens. A row travels as it is, and behind it, ordered by a fence, its epoch in a flag. The fences of many programs
wait side by side, so what counts are the bytes.

**Epochs** count, for each token's place, how often it was used. They lie on the device and are counted by the
kernel itself, so a replayed graph counts on. A word of 32 bits bears the last 16 of an epoch. Odd and even epochs have a
half of the buffer each: before its time a word bears the epoch two before. That is enough:
a rank that pushes for epoch e has seen all others push for e - 1, so their launch of e - 2 has ended, and with it
all reading of that half. The launch must not begin before the one in front has ended: it is never overlapped.

There may be more programs than the device has room for. Those with room wait for the same tokens' programs on other ranks, and devices
begin programs in the order of their numbers; were the orders to differ, what both have begun would still end, and make room.

**Patience** bounds the wait, in looks at a row. A rank that has lost it puts NaN in the place of the sum, which
ends the pass with an error, and waits no more (`stop`).

    R  ranks      T  tokens      N  width of the residual stream      P  places: the most tokens of a launch

Words are after the protocol of NCCL for short messages (LL), flags after NVIDIA's TensorRT-LLM and vLLM
(`custom_all_reduce`); multicast is not used.
"""

# Kernels are written in Triton's language, which has no types of Python's.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from manyhands.attention.kernels.rms import rms
from manyhands.attention.work import power_of_two
from manyhands.model.kernels.norms import _rows

SELDOM = tl.constexpr(64)  # looks at a row for one at `stop`
# Looks at a row, some tens of seconds: another rank may compile a kernel meanwhile.
PATIENCE = 1 << 25


class Meeting(NamedTuple):
    """A rank's means of meeting the others.

    `buffers` [R] int64: addresses, on this rank's device, of all ranks' words [2, R, P, N], or where there are flags of their rows
    [2, R, P, N] of x's dtype. `flags` [R] int64: addresses of all ranks' int32 [R, P]. Words and flags are zero before
    the first sum. `epochs` [P] and `stop` [1] int32 are its own.
    """

    rank: int
    buffers: Tensor
    epochs: Tensor
    stop: Tensor
    width: int
    flags: Tensor | None = None

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.buffers.shape[0]

    @property
    def places(self) -> int:
        """The most tokens of a launch."""
        return self.epochs.shape[0]


@triton.jit
def _at(addresses, rank, WORD: tl.constexpr):
    """The pointer that stands in a list of addresses; all are those of whole pages."""
    return tl.multiple_of(tl.load(addresses + rank).to(tl.pointer_type(WORD)), 16)


@triton.jit
def _looked(looks, stop, patience):
    """One look more; all of `patience` where a rank has waited in vain, for then none waits any more.

    Read as one value for the whole program: threads that saw different ones would part, and meet no more.
    """
    looks += 1
    if looks % SELDOM == 1:  # noqa: SIM102 (`and` would look every time)
        if tl.atomic_add(stop, 0, sem="acquire", scope="sys") != 0:
            looks = patience
    return looks


@triton.jit
def _is_missing(flag, epoch):
    """Whether a flag does not bear this epoch yet, nor a later one. Epochs go round: their difference does not."""
    return (tl.atomic_add(flag, 0, sem="acquire", scope="sys") - epoch < 0).to(tl.int32)


@triton.jit
def _meet(
    x,
    residual,
    post,
    pre,
    total,
    normed,
    buffers,
    flags,
    epochs,
    stop,
    N,
    stride,
    P,
    rank,
    patience,
    eps_post,
    eps_pre,
    RANKS: tl.constexpr,
    FLAGS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    POST: tl.constexpr,
    PRE: tl.constexpr,
    FORM: tl.constexpr,
    BLOCK: tl.constexpr,
    PUSH: tl.constexpr,
    PULL: tl.constexpr,
):
    row = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    mask = n < N
    DTYPE: tl.constexpr = x.dtype.element_ty
    BITS: tl.constexpr = DTYPE.primitive_bitwidth  # of a number, and of the epoch above it
    WORD: tl.constexpr = tl.int64 if BITS == 32 else tl.int32
    BARE: tl.constexpr = tl.uint32 if BITS == 32 else tl.uint16
    SENT: tl.constexpr = DTYPE if FLAGS else WORD
    epoch = tl.load(epochs + row) + 1
    half = (epoch & 1) * RANKS
    wide = row.to(tl.int64)
    own = tl.load(x + wide * stride + n, mask=mask, other=0.0)
    mark = epoch.to(WORD) << BITS
    if PUSH:
        sent = own if FLAGS else own.to(BARE, bitcast=True).to(WORD) | mark
        for other in tl.static_range(RANKS):
            if other != rank:
                place = ((half + rank) * P + wide) * N
                tl.store(_at(buffers, other, SENT) + place + n, sent, mask=mask)
        if FLAGS:
            tl.debug_barrier()  # all threads have stored before one of them says so
            for other in tl.static_range(RANKS):
                if other != rank:
                    flag = _at(flags, other, tl.int32) + rank * P + row
                    tl.atomic_xchg(flag, epoch, sem="release", scope="sys")
    if PULL:
        # All that needs no other rank is read before the wait.
        if POST:
            w_post = tl.load(post + n, mask=mask, other=0.0).to(tl.float32)
        if RESIDUAL:
            beside = tl.load(residual + wide * N + n, mask=mask, other=0.0).to(tl.float32)
        if PRE:
            w_pre = tl.load(pre + n, mask=mask, other=0.0).to(tl.float32)
        held = _at(buffers, rank, SENT)
        wanted = mark >> BITS
        late = 0
        v = tl.zeros([BLOCK], tl.float32)
        for other in tl.static_range(RANKS):
            if other == rank:
                v += own.to(tl.float32)
            else:
                at = held + ((half + other) * P + wide) * N + n
                if FLAGS:
                    flag = _at(flags, rank, tl.int32) + other * P + row
                    missing = _is_missing(flag, epoch)
                    looks = 0
                    while (missing != 0) & (looks < patience):
                        missing = _is_missing(flag, epoch)
                        looks = _looked(looks, stop, patience)
                    tl.debug_barrier()  # all threads read behind the one that has looked
                    theirs = tl.load(at, mask=mask, other=0.0, volatile=True)
                else:
                    words = tl.load(at, mask=mask, other=0, volatile=True)
                    missing = tl.max((mask & ((words >> BITS) != wanted)).to(tl.int32), axis=0)
                    looks = 0
                    while (missing != 0) & (looks < patience):
                        words = tl.load(at, mask=mask, other=0, volatile=True)
                        missing = tl.max((mask & ((words >> BITS) != wanted)).to(tl.int32), axis=0)
                        looks = _looked(looks, stop, patience)
                    theirs = words.to(BARE).to(DTYPE, bitcast=True)
                if missing != 0:
                    late = 1
                v += theirs.to(tl.float32)
        if late:
            tl.store(stop, 1)
        v = tl.where(late != 0, float("nan"), v).to(DTYPE).to(tl.float32)
        v = tl.where(mask, v, 0.0)
        if POST:
            v = rms(v, w_post, N, eps_post, FORM, DTYPE)
        if RESIDUAL:
            v = (v + beside).to(DTYPE).to(tl.float32)
        tl.store(total + wide * N + n, v.to(DTYPE), mask=mask)
        if PRE:
            v = rms(v, w_pre, N, eps_pre, FORM, DTYPE)
            tl.store(normed + wide * N + n, v.to(DTYPE), mask=mask)
        tl.store(epochs + row, epoch)


def meet(
    meeting: Meeting,
    residual: Tensor | None,
    x: Tensor,
    post: tuple[Tensor, float] | None = None,
    pre: tuple[Tensor, float] | None = None,
    form: int = 0,
    *,
    push: bool = True,
    pull: bool = True,
    patience: int = PATIENCE,
) -> tuple[Tensor, Tensor | None]:
    """Y, the sum of all ranks' x [..., N], or residual [..., N] + y; and its norm by `pre`, None without.

    `post` norms the sum before the residual is added; both norms are (weight [N], eps), of one `form`. All ranks
    call it with as many tokens, T of 1 to P. `push` without `pull` and the other way round are for tests, in
    which one process is all ranks.
    """
    rows = _rows(x)
    count, width = rows.shape
    assert width == meeting.width, "the buffers are of another width"
    assert count <= meeting.places, "the buffers have fewer places"
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    normed = torch.empty_like(total) if pre else None
    block = power_of_two(width)
    kernel: Any = _meet
    if count:
        kernel[(count,)](
            rows,
            rows if residual is None else residual.contiguous(),
            post[0] if post else rows,
            pre[0] if pre else rows,
            total,
            total if normed is None else normed,
            meeting.buffers,
            meeting.buffers if meeting.flags is None else meeting.flags,
            meeting.epochs,
            meeting.stop,
            width,
            rows.stride(0),
            meeting.places,
            meeting.rank,
            patience,
            post[1] if post else 0.0,
            pre[1] if pre else 0.0,
            RANKS=meeting.size,
            FLAGS=meeting.flags is not None,
            RESIDUAL=residual is not None,
            POST=post is not None,
            PRE=pre is not None,
            FORM=form,
            BLOCK=block,
            PUSH=push,
            PULL=pull,
            num_warps=min(max(block // 512, 1), 16),
            enable_fp_fusion=True,
        )
    return total, normed
