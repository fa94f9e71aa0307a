"""Linear layers with one input, made one: q, k and v of an attention, what a layer that keeps a state makes of its input, gate and up of an MLP.

A decode step waits for bytes, and one product of three weights side by side reads them with one
launch instead of three. The joined weight takes the place of its parts, layer by layer, so that never
more than one layer is held twice. Weights that several modules share are left alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from manyhands.model.layers import GatedMLP, HeadNorms, Norm, Part, Products, activation_name
from manyhands.model.quantised.linear import Quantised

# How layers that keep a state name what makes their products: of Qwen3.5, queries, keys and values, the gate, b and a; and of Qwen3-Next, in
# which heads of all kinds come in turns, until `ORDERING` has put them in order.
APART = "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"
IN_TURNS = "in_proj_qkvz", "in_proj_ba"
ORDERING = "fix_query_key_value_ordering"
JOINED = "in_proj"  # all of them, in the order of `APART`


def shared_weights(model: nn.Module) -> set[int]:
    """Weights that several modules hold: joining one of them would make a second copy."""
    holders = Counter(
        id(weight)
        for module in model.modules()
        for weight in module._parameters.values()
        if weight is not None
    )
    return {weight for weight, count in holders.items() if count > 1}


def joined_linear(parts: list[Any], shared: set[int] | frozenset[int] = frozenset()) -> Any:
    """One layer that gives what all `parts` give, side by side; None where that cannot be had."""
    kinds = {type(part) for part in parts}
    if len(kinds) != 1:
        return None
    if issubclass(kind := kinds.pop(), Quantised):
        return kind.joined(parts)
    weights = [part.weight for part in parts if kind is nn.Linear]
    alike = {(weight.dtype, weight.device, weight.shape[1]) for weight in weights}
    if len(alike) != 1 or any(id(weight) in shared for weight in weights):
        return None
    one = nn.Linear(1, 1, bias=False, device="meta")
    one.in_features, one.out_features = weights[0].shape[1], sum(w.shape[0] for w in weights)
    one.weight = nn.Parameter(torch.cat([w.detach() for w in weights]), requires_grad=False)
    if any(part.bias is not None for part in parts):
        biases = [
            part.weight.new_zeros(part.out_features) if part.bias is None else part.bias.detach()
            for part in parts
        ]
        one.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return one


def join_qkv(layer: Any, shared: set[int], *, puts_off_norms: bool) -> int:
    """Join the products of q, k and v; the norms of their heads too, which are put off until the layer attends."""
    attention: Any = getattr(layer, "self_attn", None)
    names = ("q_proj", "k_proj", "v_proj")
    parts: list[Any] = [getattr(attention, name, None) for name in names]
    one = None if None in parts else joined_linear(parts, shared)
    if one is None:
        return 0
    attention.qkv_proj = Products(one, [part.out_features for part in parts])
    if puts_off_norms:
        attention.head_norms = _head_norms(attention)
    for index, name in enumerate(names):
        setattr(attention, name, Part(attention.qkv_proj, index))
    return 1


def projections_of(mixer: Any) -> tuple[str, ...] | None:
    """The names of what makes the products of a layer that keeps a state; None if they are others."""
    if all(hasattr(mixer, name) for name in (*IN_TURNS, ORDERING)):
        return IN_TURNS
    return APART if all(hasattr(mixer, name) for name in APART) else None


def join_projections(layer: Any, shared: set[int]) -> int:
    """Join the products of a layer that keeps a state: its queries, keys, values, gates and rates are made of one input."""
    mixer: Any = getattr(layer, "linear_attn", None)
    names = projections_of(mixer)
    if names is None:
        return 0
    parts: list[Any] = [getattr(mixer, name) for name in names]
    if names is IN_TURNS and not all(
        type(part) is nn.Linear and part.bias is None for part in parts
    ):
        return 0  # packed weights have no rows that could change places
    one = joined_linear(parts, shared)
    if one is None:
        return 0
    if names is IN_TURNS:
        _put_in_order(mixer, one.weight)
    joined = Products(one, [part.out_features for part in parts])
    setattr(mixer, JOINED, joined)
    for index, name in enumerate(names):
        setattr(mixer, name, Part(joined, index))
    return 1


@torch.no_grad()
def _put_in_order(mixer: Any, weight: Tensor) -> None:
    """Let the outputs of a joined weight stand kind by kind, and the layer find them there.

    Its own function tells where they are: it is given their numbers.
    """
    sizes = [getattr(mixer, name).out_features for name in IN_TURNS]
    numbers = torch.arange(sum(sizes), device=weight.device)[None, None].split(sizes, dim=-1)
    kinds = getattr(mixer, ORDERING)(*numbers)
    weight.copy_(weight[torch.cat([kind.flatten() for kind in kinds])])
    shapes = [kind.shape[2:] for kind in kinds]

    def split(first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        """The parts that `ORDERING` gives: queries, keys, values and gates [..., heads, dims], b and a [..., heads]."""
        whole = torch.cat((first, second), dim=-1).split(
            [shape.numel() for shape in shapes], dim=-1
        )
        return tuple(part.unflatten(-1, shape) for part, shape in zip(whole, shapes, strict=True))

    setattr(mixer, ORDERING, split)


def _head_norms(attention: Any) -> HeadNorms | None:
    """The norms of q's and k's heads, taken out of the attention; None where there are none."""
    query, key = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    if not isinstance(query, Norm) or not isinstance(key, Norm) or query.form != key.form:
        return None
    if not query.weight.shape == key.weight.shape == (attention.head_dim,):
        return None  # OLMo's norm all heads as one
    attention.q_norm = attention.k_norm = nn.Identity()
    return HeadNorms(query, key)


def fuse_mlps(layers: list[Any], shared: set[int]) -> tuple[int, int]:
    """How many pairs of products were joined, and how many MLPs were replaced."""
    found = [made for layer in layers for made in _fuse_mlps_of(layer, shared)]
    return sum(found), len(found)


def _fuse_mlps_of(layer: nn.Module, shared: set[int]) -> list[int]:
    """The same of one layer; its old modules, which hold the weights apart, go when it returns."""
    found = []
    for holder in list(layer.modules()):
        for name in [name for name, _ in holder.named_children()]:
            products = _fuse_mlp(holder, name, shared)
            if products is not None:
                found.append(products)
    return found


def _fuse_mlp(holder: nn.Module, name: str, shared: set[int]) -> int | None:
    """Replace this child if it is an MLP with a gate: how many pairs of products were joined."""
    mlp: Any = getattr(holder, name)
    children = dict(mlp.named_children())
    act = getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None))
    linears = {child for child, module in children.items() if module is not act}
    if not isinstance(act, nn.Module) or (kind := activation_name(act)) is None:
        return None
    apart = linears == {"gate_proj", "up_proj", "down_proj"}
    if apart:
        both = joined_linear([mlp.gate_proj, mlp.up_proj], shared)
    else:
        both = mlp.gate_up_proj if linears == {"gate_up_proj", "down_proj"} else None
    if both is None:
        return None
    setattr(holder, name, GatedMLP(both, mlp.down_proj, act, kind))
    return int(apart)
