"""A View: the order in which one row reads blocks. The row writes to the last of them.

Nobody stores positions; they follow from lengths:

    start(b) = sum of the lengths of the blocks before b in this view
    position of the next token = length of the whole view

(Hogwild! Inference, section 3.1 and figure 1: the same blocks, in another order for each worker.)
"""

from __future__ import annotations

from collections.abc import Iterable

from manyhands.cache.block import Block
from manyhands.errors import InvalidRequest


class View:
    """An ordered, immutable list of blocks; `own`, the last, is where the row writes.

    Keep and reuse a view while its blocks stay the same: its lengths are looked up anew in every
    pass, and what can be prepared for it is prepared once. A block that is only read may stand in a
    view more than once (a separator, say); the own block may not.
    """

    __slots__ = ("__weakref__", "blocks")

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = tuple(blocks)
        if not self.blocks:
            raise InvalidRequest(
                "a view was made of no blocks",
                hint="Give at least the block that the row writes to.",
            )
        for block in self.blocks:
            if not isinstance(block, Block):
                raise InvalidRequest(
                    f"a view was made of {type(block).__name__} where a Block was expected",
                    hint="View takes a sequence of Block objects.",
                )
        if self.own in self.blocks[:-1]:
            raise InvalidRequest(
                f"{self.own!r} is both read and written by one view",
                hint="The last block of a view is the row's own and must not stand before itself.",
            )

    @property
    def own(self) -> Block:
        """The block this view's row writes to."""
        return self.blocks[-1]

    @property
    def num_tokens(self) -> int:
        """Length of the view: the position of the next token to be written."""
        return sum(block.num_tokens for block in self.blocks)

    def starts(self) -> tuple[int, ...]:
        """Where each block begins in this view, now."""
        starts, start = [], 0
        for block in self.blocks:
            starts.append(start)
            start += block.num_tokens
        return tuple(starts)

    def __repr__(self) -> str:
        return f"View({list(self.blocks)!r})"
