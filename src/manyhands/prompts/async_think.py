r"""The words of AsyncThink: an organiser that forks workers and joins them when it likes (our own wording).

What the organiser writes, and what stands in its text, with the defaults:

    <FORK-1>What is 3 * 4?</FORK-1>      `fork`, the sub-query, `fork_end`: a worker begins, the organiser goes on
    <JOIN-1>                             `join`: it waits until worker 1 is done
    <RETURN-1>                           `returned`: the result, put into its text
    12
    </RETURN-1>

A worker reads `worker_rules` with the sub-query and nothing else. Its result is the text between `result` and
`result_end`, or all of its reply if it left these marks out. `rules_in` is where the organiser's rules stand in a
conversation (`prompts/template.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from manyhands.errors import InvalidRequest
from manyhands.prompts.template import Placeholders, check_texts, filled

ASYNC_THINK_RULES = """\
Answer the question below. You organise the work, and workers 1 to {count} can work for you at the same time.

- <FORK-i>a sub-question</FORK-i> gives worker i a sub-question. The worker sees nothing but that text, so \
put everything into it that is needed. You go on at once.
- <JOIN-i> waits for worker i, and its result is put in there between <RETURN-i> and </RETURN-i>. Worker i \
is then free for another sub-question.
- Fork parts that do not depend on each other before you join any of them, and do work of your own meanwhile.
- Use a result only behind its <JOIN-i>.

Once the solution is known, give the final answer in \\boxed{}.

# Question

{question}"""

WORKER_RULES = """\
Answer the question below. Be brief, and end with the result alone between <RETURN> and </RETURN>.

# Question

{query}"""

PLACEHOLDERS: Placeholders = MappingProxyType(
    {
        "rules": frozenset({"question", "count"}),
        "fork": frozenset({"number"}),
        "fork_end": frozenset({"number"}),
        "join": frozenset({"number"}),
        "returned": frozenset({"number", "result"}),
        "worker_rules": frozenset({"query"}),
    }
)
REQUIRED: Placeholders = MappingProxyType(
    {
        "rules": frozenset({"question"}),
        "fork": frozenset({"number"}),
        "join": frozenset({"number"}),
        "returned": frozenset({"result"}),
        "worker_rules": frozenset({"query"}),
    }
)


class Fork(NamedTuple):
    """The organiser gives worker `number` a sub-query."""

    number: int
    query: str
    end: int  # characters up to the end of the mark


class Join(NamedTuple):
    """The organiser wants the result of worker `number`."""

    number: int
    end: int


_DIGITS = "{1,9}"  # of a number in a mark; Python reads none of thousands


@dataclass(frozen=True)
class AsyncThinkPrompt:
    """Every text, checked when made. See the module's letter for where each goes.

    `rules` must hold {question} and may hold {count}, `fork` and `join` must hold {number}, `returned` must hold
    {result} and words behind it, `worker_rules` {query}; other braces mean themselves. Beside {number} stand signs that are no digits.
    """

    rules: str = ASYNC_THINK_RULES
    worker_rules: str = WORKER_RULES
    fork: str = "<FORK-{number}>"
    fork_end: str = "</FORK-{number}>"
    join: str = "<JOIN-{number}>"
    returned: str = "\n<RETURN-{number}>\n{result}\n</RETURN-{number}>\n"
    result: str = "<RETURN>"
    result_end: str = "</RETURN>"
    finisher: str = "\n\nTime is up, so I settle on my best result. The final answer is \\boxed{"
    rules_in: str = "user"

    def __post_init__(self) -> None:
        check_texts(self, PLACEHOLDERS, REQUIRED)
        for name in ("fork", "fork_end", "join", "result_end"):
            mark = getattr(self, name)
            if not mark.strip() or len(mark.splitlines()) != 1:
                raise InvalidRequest(
                    f"prompt field '{name}' is {mark!r}, expected one line that is not blank"
                )
            if mark.count("{number}") > 1:
                raise InvalidRequest(
                    f"prompt field '{name}' is {mark!r}, expected {{number}} in it once"
                )
        for name in ("fork", "fork_end", "join", "returned"):
            _check_delimited(name, getattr(self, name))
        if self.returned.endswith("{result}"):
            raise InvalidRequest(
                f"prompt field 'returned' is {self.returned!r}, and nothing says where the result ends",
                hint="put words behind {result}, such as </RETURN>",
            )
        if len({self.fork, self.fork_end, self.join}) < 3:
            raise InvalidRequest(
                f"two of the marks 'fork', 'fork_end' and 'join' are the same: {self.fork!r}, "
                f"{self.fork_end!r}, {self.join!r}",
                hint="make all marks different",
            )

    def message(self, question: str, count: int) -> str:
        """The user's message to the organiser, who has `count` workers. A question is never searched."""
        return filled(self.rules, question=question, count=str(count))

    def worker_message(self, query: str) -> str:
        """The user's message to a worker."""
        return filled(self.worker_rules, query=query)

    def put_in(self, number: int, result: str) -> str:
        """The words by which a result enters the organiser's text."""
        return filled(self.returned, number=str(number), result=result)

    def marks(self, text: str, start: int) -> Iterator[Fork | Join]:
        """The complete marks in `text` from character `start` on, in order."""
        for found in self._marks.finditer(text, start):
            if found["join"] is None:
                yield Fork(int(found["number"]), found["query"].strip(), found.end())
            else:
                yield Join(int(found["join"]), found.end())

    def may_end_a_mark(self, piece: str) -> bool:
        """Whether a complete mark may end in this piece of text."""
        return self.fork_end[-1] in piece or self.join[-1] in piece

    def result_of(self, reply: str) -> str:
        """The result in the reply of a worker, of which `result_end` is no part."""
        return (reply.rpartition(self.result)[2] if self.result else reply).strip()

    def bare(self, text: str) -> str:
        """The organiser's own words: without marks, sub-queries and results. The whole text if none are left."""
        own = self._foreign.sub("", text).strip()
        return own or text.strip()

    @cached_property
    def _fork_pattern(self) -> str:
        return _pattern(self.fork, rf"(?P<number>\d{_DIGITS})") + "(?P<query>.*?)"

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        fork = self._fork_pattern + _pattern(self.fork_end, "(?P=number)")
        return re.compile(f"{fork}|{_pattern(self.join, rf'(?P<join>[0-9]{_DIGITS})')}", re.DOTALL)

    @cached_property
    def _foreign(self) -> re.Pattern[str]:
        put = re.split(r"(\{number\}|\{result\})", self.returned)
        wild = {"{number}": r"\d+", "{result}": ".*?"}
        back = "".join(wild.get(part, re.escape(part)) for part in put)
        fork = self._fork_pattern + _pattern(self.fork_end, "(?P=number)")
        return re.compile(rf"{fork}|{_pattern(self.join, f'[0-9]{_DIGITS}')}(?:{back})?", re.DOTALL)


def _check_delimited(name: str, words: str) -> None:
    """Refuse words in which digits beside {number} would be read into it; a result may hold some."""
    parts = words.replace("{result}", "0").split("{number}")
    for before, after in pairwise(parts):
        if not before or before[-1].isdigit() or not after or after[0].isdigit():
            raise InvalidRequest(
                f"prompt field '{name}' is {words!r}: a digit beside {{number}} would be read into the number",
                hint="put a sign that is no digit before {number} and behind it, as in <JOIN-{number}>",
            )


def _pattern(mark: str, number: str) -> str:
    before, found, after = mark.partition("{number}")
    return re.escape(before) + (number if found else "") + re.escape(after)
