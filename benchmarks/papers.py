"""Every table and figure of the three papers by one command each.

    python -m benchmarks.papers                                    what there is
    python -m benchmarks.papers hogwild-figure-9-left --show       the commands behind one of them
    python -m benchmarks.papers hogwild-figure-9-left --out exam   ask, grade, report
    python -m benchmarks.papers --all --tiny --out build/papers     all of them, small, on the bundled model

Records of a model go to OUT/MODEL, so a line that several figures show is asked once, and what was stopped goes on. Speed is
measured with networks of the papers' shapes and random weights (`benchmarks/`). `--tiny` takes the bundled model, one or two samples of
our fixtures, and few passes: it tests that every command runs, and measures nothing; its judge is a server of this process whose vote is
always 3, so each such run wants a fresh folder. Judges of the papers are GPT-4o behind an API: `--judge` and `--judge-model` name another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from types import MappingProxyType
from typing import Any

OUT, JUDGE, JUDGE_MODEL = "OUT", "JUDGE", "JUDGE_MODEL"  # are put in when a command is run
BUDGETS = "1024,2048,4096,8192"
TINY_BUDGETS = "8,32"
QWQ, PHI = "Qwen/QwQ-32B", "microsoft/Phi-4-reasoning-plus"
QWEN3 = ("1.7B", "4B", "8B", "14B", "32B", "235B-A22B")
QWEN25 = "Qwen/Qwen2.5-7B-Instruct"
_DRAWING = "a drawing, nothing is measured"
_OF_FILES = ("gsm8k-list", "limo", "aime25", "olympiad", "livecodebench", "2wiki", "apps")

Words = tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """One command, and the same in small."""

    words: Words
    tiny: Words


@dataclass(frozen=True)
class Shown:
    """One table or figure: the commands behind its lines, or why there are none."""

    of: str
    lines: tuple[Line, ...] = ()
    why_not: str = ""


# -- commands ----------------------------------------------------------------------------------------

SEQUENTIAL = ("--method", "sequential")
HOGWILD = ("--method", "hogwild", "-n", "2")
VOTES = ("--method", "self_consistency", "-n", "2")


def hogwild(workers: int) -> Words:
    """A team of so many."""
    return ("--method", "hogwild", "-n", str(workers))


def asked(task: str, model: str, method: Words, budgets: str = BUDGETS) -> Line:
    """One line of an exam."""
    code = ("--allow-code",) if task in ("livecodebench", "apps") else ()
    first = ("manyhands", "eval", "--task", task, *code, *method)
    whole = (*first, "--budgets", budgets, "--model", model, "--out", f"{OUT}/{_folder(model)}")
    # Lines of all models meet in one folder, where a label stands for one way of asking.
    small = _without(method, "--repeats", "--concurrency")
    fixture: Words = ("--source", "fixture") if task.startswith(_OF_FILES) else ()
    if task == "needles":
        fixture = ("--sentences", "10", "--count", "2")
    tiny = ("manyhands", "eval", "--task", task, *code, *small, *fixture, "--limit", "1")
    ends: Words = ("--repeats", "1", "--finisher-tokens", "4", "--reply-tokens", "8")
    if "shared_prefix" in method:
        ends = ("--repeats", "1")
    budget = "8" if "," not in budgets else TINY_BUDGETS
    return Line(whole, (*tiny, *ends, "--budgets", budget, "--out", f"{OUT}/bundled"))


def judged(model: str, rubric: str, task: str) -> Line:
    """The votes of a judge on all that a model answered in one task."""
    folder = ("--rubric", rubric)
    api = ("--endpoint", JUDGE, "--endpoint-model", JUDGE_MODEL)
    return Line(
        ("manyhands", "judge", f"{OUT}/{_folder(model)}/{task}", *folder, *api),
        ("manyhands", "judge", f"{OUT}/bundled/{task}", *folder, *api),
    )


def measured(part: str, words: Words, tiny: Words = ("--tiny",)) -> Line:
    """A measurement of speed. Tiny ones leave the project's own results alone."""
    own = "--tiny" in tiny
    place = ("--out", f"{OUT}/speed") if own else ()
    return Line(
        ("python", "-m", f"benchmarks.{part}", *words, *place),
        ("python", "-m", f"benchmarks.{part}", *(words if own else ()), *tiny, *place),
    )


