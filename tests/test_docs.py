"""The pages are true: their code runs, links lead somewhere, files and names exist.

A ```python block of the tutorial, of `how_to_add.md` or of `conversations.md` that is followed by a ```text block prints exactly
that. After a change that is meant to change such output, `python -m tests.test_docs` writes it anew.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks import performance
from manyhands.cli import app
from manyhands.strategies.methods import METHODS
from manyhands.tasks.catalogue import TASKS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "manyhands"
_RUN = ("tutorial.md", "how_to_add.md", "conversations.md", "sampling.md")
RUN = [ROOT / "docs" / name for name in _RUN]
_OF_TODAY = (
    "log",
    "how_to_add",
    *(Path(page).stem for page in performance.PAGES),
)  # pages that list what was
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMES_OF_PAGES = [str(page.relative_to(ROOT)) for page in PAGES]

_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PLACE = re.compile(r"(\.?[\w-]+(?:/[\w.-]+)+/?|[\w-]+/)(?:::(\w+(?:\.\w+)*))?")


# -- code ----------------------------------------------------------------------------------


def run_blocks(page: str, file: str) -> Iterator[tuple[re.Match[str], str]]:
    """Runs the page's blocks, all in one namespace; each with what it printed."""
    namespace: dict[str, Any] = {
        "__name__": __name__
    }  # a module that there is: dataclasses look it up
    for block in _BLOCK.finditer(page):
        first_line = page.count("\n", 0, block.start(1))
        program = compile("\n" * first_line + block[1], file, "exec")  # errors name the page's line
        with redirect_stdout(io.StringIO()) as printed:
            exec(program, namespace)
        yield block, printed.getvalue()


@pytest.mark.parametrize("file", RUN, ids=lambda file: file.name)
def test_a_page_prints_what_it_shows(file: Path) -> None:
    page = file.read_text(encoding="utf-8")
    shown = 0
    for block, printed in run_blocks(page, str(file)):
        line = page.count("\n", 0, block.start()) + 1
        assert printed == (block[2] or ""), f"the block at line {line} prints something else"
        shown += bool(printed)
    assert shown > page.count("```python") // 2, "most blocks show something"
    assert page.count("```python") == len(_BLOCK.findall(page)), "a block was not understood"


def test_control_a_wrong_output_would_be_seen() -> None:
    page = "```python\nx = 2\n```\n\n```python\nprint(x)\n```\n\n```text\n3\n```\n"
    printed = [(block[2], printed) for block, printed in run_blocks(page, "page")]
    assert printed == [(None, ""), ("3\n", "2\n")]


def write_anew(file: Path) -> None:
    """Put what the blocks print today into the page."""
    page = file.read_text(encoding="utf-8")
    written, end = "", 0
    for block, printed in run_blocks(page, str(file)):
        written += page[end : block.start()] + f"```python\n{block[1]}```\n"
        written += f"\n```text\n{printed}```\n" if printed else ""
        end = block.end()
    file.write_text(written + page[end:], encoding="utf-8")


# -- commands --------------------------------------------------------------------------------------


_COMMAND = re.compile(r"^manyhands ((?:\\\n|.)+)", re.MULTILINE)  # a line that ends in \ goes on
_TABLED = re.compile(r"^\|.*`manyhands (eval --task \w[^`]+)`", re.MULTILINE)  # an exam in a table
# The base of all errors about a wrong use of a command; typer has a click of its own and does not export it.
_Misused: type[Any] = typer.BadParameter.__bases__[0]


def commands(text: str) -> list[list[str]]:
    """The `manyhands …` lines of a page's code blocks and tables, in words."""
    lines = _COMMAND.findall("\n".join(_FENCED.findall(text))) + _TABLED.findall(text)
    split = [shlex.split(line.replace("\\\n", " "), comments=True) for line in lines]
    return [words[: words.index(">")] if ">" in words else words for words in split]


