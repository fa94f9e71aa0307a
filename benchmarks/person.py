"""A person joins the team: lists of which a person solves parts, as a teammate would, while the team works.

    python -m benchmarks.person                    64 lists of five problems, two workers, the bundled model

When a run has made two passes, a person says one step for each of the last parts of the list, in the words of a teammate:
"#5: 17+60=77; 77-31=46. #5 is 46." It is said to the run (`Run.say`), and heard by the team's `Listen`. Counted
are forward passes, right lists, and parts that were solved twice: by two workers, or by a worker behind the
person. The control is a person who solves nothing. Everything is greedy, so it comes out the same again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.results import Clock, Results, parser
from manyhands import METHODS, Engine, bundled, model_prompts
from manyhands.engine.run import Run
from manyhands.strategies.listening import Said
from manyhands.strategies.run_spec import RunSpec
from manyhands.strategies.settings import EndSettings, TeamSettings
from manyhands.tasks.arithmetic.problem_list import ListKind, ProblemList, problem_list

PERSON = "Dana"
AFTER = 2  # passes before the person speaks
COUNT, LISTS = 5, 64
SOLVED = (
    None,
    1,
    0,
    2,
)  # parts that the person solves; 0: none, and says so; None: there is no person
_SOLVED = re.compile(r"#(\d+) is \d+")


@dataclass(frozen=True)
class Case:
    """One list, and how many of its last parts a person solves; None: there is no person."""

    problems: ProblemList
    solved: int | None

    def words(self) -> list[str]:
        """The lines of the person, step by step."""
        if self.solved is None:
            return []
        if not self.solved:
            return ["I am only looking on."]
        numbered = list(enumerate(self.problems.problems, 1))[-self.solved :]
        return [f"#{n}: {'; '.join(each.work)}. #{n} is {each.answer}." for n, each in numbered]


@dataclass(frozen=True)
class Came:
    """The result of a case. `twice` counts parts that were solved more than once."""

    passes: int
    is_right: bool
    twice: int


def lists(kind: ListKind, num_lists: int, seed: int = 64) -> list[ProblemList]:
    """Lists of their own, each from its number."""
    return [
        problem_list(Random(f"person/{kind}/{seed}/{number}"), COUNT, kind)
        for number in range(num_lists)
    ]


def solved_by_all(engine: Engine, cases: Sequence[Case], workers: int) -> list[Came]:
    """All cases side by side, each a run of its own."""
    settings = TeamSettings(workers=workers, budget=800, end=EndSettings(reply=False))
    words = model_prompts(bundled.path()).team
    spec = RunSpec(METHODS["hogwild"], settings, words, context=engine.facts.max_positions)
    text = engine.text
    runs = [engine.submit(spec.asked(case.problems.question).strategy(text)) for case in cases]
    unsaid = {run: case.words() for run, case in zip(runs, cases, strict=True)}
    while not all(run.done for run in runs):
        for run in [run for run in unsaid if run.num_passes >= AFTER or run.done]:
            for said in unsaid.pop(run):
                run.say(Said(said, PERSON))
        assert engine.step() or all(run.done for run in runs), "runs go on as long as one is left"
    return [_came(run, case) for run, case in zip(runs, cases, strict=True)]


def _came(run: Run, case: Case) -> Came:
    answer = run.result()
    right = ",".join(map(str, case.problems.gold))
    given = (answer.answer or "").replace(" ", "")
    solved = [number for step in answer.steps for number in set(_SOLVED.findall(step.text))]
    twice = sum(solved.count(number) > 1 for number in set(solved))
    return Came(answer.forward_passes, given == right, twice)


def summed(came: Sequence[Came]) -> dict[str, Any]:
    """The figures of many cases."""
    passes = sorted(each.passes for each in came)
    return {
        "lists": len(came),
        "passes_mean": round(sum(passes) / len(passes), 2),
        "passes_median": passes[len(passes) // 2],
        "right": sum(each.is_right for each in came),
        "solved_twice": sum(each.twice for each in came),
    }


def main() -> None:
    """One kind of list and one size of the team; with each number of parts that the person solves."""
    options = parser(__doc__, minutes=30)
    options.add_argument("--lists", type=int, default=LISTS)
    options.add_argument("--problems", choices=("bare", "word"), default="bare")
    options.add_argument("--workers", type=int, default=2)
    arguments = options.parse_args()
    num_lists = 2 if arguments.tiny else arguments.lists
    results = Results("person", arguments, Clock(arguments.minutes))
    engine = Engine.load(bundled.path(), device=arguments.device, memory_tokens=131072)
    alone: list[Came] = []
    for solved in SOLVED:
        cases = [Case(each, solved) for each in lists(arguments.problems, num_lists)]
        came = solved_by_all(engine, cases, arguments.workers)
        alone = alone or came
        fewer = sum(a.passes < b.passes for a, b in zip(came, alone, strict=True))
        about = {"problems": arguments.problems, "workers": arguments.workers}
        line = {**about, "person_solves": solved, **summed(came), "fewer_passes": fewer}
        results.add("person", **line)


if __name__ == "__main__":
    main()
