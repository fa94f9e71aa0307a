"""On a GPU: fused networks with their compiled kernels, real sizes of quantised layers, launches."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from benchmarks.launches import count_launches, no_attention
from manyhands.model.adapter import ModelAdapter
from manyhands.model.dummy import dummy_model
from manyhands.model.fusion import fuse_modules
from manyhands.model.kernels import gate_up, triton_is_here
from manyhands.model.loading import load_adapter
from manyhands.model.quantised.linear import Float8Linear
from manyhands.model.quantised.quantise import KINDS
from manyhands.model.quantised.w4a16 import Int4Linear
from manyhands.model.self_test import exact_attention
from manyhands.model.skinny import SkinnyLinear
from tests.model.families_zoo import repeating_models, some_tokens, tiny_models

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(not triton_is_here(), reason="needs Triton"),
]
ROUTED = ("dots1", "ernie4_5_moe", "glm4_moe", "hy_v3", "minimax_m2", "mistral4")
ZOO = tiny_models() | {name: repeating_models()[name] for name in ROUTED}
GPU = torch.device("cuda:0")
# Launches of one decode layer but attention's, at most, after the fused modules. A layer with norms on the heads
# of q and k: product, norms, product, join, product with its gate, product, join.
MOST = {"llama": 6, "qwen2": 6, "qwen3": 7, "mistral": 6, "smollm3": 6, "phi3": 6, "gemma3_text": 7}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def _logits(adapter: ModelAdapter) -> Tensor:
    tokens = some_tokens(30).to(adapter.device)
    with torch.inference_mode():
        return adapter.forward(tokens, None, exact_attention(adapter.ropes))


@pytest.mark.parametrize("name", ZOO)
def test_fused_logits_in_float32(name: str) -> None:
    adapter, _ = load_adapter(ZOO[name](), device="cuda")
    expected = _logits(adapter)
    report = fuse_modules(adapter)
    assert report.kernels == "triton"
    assert float((_logits(adapter) - expected).abs().max()) < 1e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ZOO)
def test_fused_logits_within_rounding(name: str, dtype: str) -> None:
    """By the median over tokens: a rounding may send a single token to another expert."""
    exact = _logits(load_adapter(ZOO[name](), device="cuda")[0])
    adapter, _ = load_adapter(ZOO[name](), device="cuda", dtype=dtype)
    before = (_logits(adapter).float() - exact).norm(dim=-1).median()
    fuse_modules(adapter)
    after = (_logits(adapter).float() - exact).norm(dim=-1).median()
    assert after < 1.25 * before


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "olmo3"])
def test_a_captured_pass_is_the_same(name: str) -> None:
    adapter, _ = load_adapter(ZOO[name](), device="cuda", dtype="bfloat16")
    fuse_modules(adapter)
    expected = _logits(adapter)
    tokens = torch.zeros(30, dtype=torch.long, device=GPU)
    attend = exact_attention(adapter.ropes)
    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            adapter.forward(tokens, None, attend)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = adapter.forward(tokens, None, attend)
        tokens.copy_(some_tokens(30))
        graph.replay()
    torch.testing.assert_close(logits, expected, rtol=0, atol=0.05)


@pytest.mark.filterwarnings("ignore:Profiler clears events")  # each count wants its own only
@pytest.mark.parametrize("name", MOST)
def test_launches_of_a_layer(name: str) -> None:
    counts = {}
    for layers in (6, 12):  # whole periods of windows and of layers without positions
        said = ZOO[name]().config.to_dict()
        left_to_it = ("num_hidden_layers", "layer_types", "no_rope_layers")
        kept = {key: value for key, value in said.items() if key not in left_to_it}
        config = hf.AutoConfig.for_model(**kept, num_hidden_layers=layers)
        for fused in (False, True):
            adapter = ModelAdapter(dummy_model(config, device=GPU, dtype=torch.bfloat16))
            if fused:
                fuse_modules(adapter)
            counts[layers, fused] = count_launches(adapter)
    before, after = ((counts[12, on] - counts[6, on]) / 6 for on in (False, True))
    assert after <= MOST[name]
    assert before > 2 * after


@pytest.mark.parametrize("tokens", [1, 4, 16, 33, 64, 128, 129])
@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [(6144, 4096), (24576, 4096), (4096, 12288), (151936, 4096), (5120, 27648), (1000, 1032)],
)
def test_few_tokens_at_real_sizes(tokens: int, outputs: int, inputs: int) -> None:
    """Few by our kernels, with gates up to 128; each token alone gives the same bits as among up to sixteen."""
    plain = nn.Linear(inputs, outputs, device=GPU, dtype=torch.bfloat16)
    plain.weight.data.normal_(std=inputs**-0.5)
    layer = SkinnyLinear.of(plain)
    x = torch.randn(tokens, inputs, device=GPU, dtype=torch.bfloat16)
    with torch.inference_mode():
        exact = x.double() @ layer.weight.double().t() + layer.bias.double()
        ours = layer(x)
        assert float((ours.double() - exact).norm() / exact.norm()) < 2 * 2.0**-9
        assert all(torch.equal(ours, layer(x)) for _ in range(20))
        if tokens <= 16:
            assert torch.equal(ours, torch.cat([layer(row[None]) for row in x]))
        gate, up = exact.to(torch.bfloat16).chunk(2, dim=-1)
        gated = layer.gated(x, "silu")
        if tokens <= gate_up.MOST_TOKENS and gate_up.is_for(layer.weight):
            expected = (torch.nn.functional.silu(gate) * up).double()
            assert gated is not None
            assert float((gated.double() - expected).norm() / expected.norm()) < 2.0**-7
        else:
            assert gated is None
    assert not layer.arrived.any()


@pytest.mark.parametrize("tokens", [1, 4, 16, 64, 200, 256, 300])
@pytest.mark.parametrize(("outputs", "inputs"), [(7168, 5120), (5120, 27648), (6144, 4096)])
def test_four_bits_at_real_sizes(tokens: int, outputs: int, inputs: int) -> None:
    shell = nn.Linear(inputs, outputs, device="meta", dtype=torch.bfloat16)
    layer = Int4Linear.empty(shell).to_empty(device=GPU)
    layer.fill(0.02)
    layer.zeros.random_(0, 16)
    layer.scales.copy_(0.005 * torch.rand_like(layer.scales.float()))
    assert layer.bias is not None
    layer.bias.data.normal_()
    x = torch.randn(tokens, inputs, device=GPU)
    exact = x.double() @ layer.dequantised(torch.float64).t() + layer.bias.double()
    for dtype, step in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
        rounded = x.to(dtype)
        exact = rounded.double() @ layer.dequantised(torch.float64).t() + layer.bias.double()
        ours = layer(rounded)
        # Beyond 256 tokens the weights are rounded too, and errors add up like a random walk.
        assert float((ours.double() - exact).norm() / exact.norm()) < 2 * step
        assert torch.equal(ours, layer(rounded))
        gated = layer.gated(rounded, "silu")
        if tokens > 256:
            assert gated is None
        else:
            gate, up = ours.chunk(2, dim=-1)
            expected = (torch.nn.functional.silu(gate) * up).double()
            assert gated is not None
            assert float((gated.double() - expected).norm() / expected.norm()) < step
    assert not layer.arrived.any()


@pytest.mark.parametrize("tokens", [1, 4, 64, 300])
def test_float8_on_the_device_is_float8_on_paper(tokens: int) -> None:
    layer = Float8Linear.from_weight(torch.randn(1024, 2048, device=GPU), torch.randn(1024).cuda())
    x = torch.randn(tokens, 2048, device=GPU, dtype=torch.bfloat16)
    ours = layer(x)
    expected = layer.cpu()(x.cpu().float())
    assert ours.dtype == torch.bfloat16
    assert float((ours.cpu().float() - expected).norm() / expected.norm()) < 2.0**-7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma2", "phi3"])
def test_quantised_networks(name: str, kind: str) -> None:
    """The device's kernels against the plain twin on the CPU, from the same rounded weights."""
    config = ZOO[name]().config
    config.hidden_size, config.intermediate_size = 256, 512
    model = dummy_model(config, device=torch.device("cpu"), dtype=torch.float32)
    # Its adapter is let go of, or the network would have to stay where it is.
    expected = _logits(load_adapter(model, quantise=kind)[0])
    adapter, _ = load_adapter(model, device="cuda", dtype="bfloat16")
    before = (_logits(adapter).cpu().float() - expected).norm() / expected.norm()
    fuse_modules(adapter)
    after = (_logits(adapter).cpu().float() - expected).norm() / expected.norm()
    most = 0.1 if kind == "fp8" else 0.05  # a bfloat16 may round to another float8
    assert before < most
    assert after < most


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_pass_without_attention_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, _ = load_adapter(ZOO["qwen3"](), device="cuda", dtype="bfloat16", quantise="int4")
    fuse_modules(adapter)
    tokens = some_tokens(4).to(GPU)
    with torch.inference_mode():
        adapter.forward(tokens, None, no_attention)
        try:
            torch.cuda.set_sync_debug_mode("error")
            adapter.forward(tokens, None, no_attention)
        finally:
            torch.cuda.set_sync_debug_mode("default")
