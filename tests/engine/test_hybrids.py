"""Methods that only fork, on networks whose linear layers keep one state of a text; and the others, which are refused.

The judge is Hugging Face's own network over the plain text of each row: it knows nothing of blocks, forks or slots. Runs
are those of the real strategies. In float64 the worst of logits of order 4 differs by 4e-12; a fork that
begins with the state of no text misses by more than 0.1.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from manyhands.cache.block import Block
from manyhands.cache.states import EMPTY, FORKING, StateBook
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.run import RunState
from manyhands.errors import InvalidRequest, OutOfMemory, UnsupportedModel
from manyhands.evaluation.bench import fill
from manyhands.model.adapter import ModelAdapter
from manyhands.model.recurrent import States
from manyhands.prompts.votes import VotesPrompt
from manyhands.replay.forward import merge_trace, replay_logits
from manyhands.replay.trace import Trace, parse_trace, record
from manyhands.schema.openai import CHAT
from manyhands.server.asked import Served, understand
from manyhands.server.failures import Refusal
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.best_of_n import best_of_n
from manyhands.strategies.events import Event, UsageCounted
from manyhands.strategies.self_consistency import self_consistency
from manyhands.strategies.settings import BestSettings, SharedSettings, VoteSettings
from manyhands.strategies.shared_prefix import shared_prefix
from tests.engine.small import (
    LETTERS,
    NUM_IDS,
    PROBLEM,
    SHORT_END,
    TEXT,
    TOKENIZER,
    counting,
    executor_of,
    finish,
    small_engine,
    solo,
    story,
    story_of,
)
from tests.engine.test_preemption import branching
from tests.engine.test_prompt_sharing import next_turn, shared, spec, unfound
from tests.engine.test_prompts import LONG, careful, careless
from tests.engine.test_shared_prefix import alone, some_prompts, tokens_of
from tests.model.double import DoublePrecision
from tests.model.families_zoo import tiny_model
from tests.model.test_conformance import VISIBLE
from tests.model.test_recurrent import CONFIGS
from tests.poison import poison
from tests.strategies.test_forks import RUNS


def hybrid(name: str = "qwen3_5_text", vocabulary: int = NUM_IDS) -> PreTrainedModel:
    """A tiny random network; the same numbers in each call."""
    config = copy.deepcopy(CONFIGS[name])
    config.vocab_size = vocabulary
    config.max_position_embeddings = 4096
    return tiny_model(config)


def hybrid_engine(name: str = "qwen3_5_text", **choices: Any) -> Engine:
    """An engine on it, whose memory is poisoned: what was not written is no number."""
    settings = {"memory_tokens": 8192, "states": 64, **choices}
    engine = Engine(ModelAdapter(hybrid(name)), TOKENIZER, **settings)
    poison_all(engine)
    return engine


def states_of(engine: Engine) -> States:
    states = executor_of(engine).states
    assert states is not None
    return states


def poison_all(engine: Engine) -> None:
    poison(executor_of(engine).memory)
    for store in states_of(engine).stores.values():
        store.inputs[1:] = store.states[1:] = torch.nan


class Judge:
    """Hugging Face's own network: logits behind a plain text."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.network = network

    @torch.no_grad()
    def worst(self, rows: list[tuple[list[int], Tensor]]) -> float:
        """The worst of the logits [V] that rows have got behind their texts; a text that goes on is read once."""
        errors, whole = [], [0]
        for text, own in sorted(rows, key=lambda row: row[0], reverse=True):
            if text != whole[: len(text)]:
                whole = text
                logits = self.network(input_ids=torch.tensor([text]), use_cache=False).logits[0]
            errors.append((logits[len(text) - 1] - own).abs().max())
        return float(torch.stack(errors).max())  # NaN if one of them is


@contextmanager
def both(name: str, double: bool, vocabulary: int) -> Iterator[tuple[Judge, Engine]]:
    with DoublePrecision() if double else nullcontext():
        plain, taken = (hybrid(name, vocabulary) for _ in range(2))
        if double:
            plain, taken = plain.double(), taken.double()
            if plain._can_set_experts_implementation():
                plain.set_experts_implementation("eager")
        engine = Engine(ModelAdapter(taken), memory_tokens=8192, states=64)
        poison_all(engine)
        yield Judge(plain), engine


