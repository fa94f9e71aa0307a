"""An Answer, a step or a reservation holds what its fields say, whatever a strategy puts there; the rest is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from manyhands.errors import InvalidRequest
from manyhands.strategies.base import Answer, FinishedStep, Reserve


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"tokens": np.arange(2)}, (0, 1)),
        ({"tokens": torch.tensor([3])}, (3,)),
        ({"tokens": [np.int64(3), 4]}, (3, 4)),
        ({"found": torch.tensor([1, 2])}, (1, 2)),
        ({"forward_passes": np.int64(3)}, 3),
        ({"extra_passes": torch.tensor(3)}, 3),
        ({"answer": np.str_("42")}, "42"),
        ({"snapshots": {np.int64(3): np.str_("a"), 4: None}}, {3: "a", 4: None}),
        ({"steps": [FinishedStep(0, 1, "a", 1, 2)]}, (FinishedStep(0, 1, "a", 1, 2),)),
    ],
)
def test_an_answer_holds_pythons_own(given: dict[str, Any], held: Any) -> None:
    (name,) = given
    found = getattr(Answer("x", **given), name)
    assert found == held
    assert type(found) is type(held)
    for item in found if isinstance(found, tuple) else ():
        assert type(item) in (int, FinishedStep)


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": None},
        {"text": b"x"},
        {"answer": 42},
        {"answer": np.int64(42)},
        {"finish_reason": None},
        {"forward_passes": 3.0},
        {"forward_passes": True},
        {"tokens": 3},
        {"tokens": (1.5,)},
        {"tokens": np.ones(2)},
        {"tokens": (token for token in (1, 2))},
        {"steps": ("Done.",)},
        {"snapshots": [1]},
        {"snapshots": {"3": "a"}},
        {"stopped_at": 5},
    ],
)
def test_what_is_of_another_kind_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidRequest, match=f"the fields of Answer do not fit: {name} is"):
        Answer(**{"text": "x", **wrong})


def test_a_finished_step_does_so_too() -> None:
    step = FinishedStep(np.int64(0), 1, "a", torch.tensor(1), 2, np.bool_(True))  # type: ignore[arg-type]
    assert step == FinishedStep(0, 1, "a", 1, 2, checked=True)
    assert {type(value) for value in vars(step).values()} == {int, str, bool}
    with pytest.raises(InvalidRequest, match="the fields of FinishedStep do not fit: text is None"):
        FinishedStep(0, 1, None, 1, 2)  # type: ignore[arg-type]


def test_a_reservation_holds_pythons_own() -> None:
    """Of few bits, their sums would wrap around."""
    asked = Reserve(np.uint8(200), torch.tensor(3), num_shared_tokens=np.int16(7))  # type: ignore[arg-type]
    assert asked == Reserve(200, 3, num_shared_tokens=7)
    assert asked.num_tokens + 100 == 300
