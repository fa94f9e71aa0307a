"""openai-python as it is, sync and async: what its own tests of an API ask, put to a server of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.server.house import NAME, House, Model, make_house, running
from tests.waiting import soon

ASK: list[Any] = [{"role": "user", "content": "Which number is 3+4?"}]
KEY = "a-key-of-some-length"
CHAT: dict[str, Any] = {"model": NAME, "messages": ASK, "max_tokens": 6, "seed": 3}
RESPONSE: dict[str, Any] = {"model": NAME, "input": "a", "max_output_tokens": 6}
PLAIN: dict[str, Any] = {"model": NAME, "prompt": "ab", "max_tokens": 6, "seed": 3}


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with running(make_house(keys=(KEY,))) as house:
        yield house
    assert house.num_pages_used() == 0
    assert not house.front.runs.live


@pytest.fixture(scope="module")
def client(house: House) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{house.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_each_method_raw_and_streamed_as_it_is(client: OpenAI) -> None:
    """As its own tests have it: the value, the raw response, the streaming response, of each method."""
    for create, asked, kind in (
        (client.chat.completions, CHAT, "chat.completion"),
        (client.completions, PLAIN, "text_completion"),
        (client.responses, RESPONSE, "response"),
    ):
        endpoint: Any = create
        parsed = endpoint.create(**asked)
        assert parsed.object == kind
        raw = endpoint.with_raw_response.create(**asked)
        assert raw.http_request.headers.get("X-Stainless-Lang") == "python"
        assert raw.headers["x-request-id"]
        assert raw.is_closed
        assert raw.parse().object == kind
        with endpoint.with_streaming_response.create(**asked) as response:
            assert not response.is_closed
            assert response.parse().object == kind
        assert response.is_closed
        pieces = endpoint.create(**asked, stream=True)
        assert len(list(pieces)) > 1
        pieces.response.close()
    models = client.models.with_raw_response.list()
    assert models.parse().data[0].id == NAME


def test_the_helpers_that_add_a_stream_up(client: OpenAI) -> None:
    free = client.chat.completions.create(**CHAT).choices[0].message.content or ""
    # The helper takes a reply that is cut by its length for an error.
    asked = {**CHAT, "stop": [free[-2:]]}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == whole.choices[0].message.content
    ChatCompletion.model_validate(final.model_dump(), strict=True)
    with client.responses.stream(**RESPONSE) as told:
        *_, last = (events := list(told))
    assert any(event.type == "response.output_text.delta" for event in events)
    assert last.type == "response.incomplete"
    Response.model_validate(last.response.model_dump(), strict=True)
    assert last.response.output_text


def test_many_at_once_in_asyncio(house: House) -> None:
    async def all_of_them() -> list[str]:
        async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key=KEY, max_retries=0) as client:

            async def one(seed: int) -> str:
                asked = {**CHAT, "seed": seed}
                whole = await client.chat.completions.create(**asked)
                stream = await client.chat.completions.create(**asked, stream=True)
                text = "".join([c.choices[0].delta.content or "" async for c in stream])
                assert text == whole.choices[0].message.content
                raw = await client.chat.completions.with_raw_response.create(**asked)
                assert raw.parse().choices[0].message.content == text
                return text

            return await asyncio.gather(*(one(seed) for seed in range(8)))

    assert len(set(asyncio.run(all_of_them()))) > 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"temperature": -1}, openai.BadRequestError),
        ({"model": "gpt"}, openai.NotFoundError),
        ({"extra_body": {"wibble": 1}}, openai.BadRequestError),
    ],
)
def test_errors_have_their_classes(client: OpenAI, change: Any, error: type[Exception]) -> None:
    for stream in (False, True):
        with pytest.raises(error) as caught:
            client.chat.completions.create(**{**CHAT, **change}, stream=stream)
        assert isinstance(caught.value, openai.APIStatusError)
        assert caught.value.request_id
        assert caught.value.type in ("invalid_request_error", "not_found_error")
    with (
        pytest.raises(openai.AuthenticationError),
        OpenAI(base_url=client.base_url, api_key="another-long-key", max_retries=0) as other,
    ):
        other.models.list()


def test_a_client_waits_as_long_as_it_is_told_and_asks_again() -> None:
    """A full server says 429 and when to come back; the client keeps to it, and is answered."""
    with (
        running(make_house(Model(seconds=0.02), live_runs=1, waiting_runs=0)) as house,
        OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client,
    ):
        long = client.chat.completions.create(**{**CHAT, "max_tokens": 500}, stream=True)
        next(iter(long))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**CHAT)
        assert 0 < float(caught.value.response.headers["retry-after"]) < 60
        told = client.with_options(max_retries=5).chat.completions.with_raw_response
        long.response.close()
        answer = told.create(**CHAT)
        assert answer.parse().choices[0].message.content


def test_a_client_whose_time_is_up_leaves_nothing_behind() -> None:
    with (
        running(make_house(Model(seconds=0.05))) as house,
        OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=1) as client,
    ):
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5).chat.completions.create(**{**CHAT, "max_tokens": 900})
        assert soon(lambda: not house.front.runs.live)
        assert house.num_pages_used() == 0
