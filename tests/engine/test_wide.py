"""A wide recording has room for what passes of so many tokens bring in life."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton comes for Linux only")

from benchmarks import situations
from benchmarks.step_end import unlaunched
from manyhands.attention.fitting import of_latents
from manyhands.attention.prepared import tokens_of_ended
from manyhands.attention.work import (
    Cutting,
    Occupancy,
    Stretches,
    Tiling,
    Work,
    cut,
    power_of_two,
)
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import capacities, matching, recordings
from manyhands.engine.capacities import (
    AHEAD,
    Wide,
    kind_ahead,
    kind_of_small,
    kinds_ahead,
    most_ahead,
    wide_capacity,
)
from manyhands.engine.matching import PlanMatcher
from manyhands.evaluation import life
from tests.attention.test_work import a_team, completions

TILINGS = [
    Tiling(group, num_kv_heads=8, num_processors=132, large_rows=64, specialised_rows=128)
    for group in (1, 4, 5, 8)
]


def fits(plan: Plan, tiling: Tiling) -> bool:
    kind = kind_ahead(plan, cut(plan, tiling), tiling)
    count = plan.num_tokens
    sizes = [tokens for tokens, made_for in kinds_ahead(AHEAD, tiling) if made_for is kind]
    return fits_into(plan, tiling, min(size for size in sizes if size >= count), kind)


def fits_into(plan: Plan, tiling: Tiling, tokens: int, kind: Wide) -> bool:
    assert (tokens, kind) in kinds_ahead(AHEAD, tiling)
    wide = wide_capacity(tokens, tiling, kind)
    work = cut(plan, tiling, wide.cutting)
    assert (work.small_rows, work.occupancy) == (wide.small_rows, wide.occupancy)
    assert wide.large or not len(work.large)
    return wide.holds(plan, work)


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("history", [64, 16384])
def test_a_team_fits(workers: int, history: int, tiling: Tiling) -> None:
    assert fits(a_team(workers, history, 150), tiling)


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
@pytest.mark.parametrize("tokens", [769, 1024, 1100, 1535, 1536, 1700, 2048])
@pytest.mark.parametrize(
    ("prompts", "histories", "rows"),
    [(1, (), 0), (1, (100,), 0), (1, (30, 30_000), 0), (2, (), 0), (8, (), 0), (1, (), 32)],
    ids=["alone", "behind", "behind two", "two", "eight", "beside rows"],
)
def test_prompts_fit(
    prompts: int, histories: tuple[int, ...], rows: int, tokens: int, tiling: Tiling
) -> None:
    """Their last tokens are fed by the rows that write behind them."""
    common = [situations.block_of(length) for length in histories]
    feeds = []
    for _ in range(prompts):
        block = Block()
        feeds.append((View([*common, block]), (tokens - rows) // prompts - 1))
        feeds.append((View([*common, block, Block()]), 1))
    lone = [View([situations.block_of(300 + each), Block()]) for each in range(rows)]
    plan = fed([*feeds, *((view, 1) for view in lone)])
    assert fits(plan, tiling)


@pytest.mark.parametrize("eight_bits", [False, True])
@pytest.mark.parametrize(("heads", "group"), [(1, 8), (4, 4), (8, 4), (8, 5), (8, 8), (16, 4)])
def test_recordings_for_prompts_have_the_tiles_that_these_want(
    heads: int, group: int, eight_bits: bool
) -> None:
    """Where there are more heads, or in 16 bits, specialised ones pay sooner; a prompt with others asks for a recording of its own."""
    tiling = replace(TILINGS[0], group=group, num_kv_heads=heads)
    if eight_bits:  # as `fitting.py` has it
        tiling = replace(tiling, specialised_work=1 << 40, specialised_reads=1 << 16)
    specialised = []
    for tokens, kind in kinds_ahead(AHEAD, tiling):
        if kind is Wide.LARGE and tokens > 768:
            work = cut(fed([(View([Block()]), tokens)]), tiling)
            wide = wide_capacity(tokens, tiling, kind)
            wanted = work.large_rows, work.is_specialised
            assert (wide.large_rows, wide.is_specialised) == wanted
            specialised += [tokens] if wide.is_specialised else []
    least = {8: 0, 16: 0, 32: 1536, 40: 1408, 64: 1152}[heads * group]
    assert min(specialised, default=0) == (0 if eight_bits else least)


def test_recordings_for_prompts_are_made_behind_those_that_passes_need_more() -> None:
    """A device that has no memory for them has all others; the largest one's memory is enough for the rest."""
    kinds = kinds_ahead(AHEAD, TILINGS[-1])
    to_spare = [capacities.is_to_spare(*each) for each in kinds]
    assert to_spare == sorted(to_spare)
    prompts = [tokens for tokens, kind in kinds if tokens > 768]
    assert prompts == sorted(prompts, reverse=True)
    assert (max(prompts), min(prompts)) == (2048, 832)
    least = [tokens for (tokens, kind), spare in zip(kinds, to_spare, strict=True) if not spare]
    assert max(least) == 768


