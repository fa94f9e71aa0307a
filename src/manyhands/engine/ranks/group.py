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
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from manyhands.errors import InvalidRequest
from manyhands.model.parallel.collectives import GroupCollectives

Store: Any = vars(dist)["TCPStore"]  # it has no types
_HOST = "127.0.0.1"
_LONGEST = datetime.timedelta(minutes=10)  # that a rank waits for the others in one sum
_LOOK = 0.02  # seconds between two looks at whether the other ranks are there, while all join
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
    """Where the ranks meet, at rank 0; its `port` is told to the others. Once it is let go, no rank waits there any more."""
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
    kind: str, port: int, rank: int, size: int, device: torch.device, check: Callable[[], None]
) -> GroupCollectives:
    """The group that joins the rank to the others. All ranks call it at once, with their devices.

    Torch waits for the others where no call of ours reaches it, so a thread of its own joins. `check` is asked meanwhile, and raises where
    another rank is gone: that is raised here at once, and the thread leaves what it may still join.
    """
    joining = _Joining(kind, port, rank, size, device)
    while not joining.is_over(_LOOK):
        try:
            check()
        except BaseException:
            joining.give_up()
            raise
    return joining.joined()


class _Joining:
    """The thread of `join_group`."""

    def __init__(self, kind: str, port: int, rank: int, size: int, device: torch.device) -> None:
        self._over = threading.Event()
        self._given_up = threading.Lock()  # held by whoever is first: the end or `give_up`
        self._errors: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        args = (kind, port, rank, size, device)
        threading.Thread(target=self._join, args=args, daemon=True).start()

    def is_over(self, seconds: float) -> bool:
        """Wait so long for the end."""
        return self._over.wait(seconds)

    def joined(self) -> GroupCollectives:
        """The group, behind the end; raises what joining has raised."""
        error = self._errors.get()
        if error is not None:
            raise error
        return GroupCollectives()

    def give_up(self) -> None:
        """No group is wanted any more: one that is there is left, one that comes is left by the thread."""
        if not self._given_up.acquire(blocking=False):
            leave_group()

    def _join(self, kind: str, port: int, rank: int, size: int, device: torch.device) -> None:
        error: BaseException | None = None
        try:
            if kind == "nccl":
                torch.cuda.set_device(device)  # each thread has its own
            dist.init_process_group(
                kind,
                store=Store(_HOST, port, size, is_master=False, timeout=_LONGEST),
                rank=rank,
                world_size=size,
                timeout=_LONGEST,
                device_id=device if kind == "nccl" else None,
            )
        except BaseException as found:
            error = found
        if self._given_up.acquire(blocking=False):
            self._errors.put(error)
            self._over.set()
            return
        with suppress(RuntimeError, ValueError):
            leave_group()


def leave_group() -> None:
    """Let go of the group, if there is one; the others need not be there any more."""
    if dist.is_initialized():
        dist.destroy_process_group()
