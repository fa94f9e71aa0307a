"""Lessons of the bundled model: random runs of the scripted team, a new one at every draw.

A lesson is drawn from a seed and is the same wherever it is drawn. The mix covers what `solve` can be
asked: teams, all layouts, redundancy checks or none, pauses, late joins, claims forced
on a worker, answers asked for before the end, the reply, and the plain sequential method. Where a recipe asks for it,
workers leave in the middle of a claim, and results are wrong: slips of the team, or steps put in a worker's mouth.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from manyhands.cache.layouts import LAYOUTS
from manyhands.errors import InvalidRequest
from manyhands.prompts.hogwild import TeamPrompt
from manyhands.replay.simulate import Lesson, Simulation
from manyhands.schema.setting import check, probability, setting
from manyhands.school.arithmetic_team import ArithmeticTeam, Leave, Mischief
from manyhands.school.slips import slip_in, written_step
from manyhands.strategies.base import Strategy
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import MAX_WORKERS, Away, EndSettings, SoloSettings, TeamSettings
from manyhands.tasks.arithmetic.problem_list import ProblemList, problem_list
from manyhands.text import Text

TaughtStories = Literal["known", "taught", "composed", "domains", "written", "varied"]
MOST_PROBLEMS = 12  # of a list
_MOST_UNSEEN = 32  # problems times workers where each worker solves them all
_LONGEST = 4000  # passes; every scripted run is over long before


@dataclass(frozen=True)
class Curriculum:
    """How often each kind of run is drawn."""

    fewest_problems: int = setting(2, "Of a list.", at_least=1, at_most=MOST_PROBLEMS)
    most_problems: int = setting(8, "Of a list.", at_least=1, at_most=MOST_PROBLEMS)
    most_workers: int = setting(4, "Of a team.", at_least=1, at_most=MAX_WORKERS)
    word_problems: float = probability(0.55, "Lists of word problems.")
    mixed_lists: float = probability(0.1, "Lists of both kinds of problems.")
    wide: float = probability(
        0.0, "Of the other lists: bare lines of 1 to 6 operations, with results from -999 to 999."
    )
    stories: TaughtStories = setting(
        "known", "Of which stories word problems are made.", one_of=get_args(TaughtStories)
    )
    solo: float = probability(0.08, "The sequential method.")
    contiguous: float = probability(0.14, "Teams in this layout.")
    interleaved: float = probability(0.08, "Teams in this layout; the others are combined.")
    checks: float = probability(0.25, "Teams with redundancy checks.")
    pauses: float = setting(
        0.4,
        "Workers that pause or join late, and of those that paused, who pause again.",
        at_least=0,
        below=1,
    )
    forced_claims: float = probability(0.15, "Teams in which a claim is put in a worker's mouth.")
    irregular: float = probability(0.45, "Runs in which mischief happens.")
    slips: float = probability(0.0, "Runs of a team in which results are wrong now and then.")
    planted: float = probability(
        0.0, "Teams in which a whole step is put in a worker's mouth, half of them wrong."
    )
    leaves: float = probability(0.0, "Teams from which workers are sent away in a claim.")
    early_answers: float = probability(0.5, "Runs asked for their answer in passing.")

    def __post_init__(self) -> None:
        check(self)
        if self.fewest_problems > self.most_problems:
            raise InvalidRequest(
                f"fewest_problems is {self.fewest_problems}; expected at most most_problems, "
                f"{self.most_problems}"
            )

    def draw(self, seed: str, text: Text, prompt: TeamPrompt) -> Lesson:
        """The lesson of this seed."""
        rng = random.Random(seed)
        problems = self._problems(rng)
        if rng.random() < self.solo:
            return self._solo(rng, problems, text, prompt)
        return self._team(rng, problems, text, prompt)

    def _problems(self, rng: random.Random) -> ProblemList:
        # five and eight are what is examined most
        possible = range(self.fewest_problems, self.most_problems + 1)
        often = [5, 5, 5] if 5 in possible else []
        counts = [*possible, *often, self.most_problems]
        count, roll = rng.choice(counts), rng.random()
        stories = self.stories
        if roll < self.mixed_lists:
            return problem_list(rng, count, "mixed", stories)
        words = roll < self.mixed_lists + self.word_problems
        if words:
            return problem_list(rng, count, "word", stories)
        is_wide = self.wide > 0 and rng.random() < self.wide
        return problem_list(rng, count, "wide" if is_wide else "bare")

    def _solo(
        self, rng: random.Random, problems: ProblemList, text: Text, prompt: TeamPrompt
    ) -> Lesson:
        budget = self._budget(rng, problems, workers=1)
        settings = SoloSettings(budget=budget, snapshots=self._snapshots(rng, problems, 1, budget))
        mischief = Mischief(slip=self._slip(rng, sees_desks=True))
        team = ArithmeticTeam(problems, text, ["writer"], prompt, rng, mischief=mischief)
        return _lesson(sequential(problems.question, text, settings, prompt), team)

    def _team(
        self, rng: random.Random, problems: ProblemList, text: Text, prompt: TeamPrompt
    ) -> Lesson:
        workers, roll = rng.randint(1, self.most_workers), rng.random()
        layout = "combined"
        if roll < self.contiguous + self.interleaved:
            layout = "contiguous" if roll < self.contiguous else "interleaved"
        if layout == "interleaved" and workers * len(problems.problems) > _MOST_UNSEEN:
            layout = "combined"
        sees_desks = LAYOUTS[layout].sees_desks
        budget = self._budget(rng, problems, workers)
        planted = self._planted(rng, problems, workers) if sees_desks else {}
        settings = TeamSettings(
            workers=workers,
            layout=layout,
            budget=budget,
            check_every=rng.randint(30, 250) if rng.random() < self.checks else 0,
            snapshots=self._snapshots(rng, problems, workers, budget),
            away=self._away(rng, workers),
            insertions=self._insertions(rng, problems, workers) | planted,
            end=EndSettings(finisher_tokens=64, reply_tokens=64, reply=rng.random() < 0.6),
        )
        team = ArithmeticTeam(
            problems,
            text,
            prompt.team(workers),
            prompt,
            rng,
            sees_desks=sees_desks,
            mischief=self._mischief(rng, sees_desks),
            leaves=self._leaves(rng, workers) if layout == "combined" else (),
        )
        return _lesson(hogwild(problems.question, text, settings, prompt), team)

    def _budget(self, rng: random.Random, problems: ProblemList, workers: int) -> int:
        """Mostly enough; sometimes so small that the finisher has to step in."""
        if rng.random() > 0.15:
            return _LONGEST
        return rng.randint(5, max(6, _passes(problems) // workers))

    def _snapshots(
        self, rng: random.Random, problems: ProblemList, workers: int, budget: int
    ) -> tuple[int, ...]:
        if rng.random() > self.early_answers:
            return ()
        last = min(budget - 1, max(2, int(0.9 * _passes(problems) / workers)))
        return (rng.randint(1, last),)

    def _away(self, rng: random.Random, workers: int) -> tuple[Away, ...]:
        away = []
        for worker in range(workers):
            if rng.random() < self.pauses / workers:
                away.append(Away(worker, 1, rng.randint(1, 30)))  # joins late
            while rng.random() < self.pauses:
                first = rng.randint(1, 150)
                away.append(Away(worker, first, first + rng.randint(0, 14)))
        return tuple(away)

    def _insertions(
        self, rng: random.Random, problems: ProblemList, workers: int
    ) -> dict[tuple[int, int], str]:
        if rng.random() > self.forced_claims:
            return {}
        return {
            (
                rng.randrange(workers),
                rng.randint(1, 3),
            ): f" #{rng.randint(1, len(problems.problems))}:"
            for _ in range(rng.randint(1, 2))
        }

    def _planted(
        self, rng: random.Random, problems: ProblemList, workers: int
    ) -> dict[tuple[int, int], str]:
        """Whole steps, right or with a slip, that workers begin with."""
        if not self.planted or rng.random() > self.planted:
            return {}
        count = len(problems.problems)
        steps: dict[tuple[int, int], str] = {}
        for number in rng.sample(range(count), min(count, rng.randint(1, 2))):
            problem = problems.problems[number]
            slip = slip_in(rng, problem) if rng.random() < 0.5 else None
            work, answer = (slip.work, slip.answer) if slip else (problem.work, problem.answer)
            place = rng.randrange(workers), rng.choice((1, 1, 1, 2))
            steps[place] = written_step(number + 1, work, answer)
        return steps

    def _leaves(self, rng: random.Random, workers: int) -> tuple[Leave, ...]:
        """One worker that leaves, or several; one stays."""
        if workers == 1 or not self.leaves or rng.random() > self.leaves:
            return ()
        count = 1 if rng.random() < 0.5 else rng.randint(1, workers - 1)
        return tuple(
            Leave(worker, rng.choice((1, 1, 2)), rng.randint(0, 30))
            for worker in rng.sample(range(workers), count)
        )

    def _mischief(self, rng: random.Random, sees_desks: bool) -> Mischief:
        slip = self._slip(rng, sees_desks)
        if rng.random() > self.irregular:
            return Mischief(slip=slip)
        random_claim = rng.choice([0.0, 0.7])
        return Mischief(random_claim, wrong_claim=0.15, late_notice=0.25, slip=slip)

    def _slip(self, rng: random.Random, sees_desks: bool) -> float:
        if not self.slips or not sees_desks or rng.random() > self.slips:
            return 0.0
        return rng.choice((0.1, 0.2, 0.3))


def _lesson(strategy: Strategy, team: ArithmeticTeam) -> Lesson:
    return Simulation(strategy, team, team.heard).lesson()


def _passes(problems: ProblemList) -> int:
    """About how many passes one worker takes."""
    return sum(14 + 11 * problem.num_steps for problem in problems.problems)
