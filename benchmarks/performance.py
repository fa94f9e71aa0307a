"""The tables of the pages about speed, made from the results of `life`, `decode`, `attention` and `prefix`.

A table whose result is not there says so; no number is written by hand. The targets are in `targets.py`,
what is said of single layers in `layer_tables.py`, and of crowds in `crowd_tables.py`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.results import RESULTS, ROOT
from benchmarks.shapes import SHAPES

NOTHING_YET = "Not measured yet."
# Of docs/; together they have every table. The first one says how fast it is, and the others how its figures came about.
PAGE = "performance.md"
PAGES = (
    PAGE,
    "performance_life.md",
    "performance_lockstep.md",
    "performance_prompts.md",
    "performance_long_histories.md",
    "performance_attention.md",
    "performance_layers.md",
    "performance_vllm.md",
    "performance_evidence.md",
)
PLOTS = ROOT / "docs" / "plots"
Result = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def result(name: str) -> Result | None:
    """The content of a result file; None if it is not there."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def results(part: str) -> Iterator[tuple[str, Result]]:
    """The results of a part, by the network's name, in the order of the shapes."""
    for name in SHAPES:
        found = result(f"{part}_{name}")
        if found is not None:
            yield name, found


def files(part: str) -> Iterator[tuple[str, Result]]:
    """The results whose files' names begin so, by these names."""
    for path in sorted(RESULTS.glob(f"{part}*.json")):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def cell(found: Result | None, kind: str = "cells", **where: Any) -> Result | None:
    """The line of a kind with these values."""
    lines = (found or {}).get(kind, [])
    return next((line for line in lines if all(line.get(k) == v for k, v in where.items())), None)


_CLEARLY = 0.97  # of the time that it took, below which a cell is faster


# -- life ------------------------------------------------------------------------------------------

# Of the older files the situations that the newer ones have not.
_LIVES = (
    "life_openings_qwen3-8b",
    "life_kept_qwen3-8b",
    "life_seldom_qwen3-8b",
    "life_queue_qwen3-8b",
    "life_prompts_qwen3-8b",
    "life_again_qwen3-8b",
    "life_hogwild_several_qwen3-8b",
    "life_several_qwen3-8b",
    "life_few_qwen3-8b",
    "life_counts_teams_qwen3-8b",
    "life_counts_qwen3-8b",
    "life_crowds_again_qwen3-8b",
    "life_teams_again_qwen3-8b",
    "life_sixteen_qwen3-8b",
    "life_ragged_again_qwen3-8b",
    "life_begin_qwen3-8b",
    "life_leaner_qwen3-8b",
    "life_splits_qwen3-8b",
    "life_around_qwen3-8b",
    "life_around_qwq-32b",
    "life_lone_qwen3-8b",
    "life_products_qwen3-8b",
    "life_whole_qwen3-8b",
    "life_halved_qwen3-8b",
    "life_halved_mix_qwen3-8b",
    "life_draws_qwen3-8b",
    "life_itself_qwen3-8b",
    "life_ended_qwen3-8b",
    "life_ragged_qwen3-8b",
    "life_crowds_and_mix_qwen3-8b",
    "life_lists_qwen3-8b",
    "life_gated_qwen3-8b",
    "life_gated_crowds_qwen3-8b",
    "life_fronts_qwen3-8b",
    "life_stretches_qwen3-8b",
    "life_stretches_qwq-32b",
    "life_joins_qwen3-8b",
    "life_alone_qwen3-8b",
    "life_ahead_qwen3-8b",
    "life_joins_qwq-32b",
    "life_qwq-32b",
)


class Lived(NamedTuple):
    """A situation of one network, from the newest file that has it."""

    model: str
    commit: str
    lines: dict[str, Result]  # by when: fresh, warm, drawn anew

    @property
    def name(self) -> str:
        """Of the situation."""
        return str(self.lines["warm"]["name"])


