"""Files that are there as a whole or not at all.

A disk may be full, and a command may be interrupted: what stood in a file's place then still stands there.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which is put in its place at the end; removed where anything fails.

    Its bytes are on the disk before that: some disks tell only then that they are full, and a power cut would leave an empty
    file. Raises OSError as the system has it, with `path` as its file name.
    """
    place = path.resolve()
    try:
        number, name = tempfile.mkstemp(
            prefix=f".{place.name}.", suffix=place.suffix, dir=place.parent
        )
        os.close(number)
        fresh = Path(name)
        try:
            yield fresh
            bring_to_disk(fresh)
            fresh.chmod(_mode_of(place))
            os.replace(fresh, place)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def whole_files(folder: Path, last: Sequence[str] = ()) -> Iterator[Path]:
    """A folder within `folder` to write files to, which are put in their places at the end; where anything fails none of them is.

    The `last` of them, by their names, come behind the others: a file that a reader looks for first, say. Files of these names
    that were there before are replaced. One writer at a time; what a killed one has left is removed. Raises OSError as the system
    has it.
    """
    beside = folder / ".unfinished"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir()
        yield beside
        files = [path.relative_to(beside) for path in beside.rglob("*") if not path.is_dir()]
        for file in files:
            bring_to_disk(beside / file)
        for file in sorted(files, key=lambda file: (str(file) in last, file)):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(beside / file, folder / file)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def bring_to_disk(file: Path) -> None:
    """Wait until the disk has all bytes of a file. OSError where it has not, which a file's writer need not have been told."""
    number = os.open(file, os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_whole(path: Path, text: str) -> None:
    """Put a text in the place of a file, in UTF-8 and with its line ends as they are; never half of it. OSError as `whole_file`."""
    with whole_file(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="")


def _mode_of(place: Path) -> int:
    """Of the file that is there, or of one that this process makes."""
    if place.exists():
        return stat.S_IMODE(place.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
