"""Routers: how each makes experts and shares of its logits, found on a probe of the same class.

    score        what a router makes of a logit: a softmax over all experts, or a sigmoid of each
    correction   a number for each expert that is added to its score for the choice alone, never in a share
    groups       neighbouring experts; the groups with the best scores are chosen first, and experts of these alone
    share        the score of an expert that was chosen, made even among the chosen ones or not, times a scale

A probe is a module of the same class with weights of our own and every other fact as it was. Its logits are looked at with random
weights, its choice with logits that we write down: in which the likeliest expert stands in a group that is left out, corrections
outweigh scores, sums of shares are as small as what is added to them, and one token is no number. What a class computes is known
if `plain_choice` gives the same experts and shares for all of them. It is never known by its name.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from manyhands.model.quiet import quiet
from manyhands.model.seeded import seeded
from manyhands.model.self_test import BREAKS
from manyhands.model.skinny import ALIGNED

ARRIVED = "arrived"  # zeros for a router's product, see kernels/skinny.py
GIVEN = "given"  # said of a correction that comes beside the inputs, with each call
_MOST_EXPERTS = 1024  # of a router that is looked at
_WEIGHT, _BIAS = "weight", "bias"  # of a linear layer
_PROBE = 64  # inputs of a probe
_ROWS = 24  # tokens of each kind of its logits
_HIGHEST = 4.0  # of its logits, lest sigmoids be 1 alike
# Of a probe, from and to: beside scores, far beyond them, and such that no expert is better than nothing.
_CORRECTIONS = ((-0.3, 0.3), (-3.0, 3.0), (-5.0, -2.0))
_ADDED = (0.0, 1e-20)  # to the sum that shares are divided by, whatever a class says of itself
_RELATIVE = 1e-5  # error of shares that are the same


class ExpertGroups(NamedTuple):
    """Groups of neighbouring experts: those are kept whose best scores add up to most."""

    number: int
    kept: int  # groups whose experts may be chosen
    best: int  # scores of a group that are added up: one or two


class Scoring(NamedTuple):
    """How scores are made of logits, and what happens to scores on their way to a share."""

    by_sigmoid: bool = False  # else by a softmax over all
    groups: ExpertGroups | None = None
    least: float = 0.0  # limit of the sum that even shares are divided by
    added: float = 0.0  # to that sum
    scale: float = 1.0  # of all shares


class Routing(NamedTuple):
    """How a router makes shares of its logits."""

    chosen: int  # experts of a token
    even: bool  # whether the shares of these are made to add up to 1, as those of a softmax over these alone do
    dtype: torch.dtype | None  # of the shares; None: that of the inputs
    is_wide: bool = False  # whether logits are made in float32, of inputs of 16 bits, too
    scoring: Scoring = Scoring()
    correction: str | None = None  # where it lies in the router, or `GIVEN`
    weight: str = "weight"  # where it lies in the router
    is_reversed: bool = False  # whether experts come first and logits last, as Granite 3 MoE gives them before transformers 5.21

    def in_order(self, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, shares and experts of what the router gives; or that, of logits, shares and experts."""
        first, shares, last = given
        return (last, shares, first) if self.is_reversed else given

    def weight_of(self, router: Any) -> Tensor:
        """The weight [E, K] of the logits."""
        found: Tensor = attrgetter(self.weight)(router)
        return found

    def bias_of(self, router: Any) -> Tensor | None:
        """The bias [E] of the logits, if there is one."""
        *holder, _ = self.weight.split(".")
        found: Tensor | None = getattr(router.get_submodule(".".join(holder)), _BIAS, None)
        return found

    def correction_of(self, router: Any, given: Sequence[Any]) -> Tensor | None:
        """The correction [E], if there is one, of a call with these things beside the inputs."""
        if self.correction is None:
            return None
        found: Tensor = given[0] if given else attrgetter(self.correction)(router)
        return found.reshape(-1)

    def is_of(self, given: Sequence[Any]) -> bool:
        """Whether a call with these things beside the inputs is one that this routing is known for."""
        is_asked = len(given) == (self.correction == GIVEN)
        return is_asked and all(isinstance(each, Tensor) for each in given)


