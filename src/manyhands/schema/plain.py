"""Frozen dataclasses as plain data, and back: for traces, records, and whatever else is JSON.

    to_plain(TeamSettings(workers=3))                 {"workers": 3, "layout": "combined", ...}
    from_plain(TeamSettings, {"workers": 3})          TeamSettings(workers=3)
    plain_as(StepEnded, StepEnded(7, 0, "one", ""))   TypeError: step is 'one'; expected a whole number

Nothing is known here of any one class: the annotations of its fields say it all. Tuples, lists and
sets are lists (a set's in order); a mapping whose keys are tuples is a list of [*key, value], since
JSON has no such keys; numbers that are keys become words in JSON and numbers again. What is left out
has its default, so that a file outlives a new field; what is not known, or of another type, is a
TypeError that names the place.

Numbers of other libraries, as numpy's or a tensor's, become Python's own, and an array of them a list. `plain_as` looks
at each value as its annotation says it, so that all that it lets through comes back.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from manyhands.schema.setting import as_found, is_number, is_whole, own_number

_PLAIN = frozenset({int, float, str, bool, types.NoneType})


def to_plain(value: Any) -> Any:
    """Numbers, words, None, lists and dictionaries that say the same."""
    if type(value) in _PLAIN:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        if any(isinstance(key, tuple) for key in value):
            return [[*to_plain(key), to_plain(found)] for key, found in sorted(value.items())]
        return {to_plain(key): to_plain(found) for key, found in value.items()}
    if isinstance(value, Set):
        return sorted(to_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return to_plain(value.tolist()) if _is_array(value) else own_number(value)


def _is_array(value: Any) -> bool:
    """Whether it holds several numbers of another library; one number is an array without dimensions."""
    return getattr(value, "ndim", 0) > 0 and hasattr(value, "tolist")


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
    if kind is tuple and _is_list(value):
        return tuple(value)
    return value if isinstance(value, kind) else _wrong(kind, value, place)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _wrong(kind: Any, value: Any, place: str) -> Any:
    raise TypeError(f"{place or 'the value'} is {as_found(value)}; expected {_named(kind)}")


_WORDS: Mapping[Any, str] = {
    **{int: "a whole number", float: "a number", bool: "true or false", str: "a text"},
    **{types.NoneType: "nothing", tuple: "a list"},
}


def _named(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if get_origin(kind) in (tuple, list):
        kind = tuple
    return _WORDS[kind] if kind in _WORDS else getattr(kind, "__name__", str(kind))


# -- to plain data, as annotations say it ----------------------------------------------------------

_Writer = Callable[[Any, str], Any]  # of a value and its place


def hold_own(value: Any, kind: Any) -> None:
    """Have a frozen dataclass hold the fields of `kind`, its own class or a base of it, as their annotations say.

    Numbers of other libraries become Python's own, lists and arrays tuples. Objects within are taken as they are. TypeError,
    with the field, for a value that is none of its kind.
    """
    for name, hint, is_own in _holders(kind):
        found = getattr(value, name)
        if not is_own(found):
            plain = plain_as(hint, found, name)
            object.__setattr__(value, name, from_plain(hint, plain, name))


@cache
def _holders(kind: Any) -> tuple[tuple[str, Any, Callable[[Any], bool]], ...]:
    hints = _fields_of(kind)
    return tuple((one.name, hints[one.name], _own_test(hints[one.name])) for one in fields(kind))


def _own_test(kind: Any) -> Callable[[Any], bool]:
    """Whether a value is of this kind already, by a look at types; False may say that a closer look is needed."""
    origin, inner, exact = get_origin(kind), get_args(kind), _exact(kind)
    if origin is tuple and inner[-1] is ...:
        items = frozenset({inner[0]}) if is_dataclass(inner[0]) else _exact(inner[0])
        return lambda value: type(value) is tuple and items.issuperset(map(type, value))
    if origin is Mapping:
        keys, values = map(_exact, inner)
        return lambda value: (
            type(value) is dict
            and keys.issuperset(map(type, value))
            and values.issuperset(map(type, value.values()))
        )
    return lambda value: type(value) in exact


def plain_as(kind: Any, value: Any, place: str = "") -> Any:
    """The plain data of which `from_plain` makes `kind` again. TypeError, with the place, if `value` is none of this kind.

    So it is for kinds that no JSON says, as an array or a path: their numbers and words could be written, and not read.
    """
    return _writer_of(kind)(value, place)


@cache
def plain_fields(kind: Any) -> tuple[tuple[str, frozenset[type[Any]], _Writer], ...]:
    """Of each field of a dataclass its name, the types whose values are plain data already, and what makes such of others.

    TypeError if an annotation cannot be read, as where it names what only a type checker imports.
    """
    try:
        hints = get_type_hints(kind)
    except NameError as error:
        raise TypeError(f"the fields of {_named(kind)} cannot be read: {error}") from error
    return tuple(
        (one.name, _exact(hints[one.name]), _writer_of(hints[one.name]))
        for one in fields(kind)
        if one.init
    )


def _exact(kind: Any) -> frozenset[type[Any]]:
    """Types whose values of this kind are plain data without a look at them; a float may be nan."""
    if get_origin(kind) in (Union, types.UnionType):
        return frozenset().union(*map(_exact, get_args(kind)))
    return frozenset({kind} & {int, str, bool, types.NoneType})


@cache
def _writer_of(kind: Any) -> _Writer:
    origin, inner = get_origin(kind), get_args(kind)
    if kind in (Any, object, list, tuple, dict):
        return partial(_write_any, kind)
    if origin in (Union, types.UnionType):
        return partial(_write_one_of, tuple(inner))
    if origin is Literal:
        return partial(_write_literal, kind)
    if is_dataclass(kind):
        return partial(_write_object, kind)
    if origin is not None and issubclass(origin, Mapping):
        keys, values = map(_writer_of, inner)
        return partial(_write_mapping, keys, values)
    if origin is tuple and inner[-1] is not ...:
        return partial(_write_tuple, kind, tuple(map(_writer_of, inner)))
    if origin is not None and issubclass(origin, Sequence | Set):
        return partial(_write_items, kind, _writer_of(inner[0]), _exact(inner[0]))
    return partial(_write_scalar, type(None) if kind is None else kind)


def _write_any(kind: Any, value: Any, place: str) -> Any:
    plain = to_plain(value)
    _check_json(plain, place)
    return plain if kind is Any or isinstance(plain, _JSON[kind]) else _wrong(kind, value, place)


_JSON: Mapping[Any, Any] = {object: object, list: list, tuple: list, dict: dict}


def _check_json(plain: Any, place: str) -> None:
    if isinstance(plain, dict):
        for key, found in plain.items():
            if not isinstance(key, str | int):
                _wrong("a text or a whole number as key", key, place)
            _check_json(found, str(key))
    elif isinstance(plain, list):
        for item in plain:
            _check_json(item, place)
    elif isinstance(plain, float):
        _write_scalar(float, plain, place)
    elif type(plain) not in _PLAIN:
        _wrong("numbers, texts, None, and lists and mappings of these", plain, place)


def _write_one_of(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    for kind in kinds:
        try:
            return _writer_of(kind)(value, place)
        except TypeError:
            continue
    return _wrong(" or ".join(map(_named, kinds)), value, place)


def _write_literal(kind: Any, value: Any, place: str) -> Any:
    return value if value in get_args(kind) else _wrong(kind, value, place)


def _write_object(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, kind):
        _wrong(kind, value, place)
    line = {}
    for name, exact, write in plain_fields(kind):
        found = getattr(value, name)
        line[name] = found if type(found) in exact else write(found, name)
    return line


def _write_mapping(keys: _Writer, values: _Writer, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        _wrong("a mapping", value, place)
    pairs = [(keys(key, place), values(found, place)) for key, found in value.items()]
    if any(isinstance(key, list) for key, _ in pairs):
        return sorted([*key, found] for key, found in pairs)
    if not all(isinstance(key, str | int) for key, _ in pairs):
        _wrong("a mapping by texts or whole numbers", value, place)
    return dict(pairs)


def _write_tuple(kind: Any, writers: tuple[_Writer, ...], value: Any, place: str) -> Any:
    items = value.tolist() if _is_array(value) else value
    if not _is_list(items) or len(items) != len(writers):
        _wrong(kind, value, place)
    return [write(item, place) for write, item in zip(writers, items, strict=True)]


def _write_items(
    kind: Any, write: _Writer, exact: frozenset[type[Any]], value: Any, place: str
) -> Any:
    items = value.tolist() if _is_array(value) else value
    if isinstance(items, str) or not isinstance(items, Sequence | Set):
        _wrong(kind, value, place)
    if exact.issuperset(map(type, items)):
        plain = list(items)
    else:
        plain = [write(item, place) for item in items]
    return sorted(plain) if isinstance(items, Set) else plain


def _write_scalar(kind: Any, value: Any, place: str) -> Any:
    """A number, a text, a truth or None. A kind that is none of these has no values that come back."""
    if kind not in _PLAIN:
        raise TypeError(
            f"{place or 'the value'} is a {_named(kind)}, which is no plain data: it could be written, and not be read"
        )
    if kind is str:
        return str(value) if isinstance(value, str) else _wrong(kind, value, place)
    own = own_number(value)
    if kind is float:
        if not is_number(own):
            _wrong(kind, value, place)
        try:
            held = float(own)
        except OverflowError:
            held = math.inf
        return held if math.isfinite(held) else _wrong("a finite number", value, place)
    fits = is_whole(own) if kind is int else isinstance(own, kind)
    return own if fits else _wrong(kind, value, place)
