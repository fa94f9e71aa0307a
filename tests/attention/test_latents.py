"""Latents (MLA) through every backend against the definition, which holds keys and values apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from manyhands.attention.attend import Backend, LayerCall
from manyhands.attention.latents import LatentStore
from manyhands.attention.reference import ReferenceBackend
from manyhands.attention.rotary import Rope
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.block import Block
from manyhands.cache.places import Move
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.model.memory import Memory
from tests.attention.dense import DenseOracle, Layer, Shape, random_qkv
from tests.attention.test_attend import FREQUENCIES, LAYERS, TOLERANCE, worst_error

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.attention import fitting, launches
from manyhands.attention.fitting import _heads, of_latents, refusal
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import Tiling
from tests.attention.test_triton import maps_made, on_hopper, right_capacities, rope_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# 8 rotated dims before the latents. Sizes that fill a power of two and ones that do not.
SHAPES = {
    "whole": Shape(4, 1, 8 + 16, 16, is_latent=True),
    "odd": Shape(6, 1, 8 + 20, 20, is_latent=True),
}
ROPES = {
    "half-split": Rope(FREQUENCIES, 8),
    "interleaved": Rope(FREQUENCIES, 8, interleaved=True),
}


def kernels(shape: Shape, dtype: torch.dtype = torch.float32, **tiling: int) -> TritonBackend:
    """Small tiles, so that small conversations have several of everything."""
    parts, group = _heads(shape)
    usual: dict[str, Any] = {
        "key_tile": 16,
        "large_rows": 32,
        "most_small_rows": 16,
        "least_split": 16,
    }
    return TritonBackend([shape], dtype, DEVICE, Tiling(group, parts, 4, **(usual | tiling)))


BACKENDS: dict[str, Callable[[Shape], Backend]] = {
    "reference": lambda shape: ReferenceBackend(),
    "torch": lambda shape: TorchBackend(budget=64),
    "triton": kernels,
}


def error_of(
    backend: Backend,
    shape: Shape,
    rope: str = "half-split",
    layer: str = "plain",
    dtype: torch.dtype = torch.float32,
    seed: int = 1,
) -> float:
    return worst_error(
        backend, shape, ROPES[rope], LAYERS[layer], dtype, seed, num_steps=4, device=DEVICE
    )


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend(backend: str, shape: str, rope: str) -> None:
    """Random teams over random views, blocks that freeze and are moved."""
    assert error_of(BACKENDS[backend](SHAPES[shape]), SHAPES[shape], rope) < 2e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_that_a_layer_may_ask(backend: str) -> None:
    shape = SHAPES["whole"]
    assert error_of(BACKENDS[backend](shape), shape, layer="all at once") < 2e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_heads_in_two_parts(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of networks with more than 16 heads; and in 16 bits."""
    monkeypatch.setattr(fitting, "_LATENT_PART", 2)
    shape = SHAPES["whole"]
    assert _heads(shape) == (2, 2)
    assert error_of(kernels(shape, dtype), shape, dtype=dtype) < TOLERANCE[dtype]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_that_is_moved(backend: str) -> None:
    error, num_moves = _moved(BACKENDS[backend](SHAPES["odd"]), SHAPES["odd"])
    assert error < 2e-5
    assert num_moves == 1


