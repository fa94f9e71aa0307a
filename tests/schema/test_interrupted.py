"""No line is lost, torn or doubled: errors at every call, interrupts at every line, kills at any moment.

All users of `schema/lines.py` go through the same three tests. `told` are the numbers whose writing has
returned. After a fault the file holds all of them, in order, each once; at most one more line had come so far
before its writer was stopped. A new start writes the rest.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

import pytest

from manyhands.errors import OutputFailed
from manyhands.schema import lines as lines_module
from manyhands.schema.lines import Format, LineFile, read_lines
from tests.schema.users import USERS, User
from tests.warm import Warm

COUNT = 4
CALLS = ("open", "write", "fsync", "ftruncate", "replace")
ROOT = Path(__file__).parents[2]


class Pressed(BaseException):
    """An interrupt, told from a real one."""


class Faults:
    """Makes the call number `at` of the operating system fail, and for a full disk all that follow."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, at: int, how: str) -> None:
        self.count, self.at, self.how, self.folder = 0, at, how, folder
        self.is_over = False
        for name in CALLS:
            patch.setattr(os, name, self.faulty(name, getattr(os, name)))
        patch.setattr(tempfile, "mkstemp", self.faulty("mkstemp", tempfile.mkstemp))

    def faulty(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if self.is_over or not self._is_ours(name, args):
                return usual(*args, **more)
            self.count += 1
            if self.how == "full" and name in ("write", "fsync") and self.count > self.at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.count - 1 != self.at:
                return usual(*args, **more)
            if self.how == "interrupt after":
                usual(*args, **more)
            elif name == "write":  # part of it fits
                usual(args[0], args[1][: len(args[1]) // 2])
            if self.how.startswith("interrupt"):
                raise Pressed
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        return call

    def _is_ours(self, name: str, args: tuple[Any, ...]) -> bool:
        """Only files in our folder: nobody else's are to fail."""
        if name == "mkstemp":
            return True
        place = args[0]
        if isinstance(place, int):
            try:
                place = os.readlink(f"/proc/self/fd/{place}")
            except OSError:
                return False
        return str(place).startswith(str(self.folder))


def check(user: User, path: Path, told: list[int]) -> list[int]:
    """The lines of the file, if they are right."""
    found = user.read(path)
    assert found == sorted(set(found)), "in order, each once"
    assert set(told) <= set(found), "nothing is lost"
    assert len(found) <= len(set(told)) + 1, "nothing is there that nobody wrote"
    return found


HOW = ("once", "full", "interrupt", "interrupt after")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", USERS)
def test_an_error_at_every_call(
    name: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, at, num_faults = USERS[name], 0, 0
    while True:
        folder = tmp_path / f"{at}"
        folder.mkdir()
        path = folder / "x.jsonl"
        told = user.prepare(path, COUNT)
        with monkeypatch.context() as patch:
            faults = Faults(patch, folder, at, how)
            try:
                user.write(path, COUNT, told.append)
            except (OutputFailed, Pressed, OSError) as error:
                is_plain = isinstance(error, OSError)
                assert not is_plain or name == "log", "only a checkpoint fails by itself"
                num_faults += 1
            is_done = faults.count <= at
            faults.is_over = True
        check(user, path, told)
        again: list[int] = []
        user.write(path, COUNT, again.append)
        missing = set(range(COUNT)) - set(check(user, path, [*told, *again]))
        assert len(missing) <= user.is_log
        if not user.is_log:
            assert not set(told) & set(again), "nothing is done twice"
        if how != "interrupt after":  # it may come before the name of a new file is known
            assert not list(folder.glob(".*")), "nothing is left beside it"
        if is_done:
            break
        at += 1
    assert num_faults >= COUNT, "the faults were felt"


LEFT_OUT = ("__enter__", "__exit__", "close")
FORMAT = Format("a list", line="an entry", fields=("n",), begins=b'{"n": ')


class Press:
    """A trace function that interrupts the line number `at` of `schema/lines.py`.

    Beginning and end of a `with` are left out: Python itself may be interrupted before it has the file.
    """

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if code.co_filename != lines_module.__file__ or code.co_name in LEFT_OUT:
            return None
        if event == "line":
            self.count += 1
            if self.count == self.at + 1:
                raise Pressed
        return self


def story(path: Path, told: list[int], kept: list[int]) -> None:
    """Lines are added and taken out; `told` and `kept` say what is certain at any moment."""
    with LineFile(path, FORMAT) as file:
        file.resume()
        for number in range(3):
            file.append({"n": number}, {"n": number + 10})
            told += [number, number + 10]
        kept += [number for number in told if number % 2]
        file.keep(lambda line: line["n"] % 2 == 1)
        file.append({"n": 5})
        told.append(5)
        kept.append(5)


# A file that was just opened for reading, and not yet handed over, is closed by Python with this warning.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_at_every_line_of_the_code(tmp_path: Path) -> None:
    """Ctrl-C may come between any two lines; neither the file nor its next writer may suffer."""
    at = 0
    while True:
        path, told, kept = tmp_path / f"{at}.jsonl", list[int](), list[int]()
        sys.settrace(press := Press(at))
        try:
            story(path, told, kept)
        except Pressed:
            pass
        finally:
            sys.settrace(None)
        content = path.read_bytes() if path.exists() else b""
        found = [line["n"] for line in read_lines(path, FORMAT)] if b"\n" in content else []
        assert found in ([*told], [*kept], [*told, *_next(told)], [*kept, 5]), (at, found)
        with LineFile(path, FORMAT) as file:  # the lock is free again
            assert [line["n"] for line in file.resume()] == found
            file.append({"n": 99})
        assert [line["n"] for line in read_lines(path, FORMAT)] == [*found, 99]
        if press.count <= at:
            break
        at += 1
    assert at > 100, "many lines were stopped at"


def _next(told: list[int]) -> list[int]:
    """The lines of the `append` that is under way."""
    number = len(told) // 2
    return [number, number + 10] if number < 3 else [5]


@pytest.fixture(scope="module")
def writers() -> Iterator[tuple[IO[str], IO[str]]]:
    """Both ends of a process with everything imported, whose copies are killed."""
    command = [sys.executable, "-m", "tests.schema.users"]
    read, write = os.pipe()
    with Warm(command, cwd=ROOT, stdin=read, stdout=subprocess.PIPE) as process:
        os.close(read)
        assert process.stdout is not None
        with open(write, "w") as told:
            yield told, process.stdout


@pytest.mark.parametrize("name", USERS)
def test_killed_at_any_moment(name: str, tmp_path: Path, writers: tuple[IO[str], IO[str]]) -> None:
    """SIGKILL, again and again: every start goes on, nothing is lost and nothing is done twice.

    What a copy says goes into a pipe with room for some of its numbers, which is read when it is dead: however late that is, it is not done.
    """
    user, rng, path = USERS[name], random.Random(name), tmp_path / "x.jsonl"
    pipe = tmp_path / "told"
    os.mkfifo(pipe)
    told = user.prepare(path, 3000)
    asked, answered = writers
    for _ in range(
        1 if user.is_log else 2
    ):  # one that goes on tells the file's older lines no more
        before = len(told)
        print(json.dumps([name, str(path), 3000, str(pipe)]), file=asked, flush=True)
        process = int(answered.readline())
        with open(pipe) as said:
            if hasattr(fcntl, "F_SETPIPE_SZ"):
                fcntl.fcntl(said, fcntl.F_SETPIPE_SZ, 4096)
            told.append(int(said.readline()))  # it has begun
            time.sleep(rng.random() * 0.1)
            os.kill(process, signal.SIGKILL)
            told += [int(number) for number in said.read().split("\n")[:-1]]
        if user.is_log:
            told = told[before:]  # without a checkpoint, a training begins anew
        assert int(answered.readline()) == -signal.SIGKILL, "it was not done yet"
        found = user.read(path)
        assert found == sorted(set(found))
        assert set(told) <= set(found)
        # A number may be in the file and not yet said: the writer was stopped in between.
        assert len(found) <= len(told) + 2
        told = found
