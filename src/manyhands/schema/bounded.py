"""Small files of a user, read up to a bound: a path may name a device that has no end."""

from __future__ import annotations

import errno
from pathlib import Path

MOST_BYTES = 16 << 20  # of words, recipes and keys: the longest ones have some kilobytes


def read_small(path: Path, most: int = MOST_BYTES) -> bytes:
    """All bytes of a file. Raises OSError where there is none, or it has more than `most` of them."""
    with path.open("rb") as opened:
        content = opened.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return content
