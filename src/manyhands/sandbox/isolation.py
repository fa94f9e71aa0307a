"""The walls around a program: bubblewrap where it works, else unshare, else limits alone.

    Isolation      network   files of others         processes
    bubblewrap     none      none but Python's own   a world of their own, all end together
    unshare        none      as the caller           a world of their own, all end together
    limits         open      as the caller           one session, killed as a group; others can be signalled

Each is tried once by starting a Python in it that does nothing: a kernel or a container may forbid what a
program on the path would do. `Isolation.about` says in words what holds, for help, records and errors.

A program never runs as root. Below root it runs as the caller, in a namespace of users of its own, in which
Linux (from 5.14 on) counts its processes apart from the caller's. Root has to give its rights away, and the
program gets a user's number that nothing else has; that takes bubblewrap, which shows such a user a Python
that lies in root's own folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from typing import Literal

from manyhands.errors import InvalidRequest

IsolationKind = Literal["bubblewrap", "unshare", "limits"]
FOLDER_BYTES = 64 << 20  # of all files that a program leaves in its folder, in bubblewrap
_TRIAL_SECONDS = 20.0
_FIRST_USER = 1_900_000_000  # numbers of users that no system gives out
_ABOUT: dict[IsolationKind, str] = {
    "bubblewrap": "no network, no files but Python's own and an empty folder (bubblewrap)",
    "unshare": "no network; files can be reached as by the caller (unshare, without bubblewrap)",
    "limits": "limits alone: network, files and processes can be reached as by the caller; "
    "install bubblewrap to close these",
}
# Where programs and libraries of the system lie. Some are links into /usr.
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf")


@dataclass(frozen=True)
class Isolation:
    """One way to close a program in. `command` goes before the command of Python."""

    kind: IsolationKind
    command: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """The walls that hold, in words."""
        return _ABOUT[self.kind]

    @property
    def has_own_folder(self) -> bool:
        """Whether the empty folder is made inside, in memory."""
        return self.kind == "bubblewrap"


def python_command() -> tuple[str, ...]:
    """A bare Python: no site packages, no variables of the environment, no folder of its caller."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return (os.path.realpath(base), "-I", "-S")


def lone_user() -> int | None:
    """The number of a user that a program of root's is given; None below root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return None
    return _FIRST_USER + int.from_bytes(os.urandom(3))


@cache
def find_isolation() -> Isolation:
    """The first way that works here. InvalidRequest where programs must not run at all."""
    for isolation in (_bubblewrap(), _unshare()):
        if isolation is not None and _works(isolation):
            return isolation
    if lone_user() is not None or os.name != "posix":
        who = "as root" if os.name == "posix" else "on this system"
        raise InvalidRequest(
            f"programs that a model wrote do not run {who} without bubblewrap",
            hint="install bubblewrap (apt-get install bubblewrap), or run this as another user",
        )
    return Isolation("limits")


def _bubblewrap() -> Isolation | None:
    program = which("bwrap")
    if program is None:
        return None
    words = [program, "--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    words += ["--unshare-uts", "--unshare-cgroup-try", "--clearenv", "--setenv", "PATH", "/usr/bin"]
    words += ["--cap-drop", "ALL"]
    if lone_user() is None:
        words += ["--unshare-user"]
    else:  # until the program's first line, which has given both away
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    prefix = os.path.realpath(sys.base_prefix)
    for folder in (Path("/etc"), *reversed(Path(prefix).parents)):
        if str(folder) not in (
            "/",
            "/usr",
        ):  # open to the program's user, whatever they are outside
            words += ["--perms", "0755", "--dir", str(folder)]
    for place in _SYSTEM:
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        elif os.path.exists(place):
            words += ["--ro-bind", place, place]
    if not Path(prefix).is_relative_to("/usr"):
        words += ["--ro-bind", prefix, prefix]
    words += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    words += ["--perms", "1777", "--size", str(FOLDER_BYTES), "--tmpfs", "/tmp"]
    words += ["--remount-ro", "/", "--chdir", "/tmp", "--"]
    return Isolation("bubblewrap", tuple(words))


def _unshare() -> Isolation | None:
    program = which("unshare")
    if program is None or lone_user() is not None:
        return None
    words = [program, "--user", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child"]
    return Isolation("unshare", (*words, "--"))


def _works(isolation: Isolation) -> bool:
    command: Sequence[str] = (*isolation.command, *python_command(), "-c", "import json, resource")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
