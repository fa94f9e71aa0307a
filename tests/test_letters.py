"""The letter at the head of a file names files that are there; the letter of a room, and of any folder that lists its files, lists all.

A name leads from the file's own folder, from one above it, or from the package or the repository as a whole. What a
comment names in backticks may also be the end of a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "manyhands"
LETTER = re.compile(r'\A(?:#[^\n]*\n)*r?"""(.*?)"""', re.DOTALL)
NAMED = re.compile(r"(?<![\w/.])[\w/]+\.py\b")
QUOTED = re.compile(r"`([\w/]+\.py)`")
LISTED = re.compile(r"^ {4}\w+\.py  ", re.MULTILINE)
OTHERS = {"utils/chat_template_utils.py", "sitecustomize.py"}  # of transformers and of Python


def letter_of(file: Path) -> str:
    found = LETTER.match(file.read_text(encoding="utf-8"))
    return found[1] if found else ""


def gone(letter: str, folder: Path) -> set[str]:
    """The files that a letter in this folder names and that are nowhere."""
    above = [folder, *folder.parents]
    places = [*above[: above.index(SOURCE) + 1], ROOT]
    named = set(NAMED.findall(letter)) - OTHERS
    return {name for name in named if not any((place / name).is_file() for place in places)}


def gone_from_comments(text: str, paths: Iterable[str]) -> set[str]:
    """The files that a text names in backticks and with which none of these paths ends."""
    named = set(QUOTED.findall(text)) - OTHERS
    return {name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in paths)}


def unlisted(letter: str, files: set[str]) -> set[str]:
    """Of a folder's files, those that its letter leaves out, if it is a list of them."""
    return files - set(NAMED.findall(letter)) if LISTED.search(letter) else set()


def test_letters_name_files_that_are_there() -> None:
    lost = {
        str(file.relative_to(SOURCE)): names
        for file in sorted(SOURCE.rglob("*.py"))
        if (names := gone(letter_of(file), file.parent))
    }
    assert not lost


def test_comments_name_files_that_are_there() -> None:
    rooms = [ROOT / name for name in ("src", "benchmarks", "examples", "recipes", "tests")]
    files = sorted(file for room in rooms for file in room.rglob("*.py"))
    paths = [str(file.relative_to(ROOT)) for file in files]
    lost = {
        path: names
        for path, file in zip(paths, files, strict=True)
        if not path.startswith("tests/")
        if (names := gone_from_comments(file.read_text(encoding="utf-8"), paths))
    }
    assert not lost


def test_letters_of_folders_list_all_their_files() -> None:
    lost = {
        str(file.parent.relative_to(SOURCE)): names
        for file in sorted(SOURCE.rglob("__init__.py"))
        if (
            names := unlisted(
                letter_of(file), {one.name for one in file.parent.glob("*.py")} - {file.name}
            )
        )
    }
    assert not lost


def test_letters_of_rooms_are_lists() -> None:
    rooms = [room for room in SOURCE.iterdir() if (room / "__init__.py").is_file()]
    without = {room.name for room in rooms if not LISTED.search(letter_of(room / "__init__.py"))}
    assert without == {"bundled"}  # its one file


def test_control_a_file_that_is_gone_or_left_out_is_seen() -> None:
    letter = "Two rooms.\n\n    view.py    a view\n    gone.py    it moved to `cache/pages.py`\n"
    assert gone(letter, SOURCE / "cache") == {"gone.py"}
    comments = "# As `view.py` does, `kernels/copies.py` and `kernels/view.py`, but for gone.py.\n"
    paths = ["src/cache/view.py", "src/model/kernels/copies.py"]
    assert gone_from_comments(comments, paths) == {"kernels/view.py"}
    assert unlisted(letter, {"view.py", "plan.py"}) == {"plan.py"}
    assert not unlisted("A room without a list: view.py.", {"view.py", "plan.py"})
