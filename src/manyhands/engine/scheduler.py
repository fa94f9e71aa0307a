"""Many strategies in one forward pass (continuous batching).

Each live run waits for the tokens of one step. A pass gathers the rows of all of them, runs the model
once and hands every run its own tokens back. Runs know nothing of each other: what one of them is
sent is what it would be sent alone, and what goes wrong in one ends that one.

Every run is in the queue of its state (`engine/run.py`):

    WAITING    first come, first admitted
    RUNNING    takes turns (`engine/filling.py`): a run that did not fit in a pass is at the front of the next
    BLOCKED    admitted, and asks for memory again: looked at before each pass
    PREEMPTED  the oldest comes back first (`engine/preemption.py`)

A run that reserves memory is admitted when its reservation fits beside those of the runs before it, or
a little beyond, as a preemptible one: reservations are upper bounds, and most runs end before they
reach theirs. Until then it waits, in order. One that could never fit is told so at once. A run that
asks again, for no more than it has, goes on before the next pass: it has only waited for others.

An interrupt may strike anywhere. A pass whose feeds have joined their blocks has left its tokens in
`PagePool.chosen` before, and the next step tells the runs what they were not told: nothing is fed twice.
What a run says of itself (its state, its age, its past, what it reserved) is decided by one store each;
queues and ledgers only sum it up, and the step after an interrupt makes them anew.

A pass costs the host what its own rows cost, and the blocked runs one question each: a queue is never
walked from end to end, and sums over all runs are kept (`tests/engine/test_scheduler_cost.py`).
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import CodeType

from manyhands.cache.block import Block
from manyhands.cache.chunks import without
from manyhands.cache.logprobs import part_of
from manyhands.cache.pages import PagePool
from manyhands.cache.sheets import ShelfCounts
from manyhands.cache.step import Step
from manyhands.cache.usage import Usage
from manyhands.engine.filling import Filling, Ready, num_tokens_of
from manyhands.engine.lookahead import Expected, Lookahead, those_that_write
from manyhands.engine.one_thread import OneThread
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.preemption import Preemption, Rebuild
from manyhands.engine.run import Run, RunState, new_queues
from manyhands.errors import InvalidRequest, ManyhandsError, OutOfMemory, RanksFailed, counted
from manyhands.strategies.base import Reserve, Strategy
from manyhands.strategies.events import Admitted

__all__ = ["Run", "RunState", "Scheduler"]

# Of a run: its request and what of it was fed, the passes before this one, the tokens of this one, and what
# the run has used with it.
_Untold = tuple[Run, Step, Step, int, tuple[int, ...], Usage]
# A pass is begun ahead while so much of the last ones went on as expected, about so many of them; and taken up
# if so much of it was asked for. Where rows are fed in vain, their runs wait for one pass.
_STEADY, _PASSES_REMEMBERED, _WORTH_IT = 0.75, 16, 0.5


class Scheduler:
    """Drives runs. `predict` runs the model on a step and returns one token per row.

    It must change nothing if it raises: the steps of the other runs are then asked for again. Only an
    interrupt may be raised behind a pass that happened, if the tokens stand in `pool.chosen`.
    `filling` chooses what of the runs' steps a pass is fed.
    `usage_of_each` says what the steps of the newest pass have cost, for the runs' own accounts.
    `rebuild`, `overcommit` and `reserved_stay`: see `engine/preemption.py`. Without `rebuild` no run is preemptible.
    """

    def __init__(
        self,
        predict: Callable[[Step], tuple[int, ...]],
        pool: PagePool,
        filling: Filling,
        usage_of_each: Callable[[Sequence[Step]], Sequence[Usage]] | None = None,
        *,
        rebuild: Rebuild | None = None,
        overcommit: float = 1.0,
        reserved_stay: bool = False,
        is_known: Callable[[Step], bool] | None = None,
        lookahead: Lookahead | None = None,
        check: Callable[[Step], None] | None = None,
        is_fetching: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_known`: whether `predict` answers a step without a pass (`engine/speculation.py`); None: it never does.
        `lookahead`: `predict` asks for the `expected` steps of the next pass and begins it; None: it does not.
        `check`: raises for a step that cannot be fed whole, before its first part is; None: `predict` alone says so.
        `is_fetching`: whether runs wait for blocks that no pass writes (`engine/shelving.py`), and so are not at an end without one.
        """
        self.inside = OneThread()
        self.lookahead = lookahead
        # Runs of the pass that was begun; and how much of passes goes on in the next one as expected.
        self._expected: list[weakref.ref[Run]] = []
        self._steadiness = 1.0
        self._rows_told = self._rows_going_on = 0
        self.predict = predict
        self.is_known = is_known
        self.check = check
        self.is_fetching = is_fetching
        self.pool = pool
        self.filling = filling
        self.usage_of_each = usage_of_each
        self._num_passes = 0
        queues = new_queues()
        self.preemption = Preemption(
            pool, rebuild, overcommit, queues, reserved_stay=reserved_stay, is_fetching=is_fetching
        )
        self._waiting = queues[RunState.WAITING]
        self._running = queues[RunState.RUNNING]
        self._blocked = queues[RunState.BLOCKED]
        self._preempted = queues[RunState.PREEMPTED]
        self._done = queues[RunState.DONE]  # until they are swept
        self._queues = queues
        self._asked: Sequence[Ready] | None = None  # by the pass that goes on
        self._untold: deque[_Untold] = deque()  # chosen, and not sent yet
        self._cancelled: list[Run] = []  # while they were fed: until the pass is over
        # Steps that were told, held until the device works: to let go of all views of a team takes time.
        self._told: list[Step] = []
        self._is_changing = False  # queues and ledgers; found at the start of a step: interrupted

    @property
    def runs(self) -> list[Run]:
        """The runs that have not ended."""
        queues = chain(self._waiting, self._running, self._blocked, self._preempted)
        return [run for run in dict.fromkeys(queues) if not run.done]

    def num_runs(self, state: RunState) -> int:
        """How many runs are in this state."""
        return len(self._queues[state])

    @property
    def num_preemptions(self) -> int:
        """How often a run was preempted so far."""
        return self.preemption.num_preemptions

    @property
    def usage(self) -> Usage:
        """The work computed so far: none that a scheduler alone knows of."""
        return Usage()

    @property
    def pass_counts(self) -> PassCounts:
        """Zeros: a scheduler alone makes no pass itself."""
        return PassCounts()

    @property
    def shelf_counts(self) -> ShelfCounts:
        """Zeros: a scheduler alone has no cache on disk."""
        return ShelfCounts()

    def submit(self, strategy: Strategy, *, lifecycle: bool = False) -> Run:
        """Begin a strategy; it takes part from the next pass on. `lifecycle`: see Run.

        Interrupted, it is over: nothing else would end a run that was never handed out.
        """
        was_changing, self._is_changing = self._is_changing, True
        run: Run | None = None
        try:
            run = Run(strategy, self._queues, lifecycle=lifecycle)
            run.resume()
            self._is_changing = was_changing
            return run
        except BaseException:
            if run is not None:
                run.cancel()
            raise

    def step(self) -> bool:
        """One forward pass for all runs that wait for one; False when no run is left."""
        self.check_outside()
        self.settle()
        if self._is_changing:
            self._recount()
        self._is_changing = True
        self._tell()  # runs that an interrupt kept from their tokens
        self._cancel_put_off()
        self._admit()
        self.preemption.bring_back()
        self._answer(self._going_on() or self._gather())
        self._cancel_put_off()
        self._sweep()
        self._is_changing = False
        return bool(self._running or self._waiting or self._blocked or self._preempted)

    def check_outside(self) -> None:
        """Raise InvalidRequest where a run's own program asks for a step: the engine is in the midst of one.

        That may be its strategy, or a function that it has given along (`Reserve.renew`, `Step.meanwhile`).
        """
        if self._is_changing and self._is_called_by(*_RUN_STRATEGIES):
            raise _called_from_inside()

    def check_between_passes(self) -> None:
        """Raise InvalidRequest where a run's own program asks for a single pass: the engine makes one at any time but in the midst of another."""
        if self._asked is not None and self._is_called_by(Scheduler.step.__code__):
            raise _called_from_inside()

    def _is_put_off(self, run: Run) -> bool:
        """Whether a cancellation waits for the end of the pass, or goes on already. Raises InvalidRequest if it cannot be."""
        if run.done:
            return self._is_called_by(*_RUN_STRATEGIES)
        is_computing = run.request is None
        if is_computing and self._is_called_by(*_RUN_STRATEGIES):
            raise InvalidRequest(
                "a strategy has cancelled its own run",
                hint="Let it return an Answer, or raise what is wrong.",
            )
        is_fed = any(run is other for other, _ in self._asked or ())
        if is_fed and self._is_called_by(Scheduler.step.__code__):
            self._cancelled.append(run)
            return True
        return False

    def _is_called_by(self, *methods: CodeType) -> bool:
        """Whether the check was reached by way of a call of this scheduler's, besides the one that it stands in.

        The frames that are under way say so: what an interrupt has left behind does not, however it struck.
        """
        frame = sys._getframe(2).f_back
        while frame is not None:
            if frame.f_code in methods and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def has_made(self, run: object) -> bool:
        """Whether this is a run that was submitted here."""
        return isinstance(run, Run) and run.is_in(self._queues)

    def cancel(self, run: Run) -> None:
        """End a run before its time; the tokens of the others do not change.

        A run whose rows are just being fed is cancelled once that pass is over. Raises InvalidRequest where a strategy cancels
        its own run.
        """
        if self._is_put_off(run):
            return
        was_changing, self._is_changing = self._is_changing, True
        run.cancel()
        # Both hold blocks.
        self._untold = deque(each for each in self._untold if not each[0].done)
        self._told = []
        if not was_changing:  # else the step that goes on sweeps, or the next one counts anew
            self._sweep()
        self._is_changing = was_changing

    def _cancel_put_off(self) -> None:
        while self._cancelled:
            self.cancel(self._cancelled[-1])
            self._cancelled.pop()

    def _gather(self) -> list[Ready]:
        """Running ones up to the size of a pass. The rest keeps its place at the front.

        Runs whose tokens are known already go on by themselves, until they need a pass like the others.
        """
        if self.is_known is not None and (known := self._known(self.is_known)):
            return known
        steps = ((run, run.request) for run in self._running if isinstance(run.request, Step))
        ready, is_full = self.filling.fitting(steps, self._running, self._num_passes)
        self._take_part(ready)
        for run, fed in ready if is_full else ():
            if fed is run.request:  # else its turn is not over: prompts in turns would all end last
                self._running.move_to_end(run)
        return ready

    def _take_part(self, ready: Iterable[Ready]) -> None:
        """Runs that were never in a pass are admitted."""
        for run, _ in ready:
            if run.age is None:
                run.happened(Admitted)
                self.preemption.admit(run)

    def _going_on(self) -> list[Ready]:
        """The runs whose next step was expected, and what of it the pass that was begun feeds.

        None of them, where too few are left: then all take part in a pass of their own.
        """
        lookahead, expected, self._expected = self.lookahead, self._expected, []
        if lookahead is None or not lookahead.num_rows:
            return []
        ready: list[Ready] = []
        num_rows = 0
        for reference in expected:
            run = reference()
            if run is None or run.state is not RunState.RUNNING or (step := run.step) is None:
                continue
            if (fed := lookahead.fed_of(step)) is not None:
                ready.append((run, fed))
                num_rows += len(fed.rows)
        if num_rows < _WORTH_IT * lookahead.num_rows:
            lookahead.forget()
            return []
        return ready

    def let_go(self) -> None:
        """Let go of the steps that were told, before the next pass is planned: with them blocks may go, and their pages."""
        self._told = []

    def prepare(self) -> None:
        """Let the runs that take part in the pass that goes on do ahead what needs no tokens of it."""
        for run, _ in self._asked or ():
            run.prepare()

    @property
    def is_one_asked(self) -> bool:
        """Whether one run alone takes part in the pass that goes on."""
        return self._asked is not None and len(self._asked) == 1

    def lengths_before(self) -> dict[Block, int]:
        """Of all blocks to which a part of a step was fed, how long they were before."""
        runs = chain(
            self._running, self._preempted
        )  # blocks that others read have stayed in memory
        return {block: size for run in runs for block, size in run.lengths.items()}

    def expected(self, *, of_one: bool = False) -> list[Expected]:
        """The steps of the next pass, as far as they are known or likely while this one is made.

        None are expected where many runs have turned elsewhere lately, or more wait than fit into a pass. Of a run that
        is alone, only `of_one`, since if it turns elsewhere all is in vain.
        """
        self._expected = []
        if self._asked is None:
            return []
        if len(self._asked) < 2:
            if not of_one or len(self._running) != len(self._asked):
                return []
        elif self._steadiness < _STEADY:
            return []
        next_steps: dict[Run, Expected | None] = {}
        first = 0
        for run, fed in self._asked:
            next_steps[run] = _next_of(run, fed, first)
            first += len(fed.rows)
        ready, is_full = self.filling.fitting(
            self._expected_of(next_steps), self._running, self._num_passes
        )
        if is_full:
            return []
        self._take_part(ready)
        self._expected = [weakref.ref(run) for run, _ in ready]
        found = [next_steps.get(run) for run, _ in ready]
        return [
            known if known is not None and known.step is step else Expected.asked(step)
            for known, (_, step) in zip(found, ready, strict=True)
        ]

    def _expected_of(self, next_steps: Mapping[Run, Expected | None]) -> Iterator[Ready]:
        """The next steps of these runs, as far as they are known, and the steps of all others, in their turns."""
        for run in self._running:
            if run in next_steps:
                if (known := next_steps[run]) is not None:
                    yield run, known.step
            elif isinstance(run.request, Step):
                yield run, run.request

    def _known(self, is_known: Callable[[Step], bool]) -> list[Ready]:
        return [
            (run, run.request)
            for run in self._running
            if isinstance(run.request, Step) and is_known(run.request)
        ]

    def _answer(self, ready: Sequence[Ready]) -> None:
        """One pass for them. Where memory does not suffice, the youngest preemptible run leaves; if there is none, one that holds
        more than it has reserved ends.
        """
        told: list[Run] = []  # that they hold more
        while ready:
            try:
                self._pass(ready)
            except RanksFailed:
                raise  # not one run's own error: no run can have another pass
            except ManyhandsError as error:
                problem = error.with_traceback(None)  # its way through the engine would hold blocks
                self._asked = None
            else:
                self._tell()
                return
            if not isinstance(problem, OutOfMemory) or self._is_one_too_large(ready):
                break  # pages of others would not help
            if not self._make_room():
                beyond = self._beyond_their_bounds(ready, told)
                if not beyond:
                    break
                run, num_held = max(beyond, key=lambda each: each[1])
                told.append(run)
                ready = [each for each in ready if each[0] is not run]
                run.fail_step(_beyond_its_bound(run, num_held, self.pool), self.pool)
                self._sweep()
            ready = [each for each in ready if each[0].state is RunState.RUNNING]
        if len(ready) == 1:
            ready[0][0].fail_step(problem, self.pool)
        else:  # find out whose it is; nothing has changed yet
            for each in ready:
                self._answer([each] if each[0].state is RunState.RUNNING else [])

    def _beyond_their_bounds(
        self, ready: Sequence[Ready], told: Sequence[Run]
    ) -> list[tuple[Run, int]]:
        """Runs but those `told` that hold more tokens than they have reserved, and how many.

        None, where none of `ready` keeps to its own bound: a run that does is not to end for one that does not.
        """
        size = self.pool.page_size
        if not any(
            self._num_held(step) + num_tokens_of(step) <= run.reserved_pages * size
            for run, step in ready
        ):
            return []
        others = [run for run in self._running if run not in told]
        held = [(run, self._num_held(run.step)) for run in others if run.step is not None]
        return [(run, num) for run, num in held if num > run.reserved_pages * size]

    def _num_held(self, step: Step) -> int:
        """Tokens of the blocks that a step reads or writes; what a prefix tree answers for is not counted."""
        blocks = {block for row in step.rows for block in row.view.blocks}
        return sum(block.num_tokens for block in blocks if not self.pool.is_kept(block))

    def _is_one_too_large(self, ready: Sequence[Ready]) -> bool:
        """Whether the whole step of one of these needs more than all of the memory."""
        size, most = self.pool.page_size, self.pool.num_pages
        return any(run.step and run.step.num_pages_at_least(size) > most for run, _ in ready)

    def _make_room(self) -> bool:
        """Preempt a run, or let go of what was told. No: there is none."""
        self._sweep()  # of those answered one by one, some may have ended
        if self._told:  # with them blocks may go
            self._told = []
            return True
        return self.preemption.preempt()

    def _pass(self, ready: Sequence[Ready]) -> None:
        """One forward pass over the rows of all of them; their tokens wait to be told."""
        if self.check is not None:
            for run, fed in ready:
                if run.step is not None and run.step is not fed and not run.lengths:
                    self.check(run.step)
        step = ready[0][1]
        if len(ready) > 1:
            step = Step([row for _, step in ready for row in step.rows])
        self.pool.chosen = None
        self._num_passes += 1
        self._asked = ready
        self._take(self.predict(step))

    def settle(self) -> None:
        """Take the tokens of a pass that an interrupt has struck, if its feeds were kept."""
        if self._asked is not None:
            self.pool.take_back()  # does nothing to feeds that were kept
            if self.pool.chosen is not None:
                self._take(self.pool.chosen)
            self._asked = None

    def _take(self, tokens: tuple[int, ...]) -> None:
        """Divide the tokens of the pass among its runs: all of them, in one store, or none."""
        assert self._asked is not None, "only what was asked for is answered"
        ready = self._asked
        costs: Sequence[Usage | None] = [None] * len(ready)
        if self.usage_of_each is not None:
            costs = self.usage_of_each([step for _, step in ready])
        untold: list[_Untold] = []
        start = 0
        for (run, step), cost in zip(ready, costs, strict=True):
            first, start = start, start + len(step.rows)
            if run.done:  # cancelled behind an interrupt, as `run_passes` does
                continue
            usage = run.usage if cost is None else run.usage + cost
            assert isinstance(run.request, Step), "it has not been told"
            told = part_of(tokens, first, start)
            untold.append((run, run.request, step, run.num_passes, told, usage))
        self._untold.extend(untold)
        self._asked = None

    def _tell(self) -> None:
        """Send the runs the tokens that were chosen for them: each once, whatever strikes in between."""
        while self._untold:
            run, asked, fed, num_passes, tokens, usage = self._untold[0]
            if fed is asked:
                if run.num_passes == num_passes and not run.done:  # else it was told, or cancelled
                    run.answer(tokens, usage)
                    if self.lookahead is not None:
                        self._rows_told += len(asked.rows)
                        self._rows_going_on += len(asked.rows) * _goes_on(run.step, asked, tokens)
            elif run.request is asked:
                run.fed(fed, usage)
            self._untold.popleft()
            if self.lookahead is not None and not run.done:  # else nothing calls `let_go`
                self._told += asked, fed
        if self._rows_told:
            share = self._rows_going_on / self._rows_told
            self._steadiness += (share - self._steadiness) / _PASSES_REMEMBERED
            self._rows_told = self._rows_going_on = 0

    def _admit(self) -> None:
        """Grant reservations that fit: to blocked runs, and if all of these can go on, to new ones."""
        # One that goes on may cancel another.
        blocked = (run for run in list(self._blocked) if run.asked is not None)
        stuck = [run for run in blocked if not self._offer(run)]
        refused = None  # a run that was told no may ask again: in the next pass
        while not stuck and self._waiting and (run := next(iter(self._waiting))) is not refused:
            refused = run
            if not self._offer(run):
                stuck.append(run)
        if stuck and not self._running and not self._preempted and not self.is_fetching():
            asked = stuck[0].asks()
            if asked is not None:
                taken = self.preemption.num_pages_promised
                stuck[0].fail(_deadlock(asked, self._pages(asked), taken, self.pool))

    def _offer(self, run: Run) -> bool:
        """Answer a reservation: grant it, or say that it can never be; False if the run must wait."""
        assert run.asked is not None, "only a run that asks is offered something"
        asked = run.asks()
        if asked is None:
            return True
        pages = self._pages(asked)
        if pages > self.pool.num_pages:
            run.fail(_never_fits(asked, pages, self.pool))
        elif (run.reserved_pages and pages <= run.reserved_pages) or self.preemption.may_have(
            run, pages, self._shared_pages(asked)
        ):
            self._grant(run, pages)
        else:
            return False
        return True

    def _grant(self, run: Run, pages: int) -> None:
        """Give a run what it asks for. If it gives some of that back at once, it need not wait."""
        if run.age is None:
            run.happened(Admitted)
        while True:
            self.preemption.reserve(run, pages)
            run.resume()
            asked = run.asks()
            if asked is None or (pages := self._pages(asked)) >= run.reserved_pages:
                break
        if run.age is None and not run.done:
            self.preemption.admit(run)
            run.enter_as_requested()

    def _pages(self, asked: Reserve) -> int:
        return asked.num_tokens // self.pool.page_size + asked.num_blocks

    def _shared_pages(self, asked: Reserve) -> int:
        """How many of them the prefix tree would answer for."""
        if not asked.num_shared_tokens:
            return 0
        return asked.num_shared_tokens // self.pool.page_size + asked.num_blocks

    def _sweep(self) -> None:
        """Take the runs that have ended out of all accounts."""
        if self._done:
            self._told = []
            for run in self._done:
                self.preemption.forget(run)
            self._done.clear()
            self.preemption.promote()

    def _recount(self) -> None:
        """Queues and ledgers of an interrupted change, made anew from what each run says of itself."""
        runs = list(dict.fromkeys(chain(*self._queues.values())))
        for run in runs:
            run.put_right()
        self._told = []
        self._done.clear()
        self.preemption.recount(run for run in runs if not run.done)
        self.preemption.promote()


