"""The door to Ray: what is no address is refused at once, and what does not answer is said to be waited for."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from manyhands.cluster import joining
from manyhands.cluster.joining import joined
from manyhands.cluster.settings import ClusterSettings, ServingSettings, host_and_port
from manyhands.errors import InvalidRequest
from tests.waiting import soon

GREETING = b"\0\0\0\4\0\0\0\0\0"  # an empty frame of settings


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A program at an address, and what it does with one connection."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def take() -> None:
            client, _ = door.accept()
            with client:
                answer(client)

        thread = threading.Thread(target=take)
        thread.start()
        yield f"127.0.0.1:{door.getsockname()[1]}"
        thread.join(30)


@pytest.fixture
def inits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each `ray.init`, which joins nothing here."""
    asked: list[dict[str, Any]] = []
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **given: asked.append(given),
        shutdown=lambda: None,
    )
    monkeypatch.setattr(joining, "imported", lambda: ray)
    monkeypatch.setattr(joining, "_check_token", lambda address: None)  # these take one connection
    return asked


def cannot_join(address: str, why: str, note: Callable[[str], None] = lambda text: None) -> None:
    settings = ClusterSettings(ray=address)
    with pytest.raises(InvalidRequest, match=f"cannot be joined: {why}"), joined(settings, note):
        pass


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            "x/y:1",
            "",
            " ",
            "abc",
            "1.2.3.4",
            "localhost:",
            ":6379",
            "localhost:0",
            "localhost:65536",
        ),
        *(
            "local host:1",
            "localhost:1 ",
            "me@there:1",
            "there:1/x",
            "[::1]",
            "auto:x",
            "localhost:-1",
        ),
        *(3, True, ["auto"]),
    ],
)
def test_what_cannot_be_an_address_is_refused_at_once(wrong: Any) -> None:
    """Ray would try for three minutes, and hear no signal meanwhile."""
    for kind in (ClusterSettings, ServingSettings):
        with pytest.raises(InvalidRequest, match=r"ray is .*; expected HOST:PORT, auto, or local"):
            kind(ray=wrong)


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("localhost:6379", ("localhost", 6379)),
        ("192.168.0.2:1", ("192.168.0.2", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:6379", ("::1", 6379)),
        ("ray://head.example:10001", ("head.example", 10001)),
        ("ray://head.example:10001/", ("head.example", 10001)),
        ("auto", None),
        ("local", None),
        ("anyscale://some-cluster", None),
    ],
)
def test_addresses(address: str, place: tuple[str, int] | None) -> None:
    assert ClusterSettings(ray=address).ray == address
    assert host_and_port(address) == place


def test_a_cluster_that_answers_is_joined(inits: list[dict[str, Any]]) -> None:
    def greet(client: socket.socket) -> None:
        for part in (GREETING[:4], GREETING[4:]):
            client.sendall(part)
            time.sleep(0.05)

    with listening(greet) as address, joined(ClusterSettings(ray=address)):
        assert inits[0]["address"] == address
    with joined(ClusterSettings(ray="auto")):
        assert inits[1]["address"] == "auto"


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", GREETING[:5]])
def test_another_program_is_no_cluster(inits: list[dict[str, Any]], said: bytes) -> None:
    def answer(client: socket.socket) -> None:
        client.recv(100)
        client.sendall(said)

    with listening(answer) as address:
        cannot_join(address, "another program than Ray's listens there")
    assert not inits


