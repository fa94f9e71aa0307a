"""Lost ranks end the engine and not one run: a server must not go on that can make no pass."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Pipe
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed import distributed_c10d

from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.ranks import executor as executor_of_ranks
from manyhands.engine.ranks import follower as follower_of_ranks
from manyhands.engine.ranks import group as group_of_ranks
from manyhands.engine.ranks import world as world_of_ranks
from manyhands.engine.ranks.channel import FirstEnd, OtherEnd, Verb, ints_of
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.follower import Follower, follow
from manyhands.engine.ranks.world import World
from manyhands.engine.service import Service
from manyhands.errors import (
    InvalidRequest,
    ManyhandsError,
    RanksFailed,
    ServiceStopped,
    UnsupportedModel,
)
from manyhands.model.settings import ModelSettings
from tests.engine.small import counting, small_engine
from tests.waiting import soon

LOST = RanksFailed("rank 1 of 2 has ended; all ranks of the model were ended")
_made: list[World] = []


def are_over(before: set[threading.Thread]) -> bool:
    """Whether the threads that were not there before end. One that is just being started cannot be joined yet."""
    return soon(lambda: set(threading.enumerate()) <= before, 30)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """One that learns of the end of a pipe in the midst of another test would end the process of all tests, in its time."""
    before = set(threading.enumerate())
    yield
    for world in _made:
        with suppress(ManyhandsError):
            world.end()
    _made.clear()
    gc.collect()  # worlds that could not begin, and their pipes
    assert are_over(before)


def test_lost_ranks_are_no_runs_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = small_engine()
    executor: Any = engine.executor
    right, passes = executor.run, []

    def lost(*args: Any, **kwargs: Any) -> Any:
        passes.append(1)
        if len(passes) > 3:
            raise LOST
        return right(*args, **kwargs)

    monkeypatch.setattr(executor, "run", lost)
    runs = [engine.submit(counting((5, 6), 9)) for _ in range(2)]
    with pytest.raises(RanksFailed, match="rank 1 of 2 has ended"):
        any(not engine.step() for _ in range(20))
    assert len(passes) == 4, "it was not asked for again, run by run"
    assert not any(run.done for run in runs)


def test_a_service_stops_with_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = small_engine()

    def lost(*args: Any, **kwargs: Any) -> Any:
        raise LOST

    monkeypatch.setattr(engine.executor, "run", lost)
    with Service(engine) as service:
        handle = service.submit(counting((5, 6), 9))
        with pytest.raises((ServiceStopped, RanksFailed)):
            handle.result()
        with pytest.raises(ServiceStopped) as stopped:
            service.submit(counting((5, 6), 9))
        assert stopped.value.__cause__ is LOST


class Passes:
    """Passes that hold a recording."""

    def __init__(self, order: list[str]) -> None:
        self.order = order

    def forget(self) -> None:
        self.order.append("recordings go")


def test_recordings_go_before_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL waits in `destroy` for every graph that has recorded one of its sums."""
    order: list[str] = []
    for module in (world_of_ranks, follower_of_ranks):
        monkeypatch.setattr(module, "leave_group", lambda: order.append("the group goes"))
    monkeypatch.setattr(world_of_ranks, "join_group", lambda *_: None)
    ours, theirs = Pipe()
    has_a_device(theirs)
    world = World([ours], "cpu")
    passes = Passes(order)
    world.recorded.add(passes)
    world.end()
    assert order[:2] == ["recordings go", "the group goes"]

    order.clear()
    ours, theirs = Pipe()
    follower = Follower(OtherEnd(theirs, 1, 2))
    executor: Any = passes
    follower._executor = executor
    monkeypatch.setattr(follower_of_ranks, "Follower", lambda heard: follower)
    FirstEnd([ours]).tell(Verb.END)
    follow(follower.heard)
    assert order == ["recordings go", "the group goes"]


def has_a_device(theirs: Any) -> None:
    """The word of another rank before it joins the group."""
    OtherEnd(theirs, 1, 2).report(device="cpu")


