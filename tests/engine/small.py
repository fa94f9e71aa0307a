"""A small engine for every test: a random Qwen3 with a real tokenizer, and strategies to run on it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import transformers as hf

from manyhands.cache.block import Block
from manyhands.cache.step import GREEDY, Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.scheduler import Run
from manyhands.model.adapter import ModelAdapter
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.prompts.load import Prompts
from manyhands.strategies.base import Answer, Reserve, Strategy
from manyhands.strategies.events import Event, TokenWritten, UsageCounted
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import EndSettings, SoloSettings, TeamSettings
from manyhands.text import Text
from tests.model.families_zoo import tiny_model, tiny_models
from tests.model.lean import make_lean
from tests.text.small_tokenizers import byte_level

CONTEXT = 1024
TOKENIZER = byte_level()
TEXT = Text(TOKENIZER)
NUM_IDS = len(TOKENIZER)
PROBLEM = "1. 2+3\n2. 3+4"
WORDS = TeamPrompt(rules="{names} solve this together.\n{problem}")
PROMPTS = Prompts(team=WORDS)  # a byte is a token here, and the usual rules have 1 800
SHORT_END = EndSettings(finisher_tokens=4, reply_tokens=5)
# Few enough tokens that a network of random weights often finishes a paragraph.
LETTERS = frozenset(token for letter in "abc.!\n" for token in TEXT.encode(letter))

FEW = Choice(
    temperature=1.0, allowed=frozenset(t for letter in "ac\n" for t in TEXT.encode(letter))
)


def small_config(heads: int = 4, kv_heads: int = 2, layers: int = 2) -> hf.Qwen3Config:
    """A Qwen3 of few layers."""
    return hf.Qwen3Config(
        vocab_size=NUM_IDS,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        eos_token_id=TOKENIZER.eos_token_id,
        tie_word_embeddings=False,
    )


@cache
def networks() -> dict[str, partial[Any]]:
    """As `tiny_models`; the configurations of all families are made once, to be copied before a change."""
    return tiny_models()


def small_engine(
    memory_tokens: int = 8192,
    overcommit: float = 1.0,
    *,
    config: hf.Qwen3Config | None = None,
    **choices: Any,
) -> Engine:
    adapter = ModelAdapter(tiny_model(config or small_config()))
    if config is None and "fuse" not in choices:
        make_lean(adapter.model)
    return Engine(adapter, TOKENIZER, memory_tokens=memory_tokens, overcommit=overcommit, **choices)


def executor_of(engine: Engine) -> LocalExecutor:
    """The executor, whose network and memory are of this process: all of them, or those of rank 0."""
    return cast(LocalExecutor, engine.executor)


def team(workers: int, *, choice: Choice = GREEDY, seed: int = 0, **more: Any) -> Strategy:
    """A team of random letters: steps end now and then, redundancy is checked."""
    settings = TeamSettings(
        workers=workers,
        budget=more.pop("budget", 30),
        check_every=20,
        choice=choice,
        seed=seed,
        end=SHORT_END,
        **more,
    )
    return hogwild(PROBLEM, TEXT, settings, WORDS)


def cut_team(mark: str = "c", **more: Any) -> Strategy:
    """A team whose structure is so plain that random letters often make a line of it."""
    settings = TeamSettings(**{"budget": 30, "choice": FEW, "end": SHORT_END, **more})
    words = replace(WORDS, step_prefix="{name}!", names=("a", "b"), more_to_come=mark)
    return hogwild(PROBLEM, TEXT, settings, words)


def solo(*, choice: Choice = GREEDY, seed: int = 0, budget: int = 30) -> Strategy:
    settings = SoloSettings(budget=budget, choice=choice, seed=seed, end=SHORT_END)
    return sequential(PROBLEM, TEXT, settings)


def counting(
    prompt: Sequence[int], num_tokens: int = 12, reserve: Reserve | None = None
) -> Strategy:
    """The plainest strategy: read, write so many tokens, report each, answer with all of them."""
    return _counting(tuple(prompt), num_tokens, reserve)


def _counting(
    prompt: tuple[int, ...], num_tokens: int, reserve: Reserve | None
) -> Generator[Step | Reserve | Event, Any, Answer]:
    if reserve is not None:
        yield reserve
    view, feed, written = View([Block("text")]), prompt, []
    for count in range(num_tokens):
        tokens = yield Step([Row(view, feed)])
        assert tokens is not None
        feed = tokens
        written.append(tokens[0])
        yield TokenWritten(count + 1, 0, tokens[0], "")
    return Answer(text=" ".join(map(str, written)))


def finish(engine: Engine, *runs: Run) -> None:
    """Step until these runs are done."""
    while not all(run.done for run in runs):
        assert engine.step() or all(run.done for run in runs), "nobody is left, somebody waits"


def story(engine: Engine, strategy: Strategy) -> list[Event | Answer]:
    """Everything a strategy reports, alone on the engine; its answer last."""
    return [event for event in engine.stream(strategy) if not isinstance(event, UsageCounted)]


def story_of(run: Run) -> list[Event | Answer]:
    """The same of a run that is done."""
    return [*run.events, run.result()]
