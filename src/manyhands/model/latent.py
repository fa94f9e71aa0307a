"""Multi-head latent attention in two forms: the seam for networks that cache latents (MLA).

Such a layer (DeepSeek-V2, arXiv 2405.04434, section 2.1) makes of every token a latent c, and of that the keys and
values of all heads by one matrix, `kv_b_proj`: k = [W_uk c | k_pe], v = W_uv c, where k_pe is a small rotated key that
all heads share. Hugging Face's code keeps latents in its cache and expands them at every pass, in one method of its
attention modules, `expand_kv`. That method is the seam: here it hands latents on as they are,

    k = [ k_pe | c ]        v = c        one key/value head

and the matrix goes to the other side of the products (the same paper, section 2.1.2), before and behind attention:

    scores = q_pe . k_pe + q_nope . (W_uk c) = [ q_pe | W_uk^T q_nope ] . [ k_pe | c ]
    out    = sum_j p_j (W_uv c_j)            = W_uv (sum_j p_j c_j)

That is the absorbed form. Who attends may ask for the expanded one instead, which makes k and v of the latents that
are read, of all heads: more numbers to load, and less arithmetic for each pair of a query and a key. All else, the norms,
the small products and the scaling, stays with the modelling code.

    T  new tokens      H  query heads      N, R  unrotated and rotated dims of a head's query      C  dims of c
    Dv  dims of a head's value
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from manyhands.attention.store import LayerShape
from manyhands.model.lora import LoraLinear
from manyhands.model.quantised.linear import Quantised


def is_latent(config: Any) -> bool:
    """Whether this configuration is of a network with multi-head latent attention."""
    return bool(getattr(config, "kv_lora_rank", None))


def latent_shape(config: Any) -> LayerShape:
    """The heads of its layers in the absorbed form."""
    rank = int(config.kv_lora_rank)
    return LayerShape(
        num_heads=config.num_attention_heads,
        num_kv_heads=1,
        head_dim=rank + int(config.qk_rope_head_dim),
        value_dim=rank,
        is_latent=True,
    )


def expanded_shape(config: Any) -> LayerShape:
    """The heads of its layers in the expanded form."""
    num_heads = config.num_attention_heads
    return LayerShape(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=int(config.qk_nope_head_dim) + int(config.qk_rope_head_dim),
        value_dim=int(config.v_head_dim),
        is_expanded=True,
    )


def absorb(model: nn.Module) -> int:
    """Let the attention modules of a network hand on latents; how many there are.

    `kv_b_proj` becomes a `MatrixLinear`, with the numbers that it had if it was stored in fewer bits.
    """
    count = 0
    for module in model.modules():
        if not is_absorbable(module):
            continue
        module.expand_kv = _handed_on  # type: ignore[assignment]  # nn.Module types attributes as modules
        if not isinstance(module.kv_b_proj, MatrixLinear):
            module.kv_b_proj = MatrixLinear.of(module.kv_b_proj, model)
        count += 1
    return count


def is_absorbable(module: nn.Module) -> bool:
    """Whether this is an attention module whose latents one method expands by one matrix."""
    return hasattr(module, "expand_kv") and hasattr(module, "kv_b_proj")


def is_absorbed(module: nn.Module) -> bool:
    """Whether this module hands on latents."""
    return vars(module).get("expand_kv") is _handed_on


class MatrixLinear(nn.Linear):
    """A linear layer that is read as a matrix and never called, so no faster product may take its place."""

    @classmethod
    def of(cls, layer: Any, model: Any) -> Self:
        """The same layer: it holds the very parameters of `layer`; unpacked if that is quantised."""
        own = cls(1, 1, bias=False, device="meta")
        own.in_features, own.out_features = layer.in_features, layer.out_features
        if isinstance(layer, Quantised):
            own.weight = nn.Parameter(layer.dequantised(model.dtype), requires_grad=False)
        else:
            own.weight = layer.weight
        return own


class Expansion:
    """The matrix of one layer, [H (N + Dv), C], on either side of the products (`attention.attend.LatentForms`).

    Its parts are views of the layer's own weight: nothing is stored twice, and gradients reach it.
    """

    def __init__(self, module: Any, gain: float = 1.0) -> None:
        """`gain` is for the rotated dims of queries alone: the rounding of YaRN's factor, see `ropes._gain`."""
        self._gain = gain
        self._rope_dim = int(module.qk_rope_head_dim)
        self._bare_dim = int(module.qk_nope_head_dim)
        self._weight = _weight(module.kv_b_proj)
        by_head = self._weight.unflatten(0, (-1, self._bare_dim + module.v_head_dim))
        self._of_keys = by_head[:, : self._bare_dim]  # W_uk [H, N, C]
        self._of_values = by_head[:, self._bare_dim :]  # W_uv [H, Dv, C]

    def queries(self, q: Tensor) -> Tensor:
        """For the absorbed form, of q [T, H, N + R], rotated dims last: [T, H, R + C], rotated dims first."""
        rotary, bare = self._parts(q)
        latent = torch.bmm(bare.transpose(0, 1), self._of_keys).transpose(0, 1)
        return torch.cat((rotary, latent), dim=-1)

    def values(self, out: Tensor) -> Tensor:
        """Of sums of latents [T, H, C], as the absorbed form gives: those of values [T, H, Dv]."""
        return torch.bmm(out.transpose(0, 1), self._of_values.transpose(1, 2)).transpose(0, 1)

    def expanded_queries(self, q: Tensor) -> Tensor:
        """For the expanded form, of q [T, H, N + R], rotated dims last: [T, H, R + N], rotated dims first."""
        return torch.cat(self._parts(q), dim=-1)

    def keys_and_values(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Of latents [S, C]: the dims of keys that do not rotate, [S, H, N], and values [S, H, Dv]."""
        heads = nn.functional.linear(latents, self._weight)
        heads = heads.unflatten(-1, (len(self._of_keys), -1))
        return heads[..., : self._bare_dim], heads[..., self._bare_dim :]

    def _parts(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """The dims of q that rotate, times the gain, and the others."""
        bare, rotary = q[..., : -self._rope_dim], q[..., -self._rope_dim :]
        return rotary if self._gain == 1.0 else rotary * self._gain, bare


def _handed_on(latent: Tensor, k_pe: Tensor) -> tuple[Tensor, Tensor]:
    """In the place of `expand_kv`: of c [1, 1, T, C] and k_pe [1, 1, T, R] the key, and c in it."""
    key = torch.cat((k_pe, latent), dim=-1)
    return key, key[..., k_pe.shape[-1] :]


def _weight(layer: Any) -> Tensor:
    if isinstance(layer, LoraLinear):
        return layer.merged()
    weight: Tensor = layer.weight
    return weight
