"""A server on a cluster: replicas behind Ray Serve, and a door through which clients come.

    client ──HTTP──▶ door (`manyhands serve --ray`) ──Serve's router──▶ replica: engine, service, `server/app.py`

A replica is the whole server of one machine without its socket. The door has no model: it looks at keys and sizes,
finds the conversation a request belongs to, and passes bytes. Serve starts as many replicas as the requests under way
need, lets one that is to go finish what it has, and starts another for one that has died.

When a replica dies, an answer that has not begun is asked for again, of another replica; a stream that
has begun ends with an error event; runs that were watched are gone with their keys.

Serve's handles live in the door's process, so the router does, too; replicas are found by hashing (`affinity.py`) and
any number of doors agree. The replicas outlive a door that is killed: the same command takes them over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from manyhands.cluster.affinity import bare_mark, key_of, mark_of, replica_of_run
from manyhands.cluster.forwarding import Begin, Forwarded, Headers, answered
from manyhands.cluster.installed import Installed, differences, installed_here, lacking
from manyhands.cluster.joining import Share, imported
from manyhands.cluster.known import known
from manyhands.cluster.settings import ServingSettings
from manyhands.errors import ManyhandsError
from manyhands.server.app import make_app
from manyhands.server.body import read_json
from manyhands.server.chat import LEFT
from manyhands.server.cors import cors_of
from manyhands.server.failures import Refusal, draining, failure_of
from manyhands.server.front import Front
from manyhands.server.gate import Gate
from manyhands.server.keys import Keys
from manyhands.server.limits import Limits
from manyhands.server.shapes import RUNS
from manyhands.server.streams import is_gone_before
from manyhands.strategies.requests import method_named

LOG = logging.getLogger("manyhands.server")
DEPLOYMENT = "replica"
_LIST_SECONDS = 10.0  # that all replicas together may take to list their runs, or what is installed
_COMPARE_SECONDS = 2.0  # between two looks at which replicas there are
_METHODS, _MODELS = "/v1/methods", "/v1/models"
_TRIES = 3  # replicas that may die before an answer has begun
_OPEN_PAGES = "/page/"
_HOP = {b"connection", b"content-length", b"host", b"transfer-encoding"}  # of one connection alone
_STREAM = b"text/event-stream"


class ServedReplica:
    """A server without a socket, in an actor of Ray Serve. `make` is given the mark for the ids of its runs.

    `drain`: seconds for which runs may go on when the replica is to end, though no client waits for them.
    `name` is Serve's own for the replica, unless it is given.
    """

    def __init__(
        self, make: Callable[[str], Front], drain: float = 0.0, name: str | None = None
    ) -> None:
        if name is None:
            name = imported("ray.serve").get_replica_context().replica_id.unique_id
        self._drain = drain
        self.front = make(mark_of(str(name)))
        self.front.stop = lambda: None  # its health says that it has failed
        self._app = make_app(self.front)
        self._opened: asyncio.Future[None] | None = None
        self._open_task: asyncio.Task[None] | None = None

    async def answer(self, asked: Forwarded) -> AsyncIterator[Begin | bytes]:
        """The answer to a request, in pieces. Serve cancels it when the client leaves."""
        await self._open()
        async for piece in answered(self._app, asked):
            yield piece

    async def installed(self, asked: Forwarded) -> Installed:
        """The distributions and weights here. `asked` is read by the router alone."""
        return installed_here(bare_mark(self.front.runs.mark), self.front.served.place)

    async def check_health(self) -> None:
        """Serve replaces a replica for which this raises."""
        if self.front.is_broken:
            raise RuntimeError("the engine has failed") from self.front.service.error

    def __del__(self) -> None:
        """Serve calls it when a replica is to end, behind its last answer. Runs that nobody watches have no answer:
        they are waited for here, until Serve's time for all of this is over and the process ends.
        """
        if hasattr(self, "front"):
            self.front.close(self._drain)

    async def _open(self) -> None:
        """Listen for news, from the first request on: only then there is the loop of all requests."""
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._open_task = asyncio.ensure_future(self._stay_open(self._opened))
        await asyncio.shield(self._opened)

    async def _stay_open(self, opened: asyncio.Future[None]) -> None:
        async with self.front.open():
            opened.set_result(None)
            await asyncio.Event().wait()


@dataclass(frozen=True)
class Fleet:
    """Replicas that are deployed, as Serve's handle of them."""

    name: str
    handle: Any

    def ask(self, asked: Forwarded) -> Any:
        """The pieces of an answer, as an asynchronous iterator that can be cancelled."""
        return self.handle.options(method_name="answer", stream=True).remote(asked)

    async def installed(self, mark: str | None) -> Installed:
        """The distributions and weights of the replica with this mark; None: of any, and so where it has gone."""
        asked = Forwarded("GET", _METHODS, b"", [], b"", replica=mark)
        found: Installed = await self.handle.options(method_name="installed").remote(asked)
        return found

    def marks(self) -> Sequence[str]:
        """The marks of the replicas that are there; none before the first request."""
        return known(self.name)

    def delete(self) -> None:
        """End all replicas; those that answer may finish."""
        imported("ray.serve").delete(self.name)
        self.handle.shutdown()  # its router's threads would look for a cluster that is left


