"""Prompts of all methods found in the prefix tree: runs write what they would write alone, whoever was there before."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from dataclasses import replace
from typing import Any

import pytest

from manyhands.cache.block import Block
from manyhands.cache.prefix_nodes import common_length
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Choice, Row, StandIn, Step
from manyhands.cache.view import Beginning, View
from manyhands.engine.engine import Engine
from manyhands.errors import InvalidRequest, OutOfMemory
from manyhands.replay.trace import parse_trace, record
from manyhands.schema.conversation import Conversation, Message
from manyhands.schema.lines import Line
from manyhands.strategies.base import Answer, Reserve, Strategy
from manyhands.strategies.events import ViewsChanged
from manyhands.strategies.listening import Heard, Listen
from manyhands.strategies.methods import METHODS
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, Prompt, shared_prefix
from tests.engine.small import LETTERS, PROBLEM, PROMPTS, SHORT_END, TEXT, finish, small_engine
from tests.engine.test_preemption import preempt
from tests.strategies.driver import seen

SAMPLED = Choice(temperature=1.0, allowed=LETTERS | TEXT.eos)
FIRST = Conversation(PROBLEM, (Message("system", "Answer in letters."),))


@pytest.fixture(scope="module")
def engine() -> Engine:
    """One for all: a tree of many runs is what is tested. Tests that look at counters have tenants."""
    return small_engine(32768)


def spec(method: str, asked: Conversation = FIRST, **more: Any) -> RunSpec:
    """A short run of random letters. The rules stand in the system message unless told otherwise."""
    row, rules_in = METHODS[method], more.pop("rules_in", "system")
    settings = row.settings(**{"budget": 9, "choice": SAMPLED, "end": SHORT_END, **more})
    words = replace(getattr(PROMPTS, row.prompt), rules_in=rules_in)
    return RunSpec(row, settings, words, "").asked(asked)


def shared(engine: Engine, one: RunSpec, tenant: str | None = None) -> Strategy:
    return share_prompt(one.strategy(TEXT), engine.prefixes, tenant)


def unfound(answer: Answer) -> Answer:
    """The answer without what depends on those who were there before."""
    return replace(answer, found=(0,))


def next_turn(one: RunSpec, answer: Answer) -> RunSpec:
    said = one.conversation.replied(answer.text)
    return one.asked(Conversation("And again?", said))


def reserved(strategy: Strategy) -> Reserve:
    """The first reservation that it asks for."""
    asked = next(strategy)
    while not isinstance(asked, Reserve):
        asked = strategy.send(Heard() if isinstance(asked, Listen) else None)
    return asked


def prompt_of(one: RunSpec) -> tuple[int, ...]:
    """The tokens that its strategy feeds as the prompt."""
    strategy = one.strategy(TEXT)
    asked = reserved(strategy)
    strategy.close()
    assert asked.prompt is not None
    return asked.prompt.feed


TURNS = [(method, "system") for method in METHODS] + [("hogwild", "user"), ("sequential", "user")]


@pytest.mark.parametrize(("method", "rules_in"), TURNS)
def test_two_turns_are_what_they_are_alone(engine: Engine, method: str, rules_in: str) -> None:
    tenant = f"{method} {rules_in}"
    one = spec(method, rules_in=rules_in)
    first = engine.run(shared(engine, one, tenant))
    two = next_turn(one, first)
    before = engine.usage
    second = engine.run(shared(engine, two, tenant))
    found = (engine.usage - before).prefix_tokens_found
    assert [unfound(first), unfound(second)] == engine.run_all(s.strategy(TEXT) for s in (one, two))
    assert first.found == (0,), "nobody of this name was here"
    assert second.found == (found,)
    common = common_length(prompt_of(one), prompt_of(two), 0)
    written = 0 if method in ("hogwild", "skeleton") else sum(first.tokens)
    assert common <= found <= common + 1 + written
    if rules_in == "system":
        assert TEXT.decode(prompt_of(one)[:common]).rstrip().endswith(PROBLEM + "\nassistant")


def test_the_next_turn_finds_a_reply_where_it_was_written_behind_the_prompt(engine: Engine) -> None:
    for method in ("sequential", "branches"):
        one = spec(method, choice=Choice(temperature=1.0, allowed=frozenset(TEXT.encode("!b"))))
        first = engine.run(shared(engine, one, "reply"))
        second = engine.run(shared(engine, next_turn(one, first), "reply"))
        (size,), (found,) = first.prompt_tokens, second.found
        written = TEXT.encode(first.text)
        assert first.tokens == (len(written),) == (9,)
        assert found == size + len(written) - 1, "all but its last token, which nobody has fed"
        again = engine.run(next_turn(one, first).strategy(TEXT))
        assert unfound(second) == again


def test_completions_that_are_kept_are_found_by_the_next_turn(engine: Engine) -> None:
    settings = SharedSettings(samples=2, max_tokens=9, choice=SAMPLED, keep=True, tenant="kept")
    prompt = Prompt(TEXT.conversation(FIRST), chat=True)
    first = engine.run(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))
    assert isinstance(first, Completions)
    for said in first.completions:
        if not said.tokens:
            continue
        turn = (*prompt.tokens, *said.tokens, *TEXT.encode("b"))
        one = replace(settings, samples=1, keep=False)
        again = engine.run(shared_prefix([turn], TEXT, one, tree=engine.prefixes))
        assert again.found[0] >= len(prompt.tokens) + len(said.tokens) - 1
        alone = engine.run(shared_prefix([turn], TEXT, one))
        assert again.completions == alone.completions
    other = engine.run(
        shared_prefix([prompt], TEXT, replace(settings, tenant="other"), tree=engine.prefixes)
    )
    assert other.found == (0,)
    assert other.completions == first.completions


def test_a_wrong_prefix_would_be_noticed() -> None:
    """The control of these tests: a path with the tokens of one prompt and the keys of another."""
    engine = small_engine()
    choice = Choice(temperature=1.0, forbidden=TEXT.eos)
    told = [(Message("system", letters * 10),) for letters in ("b!", "!b")]
    one, other = (spec("sequential", replace(FIRST, earlier=e), choice=choice) for e in told)
    assert len(prompt_of(one)) == len(prompt_of(other))
    honest = engine.run(other.strategy(TEXT))
    assert unfound(engine.run(shared(engine, other))) == honest
    engine.prefixes.clear()
    engine.run(shared(engine, one))
    (root,) = engine.prefixes._roots.values()
    (node,) = root.children.values()
    assert node.tokens == prompt_of(one)
    node.tokens = prompt_of(other)
    forged = engine.run(shared(engine, other))
    assert forged.found == (len(node.tokens),)
    assert forged.text != honest.text


def test_tenants_never_share(engine: Engine) -> None:
    one = spec("hogwild")
    engine.run(shared(engine, one, "anna"))
    before = engine.usage
    assert engine.run(shared(engine, one, "ben")).found == (0,)
    assert engine.run(shared(engine, one)).found == (0,)
    assert (engine.usage - before).prefix_tokens_found == 0
    assert engine.run(shared(engine, one, "anna")).found == (len(prompt_of(one)),)


def test_samples_share_their_prompt_while_it_is_written(engine: Engine) -> None:
    """Three teams at the same time: the prompt is fed once, and each team writes what it would alone."""
    teams = spec("hogwild", budget=10).samples(3)
    assert [one.settings.seed for one in teams] == [0, 1, 2]
    before = engine.usage
    answers = engine.run_all(shared(engine, one, "samples") for one in teams)
    used = engine.usage - before
    (size,) = answers[0].prompt_tokens
    assert used.prefix_tokens_fed == size
    assert [answer.found for answer in answers] == [(0,), (size,), (size,)]
    alone = engine.run_all(one.strategy(TEXT) for one in teams)
    assert [unfound(answer) for answer in answers] == alone
    assert len({answer.tokens for answer in alone} | {answer.text for answer in alone}) > 2


@pytest.mark.parametrize("method", ["hogwild", "branches"])
def test_a_recorded_run_is_that_of_a_run_without_a_tree(engine: Engine, method: str) -> None:
    """Also half of it goes on: the trace holds every token that was fed, found or not."""
    one = spec(method)
    engine.run(shared(engine, one, f"trace {method}"))  # all of the prompt is there
    found: list[Line] = []
    alone: list[Line] = []
    recorded = record(one.strategy(TEXT), one.to_plain(), found.append)
    answer = engine.run(share_prompt(recorded, engine.prefixes, f"trace {method}"))
    assert answer.found > (0,)
    engine.run(record(one.strategy(TEXT), one.to_plain(), alone.append))
    assert list(map(without_unused, found)) == list(map(without_unused, alone))
    for end in (len(found) // 2, len(found) - 1):
        trace = parse_trace(copy.deepcopy(found[:end]))
        again = RunSpec.from_plain(trace.header)
        assert again == one
        lines: list[Line] = []
        strategy = engine.restore(again.strategy(TEXT), trace, write=lines.append)
        went_on = engine.run(share_prompt(strategy, engine.prefixes, f"trace {method}"))
        assert went_on == unfound(answer)
        assert list(map(without_unused, lines)) == list(map(without_unused, found[end:]))


def without_unused(line: Line) -> Line:
    """A line of a trace without tokens that nobody wrote: no use is made of them."""
    if line["kind"] != "pass":
        return line
    rows = [
        [view, feed, token if writer else 0, writer, *more]
        for view, feed, token, writer, *more in line["rows"]
    ]
    return {**line, "rows": rows}


def test_whoever_watches_is_told_of_the_views_of_the_strategy(engine: Engine) -> None:
    """Blocks have the numbers of the trace, however many blocks the prompt is in memory."""
    one = spec("hogwild")

    def told(strategy: Strategy) -> list[ViewsChanged]:
        run = engine.submit(strategy, lifecycle=True)
        finish(engine, run)
        return [event for event in run.events if isinstance(event, ViewsChanged)]

    engine.run(shared(engine, spec("sequential"), "views"))
    assert told(shared(engine, one, "views")) == told(one.strategy(TEXT))


def test_runs_that_share_are_preempted_and_come_back() -> None:
    roomy = small_engine(32768)
    runs = [
        spec(method, FIRST, seed=seed, rules_in="user", budget=20)
        for seed in range(3)
        for method in ("sequential", "self_consistency")
    ]
    alone = roomy.run_all(one.strategy(TEXT) for one in runs)
    engine = small_engine(16 * 400, overcommit=40)
    live = [engine.submit(shared(engine, one)) for one in runs]
    passes = 0
    while engine.step():
        passes += 1
        if passes % 4 == 0:
            preempt(engine)
    assert [unfound(run.result()) for run in live] == alone
    assert sum(run.num_preemptions for run in live) > 0
    engine.prefixes.clear()
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_text_of_a_writer_that_goes_on_elsewhere_is_found_as_far_as_it_is_ordinary() -> None:
    """Behind a finished block it goes on at a fresh one; what it wrote in both is a path then."""
    tokens, (x, y, *_) = TEXT.encode("a prompt of its own"), TEXT.encode("!b")

    def going_on() -> Strategy:
        start, a, b = Block("prompt"), Block("a"), Block("b")
        first = Row(View([start]), tokens)
        yield Reserve(len(tokens) + 40, 4, prompt=first)
        yield Step([first, Row(View([start, a]), (x, y), writer="a")])
        a.freeze()
        view = View([start, a, b])
        yield Step([Row(view, (y,), writer="a")])
        yield Step([Row(view, (x,), writer="a")])
        return Answer("")

    engine = small_engine()
    engine.run(share_prompt(going_on(), engine.prefixes))
    assert engine.prefixes.num_tokens == len(tokens) + 4


def test_whatever_ends_a_run_gives_the_path_back() -> None:
    engine = small_engine()
    waiting = spec("hogwild", budget=10)
    first, second = (engine.submit(shared(engine, waiting)) for _ in range(2))
    engine.step()
    engine.cancel(first)
    finish(engine, second)
    assert unfound(second.result()) == engine.run(waiting.strategy(TEXT))
    too_long = waiting.asked(Conversation("a b c " * 3000))
    with pytest.raises(OutOfMemory):
        engine.run(shared(engine, too_long))
    assert engine.prefixes.num_pages_in_use == 0
    engine.prefixes.clear()
    assert engine.pool.num_free_pages == engine.pool.num_pages


def lone(prompt: Row, *steps: Step) -> Strategy:
    yield Reserve(64, 4, prompt=prompt)
    for step in steps:
        tokens = yield step
        assert tokens is not None
    return Answer("")


def test_a_run_that_is_collected_together_with_its_engine_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error that holds both makes a circle of them; of such, weak references go before a run is closed."""
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: told.append(given.exc_value))
    engine = small_engine()
    run = shared(engine, spec("sequential"))
    reserved(run)
    run.send(None)  # it has its lease
    circle: list[object] = [engine.prefixes, run]
    circle.append(circle)
    tree = weakref.ref(engine.prefixes)
    del engine, run, circle
    gc.collect()
    assert tree() is None
    assert told == []


