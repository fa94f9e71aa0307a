"""A server as a process: signals, ports that are taken, an engine that breaks, and what is left behind."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from manyhands.server import process as of_process
from tests.server.house import NAME
from tests.waiting import soon
from tests.warm import Warm, run

if sys.platform != "win32":
    import resource

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are those of Unix")
HOUSE = [sys.executable, "-m", "tests.server.house"]
ASK = {"model": NAME, "messages": [{"role": "user", "content": "a"}]}


@contextmanager
def process(
    *arguments: str, log: int = subprocess.PIPE, first: Callable[[], object] | None = None
) -> Iterator[tuple[Warm, str]]:
    """A server in a process of its own, and its address. `first` is called there before it begins."""
    child = Warm(
        [*HOUSE, *arguments],
        stdout=subprocess.PIPE,
        stderr=log,
        first=first,
        # Unbuffered: what is left in a stream at the end is the command line's to guard, which is not here.
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        assert url.startswith("http://"), child.stderr.read() if child.stderr else ""
        yield child, url
    finally:
        child.kill()
        child.communicate()


def ended(child: Warm) -> tuple[int | None, str]:
    _, told = child.communicate(timeout=30)
    return child.returncode, told


def post(url: str, **more: Any) -> httpx2.Response:
    return httpx2.post(f"{url}/v1/chat/completions", json={**ASK, **more}, timeout=30)


def test_signals_ports_and_logs() -> None:
    with process("0", "0.5") as (child, url), ThreadPoolExecutor(2) as pool:
        port = url.rsplit(":", 1)[1]
        second = run([*HOUSE, port])
        assert second.returncode != 0
        assert f"port {port} at 127.0.0.1 cannot be taken" in second.stderr
        long = pool.submit(post, url, max_tokens=1900)
        stream = pool.submit(post, url, max_tokens=1900, stream=True)
        assert soon(
            lambda: "manyhands_num_requests_running 2.0" in httpx2.get(f"{url}/metrics").text
        )
        child.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        assert long.result().json()["choices"][0]["finish_reason"] == "length"
        assert stream.result().text.endswith("data: [DONE]\n\n")
        code, told = ended(child)
        assert time.monotonic() - begun < 18, "both would take 38 s to their end"
    assert code == 0
    lines = [json.loads(line) for line in told.splitlines()]
    asked = [line for line in lines if line["message"] == "request" and line["path"] != "/metrics"]
    assert [line["status"] for line in asked] == [200, 200]
    assert all("request_id" in line for line in lines)
    assert "content" not in told


def test_whoever_is_impatient_reads_no_traceback() -> None:
    with process("0", "30") as (child, url), ThreadPoolExecutor(1) as pool:
        long = pool.submit(post, url, max_tokens=1900)
        assert soon(
            lambda: "manyhands_num_requests_running 1.0" in httpx2.get(f"{url}/metrics").text
        )
        child.send_signal(signal.SIGINT)
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        assert long.result().json()["choices"][0]["finish_reason"] == "length"
        code, told = ended(child)
    assert code == 0
    assert "Traceback" not in told


def test_a_terminal_that_goes_ends_a_server_as_sigterm_does() -> None:
    with process("0", "0.5") as (child, url), ThreadPoolExecutor(1) as pool:
        stream = pool.submit(post, url, max_tokens=1900, stream=True)
        assert soon(
            lambda: "manyhands_num_requests_running 1.0" in httpx2.get(f"{url}/metrics").text
        )
        child.send_signal(signal.SIGHUP)
        assert stream.result().text.endswith("data: [DONE]\n\n")
        code, told = ended(child)
    assert code == 0
    assert "Traceback" not in told


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_is_ignored_stays_ignored(number: signal.Signals) -> None:
    """As under `nohup`, and as a shell in a script starts what it leaves in the background."""
    ignored = partial(signal.signal, number, signal.SIG_IGN)
    with process("0", "0.5", first=ignored) as (child, url):
        child.send_signal(number)
        time.sleep(0.3)
        assert post(url, max_tokens=2).status_code == 200
        child.send_signal(signal.SIGTERM)
        assert ended(child)[0] == 0


def crowd(url: str, size: int) -> list[int]:
    """So many connections at once, each with a question; what each is answered."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    with ExitStack() as open_:
        opened = [
            open_.enter_context(socket.create_connection((host, int(port)), timeout=60))
            for _ in range(size)
        ]
        for each in opened:
            each.sendall(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return [int(each.recv(65536).split(b" ", 2)[1]) for each in opened]


def test_more_files_are_asked_for_where_there_may_be_more() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (96, hard))
    with process("0", first=few) as (child, url):
        assert crowd(url, 200) == [200] * 200
        child.send_signal(signal.SIGTERM)
        code, told = ended(child)
    assert code == 0
    assert "files may be open" not in told