def worst(trace: Trace, name: str, double: bool) -> float:
    """The worst logit of any row of a recorded run, fed to the engine step by step."""
    size = max(token for rows in trace.passes for row in rows for token in (*row.feed, row.token))
    rows = []
    with both(name, double, size + 1) as (judge, engine):
        for step, _ in trace.steps():
            logits = engine.forward(step)
            for row, own in zip(step.rows, logits, strict=True):
                text = [token for block in row.view.blocks for token in block.tokens]
                rows.append((text, own))
        return judge.worst(rows)


# Logits of order 4 behind some hundred tokens, and a state is a sum over all of them: 4e-12 is the worst (Qwen3-Next, whose
# float32 is off by 1.5e-3 in Hugging Face's own code, too).
FLOAT64 = 1e-11
FLOAT32 = 2e-4
METHODS = [name for name in RUNS if name in FORKING]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_forks_is_exact(method: str) -> None:
    assert worst(RUNS[method]().trace, "qwen3_5_text", double=True) < FLOAT64


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "qwen3_5_text"])
def test_each_network_is_exact(name: str) -> None:
    assert worst(RUNS["branches (join reencode)"]().trace, name, double=True) < FLOAT64


def test_float32_is_as_round_as_hugging_face_s_own() -> None:
    """Hugging Face's float32 is 1.6e-4 off its float64 on this run."""
    assert worst(RUNS["branches (join reencode)"]().trace, "qwen3_5_text", double=False) < FLOAT32


def test_control_a_fork_without_its_state_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = StateBook._source

    def anew(book: StateBook, row: Row, *rest: Any) -> int:
        return right(book, row, *rest) if row.view.own.num_tokens else EMPTY

    monkeypatch.setattr(StateBook, "_source", anew)
    assert worst(RUNS["sequential"]().trace, "qwen3_5_text", double=False) > VISIBLE


@pytest.mark.parametrize("method", [name for name in RUNS if name not in FORKING])
def test_a_method_that_reorders_is_stopped(method: str) -> None:
    """An engine that is driven by hand says where; commands refuse such a method before (`check_forks`)."""
    with pytest.raises(InvalidRequest, match="behind another text") as caught:
        worst(RUNS[method]().trace, "qwen3_5_text", double=False)
    assert "sequential, branches (join reencode)" in str(caught.value.hint)


SAMPLED = Choice(temperature=1.0, top_p=0.95, allowed=LETTERS)


def kinds() -> dict[str, Callable[[], Strategy]]:
    """Strategies that sample, each made anew when called."""
    attempts = VoteSettings(workers=3, budget=20, mode="vote", end=SHORT_END, choice=SAMPLED)
    grades = BestSettings(workers=2, budget=20, end=SHORT_END, choice=SAMPLED)
    prompts = ((5, 6, 7, 8), (5, 6, 7, 9, 10), (5, 6, 7, 8, 11), (5, 6, 7, 9, 10))
    batch = SharedSettings(max_tokens=8, samples=2, choice=SAMPLED, seed=1)
    return {
        "sequential": lambda: solo(choice=SAMPLED, seed=4),
        "branches": lambda: branching("reencode"),
        "attempts": lambda: self_consistency(PROBLEM, TEXT, attempts, VotesPrompt()),
        "best": lambda: best_of_n(PROBLEM, TEXT, grades, VotesPrompt()),
        "batch": lambda: shared_prefix(prompts, TEXT, batch),
    }


def told(strategy: Strategy, engine: Engine) -> list[Event | Answer]:
    return story(engine, strategy)


def test_together_is_as_alone() -> None:
    """All of them in the same passes, with so few states that they have to take turns; and each by itself."""
    alone = [told(make(), hybrid_engine()) for make in kinds().values()]
    engine = hybrid_engine(states=24)
    runs = [engine.submit(make()) for make in kinds().values()]
    finish(engine, *runs)
    for name, run, expected in zip(kinds(), runs, alone, strict=True):
        got = [event for event in story_of(run) if not isinstance(event, UsageCounted)]
        assert got == expected, name
    assert engine.num_preemptions, "too few states for all"
    del run, runs
    engine.prefixes.clear()
    states = engine.pool.states
    assert states is not None
    states.take(Step([Row(View([Block()]), (1,))]), lambda block: (block.num_tokens,))
    assert states.num_free == 24, "slots of blocks that are gone are free"


