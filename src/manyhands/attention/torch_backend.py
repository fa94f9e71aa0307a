"""Attention grouped by the keys that are read, in plain torch: any device, exact partials, differentiable.

For every stretch of a strip (`attention/entries.py`), the queries of all rows that read it are
gathered and meet its keys in one product (Hydragen, section 3.2: many matrix-vector products become one matrix product).
Stretches of like size share a batched product, a Bucket, so that a hundred short blocks do not cost a hundred launches. The
partial results of a token are then merged by log-sum-exp.

On a CPU, where no gradient is asked for, torch's own fused attention makes a bucket's partials: one call that
gives the log-sum-exp, too, in the place of a dozen. Keys whose pages lie one behind the other are read where they lie
if there are many: a stretch is cut into such runs, each a bucket of its own, and only the rest is gathered.
There, too, a plan of many entries is a few parts, each for some neighbouring tokens, so that what is held for all
entries at once stays small.

    T  new tokens      E  entries: (token, read) pairs      P  most reads of one token
    B  stretches in a bucket      M  entries per stretch      N  keys per stretch (both padded in a bucket)
    H  query heads     G  key/value heads      r = H / G      D, Dv  head dims
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands.attention.attend import Backend, LayerCall, LeftNorms
from manyhands.attention.entries import Entries
from manyhands.attention.merge import NOTHING, merge
from manyhands.attention.rotary import Rotations
from manyhands.attention.store import LayerStore, Moved, StoreStack, Targets, rows_of
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan

_Bounds = tuple[int | None, int | None]  # window and chunk of a layer


@dataclass(eq=False)
class Bucket:
    """Stretches of like size. Padding repeats real entries and keys, and is never visible."""

    tokens: Tensor  # [B, M] the query
    positions: Tensor  # [B, M] of the query in its row's view
    offsets: Tensor  # [B, M] position - base: rotates the query; also the causal limit
    lows: Tensor  # [B, M]
    highs: Tensor  # [B, M]; 0 for padding
    slots: Tensor  # [B, N]
    indices: Tensor  # [B, N] key's index on its strip; beyond every `high` for padding
    run: slice | None = None  # the slots, if there is one stretch and they follow each other
    _visible: dict[_Bounds, Tensor] = field(default_factory=dict)
    _by_head: dict[int, Tensor] = field(default_factory=dict)
    _masks: dict[tuple[_Bounds, int, torch.dtype], Tensor | None] = field(default_factory=dict)

    def to(self, device: torch.device) -> Bucket:
        """The same bucket on another device."""
        return Bucket(
            self.tokens.to(device, non_blocking=True),
            self.positions.to(device, non_blocking=True),
            self.offsets.to(device, non_blocking=True),
            self.lows.to(device, non_blocking=True),
            self.highs.to(device, non_blocking=True),
            self.slots.to(device, non_blocking=True),
            self.indices.to(device, non_blocking=True),
            self.run,
        )

    def visible(self, window: int | None, chunk: int | None = None) -> Tensor:
        """[B, M, N]: which keys each query sees. The same for all layers with this window and chunk."""
        bounds = window, chunk
        if bounds not in self._visible:
            key, offset = self.indices[:, None, :], self.offsets[:, :, None]
            seen = (key >= self.lows[:, :, None]) & (key < self.highs[:, :, None]) & (key <= offset)
            if window is not None:
                seen &= offset - key < window
            if chunk is not None:
                seen &= offset - key <= self.positions[:, :, None] % chunk
            self._visible[bounds] = seen
        return self._visible[bounds]

    def mask(self, call: LayerCall, group: int, dtype: torch.dtype) -> Tensor | None:
        """[B, 1, M * r, N]: what is added to the scores of `group` = r heads a query; None where all see all."""
        key = (call.window, call.chunk), group, dtype
        if key not in self._masks:
            seen = self.visible(call.window, call.chunk)
            added = None
            if not seen.all():
                added = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
                added = added.masked_fill_(~seen, NOTHING).repeat_interleave(group, dim=1)[:, None]
            self._masks[key] = added
        return self._masks[key]

    def slots_by_head(self, num_heads: int) -> Tensor:
        """[G, B, N]: where each key/value head's part lies, if slots and heads are counted as one.

        Gathered like this, keys and values need no transposing before a product.
        """
        if num_heads not in self._by_head:
            head = torch.arange(num_heads, device=self.slots.device)[:, None, None]
            self._by_head[num_heads] = self.slots * num_heads + head
        return self._by_head[num_heads]


@dataclass(frozen=True, eq=False)
class PreparedPart:
    """T neighbouring tokens of a plan in buckets. `entry_of` [T, P]: where the partials of the t-th of them stand.

    `padding` [T, P, 1]: which of them are none; None if all are.

    `tokens` [E], of all of the plan, and `rotations` [E] are those of all buckets, one behind the other.
    """

    buckets: list[Bucket]
    tokens: Tensor
    rotations: Rotations
    entry_of: Tensor
    padding: Tensor | None

    def to(self, device: torch.device) -> PreparedPart:
        """The same part on another device."""
        return PreparedPart(
            [bucket.to(device) for bucket in self.buckets],
            self.tokens.to(device, non_blocking=True),
            self.rotations.to(device),
            self.entry_of.to(device, non_blocking=True),
            None if self.padding is None else self.padding.to(device, non_blocking=True),
        )


@dataclass(frozen=True, eq=False)
class Prepared:
    """A plan in parts, which stand in the order of its tokens. `positions` [T] are those of the tokens in their rows' views."""

    parts: list[PreparedPart]
    targets: Targets
    positions: Tensor

    def to(self, device: torch.device) -> Prepared:
        """The same plan on another device."""
        return Prepared(
            [part.to(device) for part in self.parts],
            self.targets.to(device),
            self.positions.to(device, non_blocking=True),
        )


