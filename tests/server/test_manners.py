"""Manners: keys, hosts, sizes, clients that leave or do not read, and an engine that fails."""

from __future__ import annotations

import asyncio
import base64
import errno
import gc
import gzip
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import BadStatusLine, HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import httpx2
import hypothesis
import pytest
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import manyhands.server as server_room
from manyhands.engine.seating import Seating
from manyhands.errors import InvalidRequest, OutOfMemory
from manyhands.schema.openai import InvalidField
from manyhands.server import connection, process, streams
from manyhands.server.app import make_app
from manyhands.server.body import MAX_NESTING, read_json
from manyhands.server.connection import _Transport
from manyhands.server.failures import failure_of
from manyhands.server.keys import ANYBODY, Keys
from manyhands.server.limits import Limits
from manyhands.server.metrics import Metrics
from manyhands.server.process import Place, check_place, listening
from manyhands.server.runs import ServedRun
from manyhands.server.streams import EventStream
from manyhands.text import Text, grammar
from tests.server.house import NAME, TEXT, House, Model, connected, make_house, raw, running
from tests.waiting import soon

KEY = "a-key-of-some-length"
ASK = [{"role": "user", "content": "Which number is 3+4?"}]
CHAT = "/v1/chat/completions"
SLOW = 0.01  # seconds of a pass


@contextmanager
def guarded_for(seconds: float) -> Iterator[House]:
    """A house with keys and small limits, which waits so long for a request."""
    limits: dict[str, Any] = {"body_bytes": 4096, "header_bytes": 8192, "request_seconds": seconds}
    with running(make_house(keys=(KEY, "another-key-beside"), **limits)) as house:
        yield house


@pytest.fixture(scope="module")
def guarded() -> Iterator[House]:
    """One that waits for longer than a client of a busy machine hesitates."""
    with guarded_for(20.0) as house:
        yield house


@pytest.fixture
def hasty() -> Iterator[House]:
    with guarded_for(1.0) as house:
        yield house


@pytest.fixture(scope="module")
def slow() -> Iterator[House]:
    limits: dict[str, Any] = {
        "streams": 12,
        "live_runs": 8,
        "waiting_runs": 6,
        "stall_seconds": 1.0,
    }
    with running(make_house(Model(seconds=SLOW), **limits)) as house:
        yield house
    assert house.num_pages_used() == 0


def body(**more: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": ASK, "max_tokens": 3, **more}


def post(house: House, given: Any, **headers: str) -> httpx2.Response:
    return httpx2.post(f"{house.url}{CHAT}", json=given, headers=headers, timeout=20)


# -- keys --------------------------------------------------------------------------------------------


def test_every_route_asks_for_the_key(guarded: House) -> None:
    app = make_app(guarded.front)
    routes = [route for route in app.routes if isinstance(route, Route)]
    assert len(routes) > 15
    tried = 0
    with httpx2.Client(base_url=guarded.url) as client:
        for route in routes:
            path = route.path.replace("{model:path}", NAME).replace("{run}", "run_x")
            if path in ("/health", "/") or path.startswith("/page/"):
                continue
            for method in sorted((route.methods or set()) - {"HEAD"}):
                for given in ({}, {"Authorization": f"Bearer {KEY}x"}, {"Authorization": KEY}):
                    answer = client.request(method, path, headers=given, json={})
                    assert answer.status_code == 401, (method, path)
                    assert answer.json()["error"]["code"] == "invalid_api_key"
                    tried += 1
        assert tried > 45
        assert client.get("/health").status_code == 200
        assert client.get("/nothing").status_code == 401  # nor is told which routes there are


def test_a_key_opens(guarded: House) -> None:
    for given in (
        f"Bearer {KEY}",
        "bearer another-key-beside",
        "Basic OmEta2V5LW9mLXNvbWUtbGVuZ3Ro",
    ):
        assert post(guarded, body(), Authorization=given).status_code == 200


def test_owners_of_keys() -> None:
    keys = Keys([KEY, "another-key-beside"])
    names = {keys.owner_of(b"Bearer " + key.encode()) for key in (KEY, "another-key-beside")}
    assert len(names) == 2
    assert None not in names
    for wrong in (
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic ====",
        b"Basic \xff",
        b"Token " + KEY.encode(),
    ):
        assert keys.owner_of(wrong) is None
    basic = base64.b64encode(b"anybody:" + KEY.encode())
    for blank in (b"", b" ", b"\t "):
        padded = Keys([(blank + KEY.encode() + blank).decode()])  # as a file of keys may hold it
        assert padded.owner_of(b"Bearer " + KEY.encode()) in names
        for scheme in (b"Bearer ", b"BEARER ", b"bearer  "):
            assert keys.owner_of(blank + scheme + KEY.encode() + blank) in names
        assert keys.owner_of(blank + b"basic " + blank + basic + blank) in names
    assert Keys().owner_of(b"") == ANYBODY
    for wrong_key in ("short", "with a blank in it", "ünïcödé-këy"):
        with pytest.raises(InvalidRequest, match="an API key has"):
            Keys([wrong_key])


def test_prefixes_are_shared_within_a_key_alone(guarded: House) -> None:
    def cached(key: str, salt: str) -> int:
        long = [{"role": "user", "content": f"{salt}: So the answer is four. " * 20}]
        answer = post(guarded, body(messages=long), Authorization=f"Bearer {key}").json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    tree = guarded.front.served.tree
    assert cached(KEY, "same") < 10  # the beginning of every prompt
    found = tree.num_tokens_found
    assert cached("another-key-beside", "same") < 10
    assert tree.num_tokens_found < found + 10
    assert cached(KEY, "same") > 100  # the control: the same key does find it
    assert tree.num_tokens_found > found + 100


# -- hosts, origins, types, sizes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost@evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:9"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Encoding": "identity"}, 200),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Content-Encoding": "identity, br"}, 415),
    ],
)
def test_foreign_pages_and_names(guarded: House, headers: dict[str, str], status: int) -> None:
    answer = post(guarded, body(), **{"Authorization": f"Bearer {KEY}", **headers})
    assert answer.status_code == status
    if status == 200:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


def test_a_packed_body_is_refused_by_what_it_is_packed_with(guarded: House) -> None:
    given = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    packed = gzip.compress(json.dumps(body()).encode())
    answer = httpx2.post(
        f"{guarded.url}{CHAT}", content=packed, headers={**given, "Content-Encoding": "gzip"}
    )
    assert answer.status_code == 415
    assert answer.headers["accept-encoding"] == "identity"
    error = answer.json()["error"]
    assert error["code"] == "unsupported_content_encoding"
    assert error["message"].startswith("the body's Content-Encoding is 'gzip'")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/files", 404), ("/v1/audio/transcriptions", 404), ("/v1/models", 405), (CHAT, 415)],
)
def test_a_form_to_a_route_that_is_not_there_is_told_so(
    guarded: House, path: str, status: int
) -> None:
    given = {"Authorization": f"Bearer {KEY}"}
    answer = httpx2.post(f"{guarded.url}{path}", files={"file": b"{}"}, headers=given)
    assert answer.status_code == status


def test_who_is_refused_by_a_name_is_told_which(guarded: House) -> None:
    """Behind a proxy that says another Host, or the port not, the own page is one of another site."""
    given = {"Authorization": f"Bearer {KEY}"}
    for headers, named in (
        ({"Host": "evil.example"}, ["'evil.example'", "--allow-host"]),
        (
            {"Host": "localhost", "Origin": "https://localhost:8443"},
            ["'localhost'", "'https://localhost:8443'", "$http_host", "--allow-origin"],
        ),
    ):
        told = post(guarded, body(), **given, **headers).json()["error"]["message"]
        assert all(each in told for each in named), told


