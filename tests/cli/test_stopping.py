"""Signals that end a command: every command, whatever it is doing."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import typer

from manyhands.cli import EXIT_CODES, stopping
from manyhands.cli.evaluate import _judge
from manyhands.cli.guard import EXIT_NO_ANSWER, EXIT_READER_GONE, going_on, guarded, impossible_path
from manyhands.cli.stopping import HaltRequest, Stopped, StopRequest
from manyhands.errors import ManyhandsError
from manyhands.evaluation.judge import RUBRICS
from tests.cli.conftest import module_of
from tests.waiting import soon

_LONG = 20  # seconds
ENDS = [(signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "the terminal has gone")]


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """Signals as a command finds them in a shell, and leaves them."""
    usual: dict[signal.Signals, Any] = dict.fromkeys(
        (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP), signal.SIG_DFL
    )
    usual |= {signal.SIGCONT: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in usual.items():
        assert signal.getsignal(number) is handler
        signal.signal(number, before[number])


@pytest.mark.parametrize(("number", "code", "word"), [*ENDS, (signal.SIGINT, 130, "interrupted")])
def test_whatever_a_command_does_is_put_away(
    number: signal.Signals, code: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `train`, `bench` and while a model is loaded, which have no way of their own."""
    put_away = []

    @contextmanager
    def work() -> Iterator[None]:
        try:
            yield
        finally:
            put_away.append(True)

    with pytest.raises(typer.Exit) as left, guarded(), work():
        signal.raise_signal(number)
    assert left.value.exit_code == code
    assert put_away
    assert capsys.readouterr().err == f"{word}\n"


IN_TEXT = """
from typer import Exit
from manyhands.cli import main
import manyhands.cli.view
def view(options):
    exec("import signal\\nsignal.raise_signal(signal.SIGINT)")
manyhands.cli.view.view = view
main()
"""


