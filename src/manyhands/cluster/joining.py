"""The one door to Ray: joining a cluster, and what is said where that cannot be.

with joined(settings) as ray: ...
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from manyhands.cluster.settings import ClusterSettings, host_and_port
from manyhands.errors import InvalidRequest, ManyhandsError, install_hint

_KNOCK = 5.0  # seconds until a connection is taken, and without a word behind it until that is said
_PATIENCE = 60.0  # seconds for a program that takes a connection and says nothing
_PROBE = 5.0  # seconds for the answer to a question that needs Ray's token
_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # that question
_LOOK = 0.5  # seconds between two looks for an interrupt: one that comes while the process is halted ends no wait of the main thread
_LATE = 10.0  # seconds after which it is said that Ray itself is waited for
# Ray's programs speak HTTP/2, whose servers begin with a frame of settings (RFC 9113, sections 3.4 and 4.1).
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_HEADER_SIZE, _KIND, _SETTINGS = 9, 3, 4  # of a frame
_BRING_TOKEN = (
    "bring the token of the cluster here (`ray get-auth-token` prints it on the machine of its head) as RAY_AUTH_TOKEN or in "
    "~/.ray/auth_token, and set RAY_AUTH_MODE=token"
)
INSTALL = f"on every machine of the cluster, {install_hint('ray')}"


def imported(name: str = "ray") -> Any:
    """A module of Ray. InvalidRequest says how to get it."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its coming default
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidRequest(f"{name} is not installed here", hint=INSTALL) from error


@contextmanager
def joined(
    settings: ClusterSettings, note: Callable[[str], None] = lambda text: None
) -> Iterator[Any]:
    """Ray, connected. A connection that was there before stays afterwards. `note` is told what is waited for."""
    ray = imported()
    if ray.is_initialized():
        yield ray
        return
    try:
        _knock(settings.ray or "", note)
        _check_token(settings.ray or "")
        init = partial(
            ray.init,
            address=settings.ray,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            include_dashboard=False if settings.ray == "local" else None,
        )
        with (
            _own_signals(),
            _said_late(f"Ray at {settings.ray!r} has not answered yet; waiting", note),
        ):
            let_go = _beside(init, ray.shutdown)
    except Exception as error:
        if isinstance(error, ManyhandsError):
            raise
        is_token = type(error).__name__ == "AuthenticationError"  # of Ray: this machine has none
        if not is_token and not isinstance(error, (OSError, RuntimeError, ValueError)):
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if is_token:
            first = "RAY_AUTH_MODE is token, and this machine has none that Ray finds"
        start = "start one with `ray start --head`, or give --ray local to try it on this machine"
        raise _cannot_be_joined(settings.ray, first, _BRING_TOKEN if is_token else start) from error
    try:
        yield ray
    finally:
        try:
            ray.shutdown()
        finally:
            let_go()


def _cannot_be_joined(address: str | None, why: str, hint: str) -> InvalidRequest:
    return InvalidRequest(f"the Ray cluster at {address!r} cannot be joined: {why}", hint=hint)


def _check_token(address: str) -> None:
    """Raise InvalidRequest if the cluster refuses the token that Ray sends from here, or that there is none.

    Ray itself asks again for 20 s, and says that it cannot connect. To an address it sends its token only in the mode `token`, though
    `ray start` turns that on by itself where a token lies. What cannot be asked here (TLS, Ray's client, a release of Ray that
    reads its token elsewhere) is left to Ray.
    """
    if host_and_port(address) is None or "://" in address or _has_tls():
        return
    loaders = getattr(imported("ray._raylet"), "AuthenticationTokenLoader", None)
    if loaders is None:
        return
    grpc, loader = imported("grpc"), loaders.instance()
    is_sent = loader.has_token()  # raises where there is none in the mode `token`
    token = tuple(loader.get_token_for_http_header().items()) if is_sent else ()
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_ALIVE)(b"", timeout=_PROBE, metadata=token)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                return
        else:
            return
    if is_sent:
        raise _cannot_be_joined(address, "it refuses the token of this machine", _BRING_TOKEN)
    hint = _BRING_TOKEN
    if loader.has_token(ignore_auth_mode=True):
        hint = "set RAY_AUTH_MODE=token: there is a token here, which Ray sends to an address only then"
    raise _cannot_be_joined(address, "it wants a token, and none is sent from here", hint)


def _has_tls() -> bool:
    """Whether Ray's programs speak TLS."""
    return os.environ.get("RAY_USE_TLS", "0") not in ("0", "")


def _knock(address: str, note: Callable[[str], None]) -> None:
    """Raise OSError if no program of Ray's answers there. Ray itself would try for minutes, and hear no signal meanwhile."""
    place = host_and_port(address)
    if place is None:
        return
    with socket.create_connection(place, timeout=_KNOCK) as door:
        if not _has_tls():
            _check_greeting(
                door, lambda: note(f"{address} takes connections and says nothing; waiting")
            )


def _check_greeting(door: socket.socket, say_late: Callable[[], None]) -> None:
    ends_at = time.monotonic() + _PATIENCE
    door.sendall(_PREFACE)
    told = b""
    while len(told) < _HEADER_SIZE:
        try:
            piece = door.recv(_HEADER_SIZE - len(told))
        except TimeoutError:
            left = ends_at - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"it takes connections and says nothing in {_PATIENCE:g} s"
                ) from None
            say_late()
            door.settimeout(left)
            continue
        if not piece:
            break
        told += piece
    if len(told) < _HEADER_SIZE or told[_KIND] != _SETTINGS:
        raise OSError("another program than Ray's listens there")


@contextmanager
def _said_late(text: str, note: Callable[[str], None]) -> Iterator[None]:
    """Tell `note` this text if the block takes long."""
    timer = threading.Timer(_LATE, note, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _own_signals() -> Iterator[None]:
    """The handler of SIGTERM stays as it is; Ray would take it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _beside(init: Callable[[], object], shutdown: Callable[[], object]) -> Callable[[], None]:
    """Have this done in a thread of its own, so that an interrupt is heard while Ray's code, which hears none, is waited for.

    The thread stays until the function that comes back is called: programs that Ray has started here end with the thread that
    has started them. Interrupted, it is not waited for any more; should it still come to its end, it is shut down again. Ray leaves the
    handler of SIGTERM alone in such a thread, and says so in its log, where it is left out.
    """
    failed: list[BaseException] = []
    over, let_go = threading.Event(), threading.Event()
    lock, is_left = threading.Lock(), False

    def run() -> None:
        try:
            init()
        except BaseException as error:
            failed.append(error)
        with lock:
            over.set()
        if failed:
            return
        if is_left:
            shutdown()
        else:
            let_go.wait()

    log = logging.getLogger("ray._private.worker")
    log.addFilter(_is_no_remark_on_signals)
    try:
        threading.Thread(target=run, name="joins Ray", daemon=True).start()
        while not over.wait(_LOOK):
            pass
    except BaseException:
        with lock:
            is_left = True
        raise
    finally:
        log.removeFilter(_is_no_remark_on_signals)
    if failed:
        raise failed[0]
    return let_go.set


def _is_no_remark_on_signals(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("SIGTERM handler is not set")


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
