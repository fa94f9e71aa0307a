"""Tokens that followed the same tokens before: found where they stood last, and never made up."""

from __future__ import annotations

import gc

from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cache import lookup
from manyhands.cache.block import Block
from manyhands.cache.lookup import FEWEST, Lookup


def block_of(*tokens: int) -> Block:
    block = Block()
    block.tokens.extend(tokens)
    return block


def test_a_guess_is_as_long_as_its_match_at_most() -> None:
    found = Lookup()
    text = block_of(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    assert found.learn(text)
    assert found.behind((0, 2, 3), 9) == (), "two equal tokens are no match"
    assert found.behind((0, 2, 3, 4), 9) == (5, 6, 7)
    assert found.behind((0, 2, 3, 4), 2) == (5, 6)
    assert found.behind((1, 2, 3, 4, 5), 9) == (6, 7, 8, 9, 10)
    assert found.behind((9, 10, 11), 9) == (), "nothing stands behind the end"


def test_the_longer_match_wins_and_of_equals_the_newer() -> None:
    found = Lookup()
    long, short, newest = (
        block_of(1, 2, 3, 4, 5, 6, 70, 71),
        block_of(9, 4, 5, 6, 80, 81),
        block_of(9, 4, 5, 6, 90, 91),
    )
    for block in (long, short, newest):
        found.learn(block)
    assert found.behind((1, 2, 3, 4, 5, 6), 2) == (70, 71)
    assert found.behind((8, 4, 5, 6), 1) == (90,)


def test_a_block_that_grows_is_learnt_on() -> None:
    """The last token is learnt when another one stands behind it."""
    found, text = Lookup(), block_of(5, 5, 5, 5)
    found.learn(text)
    assert found.behind((5, 5, 5), 4) == (5,)
    text.tokens += [6, 7]
    found.learn(text)
    assert found.behind((5, 5, 5), 4) == (6, 7)
    assert found.behind((5, 5, 6), 4) == (7,)


def test_what_is_gone_or_was_shortened_is_not_found() -> None:
    found = Lookup()
    gone, cut = block_of(1, 2, 3, 4, 5), block_of(11, 12, 13, 14, 15)
    found.learn(gone)
    found.learn(cut)
    del gone
    gc.collect()
    assert found.behind((1, 2, 3), 4) == ()
    del cut.tokens[2:]
    assert found.behind((11, 12, 13), 4) == ()
    cut.tokens += [77, 78, 79]
    assert found.behind((11, 12, 13), 4) == (), "other tokens stand there now"


def test_a_long_text_is_learnt_piece_by_piece() -> None:
    found, text = Lookup(), block_of(*range(2 * lookup._AT_ONCE))
    assert not found.learn(text)
    assert found.behind((lookup._AT_ONCE + 5, lookup._AT_ONCE + 6, lookup._AT_ONCE + 7), 1) == ()
    assert found.learn(text)
    assert found.behind((lookup._AT_ONCE + 5, lookup._AT_ONCE + 6, lookup._AT_ONCE + 7), 1) != ()


def test_memory_stays_in_proportion() -> None:
    found, texts = Lookup(10), []
    found.most_places = 40
    for n in range(40):
        texts.append(block_of(*range(20 * n, 20 * n + 20)))
        found.learn(texts[-1])
        assert len(found._young) + len(found._old) <= 2 * (found.most_places + 40)
    assert found.behind((797, 798, 799), 1) == ()
    assert found.behind((790, 791, 792), 2) == (793, 794)
    assert found.behind((0, 1, 2), 2) == (), "the oldest places are forgotten"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=60), st.integers(1, 8))
def test_a_guess_stood_behind_the_same_tokens(tokens: list[int], most: int) -> None:
    found = Lookup()
    found.learn(block_of(*tokens[: len(tokens) // 2]))
    known = block_of(*tokens)
    found.learn(known)
    for end in range(FEWEST, len(tokens) + 1):
        guess = found.behind(tokens[:end], most)
        assert len(guess) <= most
        text = [*tokens[end - FEWEST : end], *guess]
        places = range(len(tokens) - len(text) + 1)
        assert not guess or any(tokens[at : at + len(text)] == text for at in places)
