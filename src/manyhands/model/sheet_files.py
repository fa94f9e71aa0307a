"""Sheets as files: one of safetensors each, written and read by threads, in a folder of bounded size.

    DIR/<digest of the model>-v<version of the format>/<name of the sheet>.safetensors

The first digest stands for the weights, their dtype and the form in which numbers are stored
(`model/shelf.py`), the second for the tokens and everything before them (`cache/sheets.py`). Neither can be read
off a file; and another user learns nothing, for the folder and its files belong to one.

A file is written beside its place, brought to the disk and renamed, so a kill leaves a whole sheet or none. Each
tensor has its checksum in the header. What is torn, damaged, or says that it is something else, is refused with
a warning that names it; it counts as not there, and the next sheet of that name takes its place. Several processes
may share a folder: what is remembered about it is looked at again before anything rests on it, but for one thing. Which sheets
there are, for the limit, is heard of a large folder a little late (`_Kept`).

A GPU reads a prompt again at gigabytes of keys a second, so a sheet is worth its file only if the host touches every byte once:
it is read to where a GPU can fetch it, and checked there (`model/landings.py`), or at the speed of memory here. (The
library of the format copies twice.)

How much a reader asks for at once was measured both ways: in pieces of a quarter of a megabyte sixteen threads read a
fifth as fast as in one (the suspect is Python's lock, which they hand to each other). Where every processor copies whole
files, the engine's thread wakes up milliseconds late (the suspect is the system, which hardly interrupts a copy). Pieces
of four megabytes have neither fault, and a quarter of the processors reads nothing.

The sheets that were used least recently are removed when the folder would grow beyond its limit. Of one chain the
last sheets are the oldest, since without those before them they are never found: a chain has one time, whenever its
sheets are written. Folders of another version of the format, older or newer, are another release's, which may be in
use: they are told once in the log, are not read and not counted, and stay. A folder without a version is of the second
one, which did not name itself at first: that of the model is renamed, others count and go like the rest. Files with
other names are somebody else's, are not counted, and stay: a folder may be given in which models lie, too.
"""

from __future__ import annotations

import errno
import heapq
import json
import logging
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from manyhands.cache.sheets import ShelfCounts
from manyhands.errors import OutputFailed, counted, place_or_room
from manyhands.model.host_buffers import HostBuffers, at_once
from manyhands.model.landings import Landing, Landings, SheetPart, checksum

LOG = logging.getLogger("manyhands.cache")
VERSION = "2"  # of what stands in a file, and of the folder that it lies in
_UNNAMED_VERSION = "2"  # of folders whose names tell none
_SUFFIX, _UNFINISHED = ".safetensors", ".part"
# Digests, which nothing else in the folder has for a name.
_MODEL, _SHEET = re.compile("[0-9a-f]{32}(?:-v([0-9]+))?"), re.compile("[0-9a-f]{64}")
_FULL = (errno.ENOSPC, errno.EDQUOT)  # of these there is more where another file goes
_STALE = 600  # seconds without a byte after which an unfinished file is a dead writer's
_MOST_READERS = 16
_AT_ONCE = 4 << 20  # bytes that a reader asks for
_BEGINNING = 0.01  # seconds for which each of them has something to do, so that it is begun
_MOST_AHEAD = 48  # sheets of all fetches that are read ahead
_HEADER = 8  # bytes that tell how long the header is
_MOST_HEADER = 1 << 16  # bytes, as a rule
_MUCH_TOO_LONG = 1 << 20  # bytes beyond what a sheet has: such a file is none, and is not read
_MOST_PIECES = 128  # of the host's memory; short sheets have enough with fewer bytes
# Of a file that is torn, damaged or something else, or for which the host has no memory.
_UNUSABLE = (
    *(OSError, ValueError, KeyError, TypeError, OverflowError),
    *(RecursionError, MemoryError),
)
# As safetensors calls them.
_DTYPES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int8: "I8",
    torch.int64: "I64",
}
_FEW_TO_BEGIN = 4  # times that folders are made, with a sheet less each time
_FEW = 1000  # sheets of a folder that is looked at whenever one is written
_SELDOM = 20  # times as long as a look took lie between two of a larger folder
_CLOCKS = 60 * 10**9  # nanoseconds by which clocks of machines that share a folder may differ
_ORDER = 1000  # nanoseconds by which a sheet is older than the one before it


