"""States of linear-attention layers: the layers of a hybrid that keep one state a row instead of keys and values.

Such a layer (Gated DeltaNet, arXiv 2412.06464, section 3) folds every token into two things of a fixed size: a matrix for
each head, and the last inputs of a short convolution. Both depend on all tokens before and on their order. So a state
belongs to one text from its first token on, no block has a part of it, and nothing of it can be moved inside a view or
read by a row with another text before it. Rows that fork are another matter: each goes on from the same state.

States lie in slots. A pass reads the state of each row from one slot and leaves the new one in another:

    sources  3 3 0 6    four rows: two fork from the text whose state is in slot 3, one begins anew,
    targets  4 5 6 7    and one forks from that, whose state this very pass makes
                        slot 3 stays as it was, so a pass that fails has changed nothing

Slot 0 is the empty text and is never written. A fork is a source that is named twice; no copy is made. Which slot
is whose is decided in `cache/states.py`. One more slot, behind the numbered ones, takes what padding leaves, and is never read.

Hugging Face's layers take and give their states through a cache object, and treat what they are given as one text.
Here each layer's `forward` is called once for all rows of a wave that are fed equally many tokens (`take_over`), with
a cache that reads and writes slots. The modelling code is not touched. On a GPU whole waves go by kernels
of our own instead (`delta.py`). The slots of a wave stand on the device: a pass whose rows are
fed one token each is one wave, and a recording of it (`engine/graph.py`) reads other slots in each pass.

    T  new tokens, packed over rows      R  rows      S  slots      C  channels of the convolution      K  its taps
    H  heads of the state                Dk, Dv  dims of a key and of a value
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from manyhands.cache.states import EMPTY, RowStates
from manyhands.errors import UnsupportedModel
from manyhands.model.delta import DeltaLayer
from manyhands.model.hybrids import MODEL_TYPES
from manyhands.model.quiet import quiet
from manyhands.model.waves import Wave

_LAYER_TYPE = "linear_attention"
_CACHES = ("cache", "cache_params")  # names of a cache: from transformers 5.24 on, and before


@dataclass(frozen=True, eq=False)
class StateStore:
    """The states of one layer, in slots."""

    inputs: Tensor  # [S, C, K - 1]: the convolution's last inputs, in the network's dtype
    states: Tensor  # [S, H, Dk, Dv]: in float32, as the layer sums them

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self.inputs.nbytes + self.states.nbytes


class States:
    """The states of all linear layers of one network: `num_slots` of them, besides the empty one."""

    stores: Mapping[int, StateStore]  # by layer

    def __init__(self, model: nn.Module, num_slots: int) -> None:
        """Room beside the weights of `model`, a network of Hugging Face. Raises `UnsupportedModel` if it is none of ours."""
        self.num_slots = num_slots  # that may be targets; they are numbered from 1
        self.stores = {
            layer: _store(module, num_slots + 2) for layer, module in linear_layers(model).items()
        }

    @property
    def nowhere(self) -> int:
        """The slot that padding leaves its states in."""
        return self.num_slots + 1

    @property
    def device(self) -> torch.device:
        """The device of the slots."""
        return next(iter(self.stores.values())).states.device

    def copy(self, other: States, slots: Sequence[tuple[int, int]]) -> None:
        """Take states of the same network: `slots` are pairs of a slot of `other` and one of these."""
        if not slots:
            return
        sources, targets = map(list, zip(*slots, strict=True))
        for layer, store in self.stores.items():
            store.inputs[targets] = other.stores[layer].inputs[sources]
            store.states[targets] = other.stores[layer].states[sources]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one state in all layers."""
        return sum(store.num_bytes for store in self.stores.values()) // (self.num_slots + 2)


