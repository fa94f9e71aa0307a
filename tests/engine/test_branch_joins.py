"""The three joins on random networks, against the definition in float64: who stands where, who reads what.

The definition knows no planner, no memory and no rotation but Hugging Face's own; where lanes stand is
written down there a second time (`tests/model/dense_team.py`).
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from manyhands.cache.block import Block
from manyhands.cache.routes import LaneMark, Point
from manyhands.cache.step import Choice, Step
from manyhands.cache.view import Lanes, blocks_of
from manyhands.engine.engine import Engine
from manyhands.model.adapter import ModelAdapter
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.branches import branches
from manyhands.strategies.settings import BranchSettings
from tests.engine.small import TEXT as BYTES
from tests.engine.small import executor_of, networks
from tests.engine.test_branches import PROMPT, SHORT, SKELETON, play
from tests.model.dense_team import DenseRow, DenseTeam
from tests.model.double import DoublePrecision
from tests.model.families_zoo import tiny_model
from tests.poison import poison

FLOAT64 = 1e-9
VISIBLE = 1e-5
CASES = [("qwen3", join) for join in JOINS]
CASES += [(name, "keep") for name in ("gpt_oss", "gemma3_text", "smollm3")]


def network(name: str) -> PreTrainedModel:
    config = copy.deepcopy(networks()[name].args[0])
    config.vocab_size = 512
    with DoublePrecision():  # for the frequencies of the rotation
        return tiny_model(config).double()


def played(name: str, join: str) -> tuple[list[Step], list[Tensor]]:
    """Two blocks of branches in float64, by the engine."""
    allowed = frozenset(t for word in "abc#\n." for t in BYTES.encode(word))
    settings = BranchSettings(
        choice=Choice(allowed=allowed),
        branch_tokens=7,
        budget=65,
        join=join,
        end=SHORT,
        max_blocks=2,
    )
    said = BYTES.encode(SKELETON.removesuffix("Chris Lee:%%%%") + "%%%%So.\n####Eve:%%%%")
    with DoublePrecision(), torch.no_grad():
        engine = Engine(ModelAdapter(network(name)), memory_tokens=2048)
        poison(executor_of(engine).memory)
        run = play(engine, branches("who", BYTES, settings, PROMPT), said)
    assert run.answer is not None
    assert [branch.block for branch in run.answer.branches] == [1, 1, 2]
    return run.steps, run.logits


def by_definition(name: str, steps: list[Step]) -> list[Tensor]:
    names: dict[Block, str] = {}
    team = DenseTeam(network(name), 512)

    def called(block: Block) -> str:
        return names.setdefault(block, f"{len(names)} {block.name}")

    return [
        team.step(
            [
                DenseRow(
                    [
                        [[called(block) for block in blocks_of(lane)] for lane in item.lanes]
                        if isinstance(item, Lanes)
                        else called(item)
                        for item in row.view.items
                    ],
                    row.feed,
                )
                for row in step.rows
            ]
        )
        for step in steps
    ]


def worst(name: str, join: str) -> float:
    steps, ours = played(name, join)
    expected = by_definition(name, steps)
    errors = [(a.double() - b).abs().max() for a, b in zip(ours, expected, strict=True)]
    return float(torch.stack(errors).max())


@pytest.mark.parametrize(("name", "join"), CASES)
def test_every_pass_is_what_the_definition_says(name: str, join: str) -> None:
    assert worst(name, join) < FLOAT64


def test_control_lanes_one_behind_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneMark, "behind", lambda mark, here, forks: here)
    assert worst("qwen3", "keep") > VISIBLE
    assert worst("qwen3", "stitch") < FLOAT64  # it has no lanes


def test_control_what_follows_stands_behind_the_last_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    right = LaneMark.behind

    def wrong(mark: LaneMark, here: Point, forks: list[tuple[Point, Point]]) -> Point:
        if mark is LaneMark.JOIN:
            forks.pop()
            return here[0] + 1, here[1]
        return right(mark, here, forks)

    monkeypatch.setattr(LaneMark, "behind", wrong)
    assert worst("qwen3", "keep") > VISIBLE
