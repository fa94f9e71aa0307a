"""Whole engines over networks whose routers choose by sigmoids: the same logits and runs with fused modules and without.

Kernels run under Triton's interpreter, in float32, which a GPU leaves to the modelling code.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.model import experts, kernels
from manyhands.model.adapter import ModelAdapter
from manyhands.model.fusion import fuse_modules
from manyhands.strategies.base import Answer
from tests.engine.small import CONTEXT, NUM_IDS, TOKENIZER, counting, finish
from tests.model.families_zoo import tiny_model

pytest.importorskip("triton", reason="Triton exists for Linux alone")
from manyhands.model.kernels import experts as own

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="in float32, by the interpreter")
_SIZES: dict[str, Any] = {
    "vocab_size": NUM_IDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": TOKENIZER.eos_token_id,
    "tie_word_embeddings": False,
}
_ROUTED = {"n_routed_experts": 16, "num_experts_per_tok": 3, "n_shared_experts": 1}
_LATENT = {"kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 12, "v_head_dim": 12}
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "glm4_moe": (
        hf.Glm4MoeConfig,
        {
            **_ROUTED,
            **{"num_key_value_heads": 2, "head_dim": 8, "first_k_dense_replace": 1},
            **{"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5},
        },
    ),
    "deepseek_v3": (
        hf.DeepseekV3Config,
        {
            **{**_ROUTED, **_LATENT, "qk_rope_head_dim": 8, "num_key_value_heads": 4},
            **{"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
        },
    ),
    "minimax_m2": (
        hf.MiniMaxM2Config,
        {
            **{"num_local_experts": 16, "num_experts_per_tok": 3, "intermediate_size": 24},
            **{"num_key_value_heads": 2, "head_dim": 8},
        },
    ),
}


def _engine(name: str, fuse: str) -> tuple[Engine, int]:
    kind, settings = NETWORKS[name]
    model = tiny_model(kind(**{**_SIZES, **settings}))
    with torch.no_grad():
        for module in model.modules():
            for part, number in module.named_buffers(recurse=False):
                if part.endswith("correction_bias"):
                    number.copy_(torch.linspace(-0.4, 0.4, 16)[torch.arange(16) * 7 % 16])
    adapter = ModelAdapter(model)
    report = fuse_modules(adapter, fuse)
    return Engine(adapter, TOKENIZER, memory_tokens=4096), report.routers


def _logits(engine: Engine) -> Tensor:
    """Of three rows."""
    text = engine.text
    assert text is not None
    notes, alice, bob = Block("notes"), Block("alice"), Block("bob")
    return engine.forward(
        Step(
            [
                Row(View([notes]), text.encode("A shared beginning.")),
                Row(View([notes, bob, alice]), text.encode("I think")),
                Row(View([notes, alice, bob]), text.encode("No")),
            ]
        )
    )


def _said(engine: Engine) -> Answer:
    """Some tokens, one behind another."""
    run = engine.submit(counting(TOKENIZER.encode("I think"), 6))
    finish(engine, run)
    return run.result()


@pytest.mark.parametrize("name", NETWORKS)
def test_fused_engines_say_what_others_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng(devices=[]):
        plain, no_routers = _engine(name, "off")
        expected, said = _logits(plain), _said(plain)
        fused, routers = _engine(name, "on")
        assert (no_routers, routers) == (0, 2 if name == "minimax_m2" else 1)
        monkeypatch.setattr(kernels, "usable", lambda x: x.dtype == torch.float32)
        monkeypatch.setattr(experts, "DTYPES", (torch.float32,))
        choices: list[Any] = []
        made = own.choose

        def noted(*given: Any, **how: Any) -> Any:
            choices.append(how["correction"])
            return made(*given, **how)

        monkeypatch.setattr(own, "choose", noted)
        ours, told = _logits(fused), _said(fused)
    assert len(choices) >= 5 * routers
    assert all(each is not None for each in choices)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert told.text == said.text
    monkeypatch.setattr(
        own, "choose", lambda *given, **how: made(*given, **{**how, "correction": None})
    )
    without = _logits(_engine(name, "on")[0])
    assert float((without - expected).abs().max()) > 1e-2  # the correction is at stake
