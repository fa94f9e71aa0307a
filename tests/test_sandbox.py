"""The sandbox: every way in which a function may go wrong has a name, and no process is left behind."""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from manyhands.errors import InvalidRequest, scarcity_of
from manyhands.sandbox import Failed, Limits, Returned, Sandbox
from manyhands.schema.setting import settings_of

HERE = "tests.test_sandbox"
QUICK = Limits(seconds=1.0, memory_bytes=1 << 30, output_bytes=10_000, file_bytes=100_000)
SHORT = replace(QUICK, seconds=0.5)  # for what never ends
PATIENT = replace(
    QUICK, seconds=60.0
)  # for all that does not end by its time, on a busy machine too


# -- functions that run in the sandbox -------------------------------------------------------------


def evaluate(program: str) -> object:
    """The value of an expression that may use `os`, `sys`, `time`, `subprocess`."""
    return eval(program)


def fork_and_return(file: str) -> str:
    """Both processes come back; the copy lives long enough to be seen."""
    pid = os.fork()
    if not pid:
        Path(file).write_text(str(os.getpid()))
        time.sleep(60)
    while not Path(file).exists() or not Path(file).read_text():
        time.sleep(0.01)
    return "the first"


def spin_with_a_child(file: str) -> None:
    """An endless loop beside a process of its own."""
    sleeper = subprocess.Popen(["sleep", "600"])
    Path(file).write_text(json.dumps([os.getpid(), sleeper.pid]))
    while True:
        pass


def burn_and_tell_the_limit() -> int:
    """Just over a second of CPU time; the process's limit of it, in seconds."""
    end = time.process_time() + 1.1
    while time.process_time() < end:
        pass
    return resource.getrlimit(resource.RLIMIT_CPU)[0]


# ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(f"{HERE}:evaluate", PATIENT) as made:
        yield made


@pytest.fixture(scope="module")
def quick() -> Iterator[Sandbox]:
    with Sandbox(f"{HERE}:evaluate", SHORT) as made:
        yield made


def gone(pid: int) -> bool:
    """Whether there is no such process any more, within half a minute."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[-1][:3]:
            return True  # an orphan that is dead, not yet taken away by its new parent
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("program", "kind", "why"),
    [
        ("[0 for _ in iter(int, 1)]", "timeout", "took over 0.5 s"),
        ("9 ** 9 ** 9", "timeout", "took over 0.5 s"),  # C code that gives no other thread a chance
        ("bytearray(10 * 10**9)", "memory", "needed more memory than allowed"),
        ("[print('a' * 1000) for _ in iter(int, 1)]", "output", "gave more than 10000 bytes"),
        ("[os.write(2, b'a' * 1000) for _ in iter(int, 1)]", "output", "gave more than 10000 byte"),
        ("'a' * 20_000", "output", "gave more than 10000 bytes"),
        ("os.abort()", "crash", "crashed (SIGABRT)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crash", "crashed (SIGSEGV)"),
        ("os._exit(0)", "crash", "ended its process (status 0)"),
        ("os._exit(3)", "crash", "ended its process (status 3)"),
        ("sys.exit(3)", "error", "raised SystemExit: 3"),
        ("1 / 0", "error", "raised ZeroDivisionError: division by zero"),
        ("object()", "error", "raised TypeError: Object of type object is not JSON serializable"),
        ("open(os.devnull + '/no')", "error", "raised NotADirectoryError"),
        ("[open(os.devnull) for _ in range(100)]", "error", "Too many open files"),
        ("os.close(os.dup2(1, 5)) or os.closerange(3, 50)", "crash", ""),  # the channel itself
        ("x" * 5000, "error", "raised NameError"),
    ],
)
def test_a_failure_has_a_name_and_the_next_call_works(
    sandbox: Sandbox, quick: Sandbox, program: str, kind: str, why: str
) -> None:
    used = quick if kind == "timeout" else sandbox
    began = time.monotonic()
    outcome = used.run(program)
    assert time.monotonic() - began < 30
    assert isinstance(outcome, Failed), outcome
    assert (outcome.kind, why in outcome.why) == (kind, True), outcome
    if kind != "timeout":
        assert used.run("1 + 1") == Returned(2)


def test_after_a_call_that_took_too_long_the_next_one_works() -> None:
    with Sandbox(f"{HERE}:evaluate", SHORT) as made:
        assert made.run("time.sleep(600)") == Failed("timeout", "took over 0.5 s")
        made.limits = PATIENT
        assert made.run("1 + 1") == Returned(2)


def test_a_large_file_is_not_written(sandbox: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "large"
    outcome = sandbox.run(f"open({str(file)!r}, 'wb', 0).write(b'a' * 1_000_000)")
    assert file.stat().st_size <= QUICK.file_bytes
    assert outcome == Returned(QUICK.file_bytes)


def test_control_what_limits_allow_passes(sandbox: Sandbox) -> None:
    for program, value in (
        ("len(bytearray(10**8))", 10**8),
        ("time.sleep(0.1)", None),
        ("print('a' * 9_000)", None),
        ("'a' * 9_000", "a" * 9000),
        ("sys.stdin.read()", ""),
        ("(1, [2.5, 'ä\\n'], {'x': None})", [1, [2.5, "ä\n"], {"x": None}]),
    ):
        assert sandbox.run(program) == Returned(value)


def test_one_child_serves_many_calls_quickly(sandbox: Sandbox) -> None:
    first = sandbox.run("os.getpid()")
    began = time.monotonic()
    for number in range(500):
        assert sandbox.run(str(number)) == Returned(number)
    assert time.monotonic() - began < 30  # 0.15 s when the machine is free
    assert sandbox.run("os.getpid()") == first


def test_the_limit_of_processor_time_moves_with_every_call() -> None:
    """The kernel counts the CPU time of a process, which serves many calls."""
    with Sandbox(f"{HERE}:burn_and_tell_the_limit", Limits(30)) as sandbox:
        first, second = sandbox.run(), sandbox.run()
    assert isinstance(first, Returned)
    assert isinstance(second, Returned)
    assert 31 <= first.value < second.value <= 35


def test_a_child_may_be_started_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting it does not wait for its imports: here they do not end before it has returned."""
    returned = tmp_path / "returned"
    (tmp_path / "slow_to_import.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(returned)!r}): time.sleep(0.01)\n"
        "def number(): return os.getpid()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Sandbox("slow_to_import:number", PATIENT) as made:
        made.start()
        made.start()
        returned.touch()
        assert made.run() == made.run()
    with Sandbox("no.module:here", QUICK) as made:
        made.start()
        with pytest.raises(InvalidRequest, match="did not start"):
            made.run()


def test_a_child_that_may_have_no_thread_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "without_threads.py").write_text('raise RuntimeError("can\'t start new thread")')
    monkeypatch.syspath_prepend(tmp_path)
    refused = pytest.raises(InvalidRequest, match="did not start")
    with Sandbox("without_threads:number", PATIENT) as made, refused as caught:
        made.run()
    assert scarcity_of(caught.value) == "can't start new thread"
    assert "can't start new thread" in caught.value.hint


