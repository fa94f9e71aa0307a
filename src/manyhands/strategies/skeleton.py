"""Skeleton-of-thought: an outline, all of its points at the same time, and a conclusion.

    1  outline    the main line lists points, one a line, until an empty line (or its turn) ends the
                  list; the format is data, see `prompts/skeleton.py`
    2  threads    every point is worked out in the view [prompt, outline, own thread]: by a worker of
                  its own, or by k workers in turn (point i is for worker i mod k, who goes on with its
                  next point in the very next pass)
    3  together   the main line goes on in the view [prompt, outline, all threads]: the threads' own
                  blocks, nothing is encoded again

A baseline of Hogwild! Inference (section 4.1, app. D.2; after Ning et al., 2024), where it was given
stage 3 because points alone did not solve harder tasks, and of PDOS (section 4.2). Unlike there, all
stages are one turn of the model under one prompt, so that the cache of each stage serves the next.

Without an outline nothing has happened: what the model wrote stays where it is, and goes on as an
ordinary line. Worker 0 is the main line; threads are written by workers 1, 2, .... `forward_passes`
counts passes, however many threads take part: the critical path. A thread's random numbers depend on
the seed and on its point, so nobody else, and no number of workers, changes them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.strategies.base import (
    Answer,
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
from manyhands.strategies.branch_lines import SLACK, Line
from manyhands.strategies.ending import Scene, Steps
from manyhands.strategies.line_ending import LineEnding
from manyhands.strategies.settings import SkeletonSettings
from manyhands.strategies.skeleton_record import SkeletonRecord
from manyhands.strategies.skeleton_threads import Point, Stretch, Thread, dealt, scene_of
from manyhands.strategies.writer import Writer
from manyhands.text import Text
from manyhands.text.markers import MarkerWatch


def skeleton(
    question: str,
    text: Text,
    settings: SkeletonSettings | None = None,
    prompt: SkeletonPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: an outline, its points side by side, and what follows from them.

    `context` is the longest view the model bears; the run stops in time for its answer.
    """
    run = _Run(question, text, settings or SkeletonSettings(), prompt or SkeletonPrompt(), context)
    yield run.reserve()
    titles = yield from run.outline()
    if titles:
        yield from run.work_out(titles)
    yield from run.go_on()
    yield from run.end()
    return run.result()


