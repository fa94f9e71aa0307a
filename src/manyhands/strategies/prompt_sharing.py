"""A run whose prompt is found: whatever another run has read already is not read again.

    strategy = share_prompt(spec.strategy(text), engine.prefixes, tenant="a key")

Any strategy that names its prompt (`Reserve.prompt`) can be wrapped so; all methods of the house do. It goes
on believing that its prompt is one block, fed with its first pass. In the engine the block's place is
taken by a path of the tree:

    the strategy asks      [prompt, ...]  and feeds the prompt
    the engine is asked    [system message, earlier turns, rest, ...]  and feeds what nobody has fed

Nothing that the strategy knows depends on what was found, and attention is exact, so it writes what it would
write alone. A trace that is recorded inside (`record` goes between the two) is that of a run without a
tree: whole in itself, to be replayed, verified and restored as any other.

At the end, text that was written in just the view of an ordinary prompt is left in the tree as well, for a
next turn that begins with it: the strand of `sequential`, attempts, the main strand of `branches` as long as it
has not parted. What a team wrote is not, for its keys have seen what stands nowhere in the next prompt: a team's
reply is read once more, as a part of that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from manyhands.cache.block import Block
from manyhands.cache.logprobs import part_of, with_token
from manyhands.cache.prefixes import Lease, PrefixTree
from manyhands.cache.step import Row, StandIn, Step
from manyhands.cache.view import Beginning, Item, View
from manyhands.errors import InvalidRequest
from manyhands.strategies.base import Answer, AnswerT, Asked, Reserve, Sent, Work, check_generator
from manyhands.strategies.events import Event
from manyhands.strategies.leasing import take_lease
from manyhands.strategies.settings import SharedSettings, check_tree

ItemT = TypeVar("ItemT", bound=Item)
_MOST_TOKENS = SharedSettings().prefill  # of a prompt, in one pass
_UNUSED = 0  # the token of the row that feeds the prompt


def share_prompt(
    strategy: Work[AnswerT], tree: PrefixTree, tenant: str | None = None
) -> Work[AnswerT]:
    """The same strategy; what `tenant` has in the tree of its prompt is not fed again.

    `found` of its answer says how much that was. A strategy that names no prompt stays as it is. Raises InvalidRequest for a
    tree that is none, or another engine's.
    """
    check_tree(tree)
    check_generator(strategy)
    shared: _SharedPrompt | None = None
    advance: Callable[[Any], Asked] = strategy.send
    value: Sent | Exception = None
    try:
        while True:
            try:
                asked = advance(value)
            except StopIteration as end:
                answer: AnswerT = end.value
                is_answer = isinstance(answer, Answer)  # else the engine says what was expected
                return answer if shared is None or not is_answer else shared.end(answer)
            sent: Sent = None
            try:
                if isinstance(asked, Event):  # as most of what it yields
                    yield asked
                elif shared is not None and isinstance(asked, Step):
                    if shared.path is None:
                        sent = yield from shared.begin(asked)
                    else:
                        sent = yield shared.standing_in(asked, shared.path)
                        shared.follow(asked.rows)
                elif shared is None and isinstance(asked, Reserve) and asked.prompt is not None:
                    own = _besides(asked.now(), len(asked.prompt.feed))
                    lease = yield from take_lease(tree, [asked.prompt.feed], tenant, own)
                    shared = _SharedPrompt(asked.prompt, lease, own)
                else:
                    sent = yield asked
            except Exception as error:  # the strategy's to handle, see `strategies.base`
                advance, value = strategy.throw, error
            else:
                advance, value = strategy.send, sent
            del asked  # or its views would hold what the strategy lets go of
    finally:
        strategy.close()
        if shared is not None:
            shared.close()


def _besides(reserve: Reserve, num_tokens: int) -> Reserve:
    """The reservation without the prompt's tokens."""
    return Reserve(max(0, reserve.num_tokens - num_tokens), reserve.num_blocks)


