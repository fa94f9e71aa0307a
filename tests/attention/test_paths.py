"""Path tiles: every key of every entry once, one partial for a piece of a path, and the values of the definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton comes for Linux only")

from benchmarks import situations
from manyhands.attention.attend import LayerCall
from manyhands.attention.paths import paths
from manyhands.attention.prepared import Capacity, Prepared, pack, pack_growth
from manyhands.attention.reference import ReferenceBackend
from manyhands.attention.store import LayerShape
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import ENDLESS, Tiling, Work, cut
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEADS, DIM = (4, 2), 32
# Few and small processors, so that small trees have tiles enough.
TILING = Tiling(
    *(2, 2, 2),
    key_tile=16,
    large_rows=32,
    most_small_rows=16,
    least_split=16,
    few=2,
    many=4,
    path_rows=32,
    paths_per_processor=0.0,
)
# Trees as in `situations.py`: nodes on each level, tokens of a node on each; `~`: ragged. Roots that are too long stay apart.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("1,4,8,32_40,17,9,5", {"path_keys": 8}),
    "halved": ("1,4,8,32_40,17,9,5", {"path_keys": 64}),
    "in pieces": ("1,4,8,32_40,17,9,5", {"path_keys": 64, "paths_per_processor": 40.0}),
    "ragged whole": ("1,9,33_70,20,~10", {"path_keys": 8}),
    "ragged halved": ("1,9,33_70,20,~10", {"path_keys": 128}),
    "ragged forest in pieces": (
        "2,5,40_~20,~40,~9",
        {"path_keys": 64, "paths_per_processor": 40.0},
    ),
    "long root": ("1,3,31_300,~15,1", {"path_keys": 16}),
}


def case_of(name: str) -> tuple[str, Tiling]:
    tree, changes = CASES[name]
    return tree, replace(TILING, **changes)


def plan_of(tree: str, page_size: int = 64) -> tuple[Plan, int]:
    """A plan of the leaves of a tree, in pages of this size, and the slots of its pool."""
    views = situations.tree(tree)
    pool = PagePool(4096, page_size)
    blocks = dict.fromkeys(block for view in views for block in view.blocks)
    pool.reserve((block, block.num_tokens) for block in blocks)
    plan = Planner(pool).plan(Step([Row(view, (0,)) for view in views]))
    return plan, pool.num_slots


def keys_seen(work: Work, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """How many of its keys each entry [E] sees by all items, and the partials that items write, by token [T]."""
    entries = work.entries
    reach = np.minimum(entries.high, entries.offset + 1)
    seen = np.zeros(len(entries.token), dtype=np.int64)
    written = np.zeros(plan.num_tokens, dtype=np.int64)
    for first, count, start, end, _, _ in (*work.small.tolist(), *work.large.tolist()):
        for entry in range(first, first + count):
            stop = reach[entry] if end == ENDLESS else min(end, reach[entry])
            seen[entry] += max(0, stop - max(start, entries.low[entry]))
            written[entries.token[entry]] += 1
    for first, end, count, _ in work.paths.tolist():
        for row in range(count):
            layers = [layer for layer in range(first, end) if work.walks[layer, 0, row] >= 0]
            if not layers:
                continue
            assert layers[0] == first, "the first entry is in the first layer, if there is one"
            written[work.walks[first, 1, row]] += 1
            for layer in layers:
                entry, token, segment, _, _ = work.walks[layer, :, row].tolist()
                assert entries.token[entry] == token
                start, page = work.walks[layer, 3:, segment].tolist()
                strip = plan_strip(entries.strip_indptr, entry)
                sizes = [len(table) for table in plan.reads.pages]
                assert page == sum(sizes[:strip])
                assert start <= entries.low[entry]
                seen[entry] += reach[entry] - entries.low[entry]
    return seen, written


def plan_strip(indptr: np.ndarray, entry: int) -> int:
    return int(np.searchsorted(indptr, entry, side="right")) - 1


@pytest.mark.parametrize("case", CASES)
def test_every_key_is_seen_once_and_every_partial_has_its_place(case: str) -> None:
    tree, tiling = case_of(case)
    plan, _ = plan_of(tree)
    work = cut(plan, tiling)
    is_whole = "whole" in case or "long" in case
    assert work.path_rows == (tiling.path_rows if is_whole else tiling.half_path_rows)
    assert bool(len(work.large) + len(work.small)) == is_whole
    seen, written = keys_seen(work, plan)
    entries = work.entries
    assert np.array_equal(seen, np.minimum(entries.high, entries.offset + 1) - entries.low)
    assert np.array_equal(written, np.diff(work.partial_indptr))


def test_a_path_spares_partials_and_pieces_cost_some() -> None:
    tree, halved = case_of("halved")
    plan, _ = plan_of(tree)
    apart = cut(plan, replace(halved, path_rows=0))
    whole = cut(plan, halved)
    pieces = cut(plan, case_of("in pieces")[1])
    assert apart.num_partials == 4 * plan.num_tokens
    assert whole.num_partials == plan.num_tokens
    assert whole.num_partials < pieces.num_partials <= apart.num_partials
    assert len(whole.paths) < len(pieces.paths)


@pytest.mark.parametrize(
    "tree", ["1,10_4096,416", "1,4_16384,128", "256_4096", "1,512_4096,~32", "512_32"]
)
def test_what_is_few_or_long_or_spares_no_partial_has_no_paths(tree: str) -> None:
    plan = situations.planned(situations.tree(tree), 1)[0]
    tiling = Tiling(4, 8, 132, path_rows=64)
    assert not len(cut(plan, tiling).paths)


@pytest.mark.parametrize(
    ("tree", "rows"),
    [
        ("1,16,32,64,256,1024_256,128,64,32,32,32", 32),
        ("1,256_256,32", 32),
        ("1,4,16,512_1024,256,128,32", 64),
        ("64,1024_512,32", 64),
    ],
)
def test_tiles_that_walk_everything_have_half_of_the_rows(tree: str, rows: int) -> None:
    plan = situations.planned(situations.tree(tree), 1)[0]
    work = cut(plan, Tiling(4, 8, 132, path_rows=64))
    assert work.path_rows == rows
    assert not len(work.small)


def test_other_kernels_can_be_asked_for() -> None:
    tree, tiling = case_of("whole")
    plan, _ = plan_of(tree)
    capacity = Capacity.of(plan, cut(plan, tiling))
    assert capacity.cutting.path_rows == capacity.path_rows == 32
    again = cut(plan, tiling, capacity.cutting)
    assert capacity.holds(Capacity.of(plan, again))
    without = cut(plan, tiling, replace_cutting(capacity))
    assert not len(without.paths)
    assert not capacity.serves(Capacity.of(plan, without))


def replace_cutting(capacity: Capacity) -> Any:
    return capacity.cutting._replace(path_rows=0)


def error_of(
    plan: Plan, num_slots: int, tiling: Tiling, call: LayerCall, prepared: Prepared | None = None
) -> float:
    """Largest difference from the definition, with memory that nobody fed full of NaN."""
    torch.manual_seed(0)
    dtype = torch.float32
    place = situations.filled(plan, num_slots, HEADS, DIM, DEVICE, dtype)
    unknown = np.ones(num_slots, dtype=bool)
    reads = plan.reads
    for strip, pages in enumerate(reads.pages):
        mine = slice(*reads.strip_indptr[strip : strip + 2])
        index = np.arange(int(reads.high[mine].max()))
        unknown[pages[index // plan.page_size] * plan.page_size + index % plan.page_size] = False
    for memory in (place.store.keys, place.store.values):
        memory[torch.from_numpy(unknown).to(DEVICE)] = torch.nan
    backend = TritonBackend([LayerShape(*HEADS, DIM, DIM)], dtype, DEVICE, tiling)
    prepared = prepared or backend.prepare(plan, DEVICE)
    assert len(prepared.paths)
    out = backend.attend(place.store, place.q, prepared, call)[: plan.num_tokens]
    right = ReferenceBackend()
    wanted = right.attend(place.store, place.q, right.prepare(plan, DEVICE), call)
    return float((out - wanted).abs().max())


CALLS = {
    "plain": LayerCall(layer=0, scaling=DIM**-0.5),
    "window": LayerCall(layer=0, scaling=DIM**-0.5, window=23),
    "softcap": LayerCall(layer=0, scaling=DIM**-0.5, softcap=2.0),
}


@pytest.mark.parametrize(
    ("case", "call"),
    [
        *((case, "plain") for case in CASES),
        *(("ragged whole", call) for call in ("window", "softcap")),
        *(("ragged forest in pieces", call) for call in ("window", "softcap")),
    ],
)
def test_paths_against_the_definition(case: str, call: str) -> None:
    tree, tiling = case_of(case)
    plan, num_slots = plan_of(tree)
    assert error_of(plan, num_slots, tiling, CALLS[call]) < 2e-5


@pytest.mark.parametrize("page_size", [4, 16])
def test_pages_that_are_smaller_than_a_tile_of_keys(page_size: int) -> None:
    tree, tiling = case_of("ragged halved")
    plan, num_slots = plan_of(tree, page_size)
    assert error_of(plan, num_slots, tiling, CALLS["plain"]) < 2e-5


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_ragged_trees(data: st.DataObject) -> None:
    """Nodes of any size, any number of children; leaves that are as wide or long as no leaf may be go by other tiles."""
    counts = [1, data.draw(st.integers(2, 5)), data.draw(st.integers(24, 40))]
    sizes = [
        data.draw(st.integers(1, 50)),
        f"~{data.draw(st.integers(2, 25))}",
        data.draw(st.sampled_from(["~9", "~12"])),
    ]
    shape = ",".join(map(str, counts)) + "_" + ",".join(map(str, sizes))
    plan, num_slots = plan_of(shape)
    changes: dict[str, Any] = {
        "path_keys": data.draw(st.sampled_from([8, 64])),
        "paths_per_processor": data.draw(st.sampled_from([0.0, 40.0])),
    }
    tiling = replace(TILING, **changes)
    if len(cut(plan, tiling).paths):
        assert error_of(plan, num_slots, tiling, CALLS["plain"]) < 2e-5


def test_a_wrong_segment_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: a row that takes its neighbour's keys for its own is far off."""

    def wrong(*arguments: Any, **options: Any) -> Any:
        found = paths(*arguments, **options)
        found.walks[0, 2, :2] = found.walks[0, 2, 1::-1]
        return found

    tree, tiling = case_of("ragged whole")
    plan, num_slots = plan_of(tree)
    monkeypatch.setattr("manyhands.attention.work.paths", wrong)
    assert not error_of(plan, num_slots, tiling, CALLS["plain"]) < 1e-2


