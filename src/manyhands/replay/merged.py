"""All passes of a run as one Plan, so that one parallel forward can rebuild its attention.

A run attends pass after pass: a token's keys exist, from its pass on, at the slots where the planner
put them (at its desk; after a move, also in the history). Nothing is ever overwritten if no page is
used twice. So the reads of all passes, each with its own row, base and range, can stand in one plan
over the keys of all tokens: an earlier query is kept from later keys by its range, not by time.

This is the 4D mask of Hogwild! Inference, app. B, as integers, for any strategy and any layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from manyhands.cache.block import Block
from manyhands.cache.pages import PagePool
from manyhands.cache.places import Ints, Move
from manyhands.cache.plan import PageTables, Plan, Reads
from manyhands.cache.planner import Planner
from manyhands.cache.step import Step
from manyhands.replay.text_rows import TextRows


@dataclass(frozen=True, eq=False)
class Merged:
    """A whole run: the plan of all its passes, and where each slot's key comes from.

    `slot_token` [S] is the packed token whose key lies there, `slot_offset` [S] its offset;
    `pass_indptr` [passes + 1] says which rows belong to which pass.
    """

    plan: Plan  # with the states of its rows of text, where a network keeps any (`replay/text_rows.py`)
    slot_token: Ints
    slot_offset: Ints
    pass_indptr: Ints


def merge_passes(
    steps: Iterable[Step],
    num_tokens: int,
    found: Sequence[Block] = (),
    text_rows: TextRows | None = None,
) -> Merged:
    """Plan every step as the engine would, without a model, and put the plans into one.

    `num_tokens` is what all steps together feed. Appends each step's feeds to its blocks, as the
    engine does. `found` are blocks that hold tokens already: their keys come from elsewhere, and are
    numbered, in this order, behind the tokens that are fed. `text_rows`: follows the steps for a network that keeps states,
    and raises InvalidRequest where such a network does not bear one.
    """
    # Pages of one slot, each used once; a token is written once and moved at most once.
    num_found = sum(block.num_tokens for block in found)
    pool = PagePool(2 * (num_tokens + num_found), page_size=1, recycle=False)
    pool.reserve((block, block.num_tokens) for block in found)
    found_slots = [pool.slots(pool.place(block).strip, 0, block.num_tokens) for block in found]
    planner = Planner(pool)
    plans: list[tuple[list[Move], Plan]] = []  # with what is moved before each
    # Kept alive: no block may be forgotten before the end. In the order in which they are met, which is that of the states behind them.
    blocks: dict[Block, None] = {}
    for step in steps:
        moves: list[Move] = []
        plan = planner.plan(step)
        pool.make_moves(moves.extend)
        plans.append((moves, plan))
        if text_rows is not None:
            text_rows.feed(step)
        for row in step.rows:
            blocks.update(dict.fromkeys(row.view.blocks))
            row.view.own.tokens.extend(row.feed)
        pool.keep()
    merged = _in_one(plans, pool.num_slots - pool.num_free_pages, found_slots)
    if text_rows is None:
        return merged
    return replace(merged, plan=replace(merged.plan, states=text_rows.end(blocks)))


def _in_one(
    moved: Sequence[tuple[Sequence[Move], Plan]], num_slots: int, found_slots: Sequence[Ints]
) -> Merged:
    plans = [plan for _, plan in moved]
    slot_token = np.zeros(num_slots, dtype=np.int64)
    slot_offset = np.zeros(num_slots, dtype=np.int64)
    num_tokens = sum(plan.num_tokens for plan in plans)
    for slots in found_slots:
        slot_token[slots] = np.arange(num_tokens, num_tokens + len(slots))
        slot_offset[slots] = np.arange(len(slots))
        num_tokens += len(slots)
    num_tokens = 0
    for moves, plan in moved:
        for move in moves:
            slot_token[move.targets] = slot_token[move.sources]
            slot_offset[move.targets] = slot_offset[move.sources] + move.shift
        slot_token[plan.slots] = np.arange(num_tokens, num_tokens + plan.num_tokens)
        slot_offset[plan.slots] = plan.offsets
        num_tokens += plan.num_tokens
    num_rows = np.array([plan.num_rows for plan in plans])
    sizes = np.concatenate([np.diff(plan.row_indptr) for plan in plans])
    plan = Plan(
        token_ids=np.concatenate([plan.token_ids for plan in plans]),
        row_indptr=np.concatenate(([0], np.cumsum(sizes))),
        positions=np.concatenate([plan.positions for plan in plans]),
        offsets=np.concatenate([plan.offsets for plan in plans]),
        slots=np.concatenate([plan.slots for plan in plans]),
        reads=_regrouped(plans),
        page_size=1,
    )
    return Merged(plan, slot_token, slot_offset, np.concatenate(([0], np.cumsum(num_rows))))


def _regrouped(plans: Sequence[Plan]) -> Reads:
    """The reads of all passes, sorted by strip and first key. No page is used twice: a strip's first names it."""
    tables: dict[int, Ints] = {}
    strips, rows = [], []
    first_row = 0
    for plan in plans:
        reads = plan.reads
        for pages in reads.pages:
            name = int(pages[0])
            if name not in tables or len(pages) > len(tables[name]):
                tables[name] = pages
        names = np.array([pages[0] for pages in reads.pages])
        strips.append(np.repeat(names, np.diff(reads.strip_indptr)))
        rows.append(reads.row + first_row)
        first_row += plan.num_rows
    strip = np.concatenate(strips)
    order = np.lexsort((np.concatenate([plan.reads.low for plan in plans]), strip))
    names, counts = np.unique(strip, return_counts=True)

    def column(name: str) -> Ints:
        return np.concatenate([getattr(plan.reads, name) for plan in plans])[order]

    return Reads(
        row=np.concatenate(rows)[order],
        base=column("base"),
        low=column("low"),
        high=column("high"),
        strip_indptr=np.concatenate(([0], np.cumsum(counts))),
        pages=PageTables.of(tables[int(name)] for name in names),
    )


