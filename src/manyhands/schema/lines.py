"""One append-only file of JSON lines: traces, answers of a batch, records of an exam, the log of a training.

    ANSWERS = Format("a file of answers", line="an answer", fields=("custom_id",), begins=b'{"custom_id": ')

    with LineFile(path, ANSWERS) as file:
        done = file.resume()              # its lines so far; a torn last line is cut off
        file.append({"custom_id": "a"})   # on the disk when this returns

    read_lines(path, ANSWERS)             # the same lines, and the file stays as it is

Contract:

- **All or nothing.** `append` adds all of its lines or none. If a write fails (a full disk, Ctrl-C), the
  piece that did fit is taken away at once, and the lines before it stay.
- **A kill at any moment costs at most one `append`.** It may leave a last line without its line feed. That
  line is *torn*: `read_lines` leaves it out, `resume` cuts it off, `num_torn` says how long it was.
- **Only files of this format are touched.** Before anything is changed every line is checked: JSON, an
  object, the fields of the format, the header. A file of gigabytes that is something else is refused by
  its first line.
- **A file is there.** Of one that was removed while it is open, `append` says so: lines that go nowhere would be lost in silence.
  One that is new and has got no line is not left behind.
- **One writer.** The open file is locked (`filelock`, so on Windows too) until it is closed or its process
  ends. Readers need no lock.

A format may have a header: a first line of the kind "header" with the version of the format (`schema`) and
the facts that all lines depend on. A file with lines goes on only with the header it was begun with, except
for the facts in `PASSING`. A header without lines is written anew.

How durable a line is, is a choice of the file: `sync=True` waits until the disk has it (fsync), which a power
cut does not undo; `sync=False` hands it to the operating system, which a kill of the process does not undo.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from filelock import lock_descriptor

from manyhands.errors import NO_ROOM, InvalidRequest, ManyhandsError, OutputFailed, place_or_room

Line = dict[str, Any]
PASSING = frozenset({"date", "command", "versions"})  # facts that may differ between two starts
NOT_OPENED = "give a file that you may write, in a folder that exists; nothing was written"
_LONGEST = 1 << 30  # bytes of a line
_LONGEST_OF_OTHERS = 1 << 20  # bytes that are read of a line that does not begin with a brace
_BEFORE_A_BRACE = b"\xef\xbb\xbf \t\r"
_TOO_LONG = "is longer than any line may be"


@dataclass(frozen=True)
class Format:
    """The kind of the lines of a file.

    `name` and `line` are the words of errors: "a trace", "a line of a trace". Every line has the `fields`,
    and `begins` is how the first line begins as this program writes it; without a header, every line.
    `schema` is the version that the header names; None: there is no header. A file that cannot be read
    raises `error` with the `hint`, or with `hint_of_first` where its first line is no header: it is another file then.
    """

    name: str
    line: str
    fields: tuple[str, ...]
    begins: bytes
    schema: int | None = None
    error: type[ManyhandsError] = InvalidRequest
    hint: str = ""
    hint_of_first: str = ""

    def malformed(self, path: Path | str, number: int, reason: str) -> ManyhandsError:
        """The complaint about one line; they count from 1, the header included."""
        hint = (number == 1 and self.hint_of_first) or self.hint
        return self.error(f"line {number} of {str(path)!r} {reason}", hint=hint)

    def checked(self, path: Path | str, number: int, read: Callable[[], Any]) -> Any:
        """A line as `read` returns it; its complaint, if it has one, names the place."""
        try:
            return read()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            is_missing = isinstance(error, KeyError)
            reason = f"the field {error} is missing" if is_missing else str(error)
            raise self.malformed(path, number, f"is not {self.line}: {reason}") from error

    def check_header(self, line: Mapping[str, Any], source: str) -> None:
        """Raise `error` if the first line of `source` is not a header that this version reads."""
        kind, schema = line.get("kind"), line.get("schema")
        if kind != "header" or schema != self.schema:
            raise self.error(
                f"{source} begins with {kind!r}, schema {schema!r}; "
                f"expected the header of {self.name}, schema {self.schema}",
                hint="The file is something else, or comes from another version of manyhands.",
            )

    def parse(self, raw: bytes, path: Path | str, number: int) -> Line:
        """One line, checked as far as the format goes."""
        try:
            line = json.loads(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise self.malformed(path, number, "is not text (UTF-8)") from error
        except (ValueError, RecursionError) as error:  # also numbers and nestings beyond measure
            reason = getattr(error, "msg", str(error))
            raise self.malformed(path, number, f"is not JSON: {reason}") from error
        if not isinstance(line, dict) or not all(name in line for name in self.fields):
            raise self.malformed(path, number, f"is not {self.line}")
        if number == 1 and self.schema is not None:
            self.check_header(line, repr(str(path)))
        return line


def read_lines(path: Path | str, format: Format) -> list[Line]:
    """The whole lines of a file, its header first; the file stays as it is, and may be a pipe.

    Raises InvalidRequest for a file that cannot be read, the format's error for one that is something else
    or holds no whole line.
    """
    given: object = path
    if not isinstance(
        given, str | os.PathLike
    ):  # a number would be an open file of somebody else's
        raise InvalidRequest(
            f"a {type(given).__name__} was given as a file; expected its path",
            hint=f"give that of {format.name} (JSONL)",
        )
    try:
        with open(path, "rb") as file:
            lines, torn = _read(file, format, path)
    except (OSError, ValueError) as error:  # of a name with a NUL in it
        raise InvalidRequest(
            f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}",
            hint=f"give {format.name} (JSONL)",
        ) from error
    if not lines:
        reason = "holds no whole line" if _fits(torn, format.begins) else f"is not {format.name}"
        hint = format.hint_of_first or format.hint
        raise format.error(f"{str(path)!r} {reason}", hint=hint)
    return lines


def raw_lines(path: Path, name: str) -> Iterator[tuple[int, bytes]]:
    """The lines of somebody else's file, with their numbers, for a reader that takes them one by one.

    `name` says in errors what the file is to hold. Raises InvalidRequest if it cannot be read, or has a line
    beyond measure.
    """

    def too_long(number: int) -> InvalidRequest:
        return InvalidRequest(f"line {number} of {str(path)!r} {_TOO_LONG}", hint=f"give {name}")

    try:
        with path.open("rb") as file:
            yield from _pieces(file, too_long)
    except OSError as error:
        raise InvalidRequest(
            f"{str(path)!r} cannot be read: {error.strerror or error}", hint=f"give {name}"
        ) from error


class LineFile:
    """A file of JSON lines, open for appending by this process alone. See the head of this module.

    `sync`: a line is on the disk when `append` returns. `elsewhere` is what a user can do to write another
    file, in the words of the command ("choose another --label"), for hints. `make_folder` makes the folders
    above it. `devices` allows what is no regular file, such as a pipe; it can be appended to, not resumed.

    Raises OutputFailed if the file cannot be written, InvalidRequest if another run is writing to it.
    """

    def __init__(
        self,
        path: Path,
        format: Format,
        *,
        sync: bool = True,
        elsewhere: str = "",
        make_folder: bool = False,
        devices: bool = False,
    ) -> None:
        self.path, self.format = path, format
        self.num_torn = 0
        self._sync, self._elsewhere = sync, elsewhere
        self._goes_on = False
        try:
            if make_folder:
                path.parent.mkdir(parents=True, exist_ok=True)
            self.is_new = not path.exists()
            self._file, self.is_regular = _opened(path, devices=devices)
        except OSError as error:
            raise self._failure(error, hint=_not_opened(error)) from error
        try:
            self._lock(self._file)
            found = os.fstat(self._file)
            if self.is_regular and not os.path.samestat(found, path.stat()):
                raise self._taken()  # another run has just put a new file in its place
            if self.is_regular and _takes_output(found):
                raise OSError(errno.EINVAL, "what the command prints goes there, too")
            self._size = found.st_size
            if sync and self.is_new:
                _sync_folder(path.parent)
            self._has_name = found.st_nlink > 0  # there are file systems that count no names
        except BaseException as error:
            os.close(self._file)
            if isinstance(error, OSError):
                raise self._failure(error, hint=_not_opened(error)) from error
            raise

    def resume(self, header: Mapping[str, Any] | None = None) -> list[Line]:
        """The lines of the file, header left out; a torn last line is cut off, a missing header written.

        Raises the format's error for lines that are not of the format, InvalidRequest for another header.
        """
        self._goes_on = True
        own = None if header is None else json.loads(json.dumps(header))  # as a file would say it
        try:
            with self._reader() as file:
                lines, torn = _read(file, self.format, self.path)
        except OSError as error:
            raise self._failure(error) from error
        begins = self.format.begins if own is None or not lines else b'{"'
        if not _fits(torn, begins):
            number = len(lines) + 1
            raise self.format.malformed(self.path, number, f"is not {self.format.line}")
        self.num_torn = len(torn)
        self._size -= len(torn)
        if own is not None:
            found, lines = lines[:1], lines[1:]
            if lines:
                self._compare(found[0], own)
            else:
                self._size = 0
        self.append(*([own] if own is not None and not lines else []))
        return lines

    def append(self, *lines: Mapping[str, Any]) -> None:
        """Add lines, all of them or none. Raises OutputFailed."""
        encoded = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self._check_is_there()
        try:
            self._cut()  # also what an interrupted `append` left
            _write_all(self._file, encoded)
            if encoded and self._sync:
                os.fsync(self._file)
            self._size += len(encoded)  # from here on the lines are there
        except BaseException as error:
            with suppress(OSError):  # the next `append` or start tries again
                self._cut()
            if isinstance(error, OSError):
                raise self._failure(error) from error
            raise

    def keep(self, is_kept: Callable[[Line], bool]) -> None:
        """Take out all other lines, in one move: at any moment the old file is whole, or the new one.

        For formats without a header, after `resume`.
        """
        place = self.path.resolve()
        try:
            with self._reader() as file:
                found = list(file)
            kept = [raw for raw in found if is_kept(json.loads(raw))]
            if len(kept) == len(found):
                return
            number, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
            try:
                os.chmod(name, stat.S_IMODE(os.fstat(self._file).st_mode))
                self._lock(number)
                _write_all(number, b"".join(kept))
                os.fsync(number)
                os.replace(name, place)
                old, self._file, self._size = self._file, number, sum(map(len, kept))
            except BaseException:
                os.close(number)
                Path(name).unlink(missing_ok=True)
                raise
            os.close(old)
            _sync_folder(place.parent)
        except OSError as error:
            raise self._failure(error) from error

    def clear(self) -> None:
        """Take out all lines. Raises OutputFailed."""
        self._size = 0
        self.append()

    def close(self) -> None:
        """Nothing more will be added; others may write from here on."""
        try:
            self._remove_if_empty()
        finally:
            try:
                os.close(self._file)
            except OSError as error:  # some disks tell only now that they are full
                raise self._failure(error) from error

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reader(self) -> BinaryIO:
        """The same open file, from its beginning: where locks are strict, another would not be let in."""
        file = os.fdopen(os.dup(self._file), "rb")
        file.seek(0)
        return file

    def _remove_if_empty(self) -> None:
        """Leave no file behind that is new and has got no line, as where the disk was full from the beginning."""
        if not self.is_new or not self.is_regular or self._size:
            return
        place = self.path.resolve()
        with suppress(OSError):
            found = os.fstat(self._file)
            if not found.st_size and os.path.samestat(found, place.stat()):
                place.unlink()

    def _check_is_there(self) -> None:
        """OutputFailed for a file that was removed meanwhile, by its name or with its folder."""
        if self.is_regular and self._has_name and not os.fstat(self._file).st_nlink:
            again = ", and the same command begins anew" if self._goes_on else ""
            raise OutputFailed(
                f"{str(self.path)!r} was removed while it was written to",
                hint=f"leave it where it is as long as the command runs{self._or_elsewhere}; what it held is gone{again}",
            )

    def _cut(self) -> None:
        """Let the file end behind its last whole line."""
        if not self.is_regular:
            return
        size = os.fstat(self._file).st_size
        if size > self._size:
            os.ftruncate(self._file, self._size)  # making a file shorter needs no room
        self._size = min(size, self._size)

    def _lock(self, file: int) -> None:
        """Have an open file for ourselves. InvalidRequest if another run has it."""
        if not self.is_regular:
            return
        try:
            is_ours = lock_descriptor(file, blocking=False)
        except OSError:  # a file system without locks; there the user has to take care
            return
        if not is_ours:
            raise self._taken()

    def _taken(self) -> InvalidRequest:
        return InvalidRequest(
            f"another run is writing to {str(self.path)!r}",
            hint=f"wait for it{self._or_elsewhere}",
        )

    def _compare(self, found: Line, own: Line) -> None:
        """A file goes on only as it was begun."""
        for key in sorted((found.keys() | own.keys()) - PASSING):
            if found.get(key) != own.get(key):
                there, here = _difference(found.get(key), own.get(key))
                made = f"made with {key} {there}" if key in found else f"made without {key}"
                raise InvalidRequest(
                    f"{str(self.path)!r} was {made}; this run has {here}",
                    hint=f"run it as before to go on{self._or_elsewhere}, or remove the file",
                )

    @property
    def _or_elsewhere(self) -> str:
        return f", {self._elsewhere}" if self._elsewhere else ""

    def _failure(self, error: OSError, *, hint: str = "") -> OutputFailed:
        goes_on = ", and the same command goes on" if self._goes_on else ""
        return OutputFailed(
            f"{str(self.path)!r} cannot be written: {error.strerror or error}",
            hint=hint
            or f"{place_or_room(error)}{self._or_elsewhere}; what was written so far is kept{goes_on}",
        )


def _takes_output(found: os.stat_result) -> bool:
    """Whether stdout or stderr is this file: what is printed would then stand over its lines, or between them."""
    for number in (1, 2):
        with suppress(OSError):  # it is closed
            if os.path.samestat(found, os.fstat(number)):
                return True
    return False


def _not_opened(error: OSError) -> str:
    """The hint where a file cannot be opened: a full disk may lack the room for another name."""
    return f"{place_or_room(error)}; nothing was written" if error.errno in NO_ROOM else NOT_OPENED


def _opened(path: Path, *, devices: bool) -> tuple[int, bool]:
    """A descriptor to append with, and whether it is a regular file."""
    is_device = path.exists() and not path.is_file() and not path.is_dir()
    if is_device and not devices:  # one may be read for ever, and opening a pipe may wait for ever
        raise OSError(errno.EINVAL, "it is not a regular file")
    access = os.O_WRONLY if is_device else os.O_RDWR | os.O_CREAT
    file = os.open(path, access | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    return file, not is_device


def _write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:  # a write may take less than it is given
        view = view[os.write(file, view[: 1 << 20]) :]


def _sync_folder(folder: Path) -> None:
    """Let the disk have the names of a folder, which a file's own fsync does not promise."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folder
        return
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _read(file: BinaryIO, format: Format, path: Path | str) -> tuple[list[Line], bytes]:
    """All whole lines, and the bytes behind the last of them."""
    lines: list[Line] = []
    for number, raw in _pieces(file, lambda number: format.malformed(path, number, _TOO_LONG)):
        if not raw.endswith(b"\n"):
            return lines, raw
        lines.append(format.parse(raw, path, number))
    return lines, b""


