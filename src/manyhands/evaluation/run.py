"""The exam: ask what has not been asked, grade, keep.

    task = make_task("arithmetic", TaskOptions(limit=64))
    exam = Exam(checked_samples(task), candidate, budgets=(100, 200))
    with closing(RecordFile(path, header)) as file, Grading(task) as grading:
        for moment in examine(exam, file, grading):
            print(moment.done, moment.total, moment.accuracy)

One run gives the whole curve of accuracy over budgets: a method is asked for its answer at the smaller
ones in passing (Hogwild! Inference, section 4.1). A question whose run failed, or whose grader did, has
the value 0 at every budget; it is on record with the reason and not asked again, unless that is wanted.
Every record is on the disk before the next one is looked at, so a run may be killed at any moment.

Answers are graded in threads beside the candidate, which goes on, and each is put on record as soon as it has its grade. Up to
`MOST_UNGRADED` answers wait for a grader. An exam that ends early has no record of those, and asks them again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.evaluation.candidates import Answered, Asked, Candidate
from manyhands.evaluation.grading import GraderFailed, Grading
from manyhands.evaluation.record import Record, RecordFile, keep_trace
from manyhands.schema.plain import to_plain
from manyhands.schema.setting import in_brief, is_whole, own_number, whole_number
from manyhands.tasks.graders import Score
from manyhands.tasks.task import Sample, Task, check_task

MOST_UNGRADED = 16  # answers; a candidate that is faster than its grader waits behind so many
_Graded = tuple[dict[str, dict[str, Any]], str | None]  # scores at all budgets; why it failed


@dataclass(frozen=True)
class Exam:
    """Samples, a candidate and budgets. `budgets` rise; `retry` asks again where a record says that it failed.

    The candidate gives an answer at each budget: of a method, the largest is its settings' budget, and the others are
    their snapshots. Samples and budgets may come from a generator.
    """

    samples: Sequence[Sample]
    candidate: Candidate
    budgets: tuple[int, ...]
    repeats: int = 1
    retry: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "repeats", whole_number("repeats", self.repeats, 1))
        object.__setattr__(self, "samples", _listed_samples(self.samples))
        object.__setattr__(self, "budgets", _rising(self.budgets))
        candidate: object = self.candidate
        if not callable(getattr(candidate, "answered", None)):
            raise InvalidRequest(
                f"the candidate of an exam is of type {type(candidate).__name__}; expected one that answers",
                hint="Make a MethodCandidate or an EndpointCandidate, or a class of your own with `answered`.",
            )


def _listed_samples(given: object) -> tuple[Sample, ...]:
    """The samples of an exam. InvalidRequest for none."""
    found = tuple(given) if isinstance(given, Iterable) else ()
    wrong = [each for each in found if not isinstance(each, Sample)]
    if wrong or not isinstance(given, Iterable):
        kind = type(wrong[0] if wrong else given).__name__
        raise InvalidRequest(
            f"an exam was given a {kind} where samples were expected",
            hint="Give those of a task: checked_samples(make_task(name, TaskOptions())).",
        )
    if not found:
        raise InvalidRequest(
            "an exam has no samples; expected one or more", hint="Look at its task and their limit."
        )
    _check_samples(found, "the exam")
    return found


def _rising(given: object) -> tuple[int, ...]:
    """The budgets of an exam, in Python's own numbers. InvalidRequest unless they rise."""
    found = tuple(map(own_number, given)) if isinstance(given, Iterable) else (given,)
    are_budgets = isinstance(given, Iterable) and all(
        is_whole(each) and each >= 1 for each in found
    )
    if not found or not are_budgets or any(one >= other for one, other in pairwise(found)):
        raise InvalidRequest(
            f"the budgets of an exam are {in_brief(found or given)}; expected one or more whole "
            "numbers, 1 or more, each above the one before",
            hint="Write budgets=(64, 128), for instance.",
        )
    return found


@dataclass(frozen=True)
class Moment:
    """How far an exam is, after one more record. `accuracy` is the mean value at the full budget."""

    record: Record | None  # None: nothing has been asked yet
    done: int
    known: int  # of these, so many were on record already
    total: int
    accuracy: float
    num_failures: int


