"""Recorded passes without a GPU: a recorder that runs everything again instead of replaying it.

What a device does with a recording is its own matter (`test_on_gpu.py`). Which recording serves which
plan, what the buffer holds, and when the next pass is begun before it is asked for is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton comes for Linux only")

from benchmarks import situations
from manyhands.attention.prepared import Capacity, rounded_tokens
from manyhands.attention.triton_backend import is_beside
from manyhands.attention.work import Occupancy, Stretches, Tiling, cut
from manyhands.cache.block import Block
from manyhands.cache.plan import Plan
from manyhands.cache.step import GREEDY, Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine import capacities, matching, recordings, sampling
from manyhands.engine.capacities import Wide, capacity_of, kind_ahead
from manyhands.engine.engine import Engine
from manyhands.engine.expanded import ExpandedForm
from manyhands.engine.graph import Graph
from manyhands.engine.graphs import GraphedPasses
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.matching import PlanMatcher
from manyhands.engine.recorder import Recording
from manyhands.engine.recordings import Recordings
from manyhands.errors import InvalidRequest, RanksFailed
from manyhands.model.memory import num_weights
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, Prompt, shared_prefix
from tests.attention.test_work import a_team, completions
from tests.engine.small import TEXT, counting, executor_of, finish, small_config, small_engine
from tests.engine.test_wide import fed

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels are compiled here, and run on the GPU only"
)


WIDE, UNCOMMON, LEAST = capacities.wide_capacity, capacities.uncommon_capacities, capacities.LEAST


@pytest.fixture(autouse=True)
def small_capacities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding costs the interpreter time."""
    few = replace(capacities.LEAST, entries=4, pages=4, small=4, partials=8, most_partials=4)
    monkeypatch.setattr(capacities, "LEAST", few)
    wide = capacities.wide_capacity

    def less_wide(tokens: int, tiling: Tiling, kind: Wide) -> Capacity:
        sizes: dict[str, Any] = {
            "entries": 32,
            "pages": 16,
            "small": 16,
            "partials": 64,
            "most_partials": 8,
        }
        return replace(wide(tokens, tiling, kind), **sizes)

    monkeypatch.setattr(capacities, "wide_capacity", less_wide)
    monkeypatch.setattr(
        capacities, "uncommon_capacities", lambda tiling: [less_wide(2, tiling, Wide.SMALL)]
    )


def noted_recordings(passes: GraphedPasses, monkeypatch: pytest.MonkeyPatch) -> list[Capacity]:
    """The capacities that are recorded from here on; their recordings are there, and hold nothing."""
    made: list[Capacity] = []

    def record(page_size: int, capacity: Capacity) -> Graph:
        made.append(capacity)
        found = passes.recordings.graphs[capacity] = Graph(passes.recordings, capacity, page_size)
        return found

    monkeypatch.setattr(passes.recordings, "make", record)
    return made


def with_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on wide recordings have other kernels than small teams want."""
    usual = capacities.wide_capacity

    def wide(tokens: int, tiling: Tiling, kind: Wide) -> Capacity:
        return replace(usual(tokens, tiling, kind), occupancy=Occupancy.SOME)

    monkeypatch.setattr(capacities, "wide_capacity", wide)


Work = Callable[[Callable[[], None]], tuple[Tensor, Tensor]]


class Again:
    """A recorder for the CPU. A repetition writes its results where the first ones stand, and where all that are lent do, NaN."""

    def __init__(self) -> None:
        self.num_replays = 0
        self.lent: list[Tensor] = []

    def host_buffer(self, rows: int, size: int) -> Tensor:
        return torch.zeros(rows, size, dtype=torch.int32)

    def mark(self) -> Again:
        return self

    def synchronize(self) -> None:
        """Nothing is under way."""

    def query(self) -> bool:
        return self.is_fast

    is_fast = False  # whether the device is done whenever the host looks

    def recover(self) -> None:
        """Nothing is broken."""

    def record(self, work: Work | None = None):  # type: ignore[no-untyped-def]  # also a mark's
        if work is None:
            return None
        cuts: list[None] = []
        results = work(lambda: cuts.append(None))
        assert cuts, "the pass has parts"
        begun: list[tuple[Tensor, ...]] = []
        lent, kept = results
        self.lent.append(lent)

        def first() -> None:
            """All of it: a head that is dropped may have done no more harm than a whole pass."""
            self.num_replays += 1
            for place in self.lent:
                place.fill_(torch.nan)
            begun[:] = [work(lambda: None)]

        def last() -> None:
            for place, result in zip(results, begun.pop(), strict=True):
                place.copy_(result)

        return Recording((first, *[lambda: None] * (len(cuts) - 1), last), lent, kept)


class Full(Again):
    """A recorder that finds no room for more than so many recordings."""

    def __init__(self, room: int, error: Exception) -> None:
        super().__init__()
        self.room, self.error, self.num_recovered = room, error, 0

    def recover(self) -> None:
        self.num_recovered += 1

    def record(self, work: Work | None = None):  # type: ignore[no-untyped-def]
        if work is not None:
            if self.room == 0:
                raise self.error
            self.room -= 1
        return super().record(work)


def plain_engine(**choices: Any) -> Engine:
    """One layer and one key/value head: the interpreter runs a program for each."""
    return small_engine(config=small_config(heads=2, kv_heads=1, layers=1), **choices)


def graphed_engine(recorder: Again | None = None, **choices: Any) -> Engine:
    engine = plain_engine(backend="triton", **choices)
    assert not isinstance(executor_of(engine).passes, GraphedPasses)
    recorder = recorder or Again()
    executor: Any = engine.executor
    executor.passes = GraphedPasses(executor.adapter, executor.memory, executor.backend, recorder)
    return engine


def passes_of(engine: Engine) -> GraphedPasses:
    passes = executor_of(engine).passes
    assert isinstance(passes, GraphedPasses)
    return passes


def walking(
    views: list[View], num_passes: int, forced: dict[int, int], temperature: float = 0.0
) -> Strategy:
    """Every row goes on with its token; at some passes with another one. Answers with all of them."""
    written: list[int] = []
    tokens: tuple[int, ...] = tuple(range(1, len(views) + 1))
    for index in range(num_passes):
        if index in forced:
            tokens = (forced[index], *tokens[1:])
        choice = Choice(temperature=temperature, draw=index / num_passes)
        sent = yield Step([Row(view, (t,), choice) for view, t in zip(views, tokens, strict=True)])
        assert sent is not None
        tokens = sent
        written += tokens
    return Answer(text=" ".join(map(str, written)))


def a_team_of(num_rows: int) -> list[View]:
    prompt, desks = Block("prompt"), [Block() for _ in range(num_rows)]
    return [View([prompt, *(d for d in desks if d is not own), own]) for own in desks]


@pytest.mark.parametrize("forced", [{}, {4: 3, 5: 5, 8: 4}])
def test_running_ahead_changes_no_token(forced: dict[int, int]) -> None:
    began = time.perf_counter()
    plain, graphed = plain_engine(), graphed_engine()
    answers = [engine.run(walking(a_team_of(2), 10, forced)) for engine in (plain, graphed)]
    assert answers[0] == answers[1]
    passes = passes_of(graphed)
    assert passes.recordings.trouble is None
    assert 0 < passes.recordings.seconds < time.perf_counter() - began
    assert passes.counts.lookaheads > 4
    # the last pass of the run is never asked for either
    assert len(forced) <= passes.counts.dropped <= len(forced) + 1


@pytest.mark.parametrize(
    ("room", "error", "said"),
    [
        (0, RuntimeError(), "RuntimeError"),
        (1, torch.OutOfMemoryError("CUDA out of memory.\nMuch more."), "CUDA out of memory."),
    ],
)
def test_out_of_memory_while_recording_changes_no_token(
    room: int, error: Exception, said: str
) -> None:
    """Launch by launch it goes on where no recording is there already; none is tried again."""
    recorder = Full(room, error)
    plain, graphed = plain_engine(), graphed_engine(recorder)
    passes = passes_of(graphed)
    for num_rows in (2, 3, 2, 3):
        before = replace(passes.counts)
        answers = [e.run(walking(a_team_of(num_rows), 4, {})) for e in (plain, graphed)]
        assert answers[0] == answers[1]
    assert passes.counts.eager - before.eager == 4, "nothing is there for three rows"
    before = replace(passes.counts)
    assert graphed.run(walking(a_team_of(2), 4, {})) == plain.run(walking(a_team_of(2), 4, {}))
    assert passes.counts.eager - before.eager == (0 if room else 4)
    assert passes.recordings.trouble == said
    assert passes.about is not None
    assert passes.about.startswith("passes of 1 sizes were recorded" if room else "passes are not")
    assert passes.about.endswith(f": {said}")
    assert passes.recordings.num_graphs == room
    assert recorder.num_recovered == 1


def test_what_cannot_have_a_recording_of_its_own_goes_on_by_the_wide_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that failed in the midst of all had sent every pass behind it to be launched kernel by kernel."""
    monkeypatch.setattr(capacities, "AHEAD", 2)
    monkeypatch.setattr(matching, "_VERY_OFTEN", 3)
    monkeypatch.setattr(matching, "_LOOKED_AT", 1)
    with_other_kernels(monkeypatch)
    recorder = Full(2, torch.OutOfMemoryError("CUDA out of memory."))
    engine = graphed_engine(recorder)
    engine.get_ready()
    passes, views, before = passes_of(engine), a_team_of(2), recorder.num_recovered
    assert (passes.recordings.num_graphs, passes.recordings.trouble) == (2, None)
    for index in range(7):
        engine.run(walking(views, 4, {0: index + 1}))
    assert passes.recordings.trouble == "CUDA out of memory."
    assert recorder.num_recovered == before + 1
    assert passes.counts.eager <= 1, "the pass that was to be recorded"


