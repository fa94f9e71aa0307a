"""Threads and attempts through the real engine, on random networks: they are what they would be alone."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from manyhands.cache.block import Block
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.sampling import choose
from manyhands.prompts import Prompts
from manyhands.prompts.async_reasoning import AsyncReasoningPrompt
from manyhands.prompts.async_think import AsyncThinkPrompt
from manyhands.prompts.skeleton import SkeletonPrompt
from manyhands.prompts.votes import VotesPrompt
from manyhands.replay.trace import parse_trace, record
from manyhands.schema.lines import Line
from manyhands.strategies.base import Reserve, Sent, Strategy
from manyhands.strategies.events import Event
from manyhands.strategies.listening import Heard, Listen
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import (
    AsyncReasoningSettings,
    AsyncThinkSettings,
    BestSettings,
    EndSettings,
    Settings,
    SkeletonSettings,
    VoteSettings,
)
from manyhands.text import Text
from tests.covers import in_turns, is_every_case
from tests.engine.small import CONTEXT, LETTERS, TEXT, finish, small_engine
from tests.engine.test_branches import network_engine
from tests.strategies.specs import method_of, spec_of
from tests.text.small_tokenizers import sentence_piece

FAMILIES = ("qwen3", "gpt_oss", "gemma3_text", "smollm3")
PROMPTS = Prompts(
    skeleton=SkeletonPrompt(rules="Q: {question}"),
    votes=VotesPrompt("Q: {question}"),
    async_reasoning=AsyncReasoningPrompt("Q: {question}", probe="?", yes="a", no="b"),
    # Marks that an untrained network often writes, if it has few letters.
    async_think=AsyncThinkPrompt("Q: {question}", "W: {query}", "a{number}b", "a", "b{number}a"),
)
OUTLINE = " wind\n2. sun\n3. rain and hail\n\n"
TITLES = ("wind", "sun", "rain and hail")
SHORT = EndSettings(finisher_tokens=3, reply_tokens=4)
SAMPLED = Choice(temperature=1.0, allowed=LETTERS)
MARKS = Choice(temperature=1.0, allowed=frozenset(TEXT.encode("ab1")))


# Any lines are an outline, so that an untrained network writes one.
ANY_LINES = SkeletonPrompt("{question}", "", "{title}", "!", "\n{title}: ", "!", "\n==")


def strategy(settings: Settings, text: Text = TEXT, prompts: Prompts = PROMPTS) -> Strategy:
    method = method_of(settings)
    return method.make("who", text, settings, getattr(prompts, method.prompt), context=CONTEXT)


def play(engine: Engine, played: Strategy, text: Text) -> dict[str, list[int]]:
    """Everybody's tokens; the main strand of a skeleton writes the outline first."""
    mouth, written = deque(text.encode(OUTLINE)), dict[str, list[int]]()
    tokens: Sent = None
    while True:
        try:
            asked = played.send(tokens)
        except StopIteration:
            return written
        tokens = Heard() if isinstance(asked, Listen) else None
        if isinstance(asked, Event | Reserve | Listen):
            continue
        chosen = list(choose(engine.forward(asked), [row.choice for row in asked.rows]).tokens())
        for index, row in enumerate(asked.rows):
            if row.writer == "writer" and mouth:
                chosen[index] = mouth.popleft()
            if row.writer is not None:
                written.setdefault(row.writer, []).append(chosen[index])
        tokens = tuple(chosen)


def alone(engine: Engine, tokens: tuple[int, ...], count: int, choice: Choice) -> list[int]:
    """An independent greedy decode of `count` tokens behind plain causal text."""
    view, written = View([Block("alone")]), list[int]()
    while len(written) < count:
        step = Step([Row(view, tuple(written[-1:]) or tokens, choice)])
        written += choose(engine.forward(step), [choice]).tokens()
    return written


@cache
def pieces() -> Text:
    return Text(sentence_piece())


