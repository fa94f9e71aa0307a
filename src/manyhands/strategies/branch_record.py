"""What a run with branches has said: the reply to the user, the answer in it, and who wrote what.

Only text comes here, and it is free of marks already (see `branch_lines`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from manyhands.strategies.base import Answer, AnswerFound, Event, FinishedStep, ReplyWritten
from manyhands.strategies.branch_lines import Branch
from manyhands.text import BoxWatch


@dataclass(frozen=True)
class FinishedBranch:
    """One branch as it was joined.

    `finish_reason` is "marker", "terminator" (if it came in one token: a branch ends as soon as the
    marker in it is complete), "stopped" (end of turn), "budget" (its own or the run's) or "context".
    """

    worker: int
    block: int  # from 1
    title: str
    text: str
    finish_reason: str
    num_tokens: int


@dataclass(frozen=True)
class BranchAnswer(Answer):
    """An Answer that also says how each branch ended."""

    branches: tuple[FinishedBranch, ...] = ()


class Record:
    """Grows while the run goes on. `thinking`: what is said now is not for the user."""

    def __init__(self, thinking: bool) -> None:
        self.thinking = thinking
        self.text = ""  # all of it, thoughts included
        self.reply = ""
        self.answer: str | None = None
        self.branches: list[FinishedBranch] = []
        self.steps: list[FinishedStep] = []
        self._box = BoxWatch()
        self._segment = ""  # what the line wrote since the last block
        self._first_pass = 1  # of the segment
        self._num_segments = 0

    def say(self, text: str, passes: int) -> Iterator[Event]:
        """Text of the line, or of a branch when it is joined."""
        if not text:
            return
        self.text += text
        self._segment += text
        if not self.thinking:
            self.reply += text
            yield ReplyWritten(passes, text)
        boxed = self._box.push(text)
        if boxed is not None:
            self.answer = boxed
            yield AnswerFound(passes, 0, boxed)

    def end_segment(self, passes: int) -> None:
        """What the line wrote since the last block is a step."""
        if body := self._segment.strip():
            self._num_segments += 1
            step = FinishedStep(0, self._num_segments, body, self._first_pass, passes)
            self.steps.append(step)

    def join(self, block: int, team: list[Branch], passes: int) -> Iterator[Event]:
        """The branches of a block become part of the text, each on lines of its own."""
        yield from self.say("" if self.text.endswith("\n") else "\n", passes)
        for branch in team:
            yield from self.say(branch.visible(), passes)
            text, worker = branch.text.strip(), branch.worker
            first, last = branch.first_pass, branch.last_pass
            self.steps.append(FinishedStep(worker, block, text, first, last))
            reason, num_tokens = branch.finish_reason, branch.line.writer.num_tokens
            done = FinishedBranch(worker, block, branch.title, text, reason, num_tokens)
            self.branches.append(done)
        self._segment, self._first_pass = "", passes + 1
