"""Benchmarks keep loaded objects from the collector of garbage for a while; tests do so already.

How fast memory is needs 64 MB to be true, and a sixty-fourth of them to be asked.
"""

import gc
from collections.abc import Iterator

import pytest

from manyhands.evaluation import bench


@pytest.fixture(autouse=True, scope="module")
def kept() -> Iterator[None]:
    """Objects that tests keep stay kept, and little is copied."""
    with pytest.MonkeyPatch.context() as kept:
        for name in ("freeze", "unfreeze"):
            kept.setattr(gc, name, lambda: None)
        kept.setitem(bench._COPIED_BYTES, "cpu", 1 << 20)
        yield
