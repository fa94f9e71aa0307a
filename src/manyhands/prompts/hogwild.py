r"""The words that turn n copies of one model into a team (Hogwild! Inference, §3.3 and app. C).

A `TeamPrompt` is data: every sentence the workers ever read is a plain string in it, and a user may
replace any of them by a file (`prompts/load.py`). What the strategy does with them:

    rules | solo_rules          the user's message, put through the model's chat template
    rules_in                    where they stand in a conversation (`prompts/template.py`)
    past_header                 closes the prompt; the team's finished steps follow it
    others_header, own_header   blocks of their own, between the history and the desks
    step_break + step_prefix    opens a step, fed as one chunk: "\n\n" then "**Alice [3]:**"
    more_to_come                closes the desk of another worker in everybody else's view
    examples                    teams at work, as models to follow; {examples} in the rules is their place
    first_words                 begin each worker's first step, as if the worker had written them
    redundancy_check            follows a step's prefix now and then; the worker answers yes or no
    finisher                    the budget is spent: the model only fills in the box
    code_finisher               the same where the answer is a program
    reply                       the team has stopped: close the thinking, answer the user

Placeholders are written `{name}`; other braces, `\boxed{...}` among them, mean themselves.
The user's problem and the workers are free to write our headings; `structure` finds such lines. In a
problem `escaped` takes their power away, and a worker's step ends before one (`strategies/hogwild.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from manyhands.errors import InvalidRequest
from manyhands.prompts.template import check_texts, filled, put
from manyhands.schema.conversation import Conversation

RULES = """\
# Team work

You are a team of {count}: {names}. You share one problem and one page. All of you write on it at the \
same time, and each sees the others' words as they are written.

## What you see

- "{past}" holds the finished steps of all, in the order in which they were finished. A step opens \
with its writer's name and number.
- "{others}" holds the steps that teammates are writing now. {more} marks where they go on, and new \
words appear there while you write.
- "{own}" holds the step that you are writing. It always comes last.

At first you see little more than openings, of parts that go on in parallel with yours. Read them as \
announcements: a teammate's first words tell what is taken.

## How you work together

- Divide the problem. Begin by saying which part you take, and take a part that is still free.
- There are other ways to help: try another approach to a part, double-check a teammate's result, \
look for mistakes, put finished parts together, or any other means that brings the team forward.
- Look now and then at what the others do, and adjust your own plan to it. Use what they found \
instead of finding it again.
- When a teammate asks or suggests something, answer it before you go on. Call each other by name.
- As soon as you notice that a teammate does or has done the same work as you, say so, drop it and do \
something else. {first} might write: "Wait, {last} has this already, I turn to the next part."
- A mistake, yours or a teammate's, is said at once, so that no further step is built on it.
- Keep steps short, and end each with what came of it.
{examples}
Keep track of which part is whose. Once the solution is known, give the final answer in \\boxed{}.

# Problem

{problem}"""

SOLO_RULES = """\
Solve the following problem step by step. Once the solution is known, give the final answer in \
\\boxed{}.

# Problem

