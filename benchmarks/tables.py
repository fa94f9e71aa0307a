"""The tables of the docs, made from the results: run it after a benchmark, commit what it changes.

    python -m benchmarks.tables

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; what is between them is replaced.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    cpu_tables,
    crowd_tables,
    engine_tables,
    gpu_tables,
    layer_tables,
    performance,
    scale_tables,
    serving_tables,
    targets,
    training_tables,
)
from benchmarks.performance import table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = tuple(
    ROOT / "docs" / name
    for name in (
        "bundled_model.md",
        "cpu.md",
        *performance.PAGES,
        "scale.md",
        "serving.md",
        "smollm2.md",
        "training.md",
    )
)
Row = dict[str, Any]


def exam() -> dict[str, Row]:
    """The lines of the bundled model's exam, by name."""
    lines = json.loads((RESULTS / "bundled_exam.json").read_text())["lines"]
    return {line["name"]: line for line in lines}


def teams() -> str:
    """Accuracy and first good budget of one to four workers."""
    rows = []
    for kind, name in (
        ("bare 5", "five bare"),
        ("bare 8", "eight bare"),
        ("word 5", "five in words"),
    ):
        sat = {n: line for n in range(1, 5) if (line := exam().get(f"{kind}, {n}"))}
        for workers, line in sat.items():
            first = line["first_good_budget"]
            alone = sat[1]["first_good_budget"] if 1 in sat else None
            rows.append(
                [
                    name if workers == min(sat) else "",
                    str(workers),
                    f"{line['accuracy']:.2%}",
                    str(first or "not reached"),
                    f"{first / alone:.2f}" if first and alone else "",
                    f"{line['passes']:.0f}",
                    f"{line['solved_twice']:.1%}",
                ]
            )
    head = [
        "problems",
        "workers",
        "accuracy",
        "first budget ≥ 97 %",
        "ratio",
        "mean passes",
        "solved twice",
    ]
    return table(head, rows)


_STORIES = {
    "smollm2_untrained": "as it comes",
    "smollm2_exam_templates": "taught templates",
    "smollm2_exam_composed": "and composed stories",
    "smollm2_exam_kinds": "of every kind",
    "smollm2_exam_written": "and 539 written ones",
    "smollm2_exam_many": "and 2000 written ones",
    "smollm2_exam_mean_of_three": "mean of the last three",
    "smollm2_exam": "and 14 000 written ones",
}
_SHARE = 0.97  # of one worker's own final accuracy, whose first budget is looked for


def smollm2() -> str:
    """SmolLM2 before and after it was taught: accuracy per question, by what is asked."""
    head = [
        "SmolLM2",
        "workers",
        "n",
        "unseen stories",
        "fresh stories",
        "taught stories",
        "sums",
        "passes",
        "twice",
    ]
    rows = []
    for file, name in _STORIES.items():
        lines = _lines(file)
        for workers in range(1, 5):
            kinds = ("unseen", "fresh", "taught", "bare")
            asked = [lines.get(f"{kind} 5, {workers}") for kind in kinds]
            first = next((line for line in asked if line is not None), None)
            if first is None:
                continue
            rows.append(
                [
                    name if workers == 1 else "",
                    str(workers),
                    str(first["n"]),
                    *(f"{line['accuracy']:.1%}" if line else "" for line in asked),
                    f"{first['passes']:.0f}",
                    f"{first['solved_twice']:.1%}",
                ]
            )
    return table(head, rows)


def smollm2_budgets() -> str:
    """The first budget at which a team has nearly what one worker has in the end."""
    lines = _lines("smollm2_exam")
    wanted = _SHARE * lines["fresh 5, 1"]["accuracy"]
    rows, alone = [], None
    for workers in range(1, 5):
        curve = lines[f"fresh 5, {workers}"]["curve"]
        first = min((int(b) for b, value in curve.items() if value >= wanted), default=None)
        alone = first if workers == 1 else alone
        ratio = f"{first / alone:.2f}" if first and alone else ""
        rows.append([str(workers), str(first or "not reached"), ratio])
    return table(["workers", "first budget", "over one worker's"], rows)


def _lines(name: str) -> dict[str, Row]:
    lines = json.loads((RESULTS / f"{name}.json").read_text())["lines"]
    return {line["name"]: line for line in lines}


def circumstances() -> str:
    """Other circumstances that were tried, on lists of five."""
    known = {f"{kind}, {n}" for kind in ("bare 5", "bare 8", "word 5") for n in range(1, 5)}
    rows = [
        [
            name,
            f"{line['accuracy']:.2%}",
            f"{line['passes']:.0f}",
            f"{line['solved_twice']:.1%}",
            ", ".join(f"{n} {reason}" for reason, n in line["finish"].items()),
        ]
        for name, line in exam().items()
        if name not in known
    ]
    return table(
        ["line, workers", "accuracy", "mean passes", "solved twice", "how runs ended"], rows
    )