@dataclass(frozen=True)
class Pace:
    """How soon the number of replicas follows the requests under way. All in seconds.

    They are counted every `count` seconds. Their mean over the last `mean` decides; it must ask for more replicas for
    `up`, or for fewer for `down`. A replica that goes takes keys with it, so going is slow.
    """

    count: float = 10.0
    mean: float = 30.0
    up: float = 30.0
    down: float = 300.0

    def autoscaling(self) -> dict[str, float]:
        """Arguments of Serve's `AutoscalingConfig`."""
        return {
            "metrics_interval_s": self.count,
            "look_back_period_s": self.mean,
            "upscale_delay_s": self.up,
            "downscale_delay_s": self.down,
        }


def deploy(
    make: Callable[[str], Front],
    share: Share,
    settings: ServingSettings,
    limits: Limits,
    *,
    name: str,
    drain: float,
    pace: Pace | None = None,
) -> Fleet:
    """Start the replicas, or take over those that are there. Returns when one of them answers.

    `drain` is in seconds, as `ServedReplica` has it. `pace`: None is the usual one.
    """
    serve = imported("ray.serve")
    config = imported("ray.serve.config")
    most = max(share.replicas, settings.most_replicas or share.replicas)
    kind = serve.deployment(
        name=DEPLOYMENT,
        ray_actor_options=share.resources,
        autoscaling_config={
            "min_replicas": share.replicas,
            "initial_replicas": share.replicas,
            "max_replicas": most,
            "target_ongoing_requests": settings.replica_requests,
            **(pace or Pace()).autoscaling(),
        },
        max_ongoing_requests=limits.live_runs,
        max_queued_requests=limits.waiting_runs,
        graceful_shutdown_timeout_s=max(1.0, drain),
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=2.0,
        health_check_timeout_s=30.0,
        request_router_config=config.RequestRouterConfig(
            request_router_class="manyhands.cluster.router.ConversationRouter"
        ),
    )(ServedReplica)
    serve.start(proxy_location="Disabled")  # clients come through a door of ours
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"manyhands-{name}")
    try:
        handle = serve.run(kind.bind(make, drain), name=name, route_prefix=None)
    except RuntimeError as error:
        raise ManyhandsError(
            f"the replicas could not be started: {str(error).strip().splitlines()[-1]}",
            hint="`serve status` and the logs of Ray, in /tmp/ray/session_latest/logs/serve, say more",
        ) from error
    return Fleet(name, handle)