def test_the_own_page_may_post(guarded: House) -> None:
    given = {"Authorization": f"Bearer {KEY}", "Origin": guarded.url}
    assert post(guarded, body(), **given).status_code == 200


def test_a_page_of_a_named_site_may_use_a_client_with_headers_of_its_own() -> None:
    place = Place("127.0.0.1", 0, drain=0.0, log=False, origins=("https://page.example",))
    asked = "authorization,content-type,openai-beta,x-stainless-lang,x-stainless-retry-count"
    given = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": asked,
    }
    with running(make_house(), place) as house:
        for origin, status in (("https://page.example", 200), ("https://other.example", 400)):
            answer = httpx2.options(f"{house.url}{CHAT}", headers={"Origin": origin, **given})
            assert answer.status_code == status
            named = answer.headers.get("access-control-allow-origin")
            assert named == (origin if status == 200 else None)
        allowed = post(house, body(), Origin="https://page.example")
        assert allowed.status_code == 200
        assert "x-manyhands-run" in allowed.headers["access-control-expose-headers"]


def test_what_a_browser_asks_before_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A site that was named wrongly is seen in no other place: no request comes behind a refusal."""
    place = Place("127.0.0.1", 0, drain=0.0, log=False, origins=("https://page.example",))
    with running(make_house(), place) as house, caplog.at_level("INFO", "manyhands.server"):
        for origin in ("https://page.example", "https://other.example"):
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            assert httpx2.options(f"{house.url}{CHAT}", headers=asked).headers["x-request-id"]
        assert soon(lambda: sum(each.message == "request" for each in caplog.records) == 2)
        told: list[Any] = [getattr(each, "line", None) for each in caplog.records]
        assert [(line["path"], line["origin"], line["status"]) for line in told] == [
            (CHAT, "https://page.example", 200),
            (CHAT, "https://other.example", 400),
        ]
        numbers = house.front.metrics.page().decode()
    assert 'manyhands_requests_total{route="preflight",status="400"} 1.0' in numbers


@pytest.mark.parametrize(("method", "status"), [("OPTIONS", 405), ("GET", 200)])
def test_a_request_of_a_named_site_that_asks_nothing_before_is_counted_once(
    method: str, status: int
) -> None:
    """As what it is: a browser's question is an OPTIONS that names a method."""
    place = Place("127.0.0.1", 0, drain=0.0, log=False, origins=("https://page.example",))
    asks = {"Access-Control-Request-Method": "POST"} if method == "GET" else {}
    with running(make_house(), place) as house:
        given = {"Origin": "https://page.example", **asks}
        answer = httpx2.request(method, f"{house.url}/health", headers=given)
        assert answer.status_code == status
        assert len(answer.headers.get_list("x-request-id")) == 1
        assert soon(lambda: b'route="health"' in house.front.metrics.page())
        assert b'route="preflight"' not in house.front.metrics.page()


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "page.example",
        "https://page.example/",
        "https://Page.example",
        "https://a.b, https://c.d",
        "https://a.b,c.d",
        "https://page.example:443",
        "http://page.example:80",
        "https://page.example:",
        "https://b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example",
    ],
)
def test_a_site_that_no_browser_names_so_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(InvalidRequest, match=r"allow_origin is .* expected a site"):
        check_place(Place(origins=(origin,)), has_keys=True)
    sites = "https://page.example", "app://x", "null", "http://[::1]:8080", "https://a.b:80"
    check_place(Place(origins=sites), has_keys=True)


@pytest.mark.parametrize(
    "host",
    [
        "https://page.example",
        "page.example/ai",
        "*",
        "a b",
        "a.b,c.d",
        "b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example",
    ],
)
def test_a_host_that_no_request_has_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(InvalidRequest, match=r"allow_host is .* expected a name"):
        check_place(Place(hosts=(host,)), has_keys=True)
    check_place(Place(hosts=("page.example", "Page.Example:8443", "[::1]")), has_keys=True)


def refused_with_two_lengths(house: House, begins: bytes) -> None:
    """And nothing that stands behind it is answered."""
    behind = b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(house) as client:
        client.sendall(begins + behind)
        told = b"".join(iter(lambda: client.recv(65536), b""))
    assert told.count(b"HTTP/1.1 ") == 1
    assert b"400 Bad Request" in told
    assert b"both Content-Length and Transfer-Encoding" in told


def test_a_body_with_two_lengths_is_refused_and_nothing_behind_it_answered(guarded: House) -> None:
    """The rest, which a proxy in front takes for a part of the body, would be a request of somebody else's here."""
    begins = head(guarded, "Content-Length: 5", "Transfer-Encoding: chunked")
    refused_with_two_lengths(guarded, begins)


def preflight(house: House, *lines: str) -> bytes:
    asks = "Origin: https://page.example", "Access-Control-Request-Method: POST"
    host = house.url.removeprefix("http://")
    return "\r\n".join(
        [f"OPTIONS {CHAT} HTTP/1.1", f"Host: {host}", *asks, *lines, "", ""]
    ).encode()


def test_what_a_browser_asks_before_may_come_no_other_way_than_a_request() -> None:
    """It is answered in front of the gate, which refuses a body of two lengths and one connection too many."""
    place = Place("127.0.0.1", 0, drain=0.0, log=False, origins=("https://page.example",))
    with running(make_house(connections=1), place) as house:
        twice = preflight(house, "Content-Length: 5", "Transfer-Encoding: chunked")
        refused_with_two_lengths(house, twice)
        with connected(house) as first:
            first.sendall(preflight(house))
            assert first.recv(65536).startswith(b"HTTP/1.1 200")
            with connected(house) as second:
                second.sendall(preflight(house))
                told = b"".join(iter(lambda: second.recv(65536), b""))
        assert told.startswith(b"HTTP/1.1 503"), told


def head(house: House, *lines: str) -> bytes:
    host = house.url.removeprefix("http://")
    own = [f"POST {CHAT} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {KEY}"]
    return "\r\n".join([*own, "Content-Type: application/json", *lines, "", ""]).encode()


def send_for(seconds: float, client: socket.socket, piece: bytes) -> None:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        client.sendall(piece)


def test_bodies_that_are_too_large(guarded: House, hasty: House) -> None:
    status, told = raw(hasty, head(hasty, "Content-Length: 104857600"))
    assert status == 413, told
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    begun = time.monotonic()
    with connected(hasty) as client:  # chunked, and it never ends: it is taken for a second
        client.sendall(head(hasty, "Transfer-Encoding: chunked"))
        with pytest.raises(ConnectionError):
            send_for(20, client, chunk)
    assert time.monotonic() - begun > 0.5
    with connected(guarded) as client:
        client.sendall(head(guarded, "Transfer-Encoding: chunked") + chunk + chunk)
        assert client.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("length", ["Content-Length: 40960", "Transfer-Encoding: chunked"])
