"""Stacks of experts and their routers, with a faster way.

The modelling code sorts the tokens, gathers them, multiplies by a grouped product and puts everything back: some thirty launches a
layer, which is most of the time of a pass of few tokens, and half of that of a prompt. On a CUDA device, in bfloat16 or
float16, our own kernels do it in four to seven: those of few tokens read the experts that were chosen (`kernels/experts.py`), those of
prompts use each weight often (`kernels/experts_many.py`, from Hopper on). The weights stay where they are, and all else goes the way it always went.

    stack     the weights of all experts of a layer
    router    gives each token its experts, and a share of what each of them gives
    block     a router and its stack, and perhaps an expert that all tokens share: the residual sum behind it adds up what they give

Stacks in mxfp4 have kernels of their own (`kernels/mxfp4.py`). All others, and routers and blocks, are recognised by what they
compute, on a small probe of the same class; of routers `routing.py` says how. A token may have an expert twice by a router that is
not known: beside such a one a stack's kernels are given other experts and the same sums (`kernels/experts.py::distinct`). What computes something else (experts with a norm of
their own, routers that are networks) is left alone. Logits that the modelling code makes in float32 are made so here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.model import kernels
from manyhands.model.layers import GatedMLP, activation_name
from manyhands.model.quantised.mxfp4 import Mxfp4Stack
from manyhands.model.routing import ARRIVED, GIVEN, Routing, routing_of
from manyhands.model.self_test import BREAKS
from manyhands.model.skinny import DTYPES, SMALLEST_TILE, SkinnyLinear

_PROBE = 64  # inputs of a probe
_WEIGHTS = ("gate_up_proj", "down_proj")
_CLAMP = ("alpha", "limit")  # as gpt-oss calls them
_SCALES = (0.25, 1.0, 4.0, 64.0, 4096.0)  # of a gate's probe, so that limits are met


def fuse_experts(model: nn.Module) -> tuple[int, int]:
    """Give stacks of experts and routers that are known their faster way; how many of both."""
    stacks = routers = 0
    are_distinct = set[Any]()  # a router that is known chooses for them
    for block in model.modules():
        children = list(block.children())
        its = [each for each in children if gate_of(each) is not None]
        if its and sum(routing_of(each) is not None for each in children) == 1:
            are_distinct.update(its)
    for module in model.modules():
        own: Any = module
        if "forward" in vars(own):
            continue  # it was given another, and what that computes is not known
        if (gate := gate_of(own)) is not None:
            is_distinct = own in are_distinct
            own.forward = functools.partial(_experts, own, own.forward, gate, is_distinct)
            stacks += 1
        elif (routing := routing_of(own)) is not None:
            weight = routing.weight_of(own)
            tiles = len(weight) // SMALLEST_TILE + 1
            zeros = torch.zeros(tiles, dtype=torch.int32, device=weight.device)
            own.register_buffer(ARRIVED, zeros, persistent=False)
            own.forward = functools.partial(_route, own, own.forward, routing)
            routers += 1
    return stacks, routers


def let_sums_add_experts(layers: Iterable[Any]) -> None:
    """Let blocks whose router and stack have their faster way give what each expert gives to the sum behind them."""
    for layer in layers:
        if "forward" in vars(layer.mlp):
            continue
        found = block_of(layer.mlp)
        if found is not None and are_fused(found.router) and are_fused(found.stack):
            layer.mlp.forward = functools.partial(_block, layer.mlp, layer.mlp.forward, *found)


@torch.inference_mode()
def load_for_prompts(model: nn.Module) -> None:
    """Launch the kernels of prompts, so that none is compiled or loaded when the first prompt comes.

    Those of one token serve any number, but for lists, and for mxfp4.
    """
    from manyhands.model.kernels import experts as own
    from manyhands.model.kernels import experts_many as many

    known = set[Any]()
    for stack, routing, is_in_parts in _stacks_and_routings(model):
        chosen = routing.chosen
        if isinstance(stack, Mxfp4Stack):
            sizes = stack.num_experts, stack.hidden_size, stack.intermediate_size, chosen
            if sizes not in known:
                stack.load_for_prompts(chosen, routing.dtype)
            known.add(sizes)
            continue
        both, down, gate = _parts_of(stack, stack.forward.args[2])
        x = both.weight.new_zeros(1, both.weight.shape[1 if gate.clamped else 2])
        dtype = routing.dtype or x.dtype
        facts = both.weight.shape, chosen, gate, dtype, is_in_parts
        is_served = _knows(stack, x) and kernels.have_warpgroups(x.device)
        if facts in known or not is_served or chosen > own.MOST_CHOSEN:
            continue
        known.add(facts)
        index = torch.arange(chosen, device=x.device)[None]
        shares = x.new_zeros(index.shape, dtype=dtype)
        for tiles in many.TILES:
            many.experts(x, index, shares, both, down, gate, tiles)
            if is_in_parts:  # of no more than `MOST_TOKENS`
                many.experts(x, index, shares, both, down, gate, tiles, in_parts=True)
        own.list_pairs(index.repeat(own.MOST_TOKENS + 1, 1), len(both.weight))


def _stacks_and_routings(model: nn.Module) -> Iterator[tuple[Any, Routing, bool]]:
    """Stacks that have their faster way, with the routing beside them, and whether the block leaves the sum to others."""
    for block in model.modules():
        children = list(block.children())
        for stack in children:
            forward = vars(stack).get("forward")
            if not isinstance(forward, functools.partial) or forward.func is not _experts:
                continue
            routings = [found for each in children if (found := routing_of(each)) is not None]
            if len(routings) == 1:
                yield stack, routings[0], are_fused(block)


def are_fused(module: nn.Module) -> bool:
    """Whether this is a stack, a router or a block of both that has its faster way."""
    return usual_of(module) is not None


def usual_of(module: nn.Module) -> Callable[..., Any] | None:
    """The forward of the modelling code, where a stack, a router or a block has a faster way; else None."""
    forward = vars(module).get("forward")
    if not isinstance(forward, functools.partial) or forward.func not in (_experts, _route, _block):
        return None
    usual: Callable[..., Any] = forward.args[1]
    return usual


# -- recognised by what they do --------------------------------------------------------------------


def gate_of(module: Any) -> tuple[str, tuple[float, float] | None] | None:
    """The activation, and alpha and limit of one that is clamped, between an expert's products; None if it is no known stack."""
    if isinstance(module, Mxfp4Stack):
        return "silu", (module.alpha, module.limit)
    weights: list[Any] = [getattr(module, name, None) for name in _WEIGHTS]
    if not all(isinstance(weight, nn.Parameter) and weight.dim() == 3 for weight in weights):
        return None
    facts = {name: getattr(module, name, None) for name in ("has_gate", "has_post_expert_norm")}
    num_experts = getattr(module, "num_experts", None)
    if not facts["has_gate"] or facts["has_post_expert_norm"]:
        return None
    if num_experts != len(weights[0]):
        return None
    try:
        return _gate_by_probe(module)
    except BREAKS:
        return None


