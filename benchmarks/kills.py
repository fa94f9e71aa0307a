"""Kill what answers a batch on a Ray cluster, and what asks, at random moments; is every answer there once?

    python -m benchmarks.kills               `manyhands batch` and the bundled model
    python -m benchmarks.kills --numbers     the same without a model (`numbers.py`), for a busy machine

Several nodes of Ray in this machine. Three runs over one file: in the first a replica is killed (SIGKILL) ten times,
in the second the program that asks, which is then started again, in the third a node. On one machine the program may
hang on the very node that is killed; then it ends, as with its own machine, and is started again (`restarts`). Each
kill comes at a random moment behind at least one more answer. Then all answers are compared with those of one process without a cluster.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.numbers import CONCURRENCY
from benchmarks.results import Clock, Results, parser

KILLS = 10
MINUTES = 6.0  # of one run: no more kills after them, and the file is finished
KINDS = ("replica", "program", "node")
_COMMAND = [sys.executable, "-m", "manyhands", "batch"]


def write_requests(path: Path, number: int) -> None:
    """Problems of the bundled model's world, every second one drawn and not greedy."""
    chance = random.Random(7)
    with path.open("w") as file:
        for index in range(number):
            terms = " + ".join(str(chance.randint(10, 99)) for _ in range(3))
            said = f"Solve these problems and box the answers in order, separated by commas:\n1. {terms}"
            body = {
                "messages": [{"role": "user", "content": said}],
                "max_tokens": 60,
                "temperature": index % 2,
            }
            line = {"custom_id": f"q{index}", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def texts(path: Path) -> list[tuple[str, str]]:
    """Each answer with its request's name; a torn last line is none."""
    found = []
    for raw in path.read_bytes().split(b"\n") if path.exists() else ():
        with suppress(ValueError):
            line = json.loads(raw)
            if "square" in line:
                said = line["square"]
            else:
                said = line["error"] or line["response"]["body"]["choices"]
            found.append((line["custom_id"], json.dumps(said)))
    return found


class Machines:
    """A cluster in this machine: a head without cores, and nodes of one core."""

    def __init__(self, number: int = 2) -> None:
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # others may be at work on this machine
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": _STORE,
            },
        )
        self.nodes = [self._add() for _ in range(number)]

    def _add(self) -> Any:
        return self.cluster.add_node(num_cpus=1, object_store_memory=_STORE)

    def kill_node(self, chance: random.Random) -> None:
        """One node, its replica with it; another joins."""
        gone = self.nodes.pop(chance.randrange(len(self.nodes)))
        self.cluster.remove_node(gone, allow_graceful=False)
        self.nodes.append(self._add())

    def kill_replica(self, chance: random.Random) -> None:
        """One process of ours, a child of a node."""
        chosen = chance.choice(self.replicas())
        os.kill(chosen, signal.SIGKILL)

    def replicas(self) -> list[int]:
        """Processes of replicas: children of our nodes, by the name that Ray gives them."""
        parents = {info.process.pid for node in self.nodes for info in node.all_processes["raylet"]}
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError, IndexError):
                stat = (folder / "stat").read_text()
                parent = int(stat.rpartition(")")[2].split()[1])
                if parent in parents and b"Replica" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
        return found


_STORE = 80 << 20  # bytes


def killed(
    kind: str,
    machines: Machines,
    command: list[str],
    given: Path,
    answers: Path,
    chance: random.Random,
) -> dict[str, Any]:
    """One file, with ten kills; at how many answers each of them came."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    began, asking = time.monotonic(), start()
    moments: list[int] = []
    total = given.read_text().count("\n")
    last = 0
    kill: dict[str, Callable[[random.Random], None]] = {
        "replica": machines.kill_replica,
        "node": machines.kill_node,
    }
    restarts, said = 0, ""
    ended_with: list[str] = []
    while True:
        if asking.poll() is not None:
            said += (asking.stderr.read() if asking.stderr else b"").decode()
            if asking.returncode == 0 or restarts > KILLS:
                break
            restarts += 1
            if asking.returncode > 0:
                ended_with += [line[:200] for line in said.strip().splitlines()[-1:]]
            asking = start()
        time.sleep(0.05)
        have = len(texts(answers))
        is_early = time.monotonic() - began < 60 * MINUTES
        if is_early and len(moments) < KILLS and last < have < total:
            time.sleep(chance.uniform(0, 1.5))
            if kind == "program":
                asking.kill()
                asking.wait()
                restarts -= 1  # the one that was meant
            elif machines.replicas():
                kill[kind](chance)
            else:
                continue
            last = len(texts(answers))
            moments.append(last)
    return {
        "killed": kind,
        "kills": len(moments),
        "answers_at_each": moments,
        "restarts": restarts,
        "ended_with": ended_with,
        "exit_code": asking.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "told": said.count("is gone"),
    }


def main() -> None:
    options = parser(__doc__, 30)
    options.add_argument("--requests", type=int, default=160)
    options.add_argument("--numbers", action="store_true", help="squares instead of a model")
    options.add_argument("--only", choices=KINDS, help="one of the runs, into a file of its own")
    arguments = options.parse_args()
    clock = Clock(arguments.minutes)
    parts = ["kills"] + ["model"] * (not arguments.numbers)
    name = "_".join(parts + [arguments.only] * bool(arguments.only))
    results = Results(name, arguments, clock)
    results.put(numbers=arguments.numbers, machine_load=os.getloadavg(), concurrency=CONCURRENCY)
    chance = random.Random(11)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if arguments.numbers:
            names = [str(number) for number in range(arguments.requests)]
            (folder / "in").write_text("".join(f"{name}\n" for name in names))
            alone = {name: str(int(name) ** 2) for name in names}
        else:
            write_requests(folder / "in", arguments.requests)
            command = [*_COMMAND, str(folder / "in"), str(folder / "alone")]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            alone = dict(texts(folder / "alone"))
        machines = Machines()
        try:
            for kind in (arguments.only,) if arguments.only else KINDS:
                if not clock.allows(240):
                    results.leave_out(kind, "no time was left")
                    continue
                files = (folder / "in", folder / kind)
                if arguments.numbers:
                    command = [sys.executable, "-m", "benchmarks.numbers", *map(str, files)]
                    command += [machines.cluster.address]
                else:
                    command = [*_COMMAND, *map(str, files), "--ray", machines.cluster.address]
                    command += ["--replicas", "2", "--concurrency", str(CONCURRENCY)]
                line = killed(kind, machines, command, *files, chance)
                found = texts(folder / kind)
                told = dict(found)
                results.add(
                    "kills",
                    **line,
                    requests=len(alone),
                    lost=len(alone.keys() - told.keys()),
                    twice=len(found) - len(told),
                    differ=sum(told[key] != said for key, said in alone.items() if key in told),
                )
        finally:
            machines.cluster.shutdown()


if __name__ == "__main__":
    main()
