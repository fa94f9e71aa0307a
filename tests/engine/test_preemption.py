"""Runs that leave memory and come back: no run's tokens change, and every run ends.

A run is preempted at chosen passes, or by a pool that is too small for all; what it reports must be, to
the last token, what it reports alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.preemption import Preemption, _Ledger
from manyhands.engine.run import Run, RunState, new_queues
from manyhands.errors import InvalidRequest, OutOfMemory
from manyhands.prompts import BranchPrompt
from manyhands.strategies.base import Answer, Reserve, Strategy
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.branches import branches
from manyhands.strategies.events import Event
from manyhands.strategies.settings import BranchSettings, SharedSettings
from manyhands.strategies.shared_prefix import Completions, shared_prefix
from tests.engine.small import (
    LETTERS,
    SHORT_END,
    TEXT,
    counting,
    cut_team,
    executor_of,
    finish,
    small_engine,
    solo,
    story,
    story_of,
    team,
)

SAMPLED = Choice(temperature=1.0, top_p=0.95, allowed=LETTERS)
GREEDY = Choice(allowed=LETTERS)
HASHES = Choice(temperature=1.0, allowed=frozenset(TEXT.encode("#")[:1] + TEXT.encode("a:")))
Make = Callable[[], Strategy]


def branching(join: str) -> Strategy:
    settings = BranchSettings(
        budget=60,
        join=join,
        branch_tokens=8,
        max_branches=3,
        choice=HASHES,
        seed=1,
        snapshots=(9,),
        end=SHORT_END,
    )
    return branches("What is it?", TEXT, settings, BranchPrompt("Q: {question}"))


def kinds() -> dict[str, Make]:
    """Strategies of every kind, each made anew when called."""
    made: dict[str, Make] = {
        "combined": lambda: team(3, choice=SAMPLED, seed=1, snapshots=(9,)),
        "combined, greedy": lambda: team(2, choice=GREEDY),
        "contiguous": lambda: team(2, choice=SAMPLED, seed=2, layout="contiguous"),
        "interleaved": lambda: team(2, choice=SAMPLED, seed=3, layout="interleaved"),
        "cut steps": lambda: cut_team(seed=3),
        "cut steps, contiguous": lambda: cut_team(seed=3, layout="contiguous"),
        "sequential": lambda: solo(choice=SAMPLED, seed=4),
        "sequential, greedy": lambda: solo(choice=GREEDY),
        "plain": lambda: counting((5, 6, 7), 25),
    }
    for join in JOINS:
        made[f"branches, {join}"] = lambda join=join: branching(join)  # type: ignore[misc]  # a loop's
    return made


KINDS = kinds()


def unbounded(strategy: Strategy) -> Strategy:
    """The same strategy, which does not say how much memory it may need."""
    tokens: tuple[int, ...] | None = None
    try:
        while True:
            try:
                asked = strategy.send(tokens)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            tokens = None if isinstance(asked, Reserve) else (yield asked)
    finally:
        strategy.close()


def preempt(engine: Engine) -> bool:
    """Preempt the youngest run that can leave, as a pass without room would."""
    return engine._scheduler.preemption.preempt()


def is_preempted(run: Run) -> bool:
    return run.state is RunState.PREEMPTED


def everything_is_free(engine: Engine) -> bool:
    return engine.pool.num_free_pages == engine.pool.num_pages


@pytest.fixture(scope="module")
def stories() -> dict[str, list[Event | Answer]]:
    """Every kind of run, alone on an engine."""
    engine = small_engine()
    return {name: story(engine, make()) for name, make in KINDS.items()}


@pytest.fixture(scope="module")
def company() -> list[Event | Answer]:
    """A run that is longer than all of them."""
    return story(small_engine(), counting((9, 8, 7), 200))


@pytest.mark.parametrize("name", KINDS)
def test_a_run_comes_back_wherever_it_left(
    name: str, stories: dict[str, list[Event | Answer]], company: list[Event | Answer]
) -> None:
    """Preempted every few passes, in the company of one that never is."""
    engine = small_engine()
    first = engine.submit(counting((9, 8, 7), 200))
    engine.step()
    run = engine.submit(unbounded(KINDS[name]()))
    passes = 0
    while not run.done:
        engine.step()
        passes += 1
        if passes % 5 == 2 and preempt(engine):
            assert is_preempted(run)
    assert not first.done
    assert story_of(run) == stories[name]
    assert run.num_preemptions >= 4
    if name == "plain":
        finish(engine, first)
        assert story_of(first) == company
    else:
        engine.cancel(first)
        assert list(first.events) == company[: len(first.events)]
    assert first.num_preemptions == 0
    assert everything_is_free(engine)


def test_a_preempted_run_needs_no_pages_and_waits_for_room() -> None:
    engine = small_engine(memory_tokens=160)  # 10 pages
    alone = story(engine, counting((2,) * 30, 40))
    first = engine.submit(counting((1,) * 60, 60))
    second = engine.submit(counting((2,) * 30, 40))
    seen = False
    while not first.done:
        engine.step()
        if is_preempted(second):
            seen = True
            events = len(second.events)
            num_fed = 60 + len(first.events) - 1
            assert engine.pool.num_free_pages == 10 - -(-num_fed // 16) or first.done
    assert seen
    assert events == len(second.events) < 40
    finish(engine, second)
    assert story_of(second) == alone
    assert second.num_preemptions == 1
    assert everything_is_free(engine)


def test_the_oldest_is_never_preempted_and_the_youngest_first() -> None:
    engine = small_engine(memory_tokens=320)
    runs = [engine.submit(counting((i,) * 20, 60)) for i in range(1, 7)]
    while not all(run.done for run in runs):
        oldest = next(run for run in runs if not run.done)
        engine.step()
        preempted = [is_preempted(run) for run in runs if not run.done]
        assert preempted == sorted(preempted), "preempted runs are younger than all others"
        assert not is_preempted(oldest)
    assert runs[0].num_preemptions == 0
    assert sum(run.num_preemptions for run in runs) > 0
    assert everything_is_free(engine)


def test_reservations_beyond_memory_make_preemptible_runs() -> None:
    """Three that may need most of it, and need little: none has to wait, none has to leave."""

    def modest(i: int) -> Strategy:
        return counting((i,), 10, Reserve(100, 1))

    engine = small_engine(memory_tokens=160, overcommit=3)
    runs = [engine.submit(modest(i)) for i in range(3)]
    engine.step()
    assert [bool(run.events) for run in runs] == [True] * 3
    assert [run.is_preemptible for run in runs] == [False, True, True]
    finish(engine, *runs)
    assert sum(run.num_preemptions for run in runs) == 0
    strict = small_engine(memory_tokens=160)
    runs = [strict.submit(modest(i)) for i in range(3)]
    strict.step()
    assert [bool(run.events) for run in runs] == [True, False, False]


def test_a_preemptible_run_may_be_promised_more_than_is_left() -> None:
    """It can leave for it. A run that is certain cannot, and waits."""

    def growing(size: int) -> Strategy:
        yield Reserve(size, 1)
        return (yield from counting((1,), 5, Reserve(100, 1)))

    engine = small_engine(memory_tokens=160, overcommit=3)
    first = engine.submit(counting((1,), 20, Reserve(100, 1)))
    second = engine.submit(growing(20))
    for _ in range(3):
        engine.step()
    assert (second.is_preemptible, second.asked) == (True, None)
    assert not first.done
    finish(engine, first, second)
    engine = small_engine(memory_tokens=160, overcommit=3)
    first, second = engine.submit(growing(20)), engine.submit(counting((1,), 20, Reserve(100, 1)))
    for _ in range(3):
        engine.step()
    assert (first.is_preemptible, first.asked is None) == (False, False)
    finish(engine, first, second)


class Keeping:
    """Of kept blocks that some run reads."""

    num_pages_in_use = 0


@pytest.mark.parametrize(
    ("kept", "pages", "shared", "may"),
    [
        *((2, 8, 0, True), (3, 8, 0, False), (3, 1, 0, True), (4, 1, 0, False), (2, 3, 1, True)),
        *((2, 3, 2, False), (0, 10, 3, True), (0, 10, 4, False), (0, 11, 0, False)),
    ],
)
def test_what_any_run_reserved_fits_beside_the_prefixes_in_use(
    kept: int, pages: int, shared: int, may: bool
) -> None:
    """Though more is promised than there is: ten pages, of which a run that is certain has seven."""
    pool, queues = PagePool(10), new_queues()
    keeper: Any = Keeping()
    pool.keepers[keeper] = None
    books = Preemption(pool, lambda past, blocks: None, 3.0, queues)
    certain, new = (Run(counting((1,), 5), queues) for _ in range(2))
    books.reserve(certain, 7)
    books.admit(certain)
    assert not certain.is_preemptible
    keeper.num_pages_in_use = kept
    assert books.may_have(new, pages, shared) is may


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), max_size=6), order=st.randoms(use_true_random=False))
def test_the_sums_of_a_ledger_are_those_of_its_runs(sizes: list[int], order: random.Random) -> None:
    ledger = _Ledger(10)
    runs: list[Any] = [
        SimpleNamespace(age=age, reserved_pages=size) for age, size in enumerate(sizes)
    ]
    new: Any = SimpleNamespace(age=None, reserved_pages=max(sizes, default=3))
    for each in runs:
        ledger.add(each)
    order.shuffle(runs)
    while True:
        assert ledger.num_runs == len(runs)
        assert ledger.num_reserved == sum(each.reserved_pages for each in runs)
        assert ledger.bound == sum(each.reserved_pages or 10 for each in runs)
        for run in (new, *runs):
            others = [each.reserved_pages for each in runs if each is not run]
            assert ledger.largest_besides(run) == max(others, default=0)
        if not runs:
            return
        ledger.remove(runs.pop())


def test_runs_that_fit_together_are_not_followed() -> None:
    engine = small_engine(overcommit=2)
    runs = [engine.submit(counting((i,), 5, Reserve(100, 1))) for i in range(4)]
    engine.step()
    assert not any(run.is_preemptible for run in runs)


def test_a_preemptible_run_becomes_certain_when_those_before_it_are_gone() -> None:
    engine = small_engine(memory_tokens=160, overcommit=2)
    first, second = (engine.submit(counting((1,), n, Reserve(100, 1))) for n in (3, 20))
    engine.step()
    assert second.is_preemptible
    finish(engine, first)
    assert not second.is_preemptible
    finish(engine, second)  # type: ignore[unreachable]


def test_the_oldest_becomes_certain_when_it_comes_back_though_the_next_one_cannot() -> None:
    engine = small_engine(memory_tokens=160)  # 10 pages
    first, second, third = (
        engine.submit(counting((i,) * size, num))
        for i, size, num in ((1, 1, 2), (2, 44, 20), (3, 90, 5))
    )
    engine.step()
    assert preempt(engine)
    assert preempt(engine)
    blocks = [Block(), Block()]
    engine.pool.reserve([(blocks[0], 16 * 2), (blocks[1], 16 * 6)])
    finish(engine, first)
    assert not second.num_passes > 1
    del blocks[1]
    engine.step()
    assert (second.state, third.state) == (RunState.RUNNING, RunState.PREEMPTED)
    assert not second.is_preemptible, "it is followed in vain"
    del blocks
    finish(engine, second, third)


def test_no_new_run_overtakes_a_preempted_one() -> None:
    engine = small_engine(memory_tokens=160, overcommit=2)
    first = engine.submit(counting((1,) * 60, 60, Reserve(120, 1)))
    second = engine.submit(counting((2,) * 30, 60, Reserve(90, 1)))
    while not is_preempted(second):
        assert engine.step()
    third = engine.submit(counting((3,), 3, Reserve(16, 1)))
    while not first.done:
        engine.step()
        assert second.done or not third.events or not is_preempted(second)
    finish(engine, second, third)
    assert third.result().text


def test_a_run_that_fits_in_part_leaves_all_of_it() -> None:
    """Its prompt is fed in chunks; those that still fitted hold no page while it is preempted."""
    engine = small_engine(memory_tokens=160, max_tokens_per_pass=16)  # 10 pages
    whole = small_engine(memory_tokens=160)
    alone = [story(whole, counting((1,) * 20, 120)), story(whole, counting((2,) * 150, 5))]
    first = engine.submit(counting((1,) * 20, 120))
    engine.step()
    second = engine.submit(counting((2,) * 150, 5))
    while not is_preempted(
        second
    ):  # a part of its prompt in each pass, beside the first one's token
        assert not second.num_passes
        engine.step()
    held = -(
        -(20 + first.num_passes) // 16
    )  # pages of the first one, which fed its newest token in that pass
    assert engine.pool.num_free_pages >= 10 - held
    assert second.num_preemptions == 1, "it had begun"
    finish(engine, first, second)
    assert [story_of(first), story_of(second)] == alone
    assert everything_is_free(engine)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[bool, int, float, int, list[tuple[str, int]]]:
    """Whether they reserve, pages, overcommit, tokens per pass, and who comes when.

    Each of them fits alone. Half of the time nobody says how much it needs, which is much less.
    """
    reserve = draw(st.booleans())
    return (
        reserve,
        draw(st.integers(150, 200) if reserve else st.integers(72, 110)),
        draw(st.sampled_from([1.5, 4.0])),
        draw(st.sampled_from([3, 5, 20, 60, 8192])),
        draw(
            st.lists(
                st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 6)), min_size=3, max_size=7
            )
        ),
    )


@settings(max_examples=6, deadline=None, derandomize=True)
@given(crowd=crowds())
def test_any_crowd_in_little_memory(
    stories: dict[str, list[Event | Answer]], crowd: tuple[bool, int, float, int, list[Any]]
) -> None:
    reserve, num_pages, overcommit, num_tokens, coming = crowd
    engine = small_engine(16 * num_pages, overcommit, max_tokens_per_pass=num_tokens)
    runs: list[Run] = []
    for name, pause in coming:
        strategy = KINDS[name]()
        runs.append(engine.submit(strategy if reserve else unbounded(strategy)))
        for _ in range(pause):
            engine.step()
    for _ in range(3000):
        if not engine.step():
            break
    for (name, _), run in zip(coming, runs, strict=True):
        assert story_of(run) == stories[name], name
    assert everything_is_free(engine)


def prompts_of(seed: int, count: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    head = tuple(rng.randrange(50) for _ in range(40))
    return [(*head, *(rng.randrange(50) for _ in range(rng.randint(1, 30)))) for _ in range(count)]


@pytest.mark.parametrize(("num_pages", "overcommit"), [(29, 4), (35, 4), (400, 40)])
def test_shared_prefixes_stay_when_their_readers_leave(num_pages: int, overcommit: int) -> None:
    settings = SharedSettings(max_tokens=40, choice=SAMPLED, prefill=17)
    prompts = prompts_of(1, 8)
    roomy = small_engine()
    alone = roomy.run_all(shared_prefix([p], TEXT, settings) for p in prompts)
    engine = small_engine(memory_tokens=16 * num_pages, overcommit=overcommit)
    runs = []
    for prompt in prompts:
        strategy = shared_prefix([prompt], TEXT, settings, tree=engine.prefixes)
        runs.append(engine.submit(strategy))
    passes = 0
    while engine.step():
        passes += 1
        if num_pages == 400 and passes % 4 == 0:
            preempt(engine)
    assert [tokens_of(run.result()) for run in runs] == [tokens_of(answer) for answer in alone]
    assert sum(run.num_preemptions for run in runs) > 0
    engine.prefixes.clear()
    assert everything_is_free(engine)


def tokens_of(answer: Answer) -> list[tuple[int, ...]]:
    assert isinstance(answer, Completions)
    return [each.tokens for each in answer.completions]


def test_a_writer_of_a_prefix_that_leaves_and_is_cancelled_leaves_nothing_half_written() -> None:
    settings = SharedSettings(max_tokens=8, choice=SAMPLED, prefill=9)
    prompt = prompts_of(2, 1)[0]
    engine = small_engine(overcommit=4)
    alone = engine.run(shared_prefix([prompt], TEXT, settings))
    first = engine.submit(counting((1,), 30))
    writer = engine.submit(unbounded(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes)))
    reader = engine.submit(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))
    engine.step()
    engine.step()
    preemption = engine._scheduler.preemption
    assert preemption._preempt(writer, preemption._readers())
    assert writer.num_preemptions == 1
    engine.cancel(writer)
    finish(engine, first, reader)
    assert tokens_of(reader.result()) == tokens_of(alone)


def test_a_preempted_run_can_be_cancelled() -> None:
    engine = small_engine()
    first, second = engine.submit(counting((1,), 20)), engine.submit(counting((2,) * 40, 20))
    engine.step()
    assert preempt(engine)
    engine.cancel(second)
    finish(engine, first)
    assert everything_is_free(engine)
    assert not engine.step()
    with pytest.raises(InvalidRequest, match="was cancelled"):
        second.result()


def test_closing_a_stream_of_a_preempted_run() -> None:
    engine = small_engine()
    first = engine.submit(counting((1,), 20))
    engine.step()
    stream = engine.stream(counting((2,) * 40, 20))
    next(stream)
    assert preempt(engine)
    stream.close()  # type: ignore[attr-defined]  # a generator, promised only as an iterator
    finish(engine, first)
    assert everything_is_free(engine)


def test_a_network_that_fails_while_a_run_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = small_engine()
    alone = [story(engine, counting((i,) * 20, 30)) for i in (1, 2)]
    runs = [engine.submit(counting((i,) * 20, 30)) for i in (1, 2)]
    for _ in range(4):
        engine.step()
    assert preempt(engine)
    free = engine.pool.num_free_pages

    def fail(*_: object) -> None:
        raise RuntimeError("the device is on fire")

    with monkeypatch.context() as broken:
        broken.setattr(executor_of(engine).adapter, "forward", fail)
        with pytest.raises(RuntimeError, match="on fire"):
            engine.step()
    assert is_preempted(runs[1])
    assert engine.pool.num_free_pages == free
    finish(engine, *runs)
    assert [story_of(run) for run in runs] == alone


def test_a_device_without_room_for_the_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that returns is told, and may go on; it still does not read what is not there."""

    told: list[str] = []

    def careful() -> Generator[Any, Any, Answer]:
        view = View([Block()])
        (token,) = yield Step([Row(view, (1,) * 20)])
        try:
            (token,) = yield Step([Row(view, (token,))])
        except OutOfMemory as error:
            told.append(str(error))
            (token,) = yield Step([Row(view, (token,))])
        return Answer(text=str(token))

    engine = small_engine()
    alone = engine.run(careful())
    first, second = engine.submit(counting((1,), 20)), engine.submit(careful())
    engine.step()
    assert preempt(engine)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no more")

    with monkeypatch.context() as broken:
        broken.setattr("manyhands.replay.forward.Replay.logits", fail)
        engine.step()
    assert is_preempted(second)
    assert "no room for the forward over 20 tokens" in told[0]
    finish(engine, first, second)
    assert second.result() == alone
    assert everything_is_free(engine)


