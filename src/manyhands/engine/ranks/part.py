"""One rank's part of a model, and what the rank says of it."""

from __future__ import annotations

from typing import Any

import torch

from manyhands.engine.local_executor import LocalExecutor, Network, load_network
from manyhands.model.adapter import weight_bytes
from manyhands.model.fingerprint import digest_of
from manyhands.model.memory import default_memory_tokens, held_bytes
from manyhands.model.parallel.collectives import Collectives, GroupCollectives
from manyhands.model.parallel.finding import find_peers
from manyhands.model.settings import ModelSettings


def load_part(
    settings: ModelSettings,
    device: torch.device,
    collectives: GroupCollectives,
    *,
    downloads: bool = False,
) -> Network:
    """The part of the model that belongs to this rank, on its device; `look_for_peers` follows."""
    collectives.forget_peers()
    return load_network(settings, device=str(device), downloads=downloads, collectives=collectives)


def look_for_peers(
    network: Network, settings: ModelSettings, collectives: GroupCollectives
) -> None:
    """Try the short way for sums of few tokens, on all ranks at once, when all have loaded their parts."""
    if settings.peers:
        adapter = network.adapter
        find_peers(collectives, adapter.config.hidden_size, adapter.dtype, adapter.device)


def report_of(network: Network, settings: ModelSettings, seconds: float) -> dict[str, Any]:
    """The facts of a part that rank 0 must know: its size, its room in tokens, the seconds of its loading."""
    return {
        "weights": held_bytes(network.adapter),
        "read": weight_bytes(network.adapter),
        "tokens": default_memory_tokens(
            network.adapter, eight_bits=settings.kv_cache_dtype == "int8"
        ),
        "seconds": seconds,
    }


def fingerprint_of_all(executor: LocalExecutor, collectives: Collectives) -> str:
    """The digits of all ranks' weights together. Every rank calls it."""
    executor.passes.settle()
    own = executor.adapter.weight_sums.get()  # by layer
    layers = torch.arange(-1, executor.adapter.num_layers)
    zero = torch.zeros(2, dtype=torch.int64, device=executor.adapter.device)
    table = torch.stack([own.get(layer, zero) for layer in layers.tolist()])
    table = collectives.sum(table)
    return digest_of(dict(zip(layers.tolist(), table, strict=True)))