def lives() -> list[Lived]:
    """Every situation that was measured the second time in its process, too, of the newest file that has it."""
    newest: dict[tuple[str, str], Lived] = {}
    for file in _LIVES:
        found = result(file) or {}
        by_name: dict[str, dict[str, Result]] = {}
        for line in found.get("situations", []):
            by_name.setdefault(line["name"], {})[line["when"]] = line
        for name, lines in by_name.items():
            if "warm" in lines:
                key = (found["model"], name)
                newest.setdefault(key, Lived(found["model"], found["commit"], lines))
    # Networks together, and of each the lone teams first.
    return sorted(newest.values(), key=lambda each: (each.model, each.name[:1].isdigit()))


def _by_network(show: Callable[[Lived], list[str]]) -> list[list[str]]:
    """One row for each situation; the network stands in the first of its rows."""
    rows: list[list[str]] = []
    last = ""
    for each in lives():
        rows.append(["" if each.model == last else each.model, each.name, *show(each)])
        last = each.model
    return rows


def life() -> str:
    """Runs as they live, the second time in one process: milliseconds per pass."""

    def show(each: Lived) -> list[str]:
        line = each.lines["warm"]
        times = [line[f"{key}_ms"] for key in ("floor", "mean", "p50", "p99", "worst")]
        rate = f"{line['tokens_per_second']:.0f}"
        loop = f"{line['python_loop_ms']:.1f}" if "python_loop_ms" in line else ""
        first = " / ".join(
            f"{line[key]:.0f}" for key in ("first_p50_ms", "first_p99_ms") if key in line
        )
        return [*(f"{time:.1f}" for time in times), rate, first, loop, each.commit]

    head = ["network", "situation", "floor", "mean", "p50", "p99", "worst", "tokens/s"]
    head += ["first tokens, p50 / p99", "host's loop", "commit"]
    rows = _by_network(show)
    return table(head, rows) if rows else NOTHING_YET


def life_passes() -> str:
    """How the passes of these runs came about."""

    def show(each: Lived) -> list[str]:
        line = each.lines["warm"]
        begun = line.get("planned_ahead", 0) / line["passes"]
        return [f"{begun:.0%}", *(str(line[key]) for key in ("eager", "recorded"))]

    head = ["network", "situation", "begun while the one before was made", "launch by launch"]
    rows = _by_network(show)
    return table([*head, "recorded"], rows) if rows else NOTHING_YET


# Parts of the host's time between the tokens of a pass and the launch of the next, as `step_timeline.py` names them.
_HOST_PARTS = {
    "asked": "next step asked for",
    "plan: routes": "routes",
    "plan: reads": "reads",
    "plan: matrix": "matrix",
    "plan: lists": "lists",
    "moves": "moves",
    "cut": "work list",
}


def life_step_end() -> str:
    """A pass in which a step of a team alone ends, before and after compaction was left to the plan behind it."""
    head = ["workers", "commit", "whole pass", "device", "idle before it", "host"]
    head += [*_HOST_PARTS.values(), "other"]
    rows: list[list[str]] = []
    for name in (
        f"step_timeline_{when}qwen3-8b"
        for when in (
            *("before_", "", "stretches_", "fronts_", "before_matrix_", "matrix_", "lists_"),
            *("ended_", "native_", "itself_", "around_", "around_itself_"),
        )
    ):
        found = result(name) or {}
        for line in found.get("timelines", []):
            if line["what"] != "ended":
                continue
            parts = [line.get(part, 0.0) for part in _HOST_PARTS]
            # A whole pass, or, until 2026-11-26, a head and the tail behind it.
            is_whole = "device 0 whole" in line
            names = ["device 0 whole"] if is_whole else ["device 0 head", "device 1 tail"]
            idle = line["gap 0 whole" if is_whole else "gap 0 head"]
            times = [line["whole"], sum(map(line.get, names)), idle, line["host"], *parts]
            other = line["host"] - sum(parts)
            rows.append(
                [
                    f"{line['workers']}{', `hogwild` itself' * name.endswith('itself_qwen3-8b')}",
                    found["commit"],
                    *(f"{time:.2f}" for time in (*times, other)),
                ]
            )
    rows.sort(key=lambda row: int(row[0].partition(",")[0]))
    return table(head, rows) if rows else NOTHING_YET


# Live runs of two commits on one card, oldest first.
_PAIRS = (
    "draws",
    "prepared",
    "beside",
    "products",
    "tables",
    "launches",
    "splits",
    "leaner",
    "turns",
)


