"""A trace told again: the events and the answer in it, as the objects they were.

`parse_trace` has checked the integers; here the words are checked, before anything is shown.
"""

from __future__ import annotations

from typing import Any, get_type_hints

from manyhands.cli.account import LONE_WORKER, Account
from manyhands.errors import BrokenTrace
from manyhands.prompts import TeamPrompt
from manyhands.replay.trace import Trace
from manyhands.strategies.base import Answer, Event, FinishedStep
from manyhands.strategies.described import prompt_from
from manyhands.strategies.settings import MAX_WORKERS

_EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


def account_from(trace: Trace) -> Account:
    """The account of the run, as far as it went."""
    account = Account(_names(trace), solo=trace.header.get("method") == "sequential")
    for number, told in enumerate(trace.events, 1):
        fields = dict(told)
        try:
            event: Event = _checked(_EVENTS[fields.pop("event")], fields)
            account.take(event)
        except (KeyError, TypeError, IndexError) as error:
            raise _damaged(f"event {number}", error) from error
    return account


def answer_from(trace: Trace) -> Answer | None:
    """The answer that ends the trace; None if the run was cut short."""
    if trace.answer is None:
        return None
    fields = dict(trace.answer)
    try:
        steps = [_checked(FinishedStep, step) for step in fields.pop("steps", ())]
        tokens = [int(number) for number in fields.pop("tokens", ())]
        snapshots = {int(at): found for at, found in dict(fields.pop("snapshots", {})).items()}
        for name, kind in (("text", str), ("answer", str | None), ("finish_reason", str)):
            if name in fields and not isinstance(fields[name], kind):
                raise TypeError(f"{name} is {fields[name]!r}")
        return Answer(**fields, steps=tuple(steps), tokens=tuple(tokens), snapshots=snapshots)
    except (TypeError, ValueError) as error:
        raise _damaged("the answer", error) from error


def _checked(kind: type[Any], fields: dict[str, Any]) -> Any:
    """An object of `kind` whose fields have their types."""
    for name, expected in get_type_hints(kind).items():
        if name in fields and not isinstance(fields[name], expected):
            raise TypeError(f"{name} is {fields[name]!r}")
    return kind(**fields)


def _names(trace: Trace) -> tuple[str, ...]:
    header = trace.header
    if header.get("method") == "sequential":
        return (LONE_WORKER,)
    prompt = prompt_from(header) if "prompt" in header else TeamPrompt()
    writers = [told["worker"] for told in trace.events if isinstance(told.get("worker"), int)]
    workers = header.get("workers", max(writers, default=0) + 1)
    if not isinstance(workers, int) or not 1 <= workers <= MAX_WORKERS:
        raise _damaged("the header", f"it counts {workers!r} workers")
    return prompt.team(workers)


def _damaged(what: str, why: object) -> BrokenTrace:
    reason = repr(why) if isinstance(why, Exception) else str(why)
    return BrokenTrace(
        f"{what} of the trace does not make sense ({reason[:200]})", hint="The file is damaged."
    )
