"""Independent attempts of one question: what self-consistency and best-of-n have in common.

n workers write at the same time, each in the view [prompt, own text]; nobody reads anybody else. The
prompt is one block that all of them read. Its last token is fed by every worker itself, so that the
first pass writes already; that token lies in a block apart from the text, and where one row reads all
attempts it stands there once.

A worker's random numbers depend on the seed and on its number, so another worker changes nobody's
attempt. The first attempt is there as soon as its worker's turn ends; the others go on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import Item, View
from manyhands.prompts.template import put
from manyhands.prompts.votes import VotesPrompt
from manyhands.schema.conversation import Conversation
from manyhands.strategies.base import Work
from manyhands.strategies.budgeted import BudgetedRun
from manyhands.strategies.ending import Ending, EndWords
from manyhands.strategies.events import AnswerFound, Event, ReplyWritten, StepEnded, WorkerStopped
from manyhands.strategies.scene import Scene, Writing, scene_of
from manyhands.strategies.settings import AttemptSettings
from manyhands.strategies.writer import Writer
from manyhands.text import Text
from manyhands.text.stops import StopWatch


class Attempt:
    """One worker's attempt. `answer` is the content of its last box."""

    def __init__(self, writer: Writer, start: Block, last: tuple[int, ...]) -> None:
        self.writer = writer
        self.start = start
        self.lead, self.own = Block(f"{writer.name}'s first"), Block(writer.name)
        self.answer: str | None = None
        writer.begin_step(View((start, self.lead)), last)

    def leave_lead(self) -> None:
        """The prompt's last token is fed: what follows is the attempt's own text."""
        self.lead.freeze()
        self.writer.view = View((self.start, self.lead, self.own))

    @property
    def text(self) -> str:
        """The text written so far."""
        return self.writer.step_text.strip()

    @property
    def num_tokens(self) -> int:
        """Length of its view, its newest token included."""
        return self.writer.view.num_tokens + len(self.writer.unread)

    def scene(self) -> Scene:
        """The scene that an ending of this attempt alone reads."""
        return scene_of(Writing(self.writer.view.items, self.writer.unread))


@dataclass(frozen=True, eq=False)
class Verdict:
    """The outcome of all attempts: the answer, and where the reply goes on.

    `worker` is the one whose attempt was chosen, None if the answer was made of all of them.
    """

    answer: str | None
    worker: int | None
    ending: Ending
    scene: Scene


