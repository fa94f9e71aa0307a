"""Choices of routers: noted in one engine, and given to another one that is held against it.

A router whose best experts are nearly level is undecided: other roundings choose another expert, and behind it everything
is another number, though nothing is wrong. So two engines are compared with the choices of one of them. The other's routers say what they
think of these: a rounding exchanges experts that are nearly level, and a mistake any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from benchmarks.engine_parts import executor_of
from manyhands.engine.engine import Engine
from manyhands.engine.passes import Passes
from manyhands.model.experts import usual_of
from manyhands.model.quantised.mxfp4 import Mxfp4Stack
from manyhands.model.routing import routing_of

_Given = tuple[Tensor, Tensor, Tensor]

# A choice is far from another router's where its least expert lies more than so many deviations of the token's logits below the
# least of that router's own. So large a share of a router's choices may be far; roundings of bfloat16 make one of 100 000 so.
_FAR = 0.25
_MOST_FAR = 0.01


class ChosenExperts(NamedTuple):
    """Shares and experts of the tokens of one call of a router."""

    shares: Tensor  # [T, C]
    experts: Tensor  # [T, C]


class Alike:
    """Opinions of routers about the choices that they are given: whether they would have made them, and how far these are from theirs."""

    def __init__(self, num_routers: int) -> None:
        self._same, self._far = [0] * num_routers, [0] * num_routers
        self._all = [0] * num_routers

    def count(self, router: int, logits: Tensor, own: Tensor, given: Tensor) -> None:
        """Choices of one call, `own` and `given` [T, C], by this router's logits [T, E]."""
        below = _least_of(logits, own) - _least_of(logits, given)
        self._far[router] += int((below > _FAR * logits.std(-1)).sum())
        same = own.sort(-1).values == given.sort(-1).values
        self._same[router] += int(same.all(-1).sum())
        self._all[router] += len(own)

    @property
    def is_green(self) -> bool:
        """Whether no router finds more than a few choices far from its own."""
        return all(share <= _MOST_FAR for share in self.far)

    @property
    def far(self) -> list[float]:
        """Of each router the share of choices that are far from its own."""
        return _shares(self._far, self._all)

    @property
    def same(self) -> list[float]:
        """Of each router the share of choices that are its own experts."""
        return _shares(self._same, self._all)


def _shares(counts: list[int], of: list[int]) -> list[float]:
    return [round(count / max(1, all_), 4) for count, all_ in zip(counts, of, strict=True)]


def _least_of(logits: Tensor, experts: Tensor) -> Tensor:
    """The least logit [T] of each token's experts [T, C]."""
    return logits.gather(-1, experts).amin(-1)


def routers_of(engine: Engine) -> list[nn.Module]:
    """The routers, in the order of layers."""
    modules = executor_of(engine).adapter.model.modules()
    return [module for module in modules if routing_of(module) is not None]


@contextmanager
def watched_routers(engine: Engine, note: Callable[[int, ChosenExperts], None]) -> Iterator[None]:
    """Call `note` with the number of a router and what it chose, in every pass.

    The passes are made launch by launch meanwhile: what is recorded calls no hooks.
    """

    def chosen(number: int, router: nn.Module, given: object, out: _Given) -> None:
        note(number, ChosenExperts(*_in_order(router, out)[1:]))

    with _hooked(engine, chosen), unrecorded(engine):
        yield


@contextmanager
def given_choices(engine: Engine, choices: list[list[ChosenExperts]]) -> Iterator[Alike]:
    """Let each router give what stands in `choices` [routers, calls], whatever it says; and its opinion of that.

    Routers are to choose the experts of the largest logits.
    """
    alike = Alike(len(choices))
    calls = [iter(each) for each in choices]

    def changed(number: int, router: nn.Module, given: object, out: _Given) -> _Given:
        logits, shares, experts = _in_order(router, out)
        kept = next(calls[number])
        assert kept.experts.shape == experts.shape, "both make the same calls"
        alike.count(number, _logits(logits), experts, kept.experts)
        return _in_order(router, (logits, kept.shares.to(shares.dtype), kept.experts))

    with _hooked(engine, changed):
        yield alike


def _logits(x: Tensor) -> Tensor:
    """Logits of a router of transformers, from what it calls so: some give their shares of one."""
    x = x.float()
    are_shares = bool((x >= 0).all()) and bool((x.sum(-1) - 1).abs().max() < 1e-2)
    return x.clamp(min=1e-30).log() if are_shares else x


def _in_order(router: nn.Module, out: _Given) -> _Given:
    routing = routing_of(router)
    assert routing is not None, "it was found by its routing"
    return routing.in_order(out)


@contextmanager
def _hooked(engine: Engine, hook: Callable[..., Any]) -> Iterator[None]:
    """Call the hook behind every router, with its number in front."""
    hooks = [
        router.register_forward_hook(partial(hook, number))
        for number, router in enumerate(routers_of(engine))
    ]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


@contextmanager
def unrecorded(engine: Engine) -> Iterator[None]:
    """Passes are made launch by launch meanwhile."""
    executor = executor_of(engine)
    recorded = executor.passes
    executor.passes = Passes(
        executor.adapter, executor.memory, executor.backend, states=executor.states
    )
    try:
        yield
    finally:
        executor.passes = recorded


@contextmanager
def as_before(engine: Engine) -> Iterator[None]:
    """Experts and routers go the way of the modelling code meanwhile."""
    kept = []
    for module in executor_of(engine).adapter.model.modules():
        if (usual := usual_of(module)) is not None:
            kept.append((module, vars(module)["forward"]))
            module.forward = module.one_by_one if isinstance(module, Mxfp4Stack) else usual
    try:
        yield
    finally:
        for module, forward in kept:
            module.forward = forward