@pytest.mark.parametrize(("name", "tokenizer"), in_turns(FAMILIES, "bytes", "pieces"))
def test_threads_are_independent_decodes(name: str, tokenizer: str) -> None:
    """Token for token, whatever the network, and however many workers share the points."""
    text, workers = (TEXT, 0) if tokenizer == "bytes" else (pieces(), 2)
    choice = Choice(allowed=frozenset(t for word in "abc.\n" for t in text.encode(word)) | text.eos)
    engine = network_engine(name)
    settings = SkeletonSettings(
        workers=workers, thread_tokens=8, budget=70, choice=choice, end=SHORT
    )
    written = play(engine, strategy(settings, text), text)
    outline = text.encode(OUTLINE.removesuffix("\n\n"))
    trunk = text.chat_prompt("Q: who") + text.encode("1.") + outline
    for number, title in enumerate(TITLES, 1):
        thread = written[f"point {number}"]
        heading = text.encode(PROMPTS.skeleton.heading(number, title))
        assert thread == alone(engine, trunk + heading, len(thread), choice)


@pytest.mark.parametrize("name", FAMILIES)
def test_attempts_are_independent_runs(name: str) -> None:
    """An attempt is what its worker would have written alone; and a greedy one, plain decoding."""
    choice = Choice(temperature=1.0, allowed=LETTERS)
    settings = VoteSettings(workers=4, budget=14, choice=choice, end=SHORT)
    team = play(network_engine(name), strategy(settings), TEXT)
    pair = play(network_engine(name), strategy(replace(settings, workers=2)), TEXT)
    for attempt in ("attempt 1", "attempt 2"):
        assert team[attempt] == pair[attempt]
    assert len({tuple(team[f"attempt {i}"]) for i in range(1, 5)}) == 4
    likeliest = Choice(allowed=LETTERS)
    one = VoteSettings(workers=1, budget=14, choice=likeliest, end=SHORT)
    engine = network_engine(name)
    written = play(engine, strategy(one), TEXT)["attempt 1"]
    assert written == alone(engine, TEXT.chat_prompt("Q: who"), len(written), likeliest)


def all_settings() -> list[Settings]:
    shared: dict[str, Any] = {
        "budget": 25,
        "choice": SAMPLED,
        "end": SHORT,
        "snapshots": (7, 18),
        "seed": 2,
    }
    return [
        SkeletonSettings(**shared | {"budget": 60}),
        SkeletonSettings(workers=1, **shared | {"budget": 60}),
        VoteSettings(workers=3, **shared),
        VoteSettings(workers=3, mode="vote", **shared),
        BestSettings(workers=3, **shared),
        AsyncReasoningSettings(probe_every=4, **shared),
        AsyncThinkSettings(worker_tokens=6, **shared | {"budget": 120, "choice": MARKS}),
    ]


def test_in_company_as_alone_and_nothing_stays_in_memory() -> None:
    engine = small_engine(memory_tokens=20_000)
    pages = engine.pool.num_free_pages
    words = replace(PROMPTS, skeleton=ANY_LINES)
    runs = [engine.submit(strategy(settings, prompts=words)) for settings in all_settings()]
    finish(engine, *runs)
    together = [run.result() for run in runs]
    assert together == [
        small_engine().run(strategy(settings, prompts=words)) for settings in all_settings()
    ]
    assert len(together[0].tokens) > 2  # there were threads
    assert all(together[-2].tokens)  # of both roles
    assert len(together[-1].tokens) > 1  # there were workers
    segments = sum(step.worker == 0 for step in together[-1].steps)
    assert segments > len(together[-1].tokens)  # one more for each fork, so some were joined
    del runs
    assert engine.pool.num_free_pages == pages


@pytest.mark.parametrize("settings", all_settings(), ids=lambda s: method_of(s).name)
def test_a_run_that_was_cut_off_comes_back(settings: Settings, pytestconfig: pytest.Config) -> None:
    """From every part of its trace, by its header alone, with the same end."""
    lines: list[Line] = []
    words = replace(PROMPTS, skeleton=ANY_LINES)
    prompt = getattr(words, method_of(settings).prompt)
    header = spec_of(settings, prompt, "who", CONTEXT).to_plain()
    whole = small_engine().run(record(strategy(settings, prompts=words), header, lines.append))
    for share in (3, 2, 1.3) if is_every_case(pytestconfig) else (3, 1.3):
        trace = parse_trace(lines[: int(len(lines) / share)])
        engine, again = small_engine(), RunSpec.from_plain(trace.header).strategy(TEXT)
        assert engine.run(engine.restore(again, trace)) == whole