def test_a_machine_that_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(InvalidRequest, match=r"did not start: .*/no/such/python") as caught:
        Sandbox(f"{HERE}:evaluate", QUICK).run("1")
    assert "another process" in caught.value.hint


def test_threads_take_turns(sandbox: Sandbox) -> None:
    found: list[object] = []
    threads = [
        Thread(target=lambda n=n: found.append(sandbox.run(f"time.sleep(0.05) or {n}")))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.value for outcome in found) == [0, 1, 2, 3]  # type: ignore[attr-defined]


def test_a_copy_of_the_process_says_nothing_and_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with Sandbox(f"{HERE}:fork_and_return", Limits(10)) as sandbox:
        assert sandbox.run(str(file)) == Returned("the first")
        assert gone(int(file.read_text()))  # although the sandbox goes on
        file.unlink()
        assert sandbox.run(str(file)) == Returned("the first")


def test_processes_of_a_call_end_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    # A machine may be so busy that a call has not said what it has begun: the next one has longer.
    for seconds in (3.0, 30.0):
        with Sandbox(f"{HERE}:spin_with_a_child", replace(QUICK, seconds=seconds)) as sandbox:
            assert sandbox.run(str(file)) == Failed("timeout", f"took over {seconds:g} s")
            if file.exists() and (begun := file.read_text()):
                assert all(gone(pid) for pid in json.loads(begun))
                return
    pytest.fail("no call said what it had begun")


