"""A task of your own: samples, and how an answer is graded. Here: what is left in each purse?"""

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from manyhands import EndSettings, Engine, TeamSettings
from manyhands.evaluation import candidates, grading, record, run
from manyhands.strategies.methods import METHODS
from manyhands.strategies.run_spec import RunSpec
from manyhands.tasks.arithmetic.problem_list import ask, solve_bare
from manyhands.tasks.graders import Score
from manyhands.tasks.task import Sample


class Purses:
    name, about = "purses", "what is left in each purse; a list is right as a whole or not at all"

    def samples(self) -> list[Sample]:
        """All questions, with whatever the grader needs to know."""
        days = {"Monday": ["90 - 12 - 30", "45 + 20 - 8"], "Friday": ["70 - 9 - 9", "33 + 60 - 5"]}
        return [Sample(day, ask(lines), [*map(solve_bare, lines)]) for day, lines in days.items()]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """A value from 0 to 1, what was read, and why."""
        wanted = ",".join(map(str, sample.gold))
        return Score(float(answer == wanted), answer, f"expected {wanted}")


def main(folder: str) -> None:
    """An exam with its records in `folder`; the same one again, and it goes on where it was."""
    engine, task, budgets = Engine.load("bundled", memory_tokens=4096), Purses(), (20, 200)
    team = TeamSettings(workers=2, budget=200, snapshots=(20,), end=EndSettings(reply=False))
    spec = RunSpec(METHODS["hogwild"], team, engine.prompts.team)
    who = candidates.MethodCandidate(engine, engine.text, spec)
    told = {"task": task.name, "label": "two", "budgets": budgets, "model": "bundled"}
    file = record.RecordFile(Path(folder, "two.jsonl"), record.Header.of(spec, **told))
    with closing(file), grading.Grading(task) as grader:
        for moment in run.examine(run.Exam(task.samples(), who, budgets), file, grader):
            if one := moment.record:
                values = [score["value"] for score in one.scores.values()]
                print(f"{one.sample}: {one.answer} after {one.forward_passes} passes, {values}")


if __name__ == "__main__":  # answers are graded in a process of its own, which imports this file
    with TemporaryDirectory() as folder:
        main(folder)
