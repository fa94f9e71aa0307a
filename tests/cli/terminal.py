"""A terminal that a test looks at: a real one (pty) on this side, the screen of one (pyte) on the other.

The program on it is a function of a test, in a fork of this process, so that nothing is imported again.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pyte

PATIENCE = 30.0  # seconds; what is waited for takes a fraction of one
SHELL = b"$ "


class Seen:
    """`program`, on a terminal of `width` by `height` cells. With `shell`, it is a job of a small shell.

    The shell does what job control asks for: it gives the terminal to the job, takes it back when the job
    is stopped, and goes on with it after a line of input; after `bg` without the terminal.
    """

    def __init__(
        self, program: Callable[[], int], width: int = 80, height: int = 24, *, shell: bool = False
    ) -> None:
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.exit_code: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            self.pid, self.fd = pty.fork()
        if not self.pid:
            _play(lambda: _shell(program) if shell else program(), width, height)
        self.modes = termios.tcgetattr(
            self.fd
        )  # before the program has touched them, or soon after

    @property
    def lines(self) -> list[str]:
        """The text on the screen."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """The same in one piece."""
        return "\n".join(self.lines)

    def send(self, keys: str) -> None:
        """Press keys."""
        os.write(self.fd, keys.encode())

    def resize(self, width: int, height: int, *, breaks: bool) -> None:
        """Drag a corner of the window. Some terminals break long lines anew (`breaks`), others cut them."""
        lines = self.lines[: self.screen.cursor.y + 1]
        self.screen.resize(height, width)
        if breaks:
            self.screen.erase_in_display(2)
            self.screen.cursor_position()
            self._stream.feed("\r\n".join(lines).encode())
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def wait(self, condition: Callable[[], bool] | str, patience: float = PATIENCE) -> None:
        """Look until the screen shows something."""
        end = time.monotonic() + patience
        while not (condition in self.text if isinstance(condition, str) else condition()):
            goes_on = self.look() and time.monotonic() < end
            assert goes_on, f"it never shows {condition}:\n{self.text}"

    def close(self) -> int:
        """Wait for the program's end; its exit code."""
        end = time.monotonic() + PATIENCE
        while self.exit_code is None:
            assert time.monotonic() < end, f"it does not end:\n{self.text}"
            if not self.look():
                _, status = os.waitpid(self.pid, 0)
                self.exit_code = os.waitstatus_to_exitcode(status)
        os.close(self.fd)
        return self.exit_code

    def hang_up(self) -> int:
        """Close the window; the program's exit code."""
        os.close(self.fd)
        end = time.monotonic() + PATIENCE
        while self.exit_code is None:
            assert time.monotonic() < end, "it does not end"
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.exit_code = os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        return self.exit_code

    def look(self) -> bool:
        """Take what is written; False when the other side has ended."""
        if not select.select([self.fd], [], [], 0.05)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


def _play(program: Callable[[], int], width: int, height: int) -> None:
    """In the fork: stdin, stdout and stderr are the terminal, and signals are as in a shell."""
    code = 70
    try:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ["TERM"] = "xterm"
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        code = program()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _shell(program: Callable[[], int]) -> int:
    ours: Any = os.getpgrp()
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # so that the terminal can be taken back
    job = os.fork()
    if not job:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os._exit(program())
    os.setpgid(job, job)
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        os.tcsetpgrp(0, ours)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        modes = termios.tcgetattr(0)[3]
        told = "cooked" if modes & termios.ICANON and modes & termios.ECHO else "raw"
        os.write(1, b"stopped, " + told.encode() + b"\r\n" + SHELL)
        while os.read(0, 100).startswith(b"bg"):
            os.killpg(job, signal.SIGCONT)
            os.write(1, SHELL)
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)
