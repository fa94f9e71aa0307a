"""The exam as a whole: graded, kept, resumed, killed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.evaluation.candidates import Answered, EndpointCandidate, MethodCandidate
from manyhands.evaluation.grading import Grading
from manyhands.evaluation.pair import pair_of
from manyhands.evaluation.record import (
    Header,
    Record,
    RecordFile,
    file_of,
    read_results,
    result_files,
)
from manyhands.evaluation.report import write_report
from manyhands.evaluation.run import MOST_UNGRADED, Exam, Moment, checked_samples, examine
from manyhands.evaluation.voices import EndpointVoice, EngineVoice
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import SoloSettings
from manyhands.tasks.graders import Score
from manyhands.tasks.task import Sample
from manyhands.text import Text
from tests.evaluation.doubles import Doubles
from tests.evaluation.small import Says, header
from tests.text.small_tokenizers import byte_level

RIGHT = {f"d{n}": str(2 * n) for n in range(1, 9)}


class Here(Grading):
    """Grades in this process; the other one has tests of its own."""

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        return Doubles().grade(sample, answer, text)


def take(path: Path, exam: Exam, head: Header | None = None) -> list[Moment]:
    with (
        Here(Doubles(), graders=1) as grading,
        closing(RecordFile(path, head or header())) as file,
    ):
        return list(examine(exam, file, grading))


def records(path: Path) -> list[Record]:
    return list(read_results(path).records)


def test_every_sample_is_graded_at_every_budget(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    says = Says(lambda name: "2", budgets=(4, 8))
    moments = take(path, Exam(Doubles().samples(), says, (4, 8)), header(budgets=(4, 8)))
    assert [(m.done, m.total) for m in moments] == [(n, 4) for n in range(5)]
    assert moments[-1].accuracy == 0.25
    assert [r.value(4) for r in records(path)] == [1, 0, 0, 0]
    assert records(path)[1].scores["8"]["explanation"] == "expected 4"
    assert sum(r.elapsed for r in records(path)) > 0


def test_a_budget_without_an_answer_is_no_wrong_answer(tmp_path: Path) -> None:
    """Settings without snapshots, say: nothing is put on record for it."""
    path = tmp_path / "x.jsonl"
    with pytest.raises(
        InvalidRequest, match=r"at 4, 6 passes, .* gives them at 8\nhint: "
    ) as caught:
        take(path, Exam(Doubles().samples(), Says(RIGHT.get), (4, 6, 8)), header(budgets=(4, 6, 8)))
    assert "as `snapshots`" in caught.value.hint
    exam = Exam(Doubles().samples(), Says(RIGHT.get, budgets=(4, 6, 8)), (4, 6, 8))
    assert take(path, exam, header(budgets=(4, 6, 8)))[0].known == 0


@pytest.mark.parametrize(
    "budgets", [(), (8, 4), (8, 8), (0, 8), (-1,), (5.5, 8), ("5",), (True, 8), 8, None]
)
def test_budgets_of_an_exam_rise(budgets: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="each above the one before"):
        Exam(Doubles().samples(), Says(RIGHT.get), budgets)


@pytest.mark.parametrize(
    "budgets", [[4, 8], range(4, 9, 4), np.array([4, 8]), (4 * n for n in (1, 2))]
)
def test_budgets_may_be_listed_in_any_way(budgets: Any, tmp_path: Path) -> None:
    exam = Exam(Doubles().samples(), Says(RIGHT.get, budgets=(4, 8)), budgets)
    assert exam.budgets == (4, 8)
    moments = take(tmp_path / "x.jsonl", exam, header(budgets=(4, 8)))
    assert moments[-1].record is not None
    assert [*moments[-1].record.scores] == ["4", "8"]


@pytest.mark.parametrize("wrong", [None, 5, "ab", [None], [Sample("a", "?", 1), "b"], ()])
def test_what_are_no_samples_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="samples"):
        Exam(wrong, Says(RIGHT.get), (8,))


def test_samples_that_could_not_be_kept_are_refused_before_the_first_is_asked() -> None:
    for wrong, said in (
        (Sample("a", "?", b"3"), "'a' of the exam cannot be kept as JSON"),
        (Sample("b", "?", 3), "'b' of the exam is there twice"),
        (Sample("c", " ", 3), "'c' of the exam has no question"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            Exam([Sample("b", "?", 3), wrong], Says(RIGHT.get), (8,))


def test_gold_answers_may_hold_numbers_of_other_libraries(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    samples = [Sample("d1", "Twice 1?", np.int64(2)), Sample("d2", "?", np.arange(2))]
    for known in (0, 2):  # and the same ones are not asked again
        assert take(path, Exam(samples, Says(RIGHT.get), (8,)))[0].known == known
    assert [(r.gold, r.value(8)) for r in records(path)] == [(2, 1.0), ([0, 1], 0.0)]


def test_what_is_no_candidate_is_refused() -> None:
    wrong: Any = None
    with pytest.raises(InvalidRequest, match="the candidate of an exam is of type NoneType"):
        Exam(Doubles().samples(), wrong, (8,))
    for repeats in (0, 1.5, "x", True):
        with pytest.raises(InvalidRequest, match="repeats is"):
            Exam(Doubles().samples(), Says(RIGHT.get), (8,), repeats)  # type: ignore[arg-type]


def test_a_candidate_asks_at_least_one_question_at_a_time() -> None:
    """With none at a time it gave no answers, and said nothing."""
    spec = RunSpec(METHODS["sequential"], SoloSettings(), TeamPrompt())
    nobody: Any = None
    for concurrency in (0, -1, 1.5, "x"):
        for make in (
            lambda many: MethodCandidate(nobody, nobody, spec, many),
            lambda many: EndpointCandidate(nobody, 64, concurrency=many),
            lambda many: EngineVoice(nobody, nobody, spec, many),
            lambda many: EndpointVoice(nobody, many),
        ):
            with pytest.raises(InvalidRequest, match="concurrency is"):
                make(concurrency)
    with pytest.raises(InvalidRequest, match="the spec of a candidate is of type NoneType"):
        MethodCandidate(nobody, nobody, nobody)
    with pytest.raises(InvalidRequest, match="a NoneType was given as the text of a candidate"):
        MethodCandidate(nobody, nobody, spec)
    unasked: Any = Doubles().samples()
    with pytest.raises(InvalidRequest, match="a Sample was given as a question of an exam"):
        next(MethodCandidate(nobody, Text(byte_level()), spec).answered(unasked))


def test_files_may_be_named_by_a_text(tmp_path: Path) -> None:
    path = file_of(str(tmp_path), "doubles", "x")
    with Here(Doubles()) as grading, closing(RecordFile(str(path), header())) as file:
        assert list(examine(Exam(Doubles().samples(), Says(RIGHT.get), (8,)), file, grading))
    assert result_files(str(tmp_path)) == [path]
    assert len(read_results(str(path)).records) == 4
    assert write_report(str(tmp_path), str(tmp_path / "report.html"))[0].exists()
    assert pair_of(str(path), str(path)).comparisons


def test_samples_may_come_from_a_generator(tmp_path: Path) -> None:
    """All of them are asked, also those that were looked at before."""

    class Generated(Doubles):
        def samples(self) -> Any:
            yield from super().samples()

    task = Generated()
    for samples in (checked_samples(task), task.samples()):
        assert len(Exam(samples, Says(RIGHT.get), (8,)).samples) == 4
    moments = take(tmp_path / "x.jsonl", Exam(checked_samples(task), Says(RIGHT.get), (8,), 2))
    assert (moments[-1].done, moments[-1].accuracy) == (8, 1.0)


def test_what_is_on_record_is_not_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    take(path, Exam(Doubles(2).samples(), Says(RIGHT.get), (8,)))
    before = path.read_bytes()
    says = Says(RIGHT.get)
    moments = take(path, Exam(Doubles(5).samples(), says, (8,), repeats=2))
    assert (moments[0].done, moments[0].known, moments[-1].done) == (2, 2, 10)
    assert says.asked == [("d3", 0), ("d4", 0), ("d5", 0)] + [(f"d{n}", 1) for n in range(1, 6)]
    assert path.read_bytes().startswith(before)


def test_failures_count_and_can_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    answers = {**RIGHT, "d2": None}
    moments = take(path, Exam(Doubles().samples(), Says(answers.get), (8,)))
    assert (moments[-1].num_failures, moments[-1].accuracy) == (1, 0.75)
    (failed,) = [r for r in records(path) if r.error]
    assert failed.error == "ManyhandsError: no room"
    assert failed.value(8) == 0
    says = Says(RIGHT.get)
    exam = Exam(Doubles().samples(), says, (8,))
    assert take(path, exam)[-1].num_failures == 1
    assert says.asked == []
    assert take(path, replace(exam, retry=True))[-1].num_failures == 0
    assert says.asked == [("d2", 0)]
    assert len(records(path)) == 4


def test_a_grader_that_fails_costs_one_sample(tmp_path: Path) -> None:
    answers = {**RIGHT, "d1": "hang", "d3": "raise"}
    path = tmp_path / "x.jsonl"
    with (
        Grading(Doubles(), seconds=0.5, graders=1) as grading,
        closing(RecordFile(path, header())) as file,
    ):
        exam = Exam(Doubles(3).samples(), Says(answers.get), (8,))
        moments = list(examine(exam, file, grading))
    assert moments[-1].num_failures == 2
    first, second, third = records(path)
    assert "has not answered within 0.5 s" in (first.error or "")
    assert "raised RuntimeError" in (third.error or "")
    assert (second.error, second.value(8)) == (None, 1.0)
    assert first.scores["8"]["explanation"] == first.error
    assert (first.value(8), first.answer) == (0.0, "hang")


class Asks(Says):
    """Tells how many questions were asked by now, beyond which a grader may wait."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.has_gone_on = Event()

    def answered(self, asked: Any) -> Iterator[Answered]:
        for number, answered in enumerate(super().answered(asked)):
            if number == 2:
                self.has_gone_on.set()
            yield answered


