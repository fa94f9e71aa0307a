"""Skeleton-of-thought: an outline, all of its points at the same time, and a conclusion.

    1  outline    the main strand lists points, one a line, until an empty line (or its turn) ends the
                  list; the format is data, see `prompts/skeleton.py`
    2  threads    every point is worked out in the view [prompt, outline, own thread]: by a worker of
                  its own, or by k workers (point i is for worker i mod k, who goes on with its next point in the
                  very next pass)
    3  together   the main strand goes on in the view [prompt, outline, all threads]: the threads' own
                  blocks, nothing is encoded again

A baseline of Hogwild! Inference (section 4.1, app. D.2; after Ning et al., 2024), where it was given
stage 3 because points alone did not solve harder tasks, and of PDOS (section 4.2). Unlike there, all
stages are one turn of the model under one prompt, so that the cache of each stage serves the next.

Without an outline nothing has happened: what the model wrote stays where it is, and goes on as an
ordinary strand. Worker 0 is the main strand; threads are written by workers 1, 2, .... `forward_passes`
counts passes, however many threads take part: the critical path. A thread's random numbers depend on
the seed and on its point, so nobody else, and no number of workers, changes them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from manyhands.cache.view import Item
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.prompts.template import put
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Reserve, Strategy, Work
from manyhands.strategies.events import (
    Event,
    StepBegun,
    StepEnded,
    TokenWritten,
    WorkerJoined,
)
from manyhands.strategies.own_words import own_words, spoken
from manyhands.strategies.parting import StrandsRun, WorkerStrand, most_of_parts
from manyhands.strategies.scene import Scene, Writing, scene_of
from manyhands.strategies.settings import SkeletonSettings, or_usual
from manyhands.strategies.strand import SLACK, STRIPS, TOKENS_ANEW, Strand
from manyhands.text import Text
from manyhands.text.markers import MarkerWatch


def skeleton(
    question: str | Conversation,
    text: Text,
    settings: SkeletonSettings | None = None,
    prompt: SkeletonPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: an outline, its points side by side, and what follows from them.

    Without a `prompt` it speaks the words that the model was trained with (`own_words.py`).
    `context` is the longest view the model bears; the run stops in time for its answer.
    """
    settings, prompt = (
        or_usual(settings, SkeletonSettings),
        spoken(prompt, own_words(text).skeleton),
    )
    return _Run(conversation_of(question), text, settings, prompt, context).play()


@dataclass(frozen=True)
class Point:
    """One point of the outline, and whose it is: `worker` (from 1) writes it as its step of that number."""

    number: int  # from 1
    title: str
    worker: int
    step: int


def dealt(titles: Sequence[str], workers: int) -> dict[int, list[Point]]:
    """The points of each worker, in order. Of k workers each takes every k-th; 0: one for each."""
    workers = min(workers, len(titles)) or len(titles)
    return {
        worker: [
            Point(number, titles[number - 1], worker, step)
            for step, number in enumerate(range(worker, len(titles) + 1, workers), 1)
        ]
        for worker in range(1, workers + 1)
    }


@dataclass
class Thread:
    """One point while it is worked out. Other threads are hidden from it by their absence in its view."""

    point: Point
    heading: str
    strand: WorkerStrand

    def visible(self) -> str:
        """As it stands in the main strand."""
        return self.heading + self.strand.text.strip()


