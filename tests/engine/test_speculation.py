"""Guesses change how many passes are made, and no token: greedy, sampled, weighed, masked, in company, preempted.

Two kinds of networks. A double without tensors, whose "logits" are all that a token reads, so that a key which
a refused guess had left behind would be noticed at once; and small random networks with every choice there is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.cache import lookup
from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Move
from manyhands.cache.plan import Plan
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine import speculation
from manyhands.engine.engine import Engine
from manyhands.engine.scheduler import Scheduler
from manyhands.engine.speculation import Speculation
from manyhands.errors import InvalidRequest
from manyhands.model.settings import ModelSettings
from manyhands.replay.trace import record
from manyhands.strategies.base import Answer, Reserve, Strategy
from manyhands.strategies.methods import METHODS
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Prompt, shared_prefix
from manyhands.text.grammar import Grammar
from tests.covers import is_every_case
from tests.engine.small import (
    FEW,
    LETTERS,
    PROMPTS,
    SHORT_END,
    TEXT,
    finish,
    small_engine,
    solo,
    story,
    story_of,
    team,
)
from tests.engine.test_interrupts import Ledger, driven, named, rebuilt, watch_at
from tests.strikes import Place, Watch, strike_all

# -- a double ----------------------------------------------------------------------------------------


class Rhymer(Ledger):
    """A double whose texts repeat themselves, until something far back changes them."""

    facts = replace(Ledger.facts, page_size=8, num_pages=60)

    def __init__(self) -> None:
        self.memory: Any = np.full((480, 2), -1)  # of each slot: token, offset of its key
        self.kept: list[tuple[int, ...]] = []
        self.num_passes = 0
        self.fed = 0

    def move(self, moves: Sequence[Move]) -> None:
        found = [self.memory[move.sources] + (0, move.shift) for move in moves]
        for move, keys in zip(moves, found, strict=True):
            self.memory[move.targets] = keys

    def run(self, plan: Plan, choices: Sequence[Choice] = (), **_: Any) -> tuple[int, ...]:
        self.num_passes += 1
        self.fed += plan.num_tokens
        read = self.logits(plan)
        if plan.num_drafted is not None:
            self.kept = read[plan.num_rows :]
        return tuple(map(next_token, read, choices))

    def choose(
        self, kept: Sequence[int], choices: Sequence[Choice], *, weighing: None = None
    ) -> tuple[int, ...]:
        return tuple(map(next_token, [self.kept[n] for n in kept], choices))

    def logits(self, plan: Plan) -> Any:
        """The tokens that each head reads, in the order of the positions."""
        self.memory[plan.slots] = np.stack((plan.token_ids, plan.offsets), axis=1)
        row_of = np.searchsorted(plan.row_indptr, plan.heads, side="right") - 1
        found: list[dict[int, int]] = [{} for _ in row_of]
        reads, size = plan.reads, plan.page_size
        for strip, table in enumerate(reads.pages):
            for n in range(reads.strip_indptr[strip], reads.strip_indptr[strip + 1]):
                keys = np.arange(reads.low[n], reads.high[n])
                tokens, offsets = self.memory[table[keys // size] * size + keys % size].T
                assert (offsets == keys).all(), "a key is rotated by another offset than its index"
                places = keys + reads.base[n]
                for head in np.flatnonzero(row_of == reads.row[n]).tolist():
                    seen = places <= plan.positions[plan.heads[head]]
                    found[head].update(
                        zip(places[seen].tolist(), tokens[seen].tolist(), strict=True)
                    )
        return [tuple(row[at] for at in range(len(row))) for row in found]


def next_token(read: Sequence[int], choice: Choice) -> int:
    """Depends on every token that is read, mostly on the fourth last, and on the draw."""
    far = sum(n * token for n, token in enumerate(read, 1)) % 29 == 0
    return (read[-min(4, len(read))] - 3 + far + (choice.draw > 0.95)) % 5 + 3


def rhyming(speculate: int, **facts: Any) -> Engine:
    double: Any = Rhymer()
    double.facts = replace(double.facts, **facts)
    return Engine(double, speculate=speculate, max_tokens_per_pass=24, overcommit=2.0)


def attempts(
    told: list[tuple[int, ...]], prompt: int, num_rows: int, num_tokens: int = 24, seed: int = 0
) -> Strategy:
    """Rows that read one prompt and not each other; a row takes a fresh block in the middle."""

    def strategy() -> Generator[Any, Any, Answer]:
        yield Reserve(prompt + num_rows * num_tokens, 2 * num_rows + 1)
        draws = np.random.default_rng(seed)
        start = Block("prompt")
        tokens = yield Step([Row(View([start]), tuple(n % 5 + 3 for n in range(prompt)))])
        start.freeze()
        views = [View([start, Block()]) for _ in range(num_rows)]
        tokens *= num_rows
        for n in range(num_tokens):
            if n == num_tokens // 2:
                views[0].own.freeze()
                views[0] = View([*views[0].items, Block()])
            tokens = yield Step(
                Row(v, (t,), Choice(1.0, draw=float(draws.random())), "writer")
                for v, t in zip(views, tokens, strict=True)
            )
            told.append(tokens)
        return Answer(text=str([block.tokens for view in views for block in view.blocks]))

    return strategy()


def told_by(engine: Engine, shapes: Sequence[tuple[int, int]]) -> list[list[tuple[int, ...]]]:
    told: list[list[tuple[int, ...]]] = [[] for _ in shapes]
    runs = [engine.submit(attempts(told[n], *shape, seed=n)) for n, shape in enumerate(shapes)]
    finish(engine, *runs)
    for run in runs:
        run.result()
    del runs[:]
    assert engine.pool.num_free_pages == engine.pool.num_pages, "a guess has left something"
    return told


@pytest.mark.parametrize("shapes", [((20, 1),), ((20, 3),), ((9, 1), (17, 2), (30, 1), (3, 1))])
def test_what_is_told_is_the_same_and_takes_fewer_passes(shapes: Any) -> None:
    plain, guessing = rhyming(0), rhyming(7)
    assert told_by(guessing, shapes) == told_by(plain, shapes)
    ours, theirs = (engine.executor.num_passes for engine in (guessing, plain))  # type: ignore[attr-defined]
    assert ours < theirs
    used = guessing.usage
    assert 0 < used.tokens_accepted <= used.tokens_drafted
    assert used.tokens_chosen == plain.usage.tokens_chosen
    assert used.tokens_fed == plain.usage.tokens_fed + used.tokens_drafted - used.tokens_accepted
    assert plain.usage.tokens_drafted == 0


def test_a_run_is_charged_for_what_it_wrote() -> None:
    told: list[tuple[int, ...]] = []
    engine = rhyming(7)
    run = engine.submit(attempts(told, 20, 1))
    finish(engine, run)
    assert (run.num_passes, run.usage.tokens_chosen) == (25, 24)
    assert run.usage.forward_passes == engine.executor.num_passes < 25  # type: ignore[attr-defined]


def test_rows_that_read_each_other_are_not_guessed() -> None:
    """A row that reads what others write, or is read by them, stays in step with them."""
    engine = rhyming(7)

    def strategy(reads: bool) -> Strategy:
        one, other = Block("one"), Block("other")
        views = [View([one]), View([one, other] if reads else [other])]
        tokens: Any = (3, 3)
        for _ in range(20):
            tokens = yield Step(
                Row(v, (t,), writer="w") for v, t in zip(views, tokens, strict=True)
            )
        return Answer(text="")

    engine.run(strategy(reads=True))
    assert engine.usage.tokens_drafted == 0
    engine.run(strategy(reads=False))
    assert engine.usage.tokens_drafted > 0


def test_no_guess_beyond_the_page_the_pass_or_the_model() -> None:
    sizes = [0]

    def spied(engine: Engine) -> Engine:
        inner = engine._pass

        def spy(step: Step) -> tuple[int, ...]:
            for row in step.rows:
                end = row.view.own.num_tokens + 1 + len(row.draft)
                sizes.append(len(row.draft))
                assert not row.draft or (end - 1) // 8 == (end - 1 - len(row.draft)) // 8
                assert row.view.num_tokens + 1 + len(row.draft) <= engine.facts.max_positions
            assert sum(len(row.feed) + len(row.draft) for row in step.rows) <= 24
            return inner(step)

        engine._pass = spy  # type: ignore[method-assign]
        return engine

    told_by(spied(rhyming(63, max_positions=44)), ((20, 1),))
    told_by(spied(rhyming(63)), ((20, 8),))
    assert max(sizes) >= 3


def test_after_a_wrong_guess_there_is_none_for_a_while() -> None:
    """Twice as long each time, up to fifteen passes, until one was right; rows with targets are given none."""
    pool = PagePool(64, 64)
    guesses = Speculation(pool, PrefixTree(pool), 4, max_positions=2000, max_tokens=100)
    own = Block()
    view = View([own])

    def is_guessed(number: int, accepted: int = 0) -> bool:
        """A pass that feeds a text which repeats itself, and so many tokens that were known by it."""
        step = guesses.drafted(Step([Row(view, (number % 7,), writer="w")]))
        pool.reserve([(own, 1 + accepted)])
        own.tokens.append(number % 7)
        guesses.was_fed(step)
        own.tokens.extend((number + n) % 7 for n in range(1, accepted + 1))
        return bool(step.rows[0].draft)

    for number in range(21):  # before it has repeated itself nothing is known
        own.tokens.append(number % 7)
    pool.reserve([(own, 21)])
    guessed = [number for number in range(21, 121) if is_guessed(number)]
    first, *rest = np.diff(guessed).tolist()
    assert (first, rest[:2], {*rest[2:]}) == (2, [4, 8], {16})
    right = next(number for number in range(121, 200) if is_guessed(number, accepted=2))
    assert is_guessed(right + 3), "it goes on at once"
    step = Step([Row(view, (1,), writer="w", targets=(2,))])
    for _ in range(20):
        assert guesses.drafted(step) is step


WATCHED = {
    function.__code__
    for function in (
        Scheduler._gather,
        Scheduler._known,
        Engine._predict,
        Engine._choose,
        Engine._is_known,
    )
}
WATCHED_FILES = {speculation.__file__, lookup.__file__}


# Shapes of runs, tokens that each writes, pages: in the second crowd there are too few.
SHORT: Any = (((12, 1), (9, 2)), 8, 60)
CRAMPED: Any = (((20, 1), (9, 2), (10, 2)), 24, 16)


def struck(
    crowd: tuple[Sequence[tuple[int, int]], int, int], *places: Place, speculate: int = 7
) -> tuple[Any, Watch, bool]:
    """The tokens told to each run of a crowd, the lines that were run, and whether a run was preempted."""
    shapes, num_tokens, num_pages = crowd
    engine = rhyming(speculate, num_pages=num_pages)
    engine._scheduler.preemption.rebuild = lambda past, blocks: rebuilt(engine, past)
    told: list[list[tuple[int, ...]]] = [[] for _ in shapes]
    runs = [
        engine.submit(attempts(told[n], prompt, rows, num_tokens, seed=n))
        for n, (prompt, rows) in enumerate(shapes)
    ]
    watch = driven(engine, watch_at(*places, code=WATCHED, files=WATCHED_FILES))
    engine.pool.take_back()
    assert engine.pool.num_free_pages == engine.pool.num_pages
    outcome = [(told[n], run.result().text, run.num_passes) for n, run in enumerate(runs)]
    return outcome, watch, any(run.num_preemptions for run in runs)


def test_an_interrupt_at_any_line_changes_no_token(pytestconfig: pytest.Config) -> None:
    expected, watch, _ = struck(SHORT)
    codes = {code for _, (code, _) in watch.lines}
    assert codes >= WATCHED
    assert watch.names >= {"known", "drafted", "was_fed", "learn", "behind"}

    def told(places: Sequence[Place]) -> Watch:
        outcome, watch, _ = struck(SHORT, *places)
        assert outcome == expected, named(watch.struck)
        return watch

    strike_all(watch.places(lambda times: [1]), told, alone=is_every_case(pytestconfig))


def test_runs_that_are_preempted_are_told_the_same() -> None:
    (expected, _, _), (found, _, was_preempted) = struck(CRAMPED, speculate=0), struck(CRAMPED)
    assert was_preempted
    assert found == expected


def test_control_a_guess_that_is_taken_unchecked_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong guess whose logits were used would give another text."""
    expected, _, _ = struck(CRAMPED)
    inner = speculation.Speculation._known

    def credulous(self: Any, row: Row) -> int | None:
        ahead = self._aheads.get(row.view)
        index = row.view.own.num_tokens - ahead.start if ahead else -1
        if ahead and 0 <= index < len(ahead.draft):
            row = replace(row, feed=ahead.draft[index : index + 1])
        return inner(self, row)

    monkeypatch.setattr(speculation.Speculation, "_known", credulous)
    assert struck(CRAMPED)[0] != expected


