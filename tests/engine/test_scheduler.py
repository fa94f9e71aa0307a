"""Many strategies in one pass: each gets what it would get alone, and nobody suffers for another."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.filling import Filling
from manyhands.engine.run import Run
from manyhands.engine.scheduler import Scheduler
from manyhands.errors import (
    ContextTooLong,
    InvalidRequest,
    ManyhandsError,
    OutOfMemory,
    RunCancelled,
)
from manyhands.strategies.base import Answer, Reserve, Strategy
from manyhands.strategies.events import Event, StepEnded, TokenWritten, UsageCounted
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import shared_prefix
from tests.covers import is_every_case
from tests.engine.small import (
    CONTEXT,
    LETTERS,
    NUM_IDS,
    TEXT,
    counting,
    executor_of,
    finish,
    small_engine,
    solo,
    story,
    story_of,
    team,
)

GREEDY = Choice(allowed=LETTERS)
SAMPLED = Choice(temperature=1.0, top_p=0.95, allowed=LETTERS)


def a_mixed_crowd(choice: Choice) -> dict[str, Callable[[], Strategy]]:
    """Strategies of every kind and size, each made anew when called."""
    return {
        "two workers": lambda: team(2, choice=choice, seed=3),
        "three, interleaved": lambda: team(3, choice=choice, seed=2, layout="interleaved"),
        "four, contiguous": lambda: team(4, choice=choice, seed=1, layout="contiguous", budget=17),
        "one worker": lambda: team(1, choice=choice, seed=4, budget=9, snapshots=(5,)),
        "sequential": lambda: solo(choice=choice, seed=5),
        "sequential again": lambda: solo(choice=choice, seed=6, budget=11),
        "plain": lambda: counting((5, 6, 7), 25),
    }


CHOICES = {"greedy": GREEDY, "sampled": SAMPLED}


@cache
def alone(choice: str = "sampled") -> dict[str, list[Event | Answer]]:
    """The story of each of them without the others."""
    engine, crowd = small_engine(16384), a_mixed_crowd(CHOICES[choice])
    told = {name: story(engine, make()) for name, make in crowd.items()}
    assert everything_is_free(engine)
    return told


def everything_is_free(engine: Engine) -> bool:
    """Whether nobody holds a page, without help from the garbage collector."""
    return engine.pool.num_free_pages == engine.pool.num_pages


# -- together and alone ----------------------------------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES)
def test_many_together_are_each_alone(choice: str) -> None:
    crowd = a_mixed_crowd(CHOICES[choice])
    engine = small_engine(16384)
    ended = [e for events in alone(choice).values() for e in events if isinstance(e, StepEnded)]
    assert choice == "greedy" or len(ended) >= 5, "finished steps were meant to be part of this"
    runs = {name: engine.submit(make()) for name, make in crowd.items()}
    finish(engine, *runs.values())
    for name, run in runs.items():
        assert story_of(run) == alone(choice)[name], name
    assert everything_is_free(engine)


def test_run_all_answers_in_order() -> None:
    crowd = a_mixed_crowd(SAMPLED)
    engine = small_engine(16384)
    together = engine.run_all(make() for make in crowd.values())
    assert together == [told[-1] for told in alone().values()]
    assert engine.run_all([]) == []


def test_who_comes_later_changes_nothing() -> None:
    engine = small_engine()
    alone = story(engine, team(2, choice=SAMPLED)), story(engine, counting((9, 8), 20))
    first = engine.submit(team(2, choice=SAMPLED))
    for _ in range(7):
        engine.step()
    second = engine.submit(counting((9, 8), 20))
    finish(engine, first, second)
    assert (story_of(first), story_of(second)) == alone


@pytest.mark.parametrize("victim", ["two workers", "sequential", "plain", "three, interleaved"])
def test_cancelling_one_leaves_the_others_alone(victim: str) -> None:
    crowd = a_mixed_crowd(SAMPLED)
    engine = small_engine(16384)
    runs = {name: engine.submit(make()) for name, make in crowd.items()}
    while runs[victim].num_passes < 3:
        engine.step()
    before = engine.pool.num_free_pages
    engine.cancel(runs[victim])
    assert runs[victim].done
    assert engine.pool.num_free_pages > before
    others = {name: run for name, run in runs.items() if name != victim}
    finish(engine, *others.values())
    expected = {name: told for name, told in alone().items() if name != victim}
    assert {name: story_of(run) for name, run in others.items()} == expected
    assert everything_is_free(engine)
    with pytest.raises(RunCancelled, match="was cancelled"):
        runs[victim].result()


def test_an_unfinished_run_has_no_result() -> None:
    run = small_engine().submit(counting((1,)))
    with pytest.raises(InvalidRequest, match="has not ended"):
        run.result()


@pytest.mark.parametrize("num_events", [0, 1, 5])
def test_closing_a_stream_frees_everything(num_events: int) -> None:
    engine = small_engine()
    stream = engine.stream(team(3, choice=SAMPLED))
    for _ in range(num_events):
        next(stream)
    stream.close()  # type: ignore[attr-defined]  # a generator, promised only as an iterator
    assert everything_is_free(engine)
    assert not engine.step()
    assert engine.run(counting((1,), 3)).text


def test_a_stream_ends_with_what_it_cost_and_the_answer() -> None:
    engine = small_engine()
    *_, counted, answer = engine.stream(counting((1, 2), 4))
    assert isinstance(counted, UsageCounted)
    assert isinstance(answer, Answer)
    assert counted.forward_pass == counted.usage.forward_passes == 4
    assert counted.usage == engine.usage


def test_a_stream_reports_in_order() -> None:
    *events, answer = story(small_engine(), counting((1, 2), 4))
    assert [type(event) for event in events] == [TokenWritten] * 4
    assert isinstance(answer, Answer)
    tokens = [event.token for event in events if isinstance(event, TokenWritten)]
    assert answer.text == " ".join(map(str, tokens))


# -- passes of bounded size ------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7])
def test_a_small_pass_changes_nothing(limit: int, pytestconfig: pytest.Config) -> None:
    crowd = a_mixed_crowd(SAMPLED)
    if limit == 1 and not is_every_case(pytestconfig):  # as many passes as there are tokens
        crowd = {name: crowd[name] for name in ("two workers", "one worker", "plain")}
    engine = small_engine(16384, max_tokens_per_pass=limit)
    runs = {name: engine.submit(make()) for name, make in crowd.items()}
    finish(engine, *runs.values())
    for name, run in runs.items():
        assert story_of(run) == alone()[name], name


def test_a_small_pass_is_shared_fairly() -> None:
    engine = small_engine(max_tokens_per_pass=3)
    runs = [engine.submit(counting((i,), 30)) for i in range(1, 8)]
    for _ in range(35):
        engine.step()
        progress = [len(run.events) for run in runs]
        assert max(progress) - min(progress) <= 1
    assert sum(progress) == 3 * 35


def test_a_prompt_larger_than_a_pass_takes_one_of_its_own() -> None:
    engine = small_engine(max_tokens_per_pass=8)
    runs = [engine.submit(counting((1,) * size, 6)) for size in (2, 50, 3)]
    finish(engine, *runs)
    assert [len(run.events) for run in runs] == [6, 6, 6]


# -- admission -------------------------------------------------------------------------------------


def test_who_does_not_fit_waits() -> None:
    """Memory for one of them: the second begins when the first has ended, and so on, in order."""
    engine = small_engine(memory_tokens=160)
    alone = [story(engine, counting((i,), 20)) for i in (1, 2, 3)]
    reserve = Reserve(num_tokens=100, num_blocks=1)
    runs = [engine.submit(counting((i,), 20, reserve)) for i in (1, 2, 3)]
    while not all(run.done for run in runs):
        engine.step()
        begun = [bool(run.events) for run in runs]
        assert begun == sorted(begun, reverse=True)
        writing = [run for run in runs if run.events and not run.done]
        assert len(writing) <= 1
    assert [story_of(run) for run in runs] == alone
    assert everything_is_free(engine)


def test_two_that_fit_are_let_in_together_and_small_ones_do_not_overtake() -> None:
    engine = small_engine(memory_tokens=320)  # 20 pages
    sizes = (150, 150, 150, 16)
    runs = [engine.submit(counting((1,), 5, Reserve(size, 1))) for size in sizes]
    engine.step()
    assert [bool(run.events) for run in runs] == [True, True, False, False]
    finish(engine, *runs)


def test_a_cancelled_run_lets_the_next_one_in() -> None:
    engine = small_engine(memory_tokens=160)
    first, second = (engine.submit(counting((1,), 20, Reserve(100, 1))) for _ in range(2))
    engine.step()
    engine.cancel(first)
    finish(engine, second)
    assert second.result().text


def test_who_waits_can_be_cancelled() -> None:
    engine = small_engine(memory_tokens=160)
    first, second = (engine.submit(counting((1,), 4, Reserve(100, 1))) for _ in range(2))
    engine.step()
    engine.cancel(second)
    finish(engine, first)
    assert not engine.step()


def test_a_run_that_never_fits_is_told_so() -> None:
    engine = small_engine(memory_tokens=160)
    fits = engine.submit(counting((1,), 8))
    never = engine.submit(counting((1,), 8, Reserve(161, 1)))
    finish(engine, fits, never)
    with pytest.raises(OutOfMemory, match="11 pages of 16 tokens") as caught:
        never.result()
    assert "176 memory_tokens" in caught.value.hint
    assert len(fits.events) == 8


def test_a_refusal_counts_in_the_unit_that_decides() -> None:
    """Many blocks of few tokens: fewer tokens than the memory holds, and more pages. The memory that the hint names is enough."""
    asked = Reserve(100, 9)
    engine = small_engine(memory_tokens=240)
    fits = engine.submit(counting((1,), 8, asked))
    finish(engine, fits)
    assert fits.result().text
    small = small_engine(memory_tokens=160)
    never = small.submit(counting((1,), 8, asked))
    finish(small, never)
    with pytest.raises(OutOfMemory, match="may need 15 pages of 16 tokens") as caught:
        never.result()
    assert "240 memory_tokens" in caught.value.hint


def test_runs_that_wait_for_each_other_are_told_so() -> None:
    """Two that hold half of the memory each and ask for all of it must not wait for ever."""

    def greedy_for_memory() -> Generator[Any, Any, Answer]:
        yield Reserve(70, 1)
        view = View([Block()])
        yield Step([Row(view, (1,))])
        try:
            yield Reserve(140, 1)
        except OutOfMemory as error:
            return Answer(text=str(error))
        yield Step([Row(view, (1,))])
        return Answer(text="enough")

    engine = small_engine(memory_tokens=160)
    runs = [engine.submit(greedy_for_memory()) for _ in range(2)]
    for _ in range(10):
        engine.step()
    refused, granted = [run.result().text for run in runs]
    assert refused.startswith(
        "the run asks for 9 pages of 16 tokens (140 tokens in 1 block), 10 of 10 pages"
    )
    assert granted == "enough"


@pytest.mark.parametrize("order", ["keeps first", "takes first"])
def test_a_run_that_keeps_to_its_bound_is_not_ended_by_one_that_does_not(order: str) -> None:
    engine = small_engine(memory_tokens=160, overcommit=1.0)
    strategies = [counting((1,), 90, Reserve(96, 1)), counting((1,), 90, Reserve(4, 1))]
    runs = [engine.submit(each) for each in strategies[:: 1 if order == "keeps first" else -1]]
    finish(engine, *runs)
    keeps, takes = runs[:: 1 if order == "keeps first" else -1]
    assert len(keeps.events) == 90
    assert keeps.result().text
    with pytest.raises(OutOfMemory, match="the run holds 80 tokens and has reserved 16"):
        takes.result()


# -- what goes wrong in one ends that one ----------------------------------------------------------


class Trouble(Exception):
    """An error that somebody's strategy may raise."""


