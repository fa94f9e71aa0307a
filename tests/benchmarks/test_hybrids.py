"""The benchmark of networks that keep states, tiny: all ways, a green gate, and a control that is red or stops it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_tables, hybrids
from benchmarks.hybrids import BEFORE, LAUNCHED, Hybrids, layers_of, remembering
from benchmarks.shapes import SHAPES, TINY_STATES
from manyhands.model.delta import DeltaLayer
from manyhands.model.recurrent import linear_layers
from tests.model.families_zoo import tiny_model
from tests.model.test_recurrent import CONFIGS

NAME = "qwen3-next-80b-12"


def measured(folder: Path, *words: str) -> dict[str, Any]:
    common = ["--tiny", "--device", "cpu", "--backend", "torch", "--out", str(folder)]
    hybrids.main([*common, "--commit", "abc", "--models", NAME, *words])
    found: dict[str, Any] = json.loads((folder / f"hybrids_{NAME}.json").read_text())
    return found


def test_all_ways_are_right_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(tmp_path)
    assert "red" not in found
    assert "left_out" not in found
    assert [line["rows"] for line in found["cells"]] == [1, 4]
    for line in found["cells"]:
        for way in ("recorded", "launched", "before"):
            assert line[way]["ms"] > 0
            assert line[way]["gate"]["error"] < line[way]["gate"]["tolerance"]
        assert line["experts_read"] > 0
        assert line["floor_ms"] > 0
    alone = found["cells"][0]["recorded"]["gate"]
    assert alone["control"] > 10 * alone["tolerance"]
    asked = [(line["way"], line["length"]) for line in found["prompts"]]
    assert asked == [(way, length) for way in ("launched", "before") for length in (30, 70)]
    monkeypatch.setattr(gpu_tables, "result", lambda name: found if NAME in name else None)
    assert found["model"] in gpu_tables.hybrids()
    assert found["model"] in gpu_tables.hybrids_prompts()


def test_control_a_gate_that_tells_no_state_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def unmoved(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(Hybrids, "_forgetting", unmoved)
    found = measured(tmp_path, "--ways", "launched")
    assert [line["rows"] for line in found["red"]] == [1]
    assert [line["rows"] for line in found["cells"]] == [4]


def test_heads_remember() -> None:
    """With weights as they come, a head forgets within a token."""
    model = tiny_model(CONFIGS["qwen3_5_text"])
    remembering(model)
    for module in linear_layers(model).values():
        layer: Any = module
        kept = torch.exp(-layer.A_log.exp() * torch.nn.functional.softplus(layer.dt_bias))
        assert (kept > 0.89).all()
        assert (kept < 0.99995).all()


def test_ways_change_who_makes_the_layers_and_give_it_back() -> None:
    usual = DeltaLayer.serves
    layer, hidden = DeltaLayer(None), torch.zeros(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaLayer, "serves", lambda *_: True)
        with layers_of(BEFORE):
            assert not layer.serves(hidden)
        with layers_of(LAUNCHED):
            assert layer.serves(hidden)
    assert DeltaLayer.serves is usual


def test_products_of_hybrids_are_those_of_their_modules() -> None:
    """Numbers of all linear layers of one pass, as the modelling code has them."""
    shape = SHAPES["qwen3.5-9b"]
    assert shape.layer_types.count("full_attention") == 8
    assert shape.token_bytes(2) == 2 * 8 * 4 * 256 * 2
    config = TINY_STATES.config
    assert TINY_STATES.layer_types == ["linear_attention", "full_attention"] * 2
    keys, values, heads, hidden = 2 * 16, 4 * 16, 4, config["hidden_size"]
    linear = [(hidden, 2 * keys + 2 * values + 2 * heads), (values, hidden)]
    attention = [(hidden, (2 * 2 + 2 * 2) * 16), (2 * 16, hidden)]
    mlp = [(hidden, 2 * 48), (48, hidden)]
    assert TINY_STATES.products() == [*linear, *mlp, *attention, *mlp] * 2 + [(hidden, 64)]
