"""Which slice of which weight belongs to which rank.

A rank's part of a network is a network of the same family with fewer heads and a narrower MLP, so its
configuration is the model's with those numbers divided (`part_of`). Built from either configuration on the
meta device, the two networks have weights of the same names, and where a weight differs in its shape it is cut
along that dim. The *plan* says the rest: along outputs (colwise) or inputs (rowwise), and where outputs of
several layers lie side by side. Plans come with the configurations of transformers (`base_model_tp_plan`); our
own stand in `_PLANS` where there is none or one that keeps heads together.

    q, k, v and what lies in their heads    by heads; where there are fewer key/value heads than ranks,
                                            several ranks hold a copy of the same head
    latents                                 whole on every rank; what makes heads of them, by heads
    o, down                                 along inputs: their outputs are summed
    gate, up; experts                       along the inner dim, each expert on every rank
    output layer                            along the vocabulary, in equal pieces, the last ones shorter
    embeddings                              whole on every rank: a table that is looked up costs no time, and a
                                            cut one would cost a sum. An output layer that shares it reads its
                                            own rows of it.
    norms, routers                          whole on every rank

A weight that differs in shape and is in no plan, or the other way round, is an error: a guess would answer
wrongly.

    H  query heads      G  key/value heads      R  ranks      I  inner dim of an MLP
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from manyhands.errors import InvalidRequest, UnsupportedModel
from manyhands.model.dummy import bare_model
from manyhands.model.families import FAMILIES
from manyhands.model.fingerprint import COPIED
from manyhands.model.layers import norm_form
from manyhands.model.parallel.collectives import Collectives
from manyhands.model.parallel.layers import NormOverRanks, OutputLayer, Summed
from manyhands.model.quantised.linear import Quantised
from manyhands.model.quantised.mxfp4 import Mxfp4Stack

_INNER = ("intermediate_size", "moe_intermediate_size", "intermediate_size_mlp")
_OUTPUTS = frozenset({"colwise", "colwise_gather_output", "packed_colwise"})
_INPUTS = frozenset({"rowwise", "rowwise_split_input"})
_SUMMED = frozenset({"moe_tp_experts", *_INPUTS})
_WHOLE = frozenset({"replicated", "replicated_with_grad_allreduce"})

_QKVO = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
}
_NORMS = {  # over all heads, so cut like them
    "layers.*.self_attn.q_norm": "colwise",
    "layers.*.self_attn.k_norm": "colwise",
}
_SHARED = {
    "layers.*.mlp.shared_experts.gate_proj": "colwise",
    "layers.*.mlp.shared_experts.up_proj": "colwise",
    "layers.*.mlp.shared_experts.down_proj": "rowwise",
}
_EXPERTS = {
    "layers.*.mlp.experts.gate_up_proj": "packed_colwise",
    "layers.*.mlp.experts.down_proj": "rowwise",
    "layers.*.mlp.experts": "moe_tp_experts",
}
_MLP = {
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
}
_LATENT = {  # every rank has all latents, and the heads that it makes of them
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.q_b_proj": "colwise",
    "layers.*.self_attn.kv_a_proj_with_mqa": "replicated",
    "layers.*.self_attn.kv_b_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
}
# Cuts that the plans of transformers leave out, in one release of the range of pyproject.toml at least: before 5.21
# the experts of five families.
_PLANS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "minicpm3", "youtu"), _LATENT),
    "glm4_moe_lite": {**_LATENT, **_SHARED},
    "olmo2": _NORMS,
    "olmo3": _NORMS,
    "flex_olmo": {**_QKVO, **_NORMS},
    "minimax_m2": {**_QKVO, **_NORMS},
    "granitemoe": {
        **_QKVO,
        **{name.replace(".mlp.", ".block_sparse_moe."): verb for name, verb in _EXPERTS.items()},
    },
    "phimoe": {**_QKVO, **_EXPERTS},
    "qwen2_moe": _EXPERTS,
    "afmoe": {
        **_QKVO,
        **_SHARED,
        **_MLP,
        **_EXPERTS,
        "layers.*.self_attn.gate_proj": "colwise",
    },
    "exaone_moe": {**_SHARED, **_EXPERTS},
    "solar_open": _SHARED,
    "llama4_text": {  # stacks of experts stand on end: [experts, inputs, outputs]
        name.replace(".mlp.", ".feed_forward."): verb for name, verb in _EXPERTS.items()
    },
    "gpt_oss": {
        **_QKVO,
        "layers.*.self_attn.sinks": "colwise",
        "layers.*.mlp.router": "replicated",
        # Gates and ups alternate, so a part of them lies in one piece.
        "layers.*.mlp.experts.gate_up_proj": "colwise",
        "layers.*.mlp.experts.gate_up_proj_bias": "colwise",
        "layers.*.mlp.experts.down_proj": "rowwise",
        "layers.*.mlp.experts.down_proj_bias": "rowwise",
        "layers.*.mlp.experts": "moe_tp_experts",
    },
}
_OUTPUT_LAYER, _INSIDE = "lm_head", "model."
_TABLE = "embed_tokens"  # 5.17 cuts it where the output layer shares it, later releases in plans of their own
_ALIGNED = 16  # bytes
_OF_KV = re.compile(r"\.self_attn\.[kv]_")


@dataclass(frozen=True)
class Cut:
    """The slice of one weight: pieces along one dim, side by side, and nothing where it is added once."""

    dim: int
    pieces: tuple[tuple[int, int], ...]  # start, stop
    is_zero: bool = False  # a bias of a summed layer, on other ranks than 0

    @property
    def length(self) -> int:
        """Of the dim that is cut."""
        return sum(stop - start for start, stop in self.pieces)

    def of(self, whole: Any) -> Tensor:
        """The slice of a tensor, or of a file's tensor that is read only where it is asked for."""
        before = (slice(None),) * self.dim
        parts = [whole[(*before, slice(start, stop))] for start, stop in self.pieces]
        part: Tensor = parts[0] if len(parts) == 1 else torch.cat(parts, dim=self.dim)
        return torch.zeros_like(part) if self.is_zero else part