def examine(exam: Exam, file: RecordFile, grading: Grading) -> Generator[Moment, None, None]:
    """Ask, grade and keep; yields at the beginning and after every record."""
    if file.budgets != exam.budgets:  # no reader would find the values
        raise InvalidRequest(
            f"{str(file.path)!r} is for the budgets {_listed(file.budgets)}, and the exam has {_listed(exam.budgets)}",
            hint="Give the header of its records the budgets of the exam.",
        )
    asked = [Asked(sample, repeat) for repeat in range(exam.repeats) for sample in exam.samples]
    for one in asked:
        _check_same_question(one, file)
    missing = [one for one in asked if is_missing(file.records.get(one.key), exam.retry)]
    left = {one.key for one in missing}
    known = [file.records[one.key] for one in asked if one.key not in left]
    so_far = _SoFar(exam.budgets[-1], len(asked), known)
    yield so_far.moment()
    most = MOST_UNGRADED + grading.graders - 1
    pending: list[Future[Record]] = []
    with grading.beside() as threads:
        keeper = _Keeper(exam, file, grading)
        for answered in exam.candidate.answered(missing):
            pending.append(threads.submit(keeper.keep, answered))
            for future in _ended(pending, most):
                yield so_far.with_one_more(future.result())
        for future in _ended(pending, 0):
            yield so_far.with_one_more(future.result())


def _ended(pending: list[Future[Record]], most: int) -> Iterator[Future[Record]]:
    """Takes futures that have ended out of `pending`, and waits for more until it has `most` at most."""
    while pending:
        wait(pending, None if len(pending) > most else 0, FIRST_COMPLETED)
        done = [future for future in pending if future.done()]
        if not done:
            return
        pending[:] = [future for future in pending if future not in done]
        yield from done


class _Keeper:
    """Grades answers and puts them on record at once, in threads beside the exam: the next answer may be long in coming."""

    def __init__(self, exam: Exam, file: RecordFile, grading: Grading) -> None:
        self.exam, self.file, self.grading = exam, file, grading
        self.before = time.perf_counter()
        self._lock = Lock()  # of the file, and of what follows from the order of its lines

    def keep(self, answered: Answered) -> Record:
        """The record of an answer, on the disk. Raises CancelledError, and keeps nothing, where the exam has ended meanwhile."""
        scores, failure = _graded(answered, self.exam.budgets, self.grading)
        with self._lock:
            if self.grading.is_given_up:
                raise CancelledError
            now = time.perf_counter()
            record = _record(answered, scores, failure, now - self.before)
            self.before = now
            if answered.trace and failure is None:
                value = record.value(self.exam.budgets[-1])
                keep_trace(self.file.path, record.key, answered.trace, value)
            self.file.append(record)
        return record


def checked_samples(task: Task) -> Sequence[Sample]:
    """The samples of a task, if an exam can be made of them; InvalidRequest says what is wrong."""
    check_task(task)
    samples = tuple(task.samples())
    if not samples:
        raise InvalidRequest(f"the task {task.name} has no samples", hint="look at its source")
    _check_samples(samples, f"the task {task.name}")
    return samples


def _check_samples(samples: Iterable[Sample], place: str) -> None:
    """Raise InvalidRequest for the first sample that cannot be asked, or kept on record."""
    seen: set[str] = set()
    for sample in samples:
        wrong = _fault(sample, seen)
        if wrong:
            raise InvalidRequest(f"sample {sample.id!r} of {place} {wrong}", hint="mend its source")
        seen.add(sample.id)


def _on_record(gold: Any) -> Any:
    """A gold answer as a file holds it. TypeError or ValueError where it cannot."""
    return json.loads(json.dumps(gold, default=_own))


def _own(value: Any) -> Any:
    """Numbers of other libraries as Python's own; TypeError for what JSON has no word for."""
    plain = value if isinstance(value, Set) else to_plain(value)
    if plain is value:
        raise TypeError(f"it holds a {type(value).__name__}")
    return plain


def is_missing(record: Record | None, retry: bool) -> bool:
    """Whether a sample still has to be asked."""
    return record is None or (retry and record.error is not None)


def _fault(sample: Sample, seen: set[str]) -> str:
    if not isinstance(sample.id, str) or not sample.id:
        return "has no id; expected a text"
    if sample.id in seen:
        return "is there twice: ids must differ"
    if not isinstance(sample.question, str) or not sample.question.strip():
        return "has no question"
    try:
        _on_record([sample.gold, dict(sample.facts)])
    except (TypeError, ValueError) as error:
        return f"cannot be kept as JSON: {error}"
    return ""