def a_world(monkeypatch: pytest.MonkeyPatch) -> tuple[World, Any]:
    """Of two ranks, the other of which is a pipe that nothing reads."""
    monkeypatch.setattr(world_of_ranks, "join_group", lambda *_: None)
    monkeypatch.setattr(world_of_ranks, "leave_group", lambda: None)
    ours, theirs = Pipe()
    has_a_device(theirs)
    _made.append(World([ours], "cpu"))
    return _made[-1], theirs


def give_up(world: World) -> None:
    with world.whole():
        world.lost = "rank 1 of 2 has ended"
        raise ManyhandsError("the logits are no numbers")


def test_numbers_that_went_with_a_rank_are_a_lost_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that is given up is NaN: the engine would say so before it is known why."""
    world, _ = a_world(monkeypatch)
    with pytest.raises(ManyhandsError, match="no numbers"), world.whole():
        raise ManyhandsError("the logits are no numbers")
    with pytest.raises(RanksFailed, match="rank 1 of 2 has ended"):
        give_up(world)


def test_an_answer_is_not_waited_for_longer_than_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    world, theirs = a_world(monkeypatch)
    # With an answer in the end, so that a wait without a limit ends as well.
    late = threading.Timer(30.0, OtherEnd(theirs, 1, 2).report, kwargs={"late": True})
    late.start()
    try:
        with pytest.raises(TimeoutError, match=r"no answer in 0\.05 s"):
            world.answers(0.05)
    finally:
        late.cancel()
        world.end()


def test_ranks_work_for_the_process_that_has_started_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = a_world(monkeypatch)
    monkeypatch.setattr(world, "_process", world._process + 1)
    match = "a model over several ranks was made by process"
    with pytest.raises(InvalidRequest, match=match), world.whole():
        pytest.fail("its words would be heard between those of the original")


def test_a_rank_that_is_gone_before_it_loads_is_a_lost_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, theirs = a_world(monkeypatch)
    monkeypatch.setattr(world, "_ended", lambda *_: None)  # not yet seen when rank 0 tells it
    theirs.close()
    with pytest.raises(RanksFailed, match="all ranks of the model were ended"):
        RankedExecutor.on(world, ModelSettings("no model", device="cpu"))


def test_a_rank_that_is_gone_before_the_group_is_a_lost_rank_and_takes_no_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads that had been left to the other ranks were lost to the whole process."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    before, set_to = torch.get_num_threads(), list[int]()
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(RanksFailed, match="rank 1 of 2 has ended"):
        World([ours], "cpu")
    assert set_to == [3, before]


def test_a_group_of_somebody_else_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(world_of_ranks, "leave_group", lambda: pytest.fail("it is not ours"))
    set_to = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(InvalidRequest, match="in use in this process already"):
        World([ours], "cpu")
    assert set_to == []


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), LOST])
def test_an_error_inside_of_other_work_that_is_passed_over_ends_all(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a strategy does while a pass is made is suppressed: the others, left in the midst of it, would hear the next verb."""
    world, theirs = a_world(monkeypatch)
    while theirs.poll():
        theirs.recv_bytes()
    told = list[str]()

    def work() -> None:
        with world.whole():
            with suppress(Exception), world.whole():
                world.told.tell(Verb.REPLAY)
                raise error
            with suppress(OSError):
                world.told.tell(Verb.MOVE)
                told.append("more")

    with pytest.raises(RanksFailed, match=str(error)):
        work()
    assert told == []
    with pytest.raises(RanksFailed, match=str(error)), world.whole():
        pass


def test_an_error_of_ours_inside_of_other_work_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = a_world(monkeypatch)
    with world.whole(), suppress(InvalidRequest), world.whole():
        raise InvalidRequest("the network was converted")
    with world.whole():
        world.told.tell(Verb.MOVE)


