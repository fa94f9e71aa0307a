"""How fast an engine is in life: steps end, desks differ in length, runs come and go and bring prompts.

In lockstep (`evaluation/bench.py`) every pass is the last one, one token later. Life is what remains of
that speed when it is not:

    for situation in SITUATIONS:
        record = live(engine, situation, floor_of)
        print(situation.name, record.facts())

A *Situation* is a crowd: how many runs of which kind are under way at a time, how long each lasts, how long
its prompt is. What the runs do is drawn from a seeded generator and not from the model, so it is the same on
every machine and for every network. A pass is timed as a user waits for it: `engine.step()`, with strategies,
planning, moves, network and choice. Memory that has served for a while is full of what is kept for later, and so it is
here in each pass (`fill_memory`).

The kinds of runs:

    a team      sits as in `strategies/hogwild.py`, combined layout; each worker ends a step with
                probability 1 / step after each token, and goes on at a fresh desk
    samples     several rows over one prompt (`strategies/shared_prefix.py`); one row is a lone run
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch

from manyhands.cache.block import Block
from manyhands.cache.layouts import Cast, combined
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.loop import run_passes
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.run import Run
from manyhands.evaluation.bench import HEADER_TOKENS, MARKER_TOKENS, copy_bandwidth, fill
from manyhands.strategies.base import Answer, Reserve, Sent, Strategy

STEP_PREFIX = 6  # tokens that begin a step: its writer's name and number
_PROMPT = 128  # tokens fed beside those that are written, from which on a pass is one with a prompt
Tokens = tuple[int, ...]
FloorOf = Callable[[int, int], float]  # of tokens fed and bytes of keys and values read: seconds


@dataclass(frozen=True)
class Kind:
    """One kind of run. Tokens and passes are drawn evenly between two bounds."""

    rows: int
    prompt: tuple[int, int]
    passes: tuple[int, int]
    desk: tuple[int, int] = (1, 1)  # tokens that each row feeds at its beginning
    step: int = 0  # mean length of a team's steps; 0: steps never end, -1: rows are no team


@dataclass(frozen=True)
class Situation:
    """A crowd: kinds of runs, and how many of each are under way at a time.

    With `history`, one run alone goes on behind so many made-up tokens. Those that are under way at the
    beginning have part of their life behind them, unless all `begin_together`. `begin` makes runs in another way, a method
    itself, say: of their kind, their passes, a source of draws, and the number of the words as in `live`.
    """

    name: str
    crowd: tuple[tuple[int, Kind], ...]
    num_passes: int
    history: int = 0
    warm_up: int = 20  # passes that are not counted
    begin_together: bool = False
    begin: Callable[[Engine, Kind, int, random.Random, int], Strategy] | None = None


def _team(workers: int, step: int, **choices: Any) -> Kind:
    always = {"prompt": (16, 16), "passes": (1 << 20, 1 << 20), "desk": (100, 160)}
    return Kind(workers, step=step, **always | choices)


def one_team(workers: int, history: int, step: int, num_passes: int = 300) -> Situation:
    """A team alone, behind a long history; `step` 0 is lockstep."""
    steps = f"steps of {step}" if step else "lockstep"
    name = f"one team of {workers}, {history // 1024} k, {steps}"
    return Situation(name, ((1, _team(workers, step)),), num_passes, history)


_LONE = Kind(1, (100, 4000), (40, 400), step=-1)
_SAMPLES = Kind(32, (500, 2000), (60, 200), step=-1)
_TEAM = Kind(4, (200, 2000), (100, 400), step=100)
RAGGED = Situation(
    "32 teams of 4, ragged",
    ((32, _team(4, 0, prompt=(2000, 2000), passes=(600, 600), desk=(65, 190))),),
    200,
    warm_up=280,  # by then all prompts are fed
    begin_together=True,
)
TEAMS = Situation("32 teams of 4, come and go", ((32, _TEAM),), 500, warm_up=100)
FEW_TEAMS = Situation("4 teams of 4, come and go", ((4, _TEAM),), 500, warm_up=100)
LONES = Situation(
    "128 lone runs, come and go", ((128, replace(_LONE, prompt=(20, 400))),), 500, warm_up=60
)
MIX = Situation(
    "10 teams, 3 x 32 samples, 32 lone", ((10, _TEAM), (3, _SAMPLES), (32, _LONE)), 500, warm_up=160
)


_SMALL_LONE = Kind(1, (20, 200), (20, 80), step=-1)
_SMALL_SAMPLES = Kind(4, (60, 200), (20, 60), step=-1)
_SMALL_TEAM = Kind(2, (40, 160), (30, 90), (8, 24), step=20)


def everyday(num_passes: int, *, small: bool) -> tuple[Situation, ...]:
    """The situations that `manyhands bench --life` times: teams in lockstep, alive and ragged, and crowds.

    `small`: of a size that a CPU does in seconds; else as large as what a GPU serves.
    """
    if not small:
        kinds = ((1, 40), (4, 40), (4, 100), (16, 40))  # workers, and tokens of a step
        teams = (one_team(workers, 1024, step) for workers, step in kinds)
        large = (one_team(4, 1024, 0), *teams, RAGGED, FEW_TEAMS, TEAMS, LONES, MIX)
        return tuple(replace(situation, num_passes=num_passes) for situation in large)
    alone = {"prompt": (1, 1), "passes": (2 * num_passes, 2 * num_passes), "desk": (8, 24)}
    still, alive = (_team(4, step, **alone) for step in (0, 20))
    ragged = _team(2, 0, prompt=(40, 160), passes=(2 * num_passes, 2 * num_passes), desk=(8, 90))
    return (
        Situation("one team of 4, 256, lockstep", ((1, still),), num_passes, 256, 4),
        Situation("one team of 4, 256, steps of 20", ((1, alive),), num_passes, 256, 4),
        Situation("4 teams of 2, ragged", ((4, ragged),), num_passes, warm_up=4),
        Situation("4 teams of 2, come and go", ((4, _SMALL_TEAM),), num_passes, warm_up=4),
        Situation("8 lone runs, come and go", ((8, _SMALL_LONE),), num_passes, warm_up=4),
        Situation(
            "2 teams, 1 x 4 samples, 4 lone",
            ((2, _SMALL_TEAM), (1, _SMALL_SAMPLES), (4, _SMALL_LONE)),
            num_passes,
            warm_up=4,
        ),
    )


def at_best(engine: Engine) -> FloorOf:
    """The floor of a pass: weights, and keys and values that it reads, once each at the speed of a copy."""
    speed = copy_bandwidth(torch.device(engine.facts.device))
    return lambda fed, kv_bytes: (engine.facts.weight_bytes + kv_bytes) / speed


@dataclass(frozen=True)
class TimedPass:
    """One pass: seconds, tokens fed and written, bytes of keys and values read, and what was counted."""

    seconds: float
    fed: int
    written: int
    kv_bytes: int
    counts: PassCounts

    @property
    def has_prompt(self) -> bool:
        """Whether a prompt was fed beside what the rows wrote."""
        return self.fed - self.written >= _PROMPT


@dataclass
class LifeRecord:
    """The passes of one situation, in order; and of all runs, seconds from one token to the next, and until the first one."""

    passes: list[TimedPass] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    floor_of: FloorOf = lambda fed, kv_bytes: 0.0

    def facts(self) -> dict[str, Any]:
        """Milliseconds per pass, tokens per second, the floor of the same passes, and the counts."""
        seconds = [each.seconds for each in self.passes]
        narrow = [each.seconds for each in self.passes if not each.has_prompt]
        written = sum(each.written for each in self.passes)
        floors = [self.floor_of(each.fed, each.kv_bytes) for each in self.passes]
        counts = {
            name: sum(getattr(each.counts, name) for each in self.passes)
            for name in asdict(PassCounts())
        }
        return {
            "passes": len(seconds),
            "mean_ms": _ms(statistics.fmean(seconds)),
            **_quantiles("", seconds),
            "prompts": len(seconds) - len(narrow),
            **_quantiles("narrow_", narrow or [0.0]),
            **_quantiles("gap_", self.gaps or [0.0]),
            **(_quantiles("first_", self.waits) if self.waits else {}),
            "tokens_per_second": round(written / sum(seconds), 1),
            "rows": round(written / len(seconds), 1),
            "floor_ms": _ms(statistics.fmean(floors)),
            **counts,
        }


def live(
    engine: Engine,
    situation: Situation,
    floor_of: FloorOf | None = None,
    *,
    seed: int = 0,
    words: int = 0,
) -> LifeRecord:
    """Let the crowd live, and time its passes.

    The `seed` draws what its runs do. With other `words` they do the same with other tokens, so that nothing of it is
    found in a cache.
    """
    crowd = _Crowd(engine, situation, seed, words)
    record = LifeRecord(floor_of=floor_of or (lambda fed, kv_bytes: 0.0))
    facts = engine.executor
    before, counts = engine.usage, facts.counts
    num_passes = -1  # runs that have begun are reported before there is a pass
    clock = 0.0
    # Of each run: its passes, and when the last was made; and when it came, if its first token counts and is not there yet.
    told, came = dict[Run, tuple[int, float]](), dict[Run, float]()
    with closing(run_passes(engine, crowd, sum(count for count, _ in situation.crowd))) as passes:
        for each in passes:
            fill_memory(engine)
            for kind, run in each.runs:
                if run.done:
                    run.result()  # raises what went wrong
                    crowd.left(kind)
            if not each.seconds:
                if num_passes >= situation.warm_up:
                    came |= {run: clock for _, run in each.runs if run not in told}
                continue
            num_passes += 1
            clock += each.seconds
            before_it, told = told, {}
            for _, run in each.runs:
                count, since = before_it.get(run, (0, clock))
                if 0 < count < run.num_passes and num_passes >= situation.warm_up:
                    record.gaps.append(clock - since)
                run.take_events()  # as a server does; kept, they would be most of what a collection of garbage walks over
                told[run] = run.num_passes, clock if run.num_passes > count else since
                if run.num_passes and run in came:
                    record.waits.append(clock - came.pop(run))
            usage, now = engine.usage, facts.counts
            cost = usage - before
            if num_passes >= situation.warm_up:
                record.passes.append(
                    TimedPass(
                        each.seconds,
                        cost.tokens_fed,
                        cost.tokens_chosen,
                        cost.kv_bytes_loaded,
                        now - counts,
                    )
                )
            before, counts = usage, now
            if len(record.passes) >= situation.num_passes:
                break
    return record


def fill_memory(engine: Engine, *, prompt: int = 1000) -> int:
    """Have pages on which nothing lies hold prompts of so many tokens that no run reads; how many prompts there are now.

    Their keys are never written, so none of them may be asked for again. Of a network that keeps states of texts memory stays as it
    is, since such a prompt has one.
    """
    pool, tree = engine.pool, engine.prefixes
    made_up = _MadeUp(engine.facts.vocab_size, 0)
    rng = random.Random(tree.num_tokens_added)  # so that each call has others
    while not engine.facts.num_states and pool.num_bare_pages * pool.page_size > 2 * prompt:
        lease = tree.lease([made_up(prompt, rng)])
        assert lease is not None, "no block of the tree that it leads into is being written"
        with closing(lease):
            for row in lease.rows([0], prompt):
                pool.reserve([(row.view.own, len(row.feed))])
                row.view.own.tokens.extend(row.feed)
            lease.settle()
    return tree.num_tokens // prompt


class _Crowd:
    """Gives the next run whenever one has left, of the same kind."""

    def __init__(self, engine: Engine, situation: Situation, seed: int, words: int = 0) -> None:
        self.engine, self.situation = engine, situation
        self.rng = random.Random(seed)
        self.made_up = _MadeUp(engine.facts.vocab_size, words)
        self.history: Block | None = None
        if situation.history:
            history = Block("history")
            self.history = fill(engine, history, situation.history, seed=7 * seed + words).freeze()
        kinds = [kind for count, kind in situation.crowd for _ in range(count)]
        self.rng.shuffle(kinds)
        self.next = kinds
        self.num_first = len(kinds)

    def left(self, kind: Kind) -> None:
        """A run of this kind has ended."""
        self.next.append(kind)

    def __call__(self) -> tuple[Kind, Strategy] | None:
        """The next run, if one is due."""
        if not self.next:
            return None
        kind = self.next.pop()
        is_under_way = self.num_first > 0 and not self.situation.begin_together
        share = self.rng.random() if is_under_way else 1.0
        self.num_first -= 1
        passes = max(2, round(share * self.rng.randint(*kind.passes)))
        rng = random.Random(self.rng.random())
        if self.situation.begin is not None:
            return kind, self.situation.begin(self.engine, kind, passes, rng, self.made_up.words)
        if kind.step < 0:
            return kind, _samples(kind, passes, rng, self.made_up)
        return kind, _live_team(kind, passes, rng, self.made_up, self.history)


class _MadeUp(NamedTuple):
    """Texts of tokens from 2 on. The same draws make another text with each number of `words`."""

    vocab_size: int
    words: int

    def __call__(self, num_tokens: int, rng: random.Random) -> Tokens:
        size = self.vocab_size - 2
        return tuple(2 + (rng.randrange(size) + self.words) % size for _ in range(num_tokens))


def _samples(kind: Kind, passes: int, rng: random.Random, made_up: _MadeUp) -> Strategy:
    """Rows over one prompt, for so many passes."""
    prompt = made_up(rng.randint(*kind.prompt), rng)
    yield Reserve(len(prompt) + kind.rows * passes, kind.rows + 2)
    shared = Block("prompt")
    views = [View((shared, Block())) for _ in range(kind.rows)]
    feeds: list[Tokens] = [prompt[-1:]] * kind.rows
    opening = [Row(View((shared,)), prompt[:-1])]
    for _ in range(passes):
        tokens = yield Step((*opening, *_rows(views, feeds)))
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        feeds = [(token,) for token in tokens[len(opening) :]]
        opening = []
    return Answer(text="")


def _live_team(
    kind: Kind, passes: int, rng: random.Random, made_up: _MadeUp, history: Block | None
) -> Strategy:
    """A team whose steps end at random, for so many passes."""
    prompt = made_up(rng.randint(*kind.prompt), rng)
    bounded = min(passes, 4096)
    steps = 2 * bounded // kind.step if kind.step else 0
    most = len(prompt) + kind.rows * (2 * bounded + kind.desk[1]) + 64
    yield Reserve(most, kind.rows * (2 + steps) + 6)
    cast = Cast(
        prompt=history or Block("prompt"),
        others_header=Block("others"),
        own_header=Block("own"),
        marker=Block("marker"),
        desks=tuple(Block() for _ in range(kind.rows)),
    )
    opening = [
        Row(View((cast.prompt, block)), made_up(size, rng))
        for block, size in (
            (cast.others_header, HEADER_TOKENS),
            (cast.own_header, HEADER_TOKENS),
            (cast.marker, MARKER_TOKENS),
        )
    ]
    if history is None:
        opening.insert(0, Row(View((cast.prompt,)), prompt))
    feeds = [made_up(rng.randint(*kind.desk), rng) for _ in range(kind.rows)]
    views = [combined(cast, worker) for worker in range(kind.rows)]
    for _ in range(passes):
        tokens = yield Step((*opening, *_rows(views, feeds)))
        assert isinstance(tokens, tuple), "a step is answered with one token per row"
        # The header of others' work stays as it is, as in `strategies/hogwild.py`.
        for row in opening:
            if row.view.own is not cast.others_header:
                row.view.own.freeze()
        if opening:
            views = [combined(cast, worker) for worker in range(kind.rows)]
        feeds = [(token,) for token in tokens[len(opening) :]]
        opening = []
        ended = [w for w in range(kind.rows) if kind.step and rng.random() < 1 / kind.step]
        if ended:
            desks = list(cast.desks)
            for worker in ended:
                desks[worker] = Block()
                feeds[worker] = made_up(STEP_PREFIX, rng)
            finished = tuple(cast.desks[worker].freeze() for worker in ended)
            history_now = (*cast.history, *finished)
            cast = replace(cast, desks=tuple(desks), history=history_now, last=cast.past)
            views = [combined(cast, worker) for worker in range(kind.rows)]
    return Answer(text="")


def _rows(views: list[View], feeds: list[Tokens]) -> Generator[Row, Sent, None]:
    for index, (view, feed) in enumerate(zip(views, feeds, strict=True)):
        yield Row(view, feed, writer=f"row {index}")


def _quantiles(prefix: str, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "worst": 1.0}
    last = len(ordered) - 1
    return {f"{prefix}{name}_ms": _ms(ordered[round(last * share)]) for name, share in at.items()}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def crowd_equals_alone(
    engine: Engine, other: Engine | None = None, *, seed: int = 0
) -> tuple[int, int]:
    """Rows whose tokens in a mixed crowd equal those of their run alone, and rows whose tokens do not.

    `other`: an engine for the runs alone; None is the same one.
    """
    kinds = [Kind(4, (4, 60), (6, 20), (1, 9), step=5), Kind(3, (4, 90), (4, 16), step=-1)]
    situation = Situation("gate", tuple((3, kind) for kind in kinds), 0)

    def written(engine: Engine, *, alone: bool) -> list[list[Tokens]]:
        fill_memory(engine, prompt=100)
        crowd = _Crowd(engine, situation, seed)
        found: list[list[Tokens]] = []
        strategies = []
        while (pair := crowd()) is not None:
            found.append([])
            strategies.append(_noting(pair[1], found[-1]))
        for group in [[each] for each in strategies] if alone else [strategies]:
            engine.run_all(group)
        return found

    together, alone = written(engine, alone=False), written(other or engine, alone=True)
    rows = [
        mine == theirs
        for ours, others in zip(together, alone, strict=True)
        for mine, theirs in zip(zip(*ours, strict=True), zip(*others, strict=True), strict=True)
    ]
    return sum(rows), len(rows) - sum(rows)


def _noting(strategy: Strategy, tokens: list[Tokens]) -> Strategy:
    """The same strategy; the tokens of its writers are noted pass by pass."""
    sent: Any = None
    while True:
        try:
            asked = strategy.send(sent)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        sent = yield asked
        if isinstance(asked, Step):
            assert isinstance(sent, tuple), "a step is answered with one token per row"
            tokens.append(
                tuple(t for row, t in zip(asked.rows, sent, strict=True) if row.writer is not None)
            )
