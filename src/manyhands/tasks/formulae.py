r"""Are two formulae the same? math-verify says so, in a process of its own, and is not believed blindly.

`\frac{1}{2}` and `0.5`, `1 \pm \sqrt{19}` and `1-\sqrt{19}, 1+\sqrt{19}`: whether a boxed formula is
the right one is a question for computer algebra (MATH-500, LIMO). That algebra can run for ever, eat
all memory, and its clock works in a main thread only. So it runs in another process
(`tasks/formulae_process.py`), which is killed when it takes too long and started again for the next
question; a formula that could not be compared is graded 0, and the score says why. The process is
started when it is first needed and ends with the grader, or with whoever held it, however that ended:
it reads until its input is closed, and keeps a clock of its own besides.

What needs no algebra never gets there: equal texts, and two plain numbers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Timer
from typing import IO, Any

from manyhands.errors import InvalidRequest
from manyhands.tasks.graders import Score
from manyhands.tasks.loading import INSTALL_EXAM
from manyhands.tasks.numbers import read_number

SECONDS = 10.0  # for one comparison
START_SECONDS = 120.0  # for the process to come up: a busy machine imports slowly
LONGEST = 2000  # characters of an answer; a formula that is longer is a text
_PROGRAM = Path(__file__).with_name("formulae_process.py")


@dataclass
class _Process:
    """The running process with the two ends that we hold."""

    popen: subprocess.Popen[str]
    questions: IO[str]
    answers: IO[str]

    def ask(self, question: dict[str, Any] | None, seconds: float) -> dict[str, Any] | None:
        """What it says, or None if it died or had to be killed. No question: is it up?"""
        timer = Timer(seconds, self.popen.kill)
        timer.start()
        try:
            if question is not None:
                self.questions.write(json.dumps(question) + "\n")
                self.questions.flush()
            line = self.answers.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            return None
        said: dict[str, Any] = json.loads(line)
        return said

    def stop(self) -> None:
        """End it now, and take its remains away."""
        self.popen.kill()
        self.popen.wait()
        self.answers.close()
        with suppress(BrokenPipeError):  # a half-written question goes down with its reader
            self.questions.close()


class FormulaGrader:
    """Grades formulae. One process at most; safe to be used by several threads.

    A copy that travels to another process by pickle starts one of its own there.
    """

    def __init__(self, seconds: float = SECONDS, program: Path = _PROGRAM) -> None:
        self.seconds = seconds
        self._program = program
        self._lock = Lock()
        self._process: _Process | None = None
        self._end: weakref.finalize[..., FormulaGrader] | None = None

    def __reduce__(self) -> tuple[type[FormulaGrader], tuple[float, Path]]:
        return FormulaGrader, (self.seconds, self._program)

    def grade(self, answer: str | None, gold: str) -> Score:
        """1 if the boxed `answer` means what `gold` means, else 0 with the reason."""
        if answer is None:
            return Score(0.0, None, "no answer")
        answer, gold = answer.strip(), gold.strip()
        if _plain(answer) == _plain(gold):
            return Score(1.0, answer, "the same text")
        found, expected = read_number(answer), read_number(gold)
        if found is not None and expected is not None:
            right = found == expected
            return Score(float(right), answer, "the same number" if right else f"expected {gold}")
        if len(answer) > LONGEST:
            return Score(0.0, answer[:LONGEST], f"a text of {len(answer)} characters, no formula")
        with self._lock:
            said = self._ask({"gold": gold, "answer": answer, "seconds": self.seconds})
        if said is None:
            reason = f"the comparison with {gold} took over {self.seconds:g} s or crashed; stopped"
            return Score(0.0, answer, reason)
        return Score(float(said["right"]), answer, str(said["why"]))

    def close(self) -> None:
        """End the process, if there is one. The next question starts another."""
        with self._lock:
            self._stop()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        process = self._process or self._start()
        said = process.ask(question, self.seconds)
        if said is None:
            self._stop()
        return said

    def _start(self) -> _Process:
        check_installed()
        # -P: its own folder stays out of the path, so that `numbers.py` there hides nobody's module.
        popen = subprocess.Popen(
            [sys.executable, "-P", str(self._program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        assert popen.stdin is not None
        assert popen.stdout is not None
        self._process = process = _Process(popen, popen.stdin, popen.stdout)
        self._end = weakref.finalize(self, process.stop)
        if process.ask(None, START_SECONDS) is None:
            self._stop()
            raise InvalidRequest(
                "the process that grades formulae did not start",
                hint=f"run it by hand to see why: {sys.executable} -P {self._program}",
            )
        return process

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None


def check_installed() -> None:
    """InvalidRequest without math-verify: a task says so before its first question is asked."""
    if find_spec("math_verify") is None:
        raise InvalidRequest(
            "formulae are graded by math-verify, which is not installed", hint=INSTALL_EXAM
        )


def _plain(text: str) -> str:
    """A formula without what only its looks depend on."""
    for dress in (" ", "\n", "$", r"\left", r"\right", r"\!", r"\,", r"\;"):
        text = text.replace(dress, "")
    return text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").rstrip(".")
