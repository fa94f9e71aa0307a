"""What `branches` is made of: a line that can be parted at a mark, and a branch.

A mark is found in decoded text, tokens lie in blocks, and a token may hold the end of one sentence and
the beginning of a mark. `Line` keeps the two in step; nothing that is in memory is ever cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from manyhands.cache.block import Block
from manyhands.cache.step import Row
from manyhands.cache.view import Item, View
from manyhands.strategies.branch_joins import Piece
from manyhands.strategies.writer import Writer
from manyhands.text import Text
from manyhands.text.markers import MarkerProfile, MarkerWatch

# A branch's next token, its line break, and what a token that shares text with a mark may cost more.
SLACK = 6
LINE, BRANCH = "writer", "branch "  # names of writers; a branch's number follows


def placeholder_tokens(text: Text, placeholder: str) -> frozenset[int]:
    """The tokens that may not begin a branch: those that could begin the placeholder.

    They are found by encoding runs of the placeholder of every length, with and without a blank
    before it, so the tokenizer itself says which tokens it has. A token counts if its text, less
    blanks, begins the placeholder or begins with it. Blanks alone are free; therefore the ban holds
    as long as the branch has written nothing else.
    """
    found: set[int] = set()
    for lead in ("", " ", "\n"):
        for size in range(1, 2 * len(placeholder) + 1):
            found.update(text.encode(lead + (2 * placeholder)[:size]))
    words = {token: text.decode([token]).strip() for token in found}
    return frozenset(
        token
        for token, word in words.items()
        if word and (placeholder.startswith(word) or word.startswith(placeholder))
    )


def _following(text: Text, words: str) -> tuple[int, ...]:
    """The tokens of `words` behind other text: some tokenizers put a blank before a line break."""
    before, whole = text.encode("x"), text.encode("x" + words)
    size = len(before)
    return whole[size:] if whole[:size] == before else text.encode(words)


class Line:
    """One line of text, in blocks that can be parted where a mark began.

    A mark may take several tokens, and shows itself with the last one. So the first token that could
    begin a mark goes to a fresh block: if it was one, the blocks before it are the text before it,
    except for `front`, the text that shares a token with the mark.
    """

    def __init__(
        self, writer: Writer, marks: Sequence[str], before: Sequence[Item], feed: tuple[int, ...]
    ) -> None:
        self.writer = writer
        self.marks = marks
        self.before = tuple(before)
        self.blocks: tuple[Block, ...] = (Block(writer.name),)
        self.watch = MarkerWatch(marks)
        self.suspected: str | None = (
            None  # all text since the last block began, if it may be a mark
        )
        self.front = ""
        self.newest = ""  # the text of the newest token
        writer.begin_step(self.blocks[0], feed)
        self.view = View((*self.before, *self.blocks))

    def read(self, token: int, turn_end: frozenset[int]) -> str:
        """Take a token; return the text that is certainly no mark."""
        return self.scan(self.take(token, turn_end))

    def take(self, token: int, turn_end: frozenset[int]) -> str:
        """Take a token without looking for marks; return its text."""
        self.newest = self.writer.read(token, turn_end)
        return self.newest

    def scan(self, piece: str) -> str:
        """Look for a mark in the newest piece, whose token has not been fed yet."""
        seen = (self.suspected or "") + piece
        certain = self.watch.push(piece)
        if self.watch.found is None and not self.watch.pending:
            self.suspected = None
            return certain
        if self.suspected is None:
            self.blocks[-1].freeze()
            self.blocks = (*self.blocks, Block(self.writer.name))
            self.view = View((*self.before, *self.blocks))
        self.suspected = seen
        if self.watch.found is not None:
            self.front = seen[: len(seen) - len(self.watch.found + self.watch.rest)]
        return certain

    def overlook(self, text: str) -> str:
        """The mark that was found is none; `text`, the newest of this line, stands behind it."""
        assert self.suspected is not None
        self.suspected = self.suspected.removesuffix(text)
        self.watch = MarkerWatch(self.marks)
        return self.scan(text)

    def part(self) -> tuple[int, ...]:
        """Drop the mark and all behind it; the tokens of the text before it that are not fed."""
        items, _, unfed = self.without_mark()
        self.blocks = self.blocks[:-1]
        self.view = View(items)
        return unfed

    def without_mark(self) -> tuple[tuple[Item, ...], tuple[Row, ...], tuple[int, ...]]:
        """All before the mark; rows to feed (none); the tokens of it that are not fed."""
        items = (*self.before, *self.blocks[:-1])
        return items, (), _following(self.writer.vocabulary, self.front)

    @property
    def num_tokens(self) -> int:
        """Tokens of all that the line reads. In lanes, that is more than its length as a view."""
        return sum(block.num_tokens for block in self.view.blocks)


class Branch:
    """A worker with one title to fill."""

    def __init__(
        self,
        writer: Writer,
        profile: MarkerProfile,
        trunk: Sequence[Item],
        title: str,
        worker: int,
        first_pass: int,
    ) -> None:
        self.title, self.worker, self.first_pass = title, worker, first_pass
        self.profile = profile
        opening = writer.vocabulary.encode(profile.title(title))
        self.line = Line(writer, (profile.marker, profile.terminator), trunk, opening)
        self.num_tokens = len(opening)  # as far as they will be joined; the line break included
        self.text = ""
        self.last_pass = 0
        self.finish_reason = ""
        self.unfed: tuple[int, ...] = ()  # once it is done

    def row(self, banned: frozenset[int]) -> Row:
        """The next row; `banned` may not begin the text."""
        row = self.line.writer.row(self.line.view)
        if (self.text + self.line.watch.pending).strip():
            return row
        return replace(row, choice=replace(row.choice, forbidden=row.choice.forbidden | banned))

    def read(self, token: int, turn_end: frozenset[int], max_tokens: int) -> str:
        """Take the token that was chosen; return the text that it makes certain."""
        writer, watch = self.line.writer, self.line.watch
        piece = self.line.read(token, turn_end)
        self.text += piece
        self.num_tokens += 1
        if watch.found is not None:
            is_end = (watch.found + watch.rest).startswith(self.profile.terminator)
            self.finish("terminator" if is_end else "marker")
        elif writer.stopped:
            self.finish("stopped")
        elif writer.num_tokens >= max_tokens:
            self.finish("budget")
        return piece

    def finish(self, reason: str) -> None:
        """The branch is done: settle its text and what of it has yet to be fed."""
        line = self.line
        is_parted = line.watch.found is not None
        self.unfed = self._closed(line.part() if is_parted else line.writer.feed)
        self.finish_reason = reason
        self.text += line.watch.pending
        for block in line.blocks:
            if block.num_tokens:
                block.freeze()

    def piece(self) -> Piece:
        """The branch as it would be joined now."""
        unfed = self.unfed if self.finish_reason else self._closed(self.line.writer.feed)
        return Piece(self.line.writer.name, self.line.blocks, unfed)

    def _closed(self, unfed: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that are not fed, and a line break behind the text if it has none."""
        if (self.text + self.line.watch.pending).endswith("\n"):
            return unfed
        return unfed + _following(self.line.writer.vocabulary, "\n")

    def visible(self) -> str:
        """The branch as the user reads it."""
        pending = "" if self.finish_reason else self.line.watch.pending
        text = (self.text + pending).strip()
        return f"{self.title}{self.profile.title_end} {text}".rstrip() + "\n"
