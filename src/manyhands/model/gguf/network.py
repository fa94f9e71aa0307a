"""A GGUF file as a checkpoint: configuration, tokenizer and network of one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from manyhands.hub import damaged
from manyhands.model.dummy import bare_model
from manyhands.model.gguf.config import ROPE_FACTORS, read_config
from manyhands.model.gguf.header import Header, read_header
from manyhands.model.gguf.tensors import Blocks, GgufTensors, is_packed, read
from manyhands.model.gguf.tokenizer import read_tokenizer
from manyhands.model.quantised.packed_checkpoint import Layout, fill

_MOST_BYTES = 1 << 20  # of factors of rotations, of which a head has one for two dims


@dataclass(frozen=True)
class GgufFile:
    """One file; its header has been read."""

    header: Header
    config: Any

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Raises ModelNotFound, UnsupportedModel."""
        header = read_header(path)
        place = header.tensors.get(ROPE_FACTORS)
        if place is not None and place.size > _MOST_BYTES:
            raise damaged(str(header.path), f"{ROPE_FACTORS} of shape {place.shape}")
        factors = None if place is None else read(header, place).float().flatten().tolist()
        return cls(header, read_config(header, factors))

    @property
    def layout(self) -> Layout | None:
        """How its linear layers can be kept; None where none has four bits of ours."""
        return Blocks() if any(map(is_packed, self.header.tensors.values())) else None

    @property
    def is_rounded(self) -> bool:
        """Whether the matrices of its layers were rounded to fewer bits than sixteen."""
        return any(place.kind.block > 1 for place in self.header.tensors.values())

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Raises UnsupportedModel, ModelNotFound."""
        return read_tokenizer(self.header)

    def network(
        self, *, device: torch.device, dtype: torch.dtype, unpacked: bool
    ) -> PreTrainedModel:
        """The network, in four bits where the file has them unless it is to be `unpacked`."""
        heads = {
            "attn_q": self.config.num_attention_heads,
            "attn_k": self.config.num_key_value_heads,
        }
        tensors = GgufTensors(self.header, heads, device)
        laid_out: Any = bare_model(self.config, dtype)
        tensors.check_shapes({key: tuple(p.shape) for key, p in laid_out.named_parameters()})
        files = dict.fromkeys(tensors.keys(), tensors)
        name = str(self.header.path)
        return fill(
            name, files, self.config, Blocks(), device=device, dtype=dtype, unpacked=unpacked
        )
