"""Buffers with room to spare, and buffers that grow by themselves: the promises a CUDA graph rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.attention.attend import Backend, LayerCall, QueryScale
from manyhands.attention.prepared import Capacity, Prepared, pack, pack_growth
from manyhands.attention.triton_backend import TritonBackend
from manyhands.attention.work import Tiling, cut
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.plan import Plan
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from tests.attention.dense import DenseOracle, Layer, random_qkv
from tests.attention.test_attend import ROPES, SHAPES
from tests.attention.test_triton import DEVICE, kernels


class Kept(Backend):
    """A backend whose buffer stays, as in a graph: sent anew or grown, and with room to spare."""

    name = "kept"

    def __init__(self, kernels: TritonBackend) -> None:
        self.kernels = kernels
        self.sent = self.grown = 0
        self._plan: Plan | None = None
        self.buffer: torch.Tensor
        self.growth: torch.Tensor

    def prepare(self, plan: Plan, device: torch.device) -> Prepared:
        last, self._plan = self._plan, plan
        if last is not None and plan.lockstep is not None and plan.lockstep is last.lockstep:
            assert plan.lockstep_index == last.lockstep_index + 1
            self.grown += 1
            self.buffer += self.growth
        else:
            self.sent += 1
            work = cut(plan, self.kernels.tiling)
            self.capacity = Capacity.of(plan, work).rounded()
            integers, growth = torch.zeros(2, self.capacity.num_integers, dtype=torch.int32).numpy()
            pack(plan, work, self.capacity, integers)
            if plan.lockstep is not None:
                pack_growth(plan, work, self.capacity, growth[: self.capacity.num_growing])
            self.buffer = torch.as_tensor(integers, device=device)
            self.growth = torch.as_tensor(growth, device=device)
        return Prepared(self.buffer, self.capacity, plan.page_size)

    def append(self, store, k, v, prepared, left=None) -> None:  # type: ignore[no-untyped-def]
        self.kernels.append(store, self._padded(k), self._padded(v), prepared)

    def attend(self, store, q, prepared, call):  # type: ignore[no-untyped-def]
        out = self.kernels.attend(store, self._padded(q), prepared, call)
        assert (out[len(q) :] == 0).all(), "padding reads nothing"
        return out[: len(q)]

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        padding = x.new_full((self.capacity.tokens - len(x), *x.shape[1:]), float("nan"))
        return torch.cat((x, padding))


@pytest.mark.parametrize(
    ("layer", "num_steps"),  # sixteen: every desk fills its page
    [
        ({}, 16),
        ({"window": 9, "sinks": torch.tensor([0.5, 0, 1, 2.0])}, 6),
        ({"query_scale": QueryScale(1, 4)}, 6),
        ({"chunk": 6, "query_scale": QueryScale(1, 4, first=1)}, 6),
    ],
)
def test_a_team_decodes_from_a_buffer_that_grows_by_itself(
    layer: dict[str, object], num_steps: int
) -> None:
    """Three workers read each other, a fourth joins; every step against the definition."""
    shape, rope = SHAPES["gqa"], ROPES["half-split"]
    call = LayerCall(layer=0, scaling=0.4, **layer)  # type: ignore[arg-type]
    kept = Kept(kernels(shape))  # type: ignore[abstract]
    product = Layer(kept, shape, rope, call, num_pages=96, page_size=16, device=DEVICE)
    oracle = DenseOracle(rope, call)
    generator = torch.Generator().manual_seed(1)
    prompt, desks = Block("prompt"), [Block(f"desk {i}") for i in range(4)]
    views = [View([prompt, *(d for d in desks if d is not own), own]) for own in desks]

    def take(step: Step) -> None:
        q, k, v = random_qkv(step, shape, generator, torch.float32)
        oracle.write(step, k, v)
        assert (product.step(step, q, k, v).double() - oracle.read(step, q)).abs().max() < 2e-5

    take(Step([Row(View([prompt]), (0,) * 21)]))
    take(Step([Row(view, (0,) * (2 + i)) for i, view in enumerate(views[:3])]))
    for _ in range(num_steps):
        take(Step([Row(view, (0,)) for view in views[:3]]))
    take(Step([Row(views[3], (0,) * 5)]))
    for _ in range(3):
        take(Step([Row(view, (0,)) for view in views]))
    assert kept.grown > num_steps * 0.6, "most of it is plain decoding"
    assert kept.sent >= 4


def test_a_plan_fits_where_there_is_room_for_all_of_it() -> None:
    """With one place less of anything it does not: what is packed would reach into the next section."""
    planner, prompt = Planner(PagePool(200, 16)), Block()
    rows = [Row(View([prompt, Block()]), (1, 2)) for _ in range(70)]
    plan = planner.plan(Step([Row(View([prompt]), (1,) * 100), *rows]))
    work = cut(plan, Tiling(group=1, num_kv_heads=1, num_processors=8))
    exact = Capacity.of(plan, work)
    assert min(exact.small, exact.large) > 0
    assert exact.holds(plan, work)
    for name in ("tokens", "rows", "entries", "pages", "small", "large", "partials"):
        assert not replace(exact, **{name: getattr(exact, name) - 1}).holds(plan, work), name
        assert replace(exact, **{name: getattr(exact, name) + 1}).holds(plan, work), name
    rounded = exact.rounded()
    assert rounded.holds(plan, work)
    assert rounded.rounded() == rounded
    assert replace(exact, tokens=520).rounded().tokens == 576, "a tile of a product, not 1 024"
