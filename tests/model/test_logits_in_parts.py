"""Logits at many places, part by part: the layers run once, and every family's own head makes each part."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from manyhands.attention.attend import AttendFn, LayerCall
from manyhands.model.adapter import ModelAdapter
from manyhands.model.self_test import exact_attention
from tests.engine.small import small_config
from tests.model.families_zoo import some_tokens, tiny_model, tiny_models

ZOO = tiny_models()
TOKENS, OTHERS = some_tokens(9), some_tokens(7, seed=2)


@pytest.mark.parametrize("name", ZOO)
@torch.inference_mode()
def test_parts_are_what_the_whole_is(name: str) -> None:
    adapter, calls = ModelAdapter(ZOO[name]()), list[int]()

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        calls.append(call.layer)
        mixed = v.cumsum(dim=0) + k.sum(dim=-1, keepdim=True)
        return mixed.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

    tokens = some_tokens(9)
    whole = adapter.forward(tokens, None, attend)
    calls.clear()
    places = [torch.tensor(part) for part in ([8], [0, 1, 2], [3], [7, 4, 5, 6])]
    parts = list(adapter.forward_in_parts(tokens, places, attend))
    assert calls == list(range(adapter.num_layers)), "each layer runs once"
    for part, place in zip(parts, places, strict=True):
        assert torch.allclose(part, whole[place], rtol=1e-4, atol=1e-4)
    assert torch.equal(adapter.forward(tokens, None, attend), whole), "nothing is left behind"


class Meanwhile:
    """A pass of another adapter of the network, made once in the midst of the first one's, as another thread may."""

    def __init__(self, other: ModelAdapter) -> None:
        self.other = other
        self.exact = exact_attention(other.ropes)
        self.found: Tensor | None = None
        self.layers: list[int] = []

    def run(self) -> None:
        if self.found is None:
            self.found = torch.empty(0)  # its own pass comes by here, too
            self.found = self.other.forward(OTHERS, None, self._attend)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        self.layers.append(call.layer)
        return self.exact(q, k, v, call)


@pytest.mark.parametrize("where", ["in a layer", "in the head"])
@torch.inference_mode()
def test_another_engine_of_the_network_gets_its_own_logits_meanwhile(where: str) -> None:
    model = tiny_model(small_config())
    adapter, other = ModelAdapter(model), ModelAdapter(model)
    exact, places = exact_attention(adapter.ropes), [torch.tensor([8]), torch.tensor([0, 3])]
    alone = list(adapter.forward_in_parts(TOKENS, places, exact))
    wanted = other.forward(OTHERS, None, exact)
    meanwhile, is_behind = Meanwhile(other), False

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        if where == "in a layer" and call.layer == 1:
            meanwhile.run()
        return exact(q, k, v, call)

    def behind(*_: object) -> None:
        if is_behind:
            meanwhile.run()

    attending: AttendFn = attend
    watched = model.get_output_embeddings().register_forward_hook(behind)
    parts = adapter.forward_in_parts(TOKENS, places, attending)
    found = [next(parts)]
    is_behind = where == "in the head"  # of the second part
    found += parts
    watched.remove()
    assert meanwhile.found is not None
    assert torch.equal(meanwhile.found, wanted)
    for part, each in zip(found, alone, strict=True):
        assert torch.equal(part, each)


@torch.inference_mode()
def test_a_head_alone_leaves_the_layers_to_others() -> None:
    model = tiny_model(small_config())
    adapter, other = ModelAdapter(model), ModelAdapter(model)
    exact = exact_attention(adapter.ropes)
    states, wanted = adapter.states(TOKENS, exact), other.forward(OTHERS, None, exact)
    alone, meanwhile = adapter.head(states), Meanwhile(other)
    watched = model.get_output_embeddings().register_forward_hook(lambda *_: meanwhile.run())
    found = adapter.head(states)
    watched.remove()
    assert torch.equal(found, alone)
    assert meanwhile.found is not None
    assert torch.equal(meanwhile.found, wanted)


def test_what_was_asked_of_a_network_leaves_nothing_in_it() -> None:
    """Not even where no part is asked for to its end."""
    model = tiny_model(small_config())
    adapter = ModelAdapter(model)
    exact = exact_attention(adapter.ropes)
    before = [(dict(vars(part)), dict(part._forward_hooks)) for part in model.modules()]
    parts = adapter.forward_in_parts(TOKENS, [torch.tensor([8]), torch.tensor([0])], exact)
    next(parts)
    next(parts)
    assert [(dict(vars(part)), dict(part._forward_hooks)) for part in model.modules()] == before
    assert isinstance(copy.deepcopy(model), type(model))