def exams(
    tasks: str | Sequence[str], models: str | Sequence[str], methods: Sequence[Words]
) -> tuple[Line, ...]:
    """Every model on every task with every method."""
    tasks, models = [[one] if isinstance(one, str) else one for one in (tasks, models)]
    return tuple(asked(*one) for one in product(tasks, models, methods))


def _without(words: Words, *options: str) -> Words:
    """The words less these options and their values."""
    left = iter(words)
    return tuple(word for word in left if word not in options or not next(left))


def _folder(model: str) -> str:
    return model.rpartition("/")[2]


def _qwen3(*sizes: str) -> list[str]:
    return [f"Qwen/Qwen3-{size}" for size in sizes]


# -- Hogwild! Inference ------------------------------------------------------------------------------

_ALL_METHODS = (
    SEQUENTIAL,
    (*SEQUENTIAL, "--no-finisher", "--label", "sequential-no-early-stopping"),
    ("--method", "skeleton"),
    ("--method", "skeleton", "-n", "2"),
    VOTES,
    HOGWILD,
)
_BOTH = (SEQUENTIAL, HOGWILD)
_TOKENWISE = ("limo", "livecodebench", "olympiad-maths", "olympiad-physics")
_JUDGED = (QWQ, PHI, "Qwen/Qwen3-8B")
_DECODE = measured("decode", ("--models", "qwq-32b"))


def _hogwild() -> Iterator[tuple[str, Shown]]:
    for number, what in ((1, "the idea"), (2, "rotated queries")):
        yield f"figure-{number}", Shown(what, why_not=_DRAWING)
    yield (
        "figure-3-left",
        Shown("lists of five, QwQ-32B, all methods", exams("gsm8k-list", QWQ, _ALL_METHODS)),
    )
    yield "figure-3-middle", Shown("LIMO, QwQ-32B, all methods", exams("limo", QWQ, _ALL_METHODS))
    workers = (SEQUENTIAL, *map(hogwild, (2, 3, 4)))
    yield "figure-3-right", Shown("LIMO, 2, 3 and 4 workers", exams("limo", QWQ, workers))
    yield (
        "figure-4-left",
        Shown("LIMO, three families", exams("limo", (QWQ, PHI, *_qwen3("8B")), _BOTH)),
    )
    yield "figure-4-right", Shown("LIMO, sizes of Qwen3", exams("limo", _qwen3(*QWEN3), _BOTH))
    for side, task in (("left", "olympiad-maths"), ("right", "olympiad-physics")):
        lines = exams(task, (QWQ, *_qwen3("14B", "8B")), _BOTH)
        yield f"figure-5-{side}", Shown(f"OlympiadBench, {task.rpartition('-')[2]}", lines)
    yield (
        "figure-6-left",
        Shown("LiveCodeBench", exams("livecodebench", (QWQ, PHI, *_qwen3("8B")), _BOTH)),
    )
    large = (*_qwen3("235B-A22B"), "deepseek-ai/DeepSeek-R1")
    yield "figure-6-right", Shown("AIME 2025, large models", exams("aime25", large, _BOTH))
    synced = (VOTES, (*HOGWILD, "--layout", "interleaved"), HOGWILD)
    votes = tuple(judged(model, "collaborativeness", "limo") for model in _JUDGED)
    yield "figure-7", Shown("collaborativeness", (*exams("limo", _JUDGED, synced), *votes))
    yield "table-1", Shown("tokens and seconds of 1, 2 and 4 workers", (_DECODE,))
    yield "figure-8", Shown("three layouts", why_not=_DRAWING)
    ablated = (
        SEQUENTIAL,
        HOGWILD,
        (*HOGWILD, "--layout", "contiguous"),
        (*HOGWILD, "--layout", "interleaved"),
        (*HOGWILD, "--set", "check_every=0"),
        (*HOGWILD, "--set", "moves=reencode"),
    )
    yield "figure-9-left", Shown("ablations on LIMO", exams("limo", QWQ, ablated))
    counts = (SEQUENTIAL, *map(hogwild, (1, 2, 3, 4, 6)))
    yield "figure-9-right", Shown("LIMO, 1 to 6 workers", exams("limo", QWQ, counts))
    alone = (QWQ, PHI, *_qwen3(*QWEN3[:5]))
    for number, model in enumerate(alone, 10):
        yield (
            f"figure-{number}",
            Shown(f"four tasks, {_folder(model)}", exams(_TOKENWISE, model, (*_BOTH, VOTES))),
        )
    last = ("limo", "livecodebench", "olympiad-maths", "aime25")
    yield "figure-17", Shown("four tasks, Qwen3-235B-A22B", exams(last, large[0], _BOTH))
    llama = exams("limo", "meta-llama/Llama-3.3-70B-Instruct", _BOTH)
    yield "figure-18", Shown("Llama 3.3, DeepSeek-R1", (*llama, *exams("aime25", large[1], _BOTH)))
    yield "figure-19-left", Shown("seconds of a pass over lengths", (_DECODE,))
    awq = f"{QWQ}-AWQ"
    timed = tuple((*method, "--concurrency", "1") for method in _BOTH)
    yield "figure-19-right", Shown("LIMO over seconds, QwQ-32B-AWQ", exams("limo", awq, timed))
    yield "table-2", Shown("attention and set-up of a pass", (_DECODE,))


