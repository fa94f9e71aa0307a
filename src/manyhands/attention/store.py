"""Writing to memory in plain torch, shared by the backends that have no kernel of their own for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyhands.attention.rotary import Rope, Turns
from manyhands.cache.plan import Plan


@dataclass(frozen=True, eq=False)
class Targets:
    """Where new tokens go: `slots` [T], and `turns` [T], their indices on their strips."""

    slots: Tensor
    turns: Turns

    @classmethod
    def of(cls, plan: Plan, device: torch.device) -> Targets:
        """The targets of a plan's new tokens."""
        slots, angles = (torch.as_tensor(x, device=device) for x in (plan.slots, plan.angles))
        return cls(slots, Turns(angles))

    def to(self, device: torch.device) -> Targets:
        """The same targets on another device."""
        return Targets(
            self.slots.to(device, non_blocking=True),
            Turns(self.turns.angles.to(device, non_blocking=True)),
        )

    def store(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, rope: Rope | None) -> None:
        """Put k [T, G, D], rotated here, and v [T, G, Dv] into keys [S, G, D] and values [S, G, Dv]."""
        keys.index_copy_(0, self.slots, self.turns.rotate(k, rope))
        values.index_copy_(0, self.slots, v)
