"""The cost of a forward pass for the host: nothing that grows with the history, and no wait for the device.

Python's work is counted in calls of functions, Python's and C's, over sixteen passes of decoding (one
page of tokens, so that every block takes its next page once). The wait is shown by running on torch's
`meta` device, whose tensors have shapes and no contents: whatever must know a number fails there.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch

from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerStore
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.block import Block
from manyhands.cache.layouts import Cast, combined
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner, _Reader
from manyhands.cache.routes import Walk
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.model.adapter import ModelAdapter
from tests.model.families_zoo import tiny_models

PAGE = 16
WORKERS = 3
ZOO = tiny_models()


class Team:
    """Workers with a long past, driven without a network."""

    def __init__(self, *, num_steps: int, num_prompt_tokens: int = 50) -> None:
        self.planner = Planner(PagePool(4096, PAGE))
        heads = {"prompt": num_prompt_tokens, "others": 5, "own": 4, "marker": 1}
        blocks = {name: self.write(Block(name), size) for name, size in heads.items()}
        history = tuple(self.write(Block(), 20).freeze() for _ in range(num_steps))
        desks = tuple(Block(f"desk {i}") for i in range(WORKERS))
        self.cast = Cast(
            blocks["prompt"], blocks["others"], blocks["own"], blocks["marker"], desks, history
        )
        self.seat()
        self.decode()

    def seat(self) -> None:
        self.views = [combined(self.cast, worker) for worker in range(WORKERS)]

    def write(self, block: Block, num_tokens: int) -> Block:
        self.plan(Step([Row(View([block]), (0,) * num_tokens)]))
        return block

    def plan(self, step: Step) -> Plan:
        plan = self.planner.plan(step)
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        return plan

    def decode(self) -> Plan:
        return self.plan(Step([Row(view, (1,)) for view in self.views]))


def calls_of_decoding(team: Team, *, prepare: bool) -> Counter[str]:
    """Which functions are called how often by sixteen passes."""
    backend, counted = TorchBackend(), Counter[str]()

    def count(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            counted[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            counted[arg.__qualname__] += 1

    gc.disable()  # a collection comes when it comes, and callbacks of others with it
    sys.setprofile(count)
    try:
        for _ in range(PAGE):
            plan = team.decode()
            if prepare:
                backend.prepare(plan, torch.device("cpu"))
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


@pytest.mark.parametrize("prepare", [False, True], ids=["plan", "plan and prepare"])
def test_the_length_of_the_history_costs_nothing(prepare: bool) -> None:
    # Both so long that the torch backend gives the history a product of its own; next to a short
    # one the small blocks are padded to it. There are never more products than blocks.
    short, long = Team(num_steps=150), Team(num_steps=1_000)
    assert calls_of_decoding(long, prepare=prepare) == calls_of_decoding(short, prepare=prepare)


@pytest.mark.parametrize("prepare", [False, True], ids=["plan", "plan and prepare"])
def test_the_length_of_the_prompt_costs_nothing(prepare: bool) -> None:
    short, long = (Team(num_steps=10, num_prompt_tokens=n) for n in (3_000, 20_000))
    assert calls_of_decoding(long, prepare=prepare) == calls_of_decoding(short, prepare=prepare)


def test_control_the_count_sees_python_that_walks_the_history() -> None:
    def walking(team: Team) -> int:
        right = team.planner.plan

        def plan(step: Step) -> Plan:
            assert sum(view.num_tokens for view in team.views) > 0
            return right(step)

        team.planner.plan = plan  # type: ignore[method-assign]  # the control's own mistake
        return calls_of_decoding(team, prepare=False).total()

    assert walking(Team(num_steps=400)) > walking(Team(num_steps=10)) + 1000


@pytest.mark.parametrize("num_steps", [0, 10])
def test_views_are_walked_once_for_a_team_in_which_a_step_has_ended(
    num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the block that has come into the history is moved on that walk."""
    team, walked = Team(num_steps=num_steps), list[View]()
    step_by_step = Walk._step_by_step

    def counted(walk: Walk, view: View) -> Any:
        walked.append(view)
        return step_by_step(walk, view)

    cast, pool = team.cast, team.planner.pool
    cast.prompt.freeze()
    desks, history = (Block("fresh"), *cast.desks[1:]), (*cast.history, cast.desks[0].freeze())
    team.cast = replace(cast, desks=desks, history=history)
    team.seat()
    monkeypatch.setattr(Walk, "_step_by_step", counted)
    num_joined = pool.num_joined
    plan = team.decode()
    assert pool.num_joined > num_joined, "a move was meant to be part of this"
    assert walked == team.views[:1]
    assert plan.positions.tolist() == [view.num_tokens - 1 for view in team.views]


