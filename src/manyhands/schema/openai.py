"""OpenAI's requests and answers: which fields are understood, and what is said of the others.

    request = read_request(CHAT, {"messages": [{"role": "user", "content": "Who?"}], "temperature": 0})
    request.temperature           0.0
    request.top_p                 None: the request says nothing

    read_request(CHAT, {"messages": [...], "temperature": "hot"})
    InvalidField: temperature is 'hot'; expected a number        (.param is "temperature")

The models below are the one table of fields. Every field is one of three things:

    supported    `asked(expected)`: what a value has to be, in the words of the error
    refused      `refused(reason, *neutral)`: it would change the answer, and is not built; allowed are null
                 and the neutral values, which ask for nothing
    ignored      `ignored(reason)`: it changes no answer

Any other field is an error, since it may have been meant to change the answer. `null` always means that the
field is left out. Types are checked strictly: true is no number, "2" is no number, and NaN is none either.
Ranges of sampling settings are not repeated here; the settings that a request becomes check them.

`strategies/requests.py` makes prompts and settings of a request; the answers' shapes stand at the end here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from manyhands.errors import ContextTooLong, InvalidRequest, ManyhandsError

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
PROMPTS: Mapping[object, str] = {CHAT: "messages", PLAIN: "prompt"}  # the field of the prompt
MAX_SAMPLES = 1024
MAX_STOPS = 4
MAX_MESSAGES = 4096
MAX_PARTS = 4096  # of one message
_MAX_SHOWN = 80  # characters of a value that an error repeats
_MAX_MESSAGE = 1000  # characters of an error that an answer keeps
_PART = "part"  # pydantic's name for our error about a part that is no text
_NAME = re.compile(r"[a-z_]+")


class InvalidField(InvalidRequest):
    """A field of a request that cannot be used. `param` is its place, as OpenAI's errors name it."""

    def __init__(self, problem: str, *, param: str, hint: str = "") -> None:
        super().__init__(problem, hint=hint)
        self.param = param


def asked(expected: str, *, required: bool = False, **limits: Any) -> Any:
    """A field that is supported; `expected` is what its value has to be."""
    return Field(... if required else None, description=expected, **limits)


def refused(reason: str, *neutral: Any) -> Any:
    """A field that has to be null, or one of the neutral values; `reason` says why."""
    return Field(None, description=reason, json_schema_extra={"refused": [None, *neutral]})


def ignored(reason: str) -> Any:
    """A field that may hold anything; `reason` says why that changes no answer."""
    return Field(None, description=reason, json_schema_extra={"ignored": True})


class Shape(BaseModel):
    """An object whose fields are all known."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_unknown(cls, value: Any) -> Any:
        """Of fields that are not known one is left to complain of: a complaint of each of 300,000 takes a second."""
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields):
            return value
        known = {each.alias or name for name, each in cls.model_fields.items()}
        first = next(name for name in value if name not in known)
        return {name: each for name, each in value.items() if name in known or name == first}

    @field_validator("*", mode="before")
    @classmethod
    def _check_refused(cls, value: Any, info: Any) -> Any:
        extra = cls.model_fields[info.field_name].json_schema_extra
        if isinstance(extra, dict) and "refused" in extra:
            # In JSON, false is not 0: `logprobs: 0` asks for those of the chosen token.
            is_bool, neutral = isinstance(value, bool), extra["refused"]
            assert isinstance(neutral, list), "`refused` keeps a list"
            if not any(value == each and is_bool == isinstance(each, bool) for each in neutral):
                raise PydanticCustomError("refused", "this is not supported")
        return value


Read = TypeVar("Read", bound=Shape)
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS = f"one of {', '.join(get_args(Effort))}"
Stops = Annotated[list[str], Field(max_length=MAX_STOPS)]
# Lists that end at their first mistake: pydantic would collect all of them, which takes seconds for a million.
Part = TypeVar("Part")
Parts = Annotated[list[Part], Field(max_length=MAX_PARTS, fail_fast=True)]
Items = Annotated[list[Part], Field(max_length=MAX_MESSAGES, fail_fast=True)]
Listed = Annotated[list[Part], Field(fail_fast=True)]


@dataclass(frozen=True)
class Form:
    """A form that a text must have: of which kind, what it says, and the field that says it."""

    kind: str
    rules: Any
    param: str


def check_parts(parts: Any, *kinds: str) -> Any:
    """The content of a message as it is given. Refuses, by its place, a part of another kind than `kinds`."""
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            said = {"at": index, "kind": shown(kind)}
            raise PydanticCustomError(_PART, "[{at}].type is {kind}", said)
    return parts


class TextPart(BaseModel):
    """A piece of a message. Marks beside the text, such as those of a cache, are left alone."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: Literal["text"] = "text"
    text: str