class Cutting:
    """One rank's part of one network. `config` is the configuration of the part."""

    def __init__(self, config: Any, collectives: Collectives) -> None:
        """Raises InvalidRequest where the ranks cannot share alike, UnsupportedModel without a plan."""
        self.whole = config
        self.collectives = collectives
        self.plan = read_plan(config)
        self.config = part_of(config, collectives.size)
        whole, part = (_shapes(each) for each in (config, self.config))
        self.vocabulary = _piece(config.vocab_size, collectives)
        self.whole_shapes: dict[str, tuple[int, ...]] = whole
        self.cuts: dict[str, Cut] = {}
        for name, shape in whole.items():
            cut = self._cut(name, shape, part[name])
            if cut is not None:
                self.cuts[name] = cut

    # -- building the part -------------------------------------------------------------------------

    def shorten(self, model: Any) -> None:
        """Give a network on the meta device, made of `config`, its own rows of the output layer."""
        head = model.get_output_embeddings()
        if head.weight is not model.get_input_embeddings().weight:
            start, stop = self.vocabulary
            bias = head.bias is not None
            with torch.device("meta"):
                own = nn.Linear(head.in_features, stop - start, bias=bias, dtype=head.weight.dtype)
            setattr(model, _OUTPUT_LAYER, own)

    def join(self, model: Any) -> None:
        """Put the layers where ranks meet into a network that has its weights."""
        head, table = getattr(model, _OUTPUT_LAYER), model.get_input_embeddings().weight
        if type(head) is nn.Linear and head.weight is table:  # one of four bits has no weight
            start, stop = self.vocabulary
            own = nn.Linear(1, 1, bias=False, device="meta")
            own.in_features, own.out_features = table.shape[1], stop - start
            own.weight = nn.Parameter(table.detach()[start:stop], requires_grad=False)
            setattr(own.weight, COPIED, True)
            head = own
        for name, parameter in model.named_parameters():
            weights = {name, f"{name.removesuffix('.bias')}.weight"}  # see `_bias_cut`
            is_copied = self.cuts.keys().isdisjoint(weights) and self.collectives.rank > 0
            setattr(parameter, COPIED, is_copied)
        for (
            name,
            buffer,
        ) in model.named_buffers():  # a router's bias; the numbers of a quantised layer
            weights = {f"{name.rpartition('.')[0]}.weight", Mxfp4Stack.weight_of(name)}
            is_copied = self.cuts.keys().isdisjoint(weights) and self.collectives.rank > 0
            setattr(buffer, COPIED, is_copied)
        setattr(model, _OUTPUT_LAYER, OutputLayer(head, self.whole.vocab_size, self.collectives))
        for name, module in list(model.named_modules()):
            verb = self.plan.get(_pattern(name.removeprefix(_INSIDE)))
            if verb in _SUMMED:
                model.set_submodule(name, Summed(module, self.collectives))
            elif verb in _OUTPUTS and "Norm" in type(module).__name__:
                model.set_submodule(name, self._norm(module))
        model.requires_grad_(False)
        stacks = [p for p in model.parameters() if p.dim() == 3]
        if any(stride * p.element_size() % _ALIGNED for p in stacks for stride in p.stride()[:2]):
            # Grouped products want aligned rows; the loop over experts takes any.
            model.set_experts_implementation("eager")

    def _norm(self, module: Any) -> NormOverRanks:
        found = norm_form(module)
        if found is None:
            raise _no_plan(self.whole, f"{type(module).__name__} over all heads is no RMS norm")
        return NormOverRanks(module.weight, *found, self.collectives)

    # -- slices of weights -------------------------------------------------------------------------

    def slice_of(self, name: str, whole: Any) -> Tensor:
        """The rank's slice of a whole weight; `whole` may be a tensor of a file, read only in part."""
        cut = self.cuts.get(name)
        part: Tensor = whole[:] if cut is None else cut.of(whole)
        return part

    def layer_of(self, name: str, layer: Any) -> Any:
        """The rank's part of a whole linear layer, ordinary or quantised; `name` is the layer's."""
        cut = self.cuts.get(f"{name}.weight")
        if cut is None:
            return layer
        bias = None
        if layer.bias is not None:
            bias = self._bias_cut(name, cut).of(layer.bias.detach())
        if isinstance(layer, Quantised):
            return layer.part(cut.dim, cut.pieces, bias)
        weight = cut.of(layer.weight.detach()).clone()
        own = nn.Linear(1, 1, bias=False, device="meta")
        own.out_features, own.in_features = weight.shape
        own.weight = nn.Parameter(weight, requires_grad=False)
        own_bias = None if bias is None else nn.Parameter(bias.clone(), requires_grad=False)
        own.register_parameter("bias", own_bias)
        return own

    def _bias_cut(self, name: str, cut: Cut) -> Cut:
        """The slice of a layer's bias; a checkpoint may have one where the configuration has none, and then the weight says it."""
        if cut.dim == 0:
            return self.cuts.get(f"{name}.bias", cut)
        outputs = self.whole_shapes[f"{name}.weight"][0]
        once = Cut(0, ((0, outputs),), self.collectives.rank > 0)
        return self.cuts.get(f"{name}.bias", once)

    def _cut(self, name: str, whole: tuple[int, ...], part: tuple[int, ...]) -> Cut | None:
        bare = name.removeprefix(_INSIDE)
        layer, _, own = bare.rpartition(".")
        if layer == _OUTPUT_LAYER:
            return Cut(0, (self.vocabulary,))
        verb = self.plan.get(_pattern(bare)) or self.plan.get(_pattern(layer))
        differing = [
            dim for dim, sizes in enumerate(zip(whole, part, strict=True)) if len({*sizes}) > 1
        ]
        if not differing:
            is_once = verb in _INPUTS and ("bias" in own or len(whole) == 1)
            is_copied = _OF_KV.search(bare) and _heads(self.whole)[1] == 1
            if verb in _OUTPUTS and self.collectives.size > 1 and not is_copied:
                raise _no_plan(self.whole, f"its plan cuts {bare}, its configuration does not")
            return Cut(0, ((0, whole[0]),), self.collectives.rank > 0) if is_once else None
        if len(differing) > 1 or verb not in _OUTPUTS | _INPUTS:
            raise _no_plan(self.whole, f"no plan says how {bare} {list(whole)} is cut")
        (dim,) = differing
        if len(whole) == 2 and own == "weight" and dim != (0 if verb in _OUTPUTS else 1):
            raise _no_plan(self.whole, f"its plan cuts {bare} along another dim than its sizes")
        cut = Cut(dim, self._pieces(bare, verb, whole[dim]))
        if cut.length != part[dim]:
            raise _no_plan(self.whole, f"{bare} {list(whole)} does not fall into equal parts")
        return cut

    def _pieces(self, name: str, verb: str, length: int) -> tuple[tuple[int, int], ...]:
        """Which indices of a dim are this rank's; layers that lie side by side each give a piece."""
        heads, kv_heads = _heads(self.whole)
        sizes: tuple[int, ...]
        numbers: tuple[int, ...]
        if ".qkv_proj" in name:
            size = length // (heads + 2 * kv_heads)
            sizes = (heads * size, kv_heads * size, kv_heads * size)
            numbers = (heads, kv_heads, kv_heads)
        elif verb == "packed_colwise" or ("gate_up_proj" in name and verb != "colwise"):
            sizes, numbers = (length // 2, length // 2), (0, 0)
        else:
            number = heads if ".self_attn." in name else 0
            sizes, numbers = (length,), (kv_heads if _OF_KV.search(name) else number,)
        pieces, start = [], 0
        for size, number in zip(sizes, numbers, strict=True):
            first, stop = self._share(size, number)
            pieces.append((start + first, start + stop))
            start += size
        return tuple(pieces)

    def _share(self, length: int, number: int) -> tuple[int, int]:
        """The rank's share of a dim of `number` heads (0: of none)."""
        rank, size = self.collectives.rank, self.collectives.size
        if number and number < size:  # several ranks hold the same head
            one, head = length // number, rank * number // size
            return head * one, (head + 1) * one
        one = length // size
        return rank * one, (rank + 1) * one


def part_of(config: Any, size: int) -> Any:
    """The configuration of one part of `size` equal ones. InvalidRequest where numbers do not divide."""
    heads, kv_heads = _heads(config)
    part = copy.deepcopy(config)
    # Several families work it out of numbers that are other ones in a part.
    part.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    shares = [("query heads", heads)]
    shares += [(name, getattr(config, name)) for name in _INNER if getattr(config, name, None)]
    for what, number in shares:
        if number % size:
            raise _unequal(config, size, f"{number} {what.replace('_', ' ')}")
    if kv_heads % size and size % kv_heads:
        raise _unequal(config, size, f"{kv_heads} key/value heads")
    part.num_attention_heads = heads // size
    part.num_key_value_heads = max(1, kv_heads // size)
    for name in _INNER:
        if getattr(config, name, None):
            setattr(part, name, getattr(config, name) // size)
    return part


# Families whose parts cannot be had from a divided configuration: the output projection of helium and the norms of
# q and k of olmoe have the width of the residual stream, and not that of the heads; Gemma 4's heads differ by layer. A
# checkpoint of axk1 has some norms under other names than the network.
WHOLE = frozenset({"axk1", "gemma4_text", "gemma4_unified_text", "helium", "mistral4", "olmoe"})


def read_plan(config: Any) -> dict[str, str]:
    """The verb for every weight or layer that is cut, by its name with * for numbers."""
    if config.model_type not in FAMILIES or config.model_type in WHOLE:
        tried = ", ".join(sorted(FAMILIES.keys() - WHOLE))
        raise UnsupportedModel(
            f"model type {config.model_type!r} cannot be cut over several ranks",
            hint=f"load it with ranks=1; these can be: {tried}",
        )
    plan = {
        **(getattr(config, "base_model_tp_plan", None) or {}),
        **_PLANS.get(config.model_type, {}),
    }
    plan.pop(_TABLE, None)  # whole on every rank, whatever a plan says of it
    unknown = sorted({*plan.values()} - _OUTPUTS - _SUMMED - _WHOLE)
    if unknown or not plan:
        raise _no_plan(config, f"its plan has {', '.join(unknown) or 'no entries'}")
    return plan


def _shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Every weight's shape by its name, tied ones once for each name."""
    model = bare_model(config, torch.float32)
    return {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}


def _heads(config: Any) -> tuple[int, int]:
    heads: int = config.num_attention_heads
    return heads, getattr(config, "num_key_value_heads", None) or heads


def _piece(length: int, collectives: Collectives) -> tuple[int, int]:
    """Equal pieces, rounded up; the last ones may be shorter."""
    one = -(-length // collectives.size)
    start = min(length, collectives.rank * one)
    return start, min(length, start + one)


def _pattern(name: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", name)


def _no_plan(config: Any, reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"model type {config.model_type!r} cannot be cut over several ranks: {reason}",
        hint="load it with ranks=1",
    )


def _unequal(config: Any, size: int, what: str) -> InvalidRequest:
    heads, _ = _heads(config)
    fitting = [str(n) for n in range(1, heads + 1) if _fits(config, n)]
    return InvalidRequest(
        f"ranks is {size}, and {size} ranks cannot share {what} alike",
        hint=f"with this model, ranks is one of {', '.join(fitting)}",
    )


def _fits(config: Any, size: int) -> bool:
    heads, kv_heads = _heads(config)
    numbers = (heads, *(getattr(config, name, None) or 0 for name in _INNER))
    return all(number % size == 0 for number in numbers) and (
        kv_heads % size == 0 or size % kv_heads == 0
    )
