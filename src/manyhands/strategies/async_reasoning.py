"""AsyncReasoning: a thinker and a writer in one cache, who read each other's text while it is written.

    thinker   reads [prompt, reply header, reply, thoughts header, thoughts]     writes thoughts
    writer    reads [prompt, thoughts, writer header, reply]                     writes the reply

Thoughts and reply are one block each, in two views: no text is encoded twice, and a token of either is read by both
rows in the pass in which it is fed. The user reads the first words of the reply while the thinker goes on.

    thinker alone    every `probe_every` passes, and at the end of a paragraph, one more row goes along with the
                     thinker's: its view, and behind it a question. Is "yes" likelier there than "no"?
    both             from a yes on, until the writer has ended a paragraph; then it pauses. The token that ended
                     the paragraph is fed, and so read by the thinker, when it goes on
    writer alone     once the thinker has ended its thinking, to the end of the reply

While thoughts come the reply cannot end: the writer may not choose a token that ends it. Worker 0 is the writer,
whose text is the reply itself; worker 1 is the thinker. A pass is counted once, whoever takes part. At the end of
the budget a finisher reads thoughts and reply, and the writer finishes the reply, counted apart.

(AsyncReasoning, Yakushev et al., 2025: the views and the three modes, zero-shot. The reference gives each role a
prompt of its own; here both read one, so that it lies in memory once, and a header says which role follows.
Headers are encoded when their role begins, and stay as they are.)
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from itertools import takewhile

from manyhands.cache.block import Block
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest
from manyhands.prompts.async_reasoning import AsyncReasoningPrompt
from manyhands.prompts.template import put
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Reserve, Strategy, Work
from manyhands.strategies.budgeted import BudgetedRun
from manyhands.strategies.ending import EndWords
from manyhands.strategies.events import (
    AnswerFound,
    Event,
    ReplyWritten,
    StepBegun,
    StepEnded,
    TokenWritten,
    WorkerPaused,
    WorkerResumed,
    WorkerStopped,
)
from manyhands.strategies.own_words import own_words, spoken
from manyhands.strategies.scene import Scene
from manyhands.strategies.settings import AsyncReasoningSettings, or_usual
from manyhands.strategies.writer import Writer, tokens_behind
from manyhands.text import Text
from manyhands.text.stops import StopWatch

WRITER, THINKER = 0, 1
NAMES = ("Writer", "Thinker")


def async_reasoning(
    question: str | Conversation,
    text: Text,
    settings: AsyncReasoningSettings | None = None,
    prompt: AsyncReasoningPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: one row thinks, one writes the reply, and each reads the other.

    Without a `prompt` it speaks the words that the model was trained with (`own_words.py`).
    `context` is the longest view that the model bears, in tokens; the run stops in time for its answer.
    InvalidRequest if `yes` and `no` of the prompt begin with the same token to their ends.
    """
    settings, prompt = (
        or_usual(settings, AsyncReasoningSettings),
        spoken(prompt, own_words(text).async_reasoning),
    )
    return _Run(conversation_of(question), text, settings, prompt, context).play()


class _Role:
    """One of the two: its text as a block, its header, and its paragraphs as steps.

    `before` is what it reads before its header. The header is fed with the first row, unless words of ours stand
    behind it (`prefill`); then those are.
    """

    def __init__(
        self,
        worker: int,
        writer: Writer,
        before: tuple[Block, ...],
        header: tuple[int, ...],
        own: Block,
        prefill: tuple[int, ...] = (),
    ) -> None:
        self.worker, self.writer, self.before, self.own = worker, writer, before, own
        self.header, self.prefill = header, prefill
        self.lead = Block(f"{writer.name}'s header")
        self.view = View((*before, self.lead, own))
        self.has_begun = False
        self.step, self.first_pass = 0, 1  # the number of its newest step, and from when
        self.text = ""  # of that step
        self.is_open = False  # whether a step has been begun and not ended

    def begin(self) -> list[Row]:
        """Its first row is near: the rows that must be fed along with it."""
        self.has_begun = True
        if self.prefill:
            self.writer.begin_step(self.view, self.prefill)
            self.writer.follow(self.prefill)
            return [Row(View((*self.before, self.lead)), self.header)]
        self.writer.begin_step(View((*self.before, self.lead)), self.header)
        return []

    def take(self, token: int, ends: frozenset[int]) -> str:
        """A token that was chosen for it; the text that it completes."""
        piece = self.writer.read(token, ends)
        if self.writer.view.own is self.lead:
            self.lead.freeze()
            self.writer.view = self.view
        return piece

    def next_step(self) -> None:
        """Text from here on is another paragraph."""
        feed = self.writer.feed
        self.writer.begin_step(self.writer.view, feed)
        self.writer.follow(feed)

    @property
    def has_written(self) -> bool:
        """Whether a row of it has been fed."""
        return bool(self.lead.tokens)


