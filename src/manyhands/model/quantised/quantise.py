"""Which layers of a network are quantised, and how they are replaced or rounded.

All ordinary linear layers of the decoder layers are, except those that choose among experts: few
weights, and a wrong choice is a wrong expert. Embeddings, the output layer, norms and the stacked
weights of experts stay as they are. To fp16 all linear layers are rounded, the output layer too: they stay
ordinary ones in float32, which `host_linear.py` then holds in two bytes a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import torch
from torch import nn

from manyhands.errors import InvalidRequest
from manyhands.model.quantised.linear import Float8Linear, Quantised
from manyhands.model.quantised.w4a16 import Int4Linear
from manyhands.model.settings import Quantise
from manyhands.model.unlisted import name_base

KINDS: MappingProxyType[str, type[Quantised]] = MappingProxyType(
    {"fp8": Float8Linear, "int4": Int4Linear}
)
_CHOOSERS = ("gate", "router")  # how the layers that choose experts end their names


class LinearAt(NamedTuple):
    """A linear layer and where it hangs."""

    holder: nn.Module
    name: str
    linear: nn.Linear


def check_quantise(quantise: str) -> None:
    """Raise `InvalidRequest` for a word that is not one of `Quantise`."""
    if quantise not in get_args(Quantise):
        raise InvalidRequest(
            f"quantise {quantise!r} is unknown", hint=f"choose {', '.join(get_args(Quantise))}"
        )


def quantise_network(model: Any, kind: str, device: torch.device) -> int:
    """Replace a network's layers by quantised ones on `device`, one by one; how many there were.

    The network may still be elsewhere: then only what is small travels to `device` twice.
    """
    linears = list(_linears(model, kind))
    for holder, name, linear in linears:
        with torch.no_grad():
            bias = None if linear.bias is None else linear.bias.to(device)
            setattr(holder, name, KINDS[kind].from_weight(linear.weight.to(device), bias))
    _require(linears, model, kind)
    return len(linears)


def round_to_fp16(model: Any) -> None:
    """Round the weights of all ordinary linear layers to float16, where they stay finite."""
    for layer in [module for module in model.modules() if type(module) is nn.Linear]:
        rounded = layer.weight.detach().half()
        if rounded.isfinite().all():
            layer.weight.data.copy_(rounded)


def make_room(model: Any, kind: str) -> int:
    """Replace a network's layers by quantised ones without values; how many there were."""
    linears = list(_linears(model, kind))
    for holder, name, linear in linears:
        setattr(holder, name, KINDS[kind].empty(linear))
    _require(linears, model, kind)
    return len(linears)


def _linears(model: Any, kind: str) -> Iterator[LinearAt]:
    name_base(model)
    for layer in getattr(model.base_model, "layers", ()):
        for holder in list(layer.modules()):
            for name, child in list(holder.named_children()):
                if type(child) is not nn.Linear or name.endswith(_CHOOSERS):
                    continue
                if KINDS[kind].fits(*child.weight.shape):
                    yield LinearAt(holder, name, child)


def _require(linears: list[LinearAt], model: Any, kind: str) -> None:
    if not linears:
        raise InvalidRequest(
            f"model type {model.config.model_type!r} has no layers that {kind} can hold",
            hint="load it without quantise",
        )
