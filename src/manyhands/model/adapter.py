"""The seam between our house and unmodified Hugging Face modelling code.

Three facts make the seam thin. (1) Hugging Face lets anybody register an attention function, and
hands it the keyword arguments given to `model(...)`: our hook travels that way, no global holds it.
(2) With a function but no mask function registered, no mask is built: what a row may read is decided
by the hook. (3) With all positions 0 the network's own rotation is the identity, times YaRN's factor
exactly once: q and k arrive unrotated, and all rotations happen in our code, from integers.

    T  new tokens, packed over rows      H  query heads      G  key/value heads
    D  head dim of q and k               Dv head dim of v
"""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import PreTrainedModel

from manyhands.attention.attend import AttendFn, LayerCall, QueryScale
from manyhands.attention.rotary import Rope
from manyhands.attention.store import LayerShape
from manyhands.errors import UnsupportedModel
from manyhands.model.families import (
    Family,
    chunks,
    known_family,
    query_scales,
    reach,
    storing_layers,
    supported,
)
from manyhands.model.few_layers import are_alike, few_layers_of
from manyhands.model.fingerprint import WeightSums, digest_of
from manyhands.model.host_linear import laid_out_bytes
from manyhands.model.latent import Expansion, absorb, is_absorbed, is_latent, latent_shape
from manyhands.model.layers import HeadNorms
from manyhands.model.recurrent import StateCall, is_hybrid, take_over
from manyhands.model.ropes import read_ropes
from manyhands.model.unlisted import name_base

T = TypeVar("T")
# Of each network the adapters that have taken it over, and through them the engines that have it.
_USERS: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[ModelAdapter]] = (
    weakref.WeakKeyDictionary()
)
_NAME = "manyhands"  # of our attention function in the registry of transformers


@dataclass(frozen=True, eq=False)
class _Hook:
    """The keyword argument that travels through the network to every attention layer."""

    attend: AttendFn
    gains: tuple[float, ...]  # per layer, see ropes._gain
    query_scales: tuple[QueryScale | None, ...]  # per layer
    chunks: tuple[int | None, ...]  # per layer, see `LayerCall.chunk`
    states: StateCall | None = None  # of a hybrid's linear layers, see model/recurrent.py

    def takes_norms(self, layer: int) -> bool:
        """Whether the norms of this layer's heads may be left to `attend`, see `LayerCall.norms`."""
        takes: Callable[[int], bool] | None = getattr(self.attend, "takes_norms", None)
        return takes is not None and takes(layer)

    @property
    def takes_forms(self) -> bool:
        """Whether `attend` chooses the form of latent attention itself, see `LayerCall.forms`."""
        return bool(getattr(self.attend, "takes_forms", False))


class _Once:
    """In the place of the layers: they run when they are first asked for, and what came of it is the answer from then on."""

    def __init__(self, base: nn.Module) -> None:
        self._base = base
        self._outcome: Any = None

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self._outcome is None:
            self._outcome = self._base(*given, **named)
        return self._outcome