def test_a_client_that_still_sends_a_large_body_reads_why_not(guarded: House, length: str) -> None:
    is_chunked = length.endswith("chunked")
    piece = b" " * 8192
    with connected(guarded) as client:
        client.sendall(head(guarded, length))
        for _ in range(5):
            time.sleep(0.05)  # the answer was sent behind the first ones
            client.sendall(b"2000\r\n" + piece + b"\r\n" if is_chunked else piece)
        client.sendall(b"0\r\n\r\n" if is_chunked else b"")
        found = b""
        while part := client.recv(65536):
            found += part
    assert found.startswith(b"HTTP/1.1 413")
    assert b"body_too_large" in found


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        ([], 413),
        (["Connection: close"], 413),
        (["Authorization: none", "Connection: close"], 401),
        ([f"X-Long: {'a' * 100_000}"], 400),
    ],
)
def test_a_client_that_sends_all_before_it_reads_is_answered(
    guarded: House, request_head: list[str], status: int
) -> None:
    """So do most clients of Python. A connection that is closed before is reset, and its answer never read."""
    size = 20 << 20  # bytes; more than systems keep for a socket
    begun = head(guarded, f"Content-Length: {size}", *request_head)
    if status == 401:
        begun = begun.replace(f"Authorization: Bearer {KEY}\r\n".encode(), b"")
    found = b""
    with connected(guarded) as client:
        client.sendall(begun)
        client.sendall(b" " * size)
        client.shutdown(socket.SHUT_WR)
        while part := client.recv(65536):
            found += part
    assert found.startswith(f"HTTP/1.1 {status}".encode())
    assert json.loads(found.split(b"\r\n\r\n", 1)[1])["error"]


def test_a_client_that_is_refused_and_gone_is_no_error() -> None:
    """This side of its connection cannot be ended any more."""
    inner = Mock(spec=asyncio.Transport)
    inner.is_closing.return_value = False
    inner.write_eof.side_effect = OSError(errno.ENOTCONN, "Transport endpoint is not connected")
    linger = Mock()
    _Transport(inner, lambda: False, linger).close()
    inner.close.assert_called_once_with()
    linger.assert_not_called()


@pytest.mark.parametrize(("key", "status"), [(KEY, 413), ("none", 401)])
def test_a_server_that_ends_waits_for_no_body(key: str, status: int) -> None:
    """Neither where its own side has ended (413), nor where the connection would live on for another request (401)."""
    limits: dict[str, Any] = {"body_bytes": 4096, "request_seconds": 60.0}
    size = 1_000_000 if status == 413 else 4000
    with running(make_house(keys=(KEY,), **limits)) as house:
        client = connected(house)
        begun = head(house, f"Content-Length: {size}").replace(KEY.encode(), key.encode())
        client.sendall(begun + b" " * 500)
        assert client.recv(100).startswith(f"HTTP/1.1 {status}".encode())
        time.sleep(0.2)
        begun_to_end = time.monotonic()
    assert time.monotonic() - begun_to_end < 20
    client.close()


def test_small_answers_do_not_wait_for_acknowledgements() -> None:
    """asyncio sends at once (TCP_NODELAY) where a socket says that it is of TCP; else an answer takes 40 ms more."""
    listener = listening(Place("127.0.0.1", 0, drain=0.0, log=False))
    with listener, socket.create_connection(listener.getsockname()):
        taken, _ = listener.accept()
        with taken:
            assert taken.proto == socket.IPPROTO_TCP


def test_a_connection_too_many_is_told_as_all_else_is() -> None:
    with running(make_house(connections=2)) as house, httpx2.Client(base_url=house.url) as early:
        assert early.get("/v1/models").status_code == 200
        with connected(house):
            refused = httpx2.get(f"{house.url}/v1/models")
            alive = httpx2.get(f"{house.url}/health")
            served = early.get("/v1/models")
        assert served.status_code == 200, "whoever was there before is not one too many"
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "too_many_connections"
        assert refused.json()["error"]["type"] == "server_error"
        assert refused.headers["connection"] == "close"
        assert {"retry-after", "x-request-id"} <= refused.headers.keys()
        assert alive.status_code == 200
        assert soon(lambda: httpx2.get(f"{house.url}/v1/models").status_code == 200)


def asks_again(client: socket.socket) -> bool:
    """Whether a connection answers one more request."""
    client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with suppress(ConnectionError, BadStatusLine):
        answer = HTTPResponse(client)
        answer.begin()
        return answer.read() != b""
    return False


def test_a_kept_connection_outlives_the_patience_of_proxies_and_ends_with_its_own() -> None:
    """A proxy that keeps it longer than the server sends into one that is just being closed, and tells 502."""
    assert Limits().idle_seconds > 60
    with running(make_house(idle_seconds=1.0)) as house, connected(house) as client:
        for _ in range(2):
            begun = time.monotonic()
            assert asks_again(client)
        assert client.recv(1) == b""
        assert 0.9 < time.monotonic() - begun < 15


@pytest.mark.parametrize("is_long", [True, False])
def test_a_connection_that_is_idle_for_long_makes_room(
    monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    monkeypatch.setattr(connection, "_IDLE_FOR_LONG", 0.2 if is_long else 60)
    house = make_house(connections=2)
    with running(house), connected(house) as idle, connected(house) as silent:
        assert asks_again(idle)
        time.sleep(0.4)
        assert httpx2.get(f"{house.url}/v1/models").status_code == (200 if is_long else 503)
        if is_long:
            assert idle.recv(1) == b""
        else:
            assert asks_again(idle)
        assert asks_again(silent), "it has asked for nothing yet, and has its time"


def test_headers_that_are_too_many(guarded: House) -> None:
    many = [f"X-{n}: {n}" for n in range(10_000)]
    with connected(guarded) as client:
        client.sendall(head(guarded, *many)[:9000])
        assert client.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/health", f"X-Long: {'a' * 9000}"),
        ("/health", "\r\n".join(["X-Many: a"] * 900)),
        (f"/health?{'a' * 9000}", "X-Short: a"),
    ],
)
def test_headers_that_are_too_long_and_come_at_once(
    guarded: House, target: str, headers: str
) -> None:
    host = guarded.url.removeprefix("http://")
    head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\nConnection: close\r\n\r\n"
    status, told = raw(guarded, head.encode())
    assert (status, b"bad_http" in told) == (400, True)


def test_a_preflight_whose_headers_are_too_long_is_refused_as_others_are() -> None:
    """Browsers ask in front of the gate, whose limit of headers in one piece is theirs as well."""
    site = "https://page.example"
    place = Place("127.0.0.1", 0, drain=0.0, log=False, origins=(site,))
    with running(make_house(header_bytes=8192), place) as house:
        host = house.url.removeprefix("http://")
        for long, status in ((4000, 200), (9000, 400)):
            lines = [
                f"OPTIONS {CHAT} HTTP/1.1",
                f"Host: {host}",
                f"Origin: {site}",
                "Access-Control-Request-Method: POST",
                f"Access-Control-Request-Headers: {'a' * long}",
                "Connection: close",
            ]
            found, told = raw(house, ("\r\n".join(lines) + "\r\n\r\n").encode())
            assert (found, b"larger than 8192 bytes" in told) == (status, status == 400)


def test_what_is_no_http(guarded: House) -> None:
    for wrong in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        status, told = raw(guarded, wrong + b"\r\n\r\n")
        assert status == 400
        assert json.loads(told.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "bad_http"


def test_a_byte_a_second_is_not_waited_for(hasty: House) -> None:
    begun = time.monotonic()
    with connected(hasty) as client:  # in the headers
        client.sendall(b"POST / HT")
        assert client.recv(100) == b""
    assert 0.5 < time.monotonic() - begun < 15, "it takes up to 20 s to say nothing"
    with connected(hasty) as client:  # in the body
        client.sendall(head(hasty, "Content-Length: 100") + b"{")
        assert client.recv(100).startswith(b"HTTP/1.1 408")


# -- many, slow, gone --------------------------------------------------------------------------------


def test_too_many_runs_are_told_to_come_back() -> None:
    refused = threading.Event()
    model = Model(fails=lambda number: refused.wait(20) and None)  # type: ignore[arg-type]  # no run ends before
    with (
        running(make_house(model, live_runs=8, waiting_runs=6)) as house,
        ThreadPoolExecutor(14) as pool,
    ):
        answers = [pool.submit(post, house, body()) for _ in range(14)]
        assert soon(lambda: len(house.front.runs.live) == 14)
        late = post(house, body())
        refused.set()
        assert late.status_code == 429
        assert int(late.headers["retry-after"]) > 0
        assert late.json()["error"]["type"] == "rate_limit_error"
        assert [answer.result().status_code for answer in answers] == [200] * 14
        assert post(house, body()).status_code == 200


def streaming(house: House, **more: Any) -> socket.socket:
    """A connection on which a long stream was asked for."""
    given = json.dumps(body(stream=True, **{"max_tokens": 1900, **more})).encode()
    host = house.url.removeprefix("http://")
    client = connected(house)
    client.sendall(
        f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(given)}\r\n\r\n".encode()
        + given
    )
    return client


