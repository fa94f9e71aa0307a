"""Transcripts: the worker and the forward pass of each token, as columns for a page.

A worker's tokens are parted into its steps by the passes in which they ended; what stands after the
last one was still on the desk when the run ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.evaluation.judge import name_of
from manyhands.evaluation.record import Record


@dataclass(frozen=True)
class Passage:
    """One step of one worker: its tokens, each with the pass that wrote it."""

    title: str
    first_pass: int
    last_pass: int
    tokens: Sequence[tuple[int, str]]


@dataclass(frozen=True)
class Column:
    """The text of one worker."""

    name: str
    passages: Sequence[Passage]
    num_tokens: int


@dataclass(frozen=True)
class Transcript:
    """One run, side by side."""

    record: Record
    columns: Sequence[Column]
    num_passes: int


def transcript_of(record: Record, names: Sequence[str]) -> Transcript:
    """The columns of a record that kept its writing."""
    workers = sorted({int(token[0]) for token in record.writing})
    columns = [_column(worker, record, names) for worker in workers]
    last = max((int(token[1]) for token in record.writing), default=0)
    return Transcript(record, columns, last)


def _column(worker: int, record: Record, names: Sequence[str]) -> Column:
    tokens = [(int(at), str(text)) for who, at, text in record.writing if who == worker]
    steps = sorted((s for s in record.steps if s["worker"] == worker), key=lambda s: s["last_pass"])
    passages, left = [], tokens
    for step in steps:
        inside = [token for token in left if token[0] <= step["last_pass"]]
        left = left[len(inside) :]
        if inside:
            asked = ", asked whether it is redundant" if step.get("checked") else ""
            passages.append(_passage(f"step {step['step']}{asked}", inside))
    if any(text for _, text in left):  # the end of a turn is no word
        passages.append(_passage("unfinished" if steps else "text", left))
    return Column(name_of(worker, record, names), passages, len(tokens))


def _passage(title: str, tokens: Sequence[tuple[int, str]]) -> Passage:
    return Passage(title, tokens[0][0], tokens[-1][0], tokens)
