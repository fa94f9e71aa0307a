"""The next pass is begun while one is made: every run gets what it would get alone, and nothing is kept in vain."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.planner import Planner
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Choice, Row, StandIn, Step
from manyhands.cache.view import View
from manyhands.engine import capacities
from manyhands.engine.engine import Engine
from manyhands.engine.graphs import GraphedPasses
from manyhands.engine.lookahead import Expected, Lookahead
from manyhands.engine.passes import Passes
from manyhands.engine.run import Run
from manyhands.errors import InvalidRequest
from manyhands.evaluation.life import Kind, _live_team, _MadeUp, _noting, fill_memory
from manyhands.strategies.base import Answer, Sent, Strategy
from manyhands.strategies.events import Event
from tests.engine.small import LETTERS, counting, finish, small_engine, story, story_of, team
from tests.engine.test_graphs import Again, plain_engine, small_capacities, walking
from tests.engine.test_scheduler import CHOICES, a_mixed_crowd, alone, everything_is_free


@pytest.fixture
def _ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Passes, "plans_ahead", True)
    return


pytestmark = pytest.mark.usefixtures("_ahead")


def together(engine: Engine, crowd: dict[str, Callable[[], Strategy]]) -> dict[str, Run]:
    runs = {name: engine.submit(make()) for name, make in crowd.items()}
    finish(engine, *runs.values())
    return runs


@pytest.mark.parametrize("choice", CHOICES)
def test_a_crowd_whose_passes_are_begun_ahead_is_told_what_each_is_told_alone(choice: str) -> None:
    engine = small_engine(16384)
    runs = together(engine, a_mixed_crowd(CHOICES[choice]))
    for name, run in runs.items():
        assert story_of(run) == alone(choice)[name], name
    counts = engine.executor.counts
    assert counts.planned_ahead > 20
    assert everything_is_free(engine), "what was expected holds no page"
    if choice == "sampled":
        assert counts.in_vain > 0, "steps that end were meant to be part of this"


def opening(letter: int, workers: int) -> Strategy:
    """A prompt in front of its workers, in one step, as methods begin; then these alone."""
    prompt = Block("prompt")
    rows, feeds = [Row(View([prompt]), tuple(range(letter, letter + 9)))], [(letter,)] * workers
    views = [View([prompt, Block()]) for _ in range(workers)]
    told = []
    for _ in range(6):
        own = [Row(view, feed, writer="one") for view, feed in zip(views, feeds, strict=True)]
        tokens = yield Step([*rows, *own])
        assert isinstance(tokens, tuple)
        told.append(tokens[len(rows) :])
        rows, feeds = [], [(token,) for token in told[-1]]
    return Answer(text=str(told))


@pytest.mark.parametrize("workers", [1, 3])
def test_prompts_are_not_expected_to_go_on_behind_their_workers_first_tokens(workers: int) -> None:
    """So these have their second ones in the pass that was begun, and no row is fed in vain while all go on."""
    engine = small_engine()
    runs = [engine.submit(opening(letter, workers)) for letter in (2, 5)]
    late = engine.submit(counting((3, 4, 5), 9))
    for count in range(1, 7):
        engine.step()
        assert [run.num_passes for run in (*runs, late)] == [count] * 3
    counts = engine.executor.counts
    assert (counts.planned_ahead, counts.in_vain, counts.dropped) == (6, 0, 0)
    finish(engine, *runs, late)
    for letter, run in zip((2, 5), runs, strict=True):
        assert run.result() == small_engine().run(opening(letter, workers))


def test_rows_none_of_which_has_a_writer_go_on() -> None:
    view, other = View([Block()]), View([Block()])
    assert Expected.going_on(Step([Row(view, (3, 4)), Row(other, (5,))]), 7).sources == (7, 8)
    step = Step([Row(view, (3,)), Row(other, (5,))])
    assert Expected.going_on(step, 7).step is step
    known = Expected.going_on(Step([Row(view, (3,)), Row(other, (5,), writer="one")]), 7)
    assert known.sources == (8,)
    assert [row.view for row in known.step.rows] == [other]


@pytest.mark.parametrize("is_counted", [True, False], ids=["as good as free", "control"])
def test_where_memory_is_full_of_kept_prompts_as_many_passes_are_begun_ahead(
    is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is that of every server after a while. Were pages that are kept for nobody not counted, fewer would be."""
    if not is_counted:
        monkeypatch.setattr(PrefixTree, "num_pages_idle", 0)
    found = []
    for is_full in (False, True):
        engine = small_engine(16384)
        if is_full:
            assert fill_memory(engine, prompt=100) > 100
            assert engine.pool.num_free_pages < 20
        runs = together(engine, a_mixed_crowd(CHOICES["greedy"]))
        for name, run in runs.items():
            assert story_of(run) == alone("greedy")[name], name
        found.append(engine.executor.counts.planned_ahead)
    empty, full = found
    assert empty > 20
    assert (full == empty) is is_counted
    assert is_counted or full < empty


