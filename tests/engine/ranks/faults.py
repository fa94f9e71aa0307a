"""Faults in one rank alone: a program that tries cases, each in processes of its own.

    python -m tests.engine.ranks.faults FOLDER SIZE CASE CASE ...      # a line of JSON for each case
    python -m tests.engine.ranks.faults FOLDER SIZE list:0             # and the lines of rank 0's first recording

    python -m tests.engine.ranks.faults FOLDER SIZE list:0:joins       # and the lines of torch's that make the process group
    python -m tests.engine.ranks.faults FOLDER SIZE 1:joins:40         # there rank 1 fails; 1:joins:40:dies has it end without a word

A case is `RANK:LINE`, the rank whose memory ends, and at which line of our own code it does, counted from the beginning of its first
recording; or `RANK:VERB`, where its memory ends as soon as it is told so, or has told so. Ranks are forks of this process, which has imported all and has no threads, so a case takes a second or two. Recordings are
those of `tests/engine/test_graphs.py`, which run all again; sums are gloo's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import torch.distributed as dist

from manyhands.cache.block import Block
from manyhands.cache.places import Move
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import capacities, graphs, local_executor
from manyhands.engine.capacities import Wide
from manyhands.engine.engine import Engine
from manyhands.engine.executor import Places
from manyhands.engine.graphs import GraphedPasses
from manyhands.engine.ranks import told
from manyhands.engine.ranks.channel import FirstEnd, OtherEnd, Verb
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.follower import Follower, follow
from manyhands.engine.ranks.processes import Processes, leave
from manyhands.engine.ranks.world import World
from manyhands.engine.recordings import Recordings
from manyhands.errors import ManyhandsError
from manyhands.model.settings import ModelSettings
from manyhands.replay.merged import merge_passes
from tests.engine.test_graphs import Again, a_team_of, walking
from tests.engine.test_lookahead import turning

OURS = str(Path(graphs.__file__).parents[1])
TORCHS = str(Path(dist.__file__).parent)
NO_ROOM = "no room for 10 MiB"
PATIENCE = 1.0


class Forks(Processes):
    """The other ranks as forks."""

    def __init__(self, size: int, case: Case) -> None:
        self.size, self.began, self.is_taken, self._are_here = size, time.monotonic(), False, True
        pairs = [socket.socketpair() for _ in range(1, size)]
        theirs, ours = os.pipe()
        self.pids = []
        for rank, (_, end) in enumerate(pairs, start=1):
            if pid := os.fork():
                self.pids.append(pid)
                continue
            for other, (left, right) in enumerate(pairs, start=1):
                left.close()
                if other != rank:
                    right.close()
            os.close(ours)
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            case.arm(rank)
            threading.Thread(target=_until_the_end_of, args=(theirs,), daemon=True).start()
            leave(follow, OtherEnd(Connection(end.detach()), rank, size))
        for _, end in pairs:
            end.close()
        os.close(theirs)
        self.pipes = [Connection(end.detach()) for end, _ in pairs]
        self._ours = ours

    def meet(self) -> None:
        """They have imported all."""

    def last_words(self) -> str:
        return ""

    def end(self) -> None:
        if self._ours < 0:
            return
        for pipe in self.pipes:
            pipe.close()
        os.close(self._ours)
        self._ours = -1
        for pid in self.pids:
            os.waitpid(pid, 0)


def _until_the_end_of(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os._exit(0)


class Case:
    """Memory ends at one line of one rank's recordings, at a line of its joining the process group, or at a verb; without any, lines are counted.

    With `dies` its process ends there, without a word.
    """

    def __init__(
        self,
        rank: int,
        line: int | None = None,
        verb: Verb | None = None,
        *,
        joins: bool = False,
        dies: bool = False,
    ) -> None:
        self.rank, self.line, self.verb = rank, line, verb
        self.joins, self.dies = joins, dies
        self.lines: list[str] = []
        self._is_over = False

    def arm(self, rank: int) -> None:
        """Have the fault in this process, if it is the rank's."""
        if rank != self.rank:
            return
        if self.verb is not None:
            self._arm_verb(rank, self.verb)
            return
        where: Any = dist if self.joins else Recordings
        name = "init_process_group" if self.joins else "record"
        right = getattr(where, name)

        def traced(*args: Any, **choices: Any) -> Any:
            if self._is_over:
                return right(*args, **choices)
            sys.settrace(self._call)
            try:
                return right(*args, **choices)
            finally:
                sys.settrace(None)
                self._is_over = True

        setattr(where, name, traced)

    def _arm_verb(self, rank: int, verb: Verb) -> None:
        if rank:

            def obeyed(*_: object) -> None:
                raise torch.OutOfMemoryError(NO_ROOM)

            setattr(Follower, f"_{verb.name.lower()}", obeyed)
            return
        right = FirstEnd.tell

        def tell(told: FirstEnd, what: Verb, *arrays: Any) -> None:
            right(told, what, *arrays)
            if what == verb:
                raise torch.OutOfMemoryError(NO_ROOM)

        first_end: Any = FirstEnd
        first_end.tell = tell

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        # A kernel runs line by line here alone.
        is_kernel = frame.f_back is not None and "interpreter" in frame.f_back.f_code.co_filename
        folder = TORCHS if self.joins else OURS
        is_looked_at = frame.f_code.co_filename.startswith(folder) and not is_kernel
        return self._line if is_looked_at else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not self._is_over:
            self.lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            if len(self.lines) - 1 == self.line:
                self._is_over = True
                if self.dies:
                    os._exit(1)
                raise torch.OutOfMemoryError(NO_ROOM)
        return self._line


