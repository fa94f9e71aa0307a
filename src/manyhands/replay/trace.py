"""A Trace: everything a run did, in integers and words, one JSON object a line.

    {"kind": "header", "schema": 1, "model": ..., "method": ..., "names": [...], "settings": {...}, "problem": ...}
    {"kind": "block", "id": 0, "name": "prompt"}
    {"kind": "view", "id": 0, "blocks": [0]}              lanes are lists in it: [0, [[1], [2, 3]], 4],
                                                          and may hold lanes
    {"kind": "freeze", "block": 4}
    {"kind": "pass", "rows": [[view, [fed tokens], chosen token, writer or null], ...]}
                                                          a fifth part: tokens that were forbidden
    {"kind": "event", "event": "StepEnded", ...}          strategies/events.py
    {"kind": "heard", "listen": 12, "items": [...]}       strategies/listening.py; nothing heard, no line
    {"kind": "end", "answer": {...}}

Lengths and positions follow from the order of the lines, so these are the integers of Hogwild!
Inference, app. B ("Fine-tuning and re-encoding"): which rows read which blocks, at which start, how
much of them, in every pass. What was said to the run from outside stands where it was heard. A trace
that was cut off is still good up to its last whole line.

`record` wraps any strategy and writes down what passes between it and the engine; neither notices.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from manyhands.cache.block import Block
from manyhands.cache.step import Row, Step
from manyhands.cache.view import Item, Lanes, View
from manyhands.errors import BrokenTrace, InvalidRequest
from manyhands.schema.lines import Format, Line, read_lines
from manyhands.schema.plain import plain_as
from manyhands.schema.setting import as_found, check_function, check_given, is_number
from manyhands.strategies.base import Answer, AnswerT, Asked, Work, check_generator
from manyhands.strategies.events import EngineEvent, Event, from_line, to_line
from manyhands.strategies.listening import ITEMS, Heard, Listen
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec

SCHEMA = 1
TRACE_LINES = Format(
    "a trace",
    line="a line of a trace",
    fields=("kind",),
    begins=b'{"kind": "header", "schema": 1',
    schema=SCHEMA,
    error=BrokenTrace,
    hint="The file is damaged, or is no trace of manyhands.",
)
_OTHER_FILE = (
    "The file is damaged, or is no trace: `solve --transcript` writes one, and those of an exam lie in the folder `traces` "
    "beside its records (`eval --traces`)."
)
SCORE = "score"  # in the header of a run that was graded: 0 to 1
_LARGEST_TOKEN = 1 << 31
TracedItem = int | tuple[tuple["TracedItem", ...], ...]  # a block of a view, or its lanes
_Listed = int | list[list["_Listed"]]  # the same as JSON has it


def header_of(spec: RunSpec, place: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a run's trace, in one form at every door.

    `place` says by which model and where, with what the run is computed: its `versions` are joined by that of the
    distribution of an installed method.
    """
    name = spec.method.name
    own = METHODS.version(name) if name in METHODS else {}
    return {**place, "versions": {**place.get("versions", {}), **own}, **spec.to_plain()}


@dataclass(frozen=True)
class TracedRow:
    """One row of one pass: ids of its view, what was fed, what was chosen, whose word that is.

    `forbidden` are the tokens that its writer could not choose.
    """

    view: int
    feed: tuple[int, ...]
    token: int
    writer: str | None
    forbidden: frozenset[int] = frozenset()


