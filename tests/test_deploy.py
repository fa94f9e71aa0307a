"""The files of `deploy/`: each is put to the program that reads it, where that is installed, and else skipped by name."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from manyhands.cli import app
from manyhands.cli.serve import KEY_VARIABLE
from manyhands.server.process import Place
from tests.server.house import NAME, Model, make_house, running
from tests.waiting import soon

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
HOST = "team.example.org"


def program(name: str, package: str) -> str:
    found = shutil.which(name) or shutil.which(f"/usr/sbin/{name}")
    if found is None:
        pytest.skip(f"there is no {name} here (apt-get install {package})")
    return found


def test_make_solve_hands_the_problem_on_as_it_is(tmp_path: Path) -> None:
    """It went through a shell and printf's format: a percent sign or an apostrophe was an error."""
    make = program("make", "make")
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", ".venv/ready"):
        (tmp_path / name).touch()
    heard = tmp_path / ".venv" / "bin" / "manyhands"
    heard.write_text("#!/bin/sh\ncat\n")
    heard.chmod(0o755)
    problem = r"50% of 1. 2 + 3\nIt's \"so\"; `no` $(command) %s"
    command = [make, "solve", "PROBLEM=" + problem.replace("$", "$$")]
    # A make that runs these tests hands its own options on, and one beneath it tells of its folder.
    own = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=own, capture_output=True, text=True, check=True
    )
    assert done.stdout == problem.replace(r"\n", "\n") + "\n"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    openssl = program("openssl", "openssl")
    command = f"req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN={HOST} -keyout key -out pem"
    subprocess.run([openssl, *command.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def nginx(tmp_path: Path, certificate: Path) -> Iterator[tuple[int, int]]:
    """nginx with our file, but for ports and the certificate's place; its port, and the one behind it."""
    nginx, front, behind = program("nginx", "nginx-light"), free_port(), free_port()
    ours = (DEPLOY / "nginx.conf").read_text()
    for there, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{front} ssl"),
        ("server 127.0.0.1:8000", f"server 127.0.0.1:{behind}"),
        (f"/etc/ssl/{HOST}.pem", str(certificate / "pem")),
        (f"/etc/ssl/{HOST}.key", str(certificate / "key")),
    ):
        assert ours.count(there) == 1, there
        ours = ours.replace(there, here)
    places = "".join(
        f"{name}_temp_path {tmp_path};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    conf = tmp_path / "nginx.conf"
    conf.write_text(
        f"pid {tmp_path}/pid;\ndaemon off;\nevents {{}}\nhttp {{\naccess_log off;\n{places}{ours}}}\n"
    )
    command = [nginx, "-c", str(conf), "-p", str(tmp_path), "-e", str(tmp_path / "errors")]
    tested = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stderr
    assert "warn" not in tested.stderr
    with subprocess.Popen(command) as child:
        assert soon(lambda: is_open(front))
        yield front, behind
        child.terminate()


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_behind_nginx_pieces_come_one_by_one(nginx: tuple[int, int]) -> None:
    front, behind = nginx
    place = Place("127.0.0.1", behind, (HOST,), drain=0.0, log=False)
    body = {"model": NAME, "messages": [{"role": "user", "content": "a"}], "max_tokens": 20}
    url = f"https://127.0.0.1:{front}"
    with (
        running(make_house(Model(seconds=0.03)), place),
        httpx2.Client(base_url=url, verify=False, headers={"Host": HOST}, timeout=20) as client,
    ):
        assert client.get("/health").status_code == 200
        came = []
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    came.append(time.monotonic())
                    assert json.loads(line.removeprefix("data: "))["object"]
        assert len(came) > 3
        assert came[-1] - came[0] > 0.3, "they came in one piece"
        assert client.get("/health", headers={"Host": "other.example.org"}).status_code == 403
        named = {"Host": f"{HOST}:{front}", "Origin": f"https://{HOST}:{front}"}
        own = client.post("/v1/chat/completions", json=body, headers=named)
        assert own.status_code == 200, "its own page asks, at a port that is not the usual one"
        big = client.post("/v1/chat/completions", content=b" " * (5 << 20))
        assert big.status_code == 413


def test_the_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    systemd = program("systemd-analyze", "systemd")
    ours = (DEPLOY / "manyhands.service").read_text()
    (command,) = [line for line in ours.splitlines() if line.startswith("ExecStart=")]
    path, *words = shlex.split(command.removeprefix("ExecStart="))
    assert ours.count(path) == 1

    def told(text: str) -> str:
        unit = tmp_path / "manyhands.service"
        unit.write_text(text.replace(path, "/bin/true"))  # its program need not be installed
        verify = [systemd, "verify", str(unit)]
        return subprocess.run(verify, capture_output=True, text=True, timeout=60).stderr

    assert told(ours) == ""
    assert "restart" in told(ours.replace("on-failure", "sometimes")), "control"
    assert path.endswith("/manyhands")
    refused = CliRunner().invoke(app, [*words, "--api-key-file", str(tmp_path / "none")])
    assert "cannot be read" in " ".join(refused.stderr.split())  # all options are known


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    """buildah with a store of its own, in which the container file's base is this machine's Python, without any file."""
    path = program("buildah", "buildah")
    if os.geteuid():
        pytest.skip("buildah mounts folders of this machine as root alone")
    store = ("--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "run"))
    found = Builder((path, *store, "--storage-driver", "vfs"))
    base = tmp_path / "base"
    for name in ("tmp", "root", "home", "opt", "etc"):
        (base / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (base / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group"):
        (base / "etc" / name).write_text("root:x:0:0:root:/root:/bin/sh\n" * (name == "passwd"))
    (base / "Containerfile").write_text(
        "FROM scratch\nCOPY . /\n"
        f"ENV PATH=/opt/python/bin:/usr/bin:/usr/sbin PYTHONPATH={os.pathsep.join(found.packages)}"
        f" PIP_CERT={ssl.get_default_verify_paths().cafile or ''}\n"
        f"RUN {sys.base_prefix}/bin/python3 -m venv /opt/python\n"
    )
    found("bud", *found.mounts, "--tag", "base", str(base))
    yield found
    found("rmi", "--all", "--force")


class Builder:
    """buildah, and the folders of this machine that it lends to what it builds."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self.command = command
        self.packages = [path for path in sys.path if path.endswith("site-packages")]
        lent = ["/usr", "/etc/ssl", sys.base_prefix, *self.packages]
        self.mounts = [f"--volume={path}:{path}:ro" for path in dict.fromkeys(lent)]

    def __call__(self, *words: str) -> str:
        """The output of the command, which has to end well."""
        env = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run(
            [*self.command, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr


def test_the_container_file_is_built_and_starts(builder: Builder, tmp_path: Path) -> None:
    """Every step of it, but that the base is this machine's Python and brings all libraries: only ours are installed."""
    file = ("--file", str(DEPLOY / "Containerfile"))
    builder("bud", *builder.mounts, "--from", "localhost/base", *file, "--tag", "ours", ".")
    about = json.loads(builder("inspect", "--type", "image", "ours"))["OCIv1"]["config"]
    assert about["User"] == "manyhands"
    assert about["Entrypoint"] == ["manyhands", "serve", "--host", "0.0.0.0"]
    start = " ".join(about["Entrypoint"])
    look = tmp_path / "look"
    look.mkdir()
    (look / "Containerfile").write_text(
        "FROM localhost/ours\n"
        "RUN id -u && python -P -c 'import manyhands; print(manyhands.__file__)'\n"
        f"RUN {start}; echo exit $?\n"
    )
    printed = " ".join(builder("bud", *builder.mounts, str(look)).split())
    assert "10001 /opt/python/lib/" in printed
    assert "there is no API key" in printed
    assert "exit 2 " in printed


def test_the_container_file_copies_what_is_there_and_starts_what_it_installs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checks of it that need no builder, which would have to fetch its base."""
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", "").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    copied = [name for word, rest in steps if word == "COPY" for name in rest.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"src", "pyproject.toml", project["readme"], *project["license-files"]} <= set(copied)
    compiler, install = [rest for word, rest in steps if word == "RUN"]
    assert "install --yes --no-install-recommends gcc libc6-dev" in compiler
    assert '".[$EXTRA]"' in install
    assert ["ARG", "EXTRA=serve"] in steps
    assert "serve" in project["optional-dependencies"]
    (start,) = [json.loads(rest) for word, rest in steps if word == "ENTRYPOINT"]
    assert start[0] in project["scripts"]
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    refused = CliRunner().invoke(app, start[1:])
    assert refused.exit_code == 2
    assert "there is no API key" in " ".join(refused.stderr.split())