def _guilty() -> dict[str, tuple[type[Exception], Callable[[], Strategy]]]:
    """Strategies that fail after two good passes, by name, and with what."""

    def failing(last: Callable[[View], object]) -> Callable[[], Strategy]:
        def strategy() -> Generator[Any, Any, Any]:
            view = View([Block("guilty")])
            yield Step([Row(view, (1, 2, 3))])
            yield Step([Row(view, (4,))])
            yield last(view)
            raise AssertionError("it went on")

        return strategy

    def throwing(error: Exception) -> Callable[[View], object]:
        def throw(view: View) -> object:
            raise error

        return throw

    def ending(view: View) -> Generator[Any, Any, Any]:
        yield Step([Row(View([Block()]), (1,))])

    return {
        "too long a context": (
            ContextTooLong,
            failing(lambda view: Step([Row(view, (1,) * CONTEXT)])),
        ),
        "too little memory": (
            OutOfMemory,
            failing(lambda _: Step(Row(View([Block()]), (1,) * 900) for _ in range(5))),
        ),
        "a token that is none": (
            InvalidRequest,
            failing(lambda view: Step([Row(view, (NUM_IDS,))])),
        ),
        "an impossible choice": (
            InvalidRequest,
            failing(lambda view: Step([Row(view, (1,), Choice(allowed=frozenset({NUM_IDS})))])),
        ),
        "logits that are no numbers": (
            ManyhandsError,
            failing(lambda view: Step([Row(view, (0,))])),
        ),
        "nonsense": (InvalidRequest, failing(lambda _: "nonsense")),
        "nothing": (InvalidRequest, failing(lambda _: None)),
        "a block frozen in between": (
            InvalidRequest,
            failing(lambda view: (Step([Row(view, (1,))]), view.own.freeze())[0]),
        ),
        "an error of ours": (ManyhandsError, failing(throwing(ManyhandsError("enough")))),
        "an error of anybody": (Trouble, failing(throwing(Trouble("enough")))),
        "no answer": (InvalidRequest, lambda: ending(View([Block()]))),
    }


