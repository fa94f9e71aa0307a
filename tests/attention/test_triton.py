"""The Triton kernels against the definition, and on a GPU against the rung below at real sizes.

Tolerances as in `test_attend.py`: float32 products are exact ("ieee"), 16-bit ones have 16-bit inputs
and float32 sums, and weights are rounded to 16 bits once more before they meet the values.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton comes for Linux only")

import triton
import triton.language as tl

from manyhands.attention import eight_bits, fitting, layer_reading, triton_backend
from manyhands.attention.attend import LayerCall
from manyhands.attention.fitting import refusal, serves_expanded
from manyhands.attention.kernels.eight_bits import parted, rounded
from manyhands.attention.kernels.merge import merge_kernel
from manyhands.attention.prepared import Capacity, Prepared, pack
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerShape, LayerStore
from manyhands.attention.torch_backend import TorchBackend
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import Occupancy, Tiling, cut
from manyhands.cache.block import Block
from manyhands.cache.plan import Plan
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from tests.attention.dense import DenseOracle, Layer, Shape, random_qkv
from tests.attention.test_attend import LAYERS, ROPES, SHAPES, TOLERANCE, worst_error

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="there is no GPU here")


# A kind of layer and a rotation meet in different lines of a kernel: each kind comes with one of two.
LAYERS_AND_ROPES = list(zip(LAYERS, cycle(["half-split", "partial interleaved"]), strict=False))


def backend_for(shape: Shape, dtype: torch.dtype, tiling: Tiling | None = None) -> TritonBackend:
    return TritonBackend([shape], dtype, DEVICE, tiling)


def kernels(shape: Shape, dtype: torch.dtype = torch.float32, **tiling: int) -> TritonBackend:
    """Small tiles, so that small conversations have several of everything."""
    return backend_for(shape, dtype, small_tiles(shape, **tiling))


def small_tiles(shape: LayerShape, **tiling: int) -> Tiling:
    """For layers with at most this many query heads to a key head."""
    usual: dict[str, Any] = {
        "key_tile": 16,
        "large_rows": 32,
        "most_small_rows": 16,
        "least_split": 16,
    }
    return Tiling(shape.group, shape.num_kv_heads, 4, **(usual | tiling))


def error_of(
    shape: Shape, rope: str, layer: str, dtype: torch.dtype, seed: int, **tiling: int
) -> float:
    backend = kernels(shape, dtype, **tiling)
    return worst_error(
        backend, shape, ROPES[rope], LAYERS[layer], dtype, seed, num_steps=4, device=DEVICE
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_every_kind_of_layer(layer: str) -> None:
    assert error_of(SHAPES["gqa"], "half-split", layer, torch.float32, 1) < 2e-5


@pytest.mark.parametrize("rope", ROPES)
def test_every_kind_of_rotation(rope: str) -> None:
    assert error_of(SHAPES["gqa"], rope, "plain", torch.float32, 2) < 2e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_heads(shape: str) -> None:
    assert error_of(SHAPES[shape], "half-split", "sinks", torch.float32, 3) < 2e-5


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(12, 12), (12, 8), (32, 8), (32, 24)])
def test_keys_are_read_as_they_lie_whatever_is_rotated(head_dim: int, rotary_dim: int) -> None:
    """Heads whose dims are no power of two, and those of which a part is rotated: pairs of both stand in another order."""
    shape = Shape(4, 2, head_dim, head_dim)
    rope = Rope(1 / 100 ** (torch.arange(rotary_dim // 2) / 6), rotary_dim)
    error = worst_error(
        kernels(shape), shape, rope, {}, torch.float32, 5, num_steps=4, device=DEVICE
    )
    assert error < 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits(dtype: torch.dtype) -> None:
    assert error_of(SHAPES["gqa"], "half-split", "all at once", dtype, 4) < TOLERANCE[dtype]


def heads_of_512(dtype: torch.dtype, keys: int) -> tuple[TritonBackend, Shape, Rope]:
    """Gemma 4's layers that see all: pairs (i, i + 256), of which the first quarter rotates."""
    shape = Shape(2, 1, 512, 512)
    backend = backend_for(shape, dtype)
    launches = backend.launches[0]
    assert not launches.is_mapped
    assert (launches.large.keys, launches.small.keys) == (keys, keys)
    rope = Rope(torch.cat((1 / 100 ** (torch.arange(64) / 64), torch.zeros(192))), 512)
    return backend, shape, rope


def test_heads_of_512_in_float32() -> None:
    backend, shape, rope = heads_of_512(torch.float32, keys=16)
    layer = LAYERS["window"]
    error = worst_error(backend, shape, rope, layer, torch.float32, 11, num_steps=3, device=DEVICE)
    assert error < TOLERANCE[torch.float32]


def test_heads_of_512_in_large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, shape, rope = heads_of_512(torch.bfloat16, keys=32)
    seen: list[bool] = []
    launch = layer_reading.LayerReading.launch

    def noted(
        self: Any, items: torch.Tensor, rows: int, is_large: bool, *, is_beside: bool = False
    ) -> None:
        seen.append(is_large)
        launch(self, items, rows, is_large, is_beside=is_beside)

    monkeypatch.setattr(layer_reading.LayerReading, "launch", noted)
    prompt, own = Block(), Block()
    steps = [Row(View([prompt]), (1,) * 70)], [Row(View([prompt, own]), (2,) * 2)]
    error = error_of_steps(backend, shape, rope, torch.bfloat16, steps, scaling=0.05)
    assert error < TOLERANCE[torch.bfloat16]
    assert set(seen) == {True, False}


WITH_MAPS = Shape(4, 2, 32, 64)
needs_maps = pytest.mark.skipif(
    DEVICE.type == "cuda" and torch.cuda.get_device_capability() < (9, 0),
    reason="tensor maps begin with Hopper",
)