def test_control_were_any_token_taken_for_the_expected_one_it_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = [plain_engine().run(each) for each in turning()]
    is_fed = Lookahead._is_fed

    def is_fed_something(lookahead: Lookahead, row: Row, known: Any) -> bool:
        source = known[2]
        return is_fed(lookahead, replace(row, feed=(lookahead._chosen or ())[source:][:1]), known)

    for patched in (False, True):
        if patched:
            monkeypatch.setattr(Lookahead, "_is_fed", is_fed_something)
        engine = plain_engine()
        runs = [engine.submit(each) for each in turning()]
        finish(engine, *runs)
        assert ([run.result() for run in runs] == expected) is not patched


def turning() -> list[Strategy]:
    """Three runs that are fed another token than the chosen one, now and then."""

    def views(rows: int) -> list[View]:
        prompt, desks = Block("prompt"), [Block() for _ in range(rows)]
        return [View([prompt, *(d for d in desks if d is not own), own]) for own in desks]

    return [
        walking(views(2), 12, {5: 3}),
        walking(views(1), 14, {}),
        walking(views(1), 9, {7: 4}, temperature=1.0),
    ]


def pausing(num_passes: int, pause: int) -> Strategy:
    """Two workers who read each other; in one pass the second is not fed."""
    one, two = Block(), Block()
    views = [View([two, one]), View([one, two])]
    tokens, written = [1, 2], list[int]()
    for index in range(num_passes):
        count = 1 if index == pause else 2
        choice = Choice(temperature=2.0, draw=index / num_passes)
        rows = [Row(view, (token,), choice) for view, token in zip(views, tokens, strict=True)]
        sent = yield Step(rows[:count])
        assert sent is not None
        tokens[:count] = sent
        written += sent
    return Answer(text=" ".join(map(str, written)))


def test_where_a_worker_pauses_the_others_have_not_read_what_it_was_expected_to_be_fed() -> None:
    """Nothing else goes on: the run beside it ends. So no row takes up the pass that was begun."""
    for pause in range(2, 7):
        expected = plain_engine().run(pausing(8, pause))
        engine = plain_engine()
        run = engine.submit(pausing(8, pause))
        finish(engine, run, engine.submit(walking([View([Block()])], pause, {})))
        assert engine.executor.counts.planned_ahead > 0
        assert run.result() == expected, pause


def test_runs_are_charged_for_their_own_rows_alone() -> None:
    crowd = a_mixed_crowd(CHOICES["sampled"])
    engine = small_engine(16384)
    runs = together(engine, crowd)
    for name, run in runs.items():
        engine_of_its_own = small_engine(16384)
        own = engine_of_its_own.submit(crowd[name]())
        finish(engine_of_its_own, own)
        assert run.usage.tokens_fed == own.usage.tokens_fed, name
        assert run.num_passes == own.num_passes, name
        assert run.usage.tokens_chosen == own.usage.tokens_chosen, name
    in_vain = engine.usage.tokens_fed - sum(run.usage.tokens_fed for run in runs.values())
    assert 0 < in_vain <= engine.executor.counts.in_vain + 8, "what the engine did beyond that"


MANY = [(tuple(range(3, 9 + seed)), 20 + 2 * seed) for seed in range(12)]


@cache
def many_alone() -> list[list[Event | Answer]]:
    engine = small_engine()
    return [story(engine, counting(*each)) for each in MANY]


