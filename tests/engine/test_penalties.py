"""Penalties and biases against a plain oracle: the model's logits, weighed in Python, the likeliest taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from manyhands.cache.block import Block
from manyhands.cache.step import GREEDY, Choice, Row, Step
from manyhands.cache.tally import Tally, TallyBook, Weight
from manyhands.cache.view import View
from manyhands.engine import sampling, weighing
from manyhands.engine.engine import Engine
from manyhands.engine.weighing import Weights
from manyhands.errors import InvalidRequest, OutOfMemory
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, Prompt, shared_prefix
from tests.cache.test_tally import CHOICES, weighed
from tests.engine.small import NUM_IDS, TEXT, finish, small_engine, solo

PROMPT = TEXT.encode("So the answer is four.")
STRONG = {
    "repetition": Choice(repetition_penalty=3.0),
    "frequency": Choice(frequency_penalty=0.4, presence_penalty=0.1),
    "all": Choice(
        repetition_penalty=1.5, frequency_penalty=-0.1, presence_penalty=1.0, logit_bias={5: 2.0}
    ),
}
SIZE = 14


def write(engine: Engine, *choices: Choice, size: int = SIZE) -> list[tuple[int, ...]]:
    """The tokens of completions of one prompt by these choices, all in the same passes."""
    runs = [engine.submit(completing(choice, size)) for choice in choices]
    finish(engine, *runs)
    found = [run.result() for run in runs]
    return [each.completions[0].tokens for each in found if isinstance(each, Completions)]


def completing(choice: Choice, size: int) -> Any:
    settings = SharedSettings(max_tokens=size, choice=replace(choice, min_tokens=size))
    return shared_prefix([Prompt(PROMPT)], TEXT, settings)


def by_the_oracle(choice: Choice) -> tuple[int, ...]:
    engine, view = small_engine(), View([Block("text")])
    written: list[int] = []
    feed: Sequence[int] = PROMPT
    for _ in range(SIZE):
        logits = engine.forward(Step([Row(view, tuple(feed))]))[0].tolist()
        logits = weighed(logits, choice, list(PROMPT), written)
        (end,) = TEXT.eos
        logits[end] = float("-inf")
        written.append(max(range(len(logits)), key=logits.__getitem__))
        feed = written[-1:]
    return tuple(written)


def test_rows_of_every_kind_in_one_pass() -> None:
    engine = small_engine()
    found = write(engine, *STRONG.values(), GREEDY)
    expected = [by_the_oracle(choice) for choice in (*STRONG.values(), GREEDY)]
    assert found == expected
    assert len(set(found)) == len(found), "the control: each kind of penalty changes something"


def test_a_bias_alone_is_sent_once_and_counts_in_every_pass() -> None:
    assert write(small_engine(), Choice(logit_bias={7: 100.0})) == [(7,) * SIZE]


def test_a_pass_that_failed_is_weighed_as_if_it_had_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have failed before its weights were written, or behind that."""
    engine, plain = small_engine(), small_engine()
    right, calls = Weights.take, [0]

    def take(self: Weights, told: Any) -> None:
        calls[0] += 1
        if calls[0] % 4 == 1:
            right(self, told)
        if calls[0] % 4 in (1, 2):
            raise OutOfMemory("not now")
        right(self, told)

    expected = write(plain, STRONG["all"])
    monkeypatch.setattr(Weights, "take", take)

    def patient(strategy: Any) -> Any:
        """Asks again for what has failed."""
        asked = next(strategy)
        while True:
            try:
                sent = yield asked
            except OutOfMemory:
                continue
            try:
                asked = strategy.send(sent)
            except StopIteration as end:
                return end.value

    run = engine.submit(patient(completing(STRONG["all"], SIZE)))
    finish(engine, run)
    answer = run.result()
    assert isinstance(answer, Completions)
    assert [answer.completions[0].tokens] == expected
    assert calls[0] > SIZE