def test_answers_are_graded_while_the_others_are_given(tmp_path: Path) -> None:
    """A slow grader would hold up the passes of all runs; with one, records have the order of the answers."""
    candidate = Asks(RIGHT.get)

    class Waits(Grading):
        def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
            assert candidate.has_gone_on.wait(20), "the candidate waits for the grader"
            return Doubles().grade(sample, answer, text)

    path = tmp_path / "x.jsonl"
    with Waits(Doubles(), graders=1) as grading, closing(RecordFile(path, header())) as file:
        *_, last = examine(Exam(Doubles().samples(), candidate, (8,)), file, grading)
    assert (last.done, last.accuracy) == (4, 1.0)
    assert [record.sample for record in records(path)] == ["d1", "d2", "d3", "d4"]


def test_an_answer_is_on_record_while_the_next_one_is_awaited(tmp_path: Path) -> None:
    """It may take minutes, and the program may be killed meanwhile."""
    path = tmp_path / "x.jsonl"

    class Slow(Says):
        def answered(self, asked: Any) -> Iterator[Answered]:
            for number, answered in enumerate(super().answered(asked)):
                until = time.monotonic() + 20
                while len(records(path)) < number and time.monotonic() < until:
                    time.sleep(0.01)
                assert len(records(path)) == number
                yield answered

    with Here(Doubles()) as grading, closing(RecordFile(path, header())) as file:
        *_, last = examine(Exam(Doubles().samples(), Slow(RIGHT.get), (8,)), file, grading)
    assert last.done == 4


