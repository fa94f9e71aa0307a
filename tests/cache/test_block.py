"""A block grows until it is frozen, and is nobody but itself."""

from __future__ import annotations

from typing import Any

import pytest

from manyhands.cache.block import Block
from manyhands.cache.view import Beginning, Lanes, View
from manyhands.errors import InvalidRequest


def test_a_new_block_is_empty() -> None:
    block = Block()
    assert (block.name, block.tokens, block.num_tokens, block.frozen) == ("", [], 0, False)


def test_length_follows_the_tokens() -> None:
    block = Block("desk")
    block.tokens.extend((7, 8, 9))
    assert block.num_tokens == 3
    assert repr(block) == "Block('desk', 3 tokens)"


def test_blocks_with_the_same_tokens_are_not_equal() -> None:
    one, other = Block("a"), Block("a")
    assert one != other
    assert len({one, other}) == 2


def test_a_frozen_block_may_not_be_written() -> None:
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


@pytest.mark.parametrize("wrong", [None, 3, b"ab", ["ab"]])
def test_a_name_is_a_text(wrong: Any) -> None:
    """Traces and error messages say it."""
    with pytest.raises(InvalidRequest, match="the name of a block is of type"):
        Block(wrong)
    block = Block("desk")
    with pytest.raises(InvalidRequest, match="expected a text"):
        block.name = wrong
    assert block.name == "desk"


@pytest.mark.parametrize("base", [Block, View, Lanes, Beginning])
def test_no_class_goes_on_from_a_block_or_a_view(base: type) -> None:
    """One with another length gives wrong positions; a kind of Lanes ended the pass of everybody."""
    with pytest.raises(
        InvalidRequest, match=f"Longer would be a kind of {base.__name__}; expected"
    ) as found:
        type("Longer", (base,), {"num_tokens": property(lambda self: 5)})
    assert found.value.hint == f"Hold a {base.__name__} in an object of your own."
