"""Python processes that begin with torch and transformers imported, which a new one needs seconds for: copies of one that waits."""

from __future__ import annotations

import atexit
import io
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing import forkserver, get_context, reduction, set_start_method
from threading import Thread
from typing import IO, Any, Self

import pytest

COMMAND = [sys.executable, "-m", "manyhands"]
_NAMES = "stdin", "stdout", "stderr"
CLOSED = -3  # of a stream, beside those of `subprocess`


@cache
def context() -> Any:
    """For `multiprocessing`: of processes that are copies; the one that is copied waits for as long as the tests last."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.warm_imports"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # is read once, by an import
        forkserver.ensure_running()
    return context


class _Stream:
    """An open file on its way to the copy, which has it under another number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _arrived, (reduction.DupFd(self.number),)


def _arrived(sent: Any) -> int:
    number: int = sent.detach()
    return number


def _run(
    words: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    leads: bool,
    streams: Sequence[int | None],
    first: Callable[[], object] | None,
) -> None:
    """In the copy: what `python -m WORDS` does."""
    set_start_method(None, force=True)  # of its own processes, the usual one again
    if leads:
        os.setsid()
    for number, stream in enumerate(streams):
        if stream == CLOSED:
            os.close(number)
            setattr(sys, _NAMES[number], None)
        elif stream is not None:
            os.dup2(stream, number)
            os.close(stream)
            _open(number, bool(environment.get("PYTHONUNBUFFERED")))
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if first is not None:
        first()
    sys.path[:0] = [cwd, *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv[:] = words
    code: Any = None
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as left:
        code = left.code
    atexit._run_exitfuncs()  # when no traceback holds what the program has left
    sys.exit(code)


def _open(number: int, is_unbuffered: bool) -> None:
    """As Python opens its three streams."""
    is_unbuffered = is_unbuffered and number > 0
    stream = io.TextIOWrapper(
        os.fdopen(
            number,
            "wb" if number else "rb",
            buffering=0 if is_unbuffered else -1,
            closefd=False,
        ),
        encoding="utf-8",
        errors="backslashreplace" if number == 2 else "strict",
        line_buffering=number == 2 or os.isatty(number),
        write_through=is_unbuffered,
    )
    setattr(sys, _NAMES[number], stream)
    setattr(sys, f"__{_NAMES[number]}__", stream)


class Warm:
    """As much of `subprocess.Popen` as a test needs of it, for `python -m MODULE`; not for one with processes of its own.

    A stream is that of the process that is copied, an open file's number, a pipe or closed; what is written is text. `first` is called in the copy before the module begins.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike[str] = ".",
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        first: Callable[[], object] | None = None,
    ) -> None:
        python, option, *words = command
        assert (python, option) == (sys.executable, "-m"), command
        self._are_awaited = False
        self._left: tuple[str, str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        streams, ours = [stdin, stdout, stderr], list[int]()
        for number, name in ((1, "stdout"), (2, "stderr")):
            if streams[number] == subprocess.PIPE:
                read, write = os.pipe()
                setattr(self, name, os.fdopen(read, encoding="utf-8"))
                streams[number] = write
                ours.append(write)
        sent: list[Any] = [each if each in (None, CLOSED) else _Stream(each) for each in streams]
        environment = dict(os.environ if env is None else env)
        given = (words, os.path.abspath(cwd), environment, start_new_session, sent, first)
        self._process = context().Process(target=_run, args=given)
        self._process.start()
        for each in ours:
            os.close(each)
        self.pid: int = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None and not self._are_awaited:  # by a thread, which has it
                stream.close()
        self.wait(60)

    @property
    def returncode(self) -> int | None:
        found: int | None = self._process.exitcode
        return found

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a copy", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """The rest of both pipes, when the process has ended; the same when it is asked again."""
        if self._left is not None:
            return self._left
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        said: dict[IO[str], str] = {}
        readers = [Thread(target=lambda of=each: said.update({of: of.read()})) for each in streams]
        end, self._are_awaited = time.monotonic() + timeout, True
        for reader in readers:
            reader.daemon = True
            reader.start()
        for reader in readers:
            reader.join(max(0.0, end - time.monotonic()))
        if len(said) < len(streams):
            raise subprocess.TimeoutExpired("a copy", timeout)
        self._are_awaited = False
        self.wait(max(1.0, end - time.monotonic()))
        out, err = (said.get(stream, "") if stream else "" for stream in (self.stdout, self.stderr))
        for stream in streams:
            stream.close()
        self._left = out, err
        return self._left


def run(
    command: Sequence[str], *, timeout: float = 60.0, **how: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with pipes for what is written."""
    process = Warm(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how)
    try:
        out, err = process.communicate(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(list(command), process.returncode or 0, out, err)
