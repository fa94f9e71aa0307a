"""How far a join of branches is from the exact one (PDOS, section 3, stage 3; `strategies/branch_joins.py`).

Behind a join the run goes on from a distribution over the next token. Had the same text been read
causally from its beginning, as an ordinary sequence, it would have been another: the branches would
have read each other. Both are computed here from the run's trace; the run itself costs no pass more.

    strategy = measure_joins(branches(question, text, settings), engine.replay)
    engine.run(strategy).join_distances

What is compared is the first row of the strand behind each join. In a second block, the text before it
holds the first join already, and its distance is part of what is measured: the exact text has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.replay.forward import merge_trace
from manyhands.replay.merged import Merged, merge_passes
from manyhands.replay.trace import Trace, parse_trace, record
from manyhands.schema.lines import Line
from manyhands.strategies.base import AnswerT, Work
from manyhands.strategies.branches import BRANCH, BranchAnswer, JoinDistance
from manyhands.strategies.strand import MAIN

# Logits [len(rows), V] of these rows of a run: `Engine.replay`, or `replay_logits` with a network.
LogitsOf = Callable[[Merged, Sequence[int]], Tensor]


def measure_joins(strategy: Work[AnswerT], logits_of: LogitsOf) -> Work[AnswerT]:
    """`branches`, the same token for token; its answer also says how far each join was off."""
    lines: list[Line] = []
    answer = yield from record(strategy, {}, lines.append)
    if not isinstance(answer, BranchAnswer):
        return answer
    return replace(answer, join_distances=join_distances(parse_trace(lines), logits_of))


@torch.inference_mode()
def join_distances(trace: Trace, logits_of: LogitsOf) -> tuple[JoinDistance, ...]:
    """The distance of every join in a run of `branches` behind which the strand went on."""
    joins = list(_joins(trace))
    if not joins:
        return ()
    logits = logits_of(merge_trace(trace), [join.row for join in joins])  # [joins, V]
    return tuple(
        _distance(block, here, causal_logits(join.tokens, logits_of))
        for block, (here, join) in enumerate(zip(logits, joins, strict=True), 1)
    )


def causal_logits(tokens: tuple[int, ...], logits_of: LogitsOf) -> Tensor:
    """Logits [V] behind these tokens, read as one ordinary sequence."""
    step = Step([Row(View([Block("exact")]), tokens)])
    return logits_of(merge_passes([step], len(tokens)), [0])[0]


@dataclass(frozen=True)
class _Join:
    row: int  # of all rows of the trace
    tokens: tuple[int, ...]  # all that it reads, in order


def _joins(trace: Trace) -> Iterator[_Join]:
    """The rows in which the strand writes again, after branches have."""
    first_row, parted = 0, False
    for step, rows in trace.steps():
        for row in step.rows:
            row.view.own.tokens.extend(row.feed)
        writers = [row.writer or "" for row in rows]
        if any(writer.startswith(BRANCH) for writer in writers):
            parted = True
        elif parted and MAIN in writers:
            at, parted = writers.index(MAIN), False
            blocks = step.rows[at].view.blocks
            yield _Join(first_row + at, tuple(t for block in blocks for t in block.tokens))
        first_row += len(rows)


def _distance(block: int, join: Tensor, exact: Tensor) -> JoinDistance:
    ours, theirs = join.double().log_softmax(-1), exact.double().log_softmax(-1)  # [V]
    largest = (ours.exp() - theirs.exp()).abs().max()
    kl = (theirs.exp() * (theirs - ours)).sum()
    return JoinDistance(block, float(largest), max(0.0, float(kl)))
