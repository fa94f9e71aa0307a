"""`manyhands view`: a saved run in one file, or at an address of this machine."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from http.client import HTTPResponse
from pathlib import Path

import pytest

from manyhands.cli.options import ViewOptions
from manyhands.cli.view import view
from manyhands.replay.trace import read_trace
from manyhands.server.page import document
from manyhands.server.view import records_of
from tests.cli.conftest import Cli, module_of
from tests.server.scripted_runs import team_run
from tests.warm import COMMAND, Warm, run


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    text = "".join(json.dumps(line) + "\n" for line in team_run().lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_view_writes_one_file(cli: Cli, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = cli("view", saved, "--out", out)
    assert result.exit_code == 0, result.output
    assert "no server" in result.stdout
    assert out.read_text(encoding="utf-8") == document(records_of(read_trace(saved)))
    assert cli("view", saved, "--out", out).exit_code == 0, "a page is replaced by a page"
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["page.html", "run.jsonl"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ("nowhere.jsonl --out page.html", 2, "nowhere.jsonl"),
        ("notes.txt --out page.html", 7, "notes.txt"),
        ("run.jsonl --out notes.txt", 2, "is not a page of manyhands, so it is not replaced"),
        ("run.jsonl --out nowhere/page.html", 8, "cannot be written: No such file"),
        ("run.jsonl --out .", 8, "cannot be written: Is a directory"),
        ("run.jsonl --port 70000", 2, "port is 70000; expected 0 (a free one) to 65535"),
    ],
)
def test_view_that_cannot_be(
    cli: Cli, saved: Path, monkeypatch: pytest.MonkeyPatch, args: str, code: int, words: str
) -> None:
    monkeypatch.chdir(saved.parent)
    Path("notes.txt").write_text("mine", encoding="utf-8")
    result = cli("view", *args.split())
    assert (result.exit_code, "error: " in result.stderr) == (code, True), result.output
    assert words in result.stderr
    assert Path("notes.txt").read_text(encoding="utf-8") == "mine"
    assert sorted(file.name for file in Path().iterdir()) == ["notes.txt", "run.jsonl"]


def test_view_serves_the_run_as_far_as_it_is(saved: Path) -> None:
    """On the loopback, to names of the loopback, until Ctrl-C; a second one on its port is told why not."""
    whole = saved.read_text(encoding="utf-8")
    saved.write_text(whole[: len(whole) // 2], encoding="utf-8")
    command = [*COMMAND, "view", str(saved), "--no-browser"]
    with Warm(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            (address,) = re.findall(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
            first = urllib.request.urlopen(address, timeout=10).read().decode()
            assert first == document(records_of(read_trace(saved)))
            saved.write_text(whole, encoding="utf-8")
            second = urllib.request.urlopen(address, timeout=10).read().decode()
            assert len(second) > len(first), "a reload shows what has come since"
            evil = urllib.request.Request(address, headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(evil, timeout=10)
            port = address.rsplit(":", 1)[1].strip("/")
            for name, status in (("127.0.0.1", 200), ("evil.example", 400)):
                target = f"GET http://{name}:{port}/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
                with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as client:
                    client.sendall(target.encode())
                    client.shutdown(socket.SHUT_WR)
                    answer = HTTPResponse(client)
                    answer.begin()
                    assert answer.status == status
            other = run([*command, "--port", port])
            assert other.returncode == 2
            assert f"port {port} at 127.0.0.1 cannot be taken" in other.stderr
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.parametrize("wanted", [True, False])
def test_a_browser_is_opened_where_one_is_wanted(
    saved: Path, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(
        module_of("view"), "serve_page", lambda make, port, ready: ready(f"http://here:{port}")
    )
    view(ViewOptions(trace=saved, port=8000, browser=wanted))
    assert opened == ["http://here:8000"] * wanted
