"""A request's body: bytes that anybody may have sent, as plain data that JSON can say.

Python's reader of JSON takes more than JSON has: NaN, Infinity, numbers without end. Others find half a
surrogate or a NUL in a text only when they write it down. All of that is refused here, once, with the place
where it stands. Numbers end at 64 bits, as they do wherever else they may go.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from manyhands.schema.openai import InvalidField

MAX_NESTING = 64  # lists and objects in each other; far less than what JSON's own code bears
_LARGEST = 2**63


def read_json(body: bytes) -> Any:
    """The value of a JSON body. InvalidField where it is no JSON, or holds a value that is refused."""
    try:
        with _no_collections():
            found = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise _invalid(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # the only other thing that Python's reader refuses
        if isinstance(error, InvalidField):
            raise
        raise _invalid("the body holds a number of too many digits") from error
    _check(found)
    return found


@contextmanager
def _no_collections() -> Iterator[None]:
    """While JSON is read, look for no cycles of objects: it has none, and with a million lists that takes a second.

    Reading lets no other thread run, so these miss nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Wrong(Exception):
    """A value that is refused: why, behind its place, and the way to it from the innermost step on."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.way: list[str | int] = []


def _check(found: object) -> None:
    """Look at every value. A place is put into words only where something is wrong, for there may be millions."""
    try:
        _check_inside(found, MAX_NESTING)
    except _Wrong as wrong:
        place = "body"
        for step in reversed(wrong.way):
            if isinstance(step, int):
                place = f"{place}[{step}]"
            else:
                place = step if place == "body" else f"{place}.{step}"
        raise InvalidField(f"{place} {wrong.why}", param=place[:200]) from wrong


def _check_inside(value: object, depth: int) -> None:
    """Likewise, of a value in which so many more may lie inside each other."""
    if isinstance(value, dict | list) and not depth:
        raise _too_deep()
    inside: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        for key in value:
            _check_text(key)
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise _Wrong("is a number beyond 64 bits; expected a smaller one")
    elif isinstance(value, float) and value - value != 0:
        raise _Wrong("is a number too large to be one")
    for step, each in inside:
        try:
            _check_inside(each, depth - 1)
        except _Wrong as wrong:
            wrong.way.append(step)
            raise


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _Wrong("holds a NUL character; expected text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Wrong(
            f"holds half a surrogate pair at character {error.start}; expected text"
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"the body holds {name}, which is no number of JSON")


def _too_deep() -> InvalidField:
    return _invalid(f"the body is nested more than {MAX_NESTING} deep")


def _invalid(problem: str) -> InvalidField:
    return InvalidField(problem, param="body")
