"""Tallies by the words of their module, and what is sent of them: what has changed, and nothing twice."""

from __future__ import annotations

import gc
import random
from collections import Counter

import pytest

from manyhands.cache.block import Block
from manyhands.cache.step import GREEDY, Choice, Row
from manyhands.cache.tally import Tally, TallyBook, Weighing
from manyhands.cache.view import View
from manyhands.errors import InvalidRequest

CHOICES = {
    "repetition": Choice(repetition_penalty=1.3),
    "frequency": Choice(frequency_penalty=0.5),
    "presence": Choice(presence_penalty=-1.5),
    "bias": Choice(logit_bias={3: -100, 90: 2.5}),
    "all": Choice(
        repetition_penalty=0.7, frequency_penalty=-0.25, presence_penalty=2, logit_bias={3: 1.0}
    ),
}


def weighed(
    logits: list[float], choice: Choice, prompt: list[int], written: list[int]
) -> list[float]:
    """The logits as the module's letter says, token by token."""
    counts, out = Counter(written), []
    for token, logit in enumerate(logits):
        if token in prompt or token in counts:
            penalty = choice.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        logit += choice.logit_bias.get(token, 0.0)
        logit -= choice.frequency_penalty * counts[token]
        logit -= choice.presence_penalty * (counts[token] > 0)
        out.append(logit)
    return out


def by_lines(logits: list[float], tally: Tally) -> list[float]:
    """The logits as the lines of a tally weigh them."""
    out = list(logits)
    for token, factor, offset in tally.weights:
        logit = logits[token]
        out[token] = (logit / factor if logit > 0 else logit * factor) + offset
    return out


@pytest.mark.parametrize("name", CHOICES)
def test_the_lines_of_a_tally_say_what_its_choice_says(name: str) -> None:
    rng = random.Random(name)
    logits = [rng.gauss(0, 3) for _ in range(100)]
    prompt, written = [rng.randrange(12) for _ in range(9)], list[int]()
    tally = CHOICES[name].tally(prompt)
    assert tally is not None
    for _ in range(40):
        expected = weighed(logits, CHOICES[name], prompt, written)
        assert by_lines(logits, tally) == pytest.approx(expected, rel=1e-12)
        written.append(rng.randrange(20))
        tally.take(written[-1])
    assert tally.span == (min(w.token for w in tally.weights), max(w.token for w in tally.weights))


def test_a_choice_that_weighs_nothing_has_no_tally() -> None:
    assert GREEDY.tally([1, 2]) is None
    assert Choice(temperature=1.0, top_k=5, logprobs=3, min_tokens=7).tally() is None


def test_a_prompt_counts_for_repetition_alone() -> None:
    frequency = Choice(frequency_penalty=1.0).tally(range(10**6))
    assert frequency is not None
    assert not frequency.weights
    repetition = Choice(repetition_penalty=2.0).tally([5, 5, 7])
    assert repetition is not None
    assert [tuple(each) for each in repetition.weights] == [(5, 2.0, 0.0), (7, 2.0, 0.0)]


class Far:
    """The other end: lines by slot, as what was sent says."""

    def __init__(self) -> None:
        self.lines: dict[tuple[int, int], tuple[int, float, float]] = {}
        self.num_sent = 0

    def take(self, told: Weighing | None) -> None:
        if told is not None:
            places = zip(told.new_slots, told.new_columns, strict=True)
            self.lines.update(zip(places, told.weights, strict=True))
            self.num_sent += len(told.weights)

    def tally(self, told: Weighing, at: int) -> list[tuple[int, float, float]]:
        return [self.lines[told.slots[at], line] for line in range(told.sizes[at])]


def test_what_has_changed_is_sent_once() -> None:
    rng, book, far = random.Random(1), TallyBook(), Far()
    tallies = [Choice(presence_penalty=1.0, logit_bias={2: 1.0}).tally() for _ in range(3)]
    for number in range(60):
        chosen = [tally for tally in tallies if rng.random() < 0.7]
        rows = [None, *chosen]
        told = book.weighing(rows)
        far.take(told)
        if rng.random() < 0.3:  # the pass fails, and is asked for again
            told = book.weighing(rows)
            far.take(told)
        book.sent()
        if told is None:
            assert not chosen
            continue
        assert told.rows == tuple(range(1, len(rows)))
        for at, tally in enumerate(chosen):
            assert tally is not None
            assert far.tally(told, at) == tally.weights
            tally.take(rng.randrange(number + 1))
    again = book.weighing(tallies)
    book.sent()
    assert again is not None
    assert len(again.weights) <= 3, "no more than the newest token of each"
    told = book.weighing(tallies)
    assert told is not None
    assert not told.weights


def test_what_a_pass_is_told_does_not_grow_with_the_text() -> None:
    book, tally = TallyBook(), Choice(frequency_penalty=0.1, repetition_penalty=1.1).tally()
    assert tally is not None
    for token in range(3000):
        tally.take(token % 700)
        told = book.weighing([tally])
        book.sent()
        assert told is not None
        assert len(told.weights) == 1


def test_the_place_of_a_writer_that_has_gone_is_given_to_another() -> None:
    book, choice = TallyBook(), Choice(logit_bias={1: 1.0, 2: 2.0})
    first, second = choice.tally(), Choice(logit_bias={9: 1.0}).tally()
    told = book.weighing([first, second])
    book.sent()
    assert told is not None
    assert told.slots == (0, 1)
    del first
    gc.collect()
    third = Choice(logit_bias={4: 4.0}).tally()
    told = book.weighing([second, third])
    assert told is not None
    assert told.slots == (1, 0)
    assert (told.sizes, told.new_slots) == ((1, 1), (0,)), "of the old lines, none counts"


def test_a_choice_that_weighs_wants_a_tally() -> None:
    view = View([Block("text")])
    for choice in CHOICES.values():
        with pytest.raises(InvalidRequest, match="has penalties or a bias, and no tally"):
            Row(view, (1,), choice)
        Row(view, (1,), choice.unweighed(), tally=choice.tally())
        assert choice.unweighed() == GREEDY


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"logit_bias": {3: 101}}, "logit_bias adds 101 to token 3; expected a token id, and -100"),
        ({"logit_bias": {-1: 1}}, "logit_bias adds 1 to token -1"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias adds nan to token 1"),
        ({"frequency_penalty": 2.1}, "frequency_penalty is 2.1; expected -2 to 2"),
        ({"presence_penalty": -3}, "presence_penalty is -3; expected -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; expected above 0, at most 100"),
        ({"logprobs": 21}, "logprobs is 21; expected 0 to 20"),
        ({"logprobs": -1}, "logprobs is -1; expected 0 to 20"),
        ({"min_tokens": -1}, "min_tokens is -1; expected 0 or more"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Choice(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_a_draw_changes_nothing_else() -> None:
    choice = Choice(temperature=0.5, logit_bias={1: 1.0}, allowed=frozenset({1}))
    drawn = choice.drawn(0.25)
    assert (drawn.draw, choice.draw) == (0.25, 0.0)
    assert drawn == Choice(temperature=0.5, logit_bias={1: 1.0}, allowed=frozenset({1}), draw=0.25)
