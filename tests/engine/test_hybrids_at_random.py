"""Crowds on a network whose layers keep states, at random, with few states and few pages: each run has the tokens that it has alone.

The executor is a double without a network: a slot of states holds the text whose state it is, and each row of a pass is held
against the keys that it reads (`test_interrupts.py::Ledger`). So a state of another text is seen in the pass that takes it, and a crowd
costs milliseconds.
"""

from __future__ import annotations

import gc
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from manyhands.cache.plan import Plan
from manyhands.cache.states import EMPTY, RowStates
from manyhands.cache.step import Choice
from manyhands.engine.engine import Engine
from manyhands.engine.executor import Kept, Places
from manyhands.engine.run import RunState
from manyhands.errors import OutOfMemory
from manyhands.replay.merged import Merged
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, shared_prefix
from tests.covers import examples
from tests.engine.small import LETTERS, NUM_IDS, TEXT, TOKENIZER, counting, finish
from tests.engine.test_interrupts import Ledger

Text = tuple[int, ...]
Make = Callable[[Engine], Strategy]
LETTER = Choice(temperature=1.0, allowed=LETTERS)
PLENTY = 12  # states, with which none of these crowds has a run that ends for want of them
SEEDS = range(examples(24, of=200))


class Texts(Ledger):
    """A Ledger that keeps states: `texts` says of which text each slot has one."""

    def __init__(self, num_states: int, num_pages: int) -> None:
        super().__init__()
        self.facts = replace(
            Ledger.facts,
            vocab_size=NUM_IDS,
            max_positions=4096,
            page_size=16,
            num_pages=num_pages,
            num_states=num_states,
        )
        self.texts: dict[int, Text] = {EMPTY: ()}

    def run(self, plan: Plan, choices: Sequence[Choice] = (), **_: Any) -> Text:
        assert plan.states is not None
        read = self.logits(plan)
        texts = dict(self.texts)
        told = _fold(plan.states, plan.token_ids.tolist(), texts)
        assert told == dict(enumerate(read)), "a row goes on from the state of another text"
        self.texts = texts
        for slot in plan.states.following:  # a pass that is begun ahead writes there
            texts.pop(slot, None)
        return tuple(_chosen(read[row], choice) for row, choice in enumerate(choices))

    def write_keys(
        self, merged: Merged, tokens: Any, places: Places, found: Places | None, kept: Kept
    ) -> None:
        assert merged.plan.states is not None
        ids = merged.plan.token_ids.tolist()
        texts = {EMPTY: (), **{there: self.texts[here] for here, there in kept.taken}}
        _fold(merged.plan.states, ids, texts)
        for token, slot, offset in zip(
            tokens.tolist(), places.slots.tolist(), places.offsets.tolist(), strict=True
        ):
            self.memory[slot] = ids[token], offset
        self.texts.update({here: texts[there] for there, here in kept.left})


def _fold(rows: RowStates, ids: Sequence[int], texts: dict[int, Text]) -> dict[int, Text]:
    """Make all rows, wave by wave; the text of each."""
    told: dict[int, Text] = {}
    for wave in rows.waves():
        own = [row for alike in wave.values() for row in alike]
        told |= {
            row: texts[rows.sources[row]] + tuple(ids[at] for at in rows.tokens_of(row))
            for row in own
        }
        texts.update({rows.targets[row]: told[row] for row in own})
    return told


def _chosen(read: Text, choice: Choice) -> int:
    among = sorted(choice.allowed or range(3, 200))
    return among[zlib.crc32(bytes(token % 256 for token in read)) % len(among)]


def engine_of(num_states: int = 64, num_pages: int = 512, **choices: Any) -> Engine:
    executor: Any = Texts(num_states, num_pages)
    return Engine(executor, TOKENIZER, **choices)


def nested(numbers: random.Random, count: int) -> list[Text]:
    """Prompts that leave one text in many places; some are equal, and some the beginning of another."""

    def some(most: int) -> Text:
        return tuple(numbers.randrange(3, NUM_IDS) for _ in range(1 + numbers.randrange(most)))

    text = some(50)
    found = [text[:9]]
    while len(found) < count:
        one = numbers.choice(found)
        beginning = text[: numbers.randrange(len(text) + 1)]
        found.append(
            numbers.choice(
                (one, one[: 1 + numbers.randrange(len(one))], one + some(8), beginning + some(11))
            )
        )
    return found