def test_a_candidate_is_not_far_ahead_of_its_grader(tmp_path: Path) -> None:
    given = 0
    ahead: list[int] = []

    class Counts(Here):
        def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
            time.sleep(0.005)
            ahead.append(given - len(ahead))
            return super().grade(sample, answer, text)

    def answer(name: str) -> str:
        nonlocal given
        given += 1
        return "2"

    with (
        Counts(Doubles(), graders=1) as grading,
        closing(RecordFile(tmp_path / "x", header())) as file,
    ):
        *_, last = examine(Exam(Doubles(60).samples(), Says(answer), (8,)), file, grading)
    assert last.done == 60
    assert MOST_UNGRADED - 2 <= max(ahead) <= MOST_UNGRADED + 2


@pytest.mark.parametrize("graders", [1, 2])
def test_an_exam_that_ends_early_waits_for_no_grade_and_goes_on(
    tmp_path: Path, graders: int
) -> None:
    path, began = tmp_path / "x.jsonl", 0.0
    hangs = {"d3": "hang"} if graders == 1 else dict.fromkeys(("d3", "d4", "d5"), "hang")
    says = Says({**RIGHT, **hangs}.get)
    with Grading(Doubles(), graders=graders) as grading:
        with closing(RecordFile(path, header())) as file:
            moments = examine(Exam(Doubles(6).samples(), says, (8,)), file, grading)
            while next(moments).done < 2:
                pass
            began = time.monotonic()
            moments.close()
            assert time.monotonic() - began < 30  # of the 60 that a grade hangs
        assert sorted(record.sample for record in records(path)) == ["d1", "d2"]
        says = Says(RIGHT.get)
        with closing(RecordFile(path, header())) as file:
            *_, last = examine(Exam(Doubles(6).samples(), says, (8,)), file, grading)
    assert (last.done, last.accuracy, last.num_failures) == (6, 1.0, 0)
    assert says.asked == [(f"d{n}", 0) for n in range(3, 7)]


