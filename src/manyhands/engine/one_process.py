"""An engine belongs to the process that loaded it: neither a fork nor a pickle makes a second one.

Behind `os.fork` (and multiprocessing, where it forks) the copy has no thread of the original: torch's threads are gone, so a
product waits for them for good, and so does whatever waits for a Service. A pickle would write weights and all keys first,
and then meet a lock that cannot be written. Both are said at once instead.
"""

from __future__ import annotations

import os
from typing import NoReturn

from manyhands.errors import InvalidRequest

_HINT = (
    "Load an engine in each process (multiprocessing.get_context('spawn') starts them anew), or let the others ask this one: "
    "`manyhands serve`."
)


class Here:
    """The number of this process: looked at once, and anew in a fork, for an engine's door compares it at every call."""

    number = os.getpid()


def _look() -> None:
    Here.number = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look)


def check_process(process: int, what: str) -> None:
    """Raise InvalidRequest in a fork of the process with this number, which made `what`."""
    if (here := Here.number) != process:
        raise InvalidRequest(
            f"{what} was made by process {process} and is used in process {here}, a fork of it; expected the process that made it",
            hint=_HINT,
        )


class OfOneProcess:
    """A class whose objects are neither pickled nor copied."""

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise InvalidRequest(
            f"a {name} was to be pickled or copied; expected plain data, for it belongs to the process that made it",
            hint=_HINT,
        )