def test_what_is_recorded_for_prompts_depends_on_what_a_layer_costs() -> None:
    """Qwen3-30B-A3B, Qwen3-8B, Qwen3-32B and Llama-3-70B in 16 bits."""
    sizes = (0.14e9, 0.45e9, 1.0e9, 1.75e9)
    assert [most_ahead(size) for size in sizes] == [2048, 2048, 1000, 768]
    assert [most_ahead(size, 900) for size in sizes] == [900, 900, 900, 768]
    assert [most_ahead(size, 100) for size in sizes] == [768] * 4, "others need these"
    # Halves of these layers over two ranks, which have sums to launch besides: the last two are 32 B and 70 B.
    halves = [most_ahead(size / 2, is_over_ranks=True) for size in sizes]
    assert halves == [2048, 2048, 2048, 1714]
    assert most_ahead(0.524e9) < 2048, "as many as one GPU would record of so large a layer"


def test_finer_splits_of_long_strips_fit() -> None:
    """Of few key heads each strip has many splits: sixteen a processor, and not eight, beside what is too short to be cut."""
    plan = situations.planned(situations.tree("64,128_8000,10"), 1)[0]
    tiling = Tiling(16, num_kv_heads=2, num_processors=132, large_rows=64, specialised_rows=128)
    assert fits_into(plan, tiling, 128, Wide.SMALL)


@pytest.mark.parametrize(
    ("kv_heads", "group", "shape"),
    [
        (1, 4, "2,128_16384,300"),
        (1, 8, "2,128_16384,300"),
        (1, 8, "4,256_8192,200"),
        (2, 2, "2,128_16384,300"),
        (4, 1, "1,64_100000,100"),
    ],
)
def test_partials_of_finer_splits_fit(kv_heads: int, group: int, shape: str) -> None:
    """Each of many splits leaves a partial for every token of its tile."""
    plan = situations.planned(situations.tree(shape), 1)[0]
    tiling = Tiling(group, num_kv_heads=kv_heads, num_processors=132)
    assert fits_into(plan, tiling, plan.num_tokens, Wide.SMALL)


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
@pytest.mark.parametrize(
    ("workers", "ended"), [(4, 1), (8, 2), (16, 1), (16, 2), (16, 3), (16, 4), (16, 5)]
)
@pytest.mark.parametrize("history", [64, 65536])
def test_a_team_whose_steps_have_ended_fits(
    history: int, workers: int, ended: int, tiling: Tiling
) -> None:
    """Many tokens and few of them plain, in recordings whose lists are short."""
    plan, _ = situations.live_team(workers, history, 150, prefixes=ended)
    assert plan.num_tokens > plan.num_rows
    assert fits_into(plan, tiling, tokens_of_ended(plan.num_tokens), Wide.ENDED)


