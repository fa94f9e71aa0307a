"""A fingerprint of a network's weights: the same weights give the same, wherever they lie.

A name says little: the files behind it may be replaced. So the bytes of all weights are read as whole
numbers, and of every layer their sum and the sum of their squares are taken, modulo 2^64. Sums do not
ask for an order. So neither the device, nor the order of the tensors, nor products that were joined
(`fusion`) change the result, nor weights that were laid out for a CPU (`host_linear`), whose sums were taken before; one changed weight does, and so do two layers that changed places. It is no
protection against somebody who wants two networks to have the same.

What does not come from a checkpoint (rotary frequencies and the like) is left out. Numbers that were
rounded on loading, to another dtype or to fewer bits, are other numbers; packed ones (AWQ, experts in mxfp4) are others than the
same ones unpacked.

All weights are read for it, so a loaded network's sums are remembered (`WeightSums`) until a weight is written to or exchanged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

# Numbers; as int64 they are 2 MiB, which stays in a CPU's cache. A GPU would wait for launches.
_AT_A_TIME, _AT_A_TIME_ON_GPU = 1 << 18, 1 << 22
_INTEGERS = {1: torch.int8, 2: torch.int16}  # by bytes; larger ones are read in fours
# Of four-bit layers: the order of inputs, which joined layers hold once and not once each, and whose
# sums every permutation shares; and the kernel's counters.
_APART = frozenset({"order", "arrived"})
SUMS = "weight_sums"  # of a layer whose weight cannot be read any more
COPIED = "is_copied"  # set on weights that another rank counts (`model/parallel/cuts.py`)
_LAYER = re.compile(r"\.(\d+)\.")


def fingerprint(model: nn.Module) -> str:
    """32 hex digits that stand for the weights of `model`. Waits for the device only at the end."""
    return digest_of(sums_of(model))


def sums_of(model: nn.Module) -> dict[int, Tensor]:
    """The two sums of each layer's weights, by its number: int64 [2], on the device. Parts' sums add up."""
    totals: dict[int, Tensor] = {}
    for layer, weight in _weights(model):
        found = _sums(weight)
        totals[layer] = totals[layer] + found if layer in totals else found
    for name, module in model.named_modules():
        before: Tensor | None = getattr(module, SUMS, None)
        if before is not None:
            layer = _number_in(name + ".")
            totals[layer] = totals[layer] + before if layer in totals else before
    return totals


class WeightSums:
    """The sums of one network's weights, taken once: all who ask for its fingerprint share them.

    A weight that lies elsewhere or was written to since, as by an optimizer's step, has all of them taken anew. A write past
    torch's own count of writes, as to a weight's `data`, is not noticed. Weights that were loaded in inference mode
    have no such count, and their sums are not remembered.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: tuple[_State, dict[int, Tensor]] | None = None

    def get(self) -> dict[int, Tensor]:
        """See `sums_of`."""
        state = _state_of(self._model)
        if self._known is not None and self._known[0] == state:
            return dict(self._known[1])
        sums = sums_of(self._model)
        self._known = None if state is None else (state, sums)
        return dict(sums)


def sums_of_layer(linear: nn.Module) -> Tensor:
    """The two sums of a layer alone: int64 [2]; of what another rank counts, none."""
    weights = [w.detach() for w in linear.parameters() if not getattr(w, COPIED, False)]
    return torch.stack([torch.zeros(2, dtype=torch.int64), *map(_sums, weights)]).sum(0)


def digest_of(totals: Mapping[int, Tensor]) -> str:
    """32 hex digits for the sums of all layers."""
    sums = {str(layer): total.tolist() for layer, total in sorted(totals.items())}
    return hashlib.sha256(json.dumps(sums).encode()).hexdigest()[:32]


# Of each weight: its storage, where in it the weight lies, and how often it was written to. The reference keeps no memory, and no
# other storage has its number while it is there.
_State = list[tuple[StorageWeakRef, int | torch.SymInt, torch.Size, int]]


def _state_of(model: nn.Module) -> _State | None:
    """Facts that change with the weights; None where some do not tell how often they were written to."""
    weights = [weight for _, weight in _weights(model)]
    if any(weight.is_inference() for weight in weights):
        return None
    return [
        (StorageWeakRef(w.untyped_storage()), w.storage_offset(), w.shape, w._version)
        for w in weights
    ]


def _weights(model: nn.Module) -> Iterator[tuple[int, Tensor]]:
    """Every weight once, with the number of its layer; -1 outside the layers."""
    seen: set[int] = set()
    for name, weight in model.state_dict(keep_vars=True).items():
        is_apart = name.rpartition(".")[2] in _APART or getattr(weight, COPIED, False)
        if is_apart or id(weight) in seen:
            continue
        seen.add(id(weight))  # an output layer may share the embedding's
        yield _number_in(name), weight.detach()


def _number_in(name: str) -> int:
    """The number of the layer in the name of a weight; -1 outside the layers."""
    number = _LAYER.search(name)
    return int(number[1]) if number else -1


def _sums(weight: Tensor) -> Tensor:
    """Sum and sum of squares of its bytes as integers: int64 [2], on its device."""
    integers = weight.flatten().view(_INTEGERS.get(weight.element_size(), torch.int32))
    total = torch.zeros(2, dtype=torch.int64, device=weight.device)
    for chunk in integers.split(_AT_A_TIME if weight.device.type == "cpu" else _AT_A_TIME_ON_GPU):
        wide = chunk.to(torch.int64)
        total += torch.stack((wide.sum(), (wide * wide).sum()))
    return total
