"""Files that are there as a whole or not at all.

A disk may be full, and a command may be interrupted: what stood in a file's place then still stands there.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which is put in its place at the end; removed where anything fails.

    Raises OSError as the system has it, with `path` as its file name.
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
            fresh.chmod(_mode_of(place))
            os.replace(fresh, place)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


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