def _check_same_question(one: Asked, file: RecordFile) -> None:
    """The same id must mean the same question as when the file was begun."""
    record = file.records.get(one.key)
    if record is None:
        return
    gold = _on_record(one.sample.gold)
    if (record.question, record.gold) != (one.sample.question, gold):
        raise InvalidRequest(
            f"sample {one.sample.id!r} has another question or gold answer than {str(file.path)!r} "
            "has on record for it",
            hint="the source was changed; begin a new file with --label or --out",
        )


def _graded(answered: Answered, budgets: Sequence[int], grading: Grading) -> _Graded:
    """The scores at all budgets, and why it failed if it did."""
    if answered.error is not None:
        reason = f"{type(answered.error).__name__}: {answered.error}"
        return _failed(answered, budgets, reason), reason
    unseen = [budget for budget in budgets if budget not in answered.answers]
    if unseen:  # no answer is known there, which is no wrong one
        raise InvalidRequest(
            f"the exam asks for answers at {_listed(unseen)} passes, and the candidate gives them at "
            f"{_listed(sorted(answered.answers))}",
            hint="Give the method's settings the largest budget as `budget`, and the others as `snapshots`.",
        )
    scores: dict[str, dict[str, Any]] = {}
    known: dict[tuple[str | None, str], Score] = {}  # many budgets have the same answer
    for budget in budgets:
        is_last = budget == budgets[-1]
        answer = answered.answers.get(budget)
        # Unfinished texts are not there to be read; a snapshot is its answer.
        text = answered.text if is_last else answer or ""
        try:
            if (answer, text) not in known:
                known[answer, text] = grading.grade(answered.asked.sample, answer, text)
        except GraderFailed as error:
            return _failed(answered, budgets, str(error)), str(error)
        scores[str(budget)] = _entry(answered, budget, known[answer, text])
    return scores, None


def _listed(budgets: Sequence[int]) -> str:
    return ", ".join(map(str, budgets)) or "none"


def _failed(answered: Answered, budgets: Sequence[int], reason: str) -> dict[str, dict[str, Any]]:
    return {str(budget): _entry(answered, budget, Score(0.0, None, reason)) for budget in budgets}


def _entry(answered: Answered, budget: int, score: Score) -> dict[str, Any]:
    return {
        "value": score.value,
        "extracted": score.extracted,
        "explanation": score.explanation,
        **answered.spent.get(budget, {}),
    }


def _record(
    answered: Answered, scores: dict[str, dict[str, Any]], failure: str | None, elapsed: float
) -> Record:
    sample = answered.asked.sample
    return Record(
        sample=sample.id,
        repeat=answered.asked.repeat,
        question=sample.question,
        gold=_on_record(sample.gold),
        answer=answered.answer,
        text=answered.text,
        finish_reason=answered.finish_reason,
        error=failure,
        forward_passes=answered.forward_passes,
        extra_passes=answered.extra_passes,
        tokens=answered.tokens,
        seconds=round(answered.seconds, 4),
        scores=scores,
        elapsed=round(elapsed, 4),
        memory=answered.memory,
        facts=sample.facts,
        steps=answered.steps,
        names=answered.names,
        writing=answered.writing,
        seed=answered.seed,
    )


class _SoFar:
    """The records that an exam has up to now, added up as they come: walking all of them behind each would take its time squared."""

    def __init__(self, budget: int, total: int, known: Sequence[Record]) -> None:
        self._budget, self._total, self._known = budget, total, len(known)
        self._done, self._value, self._num_failures = 0, 0.0, 0
        for record in known:
            self._add(record)

    def with_one_more(self, record: Record) -> Moment:
        """The moment behind this record."""
        self._add(record)
        return self.moment(record)

    def moment(self, record: Record | None = None) -> Moment:
        """The moment that is now."""
        return Moment(
            record,
            done=self._done,
            known=self._known,
            total=self._total,
            accuracy=self._value / self._done if self._done else 0.0,
            num_failures=self._num_failures,
        )

    def _add(self, record: Record) -> None:
        self._done += 1
        self._value += record.value(self._budget)
        self._num_failures += record.error is not None
