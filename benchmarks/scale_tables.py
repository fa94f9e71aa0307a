"""The tables of the page about several GPUs and machines: passes and life over two, a simulated fleet, kills, replicas against threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.performance import lives, table
from manyhands.model.parallel.finding import PLACES

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


def spread() -> str:
    """Tokens per second of one file of requests: by threads of one process, and by replicas; the mean of all turns."""
    turns: dict[str, list[dict[str, Any]]] = {}
    for line in _results("spread")["spread"]:
        turns.setdefault(line["way"], []).append(line)
    speeds = {
        way: sum(line["tokens"] for line in lines) / sum(line["seconds"] for line in lines)
        for way, lines in turns.items()
    }
    first = next(iter(speeds.values()))
    rows = [
        [way, str(turns[way][0]["answered"]), f"{speed:.0f}", f"{speed / first:.2f}"]
        for way, speed in speeds.items()
    ]
    return table(["way", "requests", "tokens/s", "over the first"], rows)


_RANKED = ("qwq-32b", "qwen3-8b", "codellama-7b")


def ranks() -> str:
    """Passes over several GPUs beside those on one, and where those of several spend their time."""
    rows = []
    for name in _RANKED:
        found = _perhaps(f"ranks_{name}")
        alone = {
            _where(cell): cell["ms"] for cell in _perhaps(f"ranks_{name}_one").get("cells", [])
        }
        parts = {
            (_where(line), line["peers"]): line
            for line in found.get("breakdowns", [])
            if "ms_idle" in line
        }
        for cell in found.get("cells", []):
            where = _where(cell)
            one, part = alone.get(where), parts.get((where, cell["peers"]))
            rows.append(
                [
                    found["model"],
                    str(cell["rows"]),
                    str(cell["history"]),
                    "peers" if cell["peers"] and cell["rows"] <= PLACES else "NCCL",
                    "" if one is None else f"{one:.2f}",
                    f"{cell['ms']:.2f}",
                    "" if one is None else f"{one / cell['ms']:.2f}",
                    *(
                        "" if part is None or kind not in part else f"{part[kind]:.2f}"
                        for kind in _PARTS
                    ),
                ]
            )
    heads = ["network", "rows", "history", "sums by", "one GPU", "two", "times"]
    return table([*heads, *(part.removeprefix("ms_") for part in _PARTS)], rows)


_PARTS = ("ms_linears", "ms_attention", "ms_collectives", "ms_rest", "ms_idle")


# Life over two GPUs; and one call in which passes were begun ahead and one in which none was, both with sums by NCCL.
_LIVED = (
    "life_over_2_qwq-32b",
    "life_over_2_kept_qwen3-8b",
    "life_over_2_lone_qwen3-8b",
    "life_over_2_crowds_qwen3-8b",
    "life_over_2_teams_qwen3-8b",
)
_AHEAD, _APART = "life_over_2_nccl_qwen3-8b", "life_over_2_apart_qwen3-8b"


def life_ranks() -> str:
    """Runs as they live over two GPUs, the second time in one process, beside the same situations on one."""
    one = {(each.model, each.name): each.lines["warm"] for each in lives()}
    rows, seen, last = [], set(), ""
    for file in _LIVED:
        found = _perhaps(file)
        for line in found.get("situations", []):
            where = found["model"], line["name"]
            if line["when"] != "warm" or where in seen:
                continue
            seen.add(where)
            times = [line[f"{key}_ms"] for key in ("floor", "mean", "p50", "p99", "worst")]
            alone = one.get(where)
            rows.append(
                [
                    "" if found["model"] == last else found["model"],
                    line["name"],
                    *(f"{ms:.1f}" for ms in times),
                    f"{line['tokens_per_second']:.0f}",
                    "" if alone is None else f"{alone['mean_ms']:.1f}",
                    "" if alone is None else f"{alone['tokens_per_second']:.0f}",
                    f"{line['python_loop_ms']:.1f}",
                    found["commit"],
                ]
            )
            last = found["model"]
    heads = ["network", "situation", "floor of a rank", "mean", "p50", "p99", "worst", "tokens/s"]
    heads += ["one GPU, mean", "tokens/s", "host's loop", "commit"]
    return table(heads, rows)


def life_ranks_ahead() -> str:
    """The same situations the first time in their processes, where no pass was begun ahead, and where they were."""
    ahead = {line["name"]: line for line in _of_fresh(_AHEAD)}
    rows = []
    for apart in _of_fresh(_APART):
        pair = apart, ahead[apart["name"]]
        rows.append(
            [
                apart["name"],
                *(f"{line[key]:.1f}" for key in ("mean_ms", "p99_ms") for line in pair),
                *(f"{line['tokens_per_second']:.0f}" for line in pair),
            ]
        )
    heads = ["situation", "mean, none begun ahead", "begun ahead", "p99, none", "begun"]
    return table([*heads, "tokens/s, none", "begun"], rows)


def life_ranks_kept() -> str:
    """Teams in memory that is full of kept prompts: as it is, as if these pages were not to be had, and with Python's own collections of garbage."""
    found = _perhaps("life_over_2_kept_in_turns_qwen3-8b")
    rows = [
        [
            line["variant"].replace("_", " "),
            line["when"],
            *(f"{line[f'{key}_ms']:.1f}" for key in ("mean", "p50", "p99", "worst", "gap_p99")),
            f"{line['tokens_per_second']:.0f}",
        ]
        for line in sorted(found.get("situations", []), key=lambda line: line["variant"])
    ]
    return table(["", "", "mean", "p50", "p99", "worst", "gap, p99", "tokens/s"], rows)


