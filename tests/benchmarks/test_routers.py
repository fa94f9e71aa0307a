"""A prompt's gate where routers choose: undecided ones do no harm, and what is wrong is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from benchmarks import gate
from benchmarks.engine_parts import executor_of
from benchmarks.experts import stacks_of
from benchmarks.prefill import check_prompt
from benchmarks.routers import Alike, routers_of
from manyhands.engine.engine import Engine
from manyhands.model.adapter import ModelAdapter
from tests.model.families_zoo import some_tokens, tiny_models

PROMPT = tuple(some_tokens(200).tolist())
SEVERAL = ["gpt_oss", "qwen3_moe"]


def engine_of(name: str) -> Engine:
    torch.manual_seed(0)
    return Engine(ModelAdapter(tiny_models()[name]()), memory_tokens=1024)


def on_the_other_side(change: Callable[[Engine], None], patch: pytest.MonkeyPatch) -> None:
    """Change the network when ours has made its pass, for plain torch alone."""

    def changed(engine: Engine) -> Engine:
        change(engine)
        return gate.plain(engine)

    patch.setattr("benchmarks.prefill.plain", changed)


@torch.no_grad()
def undecided(engine: Engine) -> None:
    """Move each router a little, as roundings do."""
    torch.manual_seed(1)
    for router in routers_of(engine):
        weight: Any = router.weight
        weight += 3e-3 * weight.std() * torch.randn_like(weight)


@torch.no_grad()
def two_experts_exchanged(engine: Engine) -> None:
    weight: Any = routers_of(engine)[1].weight
    weight[[0, 1]] = weight[[1, 0]]


@torch.no_grad()
def other_experts(engine: Engine) -> None:
    stacks_of(executor_of(engine).adapter.model)[1].down_proj *= 1.01


@contextmanager
def not_given(engine: Engine, chosen: object) -> Iterator[Alike]:
    yield Alike(0)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_right_network_is_green(name: str) -> None:
    checked, alike = check_prompt(engine_of(name), PROMPT)
    assert checked.is_green
    assert alike.is_green
    assert set(alike.same) == {1.0}
    assert set(alike.far) == {0.0}


@pytest.mark.parametrize("name", SEVERAL)
def test_undecided_routers_do_no_harm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_other_side(undecided, monkeypatch)
    checked, alike = check_prompt(engine_of(name), PROMPT)
    assert checked.is_green
    assert alike.is_green
    assert min(alike.same) < 1
    monkeypatch.setattr("benchmarks.prefill.given_choices", not_given)
    alone, _ = check_prompt(engine_of(name), PROMPT)
    assert not alone.is_green, "control: other experts are other numbers"


@pytest.mark.parametrize("name", SEVERAL)
def test_what_is_wrong_is_red(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_other_side(other_experts, monkeypatch)
    checked, alike = check_prompt(engine_of(name), PROMPT)
    assert not checked.is_green
    monkeypatch.undo()
    on_the_other_side(two_experts_exchanged, monkeypatch)
    checked, alike = check_prompt(engine_of(name), PROMPT)
    assert checked.is_green, "it is given our choices"
    assert not alike.is_green
    assert alike.far[0] == 0.0


def test_a_network_without_routers_is_asked_as_before() -> None:
    checked, alike = check_prompt(engine_of("llama"), PROMPT)
    assert checked.is_green
    assert alike.is_green
    assert alike.same == []