class _SharedPrompt:
    """The path that stands for the prompt of one run, and the views that go on from it."""

    def __init__(self, row: Row, lease: Lease, own: Reserve) -> None:
        self.block, self.tokens = row.view.own, row.feed  # as the strategy knows them
        # A set says faster than a tuple whether it has a block.
        self._itself = frozenset((self.block,))
        self.lease, self.own = lease, own
        self.path: tuple[Block, ...] | None = None  # None: it cannot be read yet
        self._key = object()  # of the notes of the strategy's views, each of which is its stand-in
        # With which the newest views of each line begin: the strategy's, and its stand-in.
        self._beginnings: dict[object, tuple[Beginning, Beginning]] = {}
        self._num_rows = 0  # of the last step
        # The views of the writers who go on from the prompt in ordinary text. Held here, because the
        # strategy has let go of its views when it has come to its end.
        self._onward: dict[str, View] = {}

    def begin(self, step: Step) -> Generator[Asked, Sent, tuple[int, ...]]:
        """The first step over the path, and before or with it the parts of the path that were not fed yet; its tokens."""
        if all(row.view.own is not self.block for row in step.rows):
            raise InvalidRequest(
                f"a strategy named {self.block!r} as its prompt, and its first step does not feed it",
                hint="Let the row of `Reserve.prompt` be one of the first step.",
            )
        opening = yield from self._reading(step)
        path = self.lease.path(0)
        rows = [row for row in step.rows if row.view.own is not self.block]
        # A step of the prompt alone, all of which is found, needs no pass.
        left = (*opening, *self._standing(rows, path))
        tokens = (yield StandIn(left, step)) if left else ()
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        self.lease.settle()
        self.path = path
        self.block.tokens.extend(self.tokens)
        self._onward = {row.writer: row.view for row in rows if row.writer and self._begins(row)}
        at = next(i for i, row in enumerate(step.rows) if row.view.own is self.block)
        return with_token(part_of(tokens, len(opening)), at, _UNUSED)

    def standing_in(self, step: Step, path: tuple[Block, ...]) -> StandIn:
        """A later step over the path."""
        for row in step.rows:
            if row.view.own is self.block:
                raise InvalidRequest(
                    f"a row writes to {self.block!r}, the prompt, which is only read",
                    hint="Let the row's view end with a fresh Block.",
                )
        return StandIn(self._standing(step.rows, path), step)

    def end(self, answer: AnswerT) -> AnswerT:
        """Leave the text of these views for others, and say how much was found."""
        for view in self._onward.values():
            self.lease.enter(0, view.blocks[1:])
        return replace(answer, found=self.lease.found)

    def close(self) -> None:
        """Give the path back. The strategy has ended."""
        self._onward.clear()
        self._beginnings.clear()
        self.path = None
        self.lease.close()

    def _reading(self, step: Step) -> Generator[Asked, Sent, list[Row]]:
        """Feed the path as far as nobody has; the rows that are left for the pass that reads it."""
        while True:
            rows = self.lease.rows([0], _MOST_TOKENS)
            if self.lease.is_ready(0):
                return rows
            if rows:
                yield StandIn(rows, step)
                self.lease.settle()
            else:
                yield self.own  # somebody else is writing it: wait for the next pass

    def _standing(self, rows: Sequence[Row], path: tuple[Block, ...]) -> list[Row]:
        """The rows over the path. The view of each is the same object in every pass, as the strategy's is."""
        standing: list[Row] = []
        key, are_others = self._key, len(rows) != self._num_rows
        for row in rows:
            asked = row.view
            view: View | None = asked.notes.get(key)
            if view is None and (view := self._view(asked, path)) is not None:
                asked.notes[key], are_others = view, True
            standing.append(row if view is None else row.over(view))
        self._num_rows = len(rows)
        if are_others and self._beginnings:  # they hold blocks that the strategy may have let go of
            used = {row.view.beginning for row in rows}
            kept = {line: b for line, b in self._beginnings.items() if b[0] in used}
            self._beginnings = kept
        return standing

    def _view(self, asked: View, path: tuple[Block, ...]) -> View | None:
        """The view over the path, None if the prompt is not in it. Views that begin alike do so here, too."""
        beginning, is_only_begun = asked.beginning, self._itself.isdisjoint(asked.rest)
        if beginning is None:
            if is_only_begun and self.block not in asked.blocks:  # it may stand in lanes
                return None
            return View(self._over(asked.rest, path))
        known = self._beginnings.get(beginning.line)
        if known is None or known[0] is not beginning:
            known = self._beginnings[beginning.line] = beginning, self._begun(beginning, path)
        if is_only_begun:
            return None if known[1] is beginning else asked.behind(known[1])
        return View(self._over(asked.rest, path), known[1])

    def _begun(self, beginning: Beginning, path: tuple[Block, ...]) -> Beginning:
        """The beginning over the path; itself if the prompt is not in it. It goes on from the last one of its line."""
        before, last = self._beginnings.get(beginning.line, (None, None))
        first: tuple[Block, ...] = ()
        new = beginning.blocks
        if before is not None and last is not None and beginning.goes_on_from(before):
            first, new = last.blocks, new[len(before.blocks) :]
        over = self._over(new, path)
        if over is new and (not first or last is before):
            return beginning
        return Beginning(first + over, last)

    def _over(self, items: tuple[ItemT, ...], path: tuple[Block, ...]) -> tuple[ItemT | Block, ...]:
        """These items, with the path where the prompt stands."""
        found: tuple[ItemT | Block, ...] = items
        while self.block in found:
            at = found.index(self.block)
            found = (*found[:at], *path, *found[at + 1 :])
        return found

    def _begins(self, row: Row) -> bool:
        """Whether a row of the first pass goes on right behind the prompt, at a fresh block."""
        own = row.view.own
        return row.view.items == (self.block, own) and own.num_tokens == len(row.feed)

    def follow(self, rows: Iterable[Row]) -> None:
        """Behind a later step follow the views that go on; one whose text is no longer ordinary is followed no further."""
        if not self._onward:
            return
        owners = {view.own: writer for writer, view in self._onward.items()}
        for row in rows:
            writer, own = row.writer, row.view.own
            if writer is None or writer not in self._onward:
                if own in owners:
                    self._onward.pop(owners[own], None)
                continue
            before, view = self._onward[writer], row.view
            if view is before:
                continue
            known = view.items[:-1]
            is_fresh = own.num_tokens == len(row.feed)
            is_done = all(block.frozen for block in view.blocks[1:-1])
            if is_fresh and is_done and known == before.items[: len(known)]:
                self._onward[writer] = view
            else:
                del self._onward[writer]
