"""A request on its way from the door to a replica, and the answer on its way back.

Both ends speak ASGI, the interface of Python's web servers: so a replica is the server as it is (`server/app.py`),
called with a scope that came by another road than a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

Headers = list[tuple[bytes, bytes]]
_AHEAD = 16  # pieces of an answer that wait for a slow reader


@dataclass(frozen=True)
class Forwarded:
    """A request, as plain data. `key` is its conversation's, `replica` the mark of the one that has its run."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    client: tuple[str, int] | None = None
    key: str | None = None
    replica: str | None = None

    def scope(self) -> dict[str, Any]:
        """As an ASGI application is given it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": self.headers,
            "client": self.client,
            "server": None,
        }


@dataclass(frozen=True)
class Begin:
    """The first piece of an answer; the others are bytes of its body."""

    status: int
    headers: Headers


async def answered(app: ASGIApp, asked: Forwarded) -> AsyncIterator[Begin | bytes]:
    """The answer of an application, in pieces. Closing the iterator is a client that leaves."""
    pieces: asyncio.Queue[Begin | bytes | None] = asyncio.Queue(_AHEAD)
    left = asyncio.Event()
    is_told = False

    async def receive() -> Message:
        nonlocal is_told
        if not is_told:
            is_told = True
            return {"type": "http.request", "body": asked.body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if left.is_set():
            raise OSError("the client has left")
        if message["type"] == "http.response.start":
            await pieces.put(Begin(message["status"], list(message.get("headers", ()))))
        elif message["type"] == "http.response.body" and message.get("body"):
            await pieces.put(bytes(message["body"]))

    async def work() -> None:
        try:
            await app(asked.scope(), receive, send)
        finally:
            if not left.is_set():
                await pieces.put(None)

    task = asyncio.ensure_future(work())
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
        await task
    finally:
        left.set()
        while not pieces.empty():  # somebody may wait for room
            pieces.get_nowait()
        if not task.done():
            _, late = await asyncio.wait([task], timeout=5.0)
            for each in late:
                each.cancel()
        with suppress(Exception, asyncio.CancelledError):
            await task
