"""The host's time for the passes of one live team, by what the pass is: a ratio of two checkouts, without a GPU.

    python -m benchmarks.step_end --workers 16                       this checkout
    python -m benchmarks.step_end --workers 16 --against FOLDER      and another one, in turns with it
    python -m benchmarks.step_end --workers 16 --whole               a whole run of `hogwild`

The device takes no time: recordings do nothing and every row gets token 7, so what is left is the host. Everything
else is that of a GPU: wide recordings, work lists cut for 132 processors, moves, a team whose steps end at random
(`evaluation/life.py`). Three kinds of passes:

    ended       a worker ended its step: all views are new, and a fresh desk is fed its first tokens
    behind      the pass behind it, planned anew
    following   the pass before, one token later

`--whole`: the team is no made-up one but `strategies/hogwild.py` itself, with a shared prompt and the bundled model's
tokenizer, as the commands run it. Its tokens are drawn, so that steps end. What a step costs must not grow with the history:
`late` are the ended passes of the last third, and the result is a file. There a pass is also timed as the device waits for
it, from the tokens before it to its launch (`waited`, and the `longest` of all passes), and of that the part until its step is
asked for (`asked`). With `--cold` the caches hold other memory when the tokens arrive, as on a host whose device works for
milliseconds beside other processes. A call of the engine begins with a step that is asked for, so in `ms` the work of a strategy whose step has
ended is that of the pass before.

Milliseconds of CPU time, medians over passes, then over rounds. Work between the launch of a pass and the wait for its tokens
is left out: the device is busy then. What these milliseconds are worth in a pass only a GPU can say.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.results import ROOT, Clock, Results, parser

KINDS = ("ended", "late", "behind", "following")
_MOST_HEADS = 1024
_STEP = 40  # tokens on average
_WARM_UP = 4  # passes of a whole run that are left out
_CACHES, _LINE = 48 << 20, 64  # bytes


def measured(workers: int, num_passes: int) -> dict[str, Any]:
    """Milliseconds and passes of each kind, of the checkout that is imported."""
    import torch

    from manyhands.engine import loop
    from manyhands.evaluation.life import live, one_team

    torch.set_num_threads(1)
    engine = unlaunched()
    hidden = _leave_out(engine.executor)
    clock = SimpleNamespace(perf_counter=lambda: time.thread_time() - hidden())
    vars(loop)["time"] = clock  # a pass is timed there
    situation = one_team(workers, 1024, _STEP, num_passes)
    ((count, kind),) = situation.crowd
    # Short desks: the first pass has to fit into a recording.
    team = replace(kind, desk=(20, 30), passes=(num_passes + 40,) * 2)
    record = live(engine, replace(situation, crowd=((count, team),)), seed=1)
    passes = [(each.seconds, each.fed, bool(each.counts.followed)) for each in record.passes]
    return _by_kind(passes, workers)


def _by_kind(passes: Sequence[tuple[float, int, bool]], workers: int) -> dict[str, Any]:
    """Passes and milliseconds of each kind, of seconds, tokens fed and whether the pass followed."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number, (seconds, fed, followed) in enumerate(passes):
        kind = "ended" if fed > workers else "following" if followed else "behind"
        times[kind].append(1e3 * seconds)
        if kind == "ended" and 3 * number >= 2 * len(passes):
            times["late"].append(1e3 * seconds)
    return {
        kind: {
            "passes": len(found),
            "ms": round(statistics.median(found or [0.0]), 4),
            "longest": round(max(found, default=0.0), 4),
        }
        for kind, found in times.items()
    }


