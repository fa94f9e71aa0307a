"""The floors of the house: a room imports only what stands lower (docs/house.md has the picture).

Every import statement of every file is read with `ast`, those inside functions and those for type
checkers included, and `import_module("...")` with a written name. Red is: an import from the same or a
higher floor, the left wing (tensors) importing from the right one (words), the engine knowing more of
strategies than their contract, a circle of files, torch in a room that must do without, and anybody
importing the face.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

PACKAGE = "manyhands"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE
FLOORS = {
    "errors": 0,
    "hub": 0,
    "native": 0,
    "sandbox": 0,
    "schema": 0,
    "text": 1,
    "prompts": 1,
    "tasks": 1,
    "bundled": 1,
    "cache": 2,
    "attention": 3,
    "strategies": 3,
    "model": 4,
    "replay": 5,
    "school": 6,
    "engine": 6,
    "evaluation": 7,
    "server": 7,
    "cluster": 8,
    "cli": 9,
    "__main__": 9,
}
WITHOUT_TORCH = {
    "errors",
    "hub",
    "native",
    "sandbox",
    "schema",
    "text",
    "prompts",
    "tasks",
    "cache",
    "strategies",
}
TORCH = {"torch", "transformers"}  # the second imports the first
# Doors that floors alone would leave open.
CLOSED = {
    "attention": {"strategies", "prompts", "tasks", "text"},
    "model": {"strategies", "prompts", "tasks", "text"},
    "strategies": {"tasks"},
}
# The parts of strategies that the engine knows: their contract, their events, words said to them.
_CONTRACT = {f"{PACKAGE}.strategies.{file}" for file in ("base", "events", "listening")}
# A server has runs made, and makes no pass itself.
_SERVICE = {f"{PACKAGE}.engine.service"}
ONLY_DOOR = {("engine", "strategies"): _CONTRACT, ("server", "engine"): _SERVICE}
# `python -m manyhands` is the command; on the ground, all the others raise errors, and limits of a sandbox are settings.
SAME_FLOOR = {
    ("__main__", "cli"),
    ("hub", "errors"),
    ("native", "errors"),
    ("sandbox", "errors"),
    ("sandbox", "schema"),
    ("schema", "errors"),
}


def violations(source: Path) -> list[str]:
    """Everything that is wrong with the imports of the package in this folder."""
    files = {_module_name(path, source): path for path in sorted(source.rglob("*.py"))}
    graph = {name: set(_imports(name, path, files)) for name, path in files.items()}
    found = [
        f"{name} imports {target}: {reason}"
        for name, targets in graph.items()
        for target in sorted(targets)
        if (reason := _reason_against(name, target))
    ]
    inside = {name: {t for t in targets if t in files} for name, targets in graph.items()}
    return found + [f"a circle of files: {' -> '.join(circle)}" for circle in _circles(inside)]


def _module_name(path: Path, source: Path) -> str:
    parts = (PACKAGE, *path.relative_to(source).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(name: str, path: Path, files: dict[str, Path]) -> Iterator[str]:
    """The imports of a file: modules of the package by their file, others by their name."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (origin, node.module) if part)
            for alias in node.names:
                deeper = f"{origin}.{alias.name}"
                is_room = origin == PACKAGE and alias.name in FLOORS
                yield deeper if deeper in files or is_room else origin
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            written = node.args[0]
            if called in ("import_module", "__import__") and isinstance(written, ast.Constant):
                yield str(written.value)


def _room(module: str) -> str:
    """The room of a module of the package; the empty string is the face."""
    return module.split(".")[1] if "." in module else ""


def _reason_against(importer: str, target: str) -> str | None:
    here, top = _room(importer), target.partition(".")[0]
    if here and here not in FLOORS:
        return f"the room {here!r} is on no floor"
    if top in TORCH and here in WITHOUT_TORCH:
        return f"{here} does without torch"
    if top != PACKAGE or not here:  # the face may show any room
        return None
    there = _room(target)
    if not there:
        return "nobody imports the face"
    if there not in FLOORS:
        return f"the room {there!r} is on no floor"
    if here == there or (here, there) in SAME_FLOOR:
        return None
    if FLOORS[there] >= FLOORS[here]:
        return f"{there} is on floor {FLOORS[there]}, {here} on floor {FLOORS[here]}"
    if there in CLOSED.get(here, ()):
        return f"{here} must not know {there}"
    doors = ONLY_DOOR.get((here, there), {target})
    if target not in doors:
        return f"{here} knows {there} only by {', '.join(sorted(doors))}"
    return None


