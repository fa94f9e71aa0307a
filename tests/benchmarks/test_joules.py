"""Joules of kernels, tiny, on the CPU: times alone, and joules where something tells watts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import joules, op_peers
from benchmarks.clocks import Clocks


def measured(folder: Path) -> list[dict[str, float]]:
    joules.main(["--tiny", "--device", "cpu", "--out", str(folder), "--commit", "abc"])
    found = json.loads((folder / "joules.json").read_text())
    assert "left_out" not in found
    lines: list[dict[str, float]] = found["work"]
    return lines


def test_times_alone_where_nothing_tells_watts(tmp_path: Path) -> None:
    lines = measured(tmp_path)
    assert len(lines) == 9
    assert all(line["ms"] > 0 and line["bytes"] > 0 for line in lines)
    assert not any("joules" in line for line in lines)


def test_joules_are_watts_times_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clocks, "facts", lambda clocks, since: {"watts": 500.0})
    for line in measured(tmp_path):
        assert line["joules"] == pytest.approx(0.5 * line["ms"], abs=1e-4)


def test_attention_that_is_wrong_has_no_joules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = op_peers.ours
    monkeypatch.setattr(
        op_peers, "ours", lambda layer, backend: lambda: 2 * usual(layer, backend)()
    )
    joules.main(["--tiny", "--device", "cpu", "--out", str(tmp_path), "--commit", "abc"])
    found = json.loads((tmp_path / "joules.json").read_text())
    assert len(found["work"]) == 8
    assert "gate" in str(found["left_out"])


def test_products_that_are_wrong_have_no_joules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, weight: 1.1 * usual(x, weight))
    joules.main(["--tiny", "--device", "cpu", "--out", str(tmp_path), "--commit", "abc"])
    found = json.loads((tmp_path / "joules.json").read_text())
    assert len(found["left_out"]) == 4


@pytest.mark.parametrize("form", ["whole", "in parts", "gated"])
def test_every_form_of_a_product_is_known(form: str) -> None:
    x, weight = torch.randn(3, 8), torch.randn(6, 8)
    out = x @ weight.T
    if form == "in parts":
        out = torch.stack([x[:, :4] @ weight[:, :4].T, x[:, 4:] @ weight[:, 4:].T])
    elif form == "gated":
        out = torch.nn.functional.silu(out[:, :3]) * out[:, 3:]
    assert joules._is_right(out, x, weight)
    assert not joules._is_right(out + 0.01 * out.abs().max(), x, weight)
