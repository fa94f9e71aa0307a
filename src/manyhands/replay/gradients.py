"""One step's gradients: loss and logits in pieces, batches in parts, processes side by side.

The logits of a batch are by far its largest tensor: 8 000 learned tokens over 150 000 words are five gigabytes in
float32, and a loss keeps several of that size. So the layers run once; then some rows at a time get their logits,
their loss, and at once their gradients, which are added up at the states behind the last layer. Only then the
layers run backward. What is added is the sum of weighted losses, and the sum of weights divides it at the end: so
a batch in one part, in several, or over several processes gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.nn import functional

from manyhands.model.adapter import ModelAdapter
from manyhands.replay.lessons import Batch

DECISIVE = 4.0  # tokens of this weight or more are watched by themselves
_MOST_LOGITS = 1 << 27  # in one piece: half a gibibyte in float32


@dataclass(frozen=True)
class Learned:
    """Sums over the learned tokens of a step, on the device: [6] float64, see the properties."""

    sums: Tensor
    num_tokens: int  # of the forward passes, in all processes

    @property
    def loss(self) -> float:
        """Weighted cross-entropy, in nats a token. Waits for the device."""
        loss, weight, *_ = self.sums.tolist()
        return float(loss / weight)

    @property
    def accuracy(self) -> float:
        """Share of tokens of which the likeliest is the right one."""
        _, _, right, count, *_ = self.sums.tolist()
        return float(right / count)

    @property
    def decisive(self) -> float | None:
        """The same share of the tokens of great weight; None if there are none."""
        *_, right, count = self.sums.tolist()
        return float(right / count) if count else None


def learn(
    adapter: ModelAdapter, parts: Sequence[Batch], products: torch.dtype | None = None
) -> Learned:
    """Set the gradients of all trained weights to those of the mean loss over all parts.

    `products`: the dtype of matrix products (by autocast); None leaves them in that of the weights. Where
    `torch.distributed` is initialised, parts of all processes count, and all end with the same gradients.
    """
    device = adapter.device
    trained = [weight for weight in adapter.model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.grad = None
    sums = torch.zeros(6, dtype=torch.float64, device=device)
    for part in parts:
        sums += _add_gradients(adapter, part.to(device), products)
    num_tokens = sum(part.num_tokens for part in parts)
    if distributed.is_initialized():
        distributed.all_reduce(sums)
        fed = torch.tensor(num_tokens, device=device)
        distributed.all_reduce(fed)
        num_tokens = int(fed)
        for weight in trained:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            distributed.all_reduce(weight.grad)
    for weight in trained:
        if weight.grad is not None:
            weight.grad.div_(sums[1].to(weight.grad.dtype))
    return Learned(sums, num_tokens)


def _add_gradients(adapter: ModelAdapter, batch: Batch, products: torch.dtype | None) -> Tensor:
    """Add the gradients of a part's summed loss to those of the weights; its sums [6], see `Learned`."""
    replay, device = batch.replay, adapter.device
    cast = {"device_type": device.type, "dtype": products, "enabled": products is not None}
    with torch.autocast(**cast):  # type: ignore[arg-type]  # a table of mixed types
        states = adapter.states(replay.token_ids, replay.attention(adapter))
    learned = states.index_select(0, replay.keep)
    leaf = learned.detach().requires_grad_()
    sums = torch.zeros(6, dtype=torch.float64, device=device)
    at_once = max(1, _MOST_LOGITS // adapter.vocab_size)
    for first in range(0, len(leaf), at_once):
        piece = slice(first, first + at_once)
        targets, weights = batch.targets[piece], batch.weights[piece]
        with torch.autocast(**cast):  # type: ignore[arg-type]
            logits = adapter.head(leaf[piece])
        if logits.dtype != torch.float64:
            logits = logits.float()
        losses = functional.cross_entropy(logits, targets, reduction="none")
        loss = (losses * weights).sum()
        torch.autograd.backward(loss)
        right = logits.detach().argmax(-1) == targets
        decisive = weights >= DECISIVE
        counted = (loss.detach(), weights.sum(), right.sum(), torch.ones_like(right).sum())
        sums += torch.stack(
            [x.double() for x in (*counted, (right & decisive).sum(), decisive.sum())]
        )
        del logits, losses, loss
    torch.autograd.backward(learned, leaf.grad)
    return sums
