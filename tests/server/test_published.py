"""Answers, against OpenAI's published description; and each field that it lists, with a value that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai.types import completion_create_params as plain_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from manyhands.schema.openai import Shape
from manyhands.server.shapes import ChatBody, PlainBody, ResponsesBody
from tests.server.house import NAME, House, make_house, running
from tests.server.openai_description import REQUESTS, description, fields_of, wrong

ASK = [{"role": "user", "content": "Which number is 3+4?"}]
TEAM = {"budget": 12, "end": {"reply_tokens": 4, "finisher_tokens": 3}}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 4, "n": 2},
    "logprobs": {"max_tokens": 3, "logprobs": True, "top_logprobs": 1},
    "team": {"model": f"{NAME}:hogwild-2", "manyhands": TEAM, "n": 2},
    "sequential": {"model": f"{NAME}:sequential", "manyhands": {"budget": 4}},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {"max_output_tokens": 4},
    "team": {"model": f"{NAME}:hogwild-2", "manyhands": TEAM},
}
SOUND: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_completion_tokens": 1},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
}


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with running(make_house()) as house:
        yield house
    assert not house.front.runs.live


@pytest.fixture(scope="module")
def client(house: House) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=house.url, timeout=60) as client:
        yield client


def streamed(answer: httpx2.Response) -> list[Any]:
    """The data of every event of a stream."""
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize("kind", CHATS)
def test_chat_completions_are_as_published(client: httpx2.Client, kind: str) -> None:
    body = {"model": NAME, "messages": ASK, **CHATS[kind]}
    whole = client.post("/v1/chat/completions", json=body)
    assert wrong("CreateChatCompletionResponse", whole.json()) == []
    more = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = streamed(client.post("/v1/chat/completions", json={**body, **more}))
    assert len(chunks) > 3
    for chunk in chunks:
        assert wrong("CreateChatCompletionStreamResponse", chunk) == []
    broken = {**whole.json(), "choices": [{"index": "0"}]}
    assert wrong("CreateChatCompletionResponse", broken), "control"


def test_completions_are_as_published(client: httpx2.Client) -> None:
    body = {"model": NAME, "prompt": ["a", "b"], "max_tokens": 3, "logprobs": 1}
    assert wrong("CreateCompletionResponse", client.post("/v1/completions", json=body).json()) == []
    body |= {"stream": True}
    for chunk in streamed(client.post("/v1/completions", json=body)):
        if chunk["choices"][0]["finish_reason"] is not None:  # else null, which is not described
            assert wrong("CreateCompletionResponse", chunk) == []


@pytest.mark.parametrize(
    ("published", "ours"),
    [
        (completion_create_params.CompletionCreateParamsBase, ChatBody),
        (plain_params.CompletionCreateParamsBase, PlainBody),
        (response_create_params.ResponseCreateParamsBase, ResponsesBody),
    ],
)
def test_each_field_of_the_published_client_has_its_own_word(
    published: Any, ours: type[Shape]
) -> None:
    """It is understood, left alone, or refused for a reason; "not known" is said of a slip of the pen."""
    own = {field.alias or name for name, field in ours.model_fields.items()}
    assert set(published.__annotations__) <= own


@pytest.mark.parametrize("kind", RESPONSES)
def test_responses_are_as_published(client: httpx2.Client, kind: str) -> None:
    body = {"model": NAME, "input": "Which number is 3+4?", **RESPONSES[kind]}
    whole = client.post("/v1/responses", json=body).json()
    assert wrong("Response", whole) == []
    events = streamed(client.post("/v1/responses", json={**body, "stream": True}))
    published = [event for event in events if not event["type"].startswith("manyhands:")]
    assert len(published) > 5
    for event in published:
        assert wrong("ResponseStreamEvent", event) == [], event["type"]


def test_models_and_errors_are_as_published(client: httpx2.Client) -> None:
    models = client.get("/v1/models").json()
    assert wrong("ListModelsResponse", models) == []
    assert wrong("Model", client.get(f"/v1/models/{NAME}:branches").json()) == []
    for answer in (client.get("/v1/models/gpt"), client.post("/v1/responses", json={})):
        assert wrong("ErrorResponse", answer.json()) == []


@pytest.mark.parametrize("url", REQUESTS)
def test_each_published_field_is_understood_or_refused_by_its_name(
    client: httpx2.Client, url: str
) -> None:
    """No field of OpenAI's is left alone in silence unless it changes no answer, and none is a mistake."""
    taken = set()
    for name in fields_of(url):
        for value in ("wibble", [{"type": -1}]):
            answer = client.post(url, json={"model": NAME, **SOUND[url], name: value})
            if answer.status_code == 200:
                taken.add(name)
                continue
            assert answer.status_code == (404 if (name, value) == ("model", "wibble") else 400)
            assert answer.json()["error"]["param"].partition("[")[0].partition(".")[0] == name
    described = client.get("/openapi.json").json()["components"]["schemas"]
    names = {"/v1/chat/completions": "ChatBody", "/v1/completions": "PlainBody"}
    ours = described[names.get(url, "ResponsesBody")]["properties"]
    free = {name for name, schema in ours.items() if "type" not in schema and "anyOf" not in schema}
    texts = {"messages", "prompt", "input", "instructions", "stop", "user"}
    assert taken <= free | texts


def test_the_slice_says_whose_it_is() -> None:
    assert description()["info"]["license"]["name"] == "MIT"