def test_a_child_killed_between_two_calls_is_replaced(sandbox: Sandbox) -> None:
    outcome = sandbox.run("os.getpid()")
    assert isinstance(outcome, Returned)
    os.kill(outcome.value, signal.SIGKILL)
    os.waitid(os.P_PID, outcome.value, os.WEXITED | os.WNOWAIT)  # all its threads, and so its pipes
    assert sandbox.run("1 + 1") == Returned(2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_command_are_left_to_the_caller(
    sandbox: Sandbox, number: signal.Signals
) -> None:
    """systemd sends them to every process of a service, whose last requests want an answer."""
    outcome = sandbox.run("os.getpid()")
    assert isinstance(outcome, Returned)
    os.kill(outcome.value, number)
    assert sandbox.run("os.getpid()") == outcome


def test_no_process_is_left_behind() -> None:
    sandbox = Sandbox(f"{HERE}:evaluate", PATIENT)
    closed = sandbox.run("os.getpid()")
    sandbox.close()
    sandbox.close()
    dropped = sandbox.run("os.getpid()")  # another one
    assert isinstance(closed, Returned)
    assert isinstance(dropped, Returned)
    assert dropped != closed
    assert gone(closed.value)
    del sandbox
    gc.collect()
    assert gone(dropped.value)


CALLER = f"""
import sys, threading, time
from manyhands.sandbox import Limits, Sandbox
sandbox = Sandbox("{HERE}:spin_with_a_child", Limits(60))
print("ready", flush=True)
sandbox.run(sys.argv[1])
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_goes_with_its_caller(tmp_path: Path, end: signal.Signals) -> None:
    """Killed, or stopped by Ctrl-C, in the middle of a call that never ends."""
    file = tmp_path / "pids"
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for _ in range(1200):
        if file.exists() and file.read_text().endswith("]"):
            break
        time.sleep(0.05)
    pids = json.loads(file.read_text())
    os.kill(caller.pid, end)
    _, said = caller.communicate(timeout=60)
    assert all(gone(pid) for pid in pids)
    assert (b"KeyboardInterrupt" in said) == (end == signal.SIGINT)


def test_an_interrupt_leaves_no_answer_for_the_next_call(sandbox: Sandbox, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def interrupt() -> None:
        for _ in range(600):
            if begun.exists():
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (it may come as soon as the thread is there)
        thread.start()
        sandbox.run(f"open({str(begun)!r}, 'w').close() or time.sleep(30) or 'late'")
    thread.join()
    assert sandbox.run("'fresh'") == Returned("fresh")


def test_it_travels_to_another_process_as_a_fresh_one(sandbox: Sandbox) -> None:
    copy = pickle.loads(pickle.dumps(sandbox))
    assert (copy.function, copy.limits) == (sandbox.function, sandbox.limits)
    with copy:
        assert copy.run("2") == Returned(2)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("manyhands.no_such_module:f", "No module named 'manyhands.no_such_module'"),
        (f"{HERE}:no_such_function", "has no attribute 'no_such_function'"),
    ],
)
def test_a_function_that_is_not_there(function: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"the sandbox of {function} did not start") as raised:
        Sandbox(function).run()
    assert said in raised.value.hint


@pytest.mark.parametrize("name", [one.name for one in fields(Limits)])
@pytest.mark.parametrize("wrong", [0, -1, 1e999, float("nan"), 1e300, 10**400, True, "3", None])
def test_limits_are_numbers_that_a_system_can_count(name: str, wrong: Any) -> None:
    """Beyond these a timer's thread died, and the child with it, or nothing was limited."""
    with pytest.raises(InvalidRequest, match=f"{name} is .*; expected"):
        Limits(**{name: wrong})


@pytest.mark.parametrize("name", [one.name for one in fields(Limits)])
def test_the_largest_limits_work(name: str) -> None:
    most = settings_of(Limits)[name].at_most
    assert most is not None
    with Sandbox("operator:add", Limits(**{name: type(getattr(Limits(), name))(most)})) as sandbox:
        assert sandbox.run(1, 2) == Returned(3)


def test_limits_of_other_libraries_are_pythons_own() -> None:
    seconds: Any = np.float32(20.0)
    open_files: Any = np.int64(60)
    with Sandbox("operator:add", Limits(seconds, open_files=open_files)) as sandbox:
        assert sandbox.run(1, 2) == Returned(3)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # for threads, by later Pythons
def test_a_fork_of_the_caller_leaves_its_process_alone(tmp_path: Path) -> None:
    """Its end would have killed the call under way; and it would have read the answers of the original's."""
    there = tmp_path / "there"
    with Sandbox(f"{HERE}:evaluate", PATIENT) as sandbox:
        here = sandbox.run("os.getpid()")
        if not (fork := os.fork()):
            try:
                own = sandbox.run("os.getpid()")
                assert sandbox._end is not None
                sandbox._end()  # as at its end
                sandbox._child = None
                gc.collect()
                there.write_text(repr(own != here and isinstance(own, Returned)))
            finally:
                os._exit(0)
        os.waitpid(fork, 0)
        assert there.read_text() == "True"
        assert sandbox.run("os.getpid()") == here

    with Sandbox(f"{HERE}:evaluate", PATIENT) as sandbox:
        here = sandbox.run("os.getpid()")
        if not (fork := os.fork()):
            try:
                sandbox.close()
            finally:
                os._exit(0)
        os.waitpid(fork, 0)
        assert sandbox.run("os.getpid()") == here
