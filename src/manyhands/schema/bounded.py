"""Small files of a user, read up to a bound: a path may name a device that has no end."""

from __future__ import annotations

import errno
from pathlib import Path

from manyhands.errors import InvalidRequest

MOST_BYTES = 16 << 20  # of words, recipes and keys: the longest ones have some kilobytes


def path_of(given: object, what: str) -> Path:
    """The path that names a file or a folder. Raises InvalidRequest for what is none; `what` it was to name."""
    if not isinstance(given, str | Path):
        raise InvalidRequest(
            f"a {type(given).__name__} was given as {what}; expected a path",
            hint="give it as a text",
        )
    return Path(given)


def read_small(path: Path, most: int = MOST_BYTES) -> bytes:
    """All bytes of a file. Raises OSError where there is none or can be none, or it has more than `most` of them."""
    try:
        with path.open("rb") as opened:
            content = opened.read(most + 1)
    except ValueError as error:  # of a name with a NUL or half a character in it
        raise OSError(errno.EINVAL, str(error)) from error
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return content