def status(client: socket.socket) -> int:
    """Of what begins to come."""
    return int(client.recv(4096).split(b" ", 2)[1])


def test_clients_that_leave_take_their_runs_with_them(slow: House) -> None:
    threads = threading.active_count()
    for _ in range(3):
        clients = [streaming(slow) for _ in range(8)]
        assert [status(client) for client in clients] == [200] * 8
        assert len(slow.front.runs.live) == 8
        for client in clients:
            client.close()
        assert soon(lambda: not slow.front.runs.live)
        passes = slow.model.num_passes
        time.sleep(10 * SLOW)
        assert slow.model.num_passes <= passes + 3, "runs go on for nobody"
    assert slow.num_pages_used() == 0
    assert slow.front.news.num_readers == 0
    assert soon(lambda: threading.active_count() <= threads + 2)
    assert post(slow, body()).status_code == 200


@pytest.mark.parametrize("kind", [connection.Connection, ServedRun, Seating])
def test_what_clients_have_asked_waits_for_no_collection(kind: type) -> None:
    """Full collections are seldom in a server: circles would keep what was asked, and events, for hours."""

    def num_there() -> int:
        return sum(isinstance(each, kind) for each in gc.get_objects())

    gc.collect()
    num_before = num_there()
    gc.disable()
    try:
        with running(make_house(Model(seconds=SLOW), run_seconds=0.5, kept_runs=0)) as house:
            assert post(house, body()).status_code == 200
            assert post(house, body(max_tokens=1900)).status_code == 504
            assert post(house, body(model=f"{NAME}:hogwild-2", max_tokens=None)).status_code == 504
            with streaming(house) as client:
                assert status(client) == 200
            assert soon(lambda: not house.front.runs.live)
            assert soon(lambda: num_there() <= num_before)
    finally:
        gc.enable()


def test_a_client_that_leaves_before_its_answer_ends_its_run(slow: House) -> None:
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(f"{slow.url}{CHAT}", json=body(max_tokens=1900), timeout=0.3)
    assert soon(lambda: not slow.front.runs.live)
    assert slow.num_pages_used() == 0


def request(house: House, path: str, given: Any = None, version: str = "1.1") -> bytes:
    """One request, as its bytes: GET, or POST of what is given."""
    host = house.url.removeprefix("http://")
    content = b"" if given is None else json.dumps(given).encode()
    lines = [f"{'GET' if given is None else 'POST'} {path} HTTP/{version}", f"Host: {host}"]
    if given is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join((*lines, "", "")).encode() + content


def read_to_the_end(client: socket.socket) -> bytes:
    found = b""
    while piece := client.recv(65536):
        found += piece
    return found


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_shuts_its_own_side_reads_its_answer(
    slow: House, stream: bool, waits: bool, version: str
) -> None:
    """At once or while the answer is made; nothing stands before the answer, and the connection ends behind it."""
    asked = body(stream=stream, temperature=0, max_tokens=40)
    with connected(slow) as client:
        client.sendall(request(slow, CHAT, asked, version))
        if waits:
            time.sleep(10 * SLOW)
        client.shutdown(socket.SHUT_WR)
        found = read_to_the_end(client)
    assert found.startswith(b"HTTP/1.1 200 OK\r\n")
    assert found.count(b"HTTP/1.1") == 1
    headers, _, content = found.partition(b"\r\n\r\n")
    if stream:
        assert (b"chunked" in headers) == (version == "1.1")
        end = b"\r\n0\r\n\r\n" if version == "1.1" else b""
        assert content.endswith(b"data: [DONE]\n\n" + end)
    else:
        assert json.loads(content)["usage"]["completion_tokens"] == 40
    assert soon(lambda: not slow.front.runs.live)


