"""Formulae by their meaning: what is the same, what only looks so, and a process that may hang or die."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from threading import Thread

import pytest

import manyhands.tasks.formulae as formulae
from manyhands.errors import InvalidRequest
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.formulae import FormulaGrader
from manyhands.tasks.formulae_process import LATER_SECONDS
from manyhands.tasks.graders import Score
from manyhands.tasks.loading import INSTALL_EXAM
from manyhands.tasks.task import FIXTURE, TaskOptions

PROGRAM = Path(formulae.__file__).with_name("formulae_process.py")


@pytest.fixture(scope="module")
def grader() -> Iterator[FormulaGrader]:
    grader = FormulaGrader(seconds=60)  # a busy machine is slow; nothing here should hang
    yield grader
    grader.close()


SAME = [
    (r"\frac{1}{2}", "0.5"),
    (r"\frac12", r"\dfrac{1}{2}"),
    ("1234", "1,234"),
    (r"3 \pm \sqrt{5}", r"3-\sqrt{5}, 3+\sqrt{5}"),
    (r"\left( 5, \frac{\pi}{2} \right)", r"(5, \pi/2)"),
    (r"\{-1,1\}", r"\{1,-1\}"),  # the same signs, elsewhere
    ("-2,1", "1,-2"),
    ("5", "x=5"),
    ("5", "m+n=5"),
    ("2x", "f(x)=2x"),
    ("(3,4)", "(x,y)=(3,4)"),
    ("[-2,7]", r"x \in [-2,7]"),
    ("[-3, 6]", r"-3 \le y \le 6"),
    (r"m \ge 2", r"[2,\infty)"),
    ("(x-3)(x-4)", "(x-4)(x-3)"),
    ("x^2-7x+12", "(x-3)(x-4)"),
    ("2k+2", "2(k+1)"),
    (r"\text{Ben}", "Ben"),
    (r"\text{(C)}", "C"),
    (r"75\%", "75"),
    (r"90^\circ", "90"),
    ("365_7", "365"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"\sin x+1", r"1+\sin(x)"),
    ("10^{100}", "10^{10^{2}}"),
]

DIFFERENT = [
    # math-verify once, or when it reads an unwrapped text, said "the same" to each of these
    (r"1-\frac1e", r"1+\frac1e"),
    (r"1-\frac{1}{e}", r"1+\frac{1}{e}"),
    (r"$1-\frac1e$", r"$1+\frac1e$"),
    ("x+y=5", "0=0"),
    ("0", "0=0"),
    ("0=0", "1=1"),
    ("x=x", "y=y"),
    ("5", "5=5"),
    ("2", "1=2"),
    ("x+y=5", "5"),
    ("365_7", "365_8"),
    (r"\frac13", "0.3333333333"),
    (r"\pi", "3.14159265"),
    (r"\sqrt{2}", "1.41421356"),
    ("(3,4)", "3,4"),
    # and it is right about these
    (r"\frac{3}{4}", r"\frac{4}{3}"),
    ("(3,4)", "(4,3)"),
    ("[0,1]", "(0,1)"),
    ("6", "5, 6"),
    ("13,14", "1314"),
    ("x^2+1", "x^2+2"),
    ("2x+1", "2y+1"),
    ("x<3", "x<4"),
    (r"\infty", r"-\infty"),
    (r"\text{Ben}", r"\text{Ada}"),
    ("36\\pi", "36"),
    ("5", r"\frac{5}{0}"),
    ("5", "5 )( 7"),
    ("5", ""),
    ("5", "I do not know"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_the_same(grader: FormulaGrader, gold: str, answer: str) -> None:
    score = grader.grade(answer, gold)
    assert score.value == 1.0, score
    assert score.extracted == answer


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(grader: FormulaGrader, gold: str, answer: str) -> None:
    score = grader.grade(answer, gold)
    assert score.value == 0.0, score
    assert "expected" in score.explanation


def test_no_answer_and_no_formula(grader: FormulaGrader) -> None:
    assert grader.grade(None, "5") == Score(0.0, None, "no answer")
    essay = grader.grade("a" * 5000, "5")
    assert (essay.value, essay.explanation) == (0.0, "a text of 5000 characters, no formula")


def test_equal_texts_and_plain_numbers_need_no_process(tmp_path: Path) -> None:
    grader = FormulaGrader(program=tmp_path / "is not there")
    assert grader.grade(r"\dfrac{1}{x}", r"\frac{1}{x}").value == 1.0
    assert grader.grade("0.50", r"\frac{1}{2}").value == 1.0
    assert grader.grade("7", "8") == Score(0.0, "7", "expected 8")


def test_it_is_asked_from_a_thread(grader: FormulaGrader) -> None:
    found: list[Score] = []
    threads = [Thread(target=lambda: found.append(grader.grade("1+1", "x^2"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [score.value for score in found] == [0.0] * 4


# -- a process that hangs, dies, or is not there ---------------------------------------------------


def program(folder: Path, answers: str) -> Path:
    """A stand-in for the other side that says it is up and then runs `answers` for each line."""
    path = folder / "stand_in.py"
    path.write_text(
        "import os, sys, time\nprint('{}', flush=True)\nfor line in sys.stdin:\n"
        + "".join(f"    {line}\n" for line in dedent(answers).strip().splitlines())
    )
    return path


RIGHT = """print('{"right": true, "why": "so"}', flush=True)"""


@pytest.mark.parametrize(
    "mischief", ["time.sleep(600)", "os.abort()", "sys.exit(3)"], ids=["hangs", "crashes", "leaves"]
)
def test_the_next_question_is_graded_after(tmp_path: Path, mischief: str) -> None:
    grader = FormulaGrader(0.5, program(tmp_path, f"if 'bad' in line: {mischief}\n{RIGHT}"))
    assert grader.grade("x", "y").value == 1.0
    began = time.monotonic()
    score = grader.grade("bad", "y")
    assert time.monotonic() - began < 10
    explanation = "the comparison with y took over 0.5 s or crashed; stopped"
    assert score == Score(0.0, "bad", explanation)
    assert grader.grade("x", "y").value == 1.0
    grader.close()


def test_a_formula_that_never_ends_is_stopped() -> None:
    grader = FormulaGrader(seconds=2)
    score = grader.grade("9^{9^{9^{9^{9}}}}", "1")
    assert score.value == 0.0
    assert score.explanation.endswith(("stopped", "expected 1"))
    grader.seconds = 60
    assert grader.grade("1+1", "x-x+2").value == 1.0
    grader.close()


def test_a_process_that_does_not_start(tmp_path: Path) -> None:
    grader = FormulaGrader(program=tmp_path / "is not there")
    with pytest.raises(InvalidRequest, match="did not start"):
        grader.grade("x", "y")


def test_without_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formulae, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match="not installed") as raised:
        FormulaGrader().grade("x", "y")
    assert raised.value.hint == INSTALL_EXAM


@pytest.mark.parametrize("name", ["limo", "math500"])
def test_without_math_verify_no_question_is_asked(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    task = make_task(name, TaskOptions(source=FIXTURE))
    assert task.samples()
    monkeypatch.setattr(formulae, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match="math-verify, which is not installed"):
        task.samples()


def gone(pid: int) -> bool:
    """Whether there is no such process any more, within a few seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    tell = 'print(\'{"right": true, "why": "%d"}\' % os.getpid(), flush=True)'
    stand_in = program(tmp_path, tell)
    grader = FormulaGrader(program=stand_in)
    closed = int(grader.grade("x", "y").explanation)
    grader.close()
    grader.close()
    assert gone(closed)
    dropped = int(grader.grade("x", "y").explanation)  # another one
    assert dropped != closed
    del grader
    gc.collect()
    assert gone(dropped)