_RUN_STRATEGIES = tuple(
    method.__code__ for method in (Scheduler.step, Scheduler.submit, Scheduler.cancel)
)


def _next_of(run: Run, fed: Step, first: int) -> Expected | None:
    """The step of a run of which `fed` is being fed, as rows `first`, ... of the pass; None: it is not known."""
    for row in fed.rows:
        if row.targets or row.draft:
            return None
    step = run.step
    if step is None or fed is step:
        return Expected.going_on(fed, first)
    return Expected.asked(without(step, fed))


def _goes_on(step: Step | None, before: Step, tokens: tuple[int, ...]) -> bool:
    """Whether these are the rows of the step before that write, and each is fed the token that was chosen for it."""
    if step is None:
        return False
    going_on = those_that_write(before)
    if len(step.rows) != len(going_on):
        return False
    for row, number in zip(step.rows, going_on, strict=True):
        if row.view is not before.rows[number].view or row.feed != (tokens[number],):
            return False
    return True


def _called_from_inside() -> InvalidRequest:
    return InvalidRequest(
        "a strategy has called the engine that runs it, and the engine is in the midst of a step",
        hint="Let it `yield from` the other strategy, whose answer that is; its rows then share the passes.",
    )


def _never_fits(asked: Reserve, pages: int, pool: PagePool) -> OutOfMemory:
    return OutOfMemory(
        f"the run may need {_in_pages(asked, pages, pool)}, "
        f"and the memory holds {counted(pool.num_slots, 'token')} in {counted(pool.num_pages, 'page')}",
        hint="Lower the budget or the number of workers, or give the engine "
        f"{pages * pool.page_size} memory_tokens.",
    )


def _beyond_its_bound(run: Run, num_held: int, pool: PagePool) -> OutOfMemory:
    bound = run.reserved_pages * pool.page_size
    return OutOfMemory(
        f"the run holds {num_held} tokens and has reserved {bound} with its blocks, and there is no memory left for one "
        "that keeps to its reservation",
        hint="Let the strategy yield Reserve with all the tokens that it may hold at a time, before its first step.",
    )


def _deadlock(asked: Reserve, pages: int, taken: int, pool: PagePool) -> OutOfMemory:
    return OutOfMemory(
        f"the run asks for {_in_pages(asked, pages, pool)}, {taken} of "
        f"{pool.num_pages} pages are promised already, and every other run waits for memory too",
        hint="Let a strategy reserve once, at its beginning, or give the engine more memory_tokens.",
    )


def _in_pages(asked: Reserve, pages: int, pool: PagePool) -> str:
    """A reservation as it is compared with the memory: a block may leave most of its last page empty."""
    return f"{counted(pages, 'page')} of {counted(pool.page_size, 'token')} ({counted(asked.num_tokens, 'token')} in {counted(asked.num_blocks, 'block')})"