@pytest.mark.parametrize(
    ("dtype", "interleaved", "mapped", "rotary_dim"),  # each pair of the first three is there once
    [
        pytest.param(torch.bfloat16, False, False, 32),
        pytest.param(torch.bfloat16, True, True, 32, marks=needs_maps),
        pytest.param(torch.float16, False, True, 32, marks=needs_maps),
        pytest.param(torch.float16, True, False, 16),
        pytest.param(torch.bfloat16, False, True, 8, marks=needs_maps),
    ],
)
def test_large_tiles_with_and_without_tensor_maps(
    dtype: torch.dtype,
    interleaved: bool,
    mapped: bool,
    rotary_dim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    tensor_map = layer_reading._tensor_map

    def counted(x: torch.Tensor, keys: int) -> object:
        made.append(keys)
        return tensor_map(x, keys)

    monkeypatch.setattr(layer_reading, "_tensor_map", counted)
    backend = kernels(WITH_MAPS, dtype, most_small_rows=0)
    assert backend.launches[0].is_mapped
    change_launches(backend, is_mapped=mapped)
    assert error_with_long_strips(backend, dtype, interleaved, rotary_dim) < TOLERANCE[dtype]
    assert set(made) == ({16} if mapped else set())


@pytest.mark.parametrize(("layer", "rope"), LAYERS_AND_ROPES)
def test_transposed_tiles(layer: str, rope: str) -> None:
    shape = SHAPES["gqa"]
    backend = kernels(shape)
    transpose_small_tiles(backend)
    layers = ROPES[rope], LAYERS[layer], torch.float32
    assert worst_error(backend, shape, *layers, seed=9, num_steps=4, device=DEVICE) < 2e-5


@pytest.mark.parametrize(
    ("dtype", "mapped", "rotary_dim"),
    [
        (torch.bfloat16, False, 32),
        pytest.param(torch.float16, True, 32, marks=needs_maps),
        pytest.param(torch.float16, True, 16, marks=needs_maps),
    ],
)
def test_transposed_tiles_with_and_without_tensor_maps(
    dtype: torch.dtype, mapped: bool, rotary_dim: int
) -> None:
    backend = kernels(WITH_MAPS, dtype, most_small_rows=128)
    transpose_small_tiles(backend)
    change_launches(backend, is_mapped=mapped)
    error = error_with_long_strips(backend, dtype, interleaved=False, rotary_dim=rotary_dim)
    assert error < TOLERANCE[dtype]


def transpose_small_tiles(backend: TritonBackend) -> None:
    """Also those that are better off otherwise."""
    launch = replace(backend.launches[0].transposed, keys=16)
    names = ("small", "few", "many", "wide", "transposed")
    change_launches(backend, **dict.fromkeys(names, launch))


def change_launches(backend: TritonBackend, **changes: Any) -> None:
    backend.launches = tuple(replace(launches, **changes) for launches in backend.launches)


def error_with_long_strips(
    backend: TritonBackend, dtype: torch.dtype, interleaved: bool, rotary_dim: int
) -> float:
    """Five tiles of keys that every row sees all of, over pages that lie anywhere, and the edges."""
    rope = Rope(1 / 100 ** (torch.arange(rotary_dim // 2) / 20), rotary_dim, interleaved)
    long, others = Block(), [Block() for _ in range(3)]
    steps = (
        [Row(View([long]), (1,) * 40)],
        [Row(View([long]), (1,) * 50), Row(View([others[0]]), (2,) * 70)],
        [Row(View([long, other]), (3,) * 2) for other in others],
    )
    return error_of_steps(backend, WITH_MAPS, rope, dtype, steps, scaling=0.3)


def error_of_steps(
    backend: TritonBackend,
    shape: Shape,
    rope: Rope,
    dtype: torch.dtype,
    steps: Sequence[Sequence[Row]],
    scaling: float,
    size: float = 1.0,
) -> float:
    """The largest difference to the definition over these steps, of values of this `size`, over it."""
    call = LayerCall(layer=0, scaling=scaling)
    product = Layer(
        backend, shape, rope, call, dtype=dtype, num_pages=32, page_size=32, device=DEVICE
    )
    oracle, errors = DenseOracle(rope, call), []
    for rows in steps:
        step = Step(rows)
        q, k, v = random_qkv(step, shape, torch.Generator().manual_seed(len(rows)), dtype)
        v = v * size
        oracle.write(step, k, v)
        errors.append((product.step(step, q, k, v).double() - oracle.read(step, q)).abs().max())
    return float(max(errors)) / size


@pytest.mark.parametrize("where", ["both", "large", "small"])
@pytest.mark.parametrize("size", [2.0**-100, 1.0, 2.0**100])
def test_partials_of_sixteen_bits(size: float, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many small tiles beside large ones, and of tiles of one kind; what float16 does not hold is kept by factors."""
    seen: list[tuple[torch.dtype, bool]] = []
    launch = layer_reading.LayerReading.launch

    def noted(self: Any, items: torch.Tensor, rows: int, is_large: bool, **options: bool) -> None:
        seen.append((self.partials[0].dtype, is_large))
        launch(self, items, rows, is_large, **options)

    monkeypatch.setattr(layer_reading.LayerReading, "launch", noted)
    shape, rope, dtype = SHAPES["gqa"], ROPES["half-split"], torch.bfloat16
    assert rope is not None
    rope = Rope(rope.inv_freq.float(), rope.rotary_dim, rope.interleaved)
    prompt, owns = Block(), [Block() for _ in range(3 if where == "small" else 12)]
    first = [Row(View([prompt]), (1,) * 40)]
    readers = ([Row(View([prompt, own]), (token,)) for own in owns] for token in (1, 2))
    more = [Row(View([prompt]), (2,) * 9)]
    steps = (first, more) if where == "large" else (first, *readers)
    how = {"can_begin_beside": True, "many_beside": 0, "halved_rows": 16}
    backend = kernels(shape, dtype, **how)
    error = error_of_steps(backend, shape, rope, dtype, steps, shape.head_dim**-0.5, size)
    assert error < TOLERANCE[dtype]
    kinds = {"both": [True, False], "large": [True], "small": [False]}[where]
    assert seen[-len(kinds) :] == [(torch.float16, is_large) for is_large in kinds]
    assert where != "small" or seen[-2] == seen[-1]


@pytest.mark.parametrize(
    ("changes", "are_halved"),
    [
        ({}, True),
        ({"large": 2}, False),  # in two streams
        ({"large": 60}, True),
        ({"large": 60, "large_rows": 128}, False),
        ({"large": 60, "occupancy": Occupancy.SOME}, False),
        ({"small": 0, "large": 4}, True),
        ({"small": 0, "large": 4, "large_rows": 128}, True),
        ({"small": 0, "large": 4, "large_rows": 128, "is_specialised": True}, False),
        ({"small_rows": 32, "occupancy": Occupancy.FEW}, True),
        ({"small_rows": 1}, False),
        ({"occupancy": Occupancy.SOME}, False),
    ],
)
def test_partials_have_sixteen_bits_where_tiles_are_many_or_large(
    changes: dict[str, Any], are_halved: bool
) -> None:
    tiling = Tiling(
        4,
        num_kv_heads=8,
        num_processors=132,
        large_rows=64,
        can_begin_beside=True,
        halved_rows=32,
    )
    sizes: dict[str, Any] = dict.fromkeys(
        ("tokens", "rows", "entries", "pages", "partials", "most_partials"), 128
    )
    capacity = Capacity(
        **sizes, small=300, large=0, small_rows=16, large_rows=64, occupancy=Occupancy.MANY
    )
    capacity = replace(capacity, **changes)
    assert triton_backend.are_halved(capacity, tiling) is are_halved
    assert not triton_backend.are_halved(capacity, replace(tiling, halved_rows=0))


@pytest.mark.parametrize(
    ("dims", "is_mapped"),
    [((64, 128), True), ((16, 16), True), ((8, 8), False), ((80, 80), False), ((64, 48), False)],
)
def test_heads_that_tensor_maps_cannot_bring_whole(dims: tuple[int, int], is_mapped: bool) -> None:
    shape, cpu = LayerShape(4, 2, *dims), torch.device("cpu")
    backend = TritonBackend([shape], torch.bfloat16, cpu)
    assert backend.launches[0].is_mapped == is_mapped
    assert not TritonBackend([shape], torch.float32, cpu).launches[0].is_mapped


@pytest.mark.parametrize(("layer", "rope"), LAYERS_AND_ROPES)
def test_lone_rows(layer: str, rope: str) -> None:
    """Endings of one prompt, each read by its own row alone."""
    assert lone_error(ROPES[rope], LAYERS[layer], torch.float32) < 2e-5


@pytest.mark.parametrize(
    ("dtype", "page_size"), [(torch.bfloat16, 4), (torch.float16, 32)], ids=str
)
def test_lone_rows_of_sixteen_bits(dtype: torch.dtype, page_size: int) -> None:
    layer = LAYERS["all at once"]
    error = lone_error(ROPES["half-split"], layer, dtype, page_size)
    assert error < TOLERANCE[dtype]


def lone_error(
    rope: Rope | None,
    layer: dict[str, Any],
    dtype: torch.dtype,
    page_size: int = 4,
) -> float:
    shape = SHAPES["mha"]
    sinks = layer.get("sinks")
    if isinstance(sinks, torch.Tensor):
        layer = layer | {"sinks": sinks[: shape.num_heads].to(dtype)}
    if rope is not None:
        rope = Rope(rope.inv_freq.float(), rope.rotary_dim, rope.interleaved)
    call = LayerCall(layer=0, scaling=0.3, **layer)
    backend = kernels(shape, dtype, many=0)
    memory = {"num_pages": 1280 // page_size, "page_size": page_size}
    product = Layer(backend, shape, rope, call, dtype=dtype, device=DEVICE, **memory)
    oracle = DenseOracle(rope, call)
    prompt, endings = Block(), [Block() for _ in range(18)]
    sizes = [1, 13, 25, *[1] * (len(endings) - 3)]
    worst = 0.0
    for rows in (
        [Row(View([prompt]), (1,) * 21)],
        [Row(View([prompt, own]), (2,) * size) for own, size in zip(endings, sizes, strict=True)],
        [Row(View([prompt, own]), (3,)) for own in endings],
    ):
        step = Step(rows)
        q, k, v = random_qkv(step, shape, torch.Generator().manual_seed(len(rows)), dtype)
        oracle.write(step, k, v)
        found = product.step(step, q, k, v).double()
        worst = max(worst, float((found - oracle.read(step, q)).abs().max()))
    assert cut(product.last_plan, backend.tiling).small_rows == 1
    return worst


@pytest.mark.parametrize("tiling", [{"key_tile": 32}, {"large_rows": 16}, {"least_split": 64}])
def test_tiles_do_not_change_the_result(tiling: dict[str, int]) -> None:
    assert error_of(SHAPES["gqa"], "half-split", "window", torch.float32, 5, **tiling) < 2e-5


@pytest.mark.parametrize("few_rows", [0, 48])
@pytest.mark.parametrize("layer", ["plain", "window"])
def test_ordinary_tiles_of_as_many_rows_as_specialised_ones(layer: str, few_rows: int) -> None:
    """Twelve rows of four heads: more than a large tile of 32, and fewer than a specialised one would have.

    Where they are cut for a specialised kernel that cannot serve a layer, ordinary ones do with as many rows or more.
    """
    shape = SHAPES["gqa"]
    never = 1 << 60
    tiling = replace(
        small_tiles(
            shape,
            specialised_rows=64,
            specialised_reads=never,
            specialised_work=never,
            plain_reads=0,
        ),
        few_rows=few_rows,
    )
    backend = backend_for(shape, torch.float32, tiling)
    rope, call = (
        Rope(1 / 100 ** (torch.arange(4) / 4), 8),
        LayerCall(layer=0, scaling=0.3, **LAYERS[layer]),
    )
    product = Layer(backend, shape, rope, call, num_pages=128, device=DEVICE)
    oracle = DenseOracle(rope, call)
    shared, desks = Block(), [Block() for _ in range(48 // shape.group)]
    steps = [Row(View([shared]), (0,) * 70)], [Row(View([shared, desk]), (0,)) for desk in desks]
    for rows in steps:
        step = Step(rows)
        q, k, v = random_qkv(step, shape, torch.Generator().manual_seed(7), torch.float32)
        oracle.write(step, k, v)
        found = product.step(step, q, k, v).double()
        assert (found - oracle.read(step, q)).abs().max() < 2e-5
    work = cut(product.last_plan, backend.tiling)
    assert (work.large_rows, work.is_specialised) == ((48, True) if few_rows else (64, False))
    assert work.large[:, 1].max() == len(desks), "all rows in one tile"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layer", ["sinks", "all at once"])
def test_outputs_are_left_beside_sinks(
    layer: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt that is not split has nothing to merge: the kernel gives sinks their share, also of rows of padding."""
    merged: list[int] = []

    def merge(*_: object, **__: object) -> None:
        merged.append(1)

    monkeypatch.setattr(triton_backend, "merge_kernel", defaultdict(lambda: merge))
    shape, options = SHAPES["gqa"], dict(LAYERS[layer])
    sinks = torch.linspace(-3, 6, shape.num_heads).to(dtype)
    call = LayerCall(layer=0, scaling=0.3, **options | {"sinks": sinks})
    backend = kernels(shape, dtype, least_split=256)
    rope = Rope(1 / 100 ** (torch.arange(4) / 4), 8)
    product = Layer(backend, shape, rope, call, dtype=dtype, num_pages=128, device=DEVICE)
    oracle, block = DenseOracle(rope, call), Block()
    for size in (70, 1, 33):
        step = Step([Row(View([block]), (0,) * size)])
        q, k, v = random_qkv(step, shape, torch.Generator().manual_seed(size), dtype)
        oracle.write(step, k, v)
        found = product.step(step, q, k, v).double()
        assert (
            Capacity.of(product.last_plan, cut(product.last_plan, backend.tiling)).most_partials
            == 1
        )
        assert (found - oracle.read(step, q)).abs().max() < TOLERANCE[dtype]
    assert not merged


@pytest.mark.parametrize(
    ("dtype", "halved"), [(torch.float32, 0), (torch.bfloat16, 0), (torch.bfloat16, 16)], ids=str
)
@pytest.mark.parametrize("layer", ["plain", "sinks", "window", "softcap"])
def test_a_long_prompt_leaves_outputs(
    layer: str, dtype: torch.dtype, halved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last token reads a strip of its own besides, and has several partials: it alone is merged, with its neighbours."""
    shape, call = SHAPES["gqa"], LayerCall(layer=0, scaling=0.3, **LAYERS[layer])
    if call.sinks is not None:
        call = replace(call, sinks=call.sinks[: shape.num_heads].to(dtype))
    backend = kernels(shape, dtype, least_split=256, least_left=32, halved_rows=halved)
    rope = Rope(1 / 100 ** (torch.arange(4) / 4), 8)
    merged = tokens_merged(monkeypatch)
    check_prompts(backend, shape, rope, call, dtype, 75, 2, TOLERANCE[dtype])
    assert merged == [5, 5], "tokens 72 to 76 of the first pass, and the first ones of the second"


def tokens_merged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens of each merging from now on."""
    merged: list[int] = []
    usual = merge_kernel

    class Noted:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            merged.append(grid[0])
            return usual[grid]

    monkeypatch.setattr(triton_backend, "merge_kernel", Noted())
    return merged


def check_prompts(
    backend: TritonBackend,
    shape: Shape,
    rope: Rope,
    call: LayerCall,
    dtype: torch.dtype,
    size: int,
    num_own: int,
    tolerance: float,
) -> None:
    """A prompt of `size` tokens and rows that read all of it, then one behind a few tokens that do: as the definition has it."""
    page_size = 64 if DEVICE.type == "cuda" else 4
    memory = {"num_pages": 4 * size // page_size + 16, "page_size": page_size}
    product = Layer(backend, shape, rope, call, dtype=dtype, device=DEVICE, **memory)
    oracle, block, more = DenseOracle(rope, call), Block(), Block()
    behind = [Row(View([block, Block()]), (0,)) for _ in range(num_own)]
    for rows in (
        [Row(View([block]), (0,) * size), *behind],
        [Row(View([block, more]), (0,) * 5), Row(View([Block()]), (0,) * size)],
    ):
        step = Step(rows)
        q, k, v = random_qkv(step, shape, torch.Generator().manual_seed(size), dtype)
        oracle.write(step, k, v)
        found = product.step(step, q, k, v).double()
        assert (found - oracle.read(step, q)).abs().max() < tolerance


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32), layer=st.sampled_from(sorted(LAYERS)))
def test_random_conversations(seed: int, layer: str) -> None:
    assert error_of(SHAPES["odd group"], "half-split", layer, torch.float32, seed) < 2e-5


@pytest.mark.parametrize(("size", "head_dim"), [(1, 40), (63, 32), (63, 64), (129, 40)])
def test_awkward_sizes_and_an_empty_block(size: int, head_dim: int) -> None:
    """129 tokens fill more than two key tiles; 40 dims fill no power of two."""
    shape, call = Shape(4, 2, head_dim, head_dim), LayerCall(layer=0, scaling=0.3)
    rope = Rope(1 / 100 ** (torch.arange(head_dim // 2) / 20), head_dim)
    backend = backend_for(shape, torch.float32)
    product = Layer(backend, shape, rope, call, num_pages=128, device=DEVICE)
    oracle = DenseOracle(rope, call)
    long, empty, own = Block(), Block(), Block()
    for row in (Row(View([long]), (1,) * size), Row(View([long, empty, own]), (2,) * 3)):
        step = Step([row])
        q, k, v = random_qkv(step, shape, torch.Generator().manual_seed(size), torch.float32)
        oracle.write(step, k, v)
        assert (product.step(step, q, k, v).double() - oracle.read(step, q)).abs().max() < 2e-5


def test_a_plan_that_is_wrong_in_one_integer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from manyhands.attention import triton_backend

    right = cut

    def wrong(*arguments):  # type: ignore[no-untyped-def]  # as the function it replaces
        work = right(*arguments)
        return replace(work, entries=work.entries._replace(offset=work.entries.offset + 1))

    monkeypatch.setattr(triton_backend, "cut", wrong)
    assert error_of(SHAPES["gqa"], "half-split", "plain", torch.float32, 6) > 1e-3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dtype": torch.float64}, "not float64"),
        ({"layer": LayerShape(8, 2, 514, 514)}, "head size is 514"),
        ({"layer": LayerShape(8, 2, 33, 32)}, "head size is 33"),
        ({"layer": LayerShape(8, 2, 128, 1024)}, "head size is 1024"),
        ({"layer": LayerShape(512, 2, 64, 64)}, "256 query heads share"),
        ({"layer": LayerShape(256, 2, 512, 512)}, "128 query heads share a key head beside heads"),
    ],
)
def test_what_the_kernels_cannot_do_is_said(changed: dict[str, Any], said: str) -> None:
    """One layer that they cannot serve is enough."""
    fine = LayerShape(8, 2, 64, 64)
    layer, dtype = changed.get("layer", fine), changed.get("dtype", torch.float32)
    assert refusal([fine, fine], torch.float32, DEVICE) is None
    assert said in (refusal([fine, layer], dtype, DEVICE) or "")


def test_broad_heads_on_a_gpu_with_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [LayerShape(16, 8, 256, 256), LayerShape(16, 2, 512, 512)]
    assert refusal(layers, torch.float16, DEVICE) is None
    monkeypatch.setattr(fitting, "shared_memory", lambda device: 101376)
    said = "head size is 512, which takes 106496 bytes of shared memory in float16, and this GPU has 101376"
    assert said in (refusal(layers, torch.float16, DEVICE) or "")
    assert refusal(layers[:1], torch.float16, DEVICE) is None


# -- real sizes, on a GPU --------------------------------------------------------------------------


def rooms() -> Iterator[tuple[str, Shape, list[int], list[list[int]], list[int]]]:
    """Name, shape, sizes of shared blocks, who reads which of them, and the size of each row's own."""
    yield "team at 16k", Shape(40, 8, 128, 128), [16384], [[0]] * 4, [128, 90, 1, 300]
    yield "one row", Shape(32, 8, 128, 128), [5000], [[0]], [77]
    yield (
        "many endings",
        Shape(8, 1, 128, 128),
        [2048],
        [[0]] * 512,
        [64 + i % 70 for i in range(512)],
    )
    yield (
        "tree",
        Shape(32, 32, 64, 64),
        [700, 256, 300],
        [[0, 1 + i % 2] for i in range(64)],
        [32] * 64,
    )
    yield "lone endings", Shape(16, 16, 128, 128), [600], [[0]] * 80, [1 + i for i in range(80)]
    yield "head of 256", Shape(16, 8, 256, 256), [1000], [[0]] * 6, [40] * 6
    yield "head of 80", Shape(8, 8, 80, 80), [1000], [[0]] * 6, [40] * 6


@on_gpu
@pytest.mark.parametrize("layer", ["plain", "window", "softcap"])
@pytest.mark.parametrize("room", list(rooms()), ids=lambda room: room[0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_real_sizes(room, layer: str, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    """Against the torch backend on the same memory, which works in float32 on the rounded inputs.

    The kernels round queries after their rotation and weights before the values to 16 bits: of outputs
    of size 1, some 2^-8 (bfloat16) and 2^-11 (float16).
    """
    _, shape, shared, reads, owns = room
    kinds: dict[str, dict[str, Any]] = {"window": {"window": 700}, "softcap": {"softcap": 20.0}}
    options = kinds.get(layer, {})
    call = LayerCall(layer=0, scaling=shape.head_dim**-0.5, **options)
    half = shape.head_dim // 2
    rope = Rope((1e4 ** -(torch.arange(half) / half)).to(DEVICE), shape.head_dim)
    num_pages = sum(shared) // 64 + sum(owns) // 64 + 2 * len(owns) + 16
    backend = backend_for(shape, dtype)
    product = Layer(
        backend, shape, rope, call, dtype=dtype, num_pages=num_pages, page_size=64, device=DEVICE
    )
    blocks = [Block() for _ in shared]
    generator = torch.Generator().manual_seed(1)

    def feed(rows: list[Row]) -> tuple[Step, tuple[torch.Tensor, ...]]:
        step = Step(rows)
        qkv = random_qkv(step, shape, generator, torch.float32)
        return step, tuple(x.to(DEVICE, dtype) for x in qkv)

    for block, size in zip(blocks, shared, strict=True):
        step, qkv = feed([Row(View([block]), (0,) * size)])
        product.step(step, *qkv)
    views = [View([*(blocks[i] for i in of), Block()]) for of in reads]
    step, qkv = feed([Row(view, (0,) * size) for view, size in zip(views, owns, strict=True)])
    product.step(step, *qkv)
    step, qkv = feed([Row(view, (0,)) for view in views])
    out = product.step(step, *qkv)
    plan = product.last_plan
    below = TorchBackend()
    expected = below.attend(
        in_float32(product.store), qkv[0].float(), below.prepare(plan, DEVICE), call
    )
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-5}[dtype]
    assert (out.float() - expected).abs().max() < tolerance


def in_float32(store: LayerStore) -> LayerStore:
    return LayerStore(store.keys.float(), store.values.float(), store.rope)


def with_padding(plan: Plan, tiling: Tiling) -> Prepared:
    """A work list in room for a larger one, as recorded passes have it."""
    work = cut(plan, tiling)
    capacity = Capacity.of(plan, work).rounded()
    buffer = torch.empty(capacity.num_integers, dtype=torch.int32)
    pack(plan, work, capacity, buffer.numpy())
    return Prepared(buffer.to(DEVICE), capacity, plan.page_size)


on_hopper = pytest.mark.skipif(
    DEVICE.type != "cuda" or torch.cuda.get_device_capability()[0] != 9,
    reason="specialised tiles are for Hopper",
)


@on_hopper
@pytest.mark.parametrize("layer", ["plain", "window", "narrow", "sinks"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "processors"),
    [
        *((4, 4, 128, 132), (10, 2, 128, 132), (8, 1, 128, 132), (8, 2, 128, 2)),
        *((4, 4, 64, 132), (10, 2, 64, 132), (8, 1, 64, 132), (8, 1, 64, 2)),
    ],
)
def test_specialised_tiles(
    heads: int,
    kv_heads: int,
    dim: int,
    processors: int,
    dtype: torch.dtype,
    interleaved: bool,
    layer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Warps that are specialised, over strips that begin and end anywhere, some rows seeing less.

    Memory that nobody wrote to is no number. One prompt is long, one shorter than a tile; many rows
    read one of them or both, some begin in the midst of a page. Two processors want no splits, so outputs are left.
    """
    from manyhands.attention.kernels import specialised

    shape = Shape(heads, kv_heads, dim, dim)
    found, num_used = specialised_rows(
        specialised, shape, dtype, interleaved, layer, 150, monkeypatch, processors=processors
    )
    assert found == {128}
    assert num_used == 30, "keys and values, three times a step"


@on_hopper
@pytest.mark.parametrize("layer", ["plain", "window", "narrow", "sinks"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "num_rows"), [(4, 4, 40), (10, 2, 10), (8, 1, 6), (8, 1, 150)]
)
def test_specialised_tiles_in_eight_bits(
    heads: int,
    kv_heads: int,
    num_rows: int,
    dtype: torch.dtype,
    interleaved: bool,
    layer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same where warps convert integers; few rows have tiles of one group of warps.

    Windows, float16 and outputs that need no merging keep their ordinary tiles.
    """
    from manyhands.attention.kernels import specialised_eight_bits

    shape = Shape(heads, kv_heads, 128, 128)
    found, num_used = specialised_rows(
        specialised_eight_bits, shape, dtype, interleaved, layer, num_rows, monkeypatch
    )
    assert found == ({128} if num_rows == 150 else {64, 128})
    assert (num_used > 0) == (dtype == torch.bfloat16 and layer in ("plain", "sinks"))


@on_hopper
@pytest.mark.parametrize("layer", ["plain", "window", "narrow", "sinks"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "num_rows"), [(4, 4, 80), (10, 2, 8), (10, 2, 16), (8, 1, 10)]
)
@pytest.mark.parametrize("eight_bits", [False, True])
def test_specialised_tiles_whose_second_half_is_few(
    heads: int,
    kv_heads: int,
    num_rows: int,
    dtype: torch.dtype,
    interleaved: bool,
    layer: str,
    eight_bits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same with 65 to 80 rows: those beyond 64 are transposed."""
    from manyhands.attention.kernels import specialised, specialised_eight_bits

    kernels = specialised_eight_bits if eight_bits else specialised
    shape = Shape(heads, kv_heads, 128, 128)
    found, _ = specialised_rows(
        kernels, shape, dtype, interleaved, layer, num_rows, monkeypatch, few_rows=80
    )
    assert 80 in found


@on_hopper
@pytest.mark.parametrize("layer", ["plain", "window", "narrow", "sinks"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "processors"), [(4, 4, 132), (10, 2, 132), (4, 4, 2)]
)
def test_specialised_tiles_of_latents_that_are_expanded(
    heads: int,
    kv_heads: int,
    processors: int,
    dtype: torch.dtype,
    interleaved: bool,
    layer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same where keys have 64 dims that are rotated, and 128 more; two processors want no splits, so outputs are left."""
    from manyhands.attention.kernels import specialised

    shape = Shape(heads, kv_heads, 192, 128, is_expanded=True)
    found, num_used = specialised_rows(
        specialised, shape, dtype, interleaved, layer, 150, monkeypatch, processors=processors
    )
    assert found == {128}
    assert num_used == 30, "keys and values, three times a step"


@on_hopper
@pytest.mark.parametrize("layer", ["plain", "window", "sinks"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 128), (8, 1, 128), (8, 1, 64)])
def test_a_long_prompt_leaves_outputs_of_specialised_tiles(
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    layer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ordinary tiles do, with the tiling that such heads have: those of the last tokens alone are merged."""
    shape = Shape(heads, kv_heads, dim, dim)
    kinds: dict[str, dict[str, Any]] = {
        "window": {"window": 300},
        "sinks": {"sinks": torch.linspace(-1, 1, heads)},
    }
    call = LayerCall(layer=0, scaling=dim**-0.5, **kinds.get(layer, {}))
    backend = backend_for(shape, dtype)
    backend.tiling = replace(backend.tiling, num_processors=8, specialised_work=0)
    merged = tokens_merged(monkeypatch)
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    rope = Rope(1e4 ** -(torch.arange(dim // 2) / 64), dim)
    check_prompts(backend, shape, rope, call, dtype, 3001, 2, tolerance)
    assert merged == [3, 5]


@on_hopper
def test_only_latents_that_are_expanded_have_such_tiles() -> None:
    """Other networks have heads of 192 and 128 dims, too, and rotate other dims of them."""
    shape = Shape(16, 16, 192, 128)
    assert not TritonBackend([shape], torch.bfloat16, DEVICE).tiling.specialised_rows
    for dtype, is_served in ((torch.bfloat16, True), (torch.float32, False)):
        expanded = replace(shape, is_expanded=True)
        assert bool(TritonBackend([expanded], dtype, DEVICE).tiling.specialised_rows) == is_served
        assert serves_expanded(shape, dtype, DEVICE) == is_served


def maps_made(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots of each tensor map of boxes that is made from now on."""
    made: list[int] = []
    usual = kernels.boxes

    def counted(x: torch.Tensor) -> object:
        made.append(len(x))
        return usual(x)

    monkeypatch.setattr(kernels, "boxes", counted)
    return made


def specialised_rows(
    kernels: ModuleType,
    shape: Shape,
    dtype: torch.dtype,
    interleaved: bool,
    layer: str,
    num_rows: int,
    monkeypatch: pytest.MonkeyPatch,
    few_rows: int = 0,
    processors: int = 132,
) -> tuple[set[int], int]:
    """The rows of the tiles that a conversation of so many rows has, whose answers are right; tensor maps that were made."""
    used = maps_made(kernels, monkeypatch)
    eight_bits = kernels.__name__.endswith("eight_bits")
    tiling = Tiling(
        shape.group,
        shape.num_kv_heads,
        5 if few_rows else processors,  # so few that a program takes several items
        most_small_rows=16,
        large_rows=64,
        specialised_rows=128,
        specialised_work=0,
        specialised_reads=0 if few_rows else 1 << 18,
        plain_reads=0 if few_rows else 1 << 16,
        few_rows=few_rows,
        narrow_rows=64 if eight_bits else 0,
    )
    rope = rope_of(
        64 if shape.is_expanded else shape.head_dim * 3 // 4 if interleaved else shape.head_dim,
        interleaved,
    )
    seen = right_capacities(shape, dtype, rope, layer, num_rows, tiling, eight_bits=eight_bits)
    return {capacity.large_rows for capacity in seen}, len(used)


def rope_of(rotary_dim: int, interleaved: bool) -> Rope:
    """Of heads with 128 dims; those of others turn as fast."""
    return Rope((1e4 ** -(torch.arange(rotary_dim // 2) / 64)).to(DEVICE), rotary_dim, interleaved)


def right_capacities(
    shape: Shape,
    dtype: torch.dtype,
    rope: Rope,
    layer: str,
    num_rows: int,
    tiling: Tiling,
    *,
    eight_bits: bool = False,
) -> list[Capacity]:
    """The rounded capacities of a conversation of so many rows, whose answers are right with and without padding."""
    kinds: dict[str, dict[str, Any]] = {
        "window": {"window": 300},
        "narrow": {"window": 60},  # both edges of an item go beyond its keys
        "sinks": {"sinks": torch.linspace(-1, 1, shape.num_heads, device=DEVICE)},
        "chunk": {"chunk": 256},
    }
    options = kinds.get(layer, {})
    call = LayerCall(layer=0, scaling=shape.head_dim**-0.5, **options)
    product = Layer(
        TritonBackend([shape], dtype, DEVICE, tiling, eight_bits=eight_bits),
        shape,
        rope,
        call,
        dtype=dtype,
        num_pages=256,
        page_size=64,
        device=DEVICE,
        eight_bits=eight_bits,
    )
    generator, below = torch.Generator().manual_seed(3), TorchBackend()
    long, short, own = Block(), Block(), [Block() for _ in range(num_rows)]
    rows_of_steps = [
        [Row(View([long]), (0,) * 1201), Row(View([short]), (0,) * 77)],
        [Row(View([long]), (0,) * 130)],
        [Row(View([long, short, block]), (0,) * (1 + i % 3)) for i, block in enumerate(own)],
        [Row(View([short, long, block]), (0,)) for block in own],
        [Row(View([short]), (0,) * 63), Row(View([long]), (0,) * 513)],
    ]
    seen = []
    for rows in rows_of_steps:
        step = Step(rows)
        qkv = random_qkv(step, shape, generator, torch.float32)
        q, k, v = (x.to(DEVICE, dtype) for x in qkv)
        out = product.step(step, q, k, v)
        plan, store = product.last_plan, product.store
        whole = store if eight_bits else in_float32(store)
        expected = below.attend(whole, q.float(), below.prepare(plan, DEVICE), call)
        tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
        assert (out.float() - expected).abs().max() < tolerance
        prepared = product.backend.prepare(plan, DEVICE)
        assert torch.equal(product.backend.attend(store, q, prepared, call), out)
        padded = with_padding(plan, tiling)
        seen.append(padded.capacity)
        again = product.backend.attend(store, q, padded, call)[: len(q)]
        assert (again.float() - expected).abs().max() < tolerance
    return seen


@on_hopper
@pytest.mark.parametrize("layer", ["plain", "window", "narrow", "sinks", "chunk"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "num_rows", "small_rows"),
    [(4, 4, 7, 16), (10, 2, 3, 16), (10, 2, 4, 24), (8, 1, 3, 24), (8, 1, 4, 32)],
)
def test_small_tiles_in_eight_bits(
    heads: int,
    kv_heads: int,
    num_rows: int,
    small_rows: int,
    dtype: torch.dtype,
    interleaved: bool,
    layer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same where keys are multiplied as integers, by tiles of 16, 24 and 32 rows."""
    from manyhands.attention.kernels import small_eight_bits

    used: list[int] = []
    usual = small_eight_bits.options

    def counted(rows: int) -> dict[str, int]:
        used.append(rows)
        return usual(rows)

    monkeypatch.setattr(small_eight_bits, "options", counted)
    shape = Shape(heads, kv_heads, 128, 128)
    tiling = Tiling(
        shape.group, shape.num_kv_heads, 132, key_tile=128, between_rows=24, short_stretch=0
    )
    rope = rope_of(96 if interleaved else 128, interleaved)
    seen = right_capacities(shape, dtype, rope, layer, num_rows, tiling, eight_bits=True)
    found = {capacity.small_rows for capacity in seen if capacity.small}
    assert small_rows in used
    assert set(used) == found & {16, 24, 32}


@on_gpu
def test_a_long_prefill_is_causal() -> None:
    shape, call = Shape(8, 2, 128, 128), LayerCall(layer=0, scaling=0.1)
    rope = Rope((1e4 ** -(torch.arange(64) / 64)).to(DEVICE), 128)
    backend = backend_for(shape, torch.bfloat16)
    product = Layer(
        backend, shape, rope, call, dtype=torch.bfloat16, num_pages=80, page_size=64, device=DEVICE
    )
    step = Step([Row(View([Block()]), (0,) * 4001)])
    qkv = random_qkv(step, shape, torch.Generator().manual_seed(2), torch.float32)
    q, k, v = (x.to(DEVICE, torch.bfloat16) for x in qkv)
    out = product.step(step, q, k, v)
    below = TorchBackend()
    prepared = below.prepare(product.last_plan, DEVICE)
    expected = below.attend(in_float32(product.store), q.float(), prepared, call)
    assert (out.float() - expected).abs().max() < 2e-2


def test_rows_of_very_different_length() -> None:
    rng = random.Random(7)
    shape, call = Shape(4, 1, 32, 32), LayerCall(layer=0, scaling=0.3)
    product = Layer(kernels(shape), shape, None, call, num_pages=128, page_size=16, device=DEVICE)
    oracle, common = DenseOracle(None, call), Block()
    views = [View([common, Block()]) for _ in range(7)]
    generator = torch.Generator().manual_seed(8)
    for step in (
        Step([Row(View([common]), (0,) * 90)]),
        Step([Row(view, (0,) * rng.choice([1, 2, 40])) for view in views]),
        Step([Row(view, (0,)) for view in views[::2]]),
    ):
        q, k, v = random_qkv(step, shape, generator, torch.float32)
        oracle.write(step, k, v)
        assert (product.step(step, q, k, v).double() - oracle.read(step, q)).abs().max() < 2e-5


@triton.jit  # type: ignore[untyped-decorator]
def _part(words, even, odd, SIZE: tl.constexpr, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Words [SIZE], and their numbers to two places in float32."""
    at = tl.arange(0, SIZE)
    low, high = parted(tl.load(words + at), DTYPE)
    tl.store(even + at, low)
    tl.store(odd + at, high)


@triton.jit  # type: ignore[untyped-decorator]
def _round(x, integers, scales, ROWS: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows x [ROWS, SIZE] as integers, in float32, and their scales."""
    row, at = tl.arange(0, ROWS), tl.arange(0, SIZE)
    found, scale = rounded(tl.load(x + row[:, None] * SIZE + at[None, :]))
    tl.store(integers + row[:, None] * SIZE + at[None, :], found)
    tl.store(scales + row, scale)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, of the interpreter
def test_a_row_with_a_number_that_is_none_has_such_a_scale() -> None:
    """As in plain torch. Behind a finite scale it would be read as a number."""
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    x[1, 3], x[2, :], x[3, 5] = float("nan"), -float("nan"), -float("inf")
    integers, scales = torch.empty_like(x, device=DEVICE), torch.empty(4, device=DEVICE)
    _round[(1,)](x.to(DEVICE), integers, scales, ROWS=4, SIZE=16)
    expected, expected_scales = eight_bits.rounded(x)
    torch.testing.assert_close(scales.cpu(), expected_scales, equal_nan=True)
    assert torch.equal(integers[0].cpu(), expected[0].float())
    read = integers.cpu() * scales.cpu()[:, None]
    assert not read[1:3].isfinite().any()


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(d, marks=on_gpu) for d in (torch.float16, torch.bfloat16))],
    ids=str,
)
@pytest.mark.parametrize("is_odd", [False, True], ids=["even", "odd"])
def test_words_are_parted_to_the_bit(dtype: torch.dtype, is_odd: bool) -> None:
    """All integers of eight bits that are stored, each in either half of a word, beside each other one in turn."""
    integers = torch.arange(-127, 128, dtype=torch.int32)
    halves = [integers[torch.randint(255, (1024,))] for _ in range(2)]
    halves[is_odd][:255] = integers
    words = torch.stack(halves, 1).to(torch.int8).to(DEVICE)
    found = torch.empty(2, 1024, device=DEVICE)
    kind = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    _part[(1,)](words.view(torch.int16), found[0], found[1], SIZE=1024, DTYPE=kind[dtype])
    for half, wanted in zip(found, halves, strict=True):
        assert torch.equal(half.cpu(), wanted.float())