def test_few_files_are_told_once_and_cost_no_log() -> None:
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (96, 96))
    with process("0", first=few) as (child, url):
        answers = crowd(url, 200)
        assert set(answers) == {200, 503}, "those that had to wait are answered, too"
        assert soon(lambda: post(url, max_tokens=2).status_code == 200), "it comes back"
        child.send_signal(signal.SIGTERM)
        code, told = ended(child)
    assert code == 0
    lines = [json.loads(line) for line in told.splitlines()]
    others = [line["message"] for line in lines if line["message"] != "request"]
    assert [message.partition(",")[0] for message in others] == [
        "96 files may be open",
        "connections wait",
    ]


def test_whatever_any_room_warns_of_is_a_line_of_the_log() -> None:
    """A cache whose disk is full, say: a sentence among JSON is no line for the program that reads the log."""
    program = (
        "import logging, warnings; from manyhands.server.process import _log_lines; _log_lines(); "
        "logging.getLogger('manyhands.cache').warning('the disk is full'); warnings.warn('odd'); "
        "logging.getLogger('manyhands.server').info('request', extra={'line': {'status': 200}})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "warning", "info"]
    assert lines[0]["message"] == "the disk is full"
    assert "odd" in lines[1]["message"]
    assert lines[2]["status"] == 200


def test_a_log_on_a_full_disk_disturbs_nobody() -> None:
    with open("/dev/full", "w") as full, process("0", log=full.fileno()) as (child, url):
        assert post(url, max_tokens=2).status_code == 200
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


def test_a_kill_and_a_start_at_the_same_port() -> None:
    with process("0") as (child, url):
        port = url.rsplit(":", 1)[1]
        with httpx2.stream(
            "POST", f"{url}/v1/chat/completions", json={**ASK, "max_tokens": 1900, "stream": True}
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            child.kill()
            child.wait(10)
            with pytest.raises(httpx2.HTTPError):
                list(lines)
    with process(port) as (child, url):
        assert post(url, max_tokens=2).status_code == 200
        child.send_signal(signal.SIGINT)
        assert ended(child)[0] == 0


def test_an_engine_that_breaks_ends_the_process_with_its_code() -> None:
    with process("0", "fail") as (child, url):
        answer = post(url, max_tokens=500)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed")
        assert "secret" not in answer.text
        code, told = ended(child)
    assert code == 70
    assert "the device is lost" in told  # the log has the reason
    assert all(json.loads(line) for line in told.splitlines())


class _WithoutFiles(socket.socket):
    """A socket that listens in a process that may open no more files."""

    def accept(self) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")


def test_a_server_that_ends_while_connections_wait_for_files_makes_no_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio tries again a second later, at a socket that is closed then; of any other mistake it tells."""
    log = Mock()
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(of_process, "LOG", log)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "default_exception_handler", told.append)
        loop.set_exception_handler(of_process._FilesRunOut())
        listener = _WithoutFiles()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = await asyncio.start_server(Mock(), sock=listener)
        with socket.create_connection(listener.getsockname()):
            await asyncio.sleep(0.2)
            server.close()
            listener.close()
            await asyncio.sleep(1.2)
        assert log.error.call_count == 1
        assert "connections wait" in log.error.call_args.args[0]
        assert not told
        loop.call_soon(int, "no number")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(serve())
    (context,) = told
    assert isinstance(context["exception"], ValueError)