class Form(NamedTuple):
    """The shape and dtype that a tensor of a sheet must have."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Taken:
    """Tensors on their way to a file. `arrived` waits until they are in the host's memory, in this `buffer` if in any."""

    tensors: Mapping[str, Tensor]
    arrived: Callable[[], object]
    buffer: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class _Read(NamedTuple):
    """The tensors of a file: views of its bytes, or of a landing."""

    tensors: dict[str, Tensor]
    content: Tensor | None  # None: nothing refers to it
    landing: Landing | None = None


class SheetFiles:
    """The sheets of one model in a folder that other models and processes may use too."""

    def __init__(
        self,
        folder: Path,
        model: str,
        forms: Mapping[str, Form],
        *,
        limit: int,
        most_waiting: int = 2 << 30,
        pin: bool = False,
        device: torch.device | None = None,
        most_landed: int = 0,
        on_host: Collection[str] = (),
    ) -> None:
        """`limit` bounds the bytes of the whole folder, `most_waiting` those of copies that are not written yet.

        `pin`: what is read is brought where a GPU can fetch it by itself; `most_waiting` bytes of such memory are
        kept for it. Sheets are checked on `device`, in `most_landed` bytes of its memory, and found there, but for
        the tensors that are `on_host`. Raises OutputFailed for a folder that cannot be made or written to.
        """
        self.folder, self.model, self.forms = folder, model, forms
        self.limit, self.most_waiting = limit, most_waiting
        self._own = folder / f"{model}-v{VERSION}"
        self._counts = ShelfCounts()
        self._lock = Lock()  # of what follows; threads change it
        self._waiting: dict[str, int] = {}  # bytes of the sheets that are being written
        self._refused: set[str] = set()
        self._is_full = False  # the last sheet could not be written
        self._is_short = False  # the disk has been full before the limit was reached
        self._reading: dict[str, Future[_Read | None]] = {}
        self._done: dict[str, Callable[[], object]] = {}  # of sheets that a device fetches
        _make(self._own, folder, model)
        self._kept = _Kept(folder)  # the writer's alone
        self._size = size = _MOST_HEADER + sum(form.num_bytes for form in forms.values())
        count = min(_MOST_PIECES, most_waiting // size) if pin else 0
        self.buffers = HostBuffers(size, count, pin=pin)
        self.landings = Landings(
            size, min(_MOST_AHEAD, most_landed // size), device or torch.device("cpu")
        )
        self._on_host = on_host
        self._held = {key: (_DTYPES[form.dtype], form.shape) for key, form in forms.items()}
        # A quarter of the pieces is left to what is saved meanwhile.
        self._most_ahead = max(1, min(_MOST_AHEAD, 3 * (most_waiting // size) // 4))
        num_readers = max(2, min(_MOST_READERS, 3 * (os.cpu_count() or 1) // 4))
        # Both are joined at the end of the interpreter: what was taken is written.
        self._writer = ThreadPoolExecutor(1, "manyhands-sheets-out")
        self._readers = ThreadPoolExecutor(num_readers, "manyhands-sheets-in")
        # They begin now, and not while a run waits for its prompt, or in a pass, which has no place for an error of the system.
        for pool in (self._writer, *[self._readers] * num_readers):
            pool.submit(time.sleep, _BEGINNING)

    @property
    def counts(self) -> ShelfCounts:
        """Counts of the reads and writes made so far."""
        return self._counts

    def count(self, **more: int) -> None:
        """Add to the counts."""
        with self._lock:
            known = self._counts
            self._counts = replace(
                known, **{name: getattr(known, name) + n for name, n in more.items()}
            )

    # -- what is there ---------------------------------------------------------------------------

    def num_saved(self, names: Sequence[str]) -> int:
        """How many of the first sheets are there. They count as used."""
        now = time.time_ns()
        for number, name in enumerate(names):
            if name in self._refused or not _touch(self._path(name), now - _ORDER * number):
                return number
        return len(names)

    def unsaved(self, names: Sequence[str]) -> list[int]:
        """The numbers of those that are neither there nor on their way."""
        return [
            number
            for number, name in enumerate(names)
            if name not in self._waiting
            # A question of `os.path` has an answer also where the folder was shut meanwhile.
            and (name in self._refused or not os.path.isfile(self._path(name)))
        ]

    # -- writing ---------------------------------------------------------------------------------

    def has_room(self, num_bytes: int) -> bool:
        """Whether a copy of so many bytes may wait to be written."""
        with self._lock:
            return sum(self._waiting.values()) + num_bytes <= self.most_waiting

    def write(self, name: str, taken: Taken, order: int, used: int) -> None:
        """Have a sheet written. `order` is its number in the chain, which was `used` at these nanoseconds of `time.time_ns`."""
        with self._lock:
            self._waiting[name] = taken.num_bytes
        self._writer.submit(self._write, name, taken, used - _ORDER * order)

    def flush(self) -> None:
        """Wait until all that was taken is written."""
        self._writer.submit(lambda: None).result()

    def _write(self, name: str, taken: Taken, written_at: int) -> None:
        try:
            taken.arrived()
            sums = {key: checksum(_bytes(tensor)) for key, tensor in taken.tensors.items()}
            told = {"version": VERSION, "model": self.model, "sheet": name, **sums}
            parts = _parts(taken.tensors, told)
            size = sum(map(len, parts))
            if self._make_room(size, written_at):
                self._put(name, parts, written_at)
                self._kept.enter(str(self._path(name)), size, written_at)
                self.count(bytes_written=size)
                self._refused.discard(name)
                self._is_full = False
            else:
                self.count(sheets_skipped=1)
        except OSError as error:
            self.count(sheets_skipped=1)
            if not self._is_full:  # once, until it goes again
                self._is_full = True
                LOG.warning("%s: a sheet cannot be saved: %s", self._own, error.strerror or error)
        except Exception:  # a thread that dies would leave every later sheet unwritten, in silence
            self.count(sheets_skipped=1)
            LOG.exception("%s: a sheet cannot be saved", self._own)
        finally:
            if taken.buffer is not None:
                self.buffers.give_back(taken.buffer, taken.arrived)
            with self._lock:
                self._waiting.pop(name, None)

    def _put(self, name: str, parts: Sequence[memoryview], written_at: int) -> None:
        """Write a sheet; on a disk that is full, in the place of those that were used less recently."""
        size, freed = sum(map(len, parts)), 0
        while True:
            try:
                self._put_once(name, parts, written_at)
                return
            except OSError as error:
                # Where more than it takes is free by now, somebody else takes that, and the others would go in vain.
                if error.errno not in _FULL or freed > 2 * size:
                    raise
                if (removed := self._kept.remove_oldest(written_at)) is None:
                    raise
            freed += removed
            self.count(sheets_dropped=removed > 0)
            if removed and not self._is_short:  # once
                self._is_short = True
                LOG.warning(
                    "%s: the disk is full with %d bytes of sheets, of the %d that the cache may take; "
                    "the sheets that were used least recently go",
                    *(self.folder, self._kept.num_bytes + removed, self.limit),
                )

    def _put_once(self, name: str, parts: Sequence[memoryview], written_at: int) -> None:
        _make_folders(self.folder, self._own)  # once more where somebody has emptied the cache
        number, place = tempfile.mkstemp(_UNFINISHED, ".", self._own)  # for this user alone
        try:
            with open(number, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.utime(place, ns=(written_at, written_at))
            os.replace(place, self._path(name))
        except BaseException:
            with suppress(OSError):
                os.unlink(place)
            raise

    def _make_room(self, num_bytes: int, used: int) -> bool:
        """Remove the sheets that were used least recently until so many bytes fit; False: all that are left were used behind `used`."""
        if num_bytes > self.limit:
            return False
        self._kept.look()
        while self._kept.num_bytes + num_bytes > self.limit:
            if (removed := self._kept.remove_oldest(used)) is None:
                return False
            self.count(sheets_dropped=removed > 0)
        return True

    # -- reading ---------------------------------------------------------------------------------

    def read_ahead(self, names: Sequence[str]) -> None:
        """Have these read, those that are not being read already.

        The first one in any case, or two fetches could wait for each other; more of them as far as there is room.
        """
        for number, name in enumerate(names):
            if name in self._reading:
                continue
            if number and len(self._reading) >= self._most_ahead:
                return
            self._reading[name] = self._readers.submit(self._read, name)

    def is_read(self, name: str, patience: float) -> bool | None:
        """Whether it can be taken; None: not yet, after `patience` seconds. False: it never can be."""
        try:
            return self._reading[name].result(patience) is not None
        except NotYet:
            return None

    def read(self, name: str) -> dict[str, Tensor]:
        """The tensors of a sheet that `is_read`; it stays until it is forgotten."""
        found = self._reading[name].result()
        assert found is not None, "it was refused"
        return found.tensors

    def is_fetched(self, name: str, done: Callable[[], object]) -> None:
        """A device copies what was read of a sheet; `done` waits until it has."""
        self._done[name] = done

    def forget(self, names: Sequence[str]) -> None:
        """Drop what was read of these."""
        for name in names:
            if (reading := self._reading.pop(name, None)) is not None:
                done = self._done.pop(name, at_once)
                reading.cancel()
                reading.add_done_callback(partial(self._give_back, done))

    def _give_back(self, done: Callable[[], object], reading: Future[_Read | None]) -> None:
        if reading.cancelled() or reading.exception() is not None:
            return
        if (found := reading.result()) is None:
            return
        if found.content is not None:
            self.buffers.give_back(found.content, done)
        if found.landing is not None:
            self.landings.give_back(found.landing, done)

    def _read(self, name: str) -> _Read | None:
        path, content = self._path(name), None
        try:
            content = self._content(path)
            size = len(content)
            read = self._checked(name, content)
            if read.content is None:
                self.buffers.give_back(content)
        except FileNotFoundError:  # removed by another process just now
            return None
        except _UNUSABLE as error:
            self._refused.add(name)
            self.count(sheets_refused=1)
            LOG.warning("%s is not used, and its tokens are fed: %s", path, error)
            if content is not None:
                self.buffers.give_back(content)
            return None
        self.count(bytes_read=size)
        return read

    def _content(self, path: Path) -> Tensor:
        """The bytes of a file, where a GPU can fetch them if one will."""
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEADER:
                raise ValueError(f"it has {counted(size, 'byte')}")
            if size > self._size + _MUCH_TOO_LONG:
                raise ValueError(f"it has {size} bytes; expected about {self._size}")
            content = self.buffers.take(size)
            left: memoryview = content.numpy().data
            try:
                while left and (num_read := file.readinto(left[:_AT_ONCE])):
                    left = left[num_read:]
                if left:
                    raise ValueError(f"it ends {counted(len(left), 'byte')} early")
            except BaseException:
                self.buffers.give_back(content)
                raise
        return content

    def _checked(self, name: str, content: Tensor) -> _Read:
        """The tensors of a file that is what it should be; ValueError if it is not."""
        whole: np.ndarray = content.numpy()
        parts, told = self._parts_of(name, whole)
        if (landed := self._landed(content, parts, told)) is not None:
            return landed
        for key, part in parts.items():
            _compare(key, told, checksum(whole[part.begin : part.end]))
        return _Read({key: part.of(content) for key, part in parts.items()}, content)

    def _landed(
        self, content: Tensor, parts: dict[str, SheetPart], told: Mapping[str, object]
    ) -> _Read | None:
        """The sheet on the device, where it is checked; None where there is no room. ValueError: it is damaged."""
        if (landing := self.landings.take()) is None:
            return None
        try:
            if not landing.fits(content, parts):
                self.landings.give_back(landing)
                return None
            tensors, sums = landing.bring(content, parts)
            whole: np.ndarray = content.numpy()
            for key, part in parts.items():
                _compare(key, told, checksum(whole[part.begin : part.end], sums[key]))
            here = {key: parts[key].of(content).clone() for key in self._on_host}
        except torch.OutOfMemoryError:  # a reduction wants a little memory of its own
            self.landings.give_back(landing)
            return None
        except BaseException:
            self.landings.give_back(landing)
            raise
        return _Read({**tensors, **here}, None, landing)

    def _parts_of(
        self, name: str, content: np.ndarray
    ) -> tuple[dict[str, SheetPart], Mapping[str, object]]:
        """Where the tensors of a sheet lie in its bytes, and what else its header tells, its checksums among that."""
        first = _HEADER + int.from_bytes(content[:_HEADER].tobytes(), "little")
        header = json.loads(content[_HEADER:first].tobytes())
        told = header.pop("__metadata__", None) if isinstance(header, dict) else None
        if not isinstance(told, dict):
            raise ValueError("its header is not that of a sheet")
        wanted = {"version": VERSION, "model": self.model, "sheet": name}
        for key, value in wanted.items():
            if told.get(key) != value:
                raise ValueError(f"its {key} is {told.get(key)!r}; expected {value!r}")
        held = {key: (entry["dtype"], tuple(entry["shape"])) for key, entry in header.items()}
        if held != self._held:
            raise ValueError(f"it holds {held}; expected {self._held}")
        parts = {}
        for key, form in self.forms.items():
            begin, end = (first + int(at) for at in header[key]["data_offsets"])
            is_within = first <= begin <= end <= len(content) and not begin % form.dtype.itemsize
            if not is_within or end - begin != form.num_bytes:
                raise ValueError(
                    f"{key!r} has bytes {begin} to {end} of {len(content)}; expected {form.num_bytes} of them"
                )
            parts[key] = SheetPart(begin, end, form.dtype, form.shape)
        return parts, told

    def _path(self, name: str) -> Path:
        return self._own / f"{name}{_SUFFIX}"


def _make(own: Path, folder: Path, model: str) -> None:
    """Make the folders, for this user alone, and remove what dead writers have left."""
    if VERSION == _UNNAMED_VERSION:
        # Where both are there, the one without a version is counted, and goes as its sheets are the least recently used.
        with suppress(OSError):
            (folder / model).rename(own)
    try:
        _try_out(own, folder)
    except OSError as error:
        raise OutputFailed(
            f"the cache {str(folder)!r} cannot be written to: {error.strerror}",
            hint=place_or_room(error),
        ) from error
    _sweep(folder)
    if others := _others(folder):
        LOG.warning(
            "%s has folders of sheets of another format than version %s, which are not read, counted or removed: %s. "
            "Remove them if no other release of manyhands uses them",
            *(folder, VERSION, ", ".join(others)),
        )


def _try_out(own: Path, folder: Path) -> None:
    """Make the folders and a file in them. The disk may be full of sheets alone: then a few that were used least recently go."""
    kept = _Kept(folder)
    for left in reversed(range(_FEW_TO_BEGIN)):
        try:
            _make_folders(folder, own)
            with tempfile.TemporaryFile(dir=own):
                return
        except OSError as error:
            if error.errno not in _FULL or not left:
                raise
            kept.look()
            if kept.remove_oldest(time.time_ns()) is None:
                raise


def _version_of(folder: str) -> str | None:
    """The version of the format of a folder of sheets, by its name; None for another folder."""
    found = _MODEL.fullmatch(folder)
    return None if found is None else found[1] or _UNNAMED_VERSION


def _others(folder: Path) -> list[str]:
    """The names of folders that hold sheets of another version."""
    names = {
        path.parent.name for path in folder.glob(f"*/*{_SUFFIX}") if _SHEET.fullmatch(path.stem)
    }
    return sorted(name for name in names if _version_of(name) not in (None, VERSION))


def _sweep(folder: Path) -> None:
    """Remove what dead writers of any model have left in this format: no limit counts it, and a server may be killed again and again."""
    for entry in _entries_of_models(folder):
        _remove_if_dead(entry)


def _remove_if_dead(entry: os.DirEntry[str]) -> None:
    """Remove an unfinished file to which nothing was written for long."""
    if entry.name.startswith(".") and entry.name.endswith(_UNFINISHED):
        with suppress(OSError):
            if os.stat(entry.path).st_mtime < time.time() - _STALE:
                os.unlink(entry.path)


def _make_folders(*folders: Path) -> None:
    for each in folders:
        each.mkdir(mode=0o700, parents=True, exist_ok=True)


class _Kept:
    """The sheets of this format in a folder, of every model and process, as they were seen last: for its limit.

    To look at ten thousand files for each that is written took 0.28 s. Each is looked at once, and once more before it goes; what
    other processes have written or removed is seen by the names alone. In a folder of many sheets these are read so seldom that it
    takes a twentieth of the time at most. So the limit hears of other processes' sheets as much later.
    """

    def __init__(self, folder: Path) -> None:
        self.num_bytes = 0  # of all of them
        self._folder = folder
        self._known: dict[str, tuple[int, int]] = {}  # by their paths: when it was used, its bytes
        self._order: list[tuple[int, str]] = []  # a heap of these; some are out of date
        self._looked_at, self._took = -math.inf, 0.0  # seconds: when, and how long

    def look(self) -> None:
        """Look at the folder anew, unless it holds many sheets and was looked at just now; remove what dead writers have left."""
        begun = time.monotonic()
        if len(self._known) > _FEW and begun - self._looked_at < _SELDOM * self._took:
            return
        left = dict.fromkeys(self._known)
        for entry in _entries_of_models(self._folder):
            name, end = os.path.splitext(entry.name)
            if entry.path in self._known:
                del left[entry.path]
            elif end == _SUFFIX and _SHEET.fullmatch(name):
                with suppress(FileNotFoundError):  # another process was faster
                    told = os.stat(entry.path)
                    self.enter(entry.path, told.st_size, _used(told))
            else:
                _remove_if_dead(entry)
        for path in left:
            self._forget(path)
        self._looked_at = time.monotonic()
        self._took = self._looked_at - begun

    def enter(self, path: str, num_bytes: int, used: int) -> None:
        """Take note of a sheet: its bytes, and when it was used, in nanoseconds."""
        self._forget(path)
        self._known[path] = used, num_bytes
        self.num_bytes += num_bytes
        heapq.heappush(self._order, (used, path))
        if len(self._order) > 2 * len(self._known) + _FEW:
            self._order = [(used, path) for path, (used, _) in self._known.items()]
            heapq.heapify(self._order)

    def _forget(self, path: str) -> None:
        _, num_bytes = self._known.pop(path, (0, 0))
        self.num_bytes -= num_bytes

    def remove_oldest(self, before: int) -> int | None:
        """Remove the sheet that was used least recently; its bytes. 0: another process has removed it.

        None: there is none that was used `before` (nanoseconds).
        """
        while self._order:
            used, path = self._order[0]
            known, num_bytes = self._known.get(path, (None, 0))
            if known == used:
                try:
                    if (since := _used(os.stat(path))) > used:
                        self.enter(path, num_bytes, since)
                        continue
                    if used >= before:
                        return None
                    os.unlink(path)
                except FileNotFoundError:
                    self._forget(path)
                    return 0
                self._forget(path)
                return num_bytes
            heapq.heappop(self._order)
        return None


def _used(told: os.stat_result) -> int:
    """When a sheet was used, in nanoseconds; 0: it is dated in the future, by a clock that was put right since."""
    used = told.st_mtime_ns
    return used if used <= time.time_ns() + _CLOCKS else 0


def _entries_of_models(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of the folders of this format, of every model."""
    for own in _entries(folder):
        if _version_of(own.name) == VERSION:
            yield from _entries(own.path)


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """The entries of a folder; none of one that is gone, or shut, or is a file."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _touch(path: Path, now: int) -> bool:
    """Whether the file is there; it was used `now`, in nanoseconds."""
    try:
        os.utime(path, ns=(now, now))
    except FileNotFoundError:
        return False
    except OSError:  # of a disk that may only be read by now, say: what it holds can be used
        return os.path.isfile(path)
    return True


def _parts(tensors: Mapping[str, Tensor], told: Mapping[str, str]) -> list[memoryview]:
    """The bytes of a file: how long its header is, the header, and the tensors where they lie."""
    header: dict[str, object] = {"__metadata__": told}
    contents, end = [], 0
    for key, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        begin, end = end, end + tensor.nbytes
        form = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        header[key] = {**form, "data_offsets": [begin, end]}
        contents.append(_bytes(tensor).data)
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % _HEADER)  # the tensors begin where words of 64 bits do
    return [memoryview(len(words).to_bytes(_HEADER, "little") + words), *contents]


def _bytes(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor on the host, one behind the other."""
    found: np.ndarray = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return found


def _compare(key: str, told: Mapping[str, object], found: str) -> None:
    """ValueError if the checksum of a tensor is not what its file tells."""
    if told.get(key) != found:
        raise ValueError(f"the checksum of {key!r} is another one")
