"""Fewer launches per layer: parts of a loaded network replaced in place, for inference only.

    products   q, k and v (and gate and up) are one product; one weight takes the place of the parts
    norms      one kernel each; those of the heads of q and k together, with the storing of keys where kernels attend
    skinny     products of few tokens are made by a kernel that only wants to read the weight fast
    experts    so are those with the experts that were chosen for a few tokens, and the choice itself (`experts.py`)
    host       on a CPU the weights of linear layers are laid out for a library that does (`host_linear.py`)
    joins      the residual sum is made together with the norms before and behind it, and where ranks meet, with
               the sum of their parts (`parallel/layers.py::Summed`); a product in front of it may come in parts
               (`kernels/ring.py`)
    gates      the activation and its product with the other half are one kernel
    rotation   every token runs at position 0, where the network's own rotation only costs launches;
               YaRN's factor, which came with it, enters the scaling of the scores

What can be replaced is found by structure: submodules by their names, norms and activations by what
they compute. Then it is tried. A tiny random network of the same architecture runs with and without
the replacements, and if its logits disagree, only those that hold by construction are made. Values
stay equal up to the rounding of a product's different shape.

A network that was changed can no longer be saved or trained: it is not the network of the checkpoint
any more. Whoever trains (replay) loads without fused modules.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from manyhands.errors import InvalidRequest, counted
from manyhands.model import kernels
from manyhands.model.adapter import ModelAdapter
from manyhands.model.experts import are_fused, fuse_experts, hand_over, let_sums_add_experts
from manyhands.model.host_linear import HostLinear, lay_out_linears
from manyhands.model.layers import (
    GatedMLP,
    Norm,
    NoRotation,
    Part,
    join,
    keep,
    keep_one,
    norm_form,
)
from manyhands.model.parallel.layers import Summed
from manyhands.model.products import fuse_mlps, join_projections, join_qkv, shared_weights
from manyhands.model.quantised.w4a16 import Int4Linear
from manyhands.model.quiet import quiet
from manyhands.model.recurrent import StateCall
from manyhands.model.ropes import attention_factors, rotary_module
from manyhands.model.saving import refuse_to_save
from manyhands.model.seeded import seeded
from manyhands.model.self_test import BREAKS, deviation, exact_attention, tiny_network, tiny_tokens
from manyhands.model.settings import Fuse
from manyhands.model.skinny import SkinnyLinear, fuse_linears

_OUTPUT = "o_proj"  # of attention
_MIXERS = "self_attn", "linear_attn"
_ROTATE = "apply_rotary_pos_emb"  # the name of the rotation in every family
_RENAMING = "transformers.utils.deprecation"
# Of the twin's logits, in units of their spread: two float32 evaluations differ by 1e-6 to 1e-5.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class FuseReport:
    """How many parts of the network were replaced, and what was left and why."""

    products: int = 0
    norms: int = 0
    joins: int = 0
    gates: int = 0
    skinny: int = 0
    experts: int = 0
    routers: int = 0
    halves: int = 0
    blocks: int = 0
    rotation: bool = False
    kernels: str = "none"  # "triton", or "torch" where it is missing
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kernels == "none":
            return "no fused modules: " + "; ".join(self.left)
        parts = [
            f"{self.products} joined products",
            f"{self.norms} norms",
            f"{self.joins} joined sums",
            f"{self.gates} gates",
        ]
        parts += [f"{self.skinny} products for few tokens"] * (self.skinny > 0)
        parts += [f"{self.experts} stacks of experts"] * (self.experts > 0)
        parts += [f"{self.routers} routers"] * (self.routers > 0)
        parts += [f"{counted(self.halves, 'weight')} laid out in float16"] * (self.halves > 0)
        parts += [f"{counted(self.blocks, 'weight')} laid out in float32"] * (self.blocks > 0)
        made = ", ".join(parts + ["rotation bypassed"] * self.rotation) + f" ({self.kernels})"
        return "; ".join((made, *self.left))


class _Roles(NamedTuple):
    """The norms around a layer's two blocks, by the names of the submodules; "" is none."""

    before_attention: str
    after_attention: str
    before_mlp: str
    after_mlp: str


