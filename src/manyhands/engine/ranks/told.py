"""The work that ranks share in a pass besides the sums of its layers: tell, agree, hand over, compare.

`Together` is any rank's; `ToldRanks` is rank 0's, and tells the others first; `Following` is another rank's.

**Agreeing** is no sum: a rank that has failed alone makes the next sum while the others still wait in one before it, and neither ends.
Each of the others says by its pipe what trouble it had and how many sums it has made, and rank 0 says what holds for all.
Ranks that have made as many sums are in step, whatever they made of the work, so all can leave it out. A rank that could not do its
part, and does not hear of the others in `PATIENCE` seconds, has left them in a sum, and ends all.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.cache.logprobs import Targets
from manyhands.cache.places import Ints
from manyhands.cache.plan import Plan
from manyhands.engine.passes import Others
from manyhands.engine.ranks.channel import FirstEnd, OtherEnd, Verb, ints_of, text_of
from manyhands.engine.ranks.packing import pack_int32, pack_plan, pack_targets
from manyhands.errors import RanksFailed
from manyhands.model.parallel.collectives import Collectives

# Seconds. Less than a sum through peers' memory waits: behind one that was given up a rank would go on without numbers.
PATIENCE = 10.0


class Together(Others):
    """The shared work of every rank, told or telling."""

    def __init__(
        self, collectives: Collectives, device: torch.device, *, compares: bool = False
    ) -> None:
        """`compares`: after each pass the ranks compare digests of the integers and of the logits."""
        self.collectives = collectives
        self.device = device
        self.compares = compares
        self._num_made = collectives.num_made  # when the ranks agreed last

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

    def _made(self) -> int:
        """Sums since the ranks agreed last."""
        before, self._num_made = self._num_made, self.collectives.num_made
        return self._num_made - before

    def _left(self, trouble: str) -> RanksFailed:
        """The error of a rank that had this trouble, and has left the others in a sum."""
        return RanksFailed(
            f"in the midst of what all ranks make together it had trouble: {trouble}; the others still wait in it",
            hint="leave each rank more memory (fewer memory_tokens, no other program on its device), and load the model "
            "again; backend torch records nothing",
        )

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
        answers: Callable[[float | None], Sequence[dict[str, Any]]],
        compares: bool = False,
    ) -> None:
        """`answers`: what each of the others reports next, within so many seconds (TimeoutError), or at last (`World.answers`)."""
        super().__init__(collectives, device, compares=compares)
        self.told = told
        self.answers = answers

    def launch(self, plan: Plan, targets: Targets | None) -> None:
        """See `Others.launch`."""
        self.told.tell(Verb.LAUNCH, *pack_plan(plan), *pack_targets(targets))

    def launch_late(self, plan: Plan) -> None:
        """See `Others.launch_late`."""
        self.told.tell(Verb.LAUNCH_LATE, *pack_plan(plan))

    def record(self, capacity: Sequence[int], page_size: int, ends: Sequence[int]) -> None:
        """See `Others.record`."""
        self.told.tell(Verb.RECORD, _ints(page_size, *capacity), _ints(*ends))

    def forget(self) -> None:
        """See `Others.forget`."""
        self.told.tell(Verb.FORGET)

    def ask_room(self, num_bytes: int) -> None:
        """See `Others.ask_room`."""
        self.told.tell(Verb.ASK_ROOM, _ints(num_bytes))

    def any_trouble(self, own: str | None, *, made_sums: bool = True) -> str | None:
        """See `Others.any_trouble`. Raises RanksFailed where ranks are not in step."""
        made = self._made()
        try:
            said = self.answers(PATIENCE if own is not None and made_sums else None)
        except TimeoutError as error:
            assert own is not None, "only a rank that could not is impatient"
            raise self._of_rank(0, own) from error
        words = [(own, made), *((each["trouble"], each["made"]) for each in said)]
        troubles = [(rank, trouble) for rank, (trouble, _) in enumerate(words) if trouble]
        if len({made for _, made in words}) > 1:
            # The rank that has made the fewest has left the others, whose trouble is its end.
            fewest = min(range(len(words)), key=lambda rank: words[rank][1])
            trouble = words[fewest][0] or "it has made fewer sums than the others"
            raise self._of_rank(fewest, trouble)
        found = [f"rank {rank} of {len(words)}: {trouble}" for rank, trouble in troubles]
        self.told.tell(Verb.AGREE, ints_of(found[0] if found else ""))
        return found[0] if found else None

    def _of_rank(self, rank: int, trouble: str) -> RanksFailed:
        left = self._left(trouble)
        return RanksFailed(f"rank {rank} of {self.collectives.size} failed: {left}", hint=left.hint)

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


class Following(Together):
    """Rank 0 and the others, as another rank has them."""

    def __init__(
        self,
        heard: OtherEnd,
        collectives: Collectives,
        device: torch.device,
        *,
        compares: bool = False,
    ) -> None:
        super().__init__(collectives, device, compares=compares)
        self.heard = heard

    def any_trouble(self, own: str | None, *, made_sums: bool = True) -> str | None:
        """See `Others.any_trouble`. Raises RanksFailed where the others are not in step."""
        self.heard.report(trouble=own, made=self._made())
        if own is not None and made_sums and not self.heard.comes(PATIENCE):
            raise self._left(own)
        verb, arrays = self.heard.next()
        assert verb is Verb.AGREE, "rank 0 tells nothing else before"
        return text_of(next(arrays)) or None


def _ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)