def test_a_run_that_alone_does_not_fit_preempts_no_other() -> None:
    engine = small_engine(memory_tokens=160)
    first = engine.submit(counting((1,) * 20, 20))
    second = engine.submit(counting((2,) * 20, 20))
    engine.step()
    third = engine.submit(counting((3,) * 161, 20))
    finish(engine, first, second, third)
    with pytest.raises(OutOfMemory, match="needs 11 pages"):
        third.result()
    assert second.num_preemptions == 0
    assert first.result().text
    assert second.result().text


@pytest.mark.parametrize("num_pages", [60, 72, 84])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_in_eight_bits_a_run_that_reserves_stays(kv_cache_dtype: str, num_pages: int) -> None:
    """Its keys would be rounded once less than they were. Runs that reserve nothing leave in its place, and come back."""
    alone = story(small_engine(kv_cache_dtype=kv_cache_dtype), KINDS["combined"]())
    engine = small_engine(16 * num_pages, kv_cache_dtype=kv_cache_dtype)
    careless = [engine.submit(counting((9, 8, 7 + i) * 60, 300)) for i in range(4)]
    engine.step()
    run = engine.submit(KINDS["combined"]())
    finish(engine, *careless, run)
    assert story_of(run) == alone
    assert sum(each.num_preemptions for each in careless) >= 2
    for each in careless:
        each.result()
    if kv_cache_dtype == "int8":
        assert run.num_preemptions == 0
    else:
        assert run.num_preemptions >= 1, "control"
    assert everything_is_free(engine)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_run_that_reserves_nothing_leaves_though_it_came_first(
    kv_cache_dtype: str, is_alone: bool
) -> None:
    """Alone from the beginning on, or since the one before it has ended."""
    alone = story(small_engine(kv_cache_dtype=kv_cache_dtype), counting((1,) * 20, 60))
    engine = small_engine(16 * 12, kv_cache_dtype=kv_cache_dtype)
    before = engine.submit(counting((5,), 1)) if not is_alone else None
    first = engine.submit(counting((9, 8, 7) * 20, 100))
    engine.step()
    assert before is None or before.done
    engine.step()
    others = [engine.submit(counting((1,) * 20, 60, Reserve(80, 1))) for _ in range(2)]
    finish(engine, first, *others)
    assert len(first.result().text.split()) == 100
    assert [story_of(run) for run in others] == [alone, alone]
    preempted = [run.num_preemptions > 0 for run in (first, *others)]
    assert preempted == ([False, True, True] if kv_cache_dtype == "auto" else [True, False, False])
    assert everything_is_free(engine)


