"""The door and its replicas, without Ray: servers with dice for a model, and accidents on the way to them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from starlette.types import Message

from manyhands.cluster.affinity import ranked
from manyhands.cluster.forwarding import Begin, Forwarded
from manyhands.cluster.installed import Installed
from manyhands.cluster.serving import Door, ServedReplica
from manyhands.errors import ServiceStopped
from manyhands.schema.openai import CHAT
from manyhands.server.chat import LEFT
from manyhands.server.keys import Keys
from manyhands.server.limits import Limits
from manyhands.server.shapes import RUNS
from manyhands.strategies.base import Answer
from manyhands.strategies.methods import METHODS
from tests.cluster.made import dice_front, door_of
from tests.server.house import NAME
from tests.waiting import soon

ray_exceptions = pytest.importorskip("ray.exceptions", reason="the extra `ray` is not installed")
KEY = "a-key-of-a-client"


class Pieces:
    """The pieces of one answer; the replica dies behind `last` of them."""

    def __init__(self, replica: ServedReplica, asked: Forwarded, last: int | None) -> None:
        self._pieces: Any = replica.answer(asked)
        self._left = last

    def __aiter__(self) -> Pieces:
        return self

    async def __anext__(self) -> Begin | bytes:
        if self._left == 0:
            raise ray_exceptions.ActorDiedError
        self._left = None if self._left is None else self._left - 1
        return await anext(self._pieces)

    def cancel(self) -> None:
        """As Serve's: what the replica does for it ends."""

        async def close() -> None:
            while self._pieces.ag_running:  # its cancelled reader has not left it
                await asyncio.sleep(0.01)
            await self._pieces.aclose()

        self._closing = asyncio.ensure_future(close())


class Fleet:
    """Replicas in this process, found as the router of Serve finds them. `deaths`: of answers to come."""

    def __init__(self, **differing: Any) -> None:
        make = partial(dice_front, keys=(KEY, "another-key"))
        self.replicas = {name: ServedReplica(make, name=name) for name in ("aaaaaaaa", "bbbbbbbb")}
        self.asked: list[tuple[str, Forwarded]] = []
        self.deaths: list[int | None] = []
        self.differing = differing  # fields of `Installed`, by replica

    def ask(self, asked: Forwarded) -> Pieces:
        name = asked.replica if asked.replica in self.replicas else next(iter(self.replicas))
        if asked.key is not None:
            name = ranked(asked.key, list(self.replicas))[0]
        assert name is not None
        self.asked.append((name, asked))
        return Pieces(self.replicas[name], asked, self.deaths.pop(0) if self.deaths else None)

    def marks(self) -> list[str]:
        return [*self.replicas]

    async def installed(self, mark: str | None) -> Installed:
        name = mark if mark in self.replicas else next(iter(self.replicas))
        assert name is not None
        here = await self.replicas[name].installed(Forwarded("GET", "", b"", [], b""))
        return replace(here, machine=f"host-{name[0]}", **self.differing.get(name, {}))

    def served_by(self) -> list[str]:
        found, self.asked = [name for name, _ in self.asked], []
        return found


@contextmanager
def opened(**differing: Any) -> Iterator[tuple[httpx2.Client, Fleet, Door]]:
    """A door to replicas in this process. `differing`: in what they are not alike."""
    fleet = Fleet(**differing)
    door = Door(fleet, Keys([KEY, "another-key"]), Limits())
    with door_of(door) as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        yield client, fleet, door
    for replica in fleet.replicas.values():
        replica.front.close()


def chat(*said: str, **more: Any) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(said)
    messages = [{"role": r, "content": t} for r, t in zip(roles, said, strict=False)]
    return {"model": NAME, "messages": messages, "max_tokens": 12, "temperature": 0, **more}


