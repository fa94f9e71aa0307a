"""Docstrings and comments begin with their subject: a sentence about "What ..." or "Who ..." leaves the reader to find it.

The rule holds for every Python file of the repository, tests included. A comment that goes on over several lines is
one text: only its first word counts, in either case, and so does that of a remark behind code.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmarks", "examples", "tests")
BARE = re.compile(r"(What|Who|Whose|Whoever|Nobody|Those)\b")
# A file is parsed if its text has a place that may be one.
BARE_DOCSTRING = re.compile(r"[\"']\s*" + BARE.pattern)
BARE_COMMENT = re.compile(r"#:?\s*" + BARE.pattern, re.IGNORECASE)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            told = ast.get_docstring(node)
            if told is not None:
                yield node.body[0].lineno, told


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every comment; of one over several lines, the first."""
    last = 0  # the line of the newest comment that stood alone on its line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            is_alone = not token.line[:column].strip()
            if not (is_alone and line == last + 1):
                yield line, token.string
            last = line if is_alone else 0


def without_subject(source: str) -> list[int]:
    """The lines of the docstrings and comments that begin with no subject."""
    found: list[int] = []
    if BARE_DOCSTRING.search(source):
        found += (line for line, told in docstrings(source) if BARE.match(told))
    if BARE_COMMENT.search(source):
        found += (line for line, told in comments(source) if BARE_COMMENT.match(told))
    return sorted(found)


def test_docstrings_and_comments_begin_with_their_subject() -> None:
    places = [
        f"{file.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line in without_subject(file.read_text(encoding="utf-8"))
    ]
    assert not places, f"without a subject: {', '.join(places)}"


def test_control_a_docstring_without_a_subject_is_seen() -> None:
    source = '''"""Whose file this is."""\n
class Gift:
    """A gift, and who gave it."""

    async def open(self) -> None:
        """What is inside."""
'''
    assert without_subject(source) == [1, 7]


def test_control_a_comment_without_a_subject_is_seen() -> None:
    source = """# A gift, and
# what is inside.
gift = 1  # what is inside
wrap = 2  # nobodyelse
# Who gave it.
card = "# What it says."
"""
    assert without_subject(source) == [3, 5]
