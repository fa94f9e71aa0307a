"""A person at a terminal: what is typed while a team is live, and how the terminal is left behind."""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from manyhands.cli.columns import picture
from manyhands.cli.guard import guarded
from manyhands.cli.keyboard import LineEditor
from manyhands.cli.live import LiveScreen, console_of
from manyhands.cli.outcome import Outcome
from manyhands.cli.running import drive
from manyhands.cli.solve import finish
from manyhands.cli.talking import COMMANDS, GUEST, HELP, HINT, TypedLines, own_name
from manyhands.engine.inbox import Inbox
from manyhands.errors import InvalidRequest
from manyhands.prompts import TeamPrompt
from manyhands.replay.trace import parse_trace, read_trace, record
from manyhands.strategies.account import Account
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.listening import (
    AddWorker,
    AnswerNow,
    DismissWorker,
    Item,
    PauseWorker,
    Said,
)
from manyhands.strategies.settings import TeamSettings
from tests.cli.conftest import DONE, Cli, module_of
from tests.cli.scripted import TEXT, scripted
from tests.cli.terminal import Seen

LONG = dict.fromkeys(("Alice", "Bob"), "word " * 1500) | {"reply": "Done."}


def team(
    delay: float = 0.002,
    words: dict[str, str] = LONG,
    path: Path | None = None,
    seen: Path | None = None,
    fails: bool = False,
) -> Callable[[], int]:
    """A program: a team of two that writes slowly, on the terminal that it finds.

    It hardly goes on before the file `seen` is there, however late the test looks at the screen, and then it may fail.
    """

    def program() -> int:
        import sys

        def slowly() -> None:
            is_seen = seen is None or seen.exists()
            if is_seen and fails:
                raise RuntimeError("a bug of ours")
            time.sleep(delay if is_seen else 0.05)

        engine: Any = scripted(words, slowly)
        account = Account(("Alice", "Bob"))
        strategy = hogwild("1 + 2", TEXT, TeamSettings(workers=2, budget=3000), TeamPrompt())
        lines: list[Any] = []
        if path is not None:
            strategy = record(strategy, {}, lines.append)
        screen = LiveScreen(account, console_of(sys.stdout), 3000, "Dana")
        try:
            with guarded():
                finish(screen, drive(engine, strategy, account, screen), path)
        except typer.Exit as left:
            return left.exit_code
        finally:
            if path is not None:
                path.write_text(repr(parse_trace(lines).heard), encoding="utf-8")
        return 0

    return program


@pytest.fixture
def on_terminal() -> Iterator[Callable[..., Seen]]:
    begun: list[Seen] = []

    def begin(*args: Any, **more: Any) -> Seen:
        begun.append(Seen(*args, **more))
        return begun[-1]

    yield begin
    for seen in begun:
        if seen.exit_code is None:
            os.kill(seen.pid, signal.SIGKILL)
            os.waitpid(seen.pid, 0)
            os.close(seen.fd)


# -- keys ------------------------------------------------------------------------------------------


def typed(*keys: bytes) -> tuple[list[str], str]:
    editor = LineEditor()
    return [line for some in keys for line in editor.feed(some)], editor.text


@pytest.mark.parametrize(
    ("keys", "lines", "text"),
    [
        ((b"so it is\n",), ["so it is"], ""),
        ((b"ab\x7f\x08cd",), [], "cd"),
        ((b"\x7f\n",), [""], ""),
        (("数".encode()[:1], "数学".encode()[1:]), [], "数学"),
        (("e\u0301o\x7f\x7f".encode(),), [], ""),
        ((b"one two\x17three\x15four",), [], "four"),
        ((b"one two \x17",), [], "one "),
        ((b"a\x1b[Db\x1bOPc\x1bxd\x1b[3~e",), [], "abcde"),
        ((b"a\x1b[", b"1;5Cb"), [], "ab"),
        ((b"a\x1b", b"b"), [], "ab"),
        ((b"\x1b[200~one\rtwo\r\x1b[201~ three\r",), ["one\ntwo\n three"], ""),
        ((b"\x00\x01a\tb\xff",), [], "a b\ufffd"),
    ],
)
def test_keys_become_lines(keys: tuple[bytes, ...], lines: list[str], text: str) -> None:
    assert typed(*keys) == (lines, text)