@cache
def _program() -> Any:
    return typer.main.get_command(app)


def refusal(words: list[str]) -> str | None:
    """Why the command line does not take these words; None if it does. Nothing is run."""
    known = _program()
    name, *rest = words
    if name not in known.commands:
        return f"there is no command {name}"
    try:
        known.commands[name].make_context(name, rest)
    except typer.Exit:  # --help
        return None
    except _Misused as error:
        return str(error.format_message())
    return None


@pytest.mark.parametrize("page", NAMES_OF_PAGES)
def test_commands_are_understood(page: str) -> None:
    told = [(words, refusal(words)) for words in commands((ROOT / page).read_text("utf-8"))]
    assert [pair for pair in told if pair[1]] == []


def test_control_a_wrong_command_would_be_seen() -> None:
    text = "```\nmanyhands solve 'A # b' --methd x  # so\nmanyhands eat\n```\nmanyhands sleep\n"
    solve, eat, drink = commands(
        f"{text}| so | `manyhands eval --task drink --out x --methd y` |\n"
    )
    assert refusal(drink) is not None
    assert solve == ["solve", "A # b", "--methd", "x"]
    assert "--methd" in (refusal(solve) or "")
    assert refusal(eat) == "there is no command eat"
    assert refusal(["solve", "--method", "sequential", "1 + 1"]) is None


# -- what there is to touch ---------------------------------------------------------------------------


def listing(names: Iterable[str], files: Iterable[Path]) -> list[str]:
    """The files that name every one of these, each as a word of its own: another one has to be named there."""
    words = [re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") for name in names]
    found = ((file, file.read_text(encoding="utf-8")) for file in files)
    return [str(file) for file, text in found if all(word.search(text) for word in words)]


def where_to_touch(heading: str) -> str:
    """One section of `how_to_add.md`."""
    page = (ROOT / "docs" / "how_to_add.md").read_text(encoding="utf-8")
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("heading", "names"),
    [("A method", METHODS), ("A task", TASKS)],
)
def test_how_to_add_names_every_file_that_lists_what_there_is(
    heading: str, names: Mapping[str, Any]
) -> None:
    """A registry that stands in a second file is a second place to touch."""
    kinds = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.js"), *(ROOT / "tests").rglob("test_*.py")]
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.stem not in _OF_TODAY]
    section = where_to_touch(heading)
    assert section
    touched = {str(ROOT / "tests" / "strategies"): "tests/strategies/"}
    for file in listing(names, [*kinds, *pages]):
        path = Path(file)
        base = SOURCE if path.is_relative_to(SOURCE) else ROOT
        by_name = f"`{path.relative_to(base)}`" in section
        in_folder = touched.get(str(path.parent), "no folder") in section and path.name in section
        assert by_name or in_folder, f"{path.relative_to(ROOT)} lists all, and {heading!r} lacks it"


def test_control_a_file_that_lists_all_would_be_seen(tmp_path: Path) -> None:
    file, other = tmp_path / "one.py", tmp_path / "other.py"
    file.write_text('ALL = ["best", "best_of_n"]\n')
    other.write_text('SOME = ["best_of_n"]\n')
    assert listing(["best", "best_of_n"], [file, other]) == [str(file)]


# -- links, files and names ------------------------------------------------------------------------


def broken_links(text: str, folder: Path) -> list[str]:
    """Relative links that lead nowhere: to no file, or to no heading of a page."""
    links = [link for link in _LINK.findall(_FENCED.sub("", text)) if "://" not in link]
    return [link for link in links if not _leads_somewhere(link, text, folder)]


def _leads_somewhere(link: str, text: str, folder: Path) -> bool:
    name, _, anchor = link.partition("#")
    file = folder / name
    if not file.exists():
        return False
    if not anchor or (name and file.suffix != ".md"):
        return True
    return anchor in anchors(file.read_text(encoding="utf-8") if name else text)


