r"""The words of skeleton-of-thought: an outline first, then every point by itself (our own wording).

What the model writes and reads, with the defaults:

    1. wind                        the outline: one point a line, numbered from 1; `opening` ("1.")
    2. sun                         is put before the model, so that it begins with a point
                                   `close`, an empty line, ends it
    ### Point 1: wind              `thread` opens the text of one point, in a view of its own:
    It blows.                      [prompt and outline, this thread]

    ### Point 2: sun               a thread ends with the model's turn, with `stop`, or when it has
    It shines.                     written enough
                                   `join` follows the last thread; the model goes on behind it
    ### Taken together

A model that was trained on something shorter brings its own words, for instance

    [skeleton]
    rules = "List, then work out each point alone.\n\n{question}"
    point = "{number}) {title}"
    opening = ""                   # the model is trusted to begin with the outline
    thread = "\n{number}) {title} "
    stop = "\n"                    # a thread is one line
    join = "\nTogether: "
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType

from manyhands.errors import InvalidRequest
from manyhands.prompts.template import Placeholders, check_texts, filled

SKELETON_RULES = """\
Answer the question below in three stages.

1. First write only an outline: a numbered list of the parts that can be worked out independently of \
each other, at most a few words a line, no blank lines between them. An empty line ends the outline.
2. Then work out each point under its own heading, completely, and nothing but that point. Other \
points are worked out at the same time; you do not see them.
3. Once all points are there, go on with what follows from them.

Once the solution is known, give the final answer in \\boxed{}.

# Question

{question}"""

PLACEHOLDERS: Placeholders = MappingProxyType(
    {
        "rules": frozenset({"question"}),
        "point": frozenset({"number", "title"}),
        "thread": frozenset({"number", "title"}),
    }
)
REQUIRED: Placeholders = MappingProxyType(
    {
        "rules": frozenset({"question"}),
        "point": frozenset({"title"}),
        "thread": frozenset({"title"}),
    }
)


@dataclass(frozen=True)
class SkeletonPrompt:
    """Every text of `skeleton`, checked when made. See the module's letter for where each goes.

    `rules` must hold {question}, `point` and `thread` must hold {title} and may hold {number}; other
    braces mean themselves. `opening` and `stop` may be empty.
    """

    rules: str = SKELETON_RULES
    opening: str = "1."
    point: str = "{number}. {title}"
    close: str = "\n\n"
    thread: str = "\n\n### Point {number}: {title}\n"
    stop: str = "### Point"
    join: str = "\n\n### Taken together\n"
    finisher: str = "\n\nTime is up, so I settle on my best result. The final answer is \\boxed{"
    rules_in: str = "user"

    def __post_init__(self) -> None:
        check_texts(self, PLACEHOLDERS, REQUIRED)
        for name in ("close", "join"):
            if not getattr(self, name):
                raise InvalidRequest(
                    f"prompt field '{name}' is empty, expected text",
                    hint="something must stand between the outline, the points and what follows",
                )
        parts = self._parts()
        if "\n" in self.point.strip() or len(set(parts)) < len(parts):
            raise InvalidRequest(
                f"prompt field 'point' is {self.point!r}, expected one line that holds each "
                "placeholder once"
            )

        if "{number}{title}" in self.point or "{title}{number}" in self.point:
            raise InvalidRequest(
                f"prompt field 'point' is {self.point!r}: digits of a title would be read into its number",
                hint="put a sign between them, as in {number}. {title}",
            )

    def message(self, question: str) -> str:
        """The user's message. A question is never searched for placeholders."""
        return filled(self.rules, question=question)

    def heading(self, number: int, title: str) -> str:
        """The words that open the thread of point `number` (from 1)."""
        return filled(self.thread, number=str(number), title=title)

    def titles(self, outline: str) -> list[str]:
        """The points of an outline, in order; lines that are no next point are passed over."""
        point = self._pattern()
        titles: list[str] = []
        for line in outline.splitlines():
            found = point.fullmatch(line.strip())
            if found is None:
                continue
            title, number = found["title"].strip(" *"), found.groupdict().get("number")
            if title and number in (None, str(len(titles) + 1)):
                titles.append(title)
        return titles

    def _parts(self) -> list[str]:
        """The placeholders of `point`, in order."""
        return re.findall(r"\{number\}|\{title\}", self.point)

    def _pattern(self) -> re.Pattern[str]:
        """`point` as a pattern for one line."""
        wild = {"{number}": r"(?P<number>\d+)", "{title}": r"(?P<title>.+)"}
        parts = re.split(r"(\{number\}|\{title\})", self.point.strip())
        return re.compile("".join(wild.get(part, re.escape(part)) for part in parts))
