"""A linear layer with weights of four bits in groups, and activations as they are.

    w[n, k] = (q[n, k] - zero[g, n]) * scale[g, n] + offset[g, n]        g = k // group

`q` and `zero` are whole numbers from 0 to 15. AWQ and GPTQ (see `packing`) publish exactly these numbers,
each in its own order of bits; here they are put into the one order that our kernel reads (`pack`). Zeros and
scales keep the values of the checkpoint. GPTQ may have quantised the inputs in another order than
they come in ("act-order"): then `order` says in which, and the inputs are picked in that order first.
Groups of GGUF's Q4_1 begin at any number, which no whole `zero` can say: these have offsets. What they add
to a product is a small product of its own, of the offsets and the sums of each group of inputs.

    N  outputs      K  inputs      G  groups of inputs
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.errors import UnsupportedModel
from manyhands.model import kernels
from manyhands.model.quantised.linear import Quantised, joined_bias, picked

GROUPS = (128, 64, 32)  # sizes that the kernel can have
BLOCK, STEP = 64, 32  # outputs and inputs whose numbers lie together, see `pack`
# Beyond so many tokens the weights are unpacked once and an ordinary product is made with them.
_MOST_TOKENS = 256
_LEVELS, _MIDDLE = 15, 8


class Int4Linear(Quantised):
    """Four-bit weights; `group` inputs share a scale and a zero."""

    packed: Tensor  # int32 [N / 64, K / 32, 256], see `pack`
    scales: Tensor  # float16 or bfloat16 [G, N]; in float32 only in the slower way, see `_is_for`
    zeros: Tensor  # bytes [G, N]
    order: Tensor | None  # int32 [K]: the input that stands at each place; None: as they come
    offsets: Tensor | None  # float32 [G, N]; None: all are 0
    arrived: Tensor  # zeros for the kernel, see there

    def __init__(
        self,
        packed: Tensor,
        scales: Tensor,
        zeros: Tensor,
        bias: Tensor | None,
        order: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        super().__init__(packed.shape[1] * STEP, scales.shape[1], bias)
        self.group = self.in_features // scales.shape[0]
        for name, buffer in (("packed", packed), ("scales", scales), ("zeros", zeros)):
            self.register_buffer(name, buffer.contiguous())
        self.register_buffer("order", order)
        self.register_buffer("offsets", offsets)
        tiles = (self.out_features // 32 + 1) * (_MOST_TOKENS // 16)
        self.register_buffer("arrived", packed.new_zeros(tiles, dtype=torch.int32))

    @staticmethod
    def fits(outputs: int, inputs: int) -> bool:
        """Groups of inputs must come out even."""
        return group_for(inputs) is not None

    @classmethod
    def from_weight(cls, weight: Tensor, bias: Tensor | None) -> Self:
        """Round to nearest: each group's smallest and largest value become 0 and 15."""
        group = group_for(weight.shape[1])
        assert group is not None, "the caller asks `fits` first"
        grouped = weight.detach().to(torch.float32).reshape(weight.shape[0], -1, group)
        low = grouped.amin(dim=-1).clamp(max=0)
        high = grouped.amax(dim=-1).clamp(min=0)
        scales = ((high - low) / _LEVELS).clamp(min=1e-6).to(torch.float16)
        wide = scales.to(torch.float32)
        zeros = (-low / wide).round().clamp(0, _LEVELS)
        q = (grouped / wide[..., None] + zeros[..., None]).round().clamp(0, _LEVELS)
        packed = pack(q.to(torch.uint8).flatten(1))
        return cls(packed, scales.t(), zeros.to(torch.uint8).t(), bias)

    @classmethod
    def empty(cls, linear: nn.Linear) -> Self:
        """A layer of the same shape on the same device, with memory and no values."""
        device, (outputs, inputs) = linear.weight.device, linear.weight.shape
        groups = inputs // (group_for(inputs) or inputs)
        return cls(
            torch.empty(_shape(outputs, inputs), dtype=torch.int32, device=device),
            torch.empty(groups, outputs, dtype=torch.float16, device=device),
            torch.empty(groups, outputs, dtype=torch.uint8, device=device),
            linear.bias,
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self | None:
        """Outputs are independent; groups and the order of inputs must be the same."""
        first = parts[0]
        for part in parts:
            alike = (part.in_features, part.group, part.scales.dtype) == (
                *(first.in_features, first.group, first.scales.dtype),
            )
            if not alike or not _same(part.order, first.order):
                return None
        offsets = [part.offsets for part in parts if part.offsets is not None]
        if offsets and len(offsets) != len(parts):
            return None
        return cls(
            _side_by_side(parts),
            torch.cat([part.scales for part in parts], dim=1),
            torch.cat([part.zeros for part in parts], dim=1),
            joined_bias(parts),
            first.order,
            torch.cat(offsets, dim=1) if offsets else None,
        )

    def part(self, dim: int, pieces: Sequence[tuple[int, int]], bias: Tensor | None) -> Self:
        """See `Quantised.part`. Inputs are parted between groups; larger groups are divided for it."""
        if dim == 0:
            return type(self)(
                _rows_of(self.packed, self.out_features, pieces),
                picked(self.scales, 1, pieces),
                picked(self.zeros, 1, pieces),
                bias,
                self.order,
                None if self.offsets is None else picked(self.offsets, 1, pieces),
            )
        if self.order is not None:
            raise UnsupportedModel(
                "its groups of inputs were formed in another order than the inputs come in (act-order), "
                "so no part of the inputs has groups of its own",
                hint='use a checkpoint without act-order, or quantise="none", or ranks=1',
            )
        ends = [end for piece in pieces for end in piece]
        group = math.gcd(self.group, *ends, sum(stop - start for start, stop in pieces))
        if group not in GROUPS:
            raise UnsupportedModel(
                f"parts of {pieces[0][1] - pieces[0][0]} inputs do not fall between its groups of "
                f"{self.group} inputs, nor between groups of {GROUPS[-1]}",
                hint='use fewer ranks, or quantise="none"',
            )
        finer = self.group // group
        scales, zeros = (x.repeat_interleave(finer, dim=0) for x in (self.scales, self.zeros))
        groups = [(start // group, stop // group) for start, stop in pieces]
        numbers = picked(unpack(self.packed, self.out_features), 1, pieces)
        scales, zeros = (picked(x, 0, groups) for x in (scales, zeros))
        offsets = self.offsets
        if offsets is not None:
            offsets = picked(offsets.repeat_interleave(finer, dim=0), 0, groups)
        return type(self)(pack(numbers), scales, zeros, bias, None, offsets)

    def fill(self, std: float) -> None:
        """Random weights of about this spread, made in place: numbers from 1 to 15, and 8 twice as often.

        Their mean is the zero. Numbers from 0 to 15 have a mean of 7.5: half a step is little for a weight, but thousands
        of inputs add it up alike, and the logits of all rows would be one vector, with one sign or the other.
        """
        pairs = self.packed.view(torch.uint8)
        pairs.random_(0, 256)
        for ones, middle in ((0x0F, _MIDDLE), (0xF0, _MIDDLE << 4)):
            pairs |= ((pairs & ones) == 0).to(torch.uint8) * middle
        self.scales.fill_(std / 4.18)  # their spread
        self.zeros.fill_(_MIDDLE)
        self.arrived.zero_()

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """The weight [N, K] as ordinary numbers, inputs in the order in which they come."""
        weight = self._unpacked(dtype)
        if self.order is None:
            return weight
        back = torch.empty_like(weight)
        back[:, self.order.long()] = weight
        return back

    def forward(self, x: Tensor) -> Tensor:
        """X [..., K] -> [..., N] in x's dtype."""
        rows = self._rows(x)
        if self._is_for(rows):
            out = self._product(rows, None)
            if self.offsets is not None:
                out = out + self._of_offsets(rows)
        else:
            bias = None if self.bias is None else self.bias.to(rows.dtype)
            out = functional.linear(rows, self._unpacked(rows.dtype), bias)
        return out.view(*x.shape[:-1], self.out_features)

    def gated(self, x: Tensor, activation: str) -> Tensor | None:
        """act(gate) * up [..., N / 2] of x [..., K], gates first; None if that takes another way."""
        whole = self.out_features % (2 * BLOCK) == 0 and self.offsets is None
        if not whole or not self._is_for(x):
            return None
        return self._product(self._rows(x), activation).view(*x.shape[:-1], self.out_features // 2)

    def _rows(self, x: Tensor) -> Tensor:
        """X [..., K] as [T, K], in the order in which the weights are packed."""
        rows = x.reshape(-1, self.in_features)
        return rows if self.order is None else rows.index_select(1, self.order)

    def _is_for(self, x: Tensor) -> bool:
        """Whether our kernel takes such x: it reads x and scales of sixteen bits."""
        few = x.numel() <= _MOST_TOKENS * self.in_features
        is_halved = self.scales.dtype != torch.float32
        return few and is_halved and kernels.usable(x) and x.dtype != torch.float32

    def _product(self, rows: Tensor, activation: str | None) -> Tensor:
        from manyhands.model.kernels.w4a16 import product

        parts = (self.packed, self.scales, self.zeros, self.bias)
        return product(rows, *parts, self.group, self.arrived, activation=activation)

    def _of_offsets(self, rows: Tensor) -> Tensor:
        """The terms that the offsets add to the product of inputs [T, K]: [T, N]."""
        assert self.offsets is not None
        sums = rows.view(rows.shape[0], -1, self.group).sum(dim=-1, dtype=torch.float32)
        return (sums @ self.offsets).to(rows.dtype)

    def _unpacked(self, dtype: torch.dtype) -> Tensor:
        """The weight [N, K], inputs in the order in which they are packed."""
        weight = self._without_offsets(dtype if self.offsets is None else _wide(dtype))
        if self.offsets is None:
            return weight
        grouped = weight.view(self.out_features, -1, self.group)
        return (grouped + self.offsets.t()[..., None].to(weight.dtype)).flatten(1).to(dtype)

    def _without_offsets(self, dtype: torch.dtype) -> Tensor:
        if dtype != torch.float64 and kernels.run_on(self.packed.device):
            from manyhands.model.kernels.w4a16 import dequantise

            return dequantise(self.packed, self.scales, self.zeros, self.group, dtype)
        wide = _wide(dtype)
        q = unpack(self.packed, self.out_features).view(self.out_features, -1, self.group).to(wide)
        zeros, scales = (x.t()[..., None].to(wide) for x in (self.zeros, self.scales))
        weight: Tensor = ((q - zeros) * scales).flatten(1).to(dtype)
        return weight


def group_for(inputs: int) -> int | None:
    """The largest group that the kernel has and that divides this number of inputs."""
    return next((group for group in GROUPS if inputs % group == 0), None)


def pack(q: Tensor) -> Tensor:
    """Whole numbers 0 … 15 [N, K] -> int32 [N / 64, K / 32, 256]: 64 outputs and 32 inputs lie together.

    Each of 32 threads has eight of these outputs and eight of these inputs, in words of eight numbers and
    in the order in which tensor cores want them from it, so that nothing need be moved:

        output  64 block + 8 g + 4 p + 2 r + h        thread  4 g + t
        input   32 step + 8 t + 4 j + 2 c + e         word    128 p + 4 thread + 2 r + j
                                                      bits    from 4 (4 e + 2 c + h)

    Outputs that a last block lacks are 0.
    """
    outputs, inputs = q.shape
    blocks, steps, _ = _shape(outputs, inputs)
    whole = functional.pad(q, (0, 0, 0, blocks * BLOCK - outputs)).to(torch.int32)
    named = whole.view(blocks, 8, 2, 2, 2, steps, 4, 2, 2, 2)  # block g p r h, step t j c e
    eights = named.permute(0, 5, 2, 1, 6, 3, 7, 9, 8, 4).reshape(blocks, steps, 256, 8)
    words = eights[..., 0]
    for place in range(1, 8):
        words = words | eights[..., place] << 4 * place  # the highest bit becomes the sign
    return words.contiguous()


def without_nothing(q: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Numbers [N, K], those of groups with a scale of 0 exchanged for their zeros (scales and zeros [G, N]).

    The weights are the same. But our kernel in compact form adds up products of numbers less their zeros in units of scales, and 2^-24
    stands in the place of 0 there.
    """
    nothing = (scales == 0).t()[..., None]
    if not bool(nothing.any()):
        return q
    grouped = q.unflatten(1, (len(scales), -1))
    return torch.where(nothing, zeros.t()[..., None].to(q.dtype), grouped).flatten(1)


def unpack(packed: Tensor, outputs: int) -> Tensor:
    """The bytes that `pack` packed: int32 [N / 64, K / 32, 256] -> bytes [N, K]."""
    blocks, steps, _ = packed.shape
    eights = torch.stack([(packed >> 4 * i & 0xF).to(torch.uint8) for i in range(8)], dim=-1)
    named = eights.view(blocks, steps, 2, 8, 4, 2, 2, 2, 2, 2)  # block, step, p g t r j, e c h
    ordered = named.permute(0, 3, 2, 5, 9, 1, 4, 6, 8, 7)
    return ordered.reshape(blocks * BLOCK, steps * STEP)[:outputs]


def _shape(outputs: int, inputs: int) -> tuple[int, int, int]:
    """Of packed numbers."""
    return -(-outputs // BLOCK), inputs // STEP, 256


def _side_by_side(parts: Sequence[Int4Linear]) -> Tensor:
    """The packed outputs of all these layers."""
    if all(part.out_features % BLOCK == 0 for part in parts[:-1]):
        return torch.cat([part.packed for part in parts])
    return pack(torch.cat([unpack(part.packed, part.out_features) for part in parts]))


def _rows_of(packed: Tensor, outputs: int, pieces: Sequence[tuple[int, int]]) -> Tensor:
    """These outputs, packed; whole blocks are taken as they are."""
    if all(end % BLOCK == 0 for piece in pieces for end in piece):
        blocks = [(start // BLOCK, stop // BLOCK) for start, stop in pieces]
        return picked(packed, 0, blocks)
    return pack(picked(unpack(packed, outputs), 0, pieces))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)
