"""Prompts beside rows that write: fed in parts, and each run gets what it would get alone."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine import filling
from manyhands.engine.engine import Engine
from manyhands.engine.run import Run, RunState
from manyhands.engine.scheduler import Scheduler
from manyhands.errors import ContextTooLong, InvalidRequest, OutOfMemory
from manyhands.model.adapter import experts_of_a_token
from manyhands.strategies.base import Answer, Reserve, Strategy
from tests.covers import is_every_case
from tests.engine.small import CONTEXT, NUM_IDS, TEXT, counting, finish, small_engine
from tests.engine.test_interrupts import insist, watch_at
from tests.model.families_zoo import tiny_models
from tests.strikes import Place, Watch, first_and_last, strike_all

LONG = tuple(TEXT.encode("a long prompt, " * 12))[:100]
OTHER = tuple(TEXT.encode("another prompt of the same kind; " * 9))[:90]


def writers(engine: Any, count: int = 2) -> list[Run]:
    """Runs that have begun to write."""
    runs = [engine.submit(counting((5, 6, 7 + index), 60)) for index in range(count)]
    for _ in range(3):
        engine.step()
    return runs


def test_rows_that_write_do_not_wait_for_a_prompt() -> None:
    engine = small_engine(prompt_tokens=16)
    runs = writers(engine)
    prompt = engine.submit(counting(LONG, 4))
    sizes = []
    while not prompt.num_passes:
        before, written = engine.usage, [run.num_passes for run in runs]
        engine.step()
        sizes.append((engine.usage - before).tokens_fed)
        assert [run.num_passes for run in runs] == [count + 1 for count in written]
    assert len(sizes) == 8
    assert max(sizes) == 16, "rows that write included"
    finish(engine, prompt, *runs)
    alone = small_engine()
    assert prompt.result() == alone.run(counting(LONG, 4))
    for index, run in enumerate(runs):
        assert run.result() == alone.run(counting((5, 6, 7 + index), 60))


def test_one_prompt_is_fed_after_the_other_and_together_where_none_writes() -> None:
    engine = small_engine(prompt_tokens=16)
    runs = writers(engine, 1)
    first, second = engine.submit(counting(LONG, 2)), engine.submit(counting(OTHER, 2))
    order = []
    while not (first.done and second.done):
        engine.step()
        order.append((bool(first.lengths), bool(second.lengths)))
    assert (True, True) not in order, "the second waits for the first"
    finish(engine, *runs)
    alone = small_engine(prompt_tokens=16)
    before = alone.usage
    runs = [alone.submit(counting(prompt, 2)) for prompt in (LONG, OTHER)]
    alone.step()
    assert (alone.usage - before).tokens_fed == len(LONG) + len(OTHER)
    assert [runs[0].num_passes, runs[1].num_passes] == [1, 1]


@pytest.mark.parametrize("size", [10, 30])
def test_prompts_do_not_wait_for_a_very_long_one(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside rows that write, and the long one goes on by a quarter of each pass at least."""

    def passes(times: int) -> tuple[int, int]:
        """Until a prompt of 100 tokens and a shorter one, which comes behind it, have their first tokens."""
        monkeypatch.setattr(filling, "_VERY_LONG", times)
        engine = small_engine(prompt_tokens=16)
        runs = writers(engine, 1)
        both = engine.submit(counting(LONG, 2)), engine.submit(counting(OTHER[:size], 2))
        found = [0, 0]
        for number in range(1, 20):
            engine.step()
            for at, run in enumerate(both):
                found[at] = found[at] or number * bool(run.num_passes)
        finish(engine, *runs, *both)
        assert both[0].result() == small_engine().run(counting(LONG, 2))
        assert both[1].result() == small_engine().run(counting(OTHER[:size], 2))
        return found[0], found[1]

    long, short = passes(2)
    assert short == {10: 1, 30: 3}[size]
    assert long == {10: 8, 30: 9}[size]
    one_after_the_other = passes(16)
    assert one_after_the_other[0] == 7, "control"
    assert one_after_the_other[1] > 7


