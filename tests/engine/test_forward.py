"""`Engine.forward`, the low face: rows by hand, and errors that leave everything as it was."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.attention.attend import Backend
from manyhands.attention.rotary import Rotations
from manyhands.attention.store import Moved
from manyhands.cache.block import Block
from manyhands.cache.places import Move
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.run import RunState
from manyhands.errors import (
    ContextTooLong,
    InvalidRequest,
    ManyhandsError,
    ModelNotFound,
    OutOfMemory,
)
from manyhands.model.adapter import ModelAdapter
from manyhands.model.memory import Memory
from manyhands.model.settings import ModelSettings
from manyhands.strategies.base import Answer, Strategy
from tests.attention.test_attend import random_conversation
from tests.engine.small import CONTEXT, NUM_IDS, TEXT, counting, executor_of, small_engine
from tests.model.families_zoo import tiny_models
from tests.poison import poison


def feed(engine: Engine, tokens: Iterable[int], *blocks: Block) -> Tensor:
    """Feed tokens to the last of the blocks; the logits of the only row."""
    return engine.forward(Step([Row(View(blocks), tuple(tokens))]))[0]


# -- what it does ----------------------------------------------------------------------------------


def test_the_example_of_the_docstring() -> None:
    def run(bobs_words: str) -> Tensor:
        engine = small_engine()
        notes, alice, bob = Block("notes"), Block("alice"), Block("bob")
        logits = engine.forward(
            Step(
                [
                    Row(View([notes]), engine.text.encode("A shared beginning.")),
                    Row(View([notes, bob, alice]), engine.text.encode("I think")),
                    Row(View([notes, alice, bob]), engine.text.encode(bobs_words)),
                ]
            )
        )
        assert logits.shape == (3, NUM_IDS)
        assert engine.text.decode(alice.tokens) == "I think"
        assert engine.text.decode(bob.tokens) == bobs_words
        return logits

    agreeing, doubting = run("Yes, and"), run("No, but")
    assert torch.equal(agreeing[0], doubting[0]), "the notes do not read the workers"
    assert (agreeing[1] - doubting[1]).abs().max() > 1e-2, "Alice reads Bob's words as he says them"


def test_an_engine_without_a_tokenizer_says_so_when_its_text_is_asked_for() -> None:
    engine = Engine(ModelAdapter(tiny_models()["qwen3"]()), memory_tokens=64)
    with pytest.raises(ModelNotFound, match="has no tokenizer; expected one") as caught:
        _ = engine.text
    assert "Put tokenizer.json" in caught.value.hint
    assert "Engine(ModelAdapter(network), tokenizer)" in caught.value.hint
    assert feed(engine, (1, 2), Block()).shape == (engine.facts.vocab_size,)


def test_a_row_is_what_it_would_be_alone() -> None:
    prompts = [TEXT.encode(words) for words in ("Alice and Bob", "Bob", "So the answer is four.")]
    together = small_engine().forward(Step(Row(View([Block()]), tokens) for tokens in prompts))
    alone = [feed(small_engine(), tokens, Block()) for tokens in prompts]
    assert (together - torch.stack(alone)).abs().max() < 1e-5


def test_memory_holds_exactly_what_is_read() -> None:
    """Whatever lies in the memory beyond the blocks is never looked at."""
    tokens = TEXT.encode("The next step of the problem")
    clean, dirty = small_engine(), small_engine()
    poison(executor_of(dirty).memory)
    results = []
    for engine in (clean, dirty):
        start, empty = Block(), Block()
        feed(engine, tokens[:3], start)
        results.append(feed(engine, tokens[3:], start, empty, Block()))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ["qwen3", "glm4", "gemma3_text", "gpt_oss", "smollm3", "olmo3"])
def test_both_backends_agree(name: str) -> None:
    """Worst measured: 3e-6, on logits of order 4."""
    logits: list[list[Tensor]] = []
    for backend in ("reference", "torch"):
        adapter = ModelAdapter(tiny_models()[name]())
        engine = Engine(adapter, backend=backend, memory_tokens=2048)
        conversation = random_conversation(random.Random(5), 12)
        logits.append([engine.forward(step).clone() for step in conversation])
    errors = [(a - b).abs().max() for a, b in zip(*logits, strict=True)]
    assert torch.stack(errors).max() < 1e-4


# -- blocks come and go ----------------------------------------------------------------------------


def test_pages_of_dropped_blocks_return() -> None:
    engine = small_engine(memory_tokens=256)
    everything = engine.pool.num_free_pages
    kept, dropped = Block("kept"), Block("dropped")
    feed(engine, range(40), kept)
    feed(engine, range(40), dropped)
    assert engine.pool.num_free_pages == everything - 6
    del dropped
    assert engine.pool.num_free_pages == everything - 3
    del kept
    assert engine.pool.num_free_pages == everything


def test_pages_of_blocks_that_were_moved_together_return() -> None:
    engine = small_engine(memory_tokens=512)
    everything = engine.pool.num_free_pages
    history = [Block(f"step {i}") for i in range(6)]
    for block in history:
        feed(engine, range(5), block)
        block.freeze()
    assert engine.pool.num_free_pages == everything - 6
    own = Block("own")
    view = View([*history, own])
    engine.forward(Step([Row(view, (1,))]))
    assert engine.pool.place(history[-1]).offset == 25, "they were meant to be moved together"
    assert engine.pool.num_free_pages == everything - 2 - 1
    del view, own
    assert engine.pool.num_free_pages == everything - 2
    last = history.pop()
    del block
    history.clear()
    assert engine.pool.num_free_pages == everything - 2, "one piece, freed when nobody is left"
    del last
    assert engine.pool.num_free_pages == everything


def test_a_long_life_in_a_small_memory() -> None:
    """Blocks come and go for much longer than the memory would last without freeing."""
    engine = small_engine(memory_tokens=160)
    everything = engine.pool.num_free_pages
    for round_number in range(30):
        prompt = Block()
        feed(engine, range(20), prompt)
        prompt.freeze()
        step = Block()
        feed(engine, range(round_number % 7 + 1), prompt, step)
        step.freeze()
        logits = feed(engine, range(30), prompt, step, Block())
        assert not logits.isnan().any()
    del prompt, step
    assert engine.pool.num_free_pages == everything


# -- errors change nothing -------------------------------------------------------------------------


def _steps_that_fail() -> dict[str, tuple[type[ManyhandsError], Callable[[Sequence[Block]], Step]]]:
    """By name: the error, and a step over (read block, written block) that raises it."""

    def row(tokens: Iterable[int], choice: Choice | None = None) -> Callable[..., Step]:
        def step(blocks: Sequence[Block]) -> Step:
            innocent = Row(View([blocks[0], Block("innocent")]), (1, 2, 3))
            return Step([innocent, Row(View(blocks), tuple(tokens), choice or Choice())])

        return step

    return {
        "a token beyond the vocabulary": (InvalidRequest, row((1, NUM_IDS))),
        "a negative token": (InvalidRequest, row((-1,))),
        "a forced token beyond the vocabulary": (
            InvalidRequest,
            row((1,), Choice(allowed=frozenset({NUM_IDS}))),
        ),
        "a forbidden token that is none": (
            InvalidRequest,
            row((1,), Choice(forbidden=frozenset({-3}))),
        ),
        "everything forbidden": (
            InvalidRequest,
            row((1,), Choice(forbidden=frozenset(range(NUM_IDS)))),
        ),
        "too long a context": (ContextTooLong, row([1] * CONTEXT)),
        "too little memory": (OutOfMemory, row([1] * 600)),
    }


@pytest.mark.parametrize("name", _steps_that_fail())
def test_an_error_changes_nothing(name: str) -> None:
    error, failing = _steps_that_fail()[name]
    engine, twin = small_engine(memory_tokens=512), small_engine(memory_tokens=512)
    results = []
    for each in (engine, twin):
        read, written = Block("read"), Block("written")
        feed(each, range(20), read)
        feed(each, range(5), read, written)
        if each is engine:
            free = engine.pool.num_free_pages
            with pytest.raises(error) as caught:
                engine.forward(failing((read, written)))
            assert caught.value.hint
            del caught
            gc.collect()  # the error's frames held the step
            assert (read.num_tokens, written.num_tokens) == (20, 5)
            assert engine.pool.num_free_pages == free
        results.append(feed(each, range(7), read, written))
    assert torch.equal(*results)


def test_an_exact_fit_is_not_too_much() -> None:
    engine = small_engine(memory_tokens=64)
    feed(engine, range(64), Block())
    with pytest.raises(OutOfMemory, match="and the memory has 4"):
        feed(engine, range(65), Block())


def test_the_longest_context_is_not_too_long() -> None:
    engine = small_engine()
    block = Block()
    feed(engine, [1] * CONTEXT, block)
    with pytest.raises(ContextTooLong, match=f"{CONTEXT + 1} tokens long"):
        feed(engine, [1], block)
    assert block.num_tokens == CONTEXT


def test_a_feed_in_chunks_is_measured_as_a_whole() -> None:
    engine = small_engine(max_tokens_per_pass=CONTEXT + 5)
    block = Block("prompt")
    with pytest.raises(ContextTooLong, match=f"block 'prompt' would be {3 * CONTEXT} tokens long"):
        feed(engine, [1] * (3 * CONTEXT), block)
    assert block.num_tokens == 0


def test_a_frozen_block_is_not_written_to() -> None:
    engine = small_engine()
    block = Block("done")
    feed(engine, (1, 2), block)
    block.freeze()
    with pytest.raises(InvalidRequest, match="frozen"):
        feed(engine, (3,), block)


def test_a_block_frozen_after_its_row_was_made_is_not_written_to() -> None:
    engine = small_engine()
    block = Block("done")
    step = Step([Row(View([block]), (1, 2))])
    engine.forward(step)
    block.freeze()
    with pytest.raises(InvalidRequest, match="frozen"):
        engine.forward(step)
    assert block.tokens == [1, 2]


def _not_filled_here() -> dict[str, Block]:
    foreign, frozen, by_hand = Block("foreign"), Block("frozen"), Block("by hand")
    other = small_engine()
    feed(other, range(20), foreign)
    feed(other, range(20), frozen)
    by_hand.tokens.extend(range(20))
    return {"another engine's": foreign, "frozen": frozen.freeze(), "by hand": by_hand}


@pytest.mark.parametrize("name", _not_filled_here())
def test_a_block_that_was_not_filled_here_is_not_read(name: str) -> None:
    """Its keys are in no page of this engine: a row would read what others have left there."""
    engine, block = small_engine(), _not_filled_here()[name]
    free = engine.pool.num_free_pages
    for _ in range(2):  # the first time the block is unknown, the second it has a place
        with pytest.raises(InvalidRequest, match="holds 20 tokens, and this engine was fed 0"):
            feed(engine, (1,), block, Block())
        if not block.frozen:
            with pytest.raises(InvalidRequest, match="holds 20 tokens, and this engine was fed 0"):
                feed(engine, (1,), block)
    assert block.tokens == [*range(20)]
    assert engine.pool.num_free_pages == free


def test_tokens_that_were_added_by_hand_are_not_gone_on_from() -> None:
    engine, block = small_engine(), Block("text")
    view = View([block])
    engine.forward(Step([Row(view, (1, 2, 3))]))
    block.tokens.append(4)
    with pytest.raises(InvalidRequest, match="holds 4 tokens, and this engine was fed 3"):
        engine.forward(Step([Row(view, (5,))]))
    del block.tokens[3:]
    logits = engine.forward(Step([Row(view, (4,))]))[0]
    assert torch.allclose(logits, feed(small_engine(), (1, 2, 3, 4), Block()), atol=1e-5)


def test_two_rows_do_not_write_to_one_block() -> None:
    own = Block("own")
    with pytest.raises(InvalidRequest, match="two rows of one step write to"):
        Step([Row(View([own]), (1,)), Row(View([Block(), own]), (2,))])


def test_a_step_may_be_asked_for_again() -> None:
    engine = small_engine()
    block = Block()
    step = Step([Row(View([block]), (1, 2))])
    engine.forward(step)
    engine.forward(step)
    assert block.tokens == [1, 2, 1, 2]


def test_a_network_that_fails_midway(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed pass blocks and pages are as before."""
    engine = small_engine(memory_tokens=160)
    first, second = Block("first"), Block("second")
    feed(engine, (1, 2, 3), first)
    expected = feed(small_engine(), (1, 2, 3, 4), Block())

    class Failed(Exception):
        pass

    def fail(*_: object) -> Tensor:
        raise Failed

    with monkeypatch.context() as broken:
        broken.setattr(executor_of(engine).adapter, "forward", fail)
        with pytest.raises(Failed):
            feed(engine, range(100), first)
    assert first.tokens == [1, 2, 3]
    assert engine.pool.num_free_pages == 9
    with pytest.raises(OutOfMemory):
        engine.forward(
            Step([Row(View([first]), (4,)), Row(View([first, second]), tuple(range(145)))])
        )
    assert first.tokens == [1, 2, 3]
    assert engine.pool.num_free_pages == 9
    assert (feed(engine, (4,), first) - expected).abs().max() < 1e-5
    del first
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_a_move_that_fails_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted while finished blocks are moved together, the engine finishes that later."""
    engine, twin = small_engine(), small_engine()
    right = Memory.move

    def half(self: Memory, moves: Sequence[Move], backend: Backend) -> None:
        move = moves[0]
        shifts = Rotations(torch.full((len(move.sources),), move.shift))
        sources, targets = torch.as_tensor(move.sources), torch.as_tensor(move.targets)
        self.stores[0].move(Moved(sources, targets, shifts))
        raise KeyboardInterrupt

    results = []
    for each in (engine, twin):
        blocks = [Block(str(i)) for i in range(4)]
        for block in blocks[:-1]:
            feed(each, range(7), block)
            block.freeze()
        if each is engine:
            monkeypatch.setattr(Memory, "move", half)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    feed(engine, range(5), *blocks)
            monkeypatch.setattr(Memory, "move", right)
        results.append(feed(each, range(5), *blocks))
    assert torch.equal(*results)


@pytest.mark.parametrize("wrong", [None, 3, [Row(View([Block()]), (1,))], View([Block()])])
def test_what_is_no_step_no_run_and_no_trace_is_named(wrong: Any) -> None:
    engine = small_engine()
    kind = f"a {type(wrong).__name__} was given"
    with pytest.raises(InvalidRequest, match=f"{kind} as a step; expected a Step") as found:
        engine.forward(wrong)
    assert found.value.hint == "Write Step([Row(view, feed), ...])."
    with pytest.raises(InvalidRequest, match=f"{kind} to be replayed; expected a Merged"):
        engine.replay(wrong)
    with pytest.raises(InvalidRequest, match=f"{kind} to be restored; expected a Trace"):
        engine.restore(wrong, wrong)


@pytest.mark.parametrize("wrong", [None, 3, TEXT.tokenizer])
def test_what_is_no_model_is_named(wrong: Any) -> None:
    kind = f"the model is of type {type(wrong).__name__}; expected a folder"
    with pytest.raises(InvalidRequest, match=kind):
        Engine.load(wrong, device="cpu")
    for name in ("lora", "cache"):
        with pytest.raises(InvalidRequest, match=f"{name} is of type int; expected a folder"):
            Engine.load("bundled", device="cpu", **{name: 3})  # type: ignore[arg-type]


def test_an_unknown_backend_is_refused() -> None:
    expected = "backend is 'fast'; expected one of auto, triton, torch, reference"
    with pytest.raises(InvalidRequest, match=expected):
        small_engine(backend="fast")


# -- long feeds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_tokens", [1, 5, 16])
def test_a_small_pass_gives_the_same_logits(most_tokens: int) -> None:
    """Feeds that are longer than a pass are fed early in chunks, and nothing else changes."""
    whole, cut = small_engine(), small_engine(max_tokens_per_pass=most_tokens)
    words = [
        TEXT.encode(text) for text in ("The first of three long prompts.", "Two.", "Reads both.")
    ]
    results = []
    for engine in (whole, cut):
        first, second, third = (Block() for _ in range(3))
        rows = [
            Row(View([first]), words[0]),
            Row(View([second]), words[1]),
            Row(View([second, first, third]), words[2]),
        ]
        logits = engine.forward(Step(rows))
        assert [tuple(row.view.own.tokens) for row in rows] == [row.feed for row in rows]
        results.append(torch.cat([logits, engine.forward(Step([Row(rows[2].view, (7,))]))]))
    assert cut.usage.forward_passes > whole.usage.forward_passes
    assert cut.usage.tokens_fed == whole.usage.tokens_fed
    assert (results[0] - results[1]).abs().max() < 1e-5


@pytest.mark.parametrize("wrong", [None, [], "step", Row(View([Block()]), (1,)), [None]])
def test_what_is_no_step_is_refused(wrong: Any) -> None:
    engine = small_engine()
    with pytest.raises(InvalidRequest, match="was given as a step; expected a Step"):
        engine.forward(wrong)
    with pytest.raises(InvalidRequest, match=r"a step was made of|where a Row was expected"):
        Step(wrong)


@pytest.mark.parametrize("wrong", [b"ab", bytearray(b"ab"), {1, 2}, frozenset({1}), {1: 2}])
def test_numbers_without_an_order_are_no_feed(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected a list of token ids"):
        Row(View([Block()]), wrong)


@pytest.mark.parametrize("speculate", [0, 4])
def test_guesses_are_the_engines_own(speculate: int) -> None:
    engine = small_engine(speculate=speculate)
    with pytest.raises(InvalidRequest, match="guesses are the engine's own"):
        engine.forward(Step([Row(View([Block()]), (1,), draft=(2, 3))]))


@pytest.mark.parametrize("wrong", [None, 5])
def test_what_is_no_list_of_strategies_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="was given as strategies"):
        small_engine().run_all(wrong)


@pytest.mark.parametrize("wrong", [None, "bundled", 5])
def test_what_is_no_executor_makes_no_engine(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"an engine was to be made of a .*; expected a Model"):
        Engine(wrong)


def test_only_a_run_of_the_engine_is_cancelled() -> None:
    engine, other = small_engine(), small_engine()
    run = engine.submit(counting((1,)))
    wrong: Any = None
    for odd in (wrong, run):
        with pytest.raises(InvalidRequest, match="expected a Run of this engine"):
            other.cancel(odd)
    assert not run.done
    engine.cancel(run)
    assert run.done


def test_a_strategy_that_spoils_its_block_spoils_no_other_run() -> None:
    def spoiling() -> Strategy:
        view = View([Block()])
        yield Step([Row(view, (1, 2, 3))])
        view.own.tokens = (1, 2)  # type: ignore[assignment]
        yield Step([Row(view, (1,))])
        return Answer("never")

    engine = small_engine()
    wanted = small_engine().run(counting((1,), 3))
    with pytest.raises(InvalidRequest, match="were set to a tuple"):
        engine.run(spoiling())
    assert engine.run(counting((1,), 3)) == wanted


def test_tokens_may_be_taken_away_from_the_end() -> None:
    engine, block = small_engine(), Block()
    feed(engine, (5, 6, 7), block)
    block.tokens.pop()
    torch.testing.assert_close(
        feed(engine, (9,), block), feed(small_engine(), (5, 6, 9), Block()), atol=1e-5, rtol=0
    )


def test_a_failure_behind_a_chunk_undoes_all_of_it() -> None:
    engine = small_engine(memory_tokens=64, max_tokens_per_pass=10)
    start, later = Block(), Block()
    before = feed(engine, (1, 2, 3), start)
    with pytest.raises(OutOfMemory):
        feed(engine, (5,) * 100, start, later)
    assert (start.tokens, later.tokens) == ([1, 2, 3], [])
    undone = feed(engine, (5,) * 25, start, later)
    fresh = small_engine()
    other, more = Block(), Block()
    assert (feed(fresh, (1, 2, 3), other) - before).abs().max() < 1e-5
    assert (feed(fresh, (5,) * 25, other, more) - undone).abs().max() < 1e-5


def test_runs_are_charged_for_their_chunks() -> None:
    engine = small_engine(max_tokens_per_pass=8)
    runs = [engine.submit(counting((1,) * size, 3)) for size in (30, 4)]
    while not all(run.done for run in runs):
        engine.step()
    assert [run.usage.tokens_fed for run in runs] == [32, 6]
    assert runs[0].usage.forward_passes > runs[1].usage.forward_passes == 3


@pytest.mark.parametrize("wrong", ["running", None, 3, [], RunState])
def test_what_is_no_state_and_no_function_is_named(wrong: Any) -> None:
    engine = small_engine()
    with pytest.raises(InvalidRequest, match="was given as a state; expected a RunState"):
        engine.num_runs(wrong)
    assert engine.num_runs(RunState.RUNNING) == 0
    if wrong not in (None, RunState):
        with pytest.raises(InvalidRequest, match="to be told of it; expected a function"):
            engine.get_ready(wrong)


def test_an_engine_is_made_of_no_engine_and_told_every_choice_once() -> None:
    engine = small_engine()
    with pytest.raises(InvalidRequest, match="an engine was to be made of a Engine"):
        Engine(engine)  # type: ignore[arg-type]
    for name, wrong in (("prompts", "words"), ("prompts", []), ("settings", {}), ("settings", "x")):
        with pytest.raises(InvalidRequest, match=f"was given as {name}; expected a"):
            Engine(engine.executor, **{name: wrong})  # type: ignore[arg-type]
    makers: tuple[Callable[[], Engine], ...] = (
        lambda: Engine(engine.executor, None, ModelSettings("bundled"), memory_tokens=100),
        lambda: Engine.load(ModelSettings("bundled"), memory_tokens=100),
    )
    for twice in makers:
        with pytest.raises(
            InvalidRequest, match="memory_tokens was given beside settings as a whole"
        ):
            twice()
    others: tuple[Any, ...] = ("words", 3, object())
    for wrong in others:
        with pytest.raises(InvalidRequest, match="as a tokenizer, which has no"):
            Engine(engine.executor, wrong)


def test_a_run_of_another_engine_is_named() -> None:
    """It was waited for, for good: nobody made its passes."""
    engine, other = small_engine(), small_engine()
    run = other.submit(counting((1,), 5))
    for ask in (engine.run_all, lambda runs: list(engine.stream(runs[0]))):
        with pytest.raises(InvalidRequest, match="a Run of another engine was given"):
            ask([run])  # type: ignore[arg-type]
    assert not run.done
    assert [answer.text for answer in other.run_all([run])]  # type: ignore[arg-type, var-annotated]


@pytest.mark.parametrize("fuse", ["off", "on"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_network_that_its_owner_converts_is_read_no_more(fuse: str, dtype: torch.dtype) -> None:
    """Memory and recordings are of what it was; what it is again is read on."""
    network: Any = tiny_models()["llama"]()
    engine = Engine.load(network, memory_tokens=64, fuse=fuse)
    own = Block()
    engine.forward(Step([Row(View([own]), (1, 2, 3))]))
    network.to("cpu")
    (before,) = engine.forward(Step([Row(View([Block()]), (1, 2, 3))]))
    network.to(dtype)
    said = f"is {dtype} on cpu now, and the engine was made for torch.float32 on cpu"
    with pytest.raises(InvalidRequest, match=said) as caught:
        engine.forward(Step([Row(View([own]), (4,))]))
    assert caught.value.hint == "undo that, or make a new engine of it"
    assert own.tokens == [1, 2, 3]
    for seen in (engine.executor.run, engine.executor.go_on):
        with pytest.raises(InvalidRequest, match=said):
            seen(None, ())  # type: ignore[arg-type]  # nothing is looked at before
    network.to(torch.float32)
    (after,) = engine.forward(Step([Row(View([Block()]), (1, 2, 3))]))
    assert float((after - before).abs().max()) < (0.5 if dtype == torch.bfloat16 else 1e-6)


# Parts of a network that its owner may move or convert alone.
PARTS = ("lm_head", "model.embed_tokens", "model.norm", "model.layers.0", "model.layers.1")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "fuse", ["off", "on"]
)  # a head that is laid out for its products cannot be moved
def test_a_part_that_is_moved_or_converted_is_named(fuse: str, part: str) -> None:
    """A recording would read where it lay, and torch says neither which weight nor what to do."""
    network: Any = tiny_models()["llama"]()
    engine = Engine.load(network, memory_tokens=64, fuse=fuse)
    own = Block()
    (before,) = engine.forward(Step([Row(View([own]), (1, 2, 3))]))
    if not list(network.get_submodule(part).parameters()):
        assert (fuse, part) == ("on", "lm_head")
        return
    for moved in ("meta", torch.bfloat16):
        kept = [
            (own, name, weight, weight.data)
            for own in (module._parameters for module in network.modules())
            for name, weight in own.items()
            if weight is not None
        ]
        network.get_submodule(part).to(moved)
        said = rf"its {part}\S* is torch.\w+ on \w+ now, and the engine was made for torch.float32 on cpu"
        with pytest.raises(InvalidRequest, match=said):
            engine.forward(Step([Row(View([own]), (4,))]))
        assert own.tokens == [1, 2, 3]
        for own_weights, name, weight, was in kept:
            weight.data = was
            own_weights[name] = weight
    (after,) = engine.forward(Step([Row(View([Block()]), (1, 2, 3))]))
    assert torch.equal(after, before) or float((after - before).abs().max()) < 1e-5


@pytest.mark.parametrize("part", PARTS[:1] + PARTS[-1:])
def test_a_part_that_is_elsewhere_or_of_other_numbers_from_the_beginning_is_named(
    part: str,
) -> None:
    network: Any = tiny_models()["llama"]()
    network.get_submodule(part).to("meta")
    with pytest.raises(
        InvalidRequest, match=rf"weights are not on cpu.*: {part}\S* is on meta"
    ) as caught:
        Engine.load(network, memory_tokens=64)
    assert "model.to('cpu')" in str(caught.value.hint)
    network = tiny_models()["llama"]()
    network.model.rotary_emb.to(torch.float64)  # it makes no difference
    Engine.load(network, memory_tokens=64).forward(Step([Row(View([Block()]), (1, 2, 3))]))
    network = tiny_models()["llama"]()
    network.get_submodule(part).to(torch.bfloat16)
    engine = Engine.load(network, memory_tokens=64, fuse="off")
    said = (
        rf"of other numbers: model.embed_tokens is torch.float32, and {part}\S* is torch.bfloat16"
    )
    with pytest.raises(InvalidRequest, match=said) as caught:
        engine.forward(Step([Row(View([Block()]), (1, 2, 3))]))
    assert isinstance(caught.value.__cause__, RuntimeError)
