"""Benchmarks keep loaded objects from the collector of garbage for a while; tests do so already.

How fast memory is needs 64 MB to be true, and a sixty-fourth of them to be asked.
"""

import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import outsiders
from manyhands.evaluation import bench
from tests.benchmarks.another_engine import ANOTHER_ENGINE, KINDS, TUNED
from tests.warm import Warm


@pytest.fixture(autouse=True, scope="module")
def kept() -> Iterator[None]:
    """Objects that tests keep stay kept, and little is copied."""
    with pytest.MonkeyPatch.context() as kept:
        for name in ("freeze", "unfreeze"):
            kept.setattr(gc, name, lambda: None)
        kept.setitem(bench._COPIED_BYTES, "cpu", 1 << 20)
        yield


@pytest.fixture
def another(tmp_path: Path) -> Path:
    """A folder in which a package lies where vLLM would that is called like it."""
    place = tmp_path / "there" / outsiders.VLLM_PACKAGES / "vllm"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(ANOTHER_ENGINE)
    (place / "sampling_params.py").write_text(KINDS)
    experts = place / "model_executor" / "layers" / "fused_moe" / "fused_moe.py"
    experts.parent.mkdir(parents=True)
    experts.write_text(TUNED)
    return tmp_path / "there"


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes begin with torch imported."""
    monkeypatch.setattr(subprocess, "Popen", Warm)
