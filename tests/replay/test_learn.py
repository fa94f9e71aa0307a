"""One step's gradients: in pieces, in parts and over two processes they are those of the plain formulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from manyhands.replay import gradients
from manyhands.replay.gradients import learn
from manyhands.replay.lessons import Batch, Batches
from manyhands.replay.train import batch_loss
from manyhands.school.curriculum import Curriculum
from manyhands.school.simulated import Simulated
from tests.replay.runs import LIST_PROMPTS, list_network, list_text
from tests.warm import context

TOKENS = 600


def batches(**how: Any) -> list[Batch]:
    """The parts of the first step."""
    curriculum = Curriculum(fewest_problems=2, most_problems=2, word_problems=0.0)
    return Batches(Simulated(curriculum, list_text(), LIST_PROMPTS), 5, TOKENS, **how)[0]


def found(parts: list[Batch], products: torch.dtype | None = None) -> tuple[float, list[Tensor]]:
    adapter = list_network()
    learned = learn(adapter, parts, products)
    return learned.loss, [p.grad for p in adapter.model.parameters() if p.grad is not None]


def worst(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference, over the largest number of its gradient."""
    pairs = zip(ours, theirs, strict=True)
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)


def plain() -> tuple[float, list[Tensor]]:
    adapter = list_network()
    loss, _ = batch_loss(adapter, batches()[0])
    weights = list(adapter.model.parameters())
    return float(loss.detach()), list(torch.autograd.grad(loss, weights))


def test_in_pieces_and_in_parts_they_are_those_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Float32, sums in another order; the control is the gradient of one part alone."""
    loss, expected = plain()
    monkeypatch.setattr(gradients, "_MOST_LOGITS", 17 * 1280)  # 17 rows at a time
    for parts in (batches(), batches(parts=2), batches(parts=1000)):
        ours, theirs = found(parts)
        assert ours == pytest.approx(loss, abs=1e-5)
        assert worst(theirs, expected) < 1e-4
    assert worst(found(batches(parts=2)[:1])[1], expected) > 1e-2


def test_products_in_bfloat16_are_near_and_weights_stay_float32() -> None:
    _, expected = plain()
    _, ours = found(batches(), torch.bfloat16)
    assert all(gradient.dtype == torch.float32 for gradient in ours)
    norms = sum(float((x - y).square().sum()) for x, y in zip(ours, expected, strict=True))
    whole = sum(float(y.square().sum()) for y in expected)
    assert 1e-8 < norms / whole < 1e-3  # eight bits of mantissa: rounded, and near


def test_counts_are_those_of_the_plain_formulation() -> None:
    adapter, (batch,) = list_network(), batches()
    _, right = batch_loss(adapter, batch)
    learned = learn(adapter, [batch])
    assert learned.accuracy == pytest.approx(float(right[0]))
    assert learned.decisive == pytest.approx(float(right[1]), nan_ok=True)
    assert learned.num_tokens == batch.num_tokens


def _rank(rank: int, meeting: str) -> tuple[float, list[Tensor]]:
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    try:
        return found(batches(parts=2, rank=rank, ranks=2))
    finally:
        distributed.destroy_process_group()


def _other(meeting: str, out: str) -> None:
    torch.save(_rank(1, meeting), out)


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    loss, expected = found(batches(parts=2))
    meeting, out = f"file://{tmp_path}/meeting", str(tmp_path / "other.pt")
    other = context().Process(target=_other, args=(meeting, out))
    other.start()
    mine = _rank(0, meeting)
    other.join(60)
    assert other.exitcode == 0
    for ours, theirs in (mine, torch.load(out)):
        assert ours == pytest.approx(loss, abs=1e-6)
        assert worst(theirs, expected) < 1e-5