def test_blocks_of_a_team_are_looked_at_once_in_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a row that is fed several tokens, so that no plan follows from the last one."""
    team, looked = Team(num_steps=3), list[object]()
    beside, look = View([Block("beside")]), _Reader.is_regular

    def counted(reader: _Reader, *others: Any) -> bool:
        looked.append(reader)
        return look(reader, *others)

    monkeypatch.setattr(_Reader, "is_regular", counted)
    for number in range(4):
        looked.clear()
        team.plan(Step([*(Row(view, (1,)) for view in team.views), Row(beside, (1, 2))]))
        assert len(looked) == (1 if number == 0 else 2), number


def test_a_history_is_read_in_one_piece() -> None:
    short, long = (Team(num_steps=n).decode() for n in (10, 400))
    assert len(long.reads.row) == len(short.reads.row)
    assert len(long.reads.pages) == len(short.reads.pages)
    sizes = long.reads.high - long.reads.low
    assert (sizes == 400 * 20).sum() == WORKERS, "each worker reads all of the history at once"
    # All of them meet it as one group: its keys are loaded once.
    assert long.num_keys_read - long.num_keys_loaded > (WORKERS - 1) * 400 * 20


@pytest.mark.parametrize("name", ZOO)
def test_a_forward_pass_never_waits_for_the_device(name: str) -> None:
    """bfloat16, as on a GPU: experts have no product without a wait in float64."""
    engine = _on_meta(ZOO[name]().bfloat16())
    prompt, desks = Block("prompt"), [Block("a"), Block("b")]
    step = Step(
        [
            Row(View([prompt]), tuple(range(20))),
            Row(View([prompt, desks[1], desks[0]]), (1, 2, 3)),
            Row(View([prompt, desks[0], desks[1]]), (4,)),
        ]
    )
    assert engine.forward(step).device.type == "meta"
    prompt.freeze()
    desks[0].freeze()
    own = Block("own")
    step = Step([Row(View([prompt, desks[0], desks[1], own]), (1, 2))])
    assert engine.forward(step).shape == (1, engine.facts.vocab_size)
    assert engine.pool.place(desks[0]).offset == 20, "a move was meant to be part of this"


def test_control_the_meta_device_sees_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _on_meta(ZOO["qwen3"]().bfloat16())
    right = TorchBackend.attend

    def waiting(self: TorchBackend, store: LayerStore, q: torch.Tensor, *args: Any) -> torch.Tensor:
        assert not bool(q.isnan().any())
        return right(self, store, q, *args)

    monkeypatch.setattr(TorchBackend, "attend", waiting)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        engine.forward(Step([Row(View([Block()]), (1, 2))]))


def _on_meta(model: Any) -> Engine:
    """An engine whose network and memory have shapes only."""
    adapter = ModelAdapter(model)
    torch.nn.Module.to(adapter.model, "meta")
    adapter.ropes = tuple(
        rope and Rope(rope.inv_freq.to("meta"), rope.rotary_dim, rope.interleaved)
        for rope in adapter.ropes
    )
    return Engine(adapter, backend="torch", memory_tokens=512)
