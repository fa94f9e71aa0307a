"""Which networks are known to work, what is special about each, and which cannot work and why.

A network works here if its attention depends on positions through rotations alone: then a block can
stand anywhere in a view, because rotating the query is enough (Hogwild! Inference, section 3.4). The
table names the model types that have a row in the conformance test. The refusals name those that
break the condition, with the reason. Anything else is examined at load (`self_test`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from manyhands.attention.attend import QueryScale
from manyhands.cache.states import FORKING
from manyhands.errors import UnsupportedModel, counted
from manyhands.model import hybrids


@dataclass(frozen=True)
class Family:
    """The facts of a model type that its tensors do not show and other rooms need."""

    model_type: str
    title: str
    special: str
    interleaved: bool = False  # pairs are (2i, 2i + 1) instead of (i, i + half)
    bare_kinds: frozenset[str] = frozenset()  # layer types that do not rotate (NoPE)
    bare_beside_windows: bool = False  # ... and do so after all where no layer has a window


_FULL = frozenset({"full_attention"})
_ROWS = (
    Family("llama", "Llama", "plain; llama3 scaling is in the frequencies"),
    Family("qwen2", "Qwen2", "biases; YaRN's factor comes with q and k"),
    Family("qwen3", "Qwen3", "norms on the heads of q and k"),
    Family("qwen3_moe", "Qwen3-MoE", "experts; norms on the heads of q and k"),
    Family("mistral", "Mistral", "one sliding window for all layers in early versions"),
    Family("phi3", "Phi-3 and Phi-4", "partial rotary; longrope is pinned at load"),
    Family("gemma2", "Gemma 2", "softcap; every other layer has a window; own scaling"),
    Family("gemma3_text", "Gemma 3 (text)", "two sets of frequencies; windows; own scaling"),
    Family(
        *("gemma4_text", "Gemma 4 (text)"),
        "windows; full layers with heads of their own; in some sizes values are keys, last layers read "
        "earlier ones' keys, or experts",
    ),
    Family("glm", "GLM-4 (first)", "partial rotary, interleaved pairs", interleaved=True),
    Family("glm4", "GLM-4 (0414)", "partial rotary, interleaved pairs", interleaved=True),
    Family("olmo2", "OLMo 2", "norms on all of q and k before they are cut into heads"),
    Family("olmo3", "OLMo 3", "two sets of frequencies; windows"),
    Family("gpt_oss", "gpt-oss", "attention sinks; windows; experts; YaRN"),
    Family(
        *("llama4_text", "Llama 4 (text)"),
        "chunks of the view; full layers without positions, with scaled queries; experts",
        interleaved=True,
    ),
    Family("smollm3", "SmolLM3", "every fourth layer has no positions"),
    Family(
        "afmoe",
        "AFMoE (Trinity)",
        "experts; gates; full layers without positions",
        bare_kinds=_FULL,
    ),
    Family("axk1", "A.X K1", "latent attention; experts"),
    Family("apertus", "Apertus", "norms on the heads of q and k"),
    Family("arcee", "Arcee (AFM)", "plain"),
    Family("cohere", "Command R", "interleaved pairs; layers side by side", interleaved=True),
    Family(
        *("cohere2", "Command A", "interleaved pairs; full layers without positions"),
        interleaved=True,
        bare_kinds=_FULL,
    ),
    Family("cwm", "CWM", "windows; llama3 scaling"),
    Family(
        *("deepseek_v2", "DeepSeek-V2", "latent attention, interleaved pairs; experts; YaRN"),
        interleaved=True,
    ),
    Family("deepseek_v3", "DeepSeek-V3 and R1", "latent attention; experts; YaRN"),
    Family("dots1", "dots.llm1", "experts; norms on the heads of q and k"),
    Family("ernie4_5", "ERNIE 4.5", "interleaved pairs", interleaved=True),
    Family("ernie4_5_moe", "ERNIE 4.5 MoE", "interleaved pairs; experts", interleaved=True),
    Family(
        *("exaone4", "EXAONE 4", "norms behind; beside windows, full layers without positions"),
        bare_kinds=_FULL,
        bare_beside_windows=True,
    ),
    Family(
        *("exaone_moe", "EXAONE MoE", "experts; beside windows, full layers without positions"),
        bare_kinds=_FULL,
        bare_beside_windows=True,
    ),
    Family("flex_olmo", "FlexOlmo", "experts; norms on all of q and k"),
    Family("gemma", "Gemma", "heads larger than the network is wide"),
    Family("gemma4_unified_text", "Gemma 4 12B (text)", "as Gemma 4, without experts"),
    Family("glm4_moe", "GLM-4.5 to 4.7", "partial rotary; experts; norms on the heads of q and k"),
    Family("glm4_moe_lite", "GLM-4.7-Flash", "latent attention; experts"),
    Family("granite", "Granite 3", "multipliers on scores, residuals and logits"),
    Family("granitemoe", "Granite 3 MoE", "multipliers; experts"),
    Family("helium", "Helium", "interleaved pairs", interleaved=True),
    Family("hy_v3", "Hunyuan 3", "experts; norms on the heads of q and k"),
    Family("jais2", "Jais 2", "biases; norms with a mean"),
    Family("mellum", "Mellum", "experts; windows"),
    Family("minimax_m2", "MiniMax-M2", "partial rotary; experts; norms on all of q and k"),
    Family("minicpm3", "MiniCPM3", "latent attention; multipliers"),
    Family("ministral", "Ministral (8B)", "windows on some layers"),
    Family("ministral3", "Ministral 3", "queries scaled by their position in the view; YaRN"),
    Family(
        "mistral4",
        "Mistral 4",
        "latent attention; experts; queries scaled by their position in the view; YaRN",
    ),
    Family("mixtral", "Mixtral", "experts"),
    Family("olmo", "OLMo", "norms without weights; clipped q, k and v"),
    Family("olmoe", "OLMoE", "experts; norms on all of q and k"),
    Family("phimoe", "Phi-3.5-MoE", "experts; longrope is pinned at load"),
    Family("qwen2_moe", "Qwen2-MoE", "experts, one for all; biases"),
    Family("seed_oss", "Seed-OSS", "biases"),
    Family("solar_open", "Solar Open", "experts"),
    Family("starcoder2", "StarCoder 2", "biases; norms with a mean; a window"),
    Family("youtu", "Youtu-LLM", "latent attention"),
)
# Networks some of whose layers keep a state (`model/recurrent.py`): methods that only fork run on them.
_HYBRID_ROWS = (
    Family(
        "qwen3_next", "Qwen3-Next", "three of four layers keep a state; experts; partial rotary"
    ),
    Family("qwen3_5_text", "Qwen3.5 (text)", "three of four layers keep a state; partial rotary"),
    Family(
        "qwen3_5_moe_text",
        "Qwen3.5-MoE (text)",
        "three of four layers keep a state; experts; partial rotary",
    ),
)
HYBRIDS: dict[str, Family] = {row.model_type: row for row in _HYBRID_ROWS}
_SHARING = "num_kv_shared_layers"  # how many layers, the last ones, store no keys of their own
_NAMED = 14  # of the table, in messages
# Composites whose language model is taken out of them, and its model type.
_COMPOSITES = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "llama4": "llama4_text",
    **hybrids.COMPOSITES,
}
FAMILIES: dict[str, Family] = {row.model_type: row for row in _ROWS}


def supported() -> str:
    """Known families, for messages: the first of the table, and how many there are besides."""
    first = [row.title for row in _ROWS[:_NAMED]]
    return f"{', '.join(first)} and {len(_ROWS) - _NAMED} more (docs/models.md)"


def language_model(config: Any) -> Any:
    """The configuration of the language model inside, where loading can take it out of its composite.

    Gemma 3 from 4B on, Gemma 4, Llama 4 and Qwen3.5 are published with towers for pictures and sounds; text never passes
    through those. Other configurations are returned as they are, so that `reject` can speak about them. So are
    composites in a packing (AWQ and the like), which names its layers by the composite's names.
    """
    inner = getattr(config, "text_config", None)
    wanted = _COMPOSITES.get(config.model_type)
    if wanted is None or getattr(inner, "model_type", None) != wanted:
        return config
    if getattr(config, "quantization_config", None) is not None:
        return config
    text = copy.deepcopy(inner)
    # The composite says these for both, and does not hand them down.
    for setting in ("dtype", "eos_token_id", "tie_word_embeddings"):
        if getattr(config, setting, None) is not None:
            setattr(text, setting, getattr(config, setting))
    return text


def may_be_inside(config: Any) -> bool:
    """Whether a checkpoint of this language model may be that of a composite (see `language_model`)."""
    return config.model_type in _COMPOSITES.values()


def values_of(config: Any, name: str) -> list[Any]:
    """The values of an entry of a configuration: one, or that of every layer where they differ."""
    if name in (getattr(config, "per_layer_attributes", None) or ()):
        return [getattr(layer, name) for layer in config.per_layer_config]
    return [getattr(config, name, None)]


def known_family(config: Any) -> Family:
    """The table's row for this configuration; `UnsupportedModel` if it is refused or unknown."""
    reject(config)
    family = listed_family(config)
    if family is None:
        raise UnsupportedModel(
            f"model type {config.model_type!r} is not in the table of known families",
            hint="load it with load_adapter, which examines unknown model types first",
        )
    return family


