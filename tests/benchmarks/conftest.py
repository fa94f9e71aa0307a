"""Benchmarks keep loaded objects from the collector of garbage for a while; tests do so already."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def kept() -> Iterator[None]:
    """Objects that tests keep stay kept."""
    with pytest.MonkeyPatch.context() as kept:
        for name in ("freeze", "unfreeze"):
            kept.setattr(gc, name, lambda: None)
        yield
