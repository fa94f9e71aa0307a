"""The account of a run: all that is known of it at any moment, from its events.

    account = Account(["Alice", "Bob"])
    for event in engine.stream(team):
        account.take(event)
    account.hands[0].text                  what Alice is writing now
    account.steps()                        what everybody has finished

The command line and pages show it while the run goes on, and if the run is cut short it is all there is.
Events of the engine change nothing in it: it tells what was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from manyhands.strategies.base import Answer, FinishedStep
from manyhands.strategies.events import (
    AnswerFound,
    CheckAsked,
    EngineEvent,
    Event,
    ReplyWritten,
    Snapshot,
    StepBegun,
    StepCut,
    StepEnded,
    TokenWritten,
    WorkerJoined,
    WorkerPaused,
    WorkerResumed,
    WorkerStopped,
)


@dataclass
class Hand:
    """One worker: finished steps, and the one that is being written."""

    name: str
    step: int = 1
    first_pass: int = 1
    last_pass: int = 0  # of its newest token
    text: str = ""
    steps: list[FinishedStep] = field(default_factory=list)
    num_tokens: int = 0
    checked: bool = False  # asked whether the step is redundant
    stopped: bool = False
    why_stopped: str = ""  # if it was not by itself
    came_late: bool = False  # came while the run was going on
    is_person: bool = False  # speaks now and then, and is no worker
    paused: bool = False
    is_gone: bool = False  # its work is done, and others have come


class Account:
    """All hands, the reply, the answer. `solo`: what worker 0 writes is the reply (see `Method`).

    Hands that are not there from the start (branches, say) come with `WorkerJoined`.
    """

    def __init__(self, names: Sequence[str], *, solo: bool = False) -> None:
        self.hands = [Hand(name) for name in names]
        self.solo = solo
        self.forward_passes = 0
        self.answer: str | None = None
        self.reply = ""
        self.is_apart = not solo  # whether some of the reply stands with no worker
        self.snapshots: dict[int, str | None] = {}
        self._has_written = False  # worker 0, since the reply last grew

    @property
    def present(self) -> list[tuple[int, Hand]]:
        """The hands worth looking at, with their numbers: all but those who are gone."""
        return [(index, hand) for index, hand in enumerate(self.hands) if not hand.is_gone]

    @property
    def num_tokens(self) -> int:
        """Tokens written by all workers."""
        return sum(hand.num_tokens for hand in self.hands)

    def take(self, event: Event) -> None:
        """Enter one event. IndexError for a worker that has not come."""
        if isinstance(event, EngineEvent):
            return
        self.forward_passes = max(self.forward_passes, event.forward_pass)
        match event:
            case WorkerJoined():
                self._welcome(event)
            case StepBegun():
                hand = self.hands[event.worker]
                hand.step, hand.first_pass = event.step, event.forward_pass + 1
                hand.text, hand.checked = "", False
            case TokenWritten():
                hand = self.hands[event.worker]
                hand.text += event.text
                hand.num_tokens += 1
                hand.last_pass = event.forward_pass
                self._has_written |= not event.worker
            case StepCut():
                hand = self.hands[event.worker]
                hand.text = hand.text.removesuffix(event.text)
            case StepEnded():
                hand = self.hands[event.worker]
                # A person's words are written by no pass, and read from the next one on.
                last = hand.first_pass if hand.is_person else event.forward_pass
                if event.text.strip():  # an answer has no other steps
                    hand.steps.append(_step(event.worker, hand, event.text, last))
                hand.text = ""
            case CheckAsked():
                self.hands[event.worker].checked = True
            case WorkerPaused() | WorkerResumed():
                self.hands[event.worker].paused = isinstance(event, WorkerPaused)
            case WorkerStopped():
                hand = self.hands[event.worker]
                hand.stopped = True
                if event.reason == "stopped":  # by a token that ends the turn and is no word
                    hand.num_tokens -= 1
                else:
                    hand.why_stopped = event.reason
            case AnswerFound():
                self.answer = event.answer
            case Snapshot():
                self.snapshots[event.forward_pass] = event.answer
            case ReplyWritten():
                self.reply += event.text
                self.is_apart |= not self._has_written and not self._joins(event.text)
                self._has_written = False

    def _joins(self, text: str) -> bool:
        """Whether this piece of the reply is what others wrote in columns of their own: branches that were joined."""
        written = (hand.steps[-1].text if hand.steps else hand.text for hand in self.hands[1:])
        return any(words.strip() and words.strip() in text for words in written)

    def _welcome(self, event: WorkerJoined) -> None:
        """A new hand. The last workers who came are gone when all of them had stopped."""
        if event.worker != len(self.hands):
            raise IndexError(f"worker {event.worker} comes as number {len(self.hands)}")
        if event.is_person:
            self.hands.append(Hand(event.name, is_person=True))
            return
        late = [hand for hand in self.hands if hand.came_late and not hand.is_gone]
        if all(hand.stopped for hand in late):
            for hand in late:
                hand.is_gone = True
        self.hands.append(Hand(event.name, came_late=True))

    def steps(self) -> tuple[FinishedStep, ...]:
        """All steps in the order in which their last words were written, unfinished ones included."""
        done = [step for hand in self.hands for step in hand.steps]
        found = (*done, *self.unfinished())
        return tuple(sorted(found, key=lambda step: (step.last_pass, step.worker)))

    def unfinished(self) -> tuple[FinishedStep, ...]:
        """The steps that stand on the desks. A part of the reply is no thinking."""
        found = []
        for index, hand in enumerate(self.hands):
            text = hand.text
            if self.solo and not index:
                text = "" if text.strip() in self.reply else text.removesuffix(self.reply)
            if text.strip():
                found.append(_step(index, hand, text.strip(), hand.last_pass))
        return tuple(found)

    def thoughts(self) -> tuple[FinishedStep, ...]:
        """The steps that are no part of the reply, for `solo` accounts."""
        return tuple(step for step in self.steps() if step.text not in self.reply)

    def so_far(self, finish_reason: str, num_passes: int) -> Answer:
        """The answer of a run that was cut short after `num_passes` passes."""
        return Answer(
            text=self.reply.strip() or self.answer or self.transcript(self.steps()),
            answer=self.answer,
            finish_reason=finish_reason,
            forward_passes=self.forward_passes,
            extra_passes=max(0, num_passes - self.forward_passes),
            tokens=tuple(hand.num_tokens for hand in self.hands),
            steps=self.steps(),
            snapshots=dict(self.snapshots),
        )

    def transcript(self, steps: Sequence[FinishedStep], *, unfinished: bool = False) -> str:
        """Steps as text, each under its writer's name."""
        return "\n\n".join(f"{self.label(step, unfinished)} {step.text}" for step in steps)

    def label(self, step: FinishedStep, unfinished: bool = False) -> str:
        """The label of a step: the name of its worker, its number."""
        name = self.hands[step.worker].name
        has_steps = not self.solo and not self.hands[step.worker].came_late
        return f"{f'{name} [{step.step}]' if has_steps else name}{' (unfinished)' * unfinished}:"


def _step(worker: int, hand: Hand, text: str, last_pass: int) -> FinishedStep:
    return FinishedStep(worker, hand.step, text, hand.first_pass, last_pass, hand.checked)
