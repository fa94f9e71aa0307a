"""Lines of a batch: what is understood, what is refused and how, and the form of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from manyhands.cli.batch_lines import (
    Request,
    answer_line,
    decode_line,
    error_line,
    fingerprint,
    understand,
)
from manyhands.errors import ContextTooLong, InvalidRequest
from manyhands.schema.openai import CHAT, PLAIN, InvalidField
from manyhands.strategies.requests import Defaults
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
    assert given.prompts == (Prompt(TEXT.chat_prompt("Hello"), chat=True),)
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
    ("change", "said"),
    [
        ({"url": "/v1/embeddings"}, "url is '/v1/embeddings'; expected"),
        ({"method": "GET"}, "method is 'GET'; expected 'POST'"),
        ({"body": None}, "body is missing; expected an object"),
        (
            {"body": {"messages": HELLO, "manyhands": {"insertions": []}}},
            "body has a field 'manyhands' that is not known",
        ),
        (
            {"body": {"messages": HELLO, "model": "any:hogwild-2"}},
            "model is 'any:hogwild-2', which asks for the method hogwild",
        ),
        ({"body": {"messages": HELLO, "temperature": 200}}, "temperature is 200.0; expected 0 to"),
    ],
)
def test_lines_that_ask_for_something_else(change: dict[str, Any], said: str) -> None:
    line = {"custom_id": "a", "url": CHAT, "body": {"messages": HELLO}, **change}
    with pytest.raises(InvalidField, match=said) as found:
        understand(line, 1, TEXT, DEFAULTS, isolate=False)
    assert found.value.param == said.partition(" ")[0] or found.value.param == "manyhands"


@pytest.mark.parametrize(
    "model", ["a:7b", "a:hogwild-2:b", "hogwild", "a:hogwildly", "a:hogwild-x"]
)
def test_names_with_colons_are_names(model: str) -> None:
    assert request(model=model).custom_id == "a"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"{", "line 5 is not JSON"),
        (b"[" * 100_000, "line 5 is nested more than 64 deep"),
        (b'{"custom_id": "a", "body": ' + b"[" * 64 + b"]" * 64 + b"}", "is nested more than 64"),
        (b'{"custom_id": "a", "n": ' + b"9" * 5000 + b"}", "line 5 holds a number of too many"),
        (b"[1]", r"line 5 is \[1\]; expected an object"),
        (b"null", "line 5 is missing; expected an object"),
        (b'{"custom_id": null}', "line 5 has no custom_id; expected a text"),
        (b'{"custom_id": ""}', "the custom_id of line 5 is ''; expected a text"),
        (b'{"custom_id": 7}', "the custom_id of line 5 is 7; expected a text"),
        (b'{"custom_id": ["a"]}', r"the custom_id of line 5 is \['a'\]; expected a text"),
        (b'"\xff"', r"line 5 is not UTF-8 text \(byte 1\)"),
    ],
)
def test_lines_that_are_no_requests(raw: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        decode_line(raw, 5)


def test_the_form_of_an_answer() -> None:
    completions = (Completion(0, 0, "Four.", "", (1, 2, 3), "stop"),)
    answer = Completions("Four.", tokens=(3,), completions=completions, prompt_tokens=(9,))
    line = json.loads(json.dumps(answer_line(request(), answer, "our-model")))
    assert (line["custom_id"], line["error"]) == ("a", None)
    assert line["response"]["status_code"] == 200
    assert line["response"]["body"]["id"] == f"chatcmpl-{line['response']['request_id'][4:]}"
    assert line["response"]["body"]["choices"][0]["message"]["content"] == "Four."
    plain = answer_line(request(PLAIN, prompt="a"), answer, "m")["response"]["body"]
    assert plain["choices"][0]["text"] == "Four."


def test_the_form_of_an_error() -> None:
    line = error_line(ContextTooLong("too long", hint="shorten it"), 7, "a", "f")
    assert line["error"] == {
        "code": "context_too_long",
        "message": "too long (shorten it)",
        "param": None,
        "line": 7,
    }
    assert line["response"] is None


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
