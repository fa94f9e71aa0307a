"""Silence around Hugging Face calls, so that nothing but our own words reaches the terminal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from transformers.utils import logging

_logs: Any = logging  # documented, but without types


@contextmanager
def quiet(*, downloads: bool = False) -> Iterator[None]:
    """No log lines, warnings or progress bars inside; everything as it was before, afterwards.

    With `downloads` the bars of files that are being fetched from the hub stay: a first load of a
    large model takes minutes.
    """
    verbosity, hub_verbosity = _logs.get_verbosity(), hub_logging.get_verbosity()
    had_bars = _logs.is_progress_bar_enabled()
    hub_had_bars = not are_progress_bars_disabled()
    _logs.set_verbosity(_logs.log_levels["critical"])
    hub_logging.set_verbosity(_logs.log_levels["critical"])
    _logs.disable_progress_bar()
    if downloads and hub_had_bars:
        enable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _logs.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if had_bars:
            _logs.enable_progress_bar()
        if hub_had_bars:
            enable_progress_bars()
        else:
            disable_progress_bars()
