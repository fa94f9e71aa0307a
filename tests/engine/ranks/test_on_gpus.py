"""Ranks on GPUs: the same numbers as on one. Skipped where there are fewer than two GPUs.

    pytest tests/engine/ranks/test_on_gpus.py -q

Float32 with TF32 off: what is left is the order of sums. Run it before `python -m benchmarks.ranks`.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.engine.engine import Engine
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.world import World
from manyhands.errors import ManyhandsError
from manyhands.model.settings import ModelSettings
from tests.engine.ranks.models import CUT, Worlds, family_folder, small_folder, worlds_of
from tests.engine.small import counting, finish, story, story_of, team
from tests.engine.test_lookahead import live_alone
from tests.engine.test_preemption import SAMPLED
from tests.engine.test_scheduler import CHOICES, a_mixed_crowd
from tests.model.test_conformance import FLOAT32, told_to

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="there are fewer than two GPUs here"
)
PROMPT = tuple(range(3, 20))
if hasattr(signal, "SIGUSR1"):
    faulthandler.register(signal.SIGUSR1, all_threads=True)


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    yield from worlds_of(lambda: World.start(2, "cuda"))


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.living()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("small"))


def one(folder: Path, **choices: Any) -> Engine:
    return Engine.load(folder, device="cuda", dtype="float32", **choices)


def two(world: World, folder: Path, **choices: object) -> Engine:
    choices = {"dtype": "float32", **choices}
    settings = ModelSettings(folder, device="cuda", **choices)  # type: ignore[arg-type]
    executor, tokenizer = RankedExecutor.on(world, settings)
    return Engine(executor, tokenizer, settings)


@pytest.mark.parametrize("name", CUT)
def test_every_family(name: str, world: World, tmp_path: Path) -> None:
    folder = family_folder(name, tmp_path)
    engines = one(folder, memory_tokens=4096), two(world, folder, memory_tokens=4096)
    expected, ours = (torch.cat(told_to(engine, "combined", 2)) for engine in engines)
    assert float((ours - expected).abs().max()) < FLOAT32
    assert engines[0].run(counting(PROMPT, 40)).text == engines[1].run(counting(PROMPT, 40)).text


@pytest.mark.parametrize("seed", range(2))
def test_recorded_passes_and_running_ahead(seed: int, world: World, small: Path) -> None:
    def make() -> object:
        return team(3, choice=SAMPLED, seed=seed, budget=80)

    ranked = two(world, small, memory_tokens=8192)
    assert story(ranked, make()) == story(one(small, memory_tokens=8192), make())  # type: ignore[arg-type]
    counts = ranked.executor.counts
    assert counts.recorded > 0
    assert counts.followed > 0
    assert ranked.executor.about is not None
    assert "were recorded" in ranked.executor.about


@pytest.mark.parametrize("choice", CHOICES)
def test_a_crowd_whose_passes_are_begun_ahead(choice: str, world: World, small: Path) -> None:
    """Of what rank 0's device alone knows the others are handed the tokens, also where rows are fed in vain."""
    crowd = a_mixed_crowd(CHOICES[choice])
    single = one(small, memory_tokens=16384)
    expected = {name: story(single, make()) for name, make in crowd.items()}
    ranked = two(world, small, memory_tokens=16384)
    ranked.get_ready()
    before = ranked.executor.counts
    for _ in range(2):
        runs = {name: ranked.submit(make()) for name, make in crowd.items()}
        finish(ranked, *runs.values())
        assert {name: story_of(run) for name, run in runs.items()} == expected
    counts = ranked.executor.counts - before
    assert counts.planned_ahead > 20
    if choice == "sampled":
        assert counts.in_vain > 0


def test_a_team_alone_whose_steps_end(world: World, small: Path) -> None:
    """The head of the pass behind an ended step is begun on all ranks, and dropped where another step ends."""
    ranked = two(world, small, memory_tokens=16384)
    ranked.get_ready()
    before = ranked.executor.counts
    assert live_alone(ranked) == live_alone(one(small, memory_tokens=16384))
    counts = ranked.executor.counts - before
    assert counts.heads >= counts.planned_ahead > 3
    assert counts.dropped > 2


def test_an_interrupt_while_passes_are_begun_ahead(world: World, small: Path) -> None:
    """The ranks are in step behind each one, and write the same tokens."""
    crowd = a_mixed_crowd(SAMPLED)
    ranked = two(world, small, memory_tokens=16384)
    ranked.get_ready()
    expected = [answer.text for answer in ranked.run_all([make() for make in crowd.values()])]
    moments, num_interrupted = random.Random(0), 0
    for _ in range(12):
        strike = threading.Timer(moments.uniform(0, 0.1), os.kill, (os.getpid(), signal.SIGINT))
        try:
            strike.start()
            ranked.run_all([make() for make in crowd.values()])
            strike.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            num_interrupted += 1
        strike.join()
    assert num_interrupted == 12
    again = ranked.run_all([make() for make in crowd.values()])
    assert [answer.text for answer in again] == expected


@pytest.mark.parametrize("is_many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_through_peers_memory(dtype: str, is_many: bool, world: World, small: Path) -> None:
    """Of two ranks NCCL rounds as the kernel does: recorded or not, every token is the same.

    Few tokens go by words, and the prompt of many by flags.
    """

    def make() -> object:
        if is_many:
            return counting([3 + number % 20 for number in range(300)], 12)
        return team(3, choice=SAMPLED, seed=4, budget=60)

    choices: dict[str, object] = {"memory_tokens": 8192, "dtype": dtype}
    plain = two(world, small, peers=False, **choices)
    assert world.collectives.peers is None
    expected = story(plain, make())  # type: ignore[arg-type]
    ours = two(world, small, **choices)
    peers = world.collectives.peers
    if peers is None:
        pytest.skip(world.collectives.about_peers)
    meeting = peers.many if is_many else peers.meeting  # type: ignore[unreachable]
    assert meeting is not None, world.collectives.about_peers
    before = int(meeting.epochs[0])
    for _ in range(3):
        assert story(ours, make()) == expected
    assert ours.executor.counts.recorded > 0
    assert int(meeting.epochs[0]) > before, "they were made by the kernel"
    # The control: a rank whose term is left out is noticed.
    peers.give_up()
    torch.cuda.synchronize()
    meeting.epochs.add_(1)  # rank 0 waits for what comes one sum late
    with pytest.raises(ManyhandsError, match="not numbers"):
        story(ours, make())


def test_ranks_that_come_behind_others_have_peers_too(world: World, small: Path) -> None:
    """The last test here, since it ends the ranks of all others. Rank 0 has met those, and the new ones have met nobody."""
    two(world, small, memory_tokens=512)
    if world.collectives.peers is None:
        pytest.skip(world.collectives.about_peers)
    world.end()
    second = World.start(2, "cuda")
    try:
        began = time.monotonic()
        engine = two(second, small, memory_tokens=512)
        assert second.collectives.peers is not None, second.collectives.about_peers
        assert time.monotonic() - began < 20
        assert engine.run(counting(PROMPT, 4)).text == one(small).run(counting(PROMPT, 4)).text
    finally:
        second.end()