# -- Parallel decoding in one sequence ------------------------------------------------------------

_BRANCHES = ("--method", "branches")
_PDOS = (
    SEQUENTIAL,
    _BRANCHES,
    ("--method", "skeleton"),
    (*SEQUENTIAL, "--draft"),
    (*_BRANCHES, "--draft"),
)


def _pdos() -> Iterator[tuple[str, Shown]]:
    yield "figure-1", Shown("the idea", why_not=_DRAWING)
    for name, task in (
        ("retrieval", ("retrieval-10",)),
        ("multi-document", ("2wiki", "--kind", "judge")),
        ("planning", ("planning",)),
    ):
        methods = [(*task[1:], *method, "--concurrency", "1") for method in _PDOS]
        lines = tuple(asked(task[0], QWEN25, method, "2048") for method in methods)
        graded = () if name == "retrieval" else (judged(QWEN25, "quality", task[0]),)
        yield f"table-1-{name}", Shown(f"{name}, five methods", (*lines, *graded))
    others = ("Qwen/Qwen2.5-14B-Instruct", "microsoft/Phi-4-mini-instruct")
    two = [
        asked("planning", model, (*method, "--concurrency", "1"), "2048")
        for model in others
        for method in (SEQUENTIAL, _BRANCHES)
    ]
    votes = tuple(judged(model, "quality", "planning") for model in others)
    yield "table-2", Shown("planning, other models", (*two, *votes))


# -- Hydragen ----------------------------------------------------------------------------------------

_LLAMA = "codellama/CodeLlama-7b-Instruct-hf"
_SHARED = ("--method", "shared_prefix")
_GRID = measured("attention", ("--full",))


def _hydragen() -> Iterator[tuple[str, Shown]]:
    for number, what in ((1, "the idea"), (2, "a tree of prefixes")):
        yield f"figure-{number}", Shown(what, why_not=_DRAWING)
    both = (measured("prefix", ("--models", "codellama-13b")),)
    yield "figure-3-left", Shown("throughput over batches", both)
    yield "figure-3-right", Shown("throughput over prefixes", both)
    yield "figure-4", Shown("the op alone, on the GPU that is there", (_GRID,))
    words = ("--model", "01-ai/Yi-6B-200K", "--questions", "64,256,1024")
    small: Words = ("--sentences", "20", "--shots", "1", "--questions", "4", "--tokens", "4")
    answers = asked("needles", "01-ai/Yi-6B-200K", ("--shots", "5", *_SHARED), "16")
    yield (
        "figure-5",
        Shown("questions about a long text", (measured("needles", words, small), answers)),
    )
    words = ("--model", "codellama/CodeLlama-7b-hf", "--at-once", "4,16")
    small = ("--source", "fixture", "--problems", "2", "--samples", "2", "--tokens", "4")
    small = (*small, "--at-once", "1,2")
    answers = asked("apps", _LLAMA, (*_SHARED, "--repeats", "128"), "512")
    yield (
        "figure-6",
        Shown("programs, one level and two", (measured("apps", words, small), answers)),
    )
    yield "figure-7", Shown("the op alone, on H100 and L40S: run it on each", (_GRID,))
    for size in ("7b", "13b", "34b"):
        for tokens in ("128", "256"):
            words = ("--models", f"codellama-{size}", "--tokens", tokens)
            yield (
                f"table-{size}-{tokens}",
                Shown(f"CodeLlama-{size}, {tokens} tokens each", (measured("prefix", words),)),
            )