def test_a_run_that_comes_back_without_its_states_would_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of the test above: the states that are left for it are those of no text."""
    (expected,) = (told(solo(choice=SAMPLED, seed=4), hybrid_engine()),)
    right = States.copy
    for mistake in (False, True):
        if mistake:
            monkeypatch.setattr(States, "copy", lambda *_: None)
        engine = hybrid_engine(overcommit=1.5)
        runs = [engine.submit(solo(choice=SAMPLED, seed=seed)) for seed in (3, 4)]
        for _ in range(12):
            engine.step()
        assert engine._scheduler.preemption.preempt()
        assert runs[1].state is RunState.PREEMPTED
        for store in states_of(engine).stores.values():
            store.states[1:] = store.inputs[1:] = 0  # also of the other run, which is not looked at
        finish(engine, runs[1])
        assert (story_of(runs[1]) == expected) != mistake
    assert right is not States.copy


@pytest.mark.parametrize("shares", [False, True])
def test_prompts_that_begin_alike(shares: bool) -> None:
    """Ragged prompts, which leave each other's in the middle: there no state is, and the beginning is fed anew, once."""
    engine = hybrid_engine()
    prompts = some_prompts(count=5)
    prompts += [prompts[2], prompts[3][:1]]
    choice = Choice(forbidden=TEXT.eos)
    expected = [alone(engine, prompt, 4, choice) for prompt in prompts]
    settings = SharedSettings(max_tokens=4, choice=choice, rows=3, prefill=7)
    tree = engine.prefixes if shares else None
    for turn in range(2):
        answer = engine.run(shared_prefix(prompts, TEXT, settings, tree=tree))
        assert tokens_of(answer) == expected, turn
    if shares:
        assert answer.found == tuple(len(prompt) - 1 for prompt in prompts), "the second time"


def test_the_next_turn_finds_the_last() -> None:
    """Text that was written behind a prompt is found with its state; where another turn leaves it, a part is fed anew once."""
    engine, plain = hybrid_engine(), hybrid_engine()
    one = spec("sequential", choice=Choice(temperature=1.0, allowed=frozenset(TEXT.encode("!b"))))
    first = engine.run(shared(engine, one))
    two = next_turn(one, first)
    whole = first.prompt_tokens[0] + sum(first.tokens) - 1
    assert engine.run(shared(engine, two)).found == (whole,), "it goes on where the reply ended"
    three = replace(two, problem="And what of this?")
    for turn in (0, 1):
        answer = engine.run(shared(engine, three))
        assert unfound(answer) == plain.run(three.strategy(TEXT))
        assert (answer.found[0] > whole) == bool(turn), (
            "the end of the common part has its state now"
        )


def test_nodes_go_where_states_are_wanted() -> None:
    """Prompts that are kept for others hold slots, and give them back."""
    engine = hybrid_engine(states=6)
    for seed in range(8):
        prompt = tuple(range(10 * seed, 10 * seed + 9))
        engine.run(
            shared_prefix([prompt], TEXT, SharedSettings(max_tokens=2), tree=engine.prefixes)
        )
    assert engine.pool.states is not None
    assert engine.prefixes.num_tokens < 8 * 8


def _nested(num_prompts: int) -> list[tuple[int, ...]]:
    """Prompts that leave one text in many places, as the turns of many chats do."""
    numbers = random.Random(1)
    text = [numbers.randrange(3, NUM_IDS) for _ in range(60)]
    return [
        (
            *text[: numbers.randrange(30)],
            *(numbers.randrange(3, NUM_IDS) for _ in range(1 + i % 11)),
        )
        for i in range(num_prompts)
    ]


def _completion(engine: Engine, prompt: tuple[int, ...]) -> Strategy:
    settings = SharedSettings(max_tokens=6, choice=Choice(forbidden=TEXT.eos))
    return shared_prefix([prompt], TEXT, settings, tree=engine.prefixes)


def test_a_prompt_behind_many_others_needs_no_more_states() -> None:
    """A path of twenty nodes, as of a long chat, is read with six states: what is only passed has none."""
    engine, plain = hybrid_engine(states=6), hybrid_engine()
    text = _nested(1)[0] + tuple(range(3, 60))
    for length in range(2, 42, 2):
        prompt = text[:length]
        expected = [alone(plain, prompt, 6, Choice(forbidden=TEXT.eos))]
        assert tokens_of(engine.run(_completion(engine, prompt))) == expected, length


@pytest.mark.parametrize(("states", "least"), [(6, 25), (16, 40), (24, 40)])
def test_a_crowd_waits_where_states_are_few(states: int, least: int) -> None:
    """Each has the tokens it has alone, however many wait. Six states are too few for some: that is said, and nothing else."""
    plain, engine = hybrid_engine(), hybrid_engine(states=states)
    prompts = _nested(40)
    runs = [engine.submit(_completion(engine, prompt)) for prompt in prompts]
    while engine.step():
        pass
    num_right = 0
    for prompt, run in zip(prompts, runs, strict=True):
        try:
            answer = run.result()
        except OutOfMemory:
            continue
        assert tokens_of(answer) == [alone(plain, prompt, 6, Choice(forbidden=TEXT.eos))]
        num_right += 1
    assert num_right >= least


