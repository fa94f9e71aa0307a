"""Random weights in a real architecture: nothing that the meta device left behind may remain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from manyhands.errors import UnsupportedModel
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import dummy_model
from manyhands.model.self_test import exact_attention
from tests.model.families_zoo import some_tokens, tiny_models

CPU = torch.device("cpu")
ZOO = tiny_models()


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory given to a model from the meta device holds anything; here it is NaN every time."""
    empty = nn.Module.to_empty

    def poisoned(self: nn.Module, **options: Any) -> nn.Module:
        empty(self, **options)
        with torch.no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
        return self

    monkeypatch.setattr(nn.Module, "to_empty", poisoned)


@pytest.mark.parametrize("name", ZOO)
def test_nothing_is_left_uninitialised(name: str) -> None:
    config = ZOO[name]().config
    ordinary = hf.AutoModelForCausalLM.from_config(config)
    model = dummy_model(config, device=CPU, dtype=torch.float32)
    assert all(tensor.isfinite().all() for tensor in model.parameters())
    buffers = dict(ordinary.named_buffers())
    assert buffers  # rotary frequencies at least
    for key, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, buffers[key], rtol=0, atol=0)
    adapter = ModelAdapter(model)
    with torch.no_grad():
        logits = adapter.forward(some_tokens(8), None, exact_attention(adapter.ropes))
    assert logits.isfinite().all()
    assert logits.std() > 0


@pytest.mark.parametrize("name", ZOO)
def test_norms_start_as_the_family_starts_them(name: str) -> None:
    config = ZOO[name]().config
    norms = dict(hf.AutoModelForCausalLM.from_config(config).named_parameters())
    model = dummy_model(config, device=CPU, dtype=torch.float32)
    checked = [key for key, p in model.named_parameters() if "norm" in key and p.dim() == 1]
    assert checked
    for key in checked:
        assert torch.equal(model.get_parameter(key), norms[key]), key


def test_tied_weights_are_one_tensor() -> None:
    model = dummy_model(ZOO["gemma2"]().config, device=CPU, dtype=torch.bfloat16)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    untied = dummy_model(ZOO["llama"]().config, device=CPU, dtype=torch.bfloat16)
    assert untied.get_output_embeddings().weight is not untied.get_input_embeddings().weight


def test_matrices_and_experts_are_normal_and_the_seed_decides() -> None:
    config = ZOO["gpt_oss"]().config
    first, again, other = (
        dummy_model(config, device=CPU, dtype=torch.bfloat16, seed=seed) for seed in (1, 1, 2)
    )
    for (name, a), b, c in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert a.dtype == torch.bfloat16
        assert torch.equal(a, b), name
        if a.dim() > 1 and not name.endswith("bias"):
            assert not torch.equal(a, c), name
            assert float(a.detach().float().std()) == pytest.approx(0.02, rel=0.2), name


def test_the_callers_random_numbers_and_configuration_are_left_alone() -> None:
    config = ZOO["qwen3"]().config
    config.quantization_config = {"quant_method": "mxfp4"}
    before = torch.random.get_rng_state()
    dummy_model(config, device=CPU, dtype=torch.float32)
    assert torch.equal(before, torch.random.get_rng_state())
    assert config.quantization_config == {"quant_method": "mxfp4"}


def test_a_refused_architecture_is_refused_before_anything_is_built() -> None:
    with pytest.raises(UnsupportedModel, match="jamba"):
        dummy_model(hf.JambaConfig(), device=CPU, dtype=torch.float32)
