"""A text parts into branches, written at the same time, and is one text again (PDOS)."""

from manyhands import Engine
from manyhands.replay.joins import measure_joins
from manyhands.strategies.branches import branches
from manyhands.strategies.settings import BranchSettings

engine = Engine.load("bundled", memory_tokens=32_768)
job = """Solve these problems and box the answers in order, separated by commas:
1. 84 + 9 - 38
2. 17 + 60 - 31
3. 93 - 46 + 12"""
strategy = branches(job, engine.text, BranchSettings(join="stitch", budget=200))
answer = engine.run(measure_joins(strategy, engine.replay))
for branch in answer.branches:
    print(f"Branch {branch.title}: {branch.text} ({branch.num_tokens} tokens)")
(join,) = answer.join_distances
print(f"Behind the join, {join.largest:.6f} from the exact text")
print(f"{answer.answer}: {sum(answer.tokens)} tokens in {answer.forward_passes} passes")
