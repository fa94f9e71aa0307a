"""A private name at the top of a module is there for that module: one that it never reads is left over."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "benchmarks", "examples", "recipes")


def unread(source: str) -> set[str]:
    """Private names that a module makes at its top, each by itself, and never reads.

    What is decorated may be read elsewhere, and of several numbers in a row one may have no use.
    """
    tree = ast.parse(source)
    made: set[str] = set()
    for each in tree.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made |= set() if each.decorator_list else {each.name}
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            made |= {one.id for one in targets if isinstance(one, ast.Name)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return {name for name in made - read if name.startswith("_") and not name.endswith("__")}


def test_private_names_are_read() -> None:
    assert unread("_A = 1\n_B: int = 2\n_C, _D = 3, 4\ndef _e(): return _A\n") == {"_B", "_e"}, (
        "control"
    )
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300
    found = {str(path.relative_to(ROOT)): unread(path.read_text("utf-8")) for path in files}
    assert {path: names for path, names in found.items() if names} == {}