def strategies(numbers: random.Random) -> list[Make]:
    """Each made anew when called."""
    prompts = nested(numbers, numbers.choice((6, 16)))

    def one(prompt: Text) -> Make:
        if numbers.random() < 0.2:
            return lambda engine: counting(prompt, 7)
        settings = SharedSettings(
            max_tokens=1 + numbers.randrange(8),
            samples=numbers.choice((1, 1, 2)),
            choice=LETTER,
            keep=numbers.random() < 0.3,
            prefill=numbers.choice((4096, 5)),
            rows=numbers.choice((256, 1)),
        )
        several = [prompt, *numbers.sample(prompts, numbers.choice((0, 0, 2)))]
        return lambda engine: shared_prefix(several, TEXT, settings, tree=engine.prefixes)

    return [one(prompt) for prompt in prompts]


def tokens_of(answer: Answer) -> object:
    if isinstance(answer, Completions):
        return [each.tokens for each in answer.completions]
    return answer.text


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crowd_has_the_tokens_of_each_alone(seed: int) -> None:
    numbers = random.Random(seed)
    makes = strategies(numbers)
    num_states = numbers.choice((3, 5, 8, PLENTY, 24))
    sizes = {"max_tokens_per_pass": 8, "prompt_tokens": 4} if numbers.random() < 0.5 else {}
    engine = engine_of(num_states, overcommit=numbers.choice((1.0, 3.0)), **sizes)
    runs, waiting = [], list(makes)
    while waiting or engine.step():
        come = numbers.randrange(len(waiting) + 1)
        runs += [engine.submit(make(engine)) for make in waiting[:come]]
        del waiting[:come]
        if numbers.random() < 0.05:
            engine._scheduler.preemption.preempt()
        engine.step()
    for make, run in zip(makes, runs, strict=True):
        try:
            told = tokens_of(run.result())
        except OutOfMemory:
            assert num_states < PLENTY
            continue
        alone = engine_of()
        assert told == tokens_of(alone.run(make(alone)))
    del run, runs, make, makes
    _check_free(engine)


def _check_free(engine: Engine) -> None:
    engine.prefixes.clear()
    gc.collect()
    states = engine.pool.states
    assert states is not None
    assert (engine.pool.num_free_pages, states.num_free) == (
        engine.pool.num_pages,
        states.num_slots,
    )
    assert engine.prefixes.num_tokens == engine.prefixes.num_pages_in_use == 0


@pytest.mark.parametrize("divides", [False, True])
def test_a_run_comes_back_whose_prompt_was_fed_behind_a_state_that_has_gone(divides: bool) -> None:
    """Another one had fed its beginning. The missing part is fed once more, though a third one has divided it since."""
    text = tuple(range(3, 23))

    def completion(engine: Engine, length: int) -> Strategy:
        settings = SharedSettings(max_tokens=2 * length, choice=LETTER)
        return shared_prefix([text[:length]], TEXT, settings, tree=engine.prefixes)

    alone, engine = engine_of(), engine_of(overcommit=3.0)
    states = engine.pool.states
    assert states is not None
    engine.run(completion(engine, 11))
    first = engine.submit(counting((5, 6), 60))
    engine.step()
    run = engine.submit(completion(engine, 20))
    for _ in range(4):
        engine.step()
    before = states.num_free
    assert not states._forget_passed(states.num_slots)
    assert states.num_free > before, "the run has passed what another one had fed"
    if divides:
        engine.run(completion(engine, 6))
    assert engine._scheduler.preemption.preempt()
    assert run.state is RunState.PREEMPTED
    finish(engine, run)
    assert tokens_of(run.result()) == tokens_of(alone.run(completion(alone, 20)))
    engine.cancel(first)


def test_a_run_waits_until_it_would_find_states() -> None:
    """Also beside such as have reserved nothing and are in no pass yet."""
    engine = engine_of(9)

    def completion() -> Strategy:
        settings = SharedSettings(max_tokens=9, choice=LETTER)
        return shared_prefix([(3, 4, 5)], TEXT, settings, tree=engine.prefixes)

    first = engine.submit(completion())
    engine.step()
    others = [engine.submit(counting((n, 7), 4)) for n in range(3)]
    run = engine.submit(completion())
    engine.step()
    assert run.state is RunState.WAITING
    finish(engine, first, *others, run)
    assert tokens_of(run.result()) == tokens_of(first.result())