@pytest.mark.parametrize("transposed", [False, True])
def test_long_strips_in_two_walks(transposed: bool) -> None:
    """Tiles of keys that every row sees all of, apart from the edges; also with keys on the left."""
    shape, call, rope = SHAPES["odd"], LayerCall(layer=0, scaling=0.3), ROPES["interleaved"]
    backend = kernels(shape, most_small_rows=64 if transposed else 0)
    launches = backend.launches[0]
    turned = replace(launches.large, keys=16, transposed=transposed)
    names = ("large", "small", "few", "many", "wide")
    tiles: dict[str, Any] = dict.fromkeys(names, turned)
    backend.launches = (replace(launches, **tiles),)
    product = Layer(backend, shape, rope, call, num_pages=32, page_size=32, device=DEVICE)
    oracle = DenseOracle(rope, call)
    long, others = Block(), [Block() for _ in range(3)]
    for rows in (
        [Row(View([long]), (1,) * 60)],
        [Row(View([long, other]), (3,) * 2) for other in others],
    ):
        step = Step(rows)
        q, k, v = random_qkv(step, shape, torch.Generator().manual_seed(len(rows)), torch.float32)
        oracle.write(step, k, v)
        found = product.step(step, q, k, v).double()
        assert float((found - oracle.read(step, q)).abs().max()) < 2e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_latents_lie_in_their_keys(backend: str) -> None:
    """One memory, k_pe in front: four tokens are four slots, whose values are the latents to the bit."""
    shape, rope = SHAPES["odd"], ROPES["half-split"]
    made = BACKENDS[backend](shape)
    product = Layer(made, shape, rope, LayerCall(layer=0, scaling=0.3), device=DEVICE)
    store = product.store
    assert isinstance(store, LatentStore)
    step = Step([Row(View([Block()]), (1, 2, 3)), Row(View([Block()]), (4,))])
    q, k, v = random_qkv(step, shape, torch.Generator().manual_seed(7), torch.float32)
    product.step(step, q, k, v)
    written = ~store.keys.isnan().any(-1).flatten()
    assert int(written.sum()) == 4
    found, latents = store.values[written].flatten(1).tolist(), k[..., 8:].flatten(1).tolist()
    assert sorted(found) == sorted(latents)


