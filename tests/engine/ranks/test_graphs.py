"""Recorded passes over two ranks: rank 0 decides which recording is replayed, the other one repeats.

The ranks are threads, and a recorder runs everything again instead of replaying it (`tests/engine/test_graphs.py`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.families_zoo import NO_TOKENIZER

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.attention.prepared import Capacity, Prepared
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import Tiling
from manyhands.cache.block import Block
from manyhands.cache.places import Move
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import capacities, graph, recordings
from manyhands.engine.capacities import Wide
from manyhands.engine.engine import Engine
from manyhands.engine.graphs import GraphedPasses
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.matching import PlanMatcher
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.ranks import told
from manyhands.engine.ranks.channel import FirstEnd, OtherEnd, Verb
from manyhands.engine.ranks.follower import Follower
from manyhands.engine.ranks.packing import pack_moves
from manyhands.engine.ranks.told import Following, Together, ToldRanks
from manyhands.errors import RanksFailed, UnsupportedModel
from manyhands.model.loading import load_adapter
from manyhands.model.settings import ModelSettings
from manyhands.replay.merged import merge_passes
from tests.engine.ranks.models import small_folder
from tests.engine.small import TOKENIZER, counting, finish, small_engine
from tests.engine.test_graphs import Again, a_team_of, walking
from tests.engine.test_lookahead import live_alone, turning
from tests.model.parallel.threads import Meeting, ThreadCollectives

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the kernels are compiled here, and run on the GPU only"
)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_capacities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding costs the interpreter time; and it runs one kernel at a time."""
    few = replace(capacities.LEAST, entries=4, pages=4, small=4, partials=8, most_partials=4)
    monkeypatch.setattr(capacities, "LEAST", few)
    # The interpreter loads nothing, so one of what no recording has is enough for ranks to tell each other.
    all_of = capacities.uncommon_capacities

    def one(tiling: Tiling) -> list[Capacity]:
        return [min(all_of(tiling), key=lambda each: each.num_integers)]

    monkeypatch.setattr(capacities, "uncommon_capacities", one)
    one_at_a_time = threading.Lock()
    for name in ("append", "attend", "move"):
        right: Any = getattr(TritonBackend, name)

        def locked(*args: Any, right: Any = right, **kwargs: Any) -> Any:
            with one_at_a_time:
                return right(*args, **kwargs)

        monkeypatch.setattr(TritonBackend, name, locked)


class Telling(LocalExecutor):
    """Rank 0's, which tells the other rank of moves, as `RankedExecutor` does."""

    def move(self, moves: Sequence[Move]) -> None:
        others = self.passes.others
        assert isinstance(others, ToldRanks)
        others.told.tell(Verb.MOVE, *pack_moves(moves))
        super().move(moves)


class TwoRanks:
    """Rank 0's engine, and a thread that follows it."""

    def __init__(self, folder: Path, recorders: tuple[Again, Again]) -> None:
        self.meeting = meeting = Meeting(2)
        ours, theirs = Pipe()
        self.told = FirstEnd([ours])
        parts = [ThreadCollectives(rank, meeting) for rank in range(2)]
        heard = OtherEnd(theirs, 1, 2)

        def answers(seconds: float | None) -> list[dict[str, Any]]:
            if not ours.poll(seconds):
                raise TimeoutError
            return [json.loads(ours.recv_bytes())]

        zero = ToldRanks(self.told, parts[0], CPU, answers=answers, compares=True)
        one = Following(heard, parts[1], CPU, compares=True)
        executors = [
            self._executor(folder, part, others, recorder)
            for part, others, recorder in zip(parts, (zero, one), recorders, strict=True)
        ]
        self.engine = Engine(executors[0], TOKENIZER)
        self.follower = Follower(heard)
        self.follower._executor = executors[1]
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _executor(
        self, folder: Path, part: ThreadCollectives, others: Together, recorder: Again
    ) -> LocalExecutor:
        adapter, _ = load_adapter(folder, tokenizer=NO_TOKENIZER, collectives=part, device="cpu")
        settings = ModelSettings(memory_tokens=8192, backend="triton")
        kind = Telling if isinstance(others, ToldRanks) else LocalExecutor
        executor = kind(adapter, settings, others=others)
        executor.passes = GraphedPasses(
            adapter,
            executor.memory,
            executor.backend,  # type: ignore[arg-type]
            recorder,
            others,
        )
        return executor

    def _follow(self) -> None:
        try:
            while self.follower.obey(*self.follower.heard.next()):
                pass
        except BaseException as error:
            self.errors.append(error)
            self.meeting.abort()  # as a sum ends whose connection is closed

    def end(self) -> tuple[PassCounts, PassCounts]:
        self.told.tell(Verb.END)
        self.thread.join(30)
        assert not self.errors
        passes: Any = self.engine.executor
        return passes.passes.counts, self.follower.executor.passes.counts


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("small"))


