"""The contract of the one op.

`attend` answers, for every new token of every row, softmax(q k / sqrt(d)) v over the ordered blocks
of that row's view. The network's layers call it through an `AttendFn`; who stores the keys, and what
a row may read, is the business of whoever made that function: the engine's memory, or a replay.

A Backend is three verbs. `prepare` turns the plan's integers into what the backend needs on its device,
once per forward pass. In every layer `append` then writes the new tokens of all rows, and `attend`
reads: effect none, any order of layers.

    T  new tokens, packed over rows      H  query heads      G  key/value heads
    D  head dim of q and k               Dv head dim of v    S  slots of the memory
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from manyhands.attention.rotary import Rope
from manyhands.cache.plan import Plan


@dataclass(frozen=True, eq=False)
class LayerCall:
    """What one layer asks of attention besides q, k and v."""

    layer: int
    scaling: float
    window: int | None = None  # a query sees keys at view distance 0 <= d < window; None: all
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    sinks: Tensor | None = (
        None  # [H]: one extra logit per head that takes weight and gives no value
    )


# q [T, H, D], k [T, G, D], v [T, G, Dv], none of them rotated yet -> [T, H, Dv]
AttendFn = Callable[[Tensor, Tensor, Tensor, LayerCall], Tensor]


class Backend(Protocol):
    """One way to compute the op."""

    name: str

    def prepare(self, plan: Plan, device: torch.device) -> Any:
        """The plan as this backend wants it, on `device`."""

    def append(
        self,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        prepared: Any,
        rope: Rope | None,
    ) -> None:
        """Store the new tokens' k [T, G, D], not rotated yet, and v [T, G, Dv] where the plan says."""

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        prepared: Any,
        call: LayerCall,
        rope: Rope | None,
    ) -> Tensor:
        """Q [T, H, D] not rotated; keys [S, G, D] rotated by their index on their strip; values
        [S, G, Dv]. Returns [T, H, Dv] in q's dtype. Sums are kept in float32 or better.
        """
