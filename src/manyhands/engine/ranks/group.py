"""The process group of the ranks: gloo on the CPU, NCCL on GPUs, one GPU for each rank.

NCCL is told, before the group is made, not to use multicast (NVLS), which is not available everywhere and hangs
where it only seems so; and that graphs and other launches do not overlap, which makes its recorded sums cheaper:
all our launches stand in one stream, and calls that are not recorded wait for the recordings in front of them
(`Passes.settle`). Torch is told to take peers' memory anew each time: from its pool, one rank might get memory that
all know already and another one memory that none knows. Values that a user has set are left.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
import torch.distributed as dist

from manyhands.errors import InvalidRequest
from manyhands.model.parallel.collectives import GroupCollectives

Store: Any = vars(dist)["TCPStore"]  # it has no types
_HOST = "127.0.0.1"
_LONGEST = datetime.timedelta(minutes=10)  # that a rank waits for the others in one sum
_NCCL = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "TORCH_SYMMMEM_IMPLICIT_POOL": "0",
    "NCCL_GRAPH_MIXING_SUPPORT": "0",
}


def kind_of_group(device: str, size: int) -> str:
    """Gloo or NCCL, by the device that was asked for. InvalidRequest where there are too few GPUs."""
    if device not in ("auto", "cpu", "cuda"):
        raise InvalidRequest(
            f"device is {device!r}, and {size} ranks share the model",
            hint="choose auto, cpu or cuda; CUDA_VISIBLE_DEVICES says which GPUs",
        )
    count = torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and count == 0):
        return "gloo"
    if count < size:
        raise InvalidRequest(
            f"{size} ranks need {size} GPUs, and {count} are here",
            hint="ask for fewer ranks, or for device cpu",
        )
    return "nccl"


def open_store(size: int) -> Any:
    """Where the ranks meet, at rank 0; its `port` is told to the others."""
    return Store(_HOST, 0, size, is_master=True, wait_for_workers=False, timeout=_LONGEST)


def check_no_group() -> None:
    """Raise InvalidRequest where this process has a group already."""
    if dist.is_initialized():
        raise InvalidRequest(
            "torch.distributed is in use in this process already, and several ranks need it",
            hint="close the other engine first (engine.executor.close()), or start another process",
        )


def take_device(kind: str, rank: int) -> torch.device:
    """The rank's device, on which work can begin. A rank that cannot have it says so before the others wait for it in the group."""
    check_no_group()
    if kind != "nccl":
        return torch.device("cpu")
    for name, value in _NCCL.items():
        os.environ.setdefault(name, value)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return device


def join_group(
    kind: str, port: int, rank: int, size: int, device: torch.device, store: Any = None
) -> GroupCollectives:
    """The group that joins the rank to the others. All ranks call it at once, with their devices."""
    store = store or Store(_HOST, port, size, is_master=False, timeout=_LONGEST)
    dist.init_process_group(
        kind,
        store=store,
        rank=rank,
        world_size=size,
        timeout=_LONGEST,
        device_id=device if kind == "nccl" else None,
    )
    return GroupCollectives()


def leave_group() -> None:
    """Let go of the group, if there is one; the others need not be there any more."""
    if dist.is_initialized():
        dist.destroy_process_group()
