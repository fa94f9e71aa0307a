"""An exam's records in small: one line of numbers for each file, for the tables of the docs.

    manyhands eval ... --out build/exam
    python -m benchmarks.summaries build/exam benchmarks/results/exam.json

Records are many megabytes and stay where they were made. A line holds the same numbers as the report.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyhands.evaluation.record import Results, read_results, result_files
from manyhands.evaluation.summary import Summary

Line = dict[str, Any]


def line(results: Results) -> Line:
    """One method on one task: its curve with intervals of 95 %, and the means of what it took."""
    summary, header = Summary.of(results), results.header
    return {
        "task": header.task,
        "label": summary.label,
        "method": header.method,
        "settings": header.settings,
        "fingerprint": header.fingerprint,
        "device": header.device,
        "versions": header.versions,
        "date": header.date,
        "command": header.command,
        "num_records": len(summary.records),
        "num_failures": len(summary.failures),
        "concurrency": header.concurrency,
        "curve": [asdict(point) for point in summary.curve],
        "passes": summary.passes,
        "extra_passes": summary.extra_passes,
        "tokens": summary.tokens,
        "seconds": summary.seconds,
        "tokens_per_second": summary.tokens_per_second,
        "duration": summary.duration,
        "kv_bytes": summary.memory("kv_bytes"),
        "endings": dict(summary.endings),
    }


def main(folder: Path, out: Path) -> None:
    """All records under a folder, in the order of their files; one line of JSON for each."""
    lines = [json.dumps(line(read_results(file))) for file in result_files(folder)]
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    parser = ArgumentParser(
        description="An exam's records in small: one line of numbers for each file."
    )
    parser.add_argument("folder", type=Path, help="the exam's records")
    parser.add_argument("out", type=Path, help="the file of JSON to write")
    main(**vars(parser.parse_args()))
