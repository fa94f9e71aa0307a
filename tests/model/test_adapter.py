"""Every family through the adapter gives the logits of Hugging Face's own forward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from manyhands.attention.attend import AttendFn, LayerCall
from manyhands.attention.rotary import Rope
from manyhands.errors import UnsupportedModel
from manyhands.model.adapter import ModelAdapter, weight_bytes
from manyhands.model.families import FAMILIES
from manyhands.model.ropes import rotary_module
from manyhands.model.self_test import exact_attention
from tests.model.dense_team import rotation_name
from tests.model.double import DoublePrecision
from tests.model.families_zoo import LONGROPE_SHORT, repeating_models, some_tokens, tiny_models

ZOO = tiny_models()
TOKENS = 24
# Logits are of order 4 here. The worst differences measured are 3e-6 and 5e-15 (0 for most families:
# both sides then do the same products in the same order); the mutants further down miss by at least
# 0.3.
FLOAT32, FLOAT64 = 2e-5, 1e-12
VISIBLE = 0.1


def _both(
    name: str, *, tokens: Tensor | None = None, context: int | None = None, double: bool = False
) -> tuple[ModelAdapter, Tensor, Tensor]:
    """An adapter, token ids, and the logits that Hugging Face's own code has for them."""
    tokens = some_tokens(TOKENS) if tokens is None else tokens
    with DoublePrecision() if double else nullcontext(), torch.no_grad():
        model = ZOO[name]()
        if double:
            model = model.double()
            model.set_experts_implementation("eager")  # the only one that knows float64
        expected = model(input_ids=tokens[None], use_cache=False).logits[0]
        return ModelAdapter(model, context=context), tokens, expected


def _worst(adapter: ModelAdapter, tokens: Tensor, expected: Tensor, attend: AttendFn) -> float:
    with torch.no_grad():
        return float((adapter.forward(tokens, None, attend) - expected).abs().max())


def test_every_family_in_the_table_is_in_the_zoo() -> None:
    built = (ZOO | repeating_models()).values()
    assert {build().config.model_type for build in built} == set(FAMILIES)


@pytest.mark.parametrize("name", ZOO)
def test_logits_are_those_of_hugging_face_in_float32(name: str) -> None:
    adapter, tokens, expected = _both(name)
    assert _worst(adapter, tokens, expected, exact_attention(adapter.ropes)) < FLOAT32


@pytest.mark.parametrize("name", ZOO)
def test_logits_are_those_of_hugging_face_in_float64(name: str) -> None:
    with DoublePrecision():
        adapter, tokens, expected = _both(name, double=True)
        assert expected.dtype == torch.float64
        assert _worst(adapter, tokens, expected, exact_attention(adapter.ropes)) < FLOAT64


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("output_hidden_states", True),
        ("output_attentions", True),
        ("output_router_logits", True),
        ("return_dict", False),  # transformers' own code breaks
    ],
)
def test_a_pass_makes_nothing_besides_logits(name: str, entry: str, value: bool) -> None:
    adapter, tokens, expected = _both(name)
    model: Any = ZOO[name]()
    setattr(model.config, entry, value)
    asked = ModelAdapter(model)
    attend = exact_attention(asked.ropes)
    given: list[Any] = []
    model.base_model.register_forward_hook(lambda *call: given.append(call[-1]))
    assert _worst(asked, tokens, expected, attend) == _worst(adapter, tokens, expected, attend)
    assert [key for key, found in given[0].items() if found is not None] == ["last_hidden_state"]


def test_longrope_takes_the_short_factors_for_a_short_context() -> None:
    few = some_tokens(LONGROPE_SHORT - 2)
    adapter, tokens, expected = _both("phi3_longrope", tokens=few, context=LONGROPE_SHORT)
    assert _worst(adapter, tokens, expected, exact_attention(adapter.ropes)) < FLOAT32
    assert adapter.max_positions == LONGROPE_SHORT
    pinned_long, tokens, expected = _both("phi3_longrope", tokens=few)
    assert _worst(pinned_long, tokens, expected, exact_attention(pinned_long.ropes)) > VISIBLE


def test_longrope_stays_pinned_after_a_forward_pass() -> None:
    adapter, tokens, expected = _both("phi3_longrope")
    exact = exact_attention(adapter.ropes)
    assert _worst(adapter, tokens[:4], expected[:4], exact) < FLOAT32
    assert _worst(adapter, tokens, expected, exact) < FLOAT32


