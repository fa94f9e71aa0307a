"""The front: what all routes share, and how a request becomes a run and a run an answer.

    asked = await front.understand(request, make)     in a thread: templates and tokens take time
    run = front.begin(asked, request)                 Busy, ServiceStopped
    answer = await front.answer(run, request)         a client that leaves cancels its run

One `Front` per server. Everything here but `understand`'s work is done in the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.requests import Request

from manyhands.engine.service import Service
from manyhands.errors import Busy
from manyhands.server.asked import Asked, Served
from manyhands.server.body import read_json
from manyhands.server.failures import Refusal, draining, failure_of
from manyhands.server.gate import LOG
from manyhands.server.keys import Keys
from manyhands.server.metrics import Metrics
from manyhands.server.news import News
from manyhands.server.runs import Runs, ServedRun
from manyhands.server.streams import EventStream, is_gone_before
from manyhands.strategies.base import Answer
from manyhands.strategies.events import EngineEvent
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Prompt

T = TypeVar("T")
_FRESH = 30.0  # seconds for which a pass shows that the engine works
_PROBE = 10.0  # seconds that a probe may take
_THREADS = 2  # that understand requests
_BEGINNING = 0.01  # seconds for which each of them has something to do, so that it is begun
_HEADERS_WAIT = 1.0  # seconds that a stream's headers wait for its run to begin


class Left(Exception):
    """The client has left: there is nobody to answer."""


class Front:
    """The served model, its runs and news, and the clients that are there. `mark`: of `Runs`."""

    def __init__(
        self, served: Served, service: Service, keys: Keys | None = None, *, mark: str = ""
    ) -> None:
        self.served, self.service = served, service
        self.keys = keys or Keys()
        self.limits = served.limits
        self.created = int(time.time())
        self.runs = Runs(served, service, mark)
        self.metrics = Metrics(service, self.runs)
        self.news = News(service)
        self.is_draining = False
        self.stop: Callable[[], None] = lambda: None  # asks the process to end
        self._streams: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="manyhands-understand")
        for _ in range(_THREADS):  # they begin now: later the system may give no more
            self._threads.submit(time.sleep, _BEGINNING)
        self._probe: asyncio.Task[bool] | None = None
        self._kept: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """While it is open, news come in."""
        async with self.news:
            watching = asyncio.ensure_future(self._watch_engine())
            try:
                yield
            finally:
                watching.cancel()
                self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def num_live(self) -> int:
        """Runs that are under way."""
        return len(self.runs.live)

    @property
    def is_broken(self) -> bool:
        """Whether the engine has failed."""
        return self.service.is_broken

    def answered(self, route: str, status: int) -> None:
        """Count a request."""
        self.metrics.answered(route, status)

    def close(self, drain: float = 0.0) -> None:
        """End whatever is under way, after up to `drain` seconds; the service with it."""
        self.service.close(drain)

    # -- requests ----------------------------------------------------------------------------------

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Something that would keep the event loop from others."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def read(self, request: Request, make: Callable[[Any], T]) -> T:
        """The value that `make` makes of the request's body, in a thread."""
        body = await request.body()
        return await self.in_thread(lambda: make(read_json(body)))

    async def understand(self, request: Request, make: Callable[[Any], Asked]) -> Asked:
        """The request that `make` makes of the body, with its strategies, in a thread."""
        owner = owner_of(request)
        return await self.read(request, lambda body: make(body).with_strategies(self.served, owner))

    def begin(self, asked: Asked, request: Request) -> ServedRun:
        """Begin what is asked for, in one run. Raises a Refusal where that cannot be."""
        (run,) = self.begin_all(asked, request)
        return run

    def begin_all(self, asked: Asked, request: Request) -> tuple[ServedRun, ...]:
        """Begin what is asked for: a run, or one for each choice. All of them begin, or none."""
        runs: list[ServedRun] = []
        try:
            for each in asked.runs():
                runs.append(self._begin(each, request))  # noqa: PERF401 (those begun are ended)
        except BaseException:
            for run in runs:
                self.ended(run)
            raise
        request.state.log["run"] = _names(runs)
        return tuple(runs)

    def _begin(self, asked: Asked, request: Request) -> ServedRun:
        if self.is_draining:
            raise draining()
        try:
            run = self.runs.begin(asked, owner_of(request))
        except Busy as error:
            raise failure_of(error) from error
        run.request_id = request.state.request_id
        return run

    async def answer(self, run: ServedRun, request: Request) -> Answer:
        """Wait for the answer. Raises a Refusal for a run without one; Left, if the client leaves."""
        (answer,) = await self.answers([run], request)
        return answer

    async def answers(self, runs: Sequence[ServedRun], request: Request) -> tuple[Answer, ...]:
        """Wait for the answers of several runs that are one request, as `answer` does: the first that fails ends them all."""
        waiting = asyncio.ensure_future(self._end_of_all(runs))
        try:
            if await is_gone_before(request, waiting):
                raise Left
            return waiting.result()
        finally:
            waiting.cancel()
            for run in runs:
                self.ended(run)

    async def _end_of_all(self, runs: Sequence[ServedRun]) -> tuple[Answer, ...]:
        """Wait until all are done, or one has failed, which raises its Refusal."""
        async with aclosing(self.news.ends_of([run.handle for run in runs])) as ends:
            async for index in ends:
                if (refusal := runs[index].outcome()[1]) is not None:
                    raise refusal
        answers = (run.outcome()[0] for run in runs)
        return tuple(answer for answer in answers if answer is not None)

    def keep(self, run: ServedRun) -> None:
        """Let a run go on for which nobody waits."""
        task = asyncio.ensure_future(self._to_its_end(run))
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def _to_its_end(self, run: ServedRun) -> None:
        try:
            await self.news.end_of(run.handle)
        finally:
            self.ended(run)

    def ended(self, run: ServedRun) -> None:
        """Mark this run as one for which no client waits any more."""
        self.metrics.ended(run, time.monotonic() - run.handle.begins_at)
        mistake = run.mistake()
        if mistake is not None:
            LOG.error("a run failed", exc_info=mistake, extra={"request_id": run.request_id})
        self.runs.ended(run)

    async def stream(
        self,
        runs: Sequence[ServedRun],
        request: Request,
        source: AsyncIterator[bytes],
        *,
        ends_runs: bool = True,
    ) -> EventStream:
        """A response that tells runs while they go on. A client that leaves ends them, if it `ends_runs`.

        A run that fails before anything was written is refused with a status of its own.
        """
        client = self._client(request)

        def end() -> None:
            for run in runs if ends_runs else ():
                self.ended(run)

        try:
            self._take_stream(client)
        except Refusal:
            end()
            raise

        def on_end() -> None:
            self._give_stream(client)
            end()

        try:
            if request.method != "HEAD":
                await self._begun(runs[0])
            for run in runs if ends_runs else ():
                if run.handle.done and (refusal := run.outcome()[1]) is not None:
                    raise refusal
        except BaseException:
            on_end()
            raise
        stall = self.served.limits.stall_seconds
        headers = headers_of(runs)
        return EventStream(source, stall_seconds=stall, on_end=on_end, headers=headers)

    async def _begun(self, run: ServedRun) -> None:
        """Wait a moment until the run does something, or has failed; that it waits is no news."""
        async with aclosing(self.news.follow(run.handle)) as following:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEADERS_WAIT):
                    async for moments, _ in following:
                        events = (event for moment in moments for event in moment.events)
                        if not all(isinstance(event, EngineEvent) for event in events):
                            return

    def _client(self, request: Request) -> str:
        """The client that is counted: the key, or the address where there are none."""
        if self.keys:
            return owner_of(request)
        return request.client.host if request.client is not None else ""

    def _take_stream(self, client: str) -> None:
        limit = self.served.limits.streams
        if self._streams[client] >= limit:
            raise Refusal(
                429, f"{limit} streams are open already; close one of them", code="too_many_streams"
            )
        self._streams[client] += 1
        self.metrics.streams.inc()

    def _give_stream(self, client: str) -> None:
        self._streams[client] -= 1
        self.metrics.streams.dec()
        if not self._streams[client]:
            del self._streams[client]

    # -- the engine --------------------------------------------------------------------------------

    async def is_ready(self) -> bool:
        """Whether a token was made lately, or can be made now."""
        if self.is_draining or not self.service.takes_runs:
            return False
        seconds = self.service.load.seconds_since_pass
        if seconds is not None and seconds < _FRESH:
            return True
        if self._probe is None or self._probe.done():
            self._probe = asyncio.ensure_future(self._make_token())
        return await asyncio.shield(self._probe)

    async def _make_token(self) -> bool:
        served = self.served
        tokens = (await self.in_thread(lambda: served.text.plain_prompt("a")))[:1]
        settings = SharedSettings(max_tokens=1)
        asked = Asked("/ready", served.name, prompts=(Prompt(tokens),), settings=settings)
        try:
            run = self.runs.begin(asked, "ready")
        except Exception:
            return False
        try:
            async with asyncio.timeout(_PROBE):
                await self.news.end_of(run.handle)
            return run.outcome()[0] is not None
        except TimeoutError:
            return False
        finally:
            self.runs.ended(run)

    async def _watch_engine(self) -> None:
        """When the engine has failed, everybody is answered, and then the server ends."""
        while not self.service.is_broken:
            await asyncio.sleep(0.2)
        LOG.critical("the engine has failed", exc_info=self.service.error)
        self.is_draining = True
        self.stop()


def front_of(request: Request) -> Front:
    """The front that answers a request."""
    front = request.app.state.front
    assert isinstance(front, Front)
    return front


def headers_of(runs: Sequence[ServedRun]) -> dict[str, str]:
    """The names of a request's runs, for those that can be looked up."""
    names = _names(runs)
    return {} if names is None else {"X-Manyhands-Run": names}


def _names(runs: Sequence[ServedRun]) -> str | None:
    return ", ".join(run.id for run in runs if run.id is not None) or None


def owner_of(request: Request) -> str:
    """The owner of a request; the gate has looked."""
    return str(request.state.owner)