{problem}"""

# Which placeholders a field may use, and which of them it must.
PLACEHOLDERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "rules": frozenset(
            {
                *("names", "first", "last", "count", "problem"),
                *("past", "others", "own", "more", "examples"),
            }
        ),
        "solo_rules": frozenset({"problem"}),
        "step_prefix": frozenset({"name", "step"}),
        "reply": frozenset({"think_end"}),
    }
)
REQUIRED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "rules": frozenset({"problem"}),
        "solo_rules": frozenset({"problem"}),
        "step_prefix": frozenset({"name"}),
    }
)

# fmt: off
_NAMES = (
    "Alice", "Bob", "Carol", "Dave", "Erin", "Frank", "Grace", "Henry", "Iris", "Jack", "Kate",
    "Leo", "Maria", "Nico", "Olga", "Paul", "Quinn", "Rosa", "Sam", "Tara", "Uma", "Victor",
    "Wendy", "Xavier", "Yara", "Zoe",
)
# fmt: on


def worker_name(index: int) -> str:
    """Name of worker `index` (from 0): Alice, Bob, … Zoe, then Worker 27 and so on."""
    return _NAMES[index] if index < len(_NAMES) else f"Worker {index + 1}"


@dataclass(frozen=True)
class TeamPrompt:
    """Every text a team reads, checked when made. See the module's letter for where each goes."""

    rules: str = RULES
    solo_rules: str = SOLO_RULES
    past_header: str = "\n\n### Finished steps"
    others_header: str = "\n\n### Others at work"
    own_header: str = "\n\n### Own work"
    step_break: str = "\n\n"
    step_prefix: str = "**{name} [{step}]:**"  # no blank at the end: models write " So", not "So"
    more_to_come: str = " <...>"
    redundancy_check: str = " Quick check: am I doing work that is done already? (yes or no):"
    finisher: str = "\n\nTime is up, so I settle on my best result. The final answer is \\boxed{"
    code_finisher: str = (
        "\n\nTime is up, so I settle on my best program. The final program is:\n\n```python\n"
    )
    reply: str = "\n\nThe team is done; what follows is the reply.{think_end}\n\n"
    rules_in: str = "user"
    examples: str = ""
    names: tuple[str, ...] = ("Alice", "Bob", "Carol", "Dave")
    first_words: tuple[str, ...] = ()  # of each worker; then from the front again

    def __post_init__(self) -> None:
        check_texts(self, PLACEHOLDERS, REQUIRED)
        _check_names(self.names)
        for words in self.first_words:
            if "\n" in words:
                raise InvalidRequest(f"first words {words!r} are not a text of one line")

    def team(self, count: int) -> tuple[str, ...]:
        """Names of `count` workers: the prompt's own names first, then generated ones."""
        team = list(self.names[:count])
        index = 0
        while len(team) < count:
            name = worker_name(index)
            index += 1
            if name not in team:
                team.append(name)
        return tuple(team)

    def team_message(self, problem: str, names: Sequence[str]) -> str:
        """The user's message for a team; for a team of one, that of one worker alone."""
        if isinstance(names, str):
            raise InvalidRequest(
                f"one text, {names!r}, was given where a list of names was expected",
                hint="Give prompt.team(count), or a list.",
            )
        return filled(
            self.rules if len(names) > 1 else self.solo_rules,
            names=" and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])),
            first=names[0],
            last=names[-1],
            examples=f"\n{self.examples.strip()}\n" if self.examples.strip() else "",
            count=str(len(names)),
            past=self.past_header.strip(),
            others=self.others_header.strip(),
            own=self.own_header.strip(),
            more=self.more_to_come.strip(),
            problem=self.escaped(problem),
        )

    def solo_message(self, problem: str) -> str:
        """The user's message for one worker without a team around it."""
        return filled(self.solo_rules, problem=problem)

    def for_team(self, asked: Conversation, names: Sequence[str]) -> Conversation:
        """A conversation with the rules of a team; no message of it passes for the team's structure."""
        said = asked.each(self.escaped)
        return put(said, lambda problem: self.team_message(problem, names), self.rules_in)

    def for_one(self, asked: Conversation) -> Conversation:
        """A conversation with the rules of one worker alone."""
        return put(asked, self.solo_message, self.rules_in)

    def prefix(self, name: str, step: int) -> str:
        """The words that open step number `step` (from 1) of worker `name`, without the break before it."""
        return filled(self.step_prefix, name=name, step=str(step))

    def opening(self, index: int) -> str:
        """The words that begin the first step of worker `index` behind its prefix; empty: nothing does."""
        return self.first_words[index % len(self.first_words)] if self.first_words else ""

    def structure(self, names: Iterable[str] | None = None) -> re.Pattern[str]:
        r"""The beginnings of lines that could pass for our own structure.

        That is a step's prefix, the marker, or a section header that has the line to itself, its line
        feed included. `names` are the writers whose prefixes count; None: any name does.
        """
        kinds = [re.escape(mark) for mark in (self.more_to_come.strip(),) if mark]
        parts = re.split(r"(\{name\}|\{step\})", self.step_prefix.strip())
        known = ".{1,80}?" if names is None else f"(?:{'|'.join(map(re.escape, names))})"
        wild = {"{name}": known, "{step}": r"\d+"}
        kinds.append("".join(wild.get(part, re.escape(part)) for part in parts))
        headers = "\n".join((self.past_header, self.others_header, self.own_header)).splitlines()
        kinds += [rf"{re.escape(line.strip())}[^\S\n]*\n" for line in headers if line.strip()]
        return re.compile(rf"[^\S\n]*(?:{'|'.join(kinds)})", re.IGNORECASE)

    def escaped(self, problem: str) -> str:
        r"""Put a backslash before lines of the problem that could pass for our own structure.

        In Markdown `\### Finished steps` still reads `### Finished steps`, but is no heading.
        """
        structure = self.structure()
        lines = problem.split("\n")
        return "\n".join("\\" * bool(structure.match(f"{line}\n")) + line for line in lines)


def _check_names(names: tuple[str, ...]) -> None:
    for name in names:
        if not name.strip() or len(name.splitlines()) != 1:
            raise InvalidRequest(f"worker name {name!r} is not one line of text")
    if len(set(names)) != len(names):
        raise InvalidRequest("two workers have the same name", hint="make all names different")