def test_when_a_recording_fails_at_the_start_none_behind_it_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device waits at each, and what is left of its memory is for passes."""
    monkeypatch.setattr(capacities, "AHEAD", 4)
    recorder = Full(1, torch.OutOfMemoryError("CUDA out of memory."))
    engine = graphed_engine(recorder)
    engine.get_ready()
    assert passes_of(engine).recordings.num_graphs == 1
    assert recorder.num_recovered == 2, "behind the one that failed, and at the end"


def test_a_lost_rank_is_no_recording_that_cannot_be_made() -> None:
    """All ranks are ended then: passes that are launched instead would fail one by one."""
    engine = graphed_engine(Full(0, RanksFailed("rank 1 of 2 has ended")))
    found = passes_of(engine).recordings
    with pytest.raises(RanksFailed, match="rank 1 of 2"):
        found.make(64, WIDE(2, found.backend.tiling, Wide.SMALL))
    assert found.trouble is None


def test_a_plan_follows_the_one_before_it_alone() -> None:
    """The integers on the device grow by one token: another team's plan, or one that is two tokens later, is sent."""
    goes_on = passes_of(graphed_engine()).matcher.goes_on
    plan = replace(rows_alone(2), lockstep=object(), lockstep_index=3)
    last = replace(plan, lockstep_index=2)
    assert goes_on(plan, last)
    assert not goes_on(plan, plan)
    assert not goes_on(plan, replace(plan, lockstep_index=1))
    assert not goes_on(plan, replace(last, lockstep=object()))
    assert not goes_on(replace(plan, lockstep=None), replace(last, lockstep=None))


def test_a_crowd_that_cannot_have_a_recording_of_its_own_goes_by_the_wide_one() -> None:
    """It wants other large tiles, and has asked for them often enough; launch by launch its passes would take far longer."""
    tiling = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=64, specialised_rows=128)
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling
    capacity = capacities.wide_capacity(208, tiling, Wide.LARGE)
    capacity = replace(capacity, entries=512, pages=2048, small=512, large=256, partials=4096)
    wide = Graph(passes.recordings, capacity, 64)
    passes.recordings.graphs[capacity] = passes.recordings.ahead[208, Wide.LARGE] = wide
    plan = completions(200, 16384)
    own = capacity_of(plan, cut(plan, tiling))
    passes.matcher._seen[own] = matching._VERY_OFTEN
    passes.recordings.trouble = "CUDA out of memory."
    found = passes.matcher.recorded(plan)
    assert found is not None
    assert found[0] is wide


