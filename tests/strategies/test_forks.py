"""Which methods only fork: each block is read behind one text alone, from its first token to its last.

Layers that keep one state for a text (`model/recurrent.py`) bear no other method, so the refusal of their networks names these.
The real strategies run on scripts, and their steps are watched; the refusal must name just the methods found here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest

from manyhands.cache.block import Block
from manyhands.cache.states import FORKING
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest
from manyhands.prompts.votes import VotesPrompt
from manyhands.strategies.base import Sent, Strategy
from manyhands.strategies.methods import METHODS, check_forks
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import BestSettings, SharedSettings, SoloSettings, VoteSettings
from manyhands.strategies.shared_prefix import shared_prefix
from tests.server import scripted_runs as runs
from tests.server.scripted_runs import SHORT, ScriptedRun, run_of, signs
from tests.strategies.driver import PROMPT, Scripts, play, small_text

Text = tuple[tuple[Block, int], ...]  # blocks that have tokens, and how many


class Watch:
    """Before which text each block stands; a second one is a mistake for a network that keeps a state."""

    def __init__(self) -> None:
        self.before: dict[Block, Text] = {}
        self.reordered = False

    def see(self, step: Step) -> None:
        """All rows write before all read, so a block is as long as it is behind this step's feeds."""
        fed = {row.view.blocks[-1]: len(row.feed) for row in step.rows}
        for row in step.rows:
            text: Text = ()
            for block in row.view.blocks:
                size = block.num_tokens + fed.get(block, 0)
                if size:
                    self.reordered |= self.before.setdefault(block, text) != text
                    text = (*text, (block, size))

    def __call__(self, strategy: Strategy) -> Strategy:
        sent: Sent = None
        try:
            while True:
                asked = strategy.send(sent)
                if isinstance(asked, Step):
                    self.see(asked)
                sent = yield asked
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]  # of a generator, Any


def alone_run() -> ScriptedRun:
    spec = RunSpec(METHODS["sequential"], SoloSettings(budget=20, end=SHORT), PROMPT, "2+3")
    return run_of(spec, Writer=[signs(0, 6), None])


def best_run() -> ScriptedRun:
    settings = BestSettings(workers=2, budget=60, end=SHORT)
    spec = RunSpec(METHODS["best_of_n"], settings, VotesPrompt(), "2+3")
    return run_of(spec, attempt_1=[signs(0, 4), None], attempt_2=[signs(30, 8), None])


def final_run() -> ScriptedRun:
    settings = VoteSettings(workers=2, budget=60, mode="final", end=SHORT)
    spec = RunSpec(METHODS["self_consistency"], settings, VotesPrompt(), "2+3")
    return run_of(spec, attempt_1=[signs(0, 4), None], attempt_2=[signs(30, 8), None])


RUNS: dict[str, Callable[[], ScriptedRun]] = {
    "hogwild": runs.team_run,
    "sequential": alone_run,
    "branches (join reencode)": runs.branch_run,
    "branches (join stitch)": partial(runs.branch_run, "stitch"),
    "branches (join keep)": partial(runs.branch_run, "keep"),
    "skeleton": runs.skeleton_run,
    **{
        f"profiled (profile {name})": partial(runs.profiled_run, name)
        for name in ("npr", "parallel-r1", "threadweaver")
    },
    "async_reasoning": runs.reasoning_run,
    "async_think": runs.organiser_run,
    "self_consistency (mode vote)": runs.attempts_run,
    "self_consistency (mode final)": final_run,
    "best_of_n": best_run,
}


def test_every_method_is_watched() -> None:
    assert {name.split(" ")[0] for name in RUNS} == set(METHODS)


@pytest.mark.parametrize("name", RUNS)
def test_the_refusal_names_the_methods_that_only_fork(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, record = Watch(), runs.record  # type: ignore[attr-defined]
    monkeypatch.setattr(runs, "record", lambda run, *more: record(watch(run), *more))
    RUNS[name]()
    assert len(watch.before) > 1, "nothing was written"
    assert watch.reordered != (name in FORKING)


def test_methods_say_whether_they_fork() -> None:
    for name, make in RUNS.items():
        spec = RunSpec.from_plain(make().trace.header)
        assert spec.method.forks(spec.settings) == (name in FORKING), name
        with nullcontext() if name in FORKING else pytest.raises(InvalidRequest, match="one state"):
            check_forks(spec.method, spec.settings)


@pytest.mark.parametrize(("profile", "join"), [("npr", "reencode"), ("parallel-r1-seen", None)])
def test_a_profile_that_joins_anew_only_forks(
    profile: str, join: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where parts part again."""
    watch, record = Watch(), runs.record  # type: ignore[attr-defined]
    monkeypatch.setattr(runs, "record", lambda run, *more: record(watch(run), *more))
    run = runs.nested_run(join) if join else runs.profiled_run(profile)
    spec = RunSpec.from_plain(run.trace.header)
    assert spec.method.forks(spec.settings)
    assert len(watch.before) > 3
    assert not watch.reordered


def test_a_batch_only_forks() -> None:
    """Prompts that begin alike, each answered twice in blocks of their own."""
    watch, text = Watch(), small_text()
    settings = SharedSettings(samples=2, max_tokens=4)
    play(watch(shared_prefix(["Hi there", "Hi you"], text, settings)), Scripts(text))
    assert len(watch.before) > 5
    assert not watch.reordered
    assert "batches" in FORKING


def test_control_a_block_behind_another_text() -> None:
    a, b, c = Block(), Block(), Block()
    watch = Watch()
    alone = [Row(View([a]), (1,)), Row(View([b]), (2,))]
    watch.see(Step(alone))
    assert not watch.reordered
    watch.see(Step([*alone, Row(View([a, b, c]), (3,))]))
    assert watch.reordered


def test_control_a_block_whose_text_before_it_grows() -> None:
    a, b = Block(), Block()
    watch = Watch()
    watch.see(Step([Row(View([a]), (1,)), Row(View([a, b]), (2,))]))
    assert not watch.reordered
    watch.see(Step([Row(View([a]), (3, 3)), Row(View([a, b]), (4,))]))
    assert watch.reordered