@pytest.mark.parametrize(("parts", "group"), [(1, 16), (1, 20), (1, 40), (2, 64)])
@pytest.mark.parametrize("history", [64, 4096, 131072])
def test_teams_and_completions_over_latents_fit(history: int, parts: int, group: int) -> None:
    """All tiles are small ones of one size there; a team's may be a prompt's as well."""
    tiling = of_latents(Tiling(group, parts, 132))
    plans = [a_team(workers, history, 150) for workers in (1, 2, 4, 16)]
    plans += [completions(rows, min(history, 4096)) for rows in (8, 64, 256)]
    for plan in plans:
        assert cut(plan, tiling).small_rows == 64
        assert kind_ahead(plan, cut(plan, tiling), tiling) is Wide.SMALL
        assert fits(plan, tiling)
    prompt, _ = situations.planned([View([situations.block_of(300)])], 700)
    assert kind_ahead(prompt, cut(prompt, tiling), tiling) is Wide.LARGE
    assert fits(prompt, tiling)


@pytest.mark.parametrize(("parts", "group"), [(1, 16), (1, 20), (1, 40), (2, 64)])
@pytest.mark.parametrize("tokens", [769, 1024, 1535, 2048])
@pytest.mark.parametrize("histories", [(), (100,), (30, 30_000)], ids=str)
def test_prompts_over_latents_fit(
    histories: tuple[int, ...], tokens: int, parts: int, group: int
) -> None:
    """Each token fills a tile where heads are many, and one more on every strip that it reads."""
    tiling = of_latents(Tiling(group, parts, 132))
    block, common = Block(), [situations.block_of(length) for length in histories]
    plan = fed([(View([*common, block]), tokens - 1), (View([*common, block, Block()]), 1)])
    assert kind_ahead(plan, cut(plan, tiling), tiling) is Wide.LARGE
    assert fits(plan, tiling)


def test_no_recordings_for_latents_launch_large_tiles() -> None:
    """Nor two kernels side by side; those that are compiled ahead leave outputs and partials."""
    tiling = of_latents(Tiling(16, 1, 132))
    kinds = kinds_ahead(AHEAD, tiling)
    assert {kind for _, kind in kinds} == {Wide.SMALL, Wide.ENDED, Wide.LARGE, Wide.AMPLE}
    assert not any(wide_capacity(tokens, tiling, kind).large for tokens, kind in kinds)
    found = capacities.uncommon_capacities(tiling)
    assert {each.most_partials for each in found} >= {1, 2, 64}
    assert not any(each.large for each in found)


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
@pytest.mark.parametrize("rows", [8, 32, 128, 250, 256])
def test_completions_fit(rows: int, tiling: Tiling) -> None:
    assert fits(completions(rows, 2048), tiling)


@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        *((1, 16384), (2, 16384), (4, 16384), (16, 16000), (40, 8192), (64, 4096), (208, 2048)),
        *((60, 16384), (128, 6000)),  # as much as a large GPU has room for
    ],
)
def test_many_long_rows_fit_with_one_key_head_too(rows: int, keys: int, heads: int) -> None:
    """Fewer heads make fewer programs of an item, so strips are cut into more of them."""
    tiling = replace(TILINGS[-1], num_kv_heads=heads)
    views = [View([situations.block_of(keys)]) for _ in range(rows)]
    assert fits(situations.planned(views, 1)[0], tiling)


