"""States of texts, in integers: which slot holds the state of which text, for networks that keep one.

Linear layers fold a text into one state of a fixed size (`model/recurrent.py`). It depends on every token and on their
order, so each block has one text before it for good, and the state behind a block is that of a whole text:

    view [prompt, own]      the state behind `own` is that of the text prompt + own
    a fork                  begins with the state behind the last block before it that has tokens

A state is known by its block and by how many tokens that has. A pass reads it from one slot and leaves the new one in
another; then the block has both, for two lengths. If the pass fails, the block is as long as before, and the older state
is its own again; if it succeeds, the newer one is. So nothing is kept or taken back here, and an interrupt changes
nothing. Which slots are free follows from the blocks that live: there is no list of them that could be wrong.

Slot 0 is the empty text. Slots of blocks that are kept for others (`Keeper`) are free as soon as they are needed: first those of
blocks that no run reads, and then those of blocks that runs only *pass*. A state that was passed may go and come back:

    goes          the block keeps its tokens and its keys, and its slot is another text's (`make_room`)
    is missed     a feed is to begin behind it: the tree puts a fresh block in its place, still to be fed (`renewed`)
    comes back    that is fed once more; what was written behind the old block is read behind either, for both have one *name*

A pass costs what has a state or may grow. Kept texts whose states are gone may be far more, and are not walked.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from manyhands.cache.block import Block
from manyhands.cache.journal import Journal
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest, OutOfMemory, counted

EMPTY = 0  # the slot of the empty text
# The methods, and the choices with them, whose blocks are each read behind one text alone (tests/strategies/test_forks.py
# finds them). Both wings name them in messages and docs, so the list stands below both.
FORKING = (
    "sequential",
    "branches (join reencode)",
    "async_think",
    "self_consistency (mode vote)",
    "best_of_n",
    "profiled (profile threadweaver)",
    "batches",
)
_HINT = f"Methods that only fork run on it: {', '.join(FORKING)}. Or take a network without such layers."


@dataclass(frozen=True)
class RowStates:
    """The states of one pass: where each row's comes from, and where the new one is left.

    Row r is fed the tokens `row_indptr[r]` .. `row_indptr[r + 1]`: packed tokens, or with `tokens` those of these packed
    indices. A source may be named by several rows, and may be the target of another row, whose tokens then come first
    (`waves`). A target is named once. Raises `ValueError` otherwise.
    """

    row_indptr: tuple[int, ...]  # R + 1
    sources: tuple[int, ...]  # R slots; `EMPTY` for a row whose text begins with this feed
    targets: tuple[int, ...]  # R slots
    tokens: tuple[int, ...] | None = None  # T packed indices, row by row; None: as they are packed
    # R slots that no text has, for the targets of the next pass if the same rows go on; (): there are too few.
    following: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.row_indptr) - 1
        if not rows == len(self.sources) == len(self.targets):
            raise ValueError(
                f"{rows} rows have {len(self.sources)} sources and {len(self.targets)} targets; one each is expected"
            )
        if any(
            end <= begin for begin, end in zip(self.row_indptr, self.row_indptr[1:], strict=False)
        ):
            raise ValueError(
                f"a row is fed nothing (row_indptr {list(self.row_indptr)}); leave it out"
            )
        if self.row_indptr[0] != 0:
            raise ValueError(f"row_indptr begins with {self.row_indptr[0]}; 0 is expected")
        if len(set(self.targets)) < rows:
            raise ValueError(
                f"two rows leave their state in one slot (targets {list(self.targets)})"
            )
        if EMPTY in self.targets:
            raise ValueError(f"slots [{EMPTY}] are read in this pass, and cannot be targets in it")
        self.waves()

    def waves(self) -> list[dict[int, list[int]]]:
        """Rows in the order in which they can be made, each wave by how many tokens its rows are fed."""
        maker = {slot: row for row, slot in enumerate(self.targets)}
        depths: dict[int, int] = {}
        for row in range(len(self.targets)):
            chain = [row]
            while chain[-1] not in depths:
                before = maker.get(self.sources[chain[-1]])
                if before in chain:
                    slots = sorted(self.sources[each] for each in chain[chain.index(before) :])
                    raise ValueError(
                        f"slots {slots} are read in this pass, and cannot be targets in it"
                    )
                if before is None:
                    depths[chain[-1]] = 0
                else:
                    chain.append(before)
            for each in reversed(chain[:-1]):
                depths[each] = depths[maker[self.sources[each]]] + 1
        waves: list[dict[int, list[int]]] = [
            {} for _ in range(max(depths.values(), default=-1) + 1)
        ]
        for row, depth in sorted(depths.items()):
            size = self.row_indptr[row + 1] - self.row_indptr[row]
            waves[depth].setdefault(size, []).append(row)
        return waves

    @property
    def num_slots(self) -> int:
        """The highest slot that is named."""
        return max((*self.sources, *self.targets))

    @property
    def are_one_each(self) -> bool:
        """Whether every row is fed one token, as they are packed, and none goes on from what another one leaves."""
        is_one_each = self.tokens is None and self.row_indptr[-1] == len(self.targets)
        return is_one_each and set(self.sources).isdisjoint(self.targets)

    def goes_on(self, before: RowStates) -> bool:
        """Whether these are the rows of the pass before, and leave their states in the slots that were meant for them.

        A pass that was begun ahead has left the same states there, unless something else has written to these slots since
        (`engine/passes.py::Passes.drop_begun`).
        """
        return self.sources == before.targets and self.targets == before.following

    def tokens_of(self, row: int) -> Sequence[int]:
        """The packed indices of a row's tokens."""
        first, last = self.row_indptr[row], self.row_indptr[row + 1]
        return range(first, last) if self.tokens is None else self.tokens[first:last]


