"""The executor on rank 0: the same verbs, made together with all other ranks.

    executor, tokenizer = RankedExecutor.load(ModelSettings("Qwen/QwQ-32B", ranks=2))
    engine = Engine(executor, tokenizer)

It is a `LocalExecutor` with rank 0's part of the network. A verb tells the others its integers first and is then
made here, so that the sums in the layers meet. Choosing tokens is rank 0's alone.

In `facts`, bytes are those of one rank: what its device reads, and what it holds.
"""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from manyhands.cache.logprobs import Targets
from manyhands.cache.places import Ints, Move
from manyhands.cache.plan import Plan
from manyhands.cache.step import Choice
from manyhands.cache.tally import Weighing
from manyhands.engine.executor import Kept, Places
from manyhands.engine.local_executor import LocalExecutor, Network
from manyhands.engine.lookahead import Ahead
from manyhands.engine.passes import Late, PassOutcome
from manyhands.engine.ranks.channel import Verb, ints_of
from manyhands.engine.ranks.launched import num_ranks
from manyhands.engine.ranks.packing import pack_merged, pack_moves
from manyhands.engine.ranks.part import fingerprint_of_all, load_part, look_for_peers, report_of
from manyhands.engine.ranks.processes import Processes
from manyhands.engine.ranks.told import ToldRanks
from manyhands.engine.ranks.world import World
from manyhands.errors import InvalidRequest, ManyhandsError, RanksFailed
from manyhands.model.settings import ModelSettings
from manyhands.replay.merged import Merged


