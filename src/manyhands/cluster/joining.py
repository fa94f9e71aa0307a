"""The one door to Ray: joining a cluster, and what is said where that cannot be.

with joined(settings) as ray: ...
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from manyhands.cluster.settings import ClusterSettings
from manyhands.errors import InvalidRequest, install_hint

_KNOCK = 5.0  # seconds
INSTALL = f"on every machine of the cluster, {install_hint('ray')}"


def imported(name: str = "ray") -> Any:
    """A module of Ray. InvalidRequest says how to get it."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its coming default
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidRequest(f"{name} is not installed here", hint=INSTALL) from error


@contextmanager
def joined(settings: ClusterSettings) -> Iterator[Any]:
    """Ray, connected. A connection that was there before stays afterwards."""
    ray = imported()
    if ray.is_initialized():
        yield ray
        return
    try:
        _knock(settings.ray or "")
        with _own_signals():
            ray.init(
                address=settings.ray,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                include_dashboard=False if settings.ray == "local" else None,
            )
    except (OSError, RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidRequest(
            f"the Ray cluster at {settings.ray!r} cannot be joined: {first}",
            hint="start one with `ray start --head`, or give --ray local to try it on this machine",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError if nothing listens there. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """The handler of SIGTERM stays as it is; Ray would take it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Share:
    """The part of the cluster that replicas take: how many there are, and the cores and GPUs of each."""

    replicas: int
    cpus: float
    gpus: float

    @property
    def resources(self) -> dict[str, float]:
        """As Ray's options of an actor."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}


def share_of(ray: Any, settings: ClusterSettings) -> Share:
    """The resources asked for, and where nothing was said, those that the cluster has."""
    has = ray.cluster_resources()
    cluster_gpus = has.get("GPU", 0.0)
    gpus = settings.replica_gpus
    if gpus is None:
        gpus = 1.0 if cluster_gpus else 0.0
    replicas = settings.replicas
    if replicas is None:
        alive = sum(1 for node in ray.nodes() if node["Alive"])
        replicas = int(cluster_gpus / gpus) if gpus and cluster_gpus else alive
    wanted = {"GPU": gpus, "CPU": settings.replica_cpus}
    for name, size in wanted.items():
        largest = max((node["Resources"].get(name, 0.0) for node in ray.nodes()), default=0.0)
        if size > largest:
            raise InvalidRequest(
                f"a replica takes {size:g} {name}; no machine of the cluster has more than {largest:g}",
                hint="give fewer: --replica-cpus, --replica-gpus",
            )
    return Share(max(1, replicas), settings.replica_cpus, gpus)
