"""A model that was trained to think in parallel, run as it was trained: one strategy, driven by a `Profile`.

    1  the main strand writes until it completes the profile's fork mark, having named parts before it
    2  each part is a worker that reads [trunk, own part] from its header to its end mark; the trunk is all
       text up to the fork mark. A part that is done leaves the step. A part that completes a fork mark parts
       itself, where the profile has levels for it (`nested_parts.py`): it waits for its own parts
    3  the parts are joined in their order (`branch_joins.py`), the words of the profile are fed behind
       them, and the strand that parted goes on

A fork that names too few or too many parts, or is beyond a limit, is text like any other, and the run says
why (`ForkRefused`). Worker 0 is the main strand, parts are workers 1, 2, … in the order in which they come.
Parts of one fork that have no names differ by their random numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace

from manyhands.cache.step import Choice, Row
from manyhands.cache.view import Item
from manyhands.errors import counted
from manyhands.prompts.profiled import ProfilePrompt
from manyhands.prompts.template import put
from manyhands.schema.conversation import Conversation, conversation_of
from manyhands.strategies.base import Answer, Reserve, Strategy, Work
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.events import (
    Event,
    ForkRefused,
    StepBegun,
    StepEnded,
    WorkerStopped,
)
from manyhands.strategies.fork_marks import ForkWatch
from manyhands.strategies.nested_parts import Joining, OpenFork, Part, fed_up, joined_text
from manyhands.strategies.own_words import own_words, spoken
from manyhands.strategies.parting import ForkRun, WorkerStrand
from manyhands.strategies.profiles import PROFILES
from manyhands.strategies.settings import ProfileSettings, or_usual
from manyhands.strategies.strand import SLACK, STRIPS
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
    """The strategy. `context` is the longest view the model bears; the run stops in time for its answer.

    Without a `prompt` it speaks the words that the model was trained with (`own_words.py`).
    """
    settings, prompt = or_usual(settings, ProfileSettings), spoken(prompt, own_words(text).profiled)
    return _Run(conversation_of(question), text, settings, prompt, context).play()


class _Run(ForkRun[Part]):
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
        self.joining = Joining(self.join, self.profile.after, self.after)
        self.most_parts = self.profile.unnamed or self.profile.max_children
        self.most_tokens = settings.run_tokens or settings.budget * self.most_parts
        self.marks_seen = ForkWatch(self.profile, text)
        self.num_forks = 0
        self.part_tokens: list[int] = []  # written by each part so far
        self.num_chosen = 0  # tokens of the work, those that end a text included

    # -- the main strand ----------------------------------------------------------------------------

    def work(self) -> Work[None]:
        """Write; where a fork comes, part and join."""
        while not self.finish_reason:
            yield from self.write_on()
            yield from self._part_here()
        self.end_segment()

    def _part_here(self) -> Work[None]:
        """Part if the newest token completed a fork mark, and join."""
        written = self.writer.step_tokens
        token = written[-1] if written and not self.writer.stopped else None
        self.marks_seen.take(token, self.strand.newest)
        if self.finish_reason:
            return
        names = yield from self._names(self.marks_seen, worker=0, level=1, num_writing=1)
        if names:
            yield from self._part(names)

    def _names(
        self, watch: ForkWatch, worker: int, level: int, num_writing: int
    ) -> Generator[Event, None, Sequence[str]]:
        """The names of the parts, if this worker's newest token completed a fork; empty where nothing forks.

        `level` is that of the fork. `num_writing` workers, this one included, would write in the next pass.
        """
        fork = watch.fork()
        if fork is None:
            return ()
        why_not = fork.refused or self._why_not(level, num_writing - 1 + len(fork.names))
        if why_not:
            yield ForkRefused(self.passes, worker, why_not)
            return ()
        return fork.names

    def _why_not(self, level: int, num_writing: int) -> str:
        """Why the run does not fork at this level, so that `num_writing` workers write; empty if it does."""
        profile, left = self.profile, self.settings.budget - self.passes
        least = max(profile.least_budget, 1)
        if level > profile.max_levels:
            most = f"{profile.name} forks {profile.max_levels} deep at most"
            return f"the fork is {level} deep, and {most}"
        if self.num_forks >= profile.max_forks:
            return f"a run of {profile.name} forks {counted(profile.max_forks, 'time')} at most"
        if left < least:
            return f"the run has {counted(left, 'forward pass')} left, and {profile.name} forks with {least} or more"
        at_once = self.settings.most_workers
        if at_once is not None and num_writing > at_once:
            return f"{counted(num_writing, 'worker')} would write at the same time, and the run may have {at_once} at most"
        if self.num_chosen + num_writing > self.most_tokens:
            return f"{counted(num_writing, 'worker')} would write more than the {counted(self.most_tokens, 'token')} of the run"
        return ""

    # -- the parts ---------------------------------------------------------------------------------

    def _part(self, names: Sequence[str]) -> Work[None]:
        """Let all parts write at the same time, then join them."""
        if said := self.end_segment():
            yield StepEnded(self.passes, 0, self.num_segments, said)
        self.trunk, row = fed_up(self.strand)
        self.opening.append(row)
        fixed = sum(block.num_tokens for block in self.strand.view.blocks) + len(self.after) + 2
        team = self._new_team(self.trunk, names, None)
        yield from self.write_parts(team, self.num_forks, fixed)
        yield from self._join()

    def forward(self, rows: Iterable[Row]) -> Work[tuple[int, ...]]:
        """One counted pass, whose tokens are counted too."""
        tokens = yield from super().forward(rows)
        self.num_chosen += len(tokens)
        return tokens

    def write_together(
        self,
        parts: Sequence[WorkerStrand],
        goes_on: Callable[[WorkerStrand], bool] = lambda part: False,
    ) -> Work[None]:
        """One pass of all these parts. How much each has written is known at any time."""
        yield from super().write_together(parts, goes_on)
        for part in parts:
            self.part_tokens[part.worker - 1] = part.writer.num_tokens

    def between_passes(self, live: Sequence[WorkerStrand]) -> Generator[Event, None, None]:
        """Parts part again, and those that wait go on if all of their own are done."""
        waiting = [inner for part in self.team for inner in part.waiting]
        if self.finish_reason:
            for part in waiting:
                part.finish(self.finish_reason)
                part.last_pass = self.passes
                yield WorkerStopped(self.passes, part.worker, part.finish_reason)
            return
        for strand in live:
            assert isinstance(strand, Part), "a profile's parts are Parts"
            if not strand.finish_reason:
                yield from self._part_again(strand)
        for part in waiting:
            if part.is_joinable:
                yield from self._join_again(part)

    def _part_again(self, part: Part) -> Generator[Event, None, None]:
        """If the part has just written a fork mark, its own parts write in its place."""
        writing = sum(len(each.writing) for each in self.team)
        names = yield from self._names(part.marks_seen, part.worker, part.level + 1, writing)
        if not names:
            return
        trunk, row = fed_up(part)
        self.opening.append(row)
        said, passes = part.step_text.strip(), (part.first_pass, self.passes)
        team = self._new_team(trunk, names, part)
        part.open(OpenFork(self.num_forks, trunk, team))
        self.record(part.worker, part.step, said, *passes)
        yield StepEnded(self.passes, part.worker, part.step, said)
        yield from self.welcome(team, self.num_forks)

    def _join_again(self, part: Part) -> Generator[Event, None, None]:
        """A part goes on behind its own parts. The tokens to feed for that go along with its next pass."""
        assert part.fork is not None, "a part that is joinable has parts"
        self.settle(part.fork.team)
        self.opening += part.close(self.passes + 1)
        yield StepBegun(self.passes, part.worker, part.step, "")

    def settle(self, team: Sequence[Part]) -> None:
        """Put the last steps of parts on record, and of the parts within them."""
        for part in team:
            if part.fork is None:
                super().settle([part])
            else:
                self.settle(part.fork.team)

    def _new_team(
        self, trunk: tuple[Item, ...], names: Sequence[str], within: Part | None
    ) -> list[Part]:
        """The parts of a fork of the main strand, or of the part `within`."""
        self.num_forks += 1
        return [self._new_part(trunk, name, index, within) for index, name in enumerate(names)]

    def _new_part(
        self, trunk: tuple[Item, ...], name: str, index: int, within: Part | None
    ) -> Part:
        self.part_tokens.append(0)
        worker = len(self.part_tokens)
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
        label, level = name or str(worker), 1 if within is None else within.level + 1
        if within is not None and not label.startswith(f"{within.label}."):
            label = f"{within.label}/{label}"
        return Part(
            writer,
            self.profile,
            self.joining,
            trunk,
            name,
            label,
            index,
            worker,
            level,
            self.passes + 1,
            most,
        )

    def _part_choice(self) -> Choice:
        choice, profile = self.settings.choice, self.profile
        if profile.temperature is not None and not self.settings.same_choice:
            choice = replace(choice, temperature=profile.temperature)
        if profile.repetition_penalty is not None and not self.settings.same_choice:
            choice = replace(choice, repetition_penalty=profile.repetition_penalty)
        return choice

    def check(self, num_tokens: int) -> None:
        """End the run also where its next pass would write more tokens than it may."""
        super().check(num_tokens)
        rows = sum(len(part.writing) for part in self.team) if self.team else 1
        if not self.finish_reason and self.num_chosen + rows > self.most_tokens:
            self.finish_reason = "budget"

    # -- the join ----------------------------------------------------------------------------------

    def _join(self) -> Generator[Event, None, None]:
        """One strand again. The tokens to feed for that go along with its next pass."""
        joined = joined_text(self.team, self.joining)
        yield from self.say(joined)
        self.marks_seen.skip(joined)
        if self.profile.stops_on_cut and any(part.is_cut for part in self.team):
            self.finish_reason = self.finish_reason or "stopped"
        yield from self.go_on_joined()

    # -- the account -------------------------------------------------------------------------------

    def unsaid(self) -> str:
        """The text that would be said if the budget ended here."""
        return joined_text(self.team, self.joining) if self.team else super().unsaid()

    def reserve(self) -> Reserve:
        """All text; of a snapshot, and where some of a part is left out of its join, that of the parts twice."""
        s, profile = self.settings, self.profile
        forks = min(profile.max_forks, s.budget)
        parts = min(self.most_parts * forks, self.most_tokens)  # each chooses a token
        around = len(self.text.markup(profile.header + profile.missing_end + profile.end)) + SLACK
        written = self.most_tokens + parts * around
        num_tokens = len(self.prompt_tokens) + forks * (len(self.after) + SLACK) + written
        if s.snapshots or profile.lead:
            num_tokens += written
        return self.bound(num_tokens, STRIPS * (parts + forks) + 8)

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
