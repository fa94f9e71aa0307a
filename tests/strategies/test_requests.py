"""OpenAI's requests as prompts and settings: the ranges of settings, prompts in tokens, and answers."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from manyhands.cache.logprobs import Logprobs
from manyhands.cache.step import Choice
from manyhands.errors import InvalidRequest
from manyhands.prompts import Prompts
from manyhands.schema.choosing import choose
from manyhands.schema.conversation import Conversation, Message
from manyhands.schema.open_registry import Offers, OpenRegistry
from manyhands.schema.openai import (
    CHAT,
    PLAIN,
    ChatRequest,
    InvalidField,
    PlainRequest,
    read_request,
)
from manyhands.schema.setting import like
from manyhands.strategies import requests
from manyhands.strategies.base import Answer
from manyhands.strategies.events import ReplyWritten
from manyhands.strategies.methods import METHODS
from manyhands.strategies.requests import (
    CompletionSpec,
    Defaults,
    aliases,
    answer_body,
    choice_of,
    method_named,
    prompts_of,
    read_model,
    settings_of,
    spec_of,
)
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import EndSettings, Settings, SharedSettings, TeamSettings
from manyhands.strategies.shared_prefix import Completion, Completions, Prompt
from manyhands.text import Text
from manyhands.text.grammar import Grammar
from tests.strategies.driver import play, small_text
from tests.text.small_tokenizers import SILENCED, byte_level

TEXT = small_text()
DEFAULTS = Defaults(
    "our-model", SharedSettings(max_tokens=77, choice=Choice(temperature=0.5), seed=3)
)


def request(url: str = CHAT, **body: Any) -> ChatRequest | PlainRequest:
    asks = {"messages": [{"role": "user", "content": "Hello"}]} if url == CHAT else {}
    return read_request(url, {**asks, **body})


ASKED: dict[str, Any] = {
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"7": -100, "8": 1.5},
    "structured_outputs": {"regex": "a+"},
}


def test_every_setting_reaches_its_place() -> None:
    given: dict[str, Any] = {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "min_tokens": 3,
    }
    given |= {"frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.2}
    told: dict[str, Any] = {"logprobs": 2, "logit_bias": {7: -100.0, 8: 1.5}}
    found = settings_of(
        request(**given, **ASKED, n=2, max_tokens=7, stop="END", seed=4, user="anna"), DEFAULTS
    )
    assert found == SharedSettings(
        samples=2,
        max_tokens=7,
        seed=4,
        stop=("END",),
        choice=Choice(**given, **told),
        tenant=None,
        grammar=Grammar("regex", "a+"),
    )
    assert settings_of(request(PLAIN, prompt="a", logprobs=2, echo=True), DEFAULTS).echo
    assert settings_of(request(user="anna"), DEFAULTS, isolate=True).tenant == "anna"
    sampled = {field.name for field in fields(Choice)} - {"draw", "allowed", "forbidden", "mask"}
    assert sampled == {*given, *told}, "a new setting of sampling can be asked for"


def test_what_is_left_out_has_its_default() -> None:
    expected = SharedSettings(max_tokens=77, seed=3, choice=Choice(temperature=0.5))
    assert settings_of(request(), DEFAULTS) == expected
    nothing: dict[str, Any] = dict.fromkeys(
        ("temperature", "top_k", "top_p", "min_p", "n", "max_tokens", "seed")
    )
    assert settings_of(request(**nothing), DEFAULTS) == expected
    assert choice_of(request(temperature=0), DEFAULTS) == Choice(), "0 says something"
    assert choice_of(request(top_k=-1), DEFAULTS).top_k == 0, "all, as vLLM has it"
    assert choice_of(request(top_p=0), DEFAULTS) == Choice(temperature=0.5, top_k=1), (
        "the likeliest"
    )
    assert settings_of(request(seed=0), DEFAULTS).seed == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; expected 1 or more"),
        ({"max_completion_tokens": 0}, "max_completion_tokens is 0; expected 1 or more"),
        ({"temperature": 1e308}, "temperature is 1e.308; expected 0 to 100"),
        ({"temperature": -1}, "temperature is -1.0; expected 0 to 100"),
        ({"top_p": 1.5}, r"top_p is 1.5; expected above 0"),
        ({"top_k": -2}, "top_k is -2; expected 0"),
        ({"min_p": 2}, "min_p is 2.0; expected 0 to 1"),
        ({"stop": ["a", ""]}, "stop has an empty text"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "both max_tokens and max_completion"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs is 21; expected 0 to 20"),
        ({"frequency_penalty": 3}, "frequency_penalty is 3.0; expected -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0.0; expected above 0"),
        ({"logit_bias": {"5": 200}}, "logit_bias adds 200 to token 5"),
        ({"logit_bias": {"x": 1}}, "logit_bias has 'x'; expected token ids in decimal digits"),
        (
            {"logit_bias": {"9" * 5000: 1}},
            "logit_bias has a long text; expected token ids in decimal",
        ),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens is 9; expected at most max_tokens, 5"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            r"response_format.json_schema.schema: the JSON schema cannot be followed: ",
        ),
    ],
)
def test_settings_out_of_their_range(body: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        settings_of(request(**body), DEFAULTS)


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
    found = prompts_of(request(PLAIN, prompt=prompt), TEXT)
    assert [given.tokens for given in found] == expected


@pytest.mark.parametrize(("prompt", "shown"), [([[]], r"\[\]"), (["a", ""], "''")])
def test_prompts_without_a_token(prompt: Any, shown: str) -> None:
    with pytest.raises(InvalidRequest, match=f"a prompt is {shown}; expected some text"):
        prompts_of(request(PLAIN, prompt=prompt), TEXT)


def test_conversations() -> None:
    assert prompts_of(request(), TEXT) == (Prompt(TEXT.chat_prompt("Hello"), chat=True),)
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi<|im_end|>"}]},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Bye"},
    ]
    (prompt,) = prompts_of(request(messages=messages), TEXT)
    said = TEXT.decode(prompt.tokens, special=True)
    assert said == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|><|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    (end,) = TEXT.eos
    assert prompt.tokens.count(end) == 4, "what a user spells out ends no turn"


@pytest.mark.parametrize("url", [CHAT, PLAIN])
def test_an_answer_tells_all_completions_and_what_they_cost(url: str) -> None:
    completions = (
        Completion(0, 0, "Four.", "two and two", (1, 2, 3), "stop"),
        Completion(0, 1, "4", "", (4,), "length"),
    )
    answer = Completions(
        "Four.", tokens=(3, 1), completions=completions, prompt_tokens=(9,), found=(5,)
    )
    body = answer_body(url, answer, "our-model", "x")
    assert body["model"] == "our-model"
    assert [each["finish_reason"] for each in body["choices"]] == ["stop", "length"]
    assert body["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 5},
    }


def told_of(tokens: tuple[int, ...], top: int) -> tuple[tuple[int, Logprobs], ...]:
    return tuple(
        (token, Logprobs(-float(at), ((token, -float(at)), (3, -9.0))[:top]))
        for at, token in enumerate(tokens)
    )


@pytest.mark.parametrize("url", [CHAT, PLAIN])
def test_an_answer_tells_logprobs(url: str) -> None:
    """A message has those of its reply; a plain text all, an echo's and its end's too."""
    (end,) = TEXT.eos
    tokens, prompt = TEXT.encode("hm Où"), TEXT.encode("Q:")
    echoed = ((prompt[0], None), *told_of(prompt[1:], 2)) if url == PLAIN else ()
    one = Completion(0, 0, "Où", "hm", tokens, "stop", 2, told_of((*tokens, end), 2), echoed=echoed)
    answer = Completions("Où", tokens=(3,), completions=(one,), prompt_tokens=(1,), found=(0,))
    (found,) = answer_body(url, answer, "our-model", "x", TEXT)["choices"]
    if url == CHAT:
        content = found["logprobs"]["content"]
        assert TEXT.bytes_of(tokens[2]) == b" ", "a message begins with its first word"
        assert [each["logprob"] for each in content] == [-float(at) for at in range(3, len(tokens))]
        raw = b"".join(bytes(each["bytes"]) for each in content)
        assert raw == b"".join(map(TEXT.bytes_of, tokens[3:])) == "Où".encode()
        assert all(len(each["top_logprobs"]) == 2 for each in content)
    else:
        told = found["logprobs"]
        assert told["tokens"][-1] == "<|im_end|>"
        assert told["token_logprobs"][0] is None
        assert told["top_logprobs"][0] is None
        assert len(told["tokens"]) == len(prompt) + len(tokens) + 1
        assert told["text_offset"][len(prompt)] == 2
        assert told["text_offset"][-1] == len("Q:hm Où")


def test_a_message_tells_nothing_of_its_stop_text() -> None:
    tokens = TEXT.encode("\n\nOù **")
    one = Completion(0, 0, "Où ", "", tokens, "stop", 0, told_of(tokens, 1))
    answer = Completions("Où ", tokens=(9,), completions=(one,), prompt_tokens=(1,), found=(0,))
    (chat,), (plain,) = (
        answer_body(url, answer, "m", "x", TEXT)["choices"] for url in (CHAT, PLAIN)
    )
    raw = b"".join(bytes(each["bytes"]) for each in chat["logprobs"]["content"])
    assert raw.decode().lstrip() == "Où "
    assert len(plain["logprobs"]["tokens"]) == len(tokens)


def test_nothing_is_told_where_nothing_was_asked_for() -> None:
    one = Completion(0, 0, "a", "", (1,), "stop")
    answer = Completions("a", tokens=(1,), completions=(one,), prompt_tokens=(1,), found=(0,))
    assert answer_body(PLAIN, answer, "m", "x")["choices"][0]["logprobs"] is None


# -- methods ---------------------------------------------------------------------------------------


def test_a_profile_asks_for_its_method() -> None:
    found = asked({"profile": "npr"})
    assert isinstance(found, RunSpec)
    assert found.method.name == "profiled"
    with pytest.raises(InvalidRequest, match="profile"):
        asked({"profile": "npr", "method": "hogwild"})
    with pytest.raises(InvalidRequest, match="profile"):
        asked({"profile": "npr"}, model="our-model:hogwild-4")


def asked(
    options: Any = None, defaults: Defaults = DEFAULTS, url: str = CHAT, **body: Any
) -> RunSpec | CompletionSpec:
    return spec_of(request(url, **body), options, TEXT, Prompts(), defaults)


def test_a_request_without_a_method_is_a_plain_completion() -> None:
    for options in (None, {}, {"method": None}, {"method": "shared_prefix"}):
        spec = asked(options, n=2)
        assert isinstance(spec, CompletionSpec)
        assert (spec.prompts, spec.settings) == (
            prompts_of(request(), TEXT),
            replace(settings_of(request(n=2), DEFAULTS), keep=True),
        )
    spec = asked({"method": "shared_prefix"}, replace(DEFAULTS, method="hogwild"))
    assert isinstance(spec, CompletionSpec), "also where teams are usual"
    plain = asked(url=PLAIN, prompt="Hi")
    assert isinstance(plain, CompletionSpec)
    assert not plain.settings.keep, "a text has no next turn"


def test_every_field_of_a_method_can_be_asked_for() -> None:
    options = {
        "method": "hogwild",
        "workers": 4,
        "layout": "contiguous",
        "budget": 99,
        "snapshots": [5, 9],
        "end": {"reply_tokens": 7, "answer": "auto"},
    }
    messages = [
        {"role": "developer", "content": " Be brief.\r\n"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": " Yes?"},
        {"role": "user", "content": " Bye "},
    ]
    spec = asked(
        options,
        replace(DEFAULTS, context=512),
        messages=messages,
        temperature=0.7,
        seed=4,
        stop="END",
    )
    assert spec == RunSpec(
        METHODS["hogwild"],
        TeamSettings(
            workers=4,
            layout="contiguous",
            budget=99,
            snapshots=(5, 9),
            end=EndSettings(reply_tokens=7, answer="auto", stop=("END",)),
            choice=Choice(temperature=0.7),
            seed=4,
        ),
        Prompts().team,
        "Bye",
        512,
        (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", " Yes?")),
    )


@pytest.mark.parametrize("method", METHODS)
def test_no_line_of_any_method_is_longer_than_the_request_allows(method: str) -> None:
    """Neither what a worker writes nor the reply, whoever writes on and on."""
    spec = asked({"method": method}, max_tokens=7)
    assert isinstance(spec, RunSpec)
    (letter,) = TEXT.encode("a")
    played = play(spec.strategy(TEXT), lambda row: min(row.choice.allowed or [letter]))
    assert isinstance(played.answer, Answer)
    reply = "".join(event.text for event in played.events if isinstance(event, ReplyWritten))
    assert 0 < max(played.answer.tokens) <= 7
    assert reply.count("a") <= 7


def test_what_openai_says_and_what_we_say() -> None:
    """`max_tokens` bounds every line; a field of ours has the last word; a method keeps its own defaults, but for the seed."""
    solo = asked({"method": "sequential"}, max_tokens=7)
    assert isinstance(solo, RunSpec)
    assert solo.settings.budget == 7
    team = asked({"method": "hogwild", "workers": 1}, max_completion_tokens=7)
    assert isinstance(team, RunSpec)
    assert (team.settings.budget, team.settings.end) == (2048, EndSettings(total=7))
    both = asked(
        {"method": "sequential", "budget": 9, "seed": 2, "workers": 1, "choice": {"top_k": 3}},
        max_tokens=7,
        seed=1,
        temperature=2,
    )
    assert isinstance(both, RunSpec)
    assert (both.settings.budget, both.settings.seed) == (9, 2)
    assert both.settings.choice == Choice(top_k=3, temperature=2)
    alone = {"reply_tokens": 5, "temperature": 0.5, "end.finisher": False, "end": {"total": 8}}
    inner = asked({"method": "hogwild", **alone}, temperature=2, max_tokens=7)
    assert isinstance(inner, RunSpec)
    assert inner.settings.choice == Choice(temperature=0.5)
    assert inner.settings.end == EndSettings(reply_tokens=5, finisher=False, total=8)
    votes = asked({"method": "best_of_n", "top_k": 3})
    assert isinstance(votes, RunSpec)
    assert votes.settings.choice == replace(METHODS["best_of_n"].settings().choice, top_k=3)
    attempts = asked({"method": "best_of_n"})
    assert isinstance(attempts, RunSpec)
    assert attempts.settings == METHODS["best_of_n"].settings(seed=DEFAULTS.settings.seed)


@dataclass(frozen=True, kw_only=True)
class TrioSettings(Settings):
    """A method that takes three workers at most."""

    workers: int = like(TeamSettings, "workers", at_most=3)


def test_no_alias_has_more_workers_than_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that `/v1/models` lists can be asked for."""
    trio = replace(METHODS["hogwild"], name="trio", settings=TrioSettings)
    nothing_else = Offers("method", "no.such.group", (), lambda name, found: trio)
    monkeypatch.setattr(requests, "METHODS", OpenRegistry({"trio": trio}, nothing_else))
    assert aliases("m") == ["m:trio-2"]


