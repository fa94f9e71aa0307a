"""The facts of a GGUF file as a configuration of transformers.

An architecture of llama.cpp is a row of `ARCHITECTURES`. Every fact of the architecture's own must be known
to that row: one that is not, such as a number of experts, would change the network in silence, and is refused
by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from manyhands.errors import ModelNotFound, UnsupportedModel, counted
from manyhands.hub import damaged, in_short
from manyhands.model.dummy import UNBUILDABLE
from manyhands.model.gguf.header import Header

ROPE_FACTORS = "rope_freqs.weight"  # of Llama 3.1 and later: what each frequency is divided by


@dataclass(frozen=True)
class Architecture:
    """An architecture in llama.cpp's sense, and how its converter stores it."""

    model_type: str  # in transformers
    twisted: bool = False  # rows of q and k stand in pairs (2i, 2i + 1), not (i, i + half)
    biases: bool = (
        False  # whether the configuration asks for biases of attention; else they go by the type
    )


ARCHITECTURES: MappingProxyType[str, Architecture] = MappingProxyType(
    {
        "llama": Architecture("llama", twisted=True, biases=True),  # Mistral and SmolLM2, too
        "qwen2": Architecture("qwen2"),
        "qwen3": Architecture("qwen3", biases=True),
    }
)
_FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_ROPE = ("scaling.type", "scaling.factor", "scaling.original_context_length", "scaling.attn_factor")
_KNOWN = frozenset(
    {
        *_FIELDS,
        *(f"rope.{name}" for name in ("freq_base", "dimension_count", "scaling.finetuned", *_ROPE)),
        *(f"attention.{name}" for name in ("head_count_kv", "key_length", "value_length")),
        *("attention.layer_norm_rms_epsilon", "vocab_size", "tensor_data_layout"),
        *("attention.layer_norm_epsilon", "attention.causal", "pooling_type", "expert_count"),
    }
)
_NEUTRAL = {"attention.causal": (True,), "pooling_type": (0,), "expert_count": (0,)}