class Attempts(BudgetedRun):
    """The state of one run. A method says how its attempts become one answer: `decide`.

    `finisher` are the words that ask for it.
    """

    settings: AttemptSettings

    def __init__(
        self,
        asked: Conversation,
        text: Text,
        settings: AttemptSettings,
        prompt: VotesPrompt,
        finisher: str,
        context: int | None,
    ) -> None:
        words = EndWords(finisher, prompt.reply)
        super().__init__(text, settings, words, context, asked.problem, asked.prefill)
        told = put(asked, prompt.message, prompt.rules_in)
        if text.thinking:  # the reply comes behind the attempts
            told = told.without_prefill()
        self.prompt, self.prompt_tokens = prompt, text.conversation(told)
        self.start = self.prefill(self.prompt_tokens)
        names = (f"attempt {number}" for number in range(1, settings.workers + 1))
        self.writers = [self.new_writer(name) for name in names]
        last = self.prompt_tokens[-1:]
        self.attempts = [Attempt(writer, self.start, last) for writer in self.writers]
        for writer in self.writers:
            writer.follow(text.encode(told.prefill))
            writer.box.push(told.prefill)

    @abstractmethod
    def decide(self) -> Work[Verdict]:
        """The answer, given what there is now. Nothing that belongs to the run may change."""

    # -- the work --------------------------------------------------------------------------------

    def work(self) -> Work[None]:
        """Passes, until every worker has ended its turn or the budget is spent."""
        while not self.finish_reason:
            yield from self.write(i for i, w in enumerate(self.writers) if not w.stopped)
            if all(writer.stopped for writer in self.writers):
                found = any(attempt.answer is not None for attempt in self.attempts)
                self.finish_reason = "answer" if found else "stopped"
            else:
                self.check(self.num_read())
            yield from self.look()
        for worker, attempt in enumerate(self.attempts):
            if not attempt.writer.stopped:
                self.record(worker, 1, attempt.text, 1)
        self.steps.sort(key=lambda step: step.worker)

    def follow(self, worker: int, piece: str) -> Generator[Event, None, None]:
        """A box may be closed, a turn ended."""
        attempt, writer = self.attempts[worker], self.writers[worker]
        boxed = writer.box.push(piece)
        if boxed is not None:
            attempt.answer = boxed
            yield AnswerFound(self.passes, worker, boxed)
        if writer.view.own is attempt.lead:
            attempt.leave_lead()
        if writer.stopped:
            self.record(worker, 1, attempt.text, 1)
            yield StepEnded(self.passes, worker, 1, attempt.text)
            yield WorkerStopped(self.passes, worker)

    def num_read(self) -> int:
        """The longest view that an ending may have to read, after one more pass."""
        return max(attempt.num_tokens + 2 for attempt in self.attempts)

    # -- the end ---------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """Prompt, then attempt after attempt; what the first one was led in by stands there once."""
        between, words = Block("between"), self.text.encode(self.prompt.between)
        rows = [Row(View((self.start, between)), words)] if words and self.attempts[1:] else []
        items: tuple[Item, ...] = (self.start, self.attempts[0].lead)
        for attempt in self.attempts:
            tail = Block(f"{attempt.writer.name}'s newest")
            if attempt.writer.unread:
                rows.append(Row(View((*attempt.writer.view.items, tail)), attempt.writer.unread))
            items += (attempt.own, tail) if len(items) == 2 else (between, attempt.own, tail)
        return Scene(items, tuple(rows))

    def answer_now(self) -> Work[str | None]:
        """The answer of the verdict."""
        return (yield from self.decide()).answer

    def end(self) -> Work[None]:
        """The verdict, then the reply."""
        verdict = yield from self.decide()
        self.answer = verdict.answer
        yield AnswerFound(self.passes, None, self.answer)
        if not self.settings.end.reply:
            return
        if verdict.worker is not None and not self.text.thinking:  # its attempt is a reply already
            stop, chosen = StopWatch(self.settings.end.stop), self.attempts[verdict.worker]
            self.reply = stop.cut(chosen.text).strip()
            self.stopped_at = stop.found
            self.is_cut = stop.found is None and not chosen.writer.stopped
            yield ReplyWritten(self.passes, self.reply)
        else:
            ending = verdict.ending
            yield from self.ask([ending.write_reply(verdict.scene, self.passes)])
            yield from self.take_reply(ending)

    def ask(self, parts: Iterable[Work[None]]) -> Work[None]:
        """Let endings write, side by side; their passes are charged to no method."""
        yield from self.apart(abreast(parts))

    def settle(self, endings: Sequence[Ending], scenes: Sequence[Scene]) -> Work[None]:
        """Every attempt's answer, in `answer` of its ending: its own, or one that it is asked for."""
        asked = []
        for attempt, ending, scene in zip(self.attempts, endings, scenes, strict=True):
            ending.answer = attempt.answer
            if attempt.answer is None and self.asks:
                asked.append(ending.finish(scene))
        yield from self.ask(asked)


def abreast(parts: Iterable[Work[None]]) -> Work[None]:
    """Several generators of steps in the same passes."""
    live: list[tuple[Work[None], Step]] = []
    for part in parts:
        live += yield from _next_step(part, None)
    while live:
        answered = yield Step(row for _, step in live for row in step.rows)
        assert isinstance(answered, tuple), "a step is answered with one token per row"
        tokens, waiting, live = iter(answered), live, []
        for part, step in waiting:
            live += yield from _next_step(part, tuple(islice(tokens, len(step.rows))))


def _next_step(
    part: Work[None], tokens: tuple[int, ...] | None
) -> Work[list[tuple[Work[None], Step]]]:
    """Send tokens in, pass on what is reported; the next step, if there is one."""
    while True:
        try:
            asked = part.send(tokens)
        except StopIteration:
            return []
        if isinstance(asked, Step):
            return [(part, asked)]
        yield asked
        tokens = None