def test_recordings_are_replayed_by_both(small: Path) -> None:
    """Drawn tokens, which the other rank can only have from rank 0; one of them was not foreseen."""
    expected = small_engine().run(walking(a_team_of(2), 6, {4: 3}, 1.0)).text
    recorders = Again(), Again()
    two = TwoRanks(small, recorders)
    assert two.engine.run(walking(a_team_of(2), 6, {4: 3}, 1.0)).text == expected
    ours, theirs = two.end()
    assert ours.recorded == theirs.recorded > 0
    assert ours.lookaheads > 0
    assert ours.dropped > 0
    assert recorders[0].num_replays == recorders[1].num_replays > 0


def noted_integers(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[torch.Tensor]]:
    """The integers by which each thread's recordings are made and repeated, tokens that were handed over included."""
    found: dict[int, list[torch.Tensor]] = {}
    prepared: Any = Prepared

    def noting(integers: torch.Tensor, *args: Any) -> Any:
        found.setdefault(threading.get_ident(), []).append(integers.clone())
        return prepared(integers, *args)

    monkeypatch.setattr(graph, "Prepared", noting)
    return found


def test_passes_of_a_crowd_are_begun_ahead_on_both(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose steps turn elsewhere at some passes: what was begun is fed by rank 0's device, in vain now and then."""
    integers = noted_integers(monkeypatch)
    alone = small_engine()
    expected = [alone.run(each) for each in turning()]
    recorders = Again(), Again()
    two = TwoRanks(small, recorders)
    runs = [two.engine.submit(each) for each in turning()]
    finish(two.engine, *runs)
    ours, _ = two.end()
    assert [run.result() for run in runs] == expected
    assert ours.planned_ahead > 6
    assert ours.in_vain > 0
    assert ours.replayed + ours.followed > 6, "most were recorded"
    assert recorders[0].num_replays == recorders[1].num_replays > 0
    both = list(integers.values())
    assert list(map(len, both)) == [recorders[0].num_replays + ours.recorded] * 2
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))


def never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recording serves any plan."""
    monkeypatch.setattr(PlanMatcher, "recorded", lambda *_: None)


def test_passes_without_a_recording_are_begun_ahead_on_both(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were not begun over ranks, as those of prompts beside rows that write, which no recording has."""
    never_recorded(monkeypatch)
    alone = small_engine()
    expected = [alone.run(each) for each in turning()]
    two = TwoRanks(small, (Again(), Again()))
    runs = [two.engine.submit(each) for each in turning()]
    finish(two.engine, *runs)
    ours, theirs = two.end()
    assert [run.result() for run in runs] == expected
    assert ours.planned_ahead > 6
    assert ours.in_vain > 0
    assert ours.eager == theirs.eager > ours.planned_ahead
    assert ours.recorded == ours.replayed == 0