def _pieces(
    file: BinaryIO, too_long: Callable[[int], ManyhandsError]
) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers and line feeds. A device without end is left after the first piece of it."""
    number = 0
    while raw := file.readline(_LONGEST_OF_OTHERS):
        number += 1
        longest = _LONGEST_OF_OTHERS
        if raw.lstrip(_BEFORE_A_BRACE).startswith(b"{") and not raw.endswith(b"\n"):
            raw, longest = raw + file.readline(_LONGEST), _LONGEST
        if not raw.endswith(b"\n") and len(raw) >= longest:
            raise too_long(number)
        yield number, raw


def _fits(torn: bytes, begins: bytes) -> bool:
    """Whether a torn piece may be the beginning of such a line; a power cut may leave zeros in its place."""
    torn = torn.rstrip(b"\0")
    return torn[: len(begins)] == begins[: len(torn)]


def _difference(found: Any, own: Any) -> tuple[str, str]:
    """Two values as a user wants to see them: of two objects only what is not the same."""
    if isinstance(found, dict) and isinstance(own, dict):
        keys = sorted(k for k in found.keys() | own.keys() if found.get(k) != own.get(k))
        found, own = ({k: value.get(k) for k in keys} for value in (found, own))
    return _short(found), _short(own)


def _short(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    return written if len(written) <= 120 else f"{written[:117]}..."
