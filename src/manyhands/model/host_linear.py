"""A linear layer on a CPU whose weight is laid out for its products once, when the network is loaded.

A product of few tokens is bound by reading the weight. torch's own reads at a third of what the memory gives, or
at less: on one core, SmolLM2-135M's took 50 ms of a pass with one token and 71 with four. Two libraries that come
with torch do better if they may choose the order of the numbers first:

    halves    FBGEMM, on x86 with AVX2: weights in float16, activations and sums in float32; 13 and 19 ms
    blocks    oneDNN: weights in float32; 44 and 52 ms

Halves are taken where float16 holds the weight: a checkpoint in float16, or in bfloat16, of which only numbers
below 6e-5 lose bits; the whole weight must lose less than `LOSS`, which is what float32 rounds away in a product
anyhow. So a network of halves gives the logits of float32 from half the bytes, and `quantise="fp16"` has it for
any checkpoint, whose weights are then rounded to float16 first. Long prompts take the same way: 512 tokens
cost nine tenths of torch's time (docs/cpu.md; measured by `benchmarks/cpu.py --products`).

For inference alone: nothing here has a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from manyhands.model.fingerprint import SUMS, sums_of_layer
from manyhands.model.products import shared_weights

Layout = Literal["halves", "blocks"]

# Of a weight: the norm of what float16 loses, over the norm of the weight.
LOSS = 1e-6


class HostLinear(nn.Module):
    """A linear layer [N, K] in float32 that holds its weight in the order of the library that multiplies."""

    def __init__(self, linear: nn.Linear, layout: Layout) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.layout: Layout = layout
        # oneDNN reads a bias without a look at its strides.
        weight = linear.weight.detach().contiguous()
        bias = None if linear.bias is None else linear.bias.detach().contiguous()
        self._product = _LIBRARIES[layout].lay_out(weight, bias)
        self.num_bytes = weight.numel() * _LIBRARIES[layout].width
        self.num_bytes += 0 if bias is None else bias.nbytes
        setattr(self, SUMS, sums_of_layer(linear))

    def forward(self, x: Tensor) -> Tensor:
        """X [..., K] -> [..., N], both float32."""
        if not x.numel():
            return x.new_empty(*x.shape[:-1], self.out_features)
        return self._product(x)

    def extra_repr(self) -> str:
        """As torch's own layer shows itself, with the layout."""
        return f"in_features={self.in_features}, out_features={self.out_features}, layout={self.layout}"


class LaidOut(NamedTuple):
    """How many layers got each layout."""

    halves: int
    blocks: int


def lay_out_linears(model: nn.Module) -> LaidOut:
    """Replace every ordinary linear layer in float32 on a CPU for which there is a library, side by side.

    A layer's own weight is let go when it is laid out, so no more than a few layers are held twice. The table of
    embeddings stays where it is, and an output layer that shares it is laid out beside it; layers that share a
    weight with each other are left alone.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    left = shared_weights(model) - tables
    places = [
        _Place(holder, name, id(child.weight) in tables)
        for holder in model.modules()
        for name, child in holder.named_children()
        if type(child) is nn.Linear and _is_here(child.weight) and id(child.weight) not in left
    ]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        made = list(pool.map(_lay_out, places))
    return LaidOut(made.count("halves"), made.count("blocks"))


class _Place(NamedTuple):
    """Where a layer hangs, and whether its weight stays with an embedding."""

    holder: nn.Module
    name: str
    stays: bool


def _lay_out(place: _Place) -> Layout | None:
    """Replace the layer at this place; None where no library has a layout for it."""
    linear: Any = getattr(place.holder, place.name)
    layout = layout_of(linear.weight)
    if layout not in _libraries():
        return None
    made = HostLinear(linear, layout)
    if place.stays:
        delattr(made, SUMS)
    setattr(place.holder, place.name, made)
    return layout


def laid_out_bytes(model: nn.Module) -> int:
    """Bytes of all weights that are laid out; they are no parameters of the network any more."""
    return sum(module.num_bytes for module in model.modules() if isinstance(module, HostLinear))


def layout_of(weight: Tensor) -> Layout:
    """The layout for a weight [N, K], by the bits it loses and by the libraries that are here."""
    return "halves" if "halves" in _libraries() and loses_nothing(weight) else "blocks"


def loses_nothing(weight: Tensor) -> bool:
    """Whether float16 holds these numbers: finite, and less than `LOSS` of them lost."""
    weight = weight.detach()
    lost = (weight - weight.half().to(weight.dtype)).norm()
    return bool(lost <= LOSS * weight.norm())


def _is_here(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32


# -- libraries -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Library:
    """`lay_out`: from a weight [N, K] and a bias to the product. `width`: bytes of a number."""

    lay_out: Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]]
    width: int


def _halves(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    ops: Any = torch.ops.quantized
    return functools.partial(_by_fbgemm, ops.linear_prepack_fp16(weight, bias))


def _by_fbgemm(packed: Any, x: Tensor) -> Tensor:
    product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, packed)
    return product


def _blocks(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    ops: Any = torch.ops.mkldnn
    return functools.partial(_by_onednn, ops._reorder_linear_weight(weight, None), bias)


def _by_onednn(blocks: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, blocks, bias, "none", [], "")
    return product


_LIBRARIES: dict[Layout, _Library] = {
    "halves": _Library(_halves, 2),
    "blocks": _Library(_blocks, 4),
}


@functools.cache
def _libraries() -> frozenset[Layout]:
    """The layouts that this torch and this processor have; each is tried, since what they need is not said."""
    return frozenset(layout for layout in _LIBRARIES if _works(layout))


def _works(layout: Layout) -> bool:
    weight, x = torch.arange(48.0).view(6, 8) / 64, torch.arange(24.0).view(3, 8) / 32
    try:
        made = _LIBRARIES[layout].lay_out(weight, weight[:, 0].contiguous())(x)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return torch.allclose(made, nn.functional.linear(x, weight, weight[:, 0]), rtol=1e-5, atol=1e-5)
