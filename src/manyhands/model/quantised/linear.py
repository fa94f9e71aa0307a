"""Linear layers whose weights take fewer bits than the network computes in.

At a decode step a layer's time is the time to read its weights, so half the bytes are nearly half the
time. Two kinds: `Float8Linear` here (one byte, both sides of the product in e4m3) and `Int4Linear` in
`w4a16` (half a byte, activations as they are). Either is made from an ordinary layer, directly with
random values, or read from a published checkpoint (`packed_checkpoint`).

    N  outputs      K  inputs      T  tokens
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.model import kernels

_TOP = 448.0  # the largest number of e4m3
_SMALLEST_TILE = 16  # outputs
_MOST_TOKENS = 32  # of our product; with more it has not been measured
_ROWS_AT_A_TIME = 4096  # of random weights, so that a large layer is never held in full precision


class Quantised(nn.Module):
    """The common part of all quantised layers. Their tensors are buffers; only a bias is a parameter.

    A network's dtype may be changed after loading; packed numbers and their scales keep theirs.
    """

    in_features: int
    out_features: int
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @staticmethod
    @abstractmethod
    def fits(outputs: int, inputs: int) -> bool:
        """Whether such a layer may have a weight of this shape."""

    @classmethod
    @abstractmethod
    def from_weight(cls, weight: Tensor, bias: Tensor | None) -> Self:
        """The nearest such layer to an ordinary weight [N, K]."""

    @classmethod
    @abstractmethod
    def empty(cls, linear: nn.Linear) -> Self:
        """A layer of the same shape on the same device, with memory and no values."""

    @classmethod
    @abstractmethod
    def joined(cls, parts: Sequence[Any]) -> Self | None:
        """One layer that gives what all `parts` give, side by side; None where that cannot be."""

    @abstractmethod
    def part(self, dim: int, pieces: Sequence[tuple[int, int]], bias: Tensor | None) -> Self:
        """The layer of some outputs (dim 0) or inputs (dim 1), `pieces` from start to stop side by side.

        The same numbers as here. `bias` is the part's own. UnsupportedModel where they cannot be parted.
        """

    @abstractmethod
    def fill(self, std: float) -> None:
        """Random weights of this spread, made in place."""

    @abstractmethod
    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """The weight [N, K] as ordinary numbers."""

    def extra_repr(self) -> str:
        """For printing."""
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As bytes they can be moved, and nobody takes them for numbers that may be rounded."""
        kept = {name: buffer.dtype for name, buffer in self.named_buffers(recurse=False)}
        for name in kept:
            self._buffers[name] = getattr(self, name).view(torch.uint8)
        whole: Any = super()  # torch gives this method no types
        whole._apply(fn, recurse)
        for name, dtype in kept.items():
            self._buffers[name] = getattr(self, name).view(dtype)
        return self


