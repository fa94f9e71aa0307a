"""Hogwild! Inference: workers who write at the same time and read each other while they write.

Every pass each present worker feeds its newest token and reads everybody's (sections 3.1 to 3.4). When
a worker finishes a paragraph, its desk joins the common history as it is, nothing is copied or encoded
again, and the worker goes on at a fresh desk: the next row feeds the break token and the new step's
prefix, so no pass is lost. Now and then a worker that begins a step is asked whether its work is
redundant (section 3.3). The run ends when somebody closes a box with an answer in it, when all have
ended their turn, or when the budget of forward passes is spent.
"""

from __future__ import annotations

from collections.abc import Generator

from manyhands.cache.block import Block
from manyhands.cache.layouts import LAYOUTS, Cast, everything
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.base import (
    Answer,
    AnswerFound,
    CheckAsked,
    Event,
    FinishedStep,
    Reserve,
    Snapshot,
    StepBegun,
    StepEnded,
    Strategy,
    TokenWritten,
    WorkerStopped,
)
from manyhands.strategies.ending import Ending, Scene, Steps, all_tokens
from manyhands.strategies.settings import TeamSettings
from manyhands.strategies.writer import Writer
from manyhands.text import Text

_SHORTEST_USUAL_STEP = 12  # tokens; for the estimate of memory only


