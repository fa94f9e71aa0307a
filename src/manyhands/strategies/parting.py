"""One text that becomes several and one again: the step loop of `branches`, `profiled` and `skeleton`.

A *part* is a strand of a worker of its own beside the main strand. All live parts write in one pass; a part ends
at its mark, at its turn's end, when its tokens are spent or when the run ends, and leaves the step
(`StrandsRun`). In a *fork* the main strand waits for all of them and goes on behind their join (`ForkRun`). A
strategy adds its views: the marks that open a fork, what a part reads, and how the text of a join looks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Generic, TypeVar

from manyhands.cache.step import Row
from manyhands.cache.view import Item
from manyhands.strategies.base import FinishedStep
from manyhands.strategies.branch_joins import Join
from manyhands.strategies.ending import Work
from manyhands.strategies.events import (
    Event,
    StepBegun,
    StepEnded,
    TokenWritten,
    WorkerJoined,
    WorkerStopped,
)
from manyhands.strategies.scene import Scene, Stretch, scene_of
from manyhands.strategies.strand import SLACK, SideStrand, Strand, StrandRun
from manyhands.strategies.writer import Writer


class WorkerStrand(SideStrand):
    """A side strand of a worker of its own.

    `name` is its worker's, `heading` opens its step for a person who watches, `last_pass` is the pass in which it
    ended.
    """

    def __init__(
        self,
        worker: int,
        name: str,
        heading: str,
        writer: Writer,
        marks: Sequence[str],
        before: Sequence[Item],
        opening: str,
        first_pass: int,
        max_tokens: int,
    ) -> None:
        super().__init__(writer, marks, before, opening, first_pass, max_tokens)
        self.worker, self.name, self.heading, self.last_pass = worker, name, heading, 0

    def row(self) -> Row:
        """Its next row."""
        return self.writer.row()


P = TypeVar("P", bound=WorkerStrand)


class StrandsRun(StrandRun):
    """A run in which several parts write at the same time."""

    def write_together(
        self,
        parts: Sequence[WorkerStrand],
        goes_on: Callable[[WorkerStrand], bool] = lambda part: False,
    ) -> Work[None]:
        """One pass of all these parts. A turn's end is not told of a worker that `goes_on` with another part."""
        tokens = yield from self.forward([part.row() for part in parts])
        for part, token, told in zip(parts, tokens, self.logprobs, strict=True):
            piece = part.read(token, self.text.turn_end)
            if not (part.writer.stopped and goes_on(part)):
                yield TokenWritten(self.passes, part.worker, token, piece, told)

    def let_leave(
        self, part: WorkerStrand, step: int, *, goes_on: bool = False
    ) -> Generator[Event, None, None]:
        """If the part has ended, or has to because the run has: its step ends, and its worker stops.

        A worker that `goes_on` has another part to write, unless the run is over.
        """
        if self.finish_reason and not part.finish_reason:
            part.finish(self.finish_reason)
        if part.finish_reason:
            part.last_pass = self.passes
            yield StepEnded(self.passes, part.worker, step, part.text.strip())
            if self.finish_reason or not goes_on:
                yield WorkerStopped(self.passes, part.worker, part.finish_reason)


class ForkRun(StrandsRun, Generic[P]):
    """A run whose main strand parts and is joined again, as often as it likes.

    `trunk` is what the parts of the open fork read, `team` are those parts, empty while the main strand writes;
    `join` makes one view of them, and the tokens `after` are fed behind it.
    """

    join: Join
    after: tuple[int, ...]
    trunk: tuple[Item, ...] = ()
    team: Sequence[P] = ()

    def write_parts(self, team: Sequence[P], fork: int, fixed: int) -> Work[None]:
        """Let all parts of a fork write to their ends. `fixed` tokens will be joined besides theirs."""
        self.team = team
        for part in team:
            yield WorkerJoined(self.passes, part.worker, part.name)
            yield StepBegun(self.passes, part.worker, fork, part.heading)
        while live := [part for part in team if not part.finish_reason]:
            yield from self.write_together(live)
            self.check(fixed + sum(part.num_joined + SLACK for part in team))
            for part in live:
                yield from self.let_leave(part, fork)
            yield from self.look()

    def joined(self) -> tuple[tuple[Item, ...], list[Row]]:
        """The trunk and the parts as far as they go, and the rows to be fed for it."""
        items, rows = self.join(self.trunk, [part.stretch() for part in self.team])
        return (*self.trunk, *items), rows

    def go_on_joined(self, fork: int) -> Generator[Event, None, None]:
        """One strand again. What has to be fed for that goes along with its next pass."""
        items, rows = self.joined()
        self.opening += rows
        self.writer.stopped = False
        self.strand = Strand(self.writer, self.marks, items, self.after)
        for part in self.team:
            text = part.text.strip()
            step = FinishedStep(part.worker, fork, text, part.first_pass, part.last_pass)
            self.steps.append(step)
        self.team = ()
        self.begin_segment()
        yield StepBegun(self.passes, 0, self.num_segments + 1, "")

    def scene(self) -> Scene:
        """Parts joined as far as they go, if the budget ended here; else the main strand."""
        if self.team:
            items, rows = self.joined()
            return scene_of(Stretch(items, self.after), opening=rows)
        return super().scene()
