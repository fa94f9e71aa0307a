"""Rotary position embeddings (RoPE) as pure rotations by integer offsets.

An offset is a place on a strip's ruler. A key is stored rotated by its own, a query is rotated by the one
that it has on the ruler of the strip it reads (Hogwild! Inference, section 3.4), and a key that moves by
the difference of two. All are the same function of an integer, and only here an angle is made of one.

A rotation is pure: YaRN's attention factor is not part of it. The network applies that factor once,
when it makes q and k; applying it at every rotation is a bug that costs logits whole units.

    T  tokens      H  heads (of queries or of keys)      D  head dim
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rope:
    """How one layer rotates: which of the first dims, in what pairs, how fast.

    `inv_freq` [rotary_dim / 2] float32 or float64, radians per position. Pairs are (i, i + half) of
    the first `rotary_dim` dims, or (2i, 2i + 1) when `interleaved`. Dims beyond are left alone.
    """

    inv_freq: Tensor
    rotary_dim: int
    interleaved: bool = False

    def __post_init__(self) -> None:
        assert self.inv_freq.shape == (self.rotary_dim // 2,), (
            self.inv_freq.shape,
            self.rotary_dim,
        )

    def same_rotation(self, other: Rope) -> bool:
        """True when both rotate every vector alike, so that their tables can be shared."""
        return (
            self.rotary_dim == other.rotary_dim
            and self.interleaved == other.interleaved
            and torch.equal(self.inv_freq, other.inv_freq)
        )


def tables(offsets: Tensor, rope: Rope, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of a rotation by `offsets` [...]: two tensors [..., rotary_dim / 2].

    The angle is formed in the precision of `inv_freq`, at least float32: in bfloat16 a
    position beyond 256 is not even a number of its own.
    """
    radians = offsets.to(rope.inv_freq.dtype).unsqueeze(-1) * rope.inv_freq
    return radians.cos().to(dtype), radians.sin().to(dtype)


def apply_rotation(x: Tensor, cos: Tensor, sin: Tensor, rope: Rope) -> Tensor:
    """Rotate `x` [..., H, D] by tables `cos`, `sin` [..., rotary_dim / 2]; computed in their dtype."""
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    rotary, rest = x[..., : rope.rotary_dim].to(cos.dtype), x[..., rope.rotary_dim :]
    if rope.interleaved:
        first, second = rotary[..., 0::2], rotary[..., 1::2]
        pairs = (first * cos - second * sin, second * cos + first * sin)
        out = torch.stack(pairs, dim=-1).flatten(-2)
    else:
        first, second = rotary.chunk(2, dim=-1)
        out = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    out = out.to(x.dtype)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out


class Rotations:
    """Integer offsets [...] and the tables made of them: each once per rope, shared by all layers."""

    def __init__(self, offsets: Tensor) -> None:
        self.offsets = offsets
        self._tables: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def to(self, device: torch.device) -> Rotations:
        """The same rotations on another device."""
        return Rotations(self.offsets.to(device, non_blocking=True))

    def rotate(self, x: Tensor, rope: Rope | None) -> Tensor:
        """Rotate `x` [..., H, D] by the offsets [...], in float32 (float64 for float64 input).

        `rope=None` is a layer without positions (NoPE): `x` comes back untouched.
        """
        if rope is None:
            return x
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        key = (id(rope), work)
        if key not in self._tables:
            self._tables[key] = tables(self.offsets, rope, work)
        return apply_rotation(x, *self._tables[key], rope)


def rotate(x: Tensor, offsets: Tensor, rope: Rope | None) -> Tensor:
    """Rotate `x` [..., H, D] by integer `offsets` [...] once. See `Rotations.rotate`."""
    return Rotations(offsets).rotate(x, rope)