def test_aliases_of_a_model() -> None:
    ours = [
        "m:hogwild-2",
        "m:hogwild-4",
        "m:sequential",
        "m:branches",
        "m:skeleton",
        "m:profiled",
        "m:async_reasoning",
        "m:async_think-2",
        "m:async_think-4",
        "m:self_consistency-4",
        "m:best_of_n-4",
    ]
    assert aliases("m") == ours
    assert {read_model(alias, "m")["method"] for alias in ours} == set(METHODS)
    forking = aliases("m", only_forks=True)
    assert 3 < len(forking) < len(ours)
    for alias in ours:
        spec = asked(model=alias.replace("m:", "our-model:"))
        assert isinstance(spec, RunSpec)
        assert spec.method.forks(spec.settings) == (alias in forking)
    for alias in aliases("our-model"):
        spec = asked(model=alias)
        assert isinstance(spec, RunSpec)
        name = alias.partition(":")[2]
        assert name in (spec.method.name, f"{spec.method.name}-{spec.facts()['workers']}")
    assert read_model("a:b", "a:b") == read_model(None, "a:b") == {}
    assert [method_named(alias, "m") for alias in ours] == [
        read_model(a, "m")["method"] for a in ours
    ]
    assert method_named("a:b-2:not_here-3", "a:b-2") == "not_here"
    assert method_named("a:b-2", "a:b-2") is None
    assert read_model("a:b:hogwild-12", "a:b") == {"method": "hogwild", "workers": 12}
    said = r"model is 'm:branches-3', and the method branches has no number of workers; expected 'm:branches'"
    with pytest.raises(InvalidField, match=said):
        read_model("m:branches-3", "m")
    spec = asked({"workers": 3}, model="our-model:hogwild-4")
    assert isinstance(spec, RunSpec)
    assert spec.facts()["workers"] == 3
    spec = asked(None, replace(DEFAULTS, method="hogwild"))
    assert isinstance(spec, RunSpec)
    assert spec.method.name == "hogwild"


