"""The processes of the other ranks: how they start, how they end, and that none is left over.

Rank 0 starts one process, which imports torch once and then divides into all other ranks: so eight ranks take
as long to start as two. They are a process group of their own, so a Ctrl-C of the terminal reaches
rank 0 alone, and one signal ends them all.

Imports take seconds in rank 0, too. A command knows how many ranks it wants before it imports anything (`started_beside`), so the
others import meanwhile; rank 0 waits for them (`meet`) when it has done with its own.

A rank goes when rank 0 goes, however that happens: the standard input of all is one pipe whose other end
rank 0 holds, and a thread of each waits for its end. When a rank fails it reports why, through its own pipe.
Prints go to a file without a name, whose last line is quoted where a rank dies without a report; or to the end of
the file that MANYHANDS_RANKS_LOG names: there a rank that fails leaves its whole traceback, and one that gets SIGUSR1
the place where it is.

    others = Processes("manyhands.engine.ranks.follower:follow", size=4)
    others.meet()         all have imported what they need
    others.pipes          of ranks 1, 2, 3
    others.end()          at the latest after `GRACE` seconds all are gone

Nothing here imports torch, so all of it is tested in fractions of a second.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, NoReturn

from manyhands.engine.ranks.channel import OtherEnd
from manyhands.engine.ranks.launched import launched, num_ranks
from manyhands.errors import ManyhandsError, RanksFailed
from manyhands.model.settings import ModelSettings
from manyhands.sandbox import held_back, leave_ends_to_caller

LOG = "MANYHANDS_RANKS_LOG"
GRACE = 5.0  # seconds that a rank has for leaving by itself
_START = 300.0  # seconds until all ranks must have answered
_TAIL_BYTES = 2000
_MAIN = "from manyhands.engine.ranks.processes import main; main()"
_FOLLOW = "manyhands.engine.ranks.follower:follow"


class Processes:
    """The other ranks of one host, started by this process. They import by themselves; `meet` waits for them."""

    def __init__(self, work: str, size: int, environment: dict[str, str] | None = None) -> None:
        """`work`, "module:function", is called in each with its `OtherEnd`; `environment` is added to theirs."""
        self.size = size
        self.began = time.monotonic()
        self.is_taken = False  # by a world, which ends them
        self._are_here = False
        self._last_words = ""
        self._printed: IO[bytes] = _printed()
        pairs = [socket.socketpair() for _ in range(1, size)]
        theirs = [end.fileno() for _, end in pairs]
        self.pipes = [Connection(end.detach()) for end, _ in pairs]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, work, *map(str, theirs)],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=theirs,
            start_new_session=True,
        )
        for _, end in pairs:
            end.close()
        assert self._process.stdin is not None
        self._lifeline: IO[bytes] = self._process.stdin

    def meet(self) -> None:
        """Wait until all have imported what they need. Raises RanksFailed, with all ended, if one of them does not start."""
        try:
            for pipe in self.pipes:
                if not pipe.poll(_START):
                    raise RanksFailed(f"the other ranks did not start in {_START:g} s")
                pipe.recv_bytes()
        except (EOFError, OSError) as error:
            self.end()
            raise RanksFailed(f"the other ranks did not start{self.last_words()}") from error
        except BaseException:
            self.end()
            raise
        self._are_here = True

    @property
    def pid(self) -> int:
        """Of the first of them, and of the group of them all."""
        return self._process.pid

    def last_words(self) -> str:
        """The last line that the ranks have printed, for an error; "" if there is none."""
        if self._printed.closed:
            return self._last_words
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - _TAIL_BYTES))
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        self._last_words = f"; printed last: {lines[-1]}" if lines else ""
        return self._last_words

    def end(self) -> None:
        """Let them go, and after `GRACE` seconds make them; at once while they import, when they hear nothing and have nothing to lose.

        Called twice it does the same as once.
        """
        if self._process.returncode is not None:
            return
        for pipe in self.pipes:
            pipe.close()
        with suppress(OSError):
            self._lifeline.close()
        ends = time.monotonic() + (GRACE if self._are_here else 0.0)
        # Looked at and not waited for, so that its number, which is the group's, belongs to no other yet.
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, self._process.pid, look) is None and time.monotonic() < ends:
            time.sleep(0.01)
        with suppress(
            ProcessLookupError, PermissionError
        ):  # the group is known by its first process
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.last_words()
        self._printed.close()


def start_others(size: int, work: str = _FOLLOW) -> Processes:
    """The other ranks of a model over `size` ranks, which share this host's processors on a CPU."""
    # A process that is to divide may ask for GPUs, and must not open them.
    environment = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    if "OMP_NUM_THREADS" not in os.environ:
        environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // size))
    return Processes(work, size, environment)


@contextmanager
def started_beside(settings: ModelSettings) -> Iterator[Processes | None]:
    """The other ranks of a model that is loaded inside, started already: they import beside this process.

    None where there are no others, or torchrun has started them. Ranks that no world has taken over are ended where this is left.
    Raises InvalidRequest where the settings and torchrun differ.
    """
    size = num_ranks(settings)
    if size == 1 or launched() is not None:
        yield None
        return
    others: Processes | None = None
    try:
        with held_back():  # or a process might start that nobody knows of
            others = start_others(size)
        yield others
    finally:
        if others is not None and not others.is_taken:
            others.end()


def _printed() -> IO[bytes]:
    """The file of what they print, open as long as they live."""
    log = os.environ.get(LOG)
    return tempfile.TemporaryFile() if log is None else Path(log).open("ab+")


# -- in the other ranks ----------------------------------------------------------------------------


def main() -> None:
    """The first of the other processes: imports, divides into the ranks, and is rank 1 itself."""
    leave_ends_to_caller()  # rank 0 decides when to end
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    module, _, function = sys.argv[1].partition(":")
    numbers = [int(number) for number in sys.argv[2:]]
    work: Callable[[OtherEnd], None] = getattr(import_module(module), function)
    size = len(numbers) + 1
    rank = next((other for other in range(2, size) if os.fork() == 0), 1)
    if rank == 1:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # their remains are taken away unasked
    for other, number in enumerate(numbers, start=1):
        if other != rank:
            os.close(number)  # or the end of that rank would not be seen
    threading.Thread(target=_leave_with_rank_0, daemon=True).start()
    pipe = Connection(numbers[rank - 1])
    pipe.send_bytes(b"here")
    leave(work, OtherEnd(pipe, rank, size))


def leave(work: Callable[[OtherEnd], None], heard: OtherEnd) -> NoReturn:
    """Work, and end the process: when rank 0 is gone without a word, at an error with the reason.

    Imported objects stay, and are left out of collections of garbage from here on, as a command does for rank 0: one that walks over
    all of them takes a tenth of a second and more, for which every rank would wait in the midst of a pass.
    """
    gc.freeze()
    status = 0
    try:
        work(heard)
    except (EOFError, ConnectionError, BrokenPipeError):
        pass
    except BaseException as error:
        status = 1
        traceback.print_exc()
        with suppress(OSError):
            heard.report(failed=reason_of(error), hint=getattr(error, "hint", ""))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # libraries that wait for other ranks at their end would wait for ever


def reason_of(error: BaseException) -> str:
    """An error in a line."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return first if isinstance(error, ManyhandsError) else f"{type(error).__name__}: {first}"


def _leave_with_rank_0() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)
