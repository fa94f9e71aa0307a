"""Tiny networks in folders, as ranks load them, and the same network in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from manyhands.engine.engine import Engine
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.world import World
from manyhands.errors import RanksFailed
from manyhands.model.parallel.cuts import WHOLE
from manyhands.model.quiet import quiet
from manyhands.model.settings import ModelSettings
from tests.engine.small import TOKENIZER, networks, small_config
from tests.model.families_zoo import tiny_model
from tests.model.test_conformance import ZOO

# The networks of the zoo that can be cut.
CUT = [name for name in ZOO if ZOO[name].args[0].model_type not in WHOLE]


def family_folder(name: str, folder: Path) -> Path:
    """The network of the zoo, saved."""
    with quiet():
        networks()[name]().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def small_folder(folder: Path) -> Path:
    """The random Qwen3 of the engine's tests, saved."""
    with quiet():
        tiny_model(small_config()).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def alone(folder: Path, **choices: Any) -> Engine:
    """The model in one process."""
    return Engine.load(folder, device="cpu", **choices)


def ranked(world: World, folder: Path, **choices: Any) -> Engine:
    """The model over the ranks of a world."""
    settings = ModelSettings(folder, device="cpu", **choices)
    executor, tokenizer = RankedExecutor.on(world, settings)
    return Engine(executor, tokenizer, settings)


class Worlds:
    """The ranks of a file's tests, one world at a time: started when a test needs them, and again where one has ended them.

    Tests of a file come in any order: of several processes one takes over what another has not come to.
    """

    def __init__(self, start: Callable[[], World]) -> None:
        self._start = start
        self._world: World | None = None

    def living(self) -> World:
        """Ranks that are all there."""
        try:
            if self._world is not None:
                self._world.check()
        except RanksFailed:
            self._world = None
        if self._world is None:
            self._world = self._start()
        return self._world

    def end(self) -> None:
        if self._world is not None:
            self._world.end()


def worlds_of(start: Callable[[], World]) -> Iterator[Worlds]:
    """The body of a fixture: `start` is how a file starts its ranks."""
    worlds = Worlds(start)
    yield worlds
    worlds.end()
