"""What a skeleton run has said: the reply to the user, the answer in it, and who wrote what."""

from __future__ import annotations

from collections.abc import Generator

from manyhands.strategies.base import FinishedStep
from manyhands.strategies.events import AnswerFound, Event, ReplyWritten
from manyhands.text import BoxWatch


class SkeletonRecord:
    """Grows while the run goes on. `thinking`: what is said now is not for the user."""

    def __init__(self, thinking: bool) -> None:
        self.thinking = thinking
        self.text = ""  # all of it, thoughts included
        self.reply = ""
        self.answer: str | None = None
        self.steps: list[FinishedStep] = []
        self._box = BoxWatch()
        self._stretch, self._first_pass = "", 1  # what the main line wrote without a break

    def say(self, text: str, passes: int) -> Generator[Event, None, None]:
        """Text that the main line wrote."""
        self._stretch += text
        yield from self._say(text, passes)
        boxed = self._box.push(text)
        if boxed is not None:
            self.answer = boxed
            yield AnswerFound(passes, 0, boxed)

    def insert(self, text: str, passes: int) -> Generator[Event, None, None]:
        """Text that now stands in the main line, but is not its own: a box in it is no answer."""
        self._stretch, self._first_pass = "", passes + 1
        yield from self._say(text if self.text else text.lstrip(), passes)

    def end_outline(self, outline: str, passes: int) -> None:
        """The outline, behind what was thought before it, is a step; it is no part of the reply."""
        self.step(0, 1, self._stretch + outline, 1, passes)

    def end_stretch(self, step: int, passes: int) -> None:
        """What the main line wrote since the last insertion is a step."""
        self.step(0, step, self._stretch, self._first_pass, passes)
        self._stretch = ""

    def step(self, worker: int, step: int, text: str, first_pass: int, last_pass: int) -> None:
        """Somebody finished a step."""
        if text.strip():
            self.steps.append(FinishedStep(worker, step, text.strip(), first_pass, last_pass))

    def _say(self, text: str, passes: int) -> Generator[Event, None, None]:
        self.text += text
        if text and not self.thinking:
            self.reply += text
            yield ReplyWritten(passes, text)
