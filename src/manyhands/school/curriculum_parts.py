"""Lessons of the bundled model besides teams: questions in parts, and questions about a long text.

`PartsMix` says how often each of these lessons is drawn, and in which form:

    retrieval   students and a range of GPAs: one after another, in branches, in threads; in whole
                sentences or in drafts
    lists       arithmetic lists in branches, in threads, and as attempts that are compared or graded
    needles     several short questions about one long text, each answered in a box

As in `curriculum.py`, a lesson is drawn from a seed; the strategies are the real ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from manyhands.errors import InvalidRequest
from manyhands.prompts.chain_of_draft import drafted
from manyhands.prompts.load import Prompts
from manyhands.replay.simulate import Lesson, Simulation
from manyhands.schema.setting import check, probability, setting
from manyhands.school.endings import BoxedAnswers, endings
from manyhands.school.parts import (
    InAttempts,
    InBranches,
    InThreads,
    LineByLine,
    ListAttempts,
    ListParts,
    Parts,
    Sequentially,
    StudentParts,
)
from manyhands.school.scripted import Script, ScriptedWriters
from manyhands.strategies.base import Strategy
from manyhands.strategies.best_of_n import best_of_n
from manyhands.strategies.branch_joins import JOINS
from manyhands.strategies.branches import branches
from manyhands.strategies.self_consistency import self_consistency
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import (
    BestSettings,
    BranchSettings,
    EndSettings,
    SkeletonSettings,
    SoloSettings,
    VoteSettings,
)
from manyhands.strategies.skeleton import skeleton
from manyhands.tasks.arithmetic.problem_list import ListKind, problem_list
from manyhands.tasks.needles import ask, haystack
from manyhands.tasks.retrieval import MOST_STUDENTS, retrieval
from manyhands.text import Text

_LONGEST = 4000  # passes; every scripted run is over long before
_MOST_TOKENS = 12_000  # fed in all passes of a lesson
_SENTENCES_PER_DOG = 8  # at most; short texts hold few facts, long ones many
_NO_REPLY = EndSettings(finisher_tokens=64, reply=False)


@dataclass(frozen=True)
class PartsMix:
    """How often each kind of lesson is drawn, and in which form."""

    retrieval: float = probability(0.0, "Students and a range of GPAs.")
    lists: float = probability(0.0, "Arithmetic lists, by other methods than a team.")
    needles: float = probability(0.0, "Short questions about one long text.")
    most_students: int = setting(30, "Of a retrieval.", at_least=3, at_most=MOST_STUDENTS)
    most_dogs: int = setting(64, "Of a long text.", at_least=2, at_most=256)
    drafts: float = probability(0.4, "Of retrievals, whatever the method.")
    drafted_lists: float = probability(
        0.0, "Of lists, by teams too: they are told to draft, and go on as usual."
    )
    bare: float = probability(
        0.3, "Of sequential retrievals and of needles: the question alone, without rules."
    )
    branches: float = probability(0.5, "Of retrievals and lists.")
    skeleton: float = probability(
        0.25, "Of retrievals and lists; the others are sequential, or attempts."
    )
    slips: float = probability(0.3, "Of the problems of which there are three attempts or more.")
    hurried: float = probability(0.1, "Runs that are asked for their answer before they have one.")
    many_students: float = probability(0.3, "Retrievals of more than twelve.")
    few_students: float = probability(
        0.35, "Retrievals of two to six: the box is learned from these first."
    )

    def __post_init__(self) -> None:
        check(self)
        forms = (self.branches + self.skeleton, self.many_students + self.few_students)
        if max(self.kinds, *forms) > 1:
            raise InvalidRequest(
                "the lessons of [parts] are more than all",
                hint="retrieval + lists + needles, branches + skeleton, "
                "and many_students + few_students, are at most 1",
            )

    @property
    def kinds(self) -> float:
        """How often a lesson is one of these."""
        return self.retrieval + self.lists + self.needles

    def draw(self, rng: random.Random, text: Text, prompts: Prompts) -> Lesson:
        """One of these lessons."""
        roll = rng.random() * self.kinds
        if roll < self.needles:
            return self._needles(rng, text, prompts)
        if roll < self.needles + self.lists:
            return self._list(rng, text, prompts)
        return self._retrieval(rng, text, prompts)

    # -- parts -----------------------------------------------------------------------------------

    def _retrieval(self, rng: random.Random, text: Text, prompts: Prompts) -> Lesson:
        asked = retrieval(rng, self._students(rng))
        brief = rng.random() < self.drafts
        prompts = drafted(prompts) if brief else prompts
        parts = StudentParts(asked, brief=brief)
        roll = rng.random()
        if roll < self.branches:
            return self._branches(rng, asked.question, parts, text, prompts)
        if roll < self.branches + self.skeleton:
            return self._skeleton(rng, asked.question, parts, text, prompts)
        if not brief and rng.random() < self.bare:
            prompts = replace(prompts, team=replace(prompts.team, solo_rules="{problem}"))
        budget = self._budget(rng, 4 * len(parts.titles))
        settings = SoloSettings(budget=budget, end=_NO_REPLY)
        strategy = sequential(asked.question, text, settings, prompts.team)
        return _lesson(strategy, text, Sequentially(parts))

    def _students(self, rng: random.Random) -> int:
        some, roll = min(12, self.most_students), rng.random()
        counts: list[int]
        if roll < self.many_students:
            counts = [*range(some, self.most_students + 1), *4 * [self.most_students]]
        elif roll < self.many_students + self.few_students:
            counts = [*range(2, min(6, some) + 1)]
        else:
            counts = [*range(min(7, some), some + 1), *4 * [min(10, some)]]
        return rng.choice(counts)

    def _list(self, rng: random.Random, text: Text, prompts: Prompts) -> Lesson:
        kind: ListKind = "word" if rng.random() < 0.4 else "bare"
        problems = problem_list(rng, rng.randint(2, 8), kind)
        parts = ListParts(problems)
        prompts = drafted(prompts) if rng.random() < self.drafted_lists else prompts
        roll = rng.random()
        if roll < self.branches:
            return self._branches(rng, problems.question, parts, text, prompts)
        if roll < self.branches + self.skeleton:
            return self._skeleton(rng, problems.question, parts, text, prompts)
        count = rng.randint(2, 4)
        if rng.random() < 0.2:
            asked = retrieval(rng, rng.randint(3, 10))
            students = StudentParts(asked)
            script = InAttempts(students, LineByLine(students))
            return self._attempts(rng, asked.question, count, script, text, prompts)
        script = InAttempts(parts, ListAttempts(problems, count, rng, self.slips))
        return self._attempts(rng, problems.question, count, script, text, prompts)

    def _attempts(
        self,
        rng: random.Random,
        question: str,
        count: int,
        script: InAttempts,
        text: Text,
        prompts: Prompts,
    ) -> Lesson:
        budget, end = self._budget(rng, 60), replace(_NO_REPLY, reply=rng.random() < 0.5)
        roll = rng.random()
        if roll < 0.3:
            graded = BestSettings(workers=count, budget=budget, end=end)
            return _lesson(best_of_n(question, text, graded, prompts.votes), text, script)
        snapshots = (rng.randint(1, 59),) if rng.random() < 0.5 else ()
        mode = "final" if roll < 0.9 else "vote"
        settings = VoteSettings(
            workers=count, budget=budget, snapshots=snapshots, end=end, mode=mode
        )
        return _lesson(self_consistency(question, text, settings, prompts.votes), text, script)

    def _branches(
        self, rng: random.Random, question: str, parts: Parts, text: Text, prompts: Prompts
    ) -> Lesson:
        settings = BranchSettings(
            budget=self._budget(rng, 4 * len(parts.titles)),
            join=rng.choice(tuple(JOINS)),
            max_branches=self.most_students + 2,
            end=_NO_REPLY,
        )
        strategy = branches(question, text, settings, prompts.branches)
        return _lesson(strategy, text, InBranches(parts, settings.markers))

    def _skeleton(
        self, rng: random.Random, question: str, parts: Parts, text: Text, prompts: Prompts
    ) -> Lesson:
        settings = SkeletonSettings(
            workers=rng.choice((0, 0, 1, 2, 3, 4)),
            budget=self._budget(rng, 4 * len(parts.titles)),
            max_points=self.most_students + 2,
            outline_tokens=_MOST_TOKENS,
            end=_NO_REPLY,
        )
        strategy = skeleton(question, text, settings, prompts.skeleton)
        return _lesson(strategy, text, InThreads(parts, prompts.skeleton))

    def _budget(self, rng: random.Random, least: int) -> int:
        """Mostly enough."""
        return rng.randint(least, 4 * least) if rng.random() < self.hurried else _LONGEST

    # -- needles ---------------------------------------------------------------------------------

    def _needles(self, rng: random.Random, text: Text, prompts: Prompts) -> Lesson:
        # as many short texts as long ones, as orders of magnitude go
        num_dogs = round(2 * (self.most_dogs / 2) ** rng.random())
        most = min(_SENTENCES_PER_DOG * num_dogs, 48)
        hay = haystack(rng, num_dogs, rng.randint(0, most))
        needles = rng.sample(hay.needles, min(len(hay.needles), 8 + num_dogs))
        messages = [ask(hay.document, needle.question) for needle in needles]
        if rng.random() >= self.bare:
            messages = [prompts.team.solo_message(message) for message in messages]
        asked = [text.chat_prompt(message) for message in messages]
        answers = [needle.answer for needle in needles]
        return _lesson(endings(asked, text), text, BoxedAnswers(answers))


def _lesson(strategy: Strategy, text: Text, script: Script) -> Lesson:
    return Simulation(strategy, ScriptedWriters(text, script)).lesson(_MOST_TOKENS)