def measured_whole(workers: int, num_passes: int, *, is_cold: bool = False) -> dict[str, Any]:
    """The same of a run of `hogwild` over a shared prompt. `is_cold`: caches hold other memory when tokens arrive."""
    import torch
    from transformers import AutoTokenizer

    from manyhands import bundled
    from manyhands.prompts.load import Prompts
    from manyhands.strategies.hogwild import hogwild
    from manyhands.strategies.prompt_sharing import share_prompt
    from manyhands.strategies.settings import EndSettings, TeamSettings
    from manyhands.text import Text

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(bundled.path())
    text, engine = Text(tokenizer), unlaunched(len(tokenizer))
    _write(engine.executor, text, random.Random(1))
    if is_cold:
        _go_cold(engine.executor)
    hidden = _leave_out(engine.executor)
    end = EndSettings(finisher=False, reply=False)
    settings = TeamSettings(workers=workers, budget=num_passes, check_every=0, end=end)
    strategy = hogwild("What is 2 + 3?", text, settings, Prompts().team)
    run = engine.submit(share_prompt(strategy, engine.prefixes))
    passes: list[tuple[float, int, bool]] = []
    waits: dict[str, list[tuple[float, int, bool]]] = {"waited": [], "asked": []}
    marks = _marks(engine)
    left = time.thread_time()  # the last call of the engine
    gc.freeze()  # as the commands do
    while not run.done:
        usage, counts = engine.usage, engine.pass_counts
        arrived, hidden_before, began = marks["arrived"], hidden(), time.thread_time()
        engine.step()
        ended = time.thread_time()
        cost, made = engine.usage - usage, engine.pass_counts - counts
        what = cost.tokens_fed, made.followed > 0
        passes.append((ended - began - hidden() + hidden_before, *what))
        # Counts are read between two calls, and no device waits for that.
        between, left = began - left, ended
        waits["waited"].append((marks["launched"] - arrived - between, *what))
        waits["asked"].append((marks["asked"] - arrived - between, *what))
    run.result()
    found = _by_kind(passes[_WARM_UP:], workers)
    for name, times in waits.items():
        for kind, each in _by_kind(times[_WARM_UP:], workers).items():
            found[kind][name] = each["ms"]
            if name == "waited":
                found[kind]["longest"] = each["longest"]
    return found


