"""A View: the order in which one row reads blocks. The row writes to the last of them.

Positions are not stored; they follow from lengths:

    start(b) = sum of the lengths of the blocks before b in this view
    position of the next token = length of the whole view

(Hogwild! Inference, section 3.1 and figure 1: the same blocks, in another order for each worker.)

Blocks stand one behind another. The exception is `Lanes`: runs of blocks that stand side by side, all
from the same position on; a row behind them sees all of them.

    View([trunk, Lanes([[anna], [ben]]), rest])     start(anna) = start(ben) = trunk's length
                                                    start(rest) = that + the longer of the two

Lanes may hold lanes: a run that parts again, and goes on behind its longest part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

from manyhands.cache.block import Block, refuse_subclass
from manyhands.errors import InvalidRequest

_T = TypeVar("_T")


@final
class Lanes:
    """Runs of blocks, and of lanes again, that begin at the same position of a view.

    What follows begins behind the longest of them, for a position counts decoding steps (PDOS, section
    3, stage 2: all tokens of one decoding step have one position id, and the next step has the next).
    Behind the sum of the lengths would leave a gap in front of what follows.
    """

    __slots__ = ("lanes",)

    def __init_subclass__(cls) -> None:
        refuse_subclass(cls, "Lanes")

    def __init__(self, lanes: Iterable[Iterable[Item]]) -> None:
        each = "Lanes([[block, ...], ...])"
        listed = _listed(lanes, "a set of lanes", each)
        self.lanes: tuple[tuple[Item, ...], ...] = tuple(
            _listed(lane, "a lane", each) for lane in listed
        )
        for lane in self.lanes:
            _check_blocks([item for item in lane if not isinstance(item, Lanes)])

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, lane by lane."""
        return tuple(block for lane in self.lanes for block in blocks_of(lane))

    @property
    def num_tokens(self) -> int:
        """Length of the longest lane."""
        return max((sum(item.num_tokens for item in lane) for lane in self.lanes), default=0)

    def __repr__(self) -> str:
        return f"Lanes({[list(lane) for lane in self.lanes]!r})"


Item = Block | Lanes


@final
class Beginning:
    """Blocks with which many views begin, as a team's history: what a view checks of its blocks is done once for these.

    A history grows by a block with every step that ends, so a beginning may go on from the `last` one. Both are of one
    *line* then, and of a line all have the same blocks as far as they reach. Nothing is walked but what is new.
    """

    __slots__ = ("_growing", "_is_last", "blocks", "line")

    blocks: tuple[Block, ...]
    line: object
    _growing: tuple[Block, ...]  # blocks that may still be written to
    _is_last: bool  # of its line

    def __init_subclass__(cls) -> None:
        refuse_subclass(cls, "Beginning")

    def __init__(self, blocks: Iterable[Block], last: Beginning | None = None) -> None:
        """`last` counts if these blocks begin with its own, and none has gone on from it before."""
        _check_beginning(last)
        self.blocks = _listed(blocks, "a beginning", "Beginning([block, ...])")
        if last and not (last._is_last and self.blocks[: len(last.blocks)] == last.blocks):
            last = None
        _check_blocks(new := self.blocks[len(last.blocks) :] if last else self.blocks)
        self.line = last.line if last else object()
        growing = (*last._growing, *new) if last else new
        self._growing = tuple([block for block in growing if not block.frozen])
        self._is_last = True
        if last:
            last._is_last = False

    def goes_on_from(self, other: Beginning) -> bool:
        """Whether it begins with all of the other one, which is of its line."""
        return self.line is other.line and len(self.blocks) >= len(other.blocks)

    def __contains__(self, block: Block) -> bool:
        return block in (self.blocks if block.frozen else self._growing)

    def has_any(self, blocks: Iterable[Block]) -> bool:
        """Whether one of these blocks stands here."""
        here, growing = self.blocks, self._growing
        return any(block in (here if block.frozen else growing) for block in blocks)


