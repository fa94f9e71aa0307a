"""The sandbox: limits for whatever a model or a stranger wrote, in a process that may be killed.

    function.py    Sandbox: a function of ours, called with arguments of unknown origin
    program.py     run_program: a Python program that a model wrote
    isolation.py   the walls around a program: bubblewrap, unshare, or limits alone
    inside.py      the first lines that run in a program's process
    signals.py     signals that end a command: a process that helps another leaves them to it, and work that is done as a whole lets them wait
    limits.py      Limits, Returned, Failed: what both take and give

A function shares a process with our own code and its result is believed. A program is believed nothing: it
answers, and the verdict is formed elsewhere.
"""

from manyhands.sandbox.function import Sandbox
from manyhands.sandbox.isolation import Isolation, find_isolation
from manyhands.sandbox.limits import Failed, FailureKind, Limits, Returned
from manyhands.sandbox.program import Call, Ended, run_program
from manyhands.sandbox.signals import held_back, leave_ends_to_caller

__all__ = [
    "Call",
    "Ended",
    "Failed",
    "FailureKind",
    "Isolation",
    "Limits",
    "Returned",
    "Sandbox",
    "find_isolation",
    "held_back",
    "leave_ends_to_caller",
    "run_program",
]
