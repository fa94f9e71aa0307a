"""Many strategies on one engine at once, and what each of them cost.

The engine packs the rows of all live strategies into one forward pass (continuous batching), so an
exam keeps a number of them under way and begins another whenever one ends.

What is measured while they run:

    spent      after each forward pass: tokens written so far, seconds so far
    seconds    the time of the engine's passes from the first to the last in which a strategy took
               part. Passes of a snapshot are left out, like the passes themselves (Hogwild! Inference,
               section 4.1): only an exam takes one. Waiting for memory is left out too.
    memory     the most that lay in the cache while it ran, of all runs together

A pass serves everyone in it, and each is charged all of its time: with others in the same passes,
`seconds` is what one user of a busy engine waits, and with none it is what the run takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from manyhands.errors import ManyhandsError
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.events import Event, Snapshot, TokenWritten, WorkerJoined

if TYPE_CHECKING:  # the help of a command needs no engine
    from manyhands.engine.loop import Packs
    from manyhands.engine.run import Run


@dataclass
class Sitting:
    """One strategy while it runs and when it has ended: with an answer, or with an error."""

    key: Any
    answer: Answer | None = None
    error: ManyhandsError | None = None
    seconds: float = 0.0
    passes: int = 0  # the newest of which a token was told
    num_made: int = 0  # by the engine, prompt and ending included; known at the end
    tokens: dict[int, int] = field(default_factory=dict)  # worker -> how many
    spent: dict[int, tuple[int, float]] = field(default_factory=dict)  # pass -> tokens, seconds
    memory: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # of workers that joined on the way
    writing: list[tuple[int, int, str]] | None = None  # None: not wanted
    is_waiting: bool = False  # for memory, and was so before the newest pass
    _uncharged: float = 0.0  # since the last token: a snapshot, or the end

    @property
    def num_tokens(self) -> int:
        """Tokens written by all workers so far."""
        return sum(self.tokens.values())

    def pass_ended(self, seconds: float, memory: dict[str, int], events: Iterable[Event]) -> None:
        """A pass in which this strategy took part is over."""
        for name, size in memory.items():
            self.memory[name] = max(size, self.memory.get(name, 0))
        self._uncharged += seconds
        for event in events:
            self._take(event)

    @property
    def charged(self) -> int:
        """The passes of the work, told or not: a strategy of one's own may report no token, and even count nothing."""
        counted = 0 if self.answer is None else self.answer.forward_passes
        return max(self.passes, counted) or self.num_made

    def end(self) -> None:
        """No more passes will come. The last finisher and the reply are charged."""
        self.seconds += self._uncharged
        self._uncharged = 0.0

    def spent_by(self, budget: int) -> tuple[int, int | None, float | None]:
        """Passes, tokens and seconds spent when `budget` passes were; less if it ended before.

        Of a run that has told of no token, tokens and seconds are known for the end alone; None: not known.
        """
        if not self.spent and self.charged:
            if budget < self.charged:
                return budget, None, None
            tokens = sum(self.answer.tokens) if self.answer is not None else 0
            return self.charged, tokens or None, self.seconds
        reached = [at for at in self.spent if at <= budget]
        if budget >= self.passes:  # all of it, with what it took to end
            return self.passes, self.num_tokens, self.seconds
        last = max(reached, default=0)
        return last, *self.spent.get(last, (0, 0.0))

    def _take(self, event: Event) -> None:
        if isinstance(event, Snapshot):
            self._uncharged = 0.0
        elif isinstance(event, WorkerJoined):
            self.names[event.worker] = event.name
        elif isinstance(event, TokenWritten):
            self.seconds += self._uncharged
            self._uncharged = 0.0
            self.passes = max(self.passes, event.forward_pass)
            self.tokens[event.worker] = self.tokens.get(event.worker, 0) + 1
            self.spent[self.passes] = (self.num_tokens, self.seconds)
            if self.writing is not None:
                self.writing.append((event.worker, event.forward_pass, event.text))


def sit(
    engine: Packs,
    strategies: Iterable[tuple[Any, Strategy] | None],
    concurrency: int,
    watched: Callable[[Any], bool] = lambda key: False,
) -> Iterator[Sitting]:
    """Run (key, strategy) pairs, `concurrency` at a time; each comes back when it has ended.

    None stands for a pair that may come later: more are asked for after the next pass.
    `watched` runs keep their tokens with their passes. An error that belongs to one run
    comes back with it; any other is raised. Closing the iterator cancels what is under way.
    """
    from manyhands.engine.loop import run_passes

    _forget_peak(engine)

    def sitting_of(pair: tuple[Any, Strategy] | None) -> tuple[Sitting, Strategy] | None:
        if pair is None:
            return None
        key, strategy = pair
        return Sitting(key, writing=[] if watched(key) else None), strategy

    sittings = map(sitting_of, strategies)
    with closing(run_passes(engine, sittings, concurrency)) as passes:
        for each in passes:
            memory = memory_of(engine)
            for sitting, run in each.runs:
                # A run that was admitted just now took part in the pass, too.
                took_part = not (sitting.is_waiting and run.is_waiting)
                sitting.is_waiting = run.is_waiting
                sitting.pass_ended(each.seconds if took_part else 0.0, memory, run.take_events())
            for sitting, run in each.runs:
                if run.done:
                    yield _ended(sitting, run)


def memory_of(engine: Any) -> dict[str, int]:
    """The tokens and bytes in the cache now, and the most that a GPU has given out since the exam began."""
    pool = getattr(engine, "pool", None)
    if pool is None:
        return {}
    kv_tokens = (pool.num_pages - pool.num_free_pages) * pool.page_size
    found = {"kv_tokens": kv_tokens}
    executor = getattr(engine, "executor", None)
    if executor is not None:
        found["kv_bytes"] = kv_tokens * executor.facts.token_bytes
        if (peak := executor.peak_bytes()) is not None:
            found["allocated_bytes"] = peak
    return found


def _forget_peak(engine: Any) -> None:
    """Loading a model may take more than running it."""
    executor = getattr(engine, "executor", None)
    if executor is not None:
        executor.forget_peak()


def _ended(sitting: Sitting, run: Run) -> Sitting:
    sitting.end()
    sitting.num_made = run.num_passes
    try:
        sitting.answer = run.result()
    except ManyhandsError as error:
        sitting.error = error
    return sitting
