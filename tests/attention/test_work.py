"""The work list: every key of every entry once, and no processor with much more than its share."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks import situations
from manyhands.attention.prepared import Capacity
from manyhands.attention.work import (
    Cutting,
    Occupancy,
    Stretches,
    Tiling,
    Work,
    _are_small,
    _is_walk,
    _sizes_of_few,
    begin_beside,
    cut,
)
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.native.plain import ENDLESS

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


def fed(rows: list[tuple[View, int]]) -> Plan:
    """Rows of these views feed so many tokens each."""
    return Planner(PagePool(4096, 64)).plan(Step([Row(view, (0,) * count) for view, count in rows]))


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


@pytest.mark.parametrize(("large_rows", "are_fewer"), [(128, True), (64, False)])
def test_wide_tiles_leave_processors_to_those_that_begin(large_rows: int, are_fewer: bool) -> None:
    """A processor holds one of them: while a history is read by all, no desk can begin. Narrower ones stand side by side."""
    plan = a_team(16, 16384, 128)
    tiling = Tiling(5, num_kv_heads=8, num_processors=PROCESSORS, large_rows=large_rows)
    found = len(cut(plan, tiling).large)
    unaware = len(cut(plan, replace(tiling, wide_to_begin=0)).large)
    assert (found < unaware) is are_fewer
    assert found <= unaware


@pytest.mark.parametrize(
    ("group", "history", "occupancy"),
    [
        (5, 1024, Occupancy.SOME),
        (5, 4096, Occupancy.FEW),  # a long walk
        (4, 1024, Occupancy.FEW),  # of 16 rows, which have a launch for few
    ],
)
def test_few_tiles_of_32_rows_launch_as_some_where_stretches_are_short(
    group: int, history: int, occupancy: Occupancy
) -> None:
    """Their own launch pays in long walks alone."""
    work = cut(a_team(4, history, 128), Tiling(group, num_kv_heads=8, num_processors=PROCESSORS))
    assert work.small_rows == (32 if group == 5 else 16)
    assert not len(work.large)
    assert work.occupancy is occupancy


@pytest.mark.parametrize(
    ("group", "workers", "small_rows"),
    [(5, 3, 16), (5, 4, 24), (5, 5, 32), (4, 6, 24), (4, 7, 32), (16, 2, 32), (1, 20, 24)],
)
def test_rows_between_two_powers_of_two(group: int, workers: int, small_rows: int) -> None:
    """Where there is a kernel for them, and programs are few; a recording has rows for the same."""
    tiling = Tiling(group, num_kv_heads=8, num_processors=PROCESSORS, between_rows=24)
    work = cut(a_team(workers, 8192, 128), tiling)
    assert work.small_rows == small_rows
    assert tiling.small_size(workers * group) == small_rows
    usual = replace(tiling, between_rows=0)
    assert cut(a_team(workers, 8192, 128), usual).small_rows == {24: 32}.get(small_rows, small_rows)
    many = cut(completions(400, 64), tiling)
    assert many.small_rows != 24


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
    ("rows", "keys", "group", "large_rows", "is_specialised"),
    [
        (1024, 16384, 1, 128, True),
        # too little for what a program of 128 rows costs before it multiplies
        (1024, 1024, 1, 64, False),
        (100, 16384, 1, 128, True),  # not one whole tile, but others would read the keys twice
        (100, 4096, 1, 128, False),  # an ordinary tile of as many rows does
        (100, 2048, 1, 64, False),  # twice is little
        (64, 16384, 4, 128, True),
        (16, 16384, 5, 128, True),  # a team of sixteen, 80 query heads
        (16, 4096, 5, 128, False),
        (16, 2048, 5, 64, False),
        (12, 16384, 5, 0, False),  # 60: small tiles do
    ],
)
def test_tiles_are_specialised_where_it_pays(
    rows: int, keys: int, group: int, large_rows: int, is_specialised: bool
) -> None:
    tiling = Tiling(group, num_kv_heads=32, num_processors=132, large_rows=64)
    plan = completions(rows, keys)
    without = cut(plan, tiling)
    assert (without.large_rows, without.is_specialised) == (64, False), (
        "where there is no such kernel"
    )
    work = cut(plan, replace(tiling, specialised_rows=128))
    if not large_rows:
        assert not len(work.large)
        assert len(cut(plan, replace(tiling, long_keys=keys)).large), "long, and half a large tile"
        assert not len(cut(plan, replace(tiling, long_keys=keys + 1)).large)
        return
    assert (work.large_rows, work.is_specialised) == (large_rows, is_specialised)
    assert work.large[:, 1].max() == min(rows, large_rows // group)


@pytest.mark.parametrize(
    ("rows", "keys", "group", "large_rows", "is_specialised"),
    [
        (16, 65536, 5, 80, True),
        (16, 16384, 5, 80, True),  # sooner than with all rows of a tile
        (16, 4096, 5, 64, False),
        (20, 65536, 4, 80, True),
        (21, 65536, 4, 128, True),
        (21, 16384, 4, 128, False),
    ],
)
def test_specialised_tiles_have_few_rows_beyond_half_where_that_is_all(
    rows: int, keys: int, group: int, large_rows: int, is_specialised: bool
) -> None:
    tiling = Tiling(group, 8, 132, large_rows=64, specialised_rows=128, few_rows=80)
    plan = completions(rows, keys)
    work = cut(plan, tiling)
    assert (work.large_rows, work.is_specialised) == (large_rows, is_specialised)
    assert Capacity.of(plan, work).rounded().large_rows == large_rows


@pytest.mark.parametrize(
    ("workers", "keys", "desk", "large_rows"),
    [
        (8, 16384, 128, 64),  # 40 query heads
        (8, 8192, 128, 0),
        (8, 16384, 2048, 0),  # desks are as many keys as the history
        (6, 16384, 128, 0),  # 30: half of a tile would be empty
        (16, 16384, 128, 128),
    ],
)
def test_a_team_has_narrow_tiles_where_they_pay(
    workers: int, keys: int, desk: int, large_rows: int
) -> None:
    """All of it then: one launch. For a recording without such tiles nothing of it has."""
    tiling = Tiling(5, 8, 132, large_rows=128, specialised_rows=128, specialised_reads=1 << 16)
    tiling = replace(tiling, key_tile=128, narrow_rows=64)
    plan, _ = situations.planned(situations.team(workers, keys, desk), 1)
    work = cut(plan, tiling)
    assert work.is_specialised == (large_rows > 0)
    assert (len(work.large), len(work.small))[not large_rows]
    assert not (len(work.small), len(work.large))[not large_rows]
    if large_rows == 64:
        assert work.large_rows == 64
        plain = Cutting(work.small_rows, 128, Occupancy.FEW)
        assert not len(cut(plan, tiling, plain).large)
        same = cut(plan, tiling, Cutting(work.small_rows, 64, Occupancy.FEW, is_specialised=True))
        assert np.array_equal(same.large, work.large)


@pytest.mark.parametrize(("others", "is_walk"), [(30, True), (40, False)])
def test_short_stretches_beside_a_long_one_count_for_more_than_their_keys(
    others: int, is_walk: bool
) -> None:
    tiling = Tiling(4, num_kv_heads=8, num_processors=PROCESSORS, narrow_rows=64)
    keys = np.array([16384, *[10] * others])
    assert _is_walk(np.full(len(keys), 64), keys, tiling) == is_walk


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("rows", [9, 17, 60])
@pytest.mark.parametrize("keys", [200, 900])
def test_short_stretches_have_no_narrow_tiles(rows: int, keys: int, group: int) -> None:
    """Completions of one short prompt, beside many lone rows too: what fits a narrow tile need not be worth one."""
    tiling = Tiling(group, 8, 132, large_rows=128, specialised_rows=128, specialised_reads=1 << 16)
    tiling = replace(tiling, key_tile=128, narrow_rows=64)
    lone = [View([Block()]) for _ in range(300)]
    for views in (
        situations.completions(rows, keys, 20),
        [*situations.completions(rows, keys, 20), *lone],
    ):
        work = cut(situations.planned(views, 1)[0], tiling)
        assert not work.is_specialised


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
    ("shape", "small_rows", "is_beside"),
    [
        ("1,256_256,32", 16, True),
        ("1,64_128,1024", 16, False),  # few large tiles: small ones take longest
        ("4,64_4096,128", 64, False),  # no large ones
        ("1,2,64_1024,256,256", 16, True),
    ],
)
def test_small_tiles_that_begin_beside_large_ones(
    shape: str, small_rows: int, is_beside: bool
) -> None:
    """The narrowest, where large ones fill half of the processors."""
    tiling = Tiling(4, num_kv_heads=8, num_processors=PROCESSORS, large_rows=64)
    work = cut(a_forest(shape), tiling)
    counted = work.small_rows, work.large_rows, len(work.large)
    assert work.small_rows == small_rows
    assert not begin_beside(*counted, tiling)
    tiling = replace(tiling, can_begin_beside=True)
    assert begin_beside(*counted, tiling) == is_beside


def test_where_small_tiles_begin_beside_large_ones_they_are_many_earlier() -> None:
    tiling = Tiling(8, num_kv_heads=1, num_processors=PROCESSORS, large_rows=64)
    plan = completions(1024, 2048)  # 7.8 programs a processor
    assert cut(plan, tiling).occupancy == Occupancy.SOME
    assert cut(plan, replace(tiling, can_begin_beside=True)).occupancy == Occupancy.MANY


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


def a_team_that_lives(workers: int, history: int, step: int) -> Plan:
    """Everybody reads a history, a finished step, the header that lies behind the history, desks with markers between them."""
    planner = Planner(PagePool(4096, 64))
    common, header, finished, marker = (
        Block(name) for name in ("history", "header", "step", "marker")
    )
    desks = [Block() for _ in range(workers)]
    sizes = {common: history, header: 8, finished: step, marker: 4, **dict.fromkeys(desks, 60)}
    for block, size in sizes.items():
        planner.plan(Step([Row(View([block]), (0,) * size)]))
        block.tokens.extend((0,) * size)
    for block in (common, header, finished, marker):
        block.freeze()
    planner.plan(Step([Row(View([common, header, Block()]), (0,))]))  # the header is moved there
    views = []
    for own in desks:
        others = [block for desk in desks if desk is not own for block in (desk, marker)]
        views.append(View([common, finished, header, *others, own]))
    return planner.plan(Step([Row(view, (0,)) for view in views]))


def test_blocks_of_one_strip_that_are_read_apart_have_tiles_of_their_own() -> None:
    """A header behind the history would walk over all of it, once for every row."""
    plan = a_team_that_lives(16, 4096, 200)
    tiling = Tiling(4, num_kv_heads=8, num_processors=PROCESSORS, large_rows=64)
    work = cut(plan, tiling)
    entries = work.entries
    seen = {
        (int(entries.low[at]), int(entries.high[at]))
        for first, count, *_ in work.small.tolist()
        for at in range(first, first + count)
    }
    assert {(0, 4096), (4096, 4104)} <= seen, "both lie on one strip"
    assert not len(work.large), "16 rows of 4 query heads are one small tile"
    for first, count, *_ in work.small.tolist():
        ranges = set(
            zip(
                entries.low[first : first + count], entries.high[first : first + count], strict=True
            )
        )
        assert not {(0, 4096), (4096, 4104)} <= ranges
    # Of 4096 + 200 + 8 + 16 * 61 + 4 keys, only those of the marker are loaded more than once, and splits may overlap by a tile.
    loaded = sum(keys_of_items(work, plan))
    assert 5284 <= loaded <= 5284 + 15 * 4 + 64 * len(work.small)
    # A control: in the order of the rows every tile of that strip has both.
    order = np.lexsort((plan.reads.row, strip_of_reads(plan)))
    mixed = replace(
        plan,
        reads=replace(
            plan.reads,
            **{name: getattr(plan.reads, name)[order] for name in ("row", "base", "low", "high")},
        ),
    )
    assert sum(keys_of_items(cut(mixed, tiling), mixed)) > loaded + 4000


def strip_of_reads(plan: Plan) -> np.ndarray:
    """[n]: the strip of each read."""
    return np.repeat(np.arange(len(plan.reads.pages)), np.diff(plan.reads.strip_indptr))


def test_stretches_are_strips_where_all_rows_see_the_same() -> None:
    entries = cut(a_team(4, 1024, 128), Tiling(4, 8, PROCESSORS)).entries
    indptr, strip = entries.stretches(64)
    assert indptr.tolist() == entries.strip_indptr.tolist()
    assert strip.tolist() == list(range(5))
    lives = cut(a_team_that_lives(4, 1024, 200), Tiling(4, 8, PROCESSORS)).entries
    indptr, strip = lives.stretches(64)
    assert np.bincount(strip).tolist() == [2, 1, 1, 1, 1, 1, 1]
    assert len(lives.stretches(2048)[0]) == len(lives.strip_indptr), "short strips are left whole"


def test_many_small_tiles_have_splits_enough() -> None:
    """Thirty-two teams alone would be two programs a processor, of which some walk twice as long as others."""
    plan = a_forest("32,128_~2048,~128")
    tiling = Tiling(4, num_kv_heads=8, num_processors=PROCESSORS)
    wide = Cutting(16, 0, Occupancy.MANY)
    longest = max(keys_of_items(cut(plan, tiling, wide), plan))
    assert longest < 768
    two = replace(tiling, splits_of_many=2.0, long_of_many=1 << 20)
    assert max(keys_of_items(cut(plan, two, wide), plan)) > 1500


@pytest.mark.parametrize(
    ("shape", "most", "of_eight"),
    [
        ("32,128_~1024,~64", 448, 448),  # eight splits a processor are short
        ("32,128_~2048,~128", 576, 704),  # 512 keys are enough
        ("32,128_~2048,~500", 576, 960),  # sixteen splits are enough for that
        ("32,128_~2048,~2048", 1792, 2624),  # for that they are not, and there are twelve
    ],
)
def test_long_splits_of_many_are_finer(shape: str, most: int, of_eight: int) -> None:
    """Thirty-two teams: the longest item, in whole iterations, and the longest if all had eight splits a processor."""
    plan = a_forest(shape)
    tiling = Tiling(4, num_kv_heads=8, num_processors=PROCESSORS)
    wide = Cutting(16, 0, Occupancy.MANY)

    def longest(tiling: Tiling) -> int:
        return -(-max(keys_of_items(cut(plan, tiling, wide), plan)) // 64) * 64

    assert longest(tiling) == most
    assert longest(replace(tiling, long_of_many=1 << 20)) == of_eight


@pytest.mark.parametrize(
    ("heads", "workers", "history", "sizes"),
    [
        (
            (32, 32),
            1,
            16384,
            range(2048, 2049),
        ),  # eight whole ones of each head for 264 that run at once; 2560: 79 us for 71
        (
            (40, 40),
            1,
            16384,
            range(2560, 2561),
        ),  # six and a shorter one; 3200 leaves some processors with one: 94 for 85
        ((40, 8), 4, 16384, range(576, 769)),  # 512: 31 for 27.5
        (
            (28, 4),
            1,
            16384,
            range(512, 513),
        ),  # one a processor, of half as many partials; 256: 19.4 for 16.9
        ((32, 8), 1, 65536, range(2048, 2049)),
        ((32, 8), 4, 4096, range(256, 257)),  # 192: 15.2 for 14.4
        ((40, 8), 2, 1024, range(128, 129)),
    ],
)
def test_few_programs_are_done_together(
    heads: tuple[int, int], workers: int, history: int, sizes: range
) -> None:
    """Keys of the longest item of a team, as they were the fastest on an H200 with its cache flushed."""
    tiling = Tiling(
        heads[0] // heads[1], num_kv_heads=heads[1], num_processors=PROCESSORS, between_rows=24
    )
    plan = situations.planned(situations.team(workers, history, 128), 1)[0]
    assert max(keys_of_items(cut(plan, tiling), plan)) in sizes


@pytest.mark.parametrize(
    ("heads", "workers", "history", "size", "otherwise"),
    [
        # Of short ones more begin, and more partials are merged.
        ((28, 4), 1, 16384, 512, {"keys_to_begin": 0}),
        ((28, 4), 1, 16384, 512, {"keys_to_merge": 0}),
        # Some begin when others have ended: 320 keys would make 272 programs, of which 264 begin at once.
        ((32, 8), 8, 8192, 384, {"keys_to_wait": 0}),
        # Of long ones a processor has one, which cannot read as much as two.
        ((40, 8), 4, 16384, 576, {"share_alone": 1.0}),
    ],
)
def test_what_few_programs_are_cut_by(
    heads: tuple[int, int], workers: int, history: int, size: int, otherwise: dict[str, float]
) -> None:
    """Each price moves the size where it decides."""
    tiling = Tiling(heads[0] // heads[1], num_kv_heads=heads[1], num_processors=PROCESSORS)
    plan = situations.planned(situations.team(workers, history, 128), 1)[0]
    assert max(keys_of_items(cut(plan, tiling), plan)) == size
    other = replace(tiling, **otherwise)  # type: ignore[arg-type]
    assert max(keys_of_items(cut(plan, other), plan)) != size


def test_sizes_of_few_lie_about_a_share() -> None:
    """None is shorter than the least, longer than the longest tile, or far from what each would have."""
    tiling = Tiling(4, num_kv_heads=8, num_processors=PROCESSORS)
    assert _sizes_of_few(20.0, 4096, tiling) == [128]
    assert _sizes_of_few(300.0, 192, tiling) == [192]
    sizes = _sizes_of_few(500.0, 16384, tiling)
    assert sizes[0] == 512
    assert _sizes_of_few(520.0, 16384, tiling)[0] == 512, "hardly less than a share"
    assert 1152 <= sizes[-1] <= 1344
    assert all(size % tiling.key_tile == 0 for size in sizes)
    assert 16384 // 4 in _sizes_of_few(3000.0, 16384, tiling)


@pytest.mark.parametrize(("new", "large_rows"), [(1280, 64), (2048, 128)])
def test_a_prompt_counts_the_keys_that_it_sees(new: int, large_rows: int) -> None:
    """Half of rows times keys: tiles of 64 rows take 0.96 of the time for 1 k tokens, and 1.18 for 2 k."""
    plan = situations.planned(situations.prefill(0), new)[0]
    tiling = Tiling(
        4, num_kv_heads=8, num_processors=PROCESSORS, large_rows=64, specialised_rows=128
    )
    assert cut(plan, tiling).large_rows == large_rows


@pytest.mark.parametrize(
    ("prompts", "in_turns"),
    [
        ([(0, 2048)], True),
        ([(0, 8192)], True),
        ([(4096, 1024)], True),
        ([(i * 2048, 512) for i in range(8)], True),
        ([(32768, 256), (0, 4096), *[(0, 512)] * 4], False),  # a few long ones, many short ones
        ([(0, 128)], False),  # ordinary tiles
    ],
)
def test_a_program_takes_several_items_if_that_is_even(
    prompts: list[tuple[int, int]], in_turns: bool
) -> None:
    """Prompts of so many tokens before and so many new ones, whose programs meet every item once, and end together."""
    planner, blocks = Planner(PagePool(4096, 64)), [Block() for _ in prompts]
    for block, (history, _) in zip(blocks, prompts, strict=True):
        if history:
            planner.plan(Step([Row(View([block]), (0,) * history)]))
            block.tokens.extend((0,) * history)
    rows = [Row(View([b]), (0,) * new) for b, (_, new) in zip(blocks, prompts, strict=True)]
    plan = planner.plan(Step(rows))
    tiling = Tiling(4, 8, PROCESSORS, large_rows=64, specialised_rows=128)
    work = cut(plan, tiling)
    assert work.in_turns is in_turns
    if not work.is_specialised:
        return
    reach = np.minimum(work.entries.high, work.entries.offset + 1)
    pieces = [
        min(end, int(reach[first : first + count].max())) - start
        for first, count, start, end, _, _ in work.large.tolist()
        for _ in range(tiling.num_kv_heads)
    ]
    taken = [at for first in range(PROCESSORS) for at in turns(first, len(pieces))]
    assert sorted(taken) == list(range(len(pieces)))
    sums = [sum(pieces[at] for at in turns(n, len(pieces))) for n in range(PROCESSORS)]
    evenly = max(*pieces, sum(pieces) / PROCESSORS)
    assert (max(sums) <= 1.15 * evenly) is in_turns


@pytest.mark.parametrize("is_specialised", [False, True])
@pytest.mark.parametrize(
    ("own", "size", "splits", "merged"),
    [
        ([], 3000, False, None),  # all have one partial: all leave outputs anyway
        ([1], 3000, False, (3000, 3001)),
        ([2, 1], 2999, False, (2996, 3002)),
        (
            [1],
            3000,
            True,
            (1600, 3001),
        ),  # the later half of the prompt is split, if tiles are specialised
        ([2000], 1500, False, None),  # most read two strips
        ([1], 500, False, None),  # a short one
    ],
)
def test_outputs_are_left_but_for_tokens_that_are_merged(
    own: list[int], size: int, splits: bool, merged: tuple[int, int] | None, is_specialised: bool
) -> None:
    """A prompt of `size` tokens, and rows of so many tokens behind it."""
    prompt = Block()
    plan = fed([(View([prompt]), size), *((View([prompt, Block()]), count) for count in own)])
    tiling = Tiling(
        4,
        num_kv_heads=8 if not splits else 1,
        num_processors=132 if splits else 4,
        large_rows=64,
        specialised_rows=128 if is_specialised else 0,
        specialised_work=0,
        specialised_reads=0,
        least_left=1024,
    )
    usual = cut(plan, tiling)
    work = usual.leaving(tiling)
    assert usual.leaving(replace(tiling, least_left=0)) is usual
    if merged is None:
        assert work is usual
        return
    first, end = (3000, 3001) if splits and not is_specialised else merged
    assert (work.first_merged, work.end_merged) == (first, end)
    token = work.entries.token
    is_merged = (token >= first) & (token < end)
    assert (work.entry_partial[~is_merged] == -1).all()
    counts = np.diff(usual.partial_indptr)
    assert (counts[:first] == 1).all()
    assert (counts[end:] == 1).all()
    assert (np.diff(work.partial_indptr)[first:end] == counts[first:end]).all()
    assert work.num_partials == counts[first:end].sum()
    places = usual.entry_partial[is_merged] - usual.entry_partial[is_merged].min()
    assert (work.entry_partial[is_merged] == places).all()
    of_small = {at for each in work.small for at in range(each[0], each[0] + each[1])}
    assert of_small, "the rows' own strips"
    assert is_merged[sorted(of_small)].all(), "kernels of small tiles leave partials alone"


def turns(first: int, count: int) -> list[int]:
    """The pieces, of so many, that a program of kernels/specialised.py takes that begins with piece `first`."""
    taken, at, step = [], first, 2 * (PROCESSORS - first) - 1
    while at < count:
        taken.append(at)
        at, step = at + step, 2 * PROCESSORS - step
    return taken


def test_stretches_overlap_in_no_order() -> None:
    """A read that begins before another one ends belongs to the same stretch, wherever it stands in the list."""
    entries = cut(a_team_that_lives(4, 1024, 200), Tiling(4, 8, PROCESSORS)).entries
    rng = np.random.default_rng(0)
    bounds = entries.strip_indptr
    for _ in range(20):
        order = np.concatenate(
            [rng.permutation(np.arange(*pair)) for pair in pairwise(bounds.tolist())]
        )
        mixed = entries._replace(low=entries.low[order], high=entries.high[order])
        indptr, strip = mixed.stretches(64)
        ranges = [
            (int(s), int(mixed.low[a:b].min()), int(mixed.high[a:b].max()))
            for s, (a, b) in zip(strip, pairwise(indptr.tolist()), strict=True)
        ]
        for one, other in pairwise(ranges):
            assert one[0] < other[0] or one[2] <= other[1]


@pytest.mark.parametrize("group", [1, 4])
def test_strips_that_all_have_many_rows_get_large_tiles_unless_all_are_short(group: int) -> None:
    tiling = Tiling(group, num_kv_heads=8, num_processors=PROCESSORS, most_small_rows=64)
    many, short, long = np.array([65, 80, 200]), np.array([64, 10, 1]), np.array([64, 65, 1])
    assert _are_small(many, short, tiling).all()
    assert not _are_small(many, long, tiling).any()
    assert _are_small(many - 1, long, tiling).tolist() == [True, False, False]


@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("is_hopper", [False, True])
def test_large_tiles_are_told_without_a_list(group: int, is_hopper: bool) -> None:
    """As the whole list has them: none, ordinary ones, specialised ones, narrow ones."""
    tiling = Tiling(group, num_kv_heads=8, num_processors=PROCESSORS, large_rows=64)
    if is_hopper:
        tiling = replace(tiling, specialised_rows=128, narrow_rows=32, narrow_keys=1024)
    plans = [
        *(a_team(workers, history, 40) for workers in (1, 4, 16) for history in (64, 16384)),
        *(completions(rows, prompt) for rows in (8, 200) for prompt in (64, 8192)),
        *(a_forest(shape) for shape in ("64,1024_512,32", "4,64_512,32", "64,128_512,32")),
    ]
    kinds = set()
    for plan in plans:
        work = cut(plan, tiling)
        has_large = len(work.large) > 0
        found = Stretches.of(plan, tiling).large_tiles(tiling)
        assert found == ((work.large_rows, work.is_specialised) if has_large else (0, False))
        kinds.add(found)
    assert len(kinds) > 1 + (is_hopper and group > 1)
