"""The screen of a run whose words we know, in every form of output."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import typer
from rich.console import Console

from manyhands.cli.live import LiveScreen, can_be_live, console_of
from manyhands.cli.outcome import Outcome
from manyhands.cli.output import Notes
from manyhands.cli.running import drive, screen_for
from manyhands.cli.screens import (
    EventScreen,
    JsonScreen,
    PlainScreen,
    QuietScreen,
    Screen,
    _says,
    say_reply,
)
from manyhands.cli.solve import check_answered
from manyhands.prompts import TeamPrompt
from manyhands.strategies.account import Account
from manyhands.strategies.base import Strategy
from manyhands.strategies.events import CheckAsked, Event, ReplyWritten, StepEnded, from_line
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import SoloSettings, TeamSettings
from tests.cli.scripted import TEXT, scripted

WORDS = {
    "Alice": "I take the first part.\n\nIt is \x1b[2J[bold]3[/bold].\n\nSo it is \\boxed{3, 7}",
    "Bob": "I take the second one.\n\nNothing to add, :smile: 数学.",
    "reply": "The results are 3 and seven.",
}
BUDGET = 2048
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def timeless(said: str) -> str:
    """With no time in its last line, which is longer on a busy machine."""
    return re.sub(r"tokens · \d+:\d\d(?=\n?\Z)", "tokens · 0:00", said)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def team(**settings: Any) -> Strategy:
    return hogwild("1 + 2", TEXT, TeamSettings(workers=2, **settings), TeamPrompt())


def account_of_two() -> Account:
    return Account(("Alice", "Bob"))


def finished(screen: Screen, account: Account, strategy: Strategy) -> Outcome:
    outcome = drive(scripted(WORDS), strategy, account, screen)  # type: ignore[arg-type]
    screen.end(outcome)
    return outcome


def test_plain(capsys: pytest.CaptureFixture[str]) -> None:
    account = account_of_two()
    finished(PlainScreen(account, BUDGET), account, team())
    assert timeless(capsys.readouterr().out) == (
        "Bob [1]: I take the second one.\n\n"
        "Alice [1]: I take the first part.\n\n"
        "Alice [2]: It is ␛[2J[bold]3[/bold].\n\n"
        "Alice [3]: So it is \\boxed{3, 7}\n\n"
        "Bob [2]: Nothing to add, :smile: 数学.\n\n"
        "Reply:\nThe results are 3 and seven.\nAnswer: 3, 7\n"
        "Ended: answer · 63/2048 passes + 21 extra · 103 tokens · 0:00\n"
    )


@pytest.mark.parametrize(
    ("reply", "answer", "says"),
    [
        ("It is 3.", "3", True),
        ("**3**", "3", True),
        ("Answers: 3,7, 4.5", "3, 7,4.5", True),
        ("So x = 3\nand y=3", "3", True),
        ("In order:\nred, green", "green", True),
        ("The box says \\boxed{\\frac{1}{2}}, as\nyou see.", r"\frac{1}{2}", True),
        ("Here:\n```\na = 1\nb = 2\n```\nDone.", "a = 1\nb = 2", True),
        ("12 + 7 = 20", "2", False),
        ("1. 12 + 7 = 20\n2. 6 * 5 = 30\n3. She has", "3", False),
        ("It is -3", "3", False),
        ("It is -3", "-3", True),
        ("1. 12 + 7 = 20\n2. 6 * 5 = 30\nShe has", "2", False),
        ("1.5 and 3.25", "3", False),
        ("1.5 and 3.25", "25", False),
        ("12,300 in all", "12", False),
        ("12,300 in all", "300", False),
        ("greenish", "green", False),
        ("", "3", False),
    ],
)
def test_an_answer_that_the_reply_says(reply: str, answer: str, says: bool) -> None:
    assert _says(reply, answer) == says


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    finished(QuietScreen(), account_of_two(), team())
    assert capsys.readouterr().out == "The results are 3 and seven.\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    notes = Notes()
    notes.warn("careful")
    account = account_of_two()
    outcome = finished(JsonScreen(account, {"model": "m\x9b"}, notes), account, team())
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["answer"] == "3, 7"
    assert found["text"] == "The results are 3 and seven."
    assert found["finish_reason"] == "answer"
    assert found["tokens"] == list(outcome.answer.tokens)
    assert found["warnings"] == ["careful"]
    assert shown.out.isascii()
    assert "\x1b" not in shown.out
    assert shown.err == "warning: careful\n"


def test_events_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Each event as it was, then the object of --json, without another event in it."""
    account, other = account_of_two(), account_of_two()
    outcome = finished(EventScreen(account, {"budget": BUDGET}, Notes()), account, team())
    shown = capsys.readouterr().out
    assert shown.isascii()
    *events, last = map(json.loads, shown.splitlines())
    for event in events:
        other.take(from_line(event))
    assert other.steps() == account.steps()
    assert other.reply == account.reply
    assert "event" not in last
    assert (last["answer"], last["budget"]) == ("3, 7", BUDGET)
    assert last["extra_passes"] == outcome.answer.extra_passes > 0
    assert [last["names"][step["worker"]] for step in last["steps"]] == [
        *("Bob", "Alice", "Bob", "Alice", "Alice")
    ]


