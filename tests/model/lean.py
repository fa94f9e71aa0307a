"""A Qwen3 by fewer calls of Python: the same operations in the same order, so the same numbers to the bit.

Most of a pass of a network of a few kilobytes is Hugging Face's own Python: modules that call modules, settings that are
looked up, a rotation by no angle. Tests of what stands around a network need none of it. Weights are read at each pass; what
hangs on a module within a layer (hooks, adapters, fused products) is not run.
"""

from __future__ import annotations

from types import MethodType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM


def make_lean(model: Any) -> None:
    """Have a network that an adapter has taken over run by what stands here."""
    assert type(model) is Qwen3ForCausalLM
    assert set(model.config.layer_types or ()) == {"full_attention"}
    model.model.forward = MethodType(_layers, model.model)
    model.forward = MethodType(_logits, model)


def _logits(model: Any, *, logits_to_keep: int | Tensor = 0, **given: Any) -> SimpleNamespace:
    states = model.model(**given).last_hidden_state
    if isinstance(logits_to_keep, Tensor):
        states = states[:, logits_to_keep]
    return SimpleNamespace(logits=F.linear(states, model.lm_head.weight))


def _layers(base: Any, *, input_ids: Tensor, **given: Any) -> SimpleNamespace:
    config = base.config
    eps, head = config.rms_norm_eps, config.head_dim
    attention = AttentionInterface()[config._attn_implementation]
    states = F.embedding(input_ids, base.embed_tokens.weight)
    for layer in base.layers:
        heads, mlp = layer.self_attn, layer.mlp
        x = _normed(states, layer.input_layernorm, eps)
        q, k, v = (
            F.linear(x, each.weight).view(1, x.shape[1], -1, head)
            for each in (heads.q_proj, heads.k_proj, heads.v_proj)
        )
        q, k = _normed(q, heads.q_norm, eps), _normed(k, heads.k_norm, eps)
        rows = (each.transpose(1, 2) for each in (q, k, v))
        out, _ = attention(heads, *rows, None, scaling=heads.scaling, **given)
        states = states + F.linear(out.flatten(2), heads.o_proj.weight)
        x = _normed(states, layer.post_attention_layernorm, eps)
        gated = F.silu(F.linear(x, mlp.gate_proj.weight)) * F.linear(x, mlp.up_proj.weight)
        states = states + F.linear(gated, mlp.down_proj.weight)
    return SimpleNamespace(last_hidden_state=_normed(states, base.norm, eps))


def _normed(x: Tensor, norm: Any, eps: float) -> Tensor:
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    normed: Tensor = norm.weight * (x * scale)
    return normed