def test_a_very_long_prompt_goes_on_beside_ever_more_short_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filling, "_VERY_LONG", 2)
    engine = small_engine(prompt_tokens=16)
    runs = writers(engine, 1)
    long, fed = engine.submit(counting(LONG, 2)), [0]
    while sum(long.lengths.values()) < 60 and not long.num_passes:
        runs.append(engine.submit(counting(OTHER[:17], 1)))
        engine.step()
        fed.append(sum(block.num_tokens for block in long.lengths))
        assert len(fed) < 30
        if fed[-1] > len(LONG) - 2 * 16:  # not very long any more
            break
    assert {last - first for first, last in pairwise(fed[1:-1])} == {4}
    finish(engine, long, *runs)
    assert long.result() == small_engine().run(counting(LONG, 2))


def test_short_prompts_beside_a_very_long_one_share_what_is_left_of_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filling, "_VERY_LONG", 1)
    engine = small_engine(prompt_tokens=32)
    runs = writers(engine, 1)
    long = engine.submit(counting(LONG, 2))
    engine.step()
    short = [engine.submit(counting(OTHER[at : at + 5], 2)) for at in range(9)]
    before = engine.usage
    engine.step()
    assert [run.num_passes for run in short] == [1] * 7 + [0] * 2
    assert (engine.usage - before).tokens_fed == 1 + 6 * 5 + 5 + 8
    finish(engine, long, *runs, *short)
    assert long.result() == small_engine().run(counting(LONG, 2))


def test_short_prompts_that_come_at_once_are_read_as_whole_ones_are() -> None:
    """Also those that would have room beside rows that write."""
    engine = small_engine(prompt_tokens=16, prompt_tokens_alone=40)
    runs = [engine.submit(counting(OTHER[at : at + 12], 3)) for at in range(5)]
    before = engine.usage
    engine.step()
    assert (engine.usage - before).tokens_fed == 36
    assert [run.num_passes for run in runs] == [1] * 3 + [0] * 2
    finish(engine, *runs)
    for at, run in enumerate(runs):
        assert run.result() == small_engine().run(counting(OTHER[at : at + 12], 3))


def test_rows_that_write_stand_in_every_pass_however_many_prompts_wait() -> None:
    """Of many more tokens than a pass has."""
    engine = small_engine(prompt_tokens=16, max_tokens_per_pass=40, memory_tokens=4096)
    runs = [engine.submit(counting(OTHER[at : at + 30], 9)) for at in range(12)]
    counts = []
    while not runs[-1].done:
        writing = [run for run in runs if run.num_passes and not run.done]
        before = [run.num_passes for run in writing]
        engine.step()
        assert [run.num_passes for run in writing] == [count + 1 for count in before]
        counts.append(len(writing))
    assert max(counts) >= 2, "control: some write, and prompts go on"
    assert counts.count(0) == 1
    for at, run in enumerate(runs):
        assert run.result() == small_engine().run(counting(OTHER[at : at + 30], 9))


def test_prompts_that_wait_are_read_one_after_the_other() -> None:
    """Where a pass has no room for all of them: in turns, all would end last."""
    engine = small_engine(prompt_tokens=16, max_tokens_per_pass=24, memory_tokens=4096)
    runs = [engine.submit(counting(OTHER[at : at + 60], 2)) for at in range(6)]
    begun = []
    while not runs[-1].done:
        engine.step()
        begun.append(sum(bool(run.lengths) for run in runs))
    assert max(begun) == 1
    ends = [run.result() for run in runs]
    assert ends == [small_engine().run(counting(OTHER[at : at + 60], 2)) for at in range(6)]


