"""The wire as a client sees it: openai's own, against a real port."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from manyhands.cache.pages import PagePool
from manyhands.strategies.methods import METHODS
from tests.server.house import NAME, TEXT, House, Model, make_house, running
from tests.waiting import soon

ASK: list[Any] = [{"role": "user", "content": "Which number is 3+4?"}]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with running(make_house()) as house:
        yield house
    assert house.num_pages_used() == 0
    assert house.front.news.num_readers == 0
    assert not house.front.runs.live


@pytest.fixture(scope="module")
def client(house: House) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def valid(kind: Any, answer: Any) -> Any:
    """The body as pydantic reads it when it looks at every field."""
    return kind.model_validate(answer.model_dump(), strict=True)


# -- chat completions and completions ----------------------------------------------------------------


def test_a_chat_completion(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=NAME, messages=ASK, max_tokens=12)
    valid(ChatCompletion, answer)
    (choice,) = answer.choices
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert answer.model == NAME
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    prompt = TEXT.chat_prompt(ASK[0]["content"])
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.total_tokens == len(prompt) + 12


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_says_the_same(client: OpenAI, n: int) -> None:
    asked: dict[str, Any] = {"model": NAME, "messages": ASK, "max_tokens": 9, "n": n, "seed": 5}
    whole = client.chat.completions.create(**asked)
    assert len({choice.message.content for choice in whole.choices}) == n
    texts, ends, last = [""] * n, [""] * n, None
    with client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ) as stream:
        for chunk in stream:
            valid(ChatCompletionChunk, chunk)
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] = choice.finish_reason or ends[choice.index]
            last = chunk
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == ["length"] * n
    assert last is not None
    assert last.usage is not None
    assert last.usage.completion_tokens == 9 * n
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens  # the request before has read it


def test_completions_of_several_prompts(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": NAME, "prompt": ["ab", "cd"], "n": 2, "max_tokens": 5}
    answer = client.completions.create(**asked, seed=1)
    valid(Completion, answer)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [""] * 4
    for chunk in client.completions.create(**asked, seed=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in answer.choices]
    ids = client.completions.create(model=NAME, prompt=list(TEXT.plain_prompt("ab")), max_tokens=5)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == len(TEXT.plain_prompt("ab"))


def test_a_stop_text_ends_a_choice(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": NAME, "messages": ASK, "max_tokens": 200, "seed": 2}
    answer = client.chat.completions.create(**asked, stop=["ab"])
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert "ab" not in (choice.message.content or "")
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**asked, stop=["ab"], stream=True)
    ]
    assert "".join(pieces) == choice.message.content


def test_logprobs_whole_and_in_pieces(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": NAME, "messages": ASK, "max_tokens": 6, "logprobs": True}
    whole = client.chat.completions.create(**asked, top_logprobs=2).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    pieces: list[Any] = []
    for chunk in client.chat.completions.create(**asked, top_logprobs=2, stream=True):
        told = chunk.choices[0].logprobs
        pieces += (told.content or []) if told is not None else []
    assert [each.model_dump() for each in pieces] == [each.model_dump() for each in whole.content]
    assert len(pieces) == 6


def test_logprobs_of_a_stop_text_are_not_told(client: OpenAI) -> None:
    """A whole answer has none, nor have pieces, whose text is held back until it is known to be one."""
    asked: dict[str, Any] = {"model": NAME, "messages": ASK, "max_tokens": 12, "logprobs": True}
    words = client.chat.completions.create(**asked).choices[0].message.content or ""
    stops = [words[4:7], f"{words[4:6]}#"]  # text that is held back for the second is text again
    for stop in stops:
        (whole,) = client.chat.completions.create(**asked, stop=[stop]).choices
        assert whole.logprobs is not None
        pieces, text = list[str](), ""
        for chunk in client.chat.completions.create(**asked, stop=[stop], stream=True):
            (choice,) = chunk.choices
            text += choice.delta.content or ""
            told = choice.logprobs.content if choice.logprobs is not None else None
            pieces += [each.token for each in told or []]
        assert text == whole.message.content
        assert pieces == [each.token for each in whole.logprobs.content or []]
        assert "".join(pieces).strip() == text


def test_offsets_of_pieces_are_those_of_the_whole(client: OpenAI) -> None:
    """Also where text is held back, and where characters end within a token."""
    asked: dict[str, Any] = {"model": NAME, "prompt": "abc", "max_tokens": 40, "logprobs": 0}
    asked |= {"temperature": 2, "seed": 1}
    words = client.completions.create(**asked).choices[0].text
    for stop in (f"{words[4:7]}\N{SNOWMAN}", words[9:12]):
        (whole,) = client.completions.create(**asked, stop=[stop]).choices
        assert whole.logprobs is not None
        offsets = list[int]()
        for chunk in client.completions.create(**asked, stop=[stop], stream=True):
            told = chunk.choices[0].logprobs
            offsets += (told.text_offset or []) if told is not None else []
        assert offsets == whole.logprobs.text_offset


# -- teams -------------------------------------------------------------------------------------------


def test_a_team_thinks_and_replies(client: OpenAI) -> None:
    extra = {"manyhands": {"budget": 60, "end": {"reply_tokens": 6, "finisher_tokens": 4}}}
    asked: dict[str, Any] = {"model": f"{NAME}:hogwild-3", "messages": ASK, "extra_body": extra}
    whole = client.chat.completions.create(**asked)
    valid(ChatCompletion, whole)
    message = whole.choices[0].message
    reasoning = message.model_extra["reasoning_content"]
    assert reasoning == message.model_extra["reasoning"]
    assert all(f"**{name} [" in reasoning for name in ("Alice", "Bob", "Carol"))
    assert whole.usage is not None
    details = whole.usage.completion_tokens_details
    assert details is not None
    assert details.reasoning_tokens == 180
    again = client.chat.completions.create(**asked).usage
    assert again is not None
    assert again.prompt_tokens_details is not None
    assert again.prompt_tokens == whole.usage.prompt_tokens
    cached = again.prompt_tokens_details.cached_tokens or 0
    assert 0 <= again.prompt_tokens - cached <= 1  # the method's rules included
    assert whole.usage.model_extra["manyhands"]["passes"] > 60

    thought, content, by_worker = "", "", dict[tuple[int, int], str]()
    for chunk in client.chat.completions.create(**asked, stream=True):
        valid(ChatCompletionChunk, chunk)
        delta = chunk.choices[0].delta
        more = delta.model_extra or {}
        if "reasoning_content" in more:
            thought += more["reasoning_content"]
            worker = more["worker"]
            key = worker["index"], worker["step"]
            by_worker[key] = by_worker.get(key, "") + more["reasoning_content"]
        content += delta.content or ""
    assert content.strip() == message.content
    steps = [each for each in reasoning.split("\n\n") if "(unfinished)" not in each]
    assert steps
    for step in steps:  # every step stands there in one piece
        assert step.strip() in thought
    names = {
        index: text.strip().removeprefix("**").split()[0] for (index, _), text in by_worker.items()
    }
    assert names == {0: "Alice", 1: "Bob", 2: "Carol"}


@pytest.mark.parametrize(
    "method",
    [
        *("sequential", "branches", "skeleton", "self_consistency-2", "best_of_n-2"),
        *("async_reasoning", "async_think-2"),
    ],
)
def test_every_method_answers_whole_and_in_pieces(
    house: House, client: OpenAI, method: str
) -> None:
    extra = {"manyhands": {"budget": 40, "end": {"reply_tokens": 5, "finisher_tokens": 4}}}
    asked: dict[str, Any] = {"model": f"{NAME}:{method}", "messages": ASK, "extra_body": extra}
    raw = client.chat.completions.with_raw_response.create(**asked)
    message = raw.parse().choices[0].message
    deltas = [
        chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)
    ]
    content = "".join(delta.content or "" for delta in deltas)
    assert message.content
    assert content.strip() == message.content.strip()
    streamed = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    run = httpx2.get(f"{house.url}/v1/runs/{raw.headers['x-manyhands-run']}").json()
    thought = (message.model_extra or {}).get("reasoning_content", "")
    in_pieces, at_once = (sorted(f"\n\n{told}".split("\n\n**")) for told in (streamed, thought))
    assert in_pieces == at_once  # a stream may tell steps in another order
    for step in run["end"]["answer"]["steps"]:  # none is lost or, of a main strand, told twice
        is_main = METHODS[method.split("-")[0]].solo and step["worker"] == 0
        is_thought, is_said = step["text"] in thought, step["text"] in message.content
        assert is_thought != is_said if is_main else is_thought


def test_a_request_without_a_seed_is_another_sample_each_time(
    client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of plain requests, of methods and of runs; with a seed, or where the server has one, all are alike.

    The random seeds are drawn from a known order here, so that what is compared is the same in every run of the test.
    """
    known = SimpleNamespace(randbits=random.Random(1).getrandbits)
    monkeypatch.setattr("manyhands.server.asked.secrets", known)
    asked: dict[str, Any] = {"messages": ASK, "max_tokens": 12, "temperature": 1.0}
    run = {"problem": "1+2", "method": "sequential", "budget": 12, "choice": {"temperature": 1.0}}

    def is_done(url: str) -> bool:
        return bool(httpx2.get(url).json()["status"] == "done")

    def said(client: OpenAI, **more: Any) -> list[set[Any]]:
        whole = client.chat.completions.create
        plain = {whole(model=NAME, **asked, **more).choices[0].message.content for _ in range(3)}
        name = f"{NAME}:hogwild-2"
        team = [whole(model=name, **asked, **more).choices[0].message for _ in range(3)]
        thoughts = {
            (message.content, (message.model_extra or {}).get("reasoning_content"))
            for message in team
        }
        url = str(client.base_url).rstrip("/")
        runs = [httpx2.post(f"{url}/runs", json=run | more).json()["id"] for _ in range(3)]
        assert all(soon(partial(is_done, f"{url}/runs/{one}")) for one in runs)
        ends = {httpx2.get(f"{url}/runs/{one}").json()["end"]["answer"]["text"] for one in runs}
        return [plain, thoughts, ends]

    assert [len(each) for each in said(client)] == [1, 1, 1], "the house has a seed"
    with running(make_house(seed=None)) as house:
        url = f"{house.url}/v1"
        with OpenAI(base_url=url, api_key="none", max_retries=0) as fresh:
            assert [len(each) for each in said(fresh)] == [3, 3, 3]
            assert [len(each) for each in said(fresh, seed=5)] == [1, 1, 1]


