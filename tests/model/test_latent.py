"""Latent attention (MLA): what is stored, moved, kept on disk and learned; conformance is tested with all families."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from manyhands.attention.attend import LayerCall
from manyhands.attention.latents import LatentStore
from manyhands.attention.rotary import Rotations, rotate
from manyhands.attention.store import Targets
from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.errors import InvalidRequest, UnsupportedModel
from manyhands.model.adapter import ModelAdapter
from manyhands.model.fusion import fuse_modules
from manyhands.model.latent import Expansion, MatrixLinear, is_absorbed
from manyhands.model.loading import load_adapter
from manyhands.model.lora import add_lora, lora_layers
from manyhands.model.memory import Memory, token_bytes
from manyhands.model.self_test import exact_attention
from manyhands.model.settings import ModelSettings
from manyhands.replay.forward import merge_trace, replay_logits
from tests.engine.small import executor_of
from tests.model.double import DoublePrecision
from tests.model.families_zoo import some_tokens, tiny_model, tiny_models
from tests.model.test_conformance import FLOAT32, FLOAT64, VISIBLE, told_to
from tests.poison import poison
from tests.replay.runs import SETTINGS, network, team_run

ZOO = tiny_models()
BOTH = ["deepseek_v2", "deepseek_v3"]
TOKENS = some_tokens(20)


def logits(adapter: ModelAdapter) -> Tensor:
    return adapter.forward(TOKENS, None, exact_attention(adapter.ropes))


def worst(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def expanded(module: Any) -> Any:
    return module.kv_b_proj.weight


# -- memory ----------------------------------------------------------------------------------------


def test_a_token_costs_one_latent_and_one_rotated_key() -> None:
    adapter = ModelAdapter(ZOO["deepseek_v3"]())
    rank, rope, layers = 24, 8, 2
    assert token_bytes(adapter) == layers * (rank + rope) * 4
    memory = Memory.for_model(adapter, 64)
    assert memory.num_bytes == 64 * token_bytes(adapter)
    allocated = {store.keys.untyped_storage().data_ptr() for store in memory.stores}
    assert len(allocated) == 1
    for store in memory.stores:
        assert isinstance(store, LatentStore)
        assert store.values.untyped_storage().data_ptr() in allocated
        assert store.values.shape == (64, 1, rank)


def test_eight_bits_are_refused() -> None:
    settings = ModelSettings(kv_cache_dtype="int8", memory_tokens=64, backend="torch")
    with pytest.raises(InvalidRequest, match="one latent a token"):
        Engine(ModelAdapter(ZOO["deepseek_v3"]()), settings=settings)


@pytest.mark.parametrize("name", BOTH)
def test_a_sheet_is_written_back_to_other_offsets(name: str) -> None:
    """As they are where offsets stay; else k_pe turned by the difference, and latents the same to the bit."""
    adapter = ModelAdapter(ZOO[name]().double())
    memory = Memory.for_model(adapter, 32)
    (stack,) = memory.stacks
    poison(memory)
    generator = torch.Generator().manual_seed(1)
    k = torch.randn(5, 1, 32, generator=generator, dtype=torch.float64)
    old, new, shift = torch.arange(5), torch.arange(9, 14), 7
    for store in stack.stores:
        store.write(Targets(old, Rotations(old)), k, k[..., 8:])
    sheet = {key: tensor[:, old].clone() for key, tensor in stack.tensors().items()}
    assert set(sheet) == {"keys"}
    turn = Rotations(torch.full((5,), shift))
    stack.put(Targets(new, turn), sheet, is_turned=True)
    stack.put(Targets(new + 9, turn), sheet, is_turned=False)
    for store in stack.stores:
        assert worst(store.keys[new], rotate(k, old + shift, store.rope)) < FLOAT64
        assert torch.equal(store.values[new], k[..., 8:])
        assert torch.equal(store.keys[new + 9], store.keys[old])


@pytest.mark.parametrize("name", BOTH)
def test_the_reference_and_the_buckets_agree(name: str) -> None:
    """A team whose desks join the history, by both; the reference turns keys and not queries."""
    told = []
    for backend in ("reference", "torch"):
        settings = ModelSettings(backend=backend, memory_tokens=512)
        engine = Engine(ModelAdapter(ZOO[name]().double()), settings=settings)
        poison(executor_of(engine).memory)
        told.append(torch.cat(told_to(engine, "combined", 3)))
    assert worst(*told) < FLOAT64
    assert told[0].std() > VISIBLE


def test_the_kernels_in_an_engine() -> None:
    """Two workers that read each other, on the GPU or through Triton's interpreter, against the buckets."""
    told = []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for backend in ("triton", "torch"):
        settings = ModelSettings(backend=backend, memory_tokens=512)
        engine = Engine(ModelAdapter(ZOO["deepseek_v3"]().to(device)), settings=settings)  # type: ignore[arg-type]
        poison(executor_of(engine).memory)
        first, second = Block(), Block()
        views, feeds = (View([second, first]), View([first, second])), iter(TOKENS.tolist())
        told += [
            engine.forward(Step(Row(view, (next(feeds), next(feeds))) for view in views))
            for _ in range(2)
        ]
    assert worst(torch.cat(told[:2]), torch.cat(told[2:])) < FLOAT32
    assert told[0].std() > VISIBLE


