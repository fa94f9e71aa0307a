"""One tiny random network per family, small enough that every test can try them all.

Sizes are chosen so that nothing special about a family stays idle: heads are grouped, windows are
shorter than the texts of the tests, longrope's short range ends before them, and weights are large
enough that attention is far from uniform (with ordinary small ones a wrong rotation hardly shows).
"""

from __future__ import annotations

import copy
import math
from functools import cache, partial
from typing import Any

import torch
import transformers as hf
from torch.overrides import _get_current_function_mode_stack
from transformers.modeling_utils import PreTrainedModel

from manyhands.model.seeded import seeded
from manyhands.model.self_test import saved_buffers
from manyhands.model.unlisted import enter
from tests.model.double import DoublePrecision

VOCABULARY = 97
WINDOW = 5
LONGROPE_SHORT = 12  # tokens up to which the longrope network uses its short factors

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_HEAD: dict[str, Any] = {"head_dim": 16}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_ALTERNATING = ["sliding_attention", "full_attention"]
_THETA = 1e4
_YARN = {
    "rope_type": "yarn",
    "rope_theta": _THETA,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": _THETA,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# The factor on k_pe and the one on all scores both differ from 1, and from each other.
_YARN_MSCALE = {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5}
_CHUNKED: dict[str, Any] = {  # of Llama 4
    **_HEAD,
    "intermediate_size_mlp": 40,
    "num_local_experts": 4,
    "no_rope_layers": [1, 0],
    "attention_chunk_size": 11,  # texts of the tests go through three
    "attn_scale": 0.5,
    "floor_scale": 4,
}
_LATENT: dict[str, Any] = {
    **_SIZES,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_GROUPED_ROUTED: dict[str, Any] = {**_ROUTED, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
_PARTIAL_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": _THETA,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [2.0, 2.5, 3.0, 4.0, 5.0, 6.0],
    "original_max_position_embeddings": LONGROPE_SHORT,
}


def _default(**more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": _THETA, **more}


def _gemma4(kinds: list[str]) -> dict[str, Any]:
    """The settings of all faces of Gemma 4."""
    full = {"rope_type": "proportional", "rope_theta": 1e3, "partial_rotary_factor": 0.25}
    return {
        **{**_SIZES, **_HEAD, "num_hidden_layers": len(kinds)},
        "global_head_dim": 32,
        "sliding_window": WINDOW,
        "layer_types": kinds,
        "rope_parameters": {"sliding_attention": _default(), "full_attention": full},
        "final_logit_softcapping": 30.0,
    }


def configurations() -> dict[str, Any]:
    """Configurations by a name of our own; several for a family with several faces. Each caller has copies of its own.

    One that a test had changed was every later test's, too.
    """
    return copy.deepcopy(_configurations())


@cache
def _configurations() -> dict[str, Any]:
    two_ropes = {
        "sliding_attention": _default(),
        "full_attention": {**_YARN, "rope_theta": 1e3},
    }
    return {
        "llama": hf.LlamaConfig(**_SIZES),
        "llama_llama3": hf.LlamaConfig(**_SIZES, rope_parameters=_LLAMA3),
        "qwen2": hf.Qwen2Config(**_SIZES),
        "qwen2_yarn": hf.Qwen2Config(**_SIZES, rope_parameters=_YARN),
        "qwen2_window": hf.Qwen2Config(
            **_SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
        ),
        "qwen3": hf.Qwen3Config(**_SIZES, **_HEAD),
        "qwen3_moe": hf.Qwen3MoeConfig(**_SIZES, **_HEAD, **_EXPERTS),
        "mistral": hf.MistralConfig(**_SIZES, sliding_window=WINDOW),
        "phi3": hf.Phi3Config(
            **_SIZES, rope_parameters=_default(partial_rotary_factor=0.75), sliding_window=WINDOW
        ),
        "phi3_longrope": hf.Phi3Config(
            **{**_SIZES, "max_position_embeddings": 96},
            rope_parameters=_PARTIAL_LONGROPE,
            original_max_position_embeddings=LONGROPE_SHORT,
        ),
        "gemma2": hf.Gemma2Config(
            **_SIZES,
            **_HEAD,
            sliding_window=WINDOW,
            query_pre_attn_scalar=24,
            attn_logit_softcapping=2.0,  # low enough that capping shows in a network this small
        ),
        "gemma3_text": hf.Gemma3TextConfig(
            **{**_SIZES, "num_hidden_layers": 3},
            **_HEAD,
            sliding_window=WINDOW,
            query_pre_attn_scalar=24,
            layer_types=[*_ALTERNATING, "sliding_attention"],
            rope_parameters={
                "sliding_attention": _default(),
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
            },
        ),
        # values are keys where no window is, and there heads of another size and number
        "gemma4_text": hf.Gemma4TextConfig(  # type: ignore[call-arg]
            **_gemma4(_ALTERNATING),
            attention_k_eq_v=True,
            num_global_key_value_heads=1,
            hidden_size_per_layer_input=0,
        ),
        # the last two layers read what the last of their kinds before them stored
        "gemma4_shared": hf.Gemma4TextConfig(
            **_gemma4(["sliding_attention", *_ALTERNATING, *_ALTERNATING]),
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=VOCABULARY,
        ),
        "glm": hf.GlmConfig(**_SIZES, **_HEAD),
        "glm4": hf.Glm4Config(**_SIZES, **_HEAD),
        "olmo2": hf.Olmo2Config(**_SIZES),
        "olmo3": hf.Olmo3Config(
            **_SIZES, sliding_window=WINDOW, layer_types=_ALTERNATING, rope_parameters=two_ropes
        ),
        "gpt_oss": hf.GptOssConfig(
            **_SIZES,
            **_HEAD,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=WINDOW,
            layer_types=_ALTERNATING,
            rope_parameters={**_YARN, "truncate": False},
        ),
        "deepseek_v2": hf.DeepseekV2Config(
            **{**_LATENT, **_ROUTED, "q_lora_rank": None},
            first_k_dense_replace=1,
            n_shared_experts=1,
            rope_parameters=_YARN_MSCALE,
        ),
        "deepseek_v3": hf.DeepseekV3Config(
            **_LATENT, **_GROUPED_ROUTED, first_k_dense_replace=1, rope_parameters=_YARN_MSCALE
        ),
        # the first layer attends in chunks, the second has no positions and scales queries
        "llama4_text": hf.Llama4TextConfig(
            **{**_SIZES, **_CHUNKED},
            num_experts_per_tok=2,
            interleave_moe_layer_step=2,
        ),
        "smollm3": hf.SmolLM3Config(
            **{**_SIZES, "num_hidden_layers": 4}, no_rope_layer_interval=2, use_cache=False
        ),
    }


@cache
def _repeating() -> dict[str, Any]:
    """Families whose attention is one of those above, with other networks around it."""
    grouped = {"n_group": 1, "topk_group": 1}
    routed = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    local = {"num_local_experts": 4, "num_experts_per_tok": 2}
    windows = {"sliding_window": WINDOW, "layer_types": _ALTERNATING}
    partial_rope = {"rope_parameters": _default(partial_rotary_factor=0.5)}
    sized = {**_SIZES, **_HEAD}
    rows: dict[str, dict[str, Any]] = {
        "axk1": {**_LATENT, **_GROUPED_ROUTED, "first_k_dense_replace": 1},
        "deepseek_v3_whole": {**_LATENT, **_ROUTED, **grouped, "rope_interleave": False},
        "glm4_moe_lite": {**_LATENT, **_ROUTED, **grouped, "n_shared_experts": 1},
        "minicpm3": _LATENT,
        "youtu": _LATENT,
        "afmoe": {**sized, **_EXPERTS, **windows, "num_dense_layers": 1},
        "apertus": _SIZES,
        "arcee": _SIZES,
        "cohere": _SIZES,
        "cohere2": {**sized, **windows},
        "cwm": {**sized, **windows, "rope_parameters": _LLAMA3, "bos_token_id": 1},
        "dots1": {**sized, **routed, **grouped, "n_shared_experts": 1, "first_k_dense_replace": 1},
        "ernie4_5": sized,
        "ernie4_5_moe": {**_SIZES, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24},
        "exaone4": {**sized, **windows},
        "exaone4_whole": {**sized, "sliding_window": None, "layer_types": ["full_attention"] * 2},
        "exaone_moe": {**sized, **_EXPERTS, **windows, **grouped},
        "flex_olmo": {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2},
        "gemma": {**_SIZES, "head_dim": 24},
        "gemma4_text_experts": {
            **_gemma4(_ALTERNATING),
            **{"hidden_size_per_layer_input": 0, "enable_moe_block": True},
            **{"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24},
        },
        "gemma4_unified_text": {
            **_gemma4(_ALTERNATING),
            **{"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        },
        "glm4_moe": {**sized, **routed, **grouped, **partial_rope, "use_qk_norm": True},
        "granite": {**_SIZES, "attention_multiplier": 0.1, "logits_scaling": 2.0},
        "granitemoe": {**_SIZES, **local, "attention_multiplier": 0.1},
        "helium": sized,
        "hy_v3": {**sized, **_EXPERTS},
        "jais2": sized,
        "llama4_text_experts": {**_SIZES, **_CHUNKED, "use_qk_norm": False},
        "mellum": {
            **{**sized, **_EXPERTS, **windows},
            "rope_parameters": dict.fromkeys(_ALTERNATING, _default()),
        },
        "minimax_m2": {**sized, **local, **partial_rope},
        "ministral": {**sized, **windows},
        "ministral3": {
            **sized,
            "rope_parameters": {
                **_YARN,
                "original_max_position_embeddings": 8,
                "llama_4_scaling_beta": 0.5,
            },
        },
        "mistral4": {
            **{**_LATENT, **_ROUTED, **grouped, "n_shared_experts": 1},
            "rope_parameters": {
                **_YARN_MSCALE,
                "partial_rotary_factor": 0.4,  # 8 of the 20 dims of a head
                "original_max_position_embeddings": 8,
                "llama_4_scaling_beta": 0.5,
            },
        },
        "mixtral": {**_SIZES, **local},
        "olmo": {**_SIZES, "clip_qkv": 1.0},
        "olmoe": {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2},
        "phimoe": {**_SIZES, **local},
        "qwen2_moe": {**_SIZES, **_EXPERTS, "shared_expert_intermediate_size": 24},
        "seed_oss": sized,
        "solar_open": {**sized, **routed, **grouped},
        "starcoder2": {**_SIZES, "sliding_window": WINDOW},
    }
    kinds = {
        name: hf.CONFIG_MAPPING[name.removesuffix("_whole").removesuffix("_experts")]
        for name in rows
    }
    return {name: kinds[name](**settings) for name, settings in rows.items()}


def repeating_models() -> dict[str, partial[PreTrainedModel]]:
    """As `tiny_models`."""
    return {name: partial(tiny_model, config) for name, config in _repeating().items()}


def tiny_models() -> dict[str, partial[PreTrainedModel]]:
    """For each name a function that builds the network, the same one every time, on the CPU.

    It runs Hugging Face's own eager attention until an adapter takes it over.
    """
    return {name: partial(tiny_model, config) for name, config in configurations().items()}


# A network that nobody speaks with needs no tokenizer of its own to be loaded.
NO_TOKENIZER: Any = object()


def tiny_model(config: Any, seed: int = 0) -> PreTrainedModel:
    """A random network of this configuration that attends sharply."""
    model = _drawn(config, seed)
    # Parts that ask for float32 (routers, from transformers 5.24 on) have drawn other numbers in double precision.
    if any(parameter.dtype is torch.float64 for parameter in model.parameters()):
        with DoublePrecision.left():
            model.load_state_dict(_drawn(config, seed).state_dict())
    return model


_KEPT: dict[tuple[Any, ...], PreTrainedModel] = {}  # as they were drawn; none of them is handed out


def _drawn(config: Any, seed: int) -> PreTrainedModel:
    """A copy of the network, which takes a quarter of the time that drawing does."""
    enter(config)
    modes = tuple(type(mode) for mode in _get_current_function_mode_stack())
    kind = type(config), config.to_json_string(use_diff=False)
    key = *kind, seed, torch.get_default_dtype(), *modes, DoublePrecision.is_left
    if key not in _KEPT:
        with torch.inference_mode(False):
            _KEPT[key] = _drawn_anew(config, seed)
    return copy.deepcopy(_KEPT[key])


def _drawn_anew(config: Any, seed: int) -> PreTrainedModel:
    with seeded(seed), torch.no_grad():
        # A copy, because the model keeps the configuration and writes into it.
        model = hf.AutoModelForCausalLM.from_config(
            copy.deepcopy(config), attn_implementation="eager"
        )
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1 / math.sqrt(parameter.shape[-1]))
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        for number in saved_buffers(model):
            number.add_(torch.randn_like(number), alpha=0.1)
    return model.eval()  # type: ignore[no-any-return]


def some_tokens(count: int, seed: int = 1) -> torch.Tensor:
    """Random token ids [count]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (count,), generator=generator)
