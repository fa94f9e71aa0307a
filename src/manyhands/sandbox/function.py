r"""A function run under limits of time, memory and output, in a process that may be killed.

Computer algebra can run for ever or eat all memory; so can the chat template of a checkpoint, or a program
that a model wrote. So it is called in a child process:

    with Sandbox("manyhands.tasks.algebra:compare", Limits(seconds=10)) as sandbox:
        outcome = sandbox.run(r"\frac12", "0.5")  # Returned([True, "the same value"])
        outcome = sandbox.run("1", "9^{9^{9^{9}}}")  # Failed("timeout", "took over 10 s")

The function is named by `module:function` and imported by the child, once. Arguments and the result
travel as JSON, one line each, since a result that is unpickled could run code here. The child serves
call after call, about three thousand in a second, until one fails; the next call starts another child.

What holds:

- The child leads a session of its own. Ctrl-C in a terminal does not reach it; the caller's
  KeyboardInterrupt ends it. It is killed together with every process of that session.
- Wall-clock time is kept by the caller; CPU time, address space, open files and the size of files by
  the kernel, in the child and in each of its own children.
- What the function prints is counted and thrown away. Standard input is empty. A function that wants to
  keep what is printed collects it with `contextlib.redirect_stdout` and returns it.
- A child whose caller is gone, however it ended, ends at once; if it is inside a long operation of C
  code, by its limit of CPU time.

What does not: files and the network can be reached as by the caller, and a function can forge its own
result. The function is ours and its arguments are not; a program that a model wrote has a closed place
of its own (`sandbox/program.py`). Where a system has no `resource` (Windows), only wall-clock time and
output are limited.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from typing import IO, Any, Self

from manyhands.errors import InvalidRequest, no_thread
from manyhands.sandbox.limits import Failed, FailureKind, Limits, Returned
from manyhands.sandbox.signals import leave_ends_to_caller

START_SECONDS = 120.0  # for the child's imports: a busy machine is slow
_TAIL_BYTES = 2000  # of what was printed or raised: enough for the end of a traceback
_FRAME_BYTES = 4 * _TAIL_BYTES  # of a reply, around its value


class Sandbox:
    """Calls one function under limits. One child at most; calls from several threads take turns.

    A copy that travels to another process by pickle starts a child of its own there, and so does a fork of the process: at its
    end it leaves the original's alone.
    """

    def __init__(self, function: str, limits: Limits | None = None) -> None:
        self.function = function
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._end: weakref.finalize[..., Sandbox] | None = None

    def __reduce__(self) -> tuple[type[Sandbox], tuple[str, Limits]]:
        return Sandbox, (self.function, self.limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, *arguments: Any) -> Returned | Failed:
        """Call the function with arguments that JSON can carry.

        InvalidRequest if the child cannot be started, with what it said.
        """
        request = json.dumps(arguments).encode() + b"\n"
        with self._lock:
            try:
                try:
                    outcome = self._started().call(request)
                except BrokenPipeError:  # the child had ended between two calls
                    self._stop()
                    outcome = self._started().call(request)
            except BaseException:  # an interrupt in the middle of a call: the answer is still owed
                self._stop()
                raise
            assert self._child is not None
            if self._child.is_spent:
                self._stop()
        return outcome

    def start(self) -> None:
        """Begin to start the child, without waiting until it is ready.

        InvalidRequest if there can be no process.
        """
        with self._lock:
            self._begun()

    def close(self) -> None:
        """End the child, if there is one. The next call starts another."""
        with self._lock:
            self._stop()

    def _begun(self) -> _Child:
        if self._child is None or self._child.caller != os.getpid():
            try:
                self._child = _Child(self.function, self.limits)
            except (OSError, RuntimeError) as error:  # no process, or no thread beside it
                raise InvalidRequest(
                    f"the sandbox of {self.function} did not start: {error}",
                    hint="allow this program to start another process",
                ) from error
            self._end = weakref.finalize(self, self._child.kill)
        return self._child

    def _started(self) -> _Child:
        child = self._begun()
        if not child.is_ready:
            ready = child.read(START_SECONDS)
            if isinstance(ready, Failed):
                self._stop()
                said = child.printed.decode(errors="replace").strip().rpartition("\n")[2]
                raise InvalidRequest(
                    f"the sandbox of {self.function} did not start: it {ready.why}",
                    hint=f"It said last: {said}" if said else "",
                ) from no_thread(said)
            child.is_ready = True
        return child

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._child = self._end = None


class _Child:
    """The running process, seen from its caller."""

    def __init__(self, function: str, limits: Limits) -> None:
        self.limits = limits
        self.caller = os.getpid()
        self.printed = bytearray()  # its end
        self.is_ready = False  # it has said that its function is imported
        self.is_spent = False  # no further call: it failed, or it started processes of its own
        self._num_printed = 0  # bytes since the call began
        self._killed_for: FailureKind | None = None
        program = "from manyhands.sandbox.function import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, function, json.dumps(asdict(limits))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            },
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._requests: IO[bytes] = self._process.stdin
        self._replies: IO[bytes] = self._process.stdout
        self._output: IO[bytes] = self._process.stderr
        self._counter = threading.Thread(target=self._count_output, daemon=True)
        try:
            self._counter.start()
        except RuntimeError:  # there may be no more threads
            self.kill()
            raise

    def call(self, request: bytes) -> Returned | Failed:
        """One call. BrokenPipeError if the child is not there."""
        self._num_printed = 0
        self._requests.write(request)
        self._requests.flush()
        return self.read(self.limits.seconds)

    def read(self, seconds: float) -> Returned | Failed:
        """Its next reply, or why there is none."""
        longest = self.limits.output_bytes + _FRAME_BYTES
        timer = threading.Timer(seconds, self._kill_for, ["timeout"])
        timer.daemon = True
        timer.start()
        try:
            line = self._replies.readline(longest)
        finally:
            timer.cancel()
        whole = line.endswith(b"\n")
        if not whole and len(line) == longest:
            self._kill_for("output")
        if not whole or self._killed_for:
            self.is_spent = True
            return self._post_mortem(seconds)
        reply = json.loads(line)
        self.is_spent = reply["spent"]
        if "failed" in reply:
            return Failed(reply["failed"], reply["why"])
        return Returned(reply["value"])

    def kill(self) -> None:
        """End it and every process that it started, and take its remains away. In a fork of the caller: nothing, it is not its own."""
        if os.getpid() != self.caller:
            return
        self._kill_group()
        self._process.wait()
        with suppress(BrokenPipeError):  # a half-written request goes down with its reader
            self._requests.close()
        self._replies.close()
        if self._counter.ident is not None:
            self._counter.join(timeout=1.0)
        self._output.close()

    def _kill_for(self, kind: FailureKind) -> None:
        self._killed_for = self._killed_for or kind
        self._kill_group()

    def _kill_group(self) -> None:
        # The process is not waited for before this, so that its number belongs to nobody else.
        if not hasattr(os, "killpg"):
            self._process.kill()
            return
        with suppress(ProcessLookupError, PermissionError):  # macOS: of a group of dead processes
            os.killpg(self._process.pid, signal.SIGKILL)

    def _post_mortem(self, seconds: float) -> Failed:
        self._kill_group()
        status = self._process.wait()
        if self._killed_for == "timeout" or status == -getattr(signal, "SIGXCPU", 0):
            return Failed("timeout", f"took over {seconds:g} s")
        if self._killed_for == "output":
            return Failed("output", f"gave more than {self.limits.output_bytes} bytes")
        if status < 0:
            return Failed("crash", f"crashed ({signal.Signals(-status).name})")
        return Failed("crash", f"ended its process (status {status})")

    def _count_output(self) -> None:
        descriptor = self._output.fileno()
        while chunk := os.read(descriptor, 1 << 16):
            self.printed = (self.printed + chunk)[-_TAIL_BYTES:]
            self._num_printed += len(chunk)
            if self._num_printed > self.limits.output_bytes:
                self._kill_for("output")
                return


# -- in the child ----------------------------------------------------------------------------------


def serve() -> None:
    """The child's whole life: import the function, then answer calls until the caller is gone."""
    leave_ends_to_caller()
    name, limits = sys.argv[1], Limits(**json.loads(sys.argv[2]))
    requests, replies = _private_channel()
    _limit(limits)
    function = _imported(name)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, lines), daemon=True).start()
    _say(replies, {"value": None}, spent=False)
    main_process = os.getpid()
    while True:
        arguments = json.loads(lines.get())
        _raise_cpu_limit(limits.seconds)
        reply = _called(function, arguments, limits.output_bytes)
        if os.getpid() != main_process:  # the function forked, and this is the copy
            os._exit(0)
        _say(replies, reply, spent=reply.get("failed") == "memory" or _has_children())


