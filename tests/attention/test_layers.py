"""Layers that differ: in their heads, in the sizes of keys and of values, in how they rotate and store.

One plan and one memory serve them all. Tolerances as in `test_attend.py` and `test_triton.py`.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from manyhands.attention.attend import Backend, LayerCall, LeftNorms
from manyhands.attention.eight_bits import rounded, unrounded
from manyhands.attention.reference import ReferenceBackend
from manyhands.attention.rotary import Rope, Rotations
from manyhands.attention.store import LayerShape, LayerStore, Moved, Targets
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.backends import ANYWHERE
from manyhands.model.layers import FORMS, Form, plain_norm
from manyhands.model.memory import Memory
from tests.attention.dense import DenseOracle, Layers, Shape, random_qkv
from tests.attention.test_attend import ROPES, TOLERANCE, random_conversation

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
with_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton comes for Linux only"
)
AnyLayer = tuple[Shape, Rope | None, LayerCall]
WIDE = Rope(1 / 100 ** (torch.arange(8, dtype=torch.float64) / 9), 16, interleaved=True)
# As in a network whose every third layer sees everything, with few and large key heads.
LAYERS = [
    (Shape(4, 4, 8, 8), ROPES["half-split"], LayerCall(layer=0, scaling=0.3, window=5)),
    (Shape(6, 1, 16, 12), WIDE, LayerCall(layer=1, scaling=0.2)),
    (Shape(4, 4, 8, 8), ROPES["partial"], LayerCall(layer=2, scaling=0.3, softcap=3.0)),
    (
        Shape(4, 2, 8, 20),
        None,
        LayerCall(layer=3, scaling=0.4, sinks=torch.tensor([1, -1, 4.0, 0])),
    ),
]
# Heads whose keys and values come two dims at a time, if they are in eight bits.
IN_WORDS = (
    Shape(4, 2, 32, 32),
    Rope(1 / 100 ** (torch.arange(16, dtype=torch.float64) / 16), 32),
    LayerCall(layer=0, scaling=0.2),
)
SHAPES, ROPES_OF, _ = zip(*LAYERS, strict=True)


def kernels(layers: Sequence[AnyLayer], dtype: torch.dtype, **tiling: int) -> Any:
    """The kernels with small tiles, cut for the largest group of these layers."""
    from manyhands.attention.triton_backend import TritonBackend
    from tests.attention.test_triton import small_tiles

    shapes = [shape for shape, _, _ in layers]
    largest = max(shapes, key=lambda shape: shape.group)
    return TritonBackend(shapes, dtype, DEVICE, small_tiles(largest, **tiling))


def a_conversation(seed: int = 14, num_steps: int = 3) -> Iterator[Step]:
    """A random one, in which blocks are moved together."""
    return random_conversation(random.Random(seed), num_steps)


def errors(
    backend: Backend,
    dtype: torch.dtype,
    conversation: Iterable[Step],
    layers: Sequence[AnyLayer] = LAYERS,
    *,
    page_size: int = 4,
    change: Callable[[LayerStore], LayerStore] = lambda store: store,
    is_moved: bool = True,
    eight_bits: bool = False,
) -> list[float]:
    """Each layer's largest difference to its definition."""
    layers = [_in_dtype(layer, dtype) for layer in layers]
    device = DEVICE if backend.name == "triton" else CPU
    product = Layers(
        backend, layers, dtype=dtype, page_size=page_size, device=device, eight_bits=eight_bits
    )
    changed = {store: change(store) for store in product.memory.stores}
    product.memory.stores = tuple(changed.values())
    product.memory.stacks = tuple(
        replace(stack, stores=tuple(changed[store] for store in stack.stores))
        for stack in product.memory.stacks
    )
    oracles = [DenseOracle(rope, call) for _, rope, call in layers]
    generator = torch.Generator().manual_seed(3)
    worst = [0.0] * len(layers)
    for step in conversation:
        inputs = [random_qkv(step, shape, generator, dtype) for shape, _, _ in layers]
        for oracle, (_, k, v) in zip(oracles, inputs, strict=True):
            oracle.write(step, k, v)
        outs = product.pass_of(step, inputs)
        for index, (oracle, out) in enumerate(zip(oracles, outs, strict=True)):
            off = (out.double() - oracle.read(step, inputs[index][0])).abs().max()
            worst[index] = max(worst[index], float(off.nan_to_num(float("inf"))))
    assert is_moved == (product.num_moves > 0)
    return worst


