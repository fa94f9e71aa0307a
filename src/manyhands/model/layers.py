"""Faster stand-ins for parts of Hugging Face's layers: same values, fewer launches.

The modelling code stays in charge: it still calls `q_proj`, then `k_proj`, then `v_proj`, a norm, a
block. Where several of its calls can be one, the first of them computes for all, and the others are
handed what is theirs. They know it by the tensor they are called with: it must be the very same one,
otherwise they compute anew. So nothing depends on the order of calls, or on who else calls.

Each stand-in has a kernel for CUDA devices and a twin in plain torch that repeats the modelling code's
operations one by one. `fusion` decides what is replaced by what.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.attention.attend import LeftNorms
from manyhands.model import kernels
from manyhands.model.quantised.w4a16 import Int4Linear
from manyhands.model.skinny import SkinnyLinear

# When the normed value is rounded to the network's dtype, and whether the weight is added to 1.
Form = Literal[0, 1, 2]
FORMS: tuple[Form, ...] = (
    0,
    1,
    2,
)  # round, then weigh; weigh, then round; the same with 1 + weight


class Norm(nn.Module):
    """An RMS norm that may find its result prepared by whoever made its input."""

    def __init__(self, weight: nn.Parameter, eps: float, form: Form) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.form: Form = form
        # Whether the product behind it may come in early, see attention/kernels/overlap.py.
        self.is_early = False
        self._prepared: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """X [..., N] -> its norm."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] is x:
            return prepared[1]
        return join(None, x, None, self)[1]

    def prepare(self, x: Tensor, normed: Tensor) -> None:
        """Leave the norm of `x`, for the next call if that is with `x` itself."""
        self._prepared = (x, normed)

    @property
    def parts(self) -> tuple[Tensor, float]:
        """The weight, and the epsilon under the root."""
        return self.weight, self.eps


def plain_norm(x: Tensor, weight: Tensor, eps: float, form: Form) -> Tensor:
    """The three ways in which the families write the same norm."""
    return norm_of(x, x.to(torch.float32).pow(2).mean(-1, keepdim=True), weight, eps, form)


def norm_of(x: Tensor, mean_square: Tensor, weight: Tensor, eps: float, form: Form) -> Tensor:
    """The norm of x [..., N] whose mean square [..., 1] is known, in float32."""
    v = x.to(torch.float32)
    v = v * torch.rsqrt(mean_square + eps)
    if form == 0:
        return weight * v.to(x.dtype)
    if form == 1:
        return (weight * v).to(x.dtype)
    return (v * (1.0 + weight.float())).to(x.dtype)


def join(
    residual: Tensor | None, x: Tensor, post: Norm | None, pre: Norm | None
) -> tuple[Tensor, Tensor]:
    """Residual + y, where y is x or its norm by `post`; and the norm of that sum by `pre`.

    Without a residual the sum is y, without `pre` its norm is the sum itself. With one, x may be parts [P, ..., N] in float32,
    whose sum is meant.
    """
    known = post or pre
    one_form = not (post and pre) or post.form == pre.form
    if known is not None and one_form and kernels.usable(x):
        from manyhands.model.kernels.norms import join as fused

        after, before = (norm.parts if norm else None for norm in (post, pre))
        is_early = pre is not None and pre.is_early
        total, normed = fused(residual, x, after, before, known.form, is_early=is_early)
        total = x if total is None else total
        return total, total if normed is None else normed
    if residual is not None and x.dim() > residual.dim():
        x = x.sum(0).to(residual.dtype)
    y = x if post is None else plain_norm(x, *post.parts, post.form)
    total = y if residual is None else residual + y
    return total, total if pre is None else plain_norm(total, *pre.parts, pre.form)


class HeadNorms(nn.Module):
    """The norms of the heads of q and k: made together where the network attends, or left to what stores the keys."""

    def __init__(self, query: Norm, key: Norm) -> None:
        super().__init__()
        self.query = query
        self.key = key

    @property
    def left(self) -> LeftNorms:
        """The norms, for a function of attention that makes them itself."""
        return LeftNorms(self.query.parts, self.key.parts, self.query.form)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Q [T, H, D] and k [T, G, D] -> the same, normed in place: a layer that reads this one's keys has the same tensor."""
        if kernels.usable(q):
            from manyhands.model.kernels.norms import norm_heads

            norm_heads(q, k, self.left)
            return q, k
        for x, norm in ((q, self.query), (k, self.key)):
            x.copy_(plain_norm(x, *norm.parts, norm.form))
        return q, k