def test_an_answer_has_one_beginning_however_long_it_is_waited_for(
    slow: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first nine bytes come before it, and no tenth."""
    monkeypatch.setattr(connection, "_GROWTH", 1)
    pieces = []
    with connected(slow) as client:
        client.sendall(request(slow, CHAT, body(max_tokens=200)))
        client.shutdown(socket.SHUT_WR)
        while piece := client.recv(65536):
            pieces.append(piece)
    assert b"".join(pieces[:9]) == b"HTTP/1.1 "
    assert pieces[9].startswith(b"200 OK\r\n")


def test_words_to_a_client_that_has_shut_its_side_disturb_no_common_client(slow: House) -> None:
    """As Python's own client reads them."""
    with connected(slow) as client:
        client.sendall(request(slow, CHAT, body(max_tokens=60)))
        client.shutdown(socket.SHUT_WR)
        answer = HTTPResponse(client)
        answer.begin()
        assert answer.status == 200
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 60


def test_requests_in_one_piece_are_all_answered_to_a_client_that_sends_no_more(slow: House) -> None:
    asked = request(slow, CHAT, body(max_tokens=20))
    cut = request(slow, CHAT, body(max_tokens=20))[:-1]
    for pieces, num_answers in (((asked, asked, asked), 3), ((asked, cut), 1)):
        with connected(slow) as client:
            client.sendall(b"".join(pieces))
            client.shutdown(socket.SHUT_WR)
            assert read_to_the_end(client).count(b"HTTP/1.1 200 OK") == num_answers
    assert soon(lambda: not slow.front.runs.live)


def test_half_a_request_of_a_client_that_sends_no_more_is_not_waited_for(slow: House) -> None:
    whole = request(slow, CHAT, body())
    for part in (b"", whole[:20], whole[:-1]):
        begun = time.monotonic()
        with connected(slow) as client:
            client.sendall(part)
            client.shutdown(socket.SHUT_WR)
            assert read_to_the_end(client) == b""
        assert time.monotonic() - begun < 15  # of the 30 that a request may take


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_is_gone_is_told_from_one_that_reads_on(slow: House, version: str) -> None:
    client = connected(slow)
    client.sendall(request(slow, CHAT, body(max_tokens=1900), version))
    assert soon(lambda: len(slow.front.runs.live) == 1)
    client.shutdown(socket.SHUT_WR)
    time.sleep(0.5)  # it may leave later, too
    assert len(slow.front.runs.live) == 1
    client.close()
    begun = time.monotonic()
    assert soon(lambda: not slow.front.runs.live)
    assert time.monotonic() - begun < 10  # of the 19 that the run takes


@pytest.mark.parametrize("is_shut", [False, True])
def test_a_client_that_leaves_a_stream_which_is_silent_is_told_from_one_that_reads_on(
    is_shut: bool,
) -> None:
    """Its run waits for another's end."""
    with running(make_house(Model(seconds=SLOW), live_runs=1, waiting_runs=6)) as house:
        first, second = connected(house), connected(house)
        asked = body(stream=True, max_tokens=1900)
        with first, second:
            first.sendall(request(house, CHAT, asked))
            assert first.recv(1)
            second.sendall(request(house, CHAT, asked))
            found = second.recv(65536)
            if is_shut:
                second.shutdown(socket.SHUT_WR)
                while found.count(b": \n\n") < 2:
                    found += second.recv(65536)
            assert len(house.front.runs.live) == 2
            second.close()
            begun = time.monotonic()
            assert soon(lambda: len(house.front.runs.live) == 1)
            assert time.monotonic() - begun < 10  # of the 15 to the next event
        assert soon(lambda: not house.front.runs.live)


TARGETS = {
    "http://{}/v1/models": 200,
    "HTTP://{}/v1/models": 200,
    "https://{}/v1/models?a=b": 200,
    "http://{}/v1/models/dice": 200,
    "http://{}/v1/models/%64ice": 200,
    "http://{}": 200,
    "http://{}?a": 200,
    "http://{}/v1/nothing": 404,
    "http://evil.example/v1/models": 403,
    "http:///v1/models": 400,
    "http://": 400,
    "http://somebody@{}/v1/models": 400,
    "ftp://{}/v1/models": 404,
    "*": 404,
}


@pytest.mark.parametrize("target", TARGETS)
def test_targets_as_proxies_are_asked_for_them(slow: House, target: str) -> None:
    """RFC 9112, section 3.2.2: they are accepted, and the header Host does not count then."""
    host = slow.url.removeprefix("http://")
    for said in (host, "somewhere.example"):
        lines = f"GET {target.format(host)} HTTP/1.1\r\nHost: {said}\r\nConnection: close\r\n\r\n"
        is_absolute = target.lower().startswith("http")
        expected = TARGETS[target] if said == host or is_absolute else 403
        assert raw(slow, lines.encode())[0] == expected


def test_a_page_is_of_the_site_of_the_target(slow: House) -> None:
    """A foreign page does not become ours by a header Host of its own."""
    host = slow.url.removeprefix("http://")
    content = json.dumps(body()).encode()
    for origin, status in ((f"http://{host}", 200), ("http://evil.example", 403)):
        lines = [f"POST http://{host}{CHAT} HTTP/1.1", "Host: evil.example", f"Origin: {origin}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        lines += ["Connection: close", "", ""]
        assert raw(slow, "\r\n".join(lines).encode() + content)[0] == status


def test_what_is_no_http_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A client that speaks TLS here, or a proxy that is set up wrongly, is seen in no other place."""
    with running(make_house()) as house, caplog.at_level("INFO", "manyhands.server"):
        raw(house, b"secret\x16\x03\x01\r\n\r\n")
        assert soon(lambda: any(each.message == "no request" for each in caplog.records))
        told = [getattr(each, "line", None) for each in caplog.records]
        assert {"client": "127.0.0.1", "status": 400} in told
        assert "secret" not in str(told)
        numbers = house.front.metrics.page().decode()
    assert 'manyhands_requests_total{route="no_http",status="400"} 1.0' in numbers


def test_every_route_answers_head_and_options_at_once() -> None:
    """The events of a run that does not end among them: what has no body waits for none."""
    ends = threading.Event()

    def waits(number: int) -> None:
        """No run ends before."""
        if number > 50:
            ends.wait(120)

    model = Model(fails=waits)
    asked = {"problem": "3+4?", "workers": 2, "budget": 2000}
    with running(make_house(model)) as house:
        run = httpx2.post(f"{house.url}/v1/runs", json=asked).json()["id"]
        routes = [route for route in make_app(house.front).routes if isinstance(route, Route)]
        gets = {route.path for route in routes if "GET" in (route.methods or ())}
        try:
            for path in dict.fromkeys(route.path for route in routes):
                here = path.replace("{run}", run).replace("{model:path}", NAME)
                here = house.url + here.replace("{name:path}", "index.html")
                for method in ("HEAD", "OPTIONS"):
                    # Less than the fifteen seconds to the next event, which only says that there is none.
                    answer = httpx2.request(method, here, timeout=10)
                    assert answer.content == b"" or method == "OPTIONS"
                    if method == "OPTIONS" or path not in gets:
                        assert answer.status_code == 405, (method, path)
            told = httpx2.get(f"{house.url}/v1/runs/{run}").json()
            assert told["status"] == "running", "control: its events were not over"
        finally:
            ends.set()
            httpx2.delete(f"{house.url}/v1/runs/{run}")
            assert soon(lambda: not house.front.runs.live)


def test_a_stream_is_in_chunks_for_those_who_know_chunks(slow: House) -> None:
    """Of HTTP/1.1 alone, and what it says is the same, in however many pieces; HEAD is told nothing of it."""
    content = json.dumps(body(stream=True, temperature=0)).encode()
    told = {}
    for version in ("1.0", "1.1"):
        lines = f"POST {CHAT} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n"
        lines += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        headers, _, rest = raw(slow, lines.encode() + content)[1].partition(b"\r\n\r\n")
        assert (b"transfer-encoding: chunked" in headers.lower()) == (version == "1.1")
        if version == "1.1":
            chunks = []
            while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
                rest = rest.partition(b"\r\n")[2]
                chunks.append(rest[:size])
                assert rest[size : size + 2] == b"\r\n"
                rest = rest[size + 2 :]
            assert rest == b"0\r\n\r\n"
            assert len(chunks) > 2
            rest = b"".join(chunks)
        # Words that mean nothing come where the answer is long in coming.
        *pieces, done, end = (each for each in rest.split(b"\n\n") if each != b": ")
        assert (done, end) == (b"data: [DONE]", b"")
        choices = [json.loads(piece.removeprefix(b"data: "))["choices"] for piece in pieces]
        deltas = [choice["delta"] for (choice,) in choices]
        ends = [choice["finish_reason"] for (choice,) in choices if choice["finish_reason"]]
        told[version] = "".join(delta.get("content") or "" for delta in deltas), ends
    assert told["1.0"] == told["1.1"]
    assert all(told["1.0"])
    asked = {"problem": "3+4?", "workers": 2, "budget": 3, "end": {"reply": False}}
    run = httpx2.post(f"{slow.url}/v1/runs", json=asked).json()["id"]
    lines = f"HEAD /v1/runs/{run}/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(slow, lines.encode())[1].endswith(b"\r\n\r\n")


def test_too_many_streams_are_refused() -> None:
    with running(make_house(Model(seconds=SLOW), streams=3)) as house:
        clients = [streaming(house) for _ in range(3)]
        assert [status(client) for client in clients] == [200] * 3
        assert asked_status(house) == 429
        clients.pop().close()
        assert soon(lambda: asked_status(house) == 200)
        for client in clients:
            client.close()


def asked_status(house: House) -> int:
    with streaming(house) as client:
        return status(client)


def test_a_reader_that_never_reads_is_cut_off_and_disturbs_nobody() -> None:
    limits: dict[str, Any] = {"stall_seconds": 0.5, "run_seconds": 60.0}
    with running(make_house(Model(seconds=0.001), **limits)) as house:
        with streaming(house, n=30) as lazy:
            assert soon(lambda: bool(house.front.runs.live))
            assert post(house, body()).status_code == 200
            assert soon(lambda: not house.front.runs.live, 60), "it was never cut off"
            got = b""
            while piece := lazy.recv(1 << 20):  # the bytes on their way to it
                got += piece
            assert got.startswith(b"HTTP/1.1 200")
            assert b"[DONE]" not in got
        assert house.num_pages_used() == 0
        assert 10 < house.model.num_passes < 1800, "the run ended with its reader"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A request that any server of ours answers with more than systems keep for a socket."""

    async def answer(request: Request) -> Response:
        return Response(b"a" * (20 << 20))

    app = Starlette(routes=[Route("/large", answer)])
    monkeypatch.setattr(process, "make_app", lambda front, **more: app)
    return b"GET /large HTTP/1.1\r\nHost: localhost\r\n"


# Seconds in which a reader has to take something; on a machine that is so busy that one comes too late by itself, the next.
STALLS = (1.5, 15.0)
# How a connection was to end.
WAYS = ("half-closed", "closed", "kept", "several", "late half-closed")


class Read(NamedTuple):
    """Bytes that two readers have of an answer, a slow one and one that took too little; the slow one's longest rest in seconds."""

    slow: int
    lazy: int
    rest: float


def test_a_reader_that_takes_nothing_of_a_whole_answer_is_cut_off(
    large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However its connection was to end; one that reads slowly, and longer than that, has all of it."""
    lost: set[int] = set()  # by the ports of their clients
    known = connection.Connection.connection_lost

    def connection_lost(self: connection.Connection, exc: Exception | None) -> None:
        if self.client is not None:
            lost.add(self.client[1])
        known(self, exc)

    monkeypatch.setattr(connection.Connection, "connection_lost", connection_lost)
    for stall in STALLS:
        house = make_house(stall_seconds=stall, idle_seconds=stall)
        with running(house), ThreadPoolExecutor(len(WAYS)) as pool:
            reads = {
                way: pool.submit(read_until_cut_off, house, large, way, stall, lost) for way in WAYS
            }
        found = {way: read.result() for way, read in reads.items()}
        if max(each.rest for each in found.values()) < stall / 2:
            break
    for way, each in found.items():
        assert each.slow >= 20 << 20, way
        assert 0 < each.lazy < 20 << 20, way


def read_until_cut_off(
    house: House, large: bytes, way: str, stall: float, lost: Container[int]
) -> Read:
    """Bytes that a reader has of an answer which it takes too late, beside one that takes all of it slowly."""
    close = b"Connection: close\r\n" if way == "closed" else b""
    asked = (large + close + b"\r\n") * (3 if way == "several" else 1)
    with connected(house) as lazy, connected(house) as reader:
        for client in (lazy, reader):
            client.sendall(asked)
            if way == "late half-closed":
                assert client.recv(1), way
            if "half-closed" in way:
                client.shutdown(socket.SHUT_WR)
        slow, rest, took = 0, 0.0, time.monotonic()
        num_rests = 6 if way == "half-closed" else 0
        with suppress(ConnectionError):
            while slow < 20 << 20 and (piece := reader.recv(3 << 20)):
                rest, took = max(rest, time.monotonic() - took), time.monotonic()
                slow += len(piece)
                if num_rests:
                    num_rests -= 1
                    time.sleep(stall / 5)
        reader.close()
        port = lazy.getsockname()[1]
        assert soon(lambda: port in lost, 20 * stall), f"{way}: it was never cut off"
        got = 0
        with suppress(ConnectionError):
            while piece := lazy.recv(1 << 20):
                got += len(piece)
    return Read(slow, got, rest)


def test_a_server_that_ends_waits_for_no_reader_of_a_whole_answer(large: bytes) -> None:
    house = make_house()
    with running(house):
        lazy = connected(house)
        lazy.sendall(large + b"\r\n")
        assert lazy.recv(1) == b"H"
        begun = time.monotonic()
    assert time.monotonic() - begun < 10  # of the 60 that it has otherwise
    lazy.close()


def forget_forms() -> None:
    """The next form is read, and by a child that has to be started."""
    grammar._sandbox.cache_clear()
    grammar._ACCEPTED.clear()


@pytest.mark.parametrize("where", ["child", "library"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM])
def test_what_the_system_gives_no_more_of_is_no_mistake_of_anybody(
    slow: House, monkeypatch: pytest.MonkeyPatch, number: int, where: str
) -> None:
    """A request for a form starts a child, if none is there, and may import a library: 503 says to come back."""

    def none(*args: Any, **more: Any) -> None:
        raise OSError(number, "none is left")

    place = (subprocess, "Popen") if where == "child" else (grammar, "_library")
    monkeypatch.setattr(*place, none)
    forget_forms()
    asked = {**body(), "response_format": {"type": "json_object"}}
    refused = post(slow, asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "system_limit")
    assert "none is left" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) > 0
    number = errno.EACCES  # it would fail later, too
    assert post(slow, asked).status_code in (400, 500)
    monkeypatch.undo()
    assert post(slow, body()).status_code == 200


def no_thread(*args: Any, **more: Any) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    "error",
    [RuntimeError("can't start new thread"), MemoryError(), OSError(errno.EAGAIN, "none is left")],
)
def test_limits_of_the_system_are_told_as_such(error: Exception) -> None:
    behind = InvalidRequest("the sandbox did not start")
    behind.__cause__ = error
    for each in (error, behind):
        assert (failure_of(each).status, failure_of(each).error["code"]) == (503, "system_limit")
    for other in (RuntimeError("no such thread"), InvalidRequest("no"), OSError(errno.EIO, "no")):
        assert failure_of(other).error["code"] != "system_limit", "control"


def test_a_server_needs_no_thread_that_it_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for a form needs a child with one more: 503. All others are answered, and the server ends as ever."""
    forget_forms()
    begun: list[Any] = []
    popen = subprocess.Popen

    def kept(*args: Any, **more: Any) -> Any:
        begun.append(popen(*args, **more))
        return begun[-1]

    with monkeypatch.context() as changed, running(make_house()) as house:
        changed.setattr(threading.Thread, "start", no_thread)
        changed.setattr(subprocess, "Popen", kept)
        for given in (body(), body(model=f"{NAME}:hogwild-2"), body(stream=True)):
            assert post(house, given).status_code == 200
        refused = post(house, {**body(), "response_format": {"type": "json_object"}})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "system_limit")
        assert [each.poll() is None for each in begun] == [False], "a child is left behind"
    grammar._sandbox.cache_clear()


def test_a_run_that_takes_too_long_is_ended() -> None:
    with running(make_house(Model(seconds=SLOW), run_seconds=0.3)) as house:
        answer = post(house, body(max_tokens=1900))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert answer.headers["x-should-retry"] == "false"


# -- faults ------------------------------------------------------------------------------------------


def test_an_engine_that_fails_answers_everybody_and_tells_no_secrets() -> None:
    def fails(number: int) -> None:
        if number > 10 and len(house.front.runs.live) == 6:  # every client has come
            raise RuntimeError("/secret/path: CUDA error at 0x7fff1234")

    with running(make_house(Model(seconds=SLOW, fails=fails))) as house:
        with ThreadPoolExecutor(6) as pool:
            asked = [body(max_tokens=500, stream=n % 2 == 0) for n in range(6)]
            answers = list(pool.map(lambda given: post(house, given), asked))
        assert soon(lambda: house.front.is_draining)
    for given, answer in zip(asked, answers, strict=True):
        assert "engine_failed" in answer.text
        assert "secret" not in answer.text
        assert "0x7f" not in answer.text
        # A stream that has sent nothing yet is answered like any other.
        assert answer.status_code in ((200, 500) if given["stream"] else (500,))
    assert any(answer.status_code == 200 for answer in answers), "some streams had begun"


def test_a_strategy_that_raises_ends_its_own_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from manyhands.strategies.writer import Writer

    read = Writer.read

    def broken(self: Writer, token: int, ends: Any) -> str:
        if self.name == "Alice" and self.num_tokens > 5:
            raise ZeroDivisionError("/secret/path")
        return read(self, token, ends)

    with running(make_house(Model(seconds=0.002))) as house, ThreadPoolExecutor(4) as pool:
        monkeypatch.setattr(Writer, "read", broken)
        ill = pool.submit(post, house, body(model=f"{NAME}:hogwild-2", max_tokens=100))
        well = [pool.submit(post, house, body(max_tokens=60, seed=n)) for n in range(2)]
        answer = ill.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "secret" not in answer.text
        assert [each.result().status_code for each in well] == [200, 200]
        assert house.num_pages_used() == 0
    (logged,) = [record for record in caplog.records if record.message == "a run failed"]
    assert logged.request_id == answer.headers["x-request-id"]  # type: ignore[attr-defined]
    assert logged.exc_info is not None


def test_runs_end_with_what_they_have_when_the_server_ends() -> None:
    asked = [
        body(max_tokens=1900),
        body(max_tokens=1900, stream=True, n=2),
        body(max_tokens=1900, model=f"{NAME}:hogwild-2"),
        body(max_tokens=1900, model=f"{NAME}:hogwild-2", stream=True),
        body(max_tokens=20),
    ]
    with ThreadPoolExecutor(6) as pool:
        place = Place("127.0.0.1", 0, drain=1.0, log=False)
        with running(make_house(Model(seconds=SLOW)), place) as house:
            answers = [pool.submit(post, house, given) for given in asked]
            assert soon(lambda: len(house.front.runs.live) == 5)
            assert soon(lambda: house.model.num_passes > 5)
            house.front.is_draining = True
            late = post(house, body())
            assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
            assert httpx2.get(f"{house.url}/ready").status_code == 503
            assert httpx2.get(f"{house.url}/health").status_code == 200
            # A busy machine may make no twenty passes in the second that is left from here on.
            assert soon(lambda: len(house.front.runs.live) == 4), "the short one ends by itself"
        plain, plain_stream, team, team_stream, short = [answer.result() for answer in answers]
    for answer in (plain, team):
        (choice,) = answer.json()["choices"]
        assert (answer.status_code, choice["finish_reason"]) == (200, "length")
        assert choice["message"]["content"]
    for answer, ends in ((plain_stream, 2), (team_stream, 1)):
        assert answer.text.count('"finish_reason":"length"') == ends
        assert answer.text.endswith("data: [DONE]\n\n")
    assert short.json()["usage"]["completion_tokens"] == 20


def test_a_run_that_memory_fails_ends_and_the_others_go_on() -> None:
    def fails(number: int) -> None:
        if number == 5:
            raise OutOfMemory("this step needs 9 more pages", hint="Give it more memory.")

    with running(make_house(Model(seconds=0.002, fails=fails))) as house:
        answer = post(house, body(max_tokens=50))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "out_of_memory")
        assert post(house, body(max_tokens=50)).status_code == 200
        assert house.num_pages_used() == 0


def test_health_is_told_while_a_prompt_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def slowly(self: Text, said: Any) -> tuple[int, ...]:
        goes_on.wait(60)
        return TEXT.encode("a")

    monkeypatch.setattr(Text, "conversation", slowly)
    with running(make_house()) as house, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(post, house, body()) for _ in range(4)]
        with httpx2.Client(base_url=house.url) as client:
            for _ in range(20):
                assert client.get("/health", timeout=20).status_code == 200
            assert not any(answer.done() for answer in answers), "prompts are still made"
            goes_on.set()
        assert [answer.result().status_code for answer in answers] == [200] * 4


