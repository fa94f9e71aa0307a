"""A server as a process: a socket, uvicorn around the app, signals, and an end that leaves nothing behind.

    serve(front, Place("127.0.0.1", 8000))      returns the code to exit with

SIGTERM, SIGHUP and the first Ctrl-C: new runs are told 503, those under way have `drain` seconds, then they end with
what they have, and the process with 0. A second Ctrl-C does not wait. When the engine itself fails, everybody
is answered, and the process ends with `EXIT_ENGINE`, so that a supervisor starts it anew. A signal that the process ignores,
as under `nohup`, stays ignored.

A connection is an open file, of which many systems give a process 1024 until it asks for more: it asks. Where that is not
enough, fewer connections are taken, and a connection for which there is no file is told to the log once a minute.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import uvicorn
from starlette.types import ASGIApp

from manyhands.errors import InvalidRequest
from manyhands.server.app import make_app
from manyhands.server.connection import Connection, connections_with
from manyhands.server.cors import check_hosts, check_origins
from manyhands.server.front import Front
from manyhands.server.gate import LOG, LOOPBACK_NAMES, JsonLines, is_loopback
from manyhands.server.keys import Keys
from manyhands.server.limits import Limits

EXIT_ENGINE = 70  # as EX_SOFTWARE of sysexits.h
_ENDS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    if hasattr(signal, name)  # each system has its own
)
_BACKLOG = 2048  # connections that wait to be taken: a crowd that comes at once
_FILES_BESIDES = 64  # open files that are no connections
_NO_FILE = (errno.EMFILE, errno.ENFILE)
_TOLD_EVERY = 60.0  # seconds
_LAST_ANSWERS = 2.0  # seconds for answers to be written when all runs have ended


@dataclass(frozen=True)
class Place:
    """Where a server listens, and by which names it may be called.

    `hosts` are names besides those of loopback; on another address any name will do unless some are given.
    `drain` is in seconds.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    drain: float = 30.0
    log: bool = True

    @property
    def names(self) -> frozenset[str] | None:
        """Hosts that requests may name; None: any."""
        if is_loopback(self.host):
            return LOOPBACK_NAMES | frozenset(self.hosts)
        return frozenset(self.hosts) or None


class Behind(Protocol):
    """The application that a process serves. `stop` is set by it, and asks it to end."""

    keys: Keys
    limits: Limits
    is_draining: bool
    stop: Callable[[], None]

    @property
    def num_live(self) -> int:
        """Runs that are under way."""

    @property
    def is_broken(self) -> bool:
        """Whether it has failed, and can answer no request any more."""

    def answered(self, route: str, status: int) -> None:
        """Count a request that the application never sees."""

    def close(self) -> None:
        """End whatever is under way."""


def check_place(place: Place, *, has_keys: bool) -> None:
    """Raise InvalidRequest for an address that others reach, without a key, and for names of hosts and sites that nobody has."""
    check_hosts(place.hosts)
    check_origins(place.origins)
    if not is_loopback(place.host) and not has_keys:
        raise InvalidRequest(
            f"host is {place.host!r}, which other machines can reach, and there is no API key",
            hint="give --api-key-file FILE, or leave --host out",
        )


def listening(place: Place) -> socket.socket:
    """A socket at the place. InvalidRequest says why there is none."""
    family, address = _address_of(place)
    # Of a socket that does not name TCP asyncio would not know it, and leave small answers waiting for acknowledgements.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
            raise _no_host(place, "this machine has no such address") from error
        raise InvalidRequest(
            f"port {place.port} at {place.host} cannot be taken: {reason}",
            hint="give another --port; 0 takes a free one",
        ) from error
    return found


