"""Lines of a batch file: what a request says, and how its answer is written (OpenAI's batch format).

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
     "body": {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 50, "n": 2}}

    {"id": "batch_req_...", "custom_id": "a", "error": null, "fingerprint": "...",
     "response": {"status_code": 200, "request_id": "...", "body": {"choices": [...], "usage": {...}}}}

A field that would change the answer and is not supported is an error, not ignored. The fingerprint is
ours: it says which request, put to which model, an answer belongs to.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.schema.plain import to_plain
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completion, Completions, Prompt
from manyhands.text import Text

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
MAX_SAMPLES = 1024
# As OpenAI's API has it, but for a limit of tokens.
UNSAID = SharedSettings(max_tokens=1024, choice=Choice(temperature=1.0))
MAX_NESTING = 64  # lists and objects in each other; far less than what JSON's own code bears
MAX_MESSAGE = 1000  # characters of an error that are kept
Line = dict[str, Any]

_ROLES = ("system", "developer", "user", "assistant")
_OF_US = {"max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"}
_OF_US |= {"n", "stop", "seed", "user", "model"}
_IGNORED = {"metadata", "service_tier", "store", "safety_identifier", "prompt_cache_key"}
# What may be there as long as it asks for nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "stream": (None, False),
    "stream_options": (None,),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
}


@dataclass(frozen=True)
class Defaults:
    """What a request is answered with where it says nothing."""

    model: str
    settings: SharedSettings = UNSAID


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
        raise InvalidRequest(f"line {number} is {_kind(line)}; expected an object")
    name = line.get("custom_id")
    if name is None:
        raise InvalidRequest(f"line {number} has no custom_id; expected a text of its own")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            f"the custom_id of line {number} is {_kind(name)}; expected a text of its own"
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
    """What tells this request, put to this model with these defaults, from any other."""
    of = [line, defaults.model, to_plain(defaults.settings)]
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]


def understand(
    line: Line, number: int, text: Text, defaults: Defaults, *, isolate: bool
) -> Request:
    """The request of a line; InvalidRequest names the field that cannot be answered.

    `isolate`: requests of different `user`s share nothing.
    """
    url, body = line.get("url"), line.get("body")
    if line.get("method", "POST") != "POST":
        raise InvalidRequest(f"method is {line['method']!r}; expected 'POST'")
    if url not in (CHAT, PLAIN):
        raise InvalidRequest(f"url is {url!r}; expected '{CHAT}' or '{PLAIN}'")
    if not isinstance(body, dict):
        raise InvalidRequest(f"body is {_kind(body)}; expected an object")
    if not isinstance(body.get("model", ""), str):
        raise InvalidRequest(f"model is {body['model']!r}; expected a text")
    asks = "messages" if url == CHAT else "prompt"
    if body.get(asks) is None:
        raise InvalidRequest(f"body has no {asks}; {url} needs it")
    _check_fields(body, asks)
    prompts = _chat(body["messages"], text) if url == CHAT else _plain(body["prompt"], text)
    name = line["custom_id"]
    settings = _settings(body, name, defaults, isolate=isolate)
    return Request(number, name, fingerprint(line, defaults), str(url), prompts, settings)


def model_of(line: Line) -> str | None:
    """The model that a request names, if it does."""
    body = line.get("body")
    named = body.get("model") if isinstance(body, dict) else None
    return named if isinstance(named, str) else None


def answer_line(request: Request, answer: Completions, model: str) -> Line:
    """The output line of a request that was answered."""
    is_chat = request.url == CHAT
    num_written = sum(answer.tokens)
    num_read = sum(answer.prompt_tokens)
    name = _name_of(request.fingerprint, request.custom_id)
    body = {
        "id": ("chatcmpl-" if is_chat else "cmpl-") + name,
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            _choice(completion, index, is_chat=is_chat)
            for index, completion in enumerate(answer.completions)
        ],
        "usage": {
            "prompt_tokens": num_read,
            "completion_tokens": num_written,
            "total_tokens": num_read + num_written,
            "prompt_tokens_details": {"cached_tokens": sum(answer.found)},
        },
    }
    response = {"status_code": 200, "request_id": f"req_{name}", "body": body}
    return _line(name, request.custom_id, request.fingerprint, response, None)


def error_line(error: ManyhandsError, number: int, custom_id: str | None, fingerprint: str) -> Line:
    """The output line of a request that could not be answered. Line `number` says where it stands."""
    message = str(error) + (f" ({error.hint})" if error.hint else "")
    problem = {
        "code": re.sub("(?<!^)(?=[A-Z])", "_", type(error).__name__).lower(),
        "message": message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}…",
        "line": number,
    }
    return _line(
        _name_of(fingerprint, custom_id or str(number)), custom_id, fingerprint, None, problem
    )


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


def _choice(completion: Completion, index: int, *, is_chat: bool) -> Line:
    end = {"logprobs": None, "finish_reason": completion.finish_reason}
    if not is_chat:
        return {"index": index, "text": completion.text, **end}
    message = {"role": "assistant", "content": completion.text, "refusal": None}
    if completion.thinking:
        message["reasoning_content"] = completion.thinking
    return {"index": index, "message": message, **end}


def _check_fields(body: Mapping[str, Any], asks: str) -> None:
    for name, value in body.items():
        if name in _NEUTRAL:
            # In JSON, false is not 0: `logprobs: 0` asks for those of the chosen token.
            is_bool = isinstance(value, bool)
            if not any(
                value == free and is_bool == isinstance(free, bool) for free in _NEUTRAL[name]
            ):
                raise InvalidRequest(f"{name} is {value!r}; this is not supported")
        elif name not in _OF_US | _IGNORED | {asks}:
            raise InvalidRequest(f"body has a field {name!r} that is not known")


def _settings(
    body: Mapping[str, Any], name: str, defaults: Defaults, *, isolate: bool
) -> SharedSettings:
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        raise InvalidRequest("both max_tokens and max_completion_tokens are given; expected one")
    asked = body.get("max_completion_tokens")
    most = asked if asked is not None else body.get("max_tokens")
    num_samples = _whole(body, "n", 1)
    if not 1 <= num_samples <= MAX_SAMPLES:
        raise InvalidRequest(f"n is {num_samples}; expected 1 to {MAX_SAMPLES}")
    unsaid = defaults.settings
    return replace(
        unsaid,
        samples=num_samples,
        max_tokens=_whole({"max_tokens": most}, "max_tokens", unsaid.max_tokens),
        choice=Choice(
            temperature=_real(body, "temperature", unsaid.choice.temperature),
            top_k=_whole(body, "top_k", unsaid.choice.top_k),
            top_p=_real(body, "top_p", unsaid.choice.top_p),
            min_p=_real(body, "min_p", unsaid.choice.min_p),
        ),
        seed=_whole(body, "seed", int(_name_of(str(unsaid.seed), name), 16)),
        stop=_stop(body.get("stop")),
        tenant=_user(body.get("user")) if isolate else None,
    )


def _whole(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{name} is {value!r}; expected a whole number")
    return value


def _real(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= sys.float_info.max:  # neither nan nor beyond all floats
        raise InvalidRequest(f"{name} is {value!r}; expected a number")
    return float(value)


def _stop(given: object) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise InvalidRequest(f"stop is {given!r}; expected a text or a list of texts")
    return tuple(stops)


def _user(given: object) -> str | None:
    if given is not None and not isinstance(given, str):
        raise InvalidRequest(f"user is {given!r}; expected a text")
    return given


def _plain(given: object, text: Text) -> tuple[Prompt, ...]:
    """One prompt or several, each a text or token ids."""
    is_ids = isinstance(given, list) and bool(given) and all(type(t) is int for t in given)
    prompts = [given] if isinstance(given, str) or is_ids else given
    if not isinstance(prompts, list) or not prompts:
        raise InvalidRequest(
            f"prompt is {_kind(given)}; expected a text, token ids, or a list of them"
        )
    return tuple(Prompt(_ids(prompt, text)) for prompt in prompts)


def _ids(prompt: object, text: Text) -> tuple[int, ...]:
    if isinstance(prompt, str):
        tokens = text.plain_prompt(prompt)
    elif isinstance(prompt, list) and all(type(token) is int for token in prompt):
        tokens = tuple(prompt)
    else:
        raise InvalidRequest(f"a prompt is {_kind(prompt)}; expected a text or token ids")
    if not tokens:
        raise InvalidRequest("a prompt is empty; expected some text")
    return tokens


def _chat(given: object, text: Text) -> tuple[Prompt, ...]:
    if not isinstance(given, list) or not given:
        raise InvalidRequest(f"messages is {_kind(given)}; expected a list of messages")
    messages = [_message(message, index) for index, message in enumerate(given, 1)]
    return (Prompt(text.conversation(messages), text.thinking),)


def _message(given: object, index: int) -> tuple[str, str]:
    """Role and content; a content in parts is joined."""
    if not isinstance(given, dict):
        raise InvalidRequest(f"message {index} is {_kind(given)}; expected an object")
    role, content = given.get("role"), given.get("content")
    if role not in _ROLES:
        raise InvalidRequest(
            f"message {index} has the role {role!r}; expected one of {', '.join(_ROLES)}"
        )
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise InvalidRequest(f"message {index} holds something that is not text")
        content = "".join(texts)
    if not isinstance(content, str):
        raise InvalidRequest(f"the content of message {index} is {_kind(content)}; expected text")
    return "system" if role == "developer" else role, content


def _kind(value: object) -> str:
    """What a JSON value is, in words."""
    names = {type(None): "missing", bool: "true or false", str: "a text", list: "a list"}
    names |= {dict: "an object", int: "a number", float: "a number"}
    if value in ([], "", {}):
        return f"an empty {names[type(value)].split()[-1]}"
    return names[type(value)]
