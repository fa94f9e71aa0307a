"""Memory that is no number where nothing was written: a key that is read too early shows in every logit."""

from __future__ import annotations

from manyhands.attention.eight_bits import EightBitStore
from manyhands.model.memory import Memory


def poison(memory: Memory) -> None:
    """Fill all stores with NaN."""
    for store in memory.stores:
        numbers = (
            (store.key_scales, store.value_scales)
            if isinstance(store, EightBitStore)
            else (store.keys, store.values)
        )
        for each in numbers:
            each.fill_(float("nan"))
