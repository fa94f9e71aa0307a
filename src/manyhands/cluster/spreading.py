"""Rows over the replicas of a cluster: started, filled, and replaced when they die.

    with Spread(ray, share, make, concurrency=64) as spread:
        facts = spread.facts                        waits for the first replica
        for found in spread.results(rows):          [] now and then, so that a caller can look around
            for row, told in found: ...

One program asks, and it alone writes what came of it; so there is nothing to agree on between machines. It has every
row until its answer is fetched: a replica that dies takes none with it, and an answer that comes twice counts once
(`rows.py`). Ray restarts nothing by itself here: a new actor is a new replica with another name.

A row that ends every replica it comes to is given up: it is told a `ReplicaLost`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Generic, TypeVar

from manyhands.cache.usage import Usage
from manyhands.cluster.joining import Share
from manyhands.cluster.replica import Answers, Replica
from manyhands.cluster.rows import Rows
from manyhands.errors import InvalidRequest, ManyhandsError, counted

Row = TypeVar("Row")
Told = TypeVar("Told")
_LOOK_AROUND = 0.5  # seconds
# Seconds for which rows are kept for a replica that loads, or waits for a machine.
_PATIENCE = 120.0
_SPARE = 16  # rows that wait in a replica, so that none is waited for
_FAILED_STARTS = 5  # in a row, of all replicas together, and none answers meanwhile
_BEGIN, _TAKE, _NEWS = "begin", "take", "news"  # verbs of a replica


class ReplicaLost(ManyhandsError):
    """A row was with replicas that died, each time; or no replica could be started."""


@dataclass
class _Actor:
    """A replica as it is seen from here."""

    name: int
    handle: Any
    begun: float = field(default_factory=time.monotonic)
    is_ready: bool = False
    usage: Usage = field(default_factory=Usage)


class Spread(Generic[Row, Told]):
    """Replicas that answer rows. `concurrency`: how many rows each has in its engine."""

    def __init__(
        self,
        ray: Any,
        share: Share,
        make: Callable[[], Answers[Row, Told]],
        *,
        concurrency: int,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._ray, self._share, self._make = ray, share, make
        self._quota = concurrency + _SPARE
        self._note = note
        self._names = itertools.count(1)
        self._actors: dict[int, _Actor] = {}
        self._asked: dict[Any, tuple[int, str]] = {}  # by Ray's reference: who was asked, and what
        self._past_usage = Usage()  # of replicas that are gone
        self._failed_starts = 0
        self._facts: dict[str, Any] | None = None
        self._rows: Rows[Row] = Rows([], self._quota)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the answers, on which all replicas agree. Waits for the first replica."""
        self.wait(1)
        assert self._facts is not None, "a replica has begun"
        return self._facts

    def wait(self, replicas: int | None = None) -> None:
        """Start so many replicas, all if it is None, and wait until one of them can be asked."""
        wanted = min(self._share.replicas, replicas or self._share.replicas)
        self._fill_up(wanted)
        late = time.monotonic() + _PATIENCE
        while self._facts is None:
            self._hear()
            self._fill_up(wanted)
            if time.monotonic() > late:
                late = math.inf
                self._note(
                    f"no replica has begun in {_PATIENCE:g} s: it loads still, or the cluster has no "
                    "room (`ray status` tells); waiting"
                )

    @property
    def usage(self) -> Usage:
        """The work of all replicas, as far as they have told."""
        return sum((actor.usage for actor in self._actors.values()), self._past_usage)

    def results(
        self, rows: Iterable[Row]
    ) -> Generator[list[tuple[Row, Told | ManyhandsError]], None, None]:
        """Results of rows, in the order in which it comes; nothing, every half second without news."""
        self._rows = Rows(rows, self._quota)
        while self._rows.num_left:
            self._fill_up(min(self._share.replicas, self._rows.num_left))
            self._hand_out()
            yield self._hear()

    def answered(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Told | ManyhandsError]]:
        """The same, one by one."""
        for found in self.results(rows):
            yield from found

    def close(self) -> None:
        """End all replicas, whatever they do."""
        for actor in list(self._actors.values()):
            self._drop(actor)

    def __enter__(self) -> Spread[Row, Told]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- replicas ----------------------------------------------------------------------------------

    def _fill_up(self, wanted: int) -> None:
        """Start replicas until there are so many. Those for which there is no room wait for it."""
        while len(self._actors) < wanted:
            kind = self._ray.remote(Replica).options(
                **self._share.resources, max_restarts=0, max_task_retries=0
            )
            actor = _Actor(next(self._names), kind.remote())
            self._actors[actor.name] = actor
            self._ask(actor, _BEGIN, self._make)

    def _hand_out(self) -> None:
        now = time.monotonic()
        ready = [actor for actor in self._actors.values() if actor.is_ready]
        expected = [a for a in self._actors.values() if a.is_ready or now - a.begun < _PATIENCE]
        for actor in ready:
            while piece := self._rows.piece(actor.name, len(expected)):
                self._ask(actor, _TAKE, piece)

    def _ask(self, actor: _Actor, verb: str, *arguments: Any) -> None:
        self._asked[getattr(actor.handle, verb).remote(*arguments)] = (actor.name, verb)

    def _hear(self) -> list[tuple[Row, Told | ManyhandsError]]:
        """Wait a moment for what replicas have to say; what came of rows."""
        heard, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=_LOOK_AROUND)
        found: list[tuple[Row, Told | ManyhandsError]] = []
        for reference in heard:
            name, verb = self._asked.pop(reference)
            actor = self._actors[name]
            try:
                told = self._ray.get(reference)
            except Exception as error:  # of Ray, or whatever the replica raised
                found += self._lose(actor, error)
                continue
            if verb == _BEGIN:
                self._begun(actor, told)
            elif verb == _NEWS:
                actor.usage = told.usage
                self._failed_starts = 0
                by_number = dict(told.found)
                ended = self._rows.finish(name, by_number)
                found += [(self._rows.rows[number], by_number[number]) for number in ended]
                self._ask(actor, _NEWS)
        return found

    def _begun(
        self, actor: _Actor, told: tuple[dict[str, Any], list[str]] | ManyhandsError
    ) -> None:
        if isinstance(told, ManyhandsError):
            raise told
        facts, notes = told
        if self._facts is None:
            self._facts = facts
            for text in notes:
                self._note(text)
        _check_same(facts, self._facts)
        self._failed_starts = 0
        actor.is_ready = True
        self._ask(actor, _NEWS)

    def _lose(self, actor: _Actor, error: Exception) -> list[tuple[Row, Told | ManyhandsError]]:
        """A replica is gone: its rows are done again, but for those that may be why."""
        reason = _reason(error)
        if not actor.is_ready:
            self._failed_starts += 1
            is_answered = any(each.is_ready for each in self._actors.values())
            if self._failed_starts >= _FAILED_STARTS and not is_answered:
                raise ReplicaLost(
                    f"{_FAILED_STARTS} replicas in a row could not be started; the last: {reason}",
                    hint="look at the logs of Ray on that machine, in /tmp/ray/session_latest/logs",
                )
        num_rows = self._rows.has(actor.name)
        self._drop(actor)
        given_up = self._rows.lose(actor.name)
        self._note(
            f"replica {actor.name} is gone ({reason}); "
            f"done again of what it had: {counted(num_rows - len(given_up), 'request')}"
        )
        lost = (ReplicaLost(f"every replica that had this request died; the last: {reason}"),)
        return [(self._rows.rows[number], error) for number in given_up for error in lost]

    def _drop(self, actor: _Actor) -> None:
        """Let go of a replica. It ends, if it has not."""
        del self._actors[actor.name]
        self._past_usage += actor.usage
        for reference in [at for at, (name, _) in self._asked.items() if name == actor.name]:
            del self._asked[reference]
        self._ray.kill(actor.handle)


