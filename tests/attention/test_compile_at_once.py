"""Kernels that are met are compiled by processes and launch nothing meanwhile; a process of its own, since here Triton interprets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from manyhands.attention.compile_at_once import begin_key, compiling_at_once

pytest.importorskip("triton", reason="Triton exists for Linux alone")
ROOT = Path(__file__).parents[2]

PROGRAM = """
import json
import os
import threading

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import driver

from manyhands.attention import compile_at_once
from manyhands.attention.compile_at_once import compiling_at_once, counting_new_kernels
from tests.no_device import NoDevice

driver.set_active(NoDevice(90))
print("said before")  # and not again by each child
fork, forks = compile_at_once._fork, []
compile_at_once._fork = lambda noted, children: forks.append(len(noted)) or fork(noted, children)
compile_at_once.os.sched_getaffinity = lambda _: range(3)


@triton.jit
def copied(x, y, SIZE: tl.constexpr):
    tl.static_assert(SIZE < 64, "too many")
    i = tl.arange(0, SIZE)
    tl.store(y + i, tl.load(x + i))


def launched(size):
    # The error of a launch: there is no device.
    try:
        copied[1,](x, x, SIZE=size)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


x = torch.zeros(64)
hits, seen, told = [], [], {"failed": "", "launched": ""}
knobs.compilation.listener = before = lambda *, cache_hit, **_: hits.append(cache_hit)
with compiling_at_once(lambda *many: seen.append(many)) as kernels:
    for size in (16, 32, 16, 64):
        copied[1,](x, x, SIZE=size)
    other = threading.Thread(target=lambda: told.update(other=launched(4)))
    other.start()
    other.join()
    told["within"] = len(copied.device_caches[90][0]), kernels.num_new
told["new"], told["seen"], told["forks"] = kernels.num_new, seen, forks
with counting_new_kernels() as kernels:
    copied.warmup(x, x, SIZE=8, grid=(1,))
    told["counted"] = kernels.num_new
told["is_as_before"] = knobs.compilation.listener is before and knobs.runtime.jit_cache_hook is None
told["compiled"] = len(copied.device_caches[90][0])
for name, size in (("failed", 64), ("launched", 16)):
    told[name] = launched(size)
