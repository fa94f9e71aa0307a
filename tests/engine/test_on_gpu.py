"""The same numbers on a GPU: skipped where there is none, run on one before a release.

Float32 on both sides, with TF32 off: what is left is the order of sums, some 1e-6 on logits of size 1.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import manyhands.bundled
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.model.adapter import ModelAdapter
from manyhands.prompts import load_prompt
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import TeamSettings
from manyhands.tasks.graders import grade_list
from manyhands.tasks.problem_list import problem_list
from tests.model.families_zoo import some_tokens, tiny_models

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def conversation(engine: Engine) -> torch.Tensor:
    """Two workers, wide rows, a desk that joins the history: all logits, on the CPU."""
    tokens = [int(token) for token in some_tokens(64)]
    prompt, alice, bob = Block(), Block(), Block()
    logits = [
        engine.forward(
            Step(
                [
                    Row(View([prompt]), tokens[:20]),
                    Row(View([prompt, bob, alice]), tokens[20:25]),
                    Row(View([prompt, alice, bob]), tokens[25:28]),
                ]
            )
        )
    ]
    prompt.freeze(), alice.freeze()
    fresh = Block()
    views = View([prompt, alice, bob, fresh]), View([prompt, alice, fresh, bob])
    for at in range(30, 40, 2):
        rows = (Row(view, tokens[at + i : at + i + 1]) for i, view in enumerate(views))
        logits.append(engine.forward(Step(rows)))
    return torch.cat([x.float().cpu() for x in logits])


def engine_of(name: str, device: str, dtype: torch.dtype) -> Engine:
    model = tiny_models()[name]()
    model.to(device=device, dtype=dtype)
    return Engine(ModelAdapter(model), memory_tokens=2048)


@pytest.mark.parametrize("name", sorted(tiny_models()))
def test_the_same_logits_as_on_the_cpu(name: str) -> None:
    here = conversation(engine_of(name, "cpu", torch.float32))
    there = conversation(engine_of(name, "cuda", torch.float32))
    assert (here - there).abs().max() < 1e-4


@pytest.mark.parametrize("name", sorted(tiny_models()))
def test_no_layer_waits_for_the_device(name: str) -> None:
    engine = engine_of(name, "cuda", torch.bfloat16)
    conversation(engine)  # whatever is set up once
    usual, forward = torch.cuda.get_sync_debug_mode(), engine.adapter.forward

    def strict(*arguments: object) -> torch.Tensor:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return forward(*arguments)  # type: ignore[arg-type]
        finally:
            torch.cuda.set_sync_debug_mode(usual)

    engine.adapter.forward = strict  # type: ignore[method-assign]
    assert conversation(engine).isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_bundled_team(dtype: str) -> None:
    folder = manyhands.bundled.path()
    engine = Engine.load(folder, device="cuda", dtype=dtype, memory_tokens=32768)
    prompt = load_prompt(folder / "manyhands.toml")
    lists = [problem_list(random.Random(f"gpu/{i}"), 5, "mixed") for i in range(16)]
    settings = TeamSettings(workers=3, budget=400)
    assert engine.text is not None
    text = engine.text
    answers = engine.run_all(hogwild(x.question, text, settings, prompt) for x in lists)
    scores = [grade_list(a.answer, x.gold).value for a, x in zip(answers, lists, strict=True)]
    assert sum(scores) / len(scores) > 0.95


def test_dummy_weights_of_a_real_size(tmp_path: Path) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = Engine.load(tmp_path, device="cuda", weights="dummy")
    assert engine.adapter.dtype == torch.bfloat16
    assert engine.pool.num_slots > 100_000
    assert conversation(engine).isfinite().all()
