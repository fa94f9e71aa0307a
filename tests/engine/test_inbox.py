"""Words that wait to be heard are bounded, at every door of a run, and so are all that it is told in its life."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from manyhands.cache.pages import PagePool
from manyhands.engine.filling import Filling
from manyhands.engine.inbox import Inbox
from manyhands.engine.scheduler import Scheduler
from manyhands.engine.service import Service
from manyhands.errors import Busy, InvalidRequest
from manyhands.strategies.listening import (
    MAX_NAME_CHARS,
    MAX_SAID_CHARS,
    MAX_TOLD_CHARS,
    MAX_UNHEARD_CHARS,
    AnswerNow,
    Item,
    PauseWorker,
    Said,
)
from tests.engine.small import counting
from tests.engine.test_service import SOON, begun, endless, listener, predict

LARGEST = Said("x" * MAX_SAID_CHARS, "D" * MAX_NAME_CHARS)


def as_many_as_wait(say: Callable[[Item], None], item: Item) -> int:
    """How many are taken before one is refused."""
    taken: list[Item] = []

    def say_many() -> None:
        for _ in range(10**6):
            say(item)
            taken.append(item)

    with pytest.raises(Busy, match=f"expected at most {MAX_UNHEARD_CHARS}") as found:
        say_many()
    assert "once the run has heard what waits" in found.value.hint
    return len(taken)


@pytest.mark.parametrize("item", [LARGEST, Said("x", "Dana"), PauseWorker(1), AnswerNow()])
def test_what_waits_is_bounded_by_texts_and_by_items(item: Item) -> None:
    inbox = Inbox()
    count = as_many_as_wait(inbox.put, item)
    assert count * item.num_chars <= MAX_UNHEARD_CHARS < (count + 1) * item.num_chars
    assert inbox.items == (item,) * count == inbox.take()
    assert as_many_as_wait(inbox.put, item) == count, "what was heard waits no more"


def test_what_a_run_is_told_in_its_life_is_bounded() -> None:
    """It stands in the run's trace."""
    inbox = Inbox()
    count = MAX_TOLD_CHARS // LARGEST.num_chars
    for _ in range(count):
        inbox.put(LARGEST)
        inbox.take()
    with pytest.raises(
        InvalidRequest, match=f"in its life; expected at most {MAX_TOLD_CHARS}"
    ) as found:
        inbox.put(LARGEST)
    assert "another run" in found.value.hint


def test_many_threads_pass_no_bound() -> None:
    inbox, heard = Inbox(), list[Item]()
    items = [Said("y" * random.Random(n).randrange(1, 40_000), "Dana") for n in range(40)]
    taken = list[Item]()

    def speak(some: list[Said]) -> None:
        for item in some:
            try:
                inbox.put(item)
            except Busy:
                continue
            taken.append(item)

    speakers = [threading.Thread(target=speak, args=(items[n::4],)) for n in range(4)]
    for each in speakers:
        each.start()
    while any(each.is_alive() for each in speakers):
        assert sum(each.num_chars for each in inbox.items) <= MAX_UNHEARD_CHARS
        heard += inbox.take()
    heard += inbox.take()
    assert sorted(map(id, heard)) == sorted(map(id, taken))


def test_a_run_that_waits_for_its_turn() -> None:
    """Outside of the engine, where nothing knows whether it listens."""
    with Service(Scheduler(predict, PagePool(100), Filling(10_000)), max_live=1) as service:
        live = begun(service.submit(endless()))
        waiting, deaf = service.submit(listener()), service.submit(counting((5, 6), 4))
        count = as_many_as_wait(waiting.say, LARGEST)
        assert as_many_as_wait(deaf.say, LARGEST) == count > 2
        live.cancel()
        assert waiting.result(SOON).text == " ".join([LARGEST.text] * count)
        assert deaf.result(SOON).text


def test_a_run_that_makes_no_pass() -> None:
    engine = Scheduler(predict, PagePool(100), Filling(10_000))
    run = engine.submit(listener())
    for _ in range(2):
        engine.step()
    assert run.listens
    assert as_many_as_wait(run.say, LARGEST) > 2
    engine.step()
    assert run.done
    assert not run.unheard
