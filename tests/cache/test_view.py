"""Positions follow from lengths, and a view that makes no sense is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.cache.block import Block
from manyhands.cache.view import Beginning, Item, Lanes, View
from manyhands.errors import InvalidRequest


def block(num_tokens: int, name: str = "") -> Block:
    made = Block(name)
    made.tokens.extend(range(num_tokens))
    return made


def test_starts_are_the_lengths_before() -> None:
    view = View([block(3), block(0), block(5), block(2)])
    assert view.starts() == (0, 3, 3, 8)
    assert view.num_tokens == 10
    assert view.own is view.blocks[-1]


def test_starts_follow_growth() -> None:
    prompt, desk, own = block(3), block(0), block(1)
    view = View((prompt, desk, own))
    desk.tokens.extend((1, 1))
    assert view.starts() == (0, 3, 5)
    assert view.num_tokens == 6


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_starts_and_length_agree(sizes: list[int]) -> None:
    view = View(map(block, sizes))
    assert view.starts() == tuple(sum(sizes[:i]) for i in range(len(sizes)))
    assert view.num_tokens == sum(sizes)


def test_a_separator_may_stand_twice() -> None:
    marker = block(2)
    assert View([block(1), marker, block(1), marker, block(0)]).starts() == (0, 1, 3, 4, 6)


def test_no_blocks() -> None:
    with pytest.raises(InvalidRequest) as caught:
        View([])
    assert str(caught.value) == "a view was made of no blocks"
    assert caught.value.hint == "Give at least the block that the row writes to."


def test_something_else_than_a_block() -> None:
    with pytest.raises(InvalidRequest) as caught:
        View([Block(), "prompt"])  # type: ignore[list-item]  # the mistake under test
    assert str(caught.value) == "a view was made of str where a Block was expected"
    assert caught.value.hint == "View takes a sequence of Block objects, or Lanes of them."


def test_the_own_block_may_not_stand_before_itself() -> None:
    own = Block("mine")
    with pytest.raises(InvalidRequest) as caught:
        View([own, Block("yours"), own])
    assert str(caught.value) == "Block('mine', 0 tokens) is both read and written by one view"
    assert "must not stand before itself" in caught.value.hint


def test_repr_names_the_blocks() -> None:
    assert repr(View([block(1, "a"), block(0, "b")])) == (
        "View([Block('a', 1 token), Block('b', 0 tokens)])"
    )


def block_of(size: int) -> Block:
    block = Block()
    block.tokens.extend(range(size))
    return block


def test_lanes_begin_together_and_end_with_the_longest() -> None:
    trunk, a, b, c, own = map(block_of, (5, 2, 3, 4, 1))
    view = View([trunk, Lanes([[a, b], [c], []]), own])
    assert view.blocks == (trunk, a, b, c, own)
    assert view.starts() == (0, 5, 7, 5, 10)
    assert view.num_tokens == 11
    assert view.beside_others == (a, b, c)
    assert View([trunk, own]).beside_others == ()
    assert View([trunk, Lanes([]), own]).starts() == (0, 5)


def test_lanes_in_lanes() -> None:
    """a parts into b and c, and goes on at d behind the longer of them; e stands beside all of that."""
    trunk, a, b, c, d, e, own = map(block_of, (5, 2, 3, 7, 1, 9, 1))
    view = View([trunk, Lanes([[a, Lanes([[b], [c]]), d], [e]]), own])
    assert view.blocks == (trunk, a, b, c, d, e, own)
    assert view.starts() == (0, 5, 7, 7, 14, 5, 15)
    assert view.beside_others == (a, b, c, d, e)
    assert view.num_tokens == 16
    flat = View([trunk, Lanes([[a, b, c, d], [e]]), own])
    assert flat.starts() != view.starts()
    with pytest.raises(InvalidRequest, match="both read and written"):
        View([trunk, Lanes([[a, Lanes([[own]])]]), own])


def test_one_lane_is_no_difference() -> None:
    blocks = [block_of(size) for size in (3, 1, 4)]
    assert View([Lanes([blocks[:2]]), blocks[2]]).starts() == View(blocks).starts()


def test_nobody_writes_in_lanes() -> None:
    own = Block("own")
    with pytest.raises(InvalidRequest, match="ends with lanes"):
        View([Block(), Lanes([[own]])])
    with pytest.raises(InvalidRequest, match="both read and written"):
        View([Lanes([[Block()], [own]]), own])
    with pytest.raises(InvalidRequest, match="no blocks"):
        View([Lanes([])])
    with pytest.raises(InvalidRequest, match="made of int"):
        View([Lanes([[3]]), own])  # type: ignore[list-item]  # the mistake under test


def test_views_that_begin_alike_are_those_that_are_made_whole() -> None:
    first, second, third, own = (Block() for _ in range(4))
    past = Beginning([first, second])
    rests: list[list[Item]] = [[own], [third, own], [Lanes([[third], [first]]), own], [first, own]]
    for rest in rests:
        view, whole = View(rest, past), View([first, second, *rest])
        assert (view.items, view.blocks) == (whole.items[:2] + view.items[2:], whole.blocks)
        assert (view.own, view.beside_others) == (whole.own, whole.beside_others)
    with pytest.raises(InvalidRequest, match="both read and written"):
        View([third, first], past)
    with pytest.raises(InvalidRequest, match="no blocks"):
        View([], past)
    with pytest.raises(InvalidRequest, match="made of str"):
        Beginning([first, "second"])  # type: ignore[list-item]


def test_beginnings_that_go_on() -> None:
    """Of a line all have the same blocks as far as they reach; a second one that goes on has a line of its own."""
    blocks = [block_of(size) for size in (3, 1, 4, 1)]
    for block in blocks[1:]:
        block.freeze()
    past = Beginning(blocks[:2])
    further = Beginning(blocks[:3], past)
    assert further.line is past.line
    assert further.blocks == tuple(blocks[:3])
    assert all(block in further for block in blocks[:3])
    assert blocks[3] not in further
    for last in (
        past,
        further,
    ):  # one has been gone on from; these blocks do not begin with the other's
        aside = Beginning((*blocks[:2], blocks[3]), last)
        assert aside.line is not past.line
        assert aside.blocks == (*blocks[:2], blocks[3])
    furthest = Beginning(blocks, further)
    assert furthest.line is past.line
    with pytest.raises(InvalidRequest, match="both read and written"):
        View([blocks[0]], furthest)  # it may still be written to
    with pytest.raises(InvalidRequest, match="both read and written"):
        View([blocks[2]], furthest)
    with pytest.raises(InvalidRequest, match="made of str"):
        Beginning((*blocks, "third"), furthest)  # type: ignore[arg-type]  # the mistake under test
    assert Beginning((*blocks, Block()), furthest).line is past.line


def test_views_begin_alike() -> None:
    first, second, third = (Block() for _ in range(3))
    past = Beginning([first, second])
    further = Beginning([first, second, third], past)
    views = [
        View([Block(), Block()], past),
        View([Block()], further),
        View([first, second, Block()]),
    ]
    for one, two in itertools.product(views, repeat=2):
        for count in range(4):
            assert one.begins_like(two, count) == (one.items[:count] == two.items[:count])


def test_a_stand_in_differs_by_its_beginning_alone() -> None:
    prompt, path, other, own = Block("prompt"), (Block(), Block()), Block(), Block()
    rests: list[list[Item]] = [[other, own], [Lanes([[other], [Block()]]), own]]
    for rest in rests:
        view = View(rest, Beginning([prompt]))
        made, usual = view.behind(Beginning(path)), View([*path, *rest])
        assert made.items == usual.items
        assert made.blocks == usual.blocks
        assert (made.own, made.beside_others) == (usual.own, usual.beside_others)
        assert made.begins_like(usual, 2)


def test_a_view_that_is_known_to_be_one_is_made_the_same() -> None:
    first, second, other, own = (Block() for _ in range(4))
    for beginning in (None, Beginning([first, second])):
        made, usual = View.checked((other, own), beginning), View((other, own), beginning)
        for name in ("items", "blocks", "rest", "own", "beginning", "has_lanes", "beside_others"):
            assert getattr(made, name) == getattr(usual, name), name
        assert made.num_begun == usual.num_begun == (0 if beginning is None else 2)


def test_blocks_from_some_index_on() -> None:
    first, second, third, fourth, own = (Block() for _ in range(5))
    past = Beginning([first, second])
    for view in (
        View([third, own], past),
        View([first, third, own]),
        View([Lanes([[third], [fourth]]), own], past),
        View([Lanes([[third], [fourth]]), own]),
    ):
        expected = [view.blocks[at:] for at in range(7)]
        assert [view.blocks_from(at) for at in range(7)] == expected
        assert view.has_lanes == bool(view.beside_others)


def test_a_view_has_nothing_else() -> None:
    view = View([Block()])
    assert not hasattr(view, "tokens")
    assert view.notes == {}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: View(Block()), "a view was made of one Block; expected a list"),  # type: ignore[arg-type]
        (lambda: View(5), "a view was made of one int"),  # type: ignore[arg-type]
        (lambda: View("ab"), "a view was made of str where a Block was expected"),  # type: ignore[arg-type]
        (lambda: Lanes(Block()), "a set of lanes was made of one Block"),  # type: ignore[arg-type]
        (lambda: Lanes([Block()]), "a lane was made of one Block"),  # type: ignore[list-item]
        (lambda: Beginning(Block()), "a beginning was made of one Block"),  # type: ignore[arg-type]
    ],
)
def test_one_block_in_the_place_of_a_list(make: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        make()


@pytest.mark.parametrize("kind", [View, Lanes, Beginning])
def test_a_mistake_of_whatever_makes_the_blocks_stays_its_own(kind: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="has no len"):
        kind(Block(str(len(number))) for number in (1, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [3, "ab", [Block()], Block(), ()])
def test_what_is_no_beginning_is_named(wrong: Any) -> None:
    """A list stood there for nothing: no row read its blocks."""
    with pytest.raises(InvalidRequest, match="was given as a beginning; expected a Beginning"):
        View([Block()], wrong)
    with pytest.raises(InvalidRequest, match="was given as a beginning; expected a Beginning"):
        Beginning([Block()], wrong)


@pytest.mark.parametrize("wrong", [3, "ab", None, View([Block()])])
def test_lanes_are_made_of_blocks(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="where a Block was expected"):
        Lanes([[Block()], [wrong]])
    assert Lanes([[Block(), Lanes([[Block()]])]]).num_tokens == 0