def test_every_writer_counts_for_itself() -> None:
    """Any method: its own text alone, from its first token on."""
    choice = Choice(temperature=1.0, presence_penalty=2.0, frequency_penalty=2.0)
    for strategy in (solo(choice=choice, budget=20), solo(choice=replace(choice, logprobs=0))):
        answer = small_engine().run(strategy)
        assert answer.tokens[0] > 5
    with_penalty = small_engine().run(solo(choice=choice, budget=20)).text
    assert with_penalty != small_engine().run(solo(choice=Choice(temperature=1.0), budget=20)).text


def test_a_token_that_the_vocabulary_lacks() -> None:
    engine = small_engine()
    run = engine.submit(completing(Choice(logit_bias={NUM_IDS: 1.0}), 3))
    finish(engine, run)
    with pytest.raises(InvalidRequest, match=f"token id {NUM_IDS} is weighed"):
        run.result()


# -- on the device ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_weights_on_the_device(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with few weights and with many, in slots that grow; the logits themselves are left alone."""
    monkeypatch.setattr(weighing, "_FEWEST_SLOTS", 1)
    monkeypatch.setattr(weighing, "_FEWEST_COLUMNS", 2)
    logits = torch.randn(6, 1000, generator=torch.Generator().manual_seed(1)).to(dtype) * 3
    before = logits.clone()
    weights, book = Weights(torch.device("cpu")), TallyBook()
    prompts = [[5], list(range(40)), [999, 0], [7] * 9, [1, 2, 3]]
    written: list[list[int]] = [[] for _ in prompts]
    tallies: list[Tally | None] = [None]
    choices = list(CHOICES.values())
    tallies += [choice.tally(prompt) for choice, prompt in zip(choices, prompts, strict=True)]
    for number in range(8):
        told = book.weighing(tallies)
        assert told is not None
        weights.take(told)
        book.sent()
        scores = weights.weigh(logits, told)
        assert torch.equal(scores[0], logits[0].to(scores.dtype))
        for row, choice in enumerate(choices):
            expected = weighed(logits[row + 1].tolist(), choice, prompts[row], written[row])
            assert torch.allclose(scores[row + 1].double(), torch.tensor(expected).double())
            written[row].append(number * 7 % 5)
            tally = tallies[row + 1]
            assert tally is not None
            tally.take(written[row][-1])
    assert torch.equal(logits, before)
    assert scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_what_is_weighed_is_chosen_from() -> None:
    """Temperature and cuts come behind the penalties, masks behind all."""
    logits = torch.zeros(1, 8)
    tally = Choice(logit_bias={3: 50.0, 5: 40.0}).tally()
    book, weights = TallyBook(), Weights(torch.device("cpu"))
    told = book.weighing([tally])
    assert told is not None
    weights.take(told)

    def token(choice: Choice) -> int:
        (found,) = sampling.choose(
            logits, [choice], weigh=lambda scores: weights.weigh(scores, told)
        ).tokens()
        return found

    assert token(GREEDY) == 3
    assert token(Choice(temperature=1.0, draw=0.99)) == 3
    assert token(Choice(forbidden=frozenset({3}))) == 5
    assert token(Choice(mask=bytes([0b11110000]))) == 5
    assert token(Choice(mask=bytes([0b01000000]))) == 6
    assert Weight(3, 1.0, 50.0) in told.weights


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999])
def test_masks(draw: float) -> None:
    """A bit for each token; a mask that is shorter than the vocabulary allows nothing beyond it."""
    logits = torch.zeros(3, 21)
    mask = bytes([0b00000010, 0b10000000, 0b00000001])
    choices = [
        Choice(temperature=1.0, draw=draw, mask=mask),
        Choice(temperature=1.0, draw=draw, mask=mask[:1]),
        Choice(temperature=1.0, draw=draw),
    ]
    masked, short, free = sampling.choose(logits, choices).tokens()
    assert masked == {0.0: 1, 0.5: 15, 0.999: 16}[draw]
    assert short == 1
    assert free == int(draw * 21)
