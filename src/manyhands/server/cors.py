"""Pages of other sites: which may call a server (`serve --allow-origin`), and the question that browsers ask before.

A browser asks whether a page may send a request (a *preflight*) before any key is sent, so this stands in front of the gate and
answers it, where the gate would not refuse any request that comes so (`gate.py::check_arrival`). Its answer is logged and counted
as those of the gate are: a site that was named wrongly is seen in no other place.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from manyhands.errors import InvalidRequest
from manyhands.schema.openai import shown
from manyhands.server.failures import Refusal
from manyhands.server.gate import LOG, Headers, check_arrival

PREFLIGHT = "preflight"  # the route of such a question, as it is counted
# A host as requests name it, in ASCII (`xn--` stands for other letters), and its port.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.~%-]+)(:[0-9]+)?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)")
_USUAL = {"http": ":80", "https": ":443"}  # ports that no browser names


def cors_of(
    origins: Iterable[str],
    header_bytes: int,
    count: Callable[[str, int], None] = lambda route, status: None,
) -> list[Middleware]:
    """The layer in front of the gate for pages of these sites; none without any.

    `header_bytes` bounds a preflight's headers, as the gate bounds those of others. `count` is told of every answer.
    """
    named = [*origins]
    return [Middleware(_Cors, named, header_bytes, count)] if named else []


def check_origins(origins: Iterable[str]) -> None:
    """Raise InvalidRequest for what no browser sends as an Origin, so that it would match none."""
    for origin in origins:
        if origin != "null" and not _is_origin(origin):
            raise InvalidRequest(
                f"allow_origin is {shown(origin)}; expected a site as browsers name it: scheme and host in small letters of ASCII, "
                "and the port if it is not the usual one, with nothing behind them",
                hint="write https://example.org, for instance; each site is named by itself",
            )


def _is_origin(text: str) -> bool:
    """Whether browsers name a site so."""
    origin = _ORIGIN.fullmatch(text)
    place = _HOST.fullmatch(origin[2]) if origin else None
    if origin is None or place is None:
        return False
    return text == text.lower() and place[2] != _USUAL.get(origin[1], "")


def check_hosts(hosts: Iterable[str]) -> None:
    """Raise InvalidRequest for what no request has as its Host."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise InvalidRequest(
                f"allow_host is {shown(host)}; expected a name in ASCII, with or without a port",
                hint="write team.example.org, for instance; each name by itself",
            )


class _Cors(CORSMiddleware):
    """Starlette's, whose answers to preflights are logged and counted."""

    def __init__(
        self,
        app: ASGIApp,
        origins: list[str],
        header_bytes: int,
        count: Callable[[str, int], None],
    ) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # clients of OpenAI send many of their own
            expose_headers=["x-request-id", "x-manyhands-run", "retry-after", "x-should-retry"],
        )
        self._header_bytes, self._count = header_bytes, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight, or hand the request on."""
        headers = dict(scope.get("headers", ()))
        is_preflight = scope.get("method") == "OPTIONS" and b"origin" in headers
        if not (is_preflight and b"access-control-request-method" in headers):
            await super().__call__(scope, receive, send)
            return
        try:
            check_arrival(scope, Headers(scope), self._header_bytes)
        except Refusal:  # the gate says so, to a page of any site
            await self.app(scope, receive, send)
            return
        name, begun, status = f"req_{uuid.uuid4().hex[:24]}", time.perf_counter(), 0

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        await super().__call__(scope, receive, told)
        self._count(PREFLIGHT, status)
        line = {
            "request_id": name,
            "method": "OPTIONS",
            "path": scope["path"],
            "origin": headers[b"origin"].decode("latin-1")[:100],
            "status": status,
            "seconds": round(time.perf_counter() - begun, 4),
        }
        LOG.info("request", extra={"line": line})
