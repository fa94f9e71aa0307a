"""A setting: one choice of a user, declared once, at the field that holds it.

    @dataclass(frozen=True)
    class TeamSettings:
        workers: int = setting(2, "How many.", at_least=1, at_most=256, names=("--workers", "-n"))
        layout: str = setting("combined", "Who reads what, in which order.", one_of=LAYOUTS)

        def __post_init__(self) -> None:
            check(self)

    TeamSettings(workers=0)     InvalidRequest: workers is 0; expected 1 to 256

The field stays an ordinary field of an ordinary dataclass. Its default, its help, its range and its names
stand nowhere else: the command line makes its options of them (`cli/command.py`), `--set` reads values by
them (`choosing.py`), recipes are checked by them, errors quote them. What binds several fields together is
checked by hand, behind `check`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from numbers import Integral, Rational, Real
from operator import is_
from sys import float_info
from types import NoneType
from typing import Any, Literal, get_args

from manyhands.errors import InvalidRequest
from manyhands.schema.open_registry import OpenRegistry

_KEY = "setting"  # of a field's metadata
_MOST = float_info.max  # where no bound is declared: what is infinite is no number to work with
_MOST_DIGITS = float_info.max_10_exp
# Errors of comparing what is no number, or is many of them: numpy and torch refuse those in their own ways.
_NO_NUMBER = (TypeError, ValueError, RuntimeError)


@dataclass(frozen=True)
class Setting:
    """The declaration of a field, besides its name, its type and its default.

    `at_least`, `at_most`, `above` and `below` bound a number, or every number of a tuple; `one_of` lists
    the words that are allowed. `unit` is what a number counts and `zero` what 0 means, both for errors and
    help. `unset` says what stands in where the default is None or empty.

    For the command line: `names` of the option where they do not follow from the field's name (a name
    without dashes is a positional argument), and `panel`, the group in which its help appears; a field that
    holds settings itself hands its panel down. `by` says how a user can choose: by an `option` and by
    --set, by --set alone (`set`), or in Python alone (`code`). `names_method`: choosing it without a method asks for
    the method that has it.
    """

    help: str
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    one_of: Collection[str] = ()
    unit: str = ""
    zero: str = ""
    unset: str = ""
    names: tuple[str, ...] = ()
    panel: str = ""
    by: Literal["option", "set", "code"] = "option"
    names_method: bool = False

    def allows(self, value: Any) -> bool:
        """Whether the value lies in the range, or is one of the words."""
        try:
            return bool(self.test()(value))
        except _NO_NUMBER:
            return False

    def test(self) -> Callable[[Any], bool]:
        """`allows` as one short function; it raises TypeError for what has no order. nan and inf are refused."""
        if self.one_of:
            words = self.one_of  # of an open registry the names are read when one is missing
            known = words if isinstance(words, OpenRegistry) else frozenset(words)
            return lambda value: value in known
        low = self.above if self.at_least is None else self.at_least
        high = self.below if self.at_most is None else self.at_most
        least, most = -_MOST if low is None else low, _MOST if high is None else high
        if self.above is not None and self.below is not None:
            return lambda value: least < value < most
        if self.above is not None:
            return lambda value: least < value <= most
        if self.below is not None:
            return lambda value: least <= value < most
        return lambda value: least <= value <= most

    @property
    def expected(self) -> str:
        """The range in words: `1 to 256`, `0 (never) or more tokens`, `above 0, at most 1`."""
        if self.one_of:
            return f"one of {', '.join(self.one_of)}"
        low = "" if self.at_least is None else f"{self.at_least:g}"
        low += f" ({self.zero})" if self.zero else ""
        if self.at_least is not None and self.at_most is not None:
            words = f"{low} to {self.at_most:g}"
        else:
            bounds = (
                low and f"{low} or more",
                "" if self.above is None else f"above {self.above:g}",
                "" if self.below is None else f"below {self.below:g}",
                "" if self.at_most is None else f"at most {self.at_most:g}",
            )
            words = ", ".join(filter(None, bounds))
        return f"{words} {self.unit}".strip()

    @property
    def is_bounded(self) -> bool:
        """Whether there are values that it does not allow."""
        bounds = (self.at_least, self.at_most, self.above, self.below)
        return bool(self.one_of) or any(bound is not None for bound in bounds)


def setting(default: Any, help: str, *, one_of: Iterable[str] = (), **declared: Any) -> Any:
    """The field of a setting. `default` is its value, or `...` for one that has to be given.

    `declared` are fields of `Setting`. A registry may be `one_of` as it is: its names are taken, those of an open one whenever
    they are needed.
    """
    words = one_of if isinstance(one_of, OpenRegistry) else tuple(one_of)
    found = Setting(help, one_of=words, **declared)
    return _field(default, found)


def probability(default: float, help: str) -> Any:
    """The field of a setting that says how often: 0 to 1."""
    return setting(default, help, at_least=0, at_most=1)


def like(kind: type[Any], name: str, *, default: Any = MISSING, **changes: Any) -> Any:
    """The field of a setting that is declared elsewhere, with what differs here.

    model: str | None = like(ModelSettings, "model", unset="the trace's")
    """
    (there,) = (one for one in fields(kind) if one.name == name)
    own = there.default if default is MISSING else default
    return _field(own, replace(settings_of(kind)[name], **changes))


def _field(default: Any, declared: Setting) -> Any:
    metadata = {_KEY: declared}
    if default is ...:
        return field(metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(kind: type[Any]) -> dict[str, Setting]:
    """The settings of a dataclass by the names of their fields."""
    return {one.name: one.metadata[_KEY] for one in fields(kind) if _KEY in one.metadata}


def is_whole(value: object) -> bool:
    """Whether it is a whole number of any library: an int, or one of numpy's. True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a number of any library, whole or not. True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def own_number(value: Any) -> Any:
    """Python's own number in the place of another library's, as numpy's or a tensor without dimensions; all else as it is."""
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    return int(value) if is_whole(value) else value