def _gate_by_probe(module: Any) -> tuple[str, tuple[float, float] | None] | None:
    form = bool(module.is_transposed), bool(module.is_concatenated)
    probe = torch.randn(len(_SCALES), 2 * _PROBE, generator=torch.Generator().manual_seed(0))
    probe *= torch.tensor(_SCALES)[:, None]
    if form == (False, True):
        name = activation_name(module.act_fn) if hasattr(module, "act_fn") else None
        gate, up = probe.chunk(2, dim=-1)
        if name is None or not torch.allclose(module._apply_gate(probe), module.act_fn(gate) * up):
            return None
        return name, None
    if form == (True, False) and all(
        isinstance(getattr(module, name, None), float) for name in _CLAMP
    ):
        alpha, limit = (getattr(module, name) for name in _CLAMP)
        gate, up = probe[..., ::2].clamp(max=limit), probe[..., 1::2].clamp(-limit, limit)
        if torch.allclose(module._apply_gate(probe), gate * torch.sigmoid(alpha * gate) * (up + 1)):
            return "silu", (alpha, limit)
    return None


class ExpertBlock(NamedTuple):
    """A block with experts in its parts."""

    router: Any
    stack: Any
    shared: Any  # the expert of all tokens, if there is one
    given: tuple[str, ...]  # names of all that the block gives its router beside the inputs


