"""Where the weights of a network lie, and of which numbers they are: what an engine was made for has to stay so.

A pass goes through one device, and memory and recordings are of what the network was. Its owner may move or convert it later, or a part
of it, and torch says neither which weight nor what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from manyhands.errors import InvalidRequest

Place = tuple[torch.device, torch.dtype]


def places_of(model: nn.Module) -> dict[str, Place]:
    """Device and dtype of each weight, and of each buffer that is saved and no single number, by its name."""
    return {name: (tensor.device, tensor.dtype) for name, tensor in _tensors(model)}


class Landmark(NamedTuple):
    """One weight of a module, found again by its name: a weight that is moved may become another object."""

    weights: dict[str, Any]
    name: str


def landmarks_of(model: PreTrainedModel) -> tuple[Landmark, ...]:
    """One weight of each part that an owner may move alone: of each layer, and of what stands beside the layers."""
    base = model.base_model
    parts = (model, *model.children(), *base.children(), *getattr(base, "layers", ()))
    firsts = (_first_of(part) for part in parts)
    own = {(id(found.weights), found.name): found for found in firsts if found is not None}
    return tuple(own.values())


def check_one_device(model: nn.Module, device: torch.device) -> None:
    """Raise InvalidRequest for a network of which a part lies on another device than this one."""
    places = places_of(model)
    apart = [name for name, (at, _) in places.items() if at != device]
    if apart:
        raise InvalidRequest(
            f"{len(apart)} of the network's {len(places)} weights are not on {device}, where its first ones are: {apart[0]} "
            f"is on {places[apart[0]][0]}",
            hint=f"move the network as a whole before an engine is made of it, as model.to({str(device)!r}) does",
        )


def check_unmoved(model: nn.Module, were: dict[str, Place]) -> None:
    """Raise InvalidRequest where a weight lies somewhere else than it did, or is of other numbers."""
    for name, now in places_of(model).items():
        if (was := were.get(name, now)) != now:
            (device, dtype), (was_on, was_of) = now, was
            raise InvalidRequest(
                f"the network of this engine was moved or converted: its {name} is {dtype} on {device} now, and the engine was "
                f"made for {was_of} on {was_on}",
                hint="undo that, or make a new engine of it",
            )


def uneven(model: nn.Module) -> InvalidRequest | None:
    """The error to raise where a pass has failed since weights are of different numbers; None where they are not."""
    first: tuple[str, torch.dtype] | None = None
    for name, module in model.named_modules():
        if type(module) not in (nn.Linear, nn.Embedding):
            continue
        dtype = module.weight.dtype
        first = first or (name, dtype)
        if dtype != first[1]:
            return InvalidRequest(
                f"a pass of this network failed, of which a part is of other numbers: {first[0]} is {first[1]}, and {name} is "
                f"{dtype}",
                hint=f"convert it as a whole, as model.to({first[1]}) does, and make the engine of it then",
            )
    return None


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Weights, and buffers that are saved as such: others, as the frequencies of a rotation, go where they are used."""
    for prefix, module in model.named_modules():
        for name, tensor in _own_tensors(module):
            yield f"{prefix}.{name}" if prefix else name, tensor


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    passing = module._non_persistent_buffers_set
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None and tensor.dim() and name not in passing:
            yield name, tensor


def _first_of(part: nn.Module) -> Landmark | None:
    for module in part.modules():
        for name, _ in _own_tensors(module):
            kept: Any = module._parameters if name in module._parameters else module._buffers
            return Landmark(kept, name)
    return None
