"""Limits of a call or a program, and the outcomes there are: shared by both kinds of sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from manyhands.schema.setting import check, setting
from manyhands.schema.waits import LONGEST_WAIT

FailureKind = Literal["timeout", "memory", "output", "crash", "error"]
_MOST = 1 << 60  # an operating system's limits end at 63 bits, and a little is added to some


@dataclass(frozen=True)
class Limits:
    """The most that one call, or one program, may take. Sizes in bytes."""

    seconds: float = setting(
        10.0,
        "Of the wall clock; CPU time may be one second more.",
        above=0,
        at_most=LONGEST_WAIT,
        unit="seconds",
    )
    memory_bytes: int = setting(
        4 << 30, "Address space of one process, libraries included.", at_least=1, at_most=_MOST
    )
    output_bytes: int = setting(
        1 << 20, "Printed; the result, as JSON, may be as long.", at_least=1, at_most=_MOST
    )
    file_bytes: int = setting(16 << 20, "Of one file that is written.", at_least=1, at_most=_MOST)
    open_files: int = setting(64, "Files, pipes included.", at_least=1, at_most=_MOST)
    processes: int = setting(8, "Threads included; of programs alone.", at_least=1, at_most=_MOST)

    def __post_init__(self) -> None:
        check(self)


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
