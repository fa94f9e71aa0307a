"""A replica: a model in a process of its own, and a thread that answers the rows that come to it.

Rows come in pieces and are answered together, however many pieces there are: the thread asks for the next row
between two passes, as the loop of the engine does (`engine/loop.py`), so a piece that ends leaves no gap.

    replica = Replica()
    facts = await replica.begin(make)       loads; `make` gives `Answers`
    await replica.take([(7, row), ...])     at any time
    found = await replica.news()            waits until there is something: numbers and what came of their rows

The class knows nothing of Ray, and is made an actor by `spreading.py`. An exception that is no error for users ends
the thread: it is raised by `news`, and the asking side lets the process go.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from manyhands.cache.usage import Usage
from manyhands.errors import ManyhandsError

Row = TypeVar("Row")
Told = TypeVar("Told")


@dataclass(frozen=True)
class Answers(Generic[Row, Told]):
    """How rows are answered in one process.

    `answered` is given rows, and None where there is none at the moment; it gives each row back, the object itself,
    with what came of it. `facts` are plain data, and equal wherever the same answers would come. `notes` are
    for the user.
    """

    answered: Callable[[Iterable[Row | None]], Iterator[tuple[Row, Told]]]
    facts: dict[str, Any]
    usage: Callable[[], Usage] = Usage
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class News(Generic[Told]):
    """Results of rows, by their numbers, and the work of the replica since it began."""

    found: list[tuple[int, Told]]
    usage: Usage


class Replica(Generic[Row, Told]):
    """See the head of this file. Its verbs are called in one event loop."""

    def __init__(self) -> None:
        self._answers: Answers[Row, Told] | None = None
        self._coming: deque[tuple[int, Row]] = deque()
        self._numbers: dict[int, tuple[int, Row]] = {}  # by the identity of a row
        self._changed = threading.Condition()
        self._found: list[tuple[int, Told]] = []
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def begin(
        self, make: Callable[[], Answers[Row, Told]]
    ) -> tuple[dict[str, Any], list[str]] | ManyhandsError:
        """Load. Facts and notes, or the error that a user is to be told."""
        self._loop = asyncio.get_running_loop()
        try:
            answers = await asyncio.to_thread(make)
        except ManyhandsError as error:
            return error
        self._answers = answers
        threading.Thread(target=self._work, name="manyhands-replica", daemon=True).start()
        return answers.facts, answers.notes

    async def take(self, rows: list[tuple[int, Row]]) -> None:
        """Answer these, too."""
        with self._changed:
            self._coming.extend(rows)
            self._changed.notify_all()

    async def news(self) -> News[Told]:
        """The news since the last call; waits until there is something. One call at a time."""
        assert self._answers is not None, "a replica begins before it is asked"
        await self._news.wait()
        self._news.clear()
        with self._changed:
            found, self._found = self._found, []
            error = self._error
        if error is not None and not found:
            raise error
        if error is not None:
            self._news.set()
        return News(found, self._answers.usage())

    # -- in the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        assert self._answers is not None, "it has begun"
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._coming))
                for row, told in self._answers.answered(self._source()):
                    self._tell(row, told)
        except BaseException as error:
            with self._changed:
                self._error = error
            self._wake()

    def _source(self) -> Iterator[Row | None]:
        """Rows as they come, and None where there is none."""
        while True:
            with self._changed:
                pair = self._coming.popleft() if self._coming else None
                if pair is not None:
                    self._numbers[id(pair[1])] = pair
            yield None if pair is None else pair[1]

    def _tell(self, row: Row, told: Told) -> None:
        with self._changed:
            number, _ = self._numbers.pop(id(row))
            self._found.append((number, told))
        self._wake()

    def _wake(self) -> None:
        assert self._loop is not None, "it has begun"
        self._loop.call_soon_threadsafe(self._news.set)
