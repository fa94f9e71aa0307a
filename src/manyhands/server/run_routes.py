"""`/v1/runs`: begin a run, watch it, speak to it, end it, take its trace home."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from manyhands.errors import BrokenTrace
from manyhands.schema.openai import InvalidField, shown
from manyhands.server.asked import understand_run
from manyhands.server.front import Front, front_of, owner_of
from manyhands.server.records import RETRY, encoded, sent_event
from manyhands.server.runs import ServedRun, check_traced
from manyhands.server.streams import PING
from manyhands.strategies.listening import ITEMS, Item, does_not_listen

_MOST_AFTER = 2**53


async def begin(request: Request) -> Response:
    """`POST /v1/runs`: it goes on by itself; nobody needs to watch."""
    front = front_of(request)
    asked = await front.understand(request, lambda body: understand_run(body, front.served))
    run = front.begin(asked, request)
    front.keep(run)
    # Relative to the request's own place, which may lie below a prefix of a proxy's.
    return JSONResponse(run.told(), 201, {"Location": f"runs/{run.id}"})


async def listed(request: Request) -> Response:
    """`GET /v1/runs`."""
    runs = front_of(request).runs.of(owner_of(request))
    return JSONResponse({"object": "list", "data": [run.told() for run in runs]})


async def one(request: Request) -> Response:
    """`GET /v1/runs/{run}`: what is known of it; once it is done, its last record too."""
    run = _run(request)
    end = run.end() if run.handle.done else None
    return JSONResponse({**run.told(), "problem": run.spec.problem, "end": end})


async def events(request: Request) -> Response:
    """`GET /v1/runs/{run}/events`: its records as server-sent events, from where the reader was."""
    run, front = _run(request), front_of(request)
    number = _after(request) + 1
    return await front.stream([run], request, _records(front, run, number), ends_runs=False)


async def message(request: Request) -> Response:
    """`POST /v1/runs/{run}/messages`: an item of `strategies/listening.py`, heard before the next pass.

    Of a run that still waits for its turn, before the first one.
    """
    run, front = _run(request), front_of(request)
    item = await front.read(request, item_of)
    if not run.spec.method.listens and not run.handle.done:
        raise does_not_listen()
    run.handle.say(item)
    return JSONResponse({"object": "run.message", "run": run.id, **ITEMS.to_line(item)}, 202)


async def end(request: Request) -> Response:
    """`DELETE /v1/runs/{run}`: it ends before its next pass."""
    run = _run(request)
    run.handle.cancel()
    return JSONResponse({"id": run.id, "object": "run", "status": run.status}, 202)


async def trace(request: Request) -> Response:
    """`GET /v1/runs/{run}/trace`: what `manyhands replay` reads, line by line."""
    run, front = _run(request), front_of(request)
    check_traced(run, front.served.limits.run_events)
    lines = list(run.trace)
    body = await front.in_thread(lambda: "".join(json.dumps(line) + "\n" for line in lines))
    return Response(body, media_type="application/jsonl")


def item_of(body: Any) -> Item:
    """The item to say to a run, from a body: `{"item": "Said", "text": "...", "author": "Dana"}`."""
    if not isinstance(body, dict):
        raise InvalidField(f"body is {shown(body)}; expected an object", param="body")
    name = body.get("item")
    if not isinstance(name, str) or name not in ITEMS.kinds:
        known = ", ".join(ITEMS.kinds)
        raise InvalidField(f"item is {shown(name)}; expected one of {known}", param="item")
    try:
        return ITEMS.from_line(body)
    except BrokenTrace as error:
        reason = error.__cause__ if error.__cause__ is not None else error
        raise InvalidField(f"item {name} does not fit: {reason}", param="item") from error


async def _records(front: Front, run: ServedRun, number: int) -> AsyncIterator[bytes]:
    yield RETRY
    if number == 0:
        yield sent_event(0, encoded(run.begin()))
        number = 1
    async with aclosing(front.news.follow(run.handle, number - 1)) as news:
        async for moments, missed in news:
            if not moments and not missed:
                yield PING
                continue
            numbered = list(run.numbered(moments, missed, number))
            number = numbered[-1][0] + 1
            yield b"".join(sent_event(at, encoded(record)) for at, record in numbered)
            await asyncio.sleep(0)
    last = 1 + run.handle.num_moments
    if number <= last:
        yield sent_event(last, encoded(run.end()))


def _after(request: Request) -> int:
    """The last record that the reader has; -1 for none."""
    given = request.query_params.get("after") or request.headers.get("last-event-id") or "-1"
    if not given.removeprefix("-").isascii() or not given.removeprefix("-").isdigit():
        raise InvalidField(
            f"after is {shown(given)}; expected the number of a record", param="after"
        )
    return max(-1, min(int(given[:17]), _MOST_AFTER))


def _run(request: Request) -> ServedRun:
    return front_of(request).runs.get(request.path_params["run"], owner_of(request))
