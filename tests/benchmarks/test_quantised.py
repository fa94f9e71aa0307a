"""The benchmark of quantised weights runs, tiny, on the CPU; and its comparison is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import launches, quantised
from manyhands import bundled
from manyhands.model.loading import load_adapter
from manyhands.tasks.arithmetic.problem_list import problem_list
from tests.model.families_zoo import some_tokens, tiny_models


def test_products_of_all_kinds_with_their_floor(tmp_path: Path) -> None:
    words = ["--tiny", "--device", "cpu", "--out", str(tmp_path), "--commit", "abc"]
    quantised.main([*words, "--parts", "products"])
    found = json.loads((tmp_path / "quantised_products.json").read_text())
    assert found["commit"] == "abc"
    assert not (tmp_path / "quantised_accuracy.json").exists()  # of a run before, if there was one
    assert {line["weights"] for line in found["products"]} == {"ordinary", "fp8", "int4"}
    assert {line["tokens"] for line in found["products"]} == {1, 4, 16, 64}
    assert all(line["us"] > 0 and line["floor_us"] > 0 for line in found["products"])
    first = [line for line in found["products"] if line["product"] == "qkv"]
    sizes = {line["weights"]: line["bytes"] for line in first}
    assert sizes["int4"] < 0.6 * sizes["fp8"] < 0.2 * sizes["ordinary"]  # float32 here


def test_a_network_agrees_with_itself_and_less_with_its_rounding() -> None:
    make = tiny_models()["qwen2"]
    exact, same = (load_adapter(make())[0] for _ in range(2))
    rounded, _ = load_adapter(make(), quantise="int4")
    texts = [some_tokens(20), some_tokens(30)]
    facts = quantised.compare(exact, same, texts)
    assert facts == {"tokens": 50, "logit_error": 0, "kl": 0, "agreement": 1}
    facts = quantised.compare(exact, rounded, texts)
    assert facts["kl"] > 0
    assert facts["agreement"] < 1
    assert quantised.weight_bytes(rounded) < 0.5 * quantised.weight_bytes(exact)


def test_lists_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter ones than the benchmark's."""
    monkeypatch.setattr(quantised, "problem_list", lambda rng, _, kind: problem_list(rng, 2, kind))
    lists = quantised.Lists(load_adapter(bundled.path()), 1)
    assert lists.right == 1


def test_launches_need_a_gpu(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        launches.main(["--device", "cpu", "--out", str(tmp_path)])
        found = json.loads((tmp_path / "launches.json").read_text())
        assert "without a GPU" in found["left_out"][0]["why"]
