"""Peers of the one op: what can be had today for the same situation, with the same answer.

Each is made from a situation and gives a function to be timed; what could be prepared once a step (or
even once and for all) is done before: keys copied to where the peer wants them, queries rotated, masks
built. So the peers are timed at their best. None where a peer cannot say what is to be computed.

    paged, nothing shared    our own backend, every row reading the shared physical pages for itself
    SDPA, shared by hand     flash attention once per group of like strips, merged by log-sum-exp
    SDPA, nothing shared     one dense batch, every row with its own copy of all keys
    FlexAttention            one packed sequence of all keys and a block mask that says which query sees which key
    SDPA, flash or cuDNN     one row that feeds many tokens, over a dense copy of its keys
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from benchmarks.situations import Situation, slots_of
from manyhands.attention.attend import Backend
from manyhands.attention.merge import NOTHING, merge
from manyhands.attention.rotary import rotate
from manyhands.cache.plan import PageTables, Plan, Reads

Peer = Callable[[], Tensor]  # -> [T, H, D]
_MOST_COPIED = 8 << 30  # bytes that a peer's own copies of keys and values may take


def ours(situation: Situation, backend: Backend) -> Peer:
    """Our own: prepared once a step, then one call a layer."""
    prepared = backend.prepare(situation.plan, situation.q.device)
    store, q, call = situation.store, situation.q, situation.call
    return lambda: backend.attend(store, q, prepared, call)


def unshared(plan: Plan) -> Plan:
    """The same reads, each as though it had a strip of its own: nothing is grouped any more."""
    reads = plan.reads
    strip = np.repeat(np.arange(len(reads.pages)), np.diff(reads.strip_indptr))
    order = np.argsort(reads.row, kind="stable")
    apart = Reads(
        row=reads.row[order],
        base=reads.base[order],
        low=reads.low[order],
        high=reads.high[order],
        strip_indptr=np.arange(len(order) + 1),
        pages=PageTables.of(reads.pages[s] for s in strip[order]),
    )
    assert plan.own_strip is not None, "a plan of live rows"
    assert plan.growth is not None, "a plan of live rows"
    own = np.flatnonzero(strip[order] == plan.own_strip[reads.row[order]])  # one read of each row
    growth = replace(plan.growth, base=plan.growth.base[order], high=plan.growth.high[order])
    return replace(plan, reads=apart, own_strip=own, growth=growth)


def paged(situation: Situation, backend: Backend) -> Peer:
    """Our own backend, told nothing about sharing; the shared pages may still be found in the cache."""
    return ours(replace(situation, plan=unshared(situation.plan)), backend)


@dataclass(frozen=True, eq=False)
class _Group:
    """Strips read by equally many rows and equally long: q [B, G, M r, D], k and v [B, G, N, D]."""

    q: Tensor
    k: Tensor
    v: Tensor
    rows: np.ndarray  # [B, M]


def sdpa_by_hand(situation: Situation) -> Peer:
    """Hydragen with what PyTorch offers: one flash attention per group of strips, then the merge."""
    groups = _groups(situation)
    entry_rows = np.concatenate([group.rows.ravel() for group in groups])
    entry_of, is_real = _partials(entry_rows, len(situation.q), situation.q.device)
    scale = situation.call.scaling
    num_heads, num_kv_heads = situation.q.shape[1], situation.store.keys.shape[1]

    def attend() -> Tensor:
        outs, lses = [], []
        for group in groups:
            out, lse = _flash(group.q, group.k, group.v, scale)
            many = (len(group.rows), num_kv_heads, group.rows.shape[1], num_heads // num_kv_heads)
            out = out.view(*many, -1).permute(0, 2, 1, 3, 4)
            outs.append(out.reshape(group.rows.size, num_heads, -1))
            lse = lse.view(many).permute(0, 2, 1, 3)
            lses.append(lse.reshape(group.rows.size, num_heads))
        parts, lse = torch.cat(outs)[entry_of].float(), torch.cat(lses)[entry_of]
        lse = lse.masked_fill(~is_real.unsqueeze(-1), NOTHING)
        return merge(parts, lse, None).to(situation.q.dtype)

    return attend


def _groups(situation: Situation) -> list[_Group]:
    plan, device = situation.plan, situation.q.device
    reads = plan.reads
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for strip in range(len(reads.pages)):
        first, last = reads.strip_indptr[strip], reads.strip_indptr[strip + 1]
        alike[int(last - first), int(reads.high[first] - reads.low[first])].append(strip)
    groups = []
    for (num_rows, _), strips in alike.items():
        first = reads.strip_indptr[strips]
        at = first[:, None] + np.arange(num_rows)  # [B, M] reads
        rows = reads.row[at]
        offsets = torch.as_tensor(plan.positions[rows] - reads.base[at], device=device)
        q = rotate(situation.q[torch.as_tensor(rows, device=device)], offsets, situation.store.rope)
        low, high = reads.low[first], reads.high[first]
        bounds = zip(strips, low, high, strict=True)
        slots = np.stack([slots_of(plan, s, int(a), int(b)) for s, a, b in bounds])
        where = torch.as_tensor(slots, device=device)
        k, v = (
            x[where].transpose(1, 2).contiguous()
            for x in (situation.store.keys, situation.store.values)
        )
        num_kv_heads = k.shape[1]
        q = q.unflatten(2, (num_kv_heads, -1)).transpose(1, 2).flatten(2, 3).contiguous()
        groups.append(_Group(q, k, v, rows))
    return groups


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Flash attention with its log-sum-exp [B, G, M r]."""
    flash = torch.ops.aten
    if q.is_cuda:
        out, lse, *_ = flash._scaled_dot_product_flash_attention(q, k, v, scale=scale)
    else:
        out, lse = flash._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=scale)
    return out, lse