def test_a_run_that_comes_while_a_very_long_prompt_is_read_waits_for_a_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while no row writes: each pass reads as much as fits, and one more run may take part in the next."""
    monkeypatch.setattr(filling, "_VERY_LONG", 2)
    engine = small_engine(max_tokens_per_pass=20)
    long = engine.submit(counting(LONG, 2))
    engine.step()
    assert [block.num_tokens for block in long.lengths] == [20]
    short = engine.submit(counting((5, 6, 7), 2))
    engine.step()
    engine.step()
    assert short.num_passes, "in the next pass, or in the one behind it"
    assert not long.num_passes
    other = engine.submit(counting(LONG, 2))
    engine.step()
    engine.cancel(other)
    finish(engine, long, short)
    assert long.result() == small_engine().run(counting(LONG, 2))
    assert short.result() == small_engine().run(counting((5, 6, 7), 2))


def reading_in_the_same_pass() -> Generator[Step, Any, Answer]:
    """Rows that read what another row is fed in this very pass, as headers read a prompt."""
    prompt, header = Block("prompt"), Block("header")
    tokens = yield Step([Row(View([prompt]), LONG), Row(View([prompt, header]), (3, 4, 5))])
    assert tokens is not None
    more = yield Step([Row(View([prompt, header, Block()]), tokens[1:])])
    return Answer(text=str((tokens[1], more)))


def test_rows_that_read_a_prompt_are_fed_with_its_end() -> None:
    engine = small_engine(prompt_tokens=16)
    runs = writers(engine)
    run = engine.submit(reading_in_the_same_pass())
    finish(engine, run, *runs)
    assert run.result() == small_engine().run(reading_in_the_same_pass())


@pytest.mark.parametrize("num_passes", [1, 3, 6])
def test_a_run_that_is_preempted_in_the_midst_of_its_prompt(num_passes: int) -> None:
    engine = small_engine(prompt_tokens=16, overcommit=4.0)
    runs = writers(engine)
    run = engine.submit(counting(LONG, 8))
    for _ in range(num_passes):
        engine.step()
    assert run.lengths
    assert not run.num_passes
    preemption = engine._scheduler.preemption
    assert preemption.preempt()
    assert run.state is RunState.PREEMPTED
    finish(engine, run, *runs)
    assert run.num_preemptions == 1
    assert run.result() == small_engine().run(counting(LONG, 8))


def test_a_run_that_is_cancelled_in_the_midst_of_its_prompt_frees_it() -> None:
    """Also while somebody keeps the run, as a server does."""
    engine = small_engine(prompt_tokens=16)
    (writer,) = writers(engine, 1)
    free = engine.pool.num_free_pages
    run = engine.submit(counting(LONG, 8))
    for _ in range(3):
        engine.step()
    assert run.lengths
    assert engine.pool.num_free_pages < free - 1
    engine.cancel(run)
    engine.cancel(writer)
    assert run.done
    assert engine.pool.num_free_pages == engine.pool.num_pages


@pytest.mark.parametrize(("alone", "in_first"), [(None, 4), (64, 2), (20, 1)])
def test_prompts_that_come_at_once_wait_for_few_others(alone: int | None, in_first: int) -> None:
    """As many are read in one pass as have so many tokens, or one; the first of them has its token behind that pass."""
    engine = small_engine(prompt_tokens=16, prompt_tokens_alone=alone)
    runs = [engine.submit(counting(LONG[at : at + 30], 3)) for at in range(4)]
    engine.step()
    assert [run.num_passes for run in runs] == [1] * in_first + [0] * (4 - in_first)
    finish(engine, *runs)
    expected = [small_engine().run(counting(LONG[at : at + 30], 3)) for at in range(4)]
    assert [run.result() for run in runs] == expected


def test_crowds_have_parts_that_recordings_have_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside more rows than those of long passes have, parts are as short as without experts, but where another size was asked for."""
    monkeypatch.setattr(filling, "MOST_ROWS_BESIDE", 3)
    sizes = []
    for count, is_asked in ((3, False), (4, False), (4, True)):
        engine = small_engine(prompt_tokens=32)
        own = engine._scheduler.filling
        assert own.prompt_tokens_of_crowds == 32
        own.prompt_tokens_of_crowds = 32 if is_asked else 16
        runs = writers(engine, count)
        prompt = engine.submit(counting(LONG, 2))
        before = engine.usage
        engine.step()
        sizes.append((engine.usage - before).tokens_fed)
        finish(engine, prompt, *runs)
    assert sizes == [32, 16, 32]


