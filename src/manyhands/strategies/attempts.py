"""Independent attempts of one question: what self-consistency and best-of-n have in common.

n workers write at the same time, each in the view [prompt, own text]; nobody reads anybody else. The
prompt is one block that all of them read. Its last token is fed by every worker itself, so that the
first pass writes already; that token lies in a block apart from the text, and where one row reads all
attempts it stands there once.

A worker's random numbers depend on the seed and on its number, so another worker changes nobody's
attempt. The first attempt is there as soon as its worker's turn ends; the others go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.prompts.votes import VotesPrompt
from manyhands.strategies.base import (
    Answer,
    AnswerFound,
    Event,
    FinishedStep,
    ReplyWritten,
    Reserve,
    Snapshot,
    StepEnded,
    Strategy,
    TokenWritten,
    WorkerStopped,
)
from manyhands.strategies.ending import Ending, Scene, Steps
from manyhands.strategies.settings import AttemptSettings
from manyhands.strategies.writer import Writer
from manyhands.text import Text


class Attempt:
    """One worker's attempt. `answer` is the content of its last box."""

    def __init__(self, writer: Writer, start: Block, last: tuple[int, ...]) -> None:
        self.writer = writer
        self.lead, self.own = Block(f"{writer.name}'s first"), Block(writer.name)
        self.start = start
        self.view = View((start, self.lead))
        self.answer: str | None = None
        self.last_pass = 0
        writer.begin_step(self.lead, last)

    def read(self, token: int, turn_end: frozenset[int], passes: int) -> tuple[str, str | None]:
        """Take the token that was chosen; the text it completes, and the answer if it boxes one."""
        piece = self.writer.read(token, turn_end)
        boxed = self.writer.box.push(piece)
        self.answer = self.answer if boxed is None else boxed
        if self.view.own is self.lead:
            self.lead.freeze()
            self.view = View((self.start, self.lead, self.own))
        self.last_pass = passes
        return piece, boxed

    @property
    def text(self) -> str:
        """What was written so far."""
        return self.writer.step_text.strip()

    @property
    def num_tokens(self) -> int:
        """Length of its view, its newest token included."""
        return self.view.num_tokens + len(self.writer.unread)

    def scene(self) -> Scene:
        """What an ending of this attempt alone reads."""
        return Scene(
            self.tails(tail := Block("newest")),
            lambda *last: View((*self.view.blocks, tail, *last)),
            lambda: (*self.start.tokens, *self.lead.tokens, *self.own.tokens, *self.writer.unread),
        )

    def tails(self, tail: Block) -> tuple[tuple[View, tuple[int, ...]], ...]:
        """What nobody was fed yet, to be written to `tail`."""
        unread = self.writer.unread
        return ((View((*self.view.blocks, tail)), unread),) if unread else ()


@dataclass(frozen=True, eq=False)
class Verdict:
    """What came of all attempts: the answer, and where the reply goes on.

    `worker` is the one whose attempt was chosen, None if the answer was made of all of them.
    """

    answer: str | None
    worker: int | None
    ending: Ending
    scene: Scene


Verdicts = Generator[Step | Event, tuple[int, ...] | None, Verdict]


