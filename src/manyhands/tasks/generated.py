"""Tasks whose questions are made here: the bundled model's lists, student retrieval, needles.

Nothing is downloaded and nothing can have been seen in training: the seed and a sample's number are all
that its question depends on. Each kind says which generator is asked; `held-out` draws stories, students
or dogs that the bundled model never met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from manyhands.tasks.arithmetic.problem_list import ListKind, problem_list
from manyhands.tasks.arithmetic.words import Stories
from manyhands.tasks.graders import Score, grade_list, grade_names, grade_word
from manyhands.tasks.needles import COLOURS, PARTS, haystack
from manyhands.tasks.retrieval import retrieval
from manyhands.tasks.task import Sample, TaskOptions, check_kind, check_options

SAMPLES = 100  # as many as PDOS asks in each setting
PROBLEMS_PER_LIST = 5
QUESTIONS = 256  # about one document, as in Hydragen
SENTENCES_PER_QUESTION = 6  # 256 questions then stand in about 20 k tokens, as in Hydragen
KNOWN, HELD_OUT = "known", "held-out"
BUNDLED_SENTENCES = 40  # the longest text that the bundled model was trained on has 48
_LISTS: dict[str, ListKind] = {
    "bare": "bare",
    "wide": "wide",
    "word": "word",
    "mixed": "mixed",
    HELD_OUT: "word",
    "taught": "word",
    "unseen": "word",
    "fresh": "word",
    "late": "word",
    "changed": "word",
    "renamed": "word",
}
_STORIES: dict[str, Stories] = {
    HELD_OUT: "held-out",
    "taught": "taught",
    "unseen": "unseen",
    "fresh": "fresh",
    "late": "late",
    "changed": "changed",
    "renamed": "renamed",
}


@dataclass(frozen=True)
class Arithmetic:
    """Lists of short problems, the world of the bundled model; the value is the share of right places."""

    options: TaskOptions
    name = "arithmetic"
    about = "lists of short arithmetic problems, graded place by place"

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "count", "kind")
        check_kind(self.name, self.kind, tuple(_LISTS))

    @property
    def kind(self) -> str:
        """`bare`, `wide` (`bare.py`), `word`, `mixed`, or stories that are `held-out`, `taught`, `unseen`,
        `fresh`, `late`, `changed` or `renamed` (`words.py`).
        """
        return self.options.kind or "bare"

    def samples(self) -> Sequence[Sample]:
        """`limit` lists of `count` problems."""
        return [self._sample(number) for number in range(1, (self.options.limit or SAMPLES) + 1)]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """The positional mean."""
        return grade_list(answer, sample.gold)

    def _sample(self, number: int) -> Sample:
        count = self.options.count or PROBLEMS_PER_LIST
        name = f"{self.kind}-{count}-{self.options.seed}-{number}"
        rng = Random(f"arithmetic/{name}")
        stories = _STORIES.get(self.kind, "known")
        made = problem_list(rng, count, _LISTS[self.kind], stories)
        return Sample(name, made.question, list(made.gold), {"kind": self.kind, "count": count})


@dataclass(frozen=True)
class Retrieval:
    """Which of the students have a GPA in the range? Exactly these names, or nothing (PDOS 4.2)."""

    options: TaskOptions
    students: int
    about = "which students have a GPA in a range; exact match of the names"

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "count", "kind")
        check_kind(self.name, self.options.kind or KNOWN, (KNOWN, HELD_OUT))

    @property
    def name(self) -> str:
        """With the number of students, which `count` may change."""
        return f"retrieval-{self.options.count or self.students}"

    def samples(self) -> Sequence[Sample]:
        """`limit` questions, each about students of its own."""
        return [self._sample(number) for number in range(1, (self.options.limit or SAMPLES) + 1)]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """1 or 0."""
        return grade_names(answer, text, sample.gold, sample.facts["students"])

    def _sample(self, number: int) -> Sample:
        kind = self.options.kind or KNOWN
        name = f"{kind}-{self.options.seed}-{number}"
        rng = Random(f"{self.name}/{name}")
        made = retrieval(rng, self.options.count or self.students, held_out=kind == HELD_OUT)
        facts = {"students": [student.name for student in made.students]}
        return Sample(name, made.question, list(made.gold), facts)


@dataclass(frozen=True)
class Needles:
    """Many questions about one long text, which all samples share; the exact colour (Hydragen 4.3)."""

    options: TaskOptions
    name = "needles"
    about = "questions about one long text; the exact colour"

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "count", "kind", "sentences", "shots")
        check_kind(self.name, self.options.kind or KNOWN, (KNOWN, HELD_OUT))

    def samples(self) -> Sequence[Sample]:
        """`count` questions in random order, of which `limit` are asked; the text stays the same.

        With `shots`, so many more questions stand behind the text with their answers (Hydragen has five).
        """
        kind = self.options.kind or KNOWN
        count = self.options.count or QUESTIONS
        sentences = self.options.sentences or count * SENTENCES_PER_QUESTION
        name = f"{kind}-{count}-{sentences}-{self.options.seed}"
        rng = Random(f"needles/{name}")
        shots = self.options.shots or 0
        dogs = -(-(count + shots) // len(PARTS))
        text = haystack(rng, dogs, sentences, held_out=kind == HELD_OUT)
        drawn = rng.sample(text.needles, count + shots)
        shown = [f"{needle.question}\n\\boxed{{{needle.answer}}}" for needle in drawn[count:]]
        document = "\n\n".join([text.document, *shown])
        if shots:
            name += f"-{shots}-shots"
        return [
            Sample(f"{name}-{number}", needle.question, needle.answer, document=document)
            for number, needle in enumerate(drawn[: self.options.limit or count][:count], start=1)
        ]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """1 or 0."""
        return grade_word(answer, text, sample.gold, COLOURS)