class Message(Shape):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"] = asked(
        "one of system, developer, user, assistant", required=True
    )
    content: str | Parts[str | TextPart] = asked(
        f"a text or a list of text parts, {MAX_PARTS} at most", required=True
    )

    name: Any = ignored("chat templates have no place for it")
    reasoning: Any = ignored("chat templates leave earlier thinking out")
    reasoning_content: Any = ignored("chat templates leave earlier thinking out")
    refusal: Any = refused("no model here was taught to refuse", "")
    annotations: Any = refused("there is no search", [])
    audio: Any = refused("there is no sound")
    function_call: Any = refused("there are no tools")
    tool_calls: Any = refused("there are no tools", [])

    @field_validator("content", mode="before")
    @classmethod
    def _check_parts(cls, value: Any) -> Any:
        return check_parts(value, "text")

    @property
    def text(self) -> str:
        """The content in one piece."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part if isinstance(part, str) else part.text for part in self.content)


class JsonSchema(Shape):
    """A JSON schema that a reply follows."""

    rules: dict[str, Any] = asked("a JSON schema, an object", required=True, alias="schema")

    name: Any = ignored("a schema is known by what it says")
    description: Any = ignored("the model is told by the prompt alone")
    strict: Any = ignored("a schema is always followed to the letter")


class ResponseFormat(Shape):
    """The form of a reply."""

    type: Literal["text", "json_object", "json_schema"] = asked(
        "one of text, json_object, json_schema", required=True
    )
    json_schema: JsonSchema | None = asked("an object with a field 'schema'")


class StructuredOutputs(Shape):
    """The form of a text, as vLLM calls it: one of these."""

    schema_: dict[str, Any] | str | None = asked("a JSON schema, an object", alias="json")
    regex: str | None = asked("a regular expression")
    choice: Listed[str] | None = asked("a list of texts", min_length=1)
    grammar: str | None = asked("a grammar in Lark's notation")
    json_object: bool | None = asked("true or false")


class Request(Shape):
    """The fields that chat completions and completions have in common."""

    model: str | None = asked("a text")
    n: int | None = asked(f"a whole number, 1 to {MAX_SAMPLES}", ge=1, le=MAX_SAMPLES)
    max_tokens: int | None = asked("a whole number")
    min_tokens: int | None = asked("a whole number")
    temperature: float | None = asked("a number")
    top_p: float | None = asked("a number")
    top_k: int | None = asked("a whole number")
    min_p: float | None = asked("a number")
    frequency_penalty: float | None = asked("a number")
    presence_penalty: float | None = asked("a number")
    repetition_penalty: float | None = asked("a number")
    logit_bias: dict[str, float] | None = asked("an object of token ids with a number for each")
    stop: str | Stops | None = asked(f"a text or a list of texts, {MAX_STOPS} at most")
    seed: int | None = asked("a whole number")
    user: str | None = asked("a text")
    structured_outputs: StructuredOutputs | None = asked(
        "an object with one of json, regex, choice, grammar, json_object"
    )

    stream: Any = refused("an answer comes whole", False)
    stream_options: Any = refused("an answer comes whole")

    metadata: Any = ignored("it is the sender's")
    prompt_cache_key: Any = ignored("what prompts have in common is found by itself")
    safety_identifier: Any = ignored("it is the sender's")
    service_tier: Any = ignored("there is one")
    store: Any = ignored("nothing is stored")

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _check_bias(cls, value: Any) -> Any:
        """Refuse at the first mistake, as `Listed` does."""
        if isinstance(value, dict) and not all(
            type(each) in (int, float) for each in value.values()
        ):
            raise PydanticCustomError("bias", "a bias is no number")
        return value

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a completion."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def most_tokens(self) -> int | None:
        """Tokens of a completion, at most."""
        return self.max_tokens

    @property
    def most_by(self) -> str:
        """The field that says `most_tokens`."""
        return "max_tokens"

    @property
    def told(self) -> int | None:
        """Of how many of the likeliest tokens logprobs are told; None: of none, nor of the chosen one."""
        return None

    @property
    def told_by(self) -> str:
        """The field that says `told`."""
        return "logprobs"

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with the prompt."""
        return False

    @property
    def form(self) -> Form | None:
        """The form that a text must have. InvalidField if several are given."""
        asked = self.structured_outputs
        if asked is None:
            return None
        place = "structured_outputs"
        given = [
            Form(kind, value, place)
            for kind, value in (
                ("json_schema", asked.schema_),
                ("regex", asked.regex),
                ("choice", asked.choice),
                ("lark", asked.grammar),
                ("json_object", asked.json_object or None),
            )
            if value is not None
        ]
        if len(given) != 1:
            names = ", ".join(each.kind for each in given) or "none"
            raise InvalidField(
                f"{place} has {names}; expected one of json, regex, choice, grammar, json_object",
                param=place,
            )
        return given[0]


