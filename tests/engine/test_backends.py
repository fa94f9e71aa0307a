"""Which attention is chosen, and what is said when the kernels cannot serve a model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from manyhands.attention.store import LayerShape
from manyhands.engine.backends import choose_backend
from manyhands.errors import InvalidRequest
from manyhands.model.adapter import ModelAdapter
from manyhands.model.settings import BACKENDS, ModelSettings
from manyhands.native import build
from tests.engine.small import executor_of, small_engine

pytest.importorskip("triton", reason="Triton comes for Linux only")

from manyhands.attention import fitting
from manyhands.engine import backends, local_executor


def layers(num_heads: int, num_kv_heads: int, head_dim: int) -> tuple[LayerShape, ...]:
    return (LayerShape(num_heads, num_kv_heads, head_dim, head_dim),) * 2


def adapter(**changes: Any) -> ModelAdapter:
    """The part of an adapter that is asked here, of a model on a GPU."""
    usual = {
        "layers": layers(32, 8, 128),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda"),
    }
    return cast(ModelAdapter, SimpleNamespace(**(usual | changes)))


@pytest.fixture(autouse=True)
def a_recent_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(
        backends, "_kernels", lambda adapter, eight_bits: SimpleNamespace(name="triton")
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a CPU": ({"device": torch.device("cpu")}, "CUDA device, and the model is on cpu"),
    "float64": ({"dtype": torch.float64}, "not float64"),
    "an odd head": ({"layers": layers(32, 8, 127)}, "head size is 127"),
    "a large head": ({"layers": layers(32, 8, 128) + layers(32, 8, 640)}, "head size is 640"),
    "many heads to a key": ({"layers": layers(512, 1, 128)}, "512 query heads share"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernels_cannot_serve_goes_to_torch(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_is_interpreting", lambda: False)
    changes, reason = REFUSED[case]
    chosen = choose_backend("auto", adapter(**changes))
    assert chosen.backend.name == "torch"
    assert reason in chosen.reason
    with pytest.raises(InvalidRequest, match=reason) as caught:
        choose_backend("triton", adapter(**changes))
    assert "auto" in (caught.value.hint or "")


def test_every_name_has_a_backend_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was entered in half the places is a mistake that is seen, and no other backend answers to its name."""
    for name in BACKENDS:
        assert choose_backend(name, adapter()).backend.name == name
    monkeypatch.setattr(backends, "BACKENDS", (*BACKENDS, "mine"))
    with pytest.raises(AssertionError, match="mine is in BACKENDS and not in ANYWHERE"):
        choose_backend("mine", adapter(device=torch.device("cpu")))


def test_an_old_gpu_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert "--dtype float16" in choose_backend("auto", adapter()).reason
    assert choose_backend("auto", adapter(dtype=torch.float16)).backend.name == "triton"


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "triton" else found(name)
    )
    chosen = choose_backend("auto", adapter())
    assert chosen.backend.name == "torch"
    assert "Triton is not installed" in chosen.reason


def test_on_a_gpu_the_kernels_are_chosen() -> None:
    chosen = choose_backend("auto", adapter())
    assert (chosen.backend.name, chosen.page_size) == ("triton", 64)
    assert "can serve" in chosen.reason


def test_auto_is_never_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_is_interpreting", lambda: True)
    on_cpu = adapter(device=torch.device("cpu"))
    assert choose_backend("auto", on_cpu).backend.name == "torch"
    assert choose_backend("triton", on_cpu).backend.name == "triton"


def test_an_engine_says_what_it_chose() -> None:
    engine = small_engine(backend="reference")
    attention, layers, memory, plans = engine.about
    assert plans == f"plans by {build.about()}"
    assert attention == "attention by reference: asked for"
    assert layers.startswith("layers: no fused modules")
    assert "hold keys and values" in memory
    assert executor_of(engine).passes.about is None


@pytest.mark.parametrize(
    ("has_gpu", "backend", "device", "wanted"),
    [
        (True, "auto", "auto", 1),
        (True, "triton", "cuda:1", 1),
        (True, "torch", "auto", 0),
        (True, "auto", "cpu", 0),
        (False, "auto", "auto", 0),
    ],
)
def test_names_of_kernels_on_disk_are_found_out_while_weights_are_loaded(
    has_gpu: bool,
    backend: str,
    device: str,
    wanted: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[None] = []

    def load(*_: object, **__: object) -> None:
        raise InterruptedError(len(begun))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(local_executor, "begin_key", lambda: begun.append(None))
    monkeypatch.setattr(local_executor, "load_adapter", load)
    with pytest.raises(InterruptedError) as found:
        local_executor.load_network(ModelSettings(tmp_path, backend=backend, device=device))
    assert found.value.args == (wanted,)


@pytest.mark.parametrize("is_alone", [True, False])
def test_ranks_run_every_pass_before_they_record_it(
    is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one that cannot record at once would make its sums once more than the others."""
    from manyhands.attention.triton_backend import TritonBackend
    from manyhands.engine import graphs
    from manyhands.engine.passes import ALONE, Others

    made: list[Any] = []
    monkeypatch.setattr(graphs, "GraphedPasses", lambda *each: made.append(each))
    others = ALONE if is_alone else Others()
    backend = object.__new__(TritonBackend)
    states = cast(Any, object())
    backends.make_passes(
        adapter(), cast(Any, None), backend, graphs=True, others=others, states=states
    )
    ((_, _, _, recorder, told, kept),) = made
    assert kept is states
    assert told is others
    assert recorder._always_runs is not is_alone