class _Run:
    """The state of one run."""

    def __init__(
        self,
        question: str,
        text: Text,
        settings: SkeletonSettings,
        prompt: SkeletonPrompt,
        context: int | None,
    ) -> None:
        self.text, self.settings, self.prompt, self.context = text, settings, prompt, context
        opening = text.encode(prompt.opening)
        self.inserted = prompt.opening  # before the outline, not written by the model
        self.head = text.chat_prompt(prompt.message(question)) + opening
        self.join = text.encode(prompt.join)
        start = Block("prompt")
        self.opening: list[Row] = []  # to be fed with the next pass, besides the rows that write
        if self.head[1:]:
            self.opening.append(Row(View((start,)), self.head[:-1]))
        self.writer = Writer(text, settings.choice, settings.seed, "writer")
        self.line = Line(self.writer, (prompt.close,), (start,), self.head[-1:])
        self.writer.follow(opening)
        self.trunk: Stretch | None = None  # what the threads read, while there are any
        self.threads: list[Thread] = []
        self.ending = LineEnding(text, settings, prompt.finisher)
        self.ending_tokens = self.ending.num_tokens
        self.record = SkeletonRecord(text.thinking)
        self.num_fixed = len(self.join) + SLACK  # what will be joined besides the threads' words
        self.passes = 0
        self.finish_reason = ""

    # -- stage 1: the outline --------------------------------------------------------------------

    def outline(self) -> Generator[Step | Event, tuple[int, ...] | None, list[str]]:
        """Write until the outline is closed; its titles, none if there is no outline."""
        line, writer = self.line, self.writer
        written, first = self.inserted, 0
        yield StepBegun(0, 0, 1, written)
        while True:
            token, certain = yield from self._write()
            if writer.stopped:
                certain += line.watch.pending
            is_over = writer.stopped or line.watch.found is not None
            titles = self._titles(written + certain) if is_over else []
            while line.watch.found is not None and not titles:  # an empty line before the list
                certain += line.watch.found + line.overlook(line.watch.rest)
            written += certain
            if not (titles and writer.stopped):  # else the turn's end ends nothing but the list
                yield TokenWritten(self.passes, 0, token, certain)
            if titles:
                yield from self._close(written, titles)
                return [] if self.finish_reason else titles[: self.settings.max_points]
            if token == self.text.think_end:  # no outline in the thinking; perhaps in the reply
                yield from self.record.say(written.removeprefix(self.inserted), self.passes)
                written = self.inserted = ""
                first, self.record.thinking = writer.num_tokens, False
            self._check_line()
            is_too_long = writer.num_tokens >= first + self.settings.outline_tokens
            if writer.stopped or self.finish_reason or is_too_long:
                break
            yield from self._snapshot()
        written += "" if writer.stopped else line.watch.pending
        yield from self.record.say(written.removeprefix(self.inserted), self.passes)
        line.watch = MarkerWatch(())  # from now on an empty line is an empty line
        yield from self._look_around()
        return []

    def _titles(self, outline: str) -> list[str]:
        """The titles of an outline; none if one is too long to be a title."""
        titles = self.prompt.titles(outline)
        most = self.settings.title_tokens
        return titles if all(len(self.text.encode(title)) <= most for title in titles) else []

    def _close(self, written: str, titles: list[str]) -> Steps:
        """The outline is done; what was written behind it is dropped."""
        line = self.line
        unfed = line.part() if line.watch.found is not None else self.writer.feed
        self.trunk, self.writer.stopped = Stretch(line.view.blocks, unfed), False
        self.record.end_outline(written, self.passes)
        yield StepEnded(self.passes, 0, 1, written.strip())
        headings = (self.prompt.heading(i, title) for i, title in enumerate(titles, 1))
        self.num_fixed += sum(len(self.text.encode(heading)) + SLACK for heading in headings)
        self.num_fixed += line.view.num_tokens
        self._check(self._joined_size())
        if self.finish_reason:  # no pass is left for the points
            yield from self.record.say(written.removeprefix(self.inserted), self.passes)
        yield from self._snapshot()

    # -- stage 2: threads ------------------------------------------------------------------------

    def work_out(self, titles: Sequence[str]) -> Steps:
        """All points, side by side."""
        waiting = dealt(titles, self.settings.workers)
        for worker, points in waiting.items():  # who is there for one point alone has its name
            name = f"Worker {worker}" if self.settings.workers else points[0].title
            yield WorkerJoined(self.passes, worker, name)
        assert self.trunk is not None, "threads follow an outline"
        trunk, rows = self.trunk.fed()
        self.opening += rows
        live = [self._thread(trunk, points.pop(0)) for points in waiting.values()]
        while live:
            for thread in live:
                if not thread.writer.num_tokens:
                    point, heading = thread.point, thread.heading.strip()
                    yield StepBegun(self.passes, point.worker, point.turn, heading)
            tokens = yield from self._pass([thread.row() for thread in live])
            self.trunk = Stretch(trunk)
            for thread, token in zip(live, tokens, strict=True):
                piece = thread.read(token, self.text.turn_end, self.settings.thread_tokens)
                worker = thread.point.worker
                if not (thread.writer.stopped and waiting[worker]):  # the worker's own turn goes on
                    yield TokenWritten(self.passes, worker, token, piece)
            self._check(self._joined_size())
            for thread in live:
                yield from self._look_at(thread, waiting[thread.point.worker])
            yield from self._snapshot()
            live = [  # who has ended a point begins the next one, in the very next pass
                self._thread(trunk, points.pop(0)) if thread.reason else thread
                for thread, points in ((thread, waiting[thread.point.worker]) for thread in live)
                if not self.finish_reason and (points or not thread.reason)
            ]
        self.threads.sort(key=lambda thread: thread.point.number)
        for thread in self.threads:
            yield from self.record.insert(thread.visible(), self.passes)
        if not self.finish_reason:
            yield from self._join(trunk)

    def _thread(self, trunk: Sequence[Block], point: Point) -> Thread:
        s = self.settings
        writer = Writer(self.text, s.choice, s.seed, f"point {point.number}")
        thread = Thread(writer, self.prompt, trunk, point, self.passes + 1)
        self.threads.append(thread)
        return thread

    def _look_at(self, thread: Thread, waiting: list[Point]) -> Generator[Event, None, None]:
        """Has it ended, or must it? Then its worker may have been the last to leave."""
        if self.finish_reason and not thread.reason:
            thread.finish(self.finish_reason)
        if thread.reason:
            worker, turn, now = thread.point.worker, thread.point.turn, self.passes
            self.record.step(worker, turn, thread.text, thread.first_pass, now)
            yield StepEnded(now, worker, turn, thread.text)
            if not waiting or self.finish_reason:
                yield WorkerStopped(now, worker, thread.reason)

    # -- stage 3: together -----------------------------------------------------------------------

    def _join(self, trunk: tuple[Block, ...]) -> Steps:
        """The main line reads the threads; what they wrote last is fed along with its next pass."""
        blocks = trunk
        for thread in self.threads:
            own, rows = thread.stretch().fed(trunk)
            blocks, self.opening = blocks + own, self.opening + rows
        self.line, self.trunk = Line(self.writer, (), blocks, self.join), None
        yield from self.record.insert(self.prompt.join, self.passes)
        yield StepBegun(self.passes, 0, 2, self.prompt.join.strip())

    def go_on(self) -> Steps:
        """Ordinary decoding, to the end of the turn or of the budget."""
        while not self.finish_reason:
            token, piece = yield from self._write()
            yield TokenWritten(self.passes, 0, token, piece)
            yield from self.record.say(piece, self.passes)
            if token == self.text.think_end:
                self.record.thinking = False
            yield from self._look_around()

    # -- one pass --------------------------------------------------------------------------------

    def _pass(
        self, rows: Sequence[Row]
    ) -> Generator[Step | Event, tuple[int, ...] | None, tuple[int, ...]]:
        """One forward pass; the tokens chosen for `rows`."""
        tokens = yield Step((*self.opening, *rows))
        assert tokens is not None, "a step is answered with one token per row"
        num_others, self.opening = len(self.opening), []
        self.passes += 1
        return tokens[num_others:]

    def _write(self) -> Generator[Step | Event, tuple[int, ...] | None, tuple[int, str]]:
        """The main line's next token, and the text that it makes certain."""
        (token,) = yield from self._pass([self.writer.row(self.line.view)])
        return token, self.line.read(token, self.text.eos)

    def _look_around(self) -> Steps:
        """Is the main line done, or its time?"""
        if self.writer.stopped:
            yield WorkerStopped(self.passes, 0)
            self.finish_reason = "stopped" if self.record.answer is None else "answer"
        else:
            self._check_line()
            yield from self._snapshot()

    def _check_line(self) -> None:
        self._check(self.line.view.num_tokens + len(self.writer.feed) + 1)

    def _check(self, num_tokens: int) -> None:
        """Whether the passes are spent, or a view of so many tokens leaves no room for the ending."""
        if self.passes >= self.settings.budget:
            self.finish_reason = "budget"
        elif self.context is not None and num_tokens + self.ending_tokens > self.context:
            self.finish_reason = "context"

    def _joined_size(self) -> int:
        """How long the main line would be if the threads were joined after one more pass."""
        return self.num_fixed + sum(thread.writer.num_tokens for thread in self.threads)

    # -- the end ---------------------------------------------------------------------------------

    def _snapshot(self) -> Steps:
        """At a smaller budget that was asked for: what would the answer be?"""
        if not self.finish_reason:
            yield from self.ending.look(self.passes, self._scene, lambda: self.record.answer)

    def end(self) -> Steps:
        """Ask for the answer if there is none. The main line is the reply: none is written."""
        if self.trunk is None:
            self.record.end_stretch(2 if self.threads else 1, self.passes)
        if self.record.answer is None and self.settings.end.finisher:
            self.record.answer = yield from self.ending.ask(self._scene())
            yield AnswerFound(self.passes, None, self.record.answer)

    def _scene(self) -> Scene:
        """What an ending reads: the main line, or all threads while there are any."""
        if self.trunk is None:
            return scene_of(Stretch(self.line.view.blocks, self.writer.unread), ())
        return scene_of(self.trunk, [thread.stretch() for thread in self.threads])

    def reserve(self) -> Reserve:
        """What can be in memory at once: all text, every thread as long as it may become."""
        s = self.settings
        heading = len(self.text.encode(self.prompt.heading(s.max_points, ""))) + SLACK
        threads = s.max_points * (min(s.thread_tokens, s.budget) + heading) + s.outline_tokens
        num_tokens = len(self.head) + s.budget + len(self.join) + threads
        if self.context is not None:
            num_tokens = min(num_tokens, 2 * self.context)
        if s.end.reencode:
            num_tokens *= 2
        return Reserve(num_tokens + 2 * self.ending_tokens, num_blocks=4 * s.max_points + 16)

    def result(self) -> Answer:
        """What the run comes back with."""
        tokens = [self.writer.num_tokens]
        for thread in self.threads:
            tokens += [0] * (thread.point.worker + 1 - len(tokens))
            tokens[thread.point.worker] += thread.writer.num_tokens
        record = self.record
        return Answer(
            text=record.reply.strip() or record.answer or record.text.strip(),
            answer=record.answer,
            finish_reason=self.finish_reason,
            forward_passes=self.passes,
            extra_passes=self.ending.passes,
            tokens=tuple(tokens),
            steps=tuple(record.steps),
            snapshots=self.ending.snapshots,
        )
