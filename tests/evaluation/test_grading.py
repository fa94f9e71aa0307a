"""A grader that hangs, dies or raises costs its own answer and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.evaluation.grading import (
    MOST_GRADERS,
    GraderFailed,
    Grading,
    usual_graders,
)
from manyhands.evaluation.run import checked_samples
from manyhands.schema.waits import LONGEST_WAIT
from manyhands.tasks.graders import Score
from tests.evaluation.doubles import Doubles, Meets


def only_process(grading: Grading) -> SpawnProcess:
    (grader,) = grading._all
    assert grader._process is not None
    return grader._process


def test_a_grader_that_misbehaves_is_replaced() -> None:
    task = Doubles()
    one, two = task.samples()[:2]
    with Grading(task, seconds=20) as grading:
        assert grading.grade(one, "2", "").value == 1
        with pytest.raises(GraderFailed, match="raised RuntimeError: cannot read this"):
            grading.grade(one, "raise", "")
        with pytest.raises(GraderFailed, match=r"gave the value 7\.0"):
            grading.grade(one, "seven", "")
        with pytest.raises(GraderFailed, match=r"returned a float, expected a Score"):
            grading.grade(one, "bare", "")
        with pytest.raises(
            GraderFailed, match=r"gave the value '1', expected a number from 0 to 1"
        ):
            grading.grade(one, "text", "")
        with pytest.raises(GraderFailed, match=r"process died \(exit code 3\)"):
            grading.grade(one, "die", "")
        with pytest.raises(GraderFailed, match=r"`extracted` of a score is b'2'; expected"):
            grading.grade(one, "bytes", "")
        assert grading.grade(one, "array", "") == Score(1.0, [0, 1], "two")  # type: ignore[arg-type]
        assert grading.grade(two, "4", "").explanation == "right"
        pid = only_process(grading).pid
        assert pid is not None
        grading.seconds = 0.3
        start = time.monotonic()
        with pytest.raises(GraderFailed, match=r"within 0\.3 s"):
            grading.grade(one, "hang", "")
        assert time.monotonic() - start < 30
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        grading.seconds = 20
        assert grading.grade(two, "4", "").value == 1


def test_a_program_that_cannot_be_imported_is_no_fault_of_an_answer(tmp_path: Path) -> None:
    """The process that grades imports the main file, where a program without its guard begins anew."""
    program = tmp_path / "mine.py"
    lines = [
        "from manyhands.evaluation.grading import Grading",
        "from tests.evaluation.doubles import Doubles",
        "task = Doubles()",
        "Grading(task).grade(task.samples()[0], '2', '')",
    ]
    program.write_text("\n".join(lines), encoding="utf-8")
    root = str(Path(__file__).parents[2])  # where `tests` lies
    found = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    said = "InvalidRequest: the process that grades ended before it was up (exit code 1)"
    assert said in found.stderr
    assert (
        'hint: Write it to a file, what it runs behind `if __name__ == "__main__":`' in found.stderr
    )


@pytest.mark.parametrize("given", [None, Doubles, "arithmetic", 5])
def test_what_is_no_task_is_refused(given: Any) -> None:
    for take in (Grading, checked_samples):
        with pytest.raises(InvalidRequest, match="was given as a task; expected an object"):
            take(given)


def test_a_grader_that_hangs_at_the_end_is_stopped() -> None:
    task = Doubles()
    with Grading(task) as grading:
        grading.grade(task.samples()[0], "2", "")
        process, (grader,) = only_process(grading), grading._all
        grader._start().send((task.samples()[0], "hang", ""))
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_grader_outlives_signals_that_end_the_exam(number: signal.Signals) -> None:
    """They reach the whole group, and an answer whose grader died counts as wrong."""
    task = Doubles()
    one = task.samples()[0]
    with Grading(task, seconds=20) as grading:
        grading.grade(one, "2", "")
        process = only_process(grading)
        assert process.pid is not None
        os.kill(process.pid, number)
        assert grading.grade(one, "2", "").value == 1
        assert only_process(grading) is process


def test_a_task_that_cannot_travel_is_refused() -> None:
    class Local(Doubles):
        pass

    with pytest.raises(InvalidRequest, match="cannot be sent to the process that grades"):
        Grading(Local())


@pytest.mark.parametrize("wrong", [0, -1, 3e6, 1e300, 10**400, float("nan"), True, "60"])
def test_seconds_that_a_pipe_cannot_wait(wrong: Any) -> None:
    """It counts milliseconds in 31 bits."""
    with pytest.raises(InvalidRequest, match="grader_seconds is"):
        Grading(Doubles(), seconds=wrong)


def test_the_longest_wait_of_a_grader() -> None:
    task = Doubles()
    with Grading(task, seconds=LONGEST_WAIT) as grading:
        assert grading.grade(task.samples()[0], "2", "").value == 1


def test_a_process_that_cannot_be_started_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script without `if __name__ == "__main__"`, which the grader's process runs once more."""

    def refuse(self: object) -> None:
        raise RuntimeError("an attempt has been made to start a new process")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", refuse)
    with pytest.raises(RuntimeError, match="start a new process"), Grading(Doubles()) as grading:
        grading.grade(Doubles().samples()[0], "2", "")


