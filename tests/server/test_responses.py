"""OpenAI's newer API: items, workers as agents, a stream of events that adds up to the response."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
from openai import BadRequestError, OpenAI
from openai.types.beta.beta_response import BetaResponse
from openai.types.responses import Response
from pydantic import BaseModel
from transformers import AutoTokenizer

from manyhands import bundled
from manyhands.errors import OutOfMemory
from manyhands.schema.conversation import Conversation, Message
from manyhands.schema.openai import InvalidField
from manyhands.server.asked import Served, understand
from manyhands.text import Text
from tests.server.house import NAME, TEXT, House, Model, make_house, running

ASK = "Which number is 3+4?"
TEAM = {"budget": 40, "end": {"reply_tokens": 6, "finisher_tokens": 4}}
AGENTS = {"OpenAI-Beta": "responses_multi_agent=v1"}


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with running(make_house()) as house:
        yield house
    assert house.num_pages_used() == 0


@pytest.fixture(scope="module")
def client(house: House) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response(client: OpenAI) -> None:
    answer = client.responses.create(model=NAME, input=ASK, max_output_tokens=9, temperature=0.0)
    Response.model_validate(answer.model_dump(), strict=True)
    assert (answer.status, len(answer.output)) == ("incomplete", 1)
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    # A message that was cut is not taken for a whole one.
    assert answer.to_dict()["output"][0]["status"] == "incomplete"  # type: ignore[index]
    chat = client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": ASK}], max_tokens=9, temperature=0.0
    )
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.output_tokens == 9


@pytest.mark.parametrize(
    ("given", "as_chat"),
    [
        ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"temperature": 0.5, "top_p": 0.25}, {"temperature": 0.5, "top_p": 0.25}),
        ({"stream": True}, {"stream": True}),
        ({"user": "anna"}, {"user": "anna"}),
        (
            {"text": {"format": {"type": "json_schema", "name": "A", "schema": {"type": "null"}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "A", "schema": {"type": "null"}},
                }
            },
        ),
        (
            {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
            {"response_format": {"type": "json_object"}},
        ),
        ({"manyhands": {"method": "branches", **TEAM}},) * 2,
        ({"model": f"{NAME}:branches"}, {"model": f"{NAME}:branches"}),
    ],
)
def test_a_response_is_understood_as_the_chat_that_asks_the_same(
    given: dict[str, Any], as_chat: dict[str, Any]
) -> None:
    served = Served(NAME, TEXT, seed=0)
    chat = {"messages": [{"role": "user", "content": ASK}]}
    asked = understand("/v1/responses", {"input": ASK, **given}, served)
    expected = understand("/v1/chat/completions", {**chat, **as_chat}, served)
    assert replace(asked, url=expected.url) == expected
    if "user" not in given:  # which is understood, and changes nothing
        assert expected != understand("/v1/chat/completions", chat, served)


class Verdict(BaseModel):
    """A form for a response."""

    word: Literal["yes", "no"]


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ({"format": {"type": "json_schema", "name": "A"}}, "text.format.schema"),
        ({"format": {"type": "json_schema", "schema": {"type": "x"}}}, "text.format.schema"),
        ({"format": {"type": "xml"}}, "text.format.type"),
    ],
)
def test_a_form_that_is_none_is_refused_by_its_own_name(
    client: OpenAI, text: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequestError) as found:
        client.responses.create(model=NAME, input=ASK, extra_body={"text": text})
    assert found.value.param == param
    assert "response_format" not in str(found.value)


def test_a_method_follows_no_form(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match=r"text\.format\.schema") as found:
        client.responses.parse(model=f"{NAME}:branches", input=ASK, text_format=Verdict)
    assert found.value.param == "text.format.schema"


def test_a_response_repeats_what_is_the_senders(client: OpenAI) -> None:
    asked: dict[str, Any] = {"metadata": {"ticket": "7"}, "user": "anna", "max_output_tokens": 4}
    answer = client.responses.create(model=NAME, input=ASK, **asked)
    assert answer.metadata == {"ticket": "7"}
    assert (answer.user, answer.max_output_tokens) == ("anna", 4)
    with client.responses.stream(model=NAME, input=ASK, **asked) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    assert first.response.metadata == {"ticket": "7"}


def test_a_stream_of_one_writer_comes_in_pieces_and_adds_up(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": NAME, "input": ASK, "max_output_tokens": 12}
    whole = client.responses.create(**asked)
    pieces, text, closed = [], "", []
    for event in client.responses.create(**asked, stream=True):
        if event.type == "response.output_text.delta":
            pieces.append(event.delta)
        elif event.type == "response.output_text.done":
            text = event.text
        elif event.type == "response.output_item.done":
            closed.append(event.output_index)
    assert 3 < len(pieces) <= 12
    assert "".join(pieces) == text == whole.output_text
    assert closed == [0]


@pytest.mark.parametrize("model", [NAME, f"{NAME}:hogwild-2"])
def test_a_stream_that_fails_ends_with_a_response_that_says_so(model: str) -> None:
    def fails(number: int) -> None:
        if number == 20:
            raise OutOfMemory("this step needs 9 more pages", hint="Give it more memory.")

    with (
        running(make_house(Model(seconds=0.002, fails=fails))) as house,
        OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client,
    ):
        events = list(
            client.responses.create(model=model, input=ASK, max_output_tokens=60, stream=True)
        )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.failed"
    Response.model_validate(last.response.model_dump(), strict=True)
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert "this step needs 9 more pages" in last.response.error.message
    opened = [e.output_index for e in events if e.type == "response.output_item.added"]
    closed = [e.output_index for e in events if e.type == "response.output_item.done"]
    assert opened == closed == list(range(len(opened)))
    assert opened


def test_a_conversation_goes_on_by_its_items(client: OpenAI) -> None:
    first = client.responses.create(model=NAME, input=ASK, max_output_tokens=9)
    items: list[Any] = [{"role": "user", "content": ASK}, *[i.model_dump() for i in first.output]]
    items.append({"role": "user", "content": [{"type": "input_text", "text": "And 4+4?"}]})
    second = client.responses.create(
        model=NAME, input=items, instructions="Be brief.", max_output_tokens=3
    )
    said = [("system", "Be brief."), ("user", ASK), ("assistant", first.output_text)]
    asked = Conversation.of([Message(*each) for each in (*said, ("user", "And 4+4?"))])
    tokens = TEXT.conversation(asked)
    assert second.usage is not None
    assert second.usage.input_tokens == len(tokens)


@pytest.mark.parametrize("knows_agents", [False, True])
def test_a_conversation_with_a_team_goes_on_by_its_items(
    client: OpenAI, knows_agents: bool
) -> None:
    """The steps of the workers are thinking, and stand in no later prompt."""
    headers = AGENTS if knows_agents else {}
    asked: dict[str, Any] = {"extra_body": {"manyhands": TEAM}, "extra_headers": headers}
    first = client.responses.create(model=f"{NAME}:hogwild-2", input=ASK, **asked)
    output = first.model_dump()["output"]
    assert len(output) > 2
    reply = output[-1]["content"][0]["text"]
    items: list[Any] = [{"role": "user", "content": ASK}, *output]
    items.append({"role": "user", "content": "And 4+4?"})
    second = client.responses.create(model=NAME, input=items, max_output_tokens=3)
    said = [Message("user", ASK), Message("assistant", reply), Message("user", "And 4+4?")]
    assert second.usage is not None
    assert second.usage.input_tokens == len(TEXT.conversation(Conversation.of(said)))


@pytest.mark.parametrize("knows_agents", [False, True])
def test_a_stream_of_a_team_adds_up_to_its_response(client: OpenAI, knows_agents: bool) -> None:
    asked: dict[str, Any] = {"model": f"{NAME}:hogwild-3", "input": ASK}
    asked |= {"extra_body": {"manyhands": TEAM}, "extra_headers": AGENTS if knows_agents else {}}
    texts, kinds, numbers, own = dict[int, str](), set[str](), [], []
    last: Any = None
    for event in client.responses.create(**asked, stream=True):
        kinds.add(event.type)
        numbers.append(event.sequence_number)
        if event.type in ("response.output_text.delta", "response.reasoning_text.delta"):
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
        if event.type.startswith("manyhands:"):
            own.append(event)
        last = event
    assert numbers == list(range(len(numbers)))
    assert last.type in ("response.completed", "response.incomplete")
    response = last.response
    kind = BetaResponse if knows_agents else Response
    kind.model_validate(response.model_dump(), strict=True)
    items = response.model_dump()["output"]
    assert [item["content"][0]["text"] for item in items] == [texts[i] for i in range(len(items))]
    *steps, reply = items
    assert (reply["type"], reply["phase"]) == ("message", "final_answer")
    assert {step["type"] for step in steps} == {"message" if knows_agents else "reasoning"}
    assert {step["agent"]["agent_name"] for step in steps} == {"Alice", "Bob", "Carol"}
    assert (response.output_text == reply["content"][0]["text"]) is not knows_agents
    assert {"response.created", "response.output_item.added", "response.content_part.done"} < kinds
    finished = [event for event in own if event.type == "manyhands:step_finished"]
    assert finished
    for event in finished:
        assert event.agent["agent_name"] in ("Alice", "Bob", "Carol")
        assert any(event.text == step["content"][0]["text"] for step in steps)

    whole = client.responses.create(**asked)
    assert [item["content"] for item in whole.model_dump()["output"]] == [
        i["content"] for i in items
    ]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"background": True}, "background"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    client: OpenAI, wrong: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(**{"model": NAME, "input": ASK, **wrong})
    assert caught.value.param == param


@pytest.mark.parametrize("model", [NAME, f"{NAME}:hogwild-2"])
def test_instructions_that_a_model_has_no_place_for_are_named(model: str) -> None:
    """A mistake is theirs only where the conversation would be right without them."""
    text = Text(AutoTokenizer.from_pretrained(bundled.path()))
    user, system = {"role": "user", "content": ASK}, {"role": "system", "content": "Be brief."}
    served = Served(NAME, text, seed=0)
    cases: list[tuple[Any, str | None, str]] = [
        (ASK, "Be brief.", "instructions"),
        ([user], "Be brief.", "instructions"),
        ([system, user], None, "input"),
        ([system, user], "Be brief.", "input"),
        ([{"role": "assistant", "content": "7"}], "Be brief.", "input"),
    ]
    for said, instructions, param in cases:
        given = {"model": model, "input": said, "instructions": instructions}
        with pytest.raises(InvalidField) as caught:
            understand("/v1/responses", given, served)
        assert caught.value.param == param