class ChatRequest(Request):
    """The body of `POST /v1/chat/completions`."""

    messages: Items[Message] = asked(
        f"a list of 1 to {MAX_MESSAGES} messages", required=True, min_length=1
    )
    max_completion_tokens: int | None = asked("a whole number")
    reasoning_effort: Effort | None = asked(EFFORTS)

    logprobs: bool | None = asked("true or false")
    top_logprobs: int | None = asked("a whole number")
    response_format: ResponseFormat | None = asked("an object with a field 'type'")

    audio: Any = refused("there is no sound")
    function_call: Any = refused("there are no tools", "none", "auto")
    functions: Any = refused("there are no tools", [])
    moderation: Any = refused("nothing is moderated")
    tool_choice: Any = refused("there are no tools", "none", "auto")
    tools: Any = refused("there are no tools", [])
    web_search_options: Any = refused("there is no search")

    prediction: Any = ignored("it makes an answer faster, and no other one")
    prompt_cache_options: Any = ignored("what prompts have in common is found by itself")
    prompt_cache_retention: Any = ignored("what prompts have in common is found by itself")

    @property
    def told(self) -> int | None:
        """See `Request.told`. InvalidField for a number of logprobs where none are asked for."""
        if not self.logprobs:
            if self.top_logprobs:
                raise InvalidField(
                    f"top_logprobs is {self.top_logprobs}, and logprobs is {shown(self.logprobs)}; "
                    "expected logprobs to be True",
                    param="top_logprobs",
                )
            return None
        return self.top_logprobs or 0

    @property
    def told_by(self) -> str:
        """See `Request.told_by`."""
        return "top_logprobs"

    @property
    def form(self) -> Form | None:
        """See `Request.form`."""
        named, asked = super().form, self.response_format
        if asked is None or asked.type == "text":
            return named
        if named is not None:
            raise InvalidField(
                "both response_format and structured_outputs are given; expected one",
                param="structured_outputs",
            )
        if asked.type == "json_object":
            return Form("json_object", True, "response_format")
        if asked.json_schema is None:
            raise InvalidField(
                "response_format.json_schema is missing; expected an object with a field 'schema'",
                param="response_format.json_schema",
            )
        return Form("json_schema", asked.json_schema.rules, "response_format.json_schema.schema")

    @property
    def most_tokens(self) -> int | None:
        """`max_completion_tokens`, or what it was called before. InvalidField if both are given."""
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise InvalidField(
                "both max_tokens and max_completion_tokens are given; expected one",
                param="max_completion_tokens",
            )
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given

    @property
    def most_by(self) -> str:
        """See `Request.most_by`."""
        return super().most_by if self.max_completion_tokens is None else "max_completion_tokens"