def test_a_preempted_run_forgets_its_guesses() -> None:
    """The pages that held their keys are others' by then."""
    engine = rhyming(7)
    run = engine.submit(attempts([], 20, 1))
    while engine._speculation is None or not engine._speculation._aheads:
        engine.step()
    assert run.step is not None
    engine.pool.evict(run.step.rows[0].view.blocks, [])
    assert not engine._is_known(run.step)


# -- tenants -----------------------------------------------------------------------------------------


def test_guesses_come_from_what_a_tenant_may_read() -> None:
    """The same text elsewhere in memory is a guess for its own tenant, and for no other."""
    page = TEXT.encode("a long text that stands in one prompt only, and nowhere else. ")
    drafted = {}
    for who in ("ours", "theirs"):
        engine = small_engine(speculate=8)
        settings = SharedSettings(max_tokens=2, tenant="ours", keep=True)
        held = shared_prefix([Prompt((*page, *page[:9]))], TEXT, settings, tree=engine.prefixes)
        engine.run(held)
        before = engine.usage.tokens_drafted
        prompt = Prompt((5, *page[:14]))
        asked = SharedSettings(
            max_tokens=2, tenant=who, choice=Choice(allowed=frozenset({page[14]}))
        )
        engine.run(shared_prefix([prompt], TEXT, asked, tree=engine.prefixes))
        drafted[who] = engine.usage.tokens_drafted - before
    assert drafted["ours"] > 0
    assert drafted["theirs"] == 0


