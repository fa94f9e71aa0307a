"""Two replicas with one core each against one process with two threads: tokens a second of the same batch.

    python -m benchmarks.spread

The bundled model, `manyhands batch`, in turns, on one machine with two cores or more. Loading is not counted. On a
busy machine the figure says little: two threads that wait for each other in every product lose most. So one process
with one thread stands beside them, and the load before each turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.kills import write_requests
from benchmarks.results import Clock, Results, parser

WAYS = {
    "one process, one thread": ("1", []),
    "one process, two threads": ("2", []),
    "two replicas, one core each": ("1", ["--ray", "local", "--replicas", "2"]),
}


def main() -> None:
    options = parser(__doc__, 10)
    options.add_argument("--requests", type=int, default=200)
    options.add_argument("--turns", type=int, default=2)
    arguments = options.parse_args()
    clock = Clock(arguments.minutes)
    results = Results("spread", arguments, clock)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_requests(folder / "in", arguments.requests)
        for turn in range(arguments.turns):
            for number, (way, (threads, more)) in enumerate(WAYS.items()):
                if not clock.allows(60):
                    results.leave_out(way, "no time was left")
                    continue
                command = [sys.executable, "-m", "manyhands", "batch", folder / "in"]
                command += [folder / f"{turn}-{number}", "--json", *more]
                load = os.getloadavg()[0]
                done = subprocess.run(
                    [str(word) for word in command],
                    env={**os.environ, "OMP_NUM_THREADS": threads, "RAY_worker_niceness": "0"},
                    capture_output=True,
                    check=True,
                )
                said = json.loads(done.stdout[done.stdout.index(b"{") :])
                tokens = said["usage"]["tokens_chosen"]
                results.add(
                    "spread",
                    way=way,
                    turn=turn,
                    answered=said["answered"],
                    tokens=tokens,
                    seconds=said["seconds"],
                    tokens_per_second=round(tokens / said["seconds"], 1),
                    load_before=round(load, 2),
                )


if __name__ == "__main__":
    main()
