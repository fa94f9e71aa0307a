"""The tables made from the sections of `one_gpu.py`, and from `eight_bits.py` on any machine.

A table whose result is not there says so, as those of `performance.py` do.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.performance import NOTHING_YET, Result, cell, files, result, table
from benchmarks.shapes import SHAPES

ANSWERS = (
    *("eight_bits", "eight_bits_teams", "eight_bits_gpu"),
    *("eight_bits_smollm2_sums", "eight_bits_smollm2"),
)
_KEYS = {"auto": "16 bits", "int8": "eight bits"}


def long_history() -> str:
    """Passes behind long histories, with keys and values in 16 bits and in eight."""
    rows = []
    for name, shape in SHAPES.items():
        cells = {
            (line["history"], line["workers"], line["keys"] != "auto"): line
            for line in (result(f"decode_long_{name}") or {}).get("cells", [])
        }
        for _, line in sorted(cells.items()):
            attention = line["parts"].get("ms_attention")
            rows.append(
                [
                    shape.title,
                    str(line["history"]),
                    str(line["workers"]),
                    _KEYS[line["keys"]],
                    f"{line['ms']:.2f}",
                    f"{line['floor_ms']:.2f}",
                    f"{line['over_floor']:.3f}",
                    "" if attention is None else f"{1e3 * attention / shape.num_layers:.1f}",
                    f"{line['tokens_per_second']:.0f}",
                    "" if line["apart"] is None else f"{line['apart']:.4f}",
                ]
            )
    head = ["shapes", "history", "workers", "keys and values", "ms", "floor", "over it"]
    head += ["attention, µs a layer", "tokens/s", "logits apart"]
    return table(head, rows) if rows else NOTHING_YET


_STARTS = (
    *("", "mended_", "wide_", "fronts_", "turns_", "ended_", "draws_", "at_once_", "whole_"),
    *(
        "products_",
        "threads_",
        "processes_",
        "pipes_",
        "few_layers_",
        "repeated_",
        "ahead_",
        "prompts_",
    ),
)  # oldest first


def starts() -> list[tuple[str, str, Result]]:
    """Every start of a process that was timed, oldest first: network, commit and line."""
    return [
        (shape.title, found["commit"], line)
        for name, shape in SHAPES.items()
        for part in _STARTS
        if (found := result(f"start_up_{part}{name}")) is not None
        for line in found.get("starts", [])
    ]


def late(line: Result, key: str) -> int:
    """How many were compiled, recorded or launched kernel by kernel after a start was over."""
    return sum(part[key] for part in (line["first_prompt"], line["second_prompt"], *line["crowds"]))


def _start(title: str, commit: str, line: Result) -> list[str]:
    when = str(line["when"])
    kernels = {"cold": "none", "cached": "of the process before"}.get(when, when)
    return [
        title,
        kernels,
        *(f"{line[f'{key}_s']:.1f}" for key in ("import", "load", "get_ready", "start")),
        *(f"{line[f'{which}_token_s']:.3f}" for which in ("first", "second")),
        *(str(late(line, key)) for key in ("compiled", "recorded", "eager")),
        commit,
    ]


_START_HEAD = [
    *("shapes", "compiled kernels", "imports, s", "loading", "getting ready", "all"),
    *("first token of a 2 k prompt, s", "of a second one", "compiled later", "recorded later"),
    *("passes launch by launch", "commit"),
]


def fresh_process() -> str:
    """From the start of a process to its first token, and what was compiled and recorded afterwards."""
    rows = [_start(*each) for each in starts()]
    return table(_START_HEAD, rows) if rows else NOTHING_YET


def newest_start(when: str) -> tuple[str, str, Result] | None:
    """The last start with an empty folder of kernels (`cold`) or a filled one (`cached`)."""
    return next((each for each in reversed(starts()) if each[2]["when"] == when), None)


def first_token() -> str:
    """The newest start with an empty folder of kernels, and the newest one with a filled one."""
    rows = [_start(*found) for when in ("cold", "cached") if (found := newest_start(when))]
    return table(_START_HEAD, rows) if rows else NOTHING_YET


def disk_cache() -> str:
    """A prompt read, and loaded from disk."""
    rows = [
        [
            line["model"],
            "two CPU cores" if "no GPU" in found["hardware"] else "a GPU",
            str(line["tokens"]),
            f"{line['mebibytes']:.0f}",
            *(f"{line[key]:.2f}" for key in ("read_s", "loaded_s", "cold_s")),
            f"{line['faster']:.1f} ×, {line['faster_cold']:.1f} ×",
            *(f"{line[key]:.3f}" if key in line else "" for key in _READY),
            f"{line['faster_ready']:.1f} ×" if "faster_ready" in line else "",
        ]
        for name in ("qwen3-8b", "qwq-32b", "small")
        if (found := result(f"disk_cache_{name}")) is not None
        for line in found.get("lengths", [])
    ]
    head = ["shapes", "on", "tokens", "MiB", "read, s", "loaded, s", "loaded from disk alone, s"]
    ready = ["engine that serves: read, s", "loaded, s", "checked by the host, s", "faster"]
    return table([*head, "faster", *ready], rows) if rows else NOTHING_YET


_READY = ("ready_read_s", "ready_loaded_s", "ready_loaded_by_host_s")


def prefill_passes() -> str:
    """Whole passes of one prompt, in every way, and the attention of one of their layers."""
    rows, ways = [], ("ms_launched", "ms_before")
    for name, shape in SHAPES.items():
        found = result(f"prefill_{name}")
        for line in (found or {}).get("passes", []):
            alone = cell(found, name=f"0 {line['tokens']}")
            rows.append(
                [
                    shape.title,
                    str(line["tokens"]),
                    f"{alone['us']:.1f} ({alone['us_limit']:.1f})" if alone else "",
                    f"{line['ms']:.1f}"
                    + (f" ({line['floor_ms']:.1f})" if "floor_ms" in line else ""),
                    *(f"{line[way]:.1f}" if way in line else "" for way in ways),
                    f"{line['tokens_per_second'] / 1e3:.1f}",
                ]
            )
    head = [
        "shapes",
        "tokens",
        "attention of a layer, µs (limit)",
        "to the first token, ms (floor)",
        "launch by launch",
        "by the modelling code's experts",
        "thousand tokens/s",
    ]
    return table(head, rows) if rows else NOTHING_YET


def guesses_in_time() -> str:
    """Tokens per second with guesses and without, on a GPU."""
    rows = []
    for line in (result("speculation_gpu") or {}).get("lines", []):
        plain, guessed = line["without"], line["guessed"]
        ratio = guessed["tokens_per_second"] / plain["tokens_per_second"]
        rows.append(
            [
                line["name"],
                line["dtype"],
                f"{plain['passes']} → {guessed['passes']}",
                f"{plain['tokens_per_second']:.0f} → {guessed['tokens_per_second']:.0f}",
                f"{ratio:.2f}",
            ]
        )
    return table(["work", "dtype", "passes", "tokens/s", "ratio"], rows) if rows else NOTHING_YET


def eight_bits_answers() -> str:
    """The same lists with keys and values in eight bits: same answers, and how many are right."""
    rows = [
        [
            {"smollm2": "SmolLM2"}.get(found.get("model", ""), "bundled"),
            found.get("dtype", "float32"),
            f"{line.get('problems', 'bare')}, {found.get('count', 2)} a list",
            str(line["workers"]),
            str(line["samples"]),
            f"{line['same_answers']:.1%}",
            f"{line['right']:.1%} → {line['right_in_eight_bits']:.1%}",
            *(
                f"{line[other]['same_answers']:.1%}" if other in line else ""
                for other in ("control", "in_bfloat16")
            ),
        ]
        for file in ANSWERS
        if (found := result(file)) is not None
        for line in found.get("teams", [])
    ]
    head = ["model", "dtype", "problems", "workers", "lists", "same answers", "right"]
    head += ["same without eight bits", "same in bfloat16"]
    return table(head, rows) if rows else NOTHING_YET


def lockstep_again() -> str:
    """Some cells of the tables above measured once more, on another commit."""
    rows = []
    for name, shape in SHAPES.items():
        found = result(f"lockstep_{name}") or {}
        for line in found.get("cells", []):
            if "workers" in line:
                old = result(f"decode_{name}")
                then = cell(old, workers=line["workers"], history=line["history"])
                what = f"{line['workers']} workers, {line['history']}"
                shown = [f"{x['ms']:.2f} ({x['floor_ms']:.2f}) ms" for x in (then, line) if x]
            else:
                old = result(f"prefix_{name}")
                then = cell(old, batch=line["batch"], prefix=line["prefix"])
                what = f"{line['batch']} completions, {line['prefix']}"
                shown = [f"{x['tokens_per_second'] / 1e3:.2f} k/s" for x in (then, line) if x]
            if then is None or old is None:
                continue
            rows.append([shape.title, what, *shown, _change(then, line)])
            rows[-1][2] += f", {old['commit']}"
            rows[-1][3] += f", {found['commit']}"
    return table(["shapes", "cell", "then", "now", "change"], rows) if rows else NOTHING_YET


def _change(then: Result, now: Result) -> str:
    """Of the time over its floor where there is one, else of the rate."""
    if "floor_ms" in then:
        over = [line["ms"] / line["floor_ms"] for line in (then, now)]
        return f"{over[1] / over[0] - 1:+.1%} over the floor"
    return f"{now['tokens_per_second'] / then['tokens_per_second'] - 1:+.1%}"


_HYBRIDS = ("qwen3.5-9b", "qwen3.5-27b", "qwen3-next-80b-12")


def hybrids() -> str:
    """Passes of networks that keep states: recorded, launch by launch, and as they were before."""
    rows = []
    for name in _HYBRIDS:
        found = result(f"hybrids_{name}") or {}
        for line in found.get("cells", []):
            ours, floor = line["recorded"]["ms"], line["floor_ms"]
            launched, before = (line.get(way, {}).get("ms") for way in ("launched", "before"))
            rows.append(
                [
                    found["model"] if line is found["cells"][0] else "",
                    str(line["rows"]),
                    f"{ours:.2f}",
                    f"{floor:.2f}",
                    f"{ours / floor:.2f} ×",
                    f"{1e3 * line['rows'] / ours:.0f}",
                    f"{launched:.1f}" if launched else "",
                    f"{before:.1f}" if before else "",
                    f"{before / ours:.0f} ×" if before else "",
                ]
            )
    head = ["shapes", "rows", "ms", "floor, ms", "over it", "tokens/s"]
    head += ["launch by launch, ms", "before, ms", "times as fast"]
    return table(head, rows) if rows else NOTHING_YET


def hybrids_prompts() -> str:
    """The first token of a prompt of such a network that comes alone."""
    rows = []
    for name in _HYBRIDS:
        found = result(f"hybrids_{name}") or {}
        lines = found.get("prompts", [])
        before = {line["length"]: line["ms_first"] for line in lines if line["way"] == "before"}
        for line in (line for line in lines if line["way"] == "launched"):
            ours, was = line["ms_first"], before.get(line["length"])
            title = found["model"] if line is lines[0] else ""
            asked = [f"{was:.0f}", f"{was / ours:.1f} ×"] if was else ["", ""]
            rows.append([title, str(line["length"]), f"{ours:.0f}", *asked])
    head = ["shapes", "tokens", "ms", "before, ms", "times as fast"]
    return table(head, rows) if rows else NOTHING_YET


def gpu_tests() -> str:
    """The tests that ran on a GPU, and those that ran under the sanitizer: of each kind of run the newest first."""
    rows = []
    for kind in ("gpu_tests", "gpu_memcheck", "gpu_racecheck"):
        runs = sorted(files(kind), key=lambda run: str(run[1]["date"]), reverse=True)
        for stem, found in runs:
            errors = found.get("errors_of_the_tool")
            for file, counts in found["files"].items():
                rows.append(
                    [
                        f"`{stem}`",
                        str(found["commit"]),
                        file,  # some have other names by now, so none is said as a path of today
                        *(str(counts.get(how, 0)) for how in ("passed", "failed", "skipped")),
                        "" if errors is None else str(errors),
                    ]
                )
    head = [
        "run",
        "commit",
        "tests",
        "passed",
        "failed",
        "skipped",
        "errors of the tool in the run",
    ]
    return table(head, rows) if rows else NOTHING_YET


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (
        long_history,
        fresh_process,
        first_token,
        disk_cache,
        prefill_passes,
        guesses_in_time,
        eight_bits_answers,
        lockstep_again,
        hybrids,
        hybrids_prompts,
        gpu_tests,
    )
}
