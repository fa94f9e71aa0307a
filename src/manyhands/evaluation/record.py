"""The files of an exam: one file per task and method, a Header and then one Record per sample.

    DIR/<task>/<label>.jsonl                          header, records
    DIR/<task>/judgements/<rubric>/<label>.jsonl      header, judgements (judge.py)
    DIR/<task>/traces/<label>/<sample>.<repeat>.jsonl one run's trace, graded (--traces)

A record holds everything that the report, a judge or a doubting reader wants to know: question and
gold, answer and text, what it cost, and a score for every budget. A run that failed is a record too:
`error` says why, and its value is 0 at every budget. If a failure is tried again, the new record
follows in the same file and counts instead; any other second record of a sample is a mistake.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from manyhands.errors import InvalidRequest, OutputFailed, place_or_room
from manyhands.replay.trace import SCORE
from manyhands.schema.lines import Format, Line, LineFile, read_lines
from manyhands.schema.plain import from_plain, plain_as, to_plain
from manyhands.schema.whole import write_whole
from manyhands.strategies.base import FinishedStep
from manyhands.strategies.run_spec import RunSpec

Key = tuple[str, int]  # sample id, repeat
Kind = TypeVar("Kind")
_LONGEST_NAME = 200  # characters of an id in a file's name, which may have 255 bytes, what `write_whole` adds included
_COUNTED = ("repeat", "forward_passes", "extra_passes", "tokens", "seconds", "elapsed")
_HUGE = 1e18  # more than any pass, token or second that can be counted
SCHEMA = 1
TRACES = "traces"  # the folder of an exam's traces, beside its records
EXAM_LINES = Format(
    "a file of an exam",
    line="a line of an exam",
    fields=("kind",),
    begins=b'{"schema": 1, "kind": "header"',
    schema=SCHEMA,
    hint="remove that line: what it stood for is asked again, the others are kept",
    hint_of_first="give a file of `manyhands eval`",
)


@dataclass(frozen=True)
class Header:
    """How the records of a file were made. `endpoint` is the address of another server.

    `fingerprint` stands for the loaded weights (`model/fingerprint.py`); an endpoint has none, and
    neither has a file that is older than this field. `thinking` is what was asked for; None: as the model thinks by itself.
    """

    task: str
    method: str
    label: str
    workers: int
    names: Sequence[str]
    settings: Mapping[str, Any]
    prompts: Mapping[str, Any]
    budgets: Sequence[int]
    model: str
    device: str = ""
    dtype: str = ""
    backend: str = ""
    weights: str = "auto"
    fingerprint: str | None = None
    thinking: str | None = None
    concurrency: int = 1
    task_options: Mapping[str, Any] = field(default_factory=dict)
    endpoint: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    command: str = ""

    @classmethod
    def of(cls, spec: RunSpec, **others: Any) -> Header:
        """The header of runs of this spec. `others` are the fields that it does not fill."""
        return cls(
            method=spec.method.name,
            workers=getattr(spec.settings, "workers", 0) or 1,
            names=spec.names,
            settings=to_plain(spec.settings),
            prompts=to_plain(spec.prompt),
            **others,
        )

    @classmethod
    def from_line(cls, line: Line) -> Header:
        """The header of a file; fields of a later version that we do not know are left alone.

        Raises KeyError, TypeError or ValueError for a line that is none.
        """
        found = _known(cls, line)
        if wrong := _fault_of(found.budgets):
            raise ValueError(wrong)
        return found


def _fault_of(budgets: Sequence[int]) -> str:
    """The fault of a header's budgets, empty if there is none. The last of them counts as the largest."""
    least = [0, *budgets]
    if budgets and all(one < other for one, other in pairwise(least)):
        return ""
    return (
        f"its budgets are {list(budgets)}; expected one or more, above 0, each above the one before"
    )


