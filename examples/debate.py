"""A strategy is its views: two write at once, and hear each other when both ended a paragraph."""

from manyhands import Block, Engine, SoloSettings, TeamPrompt, Text, View
from manyhands.strategies.base import Work
from manyhands.strategies.budgeted import BudgetedRun
from manyhands.strategies.events import Event
from manyhands.strategies.scene import Scene, Writing, scene_of


class Debate(BudgetedRun):  # budget, context, snapshots, finisher and reply come from there
    words: TeamPrompt

    def __init__(
        self, job: str, text: Text, settings: SoloSettings, words: TeamPrompt, context: int | None
    ) -> None:
        super().__init__(text, settings, words, context)
        prompt = text.chat_prompt(words.team_message(job, words.team(2)))
        self.heard: tuple[Block, ...] = (self.prefill(prompt),)
        self.writers = [self.new_writer(n, View(self.heard), prompt[-1:]) for n in words.team(2)]
        self.begin_round(1)

    def begin_round(self, number: int) -> None:
        self.number, self.speaking = number, {0, 1}
        for writer in self.writers:  # its last token goes along with the words of a new paragraph
            opening = self.text.encode(f"\n\n{self.words.prefix(writer.name, number)}")
            writer.begin_step(View((*self.heard, Block(writer.name))), writer.feed + opening)

    def work(self) -> Work[None]:
        while not self.finish_reason:
            yield from self.write(sorted(self.speaking))
            if not self.speaking:
                self.heard += tuple(writer.view.own.freeze() for writer in self.writers)
                self.begin_round(self.number + 1)
            self.check(self.scene().num_tokens + len(self.writers))
            yield from self.look()

    def follow(self, worker: int, piece: str) -> list[Event]:
        writer = self.writers[worker]
        self.answer = self.answer or writer.box.push(piece)
        self.finish_reason = "answer" if self.answer else "stopped" if writer.stopped else ""
        if writer.ends_step(piece):
            self.speaking.remove(worker)
        return []  # no events of its own

    def scene(self) -> Scene:
        return scene_of(Writing(self.heard), [Writing((w.view.own,), w.feed) for w in self.writers])


if __name__ == "__main__":
    engine = Engine.load("bundled", memory_tokens=4096)
    job = "Solve these problems and box the answers in order, separated by commas:\n1. 8 + 9 + 4\n2. 5 + 8"
    settings = SoloSettings(budget=70, snapshots=(20,))
    words, context = engine.prompts.team, engine.facts.max_positions
    print(engine.run(Debate(job, engine.text, settings, words, context).play()))
