"""A part of a fork, which may fork again: its text, its own parts, and the joins of all of them.

    part 1   <step> 1: ... </guideline>  ┬ part 3 ┐  <takeaway> ... </step>
                                         └ part 4 ┘
    part 2   <step> 2: ...                                              </step>

A part that has forked waits, and goes on behind the join of its own parts, as the main strand does. Its parts
read [its trunk, its own text up to the fork mark, theirs]; with `keep` they stand in lanes within its lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manyhands.cache.block import Block
from manyhands.cache.step import Row
from manyhands.cache.view import Item, View
from manyhands.strategies.branch_joins import Join
from manyhands.strategies.fork_marks import ForkWatch
from manyhands.strategies.parting import WorkerStrand
from manyhands.strategies.profiles import Profile
from manyhands.strategies.scene import Writing
from manyhands.strategies.strand import SLACK, Strand
from manyhands.strategies.writer import Writer
from manyhands.text import Text
from manyhands.text.markers import MarkerWatch


@dataclass(frozen=True)
class Joining:
    """How parts become one text again: the join, the words behind it and their tokens."""

    join: Join
    words: str
    after: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OpenFork:
    """The parts of a part, and what they read: `trunk`."""

    number: int
    trunk: tuple[Item, ...]
    team: Sequence[Part]


class Part(WorkerStrand):
    """A worker with one part. `level` is 1 in a fork of the main strand, 2 in a fork of such a part, and so on.

    Its steps have the numbers of the forks behind which it writes. `fork` is open while its own parts write.
    """

    def __init__(
        self,
        writer: Writer,
        profile: Profile,
        joining: Joining,
        trunk: Sequence[Item],
        name: str,
        label: str,
        index: int,
        worker: int,
        level: int,
        first_pass: int,
        max_tokens: int,
    ) -> None:
        header = self.header = profile.header.replace("{name}", name)
        told = (f"part {label}", header.strip(), writer, (profile.end,), trunk, header)
        super().__init__(worker, *told, first_pass, max_tokens)
        self.profile, self.joining, self.trunk = profile, joining, tuple(trunk)
        self.label, self.level = label, level
        self.is_first = index == 0
        self.marks_seen = ForkWatch(profile, writer.vocabulary)
        self.fork: OpenFork | None = None
        self._past: tuple[Item, ...] = ()  # of its own: all before the blocks of its current step
        self._num_told = 0  # characters of `text` that stand in steps before this one
        end = writer.vocabulary.markup(profile.end)
        self.end_token = end[0] if len(end) == 1 else None

    def opening_tokens(self, text: Text, opening: str) -> tuple[int, ...]:
        """The header, whose marks are tokens of their own."""
        return text.markup(opening)

    def read(self, token: int, turn_end: frozenset[int]) -> str:
        """Take a token. The end mark is known by its token, which has no text in some tokenizers."""
        is_end = token == self.end_token
        piece = super().read(token, turn_end | {token} if is_end else turn_end)
        if is_end:
            self.finish_reason = "marker"
        self.marks_seen.take(None if self.writer.stopped else token, self.newest)
        return piece

    @property
    def step_text(self) -> str:
        """The text of its current step."""
        return self.text[self._num_told :]

    @property
    def is_cut(self) -> bool:
        """Whether it has ended without its mark."""
        return self.finish_reason not in ("", "marker")

    @property
    def ending(self) -> str:
        """The text behind its own: the mark, which it may have left out."""
        missing = self.profile.missing_end if self.finish_reason != "marker" else ""
        return missing + self.profile.end

    # -- parts of its own ----------------------------------------------------------------------------

    def open(self, fork: OpenFork) -> None:
        """Its parts write now."""
        self.fork = fork
        self.text += self.watch.pending
        self.watch = MarkerWatch(self.marks)
        self._num_told = len(self.text)

    def close(self, first_pass: int) -> list[Row]:
        """Its parts are done, and it goes on behind their join. The rows that must be fed for that."""
        fork = self.fork
        assert fork is not None, "a part without parts is not joined"
        items, rows = self._joined(fork)
        joined = joined_text(fork.team, self.joining)
        self.text += joined
        self.marks_seen.skip(joined)
        self.num_joined = self.num_all
        self._past, self._num_told = items, len(self.text)
        self.step, self.first_pass, self.fork = fork.number, first_pass, None
        self.begin((*self.trunk, *items), self.joining.after)
        return rows

    def _joined(self, fork: OpenFork) -> tuple[tuple[Item, ...], list[Row]]:
        """Its own text up to the fork and its parts as far as they go, and the rows to be fed for it."""
        items, rows = self.joining.join(fork.trunk, [part.as_writing() for part in fork.team])
        return (*fork.trunk[len(self.trunk) :], *items), rows

    @property
    def writing(self) -> Sequence[Part]:
        """The parts that write in the next pass: it itself, or those of its parts that do."""
        if self.fork is not None:
            return [inner for part in self.fork.team for inner in part.writing]
        return [] if self.finish_reason else [self]

    @property
    def is_joinable(self) -> bool:
        """Whether it waits, and all of its parts are done."""
        return self.fork is not None and not any(part.writing for part in self.fork.team)

    @property
    def waiting(self) -> list[Part]:
        """It itself and the parts within it that wait for others, inner ones first."""
        if self.fork is None:
            return []
        return [inner for part in self.fork.team for inner in part.waiting] + [self]

    @property
    def num_all(self) -> int:
        """Tokens that will be joined of it and of all parts within it."""
        if self.fork is None:
            return self.num_joined
        inner = sum(part.num_all + SLACK for part in self.fork.team)
        return self.num_joined + inner + len(self.joining.after) + 2

    # -- in the text of those around it ----------------------------------------------------------------

    def as_writing(self) -> Writing:
        """The part as it would be joined now, its end mark included."""
        words = self.writer.vocabulary
        if self.fork is None:
            now = super().as_writing()
            own = Writing((*self._past, *now.items), now.unfed)
        else:
            items, rows = self._joined(self.fork)
            own = Writing(items, self.joining.after, tuple(rows))
        closed = Writing(own.items, own.unfed + words.markup(self.ending), own.rows)
        lead = () if self.is_first else words.markup(self.profile.lead)
        return Writing((), closed.tokens()[len(lead) :]) if lead else closed

    def visible(self) -> str:
        """The part in the text around it."""
        if self.fork is not None:
            rest = joined_text(self.fork.team, self.joining)
        else:
            rest = "" if self.finish_reason else self.watch.pending
        header = self.header if self.is_first else self.header.removeprefix(self.profile.lead)
        return f"{header}{self.text}{rest}{self.ending}"


def joined_text(team: Sequence[Part], joining: Joining) -> str:
    """The text of a join."""
    return "".join(part.visible() for part in team) + joining.words


def fed_up(strand: Strand) -> tuple[tuple[Item, ...], Row]:
    """All text of a strand, for parts to read, and the row that feeds its newest token."""
    for block in strand.blocks:
        if block.num_tokens:
            block.freeze()
    items = tuple(
        item
        for item in strand.view.items
        if not (isinstance(item, Block) and item in strand.blocks and not item.num_tokens)
    )
    last = Block("fork")
    return (*items, last), Row(View((*items, last)), strand.writer.feed)
