"""Everything that is written: stdout, warnings, and the file that keeps the trace.

A disk can fill up in the middle of a run. Then the run is worth more than its trace: what is on
disk stays (a good trace up to its last whole line), the user is told at once, and the command ends
with the exit code of `OutputFailed` after it has printed the answer.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from importlib import metadata
from pathlib import Path
from typing import Any

from manyhands.cli.guard import tell, unwritten, writing
from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.replay.trace import TRACE_LINES
from manyhands.schema.lines import LineFile
from manyhands.text.clean import printable

_FIRST = b'{"kind": "header"'  # how a trace begins
_BEGUN = ("pass", "end")  # kinds of lines of a run that has begun
_LAST = b'{"kind": "end"'  # and how its last line does, of a run that has ended


def say(text: str, *, end: str = "\n") -> None:
    """Print on stdout, now; control characters of models and users are made visible."""
    if sys.stdout is None:  # the user closed it
        raise unwritten("it is closed")
    with writing():
        sys.stdout.write(printable(text) + end)
        sys.stdout.flush()


def say_json(value: dict[str, Any], *, indent: int | None = 2) -> None:
    """Print one JSON object; it is pure ASCII, so there is nothing in it that a terminal obeys."""
    say(json.dumps(value, indent=indent))


def version_of(package: str) -> str:
    """The installed version of a package; ours is distributed as manyhands-llm."""
    try:
        return metadata.version("manyhands-llm" if package == "manyhands" else package)
    except metadata.PackageNotFoundError:
        return "unknown"


class Notes:
    """Warnings: told at once, and kept for the JSON object."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        """Tell the user something that does not stop the run."""
        self.texts.append(text)
        tell(text, "warning: ", "yellow")


class TraceFile:
    """The file of `--transcript`, or none. From its first pass on, a line is in the file when `write` returns.

    Lines are held back until the first pass, or the end, is told. What stood in the file before goes then, not
    earlier: a run that cannot start costs no trace. A file that got no line is not left behind. A line is handed to the operating system and not waited for: a run makes
    hundreds a second, and can be made again.
    """

    def __init__(self, path: Path | None, notes: Notes) -> None:
        self.path = path
        self.notes = notes
        self.failure: OutputFailed | None = None
        self._is_empty = True
        self._held: list[dict[str, Any]] = []  # lines in front of the first pass
        self._file: LineFile | None = None
        if path is not None:
            self._file = LineFile(
                path, TRACE_LINES, sync=False, elsewhere="give another place", devices=True
            )
            try:
                _check_replaceable(path)
            except BaseException:
                self._file.close()
                raise

    def write(self, line: dict[str, Any]) -> None:
        """Append one line; after a failure, do nothing."""
        if self._file is None or self.failure is not None:
            return
        self._held.append(line)
        if self._is_empty and line["kind"] not in _BEGUN:
            return
        try:
            if self._is_empty:
                self._file.clear()
            self._is_empty = False
            self._file.append(*self._held)
            self._held.clear()
        except OutputFailed as error:
            self._fail(error)

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is None:
            return
        try:
            self._file.close()
        except OutputFailed as failure:
            if self.failure is None:
                self._fail(failure)

    def _fail(self, error: OutputFailed) -> None:
        self.failure = error
        self.notes.warn(f"{error}; the run goes on without it")


def _check_replaceable(path: Path) -> None:
    """A file that is there already is replaced only if it is the trace of a run that has ended."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        beginning = file.read(len(_FIRST))
        if beginning and beginning != _FIRST:
            raise InvalidRequest(
                f"{str(path)!r} exists and is not a trace, so it is not replaced",
                hint="give another name, or remove it first",
            )
        ((num_lines, last),) = deque(enumerate(file, 1), maxlen=1) or [(0, b"")]
    if num_lines > 1 and not (last.startswith(_LAST) and last.endswith(b"\n")):
        raise InvalidRequest(
            f"{str(path)!r} holds a run that was cut short, so it is not replaced",
            hint="go on with it (manyhands replay --continue), give another name, or remove it first",
        )


def in_bytes(number: int) -> str:
    """A size in the unit in which it is a few digits."""
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