def test_an_answer_is_on_record_while_a_slow_one_before_it_is_graded(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"

    class First(Here):
        def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
            until = time.monotonic() + 20
            while sample.id == "d1" and len(records(path)) < 3 and time.monotonic() < until:
                time.sleep(0.01)
            return super().grade(sample, answer, text)

    with First(Doubles(), graders=2) as grading, closing(RecordFile(path, header())) as file:
        *moments, last = examine(Exam(Doubles().samples(), Says(RIGHT.get), (8,)), file, grading)
    assert [record.sample for record in records(path)] == ["d2", "d3", "d4", "d1"]
    assert [moment.done for moment in moments] == [0, 1, 2, 3]
    assert (last.done, last.accuracy) == (4, 1.0)


def test_a_source_that_was_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    take(path, Exam(Doubles().samples(), Says(RIGHT.get), (8,)))
    changed = [replace(s, gold=0) if s.id == "d2" else s for s in Doubles().samples()]
    with pytest.raises(InvalidRequest, match="'d2' has another question or gold"):
        take(path, Exam(changed, Says(RIGHT.get), (8,)))


@dataclass(frozen=True)
class Given(Doubles):
    given: tuple[Sample, ...] = ()

    def samples(self) -> Sequence[Sample]:
        return self.given


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ((), "has no samples"),
        ((Sample("a", "q", 1), Sample("a", "r", 2)), "'a' of the task doubles is there twice"),
        ((Sample("", "q", 1),), "has no id"),
        ((Sample("a", " ", 1),), "has no question"),
        ((Sample("a", "q", {1, 2}),), "cannot be kept as JSON"),
    ],
)
def test_samples_that_make_no_exam(samples: tuple[Sample, ...], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        checked_samples(Given(given=samples))


def test_a_full_disk_loses_nothing_graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write, room = tmp_path / "x.jsonl", os.write, 1800

    def limited(file: int, content: bytes) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(28, "No space left on device")
        written = write(file, content[:room])
        room -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", limited)
        with pytest.raises(OutputFailed, match="No space left"):
            take(path, Exam(Doubles(8).samples(), Says(RIGHT.get), (8,)))
    kept = records(path)
    assert 0 < len(kept) < 8
    says = Says(RIGHT.get)
    take(path, Exam(Doubles(8).samples(), says, (8,)))
    assert len(says.asked) == 8 - len(kept)
    assert records(path)[: len(kept)] == kept


def test_what_a_record_costs_does_not_grow_with_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the engine waits longer behind each: 4 000 took 5.4 s of the exam, and take 0.3 now (two cores, not committed)."""
    looks = 0
    value = Record.value

    def counted(record: Record, budget: int) -> float:
        nonlocal looks
        looks += 1
        return value(record, budget)

    monkeypatch.setattr(Record, "value", counted)
    moments = take(tmp_path / "x.jsonl", Exam(Doubles(100).samples(), Says(lambda name: "2"), (8,)))
    assert (moments[-1].done, moments[-1].accuracy) == (100, 0.01)
    assert looks == 100


@pytest.mark.parametrize("kept", [(4, 8), (8,), (2, 4, 8)])
def test_records_for_other_budgets_are_refused_before_anything_is_asked(
    tmp_path: Path, kept: tuple[int, ...]
) -> None:
    """The values would be on record under budgets that no reader looks for."""
    says = Says(RIGHT.get, (2, 8))
    with pytest.raises(InvalidRequest, match=r"is for the budgets .*8, and the exam has 2, 8"):
        take(tmp_path / "x.jsonl", Exam(Doubles().samples(), says, (2, 8)), header(budgets=kept))
    assert says.asked == []