def test_the_door() -> None:
    with opened() as (client, fleet, door):
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/v1/models").json()["data"][0]["id"] == NAME
        assert client.get("/v1/models", headers={"Authorization": "x"}).status_code == 401
        fleet.served_by()

        # the turns of one conversation come to one replica, other conversations to others
        first = client.post(CHAT, json=chat("3+4?"))
        text = first.json()["choices"][0]["message"]["content"]
        assert first.headers["content-length"] == str(len(first.content))
        client.post(CHAT, json=chat("3+4?", text, "And 5?"))
        assert len(set(fleet.served_by())) == 1
        for n in range(8):
            client.post(CHAT, json=chat(f"{n}+4?", max_tokens=2))
        assert len(set(fleet.served_by())) == 2
        assert client.post(CHAT, content=b"{", headers=_JSON).status_code == 400
        assert client.post(CHAT, json=chat("a", max_tokens=-3)).status_code == 400

        # a replica dies before it has answered, and within an answer in one piece
        for deaths in ([0, 0], [1]):
            fleet.deaths = [*deaths]
            again = client.post(CHAT, json=chat("3+4?")).json()
            assert again["choices"][0]["message"]["content"] == text
        fleet.deaths = [0, 0, 0]
        failed = client.post(CHAT, json=chat("3+4?"))
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "replica_lost")

        # a stream, and one whose replica dies
        assert _streamed(client, chat("3+4?", stream=True)) == (text, None)
        fleet.deaths = [5]
        told, error = _streamed(client, chat("3+4?", stream=True))
        assert text.startswith(told)
        assert told != text
        assert error is not None
        assert error["code"] == "replica_lost"

        # a run is found by its id, wherever it is; and by nobody else
        body = {"problem": "3+4?", "workers": 2, "budget": 20}
        fleet.served_by()
        begun = []
        for problem in ("3+4?", "5+6?", "7+8?", "9+1?"):
            run = client.post(RUNS, json={**body, "problem": problem}).json()["id"]
            one = client.get(f"{RUNS}/{run}")
            assert (one.status_code, one.json()["id"]) == (200, run)
            other = {"Authorization": "Bearer another-key"}
            assert client.get(f"{RUNS}/{run}", headers=other).status_code == 404
            began, looked, _ = fleet.served_by()
            assert began == looked
            begun.append(run)

        # all runs of a key, wherever they are
        listed = client.get(RUNS).json()
        assert listed["object"] == "list"
        assert {run["id"] for run in listed["data"]} == {*begun}, "each once"
        assert len(listed["data"]) == 4
        assert len({run[:12] for run in begun}) == 2, "both replicas have some"
        times = [run["created"] for run in listed["data"]]
        assert times == sorted(times, reverse=True)
        assert client.get(RUNS, headers=other).json()["data"] == []
        fleet.deaths = [None, 0, 0, 0, 0, 0, 0]
        assert client.get(RUNS).json()["error"]["code"] == "replica_lost", "no list is half of one"
        fleet.deaths = []

        # a client that leaves
        assert door.num_live == 0
        with client.stream("POST", CHAT, json=chat("1+1?", stream=True, max_tokens=900)) as stream:
            assert (stream.status_code, door.num_live) == (200, 1)
            next(stream.iter_bytes())
        assert soon(lambda: door.num_live == 0)
        with pytest.raises(httpx2.TimeoutException):
            client.post(CHAT, json=chat("1+1?", max_tokens=900), timeout=0.3)
        assert soon(lambda: door.num_live == 0)
        runs = [replica.front.runs for replica in fleet.replicas.values()]
        assert soon(lambda: not any(run.asked.url == CHAT for each in runs for run in each.live))
        assert "manyhands_door_lost_replicas_total" in client.get("/metrics").text

        door.is_draining = True
        assert client.post(CHAT, json=chat("3+4?")).json()["error"]["code"] == "draining"
        assert client.get("/health").status_code == 200


def test_a_method_that_a_replica_lacks_is_told_and_not_offered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is there for some conversations. A replica that comes later is looked at, too."""
    monkeypatch.setattr("manyhands.cluster.serving._COMPARE_SECONDS", 0.01)
    more = METHODS.beside({"debate": replace(METHODS["sequential"], name="debate")})
    monkeypatch.setattr("manyhands.strategies.requests.METHODS", more)

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "debate" in record.getMessage()]

    debate = {"methods": {"debate": "manyhands-debate 1.0"}}
    both = opened(aaaaaaaa=debate, bbbbbbbb=debate)
    with caplog.at_level(logging.WARNING), both as (client, fleet, door):
        ids = [f"{NAME}:debate", "debate"]

        def listed() -> list[bool]:
            lists = [client.get(path).json()["data"] for path in ("/v1/models", "/v1/methods")]
            return [
                name in {one["id"] for one in each} for name, each in zip(ids, lists, strict=True)
            ]

        assert soon(lambda: len(door._installed) == 2)
        assert listed() == [True, True]
        assert told() == []
        late = ServedReplica(partial(dice_front, keys=(KEY,)), name="cccccccc")
        fleet.replicas["cccccccc"] = late
        assert soon(lambda: len(door._installed) == 3)
        assert listed() == [False, False]
        assert soon(lambda: len(told()) == 1)
        del fleet.replicas["cccccccc"]
        assert soon(lambda: len(door._installed) == 2)
        assert listed() == [True, True]
        late.front.close()
    assert told() == [
        "the method 'debate' of manyhands-debate 1.0 is installed for aaaaaaaa on host-a, bbbbbbbb on host-b, and not for "
        "cccccccc on host-c; requests for it that come there are refused "
        "(hint: install it on host-c too (pip install manyhands-debate==1.0), and start again)"
    ]


@pytest.mark.parametrize("name", ["ours:debate", "ours:debate-3", "ours:3-debate"])
def test_a_model_whose_name_reads_like_an_alias_stays_in_the_list(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of the method that a replica lacks the aliases alone are left out, as `strategies/requests.py` makes them."""
    more = METHODS.beside(
        {
            "debate": replace(METHODS["hogwild"], name="debate"),
            "debate_2": replace(METHODS["sequential"], name="debate_2"),
        }
    )
    monkeypatch.setattr("manyhands.strategies.requests.METHODS", more)
    offered = opened(aaaaaaaa={"methods": {"debate": "manyhands-debate 1.0"}}, bbbbbbbb={})
    with offered as (client, fleet, door):
        for replica in fleet.replicas.values():
            replica.front.served = replace(replica.front.served, name=name)
        assert soon(lambda: len(door._installed) == 2)
        listed = [one["id"] for one in client.get("/v1/models").json()["data"]]
        every = list(fleet.replicas["aaaaaaaa"].front.served.models)
        lacked = [f"{name}:debate-2", f"{name}:debate-4"]
        assert listed == [one for one in every if one not in lacked]
        assert {*lacked, name, f"{name}:debate_2"} <= {*every}