def plain_choice(
    logits: Tensor, routing: Routing, correction: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Shares [T, C] and experts [T, C] of logits [T, E] and a correction [E]: the twin of the kernel in plain torch."""
    scoring = routing.scoring
    wide = logits.float()
    scores = wide.sigmoid() if scoring.by_sigmoid else wide.softmax(-1)
    wanted = scores if correction is None else scores + correction.float()
    if scoring.groups is not None:
        wanted = _kept(wanted, scoring.groups)
    index = wanted.topk(routing.chosen, dim=-1).indices
    shares = scores.gather(-1, index)
    if routing.even:
        shares = shares / (shares.sum(-1, keepdim=True).clamp(min=scoring.least) + scoring.added)
    return (shares * scoring.scale).to(routing.dtype or logits.dtype), index


def _kept(wanted: Tensor, groups: ExpertGroups) -> Tensor:
    """The same [T, E], but for experts of the groups that are not kept."""
    apart: Tensor = wanted.reshape(len(wanted), groups.number, -1)
    of_group = apart.topk(groups.best, dim=-1).values.sum(-1)
    kept = torch.zeros_like(of_group, dtype=torch.bool)
    kept.scatter_(-1, of_group.topk(groups.kept, dim=-1).indices, True)
    left: Tensor = apart.masked_fill(~kept[..., None], -torch.inf)
    return left.flatten(-2)


# -- the form of a module, and a probe of that form -------------------------------------------------


class _Form(NamedTuple):
    """All of a module that its results may depend on, but for the numbers in its tensors."""

    kind: Any
    facts: tuple[tuple[str, Any], ...]
    tensors: tuple[
        tuple[str, tuple[int, ...] | None, bool], ...
    ]  # shapes, and which are parameters
    children: tuple[tuple[str, _Form], ...]


def _form_of(module: nn.Module) -> _Form:
    kind: Any = type(module)
    facts = {
        name: fact
        for name, fact in vars(module).items()
        if fact is None or isinstance(fact, int | float | str)
    }
    facts.pop("training", None)
    tensors = [
        (name, None if held is None else tuple(held.shape), is_parameter)
        for own, is_parameter in ((module._parameters, True), (module._buffers, False))
        for name, held in own.items()
        if name != ARRIVED
    ]
    children = tuple((name, _form_of(child)) for name, child in module.named_children())
    return _Form(kind, tuple(sorted(facts.items())), tuple(tensors), children)


def _tensors_in(form: _Form, prefix: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape, _ in form.tensors:
        if shape is not None:
            yield prefix + name, shape
    for name, child in form.children:
        yield from _tensors_in(child, f"{prefix}{name}.")


def _built(form: _Form, numbers: dict[str, Tensor], prefix: str = "") -> Any:
    """A module of this form with these numbers in its tensors."""
    module: Any = form.kind.__new__(form.kind)
    nn.Module.__init__(module)
    for name, fact in form.facts:
        setattr(module, name, fact)
    for name, shape, is_parameter in form.tensors:
        held = None if shape is None else numbers[prefix + name].clone()
        if not is_parameter:
            module.register_buffer(name, held)
        else:
            own = None if held is None else nn.Parameter(held, requires_grad=False)
            module.register_parameter(name, own)
    for name, child in form.children:
        module.add_module(name, _built(child, numbers, f"{prefix}{name}."))
    return module.train(False)


class _Answer(NamedTuple):
    """Logits, shares and experts of a router, and how it gave them."""

    logits: Tensor
    shares: Tensor
    experts: Tensor
    is_beside: bool = False  # whether a vector had to be given beside the inputs
    is_reversed: bool = False  # whether experts came first


class _Probe(NamedTuple):
    """A form whose tensors have their parts: a weight, and at most one number for each expert."""

    form: _Form
    weight: str
    vector: str | None
    num_experts: int

    def ask(
        self, weight: Tensor, vector: Tensor, x: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> _Answer:
        """The answer of a module of this form to x [T, K]."""
        shapes = dict(_tensors_in(self.form))
        numbers = {self.weight: weight}
        if self.vector is not None:
            numbers[self.vector] = vector.reshape(shapes[self.vector])
        probe = _built(self.form, numbers).to(dtype)
        probe.hidden_dim = probe.hidden_size = probe.in_features = weight.shape[1]
        besides = [[]] if self.vector is not None else [[], [vector.to(dtype)]]
        for beside, inputs in itertools.product(besides, (x.to(dtype), x[None].to(dtype))):
            try:
                first, shares, last = probe(inputs, *beside)
            except BREAKS:
                continue
            if all(isinstance(each, Tensor) and each.dim() == 2 for each in (first, shares, last)):
                is_reversed = last.is_floating_point()
                logits, index = (last, first) if is_reversed else (first, last)
                return _Answer(logits, shares, index, bool(beside), is_reversed)
        raise TypeError("no router, or one that asks for more")


def _probe_of(form: _Form) -> _Probe | None:
    tensors = dict(_tensors_in(form))
    weights = [name for name, shape in tensors.items() if len(shape) == 2 and shape[0] > 1]
    if len(weights) != 1 or not weights[0].endswith(_WEIGHT):
        return None
    (weight,) = weights
    num_experts, inputs = tensors.pop(weight)
    vectors = list(tensors.items())
    if num_experts > _MOST_EXPERTS or inputs % ALIGNED or len(vectors) > 1:
        return None
    if any(torch.Size(shape).numel() != num_experts for _, shape in vectors):
        return None
    return _Probe(form, weight, vectors[0][0] if vectors else None, num_experts)


# -- what a probe computes --------------------------------------------------------------------------


def routing_of(module: Any) -> Routing | None:
    """How this router chooses; None if it is none, or one that chooses in another way."""
    tensors = [*module.parameters(), *module.buffers()]
    weights = [each for each in tensors if each.dim() == 2 and each.shape[0] > 1]
    if len(weights) != 1 or not all(isinstance(each, nn.Parameter) for each in weights):
        return None
    return _routing_of_form(_form_of(module))


@functools.cache
def _routing_of_form(form: _Form) -> Routing | None:
    probe = _probe_of(form)
    if probe is None:
        return None
    try:
        with quiet(), seeded(0), torch.no_grad():
            return _routing_by_probe(probe)
    except BREAKS:
        return None


def _routing_by_probe(probe: _Probe) -> Routing | None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(probe.num_experts, _PROBE, generator=generator)
    vector = torch.randn(probe.num_experts, generator=generator)
    x = torch.randn(_ROWS, _PROBE, generator=generator)
    answer = probe.ask(weight, vector, x)
    logits, shares, index = answer[:3]
    chosen = index.shape[1]
    if logits.shape != (_ROWS, probe.num_experts) or {shares.shape, index.shape} != {
        (_ROWS, chosen)
    }:
        return None
    biases = [None] if probe.vector is None else [None, vector]
    expected = [functional.linear(x, weight, bias) for bias in biases]
    same = [torch.allclose(logits, each, atol=1e-5) for each in expected]
    if not any(same):
        return None
    has_correction = answer.is_beside or (probe.vector is not None and same[0])
    where = (GIVEN if answer.is_beside else probe.vector) if has_correction else None
    bias = probe.weight.removesuffix(_WEIGHT) + _BIAS
    if (probe.vector == bias) == has_correction and probe.vector is not None:
        return None  # a product's bias that is none, or another number in its place
    half = probe.ask(weight, vector, x, dtype=torch.bfloat16)
    routing = Routing(
        chosen,
        even=False,
        dtype=None if half.shares.dtype == torch.bfloat16 else half.shares.dtype,
        is_wide=not torch.equal(half.logits.float(), half.logits.bfloat16().float()),
        correction=where,
        weight=probe.weight,
        is_reversed=answer.is_reversed,
    )
    return _fitted(probe, routing)


class _Seen(NamedTuple):
    """The shares and experts that a probe has made of logits that we wrote down."""

    logits: Tensor
    correction: Tensor | None
    shares: Tensor
    experts: Tensor


def _fitted(probe: _Probe, routing: Routing) -> Routing | None:
    """The same with the scores, the groups and the shares that all of what the probe does is explained by."""
    numbers = {
        float(fact)
        for _, fact in probe.form.facts
        if isinstance(fact, int | float) and not isinstance(fact, bool) and math.isfinite(fact)
    }
    groupings = _groupings(probe.num_experts, routing.chosen, numbers)
    seen = _look(probe, routing, sorted({each.number for each in groupings if each}))
    small = sorted(each for each in numbers if 0 < each < 1e-3)
    floors = [(0.0, added) for added in {*_ADDED, *small}] + [(least, 0.0) for least in small]
    scales = sorted({1.0, *(each for each in numbers if each > 0)})
    has_correction = [True, False] if routing.correction is not None else [False]
    for is_corrected, by_sigmoid, groups in itertools.product(
        has_correction, (False, True), groupings
    ):
        found = routing._replace(
            dtype=torch.float32,
            scoring=Scoring(by_sigmoid, groups),
            correction=routing.correction if is_corrected else None,
        )
        if not _explains(found, seen, of_shares=False):
            continue
        evens = [(False, (0.0, 0.0)), *((True, floor) for floor in floors)]
        for (even, (least, added)), scale in itertools.product(evens, scales):
            scoring = found.scoring._replace(least=least, added=added, scale=scale)
            found = found._replace(even=even, scoring=scoring)
            if _explains(found, seen, of_shares=True):
                return found._replace(dtype=routing.dtype)
    return None


def _groupings(num_experts: int, chosen: int, numbers: set[float]) -> list[ExpertGroups | None]:
    """No groups, or those that a class's own numbers may mean."""
    counts = sorted(int(each) for each in numbers if each == int(each))
    found: list[ExpertGroups | None] = [None]
    for number, kept in itertools.product(counts, counts):
        if 1 <= kept < number <= num_experts and num_experts % number == 0:
            size = num_experts // number
            if kept * size >= chosen:
                found += [ExpertGroups(number, kept, best) for best in (1, 2) if best <= size]
    return found


def _look(probe: _Probe, routing: Routing, numbers: list[int]) -> list[_Seen]:
    """Shares and experts of logits at which something is at stake, with corrections of all kinds."""
    generator = torch.Generator().manual_seed(1)
    one = torch.eye(probe.num_experts)
    seen = []
    for low, high in _CORRECTIONS:
        at_random = torch.rand(probe.num_experts, generator=generator)
        order = torch.randperm(probe.num_experts, generator=generator)
        # Sums of them, too, are all different.
        vector = low + (high - low) * (order + at_random) / probe.num_experts
        rows = _at_stake(probe.num_experts, numbers, generator)
        # The last token has none but numbers that are none.
        x = torch.cat((rows, torch.full_like(rows[:1], torch.nan)))
        bias = torch.zeros_like(vector) if routing.correction is None else vector
        logits, shares, index = probe.ask(one, bias, x)[:3]
        if not torch.allclose(logits[:-1], rows, atol=1e-6) or not shares[-1].isnan().any():
            raise ValueError("logits of another kind, or shares of what is no number")
        correction = None if routing.correction is None else vector
        seen.append(_Seen(logits[:-1], correction, shares[:-1], index[:-1]))
    return seen


def _at_stake(num_experts: int, numbers: list[int], generator: torch.Generator) -> Tensor:
    """Logits [T, E] for a probe with so many experts and perhaps so many groups."""

    def normal(spread: float, mean: float = 0.0) -> Tensor:
        return mean + spread * torch.randn(_ROWS, num_experts, generator=generator)

    rows = [normal(spread) for spread in (0.3, 1.0, 2.0, 12.0)]
    # Scores as small as what is added to their sum, and far below.
    rows += [normal(1.0, mean) for mean in (-46.0, -60.0)]
    for number in numbers:
        # A group with the best expert of all and no second one, beside groups with two good ones.
        row = torch.arange(_ROWS)
        grouped = normal(0.2, -2.5).unflatten(1, (number, -1))
        grouped[..., :2] += 3.5
        alone = torch.randint(number, (_ROWS,), generator=generator)
        grouped[row, alone] = normal(0.2, -4.0).unflatten(1, (number, -1))[row, alone]
        grouped[row, alone, 0] = 3.0
        shuffled = torch.randperm(grouped.shape[-1], generator=generator)
        rows.append(grouped[..., shuffled].flatten(1))
    made = torch.cat(rows)
    return made - (made.amax(-1, keepdim=True) - _HIGHEST).clamp(min=0)


def _explains(routing: Routing, seen: list[_Seen], *, of_shares: bool) -> bool:
    for logits, correction, shares, experts in seen:
        ours, which = plain_choice(
            logits, routing, None if routing.correction is None else correction
        )
        which, order = which.sort(-1)
        theirs, their_order = experts.sort(-1)
        if not torch.equal(which, theirs):
            return False
        ours, shares = ours.gather(-1, order), shares.float().gather(-1, their_order)
        if of_shares and not torch.allclose(ours, shares, rtol=_RELATIVE, atol=1e-30):
            return False
    return True