@torch.no_grad()
def _break_token_0(engine: Engine) -> None:
    """Let whoever is fed token 0 get logits that are no numbers."""
    embeddings: Any = executor_of(engine).adapter.model.get_input_embeddings()
    embeddings.weight[0] = float("nan")


@pytest.mark.parametrize("name", _guilty())
def test_the_others_do_not_notice(name: str) -> None:
    error, make = _guilty()[name]
    engine = small_engine(memory_tokens=4096)
    _break_token_0(engine)
    assert SAMPLED.allowed is not None
    unbroken = replace(SAMPLED, allowed=SAMPLED.allowed - {0})
    innocent: list[Callable[[], Strategy]] = [
        lambda: counting((5, 6), 9),
        lambda: team(2, choice=unbroken, budget=12),
        lambda: counting((7,), 9),
    ]
    alone = [story(engine, strategy()) for strategy in innocent]
    runs = [engine.submit(innocent[0]()), engine.submit(make())]
    runs += [engine.submit(strategy()) for strategy in innocent[1:]]
    finish(engine, *runs)
    guilty = runs.pop(1)
    assert [story_of(run) for run in runs] == alone
    assert everything_is_free(engine), "though the error is kept"
    with pytest.raises(error):
        guilty.result()


@pytest.mark.parametrize("name", _guilty())
def test_run_and_stream_raise_what_went_wrong(name: str) -> None:
    error, make = _guilty()[name]
    engine = small_engine(memory_tokens=4096)
    _break_token_0(engine)
    with pytest.raises(error):
        engine.run(make())
    with pytest.raises(error):
        story(engine, make())
    with pytest.raises(error):
        engine.run_all([counting((2,), 50), make(), counting((2,), 50)])
    assert not engine._scheduler.runs
    gc.collect()
    assert everything_is_free(engine)


