"""The kernels of training against the torch backend: outputs and gradients of whole networks.

In float32 both differ by the order of sums alone: below 2e-5 of the largest number of a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.attention import strips
from manyhands.attention.attend import LayerCall
from manyhands.attention.reference import ReferenceBackend
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerStore
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.planner import Planner
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.model.adapter import ModelAdapter
from manyhands.replay.lessons import Batch, trace_lesson
from manyhands.replay.merged import merge_passes
from manyhands.replay.train import batch_loss
from tests.replay.runs import SETTINGS, network, team_run

SHORT = replace(SETTINGS, budget=7, check_every=6, snapshots=(), away=(), workers=2)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NEAR = 2e-5


def loss_of(
    family: str, *, fused: bool, lessons: int, products: torch.dtype | None = None
) -> tuple[torch.Tensor, ModelAdapter]:
    """The loss of a batch of one run, `lessons` times, and the network on the device."""
    adapter = network(family)
    trace, _, _ = team_run(adapter, SHORT)
    adapter = ModelAdapter(adapter.model.to(DEVICE))  # type: ignore[arg-type]  # anew: its ropes lie where its weights do
    batch = Batch.of([trace_lesson(trace)] * lessons, budget=1 << 20, fused=fused).to(DEVICE)
    with torch.autocast(DEVICE.type, products, enabled=products is not None):
        loss, _ = batch_loss(adapter, batch)
    return loss, adapter


def gradients(
    family: str, *, fused: bool, lessons: int, products: torch.dtype | None = None
) -> tuple[float, dict[str, torch.Tensor]]:
    loss, adapter = loss_of(family, fused=fused, lessons=lessons, products=products)
    named = dict(adapter.model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()))
    adapter.model.to("cpu")  # type: ignore[arg-type]
    return float(loss.detach()), dict(zip(named, found, strict=True))


# queries in groups, in a batch of several lessons; a window; pairs side by side, heads in part; chunks
@pytest.mark.parametrize(
    ("family", "lessons"), [("qwen3", 2), ("gemma3_text", 1), ("glm4", 1), ("llama4_text", 1)]
)
def test_gradients_are_those_of_the_torch_backend(family: str, lessons: int) -> None:
    loss, found = gradients(family, fused=True, lessons=lessons)
    expected_loss, expected = gradients(family, fused=False, lessons=lessons)
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    for name, gradient in expected.items():
        error = (found[name] - gradient).abs().max() / gradient.abs().max().clamp(min=1e-9)
        assert error < NEAR, name
    assert all(float(gradient.abs().max()) > 1e-7 for gradient in expected.values())


@pytest.mark.parametrize("is_merged", [True, False])
def test_every_key_that_is_seen_is_in_one_tile_of_either_kind(is_merged: bool) -> None:
    """Also where two blocks lie on one strip and rows meet them apart: a gradient is stored, and not added."""
    history, header, (one, other) = Block("history"), Block("header"), (Block(), Block())

    def steps() -> Iterator[Step]:
        yield Step([Row(View([history]), (1,) * 100)])
        yield Step([Row(View([history, header]), (1,) * 10)])
        history.freeze()
        header.freeze()
        yield Step(
            [Row(View([history, header, one]), (1,))]
        )  # the header is moved behind the history
        views = View([history, other, header, one]), View([history, one, header, other])
        for _ in range(2):
            yield Step([Row(view, (1,)) for view in views])

    if is_merged:  # an early pass reads both blocks as one
        plan = merge_passes(steps(), 200).plan
    else:
        planner = Planner(PagePool(400, 1))
        for step in steps():
            plan = planner.plan(step)
            planner.pool.make_moves(lambda moves: None)
            for row in step.rows:
                row.view.own.tokens.extend(row.feed)
    lists = strips.Strips.of(plan)
    lows, offsets = lists.lows.numpy(), lists.rotations.offsets.numpy()
    highs = np.minimum(lists.highs.numpy(), offsets + 1)
    assert {0, 100} <= set(lows.tolist()), "both lie on one strip"
    seen = {(entry, key) for entry in range(len(lows)) for key in range(lows[entry], highs[entry])}
    by_entries = [
        (entry, key)
        for first, count, begin, end, _ in lists.entry_tiles.tolist()
        for entry in range(first, first + count)
        for key in range(max(begin, lows[entry]), min(end, highs[entry]))
    ]
    by_keys = [
        (entry, key)
        for first, count, begin, last, _ in lists.key_tiles.tolist()
        for entry in range(begin, last)
        for key in range(max(first, lows[entry]), min(first + count, highs[entry]))
    ]
    for found in (by_entries, by_keys):
        assert len(found) == len(set(found))
        assert set(found) == seen
    own = [(place + first, count) for first, count, _, _, place in lists.key_tiles.tolist()]
    slots = [slot for first, count in own for slot in range(first, first + count)]
    assert len(slots) == len(set(slots)), "tiles of keys share none"
    walked = (lists.entry_tiles[:, 3] - lists.entry_tiles[:, 2]).tolist()
    assert max(walked) == (110 if is_merged else 100), (
        "no tile walks over the history for the header"
    )


@pytest.mark.parametrize(("dim", "value_dim"), [(8, 40), (40, 8)])
def test_keys_and_values_of_different_sizes(dim: int, value_dim: int) -> None:
    """Beside the definition: outputs, and gradients of queries, keys and values."""
    planner, prompt, desks = Planner(PagePool(100, 1)), Block(), [Block(), Block()]
    planner.plan(Step([Row(View([prompt]), (1,) * 70)]))
    prompt.tokens.extend([1] * 70)
    planner.pool.keep()
    views = [View([prompt, *order]) for order in (desks, desks[::-1])]
    plan = planner.plan(Step([Row(view, (1, 2, 3)) for view in views]))
    torch.manual_seed(1)
    q, keys, values, weights = (
        torch.randn(size, device=DEVICE)
        for size in ((6, 4, dim), (100, 2, dim), (100, 2, value_dim), (6, 4, value_dim))
    )
    given = [x.requires_grad_() for x in (q, keys, values)]
    store = LayerStore(keys, values, Rope(torch.tensor([1.0, 0.3], device=DEVICE), 4))
    call, backend = LayerCall(0, 0.4), ReferenceBackend()
    out = strips.attend(store, q, strips.Strips.of(plan).to(DEVICE), call)
    expected = backend.attend(store, q, backend.prepare(plan, DEVICE), call)
    assert torch.allclose(out, expected, atol=1e-5)
    found = torch.autograd.grad((out * weights).sum(), given)
    for one, other in zip(
        found, torch.autograd.grad((expected * weights).sum(), given), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-5)


def test_products_in_two_bytes_of_weights_in_float32() -> None:
    """Norms of float32 weights make queries and keys of float32 there, beside values of two bytes.

    In float16, whose products the interpreter knows; rounded to eleven bits in every layer, gradients are within 1 %.
    """
    _, found = gradients("qwen3", fused=True, lessons=1, products=torch.float16)
    _, expected = gradients("qwen3", fused=False, lessons=1)
    for name, gradient in expected.items():
        error = (found[name] - gradient).abs().max() / gradient.abs().max()
        assert error < 1e-2, name


def test_control_a_key_seen_too_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry loses the last key it sees."""
    right = strips.Strips.of

    def wrong(plan):  # type: ignore[no-untyped-def]
        found = right(plan)
        return replace(found, highs=found.highs - 1)

    monkeypatch.setattr(strips.Strips, "of", staticmethod(wrong))
    with torch.no_grad():
        loss, adapter = loss_of("qwen3", fused=True, lessons=1)
        adapter.model.to("cpu")  # type: ignore[arg-type]  # the network is kept between tests, and runs its team there
        monkeypatch.undo()
        expected, adapter = loss_of("qwen3", fused=False, lessons=1)
    adapter.model.to("cpu")  # type: ignore[arg-type]
    assert abs(float(loss - expected)) > 1e-3


def test_the_kernels_are_for_layers_they_know() -> None:
    plain = LayerCall(0, 1.0)
    assert strips.can_attend(plain, 256, torch.bfloat16)
    assert not strips.can_attend(plain, 512, torch.bfloat16)
    assert not strips.can_attend(replace(plain, softcap=30.0), 64, torch.float32)
    assert not strips.can_attend(replace(plain, sinks=torch.zeros(2)), 64, torch.float32)
    assert not strips.can_attend(plain, 64, torch.float64)
