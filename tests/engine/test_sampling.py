"""Sampling against its definition, written slowly in numpy, and swept over all random numbers.

`choose` is a function of the draw. As the draw runs through [0, 1) in small equal steps, each token
must come up as often as its probability says, to within one step at each end of its interval: an
exact statement, no statistics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.cache.step import GREEDY, Choice
from manyhands.engine import sampling
from manyhands.errors import InvalidRequest, ManyhandsError

SIZE = 12
SWEEP = 2000
LOGITS = torch.randn(SIZE, generator=torch.Generator().manual_seed(0)) * 2
CHOICES = {
    "plain": Choice(temperature=1.0),
    "cold": Choice(temperature=0.3),
    "hot": Choice(temperature=4.0),
    "top-k": Choice(temperature=1.0, top_k=3),
    "top-k of one": Choice(temperature=1.0, top_k=1),
    "top-k of more than there are": Choice(temperature=1.0, top_k=100),
    "top-p": Choice(temperature=1.0, top_p=0.7),
    "top-p of nearly nothing": Choice(temperature=1.0, top_p=1e-9),
    "min-p": Choice(temperature=1.0, min_p=0.2),
    "min-p of one": Choice(temperature=1.0, min_p=1.0),
    "top-p of what top-k leaves": Choice(temperature=4.0, top_k=4, top_p=0.6),
    "all cuts": Choice(temperature=1.5, top_k=6, top_p=0.9, min_p=0.05),
    "forbidden": Choice(temperature=1.0, forbidden=frozenset({int(LOGITS.argmax()), 3})),
    "allowed": Choice(temperature=1.0, allowed=frozenset({1, 5, 7})),
    "allowed less forbidden": Choice(
        temperature=1.0, allowed=frozenset({1, 5, 7}), forbidden=frozenset({5, 2})
    ),
    "forced": Choice(temperature=1.0, allowed=frozenset({4})),
    "cuts among the allowed": Choice(temperature=2.0, allowed=frozenset(range(6)), top_k=2),
}


def choose(logits: torch.Tensor, choices: list[Choice]) -> tuple[int, ...]:
    return sampling.choose(logits, choices).tokens()


def probabilities(logits: torch.Tensor, choice: Choice) -> np.ndarray:
    """How likely each token is, by the words of `Choice`."""
    scores = {token: float(logits[token]) / choice.temperature for token in range(len(logits))}
    if choice.allowed is not None:
        scores = {token: score for token, score in scores.items() if token in choice.allowed}
    scores = {token: score for token, score in scores.items() if token not in choice.forbidden}
    largest = max(scores.values())
    weights = {token: np.exp(score - largest) for token, score in scores.items()}
    total = sum(weights.values())
    weights = {token: weight / total for token, weight in weights.items()}
    ordered = sorted(weights, key=lambda token: (-weights[token], token))
    left = sum(weights[token] for token in ordered[: choice.top_k or None])
    kept, before = [], 0.0
    for rank, token in enumerate(ordered):
        in_top_k = choice.top_k == 0 or rank < choice.top_k
        in_top_p = before < choice.top_p * left
        in_min_p = weights[token] >= choice.min_p * weights[ordered[0]]
        if in_top_k and in_top_p and in_min_p:
            kept.append(token)
        before += weights[token]
    out = np.zeros(len(logits))
    out[kept] = [weights[token] for token in kept]
    shares: np.ndarray = out / out.sum()
    return shares


def sweep(logits: torch.Tensor, choice: Choice) -> np.ndarray:
    """How often each token comes up while the draw runs through [0, 1)."""
    choices = [replace(choice, draw=(i + 0.5) / SWEEP) for i in range(SWEEP)]
    tokens = choose(logits.expand(SWEEP, -1), choices)
    return np.bincount(tokens, minlength=len(logits)) / SWEEP


@pytest.mark.parametrize("name", CHOICES)
def test_each_token_as_often_as_its_probability_says(name: str) -> None:
    expected, found = probabilities(LOGITS, CHOICES[name]), sweep(LOGITS, CHOICES[name])
    assert np.abs(found - expected).max() <= 1 / SWEEP + 1e-9
    assert not found[expected == 0].any()


@settings(max_examples=40, deadline=None)
@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=SIZE),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, SIZE),
    min_p=st.floats(0, 0.9),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_a_drawn_token_is_always_a_possible_one(
    logits: list[float], temperature: float, top_k: int, min_p: float, draw: float
) -> None:
    choice = Choice(temperature=temperature, top_k=top_k, min_p=min_p, draw=draw)
    (token,) = choose(torch.tensor([logits]), [choice])
    scores = np.array(logits) / temperature
    assert scores[token] >= scores.max() + np.log(max(min_p, 1e-300)) - 1e-6
    # scores closer than a rounding are equally likely
    assert top_k == 0 or (scores > scores[token] + 1e-9).sum() < top_k


@pytest.mark.parametrize("draw", [0.0, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("name", CHOICES)
def test_the_ends_of_the_draws(name: str, draw: float) -> None:
    possible = probabilities(LOGITS, CHOICES[name]) > 0
    (token,) = choose(LOGITS[None], [replace(CHOICES[name], draw=draw)])
    assert possible[token]


@pytest.mark.parametrize(
    ("choice", "token"),
    [
        (GREEDY, int(LOGITS.argmax())),
        (Choice(allowed=frozenset({4})), 4),
        (Choice(allowed=frozenset({4}), temperature=1.0, draw=0.99), 4),
        (Choice(forbidden=frozenset({int(LOGITS.argmax())})), int(LOGITS.topk(2).indices[1])),
        (Choice(temperature=1e-300, draw=0.7), int(LOGITS.argmax())),
    ],
)
def test_choices_that_leave_no_choice(choice: Choice, token: int) -> None:
    assert choose(LOGITS[None], [choice]) == (token,)


def test_equally_likely_tokens_stand_in_the_order_of_their_ids() -> None:
    for min_p in (0.0, 1.0):  # each is as likely as the likeliest
        choices = [Choice(temperature=1.0, min_p=min_p, draw=(i + 0.5) / SIZE) for i in range(SIZE)]
        assert choose(torch.zeros(SIZE, SIZE), choices) == tuple(range(SIZE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_are_independent(dtype: torch.dtype) -> None:
    """A row gets what it gets alone, whoever stands beside it; and the logits are left alone."""
    generator = torch.Generator().manual_seed(1)
    choices = [replace(c, draw=0.37) for c in CHOICES.values()] + [GREEDY] * 3
    logits = torch.randn(len(choices), SIZE, generator=generator).to(dtype)
    before = logits.clone()
    together = choose(logits, choices)
    alone = [choose(logits[i : i + 1], [choice])[0] for i, choice in enumerate(choices)]
    assert list(together) == alone
    backwards = choose(logits.flip(0), choices[::-1])
    assert backwards == together[::-1]
    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("forbidden", [frozenset(), frozenset({5})])
def test_logits_that_are_no_numbers(
    bad: float, temperature: float, forbidden: frozenset[int]
) -> None:
    logits = torch.stack((LOGITS, LOGITS.clone()))
    logits[1, 5] = bad
    choices = [GREEDY, Choice(temperature=temperature, forbidden=forbidden)]
    with pytest.raises(ManyhandsError, match="not numbers") as caught:
        choose(logits, choices)
    assert "float32" in caught.value.hint


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", ["twin", "kernel"])
def test_the_likeliest_token_and_the_soundness_come_from_one_reading(
    dtype: torch.dtype, way: str
) -> None:
    """Many equals, of which the first counts; both zeros are equal; rows with one number that is none, at either end."""
    likeliest = sampling.likeliest
    if way == "kernel":
        likeliest = pytest.importorskip("manyhands.model.kernels.likeliest").likeliest
    logits = torch.randn(11, 40_001, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[:, 7:39_000:100] = 9.0
    for row, bad in enumerate((float("nan"), float("inf"), float("-inf"))):
        logits[row, 0] = logits[row + 3, -1] = bad
    logits[6] = float("-inf")
    logits[7], logits[7, 40_000] = -2.0, -1.0
    logits[8], logits[8, 30_000], logits[8, 33_000] = -5.0, -0.0, 0.0
    logits[9, 5] = -float("nan")
    if way == "kernel" and torch.cuda.is_available():
        logits = logits.cuda()
    tokens = [7, 7, 7, 0, 40_000, 30_000, 7]
    sound = torch.tensor([2, 5, 10, 6, 7, 8, 5])
    found = likeliest(logits[sound])
    assert (found.dtype, found.tolist()) == (torch.int64, [1, *tokens])
    for row in (0, 1, 3, 4, 9):
        assert likeliest(logits[[2, row, 5]]).tolist()[::3] == [0, 7], "the others keep their own"
    assert likeliest(logits[:0]).tolist() == [1]
    wide = torch.cat((logits, logits), dim=1)
    assert likeliest(wide[sound, : logits.shape[1]]).tolist() == found.tolist()
    several = logits[sound].repeat(40, 1)
    assert likeliest(several).tolist() == [1, *tokens * 40]


def test_no_rows_are_no_error() -> None:
    assert choose(LOGITS[None][:0], []) == ()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_impossible_tokens_are_no_error(temperature: float) -> None:
    """Some networks pad their vocabulary with minus infinity."""
    logits = LOGITS[None].clone()
    logits[0, 6:] = float("-inf")
    (token,) = choose(logits, [Choice(temperature=temperature, draw=0.999999)])
    assert token < 6


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 2.0},
        {"draw": 1.0},
        {"allowed": frozenset()},
        {"allowed": frozenset({1}), "forbidden": frozenset({1})},
    ],
)
def test_choices_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Choice(**wrong)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CHOICES)
def test_narrow_logits_are_taken_as_they_are(name: str, dtype: torch.dtype) -> None:
    """Many of them are equal, so the order of equals shows."""
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(1)).to(dtype)
    choices = [replace(CHOICES[name], draw=draw) for draw in (0.1, 0.5, 0.9)]
    assert choose(logits, choices) == choose(logits.float(), choices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CHOICES)
def test_candidates_choose_what_the_whole_vocabulary_would(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few candidates, so that some draws are beyond them; equals, both zeros, and tokens that cannot be."""
    logits = torch.randn(200, 60, generator=torch.Generator().manual_seed(2)) * 2
    logits[:, 20:23], logits[:, 23:26], logits[::2, 30:] = -0.0, 0.0, float("-inf")
    choices = [replace(CHOICES[name], draw=(i + 0.5) / len(logits)) for i in range(len(logits))]
    expected = choose(logits.to(dtype), choices)
    few_candidates(monkeypatch)
    assert choose(logits.to(dtype), choices) == expected


def test_what_candidates_leave_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row's draw lies beyond them, the other's does not; and a cut that keeps more of them may."""
    few_candidates(monkeypatch)
    logits = torch.zeros(1, 100)
    for choice, token, is_guess in (
        (Choice(temperature=1.0, draw=0.015), 1, False),
        (Choice(temperature=1.0, draw=0.985), 98, True),
        (Choice(temperature=1.0, top_p=0.5, draw=0.5), 25, True),
        (Choice(temperature=1.0, top_k=4, draw=0.99), 3, False),
        (Choice(temperature=1.0, top_k=8, draw=0.99), 7, False),
        (Choice(temperature=1.0, top_k=9, draw=0.99), 8, True),
        (Choice(temperature=1.0, top_k=9, top_p=0.5, draw=0.99), 4, True),
    ):
        chosen = sampling.choose(logits, [choice])
        assert chosen.tokens() == (token,)
        assert chosen.are_on_device() is not is_guess


def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_SORTED", 0)
    monkeypatch.setattr(sampling, "_CANDIDATES", 8)
