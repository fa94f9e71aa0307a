"""A server of scripted runs, in the place of a model: what the page asks of a server, and no more.

    with PageServer() as server:
        server.add("run-1", records)          its records, all at once or as `play` lets them out
        server.address                        http://127.0.0.1:PORT/

It keeps what was asked of it (`posted`), breaks streams off where a test says so, and asks for a key if it has one.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from manyhands.server import page
from manyhands.server.records import RETRY, Record, encoded, sent_event
from manyhands.strategies.methods import METHODS
from manyhands.strategies.requests import methods_told


class PageServer:
    """Runs in a thread of its own; everything it keeps is read and changed by tests while it runs."""

    def __init__(self) -> None:
        self.runs: dict[str, list[Record]] = {}
        self.known: dict[str, int] = {}  # of each run, how many records there are by now
        self.begin_anew()
        routes = [
            Route("/", self.file),
            Route("/page/{name}", self.file),
            Route("/v1/models", self.models),
            Route("/v1/methods", self.list_methods),
            Route("/metrics", self.metrics),
            Route("/v1/runs", self.list_runs, methods=["GET"]),
            Route("/v1/runs", self.begin, methods=["POST"]),
            Route("/v1/runs/{id}", self.end, methods=["DELETE"]),
            Route("/v1/runs/{id}/events", self.events),
            Route("/v1/runs/{id}/messages", self.hear, methods=["POST"]),
        ]
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen()
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}/"
        config = uvicorn.Config(Starlette(routes=routes), log_level="error", lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True
        )

    def begin_anew(self) -> None:
        """As before the first test, but for its runs, which pages may read still."""
        self.posted: list[tuple[str, str, Any]] = []  # method, path, body
        self.asked_after: list[int] = []  # the last records that readers came back with
        self.begun: list[Record] = []  # the records of the run that POST begins
        self.break_after: int | None = None  # a stream breaks off behind this record, once
        self.key: str | None = None
        self.model = "bundled"
        self.methods = methods_told(METHODS.rows)
        self.keeps_models = False  # it does not tell them until this is over

    def __enter__(self) -> Self:
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join()
        self.socket.close()

    def add(self, id: str, records: Sequence[Record], known: int | None = None) -> str:
        """A run of which `known` records are there by now, all if it is None; the page's address for it."""
        self.runs[id] = [*records]
        self.known[id] = len(records) if known is None else known
        return f"{self.address}#run={id}"

    def refusal(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": {"message": "a key is needed"}}, 401)

    async def file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        return Response(page.read(name), media_type=page.FILES[name], headers=page.HEADERS)

    async def models(self, request: Request) -> Response:
        while self.keeps_models:
            await asyncio.sleep(0.005)
        return self.refusal(request) or JSONResponse({"data": [{"id": self.model}]})

    async def list_methods(self, request: Request) -> Response:
        return self.refusal(request) or JSONResponse(self.methods)

    async def metrics(self, request: Request) -> Response:
        return Response("manyhands:kv_cache_usage_perc 0.031\n", media_type="text/plain")

    async def list_runs(self, request: Request) -> Response:
        runs = [
            {"id": id, "method": r[0]["method"], "problem": r[0]["problem"], "status": "done"}
            for id, r in self.runs.items()
        ]
        return self.refusal(request) or JSONResponse({"object": "list", "data": runs})

    async def begin(self, request: Request) -> Response:
        if refused := self.refusal(request):
            return refused
        self.posted.append(("POST", "runs", await request.json()))
        self.add("new", self.begun, 2)
        return JSONResponse({"id": "new"})

    async def hear(self, request: Request) -> Response:
        if refused := self.refusal(request):
            return refused
        self.posted.append(("POST", request.path_params["id"], await request.json()))
        return JSONResponse({}, 202)

    async def end(self, request: Request) -> Response:
        if refused := self.refusal(request):
            return refused
        self.posted.append(("DELETE", request.path_params["id"], None))
        return Response(status_code=204)

    async def events(self, request: Request) -> Response:
        if refused := self.refusal(request):
            return refused
        if request.path_params["id"] not in self.runs:
            return JSONResponse({"error": {"message": "there is no such run"}}, 404)
        after = int(request.headers.get("last-event-id", "-1"))
        self.asked_after.append(after)
        stream = self.stream(request.path_params["id"], max(0, after))  # the last one once more
        return StreamingResponse(stream, media_type="text/event-stream")

    async def stream(self, id: str, number: int) -> AsyncIterator[bytes]:
        yield RETRY.replace(b"1000", b"20")
        while number < len(self.runs[id]):
            known = self.known[id]
            parts = [sent_event(at, encoded(self.runs[id][at])) for at in range(number, known)]
            if self.break_after is not None and known > self.break_after:
                cut = parts[: self.break_after - number + 1]
                self.break_after = None
                yield (
                    b"".join(cut) + parts[len(cut)][:20] if len(cut) < len(parts) else b"".join(cut)
                )
                return
            if parts:
                yield b"".join(parts)
            number = known
            await asyncio.sleep(0.005)