@dataclass
class Trace:
    """A run. `freezes[i]` are the blocks frozen before pass i.

    `heard[n]` is what Listen number n heard, from 0 on; all others heard nothing. `events` are what the
    strategy reported, and before `events[i]` the run had made `event_passes[i]` passes. Events of the engine
    may stand in the file too: what a strategy does follows from the rest, so `num_lines` counts the lines
    without them.
    """

    header: dict[str, Any]
    blocks: list[str] = field(default_factory=list)
    views: list[tuple[TracedItem, ...]] = field(default_factory=list)
    passes: list[tuple[TracedRow, ...]] = field(default_factory=list)
    freezes: dict[int, list[int]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    event_passes: list[int] = field(default_factory=list)
    engine_events: list[EngineEvent] = field(default_factory=list)
    heard: dict[int, Heard] = field(default_factory=dict)
    answer: dict[str, Any] | None = None
    num_lines: int = 1  # of the run itself, its header included

    @property
    def is_complete(self) -> bool:
        """Whether the run ended by itself."""
        return self.answer is not None

    @property
    def score(self) -> float | None:
        """How right its answer is, 0 to 1; None where it was not graded."""
        value = self.header.get(SCORE)
        return None if value is None else float(value)

    @property
    def num_tokens(self) -> int:
        """Tokens fed in all passes."""
        return sum(len(row.feed) for rows in self.passes for row in rows)

    def steps(
        self, blocks: Sequence[Block] | None = None
    ) -> Iterator[tuple[Step, tuple[TracedRow, ...]]]:
        """The run's steps once more, over fresh blocks, each with what was recorded of it.

        Whoever drives this appends the fed tokens to the blocks, as the engine does. `blocks` are
        the fresh ones, if the caller has made them.
        """
        blocks = [Block(name) for name in self.blocks] if blocks is None else blocks
        views: dict[int, View] = {}
        for index, rows in enumerate(self.passes):
            for block in self.freezes.get(index, ()):
                blocks[block].freeze()
            for row in rows:
                if row.view not in views:
                    views[row.view] = View(_item(blocks, item) for item in self.views[row.view])
            yield Step(Row(views[r.view], r.feed, writer=r.writer) for r in rows), rows


def _item(blocks: Sequence[Block], item: TracedItem) -> Item:
    if isinstance(item, int):
        return blocks[item]
    return Lanes([_item(blocks, inner) for inner in lane] for lane in item)


class Recorder:
    """Turns steps and tokens into lines, giving blocks and views their numbers as they appear."""

    def __init__(self, write: Callable[[Line], None]) -> None:
        self.write = write
        # Weak, because a block that the strategy has let go of must not stay in memory for us.
        self._blocks: weakref.WeakKeyDictionary[Block, int] = weakref.WeakKeyDictionary()
        self._frozen: weakref.WeakSet[Block] = weakref.WeakSet()
        self._views: weakref.WeakKeyDictionary[View, int] = weakref.WeakKeyDictionary()
        self._block_numbers, self._view_numbers, self._listens = count(), count(), count()

    def record_pass(self, step: Step, tokens: Sequence[int]) -> None:
        """One forward pass, after it was answered."""
        views = [self._view_id(row.view) for row in step.rows]
        rows = [
            [view, list(row.feed), token, row.writer, *_forbidden(row)]
            for view, row, token in zip(views, step.rows, tokens, strict=True)
        ]
        self.write({"kind": "pass", "rows": rows})

    def record_heard(self, heard: Heard) -> None:
        """The items that one Listen was told. Listens are counted, so that only some need a line."""
        listen = next(self._listens)
        if heard.items:
            items = [ITEMS.to_line(item) for item in heard.items]
            self.write({"kind": "heard", "listen": listen, "items": items})

    def _view_id(self, view: View) -> int:
        if view not in self._views:
            blocks = [self._item(item) for item in view.items]
            self._views[view] = next(self._view_numbers)
            self.write({"kind": "view", "id": self._views[view], "blocks": blocks})
        return self._views[view]

    def _item(self, item: Item) -> _Listed:
        if isinstance(item, Lanes):
            return [[self._item(inner) for inner in lane] for lane in item.lanes]
        return self._block_id(item)

    def _block_id(self, block: Block) -> int:
        if block not in self._blocks:
            self._blocks[block] = next(self._block_numbers)
            self.write({"kind": "block", "id": self._blocks[block], "name": str(block.name)})
        if block.frozen and block not in self._frozen:
            self._frozen.add(block)
            self.write({"kind": "freeze", "block": self._blocks[block]})
        return self._blocks[block]


def record(
    strategy: Work[AnswerT], header: Mapping[str, Any], write: Callable[[Line], None]
) -> Work[AnswerT]:
    """The same strategy, with every line of its trace handed to `write` as it comes about.

    What could be written and not be read again is refused: InvalidRequest, in the run, for an event, an answer or a header with a
    value that no JSON says, or that is not what its class says of it.
    """
    check_generator(strategy)
    check_given(header, Mapping, "as the header of a trace", "Write {} for an empty one.")
    check_function(write, "to be given lines", "Write lines.append, for instance.")
    write(
        {"kind": "header", "schema": SCHEMA, **_plain("the header of a trace", Any, dict(header))}
    )
    recorder = Recorder(write)
    advance: Callable[[], Asked] = partial(next, strategy)
    try:
        while True:
            try:
                asked = advance()
            except StopIteration as end:
                answer: AnswerT = end.value
                if isinstance(answer, Answer):  # else the engine says what was expected
                    plain = _plain(
                        f"the {type(answer).__name__} of a strategy", type(answer), answer
                    )
                    write({"kind": "end", "answer": plain})
                return answer
            if isinstance(asked, Event):
                write(event_line(asked))
            try:
                sent = yield asked
            except Exception as error:  # the strategy's to handle, see `strategies.base`
                advance = partial(strategy.throw, error)
                continue
            if isinstance(asked, Step):
                assert isinstance(sent, tuple), "a step is answered with one token per row"
                recorder.record_pass(asked, sent)
            elif isinstance(asked, Listen):
                assert isinstance(sent, Heard), "a Listen is answered with what was heard"
                recorder.record_heard(sent)
            advance = partial(strategy.send, sent)
    finally:
        strategy.close()


def _plain(what: str, kind: Any, value: Any) -> Line:
    """The value as a line holds it. InvalidRequest where it would not come back."""
    try:
        plain: Line = plain_as(kind, value)
    except TypeError as error:
        raise InvalidRequest(
            f"{what} cannot be written: {error}",
            hint="A trace holds numbers, texts, None, and tuples, mappings and dataclasses of these, as annotated.",
        ) from error
    return plain


def event_line(event: Event) -> Line:
    """An event as a line of a trace."""
    return {"kind": "event", **to_line(event)}


def read_trace(path: Path | str) -> Trace:
    """Load a trace; a last line that is cut off is left out.

    Raises InvalidRequest where no file can be read, BrokenTrace for one that is damaged or foreign.
    """
    return parse_trace(read_lines(path, TRACE_LINES), repr(str(path)))


def parse_trace(lines: Sequence[Line], source: str = "the trace") -> Trace:
    """A trace from its lines, checked: every number refers to something that came before it.

    Raises BrokenTrace for one that is damaged, InvalidRequest for what is no list, and for one of a method of an installed
    distribution that cannot be used.
    """
    hint = "Write parse_trace([line, ...]), or read_trace(path)."
    check_given(lines, Sequence, "as the lines of a trace", hint)
    if not lines or not all(isinstance(line, Mapping) for line in lines):
        raise BrokenTrace(
            f"{source} is no list of JSON objects, one a line",
            hint="Give all lines, its header first.",
        )
    TRACE_LINES.check_header(lines[0], source)
    score = lines[0].get(SCORE)
    if score is not None and not (is_number(score) and 0 <= score <= 1):
        raise BrokenTrace(
            f"{source} is damaged: it has the score {as_found(score)}; expected 0 to 1",
            hint="Write how right the answer is, or leave the field out.",
        )
    method = lines[0].get("method")
    if isinstance(method, str):
        from manyhands.strategies.methods import (
            METHODS,
        )  # which ranks, that read no trace, do without

        METHODS.get(method)  # one of an installed distribution brings the kinds of its events
    reader = _Reader(Trace(header=lines[0]))
    for number, line in enumerate(lines[1:], 2):
        try:
            reader.take(line)
        except BrokenTrace as error:
            raise BrokenTrace(f"line {number} of {source}: {error}", hint=error.hint) from error
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenTrace(
                f"line {number} of {source} does not fit what came before it ({error!r})",
                hint="The file is damaged.",
            ) from error
    reader.trace.num_lines = len(lines) - len(reader.trace.engine_events)
    return reader.trace


class _Reader:
    """Takes lines one by one. ValueError, KeyError or TypeError for one that makes no sense."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.frozen: set[int] = set()

    def take(self, line: Line) -> None:
        trace = self.trace
        match line["kind"]:
            case "block":
                _check_next(line["id"], trace.blocks)
                trace.blocks.append(str(line["name"]))
            case "view":
                _check_next(line["id"], trace.views)
                trace.views.append(self._view(line["blocks"]))
            case "freeze":
                block = _known(line["block"], trace.blocks)
                trace.freezes.setdefault(len(trace.passes), []).append(block)
                self.frozen.add(block)
            case "pass":
                trace.passes.append(self._rows(line["rows"]))
            case "event":
                event = from_line({key: line[key] for key in line if key != "kind"})
                if isinstance(event, EngineEvent):
                    trace.engine_events.append(event)
                else:
                    trace.events.append(event)
                    trace.event_passes.append(len(trace.passes))
            case "heard":
                listen = line["listen"]
                if type(listen) is not int or listen <= max(trace.heard, default=-1):
                    raise ValueError(f"listen {listen!r} came after {max(trace.heard)}")
                trace.heard[listen] = Heard(tuple(map(ITEMS.from_line, line["items"])))
            case "end":
                trace.answer = dict(line["answer"])
            case other:
                raise BrokenTrace(
                    f"its kind is {other!r}, which no line of a trace has", hint=_OTHER_FILE
                )

    def _view(self, numbers: Sequence[Any]) -> tuple[TracedItem, ...]:
        items = tuple(map(self._traced_item, numbers))
        *others, own = flat(items) or (None,)
        if own is None or not isinstance(items[-1], int) or own in others:
            raise ValueError("a view ends with a block of its own")
        return items

    def _traced_item(self, number: Any) -> TracedItem:
        if isinstance(number, list):
            return tuple(tuple(map(self._traced_item, lane)) for lane in number)
        return _known(number, self.trace.blocks)

    def _rows(self, rows: Sequence[Any]) -> tuple[TracedRow, ...]:
        taken = tuple(
            TracedRow(
                _known(view, self.trace.views),
                tuple(map(_token, feed)),
                _token(token),
                _name(writer),
                *(frozenset(map(_token, forbidden)) for forbidden in rest),
            )
            for view, feed, token, writer, *rest in rows
        )
        owners = {self.trace.views[row.view][-1] for row in taken}
        if not taken or not all(row.feed for row in taken):
            raise ValueError("a pass has rows, and a row feeds tokens")
        if len(owners) < len(taken) or owners & self.frozen:
            raise ValueError("every row writes to a block of its own that is not frozen")
        return taken


def _name(writer: Any) -> str | None:
    """The writer of a row, if its words are anybody's."""
    if writer is not None and not isinstance(writer, str):
        raise ValueError("a writer is a name or null")
    return writer


def _forbidden(row: Row) -> list[list[int]]:
    """The last part of a traced row, which most rows do not need."""
    return [sorted(row.choice.forbidden)] if row.writer and row.choice.forbidden else []


def flat(items: Sequence[TracedItem]) -> tuple[int, ...]:
    """The blocks of a traced view, in the order in which they are read."""
    return tuple(block for item in items for block in _flat(item))


def _flat(item: TracedItem) -> tuple[int, ...]:
    return (item,) if isinstance(item, int) else tuple(b for lane in item for b in flat(lane))


def _check_next(number: Any, known: Sequence[Any]) -> None:
    if type(number) is not int or number != len(known):
        raise ValueError(f"number {number!r} came as number {len(known)}")


def _known(number: Any, known: Sequence[Any]) -> int:
    if type(number) is not int or not 0 <= number < len(known):
        raise ValueError(f"number {number!r} is unknown")
    return number


def _token(number: Any) -> int:
    if type(number) is not int or not 0 <= number < _LARGEST_TOKEN:
        raise ValueError(f"{number!r} is no token id")
    return number
