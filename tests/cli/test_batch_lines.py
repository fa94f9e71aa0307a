"""Lines of a batch: what is understood, what is refused and how, and the form of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from manyhands.cli.batch_lines import (
    CHAT,
    PLAIN,
    Defaults,
    Request,
    answer_line,
    decode_line,
    error_line,
    fingerprint,
    understand,
)
from manyhands.errors import ContextTooLong, InvalidRequest
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completion, Completions, Prompt
from tests.engine.small import TEXT

HELLO = [{"role": "user", "content": "Hello"}]
DEFAULTS = Defaults("our-model")


def request(url: str = CHAT, isolate: bool = False, **body: Any) -> Request:
    if url == CHAT:
        body = {"messages": HELLO, **body}
    line = {"custom_id": "a", "method": "POST", "url": url, "body": body}
    return understand(line, 3, TEXT, DEFAULTS, isolate=isolate)


def test_what_a_request_says() -> None:
    given = request(
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        n=2,
        stop="END",
        seed=4,
        user="anna",
        stream=False,
        frequency_penalty=0.0,
        metadata={"any": "thing"},
    )
    settings = given.settings
    assert (settings.max_tokens, settings.samples, settings.seed) == (7, 2, 4)
    assert (settings.choice.temperature, settings.choice.top_p) == (0.5, 0.9)
    assert (settings.stop, settings.tenant) == (("END",), None)
    assert given.prompts == (Prompt(TEXT.chat_prompt("Hello")),)
    assert (given.custom_id, given.number, given.url) == ("a", 3, CHAT)
    assert request(user="anna", isolate=True).settings.tenant == "anna"


def test_what_is_left_out_is_as_in_the_api() -> None:
    settings = request().settings
    assert (settings.samples, settings.choice.temperature, settings.choice.top_p) == (1, 1.0, 1.0)
    assert settings.max_tokens == 1024
    other = {"custom_id": "b", "url": CHAT, "body": {"messages": HELLO}}
    seeds = {settings.seed, understand(other, 1, TEXT, DEFAULTS, isolate=False).settings.seed}
    assert len(seeds) == 2, "each request has luck of its own"
    assert request().settings.seed == settings.seed, "and keeps it"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", [TEXT.plain_prompt("Hi")]),
        (["Hi", "Ho"], [TEXT.plain_prompt("Hi"), TEXT.plain_prompt("Ho")]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_plain_prompts(prompt: Any, expected: list[tuple[int, ...]]) -> None:
    assert [given.tokens for given in request(PLAIN, prompt=prompt).prompts] == expected


def test_conversations() -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi<|im_end|>"}]},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Bye"},
    ]
    (prompt,) = request(messages=messages).prompts
    said = TEXT.decode(prompt.tokens, special=True)
    assert said == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|><|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    (end,) = TEXT.eos
    assert prompt.tokens.count(end) == 4, "what a user spells out ends no turn"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": None}, "body has no messages"),
        ({"messages": []}, "messages is an empty list; expected a list of messages"),
        ({"messages": "Hello"}, "messages is a text; expected a list"),
        ({"messages": [3]}, "message 1 is a number; expected an object"),
        ({"messages": [{"role": "king", "content": ""}]}, "message 1 has the role 'king'"),
        ({"messages": [{"role": "user"}]}, "the content of message 1 is missing; expected text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "message 1 holds something that is not text",
        ),
        ({"n": 0}, "n is 0; expected 1 to 1024"),
        ({"n": 10**9}, "expected 1 to 1024"),
        ({"n": "2"}, "n is '2'; expected a whole number"),
        ({"n": True}, "n is True; expected a whole number"),
        ({"max_tokens": 0}, "max_tokens is 0; expected 1 or more"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "both max_tokens and max_completion"),
        ({"temperature": -1}, "temperature is -1.0; expected 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan; expected a number"),
        ({"temperature": 10**400}, "temperature is 10+; expected a number"),
        ({"model": 7}, "model is 7; expected a text"),
        ({"top_p": 0}, r"top_p is 0.0; expected above 0"),
        ({"stop": [1]}, "stop is .*; expected a text or a list of texts"),
        ({"stop": ["a", ""]}, "a text to stop at is empty"),
        ({"logprobs": True}, "logprobs is True; this is not supported"),
        ({"stream": True}, "stream is True; this is not supported"),
        ({"tools": [{}]}, "tools is .*; this is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty is 0.5; this is not supported"),
        ({"temprature": 1}, "body has a field 'temprature' that is not known"),
    ],
)
def test_what_cannot_be_answered(body: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        request(**body)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "prompt is an empty list; expected a text, token ids"),
        (7, "prompt is a number"),
        ([[1, "a"]], "a prompt is a list; expected a text or token ids"),
        ([[]], "a prompt is empty"),
        ("", "a prompt is empty"),
        ([True], "a prompt is true or false"),
    ],
)
def test_prompts_that_are_none(prompt: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        request(PLAIN, prompt=prompt)


def test_logprobs_of_the_plain_kind_are_asked_for_by_zero() -> None:
    with pytest.raises(InvalidRequest, match="logprobs is 0"):
        request(PLAIN, prompt="a", logprobs=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "/v1/embeddings"}, "url is '/v1/embeddings'; expected"),
        ({"method": "GET"}, "method is 'GET'; expected 'POST'"),
        ({"body": None}, "body is missing; expected an object"),
    ],
)
def test_lines_that_ask_for_something_else(change: dict[str, Any], said: str) -> None:
    line = {"custom_id": "a", "url": CHAT, "body": {"messages": HELLO}, **change}
    with pytest.raises(InvalidRequest, match=said):
        understand(line, 1, TEXT, DEFAULTS, isolate=False)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"{", "line 5 is not JSON"),
        (b"[" * 100_000, "line 5 is nested more than 64 deep"),
        (b'{"custom_id": "a", "body": ' + b"[" * 64 + b"]" * 64 + b"}", "is nested more than 64"),
        (b'{"custom_id": "a", "n": ' + b"9" * 5000 + b"}", "line 5 holds a number of too many"),
        (b"[1]", "line 5 is a list; expected an object"),
        (b"null", "line 5 is missing; expected an object"),
        (b'{"custom_id": null}', "line 5 has no custom_id; expected a text"),
        (b'{"custom_id": ""}', "the custom_id of line 5 is an empty text; expected a text"),
        (b'{"custom_id": 7}', "the custom_id of line 5 is a number; expected a text"),
        (b'{"custom_id": ["a"]}', "the custom_id of line 5 is a list; expected a text"),
        (b'"\xff"', r"line 5 is not UTF-8 text \(byte 1\)"),
    ],
)
def test_lines_that_are_no_requests(raw: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        decode_line(raw, 5)


def test_the_form_of_an_answer() -> None:
    completions = (
        Completion(0, 0, "Four.", "two and two", (1, 2, 3), "stop"),
        Completion(0, 1, "4", "", (4,), "length"),
    )
    answer = Completions(
        "Four.", tokens=(3, 1), completions=completions, prompt_tokens=(9,), found=(5,)
    )
    line = json.loads(json.dumps(answer_line(request(), answer, "our-model")))
    body = line["response"]["body"]
    assert line["custom_id"] == "a"
    assert line["error"] is None
    assert line["response"]["status_code"] == 200
    assert (body["object"], body["model"]) == ("chat.completion", "our-model")
    assert body["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    first, second = body["choices"]
    assert first["message"] == {
        "role": "assistant",
        "content": "Four.",
        "refusal": None,
        "reasoning_content": "two and two",
    }
    assert (second["index"], second["finish_reason"]) == (1, "length")
    assert "reasoning_content" not in second["message"]
    plain = answer_line(request(PLAIN, prompt="a"), answer, "m")["response"]["body"]
    assert plain["object"] == "text_completion"
    assert plain["choices"][0]["text"] == "Four."


def test_the_form_of_an_error() -> None:
    line = error_line(ContextTooLong("too long", hint="shorten it"), 7, "a", "f")
    assert line["error"] == {
        "code": "context_too_long",
        "message": "too long (shorten it)",
        "line": 7,
    }
    assert line["response"] is None
    long = error_line(InvalidRequest("x" * 10**6), 7, "a", "f")["error"]["message"]
    assert long == "x" * 1000 + "…"


def test_a_fingerprint_tells_requests_apart() -> None:
    line = {"custom_id": "a", "body": {"n": 1}}
    same = {"body": {"n": 1}, "custom_id": "a"}
    assert fingerprint(line, DEFAULTS) == fingerprint(same, DEFAULTS)
    others = [
        fingerprint({"custom_id": "a", "body": {"n": 2}}, DEFAULTS),
        fingerprint(line, Defaults("other")),
        fingerprint(line, Defaults("our-model", SharedSettings(seed=1))),
        fingerprint(line, Defaults("our-model", SharedSettings(max_tokens=1))),
    ]
    assert len({fingerprint(line, DEFAULTS), *others}) == 5