def curves() -> str:
    """Accuracy over the budget of forward passes, five bare problems."""
    rows = []
    for workers in range(1, 5):
        line = exam().get(f"bare 5, {workers}")
        if line is not None:
            points = [f"{budget}: {accuracy:.2f}" for budget, accuracy in line["curve"].items()]
            rows.append([str(workers), " · ".join(points[:4] + points[4::3])])
    return table(["workers", "budget: accuracy"], rows)


def source() -> str:
    """On what the exam was sat."""
    places: dict[str, list[str]] = {}
    for line in exam().values():
        versions = ", ".join(f"{name} {version}" for name, version in line["versions"].items())
        place = f"{line['date']}, {line['hardware']}, {versions}"
        places.setdefault(place, []).append(line["name"])
    return "\n".join(f"- {place}: {'; '.join(names)}" for place, names in places.items())


def examined(page: str, task: str) -> list[Row]:
    """The results of a task on one page (`benchmarks/summaries.py`), in the order of the labels."""
    lines = json.loads((RESULTS / f"{page}.json").read_text())
    return sorted(
        (line for line in lines if line["task"] == task), key=lambda line: in_order(line["label"])
    )


def in_order(label: str) -> list[tuple[bool, int, str]]:
    """A key that sorts numbers inside of words by their size."""
    parts = re.findall(r"[0-9]+|[^0-9]+", label)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def share(line: Row) -> str:
    """The value at the largest budget, with its interval of 95 %."""
    value = line["curve"][-1]["value"]
    return f"{value['mean']:.1%} ({value['low']:.1%} to {value['high']:.1%})"


def megabytes(line: Row) -> str:
    """The peak of what keys and values took."""
    peak = line["kv_bytes"]
    return "" if peak is None else f"{peak / 1e6:.1f}"


def curve_of(line: Row) -> list[str]:
    """A method's row: its value at some budgets, the passes and tokens of one list."""
    values = {point["budget"]: point["value"]["mean"] for point in line["curve"]}
    return [
        line["label"],
        *(f"{values[budget]:.2f}" for budget in _CURVE_BUDGETS),
        f"{line['passes']:.0f}",
        f"{line['tokens']:.0f}",
    ]


_CURVE_BUDGETS = (64, 96, 128, 192, 256)
_CURVE_HEADINGS = ["method", *(f"at {b}" for b in _CURVE_BUDGETS), "passes", "tokens"]


def methods() -> str:
    """Every method on the same lists, at the same budgets."""
    return table(_CURVE_HEADINGS, [curve_of(each) for each in examined("exam", "arithmetic")])


def ablations() -> str:
    """A team of three, with one thing changed at a time."""
    rows = [curve_of(each) for each in examined("exam-ablations", "arithmetic")]
    return table(_CURVE_HEADINGS, rows)


def students() -> str:
    """Retrieval in every form, sixteen questions at a time: table 1 of the PDOS paper in small."""
    rows = []
    for count in (10, 30):
        for at, each in enumerate(examined("exam", f"retrieval-{count}")):
            rows.append(
                [
                    str(count) if at == 0 else "",
                    each["label"],
                    share(each),
                    f"{each['passes']:.0f}",
                    f"{each['tokens']:.0f}",
                    megabytes(each),
                ]
            )
    headings = ["students", "method", "right", "passes", "tokens", "KV cache, MB"]
    return table(headings, rows)


def needle_pairs() -> list[tuple[Row, Row]]:
    """The exams with so many questions about one document at once: shared, and not."""
    by_label = {each["label"]: each for each in examined("exam", "needles")}
    counts = (1, 4, 16, 64, 256)
    return [(by_label[f"shared, {n}"], by_label[f"unshared, {n}"]) for n in counts]


def needles() -> str:
    """So many questions about one document at once, shared and not."""
    rows = [
        [
            str(shared["num_records"]),
            f"{shared['curve'][-1]['value']['mean']:.1%}",
            f"{alone['curve'][-1]['value']['mean']:.1%}",
            megabytes(shared),
            megabytes(alone),
        ]
        for shared, alone in needle_pairs()
    ]
    headings = ["questions", "right, shared", "unshared"]
    return table([*headings, "KV cache in MB, shared", "unshared"], rows)


