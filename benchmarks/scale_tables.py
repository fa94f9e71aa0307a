"""The tables of the page about several machines: a simulated fleet, kills, replicas against threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.performance import table

RESULTS = Path(__file__).parent / "results"


def fleet() -> str:
    """Time to the first token and gaps over load, with affinity and without."""
    found = _results("fleet")
    lines = {
        (
            line["replicas"],
            line["workers"],
            line["turns_per_replica_second"],
            line["affinity"],
        ): line
        for line in found["fleet"]
    }
    rows = []
    for replicas, workers, rate, affinity in lines:
        without = lines.get((replicas, workers, rate, False))
        if not affinity or without is None:
            continue
        pair = (lines[replicas, workers, rate, True], without)
        rows.append(
            [
                str(replicas),
                str(workers),
                f"{rate:g}",
                *(f"{line['first_s_p50']:.2f} / {line['first_s_p99']:.1f} s" for line in pair),
                *(f"{line['gap_ms_p50']:.0f} / {line['gap_ms_p99']:.0f} ms" for line in pair),
                " / ".join(f"{line['found']:.0%}" for line in pair),
            ]
        )
    head = ["replicas", "workers", "turns/s of each", "first token, affinity", "without"]
    return table([*head, "gap, affinity", "without", "prompt found"], rows)


def kills() -> str:
    """The fate of the rows: of a run by itself, if there is one, else of the run with the others."""
    lines: dict[tuple[bool, str], dict[str, Any]] = {}
    for path in [RESULTS / "kills.json", *sorted(RESULTS.glob("kills_*.json"))]:
        found = json.loads(path.read_text())
        lines |= {(found["numbers"], line["killed"]): line for line in found["kills"]}
    rows = [
        [
            killed,
            "squares" if are_numbers else "the bundled model",
            str(line["kills"]),
            str(line["requests"]),
            str(line["lost"]),
            str(line["twice"]),
            str(line["differ"]),
        ]
        for (are_numbers, killed), line in lines.items()
    ]
    return table(
        ["killed", "answered by", "times", "requests", "lost", "twice", "differ from one machine"],
        rows,
    )


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


TABLES: dict[str, Callable[[], str]] = {"fleet": fleet, "kills": kills}
