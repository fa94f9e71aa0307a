"""Long feeds in several passes (chunked prefill).

Activations grow with the tokens of a pass, so a pass is bounded, and a prompt of a hundred thousand
tokens is fed in chunks. The bound must not show: a step promises that all rows are written before any
of them reads. A row may be fed *early* only if it reads nothing that the others write in this step;
then its early tokens meet the same keys before the step as in it. A row that reads *it* sees all of it,
for the last tokens of all rows are fed together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from manyhands.cache.step import Row, Step


def in_chunks(step: Step, most_tokens: int) -> tuple[list[Step], Step]:
    """The steps that are fed early, in order, and the step that is left: together they feed what `step` feeds.

    The step that is left has all rows, and no pass has more than `most_tokens` tokens, unless rows
    must be fed together that are longer. Rows that are fed early have no writer: nothing is chosen.
    """
    excess = sum([len(row.feed) for row in step.rows]) - most_tokens
    if excess <= 0:
        return [], step
    num_early = {}
    for row in _may_be_early(step):
        num_early[row] = min(excess, len(row.feed) - 1)
        excess -= num_early[row]
    rest = [_part(row, num_early.get(row, 0)) for row in step.rows]
    early = [_part(row, 0, size) for row, size in num_early.items() if size]
    return list(_filled(early, most_tokens)), Step(rest)


def first_part(step: Step, most_tokens: int) -> Step | None:
    """The part of a step that can be fed in a pass of its own, at most so many tokens; None: feed it whole.

    So has a step that asks for logprobs of what it feeds: they are answered together.
    """
    assert most_tokens > 0, "a part feeds something"
    if any(row.targets for row in step.rows):
        return None
    if sum(len(row.feed) for row in step.rows) <= most_tokens:
        return None
    chunk, room = [], most_tokens
    for row in _may_be_early(step):
        if size := min(room, len(row.feed) - 1):
            chunk.append(_part(row, 0, size))
            room -= size
    return Step(chunk) if chunk else None


def without(step: Step, part: Step) -> Step:
    """The step that is left when part of it was fed."""
    sizes = {row.view.own: len(row.feed) for row in part.rows}
    return Step(replace(row, feed=row.feed[sizes.get(row.view.own, 0) :]) for row in step.rows)


def _part(row: Row, start: int, stop: int | None = None) -> Row:
    """A row that feeds a part of what `row` feeds; only the last part writes for somebody."""
    feed, targets = row.feed[start:stop], row.targets[start:stop]
    if stop is None:
        return replace(row, feed=feed, targets=targets)
    return replace(row, feed=feed, targets=targets, writer=None, draft=())


def _may_be_early(step: Step) -> Iterator[Row]:
    written = {row.view.own for row in step.rows}
    for row in step.rows:
        if written.isdisjoint(row.view.blocks[:-1]):
            yield row


def _filled(rows: list[Row], most_tokens: int) -> Iterator[Step]:
    """Steps of `most_tokens` tokens, the last one of fewer, that feed these rows one behind another."""
    chunk: list[Row] = []
    room = most_tokens
    for row in rows:
        start = 0
        while start < len(row.feed):
            chunk.append(_part(row, start, start + room))
            start += len(chunk[-1].feed)
            room -= len(chunk[-1].feed)
            if not room:
                yield Step(chunk)
                chunk, room = [], most_tokens
    if chunk:
        yield Step(chunk)
