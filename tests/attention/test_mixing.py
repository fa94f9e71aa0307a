"""Keys in eight bits, their dims mixed: what the matrix is, which heads have it, and what it is good for.

Kernels are asked for the same numbers as plain torch, under Triton's interpreter or on a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.attention import eight_bits
from manyhands.attention.attend import Backend, LayerCall, LeftNorms, QueryScale
from manyhands.attention.eight_bits import is_mixed, mixed
from manyhands.attention.reference import ReferenceBackend
from manyhands.attention.rotary import Rope, Rotations
from manyhands.attention.store import LayerShape, Moved, Targets
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.block import Block
from manyhands.cache.plan import Plan
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.model.layers import FORMS, Form
from manyhands.model.memory import Memory
from tests.attention.dense import DenseOracle, Layers, Shape, random_qkv
from tests.attention.test_layers import CPU, DEVICE, kernels, with_triton

DIM = 32
LARGE = [3, 3 + DIM // 2]  # dims
ROPES = {
    "half-split": Rope(1 / 100 ** (torch.arange(DIM // 2) / (DIM // 2)), DIM),
    "interleaved": Rope(1 / 100 ** (torch.arange(DIM // 2) / (DIM // 2)), DIM, interleaved=True),
    "interleaved in part": Rope(1 / 100 ** (torch.arange(8) / 8), 16, interleaved=True),
    "none": None,
}
PLAIN = {"a part": Rope(1 / 100 ** (torch.arange(8) / 8), 16)}  # rounded as they are


def matrix(width: int) -> Tensor:
    """Sylvester's Hadamard matrix [width, width], made orthonormal: signs by the common bits of row and column."""
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(width)] for i in range(width)]
    return torch.tensor(signs) / width**0.5  # type: ignore[no-any-return]


@pytest.mark.parametrize("width", [1, 2, 8, 64, 128])
def test_mixing_is_a_hadamard_matrix(width: int) -> None:
    x = torch.randn(3, 5, width, generator=torch.Generator().manual_seed(width))
    torch.testing.assert_close(mixed(x), x @ matrix(width), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mixed(mixed(x)), x, rtol=1e-5, atol=1e-5)


def test_heads_that_kernels_do_not_hold_in_order_are_left_as_they_are() -> None:
    assert all(is_mixed(DIM, rope) for rope in ROPES.values())
    assert not is_mixed(DIM, PLAIN["a part"])
    assert not is_mixed(80, None)


def with_a_large_dim(x: Tensor) -> Tensor:
    """Heads x [..., D] of which one pair of dims is thirty times the others', as keys of some networks have."""
    x = x.clone()
    x[..., LARGE] *= 30
    return x


def on_device(rope: Rope | None) -> Rope | None:
    """The same, where kernels are."""
    return None if rope is None else replace(rope, inv_freq=rope.inv_freq.to(DEVICE))


def unmixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round keys as they are from here on: the control."""
    monkeypatch.setattr(eight_bits, "is_mixed", lambda *_: False)


@pytest.mark.parametrize("kind", ROPES)
def test_a_large_dim_does_not_round_the_others(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the numbers beside it; written, moved, and written to another place from a sheet."""
    shape, rope = LayerShape(4, 2, DIM, DIM), ROPES[kind]
    keys = with_a_large_dim(torch.randn(16, 2, DIM, generator=torch.Generator().manual_seed(1)))
    here, there, last = (torch.arange(16) + 16 * place for place in range(3))
    shift = torch.full((16,), 5)

    def off() -> list[float]:
        memory = Memory(64, [shape], [rope], device=CPU, dtype=torch.float32, eight_bits=True)
        (stack,) = memory.stacks
        store = stack.stores[0]
        store.write(Targets(here, Rotations(torch.zeros(16))), keys, keys)
        stack.move(Moved(here, there, Rotations(shift)))
        sheet = {name: tensor[:, here] for name, tensor in stack.tensors().items()}
        stack.put(Targets(last, Rotations(shift)), sheet, is_turned=True)
        small = [dim for dim in range(DIM) if dim not in LARGE]
        found = []
        for slots, turns in ((here, 0 * shift), (there, shift), (last, shift)):
            expected = Rotations(turns).rotate(keys, rope)
            error = (store.read(slots)[0] - expected)[..., small]
            found.append(float(error.square().mean().sqrt()))
        return found

    ours = off()
    unmixed(monkeypatch)
    control = off()
    assert all(3 * a < b for a, b in zip(ours, control, strict=True)), (ours, control)


