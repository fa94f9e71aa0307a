"""Each mistake in a request is told with its field: `param` of OpenAI's errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import pytest
from transformers import AutoTokenizer

from manyhands import bundled
from manyhands.errors import ContextTooLong
from manyhands.schema.openai import CHAT, PLAIN
from manyhands.server.asked import Asked, Served, understand, understand_run
from manyhands.server.failures import Refusal, failure_of
from manyhands.server.limits import Limits
from manyhands.server.shapes import PROMPTS, RESPONSES, RUNS
from manyhands.text import Text
from tests.server.house import NAME, Model, make_house, running

ASK = [{"role": "user", "content": "3+4"}]
SYSTEM = [{"role": "system", "content": "Be brief."}, *ASK]
TEAM = f"{NAME}:hogwild-2"
LONG = "1 " * 5000


@pytest.fixture(scope="module")
def served() -> Served:
    """The bundled model's words: its chat template has no place for a system message."""
    return Served(NAME, Text(AutoTokenizer.from_pretrained(bundled.path())), context=2048)


def refusal(url: str, body: dict[str, Any], served: Served) -> Refusal:
    """The answer to a request that cannot be met."""
    try:
        asked = understand_run(body, served) if url == RUNS else understand(url, body, served)
        asked.with_strategies(served, "anna")
    except Exception as error:
        return failure_of(error, PROMPTS.get(url))
    raise AssertionError("it can be met")


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        (CHAT, {"messages": SYSTEM}, "messages"),
        (CHAT, {"messages": SYSTEM, "model": TEAM}, "messages"),
        (CHAT, {"messages": SYSTEM, "manyhands": {"method": "sequential"}}, "messages"),
        (RESPONSES, {"input": SYSTEM, "model": TEAM}, "input"),
        (RESPONSES, {"input": "3+4", "instructions": "Be brief.", "model": TEAM}, "instructions"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}], "model": TEAM}, "messages"),
        (PLAIN, {"prompt": LONG}, "prompt"),
        (PLAIN, {"prompt": ["3+4", [1] * 3000]}, "prompt"),
        (RESPONSES, {"input": LONG}, "input"),
        (RUNS, {"problem": LONG}, "problem"),
    ],
)
def test_a_prompt_that_cannot_be_is_named(
    url: str, body: dict[str, Any], param: str, served: Served
) -> None:
    found = refusal(url, body, served)
    assert (found.status, found.error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 999}, "temperature"),
        ({"choice": {"temperature": 999}}, "choice.temperature"),
        ({"choice.temperature": 999}, "choice.temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"end": {"reply_tokens": -1}}, "end.reply_tokens"),
        ({"reply_tokens": "few"}, "reply_tokens"),
        ({"end": {"none": 1}}, "end"),
        ({"end": 3}, "end"),
        ({"workers": 999}, "workers"),
        ({"workers": 256}, "workers"),  # more tokens than a request may write
        ({"budget": 10**7}, "budget"),
    ],
)
def test_a_setting_is_named_as_the_request_names_it(
    options: dict[str, Any], param: str, served: Served
) -> None:
    chat = {"messages": ASK, "manyhands": {"method": "hogwild", **options}}
    assert refusal(CHAT, chat, served).error["param"] == f"manyhands.{param}"
    assert refusal(RUNS, {"problem": "3+4", **options}, served).error["param"] == param


@pytest.mark.parametrize(
    ("url", "body", "param", "found"),
    [
        (
            CHAT,
            {"manyhands": {"method": "hogwild", "workers": 5}},
            "manyhands.workers",
            "5 workers",
        ),
        (CHAT, {"model": f"{NAME}:hogwild-5"}, "model", "5 workers"),
        (CHAT, {"model": f"{NAME}:async_think-5"}, "model", "5 workers"),
        (CHAT, {"model": TEAM, "n": 3}, "n", "3 completions of 2 workers each"),
        (CHAT, {"model": f"{NAME}:sequential", "n": 5}, "n", "5 completions of 1 worker each"),
        (CHAT, {"model": f"{NAME}:hogwild-5", "n": 2}, "model", "2 completions of 5 workers each"),
        (RESPONSES, {"model": f"{NAME}:best_of_n-5"}, "model", "5 workers"),
        (RUNS, {"workers": 5}, "workers", "5 workers"),
        (RUNS, {"method": "self_consistency", "workers": 6}, "workers", "6 workers"),
    ],
)
def test_more_workers_than_one_request_may_have(
    url: str, body: dict[str, Any], param: str, found: str, served: Served
) -> None:
    """At each door that a method has, with a control: so many, and not one more."""
    asks: dict[str, dict[str, Any]] = {
        CHAT: {"messages": ASK},
        RESPONSES: {"input": "3+4"},
        RUNS: {"problem": "3+4"},
    }
    asked = asks[url]
    few = replace(served, limits=Limits(request_workers=4))
    told = refusal(url, {**asked, **body}, few)
    assert (told.status, told.error["param"]) == (400, param)
    said = f"the request asks for {found} that write at the same time; expected at most 4 workers"
    message = str(told.error["message"])
    assert said in message
    assert "fewer completions or for fewer workers" in message
    enough = replace(served, limits=Limits(request_workers=10))
    _understood(url, {**asked, **body}, enough)


