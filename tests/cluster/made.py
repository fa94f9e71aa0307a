"""Answers without a model, for replicas of tests: numbers that are squared, at a pace, with accidents."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.cache.usage import Usage
from manyhands.cluster.replica import Answers
from manyhands.errors import ManyhandsError, ModelNotFound

SLOW = "slow"
Row = tuple[int, str]  # a number, and what happens when it comes


def squares(seconds: float = 0.0, folder: str | None = None, **facts: Any) -> Answers[Row, int]:
    """Rows are answered in turns, as an engine does. A row that says `die` ends the process, `fail` the
    engine; `err` is a mistake of its user. In `folder` each process leaves its number.
    """
    if folder is not None:
        (Path(folder) / str(os.getpid())).touch()
    usage = Usage()

    def answered(rows: Iterable[Row | None]) -> Iterator[tuple[Row, Any]]:
        nonlocal usage
        live: list[Row] = []
        coming = iter(rows)
        while True:
            while len(live) < 4 and (row := next(coming, None)) is not None:
                live.append(row)
            if not live:
                return
            time.sleep(seconds)
            row = live.pop(0)
            number, then = row
            if then == "die":
                os._exit(1)
            if then == "fail":
                raise RuntimeError("the device is lost")
            usage += Usage(forward_passes=1, tokens_chosen=1)
            yield row, ManyhandsError("no number") if then == "err" else number * number

    return Answers(answered, {"kind": "squares", **facts}, lambda: usage, ["made of numbers"])


def nothing() -> Answers[Row, int]:
    """A model that is not there."""
    raise ModelNotFound("there is no model 'x'", hint="give another")


def broken() -> Answers[Row, int]:
    """A replica that cannot begin."""
    raise RuntimeError("no driver")


def paced(seconds: float, folder: Path | None = None) -> Callable[[], Answers[Row, int]]:
    """As an argument for replicas."""
    return partial(squares, seconds, None if folder is None else str(folder))


def dice_front(
    mark: str, seconds: float = 0.01, keys: tuple[str, ...] = (), folder: str | None = None
) -> Any:
    """A server without a model, for a replica. In `folder` a file with its mark has its process, and while there
    is one of the name `slow` a pass takes `seconds`.
    """
    from tests.server.house import Model, make_house

    def held(_: int) -> None:
        if folder is not None and (Path(folder) / SLOW).exists():
            time.sleep(seconds)

    if folder is not None:
        (Path(folder) / mark).write_text(str(os.getpid()))
    front = make_house(Model(0.0 if folder else seconds, held), keys=keys).front
    front.runs.mark = mark
    return front


@contextmanager
def door_of(door: Any) -> Iterator[Any]:
    """A door at a port of this machine, and a client of it."""
    import httpx2

    from manyhands.server.process import Place, listening, serve_app

    place = Place("127.0.0.1", 0, drain=1.0, log=False)
    listener = listening(place)
    app = door.app(hosts=place.names)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(serve_app(app, door, place, listener)))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx2.Client(base_url=url, timeout=40) as client:
            yield client
    finally:
        door.stop()
        thread.join(20)
    assert codes == [0]
