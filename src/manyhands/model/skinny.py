"""A linear layer that reads its weight at full speed when few tokens come.

The weight stays what it was; only the kernel that multiplies changes. Up to 64 tokens on a CUDA device, in bfloat16
or float16, our own does (`kernels/skinny.py`), and up to 128 where two halves of a weight go through an activation
(`kernels/gate_up.py`). On Hopper, weights that fill its processors evenly have another for 33 to 128 tokens
(`kernels/ring.py`). Everything else goes the way it always went.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from manyhands.attention.launches import has_gluon
from manyhands.model import kernels

ALIGNED = 8  # numbers: rows of a weight begin at multiples of 16 bytes
SMALLEST_TILE = 16  # outputs
DTYPES = (torch.bfloat16, torch.float16)


class SkinnyLinear(nn.Linear):
    """A linear layer [N, K] with a faster way for few tokens."""

    arrived: Tensor  # zeros for the kernel, see there
    gives_parts = False  # the caller hands what it gives to `layers.join`, which adds parts up

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """The same layer: it holds the very parameters of `linear`."""
        own = cls(1, 1, bias=False, device="meta")
        own.in_features, own.out_features = linear.in_features, linear.out_features
        own.weight, own.bias = linear.weight, linear.bias
        tiles = linear.out_features // SMALLEST_TILE + 1
        zeros = torch.zeros(tiles, dtype=torch.int32, device=linear.weight.device)
        own.register_buffer("arrived", zeros, persistent=False)
        return own

    def forward(self, x: Tensor) -> Tensor:
        """X [..., K] -> [..., N]; or parts [P, ..., N] in float32, whose sum that is, if it may give them."""
        parts = self._in_parts(x) if self.gives_parts else None
        if parts is not None:
            return parts
        ring = self._ring(x)
        if ring is not None and ring.groups_for(self.weight):
            out: Tensor = ring.product(self._rows(x), self.weight, self.bias)
            return out.view(*x.shape[:-1], self.out_features)
        return self._skinny(x, None) if self._is_for(x) else super().forward(x)

    def gated(self, x: Tensor, activation: str) -> Tensor | None:
        """act(gate) * up [..., N / 2] of x [..., K], gates first; None if that takes another way."""
        ring = self._ring(x)
        groups = 0 if ring is None else ring.groups_for(self.weight, gated=True)
        if groups:
            both: Tensor = ring.gated_product(
                self._rows(x), self.weight, self.bias, activation, groups
            )
            return both.view(*x.shape[:-1], both.shape[-1])
        if self._is_for(x):
            return self._skinny(x, activation)
        if not self._is_known(x):
            return None
        from manyhands.model.kernels import gate_up

        if x.numel() > gate_up.MOST_TOKENS * self.in_features or not gate_up.is_for(self.weight):
            return None
        out = gate_up.gated_product(self._rows(x), self.weight, self.bias, activation)
        return out.view(*x.shape[:-1], out.shape[-1])

    def put(self, x: Tensor, out: Tensor) -> None:
        """Write what x [T, K] gives into `out` [T, N], in float32, unrounded where one launch can do it."""
        ring = self._ring(x)
        if self._is_for(x) and (ring is None or not ring.groups_for(self.weight)):
            from manyhands.model.kernels.skinny import product

            product(self._rows(x), self.weight, self.bias, self.arrived, out=out)
        else:
            out.copy_(self(x))

    def _in_parts(self, x: Tensor) -> Tensor | None:
        """Parts of the product; None if that takes another way."""
        ring = self._ring(x)
        if ring is None or not ring.groups_for(self.weight, parts=ring.PARTS):
            return None
        parts: Tensor = ring.product_in_parts(self._rows(x), self.weight, self.bias)
        return parts.view(len(parts), *x.shape[:-1], self.out_features)

    def _ring(self, x: Tensor) -> Any:
        """The module of the products of so many tokens; None if they take another way in any case."""
        if not self._is_known(x) or not has_gluon(x.device):
            return None
        from manyhands.model.kernels import ring

        tokens = x.numel() // self.in_features
        return ring if ring.LEAST_TOKENS <= tokens <= ring.MOST_TOKENS else None

    def _rows(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.in_features)

    def _is_for(self, x: Tensor) -> bool:
        if not self._is_known(x):
            return False
        from manyhands.model.kernels.skinny import MOST_TOKENS

        return x.numel() <= MOST_TOKENS * self.in_features

    def _is_known(self, x: Tensor) -> bool:
        """Whether our kernels know the dtype, the device and how the weight lies."""
        is_known = x.dtype in DTYPES and x.dtype == self.weight.dtype
        return is_known and self.weight.is_contiguous() and kernels.usable(x)

    def _skinny(self, x: Tensor, activation: str | None) -> Tensor:
        from manyhands.model.kernels.skinny import product

        out = product(self._rows(x), self.weight, self.bias, self.arrived, activation)
        return out.view(*x.shape[:-1], out.shape[-1])


def fuse_linears(model: nn.Module) -> int:
    """Replace every ordinary linear layer whose rows are aligned and whose bias lies in one piece; how many those are."""
    count = 0
    for holder in list(model.modules()):
        for name, child in list(holder.named_children()):
            if type(child) is not nn.Linear or child.in_features % ALIGNED:
                continue
            if child.bias is None or child.bias.is_contiguous():
                setattr(holder, name, SkinnyLinear.of(child))
                count += 1
    return count
