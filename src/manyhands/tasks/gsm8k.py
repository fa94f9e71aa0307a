"""Grade-school word problems: one at a time, and several as one question (Hogwild!, section 4.1).

The paper's first test of whether workers share out work packs five problems of GSM8K into one prompt,
128 times, no problem twice, and scores the share of right answers at their places. Independent problems
are the plainest work that can be shared.

Gold answers stand behind `####` in the dataset's `answer`, with commas between thousands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from manyhands.errors import InvalidRequest, counted
from manyhands.tasks.arithmetic.problem_list import ask
from manyhands.tasks.graders import Score, grade_list, grade_number, same_number
from manyhands.tasks.loading import Dataset, Example, first, load_examples
from manyhands.tasks.task import Sample, TaskOptions, TaskProtocol, check_options

GSM8K = Dataset(
    hub="openai/gsm8k",
    columns={"question": (str,), "answer": (str,)},
    fixture="gsm8k.jsonl",
    config="main",
)
LISTS, PROBLEMS_PER_LIST = 128, 5  # as in the paper
_GOLD = re.compile(r"####\s*(-?[0-9][0-9,]*(?:\.[0-9]+)?)\s*\Z")


@dataclass(frozen=True)
class Gsm8k:
    """One problem a sample; the boxed number counts by its value."""

    options: TaskOptions
    name = "gsm8k"
    about = "grade-school word problems, one number each"

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "source")

    def samples(self) -> Sequence[Sample]:
        """The test split in its order."""
        examples = first(load_examples(GSM8K, self.options), self.options.limit)
        return [
            Sample(example.id, example.values["question"].strip(), gold_number(example))
            for example in examples
        ]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """1 or 0."""
        return grade_number(answer, sample.gold)


@dataclass(frozen=True)
class Gsm8kList:
    """`count` problems a sample, numbered; the value is the share of right places."""

    options: TaskOptions
    name = "gsm8k-list"
    about = "several grade-school problems as one question, graded place by place"
    protocol = TaskProtocol(finisher_tokens=64)

    def __post_init__(self) -> None:
        check_options(self.name, self.options, "source", "count")

    def samples(self) -> Sequence[Sample]:
        """Lists drawn with the seed; no problem is in two of them."""
        examples = load_examples(GSM8K, self.options)
        count = self.options.count or PROBLEMS_PER_LIST
        if len(examples) < count:
            raise InvalidRequest(
                f"the source has {counted(len(examples), 'problem')}, too few for a list of {count}",
                hint=f"ask for lists of at most {len(examples)} (count), or give a larger source",
            )
        Random(f"gsm8k-list/{self.options.seed}").shuffle(examples)
        lists = min(self.options.limit or LISTS, len(examples) // count)
        return [self._sample(examples[n * count : (n + 1) * count]) for n in range(lists)]

    def grade(self, sample: Sample, answer: str | None, text: str) -> Score:
        """The positional mean."""
        return grade_list(answer, sample.gold, same_number)

    def _sample(self, examples: Sequence[Example]) -> Sample:
        lines = [" ".join(example.values["question"].split()) for example in examples]
        ids = [example.id for example in examples]
        return Sample(
            "+".join(ids), ask(lines), [gold_number(example) for example in examples], {"ids": ids}
        )


def gold_number(example: Example) -> str:
    """The number behind `####`, without commas."""
    match = _GOLD.search(example.values["answer"])
    if match is None:
        raise InvalidRequest(
            f"{example.where}: 'answer' does not end in a number behind ####",
            hint="end each answer with a line such as: #### 42",
        )
    return match[1].replace(",", "")