def _marks(engine: Any) -> dict[str, float]:
    """Seconds of CPU time when tokens arrived last, when a step was asked for and when its pass was launched."""
    of_graph = _graph_class()
    marks = {"arrived": 0.0, "asked": 0.0, "launched": 0.0}

    def arriving(*chosen: Any, wait: Callable[..., Any] = engine.executor._arrived) -> Any:
        tokens = wait(*chosen)
        marks["arrived"] = time.thread_time()
        return tokens

    def launching(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            marks["launched"] = 0.0
            found = work(*arguments, **named)
            marks["launched"] = marks["launched"] or time.thread_time()
            return found

        return run

    def told(graph: Any, plan: Any, tell: Callable[..., Any] = of_graph._outcome) -> Any:
        marks["launched"] = marks["launched"] or time.thread_time()  # the device is at work
        return tell(graph, plan)

    def asked(step: Any, make: Callable[..., Any] = engine._pass) -> Any:
        marks["asked"] = time.thread_time()
        return make(step)

    engine._pass = asked
    engine.executor._arrived = arriving
    of_graph._outcome = told
    passes = engine.executor.passes
    for name in ("run", "finish_head"):
        if hasattr(passes, name):  # an older checkout has no heads
            setattr(passes, name, launching(getattr(passes, name)))
    return marks


def _go_cold(executor: Any) -> None:
    """Write to as much other memory as caches hold, while the device works."""
    import numpy as np

    other = np.zeros(_CACHES, dtype=np.uint8)

    def meanwhile(work: Callable[[], None] = executor.passes.meanwhile) -> None:
        other[::_LINE] += 1
        work()

    executor.passes.meanwhile = meanwhile


def _graph_class() -> Any:
    """The class of recorded passes. A checkout before 2026-11-30 has it in one file with the choice among them."""
    if importlib.util.find_spec("manyhands.engine.graph") is None:
        return vars(importlib.import_module("manyhands.engine.graphs"))["_Graph"]
    return importlib.import_module("manyhands.engine.graph").Graph


def _executor_module() -> Any:
    """The module of the executor. A checkout before 2026-11-30 has it in one file with the contract."""
    name = "manyhands.engine.local_executor"
    has_module = importlib.util.find_spec(name) is not None
    return importlib.import_module(name if has_module else "manyhands.engine.executor")


def _write(executor: Any, text: Any, rng: random.Random) -> None:
    """Have each row write words, and now and then the end of a step, whatever the network says."""
    executing = _executor_module()
    (word, stop, line) = (text.encode(piece)[-1] for piece in (" a", ".", "\n\n"))
    choose, ending = vars(executing)["choose"], dict[int, bool]()

    def drawn(logits: Any, choices: Any, *others: Any, **named: Any) -> Any:
        chosen = choose(logits, choices, *others, **named)
        tokens = []
        for row in range(len(choices)):
            was_ending, ending[row] = ending.get(row, False), rng.random() < 1 / _STEP
            ending[row] &= not was_ending
            tokens.append(line if was_ending else stop if ending[row] else word)
        return SimpleNamespace(
            tokens=lambda: tuple(tokens),
            on_device=chosen.on_device,
            rows=None,
            have_landed=lambda: False,
            are_on_device=lambda: True,
        )

    vars(executing)["choose"] = drawn


def unlaunched(
    vocab_size: int = 256, *, heads: tuple[int, int] = (32, 8), latents: bool = False
) -> Any:
    """An engine with recordings that do nothing, whose work is cut as for so many heads of queries and of keys on an H200.

    `latents`: as for latents, of which so many query heads read parts.
    """
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from benchmarks.situations import PAGE_SIZE
    from manyhands.attention.triton_backend import TritonBackend
    from manyhands.attention.work import Tiling
    from manyhands.engine import graphs
    from manyhands.engine.engine import Engine
    from manyhands.engine.passes import Late, PassOutcome
    from manyhands.engine.recorder import Recording
    from manyhands.model.adapter import ModelAdapter
    from manyhands.model.settings import ModelSettings

    group = heads[0] // heads[1]
    config = Qwen3Config(
        vocab_size=vocab_size,
        max_position_embeddings=40960,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        head_dim=8,
        num_attention_heads=group,
        num_key_value_heads=1,
    )
    adapter = ModelAdapter(AutoModelForCausalLM.from_config(config).eval())
    # The kernels take its place below; asked for here, they would want the interpreter, which a machine with a GPU has not.
    settings = ModelSettings(backend="torch", memory_tokens=400_000)
    executor = _executor_module().LocalExecutor(adapter, settings)
    facts = executor.facts  # pages as the kernels have them, and as many tokens
    num_pages = facts.num_pages * facts.page_size // PAGE_SIZE
    executor.facts = replace(facts, page_size=PAGE_SIZE, num_pages=num_pages)
    tiling = Tiling(group, num_kv_heads=heads[1], num_processors=132, large_rows=64)
    if latents:
        # A checkout before 2026-11-30 has no such module.
        has_fitting = importlib.util.find_spec("manyhands.attention.fitting") is not None
        fits = "fitting" if has_fitting else "triton_backend"
        tiling = importlib.import_module(f"manyhands.attention.{fits}").of_latents(tiling)
    executor.backend = TritonBackend(adapter.layers, torch.float32, adapter.device, tiling)
    executor.backend.move = lambda stack, moved: None
    logits = torch.zeros(_MOST_HEADS, vocab_size)
    tokens, sound = torch.full((_MOST_HEADS,), 7), torch.ones(_MOST_HEADS, dtype=torch.int64)
    is_older = not hasattr(
        Late, "mark"
    )  # a checkout before 2026-11-27: the state stood behind the tokens
    greedy = torch.stack((tokens, sound)) if is_older else torch.cat((sound[:1], tokens))

    class Nothing:
        """A recorder whose recordings do nothing."""

        def host_buffer(self, rows: int, size: int) -> Any:
            return torch.zeros(rows, size, dtype=torch.int32)

        def mark(self) -> Any:
            return SimpleNamespace(record=_nothing, synchronize=_nothing, query=lambda: False)

        def record(self, work: Any) -> Recording:
            older: Any = Recording  # of a checkout before c4b72d37: results in one, and before 2026-11-26 a head and a tail
            parts: tuple[Any, ...] = (_nothing, _nothing)
            if "parts" in Recording._fields:
                parts = ((_nothing,) * 4,)
            results: tuple[Any, ...] = (logits, greedy)
            if "lent" not in Recording._fields:
                results = (results,)
            made: Recording = older(*parts, *results)
            return made

        def recover(self) -> None:
            """Nothing is broken."""

    class Unlaunched(graphs.GraphedPasses):
        """A pass that is not recorded does nothing either."""

        def _launched(self, plan: Any, *_: Any) -> PassOutcome:
            self.counts.eager += 1
            count = len(plan.heads)
            likeliest = torch.cat((tokens[:count], sound[:1])) if is_older else greedy[: 1 + count]
            return PassOutcome(logits[:count], likeliest)

    executor.passes = Unlaunched(adapter, executor.memory, executor.backend, Nothing())
    # They would be tried out by the interpreter. A checkout before 2026-11-27 has no such module.
    has_module = importlib.util.find_spec("manyhands.engine.capacities") is not None
    ahead: Any = importlib.import_module("manyhands.engine.capacities") if has_module else graphs
    ahead.uncommon_capacities = lambda tiling: []
    engine = Engine(executor, None, settings)
    engine.get_ready()
    return engine


def _nothing() -> None:
    """The device's part."""


def _leave_out(executor: Any) -> Callable[[], float]:
    """The seconds spent between the launch of a pass and the wait for its tokens, so far."""
    executing = _executor_module()
    spent = [0.0]

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return work(*arguments)
            finally:
                spent[0] += time.thread_time() - began

        return run

    executor._begin = timed(executor._begin)
    if hasattr(executor.passes, "meanwhile"):  # an older checkout has none
        executor.passes.meanwhile = timed(executor.passes.meanwhile)
    if hasattr(executing, "collect_if_near"):
        executing.collect_if_near = timed(executing.collect_if_near)
    return lambda: spent[0]


def measured_apart(
    checkout: Path, workers: int, num_passes: int, *, is_whole: bool = False, is_cold: bool = False
) -> dict[str, Any]:
    """The same in a process of its own, with the code of a checkout."""
    asked = f"measured_whole({workers}, {num_passes}, is_cold={is_cold})"
    asked = asked if is_whole else f"measured({workers}, {num_passes})"
    found: dict[str, Any] = json.loads(
        said_by(checkout, f"from benchmarks import step_end as b; b.print_measured(b.{asked})")
    )
    return found


def said_by(checkout: Path, call: str) -> str:
    """The output of a line of Python in a process of its own, with the code of a checkout and these benchmarks."""
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
    return done.stdout


def print_measured(found: dict[str, Any]) -> None:
    """The result, as JSON, for the process that waits for it."""
    print(json.dumps(found))


def main(words: list[str] | None = None) -> None:
    """Measure, and print a line for each kind of pass."""
    options = parser(__doc__, minutes=15.0)
    options.add_argument("--workers", type=int, default=16)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--against", type=Path, help="another checkout, measured in turns")
    options.add_argument("--whole", action="store_true", help="a whole run of hogwild")
    options.add_argument(
        "--cold", action="store_true", help="of a whole run: caches go cold while the device works"
    )
    arguments = options.parse_args(words)
    passes = 1500 if arguments.whole else 200
    rounds, passes = (1, 12) if arguments.tiny else (arguments.rounds, passes)
    results = None
    if arguments.whole:
        results = Results(
            f"step_end_whole_{arguments.workers}{'_cold' * arguments.cold}",
            arguments,
            Clock(arguments.minutes),
        )
        results.put(workers=arguments.workers, passes=passes, rounds=rounds)
    checkouts = {"after": ROOT}
    if arguments.against is not None:
        checkouts["before"] = arguments.against.resolve()
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in checkouts}
    for number in range(rounds):
        for side in sorted(checkouts, reverse=number % 2 == 0):
            found[side].append(
                measured_apart(
                    checkouts[side],
                    arguments.workers,
                    passes,
                    is_whole=arguments.whole,
                    is_cold=arguments.cold,
                )
            )
    for kind in KINDS:
        ms = {
            side: statistics.median(each[kind]["ms"] for each in same)
            for side, same in found.items()
        }
        counts = {side: same[0][kind]["passes"] for side, same in found.items()}
        ratio = f", ratio {ms['after'] / ms['before']:.2f}" if ms.get("before") else ""
        waits = {
            name: {
                side: statistics.median(each[kind][name] for each in same)
                for side, same in found.items()
            }
            for name in (("waited", "asked", "longest") if arguments.whole else ())
        }
        print(f"{kind}: ms {ms}, passes {counts}{ratio} {waits or ''}")
        if results is not None:
            results.add("kinds", name=kind, ms=ms, passes=counts, **waits)


if __name__ == "__main__":
    main()
