"""Replay: a run's attention, all passes at once, with gradients if they are wanted.

The logits of every row of every pass come out of one forward over all tokens of the run, equal to
those the run saw. Used to learn from runs (`train.py`) and to restore one (`restore.py`).

    T  tokens of the run      S  slots      R  rows of all passes
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from manyhands.attention.attend import AttendFn, LayerCall
from manyhands.attention.rotary import Turns
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.pages import Ints
from manyhands.model.adapter import ModelAdapter
from manyhands.replay.merged import Merged, merge_passes
from manyhands.replay.trace import Trace


def merge_trace(trace: Trace) -> Merged:
    """The plan of a whole trace."""
    return merge_passes((step for step, _ in trace.steps()), trace.num_tokens)


def replay_attention(
    adapter: ModelAdapter, merged: Merged, budget: int = 1 << 22
) -> AttendFn:
    """The hook that lets every query of the run see what it saw. Differentiable.

    Keys are not stored: each slot takes its key from the token that lay there, turned as it lay.
    """
    device = adapter.device
    backend = TorchBackend(budget)
    prepared = backend.prepare(merged.plan, device)
    slot_token = torch.as_tensor(merged.slot_token, device=device)
    turns = Turns(torch.as_tensor(merged.slot_angle, device=device))

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        rope = adapter.ropes[call.layer]
        keys = turns.rotate(k[slot_token], rope)  # [S, G, D]
        return backend.attend(q, keys, v[slot_token], prepared, call, rope)

    return attend


def replay_logits(
    adapter: ModelAdapter, merged: Merged, rows: Sequence[int] | Ints | None = None, budget: int = 1 << 22
) -> Tensor:
    """Logits [len(rows), vocab] after the last token of the given rows (default: all R of them)."""
    last = merged.plan.last if rows is None else merged.plan.last[np.asarray(rows)]
    device = adapter.device
    return adapter.forward(
        torch.as_tensor(merged.plan.token_ids, device=device),
        torch.as_tensor(last, device=device),
        replay_attention(adapter, merged, budget),
    )
