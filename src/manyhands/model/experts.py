"""Stacks of experts and their routers, with a faster way for up to a thousand tokens.

A pass of a few tokens needs few of a layer's experts, and the modelling code sorts the tokens, gathers them, multiplies by a
grouped product made for many and puts everything back: some thirty launches a layer, most of the time of a pass. Up to
1 024 tokens on a CUDA device, in bfloat16 or float16, our own kernels do it in four to six (`kernels/experts.py`). The weights
stay where they are; more tokens, and all else, go the way they always went.

    stack     the weights of all experts of a layer
    router    gives each token its experts, and a share of what each of them gives
    block     a router and its stack and nothing else: the residual sum behind it adds up what the experts give

Stacks in mxfp4 have kernels of their own (`kernels/mxfp4.py`). All others, and routers and blocks, are recognised by what they
compute, on a small probe of the same class. What computes something else (routers that
choose by groups, experts with a norm of their own) is left alone. Logits that the modelling code makes in float32 are made so here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.model import kernels
from manyhands.model.layers import activation_name
from manyhands.model.quantised.mxfp4 import Mxfp4Stack
from manyhands.model.skinny import ALIGNED, DTYPES, SMALLEST_TILE

_PROBE = 64  # inputs of a probe
_WEIGHTS = ("gate_up_proj", "down_proj")
_ARRIVED = "arrived"  # zeros for a router's product, see kernels/skinny.py
# By a module that needs more than a probe gives it: another kind.
_NOT_KNOWN = (AttributeError, TypeError, ValueError, RuntimeError)
_CLAMP = ("alpha", "limit")  # as gpt-oss calls them
_SCALES = (0.25, 1.0, 4.0, 64.0, 4096.0)  # of a gate's probe, so that limits are met


class Routing(NamedTuple):
    """How a router makes shares of its logits."""

    chosen: int  # experts of a token
    even: bool  # whether the shares of these are made to add up to 1, as those of a softmax over these alone do
    dtype: torch.dtype | None  # of the shares; None: that of the inputs
    is_wide: bool = False  # whether logits are made in float32, of inputs of 16 bits, too


def fuse_experts(model: nn.Module) -> tuple[int, int]:
    """Give stacks of experts and routers that are known their faster way; how many of both."""
    stacks = routers = 0
    for module in model.modules():
        own: Any = module
        if "forward" in vars(own):
            continue  # it was given another, and what that computes is not known
        if (gate := gate_of(own)) is not None:
            own.forward = functools.partial(_experts, own, own.forward, gate)
            stacks += 1
        elif (routing := routing_of(own)) is not None:
            tiles = len(own.weight) // SMALLEST_TILE + 1
            zeros = torch.zeros(tiles, dtype=torch.int32, device=own.weight.device)
            own.register_buffer(_ARRIVED, zeros, persistent=False)
            own.forward = functools.partial(_route, own, own.forward, routing)
            routers += 1
    return stacks, routers


def let_sums_add_experts(layers: Iterable[Any]) -> None:
    """Let blocks that are a router and its stack, both with their faster way, give what each expert gives to the sum behind them."""
    for layer in layers:
        if "forward" in vars(layer.mlp):
            continue
        if (found := block_of(layer.mlp)) is not None and all(map(are_fused, found)):
            layer.mlp.forward = functools.partial(_block, layer.mlp, layer.mlp.forward, *found)


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
    except _NOT_KNOWN:
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


def routing_of(module: Any) -> Routing | None:
    """How this router chooses; None if it is none, or one that chooses in another way."""
    own = {name for name, _ in module.named_parameters()}
    held = {*dict(module.named_children()), *dict(module.named_buffers(recurse=False))} - {_ARRIVED}
    weight: Any = getattr(module, "weight", None)
    if own not in ({"weight"}, {"weight", "bias"}) or held or "Router" not in type(module).__name__:
        return None
    if weight.dim() != 2 or weight.shape[1] % ALIGNED:
        return None
    plain = {
        name: fact for name, fact in vars(module).items() if isinstance(fact, int | float | str)
    }
    kind: Any = type(module)
    return _routing_of_class(kind, len(weight), "bias" in own, tuple(sorted(plain.items())))


@functools.cache
def _routing_of_class(
    kind: Any, num_experts: int, has_bias: bool, plain: tuple[tuple[str, Any], ...]
) -> Routing | None:
    """The routing of a probe of the class with these facts, number for number."""
    probe: Any = kind.__new__(kind)
    nn.Module.__init__(probe)
    generator = torch.Generator().manual_seed(0)
    for name, fact in plain:
        if name != "training":
            setattr(probe, name, fact)
    probe.hidden_dim = probe.hidden_size = probe.in_features = _PROBE
    weight = torch.randn(num_experts, _PROBE, generator=generator)
    bias = torch.randn(num_experts, generator=generator) if has_bias else None
    probe.weight = nn.Parameter(weight, requires_grad=False)
    probe.register_parameter(
        "bias", None if bias is None else nn.Parameter(bias, requires_grad=False)
    )
    x = torch.randn(16, _PROBE, generator=generator)
    try:
        logits, shares, index = probe.train(False)(x)
        half = probe.bfloat16()(x.bfloat16())
    except _NOT_KNOWN:
        return None
    if not all(isinstance(each, Tensor) for each in (logits, shares, index)):
        return None
    expected = functional.linear(x, weight, bias)
    if logits.shape != expected.shape or not torch.allclose(logits, expected, atol=1e-5):
        return None
    chosen = index.shape[-1]
    if shares.shape != (len(x), chosen) or index.shape != (len(x), chosen):
        return None
    dtype = None if half[1].dtype == torch.bfloat16 else half[1].dtype
    is_wide = not torch.equal(half[0].float(), half[0].bfloat16().float())
    for even in (True, False):
        ours, ourselves = plain_choice(expected, Routing(chosen, even, torch.float32))
        if torch.equal(ourselves, index) and torch.allclose(ours, shares.float(), atol=1e-6):
            return Routing(chosen, even, dtype, is_wide)
    return None


def block_of(mlp: Any) -> tuple[Any, Any] | None:
    """The router and the stack of a block that has no weights besides theirs."""
    children = list(mlp.children())
    routers = [each for each in children if routing_of(each) is not None]
    stacks = [each for each in children if gate_of(each) is not None]
    if len(routers) != 1 or len(stacks) != 1:
        return None
    theirs = {id(weight) for each in (*routers, *stacks) for weight in each.parameters()}
    if {id(weight) for weight in mlp.parameters()} != theirs:
        return None
    return routers[0], stacks[0]


def hand_over(model: Any, run: Callable[[], Any]) -> bool:
    """Whether all blocks with experts of a network give what their stack gives, of what their router has chosen, untouched.

    `run` makes a pass of the network.
    """
    seen: list[bool] = []
    for layer in model.base_model.layers:
        if (found := block_of(layer.mlp)) is not None:
            _watch(layer.mlp, *found, seen)
    run()
    return bool(seen) and all(seen)


def _watch(mlp: Any, router: Any, stack: Any, seen: list[bool]) -> None:
    given: dict[str, Any] = {}

    def began(module: nn.Module, args: Any) -> None:
        given["block"] = _copies(args)

    def chose(module: nn.Module, args: Any, out: Any) -> None:
        given["router"] = args, out
        given["choice"] = _copies((args[0], *out[1:]))

    def gave(module: nn.Module, args: Any, out: Any) -> None:
        given["stack"] = args, out
        given["gift"] = _copies((*args, out))

    def ended(module: nn.Module, args: Any, out: Any) -> None:
        (asked, (_, shares, index)), (fed, made) = given["router"], given["stack"]
        out = out[0] if isinstance(out, tuple) else out
        is_whole = out.data_ptr() == made.data_ptr() and out.numel() == made.numel()
        is_alike = fed[1] is index and fed[2] is shares
        are_inputs = all(each[0].data_ptr() == args[0].data_ptr() for each in (asked, fed))
        # Changed in place they would be the same tensors still.
        x, its_index, its_shares, gift = given["gift"]
        then = [given["block"][0], given["choice"][0], *given["choice"][1:], gift]
        now = [x, x, its_shares, its_index, out]
        are_kept = all(
            torch.equal(old.flatten(), new.flatten()) for old, new in zip(then, now, strict=True)
        )
        is_alone = len(args) == len(asked) == 1
        seen.append(is_whole and is_alike and are_inputs and is_alone and are_kept)

    mlp.register_forward_pre_hook(began)
    router.register_forward_hook(chose)
    stack.register_forward_hook(gave)
    mlp.register_forward_hook(ended)


def _copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [each.clone() for each in tensors]


def plain_choice(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """Shares [T, C] and experts [T, C] of logits [T, E]: the twin of the kernel in plain torch."""
    shares, index = logits.softmax(-1, dtype=torch.float32).topk(routing.chosen, dim=-1)
    if routing.even:
        shares = shares / shares.sum(-1, keepdim=True)
    return shares.to(routing.dtype or logits.dtype), index


# -- in their places -------------------------------------------------------------------------------


def _experts(
    stack: Any,
    usual: Callable[..., Tensor],
    gate: tuple[str, tuple[float, float] | None],
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """The experts of each token, weighed and added up: x [T, K], index [T, C] and shares [T, C] -> [T, K]."""
    out = _few(stack, gate, hidden_states, top_k_index, top_k_weights)
    return usual(hidden_states, top_k_index, top_k_weights) if out is None else out


def _block(
    mlp: Any, usual: Callable[[Tensor], Any], router: Any, stack: Any, hidden_states: Tensor
) -> Any:
    """The outputs of the experts of x [..., K], weighed, [C, ..., K] in float32; or the block as it was, if that takes another way."""
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    if not (_is_for(x, router.weight) and _knows(stack, x)):
        return usual(hidden_states)
    _, shares, index = router(x)
    parts = _few(stack, stack.forward.args[2], x, index, shares, in_parts=True)
    if parts is None:
        out: Tensor = stack(x, index, shares)
        return out.view(hidden_states.shape)
    return parts.view(len(parts), *hidden_states.shape)


def _few(
    stack: Any,
    gate: tuple[str, tuple[float, float] | None],
    x: Tensor,
    index: Tensor,
    shares: Tensor,
    *,
    in_parts: bool = False,
) -> Tensor | None:
    """The experts of few tokens by our kernels, see there; None if that takes another way."""
    if not _knows(stack, x) or index.dim() != 2:
        return None
    from manyhands.model.kernels import experts as own

    if len(x) > own.MOST_TOKENS or index.shape[1] > own.MOST_CHOSEN:
        return None
    if isinstance(stack, Mxfp4Stack):
        return stack.product(x, index, shares, in_parts=in_parts)
    both, down = (
        own.ExpertWeights(getattr(stack, name), getattr(stack, f"{name}_bias", None))
        for name in _WEIGHTS
    )
    return own.experts(x, index, shares, both, down, own.ExpertGate(*gate), in_parts=in_parts)


def _route(
    router: Any,
    usual: Callable[..., Any],
    routing: Routing,
    hidden_states: Tensor,
    *others: Any,
) -> Any:
    """Logits [T, E], shares [T, C] and experts [T, C] of x [..., K]."""
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    if others or not _is_for(x, router.weight):
        return usual(hidden_states, *others)
    from manyhands.model.kernels import experts as own
    from manyhands.model.kernels import skinny

    is_large = len(router.weight) > own.MOST_EXPERTS or routing.chosen > own.MOST_CHOSEN
    if len(x) > own.MOST_TOKENS or is_large:
        return usual(hidden_states)
    bias = getattr(router, "bias", None)
    if routing.is_wide:
        wide = None if bias is None else bias.float()
        logits = functional.linear(x.float(), router.weight.float(), wide)
    elif len(x) <= skinny.MOST_TOKENS:
        logits = skinny.product(x, router.weight, bias, router.arrived)
    else:
        logits = functional.linear(x, router.weight, bias)
    dtype = routing.dtype or x.dtype
    shares, index = own.choose(logits, routing.chosen, even=routing.even, dtype=dtype)
    return logits, shares, index


def _knows(stack: Any, x: Tensor) -> bool:
    """Whether our kernels know such x and the weights of a stack."""
    if isinstance(stack, Mxfp4Stack):
        return stack.is_for(x)
    return _is_for(x, *(getattr(stack, name) for name in _WEIGHTS))


def _is_for(x: Tensor, *weights: Tensor) -> bool:
    """Whether our kernels know the dtype, the device and how the weights lie."""
    is_known = x.dim() == 2 and x.dtype in DTYPES and kernels.usable(x)
    return is_known and all(each.dtype == x.dtype and each.is_contiguous() for each in weights)