def read_config(header: Header, factors: list[float] | None) -> Any:
    """The configuration; `factors` are the tensor `ROPE_FACTORS`, if there is one.

    Raises UnsupportedModel for an architecture that is not in the table, or facts that it does not know;
    ModelNotFound where a fact is missing or makes no sense.
    """
    row = architecture_of(header)
    _check_facts(header)
    heads, hidden = _whole(header, "attention.head_count"), _whole(header, "embedding_length")
    head = _whole(header, "attention.key_length", hidden // heads)
    if _whole(header, "attention.value_length", head) != head:
        raise _refused(header, "heads whose keys and values differ in size")
    if _whole(header, "rope.dimension_count", head) != head:
        raise _refused(header, "rotations of a part of each head")
    settings: dict[str, Any] = {field: _whole(header, name) for name, field in _FIELDS.items()}
    _check_blocks(header, settings["num_hidden_layers"])
    table = header.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise damaged(str(header.path), "no table of embeddings (token_embd.weight)")
    ends = [header.facts.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    known_ends = [end for end in dict.fromkeys(ends) if end is not None]
    if row.biases:
        settings["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    settings |= {
        "vocab_size": table.shape[0],
        "head_dim": head,
        "num_key_value_heads": _whole(header, "attention.head_count_kv", heads),
        "rms_norm_eps": _real(header, "attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rotations(header, factors, settings["max_position_embeddings"], head),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": header.facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": known_ends or None,
        "pad_token_id": header.facts.get("tokenizer.ggml.padding_token_id"),
        # For a GPU; the blocks themselves are of no dtype of torch.
        "dtype": torch.bfloat16,
    }
    try:
        return AutoConfig.for_model(row.model_type, **settings)
    except UNBUILDABLE as error:
        raise damaged(
            str(header.path), f"facts that make no configuration ({in_short(error)})"
        ) from error


def architecture_of(header: Header) -> Architecture:
    """The row of the table; UnsupportedModel where there is none."""
    row = ARCHITECTURES.get(header.architecture)
    if row is None:
        raise UnsupportedModel(
            f"the GGUF file {str(header.path)!r} has the architecture {header.architecture!r}; read are "
            + ", ".join(ARCHITECTURES),
            hint="give the model's original folder or name, with safetensors",
        )
    return row


def _check_facts(header: Header) -> None:
    prefix = f"{header.architecture}."
    for name, value in header.facts.items():
        fact = name.removeprefix(prefix)
        if name.startswith(prefix) and fact not in _KNOWN:
            raise _refused(header, f"{name} = {str(value)[:60]}")
        if name.startswith(prefix) and fact in _NEUTRAL and value not in _NEUTRAL[fact]:
            raise _refused(header, f"{name} = {str(value)[:60]}")


def _check_blocks(header: Header, count: int) -> None:
    """A network is built of so many layers before its tensors are looked for."""
    blocks = {name.split(".")[1] for name in header.tensors if name.startswith("blk.")}
    if blocks != {str(index) for index in range(len(blocks))} or len(blocks) != count:
        raise damaged(
            str(header.path),
            f"tensors of {counted(len(blocks), 'layer')}, and {count} are announced",
        )


def _rotations(
    header: Header, factors: list[float] | None, reach: int, head: int
) -> dict[str, Any]:
    """Of llama.cpp's facts its loader's sense (`llama_model::load_hparams`): a factor without a type is a linear one, 0 is none."""
    theta = _real(header, "rope.freq_base", 10000.0)
    kind = header.fact("rope.scaling.type")
    if kind is None and header.fact("rope.scaling.factor"):
        kind = "linear"
    attention = header.fact("rope.scaling.attn_factor")
    if attention not in (None, 1):  # it multiplies the scores, whatever the type
        raise _refused(header, f"rope.scaling.attn_factor = {str(attention)[:60]}")
    if factors is not None:
        if kind not in (None, "none") or len(factors) != head // 2:
            raise _refused(
                header, f"{ROPE_FACTORS} of {len(factors)} numbers beside {kind!r} scaling"
            )
        if not all(np.isfinite(factor) and factor > 0 for factor in factors):
            raise damaged(str(header.path), f"{ROPE_FACTORS} with a number that is not above 0")
        # Frequencies divided by factors that do not depend on the length: longrope with one set for both.
        return {
            "rope_type": "longrope",
            "rope_theta": theta,
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": reach,
            "attention_factor": 1.0,
            "factor": 1.0,
        }
    if kind in (None, "none"):
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        factor = _real(header, "rope.scaling.factor")
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": _real(header, "rope.scaling.factor"),
            "original_max_position_embeddings": _whole(
                header, "rope.scaling.original_context_length", reach
            ),
        }
    raise _refused(header, f"rope.scaling.type = {kind!r}")


_MISSING: Any = object()


def _whole(header: Header, name: str, default: Any = _MISSING) -> int:
    found = header.fact(name)
    found = default if found is None else found
    if found is _MISSING or isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise _senseless(header, name, found, "a whole number, 1 or more")
    return found


def _real(header: Header, name: str, default: Any = _MISSING) -> float:
    found = header.fact(name)
    found = default if found is None else found
    if (
        isinstance(found, bool)
        or not isinstance(found, int | float)
        or not np.isfinite(found)
        or found <= 0
    ):
        raise _senseless(header, name, found, "a number above 0")
    return float(found)


def _senseless(header: Header, name: str, found: Any, expected: str) -> ModelNotFound:
    said = "nothing" if found is _MISSING else str(found)[:60]
    return damaged(str(header.path), f"{said} as {header.architecture}.{name}; expected {expected}")


def _refused(header: Header, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"the GGUF file {str(header.path)!r} has {what}, which is not read for {header.architecture!r}",
        hint="give the model's original folder or name, with safetensors",
    )
