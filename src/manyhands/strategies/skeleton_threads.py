"""What `skeleton` is made of: the threads that work out its points, and what can be read of a run.

A thread reads the prompt, the outline and itself. Other threads are not hidden from it by anything:
they are absent from its view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.cache.block import Block
from manyhands.cache.step import Row
from manyhands.cache.view import View
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.strategies.branch_lines import Line
from manyhands.strategies.ending import Scene
from manyhands.strategies.writer import Writer


@dataclass(frozen=True)
class Point:
    """One point of the outline, and whose it is: `worker` (from 1) takes it as its `turn`th."""

    number: int  # from 1
    title: str
    worker: int
    turn: int


def dealt(titles: Sequence[str], workers: int) -> dict[int, list[Point]]:
    """The points of each worker, in order. Of k workers each takes every k-th; 0: one for each."""
    workers = min(workers, len(titles)) or len(titles)
    return {
        worker: [
            Point(number, titles[number - 1], worker, turn)
            for turn, number in enumerate(range(worker, len(titles) + 1, workers), 1)
        ]
        for worker in range(1, workers + 1)
    }


class Thread:
    """One point while it is worked out."""

    def __init__(
        self,
        writer: Writer,
        prompt: SkeletonPrompt,
        trunk: Sequence[Block],
        point: Point,
        first_pass: int,
    ) -> None:
        self.point, self.first_pass, self.last_pass = point, first_pass, 0
        self.heading = prompt.heading(point.number, point.title)
        opening = writer.vocabulary.encode(self.heading)
        self.line = Line(writer, (prompt.stop,) if prompt.stop else (), trunk, opening)
        self.text = ""
        self.reason = ""  # why it is done: "marker", "stopped" (end of turn), "budget" or "context"
        self.unfed: tuple[int, ...] = ()  # once it is done

    @property
    def writer(self) -> Writer:
        """Who writes it."""
        return self.line.writer

    def row(self) -> Row:
        """Its next row."""
        return self.writer.row(self.line.view)

    def read(self, token: int, turn_end: frozenset[int], max_tokens: int) -> str:
        """Take the token that was chosen; return the text that it makes certain."""
        piece = self.line.read(token, turn_end)
        self.text += piece
        if self.line.watch.found is not None:
            self.finish("marker")
        elif self.writer.stopped:
            self.finish("stopped")
        elif self.writer.num_tokens >= max_tokens:
            self.finish("budget")
        return piece

    def finish(self, reason: str) -> None:
        """It is done: settle its text, and what of it has yet to be fed."""
        line = self.line
        self.reason = reason
        self.unfed = line.part() if line.watch.found is not None else self.writer.feed
        self.text = (self.text + line.watch.pending).strip()
        for block in line.blocks:
            block.freeze()

    def stretch(self) -> Stretch:
        """What of it can be read now."""
        return Stretch(self.line.blocks, self.unfed if self.reason else self.writer.unread)

    def visible(self) -> str:
        """As it stands in the main line."""
        return self.heading + self.text


@dataclass(frozen=True)
class Stretch:
    """A stretch of a run: its blocks, and the tokens behind them that nobody was fed yet."""

    blocks: tuple[Block, ...]
    unfed: tuple[int, ...] = ()

    def fed(self, before: Sequence[Block] = ()) -> tuple[tuple[Block, ...], list[Row]]:
        """Its blocks, one more for what is unfed, and the row that feeds it behind `before`."""
        if not self.unfed:
            return self.blocks, []
        blocks = (*self.blocks, Block(f"{self.blocks[-1].name}'s last"))
        return blocks, [Row(View((*before, *blocks)), self.unfed)]


def scene_of(trunk: Stretch, threads: Sequence[Stretch]) -> Scene:
    """Everything there is: `trunk`, and the threads that have read it."""
    ground, rows = trunk.fed()
    whole = ground
    for thread in threads:
        blocks, more = thread.fed(ground)
        whole, rows = whole + blocks, rows + more
    unfed = {row.view.own: row.feed for row in rows}

    def tokens() -> tuple[int, ...]:
        return tuple(t for block in whole for t in (*block.tokens, *unfed.get(block, ())))

    tails = tuple((row.view, row.feed) for row in rows)
    return Scene(tails, lambda *last: View((*whole, *last)), tokens)
