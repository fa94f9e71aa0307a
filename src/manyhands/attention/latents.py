"""The store of a layer with multi-head latent attention (MLA): one latent a token, read as key and as value.

Such a layer (DeepSeek-V2, arXiv 2405.04434, section 2.1) makes the keys and values of all its heads from one vector c
of a few hundred numbers, and one more key k_pe, rotated, that all heads share. Stored is that alone:

    key    [ k_pe | c ]      of one key/value head, R + C dims, of which the first R rotate
    value          [ c ]     the last C dims of the same numbers, no second copy

The network's queries are brought into that form by `model/latent.py` (the absorbed form, same paper, section 2.1.2), so
a backend sees one key/value head with many query heads, and a partial rotation. A view costs the latents nothing: no
dim of c depends on a position. A move rotates R dims and copies C.

    L  layers      S  slots      R, C  dims of k_pe and of c      D = R + C      Dv = C
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from manyhands.attention.store import LayerStore, Moved, StoreStack, Targets, rows_of


@dataclass(frozen=True, eq=False)
class LatentStore(LayerStore):
    """Keys [S, 1, D], their first R dims rotated; values [S, 1, Dv] are the last dims of the same memory."""

    def __post_init__(self) -> None:
        own = self.keys[..., -self.value_dim :]
        assert self.values.data_ptr() == own.data_ptr(), "values of a latent store lie in its keys"

    @property
    def num_bytes(self) -> int:
        """See `LayerStore.num_bytes`."""
        return self.keys.nbytes

    def write(self, targets: Targets, k: Tensor, v: Tensor) -> None:
        """See `LayerStore.write`. `v` is the end of `k`, and not looked at."""
        self.keys.index_copy_(0, targets.slots, targets.rotations.rotate(k, self.rope))

    def move(self, moved: Moved) -> None:
        """Copy latents, and k_pe rotated by the shifts."""
        self.keys[moved.targets] = moved.shifts.rotate(self.keys[moved.sources], self.rope)

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerStore.read`; gathered once."""
        keys = rows_of(self.keys, slots)
        return keys, keys[..., -self.value_dim :]

    def read_heads(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerStore.read_heads`; gathered once."""
        keys = rows_of(self.keys.flatten(0, 1), at)
        return keys, keys[..., -self.value_dim :]


@dataclass(frozen=True, eq=False)
class LatentStack(StoreStack):
    """The stores of L layers in one piece: keys [L, S, 1, D], values the last Dv dims of the same memory."""

    store_kind: ClassVar[type[LayerStore]] = LatentStore

    def tensors(self) -> dict[str, Tensor]:
        """See `StoreStack.tensors`: the keys, in which the values lie."""
        return {"keys": self.keys}

    def put(self, targets: Targets, sheet: Mapping[str, Tensor], *, is_turned: bool) -> None:
        """See `StoreStack.put`."""
        self.put_keys(targets, sheet["keys"], is_turned=is_turned)
