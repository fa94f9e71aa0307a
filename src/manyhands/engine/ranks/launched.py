"""The environment that torchrun sets, where it has started this process as one of several ranks.

    torchrun --nproc-per-node 2 --no-python manyhands solve --model Qwen/Qwen3-8B "..."

All processes get the same command. Rank 0 runs it; every other one follows rank 0 instead (`other_rank.py`).
Nothing heavy is imported here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from manyhands.errors import InvalidRequest
from manyhands.model.settings import ModelSettings


@dataclass(frozen=True)
class Launched:
    """One of `size` processes that torchrun has started on this host."""

    rank: int
    size: int
    host: str  # where torchrun keeps what the processes tell each other
    port: int


def launched() -> Launched | None:
    """The ranks as torchrun names them; None if it has not started this process, or this one alone."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if "TORCHELASTIC_RUN_ID" not in os.environ or not all(name in os.environ for name in names):
        return None
    rank, size, here, port = (int(os.environ[name]) for name in names if name != "MASTER_ADDR")
    if size == 1:
        return None
    if here != size:
        raise InvalidRequest(
            f"torchrun has started {size} ranks on several hosts, {here} on this one",
            hint="one model is cut over the GPUs of one host; run a server on each host instead",
        )
    return Launched(rank, size, os.environ["MASTER_ADDR"], port)


def num_ranks(settings: ModelSettings) -> int:
    """How many ranks share the model. InvalidRequest where the settings and torchrun differ."""
    found = launched()
    if found is None:
        return settings.ranks or 1
    if settings.ranks not in (None, found.size):
        raise InvalidRequest(
            f"ranks is {settings.ranks}, and torchrun has started {found.size}",
            hint="leave ranks out under torchrun",
        )
    return found.size