def test_health_is_told_while_megabytes_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that are begun and ended meanwhile: the lock of Python's threads is not held."""
    encode, encoded = TEXT._encode, list[tuple[float, float]]()

    def timed(text: str) -> Any:
        before = time.monotonic()
        try:
            return encode(text)
        finally:
            encoded.append((before, time.monotonic()))

    monkeypatch.setattr(TEXT, "_encode", timed)
    told = list[tuple[float, float]]()
    with running(make_house()) as house, ThreadPoolExecutor(1) as pool:
        given = {"prompt": "1 " * 1_500_000}
        asked = pool.submit(httpx2.post, f"{house.url}/v1/tokenize", json=given, timeout=120)
        with httpx2.Client(base_url=house.url, timeout=120) as client:
            while not asked.done():
                before = time.monotonic()
                assert client.get("/health").status_code == 200
                told.append((before, time.monotonic()))
                time.sleep(0.01)
        assert asked.result().status_code == 200
    began, ended = max(encoded, key=lambda each: each[1] - each[0])
    meanwhile = [each for each in told if began < each[0] and each[1] < ended]
    assert len(meanwhile) > 3, "the lock was held while it was encoded"


@pytest.mark.parametrize(
    ("path", "given"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "1 " * 500_000}]}),
        (CHAT, {"messages": [{"role": "system", "content": "1 " * 500_000}, *ASK]}),
        (CHAT, {"messages": ASK, "model": f"{NAME}:hogwild-2", "max_tokens": 3}),
        ("/v1/completions", {"prompt": ["a", "1 " * 500_000]}),
        ("/v1/responses", {"input": "1 " * 500_000}),
        ("/v1/runs", {"problem": "1 " * 400_000}),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_encoded(
    path: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "hogwild" in given.get("model", ""):
        given = {**given, "messages": [{"role": "user", "content": "1 " * 400_000}]}
    raw, sizes = Text._raw, []

    def counted(self: Text, text: str) -> tuple[int, ...]:
        sizes.append(len(text))
        return raw(self, text)

    with running(make_house()) as house:
        monkeypatch.setattr(Text, "_raw", counted)
        answer = httpx2.post(f"{house.url}{path}", json=given, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] in given
    assert error["param"] not in ("model", "max_tokens")
    assert max(sizes, default=0) < 10_000


def test_prompts_are_encoded_beside_the_event_loop_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Strategies of methods encode them as they are made, one for each of `n` choices."""
    monkeypatch.setattr(TEXT, "_last_long", ("", ()))
    encode, threads = TEXT._encode, []

    def told(text: str) -> Any:
        if len(text) > 4000:
            threads.append(threading.current_thread().name)
        return encode(text)

    monkeypatch.setattr(TEXT, "_encode", told)
    said = [{"role": "user", "content": "the answer is four. " * 250}]
    with running(make_house()) as house:
        for more in ({"n": 3, "model": f"{NAME}:hogwild-2"}, {}):
            assert post(house, body(messages=said, **more)).status_code == 200
        run = {"problem": said[0]["content"], "workers": 2, "budget": 3}
        assert httpx2.post(f"{house.url}/v1/runs", json=run, timeout=20).status_code in (200, 201)
    assert all(name.startswith("manyhands-understand") for name in threads), threads
    assert len(threads) < 7


_PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("ab\u2028é")
_WAYS = st.lists(st.integers(0, 2) | st.text("abc", min_size=1, max_size=2), max_size=MAX_NESTING)


def around(inner: Any, way: list[int | str], beside: Any) -> Any:
    """A value in which `inner` stands at the end of this way."""
    for step in reversed(way):
        inner = {step: inner} if isinstance(step, str) else [*[beside] * step, inner, beside]
    return inner


@hypothesis.given(_WAYS, _PLAIN)
def test_a_value_of_a_body_comes_as_it_was_sent(way: list[int | str], plain: Any) -> None:
    value = around(plain, way, plain)
    assert read_json(json.dumps(value).encode()) == value


@hypothesis.given(_WAYS, st.sampled_from(["\0", "\ud800", 2**63, -(2**63) - 1, {"\0": 1}]))
def test_a_value_that_is_refused_is_named_by_its_place(way: list[int | str], wrong: Any) -> None:
    way = way[: MAX_NESTING - 1]
    place = "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in way)
    place = place.removeprefix(".") if place[:1] == "." else f"body{place}"
    with pytest.raises(InvalidField) as caught:
        read_json(json.dumps(around(wrong, way, 1)).encode())
    assert caught.value.param == place[:200]
    assert str(caught.value).startswith(f"{place} ")


def test_a_request_may_come_in_pieces_of_any_size(guarded: House) -> None:
    given = json.dumps(body()).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(given)}\r\nConnection: close\r\n\r\n"
    whole = head.encode() + given
    for size in (7, len(head) - 1, len(head), len(whole) - 1):
        with connected(guarded) as client:
            for at in range(0, len(whole), size):
                client.sendall(whole[at : at + size])
                time.sleep(0.002)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 "), (size, answer)


class Leaping(asyncio.SelectorEventLoop):
    """A loop whose clock stands still while anything is done, and leaps to what is waited for: no machine is too busy for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        selector: Any = vars(self)["_selector"]
        select = selector.select

        def leap(timeout: float | None = None) -> Any:
            assert timeout is not None, "nothing is waited for"
            self.now += timeout
            return select(0)

        selector.select = leap

    def time(self) -> float:
        return self.now


def sent_to(
    take: Callable[[], Awaitable[None]],
    *,
    with_abort: bool,
    num_taken: Callable[[], int] = lambda: 0,
) -> tuple[list[str], bytes, float]:
    """The events of a stream of three pieces, each of which its client takes like this, its bytes, and its seconds."""
    happened: list[str] = []
    body = b""

    async def pieces() -> AsyncIterator[bytes]:
        try:
            for number in range(3):
                yield b"data: %d\n\n" % number
        finally:
            happened.append("source closed")

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal body
        if message["type"] == "http.response.body" and message["body"]:
            await take()
            body += message["body"]

    stream = EventStream(
        pieces(), stall_seconds=0.2, on_end=lambda: happened.append("ended"), headers={}
    )
    state: dict[str, Any] = {"num_taken": num_taken}
    if with_abort:
        state["abort"] = lambda: happened.append("cut off")
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=Leaping) as runner:
        loop = runner.get_loop()
        patch.setattr(streams, "time", SimpleNamespace(monotonic=loop.time))
        runner.run(stream({"type": "http", "method": "GET", "state": state}, receive, send))
        return happened, body, loop.time()


