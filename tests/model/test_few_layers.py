"""A pass of a few layers: which layers it makes, that nothing of it stays, and where layers differ, all of them."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from manyhands.attention.attend import AttendFn, LayerCall
from manyhands.model.adapter import ModelAdapter
from manyhands.model.fusion import fuse_modules
from manyhands.model.self_test import exact_attention
from tests.engine.small import small_config
from tests.model.families_zoo import configurations, some_tokens, tiny_model

TOKENS = some_tokens(12)
LAYERS = 6
CONFIGURATIONS = configurations()
# The configurations of these say something of each layer by its number, so they are made no longer here.
LISTED = {"gemma4_text", "gemma4_shared", "llama4_text", "smollm3"}
SHORT = sorted({*CONFIGURATIONS} - LISTED)


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
        few, logits = adapter.with_few_layers(lambda: attended(adapter))
        assert few == [0, 1, LAYERS - 1]
        assert logits.shape == everything[1].shape
    again = attended(adapter)
    assert again[0] == everything[0]
    assert torch.equal(again[1], everything[1])


@pytest.fixture
def _no_garbage() -> Iterator[None]:
    """Collections of garbage swallow an interrupt that strikes in them."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_garbage")
def test_an_interrupt_at_any_line_leaves_the_network_whole() -> None:
    """The line that puts the whole network back calls nothing, so no signal is looked at in it."""
    adapter = ModelAdapter(tiny_model(small_config(layers=LAYERS)))
    layers, code = adapter.model.base_model.layers, ModelAdapter.with_few_layers.__code__
    last = code, max(line for *_, line in code.co_lines() if line)
    seen: list[list[int]] = []
    left = at = 0

    def work() -> None:
        sys.settrace(None)  # the pass itself has many lines
        seen.append(attended(adapter)[0])
        sys.settrace(trace)  # type: ignore[arg-type]

    def trace(frame: FrameType, event: str, value: object) -> object:
        nonlocal left
        if "_dynamo" in frame.f_code.co_filename:
            return None  # a weak reference's callback, in which Python swallows an interrupt, too
        left -= (frame.f_code, frame.f_lineno) != last
        if left == 0:
            raise KeyboardInterrupt
        return trace

    adapter.with_few_layers(work)
    while True:
        at += 1
        left, struck = at, False
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            adapter.with_few_layers(work)
        except KeyboardInterrupt:
            struck = True
        sys.settrace(None)
        assert adapter.model.base_model.layers is layers, at
        assert attended(adapter)[0] == [*range(LAYERS)], at
        if not struck:
            break
    assert at > 20  # control: it was struck, until it came through
    assert seen
    assert all(layers == [0, 1, LAYERS - 1] for layers in seen)


def test_another_engine_of_the_network_makes_all_layers_meanwhile() -> None:
    model = tiny_model(small_config(layers=LAYERS))
    adapter, other = ModelAdapter(model), ModelAdapter(model)
    few, all_of_them = adapter.with_few_layers(lambda: (attended(adapter), attended(other)))
    assert few[0] == [0, 1, LAYERS - 1]
    assert all_of_them[0] == [*range(LAYERS)]
    assert torch.equal(all_of_them[1], attended(other)[1])


def wider(layers: Any) -> None:
    """A product of another shape in one layer."""
    for name, sizes in (("gate_proj", (32, 96)), ("up_proj", (32, 96)), ("down_proj", (96, 32))):
        setattr(layers[3].mlp, name, nn.Linear(*sizes, bias=False))


def windowed(layers: Any) -> None:
    """A setting of another value in one layer."""
    layers[2].self_attn.sliding_window = 4


def other_kind(layers: Any) -> None:
    """A module of another kind in one layer."""
    layers[4].mlp.act_fn = nn.GELU()


def numbered(layers: Any) -> None:
    """Layers that hold their numbers under a name of their own: each is like no other."""
    for number, layer in enumerate(layers):
        layer.place = number


@pytest.mark.parametrize("change", [wider, windowed, other_kind, numbered])
def test_where_one_layer_differs_all_are_made(change: Callable[[Any], None]) -> None:
    adapter = ModelAdapter(tiny_model(small_config(layers=LAYERS)))
    change(adapter.model.base_model.layers)
    assert adapter.with_few_layers(lambda: attended(adapter))[0] == [*range(LAYERS)]


def test_what_attention_is_told_counts_too() -> None:
    adapter = ModelAdapter(tiny_model(small_config(layers=LAYERS)))
    adapter.chunks = (None, None, 8, None, None, None)
    assert adapter.with_few_layers(lambda: attended(adapter))[0] == [*range(LAYERS)]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_of_three_layers_none_is_left_out(layers: int) -> None:
    adapter = ModelAdapter(tiny_model(small_config(layers=layers)))
    assert adapter.with_few_layers(lambda: attended(adapter))[0] == [*range(layers)]


def longer(name: str) -> PreTrainedModel:
    """A family's network with five layers of its last kind."""
    config = copy.deepcopy(CONFIGURATIONS[name])
    config.num_hidden_layers = LAYERS - 1
    for key in ("layer_types", "mlp_layer_types"):
        if getattr(config, key, None):
            setattr(config, key, [getattr(config, key)[-1]] * (LAYERS - 1))
    return tiny_model(config)


@pytest.mark.parametrize("name", SHORT)
def test_families_are_made_short_and_are_whole_behind_it(name: str) -> None:
    """Also those whose code indexes its layers in ways of its own."""
    adapter = ModelAdapter(longer(name))
    fuse_modules(adapter, "auto")
    before = attended(adapter)
    assert before[0] == [*range(LAYERS - 1)]
    few, _ = adapter.with_few_layers(lambda: attended(adapter))
    assert few == [0, 1, LAYERS - 2]
    after = attended(adapter)
    assert after[0] == before[0]
    assert torch.equal(after[1], before[1])