# -- small networks ----------------------------------------------------------------------------------

SAMPLED = Choice(temperature=1.0, top_p=0.95, allowed=LETTERS)
WEIGHED = replace(FEW, frequency_penalty=0.05, repetition_penalty=1.1, logit_bias={64: 1.5})


def completions(engine: Engine, **choices: Any) -> Strategy:
    prompt = Prompt(TEXT.encode("abc abc abc, cab cab"))
    settings = SharedSettings(**{"max_tokens": 60, "seed": 3} | choices)
    return shared_prefix([prompt], TEXT, settings, tree=engine.prefixes)


def method(engine: Engine, name: str, **choices: Any) -> Strategy:
    about = METHODS[name]
    settings = about.settings(**{"budget": 16, "end": SHORT_END, **choices})
    spec = RunSpec(about, settings, getattr(PROMPTS, about.prompt), "abc abc abc, cab cab. 2")
    return share_prompt(spec.strategy(TEXT), engine.prefixes)


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    return small_engine(16384), small_engine(16384, speculate=8)


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"choice": FEW},
        {"choice": WEIGHED},
        {"choice": replace(FEW, min_tokens=40), "stop": ("aca", "c\n")},
        {"choice": Choice(temperature=0.8), "grammar": Grammar("regex", "(ab|cab|a){50}")},
    ],
    ids=["greedy", "sampled", "weighed", "stopped", "grammar"],
)
def test_completions_are_the_same(engines: tuple[Engine, Engine], choices: Any) -> None:
    before = engines[1].usage
    stories = [story(engine, completions(engine, **choices)) for engine in engines]
    assert stories[0] == stories[1]
    used = engines[1].usage - before
    assert used.tokens_accepted > 0


