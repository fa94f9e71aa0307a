"""The runs of a server: whose they are, what can be read of them, and how long.

A run of a method has an id that cannot be guessed, and belongs to the owner that began it: for anybody else
there is no such run. Its records (`records.py`) are made of the handle's log when a reader wants them. A run
that has ended can be read until there are too many of those, or too much in them.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from manyhands.engine.service import Handle, Moment, Service
from manyhands.errors import ManyhandsError, ServiceStopped
from manyhands.schema.lines import Line
from manyhands.schema.openai import shown
from manyhands.server.asked import Asked, Served
from manyhands.server.failures import Refusal, failure_of
from manyhands.server.partial import partial_answer
from manyhands.server.records import (
    Record,
    begin_record,
    end_record,
    missed_record,
    pass_record,
)
from manyhands.server.shapes import PROMPTS
from manyhands.server.usage import usage_of
from manyhands.strategies.base import Answer
from manyhands.strategies.run_spec import RunSpec
from manyhands.text import Text


@dataclass(eq=False)
class ServedRun:
    """One run: what was asked, its handle, and its trace as it grows.

    `id` is None for plain decoding, which nobody looks up.
    """

    asked: Asked
    owner: str
    handle: Handle
    model: str
    text: Text
    id: str | None = None
    request_id: str | None = None  # of the request that began it
    created: int = field(default_factory=lambda: int(time.time()))
    trace: list[Line] = field(default_factory=list)

    @property
    def spec(self) -> RunSpec:
        """Of a run with an id."""
        assert self.asked.spec is not None, "a run with an id has a spec"
        return self.asked.spec

    @property
    def num_records(self) -> int:
        """How many there are up to now."""
        return 1 + self.handle.num_moments + self.handle.done

    def begin(self) -> Record:
        """Record 0."""
        spec = self.spec
        return begin_record(
            spec,
            run=self.id,
            model=self.model,
            listens=spec.method.listens,
            created=self.created,
            warning=self.asked.warning,
        )

    def records(self, number: int) -> list[tuple[int, Record]]:
        """Records from `number` on that are known by now, with their numbers."""
        found: list[tuple[int, Record]] = []
        is_done = self.handle.done  # before the log is read: nothing comes behind its end
        if number == 0:
            found.append((0, self.begin()))
            number = 1
        moments, missed = self.handle.moments(number - 1)
        found += self.numbered(moments, missed, number)
        last = 1 + self.handle.num_moments
        if is_done and number <= last:
            found.append((last, self.end()))
        return found

    def numbered(
        self, moments: list[Moment], missed: int, number: int
    ) -> Iterator[tuple[int, Record]]:
        """Moments as records; the first of them, or of those that were missed, has this number."""
        if missed:
            yield number + missed - 1, missed_record(missed)
        for index, moment in enumerate(moments, number + missed):
            yield index, pass_record(moment.num_passes, moment.time, moment.events)

    def end(self) -> Record:
        """The last record, once the run is done."""
        answer, error = self.outcome()
        moments, _ = self.handle.moments(max(0, self.handle.num_moments - 1))
        return end_record(
            moments[-1].time if moments else 0.0,
            answer,
            None if error is None else error.error,
            usage_of(self.asked, answer, self.handle),
        )

    def outcome(self) -> tuple[Answer | None, Refusal | None]:
        """The answer of a run that is done, or why there is none.

        A run that ended because the server ends has what it has written.
        """
        end = self.handle.outcome
        assert end is not None, "it is done"
        if isinstance(end, Answer):
            return end, None
        if not isinstance(end, ServiceStopped):
            return None, failure_of(end, PROMPTS.get(self.asked.url))
        answer = None
        if end.__cause__ is None:
            answer = partial_answer(self.asked, self.handle, self.text)
        return answer, None if answer is not None else failure_of(end)

    def mistake(self) -> BaseException | None:
        """The error of a strategy that is none for users: a mistake of ours."""
        end = self.handle.outcome
        return end if isinstance(end, Exception) and not isinstance(end, ManyhandsError) else None

    @property
    def status(self) -> str:
        """`running`, `done`, or `failed`."""
        if not self.handle.done:
            return "running"
        return "done" if self.outcome()[1] is None else "failed"

    def told(self) -> dict[str, Any]:
        """The entry of this run in a list of runs."""
        problem = self.spec.problem
        return {
            "id": self.id,
            "object": "run",
            "created": self.created,
            "model": self.model,
            "method": self.spec.method.name,
            "names": list(self.spec.names),
            "problem": problem if len(problem) <= 200 else f"{problem[:200]}…",
            "status": self.status,
            "listens": self.spec.method.listens and not self.handle.done,
            "records": self.num_records,
        }


class Runs:
    """All runs of a server that are under way, and those that can still be read.

    `mark` stands in their ids: which of several servers has them.
    """

    def __init__(self, served: Served, service: Service, mark: str = "") -> None:
        self.served, self.service, self.mark = served, service, mark
        self.live: set[ServedRun] = set()
        self._known: OrderedDict[str, ServedRun] = OrderedDict()  # with an id, the oldest first

    def begin(self, asked: Asked, owner: str) -> ServedRun:
        """Begin what is asked for. Raises Busy, ServiceStopped, and what a strategy refuses at once."""
        strategy, trace = asked.begin(self.served, owner)
        is_method = asked.spec is not None
        name = f"run_{self.mark}{secrets.token_urlsafe(18)}" if is_method else None
        handle = self.service.submit(
            strategy,
            deadline=self.served.limits.run_seconds,
            lifecycle=is_method,
        )
        told = self.served.name, self.served.text, name
        run = ServedRun(asked, owner, handle, *told, trace=trace)
        self.live.add(run)
        if name is not None:
            self._known[name] = run
        return run

    def ended(self, run: ServedRun) -> None:
        """Take note that a run is done; old ones may be forgotten for it."""
        self.live.discard(run)
        if not run.handle.done:
            run.handle.cancel()
        limits = self.served.limits
        done = [run for run in self._known.values() if run.handle.done]
        kept = sum(run.handle.num_events_kept for run in done)
        num = len(done)
        for old in done:
            if num <= limits.kept_runs and kept <= limits.kept_events:
                break
            assert old.id is not None, "what is known has an id"
            del self._known[old.id]
            num, kept = num - 1, kept - old.handle.num_events_kept

    def of(self, owner: str) -> list[ServedRun]:
        """The runs that this owner can look at, the newest first."""
        return [run for run in reversed(self._known.values()) if run.owner == owner]

    def get(self, name: str, owner: str) -> ServedRun:
        """One of them. Refused where there is none, or another's."""
        run = self._known.get(name)
        if run is None or run.owner != owner:
            said = f"there is no run {shown(name)}, or none any more; GET /v1/runs lists those that there are"
            raise Refusal(404, said, code="run_not_found")
        return run


def check_traced(run: ServedRun, most: int) -> None:
    """Refused if the trace has outgrown what is kept."""
    if len(run.trace) >= most:
        raise Refusal(
            404,
            f"the run is longer than the {most} lines of a trace that are kept",
            code="too_long",
        )
