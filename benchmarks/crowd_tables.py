"""Tables about crowds: large teams and what recordings have room for, and the clock of the GPU beneath them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.joules import READ
from benchmarks.performance import NOTHING_YET, Result, result, table

_TURNS = ("life_sixteens_qwen3-8b", "life_ample_qwen3-8b", "life_ample_qwen3-32b")
# Recordings that a plan is repeated behind, as the table says them.
_PADDINGS = {
    "own": "its own",
    "ample": "ample, as measured",
    "ample, large as needed": "ample, no large tile more than it has",
    "ample, own tokens": "ample, tokens of its own",
}


def crowds() -> str:
    """Passes of each crowd that find no recording, of two commits; of crowds drawn at random those with any."""
    found = result("crowds")
    if found is None:
        return NOTHING_YET
    rows = []
    for line in found["crowds"]:
        counts = [f"{line[f'{what}_before']} → {line[what]}" for what in ("one_by_one", "recorded")]
        is_drawn = line["crowd"].startswith("drawn")
        if is_drawn and not (line["one_by_one"] + line["one_by_one_before"]):
            continue
        rows.append([line["crowd"], line["heads"], line["runs"], str(line["passes"]), *counts])
    head = ["crowd", "heads", "runs x rows of each", "passes", "launched one by one", "recorded"]
    return table(head, rows)


def large_crowds() -> str:
    """Crowds of large teams, and of many rows, by both ways in turns in one engine: a pass, its worst, and what was launched."""
    rows = []
    for name in _TURNS:
        found = result(name)
        if found is None:
            continue
        ways: dict[tuple[int, str], dict[str, list[Result]]] = {}
        for line in found["situations"]:
            if line["name"] in ("16 teams of 8, ragged", "32 teams of 4, ragged"):
                continue  # nothing has changed for them
            of_bits = ways.setdefault((line["bits"], line["name"]), {})
            of_bits.setdefault(line["variant"], []).append(line)
        for (bits, situation), both in ways.items():
            told = [
                ", ".join(f"{line[what]:.{digits}f}" for line in both[way])
                for what, digits in (("mean_ms", 1), ("p99_ms", 1), ("eager", 0))
                for way in ("before", "now")
            ]
            is_draft = name.startswith("life_sixteens")
            change = "tiles for sixteen" if is_draft else "the same, and ample recordings"
            rows.append([found["model"], str(bits), situation, *told, change])
    head = [
        "network",
        "bits of keys",
        "situation",
        "mean before, ms",
        "now",
        "99 % before, ms",
        "now",
    ]
    more = ["launched one by one before", "now", "what has changed"]
    return table([*head, *more], rows) if rows else NOTHING_YET


def ample_padding() -> str:
    """One plan behind its own recording and behind ample ones: milliseconds of the pass, and of its attention."""
    found = result("ample_padding")
    if found is None:
        return NOTHING_YET
    plans: dict[tuple[str, int, int, int], dict[str, Result]] = {}
    number = 0
    for line in found["recordings"]:
        number += line["what"] == "own"  # each plan begins with it
        key = line["situation"], line["tokens"], line["rows"], number
        plans.setdefault(key, {})[line["what"]] = line
    rows = [
        [situation, str(tokens), str(count)]
        + [f"{lines[what]['ms']:.1f} ({lines[what]['attend_ms']:.1f})" for what in _PADDINGS]
        for (situation, tokens, count, _), lines in plans.items()
    ]
    return table(["crowd", "tokens", "rows", *_PADDINGS.values()], rows)


def ample_memory() -> str:
    """The memory that an engine's recordings reserve, with ample ones and without."""
    found = result("ample_memory")
    if found is None:
        return NOTHING_YET
    rows = [
        [
            "with ample ones" if line["ample"] else "without",
            str(line["recordings"]),
            str(line["reserved_mib"]),
            f"{line['seconds']:.1f}",
        ]
        for line in found["rows"]
    ]
    return table(["recordings", "number", "MiB reserved", "seconds until ready"], rows)


def clocks() -> str:
    """The clock of two cards in passes with many rows and with few."""
    rows = []
    for name, card in (("clocks_of_crowds", "one"), ("life_clocks_qwen3-8b", "another")):
        found = result(name)
        lines: dict[str, list[Result]] = {}
        for line in (found or {}).get("situations", []):
            lines.setdefault(line["name"], []).append(line)
        for situation, times in lines.items():
            cells = [
                ", ".join(f"{line[what]:.{digits}f}" for line in times)
                for what, digits in (
                    ("mean_ms", 2),
                    ("clock_mhz", 0),
                    ("watts", 0),
                    ("held_back", 1),
                )
            ]
            rows.append([card, situation, *cells])
    head = ["card", "situation", "ms per pass", "clock, MHz", "watts", "share of samples held back"]
    return table(head, rows) if rows else NOTHING_YET


def joules() -> str:
    """Joules of kernels of passes with many rows, and of their bytes where these are only read."""
    found = result("joules")
    if found is None:
        return NOTHING_YET
    a_byte = next(each["joules"] / each["bytes"] for each in found["work"] if each["what"] == READ)
    rows = [
        [
            line["what"],
            f"{line['bytes'] / 1e9:.2f}",
            f"{line['ms']:.3f}",
            f"{line['clock_mhz']:.0f}",
            f"{line['watts']:.0f}",
            f"{line['joules']:.3f}",
            f"{line['bytes'] * a_byte:.3f}",
        ]
        for line in found["work"]
    ]
    head = ["work", "GB", "ms", "clock, MHz", "watts", "joules", "joules of its bytes, read"]
    return table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made
    for made in (crowds, large_crowds, ample_padding, ample_memory, clocks, joules)
}
