"""Hints to install something work: the package is on no index, and its extras are those of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from manyhands.errors import install_hint

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
TOLD = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(
        path
        for path in (ROOT / "docs").rglob("*.md")
        if path.name not in ("log.md", "performance.md")
    ),
    *(ROOT / "examples").rglob("*.py"),
    *(ROOT / "examples").rglob("*.md"),
    *(ROOT / "src").rglob("*.py"),
]


def test_nobody_is_told_to_install_from_an_index() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in TOLD if path.is_file()}
    assert [path for path, text in texts.items() if "manyhands-llm[" in text] == []


def test_every_extra_that_is_named_is_one() -> None:
    named = set()
    for path in TOLD:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        hints = re.findall(r"install_hint\([\"'](\w+)[\"']\)", text)
        lists = re.findall(r"pip install (?:-e )?'\.\[([\w,]+)\]'", text)
        named |= {*hints, *(extra for listed in lists for extra in listed.split(","))}
    assert named <= set(EXTRAS)
    assert {"exam", "gguf", "inspect", "ray", "serve", "structured"} <= named


def test_the_commands_of_the_readme_have_what_they_need() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "pip install '.[exam,serve]'" in text
    assert install_hint("serve") == "in a clone of manyhands: pip install '.[serve]'"
