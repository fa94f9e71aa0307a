"""Hogwild! Inference: workers who write at the same time and read each other while they write.

Every pass each present worker feeds its newest token and reads everybody's (sections 3.1 to 3.4). When
a worker finishes a paragraph, its desk joins the common history as it is, nothing is copied or encoded
again, and the worker goes on at a fresh desk: the next row feeds the break token and the new step's
prefix, so no pass is lost. Now and then a worker that begins a step is asked whether its work is
redundant (section 3.3). The run ends when somebody closes a box with an answer in it, when all have
ended their turn, or when the budget of forward passes is spent.

A step ends before a line that could pass for the team's own structure (`**Carol [4]:**` written by Alice,
a section header, the marker): all would read it as if others had said it. The line is dropped with all
that comes behind it, and what was fed cannot be unfed. So the text before the line is fed once more:

    combined, interleaved    into a fresh block at the end of the history, by a row of its own
    contiguous               into a fresh desk, by the row that opens the worker's next step

A step without any text before the line is begun again, and may not begin with that token once more.

Before each pass the team listens (`strategies/listening.py`). A person's words are a finished step of a
writer with a name of its own, as a teammate would write it. One row feeds them in the next pass:

    combined, interleaved    a block at the end of the history: [prompt, history, **Dana [1]:** ...]
    contiguous               there is no history: a desk of the person's own, behind all others

Every worker reads them from that very pass on. Workers may join (at a fresh desk), pause, go on and be
dismissed. What a dismissed worker was writing joins the history as a finished step, its newest token
included; in the contiguous layout it stays where it is. A team of which everybody has stopped or pauses
is done.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from typing import NamedTuple

from manyhands.cache.block import Block
from manyhands.cache.layouts import HEADERS, LAYOUTS, MOVES, Cast, everything
from manyhands.cache.step import Row
from manyhands.cache.view import Beginning, View
from manyhands.errors import counted
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Reserve, Strategy, Work
from manyhands.strategies.budgeted import BudgetedRun
from manyhands.strategies.events import (
    AnswerFound,
    CheckAsked,
    Event,
    RequestRefused,
    StepBegun,
    StepCut,
    StepEnded,
    WorkerJoined,
    WorkerPaused,
    WorkerResumed,
    WorkerStopped,
)
from manyhands.strategies.listening import (
    AddWorker,
    AnswerNow,
    DismissWorker,
    Heard,
    Item,
    Listen,
    PauseWorker,
    ResumeWorker,
    Said,
)
from manyhands.strategies.own_words import own_words, spoken
from manyhands.strategies.scene import Scene
from manyhands.strategies.settings import MAX_WORKERS, TeamSettings, or_usual
from manyhands.strategies.writer import Writer
from manyhands.text import Text

_SHORTEST_USUAL_STEP = 12  # tokens; for the estimate of memory only


def hogwild(
    problem: str | Conversation,
    text: Text,
    settings: TeamSettings | None = None,
    prompt: TeamPrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy: a team works on `problem` (already cleaned, see `text.clean_problem`).

    The problem may be a whole conversation.

    Without a `prompt` it speaks the words that the model was trained with (`own_words.py`).
    `context` is the longest view the model bears; the team stops in time to still give its answer.
    """
    asked, settings, prompt = (
        conversation_of(problem),
        or_usual(settings, TeamSettings),
        spoken(prompt, own_words(text).team),
    )
    return _Team(asked, text, settings, prompt, context).play()


class _Words(NamedTuple):
    """The words that begin a step, which is the `step`-th of its worker."""

    step: int
    prefix: str
    tokens: tuple[int, ...]