class Door:
    """The side of the process at the socket: no engine, but a way to the replicas. It is a `Behind`."""

    def __init__(self, fleet: Any, keys: Keys, limits: Limits) -> None:
        self.fleet, self.keys, self.limits = fleet, keys, limits
        self.is_draining = self.is_broken = False
        self.stop: Callable[[], None] = lambda: None
        self.num_live = 0
        self.registry = CollectorRegistry()
        Gauge(
            "manyhands_door_open_requests", "Requests on their way.", registry=self.registry
        ).set_function(lambda: self.num_live)
        self._installed: dict[str, Installed] = {}  # of the replicas, by their marks
        self._told: set[str] = set()  # of their differences
        self._lost = Counter(
            "manyhands_door_lost_replicas",
            "Requests whose replica died, by what became of them.",
            ["then"],
            registry=self.registry,
        )

    def answered(self, route: str, status: int) -> None:
        """Count nothing: requests are counted by the replicas, and what is none reaches no replica."""

    def close(self) -> None:
        """Nothing of the door's own has to end; the fleet is its maker's."""

    def app(self, *, hosts: frozenset[str] | None = None, origins: tuple[str, ...] = ()) -> Any:
        """The application: every route is a replica's, but for what is said of the door itself."""
        gate = Middleware(
            Gate,
            keys=self.keys,
            limits=self.limits,
            hosts=hosts,
            origins=origins,
            open_prefix=_OPEN_PAGES,
        )

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            comparing = asyncio.ensure_future(self._compare_all())
            try:
                yield
            finally:
                comparing.cancel()

        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route(RUNS, self._list_runs, methods=["GET"]),
                *(Route(path, self._list_offers, methods=["GET"]) for path in (_METHODS, _MODELS)),
                Route("/{path:path}", self._forward, methods=["GET", "HEAD", "POST", "DELETE"]),
            ],
            middleware=[*cors_of(origins, self.limits.header_bytes), gate],
            lifespan=lifespan,
            exception_handlers={Refusal: _refused, ManyhandsError: _refused},
        )

    # -- routes ------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(generate_latest(self.registry), media_type=kind)

    async def _list_runs(self, request: Request) -> Response:
        """The runs of all replicas, the newest first. Each lists those of the key that asks."""
        return await self._list(request, self._listed)

    async def _list_offers(self, request: Request) -> Response:
        """Models or methods, without methods that a replica lacks: a conversation may come to any of them."""
        return await self._list(request, self._offered)

    async def _list(
        self, request: Request, make: Callable[[Forwarded], Awaitable[Response]]
    ) -> Response:
        """The list that `make` makes, unless the client leaves."""
        asked = await self._asked(request)
        self.num_live += 1
        listing = asyncio.ensure_future(make(asked))
        try:
            if await is_gone_before(request, listing):
                return LEFT
            return listing.result()
        finally:
            self._ended()
            listing.cancel()

    async def _offered(self, asked: Forwarded) -> Response:
        begin, body = await self._asked_once(asked)
        lacked = lacking(self._installed.values())
        if begin.status != 200 or not lacked:
            return _whole_response(begin, body)
        told = json.loads(body)
        listed = told["data"]
        names = [one["id"] for one in listed]
        if asked.path == _MODELS:  # the model by itself, then its aliases
            names = [method_named(name, names[0]) for name in names]
        told["data"] = [one for one, name in zip(listed, names, strict=True) if name not in lacked]
        return JSONResponse(told)

    async def _listed(self, asked: Forwarded) -> Response:
        """Any replica is asked, and then each of them: the first request of a door finds the others."""
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                begin, body = await self._asked_once(asked)
                if begin.status != 200:
                    return _whole_response(begin, body)
                answers = await asyncio.gather(
                    *(self._asked_once(replace(asked, replica=mark)) for mark in self.fleet.marks())
                )
        except TimeoutError as error:
            raise Refusal(
                503,
                f"a replica has not listed its runs within {_LIST_SECONDS:g} s; ask again later",
                code="replica_busy",
            ) from error
        runs: dict[str, Any] = {}
        for begin, body in answers:
            if begin.status != 200:
                return _whole_response(begin, body)
            runs |= {run["id"]: run for run in json.loads(body)["data"]}
        newest_first = sorted(runs.values(), key=lambda run: run["created"], reverse=True)
        return JSONResponse({"object": "list", "data": newest_first})

    async def _asked_once(self, asked: Forwarded) -> tuple[Begin, bytes]:
        return await self._whole(asked, *await self._begun(asked))

    async def _compare_all(self) -> None:
        """Look at each replica that comes, and say in the log in which way it differs from the others."""
        while True:
            try:
                async with asyncio.timeout(_LIST_SECONDS):
                    await self._compare_new()
            except TimeoutError:  # it is busy, or loads
                pass
            except Exception as error:
                if not is_lost(error):
                    LOG.warning("what replicas have installed cannot be compared", exc_info=error)
                    return
            await asyncio.sleep(_COMPARE_SECONDS)

    async def _compare_new(self) -> None:
        if not self.fleet.marks():  # the router, which knows them, begins with the first request
            await self.fleet.installed(None)
        marks = self.fleet.marks()
        self._installed = {mark: self._installed[mark] for mark in marks if mark in self._installed}
        if all(mark in self._installed for mark in marks):
            return
        for mark in marks:
            if mark not in self._installed:
                found = await self.fleet.installed(mark)
                self._installed[found.mark] = found
        for difference in differences([*self._installed.values()]):
            if str(difference) not in self._told:
                self._told.add(str(difference))
                LOG.warning("%s (hint: %s)", difference, difference.hint)

    async def _forward(self, request: Request) -> Response:
        """Pass a request on, and its answer back."""
        if self.is_draining and request.method == "POST":
            raise draining()
        try:
            asked = await self._asked(request)
        except ClientDisconnect:
            return LEFT
        self.num_live += 1
        answering = asyncio.ensure_future(self._answer(asked))
        answer: Response | None = None
        try:
            if await is_gone_before(request, answering):
                return LEFT
            answer = answering.result()
            return answer
        finally:
            if not isinstance(answer, _Stream):  # that is ended when it is over
                self._ended()
            if answer is None:  # it may be there all the same, a moment too late
                answering.add_done_callback(_let_go)
            answering.cancel()

    async def _answer(self, asked: Forwarded) -> Response:
        """The answer: a stream, or a whole one."""
        begin, pieces = await self._begun(asked)
        if _is_stream(begin):
            return _Stream(begin, pieces, self._streamed(pieces), self._ended)
        return _whole_response(*await self._whole(asked, begin, pieces))

    def _ended(self) -> None:
        self.num_live -= 1

    async def _asked(self, request: Request) -> Forwarded:
        """The request with its conversation, or the replica of its run."""
        body, path = await request.body(), request.url.path
        replica = key = None
        if path.startswith(RUNS + "/"):
            replica = replica_of_run(path.removeprefix(RUNS + "/").partition("/")[0])
        elif request.method == "POST":
            try:
                key = key_of(request.state.owner, read_json(body))
            except ManyhandsError:  # a replica says what is wrong with it
                key = None
        scope = request.scope
        return Forwarded(
            request.method,
            path,
            scope["query_string"],
            [
                *(pair for pair in scope["headers"] if pair[0] not in (*_HOP, b"x-request-id")),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", request.state.request_id.encode()),
            ],
            body,
            client=tuple(scope["client"]) if scope.get("client") else None,
            key=key,
            replica=replica,
        )

    async def _begun(self, asked: Forwarded) -> tuple[Begin, Any]:
        """The first piece of an answer, and where the others come from. Replicas that die are replaced."""
        lost: Exception | None = None
        for _ in range(_TRIES):
            pieces = self.fleet.ask(asked)
            try:
                begin = await anext(pieces)
            except StopAsyncIteration:
                raise failure_of(RuntimeError("an answer without a beginning")) from None
            except asyncio.CancelledError:  # the client has left
                pieces.cancel()
                raise
            except Exception as error:
                if not is_lost(error):
                    raise _refusal(error) from error
                lost = error
                self._lost.labels("asked again").inc()
                continue
            assert isinstance(begin, Begin), "an answer begins with its status"
            return begin, pieces
        raise Refusal(503, "replicas died before they answered", code="replica_lost") from lost

    async def _whole(self, asked: Forwarded, begin: Begin, pieces: Any) -> tuple[Begin, bytes]:
        """An answer in one piece; if its replica dies, it is asked for once more."""
        for is_last in (False, True):
            try:
                return begin, b"".join([piece async for piece in pieces])
            except asyncio.CancelledError:
                pieces.cancel()
                raise
            except Exception as error:
                if is_last or not is_lost(error):
                    raise _refusal(error) from error
                self._lost.labels("asked again").inc()
                begin, pieces = await self._begun(asked)
        raise AssertionError("one of the two returns")

    async def _streamed(self, pieces: Any) -> AsyncIterator[bytes]:
        """A stream as it comes; one whose replica dies ends with an error event."""
        try:
            async for piece in pieces:
                yield piece
        except Exception as error:
            LOG.warning("a stream has lost its replica", exc_info=error)
            self._lost.labels("ended with an error event").inc()
            said = json.dumps(_refusal(error).body)
            yield f"\n\nevent: error\ndata: {said}\n\n".encode()


