"""The other ranks start before rank 0 imports what it needs, and none is left where rank 0 goes no further."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.cli.output import version_of
from manyhands.engine.ranks import processes
from manyhands.engine.ranks import world as world_of_ranks
from manyhands.engine.ranks.channel import FirstEnd, OtherEnd, Verb
from manyhands.engine.ranks.executor import RankedExecutor
from manyhands.engine.ranks.group import Store, open_store
from manyhands.engine.ranks.launched import Launched, launched, num_ranks
from manyhands.engine.ranks.processes import LOG, Processes, started_beside
from manyhands.engine.ranks.world import World, heard_by_torchrun, say_there_is_no_model
from manyhands.errors import InvalidRequest, RanksFailed
from manyhands.model.settings import ModelSettings
from tests.engine.ranks.test_processes import WORKS, is_gone
from tests.waiting import soon
from tests.warm import COMMAND, run

TWO = ModelSettings("bundled", device="cpu", ranks=2)
IMPORTS = f"{WORKS.rpartition('.')[0]}.slow_import:body"
AT_ONCE = 20.0  # seconds; of the 60 that ranks import for, and that they have for leaving
LEFT = 1.5  # seconds behind the end of rank 0; less than what importing torch takes


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks import for longer than any test waits, and where they would be waited for it is as long."""
    right = processes.start_others
    monkeypatch.setattr(processes, "GRACE", 60.0)
    monkeypatch.setattr(processes, "start_others", lambda size: right(size, IMPORTS))


def started(found: list[Processes], error: BaseException | None = None) -> None:
    with started_beside(TWO) as others:
        assert others is not None
        found.append(others)
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [None, InvalidRequest("no such model"), KeyboardInterrupt()])
def test_ranks_that_no_world_has_taken_go_at_once(slow: None, error: BaseException | None) -> None:
    """They import, and hear nothing yet: nobody waits for what they would say."""
    found: list[Processes] = []
    began = time.monotonic()
    if error is None:
        started(found)
    else:
        with pytest.raises(type(error)):
            started(found, error)
    assert time.monotonic() - began < AT_ONCE
    assert is_gone(found[0].pid, 0.1)


def test_ranks_that_do_not_start_in_time_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_START", 0.2)
    others = processes.start_others(2, IMPORTS)
    with pytest.raises(RanksFailed, match=r"did not start in 0\.2 s"):
        others.meet()
    assert is_gone(others.pid, 0.1)


def test_what_a_world_has_taken_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        processes, "start_others", lambda size: Processes(f"{WORKS}:sleep_for_ever", size)
    )
    with started_beside(TWO) as others:
        assert others is not None
        others.meet()
        others.is_taken = True
    assert not is_gone(others.pid, 0.1)
    monkeypatch.setattr(processes, "GRACE", 0.2)
    others.end()
    assert is_gone(others.pid)


@pytest.mark.parametrize(
    "settings", [ModelSettings("bundled"), ModelSettings("bundled", ranks=1)], ids=["none", "one"]
)
def test_one_rank_starts_nothing(slow: None, settings: ModelSettings) -> None:
    with started_beside(settings) as others:
        assert others is None


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has started this process as the first of two."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name, value in zip(names, ("0", "2", "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")


@pytest.mark.parametrize("ranks", [None, 2])
def test_torchrun_has_started_them(slow: None, torchrun: None, ranks: int | None) -> None:
    settings = ModelSettings("bundled", ranks=ranks)
    assert (launched(), num_ranks(settings)) == (Launched(0, 2, "127.0.0.1", 1), 2)
    with started_beside(settings) as others:
        assert others is None


