"""A run with a budget: all that strategies have in common, so that a strategy is its views.

Passes are counted (`strategies/counted.py`), prompts are fed along with the first of them, a run stops in time for its answer, it is
asked for that answer at smaller budgets in passing, and at its end a finisher and a reply follow, counted
apart (Hogwild! Inference, section 4.1). A strategy says three things, and of the rest what it wants to
have otherwise:

    work      its passes, until there is a `finish_reason`: which writers write in which view
    follow    what comes of a piece of text that a worker has written
    scene     what an ending reads: all that stands there now

For instance a worker alone; `examples/debate.py` is a team of two:

    class Alone(BudgetedRun):
        def __init__(self, question, text, settings, words, context):
            super().__init__(text, settings, words, context)
            prompt = text.chat_prompt(question)
            start = self.prefill(prompt)
            self.writers = [self.new_writer("writer", View((start, Block("text"))), prompt[-1:])]

        def work(self):
            (writer,) = self.writers
            while not self.finish_reason:
                yield from self.write([0])
                self.check(writer.view.num_tokens + 2)  # its newest token, and one more
                yield from self.look()

        def follow(self, worker, piece):
            writer = self.writers[worker]
            self.answer = writer.box.push(piece) or self.answer
            self.finish_reason = "answer" if self.answer else "stopped" if writer.stopped else ""
            yield from ()

        def scene(self):
            (writer,) = self.writers
            return scene_of(Writing(writer.view.items, writer.unread))

    strategy = Alone(question, text, SoloSettings(budget=500), EndWords(), context=None).play()
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.base import Answer, FinishedStep, Reserve, Sent, Work
from manyhands.strategies.counted import CountedRun
from manyhands.strategies.ending import Ending, EndWords
from manyhands.strategies.events import AnswerFound, Event, Snapshot, TokenWritten
from manyhands.strategies.scene import Scene
from manyhands.strategies.settings import Settings, checked_context
from manyhands.strategies.writer import Writer
from manyhands.text import Text, ThinkingWatch
from manyhands.text.stops import StopWatch


class BudgetedRun(CountedRun):
    """The state of one run, which has a budget.

    `words` are those of its end, and the reply begins with `prefill`. `context` is the longest view that the model bears, in
    tokens; None: no limit. `writers` are the workers, in the order of their numbers.
    """

    def __init__(
        self,
        text: Text,
        settings: Settings,
        words: EndWords | TeamPrompt,
        context: int | None,
        problem: str | None = None,
        prefill: str = "",
    ) -> None:
        super().__init__()
        self.text, self.settings, self.words = text, settings, words
        self.context = checked_context(context)
        self.reply_prefill = prefill
        self.asks = settings.end.finisher if problem is None else settings.end.asks(problem)
        self.writers: list[Writer] = []
        self.prompt_tokens: tuple[int, ...] = ()
        self.prompt_row: Row | None = None  # of `opening`: puts the prompt into memory
        self.extra_passes = 0
        self.finish_reason = ""  # while there is none, the run goes on
        self.answer: str | None = None
        self.reply = ""
        self.stopped_at: str | None = None  # the stop text that the reply has come to
        self.is_cut = False  # whether a bound ended the reply
        self.steps: list[FinishedStep] = []
        self.snapshots: dict[int, str | None] = {}

    # -- what a strategy says ----------------------------------------------------------------------

    @abstractmethod
    def work(self) -> Work[None]:
        """Passes, until `finish_reason` is set; `check` sets it when budget or context are spent."""

    def follow(self, worker: int, piece: str) -> Iterable[Event] | None:
        """Take the piece of text that a worker has just written in `write`; yields its events, or returns them; None: no events."""
        return ()

    @abstractmethod
    def scene(self) -> Scene:
        """The scene that an ending would read now. Nothing of the run may change by it."""

    # -- the course of a run -----------------------------------------------------------------------

    def begin(self) -> Work[None]:
        """Ask for memory, and name the prompt."""
        yield replace(self.reserve(), prompt=self.prompt_row)

    def new_writer(
        self,
        name: str,
        view: View | None = None,
        feed: tuple[int, ...] = (),
        *,
        ends: frozenset[int] | None = None,
        thinking: ThinkingWatch | None = None,
    ) -> Writer:
        """A writer with the run's choice and seed, at the end of `view`. Its draws depend on its name.

        `ends` and `thinking` say what ends its text, see Writer.
        """
        choice, seed = self.settings.choice, self.settings.seed
        watch = self.settings.end.watch
        writer = Writer(self.text, choice, seed, name, ends=ends, thinking=thinking, watch=watch)
        if view is not None:
            writer.begin_step(view, feed)
        return writer

    def prefill(self, prompt: tuple[int, ...]) -> Block:
        """The prompt's block. Its last token is left out: each writer feeds it, and writes at once."""
        self.prompt_tokens, start = prompt, Block("prompt")
        if prompt[1:]:
            self.prompt_row = Row(View((start,)), prompt[:-1])
            self.opening.append(self.prompt_row)
        return start

    def write(self, workers: Iterable[int]) -> Work[None]:
        """One counted pass, in which each of these workers writes a token; `follow` says what next."""
        writing = [(worker, self.writers[worker]) for worker in workers]
        tokens = yield from self.forward([writer.row() for _, writer in writing])
        turn_end = self.text.turn_end
        for (worker, writer), token, told in zip(writing, tokens, self.logprobs, strict=True):
            piece = writer.read(token, turn_end)
            yield TokenWritten(self.passes, worker, token, piece, told)
            if events := self.follow(worker, piece):  # none, for nearly every piece
                yield from events

    def check(self, num_tokens: int) -> None:
        """End the run if its budget is spent, or if a view of so many tokens leaves no room to end.

        `num_tokens` are those that an ending would have to read after one more pass. A run that is over
        for another reason keeps that.
        """
        if self.finish_reason:
            return
        total, spent = self.settings.end.total, self.passes + self.extra_passes
        is_due = total is not None and spent + self.finisher_passes >= total
        if self.passes >= self.settings.budget or is_due:
            self.finish_reason = "budget"
        elif self.context is not None and num_tokens + self.ending_tokens > self.context:
            self.finish_reason = "context"

    def look(self, before: int | None = None) -> Work[None]:
        """Take the snapshot of this pass if one is due: what if the budget ended here?

        With `before`, also those of later passes before that one.
        """
        if not self.settings.snapshots:
            return
        until = self.passes + 1 if before is None else before
        due = [at for at in self.settings.snapshots if self.passes <= at < until]
        due = [at for at in due if at not in self.snapshots]
        if not due or self.finish_reason:
            return
        answer = yield from self.answer_now()
        for at in due:
            self.snapshots[at] = answer
            yield Snapshot(at, answer)

    def answer_now(self) -> Work[str | None]:
        """The answer if the run ended here: the one there is, or the finisher's. Nothing changes."""
        if self.answer is not None or not self.asks:
            return self.answer
        ending = self.ending()
        yield from self.apart(ending.finish(self.scene()))
        return ending.answer

    def end(self) -> Work[None]:
        """Ask for an answer if there is none, then write the reply to the user."""
        ending, scene = self.ending(), self.scene()
        if self.answer is None and self.asks:
            yield from self.apart(ending.finish(scene))
            self.answer = ending.answer
            yield AnswerFound(self.passes, None, self.answer)
        if self.settings.end.reply:
            yield from self.apart(ending.write_reply(scene, self.passes))
            yield from self.take_reply(ending)

    def take_reply(self, ending: Ending) -> Work[None]:
        """The reply that an ending has written is the run's."""
        yield from ending.close_reply(self.passes)
        self.reply, self.stopped_at, self.is_cut = ending.reply, ending.stopped_at, ending.is_cut

    def apart(self, part: Work[None]) -> Work[None]:
        """Let an ending write. Its passes are counted apart, and it is cut short where `total` is spent."""
        sent: Sent = None
        total = self.settings.end.total
        while True:
            try:
                asked = part.send(sent)
            except StopIteration:
                return
            is_pass = isinstance(asked, Step)
            if is_pass and total is not None and self.passes + self.extra_passes >= total:
                part.close()
                return
            sent = yield asked
            self.extra_passes += is_pass

    def ending(self, owner: str = "") -> Ending:
        """A finisher and a reply; see `Ending` for the owner."""
        return Ending(self.text, self.words, self.settings, owner, self.reply_prefill)

    @property
    def finisher_passes(self) -> int:
        """At most so many passes are made between the end of the work and the answer."""
        return self.settings.end.finisher_tokens if self.asks else 0

    @property
    def most_passes(self) -> int:
        """At most so many passes are the work's: its budget, or what a `total` leaves for it (`check`)."""
        budget, total = self.settings.budget, self.settings.end.total
        return budget if total is None else min(budget, max(1, total - self.finisher_passes))

    @cached_property
    def ending_tokens(self) -> int:
        """At most so many tokens are added by an ending to what it reads."""
        return self.ending().num_tokens

    # -- the account -------------------------------------------------------------------------------

    def reserve(self) -> Reserve:
        """The tokens that can be in memory at once, before the first pass: here, a budget for every writer."""
        fed = sum(len(row.feed) for row in self.opening)
        written = sum(len(writer.feed) + self.most_passes for writer in self.writers)
        return self.bound(fed + written, 6 * len(self.writers) + 4, len(self.writers))

    def bound(self, num_tokens: int, num_blocks: int, num_texts: int = 1) -> Reserve:
        """Room for so much text, and for an ending of each of so many texts: a snapshot's is gone before the next begins.

        No text outgrows the context; text that is encoded anew needs its room once more.
        """
        if self.context is not None:
            num_tokens = min(num_tokens, num_texts * 2 * self.context)
        if self.settings.end.reencode:
            num_tokens *= 2
        ending, end = self.ending_tokens, self.settings.end
        if end.total is not None:  # each pass of an ending adds one token to its words
            words = max(ending, self.ending().num_tokens) - end.finisher_tokens - end.reply_tokens
            ending = min(ending, words + end.total)
        return Reserve(num_tokens + num_texts * ending, num_blocks)

    def record(
        self,
        worker: int,
        step: int,
        text: str,
        first_pass: int,
        last_pass: int | None = None,
        *,
        checked: bool = False,
    ) -> None:
        """Put a step on record, if it has text. `last_pass` None: it ends with this pass."""
        last = self.passes if last_pass is None else last_pass
        if text := text.strip():
            self.steps.append(FinishedStep(worker, step, text, first_pass, last, checked))

    def num_written(self) -> tuple[int, ...]:
        """How many tokens each worker wrote."""
        return tuple(writer.num_tokens for writer in self.writers)

    def told(self) -> str:
        """The text shown where there is neither a reply nor an answer."""
        return "\n\n".join(step.text for step in self.steps)

    def result(self) -> Answer:
        """The answer of the run."""
        text = self.reply.strip()
        if not text and self.stopped_at is None:
            stop = StopWatch(self.settings.end.stop)
            text = stop.cut(self.answer or self.told()).strip()
            self.stopped_at = stop.found
        return Answer(
            text=text,
            answer=self.answer,
            finish_reason=self.finish_reason,
            forward_passes=self.passes,
            extra_passes=self.extra_passes,
            tokens=self.num_written(),
            steps=tuple(self.steps),
            snapshots=self.snapshots,
            prompt_tokens=(len(self.prompt_tokens),),
            found=(0,),
            stopped_at=self.stopped_at,
            is_cut=self.is_cut,
        )