@on_hopper
@pytest.mark.parametrize("layer", ["plain", "window", "narrow", "sinks", "chunk"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "latent", "num_rows"),
    [(16, 512, 5), (16, 512, 150), (20, 512, 9), (128, 512, 3), (10, 256, 30)],
)
def test_specialised_tiles(
    heads: int,
    latent: int,
    num_rows: int,
    dtype: torch.dtype,
    interleaved: bool,
    layer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel for Hopper, over strips that begin and end anywhere; nobody wrote to the rest of memory.

    128 heads come in two parts, twenty leave four rows of a tile empty. Five programs take several items each.
    """
    from manyhands.attention.kernels import specialised

    used = maps_made(specialised, monkeypatch)
    shape = Shape(heads, 1, 64 + latent, latent, is_latent=True)
    parts, group = _heads(shape, launches.LATENT_ROWS)
    tiling = of_latents(Tiling(group, parts, 5 if num_rows < 100 else 132))
    right_capacities(shape, dtype, rope_of(64, interleaved), layer, num_rows, tiling)
    assert len(used) >= 15, "every pass, three times"


@on_hopper
def test_specialised_tiles_are_what_such_networks_get() -> None:
    shapes = [Shape(heads, 1, 64 + 512, 512, is_latent=True) for heads in (16, 20, 128)]
    for shape, heads in zip(shapes, ((1, 16), (1, 20), (2, 64)), strict=True):
        tiling = TritonBackend([shape], torch.bfloat16, DEVICE).tiling
        assert (tiling.num_kv_heads, tiling.group, tiling.latent_rows) == (*heads, 64)
    others = (
        Shape(16, 1, 32 + 512, 512, is_latent=True),
        Shape(16, 1, 64 + 128, 128, is_latent=True),
    )
    for other in others:
        assert TritonBackend([other], torch.bfloat16, DEVICE).tiling.latent_rows == 0
    assert TritonBackend(shapes[:1], torch.float32, DEVICE).tiling.latent_rows == 0


# -- controls: each of these mistakes must be seen ---------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_control_a_latent_that_turns(backend: str) -> None:
    """The kernels are given the rotated dims alone, and could not turn others."""
    wider = Rope(torch.cat((FREQUENCIES, FREQUENCIES)).float(), 16)
    error, _ = _moved(BACKENDS[backend](SHAPES["odd"]), SHAPES["odd"], wider)
    assert error > 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_control_a_move_that_forgets_k_pe(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Memory.move

    def unturned(self: Memory, moves: Sequence[Move], made: Backend) -> None:
        right(self, [replace(move, shift=0) for move in moves], made)

    monkeypatch.setattr(Memory, "move", unturned)
    error, _ = _moved(BACKENDS[backend](SHAPES["odd"]), SHAPES["odd"])
    assert error > 1e-2


def _moved(backend: Backend, shape: Shape, rope: Rope | None = None) -> tuple[float, int]:
    """Two blocks are written, frozen and read one behind the other: the worst error, and the moves.

    The definition rotates as it should; `rope` is how the product does.
    """
    call, right = LayerCall(layer=0, scaling=0.3), ROPES["half-split"]
    right = replace(right, inv_freq=right.inv_freq.float())
    product, oracle = (
        Layer(backend, shape, rope or right, call, device=DEVICE),
        DenseOracle(right, call),
    )
    first, second, own, other = (Block() for _ in range(4))
    story = [
        [Row(View([first]), (1,) * 5), Row(View([second]), (2,) * 4)],
        [Row(View([first, second, own]), (3, 4)), Row(View([other]), (5,))],
        [Row(View([first, second, other, own]), (6,)), Row(View([own, other]), (7,))],
    ]
    worst = 0.0
    for number, rows in enumerate(story):
        q, k, v = random_qkv(
            Step(rows), shape, torch.Generator().manual_seed(number), torch.float32
        )
        oracle.write(Step(rows), k, v)
        found = product.step(Step(rows), q, k, v).double()
        worst = max(worst, float((found - oracle.read(Step(rows), q)).abs().max()))
        first.freeze()
        second.freeze()
    return worst, product.num_moves


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Shape(16, 1, 64 + 576, 576, is_latent=True), "latents have 576 dims"),
        (Shape(16, 1, 63 + 512, 512, is_latent=True), "beside 63 rotated ones"),
        (Shape(17, 1, 64 + 512, 512, is_latent=True), "17 query heads do not fall"),
    ],
)
def test_latents_that_the_kernels_cannot_read(shape: Shape, said: str) -> None:
    assert said in (refusal([shape], torch.float16, DEVICE) or "")


@pytest.mark.parametrize("num_heads", [16, 20, 32, 40, 64, 128])
def test_the_latents_of_published_models_are_served(num_heads: int) -> None:
    """DeepSeek-V2-Lite, GLM-4.7-Flash, Youtu, MiniCPM3, Kimi K2, DeepSeek-V3."""
    shape: Any = Shape(num_heads, 1, 64 + 512, 512, is_latent=True)
    assert refusal([shape], torch.float16, DEVICE) is None
    parts, group = _heads(shape)
    assert parts * group == num_heads
    assert group in (8, 10, 16)


def test_fewer_rows_where_shared_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that one program may have on Hopper, on consumers' GPUs, and on none."""
    shape = Shape(16, 1, 64 + 512, 512, is_latent=True)
    for size, rows, transposed in ((232448, 64, True), (101376, 32, False)):
        monkeypatch.setattr(launches, "shared_memory", lambda device, size=size: size)
        monkeypatch.setattr(fitting, "shared_memory", lambda device, size=size: size)
        monkeypatch.setattr(fitting, "_can_specialise_latents", lambda *about: False)
        backend = TritonBackend([shape], torch.bfloat16, DEVICE)
        assert (backend.tiling.large_rows, backend.tiling.most_small_rows) == (rows, rows)
        assert backend.launches[0].large.transposed == transposed
        assert refusal([shape], torch.bfloat16, DEVICE) is None
    said = (
        "latents of 512 dims take 163840 bytes of shared memory in float32, and this GPU has 101376"
    )
    assert refusal([shape], torch.float32, DEVICE) == said
