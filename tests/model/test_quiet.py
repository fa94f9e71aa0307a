"""Silence inside, and everything as before afterwards."""

from __future__ import annotations

import warnings

import pytest
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from transformers.utils import logging

from manyhands.model.quiet import quiet


def _state() -> tuple[object, ...]:
    return (
        logging.get_verbosity(),
        hub_logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
        are_progress_bars_disabled(),
    )


@pytest.mark.parametrize("downloads", [False, True])
def test_nothing_is_said_and_everything_is_put_back(
    downloads: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    before = _state()

    def shout() -> None:
        with quiet(downloads=downloads):
            logging.get_logger("transformers.shouting").error("transformers shouts")
            hub_logging.get_logger("huggingface_hub.shouting").error("the hub shouts")
            warnings.warn("python shouts", stacklevel=1)
            assert are_progress_bars_disabled() == (not downloads)
            raise KeyError("out")

    with pytest.raises(KeyError):
        shout()
    assert capfd.readouterr() == ("", "")
    assert _state() == before