@dataclass(frozen=True)
class Record:
    """The result of one sample, in one repeat.

    `forward_passes` is None where they cannot be known (an endpoint). `seconds` is the time of the
    passes in which the sample took part, snapshots left out; with other samples in the same passes
    it is a latency under load. `elapsed` is the time of the whole exam since the record before, in
    seconds, so that all of them add up to its duration. `names` are those of workers that came on the
    way. `memory` holds peaks while the sample was under way: `kv_tokens` and `kv_bytes` of all runs in
    the cache, `allocated_bytes` of a GPU. A score has value, extracted and explanation, and what had
    been spent by then: passes, tokens, seconds. `writing` is every token as (worker, forward pass,
    text), kept only where it was asked for. `seed` is that of the sample's draws; None where the candidate tells none, and in
    records of releases in which all samples of a repeat had the seed of the exam.
    """

    sample: str
    repeat: int
    question: str
    gold: Any
    answer: str | None
    text: str
    finish_reason: str
    error: str | None
    forward_passes: int | None
    extra_passes: int
    tokens: Sequence[int]
    seconds: float
    scores: Mapping[str, Mapping[str, Any]]
    elapsed: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    steps: Sequence[Mapping[str, Any]] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    writing: Sequence[Sequence[Any]] = ()
    judgements: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seed: int | None = None

    @property
    def key(self) -> Key:
        """Which sample, which repeat."""
        return self.sample, self.repeat

    def value(self, budget: int) -> float:
        """How right the answer is at this budget, 0 to 1."""
        return float(self.scores[str(budget)]["value"])

    def spent(self, budget: int, what: str) -> float | None:
        """Passes, tokens or seconds spent by this budget; None where that is not known."""
        found = self.scores[str(budget)].get(what)
        return None if found is None else float(found)

    def line(self) -> Line:
        """As it stands in the file; what is empty is left out. InvalidRequest for a value that would not come back."""
        try:
            written = plain_as(Record, self)
        except TypeError as error:
            raise InvalidRequest(
                f"the record of sample {self.sample!r} cannot be kept: {error}",
                hint="Let the candidate give texts and numbers as `Answered` annotates them.",
            ) from error
        optional = ("memory", "facts", "steps", "names", "writing", "judgements")
        kept = {k: v for k, v in written.items() if k not in optional or v}
        if self.seed is None:
            del kept["seed"]
        return {"kind": "record", **kept}

    @classmethod
    def from_line(cls, path: Path, number: int, line: Line, budgets: Sequence[int]) -> Record:
        """A line of a file, looked at closely: a wrong record must not pass for a result."""

        def read() -> Record:
            if line.get("kind") != "record":
                raise ValueError(f"its kind is {line.get('kind')!r}, expected 'record'")
            record = _known(cls, line)
            for budget in budgets:
                score = _known(_Score, dict(record.scores[str(budget)]))
                if not 0 <= score.value <= 1:
                    raise ValueError(f"its value at budget {budget} is not within 0 and 1")
                _check_costs(f"at budget {budget}", score, ("passes", "tokens", "seconds"))
            _check_costs("", record, _COUNTED)
            from_plain(tuple[FinishedStep, ...], record.steps, "steps")
            from_plain(tuple[tuple[int, int, str], ...], record.writing, "writing")
            return record

        found: Record = EXAM_LINES.checked(path, number, read)
        return found


@dataclass(frozen=True)
class _Score:
    """The fields that every score has, and the optional ones."""

    value: float
    explanation: str = ""
    extracted: Any = None
    passes: float | None = None
    tokens: float | None = None
    seconds: float | None = None


def _known(kind: type[Kind], line: Line) -> Kind:
    """The fields of a line that its class knows, looked at closely."""
    needed = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]  # type: ignore[arg-type]
    missing = [name for name in needed if name not in line]
    if missing:
        raise ValueError(f"without {', '.join(missing)} it is incomplete")
    known = {f.name: line[f.name] for f in fields(kind) if f.name in line}  # type: ignore[arg-type]
    for name, value in known.items():
        if name not in (
            "gold",
            "facts",
            "settings",
            "prompts",
            "task_options",
        ):  # values of any kind
            _check_numbers(value, name)
    found: Kind = from_plain(kind, known)
    return found


def _check_costs(where: str, held: Record | _Score, names: Sequence[str]) -> None:
    """Raise ValueError for what is counted or timed and lies below 0."""
    for name in names:
        found = getattr(held, name)
        if any(value < 0 for value in (found if isinstance(found, Sequence) else [found or 0])):
            raise ValueError(f"{name} {where}".strip() + f" is {found}; expected 0 or more")


def _check_numbers(value: Any, name: str) -> None:
    """Raise ValueError for a number with which no sum and no mean can be made."""
    if isinstance(value, int | float) and not -_HUGE < value < _HUGE:
        raise ValueError(f"{name} holds {value if isinstance(value, float) else 'a huge number'}")
    if isinstance(value, Mapping):
        value = list(value.values())
    for item in value if isinstance(value, list | tuple) else ():
        _check_numbers(item, name)