def tried(folder: Path, size: int, case: Case) -> dict[str, Any]:
    """The result as rank 0 sees it, in a process of its own."""
    ours, theirs = os.pipe()
    began = time.monotonic()
    if not (pid := os.fork()):
        os.setpgid(0, 0)
        os.close(ours)
        said = json.dumps(_rank_0(folder, size, case))
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as file:
        said = file.read()
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - began
    listed = subprocess.run(["ps", "-o", "stat=", "-g", str(pid)], capture_output=True, text=True)
    left = [each for each in listed.stdout.split() if not each.startswith("Z")]
    result: dict[str, Any] = {"status": status, "seconds": seconds, "left": len(left)}
    return {**result, **(json.loads(said) if said else {})}


def _rank_0(folder: Path, size: int, case: Case) -> dict[str, Any]:
    others = Forks(size, case)
    case.arm(0)
    world: World | None = None
    found: dict[str, Any] = {}
    try:
        began = time.monotonic()
        world = World.start(size, "cpu", started=others)
        settings = ModelSettings(folder, device="cpu", backend="triton", memory_tokens=2048)
        engine = Engine(*RankedExecutor.on(world, settings), settings)
        passes: Any = engine.executor
        if case.verb is None:
            found["text"] = engine.run(walking(a_team_of(1), 4, {})).text
        else:
            _ask_all(engine)
        found["trouble"] = passes.passes.recordings.trouble
        found["recorded"] = passes.counts.recorded
    except ManyhandsError as error:
        found.update(error=f"{type(error).__name__}: {error}", hint=error.hint)
    except BaseException as error:
        found["error"] = repr(error)
    found["waited"] = time.monotonic() - began
    if world is not None:
        world.end()
    others.end()
    found["is_joined"] = dist.is_initialized()
    return {**found, "lines": case.lines if case.line is None else case.lines[-1:]}


def _ask_all(engine: Engine) -> None:
    """Every verb."""
    executor: Any = engine.executor
    merged, at = merge_passes([Step([Row(View([Block()]), (1, 2, 3))])], 3), np.arange(3)
    executor.move([Move(at, at + 3, 0)])
    executor.write_keys(merged, at, Places(at, at))
    engine.replay(merged)
    executor.make_up(Places(at, at), 1)
    executor.fingerprint()
    engine.get_ready()
    engine.run(walking(a_team_of(2), 6, {4: 3}, 1.0))
    with executor.world.whole():
        executor.passes.others.forget()
        executor.forget()
    engine.run_all(turning())


def main() -> None:
    """See the module."""
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    few = replace(capacities.LEAST, entries=4, pages=4, small=4, partials=8, most_partials=4)
    capacities.LEAST = few
    of_module: Any = capacities
    of_module.kinds_ahead = lambda most, tiling: [(1, Wide.SMALL), (2, Wide.AMPLE)]
    of_module.uncommon_capacities = lambda tiling: []
    told.PATIENCE = PATIENCE

    def graphed(adapter: Any, memory: Any, backend: Any, **choices: Any) -> Any:
        return GraphedPasses(adapter, memory, backend, Again(), choices["others"])

    of_executor: Any = local_executor
    of_executor.make_passes = graphed
    for argument in sys.argv[3:]:
        rank, what, *more = argument.split(":")
        joins, dies = "joins" in (what, *more), "dies" in more
        if rank == "list":
            case = Case(int(what), joins=joins)
        elif joins:
            case = Case(int(rank), int(more[0]), joins=True, dies=dies)
        elif what in Verb.__members__:
            case = Case(int(rank), verb=Verb[what])
        else:
            case = Case(int(rank), int(what))
        print(json.dumps({"case": argument, **tried(folder, size, case)}), flush=True)


if __name__ == "__main__":
    main()