@dataclass(frozen=True, eq=False)
class StateCall:
    """The rows of a pass and the memory of their states, as they travel through the network."""

    states: States
    waves: tuple[Wave, ...]
    num_tokens: int
    # [T] int64: the packed indices of the rows' tokens, row by row; None: as they are packed
    order: Tensor | None = None

    @classmethod
    def of(cls, states: States, rows: RowStates) -> StateCall:
        """All rows of a pass. Raises `ValueError` for slots that are not there."""
        lowest, highest = (which((*rows.sources, *rows.targets)) for which in (min, max))
        if lowest < 0 or highest > states.num_slots:
            raise ValueError(
                f"slots {lowest} to {highest} are named; there are 0 to {states.num_slots}"
            )
        device = states.device
        waves = []
        for wave in rows.waves():
            own = [row for _, alike in sorted(wave.items()) for row in alike]
            firsts = tuple(rows.row_indptr[row] for row in own)
            counts = tuple(rows.row_indptr[row + 1] - rows.row_indptr[row] for row in own)
            slots = ([which[row] for row in own] for which in (rows.sources, rows.targets))
            begins, sources, targets = torch.tensor([firsts, *slots], device=device)
            waves.append(Wave(firsts, counts, begins, sources, targets))
        order = None if rows.tokens is None else torch.tensor(rows.tokens, device=device)
        return cls(states, tuple(waves), rows.row_indptr[-1], order)

    @classmethod
    def one_each(cls, states: States, sources: Tensor, targets: Tensor) -> StateCall:
        """Rows that are fed one token each, as they are packed: `sources` and `targets` [T] int64 on the device."""
        count = len(sources)
        begins = torch.arange(count, device=sources.device)
        wave = Wave(tuple(range(count)), (1,) * count, begins, sources, targets)
        return cls(states, (wave,), count)

    @classmethod
    def of_one_text(cls, model: nn.Module, num_tokens: int) -> StateCall:
        """A text from its first token on, over states of its own."""
        rows = RowStates((0, num_tokens), (EMPTY,), (1,))
        return cls.of(States(model, 1), rows)


def state_bytes(model: nn.Module) -> int:
    """Bytes of one state in all layers of a network."""
    stores = (_store(module, 1) for module in linear_layers(model).values())
    return sum(store.num_bytes for store in stores)


def is_hybrid(config: Any) -> bool:
    """Whether a network of this configuration has layers that keep a state."""
    return _LAYER_TYPE in (getattr(config, "layer_types", None) or ())


def linear_layers(model: nn.Module) -> dict[int, nn.Module]:
    """The linear-attention modules of a network by the number of their layer."""
    config: Any = model.config
    if config.model_type not in MODEL_TYPES:
        raise UnsupportedModel(
            f"the states of model type {config.model_type!r} are not known here",
            hint=f"known are those of {', '.join(MODEL_TYPES)}",
        )
    base: Any = model.base_model
    return {
        layer: module.linear_attn
        for layer, module in enumerate(base.layers)
        if config.layer_types[layer] == _LAYER_TYPE
    }


def take_over(model: nn.Module) -> None:
    """Let the linear layers of `model` run row by row, from the states that a `StateCall` names. For good."""
    for layer, module in linear_layers(model).items():
        if not isinstance(vars(module).get("forward"), _ByRow):
            module.forward = _ByRow(module.forward, layer, DeltaLayer.of(module))


class _ByRow:
    """In the place of a linear layer's `forward`: hidden states [1, T, D] of all rows, and the same of what it gives."""

    # Whether rows of several tokens, and of one, were fed to modelling code in this process: in the first call of each kind
    # transformers advises to install kernels for a GPU.
    _has_advised: ClassVar[set[bool]] = set()

    def __init__(self, forward: Any, layer: int, kernels: DeltaLayer | None) -> None:
        """`kernels`: the same forward by kernels."""
        self._forward, self._layer, self._kernels = forward, layer, kernels
        names = inspect.signature(forward).parameters
        self._cache = next((name for name in _CACHES if name in names), _CACHES[-1])

    def __call__(
        self,
        hidden_states: Tensor,
        *,
        attention_mask: Tensor | None = None,
        manyhands_attend: Any = None,
        **others: object,
    ) -> Tensor:
        call: StateCall | None = getattr(manyhands_attend, "states", None)
        if call is None or attention_mask is not None or others.get(self._cache) is not None:
            raise UnsupportedModel(
                "a layer that keeps a state was called without the slots of its rows, or with a mask or a cache",
                hint="give ModelAdapter.forward a StateCall",
            )
        if call.num_tokens != hidden_states.shape[1]:
            raise ValueError(
                f"the states are of {call.num_tokens} tokens, and the pass has {hidden_states.shape[1]}"
            )
        hidden = hidden_states[0] if call.order is None else hidden_states[0, call.order]
        if self._kernels is not None and self._kernels.serves(hidden):
            store = call.states.stores[self._layer]
            out = self._kernels(hidden, store.inputs, store.states, call.waves)
        else:
            out = torch.empty_like(hidden)
            for alike in (alike for wave in call.waves for alike in wave.alike):
                cache = _SlotCache(call.states, alike.sources, alike.targets)
                with self._without_advice(alike.at.shape[1] > 1):
                    out[alike.at] = self._forward(hidden[alike.at], **{self._cache: cache})
                cache.leave()
        if call.order is not None:
            rows, out = out, torch.empty_like(out)
            out[call.order] = rows
        return out[None]

    @classmethod
    @contextmanager
    def _without_advice(cls, has_many: bool) -> Iterator[None]:
        if has_many in cls._has_advised:
            yield
            return
        with quiet():
            yield
        cls._has_advised.add(has_many)