@pytest.mark.parametrize("name", ZOO)
def test_position_zero_leaves_q_and_k_unrotated_to_the_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same network with its rotation replaced by a product with the attention factor."""
    adapter, tokens, _ = _both(name)
    module = __import__(type(adapter.model).__module__, fromlist=["_"])
    arrived = _arriving(adapter, tokens)
    called = 0

    rotation = rotation_name(adapter.config)

    def scale_only(q: Tensor, k: Tensor, *table: Tensor, **_: Any) -> Any:
        nonlocal called
        called += 1
        cos, sin = (table[0].real, table[0].imag) if table[0].is_complex() else table
        assert torch.all(sin == 0)
        dims = cos.shape[-1] * (2 if name in ("gpt_oss", "deepseek_v2") else 1)  # one of each pair
        factor = cos.new_ones(q.shape[-1])
        factor[:dims] = cos.flatten()[0]
        if rotation.endswith("interleave"):  # leaves the first of all pairs, then the second
            q, k = (torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1) for x in (q, k))
        return q * factor, k * factor

    def scale_one(x: Tensor, cos: Tensor, sin: Tensor, **_: Any) -> Tensor:
        return scale_only(x, x, cos, sin)[0]  # type: ignore[no-any-return]  # as the other

    apart = name.startswith("gemma4")  # queries and keys are rotated in two calls
    monkeypatch.setattr(module, rotation, scale_one if apart else scale_only)
    without = _arriving(adapter, tokens)
    calls = sum(rope is not None for rope in adapter.ropes)
    assert called == calls + (len(set(adapter.stored_by)) if apart else 0)
    assert all(torch.equal(a, b) for a, b in zip(arrived, without, strict=True))


def _arriving(adapter: ModelAdapter, tokens: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []
    exact = exact_attention(adapter.ropes)

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        seen.extend((q.clone(), k.clone()))
        return exact(q, k, v, call)

    with torch.no_grad():
        adapter.forward(tokens, None, attend)
    return seen


@pytest.mark.parametrize("name", ZOO)
def test_the_forward_asks_nothing_of_the_device(name: str) -> None:
    """On the meta device there are no numbers: whoever waits for one (a synchronisation) fails."""
    model = ZOO[name]().to(torch.bfloat16)  # type: ignore[arg-type]  # of experts, meta knows only the bfloat16 product
    adapter = ModelAdapter(model)
    model.to("meta")

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        return q.new_empty(*q.shape[:2], v.shape[-1])

    keep = torch.tensor([1, 3], device="meta")
    with torch.no_grad():
        logits = adapter.forward(some_tokens(6).to("meta"), keep, attend)
    assert logits.shape == (2, adapter.vocab_size)


@pytest.mark.parametrize("name", ZOO)
def test_shapes_are_announced(name: str) -> None:
    adapter, tokens, _ = _both(name)
    layers = []

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        shape = adapter.layers[call.layer]
        assert q.shape == (TOKENS, shape.num_heads, shape.head_dim)
        assert k.shape == (TOKENS, shape.num_kv_heads, shape.head_dim)
        assert v.shape == (TOKENS, shape.num_kv_heads, shape.value_dim)
        layers.append(call.layer)
        return q.new_zeros(*q.shape[:2], v.shape[-1])

    with torch.no_grad():
        logits = adapter.forward(tokens, None, attend)
    assert layers == list(range(adapter.num_layers)) == list(range(len(adapter.ropes)))
    assert logits.shape == (TOKENS, adapter.vocab_size)


@pytest.mark.parametrize("name", ZOO)
def test_a_pass_reads_all_weights_but_tables_and_the_experts_of_others(name: str) -> None:
    """Each piece of memory once; a table that makes logits as well is read for these."""
    model = ZOO[name]()
    adapter = ModelAdapter(model)
    expected = float(sum(buffer.nbytes for buffer in model.buffers()))
    for path, weight in model.named_parameters():
        is_table = "embed_tokens" in path and not model.config.tie_word_embeddings
        is_table |= "embed_tokens_per_layer" in path
        is_stack = (
            path.rpartition(".")[2] in ("gate_up_proj", "down_proj") and name != "llama4_text"
        )
        expected += (
            0 if is_table else weight.nbytes * (0.5 if is_stack else 1)
        )  # two of four experts
    assert weight_bytes(adapter) == pytest.approx(expected, abs=1)


def test_a_pass_reads_all_of_a_packed_weight_that_is_no_stack_of_experts() -> None:
    """In four bits it has three dimensions, too."""
    model: Any = (tiny_models() | repeating_models())["qwen3_moe"]()
    adapter = ModelAdapter(model)
    before = weight_bytes(adapter)
    packed = torch.zeros(16, 2, 256, dtype=torch.int32)
    model.base_model.layers[0].self_attn.q_proj.register_buffer("packed", packed)
    assert weight_bytes(adapter) == before + packed.nbytes


def test_only_the_kept_tokens_have_logits() -> None:
    adapter, tokens, expected = _both("gemma2")
    keep = torch.tensor([5, 0, 23])
    with torch.no_grad():
        logits = adapter.forward(tokens, keep, exact_attention(adapter.ropes))
    torch.testing.assert_close(logits, expected[keep], atol=FLOAT32, rtol=0)
    empty = adapter.forward(tokens, torch.tensor([], dtype=torch.long), lambda q, *_: q)
    assert empty.shape == (0, adapter.vocab_size)


def _with_ropes(change: Callable[[Rope, ModelAdapter], Rope | None]) -> Any:
    """A mutant that rotates by other ropes."""

    def build(adapter: ModelAdapter) -> AttendFn:
        return exact_attention(tuple(rope and change(rope, adapter) for rope in adapter.ropes))

    return build


def _with_call(change: Callable[[LayerCall, ModelAdapter], LayerCall]) -> Any:
    """A mutant that misreads what a layer asks for."""

    def build(adapter: ModelAdapter) -> AttendFn:
        exact = exact_attention(adapter.ropes)
        return lambda q, k, v, call: exact(q, k, v, change(call, adapter))

    return build


def _whole_head(rope: Rope, adapter: ModelAdapter) -> Rope:
    size = adapter.layers[0].head_dim
    frequencies = 1e4 ** (-torch.arange(0, size, 2) / size)
    return Rope(frequencies, size, rope.interleaved)


def _factor_again(call: LayerCall, adapter: ModelAdapter) -> LayerCall:
    rotary = rotary_module(adapter.model)
    factor = getattr(rotary, "attention_scaling", None)
    if factor is None:
        factor = getattr(rotary, f"{adapter.config.layer_types[call.layer]}_attention_scaling")
    return replace(call, scaling=call.scaling * factor**2)


def _window(by: int) -> Any:
    return _with_call(lambda call, _: replace(call, window=call.window and call.window + by))


def _other_ropes(adapter: ModelAdapter) -> AttendFn:
    first, second = adapter.ropes[:2]
    swap = {id(first): second, id(second): first}
    return exact_attention(tuple(swap[id(rope)] for rope in adapter.ropes))


def _every_layer_rotates(adapter: ModelAdapter) -> AttendFn:
    rope = next(rope for rope in adapter.ropes if rope is not None)
    return exact_attention((rope,) * adapter.num_layers)


WINDOWED = (
    "qwen2_window",
    "mistral",
    "phi3",
    "gemma2",
    "gemma3_text",
    "gemma4_shared",
    "olmo3",
    "gpt_oss",
)
PARTIAL = ("phi3", "phi3_longrope", "glm", "glm4")
# Mistakes: the networks that must notice, and the attention that does it.
MUTANTS: dict[str, tuple[tuple[str, ...], Callable[[ModelAdapter], AttendFn]]] = {
    "wrong sign": (
        tuple(ZOO),
        _with_ropes(lambda rope, _: Rope(-rope.inv_freq, rope.rotary_dim, rope.interleaved)),
    ),
    "other pairs": (
        tuple(ZOO),
        _with_ropes(lambda rope, _: Rope(rope.inv_freq, rope.rotary_dim, not rope.interleaved)),
    ),
    "no rotation": (tuple(ZOO), _with_ropes(lambda rope, _: None)),
    "attention factor twice": (
        ("qwen2_yarn", "phi3_longrope", "olmo3", "gpt_oss", "deepseek_v2", "deepseek_v3"),
        _with_call(_factor_again),
    ),
    "partial rotary forgotten": (PARTIAL, _with_ropes(_whole_head)),
    "window one too long": (WINDOWED, _window(1)),
    "window one too short": (WINDOWED, _window(-1)),
    "window forgotten": (WINDOWED, _with_call(lambda call, _: replace(call, window=None))),
    "sinks dropped": (("gpt_oss",), _with_call(lambda call, _: replace(call, sinks=None))),
    "softcap dropped": (("gemma2",), _with_call(lambda call, _: replace(call, softcap=None))),
    "own scaling ignored": (
        ("gemma2", "gemma3_text", "gemma4_text"),
        _with_call(lambda call, adapter: replace(call, scaling=adapter.layers[0].head_dim ** -0.5)),
    ),
    "frequencies of the other layer type": (("gemma3_text", "olmo3"), _other_ropes),
    "layers without positions rotate": (("smollm3",), _every_layer_rotates),
}
CASES = [(mutant, name) for mutant, (names, _) in MUTANTS.items() for name in names]


@pytest.mark.parametrize(("mutant", "name"), CASES)
def test_a_mistake_would_be_seen(mutant: str, name: str) -> None:
    adapter, tokens, expected = _both(name)
    assert _worst(adapter, tokens, expected, MUTANTS[mutant][1](adapter)) > VISIBLE


def test_layers_that_rotate_alike_share_one_rope() -> None:
    distinct = {name: len({id(r) for r in ModelAdapter(ZOO[name]()).ropes}) for name in ZOO}
    assert {name for name, count in distinct.items() if count > 1} == {
        "gemma3_text",
        "gemma4_text",
        "gemma4_shared",
        "llama4_text",  # one rope and None
        "olmo3",
        "smollm3",  # as llama4_text
    }


def test_frequencies_survive_half_precision() -> None:
    """`model.to(bfloat16)` rounds Hugging Face's own buffer, ours must not follow."""
    exact = ModelAdapter(ZOO["llama_llama3"]()).ropes[0]
    half = ModelAdapter(ZOO["llama_llama3"]().to(torch.bfloat16)).ropes[0]  # type: ignore[arg-type]
    assert exact is not None
    assert half is not None
    assert half.inv_freq.dtype == torch.float32
    assert exact.same_rotation(half)