def test_an_error_shows_where_it_came_from() -> None:
    engine = small_engine()
    with pytest.raises(Trouble) as caught:
        engine.run(_guilty()["an error of anybody"][1]())
    assert "throw" in [entry.name for entry in caught.traceback]


def test_a_strategy_may_handle_an_error_and_go_on() -> None:
    def careful() -> Generator[Any, Any, Answer]:
        view = View([Block()])
        try:
            yield Step([Row(view, (1,) * (CONTEXT + 1))])
        except ContextTooLong:
            tokens = yield Step([Row(view, (1, 2))])
        return Answer(text=str(tokens))

    engine = small_engine()
    other = engine.submit(counting((3,), 5))
    answer = engine.run(careful())
    assert answer.text.startswith("(")
    finish(engine, other)
    assert everything_is_free(engine)


def test_an_error_behind_an_error_does_not_hold_memory() -> None:
    """A strategy that raises its own error while it handles the engine's."""

    def translating() -> Generator[Any, Any, Answer]:
        view = View([Block()])
        yield Step([Row(view, (1,) * 50)])
        try:
            yield Step([Row(view, (1,) * CONTEXT)])
        except ContextTooLong as error:
            raise Trouble("too much to read") from error
        raise AssertionError("it went on")

    engine = small_engine()
    run = engine.submit(translating())
    while not run.done:
        engine.step()
    assert everything_is_free(engine)
    with pytest.raises(Trouble):
        run.result()


def test_an_interrupt_is_nobodys_error() -> None:
    """Ctrl-C while a strategy computes reaches the caller at once; the memory is free afterwards."""

    def interrupted() -> Generator[Any, Any, Answer]:
        yield Step([Row(View([Block()]), (1, 2))])
        raise KeyboardInterrupt

    engine = small_engine()
    with pytest.raises(KeyboardInterrupt):
        engine.run(interrupted())
    gc.collect()
    assert everything_is_free(engine)
    assert engine.run(counting((1,), 3)).text


