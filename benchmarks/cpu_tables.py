"""The tables of the page about CPUs: passes of teams and a prompt beside peers, products alone, and the gate."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.performance import table

RESULTS = Path(__file__).parent / "results"
TEAMS = (1, 2, 4)


def cpu() -> str:
    """Ratios: passes over one row's of transformers in float32, and over the side's own floor."""
    found = _read("cpu")
    sides: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for line in found["sides"]:
        sides.setdefault((line["threads"], line["side"]), []).append(line)
    rows = []
    for (threads, side), lines in sorted(sides.items(), key=lambda each: each[0][0]):
        middle = _medians(lines)
        of = _medians(sides[threads, "transformers, float32"])
        passes = [
            f"{middle[name] / of['pass_1_ms']:.2f}" if (name := f"pass_{team}_ms") in middle else ""
            for team in TEAMS
        ]
        four = middle["pass_4_ms"] / middle["pass_1_ms"] if "pass_4_ms" in middle else None
        speed = middle["prompt_tokens"] / middle["prompt_s"]
        rows.append(
            [
                str(threads),
                side,
                *passes,
                "" if four is None else f"{four:.2f}",
                f"{middle['pass_1_ms'] / middle['floor_ms']:.2f}",
                f"{speed / (of['prompt_tokens'] / of['prompt_s']):.2f}",
            ]
        )
    head = ["threads", "side", "1 row", "2 rows", "4 rows", "4 over 1", "1 over its floor"]
    return table([*head, "prompt, tokens/s"], rows) + _source(found)


def cpu_products() -> str:
    """Ratios to torch's own product."""
    found = _read("cpu_products")
    rows = [
        [
            str(line["threads"]),
            str(line["tokens"]),
            *(f"{line[f'{name}_ms'] / line['plain_ms']:.2f}" for name in ("halves", "blocks")),
        ]
        for line in found["products"]
    ]
    return table(["threads", "tokens", "halves", "blocks"], rows) + _source(found)


def cpu_gate() -> str:
    """Each of our ways against transformers in float32."""
    found = _read("cpu")
    rows = [
        [line["way"], f"{line['worst_logit']:.2g}", f"{line['same_tokens']:.2%}"]
        for line in found["gate"]
    ]
    return table(["way", "worst logit", "likeliest token the same"], rows)


def _medians(lines: list[dict[str, Any]]) -> dict[str, float]:
    names = [name for name, value in lines[0].items() if isinstance(value, int | float)]
    return {name: statistics.median(line[name] for line in lines) for name in names}


def _source(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"\n\n{found['date']}, commit {found['commit']}, {found['hardware']}; {versions}; `{found['command']}`"


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


TABLES: dict[str, Callable[[], str]] = {
    function.__name__: function for function in (cpu, cpu_products, cpu_gate)
}
