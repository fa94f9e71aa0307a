"""Docstrings begin with their subject: a sentence about "What ..." or "Who ..." leaves the reader to find it.

Older files still have such docstrings. `LEFT` says how many a room may have; a room that is not there may have none,
and a number is lowered when docstrings of its room are mended.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "src" / "manyhands"
BARE = re.compile(r"(What|Who|Whose|Whoever|Nobody|Those)\b")
LEFT = {
    "benchmarks": 23,
    "engine": 44,
    "evaluation": 20,
    "model": 22,
    "server": 36,
    "strategies": 40,
}


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            told = ast.get_docstring(node)
            if told is not None:
                yield node.body[0].lineno, told


def without_subject(source: str) -> list[int]:
    """The lines of the docstrings that begin with no subject."""
    return [line for line, told in docstrings(source) if BARE.match(told)]


def room_of(file: Path) -> str:
    place = file.relative_to(HOUSE if file.is_relative_to(HOUSE) else ROOT)
    return place.parts[0].removesuffix(".py")


def test_docstrings_begin_with_their_subject() -> None:
    found: Counter[str] = Counter()
    places: list[str] = []
    for folder in (HOUSE, ROOT / "benchmarks", ROOT / "examples"):
        for file in sorted(folder.rglob("*.py")):
            lines = without_subject(file.read_text(encoding="utf-8"))
            found[room_of(file)] += len(lines)
            places += (f"{file.relative_to(ROOT)}:{line}" for line in lines)
    more = {room: count for room, count in found.items() if count > LEFT.get(room, 0)}
    named = [place for place in places if any(f"{room}/" in place for room in more)]
    assert not more, f"more docstrings without a subject than were left, among {named}"


def test_control_a_docstring_without_a_subject_is_seen() -> None:
    source = '''"""Whose file this is."""\n
class Gift:
    """A gift, and who gave it."""

    async def open(self) -> None:
        """What is inside."""
'''
    assert without_subject(source) == [1, 7]