def _circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """One circle through every file that lies on one, each circle once."""
    reported: set[str] = set()
    for start in sorted(graph):
        if start in reported:
            continue
        came_from = dict.fromkeys(graph[start], start)
        queue = sorted(came_from)
        while queue and start not in came_from:
            here = queue.pop(0)
            for target in sorted(graph[here] - set(came_from)):
                came_from[target] = here
                queue.append(target)
        if start in came_from:
            circle = [start]
            while len(circle) == 1 or circle[-1] != start:
                circle.append(came_from[circle[-1]])
            reported |= set(circle)
            yield circle[::-1]


def test_the_house_stands() -> None:
    assert violations(SOURCE) == []


def test_every_room_of_the_house_is_looked_at() -> None:
    rooms = {_room(_module_name(path, SOURCE)) for path in SOURCE.rglob("*.py")} - {""}
    assert rooms <= set(FLOORS)
    assert rooms >= {"errors", "text", "cache", "attention", "strategies", "model", "engine"}


# -- one holder of the network and of the memory ---------------------------------------------------

# Rooms and files that may name an `.adapter`; of an engine or an executor nobody else takes its insides.
BEHIND_THE_EXECUTOR = {
    "attention",
    "model",
    "replay/forward.py",
    "replay/train.py",
    "engine/local_executor.py",
    "engine/passes.py",
    "engine/graph.py",
    "engine/recordings.py",
    "engine/ranks/executor.py",
    "engine/ranks/follower.py",
    "engine/ranks/part.py",
}
INSIDES = {"adapter", "memory", "passes", "backend"}