def fed(rows: list[tuple[View, int]]) -> Plan:
    """The rows of these views feed so many tokens each."""
    blocks = list(dict.fromkeys(block for view, _ in rows for block in view.blocks))
    more = max(64, *(count for _, count in rows))
    pool = PagePool(sum(-(-(block.num_tokens + more) // 64) for block in blocks) + 1, 64)
    pool.reserve((block, block.num_tokens) for block in blocks)
    return Planner(pool).plan(Step([Row(view, (0,) * count) for view, count in rows]))


def several(teams: int, workers: int) -> Plan:
    """Teams of so many workers, each behind a history of its own."""
    views = []
    for number in range(teams):
        history = situations.block_of(300 + 350 * number % 2000)
        desks = [situations.block_of(40 + 30 * each) for each in range(workers)]
        others = [[desk for desk in desks if desk is not own] for own in desks]
        views += [View([history, *rest, own]) for rest, own in zip(others, desks, strict=True)]
    return situations.planned(views, 1)[0]


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
@pytest.mark.parametrize(("teams", "workers"), [(2, 4), (4, 4), (8, 4), (4, 2), (9, 3)])
def test_several_runs_fit(teams: int, workers: int, tiling: Tiling) -> None:
    """A recording of their own has the rows that they want, or fewer than one team's; of one query head there is but one."""
    plan = several(teams, workers)
    assert fits(plan, tiling)
    work = cut(plan, tiling)
    if workers * tiling.group <= work.small_rows == 16 and tiling.group > 4:
        assert kind_ahead(plan, work, tiling) is Wide.LONE
        return
    tokens = power_of_two(plan.num_tokens)
    one, own = (wide_capacity(tokens, tiling, kind) for kind in (Wide.SMALL, Wide.SEVERAL))
    is_several = kind_ahead(plan, work, tiling) is Wide.SEVERAL
    assert is_several == ((tokens, Wide.SEVERAL) in kinds_ahead(AHEAD, tiling))
    assert is_several == (own.small_rows < one.small_rows)
    if is_several:
        assert work.small_rows <= own.small_rows


def rows_alone(rows: int, longest: int, shared: int = 0) -> Plan:
    """Each row has what it was given and what it writes; the first ones have been given the same."""
    rng = random.Random(f"{rows} {longest}")
    given = [situations.block_of(rng.randint(1, longest)) for _ in range(rows)]
    given[:shared] = given[:1] * shared
    return situations.planned(
        [View([one, situations.block_of(rng.randrange(200))]) for one in given], 1
    )[0]


@pytest.mark.pairs
@pytest.mark.parametrize("heads", [1, 2, 4, 8, 40])
@pytest.mark.parametrize("group", [5, 8, 12])
@pytest.mark.parametrize("rows", [5, 8, 13, 31, 48, 100, 128, 129, 180, 250])
@pytest.mark.parametrize("longest", [60, 900, 3500])
@pytest.mark.parametrize("shared", [0, 2])
def test_rows_alone_fit(rows: int, longest: int, heads: int, group: int, shared: int) -> None:
    """Few of many key heads make as many programs as many of few; some that share a prompt change nothing, if one tile holds them."""
    tiling = Tiling(group, num_kv_heads=heads, num_processors=132)
    plan = rows_alone(rows, longest, shared)
    work = cut(plan, tiling)
    if shared * group > 16:
        assert fits(plan, tiling)
        return
    assert work.small_rows == 16
    assert kind_ahead(plan, work, tiling) is Wide.LONE
    assert Stretches.of(plan, tiling).small_rows(tiling) == 16
    assert fits(plan, tiling)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_where_a_team_of_four_has_the_smallest_tiles_rows_alone_have_none_of_their_own(
    group: int,
) -> None:
    tiling = Tiling(group, num_kv_heads=8, num_processors=132)
    assert Wide.LONE not in {kind for _, kind in kinds_ahead(AHEAD, tiling)}
    for rows in (8, 128):
        plan = rows_alone(rows, 900)
        assert kind_ahead(plan, cut(plan, tiling), tiling) in (Wide.SMALL, Wide.SEVERAL)


@pytest.mark.parametrize("teams", [2, 8, 32])
def test_teams_of_four_are_not_lone(teams: int) -> None:
    for tiling in TILINGS[1:]:
        plan = several(teams, 4)
        assert kind_ahead(plan, cut(plan, tiling), tiling) is not Wide.LONE


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
@pytest.mark.parametrize(("teams", "workers"), [(5, 8), (7, 8), (16, 8), (31, 8), (3, 16), (8, 16)])
def test_many_rows_of_large_teams_fit(teams: int, workers: int, tiling: Tiling) -> None:
    """They have recordings of their own where smaller teams have smaller tiles; these have room for larger teams, too."""
    plan = several(teams, workers)
    kind = kind_ahead(plan, cut(plan, tiling), tiling)
    ahead = kinds_ahead(AHEAD, tiling)
    sizes = {made_for: {size for size, each in ahead if each is made_for} for made_for in Wide}
    if tiling.group == 1:
        assert not sizes[Wide.TEAMS] | sizes[Wide.LARGE_TEAMS]
        assert kind is Wide.SMALL
        assert fits(plan, tiling)
        return
    assert sizes[Wide.TEAMS] == {64, 128, 256}
    are_apart = 16 * tiling.group <= tiling.most_small_rows
    assert sizes[Wide.LARGE_TEAMS] == (sizes[Wide.TEAMS] if are_apart else set())
    tokens = power_of_two(plan.num_tokens)
    own, usual = (wide_capacity(tokens, tiling, each) for each in (Wide.TEAMS, Wide.SMALL))
    assert own.small_rows == 2 * usual.small_rows == power_of_two(8 * tiling.group)
    is_small = Stretches.of(plan, tiling).are_small(tiling)
    assert is_small is (workers * tiling.group <= tiling.most_small_rows)
    of_team = Wide.LARGE_TEAMS if workers == 16 else Wide.TEAMS
    assert kind is (of_team if is_small else Wide.LARGE)
    assert fits_into(plan, tiling, tokens, Wide.TEAMS)
    if is_small:
        assert wide_capacity(tokens, tiling, kind).small_rows == power_of_two(
            workers * tiling.group
        )
        assert fits_into(plan, tiling, tokens, kind)


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"group {tiling.group}")
def test_a_part_of_a_prompt_beside_teams_of_four_makes_no_large_teams_of_them(
    tiling: Tiling,
) -> None:
    """Its few keys would be loaded several times, and tiles of all others be half empty; beside enough teams of eight it is one more."""
    teams_of_four = [situations.team(4, 900, 100) for _ in range(20)]
    prompt, more = View([situations.block_of(2000)]), 10
    plan = fed([(view, 1) for team in teams_of_four for view in team] + [(prompt, more)])
    stretches, work = Stretches.of(plan, tiling), cut(plan, tiling)
    wants_more = stretches.small_rows(tiling) > power_of_two(max(16, 4 * tiling.group))
    assert wants_more or tiling.group == 1
    assert kind_ahead(plan, work, tiling) is not Wide.TEAMS
    if stretches.are_small(tiling):
        sizes = stretches.sizes(tiling)
        assert kind_of_small(stretches.small_rows(tiling), *sizes, tiling) is Wide.SMALL
    eights = [situations.team(8, 900, 100) for _ in range(10)]
    plan = fed([(view, 1) for team in eights for view in team] + [(prompt, 6)])
    is_kept = tiling.group > 1
    assert (kind_ahead(plan, cut(plan, tiling), tiling) is Wide.TEAMS) is is_kept


@pytest.mark.parametrize("workers", [8, 16])
def test_one_team_is_not_several(workers: int) -> None:
    for tiling in TILINGS[1:]:
        plan = a_team(workers, 2048, 150)
        assert kind_ahead(plan, cut(plan, tiling), tiling) is Wide.SMALL


TEAM = life.TEAMS.crowd[0][1]
# Teams of four; and larger ones beside them, with lone runs of up to 4 000 tokens.
CROWDS = {
    "fours": life.TEAMS.crowd,
    "sixteens": ((8, replace(TEAM, rows=16)),),
    "all sizes": (
        *((count, replace(TEAM, rows=rows)) for count, rows in ((2, 16), (4, 8), (8, 4))),
        (20, replace(life.LONES.crowd[0][1], prompt=(100, 4000))),
    ),
}


@pytest.mark.parametrize(
    ("heads", "crowd"),
    [
        ((32, 4), "fours"),
        ((64, 8), "fours"),
        ((32, 2), "fours"),
        ((8, 1), "fours"),
        ((40, 8), "fours"),
        ((32, 8), "all sizes"),
        ((40, 8), "all sizes"),
        ((32, 4), "all sizes"),
        ((64, 8), "sixteens"),
    ],
    ids=str,
)
def test_crowds_of_other_shapes_find_room(
    heads: tuple[int, int], crowd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight query heads to a key head fill twice as many large tiles as four do, few key heads are cut into more, and so are large
    teams that stand beside a prompt."""
    for name in ("LEAST", "uncommon_capacities"):  # the engine changes the latter for good
        monkeypatch.setattr(capacities, name, getattr(capacities, name))
    engine = unlaunched(heads=heads)
    situation = replace(life.TEAMS, crowd=CROWDS[crowd], num_passes=110, warm_up=70)
    facts = life.live(engine, situation, seed=1).facts()
    assert facts["prompts"] > (4 if crowd == "sixteens" else 20)
    assert facts["eager"] + facts["recorded"] <= 1


def test_a_plan_of_a_crowd_is_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a wide recording has its tiles; cut for itself as well, it would go by the same one."""
    for name in ("LEAST", "uncommon_capacities"):  # the engine changes the latter for good
        monkeypatch.setattr(capacities, name, getattr(capacities, name))
    engine = unlaunched(heads=(32, 8))
    # Held, so that no other has the number of one.
    plans = list[Plan]()
    times = Counter[int]()
    at_once = PlanMatcher._large_at_once
    same = list[bool]()

    def counted(plan: Plan, *others: Any) -> Work:
        plans.append(plan)
        times[id(plan)] += 1
        return cut(plan, *others)

    def compared(matcher: Any, plan: Plan, stretches: Stretches) -> Any:
        found = at_once(matcher, plan, stretches)
        if found is not None:
            work = cut(plan, matcher.backend.tiling, None, stretches)
            capacity = capacities.capacity_of(plan, work)
            with monkeypatch.context() as mended:
                mended.setattr(matching, "cut", cut)
                mended.setattr(matcher, "_seen", {capacity: 0})
                slowly = matcher._serving(plan, work, capacity, stretches)
            same.append(slowly is not None and slowly[0] is found[0])
        return found

    monkeypatch.setattr(matching, "cut", counted)
    monkeypatch.setattr(PlanMatcher, "_large_at_once", compared)
    teams = tuple((count, replace(TEAM, rows=rows)) for count, rows in ((2, 16), (8, 4)))
    lones = (40, replace(life.LONES.crowd[0][1], prompt=(100, 4000)))
    situation = replace(life.TEAMS, crowd=(*teams, lones), num_passes=60, warm_up=40)
    facts = life.live(engine, situation, seed=1).facts()
    assert facts["prompts"] > 5
    assert len(same) > 50
    assert all(same)
    assert set(times.values()) == {1}


def test_control_more_than_there_is_room_for() -> None:
    assert not fits(completions(512, 512), TILINGS[1]), "its rows"


def test_a_cold_start_notes_each_size_that_has_products_of_its_own() -> None:
    """Ours serve up to 256 tokens with weights of four bits; beyond, one pass of each kind of tiles is enough."""
    tiling = Tiling(4, num_kv_heads=8, num_processors=132)
    kinds = kinds_ahead(AHEAD, tiling)
    wide = [wide_capacity(tokens, tiling, kind) for tokens, kind in kinds]
    noted = recordings._with_kernels_of_their_own(wide)
    sizes = {(each.tokens, each.cutting) for each in wide if each.tokens <= 256}
    assert sizes <= {(each.tokens, each.cutting) for each in noted}
    assert {each.cutting for each in wide} == {each.cutting for each in noted}
    assert len(noted) == len(sizes) + 1 < len(wide)


def test_recordings_with_the_same_kernels_are_tried_with_one_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiling, plan = TILINGS[0], a_team(4, 64, 8)
    cuttings = list[object]()

    def counted(plan: Plan, tiling: Tiling, cutting: Cutting, stretches: Stretches) -> Work:
        cuttings.append(cutting)
        return cut(plan, tiling, cutting, stretches)

    monkeypatch.setattr(matching, "cut", counted)
    few, many = Cutting(16, 0, Occupancy.FEW, False), Cutting(16, 0, Occupancy.MANY, False)
    sizes = [(few, False), (few, False), (many, False), (few, True), (few, True)]
    tried: list[Any] = [
        SimpleNamespace(capacity=SimpleNamespace(cutting=cutting, holds=lambda *_, has=has: has))
        for cutting, has in sizes
    ]
    matcher: Any = SimpleNamespace(
        _with_room=lambda *_: iter(tried), backend=SimpleNamespace(tiling=tiling)
    )
    found = PlanMatcher._wide(matcher, plan, Stretches.of(plan, tiling), Wide.SMALL)
    assert found is not None
    assert found[0] is tried[3]
    assert cuttings == [few, many]