def test_in_eight_bits_a_run_may_reserve_late_and_the_one_before_it_leaves() -> None:
    def late() -> Strategy:
        yield Step([Row(View([Block()]), (1, 2))])
        return (yield from counting((1,) * 20, 60, Reserve(80, 1)))

    alone = story(small_engine(kv_cache_dtype="int8"), late())
    engine = small_engine(16 * 8, kv_cache_dtype="int8")
    first, second = engine.submit(counting((9, 8, 7) * 15, 60)), engine.submit(late())
    finish(engine, first, second)
    assert len(first.result().text.split()) == 60
    assert story_of(second) == alone
    assert (first.num_preemptions > 0, second.num_preemptions) == (True, 0)
    assert everything_is_free(engine)


def test_a_run_that_grows_beyond_memory_is_told_in_the_end() -> None:
    engine = small_engine(memory_tokens=160)
    first = engine.submit(counting((1,) * 20, 30))
    second = engine.submit(counting((2,) * 100, 90))
    finish(engine, first, second)
    assert first.result().text
    with pytest.raises(OutOfMemory):
        second.result()
    assert everything_is_free(engine)


def test_a_run_that_reads_what_another_writes_is_not_preempted_wrongly() -> None:
    """Blocks shared by hand: the reader could not come back, and what it reads does not leave."""
    shared = Block("shared")

    def writer() -> Generator[Any, Any, Answer]:
        view, feed = View([shared]), (1, 2, 3)
        for _ in range(10):
            feed = yield Step([Row(view, feed)])
        return Answer(text="")

    def reader() -> Generator[Any, Any, Answer]:
        view, feed, written = View([shared, Block()]), (4,), []
        for _ in range(8):
            feed = yield Step([Row(view, feed)])
            written += feed
        return Answer(text=str(written))

    def texts(preempted: Sequence[int]) -> list[str]:
        shared.tokens.clear()
        engine = small_engine()
        first = engine.submit(counting((1,), 20))
        runs = [engine.submit(writer()), engine.submit(reader())]
        for number in range(8):
            engine.step()
            if number in preempted:
                preempt(engine)
                assert not engine.pool.is_evicted(shared)
        finish(engine, first, *runs)
        return [run.result().text for run in runs]

    undisturbed = texts(())
    shared = Block("shared")
    assert texts((3, 5)) == undisturbed