def hogwild(
    problem: str,
    text: Text,
    settings: TeamSettings | None = None,
    prompt: TeamPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: a team works on `problem` (already cleaned, see `text.clean_problem`).

    `context` is the longest view the model bears; the team stops in time to still give its answer.
    """
    team = _Team(problem, text, settings or TeamSettings(), prompt or TeamPrompt(), context)
    yield team.reserve()
    yield from team.work()
    yield from team.end()
    return team.result()


class _Team:
    """The state of one run: who sits where, what was written, how it ended."""

    def __init__(
        self,
        problem: str,
        text: Text,
        settings: TeamSettings,
        prompt: TeamPrompt,
        context: int | None,
    ) -> None:
        self.text = text
        self.settings = settings
        self.prompt = prompt
        self.names = prompt.team(settings.workers)
        self.view_of = LAYOUTS[settings.layout]
        self.has_history = self.view_of.keeps_history
        self.workers = [Writer(text, settings.choice, settings.seed, name) for name in self.names]
        self.step_numbers = [1] * settings.workers
        self.first_passes = [0] * settings.workers  # of the current step; 0: not begun
        self.history: list[Block] = []
        self.num_settled = 0  # of the history, so many are as `moves` wants them
        self.prompt_block = Block("prompt")
        self.others_header, self.own_header = Block("others' header"), Block("own header")
        self.marker = Block("more to come")
        message = prompt.team_message(problem, self.names)
        self.prompt_tokens = text.chat_prompt(message) + text.encode(prompt.past_header)
        self.context = context
        self.num_fed = 0
        self.passes = 0
        self.extra_passes = 0
        self.next_check = settings.check_every or None
        self.steps: list[FinishedStep] = []
        self.snapshots: dict[int, str | None] = {}
        self.answer: str | None = None
        self.finish_reason = ""
        self.reply = ""
        self.views: list[View] = []
        self.ending_tokens = self._ending().num_tokens
        for index, worker in enumerate(self.workers):
            worker.feed = text.encode(prompt.step_break) + self._prefix_tokens(index, check=False)
        self._seat()

    # -- the work --------------------------------------------------------------------------------

    def work(self) -> Steps:
        """Passes, until there is an answer, nobody is left, or the budget is spent."""
        for index in range(len(self.workers)):
            yield self._step_begun(index)
        opening = self._opening()
        while not self.finish_reason:
            self.passes += 1
            present = [i for i in range(len(self.workers)) if self._is_present(i)]
            for i in present:
                self.first_passes[i] = self.first_passes[i] or self.passes
            again = self._encode_again()
            rows = [*opening, *(self.workers[i].row(self.views[i]) for i in present)]
            tokens = (yield Step((*again, *rows))) if rows or again else ()
            self.num_fed += sum(len(row.feed) for row in rows)  # what is encoded again counts once
            assert tokens is not None, "a step is answered with one token per row"
            written = tokens[len(tokens) - len(present) :]
            for index, token in zip(present, written, strict=True):
                yield from self._read(index, token)
            opening = []
            self._look_around()
            if self.passes in self.settings.snapshots and not self.finish_reason:
                yield from self._take_snapshot()

    def _opening(self) -> list[Row]:
        """Prompt, headers and marker: written in the same pass as the first words of the workers.

        A prompt may leave any of these texts empty; an empty block in a view is legal.
        """
        prompt, others, own = self.prompt_block, self.others_header, self.own_header
        context = (prompt, others) if self.settings.headers == "in_context" else ()
        text, words = self.text, self.prompt
        rows = (
            (View((prompt,)), self.prompt_tokens),
            (View((*context[:1], others)), text.encode(words.others_header)),
            (View((*context, self.marker)), text.encode(words.more_to_come)),
            (View((*context, own)), text.encode(words.own_header)),
        )
        return [Row(view, tokens) for view, tokens in rows if tokens]

    def _encode_again(self) -> list[Row]:
        """The ablation of app. E.1: what has come into the history is fed once more, in its order.

        Until this pass it stands there as it was written, which is all that a snapshot may see of it.
        """
        if self.settings.moves == "rotate" or self.num_settled == len(self.history):
            return []
        rows = []
        for block in self.history[: self.num_settled]:
            block.freeze()
        for number in range(self.num_settled, len(self.history)):
            moved, fresh = self.history[number], Block(self.history[number].name)
            before = (self.prompt_block, *self.history[:number])
            rows.append(Row(View((*before, fresh)), tuple(moved.tokens)))
            self.history[number] = fresh
        self.num_settled = len(self.history)
        self._seat()
        return rows

    def _is_present(self, index: int) -> bool:
        if self.workers[index].stopped:
            return False
        away = (a for a in self.settings.away if a.worker == index)
        return not any(a.first <= self.passes <= a.last for a in away)

    def _read(self, index: int, token: int) -> Generator[Event, None, None]:
        """One worker's new token, and what follows from it."""
        worker = self.workers[index]
        piece = worker.read(token, self.text.turn_end)
        yield TokenWritten(self.passes, index, token, piece)
        answer = worker.box.push(piece)
        if answer is not None and self.answer is None:
            self.answer = answer
            yield AnswerFound(self.passes, index, answer)
        if worker.stopped:
            yield WorkerStopped(self.passes, index)
        elif worker.ends_step(piece):
            yield from self._end_step(index)

    def _end_step(self, index: int) -> Generator[Event, None, None]:
        """The desk joins the history; the worker's next row opens a new step."""
        worker = self.workers[index]
        yield StepEnded(self.passes, index, self.step_numbers[index], worker.step_text.strip())
        self._record(index)
        self.step_numbers[index] += 1
        self.first_passes[index] = 0
        asked = self._check_is_due()
        feed = worker.feed + self._prefix_tokens(index, check=asked)
        if self.has_history:
            self.history.append(worker.desk.freeze())
            worker.begin_step(Block(f"{self.names[index]} {self.step_numbers[index]}"), feed)
            self._seat()
        else:
            worker.begin_step(worker.desk, feed)
        yield self._step_begun(index)
        if asked:
            yield CheckAsked(self.passes, index, self.step_numbers[index])

    def _seat(self) -> None:
        """Views follow from who sits where; they stay the same until somebody finishes a step."""
        self.views = [self.view_of(self._cast(), index) for index in range(len(self.workers))]

    def _cast(self) -> Cast:
        return Cast(
            prompt=self.prompt_block,
            others_header=self.others_header,
            own_header=self.own_header,
            marker=self.marker,
            desks=tuple(worker.desk for worker in self.workers),
            history=tuple(self.history),
        )

    def _check_is_due(self) -> bool:
        written = sum(worker.num_tokens for worker in self.workers)
        if self.next_check is None or written < self.next_check:
            return False
        self.next_check = written + self.settings.check_every
        return True

    def _prefix_tokens(self, index: int, *, check: bool) -> tuple[int, ...]:
        return self.text.encode(self._prefix(index, check=check))

    def _prefix(self, index: int, *, check: bool = False) -> str:
        step = self.step_numbers[index]
        question = self.prompt.redundancy_check if check else ""
        inserted = self.settings.insertions.get((index, step), "")
        return self.prompt.prefix(self.names[index], step) + question + inserted

    def _step_begun(self, index: int) -> StepBegun:
        return StepBegun(self.passes, index, self.step_numbers[index], self._prefix(index))

    def _record(self, index: int) -> None:
        """Put what stands on the worker's desk on record as a step."""
        body = self.workers[index].step_text.strip()
        if body:
            self.steps.append(
                FinishedStep(
                    index, self.step_numbers[index], body, self.first_passes[index], self.passes
                )
            )

    def _look_around(self) -> None:
        """Is it over?"""
        if self.answer is not None:
            self.finish_reason = "answer"
        elif all(worker.stopped for worker in self.workers):
            self.finish_reason = "stopped"
        elif self.passes >= self.settings.budget:
            self.finish_reason = "budget"
        elif self.context is not None and self._longest_next_view() > self.context:
            self.finish_reason = "context"

    def _longest_next_view(self) -> int:
        """Length of what the ending reads and writes, should there be one more pass before it.

        No worker reads more: whatever the layout, the ending's view holds every block, and then the
        newest token of each worker, and the ending's own words. The marker stands in it repeatedly.
        """
        markers = (len(self.workers) - 2) * self.marker.num_tokens
        newest = sum(len(worker.feed) + 1 for worker in self.workers)
        return self.num_fed + markers + newest + self.ending_tokens

    # -- the end ---------------------------------------------------------------------------------

    def end(self) -> Steps:
        """Ask for an answer if there is none, then write the reply to the user."""
        for index in range(len(self.workers)):
            self._record(index)
        ending, scene = self._ending(), self._scene()
        if self.answer is None and self.settings.end.finisher:
            yield from ending.finish(scene)
            self.answer = ending.answer
            yield AnswerFound(self.passes, None, self.answer)
        if self.settings.end.reply:
            yield from ending.write_reply(scene, self.passes)
        self.reply = ending.reply
        self.extra_passes += ending.passes

    def _take_snapshot(self) -> Steps:
        ending = self._ending()
        if self.settings.end.finisher:
            yield from ending.finish(self._scene())
        self.snapshots[self.passes] = ending.answer
        self.extra_passes += ending.passes
        yield Snapshot(self.passes, ending.answer)

    def _ending(self) -> Ending:
        s = self.settings
        return Ending(self.text, self.prompt, s.end, s.choice, s.seed)

    def _scene(self) -> Scene:
        cast = self._cast()
        tails = tuple(Block(f"{name}'s newest") for name in self.names)
        written = [
            (View((*view.blocks, tail)), worker.unread)
            for view, tail, worker in zip(self.views, tails, self.workers, strict=True)
            if worker.unread
        ]

        def view(*last: Block) -> View:
            return everything(cast, tails, *last)

        def tokens() -> tuple[int, ...]:
            blocks = (self.prompt_block, *self.history)
            desks = (part for w in self.workers for part in (w.desk.tokens, w.unread))
            return all_tokens(blocks, *desks)

        return Scene(tuple(written), view, tokens)

    # -- the account -----------------------------------------------------------------------------

    def reserve(self) -> Reserve:
        """Room for a long run with short steps; what exceeds it may still find free pages."""
        settings = self.settings
        steps = settings.budget // _SHORTEST_USUAL_STEP + 1
        prefix = max(len(self._prefix_tokens(i, check=False)) for i in range(settings.workers))
        written = settings.workers * (settings.budget + steps * (prefix + 2))
        headers = sum(
            len(self.text.encode(words))
            for words in (
                self.prompt.others_header,
                self.prompt.own_header,
                self.prompt.more_to_come,
            )
        )
        num_tokens = len(self.prompt_tokens) + headers + written + 2 * self.ending_tokens
        return Reserve(num_tokens, num_blocks=4 * settings.workers + 8)

    def result(self) -> Answer:
        """What the run comes back with."""
        steps = sorted(self.steps, key=lambda step: (step.last_pass, step.worker))
        return Answer(
            text=self.reply or self.answer or "\n\n".join(step.text for step in steps),
            answer=self.answer,
            finish_reason=self.finish_reason,
            forward_passes=self.passes,
            extra_passes=self.extra_passes,
            tokens=tuple(worker.num_tokens for worker in self.workers),
            steps=tuple(steps),
            snapshots=self.snapshots,
        )
