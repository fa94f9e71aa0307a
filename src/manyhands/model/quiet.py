"""Silence around Hugging Face calls, so that nothing but our own words reaches the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from transformers.utils import logging

from manyhands.hub import ProcessWide, no_warnings, silent_hub

_logs: Any = logging  # documented, but without types


@contextmanager
def _without_words() -> Iterator[None]:
    verbosity, had_bars = _logs.get_verbosity(), _logs.is_progress_bar_enabled()
    _logs.set_verbosity(_logs.log_levels["critical"])
    _logs.disable_progress_bar()
    try:
        yield
    finally:
        _logs.set_verbosity(verbosity)
        if had_bars:
            _logs.enable_progress_bar()


_silent_transformers = ProcessWide(_without_words)


@contextmanager
def quiet(*, downloads: bool = False) -> Iterator[None]:
    """No log lines, warnings or progress bars inside; everything as it was before, when all threads have left.

    With `downloads` the bars of files that are being fetched from the hub stay: a first load of a
    large model takes minutes.
    """
    shows = downloads and not are_progress_bars_disabled()
    with silent_hub(), no_warnings(), _silent_transformers():
        if not shows:
            yield
            return
        enable_progress_bars()
        try:
            yield
        finally:
            disable_progress_bars()