class _Made(BaseModelOutputWithPast):
    """States in the place of what the layers give; whatever else a family's code asks for is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class ModelAdapter:
    """A Hugging Face causal language model that attends through a function given at each call.

    The model is put into evaluation mode (no dropout) and its attention implementation is replaced
    for good: afterwards it runs only through this adapter. Gradients flow when they are enabled.

    Weights that are written to in place are read by the next pass, unless they were joined or laid out when an engine was made;
    keys and values in memory, and those on disk, stay what the weights before made of them. So an engine is made anew then.
    """

    model: PreTrainedModel
    name: str
    family: Family
    ropes: tuple[Rope | None, ...]
    gains: tuple[float, ...]  # per layer: what the scaling of its scores is multiplied by
    # per layer; at position 0 the network's own is 1, as its rotation is none, or it is switched off
    query_scales: tuple[QueryScale | None, ...]
    chunks: tuple[int | None, ...]  # per layer, see `LayerCall.chunk`
    layers: tuple[LayerShape, ...]
    stored_by: tuple[
        int, ...
    ]  # per layer: the layer that stores what it reads, itself or an earlier one
    vocab_size: int
    max_positions: int

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        name: str = "",
        context: int | None = None,
        family: Family | None = None,
    ) -> None:
        """Take over `model`; `context` is the longest view that will be asked for (default: its all).

        `family` says how a model type that is not in the table rotates; `load_adapter` finds it out.
        """
        config: Any = model.config
        family = family or known_family(config)
        self.family = family
        self.model = model.train(False)
        self.name = name or config.name_or_path or config.model_type
        _take_over(model)
        self.layers = _layers(config)
        self.stored_by = storing_layers(config)
        self.vocab_size = config.vocab_size
        self.max_positions = min(context or reach(config), reach(config))
        self.ropes, self.gains = read_ropes(model, family, context)
        self.query_scales, self.chunks = query_scales(config), chunks(config)
        self.weight_sums = WeightSums(model)
        self._alike: tuple[object, bool] | None = None  # layers, and whether they are
        self._short: Any = None  # the network with few layers, while passes are made with these
        _USERS.setdefault(model, weakref.WeakSet()).add(self)

    def let_go(self) -> None:
        """Have the network in use no more, as far as this adapter goes: an engine was to be made of it, and there is none.

        The error may be held for long, as interactive sessions hold their last one, and the adapter with it.
        """
        _USERS[self.model].discard(self)

    @property
    def num_layers(self) -> int:
        """Layers that attend."""
        return len(self.layers)

    @property
    def keeps_states(self) -> bool:
        """Whether some layers keep one state of a text instead of keys and values (`model/recurrent.py`)."""
        return is_hybrid(self.config)

    @property
    def config(self) -> Any:
        """The model's Hugging Face configuration."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where token ids must lie."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, and of q, k and v."""
        return self.model.dtype

    def fingerprint(self) -> str:
        """32 hex digits that stand for the weights (`model/fingerprint.py`). Reads all weights, the first time."""
        return digest_of(self.weight_sums.get())

    def forward(
        self,
        token_ids: Tensor,
        keep: Tensor | None,
        attend: AttendFn,
        states: StateCall | None = None,
    ) -> Tensor:
        """Logits [len(keep), vocab] after the tokens at the packed indices `keep` (None: all).

        `token_ids` [T] are the new tokens of all rows, one after the other. Nothing is cached here
        and nothing waits for the device: who reads what is the business of `attend`. The linear layers of a
        hybrid need `states`, and raise `UnsupportedModel` without it.
        """
        given = self._given(token_ids, attend, states)
        return _logits(self.model if self._short is None else self._short, given, keep)

    def with_few_layers(self, work: Callable[[], T]) -> T:
        """The result of `work`, whose forwards make only so many layers as between them launch every kernel of a whole one.

        Their logits mean nothing. Where layers differ, all are made. Whether they do is looked at once for a list of layers. It
        depends on modules, shapes and settings, and on no weight's numbers; a module that is exchanged within a layer later
        is not noticed, and then kernels are compiled where they are first met. No result depends on it.

        Other adapters of the network make all layers meanwhile, in other threads too: it is not touched.
        """
        base: Any = self.model.base_model
        layers = getattr(base, "layers", None)
        if self._alike is None or self._alike[0] is not layers:
            self._alike = layers, are_alike(layers, self._told())
        if not self._alike[1]:
            return work()
        short = _over(self.model, few_layers_of(base))
        # They are exchanged without a call in between, so whatever ends the work, an interrupt at any line included, leaves all.
        try:
            self._short = short
            return work()
        finally:
            self._short = None

    def _told(self) -> list[object]:
        """Of each layer what `attend` is told and kernels depend on."""
        ropes = [rope and (rope.rotary_dim, rope.interleaved) for rope in self.ropes]
        scaled = [scale is None for scale in self.query_scales]
        behind = [layer - stored_by for layer, stored_by in enumerate(self.stored_by)]
        return list(zip(self.layers, ropes, self.gains, scaled, self.chunks, behind, strict=True))

    def states(self, token_ids: Tensor, attend: AttendFn) -> Tensor:
        """The states that the layers make of the tokens, behind the last norm: [T, hidden size]. See `forward`."""
        base: Any = self.model.base_model
        states: Tensor = base(**self._given(token_ids, attend)).last_hidden_state[0]
        return states

    def head(self, states: Tensor) -> Tensor:
        """Logits [n, vocab] of `states` [n, hidden size]; gradients reach the states and the head."""
        made = _Made(last_hidden_state=states[None])
        behind = _over(self.model, _answering(self.model.base_model, lambda *_, **__: made))
        nothing = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
        logits: Tensor = behind(input_ids=nothing, use_cache=False).logits[0]
        return logits

    def _given(
        self, token_ids: Tensor, attend: AttendFn, states: StateCall | None = None
    ) -> dict[str, Any]:
        return {
            "input_ids": token_ids[None],
            "position_ids": _nowhere(token_ids.device).expand(1, len(token_ids)),
            "use_cache": False,
            "manyhands_attend": _Hook(attend, self.gains, self.query_scales, self.chunks, states),
        }

    def forward_in_parts(
        self,
        token_ids: Tensor,
        keeps: Sequence[Tensor],
        attend: AttendFn,
        states: StateCall | None = None,
    ) -> Iterator[Tensor]:
        """`forward` for several `keeps`: logits [len(keep), vocab] of one after the other.

        The layers run once. The logits of a long prompt are many times as large as the rest of its pass,
        so only one part of them stands in memory at a time; let go of it before the next.
        """
        base = self.model.base_model
        behind = _over(self.model, _answering(base, _Once(base)))
        given = self._given(token_ids, attend, states)
        for keep in keeps:
            logits = _logits(behind, given, keep)
            yield logits
            del logits


