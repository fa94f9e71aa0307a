"""One thread owns the engine; runs come from any thread, and none of them, nor a listener, stops it."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.filling import Filling
from manyhands.engine.passes import Passes
from manyhands.engine.run import Run
from manyhands.engine.scheduler import Scheduler
from manyhands.engine.service import EventsMissed, Handle, Service
from manyhands.errors import (
    Busy,
    DeadlineExceeded,
    InvalidRequest,
    OutOfMemory,
    RanksFailed,
    RunCancelled,
    ServiceStopped,
)
from manyhands.replay.trace import parse_trace, record
from manyhands.strategies.base import Answer, Reserve, Strategy
from manyhands.strategies.events import Event, TokenWritten, UsageCounted
from manyhands.strategies.listening import Listen, Said
from manyhands.strategies.prompt_sharing import share_prompt
from tests.engine.small import LETTERS, counting, finish, small_engine, solo, story, team
from tests.waiting import soon

SAMPLED = Choice(temperature=1.0, top_p=0.95, allowed=LETTERS)
SOON = 30.0  # seconds; only what hangs takes so long


def predict(step: Step) -> tuple[int, ...]:
    """Each token is the one before plus one."""
    return tuple(row.feed[-1] + 1 for row in step.rows)


def scheduler(predict: Callable[[Step], tuple[int, ...]] = predict) -> Scheduler:
    """A stand-in for an engine: no network, the same contract."""
    return Scheduler(predict, PagePool(100), Filling(10_000))


def endless() -> Strategy:
    view, feed = View([Block()]), (1,)
    while True:
        feed = yield Step([Row(view, feed)])
        yield TokenWritten(feed[0], 0, feed[0], "")


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and "service" in t.name]
    assert not left


def begun(handle: Handle) -> Handle:
    """When its first event has come."""
    next(iter(handle))
    return handle


def listener() -> Strategy:
    """Goes on until something is said to it, and answers with that."""
    view, feed = View([Block()]), (1,)
    while not (heard := (yield Listen())).items:
        feed = yield Step([Row(view, feed)])
        yield TokenWritten(feed[0], 0, feed[0], "")
    return Answer(text=" ".join(item.text for item in heard.items))


def test_a_run_is_told_what_is_said_to_its_handle() -> None:
    with Service(scheduler()) as service:
        handle = begun(service.submit(listener()))
        handle.say(Said("Try it mod 7.", "Dana"))
        assert handle.result(SOON).text == "Try it mod 7."
        with pytest.raises(InvalidRequest, match="has ended and hears nothing"):
            handle.say(Said("Still there?", "Dana"))


def test_a_run_that_has_not_begun_hears_what_was_said_when_it_begins() -> None:
    """In the order in which it was said, and before its first pass; so a person can speak to a run that waits for its turn."""
    with Service(scheduler(), max_live=1) as service:
        live = begun(service.submit(endless()))
        waiting, deaf = service.submit(listener()), service.submit(counting((5, 6), 4))
        for text in ("Try it", "mod 7."):
            waiting.say(Said(text, "Dana"))
            deaf.say(Said(text, "Dana"))
        assert not waiting.listens
        live.cancel()
        assert waiting.result(SOON).text == "Try it mod 7."
        assert waiting.usage.forward_passes == 0
        assert deaf.result(SOON).text


def test_a_run_that_does_not_listen_or_has_ended_hears_nothing() -> None:
    with Service(scheduler(), max_live=1) as service:
        live = begun(service.submit(endless()))
        with pytest.raises(InvalidRequest, match="does not listen"):
            live.say(Said("Hello.", "Dana"))
        with pytest.raises(InvalidRequest, match="a str was said"):
            live.say("Hello.")  # type: ignore[arg-type]
        waiting = service.submit(listener())
        with pytest.raises(InvalidRequest, match="a str was said"):
            waiting.say("Hello.")  # type: ignore[arg-type]
        waiting.cancel()
        with pytest.raises(InvalidRequest, match="has ended"):
            waiting.say(Said("Hello.", "Dana"))


# -- the same as alone ------------------------------------------------------------------------------


def test_runs_from_many_threads_are_each_alone() -> None:
    makes: list[Callable[[], Strategy]] = [
        lambda: team(2, choice=SAMPLED, seed=1, budget=12),
        lambda: solo(choice=SAMPLED, seed=2, budget=9),
        lambda: counting((5, 6, 7), 20),
        lambda: counting((8, 9), 3),
    ]
    engine = small_engine(16384)
    alone = [story(engine, make()) for make in makes]

    def told(make: Callable[[], Strategy]) -> list[Event | Answer]:
        handle = service.submit(make())
        events = [event for event in handle if not isinstance(event, UsageCounted)]
        return [*events, handle.result()]

    with Service(engine) as service, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(told, makes * 2)) == alone * 2
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_eight_threads_with_fifty_runs_each_and_random_cancels() -> None:
    engine = scheduler()

    def customer(number: int) -> tuple[int, int]:
        rng = random.Random(number)
        handles: list[tuple[int, int, bool, Handle]] = []
        for _ in range(50):
            first, size = rng.randrange(1000), rng.randint(1, 30)
            reserve = rng.choice((None, Reserve(rng.randrange(900), 1)))
            handle = service.submit(counting((first,), size, reserve))
            is_cancelled = rng.random() < 0.3
            if is_cancelled:
                handle.cancel()
            handles.append((first, size, is_cancelled, handle))
        answered = cancelled = 0
        for first, size, is_cancelled, handle in handles:
            try:
                text = handle.result(SOON).text
            except InvalidRequest as error:
                text = str(error)
            if "was cancelled" in text:
                assert is_cancelled
                cancelled += 1
            else:
                assert text == " ".join(str(first + i + 1) for i in range(size))
                answered += 1
        return answered, cancelled

    with Service(engine, max_live=64) as service, ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(customer, range(8)))
    assert sum(map(sum, counts)) == 400
    assert all(answered >= 25 for answered, _ in counts)
    assert sum(cancelled for _, cancelled in counts) > 20
    assert not engine.runs


def test_events_end_with_what_the_run_has_cost() -> None:
    with Service(scheduler()) as service:
        handle = service.submit(counting((1,), 3))
        *written, cost = handle
        assert [type(event) for event in written] == [TokenWritten] * 3
        assert isinstance(cost, UsageCounted)
        assert handle.done
        assert list(handle) == [*written, cost], "every listener begins at the beginning"


# -- ends -------------------------------------------------------------------------------------------


def test_a_deadline_ends_one_run() -> None:
    with Service(scheduler()) as service:
        late = begun(service.submit(endless(), deadline=1.0))
        other = begun(service.submit(endless()))
        with pytest.raises(DeadlineExceeded, match=r"1 s"):
            late.result(SOON)
        assert TokenWritten in map(type, late), "what it wrote is kept"
        assert not other.done
        assert service.submit(counting((1,), 3), deadline=SOON).result(SOON).text == "2 3 4"


def test_a_deadline_counts_the_waiting() -> None:
    with Service(scheduler(), max_live=1) as service:
        first = begun(service.submit(endless()))
        patient = service.submit(counting((1,), 2))
        late = service.submit(counting((1,), 2), deadline=0.05)
        with pytest.raises(DeadlineExceeded):
            late.result(SOON)
        first.cancel()
        assert patient.result(SOON).text == "2 3"


def test_bounds_of_few_bits_do_not_wrap_around() -> None:
    with Service(scheduler(), max_live=np.uint8(200), max_waiting=np.uint8(100)) as service:  # type: ignore[arg-type]
        assert service.max_live + service.max_waiting == 300


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), -(10**400), True, "60"])
def test_a_deadline_that_is_none(wrong: Any) -> None:
    with Service(scheduler()) as service, pytest.raises(InvalidRequest, match="deadline is"):
        service.submit(counting((1,)), deadline=wrong)


FAR = [1e10, math.inf, 1e300, 10**400, np.float32(60), Fraction(60), torch.tensor(60.0)]


@pytest.mark.parametrize("seconds", FAR)
def test_any_number_of_seconds_is_a_wait(seconds: Any) -> None:
    """Python's locks end at 292 years, and know no number of another library."""
    service = Service(scheduler())
    handle = service.submit(counting((1,), 3), deadline=seconds)
    assert handle.result(seconds).text == "2 3 4"
    last = service.submit(counting((1,), 3))
    service.close(drain=seconds)
    assert last.result(0).text == "2 3 4", "it was let go on"