_BUCKET_COST = 1000  # a product more costs as much as so many scores of one query and one key
_TOGETHER = 64  # keys of a stretch, all of which its queries may as well look at together
_MOST_QUERIES = (
    256  # of one stretch in one product; more would mostly look at keys they may not see
)
_LONG_RUN = 256  # keys: gathering so many costs a CPU about as much as a product more
# Entries of a part on a CPU, unless one token has more: more of them take memory anew, page by page, in each layer.
_MOST_ENTRIES = 8192


class _Group(NamedTuple):
    """Entries start..stop, all of one stretch, and the range of keys they see between them.

    `is_run`: these keys lie one behind the other, and are so many that they stay in a bucket of their own.
    """

    strip: int
    start: int
    stop: int
    low: int
    high: int
    is_run: bool = False


class TorchBackend(Backend):
    """Grouped attention.

    `budget` bounds the scores (per head) held by one product. On a CPU, at least `long_run` keys that lie one behind
    the other are read where they lie, and partials of at most `most_entries` entries are held, or of one token: they grow
    with the square of a team's workers, each of whom feeds a desk and reads all others.
    """

    name = "torch"
    takes_norms = False

    def __init__(
        self, budget: int = 1 << 22, long_run: int = _LONG_RUN, most_entries: int = _MOST_ENTRIES
    ) -> None:
        self.budget, self.long_run, self.most_entries = budget, long_run, most_entries
        self._newest: tuple[object, int, list[Ints]] | None = None  # how groups were put together

    def prepare(self, plan: Plan, device: torch.device) -> Prepared:
        """Sort the plan's (token, read) pairs into buckets; all of it on the host, in numpy."""
        entries = Entries.of(plan)
        strips = np.arange(len(entries.strip_indptr) - 1)
        if device.type != "cpu" or len(entries.token) <= self.most_entries:
            parts = [self._part(plan, entries, strips, (0, plan.num_tokens), device)]
        else:
            parts = [
                self._part(plan, *entries.of_tokens(*tokens), tokens, device)
                for tokens in _in_parts(entries.token, plan.num_tokens, self.most_entries)
            ]
        positions = torch.as_tensor(plan.positions, device=device)
        return Prepared(parts, Targets.of(plan, device), positions)

    def _part(
        self,
        plan: Plan,
        entries: Entries,
        strips: Ints,
        tokens: tuple[int, int],
        device: torch.device,
    ) -> PreparedPart:
        """Entries of the tokens first, ..., stop - 1 in buckets; their strips are these of the plan."""
        groups = _groups(entries, strips, self.budget)
        if device.type == "cpu":
            groups = [part for group in groups for part in _runs(plan, group, self.long_run)]
        buckets, partials, places = [], [], []
        filled = 0
        is_whole = tokens == (0, plan.num_tokens)
        for together in self._buckets(groups, plan.lockstep if is_whole else None):
            bucket, at = _lay_out(plan, entries, together, device)
            for row, group in enumerate(together):
                partials.append(entries.token[group.start : group.stop])
                places.append(filled + row * at + np.arange(group.stop - group.start))
            filled += len(together) * at
            buckets.append(bucket)
        first, stop = tokens
        entry_of, is_real = _partials_of(
            np.concatenate(partials) - first, np.concatenate(places), stop - first
        )
        return PreparedPart(
            buckets,
            torch.cat([bucket.tokens.flatten() for bucket in buckets]),
            Rotations(torch.cat([bucket.offsets.flatten() for bucket in buckets])),
            torch.as_tensor(entry_of, device=device),
            None if is_real.all() else torch.as_tensor(~is_real[..., None], device=device),
        )

    def _buckets(self, groups: list[_Group], lockstep: object) -> list[list[_Group]]:
        """Groups of like size together, none of the products larger than the budget; runs alone.

        In plain decoding groups grow slowly, and stay together as they were put.
        """
        alone = [[group] for group in groups if group.is_run]
        groups = [group for group in groups if not group.is_run]
        if not groups:
            return alone
        sizes = np.array([(g.stop - g.start, g.high - g.low) for g in groups], dtype=np.int64)
        known = self._newest
        if known is None or lockstep is None or known[:2] != (lockstep, len(groups)):
            known = self._newest = lockstep, len(groups), _of_like_size(sizes)
        buckets = alone
        for bucket in known[2]:
            most = max(1, int(sizes[bucket].max(axis=0).prod()))
            per_bucket = max(1, self.budget // most)
            buckets += [
                [groups[i] for i in bucket[first : first + per_bucket]]
                for first in range(0, len(bucket), per_bucket)
            ]
        return buckets

    def append(
        self,
        store: LayerStore,
        k: Tensor,
        v: Tensor,
        prepared: Prepared,
        left: tuple[Tensor, LeftNorms] | None = None,
    ) -> None:
        """See `Backend.append`."""
        assert left is None, "they are not taken"
        store.write(prepared.targets, k, v)

    def move(self, stack: StoreStack, moved: Moved) -> None:
        """See `Backend.move`."""
        stack.move(moved)

    def attend(self, store: LayerStore, q: Tensor, prepared: Prepared, call: LayerCall) -> Tensor:
        """See `Backend.attend`."""
        dtype = q.dtype
        if call.query_scale is not None:
            q = call.query_scale.apply(q.to(_work_of(q)), prepared.positions)
        outs = [self._attend_part(store, q, part, call) for part in prepared.parts]
        return (outs[0] if len(outs) == 1 else torch.cat(outs)).to(dtype)

    def _attend_part(
        self, store: LayerStore, q: Tensor, part: PreparedPart, call: LayerCall
    ) -> Tensor:
        """Outputs of the part's tokens, in the precision of the work; `q` [T, H, D] of all of the plan."""
        work = _work_of(q)
        outs, lses = [], []
        rotated = part.rotations.rotate(rows_of(q, part.tokens).to(work), store.rope)
        rotated = store.as_stored(rotated)
        sizes = [bucket.tokens.numel() for bucket in part.buckets]
        is_fused = _can_fuse(store, q, call)
        for bucket, x in zip(part.buckets, rotated.split(sizes), strict=True):
            x = x.view(*bucket.tokens.shape, *x.shape[1:])  # [B, M, H, D]
            if is_fused and bucket.run is not None:
                heads = store.read_run(bucket.run)
                k, v = (one[:, None].to(work) for one in heads)
            else:
                heads = store.read_heads(bucket.slots_by_head(store.num_kv_heads))
                k, v = (one.to(work) for one in heads)  # [G, B, N, D] and [G, B, N, Dv]
            if is_fused:
                mask = bucket.mask(call, x.shape[2] // len(k), work)
                out, lse = fused_attention(x, k, v, mask, call)
            else:
                seen = bucket.visible(call.window, call.chunk)
                out, lse = partial_attention(x, k, v, seen, call)
            outs.append(out.flatten(0, 1))
            lses.append(lse.flatten(0, 1))
        out, lse = torch.cat(outs), torch.cat(lses)  # [E, H, Dv], [E, H]
        lse = rows_of(lse, part.entry_of)
        if part.padding is not None:
            lse = lse.masked_fill(part.padding, NOTHING)
        return merge(rows_of(out, part.entry_of), lse, call.sinks)


def _work_of(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def partial_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, call: LayerCall
) -> tuple[Tensor, Tensor]:
    """Softmax over the keys of each stretch alone.

    q [B, M, H, D], k [G, B, N, D], v [G, B, N, Dv], visible [B, M, N]
    -> output [B, M, H, Dv] and log-sum-exp [B, M, H]; where nothing is visible, the latter is so
    small that the merge gives the output no weight.
    """
    num_stretches, num_queries, num_heads, _ = q.shape
    num_kv_heads = len(k)
    # [G, B, M * r, D] @ [G, B, D, N]. The scores are by far the largest tensor: worked on in place.
    x = (q * call.scaling).view(num_stretches, num_queries, num_kv_heads, -1, q.shape[-1])
    x = x.permute(2, 0, 1, 3, 4).flatten(2, 3)
    scores = x @ k.transpose(2, 3)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    apart = (num_kv_heads, num_stretches, num_queries, num_heads // num_kv_heads, -1)
    scores = scores.view(apart)  # [G, B, M, r, N]
    scores = scores.masked_fill_(~visible[:, :, None, :], NOTHING)
    largest = scores.detach().amax(dim=-1, keepdim=True)
    weights = scores.sub_(largest).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    out = (weights.flatten(2, 3) @ v).view(apart) / total
    lse = (largest + total.log()).squeeze(-1)  # out [G, B, M, r, Dv], lse [G, B, M, r]
    shape = (num_stretches, num_queries, num_heads)
    return out.permute(1, 2, 0, 3, 4).reshape(*shape, -1), lse.permute(1, 2, 0, 3).reshape(shape)


_fused: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def _can_fuse(store: LayerStore, q: Tensor, call: LayerCall) -> bool:
    if _fused is None or q.device.type != "cpu" or call.softcap is not None:
        return False
    has_gradient = torch.is_grad_enabled() and q.requires_grad
    return q.shape[-1] == store.value_dim and not has_gradient


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: LayerCall
) -> tuple[Tensor, Tensor]:
    """`partial_attention` by torch's fused attention for CPUs; `mask` [B, 1, M * r, N] is added to the scores."""
    num_stretches, num_queries, num_heads, _ = q.shape
    # [B, G, M * r, D]: the heads that share keys are queries of one head.
    x = q.view(num_stretches, num_queries, len(k), -1, q.shape[-1]).transpose(1, 2).flatten(2, 3)
    out, lse = _fused(x, k.transpose(0, 1), v.transpose(0, 1), attn_mask=mask, scale=call.scaling)
    apart = (num_stretches, len(k), num_queries, -1)
    shape = (num_stretches, num_queries, num_heads)
    out = out.reshape(*apart, v.shape[-1]).transpose(1, 2).reshape(*shape, -1)
    return out, lse.view(apart).transpose(1, 2).reshape(shape)


def _in_parts(token: Ints, num_tokens: int, most: int) -> list[tuple[int, int]]:
    """The tokens first, ..., stop - 1 of parts that have at most so many of these entries [E], or one token."""
    ends = np.bincount(token, minlength=num_tokens).cumsum()
    parts, first, before = [], 0, 0
    while first < num_tokens:
        stop = max(first + 1, int(np.searchsorted(ends, before + most, "right")))
        parts.append((first, stop))
        first, before = stop, int(ends[stop - 1])
    return parts


def _groups(entries: Entries, strips: Ints, budget: int) -> list[_Group]:
    """One group a stretch of these strips; many queries in several, each with only the keys its queries reach."""
    groups = []
    reach = np.minimum(entries.high, entries.offset + 1)  # one past the last key an entry may see
    indptr, place = entries.stretches(_TOGETHER)
    for strip, (start, stop) in zip(strips[place].tolist(), pairwise(indptr.tolist()), strict=True):
        longest = int(entries.high[start:stop].max() - entries.low[start:stop].min())
        most = max(16, min(_MOST_QUERIES, budget // max(1, longest)))
        for first in range(start, stop, most):
            last = min(first + most, stop)
            low = int(entries.low[first:last].min())
            high = max(low + 1, int(reach[first:last].max()))
            groups.append(_Group(strip, first, last, low, high))
    return groups


def _runs(plan: Plan, group: _Group, long_run: int) -> list[_Group]:
    """The group's keys in parts: each long run of pages that follow each other, and whatever is between those."""
    if group.high - group.low < long_run:
        return [group]
    size = plan.page_size
    first, last = group.low // size, (group.high - 1) // size
    pages = plan.reads.pages[group.strip][first : last + 1]
    breaks = (first + 1 + np.flatnonzero(np.diff(pages) != 1)) * size
    ends = np.concatenate(([group.low], breaks, [group.high]))
    found, done = [], group.low
    for place in np.flatnonzero(np.diff(ends) >= long_run).tolist():
        low, high = int(ends[place]), int(ends[place + 1])
        if low > done:
            found.append(group._replace(low=done, high=low))
        found.append(group._replace(low=low, high=high, is_run=True))
        done = high
    if done < group.high:
        found.append(group._replace(low=done))
    return found


def _of_like_size(sizes: Ints) -> list[Ints]:
    """Which groups [n, 2] of so many queries and keys share a product, padded to the largest of each.

    Halved again and again, in the order of their queries or of their keys, wherever the padding saved
    is worth another product.
    """
    found, todo = [], [np.arange(len(sizes))]
    while todo:
        members = todo.pop()
        queries, keys = sizes[members].max(axis=0)
        best, parts = len(members) * _cost(queries, keys) - _BUCKET_COST, None
        for by in (0, 1):
            ordered = members[np.argsort(-sizes[members, by], kind="stable")]
            before = np.maximum.accumulate(sizes[ordered])[:-1].T  # the largest before a cut,
            behind = np.maximum.accumulate(sizes[ordered][::-1])[::-1][1:].T  # and behind it
            num_before = np.arange(1, len(ordered))
            costs = num_before * _cost(*before) + (len(ordered) - num_before) * _cost(*behind)
            if len(costs) and costs.min() < best:
                cut = int(costs.argmin()) + 1
                best, parts = costs[cut - 1], [ordered[:cut], ordered[cut:]]
        if parts is None:
            found.append(members)
        else:
            todo += parts
    return found


def _cost(queries: Ints, keys: Ints) -> Ints:
    """The cost of a group: its scores, and loading its keys."""
    cost: Ints = (queries + 1) * keys
    return cost


def _lay_out(
    plan: Plan, entries: Entries, groups: list[_Group], device: torch.device
) -> tuple[Bucket, int]:
    """The bucket of these groups, and its M."""
    start, stop, low, high = (
        np.array([getattr(g, name) for g in groups], dtype=np.int64)[:, None]
        for name in ("start", "stop", "low", "high")
    )
    width, length = int((stop - start).max()), int((high - low).max())
    entry = np.minimum(start + np.arange(width), stop - 1)  # padding repeats the last entry ...
    is_entry = start + np.arange(width) < stop  # ... and sees nothing
    index = low + np.arange(length)
    is_key = index < high
    key = np.minimum(
        index, high - 1
    )  # padding repeats the last key, under an index that no query reaches
    tables = [plan.reads.pages[g.strip] for g in groups]
    first_page = np.cumsum([0] + [len(t) for t in tables[:-1]])[:, None]
    pages = np.concatenate(tables)[first_page + key // plan.page_size]
    arrays = (
        entries.token[entry],
        plan.positions[entries.token[entry]],
        entries.offset[entry],
        entries.low[entry],
        np.where(is_entry, entries.high[entry], 0),
        pages * plan.page_size + key % plan.page_size,
        np.where(is_key, index, np.iinfo(np.int64).max),
    )
    tokens, positions, offsets, lows, highs, slots, indices = (
        torch.as_tensor(array, device=device) for array in arrays
    )
    run = None
    if len(groups) == 1 and (np.diff(arrays[5][0]) == 1).all():
        run = slice(int(arrays[5][0, 0]), int(arrays[5][0, -1]) + 1)
    return Bucket(tokens, positions, offsets, lows, highs, slots, indices, run), width


def _partials_of(token: Ints, places: Ints, num_tokens: int) -> tuple[Ints, np.ndarray]:
    """For each token the places of its partials: [T, P], padded with its first, and which are real."""
    order = np.argsort(token, kind="stable")
    counts = np.bincount(token, minlength=num_tokens)
    first = np.cumsum(counts) - counts
    column = np.arange(counts.max())
    is_real = column < counts[:, None]
    entry_of = places[order][first[:, None] + np.where(is_real, column, 0)]
    return entry_of, is_real
