"""Drives one run from the first pass to the last, and ends it well when the user has had enough.

The first Ctrl-C is a request: the pass under way is finished, the run cancelled, and what was
written so far is the result. So it never strikes in the middle of a line of the trace. The second
one does not wait.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import closing
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from manyhands.cli.live import LiveScreen, can_be_live, console_of
from manyhands.cli.outcome import INTERRUPTED, Outcome
from manyhands.cli.output import Notes
from manyhands.cli.screens import JsonScreen, PlainScreen, QuietScreen, Screen
from manyhands.errors import ManyhandsError
from manyhands.strategies.account import Account
from manyhands.strategies.base import Strategy

if TYPE_CHECKING:
    from manyhands.engine.engine import Engine


def drive(engine: Engine, strategy: Strategy, account: Account, screen: Screen) -> Outcome:
    """Run `strategy`; its events go into the account and onto the screen.

    An error before the first token is raised; a later one is part of the outcome.
    """
    from manyhands.engine.loop import run_passes

    num_passes = 0
    start = time.perf_counter()

    def cut_short(reason: str, error: ManyhandsError | None = None) -> Outcome:
        answer = account.so_far(reason, num_passes)
        return Outcome(answer, time.perf_counter() - start, error)

    with (
        screen,
        StopRequest() as stop,
        closing(run_passes(engine, [(None, strategy)])) as passes,
    ):
        try:
            for num_passes, each in enumerate(passes):  # noqa: B007 (`cut_short` reads it)
                ((_, run),) = each.runs
                for event in run.take_events():
                    account.take(event)
                    screen.show(event)
                screen.refresh()
                if run.done:
                    break
                if stop.asked:
                    return cut_short(INTERRUPTED)
            return Outcome(run.result(), time.perf_counter() - start)
        except KeyboardInterrupt:
            return cut_short(INTERRUPTED)
        except ManyhandsError as error:
            if not account.num_tokens:
                raise
            return cut_short("error", error)


class StopRequest:
    """While it is entered, Ctrl-C sets `asked`; pressed again, it interrupts as usual."""

    def __init__(self) -> None:
        self.asked = False
        self._is_listening = False

    def __enter__(self) -> StopRequest:
        # A process in the background ignores Ctrl-C, and one that embeds us has its own way.
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._hear)
            self._is_listening = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_listening:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def screen_for(
    account: Account, facts: dict[str, Any], notes: Notes, *, json: bool, quiet: bool, budget: int
) -> Screen:
    """The screen that was asked for, and otherwise the best one for where the output goes."""
    if json:
        return JsonScreen(facts, notes)
    if quiet:
        return QuietScreen()
    if sys.stdout is not None and sys.stdout.isatty():
        console = console_of(sys.stdout)
        if can_be_live(console):
            return LiveScreen(account, console, budget)
    return PlainScreen(account)