@pytest.mark.parametrize("method", ["hogwild-2", "sequential"])
def test_samples_of_a_method_are_runs_that_differ_in_their_seed(
    house: House, client: OpenAI, method: str
) -> None:
    """The choices are what each seed gives alone; the prompt is read once."""
    manyhands = {"budget": 12, "end": {"reply_tokens": 6, "finisher_tokens": 4}}
    asked: dict[str, Any] = {"model": f"{NAME}:{method}", "messages": ASK, "temperature": 1.0}
    asked |= {"extra_body": {"manyhands": manyhands}}
    alone = [client.chat.completions.create(**asked, seed=seed) for seed in (7, 8, 9)]
    raw = client.chat.completions.with_raw_response.create(**asked, seed=7, n=3)
    whole = raw.parse()
    valid(ChatCompletion, whole)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    said = [choice.message.model_dump() for choice in whole.choices]
    assert said == [each.choices[0].message.model_dump() for each in alone]
    assert len({message["content"] for message in said}) > 1
    runs = (raw.headers.get("x-manyhands-run") or "").split(", ")
    assert len(set(runs)) == 3
    for run, seed in zip(runs, (7, 8, 9), strict=True):
        trace = httpx2.get(f"{house.url}/v1/runs/{run}/trace").text
        assert json.loads(trace.splitlines()[0])["seed"] == seed

    parts = [each.usage for each in alone]
    assert whole.usage is not None
    assert all(part is not None for part in parts)
    assert whole.usage.prompt_tokens == parts[0].prompt_tokens
    assert whole.usage.completion_tokens == sum(part.completion_tokens for part in parts)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    texts, thoughts, ends, ids = [""] * 3, [""] * 3, [""] * 3, set()
    last: Any = None
    stream = client.chat.completions.create(
        **asked, seed=7, n=3, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        valid(ChatCompletionChunk, chunk)
        ids.add(chunk.id)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            more = choice.delta.model_extra or {}
            thoughts[choice.index] += more.get("reasoning_content") or ""
            ends[choice.index] += choice.finish_reason or ""
        last = chunk
    assert len(ids) == 1
    assert [text.strip() for text in texts] == [message["content"] for message in said]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert all(thoughts) or method == "sequential"
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_samples_of_a_method_begin_all_or_not_at_all() -> None:
    asked = {"model": f"{NAME}:hogwild-2", "messages": ASK, "n": 3}
    with running(make_house(live_runs=1, waiting_runs=1)) as house:
        for stream in (False, True):
            body = {**asked, "stream": stream}
            answer = httpx2.post(f"{house.url}/v1/chat/completions", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "busy")
        assert house.num_pages_used() == 0
        assert not house.front.runs.live
    limits = {"budget": 1000, "method": "hogwild"}
    with running(make_house(request_tokens=5999)) as house:
        body = {**asked, "model": NAME, "manyhands": limits}
        error = httpx2.post(f"{house.url}/v1/chat/completions", json=body).json()["error"]
        assert "may write 6000 tokens" in error["message"]


def test_a_stop_text_ends_the_reply_of_a_method(client: OpenAI) -> None:
    extra = {"manyhands": {"budget": 12, "end": {"reply_tokens": 40, "finisher_tokens": 4}}}
    asked: dict[str, Any] = {"model": f"{NAME}:hogwild-2", "messages": ASK, "extra_body": extra}
    free = client.chat.completions.create(**asked).choices[0]
    assert free.finish_reason == "length"
    assert free.message.content
    stop = free.message.content[9:12]
    answer = client.chat.completions.create(**asked, stop=[stop]).choices[0]
    assert answer.message.content == free.message.content.partition(stop)[0].strip()
    assert answer.finish_reason == "stop"
    chunks = client.chat.completions.create(**asked, stop=[stop], stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces).strip() == answer.message.content


# -- models and tokens -------------------------------------------------------------------------------


def test_models_and_their_aliases(client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == NAME
    assert {f"{NAME}:hogwild-4", f"{NAME}:branches"} < set(names)
    for name in names:
        assert client.models.retrieve(name).id == name
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'; GET /v1/models lists"):
        client.models.retrieve("gpt")
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="/etc/passwd", messages=ASK)
    assert caught.value.code == "model_not_found"


def test_tokens_there_and_back(house: House) -> None:
    told = httpx2.post(f"{house.url}/v1/tokenize", json={"prompt": "So the answer"}).json()
    assert told["tokens"] == list(TEXT.plain_prompt("So the answer"))
    back = httpx2.post(f"{house.url}/v1/detokenize", json={"tokens": told["tokens"]}).json()
    assert back == {"prompt": "So the answer"}
    chat = httpx2.post(f"{house.url}/v1/tokenize", json={"messages": ASK}).json()
    assert chat["tokens"] == list(TEXT.chat_prompt(ASK[0]["content"]))
    assert chat["count"] == len(chat["tokens"])
    for body in ({}, {"prompt": "a", "messages": ASK}, {"prompt": 3}):
        assert httpx2.post(f"{house.url}/v1/tokenize", json=body).status_code == 400
    size = len(TEXT.tokenizer)  # type: ignore[arg-type]
    for token, status in ((-1, 400), (0, 200), (size - 1, 200), (size, 400), (10**6, 400)):
        answer = httpx2.post(f"{house.url}/v1/detokenize", json={"tokens": [3, token]})
        assert answer.status_code == status, token


# -- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": True}, "n"),
        ({"n": 5000}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"wibble": 1}, "wibble"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        ({"n": 1000, "max_tokens": 2000}, "max_tokens"),
        ({"manyhands": {"method": "magic"}}, "manyhands.method"),
        ({"manyhands": {"workers": 2}}, "manyhands.method"),
        ({"manyhands": {"method": "hogwild", "workers": 2.5}}, "manyhands.workers"),
        ({"manyhands": {"method": "hogwild", "workers": True}}, "manyhands.workers"),
        ({"manyhands": {"method": "hogwild", "workers": 999}}, "manyhands.workers"),
        ({"manyhands": {"method": "hogwild", "budget": 10**9}}, "manyhands.budget"),
        ({"manyhands": {"method": "hogwild", "away": []}}, "manyhands.away"),
    ],
)
def test_a_value_that_cannot_be_is_named(
    house: House, body: dict[str, Any], param: str | None
) -> None:
    given = {"model": NAME, "messages": ASK, **body}
    answer = httpx2.post(f"{house.url}/v1/chat/completions", json=given)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]


