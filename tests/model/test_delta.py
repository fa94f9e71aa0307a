"""One token of each row through a layer that keeps a state, by kernels: against Hugging Face's own forward of that layer.

Without a GPU the kernels run under Triton's interpreter, which cuts bfloat16 off where a GPU rounds. States are float32 in each dtype: what is
left of float16's is the order of sums, and one step where a convolution is rounded to the other side.
"""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from manyhands.cache.states import EMPTY
from manyhands.model.delta import DeltaLayer
from manyhands.model.kernels import delta
from manyhands.model.recurrent import StateCall, States, linear_layers, take_over
from tests.covers import spared
from tests.model.families_zoo import tiny_model
from tests.model.test_recurrent import CONFIGS

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
# Of the largest number of an output, and of a state.
OFF = {
    torch.float32: (2e-5, 2e-6),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2) if GPU else (4e-2, 4e-2),
}
SLOTS = 8
# Two rows fork from one text, two begin, and one of those is padding.
SOURCES, TARGETS = (3, 3, EMPTY, 1, EMPTY), (4, 5, 6, 7, SLOTS + 1)


def network(name: str, dtype: torch.dtype) -> Any:
    """A network whose layers decay, gate and norm differently in each head and dim."""
    torch.manual_seed(0)
    made: Any = tiny_model(CONFIGS[name])
    made.to(DEVICE, dtype)
    with torch.no_grad():
        for module in linear_layers(made).values():
            layer: Any = module
            layer.A_log.copy_(-3 * torch.rand_like(layer.A_log))
            layer.dt_bias.copy_(torch.randn_like(layer.dt_bias))
            layer.dt_bias[0] = 30  # where a softplus is the number itself
            layer.norm.weight.copy_(torch.randn_like(layer.norm.weight))
    return made


