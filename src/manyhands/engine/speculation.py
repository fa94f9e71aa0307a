"""Speculation: rows that write alone are fed guesses at what they will write, and several are checked in one pass.

A strategy asks for one token at a time and does not notice. Where it asks to feed the token t, the engine feeds
t and some guesses behind it (`cache/lookup.py`, `Row.draft`), and keeps the logits of all of them:

    asked    [.. t]               answered by the logits at t
    fed      [.. t  a  b  c]      logits at t, a, b, c
    asked    [.. t a]             known: the key of a is written, and its logits are there. No pass is made
    asked    [.. t a x]           x is not b: a pass feeds x, over the key of b

So a token is chosen from the logits at its place in any case, by the choice that the strategy sends there: its own
draw, its penalties, bias, grammar and bounds as they are by then. What a run writes, reports and records is what it
would be without speculation, greedy or sampled, as far as a network gives the same logits for a token that is fed
alone and beside others. It is not rejection sampling, which gives texts of the same distribution and not the same.

Guesses cost no memory and leave nothing behind. They are no part of a block, and lie behind its end, on the page
on which its feed ends: on slots that no other row may write to, and that the block's next tokens write anew.

Which rows: by structure. A row may be ahead of the others where nothing that it reads is written by them, and
nothing that they read is written by it. A worker of a team is no such row; a lone strand, an attempt, a branch, a
completion, a finisher and a reply are. Rows of one strategy are answered together: a pass is left out if all of them
are known.

Where guesses come from: what stands in the blocks that the row reads. Tenants' trees of prefixes stay apart: of
what others have in memory only that is looked at which begins in the same tenant's tree (`PrefixTree.root_of`), or
with the same block.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from manyhands.cache.block import Block
from manyhands.cache.lookup import Lookup
from manyhands.cache.pages import PagePool
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View

_TAIL = 32  # tokens of a view that are compared with other places
_LONGEST_PAUSE = 15  # passes


@dataclass(frozen=True)
class _Ahead:
    """The tokens that a row was fed beyond its block: `draft`, whose first token has index `start` in it.

    `first` is the number of that token's logits among those that the pass kept. `beside` is the length of all
    blocks that the row reads besides its own; they only grow.
    """

    draft: tuple[int, ...]
    start: int
    first: int
    beside: int


@dataclass
class _Pause:
    """In how many passes a row is given no guess: from one wrong guess on, and of these still to come."""

    length: int = 0
    left: int = 0


class Speculation:
    """Guesses for the rows of a step, and which steps are known by those of the newest pass.

    It changes no block and no page, so an interrupt leaves nothing to put right.
    """

    def __init__(
        self, pool: PagePool, prefixes: PrefixTree, most: int, max_positions: int, max_tokens: int
    ) -> None:
        """At most `most` guesses for a row; no view gets longer than `max_positions`, no pass than `max_tokens`."""
        self.pool, self.prefixes = pool, prefixes
        self.most, self.max_positions, self.max_tokens = most, max_positions, max_tokens
        self.num_drafted = 0  # tokens fed as guesses
        self.num_accepted = 0  # of those, the ones that a strategy has asked to feed
        self._aheads: weakref.WeakKeyDictionary[View, _Ahead] = weakref.WeakKeyDictionary()
        self._pauses: weakref.WeakKeyDictionary[View, _Pause] = weakref.WeakKeyDictionary()
        self._generation = -1  # of the pool, when they were fed
        # One for what begins in the same tree or with the same block.
        self._lookups: weakref.WeakKeyDictionary[Block, Lookup] = weakref.WeakKeyDictionary()
        self._read: weakref.WeakKeyDictionary[View, list[weakref.ref[Block]]] = (
            weakref.WeakKeyDictionary()
        )

    def drafted(self, step: Step) -> Step:
        """The step with guesses behind the feeds of its rows; the same step if there are none."""
        self._learn_from_the_last()
        room = self.max_tokens - sum(len(row.feed) for row in step.rows)
        rows = list(step.rows)
        for index in _alone(step):
            pause = self._pauses.get(rows[index].view)
            if pause is not None and pause.left:
                pause.left -= 1
            elif draft := self._guess(rows[index], room):
                rows[index] = replace(rows[index], draft=draft)
                room -= len(draft)
        return step if rows == list(step.rows) else Step(rows)

    def _learn_from_the_last(self) -> None:
        """A row that did not follow its last guess pauses: twice as long each time, until one was right."""
        for view, ahead in self._aheads.items():
            if view.own.num_tokens > ahead.start:
                self._pauses.pop(view, None)
            else:
                pause = self._pauses.setdefault(view, _Pause())
                pause.length = min(2 * pause.length + 1, _LONGEST_PAUSE)
                pause.left = pause.length
        self._aheads.clear()

    def was_fed(self, step: Step) -> None:
        """The pass of a drafted step has succeeded: what follows from its logits is known from now on."""
        first = 0
        for row in step.rows:
            if row.draft:
                start = row.view.own.num_tokens
                beside = _num_tokens(row.view) - start
                self._aheads[row.view] = _Ahead(row.draft, start, first, beside)
                first += len(row.draft)
        self.num_drafted += first
        self._generation = self.pool.generation

    def known(self, step: Step) -> list[int] | None:
        """The numbers of the kept logits that answer the step; None if a row of it has to be fed."""
        if not self._aheads or self._generation != self.pool.generation:
            return None
        numbers = []
        for row in step.rows:
            number = self._known(row)
            if number is None:
                return None
            numbers.append(number)
        return numbers

    def _known(self, row: Row) -> int | None:
        ahead, own = self._aheads.get(row.view), row.view.own
        if ahead is None or len(row.feed) != 1 or row.targets or own.frozen:
            return None
        written = (*own.tokens[ahead.start :], *row.feed)
        index = len(written) - 1
        if own.num_tokens < ahead.start or written != ahead.draft[: index + 1]:
            return None
        if _num_tokens(row.view) - own.num_tokens != ahead.beside:
            return None
        return ahead.first + index

    def _guess(self, row: Row, room: int) -> tuple[int, ...]:
        """Tokens that may follow the row's feed, as far as there is room for it."""
        own, place = row.view.own, self.pool.place(row.view.own)
        end = place.offset + own.num_tokens + 1
        most = min(
            self.most,
            room,
            -end % self.pool.page_size,  # slots left on the page that the feed ends on
            self.max_positions - row.view.num_tokens - 1,
        )
        lookup = self._lookup(row.view)
        self._learn(lookup, row.view)
        return lookup.behind(_tail(row), most) if most > 0 else ()

    def _lookup(self, view: View) -> Lookup:
        first = view.blocks[0]
        root = self.prefixes.root_of(first) or first
        lookup = self._lookups.get(root)
        if lookup is None:
            lookup = self._lookups[root] = Lookup(self.pool.num_slots)
        return lookup

    def _learn(self, lookup: Lookup, view: View) -> None:
        """All that the row reads. A block that is frozen and learnt is not looked at again."""
        left = self._read.get(view)
        if left is None:
            left = [weakref.ref(block) for block in dict.fromkeys(view.blocks)]
        still = []
        for reference in left:
            block = reference()
            if block is not None and not (lookup.learn(block) and block.frozen):
                still.append(reference)
        self._read[view] = still


def _alone(step: Step) -> Iterator[int]:
    """The numbers of the rows that write for somebody in plain decoding, and alone."""
    written = {row.view.own for row in step.rows}
    read = {block for row in step.rows for block in written.intersection(row.view.blocks[:-1])}
    for index, row in enumerate(step.rows):
        is_plain = len(row.feed) == 1 and not row.targets and row.writer is not None
        if is_plain and row.view.own not in read and written.isdisjoint(row.view.blocks[:-1]):
            yield index


def _num_tokens(view: View) -> int:
    """Of all blocks, those beside others included."""
    return sum(block.num_tokens for block in view.blocks)


def _tail(row: Row) -> Sequence[int]:
    """The last tokens that the row reads, its feed included."""
    tail = list(row.feed)
    for block in reversed(row.view.blocks):
        tail[:0] = block.tokens[-(_TAIL - len(tail)) :]
        if len(tail) >= _TAIL:
            break
    return tail
