"""Tables of rotation against float64: cosines and sines of a pass's offsets.

Offsets are whole numbers in float32, and so is their product with a frequency: an angle of a million has seven digits, so
its cosine is compared with that of the rounded angle.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")
from manyhands.attention.prepared import _tables
from manyhands.attention.rotary import Rope

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 4e-7  # of a number up to 1 in float32: three of its last steps


@pytest.mark.parametrize("half", [4, 48, 64])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.0], ids=["all", "half of them", "none"])
def test_tables_of_rotation(half: int, share: float) -> None:
    """Pairs behind those that are rotated keep what they are; without positions all do. Few offsets, and more than a program has."""
    count = round(half * share)
    frequencies = 1 / 1e4 ** (torch.arange(count, device=DEVICE) / max(1, count))
    rope = Rope(frequencies, 2 * count) if count else None
    offsets = torch.randint(-(1 << 20), 1 << 20, (301,), device=DEVICE).int()
    offsets[:6] = torch.tensor([0, 1, -1, 131_071, -131_072, 1 << 20])
    cos, sin = _tables(offsets, rope, half)
    assert cos.shape == sin.shape == (301, half)
    whole = np.zeros(half, dtype=np.float32)
    whole[:count] = frequencies.float().cpu().numpy()
    radians = offsets.cpu().numpy().astype(np.float32)[:, None] * whole
    for found, expected in ((cos, np.cos), (sin, np.sin)):
        exact = expected(radians.astype(np.float64))
        assert np.abs(found.cpu().numpy() - exact).max() < STEPS
    assert cos[:, count:].eq(1).all()
    assert sin[:, count:].eq(0).all()
