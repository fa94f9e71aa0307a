"""The store of one layer: the keys and values of all slots, and how they are written, moved and read.

A backend is given a store and never asks what lies in it. The contract is three verbs:

    write   new tokens, not rotated yet, to the slots of the plan
    move    tokens to other slots, their keys rotated by the difference of the two offsets; for all layers
            of one shape at once, which lie in one piece (`StoreStack`)
    read    keys and values of some slots, for the backends in plain torch

A store may hold keys in other axes than the network's; queries meet them there (`as_stored`).

`LayerStore` holds keys and values as they are, `attention/eight_bits.py` in eight bits with a scale per token and
head, `attention/latents.py` one latent a token that is key and value at once. Kernels that load a store themselves
know its tensors.

    S  slots      G  key/value heads      D, Dv  head dims of keys and of values
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from manyhands.attention.rotary import Rope, Rotations
from manyhands.cache.plan import Plan


@dataclass(frozen=True)
class LayerShape:
    """The heads of one attention layer. Layers of one network may differ in all of it."""

    num_heads: int  # H
    num_kv_heads: int  # G, which divides H
    head_dim: int  # D, of queries and keys
    value_dim: int  # Dv
    is_latent: bool = False  # values are the last Dv dims of keys (`attention/latents.py`)
    # Keys and values were made of latents: of a key the first dims alone are rotated (`engine/expanded.py`).
    is_expanded: bool = False

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def numbers_per_token(self) -> int:
        """Numbers that one token's key and value take."""
        apart = 0 if self.is_latent else self.value_dim
        return self.num_kv_heads * (self.head_dim + apart)


@dataclass(frozen=True, eq=False)
class Targets:
    """Where new tokens go: `slots` [T], and `rotations` [T] by their offsets on their strips."""

    slots: Tensor
    rotations: Rotations

    @classmethod
    def of(cls, plan: Plan, device: torch.device) -> Targets:
        """The targets of a plan's new tokens."""
        slots, offsets = (torch.as_tensor(x, device=device) for x in (plan.slots, plan.offsets))
        return cls(slots, Rotations(offsets))

    def to(self, device: torch.device) -> Targets:
        """The same targets on another device."""
        return Targets(self.slots.to(device, non_blocking=True), self.rotations.to(device))


@dataclass(frozen=True, eq=False)
class Moved:
    """Tokens that move: from `sources` [N] to `targets` [N], which are other slots.

    `shifts` [N] are the differences of the offsets, targets minus sources.
    """

    sources: Tensor
    targets: Tensor
    shifts: Rotations


@dataclass(frozen=True, eq=False)
class LayerStore:
    """Keys [S, G, D], rotated by their offsets on their strips, and values [S, G, Dv].

    `rope` is how the layer rotates; None: it has no positions.
    """

    keys: Tensor
    values: Tensor
    rope: Rope | None

    @property
    def num_kv_heads(self) -> int:
        """G."""
        return self.keys.shape[1]

    @property
    def value_dim(self) -> int:
        """Dv."""
        return self.values.shape[2]

    @property
    def num_bytes(self) -> int:
        """Bytes of all that is stored."""
        return self.keys.nbytes + self.values.nbytes

    def write(self, targets: Targets, k: Tensor, v: Tensor) -> None:
        """Store k [T, G, D], rotated here, and v [T, G, Dv]."""
        self.keys.index_copy_(0, targets.slots, targets.rotations.rotate(k, self.rope))
        self.values.index_copy_(0, targets.slots, v)

    def move(self, moved: Moved) -> None:
        """Copy keys, rotated by the shifts, and values."""
        self.keys[moved.targets] = moved.shifts.rotate(self.keys[moved.sources], self.rope)
        self.values[moved.targets] = self.values[moved.sources]

    def as_stored(self, x: Tensor) -> Tensor:
        """Keys or queries x [..., D], rotated, in the axes that keys are stored in: scores are the same there."""
        return x

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [..., G, D], rotated by their offsets, and values [..., G, Dv] at `slots` [...]."""
        return rows_of(self.keys, slots), rows_of(self.values, slots)

    def read_heads(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [..., D], as stored, and values [..., Dv] of single heads, `at` [...] being slot * G + head.

        So they come in the order in which a product wants them, and need no transposing.
        """
        return rows_of(self.keys.flatten(0, 1), at), rows_of(self.values.flatten(0, 1), at)

    def read_run(self, slots: slice) -> tuple[Tensor, Tensor]:
        """Keys [G, N, D], as stored, and values [G, N, Dv] of N slots that follow each other, where they lie."""
        return self.keys[slots].transpose(0, 1), self.values[slots].transpose(0, 1)


@dataclass(frozen=True, eq=False)
class StoreStack:
    """The stores of L layers that lie in one piece: keys [L, S, G, D], values [L, S, G, Dv]."""

    keys: Tensor
    values: Tensor
    stores: tuple[LayerStore, ...]

    store_kind: ClassVar[type[LayerStore]] = LayerStore  # of its layers

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, ropes: Sequence[Rope | None]) -> StoreStack:
        """Cut into layers, which rotate as `ropes` [L] say."""
        return cls(keys, values, tuple(map(cls.store_kind, keys, values, ropes)))

    def move(self, moved: Moved) -> None:
        """Move tokens in all layers, one after the other."""
        for store in self.stores:
            store.move(moved)

    def clear(self, slots: Tensor) -> None:
        """Write zeros to these slots [N], in all layers."""
        for each in self.tensors().values():
            each.index_fill_(1, slots, 0)

    def tensors(self) -> dict[str, Tensor]:
        """All that is stored, each [L, S, ...]: what a sheet holds of some slots (`model/shelf.py`)."""
        return {"keys": self.keys, "values": self.values}

    def put(self, targets: Targets, sheet: Mapping[str, Tensor], *, is_turned: bool) -> None:
        """Write what `tensors` held of N slots, each [L, N, ...], to others; keys rotated if `is_turned`."""
        self.values.index_copy_(1, targets.slots, sheet["values"])
        self.put_keys(targets, sheet["keys"], is_turned=is_turned)

    def put_keys(self, targets: Targets, keys: Tensor, *, is_turned: bool) -> None:
        """Write keys [L, N, G, D] to N slots, rotated by the targets' offsets if `is_turned`."""
        if not is_turned:
            self.keys.index_copy_(1, targets.slots, keys)
            return
        for store, own in zip(self.stores, keys, strict=True):
            store.keys.index_copy_(0, targets.slots, targets.rotations.rotate(own, store.rope))


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """x[index]; `index_select` has the faster gradient where rows are taken many times."""
    return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])
