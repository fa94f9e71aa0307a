"""Files and folders that a user may not read, where the tests run as root too: inside, they run as nobody."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NOBODY = 65534
needs_modes = pytest.mark.skipif(sys.platform == "win32", reason="modes are those of Unix")


@contextmanager
def open_folder() -> Iterator[Path]:
    """A new folder that every user may list and enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        os.chmod(name, 0o755)


@contextmanager
def stranger() -> Iterator[None]:
    """Inside, modes forbid what they say: to root they forbid nothing."""
    if os.geteuid():
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