def life_in_turn() -> str:
    """Live runs by two commits on one card: milliseconds per pass."""
    head = ["commits", "situation", "when", "mean", "before", "p50", "before", "p99", "before"]
    rows: list[list[str]] = []
    for part in _PAIRS:
        now, before = (result(f"{when}life_{part}_qwen3-8b") for when in ("", "before_"))
        for line in (now or {}).get("situations", []):
            same = cell(before, "situations", name=line["name"], when=line["when"])
            if now is None or before is None or same is None:
                continue
            commits = f"{before['commit']}, {now['commit']}"
            keys = (f"{key}_ms" for key in ("mean", "p50", "p99", "worst"))
            times = [f"{each[key]:.2f}" for key in keys for each in (line, same)]
            is_new = all(row[0] != commits for row in rows)
            rows.append([commits if is_new else "", line["name"], line["when"], *times])
    return table([*head, "worst", "before"], rows) if rows else NOTHING_YET


def life_whole() -> str:
    """The host's time in a whole run of `hogwild`, by what the pass is."""
    rows: list[list[str]] = []
    for workers in (4, 16):
        for line in (result(f"step_end_whole_{workers}") or {}).get("kinds", []):
            count = str(line["passes"]["after"])
            times = (
                f"{line[part][side]:.2f}"
                for part in ("waited", "asked", "ms")
                for side in ("before", "after")
            )
            rows.append([str(workers), line["name"], count, *times])
    head = ["workers", "passes", "how many", "the device waits", "after"]
    head += ["for the next step", "after", "a whole call", "after"]
    return table(head, rows) if rows else NOTHING_YET


def life_lookahead() -> str:
    """The same crowds, one pass after the other, and each begun while the one before is made."""
    kinds = (
        ("one after the other", "life_apart_qwen3-8b"),
        ("the next begun ahead", "life_ahead_qwen3-8b"),
    )
    head = ["situation", "passes", "mean", "p50", "without a prompt: p50", "p99", "tokens/s"]
    head += ["rows in vain"]
    rows: list[list[str]] = []
    lines = {kind: (result(name) or {}).get("situations", []) for kind, name in kinds}
    for first in lines[kinds[0][0]]:
        for kind, others in lines.items():
            line = next(
                (
                    each
                    for each in others
                    if all(each[key] == first[key] for key in ("name", "when"))
                ),
                None,
            )
            if line is None:
                continue
            keys = ("mean", "p50", "narrow_p50", "narrow_p99")
            rows.append(
                [
                    f"{first['name']}, {first['when']}" if kind == kinds[0][0] else "",
                    kind,
                    *(f"{line[f'{key}_ms']:.1f}" for key in keys),
                    f"{line['tokens_per_second']:.0f}",
                    f"{line['in_vain'] / (line['in_vain'] + line['rows'] * line['passes']):.1%}",
                ]
            )
    return table(head, rows) if rows else NOTHING_YET


# -- decode ----------------------------------------------------------------------------------------


def _grid(found: Result, show: Callable[[Result], str]) -> list[list[str]]:
    """One line per team size, one column per history."""
    lengths = sorted({line["history"] for line in found["cells"]})
    rows = []
    for workers in sorted({line["workers"] for line in found["cells"]}):
        cells = (cell(found, workers=workers, history=length) for length in lengths)
        rows.append([str(workers), *(show(c) if c else "" for c in cells)])
    return rows


def _decode(show: Callable[[Result], str]) -> str:
    rows: list[list[str]] = []
    head: list[str] = []
    for name, found in results("decode"):
        if found.get("cells"):
            lengths = sorted({line["history"] for line in found["cells"]})
            head = head or ["shapes", "workers", *map(str, lengths)]
            rows += [[SHAPES[name].title, *row] for row in _grid(found, show)]
    return table(head, rows) if rows else NOTHING_YET


