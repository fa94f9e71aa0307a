"""From rank 0 to all others: a verb and its integers. Back: what another rank reports, as JSON.

One pipe for each of the others. A message is one piece of memory, and nothing in it is executable:

    int64   the verb, the number of arrays, the size of each, and all arrays one behind another

Reports are rare: an answer when a model has been loaded, a word where all try what one alone may not bear, and the reason when a
rank fails.
"""

from __future__ import annotations

import json
import select
from collections.abc import Iterator, Sequence
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from manyhands.cache.places import Ints


class Verb(IntEnum):
    """A request of rank 0 to the other ranks."""

    JOIN = 0  # form a process group: its name, and the port where ranks meet
    LOAD = 1  # the model of these settings
    REMEMBER = 2  # have memory for so many tokens
    LAUNCH = 3  # a pass, launch by launch
    ASK_ROOM = 4  # whether so many bytes are free on every device
    RECORD = 5
    AGREE = 6  # the trouble that one of all ranks has had with it, or none
    PREPARE = 7  # load kernels that no recording has
    FORGET = 8  # drop all recordings
    START = 9
    FOLLOW = 10
    BEGIN = 11
    FINISH = 12
    MOVE = 13
    WRITE_KEYS = 14
    REPLAY = 15
    MAKE_UP = 16
    FINGERPRINT = 17
    LAUNCH_LATE = 18  # a pass, launch by launch, whose tokens rank 0 hands over on the device
    END = 19


def ints_of(text: str) -> Ints:
    """A text as integers, one for each byte."""
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)


def text_of(integers: Ints) -> str:
    """The text again."""
    return integers.astype(np.uint8).tobytes().decode()


def packed(verb: Verb, arrays: Sequence[Ints]) -> Ints:
    """A message."""
    header = np.array([verb, len(arrays), *map(len, arrays)], dtype=np.int64)
    return np.concatenate((header, *arrays), dtype=np.int64)


def unpacked(message: bytes) -> tuple[Verb, Iterator[Ints]]:
    """The verb and its arrays."""
    integers = np.frombuffer(message, dtype=np.int64).copy()  # torch wants what can be written
    count = int(integers[1])
    ends = 2 + count + np.cumsum(integers[2 : 2 + count])
    arrays = np.split(integers, [2 + count, *ends])[1:-1] if count else []
    return Verb(int(integers[0])), iter(arrays)


class FirstEnd:
    """The end of the channel at rank 0."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self.pipes = pipes  # of ranks 1, 2, ...

    def tell(self, verb: Verb, *arrays: Ints) -> None:
        """To all others. OSError if one of them is gone."""
        message = packed(verb, arrays)
        for pipe in self.pipes:
            pipe.send_bytes(message.data)

    def close(self) -> None:
        """No more is told: OSError where it is tried. Called twice it does the same as once."""
        for pipe in self.pipes:
            pipe.close()


class OtherEnd:
    """The end of the channel at another rank."""

    def __init__(self, pipe: Connection, rank: int, size: int) -> None:
        self.pipe = pipe
        self.rank = rank
        self.size = size

    def next(self) -> tuple[Verb, Iterator[Ints]]:
        """Wait for the next message. EOFError when rank 0 is gone."""
        return unpacked(self.pipe.recv_bytes())

    def comes(self, seconds: float) -> bool:
        """Whether a message, or rank 0's end, comes in so many seconds."""
        return self.pipe.poll(seconds)

    def check(self) -> None:
        """Raise EOFError if rank 0 is gone. Nothing is taken from the pipe, and nothing is waited for."""
        looks = select.poll()
        looks.register(self.pipe.fileno(), 0)  # an end is told unasked
        if looks.poll(0):
            raise EOFError("rank 0 is gone")

    def report(self, **facts: Any) -> None:
        """Tell rank 0."""
        self.pipe.send_bytes(json.dumps(facts).encode())
