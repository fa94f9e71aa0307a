"""Choices of routers: noted in one engine, and given to another one that is held against it.

A router whose best experts are nearly level is undecided: other roundings choose another expert, and behind it everything
is another number, though nothing is wrong. So two engines are compared with the choices of one of them, and of the other it is
counted how often it would have chosen the same experts of the same inputs.
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

# Of choices that the other side, given ours in front of it, has to make as well, in the router where they are fewest.
# With bfloat16 beside float32 93 to 95 of a hundred are the same.
SAME_EXPERTS = 0.85


class ChosenExperts(NamedTuple):
    """Shares and experts of the tokens of one call of a router."""

    shares: Tensor  # [T, C]
    experts: Tensor  # [T, C]


class Alike:
    """Of how many choices of each router, which is given others, the sets of experts were the same."""

    def __init__(self, num_routers: int) -> None:
        self.same, self.all = [0] * num_routers, [0] * num_routers

    @property
    def least(self) -> float:
        """The share of the router where they are fewest; 1 where nothing chooses."""
        shares = (same / all_ for same, all_ in zip(self.same, self.all, strict=True) if all_)
        return round(min(shares, default=1.0), 4)


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

    with _hooked(engine, chosen), _unrecorded(engine):
        yield


@contextmanager
def given_choices(engine: Engine, choices: list[list[ChosenExperts]]) -> Iterator[Alike]:
    """Let each router give what stands in `choices` [routers, calls], whatever it says; how often it says the same."""
    alike = Alike(len(choices))
    calls = [iter(each) for each in choices]

    def changed(number: int, router: nn.Module, given: object, out: _Given) -> _Given:
        logits, shares, experts = _in_order(router, out)
        kept = next(calls[number])
        assert kept.experts.shape == experts.shape, "both make the same calls"
        sets = [each.sort(-1).values for each in (kept.experts, experts)]
        alike.same[number] += int((sets[0] == sets[1]).all(-1).sum())
        alike.all[number] += len(experts)
        return _in_order(router, (logits, kept.shares.to(shares.dtype), kept.experts))

    with _hooked(engine, changed):
        yield alike


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
def _unrecorded(engine: Engine) -> Iterator[None]:
    """Passes are made launch by launch meanwhile."""
    executor = executor_of(engine)
    recorded = executor.passes
    executor.passes = Passes(executor.adapter, executor.memory, executor.backend)
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
