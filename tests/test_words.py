"""A class name that stands in two files is a word with two meanings, and docs/words.md names each of them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "manyhands"
WORDS = (ROOT / "docs" / "words.md").read_text(encoding="utf-8")


def test_every_name_of_two_classes_is_listed_with_both_places() -> None:
    places: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(path.relative_to(SOURCE).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    _, _, table = WORDS.partition("## Words with two meanings")
    table = table.partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| **")]
    listed: dict[str, set[str]] = {}
    for row in rows:
        (name,) = re.findall(r"\*\*(\w+)\*\*", row)
        listed[name] = {
            file for file, found in re.findall(r"`([\w/]+\.py)::(\w+)`", row) if found == name
        }
    assert listed == twice


def test_an_entry_stands_once() -> None:
    entries, _, _ = WORDS.partition("## Words with two meanings")
    words = re.findall(r"^\| (\*\*\w+\*\*(?: \([^)]*\))?)", entries, re.MULTILINE)
    assert [word for word, count in Counter(words).items() if count > 1] == []
