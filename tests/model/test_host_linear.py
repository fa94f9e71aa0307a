"""Linear layers laid out for a CPU: against float64, worst element.

A product of K = 200 numbers in float32 is off by some 1e-7 of the sum of its terms' absolute values, whoever makes it. With halves the
same must hold for weights that float16 holds, and for no others: that is the control.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from manyhands import Engine, bundled
from manyhands.errors import InvalidRequest
from manyhands.model import host_linear
from manyhands.model.fusion import fuse_modules
from manyhands.model.host_linear import HostLinear, lay_out_linears, layout_of
from manyhands.model.loading import load_adapter
from manyhands.model.self_test import exact_attention
from tests.model.families_zoo import NO_TOKENIZER, some_tokens, tiny_models

LAYOUTS = sorted(host_linear._libraries())
FLOAT32 = 1e-6  # of the sum of the terms' absolute values
pytestmark = pytest.mark.skipif(
    not LAYOUTS, reason="this torch has no library for a CPU's products"
)


def a_layer(seed: int, inputs: int, outputs: int, *, bias: bool, rounded: bool = True) -> nn.Linear:
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs, outputs, bias=bias)
    weight = torch.randn(outputs, inputs, generator=generator) * 0.05
    layer.weight.data = weight.bfloat16().float() if rounded else weight
    return layer.requires_grad_(False)


def error_of(made: nn.Module, layer: nn.Linear, x: Tensor) -> float:
    """Of the worst element, over the sum of the absolute values of its terms."""
    weight, bias = layer.weight.double(), None if layer.bias is None else layer.bias.double()
    expected = nn.functional.linear(x.double(), weight, bias)
    terms = nn.functional.linear(
        x.double().abs(), weight.abs(), None if bias is None else bias.abs()
    )
    return float(((made(x).double() - expected).abs() / terms).max())


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    inputs=st.integers(1, 200),
    outputs=st.integers(1, 70),
    tokens=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_are_those_of_float32(
    layout: Any, inputs: int, outputs: int, tokens: list[int], bias: bool, seed: int
) -> None:
    layer = a_layer(seed, inputs, outputs, bias=bias)
    x = torch.randn(*tokens, inputs, generator=torch.Generator().manual_seed(seed + 1))
    assert error_of(HostLinear(layer, layout), layer, x) < FLOAT32


@pytest.mark.skipif("halves" not in LAYOUTS, reason="FBGEMM is not here")
def test_control_halves_of_what_float16_does_not_hold() -> None:
    layer = a_layer(0, 200, 70, bias=False, rounded=False)
    assert error_of(HostLinear(layer, "halves"), layer, torch.randn(4, 200)) > 10 * FLOAT32


def test_the_layout_follows_from_what_is_lost() -> None:
    plain = "blocks"
    kept = "halves" if "halves" in LAYOUTS else plain
    weight = torch.randn(64, 64) * 0.05
    assert layout_of(weight.bfloat16().float()) == kept
    assert layout_of(weight.half().float()) == kept
    assert layout_of(weight) == plain
    assert layout_of(weight.bfloat16().float() * 1e7) == plain  # infinite in float16
    tiny = weight.bfloat16().float() * 1e-6  # below float16's smallest normal number
    assert layout_of(tiny) == plain
    assert layout_of(torch.zeros(4, 4)) == kept


def test_strides_do_not_matter_and_nothing_gives_nothing() -> None:
    layer = a_layer(3, 40, 24, bias=True)
    layer.weight.data = layer.weight.data.t().contiguous().t()
    layer.bias.data = torch.randn(24, 3)[:, 0]
    x = torch.randn(3, 80)[:, ::2]
    for layout in LAYOUTS:
        made = HostLinear(layer, layout)
        assert error_of(made, layer, x) < FLOAT32
        assert made(torch.empty(2, 0, 40)).shape == (2, 0, 24)


def test_which_layers_are_laid_out() -> None:
    model = nn.Module()
    model.table = nn.Embedding(9, 8)
    model.tied, model.one, model.two = (nn.Linear(8, 9, bias=False) for _ in range(3))
    model.tied.weight, model.two.weight = model.table.weight, model.one.weight
    model.alone, model.half, model.double = (  # type: ignore[method-assign]
        nn.Linear(8, 9),
        nn.Linear(8, 9).half(),
        nn.Linear(8, 9).double(),
    )
    made = lay_out_linears(model)
    assert sum(made) == 2
    laid_out = {name for name, child in model.named_children() if isinstance(child, HostLinear)}
    assert laid_out == {"tied", "alone"}
    assert model.one.weight is model.two.weight


def test_without_a_library_layers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_linear, "_libraries", frozenset)
    model = nn.Sequential(nn.Linear(4, 4))
    assert lay_out_linears(model) == (0, 0)
    assert type(model[0]) is nn.Linear


def test_a_library_that_breaks_or_errs_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Tensor | None) -> Any:
        raise RuntimeError("no such instruction")

    def errs(weight: Tensor, bias: Tensor | None) -> Any:
        return lambda x: nn.functional.linear(x, weight, bias) * 1.001

    for lay_out in (breaks, errs):
        library = host_linear._Library(lay_out, 2)
        monkeypatch.setitem(host_linear._LIBRARIES, "halves", library)
        assert not host_linear._works("halves")


def test_the_bundled_model_is_held_in_halves_and_answers_the_same() -> None:
    plain, laid_out = (load_adapter(bundled.path(), device="cpu")[0] for _ in range(2))
    report = fuse_modules(laid_out)
    assert report.halves > 20 or "halves" not in LAYOUTS
    tokens = some_tokens(60)
    with torch.inference_mode():
        expected, found = (
            one.forward(tokens, None, exact_attention(one.ropes)) for one in (plain, laid_out)
        )
    # Logits of order 10, 6 layers: two evaluations in float32 differ by 1e-5.
    assert float((found - expected).abs().max()) < 1e-4


def test_fp16_rounds_any_checkpoint(tmp_path: Path) -> None:
    model: Any = tiny_models()["llama"]()
    model.save_pretrained(tmp_path)
    rounded = load_adapter(tmp_path, tokenizer=NO_TOKENIZER, device="cpu", quantise="fp16")[0]
    own = dict(model.named_parameters())
    for name, weight in rounded.model.named_parameters():
        is_matrix = weight.dim() == 2 and "embed" not in name
        assert torch.equal(weight, own[name].half().float() if is_matrix else own[name]), name
    assert fuse_modules(rounded).blocks == 0 or "halves" not in LAYOUTS
    for options in ({"dtype": "bfloat16"}, {"dtype": "float64"}):
        with pytest.raises(InvalidRequest, match="for a CPU and float32"):
            load_adapter(tmp_path, tokenizer=NO_TOKENIZER, device="cpu", quantise="fp16", **options)  # type: ignore[arg-type]


def test_a_network_that_the_caller_built_stays_as_it_is() -> None:
    model: Any = tiny_models()["llama"]()
    Engine.load(model, memory_tokens=64)
    assert not any(isinstance(module, HostLinear) for module in model.modules())
    Engine.load(model, memory_tokens=64, fuse="on")
    assert any(isinstance(module, HostLinear) for module in model.modules())
