"""The strategy behind the method: its views, and what follows from a piece of text."""

from collections.abc import Iterator
from typing import Any

from manyhands import Block, Conversation, TeamPrompt, View
from manyhands.strategies.base import Work
from manyhands.strategies.budgeted import BudgetedRun
from manyhands.strategies.events import AnswerFound, Event, StepEnded
from manyhands.strategies.scene import Scene, Writing, scene_of
from manyhands_debate.events import RoundHeard


class Debate(BudgetedRun):  # budget, context, snapshots, finisher and reply come from there
    def __init__(self, asked: Conversation, words: TeamPrompt, size: int, rounds: int, **run: Any):
        super().__init__(words=words, problem=asked.problem, prefill=asked.prefill, **run)
        told = words.for_team(asked.without_prefill(), team := words.team(size))
        prompt = self.text.conversation(told)
        self.rounds, self.prefix, self.everybody = rounds, words.prefix, range(size)
        self.heard: tuple[Block, ...] = (self.prefill(prompt),)
        self.writers = [self.new_writer(name, View(self.heard), prompt[-1:]) for name in team]
        self.begin_round(1)

    def begin_round(self, number: int) -> None:
        self.number, self.first, self.speaking = number, self.passes + 1, set(self.everybody)
        for writer in self.writers:  # its last token goes along with the words of a new paragraph
            opening = self.text.encode(f"\n\n{self.prefix(writer.name, number)}")
            writer.begin_step(View((*self.heard, Block(writer.name))), writer.feed + opening)

    def work(self) -> Work[None]:
        while not self.finish_reason:
            yield from self.write(sorted(self.speaking))
            if not self.speaking and not self.finish_reason:
                yield RoundHeard(self.passes, self.number)
                self.heard += tuple(writer.view.own.freeze() for writer in self.writers)
                self.finish_reason = "stopped" if self.number == self.rounds else ""
                self.begin_round(self.number + 1)
            self.check(self.scene().num_tokens + len(self.writers))
            yield from self.look()
        for worker in sorted(self.speaking):
            self.record(worker, self.number, self.writers[worker].step_text, self.first)

    def follow(self, worker: int, piece: str) -> Iterator[Event]:
        writer = self.writers[worker]
        if (found := writer.box.push(piece)) and not self.answer:
            self.answer, self.finish_reason = found, "answer"
            yield AnswerFound(self.passes, worker, found)
        if writer.stopped or found or writer.ends_step(piece):
            self.speaking.remove(worker)
            self.record(worker, self.number, writer.step_text, self.first)
            yield StepEnded(self.passes, worker, self.number, writer.step_text)

    def scene(self) -> Scene:
        return scene_of(Writing(self.heard), [Writing((w.view.own,), w.feed) for w in self.writers])
