"""A Service: one thread that owns an engine, and runs that come to it from any thread.

    with Service(engine) as service:
        handle = service.submit(hogwild(problem, engine.text), deadline=60)
        for event in handle:             # as they happen
            print(event)
        print(handle.result().text)

    async for event in handle: ...       # the same in asyncio,
    answer = await handle                # without a thread that waits

An engine is driven by one thread, and a service keeps it until it is closed. Everything that others want of it is asked for here and done between
two passes: submitting, cancelling, ending at a deadline. All methods may be called from any thread.

**A slow listener costs memory up to a bound, and no time.** The thread appends what a pass has brought to
the handle's log, as one `Moment`, and every listener has a place in the log of its own. The log keeps at
least the newest `max_events`; a listener that falls further behind gets an `EventsMissed` in the place of
what it missed. A program with many listeners need not be woken for each of them: `watch` has it called once
when a pass is over.

**Limits.** `max_live` runs are in the engine, where they wait for memory if they must; `max_waiting` more
wait outside, in order. One more is refused with `Busy`.

**Ends.** A mistake in a strategy ends its own run. An error of the engine itself ends them all, and the
service with them (`ServiceStopped`, with the error as its cause). `close` lets runs go on for `drain`
seconds, then cancels them. At the exit of the interpreter a service is closed.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import threading
import time
import warnings
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from manyhands.cache.sheets import ShelfCounts
from manyhands.cache.usage import Usage
from manyhands.engine.garbage import collect_while_idle
from manyhands.engine.inbox import Inbox
from manyhands.engine.loop import Packs, Pass, run_passes
from manyhands.engine.one_process import Here, OfOneProcess, check_process
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.run import Run, RunState, check_strategy, has_ended
from manyhands.errors import (
    Busy,
    DeadlineExceeded,
    InvalidRequest,
    ManyhandsError,
    RunCancelled,
    ServiceStopped,
    counted,
)
from manyhands.schema.setting import as_found, check_function, whole_number
from manyhands.schema.waits import lock_wait, seconds_of
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.events import Event, UsageCounted
from manyhands.strategies.listening import Item, check_item

_LONGEST_PASS = 60.0  # seconds that `close` waits for the pass under way
_LOOK_EVERY = 0.25  # seconds between two Loads
_IDLE = 1.0  # seconds without a run, before what may wait for such a time is done


@dataclass(frozen=True)
class EventsMissed(Event):
    """So many events are not in the log any more: the listener was slower than the run."""

    count: int


class Moment(NamedTuple):
    """The tokens and events that one pass brought to a run.

    `num_passes` have been made for the run, those of its ending included; `time` is in seconds since it was
    submitted. `num_before` counts the events of all moments before this one.
    """

    num_passes: int
    time: float
    num_before: int
    events: tuple[Event, ...]

    @property
    def num_events(self) -> int:
        """Events up to the end of this moment."""
        return self.num_before + len(self.events)


@dataclass(frozen=True)
class Load:
    """How much a service has to do, a quarter of a second ago or less.

    `num_waiting` runs wait for memory or for a place; `num_preemptions` and `num_passes` count from the
    beginning. Pages of prefixes that are kept for later are in use. `seconds_since_pass` is None before the
    first pass.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_preempted: int = 0
    num_preemptions: int = 0
    num_pages: int = 0
    num_pages_in_use: int = 0
    num_passes: int = 0
    usage: Usage = field(default_factory=Usage)
    shelf: ShelfCounts = field(default_factory=ShelfCounts)  # of the cache on disk
    passes: PassCounts = field(default_factory=PassCounts)
    seconds_since_pass: float | None = None