class _Run(BudgetedRun):
    """The state of one run."""

    settings: AsyncReasoningSettings

    def __init__(
        self,
        asked: Conversation,
        text: Text,
        settings: AsyncReasoningSettings,
        prompt: AsyncReasoningPrompt,
        context: int | None,
    ) -> None:
        words = EndWords(prompt.finisher, prompt.writer_header)
        super().__init__(text, settings, words, context, asked.problem, asked.prefill)
        told = put(asked, prompt.message, prompt.rules_in)
        self.prompt_tokens = text.conversation(told.without_prefill())
        start = Block("prompt")
        self.prompt_row = Row(View((start,)), self.prompt_tokens)
        self.opening.append(self.prompt_row)
        before: tuple[Block, ...] = (start,)
        if header := text.encode(prompt.reply_header):
            before = (start, Block("reply header"))
            self.opening.append(Row(View(before), header))
        reply, thoughts = Block("reply"), Block("thoughts")
        self.writers = [
            self.new_writer("writer", ends=text.reply_end),
            self.new_writer("thinker"),
        ]
        for_writer, for_thinker = (
            text.reply(prompt.writer_header),
            text.encode(prompt.thoughts_header),
        )
        prefill = text.encode(asked.prefill)
        self.writer = _Role(
            WRITER, self.writers[WRITER], (start, thoughts), for_writer, reply, prefill
        )
        self.thinker = _Role(
            THINKER, self.writers[THINKER], (*before, reply), for_thinker, thoughts
        )
        self.question, self.yes, self.no = _question(text, prompt)
        self.is_thinking, self.is_writing = True, False
        self.last_probe = 0  # the pass of the newest one
        self.is_probe_due = False
        self._box = settings.end.watch()  # of the reply, over its paragraphs
        self._box.push(asked.prefill)
        self._stop = StopWatch(settings.end.stop)

    # -- the work ----------------------------------------------------------------------------------

    def work(self) -> Work[None]:
        """Passes of whoever has something to write, until the reply is over or the budget is spent."""
        yield WorkerPaused(0, WRITER)
        yield self._begun(self.thinker)
        while not self.finish_reason:
            yield from self._pass()
            self.check(self._num_read())
            yield from self.look()
        for role in (self.writer, self.thinker):
            if role.is_open:
                self.record(role.worker, role.step, role.text, role.first_pass)

    def _pass(self) -> Work[None]:
        """One pass: a row of each who writes now, and a probe if one is due."""
        roles = [role for role, writes in self._modes() if writes]
        rows = []
        for role in roles:
            if not role.has_begun:
                self.opening += role.begin()
            rows.append(self._row(role))
        is_probe, self.is_probe_due = self.is_probe_due, False
        if is_probe:
            rows.append(self._probe())
        tokens = yield from self.forward(rows)
        told = self.logprobs
        if is_probe:
            self.last_probe = self.passes
        for role, token, logprobs in zip(roles, tokens, told, strict=False):
            if role is self.thinker:
                piece = role.take(token, self.text.turn_end)
                yield TokenWritten(self.passes, THINKER, token, piece, logprobs)
                yield from self._thought(piece)
            else:
                certain = self._certain(role.take(token, self.text.reply_end))
                yield TokenWritten(self.passes, WRITER, token, certain, logprobs)
                yield from self._written(certain)
        if is_probe and self.is_thinking and tokens[-1] == self.yes:
            yield from self._resume()

    def _modes(self) -> tuple[tuple[_Role, bool], tuple[_Role, bool]]:
        return (self.thinker, self.is_thinking), (self.writer, self.is_writing)

    def _row(self, role: _Role) -> Row:
        """The next row of a role. A reply does not end while thoughts come."""
        row = role.writer.row()
        if role is self.thinker or not self.is_thinking:
            return row
        forbidden = row.choice.forbidden | self.text.reply_end
        return replace(row, choice=replace(row.choice, forbidden=forbidden))

    def _probe(self) -> Row:
        """The question behind the thoughts, of which only the likelier one of two answers is wanted.

        The row has no writer: its token is nobody's word.
        """
        view = View((*self.thinker.view.items, Block("probe")))
        choice = Choice(allowed=frozenset((self.yes, self.no)))
        return Row(view, self.question, choice)

    # -- the thinker -------------------------------------------------------------------------------

    def _thought(self, piece: str) -> Generator[Event, None, None]:
        """The thinker has written: has it ended a paragraph, or its thinking?"""
        role, writer = self.thinker, self.thinker.writer
        role.text += piece
        boxed = writer.box.push(piece)
        if boxed is not None and not self.settings.end.is_code:
            self.answer = boxed
            yield AnswerFound(self.passes, THINKER, boxed)
        is_end = writer.ends_step(piece)
        if writer.stopped:
            self.is_thinking = self.is_probe_due = False
            yield from self._ended(role)
            yield WorkerStopped(self.passes, THINKER)
            if not self.is_writing:
                yield from self._resume()
            return
        if is_end:
            yield from self._ended(role)
            role.next_step()
            yield self._begun(role)
        every, waited = self.settings.probe_every, self.passes + 1 - self.last_probe
        is_late = bool(every) and waited >= every
        self.is_probe_due = not self.is_writing and (is_end or is_late)

    # -- the writer --------------------------------------------------------------------------------

    def _resume(self) -> Generator[Event, None, None]:
        """The writer writes from the next pass on."""
        if self.finish_reason:
            return
        self.is_writing, self.is_probe_due = True, False
        yield WorkerResumed(self.passes, WRITER)
        if not self.writer.is_open:
            yield self._begun(self.writer)

    def _written(self, certain: str) -> Generator[Event, None, None]:
        """The writer has written: is its paragraph over, or the reply?"""
        role, writer = self.writer, self.writer.writer
        yield from self._say(certain)
        boxed = self._box.push(certain)
        if boxed is not None:
            self.answer = boxed
            yield AnswerFound(self.passes, WRITER, boxed)
        if writer.stopped or self.stopped_at is not None:
            self.finish_reason = "stopped" if self.answer is None else "answer"
            yield from self._ended(role)
            yield WorkerStopped(self.passes, WRITER, "stopped" if writer.stopped else "stop")
        elif writer.ends_step(self._newest):
            yield from self._ended(role)
            role.next_step()
            if self.is_thinking:
                self.is_writing = False
                self.last_probe = self.passes
                yield WorkerPaused(self.passes, WRITER)
            else:
                yield self._begun(role)

    def _certain(self, piece: str) -> str:
        """The part of the reply's new text that is certain, where a stop text ends it."""
        self._newest, writer = piece, self.writer.writer
        if writer.num_tokens <= self.settings.choice.min_tokens and not writer.stopped:
            return piece
        kept = self._stop.push(piece)
        self.stopped_at = self._stop.found
        return kept + (self._stop.release() if writer.stopped else "")

    def _say(self, text: str) -> Generator[Event, None, None]:
        self.writer.text += text
        self.reply += text
        if text:
            yield ReplyWritten(self.passes, text)

    # -- steps -------------------------------------------------------------------------------------

    def _begun(self, role: _Role) -> StepBegun:
        role.step, role.first_pass = role.step + 1, self.passes + 1
        role.text, role.is_open = "", True
        return StepBegun(self.passes, role.worker, role.step, "")

    def _ended(self, role: _Role) -> Generator[Event, None, None]:
        if role.is_open:
            self.record(role.worker, role.step, role.text, role.first_pass)
            yield StepEnded(self.passes, role.worker, role.step, role.text.strip())
        role.is_open = False

    # -- the end -----------------------------------------------------------------------------------

    def end(self) -> Work[None]:
        """Ask for the answer if there is none; then the writer finishes the reply, counted apart.

        A box in what it writes then is none of the work's.
        """
        if self.answer is None and self.asks:
            ending = self.ending()
            yield from self.apart(ending.finish(self.scene()))
            self.answer = ending.answer
            yield AnswerFound(self.passes, None, self.answer)
        if self.finish_reason in ("budget", "context"):
            if self.settings.end.reply:
                yield from self.apart(self._finish_reply())
            self.is_cut = not self.writer.writer.stopped and self.stopped_at is None
        if self.stopped_at is None:
            yield from self._say(self._stop.release())

    def _finish_reply(self) -> Work[None]:
        """The writer alone, over all thoughts that there are."""
        role, writer = self.writer, self.writer.writer
        self.is_thinking = False
        rows: list[Row] = []
        if self.thinker.writer.unread:
            rows.append(Row(self.thinker.writer.view, self.thinker.writer.unread))
        if not role.has_begun:
            rows += role.begin()
        for _ in range(self.settings.end.reply_tokens):
            tokens = yield Step((*rows, self._row(role)))
            assert isinstance(tokens, tuple), "a step is answered with one token per row"
            rows = []
            yield from self._say(self._certain(role.take(tokens[-1], self.text.reply_end)))
            if writer.stopped or self.stopped_at is not None:
                break

    def scene(self) -> Scene:
        """The writer's view once it has written; before that, the thinker's."""
        role, thinker, rows = self.writer, self.thinker.writer, []
        newest, tail = Block("newest thoughts"), Block("newest")
        items = self.thinker.view.items
        if thinker.unread:
            rows.append(Row(View((*thinker.view.items, newest)), thinker.unread))
            items = (*items, newest)
        if role.has_written:
            start, thoughts = role.before
            behind = (newest,) if thinker.unread else ()
            items = (start, thoughts, *behind, role.lead, role.own)
            if role.writer.unread:
                items = (*items, tail)
                rows.append(Row(View(items), role.writer.unread))
        return Scene(items, tuple(rows))

    # -- the account -------------------------------------------------------------------------------

    def _num_read(self) -> int:
        """No view is longer after one more pass."""
        roles = (self.writer, self.thinker)
        fed = sum(role.own.num_tokens + len(role.header) + len(role.prefill) for role in roles)
        before = sum(block.num_tokens for block in self.thinker.before)
        return before + fed + len(self.question) + 4

    def reserve(self) -> Reserve:
        """Prompt and headers, a budget for each role, and the newest probe."""
        headers = len(self.writer.header) + len(self.thinker.header) + len(self.question)
        fed = sum(len(row.feed) for row in self.opening) + headers + len(self.writer.prefill)
        return self.bound(fed + 2 * self.most_passes + 4, 16, 2)


def _question(text: Text, prompt: AsyncReasoningPrompt) -> tuple[tuple[int, ...], int, int]:
    """The tokens of the probe, and the two that tell `yes` from `no` behind it.

    Tokens with which both begin, as the blank of a tokenizer of bytes, belong to the question.
    """
    yes, no = tokens_behind(text, prompt.yes), tokens_behind(text, prompt.no)
    size = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(yes, no, strict=False)))
    if size >= min(len(yes), len(no)):
        raise InvalidRequest(
            f"the tokenizer does not tell the answers {prompt.yes!r} and {prompt.no!r} apart: "
            "the tokens of one begin with those of the other",
            hint="choose other words for 'yes' and 'no' in the table [async_reasoning]",
        )
    return (*text.encode(prompt.probe), *yes[:size]), yes[size], no[size]
