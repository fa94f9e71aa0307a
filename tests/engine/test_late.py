"""Tokens that are late: marked by the host, filled in by the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from manyhands.cache.step import GREEDY
from manyhands.engine.local_executor import LocalExecutor
from manyhands.engine.lookahead import KNOWN, Begun
from manyhands.engine.pass_counts import PassCounts
from manyhands.engine.passes import Late, PassOutcome

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("way", ["int32", "int64", "kernel"])
def test_late_tokens_stand_in_their_places(way: str) -> None:
    """Of many rows some choose no token that is fed, and one chooses several; the others keep theirs, token 0 too."""
    known = np.arange(3000, dtype=np.int64) % 17
    at = np.array([0, 5, 6, 1500, 2998])
    late = Late(torch.arange(100, 141, device=DEVICE)[1:], at, np.array([39, 0, 0, 7, 3]))
    expected = known.copy()
    expected[at] = [140, 101, 101, 108, 104]
    late.mark(known)
    assert known[at].tolist() == [-40, -1, -1, -8, -4]
    dtype = torch.int64 if way == "int64" else torch.int32
    token_ids = torch.zeros(3004, dtype=dtype, device=DEVICE)
    held = token_ids[:3000]
    held.copy_(torch.from_numpy(known))
    if way == "kernel":
        pytest.importorskip("manyhands.model.kernels.late").fill(held, late.chosen)
    else:
        assert late.fill(held) is held
    assert held.tolist() == expected.tolist()
    assert token_ids[3000:].tolist() == [0] * 4


def test_without_late_tokens_nothing_is_done() -> None:
    token_ids = torch.tensor([3, 4], dtype=torch.int32)
    none = np.zeros(0, dtype=np.int64)
    late = Late(torch.zeros(0, dtype=torch.int64), none, none)
    late.mark(token_ids.numpy())
    assert late.fill(token_ids).tolist() == [3, 4]


class OnePass:
    """Passes of which one was begun; the next is noted."""

    def __init__(self) -> None:
        self.counts, self.late = PassCounts(), list[Late]()

    def begin(self, plan: Any, late: Late) -> PassOutcome:
        """The next one."""
        self.late.append(late)
        return PassOutcome(torch.zeros(2, 9))

    def meanwhile(self) -> None:
        """Nothing is put off."""


def test_late_tokens_of_a_pass_with_rows_in_vain() -> None:
    """The next pass numbers the rows that go on, and the pass before has one between them that does not."""
    executor: Any = LocalExecutor.__new__(LocalExecutor)
    executor.passes = passes = OnePass()
    executor._check_place = lambda *, is_begun: None  # it has no network
    greedy = torch.tensor([1, 5, 6, 7])
    executor._begun = lambda: PassOutcome(torch.zeros(3, 9), greedy)
    begun = Begun(None, np.array([1, KNOWN, 0]))  # type: ignore[arg-type]
    tokens = executor.go_on([0, 2], [GREEDY, GREEDY], ahead=lambda: begun)
    assert tokens == (5, 7)
    assert passes.counts.in_vain == 1
    (late,) = passes.late
    assert late.chosen[late.sources].tolist() == [7, 5]
    assert late.at.tolist() == [0, 2]