class Products(nn.Module):
    """Several linear layers with one input, as one product."""

    def __init__(self, linear: nn.Module, sizes: Sequence[int]) -> None:
        super().__init__()
        self.linear = linear
        self.sizes = tuple(sizes)
        self._input: Tensor | None = None
        self._waiting: list[Tensor | None] = []

    def take(self, index: int, x: Tensor) -> Tensor:
        """The output of the layer `index` for `x`; the first one asked computes for all."""
        found = self._waiting[index] if self._input is x else None
        if found is None:
            self._input, self._waiting = x, list(self.linear(x).split(self.sizes, dim=-1))
            found = self._waiting[index]
        self._waiting[index] = None
        if not any(part is not None for part in self._waiting):
            self._input, self._waiting = None, []
        assert found is not None
        return found


class Part(nn.Module):
    """Stands where one of the layers stood whose product is made together with others."""

    def __init__(self, products: Products, index: int) -> None:
        super().__init__()
        self._products = (products,)  # in a tuple: it is registered once, not with every part
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        """X [..., K] -> [..., N]."""
        return self._products[0].take(self.index, x)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), with gate and up in one product."""

    def __init__(self, gate_up: nn.Module, down: nn.Module, act: nn.Module, name: str) -> None:
        super().__init__()
        self.gate_up_proj = gate_up
        self.down_proj = down
        self.act_fn = act
        self.activation = name

    def forward(self, x: Tensor) -> Tensor:
        """X [..., hidden] -> [..., hidden]."""
        out: Tensor = self.down_proj(self.inner(x))
        return out

    def inner(self, x: Tensor) -> Tensor:
        """The input of the last product: x [..., hidden] -> [..., width]."""
        both = self.gate_up_proj
        inner = None
        if isinstance(both, SkinnyLinear | Int4Linear):
            inner = both.gated(x, self.activation)
        return self._gated(both(x)) if inner is None else inner

    def _gated(self, gate_up: Tensor) -> Tensor:
        if kernels.usable(gate_up):
            from manyhands.model.kernels.gated import gated

            return gated(gate_up, self.activation)
        gate, up = gate_up.chunk(2, dim=-1)
        inner: Tensor = self.act_fn(gate) * up
        return inner


class NoRotation(nn.Module):
    """Stands where the rotary module stood: there is nothing to rotate at position 0."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Tables of no dims [1, 1, 0], of which a network may take slices; `keep` takes them."""
        nothing = x.new_empty(1, 1, 0)
        return nothing, nothing


def keep(q: Tensor, k: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    """In the place of the modelling code's function that rotates."""
    return q, k


def keep_one(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """`keep` for modelling code that rotates queries and keys in two calls."""
    return x


# -- recognised by what they do --------------------------------------------------------------------


def norm_form(norm: nn.Module) -> tuple[float, Form] | None:
    """The eps and the form of an RMS norm, or None if it is something else."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    own = [name for name, _ in norm.named_parameters()]
    if "RMSNorm" not in type(norm).__name__ or own != ["weight"] or not isinstance(eps, float):
        return None
    kind: Any = type(norm)
    if len(inspect.signature(kind.forward).parameters) != 2:
        return None  # it is given a gate besides, as behind a layer that keeps a state
    form = _form_of_class(kind, eps)
    return None if form is None else (eps, form)


@functools.cache
def _form_of_class(kind: Any, eps: float) -> Form | None:
    """Which form gives what the class gives, number for number in bfloat16."""
    probe: Any = kind.__new__(kind)
    nn.Module.__init__(probe)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, generator=generator).bfloat16()
    probe.weight = nn.Parameter(weight, requires_grad=False)
    probe.eps = probe.variance_epsilon = eps
    probe.with_scale = True  # Gemma 4's may be without a weight; those are no norms of ours
    x = 3 * torch.randn(16, 64, generator=generator).bfloat16()
    try:
        expected = probe(x)
    except AttributeError:  # it needs more than a weight and an eps: not one of these
        return None
    found = (f for f in FORMS if torch.equal(plain_norm(x, weight, eps, f), expected))
    return next(found, None)


_ACTIVATIONS: dict[str, Any] = {
    "silu": functional.silu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "gelu": functional.gelu,
}


def activation_name(act: Any) -> str | None:
    """Which of the activations with a kernel this one is, or None."""
    x = torch.linspace(-6, 6, 97)
    y = act(x)
    found = (
        name for name, f in _ACTIVATIONS.items() if torch.allclose(f(x), y, rtol=1e-6, atol=1e-6)
    )
    return next(found, None)
