"""A strategy of your own is a generator. Here three who cannot see each other race for the answer."""

from manyhands import Answer, Block, Choice, Engine, Row, Step, Text, View
from manyhands.strategies.base import Reserve, Strategy
from manyhands.strategies.events import AnswerFound
from manyhands.strategies.writer import Writer


def race(text: Text, question: str, budget: int = 200) -> Strategy:
    prompt, start = Block("prompt"), text.chat_prompt(question)
    yield Reserve(len(start) + 3 * budget, num_blocks=4)  # goes on once there is room for all of it
    yield Step([Row(View([prompt]), start[:-1])])  # the question is read once, for all three
    runners = [Writer(text, Choice(0.5, forbidden=text.eos), seed, f"{seed}") for seed in range(3)]
    for runner in runners:
        runner.begin_step(View([prompt, Block()]), feed=start[-1:])  # no neighbour's block in it
    for forward_pass in range(1, budget + 1):
        tokens = yield Step(map(Writer.row, runners))  # ask; be sent one token for each row
        for index, (runner, token) in enumerate(zip(runners, tokens, strict=True)):
            if answer := runner.box.push(runner.read(token, text.eos)):
                yield AnswerFound(forward_pass, index, answer)  # for whoever is watching
                return Answer(runner.step_text.strip(), answer, "answer", forward_pass)
    return Answer("Nobody arrived.", finish_reason="budget", forward_passes=budget)


engine = Engine.load("bundled", memory_tokens=4096)
job = "Solve these problems and box the answers in order, separated by commas:\n1. 84 + 9\n2. 5 + 8"
print(*engine.stream(race(engine.text, engine.prompts.team.solo_message(job))), sep="\n")
