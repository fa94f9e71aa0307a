"""The tests of a GPU, counted as they end: a run that is cut off leaves what it has seen.

    python -m benchmarks.gpu_tests --processes 8
    python -m benchmarks.gpu_tests --sanitizer memcheck --select "lone_rows_of_sixteen_bits" tests/attention/test_triton.py
    python -m benchmarks.gpu_tests --sanitizer memcheck --kernels w4a16 --select four_bits tests/model/test_kernels.py

`gpu_tests.json` has, for each file, how many tests passed, failed and were skipped, and which failed and why. Under a
tool of compute-sanitizer (`gpu_memcheck.json`, `gpu_racecheck.json`) it has how many errors the tool found too; the tests then run in one
process, which the tool makes many times slower. The first kernel of a library costs minutes there, since all that was loaded with it
is made ready to be looked at: `--kernels` leaves out what is not ours.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from benchmarks.results import ROOT, Clock, Results, parser

FILES = (
    "tests/engine/test_sampling.py",
    "tests/engine/test_drawing.py",
    "tests/engine/test_on_gpu.py",
    "tests/model/test_on_gpu.py",
    "tests/model/test_kernels.py",
    "tests/model/test_delta.py",
    "tests/model/test_delta_many.py",
    "tests/attention/test_triton.py",
    "tests/attention/test_latents.py",
)
_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_EVERY = 5.0  # seconds between two lines of progress
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


class Counting:
    """A plugin of pytest: counts each test as it ends, and prints what failed at once."""

    def __init__(self, results: Results) -> None:
        self.results, self.told = results, 0.0
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.failed: list[dict[str, str]] = []
        self.slowest: list[tuple[float, str]] = []
        self.num_collected = 0
        self.session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Remember it."""
        self.session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """Of xdist: each process has collected all."""
        self.num_collected = len(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without xdist."""
        self.num_collected = self.num_collected or len(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count it."""
        if report.passed and report.when != "call":
            return
        file = report.nodeid.partition("::")[0]
        self.counts[file][report.outcome] += 1
        self.slowest = sorted([*self.slowest, (report.duration, report.nodeid)])[-8:]
        if report.failed:
            text = report.longreprtext.strip()
            lines = [line for line in text.splitlines() if line.startswith("E ")] or [text[-300:]]
            self.failed.append({"test": report.nodeid, "why": " / ".join(lines[:4])[:400]})
            print(f"FAILED {report.nodeid} ({report.when})\n{text[-1500:]}", flush=True)
        if time.monotonic() - self.told > _EVERY:
            self.tell()
        if self.session is not None and not self.results.clock.allows(0):
            self.session.shouldstop = "the time was over"  # and the tool says what it has found

    def tell(self) -> None:
        """Write the file, and a line of progress."""
        self.told = time.monotonic()
        done = sum(sum(counts.values()) for counts in self.counts.values())
        self.results.put(
            collected=self.num_collected,
            done=done,
            seconds=round(self.results.clock.spent, 1),
            files={file: dict(counts) for file, counts in sorted(self.counts.items())},
            failed=self.failed,
            slowest=[[name, round(seconds, 1)] for seconds, name in reversed(self.slowest)],
        )
        self.results.clock.say(f"{done} of {self.num_collected} tests, {len(self.failed)} failed")


def main(argv: list[str] | None = None) -> int:
    """Run them; the exit status is that of pytest, or of the tool."""
    options = parser(__doc__, minutes=10)
    options.add_argument("tests", nargs="*", default=list(FILES))
    options.add_argument("--processes", type=int, default=8)
    options.add_argument("--select", default="", help="expression of pytest's -k")
    options.add_argument("--sanitizer", default="", choices=("", *_TOOLS))
    options.add_argument(
        "--kernels", default="", help="part of the names of the kernels that the tool looks at"
    )
    options.add_argument("--inner", default="", help="name of the results, inside of a sanitizer")
    arguments = options.parse_args(argv)
    clock = Clock(arguments.minutes)
    if arguments.sanitizer:
        words = argv or sys.argv[1:]
        return _sanitised(arguments.sanitizer, arguments.kernels, arguments.out, clock, words)
    counting = Counting(Results(arguments.inner or "gpu_tests", arguments, clock))
    words = ["-p", "no:benchmark", "-p", "no:cacheprovider", "-q", "--no-header", "--tb=short"]
    words += ["-k", arguments.select] if arguments.select else []
    words += ["-n", str(arguments.processes)] if arguments.processes and not arguments.inner else []
    words += ["-o", "addopts="] if arguments.inner else []
    status = pytest.main([*words, *arguments.tests], plugins=[counting])
    counting.results.put(exit_status=int(status))
    counting.tell()
    return int(status)


def _sanitised(tool: str, kernels: str, out: Path, clock: Clock, argv: list[str]) -> int:
    """The same program under a tool of compute-sanitizer, whose errors are added to its results."""
    name = f"gpu_{tool}"
    place = out / f"{name}.json"
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on the PATH; it comes with CUDA's toolkit")
        return 1
    at = argv.index("--sanitizer")
    inner = [*argv[:at], *argv[at + 2 :], "--inner", name]
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "7", "--print-limit", "20"]
    if kernels:
        command += ["--kernel-name", f"kernel_substring={kernels}"]
    command += [sys.executable, "-m", "benchmarks.gpu_tests", *inner]
    done = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.stdout is not None
    errors = None
    for line in done.stdout:
        print(line, end="", flush=True)
        if (found := _SUMMARY.search(line)) is not None:
            errors = (errors or 0) + int(found[1] or found[2])
    status = done.wait()
    if place.exists():
        content = json.loads(place.read_text(encoding="utf-8"))
        content.update(tool=tool, errors_of_the_tool=errors, exit_status_of_the_tool=status)
        content.update({"kernels": kernels} if kernels else {})
        place.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    clock.say(f"{tool}: exit status {status}, errors {errors}")
    return status


if __name__ == "__main__":
    sys.exit(main())
