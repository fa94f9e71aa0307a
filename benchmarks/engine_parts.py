"""Parts of an engine whose types say less than a benchmark knows: it has loaded the engine itself, on one device or over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.world import World
from manyhands.model.settings import ModelSettings


def executor_of(engine: Engine) -> LocalExecutor:
    """The executor with the network and the memory of this process: all of them, or those of rank 0."""
    assert isinstance(engine.executor, LocalExecutor), "a benchmark loads its engine itself"
    return engine.executor


def engine_on(world: World | None, settings: ModelSettings) -> Engine:
    """An engine on the ranks of a world, or on one device."""
    if world is None:
        return Engine.load(settings)
    return Engine(*RankedExecutor.on(world, settings), settings)


@contextmanager
def ending(world: World | None) -> Iterator[None]:
    """Behind it the other ranks go, if there are any: those of another network come behind."""
    try:
        yield
    finally:
        if world is not None:
            world.end()
