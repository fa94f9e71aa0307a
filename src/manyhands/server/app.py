"""The application: every route, and what is said where there is none.

    app = make_app(Front(served, service), hosts=LOOPBACK_NAMES)

It runs under any ASGI server; `process.py` runs it under uvicorn. It begins and ends nothing by itself but
its own listening for news: the service belongs to whoever made it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from manyhands.errors import ManyhandsError
from manyhands.schema.openai import CHAT, PLAIN, InvalidField, read_shape, shown
from manyhands.server import chat, responses, run_routes
from manyhands.server.asked import tokens_of
from manyhands.server.cors import cors_of
from manyhands.server.failures import Refusal, failure_of
from manyhands.server.front import Front, front_of
from manyhands.server.gate import Gate
from manyhands.server.openapi import description
from manyhands.server.page import FILES, HEADERS, read
from manyhands.server.shapes import (
    DETOKENIZE,
    MESSAGES,
    PROMPTS,
    RESPONSES,
    RUNS,
    TOKENIZE,
    DetokenizeBody,
    TokenizeBody,
)
from manyhands.strategies.methods import METHODS

PAGE = "/page/"


def make_app(
    front: Front, *, hosts: Iterable[str] | None = None, origins: Iterable[str] = ()
) -> Starlette:
    """All routes around one front. `hosts`: names by which it may be called, None: any; `origins`: sites
    whose pages may call it.

    Methods of installed distributions are imported here: a first request might find no file to open for them.
    """
    METHODS.working()
    origins = list(origins)

    def takes(scope: Scope) -> bool:
        return any(route.matches(scope)[0] is Match.FULL for route in routes)

    middleware = [
        *cors_of(origins, front.served.limits.header_bytes, front.metrics.answered),
        Middleware(
            Gate,
            keys=front.keys,
            limits=front.served.limits,
            hosts=hosts,
            origins=origins,
            open_prefix=PAGE,
            count=front.metrics.answered,
            takes=takes,
        ),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with front.open():
            yield

    routes = [
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/openapi.json", openapi),
        Route("/v1/models", models),
        Route("/v1/models/{model:path}", model),
        Route("/v1/methods", methods),
        Route(CHAT, chat.chat, methods=["POST"]),
        Route(PLAIN, chat.completions, methods=["POST"]),
        Route(RESPONSES, responses.create, methods=["POST"]),
        Route(TOKENIZE, tokenize, methods=["POST"]),
        Route(DETOKENIZE, detokenize, methods=["POST"]),
        Route(RUNS, run_routes.begin, methods=["POST"]),
        Route(RUNS, run_routes.listed),
        Route(RUNS + "/{run}", run_routes.one),
        Route(RUNS + "/{run}", run_routes.end, methods=["DELETE"]),
        Route(RUNS + "/{run}/events", run_routes.events),
        Route(RUNS + "/{run}/trace", run_routes.trace),
        Route(MESSAGES, run_routes.message, methods=["POST"]),
    ]
    routes += [Route("/", page), Route(PAGE + "{name:path}", page)]
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: _no_route,
            ManyhandsError: _refused,
            Refusal: _refused,
            ClientDisconnect: _left,
        },
    )
    app.router.redirect_slashes = False
    app.state.front = front
    return app


# -- for operators -----------------------------------------------------------------------------------


async def health(request: Request) -> Response:
    """`GET /health`: the process answers."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """`GET /ready`: a token was made lately, or just now for this."""
    if await front_of(request).is_ready():
        return JSONResponse({"status": "ready"})
    raise Refusal(503, "no token can be made now", code="not_ready")


async def metrics(request: Request) -> Response:
    """`GET /metrics`, for Prometheus."""
    content = front_of(request).metrics.page()
    return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")


async def openapi(request: Request) -> Response:
    """`GET /openapi.json`."""
    return JSONResponse(description())


# -- models and tokens -------------------------------------------------------------------------------


async def models(request: Request) -> Response:
    """`GET /v1/models`: the model, and an alias for each method."""
    front = front_of(request)
    listed = [_model(front, name) for name in front.served.models]
    return JSONResponse({"object": "list", "data": listed})


async def model(request: Request) -> Response:
    """`GET /v1/models/{model}`."""
    front, name = front_of(request), request.path_params["model"]
    if not front.served.has(name):
        said = f"there is no model {shown(name)}; GET /v1/models lists those that there are"
        raise Refusal(404, said, code="model_not_found", param="model")
    return JSONResponse(_model(front, name))


async def methods(request: Request) -> Response:
    """`GET /v1/methods`: what can be asked for as a method, and with which settings."""
    return JSONResponse(front_of(request).served.methods)


def _model(front: Front, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": front.created,
        "owned_by": "manyhands",
        "max_model_len": front.served.context,
    }


async def tokenize(request: Request) -> Response:
    """`POST /v1/tokenize`: a text as it stands, or messages in the model's template."""
    front = front_of(request)

    def make(body: Any) -> dict[str, Any]:
        asked = read_shape(TokenizeBody, body)
        if (asked.prompt is None) == (asked.messages is None):
            raise InvalidField("expected prompt or messages, and one of them", param="prompt")
        if asked.prompt is not None:
            tokens = front.served.text.plain_prompt(asked.prompt)
        else:
            tokens = tokens_of(asked.messages or [], front.served)
        return {
            "tokens": list(tokens),
            "count": len(tokens),
            "max_model_len": front.served.context,
        }

    return JSONResponse(await front.read(request, make))


async def detokenize(request: Request) -> Response:
    """`POST /v1/detokenize`: the text of tokens, special ones spelled out."""
    front = front_of(request)

    def make(body: Any) -> dict[str, Any]:
        asked = read_shape(DetokenizeBody, body)
        size = len(front.served.text.tokenizer)  # type: ignore[arg-type]  # every one has a length
        wrong = next((token for token in asked.tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise InvalidField(f"tokens hold {wrong}; expected 0 to {size - 1}", param="tokens")
        return {"prompt": front.served.text.decode(asked.tokens, special=True)}

    return JSONResponse(await front.read(request, make))


# -- the page ----------------------------------------------------------------------------------------


async def page(request: Request) -> Response:
    """`GET /` and the page's own files, which are the same for everybody."""
    name = request.path_params.get("name") or "index.html"
    if name not in FILES:
        raise Refusal(404, "there is no such file", code="not_found")
    return Response(read(name), media_type=FILES[name], headers=dict(HEADERS))


# -- errors ------------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> Response:
    refusal = failure_of(error, PROMPTS.get(request.scope["path"]))
    return JSONResponse(refusal.body, refusal.status, refusal.headers)


async def _left(request: Request, error: Exception) -> Response:
    return chat.LEFT


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, headers = shown(request.scope["path"]), dict(error.headers or {})
    known = headers.get("Allow", "others")
    said = {
        404: f"there is no route {path}; GET /openapi.json lists those that there are",
        405: f"the route {path} does not take {shown(request.method)}; it takes {known}",
    }
    codes = {404: "not_found", 405: "method_not_allowed"}
    refusal = Refusal(
        error.status_code,
        said.get(error.status_code, "the request cannot be answered"),
        code=codes.get(error.status_code, "bad_request"),
        headers=headers,
    )
    return JSONResponse(refusal.body, refusal.status, refusal.headers)
