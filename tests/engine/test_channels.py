"""A small network of gpt-oss's kind whose random words are messages in channels: thinking and reply as its tokens have them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenizers import AddedToken

from manyhands.cache.step import Choice
from manyhands.engine.engine import Engine
from manyhands.model.adapter import ModelAdapter
from manyhands.strategies.base import Answer
from manyhands.strategies.events import ReplyWritten, TokenWritten
from manyhands.strategies.methods import METHODS
from manyhands.strategies.settings import EndSettings, SharedSettings
from manyhands.strategies.shared_prefix import Completions, shared_prefix
from manyhands.text import Text
from tests.model.families_zoo import tiny_model, tiny_models
from tests.text.small_tokenizers import HARMONY_MARKS, harmony
from tests.text.test_thinking import parts

TOKENIZER = harmony()
TOKENIZER.add_tokens([AddedToken("final", special=False), AddedToken("so. ", special=False)])
TEXT = Text(TOKENIZER)
MARKS = [mark for mark in HARMONY_MARKS if mark not in ("<|return|>", "<|call|>", "<|constrain|>")]
WORDS = [TOKENIZER.get_vocab()[word] for word in (*MARKS, "final", "so. ", "a")]
ANY = Choice(temperature=1.0, allowed=frozenset(WORDS))


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = tiny_models()["gpt_oss"]().config
    config.vocab_size, config.max_position_embeddings = len(TOKENIZER), 8192
    return Engine(ModelAdapter(tiny_model(config)), TOKENIZER, memory_tokens=65536)


def test_completions(engine: Engine) -> None:
    settings = SharedSettings(samples=40, max_tokens=80, choice=ANY)
    answer = engine.run(shared_prefix(["3+4?"], TEXT, settings))
    assert isinstance(answer, Completions)
    replies = 0
    for each in answer.completions:
        thinking, reply, _ = parts(TEXT, each.tokens)
        assert (each.thinking, each.text.strip()) == (thinking.strip(), reply.strip())
        replies += bool(reply)
        if each.thinking_tokens < len(each.tokens):
            assert parts(TEXT, each.tokens[: each.thinking_tokens])[1] == ""
    assert 2 < replies < 38


@pytest.mark.parametrize("name", METHODS)
def test_methods(engine: Engine, name: str) -> None:
    """No mark and no name of a channel is told, and a strand's reply is its final message."""
    method = METHODS[name]
    end = EndSettings(finisher=False, reply_tokens=20)
    for seed in range(2):
        settings = replace(method.settings(), budget=40, choice=ANY, seed=seed, end=end)
        *events, answer = engine.stream(method.make("3+4?", TEXT, settings, None))
        assert isinstance(answer, Answer)
        tokens = [e.token for e in events if isinstance(e, TokenWritten) and not e.worker]
        said = "".join(e.text for e in events if isinstance(e, ReplyWritten))
        assert "<|" not in said + answer.text
        if method.solo:
            is_thinking = name != "async_reasoning"  # there others think, and this is the reply
            reply = parts(TEXT, tuple(tokens), thinking=is_thinking)[1]
            assert said.split() == reply.split()
