"""The op against its definition: random conversations over random views, every variant of a layer.

Tolerances. Both sides see the same inputs, rounded to the tested dtype beforehand, so what is left is
the rounding of the backend itself. float64: a few hundred roundings of 1e-16. float32: scores of size
a few, each off by some 1e-7 times the angle's own error (positions up to some hundreds), under 2e-5.
bfloat16 and float16: stored keys are rounded after their rotation, once more when a block moves, and
the output once: some ulps of 2^-8 and 2^-11 on numbers of size up to 3.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.attention import merge as merging
from manyhands.attention import torch_backend
from manyhands.attention.attend import Backend, LayerCall, QueryScale
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerStore
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.block import Block
from manyhands.cache.plan import Plan
from manyhands.cache.step import Row, Step
from manyhands.cache.view import Item, Lanes, View
from manyhands.engine.backends import ANYWHERE
from tests.attention.dense import DenseOracle, Layer, Shape, random_qkv
from tests.covers import examples

TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.float16: 8e-3,
    torch.bfloat16: 6e-2,
}
SHAPES = {
    "gqa": Shape(),
    "mqa": Shape(num_heads=3, num_kv_heads=1),
    "mha": Shape(num_heads=2, num_kv_heads=2),
    "wide value": Shape(value_dim=12),
    "odd group": Shape(num_heads=5, num_kv_heads=1, head_dim=16, value_dim=16),
}
FREQUENCIES = torch.tensor([1.0, 0.31, 0.1, 0.03], dtype=torch.float64)
ROPES = {
    "half-split": Rope(FREQUENCIES, 8),
    "interleaved": Rope(FREQUENCIES, 8, interleaved=True),
    "partial": Rope(FREQUENCIES[:2], 4),
    "partial interleaved": Rope(FREQUENCIES[:3], 6, interleaved=True),
    "no positions": None,
}
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 5},
    "window of one": {"window": 1},
    "chunks": {"chunk": 5},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": torch.tensor([0.3, -1.0, 4.0, 0.0, 2.0])},
    "all at once": {
        "window": 7,
        "softcap": 5.0,
        "sinks": torch.tensor([0.3, -1.0, 4.0, 0.0, 2.0]),
        "query_scale": QueryScale(0.8, span=3),
    },
}
BACKENDS: dict[str, Callable[[], Backend]] = {
    **ANYWHERE,
    "torch, tiny products and runs": lambda: TorchBackend(budget=64, long_run=3),
    "torch, small parts": lambda: TorchBackend(long_run=3, most_entries=7),
}


def random_conversation(rng: random.Random, num_steps: int, num_workers: int = 3) -> Iterator[Step]:
    """Steps of a team that reads in random orders, freezes blocks at random and starts fresh ones."""
    blocks = [Block(f"b{i}") for i in range(num_workers + 2)]
    for _ in range(num_steps):
        writable = [block for block in blocks if not block.frozen]
        owners = rng.sample(writable, rng.randint(1, min(num_workers, len(writable))))
        rows = []
        for own in owners:
            others = [block for block in blocks if block is not own]
            seen = rng.sample(others, rng.randint(0, len(others)))
            if rng.random() < 0.5:  # the order of a history, which is what compaction is for
                seen.sort(key=blocks.index)
            if seen and rng.random() < 0.3:
                seen.append(rng.choice(seen))  # a separator read twice
            feed = tuple(rng.choices(range(9), k=rng.choice([1, 1, 3, 7])))
            rows.append(Row(View([*with_lanes(rng, seen), own]), feed))
        yield Step(rows)
        for block in list(blocks):
            if not block.frozen and block.num_tokens and rng.random() < 0.3:
                block.freeze()
                blocks.append(Block(f"b{len(blocks)}"))
        if len(blocks) > 9:
            blocks.pop(rng.randrange(3))


def with_lanes(rng: random.Random, blocks: list[Block]) -> list[Item]:
    """Now and then some neighbours stand side by side, each lane of up to two of them."""
    if len(blocks) < 2 or rng.random() < 0.6:
        return list(blocks)
    start = rng.randrange(len(blocks) - 1)
    stop = rng.randint(start + 1, len(blocks))
    cuts = sorted({start, stop, *rng.choices(range(start, stop), k=3)})
    lanes = Lanes(with_lanes(rng, blocks[a:b]) for a, b in pairwise(cuts))
    return [*blocks[:start], lanes, *blocks[stop:]]


def worst_error(
    backend: Backend,
    shape: Shape,
    rope: Rope | None,
    layer: dict[str, Any],
    dtype: torch.dtype,
    seed: int,
    num_steps: int = 6,
    device: torch.device | None = None,
) -> float:
    """Largest difference to the definition over all steps of one random conversation."""
    sinks = layer.get("sinks")
    layer = layer | ({"sinks": sinks[: shape.num_heads].to(dtype)} if sinks is not None else {})
    call = LayerCall(layer=0, scaling=shape.head_dim**-0.5, **layer)
    if rope is not None and dtype != torch.float64:
        rope = Rope(rope.inv_freq.float(), rope.rotary_dim, rope.interleaved)
    product = Layer(backend, shape, rope, call, dtype=dtype, device=device)
    oracle = DenseOracle(rope, call)
    generator = torch.Generator().manual_seed(seed)
    worst = 0.0
    for step in random_conversation(random.Random(seed), num_steps):
        q, k, v = random_qkv(step, shape, generator, dtype)
        oracle.write(step, k, v)
        error = (product.step(step, q, k, v).double() - oracle.read(step, q)).abs().max()
        worst = max(worst, float(error)) if error == error else float("inf")
    return worst


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("rope", ROPES)
def test_every_variant_of_a_layer(backend: str, layer: str, rope: str) -> None:
    error = worst_error(
        BACKENDS[backend](), SHAPES["gqa"], ROPES[rope], LAYERS[layer], torch.float64, seed=1
    )
    assert error < TOLERANCE[torch.float64]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_shapes_and_dtypes(backend: str, shape: str, dtype: torch.dtype) -> None:
    error = worst_error(BACKENDS[backend](), SHAPES[shape], ROPES["half-split"], {}, dtype, seed=2)
    assert error < TOLERANCE[dtype]


@settings(max_examples=examples(20, of=40), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    backend=st.sampled_from(sorted(BACKENDS)),
    layer=st.sampled_from(sorted(LAYERS)),
)
def test_random_conversations(seed: int, backend: str, layer: str) -> None:
    rope = ROPES["half-split"]
    error = worst_error(
        BACKENDS[backend](), SHAPES["gqa"], rope, LAYERS[layer], torch.float64, seed, num_steps=9
    )
    assert error < TOLERANCE[torch.float64]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 63, 129])
def test_awkward_sizes_and_empty_blocks(backend: str, size: int) -> None:
    """A long block, an empty one, and a row of its own length, in one view."""
    shape, call = SHAPES["gqa"], LayerCall(layer=0, scaling=0.3)
    rope = ROPES["half-split"]
    product = Layer(BACKENDS[backend](), shape, rope, call, dtype=torch.float64, num_pages=128)
    oracle = DenseOracle(rope, call)
    long, empty, own = Block(), Block(), Block()
    for row in (Row(View([long]), (1,) * size), Row(View([long, empty, own]), (2,) * size)):
        step = Step([row])
        q, k, v = random_qkv(step, shape, torch.Generator().manual_seed(size), torch.float64)
        oracle.write(step, k, v)
        assert (product.step(step, q, k, v) - oracle.read(step, q)).abs().max() < 1e-11


@pytest.mark.parametrize("backend", BACKENDS)
def test_storage_order_does_not_matter(backend: str) -> None:
    """Blocks written in another order lie elsewhere; what is read is the same, to the last bit."""
    shape, call = SHAPES["gqa"], LayerCall(layer=0, scaling=0.3)
    rope = ROPES["half-split"]
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(5, n, 8, generator=generator) for n in (4, 2, 2)]
    outs = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        product = Layer(BACKENDS[backend](), shape, rope, call)
        blocks = [Block() for _ in range(3)]
        for index in order:
            product.step(
                Step([Row(View([blocks[index]]), (0,) * 5)]), *(x * (index + 1) for x in made)
            )
        own = Block()
        step = Step([Row(View([*blocks, own]), (0,) * 5)])
        outs.append(product.step(step, *made))
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@pytest.mark.parametrize(
    ("mutation", "change"),
    [
        ("the base is off by one", lambda plan: plan.reads.base.__iadd__(plan.reads.low == 0)),
        ("a key too few", lambda plan: plan.reads.high.__isub__(plan.reads.high > 1)),
        ("a key too many", lambda plan: plan.offsets.__iadd__(1)),
    ],
)
def test_the_oracle_sees_a_wrong_plan(
    monkeypatch: pytest.MonkeyPatch, mutation: str, change: Callable[..., Any]
) -> None:
    """A control: a plan that is wrong in one integer is caught."""
    from manyhands.cache import planner as planning

    right = planning.Planner.plan

    def wrong(self: planning.Planner, step: Step) -> Plan:
        plan = right(self, step)
        change(plan)
        return plan

    monkeypatch.setattr(planning.Planner, "plan", wrong)
    error = worst_error(
        TorchBackend(), SHAPES["gqa"], ROPES["half-split"], {}, torch.float64, seed=4
    )
    assert error > 1e-3, mutation


def test_a_strip_is_cut_where_its_pages_do_not_follow_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two blocks that grow in turns lie in pages of both; a later one lies in one run between its first and last."""
    read: list[list[torch_backend.Bucket]] = []
    prepare = TorchBackend.prepare

    def seen(self: TorchBackend, plan: Any, device: torch.device) -> Any:
        made = prepare(self, plan, device)
        read.append([bucket for part in made.parts for bucket in part.buckets])
        return made

    monkeypatch.setattr(TorchBackend, "prepare", seen)
    shape, call, rope = SHAPES["gqa"], LayerCall(layer=0, scaling=0.3), ROPES["half-split"]
    product = Layer(TorchBackend(long_run=9), shape, rope, call, dtype=torch.float64, num_pages=64)
    oracle, generator = DenseOracle(rope, call), torch.Generator().manual_seed(1)
    one, two = Block(), Block()
    feeds = [(one, 4), (two, 4), (one, 4), (two, 4), (one, 30), (two, 1), (one, 4), (one, 1)]
    for block, count in feeds:
        step = Step([Row(View([block]), (0,) * count)])
        q, k, v = random_qkv(step, shape, generator, torch.float64)
        oracle.write(step, k, v)
        assert (product.step(step, q, k, v) - oracle.read(step, q)).abs().max() < 1e-11
    beyond = torch.iinfo(torch.int64).max
    assert sum(int((bucket.indices < beyond).sum()) for bucket in read[-1]) == 43
    runs = [bucket.run for bucket in read[-1] if bucket.run is not None]
    assert [run.stop - run.start for run in runs] == [32]


