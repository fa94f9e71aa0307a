"""Ranks that go wrong when a test asks them to."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from manyhands.engine.passes import Passes
from manyhands.engine.ranks.channel import OtherEnd
from manyhands.engine.ranks.follower import Follower
from manyhands.engine.ranks.group import leave_group
from manyhands.model.parallel import finding

# Of `max_tokens_per_pass`: how the last rank goes wrong, in passes,
LATE, FAILS = 8190, 8191
# and in the try of peers' memory, which is then made on the CPU.
NO_MEMORY, NO_MEETING, NO_SENSE = 8187, 8188, 8189


def oddly(heard: OtherEnd) -> None:
    """An ordinary rank, until a model is loaded whose settings say how the last rank goes wrong.

    LATE: it feeds each pass the tokens of the pass before, where both have as many. FAILS: its third pass raises.
    The others are those of `peers_on_cpu`.
    """
    follower = Follower(heard)
    for name, instead in peers_on_cpu(
        lambda: follower.settings.max_tokens_per_pass, is_last=heard.rank == heard.size - 1
    ).items():
        setattr(finding, name, instead)
    right: Any = Passes.launch
    fed: list[Any] = []

    def wrong(self: Passes, plan: Any, targets: Any = None) -> Any:
        how = follower.settings.max_tokens_per_pass
        if how not in (LATE, FAILS):
            fed.clear()
        elif heard.rank == heard.size - 1:
            fed.append(plan.token_ids)
            if how == FAILS and len(fed) == 3:
                raise ArithmeticError("a wire came loose")
            if how == LATE and len(fed) > 1 and len(fed[-2]) == len(plan.token_ids):
                plan = replace(plan, token_ids=fed[-2])
        return right(self, plan, targets)

    Passes.launch = wrong  # type: ignore[method-assign]
    try:
        while follower.obey(*heard.next()):
            pass
    finally:
        leave_group()


def peers_on_cpu(how: Callable[[], int | None], *, is_last: bool) -> dict[str, Any]:
    """In the place of these names of `finding`: a try of peers' memory on a CPU, in which the last rank goes wrong.

    NO_MEMORY: it gets none. NO_MEETING: it leaves before all meet, and the others wait. NO_SENSE: an error that
    nobody has thought of.
    """

    def taken(*_: Any) -> torch.Tensor:
        if is_last and how() == NO_MEMORY:
            raise torch.OutOfMemoryError("no room for 10 MiB")
        if is_last and how() == NO_SENSE:
            raise ArithmeticError("no sense in it")
        return torch.zeros(1)

    def joined(memory: torch.Tensor, collectives: Any, *_: Any) -> NoReturn:
        assert how() == NO_MEETING, "no rank may wait for one that has no memory"
        if is_last:
            raise RuntimeError("this rank has left")
        group: Any = dist.group.WORLD
        with finding._bounded(group):
            vars(dist.distributed_c10d)["_get_process_group_store"](group).wait(["the last rank"])
        raise AssertionError("nobody has said it")

    return {
        "_KINDS": _OnCpu(how),
        "_LONGEST_MEETING": datetime.timedelta(seconds=0.5),
        "_trouble": lambda *_: "",
        "_taken": taken,
        "_joined": joined,
    }


class _OnCpu:
    """Kinds of devices: the CPU is one of them while a test asks for it."""

    def __init__(self, how: Callable[[], int | None]) -> None:
        self.how = how

    def __contains__(self, kind: object) -> bool:
        return self.how() in (NO_MEMORY, NO_MEETING, NO_SENSE)
