"""Logprobs against a float64 oracle: of chosen tokens, of prompts fed in any pieces, and for nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from manyhands.cache.block import Block
from manyhands.cache.logprobs import LEAST_LOGPROB, Logprobs, Tokens, logprobs_of, part_of
from manyhands.cache.step import GREEDY, Choice, Row, Step
from manyhands.cache.view import View
from manyhands.engine import passes, sampling
from manyhands.engine.engine import Engine
from manyhands.engine.sampling import Chosen
from manyhands.errors import InvalidRequest
from manyhands.replay.trace import parse_trace, record
from manyhands.strategies.base import Answer, Strategy
from manyhands.strategies.events import TokenWritten
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, Prompt, shared_prefix
from tests.engine.small import NUM_IDS, TEXT, counting, finish, small_engine, story, team

LOGITS = torch.randn(5, 60, generator=torch.Generator().manual_seed(3)) * 4


def oracle(logits: torch.Tensor) -> np.ndarray:
    """Log-probabilities, in float64."""
    wide = logits.double().numpy()
    shifted = wide - wide.max(axis=-1, keepdims=True)
    found: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def check(told: Logprobs | None, expected: np.ndarray, token: int, top: int) -> None:
    assert told is not None
    assert told.logprob == pytest.approx(expected[token], abs=1e-5)
    likeliest = np.argsort(-expected, kind="stable")[:top]
    assert [token for token, _ in told.top] == likeliest.tolist()
    assert [value for _, value in told.top] == pytest.approx(expected[likeliest], abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_they_are_of_the_model_alone(dtype: torch.dtype) -> None:
    """Neither temperature, cuts, masks nor weights change them; equals stand in the order of their ids."""
    logits = LOGITS.to(dtype)
    logits[:, 7] = logits[:, 9] = logits.max() + 1
    choices = [
        Choice(logprobs=3),
        Choice(temperature=2.0, top_k=4, draw=0.7, logprobs=0),
        GREEDY,
        Choice(allowed=frozenset({5}), logprobs=20),
        Choice(temperature=1.0, min_p=0.1, forbidden=frozenset({7}), draw=0.1, logprobs=1),
    ]
    tokens = sampling.choose(logits, choices, weigh=lambda scores: scores * 0.5).tokens()
    assert tokens[0] == 7
    expected = oracle(logits)
    for row, (choice, told) in enumerate(zip(choices, logprobs_of(tokens), strict=True)):
        if choice.logprobs is None:
            assert told is None
        else:
            check(told, expected[row], tokens[row], choice.logprobs)
    alone = sampling.choose(logits[1:2], choices[1:2], weigh=lambda scores: scores * 0.5).tokens()
    assert logprobs_of(alone) == [logprobs_of(tokens)[1]]


def test_of_tokens_that_were_guessed_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_SORTED", 0)
    monkeypatch.setattr(sampling, "_CANDIDATES", 8)
    logits = torch.randn(2, 60, generator=torch.Generator().manual_seed(4)) / 10
    choices = [Choice(temperature=1.0, draw=0.97, logprobs=2), Choice(logprobs=2)]
    chosen = sampling.choose(logits, choices)
    tokens = chosen.tokens()
    assert not chosen.are_on_device(), "the draw lies beyond the candidates"
    for row, told in enumerate(logprobs_of(tokens)):
        check(told, oracle(logits)[row], tokens[row], 2)


def test_what_cannot_be_has_a_number_that_json_knows() -> None:
    logits = torch.tensor([[0.0, 1.0, float("-inf")]])
    (told,) = logprobs_of(sampling.choose(logits, [Choice(logprobs=20)]).tokens())
    assert told is not None
    assert told.top[2] == (2, LEAST_LOGPROB)


def test_a_part_of_what_was_told() -> None:
    a, b, prompt = Logprobs(-1.0), Logprobs(-2.0), (Logprobs(-3.0),)
    told = Tokens((7, 8, 9), {0: a, 2: b}, {1: prompt})
    part = part_of(told, 1, 3)
    assert isinstance(part, Tokens)
    assert (part, part.logprobs, part.prompt_logprobs) == ((8, 9), {1: b}, {0: prompt})
    plain = part_of((7, 8, 9), 1)
    assert (plain, type(plain)) == ((8, 9), tuple)


# -- who does not ask pays nothing -----------------------------------------------------------------


class CountOps(TorchDispatchMode):
    """Every operation that torch is asked for: on a GPU, each is a launch or more."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def ops(work: Callable[[], object]) -> list[str]:
    with CountOps() as counted:
        work()
    return counted.names  # type: ignore[no-any-return]


