"""GGUF files written by the package of llama.cpp's authors, to be read by ours.

Names of tensors, quantisation and layout of the file are the package's; the order of the rows of q and k is
that of llama.cpp's converter for Llama.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers.modeling_utils import PreTrainedModel

from manyhands import bundled

Kind = gguf.GGMLQuantizationType


def write(
    path: Path,
    model: PreTrainedModel,
    kind: Kind = Kind.F32,
    *,
    facts: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    tokens: Callable[[gguf.GGUFWriter], None] | None = None,
) -> dict[str, torch.Tensor]:
    """Write the network with its linear layers in `kind`; the state that a reader must find.

    `facts` are added to those of the network or take their place (None: left out).
    """
    config: Any = model.config
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    said = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    if getattr(config, "head_dim", None):
        said["attention.key_length"] = said["attention.value_length"] = config.head_dim
    named = {f"{arch}.{name}": value for name, value in said.items()} | dict(facts or {})
    for name, value in named.items():
        _add(writer, name, value)
    (tokens or _letters)(writer)
    names = gguf.get_tensor_name_map(
        next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch),
        config.num_hidden_layers,
    )
    expected = {}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, last = name.rpartition(".")
        data = value.float().numpy()
        part = stem.rpartition(".")[2]
        count = heads.get(part) if arch == "llama" else None
        data = _twisted(data, count) if count else data
        packed = kind if data.ndim == 2 and "proj" in part else Kind.F32
        raw = quantize(data, packed)
        writer.add_tensor(f"{names.get_name(stem)}.{last}", raw, raw_dtype=packed)
        data = dequantize(raw, packed)
        expected[name] = torch.from_numpy(_back(data, count) if count else data.copy())
    for name, value in (tensors or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def _twisted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows in pairs (i, i + half) of each head to rows in pairs (2i, 2i + 1)."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _back(rows: np.ndarray, heads: int) -> np.ndarray:
    where = _twisted(np.arange(len(rows)), heads)
    back = np.empty_like(rows)
    back[where] = rows
    return back


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if value is None:
        return
    adders: dict[type, Callable[[str, Any], object]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    add: Callable[[str, Any], object] = adders.get(type(value), writer.add_array)
    add(name, value)


def _letters(writer: gguf.GGUFWriter) -> None:
    """As few facts as a tokenizer has."""
    alphabet = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [*alphabet, "ab", "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([1] * (len(words) - 1) + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(words) - 1)


def real_tokens(pre: str) -> Callable[[gguf.GGUFWriter], None]:
    """The tokens of the bundled model, under a rule."""
    import json

    stored = json.loads((bundled.path() / "tokenizer.json").read_text(encoding="utf-8"))

    def add(writer: gguf.GGUFWriter) -> None:
        vocabulary = dict(stored["model"]["vocab"])
        special = {each["content"]: each["id"] for each in stored["added_tokens"]}
        words = sorted({**vocabulary, **special}.items(), key=lambda pair: pair[1])
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([word for word, _ in words])
        writer.add_token_types([3 if word in special else 1 for word, _ in words])
        merges = stored["model"]["merges"]
        writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])

    return add
