"""A wide recording has room for what passes of so many tokens bring in life."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.attention.prepared import Capacity, rounded_tokens
from manyhands.attention.work import Tiling, cut
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.graphs import AHEAD, Room, has_large_ahead, kinds_ahead, wide_capacity
from tests.attention.test_work import a_team, completions

TILINGS = [
    Tiling(group, num_kv_heads=8, num_processors=132, large_rows=64, specialised_rows=128)
    for group in (1, 4, 5, 8)
]


def fits(plan: Plan, tiling: Tiling, room: Room | None = None) -> bool:
    """Into the wide recording that is meant for the plan, or into the one of this room."""
    has_large = has_large_ahead(plan, cut(plan, tiling))
    tokens = rounded_tokens(plan.num_tokens)
    if room is None:
        room = Room.LARGE if has_large else Room.ROOMY
    assert tokens > AHEAD or (tokens, room) in kinds_ahead(AHEAD)
    wide = wide_capacity(tokens, tiling, room)
    work = cut(plan, tiling, wide.cutting)
    assert (work.small_rows, work.occupancy) == (wide.small_rows, wide.occupancy)
    assert wide.large or not len(work.large)
    return wide.holds(Capacity.of(plan, work))


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("history", [64, 16384])
def test_a_team_fits(workers: int, history: int, tiling: Tiling) -> None:
    assert fits(a_team(workers, history, 150), tiling)


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("history", [64, 1024, 16384, 100_000])
def test_a_team_fits_where_there_is_least_room(workers: int, history: int, tiling: Tiling) -> None:
    assert fits(a_team(workers, history, 150), tiling, Room.LEAN)


def test_control_rows_of_many_strips_need_more_room() -> None:
    planner, views = Planner(PagePool(4096, 64)), []
    for _ in range(32):
        blocks = [Block() for _ in range(8)]
        for block in blocks:
            planner.plan(Step([Row(View([block]), (0,) * 20)]))
            block.tokens.extend((0,) * 20)
        views.append(View(blocks))
    plan = planner.plan(Step([Row(view, (0,)) for view in views]))
    assert not fits(plan, TILINGS[1], Room.LEAN)
    assert fits(plan, TILINGS[1])


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
@pytest.mark.parametrize("rows", [8, 32, 128, 250, 256])
def test_completions_fit(rows: int, tiling: Tiling) -> None:
    assert fits(completions(rows, 2048), tiling)


def test_control_more_than_there_is_room_for() -> None:
    assert not fits(completions(512, 512), TILINGS[1]), "its rows"