# -- words and commands ----------------------------------------------------------------------------


def talk(said: list[Item], say: Callable[[Item], None] | None = None) -> TypedLines:
    account = Account(("Alice", "Bob"))
    return TypedLines(account, say or said.append, "Dana")


def test_words_that_a_run_has_no_room_for_are_a_note() -> None:
    inbox = Inbox()
    dana = talk([], inbox.put)
    for _ in range(4):
        dana.take("x" * 99_000)
        assert dana.note == HINT
    dana.take("x" * 99_000)
    assert dana.note.startswith(
        "495520 characters would wait to be heard by the run; expected at most"
    )
    assert "once the run has heard what waits" in dana.note
    assert len(inbox.items) == 4


def test_words_and_commands() -> None:
    said: list[Item] = []
    dana = talk(said)
    for line in ("try 7", "/pause bob", "/add Carol", "/dismiss Alice", "/answer", "//x", "  "):
        dana.take(line)
        assert dana.note == HINT
    assert said == [
        Said("try 7", "Dana"),
        PauseWorker(1),
        AddWorker("Carol"),
        DismissWorker(0),
        AnswerNow(),
        Said("/x", "Dana"),
    ]


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("/pause", "expected: /pause NAME"),
        ("/pause Zoe", "there is no worker 'Zoe'; expected one of Alice, Bob."),
        ("/answer 3", "expected: /answer"),
        ("/sing", "there is no command /sing; expected one of /pause,"),
        ("/", "there is no command /; expected one of"),
        ("x" * 100_001, "Dana said 100001 characters at once"),
    ],
)
def test_what_cannot_be_said_is_explained(line: str, note: str) -> None:
    said: list[Item] = []
    dana = talk(said)
    dana.take(line)
    assert not said
    assert dana.note.startswith(note)
    dana.take("/help")
    assert dana.note == HELP
    assert all(f"/{name}" in HELP for name in COMMANDS)


def test_a_run_that_is_over_says_so() -> None:
    def refuse(item: Item) -> None:
        raise InvalidRequest("the run has ended", hint="Begin another one.")

    dana = talk([], refuse)
    dana.take("too late")
    assert dana.note == "the run has ended Begin another one."


def test_whose_words_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "dana")
    assert own_name(["Alice"]) == "Dana"
    assert own_name(["Dana"]) == GUEST


# -- on a terminal ---------------------------------------------------------------------------------


