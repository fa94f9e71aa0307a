"""A network grows: new layers among the old ones, which change nothing until they have learned something.

A layer adds to the stream what its attention and its MLP make of it, each through one last product. A new layer
is a copy of the one below it whose two last products are zero, so it adds nothing, and the grown network computes
exactly what the small one did (LLaMA Pro, Wu et al. 2024, section 3.1; the idea is that of Net2Net, Chen et al.
2016). From there on training goes: the zeros get gradients at once, and all else as soon as they are none.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from manyhands.errors import InvalidRequest, UnsupportedModel, counted

_LAST_PRODUCTS = ("self_attn.o_proj", "mlp.down_proj")


def grown(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A copy of the model with so many layers, the new ones spread evenly; dtype and device are the model's.

    Raises InvalidRequest for fewer layers than it has, and UnsupportedModel for layers without the two
    products `self_attn.o_proj` and `mlp.down_proj`, or for layers that are not all of one kind.
    """
    config = deepcopy(model.config)
    before = int(config.num_hidden_layers)
    if layers < before:
        raise InvalidRequest(
            f"the model has {counted(before, 'layer')} and shall grow to {layers}",
            hint=f"Give {before} or more.",
        )
    _check_layers(model)
    sources = _sources(before, layers)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[old] for old, _ in sources]
    made: Any = AutoModelForCausalLM  # transformers leaves from_config untyped
    bigger: PreTrainedModel = made.from_config(config, dtype=model.dtype).to(model.device)
    weights = model.state_dict()
    moved = {name: value for name, value in weights.items() if not name.startswith("model.layers.")}
    for new, (old, is_new) in enumerate(sources):
        prefix = f"model.layers.{old}."
        for name, value in weights.items():
            if name.startswith(prefix):
                own = name.removeprefix(prefix)
                adds = is_new and own.startswith(_LAST_PRODUCTS)
                moved[f"model.layers.{new}.{own}"] = torch.zeros_like(value) if adds else value
    bigger.load_state_dict(moved)
    return bigger


def _sources(before: int, after: int) -> list[tuple[int, bool]]:
    """Of every layer of the grown network: the old layer that it comes from, and whether it is new."""
    olds = [layer * before // after for layer in range(after)]
    return [(old, place > 0 and olds[place - 1] == old) for place, old in enumerate(olds)]


def _check_layers(model: PreTrainedModel) -> None:
    layers = getattr(getattr(model, "model", None), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UnsupportedModel(
            f"a {type(model).__name__} has no list of layers at model.layers, so it cannot grow",
            hint="Train it as it is: leave `layers` out.",
        )
    shapes = {
        tuple((name, value.shape) for name, value in layer.named_parameters()) for layer in layers
    }
    names = {name for name, _ in layers[0].named_modules()}
    missing = [name for name in _LAST_PRODUCTS if name not in names]
    if missing or len(shapes) > 1:
        found = f"has no {missing[0]}" if missing else "has layers of several kinds"
        raise UnsupportedModel(
            f"a {type(model).__name__} {found}, so it cannot grow",
            hint="Train it as it is: leave `layers` out.",
        )