def listed_family(config: Any) -> Family | None:
    """The row of one of the tables for this configuration, if there is one."""
    return FAMILIES.get(config.model_type) or HYBRIDS.get(config.model_type)


def reject(config: Any) -> None:
    """Raise `UnsupportedModel` with the reason if this configuration cannot work."""
    reason = refusal(config)
    if reason is not None:
        raise UnsupportedModel(
            f"model type {config.model_type!r} is not supported: {reason}",
            hint=f"supported: {supported()}",
        )
    shared, count = (getattr(config, key, None) for key in (_SHARING, "num_hidden_layers"))
    if isinstance(shared, int) and isinstance(count, int) and not 0 <= shared < max(count, 1):
        # Releases of transformers differ in which of these numbers they take.
        name = getattr(config, "name_or_path", "") or config.model_type
        raise UnsupportedModel(
            f"the configuration of {name!r} makes no network: {_SHARING} is {shared}, of {counted(count, 'layer')}",
            hint="download config.json again, or repair it",
        )


def reach(config: Any) -> int:
    """The longest view the network was made for, in tokens.

    With YaRN it is the stretched length; some configurations (Qwen2.5's) state only the trained one.
    """
    trained = int(config.max_position_embeddings)
    stretched = (
        int(rope.get("factor") * rope["original_max_position_embeddings"])
        for rope in _rope_sets(config)
        if rope.get("rope_type") == "yarn" and rope.get("factor")
    )
    return max((trained, *stretched))