def test_padding_and_growth() -> None:
    """A list in a larger buffer, made of the one before by adding its growth, as recordings do it."""
    tree, tiling = case_of("ragged whole")
    views = situations.tree(tree)
    pool = PagePool(4096, 64)
    pool.reserve((b, b.num_tokens) for b in dict.fromkeys(b for v in views for b in v.blocks))
    planner = Planner(pool)
    plans = []
    for _ in range(3):
        plans.append(planner.plan(Step([Row(view, (0,)) for view in views])))
        pool.make_moves(lambda moves: None)
        for view in views:
            view.own.tokens.append(0)
        pool.keep()
    work = cut(plans[0], tiling)
    capacity = Capacity.of(plans[0], work).rounded()
    buffer = np.zeros(capacity.num_integers, dtype=np.int32)
    growth = np.zeros_like(buffer)
    pack(plans[0], work, capacity, buffer)
    pack_growth(plans[0], work, capacity, growth)
    grown = torch.from_numpy(buffer + 2 * growth).to(DEVICE)
    prepared = Prepared(grown, capacity, plans[2].page_size)
    assert error_of(plans[2], pool.num_slots, tiling, CALLS["plain"], prepared) < 2e-5


@pytest.mark.parametrize(
    ("heads", "dtype", "path_rows"),
    [
        ((8, 2), torch.bfloat16, 64),
        ((10, 2), torch.float16, 64),
        ((4, 2), torch.bfloat16, 0),  # a tile would walk too many leaves
        ((8, 2), torch.float32, 0),
    ],
)
def test_layers_that_have_path_tiles(
    heads: tuple[int, int], dtype: torch.dtype, path_rows: int
) -> None:
    backend = TritonBackend([LayerShape(*heads, DIM, DIM)], dtype, DEVICE)
    assert backend.tiling.path_rows == path_rows
