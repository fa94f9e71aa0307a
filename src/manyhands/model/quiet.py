"""Silence around Hugging Face calls, so that nothing but our own words reaches the terminal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
from transformers.utils import logging

from manyhands.hub import silent_hub

_logs: Any = logging  # documented, but without types


@contextmanager
def quiet(*, downloads: bool = False) -> Iterator[None]:
    """No log lines, warnings or progress bars inside; everything as it was before, afterwards.

    With `downloads` the bars of files that are being fetched from the hub stay: a first load of a
    large model takes minutes.
    """
    shows = downloads and not are_progress_bars_disabled()
    verbosity, had_bars = _logs.get_verbosity(), _logs.is_progress_bar_enabled()
    with silent_hub(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _logs.set_verbosity(_logs.log_levels["critical"])
        _logs.disable_progress_bar()
        if shows:
            enable_progress_bars()
        try:
            yield
        finally:
            _logs.set_verbosity(verbosity)
            if had_bars:
                _logs.enable_progress_bar()
