"""Replay by definition: each token looks at what its row read then, written out as a sequence.

Nothing of the product's planning or attention is used. From a trace's lines alone follows, for every
token, the list of tokens it sees, in order; position is place in that list. Rotation is a complex
multiplication, attention a softmax over one padded line per token.

    T  tokens of the run      N  longest line      H, G, D  heads, key/value heads, head dim
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhands.attention.attend import LayerCall
from manyhands.attention.rotary import Rope
from manyhands.model.adapter import ModelAdapter
from manyhands.replay.trace import Trace


@dataclass(frozen=True)
class Lines:
    """`token_ids` [T]; `line` [T, N] whom each token sees, in order; `position` [T], its own place
    in its line; `last` [R], the token of each row whose logits choose the next."""

    token_ids: Tensor
    line: Tensor
    position: Tensor
    last: Tensor

    @classmethod
    def of(cls, trace: Trace) -> Lines:
        """From the trace's integers."""
        token_ids: list[int] = []
        lines: list[list[int]] = []
        last: list[int] = []
        blocks = defaultdict(list)  # block: its tokens, as numbers in the order of feeding
        for rows in trace.passes:
            for row in rows:
                for token in row.feed:
                    blocks[trace.views[row.view][-1]].append(len(token_ids))
                    token_ids.append(token)
                last.append(len(token_ids) - 1)
            for row in rows:
                seen = [token for block in trace.views[row.view] for token in blocks[block]]
                size = len(row.feed)
                lines += [seen[: len(seen) - size + i + 1] for i in range(size)]
        longest = max(map(len, lines))
        return cls(
            torch.tensor(token_ids),
            torch.tensor([line + [0] * (longest - len(line)) for line in lines]),
            torch.tensor([len(line) - 1 for line in lines]),
            torch.tensor(last),
        )

    def logits(self, adapter: ModelAdapter) -> Tensor:
        """Logits [R, V], differentiable."""

        def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
            return self._attend(q, k, v, call, adapter.ropes[call.layer])

        return adapter.forward(self.token_ids, self.last, attend)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, call: LayerCall, rope: Rope | None
    ) -> Tensor:
        place = torch.arange(self.line.shape[1])  # [N]
        q = rotated(q, self.position, rope)
        if (scale := call.query_scale) is not None:
            grown = (self.position + scale.first) // scale.span
            q = q * (1 + scale.beta * torch.log(1.0 + grown.double()))[:, None, None]
        k = rotated(k[self.line], place, rope)  # [T, N, G, D]
        k = k.repeat_interleave(q.shape[1] // k.shape[2], dim=2)
        v = v[self.line].repeat_interleave(q.shape[1] // v.shape[1], dim=2)
        scores = torch.einsum("thd,tnhd->thn", q, k) * call.scaling
        distance = self.position[:, None] - place[None, :]
        mask = distance >= 0
        if call.window is not None:
            mask &= distance < call.window
        if call.chunk is not None:
            mask &= self.position[:, None] // call.chunk == place[None, :] // call.chunk
        scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
        return torch.einsum("thn,tnhd->thd", scores.softmax(-1), v)


def rotated(x: Tensor, position: Tensor, rope: Rope | None) -> Tensor:
    """x [..., H, D] rotated to `position` [...]: pairs of coordinates as complex numbers."""
    if rope is None:
        return x
    half = rope.rotary_dim // 2
    if rope.interleaved:
        order = torch.arange(rope.rotary_dim).view(half, 2).T.flatten()
        x = torch.cat((x[..., order], x[..., rope.rotary_dim :]), dim=-1)
    angle = position[..., None, None] * rope.inv_freq.to(x.dtype)  # [..., 1, half]
    pairs = torch.complex(x[..., :half], x[..., half : 2 * half])
    pairs = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((pairs.real, pairs.imag, x[..., 2 * half :]), dim=-1)