def is_in_use(model: nn.Module) -> bool:
    """Whether an adapter has this network, and with it an engine, so that changes of its weights would be noticed."""
    if not _USERS.get(model):
        return False
    gc.collect()  # engines that nobody has any more stand in cycles
    return bool(_USERS[model])


@functools.cache
def _nowhere(device: torch.device) -> Tensor:
    """Position 0 [1], made once: at it a network's own rotation is none, since keys are rotated where they are stored."""
    with torch.inference_mode(False):
        return torch.zeros(1, dtype=torch.long, device=device)


def _logits(model: Any, given: dict[str, Any], keep: Tensor | None) -> Tensor:
    """Logits [len(keep), vocab] of what a network is given."""
    logits: Tensor = model(**given, logits_to_keep=0 if keep is None else keep).logits[0]
    return logits


def _over(model: Any, base: nn.Module) -> Any:
    """The network over other layers: a shallow copy. Another engine that has the network may run it meanwhile, in another thread.

    The family's own code does all that comes behind the layers: a head, a scale, a cap.
    """
    own = model.base_model
    assert own is not model, "a causal language model has its layers in a part of their own"
    over = copy.copy(model)
    vars(over)["_modules"] = {
        name: base if part is own else part for name, part in model._modules.items()
    }
    return over


def _answering(base: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """The layers of a network with another `forward`: a shallow copy."""
    answering = copy.copy(base)
    vars(answering)["forward"] = forward
    return answering


def experts_of_a_token(config: Any) -> int | None:
    """How many of a layer's experts a token goes through; None where there are none."""
    found = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)
    return int(found) if found else None


def weight_bytes(adapter: ModelAdapter) -> int:
    """Bytes of weights that one pass reads at least.

    A table of embeddings is only looked up, unless the output layer shares it. Of a stack of experts (what has three
    dimensions or more, packed or not, the first of them experts) a token reads its own few; in transformers' code of Llama 4 it goes through all.
    """
    model: Any = adapter.model
    head = getattr(model.get_output_embeddings(), "weight", None)
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    looked_up = {table.data_ptr() for table in tables if table is not head}
    config = adapter.config
    experts = experts_of_a_token(config)
    if config.model_type == "llama4_text":
        experts = None
    largest: dict[int, float] = {}  # two names for one piece of memory count once
    for module in model.modules():
        num_experts = getattr(module, "num_experts", None)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.data_ptr() in looked_up:
                continue
            size = float(tensor.numel() * tensor.element_size())
            if experts and tensor.dim() >= 3 and tensor.shape[0] == num_experts:
                size *= min(1.0, experts / tensor.shape[0])
            largest[tensor.data_ptr()] = max(size, largest.get(tensor.data_ptr(), 0.0))
    return round(sum(largest.values())) + laid_out_bytes(model)


