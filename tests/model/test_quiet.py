"""Silence inside, and everything as before afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from transformers.utils import logging

from manyhands.hub import ProcessWide, silent_hub
from manyhands.model.quiet import quiet


def _state() -> tuple[object, ...]:
    return (
        warnings.filters[:],
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


BLOCKS: list[Callable[[], AbstractContextManager[None]]] = [
    quiet,
    lambda: quiet(downloads=True),
    silent_hub,
]


@pytest.mark.parametrize("one", BLOCKS, ids=["quiet", "downloads", "hub"])
@pytest.mark.parametrize("other", BLOCKS, ids=["quiet", "downloads", "hub"])
def test_two_threads_may_leave_in_the_order_in_which_they_came(
    one: Callable[[], AbstractContextManager[None]],
    other: Callable[[], AbstractContextManager[None]],
) -> None:
    """As two engines that are loaded at once: what the second one found was the first one's silence, and it stayed for good."""
    before = _state()
    first, second = one(), other()
    first.__enter__()
    within = _state()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _state() != before, "the second one is still inside"
    second.__exit__(None, None, None)
    assert _state() == before
    assert within != before


def test_a_change_that_could_not_be_made_is_tried_by_the_next_block() -> None:
    inside, strikes = 0, [KeyboardInterrupt]

    @contextmanager
    def change() -> Iterator[None]:
        nonlocal inside
        if strikes:
            raise strikes.pop()
        inside += 1
        try:
            yield
        finally:
            inside -= 1

    block = ProcessWide(change)
    with pytest.raises(KeyboardInterrupt), block():
        raise AssertionError("it was struck on the way in")
    with block(), block():
        assert inside == 1
    with pytest.raises(KeyError), block():
        raise KeyError("out")
    assert inside == 0
