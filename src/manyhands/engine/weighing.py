"""Logits weighed by what has been written: penalties and biases, on the device.

A `cache/tally.py::Tally` is kept on the host by its writer, and its weights are sent as they change. Here they
lie on the device, a slot for each tally and a column for each weight, and are applied to the logits of the rows
that have one. A weight is a token, a factor and an offset; where they come from is no concern of this side.

    n  rows with a tally      V  vocabulary      S  slots      C  columns of a slot
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyhands.cache.tally import Weighing
from manyhands.engine.sampling import sent

_FEWEST_SLOTS, _FEWEST_COLUMNS = 8, 256


class Weights:
    """The weights of all tallies, where the logits are."""

    def __init__(self, device: torch.device) -> None:
        self.tokens = torch.zeros(0, 0, dtype=torch.int64, device=device)  # [S, C]
        self.factors = torch.ones(0, 0, device=device)  # [S, C]
        self.offsets = torch.zeros(0, 0, device=device)  # [S, C]

    def take(self, told: Weighing) -> None:
        """Write the weights that have changed to their places."""
        self._grow(1 + max(told.slots), max(told.sizes))
        if not told.weights:
            return
        tokens, factors, offsets = zip(*told.weights, strict=True)
        device = self.tokens.device
        slots, columns, new = sent([told.new_slots, told.new_columns, tokens], torch.int64, device)
        numbers = sent([factors, offsets], torch.float32, device)
        self.tokens[slots, columns] = new
        self.factors[slots, columns], self.offsets[slots, columns] = numbers

    def weigh(self, logits: Tensor, told: Weighing) -> Tensor:
        """New logits [R, V], at least float32, of these: the rows of `told` by their weights."""
        # Narrow logits would round a small offset away.
        scores = logits.double() if logits.dtype == torch.float64 else logits.float()
        scores = scores.clone() if scores is logits else scores
        rows, slots, sizes = sent([told.rows, told.slots, told.sizes], torch.int64, logits.device)
        columns = torch.arange(max(told.sizes), device=logits.device)
        tokens = self.tokens[slots, : len(columns)]  # [n, C]
        own = scores.index_select(0, rows)  # [n, V]
        now = own.gather(1, tokens)
        factors, offsets = (
            each[slots, : len(columns)].to(scores.dtype) for each in (self.factors, self.offsets)
        )
        now = torch.where(now > 0, now / factors, now * factors) + offsets
        # Behind a row's last weight stands its first one again: written twice, it is what it was.
        is_kept = columns < sizes.unsqueeze(1)
        tokens = torch.where(is_kept, tokens, tokens[:, :1])
        now = torch.where(is_kept, now, now[:, :1])
        return scores.index_copy_(0, rows, own.scatter_(1, tokens, now))

    def _grow(self, num_slots: int, num_columns: int) -> None:
        """Have room for so many, twice as much as before at least."""
        slots, columns = self.tokens.shape
        if num_slots <= slots and num_columns <= columns:
            return
        shape = (
            slots if num_slots <= slots else max(num_slots, 2 * slots, _FEWEST_SLOTS),
            columns if num_columns <= columns else max(num_columns, 2 * columns, _FEWEST_COLUMNS),
        )
        for name in ("tokens", "factors", "offsets"):
            old = getattr(self, name)
            new = old.new_zeros(shape)
            new[:slots, :columns] = old
            setattr(self, name, new)