def beside_one() -> str:
    """A team beside one worker: time, floor, tokens, and the fastest peer that did the same work."""
    rows = []
    for name, history in _BESIDE_ONE:
        found = result(f"decode_{name}")
        alone = cell(found, workers=1, history=history)
        for workers in (1, 4, 16):
            line = cell(found, workers=workers, history=history)
            if line is None or alone is None:
                continue
            peers = [
                (peer["ms"], peer["peer"])
                for peer in (found or {}).get("peers", [])
                if (peer["workers"], peer["history"]) == (workers, history)
            ]
            rows.append(
                [
                    SHAPES[name].title,
                    f"{history // 1024} k",
                    str(workers),
                    f"{line['ms']:.2f}",
                    f"{line['floor_ms']:.2f}",
                    f"{line['ms'] / alone['ms']:.2f} ×",
                    f"{line['tokens_per_second']:.0f}",
                    f"{line['tokens_per_second'] / alone['tokens_per_second']:.1f} ×",
                    "{:.2f} ({})".format(*min(peers)) if peers else "not measured",
                ]
            )
    head = ["network", "behind", "workers", "ms per pass", "floor, ms", "time over one worker's"]
    head += ["tokens/s", "tokens over one worker's", "nearest peer, ms"]
    return table(head, rows) if rows else NOTHING_YET


_BESIDE_ONE = (("qwen3-8b", 1024), ("qwq-32b", 16384))


def decode_ms() -> str:
    """Milliseconds per forward pass, the floor in brackets."""
    return _decode(lambda line: f"{line['ms']:.2f} ({line['floor_ms']:.2f})")


def decode_tokens() -> str:
    """Tokens per second of all workers together."""
    return _decode(lambda line: f"{line['tokens_per_second']:.0f}")


def breakdown() -> str:
    """Where a pass goes, in the form of the paper's table 2."""
    rows = []
    for name, found in results("decode"):
        layers = SHAPES[name].num_layers
        for line in found.get("breakdown", []):
            if "ms_attention" not in line:
                continue
            rows.append(
                [
                    SHAPES[name].title,
                    str(line["history"]),
                    str(line["workers"]),
                    f"{1e3 * line['ms_attention'] / layers:.1f}",
                    *(f"{line[f'ms_{part}']:.2f}" for part in ("attention", "linears", "rest")),
                    f"{line['ms_idle']:.3f}",
                    _host(line),
                    f"{line['ms']:.2f}",
                ]
            )
    head = ["shapes", "history", "workers", "attention, µs a layer", "attention", "linears", "rest"]
    return table([*head, "idle", "set-up on the host", "pass"], rows) if rows else NOTHING_YET


def _host(line: Result) -> str:
    parts = [line[f"ms_{part}"] for part in ("plan", "prepare") if line[f"ms_{part}"] is not None]
    return f"{sum(parts):.3f}" if parts else "none"


def sampled() -> str:
    """The cost of choosing tokens by chance."""
    rows = [
        [
            SHAPES[name].title,
            str(line["workers"]),
            f"{line['greedy_ms']:.2f}",
            f"{line['ms']:.2f}",
            f"{line['ms'] - line['greedy_ms']:.2f}",
            f"{line['flat_ms']:.2f}",
        ]
        for name, found in (dict(results("decode")) | dict(results("decode_sampled"))).items()
        for line in found.get("sampled", [])
        if {"ms", "flat_ms"} <= set(line)
    ]
    head = ["shapes", "workers", "greedy, ms", "sampled, ms", "more", "flat, ms"]
    return table(head, rows) if rows else NOTHING_YET


def start_up() -> str:
    """The cost of starting, before the first of these passes."""
    rows = [
        [
            SHAPES[name].title,
            found["backend"],
            f"{found['load_seconds']:.1f}",
            str(found["num_graphs"]),
            f"{found['seconds_recording']:.1f}",
            found["trouble"] or "none",
        ]
        for name, found in results("decode")
        if "num_graphs" in found
    ]
    head = ["shapes", "attention", "loading, s", "graphs recorded", "recording all, s", "trouble"]
    return table(head, rows) if rows else NOTHING_YET


def decode_peers() -> str:
    """Hugging Face's own code on the same work."""
    rows = []
    for name, found in results("decode"):
        for line in found.get("peers", []):
            workers, history = line["workers"], line["history"]
            ours = cell(found, workers=workers, history=history)
            mine = f"{ours['ms']:.2f}" if ours else ""
            times = f"{line['ms'] / ours['ms']:.1f} ×" if ours else ""
            start = f"{line['start_seconds']:.0f}" if line["peer"] != "eager" else ""
            words = [SHAPES[name].title, line["peer"], str(history), str(workers)]
            rows.append([*words, f"{line['ms']:.2f}", mine, times, start])
    head = [
        "shapes",
        "peer",
        "history",
        "workers, or batch",
        "ms",
        "ours, ms",
        "ratio",
        "start-up, s",
    ]
    return table(head, rows) if rows else NOTHING_YET