def test_too_few_states_are_said() -> None:
    engine = hybrid_engine(states=2)
    settings = VoteSettings(workers=3, budget=30, mode="vote", end=SHORT_END, choice=SAMPLED)
    with pytest.raises(OutOfMemory, match="2 are free") as caught:
        engine.run(self_consistency(PROBLEM, TEXT, settings, VotesPrompt()))
    assert "--states" in str(caught.value.hint)
    assert engine.run(counting((5, 6, 7), 3)).text


@pytest.mark.parametrize("method", ["branches (join reencode)", "async_think"])
def test_a_trace_is_verified_and_restored(method: str) -> None:
    """All logits of the run in one forward are those of its passes; a run that ended in its middle goes on as it was."""
    trace = RUNS[method]().trace
    size = max(token for rows in trace.passes for row in rows for token in (*row.feed, row.token))
    with both("qwen3_5_text", True, size + 1) as (_, engine):
        passes = torch.cat([engine.forward(step) for step, _ in trace.steps()])
        with torch.no_grad():
            replayed = replay_logits(
                executor_of(engine).adapter, merge_trace(trace, keeps_states=True)
            )
    assert (passes - replayed).abs().max() < FLOAT64
    with pytest.raises(UnsupportedModel, match="gradients"):
        replay_logits(executor_of(engine).adapter, merge_trace(trace, keeps_states=True))


