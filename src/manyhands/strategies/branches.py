"""Parallel decoding in one sequence (PDOS, section 3): titles first, then all parts at the same time.

    1  skeleton   the model lists titles between marks. Behind each title's end the placeholder, the
                  line break and the next marker are fed in the same row: no pass is lost. Nothing is
                  forced outside an open block
    2  branches   every title becomes a worker that reads [trunk, own branch]; the trunk is all text
                  before the block. Who is done leaves the step
    3  join       the branches follow the trunk in the order of their titles, and one line goes on

The next marker opens the next block, up to `max_blocks`. A block that ends in another way than by its
terminator still gets its branches, from the titles that are complete. Without a complete title
nothing has happened: what was written stays where it is, and decoding goes on behind it.

There are three joins, see `branch_joins.py`: one computes the branches' text anew, two do not. Asked
for its answer in passing (`snapshots`), a run is seen as if its budget ended there: branches are joined
as far as they go, on the side, and the finisher reads that.

Worker 0 is the line before and after the blocks; branches are workers 1, 2, ... through the run.
`forward_passes` counts passes, however many branches take part: the critical path.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import Item, View
from manyhands.prompts.branches import BranchPrompt
from manyhands.strategies.base import (
    AnswerFound,
    Event,
    Reserve,
    StepBegun,
    StepEnded,
    Strategy,
    TokenWritten,
    WorkerJoined,
    WorkerStopped,
)
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.branch_lines import (
    BRANCH,
    LINE,
    SLACK,
    Branch,
    Line,
    placeholder_tokens,
)
from manyhands.strategies.branch_record import BranchAnswer, BranchRecord
from manyhands.strategies.ending import Scene, Steps
from manyhands.strategies.line_ending import LineEnding, scene_of
from manyhands.strategies.settings import BranchSettings
from manyhands.strategies.writer import Writer
from manyhands.text import Text
from manyhands.text.markers import TitleReader


def branches(
    question: str,
    text: Text,
    settings: BranchSettings | None = None,
    prompt: BranchPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: one line that parts into branches where the model says so."""
    run = _Run(question, text, settings or BranchSettings(), prompt or BranchPrompt(), context)
    yield run.reserve()
    yield from run.work()
    yield from run.end()
    return run.result()