@pytest.mark.parametrize("num_before", [0, 1, 2])
def test_an_interrupt_takes_no_token_from_the_others(num_before: int) -> None:
    """Their tokens are fed once, and told them in the next pass."""

    def interrupted() -> Generator[Any, Any, Answer]:
        yield Step([Row(View([Block()]), (1, 2))])
        raise KeyboardInterrupt

    engine = small_engine()
    strategies: list[Callable[[], Strategy]] = [
        lambda: counting((5, 6, 7), 5),
        lambda: counting((8, 9), 4),
    ]
    expected = [engine.run(strategy()) for strategy in strategies]
    runs = [engine.submit(strategy()) for strategy in strategies[:num_before]]
    guilty = engine.submit(interrupted())
    runs += [engine.submit(strategy()) for strategy in strategies[num_before:]]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert guilty.done
    while engine.step():
        pass
    assert [run.result() for run in runs] == expected


def test_what_was_submitted_before_a_wrong_one_is_cancelled() -> None:
    engine = small_engine()
    strategies: list[Any] = [counting((1, 2), 5), "no strategy"]
    with pytest.raises(InvalidRequest, match="a str was given"):
        engine.run_all(strategies)
    assert not engine.step()
    assert everything_is_free(engine)


def test_a_run_that_was_refused_holds_nobodys_memory() -> None:
    """Its error lives as long as the run does; what others wait for must not hang on it."""
    engine = small_engine(memory_tokens=480)
    refused = engine.submit(counting((1,), 3, Reserve(100_000, 1)))
    settings = SharedSettings(max_tokens=30, choice=SAMPLED)
    other = engine.submit(shared_prefix([(1, 2, 3)], TEXT, settings, tree=engine.prefixes))
    gc.disable()
    try:
        finish(engine, other, refused)
        del other
        engine.prefixes.clear()
        assert everything_is_free(engine)
    finally:
        gc.enable()
    with pytest.raises(OutOfMemory):
        refused.result()


def test_a_failing_network_leaves_every_run_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = small_engine()
    alone = [story(engine, counting((i,), 10)) for i in (1, 2)]
    runs = [engine.submit(counting((i,), 10)) for i in (1, 2)]
    for _ in range(4):
        engine.step()

    def fail(*_: object) -> None:
        raise RuntimeError("the device is on fire")

    with monkeypatch.context() as broken:
        broken.setattr(executor_of(engine).adapter, "forward", fail)
        with pytest.raises(RuntimeError, match="on fire"):
            engine.step()
    finish(engine, *runs)
    assert [story_of(run) for run in runs] == alone


@pytest.mark.parametrize("wrong", [42, counting, [Step([Row(View([Block()]), (1,))])]])
def test_what_is_no_strategy_is_refused(wrong: Any) -> None:
    engine = small_engine()
    with pytest.raises(InvalidRequest, match="expected a generator"):
        engine.run(wrong)
    assert not engine.step()


def test_a_strategy_that_does_nothing() -> None:
    def at_once() -> Generator[Any, Any, Answer]:
        yield TokenWritten(0, 0, 1, "")
        return Answer(text="done")

    engine = small_engine()
    assert engine.run(at_once()) == Answer(text="done")
    assert len(story(engine, at_once())) == 2


# -- without a network -----------------------------------------------------------------------------


def test_a_pass_asks_once_for_everybody() -> None:
    asked: list[int] = []

    def predict(step: Step) -> tuple[int, ...]:
        asked.append(len(step.rows))
        return tuple(range(len(step.rows)))

    scheduler = Scheduler(predict, PagePool(8), Filling(100))
    runs: list[Run] = [scheduler.submit(counting((1,), size)) for size in (1, 3, 2)]
    while scheduler.step():
        pass
    assert asked == [3, 2, 1]
    assert [run.result().text for run in runs] == ["0", "1 0 0", "2 1"]


def test_events_come_without_a_pass() -> None:
    def chatty() -> Generator[Event, Any, Answer]:
        for count in range(3):
            yield Event(count)
        return Answer(text="")

    scheduler = Scheduler(lambda step: (), PagePool(1), Filling(1))
    assert [event.forward_pass for event in scheduler.submit(chatty()).events] == [0, 1, 2]
    assert not scheduler.step()


# -- asking for memory more than once ---------------------------------------------------------------


