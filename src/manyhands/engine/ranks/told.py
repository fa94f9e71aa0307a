"""The work that ranks share in a pass besides the sums of its layers: tell, agree, hand over, compare.

`Together` is any rank's; `ToldRanks` is rank 0's, and tells the others first.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from manyhands.cache.logprobs import Targets
from manyhands.cache.pages import Ints
from manyhands.cache.plan import Plan
from manyhands.engine.passes import Others
from manyhands.engine.ranks.channel import FirstEnd, Verb
from manyhands.engine.ranks.packing import pack_int32, pack_plan, pack_targets
from manyhands.errors import RanksFailed
from manyhands.model.parallel.collectives import Collectives


class Together(Others):
    """The shared work of every rank, told or telling."""

    def __init__(
        self, collectives: Collectives, device: torch.device, *, compares: bool = False
    ) -> None:
        """`compares`: after each pass the ranks compare digests of the integers and of the logits."""
        self.collectives = collectives
        self.device = device
        self.compares = compares

    def launched(self, plan: Plan, logits: Tensor) -> None:
        """See `Others.launched`. Raises RanksFailed where a digest is another one than rank 0's."""
        if not self.compares:
            return
        integers = np.concatenate([np.asarray(array, dtype=np.int64) for array in pack_plan(plan)])
        numbers = logits.float().cpu().numpy()
        digests = [zlib.crc32(each.tobytes()) for each in (integers, numbers)]
        own = torch.tensor(digests, dtype=torch.int64, device=self.device)
        first, *others = self.collectives.gather(own).tolist()
        for rank, other in enumerate(others, start=1):
            if other[0] != first[0]:
                raise RanksFailed(f"rank {rank} has made a pass of other integers than rank 0")
            if other[1] != first[1]:
                raise RanksFailed(f"rank {rank} has other logits than rank 0, of equal integers")

    def all_could(self, could: bool) -> bool:
        """See `Others.all_could`."""
        number = torch.tensor(int(could), dtype=torch.int64, device=self.device)
        return int(self.collectives.sum(number)) == self.collectives.size

    def alone(self) -> AbstractContextManager[None]:
        """See `Others.alone`."""
        return self.collectives.alone()

    def hand_over(self, tokens: Tensor) -> None:
        """See `Others.hand_over`."""
        self.collectives.take_over(tokens)


class ToldRanks(Together):
    """The other ranks, as rank 0 has them."""

    def __init__(
        self,
        told: FirstEnd,
        collectives: Collectives,
        device: torch.device,
        *,
        compares: bool = False,
    ) -> None:
        super().__init__(collectives, device, compares=compares)
        self.told = told

    def launch(self, plan: Plan, targets: Targets | None) -> None:
        """See `Others.launch`."""
        self.told.tell(Verb.LAUNCH, *pack_plan(plan), *pack_targets(targets))

    def record(self, capacity: Sequence[int], page_size: int, ends: Sequence[int]) -> None:
        """See `Others.record`."""
        self.told.tell(Verb.RECORD, _ints(page_size, *capacity), _ints(*ends))

    def forget(self) -> None:
        """See `Others.forget`."""
        self.told.tell(Verb.FORGET)

    def ask_room(self, num_bytes: int) -> None:
        """See `Others.ask_room`."""
        self.told.tell(Verb.ASK_ROOM, _ints(num_bytes))

    def load(self, page_size: int, capacities: Sequence[Sequence[int]]) -> None:
        """See `Others.load`."""
        self.told.tell(Verb.PREPARE, _ints(page_size), *(_ints(*each) for each in capacities))

    def start(self, number: int, num_parts: int, integers: Tensor, growth: Tensor) -> None:
        """See `Others.start`."""
        both = pack_int32(integers.numpy(), growth.numpy())
        self.told.tell(Verb.START, _ints(number, num_parts), *both)

    def follow(self, number: int, token_ids: Ints) -> None:
        """See `Others.follow`."""
        self.told.tell(Verb.FOLLOW, _ints(number), token_ids)

    def begin(self, number: int, num_parts: int) -> None:
        """See `Others.begin`."""
        self.told.tell(Verb.BEGIN, _ints(number, num_parts))

    def finish(self, number: int) -> None:
        """See `Others.finish`."""
        self.told.tell(Verb.FINISH, _ints(number))


def _ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)
