"""Every variable of the environment that the source reads stands in the table of docs/terminal.md, and no other does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "manyhands"
TABLE = ROOT / "docs" / "terminal.md"


def variables(tree: ast.Module) -> Iterator[str]:
    """The names of variables that a module reads; AssertionError for a read whose name cannot be told."""
    known: dict[str, ast.expr] = {}
    for node in ast.walk(tree):  # names stand for constants, tuples, or items of these
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.comprehension):
            pairs = [(node.target, node.iter)]
        for target, value in pairs:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                names = zip(target.elts, value.elts, strict=False)
                known.update({one.id: to for one, to in names if isinstance(one, ast.Name)})
            elif isinstance(target, ast.Name):
                known[target.id] = value

    def told(name: ast.expr) -> Iterator[str]:
        while isinstance(name, ast.Name):
            assert name.id in known, f"line {name.lineno}: no constant {name.id}"
            name = known[name.id]
        for one in name.elts if isinstance(name, ast.Tuple) else [name]:
            assert isinstance(one, ast.Constant), f"line {name.lineno}: a read of no constant"
            yield str(one.value)

    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _is_environ(node.value):
            yield from told(node.slice)
        elif isinstance(node, ast.Compare) and any(map(_is_environ, node.comparators)):
            yield from told(node.left)
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if function.endswith(("environ.get", "getenv", "environ.pop")):
                yield from told(node.args[0])


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node).endswith("environ")


def test_the_table_has_every_variable_that_is_read_and_no_other() -> None:
    read = {
        name
        for path in SOURCE.rglob("*.py")
        for name in variables(ast.parse(path.read_text(encoding="utf-8")))
    }
    _, _, section = TABLE.read_text(encoding="utf-8").partition("## Variables of the environment")
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert set(listed) == read
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('import os\nos.environ.get("A")', {"A"}),
        ('from os import environ, getenv\nenviron["A"], getenv("B", "")', {"A", "B"}),
        ('X, OFF = "A", "off"\nos.environ.get(X) == OFF', {"A"}),
        ('X = ("A", "B")\nany(x in os.environ for x in X)', {"A", "B"}),
        ('os.environ.setdefault("A", "1")\nenv = {**os.environ}', set()),
    ],
)
def test_each_way_to_read_one_is_seen(source: str, found: set[str]) -> None:
    assert set(variables(ast.parse(source))) == found
