"""One prompt, many endings: its keys are computed once, kept once, and loaded once for all of them."""

from collections import Counter

from manyhands import Choice, Engine
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import shared_prefix
from manyhands.text import boxed_answer

engine = Engine.load("bundled", memory_tokens=16_384)
problem = """Solve these problems and box the answers in order, separated by commas:
1. 84 + 29 - 38
2. 17 + 60 + 5 - 31"""
message = engine.prompts.team.solo_message(problem)

settings = SharedSettings(samples=16, max_tokens=96, choice=Choice(temperature=1.3), seed=1)
answer = engine.run(shared_prefix([message], engine.text, settings, tree=engine.prefixes))
endings = Counter(boxed_answer(completion.text) for completion in answer.completions)
for ending, count in endings.most_common():
    print(f"{count:2} of 16: {ending}")

usage = engine.usage
saved = usage.kv_bytes_saved / (usage.kv_bytes_loaded + usage.kv_bytes_saved)
print(
    f"The prompt's {answer.prompt_tokens[0]} tokens were read once; {saved:.0%} of the loads saved."
)