class _Run:
    """The state of one run."""

    def __init__(
        self,
        question: str,
        text: Text,
        settings: BranchSettings,
        prompt: BranchPrompt,
        context: int | None,
    ) -> None:
        self.text, self.settings, self.context = text, settings, context
        profile = self.profile = settings.markers
        message = prompt.message(
            question,
            marker=profile.marker,
            title_end=profile.title_end,
            placeholder=profile.placeholder,
            terminator=profile.terminator,
        )
        self.prompt_tokens = text.chat_prompt(message)
        start = Block("prompt")
        self.opening: list[Row] = []  # to be fed with the next pass, besides the rows that write
        if self.prompt_tokens[1:]:
            self.opening.append(Row(View((start,)), self.prompt_tokens[:-1]))
        self.writer = Writer(text, settings.choice, settings.seed, LINE)
        self.line = self._line((start,), self.prompt_tokens[-1:])
        self.between = text.encode(profile.between_titles())
        self.close = text.encode(profile.terminator + "\n")
        self.banned = placeholder_tokens(text, profile.placeholder)
        self.join = JOINS[settings.join]
        self.ending = LineEnding(text, settings, prompt.finisher)
        self.ending_tokens = self.ending.num_tokens
        self.passes = 0
        self.num_blocks = 0
        self.finish_reason = ""
        self.record = BranchRecord(text.thinking)

    def _line(self, before: Sequence[Item], feed: tuple[int, ...]) -> Line:
        self.writer.stopped = False
        return Line(self.writer, (self.profile.marker,), before, feed)

    # -- the line --------------------------------------------------------------------------------

    def work(self) -> Steps:
        """Write; where a marker comes, read titles; where there are titles, part and join."""
        while not self.finish_reason:
            if self.line.watch.found is None:
                yield from self._write()
                continue
            titles = yield from self._skeleton()
            if titles:
                yield from self._part(titles)
        yield from self.record.say(self.line.watch.pending, self.passes)
        self.record.cut_segment(self.passes)

    def _write(self) -> Steps:
        """One pass of ordinary decoding."""
        line = self.line
        (token,) = yield from self._pass([line.writer.row(line.view)])
        certain = self._overlook_needless(line.read(token, self.text.eos))
        yield TokenWritten(self.passes, 0, token, certain)
        yield from self.record.say(certain, self.passes)
        self.record.wrote(token, self.text.think_end)
        yield from self._look_around()

    def _overlook_needless(self, certain: str) -> str:
        """Once there have been enough blocks, a marker is only left out of the text."""
        line = self.line
        while line.watch.found is not None and self.num_blocks >= self.settings.max_blocks:
            certain += line.overlook(line.watch.rest)
        return certain

    def _look_around(self) -> Steps:
        """Is it over? Not while a block is open: then it is for `_skeleton` to say."""
        if self.line.watch.found is not None:
            return
        if self.writer.stopped:
            yield WorkerStopped(self.passes, 0)
            self.finish_reason = "stopped" if self.record.answer is None else "answer"
        else:
            line, feed = self.line, self.writer.feed
            self._check(line.num_tokens + len(feed) + 1)
            yield from self._look(lambda: scene_of(line.view.items, (), feed), line.watch.pending)

    def _check(self, num_tokens: int) -> None:
        """Whether the passes are spent, or a view of so many tokens leaves no room for the ending."""
        if self.passes >= self.settings.budget:
            self.finish_reason = "budget"
        elif self.context is not None and num_tokens + self.ending_tokens > self.context:
            self.finish_reason = "context"

    # -- stage 1: titles -------------------------------------------------------------------------

    def _skeleton(self) -> Generator[Step | Event, tuple[int, ...] | None, list[str]]:
        """The titles of the open block; none if it turns out to be ordinary text."""
        line, writer = self.line, self.writer
        titles: list[str] = []
        reader, title_size, joined_size = TitleReader(self.profile), 0, self._empty_join_size()
        reader.push(line.watch.rest)
        while True:
            if reader.outcome == "title":
                titles.append(reader.title)
                joined_size += len(self.text.encode(self.profile.title(reader.title))) + SLACK
                if len(titles) < self.settings.max_branches:
                    writer.feed = self._forced(reader)
                    reader, title_size = TitleReader(self.profile), 0
            self._check(max(line.num_tokens + len(writer.feed) + 1, joined_size))
            is_broken = writer.stopped or title_size >= self.settings.title_tokens
            is_over = bool(reader.outcome) or is_broken
            if titles or not is_over:  # else it is for `_take_back` to say what this is
                yield from self._look_at_titles(reader, titles)
            if is_over or self.finish_reason:
                break
            (token,) = yield from self._pass([writer.row(line.view)])
            reader.push(line.take(token, self.text.eos))
            line.suspected = (line.suspected or "") + line.newest
            title_size += 1
            yield TokenWritten(self.passes, 0, token, "")
            self.record.wrote(token, self.text.think_end)
        if not titles:
            yield from self._take_back(reader)
        elif self.finish_reason:  # no pass is left for the branches
            writer.feed = line.part()
        return [] if self.finish_reason else titles

    def _empty_join_size(self) -> int:
        """How many tokens a line has that goes on behind a block without titles."""
        front = self.text.encode(self.line.front)
        num_trunk = sum(block.num_tokens for block in self.line.view.blocks[:-1])
        return num_trunk + len(front) + len(self.close) + 1

    def _look_at_titles(self, reader: TitleReader, titles: Sequence[str]) -> Steps:
        """A snapshot while a block is open: with titles, the block would be dropped; else it is text."""
        line, feed = self.line, self.writer.feed
        if titles:
            yield from self._look(lambda: scene_of(*line.without_mark()))
        else:
            yield from self._look(lambda: scene_of(line.view.items, (), feed), reader.words)

    def _forced(self, reader: TitleReader) -> tuple[int, ...]:
        """The end of a title, and what must follow it. A token that says more is cut."""
        newest = self.line.newest
        if reader.rest:
            return self.text.encode(newest[: -len(reader.rest)]) + self.between
        return self.writer.feed + self.between

    def _take_back(self, reader: TitleReader) -> Steps:
        """No title was completed: the text behind the marker is text like any other."""
        self.finish_reason = ""
        text = self.line.overlook(reader.words)
        yield from self.record.say(self._overlook_needless(text), self.passes)
        yield from self._look_around()

    # -- stage 2: branches -----------------------------------------------------------------------

    def _part(self, titles: Sequence[str]) -> Steps:
        """Fill all titles at the same time, then join them."""
        self.num_blocks += 1
        yield from self.record.end_segment(self.passes)
        fixed = self._empty_join_size()
        trunk = self._trunk()
        team = [self._branch(trunk, title, index) for index, title in enumerate(titles, 1)]
        for branch in team:
            title = branch.title + self.profile.title_end
            yield WorkerJoined(self.passes, branch.worker, branch.title)
            yield StepBegun(self.passes, branch.worker, self.num_blocks, title)
        while live := [branch for branch in team if not branch.finish_reason]:
            tokens = yield from self._pass([branch.row(self.banned) for branch in live])
            for branch, token in zip(live, tokens, strict=True):
                text = branch.read(token, self.text.turn_end, self.settings.branch_tokens)
                yield TokenWritten(self.passes, branch.worker, token, text)
            self._check(fixed + sum(branch.num_tokens + SLACK for branch in team))
            for branch in live:
                if self.finish_reason and not branch.finish_reason:
                    branch.finish(self.finish_reason)
                if branch.finish_reason:
                    yield from self._record(branch)
            yield from self._look_at_branches(trunk, team)
        yield from self._join(trunk, team)

    def _look_at_branches(self, trunk: tuple[Item, ...], team: list[Branch]) -> Steps:
        """A snapshot while branches are written: they would be joined as far as they go."""

        def scene() -> Scene:
            items, rows = self.join(trunk, [branch.piece() for branch in team])
            return scene_of((*trunk, *items), rows, self.close)

        yield from self._look(scene, "".join(self.record.joined(team)))

    def _trunk(self) -> tuple[Item, ...]:
        """All text before the open block."""
        unfed = self.line.part()
        items = self.line.view.items
        if not unfed:
            return items
        items = (*items, Block("before the block"))
        self.opening.append(Row(View(items), unfed))
        return items

    def _branch(self, trunk: Sequence[Item], title: str, index: int) -> Branch:
        settings, worker = self.settings, len(self.record.branches) + index
        writer = Writer(self.text, settings.choice, settings.seed, f"{BRANCH}{worker}")
        return Branch(writer, self.profile, trunk, title, worker, self.passes + 1)

    def _record(self, branch: Branch) -> Generator[Event, None, None]:
        """A branch has ended."""
        branch.last_pass = self.passes
        yield StepEnded(self.passes, branch.worker, self.num_blocks, branch.text.strip())
        yield WorkerStopped(self.passes, branch.worker, branch.finish_reason)

    # -- stage 3: join ---------------------------------------------------------------------------

    def _join(self, trunk: tuple[Item, ...], team: list[Branch]) -> Generator[Event, None, None]:
        """One line again. What has to be fed for that goes along with its next pass."""
        items, rows = self.join(trunk, [branch.piece() for branch in team])
        self.opening += rows
        self.line = self._line((*trunk, *items), self.close)
        yield from self.record.join(self.num_blocks, team, self.passes)
        yield StepBegun(self.passes, 0, self.record.num_segments + 1, "")

    # -- the account -----------------------------------------------------------------------------

    def _pass(
        self, rows: Sequence[Row]
    ) -> Generator[Step | Event, tuple[int, ...] | None, tuple[int, ...]]:
        """One forward pass; the tokens chosen for `rows`."""
        tokens = yield Step((*self.opening, *rows))
        assert tokens is not None, "a step is answered with one token per row"
        num_others, self.opening = len(self.opening), []
        self.passes += 1
        return tokens[num_others:]

    def _look(self, scene: Callable[[], Scene], said: str = "") -> Steps:
        """A snapshot, if one is due; `said` is what would be said if the budget ended here."""
        if not self.finish_reason:
            yield from self.ending.look(self.passes, scene, lambda: self.record.answer_with(said))

    def end(self) -> Steps:
        """Ask for the answer if there is none."""
        record, items = self.record, self.line.view.items
        if record.answer is None and self.settings.end.finisher:
            scene = scene_of(items, self.opening, self.writer.feed)
            record.answer = yield from self.ending.ask(scene)
            yield AnswerFound(self.passes, None, record.answer)

    def reserve(self) -> Reserve:
        """What can be in memory at once: all text, and one block of branches twice (`reencode`)."""
        s = self.settings
        title = len(self.between) + s.title_tokens + SLACK
        branches = s.max_branches * (min(s.branch_tokens, s.budget) + title)
        num_tokens = len(self.prompt_tokens) + s.budget + (s.max_blocks + 1) * branches
        if self.context is not None:
            num_tokens = min(num_tokens, 2 * self.context)
        if s.end.reencode:
            num_tokens *= 2
        num_blocks = 4 * s.max_branches * (s.max_blocks + 1) + 8
        return Reserve(num_tokens + 2 * self.ending_tokens, num_blocks)

    def result(self) -> BranchAnswer:
        """What the run comes back with."""
        record = self.record
        return BranchAnswer(
            text=record.reply.strip() or record.answer or record.text.strip(),
            answer=record.answer,
            finish_reason=self.finish_reason,
            forward_passes=self.passes,
            extra_passes=self.ending.passes,
            tokens=(self.writer.num_tokens, *(branch.num_tokens for branch in record.branches)),
            steps=tuple(record.steps),
            snapshots=self.ending.snapshots,
            branches=tuple(record.branches),
        )
