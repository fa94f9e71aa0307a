"""Branches through the real engine, on random networks: they are what they would be alone.

A small player drives the strategy with the engine's own forward pass. The skeleton is put in the
model's mouth; everything else is the network's choice.
"""

from __future__ import annotations

import copy
import gc
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from torch import Tensor

from manyhands.cache.block import Block
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.sampling import choose
from manyhands.model.adapter import ModelAdapter
from manyhands.prompts.branches import BranchPrompt
from manyhands.strategies.base import Reserve, Strategy
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.branches import BranchAnswer, branches, placeholder_tokens
from manyhands.strategies.events import Event
from manyhands.strategies.listening import Listen
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import BranchSettings, EndSettings
from manyhands.text import Text
from tests.covers import examples
from tests.engine.small import LETTERS, finish, networks, small_engine
from tests.engine.small import TEXT as BYTES
from tests.model.families_zoo import tiny_model
from tests.strategies.specs import spec_of
from tests.text.small_tokenizers import sentence_piece

PIECES = Text(sentence_piece())
PROMPT = BranchPrompt("Q: {question}")
SKELETON = "Look.\n####Anna:Ben:Chris Lee:%%%%"  # the part that the model itself writes
TITLES = ("Anna", "Ben", "Chris Lee")
SHORT = EndSettings(finisher_tokens=3)


@dataclass
class Played:
    """The steps, the logits of each, and the answer."""

    steps: list[Step] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    written: dict[str, list[int]] = field(default_factory=dict)
    answer: BranchAnswer | None = None


def play(
    engine: Engine, strategy: Strategy, said: tuple[int, ...], last: tuple[int, ...] | None = None
) -> Played:
    """Run a strategy on the engine; `said` is the text that the main strand writes first.

    Behind a step whose last row is fed `last` nothing is asked any more, and there is no answer.
    """
    played, mouth = Played(), deque(said)
    tokens: tuple[int, ...] | None = None
    while True:
        try:
            asked = strategy.send(tokens)
        except StopIteration as end:
            played.answer = end.value
            return played
        tokens = None
        if isinstance(asked, Event | Reserve | Listen):
            continue
        logits = engine.forward(asked)
        chosen = list(choose(logits, [row.choice for row in asked.rows]).tokens())
        for index, row in enumerate(asked.rows):
            if row.writer == "writer" and mouth:
                chosen[index] = mouth.popleft()
            if row.writer is not None:
                played.written.setdefault(row.writer, []).append(chosen[index])
        played.steps.append(asked)
        played.logits.append(logits)
        if asked.rows[-1].feed == last:
            strategy.close()
            return played
        tokens = tuple(chosen)


def prefill(engine: Engine, tokens: tuple[int, ...], choice: Choice) -> tuple[int, Tensor, View]:
    """Plain causal text in one block: the next token, its logits, the view."""
    view = View([Block("alone")])
    logits = engine.forward(Step([Row(view, tokens)]))
    return choose(logits, [choice]).tokens()[0], logits[0], view


def alone(
    engine: Engine, tokens: tuple[int, ...], count: int, text: Text, choice: Choice
) -> list[int]:
    """An independent greedy decode of `count` tokens; the placeholder may not begin it."""
    banned = placeholder_tokens(text, "......")
    first = Choice(allowed=choice.allowed, forbidden=banned)
    token, _, view = prefill(engine, tokens, first)
    written = [token]
    while len(written) < count:
        blank = not text.decode(written).strip()
        step = Step([Row(view, (token,), first if blank else choice)])
        token = choose(engine.forward(step), [step.rows[0].choice]).tokens()[0]
        written.append(token)
    return written


def marked_trunk(text: Text) -> tuple[int, ...]:
    return text.chat_prompt("Q: who") + text.encode("Look.\n")


