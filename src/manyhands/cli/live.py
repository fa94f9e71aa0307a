"""The live view: the picture of `columns.py`, painted anew while the run goes on.

The run's driver paints it between two passes: at most ten times a second, and seldom enough
to take no more than a twentieth of the time. Below it stands the line that a person types, if the run
listens and stdin is a terminal (`keyboard.py`, `talking.py`); the keyboard's thread paints the last picture
once more whenever that line has changed, and touches nothing else.

A terminal of another size is cleared and painted from its top: some terminals break the old lines anew and
some cut them, so the place of the old picture is unknown. Ctrl-Z puts the picture and the keyboard
away before the shell comes back; `fg` brings both again, and in the background nothing is painted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from manyhands.cli.columns import input_lines, picture
from manyhands.cli.guard import tell, writing
from manyhands.cli.keyboard import Keyboard, can_be_read, is_in_front
from manyhands.cli.outcome import Outcome
from manyhands.cli.output import say
from manyhands.cli.screens import say_reply, say_steps
from manyhands.cli.status import last_line, parts
from manyhands.cli.stopping import HaltRequest
from manyhands.cli.talking import TypedLines
from manyhands.errors import OutputFailed
from manyhands.strategies.account import Account
from manyhands.strategies.base import FinishedStep
from manyhands.strategies.events import Event, ReplyWritten, RequestRefused, TokenWritten
from manyhands.strategies.listening import Item, Said

_INTERVAL = 0.1  # seconds between two paintings, at least
_SHARE = 20  # a painting that took 1 ms is followed by 20 ms without one, at least
_MOST_NOTE_LINES = 3
_REPLYING = "writing the reply"


def console_of(stream: TextIO) -> Console:
    """A console that writes to `stream` and takes no text for markup."""
    return Console(file=stream, markup=False, highlight=False, emoji=False)


def can_be_live(console: Console) -> bool:
    """Whether the cursor can be moved and the frame's signs be shown."""
    moves = console.is_interactive and not console.is_dumb_terminal and not console.legacy_windows
    return moves and console.encoding.lower().startswith("utf")