def side_by_side(runs: Sequence[Merged]) -> Merged:
    """Several runs in one plan: a batch. None of them reads another."""
    tokens = _offsets([run.plan.num_tokens for run in runs])
    rows = _offsets([run.plan.num_rows for run in runs])
    slots = _offsets([len(run.slot_token) for run in runs])
    reads = [run.plan.reads for run in runs]

    def joined(arrays: Iterable[Ints], offsets: Ints | None = None) -> Ints:
        if offsets is None:
            return np.concatenate(list(arrays))
        return np.concatenate([a + o for a, o in zip(arrays, offsets, strict=True)])

    plan = Plan(
        token_ids=joined(run.plan.token_ids for run in runs),
        row_indptr=np.append(
            joined((run.plan.row_indptr[:-1] for run in runs), tokens),
            tokens[-1] + runs[-1].plan.num_tokens,
        ),
        positions=joined(run.plan.positions for run in runs),
        offsets=joined(run.plan.offsets for run in runs),
        slots=joined((run.plan.slots for run in runs), slots),
        reads=Reads(
            row=joined((r.row for r in reads), rows),
            base=joined(r.base for r in reads),
            low=joined(r.low for r in reads),
            high=joined(r.high for r in reads),
            strip_indptr=np.concatenate(
                ([0], np.cumsum(np.concatenate([np.diff(r.strip_indptr) for r in reads])))
            ),
            pages=PageTables.of(p + o for r, o in zip(reads, slots, strict=True) for p in r.pages),
        ),
        page_size=1,
    )
    return Merged(
        plan,
        joined((run.slot_token for run in runs), tokens),
        joined(run.slot_offset for run in runs),
        np.concatenate(([0], np.cumsum(np.concatenate([np.diff(r.pass_indptr) for r in runs])))),
    )


def _offsets(sizes: Sequence[int]) -> Ints:
    return np.cumsum([0, *sizes[:-1]])
