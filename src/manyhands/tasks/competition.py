"""Competition mathematics: LIMO, AIME 2025 and MATH-500 (Hogwild!, sections 4.1 and 4.2).

LIMO is the paper's main test: 817 problems that take a model thousands of tokens and have no obvious way
of being shared out. AIME answers are integers from 0 to 999; those of the other two are formulae, which
are compared by their meaning (`tasks/formulae.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from manyhands.errors import InvalidRequest
from manyhands.tasks.formulae import FormulaGrader, check_installed
from manyhands.tasks.graders import Score, grade_paper_integer
from manyhands.tasks.loading import Dataset, Example, first, load_examples
from manyhands.tasks.task import USUAL, Sample, TaskOptions, TaskProtocol, check_options

LIMO = Dataset(
    hub="GAIR/LIMO",
    columns={"question": (str,), "answer": (str, int, float)},
    fixture="limo.jsonl",
    split="train",
)
AIME25 = Dataset(
    hub="math-ai/aime25",
    columns={"problem": (str,), "answer": (str, int)},
    fixture="aime25.jsonl",
)
MATH500 = Dataset(
    hub="HuggingFaceH4/MATH-500",
    columns={"problem": (str,), "answer": (str,)},
    optional={"subject": (str,), "level": (int, str)},
    fixture="math500.jsonl",
    id_column="unique_id",
)
_LARGEST_AIME = 999


@dataclass(frozen=True)
class Formulae:
    """A dataset whose gold answers are formulae; 1 for a boxed formula of the same meaning, else 0."""

    name: str
    about: str
    dataset: Dataset
    question: str  # the column it stands in
    options: TaskOptions
    protocol: TaskProtocol = USUAL
    told: tuple[str, ...] = ()  # columns that the report may group by
    grader: FormulaGrader = field(default_factory=FormulaGrader)

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "source")

    def samples(self) -> Sequence[Sample]:
        """The dataset in its order."""
        check_installed()
        examples = first(load_examples(self.dataset, self.options), self.options.limit)
        return [
            Sample(
                example.id,
                example.values[self.question].strip(),
                str(example.values["answer"]).strip(),
                {
                    name: example.values[name]
                    for name in self.told
                    if example.values.get(name) is not None
                },
            )
            for example in examples
        ]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """1 or 0."""
        return self.grader.grade(answer, sample.gold)


@dataclass(frozen=True)
class Aime25:
    """Integers from 0 to 999, and nothing else in the box."""

    options: TaskOptions
    name = "aime25"
    about = "AIME 2025, papers I and II: thirty answers from 0 to 999"
    protocol = TaskProtocol(finisher_tokens=16, repeats=10)

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "source")

    def samples(self) -> Sequence[Sample]:
        """Both papers in their order."""
        examples = first(load_examples(AIME25, self.options), self.options.limit)
        return [
            Sample(example.id, example.values["problem"].strip(), _integer(example))
            for example in examples
        ]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """1 or 0."""
        return grade_paper_integer(answer, sample.gold)


def limo(options: TaskOptions) -> Formulae:
    """LIMO's 817 problems."""
    about = "817 hard problems, formulae"
    return Formulae("limo", about, LIMO, "question", options, TaskProtocol(finisher_tokens=16))


def math500(options: TaskOptions) -> Formulae:
    """Five hundred problems of MATH, with subject and level."""
    about = "500 problems of MATH, formulae"
    return Formulae("math500", about, MATH500, "problem", options, told=("subject", "level"))


def _integer(example: Example) -> int:
    written = str(example.values["answer"]).strip().removesuffix(r"^\circ")  # one is an angle
    if not written.isascii() or not written.isdigit() or int(written) > _LARGEST_AIME:
        raise InvalidRequest(
            f"{example.where}: 'answer' is {example.values['answer']!r}",
            hint=f"an AIME answer is an integer from 0 to {_LARGEST_AIME}",
        )
    return int(written)
