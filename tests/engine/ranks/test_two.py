"""Two ranks on a CPU, against one process: every family, every kind of run, and what comes back to memory.

Tolerance: logits are of order 4, float32 rounds them by 2e-7, and a sum over ranks adds its terms in another
order than one product does. The worst measured over all families is 4e-6; a token that comes one pass late
moves logits by more than 1.

The processes start once for all tests of this file; each test loads its network into them.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.cache.block import Block
from manyhands.cache.places import Move
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.cli.options import SolveOptions
from manyhands.engine.engine import Engine
from manyhands.engine.executor import Places
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.passes import Passes
from manyhands.engine.ranks import executor as executor_of_ranks
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.part import report_of
from manyhands.engine.ranks.world import LONGEST_END, World
from manyhands.engine.rebuild import places_of
from manyhands.errors import InvalidRequest, ModelNotFound, OutOfMemory, RanksFailed
from manyhands.model.settings import ModelSettings
from manyhands.prompts import BranchPrompt
from manyhands.replay.forward import merge_trace
from manyhands.replay.merged import merge_passes
from manyhands.replay.trace import parse_trace
from manyhands.strategies.base import Strategy
from manyhands.strategies.branches import branches
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import BranchSettings, SharedSettings, TeamSettings
from manyhands.strategies.shared_prefix import Prompt, shared_prefix
from tests.covers import spared
from tests.engine.ranks.models import (
    CUT,
    Worlds,
    alone,
    family_folder,
    ranked,
    small_folder,
    worlds_of,
)
from tests.engine.ranks.test_processes import is_gone
from tests.engine.small import (
    FEW,
    SHORT_END,
    TEXT,
    counting,
    executor_of,
    finish,
    solo,
    story,
    story_of,
    team,
)
from tests.engine.test_preemption import HASHES, SAMPLED
from tests.engine.test_restore import recorded
from tests.engine.test_speculation import completions
from tests.model.test_conformance import FLOAT32, told_to
from tests.poison import poison

PROMPT = tuple(range(3, 20))
# Of each way in which weights and keys are cut; `tests/model/parallel/` has all of them, with ranks that are threads.
FIRST = ["llama", "qwen3", "qwen3_moe", "phi3", "gemma3_text", "olmo2", "gpt_oss"]
FIRST += ["deepseek_v3", "llama4_text"]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    yield from worlds_of(lambda: World.start(2, "cpu"))


@pytest.fixture
def world(worlds: Worlds) -> World:
    return worlds.living()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("small"))


# -- networks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FIRST, *spared(*sorted({*CUT} - {*FIRST}))])
def test_every_family_gives_what_one_process_gives(name: str, world: World, tmp_path: Path) -> None:
    folder = family_folder(name, tmp_path)
    fuse = "on" if name in ("qwen3", "phi3", "olmo2", "qwen3_moe") else "auto"
    one = alone(folder, memory_tokens=512)
    two = ranked(world, folder, memory_tokens=512, check_ranks=True, fuse=fuse)
    poison(executor_of(two).memory)
    expected, ours = (torch.cat(told_to(engine, "combined", 2)) for engine in (one, two))
    assert float((ours - expected).abs().max()) < FLOAT32
    greedy = [engine.run(counting(PROMPT, 8)).text for engine in (one, two)]
    assert greedy[0] == greedy[1]
    assert one.executor.fingerprint() == two.executor.fingerprint()
    shapes = [executor_of(engine).adapter.layers[0] for engine in (one, two)]
    assert [shape.num_heads for shape in shapes] == [4, 2]
    shared = 1 if shapes[0].is_latent else 2  # every rank has all latents
    assert two.facts.token_bytes == one.facts.token_bytes // shared


def test_all_ranks_have_as_much_memory_as_the_one_with_the_least_room(
    world: World, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU each of two takes one half of it: they share the host's memory."""

    def little(*given: Any) -> dict[str, Any]:
        return {**report_of(*given), "tokens": 1024}

    monkeypatch.setattr(executor_of_ranks, "report_of", little)
    facts = ranked(world, small).facts
    assert facts.num_pages * facts.page_size == 512
    assert world.seconds_starting > 0
    assert f"started in {world.seconds_starting:.1f} s and ready" in facts.about_ranks


# -- runs ------------------------------------------------------------------------------------------


def branching() -> Strategy:
    settings = BranchSettings(
        budget=40, branch_tokens=8, max_branches=3, choice=HASHES, seed=1, end=SHORT_END
    )
    return branches("What is it?", TEXT, settings, BranchPrompt("Q: {question}"))


def completing() -> Strategy:
    prompts = [Prompt(PROMPT), Prompt((*PROMPT[:9], 7, 8))]
    return shared_prefix(prompts, TEXT, SharedSettings(max_tokens=6, choice=SAMPLED))


