"""A model that was trained to think in parallel, run as it was trained: one strategy, driven by a `Profile`.

    1  the main strand writes until it completes the profile's fork mark, having named parts before it
    2  each part is a worker that reads [trunk, own part] from its header to its end mark; the trunk is all
       text up to the fork mark. A branch that is done leaves the step
    3  the parts are joined in their order (`branch_joins.py`), the words of the profile are fed behind
       them, and the main strand goes on

A fork that names too few or too many parts, or for which too few passes are left, is text like any other.
Worker 0 is the main strand, parts are workers 1, 2, … through the run. Parts of one fork that have no names differ
by their random numbers.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import replace

from manyhands.cache.block import Block
from manyhands.cache.step import Choice, Row
from manyhands.cache.view import Item, View
from manyhands.prompts.profiled import ProfilePrompt
from manyhands.prompts.template import put
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Answer, Reserve, Strategy
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.ending import Work
from manyhands.strategies.events import (
    Event,
    StepEnded,
)
from manyhands.strategies.parting import ForkRun, WorkerStrand
from manyhands.strategies.profiles import PROFILES, Profile
from manyhands.strategies.scene import Stretch
from manyhands.strategies.settings import ProfileSettings
from manyhands.strategies.strand import SLACK
from manyhands.strategies.writer import Writer
from manyhands.text import Text


def profiled(
    question: str | Conversation,
    text: Text,
    settings: ProfileSettings | None = None,
    prompt: ProfilePrompt | None = None,
    *,
    context: int | None = None,
) -> Strategy:
    """The strategy. `context` is the longest view the model bears; the run stops in time for its answer."""
    settings, prompt = settings or ProfileSettings(), prompt or ProfilePrompt()
    return _Run(conversation_of(question), text, settings, prompt, context).play()


class _Part(WorkerStrand):
    """A worker with one part."""

    def __init__(
        self,
        writer: Writer,
        profile: Profile,
        trunk: Sequence[Item],
        name: str,
        index: int,
        worker: int,
        first_pass: int,
        max_tokens: int,
    ) -> None:
        header = self.header = profile.header.replace("{name}", name)
        told = (f"part {name or worker}", header.strip(), writer, (profile.end,), trunk, header)
        super().__init__(worker, *told, first_pass, max_tokens)
        self.profile = profile
        self.is_first = index == 0
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
        return piece

    @property
    def is_cut(self) -> bool:
        """Whether it has ended without its mark."""
        return self.finish_reason not in ("", "marker")

    @property
    def ending(self) -> str:
        """The text behind its own: the mark, which it may have left out."""
        missing = self.profile.missing_end if self.finish_reason != "marker" else ""
        return missing + self.profile.end

    def stretch(self) -> Stretch:
        """The part as it would be joined now, its end mark included."""
        own, words = super().stretch(), self.writer.vocabulary
        closed = Stretch(own.items, own.unfed + words.markup(self.ending))
        lead = () if self.is_first else words.markup(self.profile.lead)
        return Stretch((), closed.tokens()[len(lead) :]) if lead else closed

    def visible(self) -> str:
        """The part in the text of the main strand."""
        pending = "" if self.finish_reason else self.watch.pending
        header = self.header if self.is_first else self.header.removeprefix(self.profile.lead)
        return f"{header}{self.text}{pending}{self.ending}"


class _Run(ForkRun[_Part]):
    """The state of one run."""

    settings: ProfileSettings

    def __init__(
        self,
        asked: Conversation,
        text: Text,
        settings: ProfileSettings,
        prompt: ProfilePrompt,
        context: int | None,
    ) -> None:
        told = put(asked, prompt.message, prompt.rules_in)
        super().__init__(told, text, settings, prompt.finisher, context, problem=asked.problem)
        self.profile = PROFILES[settings.profile]
        self.join = JOINS[settings.parts_join or self.profile.join]
        self.after = text.markup(self.profile.after)
        marks = [f"<{slash}{word}>" for word in self.profile.hidden for slash in ("", "/")]
        tokens = {mark: text.markup(mark) for mark in marks}
        self.marks_by_token = {ids[0]: mark for mark, ids in tokens.items() if len(ids) == 1}
        self.main_text = ""  # of the main strand so far, its marks included
        self.num_forks = 0
        self.num_parts = 0
        self.num_scanned = 0  # characters of `main_text` in which no fork is looked for any more
        self.part_tokens: list[int] = []  # written by each part so far

    # -- the main strand ----------------------------------------------------------------------------

    def work(self) -> Work[None]:
        """Write; where a fork comes, part and join."""
        while not self.finish_reason:
            yield from self.write_on()
            self._take_newest()
            names = self._names()
            if names and not self.finish_reason:
                yield from self._part(names)
        self.end_segment()

    def _take_newest(self) -> None:
        """The newest token's text; that of a mark also where the tokenizer shows none."""
        written = self.writer.step_tokens
        mark = self.marks_by_token.get(written[-1]) if written and not self.writer.stopped else None
        shown = self.strand.newest
        self.main_text += mark if mark is not None and mark not in shown else shown

    def _names(self) -> list[str]:
        """The names of the parts, if the newest token completed a fork; empty where nothing forks."""
        profile = self.profile
        place = self.main_text.find(profile.fork, self.num_scanned)
        if place < 0:
            return []
        before, start = self.main_text[:place], self.num_scanned
        self.num_scanned = place + len(profile.fork)
        left = self.settings.budget - self.passes
        if self.num_forks >= profile.max_forks or left < profile.least_budget or left < 1:
            return []
        if profile.named is None:
            return [""] * profile.unnamed
        opened = before.rfind(profile.opens, start)
        if opened < 0:
            return []
        names = list(dict.fromkeys(re.findall(profile.named, before[opened:])))
        return names if 1 <= len(names) <= profile.max_children else []

    # -- the parts ---------------------------------------------------------------------------------

    def _part(self, names: Sequence[str]) -> Work[None]:
        """Let all parts write at the same time, then join them."""
        self.num_forks += 1
        if said := self.end_segment():
            yield StepEnded(self.passes, 0, self.num_segments, said)
        self.trunk = self._fed_trunk()
        fixed = sum(block.num_tokens for block in self.strand.view.blocks) + len(self.after) + 2
        team = [self._new_part(name, index) for index, name in enumerate(names)]
        yield from self.write_parts(team, self.num_forks, fixed)
        yield from self._join()

    def _fed_trunk(self) -> tuple[Item, ...]:
        """All text up to the fork; its newest token is fed along with the parts' first row."""
        for block in self.strand.blocks:
            if block.num_tokens:
                block.freeze()
        items = tuple(
            item
            for item in self.strand.view.items
            if not (isinstance(item, Block) and item in self.strand.blocks and not item.num_tokens)
        )
        last = Block("fork")
        self.opening.append(Row(View((*items, last)), self.writer.feed))
        return (*items, last)

    def _new_part(self, name: str, index: int) -> _Part:
        worker = self.num_parts + index + 1
        writer = Writer(
            self.text,
            self._part_choice(),
            self.settings.seed,
            f"part {worker}",
            ends=self.text.turn_end,
        )
        most = min(
            self.settings.part_tokens or self.profile.child_tokens, self.profile.child_tokens
        )
        return _Part(writer, self.profile, self.trunk, name, index, worker, self.passes + 1, most)

    def _part_choice(self) -> Choice:
        choice, profile = self.settings.choice, self.profile
        if profile.temperature is not None and not self.settings.same_choice:
            choice = replace(choice, temperature=profile.temperature)
        if profile.repetition_penalty is not None and not self.settings.same_choice:
            choice = replace(choice, repetition_penalty=profile.repetition_penalty)
        return choice

    # -- the join ----------------------------------------------------------------------------------

    def _join(self) -> Generator[Event, None, None]:
        """One strand again. The tokens to feed for that go along with its next pass."""
        joined = self._joined_text()
        yield from self.say(joined)
        self.main_text += joined
        self.num_scanned = len(self.main_text)
        if self.profile.stops_on_cut and any(part.is_cut for part in self.team):
            self.finish_reason = self.finish_reason or "stopped"
        self.part_tokens += (part.writer.num_tokens for part in self.team)
        self.num_parts += len(self.team)
        yield from self.go_on_joined(self.num_forks)

    def _joined_text(self) -> str:
        return "".join(part.visible() for part in self.team) + self.profile.after

    # -- the account -------------------------------------------------------------------------------

    def unsaid(self) -> str:
        """The text that would be said if the budget ended here."""
        return self._joined_text() if self.team else super().unsaid()

    def reserve(self) -> Reserve:
        """All text: the main strand's, and that of the parts twice, for they may be encoded again."""
        budget, profile = self.settings.budget, self.profile
        most = profile.unnamed or profile.max_children
        forks = min(profile.max_forks, budget)
        parts = 2 * most * (budget + forks * (len(self.text.markup(profile.header)) + SLACK))
        num_tokens = len(self.prompt_tokens) + budget + forks * len(self.after) + parts
        return self.bound(num_tokens, 4 * most * forks + 8)

    def num_written(self) -> tuple[int, ...]:
        """By the main strand, then by each part."""
        return (self.writer.num_tokens, *self.part_tokens)

    def result(self) -> Answer:
        """The answer. Its text has no marks; as it is streamed, it has them."""
        found = super().result()
        return replace(found, text=self._bare(found.text))

    def _bare(self, text: str) -> str:
        if not self.profile.hidden:
            return text
        marks = "|".join(re.escape(mark) for mark in self.profile.hidden)
        found = rf"\n?(?:</?(?:{marks})>\n?)+"
        return re.sub(found, lambda m: "\n" if "\n" in m[0] else "", text).strip()
