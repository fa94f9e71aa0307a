"""What an exam is made of: a Task gives Samples, and grades the answers to them.

    for sample in task.samples():
        answer = ...                                       # any method, any model
        score = task.grade(sample, answer.answer, answer.text)

That is the whole contract: a class with these two methods is a task, whoever wrote it
(examples/your_own_task.py is one). `TaskOptions` are the choices that a user has for all of ours;
`tasks/catalogue.py` lists them by name.

A sample that cannot be graded by a rule says so in its facts: `{"judge": "quality", "reference":
"..."}` asks for the judge of that name and hands it what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from manyhands.errors import InvalidRequest
from manyhands.tasks.graders import Score

FIXTURE = "fixture"  # as a source: the few problems of our own that come with the package


@dataclass(frozen=True)
class Sample:
    """One question of an exam.

    `gold` and `facts` are JSON-able. `facts` is what a grader, a judge or the report wants besides.
    `document` is a long text shared by many samples: whoever asks puts it and an empty line before
    the question (`tasks/needles.py::ask`).
    """

    id: str  # unique within its task, the same in every run
    question: str  # what a user would type
    gold: Any
    facts: Mapping[str, Any] = field(default_factory=dict)
    document: str | None = None


class Task(Protocol):
    """Samples and their grader. The same options give the same samples, in the same order."""

    @property
    def name(self) -> str:
        """One word, which also names the folder of its records."""

    @property
    def about(self) -> str:
        """One line for help and report."""

    def samples(self) -> Sequence[Sample]:
        """All questions. Raises `InvalidRequest` where the source cannot be read."""

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """How right the boxed `answer` is, or the reply `text` where the task asks for no box."""


@dataclass(frozen=True)
class TaskOptions:
    """A user's choices for any task; what a task has no use for is refused when it is made.

    `source` replaces the task's own: a JSONL or Parquet file in the same columns, another dataset of
    the Hugging Face hub (`owner/name`, `owner/name:config`, `owner/name:config:split`), or `fixture`.
    `count` is how many there are: problems of a list, students of a sample, questions of a document.
    """

    limit: int | None = None  # the first so many samples; None: all, or the task's usual number
    seed: int = 0  # of generated tasks, and of the drawing of lists
    source: str | Path | None = None
    count: int | None = None
    kind: str | None = None  # of generated tasks: bare, word, mixed; held-out
    sentences: int | None = None  # of a document: how many stand between the needles

    def __post_init__(self) -> None:
        for name in ("limit", "count", "sentences"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} is {value}; expected 1 or more")


class UnusedOption(InvalidRequest):
    """An option was chosen that a task has no use for. `uses` are the names of those that it takes."""

    def __init__(self, task: str, name: str, value: object, uses: Sequence[str]) -> None:
        super().__init__(
            f"the task {task} has no use for {name} = {str(value)!r}",
            hint=f"leave {name} out; {task} takes {', '.join(uses)}",
        )
        self.task, self.name, self.value, self.uses = task, name, value, uses


def check_options(task: str, options: TaskOptions, *uses: str) -> None:
    """Raises UnusedOption if one was chosen that is not in `uses`, so that none is lost in silence."""
    for name in ("source", "count", "kind", "sentences"):
        if name not in uses and getattr(options, name) is not None:
            raise UnusedOption(task, name, getattr(options, name), ("limit", "seed", *uses))


def check_kind(task: str, kind: str, kinds: Sequence[str]) -> None:
    """Raises if the kind of a generated task is not one of these."""
    if kind not in kinds:
        raise InvalidRequest(
            f"the task {task} has no kind {kind!r}", hint=f"choose one of: {', '.join(kinds)}"
        )
