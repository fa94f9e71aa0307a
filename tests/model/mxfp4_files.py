"""Checkpoints of gpt-oss with experts in mxfp4, as they are published: tiny, with random bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

from manyhands.model.quantised.mxfp4 import PRODUCTS
from manyhands.model.quiet import quiet
from tests.model.families_zoo import tiny_models


def published(experts: int, hidden: int, width: int) -> dict[str, Tensor]:
    """Tensors of one layer with random bits; scales from far apart."""
    found = {}
    for name, (outputs, inputs) in zip(
        PRODUCTS, ((2 * width, hidden), (hidden, width)), strict=True
    ):
        lead = (experts, outputs)
        found[f"{name}_blocks"] = torch.randint(0, 256, (*lead, inputs // 32, 16)).to(torch.uint8)
        found[f"{name}_scales"] = torch.randint(116, 127, (*lead, inputs // 32)).to(torch.uint8)
        found[f"{name}_bias"] = torch.randn(lead).bfloat16()
    return found


def write(place: Path) -> Path:
    """A checkpoint in this folder; the folder."""
    with quiet():
        config = tiny_models()["gpt_oss"]().config
        config.hidden_size, config.intermediate_size = 64, 32
        config.dtype = "bfloat16"
        model: Any = hf.GptOssForCausalLM(cast(hf.GptOssConfig, config))
        model.to(torch.bfloat16)
        model.save_pretrained(place)
    tensors = load_file(place / "model.safetensors")
    experts = config.num_local_experts
    for layer in range(config.num_hidden_layers):
        inside = f"model.layers.{layer}.mlp.experts."
        for name, tensor in published(experts, 64, 32).items():
            tensors[inside + name] = tensor
        for name in PRODUCTS:
            del tensors[inside + name]
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    said = place / "config.json"
    packing = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    said.write_text(json.dumps(json.loads(said.read_text()) | {"quantization_config": packing}))
    return place
