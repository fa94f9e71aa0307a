"""Programs that a model wrote: every attack has an end and a name, and no answer is a verdict."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from io import FileIO
from pathlib import Path

import pytest

from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.sandbox import Call, Ended, Failed, Isolation, Limits, run_program
from manyhands.sandbox import isolation as isolations
from tests.programs import is_required, isolation

QUICK = Limits(
    seconds=0.6, memory_bytes=1 << 29, output_bytes=10_000, file_bytes=100_000, open_files=32
)
PATIENT = Limits(seconds=20.0, memory_bytes=1 << 29, output_bytes=10_000)
ADD = "def add(a, b):\n    return a + b\n"
IN_CLASS = "class Solution:\n    def add(self, a, b):\n        return a + b\n"


@pytest.fixture(autouse=True)
def can_run() -> None:
    """Programs can be closed in here."""
    isolation()


def closed() -> Isolation:
    """Full isolation, or a skip that says so."""
    found = isolation()
    if found.kind != "bubblewrap":
        assert not is_required(), "bubblewrap is not installed here"
        pytest.skip("bubblewrap is not installed here")
    return found


@pytest.mark.parametrize(
    ("source", "call", "ended"),
    [
        ("print(int(input()) + 1)", None, Ended("42\n")),
        ("import sys\nsys.exit()", None, Ended("")),
        (ADD, Call("add", [1, 2]), Ended("", 3)),
        (IN_CLASS, Call("add", [[1], [2]]), Ended("", [1, 2])),
        (ADD + "print('said')", Call("add", ["ä", "\n"]), Ended("said\n", "ä\n")),
        ("import socket, threading, ctypes; print('the library')", None, Ended("the library\n")),
    ],
)
def test_a_program_answers(source: str, call: Call | None, ended: Ended) -> None:
    assert run_program(source, "41\n", PATIENT, call=call) == ended


@pytest.mark.parametrize(
    ("source", "kind", "why"),
    [
        ("while True: pass", "timeout", "took over 0.6 s"),
        ("import os\nos.closerange(0, 30)\nwhile True: pass", "timeout", "took over 0.6 s"),
        ("while True: print('a' * 100)", "output", "gave more than 10000 bytes"),
        ("import os\nwhile True: os.write(2, b'a' * 100)", "output", "gave more than 10000"),
        ("1 / 0", "error", "ended with: ZeroDivisionError"),
        ("print(", "error", "ended with: SyntaxError"),
        ("import sys; sys.exit(3)", "crash", "ended its process (status 3)"),
        ("import os; os.abort()", "crash", "crashed (SIGABRT)"),
        ("open('x', 'w').write('1' * 200_000)", "error", "File too large"),
        ("import os\n[os.dup(1) for _ in range(99)]", "error", "Too many open files"),
    ],
)
def test_a_program_that_goes_wrong(source: str, kind: str, why: str) -> None:
    began = time.monotonic()
    outcome = run_program(source, limits=QUICK)
    assert time.monotonic() - began < 60
    assert isinstance(outcome, Failed), outcome
    if kind != "timeout" and outcome.kind == "timeout":  # a busy machine
        outcome = run_program(source, limits=PATIENT)
        assert isinstance(outcome, Failed), outcome
    assert (outcome.kind, why in outcome.why) == (kind, True), outcome


def test_ten_gigabytes_are_refused() -> None:
    refused = Failed("memory", "needed more memory than allowed")
    assert run_program("x = bytearray(10 * 10**9)", limits=PATIENT) == refused


def test_a_fork_bomb_has_few_processes_and_leaves_none() -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert run_program(bomb, limits=QUICK) == Failed("timeout", "took over 0.6 s")
    count = (
        "import os, time\nnumber = 1\n"
        "try:\n    while os.fork(): number += 1\n"
        "except OSError: print(number)\n"
        "else: time.sleep(60)\n"
    )

    outcome = run_program(count, limits=PATIENT)
    assert isinstance(outcome, Ended)
    assert int(outcome.printed) <= PATIENT.processes


def test_a_process_that_leaves_the_session_ends_too() -> None:
    closed()
    escape = "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(61.5)\nprint(1)"
    began = time.monotonic()
    assert run_program(escape, limits=PATIENT) == Ended("1\n")
    assert time.monotonic() - began < 40  # of the 61.5 that the other one sleeps


def test_there_is_no_network() -> None:
    closed()
    outside = "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=5)"
    outcome = run_program(outside, limits=PATIENT)
    assert isinstance(outcome, Failed)
    assert "Network is unreachable" in outcome.why


def test_files_outside_are_not_there(tmp_path: Path) -> None:
    closed()
    secret = tmp_path / "gold.txt"
    secret.write_text("42")
    program = f"""