@dataclass(eq=False)
class _Text:
    """The text that ends with a block: what stands before the block, and the states behind it."""

    start: int | None  # tokens before the block; None: not known yet
    before: (
        int | None
    )  # name of the last block before it that has tokens; 0: there is none; None: not known yet
    name: int
    slots: dict[int, int] = field(default_factory=dict)  # by how many tokens the block has
    view: weakref.ref[View] | None = None  # the last view of the row that writes it

    def forget(self) -> None:
        """The block is empty again, and may stand elsewhere. The name stays: see `StateBook.renewed`."""
        self.start = self.before = self.view = None
        self.slots = {}

    def is_behind(self, start: int, before: int, *, is_fed: bool) -> bool:
        """Whether this is what stands before the block in some view. If that is not known, it is from now on.

        `is_fed`: to the text before it a pass is still to feed something. It may fail, and another block stand there then: nothing is
        noted.
        """
        if self.before is None and self.start in (start, None):
            if not is_fed:
                self.start, self.before = start, before
            return True
        return (self.start, self.before) == (start, before)


class StateBook:
    """The texts of all living blocks, and in which of `num_slots` slots their states lie."""

    def __init__(
        self,
        num_slots: int,
        let_go: Callable[[], bool] = lambda: False,
        idle: Callable[[Collection[Block]], Iterable[Block]] | None = None,
        passed: Callable[[Collection[Block]], Iterable[Block]] = lambda blocks: (),
    ) -> None:
        """`let_go` drops a block that is only kept for others, where there is one: False if not. Of blocks `idle` tells those that may be
        dropped (None: that is not known), and `passed` those that are read and from whose states no row goes on.
        """
        self.num_slots = num_slots
        self._let_go, self._idle, self._passed = let_go, idle, passed
        self._texts: dict[weakref.ref[Block], _Text] = {}
        # Of them those that have a state, or whose block may grow: at most as many as slots and rows, where kept texts may be far more.
        self._current: dict[weakref.ref[Block], _Text] = {}
        self._gone: list[weakref.ref[Block]] = []  # blocks that died
        self._has_gone = self._gone.append  # no Python code: no death goes unnoticed
        self._names: Iterator[int] = count(1)
        # The slots that the newest pass has told to follow: the next pass takes them where they are free still.
        self._meant: dict[weakref.ref[Block], int] = {}

    @property
    def num_free(self) -> int:
        """Slots that no living block has."""
        return self.num_slots - len(self._used())

    def take(self, step: Step, earlier: Callable[[Block], Collection[int]]) -> RowStates:
        """Sources and targets for a pass that feeds this step.

        `earlier` says how many tokens a block had before the step, of which this pass may feed a later part, and before the first chunk
        of that part: what fails as a whole goes back to there. Raises InvalidRequest for a block that is read behind another text than
        the one before it, or whose state is gone, and OutOfMemory where slots do not suffice.
        """
        self._tidy(earlier)
        growth = {row.view.own: len(row.feed) for row in step.rows}
        texts = [self._check(row, growth) for row in step.rows]
        targets, following = self._slots_for(list(growth))
        sources = [self._source(row, growth, targets) for row in step.rows]
        for row, text in zip(step.rows, texts, strict=True):
            own = row.view.own
            self._current[weakref.ref(own)] = text
            text.slots = {**text.slots, own.num_tokens + len(row.feed): targets[own]}
            text.view = weakref.ref(row.view)
        ends = [0]
        for row in step.rows:
            ends.append(ends[-1] + len(row.feed))
        own_slots = tuple(targets[row.view.own] for row in step.rows)
        return RowStates(tuple(ends), tuple(sources), own_slots, following=following)

    def slot(self, block: Block, size: int | None = None) -> int | None:
        """Where the state behind the first `size` tokens of a block lies, or behind all; None if it is not held."""
        text = self._texts.get(weakref.ref(block))
        size = block.num_tokens if size is None else size
        return None if text is None else text.slots.get(size)

    def divided(self, block: Block, tail: Block) -> None:
        """`tail` is the last part of a block: the state behind one is that behind the other."""
        text = self._texts.get(weakref.ref(block))
        if text is not None:
            slot = text.slots.get(block.num_tokens)
            slots = {} if slot is None else {tail.num_tokens: slot}
            start = text.start
            if start is not None:
                start += block.num_tokens - tail.num_tokens
            self._enter(tail, _Text(start, None, text.name, slots))

    def renewed(self, block: Block, fresh: Block) -> None:
        """`fresh` is to be fed what a block holds whose state is gone, or its last part: what was written behind one may be read behind both."""
        text = self._texts.get(weakref.ref(block))
        if text is not None:
            self._enter(fresh, _Text(None, None, text.name))

    def is_put_behind_equal(self, block: Block) -> None:
        """The block is read behind another one than it was written behind, which holds the same tokens in the same place."""
        text = self._texts.get(weakref.ref(block))
        if text is not None:
            text.before = None

    def start(self, block: Block) -> int | None:
        """How many tokens stand before a block; None if that is not known."""
        text = self._texts.get(weakref.ref(block))
        return None if text is None else text.start

    def hold(
        self, block: Block, slot: int, start: int | None = None, *, size: int | None = None
    ) -> None:
        """The state behind a block lies in this slot, where another pass has left it. `start`: see `start`.

        `size`: that behind its first tokens, so many, to which a step goes back that is being fed in parts.
        """
        known = self._texts.get(weakref.ref(block))
        text = _Text(start, None, next(self._names)) if known is None else known
        self._enter(block, text)
        text.slots = {**text.slots, block.num_tokens if size is None else size: slot}

    def evict(self, blocks: Iterable[Block], journal: Journal) -> None:
        """Free the slots of these blocks; what stands before each stays known."""
        for block in blocks:
            if (text := self._texts.get(weakref.ref(block))) is not None:
                journal.keep(text, "slots")
                text.slots = {}

    def make_room(self, num_slots: int) -> bool:
        """Have so many slots free, with the help of the keepers. False if it cannot be: these let nothing go then.

        Behind what keepers let go, states go of blocks that runs only pass: they keep their keys, and a text that comes to end there
        is fed once more.
        """
        if not self.could_have(num_slots):
            return False
        while (missing := num_slots - self.num_free) > 0:
            # Each that goes has one slot at most: to count all of them behind each would take long where many are kept.
            num_gone = 0
            while num_gone < missing and self._let_go():
                num_gone += 1
            if not num_gone:
                break
        return missing <= 0 or self._forget_passed(num_slots)

    def _forget_passed(self, num_slots: int) -> bool:
        """Forget states of passed blocks until so many slots are free; False if there are too few."""
        for block in self._passed(self._holders()):
            if self.num_free >= num_slots:
                break
            self._current[weakref.ref(block)].slots = {}
        return self.num_free >= num_slots

    def could_have(self, num_slots: int) -> bool:
        """Whether so many slots are free, or held by blocks that may be dropped, as far as is known."""
        if self._idle is None or (missing := num_slots - self.num_free) <= 0:
            return True
        holders = self._holders()
        found = {*self._idle(holders), *self._passed(holders)}
        slots = {
            slot for block in found for slot in self._current[weakref.ref(block)].slots.values()
        }
        return len(slots) >= missing

    def _holders(self) -> list[Block]:
        """The living blocks that have a state."""
        known = ((reference(), text) for reference, text in self._current.items())
        return [block for block, text in known if block is not None and text.slots]

    def free_slots(self, wanted: int) -> list[int]:
        """So many slots that no block has. Raises OutOfMemory where there are fewer."""
        return self.all_free(wanted)[:wanted]

    def all_free(self, least: int) -> list[int]:
        """All slots that no block has, so many at least; see `free_slots`."""
        if not self.make_room(least):
            raise OutOfMemory(
                f"this needs {counted(least, 'more state')}, and {self.num_free} of {self.num_slots} are free",
                hint="Give the engine more states (--states), or run fewer strategies at once.",
            )
        used = self._used()
        return [slot for slot in range(1, self.num_slots + 1) if slot not in used]

    def _slots_for(self, blocks: Sequence[Block]) -> tuple[dict[Block, int], tuple[int, ...]]:
        """Targets for these blocks, and as many slots to follow, if there are.

        A pass that is begun ahead writes to the slots that follow before this one has succeeded. So no text has them, neither now
        nor if this pass is taken back. Until the next pass is planned they are free: a run that comes back may take them.
        """
        free = set(self.all_free(len(blocks)))
        meant = {block: self._meant.get(weakref.ref(block)) for block in blocks}
        kept = {block: slot for block, slot in meant.items() if slot in free}
        others = iter(sorted(free.difference(kept.values())))
        targets = {block: kept.get(block) or next(others) for block in blocks}
        following = tuple(slot for slot, _ in zip(others, blocks, strict=False))
        if len(following) < len(blocks):
            following = ()
        self._meant = dict(zip(map(weakref.ref, blocks), following, strict=False))
        return targets, following

    def _enter(self, block: Block, text: _Text) -> None:
        reference = weakref.ref(block, self._has_gone)
        self._texts[reference] = self._current[reference] = text

    def _tidy(self, earlier: Callable[[Block], Collection[int]]) -> None:
        """Forget what was gone before: blocks, and states of lengths that no block has or can go back to."""
        while self._gone:  # deaths meanwhile are added behind
            for known in (self._texts, self._current):
                known.pop(self._gone[0], None)
            del self._gone[0]
        for reference, text in list(self._current.items()):
            if (block := reference()) is None:
                continue
            if not (size := len(block.tokens)):
                text.forget()
            elif len(text.slots) > 1 or size not in text.slots:
                sizes = (size, *earlier(block))
                text.slots = {n: slot for n, slot in text.slots.items() if n in sizes}
            if not text.slots and (block.frozen or not size):
                del self._current[reference]

    def _used(self) -> set[int]:
        used: set[int] = set()
        for reference, text in self._current.items():
            if reference() is not None:
                used.update(text.slots.values())
        return used

    def _check(self, row: Row, growth: Mapping[Block, int]) -> _Text:
        """The text of a row's own block. A view that was walked is held against the length before that block alone."""
        view, own = row.view, row.view.own
        text = self._texts.get(weakref.ref(own))
        # The text before a block that was renewed or cut may have been fed in the very pass that fed it first: then it is not noted.
        is_noted = text is not None and text.before is not None
        if text is not None and is_noted and text.view is not None and text.view() is view:
            start = sum(b.num_tokens + growth.get(b, 0) for b in view.blocks[:-1])
            if start != text.start:
                raise _reordered(own)
            return text
        self._walk(view, growth)
        return self._texts[weakref.ref(own)]

    def _walk(self, view: View, growth: Mapping[Block, int]) -> None:
        """Hold every block of a view against the text before it, or note that where the block is new."""
        if view.beside_others:
            raise _reordered(view.beside_others[0])
        start = before = 0
        is_fed = False
        for block in view.blocks:
            size = block.num_tokens + growth.get(block, 0)
            if not size:
                continue
            text = self._texts.get(weakref.ref(block))
            if text is None:
                text = _Text(start, before, next(self._names))
                self._enter(block, text)
            elif not text.is_behind(start, before, is_fed=is_fed):
                raise _reordered(block)
            start, before = start + size, text.name
            is_fed = is_fed or block in growth

    def _source(self, row: Row, growth: Mapping[Block, int], targets: Mapping[Block, int]) -> int:
        own = row.view.own
        if own.num_tokens:
            return self._held(own)
        for block in reversed(row.view.blocks[:-1]):
            if block in growth:
                return targets[block]
            if block.num_tokens:
                return self._held(block)
        return EMPTY

    def _held(self, block: Block) -> int:
        slot = self.slot(block)
        if slot is None:
            raise InvalidRequest(
                f"the state behind token {block.num_tokens} of the block {block.name!r} is not held: this network "
                "folds a text into one state, and that is kept where a feed has ended",
                hint="Feed the text anew in a fresh block.",
            )
        return slot


def _reordered(block: Block) -> InvalidRequest:
    return InvalidRequest(
        f"the block {block.name!r} is read behind another text than the one that it was written behind, and this "
        "network folds a text into one state, which depends on the order of all its tokens",
        hint=_HINT,
    )
