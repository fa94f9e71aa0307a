"""Lives of processes, without torch: works for `Processes`."""

from __future__ import annotations

import gc
import os
import signal
import time

from manyhands.engine.ranks.channel import OtherEnd


def echo(heard: OtherEnd) -> None:
    """Report every verb's first integers, with the process's number."""
    while True:
        verb, arrays = heard.next()
        heard.report(verb=int(verb), said=[each.tolist() for each in arrays], pid=os.getpid())


def raise_when_told(heard: OtherEnd) -> None:
    """Report the process's number, wait for a word, and fail on rank 1."""
    heard.report(pid=os.getpid())
    heard.next()
    if heard.rank == 1:
        raise ValueError("this rank has had enough")
    heard.next()


def sleep_for_ever(heard: OtherEnd) -> None:
    """Report the process's number, and hear nothing any more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    heard.report(pid=os.getpid())
    while True:
        time.sleep(60)


def die_at_once(heard: OtherEnd) -> None:
    """End without a word."""
    os._exit(3)


def tell_frozen(heard: OtherEnd) -> None:
    """How many objects collections look at, and how many are left out."""
    heard.report(
        frozen=gc.get_freeze_count(), tracked=gc.get_freeze_count() + len(gc.get_objects())
    )
    heard.next()