told["listened"] = hits
try:
    told["children"] = os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    told["children"] = 0
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of a process whose cache on disk is empty, and of one that finds what the first has left."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "program.py").write_text(PROGRAM)  # Triton reads the source of a kernel
    place = {"TRITON_CACHE_DIR": str(folder / "cache"), "TRITON_INTERPRET": "0"}
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(folder / "program.py")],
            env={**os.environ, **place, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        before, said = done.stdout.splitlines()
        assert before == "said before"
        found.append(json.loads(said))
    return found


def test_each_is_compiled_once_and_behind_the_block_all_are(told: list[dict[str, Any]]) -> None:
    """Two of three: one fails. Another thread's launch is its own matter. Triton's cache on disk serves the second process."""
    assert [each["within"] for each in told] == [[1, 1], [1, 0]]
    assert all("'NoDevice' object has no" in each["other"] for each in told)
    assert [each["new"] for each in told] == [3, 0]
    assert [each["seen"] for each in told] == [[[1, 3], [2, 3], [3, 3]]] * 2
    assert [each["counted"] for each in told] == [1, 0]
    # Kernels on disk are loaded without children: the one that fails is not there.
    assert [each["forks"] for each in told] == [[3, 3, 3], [1]]
    assert [each["compiled"] for each in told] == [4, 4]
    assert [each["children"] for each in told] == [0, 0]
    assert all(each["is_as_before"] for each in told)


def test_nothing_was_launched_and_a_kernel_that_fails_says_so_when_it_is(
    told: list[dict[str, Any]],
) -> None:
    """Control: behind the block a launch asks for the device that is not there, and compiles nothing."""
    for each in told:
        assert "too many" in each["failed"]
        assert "'NoDevice' object has no" in each["launched"]
    # Kernels that children have compiled are loaded; the other thread's is compiled, and so is the last one.
    listened = [each["listened"] for each in told]
    assert listened == [[False, True, True, False], [True] * 4], (
        "who listened before is told of all"
    )


# The trouble of the second of three children, how compiling ends, and how many are counted.
TROUBLES = {
    "hangs": ("time.sleep(600)", "went on", 2),
    "dies": ("os._exit(1)", "went on", 2),
    "fails": ("1 / 0", "went on", 3),
    "is interrupted": ("_thread.interrupt_main() or time.sleep(600)", "went on", 2),
    "parent is interrupted": ("time.sleep(600)", "interrupted", 2),
    "all are killed": ("time.sleep(600)", "killed", 2),
}
# Each trouble befalls a copy of one process, all at once.
IN_TROUBLE = f"""
import _thread, os, pathlib, signal, sys, threading, time, traceback
from triton.runtime import driver
from manyhands.attention import compile_at_once
from tests.no_device import NoDevice

def children():
    return [int(pid) for place in pathlib.Path("/proc/self/task").glob("*/children") for pid in place.read_text().split()]

def befallen(trouble, how):
    def told(done, whole):
        seen.append(done)
        if how == "interrupted" and done == 2:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        if how == "killed" and done == 2:
            for pid in children():
                os.kill(pid, signal.SIGKILL)

    compile_at_once._PATIENCE = 3.0 if (trouble, how) == ("time.sleep(600)", "went on") else 600.0
    kernels, seen = compile_at_once.Kernels(), []
    kernels._noted = {{(0, "well"): lambda: None, (0, "not"): lambda: eval(trouble), (0, "other"): lambda: None}}
    end = "killed" if how == "killed" else "went on"
    try:
        kernels.compile(told)
    except KeyboardInterrupt:
        end = "interrupted"
    print(end, len(seen), len(children()), flush=True)

driver.set_active(NoDevice(90))
compile_at_once.os.sched_getaffinity = lambda _: range(3)
compile_at_once._is_loaded = lambda noted: False
folder = pathlib.Path(sys.argv[1])
for name, (trouble, how, _) in {TROUBLES!r}.items():
    if not os.fork():
        code = 1
        signal.alarm(50)
        try:
            for stream, file in ((1, "said"), (2, "errors")):
                os.dup2(os.open(folder / f"{{name}} {{file}}", os.O_WRONLY | os.O_CREAT), stream)
            befallen(trouble, how)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
"""


@pytest.fixture(scope="module")
def troubles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what was said and what errors there were in each of them."""
    folder = tmp_path_factory.mktemp("troubles")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_TROUBLE, str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "TRITON_INTERPRET": "0",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    return folder


@pytest.mark.parametrize("name", TROUBLES)
def test_a_child_in_trouble_keeps_nothing_waiting(name: str, troubles: Path) -> None:
    """And no child is left. Patience is for the one that hangs alone."""
    _, how, reached = TROUBLES[name]
    said, errors = ((troubles / f"{name} {file}").read_text() for file in ("said", "errors"))
    assert said == f"{how} {reached} 0\n", errors
    assert not errors, "children say nothing"


def test_names_in_the_cache_are_found_out_ahead() -> None:
    from triton.runtime.cache import triton_key

    triton_key.cache_clear()
    thread = begin_key()
    assert thread is not None
    thread.join()
    assert triton_key.cache_info().currsize == 1


@pytest.mark.parametrize("is_there", [False, True])
def test_another_triton_says_nothing_ahead(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without such names, and one that fails to find them."""
    from triton.runtime import cache

    seen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    if is_there:
        monkeypatch.setattr(cache, "triton_key", lambda: 1 / 0)
    else:
        monkeypatch.delattr(cache, "triton_key")
    thread = begin_key()
    assert (thread is not None) == is_there
    if thread is not None:
        thread.join()
    assert not seen


def test_two_threads_that_get_ready_leave_triton_as_it_was() -> None:
    """One waits for the other; in turns each would put back what the other has put there."""
    from triton import knobs

    before = knobs.runtime.jit_cache_hook, knobs.compilation.listener
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with compiling_at_once(lambda done, whole: None):
            first_in.set()
            second_in.wait(0.3)  # in vain
        first_out.set()

    def second() -> None:
        first_in.wait(10)
        with compiling_at_once(lambda done, whole: None):
            second_in.set()
            assert first_out.wait(10)

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert second_in.is_set()
    assert (knobs.runtime.jit_cache_hook, knobs.compilation.listener) == before
