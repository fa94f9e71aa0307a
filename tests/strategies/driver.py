"""Drives a strategy with a scripted predictor in the place of a model, and remembers what it saw.

A row sees its view after all rows of the step have been fed, as in the engine. Two predictors:
`Scripts`, where every writer has its lines, and `Dice`, whose choice is a function of all that the
row can see, so that any difference in what is read changes what is written.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from tokenizers import AddedToken

from manyhands.cache.step import Choice, Step
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.strategies.base import Answer, Asked, Reserve, Sent, Strategy
from manyhands.strategies.events import Event
from manyhands.strategies.listening import Heard, Item, Listen
from manyhands.strategies.settings import Settings
from manyhands.text import Text
from tests.text.small_tokenizers import CHATML, OPENED, byte_level

S = TypeVar("S", bound=Settings)
E = TypeVar("E", bound=Event)
# Pieces of text that are one token, so that a test can say where a step or a box ends.
WHOLE = (".\n\n", ":\n\n", "\n\n", "\\boxed{7}", "\\boxed{8", "**", "<..>")

PROMPT = TeamPrompt(
    rules="{names}: {problem}",
    solo_rules="Alone: {problem}",
    past_header="\nPast",
    others_header="\nOthers",
    own_header="\nOwn",
    more_to_come="<..>",
    redundancy_check=" Twice?",
    finisher="\nFinal \\boxed{",
    reply="\nReply:{think_end}",
)


def boxed(settings: S) -> S:
    """The same, of a problem whose answer stands in a box, though it does not say so."""
    return replace(settings, end=replace(settings.end, answer="boxed"))


def small_text(*, thinking: bool = False) -> Text:
    """A real tokenizer in which the pieces of `WHOLE` are tokens of their own."""
    tokenizer = byte_level(OPENED if thinking else CHATML)
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in WHOLE])
    return Text(tokenizer)


@dataclass(frozen=True)
class SeenRow:
    """A row as its reader meets it. `context` is the whole view, what was just fed included."""

    writer: str | None
    blocks: tuple[str, ...]
    frozen: tuple[bool, ...]
    context: tuple[int, ...]
    feed: tuple[int, ...]
    choice: Choice


@dataclass(frozen=True)
class Pass:
    """One forward pass and what was chosen."""

    rows: tuple[SeenRow, ...]
    tokens: tuple[int, ...]

    @property
    def writers(self) -> tuple[str, ...]:
        return tuple(row.writer for row in self.rows if row.writer is not None)

    def row(self, writer: str) -> SeenRow:
        (found,) = (row for row in self.rows if row.writer == writer)
        return found


@dataclass
class Played:
    """A run from its beginning to its end."""

    passes: list[Pass] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reserved: list[Reserve] = field(default_factory=list)
    answer: Answer = field(default_factory=lambda: Answer(""))

    def of(self, *kinds: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kinds)]

    def rows(self, writer: str) -> list[SeenRow]:
        """Every row of one writer, in order."""
        return [row for one in self.passes for row in one.rows if row.writer == writer]

    def written(self, writer: str) -> list[int]:
        """Every token of one writer, in order."""
        return [
            token
            for one in self.passes
            for row, token in zip(one.rows, one.tokens, strict=True)
            if row.writer == writer
        ]

    @property
    def longest_view(self) -> int:
        return max(len(row.context) for one in self.passes for row in one.rows)


def play(
    strategy: Strategy,
    predict: Callable[[SeenRow], int],
    said: Mapping[int, Sequence[Item]] | None = None,
) -> Played:
    """Run a strategy to its end. `said[n]` is said to it after n passes, those of endings not counted."""
    played = Played()
    num_passes = 0
    unsaid = dict(said or {})
    sent: Sent = None
    while True:
        try:
            asked = strategy.send(sent)
        except StopIteration as end:
            played.answer = end.value
            return played
        sent = None
        if isinstance(asked, Reserve):
            played.reserved.append(asked)
        elif isinstance(asked, Event):
            played.events.append(asked)
        elif isinstance(asked, Listen):
            sent = Heard(tuple(unsaid.pop(num_passes, ())))
        else:
            rows = feed(asked)
            sent = tuple(predict(row) for row in rows)
            played.passes.append(Pass(rows, sent))
            num_passes += not {"finisher", "reply"} & set(played.passes[-1].writers)


def seen(strategy: Strategy, see: Callable[[Asked], object]) -> Strategy:
    """The same strategy; `see` is shown all that it asks for and tells."""
    sent: Sent = None
    while True:
        try:
            asked = strategy.send(sent)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        see(asked)
        sent = yield asked


def holding(strategy: Strategy, held: list[int]) -> Strategy:
    """The same strategy. `held`: the tokens of all that the rows of each step read and feed."""

    def see(asked: Asked) -> None:
        if isinstance(asked, Step):
            blocks = {block for row in asked.rows for block in row.view.blocks}
            fed = sum(len(row.feed) for row in asked.rows)
            held.append(fed + sum(block.num_tokens for block in blocks))

    return seen(strategy, see)


def feed(step: Step) -> tuple[SeenRow, ...]:
    """Feed all rows of a step, then look at what each of them sees."""
    for row in step.rows:
        row.view.own.check_writable()
        row.view.own.tokens.extend(row.feed)
    return tuple(
        SeenRow(
            row.writer,
            tuple(block.name for block in row.view.blocks),
            tuple(block.frozen for block in row.view.blocks),
            tuple(chain.from_iterable(block.tokens for block in row.view.blocks)),
            row.feed,
            row.choice,
        )
        for row in step.rows
    )


class Scripts:
    """Every writer writes its pieces, token by token, and then `a` for ever.

    A piece is text, the id of a token, or None for the end of a turn.
    """

    def __init__(self, text: Text, **pieces: Sequence[str | int | None]) -> None:
        self.filler = text.encode("a")[0]
        end = min(text.eos)
        self.lines: dict[str, deque[int]] = {}
        for writer, said in pieces.items():
            line = self.lines[writer] = deque()
            for piece in said:
                line.extend(text.encode(piece) if isinstance(piece, str) else (piece or end,))

    def __call__(self, row: SeenRow) -> int:
        lines = self.lines.get(row.writer or "")
        return lines.popleft() if lines else self.filler


class Dice:
    """Anything may come, most often letters; the same for the same context and the same draw."""

    def __init__(self, text: Text, *, boxes: int = 1, ends: int = 1) -> None:
        pieces = ["a"] * 20 + ["b"] * 20 + [" c"] * 20 + ["."] * 10 + [".\n\n"] * 10
        pieces += [":\n\n"] * 3 + ["\n"] * 10 + ["}"] * 10 + ["\\boxed{8"] * 2
        pieces += ["\\boxed{7}"] * boxes
        first = {piece: text.encode(piece)[0] for piece in set(pieces)}
        self.tokens = [first[piece] for piece in pieces] + [min(text.eos)] * ends

    def __call__(self, row: SeenRow) -> int:
        seen = repr((row.context, row.choice.draw)).encode()
        return self.tokens[zlib.crc32(seen) % len(self.tokens)]
