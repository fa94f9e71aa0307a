"""How the processes of ranks live and end, without torch: fractions of a second each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from manyhands.engine.ranks import processes
from manyhands.engine.ranks.channel import FirstEnd, Verb, ints_of, packed, text_of, unpacked
from manyhands.engine.ranks.packing import pack_int32, unpack_int32
from manyhands.engine.ranks.processes import Processes
from manyhands.errors import RanksFailed
from manyhands.sandbox import held_back, signals

WORKS = "tests.engine.ranks.lives"


@contextmanager
def started(work: str, size: int) -> Iterator[Processes]:
    others = Processes(f"{WORKS}:{work}", size)
    try:
        others.meet()
        yield others
    finally:
        others.end()


def is_gone(pid: int, seconds: float = 30.0) -> bool:
    """Whether the process ends; it is looked for once at least."""
    ends = time.monotonic() + seconds
    while True:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)


def heard_from(others: Processes) -> list[dict[str, Any]]:
    return [json.loads(pipe.recv_bytes()) for pipe in others.pipes]


def test_a_message_comes_back_as_it_was() -> None:
    arrays = [np.array([5, -7, 1 << 40]), np.zeros(0, dtype=np.int64), ints_of("Grüße")]
    verb, back = unpacked(packed(Verb.MOVE, arrays).tobytes())
    found = list(back)
    assert verb is Verb.MOVE
    assert [each.tolist() for each in found] == [each.tolist() for each in arrays]
    assert text_of(found[2]) == "Grüße"
    verb, none = unpacked(packed(Verb.END, []).tobytes())
    assert (verb, list(none)) == (Verb.END, [])


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (4, 3), (5, 0), (2, 7)])
def test_two_integers_travel_in_one(sizes: tuple[int, int]) -> None:
    arrays = [np.arange(size, dtype=np.int32) - 3 for size in sizes]
    _, back = unpacked(packed(Verb.START, [*pack_int32(*arrays), np.array([9])]).tobytes())
    found = unpack_int32(back)
    assert [each.tolist() for each in found] == [each.tolist() for each in arrays]
    assert next(back).tolist() == [9]


def test_what_ranks_have_imported_is_left_out_of_collections() -> None:
    """A collection over all of it would take every rank's time in the midst of a pass."""
    with started("tell_frozen", 3) as others:
        for found in heard_from(others):
            assert found["frozen"] > 0.9 * found["tracked"]


def test_every_rank_hears_the_same_and_ends_with_its_pipe() -> None:
    with started("echo", 4) as others:
        FirstEnd(others.pipes).tell(Verb.FOLLOW, np.array([3]), np.array([1, 2]))
        said = heard_from(others)
        pids = [each.pop("pid") for each in said]
        assert said == [{"verb": Verb.FOLLOW, "said": [[3], [1, 2]]}] * 3
        assert len(set(pids)) == 3
        others.end()
        others.end()
        assert others._process.returncode == 0, "it went by itself and was not made to"
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_a_command_are_left_to_rank_0(number: signal.Signals) -> None:
    with started("echo", 3) as others:
        os.killpg(others.pid, number)
        FirstEnd(others.pipes).tell(Verb.FOLLOW, np.array([3]))
        assert len(heard_from(others)) == 2


def test_a_rank_that_fails_says_why() -> None:
    with started("raise_when_told", 3) as others:
        pids = [each["pid"] for each in heard_from(others)]
        FirstEnd(others.pipes).tell(Verb.END)
        said = json.loads(others.pipes[0].recv_bytes())
        assert said == {"failed": "ValueError: this rank has had enough", "hint": ""}
        with pytest.raises(EOFError):
            others.pipes[0].recv_bytes()
        assert not others.pipes[1].poll(0.1), "the other rank has seen nothing yet"
        others.end()
        assert others.last_words() == "; printed last: ValueError: this rank has had enough"
    assert all(is_gone(pid) for pid in pids)


