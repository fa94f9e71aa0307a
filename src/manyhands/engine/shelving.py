"""Between the prefix tree and the disk: which sheet goes to which slots, decided in integers.

The tree says what it wants (`cache/sheets.py`); files, threads and tensors belong to the executor's
`Sheets` (`model/shelf.py`). No pass waits for the disk:

    saving     when a path is written, its keys are copied within the device's memory; what becomes of the copy
               is the business of a thread. What the disk is too slow for waits in its place, and is copied before
               a later pass, a few sheets at a time, if it is still there
    fetching   threads read ahead; before each pass `step` writes the sheets that have come, a bounded number
               of tokens beside runs that write. Only where no run could go on without does it wait

A sheet is laid directly behind the one before it, on one strip, where that is possible. So its keys stand where
they stood when they were saved, and are the same to the bit. Where they cannot, they are rotated by the
difference of the two offsets, as a move does.

Each sheet becomes a block whole or not at all: its room is a promise (`cache/pages.py`) until its keys are there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.prefix_nodes import Node, Tokens
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.sheets import Fetch, Wanted, sheet_names
from manyhands.engine.executor import Executor, Places, Sheets
from manyhands.engine.rebuild import places_of
from manyhands.errors import OutOfMemory

_AT_ONCE = 2048  # tokens that are written before one pass, beside runs that write
# Sheets of one fetch that are asked for ahead, at most: readers that have read what they may stand idle, until an engine
# that was busy elsewhere comes back.
_AHEAD = 48
_PATIENCE = 0.05  # seconds in which a sheet may come where nothing else is to be done
_MOST_UNSAVED = 64  # prompts that wait for room; the oldest are given up
_SAVED_AT_ONCE = 4  # sheets of these that are copied before one pass


@dataclass(frozen=True)
class _Unsaved:
    """A prompt of which something is not saved, the numbers of its sheets that are still to be tried, and when it was used."""

    tokens: Tokens
    tenant: str | None
    names: list[str]
    numbers: deque[int]
    used: int  # nanoseconds


class Shelving:
    """The Shelf of one engine's tree (`cache/sheets.py::Shelf`)."""

    def __init__(
        self, sheets: Sheets, executor: Executor, pool: PagePool, tree: PrefixTree
    ) -> None:
        self.sheets = sheets
        self.sheet_tokens = sheets.sheet_tokens
        self._executor = executor
        self._pool = pool
        self._tree = tree
        self._fetches: list[Fetch] = []
        self._unsaved: deque[_Unsaved] = deque()  # prompts, for the rest of which there was no room
        self._waiting: set[str] = set()  # names of their sheets
        self._named: tuple[Tokens, str | None, list[str]] | None = None  # the last prompt asked for

    @property
    def num_unsaved(self) -> int:
        """Prompts of which sheets wait for room to be copied, before later passes."""
        return len(self._unsaved)

    @property
    def is_fetching(self) -> bool:
        """Whether a fetch goes on, so that what waits for it goes on without a pass. One behind what a run feeds waits itself."""
        return any(
            (before := _before(fetch.wanted[0].node)) is None or before.is_written
            for fetch in self._fetches
            if fetch.wanted
        )

    def num_saved(self, tokens: Tokens, tenant: str | None) -> int:
        """See `Shelf.num_saved`."""
        return self.sheets.num_saved(self._names(tokens, tenant)) * self.sheet_tokens

    def fetch(self, wanted: Sequence[Wanted], tokens: Tokens, tenant: str | None) -> Fetch:
        """See `Shelf.fetch`."""
        fetch = Fetch(wanted, self._names(tokens, tenant))
        self._fetches.append(fetch)
        self._read_ahead(fetch)
        return fetch

    def _names(self, tokens: Tokens, tenant: str | None) -> list[str]:
        """The names of a prompt's sheets. A tree asks about a prompt and fetches it: they are made once for both."""
        if self._named is None or self._named[0] is not tokens or self._named[1] != tenant:
            self._named = tokens, tenant, sheet_names(tokens, self.sheet_tokens, tenant)
        return self._named[2]

    def keep(self, path: Sequence[Block], tenant: str | None) -> None:
        """See `Shelf.keep`."""
        tokens = tuple(token for block in path for token in block.tokens)
        names = sheet_names(tokens, self.sheet_tokens, tenant)
        unsaved = [n for n in self.sheets.unsaved(names) if names[n] not in self._waiting]
        if not unsaved:
            return
        # Sheets in front of them count as used later, for without these they are never found.
        left = _Unsaved(tokens, tenant, names, deque(unsaved), time.time_ns())
        self.sheets.num_saved(names)
        self._save(left, path, len(unsaved))
        if left.numbers:
            self._waiting.update(names[number] for number in left.numbers)
            self._unsaved.append(left)
        if len(self._unsaved) > _MOST_UNSAVED:
            self._give_up(self._unsaved.popleft())

    def _save(self, left: _Unsaved, path: Sequence[Block], most: int) -> None:
        """Save so many of the sheets that are left, as far as they have room and `path` has their tokens.

        Each is tried once, whatever becomes of it: what a full disk or a small folder drops is not saved for ever.
        """
        if any(map(self._pool.is_evicted, path)):
            path = []
        num_tokens = sum(block.num_tokens for block in path)
        size, places = self.sheet_tokens, None
        while left.numbers and most > 0 and self.sheets.has_room():
            number = left.numbers[0]
            here = slice(number * size, (number + 1) * size)
            if here.stop > num_tokens:
                self._give_up(left)
                return
            if places is None:
                self._pool.make_moves(self._executor.move)
                parts = [places_of(block, 0, block.num_tokens, self._pool) for block in path]
                places = Places(*(np.concatenate(each) for each in zip(*parts, strict=True)))
            own = Places(places.slots[here], places.offsets[here])
            self.sheets.save(left.names[number], own, number, left.used)
            left.numbers.popleft()
            self._waiting.discard(left.names[number])
            most -= 1

    def _save_rest(self) -> None:
        """Go on with the oldest path for which there was no room, where its tokens lie by now."""
        if self._unsaved and self.sheets.has_room():
            left = self._unsaved[0]
            self._save(left, self._tree.written(left.tokens, left.tenant), _SAVED_AT_ONCE)
            if not left.numbers:
                self._unsaved.popleft()

    def _give_up(self, left: _Unsaved) -> None:
        """Count what is left of a path as missed."""
        self.sheets.missed(len(left.numbers))
        self._waiting.difference_update(left.names[number] for number in left.numbers)
        left.numbers.clear()

    def step(self, *, is_alone: bool) -> None:
        """Write what has come of all fetches. `is_alone`: no run has a step, so there is time to wait for it.

        No promise of a step may be open.
        """
        self._save_rest()
        if self._fetches:
            # Owed since a step that failed: made later, they could write over what is loaded now.
            self._pool.make_moves(self._executor.move)
        room, patience = _AT_ONCE, _PATIENCE if is_alone else 0.0
        for fetch in tuple(self._fetches):
            while fetch.wanted and (is_alone or room > 0) and self._is_here(fetch, patience):
                room -= self._write_next(fetch)
                patience = 0.0
            if not fetch.wanted:
                self.sheets.forget(fetch.names)
                self._fetches.remove(fetch)

    def _is_here(self, fetch: Fetch, patience: float) -> bool:
        """Whether the next node can be written now. A fetch that has come to nothing is given up."""
        node, start = fetch.wanted[0]
        if node.block is None:  # every run that wanted it has gone
            fetch.give_up()
            return False
        if (before := _before(node)) is not None and not before.is_written:
            return False  # another run feeds or fetches it
        self._read_ahead(fetch)
        is_read = self.sheets.is_read(fetch.names[start // self.sheet_tokens], patience)
        if is_read is False:
            fetch.give_up()
        return bool(is_read)

    def _read_ahead(self, fetch: Fetch) -> None:
        if fetch.wanted:
            first = fetch.wanted[0].start // self.sheet_tokens
            last = fetch.wanted[-1].start // self.sheet_tokens
            self.sheets.forget(fetch.names[:first])
            self.sheets.read_ahead(fetch.names[first : min(last + 1, first + _AHEAD)])

    def _write_next(self, fetch: Fetch) -> int:
        """Write the next node; how many tokens that were."""
        node, start = fetch.wanted[0]
        before = _before(node)
        block, size = Block("prefix"), len(node.tokens)
        if before is not None and before.block is not None:
            self._bring_together(before)
            self._pool.follow(block, before.block)
        try:
            self._pool.promise([(block, size)])
            name, first = (
                fetch.names[start // self.sheet_tokens],
                start % self.sheet_tokens,
            )
            self.sheets.load(name, first, places_of(block, 0, size, self._pool))
            block.tokens.extend(node.tokens)
            self._pool.place(block).size = size  # it may share its strip
            self._pool.keep()
        except OutOfMemory:  # the run that feeds it instead is told so, and waits or makes room
            self._pool.take_back()
            fetch.give_up()
            return 0
        except BaseException:
            self._pool.take_back()
            raise
        self._tree.fetched(node, block)
        fetch.wanted.popleft()
        fetch.num_tokens += size
        self.sheets.found(size)
        return size

    def _bring_together(self, node: Node) -> None:
        """Have a node's block lie behind the one before it, as the planner would when a view reads both."""
        before = _before(node)
        if before is None or before.block is None or node.block is None or not before.is_written:
            return
        if self._pool.join(node.block, before.block) is not None:
            self._pool.make_moves(
                self._executor.move
            )  # the slots they leave may be given out at once


def _before(node: Node) -> Node | None:
    """The node in front of it on its path; None for the first."""
    parent = node.parent() if node.parent is not None else None
    return parent if parent is not None and parent.parent is not None else None