def block_of(mlp: Any) -> ExpertBlock | None:
    """The parts of a block that has no weights besides theirs."""
    children = list(mlp.children())
    routers = [each for each in children if routing_of(each) is not None]
    stacks = [each for each in children if gate_of(each) is not None]
    if len(routers) != 1 or len(stacks) != 1 or (given := given_by(mlp, routers[0])) is None:
        return None
    # Packed weights are no parameters, so any other child may have some.
    others = [each for each in children if each not in (*routers, *stacks)]
    if len(others) > 1:
        return None
    theirs = {id(weight) for each in (*routers, *stacks, *others) for weight in each.parameters()}
    theirs |= {id(getattr(mlp, name)) for name in given}
    if not theirs.issuperset(id(weight) for weight in mlp.parameters()):
        return None
    return ExpertBlock(routers[0], stacks[0], others[0] if others else None, given)


def given_by(mlp: Any, router: Any) -> tuple[str, ...] | None:
    """Names of all that a block gives its router beside the inputs: none, or that of a correction; None if it is not known."""
    routing = routing_of(router)
    if routing is None or routing.correction != GIVEN:
        return ()
    own = [*mlp.named_parameters(recurse=False), *mlp.named_buffers(recurse=False)]
    size = len(routing.weight_of(router))
    names = tuple(name for name, number in own if number.numel() == size)
    return names if len(names) == 1 else None


def hand_over(model: Any, run: Callable[[], Any]) -> bool:
    """Whether all blocks with experts of a network give what their parts give and nothing else.

    That is what their stack gives, of what their router has chosen, untouched; or its sum with what the shared expert gives.
    `run` makes a pass of the network.
    """
    seen: list[bool] = []
    for layer in model.base_model.layers:
        if (found := block_of(layer.mlp)) is not None:
            _watch(layer.mlp, found, seen)
    run()
    return bool(seen) and all(seen)


def _watch(mlp: Any, parts: ExpertBlock, seen: list[bool]) -> None:
    given: dict[str, Any] = {}
    routing = routing_of(parts.router)
    assert routing is not None, "it is a block by its router"
    asked_for = {"router", "stack"} | ({"shared"} if parts.shared is not None else set())

    def began(module: nn.Module, args: Any) -> None:
        given.clear()
        given["block"] = _copies(args)

    def chose(module: nn.Module, args: Any, out: Any) -> None:
        given["router"] = args, routing.in_order(out)
        given["choice"] = _copies((args[0], *routing.in_order(out)[1:]))

    def gave(module: nn.Module, args: Any, out: Any) -> None:
        given["stack"] = args, out
        given["gift"] = _copies((*args, out))

    def added(module: nn.Module, args: Any, out: Any) -> None:
        given["shared"] = args, *_copies((args[0], out))

    def ended(module: nn.Module, args: Any, out: Any) -> None:
        if not asked_for <= given.keys():
            seen.append(False)
            return
        (asked, (_, shares, index)), (fed, made) = given["router"], given["stack"]
        out = out[0] if isinstance(out, tuple) else out
        x, its_index, its_shares, gift = given["gift"]
        # Changed in place they would be the same tensors still.
        then = [given["block"][0], given["choice"][0], *given["choice"][1:]]
        now = [x, x, its_shares, its_index]
        read = [asked, fed]
        if parts.shared is None:
            is_whole = out.data_ptr() == made.data_ptr() and out.numel() == made.numel()
        else:
            others, its_x, beside = given["shared"]
            is_whole = len(others) == 1
            gift = gift.flatten() + beside.flatten()
            then, now, read = [*then, its_x], [*now, x], [*read, others]
        is_alike = fed[1] is index and fed[2] is shares
        are_inputs = all(each[0].data_ptr() == args[0].data_ptr() for each in read)
        is_alone = len(args) == 1 and len(asked) == 1 + len(parts.given)
        own = [getattr(mlp, name) for name in parts.given]
        is_alone = is_alone and all(one is two for one, two in zip(asked[1:], own, strict=True))
        are_kept = all(
            torch.equal(old.flatten(), new.flatten())
            for old, new in zip([*then, gift], [*now, out], strict=True)
        )
        seen.append(is_whole and is_alike and are_inputs and is_alone and are_kept)

    mlp.register_forward_pre_hook(began)
    parts.router.register_forward_hook(chose)
    parts.stack.register_forward_hook(gave)
    if parts.shared is not None:
        parts.shared.register_forward_hook(added)
    mlp.register_forward_hook(ended)


