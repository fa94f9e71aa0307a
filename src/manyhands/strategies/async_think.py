"""AsyncThink: an organiser gives parts of the work to workers, goes on, and reads a result when it asks for it.

    organiser   reads [prompt, own text, results put into it]    its text is the reply, and worker 0
    worker      reads [own prompt with the sub-query, own text]  nothing of the organiser or of other workers

    <FORK-2>…</FORK-2>   worker 2 begins with the next pass. The organiser does not wait
    <JOIN-2>             the organiser waits until worker 2 is done, and the result is fed to its text behind the
                         mark; worker 2 may be forked again

All who have something to write do so in one pass: rows come and go at different times. A mark that makes no sense
(a number beyond `workers`, a fork of a worker that is busy or not joined, a join of one that was never forked,
an empty sub-query) is text like any other. The organiser's end is the end of the run: work that nobody asked for
is dropped. Marks are found in the organiser's own text, so neither a user nor a worker can spell one.

`forward_passes` counts passes, however many write: the critical path. Workers are numbered 1, 2, … in the order
of their forks, and the random numbers of each depend on the seed and on its number.

(AsyncThink, Chi et al., 2025, arXiv 2510.26658: the protocol of fork and join as text, here without training, by
the prompt alone. The marks and all words are data, `prompts/async_think.py`.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import replace

from manyhands.prompts.async_think import AsyncThinkPrompt, Fork, Join
from manyhands.prompts.template import put
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Answer, Reserve, Strategy, Work
from manyhands.strategies.events import Event, StepBegun, StepEnded, TokenWritten, WorkerJoined
from manyhands.strategies.own_words import own_words, spoken
from manyhands.strategies.parting import StrandsRun, WorkerStrand
from manyhands.strategies.settings import AsyncThinkSettings, or_usual
from manyhands.strategies.strand import SLACK, STRIPS, TOKENS_ANEW
from manyhands.strategies.writer import Writer, tokens_behind
from manyhands.text import Text


def async_think(
    question: str | Conversation,
    text: Text,
    settings: AsyncThinkSettings | None = None,
    prompt: AsyncThinkPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: an organiser that forks workers and joins them later.

    Without a `prompt` it speaks the words that the model was trained with (`own_words.py`).
    `context` is the longest view that the model bears, in tokens; the run stops in time for its answer.
    """
    settings, prompt = (
        or_usual(settings, AsyncThinkSettings),
        spoken(prompt, own_words(text).async_think),
    )
    return _Run(conversation_of(question), text, settings, prompt, context).play()


class _Worker(WorkerStrand):
    """A worker with one sub-query, in a context of its own. `number` is the organiser's for it."""

    def __init__(
        self,
        worker: int,
        fork: Fork,
        writer: Writer,
        message: str,
        end: str,
        first_pass: int,
        max_tokens: int,
    ) -> None:
        told = (writer.name, fork.query, writer, (end,), (), message)
        super().__init__(worker, *told, first_pass, max_tokens)
        self.number = fork.number
        assert writer.thinking is not None, "a worker thinks, or replies"
        self.watched = writer.thinking
        self.is_thinking = self.watched.thinking
        self.num_thought = 0  # characters of its text that are thoughts

    def opening_tokens(self, text: Text, opening: str) -> tuple[int, ...]:
        """The prompt of its own."""
        return text.chat_prompt(opening)

    def read(self, token: int, turn_end: frozenset[int]) -> str:
        """Take a token. In thoughts no mark is looked for, and their end is not the end."""
        if not self.is_thinking:
            return super().read(token, turn_end)
        piece = self.take(token, turn_end)
        self.text += piece
        self.num_joined += 1
        if not self.watched.thinking:
            self.is_thinking, self.num_thought = False, len(self.text)
        if self.writer.stopped:
            self.finish("stopped")
        elif self.writer.num_tokens >= self.max_tokens:
            self.finish("budget")
        return piece

    @property
    def reply(self) -> str:
        """All it wrote behind its thoughts; its thoughts where there is nothing else."""
        return self.text[self.num_thought :].strip() or self.text


