"""Parts of an engine whose types say less than a benchmark knows: it has loaded the engine itself, on one device or over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.world import World
from manyhands.model.settings import ModelSettings

if TYPE_CHECKING:
    from manyhands.engine.recordings import Recordings


def executor_of(engine: Engine) -> LocalExecutor:
    """The executor with the network and the memory of this process: all of them, or those of rank 0."""
    assert isinstance(engine.executor, LocalExecutor), "a benchmark loads its engine itself"
    return engine.executor


def engine_on(world: World | None, settings: ModelSettings) -> Engine:
    """An engine on the ranks of a world, or on one device."""
    if world is None:
        return Engine.load(settings)
    return Engine(*RankedExecutor.on(world, settings), settings)


def recordings_of(engine: Engine) -> Recordings | None:
    """The recordings of its passes; None where these are launched."""
    if engine.facts.backend != "triton":
        return None
    from manyhands.engine.graphs import GraphedPasses  # needs Triton, which is not everywhere

    passes = executor_of(engine).passes
    return passes.recordings if isinstance(passes, GraphedPasses) else None


@contextmanager
def ending(world: World | None) -> Iterator[None]:
    """Behind it the other ranks go, if there are any: those of another network come behind."""
    try:
        yield
    finally:
        if world is not None:
            world.end()