# -- the seam --------------------------------------------------------------------------------------


def test_yarns_rounding_is_taken_back_on_rotated_dims_alone() -> None:
    """In bfloat16 the factor that k_pe and q_pe each got is rounded; latents never had one."""
    adapter = ModelAdapter(ZOO["deepseek_v3"]().bfloat16())
    assert all(gain != 1.0 for gain in adapter.gains)
    seen: list[tuple[Tensor, LayerCall]] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        seen.append((q, call))
        return q.new_zeros(*q.shape[:2], v.shape[-1])

    for gain in (1.0, 2.0):
        adapter.gains = (gain,) * adapter.num_layers
        adapter.forward(TOKENS, None, attend)
    (q, call), (twice, other) = seen[0], seen[adapter.num_layers]
    assert torch.equal(twice[..., :8], 2 * q[..., :8])
    assert torch.equal(twice[..., 8:], q[..., 8:])
    assert call.scaling == other.scaling


def test_an_adapter_on_the_expansion_counts() -> None:
    """LoRA on `kv_b_proj`, which is never called here: logits are those of the merged network."""
    adapter = ModelAdapter(ZOO["deepseek_v3"]())
    plain = logits(adapter)
    add_lora(adapter.model, 3, 6.0)
    generator = torch.Generator().manual_seed(5)
    layers = {n: one for n, one in lora_layers(adapter.model).items() if n.endswith("kv_b_proj")}
    assert len(layers) == adapter.num_layers
    for layer in layers.values():
        layer.lora_B.data.normal_(generator=generator)
    beside = logits(adapter)
    beside.square().mean().backward()
    for layer in layers.values():
        assert layer.lora_A.grad is not None
        assert layer.lora_A.grad.abs().max() > 0
    assert worst(beside, plain) > VISIBLE
    merged = ZOO["deepseek_v3"]()
    for name, layer in layers.items():
        weight = merged.get_submodule(name).weight
        weight.data += layer.scaling * (layer.lora_B @ layer.lora_A).detach()  # type: ignore[operator]
    expected = merged(input_ids=TOKENS[None], use_cache=False).logits[0]
    assert worst(beside, expected) < FLOAT32


@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_a_rounded_expansion_is_an_ordinary_matrix(kind: str) -> None:
    """Weights of fewer bits: the expansion keeps their rounded numbers."""
    config = copy.deepcopy(ZOO["deepseek_v3"].args[0])
    sizes = {"hidden_size": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "v_head_dim": 64}
    for name, size in sizes.items():
        setattr(config, name, size)
    exact = ModelAdapter(tiny_model(config))
    adapter, _ = load_adapter(tiny_model(config), quantise=kind)
    (ours, *_), (own, *_) = (
        [m for m in one.model.modules() if is_absorbed(m)] for one in (adapter, exact)
    )
    assert isinstance(ours.kv_b_proj, MatrixLinear)
    error = (expanded(ours) - expanded(own)).norm() / expanded(own).norm()
    assert 0 < error < (0.05 if kind == "fp8" else 0.15)