import os
for path in ({str(secret)!r}, '/etc/passwd', {__file__!r}, '/proc/1/environ'):
    try: print(open(path).read())
    except OSError as error: print('no')
for path in ('/usr/x', '/dev/shm/x', '/x', {str(tmp_path / "x")!r}):
    try: open(path, 'w')
    except OSError as error: print('no')
open('mine', 'w').write('1')
print(os.listdir('.'), os.getuid() != 0, sorted(set(os.environ) - {{'LC_CTYPE', 'PWD'}}))
"""
    assert run_program(program, limits=PATIENT) == Ended("no\n" * 8 + "['mine'] True ['PATH']\n")
    assert run_program("import os; print(os.listdir('.'))", limits=PATIENT) == Ended("[]\n")


@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(0)",
        "print('passed', flush=True)\nimport os\nos._exit(0)",
        "import sys; sys.exit(0)",
        "import os\nfor number in range(3, 32):\n  try: os.close(number)\n  except OSError: pass",
        ADD + "raise SystemExit",
    ],
)
def test_an_early_end_is_no_answer(source: str) -> None:
    """Status 0 says nothing, and neither does a word on the way out."""
    outcome = run_program(source, limits=PATIENT, call=Call("add", [1, 2]))
    assert isinstance(outcome, Failed), outcome


def test_an_object_that_equals_everything_is_not_equal() -> None:
    """Values cross as JSON and are compared outside, so methods of the program's classes stay behind."""
    liar = """
class Liar(int):
    def __eq__(self, other): return True
    def __repr__(self): return '3'
    __str__, __hash__ = __repr__, int.__hash__
def add(a, b): return Liar(7)
"""
    outcome = run_program(liar, limits=PATIENT, call=Call("add", [1, 2]))
    assert outcome == Ended("", 7)
    assert outcome != Ended("", 3)
    plain = run_program(
        liar.replace("(int)", "").replace("(7)", "()"), limits=PATIENT, call=Call("add", [1, 2])
    )
    assert isinstance(plain, Failed)
    assert "not JSON serializable" in plain.why


def test_limits_alone_still_end_a_program() -> None:
    """The way of a system without namespaces; it closes neither network nor files, and says so."""
    alone = Isolation("limits")
    assert "network, files and processes can be reached" in alone.about
    assert run_program("print(1)", limits=PATIENT, isolation=alone) == Ended("1\n")
    endless = run_program("while True: pass", limits=QUICK, isolation=alone)
    assert endless == Failed("timeout", "took over 0.6 s")


def test_what_cannot_be_closed_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolations, "which", lambda name: None)
    find = isolations.find_isolation.__wrapped__
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(InvalidRequest, match="do not run as root without bubblewrap") as raised:
        find()
    assert "apt-get install bubblewrap" in raised.value.hint
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find().kind == "limits"
    monkeypatch.setattr(isolations, "which", lambda name: "/bin/false")  # there, and forbidden
    assert find().kind == "limits"
    with pytest.raises(InvalidRequest, match="a program could not be started"):
        run_program("1", isolation=Isolation("limits", ("/no/such/program",)))


def test_the_first_lines_need_no_package() -> None:
    """They run in a Python without site packages and without this one."""
    source = Path(isolations.__file__).with_name("inside.py").read_text("utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"compile({source!r}, 'inside.py', 'exec')"],
        capture_output=True,
    )
    assert (done.returncode, "manyhands" in source.partition('"""\n\n')[2]) == (0, False)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_program_whose_input_finds_no_room_says_so(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is no fault of the program, which a bare error of the system would look like."""

    class Full(FileIO):
        def write(self, content: object, /) -> int:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(
        tempfile, "TemporaryFile", lambda **more: Full(os.open("/dev/null", os.O_RDWR), "r+")
    )
    with pytest.raises(OutputFailed, match=r"cannot be written to: (No space|Read-only)") as found:
        run_program("print(1)", "1\n", QUICK)
    assert "TMPDIR" in str(found.value.hint)