@pytest.mark.parametrize("seconds", [0, -1, -(10**400), -math.inf, np.float32(0.01)])
def test_a_wait_that_is_over_says_so(seconds: Any) -> None:
    with Service(scheduler()) as service:
        handle = service.submit(endless())
        with pytest.raises(TimeoutError, match=r"has not ended after 0(\.01)? s"):
            handle.result(seconds)


@pytest.mark.parametrize("wrong", [math.nan, True, "60", [1], np.ones(2)])
def test_a_wait_that_is_no_number(wrong: Any) -> None:
    with Service(scheduler()) as service:
        handle = service.submit(endless())
        with pytest.raises(InvalidRequest, match="timeout is"):
            handle.result(wrong)
        with pytest.raises(InvalidRequest, match="drain is"):
            service.close(drain=wrong)
        assert service.takes_runs, "nothing was closed"


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
def test_a_strategy_that_would_leave_ends_its_own_run(error: BaseException) -> None:
    def leaving() -> Strategy:
        yield Step([Row(View([Block()]), (1,))])
        raise error

    with Service(scheduler()) as service:
        other, left = service.submit(counting((1,), 3)), service.submit(leaving())
        with pytest.raises(
            InvalidRequest, match=f"a strategy raised {type(error).__name__}"
        ) as found:
            left.result(SOON)
        assert found.value.__cause__ is error
        assert other.result(SOON).text == "2 3 4"
        assert not service.is_broken


@pytest.mark.parametrize("wait", [lambda handle: handle.result(), lambda handle: list(handle)])
def test_a_strategy_that_waits_for_its_own_service_is_refused(
    wait: Callable[[Handle], Any],
) -> None:
    """No pass would be made while it waits: it hung for good."""

    def waiting(service: Service) -> Strategy:
        other = service.submit(counting((1,), 3))
        with pytest.raises(TimeoutError):
            other.result(0)  # a look is no wait
        wait(other)
        yield Step([Row(View([Block()]), (1,))])
        return Answer("never")

    with Service(scheduler()) as service:
        handle = service.submit(waiting(service))
        with pytest.raises(InvalidRequest, match="in the thread that makes its passes"):
            handle.result(SOON)
        assert service.submit(counting((1,), 3)).result(SOON).text == "2 3 4"


