"""Formulae by their meaning: what is the same, what only looks so, and algebra that never ends."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from threading import Thread

import pytest

import manyhands.tasks.formulae as formulae
from manyhands.errors import InvalidRequest
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.formulae import FormulaGrader
from manyhands.tasks.graders import Score
from manyhands.tasks.loading import INSTALL_EXAM
from manyhands.tasks.task import FIXTURE, TaskOptions


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
    ("x+y=5", "2x+2y=10"),
    ("R-r", "-r+R"),
    (r"\frac{GMm}{r^2}", r"mMG/r^2"),
    (r"\text{Even}", "even"),
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
    ("R-r", "r-R"),  # it reads capitals as small letters
    ("2a", "a+A"),
    (r"\omega", r"\Omega"),
    (r"\pi", r"\Pi"),
    ("M_1", "m_1"),
    # and it is right about these
    ("x+y=5", "2x+2y=5"),
    ("40", "4 0"),
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


def test_equal_texts_and_plain_numbers_need_no_process() -> None:
    grader = FormulaGrader(function="no.such.module:compare")
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


# -- algebra that hangs, or is not there -----------------------------------------------------------


def test_a_formula_that_never_ends_is_stopped() -> None:
    grader = FormulaGrader(seconds=2)
    score = grader.grade("9^{9^{9^{9^{9}}}}", "1")
    assert score.value == 0.0
    assert score.explanation.endswith(("took over 2 s", "expected 1"))
    assert grader.grade("1+1", "x-x+2").value == 1.0
    grader.close()


def test_a_grader_travels_to_another_process(grader: FormulaGrader) -> None:
    copy = pickle.loads(pickle.dumps(grader))
    assert copy.grade("1+1", "x-x+2").value == 1.0
    copy.close()


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