class _Stream(StreamingResponse):
    """A stream that is passed on. However it ends, its replica is told, and `ended` is called."""

    def __init__(
        self,
        begin: Begin,
        pieces: Any,
        passed: AsyncIterator[bytes],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(passed, begin.status)
        self.raw_headers = _passed(begin.headers)
        self._pieces, self._ended = pieces, ended

    def let_go(self) -> None:
        """Tell the replica of a stream that nobody takes."""
        self._pieces.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
            self.let_go()


def _let_go(answering: asyncio.Future[Response]) -> None:
    """The client has left: of a stream that is there, the replica is told."""
    if answering.cancelled() or answering.exception() is not None:
        return
    if isinstance(answer := answering.result(), _Stream):
        answer.let_go()


def is_lost(error: BaseException) -> bool:
    """Whether an error says that a replica is gone, and not that it has refused."""
    exceptions = imported("ray.exceptions")
    gone = (
        exceptions.ActorDiedError,
        exceptions.ActorUnavailableError,
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
    )
    return isinstance(error, gone)


def _refusal(error: Exception) -> Refusal:
    """The answer to a client when the way to a replica has failed."""
    if isinstance(error, Refusal):
        return error
    if type(error).__name__ == "BackPressureError":
        return Refusal(429, "too many requests wait for a replica; come back later", code="busy")
    if is_lost(error):
        return Refusal(503, "the replica that answered has died", code="replica_lost")
    return failure_of(error)


def _is_stream(begin: Begin) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(_STREAM)
        for name, value in begin.headers
    )


def _whole_response(begin: Begin, body: bytes) -> Response:
    response = Response(body, begin.status)
    response.raw_headers += _passed(begin.headers)
    return response


def _passed(headers: Headers) -> Headers:
    return [pair for pair in headers if pair[0].lower() not in _HOP]


async def _refused(request: Request, error: Exception) -> Response:
    refusal = failure_of(error)
    return JSONResponse(refusal.body, refusal.status, refusal.headers)