class PlainRequest(Request):
    """The body of `POST /v1/completions`."""

    prompt: str | Listed[int] | Listed[str | Listed[int]] = asked(
        "some text, token ids, or a list of them", required=True, min_length=1
    )

    logprobs: int | None = asked("a whole number")
    echo: bool | None = asked("true or false")

    best_of: Any = refused("every completion that is made is given back", 1)
    suffix: Any = refused("nothing is written into the middle of a text", "")

    @property
    def told(self) -> int | None:
        """See `Request.told`."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        """See `Request.echoes`."""
        return bool(self.echo)

    @property
    def prompts(self) -> tuple[str | list[int], ...]:
        """One prompt or several, each a text or token ids."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        ids = [each for each in self.prompt if isinstance(each, int)]
        return (ids,) if ids else tuple(each for each in self.prompt if not isinstance(each, int))


ENDPOINTS: Mapping[str, type[ChatRequest] | type[PlainRequest]] = {
    CHAT: ChatRequest,
    PLAIN: PlainRequest,
}


def read_request(url: object, body: object) -> ChatRequest | PlainRequest:
    """The body of a request, checked. InvalidField names the first field that cannot be used."""
    if not isinstance(url, str) or url not in ENDPOINTS:
        known = " or ".join(map(repr, ENDPOINTS))
        raise InvalidField(f"url is {shown(url)}; expected {known}", param="url")
    return read_shape(ENDPOINTS[url], body)


def read_shape(shape: type[Read], body: object) -> Read:
    """An object of JSON as a `shape`, checked. InvalidField names the first field that cannot be used."""
    if not isinstance(body, dict):
        raise InvalidField(f"body is {shown(body)}; expected an object", param="body")
    required = {name for name, field in shape.model_fields.items() if field.is_required()}
    given = {k: v for k, v in body.items() if v is not None or k in required}
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        raise _invalid(shape, body, error) from error


def _invalid(
    shape: type[BaseModel], body: Mapping[str, Any], error: ValidationError
) -> InvalidField:
    """The first mistake that pydantic found, in our words.

    A field that is refused comes before what is wrong beside it: a message with tools' calls has no content.
    """
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]["loc"]
    refusals = (
        each
        for each in errors
        if each["type"] == "refused" and each["loc"][:-1] == first[: len(each["loc"]) - 1]
    )
    found = next((each for each in errors if each["type"] == _PART), None)
    found = found or next(refusals, errors[0])
    place, value, field, names = _place(shape, body, found["loc"])
    if found["type"] == _PART:
        said = f"{_path(found['loc'])}{found['msg']}; this is not supported: there is text alone"
        return InvalidField(said, param=place)
    if found["type"] == "extra_forbidden":
        near = get_close_matches(str(found["loc"][-1]), names, n=1)
        holder = place.rpartition(".")[0] or "body"
        return InvalidField(
            f"{holder} has a field {shown(found['loc'][-1])} that is not known",
            param=place,
            hint=f"did you mean {near[0]!r}?" if near else "",
        )
    assert field is not None, "an error that is not about an unknown field is about a known one"
    if found["type"] == "refused":
        said = f"this is not supported: {field.description}"
    else:
        said = f"expected {field.description}"
    return InvalidField(f"{place} is {shown(value)}; {said}", param=place)


def _place(
    shape: type[BaseModel], value: Any, loc: Sequence[int | str]
) -> tuple[str, Any, FieldInfo | None, list[str]]:
    """Name, value and declaration of the innermost declared field, and the names beside it.

    Behind that, pydantic's path tells which of several types it tried, which says nothing to a user.
    """
    place, field, names = "", None, list[str]()
    steps = list(loc)
    while steps and isinstance(steps[0], str):
        fields = {each.alias or name: each for name, each in shape.model_fields.items()}
        name, names = str(steps.pop(0)), list(fields)
        place = f"{place}.{name}" if place else name
        value = value.get(name) if isinstance(value, dict) else None
        field = fields.get(name)
        inner = None if field is None else _object_in(field)
        if inner is None:
            break
        if isinstance(value, list) and len(steps) >= 2:
            index = int(steps.pop(0))
            place, value = f"{place}[{index}]", value[index]
        elif not isinstance(value, dict):
            break
        shape = inner
    return place, value, field, names