def test_with_experts_a_pass_has_as_many_prompts_as_fit() -> None:
    """It reads all experts, whichever few of them a token goes through."""
    models = tiny_models()
    for name, beside, alone in (("qwen3", 512, 2048), ("qwen3_moe", 1024, 8192)):
        own = Engine.load(models[name](), memory_tokens=64)._scheduler.filling
        assert (own.prompt_tokens, own.prompt_tokens_alone) == (beside, alone), name
        assert own.prompt_tokens_of_crowds == 512
    own = small_engine(max_tokens_per_pass=100)._scheduler.filling
    assert (own.prompt_tokens, own.prompt_tokens_alone) == (100, 100)
    assert experts_of_a_token(SimpleNamespace(num_experts_per_tok=0)) is None


def careless(prompt: tuple[int, ...], seen: list[int]) -> Generator[Step, Any, Answer]:
    """A strategy whose step fails; it finds its block as it was, and asks for something else."""
    block = Block("text")
    tokens = yield Step([Row(View([block]), (3, 4, 5))])
    try:
        tokens = yield Step([Row(View([block]), prompt)])
    except OutOfMemory:
        seen.append(block.num_tokens)
        tokens = yield Step([Row(View([block]), (6,))])
    return Answer(text=str(tokens))


def holding(size: int, strategy: Strategy) -> Strategy:
    """The same strategy, which holds a block of so many tokens that its steps do not read: they alone would fit."""
    held = Block("held")
    yield Step([Row(View([held]), (7,) * size)])
    answer = yield from strategy
    assert held.num_tokens == size
    return answer


def careful() -> Generator[Step, Any, Answer]:
    """The same that asks for that at once."""
    view = View([Block()])
    yield Step([Row(view, (3, 4, 5))])
    return Answer(text=str((yield Step([Row(view, (6,))]))))


@pytest.mark.parametrize("overcommit", [1.0, 1.5])
def test_a_step_that_fails_in_the_end_has_fed_nothing(overcommit: float) -> None:
    """Also of a run that was preempted for want of memory, and for which there is never enough."""
    engine, seen = small_engine(624, overcommit, prompt_tokens=100), list[int]()
    runs = [engine.submit(counting((5, 6), 60))]
    engine.step()
    run = engine.submit(holding(32, careless(LONG * 6, seen)))
    num_parts = 0
    while not run.done:
        engine.step()
        num_parts += bool(run.lengths)
    assert num_parts >= 4
    assert seen == [3]
    assert run.result() == small_engine().run(careful())
    finish(engine, *runs)
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_a_run_that_cannot_return_in_the_midst_of_its_prompt_has_fed_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, seen = small_engine(prompt_tokens=16, overcommit=4.0), list[int]()
    runs = writers(engine)
    run = engine.submit(careless(LONG, seen))
    for _ in range(4):
        engine.step()
    assert run.lengths
    assert engine._scheduler.preemption.preempt()

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no more")

    with monkeypatch.context() as broken:
        broken.setattr("manyhands.replay.forward.Replay.logits", fail)
        engine.step()
    assert seen == [3]
    assert run.state is RunState.PREEMPTED
    finish(engine, run, *runs)
    assert run.result() == small_engine().run(careful())


