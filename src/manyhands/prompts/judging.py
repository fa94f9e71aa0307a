r"""The words of the judges: how well a team worked together, and how good an answer is.

    collaborativeness   1 to 6, of a team's transcript (Hogwild! Inference, app. H)
    quality             1 to 5, of an answer beside a reference (PDOS, app. C)

Each is one message with placeholders in braces, and asks for the level in a box. The levels are those
of the papers, the wording is ours; a TOML file may replace any of it:

    [judging]
    quality = "Question: {question} Reference: {reference} Answer: {answer} Points in \\boxed{}."
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

from manyhands.errors import InvalidRequest
from manyhands.prompts.template import Placeholders, check_texts, filled
from manyhands.schema.toml import read_toml

COLLABORATIVENESS = """\
You are an experienced judge of teamwork. Several workers were given one problem. {reading} Below is \
what each of them wrote, one worker after the other.

Judge only how they worked together. Whether the solution is right does not matter here, and you are \
not to solve the problem yourself.

# Levels

1. None. They work side by side. They may greet or mention each other, but nobody does anything with \
another's work. Solving the same problem at the same time is not teamwork.
2. First contact. They try to tell each other things, but take nothing up: nobody builds on what another \
has found, and the same work is done more than once.
3. Attention. They take notice of each other: now and then (one to three times each) somebody repeats, \
checks or uses another's result. The work is hardly divided, except perhaps at the very beginning.
4. Regular exchange. Each of them takes up others' work again and again (four times or more), and \
somewhere after the beginning they plan or divide work, beyond one solving and the other checking. \
Some repetition is fine.
5. A team that adapts. Work is hardly ever done twice and the division is close to the best one. Plans \
are changed when results come in, mistakes are talked through, and this goes on to the end.
6. One mind. Everybody understands at once what is needed and does it. This is rare: give it only to \
what exceeds all you would expect.

A level is earned only if all levels below it are earned, too. Do not be generous: most teams stand at \
the lower levels, and a high level for everybody would tell nothing.

# Problem

{question}

# What the workers wrote

{transcript}

# Your judgement

Do not solve the problem and do not go on with it. Go up from level 1: say for each level why it is or is \
not earned, and stop at the first that is not. Close with the level as one number in a box, for \
example \\boxed{1}."""

# How much the workers could read of each other, in the message above: a judge that is told otherwise judges another team.
READINGS = MappingProxyType(
    {
        "words": "Each could read every word of the others at the moment it was written. They wrote at the same "
        "time: what looks like a row of monologues may be a close conversation, and the other way round.",
        "steps": "Each could read the paragraphs that others had finished, and not what was being written. They "
        "wrote at the same time: what looks like a row of monologues may be a conversation, and the other way round.",
        "nothing": "They wrote at the same time, and none could read what another wrote.",
    }
)

QUALITY = """\
You judge answers, fairly and without favour. Below are a question, a reference answer that is known to \
be good, and the answer of an assistant. Judge whether the assistant's answer is correct, useful and \
clear. Another order, length or wording than the reference's is no fault in itself.

# Points

1. Wrong, of no use for the question, or hardly readable.
2. Mostly wrong, of little use, or badly laid out.
3. Right in its main points, of some use, readable.
4. Right, useful and well laid out; small things are missing.
5. Right in everything, fully useful and very clear: as good as the reference, or better.

# Question

{question}

# Reference answer

{reference}

# The assistant's answer

{answer}

# Your judgement

Say in a few sentences what is right and what is missing or wrong. Close with the points as one number in \
a box, for example \\boxed{3}."""

PLACEHOLDERS: Placeholders = MappingProxyType(
    {
        "collaborativeness": frozenset({"question", "transcript", "reading"}),
        "quality": frozenset({"question", "reference", "answer"}),
    }
)
REQUIRED: Placeholders = MappingProxyType(
    {"collaborativeness": frozenset({"transcript"}), "quality": frozenset({"answer"})}
)


@dataclass(frozen=True)
class JudgingPrompt:
    """The words for the judges, checked when made. Braces other than the placeholders are text."""

    collaborativeness: str = COLLABORATIVENESS
    quality: str = QUALITY

    def __post_init__(self) -> None:
        check_texts(self, PLACEHOLDERS, REQUIRED)

    def message(self, rubric: str, **values: str) -> str:
        """The text that one judge reads. The values are never searched for placeholders."""
        return filled(getattr(self, rubric), **values)


def load_judging(path: str | Path) -> JudgingPrompt:
    """The judges' words in the TOML file `path`, in its table [judging]. Mistakes: InvalidRequest."""
    where = f"prompt file '{path}'"
    known = ", ".join(field.name for field in fields(JudgingPrompt))
    document = read_toml(Path(path), where)
    table = document.get("judging")
    if not isinstance(table, dict) or set(document) != {"judging"}:
        raise InvalidRequest(
            f"{where} should have one table, [judging]", hint=f"its keys may be: {known}"
        )
    unknown = sorted(set(table) - {field.name for field in fields(JudgingPrompt)})
    if unknown:
        raise InvalidRequest(f"{where} has unknown keys: {unknown}", hint=f"known keys: {known}")
    try:
        return JudgingPrompt(**table)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}", hint=error.hint) from error