def test_rows_that_do_not_ask_cost_no_operation() -> None:
    greedy = torch.cat((torch.ones(1, dtype=torch.int64), LOGITS.argmax(-1)))
    moved = {"aten.slice.Tensor", "aten.clone.default"}  # tokens go to the host: no other work
    assert set(ops(lambda: sampling.choose(LOGITS, [GREEDY] * 5, greedy))) <= moved
    drawn = [Choice(temperature=1.0, draw=0.5)] * 5
    plain = ops(lambda: sampling.choose(LOGITS, drawn))
    assert not [name for name in plain if "log_softmax" in name or "topk" in name]
    asking = ops(lambda: sampling.choose(LOGITS, [*drawn[:4], replace(drawn[4], logprobs=5)]))
    assert len(asking) > len(plain), "the control: what asks is seen"


def test_passes_that_do_not_ask_are_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = small_engine()
    told: list[dict[str, Any]] = []
    right = type(engine.executor).run

    def run(self: Any, *args: Any, **named: Any) -> tuple[int, ...]:
        told.append(named)
        chosen = right(self, *args, **named)
        assert type(chosen) is tuple
        return chosen

    monkeypatch.setattr(type(engine.executor), "run", run)
    engine.run_all([counting((1, 2, 3), 4), counting((4,), 3)])
    assert {(named["weighing"], named["targets"]) for named in told} == {(None, None)}


# -- prompts ---------------------------------------------------------------------------------------


@cache
def expected_of(tokens: tuple[int, ...]) -> np.ndarray:
    """Log-probabilities after each of these tokens: fed one by one to another engine."""
    engine, view = small_engine(), View([Block("text")])
    return oracle(torch.cat([engine.forward(Step([Row(view, (token,))])) for token in tokens]))


PROMPT = TEXT.encode("So the answer is four. The next step of the problem: divide.")


