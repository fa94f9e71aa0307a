"""The kernels that draw a token, against their twin in plain torch, which puts the whole vocabulary in order.

Sums of weights have another order there, so a draw, or a cut, may fall on the other side of a boundary that is a
rounding away. Nothing else may differ. Without a GPU the kernels run under Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from manyhands.cache.logprobs import logprobs_of
from manyhands.cache.step import GREEDY, Choice
from manyhands.engine import sampling
from manyhands.errors import ManyhandsError

pytest.importorskip("triton", reason="Triton exists for Linux alone")
from manyhands.model import kernels
from manyhands.model.kernels import drawing

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = pytest.mark.parametrize("dtype", drawing.DTYPES, ids=str)
SIZE = 700
LAST = float(np.nextafter(1.0, 0.0))  # the largest draw
ROUNDING = 1e-12
CUTS = [
    Choice(temperature=1.0),
    Choice(temperature=1e-6),
    Choice(temperature=0.6, top_p=0.95),
    Choice(temperature=0.6, top_k=20, top_p=0.95),
    Choice(temperature=100.0, top_k=500, top_p=0.3, min_p=0.01),
    Choice(temperature=4.0, top_k=1 << 40, min_p=0.2),
    Choice(temperature=2.0, top_k=1),
    Choice(temperature=1.0, top_p=1e-9),
    Choice(temperature=1.0, min_p=1.0),
    Choice(temperature=50.0, top_p=0.999),
    GREEDY,
]
DRAWS = (0.0, 0.003, 0.37, 0.9, 0.99, LAST)


def some_logits() -> dict[str, Tensor]:
    """Rows [SIZE] of many kinds; float16 holds each of their values."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(SIZE, generator=generator)
    ids = torch.arange(SIZE)
    alone = torch.full((SIZE,), float("-inf"))
    alone[SIZE - 1] = -3.0
    impossible = normal.clone()
    impossible[ids % 3 > 0] = float("-inf")
    zeros = torch.where(ids % 2 == 0, 0.0, -0.0)
    return {
        "normal": normal * 3,
        "peaked": normal + 30.0 * (ids % 97 == 5),
        "flat": torch.zeros(SIZE),
        "two values": torch.where(ids % 5 == 2, 1.0, 0.5),
        "negative alone": -8.0 - normal.abs(),
        "nothing but one": alone,
        "many that cannot be": impossible,
        "both zeros": torch.where(ids > 600, normal.abs() / 1e3, zeros),
        "far apart": torch.where(ids == 77, 60000.0, -60000.0),
        "nearly nothing": normal / 1e4,
    }


LOGITS = some_logits()


def drawn(
    logits: Tensor, choices: Sequence[Choice], rows: Sequence[int] | None = None
) -> list[int]:
    rows = range(len(logits)) if rows is None else rows
    return list(sampling._draw(logits.to(DEVICE), choices, rows).tokens())


def ordered(logits: Tensor, choices: Sequence[Choice]) -> list[int]:
    """By the twin, in whole; the likeliest is the first of one."""
    sure = Choice(temperature=1.0, top_k=1)
    scores = sampling._permitted(logits, choices)
    own = [choice if choice.temperature else sure for choice in choices]
    tokens: list[int] = sampling._sample(scores, own, is_whole=True)[0].tolist()
    return tokens


def nearly(choice: Choice) -> list[Choice]:
    """The choices that are a rounding away."""
    if choice.temperature == 0:
        return [choice]
    found = []
    for changes in product((1 - ROUNDING, 1.0, 1 + ROUNDING), repeat=3):
        names = ("draw", "top_p", "min_p")
        values = {
            name: getattr(choice, name) * each for name, each in zip(names, changes, strict=True)
        }
        limits = {"draw": LAST, "top_p": 1.0, "min_p": 1.0}
        found.append(replace(choice, **{name: min(v, limits[name]) for name, v in values.items()}))
    return found


def differing(logits: Tensor, choices: Sequence[Choice], found: Sequence[int]) -> tuple[int, int]:
    """Of the tokens `found`: how many the twin does not give, and how many it would not give a rounding away."""
    expected = ordered(logits, choices)
    others = [row for row, token in enumerate(expected) if token != found[row]]
    wrong = 0
    for row in others:
        near = nearly(choices[row])
        wrong += found[row] not in ordered(logits[row].expand(len(near), -1), near)
    return len(others), wrong


