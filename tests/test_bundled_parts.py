"""The bundled model beyond teams: students in every form, lists in branches, needles in a long text.

A few questions each, to see that every method has a real task on a laptop; how often it is right is
told by the exam (`benchmarks/bundled_exam.py`).
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from manyhands import bundled
from manyhands.engine.engine import Engine
from manyhands.prompts import model_prompts
from manyhands.prompts.chain_of_draft import drafted
from manyhands.strategies.base import Answer
from manyhands.strategies.methods import METHODS
from manyhands.strategies.settings import EndSettings, SharedSettings
from manyhands.strategies.shared_prefix import shared_prefix
from manyhands.tasks.arithmetic.problem_list import problem_list
from manyhands.tasks.needles import ask, haystack
from manyhands.tasks.retrieval import retrieval
from manyhands.text import boxed_answer

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


def answers(
    engine: Engine, form: str, questions: list[str], *, draft: bool = False
) -> list[Answer]:
    """All questions in the same forward passes."""
    prompts = model_prompts(bundled.path())
    prompts = drafted(prompts) if draft else prompts
    method, choices = METHODS[FORMS[form][0]], FORMS[form][1]
    settings = method.settings(budget=600, end=EndSettings(reply=False), **choices)
    words = getattr(prompts, method.prompt)
    return engine.run_all(method.make(q, engine.text, settings, words) for q in questions)


def names_in(answer: Answer) -> set[str]:
    return {name.strip() for name in (answer.answer or "").split(",")}


@pytest.mark.parametrize(
    ("form", "draft"),
    [
        ("sequential", False),
        ("sequential", True),
        ("reencode", True),
        ("stitch", False),
        ("keep", True),
        ("skeleton", False),
    ],
)
def test_it_finds_students(engine: Engine, form: str, draft: bool) -> None:
    asked = [retrieval(random.Random(f"test students {index}"), 6) for index in range(4)]
    told = answers(engine, form, [question.question for question in asked], draft=draft)
    right = [names_in(a) == set(q.gold or ("none",)) for a, q in zip(told, asked, strict=True)]
    assert sum(right) >= 3, [(a.text, q.gold) for a, q in zip(told, asked, strict=True)]


def test_branches_take_fewer_passes(engine: Engine) -> None:
    asked = [retrieval(random.Random(f"test passes {index}"), 8).question for index in range(2)]
    alone, branches = (answers(engine, form, asked) for form in ("sequential", "reencode"))
    assert all(len(answer.tokens) == 9 for answer in branches), (
        "a line of its own and a branch each"
    )
    passes = [sum(answer.forward_passes for answer in each) for each in (alone, branches)]
    assert passes[1] < 0.6 * passes[0]


@pytest.mark.parametrize("form", ["reencode", "stitch", "keep", "skeleton", "two threads"])
def test_it_solves_lists_in_parts(engine: Engine, form: str) -> None:
    asked = [problem_list(random.Random(f"test parts {index}"), 4, "bare") for index in range(3)]
    told = answers(engine, form, [problems.question for problems in asked])
    right = [
        given == str(gold)
        for answer, problems in zip(told, asked, strict=True)
        for given, gold in zip((answer.answer or "").split(","), problems.gold, strict=False)
    ]
    assert sum(right) >= 10, [answer.text for answer in told]


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