RUNS: dict[str, Callable[[], Strategy]] = {
    "team": lambda: team(3, choice=SAMPLED, seed=1, snapshots=(9,)),
    "branches": branching,
    "shared prefix": completing,
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_the_same(name: str, world: World, small: Path) -> None:
    one = alone(small, memory_tokens=4096)
    options = SolveOptions(model=small, device="cpu", memory_tokens=4096)  # as the command has them
    two = Engine(*RankedExecutor.on(world, options))
    assert story(two, RUNS[name]()) == story(one, RUNS[name]())


def test_guesses_are_checked_by_all_ranks(world: World, small: Path) -> None:
    """A pass with guessed tokens is told to the others with them; the tokens stay the same."""
    plain = ranked(world, small, memory_tokens=2048)
    expected = story(plain, completions(plain, choice=FEW))
    guessing = ranked(world, small, memory_tokens=2048, check_ranks=True, speculate=8)
    assert story(guessing, completions(guessing, choice=FEW)) == expected
    assert guessing.usage.tokens_accepted > 0


def test_keys_in_eight_bits_are_the_same(world: World, small: Path) -> None:
    """A scale is of one head, which lies on one rank; the keys in memory are compared, too."""
    rounded = {"memory_tokens": 2048, "kv_cache_dtype": "int8"}
    one, two = alone(small, **rounded), ranked(world, small, check_ranks=True, **rounded)
    assert story(two, solo(choice=FEW)) == story(one, solo(choice=FEW))
    keys = [executor_of(engine).memory.stores[0].keys for engine in (one, two)]
    assert [part.dtype for part in keys] == [torch.int8] * 2
    assert keys[1].shape[1] * 2 == keys[0].shape[1]
    assert two.facts.token_bytes * 2 == one.facts.token_bytes


def test_preempted_runs_come_back(world: World, small: Path) -> None:
    def make() -> list[Strategy]:
        return [*(team(2, choice=SAMPLED, seed=seed, budget=20) for seed in range(3)), solo()]

    def answers(engine: Engine) -> list[str]:
        return [answer.text for answer in engine.run_all(make())]

    two = ranked(world, small, memory_tokens=640, overcommit=3.0)
    assert answers(two) == answers(alone(small, memory_tokens=8192))
    assert two.num_preemptions > 0


def test_runs_that_read_found_prompts_come_back(world: World, small: Path) -> None:
    """Keys of a prompt that the tree has are read where they lie, by each rank in its own memory."""

    def make(engine: Engine) -> list[Strategy]:
        prompt = Prompt(tuple(range(3, 43)))
        settings = [SharedSettings(max_tokens=24, choice=SAMPLED, seed=seed) for seed in range(4)]
        return [shared_prefix([prompt], TEXT, each, tree=engine.prefixes) for each in settings]

    one = alone(small, memory_tokens=8192)
    two = ranked(world, small, memory_tokens=144, overcommit=4.0)
    expected = [answer.text for answer in one.run_all(make(one))]
    assert [answer.text for answer in two.run_all(make(two))] == expected
    assert two.num_preemptions > 0


def test_each_rank_makes_up_its_own_heads(
    world: World, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, block = ranked(world, small, memory_tokens=512), Block()
    two.forward(Step([Row(View([block]), PROMPT)]))
    places = places_of(block, 0, len(PROMPT), two.pool)

    def read() -> torch.Tensor:
        return two.forward(Step([Row(View([block, Block()]), (5,))]))

    before = read()
    assert torch.equal(read(), before)
    with monkeypatch.context() as patch:
        patch.setattr(LocalExecutor, "make_up", lambda *_: None)  # of rank 0
        two.executor.make_up(places, 1)
    of_the_other = read()
    assert not torch.equal(of_the_other, before)
    two.executor.make_up(places, 1)
    assert not torch.equal(read(), of_the_other)


def test_a_crowd_whose_next_pass_is_planned_while_one_is_made(
    world: World, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are carried for that plan inside of a pass, by all ranks, and the pass is begun launch by launch with the tokens that rank 0 hands over."""
    monkeypatch.setattr(Passes, "plans_ahead", True)
    depths = list[bool]()
    move = RankedExecutor.move

    def noting(executor: RankedExecutor, moves: Sequence[Move]) -> None:
        depths.append(world._in_verb.is_set())
        move(executor, moves)
        assert world._in_verb.is_set() is depths[-1], "the work around it goes on"

    monkeypatch.setattr(RankedExecutor, "move", noting)
    two = ranked(world, small, memory_tokens=8192, check_ranks=True)
    one = alone(small, memory_tokens=8192)

    def crowd() -> list[Strategy]:
        return [team(2 + seed, choice=SAMPLED, seed=seed) for seed in range(3)]

    runs = [two.submit(each) for each in crowd()]
    finish(two, *runs)
    assert [story_of(run) for run in runs] == [story(one, each) for each in crowd()]
    assert two.executor.counts.planned_ahead > 10
    held = list(map(id, world.recorded))
    assert id(two.executor) in held, "what was begun goes before the group"
    assert {True, False} == set(depths)


def test_a_run_is_restored_from_its_trace(world: World, small: Path) -> None:
    settings = TeamSettings(workers=2, budget=16, choice=SAMPLED, seed=5, end=SHORT_END)
    one = alone(small, memory_tokens=4096)
    lines, whole = recorded(one, settings)
    cut = parse_trace(lines[: len(lines) // 2])
    two = ranked(world, small, memory_tokens=4096)
    again = RunSpec.from_plain(cut.header).strategy(TEXT)
    assert two.run(two.restore(again, cut)).text == whole.text


def test_what_a_past_gives_all_at_once(world: World, small: Path) -> None:
    one, two = (alone(small, memory_tokens=2048), ranked(world, small, memory_tokens=2048))
    settings = TeamSettings(workers=2, budget=8, choice=SAMPLED, seed=5, end=SHORT_END)
    merged = merge_trace(parse_trace(recorded(one, settings)[0]))
    assert float((one.replay(merged) - two.replay(merged)).abs().max()) < FLOAT32


# -- mistakes: one clear error, and the ranks stay ---------------------------------------------------


def test_what_cannot_be_loaded_is_said_and_the_ranks_stay(
    world: World, small: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelNotFound, match="no folder"):
        ranked(world, tmp_path / "nothing")
    with pytest.raises(OutOfMemory, match="memory for"):
        ranked(world, small, memory_tokens=1 << 50)
    with pytest.raises(InvalidRequest, match="built already"):
        RankedExecutor.on(world, ModelSettings(object()))
    with pytest.raises(InvalidRequest, match="cache on disk"):
        ranked(world, small, cache=str(tmp_path))
    assert ranked(world, small, memory_tokens=512).run(counting(PROMPT, 3)).text


@pytest.mark.parametrize("verb", ["replay", "write_keys", "record_ahead"])
def test_a_converted_network_is_said_before_the_others_are_told(
    verb: str, world: World, small: Path
) -> None:
    """They would wait in the midst of it, and their next sum would meet another one of rank 0's."""
    two = ranked(world, small, memory_tokens=512, check_ranks=True)
    expected = two.run(counting(PROMPT, 3)).text
    merged = merge_passes([Step([Row(View([Block()]), (1, 2, 3))])], 3)
    executor = executor_of(two)
    at = np.arange(3)
    ask: dict[str, Callable[[], object]] = {
        "replay": lambda: executor.replay(merged),
        "write_keys": lambda: executor.write_keys(merged, at, Places(at, at)),
        "record_ahead": two.get_ready,
    }
    executor.adapter.model.double()
    with pytest.raises(InvalidRequest, match="moved or converted"):
        ask[verb]()
    executor.adapter.model.float()
    assert two.run(counting(PROMPT, 3)).text == expected


def test_verbs_of_two_threads_are_made_one_after_the_other(world: World, small: Path) -> None:
    """The others hear of one rank 0; what one of two threads told in the midst of the other's verb was taken for a part of it."""
    two = ranked(world, small, memory_tokens=2048, check_ranks=True)
    expected = two.run(counting(PROMPT, 12)).text
    ended, found = threading.Event(), set[str]()

    def asks() -> None:
        while not ended.is_set():
            found.add(two.executor.fingerprint())

    beside = threading.Thread(target=asks)
    beside.start()
    try:
        assert two.run(counting(PROMPT, 12)).text == expected
    finally:
        ended.set()
        beside.join()
    assert found == {two.executor.fingerprint()}


# -- interrupts and ends -----------------------------------------------------------------------------


def test_ctrl_c_at_any_moment_leaves_the_ranks_in_step(world: World, small: Path) -> None:
    engine = ranked(world, small, memory_tokens=2048, check_ranks=True)
    expected = engine.run(counting(PROMPT, 12)).text
    moments = random.Random(0)
    num_interrupted = 0
    for _ in range(8):
        strike = threading.Timer(moments.uniform(0, 0.05), os.kill, (os.getpid(), signal.SIGINT))
        try:
            strike.start()
            engine.run(counting(PROMPT, 12))
            strike.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            num_interrupted += 1
        strike.join()
    assert num_interrupted == 8
    assert engine.run(counting(PROMPT, 12)).text == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # for threads, by later Pythons
def test_a_fork_of_rank_0_leaves_the_ranks_to_it(world: World, small: Path) -> None:
    """As a fork that comes to its end does, whose exit runs what ends the original's ranks."""
    engine = ranked(world, small, memory_tokens=512)
    before = engine.run(counting(PROMPT, 8))
    if not (fork := os.fork()):
        try:
            world.end()
        finally:
            os._exit(0)
    os.waitpid(fork, 0)
    assert engine.run(counting(PROMPT, 8)) == before


def test_a_rank_that_is_killed_ends_all_with_one_error(world: World, small: Path) -> None:
    assert world.processes is not None
    engine = ranked(world, small, memory_tokens=2048)
    killer = threading.Timer(0.1, os.kill, (world.processes.pid, signal.SIGKILL))
    killer.start()
    began = time.monotonic()
    with pytest.raises(
        RanksFailed, match="rank 1 of 2 has ended; all ranks of the model were ended"
    ):
        engine.run(counting(PROMPT, 900))
    assert time.monotonic() - began < LONGEST_END
    assert is_gone(world.processes.pid)
    with pytest.raises(RanksFailed, match="rank 1 of 2 has ended"):
        engine.run(counting(PROMPT, 3))