def test_work_of_another_thread_is_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits."""
    world, _ = a_world(monkeypatch)
    order = list[str]()

    def beside() -> None:
        with world.whole():
            order.append("the other's work")

    thread = threading.Thread(target=beside)
    with world.whole():
        thread.start()
        time.sleep(0.1)
        order.append("this work")
    thread.join()
    assert order == ["this work", "the other's work"]


def test_close_waits_for_the_verb_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = a_world(monkeypatch)
    executor: Any = object.__new__(RankedExecutor)
    executor.world = world
    closing = threading.Thread(target=executor.close)
    with world.whole():
        closing.start()
        time.sleep(0.1)
        world.told.tell(Verb.MOVE)
    closing.join()


def test_a_load_that_is_interrupted_ends_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their answers would be taken for those to the next load."""
    world, _ = a_world(monkeypatch)

    def struck(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(executor_of_ranks, "load_part", struck)
    with pytest.raises(KeyboardInterrupt):
        RankedExecutor.on(world, ModelSettings("no model", device="cpu"))
    with pytest.raises(RanksFailed, match="rank 0 failed: KeyboardInterrupt"):
        world.check()


def test_a_load_that_is_interrupted_leaves_no_group_that_others_are_asked_to_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They load for minutes, perhaps: NCCL would wait for them, and the process was ended by force."""
    world, _ = a_world(monkeypatch)
    order = list[str]()
    on_a_gpu(monkeypatch, world, lambda: order.append("aborted"))
    monkeypatch.setattr(world_of_ranks, "leave_group", lambda: order.append("left"))

    def struck(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(executor_of_ranks, "load_part", struck)
    with pytest.raises(KeyboardInterrupt):
        RankedExecutor.on(world, ModelSettings("no model", device="cpu"))
    assert order == ["aborted", "left"]


def test_a_rank_that_cannot_have_its_device_is_said_before_the_group_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 waited in the group, where nothing reaches it, until its process was ended by force."""
    monkeypatch.setattr(world_of_ranks, "join_group", lambda *_: pytest.fail("nobody comes"))
    ours, theirs = Pipe()
    OtherEnd(theirs, 1, 2).report(failed="RuntimeError: CUDA error: device is busy", hint="wait")
    with pytest.raises(RanksFailed, match="rank 1 of 2 failed: RuntimeError: CUDA error") as found:
        World([ours], "cpu")
    assert found.value.hint == "wait"


@pytest.fixture
def late_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[str]]]:
    """A process group that is joined when the event is set, and what becomes of it. No thread that joins outlives the test."""
    comes, story = threading.Event(), list[str]()
    before = set(threading.enumerate())

    def joined(*_: object, **__: object) -> None:
        assert comes.wait(20)
        story.append("joined")

    monkeypatch.setattr(group_of_ranks, "Store", lambda *_, **__: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", joined)
    monkeypatch.setattr(group_of_ranks, "leave_group", lambda: story.append("left"))
    yield comes, story
    comes.set()
    assert are_over(before)


def test_a_group_that_comes_when_another_rank_is_gone_is_left(
    late_group: tuple[threading.Event, list[str]],
) -> None:
    """Or no other model could be loaded in this process."""
    comes, story = late_group

    def check() -> None:
        raise LOST

    with pytest.raises(RanksFailed) as found:
        group_of_ranks.join_group("gloo", 0, 0, 2, torch.device("cpu"), check)
    assert found.value is LOST
    assert not story
    comes.set()
    ends = time.monotonic() + 10
    while len(story) < 2 and time.monotonic() < ends:
        time.sleep(0.01)
    assert story == ["joined", "left"]


def test_another_rank_that_joins_sees_that_rank_0_is_gone(
    late_group: tuple[threading.Event, list[str]],
) -> None:
    """Under torchrun nothing else ends it. A message that waits is no end, and stays."""
    ours, theirs = Pipe()
    heard = OtherEnd(theirs, 1, 2)
    heard.check()
    FirstEnd([ours]).tell(Verb.JOIN, ints_of("gloo"), np.array([1]))
    heard.check()
    follower = Follower(heard)
    threading.Timer(0.1, ours.close).start()
    with pytest.raises(EOFError):
        follower.obey(*heard.next())
    late_group[0].set()


def test_an_error_of_ours_in_a_pass_that_is_begun_ahead_is_a_lost_rank() -> None:
    """The others have been told, and wait in its sums."""

    def begin(*_: object) -> None:
        raise InvalidRequest("it cannot be")

    executor: Any = object.__new__(RankedExecutor)
    executor.passes = SimpleNamespace(begin=begin)
    with pytest.raises(RanksFailed, match="it cannot be"):
        executor._begun_pass(None, None)


def test_a_network_of_uneven_numbers_is_a_lost_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait in the midst of the pass that failed here: it was an error of ours, and they were left there."""
    executor: Any = object.__new__(RankedExecutor)
    executor.adapter = SimpleNamespace(
        model=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    )
    executor.passes = SimpleNamespace(
        run=lambda plan, targets: executor.adapter.model(torch.ones(2))
    )
    with pytest.raises(RanksFailed, match="part is of other numbers"):
        executor._passed(None)


@pytest.mark.parametrize("verb", ["pass", "replay", "write_keys"])
def test_an_error_of_ours_behind_the_telling_is_a_lost_rank(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait in a sum of it, and rank 0 would go on to the next verb."""
    world, _ = a_world(monkeypatch)
    executor: Any = object.__new__(RankedExecutor)
    executor.world = world

    def refuses(*_: Any, **__: Any) -> None:
        raise UnsupportedModel("it was called without its hook")

    executor._check_place = lambda **_: None
    monkeypatch.setattr(executor_of_ranks, "pack_merged", lambda _: [])
    for name in ("_passed", "replay", "write_keys"):
        monkeypatch.setattr(LocalExecutor, name, refuses)
    at = np.arange(3)
    ask: dict[str, Callable[[], object]] = {
        "pass": lambda: executor._passed(None),
        "replay": lambda: executor.replay(None),
        "write_keys": lambda: executor.write_keys(None, at, (at, at)),
    }
    with pytest.raises(RanksFailed, match="rank 0: it was called without"), world.whole():
        ask[verb]()
    with pytest.raises(RanksFailed):
        world.check()


AT = np.arange(3)
# Each verb, asked for, and what the other ranks hear of it here; what passes are is told from within (`told.py`).
VERBS: dict[str, tuple[Callable[[Any], object], Verb | None]] = {
    "run": (lambda executor: executor.run(None), None),
    "go_on": (lambda executor: executor.go_on((), ()), None),
    "record_ahead": (lambda executor: executor.record_ahead(lambda done, whole: None), None),
    "logits": (lambda executor: executor.logits(None), None),
    "move": (lambda executor: executor.move([]), Verb.MOVE),
    "write_keys": (lambda executor: executor.write_keys(None, AT, (AT, AT)), Verb.WRITE_KEYS),
    "replay": (lambda executor: executor.replay(None), Verb.REPLAY),
    "make_up": (lambda executor: executor.make_up((AT, AT), 1), Verb.MAKE_UP),
    "fingerprint": (lambda executor: executor.fingerprint(), Verb.FINGERPRINT),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_told_first_and_made_as_a_whole(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of a whole, an interrupt or another thread's verb comes between what is told and what is made."""
    world, theirs = a_world(monkeypatch)
    ask, expected = VERBS[verb]
    heard = OtherEnd(theirs, 1, 2)
    assert heard.next()[0] is Verb.JOIN
    executor: Any = object.__new__(RankedExecutor)
    executor.world = world
    executor._check_place = lambda **_: None
    made = list[bool]()

    def make(*_: Any, **__: Any) -> None:
        made.append(world._in_verb.is_set())
        assert heard.comes(0.0) is (expected is not None)

    for name in ("pack_merged", "pack_moves"):
        monkeypatch.setattr(executor_of_ranks, name, lambda _: [])
    monkeypatch.setattr(executor_of_ranks, "fingerprint_of_all", make)
    for name in VERBS:
        monkeypatch.setattr(LocalExecutor, name, make)
    ask(executor)
    assert made == [True]
    assert not world._in_verb.is_set()
    if expected is not None:
        assert heard.next()[0] is expected
    assert not heard.comes(0.0)


def test_ranks_that_are_lost_while_a_run_comes_back_are_no_runs_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = small_engine(320, overcommit=4)

    def lost(*args: Any, **kwargs: Any) -> Any:
        raise LOST

    monkeypatch.setattr(engine.executor, "write_keys", lost)
    runs = [engine.submit(counting(tuple(range(3, 9 + n)), 20 + 2 * n)) for n in range(12)]
    with pytest.raises(RanksFailed, match="rank 1 of 2 has ended"):
        any(not engine.step() for _ in range(400))
    assert engine.num_preemptions > 0
    assert not any(isinstance(run.outcome, RanksFailed) for run in runs)


class Recorded(Passes):
    """Passes whose recordings NCCL waits for."""

    def __init__(self) -> None:
        super().__init__([])
        self.gone = threading.Event()

    def forget(self) -> None:
        self.gone.set()


def waits_for(event: threading.Event, world: World, freed: list[bool]) -> None:
    with world.whole():
        world._ended(1, "")
        freed.append(event.wait(20))
        raise RuntimeError("NCCL communicator was aborted")


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, world: World, abort: Callable[[], None]) -> None:
    """As if the ranks had GPUs, NCCL aborted so, and waits were short: none of those behind which a process ends by force."""
    world.device = torch.device("cuda")
    monkeypatch.setattr(distributed_c10d, "_abort_process_group", abort)
    for name, seconds in (("_PATIENCE", 0.1), ("_SETTLED", 0.1)):
        monkeypatch.setattr(world_of_ranks, name, seconds)
    monkeypatch.setattr(world_of_ranks, "GRACE", 0.1)


def test_a_verb_that_waits_for_the_abort_sets_its_recordings_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The abort waits for the recordings, the verb for the abort: seen on two GPUs, where it hung."""
    world, _ = a_world(monkeypatch)
    passes, aborted, freed = Recorded(), threading.Event(), list[bool]()
    world.recorded.add(passes)

    def abort() -> None:
        passes.gone.wait()
        aborted.set()

    on_a_gpu(monkeypatch, world, abort)
    codes = list[int]()
    monkeypatch.setattr(os, "_exit", codes.append)  # else it would end pytest
    with pytest.raises(RanksFailed, match="rank 1 of 2 has ended"):
        waits_for(aborted, world, freed)
    assert freed == [True]
    assert not codes


class Graph:
    """A recording, as the frames of a pass hold it."""

    def follow(self) -> None:
        raise BrokenPipeError("the other rank's pipe is closed")


class Replaying(Passes):
    """Passes whose recording NCCL waits for, and which find that a rank is gone while they tell it."""

    def __init__(self) -> None:
        super().__init__([])
        self.graphs = [Graph()]

    def forget(self) -> None:
        self.graphs.clear()

    def follow(self) -> None:
        graph = self.graphs[0]
        try:
            graph.follow()
        except BrokenPipeError as error:
            raise RuntimeError("the pass cannot be made") from error


def follows(world: World, passes: Replaying, *, is_seen: bool) -> None:
    with world.whole():
        if is_seen:
            world._ended(1, "")
        passes.follow()


@pytest.mark.parametrize("is_seen", [True, False], ids=["end seen", "own error"])
def test_recordings_go_out_of_the_frames_of_an_error(
    is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The abort waits for the recording, which the error's frames hold while the world ends.

    Also where rank 0 learns of it by its own error: a group is not left before it is aborted.
    """
    world, _ = a_world(monkeypatch)
    passes, order = Replaying(), list[str]()
    graph = weakref.ref(passes.graphs[0])
    world.recorded.add(passes)
    forced = threading.Event()

    def abort() -> None:
        while graph() is not None and not forced.is_set():
            time.sleep(0.01)
        order.append("aborted")

    on_a_gpu(monkeypatch, world, abort)
    monkeypatch.setattr(os, "_exit", lambda code: forced.set())
    monkeypatch.setattr(world_of_ranks, "leave_group", lambda: order.append("left"))
    with pytest.raises(RanksFailed, match=r"rank 1 of 2 has ended|rank 0 failed"):
        follows(world, passes, is_seen=is_seen)
    assert order == ["aborted", "left"]
    assert not forced.is_set()


def test_an_error_of_ours_of_a_lost_rank_lets_its_recordings_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbers that went with the rank are found in the midst of a pass, whose frames hold its recording."""
    world, _ = a_world(monkeypatch)
    graph, is_held = list[weakref.ref[Graph]](), list[bool]()
    on_a_gpu(monkeypatch, world, lambda: is_held.append(graph[0]() is not None))

    def reads() -> None:
        replayed = Graph()
        graph.append(weakref.ref(replayed))
        world.lost = "rank 1 of 2 has ended"
        raise ManyhandsError("the logits are no numbers")

    with pytest.raises(RanksFailed, match="rank 1 of 2 has ended"), world.whole():
        reads()
    assert is_held == [False]


def test_a_rank_that_leaves_when_it_is_told_to_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pipe ends while rank 0 leaves the group: an abort in the midst of that is none of an end that all agree on."""
    world, theirs = a_world(monkeypatch)
    aborted = list[bool]()
    on_a_gpu(monkeypatch, world, lambda: aborted.append(True))

    def leave() -> None:
        theirs.close()
        time.sleep(0.5)

    monkeypatch.setattr(world_of_ranks, "leave_group", leave)
    world.end()
    assert aborted == []
    with pytest.raises(RanksFailed, match="were ended already"):
        world.check()


def test_what_ends_with_a_rank_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a failed rank come its words and then the end of its pipe; two threads would drop recordings at the same time."""
    world, theirs = a_world(monkeypatch)
    given_up, both = list[str](), threading.Event()
    monkeypatch.setattr(world, "_give_up", lambda: given_up.append(threading.current_thread().name))
    right = world._ended

    def ended(rank: int, reason: str) -> None:
        right(rank, reason)
        if len(world._ends) == 2:
            both.set()

    monkeypatch.setattr(world, "_ended", ended)
    OtherEnd(theirs, 1, 2).report(failed="it has had enough")
    theirs.close()
    assert both.wait(10)
    time.sleep(0.1)
    assert len(given_up) == 1
    world.end()


def test_an_end_that_does_not_come_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks are there, and the group is never left: no wait is without a limit."""
    world, _ = a_world(monkeypatch)
    forced = threading.Event()
    codes = list[int]()
    monkeypatch.setattr(world_of_ranks, "LONGEST_END", 0.1)
    monkeypatch.setattr(world_of_ranks, "leave_group", lambda: forced.wait(20) and None)
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), forced.set()))
    world.end()
    assert codes == [RanksFailed.exit_code]
    assert "have not ended in 0.1 s" in capsys.readouterr().err


def test_a_device_that_cannot_be_freed_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world, _ = a_world(monkeypatch)
    codes, freed = list[int](), list[bool]()
    forced = threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        forced.set()

    monkeypatch.setattr(os, "_exit", leave)
    on_a_gpu(monkeypatch, world, lambda: forced.wait(20) and None)  # type: ignore[arg-type]
    monkeypatch.setattr(world_of_ranks, "LONGEST_END", 0.5)
    with pytest.raises(RanksFailed):
        waits_for(forced, world, freed)
    assert freed == [True]
    assert {*codes} == {RanksFailed.exit_code}
    assert "rank 1 of 2 has ended" in capsys.readouterr().err