def test_a_preempted_run_is_told_that_what_it_had_read_is_gone() -> None:
    """A block shared by hand lives with its writer; the reader's keys cannot be made without it."""
    lent = [Block("lent")]

    def writer(block: Block) -> Generator[Any, Any, Answer]:
        view, feed = View([block]), (1, 2, 3)
        for _ in range(6):
            feed = yield Step([Row(view, feed)])
        return Answer(text="")

    def reader() -> Generator[Any, Any, Answer]:
        own = Block()
        (token,) = yield Step([Row(View([lent[0], own]), (4,))])
        alone = View([own])
        while True:
            (token,) = yield Step([Row(alone, (token,))])

    engine = small_engine()
    first, second = engine.submit(counting((1,), 20)), engine.submit(writer(lent[0]))
    engine.step()
    third = engine.submit(reader())
    engine.step()
    lent.clear()
    assert preempt(engine)
    assert is_preempted(third)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._scheduler.preemption, "bring_back", lambda: None)
        finish(engine, second)
    finish(engine, first, third)
    with pytest.raises(InvalidRequest, match="'lent', which the run had read, is gone"):
        third.result()
    assert everything_is_free(engine)


@pytest.mark.parametrize("wrong", [0.5, float("nan")])
def test_overcommit_below_one(wrong: float) -> None:
    with pytest.raises(InvalidRequest, match="overcommit"):
        small_engine(overcommit=wrong)