def _partials(rows: np.ndarray, num_rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each row the places of its partials [T, P], padded, and which of them are real."""
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=num_rows)
    column = np.arange(counts.max())
    is_real = column < counts[:, None]
    first = (np.cumsum(counts) - counts)[:, None]
    entry_of = order[first + np.where(is_real, column, 0)]
    return torch.as_tensor(entry_of, device=device), torch.as_tensor(is_real, device=device)


def sdpa_unshared(situation: Situation) -> Peer | None:
    """One dense batch. Every row's keys are copied out, and rotated to where they stand in its view."""
    plan, device = situation.plan, situation.q.device
    reads = plan.reads
    strip = np.repeat(np.arange(len(reads.pages)), np.diff(reads.strip_indptr))
    slots: list[list[np.ndarray]] = [[] for _ in range(plan.num_rows)]
    bases: list[list[np.ndarray]] = [[] for _ in range(plan.num_rows)]
    for n, row in enumerate(reads.row):
        low, high = int(reads.low[n]), int(reads.high[n])
        slots[row].append(slots_of(plan, int(strip[n]), low, high))
        bases[row].append(np.full(high - low, reads.base[n]))
    lengths = {sum(map(len, row)) for row in slots}
    one = 2 * situation.store.keys[0].numel() * situation.store.keys.element_size()
    if len(lengths) > 1 or one * plan.num_keys_read > _MOST_COPIED:
        return None
    where, base = (
        torch.as_tensor(np.stack([np.concatenate(row) for row in rows]), device=device)
        for rows in (slots, bases)
    )
    k = rotate(situation.store.keys[where], base, situation.store.rope).transpose(1, 2).contiguous()
    v = situation.store.values[where].transpose(1, 2).contiguous()
    at = torch.as_tensor(plan.positions, device=device)
    q = rotate(situation.q, at, situation.store.rope).unsqueeze(2)  # [T, H, 1, D]
    attention = torch.nn.functional.scaled_dot_product_attention

    def attend() -> Tensor:
        return attention(q, k, v, enable_gqa=True).squeeze(2)

    return attend


def sdpa_flash(situation: Situation) -> Peer | None:
    """Prefill by flash attention, which lines up the last query with the last key."""
    q, k, v = one_row(situation)
    if q.is_cuda:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return lambda: flash(q, k, v, 0.0, True)[0][0].transpose(0, 1)
    new, keys = q.shape[2], k.shape[2]
    sees = torch.ones(new, keys, dtype=torch.bool).tril(keys - new)
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(q, k, v, sees, enable_gqa=True)[0].transpose(0, 1)


def sdpa_cudnn(situation: Situation) -> Peer | None:
    """Prefill by cuDNN, on a GPU. It lines up the first query with the first key: no history."""
    q, k, v = one_row(situation)
    if not q.is_cuda or q.shape[2] < k.shape[2]:
        return None
    attention = torch.nn.functional.scaled_dot_product_attention

    def attend() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    return attend


PREFILL = {"SDPA, flash": sdpa_flash, "SDPA, cuDNN": sdpa_cudnn}


def one_row(situation: Situation) -> tuple[Tensor, Tensor, Tensor]:
    """The only row's q [1, H, T, D], and k and v [1, G, N, D] of all that it reads, in its order."""
    plan, device, rope = situation.plan, situation.q.device, situation.store.rope
    reads = plan.reads
    strips = np.argsort(reads.base)
    spans = [(int(reads.low[s]), int(reads.high[s])) for s in strips]
    where = np.concatenate(
        [slots_of(plan, s, *span) for s, span in zip(strips, spans, strict=True)]
    )
    slots = torch.as_tensor(where, device=device)
    base = np.repeat(reads.base[strips], [high - low for low, high in spans])
    k = rotate(situation.store.keys[slots], torch.as_tensor(base, device=device), rope)
    q = rotate(situation.q, torch.as_tensor(plan.positions, device=device), rope)
    q, k, v = (x.transpose(0, 1)[None].contiguous() for x in (q, k, situation.store.values[slots]))
    return q, k, v


def flex(situation: Situation, *, compiled: bool) -> Peer | None:
    """All keys as one packed sequence, each at its position. Only where a block has one position for
    all its readers: in a team's views the same block stands at several, which no mask can say.
    """
    plan, device = situation.plan, situation.q.device
    reads = plan.reads
    num_strips = len(reads.pages)
    strip = np.repeat(np.arange(num_strips), np.diff(reads.strip_indptr))
    first = reads.strip_indptr[:-1]
    if (reads.base != reads.base[first][strip]).any():
        return None
    spans = [(int(reads.low[n]), int(reads.high[n])) for n in first]
    slots = np.concatenate([slots_of(plan, s, *span) for s, span in enumerate(spans)])
    where = torch.as_tensor(slots, device=device)
    sizes = [high - low for low, high in spans]
    base = torch.as_tensor(np.repeat(reads.base[first], sizes), device=device)
    k = (
        rotate(situation.store.keys[where], base, situation.store.rope)
        .transpose(0, 1)[None]
        .contiguous()
    )
    v = situation.store.values[where].transpose(0, 1)[None].contiguous()
    at = torch.as_tensor(plan.positions, device=device)
    q = (
        rotate(situation.q, at, situation.store.rope).transpose(0, 1)[None].contiguous()
    )  # [1, H, T, D]
    owner = torch.as_tensor(np.repeat(np.arange(num_strips), sizes), device=device)
    member = torch.zeros(num_strips, plan.num_rows, dtype=torch.bool, device=device)
    member[torch.as_tensor(strip, device=device), torch.as_tensor(reads.row, device=device)] = True
    mask = _mask(member, owner, plan.num_rows)
    attention = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention

    def attend() -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # uncompiled, in tests, it advises to compile
            out = attention(q, k, v, block_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1)

    return attend


def _mask(member: Tensor, owner: Tensor, num_rows: int) -> BlockMask:
    """Row `q` sees key `kv` iff it reads the strip that the key lies on."""

    def sees(_b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return member[owner[kv], q]

    return create_block_mask(sees, None, None, num_rows, len(owner), device=str(owner.device))
