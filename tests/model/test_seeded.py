"""Loading a model leaves every random generator of the process as it was."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf

import manyhands
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import dummy_model
from manyhands.model.fusion import fuse_modules
from manyhands.model.loading import load_adapter
from manyhands.model.lora import LoraLinear, add_lora, lora_layers
from manyhands.model.seeded import seeded
from manyhands.model.self_test import self_test
from tests.model.families_zoo import tiny_models

CPU = torch.device("cpu")
NAME = "qwen3"
WAYS: dict[str, Callable[[torch.device], object]] = {
    "self-test": lambda _: self_test(hf.CONFIG_MAPPING["granite"]()),
    "random weights": lambda device: dummy_model(
        tiny_models()[NAME]().config, device=device, dtype=torch.float32
    ),
    "fusion": lambda device: fuse_modules(_loaded(device)),
    "an adapter": lambda device: add_lora(_loaded(device).model, 2, 4.0),
}
DEVICES = ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])]


def _loaded(device: torch.device) -> ModelAdapter:
    return load_adapter(tiny_models()[NAME](), device=str(device))[0]


def _states() -> list[torch.Tensor]:
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.random.get_rng_state(), *on_gpu]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS)
def test_no_generator_is_moved(way: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no GPU is, a seed for all of them would wait for one: the request for it is seen."""
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", asked.append)
    before = _states()
    WAYS[way](torch.device(device))
    assert asked == []
    assert all(torch.equal(*pair) for pair in zip(before, _states(), strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_a_seed_decides_and_is_given_back_behind_an_error(device: str) -> None:
    place = torch.device(device)

    def drawn(seed: int) -> torch.Tensor:
        with seeded(seed, place):
            return torch.cat([torch.randn(3), torch.randn(3, device=place).cpu()])

    def failing() -> None:
        with seeded(1, place):
            torch.randn(3, device=place)
            raise InterruptedError

    before = _states()
    with pytest.raises(InterruptedError):
        failing()
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1)[:3], drawn(2)[:3])
    assert not torch.equal(drawn(1)[3:], drawn(2)[3:])
    assert all(torch.equal(*pair) for pair in zip(before, _states(), strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_adapters_are_the_seeds(device: str) -> None:
    """Whatever was drawn before."""
    place = torch.device(device)

    def first(seed: int) -> torch.Tensor:
        torch.randn(5, device=place)
        model = _loaded(place).model
        add_lora(model, 2, 4.0, seed=seed)
        layer = next(iter(lora_layers(model).values()))
        assert isinstance(layer, LoraLinear)
        return layer.lora_A.detach()

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


def test_threads_take_turns() -> None:
    """Each draws its own numbers, and the caller's state is what it was."""
    inside, may_leave = threading.Event(), threading.Event()
    found: dict[str, torch.Tensor] = {}

    def first() -> None:
        with seeded(1):
            inside.set()
            assert may_leave.wait(10)
            found["first"] = torch.randn(4)

    def second() -> None:
        with seeded(2):
            found["second"] = torch.randn(4)

    before = _states()
    threads = [threading.Thread(target=each) for each in (first, second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    threads[1].join(0.1)
    assert threads[1].is_alive(), "it waits"
    may_leave.set()
    for thread in threads:
        thread.join(10)
    for seed, name in ((1, "first"), (2, "second")):
        with seeded(seed):
            assert torch.equal(found[name], torch.randn(4))
    assert all(torch.equal(*pair) for pair in zip(before, _states(), strict=True))


def test_no_line_seeds_every_device() -> None:
    """Generators of their own are seeded, or those that `seeded` gives back."""
    allowed = re.compile(r"Generator\(.*\)\.manual_seed|default_generator\.manual_seed")
    found = [
        f"{file.name}: {line.strip()}"
        for file in Path(manyhands.__file__).parent.rglob("*.py")
        if file.name != "seeded.py"
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"manual_seed\(|fork_rng\(", line) and not allowed.search(line)
    ]
    assert found == []