@pytest.mark.parametrize("name", METHODS)
def test_every_method_writes_the_same(engines: tuple[Engine, Engine], name: str) -> None:
    stories = [story(engine, method(engine, name, choice=FEW)) for engine in engines]
    assert stories[0] == stories[1]


def test_keys_in_eight_bits_are_the_same_with_guesses() -> None:
    """A token's keys are rounded by themselves, so a pass with several tokens rounds them as one with one."""
    engines = [small_engine(kv_cache_dtype="int8", speculate=size) for size in (0, 8)]
    stories = [story(engine, completions(engine, choice=FEW)) for engine in engines]
    assert stories[0] == stories[1]
    assert engines[1].usage.tokens_accepted > 0


def test_logprobs_are_those_of_the_place(engines: tuple[Engine, Engine]) -> None:
    told = []
    for engine in engines:
        answer: Any = engine.run(completions(engine, choice=replace(SAMPLED, logprobs=3)))
        told.append([each for part in answer.completions for each in part.logprobs])
    assert [token for token, _ in told[0]] == [token for token, _ in told[1]]
    for (_, one), (_, other) in zip(*told, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_a_crowd_gets_what_each_gets_alone(engines: tuple[Engine, Engine]) -> None:
    """Runs that guess and a team that does not, in the same passes."""
    plain, guessing = engines
    made: list[Callable[[Engine], Strategy]] = [
        lambda engine: team(2, choice=FEW, budget=10),
        lambda engine: solo(choice=FEW, seed=5, budget=16),
        lambda engine: completions(engine, choice=FEW),
    ]
    alone = [story(plain, make(plain)) for make in made]
    runs = [guessing.submit(make(guessing)) for make in made]
    finish(guessing, *runs)
    assert [story_of(run) for run in runs] == alone


def test_a_trace_knows_nothing_of_it(engines: tuple[Engine, Engine]) -> None:
    lines: list[list[Any]] = [[], []]
    for engine, found in zip(engines, lines, strict=True):
        engine.run(record(solo(choice=FEW), {}, found.append))
    assert lines[0] == lines[1]


def test_recorded_passes_serve_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and recordings, by their interpreter and by a recorder that runs everything again."""
    graphs = pytest.importorskip("manyhands.engine.graphs", reason="Triton comes for Linux only")
    if torch.cuda.is_available():
        pytest.skip("the kernels are compiled here, and run on the GPU only")
    from manyhands.engine import capacities
    from tests.engine.test_graphs import Again

    few = replace(capacities.LEAST, entries=4, pages=4, small=4, partials=8, most_partials=4)
    monkeypatch.setattr(capacities, "LEAST", few)
    engine = small_engine(speculate=6, backend="triton")
    executor: Any = engine.executor
    passes = graphs.GraphedPasses(executor.adapter, executor.memory, executor.backend, Again())
    executor.passes = passes
    told = [
        each.run(shared_prefix([Prompt(TEXT.encode("a a a a a"))], TEXT, settings))
        for each in (small_engine(), engine)
        for settings in [SharedSettings(max_tokens=8, choice=Choice(allowed=frozenset({64})))]
    ]
    assert told[0] == told[1]
    assert engine.usage.tokens_accepted > 0
    assert passes.recordings.trouble is None
    assert passes.counts.replayed > 0, "a pass with guesses was recorded"


@pytest.mark.parametrize("wrong", [-1, 64])
def test_a_wrong_number_of_guesses(wrong: int) -> None:
    with pytest.raises(InvalidRequest, match="speculate"):
        ModelSettings(speculate=wrong)
