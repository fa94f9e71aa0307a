"""The gate: no number without a right answer on the same shape.

Three checks, each with the largest error it lets through. The op, for some rows, against the slow and
obvious backend in float64. A whole decode step, with everything a user gets (graphs and all), against
the same network with the plain torch backend. And at one length a whole step against Hugging Face's own
code on the same keys and values (`benchmarks/peers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.engine_parts import executor_of
from manyhands.attention.attend import LayerCall
from manyhands.attention.eight_bits import EightBitStore
from manyhands.attention.reference import ReferenceBackend
from manyhands.attention.store import LayerStore
from manyhands.cache.plan import Plan, of_rows
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.passes import Passes
from manyhands.model.settings import ModelSettings

# Worst element of the op, over the largest true one. Two bytes keep 8 (bfloat16) or 11 bits: outputs
# are rounded once, softmax weights once before they meet the values.
OP_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}
# Logits, root mean square of the difference over that of the logits, times the root of the number of
# layers: rounding happens some ten times a layer, in another order on each side, and a random network
# passes all of it on. In bfloat16 two right backends are 0.007 apart by this measure (12 and 64 layers
# alike); a view whose desks stand in the wrong order is 0.08 or more.
STEP_TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 4e-3, torch.float32: 2e-4}

# Tokens of a row that are looked at, from its first to its last: the slow backend takes its time.
MOST_TOKENS = 64


@dataclass(frozen=True)
class Checked:
    """How far off, and how far is allowed."""

    error: float
    tolerance: float

    @property
    def is_green(self) -> bool:
        """Whether numbers may be written (an error that is not a number is red)."""
        return self.error <= self.tolerance


def check_op(
    out: Tensor,
    store: LayerStore,
    q: Tensor,
    plan: Plan,
    call: LayerCall,
    rows: list[int],
) -> Checked:
    """`out` [T, H, Dv] against float64, on tokens of some `rows`."""
    where, want = right(store, q, plan, call, rows)
    return check_against(out[where], want)


def right(
    store: LayerStore, q: Tensor, plan: Plan, call: LayerCall, rows: list[int]
) -> tuple[Tensor, Tensor]:
    """Some tokens of these `rows`, and the op's right answers for them in float64."""
    part, tokens = of_rows(plan, rows, MOST_TOKENS)
    where = torch.as_tensor(tokens, device=q.device)
    backend = ReferenceBackend()
    prepared = backend.prepare(part, q.device)
    return where, backend.attend(store, q[where].double(), prepared, call)


def check_against(out: Tensor, want: Tensor) -> Checked:
    """`out` against `want`, of the same shape and in float64."""
    error = (out.double() - want).abs().max() / want.abs().max()
    return Checked(_rounded(error), OP_TOLERANCE[out.dtype])


def plain(engine: Engine) -> Engine:
    """An engine over the same network and memory that attends in plain torch."""
    ours = executor_of(engine)
    few = ModelSettings(
        backend="torch",
        memory_tokens=engine.pool.page_size,
        states=None if ours.states is None else 2,
    )
    other = Engine(ours.adapter, settings=few)
    other.pool, other.planner = engine.pool, engine.planner
    theirs = executor_of(other)
    theirs.memory, theirs.states = ours.memory, ours.states
    theirs.passes = Passes(ours.adapter, ours.memory, theirs.backend, states=ours.states)
    return other


def check_step(engine: Engine, views: list[View], twins: list[View]) -> Checked:
    """One decode step over `views` against the plain engine over `twins`, which read the same.

    Where `twins` are fewer, they are those of the first rows; then no row may read another's own block. Keys
    in eight bits are as coarse as bfloat16 whatever the network's dtype: where its last bits differ, a new key
    may be rounded to the next integer.
    """
    ours = engine.forward(Step([Row(view, (1,)) for view in views])).float()
    theirs = plain(engine).forward(Step([Row(view, (1,)) for view in twins])).float()
    adapter = executor_of(engine).adapter
    is_rounded = isinstance(executor_of(engine).memory.stores[0], EightBitStore)
    dtype = torch.bfloat16 if is_rounded else adapter.dtype
    return compare(ours[: len(twins)], theirs, dtype, adapter.num_layers)


def compare(ours: Tensor, theirs: Tensor, dtype: torch.dtype, num_layers: int) -> Checked:
    """Two tensors of logits of a network so deep."""
    error = (ours - theirs).square().mean().sqrt() / theirs.square().mean().sqrt()
    return Checked(_rounded(error), round(STEP_TOLERANCE[dtype] * num_layers**0.5, 6))


def _rounded(error: Tensor) -> float:
    return float(f"{float(error):.3g}")