@pytest.mark.parametrize("are_recorded", [True, False])
def test_control_a_rank_that_is_not_handed_the_tokens_is_noticed(
    are_recorded: bool, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told marks in their places, which say where on rank 0's device they lie."""
    if not are_recorded:
        never_recorded(monkeypatch)
    alone = small_engine()
    expected = [alone.run(each) for each in turning()]

    def keep(others: Together, tokens: torch.Tensor) -> None:
        if isinstance(others, ToldRanks):
            return
        torch.clamp_(tokens, min=0)  # as if a mark were the first token

    monkeypatch.setattr(Together, "hand_over", keep)
    two = TwoRanks(small, (Again(), Again()))
    runs = [two.engine.submit(each) for each in turning()]
    finish(two.engine, *runs)
    two.end()
    assert [run.result() for run in runs] != expected


@pytest.mark.parametrize(
    ("offset", "logit", "said"),
    [
        (0, 1.0, ""),
        (1, 1.0, "rank 1 has made a pass of other integers than rank 0"),
        (0, 1.0 + 2**-23, "rank 1 has other logits than rank 0, of equal integers"),
    ],
)
@pytest.mark.parametrize("compares", [True, False])
def test_control_what_ranks_compare_may_be_another(
    offset: int, logit: float, said: str, compares: bool
) -> None:
    """By one integer, or by the last bit of one number; all ranks end of it. Without being asked they compare nothing."""
    plan = merge_passes([Step([Row(View([Block()]), (1, 2, 3))])], 3).plan
    numbers = torch.tensor([[1.0, 1.0], [1.0, logit]])

    def launched(part: ThreadCollectives) -> str:
        is_last = part.rank == 1
        own = replace(plan, offsets=plan.offsets + (plan.offsets == 2) * offset * is_last)
        others = Together(part, CPU, compares=compares)
        try:
            others.launched(own, numbers if is_last else torch.ones(2, 2))
        except RanksFailed as error:
            return str(error)
        assert part.num_made == int(compares)
        return ""

    assert Meeting(2).run(launched) == [said if compares else ""] * 2


def test_the_head_of_a_pass_is_begun_on_both(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a step that ends a team alone has the head of its next pass begun; where another one ends then, no rest follows."""
    monkeypatch.setattr(capacities, "AHEAD", 8)
    recorders = Again(), Again()
    two = TwoRanks(small, recorders)
    two.engine.get_ready()
    assert live_alone(two.engine) == live_alone(small_engine())
    ours, _ = two.end()
    assert ours.heads >= ours.planned_ahead > 3
    assert ours.dropped > 2
    assert recorders[0].num_replays == recorders[1].num_replays > 0


def test_a_pass_that_was_begun_goes_with_the_recordings(small: Path) -> None:
    """Its logits are those of a recording, and a group of NCCL is not let go of while one is held."""
    two = TwoRanks(small, (Again(), Again()))
    for each in turning():
        two.engine.submit(each)
    executor: Any = two.engine.executor
    while not executor.has_begun:
        two.engine.step()
    executor.forget()
    assert not executor.has_begun
    assert executor.passes.recordings.num_graphs == 0
    two.end()


def test_recordings_of_a_network_that_came_back_are_dropped_by_both(small: Path) -> None:
    """They are told by their numbers, and those of the next ones begin anew: the other rank must not replay one of before."""
    expected = [small_engine().run(walking(a_team_of(n), 6, {4: 3})).text for n in (1, 2)]
    two = TwoRanks(small, (Again(), Again()))
    assert two.engine.run(walking(a_team_of(1), 6, {4: 3})).text == expected[0]
    executor: Any = two.engine.executor
    executor.adapter.model.double()
    executor.adapter.model.float()
    assert two.engine.run(walking(a_team_of(2), 6, {4: 3})).text == expected[1]
    passes: Any = two.follower.executor.passes
    assert passes.recordings.num_graphs == executor.passes.recordings.num_graphs > 0
    two.end()


class Settling(Again):
    settled = 0

    def recover(self) -> None:
        self.settled += 1


def test_what_is_not_recorded_waits_for_what_is(small: Path) -> None:
    """NCCL allows none of its calls beside a replay that is under way, and a guess that was wrong may be."""
    recorders = Settling(), Settling()
    two = TwoRanks(small, recorders)
    two.engine.run(walking(a_team_of(1), 3, {}))
    before = recorders[0].settled
    two.engine.run(counting(tuple(range(3, 15)), 1))  # a prompt: its pass is not recorded
    ours, theirs = two.end()
    assert ours.recorded == theirs.recorded > 0
    assert recorders[0].settled == recorders[1].settled == before + 1


@pytest.mark.parametrize("short", [None, 0, 1])
def test_what_one_rank_has_no_memory_to_spare_for_is_recorded_by_none(
    short: int | None, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording that one of them tried and could not make would be the last that is tried. The other one may be late: no rank is in a sum."""
    monkeypatch.setattr(told, "PATIENCE", 0.2)
    ahead = [(1, Wide.SMALL), (2, Wide.SMALL), (2, Wide.AMPLE)]
    monkeypatch.setattr(capacities, "kinds_ahead", lambda most, tiling: ahead)
    two = TwoRanks(small, (Again(), Again()))

    def free(device: torch.device) -> int:
        rank = int(threading.current_thread() is two.thread)
        if short is not None and rank != short:
            time.sleep(0.6)
        return capacities.SPARE - int(rank == short)

    monkeypatch.setattr(recordings, "free_bytes", free)
    two.engine.get_ready()
    passes: Any = two.engine.executor
    assert list(passes.passes.recordings.ahead) == ahead[: 3 if short is None else 2]
    assert passes.passes.recordings.trouble is None
    ours, theirs = two.end()
    assert ours.recorded == theirs.recorded == (3 if short is None else 2)


def test_a_wide_recording_that_a_plan_has_asked_for_before_keeps_its_number(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made a second time it would have a number that no recording has on the other rank."""
    monkeypatch.setattr(capacities, "kinds_ahead", lambda most, tiling: [(2, Wide.SMALL)])
    monkeypatch.setattr(capacities, "uncommon_capacities", lambda tiling: [])
    expected = small_engine().run(walking(a_team_of(2), 6, {4: 3})).text
    two = TwoRanks(small, (Again(), Again()))
    assert two.engine.run(walking(a_team_of(2), 6, {4: 3})).text == expected
    executor: Any = two.engine.executor
    (own,) = executor.passes.recordings.graphs
    monkeypatch.setattr(capacities, "wide_capacity", lambda *_: own)
    two.engine.get_ready()
    assert two.engine.run(walking(a_team_of(2), 6, {4: 3})).text == expected
    ours, theirs = two.end()
    assert ours.recorded == theirs.recorded == 1


class NoBuffer(Again):
    def host_buffer(self, rows: int, size: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")


def test_a_recording_that_one_rank_cannot_make_is_made_by_none(small: Path) -> None:
    expected = small_engine().run(walking(a_team_of(1), 3, {})).text
    two = TwoRanks(small, (Again(), NoBuffer()))
    assert two.engine.run(walking(a_team_of(1), 3, {})).text == expected
    ours, theirs = two.end()
    assert ours.recorded == theirs.recorded == 0
    assert two.engine.executor.about is not None
    assert two.engine.executor.about.endswith("rank 1 of 2: no room")


class FailsBehind(Again):
    """Its memory ends when all sums of the pass are made."""

    def record(self, work: Any = None) -> Any:
        found = super().record(work)
        if work is not None:
            raise torch.OutOfMemoryError("no room")
        return found


class Refuses(FailsBehind):
    """The same with an error of ours, which a pass would survive."""

    def record(self, work: Any = None) -> Any:
        try:
            return super().record(work)
        except torch.OutOfMemoryError:
            raise UnsupportedModel("no room") from None


class FailsInTheMidst(Again):
    """Its memory ends where the first part of the pass does; the other rank waits in a sum of the second one."""

    def record(self, work: Any = None) -> Any:
        if work is None:
            return None
        return work(self.fail)

    def fail(self) -> None:
        raise torch.OutOfMemoryError("no room")


@pytest.mark.parametrize("kind", [FailsBehind, Refuses])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_recording_that_one_rank_alone_cannot_end_is_given_up_by_all(
    failing: int, kind: type[Again], small: Path
) -> None:
    """They have made as many sums, so they are in step: passes go on launch by launch, and compare what they made."""
    expected = small_engine().run(walking(a_team_of(1), 6, {})).text
    recorders = [Again(), Again()]
    recorders[failing] = kind()
    two = TwoRanks(small, (recorders[0], recorders[1]))
    assert two.engine.run(walking(a_team_of(1), 6, {})).text == expected
    ours, theirs = two.end()
    assert ours.recorded == theirs.recorded == 0
    executor: Any = two.engine.executor
    other: Any = two.follower.executor
    assert (
        executor.passes.recordings.trouble
        == other.passes.recordings.trouble
        == f"rank {failing} of 2: no room"
    )


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_leaves_the_others_in_a_sum_ends_all_in_time(
    failing: int, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made its next sum, which was another one than theirs: they waited for ten minutes."""
    monkeypatch.setattr(told, "PATIENCE", 0.3)
    recorders = [Again(), Again()]
    recorders[failing] = FailsInTheMidst()
    two = TwoRanks(small, (recorders[0], recorders[1]))
    began = time.monotonic()
    with pytest.raises(
        RanksFailed, match=f"rank {failing} of 2 failed: .* trouble: no room"
    ) as found:
        two.engine.run(walking(a_team_of(1), 6, {}))
    assert time.monotonic() - began < 20
    assert "fewer memory_tokens" in found.value.hint
    two.meeting.abort()
    two.told.close()
    two.thread.join(30)
    assert not two.thread.is_alive()


def test_ranks_that_have_made_other_sums_do_not_go_on(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums through peers' memory are given up after a while: behind one nothing is a number, and the next would meet another one."""
    two = TwoRanks(small, (Again(), FailsBehind()))
    passes: Any = two.follower.executor
    passes.passes.others.collectives.num_made += 1
    with pytest.raises(RanksFailed, match=r"rank 0 of 2 failed: .* fewer sums than the others"):
        two.engine.run(walking(a_team_of(1), 6, {}))
    two.meeting.abort()
    two.told.close()
    two.thread.join(30)
