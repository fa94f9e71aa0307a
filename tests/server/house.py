"""A server without a network: the scheduler, a prefix tree and a real tokenizer, with dice for a model.

What a row is answered depends on all that it can see and on its draw, so that any difference in what is read
shows. As a program (`python -m tests.server.house PORT`) it is a server in a process of its own.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from manyhands.cache.logprobs import Logprobs, Tokens
from manyhands.cache.pages import PagePool
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Step
from manyhands.cache.usage import Usage
from manyhands.engine.filling import Filling
from manyhands.engine.scheduler import Scheduler
from manyhands.engine.service import Service
from manyhands.prompts.load import Prompts
from manyhands.server.asked import Served
from manyhands.server.front import Front
from manyhands.server.keys import Keys
from manyhands.server.limits import Limits
from manyhands.server.process import Place, listening, serve
from manyhands.text import Text
from tests.strategies.driver import PROMPT, Dice, feed, small_text
from tests.waiting import soon

NAME = "dice"
MADE_WITH = {"device": "dice", "versions": {"manyhands": "1"}, "fingerprint": "of dice"}
NUM_PAGES = 4096
TEXT = small_text()


@dataclass
class Model:
    """A stand-in for a network. `seconds` a pass takes; `fails` is asked before each and may raise."""

    seconds: float = 0.0
    fails: Callable[[int], None] = lambda number: None
    pool: PagePool = field(default_factory=lambda: PagePool(NUM_PAGES))
    num_passes: int = 0
    dice: Callable[[Any], int] = field(default_factory=lambda: endless_dice())

    def predict(self, step: Step) -> tuple[int, ...]:
        self.num_passes += 1
        if self.seconds:
            time.sleep(self.seconds)
        self.fails(self.num_passes)
        self.pool.reserve((row.view.own, len(row.feed)) for row in step.rows)
        tokens = tuple(self.dice(row) for row in feed(step))
        told = {
            index: Logprobs(-token / 100, ((token, -token / 100),))
            for index, (row, token) in enumerate(zip(step.rows, tokens, strict=True))
            if row.choice.logprobs is not None
        }
        return Tokens(tokens, told) if told else tokens


def endless_dice() -> Dice:
    """Letters and ends of steps; no box is ever opened, and no turn ended."""
    dice = Dice(TEXT, boxes=0, ends=0)
    box = TEXT.encode("\\boxed{8")[0]
    dice.tokens = [token for token in dice.tokens if token != box]
    return dice


def usage_of_each(steps: Sequence[Step]) -> list[Usage]:
    """Passes and tokens; there are no keys and values to count."""
    return [
        Usage(
            1,
            sum(len(row.feed) for row in step.rows),
            sum(row.writer is not None for row in step.rows),
        )
        for step in steps
    ]


@dataclass
class House:
    """A server and what is behind it."""

    model: Model
    front: Front
    url: str = ""

    @property
    def pool(self) -> PagePool:
        return self.model.pool

    def num_pages_used(self) -> int:
        """Pages in use when every run has ended and the tree has let go of what no row reads.

        A client that leaves is forgotten at once; its run ends before the next pass, in another thread.
        """
        assert soon(lambda: self.front.runs.service.is_idle), "a run goes on"
        for keeper in list(self.pool.keepers):
            keeper.make_room(self.pool.num_pages)
        return self.pool.num_pages - self.pool.num_free_pages


def make_house(
    model: Model | None = None,
    *,
    keys: tuple[str, ...] = (),
    max_events: int = 10_000,
    text: Text = TEXT,
    seed: int | None = 0,
    **limits: Any,
) -> House:
    """A house; with a `seed`, two requests that name none and say the same are answered alike."""
    model = model or Model()
    bounds = Limits(**{"run_events": max_events, **limits})
    engine = Scheduler(model.predict, model.pool, Filling(10_000), usage_of_each)
    service = Service(
        engine,
        max_live=bounds.live_runs,
        max_waiting=bounds.waiting_runs,
        max_events=bounds.run_events,
    )
    served = Served(
        NAME,
        text,
        Prompts(team=PROMPT),
        context=2048,
        tree=PrefixTree(model.pool),
        limits=bounds,
        seed=seed,
        vocabulary=len(text.tokenizer.get_vocab()),
        place=MADE_WITH,
    )
    return House(model, Front(served, service, Keys(keys)))


@contextmanager
def running(house: House, place: Place | None = None) -> Iterator[House]:
    """The house behind a port, until the end of the block."""
    place = place or Place("127.0.0.1", 0, drain=0.0, log=False)
    started = threading.Event()

    def ready(url: str) -> None:
        house.url = url
        started.set()

    codes: list[int] = []
    taken = listening(place)
    thread = threading.Thread(
        target=lambda: codes.append(serve(house.front, place, taken, ready=ready)), daemon=True
    )
    thread.start()
    assert started.wait(30), "the server has not begun"
    try:
        yield house
    finally:
        house.front.stop()
        thread.join(30)
        assert not thread.is_alive(), "the server has not ended"
        assert codes == [70 if house.front.service.is_broken else 0]


def connected(house: House) -> socket.socket:
    """A connection without any client's manners."""
    host, port = house.url.removeprefix("http://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20)


def raw(house: House, request: bytes) -> tuple[int, bytes]:
    """Status and everything that comes back for these bytes."""
    with connected(house) as client:
        client.sendall(request)
        found = b""
        while piece := client.recv(65536):
            found += piece
    return int(found.split(b" ", 2)[1]) if found else 0, found


def main() -> None:
    """`PORT [fail]`: serve until a signal. With `fail` the engine breaks after ten passes."""

    def fails(number: int) -> None:
        if "fail" in sys.argv[2:] and number > 10:
            raise RuntimeError("/secret/path: the device is lost")

    house = make_house(Model(seconds=0.02, fails=fails))
    place = Place(
        "127.0.0.1",
        int(sys.argv[1]),
        drain=float(sys.argv[2]) if sys.argv[2:3] != ["fail"] and sys.argv[2:] else 5.0,
    )
    sys.exit(serve(house.front, place, ready=lambda url: print(url, flush=True)))


if __name__ == "__main__":
    main()
