"""The live view: the picture of `columns.py`, painted anew while the run goes on.

It is painted between two passes, by nobody but the one who drives them: at most ten times a second,
and seldom enough to take no more than a twentieth of the time.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from manyhands.cli.columns import picture
from manyhands.cli.outcome import Outcome
from manyhands.cli.screens import say_reply, say_steps
from manyhands.strategies.account import Account
from manyhands.strategies.events import Event, ReplyWritten, TokenWritten

_INTERVAL = 0.1  # seconds between two paintings, at least
_SHARE = 20  # a painting that took 1 ms is followed by 20 ms without one, at least
_REASONS = {"stopped": "all have ended", "budget": "budget spent", "context": "context full"}


def console_of(stream: TextIO) -> Console:
    """A console that writes to `stream` and takes no text for markup."""
    return Console(file=stream, markup=False, highlight=False, emoji=False)


def can_be_live(console: Console) -> bool:
    """Whether the cursor can be moved and the frame's signs be shown."""
    moves = console.is_interactive and not console.is_dumb_terminal and not console.legacy_windows
    return moves and console.encoding.lower().startswith("utf")


class LiveScreen:
    """One column per worker while they think; the last frame stays, the reply follows in full."""

    def __init__(self, account: Account, console: Console, budget: int) -> None:
        self.account = account
        self.console = console
        self.budget = budget
        self._state = "reading the problem"
        self._start = self._last_token = time.perf_counter()
        self._next_painting = 0.0
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            # A warning is printed above the frame instead of through it.
            redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
            vertical_overflow="crop",
            transient=True,  # the last frame is printed once more, as text that stays
        )

    def __enter__(self) -> Self:
        self._start = self._last_token = time.perf_counter()
        self._live.start()
        self._paint()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        """Remember what the status line says about it."""
        if isinstance(event, TokenWritten):
            self._last_token, self._state = time.perf_counter(), "working"
        elif isinstance(event, ReplyWritten) and not self.account.solo:
            self._state = "writing the reply"

    def refresh(self) -> None:
        """Paint, if it is time to."""
        start = time.perf_counter()
        if start >= self._next_painting:
            self._paint()
            now = time.perf_counter()
            self._next_painting = now + max(_INTERVAL, _SHARE * (now - start))

    def end(self, outcome: Outcome) -> None:
        """The last frame, or all that was written if it was cut short; below it the reply."""
        answer = outcome.answer
        reason = _REASONS.get(answer.finish_reason, answer.finish_reason)
        self._state = reason if answer.answer is None else f"answer: {answer.answer}"
        frame = self._picture(with_reply=False)
        if outcome.is_cut_short:
            say_steps(self.account, self.account.steps(), outcome)
            frame = frame[-1:]
        self.console.print(Group(*frame))
        self.console.print()
        say_reply(self.account, outcome)

    def _paint(self) -> None:
        self._live.update(Group(*self._picture()), refresh=True)

    def _picture(self, *, with_reply: bool = True) -> list[Text]:
        width, height = self.console.size
        # One line less than there are: the cursor stands below the frame.
        return picture(self.account, self._status(), width, height - 1, with_reply=with_reply)

    def _status(self) -> str:
        account, now = self.account, time.perf_counter()
        writing = self._last_token - self._start
        rate = f" · {account.num_tokens / writing:.1f} tokens/s" if writing > 0 else ""
        return (
            f"{account.forward_passes}/{self.budget} passes · {account.num_tokens} tokens{rate}"
            f" · {_clock(now - self._start)} · {self._state}"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
