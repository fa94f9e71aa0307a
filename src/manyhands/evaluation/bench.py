"""How fast a team writes on this machine, and how fast it could be at best.

The team sits as a team of `strategies/hogwild.py` does (combined layout), over a history of any length.
The history is made up: random keys and values, written straight to memory. A real prefill would take
longer than the measurement and change nothing in it, for a decode step does not care what it reads.

Timed is the time that a user waits: `engine.step()` with its strategy, planning, network and choice
of tokens. Beside it stands a floor: the network's weights, and every key and value in use, read once
each at the speed at which this machine copies memory (Hogwild! Inference, section 4.4 and table 1, asks
the same question of the same numbers: workers against tokens already in the cache).
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

import torch

from manyhands.cache.block import Block
from manyhands.cache.layouts import Cast, combined
from manyhands.cache.step import GREEDY, Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.loop import run_passes
from manyhands.engine.rebuild import places_of
from manyhands.errors import UnsupportedModel
from manyhands.strategies.base import Sent, Strategy

HEADER_TOKENS, MARKER_TOKENS = 8, 4  # about what the words of `prompts/hogwild.py` come to
_COPIED_BYTES = {"cpu": 1 << 26, "cuda": 1 << 30}


@dataclass(frozen=True)
class Timing:
    """One team on one history: milliseconds per forward pass, and what follows from them."""

    workers: int
    history: int  # tokens that all workers share
    in_use: int  # tokens of all blocks together: what one pass reads at least
    ms: float  # median
    ms_mean: float
    ms_p10: float
    ms_p90: float
    tokens_per_second: float  # of all workers together
    floor_ms: float | None = None


def fill(engine: Engine, block: Block, num_tokens: int, *, seed: int) -> Block:
    """Append `num_tokens` made-up tokens to `block`; OutOfMemory if they do not fit.

    Raises UnsupportedModel for a network that keeps states of texts: none can be made up.
    """
    if engine.facts.num_states:
        raise UnsupportedModel(
            "layers of this network keep one state of a text, and a bench makes histories up that were never fed",
            hint="time a real run: manyhands solve --method sequential",
        )
    engine.pool.reserve([(block, num_tokens)])
    engine.pool.make_moves(engine.executor.move)
    start, stop = block.num_tokens, block.num_tokens + num_tokens
    engine.executor.make_up(places_of(block, start, stop, engine.pool), seed)
    block.tokens.extend(index % engine.facts.vocab_size for index in range(num_tokens))
    return block


def seat(engine: Engine, history: Block, workers: int, desk: int, *, seed: int = 1) -> Cast:
    """A team in the middle of its work: every desk holds `desk` made-up tokens."""

    def filled(block: Block, num_tokens: int, at: int) -> Block:
        return fill(engine, block, num_tokens, seed=seed * 100 + at) if num_tokens else block

    marker = filled(Block("marker"), MARKER_TOKENS, 2).freeze()
    desks = [Block(f"desk {worker}") for worker in range(workers)]
    for each in desks[1:] if workers > 2 else ():  # as the planner does for desks that are new
        engine.pool.make_front(marker)
        engine.pool.give_front(each, marker)
    return Cast(
        prompt=history,
        others_header=filled(Block("others"), HEADER_TOKENS, 0).freeze(),
        own_header=filled(Block("own"), HEADER_TOKENS, 1).freeze(),
        marker=marker,
        desks=tuple(filled(each, desk, 3 + worker) for worker, each in enumerate(desks)),
    )


def views_of(cast: Cast) -> list[View]:
    """The view of every worker."""
    return [combined(cast, worker) for worker in range(len(cast.desks))]


def tokens_in_use(views: Sequence[View]) -> int:
    """Tokens of all blocks that these views read, each block counted once."""
    return sum(block.num_tokens for block in {b for view in views for b in view.blocks})


def writing(views: Sequence[View], choice: Choice = GREEDY) -> Strategy:
    """A strategy that goes on for ever: one token a row, greedily if nothing else is asked for."""
    tokens: Sent = (0,) * len(views)
    rng = random.Random(0)
    while True:
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        rows = []
        for view, token in zip(views, tokens, strict=True):
            drawn = choice if choice is GREEDY else replace(choice, draw=rng.random())
            rows.append(Row(view, (token,), drawn))
        tokens = yield Step(rows)


def time_passes(
    engine: Engine,
    views: Sequence[View],
    *,
    passes: int,
    warm_up: int = 3,
    choice: Choice = GREEDY,
) -> list[float]:
    """Seconds of each of `passes` decode steps, after some that are not counted."""
    seconds = []
    with closing(run_passes(engine, [(None, writing(views, choice))])) as made:
        for each in islice(made, 1 + warm_up + passes):  # the first has no pass before it
            ((_, run),) = each.runs
            if run.done:
                run.result()  # it writes without end, so this raises what went wrong
            seconds.append(each.seconds)  # it waits for its tokens, so the device is done too
    return seconds[1 + warm_up :]


def timing(
    seconds: Sequence[float], workers: int, history: int, in_use: int, floor_ms: float | None = None
) -> Timing:
    """The account of the passes of one team."""
    ordered = sorted(1e3 * second for second in seconds)
    mean = statistics.fmean(ordered)
    return Timing(
        workers=workers,
        history=history,
        in_use=in_use,
        ms=round(statistics.median(ordered), 4),
        ms_mean=round(mean, 4),
        ms_p10=round(ordered[len(ordered) // 10], 4),
        ms_p90=round(ordered[(len(ordered) * 9) // 10], 4),
        tokens_per_second=round(1e3 * workers / mean, 2),
        floor_ms=None if floor_ms is None else round(floor_ms, 4),
    )


def bench(
    engine: Engine,
    workers: Sequence[int],
    lengths: Sequence[int],
    *,
    desk: int = 32,
    passes: int = 16,
    warm_up: int = 3,
) -> Iterator[Timing]:
    """Time teams of these sizes over histories of these lengths, the shortest history first."""
    facts = engine.facts
    speed = copy_bandwidth(torch.device(facts.device))

    # One team at a time: what a function has seated is freed when it returns.
    def time_team(history: Block, count: int) -> Timing:
        views = views_of(seat(engine, history, count, desk))
        in_use = tokens_in_use(views)
        floor_ms = 1e3 * (facts.weight_bytes + in_use * facts.token_bytes) / speed
        seconds = time_passes(engine, views, passes=passes, warm_up=warm_up)
        return timing(seconds, count, history.num_tokens, in_use, floor_ms)

    def time_teams(length: int) -> Iterator[Timing]:
        history = fill(engine, Block("history"), length, seed=0).freeze()
        for count in workers:
            yield time_team(history, count)

    for length in sorted(lengths):
        yield from time_teams(length)


def longest_histories(engine: Engine, workers: int, desk: int, passes: int) -> tuple[int, int]:
    """The longest history on which `bench` can time this team, by positions and by memory."""
    grown = workers * (desk + passes) + 2 * HEADER_TOKENS + workers * MARKER_TOKENS
    pages = engine.pool.page_size * (workers + 4)  # every block may leave a page partly empty
    return engine.facts.max_positions - grown, engine.pool.num_slots - pages - grown


def copy_bandwidth(device: torch.device) -> float:
    """Bytes per second that this device reads and writes while it copies: its best of a few tries."""
    size = _COPIED_BYTES[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(6):
        _wait(device)
        began = time.perf_counter()
        for _ in range(4):
            target.copy_(source)
        _wait(device)
        times.append(time.perf_counter() - began)
    return 2 * 4 * size / min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