def whole_number(name: str, value: Any, least: int) -> int:
    """A whole number of any library as Python's own. Raises InvalidRequest for one below `least`, and for what is none."""
    found = own_number(value)
    if not is_whole(found) or found < least:
        raise InvalidRequest(
            f"{name} is {as_found(value)}; expected a whole number, {least} or more",
            hint=f"Write {name}={max(least, 1)}, for instance.",
        )
    return int(found)


def check_given(value: object, kind: type[Any], what: str, hint: str) -> None:
    """Raise InvalidRequest for what was given `what`, as a step say, and is of another kind."""
    if not isinstance(value, kind):
        raise _not_given(value, what, f"a {kind.__name__}", hint)


def check_function(value: object, what: str, hint: str) -> None:
    """Raise InvalidRequest for what was given `what`, and cannot be called."""
    if not callable(value):
        raise _not_given(value, what, "a function", hint)


def _not_given(value: object, what: str, expected: str, hint: str) -> InvalidRequest:
    return InvalidRequest(
        f"a {type(value).__name__} was given {what}; expected {expected}", hint=hint
    )


def as_found(value: Any) -> str:
    """A value as an error repeats it: Python writes no number of thousands of digits."""
    is_exact = isinstance(value, Rational)  # no float, so inf and nan are named
    if is_exact and not -_MOST <= value <= _MOST:
        return f"a number of more than {_MOST_DIGITS} digits"
    try:
        return repr(value)
    except ValueError:
        return f"a {type(value).__name__} with a number of too many digits"


def in_brief(value: Any) -> str:
    """The same, cut short: of many items the first ones."""
    if is_number(value):
        return as_found(value)
    try:
        return reprlib.repr(value)
    except ValueError:
        return f"a {type(value).__name__} with a number of too many digits"


def check(settings: Any) -> None:
    """Raise InvalidRequest for the first value that its field does not allow.

    None is allowed where it is the default. A field of `int` holds a whole number, one of `float` a number, one of `bool`
    True or False; a text that looks like one is none. Of a tuple every item is checked. Where the default is a settings
    object, a tuple or a mapping, the value has to be one, too; one text is no tuple of texts.

    Numbers of other libraries, as numpy's or a tensor without dimensions, are held as Python's own, and what is listed in
    another way as a tuple: settings are written to files.
    """
    kind = type(settings)
    if kind not in _CHECKED:
        _CHECKED[kind] = [*_checks_of(kind)]
    for name, types, allows in _CHECKED[kind]:
        value = getattr(settings, name)
        try:
            if (types is None or type(value) in types) and allows(value):
                continue
        except _NO_NUMBER:  # or a tuple
            pass
        held = _check_closely(kind, name, value)
        if held is not value:
            object.__setattr__(settings, name, held)


def _checks_of(kind: type[Any]) -> Iterator[_Check]:
    """The checks of a class: of its settings, and once more of those that have a shape."""
    for one in fields(kind):
        declared: Setting | None = one.metadata.get(_KEY)
        if declared is None:
            continue
        scalar, shape = _SCALARS.get(_annotation(one)), _shape_of(one)
        if shape is not None:
            yield one.name, None, shape.test
        if _annotation(one) == _WHOLE_NUMBERS:
            yield one.name, None, _is_empty  # else each is looked at
        elif declared.is_bounded or scalar is not None:
            allows = declared.test() if declared.is_bounded or _is_number(scalar) else _anything
            types = None if scalar is None else scalar.types
            if one.default is None:
                allows = _or_none(allows)
                types = None if types is None else types | {NoneType}
            yield one.name, types, allows