class _Run(StrandsRun):
    """The state of one run."""

    settings: SkeletonSettings

    def __init__(
        self,
        asked: Conversation,
        text: Text,
        settings: SkeletonSettings,
        prompt: SkeletonPrompt,
        context: int | None,
    ) -> None:
        super().__init__(
            put(asked, prompt.message, prompt.rules_in),
            text,
            settings,
            prompt.finisher,
            context,
            marks=(prompt.close,),
            problem=asked.problem,
            opening=prompt.opening,
        )
        self.prompt = prompt
        self.inserted = prompt.opening  # before the outline, not written by the model
        self.join = text.encode(prompt.join)
        self.trunk: Writing | None = None  # the threads read it, while there are any
        self.threads: list[Thread] = []
        self.num_fixed = (
            len(self.join) + SLACK
        )  # tokens that will be joined besides the threads' words

    def work(self) -> Work[None]:
        """The three stages; the last is ordinary decoding."""
        titles = yield from self._outline()
        if titles:
            yield from self._work_out(titles)
        if self.trunk is None:
            yield from super().work()

    # -- stage 1: the outline --------------------------------------------------------------------

    def _outline(self) -> Work[list[str]]:
        """Write until the outline is closed; its titles, none if there is no outline."""
        strand, writer = self.strand, self.writer
        written, first = self.inserted, 0
        yield StepBegun(0, 0, 1, written)
        while True:
            (token,) = yield from self.forward([writer.row()])
            certain = strand.read(token, writer.ends)
            if writer.stopped:
                certain += strand.watch.pending
            elif self.has_thought:
                certain += self.let_go()
            is_over = writer.stopped or strand.watch.found is not None
            titles = self._titles(written + certain) if is_over else []
            while strand.watch.found is not None and not titles:  # an empty line before the list
                certain += strand.watch.found + strand.overlook(strand.watch.rest)
            written += certain
            if not (titles and writer.stopped):  # else the turn's end ends nothing but the list
                yield TokenWritten(self.passes, 0, token, certain, *self.logprobs)
            if titles:
                yield from self._close(written, titles)
                return [] if self.finish_reason else titles[: self.settings.max_points]
            # No outline in the thinking, which the model may have opened by itself; perhaps in the reply.
            if self.has_thought or (token == self.text.think_end and not self.text.channels):
                yield from self.say(written.removeprefix(self.inserted))
                written = self.inserted = ""
                first = writer.num_tokens
                yield from self.end_thinking()
            self.check_room()
            is_too_long = writer.num_tokens >= first + self.settings.outline_tokens
            if writer.stopped or self.finish_reason or is_too_long:
                break
            yield from self.look()
        written += "" if writer.stopped else strand.watch.pending
        yield from self.say(self.cut(written.removeprefix(self.inserted)))
        strand.watch = MarkerWatch(())  # from now on an empty line is an empty line
        yield from self.look_around()
        return []

    def _titles(self, outline: str) -> list[str]:
        """The titles of an outline; none if one is too long to be a title."""
        titles = self.prompt.titles(outline)
        most = self.settings.title_tokens
        return titles if all(len(self.text.encode(title)) <= most for title in titles) else []

    def _close(self, written: str, titles: list[str]) -> Work[None]:
        """The outline is done; what was written behind it is dropped. It is no part of the reply."""
        strand = self.strand
        unfed = strand.part() if strand.watch.found is not None else self.writer.feed
        self.trunk, self.writer.stopped = Writing(strand.view.items, unfed), False
        self._segment += written
        said = self.end_segment()
        yield StepEnded(self.passes, 0, self.num_segments, said)
        headings = (self.prompt.heading(i, title) for i, title in enumerate(titles, 1))
        self.num_fixed += sum(len(self.text.encode(heading)) + SLACK for heading in headings)
        self.num_fixed += strand.view.num_tokens
        self.check(self._joined_size())
        if self.finish_reason:  # no pass is left for the points
            yield from self.say(self.cut(written.removeprefix(self.inserted)))
        yield from self.look()

    # -- stage 2: threads ------------------------------------------------------------------------

    def _work_out(self, titles: Sequence[str]) -> Work[None]:
        """All points, side by side."""
        waiting = dealt(titles, self.settings.at_once)
        has_names = not self.settings.workers and len(waiting) == len(titles)
        for worker, points in waiting.items():  # a worker with one point alone has its name
            name = points[0].title if has_names else f"Worker {worker}"
            yield WorkerJoined(self.passes, worker, name)
        assert self.trunk is not None, "threads follow an outline"
        trunk, rows = self.trunk.fed()
        self.opening += rows
        live = [self._thread(trunk, points.pop(0)) for points in waiting.values()]
        while live:
            for thread in live:
                if not thread.strand.writer.num_tokens:
                    point = thread.point
                    yield StepBegun(self.passes, point.worker, point.step, thread.strand.heading)
            strands = [thread.strand for thread in live]
            yield from self.write_together(strands, lambda part: bool(waiting[part.worker]))
            self.trunk = Writing(trunk)
            self.check(self._joined_size())
            for thread in live:
                yield from self._look_at(thread, waiting[thread.point.worker])
            yield from self.look()
            live = [  # a worker that has ended a point begins the next one, in the very next pass
                self._thread(trunk, points.pop(0)) if thread.strand.finish_reason else thread
                for thread, points in ((thread, waiting[thread.point.worker]) for thread in live)
                if not self.finish_reason and (points or not thread.strand.finish_reason)
            ]
        self.threads.sort(key=lambda thread: thread.point.number)
        for thread in self.threads:
            visible = thread.visible()
            yield from self.insert(self.cut(visible if self.said else visible.lstrip()))
        self.end_at_stop()
        if not self.finish_reason:
            yield from self._join(trunk)

    def _thread(self, trunk: Sequence[Item], point: Point) -> Thread:
        writer = self.new_writer(f"point {point.number}")
        marks = (self.prompt.stop,) if self.prompt.stop else ()
        heading, most = self.prompt.heading(point.number, point.title), self.settings.thread_tokens
        told = (point.worker, point.title, heading.strip())
        strand = WorkerStrand(*told, writer, marks, trunk, heading, self.passes + 1, most)
        self.threads.append(Thread(point, heading, strand))
        return self.threads[-1]

    def _look_at(self, thread: Thread, waiting: list[Point]) -> Generator[Event, None, None]:
        """Has it ended, or must it? Then its worker may have been the last to leave."""
        strand, step = thread.strand, thread.point.step
        yield from self.let_leave(strand, step, goes_on=bool(waiting))
        if strand.finish_reason:
            self.record(strand.worker, step, strand.text, strand.first_pass)

    # -- stage 3: together -----------------------------------------------------------------------

    def _join(self, trunk: tuple[Item, ...]) -> Work[None]:
        """The main strand reads the threads; what they wrote last is fed along with its next pass."""
        items = trunk
        for thread in self.threads:
            own, rows = thread.strand.as_writing().fed(trunk)
            items, self.opening = items + own, self.opening + rows
        self.strand, self.trunk = Strand(self.writer, (), items, self.join), None
        yield from self.insert(self.cut(self.prompt.join))
        self.end_at_stop()
        self.begin_segment()
        yield StepBegun(self.passes, 0, self.num_segments + 1, self.prompt.join.strip())

    # -- the account -----------------------------------------------------------------------------

    def _joined_size(self) -> int:
        """How long the main strand would be if the threads were joined after one more pass."""
        return self.num_fixed + sum(thread.strand.writer.num_tokens for thread in self.threads)

    def scene(self) -> Scene:
        """The main strand, or all threads while there are any."""
        if self.trunk is None:
            return super().scene()
        return scene_of(self.trunk, [thread.strand.as_writing() for thread in self.threads])

    def reserve(self) -> Reserve:
        """The most that can be in memory at once: all text, with every thread as long as the budget lets it become."""
        s, most = self.settings, self.most_passes
        outline = min(s.outline_tokens, most)
        points = min(s.max_points, outline)
        heading = len(self.text.encode(self.prompt.heading(s.max_points, ""))) + SLACK
        threads = most_of_parts(most, points, s.at_once or points, s.thread_tokens, heading)
        fixed = len(self.prompt_tokens) + len(self.join) + outline * TOKENS_ANEW
        return self.bound(fixed + most + threads, STRIPS * (points + 1) + 8)

    def num_written(self) -> tuple[int, ...]:
        """By the main strand, then by each worker."""
        tokens = [self.writer.num_tokens]
        for thread in self.threads:
            tokens += [0] * (thread.point.worker + 1 - len(tokens))
            tokens[thread.point.worker] += thread.strand.writer.num_tokens
        return tuple(tokens)
