"""Layers that store nothing, and read what an earlier layer of their kind stored (Gemma 4's small models)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import transformers as hf
from torch import Tensor

from manyhands.attention.store import LayerStore
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.errors import UnsupportedModel
from manyhands.model import adapter as adapting
from manyhands.model.adapter import ModelAdapter, weight_bytes
from manyhands.model.families import storing_layers
from manyhands.model.memory import Memory, token_bytes
from manyhands.model.self_test import self_test
from tests.engine.small import CONTEXT, NUM_IDS, executor_of, small_engine, team
from tests.engine.test_preemption import SAMPLED
from tests.model.families_zoo import tiny_models
from tests.model.test_conformance import VISIBLE, _worst

NAME = "gemma4_shared"  # layers: window, window, full; and two that read the second and the third
STORED_BY = (0, 1, 2, 1, 2)


@pytest.fixture
def engine() -> Engine:
    return Engine(ModelAdapter(tiny_models()[NAME]()), memory_tokens=512)


def test_which_layer_stores() -> None:
    assert storing_layers(tiny_models()[NAME].args[0]) == STORED_BY
    small = hf.Gemma4TextConfig(num_hidden_layers=12, num_kv_shared_layers=6)
    assert storing_layers(small) == (0, 1, 2, 3, 4, 5, 4, 4, 4, 4, 4, 5)
    assert storing_layers(hf.Gemma4TextConfig(num_hidden_layers=3)) == (0, 1, 2)
    assert storing_layers(hf.LlamaConfig(num_hidden_layers=2)) == (0, 1)


def test_a_token_takes_room_in_layers_that_store_alone(engine: Engine) -> None:
    memory: Memory = executor_of(engine).memory
    assert [memory.stores.index(store) for store in memory.stores] == list(STORED_BY)
    assert [len(stack.stores) for stack in memory.stacks] == [2, 1]
    numbers = 2 * 2 * (16 + 16) + 2 * (32 + 32)  # layers, heads, key and value
    assert token_bytes(executor_of(engine).adapter) == 4 * numbers
    slots = memory.stores[0].keys.shape[0]
    assert memory.num_bytes == slots * 4 * numbers


def test_each_store_is_written_once_a_pass(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[LayerStore] = []
    append = TorchBackend.append

    def noted(self: TorchBackend, store: LayerStore, *given: Any) -> None:
        written.append(store)
        append(self, store, *given)

    monkeypatch.setattr(TorchBackend, "append", noted)
    engine.forward(Step([Row(View([Block()]), (1, 2, 3))]))
    assert written == list(executor_of(engine).memory.stores[:3])


def test_control_a_layer_that_reads_another_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same kind and shape: only its numbers are others."""
    monkeypatch.setattr(adapting, "storing_layers", lambda config: (0, 1, 2, 0, 2))
    assert _worst(NAME, 2, double=False) > VISIBLE


def test_a_network_whose_layer_makes_keys_of_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its logits agree all the same: the examination has no memory."""
    config = tiny_models()["llama"].args[0]
    assert self_test(config).interleaved is False
    monkeypatch.setattr(adapting, "storing_layers", lambda config: (0, 0))
    with pytest.raises(UnsupportedModel, match="layer 1 should read what layer 0 stored"):
        self_test(config)


def test_runs_that_come_back_to_memory() -> None:
    """A run that had to make room is written anew, by the layers that store."""
    config = copy.deepcopy(tiny_models()[NAME].args[0])
    config.vocab_size = config.vocab_size_per_layer_input = NUM_IDS
    config.max_position_embeddings = CONTEXT
    few, many = small_engine(640, 3.0, config=config), small_engine(config=config)
    teams = [team(2, choice=SAMPLED, seed=seed, budget=20) for seed in range(3)]
    answers = [answer.text for answer in few.run_all(teams)]
    teams = [team(2, choice=SAMPLED, seed=seed, budget=20) for seed in range(3)]
    assert answers == [answer.text for answer in many.run_all(teams)]
    assert few.num_preemptions > 0


@pytest.mark.parametrize(
    ("name", "looked_up"), [(NAME, "embed_tokens_per_layer"), ("llama4_text", "embed_tokens")]
)
def test_tables_that_are_looked_up_are_not_read(name: str, looked_up: str) -> None:
    """Gemma 4's second table of embeddings has a row per token for every layer. Of Llama 4 all experts are read."""
    adapter = ModelAdapter(tiny_models()[name]())
    model: Any = adapter.model
    table: Tensor = model.base_model.get_submodule(looked_up).weight
    everything = sum(
        x.numel() * x.element_size()
        for x in {x.data_ptr(): x for x in (*model.parameters(), *model.buffers())}.values()
    )
    assert weight_bytes(adapter) == everything - table.numel() * table.element_size()