@pytest.mark.parametrize("num_writers", [0, 1])
@pytest.mark.parametrize(
    ("prompt", "wrong"),
    [((LONG * 12)[: CONTEXT + 1], ContextTooLong), ((*LONG, NUM_IDS), InvalidRequest)],
    ids=["too long", "ends with what is no token"],
)
def test_of_a_prompt_that_cannot_be_fed_no_part_is(
    num_writers: int, prompt: tuple[int, ...], wrong: type[Exception]
) -> None:
    engine = small_engine(prompt_tokens=16, max_tokens_per_pass=64)
    runs = writers(engine, num_writers)
    before = engine.usage
    run = engine.submit(counting(prompt, 4))
    engine.step()
    assert (engine.usage - before).tokens_fed == num_writers
    with pytest.raises(wrong):
        run.result()
    finish(engine, *runs)


def behind(shared: int, prompt: tuple[int, ...]) -> Generator[Step, Any, Answer]:
    """A prompt that reads a block of so many tokens beside its own."""
    first, own = Block("first"), Block("own")
    tokens = yield Step([Row(View([first]), (3,) * shared)])
    tokens = yield Step([Row(View([first, own]), prompt)])
    return Answer(text=str(tokens))


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("shared", [0, 100])
@pytest.mark.parametrize("overcommit", [1.0, 1.5])
def test_a_prompt_that_the_memory_never_holds_is_refused_before_its_first_part(
    overcommit: float, shared: int, is_whole: bool
) -> None:
    """By itself or with what it reads; no other run leaves or ends for it, whether it has reserved anything or not."""
    engine = small_engine(512, overcommit, prompt_tokens=600 if is_whole else 16)
    runs = writers(engine)
    prompt = (LONG * 6)[: 514 - shared]
    run = engine.submit(behind(shared, prompt) if shared else counting(prompt, 4))
    while not run.done and not (shared and run.num_passes):
        engine.step()
    before = engine.usage
    while not run.done:
        engine.step()
        assert (engine.usage - before).tokens_fed == len(runs)
    with pytest.raises(OutOfMemory, match="33 pages of 16 tokens" if not is_whole else "pages"):
        run.result()
    assert engine.num_preemptions == 0
    finish(engine, *runs)
    for index, each in enumerate(runs):
        assert each.result() == small_engine().run(counting((5, 6, 7 + index), 60))


def test_a_prompt_that_the_memory_just_holds_is_fed() -> None:
    """The control of the test above: to the last token of the last page."""
    engine = small_engine(512, prompt_tokens=16, max_tokens_per_pass=64)
    assert engine.run(counting((LONG * 6)[:512], 1)).text
    assert engine.run(behind(96, (LONG * 6)[:416])).text


def test_a_pass_of_ones_own_that_the_memory_never_holds_is_refused_before_its_first_chunk() -> None:
    engine, block = small_engine(512, max_tokens_per_pass=64), Block()
    before = engine.usage
    with pytest.raises(OutOfMemory, match="33 pages of 16 tokens"):
        engine.forward(Step([Row(View([block]), (LONG * 6)[:513])]))
    assert engine.usage == before
    assert not block.num_tokens


@pytest.mark.parametrize(
    ("limit", "rows"), [(4, (1,) * 4), (4, (1,) * 5), (4, (6,)), (4, (2, 2)), (1, (1,))]
)
def test_rows_that_fill_a_pass_leave_room_for_a_prompt(limit: int, rows: tuple[int, ...]) -> None:
    """To the last token, or alone: the prompt waited for one of these runs to end."""
    engine = small_engine(max_tokens_per_pass=limit)
    runs = [engine.submit(several(count, 60)) for count in rows]
    for _ in range(12):
        engine.step()
    before = [run.num_passes for run in runs]
    prompt = engine.submit(counting(LONG[:12], 2))
    for _ in range(30):
        engine.step()
    assert prompt.num_passes
    assert all(run.num_passes > count + 5 for run, count in zip(runs, before, strict=True))
    finish(engine, prompt, *runs)
    assert prompt.result() == small_engine().run(counting(LONG[:12], 2))
    for count, run in zip(rows, runs, strict=True):
        assert run.result() == small_engine().run(several(count, 60))


