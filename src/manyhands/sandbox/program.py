r"""A Python program that a model wrote, run once: text in, text out, in a place that is closed.

    run_program("print(int(input()) + 1)", "41\n", Limits(seconds=6))     # Ended(printed="42\n")
    run_program(source, call=Call("add", [1, 2]))                         # Ended(printed="", value=3)

The verdict is not the program's to give. It is told its input and never what is expected. What it prints,
or what its function returns as JSON, is an answer, and the caller compares that in another process: a
program that writes "passed", leaves with status 0, or returns an object that equals everything has said
nothing that counts.

What holds:

- A process of its own session, with the standard library and nothing else, in an empty folder.
- No network, no files of others, no processes of others, as far as this system can do that:
  `find_isolation().about` says it in words.
- Limits of CPU time, address space, size of files, open files and processes by the kernel; of wall-clock
  time and output by the caller. All processes are killed together, when the first of them ends.

An attack on the kernel itself is not held back. At large, programs of an untrusted model belong
into a virtual machine of their own.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import FileIO
from typing import Any

from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.sandbox.isolation import Isolation, find_isolation, lone_user, python_command
from manyhands.sandbox.limits import Failed, FailureKind, Limits

PROGRAM_LIMITS = Limits(seconds=6.0, memory_bytes=1 << 30, open_files=32)
_OUT_OF_MEMORY = 97  # the status with which the first lines leave then
_TICK_SECONDS = 0.05  # between two looks whether the first process has ended
_BRIEF = 300  # characters of what a program complained


@dataclass(frozen=True)
class Call:
    """A function of the program, or a method of its class `Solution`, with arguments for JSON."""

    function: str
    arguments: Sequence[Any]


@dataclass(frozen=True)
class Ended:
    """The program came to its end. `value` is what the call returned, as JSON keeps it."""

    printed: str
    value: Any = None


def run_program(
    source: str,
    given: str = "",
    limits: Limits = PROGRAM_LIMITS,
    *,
    call: Call | None = None,
    prelude: str = "",
    isolation: Isolation | None = None,
) -> Ended | Failed:
    """Run it once, with `given` as its standard input; with a `call`, call that function at the end.

    `prelude` is a program of ours that runs before it: names that it may use without an import.

    InvalidRequest if this system cannot close a program in as it must, or starts no process. OutputFailed where what it is given
    finds no room.
    """
    closed = isolation or find_isolation()
    order_of_it = json.dumps(_order(prelude, source, limits, call)).encode()
    with ExitStack() as stack:
        folder = None
        try:
            order = stack.enter_context(_holding(order_of_it))
            standard_input = stack.enter_context(_holding(given.encode()))
            if not closed.has_own_folder:
                folder = stack.enter_context(
                    tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
                )
        except OSError as error:
            raise OutputFailed(
                f"a program cannot be run: the folder for temporary files cannot be written to: {error.strerror or error}",
                hint="make room there, or name another folder: TMPDIR=FOLDER",
            ) from error
        answers, theirs = os.pipe()
        stack.callback(os.close, answers)
        command = [*closed.command, *python_command(), "-c", _inside()]
        try:
            process = subprocess.Popen(
                [*command, str(order.fileno()), str(theirs)],
                stdin=standard_input,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={"PATH": os.defpath},
                pass_fds=(order.fileno(), theirs),
                start_new_session=True,
            )
        except OSError as error:
            raise InvalidRequest(
                f"a program could not be started: {error}",
                hint="allow this program to start another process",
            ) from error
        finally:
            os.close(theirs)
        stack.enter_context(process)
        stack.callback(_kill, process)
        return _Watched(process, answers, limits).outcome(call)


@contextmanager
def _holding(content: bytes) -> Iterator[FileIO]:
    """A file without a name that holds this, to be read from its beginning. OSError where there is no room for it."""
    # Without a buffer, which would be written once more where it is closed, and fail again.
    with tempfile.TemporaryFile(buffering=0) as file:
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]
        file.seek(0)
        yield file


def _order(prelude: str, source: str, limits: Limits, call: Call | None) -> dict[str, Any]:
    return {
        "prelude": prelude,
        "source": source,
        "call": None if call is None else {"function": call.function, "arguments": call.arguments},
        "user": lone_user(),
        "out_of_memory": _OUT_OF_MEMORY,
        "limits": {
            "RLIMIT_CPU": math.ceil(limits.seconds) + 1,
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_NPROC": limits.processes,
            "RLIMIT_CORE": 0,
        },
    }


@cache
def _inside() -> str:
    return files("manyhands.sandbox").joinpath("inside.py").read_text("utf-8")


class _Watched:
    """The running program: its output is read and counted until it ends or has to."""

    def __init__(self, process: subprocess.Popen[bytes], answers: int, limits: Limits) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process, self.limits = process, limits
        self.printed, self.complained, self.answered = bytearray(), bytearray(), bytearray()
        self._streams: dict[int, bytearray] = {
            process.stdout.fileno(): self.printed,
            process.stderr.fileno(): self.complained,
            answers: self.answered,
        }
        self._killed_for: FailureKind | None = None

    def outcome(self, call: Call | None) -> Ended | Failed:
        """Wait for the end. The answer, or why there is none."""
        self._read_all()
        status = self.process.wait()
        if self._killed_for == "timeout" or status in _signalled("SIGXCPU"):
            return Failed("timeout", f"took over {self.limits.seconds:g} s")
        if self._killed_for == "output":
            return Failed("output", f"gave more than {self.limits.output_bytes} bytes")
        if status == _OUT_OF_MEMORY:
            return Failed("memory", "needed more memory than allowed")
        if status != 0:
            return self._failed(status)
        printed = self.printed.decode("utf-8", errors="replace")
        if call is None:
            return Ended(printed)
        try:
            return Ended(printed, json.loads(self.answered))
        except (ValueError, RecursionError):  # it left before its function returned, or forged
            return Failed("crash", "ended its process before its function returned")

    def _failed(self, status: int) -> Failed:
        lines = self.complained.decode("utf-8", errors="replace").strip().splitlines()
        last = lines[-1][:_BRIEF] if lines else ""
        if status < 0 or status > 128:
            number = -status if status < 0 else status - 128  # bubblewrap tells it like a shell
            with suppress(ValueError):
                return Failed("crash", f"crashed ({signal.Signals(number).name})")
        if last:
            return Failed("error", f"ended with: {last}")
        return Failed("crash", f"ended its process (status {status})")

    def _read_all(self) -> None:
        end = time.monotonic() + self.limits.seconds
        with selectors.DefaultSelector() as selector:
            for descriptor in self._streams:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                is_over = self.process.poll() is not None
                if is_over:  # processes left behind hold the pipes open
                    _kill(self.process)
                ready = selector.select(_TICK_SECONDS)
                if is_over and not ready:
                    return
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fd)
                    self._streams[key.fd] += chunk
                if sum(map(len, self._streams.values())) > self.limits.output_bytes:
                    return self._kill_for("output")
                if time.monotonic() > end:
                    return self._kill_for("timeout")
            if self._still_runs(end):  # it closed its pipes and went on
                self._kill_for("timeout")

    def _still_runs(self, end: float) -> bool:
        try:
            self.process.wait(max(end - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return True
        return False

    def _kill_for(self, kind: FailureKind) -> None:
        self._killed_for = kind
        _kill(self.process)


def _signalled(name: str) -> set[int]:
    number = int(getattr(signal, name, 0))
    return {-number, 128 + number}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End its whole session. Namespaces end with their first process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.poll()
