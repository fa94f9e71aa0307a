"""Which launch a tile gets, and that no device is asked for more than it has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.attention import launches
from manyhands.attention.launches import BROAD, Launches, Merge, least_shared_memory
from manyhands.attention.work import Occupancy, Tiling, power_of_two

CPU = torch.device("cpu")
TILING = Tiling(4, num_kv_heads=8, num_processors=132, large_rows=64)
HEAD_BYTES = 2 * 128 * 2


@pytest.mark.parametrize(
    ("rows", "occupancy", "name", "if_mapped"),
    [
        (1, Occupancy.MANY, "lone", "lone"),
        (16, Occupancy.FEW, "few", "few"),
        (16, Occupancy.SOME, "small", "small"),
        (16, Occupancy.MANY, "many", "many"),
        (32, Occupancy.FEW, "small", "transposed"),
        (32, Occupancy.SOME, "small", "small"),
        (32, Occupancy.MANY, "many_doubled", "many_doubled"),
        (64, Occupancy.SOME, "wide", "wide"),
        (64, Occupancy.MANY, "many_wide", "many_wide"),
    ],
)
def test_small_tiles_are_launched_by_rows_and_occupancy(
    rows: int, occupancy: Occupancy, name: str, if_mapped: str
) -> None:
    found = Launches.fitting(TILING, HEAD_BYTES, CPU)
    assert found.of_small(rows, occupancy, is_mapped=False) is getattr(found, name)
    assert found.of_small(rows, occupancy, is_mapped=True) is getattr(found, if_mapped)
    assert found.of_small(rows, occupancy, is_mapped=False).transposed is False


@pytest.mark.parametrize(
    ("room", "stages"), [(232448, (3, 4)), (166912, (3, 4)), (101376, (2, 2)), (49152, (1, 1))]
)
def test_stages_are_limited_by_shared_memory(
    room: int, stages: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "shared_memory", lambda device: room)
    found = Launches.fitting(TILING, HEAD_BYTES, CPU)
    assert (found.large.num_stages, found.few.num_stages) == stages


@pytest.mark.parametrize(("dims", "keys"), [(64, 64), (128, 64), (192, 32), (256, 32)])
def test_many_wide_tiles_bring_no_more_at_a_time_where_heads_are_larger(
    dims: int, keys: int
) -> None:
    """Of 256 dims one program would fill half of a processor with 64 keys."""
    assert Launches.fitting(TILING, 2 * dims * 2, CPU).many_wide.keys == keys


@pytest.mark.parametrize(("itemsize", "keys", "stages"), [(2, 32, 2), (4, 16, 1)])
def test_broad_heads_fit_on_an_h200(
    itemsize: int, keys: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of 512: every tile's queries, keys and values fit, and its sums do not crowd a thread."""
    room, dims = 232448, 512
    monkeypatch.setattr(launches, "shared_memory", lambda device: room)
    tiling = Tiling(8, 4, 132, key_tile=64 if itemsize == 2 else 32, large_rows=64)
    found = Launches.fitting(tiling, 2 * dims * itemsize, CPU, dims=dims)
    assert (found.large.keys, found.large.num_stages) == (keys, stages)
    tiles = {
        64: (found.large, found.wide, found.many_wide),
        32: (found.small, found.many_doubled),
        16: (found.few, found.many),
    }
    for rows, of_rows in tiles.items():
        for launch in of_rows:
            assert tiling.key_tile % launch.keys == 0
            of_keys = launch.num_stages * launch.keys * 2 * dims * itemsize
            assert rows * dims * itemsize + of_keys <= room - 8192
            assert rows * dims <= 128 * 32 * launch.num_warps  # sums in registers of a thread
    # control: launched as heads of 256 are, a thread has twice the sums
    narrow = Launches.fitting(tiling, 2 * dims * itemsize, CPU)
    assert 64 * dims > 128 * 32 * narrow.large.num_warps
    assert least_shared_memory(64, 2 * dims * itemsize) <= room


def test_many_tiles_in_eight_bits_take_no_more_room_than_in_sixteen() -> None:
    """A stage has twice the keys, of half the bytes: as many programs share a processor."""
    usual = Launches.fitting(TILING, HEAD_BYTES, CPU)
    found = Launches.fitting(replace(TILING, key_tile=128), HEAD_BYTES, CPU).in_eight_bits()
    for rows in (16, 32, 64):
        ours, theirs = (
            each.of_small(rows, Occupancy.MANY, is_mapped=False) for each in (found, usual)
        )
        assert ours.num_warps == theirs.num_warps == rows // 16
        assert ours.num_stages * ours.keys <= 2 * theirs.num_stages * theirs.keys
        assert ours.two_walks


def test_a_large_group_leaves_less_room_for_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large tile has at least its rows."""
    monkeypatch.setattr(launches, "shared_memory", lambda device: 200_000)
    bytes_of_256 = 2 * 256 * 2
    few, many = (
        Launches.fitting(Tiling(group, 1, 132, large_rows=64), bytes_of_256, CPU)
        for group in (8, 65)
    )
    assert (few.large.num_stages, many.large.num_stages) == (2, 1)


def test_sums_of_heads_of_256_take_a_quarter_of_a_threads_registers() -> None:
    """With as many warps as heads of 128 dims have, a thread has twice the sums, and as many queries beside them."""
    dims, tiling = 256, Tiling(4, 4, 132, large_rows=64)
    found, usual = (Launches.fitting(tiling, 4 * dims, CPU, dims=each) for each in (dims, 128))
    tiles = (64, "large"), (64, "many_wide"), (32, "many_doubled"), (16, "many"), (16, "few")
    for rows, name in tiles:
        assert rows * dims <= 64 * 32 * getattr(found, name).num_warps
    # control
    assert 16 * dims > 64 * 32 * usual.many.num_warps
    assert 64 * dims > 64 * 32 * usual.large.num_warps


@pytest.mark.parametrize("num_heads", [1, 2, 12, 32])
@pytest.mark.parametrize("most_partials", [1, 2, 3, 5, 16, 40, 500])
def test_the_more_partials_the_fewer_heads_are_merged_together(
    most_partials: int, num_heads: int
) -> None:
    at_once, heads, dims, num_warps = Merge.of(most_partials, num_heads, 128)
    assert at_once * heads <= 64
    assert heads < 2 * num_heads
    assert at_once >= min(most_partials, 64)
    assert dims == 128
    assert num_warps in (1, 2)


@pytest.mark.parametrize("value_dim", [80, 256, 300, 512])
def test_broad_heads_are_merged_by_several_programs(value_dim: int) -> None:
    merge = Merge.of(5, 8, value_dim)
    assert merge.dims == (power_of_two(value_dim) if value_dim <= BROAD else 128)
    assert merge == Merge.of(5, 8, 128)._replace(dims=merge.dims)