def several(num_rows: int, num_passes: int) -> Generator[Step, Any, Answer]:
    """Rows that write, without a prompt."""
    views = [View([Block()]) for _ in range(num_rows)]
    tokens: Sequence[int] = range(5, 5 + num_rows)
    for _ in range(num_passes):
        tokens = yield Step([Row(v, (t,)) for v, t in zip(views, tokens, strict=True)])
    return Answer(text=str(tuple(tokens)))


def going_on_behind_a_reservation(num_passes: int) -> Generator[Step | Reserve, Any, Answer]:
    """A row that is fed some tokens more in every third pass, as at the end of a worker's step; it reserves again, as endings do."""
    view, tokens = View([Block()]), (5, 6, 7)
    for index in range(num_passes):
        if index == 2:
            yield Reserve(64, 2)
        tokens = yield Step([Row(view, (*tokens, 9, 9) if index % 3 == 0 else tokens)])
    return Answer(text=str(tokens))


def test_a_step_of_some_tokens_does_not_wait_for_a_prompt_in_front() -> None:
    engine = small_engine(prompt_tokens=16)
    runs = [*writers(engine, 1), engine.submit(going_on_behind_a_reservation(20))]
    engine.step()
    prompt = engine.submit(counting(LONG, 4))
    engine.step()
    while not prompt.num_passes:
        before = [run.num_passes for run in runs]
        engine.step()
        assert [run.num_passes for run in runs] == [count + 1 for count in before]
    finish(engine, prompt, *runs)
    assert runs[1].result() == small_engine().run(going_on_behind_a_reservation(20))


@pytest.mark.parametrize("watched", [Run.fed, Scheduler._tell, Scheduler._take])
def test_an_interrupt_at_any_line_feeds_nothing_twice(
    watched: Any, pytestconfig: pytest.Config
) -> None:
    """At each line of the function, when it is run for the first time and for the last."""
    engine = small_engine(prompt_tokens=16)

    def told(places: Sequence[Place]) -> tuple[Answer, Watch]:
        watch = watch_at(*places, code={watched.__code__}, files=set())
        runs = writers(engine, 1)
        prompt = engine.submit(counting(LONG[:40], 3))
        while not prompt.done:
            watch.begin_step()
            insist(engine.step, watch)
        engine.cancel(runs[0])
        return prompt.result(), watch

    expected, calm = told([])
    assert expected == small_engine().run(counting(LONG[:40], 3))
    places = calm.places(first_and_last)
    assert len({place.line for place in places}) > 4

    def struck(places: Sequence[Place]) -> Watch:
        answer, watch = told(places)
        assert answer == expected
        assert watch.num_strikes == len(watch.struck)
        return watch

    strike_all(places, struck, alone=is_every_case(pytestconfig))


def test_an_interrupt_at_any_line_leaves_no_step_half_failed(pytestconfig: pytest.Config) -> None:
    """A run of which parts were taken back is told, or is over; what it is fed next is right."""
    expected = small_engine().run(careful())

    def told(places: Sequence[Place]) -> Watch:
        engine, seen = small_engine(512, prompt_tokens=100), list[int]()
        watch = watch_at(*places, code={Run.fail_step.__code__}, files=set())
        writer = engine.submit(counting((5, 6), 60))
        engine.step()
        run = engine.submit(careless(LONG * 6, seen))
        while not run.done:
            watch.begin_step()
            insist(engine.step, watch)
        assert run.outcome in (expected, None)
        engine.cancel(writer)
        assert engine.pool.num_free_pages == engine.pool.num_pages
        assert watch.num_strikes == len(watch.struck)
        return watch

    places = told([]).places(first_and_last)
    assert len({place.line for place in places}) > 4
    strike_all(places, told, alone=is_every_case(pytestconfig))
