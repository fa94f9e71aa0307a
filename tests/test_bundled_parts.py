"""The bundled model beyond teams: students in every form, lists in branches, needles in a long text.

A few questions each, to see that every method has a real task on a laptop; how often it is right is
told by the exam (`benchmarks/bundled_exam.py`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from manyhands import bundled
from manyhands.engine.engine import Engine
from manyhands.prompts import model_prompts
from manyhands.prompts.chain_of_draft import drafted
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.methods import METHODS
from manyhands.strategies.settings import EndSettings, SharedSettings
from manyhands.strategies.shared_prefix import shared_prefix
from manyhands.tasks.arithmetic.problem_list import ProblemList, problem_list
from manyhands.tasks.needles import ask, haystack
from manyhands.tasks.retrieval import RetrievalQuestion, retrieval
from manyhands.text import boxed_answer
from tests.covers import is_every_case

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sequential": ("sequential", {}),
    "reencode": ("branches", {"join": "reencode"}),
    "stitch": ("branches", {"join": "stitch"}),
    "keep": ("branches", {"join": "keep"}),
    "skeleton": ("skeleton", {}),
    "two threads": ("skeleton", {"workers": 2}),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    torch.set_num_threads(1)
    return Engine.load(bundled.path(), device="cpu", memory_tokens=1 << 17)


def strategies(
    engine: Engine, form: str, questions: list[str], *, draft: bool = False
) -> list[Strategy]:
    """One for each question."""
    prompts = model_prompts(bundled.path())
    prompts = drafted(prompts) if draft else prompts
    method, choices = METHODS[FORMS[form][0]], FORMS[form][1]
    settings = method.settings(budget=600, end=EndSettings(reply=False), **choices)
    words = getattr(prompts, method.prompt)
    return [method.make(question, engine.text, settings, words) for question in questions]


STUDENTS = [retrieval(random.Random(f"test students {index}"), 6) for index in range(4)]
SUMS = [problem_list(random.Random(f"test parts {index}"), 4, "bare") for index in range(3)]
FINDS = [
    ("sequential", False),
    ("sequential", True),
    ("reencode", True),
    ("stitch", False),
    ("keep", True),
    ("skeleton", False),
]
SOLVES = ["reencode", "stitch", "keep", "skeleton", "two threads"]
Asked = Sequence[RetrievalQuestion] | Sequence[ProblemList]
Told = dict[tuple[Any, ...], tuple[Any, list[Answer]]]


@pytest.fixture(scope="module")
def told(engine: Engine, pytestconfig: pytest.Config) -> Told:
    """All questions and answers, in the same forward passes: a pass of many rows takes hardly longer than one of few.

    The longest begin first, so that none is alone in the end. Each form has one question, and the next form the next
    one, unless every case is wanted.
    """
    every = is_every_case(pytestconfig)
    students = [STUDENTS if every else [STUDENTS[n % len(STUDENTS)]] for n in range(len(FINDS))]
    sums = [SUMS if every else [SUMS[n % len(SUMS)]] for n in range(len(SOLVES))]
    asked: dict[tuple[Any, ...], tuple[Asked, bool]] = {
        **{("finds", *how): (some, how[1]) for how, some in zip(FINDS, students, strict=True)},
        ("passes", "reencode"): (students[FINDS.index(("sequential", False))], False),
        **{("solves", form): (some, False) for form, some in zip(SOLVES, sums, strict=True)},
    }
    answers = iter(
        engine.run_all(
            itertools.chain.from_iterable(
                strategies(engine, name[1], _questions(some), draft=draft)
                for name, (some, draft) in asked.items()
            )
        )
    )
    return {
        name: (some, list(itertools.islice(answers, len(some))))
        for name, (some, _) in asked.items()
    }


def _questions(asked: Asked) -> list[str]:
    return [each.question for each in asked]


def names_in(answer: Answer) -> set[str]:
    return {name.strip() for name in (answer.answer or "").split(",")}


@pytest.mark.parametrize(("form", "draft"), FINDS)
def test_it_finds_students(told: Told, form: str, draft: bool) -> None:
    asked, found = told["finds", form, draft]
    right = [names_in(a) == set(q.gold or ("none",)) for a, q in zip(found, asked, strict=True)]
    assert sum(right) >= (3 if len(asked) > 1 else 1), [
        (a.text, q.gold) for a, q in zip(found, asked, strict=True)
    ]


def test_branches_take_fewer_passes(told: Told) -> None:
    alone, branches = told["finds", "sequential", False][1], told["passes", "reencode"][1]
    assert all(len(answer.tokens) == 7 for answer in branches), (
        "a line of its own and a branch each"
    )
    passes = [sum(answer.forward_passes for answer in each) for each in (alone, branches)]
    assert passes[1] < 0.6 * passes[0]


@pytest.mark.parametrize("form", SOLVES)
def test_it_solves_lists_in_parts(told: Told, form: str) -> None:
    asked, found = told["solves", form]
    right = [
        given == str(gold)
        for answer, problems in zip(found, asked, strict=True)
        for given, gold in zip((answer.answer or "").split(","), problems.gold, strict=False)
    ]
    assert sum(right) >= (10 if len(asked) > 1 else 3), [answer.text for answer in found]


def test_it_finds_needles(engine: Engine) -> None:
    """Many questions about one document, whose tokens are fed once."""
    hay = haystack(random.Random("test needles"), 16, 40)
    words = model_prompts(bundled.path()).team
    asked = [words.solo_message(ask(hay.document, needle.question)) for needle in hay.needles[:16]]
    settings = SharedSettings(max_tokens=60)
    answer = engine.run(shared_prefix(asked, engine.text, settings, tree=engine.prefixes))
    right = [
        boxed_answer(completion.text) == needle.answer
        for completion, needle in zip(answer.completions, hay.needles, strict=False)
    ]
    assert len(right) == 16
    assert sum(right) >= 14
    first, *others = zip(answer.found, answer.prompt_tokens, strict=True)
    assert first[0] < 0.1 * first[1]
    assert all(found > 0.9 * size for found, size in others), "the document was there already"
