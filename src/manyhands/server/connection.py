"""A connection: uvicorn's, with an end for clients that never come to one.

What uvicorn leaves to a proxy in front of it:

- Headers that come a byte a second. A connection on which no request begins within `request_seconds`, or
  none after the last answer within `idle_seconds`, is closed.
- Connections that are kept for a next request. Where a new one is one too many, one that has been idle for long is closed.
- A reader that takes nothing. Closing such a connection waits until what is buffered was sent, which is
  never; `abort`, which every request finds in its state, does not wait. Where more is buffered than should be, or where the
  connection is being closed, a client has `stall_seconds` to take some of it, and as long again behind all that it takes.
- What is no HTTP is told so as everything else is: with OpenAI's error object. So is a request on one connection too many:
  every request finds in its state whether its connection is one, and the gate asks. A connection that came while there was room
  is none, however many have come behind it: uvicorn's own limit refuses all of a crowd.
- An answer that comes before its request has: a body that is too large, a wrong key, headers that are too long. A connection that is
  closed while its client sends is reset, and the answer thrown away unread. So this side of it ends, and what still comes is
  taken and forgotten, for as long as a request may take to arrive.
- A client that shuts its own side behind a whole request, and reads on, as HTTP allows. One that is gone looks the same until
  something is sent to it: it answers with a reset, which is an error of the socket. All answers begin with the same nine bytes, so
  until an answer begins these are sent, one at a time, and within a stream of events comments: no client is told anything else
  than its answer. `100 Continue` is no such thing: HTTP/1.0 does not know it, and some clients take five at most. Behind
  the ninth byte the system asks (TCP keep-alive), whom a client's system answers with a reset once it has forgotten the
  connection, a minute after it was closed.

Pieces of a stream may be written past the layers of ASGI and h11, which look at each of them again: `piece_writer`, in the
state of every request too. What that saves stands in docs/log.md.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from manyhands.server.failures import Refusal
from manyhands.server.gate import LOG
from manyhands.server.limits import Limits
from manyhands.server.streams import PING

try:
    from fcntl import ioctl as _ioctl
    from termios import TIOCOUTQ

    _NUM_UNTAKEN: int | None = TIOCOUTQ  # bytes of a socket that were not acknowledged
except ImportError:  # not on every system
    _NUM_UNTAKEN = None

# States of a client that has sent all that its connection is for; one in another state may still send.
_SENDS_NO_MORE = frozenset({h11.IDLE, h11.DONE, h11.MUST_CLOSE, h11.CLOSED})
NO_HTTP = "no_http"  # in a route's place, as such bytes are counted
_BEGINNING = b"HTTP/1.1 "  # of every answer, also to HTTP/1.0
# Seconds from the first byte of it to the second; each wait is three times the one before, so the ninth comes after 328 s.
_FIRST_WAIT, _GROWTH = 0.1, 3
_LONGEST_WAIT = 10.0  # between two comments
# Seconds; a client that asks again and again is not cut off between two requests.
_IDLE_FOR_LONG = 5.0
_LOOK = 0.5  # seconds from one look for an error of the socket to the next
# TCP's keep-alive: seconds without a word, seconds between two questions, and how many are asked in vain.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class _Transport:
    """asyncio's transport, whose `close` leaves time to a client that still sends."""

    def __init__(
        self,
        transport: asyncio.Transport,
        is_over: Callable[[], bool],
        linger: Callable[[], None],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_over`: whether nobody need be waited for. `linger` is called where somebody is, once all is said.

        `watch` is called where the end waits until the client has taken what was sent.
        """
        self._transport, self._is_over, self._linger = transport, is_over, linger
        self._watch = watch
        self.lingers = False
        self._num_begun = 0  # bytes of the next answer that were sent before it
        self._num_written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def forget(self) -> None:
        """The connection is over: nobody is called any more."""
        self._is_over = lambda: True
        self._linger = self._watch = lambda: None

    def write(self, data: bytes) -> None:
        """Send bytes; none behind the end, and none of an answer's beginning twice."""
        if self._num_begun and data:
            assert data.startswith(_BEGINNING), "an answer begins as all do"
            data, self._num_begun = data[self._num_begun :], 0
        self._write(data)

    def begin(self) -> None:
        """Send one more byte of what the next answer begins with, if there is one."""
        if not self.lingers and self._num_begun < len(_BEGINNING):
            self._write(_BEGINNING[self._num_begun : self._num_begun + 1])
            self._num_begun += 1

    def _write(self, data: bytes) -> None:
        if not self.lingers:
            self._num_written += len(data)
            self._transport.write(data)

    @property
    def num_left(self) -> int:
        """Bytes that this system has not taken yet."""
        return self._transport.get_write_buffer_size()

    @property
    def num_taken(self) -> int:
        """Bytes that the client's system has taken.

        This one takes more only once a third of a buffer of megabytes is free, which a slow reader needs minutes for.
        """
        return self._num_written - self.num_left - self._num_on_their_way()

    def _num_on_their_way(self) -> int:
        taken = self._transport.get_extra_info("socket")
        if _NUM_UNTAKEN is None or taken is None or taken.fileno() < 0:
            return 0
        number = bytearray(4)
        try:
            _ioctl(taken.fileno(), _NUM_UNTAKEN, number)
        except OSError:  # not every system says it of every socket
            return 0
        return int.from_bytes(number, sys.byteorder)

    def is_closing(self) -> bool:
        """Whether nothing more is sent."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """End this side; where nobody need be waited for, the other one too."""
        if self._transport.is_closing() or self._is_over():
            self._watch()
            self._transport.close()
        elif not self.lingers:
            try:
                if self._transport.can_write_eof():
                    self._transport.write_eof()
            except OSError:  # the client is gone
                self._transport.close()
                return
            self.lingers = True
            self._transport.resume_reading()
            self._linger()


class Connection(H11Protocol):
    """One client's connection. Its limits are set on a subclass, see `connections_with`."""

    request_seconds = 30.0
    stall_seconds = 60.0
    idle_seconds = 75.0
    most = 1024
    count: Callable[[str, int], None] = staticmethod(lambda route, status: None)

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        own = {
            "abort": self.abort,
            "piece_writer": self.piece_writer,
            "is_one_too_many": self.is_one_too_many,
            "num_taken": lambda: self._own.num_taken,
        }
        super().__init__(config, server_state, {**app_state, **own}, _loop)
        self.timeout_keep_alive = self.idle_seconds  # type: ignore[assignment]  # any number will do
        self._patience: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._stalling: asyncio.TimerHandle | None = None
        self._is_half_shut = False  # by the client
        # When the next word to such a client is sent, and the wait behind it.
        self._speak_at, self._wait = 0.0, _FIRST_WAIT
        self._streaming: RequestResponseCycle | None = None  # the answer that is a stream of events
        self._is_over = False  # the server ends
        self._had_room = True  # when it was made

    @property
    def is_answering(self) -> bool:
        """Whether a request has begun whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_told_all(self) -> bool:
        """Whether no answer is under way, nor a part of one in a buffer."""
        return not self.is_answering and not self._own.num_left

    def is_one_too_many(self) -> bool:
        """Whether there were too many when it was made, and still are."""
        return not self._had_room and len(self.connections) > self.most

    def abort(self) -> None:
        """End the connection at once, whatever was not sent yet."""
        if self.transport is not None:
            self.transport.abort()

    def piece_writer(self) -> Callable[[bytes], Awaitable[None]] | None:
        """A function that sends a piece of the answer whose headers were sent, as a chunk of HTTP/1.1.

        A piece is whole server-sent events. Its end is sent by ASGI as ever. None where an answer is not in chunks: to
        HEAD, and to HTTP/1.0. The answer must not have a Content-Length.
        """
        cycle = self.cycle
        if cycle is None or not cycle.response_started or cycle.scope["method"] == "HEAD":
            return None
        self._streaming = cycle
        if not self._is_in_chunks:
            return None

        async def write(piece: bytes) -> None:
            if self.flow.write_paused and not cycle.disconnected:
                await self.flow.drain()
            if piece and not cycle.disconnected:  # an empty chunk would end the answer
                self.transport.write(_chunk(piece))

        return write

    @property
    def _is_in_chunks(self) -> bool:
        """Whether a stream is: to HTTP/1.0 it is bytes until the connection ends."""
        return self.conn.their_http_version == b"1.1"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as there
        """The client is there; its first request has so long to begin."""
        self._own = _Transport(transport, self._ends_at_once, self._have_patience, self._watch)
        super().connection_made(cast(asyncio.Transport, self._own))
        self._had_room = len(self.connections) <= self.most or self._make_room()
        self._have_patience()

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest, if one has been for long; whether there was one."""
        others = [each for each in self.connections if isinstance(each, Connection)]
        idle = max(others, key=lambda each: each.seconds_idle, default=self)
        if idle.seconds_idle < _IDLE_FOR_LONG:
            return False
        idle.shutdown()
        return True

    @property
    def seconds_idle(self) -> float:
        """Seconds since the last answer was complete; 0 where a request or an answer is under way."""
        timer = self.timeout_keep_alive_task
        if timer is None or self.is_answering or self._own.is_closing() or self._own.num_left:
            return 0.0
        return self.loop.time() - (timer.when() - self.idle_seconds)

    def _ends_at_once(self) -> bool:
        """Whether the client has sent all of its request, is not answered to the end, or the server ends."""
        is_read = self.conn.their_state in _SENDS_NO_MORE
        return is_read or self.is_answering or self._is_over

    def _have_patience(self) -> None:
        """From now on it has so long."""
        self._lose_patience()
        self._patience = self.loop.call_later(self.request_seconds, self.abort)

    def shutdown(self) -> None:
        """The server ends: behind the answer that is under way nothing is waited for."""
        self._is_over = True
        if self._own.lingers:
            self.abort()
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Bytes have come, which may be the end of some headers or the beginning of others."""
        if not self._own.lingers:
            super().data_received(data)
            self._look_at_patience()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """The client sends no more; whether the connection stays, since it may read what it has asked for."""
        self._is_half_shut = True
        if not self._is_owed:
            self._watch()  # the transport closes
            return False
        self._ask_system()
        self._look_for_client()
        return True

    def _ask_system(self) -> None:
        """Have the client's system asked whether it knows the connection, while nothing is sent."""
        taken = self._own.get_extra_info("socket")
        if taken is None or taken.family not in (socket.AF_INET, socket.AF_INET6):
            return
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:  # not on every system
                taken.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def _is_owed(self) -> bool:
        """Whether a client that sends no more has sent all of a request that is being answered."""
        is_read = self.conn.their_state in _SENDS_NO_MORE
        return is_read and self.is_answering and not self._own.lingers

    def _look_for_client(self) -> None:
        """Look for an error of the socket until the answer is complete, and send words that may bring one."""
        self._look_no_more()
        self._speak_at, self._wait = self.loop.time(), _FIRST_WAIT
        self._look()

    def _look(self) -> None:
        self._looking = None
        if not self.is_answering or self._own.is_closing():
            return
        taken = self._own.get_extra_info("socket")
        if taken is not None and taken.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.abort()
            return
        now = self.loop.time()
        if self.cycle.response_started:
            self._speak_at = min(self._speak_at, now + _LONGEST_WAIT)
        if now >= self._speak_at:
            self._speak()
            self._speak_at = now + self._wait
            self._wait *= _GROWTH
        next_at = min(self._speak_at, now + _LOOK)
        self._looking = self.loop.call_later(max(0.02, next_at - now), self._look)

    def _speak(self) -> None:
        """Send a word that means nothing."""
        if self.flow.write_paused:  # it has words to take
            return
        if not self.cycle.response_started:
            self._own.begin()
        elif self.cycle is self._streaming:  # else nothing stands between its bytes
            self._own.write(_chunk(PING) if self._is_in_chunks else PING)

    def on_response_complete(self) -> None:
        """The next request that has come already is answered; a client that sends no more has none else."""
        super().on_response_complete()
        if self._is_half_shut and self._is_owed:
            self._look_for_client()
        elif self._is_half_shut:
            self._own.close()

    def _look_at_patience(self) -> None:
        if self._own.lingers:
            return
        if self._patience is not None:
            if self.is_answering:
                self._lose_patience()
        elif not self.is_answering:
            self._have_patience()

    def pause_writing(self) -> None:
        """More is buffered than should be."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        super().resume_writing()
        if not self._own.is_closing():
            self._watch_no_more()

    def _watch(self) -> None:
        """Cut the client off once it has taken nothing for so long, as long as it has to take something."""
        if self._stalling is None and self._own.num_left:
            self._stalling = self.loop.call_later(
                self.stall_seconds, self._look_at_taken, self._own.num_taken
            )

    def _look_at_taken(self, num_before: int) -> None:
        self._stalling = None
        if self._own.num_taken > num_before:
            self._watch()
        elif self._own.num_left:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._lose_patience()
        self._look_no_more()
        self._watch_no_more()
        super().connection_lost(exc)
        # All of these lead back here: circles, which would wait for a collection of garbage with whatever was asked.
        own: Any = self  # the types of what it inherits allow nothing of this
        own.cycle = own.scope = own._streaming = None  # as before a request
        own.app_state = {}
        self._own.forget()

    def send_400_response(self, msg: str) -> None:
        """The bytes that came are no HTTP, or have too many headers: said, logged and counted as every other error is.

        Nothing of them is logged: they may hold a key.
        """
        refusal = Refusal(
            400, "the request is no valid HTTP/1.1, or its headers are too long", code="bad_http"
        )
        body = json.dumps(refusal.body).encode()
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        )
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()
        self.count(NO_HTTP, refusal.status)
        line = {"client": self.client[0] if self.client else None, "status": refusal.status}
        LOG.info("no request", extra={"line": line})

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _watch_no_more(self) -> None:
        if self._stalling is not None:
            self._stalling.cancel()
            self._stalling = None

    def _lose_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def connections_with(
    limits: Limits, most: int, count: Callable[[str, int], None]
) -> type[Connection]:
    """Connections on which a request and a reader have so much time as these limits say, and so many of them.

    `count` is told of each that sends what is no HTTP: `NO_HTTP` in a route's place, and the status.
    """
    times = {
        name: getattr(limits, name) for name in ("request_seconds", "stall_seconds", "idle_seconds")
    }
    return type("Connection", (Connection,), {**times, "most": most, "count": staticmethod(count)})