def test_a_strategy_that_does_not_keep_its_word_about_its_prompt() -> None:
    engine = small_engine()
    start, other = Block("start"), Block("other")
    prompt = Row(View((start,)), (1, 2, 3))
    writing = Row(View((start, other)), (4,))
    with pytest.raises(InvalidRequest, match="its first step does not feed it"):
        engine.run(share_prompt(lone(prompt, Step([Row(View((other,)), (4,))])), engine.prefixes))
    start = Block("start")
    prompt, more = Row(View((start,)), (1, 2, 3)), Row(View((start,)), (5,))
    writing = Row(View((start, Block("other"))), (4,))
    strategy = lone(prompt, Step([prompt, writing]), Step([more]))
    with pytest.raises(InvalidRequest, match="is only read"):
        engine.run(share_prompt(strategy, engine.prefixes))
    assert engine.prefixes.num_pages_in_use == 0


def test_text_that_was_written_in_company_is_no_path_for_others() -> None:
    """Its keys have met those of others: behind the prompt alone they would be different."""
    tokens, (x, y, *_) = TEXT.encode("a prompt of its own"), TEXT.encode("!b")

    def company() -> Strategy:
        start, a, b = Block("prompt"), Block("a"), Block("b")
        first = Row(View([start]), tokens)
        yield Reserve(len(tokens) + 40, 4, prompt=first)
        rows = [
            Row(View([start, b, a]), (x,), writer="a"),
            Row(View([start, a, b]), (y,), writer="b"),
        ]
        yield Step([first, *rows])
        yield Step(rows)
        return Answer("")

    engine = small_engine()
    engine.run(share_prompt(company(), engine.prefixes))
    assert engine.prefixes.num_tokens == len(tokens)