@pytest.mark.parametrize(
    ("options", "body", "param", "said"),
    [
        ({"method": "swarm"}, {}, "manyhands.method", "manyhands.method is 'swarm'"),
        ({"method": 3}, {}, "manyhands.method", "is 3"),
        (
            {"workers": 3},
            {},
            "manyhands.method",
            "'workers', a setting of methods, and names no method",
        ),
        ({"foo": 3}, {}, "manyhands.foo", "manyhands has a field 'foo' that no method has"),
        ([], {}, "manyhands", "expected an object"),
        (
            {"method": "branches", "layout": "x"},
            {},
            "manyhands.layout",
            "BranchSettings do not have",
        ),
        (
            {"method": "hogwild", "workers": "4"},
            {},
            "manyhands.workers",
            "manyhands.workers is '4'; expected a whole number",
        ),
        (
            {"method": "hogwild", "workers": True},
            {},
            "manyhands.workers",
            "manyhands.workers is True; expected a whole number",
        ),
        ({"method": "hogwild", "workers": 0}, {}, "manyhands.workers", "0; expected 1 to 256"),
        ({"method": "hogwild", "layout": "x"}, {}, "manyhands.layout", "layout is 'x'"),
        ({"method": "hogwild", "end": {"x": 1}}, {}, "manyhands.end", "no field 'x'"),
        (
            {"method": "hogwild", "end": {"reply_tokens": 0}},
            {},
            "manyhands.end.reply_tokens",
            "expected 1",
        ),
        ({"method": "hogwild"}, {"stop": ["x", ""]}, "stop", "stop has an empty text"),
        ({"method": "hogwild"}, {"logprobs": True}, "logprobs", "comes without"),
        (
            {"method": "hogwild"},
            {"response_format": {"type": "json_object"}},
            "response_format",
            "is free text",
        ),
        *(
            ({"method": "hogwild", **options}, {}, param, "can be chosen in Python alone")
            for options, param in (
                ({"insertions": [[0, 1, "Yes."]]}, "manyhands.insertions"),
                ({"away": []}, "manyhands.away"),
                ({"choice": {"mask": None}}, "manyhands.choice.mask"),
                ({"choice": {"draw": 0.5}}, "manyhands.choice.draw"),
                ({"choice": {"allowed": [3]}}, "manyhands.choice.allowed"),
                ({"end": {"stop": ["x"]}}, "manyhands.end.stop"),
            )
        ),
        ({"method": "hogwild", "stop": ["x"]}, {}, "manyhands.stop", "TeamSettings do not have"),
        ({"method": "hogwild"}, {"max_tokens": 0}, "max_tokens", "expected 1 or more"),
        ({"method": "best_of_n"}, {"temperature": 0}, "temperature", "all write the same"),
        (
            {"method": "hogwild"},
            {"messages": [{"role": "system", "content": "x"}]},
            "messages",
            "ends",
        ),
        (
            {"method": "hogwild"},
            {"messages": [{"role": "user", "content": " "}]},
            "messages",
            "is empty",
        ),
        (None, {"messages": [{"role": "system", "content": "x"}]}, "messages", "ends with"),
        (None, {"model": "gpt-7"}, "model", "model is 'gpt-7'; expected 'our-model'"),
        (
            {"method": "branches"},
            {"model": "our-model:hogwild-4"},
            "manyhands.method",
            "the model's alias asks for 'hogwild'",
        ),
        ({"method": "hogwild", "budget": 0}, {"max_tokens": 7}, "manyhands.budget", "budget is 0"),
        (
            {"method": "sequential"},
            {"max_tokens": 0},
            "max_tokens",
            "max_tokens is 0; expected 1 or more",
        ),
        (None, {"model": "our-model:swarm"}, "model", "expected 'our-model'"),
        (None, {"model": "our-model:hogwild-0"}, "model", "workers is 0; expected 1"),
        (
            None,
            {"model": "our-model:branches-3"},
            "model",
            "'our-model:branches-3', and the method branches has no number of workers",
        ),
        ({"workers": 0}, {"model": "our-model:hogwild-2"}, "manyhands.workers", "expected 1"),
        ({"method": "hogwild"}, {"url": PLAIN, "prompt": "x"}, "manyhands.method", "takes a chat"),
    ],
)
def test_what_cannot_be_asked_for_is_named(
    options: Any, body: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(InvalidField, match=said) as caught:
        asked(options, **body)
    assert caught.value.param == param


def test_an_effort_of_none_leaves_the_thinking_out_of_a_plain_completion() -> None:
    """The workers of a method think as the model was loaded to; elsewhere an effort that changes nothing is taken."""
    thinking = Text(byte_level(SILENCED))

    def spec(effort: str, text: Text, **options: Any) -> RunSpec | CompletionSpec:
        body = request(CHAT, reasoning_effort=effort)
        return spec_of(body, options, text, Prompts(), Defaults("small"))

    for effort, thinks in (("none", False), ("high", True)):
        plain = spec(effort, thinking)
        assert isinstance(plain, CompletionSpec)
        assert plain.prompts[0].thinking is thinks
        prompt = thinking.decode(plain.prompts[0].tokens, special=True)
        assert ("</think>" in prompt) is not thinks
    with pytest.raises(InvalidField, match="think as the model was loaded to") as found:
        spec("none", thinking, method="hogwild")
    assert found.value.param == "reasoning_effort"
    for text, effort in ((thinking, "high"), (TEXT, "none")):
        assert isinstance(spec(effort, text, method="hogwild"), RunSpec)
    with pytest.raises(InvalidField, match="opens a thinking before every reply"):
        spec("none", small_text(thinking=True))


def test_a_prefill_of_a_chat_goes_on_behind_its_prompt() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is"}]
    (prompt,) = prompts_of(request(messages=messages), TEXT)
    assert prompt == Prompt(TEXT.chat_prompt("Hi") + TEXT.encode("It is"), chat=True)
    thinking = small_text(thinking=True)
    (prompt,) = prompts_of(request(messages=messages), thinking)
    assert not prompt.thinking
    spec = asked({"method": "sequential"}, messages=messages)
    assert isinstance(spec, RunSpec)
    assert spec.conversation == Conversation("Hi", prefill="It is")


@pytest.mark.parametrize("name", ["insertions", "away", "choice.mask", "choice.draw", "end.stop"])
def test_what_python_alone_can_choose_is_no_name_for_set(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"TeamSettings have no '{name}'"):
        choose(TeamSettings(), {name: "1"})