@pytest.mark.parametrize("memory_tokens", [320, 384])
def test_where_memory_is_scarce_runs_leave_and_come_back_with_the_same_tokens(
    memory_tokens: int,
) -> None:
    engine = small_engine(memory_tokens, overcommit=4)
    runs = [engine.submit(counting(prompt, size)) for prompt, size in MANY]
    finish(engine, *runs)
    assert engine.num_preemptions > 0
    assert [story_of(run) for run in runs] == many_alone()
    assert engine.executor.counts.planned_ahead > 10
    assert everything_is_free(engine)


def test_prompts_are_fed_in_parts_in_passes_that_were_begun() -> None:
    """Every part but the first is expected: while it is fed, two write, and no pass is planned in between."""
    engine = small_engine(prompt_tokens=16)
    writers = [engine.submit(counting((n, 8), 24)) for n in (3, 4)]
    for _ in range(3):
        engine.step()
    before = engine.executor.counts
    long = engine.submit(counting(tuple(range(5, 90)), 4))
    while not long.num_passes:
        engine.step()
    made = engine.executor.counts - before
    assert made.in_vain == 0
    assert made.eager == made.planned_ahead, "on the device behind each other, none launched late"
    finish(engine, long, *writers)
    assert story_of(long) == story(small_engine(), counting(tuple(range(5, 90)), 4))


@pytest.mark.usefixtures(small_capacities.__name__)
def test_recorded_passes_are_begun_ahead_too() -> None:
    """Rows whose steps turn elsewhere at some passes, in recordings, against each alone, launch by launch."""

    engine = graphed()
    runs = [engine.submit(each) for each in turning()]
    finish(engine, *runs)
    plain = plain_engine()
    assert [run.result() for run in runs] == [plain.run(each) for each in turning()]
    counts = engine.executor.counts
    assert counts.planned_ahead > 6
    assert counts.in_vain > 0
    assert counts.replayed + counts.followed > 6, "most were recorded"


@pytest.mark.usefixtures(small_capacities.__name__)
def test_a_crowd_that_goes_on_sends_its_tokens_alone() -> None:
    """Each pass that is begun follows the one that was begun before it, for as long as no step turns elsewhere."""
    engine = graphed()
    prompts = (5, 6), (7, 8)
    runs = [engine.submit(counting(prompt, 14)) for prompt in prompts]
    finish(engine, *runs)
    assert [run.result() for run in runs] == [plain_engine().run(counting(p, 14)) for p in prompts]
    counts = engine.executor.counts
    assert counts.planned_ahead >= 12
    assert counts.followed >= 9
    assert counts.replayed <= 2


def graphed() -> Engine:
    adapter_engine = plain_engine(backend="triton")
    executor: Any = adapter_engine.executor
    executor.passes = GraphedPasses(executor.adapter, executor.memory, executor.backend, Again())
    return Engine(executor, None, adapter_engine.settings)


def test_where_passes_are_not_recorded_one_run_alone_begins_nothing() -> None:
    engine = small_engine()
    engine.run(team(3, choice=Choice(allowed=LETTERS)))
    assert engine.executor.counts.planned_ahead == 0


def live_alone(engine: Engine) -> list[tuple[int, ...]]:
    """The tokens of a team whose steps end, and whose fresh desks are fed several tokens."""
    written: list[tuple[int, ...]] = []
    kind = Kind(2, (3, 3), (14, 14), (1, 3), step=4)
    live = _live_team(kind, 14, random.Random(3), _MadeUp(engine.facts.vocab_size, 0), None)
    engine.run(_noting(live, written))
    return written


