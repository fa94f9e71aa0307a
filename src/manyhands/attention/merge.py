"""Merging partial softmaxes by their log-sum-exp (Hydragen, section 3.1).

Attention over a view is attention over runs of its keys, put together: with o_i and l_i the output and
the log-sum-exp of run i,

    o = sum_i exp(l_i - l) o_i        l = log sum_i exp(l_i)

Partials stay in float32 here: rounded to bfloat16 before this sum, they give visibly wrong answers.
An attention sink (gpt-oss) is one more l_i without an o_i, and enters here, once per head.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOTHING = -1e30  # a log-sum-exp so small that exp(NOTHING - l) is 0 for every real l


def merge(outs: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """Outs [T, P, H, Dv], lse [T, P, H] of P partials per token -> [T, H, Dv]."""
    if sinks is None:
        weights = torch.softmax(lse, dim=1)
    else:
        total = torch.logaddexp(torch.logsumexp(lse, dim=1), sinks.to(lse.dtype))  # [T, H]
        weights = torch.exp(lse - total.unsqueeze(1))
    return (weights.unsqueeze(-1) * outs).sum(dim=1)