@pytest.mark.parametrize("end", ["", "import os; os.abort()"], ids=["leaves", "crashes"])
def test_it_ends_with_whoever_asked_and_in_silence(tmp_path: Path, end: str) -> None:
    stand_in = program(tmp_path, 'print(\'{"right": 1, "why": "%d"}\' % os.getpid(), flush=True)')
    script = (
        "from manyhands.tasks.formulae import FormulaGrader; from pathlib import Path; "
        f"grader = FormulaGrader(program=Path({str(stand_in)!r})); "
        f"print(grader.grade('x', 'y').explanation, flush=True); {end}"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert gone(int(done.stdout))
    assert end or (done.returncode, done.stderr) == (0, "")


def test_it_travels_to_another_process_as_a_fresh_one(tmp_path: Path) -> None:
    grader = FormulaGrader(3.0, program(tmp_path, RIGHT))
    assert grader.grade("x", "y").value == 1.0
    copy = pickle.loads(pickle.dumps(grader))
    assert copy.seconds == 3.0
    assert copy.grade("x", "y").value == 1.0
    copy.close()
    grader.close()


def test_left_alone_it_stops_by_itself() -> None:
    """Who asked was killed in the middle of a comparison that never ends."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    question = {"gold": "1", "answer": "9^{9^{9^{9^{9}}}}", "seconds": 1 - LATER_SECONDS}
    told, _ = process.communicate(json.dumps(question) + "\n", timeout=60)
    assert told == "{}\n"
    assert process.returncode == -signal.SIGALRM