@final
class View:
    """An ordered, immutable list of blocks; `own`, the last, is where the row writes.

    Keep and reuse a view while its blocks stay the same: its lengths are looked up anew in every
    pass, and what can be prepared for it is prepared once. A block that is only read may stand in a
    view more than once (a separator, say); the own block may not.

    `notes` are kept for others, each under a key of its own: how the view is read, say. They are gone with the view, and cost
    nothing then; views are made anew for all rows whenever a step ends. So `items` and `blocks`, which are as long as a
    history, are put together when they are first asked for.
    """

    __slots__ = (
        *("__weakref__", "beginning", "beside_others", "blocks", "has_lanes", "items"),
        *("notes", "own", "rest"),
    )

    beginning: Beginning | None
    rest: tuple[Item, ...]  # the items behind it
    items: tuple[Item, ...]
    blocks: tuple[Block, ...]  # all of them, in the order in which they are read
    own: Block  # the block this view's row writes to
    has_lanes: bool
    beside_others: tuple[Block, ...]  # blocks that stand in lanes
    notes: dict[object, Any]

    def __init_subclass__(cls) -> None:
        refuse_subclass(cls, "View")

    def __init__(self, items: Iterable[Item], beginning: Beginning | None = None) -> None:
        """`items` stand behind the blocks of the `beginning`, if there is one."""
        _check_beginning(beginning)
        try:
            rest = tuple(items)
        except TypeError:
            _explain(items, "a view", "View([block, ...])")
            raise
        # Nothing here walks a view of blocks alone block by block.
        kinds = set(map(type, rest))
        if kinds != {Block}:
            _check_blocks(found := blocks_of(rest))
            if not found:
                raise InvalidRequest(
                    "a view was made of no blocks",
                    hint="Give at least the block that the row writes to.",
                )
        own = rest[-1]
        if isinstance(own, Lanes):
            raise InvalidRequest(
                "a view ends with lanes",
                hint="Let a block of its own follow them: the row writes to it.",
            )
        self._stand(rest, own, beginning)
        before: Sequence[Item] = rest[:-1]
        if Lanes in kinds:
            self.has_lanes, before = True, blocks_of(before)
            self.beside_others = blocks_of([item for item in rest if isinstance(item, Lanes)])
        is_behind = beginning is not None and own in beginning
        if is_behind or not {own}.isdisjoint(before):
            raise InvalidRequest(
                f"{own!r} is both read and written by one view",
                hint="The last block of a view is the row's own and must not stand before itself.",
            )

    @classmethod
    def checked(cls, blocks: tuple[Block, ...], beginning: Beginning | None = None) -> View:
        """The view of blocks that are known to make one: nothing is checked again."""
        view = object.__new__(cls)
        view._stand(blocks, blocks[-1], beginning)
        return view

    def _stand(self, rest: tuple[Item, ...], own: Block, beginning: Beginning | None) -> None:
        self.beginning, self.rest, self.own = beginning, rest, own
        self.has_lanes, self.beside_others = False, ()
        self.notes = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> tuple[Item, ...]:
            if name not in ("items", "blocks"):
                raise AttributeError(name)
            beginning = self.beginning
            self.items = self.rest if beginning is None else beginning.blocks + self.rest
            self.blocks = blocks_of(self.items) if self.has_lanes else self.items
            return self.items if name == "items" else self.blocks

    def behind(self, beginning: Beginning) -> View:
        """The same view with other blocks in the place of its `beginning`: a stand-in for it. Nothing is checked again.

        The own block must not be one of them.
        """
        view = object.__new__(View)
        view._stand(self.rest, self.own, beginning)
        view.has_lanes, view.beside_others = self.has_lanes, self.beside_others
        return view

    @property
    def num_begun(self) -> int:
        """How many blocks stand in its beginning."""
        return 0 if self.beginning is None else len(self.beginning.blocks)

    def blocks_from(self, first: int) -> tuple[Block, ...]:
        """`blocks[first:]`; where there are no lanes, the ones in front of them are not put together for it."""
        if self.has_lanes or self.beginning is None:
            return self.blocks[first:]
        begun, rest = self.beginning.blocks, cast(tuple[Block, ...], self.rest)
        return begun[first:] + rest if first < len(begun) else rest[first - len(begun) :]

    @property
    def num_tokens(self) -> int:
        """Length of the view: the position of the next token to be written."""
        return sum(item.num_tokens for item in self.items)

    def begins_like(self, other: View, count: int) -> bool:
        """Whether the first `count` items of both are the same ones."""
        one, two = self.beginning, other.beginning
        if one is not None and two is not None and one.line is two.line:
            reach = min(len(one.blocks), len(two.blocks))
        else:
            reach = 0
        return count <= reach or self.items[:count] == other.items[:count]

    def starts(self) -> tuple[int, ...]:
        """Where each of `blocks` begins in this view, now."""
        return tuple(_starts(self.items, 0))

    def __repr__(self) -> str:
        return f"View({list(self.items)!r})"


def _listed(items: Iterable[_T], made: str, example: str) -> tuple[_T, ...]:
    """The items; InvalidRequest if one block was given in the place of a list."""
    try:
        return tuple(items)
    except TypeError:
        _explain(items, made, example)
        raise


def _explain(items: object, made: str, example: str) -> None:
    """Raise InvalidRequest if these are no items but one; else the mistake is of whatever makes them."""
    if not isinstance(items, Iterable):
        raise InvalidRequest(
            f"{made} was made of one {type(items).__name__}; expected a list",
            hint=f"Write {example}.",
        )


def _check_beginning(beginning: object) -> None:
    """Raise InvalidRequest for what is no beginning, and is not left out either."""
    if beginning is not None and type(beginning) is not Beginning:
        raise InvalidRequest(
            f"a {type(beginning).__name__} was given as a beginning; expected a Beginning",
            hint="Write View([block], Beginning([block, ...])).",
        )


def _check_blocks(blocks: Iterable[object]) -> None:
    for block in blocks:
        if not isinstance(block, Block):
            raise InvalidRequest(
                f"a view was made of {type(block).__name__} where a Block was expected",
                hint="View takes a sequence of Block objects, or Lanes of them.",
            )


def _starts(items: Sequence[Item], start: int) -> Iterator[int]:
    """Where the blocks of a run begin that begins itself at `start`."""
    for item in items:
        if isinstance(item, Lanes):
            for lane in item.lanes:
                yield from _starts(lane, start)
        else:
            yield start
        start += item.num_tokens


def blocks_of(items: Sequence[Item]) -> tuple[Block, ...]:
    """The blocks of some items of a view, in order."""
    return tuple(
        block for item in items for block in (item.blocks if isinstance(item, Lanes) else (item,))
    )
