"""Clients as they are: each in an environment of its own, against `manyhands serve` with the bundled model.

    python -m benchmarks.clients                     all of them; needs a network for pip and npm
    python -m benchmarks.clients --only litellm --keep /tmp/clients

A client is what pip or npm gives on that day, with nothing changed in it. What it is asked is a file of
`examples/clients`, run as it stands there; it has passed if it ends well and prints both answers. The versions,
what was printed and whether that was right go to `results/clients.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import ROOT, Clock, Results, parser
from manyhands import bundled

EXAMPLES = ROOT / "examples" / "clients"
_INSTALL_SECONDS, _RUN_SECONDS = 900, 600
_MOST_PRINTED = 1500  # characters of what a client printed that are kept


@dataclass(frozen=True)
class Client:
    """A client: its packages, its example, and words that show that all went well."""

    name: str
    packages: tuple[str, ...]
    example: str
    expected: tuple[str, ...] = ("75, 46",)
    about: str = ""  # the part of the wire that it uses


CLIENTS = (
    Client(
        "openai",
        ("openai",),
        "../ask_a_server.py",
        about="a stream of a team, by fields of ours too",
    ),
    Client(
        "litellm", ("litellm",), "with_litellm.py", about="a stream of a team, with its thinking"
    ),
    Client(
        "langchain-openai", ("langchain-openai",), "with_langchain.py", about="whole and streamed"
    ),
    Client("llm", ("llm",), "with_llm.sh", about="a stream, from a command line"),
    Client(
        "inspect-ai",
        ("inspect-ai", "openai"),
        "with_inspect.py",
        ("success 1.0",),
        about="an exam of two samples",
    ),
    Client(
        "lm-eval",
        ("lm-eval[api]", "transformers"),
        "with_lm_eval.sh",
        (
            "|sums |Yaml   |boxed |     0|exact_match|↑  |    1|",
            "|choices|Yaml   |none  |     0|acc   |↑  |    1|",
        ),
        about="generation with stop texts, and log-likelihoods by echoed completions",
    ),
    Client(
        "aider-chat",
        ("aider-chat",),
        "with_aider.sh",
        about="a long system prompt, and a conversation",
    ),
    Client(
        "open-webui",
        ("open-webui",),
        "with_open_webui.sh",
        ("bundled:hogwild-2", "75, 46", "Alice [1]"),
        about="its list of models, and a stream of a team, through its own server",
    ),
    Client(
        "ai (Vercel)",
        ("ai", "@ai-sdk/openai-compatible"),
        "with_ai_sdk.mjs",
        ("75, 46", "Alice [1]"),
        about="a stream of a team, with its thinking",
    ),
)


def installed(client: Client, folder: Path) -> dict[str, str]:
    """Install a client into a folder, unless it is there; the versions of its packages."""
    if client.example.endswith(".mjs"):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "node_modules").exists():
            command = ["npm", "install", "--no-audit", "--no-fund", *client.packages]
            _must(command, cwd=folder, timeout=_INSTALL_SECONDS)
        found = (
            json.loads((folder / "node_modules" / name / "package.json").read_text())
            for name in client.packages
        )
        return {each["name"]: each["version"] for each in found}
    python = folder / "bin" / "python"
    if not python.exists():
        _must([sys.executable, "-m", "venv", str(folder)], timeout=_INSTALL_SECONDS)
        _must(
            [str(python), "-m", "pip", "install", "-q", *client.packages], timeout=_INSTALL_SECONDS
        )
    listed = _must([str(python), "-m", "pip", "list", "--format", "json"], timeout=60)
    versions = {each["name"].lower(): each["version"] for each in json.loads(listed)}
    names = [re.split(r"[\[<=>]", package)[0] for package in client.packages]
    return {
        name: versions[name.replace("-", "_")]
        if name.replace("-", "_") in versions
        else versions[name]
        for name in names
    }


def asked(client: Client, folder: Path, address: str) -> dict[str, Any]:
    """Run the example of a client; what came of it."""
    example = (EXAMPLES / client.example).resolve()
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "MANYHANDS_TOKENIZER": str(bundled.path()),
    }
    if example.suffix == ".mjs":  # node looks for packages beside the file
        example = Path(shutil.copy(example, folder))
        command = ["node", str(example), address]
    elif example.suffix == ".sh":
        command = ["sh", str(example), address]
    else:
        command = [str(folder / "bin" / "python"), str(example), address]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        try:
            done = subprocess.run(
                command,
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_RUN_SECONDS,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return {"passed": False, "printed": f"nothing for {_RUN_SECONDS} s"}
    is_right = done.returncode == 0 and all(word in done.stdout for word in client.expected)
    printed = done.stdout if is_right else f"{done.stdout[-600:]}\n{done.stderr}"
    printed = printed.replace(str(folder), "ENV").replace(str(ROOT), "REPO")
    return {
        "passed": is_right,
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - begun, 1),
        "printed": printed.strip()[-_MOST_PRINTED:],
    }


def _must(command: list[str], *, timeout: float, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])}: {done.stderr.strip()[-300:]}")
    return done.stdout


@contextmanager
def place(keep: Path | None) -> Iterator[Path]:
    """Where environments lie: a folder that stays, or one that goes."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main() -> None:
    """Try every client that was asked for; lines of the others stay as they are in the file."""
    from benchmarks.serving import served

    options = parser(__doc__, minutes=60)
    options.add_argument("--only", action="append", choices=[client.name for client in CLIENTS])
    options.add_argument("--keep", type=Path, help="keep the environments in this folder")
    arguments: argparse.Namespace = options.parse_args()
    clock = Clock(arguments.minutes)
    results = Results("clients", arguments, clock)
    before = json.loads(results.path.read_text()) if results.path.exists() else {}
    for line in before.get("clients", []) if arguments.only else ():
        if line["client"] not in arguments.only:
            results.add("clients", **line)
    with place(arguments.keep) as folder, served() as server:
        for client in CLIENTS:
            if arguments.only and client.name not in arguments.only:
                continue
            own = folder / re.sub(r"\W+", "-", client.name).strip("-")
            with results.surviving(client.name):
                versions = installed(client, own)
                came = asked(client, own, f"http://127.0.0.1:{server.port}")
                line = {
                    "client": client.name,
                    "date": time.strftime("%Y-%m-%d"),
                    "versions": versions,
                }
                results.add("clients", **line, about=client.about, **came)


if __name__ == "__main__":
    main()
