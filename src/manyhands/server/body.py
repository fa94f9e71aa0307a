"""A request's body: bytes that anybody may have sent, as plain data that JSON can say.

Python's reader of JSON takes more than JSON has: NaN, Infinity, numbers without end. Others find half a
surrogate or a NUL in a text only when they write it down. All of that is refused here, once, with the place
where it stands. Numbers end at 64 bits, as they do wherever else they may go.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from manyhands.schema.openai import InvalidField

MAX_NESTING = 64  # lists and objects in each other; far less than what JSON's own code bears
_LARGEST = 2**63


def read_json(body: bytes) -> Any:
    """The value of a JSON body. InvalidField where it is no JSON, or holds a value that is refused."""
    try:
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


def _check(found: object) -> None:
    """Look at every value, level by level, so that no nesting is too deep for it."""
    level: list[tuple[str, object]] = [("body", found)]
    for _ in range(MAX_NESTING):
        inside: list[tuple[str, object]] = []
        for place, value in level:
            if isinstance(value, dict):
                for key, each in value.items():
                    _check_text(place, key)
                    inside.append((key if place == "body" else f"{place}.{key}", each))
            elif isinstance(value, list):
                inside.extend((f"{place}[{index}]", each) for index, each in enumerate(value))
            else:
                _check_value(place, value)
        if not inside:
            return
        level = inside
    raise _too_deep()


def _check_value(place: str, value: object) -> None:
    if isinstance(value, str):
        _check_text(place, value)
    elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise InvalidField(
            f"{place} is a number beyond 64 bits; expected a smaller one", param=place
        )
    elif isinstance(value, float) and value - value != 0:
        raise InvalidField(f"{place} is a number too large to be one", param=place)


def _check_text(place: str, text: str) -> None:
    if "\0" in text:
        raise InvalidField(f"{place} holds a NUL character; expected text", param=place[:200])
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidField(
            f"{place} holds half a surrogate pair at character {error.start}; expected text",
            param=place[:200],
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"the body holds {name}, which is no number of JSON")


def _too_deep() -> InvalidField:
    return _invalid(f"the body is nested more than {MAX_NESTING} deep")


def _invalid(problem: str) -> InvalidField:
    return InvalidField(problem, param="body")