@pytest.mark.parametrize("name", ["sequential", "branches", "attempts"])
def test_a_run_is_restored(name: str) -> None:
    make = kinds()[name]
    lines: list[dict[str, Any]] = []
    expected = told(make(), hybrid_engine())
    answer = hybrid_engine().run(record(make(), {}, lines.append))
    assert answer == expected[-1]
    passes = [at for at, line in enumerate(lines) if line["kind"] == "pass"]
    trace = parse_trace(lines[: passes[20] + 1])
    engine = hybrid_engine()
    assert engine.run(engine.restore(make(), trace)) == answer


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"speculate": 2}, "speculate"),
        ({"kv_cache_dtype": "int8"}, "int8"),
        ({"cache": "somewhere"}, "cache"),
    ],
)
def test_what_such_a_network_does_not_bear(choice: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Engine(ModelAdapter(hybrid()), memory_tokens=64, **choice)


def test_states_are_of_networks_that_keep_them() -> None:
    with pytest.raises(InvalidRequest, match="none of those whose layers keep a state"):
        small_engine(states=4)


def test_a_bench_says_that_it_cannot_make_up_states() -> None:
    with pytest.raises(UnsupportedModel, match="never fed"):
        fill(hybrid_engine(), Block(), 4, seed=1)


@pytest.mark.parametrize(("model", "refused"), [("tiny:hogwild", True), ("tiny:sequential", False)])
def test_a_server_refuses_what_its_network_does_not_bear(model: str, refused: bool) -> None:
    served = Served("tiny", TEXT, only_forks=True)
    body = {"model": model, "messages": [{"role": "user", "content": PROBLEM}]}
    with pytest.raises(InvalidRequest, match="one state of a text") if refused else nullcontext():
        assert understand(CHAT, body, served).spec is not None


def test_a_server_lists_what_its_network_bears() -> None:
    """Every listed name is understood, and every other one of a whole network's is refused."""
    served = Served("tiny", TEXT, only_forks=True)
    assert {"tiny", "tiny:sequential", "tiny:async_think-2"} <= {*served.models}
    assert "tiny:hogwild-2" not in served.models
    for name in Served("tiny", TEXT).models:
        body = {"model": name, "messages": [{"role": "user", "content": PROBLEM}]}
        is_listed = name in served.models
        with nullcontext() if is_listed else pytest.raises(InvalidRequest, match="one state"):
            understand(CHAT, body, served)
    with pytest.raises(Refusal, match="tiny:sequential") as wrong:
        understand(CHAT, {"model": "tiny:nothing", "messages": body["messages"]}, served)
    assert "hogwild" not in str(wrong.value)


@pytest.mark.parametrize("num_writers", [0, 1])
def test_a_step_that_fails_in_its_midst_leaves_the_state_from_before(
    num_writers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fed in several passes, each of which leaves a state; the strategy goes on from the one in front of all."""
    engine = hybrid_engine(prompt_tokens=16, max_tokens_per_pass=32)
    writers = [engine.submit(counting((5, 6), 40)) for _ in range(num_writers)]
    seen: list[int] = []
    run = engine.submit(careless(LONG, seen))
    for _ in range(4):
        engine.step()
    assert run.lengths

    step_without_room(engine, monkeypatch)
    finish(engine, run)
    assert seen == [3]
    assert run.result() == hybrid_engine().run(careful())
    for writer in writers:
        engine.cancel(writer)


def step_without_room(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass for which there is no page, and no run that could leave."""

    def fail(*_: object) -> None:
        raise OutOfMemory("no more")

    with monkeypatch.context() as broken:
        broken.setattr(engine.planner, "plan", fail)
        broken.setattr(engine._scheduler.preemption, "preempt", lambda: False)
        engine.step()


@pytest.mark.parametrize("is_forked", [False, True])
def test_a_step_that_fails_behind_a_return_leaves_the_state_from_before(
    is_forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was preempted in the midst of a prompt comes back with the state that the prompt began with, too."""
    engine = hybrid_engine(prompt_tokens=16, overcommit=1.5)
    first = engine.submit(counting((5, 6), 60))
    seen: list[int] = []
    run = engine.submit(forking(seen) if is_forked else careless(LONG, seen))
    for _ in range(4):
        engine.step()
    assert run.lengths
    assert engine._scheduler.preemption.preempt()
    assert engine.num_runs(RunState.PREEMPTED) == 1
    assert engine._scheduler.lengths_before() == run.lengths, "for blocks that have stayed"
    for store in states_of(engine).stores.values():  # also of the other run, which is not looked at
        store.states[1:] = store.inputs[1:] = torch.nan
    engine.step()
    assert engine.num_runs(RunState.PREEMPTED) == 0
    assert run.lengths

    step_without_room(engine, monkeypatch)
    finish(engine, run)
    assert seen == [3]
    expected = forked() if is_forked else careful()
    assert run.result() == hybrid_engine().run(expected)
    engine.cancel(first)


def forking(seen: list[int]) -> Generator[Step, Any, Answer]:
    """A strategy whose second block, forked from a first, fails in the midst of a prompt and goes on with something else."""
    first, own = Block("first"), Block("own")
    yield Step([Row(View([first]), (8, 9))])
    yield Step([Row(View([first, own]), (3, 4, 5))])
    try:
        yield Step([Row(View([first, own]), LONG)])
    except OutOfMemory:
        seen.append(own.num_tokens)
    tokens = yield Step([Row(View([first, own]), (6,))])
    return Answer(text=str(tokens))


def forked() -> Generator[Step, Any, Answer]:
    """The same that asks for that at once."""
    first, own = Block("first"), Block("own")
    yield Step([Row(View([first]), (8, 9))])
    yield Step([Row(View([first, own]), (3, 4, 5))])
    return Answer(text=str((yield Step([Row(View([first, own]), (6,))]))))


def fanning() -> Generator[Step, Any, Answer]:
    """A prompt, and more rows behind it than a small pass has tokens."""
    prompt, own = Block("prompt"), [Block("own") for _ in range(9)]
    views = [View([prompt, block]) for block in own]
    rows = [Row(view, (5 + n,)) for n, view in enumerate(views)]
    _, *tokens = yield Step([Row(View([prompt]), LONG[:40]), *rows])
    more = yield Step([Row(view, (token,)) for view, token in zip(views, tokens, strict=True)])
    return Answer(text=str((tokens, more)))


def test_a_last_part_that_fails_in_its_midst_is_fed_again_from_where_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is too long for one pass, and fails behind its first chunk, for want of states that another run then gives back."""
    engine = hybrid_engine(prompt_tokens=8, max_tokens_per_pass=8)
    run = engine.submit(fanning())
    other = engine.submit(counting((5, 6), 60))
    states, asked = engine.pool.states, list[int]()
    assert states is not None
    usual = states.all_free

    def all_free(count: int) -> list[int]:
        asked.append(count)
        if count >= 9 and asked.count(count) == 1:
            raise OutOfMemory("no more")
        return usual(count)

    monkeypatch.setattr(states, "all_free", all_free)
    monkeypatch.setattr(engine._scheduler.preemption, "preempt", lambda: True)
    finish(engine, run)
    assert run.result() == hybrid_engine().run(fanning())
    assert asked.count(10) == 2, "the chunk behind the first was made twice"
    engine.cancel(other)
