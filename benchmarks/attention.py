"""The one op alone, one layer: teams, teams that live, Hydragen's grid, trees, prefill, against limits and peers.

    python -m benchmarks.attention --minutes 3
    python -m benchmarks.attention --only trees
    python -m benchmarks.attention --outsiders FOLDER    # with the peers of benchmarks/outsiders.py

The limit of a situation is the longer of two times: its bytes (each key and value once, queries, outputs) at
the speed of a copy, and its products at the speed of a large matrix product, both measured in the same run.
Times are medians over replays of a CUDA graph, with the second-level cache flushed before every call and not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch

from benchmarks import op_peers, outside_peers, situations
from benchmarks.gate import check_against, check_op
from benchmarks.results import Clock, Results, parser
from benchmarks.situations import TREES, Situation
from benchmarks.timing import matmul_rate, milliseconds
from manyhands.attention.attend import Backend
from manyhands.attention.reference import ReferenceBackend
from manyhands.attention.store import LayerShape
from manyhands.attention.torch_backend import TorchBackend
from manyhands.cache.plan import Plan
from manyhands.cache.view import View
from manyhands.evaluation.bench import copy_bandwidth

TEAM_HEADS, PREFIX_HEADS, TREE_HEADS, PREFILL_HEADS = (40, 8), (8, 1), (32, 8), (32, 8)
FEWER_TEAM_HEADS = (32, 8)  # of further cells of long teams
HEAD_DIM = 128
GRID = ((512, 1024), (1024, 2048), (2048, 4096), (4096, 8192))
SUFFIXES = (0, 64, 128, 256)
PREFILLS = ((0, 1024), (0, 2048), (0, 4096), (0, 8192), (8192, 8192))  # history, new tokens
FLEX = ("512 1024 64", "1024 2048 64", "1,2,64_1024,256,256", "1,256_256,32")
_SECONDS_OF_FLEX = 20
_MOST_MS_OF_PEERS = 20.0  # a situation whose unshared reading must take longer is not waited for


@dataclass(frozen=True)
class Case:
    """One situation to be made: its family, its name in the results, how to make its views."""

    family: str
    name: str
    heads: tuple[int, int]
    views: Callable[[], list[View]]
    num_new: int = 1  # tokens of each row
    planned: Callable[[], tuple[Plan, int]] | None = None  # in place of these views


def cases(tiny: bool, full: bool) -> Iterator[Case]:
    """Everything that is measured."""
    lengths, workers, desk = (
        ((40,), (1, 3), 6) if tiny else ((1024, 4096, 16384, 65536), (1, 2, 4, 8, 16), 128)
    )
    for length in lengths:
        for count in workers:
            views = partial(situations.team, count, length, desk)
            yield Case("teams", f"{length} {count}", TEAM_HEADS, views)
    for length in lengths[-2:]:
        for count in workers:
            views = partial(situations.team, count, length, desk)
            yield Case("teams", f"{length} {count} fewer", FEWER_TEAM_HEADS, views)
    live = ((40,), (3,), 6) if tiny else ((1024, 16384, 65536), (4, 8, 16), 100)
    for heads in (TEAM_HEADS, FEWER_TEAM_HEADS):
        for length, count, has_copies in product(*live[:2], (True, False)):
            team = partial(situations.live_team, count, length, live[2], has_copies=has_copies)
            name = f"{length} {count} {'copies' if has_copies else 'apart'}"
            yield Case("live", f"{name} {heads[0]}/{heads[1]}", heads, list, planned=team)
    pairs = ((8, 40),) if tiny else _pairs(full)
    for batch, prefix in pairs:
        for suffix in (0, 6) if tiny else SUFFIXES:
            views = partial(situations.completions, batch, prefix, suffix)
            yield Case("prefixes", f"{batch} {prefix} {suffix}", PREFIX_HEADS, views)
    for shape in TREES[::6] if tiny else TREES:
        built = situations.shrunk(shape, 32) if tiny else shape
        yield Case("trees", shape, TREE_HEADS, partial(situations.tree, built))
    for history, new in ((0, 40), (40, 9)) if tiny else PREFILLS:
        views = partial(situations.prefill, history)
        yield Case("prefills", f"{history} {new}", PREFILL_HEADS, views, new)


def _pairs(full: bool) -> tuple[tuple[int, int], ...]:
    """The diagonal of Hydragen's grid, or all of it."""
    batches, prefixes = zip(*GRID, strict=True)
    return tuple((b, p) for b in batches for p in prefixes) if full else GRID


