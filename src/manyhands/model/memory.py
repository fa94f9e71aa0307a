"""Memory: the keys and values of every block, and nothing about who reads them.

One tensor of keys and one of values for all layers, cut into slots; which slots belong to which block
is `cache/pages.py`'s accounting. Keys are stored rotated by their index on their strip, so they never
turn again while a block stays where it is, however many views meet it at however many positions.

    L  layers      S  slots      G  key/value heads      D, Dv  head dims
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from manyhands.attention.rotary import Rope, Turns
from manyhands.attention.store import Targets
from manyhands.cache.pages import Move
from manyhands.errors import OutOfMemory
from manyhands.model.adapter import ModelAdapter


class Memory:
    """keys [L, S, G, D] and values [L, S, G, Dv], uninitialised until written."""

    def __init__(
        self,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int,
        ropes: Sequence[Rope | None],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.ropes = tuple(ropes)
        shape = (len(self.ropes), num_slots, num_kv_heads)
        self.keys = torch.empty(*shape, head_dim, device=device, dtype=dtype)
        self.values = torch.empty(*shape, value_dim, device=device, dtype=dtype)

    @classmethod
    def for_model(cls, adapter: ModelAdapter, num_slots: int) -> Memory:
        """A memory of `num_slots` tokens in the shape of a model; OutOfMemory if that cannot be had."""
        try:
            return cls(
                num_slots,
                adapter.num_kv_heads,
                adapter.head_dim,
                adapter.value_dim,
                adapter.ropes,
                device=adapter.device,
                dtype=adapter.dtype,
            )
        except RuntimeError as error:  # torch's allocators raise nothing narrower on the CPU
            size = num_slots * token_bytes(adapter) / 2**30
            raise OutOfMemory(
                f"the memory for {num_slots} tokens takes {size:.1f} GiB, which {adapter.device} "
                f"does not have",
                hint="Ask for fewer memory_tokens.",
            ) from error

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor, turns: Turns) -> None:
        """Store the new tokens' k [T, G, D], not rotated yet, and v [T, G, Dv] at `slots` [T].

        `turns` [T] are the tokens' indices on their strips.
        """
        Targets(slots, turns).store(k, v, self.keys[layer], self.values[layer], self.ropes[layer])

    def move(self, move: Move) -> None:
        """Carry a block to its new slots, keys turned by the difference of the offsets."""
        sources, targets = (
            torch.as_tensor(slots, device=self.keys.device)
            for slots in (move.sources, move.targets)
        )
        turns = Turns(torch.full_like(sources, move.turn))
        for layer, rope in enumerate(self.ropes):
            self.keys[layer, targets] = turns.rotate(self.keys[layer, sources], rope)
        self.values[:, targets] = self.values[:, sources]


def token_bytes(adapter: ModelAdapter) -> int:
    """Bytes of keys and values that one token costs over all layers."""
    per_layer = adapter.num_kv_heads * (adapter.head_dim + adapter.value_dim)
    return adapter.num_layers * per_layer * adapter.dtype.itemsize


def default_memory_tokens(adapter: ModelAdapter) -> int:
    """How many tokens to hold when nobody says: most of what is free on a GPU, half on a CPU.

    At most a million: beyond, the accounting costs more than anybody has used.
    """
    share = 0.85 if adapter.device.type == "cuda" else 0.5
    free = int(share * free_bytes(adapter.device))
    return max(1, min(1 << 20, free // token_bytes(adapter)))


def about_memory(adapter: ModelAdapter, num_pages: int, page_size: int, free: int) -> str:
    """A sentence about where memory goes; `free` bytes were free when the weights had been loaded."""
    tensors = {id(t): t for t in (*adapter.model.parameters(), *adapter.model.buffers())}
    weights = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    num_tokens = num_pages * page_size
    pool = num_tokens * token_bytes(adapter)
    return (
        f"weights take {_in_gib(weights)}, {_in_gib(free)} of {adapter.device} were free beside them, "
        f"and {_in_gib(pool)} of that hold keys and values: {num_tokens:,} tokens in {num_pages:,} "
        f"pages of {page_size}"
    )


def _in_gib(size: int) -> str:
    gib = size / 2**30
    return f"{gib:.1f} GiB" if gib >= 0.1 else f"{gib * 1024:.1f} MiB"


def free_bytes(device: torch.device) -> int:
    """Free memory of a device, now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _free_host_bytes()


def _free_host_bytes() -> int:
    """Free memory of the host; 4 GiB where the system does not tell."""
    names = ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE")
    if not all(name in os.sysconf_names for name in names):
        return 4 << 30
    return os.sysconf(names[0]) * os.sysconf(names[1])