# Which names mean which roles: nothing else distinguishes a layer of Llama's kind from OLMo's.
_LAYERS = {
    frozenset(roles) - {""}: roles
    for roles in (
        _Roles("input_layernorm", "", "post_attention_layernorm", ""),
        _Roles("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
        _Roles(
            *("input_layernorm", "post_attention_layernorm"),
            *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
        ),
        _Roles(
            *("input_layernorm", "post_self_attn_layernorm"),
            *("post_attention_layernorm", "post_mlp_layernorm"),
        ),
    )
}


def fuse_modules(adapter: ModelAdapter, fuse: str = "auto") -> FuseReport:
    """Make the replacements in the network of `adapter`, once; `auto` makes them on CUDA devices and on CPUs.

    Nothing in the forward pass waits for the device afterwards that did not before. Gradients are
    switched off for all weights.
    """
    check_fuse(fuse)
    if fuse == "off":
        return FuseReport(left=("not wanted",))
    if fuse == "auto" and adapter.device.type not in ("cuda", "cpu"):
        return FuseReport(left=(f"on the device {adapter.device} they save nothing",))
    if is_fused(adapter.model):
        return FuseReport(left=("the network was fused before",))
    hands_over = _can_wait(adapter) and _hands_over(adapter)
    report = _replace(adapter, sure=_twin_agrees(adapter), hands_over=hands_over)
    laid_out = lay_out_linears(adapter.model)
    skinny = fuse_linears(adapter.model)
    experts, routers = fuse_experts(adapter.model)
    _let_sums_add_parts(adapter.model, hands_over=hands_over)
    joined = [layer for layer in _layers_of(adapter) if _is_joined(layer)]
    if experts and joined and _experts_hand_over(adapter):
        let_sums_add_experts(joined)
    report = replace(report, **laid_out._asdict(), skinny=skinny)
    return replace(report, experts=experts, routers=routers)


def check_fuse(fuse: str) -> None:
    """Raise `InvalidRequest` for a word that is not one of `Fuse`."""
    if fuse not in get_args(Fuse):
        raise InvalidRequest(f"fuse is {fuse!r}", hint="choose auto, on or off")


def is_fused(model: nn.Module) -> bool:
    """Whether parts of this network have been replaced."""
    return any(
        isinstance(module, Norm | Part | GatedMLP | SkinnyLinear | HostLinear) or are_fused(module)
        for module in model.modules()
    )


def _twin_agrees(adapter: ModelAdapter) -> bool:
    """Whether every replacement leaves the logits of a tiny network of this architecture alone.

    Asked once for each architecture: the same modules with the same code under the same configuration.
    """
    asked = _architecture(adapter)
    if asked not in _AGREED:
        _AGREED[asked] = _try_twin(adapter)
    return _AGREED[asked]


_AGREED: dict[Hashable, bool] = {}


def _architecture(adapter: ModelAdapter) -> Hashable:
    """All that the twin is made of: the configuration, the family, the code of modules and of their rotation."""
    kinds = {type(module) for module in adapter.model.modules()}
    files = {sys.modules.get(kind.__module__) for kind in kinds}
    code = {(kind, kind.forward) for kind in kinds} | {
        (f, getattr(f, _ROTATE, None)) for f in files
    }
    return adapter.config.to_json_string(use_diff=False), adapter.family, frozenset(code)


def _try_twin(adapter: ModelAdapter) -> bool:
    try:
        with quiet(), seeded(0), torch.no_grad():
            twin = ModelAdapter(tiny_network(adapter.config), family=adapter.family)
            logits = _forward_of(twin)
            expected = logits()
            _replace(twin, sure=True)
            return deviation(logits(), expected) < _TOLERANCE
    except BREAKS:
        return False


def _forward_of(twin: ModelAdapter) -> Callable[[], Tensor]:
    """Gives a twin's logits behind a few random tokens, the same at every call: each begins the text anew."""
    tokens, attend = tiny_tokens(), exact_attention(twin.ropes)
    states = StateCall.of_one_text(twin.model, len(tokens)) if twin.keeps_states else None
    return lambda: twin.forward(tokens, None, attend, states)


def _can_wait(adapter: ModelAdapter) -> bool:
    """Whether there are sums that may come later: over ranks, or of products in parts."""
    has_ranks = any(isinstance(module, Summed) for module in adapter.model.modules())
    return has_ranks or adapter.device.type == "cuda"


def _hands_over(adapter: ModelAdapter) -> bool:
    """Whether attention gives what its output layer gives, untouched: a sum over ranks, or of parts, can come later then.

    Found with a tiny network of this architecture. False where that layer is not known.
    """
    layers: Any = getattr(adapter.model.base_model, "layers", ())
    names = {_output_of(getattr(layer, "self_attn", None)) for layer in layers}
    if len(names) != 1 or "" in names:
        return False
    (name,) = names
    seen: list[bool] = []
    given: list[Any] = []
    try:
        with quiet(), seeded(0), torch.no_grad():
            model: Any = tiny_network(adapter.config)
            for layer in model.base_model.layers:
                output = layer.self_attn.get_submodule(name)
                output.register_forward_hook(lambda *call: given.append(call[-1]))
                layer.self_attn.register_forward_hook(
                    lambda *call: seen.append(call[-1][0] is given[-1])
                )
            _forward_of(ModelAdapter(model, family=adapter.family))()
    except BREAKS:
        return False
    return bool(seen) and all(seen)


def _output_of(attention: nn.Module | None) -> str:
    """The name of attention's output layer: the one in which ranks meet, or as most families call it; "" if there is none."""
    found = _sum_in(attention)[0]
    return found or _OUTPUT * isinstance(getattr(attention, _OUTPUT, None), nn.Linear)


def _sum_in(block: nn.Module | None) -> tuple[str, Summed | None]:
    """The one layer of a block in which ranks meet, and its name; "" and None if there are none or several."""
    named = block.named_modules() if block is not None else ()
    found = [(name, module) for name, module in named if isinstance(module, Summed)]
    return found[0] if len(found) == 1 else ("", None)


def _replace(adapter: ModelAdapter, *, sure: bool, hands_over: bool = False) -> FuseReport:
    model: Any = adapter.model
    layers = list(getattr(model.base_model, "layers", ()))
    norms = _fuse_norms(model)
    shared = shared_weights(model)
    has_factors = any(factor != 1.0 for factor in attention_factors(model, adapter.family))
    rotation = sure and _bypass_rotation(adapter, layers)
    # Norms of heads come behind the network's own rotation then, and would take its factor out again.
    puts_off_norms = sure and (rotation or not has_factors)
    products = sum(join_qkv(layer, shared, puts_off_norms=puts_off_norms) for layer in layers)
    products += sum(join_projections(layer, shared) for layer in layers)
    gates = joins = 0
    left = []
    if sure:
        joined, gates = fuse_mlps(layers, shared)
        products += joined
        joins = _join_sums(layers, model.base_model, hands_over=hands_over)
        left += (
            []
            if rotation
            else ["its rotation stays: YaRN on a part of the head, latents, or own code"]
        )
    else:
        left.append(
            f"a twin of {adapter.config.model_type!r} disagreed: only safe fused modules were made"
        )
    model.requires_grad_(False)
    refuse_to_save(model, is_fused=True)
    nothing = torch.empty(0, device=adapter.device, dtype=adapter.dtype)
    tool = "triton" if kernels.usable(nothing) else "torch"
    return FuseReport(
        products, norms, joins, gates, rotation=rotation, kernels=tool, left=tuple(left)
    )


# -- norms and sums --------------------------------------------------------------------------------


def _fuse_norms(model: nn.Module) -> int:
    count = 0
    for holder in list(model.modules()):
        for name, child in list(holder.named_children()):
            found = norm_form(child)
            weight: Any = getattr(child, "weight", None)
            if found is None or not weight.is_contiguous():
                continue
            if weight.dtype == getattr(model, "dtype", weight.dtype):
                setattr(holder, name, Norm(weight, *found))
                count += 1
    return count


def _join_sums(layers: list[Any], base: Any, *, hands_over: bool) -> int:
    """Let every layer make its residual sums together with the norms beside them.

    `hands_over`: attention gives what its output layer gives, so its sum over ranks can be made with them.
    """
    roles = [_roles(layer) for layer in layers]
    last = getattr(base, "norm", None)
    count = 0
    for index, (layer, mine) in enumerate(zip(layers, roles, strict=True)):
        if mine is None:
            continue
        mixer = _mixer_of(layer)
        for norm, block in ((mine[0], mixer), (mine[2], layer.mlp)):
            if norm is not None:
                norm.is_early = any(isinstance(each, Int4Linear) for each in block.modules())
        theirs = roles[index + 1] if index + 1 < len(layers) else (last,)
        following = theirs[0] if theirs else None
        following = following if isinstance(following, Norm) else None
        summed = (
            _sum_in(mixer)[1] if hands_over else None,
            _sum_in(layer.mlp)[1] if isinstance(layer.mlp, GatedMLP) else None,
        )
        for each in summed:
            if each is not None:
                each.is_put_off = True
        layer.forward = functools.partial(_layer, mixer, layer.mlp, mine, following, summed)
        count += 2
    return count


def _roles(layer: Any) -> tuple[Norm | None, ...] | None:
    """The layer's norms in the order of `_Roles`, or None if it is not a layer of a known kind.

    A layer with a number of its own (Gemma 4's scale of what it gives) does more than two blocks and norms.
    """
    if [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
        return None
    children = dict(layer.named_children())
    blocks = {"mlp", *(name for name in _MIXERS if name in children)}
    norms = {name for name, child in children.items() if isinstance(child, Norm)}
    idle = {name for name, child in children.items() if isinstance(child, nn.Dropout)}
    names = _LAYERS.get(frozenset(norms))
    if names is None or len(blocks) != 2 or set(children) != norms | idle | blocks:
        return None
    return tuple(children[name] if name else None for name in names)


def _mixer_of(layer: Any) -> nn.Module:
    """The block of a layer in which tokens meet: its attention, or what keeps a state in its place."""
    found: nn.Module = next(getattr(layer, name) for name in _MIXERS if hasattr(layer, name))
    return found


def _layer(
    mixer: nn.Module,
    mlp: nn.Module,
    roles: tuple[Norm | None, ...],
    following: Norm | None,
    summed: tuple[Summed | None, Summed | None],
    hidden_states: Tensor,
    **options: Any,
) -> Tensor:
    """A decoder layer: two blocks on the residual stream, and norms at any of four places.

    `summed`: the layers that end the two blocks, if what they give is a part, to be summed over ranks.
    """
    first, second = (join if each is None else each.join for each in summed)
    before_attention, after_attention, before_mlp, after_mlp = roles
    x = hidden_states if before_attention is None else before_attention(hidden_states)
    out = mixer(hidden_states=x, **options)
    out = out[0] if isinstance(out, tuple) else out  # where a state is kept, no weights come second
    total, x = first(hidden_states, out, after_attention, before_mlp)
    out = mlp(x)
    out = out[0] if isinstance(out, tuple) else out  # a router's scores come second
    total, x = second(total, out, after_mlp, following)
    if following is not None:
        following.prepare(total, x)
    return total


def _let_sums_add_parts(model: Any, *, hands_over: bool) -> None:
    """Let the products in front of residual sums come in parts, which the sums add up."""
    for layer in getattr(model.base_model, "layers", ()):
        if not _is_joined(layer):
            continue
        outputs: list[Any] = [layer.mlp.down_proj] if isinstance(layer.mlp, GatedMLP) else []
        outputs += [getattr(_mixer_of(layer), _OUTPUT, None)] if hands_over else []
        for output in outputs:
            if isinstance(output, SkinnyLinear):
                output.gives_parts = True


def _is_joined(layer: Any) -> bool:
    """Whether a layer makes its residual sums together with the norms beside them."""
    made = layer.__dict__.get("forward")
    return isinstance(made, functools.partial) and made.func is _layer


def _layers_of(adapter: ModelAdapter) -> list[Any]:
    model: Any = adapter.model
    return list(getattr(model.base_model, "layers", ()))


def _experts_hand_over(adapter: ModelAdapter) -> bool:
    """Whether blocks give what their experts give, untouched: found with a tiny network of this architecture."""
    try:
        with quiet(), seeded(0), torch.no_grad():
            model = tiny_network(adapter.config)
            return hand_over(model, _forward_of(ModelAdapter(model, family=adapter.family)))
    except BREAKS:
        return False


# -- rotation --------------------------------------------------------------------------------------


def _bypass_rotation(adapter: ModelAdapter, layers: list[Any]) -> bool:
    """Take the network's own rotation out, and let the scaling of the scores keep YaRN's factor.

    The factor belongs to the dims that rotate. Where that is only a part of the head, it cannot move
    into the scaling, and the rotation stays. So it does in latent attention, where some layers rotate by
    a function of another name.
    """
    if any(shape.is_latent for shape in adapter.layers):
        return False
    factors = attention_factors(adapter.model, adapter.family)
    for factor, rope, shape in zip(factors, adapter.ropes, adapter.layers, strict=True):
        if factor != 1.0 and rope is not None and rope.rotary_dim != shape.head_dim:
            return False
    rotating = [layer for layer in layers if not hasattr(layer, "linear_attn")]
    attentions = [getattr(layer, "self_attn", None) for layer in rotating]
    forwards = [_without_rotation(getattr(type(own), "forward", None)) for own in attentions]
    if None in forwards or len(layers) != adapter.num_layers:
        return False
    for layer, forward in zip(rotating, forwards, strict=True):
        layer.self_attn.forward = types.MethodType(forward, layer.self_attn)  # type: ignore[arg-type]  # not None
    rotary = rotary_module(adapter.model)
    for holder, name in _places(adapter.model, rotary):
        setattr(holder, name, NoRotation())
    adapter.gains = tuple(factor**2 for factor in factors)
    return True


@functools.cache
def _without_rotation(forward: Any) -> Callable[..., Any] | None:
    """The same function with `keep` in the place of the rotation; None if it does not call that.

    A copy that only the layers of fused networks have: nobody else's network changes. What renames arguments in front of it (from
    transformers 5.24 on) is left out: layers give them by their new names.
    """
    while getattr(forward, "__globals__", {}).get("__name__") == _RENAMING:
        forward = getattr(forward, "__wrapped__", None)
    if not isinstance(forward, types.FunctionType) or _ROTATE not in forward.__code__.co_names:
        return None
    own = inspect.signature(forward.__globals__[_ROTATE]).parameters
    names = {**forward.__globals__, _ROTATE: keep if "k" in own else keep_one}
    copied = types.FunctionType(
        forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__
    )
    copied.__kwdefaults__ = forward.__kwdefaults__
    return copied


def _places(model: nn.Module, wanted: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Everywhere this module is registered."""
    for holder in list(model.modules()):
        for name, child in list(holder.named_children()):
            if child is wanted:
                yield holder, name