def test_what_the_engine_says_about_memory() -> None:
    engine = small_engine(memory_tokens=1600)
    assert "1,600 tokens in 100 pages of 16" in engine.facts.about_memory
    assert "weights take" in engine.facts.about_memory


def keeping(engine: Engine, first: int, num_tokens: int = 16 * 6, max_tokens: int = 1) -> Strategy:
    """A prompt of which the tree keeps so many tokens behind its run, which writes `max_tokens`."""
    settings = SharedSettings(max_tokens=max_tokens, choice=SAMPLED, prefill=100)
    prompt = (first, *(random.Random(first).randrange(50) for _ in range(num_tokens)))
    return unbounded(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))


def test_what_becomes_idle_while_a_run_is_out_is_kept_where_that_run_does_not_come_back() -> None:
    engine = small_engine(memory_tokens=16 * 40, overcommit=4)
    first = engine.submit(counting((1,) * 300, 160))
    second = engine.submit(keeping(engine, 5, max_tokens=110))
    third = engine.submit(counting((2,) * 13 * 16, 8))
    engine.step()
    engine.step()
    assert preempt(engine)
    assert is_preempted(third)
    finish(engine, second)
    for _ in range(5):
        engine.step()
    assert is_preempted(third), "first has grown meanwhile"
    assert engine.prefixes.num_tokens == 16 * 6
    assert engine.prefixes.num_pages_in_use == 0
    finish(engine, first, third)