def query_scales(config: Any) -> tuple[QueryScale | None, ...]:
    """For each layer how it scales queries by their position, if it does."""
    count: int = config.num_hidden_layers
    if config.model_type == "llama4_text":
        if not config.attn_temperature_tuning:
            return (None,) * count
        scale = QueryScale(float(config.attn_scale), int(config.floor_scale), first=1)
        return tuple(None if rotates else scale for rotates in config.no_rope_layers)
    if config.model_type not in ("ministral3", "mistral4"):
        return (None,) * count
    rope = config.rope_parameters
    scale = QueryScale(
        float(rope["llama_4_scaling_beta"]), int(rope["original_max_position_embeddings"])
    )
    return (scale,) * count


def chunks(config: Any) -> tuple[int | None, ...]:
    """For each layer the length of the chunks it attends in, if it does (see `LayerCall.chunk`)."""
    kinds = getattr(config, "layer_types", None) or [""] * config.num_hidden_layers
    return tuple(config.attention_chunk_size if kind == _CHUNKED else None for kind in kinds)


def nope_layers(config: Any, family: Family) -> tuple[bool, ...]:
    """For each layer, whether it has no positions at all."""
    count = config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or [""] * count
    # The list is called "no rope", yet a 1 in it says that the layer rotates.
    rotates = getattr(config, "no_rope_layers", None) or [1] * count
    bare = family.bare_kinds
    if family.bare_beside_windows and getattr(config, "sliding_window", None) is None:
        bare = frozenset()
    return tuple(
        kind in bare or not is_rotated for kind, is_rotated in zip(kinds, rotates, strict=True)
    )


def storing_layers(config: Any) -> tuple[int, ...]:
    """For each layer the one that stores the keys and values it reads: itself, or an earlier one of its kind.

    The linear layers of a hybrid store none and read none: for them it is the first full layer, which they never ask.
    The last `num_kv_shared_layers` layers of Gemma 4's small models make none of their own: they read those of
    the last layer before them that has the same type.
    """
    count = config.num_hidden_layers
    if config.model_type in HYBRIDS:
        full = config.layer_types.index("full_attention")
        return tuple(
            layer if kind == "full_attention" else full
            for layer, kind in enumerate(config.layer_types)
        )
    first_without = count - (getattr(config, _SHARING, None) or 0)
    if first_without == count:
        return tuple(range(count))
    last = {config.layer_types[layer]: layer for layer in range(first_without)}
    return tuple(
        layer if layer < first_without else last[config.layer_types[layer]]
        for layer in range(count)
    )


