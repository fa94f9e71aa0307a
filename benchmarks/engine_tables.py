"""The tables of whole engines beside each other, made from the results of `whole_engines` and `whole_prompts`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from benchmarks.breakdown import kind_of
from benchmarks.performance import NOTHING_YET, Result, cell, files, result, results, table
from benchmarks.vllm_process import CASCADE, PLAIN
from benchmarks.whole_engines import FAR, OURS, TEAM

_OF_EXPERTS = re.compile(
    r"^fused_moe|^_gated|^_down|^_expert_|^_mxfp4_product"
)  # kernels of their products, of both engines

_OVER = " over "  # in the names of networks that lie over several GPUs
# The run over ranks that came to the gate, and not to the end of its timings.
_GATE_OVER_RANKS = "first_whole_engines_over_2_qwen3-8b"


def whole_engines() -> str:
    """Milliseconds per step and tokens per second of both, and how many of vLLM's tokens this engine writes."""
    rows: list[list[str]] = []
    last = ""
    for network, found in _both():
        again = result(f"whole_engines_again_{network}")
        names = dict.fromkeys(line["name"] for line in found.get("cells", []))
        for name in names:
            lines, commit = _lines(found, name), found["commit"]
            # In a later run, which has all of them for this situation.
            if again is not None and _are_all(lines, newer := _lines(again, name)):
                lines, commit = newer, again["commit"]
            times = [f"{line['ms_mean']:.2f}" if line else "" for line in lines.values()]
            ours = lines[OURS]
            theirs = [
                line["tokens_per_second"] for kind in (PLAIN, CASCADE) if (line := lines[kind])
            ]
            rates = ["", "", ""]
            if ours and theirs:
                mine = ours["tokens_per_second"]
                rates = [f"{mine:.0f}", f"{max(theirs):.0f}", f"{mine / max(theirs):.2f} ×"]
            network_shown = "" if found["model"] == last else found["model"]
            rows.append([network_shown, name, *times, *rates, commit])
            last = found["model"]
    head = ["network", "situation", "this engine, ms", "as a team", "vLLM, ms", "with cascade"]
    head += ["this engine, tokens/s", "vLLM's better", "ratio", "commit"]
    return table(head, rows) if rows else NOTHING_YET


def _both() -> Iterator[tuple[str, Result]]:
    """The results of steps on one GPU, by the network's name, and then those over several."""
    yield from results("whole_engines")
    for stem, found in files("whole_engines_over_"):
        yield stem.removeprefix("whole_engines_"), found


def _lines(found: Result, name: str) -> dict[str, Result | None]:
    """The cells of a situation, by the engine."""
    return {kind: cell(found, name=name, engine=kind) for kind in (OURS, TEAM, PLAIN, CASCADE)}


def _are_all(lines: dict[str, Result | None], newer: dict[str, Result | None]) -> bool:
    return all(newer[kind] is not None for kind, line in lines.items() if line is not None)


def whole_engines_parts() -> str:
    """Where a step spends its time: kernels by kind, the longest twelve of each, and all else, waiting included."""
    rows: list[list[str]] = []
    for _, found in _both():
        for line in found.get("breakdown", []):
            whole = cell(found, name=line["name"], engine=line["engine"])
            if (
                whole is None or "kernels" not in line
            ):  # vLLM never cascaded; the profiler saw nothing
                continue
            spent = {"attention": 0.0, "linears": 0.0}
            for name, ms in line["kernels"]:
                kind = "attention" if "reshape_and_cache" in name else kind_of(name)
                if found.get("num_experts") and _OF_EXPERTS.search(name):
                    kind = "linears"
                if kind in spent:
                    spent[kind] += ms
            times = [whole["ms_mean"], *spent.values(), whole["ms_mean"] - sum(spent.values())]
            rows.append(
                [found["model"], line["name"], line["engine"], *(f"{ms:.2f}" for ms in times)]
            )
    rows.sort(key=lambda row: row[:2])
    head = ["network", "situation", "engine", "ms", "attention", "products", "all else"]
    return table(head, rows) if rows else NOTHING_YET


def whole_engines_experts() -> str:
    """The experts that a layer reads in a step of either engine, on average."""
    rows: list[list[str]] = []
    last = ""
    for _, found in _both():
        for name in dict.fromkeys(line["name"] for line in found.get("experts", [])):
            read = {
                line["engine"]: f"{line['experts_read']:.1f}"
                for line in found["experts"]
                if line["name"] == name
            }
            network = "" if found["model"] == last else found["model"]
            told = [read.get(kind, "") for kind in (OURS, TEAM, PLAIN)]
            rows.append([network, name, str(found["num_experts"]), *told])
            last = found["model"]
    head = ["network", "situation", "experts of a layer", "read by this engine", "as a team"]
    return table([*head, "by vLLM"], rows) if rows else NOTHING_YET


