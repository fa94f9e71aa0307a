"""An interrupt at any line of planning, moving and feeding: the next pass gives what it would have given.

The lines that an undisturbed story runs through are noted, and an interrupt is raised at them (`tests/strikes.py`). A step
that was interrupted is asked for again, as a scheduler asks, and the story goes on. The executor is a double
without a network: a slot of its memory holds a token and the offset that its key was rotated by, and its
"logits" are the tokens that a row reads, in order. So what is compared is exact.

The same for whole runs, at any line of the scheduler too: driven on by `step`, they are told the tokens that
an undisturbed engine tells them, and nothing is fed twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence, Set
from dataclasses import replace
from types import CodeType
from typing import Any

import numpy as np
import pytest

from manyhands.cache import chunks, fronts, journal, lockstep, pages, planner, prefixes, routes
from manyhands.cache.block import Block
from manyhands.cache.places import Move
from manyhands.cache.plan import Plan
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine import filling, lookahead, preemption, run, scheduler
from manyhands.engine.engine import Engine
from manyhands.engine.executor import ModelFacts
from manyhands.engine.lookahead import KNOWN, Ahead
from manyhands.engine.past import Past
from manyhands.engine.run import Run, RunState
from manyhands.engine.scheduler import Scheduler
from manyhands.errors import OutOfMemory
from manyhands.strategies.base import Answer, Reserve, Strategy
from tests.covers import is_every_case
from tests.strikes import Place, Watch, every_time, first_and_last, strike_all

Read = tuple[int, ...]  # tokens, in the order of their positions


class Ledger:
    """An executor that remembers which token was put where."""

    about = None
    sheets = None
    plans_ahead = False
    tokens_at_once = staticmethod(int)
    _begun: Any = None
    facts = ModelFacts(
        name="ledger",
        vocab_size=100,
        max_positions=500,
        num_layers=0,
        eos_ids=(),
        device="cpu",
        dtype="int64",
        weight_bytes=0,
        token_bytes=1,
        num_pages=100,
        page_size=4,
        backend="none",
        backend_reason="a double",
        fused="",
        about_memory="",
    )

    def __init__(self) -> None:
        self.memory: dict[int, tuple[int, int]] = {}  # slot: token, offset of its key

    def move(self, moves: Sequence[Move]) -> None:
        pairs = (
            (move, *each)
            for move in reversed(moves)  # all at once, so in any order
            for each in zip(move.sources.tolist(), move.targets.tolist(), strict=True)
        )
        for move, source, target in pairs:
            token, offset = self.memory[source]
            self.memory[target] = token, offset + move.shift

    def run(
        self,
        plan: Plan,
        choices: Sequence[Choice] = (),
        *,
        lookahead: bool = False,
        weighing: None = None,
        targets: None = None,
        ahead: Ahead | None = None,
    ) -> tuple[int, ...]:
        self._begun = None
        read = self.logits(plan)
        return self._chosen(read, ahead) if choices else ()

    def go_on(
        self,
        rows: Sequence[int],
        choices: Sequence[Choice],
        *,
        lookahead: bool = False,
        weighing: None = None,
        ahead: Ahead | None = None,
    ) -> tuple[int, ...]:
        begun, self._begun = self._begun, None
        return self._chosen([begun[row] for row in rows], ahead)

    @property
    def has_begun(self) -> bool:
        return self._begun is not None

    def _chosen(self, read: Sequence[Read], ahead: Ahead | None) -> tuple[int, ...]:
        tokens = [sum(n * token for n, token in enumerate(row, 1)) % 100 for row in read]
        begun = None if ahead is None else ahead()
        if begun is not None:
            fed = zip(begun.plan.token_ids.tolist(), begun.sources.tolist(), strict=True)
            ids = [token if source == KNOWN else tokens[source] for token, source in fed]
            self._begun = self.logits(replace(begun.plan, token_ids=np.array(ids)))
        return tuple(tokens)

    def logits(self, plan: Plan) -> Any:
        fed = zip(plan.token_ids.tolist(), plan.offsets.tolist(), strict=True)
        self.memory.update(zip(plan.slots.tolist(), fed, strict=True))
        reads, size = plan.reads, plan.page_size
        ends = plan.positions[plan.last].tolist()
        found: list[dict[int, int]] = [{} for _ in range(plan.num_rows)]
        every = (reads.row, reads.base, reads.low, reads.high)
        for strip, table in enumerate(reads.pages):
            its = slice(reads.strip_indptr[strip], reads.strip_indptr[strip + 1])
            slots = (np.asarray(table)[:, None] * size + np.arange(size)).ravel().tolist()
            for row, base, low, high in zip(*(each[its].tolist() for each in every), strict=True):
                its_row, end = found[row], ends[row]
                for j in range(low, high):
                    token, offset = self.memory[slots[j]]
                    assert offset == j, "a key is rotated by another offset than its index"
                    if base + j <= end:
                        its_row[base + j] = token
        return [tuple(row[at] for at in range(len(row))) for row in found]


WATCHED_FILES = {
    str(module.__file__) for module in (chunks, fronts, journal, lockstep, pages, planner, routes)
}
WATCHED_CODE = {
    function.__code__
    for function in (
        Engine._feed,
        Engine._plan,
        Engine._fed,
        Ledger.move,
    )
}


def watch_at(
    *places: Place, code: Set[CodeType] = WATCHED_CODE, files: Set[str] = WATCHED_FILES
) -> Watch:
    return Watch(lambda each: each in code or each.co_filename in files, places)


def story(
    *places: Place, interrupted: Callable[[Engine], object] = lambda engine: None
) -> tuple[list[list[Read]], tuple[int, int], Watch]:
    """A team's steps: chunks, compaction, plain decoding over the end of a page, compaction again.

    What every row of every step read, what the pool holds at the end, and the lines that were run.
    """
    ledger: Any = Ledger()
    engine = Engine(ledger, max_tokens_per_pass=24)
    prompt, first, second, one, other = (Block(name) for name in ("p", "1", "2", "a", "b"))
    engine.forward(Step([Row(View([b]), (3, 1, 4, 1, 5)) for b in (prompt, first, second)]))
    for block in (prompt, first, second):
        block.freeze()
    views = [View([prompt, first, second, one]), View([prompt, first, second, one, other])]
    new = Block("c")
    later = [View([prompt, first, second, one, new]), View([prompt, first, second, one, other])]
    found: list[Any] = []
    watch = watch_at(*places)
    for feeds, seen in [
        (((9,) * 40, (2, 6)), views),
        *[(((n,), (n + 1,)), views) for n in range(3, 8)],
        (((8,), (7, 7)), later),
        (((8,), (7,)), later),
    ]:
        if seen is later:
            one.freeze()
        step = Step(Row(view, feed) for view, feed in zip(seen, feeds, strict=True))
        before = [row.view.own.num_tokens for row in step.rows]
        watch.begin_step()
        try:
            with watch.watching():
                read = engine.forward(step)
        except KeyboardInterrupt:
            assert [row.view.own.num_tokens for row in step.rows] == before
            interrupted(engine)
            read = engine.forward(step)
        found.append(read)
    assert not engine.pool._moves
    strips = {engine.pool.place(b).strip for b in (prompt, first, second, one, new, other)}
    return found, (engine.pool.num_free_pages, len(strips)), watch


@pytest.fixture(scope="module")
def undisturbed() -> tuple[list[list[Read]], tuple[int, int], list[Place]]:
    """The story, and where to interrupt it: the first and the last time that each line is run."""
    read, held, watch = story()
    names = watch.names
    assert names >= {
        "plan",
        "_step_by_step",
        "_assemble",
        "follow",
        "_feed",
        "_fed",
        "make_moves",
        "take_back",
    }
    assert names >= {"in_chunks", "move"}
    assert read[0] == [(3, 1, 4, 1, 5) * 3 + (9,) * 40, (3, 1, 4, 1, 5) * 3 + (9,) * 40 + (2, 6)]
    # Behind the store that decides it, all that is left is to hand the outcome back.
    decided = (
        Engine._feed.__code__,
        max(line for *_, line in Engine._feed.__code__.co_lines() if line),
    )
    places = watch.places(first_and_last)
    return read, held, [place for place in places if (place.code, place.line) != decided]


def test_an_interrupt_at_any_line_loses_nothing(
    undisturbed: tuple[list[list[Read]], tuple[int, int], list[Place]],
    pytestconfig: pytest.Config,
) -> None:
    expected, held, everywhere = undisturbed

    def struck(places: Sequence[Place]) -> Watch:
        read, holds, watch = story(*places)
        assert (read, holds) == (expected, held), named(watch.struck)
        return watch

    strike_all(everywhere, struck, alone=is_every_case(pytestconfig))


def named(places: Sequence[Place]) -> str:
    return "; ".join(map(str, places))


def test_control_a_move_that_is_forgotten_is_noticed(
    undisturbed: tuple[list[list[Read]], tuple[int, int], list[Place]],
) -> None:
    _, _, everywhere = undisturbed
    noticed = 0
    for place in everywhere[::3]:
        try:
            story(place, interrupted=lambda engine: engine.pool._moves.clear())
        except (KeyError, AssertionError):  # nothing was put there, or another key
            noticed += 1
        if noticed > 5:
            return
    raise AssertionError(f"noticed {noticed} times")


# -- whole runs --------------------------------------------------------------------------------------


WATCHED_CODE_OF_A_STEP = {
    function.__code__
    for function in (
        Scheduler.step,
        Scheduler.settle,
        Scheduler._answer,
        Scheduler._pass,
        Scheduler._take,
        Scheduler._tell,
        Run.answer,
        Past.remember,
        Engine._predict,
        Engine._pass,
        Engine._feed,
        Engine._run,
        Engine._fed,
        Engine._usage_of_each,
        pages.PagePool.keep,
        pages.PagePool.take_back,
    )
}


def writing(
    told: list[tuple[int, ...]], prompt: int, reserve: Reserve, num_rows: int, num_steps: int = 9
) -> Strategy:
    """A strategy whose rows read each other; what it was told, as it came."""

    def strategy() -> Generator[Any, Any, Answer]:
        yield reserve
        start = Block()
        blocks = [Block() for _ in range(num_rows)]
        tokens = yield Step([Row(View([start]), tuple(range(prompt)))])
        told.append(tokens)
        start.freeze()
        views = [View([start, *blocks[n + 1 :], *blocks[: n + 1]]) for n in range(num_rows)]
        tokens *= num_rows
        for _ in range(num_steps):
            tokens = yield Step(Row(v, (t,)) for v, t in zip(views, tokens, strict=True))
            told.append(tokens)
        return Answer(text=str([block.tokens for block in blocks]))

    return strategy()


Outcome = list[tuple[list[tuple[int, ...]], str, int, int]]


def crowd(
    *places: Place,
    plans_ahead: bool = False,
    code: Set[CodeType] = WATCHED_CODE_OF_A_STEP,
    files: Set[str] = frozenset(),
    num_pages: int = 28,
    is_full: bool = False,
) -> tuple[Outcome, bool, Watch]:
    """Four runs: a prompt in chunks, several rows, and too many for the memory, so that one is preempted.

    `is_full`: all of the memory holds prompts that are kept for nobody, which go one by one.
    What each was told and fed, its passes, its tokens; whether one was preempted; the lines that were run.
    """
    ledger: Any = Ledger()
    ledger.plans_ahead = plans_ahead
    ledger.facts = replace(ledger.facts, num_pages=num_pages)
    ledger.write = lambda *_: None
    engine = Engine(ledger, max_tokens_per_pass=24, overcommit=2.0)
    engine._scheduler.preemption.rebuild = lambda past, blocks: rebuilt(engine, past)
    if is_full:
        keep_prompts(engine)
    told: list[list[tuple[int, ...]]] = [[] for _ in range(4)]
    shapes = ((30, 2), (5, 3), (13, 1), (9, 2))
    runs = [
        engine.submit(writing(told[n], prompt, Reserve(prompt + 9 * rows, rows + 1), rows))
        for n, (prompt, rows) in enumerate(shapes)
    ]
    watch = driven(engine, watch_at(*places, code=code, files=files))
    engine.pool.take_back()
    engine.prefixes.clear()
    assert engine.pool.num_free_pages == engine.pool.num_pages
    outcome = [
        (told[n], run.result().text, run.num_passes, run.usage.tokens_fed)
        for n, run in enumerate(runs)
    ]
    return outcome, any(run.num_preemptions for run in runs), watch


def keep_prompts(engine: Engine) -> None:
    """Fill the memory with prompts of two pages that no run reads."""
    size = 2 * engine.pool.page_size
    for number in range(engine.pool.num_pages // 2):
        lease = engine.prefixes.lease([(100 + number,) * size])
        assert lease is not None
        for row in lease.rows([0], size):
            engine.pool.reserve([(row.view.own, size)])
            row.view.own.tokens.extend(row.feed)
        lease.settle()
        lease.close()
    assert engine.pool.num_free_pages < 2


def driven(
    engine: Engine,
    watch: Watch,
    step: Callable[[], bool] | None = None,
    between: Callable[[], object] = lambda: None,
) -> Watch:
    """All steps of an engine that is interrupted."""
    for _ in range(300):
        watch.begin_step()
        if not insist(step or engine.step, watch):
            return watch
        between()
    raise AssertionError("it goes on for ever")


def insist(do: Callable[[], bool], watch: Watch) -> bool:
    """The outcome of `do`, which is asked for again as often as it is struck."""
    while True:
        with contextlib.suppress(KeyboardInterrupt), watch.watching():
            return do()


def rebuilt(engine: Engine, past: Past) -> None:
    """The keys of a run that comes back: the double's memory is told where they lie now."""
    ledger: Any = engine.executor
    for block in past.blocks().values():
        place = engine.pool.place(block)
        slots = engine.pool.slots(place.strip, place.offset, place.offset + block.num_tokens)
        for n, slot in enumerate(slots.tolist()):
            ledger.memory[slot] = block.tokens[n], place.offset + n


