"""The ranks together, as rank 0 has them: processes, channel, process group, and how it learns of an end.

    world = World.start(size=2, device="auto")
    executor, tokenizer = RankedExecutor.on(world, settings)      # one model at a time
    world.end()

A thread waits for what the others report. When one is lost the world is lost: a sum that waits for that rank is
given up (gloo sees the closed connection, NCCL is told to abort), the verb that made it raises `RanksFailed`, and
every later one does. NCCL does not let go of a group while a graph that has recorded its sums is alive, so recordings
go first (`recorded`), also out of the frames of an error, which hold the one that was replayed. A verb that asks NCCL for
another sum while it aborts waits for the end of that, and would keep the recordings: after a second they are dropped from
beside it. A group that is lost is never left in the ordinary way before it is aborted: that waits for the device, and keeps
the abort from the group. While all join the group torch waits where nothing reaches it: a thread of its own joins (`group.py::join_group`),
and is left behind where a rank is gone. If the device cannot be freed in `LONGEST_END` seconds, the process says why and ends.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from manyhands import errors
from manyhands.engine.one_process import check_process
from manyhands.engine.ranks.channel import FirstEnd, OtherEnd, Verb, ints_of
from manyhands.engine.ranks.group import (
    Store,
    check_no_group,
    join_group,
    kind_of_group,
    leave_group,
    open_store,
    take_device,
)
from manyhands.engine.ranks.launched import Launched, launched
from manyhands.engine.ranks.processes import GRACE, Processes, start_others
from manyhands.errors import ManyhandsError, RanksFailed
from manyhands.sandbox import held_back

LONGEST_END = 3 * GRACE  # seconds from the loss of a rank to the end of this process, at the latest
_PATIENCE = 1.0  # seconds in which a verb that waits for a sum ends by itself when that is given up
_SETTLED = 0.5  # seconds in which all ranks that end with the first one have said so
_OTHER_SIDE = ("onnection", "peer", "NCCL")  # in the reason of a rank that only saw another one end


class Forgets(Protocol):
    """An object that may hold recordings."""

    def forget(self) -> None:
        """Drop them all."""


class World:
    """Rank 0 and the others. `collectives` joins them, `device` is rank 0's."""

    def __init__(
        self, pipes: Sequence[Connection], device: str, processes: Processes | None = None
    ) -> None:
        self.size = len(pipes) + 1
        self._process = os.getpid()
        self.processes = processes
        self.told = FirstEnd(pipes)
        self.lost: str | None = None
        self.recorded: weakref.WeakSet[Forgets] = weakref.WeakSet()  # forgotten before the group
        self.seconds_starting = 0.0  # under torchrun, which has started them, none
        self._answers: queue.SimpleQueue[tuple[int, dict[str, Any]] | None] = queue.SimpleQueue()
        self._ends: list[tuple[int, str]] = []  # which ranks ended and how, the first one first
        self._hints: dict[int, str] = {}  # the mends that they have named
        self._hint = ""  # of what was lost
        self._is_ended = False
        self._in_verb = threading.Event()
        # Words that two threads tell at a time would be heard as one.
        self._one_thread = threading.RLock()
        self._aborting: threading.Thread | None = None
        self._starting_abort = threading.Lock()
        self._has_ended = threading.Event()  # `end` is over
        check_no_group()  # behind this a group is ours, and goes with us
        kind = kind_of_group(device, self.size)
        self._store: Any = open_store(self.size)
        port: int = self._store.port
        if processes is not None:
            processes.meet()
            self.seconds_starting = time.monotonic() - processes.began
        threading.Thread(target=self._watch, daemon=True).start()
        self._share_processors(kind)
        with self.whole():  # whatever goes wrong, this process has its processors back
            self.told.tell(Verb.JOIN, ints_of(kind), np.array([port], dtype=np.int64))
            self.device = take_device(kind, 0)
            self.answers()
            self.collectives = join_group(kind, port, 0, self.size, self.device, self.check)

    @classmethod
    def start(
        cls,
        size: int,
        device: str = "auto",
        *,
        work: str | None = None,
        started: Processes | None = None,
    ) -> World:
        """Start the others, or take those that torchrun or `started_beside` has started.

        `work`: their life, where it is another one than a follower's.
        """
        found = launched()
        if found is not None:
            return cls(_pipes_by_torchrun(found), device)
        processes = started
        try:
            with held_back():
                processes = processes or start_others(size, *([work] if work else []))
                processes.is_taken = True
            assert processes.size == size, "they were started by the same settings"
            return cls(processes.pipes, device, processes)
        except BaseException:
            if processes is not None:
                processes.end()
            raise

    @contextmanager
    def whole(self) -> Iterator[None]:
        """The work of all ranks inside is done as a whole: interrupts wait, and an error ends all.

        Errors of ours are raised when the ranks have done the same; they may be asked again. Raises RanksFailed. Work inside of
        other work is a part of it: while the tokens of a pass are chosen, the next one is planned, and carries keys. Work of another
        thread is none: it waits.
        """
        check_process(self._process, "a model over several ranks")
        with held_back(), self._one_thread:
            if self._in_verb.is_set():
                with self._part():
                    yield
                return
            self.check()
            self._in_verb.set()
            try:
                yield
            except RanksFailed as error:
                self.give_up(error)
                raise
            except ManyhandsError as error:
                if self.lost is None:
                    raise
                _empty_frames(error)
                self.end()  # logits that are no numbers, say, of a sum that was given up
                raise self._failure() from error
            except BaseException as error:
                self.give_up(error)
                raise self._failure() from error
            finally:
                self._in_verb.clear()
            if self.lost is not None:  # a sum that was given up leaves no numbers
                self.end()
                raise self._failure()

    @contextmanager
    def _part(self) -> Iterator[None]:
        """Work inside of other work. Its error may be passed over on the way out, as those of a strategy's own function are
        (`Step.meanwhile`); the other ranks wait in the midst of it then, and are told no more until the work around it ends them.
        """
        try:
            yield
        except BaseException as error:
            if isinstance(error, ManyhandsError) and not isinstance(error, RanksFailed):
                raise
            self._lose_by(error)
            self.told.close()
            raise

    def _lose_by(self, error: BaseException) -> None:
        """An error ends all ranks: its own words, unless one of them was gone before."""
        if isinstance(error, RanksFailed):
            self.lost = self.lost or str(error)
        else:
            reason = self._settled() or f"rank 0 failed: {type(error).__name__}: {error}"
            self.lost = self.lost or reason

    def give_up(self, error: BaseException) -> None:
        """End all for an error that struck rank 0 alone: where the others are is not known, so they are not waited for."""
        self._lose_by(error)
        _empty_frames(error)
        self.end()

    def check(self) -> None:
        """Raise RanksFailed if a rank is gone."""
        if self.lost is not None:
            self.end()
            raise self._failure()
        if self._is_ended:
            raise RanksFailed("the ranks were ended already", hint="load the model again")

    def answers(self, seconds: float | None = None) -> list[dict[str, Any]]:
        """The answer of each of the others, in the order of ranks; our own errors are raised as they are.

        TimeoutError where one has not come in so many seconds.
        """
        found: dict[int, dict[str, Any]] = {}
        ends = None if seconds is None else time.monotonic() + seconds
        while len(found) < self.size - 1:
            try:
                left = None if ends is None else max(0.0, ends - time.monotonic())
                answer = self._answers.get(timeout=left)
            except queue.Empty:
                raise TimeoutError(f"no answer in {seconds:g} s") from None
            if answer is None:
                self._settled()
                self.end()
                raise self._failure()
            found[answer[0]] = answer[1]
        for rank, said in sorted(found.items()):
            if "refused" in said:
                kind = getattr(errors, said["kind"])
                raise kind(f"rank {rank}: {said['refused']}", hint=said["hint"])
        return [found[rank] for rank in sorted(found)]

    def close(self) -> None:
        """End, when the work that another thread has under way is done; see `end`."""
        if os.getpid() != self._process:  # the thread that has the lock may not be there
            return
        with self._one_thread:
            self.end()

    def end(self) -> None:
        """Let all others go; called twice it does the same as once. Longer than `LONGEST_END`, and the process ends.

        A fork of this process, whose end comes here too, leaves them to the original.
        """
        if self._is_ended or os.getpid() != self._process:
            return
        self._is_ended = True
        force = threading.Timer(LONGEST_END, self._force)
        force.daemon = True
        force.start()
        for holder in list(self.recorded):
            holder.forget()
        if self.lost is None:
            with suppress(OSError, RuntimeError):
                self.told.tell(Verb.END)
                leave_group()  # NCCL wants all ranks to do it at once
        else:
            gc.collect()  # recordings in a circle of references
            self._abort()
        self.told.close()
        if self.processes is not None:
            self.processes.end()
        self._store = None  # a thread that still waits there to join waits no longer
        if self._aborting is not None:
            self._aborting.join()  # NCCL's abort ends when the recordings are gone, or with the process
        with suppress(RuntimeError, ValueError):  # torch's, of a group that an abort has taken away
            leave_group()
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        force.cancel()
        self._has_ended.set()

    # -- learning of an end ------------------------------------------------------------------------

    def _watch(self) -> None:
        """Take the reports of the others, until all are gone."""
        rank_of = {pipe: rank for rank, pipe in enumerate(self.told.pipes, start=1)}
        while rank_of and not self._is_ended:
            try:
                ready: Any = wait(list(rank_of), timeout=1.0)
            except (OSError, ValueError):  # closed by `end`
                return
            for pipe in ready:
                try:
                    said = json.loads(pipe.recv_bytes())
                except (EOFError, OSError, ValueError):
                    self._ended(rank_of.pop(pipe), "")
                    continue
                if "failed" in said:
                    self._hints[rank_of[pipe]] = said.get("hint", "")
                    self._ended(rank_of[pipe], said["failed"])
                else:
                    self._answers.put((rank_of[pipe], said))

    def _ended(self, rank: int, reason: str) -> None:
        if self._is_ended:
            return
        self._ends.append((rank, reason))
        if len(self._ends) > 1:
            return
        threading.Thread(target=self._give_up, daemon=True).start()

    def _give_up(self) -> None:
        """A rank is gone: free whatever waits for it, in the end by force. Nothing here waits for the device."""
        self.lost = self._settled()
        self._answers.put(None)
        self._abort()
        began = time.monotonic()
        while time.monotonic() < began + LONGEST_END:
            is_busy = self._in_verb.is_set() or self._is_ended
            if self._has_ended.is_set() or not is_busy:
                return
            if time.monotonic() > began + _PATIENCE:
                for holder in list(self.recorded):
                    holder.forget()
            time.sleep(0.05)
        self._force()

    def _force(self) -> None:
        """Say why, and end this process and the others."""
        reason = self.lost or f"the other ranks have not ended in {LONGEST_END:g} s"
        print(f"manyhands: {reason}", file=sys.stderr, flush=True)
        if self.processes is not None:
            self.processes.end()
        os._exit(RanksFailed.exit_code)

    def _abort(self) -> None:
        """Begin to free sums that wait on a GPU, in a thread of its own; once."""
        with self._starting_abort:
            if self.device_type != "cuda" or self._aborting is not None:
                return
            thread = threading.Thread(target=self._free_sums, daemon=True)
            thread.start()
            self._aborting = thread  # a thread that is joined has been started

    def _free_sums(self) -> None:
        """NCCL's part ends when the recordings are gone."""
        with suppress(RuntimeError, AttributeError):
            if self.collectives.peers is not None:
                self.collectives.peers.give_up()
        with suppress(RuntimeError, ValueError, AttributeError, AssertionError):
            dist.distributed_c10d._abort_process_group()

    @property
    def device_type(self) -> str:
        """Of rank 0's device."""
        return self.device.type if hasattr(self, "device") else "cpu"

    def _settled(self) -> str | None:
        """The first end's reason, when all that ended with it have said so; None if none has ended."""
        ends = time.monotonic() + _SETTLED
        while time.monotonic() < ends and self.lost is None:
            time.sleep(0.02)
        if self.lost is not None or not self._ends:
            return self.lost
        words = dict(reversed([each for each in self._ends if each[1]]))
        told = [(rank, words.get(rank, "")) for rank, _ in self._ends]
        own = [each for each in told if not any(word in each[1] for word in _OTHER_SIDE)]
        rank, reason = (own or told)[0]
        self._hint = self._hints.get(rank, "")
        if reason:
            return f"rank {rank} of {self.size} failed: {reason}"
        said = self.processes.last_words() if self.processes is not None else ""
        return f"rank {rank} of {self.size} has ended{said}"

    def _failure(self) -> RanksFailed:
        return RanksFailed(
            f"{self.lost}; all ranks of the model were ended",
            hint=self._hint
            or "load the model again; the traces of runs hold all that was written before",
        )

    def _share_processors(self, kind: str) -> None:
        """On a CPU, this process leaves the others theirs."""
        self._threads: int | None = None
        if kind == "gloo" and "OMP_NUM_THREADS" not in os.environ:
            self._threads = torch.get_num_threads()
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.size))