def _of_fresh(file: str) -> list[dict[str, Any]]:
    return [line for line in _perhaps(file).get("situations", []) if line["when"] == "fresh"]


def sums() -> str:
    """Microseconds of one sum with what stands behind it: by NCCL, and by the first kernel of our own."""
    return _sums("ranks_sums_fences", {"peers": "by flags and fences"})


def sums_of_many() -> str:
    """The same by NCCL, by words and by flags, also of many tokens; and by the draft of the kernel with flags."""
    ways = {"words": "by words", "flags": "by flags"}
    return _sums("ranks_sums", ways, {"draft_ranks_sums": "by flags, a draft"})


def _sums(name: str, ways: dict[str, str], drafts: dict[str, str] | None = None) -> str:
    """By the ways of a file; of others, its drafts, by flags alone."""
    found = {(*_size(line), line["by"]): line["us"] for line in _perhaps(name).get("sums", [])}
    for draft in drafts or {}:
        lines = (line for line in _perhaps(draft).get("sums", []) if line["by"] == "flags")
        found |= {(*_size(line), draft): line["us"] for line in lines}
    rows = []
    for size in sorted({where[:2] for where in found}, key=lambda size: (-size[0], size[1])):
        shown = (found.get((*size, way)) for way in ("nccl", *ways, *(drafts or ())))
        rows.append([*map(str, size), *("" if us is None else f"{us:.1f}" for us in shown)])
    heads = ["width", "tokens", "NCCL, then a launch", *ways.values(), *(drafts or {}).values()]
    return table(heads, rows)


def _size(line: dict[str, Any]) -> tuple[int, int]:
    return line["width"], line["tokens"]


def _where(cell: dict[str, Any]) -> tuple[int, int]:
    return cell["rows"], cell["history"]


def _perhaps(name: str) -> dict[str, Any]:
    """The results, if they were measured."""
    return _results(name) if (RESULTS / f"{name}.json").exists() else {}


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


TABLES: dict[str, Callable[[], str]] = {
    "fleet": fleet,
    "kills": kills,
    "life_ranks": life_ranks,
    "life_ranks_ahead": life_ranks_ahead,
    "life_ranks_kept": life_ranks_kept,
    "ranks": ranks,
    "spread": spread,
    "sums": sums,
    "sums_of_many": sums_of_many,
}
