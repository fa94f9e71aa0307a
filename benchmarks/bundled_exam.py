"""The exams of the models that were taught here: rows of `manyhands eval`, and one line of numbers from each.

    python -m benchmarks.bundled_exam teams --processes 2 --out benchmarks/results/bundled_exam.json
    python -m benchmarks.bundled_exam parts --processes 2 --out build/bundled_parts.json
    python -m benchmarks.bundled_exam grown --model build/grown_polished --device cuda --processes 6 \
        --out build/bundled_grown.json
    python -m benchmarks.bundled_exam between --device cuda --processes 6 --out benchmarks/results/bundled_between.json
    python -m benchmarks.bundled_exam stories --model SmolLM2-135M-Instruct.Q4_1.gguf --adapter build/smollm2 \
        --device cuda --processes 6 --out benchmarks/results/smollm2_exam.json

All but the last are of the bundled model; `grown` asks what its second generation learns: teams of one to eight, lists
of one to twelve with results from -999 to 999, and troubles (`bundled_trouble.py`). `between` has the sizes of teams and lengths of lists that `grown` leaves out. `stories` is of SmolLM2 with an adapter (docs/smollm2.md); without one it
shows what the model was before. `late` are stories that were written after its last training.

A row is a task, a method and its settings, asked n times, greedy, without a reply. Its records lie
under --records, so an exam that was stopped goes on, and `manyhands report` makes a page of them. A
line of --out is kept as long as the weights are the same, and has the command and the commit that it was sat with (--commit, where
there is no git; lines of before 2026-11-25 have the commit that brought them). Two circumstances have no option, since they
differ from question to question: a worker that misses twelve passes, and a claim that is taken. So do troubles.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.bundled_trouble import (
    claimed_again,
    corrections,
    dismissing,
    leaving,
    planted,
    planted_right,
)
from benchmarks.results import ROOT, commit_of, cpu
from manyhands import bundled
from manyhands.cli.candidates import method_candidate, task_of
from manyhands.cli.exam_options import EXAM_METHODS, EvalOptions
from manyhands.evaluation.grading import Grading
from manyhands.evaluation.record import Record, RecordFile, Results, file_of
from manyhands.evaluation.run import Exam, examine
from manyhands.evaluation.summary import Summary
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Strategy
from manyhands.strategies.settings import Away, TeamSettings
from manyhands.tasks.arithmetic.problem_list import parse_question
from manyhands.tasks.arithmetic.templates.fresh import FRESH
from manyhands.tasks.arithmetic.templates.late import LATE
from manyhands.tasks.arithmetic.words import told_apart
from manyhands.tasks.task import protocol_of
from manyhands.text import Text

GOOD = 0.97  # accuracy per question whose first budget is looked for
AWAY_PASSES = 12
# About where a line's first good budget lies: the grid of its curve is fine around it.
EXPECTED = {
    "bare 5": (258, 142, 103, 84),
    "bare 8": (398, 207, 148, 110),
    "word 5": (169, 94, 69, 58),
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sequential": ("sequential", {}),
    **{
        join: ("branches", {"join": join, "max_branches": 32})
        for join in ("reencode", "stitch", "keep")
    },
    "skeleton": ("skeleton", {}),
    "two threads": ("skeleton", {"workers": 2}),
}
Changed = Callable[[str, TeamSettings], TeamSettings]  # by the question
# Where the curves of wide lists are looked at, by problems and workers, and their largest budgets by problems.
WIDE_LOOKS = {(12, 1): tuple(range(560, 1000, 20)), (12, 8): tuple(range(80, 240, 8))}
_BUDGETS = {1: 300, 5: 800, 8: 1000}


@dataclass(frozen=True)
class Row:
    """One line of the exam."""

    name: str
    task: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    count: int | None = None
    kind: str | None = None
    sentences: int | None = None
    curve: tuple[int, ...] = ()  # budgets at which the answer is also wanted
    budget: int = 1000
    draft: bool = False
    concurrency: int = 128
    changed: Changed | None = None  # settings that depend on the question
    leavers: int = 0  # workers that leave in the middle of their first claims


# -- the rows --------------------------------------------------------------------------------------


def teams() -> list[Row]:
    """Lists of problems: teams of one to four, and their circumstances."""

    def row(name: str, workers: int, count: int = 5, kind: str = "bare", **more: Any) -> Row:
        settings = {"workers": workers, **more.pop("settings", {})}
        name = f"{name}, {workers}"
        return Row(name, "arithmetic", "hogwild", settings, count=count, kind=kind, **more)

    every, several = range(1, 5), range(2, 5)
    rows = [
        row(f"{kind} {count}", workers, count, kind, curve=budgets(f"{kind} {count}", workers))
        for kind, count in (("bare", 5), ("bare", 8), ("word", 5))
        for workers in every
    ]
    rows += [row("held-out 5", workers, kind="held-out") for workers in every]
    rows += [row("stalled", workers, changed=stalled) for workers in several]
    rows += [row("forced claim", workers, changed=forced) for workers in several]
    for layout in ("contiguous", "interleaved"):
        rows += [row(layout, workers, settings={"layout": layout}) for workers in several]
    rows += [row("checks every 64", workers, settings={"check_every": 64}) for workers in several]
    return [*rows, Row("sequential", "arithmetic", "sequential", count=5, kind="bare")]


def parts() -> list[Row]:
    """Beyond teams: students, lists in parts, questions about one long text."""

    def row(task: str, form: str, count: int, **more: Any) -> Row:
        words = [task.partition("-")[0], str(count), form]
        words += ["drafts"] if more.get("draft") else []
        words += ["held-out names"] if more.get("kind") else []
        method, settings = FORMS.get(form, (form, {}))
        more = {"budget": 2000, "concurrency": 16, **more}
        return Row(", ".join(words), task, method, settings, count=count, **more)

    rows = [row(f"retrieval-{count}", form, count) for count in (10, 30) for form in FORMS]
    rows += [
        row(f"retrieval-{count}", form, count, draft=True)
        for count in (10, 30)
        for form in ("sequential", "reencode")
    ]
    rows += [
        row("retrieval-10", form, 10, kind="held-out")
        for form in ("sequential", "reencode", "skeleton")
    ]
    rows += [row("arithmetic", form, 5) for form in ("reencode", "stitch", "keep", "skeleton")]
    document = {"budget": 64, "concurrency": 64}  # each document is read once
    rows += [
        row("needles", "shared_prefix", 4 * dogs, sentences=min(40, 3 * dogs), **document)
        for dogs in (8, 32, 64)
    ]
    strangers = row("needles", "shared_prefix", 256, kind="held-out", sentences=40, **document)
    return [*rows, strangers]


_NEVER_TAUGHT = ("fresh", "unseen")
_LATE = "late"


def grown() -> list[Row]:
    """Wide lists for teams of one to eight, troubles, and stories told a little differently."""

    def row(name: str, workers: int, count: int, kind: str = "wide", **more: Any) -> Row:
        settings, budget = {"workers": workers}, _BUDGETS.get(count, 1500)
        return Row(
            f"{name} {count}, {workers}",
            *("arithmetic", "hogwild", settings),
            count=count,
            kind=kind,
            budget=budget,
            **more,
        )

    rows = [
        row("wide", workers, count, curve=WIDE_LOOKS.get((count, workers), ()))
        for count in (1, 5, 8, 12)
        for workers in (1, 2, 3, 4, 6, 8)
    ]
    rows += [
        row("one leaves", workers, count, leavers=1)
        for count, workers in ((5, 2), (5, 4), (8, 4), (12, 8))
    ]
    rows += [row("three leave", 4, 5, leavers=3)]
    rows += [
        row("planted", workers, count, changed=planted)
        for count, workers in ((5, 2), (5, 4), (8, 4), (12, 8))
    ]
    rows += [
        row("planted right", workers, count, changed=planted_right)
        for count, workers in ((5, 4), (12, 8))
    ]
    return rows + [
        row(name, workers, 5, kind)
        for name, kind in (
            ("one word changed", "changed"),
            ("unseen names", "renamed"),
            ("held-out", "held-out"),
            ("fresh", "fresh"),
        )
        for workers in (1, 4)
    ]


def between() -> list[Row]:
    """Wide lists of every length from 1 to 12, for teams of 5 and of 7: the sizes that `grown` leaves out."""
    return [
        Row(
            f"wide {count}, {workers}",
            *("arithmetic", "hogwild", {"workers": workers}),
            count=count,
            kind="wide",
            budget=_BUDGETS.get(count, 1500),
        )
        for count in range(1, 13)
        for workers in (5, 7)
    ]


def stories() -> list[Row]:
    """Five problems for teams of one to four: stories made of nothing that was taught, taught ones, sums."""
    return [
        Row(
            f"{kind} 5, {workers}",
            "arithmetic",
            "hogwild",
            {"workers": workers},
            count=5,
            kind=kind,
            curve=_looks(workers) if kind == "fresh" else (),
            budget=500,
        )
        for kind in (*_NEVER_TAUGHT, "taught", "bare")
        for workers in range(1, 5)
    ]


def late() -> list[Row]:
    """Stories that were written after the adapter was taught, for one worker and four."""
    return [
        Row(
            f"{_LATE} 5, {workers}",
            *("arithmetic", "hogwild", {"workers": workers}),
            count=5,
            kind=_LATE,
            budget=500,
        )
        for workers in (1, 4)
    ]


def _looks(workers: int) -> tuple[int, ...]:
    """Budgets around where a team of so many is ready."""
    first, last = ((100, 280), (50, 170), (30, 140), (24, 120))[workers - 1]
    return tuple(range(first, last, (last - first) // 18))


EXAMS = {
    "teams": teams,
    "parts": parts,
    "grown": grown,
    "between": between,
    "stories": stories,
    "late": late,
}


def budgets(kind: str, workers: int) -> tuple[int, ...]:
    """Where a curve is looked at: finely around the first good budget, sparsely below.

    Every look costs each run some twenty passes, so only the curves that are shown get many.
    """
    expected = EXPECTED[kind][workers - 1]
    if workers > 2 or kind != "bare 5":
        return tuple(round(expected * share) for share in (0.5, 0.9, 0.95, 1.0, 1.05, 1.1))
    fine = range(round(0.84 * expected), round(1.14 * expected), max(1, round(0.02 * expected)))
    return (*(round(expected * share) for share in (0.2, 0.4, 0.6, 0.75)), *fine)


def stalled(question: str, settings: TeamSettings) -> TeamSettings:
    """One worker misses some passes, somewhere in the middle."""
    rng = random.Random(f"stalled/{question}")
    start = rng.randint(5, 90)
    away = Away(rng.randrange(settings.workers), start, start + AWAY_PASSES - 1)
    return replace(settings, away=(away,))


def forced(question: str, settings: TeamSettings) -> TeamSettings:
    """One worker's second step begins with a claim that is taken.

    First claims go by most work, in the order of the workers; one is put into the mouth of a worker
    whose own it was not.
    """
    lines = parse_question(question)
    assert lines is not None, "the task asks numbered lists"
    order = sorted(range(len(lines)), key=lambda k: (-len(re.findall("[+-]", lines[k])), k))
    rng = random.Random(f"forced/{question}")
    worker, other = rng.sample(range(settings.workers), 2)
    return replace(settings, insertions={(worker, 2): f" #{order[other] + 1}:"})


# -- one row ---------------------------------------------------------------------------------------


def options(row: Row, arguments: argparse.Namespace) -> EvalOptions:
    """The row as `manyhands eval` would be asked for it."""
    return EvalOptions(
        model=str(arguments.model),
        device=arguments.device,
        lora=arguments.adapter,
        memory_tokens=1 << 17,
        task=row.task,
        out=arguments.records,
        limit=arguments.n,
        count=row.count,
        kind=row.kind,
        sentences=row.sentences,
        method=row.method,
        budgets=(*row.curve, row.budget),
        listed=tuple(f"{name}={value}" for name, value in row.settings.items()),
        draft=row.draft,
        concurrency=row.concurrency,
        label=row.name,
    )


def sit(row: Row, arguments: argparse.Namespace) -> Results:
    """Ask what is not on record; all records of the row."""
    torch.set_num_threads(1)
    chosen = options(row, arguments)
    method = EXAM_METHODS[row.method]
    if row.changed is not None:
        method = replace(method, make=with_changed_settings(method.make, row.changed))
    if row.leavers:
        method = replace(method, make=with_dismissals(method.make, row.leavers))
    task, samples = task_of(chosen)
    wanted = (*row.curve, row.budget)
    candidate, header = method_candidate(chosen, method, wanted, samples, protocol_of(task))
    path = file_of(chosen.out, task.name, header.label)
    with Grading(task) as grading, closing(RecordFile(path, header)) as file:
        for _ in examine(Exam(samples, candidate, wanted), file, grading):
            pass
        return Results(path, header, tuple(file.records.values()))


def with_changed_settings(
    make: Callable[..., Strategy], changed: Changed
) -> Callable[..., Strategy]:
    """The same method, with settings that depend on the question."""

    def made(
        asked: str | Conversation, text: Text, settings: TeamSettings, *rest: Any, **more: Any
    ) -> Strategy:
        return make(asked, text, changed(conversation_of(asked).problem, settings), *rest, **more)

    return made


def with_dismissals(make: Callable[..., Strategy], leavers: int) -> Callable[..., Strategy]:
    """The same method, from which workers leave as the question has it."""

    def made(
        asked: str | Conversation, text: Text, settings: TeamSettings, *rest: Any, **more: Any
    ) -> Strategy:
        question = conversation_of(asked).problem
        dismissals = leaving(question, settings.workers, leavers)
        return dismissing(make(asked, text, settings, *rest, **more), dismissals)

    return made


def troubles(row: Row, records: Sequence[Record]) -> dict[str, Any]:
    """The fate of planted steps; on lists without any, how often a right result was claimed again."""
    if row.changed in (planted, planted_right):
        wrong = row.changed is planted
        return corrections(records, row.settings["workers"], wrong=wrong)
    return {"claimed_again": claimed_again(records)} if row.kind == "wide" else {}


def solved_twice(record: Record) -> float:
    """The share of a list's problems that more than one worker solved."""
    solvers: dict[str, set[int]] = {}
    for step in record.steps:
        for number in re.findall(r"#(\d+) is", step["text"]):
            solvers.setdefault(number, set()).add(step["worker"])
    return sum(len(workers) > 1 for workers in solvers.values()) / len(record.gold)