def _empty_frames(error: BaseException) -> None:
    """Empty the frames of an error and of those behind it: they hold the recording that was replayed."""
    seen: list[BaseException] = []
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is not None and one not in seen:
            traceback.clear_frames(one.__traceback__)
            seen.append(one)
            found += [one.__cause__, one.__context__]


# -- under torchrun --------------------------------------------------------------------------------

_PLACE = "manyhands/pipes"


def _pipes_by_torchrun(found: Launched) -> list[Connection]:
    """Rank 0's pipes to processes that torchrun has started."""
    key = os.urandom(16)
    with (
        tempfile.TemporaryDirectory(prefix="manyhands-") as folder,
        Listener(str(Path(folder) / "ranks"), "AF_UNIX", found.size, key) as listener,
    ):
        store = Store(found.host, found.port, found.size, is_master=False)
        store.set(_PLACE, json.dumps([listener.address, key.hex()]))
        pipes: dict[int, Connection] = {}
        while len(pipes) < found.size - 1:
            pipe: Any = listener.accept()
            pipes[int(pipe.recv_bytes())] = pipe
    return [pipes[rank] for rank in sorted(pipes)]


def say_there_is_no_model(found: Launched) -> None:
    """Rank 0's last word to processes that torchrun has started, unless it has given them a place to meet before."""
    with suppress(RuntimeError):  # torchrun is gone, and they with it
        store = Store(found.host, found.port, found.size, is_master=False)
        store.compare_set(_PLACE, "", json.dumps(None))


def heard_by_torchrun(found: Launched) -> OtherEnd | None:
    """Another rank's end of the channel, in a process that torchrun has started; None where rank 0 has ended without a model."""
    store = Store(found.host, found.port, found.size, is_master=False)
    place = json.loads(store.get(_PLACE))
    if place is None:
        return None
    address, key = place
    pipe = Client(address, "AF_UNIX", bytes.fromhex(key))
    pipe.send_bytes(str(found.rank).encode())
    return OtherEnd(pipe, found.rank, found.size)