@pytest.mark.parametrize("backend", [ReferenceBackend, TorchBackend])
@pytest.mark.parametrize("kind", ROPES)
def test_scores_behind_a_large_dim(
    backend: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = worst(backend(), kind)
    unmixed(monkeypatch)
    assert 1e-3 < 2 * ours < worst(backend(), kind)


@with_triton
@pytest.mark.parametrize("group", [1, 2])  # rows alone, and in tiles
@pytest.mark.parametrize("kind", ROPES)
def test_scores_in_the_kernels(group: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, below = worst(None, kind, group), worst(ReferenceBackend(), kind, group)
    assert ours < 1.2 * below + 1e-3
    unmixed(monkeypatch)
    assert 1e-3 < 2 * ours < worst(None, kind, group)


def worst(backend: Any, kind: str, group: int = 2) -> float:
    """The largest error of a prompt's and two desks' outputs, one of which is moved; None: of the kernels.

    Queries are small in the dims where keys are large, so scores are made by all.
    """
    rope = ROPES[kind]
    shape, call = Shape(2 * group, 2, DIM, DIM), LayerCall(layer=0, scaling=0.2)
    layers = [(shape, rope, call)]
    ours = backend or kernels(layers, torch.float32)
    device = DEVICE if backend is None else CPU
    product = Layers(ours, layers, device=device, eight_bits=True)
    oracle = DenseOracle(rope, call)
    generator = torch.Generator().manual_seed(4)
    prompt, desks = Block(), [Block() for _ in range(3)]
    found = 0.0
    for number in range(3):
        if number == 0:
            rows = [Row(View([prompt]), (1,) * 18)]
        elif number == 1:
            prompt.freeze()
            rows = [Row(View([prompt, desk]), (2,) * 2) for desk in desks[:2]]
        else:
            desks[0].freeze()
            rows = [Row(View([prompt, desks[0], desks[2]]), (3,))]
        step = Step(rows)
        q, k, v = random_qkv(step, shape, generator, torch.float32)
        k = with_a_large_dim(k)
        q[..., LARGE] /= 30
        oracle.write(step, k, v)
        (out,) = product.pass_of(step, [(q, k, v)])
        found = max(found, float((out.double() - oracle.read(step, q)).abs().max()))
    assert product.num_moves > 0
    return found


@with_triton
@pytest.mark.parametrize("kind", [*ROPES, *PLAIN])
def test_kernels_store_what_plain_torch_stores(kind: str) -> None:
    """Keys as they are written and moved: the same integers, but where the last bit of a sum decides between two."""
    rope = {**ROPES, **PLAIN}[kind]
    shape = Shape(2, 2, DIM, DIM)
    layers = [(shape, rope, LayerCall(layer=0, scaling=0.2))]
    generator = torch.Generator().manual_seed(2)
    stores = []
    for backend, device in ((kernels(layers, torch.float32), DEVICE), (TorchBackend(), CPU)):
        product = Layers(backend, layers, device=device, eight_bits=True)
        step = Step([Row(View([Block()]), (1,) * 24)])
        plan: Plan = product.planner.plan(step)
        generator.manual_seed(2)
        _, k, v = (x.to(device) for x in random_qkv(step, shape, generator, torch.float32))
        store, (stack,) = product.memory.stores[0], product.memory.stacks
        backend.append(store, k, v, backend.prepare(plan, device))
        slots = torch.as_tensor(plan.slots, device=device)
        targets = (slots + 24) % product.memory.stores[0].keys.shape[0]
        shifts = Rotations(torch.arange(24, device=device))
        backend.move(stack, Moved(slots, targets, shifts))
        stores.append(torch.cat([store.keys[slots], store.keys[targets]]).cpu().int())
    ours, below = stores
    assert (ours - below).abs().max() <= 1
    assert (ours != below).float().mean() < 1e-3 * 4


@pytest.fixture(params=[1, 512], ids=["a program for several entries", "a program for each"])
def side_by_side(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many programs make queries stand, unless they would have more than eight entries each."""
    monkeypatch.setattr("manyhands.attention.triton_backend._TO_STAND", request.param)


@pytest.mark.pairs
@with_triton
@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("kind", [*ROPES, *PLAIN])
def test_queries_stand_as_keys_do(kind: str, softcap: float | None) -> None:
    """Once for each strip that they read, rotated by their offset there, mixed and scaled."""
    from manyhands.attention.triton_backend import _standing

    rope = on_device({**ROPES, **PLAIN}[kind])
    shape, call = Shape(6, 2, DIM, DIM), LayerCall(layer=0, scaling=0.2, softcap=softcap)
    layers = [(shape, rope, call)]
    backend = kernels(layers, torch.float32)
    product = Layers(backend, layers, device=DEVICE, eight_bits=True)
    first, second = Block(), Block()
    product.pass_of(
        Step([Row(View([first]), (1,) * 9), Row(View([second]), (1,) * 3)]),
        [
            random_qkv(
                Step([Row(View([first]), (1,) * 12)]), shape, torch.Generator(), torch.float32
            )
        ],
    )
    step = Step([Row(View([first, second, Block()]), (2,) * 2)])
    q, _, _ = (x.to(DEVICE) for x in random_qkv(step, shape, torch.Generator(), torch.float32))
    prepared = backend.prepare(product.planner.plan(step), DEVICE)
    store: Any = product.memory.stores[0]
    found = _standing(store, q, prepared, call)
    assert len(found) > 2, "two tokens read three strips"
    offsets = prepared.entry_offset[: len(found)]
    rotated = Rotations(offsets).rotate(q[prepared.entry_token[: len(found)].long()], rope)
    scaling = 0.2 if softcap else 0.2 * 1.4426950408889634
    expected = store.as_stored(rotated) * scaling
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.values
@with_triton
@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize("kind", [*ROPES, *PLAIN])
def test_a_layer_in_one_is_the_layer_in_two(kind: str, form: Form | None) -> None:
    """Queries that stand where keys are written are those of a launch of their own, with norms in front and without."""
    rope = on_device({**ROPES, **PLAIN}[kind])
    shape, call = Shape(6, 2, DIM, DIM), LayerCall(layer=0, scaling=0.2)
    generator = torch.Generator().manual_seed(5)
    if form is not None:
        weights = torch.randn(2, DIM, generator=generator).to(DEVICE)
        norms = LeftNorms((weights[0], 1e-6), (weights[1], 0.5), form)
        call = replace(call, norms=norms)
    backend = kernels([(shape, rope, call)], torch.float32)
    outs = []
    for run in (backend.run_layer, partial(Backend.run_layer, backend)):
        product = Layers(backend, [(shape, rope, call)], device=DEVICE, eight_bits=True)
        generator.manual_seed(6)
        blocks, own = [Block(), Block()], [Block() for _ in range(2)]
        steps = [
            Step(
                [
                    Row(View([block]), (1,) * size)
                    for block, size in zip(blocks, (5, 2), strict=True)
                ]
            ),
            Step([Row(View([*blocks, block]), (2,) * 2) for block in own]),
        ]
        for step in steps:
            prepared = backend.prepare(product.planner.plan(step), DEVICE)
            q, k, v = (x.to(DEVICE) for x in random_qkv(step, shape, generator, torch.float32))
            outs.append(run(product.memory.stores[0], q, k, v, prepared, call))
            for row in step.rows:
                row.view.own.tokens.extend(row.feed)
            product.pool.keep()
    for ours, below in zip(outs[:2], outs[2:], strict=True):
        torch.testing.assert_close(ours, below, rtol=1e-5, atol=1e-5)


def test_queries_that_are_not_mixed_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unmixed(TorchBackend):
        def attend(self, *given: Any) -> Tensor:
            with monkeypatch.context() as patched:
                patched.setattr(eight_bits, "is_mixed", lambda *_: False)
                return super().attend(*given)

    assert worst(Unmixed(), "half-split") > 10 * worst(TorchBackend(), "half-split")


@with_triton
@pytest.mark.usefixtures("side_by_side")
@pytest.mark.parametrize("scale", [None, QueryScale(1, 4)])  # in one launch with keys, and not
def test_queries_of_padding_do_not_stand(
    scale: QueryScale | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording has room for entries by the thousand, and each would be mixed and written in every layer."""
    from manyhands.attention import triton_backend
    from manyhands.attention.prepared import Capacity, Prepared, pack
    from manyhands.attention.work import cut

    shape, rope = Shape(6, 2, DIM, DIM), on_device(ROPES["half-split"])
    layers = [(shape, rope, LayerCall(layer=0, scaling=0.2, query_scale=scale))]
    backend = kernels(layers, torch.float32)
    product = Layers(backend, layers, device=DEVICE, eight_bits=True)
    step = Step([Row(View([Block()]), (1,) * 5)])
    plan = product.planner.plan(step)
    work = cut(plan, backend.tiling)
    exact = Capacity.of(plan, work)
    capacity = replace(exact, tokens=8, entries=exact.entries + 11)
    integers = torch.zeros(capacity.num_integers, dtype=torch.int32)
    pack(plan, work, capacity, integers.numpy())
    prepared = Prepared(integers.to(DEVICE), capacity, plan.page_size)
    rooms = []

    def room(q: Tensor, prepared: Prepared) -> Tensor:
        rooms.append(q.new_full((prepared.capacity.entries, *q.shape[1:]), 7.0))
        return rooms[0]

    monkeypatch.setattr(triton_backend, "_room_to_stand", room)
    given = random_qkv(step, shape, torch.Generator(), torch.float32)
    q, k, v = (torch.cat((x, x.new_zeros(3, *x.shape[1:]))).to(DEVICE) for x in given)
    backend.run_layer(product.memory.stores[0], q, k, v, prepared, product.calls[0])
    assert (rooms[0][: exact.entries] != 7).all()
    assert (rooms[0][exact.entries :] == 7).all()