def test_the_attention_factor_is_made_exact_in_half_precision() -> None:
    """bfloat16 rounds YaRN's 1.1386 to 1.1406 on q and on k; the scaling takes that back."""
    calls: list[LayerCall] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        calls.append(call)
        return q

    for name, rounds in (("qwen2_yarn", True), ("olmo3", False), ("qwen3", False)):
        adapter = ModelAdapter(ZOO[name]().to(torch.bfloat16))  # type: ignore[arg-type]
        adapter.forward(some_tokens(3), None, attend)
        factor = getattr(rotary_module(adapter.model), "attention_scaling", 1.0)
        rounded = float(torch.tensor(factor, dtype=torch.bfloat16))
        expected = adapter.layers[0].head_dim ** -0.5 * ((factor / rounded) ** 2 if rounds else 1.0)
        assert calls[-1].scaling == pytest.approx(expected, rel=1e-6)
        assert (calls[-1].scaling != adapter.layers[0].head_dim ** -0.5) == rounds


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss"])
def test_gradients_reach_every_parameter(name: str) -> None:
    adapter, tokens, _ = _both(name)
    logits = adapter.forward(tokens, None, exact_attention(adapter.ropes))
    logits.square().sum().backward()
    missing = [n for n, p in adapter.model.named_parameters() if p.grad is None]
    assert missing == []


def test_no_mask_is_built() -> None:
    """Transformers makes none for an attention function that has no mask function."""
    adapter, _, _ = _both("gemma2")
    assert adapter.config._attn_implementation not in ALL_MASK_ATTENTION_FUNCTIONS


def test_a_model_that_was_taken_over_says_so_when_called_directly() -> None:
    adapter, tokens, _ = _both("llama")
    with pytest.raises(UnsupportedModel, match="without its hook"):
        adapter.model(input_ids=tokens[None])


def test_adapters_do_not_disturb_each_other() -> None:
    """The hook travels with each call, so two models with other ropes can take turns."""
    first, tokens, expected_first = _both("glm4")
    second, _, expected_second = _both("olmo3")
    for _ in range(2):
        assert _worst(first, tokens, expected_first, exact_attention(first.ropes)) < FLOAT32
        assert _worst(second, tokens, expected_second, exact_attention(second.ropes)) < FLOAT32
