"""A second thread that calls an engine is told of a Service, and the run inside is what it is alone."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import pytest

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.one_thread import OneThread
from manyhands.engine.service import Service
from manyhands.errors import InvalidRequest
from manyhands.strategies.base import Answer, Strategy
from tests.engine.small import counting, finish, small_engine, solo, team


def test_four_threads_that_run_at_once_never_get_in_each_others_way() -> None:
    engine = small_engine(16384)
    makes: list[Callable[[], Strategy]] = [
        lambda: counting((5, 6, 7), 60),
        lambda: counting((8, 9), 60),
        lambda: team(2, budget=40),
        lambda: solo(budget=50),
    ]
    alone = [engine.run(make()) for make in makes]
    at_once = threading.Barrier(4)

    def run(make: Callable[[], Strategy]) -> Answer | InvalidRequest:
        at_once.wait()
        try:
            return engine.run(make())
        except InvalidRequest as refused:
            return refused

    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            told = list(pool.map(run, makes))
            assert any(isinstance(each, Answer) for each in told)
            for each, expected in zip(told, alone, strict=True):
                if isinstance(each, Answer):
                    assert each == expected
                else:
                    assert "while another thread is inside" in str(each)
                    assert "Service" in each.hint
    assert engine.pool.num_free_pages == engine.pool.num_pages


CALLS: dict[str, Callable[[Engine], object]] = {
    "run": lambda engine: engine.run(counting((5,), 2)),
    "stream": lambda engine: next(engine.stream(counting((5,), 2))),
    "submit": lambda engine: engine.submit(counting((5,), 2)),
    "step": lambda engine: engine.step(),
    "forward": lambda engine: engine.forward(Step([Row(View([Block()]), (5,))])),
    "get_ready": lambda engine: engine.get_ready(),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_call_is_refused_and_the_run_inside_goes_on(call: str) -> None:
    engine = small_engine()
    alone = engine.run(counting((8, 9), 6))
    refused: list[BaseException | None] = []

    def intrude() -> None:
        with ThreadPoolExecutor(1) as pool:
            refused.append(pool.submit(CALLS[call], engine).exception())

    def watched(strategy: Strategy) -> Strategy:
        asked = next(strategy)
        intrude()  # in the midst of `engine.run`, as a strategy is moved on
        while True:
            try:
                asked = strategy.send((yield asked))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    assert engine.run(watched(counting((8, 9), 6))) == alone
    assert [type(each) for each in refused] == [InvalidRequest]
    CALLS[call](engine)  # the door is open again


def test_another_thread_may_have_the_engine_when_the_first_is_outside() -> None:
    engine = small_engine()
    alone = engine.run(counting((8, 9), 6))
    run = engine.submit(counting((8, 9), 6))
    engine.step()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(finish, engine, run).result()
    assert run.result() == alone


def test_a_service_keeps_its_engine_until_it_is_closed() -> None:
    engine = small_engine()
    with Service(engine) as service:
        service.submit(counting((5,), 2)).result()
        with pytest.raises(InvalidRequest, match="another thread is inside"):
            engine.run(counting((5,), 2))
        assert service.error is None
        service.submit(counting((5,), 2)).result()
    engine.run(counting((5,), 2))


def test_a_second_service_of_an_engine_is_refused_when_it_is_made() -> None:
    """It was made, and broken: the first run that came to it was told so."""
    engine = small_engine(16384)
    for _ in range(20):  # whichever thread comes first
        with Service(engine) as service:
            with pytest.raises(InvalidRequest, match="while another thread is inside"):
                Service(engine)
            assert service.submit(counting((5,), 2)).result()
    assert engine.run(counting((5,), 2))


_LONGEST = (
    1_000_000  # times in and out, a second or so: ten thousand times what a signal takes to come
)


class Usual:
    """The same door as it is usually written, in Python."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            raise InvalidRequest("while another thread is inside")

    def __exit__(self, *_: object) -> None:
        self.lock.release()


@pytest.fixture
def strike_in() -> Iterator[Callable[[float], None]]:
    """A function that has `KeyboardInterrupt` raised so many seconds later, by a signal as Ctrl-C is one."""

    def strike(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def begin(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, strike)
    gc.collect()
    gc.disable()  # a signal that strikes in a finalizer is printed and lost
    yield begin
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="it is a signal that strikes")
def test_a_signal_at_any_moment_leaves_the_door_open(strike_in: Callable[[float], None]) -> None:
    """Of each hundred that strike the usual form some leave it shut, which is the control."""

    def left_shut(make: Callable[[], AbstractContextManager[Any]], num_signals: int) -> int:
        doors = []
        for at in range(num_signals):
            door = make()
            doors.append(door)
            try:
                strike_in(1e-4 + 1e-6 * (at % 17))
                # Should one be lost all the same, the loop has an end.
                for _ in range(_LONGEST):
                    with door:
                        pass
            except KeyboardInterrupt:
                continue
        with ThreadPoolExecutor(1) as pool:
            return sum(pool.map(is_shut, doors))

    def is_shut(door: AbstractContextManager[Any]) -> bool:
        try:
            with door:
                return False
        except InvalidRequest:
            return True

    assert left_shut(Usual, 100) > 0
    assert left_shut(OneThread, 1000) == 0