@pytest.mark.parametrize("wrong", [None, "bundled", 5])
def test_a_service_of_no_engine(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected an Engine"):
        Service(wrong)


def test_a_watcher_that_raises_ends_no_run() -> None:
    called: list[int] = []

    def wrong() -> None:
        called.append(1)
        raise ZeroDivisionError

    seen: list[int] = []

    def watched() -> None:
        with Service(scheduler()) as service:
            service.watch(wrong)
            service.watch(lambda: seen.append(1))
            assert service.submit(counting((1,), 5)).result(SOON).text == "2 3 4 5 6"
            assert not service.is_broken

    with pytest.warns(UserWarning, match=r"a watcher .* raised Zero"):
        watched()
    assert len(called) == 1
    assert len(seen) > 1
    with (
        Service(scheduler()) as service,
        pytest.raises(InvalidRequest, match="expected a function"),
    ):
        service.watch(None)  # type: ignore[arg-type]


def test_one_run_too_many_is_refused() -> None:
    with Service(scheduler(), max_live=2, max_waiting=1) as service:
        handles = [service.submit(endless()) for _ in range(3)]
        with pytest.raises(Busy, match="it takes 2 at a time, and 1 may wait"):
            service.submit(endless())
        handles[2].cancel()  # it waits, and is gone at once
        with pytest.raises(InvalidRequest, match="cancelled"):
            handles[2].result(0)
        service.submit(endless())


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_live": 0},
        {"max_waiting": -1},
        {"max_events": 0},
        {"max_live": float("nan")},
        {"max_waiting": 2.5},
    ],
)
def test_limits_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        Service(scheduler(), **wrong)


def test_a_result_is_not_waited_for_longer_than_asked() -> None:
    with Service(scheduler()) as service, pytest.raises(TimeoutError):
        service.submit(endless()).result(0.01)


def test_what_is_no_strategy_is_refused_at_once() -> None:
    wrong: Any = counting
    with (
        Service(scheduler()) as service,
        pytest.raises(InvalidRequest, match="expected a generator"),
    ):
        service.submit(wrong)


# -- what goes wrong --------------------------------------------------------------------------------


def test_a_mistake_in_one_strategy_is_its_own() -> None:
    def wrong() -> Generator[Any, Any, Answer]:
        yield Step([Row(View([Block()]), (1,))])
        raise ZeroDivisionError

    def clinging() -> Generator[Any, Any, Answer]:
        try:
            yield from endless()
        finally:
            raise ZeroDivisionError("at the very end")

    with Service(scheduler()) as service:
        other = begun(service.submit(endless()))
        with pytest.raises(ZeroDivisionError):
            service.submit(wrong()).result(SOON)
        with pytest.raises(OutOfMemory):
            service.submit(counting((1,), 3, Reserve(100_000, 1))).result(SOON)
        handle = begun(service.submit(clinging()))
        handle.cancel()
        with pytest.raises(InvalidRequest, match="cancelled"):
            handle.result(SOON)
        assert not service.is_broken
        assert not other.done


def _renewed(bound: Any) -> Strategy:
    yield Reserve(50, 2, bound)
    yield Step([Row(View([Block()]), (1,))])
    return Answer("It was not looked at.")


def _chosen(choice: Any, **more: Any) -> Strategy:
    yield Step([Row(View([Block()]), (1,), choice(), **more)])
    return Answer("It was not looked at.")


def _raise() -> Reserve:
    raise ZeroDivisionError("how much, nobody knows")


SLIPS: dict[str, tuple[Callable[[], Strategy], str]] = {
    "a bound that is a text": (lambda: _renewed(lambda: Reserve("50", 2)), "num_tokens '50'"),  # type: ignore[arg-type]
    "a bound below 0": (lambda: _renewed(lambda: Reserve(50, -2)), "num_blocks -2"),
    "a bound that is none": (lambda: _renewed(lambda: None), "renewed by a NoneType"),
    "a bound that raises": (lambda: _renewed(_raise), "nobody knows"),
    "words are allowed": (
        lambda: _chosen(lambda: Choice(allowed=frozenset({"a", 3}))),  # type: ignore[arg-type]
        "allowed has 'a'; expected token ids",
    ),
    "parts of ids are forbidden": (
        lambda: _chosen(lambda: Choice(forbidden=frozenset({1.5}))),  # type: ignore[arg-type]
        "forbidden has 1.5; expected token ids",
    ),
    "a set that may change": (
        lambda: _chosen(lambda: Choice(forbidden={3})),  # type: ignore[arg-type]
        "expected a frozenset",
    ),
    "a mask that is a text": (lambda: _chosen(lambda: Choice(mask="a")), "mask is of type str"),  # type: ignore[arg-type]
    "a mask of nothing": (lambda: _chosen(lambda: Choice(mask=bytes(50))), "no token is left"),
    "a mask of what is forbidden": (
        lambda: _chosen(lambda: Choice(mask=b"\2", forbidden=frozenset({1}))),
        "no token is left",
    ),
    "a guess of one's own": (lambda: _chosen(Choice, draft=(2, 3)), "guesses are the engine's own"),
    "more guesses than a page holds": (
        lambda: _chosen(Choice, draft=(2,) * 40),
        "guesses are the engine's own",
    ),
}


