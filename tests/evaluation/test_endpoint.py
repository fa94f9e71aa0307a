"""Somebody else's server: as a candidate, and what it may do wrong."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import dropwhile
from typing import Any

import pytest

from manyhands.cache.step import Step
from manyhands.errors import InvalidRequest
from manyhands.evaluation import endpoint as endpoint_module
from manyhands.evaluation.candidates import Asked, EndpointCandidate
from manyhands.evaluation.endpoint import (
    Endpoint,
    EndpointClosed,
    EndpointFailed,
    EndpointOptions,
    at_once,
)
from manyhands.evaluation.seeds import seed_of
from manyhands.prompts.chain_of_draft import drafted
from manyhands.prompts.load import Prompts
from manyhands.schema.waits import LONGEST_WAIT
from manyhands.strategies.methods import METHODS
from tests.evaluation.doubles import Doubles
from tests.evaluation.small import TEXT, completion, server


def endpoint(url: str, **more: Any) -> Endpoint:
    given: dict[str, Any] = {"model": "m", "retries": 0, "timeout": 5, "max_tokens": 64}
    return Endpoint(EndpointOptions(url, **{**given, **more}))


def test_one_answer_each() -> None:
    with server(lambda asked: completion("Hm. \\boxed{2}", 7)) as (url, seen):
        door = endpoint(url, key="secret", temperature=0.5)
        found = list(EndpointCandidate(door, 64, seed=5).answered(map(Asked, Doubles(3).samples())))
        door.close()
    assert {a.answer for a in found} == {"2"}
    assert all(a.forward_passes is None and a.tokens == (7,) for a in found)
    assert found[0].spent[64]["tokens"] == 7
    assert {(s["model"], s["max_tokens"], s["temperature"], s["key"]) for s in seen} == {
        ("m", 64, 0.5, "Bearer secret")
    }
    assert sorted(s["seed"] for s in seen) == sorted(seed_of(5, f"d{n}") for n in (1, 2, 3))


@pytest.mark.parametrize("words", [Prompts(), drafted(Prompts())], ids=["plain", "drafted"])
@pytest.mark.parametrize("name", ["sequential", "self_consistency"])
def test_it_reads_what_a_model_of_our_own_reads(name: str, words: Prompts) -> None:
    method = METHODS[name]
    prompt = getattr(words, method.prompt)
    with server(lambda asked: completion("\\boxed{2}")) as (url, seen):
        door = endpoint(url)
        list(EndpointCandidate(door, 64, prompt=prompt).answered([Asked(Doubles().samples()[0])]))
        door.close()
    (message,) = seen[0]["messages"]
    assert message["role"] == "user"
    strategy = method.make("Twice 1?", TEXT, method.settings(), prompt)
    first = next(dropwhile(lambda told: not isinstance(told, Step), strategy))
    assert isinstance(first, Step)
    fed = first.rows[0].feed + first.rows[1].feed
    strategy.close()
    assert tuple(fed) == TEXT.chat_prompt(message["content"])
    assert "final answer in \\boxed{}" in message["content"]
    assert message["content"].startswith("Think in drafts") == (words != Prompts())


def test_without_other_words_it_is_told_to_box() -> None:
    def obeys(asked: dict[str, Any]) -> tuple[int, Any]:
        return completion("2" if "Twice 1?" in str(asked["messages"]) else "\\boxed{4}")

    with server(obeys) as (url, seen):
        door = endpoint(url)
        found = list(EndpointCandidate(door, 64).answered(map(Asked, Doubles(2).samples())))
        door.close()
    assert all("\\boxed{}" in s["messages"][0]["content"] for s in seen)
    # An answer without a box is no answer, however right it may be.
    assert {a.asked.sample.id: a.answer for a in found} == {"d1": None, "d2": "4"}


def test_a_vote_of_several() -> None:
    answers = "\\boxed{3}", "\\boxed{ 2}", "no idea", "\\boxed{2.0}"
    first = seed_of(0, "d1")
    with server(lambda asked: completion(answers[asked["seed"] - first])) as (url, _):
        door = endpoint(url)
        (found,) = EndpointCandidate(door, 64, 4).answered([Asked(Doubles().samples()[0])])
        door.close()
    assert found.answer == "2"
    assert found.tokens == (5, 5, 5, 5)
    assert found.text == "\\boxed{ 2}"


def test_a_vote_in_which_nobody_has_an_answer() -> None:
    first = seed_of(0, "d1")
    with server(lambda asked: completion(f"no idea {asked['seed'] - first}")) as (url, _):
        door = endpoint(url)
        (found,) = EndpointCandidate(door, 64, 2).answered([Asked(Doubles().samples()[0])])
        door.close()
    assert (found.answer, found.text) == (None, "no idea 0")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((500, {"error": {"message": "burning"}}), "burning"),
        ((400, {"error": {"message": "too long"}}), "too long"),
        ((200, b"<html>"), "not JSON"),
        ((200, {"choices": []}), "without a text"),
        (completion(None), "without a text"),
    ],
)
def test_a_bad_answer_belongs_to_its_question(reply: tuple[int, Any], said: str) -> None:
    def answer(asked: dict[str, Any]) -> tuple[int, Any]:
        return reply if "Twice 1?" in str(asked["messages"]) else completion("\\boxed{4}", None)

    with server(answer) as (url, _):
        door = endpoint(url)
        found = list(EndpointCandidate(door, 64).answered(map(Asked, Doubles(2).samples())))
        door.close()
    by_name = {a.asked.sample.id: a for a in found}
    assert isinstance(by_name["d1"].error, EndpointFailed)
    assert said in str(by_name["d1"].error)
    assert by_name["d2"].answer == "4"
    assert by_name["d2"].tokens == ()  # the server does not tell
    assert by_name["d2"].spent[64]["tokens"] is None


def test_an_answer_that_does_not_come_is_waited_for_only_so_long() -> None:
    def slow(asked: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.6)
        return completion("late")

    with server(slow) as (url, _):
        door = endpoint(url, timeout=0.2)
        with pytest.raises(EndpointFailed, match="timed out"):
            door.ask("?", 0)
        door.close()


def test_a_server_that_takes_no_connection_concerns_every_question() -> None:
    with socket.socket() as deaf, ExitStack() as held:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):  # fill its queue; it never takes anybody out
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(deaf.getsockname())
        door = endpoint(f"http://127.0.0.1:{deaf.getsockname()[1]}/v1", timeout=0.3)
        with pytest.raises(EndpointClosed, match="takes no connection"):
            door.ask("?", 0)
        door.close()


def test_what_may_pass_is_tried_again() -> None:
    replies = [(500, {"error": {"message": "busy"}}), completion("fine")]
    with server(lambda asked: replies.pop(0)) as (url, seen):
        door = endpoint(url, retries=1)
        assert door.ask("?", 0).text == "fine"
        door.close()
    assert len(seen) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_closed_door_concerns_every_question(status: int) -> None:
    with server(lambda asked: (status, {"error": {"message": "go away"}})) as (url, _):
        door = endpoint(url)
        with pytest.raises(EndpointClosed, match="go away") as found:
            list(EndpointCandidate(door, 64).answered(map(Asked, Doubles(3).samples())))
        door.close()
    assert "kept" in found.value.hint


def test_answers_under_way_are_kept_when_a_door_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, closed = [], threading.Event()
    usual = endpoint_module._told

    def heard(future: Any) -> Any:
        try:
            return usual(future)
        except EndpointClosed:
            closed.set()
            raise

    monkeypatch.setattr(endpoint_module, "_told", heard)

    def ask(question: int) -> int:
        begun.append(question)
        if question == 0:
            raise EndpointClosed("go away")
        assert closed.wait(20)
        return question

    told: list[tuple[int, Any]] = []
    with pytest.raises(EndpointClosed, match="go away"):
        told.extend(at_once(ask, range(9), concurrency=3))
    assert sorted(begun) == [0, 1, 2]
    assert sorted(told) == [(1, 1), (2, 2)]


def test_nobody_is_there() -> None:
    door = endpoint("http://127.0.0.1:1/v1")
    with pytest.raises(EndpointClosed, match="cannot be asked for 'm'"):
        door.ask("?", 0)
    door.close()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "ftp://somewhere"])
def test_a_proxy_that_cannot_be_used(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if proxy.startswith("socks") and find_spec("socksio") is not None:
        pytest.skip("the package is there")
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(
        InvalidRequest, match=r"^http://example\.org/v1 cannot be asked: "
    ) as caught:
        endpoint("http://example.org/v1")
    assert "ALL_PROXY" in caught.value.hint


def test_the_longest_wait_for_an_answer() -> None:
    with server(lambda asked: completion("2")) as (url, _):
        door = endpoint(url, timeout=LONGEST_WAIT)
        assert door.ask("?", 0).text == "2"
        door.close()


@pytest.mark.parametrize("wrong", [0, 3e6, 1e300, 10**400])
def test_seconds_that_a_socket_cannot_wait(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"timeout is .*; expected 0\.1 to"):
        EndpointOptions("http://localhost", "m", timeout=wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            "localhost",
            "",
            "http://",
            "http:///v1",
            "http://:5/v1",
            "http://local host/v1",
            3,
            None,
        ),
        *(
            "http://localhost:99999/v1",
            "http://localhost:abc/v1",
            "http://localhost:0",
            "http://[::/v1",
        ),
    ],
)
def test_an_address_that_is_none(wrong: Any) -> None:
    """Some were asked for with all retries, and one of letters for a port ended in a traceback."""
    with pytest.raises(InvalidRequest, match="expected an address"):
        EndpointOptions(wrong, "m")


def test_an_address_and_a_model() -> None:
    for url in ("http://localhost", "https://[::1]:8000/v1", "http://127.0.0.1:1/v1"):
        assert EndpointOptions(url, "m").url == url
    with pytest.raises(InvalidRequest, match="has no name"):
        EndpointOptions("http://localhost", "")
