"""A block grows until it is frozen, and is nobody but itself."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.cache.block import Block
from manyhands.errors import InvalidRequest


def test_a_new_block_is_empty():
    block = Block()
    assert (block.name, block.tokens, block.num_tokens, block.frozen) == ("", [], 0, False)


def test_length_follows_the_tokens():
    block = Block("desk")
    block.tokens.extend((7, 8, 9))
    assert block.num_tokens == 3
    assert repr(block) == "Block('desk', 3 tokens)"


def test_blocks_with_the_same_tokens_are_not_equal():
    one, other = Block("a"), Block("a")
    assert one != other
    assert len({one, other}) == 2


def test_a_frozen_block_may_not_be_written():
    block = Block("desk")
    block.check_writable()
    assert block.freeze() is block
    with pytest.raises(InvalidRequest) as caught:
        block.check_writable()
    assert str(caught.value) == (
        "Block('desk', frozen, 0 tokens) is frozen, and a row was asked to write to it"
    )
    assert caught.value.hint == "Let the row's view end with a fresh Block."


@pytest.mark.parametrize("wrong", [(), (1, 2), None, "ab", range(3)])
def test_tokens_stay_a_list(wrong: Any) -> None:
    """An engine could not take a step back to it, and so made no other one either."""
    block = Block("desk")
    with pytest.raises(InvalidRequest, match="the tokens of a block were set to a"):
        block.tokens = wrong
    block.tokens = [1]
    assert block.num_tokens == 1


def test_what_was_frozen_stays_so() -> None:
    block = Block("desk").freeze().freeze()
    with pytest.raises(InvalidRequest, match="what was frozen stays so"):
        block.frozen = False
    assert block.frozen
