"""A run as plain data, and back: what a trace's header must say so that the run can be built again.

    header = describe_run(problem, settings, prompt, context=4096)     # goes through JSON unharmed
    strategy_from(header, text, context=4096)                          # the same strategy once more

Nothing is said of any one method: `methods.py` knows what belongs to each, and `plain.py` turns its
settings and its prompt into plain data. A header that we do not understand in full is a `BrokenTrace`;
a setting that it leaves out has its default, so that traces outlive a new setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyhands.errors import BrokenTrace, InvalidRequest
from manyhands.prompts.load import TABLES
from manyhands.strategies.base import Strategy
from manyhands.strategies.methods import METHODS, Method, Settings, method_of
from manyhands.strategies.plain import from_plain, to_plain
from manyhands.text import Text


def workers_of(settings: Settings) -> int:
    """How many workers write from the start."""
    workers = getattr(settings, "workers", 1)
    assert isinstance(workers, int), "settings count their workers"
    return workers


def layout_of(settings: Settings) -> str | None:
    """The team's layout; None for a method that has none."""
    layout = getattr(settings, "layout", None)
    return None if layout is None else str(layout)


def describe(settings: Settings) -> dict[str, Any]:
    """All choices of a run as numbers, words, lists and dictionaries."""
    described: dict[str, Any] = to_plain(settings)
    return described


def describe_run(
    problem: str, settings: Settings, prompt: Any, *, context: int | None
) -> dict[str, Any]:
    """What makes a strategy: the part of a trace's header that `strategy_from` reads."""
    return {
        "method": method_of(settings).name,
        "workers": workers_of(settings),
        "layout": layout_of(settings),
        "seed": settings.seed,
        "settings": describe(settings),
        "context": context,
        "prompt": to_plain(prompt),
        "problem": problem,
    }


def strategy_from(header: Mapping[str, Any], text: Text, context: int | None) -> Strategy:
    """The strategy that a header describes, at its beginning. BrokenTrace if it does not."""
    method, settings, prompt = method_from(header), settings_from(header), prompt_from(header)
    problem = header.get("problem")
    if not isinstance(problem, str):
        raise _unclear("problem", problem)
    return method.make(problem, text, settings, prompt, context=context)


def method_from(header: Mapping[str, Any]) -> Method:
    """The method in a header."""
    name = header.get("method")
    if not isinstance(name, str) or name not in METHODS:
        raise _unclear("method", name)
    return METHODS[name]


def settings_from(header: Mapping[str, Any]) -> Settings:
    """The settings in a header: `describe` backwards."""
    settings: Settings = _object(header, "settings", method_from(header).settings)
    return settings


def prompt_from(header: Mapping[str, Any]) -> Any:
    """The words in a header, of the kind that its method reads."""
    return _object(header, "prompt", TABLES[method_from(header).prompt])


def _object(header: Mapping[str, Any], field: str, kind: type[Any]) -> Any:
    described = header.get(field)
    try:
        return from_plain(kind, described, field)
    except (TypeError, ValueError, InvalidRequest) as error:
        raise _unclear(field, error) from error


def _unclear(field: str, found: object) -> BrokenTrace:
    reason = str(found) if isinstance(found, Exception) else f"found {found!r}"
    return BrokenTrace(
        f"the trace's header does not say how to run it again: field '{field}', {reason[:200]}",
        hint="The file is damaged, or comes from another version of manyhands.",
    )