def reached_for(text: str) -> list[str]:
    """Every place where this source reaches through an executor, as `name.attribute`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if node.attr == "adapter" or (
                node.attr in INSIDES and owner in ("engine", "executor", "_engine", "_executor")
            ):
                found.append(f"{owner}.{node.attr}")
    return found


def test_only_the_executor_holds_network_and_memory() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not {name, name.partition("/")[0]} & BEHIND_THE_EXECUTOR:
            assert reached_for(path.read_text(encoding="utf-8")) == [], name


def test_control_reaching_through_the_executor_is_seen() -> None:
    for text, said in (
        ("engine.executor.adapter.device", "executor.adapter"),
        ("def f(self):\n    return self.engine.memory.keys", "engine.memory"),
        ("x = getattr(self, 'y').adapter", ".adapter"),
        ("executor.passes.run(plan)", "executor.passes"),
    ):
        assert reached_for(text) == [said]
    assert reached_for("record.memory, engine.facts.backend, engine.executor.facts") == []


# -- controls: small houses, and what must be said of them -----------------------------------------

SOUND = {
    "__init__": "from manyhands.engine.engine import Engine",
    "errors": "import sys",
    "schema/__init__": "",
    "schema/lines": "import filelock\nfrom manyhands.errors import ManyhandsError",
    "text/__init__": "from manyhands.text.tokens import Text",
    "text/tokens": "from manyhands.errors import ManyhandsError",
    "cache/__init__": "",
    "cache/plan": "import numpy\nfrom manyhands.errors import ManyhandsError",
    "attention/__init__": "",
    "attention/op": "import torch\nfrom manyhands.cache.plan import Plan",
    "strategies/__init__": "",
    "strategies/base": "from ..cache import plan\nfrom manyhands.text import Text",
    "strategies/other": "from .base import Strategy",
    "model/__init__": "",
    "model/net": "import transformers\nfrom manyhands.attention.op import attend",
    "replay/__init__": "from manyhands.strategies.other import f\nfrom manyhands.model import net",
    "engine/__init__": "",
    "engine/engine": "from manyhands.strategies.base import Strategy\nimport manyhands.model.net",
    "cli/__init__": "def main():\n    from manyhands.engine.engine import Engine",
    "__main__": "from manyhands.cli import main",
}


def build(folder: Path, house: dict[str, str]) -> Path:
    for name, text in house.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return folder


def test_control_a_sound_house(tmp_path: Path) -> None:
    assert violations(build(tmp_path, SOUND)) == []


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("errors", "import manyhands.text.tokens", "text is on floor 1, errors on floor 0"),
        ("errors", "from manyhands.schema import lines", "schema is on floor 0, errors on floor 0"),
        (
            "schema/lines",
            "from manyhands.text import Text",
            "text is on floor 1, schema on floor 0",
        ),
        ("schema/lines", "from torch import Tensor", "schema does without torch"),
        ("text/tokens", "from manyhands.prompts import words", "prompts is on floor 1"),
        ("cache/plan", "from manyhands.attention.op import attend", "attention is on floor 3"),
        ("attention/op", "from manyhands.strategies import base", "strategies is on floor 3"),
        ("attention/op", "from manyhands.text import Text", "attention must not know text"),
        ("model/net", "import manyhands.strategies.base", "model must not know strategies"),
        ("model/net", "from manyhands.tasks import grade", "model must not know tasks"),
        ("strategies/base", "from manyhands.tasks import grade", "strategies must not know tasks"),
        ("strategies/base", "from manyhands.attention import op", "attention is on floor 3"),
        ("replay/__init__", "from manyhands.engine.engine import Engine", "engine is on floor 6"),
        (
            "replay/__init__",
            "from manyhands.school import recipe",
            "school is on floor 6, replay on",
        ),
        (
            "school/recipe",
            "from manyhands.engine.engine import Engine",
            "engine is on floor 6, sch",
        ),
        ("engine/engine", "from manyhands import server", "server is on floor 7"),
        ("engine/engine", "from manyhands.strategies.other import f", "only by manyhands.strateg"),
        ("engine/engine", "from manyhands.strategies import other", "only by manyhands.strategies"),
        ("server/app", "from manyhands.engine.engine import Engine", "server knows engine only by"),
        ("cli/__init__", "from manyhands import Engine", "nobody imports the face"),
        ("cli/__init__", "import manyhands", "nobody imports the face"),
        ("cli/__init__", "from .. import Engine", "nobody imports the face"),
        ("text/tokens", "import torch.nn.functional as F", "text does without torch"),
        ("strategies/base", "from transformers import AutoTokenizer", "strategies does without"),
        ("errors", "from torch import Tensor", "errors does without torch"),
        ("attic/old", "from manyhands.errors import ManyhandsError", "'attic' is on no floor"),
        ("cli/__init__", "from manyhands.attic import old", "'attic' is on no floor"),
        # where imports like to hide
        ("cache/plan", "def f():\n    from manyhands.model import net", "model is on floor 4"),
        ("cache/plan", "if TYPE_CHECKING:\n    import torch", "cache does without torch"),
        (
            "cache/plan",
            "try:\n    import torch\nexcept ImportError:\n    pass",
            "cache does without",
        ),
        ("cache/plan", "from ..model import net", "model is on floor 4"),
        ("text/__init__", "from ..model.net import load", "model is on floor 4"),
        ("text/__init__", "from .tokens import Text\nfrom .. import cache", "cache is on floor 2"),
        ("cache/plan", "import_module('manyhands.model.net')", "model is on floor 4"),
        ("cache/plan", "x = importlib.import_module('torch')", "cache does without torch"),
    ],
)
def test_control_a_house_with_one_fault(tmp_path: Path, file: str, text: str, said: str) -> None:
    found = violations(build(tmp_path, SOUND | {file: text}))
    found = [line for line in found if "circle" not in line]  # an import upwards may close one, too
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("house", "circle"),
    [
        (
            {"text/a": "from manyhands.text.b import x", "text/b": "import manyhands.text.a"},
            "manyhands.text.a -> manyhands.text.b -> manyhands.text.a",
        ),
        (
            {
                "cache/a": "from .b import x",
                "cache/b": "def f():\n    from .c import x",
                "cache/c": "if TYPE_CHECKING:\n    from .a import x",
            },
            "manyhands.cache.a -> manyhands.cache.b -> manyhands.cache.c -> manyhands.cache.a",
        ),
        (
            {"text/__init__": "from .a import x", "text/a": "from manyhands.text import y"},
            "manyhands.text -> manyhands.text.a -> manyhands.text",
        ),
        ({"text/a": "import manyhands.text.a"}, "manyhands.text.a -> manyhands.text.a"),
    ],
)
def test_control_a_circle(tmp_path: Path, house: dict[str, str], circle: str) -> None:
    assert violations(build(tmp_path, SOUND | house)) == [f"a circle of files: {circle}"]


def test_control_two_circles_are_both_reported(tmp_path: Path) -> None:
    pairs = {
        f"{room}/{a}": f"from .{b} import x" for room in ("text", "cache") for a, b in ("pq", "qp")
    }
    assert len(violations(build(tmp_path, SOUND | pairs))) == 2