class _Team(BudgetedRun):
    """The state of one run: who sits where, and what was written.

    Workers, and persons who have spoken, have numbers in the order in which they came. A person has a writer
    too, which never writes. `seats` are the numbers of those whose desks are read as desks.
    """

    settings: TeamSettings

    def __init__(
        self,
        asked: Conversation,
        text: Text,
        settings: TeamSettings,
        prompt: TeamPrompt,
        context: int | None,
    ) -> None:
        super().__init__(text, settings, prompt, context, asked.problem, asked.prefill)
        self.prompt = prompt
        self.names = [*prompt.team(settings.workers)]
        self.view_of = LAYOUTS[settings.layout]
        self.has_history = self.view_of.keeps_history
        self.encodes_again = MOVES[settings.moves].encodes_again
        self.structure = self._structure()
        self.writers = [self.new_writer(name) for name in self.names]
        self.desks = [Block(f"{name} 1") for name in self.names]
        self.step_numbers = [1] * settings.workers
        self.words_of: dict[int, _Words] = {}  # by worker
        self.unprepared: set[int] = set()  # workers whose next steps are not prepared
        self.first_passes = [0] * settings.workers  # of the current step; 0: not begun
        self.last_passes = [0] * settings.workers  # of the newest token
        self.checked: set[int] = (
            set()
        )  # workers with a check at the beginning of their current step
        self.seats = list(range(settings.workers))
        self.persons: set[int] = set()
        self.paused: set[int] = set()
        self.dismissed: set[int] = set()
        self.history: list[Block] = []
        self.last_past: Beginning | None = None  # of the views as they are now
        self.is_seated = False  # whether views are those of the desks and the history
        self.unfrozen: list[Block] = []  # of the history: fed by the next pass
        self.unheard: tuple[Item, ...] = ()  # said before the work began
        self.num_settled = 0  # of the history, so many are as `moves` wants them
        self.prompt_block = Block("prompt")
        self.others_header, self.own_header = Block("others' header"), Block("own header")
        self.marker = Block("more to come")
        told = prompt.for_team(asked.without_prefill(), self.names)
        self.prompt_tokens = text.conversation(told) + text.words(prompt.past_header)
        self.opening = self._opening()
        self.num_fed = sum(len(row.feed) for row in self.opening)
        self.num_skipped = 0  # passes by the clock of absences that never ran, for want of rows
        self.next_check = settings.check_every or None
        for index, writer in enumerate(self.writers):
            writer.feed = text.words(prompt.step_break) + self._prefix_tokens(index, check=False)
        self._seat()

    # -- the work --------------------------------------------------------------------------------

    def begin(self) -> Work[None]:
        """Listen first of all, as strategies that listen do; then ask for memory."""
        self.unheard = yield from self._hear()
        yield from super().begin()

    def work(self) -> Work[None]:
        """Passes, until there is an answer, no worker is left, or the budget is spent."""
        for index in range(len(self.writers)):
            yield self._step_begun(index)
        while (yield from self._listen()) and (present := (yield from self._present())):
            if len(present) < len(self.writers):
                self._keep_readable(present)
            for i in present:
                self.first_passes[i] = self.first_passes[i] or self.passes + 1
                self.last_passes[i] = self.passes + 1
            self.num_fed += sum([len(self.writers[i].feed) for i in present])
            if self.encodes_again:
                self.opening += self._encode_again()  # counts once: it is in `num_fed` already
            yield from self.write(present)
            if not self.is_seated:
                self._seat()
            self._look_around()
            yield from self.look()

    def _keep_readable(self, present: list[int]) -> None:
        """Feed a desk that is written anew (`_cut_step`) though its worker is away: others read it."""
        for index, worker in enumerate(self.writers):
            if index not in present and len(worker.unread) > 1:
                self._put(worker.view, worker.unread)
                worker.feed, worker.unread = worker.feed[len(worker.unread) :], ()

    def _present(self) -> Work[list[int]]:
        """The workers that write in the next pass; none if all have stopped or are away for good.

        A pass without rows is no pass: where all that have not stopped are away, the clock goes on to
        the first of them who comes back. An absence that outlasts the budget is for good; so a smaller
        budget may end here, and its snapshot is taken before the work goes on.
        """
        now = self.passes + self.num_skipped + 1
        for clock in range(now, max(now, self.settings.budget) + 1):
            if present := self._present_at(clock):
                if clock > now:
                    yield from self.look(before=clock)
                self.num_skipped += clock - now
                return present
        self.finish_reason = "stopped"
        return []

    def _present_at(self, clock: int) -> list[int]:
        """The workers that have not stopped and are not away in this pass of the clock."""
        absent = self.paused
        if self.settings.away:
            away = (a.worker for a in self.settings.away if a.first <= clock <= a.last)
            absent = absent.union(away)
        return [i for i, w in enumerate(self.writers) if not w.stopped and i not in absent]

    def _opening(self) -> list[Row]:
        """Prompt, headers and marker: written in the same pass as the first words of the workers.

        A prompt may leave any of these texts empty; an empty block in a view is legal.
        """
        prompt, others, own = self.prompt_block, self.others_header, self.own_header
        context = HEADERS[self.settings.headers](prompt, others)
        text, words = self.text, self.prompt
        rows = (
            (View((prompt,)), self.prompt_tokens),
            (View((*context[:1], others)), text.words(words.others_header)),
            (View((*context, self.marker)), text.words(words.more_to_come)),
            (View((*context, own)), text.words(words.own_header)),
        )
        opening = [Row(view, tokens) for view, tokens in rows if tokens]
        self.prompt_row = next((row for row in opening if row.view.own is prompt), None)
        return opening

    def _encode_again(self) -> list[Row]:
        """The ablation of app. E.1: what has come into the history is fed once more, in its order.

        Until this pass it stands there as it was written, which is all that a snapshot may see of it.
        """
        if not self.encodes_again or self.num_settled == len(self.history):
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

    def follow(self, index: int, piece: str) -> Iterable[Event]:
        """A box may be closed, a turn or a step ended."""
        worker = self.writers[index]
        answer = worker.box.push(piece)
        is_first = answer is not None and self.answer is None and not self.settings.end.is_code
        if is_first:
            self.answer = answer
        cut = None if self.answer is not None else self._structure_in(worker, piece)
        has_ended = cut is None and not worker.stopped and worker.ends_step(piece)
        if is_first or cut is not None or worker.stopped or has_ended:
            return self._turned(index, answer if is_first else None, cut, has_ended=has_ended)
        return ()  # as for nearly every piece

    def _turned(
        self, index: int, answer: str | None, cut: int | None, *, has_ended: bool
    ) -> Generator[Event, None, None]:
        """A worker has found an answer, its step is cut there or has ended, or it has stopped."""
        if answer is not None:
            yield AnswerFound(self.passes, index, answer)
        if cut is not None:
            yield from self._cut_step(index, cut)
        if self.writers[index].stopped:
            yield WorkerStopped(self.passes, index)
        elif has_ended:
            yield from self._end_step(index)

    def _structure(self) -> re.Pattern[str]:
        """A pattern of the beginnings of lines that no worker may write."""
        return self.prompt.structure({*self.prompt.names, *self.names})

    def _structure_in(self, worker: Writer, piece: str) -> int | None:
        """Where in the step's text a line begins that could pass for our structure, as of this piece."""
        text = worker.step_text
        start = text.rfind("\n", 0, len(text) - len(piece)) + 1
        if worker.stopped:
            text += "\n"  # the end of a turn ends the line, too
        while start < len(text):
            if self.structure.match(text, start):
                return start
            start = text.find("\n", start) + 1 or len(text)
        return None

    def _cut_step(self, index: int, start: int) -> Generator[Event, None, None]:
        """The step ends before the line that begins there; what stands before it is fed once more."""
        worker, desk = self.writers[index], self.desks[index]
        yield StepCut(self.passes, index, self.step_numbers[index], worker.step_text[start:])
        written = worker.step_text[:start].rstrip()
        num_before = desk.num_tokens + len(worker.unread) - len(worker.step_tokens)
        kept = (*desk.tokens[:num_before], *worker.tokens_of(len(written)))
        forbidden = worker.forbidden.union(worker.step_tokens[:1])
        self.num_fed -= desk.num_tokens
        self.desks[index] = fresh = Block(desk.name)
        self._seat()
        worker.step_text, worker.unread = written, ()
        if worker.stopped:
            self._put(worker.view, kept)
        elif not written:
            worker.begin_step(worker.view, kept, forbidden)
        else:
            if self.has_history:
                self._put_into_history(fresh, kept)
            else:
                worker.unread = kept
            worker.feed = (*worker.unread, *self.text.words(self.prompt.step_break))
            yield from self._end_step(index)

    def _end_step(self, index: int) -> Generator[Event, None, None]:
        """The desk joins the history; the worker's next row opens a new step."""
        worker = self.writers[index]
        yield StepEnded(self.passes, index, self.step_numbers[index], worker.step_text.strip())
        self._record(index)
        self.step_numbers[index] += 1
        self.first_passes[index] = 0
        self.checked.discard(index)
        asked = self._check_is_due()
        feed = worker.feed + self._prefix_tokens(index, check=asked)
        worker.begin_step(worker.view, feed)
        if self.has_history:
            if (desk := self.desks[index]) not in self.unfrozen:
                self.history.append(desk.freeze())
            self.desks[index] = Block(f"{self.names[index]} {self.step_numbers[index]}")
            self.is_seated = False  # until all have read what they wrote in this pass
        yield self._step_begun(index)
        if asked:
            self.checked.add(index)
            yield CheckAsked(self.passes, index, self.step_numbers[index])

    def _seat(self) -> None:
        """Views follow from who sits where; they stay the same until somebody finishes a step, or the opening is fed.

        The prompt is finished with them once it is fed, and so are marker and own header where desks are seen: there the
        header stands behind the marker, and memory may lay it there. Behind the prompt it would be in the way of the history.
        """
        unfed = {row.view.own for row in self.opening}
        others = (self.marker, self.own_header) if self.view_of.sees_desks else ()
        for block in (self.prompt_block, *others):
            if block not in unfed:
                block.freeze()
        cast, view_of = self._cast(), self.view_of.view
        for seat, index in enumerate(self.seats):
            self.writers[index].view = view_of(cast, seat)
        self.last_past = cast.past
        self.is_seated = not unfed

    def _cast(self) -> Cast:
        return Cast(
            prompt=self.prompt_block,
            others_header=self.others_header,
            own_header=self.own_header,
            marker=self.marker,
            desks=tuple([self.desks[index] for index in self.seats]),
            history=tuple(self.history),
            last=self.last_past,
        )

    def _check_is_due(self) -> bool:
        if self.next_check is None:
            return False
        written = sum(worker.num_tokens for worker in self.writers)
        if written < self.next_check:
            return False
        self.next_check = written + self.settings.check_every
        return True

    def prepare(self) -> None:
        """Encode how the next steps begin: this takes longer than all else that the end of a step does here."""
        for index in self.unprepared:
            if not self.writers[index].stopped:
                self._words(index, self.step_numbers[index] + 1)
                self.writers[index].prepare()
        self.unprepared.clear()

    def _words(self, index: int, step: int) -> _Words:
        """How a step of a worker begins, if not with a check. Of each worker those that were asked for last are kept."""
        known = self.words_of.get(index)
        if known is None or known.step != step:
            prefix = self._prefix(index, step)
            known = self.words_of[index] = _Words(step, prefix, self.text.words(prefix))
        return known

    def _prefix_tokens(self, index: int, *, check: bool) -> tuple[int, ...]:
        step = self.step_numbers[index]
        if check:
            return self.text.words(self._prefix(index, step, check=True))
        return self._words(index, step).tokens

    def _prefix(self, index: int, step: int, *, check: bool = False) -> str:
        question = self.prompt.redundancy_check if check else ""
        first = self.prompt.opening(index) if step == 1 and len(self.names) > 1 else ""
        inserted = self.settings.insertions.get((index, step), first)
        return self.prompt.prefix(self.names[index], step) + question + inserted

    def _step_begun(self, index: int) -> StepBegun:
        """Say that a step begins. The one behind it can be prepared from now on."""
        step = self.step_numbers[index]
        self.unprepared.add(index)
        return StepBegun(self.passes, index, step, self._words(index, step).prefix)

    def _record(self, index: int, last_pass: int | None = None) -> None:
        """Put what stands on the worker's desk on record as a step."""
        self.record(
            index,
            self.step_numbers[index],
            self.writers[index].step_text,
            self.first_passes[index],
            last_pass,
            checked=index in self.checked,
        )

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
        newest = sum([len(worker.feed) + 1 for worker in self.writers])
        return self.num_fed + markers + newest

    # -- what is said ----------------------------------------------------------------------------

    def _hear(self) -> Work[tuple[Item, ...]]:
        heard = yield Listen()
        assert isinstance(heard, Heard), "a Listen is answered with what was heard"
        return heard.items

    def _listen(self) -> Work[bool]:
        """Follow what was said; whether the work goes on."""
        if self.finish_reason:
            return False
        if self.unfrozen:
            unfed = {row.view.own for row in self.opening}
            for block in self.unfrozen:
                if block not in unfed:
                    block.freeze()
            self.unfrozen = [block for block in self.unfrozen if block in unfed]
        items, self.unheard = self.unheard + (yield from self._hear()), ()
        for item in items:
            if reason := self._reason_against(item):
                yield RequestRefused(self.passes, type(item).__name__, reason)
            else:
                yield from self._obey(item)
        if items:
            self._seat()
        return not self.finish_reason

    def _obey(self, item: Item) -> Work[None]:
        match item:
            case Said():
                yield from self._speak(item)
            case AddWorker():
                index = self._come(item.name)
                self.writers[index].feed = self._opened(item.name, 1)
                self.seats.append(index)
                yield WorkerJoined(self.passes, index, item.name)
                yield self._step_begun(index)
            case PauseWorker():
                self.paused.add(item.worker)
                yield WorkerPaused(self.passes, item.worker)
            case ResumeWorker():
                self.paused.remove(item.worker)
                yield WorkerResumed(self.passes, item.worker)
            case DismissWorker():
                yield from self._dismiss(item.worker)
            case AnswerNow():
                self.finish_reason = "asked"

    def _reason_against(self, item: Item) -> str:
        """Why the team cannot do what it is asked; empty if it can."""
        match item:
            case Said():
                return self._reason_against_words(item)
            case AddWorker():
                if item.name in self.names:
                    return f"{item.name} is here already; expected another name"
                num_workers = len(self.names) - len(self.persons)
                if num_workers >= MAX_WORKERS:
                    return f"the team has {num_workers} workers; expected at most {MAX_WORKERS}"
                most = self.settings.most_workers
                # A worker that pauses may go on.
                writing = sum(not writer.stopped for writer in self.writers)
                if most is not None and writing >= most:
                    return f"{counted(writing, 'worker')} of the team write; expected at most {most} at the same time"
                return self._reason_against_tokens(len(self._opened(item.name, 1)))
            case PauseWorker() | ResumeWorker() | DismissWorker():
                return self._reason_against_worker(item)
            case AnswerNow():
                return ""
        return f"a team knows no {type(item).__name__}"

    def _reason_against_words(self, said: Said) -> str:
        if said.author in self.names and self.names.index(said.author) not in self.persons:
            return f"{said.author} is a worker; expected another name"
        return self._reason_against_tokens(len(self._words_of(said)))

    def _reason_against_tokens(self, num_tokens: int) -> str:
        room = None if self.context is None else self.context - self.ending_tokens
        if room is not None and self._num_read() + num_tokens > room:
            left = max(0, room - self._num_read())
            return f"it has {counted(num_tokens, 'token')}, and the model's context has room for {left} more"
        return ""

    def _reason_against_worker(self, item: PauseWorker | ResumeWorker | DismissWorker) -> str:
        worker = item.worker
        if not 0 <= worker < len(self.writers) or worker in self.persons:
            return f"there is no worker {worker}"
        if worker in self.dismissed:
            return f"{self.names[worker]} has been dismissed"
        if isinstance(item, DismissWorker):
            return ""
        if self.writers[worker].stopped:
            return f"{self.names[worker]} has stopped"
        if isinstance(item, ResumeWorker):
            return "" if worker in self.paused else f"{self.names[worker]} does not pause"
        if worker in self.paused:
            return f"{self.names[worker]} pauses already"
        writing = (i for i, w in enumerate(self.writers) if not w.stopped and i not in self.paused)
        return "" if any(i != worker for i in writing) else "no other worker is left to write"

    def _opened(self, name: str, step: int) -> tuple[int, ...]:
        """The tokens that open a step of this name."""
        return self.text.words(self.prompt.step_break) + self.text.words(
            self.prompt.prefix(name, step)
        )

    def _words_of(self, said: Said) -> tuple[int, ...]:
        """A person's step: opened as all steps are, and without headings or prefixes of its own."""
        known = said.author in self.names
        step = self.step_numbers[self.names.index(said.author)] if known else 1
        words = self.text.encode(" " + self.prompt.escaped(said.text))
        return self._opened(said.author, step) + words

    def _speak(self, said: Said) -> Work[None]:
        """A person's words, as a finished step."""
        words = self._words_of(said)
        if said.author not in self.names:
            person = self._come(said.author)
            self.persons.add(person)
            self.writers[person].stopped = True
            if not self.has_history:
                self.seats.append(person)
                self._seat()
            yield WorkerJoined(self.passes, person, said.author, is_person=True)
        person = self.names.index(said.author)
        step = self.step_numbers[person]
        yield self._step_begun(person)
        if self.has_history:
            self._put_into_history(Block(f"{said.author} {step}"), words)
        else:
            self._put(self.writers[person].view, words)
        yield StepEnded(self.passes, person, step, said.text)
        self.record(person, step, said.text, self.passes + 1, self.passes + 1)
        self.step_numbers[person] += 1

    def _come(self, name: str) -> int:
        """The number of somebody who was not there."""
        self.names.append(name)
        self.writers.append(self.new_writer(name))
        self.desks.append(Block(f"{name} 1"))
        self.step_numbers.append(1)
        self.first_passes.append(0)
        self.last_passes.append(0)
        self.structure = self._structure()
        return len(self.names) - 1

    def _dismiss(self, index: int) -> Work[None]:
        """Dismiss a worker: the text on its desk stays readable, the token that no row has fed yet included."""
        worker, desk = self.writers[index], self.desks[index]
        if worker.step_text.strip():
            step = self.step_numbers[index]
            yield StepEnded(self.passes, index, step, worker.step_text.strip())
            self._record(index)
        unread, worker.unread, worker.feed, worker.step_text = worker.unread, (), (), ""
        if not self.has_history:
            self._put(worker.view, unread)
        else:
            if len(self.seats) > 1:
                self.seats.remove(index)
            else:  # an ending reads a last desk, be it empty
                self.desks[index] = Block(f"{self.names[index]}'s empty desk")
            if desk.tokens or unread or any(row.view.own is desk for row in self.opening):
                self._put_into_history(desk, unread)
        worker.stopped = True
        self.paused.discard(index)
        self.dismissed.add(index)
        yield WorkerStopped(self.passes, index, "dismissed")

    def _put_into_history(self, block: Block, tokens: tuple[int, ...]) -> None:
        """List a block in the history, and feed these tokens to its end in the next pass."""
        self.opening += self._encode_again()  # the text before it: it reads that as it will be
        if self.encodes_again and block.tokens:
            block, tokens = Block(block.name), (*block.tokens, *tokens)
        view = View((self.prompt_block, *self.history, block))
        self.history.append(block)
        self.unfrozen.append(block)
        if self.encodes_again:
            self.num_settled = len(self.history)
        self._put(view, tokens)

    def _put(self, view: View, tokens: tuple[int, ...]) -> None:
        """Feed tokens to the end of a view in the next pass, behind those that it is fed already."""
        self.num_fed += len(tokens)
        for number, row in enumerate(self.opening):
            if row.view.own is view.own:
                self.opening[number] = Row(row.view, (*row.feed, *tokens))
                return
        if tokens:
            self.opening.append(Row(view, tokens))

    def answer_now(self) -> Work[str | None]:
        """As of every run. An ending feeds what the next pass would feed, so that is done then."""
        before = self.extra_passes
        answer = yield from super().answer_now()
        if self.extra_passes > before:
            self.opening = []
        return answer

    # -- the end ---------------------------------------------------------------------------------

    def end(self) -> Work[None]:
        """End the run: the text on the desks is on record too, in the order in which steps ended."""
        for index in range(len(self.writers)):
            self._record(index, self.last_passes[index])
        self.steps.sort(key=lambda step: (step.last_pass, step.worker))
        yield from super().end()

    def scene(self) -> Scene:
        """All desks as the last worker reads them, each with its newest token."""
        cast = self._cast()
        tails = tuple(Block(f"{self.names[index]}'s newest") for index in self.seats)
        rows = [
            Row(View((*writer.view.items, tail)), writer.unread)
            for tail, writer in zip(tails, (self.writers[i] for i in self.seats), strict=True)
            if writer.unread
        ]
        desks = (block for pair in zip(cast.desks, tails, strict=True) for block in pair)
        said = (self.prompt_block, *self.history, *desks)
        return Scene(everything(cast, tails).items, (*self.opening, *rows), said)

    # -- the account -----------------------------------------------------------------------------

    def reserve(self) -> Reserve:
        """Room for a long run with short steps, or for as much text as the context bears.

        Of steps that are shorter, text that exceeds it may still find free pages; text that fills the context never exceeds it.
        """
        settings, most = self.settings, self.most_passes
        # Besides those of usual length, one that was short and one that has just begun.
        steps = most // _SHORTEST_USUAL_STEP + 2
        prefix = max(len(self._prefix_tokens(i, check=False)) for i in range(settings.workers))
        written = settings.workers * (most + steps * (prefix + 2))
        headers = sum(
            len(self.text.words(words))
            for words in (
                self.prompt.others_header,
                self.prompt.own_header,
                self.prompt.more_to_come,
            )
        )
        # Memory may keep a copy of the marker at every desk.
        copies = settings.workers * len(self.text.words(self.prompt.more_to_come))
        num_tokens = len(self.prompt_tokens) + headers + written
        if self.context is not None:
            # An ending reads every block, and the work ends before that would not fit (`_num_read`): behind its first pass, at the soonest.
            first = self.num_fed + sum(len(writer.feed) + 1 for writer in self.writers)
            num_tokens = min(num_tokens, max(self.context - self.ending_tokens, first))
        return self.bound(num_tokens + copies, 4 * settings.workers + 8)
