"""The work list: every key of every entry once, and no processor with much more than its share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import situations
from manyhands.attention.work import ENDLESS, Occupancy, Tiling, Work, cut
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View

PROCESSORS = 132


def a_team(workers: int, history: int, desk: int) -> Plan:
    """Everybody reads the history and all desks, and writes one token."""
    planner = Planner(PagePool(4096, 64))
    common, desks = Block("history"), [Block() for _ in range(workers)]
    for block, size in ((common, history), *((block, desk) for block in desks)):
        planner.plan(Step([Row(View([block]), (0,) * size)]))
        block.tokens.extend((0,) * size)
    common.freeze()
    views = [View([common, *(d for d in desks if d is not own), own]) for own in desks]
    return planner.plan(Step([Row(view, (0,)) for view in views]))


def completions(rows: int, prompt: int) -> Plan:
    """Everybody reads the prompt, and writes the first token of an ending."""
    planner, shared = Planner(PagePool(4096, 64)), Block("prompt")
    planner.plan(Step([Row(View([shared]), (0,) * prompt)]))
    shared.tokens.extend((0,) * prompt)
    shared.freeze()
    return planner.plan(Step([Row(View([shared, Block()]), (0,)) for _ in range(rows)]))


def keys_of_items(work: Work, plan: Plan) -> list[int]:
    """How many keys each item of either list loads."""
    sizes = []
    for first, count, start, end, _, _ in (*work.small.tolist(), *work.large.tolist()):
        reach = int(work.entries.high[first : first + count].max())
        sizes.append((reach if end == ENDLESS else end) - start)
    return sizes


@pytest.mark.parametrize("group", [4, 5, 8])
@pytest.mark.parametrize("workers", [1, 4, 8, 16])
@pytest.mark.parametrize("history", [1024, 16384])
def test_nobody_waits_for_one_long_strip(group: int, workers: int, history: int) -> None:
    """A processor that loads much more than its share keeps all others waiting."""
    tiling = Tiling(group, num_kv_heads=8, num_processors=PROCESSORS)
    plan = a_team(workers, history, 128)
    sizes = keys_of_items(cut(plan, tiling), plan)
    share = sum(sizes) * tiling.num_kv_heads / PROCESSORS
    assert max(sizes) <= max(2 * share, tiling.least_split) + tiling.key_tile


def test_tiles_that_are_many_and_alike_stay_whole() -> None:
    """Cutting them would balance nothing, and every partial has to be merged."""
    tiling = Tiling(8, num_kv_heads=1, num_processors=PROCESSORS)
    work = cut(completions(2048, 2048), tiling)
    assert len(work.large) == 2048 * tiling.group // tiling.large_rows == 128
    assert np.all(work.large[:, 3] == ENDLESS)


def test_every_key_is_loaded_once_for_every_entry() -> None:
    tiling = Tiling(5, num_kv_heads=8, num_processors=PROCESSORS)
    plan = a_team(16, 5000, 70)
    work = cut(plan, tiling)
    seen = np.zeros(len(work.entries.token), dtype=np.int64)
    for first, count, start, end, _, _ in (*work.small.tolist(), *work.large.tolist()):
        for entry in range(first, first + count):
            high = int(work.entries.high[entry])
            seen[entry] += max(0, min(end, high) - max(start, int(work.entries.low[entry])))
    assert np.array_equal(seen, work.entries.high - work.entries.low)


@pytest.mark.parametrize(
    ("group", "rows", "keys", "small_rows"),
    [(1, 512, 60, 1), (1, 512, 200, 16), (1, 16, 60, 16), (4, 512, 60, 16)],
)
def test_lone_rows_have_tiles_of_their_own(
    group: int, rows: int, keys: int, small_rows: int
) -> None:
    """Where they are many, short, and heads share no keys."""
    planner = Planner(PagePool(4096, 64))
    endings = [Block() for _ in range(rows)]
    planner.plan(Step([Row(View([own]), (0,) * keys) for own in endings]))
    for own in endings:
        own.tokens.extend((0,) * keys)
    plan = planner.plan(Step([Row(View([own]), (0,)) for own in endings]))
    assert cut(plan, Tiling(group, 32, PROCESSORS)).small_rows == small_rows


@pytest.mark.parametrize(("rows", "small_rows"), [(20, 16), (64, 1)])
def test_what_lone_rows_share_does_not_widen_their_tiles(rows: int, small_rows: int) -> None:
    work = cut(completions(rows, 1024), Tiling(1, 32, PROCESSORS))
    assert work.small_rows == small_rows
    assert len(work.small) == rows
    assert set(work.large[:, 1]) == {rows}


@pytest.mark.parametrize(
    ("rows", "occupancy"), [(1, Occupancy.FEW), (20, Occupancy.SOME), (40, Occupancy.MANY)]
)
def test_programs_are_counted_over_all_heads(rows: int, occupancy: Occupancy) -> None:
    plan = Planner(PagePool(4096, 64)).plan(Step([Row(View([Block()]), (0,)) for _ in range(rows)]))
    assert cut(plan, Tiling(1, 32, PROCESSORS)).occupancy is occupancy


@pytest.mark.parametrize(
    ("rows", "keys", "group", "large_rows"),
    [
        (1024, 16384, 1, 128),
        (1024, 1024, 1, 64),  # too little for what a program of 128 rows costs before it multiplies
        (100, 16384, 1, 128),  # not one whole tile, but others would read the keys twice
        (100, 4096, 1, 64),  # twice is little
        (64, 16384, 4, 128),
        (16, 16384, 5, 128),  # a team of sixteen, 80 query heads
        (16, 4096, 5, 64),
        (12, 16384, 5, 0),  # 60: small tiles do
    ],
)
def test_tiles_are_specialised_where_it_pays(
    rows: int, keys: int, group: int, large_rows: int
) -> None:
    tiling = Tiling(group, num_kv_heads=32, num_processors=132, large_rows=64)
    plan = completions(rows, keys)
    assert cut(plan, tiling).large_rows == 64, "where there is no such kernel"
    work = cut(plan, replace(tiling, specialised_rows=128))
    if not large_rows:
        assert not len(work.large)
        assert len(cut(plan, replace(tiling, long_keys=keys)).large), "long, and half a large tile"
        assert not len(cut(plan, replace(tiling, long_keys=keys + 1)).large)
        return
    assert work.large_rows == large_rows
    assert work.large[:, 1].max() == min(rows, large_rows // group)


def a_forest(shape: str) -> Plan:
    """As the benchmark of the op writes them: nodes of each level, tokens of each node."""
    return situations.planned(situations.tree(shape), 1)[0]


@pytest.mark.parametrize(
    ("shape", "small_rows", "large"),
    [
        ("64,1024_512,32", 16, {16}),  # a node is read by 16 rows, 64 query heads; a leaf by 4
        ("4,64_512,32", 64, set()),  # the same with few programs: one launch is enough
        ("64,128_512,32", 16, set()),  # 8 query heads: nothing is wide
    ],
)
def test_tiles_of_many_narrow_strips_stay_narrow(
    shape: str, small_rows: int, large: set[int]
) -> None:
    """Where most strips have few readers, what these share goes by large tiles and widens no others."""
    work = cut(a_forest(shape), Tiling(4, num_kv_heads=8, num_processors=PROCESSORS, large_rows=64))
    assert work.small_rows == small_rows
    assert set(work.large[:, 1].tolist()) == large


@pytest.mark.parametrize(
    ("shape", "occupancy"),
    [
        ("256_4096", Occupancy.SOME),  # many, and long: as some are launched
        ("256_512", Occupancy.MANY),
        ("64_4096", Occupancy.FEW),
    ],
)
def test_long_walks_are_launched_as_those_of_some(shape: str, occupancy: Occupancy) -> None:
    tiling = Tiling(4, num_kv_heads=8, num_processors=PROCESSORS, few=8, many=8)
    assert cut(a_forest(shape), tiling).occupancy is occupancy


def test_beside_a_long_strip_half_tiles_are_large_too() -> None:
    """Of a team of eight, 40 query heads: small tiles for its desks would be a second launch beside the first."""
    tiling = Tiling(5, num_kv_heads=8, num_processors=PROCESSORS, large_rows=64, long_keys=4096)
    work = cut(a_team(8, 4096, 70), tiling)
    assert not len(work.small)
    assert not len(cut(a_team(8, 4095, 70), tiling).large)
