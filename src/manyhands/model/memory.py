"""Memory: the keys and values of every block, and nothing about the rows that read them.

One `LayerStore` a layer that stores (some read what an earlier one stored), all with the same slots; which
slots belong to which block is `cache/pages.py`'s accounting. Keys are stored rotated by their offset on their strip, so they are not
rotated again while a block stays where it is, however many views meet it at however many positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from manyhands.attention.attend import Backend
from manyhands.attention.eight_bits import SCALE_BYTES, EightBitStack
from manyhands.attention.latents import LatentStack
from manyhands.attention.rotary import Rope, Rotations
from manyhands.attention.store import LayerShape, Moved, StoreStack
from manyhands.cache.places import Move
from manyhands.errors import InvalidRequest, OutOfMemory
from manyhands.model.adapter import ModelAdapter
from manyhands.model.host_linear import laid_out_bytes
from manyhands.model.host_memory import free_host_bytes
from manyhands.model.recurrent import state_bytes


class Memory:
    """`stores`, one a layer, of `num_slots` tokens; uninitialised until written.

    `stored_by` says per layer which one writes to its store: itself, or an earlier one whose store it reads.
    """

    def __init__(
        self,
        num_slots: int,
        layers: Sequence[LayerShape],
        ropes: Sequence[Rope | None],
        stored_by: Sequence[int] | None = None,
        *,
        device: torch.device,
        dtype: torch.dtype,
        eight_bits: bool = False,
    ) -> None:
        """`dtype` is the network's; `eight_bits`: keys and values are rounded (`attention/eight_bits.py`).

        `stored_by`: see the class; None: every layer stores its own.
        """
        if eight_bits and any(shape.is_latent for shape in layers):
            raise InvalidRequest(
                "this network stores one latent a token for keys and values together (MLA), which is not kept "
                "in eight bits here",
                hint="leave --kv-cache-dtype as it is; latents are small already",
            )
        self.device = device
        stored = torch.int8 if eight_bits else dtype
        self.stored_by = tuple(range(len(layers)) if stored_by is None else stored_by)
        storing = [layer for layer in range(len(layers)) if self.writes(layer)]
        # One allocation of keys and one of values for all layers of a shape.
        stacks: dict[LayerShape, StoreStack] = {}
        for shape in dict.fromkeys(layers[layer] for layer in storing):
            own = tuple(ropes[layer] for layer in storing if layers[layer] == shape)
            size = len(own), num_slots, shape.num_kv_heads
            keys = torch.empty(*size, shape.head_dim, device=device, dtype=stored)
            if shape.is_latent:
                stacks[shape] = LatentStack.of(keys, keys[..., -shape.value_dim :], own)
                continue
            values = torch.empty(*size, shape.value_dim, device=device, dtype=stored)
            kind = EightBitStack if eight_bits else StoreStack
            stacks[shape] = kind.of(keys, values, own)
        self.stacks = tuple(stacks.values())
        parts = {shape: iter(stack.stores) for shape, stack in stacks.items()}
        stores = {layer: next(parts[layers[layer]]) for layer in storing}
        self.stores = tuple(stores[layer] for layer in self.stored_by)

    @classmethod
    def for_model(
        cls, adapter: ModelAdapter, num_slots: int, *, eight_bits: bool = False
    ) -> Memory:
        """A memory of `num_slots` tokens in the shape of a model; OutOfMemory if that cannot be had."""
        try:
            return cls(
                num_slots,
                adapter.layers,
                adapter.ropes,
                adapter.stored_by,
                device=adapter.device,
                dtype=adapter.dtype,
                eight_bits=eight_bits,
            )
        except RuntimeError as error:  # torch's allocators raise nothing narrower on the CPU
            size = num_slots * token_bytes(adapter, eight_bits=eight_bits) / 2**30
            raise OutOfMemory(
                f"the memory for {num_slots} tokens takes {size:.1f} GiB, which {adapter.device} "
                f"does not have",
                hint="Ask for fewer memory_tokens.",
            ) from error

    def writes(self, layer: int) -> bool:
        """Whether this layer writes its keys and values; else it reads what an earlier one wrote."""
        return self.stored_by[layer] == layer

    @property
    def num_bytes(self) -> int:
        """Bytes of all stores, each counted once."""
        return sum(store.num_bytes for layer, store in enumerate(self.stores) if self.writes(layer))

    def move(self, moves: Sequence[Move], backend: Backend) -> None:
        """Carry blocks to their new slots, keys rotated by the differences of the offsets; from `NOWHERE` come zeros.

        No move may touch a slot that another one writes. All integers are sent in one piece that is pinned,
        so the host need not wait for what the device still has to do.
        """
        moves = sorted(moves, key=lambda move: move.is_clearing)
        sizes = np.array([len(move.sources) for move in moves], dtype=np.int64)
        # Row by row, each beginning with nothing: there may be no moves.
        parts = np.empty((3, int(sizes.sum())), dtype=np.int64)
        none = parts[0, :0]
        np.concatenate([none, *[move.sources for move in moves]], out=parts[0])
        np.concatenate([none, *[move.targets for move in moves]], out=parts[1])
        parts[2] = np.array([move.shift for move in moves], dtype=np.int64).repeat(sizes)
        integers = torch.from_numpy(parts)
        num_carried = sum([len(move.sources) for move in moves if not move.is_clearing])
        if self.device.type == "cuda":
            integers = integers.pin_memory()
        integers = integers.to(self.device, non_blocking=True)
        carried, cleared = integers[:, :num_carried], integers[1, num_carried:]
        moved = Moved(carried[0], carried[1], Rotations(carried[2]))
        for stack in self.stacks:
            if len(cleared):
                stack.clear(cleared)
            if num_carried or not len(cleared):  # carrying nothing loads the kernel
                backend.move(stack, moved)


def token_bytes(adapter: ModelAdapter, *, eight_bits: bool = False) -> int:
    """Bytes of keys and values that one token costs over all layers, scales included."""
    storing = [adapter.layers[layer] for layer in sorted(set(adapter.stored_by))]
    num_numbers = sum(layer.numbers_per_token for layer in storing)
    if not eight_bits:
        return num_numbers * adapter.dtype.itemsize
    return num_numbers + 2 * SCALE_BYTES * sum(layer.num_kv_heads for layer in storing)


def default_memory_tokens(
    adapter: ModelAdapter, *, eight_bits: bool = False, besides: int = 0
) -> int:
    """How many tokens to hold by default: most of what is free on a GPU, half on a CPU, without `besides` bytes.

    At most a million: beyond, the accounting costs more than has ever been used.
    """
    free = _share(adapter) - besides
    return max(1, min(1 << 20, free // token_bytes(adapter, eight_bits=eight_bits)))


def default_states(adapter: ModelAdapter) -> int:
    """How many states of texts to hold by default: what half of the memory for tokens holds, at most 256."""
    return max(5, min(256, _share(adapter) // 2 // state_bytes(adapter.model)))


def _share(adapter: ModelAdapter) -> int:
    """Bytes of the device that memory takes by default."""
    share = 0.85 if adapter.device.type == "cuda" else 0.5
    return int(share * free_bytes(adapter.device))


def about_memory(
    adapter: ModelAdapter,
    num_pages: int,
    page_size: int,
    free: int,
    *,
    eight_bits: bool = False,
    num_states: int = 0,
) -> str:
    """A sentence about where memory goes; `free` bytes were free when the weights had been loaded."""
    weights = held_bytes(adapter)
    num_tokens = num_pages * page_size
    pool = num_tokens * token_bytes(adapter, eight_bits=eight_bits)
    rounded = " in eight bits" if eight_bits else ""
    return (
        f"weights take {_in_gib(weights)}, {_in_gib(free)} of {adapter.device} were free beside them, "
        f"and {_in_gib(pool)} of that hold keys and values{rounded}: {num_tokens:,} tokens in {num_pages:,} "
        f"pages of {page_size}{_states_of(adapter, num_states)}"
    )


def _states_of(adapter: ModelAdapter, num_states: int) -> str:
    if not num_states:
        return ""
    size = state_bytes(adapter.model)
    return f"; {num_states} states of texts take {_in_gib(num_states * size)}, {_in_gib(size)} each"


def held_bytes(adapter: ModelAdapter) -> int:
    """Bytes that the network holds; what several of its tensors share counts once."""
    tensors = (*adapter.model.parameters(), *adapter.model.buffers())
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(sizes.values()) + laid_out_bytes(adapter.model)


def num_weights(adapter: ModelAdapter) -> int:
    """Numbers that the network has learned, in however many bits; a table that stands at both ends counts once."""
    model: Any = adapter.model
    tied = model.get_output_embeddings() if adapter.config.tie_word_embeddings else None
    count = 0
    for module in model.modules():
        if module is tied:
            continue
        if hasattr(module, "in_features") and hasattr(module, "out_features"):
            count += module.in_features * module.out_features
        else:
            count += sum(weight.numel() for weight in module.parameters(recurse=False))
    return count


def _in_gib(size: int) -> str:
    gib = size / 2**30
    return f"{gib:.1f} GiB" if gib >= 0.1 else f"{gib * 1024:.1f} MiB"


def free_bytes(device: torch.device) -> int:
    """Free memory of a device, now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_host_bytes()
