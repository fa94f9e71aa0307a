"""Choices of a cluster, for every command that uses one."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.schema.setting import check, setting

_MACHINES = "Several machines"


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """A Ray cluster, and what one replica of the model takes of it.

    `ray`: the address of a cluster, `auto` for the one that this machine belongs to, `local` for a new one on this
    machine alone, which ends with the command. None: no cluster, everything in this process.
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
