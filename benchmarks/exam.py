"""The exam of the bundled model: every method on the same questions, as rows of `manyhands eval`.

    python -m benchmarks.exam --show                                         the commands
    python -m benchmarks.exam --device cuda --processes 12 --out build/exam  sit it, and write the two files of results
    python -m benchmarks.tables                                              the tables of docs/bundled_model.md

Records go to OUT and stay there: a line that is done is not asked again. `exam.json` and `exam-ablations.json` (`summaries.py`)
are written when all lines are there. Lines run beside each other, so their seconds compare nothing; passes and tokens do.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks import summaries
from benchmarks.tables import RESULTS

_BUDGETS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_LISTS = f"--task arithmetic --limit 128 --budgets {','.join(map(str, _BUDGETS))}"
_TEAM_OF_THREE = f"{_LISTS} --method hogwild -n 3"
_SOLO = f"{_LISTS} --method sequential"
METHODS = (
    *(f"{_LISTS} --method hogwild -n {workers}" for workers in (1, 2, 3, 4)),
    f"{_LISTS} --method self_consistency -n 4 --set mode=vote",
    f"{_LISTS} --method self_consistency -n 4",
    _SOLO,
    f"{_LISTS} --method skeleton",
    f"{_LISTS} --method skeleton -n 2",
)
ABLATIONS = (
    _TEAM_OF_THREE,
    f"{_TEAM_OF_THREE} --set check_every=0",
    f"{_TEAM_OF_THREE} --set check_every=64",
    f"{_TEAM_OF_THREE} --set end.reencode=true",
    f"{_TEAM_OF_THREE} --set moves=reencode",
    f"{_TEAM_OF_THREE} --layout contiguous",
    f"{_TEAM_OF_THREE} --layout interleaved",
    _SOLO,
)


def _students(count: int, limit: int) -> tuple[str, ...]:
    """Questions for the students with a GPA in a range, of so many students, in every form."""
    task = f"--task retrieval-{count} --limit {limit} --budgets 2048"
    branches = f"{task} --method branches --set max_branches=32"
    return (
        *(
            f"{branches} --set join={join} --label 'branches {join}'"
            for join in ("keep", "reencode", "stitch")
        ),
        f"{branches} --draft --label 'branches reencode draft'",
        f"{task} --method sequential",
        f"{task} --method sequential --draft",
        f"{task} --method skeleton",
    )


STUDENTS = (*_students(30, 30), *_students(10, 50))  # the longest first
NEEDLES = tuple(
    f"--task needles --budgets 64 --limit {count} --concurrency {count} --method {method} --label '{name}, {count}'"
    for count in (256, 64, 16, 4, 1)
    for method, name in (("shared_prefix", "shared"), ("sequential", "unshared"))
)
MEMORY = 1_000_000  # tokens of a line on a GPU, so that lines fit beside each other
FOLDERS = {"exam": (*METHODS, *NEEDLES, *STUDENTS), "exam-ablations": ABLATIONS}


def commands(out: Path, model: str, device: str) -> list[list[str]]:
    """All lines, as arguments of `manyhands`."""
    where = [*(["--model", model] if model else []), "--device", device]
    where += ["--memory-tokens", str(MEMORY)] if device.startswith("cuda") else []
    return [
        ["eval", "--out", str(out / folder), *shlex.split(words), *where]
        for folder, lines in FOLDERS.items()
        for words in lines
    ]


def sit(command: list[str]) -> tuple[list[str], str]:
    """One line in a process of its own. Returns what it printed last if it failed, or nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "manyhands", *command], capture_output=True, text=True, check=False
    )
    return command, "" if done.returncode == 0 else done.stderr[-500:]


def main() -> None:
    """Sit the exam, so many lines at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/exam"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the two files")
    parser.add_argument("--model", default="", help="the bundled one, if none is named")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the commands and end")
    arguments = parser.parse_args()
    lines = commands(arguments.out, arguments.model, arguments.device)
    if arguments.show:
        print("\n".join(shlex.join(["manyhands", *line]) for line in lines))
        return
    began, failed = time.monotonic(), 0
    with ThreadPoolExecutor(arguments.processes) as pool:
        for done in as_completed([pool.submit(sit, line) for line in lines]):
            command, trouble = done.result()
            failed += bool(trouble)
            print(
                f"{time.monotonic() - began:5.0f} s  {shlex.join(command[3:])} {trouble}",
                flush=True,
            )
    if failed:
        sys.exit(f"{failed} of {len(lines)} lines failed; the same command asks them again")
    for folder in FOLDERS:
        summaries.main(arguments.out / folder, arguments.results / f"{folder}.json")


if __name__ == "__main__":
    main()
