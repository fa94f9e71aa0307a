"""The examination of a model type that nobody has tried here yet.

A tiny random network of that type runs twice: by Hugging Face's own code, at ordinary positions, and
through our adapter, at position 0 with rotations of ours. If the logits agree, whatever is special
about the type comes through the seam; if not, the type would give wrong answers and is refused. What
cannot be read from the network (which dims form a pair, which layers do not rotate) is found by trying.
Then the tokens are fed in another order, as the rows of a pass stand in one: whatever mixes or counts tokens
besides attention, as a convolution does, would read other rows' tokens, and is seen by it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel

from manyhands.attention.attend import AttendFn, LayerCall
from manyhands.attention.rotary import Rope, rotate
from manyhands.errors import UnsupportedModel
from manyhands.model.adapter import ModelAdapter
from manyhands.model.families import Family, reject, supported
from manyhands.model.quiet import quiet
from manyhands.model.seeded import seeded

# Logits are compared in units of their own spread. Two float32 evaluations of a network this small
# differ by 1e-6 to 1e-5 of it; a rotation that is wrong anywhere moves them by more than a tenth.
TOLERANCE = 1e-4
_BLIND = 1e-2  # the examination must notice by this much that rotations are missing
_TOKENS, _WINDOW, _LAYERS, _VOCABULARY = 24, 5, 8, 96
# in names of numbers that limit how far one reads, or from where on queries are scaled
_SPANS = ("window", "chunk", "local_attention", "floor_scale")

# Errors that other people's modelling code may raise when it meets a shrunken configuration.
BREAKS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(NotImplementedError, OSError, RuntimeError, TypeError, ValueError, StrictDataclassError),
)


def self_test(config: Any) -> Family:
    """How the model type of `config` rotates; `UnsupportedModel` if it cannot be made to agree."""
    reject(config)
    try:
        with quiet(), seeded(0), torch.no_grad():
            return _examine(config)
    except BREAKS as error:
        raise _refused(config, f"its tiny twin could not run ({error})") from error


def exact_attention(ropes: tuple[Rope | None, ...], order: Tensor | None = None) -> AttendFn:
    """Causal attention of one row over itself, written out: every token at its absolute position.

    `order` [T] are the positions of the tokens as they are fed; None: 0, 1, 2, …
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        positions = torch.arange(q.shape[0], device=q.device) if order is None else order
        rope = ropes[call.layer]
        group = q.shape[1] // k.shape[1]
        q, k = rotate(q, positions, rope), rotate(k, positions, rope)
        if call.query_scale is not None:
            q = call.query_scale.apply(q, positions)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("thd,shd->hts", q, k) * call.scaling
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        distance = positions[:, None] - positions[None, :]
        hidden = distance < 0
        if call.window is not None:
            hidden = hidden | (distance >= call.window)
        if call.chunk is not None:
            hidden = hidden | (distance > positions[:, None] % call.chunk)
        scores = scores.masked_fill(hidden, float("-inf"))
        if call.sinks is not None:
            sinks = call.sinks.to(scores.dtype)[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat((scores, sinks), dim=-1)
        weights = scores.softmax(dim=-1)[..., : k.shape[0]]
        return torch.einsum("hts,shd->thd", weights, v)

    return attend


def tiny_twin(config: Any) -> Any:
    """The same architecture in a hundredth of a second: few layers, few heads, short windows."""
    tiny = copy.deepcopy(config)
    by_layer = _heads_by_layer(config)
    if by_layer:
        tiny.per_layer_config = None  # until the rest is small
        config = copy.deepcopy(config)
        config.per_layer_config = None
    layers = min(config.num_hidden_layers, _LAYERS)
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == config.num_hidden_layers:
            setattr(tiny, name, value[:layers])
    grouped = (getattr(config, "num_key_value_heads", None) or 0) not in (
        0,
        config.num_attention_heads,
    )
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    sizes: dict[str, int | None] = {
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2 if grouped else 4,
        "hidden_size": 4 * head,
        "intermediate_size": 64,
        "intermediate_size_mlp": 64,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts": 4,
        "num_local_experts": 4,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "top_k_experts": 2,
        "vocab_size": _VOCABULARY,
        "vocab_size_per_layer_input": _VOCABULARY,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    for name, value in sizes.items():
        if getattr(tiny, name, None) is not None:
            setattr(tiny, name, value)
    for name, value in vars(tiny).items():
        if isinstance(value, int) and value > _WINDOW and any(w in name for w in _SPANS):
            setattr(tiny, name, _WINDOW)
    tiny.quantization_config = None
    shared = getattr(tiny, "num_kv_shared_layers", None)
    if shared:
        # each kind of layer is left one that stores
        first_of_kind = [tiny.layer_types.index(kind) for kind in set(tiny.layer_types)]
        tiny.num_kv_shared_layers = min(shared, layers - 1 - max(first_of_kind))
    if by_layer:
        tiny.per_layer_config = {
            layer: {**heads, "num_key_value_heads": _fewer(heads["num_key_value_heads"], config)}
            for layer, heads in enumerate(by_layer[:layers])
        }
    return tiny


def _heads_by_layer(config: Any) -> list[dict[str, int]]:
    """Sizes and numbers of key heads of each layer, where they differ; else nothing."""
    if not getattr(config, "is_heterogeneous", False):
        return []
    names = ("head_dim", "num_key_value_heads")
    return [{name: getattr(layer, name) for name in names} for layer in config.per_layer_config]


def _fewer(num_kv_heads: int, config: Any) -> int:
    """Key heads of a layer of the twin, which has four query heads: as large a share of them."""
    num_heads: int = config.num_attention_heads
    return max(1, 4 * num_kv_heads // num_heads)


def tiny_network(config: Any) -> PreTrainedModel:
    """The twin with random weights, in float32 on the CPU, attending as Hugging Face does."""
    build: Any = AutoModelForCausalLM.from_config  # has no types of its own
    model: PreTrainedModel = build(
        tiny_twin(config),
        dtype=torch.float32,
        attn_implementation="eager",
        trust_remote_code=False,
    ).eval()
    _sharpen(model)
    return model


def tiny_tokens() -> Tensor:
    """Random tokens for the twin, as many as reach beyond its windows."""
    return torch.randint(1, _VOCABULARY, (_TOKENS,))


def _examine(config: Any) -> Family:
    model = tiny_network(config)
    tokens = tiny_tokens()
    expected = model(input_ids=tokens[None], use_cache=False).logits[0]
    worst = float("inf")
    for family in _candidates(config):
        adapter = ModelAdapter(model, family=family, context=_context(model.config))
        ours = adapter.forward(tokens, None, _Watched(adapter))
        worst = min(worst, deviation(ours, expected))
        if worst < TOLERANCE:
            _require_sight(config, adapter, tokens, expected)
            _require_any_order(config, adapter, tokens, expected)
            return family
    raise _refused(config, f"its logits came out different by {worst:.1e} of their spread")


def _candidates(config: Any) -> Iterator[Family]:
    """Every way of rotating that we know, the most common first."""
    kinds = set(getattr(config, "layer_types", None) or ())
    bare = [frozenset[str]()] + ([frozenset({"full_attention"})] if len(kinds) > 1 else [])
    for without, interleaved in itertools.product(bare, (False, True)):
        special = "examined at load"
        yield Family(config.model_type, config.model_type, special, interleaved, without)


def _context(tiny: Any) -> int:
    """Short enough that longrope, if there is any, takes the factors Hugging Face will take."""
    return min(_TOKENS, int(tiny.max_position_embeddings))


def _sharpen(model: PreTrainedModel) -> None:
    """Weights under which attention is far from uniform, or wrong rotations would go unnoticed."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    for number in saved_buffers(model):
        number.add_(torch.randn_like(number), alpha=0.1)


def saved_buffers(model: PreTrainedModel) -> list[Tensor]:
    """Numbers that a checkpoint holds and no training changes: scales of layers, biases of routers."""
    trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    held = model.state_dict()
    return [x for name, x in held.items() if name not in trained and x.is_floating_point()]


class _Watched:
    """Attention that insists on what the memory for keys and values expects of its callers.

    One call per layer, first layer first, the shapes that the adapter announced, and in a layer that stores
    nothing the keys and values of the one whose store it reads. A network can agree in its logits and still
    break this (one that attends twice per layer, for instance).
    """

    def __init__(self, adapter: ModelAdapter) -> None:
        self._attend = exact_attention(adapter.ropes)
        self._config = adapter.config
        self._layer = 0
        self._stored_by = adapter.stored_by
        self._made: list[tuple[Tensor, Tensor]] = []
        self._shapes = [
            (
                (_TOKENS, layer.num_heads, layer.head_dim),
                (_TOKENS, layer.num_kv_heads, layer.head_dim),
                (_TOKENS, layer.num_kv_heads, layer.value_dim),
            )
            for layer in adapter.layers
        ]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        if call.layer != self._layer:
            raise _refused(
                self._config, f"layer {call.layer} attends where layer {self._layer} should"
            )
        found, expected = tuple(tuple(x.shape) for x in (q, k, v)), self._shapes[call.layer]
        if found != expected:
            raise _refused(
                self._config,
                f"layer {call.layer} has q, k, v of shapes {found}, expected {expected}",
            )
        self._made.append((k, v))
        stored = self._made[by := self._stored_by[call.layer]]
        if not (torch.equal(k, stored[0]) and torch.equal(v, stored[1])):
            raise _refused(
                self._config,
                f"layer {call.layer} should read what layer {by} stored, and has keys and values of its own",
            )
        self._layer += 1
        return self._attend(q, k, v, call)


def deviation(ours: Tensor, expected: Tensor) -> float:
    """The largest difference of the logits, in units of their spread."""
    return float((ours - expected).abs().max() / expected.std())


def _require_sight(config: Any, adapter: ModelAdapter, tokens: Tensor, expected: Tensor) -> None:
    """An agreement proves nothing if the logits would have been the same without any rotation."""
    unrotated = exact_attention((None,) * adapter.num_layers)
    if deviation(adapter.forward(tokens, None, unrotated), expected) < _BLIND:
        raise _refused(config, "its logits do not depend on rotations at all")


def _require_any_order(
    config: Any, adapter: ModelAdapter, tokens: Tensor, expected: Tensor
) -> None:
    """Nothing but attention may know which tokens stand beside each other: in a pass those of other rows do."""
    order = torch.randperm(len(tokens))
    ours = adapter.forward(tokens[order], None, exact_attention(adapter.ropes, order))
    worst = deviation(ours, expected[order])
    if not worst < TOLERANCE:
        raise _refused(
            config,
            f"its logits came out different by {worst:.1e} of their spread where tokens were fed in another order, so "
            "something besides attention mixes or counts the tokens of a pass",
        )


def _refused(config: Any, reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"model type {config.model_type!r} is unknown here and failed its examination: {reason}",
        hint=f"supported: {supported()}",
    )