@pytest.mark.parametrize("speculate", [0, 4])
@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_that_the_engine_meets_is_the_strategys_own(name: str, speculate: int) -> None:
    """A request is looked at outside of the strategy that makes it, and no other run learns of a mistake in it."""
    slip, said = SLIPS[name]
    engine = small_engine(speculate=speculate)
    with Service(engine) as service:
        others = [service.submit(counting((1, 2), 20)) for _ in range(2)]
        handle = service.submit(slip())
        others.append(service.submit(counting((1, 2), 20)))
        with pytest.raises((InvalidRequest, ZeroDivisionError), match=said):
            handle.result(SOON)
        assert len({other.result(SOON).text for other in others}) == 1
        assert not service.is_broken
    assert engine.pool.num_free_pages == engine.pool.num_pages


def _careful(*bounds: Callable[[], Reserve]) -> Strategy:
    """It asks for memory before each pass, and does with less where its bound cannot be renewed."""
    row = Row(View([Block("prompt")]), (1, 2, 3))
    prompt: Row | None = row
    for count, bound in enumerate(bounds):
        try:
            yield Reserve(50, 2, bound, prompt=prompt)
        except ZeroDivisionError:
            yield Reserve(20, 1, prompt=prompt)
        yield Step([row])
        prompt, row = None, Row(View([Block()]), (count,))
    return Answer("A smaller one will do.")


@pytest.mark.parametrize("around", ["nothing", "a trace", "a shared prompt", "a restored run"])
def test_a_strategy_may_handle_that_its_bound_cannot_be_renewed(around: str) -> None:
    """Also where another strategy stands around it, as around most runs of the commands and the server."""

    def enough() -> Reserve:
        return Reserve(50, 2)

    engine, lines = small_engine(), list[Any]()
    bounds = (enough if around == "a restored run" else _raise, _raise)
    strategy = _careful(*bounds)
    if around == "a trace":
        strategy = record(strategy, {}, lines.append)
    elif around == "a shared prompt":
        strategy = share_prompt(strategy, engine.prefixes)
    elif around == "a restored run":
        engine.run(record(_careful(enough, enough), {}, lines.append))
        number = next(n for n, line in enumerate(lines) if line["kind"] == "pass")
        strategy = engine.restore(strategy, parse_trace(lines[: number + 1]))
    assert engine.run(strategy).text == "A smaller one will do."


def test_a_strategy_does_not_run_the_engine_that_runs_it() -> None:
    """Others of its passes go on; what it wants of another strategy it gets by `yield from`."""
    engine = small_engine()
    plain = engine.run(counting((1, 2), 20)).text

    def asking(first: bool) -> Generator[Any, Any, Answer]:
        if not first:
            yield Step([Row(View([Block()]), (1,))])
        engine.run(counting((3,), 5))
        return Answer("It was let in.")

    def handing_over() -> Generator[Any, Any, Answer]:
        yield Step([Row(View([Block()]), (1,))])
        answer: Answer = yield from counting((1, 2), 20)
        return answer

    for first in (True, False):
        with pytest.raises(InvalidRequest, match="called the engine that runs it") as caught:
            engine.run(asking(first))
        assert "yield from" in caught.value.hint
        with Service(engine) as service:
            others = [service.submit(counting((1, 2), 20)) for _ in range(2)]
            handle = service.submit(asking(first))
            others.append(service.submit(handing_over()))
            with pytest.raises(InvalidRequest, match="called the engine that runs it"):
                handle.result(SOON)
            assert [other.result(SOON).text for other in others] == [plain] * 3
    del caught
    assert engine.run(counting((1, 2), 20)).text == plain
    assert engine.pool.num_free_pages == engine.pool.num_pages


def _renewing(engine: Engine, said: list[str]) -> Strategy:
    """The bound of its second reservation is what another strategy answers."""

    def bound() -> Reserve:
        engine.run(counting((3,), 5))
        return Reserve(50, 2)

    yield Step([Row(View([Block()]), (1,))])
    try:
        yield Reserve(50, 2, bound)
    except InvalidRequest as error:
        said.append(str(error))
    return Answer("It goes on.")


def _preparing(call: Callable[[], object], said: list[str]) -> Strategy:
    """Its work for a time in which the device works is `call`."""

    def meanwhile() -> None:
        try:
            call()
        except InvalidRequest as error:
            said.append(str(error))
            raise

    view, feed = View([Block()]), (1,)
    for _ in range(6):
        told = yield Step([Row(view, feed)], meanwhile)
        assert isinstance(told, tuple)
        feed = told
    return Answer("It goes on.")


