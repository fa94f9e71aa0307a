"""Tensors of a GGUF file, by the names that transformers gives them.

Linear layers in Q4_0 and Q4_1 are handed on as `NAME.blocks`, the bytes as they are, so that a layer can keep
its four bits; all others are unpacked, as `NAME.weight`. A block of 32 weights is, in bytes:

    Q4_0   scale (float16), 16 bytes                  w = (q - 8) * scale
    Q4_1   scale, lowest (float16), 16 bytes          w = q * scale + lowest

where byte j holds weight j in its lower four bits and weight j + 16 in its higher ones.

    N  outputs      K  inputs      G  groups of 32 inputs
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from manyhands.errors import UnsupportedModel, install_hint
from manyhands.hub import damaged
from manyhands.model.gguf.config import ROPE_FACTORS, architecture_of
from manyhands.model.gguf.header import Header, TensorAt
from manyhands.model.quantised.w4a16 import Int4Linear, pack, without_nothing

GROUP = 32
PACKED = frozenset({"Q4_0", "Q4_1"})
_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def name_of(name: str) -> str:
    """The name of a tensor in transformers; a name that is not known stays what it is."""
    stem, _, last = name.rpartition(".")
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{last}"
    block, _, part = stem.partition(".")
    index, _, part = part.partition(".")
    if block == "blk" and part in _INSIDE:
        return f"model.layers.{index}.{_INSIDE[part]}.{last}"
    return name


class GgufTensors:
    """The tensors of a file, each read when it is asked for (as safetensors' files are)."""

    def __init__(self, header: Header, heads: Mapping[str, int], device: torch.device) -> None:
        """`heads`: how many the rows of `attn_q` and `attn_k` belong to."""
        self._header, self._device = header, device
        self._heads = heads if architecture_of(header).twisted else {}
        self._places: dict[str, TensorAt] = {}
        for name, place in header.tensors.items():
            if name != ROPE_FACTORS:
                ours = name_of(name)
                if is_packed(place):
                    ours = ours.removesuffix("weight") + Blocks.mark
                if ours in self._places:
                    first = self._places[ours].name
                    raise damaged(
                        str(header.path), f"two tensors for one place: {first} and {name}"
                    )
                self._places[ours] = place

    def keys(self) -> list[str]:
        """All names."""
        return list(self._places)

    def check_shapes(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ModelNotFound for a tensor of another shape: before it is read, as it may be larger than all memory."""
        for key, place in self._places.items():
            name = key.removesuffix(Blocks.mark) + "weight" if is_packed(place) else key
            if name in expected and place.shape != expected[name]:
                raise damaged(
                    str(self._header.path),
                    f"weights of another shape than its configuration: {name} ({place.name}) {place.shape}, "
                    f"expected {expected[name]}",
                )

    def get_tensor(self, key: str) -> Tensor:
        """A tensor on the device: ordinary numbers, or bytes [N, G, 18 or 20] of blocks."""
        place = self._places[key]
        tensor = read_blocks(self._header, place) if is_packed(place) else read(self._header, place)
        part = place.name.split(".")[-2]
        if part in self._heads:
            tensor = _untwisted(tensor, self._heads[part], place, self._header)
        return tensor.to(self._device)


class Blocks:
    """The layout (see `packed_checkpoint.Layout`) of layers in Q4_0 and Q4_1."""

    method: ClassVar[str] = "gguf"
    kind: ClassVar[str] = "int4"
    mark: ClassVar[str] = "blocks"
    tensors: ClassVar[frozenset[str]] = frozenset({"blocks"})
    optional: ClassVar[frozenset[str]] = frozenset()

    def kind_on(self, device: torch.device) -> str:
        """Four bits on a GPU; a CPU would unpack them for every product."""
        return self.kind if device.type == "cuda" else "none"

    def to_layer(self, tensors: Mapping[str, Tensor], bias: Tensor | None) -> Int4Linear:
        """Our layer with the same numbers."""
        q, scales, lowest = _split(tensors["blocks"])
        zeros = torch.full_like(scales, 8, dtype=torch.uint8)
        offsets = None
        if lowest is not None:
            # Around the middle both parts of w are small, and so is what 16 bits round away of them.
            offsets = lowest.float() + 8 * scales.float()
        numbers = without_nothing(q.flatten(1), scales, zeros)
        return Int4Linear(pack(numbers), scales, zeros, bias, offsets=offsets)

    def dequantised(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The weight [N, K] as ordinary numbers."""
        q, scales, lowest = _split(tensors["blocks"])
        scale = scales.t()[..., None].float()
        if lowest is None:
            weight = (q.float() - 8) * scale
        else:
            weight = q.float() * scale + lowest.t()[..., None].float()
        return weight.flatten(1).to(dtype)


def is_packed(place: TensorAt) -> bool:
    """Whether the tensor is handed on in four bits."""
    is_linear = place.name.startswith("blk.") and place.name.endswith(".weight")
    return is_linear and len(place.shape) == 2 and place.kind.name in PACKED


def read(header: Header, place: TensorAt) -> Tensor:
    """A tensor as ordinary numbers, on the CPU: in its own dtype, or float32 if it was in blocks."""
    found = _bytes(header, place)
    if place.kind.name in _PLAIN:
        return torch.from_numpy(found).view(_PLAIN[place.kind.name]).view(place.shape)
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise UnsupportedModel(
            f"the GGUF file {str(header.path)!r} has weights in {place.kind.name}, and the package gguf, which "
            "unpacks them, is not installed",
            hint=install_hint("gguf"),
        ) from error
    rows = found.reshape(*place.shape[:-1], -1)
    try:
        unpacked: Any = dequantize(rows, GGMLQuantizationType(place.number))
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"the package gguf cannot unpack {place.kind.name} ({place.name} of {str(header.path)!r})",
            hint="use a file in another quantisation",
        ) from error
    return torch.from_numpy(unpacked).view(place.shape)


def read_blocks(header: Header, place: TensorAt) -> Tensor:
    """Bytes [N, G, 18 or 20]."""
    rows = torch.from_numpy(_bytes(header, place))
    return rows.view(place.shape[0], -1, place.kind.size)


def _bytes(header: Header, place: TensorAt) -> np.ndarray[Any, Any]:
    found = np.fromfile(header.path, dtype=np.uint8, count=place.size, offset=place.start)
    if len(found) != place.size:
        raise damaged(str(header.path), f"an end within {place.name}: it changed while it was read")
    return found


def _split(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Bytes [N, G, 18 or 20] -> q [N, G, 32], scales [G, N], lowest [G, N] (None: w = (q - 8) * scale)."""
    halves = blocks.shape[-1] - GROUP // 2
    numbers = blocks[..., :halves].contiguous().view(torch.float16)  # [N, G, 1 or 2]
    nibbles = blocks[..., halves:]
    q = torch.cat((nibbles & 0xF, nibbles >> 4), dim=-1)
    if not bool(numbers.isfinite().all()):
        raise UnsupportedModel(
            "its blocks have scales that are not finite",
            hint="the file is damaged; download it again",
        )
    scales = numbers[..., 0].t().contiguous()
    return q, scales, numbers[..., 1].t().contiguous() if halves == 4 else None


def _untwisted(tensor: Tensor, heads: int, place: TensorAt, header: Header) -> Tensor:
    """Rows of each head from pairs (2i, 2i + 1) to pairs (i, i + half)."""
    rows = tensor.shape[0]
    if rows % (2 * heads):
        raise damaged(str(header.path), f"{place.name} with {rows} rows for {heads} heads")
    pairs = tensor.view(heads, rows // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