def test_no_more_is_let_go_than_a_run_that_comes_back_needs() -> None:
    """Besides, it waits for room that could be had, and not for empty room."""
    engine = small_engine(memory_tokens=16 * 48, overcommit=4)
    for number in range(8):
        engine.run(keeping(engine, number, 16 * 2))
    first = engine.submit(counting((1,) * 16 * 9, 60))
    second = engine.submit(counting((2,) * 16 * 21 + (3,) * 10, 8))
    engine.step()
    assert engine.prefixes.num_tokens == 8 * 32
    assert preempt(engine)
    block = Block()
    engine.pool.reserve([(block, 16 * 5 + 1)])
    free = engine.pool.num_free_pages
    assert free == 17
    engine.step()
    assert second.state is RunState.RUNNING
    assert engine.prefixes.num_tokens == 5 * 32, (
        "6 pages are missing, and 3 more are only to be had"
    )
    finish(engine, first, second)


def test_a_step_that_can_never_fit_takes_nothing_that_is_kept_with_it() -> None:
    engine = small_engine(memory_tokens=16 * 20)
    engine.run(keeping(engine, 5))
    held = engine.submit(counting((1,) * 40, 20))
    engine.step()
    run = engine.submit(counting((2,) * 16 * 21))
    finish(engine, held, run)
    with pytest.raises(OutOfMemory, match="the memory has 20"):
        run.result()
    assert engine.prefixes.num_tokens == 16 * 6


def test_a_step_that_has_no_room_now_says_what_is_kept_and_takes_none_of_it() -> None:
    engine = small_engine(memory_tokens=16 * 20)
    engine.run(keeping(engine, 5))
    blocks = Block("held"), Block("new")
    engine.forward(Step([Row(View([blocks[0]]), (1,) * 16 * 9)]))
    with pytest.raises(OutOfMemory, match="5 of 20 are free, and 6 more hold what is kept"):
        engine.forward(Step([Row(View([blocks[1]]), (1,) * 16 * 12)]))
    assert engine.prefixes.num_tokens == 16 * 6
