"""A fork of the process that loaded an engine, and a pickle of one, are told so at once, where a fork waited for good."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.service import Handle, Service
from manyhands.errors import InvalidRequest
from manyhands.strategies.base import Strategy
from tests.engine.small import counting, small_engine

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    # Later Pythons warn where a process with threads forks.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def told_in_a_fork(calls: list[Callable[[], object]]) -> list[str]:
    """The outcome of each call in a fork of this process; a call that waits is found out after 20 s."""
    there, here = multiprocessing.Pipe()

    def told(end: Connection) -> None:
        said = []
        for call in calls:
            try:
                said.append(f"nothing: {call()!r}")
            except InvalidRequest as error:
                said.append(str(error))
        end.send(said)

    child = multiprocessing.get_context("fork").Process(target=told, args=(there,))
    child.start()
    try:
        assert here.poll(20), "a call waits for a thread that is not there"
        said: list[str] = here.recv()
        return said
    finally:
        child.kill()
        child.join()


def hundred() -> Strategy:
    return counting((5, 6, 7), 60)


def test_an_engine_is_not_used_in_a_fork() -> None:
    engine = small_engine(16384)
    expected = engine.run(hundred())
    calls: list[Callable[[], object]] = [
        lambda: engine.run(hundred()),
        lambda: engine.submit(hundred()),
        lambda: engine.step(),
        lambda: engine.forward(Step([Row(View([Block()]), (1, 2))])),
        lambda: next(iter(engine.stream(hundred()))),
    ]
    for said in told_in_a_fork(calls):
        assert said.startswith(f"the engine was made by process {os.getpid()} and is used in")
    assert engine.run(hundred()) == expected  # here nothing has changed


def test_a_service_and_its_runs_are_not_waited_for_in_a_fork() -> None:
    with Service(small_engine(16384)) as service:
        over = service.submit(hundred())
        over.result()
        running = Handle(service, None, 100)  # as one that is not done

        async def awaited() -> object:
            return await running

        async def listened() -> list[object]:
            return [event async for event in running]

        calls: list[Callable[[], object]] = [
            lambda: service.submit(hundred()),
            lambda: running.result(),
            lambda: list(running),
            lambda: asyncio.run(awaited()),
            lambda: asyncio.run(listened()),
            lambda: (over.result().text, service.close()),  # an outcome is known there, too
        ]
        *refused, known = told_in_a_fork(calls)
        for said in refused:
            assert said.startswith(f"the service was made by process {os.getpid()} and is used in")
        assert known.startswith("nothing: (")
        assert service.submit(hundred()).result() == over.result()  # here nothing has changed


def test_nothing_of_one_process_is_pickled_or_copied() -> None:
    engine = small_engine(256)
    with Service(engine) as service:
        for thing in (engine, service, service.submit(counting((5,), 2))):
            for way in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(InvalidRequest, match="pickled or copied") as told:
                    way(thing)
                assert "in each process" in told.value.hint
