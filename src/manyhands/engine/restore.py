"""Restoring a run that is no longer in memory, from its trace (Hogwild! Inference, app. B).

The strategy is made anew and sent the recorded tokens, without a model: that brings it back to where
it was, at the cost of some integers. One parallel forward over all tokens of the run then gives every
key and value, and those of the blocks that are still in use are written to memory. From there the run
goes on, token for token as if it had never stopped.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Step
from manyhands.engine.executor import Executor
from manyhands.engine.rebuild import Ends, Fed, write_keys
from manyhands.errors import BrokenTrace
from manyhands.replay.merged import merge_passes
from manyhands.replay.text_rows import TextRows
from manyhands.replay.trace import Trace, TracedRow, record
from manyhands.schema.lines import Line
from manyhands.strategies.base import Answer, Asked, Reserve, Strategy, check_generator
from manyhands.strategies.events import Event
from manyhands.strategies.listening import NOTHING, Heard, Item, Listen


def restore(
    strategy: Strategy,
    trace: Trace,
    executor: Executor,
    pool: PagePool,
    *,
    write: Callable[[Line], None] | None = None,
) -> Strategy:
    """`strategy`, at its beginning, as one that begins where `trace`, a run of it, ends.

    Only what is new is reported. `write` is given the lines that continue the trace. Raises BrokenTrace if the strategy asks for anything but what the trace says.
    """
    check_generator(strategy)
    retraced = _Retraced(trace, record(strategy, {}, _beyond(trace, write)))
    _check_vocabulary(trace, executor.facts.vocab_size)
    reserve = retraced.begin()
    early: tuple[Item, ...] = ()  # said before the run is back
    if retraced.num_listens:  # its driver must know that it listens, see `strategies.base`
        heard = yield Listen()
        assert isinstance(heard, Heard), "a Listen is answered with what was heard"
        early = heard.items
    if reserve is not None:
        yield replace(reserve, prompt=None)  # its keys are written below, with all others
    _rebuild(retraced, executor, pool)
    yield from retraced.unreported
    while retraced.answer is None:
        asked = retraced.asked
        assert asked is not None, "a run that goes on has asked for something"
        try:
            sent = yield asked
        except Exception as error:  # the strategy's to handle, see `strategies.base`
            retraced.advance(partial(retraced.strategy.throw, error))
        else:
            if isinstance(sent, Heard) and early:
                sent, early = Heard(early + sent.items), ()
            retraced.advance(partial(retraced.strategy.send, sent))
    return retraced.answer


def _beyond(trace: Trace, write: Callable[[Line], None] | None) -> Callable[[Line], None]:
    """Passes on the lines that the trace does not have yet: the first ones are its own again."""
    known = trace.num_lines

    def take(line: Line) -> None:
        nonlocal known
        if known:
            known -= 1
        elif write is not None:
            write(line)

    return take


@dataclass(eq=False)
class _Retraced:
    """A strategy that is sent what it was sent before."""

    trace: Trace
    strategy: Strategy
    asked: Asked | None = None
    answer: Answer | None = None
    fed: list[tuple[weakref.ref[Block], int]] = field(default_factory=list)  # of each packed token
    unreported: list[Event] = field(default_factory=list)  # happened, but the trace was cut off
    num_events: int = 0
    num_listens: int = 0
    num_passes: int = 0

    def begin(self) -> Reserve | None:
        """Up to the first step; what the strategy wants to reserve on the way, if anything."""
        reserve = None
        self._go_to_step(None)
        while isinstance(self.asked, Reserve):
            reserve = self.asked
            self._go_to_step(None)
        return reserve

    def _go_to_step(self, tokens: tuple[int, ...] | None) -> None:
        """Send tokens in, take what is reported, say what was said, up to the next step or end.

        A Listen behind the end of the trace stays asked: the driver of the restored run answers it.
        """
        self.advance(partial(self.strategy.send, tokens))
        while isinstance(self.asked, Event | Listen):
            if isinstance(self.asked, Listen) and self._is_at_the_end():
                return
            self.advance(partial(self.strategy.send, self._reply(self.asked)))

    def _is_at_the_end(self) -> bool:
        """Whether all that the trace has to say has been said."""
        trace = self.trace
        return (
            0 < len(trace.passes) == self.num_passes
            and len(trace.events) <= self.num_events
            and max(trace.heard, default=-1) < self.num_listens
        )

    def _reply(self, asked: Event | Listen) -> Heard | None:
        if isinstance(asked, Listen):
            self.num_listens += 1
            return self.trace.heard.get(self.num_listens - 1, NOTHING)
        self.num_events += 1
        if self.num_events > len(self.trace.events):
            self.unreported.append(asked)
        return None

    def advance(self, move: Callable[[], Asked]) -> None:
        """Send something in and take what is asked for next."""
        try:
            self.asked = move()
        except StopIteration as end:
            self.asked, self.answer = None, end.value

    def steps(self) -> Iterator[Step]:
        """The recorded passes, asked for once more. Whoever iterates appends the feeds."""
        for number, rows in enumerate(self.trace.passes):
            step = self.asked
            if not isinstance(step, Step) or not _same(step, rows):
                raise BrokenTrace(
                    f"pass {number + 1} of the trace is not what its strategy asks for",
                    hint="The file was changed, or another version of manyhands wrote it.",
                )
            for row in step.rows:
                own, first = weakref.ref(row.view.own), row.view.own.num_tokens
                self.fed += [(own, first + i) for i in range(len(row.feed))]
            yield step
            del step, row  # the strategy alone decides which blocks live on
            self.num_passes += 1
            self._go_to_step(tuple(row.token for row in rows))


def _same(step: Step, rows: tuple[TracedRow, ...]) -> bool:
    return [row.feed for row in step.rows] == [row.feed for row in rows]


def _rebuild(retraced: _Retraced, executor: Executor, pool: PagePool) -> None:
    """One forward over the whole past; keys and values of the blocks still in use go to memory."""
    if not retraced.trace.passes:
        return
    text_rows = None if pool.states is None else TextRows()
    merged = merge_passes(retraced.steps(), retraced.trace.num_tokens, text_rows=text_rows)
    used = [
        Fed(token, block, index)
        for token, (reference, index) in enumerate(retraced.fed)
        if (block := reference()) is not None
    ]
    if not used:  # the run had ended
        return
    pool.reserve({each.block: each.block.num_tokens for each in used}.items())
    ends = None
    if text_rows is not None:
        ends = Ends(text_rows, {each.block: each.block for each in used})
    write_keys(merged, used, executor, pool, ends=ends)


def _check_vocabulary(trace: Trace, vocab_size: int) -> None:
    tokens = (token for rows in trace.passes for row in rows for token in (row.token, *row.feed))
    wrong = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise BrokenTrace(
            f"the trace has the token {wrong}; the model's vocabulary has {vocab_size}",
            hint="Restore a run with the model that wrote it.",
        )