def all_kinds(dtype: torch.dtype, every: int = 1) -> tuple[Tensor, list[Choice]]:
    """Rows of all kinds of logits, cuts and draws; one draw for each pair of the former, in turn."""
    pairs = list(product(LOGITS.values(), CUTS))[::every]
    logits = torch.stack([row for row, _ in pairs]).to(dtype)
    draws = [DRAWS[(index + index // len(CUTS)) % len(DRAWS)] for index in range(len(pairs))]
    return logits, [replace(cut, draw=draw) for (_, cut), draw in zip(pairs, draws, strict=True)]


@DTYPES
def test_they_draw_what_their_twin_draws(dtype: torch.dtype) -> None:
    # In the interpreter, where a row takes 20 ms, a third of them for the second dtype: only `_value` differs.
    is_whole = dtype == torch.bfloat16 or DEVICE != "cpu"
    logits, choices = all_kinds(dtype, 1 if is_whole else 3)
    before = logits.clone()
    others, wrong = differing(logits, choices, drawn(logits, choices))
    assert wrong == 0
    assert others <= 2, "draws that fall onto a boundary are rare"
    assert torch.equal(logits, before)


def test_the_control_the_last_of_equals_first() -> None:
    """In the order of falling ids, tokens that the twin would never give are seen."""
    logits, choices = all_kinds(torch.bfloat16, 3)
    backwards = [SIZE - 1 - token for token in drawn(logits.flip(1), choices)]
    assert differing(logits, choices, backwards)[1] > 10


def test_a_row_gets_the_same_beside_any_others() -> None:
    """Alone, and in any company and order; whatever stands in rows that do not draw."""
    logits, choices = all_kinds(torch.bfloat16, 5)
    together = drawn(logits, choices)
    some = list(range(3, len(logits), 5))[::-1]
    logits[0] = float("nan")
    own = [choices[row] for row in some]
    assert drawn(logits, own, some) == [together[row] for row in some]
    for row in some[:4]:
        assert drawn(logits[row : row + 1], [choices[row]]) == [together[row]]


@DTYPES
@pytest.mark.parametrize("size", [1, 8, 2048, 2500, 5001])
def test_vocabularies_of_any_size(size: int, dtype: torch.dtype) -> None:
    """Rows that are no whole number of tiles or bytes, and that lie apart."""
    generator = torch.Generator().manual_seed(size)
    wide = (torch.randn(6, size + 11, generator=generator) * 3).to(dtype)
    choices = [replace(CUTS[row % 4], draw=DRAWS[row]) for row in range(6)]
    found = drawn(wide[:, :size], choices)
    assert differing(wide[:, :size], choices, found)[1] == 0


def test_a_large_vocabulary() -> None:
    logits = torch.randn(1, 151_669, generator=torch.Generator().manual_seed(0)).bfloat16()
    choices = [Choice(temperature=1.0, draw=0.93)]
    (token,) = found = drawn(logits, choices)
    assert differing(logits, choices, found) == (0, 0)
    assert (logits[0] == logits[0, token])[:token].sum() > 5, "not the first of its equals"


PERMITTED = {
    "forbidden": Choice(forbidden=frozenset({0, 3, 5, 690})),
    "allowed": Choice(allowed=frozenset({5, 77, 78, 699})),
    "allowed less forbidden": Choice(allowed=frozenset({5, 77}), forbidden=frozenset({5})),
    "mask": Choice(mask=bytes([0b10100101, 0, 0xFF] * 40)),
    "mask less forbidden": Choice(mask=b"\xff" * 9, forbidden=frozenset({0, 2})),
    "mask of allowed": Choice(mask=b"\xff" * 88, allowed=frozenset({6, 8, 699})),
    "mask of one": Choice(mask=b"\x01"),
    "any": GREEDY,
}


def test_tokens_that_rows_may_not_choose() -> None:
    """All forms of them, drawn and likeliest, in one pass."""
    kinds = [replace(permitted, temperature=t) for permitted in PERMITTED.values() for t in (0, 2)]
    pairs = [(LOGITS[name], kind) for name in ("peaked", "flat") for kind in kinds]
    logits = torch.stack([row for row, _ in pairs]).bfloat16()
    choices = [replace(kind, draw=(i + 0.5) / len(pairs)) for i, (_, kind) in enumerate(pairs)]
    found = drawn(logits, choices)
    assert differing(logits, choices, found) == (0, 0)
    free = [replace(choice, allowed=None, forbidden=frozenset(), mask=None) for choice in choices]
    assert differing(logits, free, found)[1] > 10, "the control: what is permitted counts"


@DTYPES
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numpy, in the interpreter
@pytest.mark.parametrize("bad", [float("nan"), -float("nan"), float("inf")])
@pytest.mark.parametrize("choice", [GREEDY, CUTS[3], replace(CUTS[2], forbidden=frozenset({650}))])
def test_logits_that_are_no_numbers(bad: float, choice: Choice, dtype: torch.dtype) -> None:
    """Each of two rows; also where the token may not be chosen. Minus infinity is a number."""
    for row in (0, 1):
        logits = torch.stack((LOGITS["normal"], LOGITS["many that cannot be"])).to(dtype)
        logits[row, 650] = bad
        if bad != bad and str(bad).startswith("-"):
            logits.view(torch.int16)[row, 650] |= -0x8000
        with pytest.raises(ManyhandsError, match="not numbers"):
            drawn(logits, [choice, CUTS[0]])


def test_who_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels choose from 16 bits as they are; the twin from more bits, and from what was weighed."""
    called = []
    draw = drawing.draw

    def counted(*arguments: Tensor) -> Tensor:
        called.append(arguments[0].dtype)
        return draw(*arguments)

    monkeypatch.setattr(drawing, "draw", counted)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    logits = torch.stack((LOGITS["normal"], LOGITS["peaked"])).to(DEVICE)
    choices = [GREEDY, Choice(temperature=0.6, top_p=0.95, draw=0.4, logprobs=2)]
    narrow = logits.bfloat16()

    def weigh(scores: Tensor) -> Tensor:
        return scores.float()

    chosen = sampling.choose(narrow, choices)
    twin = sampling.choose(narrow, choices, weigh=weigh)
    assert called == [torch.bfloat16]
    assert chosen.tokens() == twin.tokens()
    assert chosen.are_on_device()
    assert logprobs_of(chosen.tokens()) == logprobs_of(twin.tokens())
    one = sampling.choose(narrow, choices[1:], among=[1])
    assert one.tokens() == chosen.tokens()[1:]
    assert logprobs_of(one.tokens()) == logprobs_of(chosen.tokens())[1:]
    sampling.choose(narrow, [GREEDY] * 2)
    sampling.choose(logits, choices)
    assert called == [torch.bfloat16] * 2