def by_template(records: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """Of every template that was never taught: how many of its stories were answered right, and how many were asked."""
    found: dict[str, tuple[int, int]] = {}
    for record in records:
        lines = parse_question(record.question)
        assert lines is not None, "the task asks numbered lists"
        said = [each.strip() for each in (record.answer or "").split(",")]
        for number, (text, gold) in enumerate(zip(lines, record.gold, strict=True)):
            name = next(
                t.name for t in (*told_apart()[1].templates, *FRESH, *LATE) if t.tells(text)
            )
            is_right = len(said) == len(lines) and said[number] == str(gold)
            right, asked = found.get(name, (0, 0))
            found[name] = (right + is_right, asked + 1)
    return dict(sorted(found.items()))


def line(row: Row, results: Results) -> dict[str, Any]:
    """A row's numbers."""
    summary = Summary.of(results)
    assert summary.passes is not None
    assert summary.tokens is not None
    curve = {str(p.budget): round(p.value.mean, 4) for p in summary.curve[:-1]}
    good = [int(budget) for budget, accuracy in curve.items() if accuracy >= GOOD]
    twice = [solved_twice(record) for record in summary.records if row.task == "arithmetic"]
    return {
        "name": row.name,
        "task": row.task,
        "method": row.method,
        "settings": row.settings,
        "n": len(summary.records),
        "accuracy": round(summary.last.value.mean, 4),
        "passes": round(summary.passes, 1),
        "tokens": round(summary.tokens, 1),
        "solved_twice": round(sum(twice) / len(twice), 4) if twice else None,
        "finish": dict(sorted(summary.endings)),
        "curve": curve,
        **troubles(row, summary.records),
        **(
            {"templates": by_template(summary.records)}
            if row.kind in (*_NEVER_TAUGHT, _LATE)
            else {}
        ),
        "first_good_budget": min(good) if good else None,
    }


# -- all rows --------------------------------------------------------------------------------------


def hardware(arguments: argparse.Namespace) -> str:
    """The processor or the GPU that the exam runs on."""
    if arguments.device != "cpu":
        return torch.cuda.get_device_name()
    return f"{cpu()}, {arguments.processes} of {os.cpu_count()} cores"


def weights_of(model: Path, adapter: str | None) -> str:
    """A few digits that stand for the weights of a folder or a file, with those of an adapter."""
    files = [model / "model.safetensors" if model.is_dir() else model]
    files += [] if adapter is None else [Path(adapter) / "adapter_model.safetensors"]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _job(row: Row, arguments: argparse.Namespace) -> dict[str, Any]:
    return line(row, sit(row, arguments))


def main() -> None:
    """Sit the exam and keep what is finished as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("exam", choices=EXAMS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--records", type=Path, default=Path("build/bundled_exam"))
    parser.add_argument("--model", type=Path, default=bundled.path())
    parser.add_argument("--adapter", default=None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--commit", default=None, help="of the code that runs, if git cannot tell")
    parser.add_argument("--only", default="", help="lines whose name contains one of these, by ;")
    arguments = parser.parse_args()
    weights = weights_of(arguments.model, arguments.adapter)
    known = json.loads(arguments.out.read_text())["lines"] if arguments.out.exists() else []
    lines = {one["name"]: one for one in known if one["weights"] == weights}
    wanted = [name.strip() for name in arguments.only.split(";")]
    every = EXAMS[arguments.exam]()
    rows = [r for r in every if r.name not in lines and any(name in r.name for name in wanted)]
    where = {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python -m benchmarks.bundled_exam", *sys.argv[1:]]),
        "commit": arguments.commit or commit_of(ROOT),
        "hardware": hardware(arguments),
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
        "weights": weights,
    }
    if arguments.adapter is not None:
        adapter = Path(arguments.adapter) / "adapter_model.safetensors"
        where["adapter"] = hashlib.sha256(adapter.read_bytes()).hexdigest()[:16]
    began = time.time()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        for job in as_completed([pool.submit(_job, row, arguments) for row in rows]):
            found = job.result() | where
            lines[found["name"]] = found
            told = {name: found[name] for name in ("accuracy", "passes", "first_good_budget")}
            print(f"{time.time() - began:5.0f} s  {found['name']:32} {told}", flush=True)
            ordered = [lines[row.name] for row in every if row.name in lines]
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps({"lines": ordered}, indent=1))


if __name__ == "__main__":
    main()