def test_a_default_beyond_what_one_request_may_have_is_its_methods(served: Served) -> None:
    one = replace(served, limits=Limits(request_workers=1))
    chat = {"messages": ASK, "manyhands": {"method": "hogwild"}}
    assert refusal(CHAT, chat, one).error["param"] == "manyhands.method"
    assert refusal(RUNS, {"problem": "3+4"}, one).error["param"] == "method"
    assert (
        refusal(CHAT, {"messages": ASK, "model": f"{NAME}:hogwild"}, one).error["param"] == "model"
    )
    _understood(CHAT, {"messages": ASK, "model": f"{NAME}:sequential"}, one)


def test_what_a_model_asks_for_is_bounded_by_what_one_request_may_have(served: Served) -> None:
    """Of several completions each has its share; completions without a method take turns."""
    few = replace(served, limits=Limits(request_workers=9))
    alone: dict[str, Any] = {}
    for body, most in ((alone, 9), ({"n": 2}, 4)):
        asked = _understood(CHAT, {"messages": ASK, "model": f"{NAME}:branches", **body}, few)
        assert {run.spec.settings.most_workers for run in asked.runs() if run.spec} == {most}
    chat: dict[str, Any] = {"messages": ASK, "n": 20, "max_tokens": 3}
    plain: dict[str, Any] = {"prompt": ["3+4"] * 20, "max_tokens": 3}
    for url, wanted in ((CHAT, chat), (PLAIN, plain)):
        settings = _understood(url, wanted, few).settings
        assert settings is not None
        assert settings.rows == 9
        usual = _understood(url, wanted, served).settings
        assert usual is not None
        assert usual.rows == 256


def _understood(url: str, body: dict[str, Any], served: Served) -> Asked:
    return understand_run(body, served) if url == RUNS else understand(url, body, served)


WRONG: dict[str, tuple[Any, ...]] = {
    "max_tokens": (0, -1, "9"),
    "max_completion_tokens": (0, -1, True),
    "n": (0, -1, 10**6),
    "temperature": (-1, 1000, "hot"),
    "top_p": (-1, 2, []),
    "top_k": (-2, "all"),
    "min_p": (-1, 2),
    "frequency_penalty": (1000, "x"),
    "presence_penalty": (-1000,),
    "repetition_penalty": (0, -1),
    "min_tokens": (-1, "few"),
    "seed": (0.5, "x"),
    "stop": (5, [5], ["a"] * 5, "", [""]),
    "logit_bias": ({"a": 1}, {"-1": 1}, {"1": 1000}, []),
    "reasoning_effort": ("much", 5),
}


@pytest.mark.parametrize("model", [NAME, TEAM, f"{NAME}:sequential", f"{NAME}:skeleton"])
@pytest.mark.parametrize("field", list(WRONG))
def test_a_message_begins_with_the_field_that_it_is_about(
    field: str, model: str, served: Served
) -> None:
    """By the request's own word for it, and not by that of the setting it becomes: a method's `total` and `budget`."""
    for value in WRONG[field]:
        bodies = [(CHAT, {"messages": ASK, "model": model, field: value})]
        if model == NAME and field not in ("max_completion_tokens", "reasoning_effort"):
            bodies.append((PLAIN, {"prompt": "3+4", field: value}))
        if field in ("temperature", "top_p"):
            bodies.append((RESPONSES, {"input": "3+4", "model": model, field: value}))
        if field == "max_completion_tokens":
            given = {"input": "3+4", "model": model, "max_output_tokens": value}
            bodies.append((RESPONSES, given))
        for url, body in bodies:
            error = refusal(url, body, served).error
            param = list(body)[-1]
            assert error["param"] == param, (url, body, error)
            assert str(error["message"]).startswith(param), (url, body, error)


def test_a_bound_of_all_passes_bounds_what_a_request_may_write(served: Served) -> None:
    asked = {"messages": ASK, "model": f"{NAME}:hogwild-200"}
    assert refusal(CHAT, {**asked, "max_tokens": 10**6}, served).error["param"] == "max_tokens"
    assert understand(CHAT, {**asked, "max_tokens": 100}, served).spec is not None


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"model": TEAM}, "model"),
        ({"manyhands": {"method": "hogwild"}}, "manyhands.method"),
        ({"manyhands": {"profile": "npr"}}, "manyhands.method"),
    ],
)
def test_a_method_that_a_network_does_not_bear_is_named(
    asked: dict[str, Any], param: str, served: Served
) -> None:
    forking = replace(served, only_forks=True)
    found = refusal(CHAT, {"messages": ASK, **asked}, forking)
    assert "one state of a text" in str(found.error["message"])
    assert found.error["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_only_its_tokens_show_to_be_too_long_is_named(stream: bool) -> None:
    """It is refused when its run begins, or when the view has grown beyond what the model reaches."""

    def fails(number: int) -> None:
        raise ContextTooLong("a view would reach position 2048")

    with running(make_house(Model(fails=fails))) as house:
        for path, body in (
            (CHAT, {"messages": ASK}),
            (CHAT, {"messages": ASK, "model": TEAM}),
            (PLAIN, {"prompt": "3+4"}),
            (RESPONSES, {"input": "3+4"}),
        ):
            given = {**body, "stream": stream}
            error = httpx2.post(f"{house.url}{path}", json=given, timeout=20).json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert str(error["param"]) in body