def grown() -> str:
    """The second generation: lists of so many problems by teams of so many; what became of troubles; stories."""
    lines = _lines("bundled_grown")
    counts, teams_of = (1, 5, 8, 12), (1, 2, 3, 4, 6, 8)
    accuracy = [
        [str(count), *(_share_of(lines.get(f"wide {count}, {n}")) for n in teams_of)]
        for count in counts
    ]
    one, eight = (lines.get(f"wide 12, {n}", {}).get("first_good_budget") for n in (1, 8))
    shown = [str(budget) if budget else "not reached" for budget in (one, eight)]
    ratio = f", ratio {eight / one:.2f}" if one and eight else ""
    others = [
        [
            name,
            str(line["n"]),
            _share_of(line),
            *(f"{line[key]:.1%}" if key in line else "" for key in _CORRECTIONS),
        ]
        for name, line in lines.items()
        if not name.startswith("wide")
    ]
    again = [line["claimed_again"] for line in lines.values() if "claimed_again" in line]
    alarms = f"{max(again):.1%}" if again else "not asked"
    return "\n".join(
        [
            table(["problems", *(f"{n} worker{'s' * (n > 1)}" for n in teams_of)], accuracy),
            "",
            f"Twelve problems, first budgets with 97 % of eight workers and of one: {shown[1]} and {shown[0]}{ratio}. "
            f"Right results that were claimed again, in the worst line: {alarms}.",
            "",
            table(["line, workers", "n", "accuracy", *_CORRECTIONS], others),
        ]
    )


_CORRECTIONS = ("noticed", "said", "corrected")


def between() -> str:
    """Wide lists of every length for teams of 5 and of 7, as far as they were asked."""
    lines, teams_of = _lines("bundled_between"), (5, 7)
    rows = []
    for count in range(1, 13):
        asked = [lines.get(f"wide {count}, {n}") for n in teams_of]
        if any(asked):
            rows.append([str(count), *map(_share_of, asked)])
    return table(["problems", *(f"{n} workers" for n in teams_of)], rows)


def parts() -> str:
    """Questions in parts: how often the whole box is right."""
    rows = [
        [name, str(line["n"]), _share_of(line), f"{line['passes']:.0f}", f"{line['tokens']:.0f}"]
        for name, line in _lines("bundled_parts").items()
    ]
    return table(["line", "n", "right", "passes", "tokens"], rows)


def _share_of(line: Row | None) -> str:
    return f"{line['accuracy']:.1%}" if line else ""


def speed() -> str:
    """Tokens per second and the host's share, one list at a time."""
    result = json.loads((RESULTS / "bundled_speed.json").read_text())
    rows = [
        [
            str(row["workers"]),
            f"{row['tokens_per_second']:.0f}",
            f"{row['ms_per_pass']:.1f}",
            f"{row['ms_host']:.2f}",
            f"{row['seconds_per_list']:.2f}",
        ]
        for row in result["lines"]
        if row["threads"] == 1
    ]
    head = ["workers", "tokens/s", "ms per pass", "of it host, ms", "s per list"]
    return table(head, rows)


def guesses() -> str:
    """Passes and tokens with guesses and without."""
    lines = json.loads((RESULTS / "speculation.json").read_text())["lines"]
    rows = []
    for line in lines:
        plain, guessed = line["without"], line["guessed"]
        right = guessed["accepted"] / guessed["drafted"] if guessed["drafted"] else 0.0
        rows.append(
            [
                line["name"],
                str(plain["tokens"]),
                f"{plain['passes']} → {guessed['passes']}",
                f"{line['saved']:.1%}",
                f"{plain['tokens_per_pass']:.2f} → {guessed['tokens_per_pass']:.2f}",
                str(guessed["drafted"]),
                f"{right:.0%}",
                f"{plain['fed_per_token']:.2f} → {guessed['fed_per_token']:.2f}",
            ]
        )
    head = [
        "work",
        "tokens",
        "passes",
        "saved",
        "tokens per pass",
        "guesses",
        "right",
        "fed per token",
    ]
    return table(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "guesses": guesses,
    "teams": teams,
    "circumstances": circumstances,
    "smollm2": smollm2,
    "smollm2_budgets": smollm2_budgets,
    "curves": curves,
    "source": source,
    "methods": methods,
    "ablations": ablations,
    "students": students,
    "needles": needles,
    "speed": speed,
    "grown": grown,
    "between": between,
    "parts": parts,
    **performance.TABLES,
    **gpu_tables.TABLES,
    **engine_tables.TABLES,
    **layer_tables.TABLES,
    **crowd_tables.TABLES,
    **cpu_tables.TABLES,
    **scale_tables.TABLES,
    **serving_tables.TABLES,
    **training_tables.TABLES,
    **targets.TABLES,
}


def filled(page: str) -> str:
    """The page with its tables made anew."""
    pattern = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", page)


def write() -> None:
    """All pages anew."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    ArgumentParser(description="The tables of the docs, made anew from the results.").parse_args()
    write()