def test_a_step_without_text_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    account = Account(("Attempt 1", "Attempt 2"))
    screen = PlainScreen(account, BUDGET)
    for event in (StepEnded(1, 0, 1, ""), StepEnded(3, 1, 1, "It is 7.")):
        account.take(event)
        screen.show(event)
    assert capsys.readouterr().out == "Attempt 2 [1]: It is 7.\n\n"
    assert [step.worker for step in account.so_far("stopped", 3).steps] == [1]


def test_a_reply_that_stands_above_is_not_printed_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    account = Account(("Attempt 1", "Attempt 2"))
    account.take(StepEnded(3, 1, 1, "It is \\boxed{ 3,7 }"))
    account.take(ReplyWritten(3, "It is \\boxed{ 3,7 }"))
    outcome = Outcome(replace(account.so_far("answer", 3), answer="3, 7"))
    say_reply(account, outcome, above=account.steps())
    assert capsys.readouterr().out == "The reply is that of Attempt 2 [1].\n"
    say_reply(account, outcome)
    assert capsys.readouterr().out == "It is \\boxed{ 3,7 }\n"


@pytest.mark.parametrize(
    ("answer", "reply", "text", "code"),
    [
        ("3", "It is 3.", "1 + 2", 0),
        ("180, ?", "", "1 + 2", 0),
        ("?, 51, ?, 100, ?.", "", "1 + 2", 0),
        ("?", "It is ?.", "1 + 2", 9),
        ("?,?", "", "1 + 2", 9),
        (None, "It is 3.", "1 + 2", 9),  # an answer in a box was wanted
        (None, "It depends.", "Why is the sky blue?", 0),
        (None, "", "Why is the sky blue?", 9),
        (None, "", "What is in the box?", 9),
    ],
)
def test_no_answer_has_an_exit_code(answer: str | None, reply: str, text: str, code: int) -> None:
    account = account_of_two()
    account.reply = reply
    outcome = Outcome(replace(account.so_far("budget", 3), answer=answer))
    spec = RunSpec(METHODS["hogwild"], TeamSettings(), TeamPrompt(), text)
    if not code:
        return check_answered(outcome, account, spec)
    with pytest.raises(typer.Exit) as left:
        check_answered(outcome, account, spec)
    assert left.value.exit_code == code


def test_the_account_agrees_with_the_answer() -> None:
    account = account_of_two()
    outcome = finished(QuietScreen(), account, team(check_every=5, snapshots=(8,)))
    told = account.so_far("answer", outcome.answer.forward_passes + outcome.answer.extra_passes)
    read: dict[str, Any] = {"prompt_tokens": (), "found": ()}  # an account knows what was written
    assert told == replace(outcome.answer, **read)


def test_one_worker_is_not_told_twice(capsys: pytest.CaptureFixture[str]) -> None:
    account = Account(("Writer",), solo=True)
    strategy = sequential("1 + 2", TEXT, SoloSettings())
    engine = scripted({"writer": "It is 3.\n\nSo \\boxed{3}"})
    screen = PlainScreen(account, BUDGET)
    screen.end(drive(engine, strategy, account, screen))  # type: ignore[arg-type]
    assert timeless(capsys.readouterr().out) == (
        "It is 3.\n\nSo \\boxed{3}\nEnded: answer · 20/2048 passes · 19 tokens · 0:00\n"
    )