def test_an_interrupt_in_text_that_is_run_ends_no_process_by_the_signal(tmp_path: Path) -> None:
    """As classes have it that are made of text. Python would send itself the signal at the end of `python -m`."""
    (tmp_path / "struck.py").write_text(IN_TEXT, encoding="utf-8")
    ended = _run(["-m", "struck", "view", "x"], tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


def test_an_import_of_a_library_is_not_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torch calls Python from C++ there, and an exception ends the process."""
    body = "import signal\nsignal.raise_signal(signal.SIGINT)\nis_whole = True\n"
    (tmp_path / "a_library.py").write_text(body, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    began = time.monotonic()

    def work() -> None:
        import_module("a_library")
        time.sleep(_LONG)

    with pytest.raises(typer.Exit) as left, guarded():
        work()
    assert left.value.exit_code == 130
    assert time.monotonic() - began < _LONG, "nothing was waited for"
    assert sys.modules.pop("a_library").is_whole
    assert capsys.readouterr().err == "interrupted\n"


def test_an_import_is_not_struck_behind_the_body_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python's own import would take it out of the modules again, and torch cannot be imported twice."""
    (tmp_path / "a_library.py").write_text("is_whole = True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    struck: list[str] = []

    def strike(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code.co_name == "exec_module" and not struck:
            struck.append(frame.f_globals["__name__"])
            signal.raise_signal(signal.SIGINT)

    def work() -> None:
        sys.setprofile(strike)
        try:
            import_module("a_library")
        finally:
            sys.setprofile(None)
        time.sleep(_LONG)

    with pytest.raises(typer.Exit) as left, guarded():
        work()
    assert left.value.exit_code == 130
    assert struck
    assert sys.modules.pop("a_library").is_whole
    assert capsys.readouterr().err == "interrupted\n"


def test_a_strike_that_came_before_a_wait_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python notes a signal that strikes just before a wait, and the wait goes on."""
    strikes: list[int] = []
    strike = stopping._strike_main_thread

    def late(number: int) -> None:
        strikes.append(number)
        if len(strikes) == 3:
            strike(number)

    monkeypatch.setattr(stopping, "_strike_main_thread", late)
    began = time.monotonic()

    def work() -> None:
        stopping._soon(signal.SIGINT)
        time.sleep(_LONG)

    with pytest.raises(typer.Exit) as left, guarded():
        work()
    assert left.value.exit_code == 130
    assert time.monotonic() - began < _LONG
    time.sleep(0.1)
    assert strikes == [signal.SIGINT] * 3


@pytest.mark.parametrize("is_ours", [True, False])
def test_whoever_hears_a_repeated_strike_hears_it_once(is_ours: bool) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with guarded(), ExitStack() as inside:
            if is_ours:
                signal.signal(signal.SIGTERM, stopping._stop)
                stop = inside.enter_context(StopRequest())
            stopping._soon(signal.SIGTERM)
            assert soon(lambda: stop.asked if is_ours else bool(heard))
            time.sleep(0.15)  # it may be repeated for as long
            assert heard == ([] if is_ours else [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)


TWICE = """
import signal, sys
from manyhands.cli.guard import guarded
sys.path.insert(0, ".")
with guarded():
    import a_library
"""


def test_a_second_signal_does_not_wait_for_an_import(tmp_path: Path) -> None:
    body = "import signal, time\nsignal.raise_signal(signal.SIGINT)\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(100)\n"
    (tmp_path / "a_library.py").write_text(body, encoding="utf-8")
    ended = _run(["-c", TWICE], tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


def test_an_error_that_an_interrupt_has_led_to_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Libraries in C make an ImportError of it."""

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    with pytest.raises(typer.Exit) as left, guarded():
        work()
    assert left.value.exit_code == 143
    assert capsys.readouterr().err == "terminated\n"
    with pytest.raises(ImportError), guarded():  # control: no interrupt
        raise ImportError("initialization failed")


BESIDE = """
import atexit, signal, sys, time
from manyhands.cli.guard import guarded
from manyhands.cli.stopping import leave_at_signals
class Ending:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
atexit.register(signal.raise_signal, signal.SIGINT)
leave_at_signals()
print("printed", end="")
if sys.argv[1] == "behind":
    atexit.register(signal.raise_signal, signal.SIGTERM)
elif sys.argv[1] == "before":
    signal.raise_signal(signal.SIGTERM)
elif sys.argv[1] == "eaten":
    try:
        with guarded():
            Ending()
            time.sleep(100)
    except Exception as error:
        sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    ("when", "code", "said"),
    [
        ("before", 143, "terminated\n"),
        ("behind", 143, "terminated\n"),
        ("eaten", 130, "interrupted\n"),
        # The last moment of a process that is done.
        ("never", 0, ""),
    ],
)
def test_signals_are_heard_where_no_command_hears_them(
    when: str, code: int, said: str, tmp_path: Path
) -> None:
    ended = _run(["-c", BESIDE, when], tmp_path)
    assert (ended.returncode, ended.stderr, ended.stdout) == (code, said, "printed")


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Of a process that is done before what it waits for is over."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=_with_usual_signals,
    )


def _with_usual_signals() -> None:
    """Signals as a shell leaves them to a command, whatever the suite was started with."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "code", "word"), ENDS)
def test_an_exam_says_that_it_goes_on(
    number: signal.Signals, code: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(typer.Exit) as left,
        guarded(),
        going_on("exam.jsonl has what is graded so far"),
    ):
        signal.raise_signal(number)
    assert left.value.exit_code == code
    assert capsys.readouterr().err.startswith(
        f"{word}; exam.jsonl has what is graded so far, and the same"
    )


def test_a_judge_names_the_file_of_its_votes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records are not its own, and were whole before."""

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module_of("evaluate"), "cast_votes", stopped)
    header = SimpleNamespace(task="lists", label="two")
    results: Any = SimpleNamespace(header=header, path=Path("exam/lists/two.jsonl"))
    judging: Any = SimpleNamespace(rubric=RUBRICS["quality"])
    with pytest.raises(typer.Exit):
        _judge(judging, [results])
    assert "exam/lists/judgements/quality/two.jsonl has what is judged" in capsys.readouterr().err


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_a_request_and_the_second_does_not_wait(second: signal.Signals) -> None:
    with guarded(), StopRequest() as stop:
        assert not stop.asked
        signal.raise_signal(signal.SIGTERM)
        assert (stop.asked, stop.number) == (True, signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as raised:
            signal.raise_signal(second)
    assert isinstance(raised.value, Stopped)
    assert raised.value.number == second


def test_what_is_ignored_stays_ignored() -> None:
    """`nohup` ignores SIGHUP, and a shell without jobs SIGTSTP."""
    for number in (signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    with guarded(), StopRequest() as stop, HaltRequest() as halt:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTSTP)
        assert not stop.asked
        assert not halt.asked
    for number in (signal.SIGHUP, signal.SIGTSTP):
        assert signal.getsignal(number) is signal.SIG_IGN
        signal.signal(number, signal.SIG_DFL)


def test_the_page_and_the_help_list_the_same_exit_codes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "terminal.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    on_page = {int(code) for row in rows for code in row.split(", ")}
    in_help = {int(code) for code in re.findall(r"(?:^|[ .])(\d+) [a-z]", EXIT_CODES)}
    of_errors = {error.exit_code for error in ManyhandsError.__subclasses__()}
    assert on_page == in_help
    assert of_errors | {EXIT_NO_ANSWER, EXIT_READER_GONE, 0, 1} < on_page


def test_a_path_that_no_file_can_have_is_told_from_other_errors() -> None:
    too_long = OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000)
    found = impossible_path(too_long)
    assert found is not None
    assert "has 5000 characters" in str(found)
    assert len(str(found)) < 200
    for other in (OSError(errno.ENOENT, "No such file", "x" * 5000), ValueError("x"), OSError()):
        assert impossible_path(other) is None


@pytest.mark.parametrize(
    ("code", "watch", "status", "said"),
    [
        ("7", "", 7, ""),
        ("None", "", 0, ""),
        ("'no words'", "", 1, "no words\n"),
        ("7", "import cProfile; cProfile.Profile().enable()", 7, ""),
    ],
)
def test_a_process_ends_with_all_that_is_registered_for_its_end(
    code: str, watch: str, status: int, said: str
) -> None:
    """Threads are waited for, functions are called, and what was printed is written, though Python is not taken apart."""
    program = f"""
import atexit, sys, threading, time
from manyhands.cli.stopping import leave_with
from tests.waiting import soon
class Kept:
    def __del__(self):
        print("taken apart")
kept = Kept()
atexit.register(lambda: print("registered"))
threading.Thread(target=lambda: (time.sleep(0.3), print("a thread"))).start()
print("printed", end=" ")
{watch}
leave_with({code})
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    is_apart = bool(watch) or status == 1
    expected = "printed a thread\nregistered\n" + ("taken apart\n" if is_apart else "")
    assert (found.returncode, found.stdout, found.stderr) == (status, expected, said)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "full", "/tmp/x"),
            "error: '/tmp/x' cannot be written: full\nhint: make room\n",
        ),
        (
            OSError(errno.EROFS, "not so"),
            "error: a file cannot be written: not so\nhint: choose a place that",
        ),
        (
            RuntimeError("I/O error: No space left on device (os error 28)"),
            "error: a file cannot be written: No space",
        ),
    ],
)
def test_a_full_disk_is_told_wherever_it_was_found(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Libraries write, too."""
    with pytest.raises(typer.Exit) as found, guarded():
        raise error
    assert found.value.exit_code == 8
    assert said in capsys.readouterr().err