_STATE = (
    "its linear-attention or state-space layers keep one running state of a text instead of keys and values, so a "
    "block cannot be moved inside a view, or be read behind another text than the one it was written behind; only "
    f"methods that fork and never reorder are possible with such a state ({', '.join(FORKING)}), and this type's "
    "states are not read here yet"
)
_LEARNED = (
    "its positions are learned vectors added to the tokens (or biases, ALiBi) instead of rotations, "
    "so cached keys cannot be moved inside a view"
)
_INDEXED = (
    "an indexer beside its latent attention chooses the keys that a query reads over the whole view, and no "
    "backend here chooses keys"
)
_COMPRESSED = "its keys are compressed from tokens at fixed multiples of a position, so a block cannot be moved inside a view"
_TWICE = "each of its layers attends twice, and memory here has one store a layer"
_NORMED_BEHIND = (
    "it weighs q and k by learned norms behind the rotation, so a key that was stored for one position cannot "
    "be turned to another"
)
_REFUSED: dict[str, str] = {
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), _NORMED_BEHIND),
    "nemotron": "its attention (transformers' NemotronAttention) cannot be replaced from outside",
    **dict.fromkeys(
        (
            *("qwen4_exp", "qwen4_exp_text", "jamba", "mamba", "mamba2", "falcon_mamba"),
            *("falcon_h1", "kimi_linear", "bailing_hybrid", "inkling_text", "inkling2_text"),
            *("bamba", "zamba", "zamba2", "zaya", "granitemoehybrid", "lfm2", "lfm2_moe", "lfm3"),
            *("nemotron_h", "olmo_hybrid", "recurrent_gemma", "rwkv", "xlstm", "minimax"),
        ),
        _STATE,
    ),
    **dict.fromkeys(
        (
            *("bloom", "mpt", "gpt2", "gpt-sw3", "gpt_neo", "gpt_bigcode", "openai-gpt", "opt"),
            *("xglm", "biogpt", "ctrl"),
        ),
        _LEARNED,
    ),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "mistral_large4"), _INDEXED),
    "deepseek_v4": _COMPRESSED,
    "longcat_flash": _TWICE,
}
_OTHER_SENSES = ("text_config", "vision_config", "audio_config")
_BY_LAYER = {"head_dim", "num_key_value_heads"}  # may be others in other layers (Gemma 4)
_CAUSAL_TEXT = (None, False, "vision")  # Gemma 4's pictures are read both ways, and its text is not
_CHUNKED = "chunked_attention"
_PLAIN_LAYERS = {"full_attention", "sliding_attention"}


def refusal(config: Any) -> str | None:
    """Why this configuration cannot work here, or None if nothing is known against it."""
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder reads its whole input at once; only decoders have a cache to share"
    if config.model_type in _REFUSED:
        return _REFUSED[config.model_type]
    if any(getattr(config, part, None) is not None for part in _OTHER_SENSES):
        inner = getattr(getattr(config, "text_config", None), "model_type", None)
        inside = f" (model type {inner!r})" if inner else ""
        return (
            "it wraps a language model together with other modalities; "
            f"save its language model{inside} alone and load that"
        )
    strange = sorted(set(getattr(config, "per_layer_attributes", None) or ()) - _BY_LAYER)
    if strange:
        return f"its layers differ in {', '.join(strange)}; they may differ in {', '.join(sorted(_BY_LAYER))}"
    if getattr(config, "alibi", False):
        return _LEARNED
    if getattr(config, "use_bidirectional_attention", False) not in _CAUSAL_TEXT:
        return "its tokens also read those behind them; a growing block needs causal attention"
    return _layer_refusal(config) or _rope_refusal(config)


def _layer_refusal(config: Any) -> str | None:
    kinds = set(getattr(config, "layer_types", None) or ())
    if config.model_type in HYBRIDS:
        if "full_attention" not in kinds:
            return "none of its layers attends, and memory here is made of keys and values"
        kinds.discard("linear_attention")
    if getattr(config, "attention_chunk_size", None):
        kinds.discard(_CHUNKED)
    strange = sorted(kinds - _PLAIN_LAYERS)
    if not strange:
        return None
    if any("linear" in kind or "mamba" in kind or "conv" in kind for kind in strange):
        return _STATE
    return (
        f"it has layers of type {', '.join(strange)}; every layer must read all earlier tokens, a "
        "sliding window of them, or those of its chunk, of a length that the configuration gives"
    )


def _rope_refusal(config: Any) -> str | None:
    for rope in _rope_sets(config):
        if "dynamic" in str(rope.get("rope_type", rope.get("type"))):
            return (
                "dynamic NTK scaling changes all frequencies as the text grows, and keys that are "
                "already stored cannot follow"
            )
        # Of text alone all axes are equal, which is a plain rotation; a composite's text network may rely on it.
        if rope.get("mrope_section") and config.model_type not in HYBRIDS:
            return "its positions have several axes (text, height, width)"
    return None


def _rope_sets(config: Any) -> list[dict[str, Any]]:
    """The parameters of the rotations: one set, or one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return [p for p in parameters.values() if isinstance(p, dict)] or [parameters]
