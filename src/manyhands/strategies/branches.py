"""Parallel decoding in one sequence (PDOS, section 3): titles first, then all parts at the same time.

    1  skeleton   the model lists titles between marks. Behind each title's end the placeholder, the
                  line break and the next marker are fed in the same row: no pass is lost. Nothing is
                  forced outside an open block
    2  branches   every title becomes a worker that reads [trunk, own branch]; the trunk is all text
                  before the block. A branch that is done leaves the step
    3  join       the branches follow the trunk in the order of their titles, and one strand goes on

The next marker opens the next block, up to `max_blocks`. A block that ends in another way than by its
terminator still gets its branches, from the titles that are complete. Without a complete title
nothing has happened: what was written stays where it is, and decoding goes on behind it.

There are three joins, see `branch_joins.py`: one computes the branches' text anew, two do not. Asked
for its answer in passing (`snapshots`), a run is seen as if its budget ended there: branches are joined
as far as they go, on the side, and the finisher reads that.

Worker 0 is the strand before and after the blocks; branches are workers 1, 2, ... through the run.
`forward_passes` counts passes, however many branches take part: the critical path.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

from manyhands.cache.block import Block
from manyhands.cache.step import Row
from manyhands.cache.view import Item, View
from manyhands.prompts.branches import BranchPrompt
from manyhands.prompts.template import put
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Answer, Reserve, Work
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.events import (
    Event,
    StepEnded,
    TokenWritten,
)
from manyhands.strategies.own_words import own_words, spoken
from manyhands.strategies.parting import ForkRun, WorkerStrand, most_of_parts
from manyhands.strategies.scene import Scene, Writing, scene_of
from manyhands.strategies.settings import BranchSettings, or_usual
from manyhands.strategies.strand import SLACK, STRIPS, TOKENS_ANEW
from manyhands.strategies.writer import Writer, tokens_behind
from manyhands.text import Text
from manyhands.text.markers import MarkEraser, MarkerProfile, TitleReader

_TAILS = ("", " ", "\n", "\n\n", " \n", " \n\n")  # may be one token with the end of a placeholder
_PLACEHOLDERS: WeakKeyDictionary[Text, dict[str, frozenset[int]]] = WeakKeyDictionary()
BRANCH = "branch "  # how names of branches' writers begin; a number follows


@dataclass(frozen=True)
class FinishedBranch:
    """One branch as it was joined.

    `finish_reason` is "marker", "terminator" (if it came in one token: a branch ends as soon as the
    marker in it is complete), "stopped" (end of turn), "budget" (its own or the run's) or "context".
    """

    worker: int
    block: int  # from 1
    title: str
    text: str
    finish_reason: str
    num_tokens: int


@dataclass(frozen=True)
class JoinDistance:
    """How far what follows a join is from what would follow the same text read causally.

    `largest` is the greatest absolute difference of the two next-token distributions (of
    probabilities), `kl` the divergence of the join's from the exact one, in nats. Measured on request,
    see `replay/joins.py`.
    """

    block: int  # from 1
    largest: float
    kl: float


@dataclass(frozen=True)
class BranchAnswer(Answer):
    """An Answer that also says how each branch ended, and, if it was asked, how far joins were off."""

    branches: tuple[FinishedBranch, ...] = ()
    join_distances: tuple[JoinDistance, ...] = ()


def branches(
    question: str | Conversation,
    text: Text,
    settings: BranchSettings | None = None,
    prompt: BranchPrompt | None = None,
    *,
    context: int | None = None,
) -> Work[BranchAnswer]:
    """The strategy: one strand that parts into branches where the model says so.

    Without a `prompt` it speaks the words that the model was trained with (`own_words.py`).
    `context` is the longest view the model bears; the run stops in time for its answer.
    """
    settings, prompt = or_usual(settings, BranchSettings), spoken(prompt, own_words(text).branches)
    return _Run(conversation_of(question), text, settings, prompt, context).play()


def placeholder_tokens(text: Text, placeholder: str) -> frozenset[int]:
    """The tokens that may not begin a branch: those that could begin the placeholder.

    They are found by encoding runs of the placeholder of every length, with and without blanks before
    and line breaks behind, so the tokenizer itself says which tokens it has. A token counts if its text, less
    blanks, begins the placeholder or begins with it. Blanks alone are free; therefore the ban holds
    as long as the branch has written nothing else. They are found once for each text.
    """
    known = _PLACEHOLDERS.setdefault(text, {})
    if placeholder not in known:
        known[placeholder] = _placeholder_tokens(text, placeholder)
    return known[placeholder]


def _placeholder_tokens(text: Text, placeholder: str) -> frozenset[int]:
    found: set[int] = set()
    for lead in ("", " ", "\n"):
        for size in range(1, 2 * len(placeholder) + 1):
            dots = lead + (2 * placeholder)[:size]
            found.update(t for tail in _TAILS for t in text.encode(dots + tail))
    words = {token: text.decode([token]).strip() for token in found}
    return frozenset(
        token
        for token, word in words.items()
        if word and (placeholder.startswith(word) or word.startswith(placeholder))
    )


class _Branch(WorkerStrand):
    """A worker with one title to fill."""

    def __init__(
        self,
        writer: Writer,
        profile: MarkerProfile,
        trunk: Sequence[Item],
        title: str,
        banned: frozenset[int],
        worker: int,
        first_pass: int,
        max_tokens: int,
    ) -> None:
        marks, opening = (profile.marker, profile.terminator), profile.title(title)
        heading, strand = title + profile.title_end, (writer, marks, trunk, opening)
        super().__init__(worker, title, heading, *strand, first_pass, max_tokens)
        self.profile, self.title, self.banned = profile, title, banned

    def row(self) -> Row:
        """The next row; the tokens `banned` may not begin the text."""
        row = super().row()
        if (self.text + self.watch.pending).strip():
            return row
        forbidden = row.choice.forbidden | self.banned
        return replace(row, choice=replace(row.choice, forbidden=forbidden))

    def mark_reason(self) -> str:
        """A branch may be ended by the terminator, too."""
        found = (self.watch.found or "") + self.watch.rest
        return "terminator" if found.startswith(self.profile.terminator) else "marker"

    def as_writing(self) -> Writing:
        """The branch as it would be joined now: with a line break behind the text if it has none."""
        own = super().as_writing()
        if (self.text + self.watch.pending).endswith("\n"):
            return own
        return Writing(own.items, own.unfed + tokens_behind(self.writer.vocabulary, "\n"))

    def visible(self) -> str:
        """The branch as the user reads it."""
        pending = "" if self.finish_reason else self.watch.pending
        text = (self.text + pending).strip()
        return f"{self.title}{self.profile.title_end} {text}".rstrip() + "\n"


class _Run(ForkRun[_Branch]):
    """The state of one run."""

    settings: BranchSettings

    def __init__(
        self,
        asked: Conversation,
        text: Text,
        settings: BranchSettings,
        prompt: BranchPrompt,
        context: int | None,
    ) -> None:
        profile = self.profile = settings.markers
        message = partial(
            prompt.message,
            marker=profile.marker,
            title_end=profile.title_end,
            placeholder=profile.placeholder,
            terminator=profile.terminator,
        )
        super().__init__(
            put(asked, message, prompt.rules_in),
            text,
            settings,
            prompt.finisher,
            context,
            marks=(profile.marker,) if settings.max_blocks else (),
            problem=asked.problem,
        )
        self.eraser = MarkEraser(profile)
        self.between = text.encode(profile.between_titles())
        self.after = text.encode(profile.terminator + "\n")
        self.banned = placeholder_tokens(text, profile.placeholder)
        self.join = JOINS[settings.join]
        self.num_blocks = 0
        self.reader: TitleReader | None = None  # of the title that is written now
        self.titles: list[str] = []  # the complete ones of the open block
        self.finished: list[FinishedBranch] = []

    # -- the strand --------------------------------------------------------------------------------

    def work(self) -> Work[None]:
        """Write; where a marker comes, read titles; where there are titles, part and join."""
        while not self.finish_reason:
            if self.strand.watch.found is None:
                yield from self.write_on()
                continue
            titles = yield from self._skeleton()
            if titles:
                yield from self._part(titles)
        yield from self.say(self.cut(self.strand.watch.pending + self.eraser.rest))
        yield from self.say(self._stop.release())
        self.end_segment()

    def let_go(self) -> str:
        """The text that is held back, marks left out."""
        held, self.eraser = self.eraser.rest, MarkEraser(self.profile)
        return super().let_go() + held

    def certain(self, piece: str) -> str:
        """Once there have been enough blocks, marks are only left out of the text."""
        return piece if self.marks else self.eraser.push(piece)

    def look_around(self) -> Work[None]:
        """Is it over? Not while a block is open: then it is for `_skeleton` to say."""
        if self.strand.watch.found is None or self.stopped_at is not None:
            yield from super().look_around()

    # -- stage 1: titles -------------------------------------------------------------------------

    def _skeleton(self) -> Work[list[str]]:
        """The titles of the open block; none if it turns out to be ordinary text."""
        strand, writer, titles = self.strand, self.writer, self.titles
        reader, title_size, joined_size = TitleReader(self.profile), 0, self._empty_join_size()
        before = copy.copy(self.watched)
        reader.push(strand.watch.rest)
        while True:
            if reader.outcome == "title":
                titles.append(reader.title)
                joined_size += len(self.text.encode(self.profile.title(reader.title))) + SLACK
                if len(titles) < self.settings.at_once:
                    writer.feed = self._forced(reader)
                    reader, title_size = TitleReader(self.profile), 0
            self.check(max(strand.num_tokens + len(writer.feed) + 1, joined_size))
            is_broken = writer.stopped or self.has_thought
            is_broken |= title_size >= self.settings.title_tokens
            is_over = bool(reader.outcome) or is_broken
            self.reader = reader
            if titles or not is_over:  # else it is for `_take_back` to say what this is
                yield from self.look()
            if is_over or self.finish_reason:
                break
            (token,) = yield from self.forward([writer.row()])
            reader.push(strand.take(token, writer.ends))
            strand.suspected = (strand.suspected or "") + strand.newest
            title_size += 1
            yield TokenWritten(self.passes, 0, token, "", *self.logprobs)
        self.reader, self.titles = None, []
        if not titles:
            yield from self._take_back(reader)
        elif self.has_thought:  # the mark that closes it goes with the titles
            self.watched = writer.thinking = before
        if titles and self.finish_reason:  # no pass is left for the branches
            writer.feed = strand.part()
        return [] if self.finish_reason else titles

    def _empty_join_size(self) -> int:
        """How many tokens a strand has that goes on behind a block without titles."""
        front = self.text.encode(self.strand.front)
        num_trunk = sum(block.num_tokens for block in self.strand.view.blocks[:-1])
        return num_trunk + len(front) + len(self.after) + 1

    def _forced(self, reader: TitleReader) -> tuple[int, ...]:
        """The end of a title, and what must follow it. A token that says more is cut."""
        newest = self.strand.newest
        if reader.rest:
            return self.text.encode(newest[: -len(reader.rest)]) + self.between
        return self.writer.feed + self.between

    def _take_back(self, reader: TitleReader) -> Work[None]:
        """No title was completed: the text behind the marker is text like any other."""
        self.finish_reason = ""
        certain = self.certain(self.strand.overlook(reader.words))
        if self.has_thought:
            certain += self.let_go()
        yield from self.say(self.cut(certain))
        if self.strand.watch.found is None:  # else it is for the next block to say
            yield from self.end_thinking()
        yield from self.look_around()

    # -- stage 2: branches -----------------------------------------------------------------------

    def _part(self, titles: Sequence[str]) -> Work[None]:
        """Fill all titles at the same time, then join them."""
        self.num_blocks += 1
        if said := self.end_segment():
            yield StepEnded(self.passes, 0, self.num_segments, said)
        fixed = self._empty_join_size()
        self.trunk = self._before_the_block()
        team = [self._branch(title, index) for index, title in enumerate(titles, 1)]
        yield from self.write_parts(team, self.num_blocks, fixed)
        yield from self._join()

    def _before_the_block(self) -> tuple[Item, ...]:
        """All text before the open block."""
        unfed = self.strand.part()
        items = self.strand.view.items
        if not unfed:
            return items
        items = (*items, Block("before the block"))
        self.opening.append(Row(View(items), unfed))
        return items

    def _branch(self, title: str, index: int) -> _Branch:
        worker, most = len(self.finished) + index, self.settings.branch_tokens
        writer = self.new_writer(f"{BRANCH}{worker}")
        told = (writer, self.profile, self.trunk, title, self.banned)
        return _Branch(*told, worker, self.passes + 1, most)

    # -- stage 3: join ---------------------------------------------------------------------------

    def _join(self) -> Generator[Event, None, None]:
        """One strand again. What has to be fed for that goes along with its next pass."""
        for words in self._joined_text():
            yield from self.say(self.cut(words))
        self.end_at_stop()
        if self.num_blocks >= self.settings.max_blocks:
            self.marks = ()
        for branch in self.team:
            reason, size = branch.finish_reason, branch.writer.num_tokens
            text, block = branch.text.strip(), self.num_blocks
            told = FinishedBranch(branch.worker, block, branch.title, text, reason, size)
            self.finished.append(told)
        yield from self.go_on_joined()

    def _joined_text(self) -> list[str]:
        """The text of a join: each branch on lines of its own."""
        before = "" if (self.said + self._stop.pending).endswith("\n") else "\n"
        return [before, *(branch.visible() for branch in self.team)]

    # -- the account -----------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The text that would stand there if the budget ended here.

        Branches would be joined as far as they go. An open block with titles would be dropped; without
        one, it is text like any other.
        """
        if self.titles and not self.team:
            return scene_of(self.strand.without_mark())
        return super().scene()

    def unsaid(self) -> str:
        """The text that would be said if the budget ended here, in the same three cases."""
        held = super().unsaid()
        if self.team:
            return held + "".join(self._joined_text())
        if self.titles:
            return held
        pending = self.strand.watch.pending + self.eraser.rest
        return held + (pending if self.reader is None else self.reader.words)

    def reserve(self) -> Reserve:
        """The most that can be in memory at once: all text, and of a snapshot one block of branches twice (`reencode`)."""
        s, most = self.settings, self.most_passes
        at_once, blocks = min(s.at_once, most), min(s.max_blocks, most)
        parts = min(at_once * blocks, most)
        num_tokens = len(self.prompt_tokens) + most + blocks * (len(self.after) + SLACK)
        num_tokens += at_once * len(self.between) + self._num_in_branches(parts)
        num_blocks = STRIPS * (at_once + blocks) + 8
        if s.join != "reencode":
            num_blocks += 2 * parts
        elif s.snapshots:
            num_tokens += self._num_in_branches(min(at_once, parts))
        return self.bound(num_tokens, num_blocks)

    def _num_in_branches(self, parts: int) -> int:
        """The most tokens of so many branches, titles included."""
        s = self.settings
        opening = len(self.text.encode(self.profile.title(""))) + SLACK
        titles = min(s.budget, parts * s.title_tokens) * TOKENS_ANEW
        return titles + most_of_parts(s.budget, parts, s.at_once, s.branch_tokens, opening)

    def num_written(self) -> tuple[int, ...]:
        """By the strand, then by each branch."""
        return (self.writer.num_tokens, *(branch.num_tokens for branch in self.finished))

    def result(self) -> BranchAnswer:
        """The answer, the branches too."""
        return BranchAnswer(**vars(super().result()), branches=tuple(self.finished))