def whole_engines_gate() -> str:
    """How far both are from each other on the small network, and how they started."""
    rows = []
    behind_ranks = [result(_GATE_OVER_RANKS)]
    for found in (*(each for _, each in _both()), *filter(None, behind_ranks)):
        start = found.get("vllm_start", {})
        seconds = [start.get(key, "") for key in ("import_seconds", "start_seconds")]
        seconds.append(found.get("start_seconds", ""))
        rows += [
            [
                found["model"],
                start.get("vllm", ""),
                line["engine"],
                f"{line['same']} of {line['tokens']}",
                f"{line['mean']:.3f}",
                f"{line['worst']:.2f}",
                str(line.get("far", 0 if line["worst"] <= FAR else "")),
                *map(str, seconds),
            ]
            for line in found.get("gate", [])
        ]
    head = [
        "timed behind it",
        "vLLM",
        "its tokens by",
        "this engine's choice too",
        "mean difference",
        "worst",
        "far",
    ]
    head += ["vLLM, import, s", "start, s", "this engine, start, s"]
    return table(head, rows) if rows else NOTHING_YET


# Files of first tokens, the newest first; one that does not stand here is newer still.
PROMPTS = (
    "whole_prompts_apart",
    "whole_prompts_over_2_apart",
    "whole_prompts_over_2_apart_alone",
    "whole_prompts_leaving",
    "whole_prompts_opening",
    "whole_prompts_by_tile",
    "whole_prompts_over_2_norms",
    "whole_prompts_means",
    "whole_prompts_over_2_again",
    "whole_prompts_over_2",
    "whole_prompts_experts",
    "whole_prompts_at_once",
    "whole_prompts",
)


def whole_prompts() -> str:
    """Milliseconds until prompts have their first tokens: the first of them, all on average, and the last of those that come at once.

    Of each situation the newest line with both engines, or the newest of each.
    """
    return _of_prompts(shows_older=False)


def whole_prompts_older() -> str:
    """The lines that newer ones have taken the place of."""
    return _of_prompts(shows_older=True)


def _of_prompts(*, shows_older: bool) -> str:
    shown: dict[tuple[str, str], set[str]] = {}
    rows: dict[str, dict[str, list[list[str]]]] = {}  # by network and situation
    for found in _newest_first():
        lines = found.get("prompts", [])
        for model, name in dict.fromkeys((line["model"], line["name"]) for line in lines):
            ours, theirs = (
                cell(found, "prompts", model=model, name=name, engine=engine)
                for engine in (OURS, PLAIN)
            )
            are_many = any(line and line["rows"] > 1 for line in (ours, theirs))
            if are_many and theirs and "found_in_cache" not in theirs:
                theirs = None  # one of its prompts had come alone before
            there = {line["engine"] for line in (ours, theirs) if line}
            before = shown.setdefault((model, name), set())
            is_newer = not there <= before
            before |= there
            if not there or is_newer == shows_older:
                continue
            gate = (cell(found, "gates", model=model, name=name) or {}).get("gate")
            row = [
                *_until(ours, theirs, "ms_first"),
                *(_until(ours, theirs, "ms_mean") if are_many else [""] * 3),
                *(_until(ours, theirs, "ms_last") if are_many else [""] * 3),
                f"{gate['error']:.2g} ({gate['tolerance']:.2g})" if gate else "",
                found["commit"],
            ]
            rows.setdefault(model, {}).setdefault(name, []).append(row)
    head = ["network", "prompts", "this engine, ms to the first token (worst)", "vLLM", "ratio"]
    head += ["of all, their mean, this engine", "vLLM", "ratio"]
    head += ["to the last one's, this engine", "vLLM", "ratio", "gate: error (allowed)", "commit"]
    told: list[list[str]] = []
    for model, situations in sorted(rows.items(), key=lambda each: _OVER in each[0]):
        named = [[name, *row] for name, found_rows in situations.items() for row in found_rows]
        told += [["" if index else model, *row] for index, row in enumerate(named)]
    return table(head, told) if told else NOTHING_YET


def _newest_first() -> list[Result]:
    found = dict(files("whole_prompts"))
    names = [name for name in found if name not in PROMPTS]
    return [found[name] for name in (*names, *PROMPTS) if name in found]


def _until(ours: Result | None, theirs: Result | None, kind: str) -> list[str]:
    """Median and worst of both, and vLLM's median over this engine's; older files have no means."""
    both = [line if line and kind in line else None for line in (ours, theirs)]
    shown = [f"{line[kind]:.1f} ({line[f'{kind}_worst']:.1f})" if line else "" for line in both]
    here, there = both
    return [*shown, f"{there[kind] / here[kind]:.2f} ×" if here and there else ""]


def whole_prompts_starts() -> str:
    """How both were started where prompts were timed last, and how many tokens a pass may have in each."""
    rows, shown = [], set()
    for found in _newest_first():
        for line in found.get("starts", []):
            if "start_seconds" not in line or (line["model"], line["engine"]) in shown:
                continue
            shown.add((line["model"], line["engine"]))
            seconds = (line.get(f"{part}_seconds", "") for part in ("import", "start", "whole"))
            engine = f"{line['engine']} {line.get('vllm', '')}".strip()
            tokens = line.get("tokens_of_a_pass", "")
            rows.append([line["model"], engine, *map(str, (tokens, *seconds)), found["commit"]])
    head = [
        "network",
        "engine",
        "tokens of a pass, at most",
        "import, s",
        "start, s",
        "all of it, s",
    ]
    return table([*head, "commit"], rows) if rows else NOTHING_YET


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        whole_engines,
        whole_engines_parts,
        whole_engines_experts,
        whole_engines_gate,
        whole_prompts,
        whole_prompts_older,
        whole_prompts_starts,
    )
}