class Handle(OfOneProcess):
    """A run of a service: its events, its end. Made by `Service.submit`; safe from any thread."""

    def __init__(
        self, service: Service, deadline: float | None, max_events: int, lifecycle: bool = False
    ) -> None:
        self.deadline = deadline  # seconds from the submission
        self.lifecycle = lifecycle
        self.begins_at = time.monotonic()
        self.ends_at = math.inf if deadline is None else self.begins_at + deadline
        self._service = service
        self._max_events = max_events
        self._news = threading.Condition()
        self._log: list[Moment] = []
        self._first = 0  # number of the first moment that is kept
        self._outcome: Answer | Exception | None = None  # None: not yet
        self._way: TracebackType | None = None  # of an error, to where it was caught first
        self._run: Run | None = None  # once it has begun
        self._said = Inbox()  # before that
        self._wakers: list[partial[Any]] = []  # of asyncio's loops

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._outcome is not None

    @property
    def listens(self) -> bool:
        """Whether the run has begun, and hears what is said to it."""
        return self._run is not None and self._run.listens and not self.done

    @property
    def usage(self) -> Usage:
        """The cost of the run up to now."""
        return Usage() if self._run is None else self._run.usage

    @property
    def num_preemptions(self) -> int:
        """How often it was preempted."""
        return 0 if self._run is None else self._run.num_preemptions

    def cancel(self) -> None:
        """End the run before its next pass: its result is a RunCancelled. It returns at once, and does nothing if the run is done."""
        self._service._stop(self, RunCancelled("the run was cancelled and has no answer"))

    def say(self, item: Item) -> None:
        """Say something to the run: `Run.say`.

        A run that has not begun is told when it begins. Whether its strategy listens is not known before, so one that does not
        never hears it, and nothing is raised then. What waits is bounded there as well: Busy.
        """
        check_item(item)
        with self._news:
            if self._run is None:
                if self.done:
                    raise has_ended()
                self._said.put(item)
                return
        self._run.say(item)

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the answer. Raises what ended the run instead; TimeoutError after `timeout` s.

        InvalidRequest for a `timeout` that is no number of seconds, and where the service's own thread would wait: a strategy or
        a watcher, for which no pass would be made meanwhile.
        """
        wait = None if timeout is None else lock_wait(seconds_of("timeout", timeout))
        if wait != 0:
            self._check_waits()
        with self._news:
            # No closure: `self` is let go of below.
            if not self._news.wait_for(partial(getattr, self, "done"), wait):
                raise TimeoutError(f"the run has not ended after {wait:g} s")
        outcome = self._outcome
        assert outcome is not None, "it is done"
        if not isinstance(outcome, Exception):
            return outcome
        try:
            # As it came: else each call would leave the frames of its callers there, one behind the other.
            raise outcome.with_traceback(self._way)
        finally:
            del self, outcome  # the error's traceback has this frame: a circle

    @property
    def outcome(self) -> Answer | Exception | None:
        """The answer, or what ended the run; None before its end. Unlike `result` it raises nothing, so that no traceback holds the caller."""
        return self._outcome

    def __iter__(self) -> Iterator[Event]:
        """The events from the first on, as they happen, until the run is done."""
        position, is_last = 0, False
        while not is_last:
            self._check_waits()
            with self._news:
                while not (self.done or self._end > position):
                    self._news.wait()
                is_last = self.done
            events, position = self.read(position)
            yield from events

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The same in asyncio. Leaving the iteration does not cancel the run."""
        position, is_last = 0, False
        self._check_waits()
        with self._waking() as news:
            while not is_last:
                news.clear()
                is_last = self.done
                events, position = self.read(position)
                for event in events:
                    yield event
                if not is_last:
                    await news.wait()

    def __await__(self) -> Generator[Any, Any, Answer]:
        """`result` in asyncio. Cancelling the task that waits does not cancel the run."""
        return self._ended().__await__()

    def read(self, position: int) -> tuple[list[Event], int]:
        """Events from number `position` on that are known by now, and the number to go on from.

        Raises InvalidRequest for what is no number of an event; the first one is 0.
        """
        if type(position) is not int or position < 0:
            position = whole_number("position", position, 0)
        with self._news:
            at = bisect_right(self._log, position, key=lambda moment: moment.num_events)
            events = [event for moment in self._log[at:] for event in moment.events]
            if at < len(self._log):
                skipped = position - self._log[at].num_before
                if skipped < 0:
                    events.insert(0, EventsMissed(events[0].forward_pass, -skipped))
                else:
                    del events[:skipped]
            return events, self._end

    def moments(self, number: int) -> tuple[list[Moment], int]:
        """Moments from `number` on that are known by now, and how many of those asked for are lost.

        Raises InvalidRequest for what is no number of a moment; the first one is 0.
        """
        if type(number) is not int or number < 0:
            number = whole_number("number", number, 0)
        with self._news:
            missed = max(0, self._first - number)
            return self._log[max(0, number - self._first) :], missed

    @property
    def num_moments(self) -> int:
        """How many there have been."""
        return self._first + len(self._log)

    @property
    def num_events_kept(self) -> int:
        """Events that are in the log."""
        return self._end - self._log[0].num_before if self._log else 0

    @property
    def _end(self) -> int:
        return self._log[-1].num_events if self._log else 0

    def _begin(self, run: Run) -> None:
        """Note its run, which has begun, unless it has one already. The run is told all that was said meanwhile, in the order in which it was said."""
        if self._run is not None:
            return
        with self._news:
            said = self._said.take()
            for item in said if run.listens and not run.done else ():
                run.say(item)
            self._run = run

    def _check_waits(self) -> None:
        """Raise InvalidRequest in the thread that makes the passes, if the run is not done: it would wait for itself.

        In a fork of the process, too, for that thread is not there.
        """
        if not self.done:
            self._service.check_process()
        if not self.done and self._service.is_own_thread:
            raise InvalidRequest(
                "a run was waited for in the thread that makes its passes, as by a strategy of the same service",
                hint="In a strategy write `answer = yield from another`; elsewhere, wait in another thread.",
            )

    async def _ended(self) -> Answer:
        self._check_waits()
        with self._waking() as news:
            while not self.done:
                await news.wait()
                news.clear()
        try:
            return self.result()
        finally:
            del self  # see `result`

    @contextmanager
    def _waking(self) -> Iterator[asyncio.Event]:
        """An event of the running loop that is set whenever something has happened."""
        news = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, news.set)
        with self._news:
            self._wakers.append(wake)
        try:
            yield news
        finally:
            with self._news:
                self._wakers.remove(wake)

    def _publish(self, events: Sequence[Event], outcome: Answer | Exception | None = None) -> None:
        """Append to the log; with an outcome the run is done."""
        with self._news:
            if self.done or (not events and outcome is None):
                return
            if events:
                num_passes = 0 if self._run is None else self._run.num_passes
                now = time.monotonic() - self.begins_at
                self._log.append(Moment(num_passes, now, self._end, tuple(events)))
                if self.num_events_kept >= 2 * self._max_events:
                    self._forget()
            if isinstance(outcome, Exception):
                self._way = outcome.__traceback__
            self._outcome = outcome
            self._news.notify_all()
            for wake in self._wakers:
                with suppress(RuntimeError):  # that loop is closed
                    wake()

    def _forget(self) -> None:
        """Drop the oldest moments; the newest `max_events` stay, and the newest moment in any case."""
        least = self._end - self._max_events
        at = bisect_right(self._log, least, key=lambda moment: moment.num_events)
        at = min(at, len(self._log) - 1)
        self._first += at
        del self._log[:at]