def test_answers_are_graded_by_several_processes_at_once(tmp_path: Path) -> None:
    """Each grade waits for the other one: one process alone would wait for ever."""
    task = Meets(folder=str(tmp_path))
    with Grading(task, seconds=60, graders=2) as grading, grading.beside() as threads:
        futures = [threads.submit(grading.grade, one, "2", "") for one in task.samples()[:2]]
        assert [future.result().value for future in futures] == [1, 1]
        assert len(grading._all) == 2


def test_one_of_several_graders_that_dies_costs_its_own_answer(tmp_path: Path) -> None:
    task = Meets(folder=str(tmp_path))
    one, two = task.samples()[:2]
    with Grading(task, seconds=60, graders=2) as grading:
        with grading.beside() as threads:
            dies, lives = (
                threads.submit(grading.grade, one, "die", ""),
                threads.submit(grading.grade, two, "2", ""),
            )
            with pytest.raises(GraderFailed, match=r"process died \(exit code 3\)"):
                dies.result()
            assert lives.result().value == 1
        assert len(grading._all) == 2
        for grader in tuple(grading._idle):
            assert grader.grade(one, "2", "").value == 1


def test_a_fast_grader_has_one_process() -> None:
    task = Doubles()
    with Grading(task, graders=8) as grading, grading.beside() as threads:
        for sample in task.samples():
            assert threads.submit(grading.grade, sample, str(sample.gold), "").result().value == 1
        only_process(grading)


def test_an_interrupt_ends_all_graders(tmp_path: Path) -> None:
    task = Doubles()
    with Grading(task, graders=2) as grading:
        began = time.monotonic()
        futures: list[Future[Score]] = []

        def interrupted() -> None:
            with grading.beside() as threads:
                asked = task.samples()[:3]
                futures.extend(threads.submit(grading.grade, one, "hang", "") for one in asked)
                while sum(each._ours is not None for each in tuple(grading._all)) < 2:
                    time.sleep(0.01)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert time.monotonic() - began < 30
        assert futures[2].cancelled()
        assert all(isinstance(each.exception(), GraderFailed) for each in futures[:2])
        assert [each._process for each in grading._all] == [None, None]


def test_an_interrupted_grade_is_not_taken_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to the first question came to the second, where a program caught the interrupt and went on."""
    task = Doubles()
    one, two = task.samples()[:2]
    with Grading(task) as grading:
        grading.grade(one, "2", "")
        (grader,) = grading._all
        assert grader._ours is not None

        def interrupted(self: object, seconds: float) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(grader._ours), "poll", interrupted)
            with pytest.raises(KeyboardInterrupt):
                grading.grade(one, "2", "")
        assert grading.grade(two, "5", "") == Score(0.0, "5", "expected 4")


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
def test_how_many_graders_there_are(wrong: Any) -> None:
    assert 1 <= usual_graders() == Grading(Doubles()).graders <= MOST_GRADERS
    assert Grading(Doubles(), graders=3).graders == 3
    with pytest.raises(InvalidRequest, match="graders is"):
        Grading(Doubles(), graders=wrong)
