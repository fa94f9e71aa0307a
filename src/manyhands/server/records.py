"""A run as a list of JSON records, numbered from 0: what a page draws, live or from a file.

    0     {"kind": "begin", "method": "hogwild", "names": ["Alice", "Bob"], "problem": ..., ...}
    1     {"kind": "pass", "pass": 1, "time": 0.03, "events": [{"event": "TokenWritten", ...}, ...]}
    ...
    n     {"kind": "end", "time": 2.1, "answer": {...}, "error": None, "usage": {...}}

One record holds all that happened in one forward pass, however many workers there are; what happens before
the first pass stands in a record of its own, with pass 0. Events have the encoding of their registry
(`strategies/events.py::to_line`), those of the engine included. A reader that was slower than the log is
long finds a record of the kind "missed" in the place of what it missed.

On the wire a record is one server-sent event, whose id is the record's number:

    id: 1
    data: {"kind": "pass", ...}

So a reader that comes back says the last number it has (`Last-Event-ID`) and goes on behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from manyhands.schema.plain import to_plain
from manyhands.strategies.account import Account
from manyhands.strategies.base import Answer
from manyhands.strategies.events import Event, to_line
from manyhands.strategies.run_spec import RunSpec

Record = dict[str, Any]
RETRY = b"retry: 1000\n\n"  # milliseconds after which a browser comes back by itself


def begin_record(
    spec: RunSpec,
    *,
    run: str | None,
    model: str,
    listens: bool,
    created: int,
    warning: str | None = None,
) -> Record:
    """Record 0: what is known before the first pass. `created` in seconds since 1970.

    `warning` says why the model was not made for this question.
    """
    return {
        "kind": "begin",
        "run": run,
        "method": spec.method.name,
        "names": list(spec.names),
        "problem": spec.problem,
        "model": model,
        "budget": spec.settings.budget,
        "settings": to_plain(spec.settings),
        "solo": spec.method.solo,
        "listens": listens,
        "created": created,
        "warning": warning,
    }


def pass_record(number: int, time: float, events: Iterable[Event]) -> Record:
    """All events of the `number`th forward pass of the run, `time` seconds after its beginning."""
    return {
        "kind": "pass",
        "pass": number,
        "time": round(time, 4),
        "events": [to_line(event) for event in events],
    }


def missed_record(count: int) -> Record:
    """In the place of `count` records that are not kept any more."""
    return {"kind": "missed", "count": count}


def end_record(
    time: float,
    answer: Answer | None,
    error: Mapping[str, Any] | None = None,
    usage: Mapping[str, Any] | None = None,
) -> Record:
    """The last record. `error` is OpenAI's error object; without an answer it says why there is none."""
    return {
        "kind": "end",
        "time": round(time, 4),
        "answer": None if answer is None else to_plain(answer),
        "error": None if error is None else dict(error),
        "usage": dict(usage or {}),
    }


def account_of(begin: Mapping[str, Any]) -> Account:
    """An account of the run at its beginning, to which the events of its records can be given."""
    return Account(begin["names"], solo=begin["solo"])


def encoded(record: Mapping[str, Any]) -> bytes:
    """A record as one line of JSON, in UTF-8. Lone surrogates, which UTF-8 has not, are escaped."""
    try:
        return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(record, separators=(",", ":")).encode()


def sent_event(number: int, line: bytes) -> bytes:
    """An encoded record as a server-sent event."""
    return b"id: %d\ndata: %b\n\n" % (number, line)
