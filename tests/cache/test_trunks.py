"""Trunks beside a plain search: which beginning of a view is known already, and where its blocks lie."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cache import trunks as module
from manyhands.cache.block import Block
from manyhands.cache.places import Strip
from manyhands.cache.trunks import NOTHING, Frozen, Trunk, Trunks
from manyhands.cache.view import Beginning, Lanes, View

Lies = dict[Block, Frozen]


def finished(rng: random.Random, count: int) -> Lies:
    """Finished blocks on a few strips, one behind another on each, so that some neighbours of a view lie in one piece."""
    strips = [Strip() for _ in range(3)]
    lies: Lies = {}
    for index in range(count):
        block, strip = Block(f"block {index}"), rng.choice(strips)
        block.tokens.extend([0] * rng.randint(1, 4))
        lies[block.freeze()] = Frozen(strip, strip.num_tokens, block.num_tokens)
        strip.num_tokens += block.num_tokens
    return lies


def pieces(blocks: Sequence[Block], lies: Lies) -> tuple[Frozen, ...]:
    found: list[Frozen] = []
    for block in blocks:
        strip, low, size = lies[block]
        if found and found[-1].strip is strip and found[-1].low + found[-1].size == low:
            found[-1] = Frozen(strip, found[-1].low, found[-1].size + size)
        else:
            found.append(Frozen(strip, low, size))
    return tuple(found)


def walked(view: View, blocks: Sequence[Block], lies: Lies) -> Trunk:
    """The first blocks of a view, as a walk over them leaves them."""
    ends = list(accumulate(block.num_tokens for block in blocks))
    return Trunk.of(view, list(map(weakref.ref, blocks)), pieces(blocks, lies), ends)


def blocks_of(trunk: Trunk) -> list[Block | None]:
    return [reference() for reference in trunk.blocks]


def longest(known: Sequence[Trunk], view: View, lies: Lies) -> list[Block]:
    """The blocks that should be found: of the view's own line as far as it reaches, else of what is the same."""

    def has_moved(blocks: Sequence[Block]) -> bool:
        return any(lies[block].strip.left for block in blocks)

    beginning = view.beginning
    if beginning is not None:
        reach = [min(t.on_line, view.num_begun) for t in known if t.line is beginning.line]
        for count in sorted(reach, reverse=True):
            if count and not has_moved(begun := list(beginning.blocks[:count])):
                return begun
    same: list[Block] = []
    for trunk in known:
        agreed: list[Block] = []
        for one, other in zip(blocks_of(trunk), view.items, strict=False):
            if one is not other or not isinstance(other, Block):
                break
            agreed.append(other)
        same = max(same, agreed, key=len)
    return [] if has_moved(same) else same


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "_MOST", 4)
    return 4


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_longest_beginning_that_is_known_is_found(seed: int) -> None:
    """Views of lines that grow, of none and with lanes, under one prompt; now and then what lies on a strip is moved."""
    rng = random.Random(seed)
    lies = finished(rng, 12)
    prompt, *others = lies
    trunks, lines = Trunks(), [Beginning([prompt]), Beginning([prompt])]
    for _ in range(20):
        items: list[Block | Lanes] = list(rng.choices(others, k=rng.randint(0, 3)))
        if rng.random() < 0.2:
            items.insert(rng.randint(0, len(items)), Lanes([[block] for block in others[:2]]))
        if rng.random() < 0.6:
            line = rng.randrange(2)
            if rng.random() < 0.6:
                more = (*lines[line].blocks, *rng.choices(others, k=rng.randint(0, 2)))
                lines[line] = Beginning(more, last=lines[line])
            view = View([*items, Block()], lines[line])
        else:
            view = View([prompt, *items, Block()])
        known = trunks._known.get(prompt, ())
        found = trunks.shared(view)
        wanted = longest(known, view, lies)
        assert blocks_of(found) == wanted
        if wanted:
            assert found.pieces == pieces(wanted, lies)
            assert found.ends == (*accumulate(block.num_tokens for block in wanted),)
        in_row: list[Block] = []
        for item in view.items[:-1]:
            if isinstance(item, Lanes):
                break
            in_row.append(item)
        trunks.add(walked(view, in_row[: rng.randint(1, len(in_row))], lies))
        if rng.random() < 0.05:
            lies[rng.choice(others)].strip.left = True


def test_a_trunk_takes_the_place_of_those_that_it_goes_on_from(few: int) -> None:
    """However long one history becomes, what is known of others under the same prompt stays."""
    lies = finished(random.Random(1), 40)
    prompt, other, another, *history = lies
    trunks = Trunks()
    for line in ([prompt, other, another], *([prompt, *history[:n]] for n in range(1, 37))):
        view = View([*line, Block()])
        trunks.add(walked(view, line, lies))
    assert list(map(blocks_of, trunks._known[prompt])) == [
        [prompt, *history[:36]],
        [prompt, other, another],
    ]
    for last in history:  # lines that go on from nothing: the oldest are forgotten
        trunks.add(walked(View([prompt, other, last, Block()]), [prompt, other, last, other], lies))
        assert len(trunks._known[prompt]) <= few


def test_under_another_prompt_nothing_is_known() -> None:
    lies = finished(random.Random(1), 3)
    one, other, last = lies
    trunks = Trunks()
    trunks.add(walked(View([one, last, Block()]), [one, last], lies))
    assert trunks.shared(View([other, last, Block()])) is NOTHING
    assert blocks_of(trunks.shared(View([one, last, Block()], Beginning([])))) == [one, last]
    trunks.forget()
    assert trunks.shared(View([one, last, Block()])) is NOTHING
