"""Choices of a cluster, for every command that uses one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from manyhands.errors import InvalidRequest
from manyhands.schema.setting import as_found, check, setting

_MACHINES = "Several machines"
_WORDS = ("auto", "local")
# HOST:PORT, or what Ray's client calls by a scheme. A host of colons is one of IPv6, with or without brackets.
_ADDRESS = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://)?(?:\[([^\s/?#@\[\]]+)\]|([^\s/?#@\[\]]+)):([0-9]{1,5})/?"
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://\S+")
_MOST_PORT = 65535


def host_and_port(address: str) -> tuple[str, int] | None:
    """Where to knock for a cluster. None: that does not stand in the address, as in `auto`."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[3]) <= _MOST_PORT:
        return None
    return found[1] or found[2], int(found[3])


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """A Ray cluster, and what one replica of the model takes of it.

    `ray`: the address of a cluster, `auto` for the one that this machine belongs to, `local` for a new one on this
    machine alone, which ends with the command. None: no cluster, everything in this process. InvalidRequest for what cannot
    be an address: Ray would look for it for minutes.
    """

    ray: str | None = setting(
        None,
        "Spread the work over a Ray cluster: its address (HOST:PORT), auto, or local.",
        unset="this process alone",
        panel=_MACHINES,
    )
    replicas: int | None = setting(
        None,
        "Processes with a model each; a server begins with so many.",
        at_least=1,
        unset="one for each GPU of the cluster, or for each machine if it has none",
        panel=_MACHINES,
    )
    replica_gpus: float | None = setting(
        None,
        "GPUs of one replica.",
        at_least=0,
        unset="1 if the cluster has any",
        panel=_MACHINES,
    )
    replica_cpus: float = setting(1.0, "Cores of one replica.", above=0, panel=_MACHINES)

    def __post_init__(self) -> None:
        check(self)
        ray: object = self.ray
        if ray is None or ray in _WORDS:
            return
        if not isinstance(ray, str) or not (host_and_port(ray) or _SCHEME.fullmatch(ray)):
            raise InvalidRequest(
                f"ray is {as_found(ray)}; expected HOST:PORT, auto, or local",
                hint="give the address that `ray start --head` has told, as 192.168.0.2:6379",
            )


@dataclass(frozen=True, kw_only=True)
class ServingSettings(ClusterSettings):
    """The same of a server, whose replicas come and go with its clients."""

    most_replicas: int | None = setting(
        None,
        "Processes with a model each, at most: more are started while many requests are under way.",
        at_least=1,
        unset="--replicas",
        panel=_MACHINES,
    )
    replica_requests: float = setting(
        32.0,
        "Requests under way for which one replica is enough.",
        above=0,
        panel=_MACHINES,
    )
