"""The distributions and weights that each replica of a server has, and in which way replicas differ.

A conversation has one place, so a method that one machine lacks works for some conversations and not for others, and with other
weights or another release answers differ. A batch refuses such a machine before it answers anything (`spreading.py`); a server
goes on, since replicas come and go while it runs, and says which of them has to be mended (`serving.py`).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.errors import InvalidRequest
from manyhands.strategies.methods import METHODS

# Of what stands in a trace's header: the same wherever the same answers come.
_EQUAL = ("dtype", "quantise", "kv_cache_dtype", "backend", "fingerprint")
_CALLED = {"fingerprint": "weights (by their fingerprint)"}  # where another word says more


@dataclass(frozen=True)
class Installed:
    """The distributions and weights of one replica, as plain data. `mark` is the replica's, `machine` the name of its host.

    `facts` are equal on machines that answer alike; `methods` are those of other distributions that can be used there, each with
    its distribution and version (`my-relay 1.0`).
    """

    mark: str
    machine: str
    facts: Mapping[str, str]
    methods: Mapping[str, str]

    @property
    def place(self) -> str:
        """The replica as an error calls it."""
        return f"{self.mark} on {self.machine}"


def installed_here(mark: str, place: Mapping[str, Any]) -> Installed:
    """Distributions and weights of this process, which is the replica `mark`; `place` is that of its traces (`Served.place`)."""
    facts = {name: str(place[name]) for name in _EQUAL if name in place}
    facts |= {name: str(version) for name, version in place.get("versions", {}).items()}
    methods = {name: METHODS.place(name) for name in METHODS.working() if name not in METHODS.rows}
    return Installed(mark, socket.gethostname(), facts, methods)


def lacking(found: Iterable[Installed]) -> set[str]:
    """Methods of other distributions that some of these replicas have, and others lack."""
    offered = [frozenset(one.methods) for one in found]
    some = frozenset[str]().union(*offered)
    return {name for name in some if not all(name in each for each in offered)}


def differences(found: Sequence[Installed]) -> list[InvalidRequest]:
    """In which way these replicas differ, each with its mend; none where all are alike."""
    told = []
    for name in sorted({name for one in found for name in one.methods}):
        offered = {one.place: one.methods[name] for one in found if name in one.methods}
        without = [one for one in found if name not in one.methods]
        first = next(iter(offered.values()))
        if without:
            hosts = ", ".join(sorted({one.machine for one in without}))
            told.append(
                InvalidRequest(
                    f"the method {name!r} of {first} is installed for {', '.join(offered)}, and not for "
                    f"{', '.join(one.place for one in without)}; requests for it that come there are refused",
                    hint=f"install it on {hosts} too (pip install {first.replace(' ', '==')}), and start again",
                )
            )
        if len({*offered.values()}) > 1:
            told.append(_differing(f"the method {name!r}", offered))
    for name in sorted({name for one in found for name in one.facts}):
        values = {one.place: one.facts.get(name, "none") for one in found}
        if len({*values.values()}) > 1:
            told.append(_differing(_CALLED.get(name, name), values))
    return told


def _differing(what: str, values: Mapping[str, str]) -> InvalidRequest:
    """An error that says what each replica has, by their places."""
    said = "; ".join(f"{value} at {place}" for place, value in values.items())
    return InvalidRequest(
        f"replicas differ in {what}: {said}. Their answers may differ",
        hint="install the same packages and put the same model on all machines of the cluster, and start again",
    )