def _check_same(facts: dict[str, Any], first: dict[str, Any]) -> None:
    """Answers of one file come from one model."""
    found = _difference("", {name: facts.get(name) for name in first}, first)
    if found is not None:
        name, here, there = found
        raise InvalidRequest(
            f"a machine of the cluster has {name} {here}, another one {there}",
            hint="install the same packages and put the same model on all of them",
        )


def _difference(name: str, here: Any, there: Any) -> tuple[str, Any, Any] | None:
    """The first part in which two facts differ, by its dotted path, as each has it; None if they are equal."""
    if here == there:
        return None
    pairs = [vars(each) if is_dataclass(each) else each for each in (here, there)]
    if not all(isinstance(each, Mapping) for each in pairs):
        return name, here, there
    one, other = pairs
    for part in [*other, *(part for part in one if part not in other)]:
        path = f"{name}.{part}" if name else str(part)
        if (found := _difference(path, one.get(part), other.get(part))) is not None:
            return found
    return name, here, there


def _reason(error: Exception) -> str:
    """Why a replica is gone, in one line."""
    cause = getattr(error, "cause", None)
    said = cause if isinstance(cause, BaseException) else error
    lines = str(said).strip().splitlines() or [""]
    return f"{type(said).__name__}: {lines[0]}"[:300]
