"""The parts of an exam: a Task gives Samples, and grades the answers to them.

    for sample in task.samples():
        answer = ...                                       # any method, any model
        score = task.grade(sample, answer.answer, answer.text)

That is the whole contract: a class with these two methods is a task, of ours or of yours
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
from manyhands.schema.setting import check, setting
from manyhands.tasks.graders import Score

_TASK = "Task"  # the group of options in the help
FIXTURE = "fixture"  # as a source: the few problems of our own that come with the package


@dataclass(frozen=True)
class Sample:
    """One question of an exam.

    `gold` and `facts` are JSON-able. `facts` is what a grader, a judge or the report wants besides.
    `document` is a long text shared by many samples: the exam puts it and an empty line before
    the question (`tasks/needles.py::ask`).
    """

    id: str  # unique within its task, the same in every run
    question: str  # as a user would type it
    gold: Any
    facts: Mapping[str, Any] = field(default_factory=dict)
    document: str | None = None


@dataclass(frozen=True)
class TaskProtocol:
    """How a task is asked where a user does not choose otherwise, as its paper asks it.

    A task may have one as its `protocol`; `protocol_of` gives it.
    """

    answer: str = "boxed"  # the form of an answer: boxed, or code
    finisher_tokens: int | None = (
        None  # of the answer that is asked for at the end; None: the method's
    )
    repeats: int = 1
    grader_seconds: float = 60.0  # the longest that one answer may take to grade


USUAL = TaskProtocol()


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


def check_task(task: object) -> None:
    """Raise InvalidRequest for what is no task, as when its class was given and not an object of it."""
    has_both = all(callable(getattr(task, name, None)) for name in ("samples", "grade"))
    has_texts = all(isinstance(getattr(task, name, None), str) for name in ("name", "about"))
    if isinstance(task, type) or not has_both or not has_texts:
        found = (
            f"the class {task.__name__}" if isinstance(task, type) else f"a {type(task).__name__}"
        )
        raise InvalidRequest(
            f"{found} was given as a task; expected an object with the texts `name` and `about` and the methods "
            "`samples` and `grade`",
            hint="Make one: make_task(name, TaskOptions()), or an object of a class of your own.",
        )


@dataclass(frozen=True)
class TaskOptions:
    """A user's choices for any task; what a task has no use for is refused when it is made.

    A file as `source` has the columns of the task's own; a dataset of the Hugging Face hub is
    `owner/name`, `owner/name:config` or `owner/name:config:split`.
    """

    limit: int | None = setting(
        None, "Only the first so many samples.", at_least=1, unset="all", panel=_TASK
    )
    seed: int = setting(0, "Of generated samples.", panel=_TASK)
    source: str | Path | None = setting(
        None,
        "A JSONL or Parquet file, another dataset of the hub, or fixture (a few of our own).",
        unset="the task's own",
        panel=_TASK,
    )
    count: int | None = setting(
        None,
        "Problems, students or questions of a sample.",
        at_least=1,
        unset="the task's",
        panel=_TASK,
    )
    kind: str | None = setting(
        None,
        "Of generated tasks. arithmetic: bare, word, mixed, held-out; others: known, held-out.",
        panel=_TASK,
    )
    sentences: int | None = setting(
        None,
        "Of needles: sentences between the questions' facts.",
        at_least=1,
        unset="six a question; for the bundled model 40",
        panel=_TASK,
    )

    shots: int | None = setting(
        None,
        "Of needles: questions with their answers that stand behind the document.",
        at_least=1,
        unset="none",
        panel=_TASK,
    )
    allow_code: bool = setting(
        False,
        "Run the programs that the model writes, under limits and closed in as far as this system can.",
        panel=_TASK,
    )

    def __post_init__(self) -> None:
        check(self)


def protocol_of(task: Task) -> TaskProtocol:
    """The task's own, or the usual one."""
    found = getattr(task, "protocol", None)
    return found if isinstance(found, TaskProtocol) else USUAL


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
    for name in ("source", "count", "kind", "sentences", "shots", "allow_code"):
        if name not in uses and getattr(options, name) not in (None, False):
            raise UnusedOption(task, name, getattr(options, name), ("limit", "seed", *uses))


def check_kind(task: str, kind: str, kinds: Sequence[str]) -> None:
    """Raises if the kind of a generated task is not one of these."""
    if kind not in kinds:
        raise InvalidRequest(
            f"the task {task} has no kind {kind!r}", hint=f"choose one of: {', '.join(kinds)}"
        )
