"""A file of JSON lines in which nothing that was once written is lost.

The first line is a header that says how the rest was made. Every line is appended with one write and
is on the disk (fsync) before `append` returns, so a process may be killed at any moment: at worst
the last line is torn, and the next start takes the torn piece away. If the disk is full, the piece
that did fit is taken away at once and the error says so; the lines before it stay.

A second start with the same header goes on where the first one stopped. Another header is an error:
results of two settings in one file would be worth nothing. `PASSING` says which facts may change. A
header with no line behind it binds nobody: the next start writes its own instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from manyhands.errors import InvalidRequest, OutputFailed

SCHEMA = 1
PASSING = frozenset({"date", "command", "versions"})  # may differ between two starts
Line = dict[str, Any]


class LinesFile:
    """A file of JSON lines, open for appending. `lines` are those that it held already.

    `elsewhere` names the options that choose another file, if its command has some: a hint tells them.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], elsewhere: str = "") -> None:
        """Open or make `path`. InvalidRequest if it was made otherwise, OutputFailed if it cannot."""
        self.path = path
        self._or_elsewhere = f", choose another {elsewhere}" if elsewhere else ""
        self.lines: list[Line] = []
        # Through JSON and back, so that it can be compared with what a file says.
        own = json.loads(json.dumps({"schema": SCHEMA, "kind": "header", **header}))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            lock(self._file, path, hint=f"wait for it{self._or_elsewhere}")
            self._go_on(own)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line; it is on the disk when this returns."""
        encoded = (json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        size = os.fstat(self._file).st_size
        try:
            written = 0
            while written < len(encoded):
                written += os.write(self._file, encoded[written:])
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, size)  # making a file shorter needs no room
            raise _cannot_write(self.path, error) from error

    def close(self) -> None:
        """Nothing more will be added."""
        os.close(self._file)

    def __enter__(self) -> LinesFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _go_on(self, own: Line) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole:
            header, self.lines = _parse(self.path, whole)
        if self.lines:
            hint = f"run it as before to go on{self._or_elsewhere}, or remove the file"
            _compare(self.path, header, own, hint=hint)
        kept = len(whole) if self.lines else 0  # a header alone binds nobody
        if kept < len(content):  # also the end of a line that was cut short
            os.ftruncate(self._file, kept)
        if not kept:
            self.append(own)


def read_lines(path: Path) -> tuple[Line, list[Line]]:
    """Header and lines of a file, without changing it; a torn last line is left out."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"{str(path)!r} cannot be read: {error.strerror}", hint="give a file of an exam"
        ) from error
    whole = content[: content.rfind(b"\n") + 1]
    if not whole:
        raise InvalidRequest(
            f"{str(path)!r} has no whole line", hint="run its exam again, or remove the file"
        )
    return _parse(path, whole)


def checked(path: Path, number: int, read: Callable[[], Any]) -> Any:
    """What `read` makes of a line; its complaint, if it has one, names the place."""
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        missing = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise malformed(path, number, missing) from error


def malformed(path: Path, number: int, reason: str) -> InvalidRequest:
    """The complaint about one line; lines count from 1, the header."""
    return InvalidRequest(
        f"{str(path)!r}, line {number}: {reason}",
        hint="remove that line: what it stood for is asked again, the others are kept",
    )


def _parse(path: Path, whole: bytes) -> tuple[Line, list[Line]]:
    lines: list[Line] = []
    for number, raw in enumerate(whole.splitlines(), start=1):
        try:
            line = json.loads(raw)
        except ValueError as error:  # no JSON, or no UTF-8
            raise malformed(path, number, "it is not JSON") from error
        if not isinstance(line, dict):
            raise malformed(path, number, f"it is a {type(line).__name__}, expected an object")
        lines.append(line)
    header, *rest = lines
    if header.get("kind") != "header" or not isinstance(header.get("schema"), int):
        raise InvalidRequest(
            f"{str(path)!r} does not begin with a header of an exam", hint="give another file"
        )
    if header["schema"] != SCHEMA:
        raise InvalidRequest(
            f"{str(path)!r} has schema {header['schema']}, this version reads {SCHEMA}",
            hint="read it with the version of manyhands that wrote it",
        )
    return header, rest


def _compare(path: Path, found: Line, own: Line, *, hint: str) -> None:
    """A file goes on only as it was begun."""
    keys = sorted((found.keys() | own.keys()) - PASSING)
    for key in keys:
        if found.get(key) != own.get(key):
            there, here = _difference(found.get(key), own.get(key))
            made = f"made with {key} {there}" if key in found else f"made without {key}"
            raise InvalidRequest(f"{str(path)!r} was {made}; this run has {here}", hint=hint)


def _difference(found: Any, own: Any) -> tuple[str, str]:
    """Two values as a user wants to see them: of two objects only what is not the same."""
    if isinstance(found, dict) and isinstance(own, dict):
        keys = sorted(k for k in found.keys() | own.keys() if found.get(k) != own.get(k))
        found, own = ({k: value.get(k) for k in keys} for value in (found, own))
    return _short(found), _short(own)


def _short(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 120 else f"{written[:117]}..."


def lock(file: int, path: Path, *, hint: str) -> None:
    """Have the open `file` for ourselves until it is closed: two runs would do everything twice.

    InvalidRequest if another run has it. The lock ends with its process, however that ends.
    """
    try:
        import fcntl
    except ImportError:  # Windows has none; there the user has to take care
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InvalidRequest(f"another run is writing to {str(path)!r}", hint=hint) from error
    except OSError:  # a file system without locks
        return


def _cannot_write(path: Path, error: OSError) -> OutputFailed:
    return OutputFailed(
        f"{str(path)!r} cannot be written: {error.strerror}",
        hint="make room; everything graded so far is kept, and the same command goes on",
    )
