"""Signals that end a command reach all of its processes: a terminal, `timeout`, systemd and Slurm send them to the group, or to all.

A process that helps another leaves them to that one, which may have something to finish and to keep. It ends when its
caller lets it go, closes its pipe or kills it.
"""

from __future__ import annotations

import signal

_ENDS = ("SIGINT", "SIGTERM", "SIGHUP")  # as far as the system has them; Windows has few


def leave_ends_to_caller() -> None:
    """Ignore the signals that end a command, in this process and in those that it starts."""
    for name in _ENDS:
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_IGN)
