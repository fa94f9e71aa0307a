"""The collective operations of the ranks of one network: add up, list, and take over what rank 0 has.

Layers ask for these three and know nothing else of each other's processes. `GroupCollectives` makes them by
torch.distributed: gloo on the CPU, NCCL on GPUs, where a CUDA graph records them as it records kernels.
Every rank must make the same calls in the same order, and every rank gets the same bits: each sum is
formed once and handed to all.

Nothing here is differentiable. A network that is cut is for inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from manyhands.model.parallel.peers import Peers, is_recorded

# Newer versions of torch warn of the older name.
_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Collectives(Protocol):
    """Asked for by every rank in the same order. `rank` counts from 0 to `size` - 1."""

    @property
    def rank(self) -> int:
        """Which of them this one is."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def name(self) -> str:
        """By what they are made, for people: "gloo", "nccl"."""

    @property
    def peers(self) -> Peers | None:
        """A shorter way for sums of few tokens, where there is one."""

    @property
    def num_made(self) -> int:
        """Calls that this rank has made with the others so far, those through peers' memory included; a recording's are none of them.

        Ranks that have made as many are in step.
        """

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x [...], the same bits on each. May be made in place."""

    def gather(self, x: Tensor) -> Tensor:
        """All ranks' x [...] as [size, ...], in the order of ranks."""

    def take_over(self, x: Tensor) -> None:
        """Write rank 0's x [...] over all ranks'."""

    def alone(self) -> AbstractContextManager[None]:
        """Inside, this rank's calls are made without the others, and what they give means nothing: for launches that are tried out."""


class GroupCollectives:
    """Collectives of a process group of torch.distributed."""

    def __init__(self, group: Any = None) -> None:
        """`group`: None is the default one, which has been initialised."""
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self.name = str(dist.get_backend(group))
        self.peers: Peers | None = None
        self.about_peers = ""  # how sums of few tokens are made, for people
        self._is_alone = False
        self._num_made = 0  # without those of the peers that are there

    @property
    def num_made(self) -> int:
        """See `Collectives.num_made`."""
        return self._num_made + (0 if self.peers is None else self.peers.num_made)

    def _count(self, x: Tensor) -> None:
        self._num_made += not is_recorded(x)

    def forget_peers(self) -> None:
        """Let their memory go: another model is loaded. A pass that nobody waited for ends first."""
        if self.peers is not None:
            torch.cuda.synchronize(self.peers.meeting.stop.device)
        self.peers, self.about_peers = None, ""

    def sum(self, x: Tensor) -> Tensor:
        """See `Collectives.sum`."""
        x = x.contiguous()
        if not self._is_alone:
            self._count(x)
            dist.all_reduce(x, group=self.group)
        return x

    def gather(self, x: Tensor) -> Tensor:
        """See `Collectives.gather`."""
        listed = torch.empty(self.size * x.numel(), dtype=x.dtype, device=x.device)
        if not self._is_alone:
            self._count(x)
            _gather(listed, x.contiguous().view(-1), group=self.group)
        return listed.view(self.size, *x.shape)

    def take_over(self, x: Tensor) -> None:
        """See `Collectives.take_over`."""
        if not self._is_alone:
            self._count(x)
            dist.broadcast(x, 0, group=self.group)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """See `Collectives.alone`. Peers would be waited for."""
        peers, self.peers, self._is_alone = self.peers, None, True
        try:
            yield
        finally:
            self.peers, self._is_alone = peers, False