class _Run(StrandsRun):
    """The state of one run."""

    settings: AsyncThinkSettings

    def __init__(
        self,
        asked: Conversation,
        text: Text,
        settings: AsyncThinkSettings,
        prompt: AsyncThinkPrompt,
        context: int | None,
    ) -> None:
        def message(question: str) -> str:
            return prompt.message(question, settings.workers)

        told = put(asked, message, prompt.rules_in)
        super().__init__(told, text, settings, prompt.finisher, context, problem=asked.problem)
        self.prompt = prompt
        self.own_text = ""  # of the organiser; marks are found in it
        self.num_scanned = 0  # characters of it
        self.live: list[_Worker] = []
        self.results: dict[int, str] = {}  # not joined yet, by the organiser's numbers
        self.waits_for: deque[int] = deque()  # joins that are not answered yet
        self.worker_tokens: list[int] = []  # written by each worker, in their order

    # -- the passes --------------------------------------------------------------------------------

    def work(self) -> Work[None]:
        """Passes of the organiser and of all workers that are at work."""
        while not self.finish_reason:
            yield from self._pass()
        yield from self.say(self._stop.release())
        for worker in list(self.live):
            yield from self._look_at(worker)
        self.end_segment()

    def _pass(self) -> Work[None]:
        workers, is_main = list(self.live), not self.waits_for
        rows = [self.writer.row()] if is_main else []
        tokens = yield from self.forward([*rows, *(worker.row() for worker in workers)])
        told = self.logprobs
        first = len(rows)
        for worker, token, logprobs in zip(workers, tokens[first:], told[first:], strict=True):
            piece = worker.read(token, worker.writer.ends)
            yield TokenWritten(self.passes, worker.worker, token, piece, logprobs)
            yield from self._look_at(worker)
        if is_main:
            yield from self.read_on(tokens[0], told[0])
            yield from self._obey()
        else:
            self.check_room()
            yield from self.look()
        yield from self._answer_joins()

    def certain(self, piece: str) -> str:
        """The organiser's newest text, which may complete a mark; marks stay in it."""
        self.own_text += piece
        return piece

    # -- forks -------------------------------------------------------------------------------------

    def _obey(self) -> Generator[Event, None, None]:
        """Do as the marks say that the newest token completed."""
        newest = self.strand.newest
        if self.finish_reason or not self.prompt.may_end_a_mark(newest):
            return
        for mark in self.prompt.marks(self.own_text, self.num_scanned):
            self.num_scanned = mark.end
            busy = {worker.number for worker in self.live}
            if isinstance(mark, Join):
                is_due = mark.number in self.waits_for
                if (mark.number in busy or mark.number in self.results) and not is_due:
                    self.waits_for.append(mark.number)
            elif mark.number not in busy | set(self.results):
                yield from self._fork(mark)

    def _fork(self, fork: Fork) -> Generator[Event, None, None]:
        """A worker begins, if it may."""
        settings, num_forks = self.settings, len(self.worker_tokens)
        if not fork.query or not 1 <= fork.number <= settings.workers:
            return
        if num_forks >= settings.max_forks:
            return
        message = self.prompt.worker_message(fork.query)
        most = settings.worker_tokens
        if self.context is not None:
            most = min(most, self.context - len(self.text.chat_prompt(message)) - 1)
        if most < 1:
            return
        number = num_forks + 1
        choice, seed = settings.choice, settings.seed
        watched = self.text.watch_thinking(self.text.thinking)
        writer = Writer(self.text, choice, seed, f"worker {number}", thinking=watched)
        end, first_pass = self.prompt.result_end, self.passes + 1
        worker = _Worker(number, fork, writer, message, end, first_pass, most)
        self.live.append(worker)
        self.worker_tokens.append(0)
        yield from self._close_segment()
        yield WorkerJoined(self.passes, number, worker.name)
        yield StepBegun(self.passes, number, 1, fork.query)
        yield StepBegun(self.passes, 0, self.num_segments + 1, "")

    def _look_at(self, worker: _Worker) -> Generator[Event, None, None]:
        """Has it ended, or must it? Then only its result is kept."""
        yield from self.let_leave(worker, 1)
        self.worker_tokens[worker.worker - 1] = worker.writer.num_tokens
        if worker.finish_reason:
            self.live.remove(worker)
            self.results[worker.number] = self.prompt.result_of(worker.reply)
            self.record(worker.worker, 1, worker.text, worker.first_pass)

    # -- joins -------------------------------------------------------------------------------------

    def _answer_joins(self) -> Generator[Event, None, None]:
        """Results that the organiser waits for, and that are there, enter its text."""
        while self.waits_for and self.waits_for[0] in self.results and not self.finish_reason:
            number = self.waits_for.popleft()
            words = self.prompt.put_in(number, self.results.pop(number))
            tokens = tokens_behind(self.text, words)
            self.writer.feed = (*self.writer.feed, *tokens)
            size = self.strand.num_tokens + len(self.writer.feed) + 1 + self.ending_tokens
            if self.context is not None and size > self.context:
                self.writer.feed = self.writer.unread
                self.finish_reason = "context"
                return
            self.writer.follow(tokens)
            yield from self.say(self._stop.release())
            yield from self._close_segment()
            yield StepBegun(self.passes, 0, self.num_segments + 1, words.strip())
            yield from self.insert(words)

    def _close_segment(self) -> Generator[Event, None, None]:
        """The organiser's text so far is a step, if it has text."""
        if said := self.end_segment():
            yield StepEnded(self.passes, 0, self.num_segments, said)

    # -- the account -------------------------------------------------------------------------------

    def reserve(self) -> Reserve:
        """The organiser's text with all results, and so many workers at once as there may be."""
        s, most = self.settings, self.most_passes
        forks = min(s.max_forks, most)
        at_once, written = min(s.workers, forks), min(s.worker_tokens, most)
        around = len(self.text.encode(self.prompt.put_in(s.workers, ""))) + SLACK
        results = min(forks * written, at_once * most) * TOKENS_ANEW
        own = len(self.prompt_tokens) + most + forks * around + results
        rules = len(self.text.chat_prompt(self.prompt.worker_message(""))) + SLACK
        # Sub-queries are the organiser's words.
        at_work = at_once * (rules + written) + most * TOKENS_ANEW
        if self.context is not None:
            at_work = min(at_work, at_once * self.context)
        main = self.bound(own, STRIPS + 8)
        return Reserve(main.num_tokens + at_work, main.num_blocks + STRIPS * at_once)

    def num_written(self) -> tuple[int, ...]:
        """By the organiser, then by each worker."""
        return (self.writer.num_tokens, *self.worker_tokens)

    def result(self) -> Answer:
        """The answer. Its text is the organiser's own words; as it is streamed, it has marks and results."""
        found = super().result()
        return replace(found, text=self.prompt.bare(found.text))
