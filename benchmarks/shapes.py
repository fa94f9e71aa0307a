"""The networks that are measured: real shapes, written down here, filled with random numbers.

Speed depends on shapes, not on what was learned, so nothing is downloaded. The longest position is
raised where a history of 16 384 tokens and a team on top would not fit.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LATENT, EXPANDED = "latent", "expanded"  # forms of latent attention, as benchmarks of it call them


@dataclass(frozen=True)
class Shape:
    """A network in numbers. `config` is what its config.json would say."""

    title: str
    config: dict[str, Any]

    @property
    def head_dim(self) -> int:
        """Head dim of queries, keys and values."""
        config = self.config
        return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])

    @property
    def num_layers(self) -> int:
        """Layers of the network."""
        return int(self.config["num_hidden_layers"])

    @property
    def layer_types(self) -> list[str]:
        """The kind of each layer, by the names of transformers; every fourth layer of a hybrid is full."""
        if (types := self.config.get("layer_types")) is not None:
            return list(types)
        every = self.config.get("full_attention_interval", 1)
        return [
            "linear_attention" if (layer + 1) % every else "full_attention"
            for layer in range(self.num_layers)
        ]

    def token_bytes(self, itemsize: int, ranks: int = 1) -> int:
        """Bytes of keys and values of one token, over all layers that have any; the part that each rank has."""
        heads = max(1, int(self.config["num_key_value_heads"]) // ranks)
        storing = sum(each != "linear_attention" for each in self.layer_types)
        return 2 * storing * heads * self.head_dim * itemsize

    @property
    def num_experts(self) -> int:
        """Experts of a layer; 0 where every token goes through the same MLP."""
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        return next((int(self.config[name]) for name in names if self.config.get(name)), 0)

    @property
    def num_stacks(self) -> int:
        """Layers that have experts; the first ones may have none."""
        dense = int(self.config.get("first_k_dense_replace", 0))
        return self.num_layers - dense if self.num_experts else 0

    @property
    def is_mxfp4(self) -> bool:
        """Whether its experts come in mxfp4."""
        return bool(self.config.get("quantization_config"))

    def expert_bytes(self, itemsize: int) -> int:
        """Bytes of one expert of one layer, without biases; in mxfp4 17 for 32 numbers, whatever the item size."""
        inner = self.config.get("moe_intermediate_size") or self.config["intermediate_size"]
        numbers = 3 * int(self.config["hidden_size"]) * int(inner)
        return numbers * 17 // 32 if self.is_mxfp4 else numbers * itemsize

    def products(self, ranks: int = 1) -> list[tuple[int, int]]:
        """Every linear layer of one pass as (in, out), query with key and value, gate with up: in order; the part that each rank has.

        Of layers with experts the router's and the shared expert's, and not those of the experts that are chosen.
        """
        config = self.config
        hidden, inner = config["hidden_size"], config["intermediate_size"] // ranks
        heads = config["num_attention_heads"] // ranks
        kv_heads = max(1, config["num_key_value_heads"] // ranks)
        queries = heads * (2 if self.is_hybrid else 1)  # a hybrid's come with a gate each
        attention = [
            (hidden, (queries + 2 * kv_heads) * self.head_dim),
            (heads * self.head_dim, hidden),
        ]
        mlp = [(hidden, 2 * inner), (inner, hidden)]
        shared = config.get("n_shared_experts", 0) * config.get("moe_intermediate_size", 0)
        shared = (shared or config.get("shared_expert_intermediate_size", 0)) // ranks
        beside = [(hidden, 2 * shared), (shared, hidden)] if shared else []
        routed = [(hidden, self.num_experts), *beside]
        first = self.num_layers - self.num_stacks
        layers = [
            (self._linear_attention(ranks) if kind == "linear_attention" else attention)
            + (mlp if layer < first else routed)
            for layer, kind in enumerate(self.layer_types)
        ]
        return [*itertools.chain.from_iterable(layers), (hidden, config["vocab_size"] // ranks)]

    @property
    def is_hybrid(self) -> bool:
        """Whether some of its layers keep a state."""
        return "linear_attention" in self.layer_types

    def _linear_attention(self, ranks: int) -> list[tuple[int, int]]:
        """Both products of a layer that keeps a state: query, key, value, gate, a and b in one."""
        config = self.config
        heads = config["linear_num_value_heads"] // ranks
        values = heads * config["linear_value_head_dim"]
        keys = config["linear_num_key_heads"] // ranks * config["linear_key_head_dim"]
        hidden = config["hidden_size"]
        return [(hidden, 2 * keys + 2 * values + 2 * heads), (values, hidden)]

    def write(self, folder: Path) -> Path:
        """The configuration as a model folder, to be loaded with dummy weights."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        return folder


def _shape(title: str, model_type: str, architecture: str, **config: Any) -> Shape:
    common = {
        "model_type": model_type,
        "architectures": [architecture],
        "dtype": "bfloat16",
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_cache": True,
    }
    return Shape(title, {**common, **config})


_LLAMA = {"rms_norm_eps": 1e-5, "vocab_size": 32016, "max_position_embeddings": 32768}


def _gpt_oss(title: str, **other: Any) -> Shape:
    """The shape of gpt-oss-20b, but for `other`."""
    config = {
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "attention_bias": True,
        "rms_norm_eps": 1e-5,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        **other,
    }
    return _shape(title, "gpt_oss", "GptOssForCausalLM", **config)


def _hybrid(title: str, **other: Any) -> Shape:
    """The language model of Qwen3.5-9B, but for `other`."""
    config = {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "vocab_size": 248320,
        "max_position_embeddings": 40960,
        **other,
    }
    return _shape(title, "qwen3_5_text", "Qwen3_5ForCausalLM", **config)


