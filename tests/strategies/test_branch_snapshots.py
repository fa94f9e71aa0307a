"""A run with branches gives the answer at every smaller budget, and goes on as though not asked.

The predictor's choice depends on every token a row can see, so a view that differs anywhere between
two runs makes them part ways. Its pieces make blocks, broken ones too, and boxes.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pytest

from manyhands.cache.step import Choice
from manyhands.prompts.branches import BranchPrompt
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.branches import branches
from manyhands.strategies.events import Snapshot
from manyhands.strategies.settings import BranchSettings, EndSettings
from tests.strategies.driver import Pass, Played, SeenRow, boxed, play
from tests.strategies.test_branches import glued_text

WHOLE = ("####A:", "B:", "####", "%%%%", "\\boxed{9}")  # pieces that are one token
TEXT = glued_text(*WHOLE)
PROMPT = BranchPrompt("Q: {question}", finisher="\nFinal \\boxed{")
BUDGET = 40
PIECES = [
    "####A:",
    "####A:",
    "B:",
    "B:",
    "####",
    "%%%%",
    "%%%%",
    "#",
    ":",
    "\n",
    "a",
    "7",
    "}",
    "}",
]


class Noise:
    """Pieces, each the same for the same context; boxes too, if wanted."""

    def __init__(self, seed: int, boxes: int) -> None:
        self.seed = seed
        self.tokens = [token for piece in PIECES for token in TEXT.encode(piece)]
        self.tokens += [*TEXT.encode("\\boxed{9}") * boxes, min(TEXT.eos)]

    def __call__(self, row: SeenRow) -> int:
        seen = repr((self.seed, row.context)).encode()
        return self.tokens[zlib.crc32(seen) % len(self.tokens)]


def run(seed: int, settings: BranchSettings, boxes: int = 0) -> Played:
    return play(branches("who", TEXT, boxed(settings), PROMPT), Noise(seed, boxes))


def work_of(played: Played) -> list[Pass]:
    """The passes that are charged."""
    return [one for one in played.passes if "finisher" not in one.writers]


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sampled": {"choice": Choice(temperature=1.0)},
    "encoded anew": {"end": EndSettings(finisher_tokens=9, reencode=True)},
    "no finisher": {"end": EndSettings(finisher=False)},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("join", JOINS)
def test_snapshots_are_the_answers_of_smaller_budgets(join: str, variant: str) -> None:
    base: dict[str, Any] = {
        "end": EndSettings(finisher_tokens=9),
        "branch_tokens": 9,
        "max_branches": 3,
    }
    settings = BranchSettings(budget=BUDGET, join=join, **{**base, **VARIANTS[variant]})
    everywhere = replace(settings, snapshots=tuple(range(1, BUDGET)))
    answers, in_block, in_branches = set(), 0, 0
    for seed in range(6):
        boxes = seed % 3
        plain, asked = run(seed, settings, boxes), run(seed, everywhere, boxes)
        assert [p.tokens[-1] for p in work_of(asked)] == [p.tokens[-1] for p in work_of(plain)]
        assert replace(asked.answer, snapshots={}, extra_passes=0) == replace(
            plain.answer, extra_passes=0
        )
        assert asked.answer.extra_passes == len(asked.passes) - len(work_of(asked))
        assert {e.forward_pass: e.answer for e in asked.of(Snapshot)} == asked.answer.snapshots
        for at, answer in asked.answer.snapshots.items():
            if at % 3 == seed % 3:  # every budget is some seed's
                smaller = run(seed, replace(settings, budget=at), boxes)
                assert smaller.answer.answer == answer, (seed, at)
            answers.add(answer)
            writers = work_of(asked)[at - 1].writers
            in_branches += "branch 1" in writers
            in_block += "writer" in writers
    assert len(answers) > (1 if variant == "no finisher" else 2)
    assert in_branches
    assert in_block
