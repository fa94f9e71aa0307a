"""OpenAI's fields: what is understood, what is refused and with which words, and the form of answers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from manyhands.errors import ContextTooLong, InvalidRequest
from manyhands.schema.openai import (
    CHAT,
    ENDPOINTS,
    MAX_SAMPLES,
    PLAIN,
    ChatRequest,
    InvalidField,
    Message,
    PlainRequest,
    SpelledToken,
    choice,
    completion,
    error_object,
    read_request,
    spelled,
)

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**body: Any) -> ChatRequest:
    found = read_request(CHAT, {"messages": HELLO, **body})
    assert isinstance(found, ChatRequest)
    return found


def plain(**body: Any) -> PlainRequest:
    found = read_request(PLAIN, {"prompt": "a", **body})
    assert isinstance(found, PlainRequest)
    return found


def test_what_a_request_says() -> None:
    found = chat(temperature=1, top_p=0.9, n=MAX_SAMPLES, stop="END", seed=2**63, top_k=None)
    assert (found.temperature, found.top_p, found.n, found.seed) == (1.0, 0.9, MAX_SAMPLES, 2**63)
    assert (found.stops, found.top_k, found.most_tokens) == (("END",), None, None)
    assert (chat(stop=["a", "b"]).stops, chat(stop=[]).stops, chat().stops) == (("a", "b"), (), ())
    assert chat(max_tokens=3).most_tokens == chat(max_completion_tokens=3).most_tokens == 3
    assert plain(max_tokens=3).most_tokens == 3


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", ("Hi",)),
        (["Hi", "Ho"], ("Hi", "Ho")),
        ([1, 2], ([1, 2],)),
        ([[1, 2], "Hi"], ([1, 2], "Hi")),
    ],
)
def test_one_prompt_or_several(prompt: Any, expected: tuple[Any, ...]) -> None:
    assert plain(prompt=prompt).prompts == expected


def test_the_text_of_a_message() -> None:
    parts = [{"type": "text", "text": "a", "cache_control": {}}, "b", {"text": "c"}]
    (message,) = chat(messages=[{"role": "user", "content": parts}]).messages
    assert message.text == "abc"


def test_an_answer_may_come_back_as_a_message() -> None:
    told = choice(CHAT, 0, "Four.", "two and two", "stop")["message"]
    assert chat(messages=[*HELLO, told]).messages[1].text == "Four."


NESTED: Any = []
for _ in range(60):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        (
            {"messages": None},
            "messages",
            "messages is missing; expected a list of 1 to 4096 messages",
        ),
        ({"messages": []}, "messages", "messages is []; expected a list of 1 to 4096 messages"),
        (
            {"messages": "Hello"},
            "messages",
            "messages is 'Hello'; expected a list of 1 to 4096 messages",
        ),
        (
            {"messages": [3]},
            "messages",
            "messages is [3]; expected a list of 1 to 4096 messages",
        ),
        (
            {"messages": [*HELLO, {"role": "king", "content": ""}]},
            "messages[1].role",
            "messages[1].role is 'king'; expected one of system, developer, user, assistant",
        ),
        (
            {"messages": [{"role": "user"}]},
            "messages[0].content",
            "messages[0].content is missing; expected a text or a list of text parts, 4096 at most",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
            "messages[0].content[0].type is 'image_url'; "
            "this is not supported: there is text alone",
        ),
        (
            {"messages": [{"role": "user", "content": [{"text": "a" * 99, "type": 7}]}]},
            "messages[0].content",
            "messages[0].content is a long list; expected a text or a list of text parts, 4096 at most",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "messages[0].tool_calls is [{}]; this is not supported: there are no tools",
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "messages[0].tool_calls is [{}]; this is not supported: there are no tools",
        ),
        (
            {"messages": [{"role": "user", "contents": "a", "content": "a"}]},
            "messages[0].contents",
            "messages[0] has a field 'contents' that is not known",
        ),
        ({"n": 0}, "n", "n is 0; expected a whole number, 1 to 1024"),
        ({"n": 10**9}, "n", "n is 1000000000; expected a whole number, 1 to 1024"),
        ({"n": "2"}, "n", "n is '2'; expected a whole number, 1 to 1024"),
        ({"n": True}, "n", "n is True; expected a whole number, 1 to 1024"),
        ({"max_tokens": 1.5}, "max_tokens", "max_tokens is 1.5; expected a whole number"),
        ({"temperature": "hot"}, "temperature", "temperature is 'hot'; expected a number"),
        ({"temperature": False}, "temperature", "temperature is False; expected a number"),
        ({"temperature": float("nan")}, "temperature", "temperature is nan; expected a number"),
        ({"temperature": float("inf")}, "temperature", "temperature is inf; expected a number"),
        (
            {"temperature": 10**400},
            "temperature",
            "temperature is a large number; expected a number",
        ),
        (
            {"temperature": 10**5000},
            "temperature",
            "temperature is a large number; expected a number",
        ),
        ({"model": 7}, "model", "model is 7; expected a text"),
        ({"user": ["a"]}, "user", "user is ['a']; expected a text"),
        ({"stop": [1]}, "stop", "stop is [1]; expected a text or a list of texts"),
        ({"seed": "x" * 100}, "seed", "seed is a long text; expected a whole number"),
        ({"tools": NESTED}, "tools", "tools is a long list; this is not supported: there are no"),
        ({"temprature": 1}, "temprature", "body has a field 'temprature' that is not known"),
        ({"prompt": "a"}, "prompt", "body has a field 'prompt' that is not known"),
    ],
)
def test_what_cannot_be_answered(body: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(InvalidField) as found:
        chat(**body)
    assert str(found.value).startswith(said)
    assert found.value.param == param


def test_a_slip_of_the_pen_is_told() -> None:
    for name, hint in (("temprature", "did you mean 'temperature'?"), ("zebra", "")):
        with pytest.raises(InvalidField) as found:
            chat(**{name: 1})
        assert found.value.hint == hint


@pytest.mark.parametrize("prompt", [[], "", 7, None, [True], [[1, "a"]], [1, "a"], [None], {}])
def test_prompts_that_are_none(prompt: Any) -> None:
    with pytest.raises(
        InvalidField, match=r"prompt is .*; expected some text, token ids, or a list"
    ):
        plain(prompt=prompt)


@pytest.mark.parametrize(
    ("url", "body", "said"),
    [
        ("/v1/embeddings", {}, "url is '/v1/embeddings'; expected '/v1/chat/completions' or"),
        (None, {}, "url is missing"),
        (["/v1/completions"], {}, "url is ['/v1/completions']"),
        (CHAT, None, "body is missing; expected an object"),
        (CHAT, [], "body is []; expected an object"),
    ],
)
def test_requests_for_something_else(url: Any, body: Any, said: str) -> None:
    with pytest.raises(InvalidField) as found:
        read_request(url, body)
    assert said in str(found.value)


def test_one_message_too_many_limits() -> None:
    with pytest.raises(InvalidField, match="both max_tokens and max_completion_tokens are given"):
        _ = chat(max_tokens=5, max_completion_tokens=5).most_tokens


# -- the table -------------------------------------------------------------------------------------

FIELDS = [
    (shape, name, field.description, field.json_schema_extra)
    for shape in (Message, *ENDPOINTS.values())
    for name, field in shape.model_fields.items()
]
REQUIRED: dict[type, dict[str, Any]] = {
    Message: HELLO[0],
    ChatRequest: {"messages": HELLO},
    PlainRequest: {"prompt": "a"},
}


@pytest.mark.parametrize(("shape", "name", "said", "extra"), FIELDS)
def test_every_field_is_supported_refused_or_ignored(
    shape: Any, name: str, said: str, extra: Any
) -> None:
    """Neutral values pass, any other is refused with the reason; of ignored fields everything passes."""
    assert said, "every field says what it expects, or why it is not supported"
    required = REQUIRED[shape]

    def read(value: object) -> Any:
        if shape is Message:
            return chat(messages=[{**required, name: value}])
        return read_request(CHAT if shape is ChatRequest else PLAIN, {**required, name: value})

    if name not in required:
        read(None)
    if extra is None:
        with pytest.raises(InvalidField, match=r"; expected |has a field 'some' that is not known"):
            read({"some": "thing"})
    elif "refused" in extra:
        for value in extra["refused"]:
            read(value)
        neutral = extra["refused"]
        twins = [v for each in neutral if isinstance(each, int) for v in (bool(each), int(each))]
        others = [
            v for v in twins if all(type(v) is not type(each) or v != each for each in neutral)
        ]
        for value in (7, "x", ["x"], {"x": 1}, not neutral[-1], *others):
            with pytest.raises(InvalidField, match="this is not supported: ") as found:
                read(value)
            assert str(found.value).endswith(said)
    else:
        assert extra == {"ignored": True}
        read({"some": "thing"})


def test_zero_is_not_false() -> None:
    """`logprobs: 0` of completions asks for the probability of the chosen token."""
    assert plain(logprobs=0).told == 0
    with pytest.raises(InvalidField, match="suffix is False; this is not supported"):
        plain(suffix=False)
    with pytest.raises(InvalidField, match="frequency_penalty is False; expected a number"):
        plain(frequency_penalty=False)
    with pytest.raises(InvalidField, match="logprobs is False; expected a whole number"):
        plain(logprobs=False)


def test_logprobs_of_a_message() -> None:
    assert [chat(logprobs=on).told for on in (None, False, True)] == [None, None, 0]
    assert chat(logprobs=True, top_logprobs=5).told == 5
    assert chat(top_logprobs=0).told is None
    with pytest.raises(InvalidField, match="top_logprobs is 5, and logprobs is missing") as found:
        _ = chat(top_logprobs=5).told
    assert found.value.param == "top_logprobs"
    assert [plain(echo=on).echoes for on in (None, False, True)] == [False, False, True]
    assert not chat().echoes


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
PLACE = "response_format.json_schema.schema"


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ("json_object", True, "response_format")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            ("json_schema", SCHEMA, PLACE),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", SCHEMA, "structured_outputs")),
        ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+", "structured_outputs")),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            ("choice", ["a", "b"], "structured_outputs"),
        ),
        (
            {"structured_outputs": {"grammar": "start: /a/"}},
            ("lark", "start: /a/", "structured_outputs"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            ("json_object", True, "structured_outputs"),
        ),
    ],
)
def test_the_form_of_a_text(body: dict[str, Any], form: tuple[Any, ...] | None) -> None:
    found = chat(**body).form
    assert (found and (found.kind, found.rules, found.param)) == form


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            "response_format.type is 'xml'; expected one of text, json_object, json_schema",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "response_format.json_schema is missing; expected an object with a field 'schema'",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            PLACE,
            f"{PLACE} is missing; expected a JSON schema, an object",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
            PLACE,
            f"{PLACE} is 3; expected a JSON schema, an object",
        ),
        (
            {"response_format": {"type": "text", "jason": 1}},
            "response_format.jason",
            "response_format has a field 'jason' that is not known",
        ),
        (
            {"structured_outputs": {}},
            "structured_outputs",
            "structured_outputs has none; expected one of json, regex",
        ),
        (
            {"structured_outputs": {"regex": "a", "grammar": "b"}},
            "structured_outputs",
            "structured_outputs has regex, lark; expected one of",
        ),
        (
            {
                "structured_outputs": {"regex": "a"},
                "response_format": {"type": "json_object"},
            },
            "structured_outputs",
            "both response_format and structured_outputs are given; expected one",
        ),
        (
            {"structured_outputs": {"choice": []}},
            "structured_outputs.choice",
            "structured_outputs.choice is []; expected a list of texts",
        ),
        (
            {"logit_bias": {"5": "x"}},
            "logit_bias",
            "expected an object of token ids with a number for each",
        ),
        (
            {"stop": list("abcde")},
            "stop",
            "stop is ['a', 'b', 'c', 'd', 'e']; expected a text or a list of texts, 4 at most",
        ),
    ],
)
def test_forms_that_cannot_be(body: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(InvalidField) as found:
        _ = chat(**body).form
    assert said in str(found.value)
    assert found.value.param == param


# -- answers -----------------------------------------------------------------------------------------


def test_the_form_of_an_answer() -> None:
    first, second = choice(CHAT, 0, "Four.", "2 + 2", "stop"), choice(CHAT, 1, "4", "", "length")
    assert first["message"] == {
        "role": "assistant",
        "content": "Four.",
        "refusal": None,
        "reasoning_content": "2 + 2",
        "reasoning": "2 + 2",
    }
    assert (second["index"], second["finish_reason"]) == (1, "length")
    assert "reasoning_content" not in second["message"]
    counts = {"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 5}
    body = completion(CHAT, "x", "our-model", 17, [first, second], **counts)
    assert (body["object"], body["id"], body["created"]) == ("chat.completion", "chatcmpl-x", 17)
    assert body["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    body = completion(PLAIN, "x", "m", 17, [choice(PLAIN, 0, "Four.", "", "stop")], **counts)
    assert (body["object"], body["id"]) == ("text_completion", "cmpl-x")
    assert body["choices"][0]["text"] == "Four."


def test_answers_are_what_openais_own_client_reads() -> None:
    openai = pytest.importorskip("openai.types")
    counts = {"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 5}
    body = completion(CHAT, "x", "m", 17, [choice(CHAT, 0, "4", "2 + 2", "stop")], **counts)
    read = openai.chat.ChatCompletion.model_validate(body)
    assert read.choices[0].message.content == "4"
    assert read.usage.prompt_tokens_details.cached_tokens == 5
    body = completion(PLAIN, "x", "m", 17, [choice(PLAIN, 0, "4", "", "length")], **counts)
    assert openai.Completion.model_validate(body).choices[0].finish_reason == "length"


TOKENS = [
    SpelledToken(
        "Fo", b"Fo", -0.5, (SpelledToken("Fo", b"Fo", -0.5), SpelledToken("4", b"4", -2.0))
    ),
    SpelledToken("ur", b"ur", -0.1, (), 2),
]


def test_logprobs_are_what_openais_own_client_reads() -> None:
    openai = pytest.importorskip("openai.types")
    counts = {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 5}
    body = completion(CHAT, "x", "m", 17, [choice(CHAT, 0, "Four", "", "stop", TOKENS)], **counts)
    first, second = openai.chat.ChatCompletion.model_validate(body).choices[0].logprobs.content
    assert (first.token, first.logprob, first.bytes) == ("Fo", -0.5, [70, 111])
    assert [(each.token, each.logprob) for each in first.top_logprobs] == [("Fo", -0.5), ("4", -2)]
    assert second.top_logprobs == []
    unsaid = SpelledToken("Q", b"Q", None)
    told = choice(PLAIN, 0, "Four", "", "stop", TOKENS)
    body = completion(PLAIN, "x", "m", 17, [told], **counts)
    read = openai.Completion.model_validate(body).choices[0].logprobs
    assert (read.tokens, read.token_logprobs) == (["Fo", "ur"], [-0.5, -0.1])
    assert read.top_logprobs == [{"Fo": -0.5, "4": -2.0}, {"ur": -0.1}], "the token's own, too"
    assert read.text_offset == [0, 2]
    told = choice(PLAIN, 0, "QFour", "", "stop", [unsaid, *TOKENS])["logprobs"]
    assert told["token_logprobs"] == [None, -0.5, -0.1]
    assert told["top_logprobs"][0] is None, "the first token of a prompt follows nothing"


def test_tokens_that_are_no_whole_characters() -> None:
    assert [spelled("é".encode()), spelled(b"\xc3"), spelled(b"a\xe2\x80")] == [
        "é",
        "bytes:\\xc3",
        "bytes:\\x61\\xe2\\x80",
    ]


def test_the_form_of_an_error() -> None:
    assert error_object(ContextTooLong("too long", hint="shorten it")) == {
        "code": "context_too_long",
        "message": "too long (shorten it)",
        "param": None,
    }
    found = error_object(InvalidField("n is 0", param="n"))
    assert (found["code"], found["param"]) == ("invalid_field", "n")
    assert error_object(InvalidRequest("x" * 10**6))["message"] == "x" * 1000 + "…"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [3] * 4000},
        {"messages": [3] * 5000},
        {"messages": [{"role": "user", "content": [3] * 4000}]},
        {"messages": [{"role": "user", "content": "a", **{f"x{n}": 1 for n in range(4000)}}]},
        {"messages": HELLO, **{f"x{n}": 1 for n in range(4000)}},
        {"messages": HELLO, "logit_bias": {str(n): "a" for n in range(4000)}},
        {"messages": HELLO, "structured_outputs": {"choice": [3] * 4000}},
    ],
)
def test_of_many_mistakes_one_is_looked_for(body: Any) -> None:
    """Pydantic would keep each of them: a million takes seconds in which no other thread goes on."""
    with pytest.raises(InvalidField) as refused:
        read_request(CHAT, body)
    if "'x0'" in str(body):
        assert "has a field 'x0' that is not known" in str(refused.value)
    cause = refused.value.__cause__
    assert isinstance(cause, ValidationError)
    assert cause.error_count() < 5  # of each type that a value may have
