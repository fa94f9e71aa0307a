"""The slow, obvious way: every row lays out its own context and looks at it.

For each row the keys it reads are rotated to where they stand in the row's view and put one behind another,
the queries are rotated to their positions, and textbook attention with a causal mask follows.
Nothing is shared, nothing is merged, the rotations are other ones than in the fast backends (keys
move, not queries): that makes it the oracle of the next rung.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyhands.attention.attend import Backend, LayerCall, LeftNorms
from manyhands.attention.rotary import rotate
from manyhands.attention.store import LayerStore, Moved, StoreStack, Targets
from manyhands.cache.plan import Plan


@dataclass(frozen=True, eq=False)
class _RowContext:
    """One row: its query positions [t], and per key read: its slot, and where it stands [N]."""

    tokens: slice
    positions: Tensor
    slots: Tensor
    bases: Tensor
    key_positions: Tensor


@dataclass(frozen=True, eq=False)
class _Contexts:
    rows: list[_RowContext]
    targets: Targets


class ReferenceBackend(Backend):
    """Dense attention row by row, in float32 (float64 for float64 input)."""

    name = "reference"
    takes_norms = False

    def prepare(self, plan: Plan, device: torch.device) -> _Contexts:
        """Write out every row's context."""
        reads, page = plan.reads, plan.page_size
        strip_of_read = [
            strip
            for strip, pages in enumerate(reads.pages)
            for _ in range(int(reads.strip_indptr[strip]), int(reads.strip_indptr[strip + 1]))
        ]
        rows = []
        for row in range(plan.num_rows):
            slots, bases, key_positions = [], [], []
            for n in (reads.row == row).nonzero()[0]:
                pages = reads.pages[strip_of_read[n]]
                for key in range(int(reads.low[n]), int(reads.high[n])):
                    slots.append(int(pages[key // page]) * page + key % page)
                    bases.append(int(reads.base[n]))
                    key_positions.append(int(reads.base[n]) + key)
            start, stop = int(plan.row_indptr[row]), int(plan.row_indptr[row + 1])
            rows.append(
                _RowContext(
                    slice(start, stop),
                    torch.as_tensor(plan.positions[start:stop], device=device),
                    *(torch.tensor(x, device=device) for x in (slots, bases, key_positions)),
                )
            )
        return _Contexts(rows, Targets.of(plan, device))

    def append(
        self,
        store: LayerStore,
        k: Tensor,
        v: Tensor,
        prepared: _Contexts,
        left: tuple[Tensor, LeftNorms] | None = None,
    ) -> None:
        """See `Backend.append`."""
        assert left is None, "they are not taken"
        store.write(prepared.targets, k, v)

    def move(self, stack: StoreStack, moved: Moved) -> None:
        """See `Backend.move`."""
        stack.move(moved)

    def attend(self, store: LayerStore, q: Tensor, prepared: _Contexts, call: LayerCall) -> Tensor:
        """See `Backend.attend`."""
        outs = [self._attend_row(store, q[row.tokens], row, call) for row in prepared.rows]
        return torch.cat(outs).to(q.dtype)

    def _attend_row(
        self, store: LayerStore, q: Tensor, row: _RowContext, call: LayerCall
    ) -> Tensor:
        work = torch.float64 if q.dtype == torch.float64 else torch.float32
        k, v = (x.to(work) for x in store.read(row.slots))
        q = rotate(q.to(work), row.positions, store.rope)  # [t, H, D]
        if call.query_scale is not None:
            q = call.query_scale.apply(q, row.positions)
        k = rotate(k, row.bases, store.rope)  # [N, G, D]
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("thd,nhd->htn", q, k) * call.scaling
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        distance = row.positions[:, None] - row.key_positions[None, :]
        visible = distance >= 0
        if call.window is not None:
            visible &= distance < call.window
        if call.chunk is not None:
            visible &= distance <= row.positions[:, None] % call.chunk
        scores = scores.masked_fill(~visible, float("-inf"))
        if call.sinks is not None:
            sinks = call.sinks.to(work).view(-1, 1, 1).expand(-1, scores.shape[1], 1)
            weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return torch.einsum("htn,nhd->thd", weights, v)