@dataclass(frozen=True)
class Results:
    """A whole file, read."""

    path: Path
    header: Header
    records: tuple[Record, ...]


class RecordFile:
    """The records of one method on one task, open for more. `records` are those there are."""

    def __init__(self, path: str | Path, header: Header) -> None:
        self.path = path = Path(path)
        if wrong := _fault_of(header.budgets):
            raise InvalidRequest(
                f"a header cannot be kept: {wrong}", hint="Give those of the exam, rising."
            )
        self.budgets = tuple(header.budgets)
        self._file = LineFile(
            path, EXAM_LINES, elsewhere="choose another --label or --out", make_folder=True
        )
        try:
            lines = self._file.resume(header_line(to_plain(header)))
            self.records = _by_key(path, lines, header.budgets)
        except BaseException:
            self._file.close()
            raise

    @property
    def num_torn(self) -> int:
        """Bytes of a last record that was cut short, and is asked again."""
        return self._file.num_torn

    def append(self, record: Record) -> None:
        """Keep one more; it is safe when this returns."""
        self._file.append(record.line())
        self.records[record.key] = record

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()


def read_results(path: str | Path) -> Results:
    """One file of an exam. InvalidRequest, with the line, if it is not in order."""
    line, *lines = read_lines(path, EXAM_LINES)
    path = Path(path)
    header: Header = EXAM_LINES.checked(path, 1, lambda: Header.from_line(line))
    return Results(path, header, tuple(_by_key(path, lines, header.budgets).values()))


def keep_trace(records: Path, key: Key, lines: Sequence[Line], value: float) -> Path:
    """Keep a run's trace with the score of its answer: what it wrote can be learned (`replay/lessons.py`).

    It is there as a whole or not at all: a training would take half a run for all of it, with the score of the whole.
    Raises OutputFailed where it cannot be written.
    """
    path = trace_path(records, key)
    header, *others = lines
    told = "".join(json.dumps(line) + "\n" for line in ({**header, SCORE: value}, *others))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, told)
    except OSError as error:
        raise OutputFailed(
            f"{str(path)!r} cannot be written: {error.strerror or error}",
            hint=f"{place_or_room(error)}, and the same command goes on",
        ) from error
    return path


def trace_path(records: Path, key: Key) -> Path:
    """Where the trace of a sample lies, if it was kept; `records` is the method's file.

    Ids are of any characters and any length, names of files are not: a long one ends in a digest of the id.
    """
    sample, repeat = key
    name = quote(sample, safe="", errors="surrogatepass")
    if len(name) > _LONGEST_NAME:
        digest = sha256(sample.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        name = f"{name[: _LONGEST_NAME - 17]}-{digest}"
    return records.parent / TRACES / records.stem / f"{name}.{repeat}.jsonl"


def header_line(facts: Mapping[str, Any]) -> Line:
    """The first line of a file of an exam."""
    return {"schema": SCHEMA, "kind": "header", **facts}


def result_files(folder: str | Path) -> list[Path]:
    """The files of an exam under `folder`, which may also be that of one task."""
    folder = Path(folder)
    return sorted({*folder.glob("*/*.jsonl"), *folder.glob("*.jsonl")})


def file_of(folder: str | Path, task: str, label: str) -> Path:
    """Where the records of one method on one task lie."""
    name = os.fsdecode(
        f"{name_for_files(label)}.jsonl".encode()
    )  # in every locale the bytes of UTF-8
    return Path(folder) / name_for_files(task) / name


def _by_key(path: Path, lines: Iterable[Line], budgets: Sequence[int]) -> dict[Key, Record]:
    """Each sample's record; a second one is right only after a failure, and then it counts, with the time of both."""
    found: dict[Key, Record] = {}
    for number, line in enumerate(lines, start=2):
        record = Record.from_line(path, number, line, budgets)
        before = found.get(record.key)
        if before is not None and before.error is None:
            again = f"sample {record.sample!r}, repeat {record.repeat}"
            raise EXAM_LINES.malformed(path, number, f"holds a second record of {again}")
        if before is not None:
            record = replace(record, elapsed=before.elapsed + record.elapsed)
        found[record.key] = record
    return found


def name_for_files(name: str) -> str:
    """A task's name or a label as it stands in the name of a file or a folder."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "unnamed"
