"""Graders in processes of their own.

A grader reads what a model wrote, and now and then one hangs on it, or dies. In a process of its own it
can be ended, and a new one takes its place: that answer has no grade, which is a failure and is said,
and all the others have theirs.

The task travels to a process once (pickled), the answers one by one. A process is started when an answer comes and all
others are busy, so a fast grader has one process. They end with `close`, or by themselves if ours is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Lock
from typing import Any

from manyhands.errors import InvalidRequest, ManyhandsError
from manyhands.sandbox import leave_ends_to_caller
from manyhands.schema.plain import plain_as
from manyhands.schema.setting import as_found, own_number, whole_number
from manyhands.schema.waits import LONGEST_WAIT, seconds_of
from manyhands.tasks.graders import Score
from manyhands.tasks.task import Sample, Task, check_task

SECONDS = 60.0  # for one answer; the slowest honest grader needs a few
START_SECONDS = 120.0  # for the process to come up: a busy machine imports slowly
# Of processes that nobody has chosen: each imports the task with its libraries, some hundred megabytes for formulae.
MOST_GRADERS = 8
_LEAVE_SECONDS = 2.0  # for all processes, at the end


class GraderFailed(ManyhandsError):
    """The grader of a task hung, died or raised on one answer."""


def usual_graders() -> int:
    """Processes that grade where nobody chooses: the cores that this process may use, MOST_GRADERS at most."""
    if hasattr(os, "sched_getaffinity"):
        return min(MOST_GRADERS, len(os.sched_getaffinity(0)))
    return min(MOST_GRADERS, os.cpu_count() or 1)


class Grading:
    """Grades answers of one task, from any number of threads.

    `seconds` is the longest that one answer may take, up to LONGEST_WAIT. `graders` is how many processes are there at most
    for the threads of `beside`: `usual_graders` if nothing is said.
    """

    def __init__(self, task: Task, seconds: float = SECONDS, graders: int | None = None) -> None:
        self.seconds = seconds_of("grader_seconds", seconds)
        if not 0 < self.seconds <= LONGEST_WAIT:
            raise InvalidRequest(
                f"grader_seconds is {as_found(seconds)}; expected above 0, at most {LONGEST_WAIT}",
                hint="Give it in the protocol of the task, or to the command as --grader-seconds.",
            )
        self.graders = usual_graders() if graders is None else whole_number("graders", graders, 1)
        check_task(task)
        self.is_given_up = False  # the exam has ended: what is graded still counts no more
        self.came_up = False  # one process, once at least
        self._lock = Lock()  # of the two lists
        self._all: list[_Grader] = []
        self._idle: list[_Grader] = []  # the last one was busy last
        try:
            self.task = pickle.dumps(task)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise InvalidRequest(
                f"the task {task.name} cannot be sent to the process that grades: {error}",
                hint="define its class at the top of a module, and keep no open files in it",
            ) from error

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """The task's score for one answer. GraderFailed if it gives none in time; InvalidRequest where no process comes up."""
        with self._lock:
            if self._idle:
                grader = self._idle.pop()
            else:
                grader = _Grader(self)
                self._all.append(grader)
        try:
            return grader.grade(sample, answer, text)
        finally:
            with self._lock:
                self._idle.append(grader)

    @contextmanager
    def beside(self) -> Iterator[ThreadPoolExecutor]:
        """Threads to grade in, beside what the caller does. Left by an error or an interrupt, they are not waited for: their processes are ended."""
        threads = ThreadPoolExecutor(self.graders, "manyhands-grading")
        try:
            yield threads
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            self.is_given_up = True
            for grader in tuple(self._all):
                grader.kill()
            raise
        finally:
            threads.shutdown()
            self.is_given_up = False

    def close(self) -> None:
        """End the processes."""
        for grader in self._all:
            grader.leave()
        until = time.monotonic() + _LEAVE_SECONDS
        for grader in self._all:
            grader.close(until)

    def __enter__(self) -> Grading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Grader:
    """One process, and the next one in its place where it was ended. One thread at a time asks it; any may kill it."""

    def __init__(self, grading: Grading) -> None:
        self._grading = grading
        self._process: SpawnProcess | None = None
        self._ours: Connection[Any, Any] | None = None

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """As `Grading.grade`, by this process."""
        seconds = self._grading.seconds
        try:
            pipe = self._start()
            pipe.send((sample, answer, text))
            if not pipe.poll(seconds):
                self._end()
                raise GraderFailed(
                    f"the grader has not answered within {seconds:g} s and was stopped"
                )
            found = pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            code = self._end()
            raise GraderFailed(f"the grader's process died (exit code {code})") from error
        # An interrupt: the answer is still owed, and would be taken for that to the next question.
        except BaseException:
            self._end()
            raise
        if not isinstance(found, Score):
            raise GraderFailed(f"the grader {found}")
        return found

    def kill(self) -> None:
        """End the process from beside; its thread finds its pipe closed."""
        if (process := self._process) is not None:
            process.kill()

    def leave(self) -> None:
        """Tell the process that nothing more comes."""
        if self._ours is not None:
            self._ours.close()  # it reads the end of its pipe, and leaves
            self._ours = None

    def close(self, until: float) -> None:
        """End the process, which has until then (`time.monotonic`) to leave by itself."""
        if self._process is not None:
            self._process.join(max(0.0, until - time.monotonic()))
        self._end()

    def _start(self) -> Connection[Any, Any]:
        if self._ours is None:
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            # Not a daemon: those may have no children, and a grader may want some.
            process = context.Process(target=_serve, args=(theirs, self._grading.task))
            process.start()
            self._process = process  # from here on, for one that did not start cannot be ended
            if self._grading.is_given_up:  # meanwhile
                process.kill()
            theirs.close()
            self._ours = ours
            if not ours.poll(START_SECONDS):
                self._end()
                raise GraderFailed(f"the grader's process did not start in {START_SECONDS:g} s")
            try:
                ours.recv()  # that it is up; its imports are not the first answer's time
            except EOFError as error:
                if self._grading.came_up or self._grading.is_given_up:
                    raise
                raise InvalidRequest(
                    f"the process that grades ended before it was up (exit code {self._end()}); expected a program whose "
                    "main file can be imported",
                    hint='Write it to a file, what it runs behind `if __name__ == "__main__":`; above is what Python said.',
                ) from error
            self._grading.came_up = True
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