def anchors(text: str) -> set[str]:
    """The names under which a page's headings can be linked to, as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        again = (f"{name}-{number}" for number in itertools.count(1))
        found.add(name if name not in found else next(n for n in again if n not in found))
    return found


def untrue_places(text: str) -> list[str]:
    """Paths in backticks, `cache/plan.py` or `cache/plan.py::Plan.last`, that are not there."""
    found = []
    for code in _CODE.findall(_FENCED.sub("", text)):
        place = _PLACE.fullmatch(code)
        if place is None or not _is_ours(place[1]):
            continue
        file = next(
            (base / place[1] for base in (ROOT, SOURCE) if (base / place[1]).exists()), None
        )
        if file is None or (place[2] and place[2] not in _names_in(file)):
            found.append(code)
    return found


def _is_ours(path: str) -> bool:
    first = path.partition("/")[0]
    return (ROOT / first).is_dir() or (SOURCE / first).is_dir()


def _names_in(file: Path) -> set[str]:
    """Functions, classes and variables of a module, and `Class.member`."""
    names: set[str] = set()

    def collect(body: list[ast.stmt], inside: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(inside + node.name)
                if isinstance(node, ast.ClassDef):
                    collect(node.body, inside + node.name + ".")
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names.update(inside + t.id for t in targets if isinstance(t, ast.Name))

    collect(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return names


@pytest.mark.parametrize("page", NAMES_OF_PAGES)
def test_relative_links_lead_somewhere(page: str) -> None:
    assert broken_links((ROOT / page).read_text(encoding="utf-8"), (ROOT / page).parent) == []


@pytest.mark.parametrize("page", NAMES_OF_PAGES)
def test_files_and_names_that_are_mentioned_exist(page: str) -> None:
    assert untrue_places((ROOT / page).read_text(encoding="utf-8")) == []


def test_pages_of_papers_name_every_task_and_deny_nothing() -> None:
    """A statement of a paper has its code; what is not built stands in one list, that of `house.md`."""
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "papers").glob("*.md")]
    told = "\n".join(pages)
    of_no_paper = {"gsm8k", "math500"}
    assert {name for name in TASKS if f"`{name}`" not in told} == of_no_paper
    denial = re.compile(r"\|\s*(?:not (?:there )?yet|missing|refused with its reason)\b")
    assert denial.findall(told) == []
    assert denial.search("| tensor parallelism | not yet |"), "control"


def test_control_untruths_are_found() -> None:
    text = (
        "[a](house.md) [b](gone.md#part) [c](https://example.org/x) `cache/plan.py::Plan.last` "
        "`cache/plan.py::Plan.first` `cache/plans.py` `tests/test_docs.py::PAGES` `runs/a.jsonl` "
        "`tests/cache/` `cache/` `x / y` `server/`"
    )
    assert broken_links(text, ROOT / "docs") == ["gone.md#part"]
    headings = "# A `b`, c: d\n[a](#a-b-c-d) [b](#a-b) [c](index.md#pages) [d](index.md#page)\n"
    assert broken_links(headings, ROOT / "docs") == ["#a-b", "index.md#page"]
    assert anchors("# A\n## A\n") == {"a", "a-1"}
    assert untrue_places(text) == ["cache/plan.py::Plan.first", "cache/plans.py"]


if __name__ == "__main__":
    for page_that_runs in RUN:
        write_anew(page_that_runs)
    sys.exit(0)


def test_no_result_names_a_path_of_a_machine() -> None:
    """Commands in results and accounts are those that anybody can repeat."""
    path = re.compile(r"(?<![\w.~}])/(?:root|home|tmp|work|mnt|Users)/")
    files = [
        *(ROOT / "benchmarks" / "results").glob("*.json"),
        *(ROOT / "recipes").rglob("*.json*"),
    ]
    assert len(files) > 50
    assert [file.name for file in files if path.search(file.read_text("utf-8"))] == []
    assert path.search('--out /root/out/exam.json"'), "control"
