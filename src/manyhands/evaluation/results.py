"""The numbers of a report for other programs: JSON, CSV and Markdown beside the page.

`results.json` of a page `report.html` is `report.json`, and so on. JSON and Markdown have all three tables: the
points of all curves, the paired differences, the costs. CSV has the points with the differences beside them; one of two methods
without a common budget, each at its own end, stands beside the method's last point.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyhands.evaluation.losses import Comparison
from manyhands.evaluation.reach import Reach
from manyhands.evaluation.summary import Summary
from manyhands.schema.whole import write_whole
from manyhands.text.clean import printable

Row = Mapping[str, Any]
POINT = (
    "task",
    "method",
    "budget",
    "value",
    "low",
    "high",
    "samples",
    "passes",
    "tokens",
    "seconds",
)
TABLES = (".json", ".csv", ".md")
PAIRED = ("difference", "difference_low", "difference_high", "wins", "ties", "losses", "sign_test")
_NO_FORMULA = "=+-@\t\r"  # a cell that begins so is a formula for spreadsheets


def write_results(
    page: Path,
    summaries: Sequence[tuple[str, Summary]],
    against: Sequence[tuple[str, Comparison]],
    reached: Sequence[tuple[str, Reach]],
) -> list[Path]:
    """Write the three files beside `page`, each item with its task; returns their paths.

    Values are from 0 to 1, costs those of one sample: forward passes, tokens, seconds. OSError if a file
    cannot be written.
    """
    points = [row for task, summary in summaries for row in _points(task, summary)]
    pairs = [_pair(task, found) for task, found in against]
    costs = [{"task": task, **asdict(found)} for task, found in reached]
    whole = {"schema": 1, "points": points, "differences": pairs, "costs": costs}
    texts = {  # by the suffixes of TABLES
        ".json": json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        ".csv": _csv(points, pairs),
        ".md": "\n".join(
            _markdown(title, rows)
            for title, rows in (("Points", points), ("Differences", pairs), ("Costs", costs))
        ),
    }
    written = []
    for suffix, text in texts.items():
        path = page.with_suffix(suffix)
        # Half a letter, as a label of other bytes than UTF-8 has it, is written as JSON writes it.
        write_whole(path, text.encode("utf-8", "backslashreplace").decode())
        written.append(path)
    return written


def _points(task: str, summary: Summary) -> list[Row]:
    """The curve of one method; without a judgement there is no value."""
    rows: list[Row] = []
    for point in summary.curve:
        value = None if summary.waits_for_judge else point.value
        known = (value.mean, value.low, value.high) if value else (None, None, None)
        costs = (point.passes, point.tokens, point.seconds)
        cells = (task, summary.label, point.budget, *known, point.value.count, *costs)
        rows.append(dict(zip(POINT, cells, strict=True)))
    return rows


def _pair(task: str, found: Comparison) -> Row:
    paired, where = found.difference, found.difference.interval
    numbers = (where.mean, where.low, where.high, paired.wins, paired.ties, paired.losses)
    named = {"task": task, "method": found.ours.label, "baseline": found.theirs.label}
    cells = dict(zip(PAIRED, (*numbers, paired.chance), strict=True))
    return {**named, "budget": found.budget, **cells}


def _csv(points: Sequence[Row], pairs: Sequence[Row]) -> str:
    ends = {(point["task"], point["method"]): point["budget"] for point in points}  # they rise
    beside = {}
    for pair in pairs:
        owner = pair["task"], pair["method"]
        beside[*owner, ends[owner] if pair["budget"] is None else pair["budget"]] = pair
    text = io.StringIO()
    writer = csv.DictWriter(text, (*POINT, *PAIRED), extrasaction="ignore")
    writer.writeheader()
    for point in points:
        pair = beside.get((point["task"], point["method"], point["budget"]), {})
        writer.writerow({name: _cell(value) for name, value in {**pair, **point}.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    is_formula = isinstance(value, str) and value[:1] in _NO_FORMULA and value
    return f"'{value}" if is_formula else value


def _markdown(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"## {title}\n\nThere are none.\n"
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[_shown(value) for value in row.values()] for row in rows]
    return f"## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    plain = printable(str(value)).replace("\n", " ")
    return "".join(f"\\{sign}" if sign in "\\|<[`*_" else sign for sign in plain)