def _address_of(place: Place) -> tuple[socket.AddressFamily, Any]:
    """The address meant, and its family; of a name that has several the one of IPv4."""
    host = place.host.strip("[]")
    try:
        found = socket.getaddrinfo(
            host or None, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise _no_host(place, reason or "it is no name") from error
    family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, address


def _no_host(place: Place, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"host is {place.host!r}, at which nothing can listen: {reason}",
        hint="give an address of this machine, such as 127.0.0.1 or 0.0.0.0, or a name of one",
    )


def serve(
    front: Front,
    place: Place,
    taken: socket.socket | None = None,
    *,
    ready: Callable[[str], None] = lambda url: None,
) -> int:
    """Answer until a signal or a failure ends it; the code to exit with.

    `taken` is a socket that listens already. `ready` is called with the address when requests are taken.
    """
    check_place(place, has_keys=bool(front.keys))
    listener = taken or listening(place)
    app = make_app(front, hosts=place.names, origins=place.origins)
    return serve_app(app, front, place, listener, ready=ready)


def serve_app(
    app: ASGIApp,
    front: Behind,
    place: Place,
    listener: socket.socket,
    *,
    ready: Callable[[str], None] = lambda url: None,
) -> int:
    """Answer, as `serve` does, with an app that is made, at a socket that listens."""
    if place.log:
        _log_lines()
    limits = front.limits
    config = uvicorn.Config(
        app,
        http=connections_with(limits, _most_connections(limits.connections), front.answered),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        backlog=_BACKLOG,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=None,  # uvicorn's refusal is plain text; `gate.py` has one
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_graceful_shutdown=None,
    )
    host = f"[{place.host}]" if ":" in place.host else place.host
    server = _Server(config, front, place.drain)
    server.when_started = lambda: ready(f"http://{host}:{listener.getsockname()[1]}")
    front.stop = server.stop
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        listener.close()
        front.close()
    return EXIT_ENGINE if front.is_broken else 0


class _Server(uvicorn.Server):
    """Uvicorn's server, which ends when the runs have ended."""

    def __init__(self, config: uvicorn.Config, front: Behind, drain: float) -> None:
        super().__init__(config)
        self._front, self._drain = front, drain
        self.when_started: Callable[[], None] = lambda: None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear the signals that end a server, in place of whatever interrupts a command."""
        before: dict[signal.Signals, Any] = {}
        try:
            if threading.current_thread() is threading.main_thread():
                for number in _ENDS:
                    if (found := signal.getsignal(number)) is not signal.SIG_IGN:
                        before[number] = found
                        signal.signal(number, self.handle_exit)
            yield
        finally:
            for number, found in before.items():
                signal.signal(number, found)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        asyncio.get_running_loop().set_exception_handler(_FilesRunOut())
        await super().startup(sockets)
        self.when_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: the first asks for an end, the second does not wait. Neither is raised once more."""
        if self._front.is_draining and sig == signal.SIGINT:
            self._drain = 0.0
            self.force_exit = True
        self._front.is_draining = True
        self.should_exit = True

    def stop(self) -> None:
        """End as at a signal; if the engine has failed, without waiting for runs."""
        self._front.is_draining = True
        if self._front.is_broken:
            self._drain = 0.0
        self.should_exit = True

    async def main_loop(self) -> None:
        """Answer; when that is to end, let the runs end first, while new ones are told so."""
        await super().main_loop()
        self._front.is_draining = True
        await self._drained(self._drain)
        await self._closed()
        await self._answered()

    async def _closed(self) -> None:
        """End what is under way, in a thread; in this one where the system gives no more of them."""
        # Not the loop's own executor, which would want one more thread at its end.
        with ThreadPoolExecutor(1, "manyhands-close") as threads:
            try:
                closing = asyncio.get_running_loop().run_in_executor(threads, self._front.close)
            except RuntimeError:
                self._front.close()
            else:
                await closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close; a second signal keeps uvicorn from letting the application end, so that is done here."""
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()

    async def _drained(self, seconds: float) -> None:
        ends_at = asyncio.get_running_loop().time() + seconds
        while self._front.num_live and not self.force_exit and self._drain:
            if asyncio.get_running_loop().time() >= ends_at:
                return
            await asyncio.sleep(0.05)

    async def _answered(self) -> None:
        """Wait a moment until everybody has been told; whoever does not listen is cut off."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _LAST_ANSWERS
        while (self.server_state.tasks or self._untold()) and loop.time() < ends_at:
            await asyncio.sleep(0.02)
        for connection in self._untold():
            connection.abort()

    def _untold(self) -> list[Connection]:
        """Clients that have not been told all yet."""
        connections = list(self.server_state.connections)
        return [
            each for each in connections if isinstance(each, Connection) and not each.is_told_all
        ]


def _most_connections(wanted: int) -> int:
    """How many connections are taken where so many are wanted: as many as there are files for, once more were asked for."""
    if sys.platform == "win32":  # which has no such limit
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The backlog may be taken at once, to be told that these are too many.
    needed = wanted + _FILES_BESIDES + _BACKLOG
    if 0 <= soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):  # a system may have a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 0 or soft >= wanted + _FILES_BESIDES:
        return wanted
    most = max(1, soft - _FILES_BESIDES)
    LOG.warning(
        f"{soft} files may be open, so {most} connections are taken and not {wanted}; allow more (ulimit -n, LimitNOFILE)"
    )
    return most


class _FilesRunOut:
    """Errors that reach the event loop itself: asyncio tells of each connection without a file, thousands a second."""

    def __init__(self) -> None:
        self._told = -math.inf  # when

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell the log of one."""
        error = context.get("exception")
        if isinstance(error, ValueError) and "_start_serving" in context.get("message", ""):
            return  # it would have tried again, and the server has ended
        if not (isinstance(error, OSError) and error.errno in _NO_FILE and "socket" in context):
            loop.default_exception_handler(context)
        elif loop.time() - self._told >= _TOLD_EVERY:
            self._told = loop.time()
            LOG.error(
                f"connections wait, for no more files can be opened: {error.strerror}; allow more (ulimit -n, LimitNOFILE)"
            )


def _log_lines() -> None:
    """Our log, a JSON object a line, on stderr; all rooms' warnings, Python's own, and what uvicorn and asyncio have to complain of."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.captureWarnings(True)
    levels = {
        "manyhands": logging.WARNING,
        "manyhands.server": logging.INFO,
        "py.warnings": logging.WARNING,
        "uvicorn.error": logging.ERROR,
        "asyncio": logging.ERROR,
    }
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