@pytest.mark.parametrize(
    ("per_pass", "at_once"), [(8192, 1 << 26), (7, 1 << 26), (8192, 3 * NUM_IDS), (5, NUM_IDS)]
)
def test_the_targets_of_a_row(per_pass: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fed in one piece or in many, looked up at once or in parts; company changes nothing."""
    monkeypatch.setattr(passes, "LOGITS_AT_ONCE", at_once)
    engine = small_engine(max_tokens_per_pass=per_pass)
    view, other = View([Block("text")]), View([Block("other")])
    rows = [
        Row(other, (3, 4, 5)),
        Row(view, PROMPT[:-1], Choice(logprobs=2), targets=PROMPT[1:]),
    ]
    answered: list[Any] = []
    engine.run(asking(Step(rows), answered))
    (tokens,) = answered
    expected = expected_of(PROMPT)
    told = tokens.prompt_logprobs[1]
    assert list(tokens.prompt_logprobs) == [1]
    assert len(told) == len(PROMPT) - 1
    for at, each in enumerate(told):
        check(each, expected[at], PROMPT[at + 1], 2)
    check(tokens.logprobs[1], expected[len(PROMPT) - 2], tokens[1], 2)


def asking(step: Step, answered: list[Any]) -> Strategy:
    """A strategy of one step, which keeps what that is answered with."""
    answered.append((yield step))
    return Answer("")


def test_targets_that_cannot_be() -> None:
    view = View([Block("text")])
    with pytest.raises(InvalidRequest, match="feeds 1 token and has 2 targets"):
        Row(view, (1,), targets=(2, 3))
    engine = small_engine()
    run = engine.submit(asking(Step([Row(view, (1, 2), targets=(3, NUM_IDS))]), []))
    finish(engine, run)
    with pytest.raises(InvalidRequest, match=f"token id {NUM_IDS} is a target"):
        run.result()


def complete(engine: Engine, *prompts: Sequence[int], **settings: Any) -> Completions:
    given = [Prompt(tuple(prompt)) for prompt in prompts]
    answer = engine.run(
        shared_prefix(given, TEXT, SharedSettings(**settings), tree=engine.prefixes)
    )
    assert isinstance(answer, Completions)
    return answer


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_an_echo_tells_of_its_prompt(max_tokens: int) -> None:
    """As lm-eval asks for it: what is in memory already is fed anew, and nobody else's tokens change."""
    engine = small_engine()
    before = complete(engine, PROMPT, max_tokens=3)
    asked: dict[str, Any] = {"max_tokens": max_tokens, "choice": Choice(logprobs=1)}
    found = complete(engine, PROMPT, PROMPT[:1], **asked, echo=True, prefill=9, samples=2)
    expected = expected_of(PROMPT)
    for each in found.completions[:2]:
        assert [token for token, _ in each.echoed] == list(PROMPT)
        assert each.echoed[0][1] is None
        for at, (token, told) in enumerate(each.echoed[1:]):
            check(told, expected[at], token, 1)
        assert each.tokens == before.completions[0].tokens[:max_tokens]
        assert each.text == TEXT.decode(PROMPT) + TEXT.decode(each.tokens).rstrip("\ufffd")
        assert each.logprobs is not None
        assert [token for token, _ in each.logprobs] == list(each.tokens)
        assert each.finish_reason == "length"
    assert found.completions[2].echoed == ((PROMPT[0], None),)
    assert found.found == (0, 0)
    assert complete(engine, PROMPT, max_tokens=3) == replace(
        before, forward_passes=3, found=(len(PROMPT) - 1,)
    )
    used = engine.pool.num_pages - engine.pool.num_free_pages
    engine.prefixes.clear()
    assert engine.pool.num_free_pages == engine.pool.num_pages, f"{used} pages were left"


def test_an_echo_without_logprobs_is_text_alone() -> None:
    engine = small_engine()
    found = complete(engine, PROMPT, max_tokens=0, echo=True)
    assert found.completions[0].text == TEXT.decode(PROMPT)
    assert found.completions[0].logprobs is None
    with pytest.raises(InvalidRequest, match="max_tokens is 0; expected 1 or more"):
        SharedSettings(max_tokens=0)


def test_many_echoes_in_company() -> None:
    """Beside each other and beside plain requests, each is told what it is told alone."""
    engine = small_engine(max_tokens_per_pass=16)
    prompts = [PROMPT[:size] for size in (3, 9, 17)]
    told = SharedSettings(max_tokens=2, echo=True, prefill=6, choice=Choice(logprobs=2))
    alone = [engine.run(shared_prefix([Prompt(p)], TEXT, told)) for p in prompts]
    runs = [engine.submit(shared_prefix([Prompt(p)], TEXT, told)) for p in prompts]
    other = engine.submit(shared_prefix([PROMPT], TEXT, SharedSettings(max_tokens=6)))
    finish(engine, *runs, other)
    for run, single in zip(runs, alone, strict=True):
        together = run.result()
        assert isinstance(together, Completions)
        assert isinstance(single, Completions)
        for ours, theirs in zip(together.completions, single.completions, strict=True):
            assert ours.tokens == theirs.tokens
            for (a, x), (b, y) in zip(ours.echoed[1:], theirs.echoed[1:], strict=True):
                assert a == b
                assert x is not None
                assert y is not None
                assert x.logprob == pytest.approx(y.logprob, abs=1e-5)


def test_chosen_without_anything_told_is_a_plain_tuple() -> None:
    assert type(Chosen(torch.tensor([4, 5, 1])).tokens()) is tuple


def test_a_team_tells_them_in_its_events_and_nothing_else_changes() -> None:
    """A trace holds them there; a run that comes back from its trace goes on telling them."""
    settings: dict[str, Any] = {"choice": Choice(temperature=1.0, logprobs=2), "budget": 12}
    engine, lines = small_engine(), list[Any]()
    told = story(engine, record(team(2, **settings), {}, lines.append))
    plain = story(engine, team(2, choice=Choice(temperature=1.0), budget=12))
    written = [event for event in told if isinstance(event, TokenWritten)]
    assert len(written) > 10
    assert all(event.logprobs is not None for event in written)
    bare = [replace(e, logprobs=None) if isinstance(e, TokenWritten) else e for e in told]
    assert bare == plain
    kept = [line for line in lines if line.get("event") == "TokenWritten"]
    assert all(len(line["logprobs"]["top"]) == 2 for line in kept)
    cut = lines.index(kept[10])
    trace = parse_trace(lines[: cut + 1])
    again = story(engine, engine.restore(team(2, **settings), trace))
    assert again[-1] == told[-1]
    after = [event for event in again if isinstance(event, TokenWritten)]
    assert [event.token for event in after] == [event.token for event in written[11:]]
    # Its own pass was in the trace: that it was written is known, what was told of it is not.
    assert [event for event in after if event.logprobs is None] == after[:1]
