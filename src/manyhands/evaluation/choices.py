"""From `name=value` on a command line to the settings of a method.

    choose(TeamSettings, {"workers": "3", "layout": "contiguous", "end.finisher_tokens": "16"})

The dataclass says which names there are and what their values look like, so an ablation needs no option
of its own. A dot goes into a part of the settings (`choice.temperature`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args, get_type_hints

from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest

_OWN = {(Choice, "draw")}  # set in every pass, and no user's to choose


def choose(kind: type[Any], chosen: Mapping[str, Any]) -> Any:
    """Settings of `kind`: its defaults, and what was chosen. Values are typed, or texts to be read.

    Raises InvalidRequest for a name it does not have or a value it cannot have.
    """
    given = {name: _value(kind, name, value) for name, value in chosen.items()}
    own = {name: value for name, value in given.items() if "." not in name}
    for part in sorted({name.partition(".")[0] for name in given if "." in name}):
        inner = {n.partition(".")[2]: v for n, v in given.items() if n.startswith(f"{part}.")}
        own[part] = dataclasses.replace(_default(kind, part), **inner)
    return kind(**own)


def pairs(listed: list[str]) -> dict[str, str]:
    """`["layout=contiguous"]` as a mapping. Raises InvalidRequest without `=`, or for a name twice."""
    found: dict[str, str] = {}
    for pair in listed:
        name, sign, value = (part.strip() for part in pair.partition("="))
        if not sign or not name:
            raise InvalidRequest(
                f"--set {pair!r} is no choice; expected name=value", hint="--set layout=contiguous"
            )
        if name in found:
            raise InvalidRequest(
                f"{name} was given twice: --set {name}={found[name]} and --set {name}={value}",
                hint="leave one of them out",
            )
        found[name] = value
    return found


def known(kind: type[Any], *, prefix: str = "") -> dict[str, Any]:
    """Every name that can be chosen, with the type of its value."""
    found: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if (kind, field.name) in _OWN:
            continue
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found |= known(hint, prefix=f"{prefix}{field.name}.")
        elif _reader(hint) is not None:
            found[prefix + field.name] = hint
    return found


def _value(kind: type[Any], name: str, value: Any) -> Any:
    names = known(kind)
    if name not in names:
        raise InvalidRequest(f"{kind.__name__} have no {name!r}", hint=f"known: {', '.join(names)}")
    read = _reader(names[name])
    if not isinstance(value, str) or read is None:
        return value
    try:
        return read(value)
    except ValueError as error:
        expected = getattr(names[name], "__name__", str(names[name]))
        raise InvalidRequest(
            f"{name} is {value!r}; expected {expected}", hint=f"for example {_EXAMPLES[read]}"
        ) from error


def _default(kind: type[Any], part: str) -> Any:
    field = next(f for f in dataclasses.fields(kind) if f.name == part)
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return get_type_hints(kind)[part]()


def _reader(hint: Any) -> Any:
    """How a text becomes a value of this type; None if there is no way."""
    options = [option for option in get_args(hint) if option is not NoneType]
    if hint == tuple[int, ...]:
        return _numbers
    if NoneType in get_args(hint) and len(options) == 1:
        hint = options[0]
    if get_args(hint) and all(isinstance(option, str) for option in get_args(hint)):
        hint = str  # Literal["a", "b"]; the settings look at the word themselves
    return {bool: _truth, int: int, float: float, str: str}.get(hint)


def _truth(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number.strip())


_EXAMPLES: dict[Any, str] = {int: "64", float: "0.5", _truth: "true", _numbers: "100,200", str: "a"}
