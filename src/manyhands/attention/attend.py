"""The contract of the one op.

`attend` answers, for every new token of every row, softmax(q k / sqrt(d)) v over the ordered blocks
of that row's view. The network's layers call it through an `AttendFn`; where the keys lie, and what a row
may read, is decided by the maker of that function: the engine's memory, or a replay.

A Backend is four verbs. `prepare` makes of the plan's integers what the backend needs on its device,
once per forward pass. In every layer `append` then writes the new tokens of all rows to the layer's store,
and `attend` reads it: effect none, any order of layers. `run_layer` is both. Between passes `move` carries tokens to other slots.

    prepared = backend.prepare(plan, device)
    for store, call in layers:
        backend.append(store, k, v, prepared)
        out = backend.attend(store, q, prepared, call)

    T  new tokens, packed over rows      H  query heads      G  key/value heads
    D  head dim of q and k               Dv head dim of v
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from manyhands.attention.store import LayerStore, Moved, StoreStack
from manyhands.cache.plan import Plan


@dataclass(frozen=True)
class QueryScale:
    """A factor on queries by their position p in the view: 1 + beta ln(1 + floor((p + first) / span)).

    It sharpens attention over long texts (Llama 4 and Ministral 3, "attention temperature").
    """

    beta: float
    span: int  # positions, up to which it is 1
    first: int = 0  # the number of the first position; Llama 4 counts from 1

    def of(self, positions: Tensor) -> Tensor:
        """The factors [T] of queries at these positions [T], in float64 for int64 positions."""
        whole = torch.div(positions + self.first, self.span, rounding_mode="floor")
        wide = torch.float64 if positions.dtype == torch.int64 else torch.float32
        return 1 + self.beta * torch.log1p(whole.to(wide))

    def apply(self, q: Tensor, positions: Tensor) -> Tensor:
        """Q [T, H, D] of queries at these positions [T], in its dtype."""
        return (q * self.of(positions)[:, None, None]).to(q.dtype)


@dataclass(frozen=True, eq=False)
class LeftNorms:
    """RMS norms of the heads of q and k that are still to be made: of each the weight [D] and the epsilon.

    `form` says when values are rounded, see `kernels/rms.py`.
    """

    query: tuple[Tensor, float]
    key: tuple[Tensor, float]
    form: int


class LatentForms(Protocol):
    """A layer with latent attention in its two forms: what the layer's matrix makes of queries, latents and outputs.

    Absorbed, queries meet latents as they are stored, and outputs are sums of latents. Expanded, keys and values of
    all heads are made of the latents first. The scaling of scores is the same.
    """

    def queries(self, q: Tensor) -> Tensor:
        """For the absorbed form: of q [T, H, N + R], as the network makes it, [T, H, R + C]."""

    def values(self, out: Tensor) -> Tensor:
        """Of outputs of the absorbed form [T, H, C]: those of the layer [T, H, Dv]."""

    def expanded_queries(self, q: Tensor) -> Tensor:
        """For the expanded form: of q [T, H, N + R], as the network makes it, [T, H, R + N]."""

    def keys_and_values(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Of latents [S, C]: the dims of keys that do not rotate, [S, H, N], and values [S, H, Dv]."""


@dataclass(frozen=True, eq=False)
class LayerCall:
    """The demands of one layer on attention, besides q, k and v."""

    layer: int
    scaling: float
    window: int | None = None  # a query sees keys at view distance 0 <= d < window; None: all
    # A query at view position p sees keys from position p - p % chunk on (chunked attention); None: all.
    chunk: int | None = None
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    sinks: Tensor | None = (
        None  # [H]: one extra logit per head that takes weight and gives no value
    )
    query_scale: QueryScale | None = None
    norms: LeftNorms | None = None  # only for a function whose `takes_norms(layer)` says yes
    # Only for a function whose `takes_forms` is true: q is in neither form yet, and outputs are the layer's own.
    forms: LatentForms | None = None

    @property
    def reach(self) -> int | None:
        """No key at this view distance or beyond is seen; None: any may be."""
        bounds = [bound for bound in (self.window, self.chunk) if bound is not None]
        return min(bounds, default=None)


# q [T, H, D], k [T, G, D], v [T, G, Dv], none of them rotated yet -> [T, H, Dv]
AttendFn = Callable[[Tensor, Tensor, Tensor, LayerCall], Tensor]


class Backend(Protocol):
    """One way to compute the op."""

    name: str
    takes_norms: bool  # whether `append` can make norms that were left to it

    def prepare(self, plan: Plan, device: torch.device) -> Any:
        """The plan as this backend wants it, on `device`; for all layers, whatever their shapes."""

    def append(
        self,
        store: LayerStore,
        k: Tensor,
        v: Tensor,
        prepared: Any,
        left: tuple[Tensor, LeftNorms] | None = None,
    ) -> None:
        """Store the new tokens' k [T, G, D], not rotated yet, and v [T, G, Dv] where the plan says.

        With norms that are `left`, keys are normed first, and so is q [T, H, D] beside them, in place.
        """

    def attend(self, store: LayerStore, q: Tensor, prepared: Any, call: LayerCall) -> Tensor:
        """Q [T, H, D], not rotated, meets the store: [T, H, Dv] in q's dtype.

        Sums are kept in float32 or better.
        """

    def run_layer(
        self, store: LayerStore, q: Tensor, k: Tensor, v: Tensor, prepared: Any, call: LayerCall
    ) -> Tensor:
        """`append`, norms that were left included, and `attend`: a backend may do some of both at once."""
        left = None if call.norms is None else (q, call.norms)
        self.append(store, k, v, prepared, left)
        return self.attend(store, q, prepared, call)

    def move(self, stack: StoreStack, moved: Moved) -> None:
        """Carry tokens to other slots in all layers of a stack."""