def test_runs_that_an_interrupt_struck_are_told_the_same_tokens(
    pytestconfig: pytest.Config,
) -> None:
    expected, was_preempted, watch = crowd()
    assert was_preempted
    assert {code for _, (code, _) in watch.lines} == WATCHED_CODE_OF_A_STEP

    def struck(places: Sequence[Place]) -> Watch:
        outcome, _, watch = crowd(*places)
        assert outcome == expected, named(watch.struck)
        return watch

    strike_all(watch.places(first_and_last), struck, alone=is_every_case(pytestconfig))


def test_control_without_the_tokens_of_a_kept_step_it_is_fed_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, _, watch = crowd()

    def forgetful(scheduler: Scheduler) -> None:
        scheduler._asked = None

    places = [
        place for place in watch.places(first_and_last) if place.code is Scheduler._take.__code__
    ]
    monkeypatch.setattr(Scheduler, "settle", forgetful)
    assert crowd(places[0])[0] != expected


WATCHED_CODE_OF_AN_ENDING = WATCHED_CODE_OF_A_STEP | {Engine._told.__code__}


def ended(*places: Place, plans_ahead: bool = False) -> tuple[list[str], Watch]:
    """Answers of an engine behind runs that interrupts have ended, as they do in `Engine.run_all`.

    The runs are begun anew for each place, in one engine. Up to the next strike they are told what undisturbed runs are told.
    Pages of two tokens end in the midst of five steps, as those of four do in nine: the same lines are run.
    """
    ledger: Any = Ledger()
    ledger.plans_ahead = plans_ahead
    ledger.facts = replace(ledger.facts, page_size=2)
    engine = Engine(ledger, max_tokens_per_pass=24)
    watch = watch_at(*places, code=WATCHED_CODE_OF_AN_ENDING)

    def run_all() -> tuple[list[str], list[list[tuple[int, ...]]]]:
        told: list[list[tuple[int, ...]]] = [[], []]
        shapes = zip(told, ((5, 2), (9, 1)), strict=True)
        strategies = [
            writing(its, prompt, Reserve(20, 3), rows, num_steps=5)
            for its, (prompt, rows) in shapes
        ]
        watch.begin_step()
        answers: list[str] = []
        with contextlib.suppress(KeyboardInterrupt), watch.watching():
            answers = [answer.text for answer in engine.run_all(strategies)]
        assert not engine._scheduler.runs, "it ends all of them"
        return answers, told

    begun = [run_all()[1] for _ in places]
    answers, whole = run_all()
    for each in begun:
        for its, expected in zip(each, whole, strict=True):
            assert its == expected[: len(its)]
    assert not engine._scheduler.runs
    assert engine._scheduler.preemption.num_pages_promised == 0
    assert engine.pool.num_free_pages == engine.pool.num_pages
    return answers, watch


