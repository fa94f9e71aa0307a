"""Everything that writes a file of lines, in one form: write the numbers 0, 1, 2, ... and read them again.

    USERS["records"].write(path, 5, told.append)    goes on behind what the file holds; tells each number
    USERS["records"].read(path)                     the numbers in the file, of its whole lines

As a program, for a test that kills it: `python -m tests.schema.users` reads lines `[NAME, FILE, COUNT, PIPE]`. For each of them
a copy of it writes, which says each number into the pipe as soon as the line is in the file. It tells the copy's process and,
when that has ended, how.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from manyhands.cli.batch_files import Input, Output
from manyhands.cli.output import Notes, TraceFile
from manyhands.errors import BrokenTrace
from manyhands.evaluation.judge import RUBRICS, Judging, judge, votes_file
from manyhands.evaluation.record import (
    EXAM_LINES,
    Header,
    Record,
    RecordFile,
    Results,
    read_results,
)
from manyhands.evaluation.voices import Ballot
from manyhands.prompts.judging import JudgingPrompt
from manyhands.replay.trace import TRACE_LINES
from manyhands.schema.lines import read_lines

Tell = Callable[[int], object]


@dataclass(frozen=True)
class User:
    """One that writes lines. `prepare` makes what a first start finds, and gives its numbers.

    `is_log`: a training takes back what its checkpoint does not know, and makes it again; and of a step that
    could be saved and not be logged, no line is written later.
    """

    write: Callable[[Path, int, Tell], None]
    read: Callable[[Path], list[int]]
    is_log: bool = False
    prepare: Callable[[Path, int], list[int]] = lambda path, count: []


PADDING = "x" * 20_000  # a line so long that a kill may well tear it


# -- traces: what was cut short is copied into the file that goes on ------------------------------------


def write_trace(path: Path, count: int, tell: Tell) -> None:
    old = path.with_suffix(".old")
    known = [
        {"kind": "header", "schema": 1},
        *[{"kind": "pass", "n": n} for n in read_trace(path)],
    ]
    if path.exists():
        path.replace(old)
    with TraceFile(path, Notes()) as file:
        for line in known:
            file.write(line)
        for number in range(len(known) - 1, count):
            file.write({"kind": "pass", "n": number, "padding": PADDING})
            if file.failure is None:
                tell(number)
    if file.failure is not None:
        raise file.failure


def read_trace(path: Path) -> list[int]:
    """The content of the file; before its first pass comes, in the one that it follows."""
    for place in (path, path.with_suffix(".old")):
        try:
            return (
                [line["n"] for line in read_lines(place, TRACE_LINES)[1:]] if place.exists() else []
            )
        except BrokenTrace:
            continue
    return []


# -- answers of a batch ----------------------------------------------------------------------------------


def _answer(number: int, error: str | None = None) -> dict[str, object]:
    name = str(number)
    line = {"id": f"batch_req_{name}", "custom_id": name, "response": {"padding": PADDING}}
    return {**line, "error": error, "fingerprint": name}


def _input(count: int) -> Input:
    return Input(fingerprints={str(number): str(number) for number in range(count)})


def write_answers(path: Path, count: int, tell: Tell, *, retry: bool = False) -> None:
    with Output(path, _input(count), retry_failures=retry) as output:
        for number in range(count):
            if str(number) not in output.done:
                output.write([_answer(number)])
                tell(number)


def prepare_failures(path: Path, count: int) -> list[int]:
    """All but number 0 have failed."""
    lines = [_answer(0), *[_answer(number, "it failed") for number in range(1, count)]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return [0]


def write_failures_again(path: Path, count: int, tell: Tell) -> None:
    """Failed requests are taken out, and answered now."""
    write_answers(path, count, tell, retry=True)


def read_answers(path: Path) -> list[int]:
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    lines = [json.loads(line) for line in whole]
    return [int(line["custom_id"]) for line in lines if line["error"] is None]


# -- records and votes of an exam ------------------------------------------------------------------------

HEADER = Header("doubles", "m", "m", 1, ("Alice", "Bob"), {}, {}, (8,), "none")


def _record(number: int) -> Record:
    scores = {"8": {"value": 1.0, "extracted": "1", "explanation": ""}}
    told = (f"d{number}", 0, "question", 1, "1", PADDING, "stop", None, 8, 0, (8,), 0.1)
    return Record(*told, scores)


def write_records(path: Path, count: int, tell: Tell) -> None:
    with closing(RecordFile(path, HEADER)) as file:
        for number in range(count):
            record = _record(number)
            if record.key not in file.records:
                file.append(record)
                tell(number)


def read_records(path: Path) -> list[int]:
    whole = path.exists() and b"\n" in path.read_bytes()
    return [int(record.sample[1:]) for record in read_results(path).records] if whole else []


@dataclass(frozen=True)
class Votes:
    """A judge who always says 3, at length."""

    tell: Tell

    def replies(self, asked: Iterable[tuple[Ballot, str]]) -> Iterator[tuple[Ballot, str]]:
        told: list[int] = []
        for ballot, _ in asked:
            for number in told:  # a user that asks on has kept it
                self.tell(number)
            told = [int(ballot[0][0][1:])]
            yield ballot, f"{PADDING} \\boxed{{3}}"
        for number in told:
            self.tell(number)


def write_votes(path: Path, count: int, tell: Tell) -> None:
    results = Results(path, HEADER, tuple(_record(number) for number in range(count)))
    voice = Votes(tell)
    list(judge(Judging(RUBRICS["quality"], JudgingPrompt(), voice, {"judge": "x"}), results))


def read_votes(path: Path) -> list[int]:
    place = votes_file(path, "quality")
    whole = place.exists() and b"\n" in place.read_bytes()
    lines = read_lines(place, EXAM_LINES)[1:] if whole else []
    return [int(line["sample"][1:]) for line in lines]


# -- the log of a training -------------------------------------------------------------------------------


def write_log(path: Path, count: int, tell: Tell) -> None:
    """A real training whose steps teach nothing; its log is `log.jsonl` beside `path`."""
    import torch

    from manyhands.replay.gradients import Learned
    from manyhands.replay.settings import TrainSettings
    from manyhands.replay.train import Training

    class Idle(Training):
        def _load(self) -> Generator[Any, None, None]:
            return (None for _ in repeat(None))

        def _learn(self, parts: object) -> Learned:
            self.step += 1
            return Learned(torch.ones(6, dtype=torch.float64), num_tokens=1)

    adapter: Any = SimpleNamespace(model=torch.nn.Linear(1, 1), device=torch.device("cpu"))
    lessons: Any = None
    settings = TrainSettings(steps=count, log_every=1, checkpoint_minutes=0.0)
    training = Idle(adapter, lessons, settings, path.parent)
    training.run(lambda progress: tell(progress.step - 1))  # type: ignore[arg-type]


def read_log(path: Path) -> list[int]:
    place = path.with_name("log.jsonl")
    whole = place.read_bytes().split(b"\n")[:-1] if place.exists() else []
    return [json.loads(line)["step"] - 1 for line in whole]


USERS = {
    "trace": User(write_trace, read_trace),
    "answers": User(write_answers, read_answers),
    "failures": User(write_failures_again, read_answers, prepare=prepare_failures),
    "records": User(write_records, read_records),
    "votes": User(write_votes, read_votes),
    "log": User(write_log, read_log, is_log=True),
}


def write_aloud(name: str, path: str, count: int, pipe: str) -> None:
    with open(pipe, "w") as said:
        USERS[name].write(Path(path), count, lambda number: print(number, file=said, flush=True))


if __name__ == "__main__":
    for line in sys.stdin:
        process = os.fork()
        if not process:
            try:
                write_aloud(*json.loads(line))
            finally:
                os._exit(0)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