def _layers(config: Any) -> tuple[LayerShape, ...]:
    """The heads of every layer. Gemma 4's layers that see all have others than those with a window."""
    by_layer = getattr(config, "per_layer_config", None)
    return tuple(
        _shape(config if by_layer is None else by_layer[layer])
        for layer in range(config.num_hidden_layers)
    )


def _shape(config: Any) -> LayerShape:
    if is_latent(config):
        return latent_shape(config)
    num_heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    return LayerShape(
        num_heads=num_heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=head_dim,
        value_dim=getattr(config, "v_head_dim", None) or head_dim,
    )


def _take_over(model: PreTrainedModel) -> None:
    # Registered when the first adapter is made, not on import; registering again changes nothing.
    # No mask function goes with it: that is what keeps transformers from building a mask.
    AttentionInterface.register(_NAME, _attention)
    name_base(model)
    _ask_for_logits_alone(model.config)
    model.set_attn_implementation(_NAME)
    if model.config._attn_implementation != _NAME:
        raise UnsupportedModel(
            f"model type {model.config.model_type!r} does not let its attention be replaced "
            "(its code does not use transformers' AttentionInterface)",
            hint=f"supported: {supported()}",
        )
    if is_hybrid(model.config):
        take_over(model)
    if model.config.model_type == "llama4_text":
        _take_over_llama4(model)
    if is_latent(model.config) and absorb(model) != model.config.num_hidden_layers:
        raise UnsupportedModel(
            f"model type {model.config.model_type!r} has latent attention (MLA), and its code does not expand "
            "latents in one method of each layer's attention, where they could be taken as they are",
            hint=f"supported: {supported()}",
        )
    # Experts run as grouped matrix products, which in bfloat16 never wait for the device. In float64
    # there are none, and the loop over experts that waits is the only way; float64 is for tests.
    if model.dtype == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")


def _ask_for_logits_alone(config: Any) -> None:
    """Have a network give nothing besides: what a checkpoint's configuration asks for would be made in every pass, and kept.

    Some were saved in the midst of a training, with the scores of routers, or of a study, with the states of all layers.
    """
    for more in ("output_hidden_states", "output_attentions", "output_router_logits"):
        if getattr(config, more, False):
            setattr(config, more, False)
    if not getattr(config, "return_dict", True):
        config.return_dict = True


def _take_over_llama4(model: Any) -> None:
    """Its layers scale queries by their place among the fed tokens, whatever positions are given: ours do so instead."""
    for layer in model.base_model.layers:
        layer.self_attn.attn_temperature_tuning = False


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    manyhands_attend: _Hook | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """The function that every layer calls: q [1, H, T, D], k and v [1, G, T, D] -> [1, T, H, Dv], no weights.

    A layer with latent attention hands on latents, see `model/latent.py`.
    """
    if manyhands_attend is None or attention_mask is not None:
        raise UnsupportedModel(
            "this architecture's attention code does not hand on what the engine gives it, or builds "
            f"its own mask, so it cannot be used here ({type(module).__name__} was called without its "
            "hook, or with a mask, which also happens when a model is called directly after an adapter "
            "took it over)",
            hint=f"supported: {supported()}; a model that was taken over is called through "
            "ModelAdapter.forward",
        )
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # nn.Module types attributes as tensors
    gain = manyhands_attend.gains[layer]
    absorbed = Expansion(module, gain) if is_absorbed(module) else None
    call = LayerCall(
        layer=layer,
        scaling=scaling if absorbed else scaling * gain,
        window=sliding_window,
        chunk=manyhands_attend.chunks[layer],
        softcap=softcap,
        sinks=s_aux,
        query_scale=manyhands_attend.query_scales[layer],
    )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    norms: HeadNorms | None = getattr(module, "head_norms", None)  # see `model/products.py`
    if norms is not None and manyhands_attend.takes_norms(layer):
        call = replace(call, norms=norms.left)
    elif norms is not None:
        q, k = norms(q, k)
    if absorbed is None:
        out = manyhands_attend.attend(q, k, v, call)
    elif manyhands_attend.takes_forms:
        out = manyhands_attend.attend(q, k, v, replace(call, forms=absorbed))
    else:
        out = absorbed.values(manyhands_attend.attend(absorbed.queries(q), k, v, call))
    return out.contiguous()[None], None