def _copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each.clone() for each in tensors]


# -- in their places -------------------------------------------------------------------------------


def _experts(
    stack: Any,
    usual: Callable[..., Tensor],
    gate: tuple[str, tuple[float, float] | None],
    is_distinct: bool,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """The experts of each token, weighed and added up: x [T, K], index [T, C] and shares [T, C] -> [T, K].

    `is_distinct`: no token has an expert twice.
    """
    out = _by_kernels(stack, gate, hidden_states, top_k_index, top_k_weights, is_distinct)
    return usual(hidden_states, top_k_index, top_k_weights) if out is None else out


def _block(
    mlp: Any,
    usual: Callable[[Tensor], Any],
    router: Any,
    stack: Any,
    shared: Any,
    given: tuple[str, ...],
    hidden_states: Tensor,
) -> Any:
    """The outputs of the experts of x [..., K], weighed, [C, ..., K] in float32, and behind them that of a shared one.

    Or the block as it was, if that takes another way.
    """
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    routing: Routing = router.forward.args[2]
    if not (_routes(router, routing, x) and _knows(stack, x)):
        return usual(hidden_states)
    from manyhands.model.kernels import experts as own

    if len(x) > own.MOST_TOKENS:  # too much to be written in float32 for each of a token's experts
        return usual(hidden_states)
    _, shares, index = routing.in_order(router(x, *(getattr(mlp, name) for name in given)))
    gate, beside = stack.forward.args[2], int(shared is not None)
    parts = _by_kernels(stack, gate, x, index, shares, in_parts=True, beside=beside)
    if parts is None:
        return usual(hidden_states)
    if shared is not None:
        _put(shared, x, parts[-1])
    return parts.view(len(parts), *hidden_states.shape)


def _put(shared: Any, x: Tensor, out: Tensor) -> None:
    """Write what the shared expert gives of x [T, K] into `out` [T, K] in float32."""
    if isinstance(shared, GatedMLP) and isinstance(shared.down_proj, SkinnyLinear):
        shared.down_proj.put(shared.inner(x), out)
    else:
        out.copy_(shared(x))


def _by_kernels(
    stack: Any,
    gate: tuple[str, tuple[float, float] | None],
    x: Tensor,
    index: Tensor,
    shares: Tensor,
    is_distinct: bool = True,
    *,
    in_parts: bool = False,
    beside: int = 0,
) -> Tensor | None:
    """The experts of each token by our kernels, see there; None if that takes another way."""
    if not _knows(stack, x) or index.dim() != 2:
        return None
    from manyhands.model.kernels import experts as own
    from manyhands.model.kernels import experts_many as many

    if index.shape[1] > own.MOST_CHOSEN:
        return None
    if not is_distinct and not index.shape[1] <= stack.num_experts <= own.MOST_EXPERTS:
        return None
    if isinstance(stack, Mxfp4Stack):
        if len(x) > own.MOST_TOKENS or beside:
            return None
        index, shares = _distinct(stack, index, shares, is_distinct)
        return stack.product(x, index, shares, in_parts=in_parts)
    weights = _parts_of(stack, gate)
    tokens, chosen = index.shape
    is_many = many.is_faster(tokens, chosen, len(weights[0].weight), x.device)
    if tokens > own.MOST_TOKENS and not is_many:
        return None
    index, shares = _distinct(stack, index, shares, is_distinct)
    made = many.experts if is_many else own.experts
    return made(x, index, shares, *weights, in_parts=in_parts, beside=beside)


def _distinct(
    stack: Any, index: Tensor, shares: Tensor, is_distinct: bool
) -> tuple[Tensor, Tensor]:
    """The same experts and shares, in which no token has an expert twice: kernels would leave out one of both."""
    if is_distinct:
        return index, shares
    from manyhands.model.kernels import experts as own

    return own.distinct(index, shares, int(stack.num_experts))


def _parts_of(stack: Any, gate: tuple[str, tuple[float, float] | None]) -> Any:
    """Both weights and the gate of a stack in 16 bits, as kernels know them."""
    from manyhands.model.kernels import experts as own

    both, down = (
        own.ExpertWeights(getattr(stack, name), getattr(stack, f"{name}_bias", None))
        for name in _WEIGHTS
    )
    return both, down, own.ExpertGate(*gate)


def _route(
    router: Any,
    usual: Callable[..., Any],
    routing: Routing,
    hidden_states: Tensor,
    *others: Any,
    **named: Any,
) -> Any:
    """Logits [T, E], shares [T, C] and experts [T, C], in its own order, of x [..., K], and of a correction [E] where that is given."""
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    if named or not (routing.is_of(others) and _routes(router, routing, x)):
        return usual(hidden_states, *others, **named)
    from manyhands.model.kernels import experts as own

    logits = _logits(router, routing, x)
    shares, index = own.choose(
        logits,
        routing.chosen,
        even=routing.even,
        dtype=routing.dtype or x.dtype,
        scoring=routing.scoring,
        correction=routing.correction_of(router, others),
    )
    return routing.in_order((logits, shares, index))


def _logits(router: Any, routing: Routing, x: Tensor) -> Tensor:
    """Logits [T, E] of x [T, K], in float32 where the modelling code makes them so."""
    from manyhands.model.kernels import skinny

    weight, bias = routing.weight_of(router), routing.bias_of(router)
    dtype = torch.float32 if routing.is_wide else x.dtype
    if len(x) <= skinny.MOST_TOKENS and weight.dtype == x.dtype:
        # Products of 16 bits are exact in float32, and that is what they are added up in.
        room = x.new_empty(len(x), len(weight), dtype=dtype)
        return skinny.product(x, weight, bias, router.arrived, out=room)
    bias = None if bias is None else bias.to(dtype)
    return functional.linear(x.to(dtype), weight.to(dtype), bias)


def _routes(router: Any, routing: Routing, x: Tensor) -> bool:
    """Whether our kernels choose; this router's weight may be of float32 where logits are."""
    weight = routing.weight_of(router)
    is_wide = routing.is_wide and weight.dtype == torch.float32 and weight.is_contiguous()
    if not (_is_for(x) if is_wide else _is_for(x, weight)):
        return False
    bias = routing.bias_of(router)
    if bias is not None and not bias.is_contiguous():
        return False
    from manyhands.model.kernels import experts as own

    return len(weight) <= own.MOST_EXPERTS and routing.chosen <= own.MOST_CHOSEN


def _knows(stack: Any, x: Tensor) -> bool:
    """Whether our kernels know such x and the weights of a stack."""
    if isinstance(stack, Mxfp4Stack):
        return stack.is_for(x)
    biases = (getattr(stack, f"{name}_bias", None) for name in _WEIGHTS)
    lie_whole = all(each is None or each.is_contiguous() for each in biases)
    return lie_whole and _is_for(x, *(getattr(stack, name) for name in _WEIGHTS))


def _is_for(x: Tensor, *weights: Tensor) -> bool:
    """Whether our kernels know the dtype, the device and how the weights lie."""
    is_known = x.dim() == 2 and x.dtype in DTYPES and kernels.usable(x)
    return is_known and all(each.dtype == x.dtype and each.is_contiguous() for each in weights)
