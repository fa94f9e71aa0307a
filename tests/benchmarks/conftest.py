"""Benchmarks keep loaded objects from the collector of garbage for a while; tests do so already.

How fast memory is needs 64 MB to be true, and a sixty-fourth of them to be asked.
"""

import gc
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import outsiders
from manyhands.engine.ranks.world import World
from manyhands.evaluation import bench
from tests.benchmarks.another_engine import ANOTHER_ENGINE, KINDS, SUMS, TUNED
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
    sums = place / "distributed" / "parallel_state.py"
    sums.parent.mkdir()
    sums.write_text(SUMS)
    return tmp_path / "there"


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes begin with torch imported, but for ranks, which are no `python -m`."""
    usual = subprocess.Popen

    def begin(command: Sequence[str], **how: Any) -> Any:
        return (Warm if command[1] == "-m" else usual)(command, **how)

    monkeypatch.setattr(subprocess, "Popen", begin)


@pytest.fixture
def red_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that write other tokens than one GPU; none is started for it."""
    monkeypatch.setattr(World, "start", lambda *_: SimpleNamespace(end=lambda: None))
    monkeypatch.setattr("benchmarks.whole_engines.writes_the_same", lambda *_: False)
