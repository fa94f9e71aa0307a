"""The kernels of training against the torch backend: outputs and gradients of whole networks.

In float32 both differ by the order of sums alone: below 2e-5 of the largest number of a gradient.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.attention import strips
from manyhands.model.adapter import ModelAdapter
from manyhands.replay.lessons import Batch, trace_lesson
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
    adapter = ModelAdapter(adapter.model.to(DEVICE))  # anew: its ropes lie where its weights do
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
    adapter.model.to("cpu")
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
        adapter.model.to("cpu")  # the network is kept between tests, and runs its team there
        monkeypatch.undo()
        expected, adapter = loss_of("qwen3", fused=False, lessons=1)
    adapter.model.to("cpu")
    assert abs(float(loss - expected)) > 1e-3


def test_the_kernels_are_for_layers_they_know() -> None:
    from manyhands.attention.attend import LayerCall

    plain = LayerCall(0, 1.0)
    assert strips.can_attend(plain, 256, torch.bfloat16)
    assert not strips.can_attend(plain, 512, torch.bfloat16)
    assert not strips.can_attend(replace(plain, softcap=30.0), 64, torch.float32)
    assert not strips.can_attend(replace(plain, sinks=torch.zeros(2)), 64, torch.float32)
    assert not strips.can_attend(plain, 64, torch.float64)
