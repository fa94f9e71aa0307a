"""Refusals come with their reason; model types nobody knows are examined."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from manyhands.attention.attend import QueryScale
from manyhands.errors import UnsupportedModel
from manyhands.model.families import (
    FAMILIES,
    Family,
    chunks,
    known_family,
    nope_layers,
    query_scales,
    reach,
    refusal,
    storing_layers,
)
from manyhands.model.self_test import self_test, tiny_network, tiny_twin
from tests.model.families_zoo import repeating_models, tiny_models

ZOO = tiny_models()

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic NTK"),
    ("qwen2", {"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, "several axes"),
    ("llama4_text", {"attention_chunk_size": None}, "chunked_attention"),
    ("qwen3_next", {"layer_types": ["linear_attention"] * 48}, "none of its layers attends"),
    ("qwen4_exp_text", {}, "running state"),
    ("qwen3_5", {}, "other modalities"),
    ("jamba", {}, "running state"),
    ("mamba", {}, "running state"),
    ("mamba2", {}, "running state"),
    ("falcon_h1", {}, "running state"),
    ("bamba", {}, "running state"),
    ("zamba2", {}, "running state"),
    ("granitemoehybrid", {}, "running state"),
    ("lfm2", {}, "running state"),
    ("nemotron_h", {}, "running state"),
    ("recurrent_gemma", {}, "running state"),
    ("bart", {}, "encoder"),
    ("pegasus", {}, "encoder"),
    ("bloom", {}, "ALiBi"),
    ("mpt", {}, "ALiBi"),
    ("gpt2", {}, "learned"),
    ("opt", {}, "learned"),
    ("falcon", {"alibi": True}, "ALiBi"),
    ("hunyuan_v1_dense", {}, "norms behind the rotation"),
    ("hunyuan_v1_moe", {}, "norms behind the rotation"),
    ("nemotron", {}, "NemotronAttention"),
    ("deepseek_v32", {}, "an indexer"),
    ("deepseek_v4", {}, "are compressed"),
    ("longcat_flash", {}, "attends twice"),
    ("gemma3", {}, "other modalities"),
    ("gemma4", {}, "other modalities"),
    ("mistral3", {}, "other modalities"),
    ("qwen3", {"layer_types": ["linear_attention"] * 32}, "running state"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 32}, "chunked_attention"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "causal"),
    ("gemma4_text", {"use_bidirectional_attention": "all"}, "causal"),
    ("llama", {"per_layer_config": {0: {"intermediate_size": 8}}}, "differ in intermediate_size"),
]


@pytest.mark.parametrize(("model_type", "edits", "reason"), REFUSED)
def test_what_cannot_work_is_refused_with_its_reason(
    model_type: str, edits: dict[str, Any], reason: str
) -> None:
    config = hf.CONFIG_MAPPING[model_type]()
    for key, value in edits.items():
        setattr(config, key, value)
    assert reason in (refusal(config) or "")
    with pytest.raises(UnsupportedModel, match=model_type) as caught:
        known_family(config)
    assert "Llama" in caught.value.hint


def test_every_known_family_passes() -> None:
    for build in (*tiny_models().values(), *repeating_models().values()):
        config = build().config
        assert refusal(config) is None
        assert known_family(config) is FAMILIES[config.model_type]


def test_the_name_of_a_multimodal_models_language_model_is_given() -> None:
    assert "'gemma3_text'" in (refusal(hf.CONFIG_MAPPING["gemma3"]()) or "")


def test_pictures_that_are_read_both_ways_leave_text_causal() -> None:
    """Of Gemma 4's larger sizes: the language model alone never meets a picture."""
    assert refusal(hf.Gemma4TextConfig(use_bidirectional_attention="vision")) is None


def test_an_unknown_type_is_not_taken_without_examination() -> None:
    with pytest.raises(UnsupportedModel, match="not in the table"):
        known_family(hf.CONFIG_MAPPING["persimmon"]())


def test_chunks_and_scaled_queries_are_of_different_layers() -> None:
    config = hf.Llama4TextConfig(num_hidden_layers=8)
    scale = QueryScale(0.1, span=8192, first=1)
    assert chunks(config) == (8192, 8192, 8192, None) * 2
    assert query_scales(config) == (None, None, None, scale) * 2
    config.attn_temperature_tuning = False
    assert query_scales(config) == (None,) * 8
    assert chunks(hf.LlamaConfig(num_hidden_layers=2)) == (None, None)


def test_how_long_a_view_may_be() -> None:
    def yarn(length: int) -> hf.Qwen2Config:
        rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
        rope["original_max_position_embeddings"] = 32768
        return hf.Qwen2Config(max_position_embeddings=length, rope_parameters=rope)

    assert reach(yarn(32768)) == reach(yarn(131072)) == 131072
    assert reach(hf.Qwen3Config(max_position_embeddings=40960)) == 40960
    assert reach(tiny_models()["phi3_longrope"]().config) == 96
    assert reach(tiny_models()["olmo3"]().config) == 512


def test_layers_without_positions() -> None:
    config = hf.SmolLM3Config(num_hidden_layers=4, no_rope_layers=[1, 1, 0, 1])
    assert nope_layers(config, FAMILIES["smollm3"]) == (False, False, True, False)
    kinds = Family("x", "X", "", bare_kinds=frozenset({"full_attention"}))
    two = hf.Qwen3Config(
        num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], sliding_window=4
    )
    assert nope_layers(two, kinds) == (False, True)