class Service(OfOneProcess):
    """Runs an engine in a thread of its own, from now until `close`. See the head of this file.

    Raises InvalidRequest for what is no engine, and for one that another thread is inside of, as that of another service.
    """

    def __init__(
        self,
        engine: Packs,
        *,
        max_live: int = 256,
        max_waiting: int = 1024,
        max_events: int = 10_000,
    ) -> None:
        if not (hasattr(engine, "inside") and hasattr(engine, "submit")):
            raise InvalidRequest(
                f"a {type(engine).__name__} was given to a service; expected an Engine",
                hint="Write Service(engine), with what Engine.load has returned.",
            )
        self.max_live = whole_number("max_live", max_live, 1)
        self.max_waiting = whole_number("max_waiting", max_waiting, 0)
        self.max_events = whole_number("max_events", max_events, 1)
        self._engine = engine
        self._process = Here.number
        self._changed = threading.Condition()
        self._waiting: OrderedDict[Handle, Strategy] = OrderedDict()
        self._live: dict[Handle, None] = {}  # in their order, in which they are told of an end
        self._stops: dict[Handle, ManyhandsError] = {}  # live ones to be cancelled, and why
        self._soonest = math.inf  # no deadline of a waiting run is sooner
        self._takes_runs = True
        self._is_closing = False  # runs under way are cancelled
        self._watchers: list[Callable[[], object]] = []
        self._load = Load()
        self._looked_at = -math.inf  # when the load was looked at
        self._passed_at: float | None = None  # when the newest pass was over
        self._num_passes = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="manyhands-service", daemon=True)
        self._has_begun = threading.Event()  # the thread is inside the engine, or was refused
        self._thread.start()
        self._has_begun.wait()
        if isinstance(self._error, InvalidRequest):
            raise self._error
        atexit.register(self.close)

    def submit(
        self, strategy: Strategy, *, deadline: float | None = None, lifecycle: bool = False
    ) -> Handle:
        """Begin a strategy, which may take `deadline` seconds from now, waiting included.

        `lifecycle`: its events also tell what the engine does with it (`events.py::EngineEvent`). Raises Busy when there are too many runs, ServiceStopped when the service takes no more.
        """
        self.check_process()
        check_strategy(strategy)
        if deadline is not None:
            deadline = _seconds_to_end(deadline)
        with self._changed:
            if not self._takes_runs:
                raise self._stopped()
            num_runs = len(self._live) + len(self._waiting)
            if num_runs >= self.max_live + self.max_waiting:
                raise Busy(
                    f"the service has {counted(num_runs, 'run')}; it takes {self.max_live} at a time, and "
                    f"{self.max_waiting} may wait",
                    hint="Try again when some of them have ended.",
                )
            handle = Handle(self, deadline, self.max_events, lifecycle)
            self._waiting[handle] = strategy
            self._soonest = min(self._soonest, handle.ends_at)
            self._changed.notify_all()
        return handle

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the thread that makes the passes."""
        return threading.current_thread() is self._thread

    def check_process(self) -> None:
        """Raise InvalidRequest in a fork of the process: the thread that makes the passes is not there."""
        check_process(self._process, "the service")

    @property
    def is_broken(self) -> bool:
        """Whether the engine failed."""
        return self._error is not None

    @property
    def is_idle(self) -> bool:
        """Whether no run is live or waits: each has ended, and its keys are given back."""
        with self._changed:
            return not self._live and not self._waiting

    @property
    def load(self) -> Load:
        """How much there is to do."""
        load, passed = self._load, self._passed_at
        with self._changed:
            num_outside = len(self._waiting)
        return replace(
            load,
            num_waiting=load.num_waiting + num_outside,
            seconds_since_pass=None if passed is None else time.monotonic() - passed,
        )

    @property
    def takes_runs(self) -> bool:
        """Whether it was neither closed nor broken."""
        return self._takes_runs

    def watch(self, wake: Callable[[], object]) -> Callable[[], None]:
        """Have `wake` called whenever a pass is over or a run has ended; what is returned ends that.

        It is called in the service's thread, most often, and has to be short: `call_soon_threadsafe` of a
        loop of asyncio, for instance. It may be called for nothing. One that raises is called no more, with a warning, and
        the runs go on. Raises InvalidRequest for what cannot be called.
        """
        check_function(wake, "to be called behind each pass", "Write service.watch(function).")
        with self._changed:
            self._watchers = [*self._watchers, wake]

        return partial(self._watch_no_more, wake)

    def _watch_no_more(self, wake: Callable[[], object]) -> None:
        with self._changed:
            self._watchers = [each for each in self._watchers if each is not wake]

    @property
    def error(self) -> BaseException | None:
        """The error with which the engine failed; None if it has not."""
        return self._error

    def close(self, drain: float = 0.0) -> None:
        """Take no more runs, let those there are go on for `drain` seconds, then cancel them.

        Returns when the thread has ended, and in a fork of the process at once, where nothing is closed. A pass that lasts longer
        than a minute is left behind. InvalidRequest for a
        `drain` that is no number of seconds, and then nothing is closed.
        """
        wait = lock_wait(seconds_of("drain", drain))
        # In a fork the thread is not there, and a lock may be held for good.
        if Here.number != self._process:
            atexit.unregister(self.close)
            return
        with self._changed:
            self._takes_runs = False
            self._changed.notify_all()
        is_own = self.is_own_thread
        if wait != 0 and not is_own:
            self._thread.join(wait)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if not is_own:
            self._thread.join(_LONGEST_PASS)
            self._end_all()
        atexit.unregister(self.close)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- in the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with self._engine.inside:
                self._has_begun.set()
                while self._wait_for_runs():
                    self._make_passes()
                    self._look(math.inf)
        except BaseException as error:
            with self._changed:
                self._error = error
        finally:
            self._end_all()
            self._has_begun.set()

    def _make_passes(self) -> None:
        """Until no run is left. Its own frame, for the runs of the newest pass are not held while there is none."""
        with closing(run_passes(self._engine, self._take, self.max_live)) as passes:
            for each in passes:
                self._hand_over(each)

    def _wait_for_runs(self) -> bool:
        """Sleep until there is a run; False when there will be no more."""
        if not self._has_come(_IDLE):
            collect_while_idle()
            self._has_come(None)
        with self._changed:
            return bool(self._waiting) and not self._is_closing

    def _has_come(self, seconds: float | None) -> bool:
        """Whether there is a run within so many seconds, or there will be no more."""
        with self._changed:
            return self._changed.wait_for(
                lambda: bool(self._waiting) or not self._takes_runs, seconds
            )

    def _take(self) -> tuple[Handle, Run] | None:
        """The next run that waits; it is live from now on."""
        while True:
            with self._changed:
                if not self._waiting or self._is_closing:
                    return None
                handle, strategy = self._waiting.popitem(last=False)
                self._live[handle] = None
            try:
                return handle, self._engine.submit(strategy, lifecycle=handle.lifecycle)
            except InvalidRequest as error:  # given twice, it has begun since it was looked at
                self._end(handle, [], error)

    def _hand_over(self, passed: Pass[Handle]) -> None:
        """Between two passes: cancel what is to be cancelled, publish what has happened."""
        now = time.monotonic()
        if passed.seconds:
            self._passed_at = now
            self._num_passes += 1
        self._publish_all(passed.runs, now)
        self._look(now)
        self._wake_watchers()

    def _publish_all(self, runs: Sequence[tuple[Handle, Run]], now: float) -> None:
        self._end_waiting(now)
        with self._changed:
            stops, self._stops = self._stops, {}
        for handle, run in runs:
            handle._begin(run)
            reason = stops.get(handle)
            if handle.ends_at <= now:
                reason = _too_late(handle)
            if self._is_closing:
                reason = self._stopped()
            if reason is not None and not run.done:
                self._engine.cancel(run)
                self._end(handle, run.take_events(), reason)
            elif run.done:
                self._end(handle, *_ended(run))
            else:
                handle._publish(run.take_events())

    def _look(self, now: float) -> None:
        """Note the load, now and then."""
        if now - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = -math.inf if now == math.inf else now
        engine = self._engine
        counts = {state: engine.num_runs(state) for state in RunState}
        pool = engine.pool
        self._load = Load(
            num_running=counts[RunState.RUNNING],
            num_waiting=counts[RunState.WAITING] + counts[RunState.BLOCKED],
            num_preempted=counts[RunState.PREEMPTED],
            num_preemptions=engine.num_preemptions,
            num_pages=pool.num_pages,
            num_pages_in_use=pool.num_pages - pool.num_free_pages,
            num_passes=self._num_passes,
            usage=engine.usage,
            shelf=engine.shelf_counts,
            passes=engine.pass_counts,
        )

    def _wake_watchers(self) -> None:
        for wake in self._watchers:
            try:
                wake()
            except RuntimeError:  # that loop is closed
                continue
            except Exception as error:  # a watcher is anybody's program, and the runs are others'
                self._watch_no_more(wake)
                with suppress(Warning):  # where a warning is an error, it would be the runs'
                    warnings.warn(
                        f"a watcher of a service raised {error!r}, and is called no more",
                        stacklevel=2,
                    )

    def _end_waiting(self, now: float) -> None:
        """End the waiting runs whose deadline has come."""
        with self._changed:
            if now < self._soonest:
                return
            late = [handle for handle in self._waiting if handle.ends_at <= now]
            for handle in late:
                del self._waiting[handle]
            self._soonest = min((handle.ends_at for handle in self._waiting), default=math.inf)
        for handle in late:
            handle._publish((), _too_late(handle))

    def _end(self, handle: Handle, events: list[Event], outcome: Answer | Exception) -> None:
        with self._changed:
            self._live.pop(handle, None)
            self._stops.pop(handle, None)
        handle._publish(events, outcome)

    # -- in any thread ---------------------------------------------------------------------------

    def _stop(self, handle: Handle, reason: ManyhandsError) -> None:
        """End a run: a waiting one now, a live one before its next pass."""
        with self._changed:
            if self._waiting.pop(handle, None) is None:
                if handle in self._live:
                    self._stops[handle] = reason
                return
        handle._publish((), reason)
        self._wake_watchers()

    def _end_all(self) -> None:
        """Whatever has not ended ends now: no pass will be made for it."""
        with self._changed:
            self._takes_runs = False
            left = [*self._live, *self._waiting]
            self._live.clear()
            self._waiting.clear()
        for handle in left:
            handle._publish((), self._stopped())
        self._wake_watchers()

    def _stopped(self) -> ServiceStopped:
        """Why there is no service: an error of its own for each handle."""
        if self._error is None:
            return ServiceStopped("the service was closed, and runs have ended with it")
        kind = type(self._error).__name__
        stopped = ServiceStopped(f"the service is broken: its engine raised {kind}: {self._error}")
        stopped.__cause__ = self._error
        return stopped


def _seconds_to_end(deadline: Any) -> float:
    """The deadline of a run, which can be added to a clock's seconds. Raises InvalidRequest for none."""
    expected = "seconds, more than 0"
    seconds = seconds_of("deadline", deadline, expected=expected)
    if not seconds > 0:
        raise InvalidRequest(
            f"deadline is {as_found(deadline)}; expected {expected}",
            hint="Leave it out for a run without one.",
        )
    return seconds


def _ended(run: Run) -> tuple[list[Event], Answer | Exception]:
    """The last events of a run and its end; what it has cost comes last, if it has an answer."""
    events, end = run.take_events(), run.end
    if isinstance(end, Answer):
        events.append(UsageCounted(run.usage.forward_passes, run.usage))
    return events, end


def _too_late(handle: Handle) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the run did not end within {handle.deadline:g} s",
        hint="Give it more time, or a smaller budget.",
    )