def _in_dtype(layer: AnyLayer, dtype: torch.dtype) -> AnyLayer:
    """Sinks are weights, and frequencies are float32 but in float64."""
    shape, rope, call = layer
    if rope is not None and dtype != torch.float64:
        rope = replace(rope, inv_freq=rope.inv_freq.float())
    if call.sinks is not None:
        call = replace(call, sinks=call.sinks.to(dtype))
    return shape, rope, call


BACKENDS: dict[str, Callable[[], Backend]] = {
    **ANYWHERE,
    "torch, tiny products": lambda: TorchBackend(budget=64),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", [1, 6])
def test_layers_of_different_shapes(backend: str, seed: int) -> None:
    found = errors(BACKENDS[backend](), torch.float64, a_conversation(seed, num_steps=8))
    assert max(found) < TOLERANCE[torch.float64]


@with_triton
@pytest.mark.parametrize("tiling", [{}, {"most_small_rows": 0}], ids=["small tiles", "large tiles"])
def test_layers_of_different_shapes_in_the_kernels(tiling: dict[str, int]) -> None:
    backend = kernels(LAYERS, torch.float32, **tiling)
    assert max(errors(backend, torch.float32, a_conversation(19, num_steps=2))) < 2e-5


@with_triton
def test_only_some_layers_come_by_tensor_maps() -> None:
    """Heads of 16 dims can, and those of 8 and 12 cannot; the tiles are the same."""
    layers = [
        (Shape(4, 2, 16, 16), WIDE, LayerCall(layer=0, scaling=0.3)),
        (Shape(3, 1, 8, 12), ROPES["half-split"], LayerCall(layer=1, scaling=0.3)),
    ]
    backend = kernels(layers, torch.bfloat16, most_small_rows=0)
    if DEVICE.type == "cpu":
        assert [launches.is_mapped for launches in backend.launches] == [True, False]
    prompt, desks = Block(), [Block(), Block()]
    steps = [
        Step([Row(View([prompt]), (1,) * 40)]),
        Step([Row(View([prompt, desk]), (2,) * 2) for desk in desks]),
    ]
    found = errors(backend, torch.bfloat16, steps, layers, page_size=16, is_moved=False)
    assert max(found) < TOLERANCE[torch.bfloat16]


@with_triton
def test_launches_are_chosen_once_for_each_shape() -> None:
    from manyhands.attention.triton_backend import TritonBackend

    shapes = [LayerShape(8, 2, 64, 64), LayerShape(32, 4, 128, 256), LayerShape(8, 2, 64, 64)]
    backend = TritonBackend(shapes, torch.float32, CPU)
    assert (backend.tiling.group, backend.tiling.num_kv_heads) == (8, 2)
    assert backend.launches[0] is backend.launches[2]
    alone = [TritonBackend([shape], torch.float32, CPU) for shape in shapes[:2]]
    assert [backend.launches[i] == alone[i].launches[0] for i in range(2)] == [True, True]


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_control_one_layer_that_rotates_like_another(backend: str, layer: int) -> None:
    """The error shows there, and nowhere else."""
    right = ROPES_OF[layer]
    wrong = ROPES["half-split" if right is ROPES["partial"] else "partial"]

    def change(store: LayerStore) -> LayerStore:
        is_it = store.rope is not None and right is not None and store.rope.same_rotation(right)
        return replace(store, rope=wrong) if is_it else store

    found = errors(BACKENDS[backend](), torch.float64, a_conversation(), change=change)
    assert [error > 1e-3 for error in found] == [index == layer for index in range(4)]


def test_a_memory_is_one_allocation_for_each_shape() -> None:
    memory = Memory(10, SHAPES, ROPES_OF, device=CPU, dtype=torch.float16)
    sizes = [tuple(store.keys.shape) for store in memory.stores]
    assert sizes == [(10, 4, 8), (10, 1, 16), (10, 4, 8), (10, 2, 8)]
    assert [store.values.shape[-1] for store in memory.stores] == [8, 12, 8, 20]
    assert [store.rope for store in memory.stores] == list(ROPES_OF)
    storages = [store.keys.untyped_storage().data_ptr() for store in memory.stores]
    assert storages[0] == storages[2]
    assert len(set(storages)) == 3
    numbers = sum(shape.numbers_per_token for shape in SHAPES)
    assert memory.num_bytes == 10 * numbers * 2 == 10 * (4 * 16 + 28 + 4 * 16 + 2 * 28) * 2


# -- in eight bits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_and_values_in_eight_bits(backend: str) -> None:
    """Some 2^-8 of numbers up to 3, twice for keys that moved; and it is them that is read."""
    found = errors(BACKENDS[backend](), torch.float64, a_conversation(), eight_bits=True)
    assert 1e-4 < min(found) <= max(found) < 0.1


def a_short_conversation() -> Iterator[Step]:
    """A prompt, two desks, and one of them moved behind the prompt: little for an interpreter to do."""
    prompt, desks = Block("prompt"), [Block(name) for name in "ABC"]
    yield Step([Row(View([prompt]), (1,) * 18)])
    prompt.freeze()
    yield Step([Row(View([prompt, desk]), (2,) * 2) for desk in desks[:2]])
    desks[0].freeze()
    yield Step([Row(View([prompt, desks[0], desks[2]]), (3,))])


def a_first_step() -> Iterator[Step]:
    """Prompt, marker and desks are fed at once, and copies of the marker are made behind it."""
    prompt, marker, *desks = (Block(name) for name in ("prompt", "marker", *"ABC"))

    def views() -> list[View]:
        beside = [[(desk, marker) for desk in desks if desk is not own] for own in desks]
        return [
            View([prompt, *(block for pair in pairs for block in pair), own])
            for own, pairs in zip(desks, beside, strict=True)
        ]

    opening = Row(View([prompt]), (1,) * 9), Row(View([prompt, marker]), (1,) * 3)
    yield Step([*opening, *(Row(view, (2,) * 2) for view in views())])
    prompt.freeze()
    marker.freeze()
    yield Step([Row(view, (3,)) for view in views()])


@pytest.mark.parametrize("backend", [*BACKENDS, pytest.param("triton", marks=with_triton)])
def test_room_for_a_copy_is_zero_until_it_is_filled(backend: str) -> None:
    """Tiles begin in front of what a row reads, and weigh it with nothing, which must be a number."""
    shape, rope, call = LAYERS[0]
    layers = [(shape, rope, replace(call, window=None))]
    ours = BACKENDS[backend]() if backend != "triton" else kernels(layers, torch.float32)
    for bits, bound in ((False, TOLERANCE[torch.float32]), (True, 0.1)):
        (found,) = errors(ours, torch.float32, a_first_step(), layers, eight_bits=bits)
        assert found < bound


@with_triton
@pytest.mark.parametrize(
    ("tiling", "layer"),
    [
        ({}, LAYERS[1]),
        ({"most_small_rows": 0}, LAYERS[3]),
        ({}, IN_WORDS),
        ({"most_small_rows": 0}, IN_WORDS),
    ],
    ids=["small tiles", "large tiles", "small tiles of words", "large tiles of words"],
)
def test_eight_bits_in_the_kernels(tiling: dict[str, int], layer: AnyLayer) -> None:
    """They write, move and read as the rung below does, to halves that fall the other way."""
    shape, rope, call = layer
    layers = [(shape, rope, replace(call, layer=0))]
    backend = kernels(layers, torch.float32, **tiling)
    (ours,), (reference,) = (
        errors(each, torch.float32, a_short_conversation(), layers, eight_bits=True)
        for each in (backend, ReferenceBackend())
    )
    assert 1e-4 < ours < 0.1
    assert abs(ours - reference) < 0.2 * reference


@with_triton
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("eight_bits", [False, True])
@pytest.mark.parametrize("layer", LAYERS, ids=["half-split", "interleaved", "partial", "none"])
def test_norms_that_are_left_to_what_stores_keys(
    layer: AnyLayer, eight_bits: bool, form: Form
) -> None:
    """Queries in place and keys in memory are what they are with norms in front of it, but for the order of sums."""
    shape = layer[0]
    generator = torch.Generator().manual_seed(form)
    ours = kernels([layer], torch.float32)
    products = [Layers(ours, [layer], device=DEVICE, eight_bits=eight_bits) for _ in range(2)]
    step = Step([Row(View([Block()]), (1,) * 5), Row(View([Block()]), (1,))])
    qkv = [x.to(DEVICE) for x in random_qkv(step, shape, generator, torch.float32)]
    weights = torch.randn(2, shape.head_dim, generator=generator).to(DEVICE)
    left = LeftNorms((weights[0], 1e-6), (weights[1], 0.5), form)
    q, k, v = qkv
    normed = [plain_norm(x, *norm, form) for x, norm in ((q, left.query), (k, left.key))]
    plans = [product.planner.plan(step) for product in products]
    for product, plan, given in zip(products, plans, ((normed[1], v), (k, v)), strict=True):
        prepared = ours.prepare(plan, DEVICE)
        own = () if given[0] is normed[1] else ((q, left),)
        ours.append(product.memory.stores[0], *given, prepared, *own)
    slots = torch.as_tensor(plans[0].slots, device=DEVICE)
    before, behind = (product.memory.stores[0].read(slots) for product in products)
    bound: dict[str, Any] = {"rtol": 1e-5, "atol": 0.1 if eight_bits else 1e-5}
    torch.testing.assert_close(q, normed[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(behind[0], before[0], **bound)
    assert torch.equal(behind[1], before[1])


@with_triton
def test_eight_bits_of_lone_rows_in_short_dtypes() -> None:
    layers = [(Shape(2, 2, 16, 16), WIDE, LayerCall(layer=0, scaling=0.3, window=9))]
    desks = [Block(), Block()]
    steps = [Step([Row(View([desk]), (2,) * size) for desk in desks]) for size in (12, 1)]
    backend = kernels(layers, torch.bfloat16)
    found = errors(backend, torch.bfloat16, steps, layers, is_moved=False, eight_bits=True)
    assert 1e-4 < max(found) < 0.1


def test_a_hundred_moves_round_a_hundred_times_and_no_further() -> None:
    """Errors of different roundings are independent: ten times that of one. The house moves a block once."""
    generator = torch.Generator().manual_seed(1)
    shape, rope = LayerShape(4, 2, 64, 64), Rope(1 / 100 ** (torch.arange(32) / 32), 64)
    memory = Memory(64, [shape], [rope], device=CPU, dtype=torch.float32, eight_bits=True)
    (stack,) = memory.stacks
    keys, values = (torch.randn(16, 2, 64, generator=generator) for _ in range(2))
    here, there = torch.arange(16), torch.arange(16) + 32
    stack.stores[0].write(Targets(here, Rotations(torch.zeros(16))), keys, values)
    errors_of = []
    turned = 0
    for number in range(1, 101):
        shift = torch.full((16,), 7 * number % 50)
        stack.move(Moved(here, there, Rotations(shift)))
        turned += int(shift[0])
        here, there = there, here
        expected = Rotations(torch.full((16,), turned)).rotate(keys, rope)
        found, _ = stack.stores[0].read(here)
        errors_of.append(float((found - expected).square().mean().sqrt()))
    step = float(keys.abs().amax(-1).mean()) / 127
    assert 0.2 * step < errors_of[0] < 0.6 * step
    assert errors_of[99] < 0.6 * step * 10
    assert errors_of[99] > 3 * errors_of[0], "the test can tell"
    read = stack.stores[0].read(here)[1]
    assert float((read - values).abs().max()) < step, "values are not rounded again"


def test_a_memory_in_eight_bits_is_little_more_than_half() -> None:
    shape = LayerShape(8, 2, 128, 128)
    sizes = [
        Memory(4, [shape], [None], device=CPU, dtype=torch.bfloat16, eight_bits=bits).num_bytes
        for bits in (False, True)
    ]
    assert sizes == [4 * 2 * 256 * 2, 4 * 2 * (256 + 8)]


def test_nothing_is_rounded_to_nothing() -> None:
    zeros, scales = rounded(torch.zeros(3, 8))
    assert not unrounded(zeros, scales).any()
    numbers = torch.tensor([[1.0, -127.0, 0.4, 63.0]])
    assert unrounded(*rounded(numbers)).tolist() == [[1.0, -127.0, 0.0, 63.0]]
