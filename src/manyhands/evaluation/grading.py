"""The grader in a process of its own.

A grader reads what a model wrote, and now and then one hangs on it, or dies. In a process of its own it
can be ended, and a new one takes its place: that answer has no grade, which is a failure and is said,
and all the others have theirs.

The task travels there once (pickled), the answers one by one. The process is started when it is first
needed and ends with `close`, or by itself if ours is killed.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.sandbox import leave_ends_to_caller
from manyhands.schema.plain import plain_as
from manyhands.schema.setting import as_found, own_number
from manyhands.schema.waits import LONGEST_WAIT, seconds_of
from manyhands.tasks.graders import Score
from manyhands.tasks.task import Sample, Task, check_task

SECONDS = 60.0  # for one answer; the slowest honest grader needs a few
START_SECONDS = 120.0  # for the process to come up: a busy machine imports slowly


class GraderFailed(ManyhandsError):
    """The grader of a task hung, died or raised on one answer."""


class Grading:
    """Grades answers of one task; `seconds` is the longest that one of them may take, up to LONGEST_WAIT."""

    def __init__(self, task: Task, seconds: float = SECONDS) -> None:
        self.seconds = seconds_of("grader_seconds", seconds)
        if not 0 < self.seconds <= LONGEST_WAIT:
            raise InvalidRequest(
                f"grader_seconds is {as_found(seconds)}; expected above 0, at most {LONGEST_WAIT}",
                hint="Give it in the protocol of the task, or to the command as --grader-seconds.",
            )
        self._context = multiprocessing.get_context("spawn")
        self._process: SpawnProcess | None = None
        self._ours: Connection[Any, Any] | None = None
        check_task(task)
        self._came_up = False  # once at least
        self.is_given_up = False  # the exam has ended: what is graded still counts no more
        try:
            self._task = pickle.dumps(task)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise InvalidRequest(
                f"the task {task.name} cannot be sent to the process that grades: {error}",
                hint="define its class at the top of a module, and keep no open files in it",
            ) from error

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """The task's score for one answer. GraderFailed if it gives none in time; InvalidRequest where no process comes up."""
        try:
            pipe = self._start()
            pipe.send((sample, answer, text))
            if not pipe.poll(self.seconds):
                self._end()
                raise GraderFailed(
                    f"the grader has not answered within {self.seconds:g} s and was stopped"
                )
            found = pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            code = self._end()
            raise GraderFailed(f"the grader's process died (exit code {code})") from error
        if not isinstance(found, Score):
            raise GraderFailed(f"the grader {found}")
        return found

    @contextmanager
    def beside(self) -> Iterator[ThreadPoolExecutor]:
        """A thread to grade in, beside what the caller does. Left by an error or an interrupt, it is not waited for: its process is ended."""
        thread = ThreadPoolExecutor(1, "manyhands-grading")
        try:
            yield thread
        except BaseException:
            thread.shutdown(wait=False, cancel_futures=True)
            self.is_given_up = True
            if (process := self._process) is not None:
                process.kill()
            raise
        finally:
            thread.shutdown()
            self.is_given_up = False

    def close(self) -> None:
        """End the process."""
        if self._ours is not None:
            self._ours.close()  # it reads the end of its pipe, and leaves
            self._ours = None
        if self._process is not None:
            self._process.join(2)
        self._end()

    def __enter__(self) -> Grading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Connection[Any, Any]:
        if self._ours is None:
            ours, theirs = self._context.Pipe()
            # Not a daemon: those may have no children, and a grader may want some.
            process = self._context.Process(target=_serve, args=(theirs, self._task))
            process.start()
            self._process = process  # from here on, for one that did not start cannot be ended
            if self.is_given_up:  # meanwhile
                process.kill()
            theirs.close()
            self._ours = ours
            if not ours.poll(START_SECONDS):
                self._end()
                raise GraderFailed(f"the grader's process did not start in {START_SECONDS:g} s")
            try:
                ours.recv()  # that it is up; its imports are not the first answer's time
            except EOFError as error:
                if self._came_up:
                    raise
                raise InvalidRequest(
                    f"the process that grades ended before it was up (exit code {self._end()}); expected a program whose "
                    "main file can be imported",
                    hint='Write it to a file, what it runs behind `if __name__ == "__main__":`; above is what Python said.',
                ) from error
            self._came_up = True
        return self._ours

    def _end(self) -> int | None:
        """Stop the process, whatever it does; the next answer gets a new one."""
        process, self._process = self._process, None
        if self._ours is not None:
            self._ours.close()
            self._ours = None
        if process is None:
            return None
        if process.is_alive():
            process.join(0.1)
            process.kill()
        process.join()
        return process.exitcode


def _serve(pipe: Connection[Any, Any], task: bytes) -> None:
    """The other side: grade what comes until nothing comes any more."""
    leave_ends_to_caller()  # an answer whose grader died would count as wrong
    grader: Task = pickle.loads(task)
    try:
        pipe.send(None)  # we are up
        while True:
            sample, answer, text = pipe.recv()
            pipe.send(_graded(grader, sample, answer, text))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the exam is gone


def _graded(task: Task, sample: Sample, answer: str | None, text: str) -> Score | str:
    """A score that a record may hold, or what is wrong with it."""
    try:
        score: object = task.grade(sample, answer, text)
        if not isinstance(score, Score):
            return f"returned a {type(score).__name__}, expected a Score"
        value = own_number(score.value)
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            return f"gave the value {as_found(score.value)}, expected a number from 0 to 1"
        extracted = plain_as(Any, score.extracted, "`extracted` of a score")
        return Score(float(value), extracted, str(score.explanation))
    # A grader is a user's program: any error that it raises is told and counts as this answer's failure.
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
