"""A Trace: everything a run did, in integers and words, one JSON object a line.

    {"kind": "header", "schema": 1, "model": ..., "method": ..., "settings": {...}, "problem": ...}
    {"kind": "block", "id": 0, "name": "prompt"}
    {"kind": "view", "id": 0, "blocks": [0]}
    {"kind": "freeze", "block": 4}
    {"kind": "pass", "rows": [[view, [fed tokens], chosen token, writer or null], ...]}
    {"kind": "event", "event": "StepEnded", ...}
    {"kind": "end", "answer": {...}}

Lengths and positions follow from the order of the lines, so these are the integers of Hogwild!
Inference, app. B ("Fine-tuning and re-encoding"): which rows read which blocks, at which start, how
much of them, in every pass. A trace that was cut off is still good up to its last whole line.

`record` wraps any strategy and writes down what passes between it and the engine; neither notices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import View
from manyhands.errors import BrokenTrace
from manyhands.strategies.base import Answer, Event, Reserve, Strategy

SCHEMA = 1


@dataclass(frozen=True)
class TracedRow:
    """One row of one pass: ids of its view, what was fed, what was chosen, whose word that is."""

    view: int
    feed: tuple[int, ...]
    token: int
    writer: str | None


@dataclass
class Trace:
    """A run. `freezes[i]` are the blocks frozen before pass i."""

    header: dict[str, Any]
    blocks: list[str] = field(default_factory=list)
    views: list[tuple[int, ...]] = field(default_factory=list)
    passes: list[tuple[TracedRow, ...]] = field(default_factory=list)
    freezes: dict[int, list[int]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    answer: dict[str, Any] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the run ended by itself."""
        return self.answer is not None

    @property
    def num_tokens(self) -> int:
        """Tokens fed in all passes."""
        return sum(len(row.feed) for rows in self.passes for row in rows)

    def steps(self) -> Iterator[tuple[Step, tuple[TracedRow, ...]]]:
        """The run's steps once more, over fresh blocks, each with what was recorded of it.

        Whoever drives this appends the fed tokens to the blocks, as the engine does.
        """
        blocks = [Block(name) for name in self.blocks]
        views: dict[int, View] = {}
        for index, rows in enumerate(self.passes):
            for block in self.freezes.get(index, ()):
                blocks[block].freeze()
            for row in rows:
                if row.view not in views:
                    views[row.view] = View(blocks[block] for block in self.views[row.view])
            yield Step(Row(views[r.view], r.feed, writer=r.writer) for r in rows), rows


Line = dict[str, Any]


class Recorder:
    """Turns steps and tokens into lines, giving blocks and views their numbers as they appear."""

    def __init__(self, write: Callable[[Line], None]) -> None:
        self.write = write
        self._blocks: dict[Block, int] = {}
        self._frozen: set[Block] = set()
        self._views: dict[View, int] = {}

    def record_pass(self, step: Step, tokens: Sequence[int]) -> None:
        """One forward pass, after it was answered."""
        views = [self._view_id(row.view) for row in step.rows]
        rows = [
            [view, list(row.feed), token, row.writer]
            for view, row, token in zip(views, step.rows, tokens, strict=True)
        ]
        self.write({"kind": "pass", "rows": rows})

    def _view_id(self, view: View) -> int:
        if view not in self._views:
            blocks = [self._block_id(block) for block in view.blocks]
            self._views[view] = len(self._views)
            self.write({"kind": "view", "id": self._views[view], "blocks": blocks})
        return self._views[view]

    def _block_id(self, block: Block) -> int:
        if block not in self._blocks:
            self._blocks[block] = len(self._blocks)
            self.write({"kind": "block", "id": self._blocks[block], "name": block.name})
        if block.frozen and block not in self._frozen:
            self._frozen.add(block)
            self.write({"kind": "freeze", "block": self._blocks[block]})
        return self._blocks[block]