class Attention:
    """All cases, one result file a family."""

    def __init__(self, arguments: argparse.Namespace, clock: Clock) -> None:
        self.arguments, self.clock = arguments, clock
        self.device = torch.device(arguments.device)
        self.is_gpu = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if self.is_gpu else torch.float32
        self.head_dim = 16 if arguments.tiny else HEAD_DIM
        self.bandwidth = copy_bandwidth(self.device)
        self.rate = matmul_rate(self.device, self.dtype)
        self.outsiders = outside_peers.Outsiders(arguments.outsiders, self.device)
        self.files: dict[str, Results] = {}

    def _backend(self, heads: tuple[int, int]) -> Backend:
        name = self.arguments.backend
        if name == "triton" or (name == "auto" and self.is_gpu):
            from manyhands.attention.triton_backend import TritonBackend

            shape = LayerShape(*heads, self.head_dim, self.head_dim)
            return TritonBackend([shape], self.dtype, self.device)
        return ReferenceBackend() if name == "reference" else TorchBackend()

    def run(self) -> None:
        """Our own numbers of every family first, then the peers, while there is time."""
        wanted = self.arguments.only.split(",")
        chosen = [
            case
            for case in cases(self.arguments.tiny, self.arguments.full)
            if case.family in wanted
        ]
        for case in chosen:
            with self._file(case.family).surviving(case.name):
                self._measure(case)
        green = [case for case in chosen if self._is_measured(case)]
        green = [case for case in green if case.family != "live"]  # peers know no such views
        if not self.arguments.no_peers:
            for family in dict.fromkeys(case.family for case in green):
                for name, why in self.outsiders.missing.items():
                    self._file(family).leave_out(name, why)
            for part in (self._outsiders, self._peers, self._flex):
                for case in green:
                    with self._file(case.family).surviving(f"peers of {case.name}"):
                        part(case)

    def _is_measured(self, case: Case) -> bool:
        cells = self._file(case.family).content.get("cells", [])
        return any(line["name"] == case.name for line in cells)

    def _file(self, family: str) -> Results:
        if family not in self.files:
            self.files[family] = Results(f"attention_{family}", self.arguments, self.clock)
            self.files[family].put(
                backend=self._backend(TEAM_HEADS).name,
                dtype=str(self.dtype).removeprefix("torch."),
                head_dim=self.head_dim,
                copy_bytes_per_second=round(self.bandwidth),
                operations_per_second=round(self.rate),
            )
        return self.files[family]

    def _situation(self, case: Case) -> Situation:
        if case.planned is None:
            plan, num_slots = situations.planned(case.views(), case.num_new)
        else:
            plan, num_slots = case.planned()
        return situations.filled(
            plan, num_slots, case.heads, self.head_dim, self.device, self.dtype
        )

    @torch.inference_mode()
    def _measure(self, case: Case) -> None:
        """Gate and times of our own op."""
        file = self._file(case.family)
        if not self.clock.allows(3):
            file.leave_out(case.name, "the time was over")
            return
        situation = self._situation(case)
        work = op_peers.ours(situation, self._backend(case.heads))
        gate = self._gate(situation, work)
        if gate is None:
            file.add("red", name=case.name)
            return
        flushed = milliseconds(work, self.device, flushed=True)
        warm = milliseconds(work, self.device)
        limit = self._limit(situation)
        file.add(
            "cells",
            name=case.name,
            heads=list(case.heads),
            rows=situation.plan.num_rows,
            us=round(1e3 * flushed, 2),
            us_warm=round(1e3 * warm, 2),
            us_limit=round(1e3 * limit, 2),
            of_limit=round(limit / flushed, 3) if flushed > 0 else None,
            bytes=situation.num_bytes,
            operations=situation.num_operations,
            gate=gate,
        )

    def _limit(self, situation: Situation) -> float:
        """Milliseconds."""
        reading = situation.num_bytes / self.bandwidth
        return 1e3 * max(reading, situation.num_operations / self.rate)

    def _gate(self, situation: Situation, work: op_peers.Peer) -> dict[str, float] | None:
        last = situation.plan.num_rows - 1
        rows = sorted({0, last // 2, last})
        place = (situation.store, situation.q, situation.plan, situation.call)
        verdict = check_op(work(), *place, rows)
        return asdict(verdict) if verdict.is_green else None

    @torch.inference_mode()
    def _peers(self, case: Case) -> None:
        file = self._file(case.family)
        if not self.clock.allows(3):
            file.leave_out(f"peers of {case.name}", "the time was over")
            return
        situation = self._situation(case)
        if case.family == "prefills":
            for name, prepare in op_peers.PREFILL.items():
                self._peer(file, case, name, situation, prepare(situation))
            return
        self._peer(file, case, "SDPA, shared by hand", situation, op_peers.sdpa_by_hand(situation))
        apart = unshared_bytes(situation)
        if 1e3 * apart / self.bandwidth > _MOST_MS_OF_PEERS:
            file.leave_out(f"nothing shared: {case.name}", "it would take too long")
            return
        paged = op_peers.paged(situation, self._backend(case.heads))
        self._peer(file, case, "paged, nothing shared", situation, paged)
        if case.family == "teams":
            dense = op_peers.sdpa_unshared(situation)
            self._peer(file, case, "SDPA, nothing shared", situation, dense)

    @torch.inference_mode()
    def _outsiders(self, case: Case) -> None:
        file = self._file(case.family)
        if len(self.outsiders.missing) == len(outside_peers.NAMES):
            return
        if not self.clock.allows(3):
            file.leave_out(f"outsiders of {case.name}", "the time was over")
            return
        situation = self._situation(case)
        for name, prepare in self.outsiders.peers(situation, case.family).items():
            with file.surviving(f"{name}: {case.name}"):
                self._peer(file, case, name, situation, prepare())
        if case.family == "teams":
            with file.surviving(f"{outside_peers.BOUND}: {case.name}"):
                self._bound(file, case, situation)

    def _bound(self, file: Results, case: Case, situation: Situation) -> None:
        asked = self.outsiders.bound(situation)
        if asked is None:
            return
        work, right = asked
        gate = check_against(work(), right)
        if not gate.is_green:
            file.leave_out(f"{outside_peers.BOUND}: {case.name}", "its answer is wrong")
            return
        us = 1e3 * milliseconds(work, self.device, flushed=True)
        line = {"name": case.name, "peer": outside_peers.BOUND, "us": round(us, 2)}
        file.add("peers", **line, gate=asdict(gate))

    @torch.inference_mode()
    def _flex(self, case: Case) -> None:
        is_asked = case.name in FLEX or (self.arguments.tiny and case.family == "prefixes")
        if not is_asked:
            return
        file = self._file(case.family)
        if not self.clock.allows(_SECONDS_OF_FLEX if self.is_gpu else 1):
            file.leave_out(f"FlexAttention: {case.name}", "no time to compile it")
            return
        situation = self._situation(case)
        peer = op_peers.flex(situation, compiled=self.is_gpu)
        self._peer(file, case, "FlexAttention", situation, peer)

    def _peer(
        self,
        file: Results,
        case: Case,
        name: str,
        situation: Situation,
        work: op_peers.Peer | None,
    ) -> None:
        if work is None:
            file.leave_out(f"{name}: {case.name}", "it cannot say this, or its copies do not fit")
            return
        with file.surviving(f"{name}: {case.name}"):
            gate = self._gate(situation, work)
            if gate is None:
                file.leave_out(f"{name}: {case.name}", "its answer is wrong")
                return
            us = 1e3 * milliseconds(work, self.device, flushed=True)
            file.add("peers", name=case.name, peer=name, us=round(us, 2), gate=gate)


def unshared_bytes(situation: Situation) -> int:
    """Bytes when every row reads all of its keys for itself."""
    keys = situation.store.keys
    one = 2 * keys[0].numel() * keys.element_size()
    return one * situation.plan.num_keys_read


def main(words: list[str] | None = None) -> None:
    """Measure."""
    options = parser(__doc__, minutes=3.0)
    options.add_argument(
        "--only", default="teams,live,prefixes,trees,prefills", help="families, comma-separated"
    )
    options.add_argument(
        "--outsiders",
        type=Path,
        default=None,
        help="folder with FlashAttention 3 and FlashInfer, as benchmarks/outsiders.py unpacks it",
    )
    options.add_argument("--full", action="store_true", help="all of Hydragen's grid")
    arguments = options.parse_args(words)
    Attention(arguments, Clock(arguments.minutes)).run()


if __name__ == "__main__":
    main()
