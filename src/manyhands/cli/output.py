"""Everything that is written: stdout, warnings, and the file that keeps the trace.

A disk can fill up in the middle of a run. Then the run is worth more than its trace: what is on
disk stays (a good trace up to its last whole line), the user is told at once, and the command ends
with the exit code of `OutputFailed` after it has printed the answer.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections import deque
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from manyhands.cli.guard import hush, tell, unwritten
from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.text.clean import printable

_FIRST = b'{"kind": "header"'  # how a trace begins
_LAST = b'{"kind": "end"'  # and how its last line does, of a run that has ended
# The mend for a file that could not even be opened.
NOT_OPENED = "give a file that you may write, in a folder that exists; nothing was written"


def say(text: str, *, end: str = "\n") -> None:
    """Print on stdout, now; control characters of models and users are made visible."""
    if sys.stdout is None:  # the user closed it
        raise unwritten("it is closed")
    try:
        sys.stdout.write(printable(text) + end)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        hush(sys.stdout)
        raise unwritten(error.strerror) from error


def say_json(value: dict[str, Any]) -> None:
    """Print one JSON object; it is pure ASCII, so there is nothing in it that a terminal obeys."""
    say(json.dumps(value, indent=2))


def version_of(package: str) -> str:
    """The installed version of a package."""
    try:
        return metadata.version(package)
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
    """The file of `--transcript`, or none. Lines are on disk as soon as they are written.

    What stood in the file before goes when the first line comes, not earlier, and a file that got
    no line is not left behind.
    """

    def __init__(self, path: Path | None, notes: Notes) -> None:
        self.path = path
        self.notes = notes
        self.failure: OutputFailed | None = None
        self._is_ours = path is not None and not path.exists()
        self._is_empty = True
        self._file = None
        if path is not None:
            try:
                _check_replaceable(path)
                self._file = path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise _cannot_write(path, error, hint=NOT_OPENED) from error

    def write(self, line: dict[str, Any]) -> None:
        """Append one line; after a failure, do nothing."""
        if self._file is None or self.failure is not None:
            return
        try:
            if self._is_empty and stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.truncate(0)
            self._is_empty = False
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._fail(error)

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is None or self.path is None:
            return
        try:
            self._file.close()
        except OSError as failure:
            if self.failure is None:
                self._fail(failure)
        if self._is_empty and self._is_ours:
            self.path.unlink(missing_ok=True)

    def _fail(self, error: OSError) -> None:
        assert self.path is not None, "only an open file fails"
        self.failure = _cannot_write(
            self.path,
            error,
            hint="give another place, or make room; what was written so far is kept",
        )
        self.notes.warn(f"{self.failure}; the run goes on without it")


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


def _cannot_write(path: Path, error: OSError, *, hint: str) -> OutputFailed:
    return OutputFailed(
        f"the transcript {str(path)!r} cannot be written: {error.strerror}", hint=hint
    )
