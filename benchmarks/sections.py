"""Measurements in sections: each in processes and a time of its own, so that one that fails costs only itself.

`one_gpu.py` and `two_gpus.py` have the sections. A section that fails or takes too long is ended, and the next one
begins. Its prints are shown with the time, and lie in `log.txt` beside the results; where a section is ended, its
processes first print where they are. The sections share Triton's cache, and behind each one all that was written is
packed: `results.tgz`, and `triton.tgz`, which `--cache` takes at another time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

ROOT = Path(__file__).parents[1]
_CACHE = Path("/tmp/manyhands_triton")  # Triton writes whole paths into its cache
_GRACE, _LEAST = 3.0, 10.0  # seconds
_ENDS_EARLIER = (
    0.9  # of a section's time: a benchmark begins nothing behind it, so that it ends by itself
)


@dataclass(frozen=True)
class Command:
    """The arguments of a Python, and which GPU it sees if not all.

    In `words`, `{out}` is the folder for results, `{device}` the device, `{minutes}` what the section may take.
    `dry`: words that a dry run adds.
    """

    words: tuple[str, ...]
    gpu: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    dry: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """Commands that run at the same time, and the seconds they may take."""

    name: str
    seconds: float
    commands: tuple[Command, ...]


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """All of an archive, and nothing beside the folder; Pythons before 3.11.4 have no filter for it."""
    filtered: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(folder, **filtered)


def by_name(*sections: Section) -> dict[str, Section]:
    """Sections by their names, in their order."""
    return {each.name: each for each in sections}


def main_of(
    about: str, place: str, sections: Mapping[str, Section], argv: Sequence[str] | None
) -> None:
    """The command line of a program of sections; `place` is the folder for results if none is given."""
    options = argparse.ArgumentParser(description=about.splitlines()[0])
    options.add_argument("--out", type=Path, default=Path(place), help="folder for the results")
    options.add_argument("--work", type=Path, help="folder for what is packed; it has --out's")
    options.add_argument("--seconds", type=float, default=600, help="for all sections together")
    options.add_argument("--sections", default=",".join(sections))
    options.add_argument("--cache", type=Path, help="a triton.tgz of an earlier time")
    options.add_argument("--dry", action="store_true", help="tiny networks on the CPU")
    options.add_argument("--commit", default="", help="of the code that runs, if git cannot tell")
    options.add_argument("--list", action="store_true", help="the sections, and nothing else")
    arguments = options.parse_args(argv)
    if arguments.list:
        for section in sections.values():
            print(f"{section.name:14} {section.seconds:4.0f} s")
        return
    Runner(arguments, sections).run()


class Runner:
    """Runs sections one behind another."""

    def __init__(self, arguments: argparse.Namespace, sections: Mapping[str, Section]) -> None:
        self.began = time.monotonic()
        self.arguments, self.sections = arguments, sections
        self.names = arguments.sections.split(",")
        if unknown := sorted({*self.names} - {*sections}):
            raise SystemExit(f"there are no sections {', '.join(unknown)}; --list names them")
        self.out: Path = arguments.out.resolve()
        self.folder = (arguments.work or self.out).resolve() / "results"
        self.out.mkdir(parents=True, exist_ok=True)
        self.cache = _CACHE
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log: IO[str] = (self.folder / "log.txt").open("a", encoding="utf-8")
        self.lock = threading.Lock()
        if arguments.cache is not None and arguments.cache.exists():
            with tarfile.open(arguments.cache) as packed:
                unpack(packed, self.cache)

    def run(self) -> None:
        """All sections that there is time for."""
        for name in self.names:
            left = self.arguments.seconds - (time.monotonic() - self.began)
            if left < _LEAST:
                self.say(f"== {name}: left out, {left:.0f} s are left")
                continue
            section = self.sections[name]
            self.section(section, min(section.seconds, left - _GRACE))
            self.pack()
        self.say("== done")
        self.log.close()

    def section(self, section: Section, seconds: float) -> None:
        """One section, ended after so many seconds."""
        self.say(f"== {section.name}: begins, {seconds:.0f} s at most")
        began = time.monotonic()
        running = [self.start(section.name, each, seconds) for each in section.commands]
        codes = []
        for process, reader in running:
            try:
                code = process.wait(max(0.1, began + seconds - time.monotonic()))
                codes.append(str(code))
            except subprocess.TimeoutExpired:
                self.stop(process)
                codes.append("out of time")
            reader.join(1)
        self.say(f"== {section.name}: {', '.join(codes)}, {time.monotonic() - began:.1f} s")

    def start(
        self, name: str, command: Command, seconds: float
    ) -> tuple[subprocess.Popen[str], threading.Thread]:
        """A command of a section that may take so long, and the thread that shows what it prints."""
        dry = self.arguments.dry
        told = {
            "{out}": str(self.folder),
            "{device}": "cpu" if dry else "cuda",
            "{minutes}": f"{_ENDS_EARLIER * seconds / 60:.3f}",
        }
        words = [*command.words, *(command.dry if dry else ())]
        for key, value in told.items():
            words = [word.replace(key, value) for word in words]
        if words[1].startswith("benchmarks.") and self.arguments.commit:
            words += ["--commit", self.arguments.commit]
        environment = {
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "TRITON_CACHE_DIR": str(self.cache),
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "MANYHANDS_RANKS_LOG": str(self.folder / f"others_{name}.txt"),
            **command.environment,
        }
        if command.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = command.gpu
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        reader = threading.Thread(target=self.show, args=(process,), daemon=True)
        reader.start()
        return process, reader

    def show(self, process: subprocess.Popen[str]) -> None:
        """Its lines as they come."""
        assert process.stdout is not None, "it is a pipe"
        with process.stdout:
            for line in process.stdout:
                self.say(line.rstrip())

    def stop(self, process: subprocess.Popen[str]) -> None:
        """Let it and those that it has started say where they are, and end."""
        family = [process.pid, *_descendants(process.pid)]
        for sign in (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL):
            for number in family:
                try:
                    os.kill(number, sign)
                except OSError:
                    continue
            time.sleep(1.0)
        process.wait()

    def pack(self) -> None:
        """All that was written so far, in few files."""
        for folder in (self.folder, self.cache):
            if folder.exists():
                self.log.flush()
                name = "triton" if folder == self.cache else folder.name
                fresh = self.out / f"{name}.part"
                with tarfile.open(fresh, "w:gz", compresslevel=3) as packed:
                    packed.add(folder, ".", filter=_worth_keeping)
                fresh.replace(self.out / f"{name}.tgz")

    def say(self, text: str) -> None:
        """A line, with the seconds since the beginning."""
        with self.lock:
            if self.log.closed:  # a process that outlives its section, and all of them
                return
            line = f"{time.monotonic() - self.began:6.1f} {text}"
            print(line, flush=True)
            self.log.write(line + "\n")
            self.log.flush()


def _worth_keeping(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Not the weights of trainings, nor Triton's steps in between."""
    endings = (
        ".pt",
        ".new",
        ".safetensors",
        ".ttir",
        ".ttgir",
        ".llir",
        ".ptx",
        ".source",
        ".part",
    )
    return None if entry.name.endswith(endings) else entry


def _descendants(number: int) -> list[int]:
    """The processes that one has started, and theirs, by /proc."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(words[1]), []).append(int(status.parent.name))
    found = list(parents.get(number, []))
    for each in found:
        found += parents.get(each, [])
    return found


def facts() -> None:
    """The machine, in lines."""
    print("torch", torch.__version__, "CUDA", torch.version.cuda, "NCCL", _nccl())
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        reaches = [
            torch.cuda.can_device_access_peer(index, other)
            for other in range(torch.cuda.device_count())
            if other != index
        ]
        name = torch.cuda.get_device_name(index)
        print(index, name, f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free, reaches", reaches)
    if shutil.which("nvidia-smi"):
        for words in (["topo", "-m"], ["nvlink", "-s", "-i", "0"]):
            subprocess.run(["nvidia-smi", *words], check=False)


def _nccl() -> str:
    return ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "none"