class RankedExecutor(LocalExecutor):
    """Network, memory and passes of rank 0; every pass is made with all other ranks."""

    def __init__(self, world: World, network: Network, settings: ModelSettings) -> None:
        """Every rank has its part of the network, and is about to have memory. See `on`."""
        self.world = world
        others = ToldRanks(
            world.told,
            world.collectives,
            world.device,
            answers=world.answers,
            compares=settings.check_ranks,
        )
        super().__init__(network.adapter, settings, fused=network.fused, others=others)
        world.recorded.add(self)

    @classmethod
    def load(
        cls,
        settings: ModelSettings,
        *,
        downloads: bool = False,
        started: Processes | None = None,
    ) -> tuple[Self, Any]:
        """Start the other ranks, or take those that are `started`, and load the model on all.

        Besides what loading raises: RanksFailed.
        """
        _check_divisible(settings)
        world = World.start(num_ranks(settings), settings.device, started=started)
        try:
            executor, tokenizer = cls.on(world, settings, downloads=downloads)
        except BaseException:
            world.end()
            raise
        weakref.finalize(executor, world.end)
        return executor, tokenizer

    @classmethod
    def on(
        cls, world: World, settings: ModelSettings, *, downloads: bool = False
    ) -> tuple[Self, Any]:
        """Load the model on ranks that are there; an earlier model of theirs is let go.

        Errors of ours leave the ranks there for another one. Any other, such as an interrupt, ends them: their answers would be taken
        for those to the next model.
        """
        try:
            return cls._on(world, settings, downloads=downloads)
        except ManyhandsError:
            raise
        except BaseException as error:
            world.give_up(error)
            raise

    @classmethod
    def _on(
        cls, world: World, settings: ModelSettings, *, downloads: bool = False
    ) -> tuple[Self, Any]:
        _check_divisible(settings)
        began = time.monotonic()
        # Of a command's options, those of the model.
        told = {each.name: getattr(settings, each.name) for each in fields(ModelSettings)}
        told["model"] = str(settings.model)
        with world.whole():
            world.told.tell(Verb.LOAD, ints_of(json.dumps(told)))
        try:
            network = load_part(settings, world.device, world.collectives, downloads=downloads)
        except ManyhandsError:
            with suppress(ManyhandsError):  # mostly the same one
                world.answers()
            raise
        own = {"loaded": report_of(network, settings, time.monotonic() - began)}
        reports = [own["loaded"], *(said["loaded"] for said in world.answers())]
        share = world.size if world.device.type == "cpu" else 1  # all ranks share the host's memory
        room = max(1, min(each["tokens"] for each in reports) // share)
        settings = replace(settings, memory_tokens=settings.memory_tokens or room)
        with world.whole():
            world.told.tell(Verb.REMEMBER, np.array([settings.memory_tokens], dtype=np.int64))
            look_for_peers(network, settings, world.collectives)
        try:
            executor = cls(world, network, settings)
        except ManyhandsError:
            with suppress(ManyhandsError):
                world.answers()
            raise
        world.answers()
        seconds = time.monotonic() - began
        executor.facts = replace(
            executor.facts, about_ranks=_about(world, reports, executor.memory.num_bytes, seconds)
        )
        return executor, network.tokenizer

    def close(self) -> None:
        """Let the other ranks go, and with them their memory; the executor cannot be used any more.

        From any thread: a verb that is under way is done before.
        """
        self.world.close()

    def run(
        self,
        plan: Plan,
        choices: Sequence[Choice] = (),
        *,
        lookahead: bool = False,
        weighing: Weighing | None = None,
        targets: Targets | None = None,
        ahead: Ahead | None = None,
    ) -> tuple[int, ...]:
        """See `Executor.run`."""
        with self.world.whole():
            return super().run(
                plan,
                choices,
                lookahead=lookahead,
                weighing=weighing,
                targets=targets,
                ahead=ahead,
            )

    def go_on(
        self,
        rows: Sequence[int],
        choices: Sequence[Choice],
        *,
        lookahead: bool = False,
        weighing: Weighing | None = None,
        ahead: Ahead | None = None,
    ) -> tuple[int, ...]:
        """See `Executor.go_on`."""
        with self.world.whole():
            return super().go_on(rows, choices, lookahead=lookahead, weighing=weighing, ahead=ahead)

    def _passed(self, plan: Plan, targets: Targets | None = None) -> PassOutcome:
        """See `LocalExecutor`. Raises RanksFailed for an error of ours: the pass was told."""
        with _told():
            return super()._passed(plan, targets)

    def _begun_pass(self, plan: Plan, late: Late) -> PassOutcome:
        """See `LocalExecutor`. Raises RanksFailed for an error of ours: the pass was told."""
        with _told():
            return super()._begun_pass(plan, late)

    def record_ahead(self, told: Callable[[int, int], None]) -> None:
        """See `Executor.record_ahead`."""
        with self.world.whole():
            super().record_ahead(told)

    def logits(self, plan: Plan) -> Tensor:
        """See `Executor.logits`."""
        with self.world.whole():
            return super().logits(plan)

    def move(self, moves: Sequence[Move]) -> None:
        """See `Executor.move`."""
        with self.world.whole():
            self.world.told.tell(Verb.MOVE, *pack_moves(moves))
            super().move(moves)

    def write_keys(
        self,
        merged: Merged,
        tokens: Ints,
        places: Places,
        found: Places | None = None,
        states: Kept | None = None,
    ) -> None:
        """See `Executor.write_keys`. Without room for the forward the ranks cannot go on: RanksFailed."""
        assert states is None, "a network that keeps states is not cut over ranks"
        with self.world.whole():
            self._check_place()  # an error of ours is raised before the others are told
            where = (*places, *(found or ()))
            self.world.told.tell(Verb.WRITE_KEYS, *pack_merged(merged), tokens, *where)
            with _told():
                super().write_keys(merged, tokens, places, found)

    def replay(self, merged: Merged, rows: Sequence[int] | None = None) -> Tensor:
        """See `Executor.replay`."""
        with self.world.whole():
            self._check_place()
            wanted = [] if rows is None else [np.array(rows, dtype=np.int64)]
            self.world.told.tell(Verb.REPLAY, *pack_merged(merged), *wanted)
            with _told():
                return super().replay(merged, rows)

    def make_up(self, places: Places, seed: int) -> None:
        """See `Executor.make_up`. Each rank makes up its own heads."""
        with self.world.whole():
            self.world.told.tell(Verb.MAKE_UP, np.array([seed], dtype=np.int64), *places)
            super().make_up(places, seed)

    def fingerprint(self) -> str:
        """See `Executor.fingerprint`: of all ranks' weights together."""
        with self.world.whole():
            self.world.told.tell(Verb.FINGERPRINT)
            return fingerprint_of_all(self, self.world.collectives)


@contextmanager
def _told() -> Iterator[None]:
    """An error of ours inside is rank 0's alone, and the others wait in the midst of what they were told: RanksFailed."""
    try:
        yield
    except RanksFailed:
        raise
    except ManyhandsError as error:
        raise RanksFailed(f"rank 0: {error}", hint=error.hint) from error


def _check_divisible(settings: ModelSettings) -> None:
    """Raise InvalidRequest for settings that no several ranks bear."""
    if not isinstance(settings.model, str | Path):
        raise InvalidRequest(
            "a network that is built already cannot be cut over several ranks",
            hint="give its folder or its name: each rank reads its own part",
        )
    if settings.cache is not None:
        raise InvalidRequest(
            "the cache on disk keeps keys and values of a whole network, and each rank has its own heads'",
            hint="leave out cache, or ranks",
        )


def _about(world: World, reports: Sequence[dict[str, Any]], keys: int, seconds: float) -> str:
    """How many ranks there are, and what each holds."""
    each = "; ".join(
        f"rank {rank} holds {report['weights'] / 2**30:.2f} GiB of weights and "
        f"{keys / 2**30:.2f} of keys and values, loaded in {report['seconds']:.1f} s"
        for rank, report in enumerate(reports)
    )
    sums = f" (sums: {world.collectives.about_peers})" if world.collectives.about_peers else ""
    return (
        f"{world.size} ranks on {world.device.type} share the model, joined by "
        f"{world.collectives.name}{sums}, started in {world.seconds_starting:.1f} s and ready in {seconds:.1f}: "
        f"{each}"
    )
