"""The common part of every benchmark: its options, the clock, and the file its numbers are written to.

A file is written anew after every line, so that a run that is cut off leaves what it has measured.
It begins with the circumstances: without them a number means nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from manyhands.errors import ManyhandsError

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def parser(about: str | None, minutes: float) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    options = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    options.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    options.add_argument("--minutes", type=float, default=minutes, help="begin nothing after them")
    options.add_argument("--backend", default="auto", help="attention backend of the engine")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--commit", default=None, help="of the code that runs, if git cannot tell")
    options.add_argument("--no-peers", action="store_true", help="measure only this project")
    options.add_argument("--tiny", action="store_true", help="sizes for a test of the benchmark")
    return options


class Clock:
    """The time a benchmark may take. Measurements that do not fit are left out, by name."""

    def __init__(self, minutes: float) -> None:
        self.began = time.monotonic()
        self.seconds = 60 * minutes

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def allows(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return self.spent + seconds <= self.seconds

    def say(self, text: str) -> None:
        """Progress."""
        print(f"{self.spent:6.1f} s  {text}", flush=True)


class Results:
    """One result file, written anew with every line."""

    def __init__(self, name: str, arguments: argparse.Namespace, clock: Clock) -> None:
        self.path = Path(arguments.out) / f"{name}.json"
        self.clock = clock
        self.content: dict[str, Any] = circumstances(arguments)

    def put(self, **facts: Any) -> None:
        """Facts about the whole file."""
        self.content.update(facts)
        self._write()

    def add(self, kind: str, **line: Any) -> None:
        """One more line of a kind."""
        self.content.setdefault(kind, []).append(line)
        self._write()
        words = " ".join(f"{key}={value}" for key, value in line.items() if key != "kernels")
        self.clock.say(f"{self.path.stem} {kind}: {words}")

    def leave_out(self, what: str, why: str) -> None:
        """Say that something was not measured."""
        self.add("left_out", what=what, why=why)

    @contextmanager
    def surviving(self, what: str) -> Iterator[None]:
        """A measurement that fails inside is left out, by name, and the rest of the benchmark goes on."""
        try:
            yield
        except (ManyhandsError, RuntimeError) as error:  # torch's and triton's are the latter
            traceback.print_exc()
            self.leave_out(what, in_a_line(error))

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.path)


def in_a_line(error: Exception) -> str:
    """The beginning of what went wrong."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:100]}"


def circumstances(arguments: argparse.Namespace) -> dict[str, Any]:
    """When, where and with what."""
    names = ("manyhands", "torch", "transformers", "triton", "numpy")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": _command(),
        "commit": arguments.commit or commit_of(ROOT),
        "hardware": _hardware(arguments.device),
        "versions": {
            "python": platform.python_version(),
            **{name: version for name in names if (version := _version(name)) is not None},
        },
    }


def _command() -> str:
    """How it was called, without the folders it read and wrote."""
    module = f"benchmarks.{Path(sys.argv[0]).stem}"
    words = " ".join(["python", "-m", module, *sys.argv[1:]])
    return re.sub(r"(--against)[ =]\S+", r"\1 FOLDER", re.sub(r" --(out|keep)[ =]\S+", "", words))


def commit_of(checkout: Path) -> str:
    """The commit that is checked out in a folder; "unknown" without git."""
    try:
        asked = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(package: str) -> str | None:
    try:
        return metadata.version("manyhands-llm" if package == "manyhands" else package)
    except metadata.PackageNotFoundError:
        return None


def _hardware(device: str) -> str:
    host = f"{cpu()}, {os.cpu_count()} cores"
    if not device.startswith("cuda"):
        return f"{host}, no GPU"
    facts = torch.cuda.get_device_properties(device)
    return f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}; {host}"


def cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()
