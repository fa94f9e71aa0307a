"""Strands: the text of one writer. `sequential`, `branches` and `skeleton` are made of them.

The main strand is that of worker 0, and the reply itself. It goes on until the model ends its turn or the
budget is spent; a thinking model closes its thinking by itself, and what follows is for the user. The answer
is the content of the last box. So no reply is written at the end, and of an ending there remains the finisher.

A strand can be parted at a mark (`Strand`), and others can write beside it (`SideStrand`). A mark is found in
decoded text, tokens lie in blocks, and a token may hold the end of one sentence and the beginning of a
mark. `Strand` keeps the two in step; nothing that is in memory is ever cut.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from functools import cached_property

from manyhands.cache.block import Block
from manyhands.cache.logprobs import Logprobs
from manyhands.cache.view import Item, View
from manyhands.schema.conversation import Conversation
from manyhands.strategies.base import Work
from manyhands.strategies.budgeted import BudgetedRun
from manyhands.strategies.ending import EndWords
from manyhands.strategies.events import (
    AnswerFound,
    Event,
    ReplyWritten,
    StepBegun,
    StepEnded,
    TokenWritten,
    WorkerStopped,
)
from manyhands.strategies.scene import Scene, Writing, scene_of
from manyhands.strategies.settings import (
    AsyncThinkSettings,
    BranchSettings,
    ProfileSettings,
    SkeletonSettings,
    SoloSettings,
)
from manyhands.strategies.writer import Writer, tokens_behind
from manyhands.text import Text
from manyhands.text.markers import MarkerWatch
from manyhands.text.stops import StopWatch

MAIN = "writer"  # the main strand's writer
# A side strand's next token, its line break, and what a token that shares text with a mark may cost more.
SLACK = 6
# Of a token that is decoded and encoded again, at most: of a part of a character, whose sign takes three bytes.
TOKENS_ANEW = 3
# Pieces of memory in which a strand lies, at most: what is finished, what may be a mark, what is not fed yet.
STRIPS = 3


class Strand:
    """One strand of text, in blocks that can be parted where a mark began.

    A mark may take several tokens, and shows itself with the last one. So the first token that could
    begin a mark goes to a fresh block: if it was one, the blocks before it are the text before it,
    except for `front`, the text that shares a token with the mark.
    """

    def __init__(
        self, writer: Writer, marks: Sequence[str], before: Sequence[Item], feed: tuple[int, ...]
    ) -> None:
        self.writer = writer
        self.marks = marks
        self.begin(before, feed)

    def begin(self, before: Sequence[Item], feed: tuple[int, ...]) -> None:
        """Write behind `before`, in a fresh block, feeding `feed` first."""
        self.before = tuple(before)
        self.blocks: tuple[Block, ...] = (Block(self.writer.name),)
        self.watch = MarkerWatch(self.marks)
        self.suspected: str | None = None  # all text of the last block, if it may be a mark
        self.front = ""
        self.newest = ""  # the text of the newest token
        self.writer.begin_step(View((*self.before, *self.blocks)), feed)

    @property
    def view(self) -> View:
        """The view of its writer."""
        return self.writer.view

    def read(self, token: int, turn_end: frozenset[int]) -> str:
        """Take a token; return the text that is certainly no mark."""
        return self.scan(self.take(token, turn_end))

    def take(self, token: int, turn_end: frozenset[int]) -> str:
        """Take a token without looking for marks; return its text."""
        self.newest = self.writer.read(token, turn_end)
        return self.newest

    def scan(self, piece: str) -> str:
        """Look for a mark in the newest piece, whose token has not been fed yet."""
        seen = (self.suspected or "") + piece
        certain = self.watch.push(piece)
        if self.watch.found is None and not self.watch.pending:
            self.suspected = None
            return certain
        if self.suspected is None:
            self.blocks[-1].freeze()
            self.blocks = (*self.blocks, Block(self.writer.name))
            self.writer.view = View((*self.before, *self.blocks))
        self.suspected = seen
        if self.watch.found is not None:
            self.front = seen[: len(seen) - len(self.watch.found + self.watch.rest)]
        return certain

    def overlook(self, text: str) -> str:
        """The mark that was found is none; `text`, the newest of this strand, stands behind it."""
        assert self.suspected is not None
        self.suspected = self.suspected.removesuffix(text)
        self.watch = MarkerWatch(self.marks)
        return self.scan(text)

    def let_go(self) -> str:
        """The text that is held back; no mark begins with it."""
        held, self.suspected = self.watch.pending, None
        self.watch = MarkerWatch(self.marks)
        return held

    def part(self) -> tuple[int, ...]:
        """Drop the mark and all behind it; the tokens of the text before it that are not fed."""
        text = self.without_mark()
        self.blocks = self.blocks[:-1]
        self.writer.view = View(text.items)
        return text.unfed

    def without_mark(self) -> Writing:
        """All before the mark."""
        unfed = tokens_behind(self.writer.vocabulary, self.front)
        return Writing((*self.before, *self.blocks[:-1]), unfed)

    @property
    def num_tokens(self) -> int:
        """Tokens of all that the strand reads. In lanes, that is more than its length as a view."""
        return sum(block.num_tokens for block in self.view.blocks)


class SideStrand(Strand):
    """A strand beside others. It is done at a mark, at its turn's end, or when its tokens are spent.

    `finish_reason` says which: "marker" or what `mark_reason` makes of it, "stopped", "budget", or what
    ended the run. `text` is what it wrote, free of marks.
    """

    def __init__(
        self,
        writer: Writer,
        marks: Sequence[str],
        before: Sequence[Item],
        opening: str,
        first_pass: int,
        max_tokens: int,
    ) -> None:
        feed = self.opening_tokens(writer.vocabulary, opening)
        super().__init__(writer, marks, before, feed)
        self.first_pass, self.max_tokens = first_pass, max_tokens
        self.num_joined = len(feed)  # tokens, its opening's included
        self.text = ""
        self.finish_reason = ""
        self.unfed: tuple[int, ...] = ()  # once it is done

    def opening_tokens(self, text: Text, opening: str) -> tuple[int, ...]:
        """The words that it begins with."""
        return text.encode(opening)

    def mark_reason(self) -> str:
        """Why it is done, if it is done by a mark."""
        return "marker"

    def read(self, token: int, turn_end: frozenset[int]) -> str:
        """Take the token that was chosen; return the text that it makes certain."""
        piece = super().read(token, turn_end)
        self.text += piece
        self.num_joined += 1
        if self.watch.found is not None:
            self.finish(self.mark_reason())
        elif self.writer.stopped:
            self.finish("stopped")
        elif self.writer.num_tokens >= self.max_tokens:
            self.finish("budget")
        return piece

    def finish(self, reason: str) -> None:
        """It is done: settle its text, and what of it has yet to be fed."""
        self.finish_reason = reason
        self.unfed = self.part() if self.watch.found is not None else self.writer.feed
        self.text += self.watch.pending
        for block in self.blocks:
            if block.num_tokens:
                block.freeze()

    def as_writing(self) -> Writing:
        """The strand as far as it goes."""
        return Writing(self.blocks, self.unfed if self.finish_reason else self.writer.feed)


class StrandRun(BudgetedRun):
    """A run whose main strand is the reply. By itself it is ordinary decoding.

    `asked` has the method's rules in it, `problem` is without them. The strand begins with `opening`, words of
    the method's own behind the prefill.
    """

    def __init__(
        self,
        asked: Conversation,
        text: Text,
        settings: SoloSettings
        | BranchSettings
        | ProfileSettings
        | SkeletonSettings
        | AsyncThinkSettings,
        finisher: str,
        context: int | None,
        marks: Sequence[str] = (),
        problem: str | None = None,
        opening: str = "",
    ) -> None:
        super().__init__(text, settings, EndWords(finisher), context, problem)
        begun = text.encode(opening)
        prompt = text.conversation(asked) + begun
        self.marks = tuple(marks)
        self.watched = text.watch_thinking(text.thinks(asked))
        self.writer = self.new_writer(MAIN, thinking=self.watched)
        self.writers = [self.writer]
        self.strand = Strand(self.writer, marks, (self.prefill(prompt),), prompt[-1:])
        self.writer.follow(text.encode(asked.prefill) + begun)
        self.thinking = self.watched.thinking  # text written now is not for the user
        self.said = ""  # all of it, thoughts included
        self.num_segments = 0  # steps of the main strand
        self._segment, self._first_pass = "", 1  # its text since the last one, and from when
        self._box = settings.end.watch()
        self._box.push(asked.prefill)
        self._stop = StopWatch(settings.end.stop)

    # -- the main strand -----------------------------------------------------------------------------

    def work(self) -> Work[None]:
        """Ordinary decoding, to the end of the turn or of the budget."""
        while not self.finish_reason:
            yield from self.write_on()
        yield from self.say(self._stop.release())
        self.end_segment()

    def write_on(self) -> Work[None]:
        """One pass of ordinary decoding."""
        (token,) = yield from self.forward([self.writer.row()])
        yield from self.read_on(token, *self.logprobs)

    def read_on(self, token: int, told: Logprobs | None = None) -> Work[None]:
        """The strand's newest token, of which `told` was told, has been chosen."""
        certain = self.certain(self.strand.read(token, self.writer.ends))
        if self.has_thought:
            certain += self.let_go()
        certain = self.cut(certain)
        if self.writer.stopped:
            certain += self._stop.release()
        yield TokenWritten(self.passes, 0, token, certain, told)
        yield from self.say(certain)
        yield from self.end_thinking()
        yield from self.look_around()

    def certain(self, piece: str) -> str:
        """The part of the strand's new text that is text, where marks have no meaning."""
        return piece

    def let_go(self) -> str:
        """The text that is held back since it may become a mark; none begins in the thinking and ends in the reply."""
        return "" if self.strand.watch.found is not None else self.strand.let_go()

    @property
    def has_thought(self) -> bool:
        """Whether the newest token has ended the thinking."""
        return self.thinking and not self.watched.thinking

    def cut(self, text: str) -> str:
        """The part of the strand's new text that is certain, where a stop text ends the reply."""
        is_early = self.writer.num_tokens <= self.settings.choice.min_tokens
        may_stop = not self.thinking and (not is_early or self.writer.stopped)
        kept = self._stop.push(text) if may_stop else text
        self.stopped_at = self._stop.found
        return kept

    def look_around(self) -> Work[None]:
        """Is the main strand done, or its time?"""
        if self.writer.stopped:
            yield WorkerStopped(self.passes, 0)
            self.finish_reason = "stopped" if self.answer is None else "answer"
        elif self.stopped_at is not None:
            yield WorkerStopped(self.passes, 0, "stop")
            self.end_at_stop()
        else:
            self.check_room()
            yield from self.look()

    def end_at_stop(self) -> None:
        """The reply is over if it has come to a stop text."""
        if self.stopped_at is not None and not self.finish_reason:
            self.finish_reason = "stopped" if self.answer is None else "answer"

    def check_room(self) -> None:
        """Is there room for one more token of the strand?"""
        self.check(self.strand.num_tokens + len(self.writer.feed) + 1)

    # -- what was said -----------------------------------------------------------------------------

    def say(self, text: str) -> Generator[Event, None, None]:
        """Text of the strand, or what counts as such: a box in it is the answer."""
        self._segment += text
        yield from self.insert(text)
        boxed = self._box.push(text)
        if boxed is not None and not (self.settings.end.is_code and self.thinking):
            self.answer = boxed
            yield AnswerFound(self.passes, 0, boxed)

    def insert(self, text: str) -> Generator[Event, None, None]:
        """Text that now stands in the strand, but is not its own: a box in it is no answer."""
        self.said += text
        if text and not self.thinking:
            self.reply += text
            yield ReplyWritten(self.passes, text)

    def unsaid(self) -> str:
        """The text that would be said if the budget ended here."""
        return self._stop.pending

    def end_segment(self) -> str:
        """The text that the strand said since its last step is a step, if it has text."""
        body = self._segment.strip()
        if body:
            self.num_segments += 1
            self.record(0, self.num_segments, body, self._first_pass)
        self.begin_segment()
        return body

    def end_thinking(self) -> Generator[Event, None, None]:
        """If the newest token has ended the thinking, that is a step, and the reply another."""
        if self.has_thought:
            self.thinking = False
            if said := self.end_segment():
                yield StepEnded(self.passes, 0, self.num_segments, said)
                yield StepBegun(self.passes, 0, self.num_segments + 1, "")

    def begin_segment(self) -> None:
        """The next step begins with the next pass."""
        self._segment, self._first_pass = "", self.passes + 1

    # -- the end -----------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The strand, its newest token, and what would be fed next."""
        return scene_of(Writing(self.strand.view.items, self.writer.feed), opening=self.opening)

    def answer_now(self) -> Work[str | None]:
        """The last box, also one that would be closed by what is not said yet; or the finisher's."""
        boxed = copy.deepcopy(self._box).push(self.unsaid())
        return boxed if boxed is not None else (yield from super().answer_now())

    def end(self) -> Work[None]:
        """Ask for the answer if there is none. The strand is the reply: none is written."""
        yield from self.say(self._stop.release())
        self.is_cut = self.finish_reason in ("budget", "context")
        if self.answer is None and self.asks:
            self.answer = yield from super().answer_now()
            yield AnswerFound(self.passes, None, self.answer)

    @cached_property
    def ending_tokens(self) -> int:
        """The finisher's alone."""
        return self.ending().num_finisher_tokens if self.asks else 0

    def told(self) -> str:
        """All that was said, thoughts included."""
        return self.said.strip()