_JSON = {"Content-Type": "application/json"}


def _streamed(client: httpx2.Client, body: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The text of a stream, and the error that ended it."""
    text, error, found = "", None, client.post(CHAT, json=body).text
    for line in found.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            error = event.get("error", error)
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
    return text, error


def test_an_engine_that_fails_is_a_replica_that_is_not_well() -> None:
    replica = ServedReplica(dice_front, name="aaaaaaaa")
    asyncio.run(replica.check_health())
    replica.front.service._error = RuntimeError("the device is lost")
    with pytest.raises(RuntimeError, match="the engine has failed"):
        asyncio.run(replica.check_health())
    replica.front.close()


@pytest.mark.parametrize(("drain", "ends"), [(60.0, Answer), (0.0, ServiceStopped)])
def test_a_run_that_nobody_watches_may_end_before_its_replica_does(
    drain: float, ends: type
) -> None:
    replica = ServedReplica(partial(dice_front, seconds=0.002), drain, "aaaaaaaa")
    body = json.dumps(
        {"problem": "3+4?", "workers": 2, "budget": 60, "end": {"reply": False}}
    ).encode()
    asked = Forwarded("POST", RUNS, b"", [(b"content-type", b"application/json")], body)

    async def begun() -> None:
        begin = await anext(answer := replica.answer(asked))
        assert isinstance(begin, Begin)
        assert begin.status == 201
        await answer.aclose()  # type: ignore[attr-defined]
        (run,) = replica.front.runs.live
        replica.__del__()
        with suppress(ServiceStopped):
            assert run.handle.result(0).finish_reason == "budget"
        assert isinstance(run.handle._outcome, ends)

    asyncio.run(begun())


class LatePieces:
    """An answer that is whole so many turns of the loop behind the client's leaving."""

    def __init__(self, kind: bytes, left: asyncio.Event, turns: int) -> None:
        self._kind, self._left, self._turns = kind, left, turns
        self._told = 0
        self.is_cancelled = False

    def __aiter__(self) -> LatePieces:
        return self

    async def __anext__(self) -> Begin | bytes:
        self._told += 1
        if self._told > 1:
            raise StopAsyncIteration
        await self._left.wait()
        for _ in range(self._turns):
            await asyncio.sleep(0)
        return Begin(200, [(b"content-type", self._kind)])

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
def test_a_client_that_leaves_as_its_answer_comes_counts_once(kind: bytes) -> None:
    """Counted twice, a door that was to drain waited for less than no request."""

    async def leave(turns: int) -> tuple[int, bool, bool]:
        left, bodies = asyncio.Event(), [b"{}"]
        pieces = LatePieces(kind, left, turns)

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            left.set()
            return {"type": "http.disconnect"}

        fleet = SimpleNamespace(ask=lambda asked: pieces)
        door = Door(fleet, Keys(), Limits())
        scope = {"type": "http", "method": "POST", "path": CHAT, "query_string": b"", "headers": []}
        request = Request(scope | {"state": {"owner": "", "request_id": "1"}}, receive)
        response = await door._forward(request)
        for _ in range(9):
            await asyncio.sleep(0)
        return door.num_live, response is LEFT, pieces.is_cancelled

    for turns in range(9):
        live, has_left, is_cancelled = asyncio.run(leave(turns))
        if has_left:
            assert live == 0, turns
            assert is_cancelled or kind != b"text/event-stream", turns
        else:
            assert live == (kind == b"text/event-stream"), turns
