"""`manyhands bench`: how fast a user's own model writes on the user's own machine.

Milliseconds per forward pass and tokens per second for teams of several sizes over histories of several
lengths, and beside them a floor: weights, keys and values read once at the speed of a copy. What is timed
and how: `evaluation/bench.py`. With `--life`, the same of runs as they live (`evaluation/life.py`): steps end, desks
differ, runs come and go and bring prompts; how long the middle pass takes, and how long the worst. Runs on anything,
the bundled model on a CPU included.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from manyhands.cli.loading import get_ready, load_wordless_engine, name_of, place_facts
from manyhands.cli.options import LIFE_PASSES, LOCKSTEP_PASSES, BenchOptions
from manyhands.cli.output import Notes, say, say_json
from manyhands.errors import ContextTooLong, OutOfMemory, counted

if TYPE_CHECKING:
    from manyhands.engine.engine import Engine
    from manyhands.evaluation.bench import Timing

_LENGTHS = (256, 1024, 4096, 16384)
_WARM_UP = 3
_HEAD = "history  workers  ms per pass  (10 % .. 90 %)      tokens/s  floor, ms  x floor"
_LIFE_HEAD = (
    f"{'situation':32}{'p50':>9}{'p90':>9}{'p99':>9}{'worst':>9}{'floor':>9}  tokens/s  passes"
)
# Columns about the passes: how they were run, those that had a prompt beside what was written, what they cost.
_COUNTED = (
    "followed",
    "replayed",
    "eager",
    "prompts",
    "recorded",
    "compiled",
    "planned_ahead",
    "in_vain",
    "dropped",
    "moves",
)


def bench(options: BenchOptions) -> None:
    """Do what the command says; see `manyhands bench --help`."""
    if options.life:
        _life(options)
        return
    passes = options.passes or LOCKSTEP_PASSES
    workers = tuple(sorted(set(options.workers)))
    wanted = None if options.lengths is None else tuple(sorted(set(options.lengths)))
    notes = Notes()
    model = name_of(options.model)
    engine = load_wordless_engine(model, options, notes)
    from manyhands.evaluation.bench import bench  # imports torch: a wrong model is told before

    lengths = _fitting(engine, wanted, max(workers), options)
    if not options.json:
        say(f"{_what(model, engine, options)}; {counted(passes, 'pass')} a number, medians")
        say(_HEAD)
    timings: list[Timing] = []
    for timing in bench(
        engine, workers, lengths, desk=options.desk, passes=passes, warm_up=_WARM_UP
    ):
        timings.append(timing)
        if not options.json:
            say(_line(timing))
    if options.json:
        facts = {"desk": options.desk, "passes": passes}
        found = {**facts, "timings": [asdict(timing) for timing in timings]}
        say_json(_report(model, engine, options, found, notes))


def _life(options: BenchOptions) -> None:
    """Runs as they live, one situation after another."""
    passes = options.passes or LIFE_PASSES
    notes = Notes()
    model = name_of(options.model)
    engine = load_wordless_engine(model, options, notes)
    from manyhands.evaluation.life import at_best, everyday, live  # imports torch

    if not options.json:
        say(f"{_what(model, engine, options)}; {counted(passes, 'pass')} each, milliseconds")
        say(_LIFE_HEAD)
    get_ready(engine)
    floor_of = at_best(engine)
    found: list[dict[str, Any]] = []
    for situation in everyday(passes, small=not engine.facts.is_on_gpu):
        found.append({"name": situation.name, **live(engine, situation, floor_of).facts()})
        if not options.json:
            say(_life_line(found[-1]))
    if options.json:
        say_json(_report(model, engine, options, {"passes": passes, "life": found}, notes))


def _fitting(
    engine: Engine, wanted: tuple[int, ...] | None, workers: int, options: BenchOptions
) -> tuple[int, ...]:
    """The lengths to time: those asked for, which must fit, or those of our own that do."""
    from manyhands.evaluation.bench import longest_histories

    passes = (options.passes or LOCKSTEP_PASSES) + _WARM_UP
    team = (workers, options.desk, passes)
    reached, stored = longest_histories(engine, *team)
    longest = min(reached, stored)
    positions, held = engine.facts.max_positions, engine.pool.num_slots
    grown = f"{workers} with {counted(options.desk, 'token')} on every desk and {counted(passes, 'pass')}"
    if reached < 1:
        raise ContextTooLong(
            f"a team of {grown} does not fit the model's {positions} positions",
            hint="ask for fewer workers, a smaller --desk, or fewer --passes",
        )
    if longest < 1:
        raise OutOfMemory(
            f"a team of {grown} does not fit the memory, which holds {held} tokens",
            hint="ask for more --memory-tokens, fewer workers, a smaller --desk, or fewer --passes",
        )
    if wanted is None:
        return tuple(length for length in _LENGTHS if length <= longest) or (longest,)
    asked = f"a history of {max(wanted)} tokens is asked for; with this team at most"
    if max(wanted) > reached:
        raise ContextTooLong(
            f"{asked} {reached} fit the model's {positions} positions",
            hint="ask for shorter --lengths, or fewer --workers",
        )
    if max(wanted) > longest:
        raise OutOfMemory(
            f"{asked} {longest} fit the memory, which holds {held} tokens",
            hint="ask for more --memory-tokens, shorter --lengths, or fewer --workers",
        )
    return wanted


def _what(model: str, engine: Engine, options: BenchOptions) -> str:
    facts = place_facts(engine, options)
    return f"{model} on {facts['device']}, {facts['dtype']}, attention: {engine.facts.backend}"


def _line(timing: Timing) -> str:
    spread = f"({timing.ms_p10:.2f} .. {timing.ms_p90:.2f})"
    floor = timing.floor_ms or 0.0
    times = f"{timing.ms / floor:7.2f}" if floor else ""
    return (
        f"{timing.history:7}  {timing.workers:7}  {timing.ms:11.2f}  {spread:18}  "
        f"{timing.tokens_per_second:8.1f}  {floor:9.2f}  {times}"
    )


def _life_line(facts: dict[str, Any]) -> str:
    times = [facts[name] for name in ("p50_ms", "p90_ms", "p99_ms", "worst_ms", "floor_ms")]
    counts = [f"{facts[name]} {name}" for name in _COUNTED if facts[name]]
    return (
        f"{facts['name']:32}{''.join(f'{ms:9.2f}' for ms in times)}"
        f"{facts['tokens_per_second']:10.0f}  {', '.join(counts)}"
    )


def _report(
    model: str, engine: Engine, options: BenchOptions, found: dict[str, Any], notes: Notes
) -> dict[str, Any]:
    return {
        "model": model,
        **place_facts(engine, options),
        "backend": engine.facts.backend,
        **found,
        "warnings": notes.texts,
    }
