"""The states of a whole run: which texts grew, where others forked from them, in one forward over all its tokens.

Passes are many and forks are few. So what a block was fed in passes that follow each other is one row here, which ends
where another text forks or where its block ends:

    passes    prompt 0-5 | a 6-7, b 8 | a 9, b 10 | c (behind a) 11
    rows      prompt 0-5   a 6 7 9      b 8 10      c 11                 four rows, three waves

Slots are numbered for this forward alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat

from manyhands.cache.block import Block
from manyhands.cache.states import EMPTY, RowStates, StateBook
from manyhands.cache.step import Step


class TextRows:
    """Follows the steps of a run, and says what its linear layers need."""

    def __init__(
        self, found: Sequence[Block] | None = None, before_step: Mapping[Block, int] | None = None
    ) -> None:
        """`found`: blocks that hold tokens already; the states behind them are in the first slots, from 1 on. Where some are named, the
        engine has held the steps against the order of texts as they happened, and knows which blocks stand for each other since one
        was divided: here lengths alone are compared.

        `before_step`: of blocks to which the last passes have fed parts of a step, how many tokens they had before it.
        """
        self._book = _Endless(count(1) if found is None else repeat(1))
        self._before_step = before_step or {}
        self._passes: list[
            tuple[range, int, int]
        ] = []  # of each row: its packed tokens, source, target
        self._num_tokens = 0
        self._left: dict[
            weakref.ref[Block], int
        ] = {}  # weak: whether a block lives is the strategy's affair
        self._left_before: dict[weakref.ref[Block], int] = {}  # the same, before the step
        self._given = self._book.free_slots(len(found or ()))
        for block, slot in zip(found or (), self._given, strict=True):
            self._book.hold(block, slot)

    def feed(self, step: Step) -> None:
        """One pass, before its feeds join their blocks. Raises InvalidRequest where its views reorder a text."""
        before = self._before_step
        rows = self._book.take(step, lambda block: (before.get(block, block.num_tokens),))
        for first, last, source, target in zip(
            rows.row_indptr, rows.row_indptr[1:], rows.sources, rows.targets, strict=False
        ):
            tokens = range(self._num_tokens + first, self._num_tokens + last)
            self._passes.append((tokens, source, target))
        self._num_tokens += rows.row_indptr[-1]

    def end(self, blocks: Iterable[Block]) -> RowStates:
        """The rows of the whole run, after which the state behind each of these blocks has a slot (`slot`, `slot_before_step`)."""
        wanted = {block: slot for block in blocks if (slot := self._book.slot(block)) is not None}
        before = {
            block: slot
            for block, size in self._before_step.items()
            if (slot := self._book.slot(block, size)) is not None
        }
        assert len(before) == len(self._before_step), "a pass has ended there"
        readers: dict[int, int] = {}
        for _, source, _ in self._passes:
            readers[source] = readers.get(source, 0) + 1
        kept = {*wanted.values(), *before.values(), *self._given}
        joined: dict[int, tuple[list[int], int]] = {}  # by the target of its newest pass
        for tokens, source, target in self._passes:
            if source in joined and readers[source] == 1 and source not in kept:
                own, begin = joined.pop(source)
                own.extend(tokens)
                joined[target] = own, begin
            else:
                joined[target] = list(tokens), source
        names = {slot: name for name, slot in enumerate((EMPTY, *self._given, *joined))}
        ends = [0]
        for own, _ in joined.values():
            ends.append(ends[-1] + len(own))
        rows = RowStates(
            tuple(ends),
            tuple(names[begin] for _, begin in joined.values()),
            tuple(names[target] for target in joined),
            tuple(token for own, _ in joined.values() for token in own),
        )
        self._left = {weakref.ref(block): names[slot] for block, slot in wanted.items()}
        self._left_before = {weakref.ref(block): names[slot] for block, slot in before.items()}
        return rows

    def slot(self, block: Block) -> int:
        """Where the state behind a block is left."""
        return self._left[weakref.ref(block)]

    def slot_before_step(self, block: Block) -> int:
        """Where the state behind a block of `before_step` is left, as it was before that step."""
        return self._left_before[weakref.ref(block)]

    def start(self, block: Block) -> int | None:
        """How many tokens stand before a block."""
        return self._book.start(block)


class _Endless(StateBook):
    """Every state has a slot of its own for good."""

    def __init__(self, names: Iterator[int]) -> None:
        super().__init__(0)
        self._names = names
        self._slots = count(1)

    def all_free(self, least: int) -> list[int]:
        """So many that were never used."""
        return [next(self._slots) for _ in range(least)]