def test_ranks_that_do_not_listen_are_made_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.2)
    with started("sleep_for_ever", 3) as others:
        pids = [each["pid"] for each in heard_from(others)]
    assert all(is_gone(pid) for pid in pids)


def test_a_rank_that_does_not_start() -> None:
    with pytest.raises(
        RanksFailed, match=r"did not start; printed last: .*No module named 'tests.engine.ranks.no'"
    ):
        Processes("tests.engine.ranks.no:body", 3).meet()
    # One that ends a moment later has started.
    with started("die_at_once", 2) as others, pytest.raises((EOFError, ConnectionResetError)):
        others.pipes[0].recv_bytes()


ORPHANS = f"""
import json, os, signal, sys, time
from manyhands.engine.ranks.processes import Processes
others = Processes("{WORKS}:sleep_for_ever", 3)
others.meet()
print(json.dumps([json.loads(pipe.recv_bytes())["pid"] for pipe in others.pipes]), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphan_however_rank_0_ends(number: signal.Signals) -> None:
    rank_0 = subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert rank_0.stdout is not None
    pids = json.loads(rank_0.stdout.readline())
    rank_0.send_signal(number)
    rank_0.wait(60)
    rank_0.stdout.close()
    assert all(is_gone(pid) for pid in pids)


# -- interrupts --------------------------------------------------------------------------------------


def test_an_interrupt_waits_for_the_end_of_a_verb() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (that is what is asked)
        with held_back():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append("all of it")
        done.append("and nothing behind it")
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert set(signals._ENDS) == {"SIGINT", "SIGTERM", "SIGHUP"}


def test_the_second_signal_is_not_held_back_where_one_is() -> None:
    """A batch that never comes must not keep a training from an end."""
    came: list[str] = []
    with signals_heard(came), held_back(most=1):
        signal.raise_signal(signal.SIGINT)
        assert came == []
        signal.raise_signal(signal.SIGINT)
        assert came == ["heard"]
    assert came == ["heard", "heard"]


@contextmanager
def signals_heard(came: list[str]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, lambda *_: came.append("heard"))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_all_that_came_is_handled_also_behind_a_handler_that_raises() -> None:
    came: list[int] = []

    def ask(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    names = signal.SIGTERM, signal.SIGINT
    before = [signal.signal(number, ask) for number in names]
    try:
        with pytest.raises(KeyboardInterrupt), held_back():
            list(map(signal.raise_signal, names))
    finally:
        for number, handler in zip(names, before, strict=True):
            signal.signal(number, handler)
    assert came == [*names]


def test_a_signal_that_comes_while_handlers_are_put_back_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C twice: the second strikes as soon as its handler is back, in front of the other one's."""
    came: list[int] = []
    put, order = signal.signal, [signal.SIGINT, signal.SIGTERM]
    own = dict.fromkeys(order, lambda number, frame: came.append(number))
    own[signal.SIGINT] = signal.default_int_handler
    before = [put(number, handler) for number, handler in own.items()]

    def strike(number: signal.Signals, handler: Any) -> Any:
        was = put(number, handler)
        if handler is signal.default_int_handler:
            signal.raise_signal(signal.SIGINT)
        return was

    def ended() -> None:
        with held_back():
            monkeypatch.setattr(signal, "signal", strike)
            signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(KeyboardInterrupt):
            ended()
        monkeypatch.undo()
        assert came == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is own[signal.SIGTERM]
    finally:
        monkeypatch.undo()
        for number, handler in zip(own, before, strict=True):
            put(number, handler)


def test_an_error_of_a_verb_is_not_lost_behind_an_interrupt() -> None:
    def interrupted() -> None:
        with held_back():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            raise ValueError("first")

    with pytest.raises(KeyboardInterrupt) as found:
        interrupted()
    assert isinstance(found.value.__context__, ValueError)
