"""Parts of an engine whose types say less than a benchmark knows: it has loaded the engine itself."""

from __future__ import annotations

from manyhands.engine.engine import Engine
from manyhands.engine.executor import LocalExecutor


def executor_of(engine: Engine) -> LocalExecutor:
    """The executor with the network and the memory of this process: all of them, or those of rank 0."""
    assert isinstance(engine.executor, LocalExecutor), "a benchmark loads its engine itself"
    return engine.executor