@pytest.mark.parametrize("most", [1, 7, 30])
def test_a_prompt_longer_than_a_pass_is_fed_in_parts(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyhands.strategies.prompt_sharing._MOST_TOKENS", most)
    engine, one = small_engine(), spec("hogwild")
    alone = engine.run(one.strategy(TEXT))
    for found in (0, len(prompt_of(one))):
        before = engine.usage
        answer = engine.run(shared(engine, one))
        parts = 0 if found else (len(prompt_of(one)) - 1) // most
        assert (answer.found, unfound(answer)) == ((found,), alone)
        passes = alone.forward_passes + alone.extra_passes + parts
        assert (engine.usage - before).forward_passes == passes


def test_a_run_reserves_what_it_writes_itself_besides_its_prompt(engine: Engine) -> None:
    """All of it until it has a lease, and without the prompt then, for which the tree answers. Its end is the strategy's."""
    one = spec("sequential")
    alone, strategy = reserved(one.strategy(TEXT)), one.strategy(TEXT)
    run = share_prompt(strategy, engine.prefixes, "reserves")
    first, second = reserved(run), run.send(None)
    assert isinstance(second, Reserve)
    size = len(prompt_of(one))
    assert first.num_tokens == alone.num_tokens > size
    assert second.num_tokens == alone.num_tokens - size
    run.close()
    with pytest.raises(StopIteration):
        next(strategy)


def test_a_strategy_without_a_prompt_stays_as_it_is() -> None:
    engine = small_engine()
    block = Block("text")

    def writing() -> Strategy:
        tokens = yield Step([Row(View((block,)), (1, 2))])
        return Answer(str(tokens))

    assert engine.run(share_prompt(writing(), engine.prefixes)).found == ()
    assert engine.prefixes.num_tokens == 0


def test_a_step_of_the_prompt_alone_that_is_found_whole_needs_no_pass() -> None:
    tokens = tuple(TEXT.encode("a prompt of its own"))

    def apart() -> Strategy:
        first = Row(View([prompt := Block("prompt")]), tokens[:-1])
        yield Reserve(len(tokens) + 4, 2, prompt=first)
        assert len((yield Step([first])) or ()) == 1
        written = yield Step([Row(View([prompt, Block("own")]), tokens[-1:], writer="writer")])
        return Answer(text=str(written))

    engine = small_engine()
    counts, answers = [], []
    for _ in range(2):
        before = engine.usage
        answers.append(engine.run(share_prompt(apart(), engine.prefixes)))
        counts.append((engine.usage - before).forward_passes)
    assert [answer.found for answer in answers] == [(0,), (len(tokens) - 1,)]
    assert unfound(answers[1]) == answers[0] == unfound(engine.run(apart()))
    assert counts == [2, 1]


def test_views_that_stand_in_stay_the_same_objects_and_go_on_as_those_of_the_strategy_do() -> None:
    """Otherwise each pass would look at each view anew: no answer would show it, but the time of a pass."""
    tokens = tuple(TEXT.encode("a prompt of its own"))
    asked: list[object] = []

    def team() -> Strategy:
        first = Row(View([prompt := Block("prompt")]), tokens)
        yield Reserve(len(tokens) + 60, 9, prompt=first)
        one, two, done, later, aside = (
            Block(name) for name in ["one", "two", "done", "later", "aside"]
        )
        rows = [Row(View([one], start := Beginning([prompt])), (5,)), Row(View([two], start), (6,))]
        yield Step([first, *rows, Row(View([done], start), (7,)), Row(View([aside]), (8,))])
        done.freeze()
        again = [Row(row.view, (9,)) for row in rows]
        for step in (Step(again), Step(again)):
            yield step
        grown = Beginning([prompt, done], start)
        yield Step([Row(View([one], grown), (5,)), Row(View([two], grown), (6,))])
        # Views of their own that begin alike.
        yield Step([Row(View([two], grown), (5,)), Row(View([later], grown), (6,))])
        plain = View([prompt, later])
        for step in (Step([Row(plain, (5,))]), Step([Row(plain, (6,))])):
            yield step
        yield Step([Row(View([Block("apart")]), (5,)), Row(View([aside], Beginning([one])), (5,))])
        return Answer("")

    engine = small_engine()
    engine.run(seen(share_prompt(team(), engine.prefixes), asked.append))
    standing = [step for step in asked if isinstance(step, StandIn)]
    opened, kept, same, grown, mixed, plain, plainly, apart = (
        [row.view for row in step.rows if row.feed not in (tokens, tokens[:-1])]
        for step in standing
    )
    opened = opened[-4:]
    assert [view is other for view, other in zip(kept, same, strict=True)] == [True, True]
    assert [view is other for view, other in zip(opened[:2], kept, strict=True)] == [True, True]
    assert opened[3].beginning is None
    start, beginning = opened[0].beginning, grown[0].beginning
    assert start is not None
    assert beginning is not None
    assert {id(view.beginning) for view in opened[:3]} == {id(start)}
    assert {id(view.beginning) for view in (*grown, *mixed)} == {id(beginning)}
    assert beginning.goes_on_from(start)
    assert plain[0] is plainly[0]
    origins = [row.view for row in standing[-1].origin.rows]
    assert [view is other for view, other in zip(apart, origins, strict=True)] == [True, True]


@pytest.mark.parametrize("others_come", [True, False])
def test_a_beginning_that_no_row_reads_any_more_is_let_go_of(others_come: bool) -> None:
    gone: list[weakref.ref[Block]] = []

    def behind(prompt: Block, name: str) -> View:
        return View([Block("own")], Beginning([prompt, Block(name).freeze()]))

    def turning() -> Strategy:
        first = Row(View([prompt := Block("prompt")]), (1, 2, 3))
        yield Reserve(20, 10, prompt=first)
        yield Step([first, Row(View([prompt, Block("own")]), (1,))])
        stays, goes = behind(prompt, "stays"), behind(prompt, "goes")
        gone.append(weakref.ref(goes.blocks[1]))
        yield Step([Row(stays, (1,)), Row(goes, (1,))])
        del goes
        views = [stays, behind(prompt, "comes")] if others_come else [stays]
        while True:
            yield Step([Row(view, (1,)) for view in views])

    strategy, sent = share_prompt(turning(), PrefixTree()), None
    for _ in range(5):
        asked = strategy.send(sent)
        sent = (1,) * len(asked.rows) if isinstance(asked, Step) else None
    assert [block() for block in gone] == [None]
    strategy.close()


def kept_behind(
    *steps: tuple[tuple[str, tuple[str, ...], str | None], ...], frozen: str = ""
) -> int:
    """Tokens that are kept besides those of the prompt, of a run that asks for these steps: (own block, blocks before it, writer)."""
    engine = small_engine(2048)
    known = {name: Block(name) for name in "pabcx"}
    engine.forward(Step([Row(View([known["x"]]), (7, 8))]))

    def run() -> Strategy:
        prompt = Row(View([known["p"]]), (1, 2, 3, 4))
        yield Reserve(100, 9, prompt=prompt)
        for number, rows in enumerate(steps):
            asked = [
                Row(View([known[each] for each in (*before, own)]), (5, 6), writer=writer)
                for own, before, writer in rows
            ]
            yield Step([*[prompt] * (not number), *asked])
            for name in frozen:
                if known[name].tokens:
                    known[name].freeze()
        return Answer(text="")

    engine.run(share_prompt(run(), engine.prefixes))
    return engine.prefixes.num_tokens - 4


def test_text_is_kept_that_was_written_in_just_the_view_of_the_prompt() -> None:
    first = (("a", ("p",), "w"),)
    assert kept_behind(first) == 2
    assert kept_behind(first, (("b", ("p", "a"), "w"),), frozen="a") == 4
    assert kept_behind((("x", ("p",), "w"),)) == 0, "its first tokens were not"
    assert kept_behind(first, (("b", ("p", "a"), "w"),)) == 0, "what it reads might go on"
    beside = (*first, ("b", ("p", "a"), None))
    assert kept_behind(beside, (("c", ("p", "b"), "w"),), frozen="ab") == 0, "b has read a"
