"""Eight bits with a scale for every block of 128 x 128: how FP8 checkpoints are published, and to ours.

DeepSeek-V3 (section 3.3.2 of its report, arXiv 2412.19437) introduced this layout, and Qwen3-8B-FP8 has it:

    weight             e4m3 [N, K]
    weight_scale_inv   float32 or bfloat16 [ceil(N / 128), ceil(K / 128)]
    weight[n, k] * weight_scale_inv[n // 128, k // 128] is the number that is meant

("inv", because the writer divides by its inverse.) A reader has two choices:

- `dequantised` gives the numbers that are meant, exact but for one rounding to the dtype.
- `to_layer` keeps eight bits. Our layer has one scale per output n, and these blocks have one for every
  128 inputs of it. Each output takes the largest of its scales, s. Numbers of blocks with that scale
  stay as they are; every other is rounded to e4m3 once more, and moves by at most 1/16 of itself or
  by s / 1024, whichever is more. Nothing is clipped. Where an output has one scale, nothing moves.

The tensors say which layers have eight bits: those with scales. `modules_to_not_convert` says it again, and
is not needed. Activations are "dynamic": their scales are found while the network runs. The layout means one
for every 128 inputs of a token; `Float8Linear` has one per token, and dequantised layers round none.

    N  outputs      K  inputs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from manyhands.errors import UnsupportedModel
from manyhands.model.quantised.linear import Float8Linear, multiplies_float8

BLOCK = 128
_HINT = "use an FP8 checkpoint with scales per block of 128 x 128, or one that is not quantised"
_SCALES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class BlockScales:
    """The layout above; there is nothing to choose in it."""

    method: ClassVar[str] = "fp8"
    kind: ClassVar[str] = "fp8"
    mark: ClassVar[str] = "weight_scale_inv"
    tensors: ClassVar[frozenset[str]] = frozenset({"weight", "weight_scale_inv"})
    optional: ClassVar[frozenset[str]] = frozenset()

    def kind_on(self, device: torch.device) -> str:
        """Eight bits where they save time; elsewhere the numbers as they are meant."""
        return self.kind if multiplies_float8(device) else "none"

    def to_layer(self, tensors: Mapping[str, Tensor], bias: Tensor | None) -> Float8Linear | None:
        """Our layer; None for a shape that it cannot have. UnsupportedModel for odd tensors."""
        weight, scales = _checked(tensors)
        if not Float8Linear.fits(*weight.shape):
            return None
        rows = _along(scales, 0, weight.shape[0])  # [N, ceil(K / 128)]
        top = rows.amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        factors = _along(rows / top[:, None], 1, weight.shape[1])
        values = (weight.to(torch.float32) * factors).to(torch.float8_e4m3fn)
        return Float8Linear(values, top, bias)

    def dequantised(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The weight [N, K] as ordinary numbers. UnsupportedModel for odd tensors."""
        weight, scales = _checked(tensors)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        factors = _along(_along(scales.to(wide), 0, weight.shape[0]), 1, weight.shape[1])
        return (weight.to(wide) * factors).to(dtype)


def read_block_scales(quantization: Mapping[str, Any]) -> BlockScales | None:
    """The layout, None for other methods; `UnsupportedModel` for what FP8 may be besides."""
    if str(quantization.get("quant_method", "")).lower() != "fp8":
        return None
    block = quantization.get("weight_block_size")
    if block is None:
        raise UnsupportedModel(
            "its FP8 weights have one scale per tensor (no weight_block_size), not per block of "
            f"{BLOCK} x {BLOCK}",
            hint=_HINT,
        )
    if block != [BLOCK, BLOCK] and block != (BLOCK, BLOCK):
        raise UnsupportedModel(
            f"its FP8 weights have blocks of {block!r} (weight_block_size), not [{BLOCK}, {BLOCK}]",
            hint=_HINT,
        )
    scheme = quantization.get("activation_scheme", "dynamic")
    if scheme != "dynamic":
        raise UnsupportedModel(
            f"its FP8 layers have {scheme!r} scales of activations (activation_scheme), not dynamic",
            hint=_HINT,
        )
    numbers = quantization.get("fmt", "e4m3")
    if numbers != "e4m3":
        raise UnsupportedModel(f"its FP8 weights are {numbers!r} (fmt), not e4m3", hint=_HINT)
    return BlockScales()


def _checked(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The weight [N, K] and its scales in float32."""
    weight, scales = tensors["weight"], tensors["weight_scale_inv"]
    if weight.dtype != torch.float8_e4m3fn or weight.dim() != 2:
        raise UnsupportedModel(
            f"an FP8 layer has a weight of {weight.dtype} {list(weight.shape)}, not float8_e4m3fn [N, K]",
            hint=_HINT,
        )
    blocks = [-(-size // BLOCK) for size in weight.shape]
    if scales.dtype not in _SCALES or list(scales.shape) != blocks:
        raise UnsupportedModel(
            f"an FP8 layer of {list(weight.shape)} weights has scales of {scales.dtype} "
            f"{list(scales.shape)}, not float32 or bfloat16 {blocks}",
            hint=_HINT,
        )
    scales = scales.to(torch.float32)
    if not bool((scales.isfinite() & (scales >= 0)).all()):
        raise UnsupportedModel(
            "an FP8 layer has scales that are negative or not finite",
            hint="the checkpoint is damaged; download it again",
        )
    return weight, scales


def _along(scales: Tensor, dim: int, size: int) -> Tensor:
    """Each scale for the 128 numbers that share it; the last block may be shorter."""
    return scales.repeat_interleave(BLOCK, dim=dim).narrow(dim, 0, size)