def _anything(value: object) -> bool:
    return True


def _is_empty(value: object) -> bool:
    return type(value) is tuple and not value


def _or_none(allows: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or allows(value)


@dataclass(frozen=True)
class _Scalar:
    """The values of a field that holds one of them: `types` are the usual ones, which need no closer look."""

    types: frozenset[type[Any]]
    test: Callable[[object], bool]
    expected: str
    own: Callable[[Any], Any]  # Python's own number of another library's


_SCALARS: Mapping[str, _Scalar] = {
    "int": _Scalar(frozenset({int}), is_whole, "a whole number", int),
    "float": _Scalar(frozenset({float, int}), is_number, "a number", float),
    "bool": _Scalar(
        frozenset({bool}), lambda value: isinstance(value, bool), "True or False", bool
    ),
}
_WHOLE_NUMBERS = "tuple[int, ...]"


def _is_number(scalar: _Scalar | None) -> bool:
    return scalar is not None and scalar is not _SCALARS["bool"]


def _annotation(one: Field[Any]) -> str:
    """The type of a field as it is written there, without the None that it may be, too."""
    written: object = one.type
    found = written.__name__ if isinstance(written, type) and not get_args(written) else written
    return str(found).removesuffix(" | None")


@dataclass(frozen=True)
class _Shape:
    """The kind of object that a field holds, as its default shows it."""

    test: Callable[[Any], bool]  # of the usual form, which is held as it is
    expected: str
    example: str
    made: Callable[[Any], Any] | None = None  # such an object of another form; raises TypeError


def _tuple_of(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        raise TypeError("one text is no tuple of texts")
    return tuple(value)


_TUPLE = _Shape(
    lambda value: isinstance(value, tuple), "a tuple of them", "(first, ...)", _tuple_of
)


def _shape_of(one: Field[Any]) -> _Shape | None:
    """The shape of a field's values; None: one number or word."""
    default = one.default if one.default_factory is MISSING else one.default_factory()
    kind = type(default)
    if is_dataclass(default):
        name = kind.__name__
        article = "an" if name[0] in "AEIO" else "a"
        return _Shape(lambda value: isinstance(value, kind), f"{article} {name}", f"{name}(...)")
    if kind is tuple or _annotation(one).startswith("tuple["):
        return _TUPLE
    if kind is dict:
        return _Shape(
            lambda value: type(value) is dict or isinstance(value, Mapping),
            "a mapping",
            "{...: ...}",
        )
    return None


_Check = tuple[str, frozenset[type[Any]] | None, Callable[[Any], bool]]
# Fields to check, by class: made once, since a `Choice` is made for every token.
_CHECKED: dict[type[Any], list[_Check]] = {}


def _check_closely(kind: type[Any], name: str, value: Any) -> Any:
    """The value as its field holds it. Raises InvalidRequest for one that it does not allow."""
    (own,) = (one for one in fields(kind) if one.name == name)
    declared: Setting = own.metadata[_KEY]
    if value is None and own.default is None:
        return value
    shape = _shape_of(own)
    if shape is not None and not shape.test(value):
        value = _shaped(name, value, shape)
    written = _annotation(own)
    scalar = _SCALARS.get("int" if written == _WHOLE_NUMBERS else written)
    if shape is not _TUPLE:
        return _item(name, "is", value, declared, scalar)
    items = tuple([_item(name, "has", item, declared, scalar) for item in value])
    return value if all(map(is_, items, value)) else items


def _shaped(name: str, value: Any, shape: _Shape) -> Any:
    try:
        if shape.made is not None:
            return shape.made(value)
    except TypeError:
        pass
    found = f"{value!r}, one text" if isinstance(value, str) else as_found(value)
    raise InvalidRequest(
        f"{name} is {found}; expected {shape.expected}",
        hint=f"Write {name}={shape.example}.",
    )


def _item(name: str, verb: str, value: Any, declared: Setting, scalar: _Scalar | None) -> Any:
    """One value, or one of a tuple."""
    if scalar is not None:
        value = own_number(value)
    found = f"{name} {verb} {as_found(value)}; expected"
    is_one = not _is_number(scalar) or is_number(value)
    if is_one and declared.is_bounded and not declared.allows(value):
        raise InvalidRequest(f"{found} {declared.expected}")
    if scalar is None:
        return value
    is_usual = type(value) in scalar.types
    if not is_usual and not scalar.test(value):
        bounds = f", {declared.expected}" if declared.is_bounded else ""
        raise InvalidRequest(f"{found} {scalar.expected}{bounds}")
    if _is_number(scalar) and not declared.allows(value):
        raise InvalidRequest(f"{found} {scalar.expected} of at most {_MOST_DIGITS} digits")
    return value if is_usual else scalar.own(value)