class Attempts(ABC):
    """The state of one run. A method says how its attempts become one answer: `decide`."""

    def __init__(
        self,
        question: str,
        text: Text,
        settings: AttemptSettings,
        prompt: VotesPrompt,
        context: int | None,
    ) -> None:
        self.text, self.settings, self.prompt, self.context = text, settings, prompt, context
        self.prompt_tokens = text.chat_prompt(prompt.message(question))
        self.start = Block("prompt")
        self.attempts = [self._attempt(worker) for worker in range(settings.workers)]
        self.passes = self.extra_passes = 0
        self.finish_reason = ""
        self.snapshots: dict[int, str | None] = {}
        self.answer: str | None = None
        self.reply = ""

    def _attempt(self, worker: int) -> Attempt:
        s = self.settings
        writer = Writer(self.text, s.choice, s.seed, f"attempt {worker + 1}")
        return Attempt(writer, self.start, self.prompt_tokens[-1:])

    @abstractmethod
    def decide(self) -> Verdicts:
        """The answer, given what there is now. Nothing that belongs to the run may change."""

    @abstractmethod
    def num_added(self) -> int:
        """How many tokens the verdict and the reply add to the longest view, at most."""

    @cached_property
    def ending_tokens(self) -> int:
        """`num_added`, counted once."""
        return self.num_added()

    def play(self) -> Strategy:
        """The strategy: attempts, then the verdict, then the reply."""
        yield self.reserve()
        yield from self.work()
        yield from self.end()
        return self.result()

    # -- the work --------------------------------------------------------------------------------

    def work(self) -> Steps:
        """Passes, until every worker has ended its turn or the budget is spent."""
        opening = [Row(View((self.start,)), self.prompt_tokens[:-1])]
        opening = opening if self.prompt_tokens[1:] else []
        while not self.finish_reason:
            live = [i for i, attempt in enumerate(self.attempts) if not attempt.writer.stopped]
            rows = [self.attempts[i].writer.row(self.attempts[i].view) for i in live]
            tokens = yield Step((*opening, *rows))
            assert tokens is not None, "a step is answered with one token per row"
            self.passes += 1
            for worker, token in zip(live, tokens[len(opening) :], strict=True):
                yield from self._read(worker, token)
            opening = []
            self._look_around()
            if self.passes in self.settings.snapshots and not self.finish_reason:
                verdict = yield from self.decide()
                self.snapshots[self.passes] = verdict.answer
                yield Snapshot(self.passes, verdict.answer)

    def _read(self, worker: int, token: int) -> Generator[Event, None, None]:
        """One worker's new token."""
        attempt = self.attempts[worker]
        piece, boxed = attempt.read(token, self.text.turn_end, self.passes)
        yield TokenWritten(self.passes, worker, token, piece)
        if boxed is not None:
            yield AnswerFound(self.passes, worker, boxed)
        if attempt.writer.stopped:
            yield StepEnded(self.passes, worker, 1, attempt.text)
            yield WorkerStopped(self.passes, worker)

    def _look_around(self) -> None:
        """Is it over?"""
        if all(attempt.writer.stopped for attempt in self.attempts):
            found = any(attempt.answer is not None for attempt in self.attempts)
            self.finish_reason = "answer" if found else "stopped"
        elif self.passes >= self.settings.budget:
            self.finish_reason = "budget"
        elif self.context is not None and self._next_size() > self.context:
            self.finish_reason = "context"

    def _next_size(self) -> int:
        """Length of what the ending reads and writes, should there be one more pass before it."""
        return self.num_read() + self.ending_tokens

    def num_read(self) -> int:
        """The longest view that an ending may have to read, after one more pass."""
        return max(attempt.num_tokens + 2 for attempt in self.attempts)

    # -- the end ---------------------------------------------------------------------------------

    def end(self) -> Steps:
        """The verdict, then the reply."""
        verdict = yield from self.decide()
        self.answer = verdict.answer
        yield AnswerFound(self.passes, None, self.answer)
        if not self.settings.end.reply:
            return
        if verdict.worker is not None and not self.text.thinking:  # its attempt is a reply already
            self.reply = self.attempts[verdict.worker].text
            yield ReplyWritten(self.passes, self.reply)
        else:
            ending = verdict.ending
            yield from self.ask([ending.write_reply(verdict.scene, self.passes)])
            self.reply = ending.reply

    def ask(self, parts: Sequence[Steps]) -> Steps:
        """Let endings write, side by side; nobody is charged for it."""
        self.extra_passes += yield from abreast(parts)

    def settle(self, endings: Sequence[Ending], scenes: Sequence[Scene]) -> Steps:
        """Every attempt's answer, in `answer` of its ending: its own, or one that it is asked for."""
        asked = []
        for attempt, ending, scene in zip(self.attempts, endings, scenes, strict=True):
            ending.answer = attempt.answer
            if attempt.answer is None and self.settings.end.finisher:
                asked.append(ending.finish(scene))
        yield from self.ask(asked)

    def words(self, finisher: str) -> TeamPrompt:
        """What an ending says."""
        return TeamPrompt(finisher=finisher, reply=self.prompt.reply)

    # -- the account -----------------------------------------------------------------------------

    def reserve(self) -> Reserve:
        """Every attempt as long as it may become, and its ending twice: a snapshot's, and the last."""
        s = self.settings
        written = s.workers * (s.budget + 1 + 2 * self.ending_tokens)
        num_tokens = len(self.prompt_tokens) + written
        if self.context is not None:
            num_tokens = min(num_tokens, s.workers * 2 * self.context)
        return Reserve(num_tokens * (2 if s.end.reencode else 1), num_blocks=8 * s.workers + 8)

    def result(self) -> Answer:
        """What the run comes back with."""
        steps = tuple(
            FinishedStep(worker, 1, attempt.text, 1, attempt.last_pass)
            for worker, attempt in enumerate(self.attempts)
            if attempt.text
        )
        return Answer(
            text=self.reply or self.answer or "\n\n".join(step.text for step in steps),
            answer=self.answer,
            finish_reason=self.finish_reason,
            forward_passes=self.passes,
            extra_passes=self.extra_passes,
            tokens=tuple(attempt.writer.num_tokens for attempt in self.attempts),
            steps=steps,
            snapshots=self.snapshots,
        )


def abreast(parts: Sequence[Steps]) -> Generator[Step | Event, tuple[int, ...] | None, int]:
    """Several lines of steps in the same passes; how many passes it took."""
    passes = 0
    live: list[tuple[Steps, Step]] = []
    for part in parts:
        live += yield from _next_step(part, None)
    while live:
        answered = yield Step(row for _, step in live for row in step.rows)
        assert answered is not None, "a step is answered with one token per row"
        passes += 1
        tokens, waiting, live = iter(answered), live, []
        for part, step in waiting:
            live += yield from _next_step(part, tuple(islice(tokens, len(step.rows))))
    return passes


def _next_step(
    part: Steps, tokens: tuple[int, ...] | None
) -> Generator[Event, None, list[tuple[Steps, Step]]]:
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
