"""Limits of a call or a program, and the outcomes there are: shared by both kinds of sandbox."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from manyhands.errors import InvalidRequest

FailureKind = Literal["timeout", "memory", "output", "crash", "error"]


@dataclass(frozen=True)
class Limits:
    """The most that one call, or one program, may take."""

    seconds: float = 10.0  # of the wall clock; CPU time may be one second more
    memory_bytes: int = 4 << 30  # address space of one process, libraries included
    output_bytes: int = 1 << 20  # printed; the result, as JSON, may be as long
    file_bytes: int = 16 << 20  # of one file that is written
    open_files: int = 64
    processes: int = 8  # threads included; of programs alone

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < math.inf:
                raise InvalidRequest(
                    f"{name} of a sandbox is {value!r}", hint="Give a finite number above 0."
                )


@dataclass(frozen=True)
class Returned:
    """The function came back. The value is what JSON keeps of it: a tuple is a list."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """The function did not come back with a value, or the program did not end well.

    timeout  it took longer than allowed         memory  an allocation was refused
    output   it printed or returned too much     crash   its process ended, by a signal or an exit
    error    it raised an exception
    """

    kind: FailureKind
    why: str  # the end of a sentence: "took over 10 s"
