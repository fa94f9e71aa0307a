"""Attention with gradients by the kernels, against plain torch: outputs, and gradients of q, k and v."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from manyhands.attention.attend import LayerCall, QueryScale
from manyhands.attention.learning import Intervals, attend_intervals, can_attend
from manyhands.attention.rotary import Rope, Rotations
from manyhands.attention.store import LayerShape, LayerStore
from manyhands.attention.torch_backend import TorchBackend
from manyhands.replay.forward import merge_trace
from manyhands.replay.merged import Merged, side_by_side
from manyhands.strategies.settings import EndSettings
from tests.replay.runs import SETTINGS, network, team_run

pytest.importorskip("triton")
KV_HEADS, GROUP, DIM, VALUE_DIM = 2, 3, 32, 16


@cache
def runs() -> Merged:
    """Two runs of teams side by side: markers, moves, a checked worker, a late one, all in one plan."""
    end = EndSettings(finisher_tokens=3, reply_tokens=2)
    short = replace(SETTINGS, budget=6, check_every=5, snapshots=(), away=(), end=end)
    adapter = network("qwen3")
    return side_by_side(
        [merge_trace(team_run(adapter, replace(short, workers=n))[0]) for n in (1, 2)]
    )


def rope(interleaved: bool = False) -> Rope:
    return Rope(1.0 / 100.0 ** (torch.arange(DIM // 2) / (DIM // 2)), DIM, interleaved)


def numbers(merged: Merged) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q, k, v of all tokens, and a gradient of the output."""
    generator = torch.Generator().manual_seed(1)
    tokens = merged.plan.num_tokens
    shapes = (GROUP * KV_HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, VALUE_DIM)
    q, k, v = (
        torch.randn(tokens, *shape, generator=generator, requires_grad=True) for shape in shapes
    )
    return q, k, v, torch.randn(tokens, GROUP * KV_HEADS, VALUE_DIM, generator=generator)


def by_torch(merged: Merged, used: Rope | None, call: LayerCall) -> list[Tensor]:
    """Output and gradients from `TorchBackend`."""
    q, k, v, grad = numbers(merged)
    prepared = TorchBackend().prepare(merged.plan, torch.device("cpu"))
    token, offset = torch.as_tensor(merged.slot_token), torch.as_tensor(merged.slot_offset)
    store = LayerStore(Rotations(offset).rotate(k[token], used), v[token], used)
    out = TorchBackend().attend(store, q, prepared, call)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


def by_kernels(merged: Merged, used: Rope | None, call: LayerCall) -> list[Tensor]:
    """Output and gradients from the kernels."""
    q, k, v, grad = numbers(merged)
    layout = Intervals.of(merged.plan, GROUP)
    token = torch.as_tensor(merged.slot_token)[layout.slots]
    offset = torch.as_tensor(merged.slot_offset)[layout.slots]
    keys = Rotations(offset).rotate(k[token], used)
    out = attend_intervals(q, keys, v[token], layout, used, call)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), grad)]


CALLS = [
    (rope(), LayerCall(0, 0.3)),
    (rope(interleaved=True), LayerCall(0, 0.3, window=7)),
    (None, LayerCall(0, 0.3, query_scale=QueryScale(0.5, 4))),
]


@pytest.mark.parametrize(
    ("used", "call"), CALLS, ids=["rotated", "pairs in a window", "no positions, a scale"]
)
def test_outputs_and_gradients_are_those_of_plain_torch(used, call):
    """All is float32: sums in another order, so 1e-4 of the largest number."""
    for found, expected in zip(
        by_kernels(runs(), used, call), by_torch(runs(), used, call), strict=True
    ):
        assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_no_part_of_the_call_is_idle():
    """The control: each of the calls above gives other numbers than the one before it, in plain torch."""
    results = [by_torch(runs(), used, call) for used, call in CALLS]
    for one, other in pairwise(results):
        assert all(float((x - y).abs().max()) > 1e-2 for x, y in zip(one, other, strict=True))


def test_what_the_kernels_cannot_compute_is_left_to_plain_torch():
    shape = LayerShape(6, 2, 64, 64)
    assert can_attend(shape, rope=None)
    assert not can_attend(replace(shape, head_dim=80), rope=None)
    assert not can_attend(replace(shape, head_dim=256), rope=None)
    partial = Rope(torch.ones(16), 32)
    assert not can_attend(shape, partial)