SHAPES: dict[str, Shape] = {
    "qwen3-8b": _shape(
        "Qwen3-8B",
        "qwen3",
        "Qwen3ForCausalLM",
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        vocab_size=151936,
        max_position_embeddings=40960,
    ),
    "qwq-32b": _shape(
        "QwQ-32B",
        "qwen2",
        "Qwen2ForCausalLM",
        hidden_size=5120,
        intermediate_size=27648,
        num_hidden_layers=64,
        num_attention_heads=40,
        num_key_value_heads=8,
        rms_norm_eps=1e-5,
        vocab_size=152064,
        max_position_embeddings=40960,
        use_sliding_window=False,
    ),
    "qwen3-32b": _shape(
        "Qwen3-32B",
        "qwen3",
        "Qwen3ForCausalLM",
        hidden_size=5120,
        intermediate_size=25600,
        num_hidden_layers=64,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        vocab_size=151936,
        max_position_embeddings=40960,
    ),
    "codellama-7b": _shape(
        "CodeLlama-7b",
        "llama",
        "LlamaForCausalLM",
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        **_LLAMA,
    ),
    "codellama-13b": _shape(
        "CodeLlama-13b",
        "llama",
        "LlamaForCausalLM",
        hidden_size=5120,
        intermediate_size=13824,
        num_hidden_layers=40,
        num_attention_heads=40,
        num_key_value_heads=40,
        **_LLAMA,
    ),
    "codellama-34b": _shape(
        "CodeLlama-34b",
        "llama",
        "LlamaForCausalLM",
        hidden_size=8192,
        intermediate_size=22016,
        num_hidden_layers=48,
        num_attention_heads=64,
        num_key_value_heads=8,
        **{**_LLAMA, "vocab_size": 32000},
    ),
    "qwen3-30b-a3b": _shape(
        "Qwen3-30B-A3B",
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        rms_norm_eps=1e-6,
        vocab_size=151936,
        max_position_embeddings=40960,
    ),
    "gpt-oss-20b": _gpt_oss("gpt-oss-20b"),
    "qwen3.5-9b": _hybrid("Qwen3.5-9B"),
    "qwen3.5-27b": _hybrid(
        "Qwen3.5-27B",
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=64,
        num_attention_heads=24,
        linear_num_value_heads=48,
    ),
}
_MXFP4 = {"quantization_config": {"quant_method": "mxfp4"}}
SHAPES |= {
    "gpt-oss-20b-mxfp4": _gpt_oss("gpt-oss-20b, mxfp4", **_MXFP4),
    "gpt-oss-120b-mxfp4": _gpt_oss(
        "gpt-oss-120b, mxfp4",
        num_local_experts=128,
        num_hidden_layers=36,
        layer_types=["sliding_attention", "full_attention"] * 18,
        **_MXFP4,
    ),
    # One card has no room for more layers in 16 bits, of this network and the next.
    "qwen3-next-80b-12": _shape(
        "Qwen3-Next-80B-A3B, 12 of 48 layers",
        "qwen3_next",
        "Qwen3NextForCausalLM",
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=12,
        full_attention_interval=4,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        num_experts=512,
        num_experts_per_tok=10,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        norm_topk_prob=True,
        rms_norm_eps=1e-6,
        vocab_size=151936,
        max_position_embeddings=40960,
    ),
    "glm-4.5-air-12": _shape(
        "GLM-4.5-Air, 12 of 46 layers",
        "glm4_moe",
        "Glm4MoeForCausalLM",
        hidden_size=4096,
        intermediate_size=10944,
        moe_intermediate_size=1408,
        n_routed_experts=128,
        num_experts_per_tok=8,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        first_k_dense_replace=1,
        num_hidden_layers=12,
        num_attention_heads=96,
        num_key_value_heads=8,
        head_dim=128,
        attention_bias=True,
        use_qk_norm=False,
        partial_rotary_factor=0.5,
        rms_norm_eps=1e-5,
        vocab_size=151552,
        max_position_embeddings=131072,
    ),
}
TINY = _shape(
    "tiny",
    "qwen3",
    "Qwen3ForCausalLM",
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    vocab_size=64,
    max_position_embeddings=1024,
)
_TINY_EXPERTS = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_TINY_MXFP4 = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_local_experts": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    "vocab_size": 64,
}
TINY_MXFP4 = _gpt_oss("tiny, with experts in mxfp4", **_TINY_MXFP4, **_MXFP4)
TINY_EXPERTS = Shape("tiny, with experts", {**TINY.config, **_TINY_EXPERTS})
_TINY_SHARED = {
    "model_type": "glm4_moe",
    "architectures": ["Glm4MoeForCausalLM"],
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
TINY_SHARED = Shape("tiny, with experts and a shared one", {**TINY.config, **_TINY_SHARED})
_TINY_STATES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 1024,
}
TINY_STATES = _hybrid("tiny, with states", **_TINY_STATES)
_TINY_BOTH = {
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
TINY_BOTH = Shape("tiny, with states and experts", {**TINY_STATES.config, **_TINY_BOTH})


def tiny_of(shape: Shape) -> Shape:
    """A tiny network with experts or states of the kind of this one's."""
    if shape.is_hybrid:
        return TINY_BOTH if shape.num_experts else TINY_STATES
    if shape.is_mxfp4:
        return TINY_MXFP4
    return TINY_SHARED if shape.config.get("n_shared_experts") else TINY_EXPERTS