def test_silence_is_said_and_ends(
    inits: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_KNOCK", 0.1)
    monkeypatch.setattr(joining, "_PATIENCE", 1.5)
    notes: list[str] = []
    ended = threading.Event()
    with listening(lambda client: ended.wait(30) and None) as address:  # type: ignore[arg-type]
        cannot_join(address, "it takes connections and says nothing in 1.5 s", notes.append)
        ended.set()
    assert notes == [f"{address} takes connections and says nothing; waiting"]
    assert not inits


def test_a_cluster_that_answers_late_is_joined(
    inits: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_KNOCK", 0.1)
    notes: list[str] = []

    def greet(client: socket.socket) -> None:
        time.sleep(0.5)
        client.sendall(GREETING)

    with listening(greet) as address, joined(ClusterSettings(ray=address), notes.append):
        pass
    assert (len(notes), len(inits)) == (1, 1)


def test_it_is_said_that_ray_is_waited_for(
    inits: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, notes = joining.imported(), list[str]()

    def is_timed() -> bool:
        return any(isinstance(each, threading.Timer) for each in threading.enumerate())

    monkeypatch.setattr(joining, "_LATE", 60.0)
    with joined(ClusterSettings(ray="auto"), notes.append):
        assert soon(lambda: not is_timed()), "it was joined in time"
    assert notes == []
    monkeypatch.setattr(joining, "_LATE", 0.1)
    ray.init = lambda **given: soon(lambda: bool(notes))
    with joined(ClusterSettings(ray="auto"), notes.append):
        pass
    assert notes == ["Ray at 'auto' has not answered yet; waiting"]


def slow_ray(
    monkeypatch: pytest.MonkeyPatch,
    go_on: threading.Event,
    asked: Callable[[], object] = lambda: None,
) -> list[str]:
    """Ray, whose code hears no signal until it goes on; what it does, and the thread in which it is joined.

    `asked` is called when it is waited for.
    """
    done: list[str] = []

    def init(**given: Any) -> None:
        logging.getLogger("ray._private.worker").warning("SIGTERM handler is not set because")
        done.append("main" if threading.current_thread() is threading.main_thread() else "beside")
        asked()
        while not go_on.is_set():
            try:
                go_on.wait(30)
            except KeyboardInterrupt:
                done.append("heard late")

    ray = SimpleNamespace(
        is_initialized=lambda: False, init=init, shutdown=lambda: done.append("shut down")
    )
    monkeypatch.setattr(joining, "imported", lambda: ray)
    return done


@pytest.mark.parametrize("address", ["local", "auto"])
def test_an_interrupt_is_heard_while_ray_is_waited_for(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that comes about behind it is shut down again."""
    go_on = threading.Event()
    press = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    done = slow_ray(monkeypatch, go_on, press.start)
    late = threading.Timer(30, go_on.set)
    late.start()
    with pytest.raises(KeyboardInterrupt), joined(ClusterSettings(ray=address)):
        pass
    assert not go_on.is_set(), "it was heard when Ray had an answer"
    assert done == ["beside"]
    go_on.set()
    late.cancel()
    assert soon(lambda: done[-1] == "shut down")
    assert done == ["beside", "shut down"]
    assert not caplog.records


@pytest.mark.parametrize("address", ["local", "auto"])
@pytest.mark.parametrize("ends_badly", [False, True])
def test_the_thread_that_has_joined_stays_until_it_is_over(
    ends_badly: bool, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that Ray starts on this machine end with the thread that has started them."""
    go_on = threading.Event()
    go_on.set()
    done = slow_ray(monkeypatch, go_on)
    before = threading.enumerate()

    def joining_threads() -> list[threading.Thread]:
        now = threading.enumerate()
        return [each for each in now if each.name == "joins Ray" and each not in before]

    def work() -> None:
        with joined(ClusterSettings(ray=address)):
            assert done == ["beside"]
            threads.extend(joining_threads())
            time.sleep(0.1)
            assert threads == joining_threads()
            if ends_badly:
                raise ZeroDivisionError

    threads: list[threading.Thread] = []
    with pytest.raises(ZeroDivisionError) if ends_badly else nullcontext():
        work()
    (thread,) = threads
    thread.join(10)
    assert not thread.is_alive()
    assert done == ["beside", "shut down"]


# -- tokens ----------------------------------------------------------------------------------------

JOIN = """
import sys
from manyhands.cluster.joining import joined
from manyhands.cluster.settings import ClusterSettings
from manyhands.errors import InvalidRequest
from tests.waiting import soon
try:
    with joined(ClusterSettings(ray=sys.argv[1])) as ray:
        print("joined", ray.cluster_resources()["CPU"])
except InvalidRequest as error:
    print(error, "|", error.hint)
"""


@contextmanager
def head(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A cluster of one machine, as `ray start --head` begins it; its address."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    command = (
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--port", str(port), "--num-cpus", "1", "--include-dashboard", "false"),
        *("--object-store-memory", str(80 << 20), "--temp-dir", str(folder)),
    )
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=nowhere,
            stderr=nowhere,
            start_new_session=True,
            cwd=folder,
        )
    try:
        assert soon(lambda: _is_there(port) or process.poll() is not None, 60)
        assert process.poll() is None
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _is_there(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_a_cluster_that_wants_a_token() -> None:
    """Ray asks again for 20 s in the way of a cluster that is not there, and says nothing of a token."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    # Ray's sockets lie in the folder, and their paths have a bound.
    with tempfile.TemporaryDirectory(prefix="mh", dir="/tmp", ignore_cleanup_errors=True) as place:
        homes = {name: Path(place) / name for name in ("own", "none", "other")}
        for name, home in homes.items():
            (home / ".ray").mkdir(parents=True)
            if name != "none":
                (home / ".ray" / "auth_token").write_text(32 * name[-1])
        usual = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        usual["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

        def join(address: str, home: str, **more: str) -> str:
            environment = {**usual, "HOME": str(homes[home]), **more}
            command = (sys.executable, "-W", "ignore", "-c", JOIN, address)
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=60, check=True
            )
            return done.stdout.strip()

        mode = {"RAY_AUTH_MODE": "token"}
        with head(Path(place), {**usual, "HOME": str(homes["own"])}) as address:
            cases: list[tuple[str, dict[str, str]]] = [
                *(("own", mode), ("none", {**mode, "RAY_AUTH_TOKEN": 32 * "n"}), ("own", {})),
                *(("none", {}), ("none", mode), ("other", mode), ("other", {})),
            ]
            with ThreadPoolExecutor(2) as two:
                told = list(two.map(lambda case: join(address, case[0], **case[1]), cases))
        assert told[:2] == ["joined 1.0"] * 2
        said = [
            each.removeprefix(f"the Ray cluster at {address!r} cannot be joined: ")
            for each in told[2:]
        ]
        why = [each.partition(" | ")[0] for each in said]
        unsent, refused = (
            "it wants a token, and none is sent from here",
            "it refuses the token of this machine",
        )
        lacks = "RAY_AUTH_MODE is token, and this machine has none that Ray finds"
        assert why == [unsent, unsent, lacks, refused, unsent]
        assert "| set RAY_AUTH_MODE=token: there is a token here" in said[0]
        assert all("| bring the token of the cluster here" in each for each in said[1:4])


def test_a_release_of_ray_that_reads_its_token_elsewhere_is_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader of tokens is Ray's own affair, and may go: then Ray says what it misses."""
    monkeypatch.setattr(joining, "imported", lambda name: SimpleNamespace())
    joining._check_token("127.0.0.1:1")