@pytest.mark.parametrize("door", ["renew", "run", "forward"])
def test_nor_does_what_a_strategy_has_given_along(
    door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of it is called in the midst of a step, and while the generator itself rests."""
    monkeypatch.setattr(Passes, "plans_ahead", True)
    engine, said = small_engine(), list[str]()
    plain = engine.run(counting((1, 2), 20)).text

    def one_more() -> int:
        return len(engine.forward(Step([Row(View([Block()]), (1, 2))])))

    if door == "renew":
        slip = _renewing(engine, said)
    elif door == "run":
        slip = _preparing(lambda: engine.run(counting((3,), 5)), said)
    else:
        slip = _preparing(one_more, said)
    runs = [engine.submit(each) for each in (counting((1, 2), 20), slip, counting((1, 2), 20))]
    finish(engine, *runs)
    assert [run.result().text for run in runs] == [plain, "It goes on.", plain]
    assert "has called the engine that runs it" in said[0]
    assert one_more() == 1
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_a_strategy_that_is_no_generator_function_does_not_either() -> None:
    """It is known by what has called what, not by a mark of the generator."""

    class Own(Generator[Any, Any, Answer]):
        def send(self, sent: object) -> Any:
            return engine.run(counting((3,), 5))

        def throw(self, *problem: Any) -> Any:
            raise problem[0]

    engine = small_engine()
    plain = engine.run(counting((1, 2), 20)).text
    other = engine.submit(counting((1, 2), 20))
    with pytest.raises(InvalidRequest, match="called the engine that runs it"):
        engine.submit(Own()).result()
    finish(engine, other)
    assert other.result().text == plain


def test_a_strategy_may_run_another_engine() -> None:
    """That one, in turn, may not be had by way of a third."""
    one, other = small_engine(), small_engine()
    plain = one.run(counting((1, 2), 20)).text

    def asking(*engines: Engine) -> Strategy:
        yield Step([Row(View([Block()]), (1,))])
        engine, *behind = engines
        return engine.run(asking(*behind) if behind else counting((1, 2), 20))

    assert one.run(asking(other)).text == plain
    with pytest.raises(InvalidRequest, match="called the engine that runs it"):
        one.run(asking(other, one))
    assert one.run(counting((1, 2), 20)).text == plain


def _cancelling(call: Callable[[], object], said: list[str], *, meanwhile: bool) -> Strategy:
    """It calls this before its fourth step, or while that is fed, and goes on."""

    def slip() -> None:
        try:
            call()
        except InvalidRequest as error:
            said.append(str(error))

    view, feed, written = View([Block()]), (1, 2), []
    for count in range(20):
        if count == 3 and not meanwhile:
            slip()
        told = yield Step([Row(view, feed)], slip if count == 3 and meanwhile else None)
        assert isinstance(told, tuple)
        feed = told
        written.append(feed[0])
    return Answer(" ".join(map(str, written)))


@pytest.mark.parametrize("meanwhile", [False, True])
@pytest.mark.parametrize("whose", ["its own", "the next"])
def test_a_strategy_may_cancel_any_run_but_its_own(
    whose: str, meanwhile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is just being fed goes when the pass is over. All others are told what they would be told without it."""
    monkeypatch.setattr(Passes, "plans_ahead", True)
    engine, said, runs = small_engine(), list[str](), list[Run]()
    plain = engine.run(counting((1, 2), 20)).text
    number = {"its own": 1, "the next": 2}[whose]
    slip = _cancelling(lambda: engine.cancel(runs[number]), said, meanwhile=meanwhile)
    runs += [engine.submit(counting((1, 2), 20)), engine.submit(slip)]
    runs += [engine.submit(counting((1, 2), 20)) for _ in range(2)]
    finish(engine, *runs)
    is_wrong = whose == "its own" and not meanwhile
    for index, run in enumerate(runs):
        if index == number and not is_wrong:
            with pytest.raises(RunCancelled, match="was cancelled"):
                run.result()
            assert run.num_passes < 6
        else:
            assert run.result().text == plain, index
    assert said == (["a strategy has cancelled its own run"] if is_wrong else [])
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_a_strategy_may_cancel_a_run_that_waits_beside_it() -> None:
    """Both ask for more than there is for them, until a third ends; the first to get it cancels the other."""
    engine, runs = small_engine(512), list[Run]()

    def asking(name: str) -> Strategy:
        yield Reserve(16, 1)
        yield Step([Row(View([Block()]), (1,))])
        yield Reserve(128, 1)
        if name == "first":
            engine.cancel(runs[2])
        return Answer(name)

    runs.append(engine.submit(counting((1, 2), 5, Reserve(400, 1))))
    runs += [engine.submit(asking(name)) for name in ("first", "second")]
    finish(engine, *runs)
    assert runs[1].result().text == "first"
    with pytest.raises(RunCancelled, match="was cancelled"):
        runs[2].result()


def test_an_error_that_a_strategy_has_handled_holds_nothing() -> None:
    """Pages of a run that ended later are free at once, and do not wait for the garbage collector."""

    def careful() -> Strategy:
        view = View([Block()])
        yield Step([Row(view, (1, 2))])
        with pytest.raises(ZeroDivisionError):
            yield Reserve(50, 2, _raise)
        yield Step([Row(view, (3,))])
        return Answer("It goes on.")

    engine = small_engine()
    gc.disable()
    try:
        assert engine.run(careful()).text == "It goes on."
        assert engine.pool.num_free_pages == engine.pool.num_pages
    finally:
        gc.enable()


def _slipping() -> Strategy:
    yield Step([Row(View([Block()]), (1, 2))])
    raise ZeroDivisionError("a slip")


MANY = 1_000_000  # tokens; far more than come before the run is ended
WITHOUT_ANSWER: dict[str, Callable[[], Strategy]] = {
    "a slip": _slipping,
    "never fits": lambda: counting((1,), 3, Reserve(1 << 30, 1)),
    "cancelled": lambda: counting((1,), MANY),
    "too late": lambda: counting((1,), MANY),
}


@pytest.mark.parametrize("way", ["result", "await", "outcome"])
@pytest.mark.parametrize("name", WITHOUT_ANSWER)
def test_a_run_that_ends_without_an_answer_waits_for_no_collection(name: str, way: str) -> None:
    """Its error holds none of the frames through which it was raised again: from these a way leads to its events and to other runs."""
    gc.collect()
    gc.disable()
    try:
        with Service(scheduler()) as service:
            other = service.submit(counting((1,), 40))
            deadline = 0.5 if name == "too late" else None
            gone = _ended_without_answer(service, WITHOUT_ANSWER[name](), name, way, deadline)
            other.result(SOON)
            # The service's thread may still be at it.
            soon(lambda: all(each() is None for each in gone), SOON / 10)
            assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def _ended_without_answer(
    service: Service, strategy: Strategy, name: str, way: str, deadline: float | None
) -> list[weakref.ref[Any]]:
    """References to the handle and the run, of which the caller knows the end."""
    handle = service.submit(strategy, deadline=deadline, lifecycle=True)
    assert soon(partial(getattr, handle, "_run"), SOON)
    gone: list[weakref.ref[Any]] = [weakref.ref(handle), weakref.ref(handle._run)]
    if name == "cancelled":
        handle.cancel()
    assert soon(partial(getattr, handle, "done"), SOON)
    with suppress(Exception):
        if way == "await":
            asyncio.run(_awaited(handle))
        elif way == "result":
            handle.result()
    assert isinstance(handle.outcome, Exception)
    del handle
    return gone


async def _awaited(handle: Handle) -> Answer:
    try:
        return await handle
    finally:
        del handle


def test_an_error_that_is_asked_for_again_and_again_does_not_grow() -> None:
    """A page that lists runs asks each time."""

    def num_frames() -> int:
        with pytest.raises(ZeroDivisionError) as caught:
            handle.result(SOON)
        return len(caught.traceback)

    with Service(scheduler()) as service:
        handle = service.submit(_slipping())
        assert num_frames() == num_frames() == num_frames()
        assert isinstance(handle.outcome, Exception)
        assert handle.outcome.__traceback__ is not None
        assert "_slipping" in {
            each.name for each in traceback.extract_tb(handle.outcome.__traceback__)
        }


@pytest.mark.parametrize("door", ["its bound", "its farewell"])
def test_a_run_that_is_cancelled_while_it_does_not_compute_was_cancelled(door: str) -> None:
    """By what its strategy has given along, or once more when it is cancelled already."""
    engine, runs = small_engine(), list[Run]()

    def bound() -> Reserve:
        engine.cancel(runs[0])
        return Reserve(50, 2)

    def slip() -> Strategy:
        try:
            yield Step([Row(View([Block()]), (1,))])
            yield Reserve(50, 2, bound)
            return Answer("It went on.")
        finally:
            if door == "its farewell":
                engine.cancel(runs[0])

    runs += [engine.submit(slip()), engine.submit(counting((1, 2), 5))]
    if door == "its farewell":
        engine.cancel(runs[0])
    finish(engine, *runs)
    with pytest.raises(RunCancelled, match="was cancelled"):
        runs[0].result()
    assert runs[1].result().text == engine.run(counting((1, 2), 5)).text
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_the_farewell_of_a_strategy_does_not_run_the_engine() -> None:
    """Also where the run is cancelled between two steps."""
    engine = small_engine()

    def slip() -> Strategy:
        try:
            yield Step([Row(View([Block()]), (1,))])
            return Answer("It went on.")
        finally:
            engine.step()

    runs = [engine.submit(slip()), engine.submit(counting((1, 2), 5))]
    engine.cancel(runs[0])
    finish(engine, *runs)
    with pytest.raises(InvalidRequest, match="has called the engine that runs it"):
        runs[0].result()
    assert runs[1].result().text == engine.run(counting((1, 2), 5)).text


def test_a_strategy_is_run_once() -> None:
    """Given again it is refused, also where the service finds out between two passes."""
    with Service(scheduler(), max_live=1) as service:
        first = begun(service.submit(endless()))
        strategy = counting((1,), 3)
        once, twice, other = [service.submit(s) for s in (strategy, strategy, counting((1,), 3))]
        first.cancel()
        assert once.result(SOON).text == other.result(SOON).text == "2 3 4"
        with pytest.raises(InvalidRequest, match="has begun already, or is over") as caught:
            twice.result(SOON)
        assert "call the function again" in caught.value.hint
        with pytest.raises(InvalidRequest, match="has begun already, or is over"):
            service.submit(strategy)
        assert not service.is_broken


def test_an_error_of_the_engine_reaches_everybody() -> None:
    on_fire = threading.Event()

    def failing(step: Step) -> tuple[int, ...]:
        if on_fire.is_set():
            raise RuntimeError("the device is on fire")
        return predict(step)

    service = Service(scheduler(failing), max_live=2)
    handles = [begun(service.submit(endless())) for _ in range(2)]
    handles.append(service.submit(endless()))  # it waits
    on_fire.set()
    for handle in handles:
        with pytest.raises(ServiceStopped, match="RuntimeError: the device is on fire") as caught:
            handle.result(SOON)
        assert isinstance(caught.value.__cause__, RuntimeError)
    assert service.is_broken
    with pytest.raises(ServiceStopped, match="on fire"):
        service.submit(endless())
    service.close()


def test_a_slow_listener_misses_the_oldest_and_stops_no_run() -> None:
    goes_on = threading.Event()

    def pausing(step: Step) -> tuple[int, ...]:
        if step.rows[0].feed[0] == 5:
            goes_on.wait()
        return predict(step)

    with Service(scheduler(pausing), max_events=10) as service:
        handle = service.submit(counting((0,), 500))
        listener = iter(handle)
        seen = [next(listener)]
        goes_on.set()
        assert handle.result(SOON).text.endswith("499 500"), "though nobody listened"
        seen += listener
    (missed,) = (event for event in seen if isinstance(event, EventsMissed))
    numbers = [event.forward_pass for event in seen if isinstance(event, TokenWritten)]
    assert numbers[0] == 1
    assert numbers[-9:] == list(range(492, 501)), "the tenth is what the run has cost"
    assert missed.count + len(numbers) == 500
    assert len(numbers) < 5 + 20
    fresh = next(iter(handle))
    assert isinstance(fresh, EventsMissed), "whoever comes now has missed the beginning"


# -- closing ----------------------------------------------------------------------------------------


def test_closing_cancels_what_is_under_way_and_what_waits() -> None:
    engine = scheduler()
    service = Service(engine, max_live=1)
    handles = [begun(service.submit(endless())), service.submit(counting((1,), 2))]
    service.close()
    for handle in handles:
        with pytest.raises(ServiceStopped, match="was closed"):
            handle.result(0)
    assert not engine.runs
    with pytest.raises(ServiceStopped, match="was closed"):
        service.submit(endless())
    service.close()  # a second time it does nothing


def test_runs_are_told_of_the_end_in_the_order_in_which_they_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs under way were told in the order of their addresses."""
    told: list[Handle] = []
    right, breaks = Handle._publish, threading.Event()

    def published(handle: Handle, events: Any, outcome: Any = None) -> None:
        if outcome is not None:
            told.append(handle)
        right(handle, events, outcome)

    def breaking(step: Step) -> tuple[int, ...]:
        if breaks.is_set():
            raise RanksFailed("rank 1 of 2 has ended")
        return predict(step)

    monkeypatch.setattr(Handle, "_publish", published)
    with Service(scheduler(breaking), max_live=40) as service:
        handles = [begun(service.submit(endless())) for _ in range(20)]
        breaks.set()
        with pytest.raises(ServiceStopped, match="RanksFailed"):
            handles[-1].result(SOON)
    assert told == handles


def test_closing_may_wait_for_what_there_is() -> None:
    service = Service(scheduler(), max_live=1)
    handles = [service.submit(counting((1,), n)) for n in (50, 2, 3)]
    service.close(drain=SOON)
    assert [len(handle.result(0).text.split()) for handle in handles] == [50, 2, 3]
    impatient = Service(scheduler())
    stays = begun(impatient.submit(endless()))
    impatient.close(drain=0.05)
    with pytest.raises(ServiceStopped):
        stays.result(0)


def test_a_pass_that_never_ends_does_not_hold_up_the_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()

    def stuck(step: Step) -> tuple[int, ...]:
        released.wait()
        return predict(step)

    monkeypatch.setattr("manyhands.engine.service._LONGEST_PASS", 0.05)
    service = Service(scheduler(stuck))
    handle = service.submit(endless())
    service.close()
    with pytest.raises(ServiceStopped):
        handle.result(0)
    released.set()
    service._thread.join(SOON)


ENDLESS = """
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.scheduler import Scheduler
from manyhands.engine.service import Service
from manyhands.engine.filling import Filling
from manyhands.strategies.events import TokenWritten

def endless():
    view, feed = View([Block()]), (1,)
    while True:
        feed = yield Step([Row(view, feed)])
        yield TokenWritten(1, 0, feed[0], "")

service = Service(Scheduler(lambda step: (1,) * len(step.rows), PagePool(9), Filling(99)))
next(iter(service.submit(endless())))
print("leaving")
"""


def test_the_interpreter_exits_with_a_live_service() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")


# -- asyncio ----------------------------------------------------------------------------------------


def test_asyncio_gets_the_same_without_a_thread_that_waits() -> None:
    async def story_of(service: Service, number: int) -> tuple[list[int], str]:
        handle = service.submit(counting((number,), 20))
        written = [event.token async for event in handle if isinstance(event, TokenWritten)]
        return written, (await handle).text

    async def all_of_them(service: Service) -> list[tuple[list[int], str]]:
        return await asyncio.gather(*(story_of(service, n) for n in range(40)))

    before = set(threading.enumerate())
    with Service(scheduler()) as service:
        stories = asyncio.run(all_of_them(service))
        assert set(threading.enumerate()) - before == {service._thread}
    for number, (written, text) in enumerate(stories):
        assert written == [number + i + 1 for i in range(20)]
        assert text == " ".join(map(str, written))


def test_asyncio_may_leave_and_be_refused() -> None:
    async def visit(service: Service) -> None:
        handle = service.submit(endless())
        async for _ in handle:
            break
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_answer(handle), 0.02)
        assert not handle.done, "leaving is not cancelling"
        handle.cancel()
        with pytest.raises(InvalidRequest, match="cancelled"):
            await handle

    async def _answer(handle: Handle) -> Answer:
        return await handle

    with Service(scheduler()) as service:
        asyncio.run(visit(service))
        handle = service.submit(endless())
        abandoned = asyncio.new_event_loop()
        handle._wakers.append(_waker_of(abandoned))
        abandoned.close()
        time.sleep(0.02)
        assert not service.is_broken, "a loop that is closed is nobody's trouble"


def _waker_of(loop: asyncio.AbstractEventLoop) -> Any:
    return lambda: loop.call_soon_threadsafe(print)


# -- for a server ------------------------------------------------------------------------------------


def test_a_moment_holds_what_one_pass_brought() -> None:
    with Service(small_engine()) as service:
        handle = service.submit(team(3, choice=SAMPLED, budget=12), lifecycle=True)
        handle.result(SOON)
        moments, missed = handle.moments(0)
        assert missed == 0
        passes = [moment.num_passes for moment in moments]
        assert passes == sorted(set(passes))
        for moment in moments:
            written = [event.worker for event in moment.events if isinstance(event, TokenWritten)]
            assert written in ([], [0, 1, 2])
        assert [event for moment in moments for event in moment.events] == list(handle)
        times = [moment.time for moment in moments]
        assert times == sorted(times)
        assert handle.num_moments == len(moments)
        assert handle.moments(5) == (moments[5:], 0)
        kinds = {type(event).__name__ for moment in moments for event in moment.events}
        assert {"Admitted", "ViewsChanged"} <= kinds
        plain = service.submit(team(3, choice=SAMPLED, budget=12))
        plain.result(SOON)
        assert not any(type(event).__name__ == "Admitted" for event in plain)


def test_moments_that_are_not_kept_are_counted() -> None:
    with Service(scheduler(), max_events=10) as service:
        handle = service.submit(counting((1,), 100))
        handle.result(SOON)
        moments, missed = handle.moments(0)
        assert missed > 0
        assert missed + len(moments) == handle.num_moments
        assert 10 <= handle.num_events_kept < 20
        assert handle.moments(missed) == (moments, 0)


def test_a_watcher_is_called_when_there_is_news_and_not_for_each_run() -> None:
    calls, is_in_pass, have_come = [], threading.Event(), threading.Event()

    def waiting(step: Step) -> tuple[int, ...]:
        is_in_pass.set()
        have_come.wait(SOON)
        return predict(step)

    with Service(scheduler(waiting)) as service:
        end = service.watch(lambda: calls.append(threading.current_thread().name))
        handles = [service.submit(counting((0,), 20))]
        assert is_in_pass.wait(SOON)
        # All others come while the first pass is made, so they are taken up in one go.
        handles += [service.submit(counting((n,), 20)) for n in range(1, 50)]
        have_come.set()
        for handle in handles:
            handle.result(SOON)
        # Twice runs are taken up, and the last ones end with pass 21, whose call may still be to come.
        assert len(calls) in (2 + 20, 2 + 21), "passes, and not 50 runs of 20"
        assert set(calls) == {"manyhands-service"}
        end()
        begun(service.submit(endless())).cancel()  # calls of the pass before are over
        num_calls = len(calls)
        service.submit(counting((1,), 5)).result(SOON)
        assert len(calls) == num_calls


def test_the_load_is_told() -> None:
    pool = PagePool(100)
    with Service(Scheduler(predict, pool, Filling(10_000)), max_live=2) as service:
        assert service.load.seconds_since_pass is None
        handles = [service.submit(endless()) for _ in range(5)]
        begun(handles[0])
        # It is looked at now and then.
        assert soon(lambda: service.load.num_passes > 0 and service.load.num_running == 2, SOON)
        load = service.load
        assert (load.num_running, load.num_waiting, load.num_pages) == (2, 3, 100)
        assert load.num_passes > 0
        assert load.seconds_since_pass is not None
        for handle in handles:
            handle.cancel()
        assert soon(lambda: not service.load.num_running, SOON)
        assert service.load.num_running == service.load.num_waiting == 0
        assert service.takes_runs
    assert not service.takes_runs


@pytest.mark.parametrize("wrong", ["x", None, 2.5, math.nan, [1], -1, True, object()])
def test_numbers_of_events_are_numbers(wrong: Any) -> None:
    with Service(scheduler()) as service:
        handle = service.submit(counting((1,), 5))
        handle.result(SOON)
        for name, read in (("position", handle.read), ("number", handle.moments)):
            with pytest.raises(
                InvalidRequest, match=f"{name} is .*; expected a whole number, 0 or"
            ):
                read(wrong)
        for zero in (0, np.int64(0), torch.tensor(0)):
            assert handle.read(zero) == handle.read(0)  # type: ignore[arg-type]
            assert handle.moments(zero) == handle.moments(0)  # type: ignore[arg-type]


def test_an_idle_service_looks_for_garbage_once_and_one_that_works_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    num_live = [0]
    monkeypatch.setattr("manyhands.engine.service._IDLE", 0.05)
    monkeypatch.setattr(
        "manyhands.engine.service.collect_while_idle", lambda: looks.append(num_live[0])
    )

    def slow() -> Strategy:
        num_live[0] += 1
        view, feed = View([Block()]), (1,)
        for _ in range(5):
            time.sleep(0.04)
            feed = yield Step([Row(view, feed)])
        num_live[0] -= 1
        return Answer(text="")

    with Service(small_engine()) as service:
        assert soon(lambda: bool(looks), SOON)
        time.sleep(0.3)  # as long as six looks would take
        assert looks == [0]
        service.submit(slow()).result(SOON)
        assert soon(lambda: len(looks) > 1, SOON)
        time.sleep(0.3)
    assert looks == [0, 0]