@pytest.mark.parametrize("name", BOTH)
def test_a_network_whose_weights_are_laid_out(name: str) -> None:
    """As every network on a CPU is: all linear layers but the expansion, which is read as a matrix."""
    adapter = ModelAdapter(ZOO[name]())
    with torch.no_grad():
        expected = logits(adapter)
        report = fuse_modules(adapter, "auto")
        assert report.halves + report.blocks > 10 * adapter.num_layers // 2
        assert worst(logits(adapter), expected) < FLOAT32


def test_latents_that_cannot_be_had_are_refused() -> None:
    """A configuration that speaks of latents, and a network that does not hand them on."""
    model = ZOO["llama"]()
    model.config.kv_lora_rank = 16
    with pytest.raises(UnsupportedModel, match="does not expand latents in one method"):
        ModelAdapter(model)


def test_both_sides_of_the_products() -> None:
    """q . (W c) is (W' q) . c, and W (sum of c) the sum of W c: in float64, head by head."""
    model = ZOO["deepseek_v2"]().double()
    module = next(m for m in model.modules() if hasattr(m, "kv_b_proj"))
    generator = torch.Generator().manual_seed(2)
    q, c = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 4, 20), (7, 24))
    )
    heads = (c @ expanded(module).T).view(7, 4, 22)
    expansion = Expansion(module)
    found = expansion.queries(q)
    assert torch.equal(found[..., :8], q[..., 12:])
    scores = torch.einsum("thc,nc->thn", found[..., 8:], c)
    assert worst(scores, torch.einsum("thd,nhd->thn", q[..., :12], heads[..., :12])) < 1e-12
    values = expansion.values(torch.einsum("thn,nc->thc", scores, c))
    assert worst(values, torch.einsum("thn,nhd->thd", scores, heads[..., 12:])) < 1e-10


def test_latents_are_expanded_as_hugging_face_does_it() -> None:
    """Keys and values of all heads, in float64; queries have the dims of such keys in the same order, rotated ones first."""
    module = next(m for m in ZOO["deepseek_v2"]().double().modules() if hasattr(m, "kv_b_proj"))
    generator = torch.Generator().manual_seed(3)
    q, c = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 4, 20), (7, 24))
    )
    heads = (c @ expanded(module).T).view(7, 4, 22)
    bare, values = Expansion(module).keys_and_values(c)
    assert worst(bare, heads[..., :12]) < 1e-12
    assert worst(values, heads[..., 12:]) < 1e-12
    ordered = Expansion(module, 2.0).expanded_queries(q)
    assert torch.equal(ordered, torch.cat((2 * q[..., 12:], q[..., :12]), dim=-1))


# -- learning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOTH)
def test_a_replayed_team(name: str) -> None:
    adapter = network(name)
    trace, seen, _ = team_run(adapter, SETTINGS)
    with torch.no_grad():
        assert worst(replay_logits(adapter, merge_trace(trace)), seen) < FLOAT32
    assert seen.std() > VISIBLE


def test_gradients_are_those_of_hugging_face() -> None:
    """Through the absorbed form and through the expanded one, of every parameter, in float64."""
    with DoublePrecision():  # the frequencies too
        ours, theirs = (ZOO["deepseek_v3"]().double() for _ in range(2))
        theirs.set_experts_implementation("eager")
        theirs(input_ids=TOKENS[None], use_cache=False).logits[0].square().mean().backward()
        logits(ModelAdapter(ours)).square().mean().backward()
    expected = dict(theirs.named_parameters())
    compared = 0
    for name, parameter in ours.named_parameters():
        theirs_grad, ours_grad = expected[name].grad, parameter.grad
        if theirs_grad is None:
            continue
        assert ours_grad is not None
        assert worst(ours_grad, theirs_grad) < 1e-12, name
        compared += float(theirs_grad.abs().max()) > 1e-4
    assert compared > 20
