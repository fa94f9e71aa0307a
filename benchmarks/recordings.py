"""One plan behind several recordings: what a wide recording costs a pass, and which of its sizes does.

    python -m benchmarks.recordings --model qwen3-8b

A recording serves every plan that fits it, so how long a pass takes depends on the plan and on the recording
(`engine/matching.py`). Here a crowd lives for a while, its newest plan is kept, and this one plan is
repeated behind recordings of different sizes: its own, the wide one that serves it, and others that differ from the wide one in
one thing. Each line has the device's milliseconds for a whole pass, and by torch's profiler how much of that attention takes,
by kernel.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.engine_parts import executor_of
from benchmarks.results import Clock, Results, parser
from benchmarks.step_timeline import ready_engine
from manyhands.attention.prepared import Capacity
from manyhands.attention.work import Occupancy, Tiling, Work, cut, power_of_two
from manyhands.cache.plan import Plan
from manyhands.engine import capacities, graphs, matching
from manyhands.engine.engine import Engine
from manyhands.engine.graph import Graph
from manyhands.engine.passes import Late
from manyhands.evaluation.life import LONES, RAGGED, TEAMS, Situation, live, one_team

SITUATIONS: tuple[Situation, ...] = (
    one_team(4, 1024, 40, 60),
    one_team(16, 1024, 40, 60),
    replace(RAGGED, num_passes=20),
    replace(TEAMS, num_passes=20),
    replace(LONES, num_passes=20),
)
_REPEATS = 20
_PROFILED = 3
_ATTENTION = ("attend", "lone", "merge", "append", "specialised")


def newest_plan(engine: Engine, situation: Situation) -> Plan:
    """The last plan of a crowd that was sent whole to a recording, and whose rows write one token each."""
    found: list[Plan] = []
    pack = Graph._pack

    def noting(graph: Graph, plan: Plan, work: Work, late: Late | None, num_parts: int) -> None:
        if plan.num_tokens == plan.num_rows:
            found.append(plan)
        pack(graph, plan, work, late, num_parts)

    with patch.object(Graph, "_pack", noting):
        live(engine, situation, seed=1)
    assert found, "a crowd has passes without a prompt"
    # It is repeated as it is, and not followed by others one token later.
    return replace(found[-1], lockstep=None)


def candidates(plan: Plan, tiling: Tiling) -> Iterator[tuple[str, Capacity]]:
    """Recordings to try, by what is special about them."""
    own = cut(plan, tiling)
    yield "its own", capacities.capacity_of(plan, own)
    kind = capacities.kind_ahead(plan, own, tiling)
    sizes = [
        tokens
        for tokens, made_for in capacities.kinds_ahead(matching.MOST_TOKENS, tiling)
        if made_for is kind
    ]
    wide = capacities.wide_capacity(min(s for s in sizes if s >= plan.num_tokens), tiling, kind)
    yield "wide", wide
    least = power_of_two(max(tiling.least_rows, tiling.group))
    rows = [size for size in (16, 32, 64) if least <= size <= tiling.most_small_rows]
    for size in rows:
        for occupancy in Occupancy:
            for large in (0, 64):
                large_rows = power_of_two(max(tiling.large_rows, tiling.group)) if large else 0
                other = replace(
                    wide,
                    small_rows=size,
                    occupancy=occupancy,
                    large=large,
                    large_rows=large_rows,
                    small=4 * wide.small,
                )
                yield f"{size} rows, {occupancy.name.lower()}{', large tiles' * bool(large)}", other
    for most in (8, 16, 32, 64):
        yield f"wide, {most} partials merged at once", replace(wide, most_partials=most)
    yield (
        "its own, wide lists",
        replace(
            capacities.capacity_of(plan, own),
            small=wide.small,
            entries=wide.entries,
            pages=wide.pages,
            partials=wide.partials,
        ),
    )


def measured(passes: graphs.GraphedPasses, plan: Plan, capacity: Capacity) -> dict[str, Any] | None:
    """A line of the table; None if the plan does not fit."""
    work = cut(plan, passes.backend.tiling, capacity.cutting)
    if not capacity.holds(plan, work):
        return None
    graph = Graph(passes.recordings, capacity, plan.page_size).record(passes.recordings)

    def once() -> None:
        graph.start(plan, work)

    if not torch.cuda.is_available():
        once()
        return {"ms": 0.0}
    times = []
    for _ in range(_REPEATS):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        graph.start(plan, work)
        torch.cuda.synchronize()
        marks[0].record()
        for repeat in graph.recording.parts:
            repeat()
        marks[1].record()
        torch.cuda.synchronize()
        times.append(marks[0].elapsed_time(marks[1]))
    return {
        "ms": round(statistics.median(times), 3),
        "small": len(work.small),
        "large": len(work.large),
        "num_partials": work.num_partials,
        "most": work.most_partials,
        **_kernels(once),
    }


def _kernels(once: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of one pass by kernel of attention, and of all others together."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_PROFILED):
            once()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in profile.key_averages():
        names = [name for name in _ATTENTION if event.key.startswith(name)]
        name = f"{names[0]}_ms" if names else "others_ms"
        found[name] = found.get(name, 0.0) + event.device_time_total / _PROFILED / 1e3
    return {name: round(ms, 3) for name, ms in sorted(found.items())}


def main(words: list[str] | None = None) -> None:
    """Print a line for each recording of each situation."""
    options = parser(__doc__, minutes=3.0)
    options.add_argument("--model", default="qwen3-8b")
    options.add_argument("--only", default="", help="parts of names of situations, between ';'")
    arguments = options.parse_args(words)
    clock = Clock(arguments.minutes)
    results = Results(f"recordings_{arguments.model}", arguments, clock)
    wanted = arguments.only.split(";")
    situations = [each for each in SITUATIONS if any(part in each.name for part in wanted)]
    if arguments.tiny:
        situations = [replace(one_team(4, 64, 20, 20), warm_up=1)]
    with ready_engine(arguments, clock) as engine:
        passes = executor_of(engine).passes
        assert isinstance(passes, graphs.GraphedPasses), "a GPU has recordings"
        for situation in situations:
            plan = newest_plan(engine, situation)
            clock.say(f"{situation.name}: {plan.num_tokens} tokens, {len(plan.reads.row)} reads")
            for what, capacity in candidates(plan, passes.backend.tiling):
                if not clock.allows(3):
                    results.leave_out(f"{situation.name}: {what}", "no time")
                    continue
                with results.surviving(f"{situation.name}: {what}"):
                    line = measured(passes, plan, capacity)
                    if line is not None:
                        sizes = asdict(capacity)
                        results.add(
                            "recordings", situation=situation.name, what=what, **line, sizes=sizes
                        )


if __name__ == "__main__":
    main()
