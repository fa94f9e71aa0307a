"""The two files of `manyhands batch`: requests in, answers out, and nothing lost in between.

What was answered is appended to the output and is on disk (fsync) before the next pass. So the output
is at any moment what has been done, and a second start goes on from it: whoever stands in it already
is left out. A kill in the middle of a write leaves a last line without its end; it is cut off, and its
request done again. Whoever writes has a lock on the file, so that a second start is refused meanwhile.

An answer belongs to its request by `custom_id`, or by the number of its line if that has none of its
own. Its fingerprint says whether the request is still the one that was answered.

With `retry_failures`, the lines of those that failed are taken out first: what is left is written beside the
file and takes its place in one move, so that at any moment one of the two is whole.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Any

from manyhands.cli.batch_lines import Defaults, Line, decode_line, error_line, fingerprint
from manyhands.cli.output import NOT_OPENED
from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.evaluation.lines import lock

_FIRST = b'{"id": "batch_req_'  # how every line of an output begins
_MAKE_ROOM = "make room or give another place; what it holds is kept, and the same command goes on"
_WAIT = "wait for it, or give another output file"


@dataclass
class Input:
    """All requests of a file: those that can be looked at, and an error line for each of the others."""

    lines: list[tuple[int, Line]] = field(default_factory=list)  # number and request
    faulty: list[Line] = field(default_factory=list)
    fingerprints: dict[str | int, str] = field(default_factory=dict)  # by custom_id or line number

    @property
    def num_requests(self) -> int:
        """How many lines are to be answered, in one way or another."""
        return len(self.fingerprints)


def read_input(path: Path, defaults: Defaults) -> Input:
    """Read all requests; a line that is none does not keep the others from being answered."""
    try:
        raw_lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InvalidRequest(
            f"{str(path)!r} cannot be read: {error.strerror}",
            hint="give a file with one request a line (JSONL)",
        ) from error
    found, seen = Input(), dict[str, int]()
    for number, raw in enumerate(raw_lines, 1):
        if not raw.strip():
            continue
        try:
            line = decode_line(raw.removeprefix(b"\xef\xbb\xbf"), number)
            name = line["custom_id"]
            if name in seen:
                raise InvalidRequest(
                    f"line {number} has the custom_id {name!r} of line {seen[name]}",
                    hint="give every request a custom_id of its own",
                )
        except InvalidRequest as error:
            mark = fingerprint(raw.decode("utf-8", "replace"), defaults)
            found.fingerprints[number] = mark
            found.faulty.append(error_line(error, number, None, mark))
        else:
            seen[name] = number
            found.fingerprints[name] = fingerprint(line, defaults)
            found.lines.append((number, line))
    if not found.num_requests:
        raise InvalidRequest(
            f"{str(path)!r} holds no request", hint="write one JSON object a line into it"
        )
    return found


class Output:
    """The file of answers. `done` are the requests that stand in it, `num_failed` those without answer.

    `retry_failures`: those without answer are taken out of it, and so are to be done again.
    """

    def __init__(self, path: Path, given: Input, *, retry_failures: bool = False) -> None:
        self.path = path
        self.retry_failures = retry_failures
        self.done: set[str | int] = set()
        self.num_failed = 0
        try:
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        except OSError as error:
            raise self._failure(error, hint=NOT_OPENED) from error
        try:
            self._size = self._go_on(given)
        except OSError as error:
            self._file.close()
            raise self._failure(error) from error
        except BaseException:
            self._file.close()
            raise

    def write(self, lines: Sequence[Line]) -> None:
        """Append lines, all of them or none; when this returns, they are on disk."""
        written = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        try:
            for start in range(0, len(written), 1 << 20):
                _write_all(self._file, written[start : start + (1 << 20)])
            os.fsync(self._file.fileno())
        except OSError as error:
            self._take_back()
            raise self._failure(error) from error
        self._size += len(written)
        for line in lines:
            self._note(line)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def _go_on(self, given: Input) -> int:
        """Take the file for ourselves, and note what is done; its size, without a torn last line."""
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # a device may be read for ever
            raise OSError(errno.EINVAL, "it is not a regular file")
        lock(self._file.fileno(), self.path, hint=_WAIT)
        content = self._file.read()
        size, kept = self._read(content, given)
        if len(kept) < size:
            self._replace(kept)
            return len(kept)
        self._file.truncate(size)
        self._file.seek(size)
        return size

    def _replace(self, kept: bytes) -> None:
        """Put a file that holds only `kept` in the place of ours, in one move."""
        place = self.path.resolve()
        number, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
        beside = os.fdopen(number, "r+b", buffering=0)
        try:
            os.chmod(name, stat.S_IMODE(os.fstat(self._file.fileno()).st_mode))
            lock(number, self.path, hint=_WAIT)
            _write_all(beside, kept)
            os.fsync(number)
            os.replace(name, place)
        except BaseException:
            beside.close()
            Path(name).unlink(missing_ok=True)
            raise
        self._file.close()
        self._file = beside

    def _take_back(self) -> None:
        """After a failed write: the file ends where it was good."""
        try:
            self._file.truncate(self._size)
            self._file.seek(self._size)
        except OSError:  # the next start cuts the torn line off
            return

    def _read(self, content: bytes, given: Input) -> tuple[int, bytes]:
        """Take note of what is done; returns how many bytes are whole lines, and the lines to keep."""
        kept: list[bytes] = []
        size = content.rfind(b"\n") + 1
        torn = content[size:]
        if torn[: len(_FIRST)] != _FIRST[: len(torn)]:
            raise self._not_ours("its last line")
        for number, raw in enumerate(content[:size].split(b"\n")[:-1], 1):
            try:
                line = json.loads(raw)
            except ValueError as error:
                raise self._not_ours(f"line {number}") from error
            if not isinstance(line, dict) or "fingerprint" not in line or "error" not in line:
                raise self._not_ours(f"line {number}")
            if self.retry_failures and line["error"] is not None:
                continue
            self._check(line, given)
            self._note(line)
            kept.append(raw + b"\n")
        return size, b"".join(kept)

    def _check(self, line: dict[str, Any], given: Input) -> None:
        key = _key(line)
        expected = given.fingerprints.get(key)
        name = f"the request {key!r}" if isinstance(key, str) else f"line {key}"
        hint = "give another output file, or the requests, model and options it was begun with"
        if line["error"] is not None:
            hint += "; with --retry-failures, what failed is asked again as it is now"
        if expected is None:
            raise InvalidRequest(
                f"{str(self.path)!r} holds an answer to {name}, which is not in the input",
                hint=hint,
            )
        if expected != line["fingerprint"]:
            raise InvalidRequest(
                f"{name} has changed since {str(self.path)!r} was begun (or the model or an option has)",
                hint=hint,
            )
        if key in self.done:
            raise InvalidRequest(f"{str(self.path)!r} holds two answers to {name}", hint=hint)

    def _note(self, line: dict[str, Any]) -> None:
        self.done.add(_key(line))
        self.num_failed += line["error"] is not None

    def _not_ours(self, where: str) -> InvalidRequest:
        return InvalidRequest(
            f"{str(self.path)!r} exists and {where} is no answer of a batch, so nothing is added to it",
            hint="give another name, or remove the file first",
        )

    def _failure(self, error: OSError, *, hint: str = _MAKE_ROOM) -> OutputFailed:
        return OutputFailed(f"{str(self.path)!r} cannot be written: {error.strerror}", hint=hint)


def _write_all(file: RawIOBase, piece: bytes) -> None:
    view = memoryview(piece)
    while view:  # a raw file may take less than it is given
        view = view[file.write(view) or 0 :]


def _key(line: dict[str, Any]) -> str | int:
    """By what an answer is found again: the custom_id, or the number of a line that has none."""
    name = line["custom_id"]
    return int(line["error"]["line"]) if name is None else str(name)
