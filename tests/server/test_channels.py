"""A model that writes messages in channels, as a client sees it: the final one is the content, all others are reasoning."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from manyhands.schema.conversation import Conversation, Message
from manyhands.server.process import Place
from tests.server.house import NAME, House, Model, make_house, running
from tests.strategies.driver import Scripts
from tests.strategies.test_channels import COMMENTARY, FINAL, OPENED, TEXT, lines
from tests.waiting import soon

ASK: list[Any] = [{"role": "user", "content": "Which number is 3+4?"}]
THOUGHT = f"We add.<|end|>{OPENED}So 7.<|end|>{FINAL}"
REASONING = "We add.\n\nSo 7."
SAMPLE = "prompt 0, sample 0"


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with running(make_house(text=TEXT)) as house:
        yield house
    assert house.num_pages_used() == 0


@pytest.fixture(scope="module")
def client(house: House) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def say(house: House, *written: str, writer: str = SAMPLE, **more: list[str]) -> None:
    """Have the model write this from now on."""
    said = {writer: lines(*written), **{name: lines(*words) for name, words in more.items()}}
    house.model.dice = Scripts(TEXT, **said)


def streamed(client: OpenAI, **asked: Any) -> tuple[str, str, str | None, list[Any]]:
    content, thought, reason = "", "", None
    told: list[Any] = []
    for chunk in client.chat.completions.create(stream=True, **asked):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        thought += (choice.delta.model_extra or {}).get("reasoning_content") or ""
        reason = reason or choice.finish_reason
        told += choice.logprobs.content or [] if choice.logprobs is not None else []
    return content, thought, reason, told


@pytest.mark.parametrize(
    ("written", "content", "reasoning", "reason"),
    [
        (f"{THOUGHT} It is 7.<|return|>", "It is 7.", REASONING, "stop"),
        (f"{THOUGHT}It is 7.<|end|><|start|>user", "It is 7.", REASONING, "stop"),
        (f"{THOUGHT}It is", "It is", REASONING, "length"),
        ("We add.", "", "We add.", "length"),
        (f"We add.<|end|>{COMMENTARY}{{}}<|call|>", "", "We add.\n\n{}", "stop"),
    ],
)
def test_a_chat(
    house: House, client: OpenAI, written: str, content: str, reasoning: str, reason: str
) -> None:
    size = len(TEXT.markup(written))
    asked: dict[str, Any] = {"model": NAME, "messages": ASK, "max_tokens": size, "logprobs": True}
    say(house, written)
    whole = client.chat.completions.create(**asked)
    (choice,) = whole.choices
    extra: dict[str, Any] = choice.message.model_extra or {}
    assert (choice.message.content, choice.finish_reason) == (content, reason)
    assert extra["reasoning_content"] == extra["reasoning"] == reasoning
    assert choice.logprobs is not None
    told = choice.logprobs.content or []
    assert "".join(token.token for token in told).strip() == content
    usage = whole.usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    thought = size if not content else len(TEXT.markup(THOUGHT))
    ends = written.endswith("<|call|>")
    assert usage.completion_tokens_details.reasoning_tokens == thought - ends

    say(house, written)
    pieces = streamed(client, **asked)
    assert pieces[:3] == (content, reasoning, reason)
    assert [token.token for token in pieces[3]] == [token.token for token in told]


@pytest.mark.parametrize("method", ["sequential", "branches", "skeleton", "async_think-2"])
def test_a_method_whose_strand_is_the_reply(house: House, client: OpenAI, method: str) -> None:
    """The reply stands in the content alone, whole and in pieces."""
    extra = {"manyhands": {"end": {"finisher": False}}}
    asked: dict[str, Any] = {"model": f"{NAME}:{method}", "messages": ASK, "extra_body": extra}
    say(house, f"{THOUGHT}It is 7.<|return|>", writer="writer")
    message = client.chat.completions.create(**asked).choices[0].message
    reasoning = (message.model_extra or {})["reasoning_content"]
    assert message.content == "It is 7."
    assert reasoning.partition(":** ")[2] == REASONING
    say(house, f"{THOUGHT}It is 7.<|return|>", writer="writer")
    content, thought, reason, _ = streamed(client, **asked)
    assert thought == REASONING
    assert (content, reason) == ("It is 7.", "stop")


def test_a_team(house: House, client: OpenAI) -> None:
    extra = {"manyhands": {"end": {"finisher": False}}}
    asked: dict[str, Any] = {"model": f"{NAME}:hogwild-2", "messages": ASK, "extra_body": extra}
    for stream in (False, True):
        say(
            house,
            "It is 7.<|return|>",
            writer="reply",
            Alice=["3 and 4.\n\n", "So 7.<|end|>"],
            Bob=["Hm.<|return|>"],
        )
        if stream:
            content, thought, reason, _ = streamed(client, **asked)
        else:
            choice = client.chat.completions.create(**asked).choices[0]
            content, reason = choice.message.content or "", choice.finish_reason
            thought = (choice.message.model_extra or {})["reasoning_content"]
        assert (content, reason) == ("It is 7.", "stop")
        assert all(words in thought for words in ("3 and 4.", "So 7.", "Hm."))
        assert "It is" not in thought


def test_a_response(house: House, client: OpenAI) -> None:
    for written, kinds in (
        (f"{THOUGHT}It is 7.<|return|>", ["reasoning", "message"]),
        (f"We add.<|end|>{COMMENTARY}{{}}<|call|>", ["reasoning", "message"]),
    ):
        say(house, written)
        whole = client.responses.create(model=NAME, input="Which number is 3+4?")
        items = whole.model_dump()["output"]
        assert [item["type"] for item in items] == kinds
        assert whole.output_text == ("It is 7." if "7" in written else "")
        assert items[0]["content"][0]["text"] == (REASONING if "7" in written else "We add.\n\n{}")
        say(house, written)
        last: Any = None
        for event in client.responses.create(model=NAME, input="Which number is 3+4?", stream=True):
            last = event
        found = last.response.model_dump()["output"]
        assert [item["content"] for item in found] == [item["content"] for item in items]


def test_the_next_turn_has_no_thinking_in_it(house: House, client: OpenAI) -> None:
    """Whether the client sends it back in a field of its own, or spelled out."""
    said = [
        Message("user", "a"),
        Message("assistant", "It is 7."),
        Message("user", "And 4+4?"),
    ]
    size = len(TEXT.conversation(Conversation.of(said)))
    spelled = f"<|channel|>analysis<|message|>We add.<|end|>{FINAL}It is 7.<|return|>"
    fields = {"reasoning_content": "We add.", "reasoning": "We add."}
    for reply in ({"content": "It is 7.", **fields}, {"content": spelled}):
        messages: list[Any] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", **reply},
            {"role": "user", "content": "And 4+4?"},
        ]
        say(house, "a")
        answer = client.chat.completions.create(model=NAME, messages=messages, max_tokens=1)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == size


def test_efforts(house: House) -> None:
    """They stand in the prompt; with none the reply is begun at once."""
    url, body = f"{house.url}/v1/chat/completions", {"model": NAME, "messages": ASK}
    say(house, "It is 7.<|return|>")
    answer = httpx2.post(url, json={**body, "reasoning_effort": "none"}).json()
    message = answer["choices"][0]["message"]
    assert (message["content"], "reasoning" in message) == ("It is 7.", False)
    seen = []

    def predict(row: Any) -> int:
        if row.writer is not None:
            seen.append(TEXT.decode(row.context, special=True))
        return min(TEXT.eos)

    house.model.dice = predict
    httpx2.post(url, json={**body, "reasoning_effort": "high"})
    assert "Reasoning: high<|end|>" in seen[-1]


def test_tools_are_refused(house: House) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    for url, said in (("chat/completions", {"messages": ASK}), ("responses", {"input": "3+4?"})):
        answer = httpx2.post(f"{house.url}/v1/{url}", json={"model": NAME, "tools": tools, **said})
        assert answer.status_code == 400
        assert "there are no tools" in answer.json()["error"]["message"]


def test_a_chat_that_is_cut_short_has_its_parts() -> None:
    """The server ends while it writes."""
    house = make_house(Model(seconds=0.01), text=TEXT)
    say(house, f"{THOUGHT}It is 7.")
    with running(house, Place("127.0.0.1", 0, drain=1.0, log=False)):
        found: list[Any] = []
        body = {"model": NAME, "messages": ASK, "max_tokens": 1500}
        url = f"{house.url}/v1/chat/completions"
        asking = threading.Thread(
            target=lambda: found.append(httpx2.post(url, json=body, timeout=30).json())
        )
        asking.start()
        assert soon(lambda: house.model.num_passes > 50)
        house.front.stop()
        asking.join(30)
    (answer,) = found
    message, usage = answer["choices"][0]["message"], answer["usage"]
    assert message["reasoning"] == REASONING
    assert message["content"].startswith("It is 7.a")
    assert answer["choices"][0]["finish_reason"] == "length"
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    assert thought == len(TEXT.markup(THOUGHT))
