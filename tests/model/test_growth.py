"""A grown network computes what it did, and what is new can learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from manyhands.errors import InvalidRequest, UnsupportedModel
from manyhands.model.growth import grown
from tests.model.families_zoo import tiny_model, tiny_models

IDS = torch.arange(1, 24)[None]


def small(family: str) -> PreTrainedModel:
    torch.manual_seed(1)
    config = tiny_models()[family]().config
    config.vocab_size = 64
    return tiny_model(config).float()  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("more", [0, 1, 3])
def test_nothing_changes_at_first(family: str, more: int) -> None:
    model = small(family)
    before = model.config.num_hidden_layers
    bigger = grown(model, before + more)
    assert bigger.config.num_hidden_layers == before + more
    assert (model.config.num_hidden_layers, len(bigger.model.layers)) == (before, before + more)
    with torch.no_grad():
        assert torch.equal(bigger(IDS).logits, model(IDS).logits)


def test_new_layers_learn_at_once() -> None:
    model = small("qwen3")
    bigger = grown(model, model.config.num_hidden_layers + 1)
    new = [layer for layer in bigger.model.layers if not layer.mlp.down_proj.weight.any()]
    assert len(new) == 1
    bigger(IDS, labels=IDS).loss.backward()
    assert new[0].mlp.down_proj.weight.grad.any()
    assert new[0].self_attn.o_proj.weight.grad.any()


def test_what_cannot_grow_is_refused() -> None:
    model = small("qwen3")
    with pytest.raises(InvalidRequest, match="has 2 layers and shall grow to 1"):
        grown(model, 1)
    model.model.layers[1].mlp.down_proj = nn.Identity()
    with pytest.raises(UnsupportedModel, match="layers of several kinds, so it cannot grow"):
        grown(model, 3)
    del model.model.layers[0].mlp.down_proj
    del model.model.layers[1].mlp.down_proj
    with pytest.raises(UnsupportedModel, match=r"has no mlp\.down_proj, so it cannot grow"):
        grown(model, 3)
