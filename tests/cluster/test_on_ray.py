"""Rows over actors of Ray: a replica, a node and the program that asks are killed in the middle.

Ten times each at random moments: `python -m benchmarks.kills`.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from manyhands.cluster.joining import Share, joined, share_of
from manyhands.cluster.serving import Door, Pace, deploy
from manyhands.cluster.settings import ClusterSettings, ServingSettings
from manyhands.cluster.spreading import ReplicaLost, Spread
from manyhands.errors import InvalidRequest, ManyhandsError, ModelNotFound
from manyhands.schema.openai import CHAT
from manyhands.server.keys import Keys
from manyhands.server.limits import Limits
from manyhands.server.shapes import RUNS
from tests.cluster.conftest import ROOT
from tests.cluster.made import SLOW, broken, dice_front, door_of, nothing, paced, squares
from tests.installing import a_method, laid_out
from tests.waiting import soon

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, of which there are many


@contextmanager
def spread(nodes: Any, make: Any, **more: Any) -> Iterator[Spread[Any, Any]]:
    """Two replicas on the cluster."""
    with (
        joined(ClusterSettings(ray=nodes.address)) as ray,
        Spread(ray, Share(2, 1.0, 0.0), make, concurrency=4, **more) as found,
    ):
        yield found


def test_a_replica_and_then_its_machine_are_killed(nodes: Any, second: Any, tmp_path: Path) -> None:
    node = second()
    notes: list[str] = []
    rows = [(n, "err" if n == 70 else "") for n in range(120)]
    found: list[tuple[Any, Any]] = []
    chance = random.Random(4)
    with spread(nodes, paced(0.02, tmp_path), note=notes.append) as replicas:
        assert replicas.facts["kind"] == "squares"
        killed = ""
        for some in replicas.results(rows):
            found += some
            alive = [int(each.name) for each in tmp_path.iterdir()]
            if len(found) > 10 and not killed:
                os.kill(chance.choice(alive), signal.SIGKILL)
                killed = "replica"
            elif len(found) > 60 and killed == "replica":
                nodes.remove_node(node, allow_graceful=False)
                killed = "node"
                node = second()
        nodes.remove_node(node)
    assert killed == "node"
    told = {row[0]: said for row, said in found}
    assert len(found) == len(told) == 120, "no row is lost, and none comes twice"
    assert isinstance(told.pop(70), ManyhandsError)
    assert told == {n: n * n for n in range(120) if n != 70}
    assert "made of numbers" in notes
    assert len([text for text in notes if "is gone" in text]) >= 2


def test_a_row_that_ends_every_replica_is_given_up_alone(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyhands.cluster.rows.TOGETHER", 1)
    monkeypatch.setattr("manyhands.cluster.rows.ALONE", 1)
    rows = [(n, "fail" if n == 5 else "") for n in range(8)]
    with (
        joined(ClusterSettings(ray=nodes.address)) as ray,
        Spread(ray, Share(1, 0.5, 0.0), paced(0.0), concurrency=4) as replicas,
    ):
        told = {row[0]: said for row, said in replicas.answered(rows)}
    lost = told.pop(5)
    assert isinstance(lost, ReplicaLost)
    assert "the device is lost" in str(lost)
    assert told == {n: n * n for n in (0, 1, 2, 3, 4, 6, 7)}


def test_the_program_that_asks_is_killed_and_started_again(nodes: Any, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    command = [sys.executable, "-m", "tests.cluster.asking", nodes.address, str(answers), "60"]
    asking = subprocess.Popen(command, cwd=ROOT)
    assert soon(lambda: answers.exists() and answers.read_bytes().count(b"\n") > 5, 60)
    asking.kill()
    asking.wait()
    before = answers.read_bytes().count(b"\n")
    assert before < 60
    subprocess.run(command, cwd=ROOT, check=True, timeout=100)
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert sorted((one["number"], one["square"]) for one in found) == [
        (n, n * n) for n in range(60)
    ]


def test_what_cannot_begin_says_so(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyhands.cluster.spreading._FAILED_STARTS", 1)
    with spread(nodes, nothing) as replicas, pytest.raises(ModelNotFound) as caught:
        _ = replicas.facts
    assert caught.value.hint == "give another"
    with spread(nodes, broken) as replicas, pytest.raises(ReplicaLost, match="no driver"):
        _ = replicas.facts


def test_replicas_of_different_models_are_no_replicas(nodes: Any) -> None:
    with spread(nodes, squares) as replicas:
        replicas._facts = {"kind": "cubes"}
        with pytest.raises(InvalidRequest, match="has kind squares, another one cubes"):
            list(replicas.answered([(1, "")]))


def test_the_share_of_a_cluster(nodes: Any) -> None:
    nodes.wait_for_nodes()  # a machine that an earlier test took away counts for a moment more
    settings = ClusterSettings(ray=nodes.address)
    before = signal.getsignal(signal.SIGTERM)
    with joined(settings) as ray:
        assert signal.getsignal(signal.SIGTERM) is before, "a command ends well, with Ray too"
        assert share_of(ray, settings) == Share(1, 1.0, 0.0)
        with pytest.raises(InvalidRequest, match="a replica takes 2 GPU; no machine of the"):
            share_of(ray, ClusterSettings(ray=nodes.address, replica_gpus=2))


def test_a_cluster_that_is_not_there() -> None:
    with (
        pytest.raises(InvalidRequest, match=r"'127.0.0.1:1' cannot be joined"),
        joined(ClusterSettings(ray="127.0.0.1:1")),
    ):
        pass


def test_a_server_whose_replica_is_killed_in_the_middle(
    nodes: Any, second: Any, tmp_path: Path
) -> None:
    node = second()
    (tmp_path / SLOW).touch()
    settings = ServingSettings(ray=nodes.address, replicas=2)
    with joined(settings):
        fleet = deploy(
            partial(dice_front, seconds=0.05, folder=str(tmp_path)),
            Share(2, 0.4, 0.0),
            settings,
            Limits(),
            name="a/dice",
            drain=1.0,
        )
        try:
            with door_of(Door(fleet, Keys(), Limits())) as client:
                assert client.get(RUNS).json()["data"] == [], "the first request of a door"
                begun = [_run(client, f"{n}+4?") for n in range(12)]
                assert len({run[:12] for run in begun}) == 2, "conversations are spread"
                assert {run["id"] for run in client.get(RUNS).json()["data"]} == {*begun}
                marks = {_run(client, "3+4?")[:12] for _ in range(4)}
                assert len(marks) == 1, "and each has its place"
                (mark,) = marks
                pid = int((tmp_path / f"{mark.removeprefix('run_')}-").read_text())
                body = {**ASK, "stream": True, "max_tokens": 500}
                with client.stream("POST", CHAT, json=body) as stream:
                    pieces = stream.iter_text()
                    told = next(pieces)
                    os.kill(pid, signal.SIGKILL)
                    told += "".join(pieces)
                assert '"code": "replica_lost"' in told
                again = client.post(CHAT, json={**ASK, "max_tokens": 3})
                assert again.json()["usage"]["completion_tokens"] == 3
                left = {run for run in begun if not run.startswith(mark)}
                assert {run["id"] for run in client.get(RUNS).json()["data"]} == left
        finally:
            fleet.delete()
            import_module("ray.serve").shutdown()
    nodes.remove_node(node)


def test_a_server_says_which_replica_lacks_a_method(
    nodes: Any, second: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = tmp_path / "site"
    laid_out(site, "my-relay", {"relay": "my_relay:OWN"}, "my_relay", a_method("relay"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "src", site))))
        node = second()
    settings = ServingSettings(ray=nodes.address, replicas=2)
    with joined(settings), caplog.at_level(logging.WARNING, "manyhands.server"):
        fleet = deploy(
            dice_front, Share(2, 0.6, 0.0), settings, Limits(), name="a/relay", drain=1.0
        )
        try:
            with door_of(Door(fleet, Keys(), Limits())) as client:
                assert soon(
                    lambda: "the method 'relay' of my-relay 1.0 is installed" in caplog.text, 60
                )
                told = client.get("/v1/methods").json()["data"]
                assert "relay" not in {each["id"] for each in told}
                assert "sequential" in {each["id"] for each in told}
        finally:
            fleet.delete()
            import_module("ray.serve").shutdown()
    assert "pip install my-relay==1.0" in caplog.text
    nodes.remove_node(node)


def test_a_replica_comes_with_the_crowd_and_goes_without_cutting_an_answer(
    nodes: Any, tmp_path: Path
) -> None:
    (tmp_path / SLOW).touch()
    settings = ServingSettings(ray=nodes.address, most_replicas=2, replica_requests=2.0)
    with joined(settings), ThreadPoolExecutor(32) as crowd:
        fleet = deploy(
            partial(dice_front, seconds=0.3, folder=str(tmp_path)),
            Share(1, 0.4, 0.0),
            settings,
            Limits(),
            name="a/crowd",
            drain=120.0,
            pace=Pace(count=0.2, mean=0.6, up=0.2, down=0.5),
        )
        streams: list[Streamed] = []
        number = count()

        def ask(client: httpx2.Client, mark: str = "") -> Streamed:
            """One more stream, of a conversation of its own, whose replica has this mark."""
            while True:
                streams.append(Streamed(client, f"{next(number)}+4?", crowd))
                if streams[-1].run()[4:].startswith(mark):
                    return streams[-1]
                streams.pop().leave()

        try:
            with door_of(Door(fleet, Keys(), Limits())) as client:
                early = [ask(client) for _ in range(4)]
                (first,) = {each.run()[4:12] for each in early}
                assert soon(lambda: len(fleet.marks()) == 2, 60), "two are enough for one replica"
                pids = {path.name: int(path.read_text()) for path in tmp_path.glob("*-")}
                (second,) = {name.rstrip("-") for name in pids} - {first}
                late = ask(client, second)
                for each in early[1:]:
                    each.leave()
                    streams.remove(each)
                assert soon(lambda: len(fleet.marks()) == 1, 60), "one is enough for two"
                (kept,) = fleet.marks()
                assert not any(each.is_over() for each in (early[0], late))
                assert {ask(client).run()[4:12] for _ in range(2)} == {kept}, "no new ones for it"
                assert all(map(_is_there, pids.values())), "it has an answer to finish"
                (tmp_path / SLOW).unlink()
                for each in streams:
                    assert each.told().endswith("data: [DONE]\n\n"), "cut"
                    assert "replica_lost" not in each.told()
                gone = [pid for name, pid in pids.items() if kept not in name]
                assert len(gone) == 1
                assert soon(lambda: not _is_there(gone[0]), 60)
        finally:
            fleet.delete()
            import_module("ray.serve").shutdown()


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


LONG = 500  # tokens, of 0.3 s each as long as passes are slow


class Streamed:
    """A long answer that a thread reads until it ends, or its client leaves."""

    def __init__(self, client: httpx2.Client, question: str, crowd: ThreadPoolExecutor) -> None:
        self._run: Future[str] = Future()
        self._left = threading.Event()
        self._told = crowd.submit(self._read, client, question)

    def _read(self, client: httpx2.Client, question: str) -> str:
        messages = [{"role": "user", "content": question}]
        body = {
            "model": "dice:sequential",
            "messages": messages,
            "stream": True,
            "max_tokens": LONG,
        }
        with client.stream("POST", CHAT, json=body) as stream:
            self._run.set_result(stream.headers["x-manyhands-run"])
            told = []
            for piece in stream.iter_text():
                told.append(piece)
                if self._left.is_set():
                    break
            return "".join(told)

    def run(self) -> str:
        return self._run.result(60)

    def leave(self) -> None:
        self._left.set()

    def is_over(self) -> bool:
        return self._told.done()

    def told(self) -> str:
        return self._told.result(60)


ASK = {"model": "dice", "messages": [{"role": "user", "content": "3+4?"}]}


def _run(client: httpx2.Client, problem: str) -> str:
    """The id of a short run, which says whose it is."""
    body = {"problem": problem, "workers": 2, "budget": 1, "end": {"reply": False}}
    return str(client.post(RUNS, json=body).json()["id"])
