"""A pass of a few layers: which layers it makes, that nothing of it stays, and where layers differ, all of them."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from manyhands.attention.attend import AttendFn, LayerCall
from manyhands.model.adapter import ModelAdapter
from manyhands.model.fusion import fuse_modules
from manyhands.model.self_test import exact_attention
from tests.engine.small import small_config
from tests.model.families_zoo import some_tokens, tiny_model, tiny_models

TOKENS = some_tokens(12)
LAYERS = 6
ZOO = tiny_models()


def attended(adapter: ModelAdapter) -> tuple[list[int], Tensor]:
    """The layers that a forward makes, and its logits."""
    layers: list[int] = []
    exact = exact_attention(adapter.ropes)

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        layers.append(call.layer)
        return exact(q, k, v, call)

    watched: AttendFn = attend
    with torch.no_grad():
        return layers, adapter.forward(TOKENS, None, watched)


@pytest.mark.parametrize("is_fused", [False, True], ids=["as it is", "fused"])
def test_three_layers_are_made_and_nothing_of_it_stays(is_fused: bool) -> None:
    adapter = ModelAdapter(tiny_model(small_config(layers=LAYERS)))
    if is_fused:
        fuse_modules(adapter, "auto")
    everything = attended(adapter)
    assert everything[0] == [*range(LAYERS)]
    for _ in range(2):  # the second time it is known that they are alike
        with adapter.few_layers():
            few, logits = attended(adapter)
        assert few == [0, 1, LAYERS - 1]
        assert logits.shape == everything[1].shape
    again = attended(adapter)
    assert again[0] == everything[0]
    assert torch.equal(again[1], everything[1])


def test_an_error_within_leaves_the_network_whole() -> None:
    adapter = ModelAdapter(tiny_model(small_config(layers=LAYERS)))
    with pytest.raises(RuntimeError, match="in the midst"), adapter.few_layers():
        raise RuntimeError("in the midst")
    assert attended(adapter)[0] == [*range(LAYERS)]


def wider(layers: nn.ModuleList) -> None:
    """A product of another shape in one layer."""
    mlp: nn.Module = layers[3].mlp  # type: ignore[assignment]
    for name, sizes in (("gate_proj", (32, 96)), ("up_proj", (32, 96)), ("down_proj", (96, 32))):
        setattr(mlp, name, nn.Linear(*sizes, bias=False))


def windowed(layers: nn.ModuleList) -> None:
    """A setting of another value in one layer."""
    layers[2].self_attn.sliding_window = 4  # type: ignore[union-attr]


def other_kind(layers: nn.ModuleList) -> None:
    """A module of another kind in one layer."""
    layers[4].mlp.act_fn = nn.GELU()  # type: ignore[union-attr]


def numbered(layers: nn.ModuleList) -> None:
    """Layers that hold their numbers under a name of their own: each is like no other."""
    for number, layer in enumerate(layers):
        layer.place = number  # type: ignore[assignment]


@pytest.mark.parametrize("change", [wider, windowed, other_kind, numbered])
def test_where_one_layer_differs_all_are_made(change: object) -> None:
    assert callable(change)
    adapter = ModelAdapter(tiny_model(small_config(layers=LAYERS)))
    change(adapter.model.base_model.layers)
    with adapter.few_layers():
        assert attended(adapter)[0] == [*range(LAYERS)]


def test_what_attention_is_told_counts_too() -> None:
    adapter = ModelAdapter(tiny_model(small_config(layers=LAYERS)))
    adapter.chunks = (None, None, 8, None, None, None)
    with adapter.few_layers():
        assert attended(adapter)[0] == [*range(LAYERS)]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_of_three_layers_none_is_left_out(layers: int) -> None:
    adapter = ModelAdapter(tiny_model(small_config(layers=layers)))
    with adapter.few_layers():
        assert attended(adapter)[0] == [*range(layers)]


@pytest.mark.parametrize("name", ZOO)
def test_every_family_is_whole_behind_it(name: str) -> None:
    """Also those whose code indexes its layers in ways of its own."""
    adapter = ModelAdapter(ZOO[name]())
    if adapter.keeps_states:
        pytest.skip("a hybrid wants states, and its layers differ")
    fuse_modules(adapter, "auto")
    before = attended(adapter)
    with adapter.few_layers():
        few, _ = attended(adapter)
    assert set(few) <= set(before[0])
    after = attended(adapter)
    assert after[0] == before[0]
    assert torch.equal(after[1], before[1])


def test_the_families_of_one_kind_of_layers_are_made_short() -> None:
    """Control: the check is not so strict that no network passes it."""
    for config in (
        hf.LlamaConfig(num_hidden_layers=5, hidden_size=32, intermediate_size=48, vocab_size=1000),
        hf.Qwen2Config(num_hidden_layers=5, hidden_size=32, intermediate_size=48, vocab_size=1000),
        small_config(layers=5),
    ):
        if not isinstance(config, hf.Qwen3Config):
            config.num_attention_heads, config.num_key_value_heads = 4, 2
        adapter = ModelAdapter(tiny_model(config))
        fuse_modules(adapter, "auto")
        with adapter.few_layers():
            assert attended(adapter)[0] == [0, 1, 4], type(config).__name__
