"""Frozen dataclasses as plain data, and back: for traces, records, and whatever else is JSON.

    to_plain(TeamSettings(workers=3))                 {"workers": 3, "layout": "combined", ...}
    from_plain(TeamSettings, {"workers": 3})          TeamSettings(workers=3)

Nothing is known here of any one class: the annotations of its fields say it all. Tuples, lists and
sets are lists (a set's in order); a mapping whose keys are tuples is a list of [*key, value], since
JSON has no such keys; numbers that are keys become words in JSON and numbers again. What is left out
has its default, so that a file outlives a new field; what is not known, or of another type, is a
TypeError that names the place.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from manyhands.schema.setting import as_found


def to_plain(value: Any) -> Any:
    """Numbers, words, None, lists and dictionaries that say the same."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        if any(isinstance(key, tuple) for key in value):
            return [[*key, to_plain(found)] for key, found in sorted(value.items())]
        return {key: to_plain(found) for key, found in value.items()}
    if isinstance(value, Set):
        return sorted(to_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: Any, value: Any, place: str = "") -> Any:
    """`to_plain` backwards: an object of `kind`. TypeError if `value` is none.

    What the class itself refuses, it refuses with its own error.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, place)
    if origin is Literal:
        return value if value in inner else _wrong(kind, value, place)
    if is_dataclass(kind):
        return _object(kind, value, place)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(inner, value, place)
    if origin is tuple and inner[-1] is not ...:
        if not _is_list(value) or len(value) != len(inner):
            _wrong(kind, value, place)
        items = zip(inner, value, strict=True)
        return tuple(from_plain(each, item, place) for each, item in items)
    if origin is not None and issubclass(origin, Sequence | Set):
        items_of = frozenset if issubclass(origin, Set) else tuple
        items = value if _is_list(value) else _wrong(kind, value, place)
        return items_of(from_plain(inner[0], item, place) for item in items)
    return _plain(kind, value, place)


def _one_of(kinds: Sequence[Any], value: Any, place: str) -> Any:
    for kind in kinds:
        try:
            return from_plain(kind, value, place)
        except TypeError:
            continue
    return _wrong(" or ".join(map(_named, kinds)), value, place)


def _object(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        _wrong(kind, value, place)
    known = _fields_of(kind)
    names = {field.name for field in fields(kind) if field.init}
    unknown = sorted(set(value) - names)
    if unknown:
        listed = ", ".join(field.name for field in fields(kind) if field.init) or "none"
        raise TypeError(f"{_named(kind)} has no field {unknown[0]!r}; its fields are {listed}")
    given = {name: from_plain(known[name], value[name], name) for name in value}
    try:
        return kind(**given)
    except TypeError:
        lacking = [field.name for field in fields(kind) if _is_required(field)]
        lacking = [name for name in lacking if name not in given]
        if not lacking:
            raise
    raise TypeError(f"{_named(kind)} lacks {', '.join(lacking)}")


def _is_required(field: Field[Any]) -> bool:
    return field.init and field.default is MISSING and field.default_factory is MISSING


@cache  # a trace holds one event a token, and reading annotations costs more than all the rest
def _fields_of(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _mapping(inner: tuple[Any, ...], value: Any, place: str) -> dict[Any, Any]:
    of_keys, of_values = inner
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif _is_list(value) and all(_is_list(row) and row for row in value):
        pairs = [(row[:-1], row[-1]) for row in value]
    else:
        _wrong("a mapping", value, place)
    if of_keys is int:  # JSON has made words of them
        pairs = [(_number(key, place), found) for key, found in pairs]
    return {
        from_plain(of_keys, key, place): from_plain(of_values, found, place) for key, found in pairs
    }


def _number(key: Any, place: str) -> Any:
    if isinstance(key, str) and key.removeprefix("-").isdecimal():
        with suppress(ValueError):  # Python reads no number of thousands of digits
            return int(key)
    return key if isinstance(key, int) else _wrong(int, key, place)


def _plain(kind: Any, value: Any, place: str) -> Any:
    if kind in (None, type(None)):
        return None if value is None else _wrong("nothing", value, place)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        try:
            return float(value)
        except OverflowError:
            _wrong("a smaller number", value, place)
    if kind is int and not is_number:
        _wrong(kind, value, place)
    return value if isinstance(value, kind) else _wrong(kind, value, place)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _wrong(kind: Any, value: Any, place: str) -> Any:
    raise TypeError(f"{place or 'the value'} is {as_found(value)}; expected {_named(kind)}")


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _named(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    return _WORDS[kind] if kind in _WORDS else getattr(kind, "__name__", str(kind))
