"""A command takes one thread of a CPU for a small network, unless its user has chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from manyhands.bundled import path
from manyhands.cli import threads
from manyhands.cli.loading import load_network, load_wordless_engine
from manyhands.cli.output import Notes
from manyhands.engine.engine import Engine
from manyhands.model.settings import ModelSettings
from tests.engine.ranks.models import small_folder


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("small"))


def after_loading(folder: Path, **choices: Any) -> int:
    settings = ModelSettings(device="cpu", memory_tokens=64, **choices)
    load_wordless_engine(str(folder), settings, Notes())
    return torch.get_num_threads()


@pytest.mark.usefixtures("two_threads")
def test_a_small_network_takes_one_thread(small: Path) -> None:
    assert after_loading(small) == 1


@pytest.mark.usefixtures("two_threads")
def test_weights_that_are_in_no_file_are_counted_behind_the_load(small: Path) -> None:
    assert after_loading(small, weights="dummy") == 1


@pytest.mark.usefixtures("two_threads")
def test_a_proof_takes_one_thread(small: Path) -> None:
    load_network(str(small), ModelSettings(device="cpu"), Notes())
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("weights", ["auto", "dummy"])
def test_a_larger_one_takes_what_torch_takes(
    weights: str, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SMALL_WEIGHTS", 1000)
    assert after_loading(small, weights=weights) == 2


@pytest.mark.usefixtures("two_threads")
def test_a_user_who_has_chosen_is_left_alone(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert after_loading(small) == 2


@pytest.mark.usefixtures("two_threads")
def test_python_keeps_its_threads(small: Path) -> None:
    Engine.load(small, device="cpu", memory_tokens=64)
    assert torch.get_num_threads() == 2


def test_the_bundled_model_is_small() -> None:
    bundled = threads.weight_bytes(str(path()))
    assert bundled is not None
    assert (
        bundled < threads.SMALL_WEIGHTS < 94_000_000
    )  # SmolLM2's file, which two threads serve faster


def test_no_weights_are_no_small_weights(tmp_path: Path) -> None:
    assert threads.weight_bytes(str(tmp_path)) is None
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(24))
    assert threads.weight_bytes(str(file)) == 24