# -- attention -------------------------------------------------------------------------------------


def _attention(family: str, first: list[str], words: Callable[[str], list[str]]) -> str:
    found = result(f"attention_{family}")
    if not found or not found.get("cells"):
        return NOTHING_YET
    peers = list(dict.fromkeys(line["peer"] for line in found.get("peers", [])))
    peers = [peer for peer in peers if not peer.startswith(_OUTSIDERS)]  # they have their own table
    rows = []
    for line in found["cells"]:
        of_limit = f"{line['of_limit']:.0%}" if line["of_limit"] is not None else ""
        others = (cell(found, "peers", name=line["name"], peer=peer) for peer in peers)
        rows.append(
            [
                *words(line["name"]),
                f"{line['us']:.1f}",
                f"{line['us_warm']:.1f}",
                f"{line['us_limit']:.1f}",
                of_limit,
                *(f"{other['us']:.1f}" if other else "" for other in others),
            ]
        )
    return table([*first, "ours, flushed", "ours, warm", "limit", "of the limit", *peers], rows)


def attention_teams() -> str:
    """Teams over a common block."""

    def words(name: str) -> list[str]:
        length, workers, *fewer = name.split()
        return [length, workers, "32/8" if fewer else "40/8"]

    return _attention("teams", ["common block", "workers", "heads"], words)


def attention_in_turn() -> str:
    """The op by two commits on one card: how long it takes of what it took, over the cells of a family."""
    rows = []
    for part, family in (
        *(("beside", family) for family in ("trees", "prefixes")),
        *(("halved", family) for family in ("teams", "live")),
    ):
        now, before = (
            result(f"attention_{part}_{family}"),
            result(f"before_{part}_attention_{family}"),
        )
        if now is None or before is None:
            continue
        cells = {line["name"]: line["us"] for line in before["cells"]}
        shares = sorted(
            (line["us"] / cells[line["name"]], line["name"])
            for line in now["cells"]
            if line["name"] in cells
        )
        ends = (f"{share:.2f} (`{name}`)" for share, name in (shares[0], shares[-1]))
        middle = statistics.median(share for share, _ in shares)
        commits = f"{before['commit']}, {now['commit']}"
        less = sum(share < _CLEARLY for share, _ in shares)
        rows.append([family, commits, str(len(shares)), str(less), f"{middle:.2f}", *ends])
    head = ["cells", "commits", "how many", "more than 3 % faster", "median", "least", "most"]
    return table(head, rows) if rows else NOTHING_YET


def attention_live() -> str:
    """Teams with headers and markers: a copy of the marker at every desk, and one marker for all."""
    found = result("attention_live")
    lines = {line["name"]: line for line in (found or {}).get("cells", [])}
    rows = []
    for name, line in lines.items():
        history, workers, kind, heads = name.split()
        apart = lines.get(f"{history} {workers} apart {heads}")
        if kind == "copies" and apart is not None:
            times = (line["us_limit"], apart["us"], line["us"])
            rows.append([history, workers, heads, *(f"{us:.1f}" for us in times)])
    head = ["history", "workers", "heads", "limit", "one marker", "a copy at every desk"]
    return table(head, rows) if rows else NOTHING_YET


def outsiders() -> str:
    """FlashAttention 3 and FlashInfer on the same pages, and ours beside them."""
    rows = []
    for family in ("teams", "trees", "prefixes", "prefills"):
        found = result(f"attention_{family}")
        for line in (found or {}).get("cells", []):
            name, us = line["name"], line["us"]
            if family == "teams" and int(name.split()[0]) < _LONG_TEAM:
                continue
            peers = [cell(found, "peers", name=name, peer=peer) or {} for peer in _OUTSIDERS]
            best = min((peer["us"] for peer in peers if peer), default=None)
            rows.append(
                [
                    _told(family, name),
                    f"{line['us_limit']:.1f}",
                    *(f"{peer['us']:.1f}" if peer else "" for peer in peers),
                    f"{us:.1f}",
                    f"{us / line['us_limit']:.1f} ×",
                    f"{best / us:.2f}" if best else "",
                ]
            )
    head = ["what", "limit", *_OUTSIDERS, "ours", "of the limit", "the best peer over ours"]
    return table(head, rows) if rows else NOTHING_YET


