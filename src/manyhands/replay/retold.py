"""A trace told again: the events and the answer in it, as the objects they were.

`parse_trace` has checked the integers; here the words are checked, before anything is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from manyhands.errors import BrokenTrace
from manyhands.prompts import TeamPrompt
from manyhands.replay.trace import Trace
from manyhands.schema.plain import from_plain
from manyhands.strategies.account import Account
from manyhands.strategies.base import Answer
from manyhands.strategies.events import WorkerJoined
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import MAX_WORKERS


def account_from(trace: Trace) -> Account:
    """The account of the run, as far as it went."""
    account = empty_account(trace)
    for number, event in enumerate(trace.events, 1):
        try:
            account.take(event)
        except IndexError as error:
            raise _damaged(f"event {number}", error) from error
    return account


def answer_from(trace: Trace) -> Answer | None:
    """The answer that ends the trace; None if the run was cut short."""
    if trace.answer is None:
        return None
    method = METHODS.get(str(trace.header.get("method")))
    kind, told = Answer if method is None else method.answer, trace.answer
    if method is None:  # a strategy of somebody's own may have told more
        known = {field.name for field in fields(Answer)}
        told = {name: value for name, value in told.items() if name in known}
    try:
        answer: Answer = from_plain(kind, told)
    except TypeError as error:
        raise _damaged("the answer", error) from error
    return answer


def empty_account(trace: Trace) -> Account:
    """The account before the first event: the names of the workers that are there from the start.

    The method says them; where it is unknown the header does, and where it does not they are counted.
    """
    header = trace.header
    method = METHODS.get(str(header.get("method")))
    workers = header.get("workers", 1)
    if type(workers) is not int or not 0 <= workers <= MAX_WORKERS:
        raise _damaged("the header", f"it counts {workers!r} workers")
    names: Sequence[str]
    if method is not None and header.get("settings") is not None and "prompt" in header:
        names = RunSpec.from_plain(dict(header) | {"context": None}).names
    elif "names" in header:
        names = _told_names(header)
    else:
        names = TeamPrompt().team(_counted(trace, workers))
    return Account(names, solo=method is not None and method.solo)


def _told_names(header: Mapping[str, Any]) -> list[str]:
    """The workers that the header names."""
    names = header["names"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _damaged("the header", f"its names are {names!r}; expected a list of texts")
    return names


def _counted(trace: Trace, workers: int) -> int:
    """How many workers were there from the start: all before the first who joined, or all that events tell of."""
    came = [event.worker for event in trace.events if isinstance(event, WorkerJoined)]
    told = [getattr(event, "worker", None) for event in trace.events]
    found = min(came) if came else max(workers, *(w + 1 for w in told if w is not None), 0)
    if not 0 <= found <= MAX_WORKERS:
        raise _damaged("an event", f"it tells of a worker {found - 1}")
    return found


def _damaged(what: str, why: object) -> BrokenTrace:
    reason = repr(why) if isinstance(why, Exception) else str(why)
    return BrokenTrace(
        f"{what} of the trace does not make sense ({reason[:200]})", hint="The file is damaged."
    )