def stepped(
    model: Any, layer: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Output, last inputs and states behind one token of each row, by Hugging Face's forward and by kernels."""
    states = States(model, SLOTS)
    store = states.stores[layer]
    torch.manual_seed(1)
    before = torch.randn_like(store.inputs), torch.randn_like(store.states)
    hidden = 3 * torch.randn(1, len(SOURCES), model.config.hidden_size).to(store.inputs)
    slots = (torch.tensor(each, device=DEVICE) for each in (SOURCES, TARGETS))
    hook = SimpleNamespace(states=StateCall.one_each(states, *slots))
    take_over(model)
    found = []
    for by_kernels in (False, True):
        monkeypatch.setattr(DeltaLayer, "serves", lambda *_, told=by_kernels: told)
        for kept, numbers in zip((store.inputs, store.states), before, strict=True):
            kept.copy_(numbers)
            kept[EMPTY] = 0
        with torch.inference_mode():
            out = linear_layers(model)[layer](hidden, manyhands_attend=hook)
        found.append((out.float(), store.inputs.clone(), store.states.clone()))
    return found


@pytest.mark.parametrize("dtype", OFF, ids=str)
@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text", *spared("qwen3_5_moe_text")])
def test_a_step_is_hugging_face_s(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for layer in linear_layers(model := network(name, dtype)):
        theirs, ours = stepped(model, layer, monkeypatch)
        assert torch.equal(ours[1], theirs[1]), "inputs are moved, and nothing is computed"
        # The first token of a text tells its value times a product of its query and its key. Where that is next to nothing, the norm makes
        # one step of bfloat16 large.
        rows = [row for row, slot in enumerate(SOURCES) if slot or dtype != torch.bfloat16]
        outs = ours[0][:, rows], theirs[0][:, rows]
        for (mine, right), off in zip((outs, (ours[2], theirs[2])), OFF[dtype], strict=True):
            assert (mine - right).abs().max() < off * right.abs().max()
        read = sorted({*range(SLOTS + 1)} - set(TARGETS))
        assert torch.equal(ours[2][read], theirs[2][read]), "what is no target stays"


@pytest.mark.parametrize("into", [-15.0, -12.0, -7.0, -4.65, -4.55, -1.0, 3.0, 19.0, 21.0])
def test_a_state_is_kept_as_exactly_as_its_numbers_are(into: float) -> None:
    """A head that forgets a millionth with each token: an error in that is made anew a hundred thousand times in a long text."""
    heads, dim = 1, 8
    zeros = torch.zeros(1, 3 * dim, device=DEVICE)
    states = torch.ones(3, heads, dim, dim, device=DEVICE)
    one = torch.ones(1, heads, device=DEVICE)
    decay, bias = torch.full((heads,), math.log(16.0)), torch.zeros(heads)
    if into > 0:
        decay = decay - 6
    source, target = (torch.tensor([slot], device=DEVICE) for slot in (1, 2))
    made = delta.DeltaProducts(
        *(zeros, torch.ones(1, heads, dim, device=DEVICE), into * one, one),
        *(decay.to(DEVICE), bias.to(DEVICE), torch.ones(dim, device=DEVICE)),
        key_heads=heads,
        eps=1e-6,
    )
    delta.step(made, states, source, target, torch.empty(1, dim, device=DEVICE))
    rate = math.exp(float(decay)) * math.log1p(math.exp(into))
    exact = math.exp(-rate)
    assert (states[2].double() - exact).abs().max() < 4e-7 * exact * (1 + rate)


def test_how_much_of_a_value_is_taken_is_rounded_as_the_layer_rounds_it() -> None:
    """In float16 the modelling code's sigmoid has 11 bits, whatever is computed in float32 behind it."""
    heads, dim = 16, 8
    torch.manual_seed(3)
    b = torch.randn(1, heads, device=DEVICE).half()
    values = torch.randn(heads, dim, device=DEVICE).half()
    keys = torch.zeros(heads, dim, device=DEVICE, dtype=torch.float16)
    keys[:, 0] = 64
    states = torch.zeros(3, heads, dim, dim, device=DEVICE)
    ones, weight = torch.ones_like(b), torch.ones_like(values[0])
    source, target = (torch.tensor([slot], device=DEVICE) for slot in (1, 2))
    made = delta.DeltaProducts(
        *(torch.cat([keys, keys, values]).reshape(1, -1), values[None], ones, b),
        *(ones[0].float(), ones[0].float(), weight),
        key_heads=heads,
        eps=1e-6,
    )
    delta.step(made, states, source, target, torch.empty(1, heads * dim, device=DEVICE).half())
    expected = values.float() * b.sigmoid().float()[0, :, None]
    assert torch.allclose(states[2, :, 0], expected, rtol=1e-5, atol=0)
    assert not torch.allclose(expected, values.float() * b.float().sigmoid()[0, :, None], rtol=1e-5)


@pytest.mark.parametrize("mistake", ["A_log", "dt_bias", "norm.weight", "num_k_heads"])
def test_control_every_weight_of_a_layer_shows(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network("qwen3_5_text", torch.float32)
    right = DeltaLayer.__call__

    def wrong(kernels: DeltaLayer, *given: Any) -> Tensor:
        layer = copy.copy(kernels._module)
        layer._parameters, layer._modules = dict(layer._parameters), dict(layer._modules)
        if mistake == "num_k_heads":
            layer.num_k_heads //= 2
        elif mistake == "norm.weight":
            layer.norm = copy.copy(layer.norm)
            layer.norm._parameters = {"weight": nn.Parameter(layer.norm.weight + 0.01)}
        else:
            layer._parameters[mistake] = nn.Parameter(getattr(layer, mistake) + 0.1)
        return right(DeltaLayer(layer), *given)

    monkeypatch.setattr(DeltaLayer, "__call__", wrong)
    theirs, ours = stepped(model, 0, monkeypatch)
    assert (ours[0] - theirs[0]).abs().max() > 10 * OFF[torch.float32][0] * theirs[0].abs().max()


def broken(module: Any, how: str) -> Any:
    if how == "bias":
        module.conv1d.bias = nn.Parameter(torch.zeros(module.conv_dim))
    elif how == "activation":
        module.activation = "gelu"
    elif how == "width":
        module.conv_dim += 1
    elif how == "wide":
        module.head_k_dim, module.num_k_heads = 512, module.key_dim // 512
        module.key_dim = module.num_k_heads * 512
        module.conv_dim = 2 * module.key_dim + module.value_dim
    elif how == "wide values":
        module.head_v_dim, module.num_v_heads = 512, module.num_v_heads * module.head_v_dim // 512
        module.value_dim = module.num_v_heads * 512
        module.conv_dim = 2 * module.key_dim + module.value_dim
    elif how == "product":
        del module.in_proj_a
    elif how == "gate":
        module.norm.activation = "sigmoid"
    elif how == "decay":
        module.A_log = None
    elif how == "epsilon":
        module.norm.variance_epsilon = torch.tensor(1e-6)
    else:
        del module.norm
    return module


@pytest.mark.parametrize(
    "how",
    [
        "bias",
        "activation",
        "width",
        "wide",
        "wide values",
        "product",
        "gate",
        "decay",
        "epsilon",
        "norm",
    ],
)
def test_another_layer_goes_by_its_own_forward(how: str) -> None:
    layers = linear_layers(tiny_model(CONFIGS["qwen3_5_text"]))
    assert DeltaLayer.of(layers[0]) is not None
    assert DeltaLayer.of(broken(layers[0], how)) is None


def test_kernels_are_for_a_gpu_without_gradients_and_one_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer: Any = linear_layers(network("qwen3_5_text", torch.float32))[0]
    step = DeltaLayer.of(layer)
    assert step is not None
    hidden = torch.zeros(1, 2, 32, device=DEVICE)
    assert step.serves(hidden) is GPU
    monkeypatch.setattr("manyhands.model.kernels.usable", lambda x: True)
    assert step.serves(hidden)
    assert not step.serves(hidden.half())
    layer.norm.to(torch.bfloat16)
    assert not step.serves(hidden)
