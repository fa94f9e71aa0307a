"""The replicas that this process knows of: routers of Serve are told which there are, and the door asks here.

    know("manyhands-bundled", ["aaaaaaaa", "bbbbbbbb"])
    known("manyhands-bundled")               ("aaaaaaaa", "bbbbbbbb")

A module of its own because Serve copies the module of a router by value: what a router stored in its own module
would be another dictionary than the one that the door reads.
"""

from __future__ import annotations

from collections.abc import Iterable

_marks: dict[str, tuple[str, ...]] = {}


def know(application: str, marks: Iterable[str]) -> None:
    """An application of Serve has the replicas with these marks (`affinity.py::bare_mark`), and no others."""
    _marks[application] = tuple(marks)


def known(application: str) -> tuple[str, ...]:
    """The marks of its replicas. A router begins with the first request of its process; before that there are none."""
    return _marks.get(application, ())