def asking(*asked: Reserve, prompt: int = 1) -> Strategy:
    """Asks for all of these in turn, then writes a token."""
    yield from asked
    (token,) = yield Step([Row(View([Block()]), (prompt,))])
    return Answer(text=str(token))


def test_who_gives_memory_back_goes_on_in_the_same_pass() -> None:
    engine = small_engine(memory_tokens=160)
    first = engine.submit(asking(Reserve(160, 0), Reserve(16, 0)))
    second = engine.submit(counting((1,), 2, Reserve(144, 0)))
    engine.step()
    assert first.done
    assert second.step is not None, "there was room as soon as it was given back"
    finish(engine, second)


def test_who_asks_again_is_not_held_up_by_those_who_wait() -> None:
    """It asks for no more than it has, three passes long; a large one waits before it."""
    engine = small_engine(memory_tokens=160)
    same = Reserve(16, 1)
    patient = engine.submit(asking(same, same, same))
    others = engine.submit(counting((1,), 9, Reserve(16, 0)))
    large = engine.submit(counting((1,), 2, Reserve(160, 0)))
    for _ in range(3):
        assert not patient.done
        engine.step()
    assert patient.done
    assert large.asked is not None
    finish(engine, others, large)


def test_who_asks_again_keeps_what_it_has_though_more_is_promised_than_there_is() -> None:
    """The run behind it is preemptible, and with it not all fits."""
    engine = small_engine(memory_tokens=160, overcommit=2)
    same = Reserve(100, 1)
    first = engine.submit(asking(same, same, same))
    second = engine.submit(counting((1,), 20, same))
    for _ in range(3):
        assert not first.done
        engine.step()
    assert first.done
    assert second.step is not None
    finish(engine, second)


def test_what_is_needed_is_looked_up_when_there_is_room() -> None:
    engine = small_engine(memory_tokens=160)
    needs = iter([Reserve(160, 0), Reserve(160, 0), Reserve(16, 0)])
    other = engine.submit(counting((1,), 9, Reserve(16, 0)))
    run = engine.submit(asking(Reserve(160, 0, lambda: next(needs, Reserve(16, 0)))))
    finish(engine, run)
    assert not other.done
    finish(engine, other)


@pytest.mark.parametrize("wrong", [3, "ab", [1]])
def test_a_reservation_of_another_kind_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="to renew a reservation; expected a function"):
        Reserve(5, 1, renew=wrong)
    with pytest.raises(InvalidRequest, match="as the prompt of a reservation; expected a Row"):
        Reserve(5, 1, prompt=wrong)


def test_a_cancellation_that_an_interrupt_has_left_comes_before_the_next_pass() -> None:
    engine = small_engine()
    first, second = engine.submit(counting((1, 2), 9)), engine.submit(counting((3, 4), 9))
    engine.step()
    scheduler = engine._scheduler
    predict, fed = scheduler.predict, list[Step]()

    def interrupted(step: Step) -> tuple[int, ...]:
        engine.cancel(second)
        assert not second.done, "it waits for the end of the pass"
        raise KeyboardInterrupt

    def seen(step: Step) -> tuple[int, ...]:
        fed.append(step)
        return predict(step)

    scheduler.predict = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    scheduler.predict = seen
    engine.step()
    assert [len(step.rows) for step in fed] == [1]
    assert second.done
    finish(engine, first)
    assert len(first.result().text.split()) == 9


def test_where_no_run_of_a_pass_keeps_its_bound_the_one_without_room_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not the one that holds most: it was to make room for one that keeps its bound."""
    engine = small_engine(memory_tokens=160)
    monkeypatch.setattr(engine._scheduler.preemption, "preempt", lambda: False)
    most = engine.submit(counting((1,) * 90, 6))
    other = engine.submit(counting((2,) * 63, 6))
    finish(engine, most, other)
    assert len(most.result().text.split()) == 6
    with pytest.raises(OutOfMemory, match="this step needs 1 more page"):
        other.result()


def test_a_step_that_wants_all_of_the_memory_is_not_too_large() -> None:
    """It has it once others have left."""

    def greedy() -> Generator[Any, Any, Answer]:
        view = View([Block("text")])
        yield Step([Row(view, (1,) * 100)])
        yield Step([Row(view, (1,) * 60)])
        return Answer(text="read")

    engine = small_engine(memory_tokens=160, overcommit=4)
    first, second = engine.submit(greedy()), engine.submit(counting((2,) * 16, 20))
    finish(engine, first, second)
    assert first.result().text == "read"
    assert len(second.result().text.split()) == 20
    assert second.num_preemptions
