"""News of runs, from the service's thread to the tasks of the event loop: one call per pass for all of them.

    async with News(service) as news:
        async for moments, missed in news.follow(handle):    # as they come, those of a while in one piece
            ...
        async for item in news.follow_all(handles): ...      # of several runs, as one stream
        await news.end_of(handle)                            # without a look at what happened in between

A hundred streams that were each woken from the other thread would cost it a hundred writes to a pipe per
pass. Here it makes one call, and none while the last one has not been answered; the loop then wakes the tasks
whose runs have something new.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NamedTuple

from manyhands.engine.service import Handle, Moment, Service

_PING_SECONDS = 15.0  # proxies take a connection for dead after a minute or so


class NewsItem(NamedTuple):
    """News of one of several runs: its moments, and how many were lost before them.

    `run` is the number of its handle; with the item that `is_last` it is done.
    """

    run: int
    moments: list[Moment]
    missed: int
    is_last: bool


class _Reader:
    """One task that waits for news of one run."""

    def __init__(self, handle: Handle, wants_all: bool, news: asyncio.Event) -> None:
        self.handle, self.wants_all, self.news = handle, wants_all, news
        self.number = 0  # of the moment that it has not seen
        self.is_pinged = False

    @property
    def has_news(self) -> bool:
        return self.handle.done or (self.wants_all and self.handle.num_moments > self.number)


class News:
    """Wakes readers of a service's runs. To be entered in the loop in which they wait."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._readers: dict[_Reader, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_called = False
        self._end: Callable[[], None] = lambda: None
        self._pinging: asyncio.Task[None] | None = None

    async def __aenter__(self) -> News:
        self._loop = asyncio.get_running_loop()
        self._end = self.service.watch(self._call)
        self._pinging = asyncio.ensure_future(self._ping())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        if self._pinging is not None:
            self._pinging.cancel()

    async def follow(
        self, handle: Handle, number: int = 0
    ) -> AsyncGenerator[tuple[list[Moment], int], None]:
        """Moments of a run from `number` on, with how many were lost before them, until it is done.

        An empty list comes now and then where there is no news, so that a reader may look after its client.
        """
        following = self.follow_all([handle], number)
        try:
            async for item in following:
                if item.moments or item.missed or not item.is_last:
                    yield item.moments, item.missed
        finally:
            await following.aclose()

    async def follow_all(
        self, handles: Sequence[Handle], number: int = 0
    ) -> AsyncGenerator[NewsItem, None]:
        """Moments of several runs from `number` on, as they come, until all are done. The last item of each may be empty."""
        with ExitStack() as stack:
            news = asyncio.Event()
            live = {
                index: stack.enter_context(self._reading(handle, wants_all=True, news=news))
                for index, handle in enumerate(handles)
            }
            for reader in live.values():
                reader.number = number
            while live:
                news.clear()
                for index, reader in list(live.items()):
                    is_last = reader.handle.done
                    moments, missed = reader.handle.moments(reader.number)
                    reader.number += missed + len(moments)
                    if is_last:
                        del live[index]
                    if moments or missed or reader.is_pinged or is_last:
                        reader.is_pinged = False
                        yield NewsItem(index, moments, missed, is_last)
                if live and not any(reader.has_news for reader in live.values()):
                    await news.wait()

    async def end_of(self, handle: Handle) -> None:
        """Wait until a run is done."""
        async for _ in self.ends_of([handle]):
            pass

    async def ends_of(self, handles: Sequence[Handle]) -> AsyncGenerator[int, None]:
        """Which of these runs is done, as soon as it is, until all are."""
        with ExitStack() as stack:
            news, live = asyncio.Event(), dict(enumerate(handles))
            for handle in handles:
                stack.enter_context(self._reading(handle, wants_all=False, news=news))
            while live:
                news.clear()
                for index in [index for index, handle in live.items() if handle.done]:
                    del live[index]
                    yield index
                if live and not any(handle.done for handle in live.values()):
                    await news.wait()

    @property
    def num_readers(self) -> int:
        """Tasks that wait."""
        return len(self._readers)

    @contextmanager
    def _reading(
        self, handle: Handle, *, wants_all: bool, news: asyncio.Event
    ) -> Iterator[_Reader]:
        reader = _Reader(handle, wants_all, news)
        self._readers[reader] = None
        try:
            yield reader
        finally:
            self._readers.pop(reader, None)

    def _call(self) -> None:
        """In the service's thread."""
        if not self._is_called and self._loop is not None:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._spread)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(_PING_SECONDS)
            for reader in self._readers:
                reader.is_pinged = True
                reader.news.set()

    def _spread(self) -> None:
        self._is_called = False
        for reader in self._readers:
            if reader.has_news:
                reader.news.set()
