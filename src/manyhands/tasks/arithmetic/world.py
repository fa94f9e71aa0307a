"""Where the small world of the bundled model ends.

A model of a few million parameters knows the ranges that it was trained on and nothing else. Asked
for more it would still write something, so the door tells the user first: `outside_world` gives
the reason, in one sentence, why a question is not one that the model was made for.
"""

from __future__ import annotations

import re

from manyhands.tasks.arithmetic.bare import (
    SMALLEST_OPERAND,
    WIDE_LARGEST,
    WIDE_OPERATIONS,
    WIDE_RESULT,
    Bare,
    parse_bare,
)
from manyhands.tasks.arithmetic.problem import LARGEST_RESULT
from manyhands.tasks.arithmetic.problem_list import INTRODUCTION, ask, parse_question
from manyhands.tasks.arithmetic.words import is_known_story, vocabulary
from manyhands.tasks.arithmetic.world_of_parts import (
    is_about_a_text,
    is_about_students,
    outside_students,
    outside_text,
)

FEWEST_PROBLEMS, MOST_PROBLEMS = 1, 12
# Of lists that a method writes in parts, which another lesson taught: `school/curriculum_parts.py`.
IN_PARTS, PROBLEMS_IN_PARTS = frozenset({"branches", "skeleton"}), (2, 8)
MOST_WORKERS = 8
SHORTEST_STORY, LONGEST_STORY = 10, 40  # words and numbers
FEWEST_NUMBERS, MOST_NUMBERS = 2, 4
# In characters. Twelve of the longest stories have about three quarters of it.
LONGEST_QUESTION = 3000

FORM = f'the bundled model needs "{INTRODUCTION}" and then one line per problem: "1. …", "2. …"'

_PIECE = re.compile(r"[A-Za-z]+|[0-9]+|[^A-Za-z0-9\s]")
_PUNCTUATION = frozenset(".,?")
_SIGNS = frozenset("+-")
_PLAIN_STORY = re.compile(r"(?:(?:[A-Za-z]+|[1-9][0-9]*)[.,]? )+[A-Za-z]+\?")
_BRIEF = 30  # characters of the user's text that a sentence quotes


def outside_world(question: str, workers: int = 1, method: str = "hogwild") -> str | None:
    """Why the bundled model was not made for this question or this team; None if it was."""
    if method == "hogwild" and workers > MOST_WORKERS:
        return (
            f"The team has {workers} workers; the bundled model was trained on 1 to {MOST_WORKERS}."
        )
    question = question.strip()
    if is_about_students(question) or is_about_a_text(question):
        if method == "hogwild":
            return "This is not a list of problems, and lists are all that the bundled teams know."
        return outside_students(question) or outside_text(question)
    if len(question) > LONGEST_QUESTION:
        return (
            f"The question has {len(question)} characters; "
            f"the bundled model was trained on at most {LONGEST_QUESTION}."
        )
    if parse_bare(question):
        return f"A single expression is not a list; {FORM}."
    lines = parse_question(question)
    if lines is None:
        return f"This is not a numbered list of problems; {FORM}."
    in_parts = method in IN_PARTS
    fewest, most = PROBLEMS_IN_PARTS if in_parts else (FEWEST_PROBLEMS, MOST_PROBLEMS)
    if not fewest <= len(lines) <= most:
        found = f"The list has {len(lines)}" + f", and the method is {method}" * in_parts
        return _found_expected(found, fewest, most)
    for number, line in enumerate(lines, start=1):
        complaint = _outside_line(line)
        if complaint:
            return f"Problem {number} {complaint}"
    if question != ask(lines):
        return f"The problems are fine but not the text around them; {FORM}, with nothing between."
    return None


def _outside_line(line: str) -> str | None:
    """The end of a sentence that begins with "Problem 3"."""
    bare = parse_bare(line)
    if bare:
        return _outside_bare(bare, line)
    return _outside_story(line)


def _outside_bare(bare: Bare, line: str) -> str | None:
    fewest, most = WIDE_OPERATIONS
    if not fewest <= len(bare.rest) <= most:
        return _found_expected(f"has an operation count of {len(bare.rest)}", fewest, most)
    for operand in bare.operands:
        if not SMALLEST_OPERAND <= operand <= WIDE_LARGEST:
            return _found_expected(f"uses {operand}", SMALLEST_OPERAND, WIDE_LARGEST)
    for result in bare.results:
        if abs(result) > WIDE_RESULT:
            return _found_expected(f"passes through {result}", -WIDE_RESULT, WIDE_RESULT)
    if line != bare.text:
        return f'is spelled in its own way; the bundled model reads "{bare.text}".'
    return None


def _outside_story(line: str) -> str | None:
    pieces = _PIECE.findall(line)
    numbers = [piece for piece in pieces if piece[0].isdigit()]
    words = [piece for piece in pieces if piece[0].isalpha()]
    for piece in pieces:
        is_plain = piece.isascii() and piece.isalnum()  # ² is a digit, too, and no number
        if not is_plain and piece not in _PUNCTUATION | _SIGNS:
            return (
                f"contains {piece!a}; the bundled model knows lines of + and - between whole "
                "numbers, and stories in plain words."
            )
    for word in words:
        if word not in vocabulary():
            return f'contains "{word[:_BRIEF]}", a word that the bundled model never met.'
    signs = not _SIGNS.isdisjoint(pieces)
    low, high = (SMALLEST_OPERAND, WIDE_LARGEST) if signs else (2, LARGEST_RESULT)
    for number in numbers:
        if len(number) > len(str(high)) or not low <= int(number) <= high:
            return _found_expected(f"uses {number[:_BRIEF]}", low, high)
    if signs:
        return (
            "is neither a line of + and - between whole numbers nor a story in plain words, and "
            "the bundled model knows nothing else."
        )
    if not FEWEST_NUMBERS <= len(numbers) <= MOST_NUMBERS:
        found = f"is a story with a count of {len(numbers)} numbers"
        return _found_expected(found, FEWEST_NUMBERS, MOST_NUMBERS)
    if not SHORTEST_STORY <= len(words) + len(numbers) <= LONGEST_STORY:
        found = f"has a length of {len(words) + len(numbers)} words"
        return _found_expected(found, SHORTEST_STORY, LONGEST_STORY)
    if not _PLAIN_STORY.fullmatch(line):
        return (
            "is not plain text; the bundled model knows words and whole numbers with single spaces "
            "between them, and a question at the end."
        )
    if not is_known_story(line):
        return (
            "is worded in a way that the bundled model has not seen; such problems it mostly gets "
            "wrong."
        )
    return None


def _found_expected(found: str, low: int, high: int) -> str:
    return f"{found}; the bundled model was trained on {low} to {high}."
