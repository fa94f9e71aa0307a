"""Answers that come in pieces, as server-sent events, and clients that leave or do not listen.

A stream ends with its source, or when the client is gone, which cancels what it was made of. A client that
takes nothing for `stall_seconds` is cut off: what is buffered for it is bounded, and so is the patience.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PING = b": \n\n"  # a comment: it keeps proxies from thinking that the connection is dead
DONE = b"data: [DONE]\n\n"


def data_event(data: Any, name: str = "") -> bytes:
    """A server-sent event with JSON in it."""
    line = json.dumps(data, separators=(",", ":")).encode()
    before = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (before, line)


class EventStream(Response):
    """A response whose body comes piece by piece. `on_end` is called in any case, once.

    `source` is closed when the client is gone. HEAD, which has no body, is answered without it, and so at once.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncIterator[bytes],
        *,
        stall_seconds: float,
        on_end: Callable[[], None] = lambda: None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._source, self._stall_seconds, self._on_end = source, stall_seconds, on_end
        # When the piece that is being sent was begun, or was last seen to be taken.
        self._sends_since: float | None = None
        self._num_taken = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        writing = asyncio.ensure_future(self._write(scope, send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            while not (writing.done() or leaving.done()):
                await asyncio.wait(
                    (writing, leaving),
                    timeout=self._stall_seconds / 4,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if self._is_stalled(scope):
                    abort(scope)
                    break
            if writing.done():
                writing.result()
        finally:
            for task in (writing, leaving):
                task.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)
            self._on_end()

    def _is_stalled(self, scope: Scope) -> bool:
        num_before, self._num_taken = self._num_taken, _num_taken(scope)
        if self._sends_since is not None and self._num_taken > num_before:
            self._sends_since = time.monotonic()
        since = self._sends_since
        return since is not None and time.monotonic() - since > self._stall_seconds

    async def _write(self, scope: Scope, send: Send) -> None:
        async def by_asgi(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        write = _piece_writer(scope) or by_asgi
        try:
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            async for piece in self._source:
                self._sends_since = time.monotonic()
                await write(piece)
                self._sends_since = None
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()


def _piece_writer(scope: Scope) -> Callable[[bytes], Awaitable[None]] | None:
    """The shorter way to the client (`connection.py`); None where there is none, as in a test's client."""
    found = scope.get("state", {}).get("piece_writer")
    writer: Callable[[bytes], Awaitable[None]] | None = None if found is None else found()
    return writer


def _num_taken(scope: Scope) -> int:
    """Bytes that the client has taken; 0 where nothing knows it, as in a test's client."""
    found = scope.get("state", {}).get("num_taken")
    return 0 if found is None else int(found())


def abort(scope: Scope) -> None:
    """Cut a connection off; without one, as in a test's client, nothing happens."""
    end = scope.get("state", {}).get("abort")
    if end is not None:
        end()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def is_gone_before(request: Request, waiting: asyncio.Future[Any]) -> bool:
    """Wait for something, or for the client to leave; says whether it has left."""
    leaving = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        return not waiting.done()
    finally:
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
