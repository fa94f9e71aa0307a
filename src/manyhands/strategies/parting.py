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
from manyhands.strategies.base import FinishedStep, Work
from manyhands.strategies.branch_joins import Join
from manyhands.strategies.events import (
    Event,
    StepBegun,
    StepEnded,
    TokenWritten,
    WorkerJoined,
    WorkerStopped,
)
from manyhands.strategies.scene import Scene, Writing, scene_of
from manyhands.strategies.strand import SLACK, SideStrand, Strand, StrandRun
from manyhands.strategies.writer import Writer


def most_of_parts(budget: int, parts: int, at_once: int, tokens: int, opening: int) -> int:
    """The most tokens that parts can bring within a budget: what they write, and the words by which each is opened.

    There are at most so many `parts` of so many `tokens` each besides the `opening`; so many of them write `at_once`.
    A token of the main strand names a part at most, so of n parts the budget leaves room for budget - n passes: many
    parts write little.
    """
    most = max(1, min(parts, budget))

    def of(number: int) -> int:
        number = max(1, min(number, most))
        in_passes = min(number, at_once) * max(0, budget - number)
        return number * opening + min(number * tokens, in_passes)

    # Between these numbers of parts it grows or falls steadily: where one more does not write at once, where openings
    # and passes together are most, and where the parts' own bound meets the passes that are left.
    meet = at_once * budget // (tokens + at_once)
    corners = at_once, (budget + opening) // 2, budget - tokens, meet, most
    return max(of(corner + more) for corner in corners for more in (0, 1))


class WorkerStrand(SideStrand):
    """A side strand of a worker of its own.

    `name` is its worker's, `heading` opens its step for a person who watches, `step` is the number of that,
    `last_pass` is the pass in which it ended.
    """

    step = 0

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

    @property
    def step_text(self) -> str:
        """The text of its step so far."""
        return self.text

    @property
    def writing(self) -> Sequence[WorkerStrand]:
        """The strands of it that write in the next pass: it itself, until it is done."""
        return [] if self.finish_reason else [self]

    @property
    def num_all(self) -> int:
        """Tokens that will be joined of it."""
        return self.num_joined

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
            yield StepEnded(self.passes, part.worker, step, part.step_text.strip())
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
        yield from self.welcome(team, fork)
        while live := [strand for part in team for strand in part.writing]:
            yield from self.write_together(live)
            self.check(fixed + sum(part.num_all + SLACK for part in team))
            for strand in live:
                yield from self.let_leave(strand, strand.step)
            yield from self.look()
            yield from self.between_passes(live)

    def welcome(self, team: Sequence[P], fork: int) -> Generator[Event, None, None]:
        """The parts of a fork come to the run."""
        for part in team:
            part.step = fork
            yield WorkerJoined(self.passes, part.worker, part.name)
            yield StepBegun(self.passes, part.worker, fork, part.heading)

    def between_passes(self, live: Sequence[WorkerStrand]) -> Generator[Event, None, None]:
        """The place for a strategy to part a part again. `live` have just written, and may have ended."""
        yield from ()

    def joined(self) -> tuple[tuple[Item, ...], list[Row]]:
        """The trunk and the parts as far as they go, and the rows to be fed for it."""
        items, rows = self.join(self.trunk, [part.as_writing() for part in self.team])
        return (*self.trunk, *items), rows

    def go_on_joined(self) -> Generator[Event, None, None]:
        """One strand again. What has to be fed for that goes along with its next pass."""
        items, rows = self.joined()
        self.opening += rows
        self.writer.stopped = False
        self.strand = Strand(self.writer, self.marks, items, self.after)
        self.settle(self.team)
        self.team = ()
        self.begin_segment()
        yield StepBegun(self.passes, 0, self.num_segments + 1, "")

    def settle(self, team: Sequence[P]) -> None:
        """Put the last steps of parts on record."""
        for part in team:
            text, passes = part.step_text.strip(), (part.first_pass, part.last_pass)
            self.steps.append(FinishedStep(part.worker, part.step, text, *passes))

    def scene(self) -> Scene:
        """Parts joined as far as they go, if the budget ended here; else the main strand."""
        if self.team:
            items, rows = self.joined()
            return scene_of(Writing(items, self.after), opening=rows)
        return super().scene()
