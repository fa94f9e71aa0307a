"""From `name=value` to settings: what a user names, the dataclass types and checks.

    choose(TeamSettings(), {"workers": "3", "layout": "contiguous", "end.finisher_tokens": "16"})

The fields say which names there are and what their values look like, so an ablation needs no option of its
own. A dot goes into settings that a field holds (`choice.temperature`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from manyhands.errors import InvalidRequest
from manyhands.schema.plain import to_plain
from manyhands.schema.setting import Setting, own_number, settings_of

Settings = TypeVar("Settings")


@dataclasses.dataclass(frozen=True)
class Choosable:
    """A setting that a user can name: its dotted path, its type, its default, and how it was declared."""

    path: str
    kind: Any
    default: Any
    setting: Setting

    @property
    def flag(self) -> str:
        """The option on the command line that stands for it."""
        return self.setting.names[0] if self.setting.names else flag_of(self.path)

    @property
    def schema(self) -> dict[str, Any]:
        """The setting as JSON Schema: type, bounds or words, default and help, for programs that ask for it over HTTP."""
        options = [option for option in get_args(self.kind) if option is not NoneType]
        is_open = NoneType in get_args(self.kind)
        found: dict[str, Any] = dict(_SHAPES[options[0] if is_open else self.kind])
        bounded: dict[str, Any] = {
            word: own_number(bound)
            for word, name in _BOUNDS.items()
            # JSON has no infinite numbers, and as bounds they say nothing.
            if (bound := getattr(self.setting, name)) is not None and math.isfinite(bound)
        }
        if self.setting.one_of:
            bounded["enum"] = [*self.setting.one_of, *([None] if is_open else [])]
        if "items" in found:
            found["items"] = found["items"] | bounded
        else:
            found |= bounded
        if is_open:
            found["type"] = [found["type"], "null"]
        help = self.setting.help
        if self.setting.unset:
            help += f" Unset: {self.setting.unset}."
        return {**found, "default": to_plain(self.default), "description": help}


def flag_of(path: str) -> str:
    """`end.reply_tokens` as an option: `--reply-tokens`."""
    return "--" + path.rpartition(".")[2].replace("_", "-")


def choosable(settings: Any, *, prefix: str = "", panel: str = "") -> dict[str, Choosable]:
    """Everything in these settings that a user can name, by its path; defaults are their values."""
    found: dict[str, Choosable] = {}
    kinds = get_type_hints(type(settings))
    for name, declared in settings_of(type(settings)).items():
        value, kind, path = getattr(settings, name), kinds[name], prefix + name
        if declared.by == "code":
            continue
        if declared.panel == "":
            declared = dataclasses.replace(declared, panel=panel)
        if dataclasses.is_dataclass(value):
            found |= choosable(value, prefix=f"{path}.", panel=declared.panel)
        elif reader_of(kind) is not None:
            found[path] = Choosable(path, kind, value, declared)
    return found


def choose(settings: Settings, chosen: Mapping[str, Any]) -> Settings:
    """The same settings with what was chosen. Values are typed, or texts to be read.

    Raises InvalidRequest for a name that there is not, or a value that cannot be.
    """
    known = choosable(settings)
    for name in chosen:
        if name not in known:
            raise InvalidRequest(
                f"{type(settings).__name__} have no {name!r}", hint=f"known: {', '.join(known)}"
            )
    return _replaced(settings, {n: _value(known[n], value) for n, value in chosen.items()})


def pairs(listed: Iterable[str]) -> dict[str, str]:
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


def read(name: str, kind: Any, text: str) -> Any:
    """The value of this type that a text stands for. InvalidRequest if it stands for none."""
    reader = reader_of(kind)
    assert reader is not None, f"{name} is read from a text"
    try:
        return reader.read(text)
    except ValueError as error:
        raise InvalidRequest(
            f"{name} is {text!r}; expected {reader.expected}", hint=f"for example {reader.example}"
        ) from error


@dataclasses.dataclass(frozen=True)
class Reader:
    """How a text becomes a value."""

    read: Callable[[str], Any]
    expected: str
    example: str


def reader_of(kind: Any) -> Reader | None:
    """How a text becomes a value of this type; None if there is no way."""
    options = [option for option in get_args(kind) if option is not NoneType]
    if NoneType in get_args(kind) and len(options) == 1:
        return _READERS.get(options[0])
    return _READERS.get(kind)


def _truth(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if text.strip())


def _numbers_by_number(text: str) -> dict[int, float]:
    pairs = (pair.partition(":") for pair in text.split(",") if pair.strip())
    return {int(key): float(value) for key, _, value in pairs}


_READERS: Mapping[Any, Reader] = {
    bool: Reader(_truth, "true or false", "true"),
    int: Reader(int, "a whole number", "64"),
    float: Reader(float, "a number", "0.5"),
    str: Reader(str, "a text", "a"),
    tuple[int, ...]: Reader(_numbers, "numbers with commas between them", "100,200"),
    Mapping[int, float]: Reader(_numbers_by_number, "pairs with commas between them", "7:-5,8:2"),
}

_SHAPES: Mapping[Any, Mapping[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    tuple[int, ...]: {"type": "array", "items": {"type": "integer"}},
    Mapping[int, float]: {"type": "object", "additionalProperties": {"type": "number"}},
}
# Words of JSON Schema, and the bounds of a Setting that they stand for.
_BOUNDS = {
    "minimum": "at_least",
    "maximum": "at_most",
    "exclusiveMinimum": "above",
    "exclusiveMaximum": "below",
}


def _value(named: Choosable, value: Any) -> Any:
    return read(named.path, named.kind, value) if isinstance(value, str) else value


def _replaced(settings: Settings, values: Mapping[str, Any]) -> Settings:
    own: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    for part in sorted({name.partition(".")[0] for name in values if "." in name}):
        inner = {n.partition(".")[2]: v for n, v in values.items() if n.startswith(f"{part}.")}
        own[part] = _replaced(getattr(settings, part), inner)
    return dataclasses.replace(settings, **own)  # type: ignore[type-var]  # settings are dataclasses