def _path(loc: Sequence[int | str]) -> str:
    """Pydantic's path without the types that it tried on its way."""
    steps = [each for each in loc if isinstance(each, int) or _NAME.fullmatch(each)]
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in steps)[1:]


def _object_in(field: FieldInfo) -> type[BaseModel] | None:
    """The shape of the object that a field holds, or of those in its list."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, Shape):
            return kind
    return None


def shown(value: object) -> str:
    """A value of JSON as an error repeats it: whole if it is short, else what it is."""
    if value is None:
        return "missing"
    with suppress(ValueError):  # Python writes no number of thousands of digits
        written = repr(value)
        if len(written) <= _MAX_SHOWN:
            return written
    kinds = {str: "a long text", list: "a long list", dict: "an object", int: "a large number"}
    return kinds[type(value)]


# -- answers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpelledToken:
    """A token as an answer tells it. `raw` are its bytes; those of one character may be of several tokens.

    `logprob` is None for the first token of a prompt, which follows nothing. `offset` is where it begins in
    the text, in characters.
    """

    text: str
    raw: bytes
    logprob: float | None
    top: tuple[SpelledToken, ...] = ()
    offset: int = 0


def spelled(raw: bytes) -> str:
    r"""A token as text; `bytes:\xe2\x80` where its bytes are no whole characters, as OpenAI has it."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def logprobs(url: str, tokens: Sequence[SpelledToken]) -> dict[str, Any]:
    """The logprobs of one completion, or of a piece of one that is streamed."""
    if url == CHAT:
        content = [
            {**_logprob(token), "top_logprobs": [_logprob(each) for each in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            None if token.logprob is None else _by_text((*token.top, token)) for token in tokens
        ],
        "text_offset": [token.offset for token in tokens],
    }


def _by_text(tokens: Iterable[SpelledToken]) -> dict[str, float | None]:
    """Logprobs by text; of two tokens with the same, the first one's."""
    found: dict[str, float | None] = {}
    for token in tokens:
        found.setdefault(token.text, token.logprob)
    return found


def _logprob(token: SpelledToken) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


def choice(
    url: str,
    index: int,
    text: str,
    thinking: str,
    finish_reason: str,
    tokens: Sequence[SpelledToken] | None = None,
) -> dict[str, Any]:
    """One completion of an answer. `tokens` have logprobs that are told; None: none are."""
    told = None if tokens is None else logprobs(url, tokens)
    end = {"logprobs": told, "finish_reason": finish_reason}
    if url == PLAIN:
        return {"index": index, "text": text, **end}
    message = {"role": "assistant", "content": text, "refusal": None}
    if thinking:
        message |= {"reasoning_content": thinking, "reasoning": thinking}  # clients differ
    return {"index": index, "message": message, **end}


def completion(
    url: str,
    name: str,
    model: str,
    created: int,
    choices: Sequence[dict[str, Any]],
    *,
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
) -> dict[str, Any]:
    """The body of an answer. `created` is in seconds since 1970; `cached_tokens` were read before."""
    prefix, kind = ("chatcmpl-", "chat.completion") if url == CHAT else ("cmpl-", "text_completion")
    return {
        "id": prefix + name,
        "object": kind,
        "created": created,
        "model": model,
        "choices": list(choices),
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        },
    }


def error_object(error: ManyhandsError, prompt: str | None = None) -> dict[str, Any]:
    """The error of an answer: its code is the name of the class, as `invalid_request`.

    `prompt` is the field of the request that has the prompt, which is the place of a prompt that is too long.
    """
    param = prompt if isinstance(error, ContextTooLong) else None
    message = str(error) + (f" ({error.hint})" if error.hint else "")
    return {
        "code": re.sub("(?<!^)(?=[A-Z])", "_", type(error).__name__).lower(),
        "message": message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}…",
        "param": error.param if isinstance(error, InvalidField) else param,
    }