def beside_outsiders() -> str:
    """In how many cells ours are ahead of the faster of FlashAttention 3 and FlashInfer."""
    rows = []
    for family, title in _FAMILIES.items():
        found = result(f"attention_{family}") or {}
        shares = []
        asked: set[str] = set()
        for line in found.get("cells", []):
            peers = [cell(found, "peers", name=line["name"], peer=peer) for peer in _OUTSIDERS]
            there = [peer for peer in peers if peer]
            asked.update(peer["peer"] for peer in there)
            if there:
                shares.append(min(peer["us"] for peer in there) / line["us"])
        if not shares:
            continue
        ahead = sum(share > 1 + _LEVEL for share in shares)
        behind = sum(share < 1 - _LEVEL for share in shares)
        level = len(shares) - ahead - behind
        ends = (min(shares), statistics.median(shares), max(shares))
        rows.append(
            [
                title,
                ", ".join(peer for peer in _OUTSIDERS if peer in asked),
                *map(str, (len(shares), ahead, level, behind)),
                *(f"{share:.2f}" for share in ends),
                found["commit"],
            ]
        )
    head = ["cells", "peers", "how many", "ahead", "level within 2 %", "behind"]
    head += ["the best peer over ours, least", "median", "most", "commit"]
    return table(head, rows) if rows else NOTHING_YET


_FAMILIES = {
    "teams": "teams",
    "trees": "trees",
    "prefixes": "completions of one prompt",
    "prefills": "prompts",
}
_LEVEL = 0.02
_OUTSIDERS = ("FlashAttention 3", "FlashInfer")
_LONG_TEAM = 4096  # tokens of the common block, of the teams that are shown


def _told(family: str, name: str) -> str:
    if family == "trees":
        return f"`{name}`"
    first, second, *fewer = name.split()
    if family == "prefixes":
        return f"{first} completions of {fewer[0]} tokens behind {second}"
    if family == "prefills":
        return f"prefill of {second} behind {first}"
    return f"team of {second} behind {first}, {'32/8' if fewer else '40/8'}"


def attention_prefixes() -> str:
    """Hydragen's grid."""
    return _attention("prefixes", ["batch", "prefix", "suffix"], str.split)


def attention_trees() -> str:
    """Trees and forests."""
    return _attention("trees", ["nodes _ tokens per level"], lambda name: [f"`{name}`"])


def attention_prefills() -> str:
    """One row that feeds many tokens."""
    return _attention("prefills", ["history", "new tokens"], str.split)


# -- prefix ----------------------------------------------------------------------------------------


def prefix() -> str:
    """Throughput of many completions, the ceiling without attention, and what is lost to it."""
    rows = []
    for name, found in results("prefix"):
        for line in found.get("cells", []):
            batch, length = line["batch"], line["prefix"]
            ceiling = cell(found, "ceiling", batch=batch)
            apart = cell(found, "unshared", batch=batch, prefix=length)
            ours = line["tokens_per_second"]
            rows.append(
                [
                    SHAPES[name].title,
                    str(batch),
                    str(length),
                    f"{ours / 1e3:.2f}",
                    f"{ceiling['tokens_per_second'] / 1e3:.2f}" if ceiling else "",
                    f"{ours / ceiling['tokens_per_second']:.0%}" if ceiling else "",
                    f"{line['ms_first']:.1f} → {line['ms_last']:.1f}",
                    f"{apart['tokens_per_second'] / 1e3:.2f}" if apart else "",
                ]
            )
    head = [
        "shapes",
        "batch",
        "prefix",
        "thousand tokens/s",
        "ceiling",
        "of it",
        "ms, first → last",
    ]
    return table([*head, "nothing shared"], rows) if rows else NOTHING_YET


# -- host ------------------------------------------------------------------------------------------


