"""A run as plain data, and back: what a trace's header must say so that the run can be built again.

    header = describe_run(problem, settings, prompt, context=4096)     # goes through JSON unharmed
    strategy_from(header, text, context=4096)                          # the same strategy once more

The method is not written down twice: `TeamSettings` belong to hogwild and `SoloSettings` to
sequential, in both directions. A header that we do not understand in full is a `BrokenTrace`; a
setting that it leaves out has its default, so that traces outlive a new setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, get_type_hints

from manyhands.cache.step import Choice
from manyhands.errors import BrokenTrace, InvalidRequest
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.base import Strategy
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import Away, EndSettings, SoloSettings, TeamSettings
from manyhands.text import Text

Settings = TeamSettings | SoloSettings


def method_of(settings: Settings) -> str:
    """The name of the strategy that these settings are for."""
    return "hogwild" if isinstance(settings, TeamSettings) else "sequential"


def workers_of(settings: Settings) -> int:
    """How many workers write."""
    return settings.workers if isinstance(settings, TeamSettings) else 1


def layout_of(settings: Settings) -> str | None:
    """The team's layout; one worker alone has none."""
    return settings.layout if isinstance(settings, TeamSettings) else None


def describe(settings: Settings) -> dict[str, Any]:
    """All choices of a run as numbers, words, lists and dictionaries."""
    insertions: list[list[Any]] = []
    if isinstance(settings, TeamSettings):
        insertions = [[*place, text] for place, text in sorted(settings.insertions.items())]
        settings = replace(settings, insertions={})
    described = asdict(settings)
    described["snapshots"] = list(settings.snapshots)
    choice = settings.choice
    described["choice"] |= {
        "allowed": None if choice.allowed is None else sorted(choice.allowed),
        "forbidden": sorted(choice.forbidden),
    }
    if isinstance(settings, TeamSettings):
        described["insertions"] = insertions
        described["away"] = [asdict(away) for away in settings.away]
    return described


def describe_run(
    problem: str, settings: Settings, prompt: TeamPrompt, *, context: int | None
) -> dict[str, Any]:
    """What makes a strategy: the part of a trace's header that `strategy_from` reads."""
    return {
        "method": method_of(settings),
        "workers": workers_of(settings),
        "layout": layout_of(settings),
        "seed": settings.seed,
        "settings": describe(settings),
        "context": context,
        "prompt": asdict(prompt) | {"names": list(prompt.names)},
        "problem": problem,
    }


def strategy_from(header: Mapping[str, Any], text: Text, context: int | None) -> Strategy:
    """The strategy that a header describes, at its beginning. BrokenTrace if it does not."""
    settings, prompt = settings_from(header), prompt_from(header)
    problem = header.get("problem")
    if not isinstance(problem, str):
        raise _unclear("problem", problem)
    if isinstance(settings, TeamSettings):
        return hogwild(problem, text, settings, prompt, context=context)
    return sequential(problem, text, settings, prompt, context=context)


def settings_from(header: Mapping[str, Any]) -> Settings:
    """The settings in a header: `describe` backwards."""
    method, described = header.get("method"), header.get("settings")
    if method not in ("hogwild", "sequential"):
        raise _unclear("method", method)
    if not isinstance(described, Mapping):
        raise _unclear("settings", described)
    try:
        return _team(described) if method == "hogwild" else _solo(described)
    except (TypeError, ValueError, AttributeError, InvalidRequest) as error:
        raise _unclear("settings", error) from error


def prompt_from(header: Mapping[str, Any]) -> TeamPrompt:
    """The words in a header."""
    words = header.get("prompt")
    if not isinstance(words, Mapping):
        raise _unclear("prompt", words)
    try:
        return TeamPrompt(**words)
    except (TypeError, InvalidRequest) as error:
        raise _unclear("prompt", error) from error


def _team(described: Mapping[str, Any]) -> TeamSettings:
    rest = dict(described)
    insertions = {(int(w), int(step)): str(words) for w, step, words in rest.pop("insertions", ())}
    away = tuple(Away(**_typed(Away, absence)) for absence in rest.pop("away", ()))
    shared = _shared(rest)
    return TeamSettings(**shared, insertions=insertions, away=away, **_typed(TeamSettings, rest))


def _solo(described: Mapping[str, Any]) -> SoloSettings:
    rest = dict(described)
    return SoloSettings(**_shared(rest), **_typed(SoloSettings, rest))


def _shared(rest: dict[str, Any]) -> dict[str, Any]:
    """Take what both methods have, and JSON cannot hold as it is, out of `rest`."""
    choice = dict(rest.pop("choice", {}))
    allowed, forbidden = choice.pop("allowed", None), choice.pop("forbidden", ())
    return {
        "snapshots": tuple(map(int, rest.pop("snapshots", ()))),
        "end": EndSettings(**_typed(EndSettings, rest.pop("end", {}))),
        "choice": Choice(
            allowed=None if allowed is None else frozenset(map(int, allowed)),
            forbidden=frozenset(map(int, forbidden)),
            **_typed(Choice, choice),
        ),
    }


def _typed(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` as they are, if every plain one of them has the type that `kind` says."""
    for name, expected in get_type_hints(kind).items():
        plain = {bool: bool, int: int, float: int | float, str: str}.get(expected)
        if plain is not None and name in fields and not isinstance(fields[name], plain):
            raise TypeError(f"{name} is {fields[name]!r}")
    return dict(fields)


def _unclear(field: str, found: object) -> BrokenTrace:
    reason = str(found) if isinstance(found, Exception) else f"found {found!r}"
    return BrokenTrace(
        f"the trace's header does not say how to run it again: field '{field}', {reason[:200]}",
        hint="The file is damaged, or comes from another version of manyhands.",
    )