@pytest.mark.parametrize(("method", "most"), [(None, 0), ("sequential", 0), ("sequential", 10**9)])
@pytest.mark.parametrize(
    ("url", "field"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_a_number_of_tokens_is_named_as_the_client_calls_it(
    house: House, url: str, field: str, method: str | None, most: int
) -> None:
    body: dict[str, Any] = {field: most, "manyhands": method and {"method": method}}
    body |= {"messages": ASK} if url.endswith("completions") else {"input": "a"}
    answer = httpx2.post(f"{house.url}{url}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert method is not None or error["message"].startswith(f"{field} is 0")


def test_mistakes_of_a_response_are_named_by_its_own_fields(house: House) -> None:
    asked = [{"role": "assistant", "content": "b"}]
    for body in ({"input": asked}, {"input": " ", "manyhands": {"method": "hogwild"}}):
        answer = httpx2.post(f"{house.url}/v1/responses", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize(
    ("url", "body", "place"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": ["a", {"type": "image_url"}]}]},
            "messages[0].content[1].type is 'image_url'",
        ),
        (
            "/v1/chat/completions",
            {"messages": [*ASK, {"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[1].content[0].type is 'input_audio'",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type is 'input_image'",
        ),
    ],
)
def test_a_part_that_is_no_text_is_refused_by_its_kind(
    house: House, url: str, body: dict[str, Any], place: str
) -> None:
    answer = httpx2.post(f"{house.url}{url}", json=body)
    assert answer.status_code == 400
    expected = f"{place}; this is not supported: there is text alone"
    assert answer.json()["error"]["message"] == expected


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": ASK, "logit_bias": {"99999": 1}}, "logit_bias"),
        (
            "/v1/chat/completions",
            {"messages": ASK, "logit_bias": {"99999": 1}, "manyhands": {"method": "hogwild"}},
            "logit_bias",
        ),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias"),
        ("/v1/completions", {"prompt": [1, 99999]}, "prompt"),
        ("/v1/completions", {"prompt": [[1], [-1]]}, "prompt"),
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs"),
        (
            "/v1/chat/completions",
            {"messages": ASK, "logprobs": True, "top_logprobs": 21},
            "top_logprobs",
        ),
    ],
)
def test_ids_and_numbers_that_the_engine_does_not_know_have_the_name_of_their_field(
    house: House, url: str, body: dict[str, Any], param: str
) -> None:
    answer = httpx2.post(f"{house.url}{url}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["message"].startswith(param)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/responses", {"input": "a", "manyhands": {"method": "hogwild", "insertions": []}}),
        ("/v1/runs", {"problem": "a", "method": "hogwild", "insertions": []}),
    ],
)
def test_what_python_alone_can_choose_is_refused_at_every_door(
    house: House, url: str, body: dict[str, Any]
) -> None:
    answer = httpx2.post(f"{house.url}{url}", json=body)
    assert answer.status_code == 400
    place = "manyhands.insertions" if "manyhands" in body else "insertions"
    assert answer.json()["error"]["param"] == place
    assert "can be chosen in Python alone" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'"a"',
        b"\xff\xfe",
        b'{"messages": NaN}',
        b'{"messages": [], "seed": 9223372036854775808}',
        b'{"messages": [], "top_p": 1e999}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\\u0000"}]}',
        b'{"a\\u0000": 1}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"messages": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        b"[" * 200_000,
    ],
)
def test_what_is_no_request_at_all(house: House, text: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx2.post(f"{house.url}/v1/chat/completions", content=text, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_too_many_prompts_are_refused_before_they_are_made(house: House) -> None:
    body = {"model": NAME, "prompt": ["a"] * 257, "max_tokens": 1}
    error = httpx2.post(f"{house.url}/v1/completions", json=body).json()["error"]
    assert (error["param"], error["message"]) == (
        "prompt",
        "prompt holds 257 prompts; expected at most 256",
    )


def test_a_run_that_can_never_fit_is_refused_with_a_status() -> None:
    plain: dict[str, Any] = {"model": NAME, "n": 9}
    team: dict[str, Any] = {"model": f"{NAME}:hogwild-3"}
    with running(make_house(Model(pool=PagePool(8)))) as house:
        for asked, stream in itertools.product((plain, team), (False, True)):
            body = {**asked, "messages": ASK, "stream": stream}
            answer = httpx2.post(f"{house.url}/v1/chat/completions", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "out_of_memory"


def test_unknown_routes_and_methods(house: House) -> None:
    error = httpx2.get(f"{house.url}/v1/nothing").json()["error"]
    assert error["code"] == "not_found"
    assert error["message"].startswith("there is no route '/v1/nothing'; GET /openapi.json lists")
    answer = httpx2.get(f"{house.url}/v1/chat/completions")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (405, "method_not_allowed")
    assert error["message"] == "the route '/v1/chat/completions' does not take 'GET'; it takes POST"


# -- for operators -----------------------------------------------------------------------------------


def test_health_readiness_metrics_and_ids(house: House) -> None:
    assert httpx2.get(f"{house.url}/health").json() == {"status": "ok"}
    assert httpx2.get(f"{house.url}/ready").json() == {"status": "ready"}
    answer = httpx2.get(f"{house.url}/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    page = answer.text
    for name in (
        "num_requests_running",
        "kv_cache_usage_perc",
        "time_to_first_token_seconds_count",
        "disk_cache_hits_total",
        "kernels_compiled_total",
        "passes_recorded_total",
        "passes_dropped_total",
        "rows_in_vain_total",
        "blocks_moved_total",
    ):
        assert f"manyhands_{name}" in page
    assert 'manyhands_requests_total{route="health",status="200"} ' in page
    answer = httpx2.get(f"{house.url}/health", headers={"X-Request-Id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    answer = httpx2.get(f"{house.url}/health", headers={"X-Request-Id": "a b"})
    assert answer.headers["x-request-id"].startswith("req_")


def metrics_of(house: House) -> dict[str, float]:
    lines = httpx2.get(f"{house.url}/metrics").text.splitlines()
    told = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name.removeprefix("manyhands_"): float(value) for name, value in told}


def test_metrics_count_what_answers_say() -> None:
    """Of requests one after another, and of a stream while it is open."""
    extra = {"manyhands": {"budget": 7, "end": {"reply_tokens": 3, "finisher_tokens": 2}}}
    plain: dict[str, Any] = {"model": NAME, "messages": ASK, "max_tokens": 5}
    teams: dict[str, Any] = {"model": f"{NAME}:hogwild-2", "messages": ASK, "extra_body": extra}
    began = time.monotonic()
    with (
        running(make_house(Model(seconds=0.002))) as house,
        OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client,
    ):
        before = metrics_of(house)
        for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
            assert before[f"{name}_seconds_count"] == 0
        answers = [client.chat.completions.create(**plain) for _ in range(3)]
        only_plain = metrics_of(house)
        assert only_plain["inter_token_latency_seconds_count"] == 3 * (5 - 1)
        answers += [client.chat.completions.create(**teams) for _ in range(2)]
        used = [answer.usage for answer in answers if answer.usage is not None]
        with client.chat.completions.create(**{**plain, "max_tokens": 900}, stream=True):
            assert soon(lambda: metrics_of(house)["num_requests_running"] == 1)
            during = metrics_of(house)
            assert during["num_streams"] == 1
        assert soon(lambda: metrics_of(house)["num_streams"] == 0)
        assert soon(lambda: metrics_of(house)["num_requests_running"] == 0)
        after = metrics_of(house)
        route = 'requests_total{route="chat",status="200"}'
        assert (during[route], after[route]) == (5, 6)
        num_passes = house.model.num_passes
    assert during["prompt_tokens_total"] == sum(each.prompt_tokens for each in used)
    assert after["forward_passes_total"] == num_passes
    for name in ("time_to_first_token", "e2e_request_latency"):
        assert (during[f"{name}_seconds_count"], after[f"{name}_seconds_count"]) == (5, 6)
    first, between, whole = (
        during[f"{name}_seconds_sum"]
        for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
    )
    assert 0.01 < first < first + between <= whole < time.monotonic() - began
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        is_bucket = f"{name}_seconds_bucket"
        buckets = [value for each, value in after.items() if each.startswith(is_bucket)]
        assert len(buckets) > 5
        assert buckets == sorted(buckets)
        assert buckets[-1] == after[f"{name}_seconds_count"]