@pytest.mark.parametrize(("most", "largest"), [(64, 63), (5, 9), (10**6, 8 * 3 * 9)])
def test_a_cpu_holds_the_partials_of_few_entries_at_a_time(
    most: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team's opening has as many as its tokens times its desks: each part has so many at most, or those of one token."""
    merged: list[int] = []

    def seen(outs: torch.Tensor, *rest: Any) -> torch.Tensor:
        merged.append(outs.shape[0] * outs.shape[1])
        return merging.merge(outs, *rest)

    monkeypatch.setattr(torch_backend, "merge", seen)
    shape, call, rope = SHAPES["gqa"], LayerCall(layer=0, scaling=0.3), ROPES["half-split"]
    backend = TorchBackend(most_entries=most)
    product = Layer(backend, shape, rope, call, dtype=torch.float64, num_pages=64)
    oracle, generator = DenseOracle(rope, call), torch.Generator().manual_seed(1)
    notes, desks = Block(), [Block() for _ in range(8)]
    opening = Step(
        Row(View([notes, *(each for each in desks if each is not own), own]), (0,) * 3)
        for own in desks
    )
    for step in (Step([Row(View([notes]), (0,) * 5)]), opening):
        merged.clear()
        q, k, v = random_qkv(step, shape, generator, torch.float64)
        oracle.write(step, k, v)
        assert (product.step(step, q, k, v) - oracle.read(step, q)).abs().max() < 1e-11
    assert max(merged) == largest
    assert sum(merged) == 8 * 3 * 9


def test_a_cpu_takes_the_fused_attention_and_reads_runs_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the tests above would not have seen it. With a gradient asked for it must not be taken."""
    calls = {"fused": 0, "runs": 0}
    fused, read_run = torch_backend.fused_attention, LayerStore.read_run

    def counted(*args: Any) -> Any:
        calls["fused"] += 1
        return fused(*args)

    def counted_run(*args: Any) -> Any:
        calls["runs"] += 1
        return read_run(*args)

    monkeypatch.setattr(torch_backend, "fused_attention", counted)
    monkeypatch.setattr(LayerStore, "read_run", counted_run)
    shape, rope = SHAPES["gqa"], ROPES["half-split"]
    assert worst_error(TorchBackend(), shape, rope, {"window": 5}, torch.float32, 2) < 2e-5
    assert min(calls.values()) >= 3
    calls["fused"] = 0
    worst_error(TorchBackend(), shape, rope, {"softcap": 3.0}, torch.float32, 2)
    assert not calls["fused"]
