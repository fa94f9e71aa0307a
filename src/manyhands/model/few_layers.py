"""A pass of a few layers that launches every kernel which a whole pass launches.

When a process starts, passes of dozens of sizes are launched so that their kernels are compiled at once
(`attention/compile_at_once.py`). The time of that is Python's, layer by layer, and layers of most networks are alike. So three of them are
enough: the first, which has no residual sum in front of it; the second, which comes behind another one; and the last,
whose sum has the norm behind all layers. Values mean nothing in such a pass.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from torch import nn

_NUMBERS = frozenset({"layer_idx"})  # attributes in which the number of a layer stands
_PLAIN = (bool, int, float, str, type(None), FunctionType)


def few_layers_of(base: Any) -> Any:
    """The part of a network that holds its `layers`, with the first two and the last one of them: a shallow copy."""
    layers = base.layers
    few = copy.copy(base)
    vars(few)["_modules"] = base._modules | {
        "layers": nn.ModuleList([layers[0], layers[1], layers[-1]])
    }
    return few


def are_alike(layers: object, told: Sequence[object]) -> bool:
    """Whether there are more than three `layers`, and all between the first and the last launch the same kernels.

    They do if their modules are of the same kinds, with parameters of the same shapes, and their settings are equal, but for
    the number of the layer. A layer that holds its number under another name than transformers' own is like no other.
    `told` [len(layers)] is what else kernels depend on.
    """
    if not isinstance(layers, nn.ModuleList) or not 3 < len(layers) == len(told):
        return False
    first, *others = [(_facts(layer), more) for layer, more in zip(layers, told, strict=True)][1:-1]
    return all(each == first for each in others)


def _facts(layer: nn.Module) -> list[Any]:
    """All that tells the launches of one layer from those of another."""
    facts: list[Any] = []
    for name, module in layer.named_modules():
        tensors = [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]
        shapes = [(kind, tensor.shape, tensor.stride(), tensor.dtype) for kind, tensor in tensors]
        settings = {
            key: _setting(value)
            for key, value in vars(module).items()
            if not key.startswith("_") and key not in _NUMBERS
        }
        facts.append((name, type(module), shapes, settings))
    return facts


def _setting(value: Any) -> Any:
    """A value that can be compared: a plain one itself, of anything else its kind."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (tuple, list)):
        return [_setting(each) for each in value]
    if isinstance(value, dict):
        return {key: _setting(each) for key, each in value.items()}
    if type(value).__module__.startswith("manyhands.") and dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return type(value), {field.name: _setting(getattr(value, field.name)) for field in fields}
    return type(value)
