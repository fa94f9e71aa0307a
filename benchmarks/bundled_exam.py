"""The exam of the bundled model: fresh problems, greedy, through the same strategy and engine as `solve`.

    python benchmarks/bundled_exam.py --processes 2 --out benchmarks/results/bundled_exam.json

Every line of the exam is a kind of list, a team and its circumstances, asked n times. Scores are the
share of right places (`tasks/graders.py`). For lines with a curve, one run is asked for its answer at
many budgets in passing (snapshots); a run that was over by then counts with its final answer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import platform
import random
import re
import sys
import time
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from manyhands import (
    EndSettings,
    Engine,
    SoloSettings,
    TeamSettings,
    bundled,
    hogwild,
    model_prompt,
    sequential,
)
from manyhands.strategies.base import Answer
from manyhands.strategies.settings import Away
from manyhands.tasks.graders import grade_list
from manyhands.tasks.problem_list import problem_list

BUDGET = 1000
SHARD = 128  # lists that one process works on at a time, all in the same forward passes
GOOD = 0.97  # accuracy per question whose first budget is looked for
# About where a line's first good budget lies: the grid of its curve is fine around it.
EXPECTED = {
    ("bare", 5): (258, 142, 103, 84),
    ("bare", 8): (398, 207, 148, 110),
    ("word", 5): (169, 94, 69, 58),
}


@dataclass(frozen=True)
class Line:
    """One line of the exam."""

    name: str
    kind: str = "bare"
    count: int = 5
    workers: int = 1
    layout: str = "combined"
    held_out: bool = False
    curve: bool = False
    stalled: int = 0  # passes that one worker misses, somewhere in the middle
    forced: bool = False  # one worker's second step begins with a claim that is taken
    check_every: int = 1024
    method: str = "hogwild"


def lines() -> list[Line]:
    """The whole exam."""
    teams = range(1, 5)
    exam = [Line(f"bare 5, {w}", workers=w, curve=True) for w in teams]
    exam += [Line(f"bare 8, {w}", count=8, workers=w, curve=True) for w in teams]
    exam += [Line(f"word 5, {w}", kind="word", workers=w, curve=True) for w in teams]
    exam += [Line(f"held-out 5, {w}", kind="word", workers=w, held_out=True) for w in teams]
    exam += [Line(f"stalled, {w}", workers=w, stalled=12) for w in (2, 3, 4)]
    exam += [Line(f"forced claim, {w}", workers=w, forced=True) for w in (2, 3, 4)]
    for layout in ("contiguous", "interleaved"):
        exam += [Line(f"{layout}, {w}", workers=w, layout=layout) for w in (2, 3, 4)]
    exam += [Line(f"checks every 64, {w}", workers=w, check_every=64) for w in (2, 3, 4)]
    return [*exam, Line("sequential", method="sequential")]


def budgets(line: Line) -> tuple[int, ...]:
    """Where a line's curve is looked at: finely around the first good budget, sparsely below.

    Every look costs each run some twenty passes, so only the curves that are shown get many.
    """
    if not line.curve:
        return ()
    expected = EXPECTED[line.kind, line.count][line.workers - 1]
    if line.workers > 2 or (line.kind, line.count) != ("bare", 5):
        return tuple(round(expected * share) for share in (0.5, 0.9, 0.95, 1.0, 1.05, 1.1))
    fine = range(round(0.84 * expected), round(1.14 * expected), max(1, round(0.02 * expected)))
    return (*(round(expected * share) for share in (0.2, 0.4, 0.6, 0.75)), *fine)


def sit(line: Line, first: int, size: int, model: Path) -> list[dict[str, Any]]:
    """Lists first .. first + size of a line, all at once; what came of each."""
    torch.set_num_threads(1)
    engine = Engine.load(model, device="cpu", memory_tokens=1 << 17)
    prompt, text = model_prompt(model), engine.text
    end = EndSettings(reply=False)  # its words are not examined
    asked, strategies = [], []
    for index in range(first, first + size):
        rng = random.Random(f"exam/{line.name}/{index}")
        kind = "word" if line.kind == "word" else "bare"
        problems = problem_list(rng, line.count, kind, held_out=line.held_out)
        asked.append(problems)
        if line.method == "sequential":
            solo = SoloSettings(budget=BUDGET, end=end)
            strategies.append(sequential(problems.question, text, solo, prompt))
            continue
        settings = TeamSettings(
            line.workers, line.layout, BUDGET, line.check_every, snapshots=budgets(line), end=end
        )
        if line.stalled:
            start = rng.randint(5, 90)
            away = Away(rng.randrange(line.workers), start, start + line.stalled - 1)
            settings = replace(settings, away=(away,))
        if line.forced:
            # First claims go by most work, in the order of the workers; one is put into the mouth of
            # a worker whose own it was not.
            order = sorted(range(line.count), key=lambda k: (-len(problems.problems[k].work), k))
            worker, other = rng.sample(range(line.workers), 2)
            taken = order[other]
            settings = replace(settings, insertions={(worker, 2): f" #{taken + 1}:"})
        strategies.append(hogwild(problems.question, text, settings, prompt))
    answers = engine.run_all(strategies)
    return [outcome(line, p.gold, a) for p, a in zip(asked, answers, strict=True)]


def outcome(line: Line, gold: tuple[int, ...], answer: Answer) -> dict[str, Any]:
    """What one list contributes to its line."""
    solvers: dict[str, set[int]] = {}
    for step in answer.steps:
        for number in re.findall(r"#(\d) is", step.text):
            solvers.setdefault(number, set()).add(step.worker)
    curve = [
        grade_list(answer.snapshots.get(budget, answer.answer), gold).value
        for budget in budgets(line)
    ]
    return {
        "score": grade_list(answer.answer, gold).value,
        "passes": answer.forward_passes,
        "tokens": sum(answer.tokens),
        "twice": sum(len(workers) > 1 for workers in solvers.values()) / line.count,
        "finish": answer.finish_reason,
        "curve": curve,
    }


def account(line: Line, outcomes: list[dict[str, Any]], where: dict[str, Any]) -> dict[str, Any]:
    """A line of the result; `where` says on what and when."""

    def mean(key: str) -> float:
        return sum(o[key] for o in outcomes) / len(outcomes)

    curve = {
        str(budget): round(sum(o["curve"][at] for o in outcomes) / len(outcomes), 4)
        for at, budget in enumerate(budgets(line))
    }
    good = [int(budget) for budget, accuracy in curve.items() if accuracy >= GOOD]
    finishes = [o["finish"] for o in outcomes]
    return {
        **asdict(line),
        **where,
        "n": len(outcomes),
        "accuracy": round(mean("score"), 4),
        "passes": round(mean("passes"), 1),
        "tokens": round(mean("tokens"), 1),
        "solved_twice": round(mean("twice"), 4),
        "finish": {reason: finishes.count(reason) for reason in sorted(set(finishes))},
        "curve": curve,
        "first_good_budget": min(good) if good else None,
    }


def _job(job: tuple[Line, int, int, Path]) -> tuple[Line, list[dict[str, Any]]]:
    line, first, size, model = job
    return line, sit(line, first, size, model)


def cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    """Run the exam and keep what is finished as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=bundled.path())
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--only",
        default="",
        help="lines whose name contains one of these, separated by ;, in this order",
    )
    arguments = parser.parse_args()
    weights = hashlib.sha256((arguments.model / "model.safetensors").read_bytes()).hexdigest()[:16]
    known = json.loads(arguments.out.read_text())["lines"] if arguments.out.exists() else []
    sat = {row["name"]: row for row in known if row["weights"] == weights}
    wanted = [name.strip() for name in arguments.only.split(";")]
    exam = [x for x in lines() if x.name not in sat and any(name in x.name for name in wanted)]
    jobs = [
        (line, first, min(SHARD, arguments.n - first), arguments.model)
        for line in sorted(exam, key=lambda x: [name in x.name for name in wanted], reverse=True)
        for first in range(0, arguments.n, SHARD)
    ]
    where = {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": f"{cpu()}, {arguments.processes} of {multiprocessing.cpu_count()} cores",
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
        "weights": weights,
    }
    done: dict[str, list[dict[str, Any]]] = {}
    began = time.time()
    context = multiprocessing.get_context("spawn")
    with context.Pool(arguments.processes) as pool:
        for line, outcomes in pool.imap_unordered(_job, jobs):
            done.setdefault(line.name, []).extend(outcomes)
            if len(done[line.name]) < arguments.n:
                continue
            row = sat[line.name] = account(line, done[line.name], where)
            rows = [sat[x.name] for x in lines() if x.name in sat]
            result = {"command": " ".join(["python", *sys.argv]), "lines": rows}
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
            print(
                f"{time.time() - began:5.0f} s  {line.name:22} accuracy {row['accuracy']:.4f}  "
                f"passes {row['passes']:6.1f}  first {row['first_good_budget']}  "
                f"twice {row['solved_twice']:.4f}  {row['finish']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
