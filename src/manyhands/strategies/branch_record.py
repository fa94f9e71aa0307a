"""What a run with branches has said: the reply to the user, the answer in it, and who wrote what.

Only text comes here, and it is free of marks already (see `branch_lines`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from manyhands.strategies.base import Answer, FinishedStep
from manyhands.strategies.branch_lines import Branch
from manyhands.strategies.events import AnswerFound, Event, ReplyWritten, StepEnded
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
class JoinDistance:
    """How far what follows a join is from what would follow the same text read causally.

    `largest` is the greatest absolute difference of the two next-token distributions (of
    probabilities), `kl` the divergence of the join's from the exact one, in nats. Measured on request,
    see `replay/joins.py`.
    """

    block: int  # from 1
    largest: float
    kl: float


@dataclass(frozen=True)
class BranchAnswer(Answer):
    """An Answer that also says how each branch ended, and, if it was asked, how far joins were off."""

    branches: tuple[FinishedBranch, ...] = ()
    join_distances: tuple[JoinDistance, ...] = ()


class BranchRecord:
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
        self.num_segments = 0

    def wrote(self, token: int, think_end: int | None) -> None:
        """The line wrote this token: was it the end of the thinking?"""
        if token == think_end:
            self.thinking = False

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

    def end_segment(self, passes: int) -> Iterator[Event]:
        """What the line wrote since the last block is a step."""
        if self.cut_segment(passes):
            yield StepEnded(passes, 0, self.num_segments, self.steps[-1].text)

    def cut_segment(self, passes: int) -> bool:
        """The same at the end of the run; whether there was anything."""
        body = self._segment.strip()
        if body:
            self.num_segments += 1
            step = FinishedStep(0, self.num_segments, body, self._first_pass, passes)
            self.steps.append(step)
        return bool(body)

    def answer_with(self, more: str) -> str | None:
        """The answer if `more` were said now; nothing is."""
        boxed = copy.deepcopy(self._box).push(more)
        return self.answer if boxed is None else boxed

    def joined(self, team: list[Branch]) -> list[str]:
        """What is said when branches are joined: each on lines of its own."""
        return ["" if self.text.endswith("\n") else "\n", *(branch.visible() for branch in team)]

    def join(self, block: int, team: list[Branch], passes: int) -> Iterator[Event]:
        """The branches of a block become part of the text."""
        for words in self.joined(team):
            yield from self.say(words, passes)
        for branch in team:
            text, worker = branch.text.strip(), branch.worker
            first, last = branch.first_pass, branch.last_pass
            self.steps.append(FinishedStep(worker, block, text, first, last))
            reason, num_tokens = branch.finish_reason, branch.line.writer.num_tokens
            done = FinishedBranch(worker, block, branch.title, text, reason, num_tokens)
            self.branches.append(done)
        self._segment, self._first_pass = "", passes + 1
