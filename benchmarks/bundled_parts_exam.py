"""The exam of the bundled model beyond teams: students, lists in parts, needles; fresh questions, greedy.

    python benchmarks/bundled_parts_exam.py --processes 2 --out benchmarks/results/bundled_parts.json

Every line is a question, a method and its circumstances, asked n times. A retrieval is right if the box
holds exactly the gold names, in any order; a list is graded place by place; a needle by its colour. All
256 needle questions of a document are asked of the same document.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from bundled_exam import cpu  # the script beside this one

from manyhands import EndSettings, Engine, bundled
from manyhands.prompts.chain_of_draft import drafted
from manyhands.prompts.load import Prompts, model_prompts
from manyhands.school.endings import endings
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.methods import METHODS
from manyhands.tasks.arithmetic.problem_list import problem_list
from manyhands.tasks.graders import grade_list
from manyhands.tasks.needles import ask, haystack
from manyhands.tasks.retrieval import retrieval
from manyhands.text import Text, boxed_answer

BUDGET = 2000
SHARD = 16  # questions that one process works on at a time, all in the same forward passes
NEEDLES = 64  # of one document at a time
SILENT = EndSettings(reply=False)
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sequential": ("sequential", {}),
    "reencode": ("branches", {"join": "reencode", "max_branches": 32}),
    "stitch": ("branches", {"join": "stitch", "max_branches": 32}),
    "keep": ("branches", {"join": "keep", "max_branches": 32}),
    "skeleton": ("skeleton", {}),
    "two threads": ("skeleton", {"workers": 2}),
}


@dataclass(frozen=True)
class Line:
    """One line of the exam. `draft`: chain of draft, in place of whole sentences."""

    task: str
    form: str
    count: int
    draft: bool = False
    held_out: bool = False

    @property
    def name(self) -> str:
        """What it is called in the results."""
        words = [self.task, str(self.count), self.form]
        words += ["drafts"] if self.draft else []
        words += ["held-out names"] if self.held_out else []
        return ", ".join(words)


def lines() -> list[Line]:
    """The whole exam."""
    students = [Line("retrieval", form, count) for count in (10, 30) for form in FORMS]
    drafts = [
        Line("retrieval", form, count, draft=True)
        for count in (10, 30)
        for form in ("sequential", "reencode")
    ]
    strangers = [
        Line("retrieval", form, 10, held_out=True)
        for form in ("sequential", "reencode", "skeleton")
    ]
    lists = [Line("list", form, 5) for form in ("reencode", "stitch", "keep", "skeleton")]
    needles = [Line("needles", "shared", dogs) for dogs in (8, 32, 64)]
    return [
        *students,
        *drafts,
        *strangers,
        *lists,
        *needles,
        Line("needles", "shared", 64, held_out=True),
    ]


def prompts_of(line: Line, prompts: Prompts) -> Prompts:
    """The words of this line."""
    return drafted(prompts) if line.draft else prompts


def sit(model: Path, line: Line, first: int, size: int) -> list[dict[str, Any]]:
    """Questions first .. first + size of a line; what came of each."""
    torch.set_num_threads(1)
    engine = Engine.load(model, device="cpu", memory_tokens=1 << 17)
    prompts = prompts_of(line, model_prompts(model))
    if line.task == "needles":
        return _needles(engine, line, prompts, first, size)
    asked = [_question(line, index) for index in range(first, first + size)]
    strategies = [_strategy(line, question, engine.text, prompts) for question, _ in asked]
    answers = engine.run_all(strategies)
    return [_outcome(gold, answer) for (_, gold), answer in zip(asked, answers, strict=True)]


def _question(line: Line, index: int) -> tuple[str, tuple[Any, ...]]:
    """A question and its gold answer."""
    rng = random.Random(f"parts/{line.name}/{index}")
    if line.task == "list":
        problems = problem_list(rng, line.count, "bare")
        return problems.question, problems.gold
    found = retrieval(rng, line.count, line.held_out)
    return found.question, found.gold


def _strategy(line: Line, question: str, text: Text, prompts: Prompts) -> Strategy:
    name, choices = FORMS[line.form]
    method = METHODS[name]
    settings = method.settings(budget=BUDGET, end=SILENT, **choices)
    return method.make(question, text, settings, getattr(prompts, method.prompt))


def _outcome(gold: tuple[Any, ...], answer: Answer) -> dict[str, Any]:
    if gold and isinstance(gold[0], int):
        score = grade_list(answer.answer, gold).value
    else:
        names = {name.strip() for name in (answer.answer or "").split(",")}
        score = float(names == set(gold or ("none",)))
    return {
        "score": score,
        "passes": answer.forward_passes,
        "tokens": sum(answer.tokens),
        "finish": answer.finish_reason,
    }


def _needles(
    engine: Engine, line: Line, prompts: Prompts, first: int, size: int
) -> list[dict[str, Any]]:
    """Some of the questions about one document; a document has up to 256."""
    per_document = 4 * line.count
    rng = random.Random(f"parts/{line.name}/{first // per_document}")
    hay = haystack(rng, line.count, min(40, 3 * line.count), line.held_out)
    needles = hay.needles[first % per_document :][:size]
    messages = [prompts.team.solo_message(ask(hay.document, needle.question)) for needle in needles]
    answer = engine.run(endings([engine.text.chat_prompt(m) for m in messages], engine.text))
    return [
        {
            "score": float(boxed_answer(said) == needle.answer),
            "passes": answer.forward_passes,
            "tokens": tokens,
            "finish": "stopped",
        }
        for said, needle, tokens in zip(
            answer.text.split("\n"), needles, answer.tokens, strict=True
        )
    ]


def account(line: Line, outcomes: list[dict[str, Any]], where: dict[str, Any]) -> dict[str, Any]:
    """A line of the result; `where` says on what and when."""

    def mean(key: str) -> float:
        return sum(o[key] for o in outcomes) / len(outcomes)

    return {
        "name": line.name,
        **asdict(line),
        **where,
        "n": len(outcomes),
        "accuracy": round(mean("score"), 4),
        "passes": round(mean("passes"), 1),
        "tokens": round(mean("tokens"), 1),
        "finish": dict(sorted(Counter(o["finish"] for o in outcomes).items())),
    }


def _job(job: tuple[Path, Line, int, int]) -> tuple[Line, list[dict[str, Any]]]:
    model, line, first, size = job
    return line, sit(model, line, first, size)


def _jobs(model: Path, exam: list[Line], n: int) -> list[tuple[Path, Line, int, int]]:
    jobs = []
    for line in exam:
        shard = min(NEEDLES, 4 * line.count) if line.task == "needles" else SHARD
        jobs += [(model, line, first, min(shard, n - first)) for first in range(0, n, shard)]
    return jobs


def main() -> None:
    """Run the exam and keep what is finished as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=bundled.path())
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="lines whose name contains one of these, by ;")
    arguments = parser.parse_args()
    weights = hashlib.sha256((arguments.model / "model.safetensors").read_bytes()).hexdigest()[:16]
    known = json.loads(arguments.out.read_text())["lines"] if arguments.out.exists() else []
    sat = {row["name"]: row for row in known if row["weights"] == weights}
    wanted = [name.strip() for name in arguments.only.split(";")]
    exam = [x for x in lines() if x.name not in sat and any(name in x.name for name in wanted)]
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
        jobs = _jobs(arguments.model, exam, arguments.n)
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
                f"{time.time() - began:5.0f} s  {line.name:40} accuracy {row['accuracy']:.4f}  "
                f"passes {row['passes']:6.1f}  {row['finish']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