@pytest.mark.usefixtures(small_capacities.__name__)
def test_behind_a_step_that_ends_a_team_alone_is_planned_while_the_device_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its pass the head alone is begun; where another step ends then, it is dropped."""
    monkeypatch.setattr(capacities, "AHEAD", 8)
    engine = graphed()
    engine.get_ready()
    before = engine.executor.counts
    assert live_alone(engine) == live_alone(plain_engine())
    counts = engine.executor.counts - before
    assert counts.heads >= counts.planned_ahead > 3
    assert counts.dropped > 2, "two steps were to end in a row"
    assert counts.lookaheads > 2, "passes behind it follow token by token, without a plan"
    assert counts.followed > 2
    assert counts.in_vain == 0
    assert counts.eager + counts.replayed + counts.followed == 14, "a dropped head is no pass"
    assert everything_is_free(engine)


def test_a_pass_by_hand_between_two_of_the_runs_changes_no_token() -> None:
    """It is made by the same network, so what was begun for the runs is not taken up."""
    crowd = [((3, 8), 12), ((4, 8), 12)]
    engine = small_engine()
    runs = [engine.submit(counting(*each)) for each in crowd]
    for _ in range(6):
        engine.step()
    assert engine.executor.has_begun
    engine.forward(Step([Row(View([Block()]), (1, 2, 3))]))
    finish(engine, *runs)
    assert [story_of(run) for run in runs] == [
        story(small_engine(), counting(*each)) for each in crowd
    ]


def test_where_most_turn_elsewhere_nothing_is_begun() -> None:
    """Rows fed in vain cost their runs a pass each, so where guesses are poor none is begun."""
    engine = small_engine(16384)

    def restless(seed: int, passes: int, turns: int) -> Strategy:
        return walking([View([Block()])], passes, {n: seed + n for n in range(1, turns)})

    runs = [engine.submit(restless(seed, 60, 50)) for seed in range(4)]
    for _ in range(30):
        engine.step()
    before = engine.executor.counts
    for _ in range(8):
        engine.step()
    assert (engine.executor.counts - before).planned_ahead == 0
    finish(engine, *runs)
    runs = [engine.submit(restless(seed, 90, 0)) for seed in range(4)]
    before = engine.executor.counts
    finish(engine, *runs)
    assert (engine.executor.counts - before).planned_ahead > 30


# -- the plan that is made ahead -----------------------------------------------------------------------


def test_a_plan_made_ahead_is_the_plan_made_later() -> None:
    """The same integers but for the tokens, which are not known yet; over the ends of pages, and in lockstep."""
    early, late = (Planner(PagePool(64, 4)) for _ in range(2))
    for planner in (early, late):
        planner.pool.place(Block())  # both begin with equal strips
    stories = []
    for planner in (early, late):
        start, desks = Block(), [Block(), Block()]
        planner.plan(Step([Row(View([start]), (1, 2, 3))]))
        start.tokens.extend((1, 2, 3))
        planner.pool.keep()
        start.freeze()
        views = [View([start, desks[1], desks[0]]), View([start, desks[0], desks[1]])]
        plans = []
        fed = Step([Row(view, (9,)) for view in views])
        plan = planner.plan(fed)
        for n in range(12):
            following = Step([Row(view, (n,)) for view in views])
            if planner is early:
                ahead = planner.plan_ahead(following, dict.fromkeys(desks, 1))
                assert ahead is not None
            for row in fed.rows:
                row.view.own.tokens.extend(row.feed)
            planner.pool.keep()
            if planner is early:
                planner.pool.promise((desk, 1) for desk in desks)
                assert ahead is not None
                plan = ahead
            else:
                plan = planner.plan(following)
            fed = following
            plans.append(plan)
        stories.append(plans)
    for one, other in zip(*stories, strict=True):
        for name in ("token_ids", "positions", "offsets", "row_indptr"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
        for name in ("row", "base", "low", "high", "strip_indptr"):
            assert getattr(one.reads, name).tolist() == getattr(other.reads, name).tolist(), name


class Begun:
    """A team of two rows and a run of one, whose next pass is begun, and a run that waits with a prompt, fed in part."""

    def __init__(self, *, check: Callable[[Step], None] = lambda step: None) -> None:
        self.pool = PagePool(64, 4)
        self.planner = Planner(self.pool)
        self.lookahead = Lookahead(
            self.planner, self.pool, check=check, move=lambda: self.pool.make_moves(lambda _: None)
        )
        one, two, three, self.prompt, self.short = (Block(name) for name in "abcpq")
        self.views = [View([two, one]), View([one, two]), View([three])]
        self.fed = Step(Row(view, (1,)) for view in self.views)
        self.waiting = self.step(View([self.prompt]), View([self.short]), feeds=((4, 5, 6), (7, 8)))
        self.part = self.step(*(row.view for row in self.waiting.rows), feeds=((4, 5), (7,)))
        self.planner.plan(self.fed)
        self.begin()

    @staticmethod
    def step(*views: View, feeds: Sequence[tuple[int, ...]]) -> Step:
        return Step(Row(view, feed) for view, feed in zip(views, feeds, strict=True))

    def begin(self) -> bool:
        going_on = [
            Expected.going_on(Step(self.fed.rows[at]), first)
            for at, first in ((slice(0, 2), 0), (slice(2, 3), 2))
        ]
        expected = [*going_on, Expected.asked(self.part)]
        return self.lookahead.plan(expected, self.fed) is not None

    def land(self) -> None:
        """The pass before has chosen 7, 8 and 9."""
        for row in self.fed.rows:
            row.view.own.tokens.extend(row.feed)
        self.pool.keep()
        self.lookahead.was_chosen((7, 8, 9), is_begun=True)

    def team(self, *feeds: tuple[int, ...]) -> Step:
        return self.step(*self.views[: len(feeds)], feeds=feeds)


def test_a_step_that_was_expected_is_fed_by_the_pass_that_was_begun() -> None:
    begun = Begun()
    assert begun.lookahead.num_rows == 5
    team, alone = begun.team((7,), (8,)), begun.step(begun.views[2], feeds=[(9,)])
    assert begun.lookahead.fed_of(team) is None, "its tokens are not known yet"
    begun.land()
    assert begun.lookahead.fed_of(team) is team
    assert begun.lookahead.fed_of(alone) is alone
    part = begun.lookahead.fed_of(begun.waiting)
    assert part is not None
    assert [(row.view, row.feed) for row in part.rows] == [
        (row.view, row.feed) for row in begun.part.rows
    ]
    taken = begun.lookahead.take(Step([*alone.rows, *part.rows, *team.rows]))
    assert taken is not None
    plan, numbers = taken
    assert (plan.num_rows, numbers) == (5, [2, 3, 4, 0, 1])
    assert begun.lookahead.num_rows == 0
    assert begun.lookahead.take(team) is None, "it is taken once"


def test_rows_that_nobody_has_asked_about_are_not_taken() -> None:
    """A row is compared once with the expected one, by `fed_of`; a later pass that is begun knows nothing of it."""
    begun = Begun()
    begun.land()
    team, alone = begun.team((7,), (8,)), begun.step(begun.views[2], feeds=[(9,)])
    assert begun.lookahead.fed_of(team) is team
    assert begun.lookahead.take(Step([*team.rows, *alone.rows])) is None
    assert begun.lookahead.num_rows == 0
    assert begun.begin()
    begun.lookahead.was_chosen((7, 8, 9), is_begun=True)
    assert begun.lookahead.take(team) is None


def test_what_was_asked_about_is_held_weakly() -> None:
    """A run may end without its pass, and its blocks are freed then."""
    begun = Begun()
    begun.land()
    alone = begun.step(begun.views[2], feeds=[(9,)])
    assert begun.lookahead.fed_of(alone) is alone
    row = weakref.ref(alone.rows[0])
    del alone
    assert row() is None


def test_a_step_that_turned_elsewhere_is_not_fed_by_the_pass_that_was_begun() -> None:
    """Nor one of which a row has done so: the others have read what that was fed."""
    prompts = ((4, 5, 6), (7,)), ((4, 5), (7,)), ((4, 6, 6), (7, 8)), ((4,), (7, 8))
    turned: dict[str, Callable[[Begun], Step]] = {
        "one other token": lambda b: b.team((7,), (5,)),
        "a row less": lambda b: b.team((7,)),
        "more tokens": lambda b: b.team((7,), (8, 8)),
        "another view": lambda b: b.step(View([Block(), b.views[2].own]), feeds=[(9,)]),
        "targets": lambda b: Step([Row(b.views[2], (9,), targets=(3,))]),
        "another row": lambda b: b.step(View([Block()]), feeds=[(9,)]),
        "other prompts": lambda b: b.step(*(row.view for row in b.part.rows), feeds=prompts[2]),
        "shorter prompts": lambda b: b.step(*(row.view for row in b.part.rows), feeds=prompts[3]),
        "one prompt whole": lambda b: b.step(*(row.view for row in b.part.rows), feeds=prompts[0]),
    }
    for name, step_of in turned.items():
        begun = Begun()
        begun.land()
        step = step_of(begun)
        assert begun.lookahead.fed_of(step) is None, name
        if name != "a row less":  # rows alone are looked at here
            assert begun.lookahead.take(step) is None, name
    begun = Begun()
    begun.land()
    whole = begun.step(*(row.view for row in begun.part.rows), feeds=prompts[1])
    assert begun.lookahead.fed_of(whole) is whole, "the control"


def test_what_has_changed_since_it_was_begun_takes_no_part() -> None:
    """A block that has grown, memory that has been taken back, tokens of the pass before the last one."""
    grown, moved, again = Begun(), Begun(), Begun()
    for begun in (grown, moved, again):
        begun.land()
    grown.views[1].own.tokens.append(3)
    assert grown.lookahead.fed_of(grown.team((7,), (8,))) is None
    moved.pool.generation += 1
    assert moved.lookahead.fed_of(moved.team((7,), (8,))) is None
    again.fed = Step(
        Row(view, (token,)) for view, token in zip(again.views, (7, 8, 9), strict=True)
    )
    assert again.begin()
    for row in again.fed.rows:
        row.view.own.tokens.extend(row.feed)
    assert again.lookahead.fed_of(again.team((7,), (8,))) is None, "they are not known yet"


def test_steps_that_are_asked_for_are_checked_before_they_are_begun() -> None:
    checked: list[Step] = []
    begun = Begun(check=checked.append)
    assert checked == [begun.part]

    def refuse(step: Step) -> None:
        raise InvalidRequest("a token is none", hint="")

    refused = Begun(check=refuse)
    assert refused.lookahead.num_rows == 0
    refused.land()
    assert refused.lookahead.fed_of(refused.team((7,), (8,))) is None


def test_lent_pages_count_as_free_and_go_to_whoever_needs_them() -> None:
    pool = PagePool(8, 4)
    one, other = Block(), Block()
    pool.reserve([(one, 2)])
    strip = pool.place(one).strip
    free = pool.num_free_pages
    assert pool.lend([(strip, 9)])
    assert len(strip.pages) == 3
    assert pool.num_free_pages == free
    generation = pool.generation
    pool.promise([(one, 2)])
    pool.keep()
    assert pool.generation == generation, "what was planned into lent pages holds"
    pool.reserve([(other, 26)])
    assert pool.generation > generation, "and does not where they were taken"
    assert not pool.lend([(strip, 40)]), "room is scarce"


def with_meanwhile(work: Callable[[], None], num_passes: int = 6) -> Strategy:
    """A text alone, which has something to do while its steps are fed."""
    view, feed = View([Block("text")]), (3, 4, 5)
    for _ in range(num_passes):
        tokens = yield Step([Row(view, feed)], work)
        assert isinstance(tokens, tuple)
        feed = tokens
    return Answer(text=repr(view.own.tokens))


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_strategies_have_the_time_of_a_pass(is_shared: bool, fails: bool) -> None:
    done: list[int] = []
    engine = plain_engine()

    def work() -> None:
        done.append(engine.usage.forward_passes)
        assert not fails

    def made() -> Strategy:
        strategy = with_meanwhile(work)
        return _naming(strategy, engine) if is_shared else strategy

    expected = plain_engine().run(with_meanwhile(lambda: None)).text
    runs = [engine.submit(made()) for _ in range(2)]
    finish(engine, *runs)
    assert [run.result().text for run in runs] == [expected] * 2
    assert done, "somebody has the time"
    assert len(done) == 2 * 6
    assert done == sorted(done)
    assert set(done) == set(range(engine.usage.forward_passes)), (
        "in each pass, before it is counted"
    )


def _naming(strategy: Strategy, engine: Engine) -> Strategy:
    """The strategy as one whose step stands in for another one."""
    sent: Sent = None
    while True:
        try:
            asked = strategy.send(sent)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        sent = yield StandIn(asked.rows, asked) if isinstance(asked, Step) else asked


def test_blocks_that_are_let_go_of_are_gone_a_pass_later() -> None:
    held: list[bool] = []

    def dropping() -> Strategy:
        past, view = Block("past"), View([Block("text")])
        yield Step([Row(View([past]), (4,) * 40)])
        known = weakref.ref(past.freeze())
        yield Step([Row(View([past, Block("desk")]), (5,))])
        del past
        for _ in range(3):
            yield Step([Row(view, (6,))])
            gc.collect()
            held.append(known() is not None)
        return Answer(text="")

    engine = plain_engine()
    finish(engine, engine.submit(dropping()))
    assert not held[-1]
    assert everything_is_free(engine)