class _SlotCache:
    """The part of transformers' `Cache` that a linear layer calls, over slots; for one call of one layer.

    Before 5.21 a layer reads `layers` in the place of the first three methods.
    """

    def __init__(self, states: States, sources: Tensor, targets: Tensor) -> None:
        self._stores, self._sources, self._targets = states.stores, sources, targets
        self._layer = -1
        self._inputs: Tensor | None = None
        self._new: Tensor | None = None

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """[rows, C, K - 1], a copy: a layer that is fed one token writes the new inputs into it."""
        self._layer = layer_idx
        self._inputs = self._stores[layer_idx].inputs.index_select(0, self._sources)
        return self._inputs

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """[rows, H, Dk, Dv], a copy."""
        return self._stores[layer_idx].states.index_select(0, self._sources)

    def is_recording_past(self, layer_idx: int) -> bool:
        """Never: no state is taken back, the older one still lies in its slot."""
        return False

    def has_previous_state(self, layer_idx: int, **_: object) -> bool:
        """Always: the state of an empty text is zeros in slot 0."""
        return True

    @property
    def layers(self) -> _OlderLayers:
        """The same states, as releases before 5.21 ask for them."""
        return _OlderLayers(self)

    def update_conv_state(self, new: Tensor, layer_idx: int, **_: object) -> Tensor:
        """The inputs so far with `new` [rows, C, length] behind them."""
        if self._inputs is None:  # before 5.21 a layer that is fed more than one token
            self.get_conv_state(layer_idx)
        assert self._inputs is not None, "it has just been read"
        inputs = torch.cat((self._inputs, new), dim=-1)
        self._inputs = inputs[..., inputs.shape[-1] - self._inputs.shape[-1] :]
        return inputs

    def update_recurrent_state(self, new: Tensor, layer_idx: int, **_: object) -> Tensor:
        """Note the new states [rows, H, Dk, Dv]."""
        self._new = new
        return new

    def leave(self) -> None:
        """Write the new states to their slots."""
        assert self._inputs is not None, "the layer read no state"
        assert self._new is not None, "the layer gave no state"
        store = self._stores[self._layer]
        store.inputs.index_copy_(0, self._targets, self._inputs)
        store.states.index_copy_(0, self._targets, self._new.to(store.states.dtype))


@dataclass(frozen=True)
class _OlderLayers:
    """`layers[number]` of a `_SlotCache`."""

    cache: _SlotCache

    def __getitem__(self, layer_idx: int) -> _OlderLayer:
        return _OlderLayer(self.cache, layer_idx)


@dataclass(frozen=True)
class _OlderLayer:
    cache: _SlotCache
    number: int
    record_past: ClassVar[bool] = False

    @property
    def conv_states(self) -> tuple[Tensor]:
        return (self.cache.get_conv_state(self.number),)

    @property
    def recurrent_states(self) -> tuple[Tensor]:
        return (self.cache.get_recurrent_state(self.number),)


def _store(module: Any, slots: int) -> StateStore:
    weight: Tensor = module.conv1d.weight
    inputs = weight.new_zeros(slots, module.conv_dim, module.conv_kernel_size - 1)
    heads = (module.num_v_heads, module.head_k_dim, module.head_v_dim)
    return StateStore(
        inputs.detach(), weight.new_zeros(slots, *heads, dtype=torch.float32).detach()
    )
