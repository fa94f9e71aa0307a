"""Tests that run programs of a model need a way to close them in, which root has with bubblewrap alone.

Where there is none they are skipped with the reason; with MANYHANDS_SANDBOX=required, as in CI, they are not.
"""

from __future__ import annotations

import os

import pytest

from manyhands.errors import InvalidRequest
from manyhands.sandbox import Isolation, find_isolation


def is_required() -> bool:
    """Whether a test that cannot run programs must fail."""
    return os.environ.get("MANYHANDS_SANDBOX") == "required"


def isolation() -> Isolation:
    """The isolation of programs here; the test that asks is skipped where there is none."""
    try:
        return find_isolation()
    except InvalidRequest as error:
        if is_required():
            raise
        pytest.skip(f"{error}; {error.hint}")
