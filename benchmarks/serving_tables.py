"""The tables of the page about serving: limits from their fields, figures from the results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.performance import table
from manyhands.schema.choosing import flag_of
from manyhands.schema.setting import settings_of
from manyhands.server.limits import Limits

RESULTS = Path(__file__).parent / "results"


def limits() -> str:
    """Every limit, as its field declares it."""
    declared, rows = settings_of(Limits), []
    for each in fields(Limits):
        said = declared[each.name].help
        rows.append([f"`{flag_of(each.name)}`", said, f"{each.default:,}".replace(",", " ")])
    return table(["option", "what", "default"], rows)


def place() -> str:
    """Where it was measured."""
    found = _results("cost")
    return f"{found['date']}, {found['hardware']}, one thread for the model."


def cost() -> str:
    """The event loop's share of a pass."""
    rows = [
        [
            str(line["streams"]),
            f"{line['rows_per_pass']:.0f}",
            f"{line['loop_ms_per_pass']:.2f} ms",
            f"{line['model_ms_per_pass']:.1f} ms",
            f"{line['share']:.1%}",
        ]
        for line in _results("cost")["cost"]
    ]
    return table(["streams", "rows of a pass", "event loop", "the pass itself", "share"], rows)


def load() -> str:
    """The streams, as their clients saw them."""
    (line,) = _results("load")["load"]
    (gone,) = _results("leavers")["leavers"]
    before, after = gone["before"], gone["after"]

    def milliseconds(name: str) -> str:
        return f"{line[f'{name}_p50']:,.0f} / {line[f'{name}_p99']:,.0f} ms".replace(",", " ")

    rows = [
        [
            f"{line['clients']} clients that stream for {line['seconds']:.0f} s",
            f"{line['tokens_per_second']:.0f} tokens/s of all, {line['answers']} answers, "
            f"{line['not_ok']} not 200",
        ],
        ["time to the first token, p50 / p99", milliseconds("first_ms")],
        ["gap between two pieces, p50 / p99", milliseconds("gap_ms")],
        ["`/health` meanwhile, p50 / p99", milliseconds("health_ms")],
        ["`/health` meanwhile, the slowest", f"{line['health_ms_most']:,.0f} ms"],
        [
            f"{gone['clients']} clients that leave after 0.5 s, then one request",
            f"answered after {gone['answered_after_seconds']:.1f} s",
        ],
        [
            "memory, threads, files before / after them",
            f"{before['resident_mib']:.0f} / {after['resident_mib']:.0f} MiB, "
            f"{before['threads']} / {after['threads']}, {before['files']} / {after['files']}",
        ],
        ["runs and streams left of them", f"{gone['runs_left'] + gone['streams_left']:.0f}"],
        [
            "load of the machine behind the streams, and behind those who left",
            f"{line['machine_load'][0]:.1f}, {gone['machine_load'][0]:.1f}",
        ],
    ]
    return table(["what", "seen"], rows)


def soak() -> str:
    """The remains of clients of all kinds."""
    (line,) = _results("soak")["soak"]
    before, after = line["before"], line["after"]
    kinds: dict[str, list[str]] = {}
    for name, count in line["statuses"].items():
        kind, _, status = name.partition(" ")
        kinds.setdefault(kind, []).append(
            f"{count} × {status}" if status != "0" else f"{count} × left"
        )
    rows = [
        ["clients, seconds", f"{line['clients']}, {line['seconds']:.0f}"],
        *([f"`{kind}`", ", ".join(counts)] for kind, counts in kinds.items()),
        [
            "memory before / after",
            f"{before['resident_mib']:.0f} / {after['resident_mib']:.0f} MiB",
        ],
        ["after each fifth", ", ".join(f"{mib:.0f}" for mib in line["resident_mib_by_round"][1:])],
        ["threads before / after", f"{before['threads']} / {after['threads']}"],
        ["files before / after", f"{before['files']} / {after['files']}"],
        ["pages of the KV cache before / after", f"{before['pages']} / {after['pages']}"],
        ["ended runs that are kept", f"{before['runs_kept']} / {after['runs_kept']}"],
        ["runs and streams left", f"{line['runs_left'] + line['streams_left']:.0f}"],
        ["load of the machine behind it", f"{line['machine_load'][0]:.1f}"],
    ]
    return table(["what", "seen"], rows)


def page() -> str:
    """The first sight of the page."""
    (line,) = _results("page")["page"]
    rows = [
        [words, f"{line[f'{name}_ms_p50']:.0f} / {line[f'{name}_ms_most']:.0f} ms"]
        for words, name in (
            ("from the address to a form that can be used, p50 / most", "usable"),
            ("from the click to the first word, p50 / most", "first_word"),
        )
    ]
    rows += [
        ["visits", str(line["visits"])],
        ["load of the machine behind them", f"{line['machine_load'][0]:.1f}"],
    ]
    return table(["what", "seen"], rows)


def clients() -> str:
    """Every client that was tried, as pip or npm gave it."""
    rows = []
    for line in _file("clients")["clients"]:
        versions = ", ".join(f"{name} {version}" for name, version in line["versions"].items())
        rows.append([versions, line["about"], "passed" if line["passed"] else "failed"])
    return table(["client", "what it uses", "outcome"], rows)


def person() -> str:
    """Lists of which a person solves parts."""
    who = {None: "nobody", 0: "looks on", 1: "solves the last part", 2: "solves the last two"}
    rows = [
        [
            who[line["person_solves"]],
            str(line["lists"]),
            f"{line['passes_mean']:.1f}",
            str(line["fewer_passes"]),
            f"{line['right']} of {line['lists']}",
            str(line["solved_twice"]),
        ]
        for line in _file("person")["person"]
    ]
    head = ["the person", "lists", "passes, mean", "fewer than alone", "right", "solved twice"]
    return table(head, rows)


def _results(part: str) -> dict[str, Any]:
    return _file(f"serving_{part}")


def _file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


TABLES: dict[str, Callable[[], str]] = {
    "limits": limits,
    "serving_place": place,
    "serving_cost": cost,
    "serving_load": load,
    "serving_page": page,
    "serving_soak": soak,
    "serving_clients": clients,
    "serving_person": person,
}
