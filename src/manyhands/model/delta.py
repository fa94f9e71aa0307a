"""Linear layers by kernels: the layers of Qwen3-Next and Qwen3.5, between their first products and their last one.

Where rows write, each is fed one token, and such a layer reads and writes a matrix for each head to compute next to nothing with it.
Hugging Face's own forward makes some sixty launches of that, nine of which go over all matrices of all rows (by reading it). Here it is
the layer's own projections and two kernels between them (`kernels/delta.py`), which find states in their slots. Of rows that are fed more tokens
that forward makes hundreds of launches, for each group of rows that are fed equally many: here it is four kernels for rows of all lengths
(`kernels/delta_many.py`), whose chunks are cut out in `waves.py`.

Hugging Face's forward is the twin: it runs on a CPU, and wherever a layer is not what is expected here (`DeltaLayer.of`).

    T  tokens of the pass, row by row      D  hidden size      C  channels of the convolution
    H  heads of values                     Dk, Dv  dims of a key and of a value
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from manyhands.model import kernels
from manyhands.model.layers import Products
from manyhands.model.products import APART, IN_TURNS, JOINED, projections_of
from manyhands.model.waves import Wave

_SILU = ("silu", "swish")
_MOST = 256  # dims of a key or a value: a state is in the registers of one program


class _Projected(NamedTuple):
    """A layer's products of its input, before anything else; tokens may stand apart from each other."""

    qkv: Tensor  # [T, C]: queries and keys of all heads, then values
    gate: Tensor  # [T, H Dv]
    b: Tensor  # [T, H]
    a: Tensor  # [T, H]


class DeltaLayer:
    """The forward of one layer."""

    def __init__(self, module: Any) -> None:
        """`module`: a layer of which `of` has found that it is one."""
        self._module = module

    @classmethod
    def of(cls, module: nn.Module) -> DeltaLayer | None:
        """The forward of a layer; None if it is not built as those that are known here."""
        layer: Any = module
        try:
            norm, conv = layer.norm, layer.conv1d
            are_plain = conv.bias is None and layer.activation in _SILU and norm.activation in _SILU
            sizes = layer.key_dim, layer.value_dim
            heads = layer.num_k_heads * layer.head_k_dim, layer.num_v_heads * layer.head_v_dim
            is_known = sizes == heads and layer.conv_dim == 2 * sizes[0] + sizes[1]
            fits = max(layer.head_k_dim, layer.head_v_dim) <= _MOST
            has_parts = all(
                isinstance(each, Tensor) for each in (layer.A_log, layer.dt_bias, norm.weight)
            )
        except AttributeError:
            return None
        has_products = projections_of(layer) is not None
        is_whole = are_plain and is_known and fits and has_parts and has_products
        return cls(layer) if is_whole and isinstance(norm.variance_epsilon, float) else None

    def serves(self, hidden: Tensor) -> bool:
        """Whether the kernels can work on this input, of this dtype on this device."""
        module = self._module
        dtypes = {module.conv1d.weight.dtype, module.norm.weight.dtype, hidden.dtype}
        return kernels.usable(hidden) and len(dtypes) == 1

    def __call__(
        self, hidden: Tensor, inputs: Tensor, states: Tensor, waves: Sequence[Wave]
    ) -> Tensor:
        """The layer's output [T, D] for `hidden` [T, D], the tokens of the rows of these waves.

        Each row goes on from the states in its source, a slot of `inputs` and `states` (`recurrent.py::StateStore`), and leaves its own in
        its target. No slot is both in one wave.
        """
        from manyhands.model.kernels import delta, delta_many

        module = self._module
        first = _projected(module, hidden)
        x, taps = first.qkv, module.conv1d.weight.squeeze(1)
        weights = module.A_log, module.dt_bias, module.norm.weight
        sizes = module.num_k_heads, module.norm.variance_epsilon
        qkv, told = x.new_empty(x.shape), x.new_empty(first.gate.shape)
        made = delta.DeltaProducts(qkv, first.gate, first.a, first.b, *weights, *sizes)
        for wave in waves:
            sources, targets = wave.sources, wave.targets
            if count := wave.num_single:
                own, left, tokens = sources[:count], targets[:count], wave.single_tokens
                delta.convolve(x, taps, inputs, own, left, made.qkv, tokens)
                delta.step(made, states, own, left, told, tokens)
            if wave.cuts:
                delta_many.convolve(x, taps, inputs, sources, targets, wave.chunks, made.qkv)
            for cut in wave.cuts:
                delta_many.rule(made, states, sources, targets, cut.chunks, cut.pieces, told)
        out: Tensor = module.out_proj(told)
        return out


def _projected(module: Any, hidden: Tensor) -> _Projected:
    """The products of a layer for `hidden` [T, D], by the modules that it has now: they may have been exchanged."""
    if isinstance(joined := getattr(module, JOINED, None), Products):
        sizes = module.conv_dim, module.value_dim, module.num_v_heads, module.num_v_heads
        return _Projected(*joined.linear(hidden).split(sizes, dim=-1))
    if hasattr(module, IN_TURNS[0]):
        whole, small = (getattr(module, name)(hidden) for name in IN_TURNS)
        *qkv, gate, b, a = module.fix_query_key_value_ordering(whole[None], small[None])
        joint = torch.cat([each[0].flatten(1) for each in qkv], dim=-1)
        return _Projected(joint, gate[0].flatten(1), b[0], a[0])
    return _Projected(*(getattr(module, name)(hidden) for name in APART))
