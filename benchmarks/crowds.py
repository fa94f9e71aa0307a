"""Crowds of all kinds, most of them drawn at random: how many of their passes find no recording that has room.

    python -m benchmarks.crowds                       this checkout
    python -m benchmarks.crowds --against FOLDER      and another one

A pass that no recording serves is launched kernel by kernel, and the GPU waits for the host; or a recording is made for
it, for which all runs wait. Which passes find one is a matter of their plans alone, so no GPU is needed: the
engine is that of `benchmarks/step_end.py`, whose recordings do nothing, with work lists cut for the 132 processors of an
H200. The crowds:

    all sizes       two teams of sixteen, four of eight, eight of four, twenty lone runs; all come and go
    sixteens        eight teams of sixteen
    lone runs       300 and 600 of them
    drawn           up to 250 rows of kinds drawn at random, with one of fourteen shapes of heads: 1 to 32 rows a run, 1 to 16 runs
                    a kind, prompts of up to 16 000 tokens, steps that end or none
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.results import ROOT, Clock, Results, commit_of, parser
from benchmarks.step_end import said_by, unlaunched
from manyhands.engine import capacities
from manyhands.evaluation.life import TEAMS, Kind, Situation, live

Heads = tuple[int, int]  # of queries, of keys
SHAPES: tuple[Heads, ...] = (
    *((32, 8), (40, 8), (64, 8), (32, 4), (16, 8), (28, 4), (24, 8)),
    *((32, 32), (96, 8), (48, 8), (16, 2), (40, 40), (14, 2), (64, 4)),
)
_ROWS = (1, 1, 1, 2, 3, 4, 4, 5, 6, 8, 8, 12, 16, 16, 24, 32)  # of a run; usual ones more often
_RUNS = (1, 1, 2, 4, 8, 16)
_PROMPTS = (200, 1000, 4000, 4000, 16000)  # the longest of a kind
_MOST, _ENOUGH = 250, (16, 60, 128, 200)  # rows of a crowd
_TEAMS = 0.7  # of runs with several rows
_PASSES, _WARM_UP = 90, 60
_TEAM = TEAMS.crowd[0][1]
_LONE = Kind(1, (100, 4000), (40, 400), step=-1)
_SHORT = Kind(1, (20, 60), (200, 800), step=-1)  # of a lone run that begins soon
_KNOWN: tuple[tuple[Heads, Situation], ...] = tuple(
    (heads, Situation(name, crowd, _PASSES, warm_up=warm_up))
    for name, crowd, shapes, warm_up in (
        (
            "all sizes",
            (
                (2, replace(_TEAM, rows=16)),
                (4, replace(_TEAM, rows=8)),
                (8, _TEAM),
                (20, _LONE),
            ),
            SHAPES[:4],
            80,
        ),
        ("sixteens", ((8, replace(_TEAM, rows=16)),), SHAPES[:4], 80),
        ("300 lone runs", ((300, _SHORT),), SHAPES[:1], 120),
        ("600 lone runs", ((600, _SHORT),), SHAPES[:1], 120),
    )
    for heads in shapes
)


def drawn(seed: int) -> tuple[Heads, Situation]:
    """Heads, and a crowd of random kinds."""
    rng = random.Random(seed)
    crowd: list[tuple[int, Kind]] = []
    rows = 0
    while rows < rng.choice(_ENOUGH):
        own, wanted = rng.choice(_ROWS), rng.choice(_RUNS)
        runs = max(1, min(wanted, (_MOST - rows) // own))
        longest, is_team = rng.choice(_PROMPTS), own > 1 and rng.random() < _TEAMS
        desk = rng.choice(((1, 1), (20, 60))) if is_team else (1, 1)
        step = rng.choice((30, 100)) if is_team else -1
        crowd.append((runs, Kind(own, (20, longest), (40, 400), desk, step=step)))
        rows += own * runs
    situation = Situation(f"drawn, {seed}", tuple(crowd), _PASSES, warm_up=_WARM_UP)
    return SHAPES[seed % len(SHAPES)], situation


def every(num_drawn: int, *, is_tiny: bool = False) -> list[tuple[Heads, Situation]]:
    """Known crowds, and so many that are drawn; `is_tiny`: a few passes of one of them."""
    if is_tiny:
        heads, situation = drawn(1)
        return [(heads, replace(situation, num_passes=3, warm_up=1))]
    return [*_KNOWN, *(drawn(seed) for seed in range(num_drawn))]


def counted(heads: Heads, situation: Situation, seed: int) -> dict[str, Any]:
    """A crowd's passes, and those without a recording."""
    tried_out = capacities.uncommon_capacities  # the engine changes it
    try:
        facts = live(unlaunched(heads=heads), situation, seed=seed).facts()
    finally:
        capacities.uncommon_capacities = tried_out
    return {
        "crowd": situation.name,
        "heads": f"{heads[0]}/{heads[1]}",
        "runs": " ".join(f"{runs} x {kind.rows}" for runs, kind in situation.crowd),
        "most_rows_of_a_run": max(kind.rows for _, kind in situation.crowd),
        "rows": facts["rows"],
        "passes": facts["passes"],
        "one_by_one": facts["eager"],
        "recorded": facts["recorded"],
    }


def print_counted(num_drawn: int, is_tiny: bool) -> None:
    """A line of JSON for each crowd, for the process that waits for it."""
    for number, (heads, situation) in enumerate(every(num_drawn, is_tiny=is_tiny)):
        print(json.dumps(counted(heads, situation, number)), flush=True)


def counted_apart(checkout: Path, num_drawn: int, is_tiny: bool) -> list[dict[str, Any]]:
    """The same in a process of its own, with the code of a checkout."""
    call = f"from benchmarks import crowds; crowds.print_counted({num_drawn}, {is_tiny})"
    said = said_by(checkout, call)
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def main(words: list[str] | None = None) -> None:
    """Count."""
    options = parser(__doc__, minutes=30.0)
    options.set_defaults(device="cpu")
    options.add_argument("--drawn", type=int, default=28, help="crowds that are drawn at random")
    options.add_argument("--against", type=Path, help="another checkout, counted as `before`")
    arguments = options.parse_args(words)
    results = Results("crowds", arguments, Clock(arguments.minutes))
    found = counted_apart(ROOT, arguments.drawn, arguments.tiny)
    before: list[dict[str, Any]] = [{}] * len(found)
    if arguments.against is not None:
        before = counted_apart(arguments.against.resolve(), arguments.drawn, arguments.tiny)
        results.put(before={"commit": commit_of(arguments.against)})
    for line, was in zip(found, before, strict=True):
        told = {f"{what}_before": was[what] for what in ("one_by_one", "recorded") if was}
        results.add("crowds", **line, **told)


if __name__ == "__main__":
    main()
