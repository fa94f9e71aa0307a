"""The command as a process: signals, pipes, terminals, and how fast it says what it can do."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import typer

from manyhands.cli import guard
from manyhands.errors import OutOfMemory
from manyhands.replay.trace import read_trace
from tests.cli.conftest import MANYHANDS
from tests.programs import is_required
from tests.warm import CLOSED, COMMAND, Warm, run

HEAVY = ("torch", "transformers", "numpy", "jinja2", "openai", "pyarrow", "matplotlib")
LOADING = HEAVY[:2]
# Modules that the list of all commands can do without: typer imports pydantic for a command's own help.
WHOLE = ("pydantic", "huggingface_hub", "asyncio", "rich.live", "rich.progress")
ROOMS = tuple(
    f"manyhands.{room}"
    for room in ("strategies", "tasks", "evaluation", "prompts", "text", "cluster", "cache", "hub")
)


LIGHT = [
    ("--help", (*HEAVY, *ROOMS, *WHOLE), ""),
    ("solve --help", HEAVY, ""),
    ("eval --help", HEAVY, ""),
    ("solve 1+2 --workers 0", HEAVY, "workers is 0"),
    ("solve 1+2 --model /no/such/folder", LOADING, "no folder '/no/such/folder'"),
    ("chat --model /no/such/folder", LOADING, "no folder '/no/such/folder'"),
    ("serve --model /no/such/folder", LOADING, "no folder '/no/such/folder'"),
    ("bench --model /no/such/folder", LOADING, "no folder '/no/such/folder'"),
    ("bench --life --model /no/such/folder", LOADING, "no folder '/no/such/folder'"),
    ("solve 1+2 --adapter /no/such/folder", LOADING, "no adapter at '/no/such/folder'"),
    ("solve 1+2 --prompts /no.toml", HEAVY, "'/no.toml' cannot be read"),
    ("view /no.jsonl", LOADING, "'/no.jsonl' cannot be read"),
    ("batch /no.jsonl /no", LOADING, "'/no.jsonl' cannot be read"),
    ("replay /no.jsonl", LOADING, "'/no.jsonl' cannot be read"),
    ("train /no.toml --out /no", LOADING, "the recipe /no.toml cannot be read"),
    ("eval --task gsm8k --source /no.jsonl --out /no", LOADING, "no file /no.jsonl"),
    ("judge /no --rubric quality --model bundled", LOADING, "no records under '/no'"),
    ("report /no", LOADING, "no records under '/no'"),
]
# Modules that every command but the list of them may import, and most do.
COMMON = (
    *WHOLE,
    "typer._adapters",
    "manyhands.strategies.methods",
    "manyhands.strategies.run_spec",
    "manyhands.cli.solve",
)
# Each command in a copy of one process that has imported the commands; behind the first, the list of all, what is common too.
IN_COPIES = r"""
import importlib, os, sys
from manyhands.cli import app
common = sys.argv[1].split()
for words, heavy in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
    if not os.fork():
        try:
            app(words.split(), standalone_mode=False)
        except BaseException:
            pass
        print(set(heavy.split()) & set(sys.modules), flush=True)
        sys.stderr.flush()
        os._exit(0)
    os.wait()
    while common:
        importlib.import_module(common.pop())
    for stream in (sys.stdout, sys.stderr):
        print(end="\0", file=stream, flush=True)
"""


@pytest.fixture(scope="module")
def told() -> dict[str, tuple[str, str]]:
    """For each command of `LIGHT` its output, which ends with the heavy modules, and its errors."""
    args = [word for words, heavy, _ in LIGHT for word in (words, " ".join(heavy))]
    shown = subprocess.run(
        [sys.executable, "-c", IN_COPIES, " ".join(COMMON), *args],
        capture_output=True,
        text=True,
        timeout=60,
    )
    pieces = zip(shown.stdout.split("\0")[:-1], shown.stderr.split("\0")[:-1], strict=True)
    return dict(zip((words for words, _, _ in LIGHT), pieces, strict=True))


@pytest.mark.parametrize(("words", "said"), [(words, said) for words, _, said in LIGHT])
def test_nothing_heavy_is_imported_before_it_is_needed(
    words: str, said: str, told: dict[str, tuple[str, str]]
) -> None:
    output, errors = told[words]
    assert said in errors, (output, errors)
    assert output.endswith("set()\n"), (output, errors)


def test_too_little_memory_is_one_clear_error() -> None:
    limited = f"ulimit -v 500000; exec {shlex.join(MANYHANDS)} solve '1 + 2' --device cpu"
    found = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60)
    assert found.returncode == 6, found.stderr
    assert "error: the 512 MB of address space that this process may use do not" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_command_that_is_over_does_not_lack_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without an answer leaves with 9, however little address space there is."""
    monkeypatch.setattr(guard, "_address_space", lambda: 1 << 30)
    with pytest.raises(typer.Exit) as left, guard.guarded():
        raise typer.Exit(guard.EXIT_NO_ANSWER)
    assert left.value.exit_code == guard.EXIT_NO_ANSWER
    with pytest.raises(typer.Exit) as left, guard.guarded():  # control: the limit does count
        raise RuntimeError("can't start new thread")
    assert left.value.exit_code == OutOfMemory.exit_code


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        OSError(errno.EMFILE, "Too many open files", "x.json"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    ],
)
def test_a_limit_of_the_system_is_one_clear_error(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as left, guard.guarded():
        raise error
    assert left.value.exit_code == 1
    assert "the system gives this process no more of what it needs: " in capsys.readouterr().err
    slow_reader = BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 3)
    with pytest.raises(BlockingIOError), guard.guarded():  # control: no limit
        raise slow_reader


