"""A cache of the hub, written by hand: what huggingface_hub finds there needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest


def keep(cache: Path, model: str, files: Mapping[str, str]) -> Path:
    """Put these files of a model into the cache; the folder in which they lie."""
    here = cache / f"models--{model.replace('/', '--')}"
    commit = "0" * 40
    folder = here / "snapshots" / commit
    folder.mkdir(parents=True)
    (here / "refs").mkdir()
    (here / "refs" / "main").write_text(commit)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def use_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all libraries look into this cache, and nowhere else."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    # Some have taken over the name.
    for place in ("constants", "file_download", "_snapshot_download"):
        monkeypatch.setattr(f"huggingface_hub.{place}.HF_HUB_CACHE", str(cache), raising=False)
