"""Telling a team's thinking as one text, as it happens.

Many write at the same time, and most clients show one text of reasoning. So one worker has the floor: its
step is told as it is written, under its name. What others write meanwhile is kept, and told when the step is
done: their finished steps first, in the order in which they ended, then the floor goes to the one whose step
has been under way for longest. Nothing is lost, and no step is told in pieces.

    **Alice [1]:** #1: 84 + 29 is 113. 113 - 38 is 75.

    **Bob [1]:** #2: ...

    teller = Teller(names, solo=False)
    for piece in teller.take(event): ...       Told(text, worker, step): reasoning; worker None: the reply

Where the main strand is the reply itself, its text is reasoning as long as it is not reported as reply. Of text that may be an outline
only its end says which of both it is, so it is told then. Blanks at the reply's beginning and end are no part of it, as in an answer that
comes whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from manyhands.strategies.events import (
    Event,
    ReplyWritten,
    StepBegun,
    StepCut,
    StepEnded,
    TokenWritten,
    WorkerJoined,
    WorkerPaused,
    WorkerStopped,
)
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import SkeletonSettings
from manyhands.text import Text
from manyhands.text.thinking import ThinkingWatch


class Told(NamedTuple):
    """A piece of text: a worker's, in its step of this number, or the reply's (`worker` None)."""

    text: str
    worker: int | None = None
    step: int = 0


@dataclass
class _Speaker:
    """A worker and the step that it writes."""

    name: str
    step: int = 1  # as in an `Account`, of one whose step began with the run
    begun: int = 0  # events before this step
    kept: str = ""  # written, and not told


class Teller:
    """Turns events into pieces of text. `solo`: worker 0 writes the reply itself, and is not told apart.

    Without `labels` a piece does not say whose it is; its fields do. `outline`: the main strand may write an outline, and this tells of
    its tokens whether it thinks.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        solo: bool = False,
        labels: bool = True,
        outline: ThinkingWatch | None = None,
    ) -> None:
        self._solo, self._labels, self._outline = solo, labels, outline
        self._has_outline = False  # written, and not told
        self._speakers = [_Speaker(name) for name in names]
        self._floor: int | None = None
        self._ended: deque[tuple[int, int, str]] = deque()  # worker, step, text
        self._count = 0
        self._has_told = False
        self._is_replying = False
        self._has_reply = False  # some of it is told
        self._blanks = ""  # of the reply, behind which nothing may come
        self._undecided = ""  # of the main strand, where that is the reply: maybe it is thinking

    @classmethod
    def of_run(cls, spec: RunSpec, text: Text, *, labels: bool = True) -> Teller:
        """A teller for a run of a method."""
        outline = None
        if isinstance(spec.settings, SkeletonSettings):
            outline = text.watch_thinking(text.thinks(spec.conversation))
        return cls(spec.names, solo=spec.method.solo, labels=labels, outline=outline)

    @property
    def names(self) -> list[str]:
        """Of all workers up to now."""
        return [speaker.name for speaker in self._speakers]

    def take(self, event: Event) -> Iterator[Told]:
        """The text that can be told after this event."""
        self._count += 1
        if self._undecided:
            text, self._undecided = self._undecided, ""
            if not (isinstance(event, ReplyWritten) and event.text == text):
                yield self._thought(text)
        match event:
            case TokenWritten() if self._may_be_outline(event):
                self._has_outline = True
            case StepEnded() if self._has_outline and self._is_reply(event.worker):
                self._outline, self._has_outline = None, False
                yield Told(self._label(0, event.step) + event.text, 0, event.step)
            case ReplyWritten():
                self._has_outline = False
                if not self._is_replying and not self._solo:
                    yield from self.rest()
                self._is_replying = True
                yield from self._replied(event.text)
            case TokenWritten() if self._is_reply(event.worker):
                self._undecided = event.text
            case WorkerJoined():
                self._speakers.append(_Speaker(event.name))
            case StepBegun() if not self._is_reply(event.worker):
                self._begin(event.worker, event.step)
            case TokenWritten():
                yield from self._written(event.worker, event.text)
            case StepCut():
                speaker = self._speakers[event.worker]
                speaker.kept = speaker.kept.removesuffix(event.text)
            case StepEnded() if not self._is_reply(event.worker):
                yield from self._end(event.worker, event.step, event.text)
            case WorkerStopped() | WorkerPaused() if event.worker == self._floor:
                yield from self._pass_floor()

    def rest(self) -> Iterator[Told]:
        """The text held back that never came to an end."""
        if self._undecided:
            text, self._undecided = self._undecided, ""
            yield self._thought(text)
        self._floor = None
        while self._ended:
            yield from self._tell_ended()
        for worker, speaker in enumerate(self._speakers):
            if speaker.kept.strip():
                speaker.kept = speaker.kept.strip()
                yield self._told(self._label(worker, speaker.step) + speaker.kept, worker)
                speaker.kept = ""

    def _replied(self, text: str) -> Iterator[Told]:
        """The reply from its first word to its last one so far."""
        text = self._blanks + text if self._has_reply else text.lstrip()
        told = text.rstrip()
        self._blanks = text[len(told) :]
        if told:
            self._has_reply = True
            yield Told(told)

    def _is_reply(self, worker: int) -> bool:
        return self._solo and worker == 0

    def _may_be_outline(self, event: TokenWritten) -> bool:
        if self._outline is None or not self._is_reply(event.worker):
            return False
        is_thought = self._outline.thinking
        self._outline.take(event.token)
        return not is_thought

    def _thought(self, text: str) -> Told:
        """Text of the main strand that is no reply; what others write stands apart from it."""
        self._has_told = True
        return Told(text, 0)

    def _begin(self, worker: int, step: int) -> None:
        speaker = self._speakers[worker]
        speaker.step, speaker.begun = step, self._count
        speaker.kept = ""

    def _written(self, worker: int, text: str) -> Iterator[Told]:
        self._speakers[worker].kept += text
        if self._floor == worker:
            yield from self._tell_kept(worker)
        elif self._floor is None:
            yield from self._give_floor()

    def _end(self, worker: int, step: int, text: str) -> Iterator[Told]:
        speaker = self._speakers[worker]
        if self._floor != worker:
            speaker.kept = ""
            if text.strip():
                self._ended.append((worker, step, text))
            if self._floor is not None:
                return
        speaker.kept = ""
        yield from self._pass_floor()

    def _pass_floor(self) -> Iterator[Told]:
        self._floor = None
        while self._ended:
            yield from self._tell_ended()
        yield from self._give_floor()

    def _tell_ended(self) -> Iterator[Told]:
        worker, step, text = self._ended.popleft()
        yield Told(f"{self._label(worker, step)}{text}", worker, step)

    def _give_floor(self) -> Iterator[Told]:
        """To whoever has written something and began first."""
        waiting = [
            (speaker.begun, worker)
            for worker, speaker in enumerate(self._speakers)
            if speaker.kept.strip()
        ]
        if waiting:
            _, worker = min(waiting)
            speaker, self._floor = self._speakers[worker], worker
            speaker.kept = self._label(worker, speaker.step) + speaker.kept.lstrip()
            yield from self._tell_kept(worker)

    def _tell_kept(self, worker: int) -> Iterator[Told]:
        """All but blanks at the end, behind which nothing may come."""
        speaker = self._speakers[worker]
        text = speaker.kept.rstrip()
        speaker.kept = speaker.kept[len(text) :]
        if text:
            yield self._told(text, worker)

    def _told(self, text: str, worker: int) -> Told:
        return Told(text, worker, self._speakers[worker].step)

    def _label(self, worker: int, step: int) -> str:
        if not self._labels:
            return ""
        name = self._speakers[worker].name
        before = "\n\n" if self._has_told else ""
        self._has_told = True
        return f"{before}**{name} [{step}]:** "
