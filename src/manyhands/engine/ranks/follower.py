"""The life of every rank but rank 0: hear a verb and its integers, do it, hear the next.

Nothing is decided here and nothing is answered, but for loading a model: then every rank says how much memory
it has, or what went wrong, and is ready for the next try. Any other error ends this rank, and with it all.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from manyhands.attention.prepared import Capacity
from manyhands.cache.places import Ints
from manyhands.engine.executor import Places
from manyhands.engine.garbage import keep_loaded
from manyhands.engine.graphs import GraphedPasses
from manyhands.engine.local_executor import LocalExecutor, Network
from manyhands.engine.ranks.channel import OtherEnd, Verb, text_of
from manyhands.engine.ranks.group import join_group, leave_group, take_device
from manyhands.engine.ranks.packing import (
    unpack_int32,
    unpack_merged,
    unpack_moves,
    unpack_plan,
    unpack_targets,
)
from manyhands.engine.ranks.part import fingerprint_of_all, load_part, look_for_peers, report_of
from manyhands.engine.ranks.told import Following
from manyhands.engine.recordings import Recordings
from manyhands.errors import ManyhandsError
from manyhands.model.parallel.collectives import GroupCollectives
from manyhands.model.settings import ModelSettings


def follow(heard: OtherEnd) -> None:
    """Do what rank 0 says until it says that it is the end. EOFError when it is gone without that."""
    follower = Follower(heard)
    try:
        while follower.obey(*heard.next()):
            pass
    finally:
        follower.forget()
        leave_group()


class Follower:
    """One of the other ranks."""

    def __init__(self, heard: OtherEnd) -> None:
        self.heard = heard
        self.device = torch.device("cpu")
        self.collectives: GroupCollectives | None = None
        self.settings = ModelSettings()
        self.network: Network | None = None
        self._executor: LocalExecutor | None = None

    @property
    def executor(self) -> LocalExecutor:
        """Network and memory of this rank."""
        assert self._executor is not None, "rank 0 says LOAD and REMEMBER first"
        return self._executor

    def forget(self) -> None:
        """Drop all recordings: NCCL does not let go of a group that a graph's sums need."""
        if self._executor is not None:
            self._executor.forget()

    def obey(self, verb: Verb, arrays: Iterator[Ints]) -> bool:
        """Do it; False if that is the end."""
        if verb == Verb.END:
            return False
        with torch.inference_mode(verb >= Verb.LAUNCH):
            getattr(self, f"_{verb.name.lower()}")(arrays)
        return True

    def _join(self, arrays: Iterator[Ints]) -> None:
        kind, port = text_of(next(arrays)), int(next(arrays)[0])
        rank, size = self.heard.rank, self.heard.size
        self.device = take_device(kind, rank)
        self.heard.report(device=str(self.device))
        self.collectives = join_group(kind, port, rank, size, self.device, self.heard.check)

    def _load(self, arrays: Iterator[Ints]) -> None:
        self.settings = ModelSettings(**json.loads(text_of(next(arrays))))
        if self.network is not None:
            self.forget()
            self._executor = self.network = None
            gc.unfreeze()
            gc.collect()  # two models may not fit beside each other
        assert self.collectives is not None, "rank 0 says JOIN first"
        began = time.monotonic()
        with _Answering(self.heard):
            self.network = load_part(self.settings, self.device, self.collectives)
            self.heard.report(
                loaded=report_of(self.network, self.settings, time.monotonic() - began)
            )

    def _remember(self, arrays: Iterator[Ints]) -> None:
        assert self.network is not None, "rank 0 says LOAD first"
        assert self.collectives is not None, "rank 0 says JOIN first"
        self.settings = replace(self.settings, memory_tokens=int(next(arrays)[0]))
        look_for_peers(self.network, self.settings, self.collectives)
        others = Following(
            self.heard, self.collectives, self.device, compares=self.settings.check_ranks
        )
        with _Answering(self.heard):
            adapter, fused = self.network.adapter, self.network.fused
            self._executor = LocalExecutor(adapter, self.settings, fused=fused, others=others)
            self.heard.report(remembers=self._executor.facts.num_pages)
        keep_loaded()

    # -- passes ------------------------------------------------------------------------------------

    def _launch(self, arrays: Iterator[Ints]) -> None:
        self.executor.passes.launch(unpack_plan(arrays), unpack_targets(arrays))

    def _launch_late(self, arrays: Iterator[Ints]) -> None:
        self.executor.passes.launch_late(unpack_plan(arrays))

    def _ask_room(self, arrays: Iterator[Ints]) -> None:
        self.recordings.have_to_spare(int(next(arrays)[0]))

    def _record(self, arrays: Iterator[Ints]) -> None:
        page_size, *sizes = next(arrays).tolist()
        self.recordings.part_ends = tuple(next(arrays).tolist())
        self.recordings.record(Capacity(*sizes), page_size)

    def _forget(self, arrays: Iterator[Ints]) -> None:
        self.forget()

    def _prepare(self, arrays: Iterator[Ints]) -> None:
        page_size = int(next(arrays)[0])
        self.recordings.load(page_size, [Capacity(*sizes.tolist()) for sizes in arrays])

    def _start(self, arrays: Iterator[Ints]) -> None:
        number, num_parts = next(arrays).tolist()
        self.recordings.numbered[number].take(num_parts, *unpack_int32(arrays))

    def _follow(self, arrays: Iterator[Ints]) -> None:
        self.recordings.numbered[int(next(arrays)[0])].follow(next(arrays))

    def _begin(self, arrays: Iterator[Ints]) -> None:
        number, num_parts = next(arrays).tolist()
        self.recordings.numbered[number].begin(num_parts)

    def _finish(self, arrays: Iterator[Ints]) -> None:
        self.recordings.numbered[int(next(arrays)[0])].go_on()

    @property
    def recordings(self) -> Recordings:
        """The recordings of the passes, which rank 0 would not have recorded if they could not be."""
        assert isinstance(self.executor.passes, GraphedPasses), "equal ranks have equal passes"
        return self.executor.passes.recordings

    # -- memory and pasts --------------------------------------------------------------------------

    def _move(self, arrays: Iterator[Ints]) -> None:
        self.executor.move(unpack_moves(arrays))

    def _write_keys(self, arrays: Iterator[Ints]) -> None:
        merged, tokens, places = unpack_merged(arrays), next(arrays), _places(arrays)
        assert places is not None
        self.executor.write_keys(merged, tokens, places, _places(arrays))

    def _replay(self, arrays: Iterator[Ints]) -> None:
        merged, rows = unpack_merged(arrays), next(arrays, None)
        self.executor.replay(merged, None if rows is None else rows.tolist())

    def _make_up(self, arrays: Iterator[Ints]) -> None:
        seed, places = int(next(arrays)[0]), _places(arrays)
        assert places is not None
        self.executor.make_up(places, seed)

    def _fingerprint(self, arrays: Iterator[Ints]) -> None:
        assert self.collectives is not None
        fingerprint_of_all(self.executor, self.collectives)


class _Answering:
    """Errors of loading are answers: they are reported, and the rank stays."""

    def __init__(self, heard: OtherEnd) -> None:
        self.heard = heard

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if not isinstance(error, ManyhandsError):
            return False
        with suppress(OSError):
            self.heard.report(refused=str(error), kind=type(error).__name__, hint=error.hint)
        return True


def _places(arrays: Iterator[Ints]) -> Places | None:
    slots = next(arrays, None)
    return None if slots is None else Places(slots, next(arrays))
