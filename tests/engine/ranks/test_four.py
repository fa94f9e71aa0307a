"""Four ranks on a CPU: key/value heads that two ranks hold each; and ranks that end, fail or go wrong.

The families are few here (`tests/model/parallel/` has more, with ranks that are threads). The ranks are
ordinary ones until a test asks the last of them to go wrong (`odd.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from manyhands.engine.ranks.world import LONGEST_END, World
from manyhands.errors import RanksFailed
from manyhands.model.parallel import finding
from tests.covers import spared
from tests.engine.ranks.models import Worlds, alone, family_folder, ranked, small_folder, worlds_of
from tests.engine.ranks.odd import FAILS, LATE, NO_MEETING, NO_MEMORY, NO_SENSE, peers_on_cpu
from tests.engine.ranks.test_processes import is_gone
from tests.engine.small import counting, executor_of
from tests.model.test_conformance import FLOAT32, VISIBLE, told_to
from tests.poison import poison

PROMPT = tuple(range(3, 20))


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    yield from worlds_of(lambda: World.start(4, "cpu", work="tests.engine.ranks.odd:oddly"))


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.living()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("name", ["phi3", "llama4_text", *spared("olmo3", "qwen3_moe", "gpt_oss")])
def test_a_family_gives_what_one_process_gives(name: str, world: World, tmp_path: Path) -> None:
    folder = family_folder(name, tmp_path)
    one = alone(folder, memory_tokens=512)
    four = ranked(world, folder, memory_tokens=512, check_ranks=True)
    poison(executor_of(four).memory)
    expected, ours = (torch.cat(told_to(engine, "combined", 2)) for engine in (one, four))
    assert float((ours - expected).abs().max()) < FLOAT32
    greedy = [engine.run(counting(PROMPT, 6)).text for engine in (one, four)]
    assert greedy[0] == greedy[1]
    assert [executor_of(engine).adapter.layers[0].num_kv_heads for engine in (one, four)] == [2, 1]


def test_control_one_rank_is_one_token_late(world: World, small: Path) -> None:
    late = ranked(world, small, memory_tokens=512, max_tokens_per_pass=LATE)
    expected, ours = (
        torch.cat(told_to(engine, "combined", 2))
        for engine in (alone(small, memory_tokens=512), late)
    )
    assert float((ours - expected).abs().max()) > VISIBLE
    texts = [
        engine.run(counting(PROMPT, 12)).text for engine in (alone(small, memory_tokens=512), late)
    ]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("how", "reason"),
    [(NO_MEMORY, "another rank cannot"), (NO_MEETING, "wait timeout after 500ms")],
)
def test_peers_memory_that_one_rank_cannot_have_is_left_out_by_all(
    how: int, reason: str, world: World, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, instead in peers_on_cpu(lambda: how, is_last=False).items():
        monkeypatch.setattr(finding, name, instead)
    began = time.monotonic()
    four = ranked(world, small, memory_tokens=512, max_tokens_per_pass=how)
    assert time.monotonic() - began < 120, "nobody waits for the ten minutes of a sum"
    told = world.collectives.about_peers
    assert told.startswith("not through peers' memory: ")
    assert reason in told
    assert world.told.pipes, "the ranks stay"
    one = alone(small, memory_tokens=512)
    assert four.run(counting(PROMPT, 6)).text == one.run(counting(PROMPT, 6)).text


def test_a_rank_that_fails_in_a_pass_ends_all_with_its_reason(world: World, small: Path) -> None:
    assert world.processes is not None
    assert ranked(world, small, memory_tokens=512).run(counting(PROMPT, 1)).text
    engine = ranked(world, small, memory_tokens=512, max_tokens_per_pass=FAILS)
    began = time.monotonic()
    with pytest.raises(RanksFailed, match="rank 3 of 4 failed: ArithmeticError: a wire came loose"):
        engine.run(counting(PROMPT, 12))
    assert time.monotonic() - began < LONGEST_END
    with pytest.raises(RanksFailed, match="a wire came loose"):
        engine.run(counting(PROMPT, 12))
    assert not torch.distributed.is_initialized()
    assert is_gone(world.processes.pid)


def test_a_rank_that_fails_while_peers_are_looked_for_ends_all(
    world: World, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.end()  # a process has one world at a time
    two = World.start(2, "cpu", work="tests.engine.ranks.odd:oddly")
    for name, instead in peers_on_cpu(lambda: NO_SENSE, is_last=False).items():
        monkeypatch.setattr(finding, name, instead)
    assert two.processes is not None
    with pytest.raises(RanksFailed, match="rank 1 of 2 failed: ArithmeticError: no sense in it"):
        ranked(two, small, memory_tokens=512, max_tokens_per_pass=NO_SENSE)
    assert is_gone(two.processes.pid)
    assert not torch.distributed.is_initialized()