# Its default configuration cannot run.
INCOMPLETE: dict[str, dict[str, Any]] = {"deepseek_v2": {"num_experts_per_tok": 2}}


@pytest.mark.parametrize("model_type", sorted({m().config.model_type for m in ZOO.values()}))
def test_the_examination_agrees_with_the_table(model_type: str) -> None:
    """Were a family not in the table, it would be accepted, with the same pairs."""
    found = self_test(hf.CONFIG_MAPPING[model_type](**INCOMPLETE.get(model_type, {})))
    assert found.interleaved == FAMILIES[model_type].interleaved
    assert found.bare_kinds == frozenset()


@pytest.mark.parametrize(
    ("model_type", "interleaved", "bare"),
    [
        ("cohere", True, False),
        ("exaone4", False, True),  # layers without a window have no positions
    ],
)
def test_the_examination_finds_pairs_and_layers_without_positions(
    model_type: str, interleaved: bool, bare: bool
) -> None:
    found = self_test(hf.CONFIG_MAPPING[model_type]())
    assert found.interleaved == interleaved
    assert found.bare_kinds == ({"full_attention"} if bare else frozenset())


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("nanochat", "came out different by"),  # rotates the other way round
        ("diffllama", "attends where"),  # attends twice per layer
        ("jetmoe", "shapes"),  # a choice of experts makes the queries
        ("stablelm", "StableLmAttention was called without its hook"),
        (
            "gptj",
            "AttentionInterface|layer_types",
        ),  # its sizes have names that no twin shrinks; from 5.24 on it has no types of layers
        ("bert", "no rotary position modules"),
        ("blt", "could not run"),
    ],
)
def test_an_unknown_type_that_does_not_work_is_refused(model_type: str, reason: str) -> None:
    sizes = (
        {"n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 16} if model_type == "gptj" else {}
    )
    with pytest.raises(UnsupportedModel, match=reason) as caught:
        self_test(hf.CONFIG_MAPPING[model_type](**sizes))  # type: ignore[arg-type]
    assert "Llama" in caught.value.hint


class _Shifted(nn.Module):
    """Adds to each token the one before it in the pass, as a short convolution does."""

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.pad(x, (0, 0, 1, 0))[..., :-1, :]


class _Counted(nn.Module):
    """Scales each token by its place in the pass."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 0.1 * torch.arange(x.shape[-2]))[:, None]


@pytest.mark.parametrize("mixes", [_Shifted, _Counted, None])
def test_what_mixes_or_counts_tokens_besides_attention_is_refused(
    mixes: type[nn.Module] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of one text it agrees; in a pass the neighbours are other rows' tokens."""

    def network(config: Any) -> Any:
        model: Any = tiny_network(config)
        if mixes is not None:
            model.model.layers[0].mlp = nn.Sequential(mixes(), model.model.layers[0].mlp)
        return model

    monkeypatch.setattr("manyhands.model.self_test.tiny_network", network)
    config = hf.CONFIG_MAPPING["granite"]()
    if mixes is None:
        assert not self_test(config).interleaved
        return
    with pytest.raises(UnsupportedModel, match="fed in another order, so something besides"):
        self_test(config)


def test_the_examination_is_silent_and_leaves_no_trace(capfd: pytest.CaptureFixture[str]) -> None:
    config = hf.CONFIG_MAPPING["granite"]()
    before, random = config.to_dict(), torch.random.get_rng_state()
    capfd.readouterr()
    self_test(config)
    assert capfd.readouterr() == ("", "")
    assert config.to_dict() == before
    assert torch.equal(torch.random.get_rng_state(), random)


def test_the_twin_of_a_network_whose_layers_differ() -> None:
    """As Gemma 4 E2B: a store of each kind is left, and layers that read it; heads keep their sizes."""
    kinds = (["sliding_attention"] * 4 + ["full_attention"]) * 3
    config = hf.Gemma4TextConfig(
        num_hidden_layers=15,
        layer_types=kinds,
        num_key_value_heads=1,
        num_kv_shared_layers=10,
        vocab_size_per_layer_input=1 << 18,
    )
    tiny = tiny_twin(config)
    assert [layer.head_dim for layer in tiny.per_layer_config] == [256] * 4 + [512] + [256] * 3
    assert {layer.num_key_value_heads for layer in tiny.per_layer_config} == {1}
    assert storing_layers(tiny) == (0, 1, 2, 3, 4, 3, 3, 3)
    assert tiny.vocab_size_per_layer_input < 100
    assert storing_layers(config)[-2:] == (3, 4)


def test_the_twin_keeps_what_matters_and_shrinks_the_rest() -> None:
    config = hf.Gemma3TextConfig(num_hidden_layers=12, hidden_size=2048, head_dim=256)
    tiny = tiny_twin(config)
    assert tiny.num_hidden_layers == len(tiny.layer_types) == 8
    assert tiny.layer_types == config.layer_types[:8]  # type: ignore[index]
    assert tiny.head_dim == 256
    assert tiny.sliding_window < 24
    assert config.num_hidden_layers == 12
