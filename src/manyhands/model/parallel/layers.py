"""The layers where ranks meet. Everywhere else each rank computes with its own part alone.

    Summed             an output projection, or a stack of experts: each rank has a part of every sum; where the
                       residual sum and a norm stand behind it, all is done at once (`fusion`)
    OutputLayer        each rank has the logits of some tokens; all get them all
    NormOverRanks      OLMo's norm of q or k, whose mean runs over the heads of all ranks

A wrapped layer stays a child of its wrapper, so that `fusion` and `quantised` find and replace it as ever.
The bias of a summed layer is rank 0's alone, and zero elsewhere: it is added once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.model.layers import Form, Norm, join, norm_of
from manyhands.model.parallel.collectives import Collectives


class Summed(nn.Module):
    """A layer whose output is the sum of what all ranks' parts give."""

    def __init__(self, part: nn.Module, collectives: Collectives) -> None:
        super().__init__()
        self.part = part
        self.collectives = collectives
        self.is_put_off = False  # the caller hands what it gives to `join`

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """As the part is called; [..., N], the same on every rank unless it is put off."""
        part: Tensor = self.part(*args, **kwargs)
        if self.is_put_off:
            return part
        peers = self.collectives.peers
        if peers is not None and peers.can_sum(part):
            return peers.sum(part)
        return self.collectives.sum(part)

    def join(
        self, residual: Tensor, part: Tensor, post: Norm | None, pre: Norm | None
    ) -> tuple[Tensor, Tensor]:
        """As `model.layers.join` of the sum of all ranks' parts [..., N], which was put off."""
        peers = self.collectives.peers
        if peers is not None and peers.can_sum(part):
            joined = peers.join(residual, part, post, pre)
            if joined is not None:
                return joined
        return join(residual, self.collectives.sum(part), post, pre)


class OutputLayer(nn.Module):
    """Logits of the whole vocabulary; each rank multiplies with its own rows of the weight."""

    def __init__(self, part: nn.Module, vocab_size: int, collectives: Collectives) -> None:
        super().__init__()
        self.part = part
        self.vocab_size = vocab_size
        self.collectives = collectives

    def forward(self, x: Tensor) -> Tensor:
        """X [..., K] -> logits [..., V]. The last ranks' parts may be shorter."""
        own: Tensor = self.part(x)
        own = functional.pad(own, (0, -(-self.vocab_size // self.collectives.size) - own.shape[-1]))
        parts = self.collectives.gather(own)  # [size, ..., ceil(V / size)]
        return parts.movedim(0, -2).flatten(-2)[..., : self.vocab_size]


class NormOverRanks(nn.Module):
    """An RMS norm of which each rank has some dims, and whose mean runs over those of all."""

    def __init__(
        self, weight: nn.Parameter, eps: float, form: Form, collectives: Collectives
    ) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.form: Form = form
        self.collectives = collectives

    def forward(self, x: Tensor) -> Tensor:
        """X [..., N] -> its norm [..., N]. Dims that several ranks hold count alike, so the mean stays."""
        square = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        mean = self.collectives.sum(square) / self.collectives.size
        return norm_of(x, mean, self.weight, self.eps, self.form)
