"""Operands of kernels, made of a store and of a call: dims and strides, scales, how dims pair up, the factor of queries.

Stores differ in how keys and values lie (`attention/store.py`, `eight_bits.py`, `latents.py`), and a kernel gets pointers and numbers. Here
these are made of a store, once for all kernels: those that write, move and read.

    T  new tokens
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from manyhands.attention.attend import LayerCall
from manyhands.attention.eight_bits import EightBitStack, EightBitStore
from manyhands.attention.kernels.attend import LOG2E
from manyhands.attention.latents import LatentStack, LatentStore
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerStore, StoreStack


def dims_of(stored: LayerStore | StoreStack) -> dict[str, int]:
    """The dims of keys that kernels rotate, those of values, and how far apart both lie in memory.

    Of latents the former are k_pe, in front of the values in the same memory.
    """
    whole, value_dim = stored.keys.shape[-1], stored.values.shape[-1]
    is_latent = isinstance(stored, LatentStore | LatentStack)
    return {
        "HEAD_DIM": whole - value_dim if is_latent else whole,
        "VALUE_DIM": value_dim,
        "KEY_STRIDE": whole,
        "VALUE_STRIDE": whole if is_latent else value_dim,
    }


def scales_of(stored: LayerStore | StoreStack) -> tuple[Tensor, Tensor]:
    """The scales of keys and of values; where there are none, something in their place that nothing reads."""
    if isinstance(stored, EightBitStore | EightBitStack):
        return stored.key_scales, stored.value_scales
    return stored.keys, stored.values


def rotation_of(rope: Rope | None, head_dim: int) -> dict[str, Any]:
    """How dims pair up. Without positions nothing is rotated, and any pairing is as good."""
    if rope is None:
        return {"ROTARY_DIM": head_dim, "INTERLEAVED": False}
    return {"ROTARY_DIM": rope.rotary_dim, "INTERLEAVED": rope.interleaved}


def mixings_of(store: LayerStore) -> int:
    """Stages in which kernels mix the dims of keys; 0: they do not."""
    if not isinstance(store, EightBitStore) or not store.is_mixed:
        return 0
    return store.keys.shape[-1].bit_length() - 1


def scaling_of(call: LayerCall) -> float:
    """The factor of queries: scores are exponents of two then, unless a softcap bends them first."""
    return call.scaling if call.softcap is not None else call.scaling * LOG2E.value


def with_dense_heads(x: Tensor) -> Tensor:
    """X [T, heads, dim] with its last dim in one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()