@pytest.mark.parametrize(
    ("name", "value"), [("WORLD_SIZE", "1"), ("TORCHELASTIC_RUN_ID", None), ("RANK", None)]
)
def test_torchrun_has_started_this_process_alone_or_not_at_all(
    torchrun: None, name: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs set such names, too."""
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    assert (launched(), num_ranks(TWO), num_ranks(ModelSettings("bundled"))) == (None, 2, 1)


def test_torchrun_has_started_others_than_were_asked_for(
    torchrun: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match="ranks is 3, and torchrun has started 2"):
        num_ranks(ModelSettings("bundled", ranks=3))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(InvalidRequest, match="2 ranks on several hosts, 1 on this one"):
        launched()


@pytest.mark.parametrize("device", ["cuda:1", "cuda"])
def test_a_device_that_cannot_be_is_said_before_the_others_have_imported(
    slow: None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said behind their start."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    began = time.monotonic()
    with started_beside(TWO) as others, pytest.raises(InvalidRequest, match=r"device is|need 2"):
        World.start(2, device, started=others)
    assert others is not None
    assert time.monotonic() - began < AT_ONCE
    assert is_gone(others.pid, 0.1)


class Others:
    """Ranks of a stand-in."""

    size = 2

    def __init__(self) -> None:
        self.pipes, self.is_taken, self.num_ends = list[Any](), False, 0

    def end(self) -> None:
        self.num_ends += 1


def test_a_world_takes_the_ranks_that_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    others: Any = Others()
    given = list[Any]()
    monkeypatch.setattr(World, "__init__", lambda self, *each: given.append(each))
    monkeypatch.setattr(world_of_ranks, "start_others", lambda *_: pytest.fail("they are there"))
    World.start(2, "cpu", started=others)
    assert given == [(others.pipes, "cpu", others)]
    assert others.is_taken, "or a command would end them when the model is loaded"
    assert not others.num_ends


def test_ranks_that_were_begun_when_an_interrupt_came_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = Others()

    def start(*_: object) -> Others:
        os.kill(os.getpid(), signal.SIGINT)
        return others

    monkeypatch.setattr(World, "__init__", lambda *_: pytest.fail("it was interrupted"))
    monkeypatch.setattr(world_of_ranks, "start_others", start)
    with pytest.raises(KeyboardInterrupt):
        World.start(2, "cpu")
    assert others.num_ends == 1


def test_under_torchrun_a_world_takes_the_ranks_that_it_has_started(
    torchrun: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, pipes = list[Any](), list[Any]()
    monkeypatch.setattr(World, "__init__", lambda self, *each: given.append(each))
    monkeypatch.setattr(world_of_ranks, "_pipes_by_torchrun", lambda found: pipes)
    monkeypatch.setattr(world_of_ranks, "start_others", lambda *_: pytest.fail("they are there"))
    World.start(2, "cpu")
    assert given == [(pipes, "cpu")]


@pytest.mark.parametrize("has_model", [True, False])
def test_ranks_of_torchrun_meet_where_rank_0_says(has_model: bool) -> None:
    """Its last word is that there is no model; where it has named a place before, that stays."""
    host = "127.0.0.1"
    kept = open_store(2)
    first, other = (Launched(rank, 2, host, kept.port) for rank in range(2))
    found = list[OtherEnd | None]()
    waiting = threading.Thread(target=lambda: found.append(heard_by_torchrun(other)))
    waiting.start()
    if has_model:
        FirstEnd(world_of_ranks._pipes_by_torchrun(first)).tell(Verb.MOVE)
    say_there_is_no_model(first)
    waiting.join(20)
    (heard,) = found
    assert (heard is not None) is has_model
    if heard is not None:
        assert heard.next()[0] is Verb.MOVE
        place = Store(host, kept.port, 2, is_master=False).get(world_of_ranks._PLACE)
        assert json.loads(place) is not None


@pytest.mark.parametrize("error", [None, InvalidRequest("no such model"), KeyboardInterrupt()])
def test_ranks_go_with_their_model(
    error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one that nothing refers to any more, and with one that is not loaded."""
    world = Others()

    class Loaded:
        pass

    def load(*_: object, **__: object) -> tuple[Loaded, None]:
        if error is not None:
            raise error
        return Loaded(), None

    monkeypatch.setattr(World, "start", lambda *_, **__: world)
    monkeypatch.setattr(RankedExecutor, "on", load)
    if error is None:
        executor, _ = RankedExecutor.load(TWO)
        assert not world.num_ends
        del executor
    else:
        with pytest.raises(type(error)):
            RankedExecutor.load(TWO)
    assert world.num_ends == 1


def test_settings_that_ranks_do_not_bear_start_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("they were to be refused before")

    monkeypatch.setattr(World, "start", never)
    for settings in (ModelSettings(object(), ranks=2), ModelSettings("x", cache=str(tmp_path))):
        with pytest.raises(InvalidRequest):
            RankedExecutor.load(settings)


def test_ranks_that_end_while_rank_0_imports_are_told_with_their_words() -> None:
    others = Processes(f"{WORKS.rpartition('.')[0]}.no:body", 3)
    try:
        assert is_gone(others.pid)
        with pytest.raises(RanksFailed, match=r"did not start; printed last: .*No module named"):
            others.meet()
    finally:
        others.end()


# -- the command -----------------------------------------------------------------------------------


def with_log(log: Path) -> set[int]:
    """The processes whose environment names this file."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"{LOG}={log}".encode() in words.split(b"\0"):
            found.add(int(folder.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("later", [0.0, 0.8])
def test_a_command_that_is_ended_while_all_import_leaves_none(
    number: signal.Signals, later: float, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    asked = ["solve", "--device", "cpu", "--ranks", "2", "--workers", "1", "1 + 1"]
    rank_0 = subprocess.Popen(
        [sys.executable, "-m", "manyhands", *asked],
        env={**os.environ, LOG: str(log)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert soon(lambda: len(with_log(log)) == 2), "the other rank has started"
    time.sleep(later)
    rank_0.send_signal(number)
    _, said = rank_0.communicate(timeout=30)
    assert rank_0.returncode == 128 + number, said
    assert "Traceback" not in said
    assert soon(lambda: not with_log(log), LEFT)


def test_a_mistake_of_the_user_reads_as_before_and_leaves_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    asked = ["solve", "--device", "cuda:1", "--ranks", "2", "--workers", "1", "1 + 1"]
    ended = run([*COMMAND, *asked], env={**os.environ, LOG: str(log)})
    assert ended.returncode == InvalidRequest.exit_code
    assert "error: device is 'cuda:1', and 2 ranks share the model" in ended.stderr
    assert not with_log(log)


def test_a_command_without_a_model_ends_under_torchrun() -> None:
    """The other rank waited for a model for five minutes, and was an error then."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, "-m", "manyhands", "--version"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"manyhands {version_of('manyhands')}"], "of rank 0 alone"


def test_an_interrupt_while_others_are_let_go_is_said_as_any_other() -> None:
    """It comes behind the command, in the midst of an import of torch."""
    program = (
        "import sys; from manyhands import cli\n"
        "def interrupted(): raise KeyboardInterrupt\n"
        "cli.let_others_go = interrupted\n"
        "sys.argv = ['manyhands', '--version']; cli.program()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