@pytest.mark.parametrize("with_abort", [False, True])
def test_a_client_that_takes_its_time_is_waited_for_and_one_that_takes_nothing_is_not(
    with_abort: bool,
) -> None:
    happened, told, seconds = sent_to(lambda: asyncio.sleep(0.12), with_abort=with_abort)
    assert happened == ["source closed", "ended"]
    assert told == b"".join(b"data: %d\n\n" % number for number in range(3))
    assert seconds == pytest.approx(3 * 0.12)
    happened, told, seconds = sent_to(lambda: asyncio.sleep(60), with_abort=with_abort)
    assert happened == [*["cut off"] * with_abort, "source closed", "ended"]
    assert told == b""
    assert 0.2 < seconds < 0.3


def test_a_client_that_takes_a_piece_in_parts_is_waited_for() -> None:
    """A system takes megabytes of a slow reader's stream at once, and nothing for long."""
    happened, told, seconds = sent_to(
        lambda: asyncio.sleep(0.6), with_abort=True, num_taken=lambda: time.monotonic_ns()
    )
    assert happened == ["source closed", "ended"]
    assert told.count(b"data") == 3
    assert seconds == pytest.approx(3 * 0.6)


@pytest.mark.parametrize("piece", [["[", "]"], ['{"a":', "}"]])
def test_lists_and_objects_in_each_other_have_a_bound(piece: list[str]) -> None:
    begin, end = piece
    for depth in (1, MAX_NESTING - 1, MAX_NESTING):
        read_json((begin * depth + ("1" if begin != "[" else "") + end * depth).encode())
    for depth in (MAX_NESTING + 1, MAX_NESTING + 2, 100_000):
        with pytest.raises(InvalidField, match="is nested more than"):
            read_json((begin * depth + "1" + end * depth).encode())


