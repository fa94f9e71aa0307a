"""One sum over the ranks of a model: microseconds in a recorded graph, through peers' memory and by NCCL.

    python -m benchmarks.sums --ranks 2
    NCCL_GRAPH_MIXING_SUPPORT=1 python -m benchmarks.sums --ranks 2

A graph of 64 sums, each followed by the residual sum and norm that stand behind it in a network: `_meet` is one launch, by words
where a sum has few tokens and by flags where the ranks are two, NCCL's sum and `norms.join` are two. First all must give the same bits, one sum after another. `us` is of one sum with
what follows it; `alone_us` of NCCL's sum without.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks.results import Clock, Results, parser
from manyhands.engine.ranks.channel import OtherEnd, Verb, text_of
from manyhands.engine.ranks.group import join_group, leave_group, take_device
from manyhands.engine.ranks.world import World
from manyhands.model.parallel.collectives import GroupCollectives
from manyhands.model.parallel.finding import find_peers
from manyhands.model.parallel.peers import Peers

if TYPE_CHECKING:
    from manyhands.model.kernels.one_shot import Meeting

WIDTHS, TOKENS, SUMS, REPLAYS = (5120, 4096), (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048), 64, 30
_WORK = "benchmarks.sums:follow"


def main(argv: Sequence[str] | None = None) -> None:
    """See the module."""
    options = parser(__doc__, 1)
    options.add_argument("--ranks", type=int, default=2)
    arguments = options.parse_args(argv)
    clock = Clock(arguments.minutes)
    results = Results("ranks_sums", arguments, clock)
    results.put(graph_mixing=os.environ.get("NCCL_GRAPH_MIXING_SUPPORT", "0"))
    world = World.start(arguments.ranks, arguments.device, work=_WORK)
    clock.say(f"{arguments.ranks} ranks have started in {world.seconds_starting:.1f} s")
    try:
        with world.whole():
            measure(world.collectives, world.device, results.add)
    finally:
        world.end()


def follow(heard: OtherEnd) -> None:
    """Another rank: the same calls."""
    verb, arrays = heard.next()
    assert verb == Verb.JOIN, "rank 0 begins with it"
    kind, port = text_of(next(arrays)), int(next(arrays)[0])
    device = take_device(kind, heard.rank)
    heard.report(device=str(device))
    collectives = join_group(kind, port, heard.rank, heard.size, device, heard.check)
    measure(collectives, device, lambda kind, **line: None)
    assert heard.next()[0] == Verb.END
    leave_group()


def measure(collectives: GroupCollectives, device: torch.device, add: Callable[..., None]) -> None:
    """All lines; every rank calls it."""
    for width in WIDTHS:
        collectives.forget_peers()
        find_peers(collectives, width, torch.bfloat16, device)
        add("peers", width=width, about=collectives.about_peers)
        for tokens in TOKENS:
            rows = _Rows(collectives, width, tokens, device)
            kinds: dict[str, Callable[[], tuple[Any, Any]]] = {"nccl": rows.by_group}
            for kind, meeting in _meetings(collectives.peers, tokens).items():
                kinds[kind] = partial(rows.by_peers, meeting)
                same = rows.agree(meeting)
                add("same", width=width, tokens=tokens, by=kind, rounds=SUMS, same=same)
            for kind, make in kinds.items():
                add("sums", width=width, tokens=tokens, by=kind, us=_timed(make, device))
            alone = _timed(partial(collectives.sum, rows.x), device)
            add("alone", width=width, tokens=tokens, us=alone)
    collectives.forget_peers()


def _meetings(peers: Peers | None, tokens: int) -> dict[str, Meeting]:
    """The ways through peers' memory that have room for so many tokens."""
    if peers is None:
        return {}
    ways = {"words": peers.meeting, "flags": peers.many}
    return {kind: way for kind, way in ways.items() if way is not None and tokens <= way.places}


class _Rows:
    """Rows as they stand behind an output projection, and the residual stream that they join."""

    def __init__(
        self, collectives: GroupCollectives, width: int, tokens: int, device: torch.device
    ) -> None:
        numbers = torch.Generator(device).manual_seed(collectives.rank)

        def some(*size: int) -> Tensor:
            return torch.randn(*size, generator=numbers, device=device).to(torch.bfloat16)

        self.collectives = collectives
        self.x, self.weight = some(tokens, width), torch.ones_like(some(width))
        self.residual = torch.zeros_like(self.x)

    def by_group(self) -> tuple[Any, Any]:
        """NCCL's sum, and the launch behind it."""
        from manyhands.model.kernels.norms import join

        x = self.collectives.sum(self.x)  # in place
        return join(self.residual, x, None, (self.weight, 1e-6), 0)

    def by_peers(self, meeting: Meeting) -> tuple[Any, Any]:
        """The same in one launch."""
        from manyhands.model.kernels.one_shot import meet

        return meet(meeting, self.residual, self.x, None, (self.weight, 1e-6), 0)

    def agree(self, meeting: Meeting) -> bool:
        """Whether both give the same bits, over and over, with other numbers each time."""
        same = True
        for _ in range(SUMS):
            self.x = torch.randn_like(self.x)
            pairs = zip(self.by_peers(meeting), self.by_group(), strict=True)  # in this order
            same &= all(torch.equal(ours, theirs) for ours, theirs in pairs)
        return same


def _timed(make: Callable[[], object], device: torch.device) -> float:
    """Microseconds of one of many in a graph: the median of its replays."""
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        make()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(SUMS):
            make()
    spent = []
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize(device)
        spent.append(1e3 * began.elapsed_time(ended) / SUMS)
    return round(float(statistics.median(spent[REPLAYS // 3 :])), 3)


if __name__ == "__main__":
    main()
