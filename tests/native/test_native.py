"""Every loop in C against the same one in numpy, over plans of random teams, prompts, trees and crowds."""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import situations
from manyhands.attention.prepared import Capacity, pack
from manyhands.attention.work import Cutting, Occupancy, Tiling, cut
from manyhands.cache.block import Block
from manyhands.cache.layouts import Cast, combined
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest
from manyhands.native import build, compiled, plain

pytestmark = pytest.mark.skipif(build.module() is None, reason=build.reason() or "compiled")
NAMES = (
    "entries",
    "stretches",
    "sizes",
    "tiles",
    "num_splits",
    "last_done",
    "items",
    "partials",
    "lists",
    "numbered",
    "team",
    "pages",
    "pack",
)


def same(one: Any, other: Any) -> bool:
    """Equal in kind, shape and every element."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def numpys(name: str, given: tuple[Any, ...]) -> Any:
    """The result of numpy for the arguments of a loop as it is called."""
    loop = getattr(plain, name)
    if name == "num_splits":
        found = loop(*given)
        return found, int(found.sum())
    if name == "lists":
        return loop(*given[:-1])
    if name == "items":
        tiles, splits, _, *others = given
        return loop(tiles, splits, *others)
    return loop(*given)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each loop was called; each call is made in numpy too, and both agree."""
    counted: Counter[str] = Counter()

    def both(name: str, loop: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            counted[name] += 1
            written = {"items": -1, "pack": 0}.get(name)  # an argument that is written to
            mine = list(given)
            if written is not None:
                mine[written] = given[written].copy()
            found = loop(*given)
            assert same(found, numpys(name, tuple(mine))), f"{name} of {given}"
            if written is not None:
                assert same(given[written], mine[written]), f"{name} of {given}"
            return found

        return call

    for name in NAMES:
        monkeypatch.setattr(compiled, name, both(name, getattr(compiled, name)))
    return counted


def a_tiling(rng: random.Random) -> Tiling:
    """A tiling of any kind of layer; all its kernels, or few."""
    return Tiling(
        rng.choice([1, 2, 4, 5, 8]),
        num_kv_heads=rng.choice([1, 8, 32]),
        num_processors=rng.choice([1, 24, 132]),
        key_tile=rng.choice([32, 64, 128]),
        large_rows=rng.choice([64, 128]),
        specialised_rows=rng.choice([0, 128]),
        specialised_reads=rng.choice([1, 1 << 16]),
        narrow_rows=rng.choice([0, 64]),
        narrow_keys=rng.choice([64, 16384]),
        long_keys=rng.choice([0, 64, 4096]),
        splits_per_processor=rng.choice([1.0, 2.0]),
        least_split=rng.choice([32, 128]),
    )


def cut_all_ways(plan: Plan, rng: random.Random) -> None:
    """For its own kernels, and for those of recordings."""
    tiling = a_tiling(rng)
    least = max(16, 1 << (tiling.group - 1).bit_length())
    for wanted in (
        None,
        Cutting(least, 0, Occupancy.FEW),
        Cutting(64, 128, Occupancy.MANY),
        Cutting(64, 128, Occupancy.SOME, is_specialised=True),
    ):
        work = cut(plan, tiling, wanted)
        capacity = Capacity.of(plan, work).rounded()
        buffer = np.full(capacity.num_integers, 7, dtype=np.int32)
        pack(plan, work, capacity, buffer)


class Team:
    """A team whose steps end now and then, as the planner of an engine meets it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.planner = Planner(PagePool(600, rng.choice([4, 16, 64])))
        self.planner.joins_ahead = rng.random() < 0.7
        self.desks = [Block() for _ in range(rng.randint(1, 6))]
        self.history: tuple[Block, ...] = ()
        parts = [Block(name) for name in ("prompt", "others", "own", "marker")]
        self.parts = {block: rng.randint(1, 40) for block in parts}
        self.play([Row(View([block]), (1,) * size) for block, size in self.parts.items()])
        for block in parts:
            if rng.random() < 0.8:
                block.freeze()

    def play(self, rows: list[Row]) -> Plan:
        """A pass in which nothing is computed."""
        step = Step(rows)
        plan = self.planner.plan(step)
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        self.planner.pool.make_moves(lambda moves: None)
        self.planner.pool.keep()
        return plan

    def steps(self, count: int) -> Iterator[Plan]:
        """So many passes; in each of them any desk may end."""
        prompt, others, own, marker = self.parts
        fed = [self.rng.randint(1, 9) for _ in self.desks]
        for _ in range(count):
            cast = Cast(prompt, others, own, marker, tuple(self.desks), self.history)
            views = [combined(cast, worker) for worker in range(len(self.desks))]
            for _ in range(self.rng.randint(1, 3)):
                yield self.play([Row(v, (1,) * size) for v, size in zip(views, fed, strict=True)])
                fed = [1] * len(self.desks)
            for worker, desk in enumerate(self.desks):
                if self.rng.random() < 0.3:
                    self.history += (desk.freeze(),)
                    self.desks[worker], fed[worker] = Block(), self.rng.randint(1, 5)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_teams_that_live(seed: int, calls: Counter[str]) -> None:
    rng = random.Random(seed)
    for plan in Team(rng).steps(5):
        cut_all_ways(plan, rng)


@pytest.mark.parametrize("new", [1, 3, 700])
@pytest.mark.parametrize(
    "views",
    [
        situations.team(16, 4096, 128),
        situations.completions(40, 1000, 20),
        situations.tree("2,16_300,~40"),
        situations.prefill(500),
    ],
    ids=["team", "completions", "tree", "prompt"],
)
def test_situations_of_the_op(views: Any, new: int, calls: Counter[str]) -> None:
    rng = random.Random(new)
    plan = situations.planned(views, new)[0]
    for _ in range(6):
        cut_all_ways(plan, rng)


def test_every_loop_is_called(calls: Counter[str]) -> None:
    """A comparison of what nothing calls would compare nothing."""
    rng = random.Random(5)
    for seed in range(9):
        for plan in Team(random.Random(seed)).steps(6):
            cut_all_ways(plan, rng)
    long = situations.planned(situations.team(4, 4096, 128), 1)[0]
    for _ in range(40):  # its splits are worth trying several sizes
        cut_all_ways(long, rng)
    assert min(calls[name] for name in NAMES) >= 10
    public = {name for name in dir(plain) if not name.startswith("_")} & set(dir(compiled))
    loops = {name for name in public if callable(getattr(plain, name)) and name.islower()}
    assert loops == set(NAMES), "all that both have"


@settings(max_examples=200, deadline=None)
@given(
    num_keys=st.lists(st.integers(1, 3000), min_size=1, max_size=40),
    sizes=st.lists(st.integers(16, 2000), min_size=1, max_size=5),
    num_heads=st.integers(1, 12),
    num_processors=st.integers(1, 40),
    key_tile=st.sampled_from([16, 64]),
    to_begin=st.integers(0, 300),
)
def test_the_last_processor_is_done_when_each_program_goes_to_the_first_that_is_free(
    num_keys: list[int],
    sizes: list[int],
    num_heads: int,
    num_processors: int,
    key_tile: int,
    to_begin: int,
) -> None:
    """Both loops, which take groups of processors, beside one program after the other."""
    given = np.array(num_keys), sizes, num_heads, num_processors, key_tile, to_begin
    expected = []
    for size in sizes:
        splits = plain.num_splits(np.array(num_keys), size, key_tile).tolist()
        items = [size] * (sum(splits) - len(splits))
        items += [keys - (count - 1) * size for keys, count in zip(num_keys, splits, strict=True)]
        free = [0] * num_processors
        for length in sorted(items, reverse=True):
            for _ in range(num_heads):
                heapq.heapreplace(free, free[0] + length + to_begin)
        expected.append((max(free), len(items)))
    for loop in (plain.last_done, compiled.last_done):
        assert list(zip(*loop(*given).tolist(), strict=True)) == expected


def test_control_another_integer_is_seen(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = plain.entries

    def wrong(*given: Any) -> Any:
        found = entries(*given)
        found.offset[-1] += 1
        return found

    monkeypatch.setattr(plain, "entries", wrong)
    with pytest.raises(AssertionError, match="entries of"):
        cut(situations.planned(situations.prefill(20), 5)[0], Tiling(4, 8, 132))


def test_reads_that_are_not_sorted_are_sorted(calls: Counter[str]) -> None:
    """Thousands of them, in any order, of strips with any numbers."""
    rng = np.random.default_rng(3)
    num_reads = rng.integers(1, 60, 200)
    table = rng.integers(0, 1 << 20, (int(num_reads.sum()), 6))
    table[:, 0] = rng.integers(0, 1 << 40, 90)[rng.integers(0, 90, len(table))]
    table[:, 3] = table[:, 2] + 50
    fed = rng.integers(1, 9, 200)
    compiled.lists(table, num_reads, rng.integers(0, 5, 200), fed, int(fed.sum()))
    assert calls["lists"] == 1


def test_what_does_not_fit_is_not_packed() -> None:
    places, one = np.array([[0, 4], [4, 4]]), np.arange(4)
    for arrays, size in (([one, np.arange(5)], 8), ([one, one], 7), ([one], 8)):
        with pytest.raises(ValueError, match=r"section"):
            compiled.pack(np.zeros(size, np.int32), places, [0, 0], arrays)
    with pytest.raises(TypeError, match="expected int32"):
        compiled.pack(np.zeros(8, np.int64), places, [0, 0], [one, one])


@pytest.mark.parametrize("kind", [np.int32, np.float64])
def test_arrays_of_another_kind_are_refused(kind: type) -> None:
    with pytest.raises(TypeError, match="expected int64"):
        compiled.partials(np.zeros(3, kind), np.ones(3, np.int64), 4)


def test_arrays_with_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        compiled.partials(np.zeros(6, np.int64)[::2], np.ones(3, np.int64), 4)


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder in which nothing was compiled yet; nothing is remembered, and a compiler need not make good code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_FLAGS", ("-O0", *build._FLAGS[1:]))
    build._made.cache_clear()
    yield tmp_path / "manyhands" / "native"
    build._made.cache_clear()


def test_what_is_compiled_is_kept(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.module() is not None
    (kept,) = anew.iterdir()
    build._made.cache_clear()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build.module() is not None
    assert [*anew.iterdir()] == [kept], "nothing is left beside it"


@pytest.mark.parametrize("size", [0, 10, 9000])
def test_a_damaged_file_is_made_anew(anew: Path, size: int) -> None:
    """Half a library is none that fails to load: loading it ends the process."""
    made = build._compile(build._compiler(), anew_folder(anew))
    whole = made.read_bytes()
    made.write_bytes(whole[:size])
    assert build.module() is not None
    (kept,) = anew.iterdir()
    assert kept.stat().st_size == len(whole)


@pytest.mark.parametrize("size", [0, 10, 60, 9000, -1])
def test_half_a_library_of_a_linker_that_does_not_say_so(
    anew: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int
) -> None:
    """As GNU's does on a full disk. One that an earlier version has kept, by the name of what it holds, is made anew."""
    made = build._compile(build._compiler(), anew_folder(anew))
    whole = made.read_bytes()
    made.unlink()
    cut = tmp_path / "cut"
    (compiler,) = build._compiler()
    cut.write_text(
        f'#!/bin/sh\n{compiler} "$@" || exit\nfor last; do :; done\ntruncate -s {size % len(whole)} "$last"\n'
    )
    cut.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("CC", str(cut))
        assert build.module() is None
        assert "has made half a library" in build.reason()
        assert not [*anew.iterdir()], "nothing is kept"
    build._made.cache_clear()
    half = whole[: size % len(whole)]
    build._named(anew, build._compiler(), half).write_bytes(half)
    assert build.module() is not None
    (kept,) = anew.iterdir()
    assert kept.read_bytes() == whole


def anew_folder(anew: Path) -> Path:
    """The folder, made."""
    anew.mkdir(parents=True)
    return anew


def test_nothing_can_be_kept(anew: Path, tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "manyhands").write_text("")
    assert build.module() is not None
    assert not anew.exists()


@pytest.mark.parametrize("error", [RuntimeError("no home"), PermissionError("not yours")])
def test_no_home_and_one_of_another_user(
    anew: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(*_: Any) -> Path:
        raise error

    monkeypatch.setattr(build, "_folder" if isinstance(error, RuntimeError) else "_kept", refused)
    assert build.module() is not None
    assert not [*anew.glob("*")]


def test_the_name_of_a_module_of_the_users_stays_free(anew: Path) -> None:
    assert build.module() is not None
    assert "native" not in sys.modules


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("CC", "no-such-compiler", "no-such-compiler"),
        ("CC", "false", "failed"),
        ("CC", "no-such-compiler -pipe", "no-such-compiler -pipe"),
        (build.VARIABLE, build.OFF, build.VARIABLE),
    ],
)
def test_without_a_compiler_numpy_serves(
    anew: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert build.module() is None
    assert reason in build.reason()
    assert not anew.exists() or not [*anew.iterdir()], "nothing half made"
    plan = situations.planned(situations.prefill(20), 5)[0]
    tiling = Tiling(4, 8, 132)
    without = cut(plan, tiling)
    monkeypatch.undo()
    build._made.cache_clear()
    assert same(cut(plan, tiling).small, without.small)


@pytest.mark.parametrize("value", ["0", "no", "OFF", "false"])
def test_another_word_than_on_and_off_is_named(
    anew: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(build.VARIABLE, value)
    with pytest.raises(InvalidRequest, match=f"{build.VARIABLE} is '{value}'; expected on or off"):
        build.module()
    for usual in ("", build.ON):
        monkeypatch.setenv(build.VARIABLE, usual)
        build._made.cache_clear()
        assert build.module() is not None


def test_a_compiler_with_flags(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = build._compiler()
    monkeypatch.setenv("CC", f"{name} -g0")
    assert build._compiler() == (name, "-g0")
    assert build.module() is not None


def test_a_compiler_that_speaks_another_encoding(
    anew: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loud = tmp_path / "loud"
    loud.write_text("#!/bin/sh\nprintf '\\377 is wrong' >&2\nexit 1\n")
    loud.chmod(0o755)
    monkeypatch.setenv("CC", str(loud))
    assert build.module() is None
    assert "is wrong" in build.reason()


def test_integers_that_would_lead_out_of_an_array_are_refused() -> None:
    """None can come from a plan; numpy reads something else there, or says so."""
    none, one = np.array([0]), np.array([1])
    with pytest.raises(ValueError, match="reads nothing"):
        compiled.lists(
            np.zeros((1, 6), np.int64),
            np.array([0, 1]),
            np.zeros(2, np.int64),
            np.ones(2, np.int64),
            2,
        )
    with pytest.raises(ValueError, match="without entries"):
        compiled.stretches(none, one, np.array([0, 1, 1]), 64)
    with pytest.raises(ValueError, match="without entries"):
        compiled.sizes(none, one, none, np.array([0, 1, 1]))
    with pytest.raises(ValueError, match="without entries"):
        compiled.tiles(none, one, none, np.array([0, 1]), none, 0, 64)


def test_a_compiler_that_hangs_is_stopped(
    anew: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(build, "_SECONDS", 0.2)
    assert build.module() is None
    assert "longer than" in build.reason()
    assert not [*anew.iterdir()]


def some_pages(**others: Any) -> tuple[Any, ...]:
    """Two strips of 2 and 1 pages of 4 slots, to which two rows write 2 and 1 tokens."""
    given = {
        "tables": [[7, 3], [5]],
        "own": np.array([0, 1]),
        "row_indptr": np.array([0, 2, 3]),
        "offsets": np.array([3, 4, 0]),
        "page_size": 4,
    }
    return tuple((given | others).values())


def test_slots_of_pages(calls: Counter[str]) -> None:
    pages, indptr, slots = compiled.pages(*some_pages())
    assert (pages.tolist(), indptr.tolist()) == ([7, 3, 5], [0, 2, 3])
    assert slots.tolist() == [31, 12, 20]
    assert calls["pages"] == 1


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"offsets": np.array([3, 8, 0])}, "beside its pages"),
        ({"offsets": np.array([3, -1, 0])}, "beside its pages"),
        ({"page_size": 0}, "without tokens"),
        ({"row_indptr": np.array([0, 9, 3])}, "one behind another"),
        ({"row_indptr": np.array([-1, 2, 3])}, "one behind another"),
        ({"own": np.array([0, 2])}, "to no strip"),
        ({"offsets": np.array([3, 4])}, "more tokens"),
        ({"row_indptr": np.array([0, 3])}, "more tokens"),
    ],
)
def test_tokens_without_a_page_are_refused(others: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compiled.pages(*some_pages(**others))


def test_lists_of_something_else_are_refused() -> None:
    with pytest.raises(TypeError, match="expected a list"):
        compiled.pages(*some_pages(tables=[[7, 3], (5,)]))
    with pytest.raises(TypeError):
        compiled.pages(*some_pages(tables=[[7, "3"], [5]]))
    with pytest.raises(OverflowError):
        compiled.pages(*some_pages(tables=[[7, 1 << 70], [5]]))
    with pytest.raises(TypeError, match="expected a list"):
        compiled.team(np.zeros((2, 2), np.int64), np.zeros(6, np.int64), [True], [], [])  # type: ignore[arg-type]