@pytest.mark.parametrize("free", [capacities.SPARE - 1, capacities.SPARE])
def test_a_device_without_memory_to_spare_has_no_ample_recordings(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that failed would be the last that is tried."""
    monkeypatch.setattr(capacities, "_AMPLE", (2,))
    monkeypatch.setattr(capacities, "AHEAD", 2)
    monkeypatch.setattr(recordings, "free_bytes", lambda device: free)
    engine = graphed_engine()
    engine.get_ready()
    kinds = {kind for _, kind in passes_of(engine).recordings.ahead}
    assert (Wide.AMPLE in kinds) is (free == capacities.SPARE)
    assert Wide.SMALL in kinds
    assert passes_of(engine).recordings.trouble is None


@pytest.mark.parametrize("free", [capacities.SPARE - 1, capacities.SPARE])
def test_a_device_without_memory_to_spare_has_no_recordings_for_prompts(
    free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recordings for parts of prompts are there all the same."""
    ahead = [(1, Wide.SMALL), (40, Wide.LARGE), (48, Wide.LARGE)]
    monkeypatch.setattr(capacities, "kinds_ahead", lambda most, tiling: ahead)
    monkeypatch.setattr(capacities, "_MOST_OF_PARTS", 40)
    monkeypatch.setattr(capacities, "wide_capacity", WIDE)
    monkeypatch.setattr(recordings, "free_bytes", lambda device: free)
    engine = graphed_engine()
    engine.get_ready()
    assert list(passes_of(engine).recordings.ahead) == ahead[: 3 if free == capacities.SPARE else 2]
    assert passes_of(engine).recordings.trouble is None


def test_running_ahead_of_a_draw_that_candidates_leave_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tokens on the device were a guess, and a pass begun with them is dropped."""
    expected = plain_engine().run(walking(a_team_of(2), 9, {}, temperature=2.0))
    monkeypatch.setattr(sampling, "_SORTED", 0)
    monkeypatch.setattr(sampling, "_CANDIDATES", 3)
    graphed = graphed_engine()
    assert graphed.run(walking(a_team_of(2), 9, {}, temperature=2.0)) == expected
    assert passes_of(graphed).counts.lookaheads > 2
    assert passes_of(graphed).counts.dropped > 1


def test_a_network_that_was_away_is_recorded_again() -> None:
    """It came back to another place than the one that recordings read."""
    engine = graphed_engine()
    passes, executor = passes_of(engine), engine.executor
    assert isinstance(executor, LocalExecutor)
    expected = engine.run(walking(a_team_of(2), 4, {}))
    kept = passes.recordings.numbered
    assert kept
    assert engine.run(walking(a_team_of(2), 4, {})) == expected
    assert passes.recordings.numbered == kept
    network: nn.Module = executor.adapter.model  # transformers types `to` wrongly
    network.to(torch.float64)
    network.to(torch.float32)
    assert engine.run(walking(a_team_of(2), 4, {})) == expected
    assert passes.recordings.numbered
    assert not set(passes.recordings.numbered) & set(kept)
    network.to(torch.float64)
    network.to(torch.float32)
    executor._begun = lambda: pytest.fail("it reads where the network was")
    with pytest.raises(InvalidRequest, match="while a pass of it was under way") as caught:
        executor.go_on((0,), ())
    assert "ask again" in (caught.value.hint or "")
    assert not passes.recordings.numbered
    assert engine.run(walking(a_team_of(2), 4, {})) == expected


def test_no_pass_follows_one_whose_recording_was_dropped() -> None:
    """It would read where the network was."""
    engine = graphed_engine()
    passes = passes_of(engine)
    run = engine.submit(walking(a_team_of(1), 9, {}))
    for _ in range(4):
        engine.step()
    assert passes_of(engine)._newest is not None
    executor_of(engine).forget()
    assert passes_of(engine)._newest is None
    before = replace(passes.counts)
    engine.step()
    assert passes.counts.followed == before.followed
    finish(engine, run)
    assert run.result() == plain_engine().run(walking(a_team_of(1), 9, {}))


def test_logits_that_were_asked_for_outlive_other_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings write to one place, whichever has been repeated: what a caller is given is a copy."""
    monkeypatch.setattr(matching, "_VERY_OFTEN", 2)  # none serves the other's rows for long
    told = []
    for engine in (plain_engine(), graphed_engine()):
        views = a_team_of(2)
        engine.forward(Step([Row(view, (3, 4)) for view in views]))
        found = []
        for token in range(5, 9):
            found.append(engine.forward(Step([Row(view, (token,)) for view in views])))
            found.append(engine.forward(Step([Row(views[0], (token,))])))
        told.append(found)
    assert passes_of(engine).recordings.num_graphs == 2
    assert passes_of(engine).counts.replayed > 2
    for ours, theirs in zip(told[1], told[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_kept_logits_of_guesses_outlive_other_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose guesses were right asks for their tokens later, behind passes of others by other recordings."""
    monkeypatch.setattr(matching, "_VERY_OFTEN", 2)
    engine = graphed_engine()
    executor = executor_of(engine)
    views = [View([Block()]) for _ in range(3)]
    plans = {rows: situations.planned(views[:rows], 2)[0] for rows in (1, 3)}
    guessed = replace(plans[1], num_drafted=np.full(1, 1))
    told = []
    for _ in range(4):
        executor.run(guessed, [GREEDY])
        kept = executor.choose([0], [GREEDY])
        for plan in (plans[3], plans[3]):
            executor.run(plan, [GREEDY] * 3)
        assert executor.choose([0], [GREEDY]) == kept
        told.append(kept)
    assert len(set(told)) == 1
    assert passes_of(engine).recordings.num_graphs == 2


def test_rows_come_and_go() -> None:
    """A pass begun in vain leaves no trace, neither with runs that go on nor with new ones."""
    plain, graphed = plain_engine(), graphed_engine()
    stories = []
    for engine in (plain, graphed):
        long = engine.submit(walking(a_team_of(2), 9, {7: 5}))
        for _ in range(4):
            engine.step()
        short = engine.submit(walking(a_team_of(1), 3, {}))
        finish(engine, long, short)
        stories.append([long.result(), short.result()])
    assert stories[0] == stories[1]
    assert passes_of(graphed).recordings.num_graphs > 0
    counts = passes_of(graphed).counts
    assert counts.dropped + counts.in_vain >= 2


def test_after_a_wrong_guess_heads_alone_are_begun() -> None:
    """A whole pass in vain costs a pass, a head in vain a part of one."""
    engine = graphed_engine()
    passes_of(engine).heads.are_too_short = True
    engine.run(walking(a_team_of(1), 9, {index: index for index in range(3, 9)}))
    counts = passes_of(engine).counts
    assert counts.dropped > 3
    assert 0 < counts.lookaheads - counts.heads < 3, "one wrong guess is enough"
    before = engine.executor.counts
    engine.run(walking(a_team_of(1), 6, {}))
    since = engine.executor.counts - before
    assert since.lookaheads == since.heads > 2
    assert since.followed > 2, "and their tails follow"


@pytest.mark.parametrize("is_fast", [True, False])
def test_whole_passes_are_begun_where_no_head_is_long_enough(is_fast: bool) -> None:
    """The device is done with each head before the host has looked, or it never is."""
    recorder = Again()
    recorder.is_fast = is_fast
    engine = graphed_engine(recorder)
    engine.run(walking(a_team_of(1), 30, {}))
    counts = passes_of(engine).counts
    assert (counts.lookaheads > counts.heads > 4) is is_fast
    assert (counts.lookaheads == counts.heads) is not is_fast


def test_nothing_is_begun_beyond_the_pages_in_use() -> None:
    """A guess may write only where its row has room already: the next page may be somebody else's."""
    engine = graphed_engine()
    size = engine.pool.page_size
    seen: list[int] = []
    passes = passes_of(engine)
    usual = passes.look_ahead

    views = a_team_of(1)
    engine.forward(Step([Row(views[0], (1,) * (size - 4))]))

    def watched(chosen: object) -> None:
        strip = engine.pool.place(views[0].own).strip
        seen.append(strip.num_tokens)
        assert strip.num_tokens < len(strip.pages) * size
        usual(chosen)  # type: ignore[arg-type]

    passes.look_ahead = watched  # type: ignore[method-assign]
    engine.run(walking(views, 7, {}))
    assert seen == list(range(size - 3, size + 4)), "spare pages count"


def test_what_was_recorded_ahead_serves_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run launch by launch or recorded behind it, and tokens are those of plain passes."""
    monkeypatch.setattr(capacities, "AHEAD", 4)
    strategies: list[Callable[[], Strategy]] = [
        lambda: walking(a_team_of(3), 6, {2: 5}),
        lambda: walking(a_team_of(1), 4, {}, 0.7),
    ]
    engine, plain = graphed_engine(), plain_engine(backend="triton")
    made: list[tuple[int, int]] = []
    engine.get_ready(lambda done, whole: made.append((done, whole)))
    passes = passes_of(engine)
    assert made == [(done, 3) for done in range(4)]
    assert passes.recordings.num_graphs == 3
    answers = [answer.text for answer in engine.run_all(make() for make in strategies)]
    assert passes.counts.eager == 0
    assert passes.counts.recorded == passes.recordings.num_graphs == 3
    assert passes.counts.replayed > 0 < passes.counts.followed
    assert answers == [answer.text for answer in plain.run_all(make() for make in strategies)]


@pytest.mark.parametrize("room", [0, 9])
def test_where_nothing_can_be_recorded_nothing_uncommon_is_loaded(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt would fail again, or take the memory that passes want."""
    monkeypatch.setattr(capacities, "AHEAD", 1)
    engine = graphed_engine(Full(room, torch.OutOfMemoryError("CUDA out of memory.")))
    passes, loaded = passes_of(engine), list[Capacity]()
    monkeypatch.setattr(
        passes.recordings, "_attend", lambda page_size, capacity: loaded.append(capacity)
    )
    engine.get_ready()
    assert len(loaded) == (1 if room else 0)
    assert (passes.recordings.trouble is None) is (room > 0)


def test_a_fault_of_the_device_is_found_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last recording is repeated like the others, and the start waits for it."""
    monkeypatch.setattr(capacities, "AHEAD", 1)

    class Faulty(Again):
        def recover(self) -> None:
            raise RuntimeError("an illegal memory access")

    with pytest.raises(RuntimeError, match="illegal"):
        graphed_engine(Faulty()).get_ready()


@pytest.mark.parametrize(
    ("news", "tried"),
    [
        ([3, 5], [["first"], ["second", "third", "alone"]]),
        ([0, 0, 0, 0], [["first"]]),
        ([0, 0, 2, 1], [["first"], ["third", "alone"]]),  # the second one's recording compiles two
        ([RuntimeError("no room")], [["first"]]),
        ([TypeError("not serializable")], [["first"]]),
    ],
    ids=["cold", "cached", "half", "trouble", "another Triton"],
)
def test_kernels_are_compiled_at_once_before_anything_is_recorded(
    news: list[Any], tried: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the cache on disk has what the first passes launch; trouble is left to the recordings."""
    monkeypatch.setattr(capacities, "AHEAD", 4)
    monkeypatch.setattr(Recordings, "_can_compile_at_once", True)
    blocks: list[list[str]] = []  # kinds of passes that each tries out
    inside, counted = [False], SimpleNamespace(num_new=0)
    usual, attend, record = Graph.try_out, Recordings._attend, Recordings.make
    names = {1: "first", 2: "second", 4: "third"}

    @contextmanager
    def compiling(told: Any) -> Iterator[Any]:
        blocks.append([])
        inside[0] = True
        yield (kernels := SimpleNamespace(num_new=0, num_noted=7))
        inside[0] = False
        kernels.num_new = news.pop(0)
        told(7, 7)

    @contextmanager
    def counting_none() -> Iterator[Any]:
        yield counted

    def try_out(graph: Any, given: Recordings) -> tuple[Tensor, Tensor]:
        if inside[0]:
            blocks[-1].append(names[graph.capacity.tokens])
            if isinstance(news[0], Exception):
                inside[0] = False
                raise news.pop(0)
        return usual(graph, given)

    def attending(self: Recordings, page_size: int, capacity: Capacity) -> None:
        if inside[0]:
            blocks[-1].append("alone")
        attend(self, page_size, capacity)

    def recording(self: Recordings, page_size: int, capacity: Capacity) -> Any:
        counted.num_new += news.pop(0) if len(news) > 1 else 0
        return record(self, page_size, capacity)

    monkeypatch.setattr(recordings, "compiling_at_once", compiling)
    monkeypatch.setattr(recordings, "counting_new_kernels", counting_none)
    monkeypatch.setattr(Graph, "try_out", try_out)
    monkeypatch.setattr(Recordings, "_attend", attending)
    monkeypatch.setattr(Recordings, "make", recording)
    engine = graphed_engine()
    made: list[tuple[int, int]] = []
    engine.get_ready(lambda done, whole: made.append((done, whole)))
    assert blocks == tried
    assert made[-1][0] == made[-1][1] == (3 if len(tried) == 1 else 10)
    if len(tried) == 1:
        assert made == [(done, 3) for done in range(4)]
    assert passes_of(engine).recordings.num_graphs == 3
    assert passes_of(engine).recordings.trouble is None


def test_a_plan_beyond_what_was_recorded_ahead_is_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacities, "AHEAD", 1)
    engine = graphed_engine()
    engine.get_ready()
    engine.run(walking(a_team_of(3), 3, {}))
    assert passes_of(engine).counts.eager == 1  # the first of a capacity; then it is recorded
    assert passes_of(engine).recordings.num_graphs == 2


def test_the_kernel_that_carries_blocks_is_launched_before_there_is_one_to_carry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be compiled when the first desk moves, while a team waits."""
    monkeypatch.setattr(capacities, "AHEAD", 2)
    engine = graphed_engine()
    passes, carried = passes_of(engine), list[int]()
    monkeypatch.setattr(
        passes.backend, "move", lambda stack, moved: carried.append(len(moved.sources))
    )
    engine.get_ready()
    assert carried == [0] * len(passes.memory.stacks)


def test_a_prompt_goes_by_a_recording_that_was_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is longer than all parts of prompts; so is one that comes behind a history, and neither is launched one by one."""
    ahead = [(1, Wide.SMALL), (48, Wide.SMALL), (48, Wide.LARGE)]
    monkeypatch.setattr(capacities, "kinds_ahead", lambda most, tiling: ahead)
    monkeypatch.setattr(capacities, "_MOST_OF_PARTS", 16)
    monkeypatch.setattr(capacities, "wide_capacity", WIDE)
    plain, graphed = plain_engine(), graphed_engine()
    graphed.get_ready()
    before = replace(passes_of(graphed).counts)

    def reading(history: int) -> Strategy:
        common, prompt = Block(), Block()
        if history:
            yield Step([Row(View([common]), tuple(range(1, history + 1)))])
        last = Row(View([common, prompt, Block()]), (7,))
        tokens = yield Step([Row(View([common, prompt]), tuple(range(3, 43))), last])
        return Answer(text=str(tokens))

    for history in (0, 41):
        assert graphed.run(reading(history)) == plain.run(reading(history))
    counts = passes_of(graphed).counts
    assert (counts.eager - before.eager, counts.recorded - before.recorded) == (0, 0)
    assert counts.replayed - before.replayed == 3


@pytest.mark.parametrize("most", [40, 8192])
def test_no_more_tokens_are_recorded_ahead_than_are_fed_in_one_pass(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device whose passes are to be short has no memory for a longer one."""
    asked = []

    def none_ahead(widest: int, tiling: Tiling) -> list[tuple[int, Wide]]:
        asked.append(widest)
        return [(1, Wide.SMALL)]

    monkeypatch.setattr(capacities, "kinds_ahead", none_ahead)
    monkeypatch.setattr(capacities, "_MOST_OF_PARTS", 16)
    graphed_engine(max_tokens_per_pass=most).get_ready()
    assert asked == [min(most, capacities.AHEAD)]


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_prompt_whose_launches_take_longer_than_it_does_goes_by_recordings(
    is_ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two parts. Of more tokens the device takes longer than the host, or three parts longer than one pass."""
    monkeypatch.setattr(capacities, "AHEAD", 40)
    monkeypatch.setattr(capacities, "_MOST_OF_PARTS", 16)
    monkeypatch.setattr(matching, "MOST_TOKENS", 40)
    monkeypatch.setattr(capacities, "wide_capacity", WIDE)
    engine = graphed_engine(prompt_tokens=20)
    if is_ready:
        engine.get_ready()
    passes = passes_of(engine)
    monkeypatch.setattr(passes.recordings, "layer_bytes", capacities._WORTH / 90)
    sizes = [passes.tokens_at_once(size) for size in (39, 40, 41, 80, 81)]
    assert sizes == ([39, 40, 40, 40, 81] if is_ready else [39, 40, 41, 80, 81])
    monkeypatch.setattr(passes.recordings, "layer_bytes", capacities._WORTH / 60)
    assert [passes.tokens_at_once(size) for size in (60, 61)] == [40 if is_ready else 60, 61]
    before = replace(passes.counts)
    prompt = tuple(range(1, 58))
    run = engine.submit(counting(prompt, 2))
    finish(engine, run)
    eager = passes.counts.eager - before.eager
    assert eager == (0 if is_ready else 2), "the prompt, and the first pass of one token"
    assert run.result() == graphed_engine().run(counting(prompt, 2))


def test_a_prompt_in_the_expanded_form_goes_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pass is not recorded, and its parts would have the other form."""
    passes = passes_of(graphed_engine())
    monkeypatch.setattr(passes.recordings, "ahead", {(2048, Wide.LARGE): None})
    monkeypatch.setattr(passes.recordings, "layer_bytes", 1.0)
    assert passes.tokens_at_once(4096) == 2048
    shape: Any = SimpleNamespace(numbers_per_token=1)
    form = ExpandedForm(passes.backend, shape, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(passes, "expanded", form)
    assert [passes.tokens_at_once(size) for size in (4095, 4096)] == [2048, 4096]


def test_a_prompt_is_multiplied_with_as_many_numbers_whatever_their_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights of four bits are fewer bytes, and a pass of two thousand tokens takes the device as long."""
    passes = passes_of(graphed_engine())
    numbers = num_weights(passes.adapter)
    monkeypatch.setattr(recordings, "weight_bytes", lambda adapter: numbers // 2)
    assert recordings._layer_bytes(passes.adapter) == 2 * numbers / passes.adapter.num_layers
    monkeypatch.setattr(recordings, "experts_of_a_token", lambda config: 2)
    assert recordings._layer_bytes(passes.adapter) == numbers // 2 / passes.adapter.num_layers, (
        "of few experts"
    )


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_prompt_is_no_reason_to_record(monkeypatch: pytest.MonkeyPatch, is_ready: bool) -> None:
    """An engine that got ready records none of four; another one records the second, and both record a pass that writes."""
    monkeypatch.setattr(capacities, "AHEAD", 2)
    engine = graphed_engine()
    if is_ready:
        engine.get_ready()
    passes = passes_of(engine)
    before = passes.recordings.num_graphs

    def reading() -> Strategy:
        yield Step([Row(View([Block()]), tuple(range(1, 13)))])
        return Answer(text="")

    for _ in range(4):
        engine.run(reading())
    prompts = [graph for graph in passes.recordings.numbered[before:] if graph.capacity.tokens > 8]
    assert len(prompts) == (0 if is_ready else 1)
    assert passes.counts.eager >= (4 if is_ready else 1)
    for _ in range(2):
        engine.run(walking(a_team_of(3), 2, {}))
    assert [graph.capacity.tokens for graph in passes.recordings.numbered].count(4) == 1


@pytest.mark.parametrize(("drafts", "recorded_at"), [(1, 2), (0, matching._VERY_OFTEN)])
def test_a_pass_with_drafts_has_no_prompt(
    monkeypatch: pytest.MonkeyPatch, drafts: int, recorded_at: int
) -> None:
    """Drafts come again and again: their second pass is recorded, as one without them is."""
    passes = passes_of(graphed_engine())
    wide = capacities.wide_capacity(1, passes.backend.tiling, Wide.SMALL)
    passes.recordings.ahead[1, Wide.SMALL] = Graph(passes.recordings, wide, 64)
    made = noted_recordings(passes, monkeypatch)
    views = [View([situations.block_of(8)]) for _ in range(40)]
    plan = situations.planned(views, 2)[0]
    if drafts:
        plan = replace(plan, num_drafted=np.full(40, drafts))
    for _ in range(recorded_at - 1):
        assert passes.matcher.recorded(plan) is None
    assert passes.matcher.recorded(plan) is not None
    assert len(made) == 1


@pytest.mark.parametrize("wants_others", [True, False])
def test_a_capacity_that_is_met_again_and_again_gets_a_recording_of_its_own(
    monkeypatch: pytest.MonkeyPatch, wants_others: bool
) -> None:
    """Its plans want other kernels than the wide recording has; where they do not, the wide one serves for good."""
    monkeypatch.setattr(capacities, "AHEAD", 2)
    monkeypatch.setattr(matching, "_VERY_OFTEN", 3)
    monkeypatch.setattr(matching, "_LOOKED_AT", 1)
    if wants_others:
        with_other_kernels(monkeypatch)
    engine = graphed_engine()
    engine.get_ready()
    views = a_team_of(2)
    for index in range(5):  # looked at three times, and recorded with the next one
        engine.run(walking(views, 1, {0: index + 1}))
        assert passes_of(engine).recordings.num_graphs == (3 if wants_others and index >= 3 else 2)
    assert passes_of(engine).counts.eager == 0


@pytest.mark.parametrize("forced", [{}, {4: 3, 7: 5}])
def test_a_recording_of_its_own_behind_rows_that_went_on_changes_no_token(
    forced: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacities, "AHEAD", 2)
    monkeypatch.setattr(matching, "_VERY_OFTEN", 3)
    monkeypatch.setattr(matching, "_LOOKED_AT", 2)
    with_other_kernels(monkeypatch)
    plain, graphed = plain_engine(), graphed_engine()
    graphed.get_ready()
    before = passes_of(graphed).recordings.num_graphs
    for _ in range(2):  # the second is recorded, or what follows a wrong guess of the first
        answers = [engine.run(walking(a_team_of(2), 10, forced)) for engine in (plain, graphed)]
        assert answers[0] == answers[1]
    assert passes_of(graphed).recordings.num_graphs == before + 1
    assert passes_of(graphed).counts.eager == 0


@pytest.mark.parametrize("forced", [{}, {4: 3, 7: 5}])
def test_a_recording_of_its_own_in_the_midst_of_rows_that_go_on_changes_no_token(
    forced: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guess that was begun is dropped then, once."""
    monkeypatch.setattr(capacities, "AHEAD", 2)
    monkeypatch.setattr(matching, "_VERY_OFTEN", 3)
    monkeypatch.setattr(PlanMatcher, "_wide_at_once", lambda self, plan, stretches: None)
    with_other_kernels(monkeypatch)
    plain, graphed = plain_engine(), graphed_engine()
    graphed.get_ready()
    before = passes_of(graphed).recordings.num_graphs
    answers = [engine.run(walking(a_team_of(2), 12, forced)) for engine in (plain, graphed)]
    assert answers[0] == answers[1]
    assert passes_of(graphed).recordings.num_graphs == before + 1
    assert passes_of(graphed).counts.eager == 0


@pytest.mark.parametrize("large_rows", [64, 128])
def test_crowds_are_served_by_wide_recordings_unless_they_want_other_large_tiles(
    large_rows: int,
) -> None:
    """Many rows differ from pass to pass in all sizes, and what would be recorded for one hardly serves another."""
    tiling = Tiling(
        4,
        num_kv_heads=8,
        num_processors=132,
        large_rows=64,
        specialised_rows=large_rows if large_rows > 64 else 0,
    )
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling
    plan = completions(200, 16384)  # a prompt that specialised tiles pay for
    work = cut(plan, tiling)
    assert work.large_rows == large_rows
    capacity = capacities.wide_capacity(208, tiling, Wide.LARGE)
    passes.recordings.ahead[208, Wide.LARGE] = Graph(passes.recordings, capacity, 64)
    assert passes.matcher._is_served_well(plan, work) is (large_rows == 64)


@pytest.mark.parametrize("large_rows", [64, 128])
def test_rows_that_go_on_side_by_side_get_a_recording_with_the_kernels_that_they_want(
    large_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their plans are laid out anew with every page alone, so their passes are counted; not where the wide one serves them well."""
    monkeypatch.setattr(matching, "_VERY_OFTEN", 4)
    monkeypatch.setattr(matching, "_follows", lambda plan, last: True)
    wants_others = large_rows > 64
    tiling = Tiling(
        4,
        num_kv_heads=8,
        num_processors=132,
        large_rows=64,
        specialised_rows=large_rows if wants_others else 0,
    )
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling
    made = noted_recordings(passes, monkeypatch)
    capacity = capacities.wide_capacity(208, tiling, Wide.LARGE)
    capacity = replace(capacity, entries=512, pages=2048, small=512, large=256, partials=4096)
    wide = passes.recordings.ahead[208, Wide.LARGE] = Graph(passes.recordings, capacity, 64)
    plan = completions(200, 16384)
    for _ in range(2):  # other plans in between count anew
        found = passes.matcher.recorded(plan)
        assert found is not None
        assert found[0] is wide
        assert all(passes.matcher.goes_on(plan, plan) for _ in range(3))
    assert passes.matcher.goes_on(plan, plan) is not wants_others
    found = passes.matcher.recorded(plan)
    assert found is not None
    assert (found[0] is wide) is not wants_others
    assert [each.is_specialised for each in made] == [True] * wants_others


def test_passes_of_a_crowd_that_goes_on_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plan was cut for itself, so it is known what it wants; each look would cut it once more."""
    monkeypatch.setattr(matching, "_follows", lambda plan, last: True)
    tiling = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=64)
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling
    capacity = capacities.wide_capacity(208, tiling, Wide.LARGE)
    capacity = replace(capacity, entries=512, pages=2048, small=512, large=256, partials=4096)
    passes.recordings.ahead[208, Wide.LARGE] = Graph(passes.recordings, capacity, 64)
    plan = completions(200, 2000)
    assert passes.matcher.recorded(plan) is not None
    for _ in range(4 * matching._LOOKED_AT):
        assert passes.matcher.goes_on(plan, plan)
        assert passes.matcher.to_look_at is None


@pytest.mark.parametrize(
    ("crowd", "every"),
    [
        ("asks", 4),
        ("asks", 32),
        ("asks", 40),
        ("at once", 40),
        ("goes on", 40),
        ("of its kind", 6),
        ("has its own", 40),
    ],
)
def test_what_crowds_meet_now_and_then_is_not_recorded(
    crowd: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capacity that wants its own, in one pass of so many: of forty it is too rare, however long the crowd goes on.

    The crowd's other passes ask for a capacity, are served at once, have a recording of their own, or follow each other. Where the rare one is one of
    thirty-two, it is the one that asks whenever counts are halved. Passes that follow it would ask for the same.
    """
    monkeypatch.setattr(matching, "_VERY_OFTEN", 8)
    monkeypatch.setattr(matching, "_COUNTED", 16 if crowd == "of its kind" else 64)
    monkeypatch.setattr(matching, "_follows", lambda plan, last: True)
    tiling = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=64, specialised_rows=128)
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling
    made = noted_recordings(passes, monkeypatch)
    for kind in (Wide.SMALL, Wide.LARGE) if crowd == "at once" else (Wide.LARGE,):
        capacity = capacities.wide_capacity(208, tiling, kind)
        capacity = replace(capacity, entries=512, pages=8192, small=2048, partials=4096)
        capacity = replace(capacity, large=256 * (kind is Wide.LARGE))
        passes.recordings.ahead[208, kind] = Graph(passes.recordings, capacity, 64)
    usual, rare = completions(200, 2000), completions(200, 16384)
    if crowd == "at once":
        usual = situations.planned(situations.tree("100,200_~1024,~64"), 1)[0]
    own = Capacity.of(rare, cut(rare, tiling)).rounded()
    of_usual = capacity_of(usual, cut(usual, tiling))
    assert own != of_usual
    if crowd == "has its own":
        passes.recordings.graphs[of_usual] = Graph(passes.recordings, of_usual, 64)
        passes.matcher._kinds_with_own.add(matching._kind(usual))
    for number in range(600):
        if number % every == 0:
            passes.matcher.recorded(rare)
        elif crowd == "of its kind":
            assert passes.matcher.goes_on(rare, rare)
        elif crowd != "goes on" or number % every == 1:
            passes.matcher.recorded(usual)
        else:
            assert passes.matcher.goes_on(usual, usual)
    is_rare = every > 16
    assert made == ([] if is_rare else [own])
    assert passes.matcher._seen[own] < matching._VERY_OFTEN or not is_rare


def test_capacities_that_nobody_asks_for_any_more_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each was known for good, for as long as a server lives, and looked at whenever counts were halved."""
    monkeypatch.setattr(matching, "_MOST_SEEN", 8)
    passes = passes_of(graphed_engine())
    plan = completions(200, 2000)
    often = Capacity.of(plan, cut(plan, passes.backend.tiling)).rounded()
    for number in range(1, 100):
        passes.matcher._note(plan, often)
        passes.matcher._note(plan, replace(often, pages=number << 20))
        assert len(passes.matcher._seen) <= 8
        assert passes.matcher._seen[often] == number, "counts are halved later"
    assert next(iter(passes.matcher._seen)) == replace(often, pages=93 << 20), (
        "the newest ones are known"
    )


@pytest.mark.parametrize("first", ["wider", "widest"])
def test_of_several_recordings_that_serve_a_plan_the_smallest_is_taken(first: str) -> None:
    """Padding costs time, whichever of them was made first."""
    passes = passes_of(graphed_engine())
    plan = rows_alone(3)
    own = capacity_of(plan, cut(plan, passes.backend.tiling))
    rooms = {"wider": 2 * own.pages, "widest": 8 * own.pages}
    for name in sorted(rooms, key=lambda name: name != first):
        room = replace(own, pages=rooms[name])
        passes.recordings.graphs[room] = Graph(passes.recordings, room, 64)
    found = passes.matcher.recorded(plan)
    assert found is not None
    assert found[0].capacity.pages == rooms["wider"]


@pytest.mark.parametrize("rows", [2, 40])
def test_for_a_guess_a_plan_is_cut_once_and_nothing_is_noted(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a wide recording serves it at once. A capacity that is to have its own is served by it too: a guess records nothing."""
    monkeypatch.setattr(capacities, "LEAST", LEAST)
    passes = passes_of(graphed_engine())
    tiling = passes.backend.tiling
    made = noted_recordings(passes, monkeypatch)
    plan = rows_alone(rows)
    size = rounded_tokens(rows)
    wide = Graph(passes.recordings, WIDE(size, tiling, Wide.SMALL), 64)
    passes.recordings.ahead[size, Wide.SMALL] = wide
    often = capacity_of(plan, cut(plan, tiling))
    passes.matcher._seen[often] = seen = matching._VERY_OFTEN
    cuts = []

    def noted(*how: Any) -> Any:
        cuts.append(how)
        return cut(*how)

    monkeypatch.setattr(matching, "cut", noted)
    for _ in range(3):
        found = passes.matcher.at_hand(plan)
        assert found is not None
        assert found[0] is wide
    assert len(cuts) == 3
    assert passes.matcher._seen == {often: seen}
    assert not made


@pytest.mark.parametrize("history", [4096, 16384])
def test_few_rows_that_go_on_side_by_side_are_looked_at_by_their_passes(
    history: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wide recording is taken for them at once, and their plan is made anew with every page alone. The longer prompt wants large tiles."""
    monkeypatch.setattr(matching, "_VERY_OFTEN", 3)
    monkeypatch.setattr(matching, "_LOOKED_AT", 4)
    monkeypatch.setattr(capacities, "LEAST", LEAST)
    monkeypatch.setattr(matching, "_follows", lambda plan, last: True)
    cuts = []

    def noted(*how: Any) -> Any:
        cuts.append(how)
        return cut(*how)

    monkeypatch.setattr(matching, "cut", noted)
    tiling = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=64, long_keys=8192)
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling
    made = noted_recordings(passes, monkeypatch)
    capacity = WIDE(16, tiling, Wide.SMALL)
    wide = passes.recordings.ahead[16, Wide.SMALL] = Graph(passes.recordings, capacity, 64)
    plan = completions(16, history)
    wants_others = not passes.matcher._has_kernels_of(wide, plan, cut(plan, tiling))
    assert wants_others is (history > 8192)
    for num_more in (7, 5, 1):  # passes behind the last four count for nothing
        found = passes.matcher.recorded(plan)
        assert found is not None
        assert found[0] is wide
        for _ in range(num_more):
            assert passes.matcher.goes_on(plan, plan), "nobody waits for a recording in their midst"
            passes.meanwhile()
    looked_at = len(cuts) - 3
    assert looked_at == 2
    found = passes.matcher.recorded(plan)
    assert found is not None
    assert found[0] is wide
    for _ in range(12):
        assert passes.matcher.goes_on(plan, plan)
        passes.meanwhile()
    found = passes.matcher.recorded(plan)
    assert found is not None
    assert (found[0] is wide) is not wants_others
    assert [each.large_rows for each in made] == [64] * wants_others


def with_both(monkeypatch: pytest.MonkeyPatch) -> tuple[GraphedPasses, list[Capacity]]:
    """Passes of sixteen tokens with a recording for one team and one for several runs, and what is recorded besides."""
    monkeypatch.setattr(capacities, "LEAST", LEAST)
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=64)
    made = noted_recordings(passes, monkeypatch)
    for kind in (Wide.SMALL, Wide.SEVERAL):
        passes.recordings.ahead[16, kind] = Graph(passes.recordings, WIDE(16, tiling, kind), 64)
    return passes, made


def rows_alone(count: int) -> Plan:
    """Rows that share nothing."""
    return situations.planned([View([situations.block_of(400)]) for _ in range(count)], 1)[0]


def teams_of_four(count: int) -> Plan:
    views = [view for _ in range(count) for view in situations.team(4, 400, 40)]
    return situations.planned(views, 1)[0]


def test_several_runs_have_recordings_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first plan of a kind is looked at at once; no recording is made for any of them, however often they come."""
    passes, made = with_both(monkeypatch)
    team, runs = situations.live_team(16, 1024, 99)[0], teams_of_four(4)
    for _ in range(50):
        for plan, kind in ((team, Wide.SMALL), (runs, Wide.SEVERAL)):
            found = passes.matcher.recorded(plan)
            assert found is not None
            graph, work = found
            assert graph is passes.recordings.ahead[16, kind]
            assert work.small_rows == graph.capacity.small_rows == (64 if plan is team else 16)
            passes.meanwhile()
    assert not made


def test_several_runs_that_have_no_room_go_by_the_other_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes, _ = with_both(monkeypatch)
    own = passes.recordings.ahead[16, Wide.SEVERAL]
    own.capacity = replace(own.capacity, pages=1)
    found = passes.matcher.recorded(teams_of_four(4))
    assert found is not None
    assert found[0] is passes.recordings.ahead[16, Wide.SMALL]


def test_passes_that_go_on_by_another_recording_turn_to_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last plan of a kind may have wanted another one than this; passes that follow are looked at, and then turn once."""
    passes, made = with_both(monkeypatch)
    plan = teams_of_four(4)
    passes.matcher._meant_for[matching._kind(plan)] = Wide.SMALL
    found = passes.matcher.recorded(plan)
    assert found is not None
    assert found[0] is passes.recordings.ahead[16, Wide.SMALL]
    passes._newest = found[0], plan
    monkeypatch.setattr(matching, "_follows", lambda plan, last: True)
    turned = []
    for number in range(40):
        if not passes.matcher.goes_on(plan, plan):
            turned.append(number)
            found = passes.matcher.recorded(plan)
            assert found is not None
            passes._newest = found[0], plan
        passes.meanwhile()
    assert turned == [matching._LOOKED_AT]
    assert passes._newest[0] is passes.recordings.ahead[16, Wide.SEVERAL]
    assert not made


def test_a_look_says_nothing_of_other_passes_that_were_begun_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where teams of four have gone on, a large team's pass begins before what they want is looked at: it has what it wants."""
    passes, _ = with_both(monkeypatch)
    runs, team = teams_of_four(4), situations.live_team(16, 1024, 99)[0]
    found = passes.matcher.recorded(runs)
    assert found is not None
    passes._newest = found[0], runs
    with monkeypatch.context() as patch:
        patch.setattr(matching, "_follows", lambda plan, last: True)
        for _ in range(matching._LOOKED_AT):
            assert passes.matcher.goes_on(runs, runs)
    assert passes.matcher.to_look_at == (runs, None)
    found = passes.matcher.recorded(team)
    assert found is not None
    assert found[0] is passes.recordings.ahead[16, Wide.SMALL]
    passes._newest = found[0], team
    assert passes.matcher._is_looked_at
    passes.meanwhile()
    assert passes.matcher._is_looked_at
    assert not passes.matcher._is_astray


@pytest.mark.parametrize("rows", [13, 60, 140])
def test_rows_alone_have_a_recording_of_their_own(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight query heads to a key head: however they alternate with teams, and by whatever way they are found."""
    passes, made = with_both(monkeypatch)
    passes.backend.tiling = tiling = Tiling(8, num_kv_heads=8, num_processors=132, large_rows=64)
    size = rounded_tokens(rows + 3)
    kinds = [kind for tokens, kind in capacities.kinds_ahead(256, tiling) if tokens == size]
    assert Wide.LONE in kinds
    for kind in kinds:
        passes.recordings.ahead[size, kind] = Graph(passes.recordings, WIDE(size, tiling, kind), 64)
    of_teams = Wide.SEVERAL if rows < 32 else Wide.SMALL
    plans = {Wide.LONE: rows_alone(rows), of_teams: teams_of_four(size // 4)}
    for _ in range(50):
        for kind, plan in plans.items():
            found = passes.matcher.recorded(plan)
            assert found is not None
            assert found[0] is passes.recordings.ahead[size, kind]
            passes.meanwhile()
    assert not made
    plan, own = plans[Wide.LONE], passes.recordings.ahead[size, Wide.LONE]
    stretches, work = Stretches.of(plan, tiling), cut(plan, tiling)
    found = passes.matcher._serving(plan, work, capacity_of(plan, work), stretches)
    assert found is not None
    assert found[0] is own
    own.capacity = replace(own.capacity, small=rows - 1)  # one item too few
    found = passes.matcher.recorded(plan)
    assert found is not None
    assert found[0] is passes.recordings.ahead[size, of_teams]


@pytest.mark.parametrize("group", [4, 8])
def test_large_teams_have_a_recording_of_their_own(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They alternate with teams of four, and either finds its own at once; where theirs has no room, the other one serves."""
    passes, made = with_both(monkeypatch)
    passes.backend.tiling = tiling = Tiling(group, 8, num_processors=132, large_rows=64)
    for tokens, kind in capacities.kinds_ahead(64, tiling):
        if tokens == 64:
            wide = Graph(passes.recordings, WIDE(tokens, tiling, kind), 64)
            passes.recordings.ahead[tokens, kind] = wide
    eights, sixteens = (
        situations.planned(
            [view for _ in range(64 // workers) for view in situations.team(workers, 400, 40)], 1
        )[0]
        for workers in (8, 16)
    )
    plans = {Wide.TEAMS: (eights, 8), Wide.SMALL: (teams_of_four(16), 4)}
    if 16 * group <= tiling.most_small_rows:
        plans[Wide.LARGE_TEAMS] = sixteens, 16
    for _ in range(50):
        for kind, (plan, workers) in plans.items():
            found = passes.matcher.recorded(plan)
            assert found is not None
            assert found[0] is passes.recordings.ahead[64, kind]
            assert found[1].small_rows == workers * group
            passes.meanwhile()
    assert not made
    for kind, (plan, _) in plans.items():
        own = passes.recordings.ahead[64, kind]
        stretches, work = Stretches.of(plan, tiling), cut(plan, tiling)
        found = passes.matcher._serving(plan, work, capacity_of(plan, work), stretches)
        assert found is not None
        assert found[0] is own
        if kind is not Wide.SMALL:
            room, own.capacity = own.capacity, replace(own.capacity, small=1)
            found = passes.matcher.recorded(plan)
            assert found is not None
            assert found[0] is passes.recordings.ahead[64, Wide.SMALL]
            own.capacity = room
    if Wide.LARGE_TEAMS not in plans:
        found = passes.matcher.recorded(sixteens)
        assert found is not None
        assert found[0] is passes.recordings.ahead[64, Wide.TEAMS], (
            "where their own tiles would be large"
        )


def test_what_has_no_room_beside_a_prompt_goes_by_an_ample_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Teams of 24 stand in large tiles, more than the usual recording has beside a prompt; none is made in their midst."""
    passes, made = with_both(monkeypatch)
    passes.backend.tiling = tiling = Tiling(4, 8, num_processors=132, large_rows=64)
    for tokens, kind in capacities.kinds_ahead(512, tiling):
        if tokens == 512:
            passes.recordings.ahead[tokens, kind] = Graph(
                passes.recordings, WIDE(tokens, tiling, kind), 64
            )
    teams = [view for _ in range(5) for view in situations.team(24, 1500, 130)]
    prompt = View([situations.block_of(1200)])
    plan = fed([*((view, 1) for view in teams), (prompt, 380)])
    assert kind_ahead(plan, cut(plan, tiling), tiling) is Wide.LARGE
    ample, large = (
        passes.recordings.ahead[512, Wide.AMPLE],
        passes.recordings.ahead[512, Wide.LARGE],
    )
    for _ in range(50):
        found = passes.matcher.recorded(plan)
        assert found is not None
        assert found[0] is ample
        assert len(found[1].large) > large.capacity.large
        passes.meanwhile()
    assert not made
    few = [view for _ in range(4) for view in situations.team(4, 1500, 130)]
    found = passes.matcher.recorded(fed([*((view, 1) for view in few), (prompt, 490)]))
    assert found is not None
    assert found[0] is large


@pytest.mark.parametrize("group", [1, 4, 5, 128])
def test_uncommon_capacities_have_every_kind_of_tiles(group: int) -> None:
    """Each once; also where query heads fill the widest small tile; which kernels they launch: `test_tried_out.py`."""
    tiling = Tiling(group, 8, 132, large_rows=64, specialised_rows=128, can_begin_beside=True)
    tried = UNCOMMON(tiling)
    assert len(set(tried)) == len(tried)
    assert {each.is_specialised for each in tried if each.large and not each.small} == {False, True}
    is_usual = group < 64
    beside = [each for each in tried if each.small and is_beside(each, tiling)]
    assert {each.occupancy for each in beside} == (set(Occupancy) if is_usual else set())
    alone = {each.small_rows for each in tried if not each.large}
    assert alone == {1: {1, 16, 32, 64}, 128: set()}.get(group, {16, 32, 64})


@pytest.mark.parametrize("readers", [9, 20])
def test_no_large_tiles_are_launched_for_nothing(readers: int) -> None:
    """Beside many lone rows the plan alone wants large tiles for nine that share a prompt; one cut for a recording does not."""
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=64)
    for kind in (Wide.SMALL, Wide.LARGE):
        wide = capacities.wide_capacity(208, tiling, kind)
        capacity = replace(wide, entries=512, pages=1024, small=512, partials=512)
        passes.recordings.ahead[208, kind] = Graph(passes.recordings, capacity, 64)
    shared = situations.block_of(900)
    views = [View([shared, situations.block_of(0)]) for _ in range(readers)]
    views += [View([situations.block_of(99)]) for _ in range(204 - readers)]
    plan = situations.planned(views, 1)[0]
    assert len(cut(plan, tiling).large)
    found = passes.matcher.recorded(plan)
    assert found is not None
    graph, work = found
    assert graph is passes.recordings.ahead[208, Wide.LARGE if readers > 16 else Wide.SMALL]
    assert bool(len(work.large)) is (readers > 16)


@pytest.mark.parametrize(
    ("rows", "ended", "served_by", "kind"),
    [
        (16, 1, 24, Wide.ENDED),
        (16, 2, 28, Wide.ENDED),
        (16, 3, 32, Wide.ENDED),
        (16, 4, 40, Wide.ENDED),
        (16, 6, 48, Wide.ENDED),
        (4, 1, 12, Wide.ENDED),
        (20, 0, 32, Wide.SMALL),
        (10, 0, 16, Wide.SMALL),
        (40, 0, 64, Wide.LARGE),
    ],
)
def test_a_team_in_which_a_step_has_ended_has_recordings_without_much_padding(
    monkeypatch: pytest.MonkeyPatch, rows: int, ended: int, served_by: int, kind: Wide
) -> None:
    """As many rows that are fed one token each want more logits than these recordings make: the next one serves them."""
    team = situations.live_team(rows, 1024, 99, prefixes=ended)[0]
    plan = team if ended else completions(rows, 99)
    monkeypatch.setattr(capacities, "LEAST", LEAST)
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=64)
    for tokens, made_for in capacities.kinds_ahead(64, tiling):
        capacity = WIDE(tokens, tiling, made_for)
        passes.recordings.ahead[tokens, made_for] = Graph(passes.recordings, capacity, 64)
    cuts: list[object] = []

    def counted(*how: Any) -> Any:
        cuts.append(how)
        return cut(*how)

    monkeypatch.setattr(matching, "cut", counted)
    found = passes.matcher.recorded(plan)
    assert found is not None
    assert not ended or len(cuts) == 1, "the device waits for it"
    graph, work = found
    assert graph is passes.recordings.ahead[served_by, kind]
    assert bool(len(work.large)) is (served_by > 16 and kind is not Wide.SMALL)
    assert passes.matcher._is_served_well(plan, cut(plan, tiling)) is (
        kind is not Wide.SMALL or rows <= 10
    )


def test_a_plan_of_few_tokens_is_cut_once_where_a_wide_recording_serves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own capacity is looked for once in so many plans of its kind, for which it is cut twice: behind the launch."""
    monkeypatch.setattr(capacities, "AHEAD", 2)
    monkeypatch.setattr(matching, "_LOOKED_AT", 4)
    engine = graphed_engine()
    engine.get_ready()
    views, did = a_team_of(2), list[str]()

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def work(*how: Any) -> Any:
            did.append(name)
            return call(*how)

        return work

    monkeypatch.setattr(matching, "cut", noted("cut", cut))
    monkeypatch.setattr(Graph, "start", noted("started", Graph.start))
    made = []
    for index in range(5):
        did.clear()
        engine.run(walking(views, 1, {0: index + 1}))
        made.append(did.copy())
    assert made.count(["cut", "started"]) == 4
    assert made.count(["cut", "started", "cut"]) == 1
    assert passes_of(engine).counts.eager == 0


@pytest.mark.parametrize("fitting", [Wide.LARGE, Wide.SMALL])
def test_a_plan_for_which_one_wide_recording_has_no_room_goes_by_the_other(
    monkeypatch: pytest.MonkeyPatch, fitting: Wide
) -> None:
    """Launch by launch it would take ten times as long: of a team of sixteen four steps have ended in one pass."""
    monkeypatch.setattr(capacities, "LEAST", LEAST)
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=128)
    plan = situations.live_team(16, 16384, 99, prefixes=4)[0]
    work = cut(plan, tiling)
    assert plan.num_tokens > 32
    assert len(work.large)
    for kind in (Wide.LARGE, Wide.SMALL):
        capacity = WIDE(64, tiling, kind)
        if kind is not fitting:
            room: dict[str, Any] = (
                {"large": 4, "small": 0} if kind is Wide.LARGE else {"large": 0, "small": 4}
            )
            capacity = replace(capacity, **room)
        passes.recordings.ahead[64, kind] = Graph(passes.recordings, capacity, 64)
    found = passes.matcher.recorded(plan)
    assert found is not None
    assert found[0] is passes.recordings.ahead[64, fitting]


def test_a_capacity_gets_a_recording_of_its_own_where_nothing_is_begun_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with speculation, whose passes feed several tokens a row: they come one by one."""
    monkeypatch.setattr(capacities, "AHEAD", 2)
    monkeypatch.setattr(matching, "_VERY_OFTEN", 3)
    monkeypatch.setattr(matching, "_LOOKED_AT", 2)
    with_other_kernels(monkeypatch)
    engine = graphed_engine()
    engine.get_ready()
    passes = passes_of(engine)
    monkeypatch.setattr(passes, "plans_ahead", False)
    monkeypatch.setattr(passes, "look_ahead", lambda chosen: None)
    before = passes.recordings.num_graphs
    for index in range(9):
        engine.run(walking(a_team_of(2), 1, {0: index + 1}))
        assert passes.recordings.num_graphs == before + (index >= 6), (
            "looked at with every other one"
        )


def test_a_plan_that_the_other_recording_serves_gets_its_own_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacities, "LEAST", LEAST)
    monkeypatch.setattr(matching, "_VERY_OFTEN", 4)
    passes = passes_of(graphed_engine())
    passes.backend.tiling = tiling = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=128)
    made = noted_recordings(passes, monkeypatch)
    for kind in (Wide.LARGE, Wide.SMALL):
        capacity = replace(WIDE(64, tiling, kind), large=4 if kind is Wide.LARGE else 0)
        passes.recordings.ahead[64, kind] = Graph(passes.recordings, capacity, 64)
    plan = situations.live_team(16, 16384, 99, prefixes=4)[0]
    found = [passes.matcher.recorded(plan) for _ in range(4)]
    assert [
        each is not None and each[0] is passes.recordings.ahead[64, Wide.SMALL]
        for each in found[:3]
    ] == [True] * 3
    assert len(made) == 1


def test_sizes_of_passes_are_tiles_apart() -> None:
    asked = (1, 3, 8, 9, 13, 17, 25, 29, 33, 41, 49, 128, 129, 192, 193, 209, 513, 1024, 1025, 2048)
    made = [1, 4, 8, 12, 16, 24, 28, 32, 40, 48, 64, 128, 144, 192, 208, 256, 576, 1024, 1152, 2048]
    assert [rounded_tokens(count) for count in asked] == made


def test_an_empty_list_of_tiles_is_not_padded() -> None:
    """Sixteen workers of a group of five have large tiles alone, and four have small ones alone."""
    tiling = Tiling(5, num_kv_heads=8, num_processors=132)
    found = []
    for workers in (4, 16):
        plan = a_team(workers, 1024, 128)
        found.append(capacities.capacity_of(plan, cut(plan, tiling)))
    assert [bool(capacity.small) for capacity in found] == [True, False]
    assert [bool(capacity.large) for capacity in found] == [False, True]


def test_padding_does_not_crowd_a_processor() -> None:
    """Launches are chosen by how many programs there are, not by how many there is room for."""
    tiling = Tiling(1, num_kv_heads=32, num_processors=100)
    plan = a_team(16, 1024, 128)
    work = cut(plan, tiling)
    capacity = capacities.capacity_of(plan, work)
    assert capacity.small * tiling.num_kv_heads > tiling.many * tiling.num_processors
    assert capacity.occupancy == work.occupancy != Occupancy.MANY


def test_few_partials_are_not_merged_as_if_they_were_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completions leave two for every token, a team at least one for every desk."""
    monkeypatch.setattr(capacities, "LEAST", replace(capacities.LEAST, most_partials=32))
    tiling = Tiling(4, num_kv_heads=8, num_processors=132)
    found = [
        capacities.capacity_of(plan, cut(plan, tiling)).most_partials
        for plan in (completions(512, 512), a_team(4, 512, 16))
    ]
    assert found == [2, 32]


def test_broken_logits_are_said_once() -> None:
    """The pass after a failure begins afresh."""
    engine = graphed_engine()
    views = a_team_of(1)
    engine.run(walking(views, 6, {}))
    parameter = next(executor_of(engine).adapter.model.parameters())
    kept = parameter.detach().clone()
    with torch.inference_mode():
        parameter.fill_(float("nan"))
    with pytest.raises(Exception, match="not numbers"):
        engine.run(walking(views, 3, {}))
    with torch.inference_mode():
        parameter.copy_(kept)
    fresh = graphed_engine()
    again = a_team_of(1)
    fresh.run(walking(again, 6, {}))
    assert engine.run(walking(views, 6, {})) == fresh.run(walking(again, 6, {}))


def test_running_ahead_of_penalties_and_logprobs() -> None:
    """The next pass is begun with tokens that were weighed, and logprobs are read before it writes.

    A row with targets comes in between; it is never recorded, and disturbs nobody.
    """
    choices = [
        Choice(repetition_penalty=1.5, presence_penalty=1.0, logit_bias={5: 2.0}, logprobs=3),
        Choice(temperature=1.0, frequency_penalty=0.5, logprobs=0),
    ]
    told = []
    plain, graphed = plain_engine(), graphed_engine()
    for engine in (plain, graphed):
        runs = [engine.submit(completing(replace(choice, min_tokens=6))) for choice in choices]
        for _ in range(5):
            engine.step()
        echo = SharedSettings(max_tokens=0, echo=True, choice=Choice(logprobs=1))
        runs.append(engine.submit(shared_prefix([Prompt((5, 6, 7))], TEXT, echo)))
        finish(engine, *runs)
        answers = [run.result() for run in runs]
        told.append([a.completions[0] for a in answers if isinstance(a, Completions)])
    for ours, theirs in zip(*told, strict=True):
        assert ours.tokens == theirs.tokens
        pairs = zip(ours.logprobs + ours.echoed, theirs.logprobs + theirs.echoed, strict=True)
        for (token, one), (_, other) in pairs:
            if one is None:
                assert other is None
                continue
            assert abs(one.logprob - other.logprob) < 1e-4, token
            assert [name for name, _ in one.top] == [name for name, _ in other.top]
    passes = passes_of(graphed)
    assert passes.counts.lookaheads + passes.counts.planned_ahead >= 2
    assert passes.counts.dropped <= 2, "penalties make no guess wrong; the echo and the end do"


def completing(choice: Choice) -> Strategy:
    settings = SharedSettings(max_tokens=6, choice=choice)
    return shared_prefix([Prompt((5,))], TEXT, settings)