class LiveScreen:
    """One column per worker while they think; the last frame stays, the reply follows in full.

    `name` is that of a person who types; None: the user's.
    """

    def __init__(
        self, account: Account, console: Console, budget: int, name: str | None = None
    ) -> None:
        self.account = account
        self.console = console
        self.budget = budget
        self.name = name
        self._state = "reading the problem"
        self._start = self._last_token = time.perf_counter()
        self._next_painting = 0.0
        self._num_passes = 0
        self._size = console.size
        self._is_away = False  # the terminal is the shell's
        self._lines: list[Text] = []  # of the last picture
        self._talk: TypedLines | None = None
        self._keyboard: Keyboard | None = None
        self._halt = HaltRequest()
        self._live = self._new_live()

    def _new_live(self) -> Live:
        return Live(
            _Frame(self),
            console=self.console,
            auto_refresh=False,
            redirect_stdout=False,
            # A warning is printed above the frame instead of through it.
            redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
            vertical_overflow="crop",
            transient=True,  # the last frame is printed once more, as text that stays
        )

    def __enter__(self) -> Self:
        self._start = self._last_token = time.perf_counter()
        self._halt.__enter__()
        try:
            self._take_up()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, *trouble: Any) -> None:
        try:
            self._put_away()
        finally:
            self._halt.__exit__(*trouble)

    def listen(self, say: Callable[[Item], None]) -> None:
        """Read a person's lines, where there is a terminal to type at."""
        if not can_be_read():
            return
        self._talk = TypedLines(self.account, say, self.name)
        self._keyboard = Keyboard(self._write, self._talk.take, self._repaint)
        if not self._is_away:
            self._keyboard.open()

    def show(self, event: Event) -> None:
        """Remember what the status line says about it."""
        if isinstance(event, TokenWritten):
            self._last_token, self._state = time.perf_counter(), "working"
        elif isinstance(event, ReplyWritten) and self.account.is_apart:
            if self._talk is not None and self._state != _REPLYING:
                self._talk.note = "The work is over: words that come now are not heard."
            self._state = _REPLYING
        elif isinstance(event, RequestRefused) and self._talk is not None:
            self._talk.note = f"{event.request} refused: {event.reason}"

    def refresh(self, num_passes: int) -> None:
        """Paint, if it is time to; halt, if Ctrl-Z was pressed."""
        self._num_passes = num_passes
        if self._halt.asked:
            self._put_away()
            self._halt.halt()
            self._take_up()
        elif self._halt.is_over:  # by another signal than Ctrl-Z, and nothing was put away
            self._put_away()
            self._take_up()
        start = time.perf_counter()
        if start < self._next_painting:
            return
        if self._is_away:
            self._take_up()
        else:
            self._paint()
        now = time.perf_counter()
        self._next_painting = now + max(_INTERVAL, _SHARE * (now - start))

    def end(self, outcome: Outcome) -> None:
        """The last frame, or all that was written if it was cut short; below it the reply."""
        account = self.account
        above: tuple[FinishedStep, ...] = ()
        if outcome.is_cut_short or account.solo:  # the frame of one would be the reply once more
            above = account.steps() if outcome.is_cut_short else account.thoughts()
            say_steps(account, above, outcome)
        else:
            width, height = self.console.size
            self.console.print(Group(*picture(account, (), width, height - 1, with_reply=False)))
            self.console.print()
        say_reply(account, outcome, above)
        for item in outcome.unheard:
            if isinstance(item, Said):
                tell(f"not heard, the work was over: {item.text}", "note: ", "yellow")
        say(last_line(outcome, self.budget))

    # -- the terminal ------------------------------------------------------------------------------

    def _take_up(self) -> None:
        """Paint and read from now on, if the terminal is ours."""
        self._halt.is_over = False
        self._is_away = not is_in_front(self.console.file)
        if self._is_away:
            return
        self._live = self._new_live()
        with writing():
            self._live.start()
            self._paint()
        if self._keyboard is not None:
            self._keyboard.open()

    def _put_away(self) -> None:
        """Leave the terminal as it was before the run began, but for what is written above the frame.

        One that has gone is left, too.
        """
        try:
            if self._keyboard is not None:
                with suppress(OutputFailed):
                    self._keyboard.close()
        finally:
            with suppress(OutputFailed), writing():
                self._live.stop()

    def _paint(self) -> None:
        size = self.console.size
        with writing():
            if size != self._size:
                self._size = size
                self._live.stop()
                self.console.clear()
                self._live = self._new_live()
                self._live.start()
            self._lines = self._picture()
            self._live.refresh()

    def _repaint(self) -> None:
        """The typed line has changed. In the keyboard's thread."""
        if self._live.is_started:
            self._live.refresh()

    def _write(self, text: str) -> None:
        with writing():
            self.console.file.write(text)
            self.console.file.flush()

    # -- the picture -------------------------------------------------------------------------------

    def frame(self) -> list[Text]:
        """The last picture, and below it the typed line: one line less than there are.

        The cursor stands below the frame.
        """
        width, height = self._size
        typed = self._typed(width, height)
        room = max(0, height - 1 - len(typed))
        return [*self._lines[len(self._lines) - room if len(self._lines) > room else 0 :], *typed]

    def _picture(self) -> list[Text]:
        width, height = self._size
        room = max(1, height - 1 - len(self._typed(width, height)))
        return picture(self.account, self._status(), width, room)

    def _typed(self, width: int, height: int) -> list[Text]:
        if self._talk is None or self._keyboard is None:
            return []
        # In a low terminal the note goes first, then the line itself.
        most = min(1 + _MOST_NOTE_LINES, max(0, (height - 2) // 3))
        talk, typed = self._talk, self._keyboard.editor.text
        return input_lines(talk.name, typed, talk.note, width, most)

    def _status(self) -> tuple[str, ...]:
        account, now = self.account, time.perf_counter()
        writing = self._last_token - self._start
        return parts(
            account.forward_passes,
            self.budget,
            max(0, self._num_passes - account.forward_passes),
            account.num_tokens,
            account.num_tokens / writing if writing > 0 else 0.0,
            now - self._start,
            self._state,
        )


class _Frame:
    """The picture, as `rich` takes it: the lines are asked for whenever they are painted."""

    def __init__(self, screen: LiveScreen) -> None:
        self.screen = screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines as they are now."""
        yield from self.screen.frame()