def one_behind_the_other(places: Sequence[Place], size: int) -> list[list[Place]]:
    """Each place is in one of the lists, in a step of its own: `size` of them or one fewer, in the order of the story.

    So runs go past the place where the runs before them were struck.
    """
    count = -(-len(places) // size)
    return [
        [place._replace(step=step) for step, place in enumerate(places[start::count])]
        for start in range(count)
    ]


@pytest.mark.parametrize("plans_ahead", [False, True])
def test_runs_that_an_interrupt_has_ended_leave_the_engine_to_others(
    plans_ahead: bool, pytestconfig: pytest.Config
) -> None:
    """Tokens that were kept for them are told to nobody. They were asked for again and again, and every later step failed."""
    expected, watch = ended(plans_ahead=plans_ahead)
    assert watch.names >= {"keep", "_take", "_told", "_usage_of_each"}
    size = 1 if is_every_case(pytestconfig) else 12
    missed = watch.places(first_and_last)
    while missed:
        tellings, missed, size = one_behind_the_other(missed, size), [], 1
        for places in tellings:
            answers, watch = ended(*places, plans_ahead=plans_ahead)
            assert watch.struck, f"not struck: {places[0]}"
            assert answers == expected, named(watch.struck)
            missed += [place for place in places if place not in watch.struck]


def test_feeds_whose_taking_back_was_struck_too_are_fed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their tokens were chosen already. Told to the runs, they would follow on feeds that are gone."""

    def story(*, is_struck: bool) -> list[list[tuple[int, ...]]]:
        ledger: Any = Ledger()
        engine = Engine(ledger, max_tokens_per_pass=24)
        told: list[list[tuple[int, ...]]] = [[], []]
        for its, num_rows in zip(told, (2, 1), strict=True):
            engine.submit(writing(its, 5, Reserve(20, 3), num_rows, num_steps=5))
        for _ in range(3):
            engine.step()
        if is_struck:
            with monkeypatch.context() as patch:
                patch.setattr(engine, "_fed", interrupted)
                patch.setattr(
                    engine.pool, "take_back", lambda: engine.pool._promises and interrupted()
                )
                with pytest.raises(KeyboardInterrupt):
                    engine.step()
            assert engine.pool.chosen is not None
            assert engine.pool._promises
        while engine.step():
            pass
        return told

    assert story(is_struck=True) == story(is_struck=False)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def failing() -> Strategy:
    """A strategy whose last step feeds a token that is none."""
    view = View([Block()])
    for token in (1, 2, 3, 4, 5, Ledger.facts.vocab_size):
        yield Step([Row(view, (token,) * 3)])
    raise AssertionError("it went on")


WATCHED_CODE_OF_THE_SCHEDULER = {
    function.__code__
    for function in (
        Scheduler.step,
        Scheduler._answer,
        Scheduler._pass,
        Scheduler._take,
        Scheduler._tell,
        Scheduler._sweep,
    )
}


@pytest.mark.parametrize("plans_ahead", [False, True])
@pytest.mark.parametrize("are_cancelled", [False, True])
def test_runs_that_are_over_behind_an_interrupt_hold_no_memory(
    are_cancelled: bool, plans_ahead: bool
) -> None:
    """Whether they were cancelled or came to their ends. All of it is there for a step that is fed by hand."""

    def over(*places: Place) -> Watch:
        ledger: Any = Ledger()
        ledger.plans_ahead = plans_ahead
        ledger.facts = replace(ledger.facts, num_pages=20)
        engine = Engine(ledger, max_tokens_per_pass=24)
        strategies = writing([], 5, Reserve(20, 3), 2, num_steps=2), failing()
        runs = [engine.submit(strategy) for strategy in strategies]
        watch = watch_at(*places, code=WATCHED_CODE_OF_THE_SCHEDULER, files=frozenset())
        watch.begin_step()
        with contextlib.suppress(KeyboardInterrupt), watch.watching():
            while engine.step():
                pass
        if are_cancelled:
            for each in runs:
                engine.cancel(each)
        else:
            while engine.step():
                pass
        all_of_it = (1,) * engine.pool.num_slots
        try:
            engine.forward(Step([Row(View([Block()]), all_of_it)]))
        except OutOfMemory as error:
            raise AssertionError(named(watch.struck)) from error
        return watch

    watch = over()
    assert {code for _, (code, _) in watch.lines} == WATCHED_CODE_OF_THE_SCHEDULER
    for place in watch.places(lambda times: [times]):
        assert over(place).struck == [place]


WATCHED_WHILE_PASSES_ARE_BEGUN_AHEAD = WATCHED_CODE_OF_A_STEP | {
    function.__code__
    for function in (
        Engine._go_on,
        Engine._told,
        Scheduler.expected,
        Scheduler._going_on,
        Scheduler._take_part,
        planner.Planner.plan_ahead,
        planner.Planner._plan,
        pages.PagePool.lend,
        pages.PagePool.promise,
        pages.PagePool._have,
        prefixes.PrefixTree.make_room,
        prefixes.PrefixTree.let_go,
        prefixes.PrefixTree._drop,
        lockstep.Lockstep.follow,
    )
}


@pytest.mark.parametrize(
    ("num_pages", "is_full"), [(28, False), (80, False), (80, True)]
)  # 1 and 2 by three: other lines
def test_an_interrupt_while_passes_are_begun_ahead_changes_no_token(
    num_pages: int, is_full: bool, pytestconfig: pytest.Config
) -> None:
    """With little memory, where a run is preempted, with much, and with much that is full of what is kept.

    What is begun may be dropped; nothing else.
    """
    plain, _, _ = crowd(num_pages=num_pages)
    how: Any = {
        "plans_ahead": True,
        "num_pages": num_pages,
        "is_full": is_full,
        "code": WATCHED_WHILE_PASSES_ARE_BEGUN_AHEAD,
        "files": {lookahead.__file__},
    }
    expected, _, watch = crowd(**how)
    assert watch.names >= {
        "_go_on",
        "plan_ahead",
        "lend",
        "fed_of",
        "take",
        "was_chosen",
        "expected",
    }
    assert ({"_have", "make_room", "let_go", "_drop"} <= watch.names) is is_full
    assert expected == plain

    def struck(places: Sequence[Place]) -> Watch:
        outcome, _, watch = crowd(*places, **how)
        assert outcome == expected, named(watch.struck)
        return watch

    some = watch.places(first_and_last)[num_pages % 3 :: 3]
    strike_all(some, struck, alone=is_every_case(pytestconfig))


# -- queues and ledgers ------------------------------------------------------------------------------

WATCHED_ACCOUNTS = {str(module.__file__) for module in (filling, preemption, run, scheduler)}
WATCHED_PAGES = {pages.PagePool.evict.__code__, pages.PagePool.bring_back.__code__}


CANCELLED = 4  # of the six runs


def asking_again(told: list[tuple[int, ...]]) -> Strategy:
    """A strategy that reserves, writes, reserves more and writes on."""

    def strategy() -> Generator[Any, Any, Answer]:
        yield Reserve(8, 2)
        view, token = View([Block()]), 3
        for n in range(12):
            if n == 6:
                yield Reserve(20, 2)
            (token,) = yield Step([Row(view, (token,))])
            told.append((token,))
        return Answer(text=str(view.own.tokens))

    return strategy()


def assert_accounts_are_true(engine: Engine, runs: Sequence[Run]) -> None:
    """Every live run stands in one queue and in one ledger, the sums are those of the runs, and none waits to be promoted."""
    ours = engine._scheduler
    live = [each for each in runs if not each.done]
    for state, queue in ours._queues.items():
        found = sorted(id(each) for each in queue)
        assert found == sorted(id(each) for each in live if each.state is state), state
    certain = [each for each in live if each.age is not None and each.past is None]
    preemptible = [each for each in live if each.age is not None and each.past is not None]
    books = ours.preemption
    for ledger, its in ((books._certain, certain), (books._preemptible, preemptible)):
        assert ledger._sizes == sorted(each.reserved_pages for each in its)
        assert (ledger.num_runs, ledger.num_reserved) == (len(its), sum(ledger._sizes))
        assert ledger.bound == sum(each.reserved_pages or engine.pool.num_pages for each in its)
    outside = [each for each in preemptible if each.state is RunState.PREEMPTED]
    assert set(books._outside.oldest_first()) == set(outside)
    inside = books._inside.oldest_first()
    assert set(inside) == set(preemptible) - set(outside)
    books.promote()
    assert books._inside.oldest_first() == inside, "one is followed in vain"
    unbegun = ours._running.unbegun
    assert all(each in ours._running and not each.num_passes for each in unbegun)


def accounts(*places: Place) -> tuple[list[list[tuple[int, ...]]], list[str], Watch]:
    """Six runs in little memory, one of which asks again, and one is cancelled: what each was told,
    how each ended, and the lines that were run. The accounts are looked at between all steps.
    """
    ledger: Any = Ledger()
    ledger.facts = replace(ledger.facts, num_pages=28)
    ledger.write = lambda *_: None
    engine = Engine(ledger, max_tokens_per_pass=24, overcommit=2.0)
    engine._scheduler.preemption.rebuild = lambda past, blocks: rebuilt(engine, past)
    told: list[list[tuple[int, ...]]] = [[] for _ in range(6)]
    shapes = ((30, 2), (5, 3), (13, 1), (9, 2), (4, 1))
    strategies = [
        writing(told[n], prompt, Reserve(prompt + 9 * rows, rows + 1), rows)
        for n, (prompt, rows) in enumerate(shapes)
    ]
    strategies.append(asking_again(told[5]))
    runs = [engine.submit(strategy) for strategy in strategies]
    watch = watch_at(*places, code=WATCHED_PAGES, files=WATCHED_ACCOUNTS)

    def step() -> bool:
        if watch.step >= 9 and not runs[CANCELLED].done:
            engine.cancel(runs[CANCELLED])
        return engine.step()

    driven(engine, watch, step, lambda: assert_accounts_are_true(engine, runs))
    assert_accounts_are_true(engine, runs)
    engine.pool.take_back()
    assert not engine._scheduler.runs
    assert engine._scheduler.preemption.num_pages_promised == 0
    del strategies
    assert engine.pool.num_free_pages == engine.pool.num_pages
    ends = [str(getattr(each.outcome, "text", each.outcome)) for each in runs]
    return told, ends, watch


def test_the_accounts_are_true_after_an_interrupt_at_any_line(pytestconfig: pytest.Config) -> None:
    expected, ends, watch = accounts()
    names = watch.names
    assert names >= {
        "admit",
        "reserve",
        "forget",
        "promote",
        "_preempt",
        "_return",
        "evict",
        "enter",
    }
    assert names >= {"_grant", "_gather", "_sweep", "cancel", "_advance"}
    num_lost = 0

    def struck(places: Sequence[Place]) -> Watch:
        nonlocal num_lost
        told, ended, watch = accounts(*places)
        lost = [n for n, end in enumerate(ended) if end != ends[n]]
        where = named(watch.struck)
        assert len(lost) <= 1, where
        assert all(ended[n] == str(None) for n in lost), where
        for n, tokens in enumerate(told):
            size = min(len(tokens), len(expected[n]))
            assert tokens[:size] == expected[n][:size], where
            assert n in lost or len(tokens) == len(expected[n]) or n == CANCELLED, where
        num_lost += len(lost)
        if lost:  # it was struck while it computed
            assert all(map(may_be_lost_at, places)), where
        return watch

    everywhere = watch.places(lambda times: [(times + 1) // 2])
    strike_all([place for place in everywhere if may_be_lost_at(place)], struck, alone=True)
    others = [place for place in everywhere if not may_be_lost_at(place)]
    strike_all(others, struck, alone=is_every_case(pytestconfig))
    assert num_lost < 40, "a run is over only where an interrupt meets its own strategy"


def may_be_lost_at(place: Place) -> bool:
    """Whether a run is over where its strategy is met there."""
    return place.code.co_qualname.startswith("Run.")


def test_control_without_a_recount_the_accounts_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, watch = accounts()
    entering = preemption.Preemption._enter.__code__
    first = next(place for place in watch.places(first_and_last) if place.code is entering)
    monkeypatch.setattr(Scheduler, "_recount", lambda scheduler: None)
    with pytest.raises((AssertionError, IndexError)):
        accounts(first)


def test_a_run_whose_submission_was_struck_is_over() -> None:
    def begin(*places: Place) -> tuple[bool, Watch]:
        ledger: Any = Ledger()
        engine = Engine(ledger)
        told: list[tuple[int, ...]] = []
        first = engine.submit(asking_again([]))
        watch = watch_at(*places, code=set(), files=WATCHED_ACCOUNTS)
        watch.begin_step()
        with contextlib.suppress(KeyboardInterrupt), watch.watching():
            engine.submit(asking_again(told))
        while engine.step():
            assert_accounts_are_true(engine, [first, *set(engine._scheduler.runs) - {first}])
        assert first.result().text
        return len(told) == 12, watch

    whole, watch = begin()
    assert whole
    struck = [place for place in watch.places(every_time) if begin(place)[0]]
    assert struck == [], "it takes part in passes, and nothing holds it"


def test_a_cancellation_that_was_struck_leaves_true_accounts() -> None:
    """At every line, in the sweep behind the run's end too: the step behind it counts anew, and the cancelled run's pages are free."""

    def cancelled(*places: Place) -> tuple[Any, Watch]:
        ledger: Any = Ledger()
        engine = Engine(ledger, overcommit=2.0)
        told: list[list[tuple[int, ...]]] = [[], [], []]
        runs = [engine.submit(asking_again(each)) for each in told]
        for _ in range(3):
            engine.step()
        watch = watch_at(*places, code=set(), files=WATCHED_ACCOUNTS)
        watch.begin_step()
        with contextlib.suppress(KeyboardInterrupt), watch.watching():
            engine.cancel(runs[1])
        was_done = runs[1].done
        while engine.step():
            assert_accounts_are_true(engine, runs)
            assert not (was_done and runs[1].num_passes > 3), "it is over"
        assert_accounts_are_true(engine, runs)
        assert engine.pool.num_free_pages == engine.pool.num_pages
        assert len(told[0]) == len(told[2]) == 12
        return len(told[1]), watch

    num_told, watch = cancelled()
    assert num_told == 3
    assert watch.names >= {"cancel", "_sweep", "forget"}
    found = {cancelled(place)[0] for place in watch.places(every_time)}
    assert found == {3, 12}, "struck before it was over, it goes on"
