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
from manyhands.cache.step import Row
from manyhands.cache.view import View
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.base import (
    AnswerFound,
    CheckAsked,
    Event,
    Reserve,
    StepBegun,
    StepEnded,
    Strategy,
    WorkerStopped,
)
from manyhands.strategies.budgeted import BudgetedRun
from manyhands.strategies.ending import Scene, Work
from manyhands.strategies.settings import TeamSettings
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
    run = _Team(problem, text, settings or TeamSettings(), prompt or TeamPrompt(), context)
    return run.play()


class _Team(BudgetedRun):
    """The state of one run: who sits where, and what was written."""

    settings: TeamSettings

    def __init__(
        self,
        problem: str,
        text: Text,
        settings: TeamSettings,
        prompt: TeamPrompt,
        context: int | None,
    ) -> None:
        super().__init__(text, settings, prompt, context)
        self.prompt = prompt
        self.names = prompt.team(settings.workers)
        self.view_of = LAYOUTS[settings.layout]
        self.has_history = settings.layout != "contiguous"
        self.writers = [self.new_writer(name) for name in self.names]
        self.desks = [Block(f"{name} 1") for name in self.names]
        self.step_numbers = [1] * settings.workers
        self.first_passes = [0] * settings.workers  # of the current step; 0: not begun
        self.history: list[Block] = []
        self.num_settled = 0  # of the history, so many are as `moves` wants them
        self.prompt_block = Block("prompt")
        self.others_header, self.own_header = Block("others' header"), Block("own header")
        self.marker = Block("more to come")
        message = prompt.team_message(problem, self.names)
        self.prompt_tokens = text.chat_prompt(message) + text.encode(prompt.past_header)
        self.opening = self._opening()
        self.num_fed = 0
        self.num_skipped = 0  # passes by the clock of absences that never ran, for want of rows
        self.next_check = settings.check_every or None
        for index, writer in enumerate(self.writers):
            writer.feed = text.encode(prompt.step_break) + self._prefix_tokens(index, check=False)
        self._seat()

    # -- the work --------------------------------------------------------------------------------

    def work(self) -> Work[None]:
        """Passes, until there is an answer, no worker is left, or the budget is spent."""
        for index in range(len(self.writers)):
            yield self._step_begun(index)
        while not self.finish_reason and (present := (yield from self._present())):
            for i in present:
                self.first_passes[i] = self.first_passes[i] or self.passes + 1
            self.num_fed += sum(len(row.feed) for row in self.opening)
            self.num_fed += sum(len(self.writers[i].feed) for i in present)
            self.opening += self._encode_again()  # which counts once: it is in `num_fed` already
            yield from self.write(present)
            self._look_around()
            yield from self.look()

    def _present(self) -> Work[list[int]]:
        """The workers that write in the next pass; none if all have stopped or are away for good.

        A pass without rows is no pass: where all that have not stopped are away, the clock goes on to
        the first of them who comes back. An absence that outlasts the budget is for good; so a smaller
        budget may end here, and its snapshot is taken before the work goes on.
        """
        now = self.passes + self.num_skipped + 1
        for clock in (now, *range(now + 1, self.settings.budget + 1)):
            if present := self._present_at(clock):
                if clock > now:
                    yield from self.look(before=clock)
                self.num_skipped += clock - now
                return present
        self.finish_reason = "stopped"
        return []

    def _present_at(self, clock: int) -> list[int]:
        """The workers that have not stopped and are not away in this pass of the clock."""
        away = {a.worker for a in self.settings.away if a.first <= clock <= a.last}
        return [i for i, w in enumerate(self.writers) if i not in away and not w.stopped]

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

    def follow(self, index: int, piece: str) -> Generator[Event, None, None]:
        """A box may be closed, a turn or a step ended."""
        worker = self.writers[index]
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
        worker = self.writers[index]
        yield StepEnded(self.passes, index, self.step_numbers[index], worker.step_text.strip())
        self._record(index)
        self.step_numbers[index] += 1
        self.first_passes[index] = 0
        asked = self._check_is_due()
        feed = worker.feed + self._prefix_tokens(index, check=asked)
        worker.begin_step(worker.view, feed)
        if self.has_history:
            self.history.append(self.desks[index].freeze())
            self.desks[index] = Block(f"{self.names[index]} {self.step_numbers[index]}")
            self._seat()
        yield self._step_begun(index)
        if asked:
            yield CheckAsked(self.passes, index, self.step_numbers[index])

    def _seat(self) -> None:
        """Views follow from who sits where; they stay the same until somebody finishes a step."""
        cast = self._cast()
        for index, writer in enumerate(self.writers):
            writer.view = self.view_of(cast, index)

    def _cast(self) -> Cast:
        return Cast(
            prompt=self.prompt_block,
            others_header=self.others_header,
            own_header=self.own_header,
            marker=self.marker,
            desks=tuple(self.desks),
            history=tuple(self.history),
        )

    def _check_is_due(self) -> bool:
        written = sum(worker.num_tokens for worker in self.writers)
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
        written = self.writers[index].step_text
        self.record(index, self.step_numbers[index], written, self.first_passes[index])

    def _look_around(self) -> None:
        """Is it over?"""
        if self.answer is not None:
            self.finish_reason = "answer"
        elif all(worker.stopped for worker in self.writers):
            self.finish_reason = "stopped"
        else:
            self.check(self._num_read())

    def _num_read(self) -> int:
        """Length of what the ending reads, should there be one more pass before it.

        No worker reads more: whatever the layout, the ending's view holds every block, and then the
        newest token of each worker. The marker stands in it repeatedly.
        """
        markers = (len(self.writers) - 2) * self.marker.num_tokens
        newest = sum(len(worker.feed) + 1 for worker in self.writers)
        return self.num_fed + markers + newest

    # -- the end ---------------------------------------------------------------------------------

    def end(self) -> Work[None]:
        """What stands on the desks is on record too, in the order in which steps ended."""
        for index in range(len(self.writers)):
            self._record(index)
        self.steps.sort(key=lambda step: (step.last_pass, step.worker))
        yield from super().end()

    def scene(self) -> Scene:
        """All desks as the last worker reads them, each with its newest token."""
        cast, tails = self._cast(), tuple(Block(f"{name}'s newest") for name in self.names)
        rows = [
            Row(View((*writer.view.items, tail)), writer.unread)
            for tail, writer in zip(tails, self.writers, strict=True)
            if writer.unread
        ]
        desks = (block for pair in zip(self.desks, tails, strict=True) for block in pair)
        said = (self.prompt_block, *self.history, *desks)
        return Scene(everything(cast, tails).items, (*self.opening, *rows), said)

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
        return self.bound(len(self.prompt_tokens) + headers + written, 4 * settings.workers + 8)