def test_without_a_temporary_folder_there_is_one_clear_error(tmp_path: Path) -> None:
    """Whichever library looks for one first."""
    walls = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    walls += ["--remount-ro", "/dev", "--unsetenv", "TMPDIR", "--chdir", str(tmp_path)]
    has_walls = (
        shutil.which("bwrap") and not subprocess.run([*walls, "true"], check=False).returncode
    )
    if not has_walls and not is_required():
        pytest.skip("bubblewrap, which makes all read-only, is not there or not allowed")
    program = "import tempfile; from manyhands.cli import guard\nwith guard.guarded(): tempfile.gettempdir()"
    found = subprocess.run(
        [*walls, sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "error: there is no folder for temporary files that can be written to" in found.stderr
    assert "hint: Give one: TMPDIR=FOLDER" in found.stderr


@pytest.mark.parametrize("words", ["prompts", "solve --help"])
def test_the_reader_goes_away(words: str) -> None:
    process = subprocess.Popen(
        [*MANYHANDS, *words.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("words", ["--version", "--help"])
def test_a_full_disk_under_the_output(words: str) -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [*MANYHANDS, *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert process.returncode == 8
    assert process.stderr.startswith("error: the output could not be written: No space left")
    assert "Exception" not in process.stderr
    assert "Traceback" not in process.stderr


def test_a_full_disk_under_messages_ends_nothing() -> None:
    """Also where another library's words could not be written before: they wait in the stream for the next flush."""
    program = """if True:
        import sys
        from manyhands.cli.guard import tell
        try:
            sys.stderr.write("of another library\\n")
        except OSError:
            print("full")
        tell("one")
        tell("two")
        print("goes on")
        """
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            timeout=60,
        )
    assert (process.returncode, process.stdout) == (0, "full\ngoes on\n")


@pytest.mark.parametrize("words", ["prompts", "--help"])
def test_nothing_is_said_into_a_closed_output(words: str) -> None:
    command = " ".join(f"'{word}'" for word in (*MANYHANDS, *words.split()))
    process = subprocess.run(
        ["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert process.returncode == 8
    assert process.stderr.startswith("error: the output could not be written: it is closed")
    assert process.stderr.endswith("hint: send it elsewhere\n")


def test_a_reply_into_a_closed_output_is_lost_and_said_so(model: Path) -> None:
    words = [*COMMAND, "solve", "1 + 2", "--model", str(model), "--budget", "3", "--quiet"]
    words += ["--reply-tokens", "3", "--finisher-tokens", "2"]
    process = run(words, stdout=CLOSED)
    assert process.returncode == 8
    assert process.stderr.startswith("error: the output could not be written: it is closed")


def test_an_error_is_an_error_when_nobody_hears_of_it() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    process = subprocess.run([*MANYHANDS, "solve", " "], stderr=theirs, timeout=60)
    os.close(theirs)
    assert process.returncode == 2


def test_ctrl_c_before_anything_has_begun() -> None:
    """While modules are imported: the first one that is wanted interrupts."""
    code = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from manyhands.cli import main\n"
        "main()"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (process.returncode, process.stdout, process.stderr) == (130, b"", b"interrupted\n")


def test_closed_streams() -> None:
    """All of them as a shell closes them, and each one alone."""
    command = f"{shlex.join(MANYHANDS)} solve <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], timeout=60).returncode == 2
    for name in ("stdin", "stdout", "stderr"):
        assert run([*COMMAND, "solve"], **{name: CLOSED}).returncode == 2, name


def test_a_terminal_without_our_letters(model: Path) -> None:
    result = subprocess.run(
        [*solve_for_long(model), "--transcript", "/nowhere/é"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert result.returncode == 8
    assert "'/nowhere/?'" in result.stderr


def solve_for_long(model: Path) -> list[str]:
    options = ("--budget", "2000", "--temperature", "1", "--check-every", "0")
    return [*COMMAND, "solve", "1 + 2", "--model", str(model), *options]


def _wait_for(path: Path, num_lines: int) -> None:
    end = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") < num_lines:
        assert time.monotonic() < end, "the run does not begin"
        time.sleep(0.05)


def test_ctrl_c_ends_cleanly(model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    process = Warm(
        [*solve_for_long(model), "--json", "--transcript", str(trace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _wait_for(trace, 40)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(out)
    assert found["finish_reason"] == "interrupted"
    assert found["forward_passes"] > 0
    assert found["text"].startswith("Alice [1]: ")
    passes = found["forward_passes"]
    said = f"interrupted after {passes} forward passes\nhint: go on with it: manyhands replay --continue"
    assert err == f"{said} {trace}\n"
    saved = read_trace(trace)
    assert not saved.is_complete
    assert len(saved.passes) == passes + found["extra_passes"]


def test_a_terminal(model: Path) -> None:
    """A real one, 80 cells wide: columns while it runs, Ctrl-C, all that was written."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = Warm(
        solve_for_long(model),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "", "LINES": ""},
    )
    os.close(theirs)
    seen, end, pressed = b"", time.monotonic() + 60, False
    while time.monotonic() < end:
        if not select.select([ours], [], [], 0.1)[0]:
            continue
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other side has closed it
            break
        # The first passes may have written nothing that can be shown.
        made = max(map(int, re.findall(rb"(\d+)/2000 passes", seen)), default=0)
        if made >= 4 and not pressed:
            assert b"working" in seen
            process.send_signal(signal.SIGINT)
            pressed = True
    os.close(ours)
    assert process.wait(60) == 130
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "\x1b" not in shown
    assert "Alice [1]" in shown
    assert " │ Bob [1]" in shown
    assert "Alice [1] (unfinished): " in shown
    assert shown.count("interrupted") == 1
    assert "Ended: interrupted · " in shown
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h") == 1  # the cursor is back
    assert "Traceback" not in shown