FAMILIES = ["gpt_oss", "smollm3", "qwen3", "gemma3_text"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (BYTES, FAMILIES[:2]),
        (PIECES, FAMILIES[2:]),
        pytest.param(BYTES, FAMILIES[2:], marks=pytest.mark.spared),
        pytest.param(PIECES, FAMILIES[:2], marks=pytest.mark.spared),
    ],
    ids=["bytes", "pieces", "bytes in others", "pieces in others"],
)
def test_branches_are_independent_decodes(text: Text, names: Sequence[str]) -> None:
    """Token for token, whatever the network; and some of them ended before the others."""
    allowed = frozenset(t for word in "abc#\n." for t in text.encode(word))
    choice = Choice(allowed=allowed | text.eos)
    lengths = set()
    for name in names:
        played, engine = played_by(name, text, choice), network_engine(name)
        assert played.answer is not None
        assert [b.title for b in played.answer.branches] == list(TITLES)
        parted = next(step for step in played.steps if step.rows[-1].writer == "branch 3")
        trunk = [t for block in parted.rows[-1].view.blocks[:-1] for t in block.tokens]
        assert text.decode(trunk) == text.decode(marked_trunk(text))
        for index, title in enumerate(TITLES, 1):
            written = played.written[f"branch {index}"]
            tokens = (*trunk, *text.encode(f"####{title}:"))
            assert written == alone(engine, tokens, len(written), text, choice)
            lengths.add(len(written))
    assert len(lengths) > 1 or (text is BYTES and names == FAMILIES[2:])


def played_by(name: str, text: Text, choice: Choice) -> Played:
    """Run what a trace's header says, as it comes back from a file."""
    settings = BranchSettings(choice=choice, branch_tokens=12, budget=75, end=SHORT, max_blocks=1)
    header = json.loads(json.dumps(spec_of(settings, PROMPT, "who").to_plain()))
    return play(
        network_engine(name), RunSpec.from_plain(header).strategy(text), text.encode(SKELETON)
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3", BYTES),
        ("qwen3", PIECES),
        ("gpt_oss", BYTES),
        ("gemma3_text", BYTES),
        ("smollm3", BYTES),
    ],
    ids=["qwen3", "qwen3, sentence_piece", "gpt_oss", "gemma3_text", "smollm3"],
)
def test_the_reencoding_join_is_plain_causal_prefill(name: str, text: Text) -> None:
    """And the other two, whose text is the same, are not."""
    apart = {}
    for join in JOINS:
        engine = network_engine(name)
        settings = BranchSettings(
            choice=Choice(allowed=LETTERS if text is BYTES else None),
            branch_tokens=9,
            budget=75,
            join=join,
            end=SHORT,
            max_blocks=1,
        )
        close = text.encode("####%%%%\n")
        run = branches("who", text, settings, PROMPT)
        played = play(engine, run, text.encode(SKELETON), last=close)
        assert played.answer is None, "it has come so far"
        view = played.steps[-1].rows[-1].view
        whole = tuple(t for block in view.blocks[:-1] for t in block.tokens) + close
        causal = prefill(engine, whole, Choice())[1]
        apart[join] = (played.logits[-1][-1] - causal).abs().max().item()
        titles = [text.decode(whole).find(f"####{title}:") for title in TITLES]
        assert -1 < titles[0] < titles[1] < titles[2]
        assert "......" not in text.decode(whole)
    assert apart["reencode"] < 1e-4
    assert apart["stitch"] > 1e-3
    assert apart["keep"] > 1e-3
    assert apart["keep"] != apart["stitch"]


def network_engine(name: str) -> Engine:
    """A network of this family with room for a whole tokenizer."""
    config = copy.deepcopy(networks()[name].args[0])
    config.vocab_size = 512
    return Engine(ModelAdapter(tiny_model(config)), memory_tokens=4096)


def test_an_untrained_network_runs_to_its_budget_and_frees_its_blocks() -> None:
    engine = small_engine()
    pages = engine.pool.num_free_pages
    runs = [
        engine.submit(branches("who", BYTES, settings, PROMPT, context=1024))
        for settings in hashes()
    ]
    finish(engine, *runs)
    together = [run.result() for run in runs]
    assert any(answer.branches for answer in together if isinstance(answer, BranchAnswer))
    assert together == [
        small_engine().run(branches("who", BYTES, settings, PROMPT, context=1024))
        for settings in hashes()
    ]
    for answer in together:
        assert "####" not in answer.text
    del runs
    gc.collect()
    assert engine.pool.num_free_pages == pages


def hashes() -> list[BranchSettings]:
    """Few enough tokens that random text holds whole blocks."""
    allowed = frozenset(BYTES.encode("#")[:1] + BYTES.encode("a:"))
    common = BranchSettings(
        choice=Choice(temperature=1.0, allowed=allowed),
        budget=60,
        branch_tokens=10,
        max_branches=3,
        end=SHORT,
    )
    return [
        replace(common, seed=seed, join=join) for seed in range(examples(2, of=3)) for join in JOINS
    ]
