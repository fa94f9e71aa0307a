"""The three layouts, written out block by block for teams of one to five.

P prompt   H1 H2 H3 history   > others' header   + own header   m marker
1 2 3 4 5 desks; the last letter of a view is where its worker writes
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from manyhands.cache.block import Block
from manyhands.cache.layouts import LAYOUTS, Cast, Layout, combined, everything
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest

HISTORY = ("H1", "H2", "H3")

COMBINED = {
    1: ["P H1 H2 H3 > + 1"],
    2: [
        "P H1 H2 H3 > 2 m + 1",
        "P H1 H2 H3 > 1 m + 2",
    ],
    3: [
        "P H1 H2 H3 > 2 m 3 m + 1",
        "P H1 H2 H3 > 1 m 3 m + 2",
        "P H1 H2 H3 > 1 m 2 m + 3",
    ],
    4: [
        "P H1 H2 H3 > 2 m 3 m 4 m + 1",
        "P H1 H2 H3 > 1 m 3 m 4 m + 2",
        "P H1 H2 H3 > 1 m 2 m 4 m + 3",
        "P H1 H2 H3 > 1 m 2 m 3 m + 4",
    ],
    5: [
        "P H1 H2 H3 > 2 m 3 m 4 m 5 m + 1",
        "P H1 H2 H3 > 1 m 3 m 4 m 5 m + 2",
        "P H1 H2 H3 > 1 m 2 m 4 m 5 m + 3",
        "P H1 H2 H3 > 1 m 2 m 3 m 5 m + 4",
        "P H1 H2 H3 > 1 m 2 m 3 m 4 m + 5",
    ],
}
CONTIGUOUS = {
    1: ["P + 1"],
    2: ["P 2 m + 1", "P 1 m + 2"],
    3: ["P 2 m 3 m + 1", "P 1 m 3 m + 2", "P 1 m 2 m + 3"],
    4: ["P 2 m 3 m 4 m + 1", "P 1 m 3 m 4 m + 2", "P 1 m 2 m 4 m + 3", "P 1 m 2 m 3 m + 4"],
    5: [
        "P 2 m 3 m 4 m 5 m + 1",
        "P 1 m 3 m 4 m 5 m + 2",
        "P 1 m 2 m 4 m 5 m + 3",
        "P 1 m 2 m 3 m 5 m + 4",
        "P 1 m 2 m 3 m 4 m + 5",
    ],
}
INTERLEAVED = {
    1: ["P H1 H2 H3 + 1"],
    2: ["P H1 H2 H3 + 1", "P H1 H2 H3 + 2"],
    3: ["P H1 H2 H3 + 1", "P H1 H2 H3 + 2", "P H1 H2 H3 + 3"],
    4: ["P H1 H2 H3 + 1", "P H1 H2 H3 + 2", "P H1 H2 H3 + 3", "P H1 H2 H3 + 4"],
    5: [
        "P H1 H2 H3 + 1",
        "P H1 H2 H3 + 2",
        "P H1 H2 H3 + 3",
        "P H1 H2 H3 + 4",
        "P H1 H2 H3 + 5",
    ],
}
EVERYTHING = {  # t1 t2 ...: tails; x: where the finisher writes
    1: "P H1 H2 H3 > + 1 t1 x",
    2: "P H1 H2 H3 > 1 t1 m + 2 t2 x",
    3: "P H1 H2 H3 > 1 t1 m 2 t2 m + 3 t3 x",
    4: "P H1 H2 H3 > 1 t1 m 2 t2 m 3 t3 m + 4 t4 x",
    5: "P H1 H2 H3 > 1 t1 m 2 t2 m 3 t3 m 4 t4 m + 5 t5 x",
}


def cast_of(workers: int, history: tuple[str, ...] = HISTORY) -> Cast:
    return Cast(
        prompt=Block("P"),
        others_header=Block(">"),
        own_header=Block("+"),
        marker=Block("m"),
        desks=tuple(Block(str(worker + 1)) for worker in range(workers)),
        history=tuple(map(Block, history)),
    )


def names(view: View) -> str:
    return " ".join(block.name for block in view.blocks)


EXPECTED = {"combined": COMBINED, "contiguous": CONTIGUOUS, "interleaved": INTERLEAVED}
AT_FIRST = {"combined": "P > 1 m + 2", "contiguous": "P 1 m + 2", "interleaved": "P + 2"}


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout(layout: str, workers: int) -> None:
    cast = cast_of(workers)
    views = [LAYOUTS[layout](cast, worker) for worker in range(workers)]
    assert list(map(names, views)) == EXPECTED[layout][workers]
    assert [view.own for view in views] == list(cast.desks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_before_anything_is_finished(layout: str) -> None:
    assert names(LAYOUTS[layout](cast_of(2, history=()), 1)) == AT_FIRST[layout]


def differences(layout: Layout) -> list[str]:
    """Properties that a layout declares, and its views do not show."""
    cast = cast_of(3)
    seen = set(layout(cast, 1).blocks)
    shown = {
        "keeps_history": seen.issuperset(cast.history),
        "sees_desks": not seen.isdisjoint({cast.desks[0], cast.desks[2]}),
    }
    return [name for name, is_so in shown.items() if getattr(layout, name) != is_so]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_what_it_says_of_itself(layout: str) -> None:
    assert differences(LAYOUTS[layout]) == []
    wrong = replace(
        LAYOUTS[layout],
        keeps_history=not LAYOUTS[layout].keeps_history,
        sees_desks=not LAYOUTS[layout].sees_desks,
    )
    assert differences(wrong) == ["keeps_history", "sees_desks"]  # the control


def test_the_layout_of_how_to_add_is_what_it_says_of_itself() -> None:
    """The leader alone reads all desks there."""
    page = (Path(__file__).parents[2] / "docs" / "how_to_add.md").read_text(encoding="utf-8")
    block = page.partition("\n## A layout\n")[2].partition("```python\n")[2].partition("```\n")[0]
    named: dict[str, Any] = {}
    exec(block, named)
    assert named["led"](cast_of(3), 1).own.name == "2"
    assert differences(named["row"]) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_hold_the_very_blocks_of_the_cast(layout: str) -> None:
    cast = cast_of(3)
    known = {cast.prompt, cast.others_header, cast.own_header, cast.marker}
    known |= {*cast.desks, *cast.history}
    assert set(LAYOUTS[layout](cast, 1).blocks) <= known


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_desks_take_no_room(layout: str) -> None:
    cast = cast_of(3)
    cast.prompt.tokens.extend((1, 2))
    cast.desks[0].tokens.extend((3, 4, 5))
    seen = sum(block.num_tokens for block in set(LAYOUTS[layout](cast, 2).blocks))
    assert LAYOUTS[layout](cast, 2).num_tokens == seen  # desk 2 is empty, and so is the own one
    assert seen == (5 if LAYOUTS[layout].sees_desks else 2)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
def test_everything(workers: int) -> None:
    tails = [Block(f"t{worker + 1}") for worker in range(workers)]
    assert names(everything(cast_of(workers), tails, Block("x"))) == EVERYTHING[workers]


def test_everything_may_end_with_several_blocks() -> None:
    view = everything(cast_of(1, history=()), [Block("t1")], Block("x"), Block("y"))
    assert names(view) == "P > + 1 t1 x y"


def test_everything_wants_a_tail_for_every_desk() -> None:
    with pytest.raises(ValueError, match="zip"):
        everything(cast_of(2), [Block("t1")])


def test_a_desk_that_is_read_elsewhere_is_refused() -> None:
    cast = cast_of(3)
    for desks, history in (
        ((cast.desks[0], cast.desks[0], cast.desks[2]), ()),
        ((cast.marker, *cast.desks[1:]), ()),
        ((cast.prompt, *cast.desks[1:]), ()),
        (cast.desks, (cast.desks[1].freeze(),)),
    ):
        wrong = replace(cast, desks=desks, history=history)
        assert not wrong.are_desks_apart
        with pytest.raises(InvalidRequest, match="both read and written"):
            list(map(partial(combined, wrong), range(3)))
    assert cast_of(3).are_desks_apart
