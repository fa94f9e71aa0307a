"""The gate: what every request passes before any route sees it, and every answer behind it.

    the target    `GET http://host/path`, as proxies are asked, is the path, and the host is that of the target
    a name        `X-Request-Id` comes in or is made, and goes out; the log line has it
    the length    of a body is said once, so that a proxy in front sees where it ends as we do
    the crowd     one connection too many is told to come back, but for `OPEN`: a busy server is no dead one
    the host      on loopback only its own names, so that no foreign name points a browser here (DNS rebinding)
    the origin    a page of another site may not change anything
    the key       on every route but `OPEN`, compared in constant time
    the type      bodies are JSON, and say so: a form of another site cannot. Where no route takes the request, it is told that
    the coding    bodies come as they are: none is unpacked, since few packed bytes may be many
    the size      of the body, chunked ones as they come, and the time that it may take

One line of JSON is logged for each request, without a word of its body.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from manyhands.server.failures import Refusal, failure_of
from manyhands.server.keys import Keys
from manyhands.server.limits import Limits

LOG = logging.getLogger("manyhands.server")
OPEN = frozenset({"/health"})  # routes that need no key, besides the page's own files
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ABSOLUTE = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """The middleware around all routes. `hosts` None: any name will do; `origins` are those of other
    sites that may come; `open_prefix` begins the paths of the page's files. `count` is told of every answer
    its route, by the name of its function, and its status. `takes` says whether a route takes a request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys,
        limits: Limits,
        hosts: Iterable[str] | None = None,
        origins: Iterable[str] = (),
        open_prefix: str = "/page/",
        count: Callable[[str, int], None] = lambda route, status: None,
        takes: Callable[[Scope], bool] = lambda scope: True,
    ) -> None:
        self._count, self._takes = count, takes
        self.app, self.keys, self.limits = app, keys, limits
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.origins = frozenset(origins)
        self._open_prefix = open_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or say why not."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_target_right = take_absolute(scope)
        headers = Headers(scope)
        name = headers.get(b"x-request-id").decode("latin-1")
        name = name if _NAME.fullmatch(name) else f"req_{uuid.uuid4().hex[:24]}"
        state = scope.setdefault("state", {})
        state["request_id"], state["log"] = name, {}
        body = _Body(receive, self.limits)
        answer = _Answer(send, name)
        begun = time.perf_counter()
        try:
            if not is_target_right:
                raise Refusal(400, "the request's target names no host", code="bad_http")
            state["owner"] = self._let_in(scope, headers)
            await self.app(scope, body.receive, answer.send)
        except Refusal as refusal:
            await answer.refuse(refusal, scope)
        except Exception as error:
            told = failure_of(error)
            if told.status == 500:
                LOG.exception("a request failed", extra={"request_id": name})
            else:
                LOG.error(f"a request failed: {told}", extra={"request_id": name})
            await answer.refuse(told, scope)
        finally:
            self._log(scope, answer, time.perf_counter() - begun)

    def _let_in(self, scope: Scope, headers: Headers) -> str:
        """The owner of a request. Raises a Refusal for one that may not come in."""
        check_arrival(scope, headers, self.limits.header_bytes)
        self._check_host(headers)
        method, path = scope["method"], scope["path"]
        is_reading = method in ("GET", "HEAD", "OPTIONS")
        self._check_origin(scope, headers, is_reading)
        owner = self.keys.owner_of(headers.get(b"authorization"))
        is_page = is_reading and (path == "/" or path.startswith(self._open_prefix))
        if owner is None and path not in OPEN and not is_page:
            raise Refusal(
                401,
                "no valid API key was given; expected one in the header Authorization, behind 'Bearer '",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if method in ("POST", "PUT", "PATCH") and self._takes(scope):
            self._check_body(headers)
        return owner or ""

    def _check_host(self, headers: Headers) -> None:
        if self.hosts is None:
            return
        name = headers.get(b"host").decode("latin-1").lower()
        bare = name if name.endswith("]") else re.sub(r":\d*$", "", name)
        if bare not in self.hosts and name not in self.hosts:
            raise Refusal(
                403,
                f"the request's Host is {name[:100]!r}; expected a name of this server (serve --allow-host NAME)",
                code="unknown_host",
            )

    def _check_origin(self, scope: Scope, headers: Headers, is_reading: bool) -> None:
        origin = headers.get(b"origin").decode("latin-1")
        if is_reading or not origin or origin in self.origins:
            return
        host = headers.get(b"host").decode("latin-1")
        if origin.partition("://")[2] != host or origin == "null":
            raise Refusal(
                403,
                f"the request comes from a page of another site: its Origin is {origin[:100]!r}, and its Host {host[:100]!r}; "
                "a proxy has to hand on the Host that it is asked by, port included (nginx: proxy_set_header Host $http_host), "
                "and pages of other sites have to be allowed (serve --allow-origin ORIGIN)",
                code="foreign_origin",
            )

    def _check_body(self, headers: Headers) -> None:
        kind = headers.get(b"content-type").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise Refusal(
                415,
                "the body's Content-Type is not application/json",
                code="unsupported_media_type",
            )
        coding = headers.get(b"content-encoding").strip().lower()
        if coding not in (b"", b"identity"):
            raise Refusal(
                415,
                f"the body's Content-Encoding is {coding.decode('latin-1')[:40]!r}; expected none: send it as it is",
                code="unsupported_content_encoding",
                headers={"Accept-Encoding": "identity"},
            )
        size = headers.get(b"content-length")
        if size.isdigit() and int(size) > self.limits.body_bytes:
            raise _too_large(self.limits)

    def _log(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        state = scope["state"]
        self._count(getattr(scope.get("endpoint"), "__name__", "none"), answer.status)
        if LOG.isEnabledFor(logging.INFO):
            line = {
                "request_id": state["request_id"],
                "owner": state.get("owner"),
                "method": scope["method"],
                "path": scope["path"],
                "status": answer.status,
                "seconds": round(seconds, 4),
                **state["log"],
            }
            LOG.info("request", extra={"line": line})


def check_arrival(scope: Scope, headers: Headers, header_bytes: int) -> None:
    """Raise a Refusal for a request whose connection is one too many, that leaves open where it ends, or whose target and headers
    have more than `header_bytes`, whatever it asks for.
    """
    # Other servers than ours count their connections themselves.
    is_one_too_many = scope.get("state", {}).get("is_one_too_many")
    if is_one_too_many is not None and scope["path"] not in OPEN and is_one_too_many():
        raise Refusal(
            503,
            "too many connections are open; come back later, or close those that are not used",
            code="too_many_connections",
            headers={"Connection": "close"},
        )
    # With two lengths a proxy in front may see another request behind the body than we do (RFC 9112, section 6.1).
    if headers.get(b"content-length") and headers.get(b"transfer-encoding"):
        raise Refusal(
            400,
            "the request has both Content-Length and Transfer-Encoding; expected one of them",
            code="bad_http",
            headers={"Connection": "close"},
        )
    # Of headers that came in one piece: the connection counts those alone that it has to wait for.
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
    size = target + sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size > header_bytes:
        raise Refusal(
            400,
            f"the request's headers are larger than {header_bytes} bytes",
            code="bad_http",
        )


def take_absolute(scope: Scope) -> bool:
    """Put the path and the host of an absolute target (RFC 9112, section 3.2.2) where those of others stand; whether it has any host.

    Its host counts, whatever the header Host says.
    """
    found = _ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if found is None:
        return True
    host, path = found[1], found[2] or b"/"
    others = [pair for pair in scope["headers"] if pair[0] != b"host"]
    scope["headers"] = [(b"host", host), *others]
    scope["raw_path"], scope["path"] = path, unquote(path.decode("latin-1"))
    return bool(host) and b"@" not in host


class Headers:
    """The headers of a request; of one that comes several times, all with commas between them."""

    def __init__(self, scope: Scope) -> None:
        self._found: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            before = self._found.get(name)
            self._found[name] = value if before is None else before + b", " + value

    def get(self, name: bytes) -> bytes:
        """The value, empty if there is none."""
        return self._found.get(name, b"")


class _Body:
    """The body of a request as it comes: counted, and waited for only so long."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self._size, self._is_whole = 0, False
        self._ends_at = time.monotonic() + limits.request_seconds

    async def receive(self) -> Message:
        """The next message. Raises a Refusal for a body that is too large, or that does not come."""
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self._ends_at - time.monotonic())):
                message = await self._receive()
        except TimeoutError as error:
            raise Refusal(
                408,
                f"the body did not arrive within {self._limits.request_seconds:g} s",
                code="request_timeout",
            ) from error
        self._size += len(message.get("body", b""))
        # A client that has left sends no more either.
        self._is_whole = not message.get("more_body", False)
        if self._size > self._limits.body_bytes:
            raise _too_large(self._limits)
        return message


def _too_large(limits: Limits) -> Refusal:
    return Refusal(
        413,
        f"the body is larger than {limits.body_bytes} bytes",
        code="body_too_large",
        headers={"Connection": "close"},
    )


class _Answer:
    """An answer on its way out: with our headers, and once."""

    def __init__(self, send: Send, name: str) -> None:
        self._send, self._name = send, name
        self.status = 0  # nothing was sent

    async def send(self, message: Message) -> None:
        """Send a message of the app."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [(b"x-request-id", self._name.encode()), *_HEADERS]
            given = {key.lower() for key, _ in message.get("headers", ())}
            message["headers"] = [
                *message.get("headers", ()),
                *(pair for pair in own if pair[0] not in given),
            ]
        await self._send(message)

    async def refuse(self, refusal: Refusal, scope: Scope) -> None:
        """Say why not, unless something was said already."""
        if self.status:
            return
        response = JSONResponse(refusal.body, refusal.status, refusal.headers)
        await response(scope, _nothing, self.send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


class JsonLines(logging.Formatter):
    """A log line as one JSON object: no text in it can begin a line of its own, or move a cursor."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: Mapping[str, Any] = getattr(record, "line", {})
        request = getattr(record, "request_id", None)
        said: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **({"request_id": request} if request else {}),
            **line,
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said)