def _private_channel() -> tuple[IO[bytes], IO[bytes]]:
    """The two ends of the channel, out of the function's way and closed in processes it starts."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")  # neighbours
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # printed text is counted
    os.close(nothing)
    if hasattr(os, "register_at_fork"):
        numbers = requests.fileno(), replies.fileno()
        os.register_at_fork(after_in_child=lambda: os.closerange(min(numbers), max(numbers) + 1))
    return requests, replies


def _limit(limits: Limits) -> None:
    try:
        resource = import_module("resource")
    except ImportError:
        return  # not on this system
    for name, most in (
        ("RLIMIT_AS", limits.memory_bytes),
        ("RLIMIT_FSIZE", limits.file_bytes),
        ("RLIMIT_NOFILE", limits.open_files),
        ("RLIMIT_CORE", 0),
    ):
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError):  # macOS does not take RLIMIT_AS
            resource.setrlimit(kind, (most, most))


def _raise_cpu_limit(seconds: float) -> None:
    """Let this call use as much CPU time as wall-clock time, and a second more."""
    try:
        resource = import_module("resource")
    except ImportError:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def _listen(requests: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Hand requests on; when the caller is gone, end this process and all that it started."""
    for line in requests:
        lines.put(line)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _called(function: Callable[..., Any], arguments: list[Any], most: int) -> dict[str, Any]:
    try:
        value = function(*arguments)
        if len(json.dumps(value)) > most:
            return {"failed": "output", "why": f"gave more than {most} bytes"}
    except MemoryError:
        return {"failed": "memory", "why": "needed more memory than allowed"}
    except BaseException as error:  # SystemExit, too: the child leaves when its caller says so
        return {"failed": "error", "why": f"raised {type(error).__name__}: {error}"[:_TAIL_BYTES]}
    return {"value": value}


def _say(replies: IO[bytes], reply: dict[str, Any], *, spent: bool) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    replies.write(json.dumps({**reply, "spent": spent}).encode() + b"\n")
    replies.flush()


def _has_children() -> bool:
    """Whether the function left processes behind; they are killed with this one."""
    if not hasattr(os, "WNOHANG"):
        return False
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True
