"""Many tokens of a row through a layer that keeps a state, by kernels: against Hugging Face's own forward of that layer, and in float64.

Without a GPU the kernels run under Triton's interpreter, which cuts bfloat16 off where a GPU rounds, and multiplies in float32 whatever
precision a product asks for.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from manyhands.cache.states import EMPTY, RowStates
from manyhands.model import waves
from manyhands.model.delta import DeltaLayer
from manyhands.model.kernels import delta, delta_many
from manyhands.model.recurrent import StateCall, States, linear_layers, take_over
from manyhands.model.waves import Wave
from tests.covers import spared
from tests.model.test_delta import DEVICE, OFF, SLOTS, network

# Two rows fork from one text, one begins, one goes on from what another one leaves here; lengths around taps and chunks.
MIXED = RowStates((0, 1, 131, 133, 196, 197, 200), (3, 3, EMPTY, 2, 1, 4), (4, 5, 6, 7, 8, 1))


def both(
    model: Any, layer: int, rows: RowStates, monkeypatch: pytest.MonkeyPatch, size: float = 3.0
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Output, last inputs and states behind a pass of these rows, by Hugging Face's forward and by kernels."""
    states = States(model, SLOTS)
    store = states.stores[layer]
    torch.manual_seed(1)
    before = torch.randn_like(store.inputs), torch.randn_like(store.states)
    tokens = rows.row_indptr[-1]
    hidden = size * torch.randn(1, tokens, model.config.hidden_size).to(store.inputs)
    take_over(model)
    found = []
    for by_kernels in (False, True):
        monkeypatch.setattr(DeltaLayer, "serves", lambda *_, told=by_kernels: told)
        for kept, numbers in zip((store.inputs, store.states), before, strict=True):
            kept.copy_(numbers)
            kept[EMPTY] = 0
        with torch.inference_mode():
            hook = SimpleNamespace(states=StateCall.of(states, rows))
            out = linear_layers(model)[layer](hidden, manyhands_attend=hook)
        found.append((out.float(), store.inputs.clone(), store.states.clone()))
    return found


@pytest.mark.parametrize("dtype", OFF, ids=str)
@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text", *spared("qwen3_5_moe_text")])
def test_a_pass_is_hugging_face_s(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(name, dtype)
    for layer in linear_layers(model):
        theirs, ours = both(model, layer, MIXED, monkeypatch)
        print([((a - b).abs().max() / b.abs().max()).item() for a, b in zip(ours, theirs)])
