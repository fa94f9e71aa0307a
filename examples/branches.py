"""A text parts into three branches, written at the same time, and is one text again (PDOS)."""

from manyhands import Engine, bundled
from manyhands.prompts import BranchPrompt, model_prompt
from manyhands.replay.joins import measure_joins
from manyhands.strategies.branches import branches
from manyhands.strategies.settings import BranchSettings
from manyhands.text.markers import MarkerProfile


def begun(strategy, words):
    """The strategy, with the first words of its line given; what follows is the model's own."""
    tokens = None
    while True:
        try:
            asked = strategy.send(tokens)
        except StopIteration as end:
            return end.value
        if (tokens := (yield asked)) and words:
            tokens, words = (*tokens[:-1], words[0]), words[1:]  # the row that writes comes last


engine = Engine.load(bundled.path(), memory_tokens=4096)
marks = MarkerProfile(marker="#", title_end=":", placeholder="...", terminator="#.")
rules = model_prompt(bundled.path()).solo_rules.replace("{problem}", "{question}")
job = """Solve these problems and box the answers in order, separated by commas:
1. 84 + 9 - 38
2. 17 + 60 - 31
3. 93 - 46 + 12"""
settings = BranchSettings(join="stitch", max_blocks=1, max_branches=3, markers=marks, budget=200)
strategy = branches(job, engine.text, settings, BranchPrompt(rules))
titles = engine.text.encode("#1:2:3:")  # the rest of a block's form is forced
answer = engine.run(measure_joins(begun(strategy, titles), engine.adapter))
for branch in answer.branches:
    print(f"Branch {branch.title}: {branch.text} ({branch.num_tokens} tokens)")
(join,) = answer.join_distances
print(f"Behind the join, {join.largest:.6f} from the exact text")
print(f"{answer.answer}: {sum(answer.tokens)} tokens in {answer.forward_passes} passes")
