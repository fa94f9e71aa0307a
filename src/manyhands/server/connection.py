"""A connection: uvicorn's, with an end for clients that never come to one.

What uvicorn leaves to a proxy in front of it:

- Headers that come a byte a second. A connection on which no request begins within `request_seconds`, or
  none after the last answer within the keep-alive time, is closed.
- A reader that takes nothing. Closing such a connection waits until what is buffered was sent, which is
  never; `abort`, which every request finds in its state, does not wait.
- What is no HTTP is told so as everything else is: with OpenAI's error object. So is a request on one connection too many:
  every request finds in its state whether its connection is one, and the gate asks. A connection that came while there was room
  is none, however many have come behind it: uvicorn's own limit refuses all of a crowd.
- An answer that comes before its request has: a body that is too large, a wrong key, headers that are too long. A connection that is
  closed while its client sends is reset, and the answer thrown away unread. So this side of it ends, and what still comes is
  taken and forgotten, for as long as a request may take to arrive.
- A client that shuts its own side behind a whole request, and reads on, as HTTP/1.1 allows. One that is gone looks the same until
  something is sent to it: it answers with a reset, and what is sent next fails. So before an answer begins `100 Continue` is
  sent, which clients have to pass over (RFC 9110, section 15.2), and again; within a stream of events, a comment. HTTP/1.0 knows no such words; there a side that
  is shut is a client that is gone.

Pieces of a stream may be written past the layers of ASGI and h11, which look at each of them again: `piece_writer`, in the
state of every request too. What that saves stands in docs/log.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from manyhands.server.failures import Refusal
from manyhands.server.streams import PING

# States of a client that has sent all that its connection is for; one in another state may still send.
_SENDS_NO_MORE = frozenset({h11.IDLE, h11.DONE, h11.MUST_CLOSE, h11.CLOSED})
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Seconds from the first such words to the next, and at most between any two: each wait is twice the one before.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0


class _Transport:
    """asyncio's transport, whose `close` leaves time to a client that still sends."""

    def __init__(
        self,
        transport: asyncio.Transport,
        is_over: Callable[[], bool],
        linger: Callable[[], None],
    ) -> None:
        """`is_over`: whether nobody need be waited for. `linger` is called where somebody is, once all is said."""
        self._transport, self._is_over, self._linger = transport, is_over, linger
        self.lingers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes; none behind the end."""
        if not self.lingers:
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether nothing more is sent."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """End this side; where nobody need be waited for, the other one too."""
        if self._transport.is_closing() or self._is_over():
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
    """One client's connection. `request_seconds` and `most` of them are set on a subclass, see `connections_with`."""

    request_seconds = 30.0
    most = 1024

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
        }
        super().__init__(config, server_state, {**app_state, **own}, _loop)
        self._patience: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._is_half_shut = False  # by the client
        self._streaming: RequestResponseCycle | None = None  # the answer that is a stream of events
        self._is_over = False  # the server ends
        self._had_room = True  # when it was made

    @property
    def is_answering(self) -> bool:
        """Whether a request has begun whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

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
        if self.conn.their_http_version != b"1.1":
            return None
        self._streaming = cycle

        async def write(piece: bytes) -> None:
            if self.flow.write_paused and not cycle.disconnected:
                await self.flow.drain()
            if piece and not cycle.disconnected:  # an empty chunk would end the answer
                self.transport.write(_chunk(piece))

        return write

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as there
        """The client is there; its first request has so long to begin."""
        self._own = _Transport(transport, self._ends_at_once, self._have_patience)
        super().connection_made(cast(asyncio.Transport, self._own))
        self._had_room = len(self.connections) <= self.most
        self._have_patience()

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
            return False
        self._look_for_client(_FIRST_WAIT)
        return True

    @property
    def _is_owed(self) -> bool:
        """Whether a client that sends no more has sent all of a request that is being answered."""
        is_read = self.conn.their_state in _SENDS_NO_MORE and self.conn.their_http_version == b"1.1"
        return is_read and self.is_answering and not self._own.lingers

    def _look_for_client(self, wait: float) -> None:
        """Send words that mean nothing until the answer is complete: to a client that is gone they cannot be sent twice."""
        self._look_no_more()
        if not self.is_answering or self._own.is_closing():
            return
        has_begun = self.cycle.response_started
        if has_begun and self.cycle is not self._streaming:  # nothing stands between its bytes
            return
        if not self.flow.write_paused:  # else it has words to take
            self._own.write(_chunk(PING) if has_begun else _CONTINUE)
        longer = min(2 * wait, _LONGEST_WAIT)
        self._looking = self.loop.call_later(wait, self._look_for_client, longer)

    def on_response_complete(self) -> None:
        """The next request that has come already is answered; a client that sends no more has none else."""
        super().on_response_complete()
        if self._is_half_shut and self._is_owed:
            self._look_for_client(_FIRST_WAIT)
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

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._lose_patience()
        self._look_no_more()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """The bytes that came are no HTTP, or have too many headers: said as every other error is."""
        refusal = Refusal(
            400, "the request is no valid HTTP/1.1, or its headers are too long", code="bad_http"
        )
        body = json.dumps(refusal.body).encode()
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        )
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _lose_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def connections_with(request_seconds: float, most: int) -> type[Connection]:
    """Connections on which a request has so long to begin, and so many of them."""
    return type("Connection", (Connection,), {"request_seconds": request_seconds, "most": most})
