"""Memory that is no number where nothing was written: a key that is read too early shows in every logit."""

from __future__ import annotations

from manyhands.model.memory import Memory


def poison(memory: Memory) -> None:
    """Fill all stores with NaN."""
    for store in memory.stores:
        store.keys.fill_(float("nan"))
        store.values.fill_(float("nan"))