class Float8Linear(Quantised):
    """Weights [N, K] in e4m3 with a scale per output; activations with a scale per token.

    On GPUs with float8 products (Hopper and later) one scaled product, for few tokens by our own kernel
    (`kernels/skinny.py`); elsewhere the same numbers are multiplied in float32.
    """

    weight: Tensor  # float8 [N, K]
    scales: Tensor  # float32 [N]
    arrived: Tensor  # zeros for the kernel, see there

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        tiles = self.out_features // _SMALLEST_TILE + 1
        self.register_buffer("arrived", torch.zeros(tiles, dtype=torch.int32, device=weight.device))

    @staticmethod
    def fits(outputs: int, inputs: int) -> bool:
        """Float8 products take sizes in sixteens."""
        return inputs % 16 == 0 and outputs % 16 == 0

    @classmethod
    def from_weight(cls, weight: Tensor, bias: Tensor | None) -> Self:
        """Each row's largest value becomes 448."""
        return cls(*_plain_rows(weight), bias)

    @classmethod
    def empty(cls, linear: nn.Linear) -> Self:
        """A layer of the same shape on the same device, with memory and no values."""
        device, (outputs, inputs) = linear.weight.device, linear.weight.shape
        weight = torch.empty(outputs, inputs, dtype=torch.float8_e4m3fn, device=device)
        scales = torch.empty(outputs, dtype=torch.float32, device=device)
        return cls(weight, scales, linear.bias)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self | None:
        """Rows are independent, so any layers with the same inputs can be joined."""
        if len({part.in_features for part in parts}) != 1:
            return None
        # Float8 tensors cannot be concatenated everywhere; their bytes can.
        weight = torch.cat([part.weight.view(torch.uint8) for part in parts])
        scales = torch.cat([part.scales for part in parts])
        return cls(weight.view(torch.float8_e4m3fn), scales, joined_bias(parts))

    def part(self, dim: int, pieces: Sequence[tuple[int, int]], bias: Tensor | None) -> Self:
        """See `Quantised.part`. A scale belongs to an output, whichever inputs it has."""
        weight = picked(self.weight.view(torch.uint8), dim, pieces).view(torch.float8_e4m3fn)
        return type(self)(weight, picked(self.scales, 0, pieces) if dim == 0 else self.scales, bias)

    def fill(self, std: float) -> None:
        """Random weights of this spread, made in place."""
        for start in range(0, self.out_features, _ROWS_AT_A_TIME):
            rows = self.weight[start : start + _ROWS_AT_A_TIME]
            values, scales = _plain_rows(torch.randn(rows.shape, device=rows.device) * std)
            rows.copy_(values)
            self.scales[start : start + _ROWS_AT_A_TIME] = scales
        self.arrived.zero_()

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """The weight [N, K] as ordinary numbers."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return (self.weight.to(wide) * self.scales[:, None].to(wide)).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """X [..., K] -> [..., N] in x's dtype."""
        rows = x.reshape(-1, self.in_features)
        fits = self.fits(self.out_features, self.in_features)
        if fits and kernels.usable(x) and multiplies_float8(x.device):
            out = self._scaled_product(rows)
        else:
            values, scales = _plain_rows(rows)
            wide = torch.float64 if x.dtype == torch.float64 else torch.float32
            out = functional.linear(values.to(wide), self.weight.to(wide))
            out = (out * scales[:, None] * self.scales).to(x.dtype)
            out = out if self.bias is None else out + self.bias.to(x.dtype)
        return out.view(*x.shape[:-1], self.out_features)

    def _scaled_product(self, rows: Tensor) -> Tensor:
        from manyhands.model.kernels.rows import quantise_rows
        from manyhands.model.kernels.skinny import product

        values, scales = quantise_rows(rows)
        if len(rows) <= _MOST_TOKENS:
            both = self.scales, scales.flatten()
            out = product(values, self.weight, self.bias, self.arrived, scales=both)
            return out.to(rows.dtype)
        wanted = torch.bfloat16  # the one result that products with scales per row can have
        out = torch._scaled_mm(
            values,
            self.weight.t(),
            scale_a=scales,
            scale_b=self.scales[None],
            bias=None if self.bias is None else self.bias.to(wanted),
            out_dtype=wanted,
        )
        return out.to(rows.dtype)


def picked(x: Tensor, dim: int, pieces: Sequence[tuple[int, int]]) -> Tensor:
    """Pieces of x along a dim, side by side, in memory of their own."""
    return torch.cat([x.narrow(dim, start, stop - start) for start, stop in pieces], dim=dim)


def joined_bias(parts: Sequence[Quantised]) -> Tensor | None:
    """The biases side by side, 0 where there is none; None if there is none at all."""
    known = [part.bias for part in parts if part.bias is not None]
    if not known:
        return None
    return torch.cat(
        [known[0].new_zeros(p.out_features) if p.bias is None else p.bias.detach() for p in parts]
    )


def _plain_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """X [T, N] -> values in e4m3 and the scale of each row, in float32: the twin of `kernels.rows`."""
    x = x.to(torch.float32)
    scales = x.abs().amax(dim=1).clamp(min=1e-12) / _TOP
    values = (x / scales[:, None]).clamp(-_TOP, _TOP).to(torch.float8_e4m3fn)
    return values, scales


def multiplies_float8(device: torch.device) -> bool:
    """Whether the device multiplies float8 by itself; elsewhere such layers save memory and no time."""
    return kernels.run_on(device) and torch.cuda.get_device_capability(device) >= (9, 0)
