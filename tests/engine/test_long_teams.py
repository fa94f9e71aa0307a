"""A team that has finished many steps: none of them is looked at again when the next one ends."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from manyhands.cache.block import Block
from manyhands.cache.routes import Walk
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import Beginning, View
from manyhands.engine.engine import Engine
from manyhands.strategies.base import Answer, Reserve, Strategy
from manyhands.strategies.events import StepEnded
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.settings import EndSettings, TeamSettings
from tests.replay.runs import network
from tests.strategies.driver import PROMPT, small_text

TEXT = small_text()
# Every third token ends a step.
PIECES = frozenset(TEXT.encode(piece)[-1] for piece in ("a", "b", ".\n\n"))


def team() -> Strategy:
    settings = TeamSettings(
        workers=4,
        budget=24,
        check_every=0,
        choice=Choice(temperature=1.0, allowed=PIECES),
        end=EndSettings(finisher=False, reply=False),
    )
    return hogwild("2+3", TEXT, settings, PROMPT)


def looked_up(is_shared: bool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks that are looked up by each pass of a run in which more than two dozen steps end."""
    engine = Engine(network("qwen3"), memory_tokens=8192)
    counts = [0]
    met: Callable[..., Any] = Walk._met

    def counted(walk: Walk, block: Block) -> Any:
        counts[-1] += 1
        return met(walk, block)

    monkeypatch.setattr(Walk, "_met", counted)
    strategy = share_prompt(team(), engine.prefixes) if is_shared else team()
    run = engine.submit(strategy)
    ended, is_left = 0, True
    while is_left:
        is_left = engine.step()
        counts.append(0)
        ended += sum(isinstance(event, StepEnded) for event in run.events)
    run.result()
    assert ended > 24, ended
    return counts


@pytest.mark.parametrize("is_shared", [False, True])
def test_finished_steps_are_not_looked_at_again(
    is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = looked_up(is_shared, monkeypatch)
    assert max(counts[-8:]) <= max(counts[:12])


def test_control_a_prompt_that_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a first block that is never finished, each plan walks the whole history."""
    freeze = Block.freeze
    monkeypatch.setattr(
        Block, "freeze", lambda block: block if block.name == "prompt" else freeze(block)
    )
    counts = looked_up(False, monkeypatch)
    assert max(counts[-8:]) > max(counts[:12])


def test_views_over_a_shared_prompt_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each past goes on from the last one, as the strategy's own do."""
    lines = dict[int, object]()
    made = Beginning.__init__

    def noted(self: Beginning, blocks: Any, last: Beginning | None = None) -> None:
        made(self, blocks, last)
        lines.setdefault(id(self.line), self.line)

    monkeypatch.setattr(Beginning, "__init__", noted)
    engine = Engine(network("qwen3"), memory_tokens=8192)
    engine.run(share_prompt(team(), engine.prefixes))
    assert len(lines) == 2, "the strategy's, and the engine's"


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_history_that_is_let_go_of_is_gone(is_shared: bool) -> None:
    """Nothing of a shared prompt holds blocks that the strategy has dropped while it goes on."""
    is_held: list[bool] = []

    def strategy() -> Strategy:
        prompt, past = Block("prompt"), Block("past")
        first = Row(View((prompt,)), tuple(range(3, 20)))
        yield Reserve(400, 8, prompt=first)
        yield Step((first,))
        prompt.freeze()
        yield Step((Row(View((prompt, past)), (4,) * 90),))
        known = weakref.ref(past.freeze())
        yield Step((Row(View((Block("desk"),), Beginning((prompt, past))), (5,)),))
        del past
        onward = View((prompt, Block("onward")))
        for _ in range(3):
            yield Step((Row(onward, (6,)),))
            gc.collect()
            is_held.append(known() is not None)
        return Answer(text="")

    engine = Engine(network("qwen3"), memory_tokens=8192)
    engine.run(share_prompt(strategy(), engine.prefixes) if is_shared else strategy())
    assert not is_held[-1]
