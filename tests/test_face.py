"""The face of the package: its names, where they come from, and that looking at it costs nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import manyhands

NAMES = {
    "Answer": "manyhands.strategies.base",
    "AsyncReasoningSettings": "manyhands.strategies.settings",
    "AsyncThinkSettings": "manyhands.strategies.settings",
    "BestSettings": "manyhands.strategies.settings",
    "Block": "manyhands.cache.block",
    "BranchSettings": "manyhands.strategies.settings",
    "Choice": "manyhands.cache.step",
    "Conversation": "manyhands.schema.conversation",
    "EndSettings": "manyhands.strategies.settings",
    "Engine": "manyhands.engine.engine",
    "METHODS": "manyhands.strategies.methods",
    "ManyhandsError": "manyhands.errors",
    "Message": "manyhands.schema.conversation",
    "Method": "manyhands.strategies.methods",
    "ProfileSettings": "manyhands.strategies.settings",
    "Prompts": "manyhands.prompts.load",
    "Reserve": "manyhands.strategies.base",
    "Row": "manyhands.cache.step",
    "Settings": "manyhands.strategies.settings",
    "SharedSettings": "manyhands.strategies.settings",
    "SkeletonSettings": "manyhands.strategies.settings",
    "SoloSettings": "manyhands.strategies.settings",
    "Step": "manyhands.cache.step",
    "Strategy": "manyhands.strategies.base",
    "TeamPrompt": "manyhands.prompts.hogwild",
    "TeamSettings": "manyhands.strategies.settings",
    "Text": "manyhands.text",
    "View": "manyhands.cache.view",
    "VoteSettings": "manyhands.strategies.settings",
    "async_reasoning": "manyhands.strategies.async_reasoning",
    "async_think": "manyhands.strategies.async_think",
    "best_of_n": "manyhands.strategies.best_of_n",
    "branches": "manyhands.strategies.branches",
    "hogwild": "manyhands.strategies.hogwild",
    "load_prompts": "manyhands.prompts.load",
    "model_prompt": "manyhands.prompts.load",
    "model_prompts": "manyhands.prompts.load",
    "profiled": "manyhands.strategies.profiled",
    "self_consistency": "manyhands.strategies.self_consistency",
    "sequential": "manyhands.strategies.sequential",
    "setting": "manyhands.schema.setting",
    "share_prompt": "manyhands.strategies.prompt_sharing",
    "shared_prefix": "manyhands.strategies.shared_prefix",
    "skeleton": "manyhands.strategies.skeleton",
}


def in_a_fresh_python(program: str) -> str:
    """The output of a program in an interpreter that has imported nothing yet."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_names_are_the_documented_ones() -> None:
    assert sorted(manyhands.__all__) == sorted(NAMES)
    assert set(NAMES) <= set(dir(manyhands))


@pytest.mark.parametrize("name", NAMES)
def test_each_name_comes_from_its_room(name: str) -> None:
    assert getattr(manyhands, name) is getattr(import_module(NAMES[name]), name)


def test_every_method_is_on_the_face_with_its_settings() -> None:
    for name, method in manyhands.METHODS.items():
        assert getattr(manyhands, name) is method.make
        assert getattr(manyhands, method.settings.__name__) is method.settings


def test_type_checkers_see_what_is_fetched_when_asked() -> None:
    tree = ast.parse(Path(manyhands.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert {name: seen.get(name) for name in NAMES} == NAMES


def test_the_letter_uses_only_names_of_the_face() -> None:
    letter = manyhands.__doc__ or ""
    imported = re.findall(r"from manyhands import (.+)", letter)
    assert imported
    assert {name.strip() for line in imported for name in line.split(",")} <= set(NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Enigne'"):
        _ = manyhands.Enigne
    with pytest.raises(ImportError):
        exec("from manyhands import Enigne")


def test_the_version_is_the_installed_one() -> None:
    assert manyhands.__version__ == metadata.version("manyhands-llm")


def test_importing_the_package_imports_nothing_else() -> None:
    heavy = in_a_fresh_python(
        "import sys; before = set(sys.modules); import manyhands, typing; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    others = set(heavy.split()) - {"manyhands"} - sys.stdlib_module_names
    assert others == set()


def test_blocks_views_and_strategies_come_without_torch() -> None:
    names = sorted(set(NAMES) - {"Engine"})
    loaded = in_a_fresh_python(
        f"import sys; from manyhands import {', '.join(names)}; "
        "print(*({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert loaded == ""


def test_importing_the_package_reads_no_environment_and_opens_no_connection() -> None:
    in_a_fresh_python(
        "import os, socket, sys, typing, importlib\n"
        "watching = True\n"
        "def refuse(event, args):\n"
        "    if watching and event.startswith(('socket.', 'subprocess.', 'os.putenv')):\n"
        "        raise SystemExit(f'{event} {args}')\n"
        "class Watched(dict):\n"
        "    def __getitem__(self, key):\n"
        "        raise SystemExit(f'read {key}')\n"
        "sys.addaudithook(refuse)\n"
        "os.environ._data = Watched()\n"
        "import manyhands\n"
        "watching = False\n"
    )