def test_a_person_types_and_the_team_hears(
    on_terminal: Callable[..., Seen], tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    seen = on_terminal(team(path=heard))
    seen.wait("Dana> ▌")
    seen.wait(HINT)
    seen.send("Try 7x\x7f, 数学")
    seen.wait("Dana> Try 7, 数学▌")
    seen.send("\r")
    seen.wait("✓ Try 7, 数学")
    seen.wait("Dana> ▌")  # a frame may come in pieces
    seen.send("/pause Bob\r")
    seen.wait("Bob [1] paused")
    seen.send("/pause Bob\r")
    seen.wait("PauseWorker refused: Bob pauses already")
    seen.send("/resume Bob\r/add Carol\r")
    seen.wait("Carol")
    seen.wait(lambda: "Bob [1] paused" not in seen.text)
    seen.send("\x1b[200~two\rlines\x1b[201~")
    seen.wait("Dana> two⏎lines▌")
    seen.send("\r/dismiss Carol\r")
    seen.wait("Carol dismissed")
    seen.send("/answer\r")
    assert seen.close() == 0
    assert "\nEnded: asked · " in seen.text
    told = heard.read_text(encoding="utf-8")
    for item in (
        "Said(text='Try 7, 数学', author='Dana')",
        "AddWorker(name='Carol')",
        "two\\nlines",
    ):
        assert item in told


def test_a_name_is_one_line(cli: Cli) -> None:
    for name in ("", "two\nlines", "x" * 81):
        refused = cli("solve", "1 + 2", "--name", name)
        assert refused.exit_code == 2
        assert "expected one line of 1 to 80 characters" in refused.stderr


def test_a_pipe_is_not_read(on_terminal: Callable[..., Seen]) -> None:
    """A problem came in through it; whatever is behind that is another program's."""
    run = team(words={"Alice": "So it is \\boxed{3}", "Bob": "word"})

    def program() -> int:
        ours, theirs = os.pipe()
        os.write(theirs, b"left over\n")
        os.dup2(ours, 0)
        return run() or int(os.read(0, 100) != b"left over\n")

    seen = on_terminal(program)
    seen.wait("Ended: answer")
    assert seen.close() == 0
    assert "Dana>" not in seen.raw.decode()
    assert b"\x1b[?2004h" not in seen.raw


def test_what_is_said_too_late_is_named(on_terminal: Callable[..., Seen], tmp_path: Path) -> None:
    words = {"Alice": "So it is \\boxed{3}", "Bob": "word " * 20, "reply": "word " * 300}
    seen = on_terminal(team(words=words, seen=tmp_path / "seen"))
    seen.wait("words that come now are not heard")
    seen.send("Try 7.\r")
    (tmp_path / "seen").touch()
    assert seen.close() == 0
    assert "note: not heard, the work was over: Try 7." in seen.text


@pytest.mark.parametrize(
    ("how", "code", "ended"),
    [
        (signal.SIGINT, 130, "Ended: interrupted · "),
        (signal.SIGTERM, 143, "Ended: interrupted · "),
        ("\x03", 130, "Ended: interrupted · "),
        ("bug", 70, "RuntimeError: a bug of ours"),
        ("end", 0, "Ended: answer · "),
    ],
)
def test_the_terminal_is_left_as_it_was(
    on_terminal: Callable[..., Seen], tmp_path: Path, how: Any, code: int, ended: str
) -> None:
    words = {"Alice": "So it is \\boxed{3}", "Bob": "word " * 20} if how == "end" else LONG
    trace = tmp_path / "t.jsonl" if isinstance(how, int) else None
    looked = tmp_path / "seen"
    seen = on_terminal(team(words=words, path=trace, seen=looked, fails=how == "bug"))
    if how != "end":
        seen.wait("Dana> ▌")
        seen.wait("working")
    if how in ("end", "bug"):
        looked.touch()
    if isinstance(how, int):
        os.kill(seen.pid, how)
    elif how == "\x03":
        seen.send("half a line\x03")
    seen.wait(ended)
    modes = termios.tcgetattr(seen.fd)
    assert modes[3] & termios.ICANON
    assert modes[3] & termios.ECHO
    assert seen.close() == code
    for begin, end in ((b"\x1b[?25l", b"\x1b[?25h"), (b"\x1b[?2004h", b"\x1b[?2004l")):
        assert seen.raw.count(begin) == seen.raw.count(end) > 0
    if trace is not None:
        assert f"hint: go on with it: manyhands replay --continue {trace}" in seen.text.replace(
            "\n", ""
        )
        assert seen.text.count("interrupted") == 1


def test_a_terminal_that_goes_away(on_terminal: Callable[..., Seen], tmp_path: Path) -> None:
    trace = tmp_path / "t"
    seen = on_terminal(team(path=trace))
    seen.wait("working")
    assert seen.hang_up() == 129
    assert trace.exists()


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_back(
    on_terminal: Callable[..., Seen],
) -> None:
    # Slowly, or else what the shell has shown is pushed off the screen before it is looked at.
    seen = on_terminal(team(delay=0.05), shell=True)
    seen.wait("Dana> ▌")
    seen.send("unfinished")
    seen.wait("Dana> unfinished▌")
    seen.send("\x1a")
    seen.wait("stopped, cooked\n$")
    assert "Alice [" not in seen.text
    assert not seen.screen.cursor.hidden
    seen.send("bg\r")
    seen.wait("$ bg\n$")
    time.sleep(0.4)  # some paintings' time
    seen.look()
    assert "Alice [" not in seen.text
    seen.send("fg\r")
    seen.wait("Dana> unfinished▌")
    assert "$ bg\n$ fg\nAlice [1]" in seen.text
    seen.send(", now sent\r")
    seen.wait("✓ unfinished, now sent")
    seen.send("\x03")
    assert seen.close() == 130


def test_a_halt_that_nobody_was_asked_for(on_terminal: Callable[..., Seen]) -> None:
    """SIGSTOP cannot be heard, so the picture is put away when it is over."""
    seen = on_terminal(team(), shell=True)
    seen.wait("Dana> ▌")
    os.killpg(os.tcgetpgrp(seen.fd), signal.SIGSTOP)
    seen.wait("stopped, raw")
    seen.send("fg\r")
    seen.wait(lambda: seen.text.count("Dana> ▌") == 1 and "working" in seen.text)
    seen.send("Go on.\r")
    seen.wait("✓ Go on.")
    seen.send("\x03")
    assert seen.close() == 130


@pytest.mark.parametrize("breaks", [False, True])
def test_another_size_leaves_no_rubbish(on_terminal: Callable[..., Seen], breaks: bool) -> None:
    """The team writes slowly, or else rubbish would soon be pushed off the screen."""
    seen = on_terminal(team(delay=0.1))
    seen.wait("Dana> ▌")
    for width, height in ((30, 24), (100, 30), (58, 10), (80, 24)):
        seen.resize(width, height, breaks=breaks)
        seen.wait(partial(_is_one_picture, seen, width, height), patience=6)
    seen.send("\x03")
    assert seen.close() == 130


def _is_one_picture(seen: Seen, width: int, height: int) -> bool:
    once = all(seen.text.count(words) == 1 for words in ("Alice [", "Bob [", " passes", "Dana> ▌"))
    columns = [line for line in seen.lines if " │ " in line]
    return once and all(line.index("│") == (width - 3) // 2 + 1 for line in columns)


@pytest.mark.parametrize("width", [20, 25, 33, 40, 60])
def test_a_narrow_terminal_shows_all_of_the_status(width: int) -> None:
    status = (
        "91/2048 passes + 12 extra",
        "182 tokens",
        "35.2 tokens/s",
        "0:04",
        "writing the reply",
    )
    account = Account(("Alice", "Bob"))
    lines = [line.plain for line in picture(account, status, width, 20)]
    shown = " ".join(lines).split()
    for part in status:
        assert all(word in shown for word in part.split()), lines
    assert all(len(line) <= width for line in lines)


def test_a_low_terminal_keeps_what_says_most() -> None:
    status = ("91/2048 passes", "182 tokens", "35.2 tokens/s", "0:04", "working")
    lines = [line.plain for line in picture(Account(("Alice",)), status, 30, 5)]
    assert lines[-1] == "91/2048 passes · working"


# -- a real run ------------------------------------------------------------------------------------


def test_what_was_typed_is_recorded_and_can_be_verified(
    solve: Cli, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is typed on a terminal, but for the keys: the same `TypedLines` in the place of a keyboard."""

    class Typing:
        def __init__(self, account: Account) -> None:
            self.account, self.talk = account, talk([])

        def __enter__(self) -> Typing:
            return self

        def __exit__(self, *error: object) -> None:
            return None

        def listen(self, say: Callable[[Item], None]) -> None:
            self.talk = TypedLines(self.account, say, "Dana")

        def show(self, event: object) -> None:
            return None

        def refresh(self, num_passes: int) -> None:
            if num_passes == 3:
                self.talk.take("Look at 2.")
            if num_passes == 6:
                self.talk.take("/pause bob")

        def end(self, outcome: Outcome) -> None:
            return None

    monkeypatch.setattr(
        module_of("solve"), "screen_for", lambda account, *rest, **more: Typing(account)
    )
    path = tmp_path / "t.jsonl"
    assert solve("1 + 2", "--budget", 9, "--transcript", path).exit_code in DONE
    heard = [item for one in read_trace(path).heard.values() for item in one.items]
    assert heard == [Said("Look at 2.", "Dana"), PauseWorker(1)]
    told = cli("replay", path, "--verify").stdout
    assert "Dana [1]: passes 5 to 5\nLook at 2." in told
    assert "verified: " in told
    assert "(100.00%)" in told
