"""Keys and values in eight bits, with a scale per token and head: half the memory, and half the bytes read.

    number = integer * scale          integer int8, -127 .. 127        scale float32, largest number / 127

A key is rotated by its offset first, as in any store, then its dims are mixed, and it is rounded last; a scale of its own
makes every token's error relative to its own head, some 2^-8 of its largest number. Whatever is read passes through here, so a
token meets rounded keys in the very pass that writes them. What rounding costs: where products of another size change the
last bit of a key, its integer may be the next one. So a run in other company, or behind a prompt that was fed in other
parts, may differ by 1/127 of a number here and there, where plain stores differ by their last bits.

Mixing is a Hadamard matrix (`mixed`; QuaRot, Ashkboos et al. 2024, rotates keys so for four bits). Some dims of keys are
large in every token, and a scale that has room for them rounds all others coarsely. Mixed, every dim has a share of each, the
largest number of a head is two to three times the usual one, and queries whose dims are mixed in the same way
have the same products with keys. Values have such dims in few layers, and mixing them would have to be undone behind attention.

A move must rotate, so it mixes keys back, and rounds once more. It happens once in a block's life: behind another block it is not alone on a
strip that begins with it, and is moved no further (`cache/pages.py::PagePool.join`). Behind keys that were loaded from a sheet to
other offsets, which are turned and rounded there (`EightBitStack.put`), it is one more. Even if there were many, errors of
different roundings are independent: after a hundred they are ten times that of one.

    L  layers      S  slots      G  key/value heads      D, Dv  head dims
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerStore, Moved, StoreStack, Targets, rows_of

MOST = 127  # the largest integer
SCALE_BYTES = 4  # of the scale of one token's key or value in one head


def is_mixed(head_dim: int, rope: Rope | None) -> bool:
    """Whether keys of so many dims are mixed: kernels hold all dims of such heads in the order of memory.

    Others, 80 dims or halves of which a part is rotated, are rounded as they are.
    """
    is_whole = rope is None or rope.interleaved or rope.rotary_dim == head_dim
    return is_whole and head_dim.bit_count() == 1


def mixed(x: Tensor) -> Tensor:
    """X [..., D] times the Hadamard matrix of D, a power of two, over sqrt(D); mixing twice gives x, but for rounding.

    Sums and differences of neighbours go to either half, once for each power: the order in which kernels add, too.
    """
    width = x.shape[-1]
    for _ in range(width.bit_length() - 1):
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
        x = torch.cat((first + second, first - second), dim=-1)
    scaled: Tensor = x * width**-0.5
    return scaled


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers int8 [..., D] and scales float32 [...] of numbers [..., D]."""
    x = x.float()
    scales = x.abs().amax(-1) / MOST
    integers = (x / scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1) + 0.5).floor()
    return integers.clamp(-MOST, MOST).to(torch.int8), scales


def unrounded(integers: Tensor, scales: Tensor) -> Tensor:
    """The numbers [..., D] in float32."""
    return integers.float() * scales.unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class EightBitStore(LayerStore):
    """Keys int8 [S, G, D] and values int8 [S, G, Dv]; their scales float32 [S, G]."""

    key_scales: Tensor
    value_scales: Tensor

    @property
    def is_mixed(self) -> bool:
        """Whether the dims of its keys are mixed."""
        return is_mixed(self.keys.shape[-1], self.rope)

    @property
    def num_bytes(self) -> int:
        """See `LayerStore.num_bytes`."""
        return super().num_bytes + self.key_scales.nbytes + self.value_scales.nbytes

    def write(self, targets: Targets, k: Tensor, v: Tensor) -> None:
        """See `LayerStore.write`."""
        self._put(targets.slots, self.as_stored(targets.rotations.rotate(k.float(), self.rope)), v)

    def move(self, moved: Moved) -> None:
        """Copy keys, rotated by the shifts and rounded again, and values as they are."""
        keys = unrounded(self.keys[moved.sources], self.key_scales[moved.sources])
        keys = moved.shifts.rotate(self.as_stored(keys), self.rope)
        integers, scales = rounded(self.as_stored(keys))
        self.keys[moved.targets], self.key_scales[moved.targets] = integers, scales
        self.values[moved.targets] = self.values[moved.sources]
        self.value_scales[moved.targets] = self.value_scales[moved.sources]

    def as_stored(self, x: Tensor) -> Tensor:
        """See `LayerStore.as_stored`. Twice is once there and back."""
        return mixed(x) if self.is_mixed else x

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerStore.read`; in float32."""
        keys = unrounded(rows_of(self.keys, slots), rows_of(self.key_scales, slots))
        return self.as_stored(keys), unrounded(
            rows_of(self.values, slots), rows_of(self.value_scales, slots)
        )

    def read_heads(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerStore.read_heads`; in float32."""
        keys, key_scales, values, value_scales = (
            rows_of(x.flatten(0, 1), at)
            for x in (self.keys, self.key_scales, self.values, self.value_scales)
        )
        return unrounded(keys, key_scales), unrounded(values, value_scales)

    def read_run(self, slots: slice) -> tuple[Tensor, Tensor]:
        """See `LayerStore.read_run`; in float32, and so a copy."""
        keys = unrounded(self.keys[slots], self.key_scales[slots])
        values = unrounded(self.values[slots], self.value_scales[slots])
        return keys.transpose(0, 1), values.transpose(0, 1)

    def _put(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        for x, integers, scales in (
            (keys, self.keys, self.key_scales),
            (values, self.values, self.value_scales),
        ):
            found = rounded(x)
            integers.index_copy_(0, slots, found[0])
            scales.index_copy_(0, slots, found[1])


@dataclass(frozen=True, eq=False)
class EightBitStack(StoreStack):
    """The stores of L layers in one piece, scales [L, S, G] included."""

    key_scales: Tensor
    value_scales: Tensor

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, ropes: Sequence[Rope | None]) -> EightBitStack:
        """Cut int8 keys [L, S, G, D] and values [L, S, G, Dv] into layers; scales are made here."""
        scales = [torch.empty(keys.shape[:-1], device=keys.device) for _ in range(2)]
        stores = map(EightBitStore, keys, values, ropes, *scales)
        return cls(keys, values, tuple(stores), *scales)

    def tensors(self) -> dict[str, Tensor]:
        """See `StoreStack.tensors`."""
        scales = {"key_scales": self.key_scales, "value_scales": self.value_scales}
        return {**super().tensors(), **scales}

    def put(self, targets: Targets, sheet: Mapping[str, Tensor], *, is_turned: bool) -> None:
        """See `StoreStack.put`. Keys that are rotated are rounded again."""
        own = dict(sheet)
        if is_turned:
            stood = unrounded(own["keys"], own["key_scales"])
            turned = [
                store.as_stored(targets.rotations.rotate(store.as_stored(keys), store.rope))
                for store, keys in zip(self.stores, stood, strict=True)
            ]
            own["keys"], own["key_scales"] = rounded(torch.stack(turned))
        for name, tensor in self.tensors().items():
            tensor.index_copy_(1, targets.slots, own[name])
