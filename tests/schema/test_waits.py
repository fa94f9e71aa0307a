"""Seconds of a caller: every real number is a wait, and nothing else is one."""

from __future__ import annotations

import math
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.errors import InvalidRequest
from manyhands.schema.waits import lock_wait, seconds_of


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (3, 3.0),
        (Fraction(1, 2), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(-7), -7.0),
        (torch.tensor(60.0), 60.0),
        (math.inf, math.inf),
        (10**400, math.inf),
        (-(10**400), -math.inf),
    ],
)
def test_every_real_number_is_a_wait(value: Any, seconds: float) -> None:
    found = seconds_of("timeout", value)
    assert (found, type(found)) == (seconds, float)


@pytest.mark.parametrize(
    "wrong", [math.nan, np.float32("nan"), True, "3", 1j, Decimal(3), [1], np.ones(2), None]
)
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"timeout is .*; expected seconds") as raised:
        seconds_of("timeout", wrong)
    assert raised.value.hint


@pytest.mark.parametrize("seconds", [-math.inf, -1.0, 0.0, 0.01, threading.TIMEOUT_MAX])
def test_what_a_lock_can_wait_it_is_given(seconds: float) -> None:
    assert lock_wait(seconds) == max(0.0, seconds)


def test_a_lock_waits_without_an_end_where_it_cannot_count_so_far() -> None:
    assert lock_wait(math.inf) is lock_wait(2 * threading.TIMEOUT_MAX) is None