def host() -> str:
    """The host's time for a pass over the number of runs, before and after the queues."""
    found = result("host_time")
    if found is None:
        return NOTHING_YET
    before = found.get("before")
    rows = []
    for line in found["lines"]:
        old = cell(before, "lines", runs=line["runs"]) or {}
        times = [name for name in line if name.startswith("ms_")]
        shown = [
            f"{old[name]:.2f} → {line[name]:.2f}" if old else f"{line[name]:.2f}" for name in times
        ]
        rows.append([str(line["runs"]), *shown])
    heads = [name.removeprefix("ms_") for name in found["lines"][0] if name.startswith("ms_")]
    source = (
        f"\n\nBefore: commit {before['commit']}, {before['date']}, {before['hardware']}."
        if before
        else ""
    )
    return table(["runs", *heads], rows) + source


# -- evidence --------------------------------------------------------------------------------------


_PARTS = (
    *("attention", "decode", "prefix", "tiles", "launches", "quantised", "host"),
    *("prefill", "lockstep", "start_up", "disk_cache", "speculation_gpu", "gpu"),
    *("life", "step", "eight_bits", "latents", "whole_engines", "whole_prompts"),
)


def _measured() -> Iterator[tuple[str, Result]]:
    """Every result of these pages, by the name of its file."""
    for part in _PARTS:
        yield from files(part)


def _words(line: Result) -> str:
    return ", ".join(f"{key} {value}" for key, value in line.items() if key != "gate")


def gates() -> str:
    """The largest errors that were found, and how much was allowed."""
    worst: dict[tuple[str, str], tuple[float, float, int]] = {}
    for stem, found in _measured():
        for what, gate in _gates_of(found):
            error, _, count = worst.get((stem, what), (0.0, 0.0, 0))
            worst[stem, what] = (max(error, gate["error"]), gate["tolerance"], count + 1)
    rows = [
        [stem, what, str(count), f"{error:.2g}", f"{tolerance:.2g}"]
        for (stem, what), (error, tolerance, count) in worst.items()
    ]
    head = ["result", "check", "times", "largest error", "allowed"]
    return table(head, rows) if rows else NOTHING_YET


def _gates_of(found: Result) -> Iterator[tuple[str, Result]]:
    for line in (*found.get("cells", []), *found.get("unshared", [])):
        gate = line.get("gate", {})
        if "error" in gate:
            yield "op against float64", gate
        else:
            yield from ((_CHECKS[name], verdict) for name, verdict in gate.items())
    for line in found.get("against_hf", []):
        yield "step against Hugging Face", line


_CHECKS = {"op": "op against float64", "step": "step against plain torch"}


def left_out() -> str:
    """The measurements that were left out, and why."""
    rows = []
    for stem, found in _measured():
        rows += [[stem, line["what"], line["why"]] for line in found.get("left_out", [])]
        rows += [[stem, _words(line), "a red gate"] for line in found.get("red", [])]
    return table(["result", "what", "why"], rows) if rows else "Nothing."


def speed_sources() -> str:
    """Where, when, with what and how the numbers came about."""
    lines = []
    for stem, found in _measured():
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        lines.append(
            f"- {stem}: {found['date']}, commit {found['commit']}, {found['hardware']}; "
            f"{versions}; `{found['command']}`"
        )
    return "\n".join(lines) or NOTHING_YET


def plots() -> str:
    """The pictures that `benchmarks/plots.py` has drawn."""
    drawn = [
        path for path in sorted(PLOTS.glob("*.svg")) if path.stem != "fleet"
    ]  # of docs/scale.md
    return "\n\n".join(f"![{path.stem}](plots/{path.name})" for path in drawn) or NOTHING_YET


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        life,
        life_passes,
        life_step_end,
        life_in_turn,
        life_whole,
        life_lookahead,
        beside_one,
        decode_ms,
        decode_tokens,
        breakdown,
        sampled,
        start_up,
        decode_peers,
        attention_teams,
        attention_live,
        attention_in_turn,
        outsiders,
        beside_outsiders,
        attention_prefixes,
        attention_trees,
        attention_prefills,
        prefix,
        host,
        gates,
        left_out,
        speed_sources,
        plots,
    )
}
