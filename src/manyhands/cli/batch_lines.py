"""Lines of a batch file: what a request says, and how its answer is written (OpenAI's batch format).

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
     "body": {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 50, "n": 2}}

    {"id": "batch_req_...", "custom_id": "a", "error": null, "fingerprint": "...",
     "response": {"status_code": 200, "request_id": "...", "body": {"choices": [...], "usage": {...}}}}

Bodies are OpenAI's: `schema/openai.py` says which fields are understood, `strategies/requests.py` what they
mean. The fingerprint is ours: it says which request, put to which model, an answer belongs to.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.schema.lines import Line
from manyhands.schema.openai import PROMPTS, InvalidField, error_object, read_request, shown
from manyhands.schema.plain import to_plain
from manyhands.strategies.requests import (
    Defaults,
    answer_body,
    check_plain,
    placed,
    prompts_of,
    settings_of,
)
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, Prompt
from manyhands.text import Text

Numbered = tuple[int, Line]  # a line of the input and its number, from 1
MAX_NESTING = 64  # lists and objects in each other; far less than what JSON's own code bears


@dataclass(frozen=True)
class Request:
    """One line, understood."""

    number: int  # of the line, from 1
    custom_id: str
    fingerprint: str
    url: str
    prompts: tuple[Prompt, ...]
    settings: SharedSettings


def decode_line(raw: bytes, number: int) -> Line:
    """The JSON object of a line, with a custom_id; InvalidRequest says what it is instead."""
    try:
        line = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"line {number} is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"line {number} is not JSON: {error}") from error
    except RecursionError as error:
        raise _nested_too_deep(number) from error
    except ValueError as error:  # the only other thing that Python's reader refuses
        raise InvalidRequest(f"line {number} holds a number of too many digits") from error
    if not isinstance(line, dict):
        raise InvalidRequest(f"line {number} is {shown(line)}; expected an object")
    name = line.get("custom_id")
    if name is None:
        raise InvalidField(
            f"line {number} has no custom_id; expected a text of its own", param="custom_id"
        )
    if not isinstance(name, str) or not name:
        raise InvalidField(
            f"the custom_id of line {number} is {shown(name)}; expected a text of its own",
            param="custom_id",
        )
    if _depth(line) > MAX_NESTING:
        raise _nested_too_deep(number)
    return line


def _depth(line: Line) -> int:
    """How many lists and objects stand in each other, at most."""
    depth = 0
    level: list[Any] = [line]
    while level:
        depth += 1
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
    return depth


def _nested_too_deep(number: int) -> InvalidRequest:
    return InvalidRequest(f"line {number} is nested more than {MAX_NESTING} deep")


def fingerprint(line: object, defaults: Defaults) -> str:
    """The digest that tells this request, put to this model with these defaults, from any other."""
    of = [line, defaults.model, to_plain(defaults.settings), *defaults.changes]
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]


def understand(
    line: Line, number: int, text: Text, defaults: Defaults, *, isolate: bool
) -> Request:
    """The request of a line; InvalidRequest names the field that cannot be answered.

    `isolate`: requests of different `user`s share nothing. A request that names no seed has one of its own:
    of the defaults' seed and its custom_id.
    """
    if line.get("method", "POST") != "POST":
        raise InvalidField(f"method is {shown(line['method'])}; expected 'POST'", param="method")
    request, name = read_request(line.get("url"), line.get("body")), line["custom_id"]
    seed = int(_name_of(str(defaults.settings.seed), name), 16)
    own = replace(defaults, settings=replace(defaults.settings, seed=seed))
    check_plain(request.model)
    try:
        settings = settings_of(request, own, isolate=isolate)
    except InvalidRequest as error:
        if (told := placed(error, type(request).model_fields)) is error:
            raise  # no error is its own cause
        raise told from error
    prompts = prompts_of(request, text)
    return Request(number, name, fingerprint(line, defaults), line["url"], prompts, settings)


def model_of(line: Line) -> str | None:
    """The model that a request names, if it does."""
    body = line.get("body")
    named = body.get("model") if isinstance(body, dict) else None
    return named if isinstance(named, str) else None


def answer_line(
    request: Request, answer: Completions, model: str, text: Text | None = None
) -> Line:
    """The output line of a request that was answered; `text` spells tokens, if it has logprobs."""
    name = _name_of(request.fingerprint, request.custom_id)
    body = answer_body(request.url, answer, model, name, text)
    response = {"status_code": 200, "request_id": f"req_{name}", "body": body}
    return _line(name, request.custom_id, request.fingerprint, response, None)


def error_line(
    error: ManyhandsError,
    number: int,
    custom_id: str | None,
    fingerprint: str,
    url: object = None,
) -> Line:
    """The output line of a request that could not be answered. Line `number` says where it stands."""
    name = _name_of(fingerprint, custom_id or str(number))
    told = error_object(error, PROMPTS.get(url) if isinstance(url, str) else None)
    return _line(name, custom_id, fingerprint, None, {**told, "line": number})


def failure_line(asked: Numbered, error: ManyhandsError, defaults: Defaults) -> Line:
    """The output line of a request that could not even begin."""
    number, line = asked
    mark = fingerprint(line, defaults)
    return error_line(error, number, line["custom_id"], mark, line.get("url"))


def _line(
    name: str, custom_id: str | None, fingerprint: str, response: Line | None, error: Line | None
) -> Line:
    return {
        "id": f"batch_req_{name}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
        "fingerprint": fingerprint,
    }


def _name_of(*words: str) -> str:
    return hashlib.sha256("/".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:24]
