"""Learning through replay: its gradients against a dense formulation and finite differences."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from manyhands.cache.layouts import LAYOUTS
from manyhands.model.adapter import ModelAdapter
from manyhands.replay.lessons import Batch, trace_lesson
from manyhands.replay.train import batch_loss, recompute_layers
from tests.covers import in_turns
from tests.model.double import DoublePrecision
from tests.replay.dense import Lines
from tests.replay.runs import SETTINGS, network, team_run

SHORT = replace(SETTINGS, budget=9, check_every=8, snapshots=(4,), away=())


def value(number: torch.Tensor) -> float:
    return float(number.detach())


def gradients(loss: torch.Tensor, adapter: ModelAdapter) -> dict[str, torch.Tensor]:
    """Of every parameter, by name; none is kept in the network."""
    named = dict(adapter.model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()))
    return dict(zip(named, found, strict=True))


CASES = in_turns(LAYOUTS, "gemma3_text", "qwen3")
CASES += [("combined", family) for family in ("gemma4_text", "gemma4_shared", "llama4_text")]


@pytest.mark.parametrize(("layout", "family"), CASES)
def test_against_a_dense_formulation(layout: str, family: str) -> None:
    """In float64 both are exact up to sums in another order: 1e-10 of numbers of size one."""
    adapter = network(family, torch.float64)
    with DoublePrecision():
        trace, seen, _ = team_run(adapter, replace(SHORT, layout=layout, workers=3))
        batch = Batch.of([trace_lesson(trace)], budget=1 << 20)
        loss, _ = batch_loss(adapter, batch)
        found = gradients(loss, adapter)
        logits = Lines.of(trace).logits(adapter)
        rows = [row for rows in trace.passes for row in rows]
        learned = torch.tensor([n for n, row in enumerate(rows) if row.writer is not None])
        targets = torch.tensor([row.token for row in rows])
        chances = logits[learned].log_softmax(-1).gather(1, targets[learned, None])
        expected = gradients(-chances.mean(), adapter)
    assert value((logits - seen).abs().max()) < 1e-11
    assert loss.dtype == torch.float64
    assert value(loss) == pytest.approx(value(-chances.mean()), abs=1e-12)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-11, msg=name)
    assert all(float(gradient.abs().max()) > 1e-6 for gradient in expected.values())


def test_layers_that_are_computed_once_more() -> None:
    """Also those that take keys from an earlier layer, which is itself computed once more."""
    adapter = network.__wrapped__("gemma4_shared")
    batch = Batch.of(
        [trace_lesson(team_run(adapter, replace(SHORT, workers=2))[0])], budget=1 << 20
    )
    expected = gradients(batch_loss(adapter, batch)[0], adapter)
    recompute_layers(adapter)
    found = gradients(batch_loss(adapter, batch)[0], adapter)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-7, msg=name)


def test_against_finite_differences() -> None:
    adapter = network("qwen3", torch.float64)
    generator = torch.Generator().manual_seed(4)
    with DoublePrecision():
        trace, _, _ = team_run(adapter, replace(SHORT, workers=2))
        batch = Batch.of([trace_lesson(trace)], budget=1 << 20)
        found = gradients(batch_loss(adapter, batch)[0], adapter)
        for name, parameter in adapter.model.named_parameters():
            direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            direction /= direction.norm()
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.add_(direction, alpha=sign * 1e-5)
                    values.append(value(batch_loss(adapter, batch)[0]))
                    parameter.add_(direction, alpha=-sign * 1e-5)
            slope = (values[0] - values[1]) / 2e-5
            # central differences of step 1e-5: errors of 1e-10, and of 1e-16 / 1e-5 in rounding
            assert slope == pytest.approx(float((found[name] * direction).sum()), abs=1e-8), name


def test_the_loss_of_a_batch_weighs_tokens() -> None:
    """A token of weight two counts as two, and one of weight zero as none."""
    adapter = network("qwen3")
    trace, seen, _ = team_run(adapter, replace(SHORT, workers=2))
    lesson = trace_lesson(trace)
    weights = lesson.weights.copy()
    learned = weights.nonzero()[0]
    weights[learned[0]], weights[learned[1]] = 2.0, 0.0
    batch = Batch.of([replace(lesson, weights=weights)], budget=1 << 20)
    loss, right = batch_loss(adapter, batch)
    losses = -seen.log_softmax(-1)[range(len(seen)), torch.as_tensor(lesson.targets)]
    expected = (losses * torch.as_tensor(weights)).sum() / weights.sum()
    assert value(loss) == pytest.approx(value(expected), abs=1e-5)
    hits = (seen.argmax(-1) == torch.as_tensor(lesson.targets))[weights.nonzero()[0]]
    everything, decisive = right.tolist()
    assert everything == pytest.approx(float(hits.float().mean()))
    assert math.isnan(decisive)  # there is no token of great weight
    weights[learned[2:5]] = 6.0
    _, right = batch_loss(adapter, Batch.of([replace(lesson, weights=weights)], budget=1 << 20))
    found = seen.argmax(-1) == torch.as_tensor(lesson.targets)
    assert value(right[1]) == pytest.approx(float(found[learned[2:5]].float().mean()))


def test_batches_learn_from_all_their_lessons() -> None:
    adapter = network("qwen3")
    lessons = [
        trace_lesson(team_run(adapter, replace(SHORT, layout=layout))[0]) for layout in LAYOUTS
    ]
    loss, _ = batch_loss(adapter, Batch.of(lessons, budget=1 << 20))
    alone = [batch_loss(adapter, Batch.of([lesson], budget=1 << 20))[0] for lesson in lessons]
    sizes = torch.tensor([float(lesson.weights.sum()) for lesson in lessons])
    expected = (torch.stack(alone) * sizes).sum() / sizes.sum()
    assert value(loss) == pytest.approx(value(expected), abs=1e-5)