def test_lists_in_a_body_are_read_without_looking_for_cycles() -> None:
    body = json.dumps([[[[]]]] * 200_000).encode()
    found: list[int] = []

    def told(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            found.append(about["generation"])

    gc.callbacks.append(told)
    try:
        read_json(body)
    finally:
        gc.callbacks.remove(told)
    assert len(found) < 10
    assert gc.isenabled()


def test_the_files_of_the_page_need_no_key_and_no_other_file_is_told() -> None:
    with running(make_house(keys=(KEY,))) as house:
        for path, kind in (("/", "text/html"), ("/page/main.js", "text/javascript")):
            answer = httpx2.get(house.url + path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        for path in (
            "__init__.py",
            "../app.py",
            "%2e%2e/app.py",
            "..%2fapp.py",
            "none.js",
            "",
        ):
            status, told = raw(
                house,
                f"GET /page/{path} HTTP/1.1\r\nHost: localhost\r\n"
                "Connection: close\r\n\r\n".encode(),
            )
            assert status in (200, 401, 404)
            assert b"import" not in told
        assert httpx2.post(f"{house.url}/page/main.js", json={}).status_code == 401


# -- where it listens ----------------------------------------------------------------------------------


def test_another_address_needs_a_key() -> None:
    with pytest.raises(InvalidRequest, match="there is no API key"):
        check_place(Place("0.0.0.0"), has_keys=False)
    check_place(Place("0.0.0.0"), has_keys=True)
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        check_place(Place(host), has_keys=False)
    assert Place("0.0.0.0").names is None
    assert Place("0.0.0.0", hosts=("a.example",)).names == frozenset({"a.example"})
    assert "localhost" in (Place(hosts=("a.example",)).names or ())


def test_a_port_that_is_taken() -> None:
    with listening(Place(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"port {port} at 127.0.0.1 cannot be taken"):
            listening(Place(port=port))


@pytest.mark.parametrize("host", ["300.1.1.1", "no such name", "a" * 80, "127.0.0.1:80"])
def test_a_host_that_is_none_is_not_the_ports_fault(host: str) -> None:
    with pytest.raises(InvalidRequest, match="at which nothing can listen") as found:
        listening(Place(host, 0))
    assert "--port" not in found.value.hint


def test_an_address_of_another_machine() -> None:
    with pytest.raises(InvalidRequest, match="this machine has no such address"):
        listening(Place("192.0.2.1", 0))  # kept for documentation


def test_a_name_with_addresses_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    v4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    for found, family in (([v6, v4], socket.AF_INET), ([v6], socket.AF_INET6)):
        monkeypatch.setattr(socket, "getaddrinfo", Mock(return_value=found))
        with listening(Place("localhost", 0)) as taken:
            assert taken.family == family


# -- what the page says ------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_page_lists_every_status() -> None:
    server = Path(server_room.__file__).parent
    source = "".join(file.read_text(encoding="utf-8") for file in sorted(server.glob("*.py")))
    used = {int(code) for code in re.findall(r"Refusal\(\s*(\d{3}),", source)}
    rows = re.findall(r"^\| ([45][\d, ]+) \|", PAGE, re.MULTILINE)
    listed = {int(code) for row in rows for code in row.split(", ")}
    assert len(used) > 8
    assert {405, *used} <= listed
    with running(make_house()) as house:
        answer = httpx2.get(f"{house.url}{CHAT}")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_the_page_names_metrics_as_they_are_exported() -> None:
    metrics = Metrics(make_house().front.service, make_house().front.runs)
    page = metrics.page().decode()
    exported = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    told = set(re.findall(r"`(manyhands_[a-z_]+)`", PAGE))
    of_a_disk = {name for name in told if name.startswith("manyhands_disk_cache_")}
    assert of_a_disk == {"manyhands_disk_cache_hits_total"}
    assert told - of_a_disk <= exported
