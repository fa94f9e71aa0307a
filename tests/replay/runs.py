"""Real runs of tiny random networks, recorded together with the logits they saw."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from manyhands.cache.step import Choice
from manyhands.engine.engine import Engine
from manyhands.model.adapter import ModelAdapter
from manyhands.model.seeded import seeded
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.prompts.load import Prompts
from manyhands.replay.trace import Trace, parse_trace, record
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import Away, EndSettings, TeamSettings
from manyhands.text import Text
from tests.model.families_zoo import tiny_model, tiny_models
from tests.strategies.driver import PROMPT, small_text

VOCABULARY = 448
TEXT = small_text()
# The words of a random network: enough to end steps and to close the finisher's box now and then.
ALLOWED = frozenset(
    token for piece in ("a", "b", " c", ".", ".\n\n", "\n", "}") for token in TEXT.encode(piece)
)
SETTINGS = TeamSettings(
    budget=22,
    check_every=12,
    snapshots=(3, 9),
    away=(Away(0, 6, 8),),
    choice=Choice(temperature=1.0, allowed=ALLOWED),
    seed=2,
    end=EndSettings(finisher_tokens=6, reply_tokens=5),
)


@cache
def network(family: str, dtype: torch.dtype = torch.float32) -> ModelAdapter:
    """A tiny network of this family with our small vocabulary."""
    config = tiny_models()[family]().config
    config.vocab_size = config.vocab_size_per_layer_input = VOCABULARY  # the second is Gemma 4's
    return ModelAdapter(tiny_model(config).to(dtype), name=family)  # type: ignore[arg-type]


def recorded(adapter: ModelAdapter, strategy: Strategy) -> tuple[Trace, Tensor, Answer]:
    """The run's trace as it comes back from a file, its logits [R, V], its answer."""
    engine = Engine(adapter, TEXT.tokenizer, memory_tokens=20_000)
    lines: list[dict[str, Any]] = []
    seen: list[Tensor] = []

    def watched(*args: Any) -> Tensor:
        seen.append(ModelAdapter.forward(adapter, *args))
        return seen[-1].clone()

    with patch.object(adapter, "forward", watched):
        answer = engine.run(record(strategy, {"model": adapter.name}, lines.append))
    return parse_trace(json.loads(json.dumps(lines))), torch.cat(seen), answer


_team_runs: WeakKeyDictionary[ModelAdapter, dict[str, tuple[Trace, Tensor, Answer]]] = (
    WeakKeyDictionary()
)


def team_run(adapter: ModelAdapter, settings: TeamSettings) -> tuple[Trace, Tensor, Answer]:
    """A team at work on a small problem: once for each network and settings, and then a copy of what it was."""
    known = _team_runs.setdefault(adapter, {})
    if repr(settings) not in known:
        strategy = hogwild("2+3", Text(TEXT.tokenizer), settings, PROMPT)
        known[repr(settings)] = recorded(adapter, strategy)
    return deepcopy(known[repr(settings)])


RECIPE = Path(__file__).parents[2] / "recipes" / "bundled"


@cache
def list_text() -> Text:
    """The bundled model's vocabulary, in which the scripted team speaks."""
    return Text(AutoTokenizer.from_pretrained(RECIPE / "tokenizer"))


LIST_PROMPT = TeamPrompt(
    rules="{names} solve this list together.\n\n{problem}",
    solo_rules="Solve this list alone.\n\n{problem}",
)


LIST_PROMPTS = Prompts(team=LIST_PROMPT)


def list_network() -> ModelAdapter:
    """A network small enough to train in a test, the same one every time."""
    config = Qwen3Config(
        vocab_size=len(list_text().tokenizer.get_vocab()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with seeded(7):
        return ModelAdapter(Qwen3ForCausalLM(config), name="small")
