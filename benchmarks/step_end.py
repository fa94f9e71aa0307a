"""The host's time for the passes of one live team, by what the pass is: a ratio of two checkouts, without a GPU.

    python -m benchmarks.step_end --workers 16                       this checkout
    python -m benchmarks.step_end --workers 16 --against FOLDER      and another one, in turns with it

The device takes no time: recordings do nothing and every row gets token 7, so what is left is the host. Everything
else is that of a GPU: wide recordings, work lists cut for 132 processors, moves, a team whose steps end at random
(`evaluation/life.py`). Three kinds of passes:

    ended       a worker ended its step: all views are new, and a fresh desk is fed its first tokens
    behind      the pass behind it, planned anew
    following   the pass before, one token later

Milliseconds of CPU time, medians over passes, then over rounds. Work between the launch of a pass and the wait for its tokens
is left out: the device is busy then. What these milliseconds are worth in a pass only a GPU can say.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.results import ROOT, parser

KINDS = ("ended", "behind", "following")
_MOST_HEADS = 1024
_VOCABULARY = 256


def measured(workers: int, num_passes: int) -> dict[str, Any]:
    """Milliseconds and passes of each kind, of the checkout that is imported."""
    import torch

    from manyhands.engine import loop
    from manyhands.evaluation.life import live, one_team

    torch.set_num_threads(1)
    engine = unlaunched()
    hidden = _leave_out(engine.executor)
    clock = SimpleNamespace(perf_counter=lambda: time.thread_time() - hidden())
    loop.time = clock  # type: ignore[assignment]  # a pass is timed there
    situation = one_team(workers, 1024, 40, num_passes)
    ((count, kind),) = situation.crowd
    # Short desks: the first pass has to fit into a recording.
    team = replace(kind, desk=(20, 30), passes=(num_passes + 40,) * 2)
    record = live(engine, replace(situation, crowd=((count, team),)), seed=1)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for each in record.passes:
        is_behind = "following" if each.counts.followed else "behind"
        times["ended" if each.fed > workers else is_behind].append(1e3 * each.seconds)
    return {
        kind: {"passes": len(found), "ms": round(statistics.median(found or [0.0]), 4)}
        for kind, found in times.items()
    }


def unlaunched() -> Any:
    """An engine with recordings that do nothing."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from manyhands.attention.triton_backend import TritonBackend
    from manyhands.attention.work import Tiling
    from manyhands.engine import graphs
    from manyhands.engine.engine import Engine
    from manyhands.engine.executor import LocalExecutor
    from manyhands.engine.passes import PassOutcome
    from manyhands.engine.recorder import Recording
    from manyhands.model.adapter import ModelAdapter
    from manyhands.model.settings import ModelSettings

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1}
    config = Qwen3Config(vocab_size=_VOCABULARY, max_position_embeddings=40960, **sizes, **heads)
    adapter = ModelAdapter(AutoModelForCausalLM.from_config(config).eval())
    settings = ModelSettings(backend="triton", memory_tokens=400_000)
    executor = LocalExecutor(adapter, settings)
    tiling = Tiling(4, num_kv_heads=8, num_processors=132)
    executor.backend = TritonBackend(adapter.layers, torch.float32, adapter.device, tiling)
    executor.backend.move = lambda stack, moved: None  # type: ignore[method-assign]
    logits = torch.zeros(_MOST_HEADS, _VOCABULARY)
    greedy = torch.stack(
        (torch.full((_MOST_HEADS,), 7), torch.ones(_MOST_HEADS, dtype=torch.int64))
    )

    class Nothing:
        """A recorder whose recordings do nothing."""

        def host_buffer(self, rows: int, size: int) -> Any:
            return torch.zeros(rows, size, dtype=torch.int32)

        def mark(self) -> Any:
            return SimpleNamespace(record=_nothing, synchronize=_nothing)

        def record(self, work: Any) -> Recording:
            return Recording(_nothing, _nothing, (logits, greedy))

        def recover(self) -> None:
            """Nothing is broken."""

    class Unlaunched(graphs.GraphedPasses):
        """A pass that is not recorded does nothing either."""

        def _launched(self, plan: Any, *_: Any) -> PassOutcome:
            self.counts.eager += 1
            count = len(plan.heads)
            tokens = torch.cat((greedy[0, :count], greedy[1, :1]))
            return PassOutcome(logits[:count], tokens)

    executor.passes = Unlaunched(adapter, executor.memory, executor.backend, Nothing())
    graphs._uncommon = lambda tiling: []  # they would be tried out by the interpreter
    engine = Engine(executor, None, settings)
    engine.get_ready()
    return engine


def _nothing() -> None:
    """The device's part."""


def _leave_out(executor: Any) -> Callable[[], float]:
    """The seconds spent between the launch of a pass and the wait for its tokens, so far."""
    begin, spent = executor._begin, [0.0]

    def timed(*arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return begin(*arguments)
        finally:
            spent[0] += time.thread_time() - began

    executor._begin = timed
    return lambda: spent[0]


def measured_apart(checkout: Path, workers: int, num_passes: int) -> dict[str, Any]:
    """The same in a process of its own, with the code of a checkout."""
    call = f"from benchmarks import step_end; step_end.print_measured({workers}, {num_passes})"
    done = subprocess.run(
        [sys.executable, "-c", call],
        env={
            **os.environ,
            "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{ROOT}",
            "TRITON_INTERPRET": "1",
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def print_measured(workers: int, num_passes: int) -> None:
    """`measured`, as JSON, for the process that waits for it."""
    print(json.dumps(measured(workers, num_passes)))


def main(words: list[str] | None = None) -> None:
    """Measure, and print a line for each kind of pass."""
    options = parser(__doc__, minutes=15.0)
    options.add_argument("--workers", type=int, default=16)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--against", type=Path, help="another checkout, measured in turns")
    arguments = options.parse_args(words)
    rounds, passes = (1, 12) if arguments.tiny else (arguments.rounds, 200)
    checkouts = {"after": ROOT}
    if arguments.against is not None:
        checkouts["before"] = arguments.against.resolve()
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in checkouts}
    for number in range(rounds):
        for side in sorted(checkouts, reverse=number % 2 == 0):
            found[side].append(measured_apart(checkouts[side], arguments.workers, passes))
    for kind in KINDS:
        ms = {
            side: statistics.median(each[kind]["ms"] for each in same)
            for side, same in found.items()
        }
        counts = {side: same[0][kind]["passes"] for side, same in found.items()}
        ratio = f", ratio {ms['after'] / ms['before']:.2f}" if ms.get("before") else ""
        print(f"{kind}: ms {ms}, passes {counts}{ratio}")


if __name__ == "__main__":
    main()