PAPERS: Mapping[str, Shown] = MappingProxyType(
    {
        f"{paper}-{name}": shown
        for paper, found in (("hogwild", _hogwild), ("pdos", _pdos), ("hydragen", _hydragen))
        for name, shown in found()
    }
)


# -- running ------------------------------------------------------------------------------------------


def commands(names: Sequence[str], *, tiny: bool, places: Mapping[str, str]) -> list[Words]:
    """The commands behind these tables and figures, each of them once, and reports of all records at the end."""
    lines = [line.tiny if tiny else line.words for name in names for line in PAPERS[name].lines]
    evals = [line for line in lines if line[:2] == ("manyhands", "eval")]
    folders = dict.fromkeys(line[line.index("--out") + 1] for line in evals)
    # A judge reads what was asked before it.
    ordered = sorted(lines, key=lambda line: line[1] == "judge")
    reports = [("manyhands", "report", folder) for folder in folders]
    return [
        tuple(_placed(word, places) for word in line)
        for line in dict.fromkeys([*ordered, *reports])
    ]


def _placed(word: str, places: Mapping[str, str]) -> str:
    if word.startswith(f"{OUT}/"):
        return places[OUT] + word.removeprefix(OUT)
    return places.get(word, word)


def run(words: Words) -> int:
    """One command, in a process of its own; its exit code."""
    program = ["-m", "manyhands"] if words[0] == "manyhands" else []
    return subprocess.run([sys.executable, *program, *words[1:]], check=False).returncode


class _Three(BaseHTTPRequestHandler):
    """A judge of small runs."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": r"\boxed{3}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "three"}
        content = json.dumps({**body, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""


@contextmanager
def small_judge() -> Iterator[str]:
    """The address of a judge whose vote is always 3."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Three)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def table() -> str:
    """The list for `docs/exam.md`."""
    rows = ["| name | shows |", "|---|---|"]
    for name, shown in PAPERS.items():
        rows.append(f"| `{name}` | {shown.of}{f': {shown.why_not}' if shown.why_not else ''} |")
    return "\n".join(rows)


def main(words: Sequence[str] | None = None) -> None:
    """List, show or run."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME", help="without one: the list")
    options.add_argument("--all", action="store_true", help="all that can be run")
    options.add_argument("--show", action="store_true", help="print the commands, run none")
    options.add_argument("--tiny", action="store_true", help="small, on the bundled model")
    options.add_argument("--out", default="exam", help="folder of the records")
    options.add_argument("--judge", default="https://api.openai.com/v1", help="its endpoint")
    options.add_argument("--judge-model", default="gpt-4o-2024-11-20")
    arguments = options.parse_intermixed_args(words)
    unknown = [name for name in arguments.names if name not in PAPERS]
    if unknown:
        options.error(f"there is no {unknown[0]!r}; without a name the list is printed")
    names = list(PAPERS) if arguments.all else arguments.names
    if not names:
        print(table())
        return
    for name in arguments.names:
        if PAPERS[name].why_not:
            print(f"{name}: {PAPERS[name].why_not}")
    places = {OUT: arguments.out, JUDGE: arguments.judge, JUDGE_MODEL: arguments.judge_model}
    with ExitStack() as stack:
        if arguments.tiny and not arguments.show:
            places |= {JUDGE: stack.enter_context(small_judge()), JUDGE_MODEL: "three"}
        _run_all(arguments, commands(names, tiny=arguments.tiny, places=places))


def _run_all(arguments: argparse.Namespace, found: Sequence[Words]) -> None:
    failed = []
    for number, command in enumerate(found, 1):
        line = " ".join(command)
        print(line if arguments.show else f"[{number}/{len(found)}] {line}", flush=True)
        if arguments.show:
            continue
        began = time.monotonic()
        code = run(command)
        print(
            f"[{number}/{len(found)}] {time.monotonic() - began:.1f} s, exit code {code}",
            flush=True,
        )
        if code:
            failed.append(line)
    if failed:
        sys.exit("\n".join([f"{len(failed)} of {len(found)} commands failed:", *failed]))


if __name__ == "__main__":
    main()