def record(
    strategy: Strategy, header: Mapping[str, Any], write: Callable[[Line], None]
) -> Strategy:
    """The same strategy, with every line of its trace handed to `write` as it comes about."""
    write({"kind": "header", "schema": SCHEMA, **header})
    recorder = Recorder(write)
    asked: Step | Reserve | Event
    tokens: tuple[int, ...] | None = None
    try:
        while True:
            try:
                asked = strategy.send(tokens)
            except StopIteration as end:
                answer: Answer = end.value
                write({"kind": "end", "answer": asdict(answer)})
                return answer
            if isinstance(asked, Event):
                write({"kind": "event", "event": type(asked).__name__, **asdict(asked)})
            tokens = yield asked
            if isinstance(asked, Step):
                assert tokens is not None, "a step is answered with one token per row"
                recorder.record_pass(asked, tokens)
    finally:
        strategy.close()


def read_trace(path: Path | str) -> Trace:
    """Load a trace. A damaged or foreign file raises BrokenTrace; a last line cut off is left out."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise BrokenTrace(f"{path} is not text (UTF-8)", hint="Give a trace file (JSONL).") from error
    except OSError as error:
        raise BrokenTrace(f"{path} cannot be read: {error.strerror}") from error
    whole = lines[:-1]  # what follows the last line feed was cut off, or is empty
    if not whole:
        raise BrokenTrace(f"{path} holds no whole line", hint="The run may have ended before its first pass.")
    return parse_trace([_parsed(path, n, line) for n, line in enumerate(whole, 1)], str(path))


def _parsed(path: Path | str, number: int, line: str) -> Line:
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError as error:
        raise BrokenTrace(
            f"line {number} of {path} is not JSON: {error.msg}", hint="The file is damaged."
        ) from error
    if not isinstance(parsed, dict) or "kind" not in parsed:
        raise BrokenTrace(f"line {number} of {path} is not a line of a trace")
    return parsed


def parse_trace(lines: Sequence[Line], source: str = "the trace") -> Trace:
    """A trace from its lines, checked: every number refers to something that came before it."""
    first = lines[0]
    if first["kind"] != "header" or first.get("schema") != SCHEMA:
        raise BrokenTrace(
            f"{source} begins with {first.get('kind')!r}, schema {first.get('schema')!r}; "
            f"expected a header of schema {SCHEMA}",
            hint="The file is no trace, or comes from another version of manyhands.",
        )
    trace = Trace(header=first)
    for number, line in enumerate(lines[1:], 2):
        try:
            _take(trace, line)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BrokenTrace(
                f"line {number} of {source} does not fit what came before it ({error!r})",
                hint="The file is damaged.",
            ) from error
    return trace


def _take(trace: Trace, line: Line) -> None:
    match line["kind"]:
        case "block":
            _in_order(line["id"], trace.blocks)
            trace.blocks.append(str(line["name"]))
        case "view":
            _in_order(line["id"], trace.views)
            trace.views.append(tuple(_known(block, trace.blocks) for block in line["blocks"]))
        case "freeze":
            frozen = trace.freezes.setdefault(len(trace.passes), [])
            frozen.append(_known(line["block"], trace.blocks))
        case "pass":
            rows = (
                TracedRow(_known(view, trace.views), tuple(map(int, feed)), int(token), writer)
                for view, feed, token, writer in line["rows"]
            )
            trace.passes.append(tuple(rows))
        case "event":
            trace.events.append({key: line[key] for key in line if key != "kind"})
        case "end":
            trace.answer = dict(line["answer"])
        case other:
            raise ValueError(f"unknown kind {other!r}")


def _in_order(number: int, known: Sequence[Any]) -> None:
    if number != len(known):
        raise ValueError(f"number {number} came as number {len(known)}")


def _known(number: int, known: Sequence[Any]) -> int:
    if not 0 <= number < len(known):
        raise ValueError(f"number {number} is unknown")
    return int(number)