def live(
    width: int, height: int, monkeypatch: pytest.MonkeyPatch, strategy: Strategy, names: Any
) -> str:
    """All that is written to a terminal of this size."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr("manyhands.cli.live._INTERVAL", 0.0)
    monkeypatch.setattr("manyhands.cli.live._SHARE", 0)
    console = Console(
        file=terminal,
        force_terminal=True,
        width=width,
        height=height,
        markup=False,
        highlight=False,
        emoji=False,
        _environ={"TERM": "xterm"},
    )
    account = Account(names)
    finished(LiveScreen(account, console, BUDGET), account, strategy)
    return terminal.getvalue()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 6), (20, 10), (200, 60), (7, 4)])
def test_live_stays_inside_the_terminal(
    width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = live(width, height, monkeypatch, team(), ("Alice", "Bob"))
    frames, _, rest = written.partition("\x1b[?25h")  # the cursor is shown again: frames are over
    console = Console(width=1000, markup=False)
    for frame in re.split(r"\x1b\[2K(?:\x1b\[1A\x1b\[2K)*", frames):
        lines = _CONTROL.sub("", frame).replace("\r", "").split("\n")
        assert len(lines) <= height
        assert all(console.measure(line).maximum <= width for line in lines if line)
    assert "The results are 3 and seven.\n" in _CONTROL.sub("", rest)


def test_live_shows_steps_status_and_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    written = live(80, 24, monkeypatch, team(check_every=4), ("Alice", "Bob"))
    allowed = {"\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[1A"}
    controls = set(_CONTROL.findall(written))
    assert {code for code in controls if not code.endswith("m")} <= allowed
    seen = _CONTROL.sub("", written)
    assert "\x1b" not in seen
    assert "Alice [1]" in seen
    assert "✓ I take the first part." in seen
    assert "redundant?" in seen
    assert "[bold]3[/bold]" in seen
    assert "␛[2J" in seen
    assert ":smile:" in seen
    assert re.search(r"tokens/s · \d+:\d\d", seen)
    assert "writing the reply" in seen
    last = written.rpartition("\x1b[?25h")[2]
    *_, reply, answer, ended = last.splitlines()
    assert (reply, answer) == ("The results are 3 and seven.", "Answer: 3, 7")
    assert timeless(ended) == "Ended: answer · 63/2048 passes + 21 extra · 103 tokens · 0:00"


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert console_of(Terminal()).no_color


def test_which_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    account, notes = account_of_two(), Notes()

    def chosen(json: bool = False, quiet: bool = False) -> type:
        return type(screen_for(account, {}, notes, json=json, quiet=quiet, budget=5))

    assert chosen() is PlainScreen
    assert chosen(json=True, quiet=True) is JsonScreen
    assert chosen(quiet=True) is QuietScreen
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert chosen() is LiveScreen
    assert chosen(json=True) is JsonScreen
    monkeypatch.setenv("TERM", "dumb")
    assert chosen() is PlainScreen
    latin = Terminal()
    latin.encoding = "latin-1"
    monkeypatch.setenv("TERM", "xterm")
    assert not can_be_live(console_of(latin))
    monkeypatch.setattr(sys, "stdout", None)
    assert chosen() is PlainScreen


class _Interrupting(PlainScreen):
    """Presses Ctrl-C, so many times, in the twelfth pass."""

    presses = 1

    def show(self, event: Event) -> None:
        super().show(event)
        if event.forward_pass == 12:
            for _ in range(self.presses):
                self.presses -= 1
                signal.raise_signal(signal.SIGINT)


@pytest.fixture
def usual_ctrl_c() -> Iterator[None]:
    """Ctrl-C as it is in the foreground, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_ctrl_c")
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_keeps_what_was_written(presses: int, capsys: pytest.CaptureFixture[str]) -> None:
    account = account_of_two()
    screen = _Interrupting(account, BUDGET)
    screen.presses = presses
    outcome = finished(screen, account, team())
    out = capsys.readouterr().out
    assert outcome.interrupted
    assert outcome.answer.forward_passes == 12
    assert out.count("(unfinished): ") == len(account.unfinished()) == 2


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        account = account_of_two()
        outcome = finished(_Interrupting(account, BUDGET), account, team())
        assert not outcome.interrupted
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_closing_the_run_frees_its_blocks() -> None:
    closed = []

    def watched() -> Iterator[Any]:
        try:
            yield from team()
        finally:
            closed.append(True)

    class Failing(PlainScreen):
        def refresh(self, num_passes: int) -> None:
            raise BrokenPipeError

    account = account_of_two()
    with pytest.raises(BrokenPipeError):
        drive(scripted(WORDS), watched(), account, Failing(account, BUDGET))  # type: ignore[arg-type]
    assert closed == [True]


def test_the_redundancy_check_is_in_the_title() -> None:
    account = account_of_two()
    account.take(CheckAsked(1, 0, 1))
    assert account.hands[0].checked
