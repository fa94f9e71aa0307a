"""`manyhands batch --ray` and `eval --ray` themselves, with a model, on a cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.test_batch import chat, said, write
from tests.installing import example_installed, ran

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def test_a_batch_says_what_it_says_alone(nodes: Any, cli: Cli, model: Path, tmp_path: Path) -> None:
    given = write(tmp_path / "in", *(chat(f"q{i}", f"{i}?", temperature=i % 2) for i in range(5)))
    for name, ray in (("alone", ()), ("spread", ("--ray", nodes.address))):
        done = cli("batch", "--model", model, "--memory-tokens", 4096, given, tmp_path / name, *ray)
        assert done.exit_code == 0, done.output
    assert said(tmp_path / "spread") == said(tmp_path / "alone")


# -- a method of an installed distribution ---------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed where the command runs."""
    return example_installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def emptied(installed_on_nodes: Path) -> Iterator[Path]:
    """The folder in which replicas find distributions; empty again behind the test."""
    yield installed_on_nodes
    for one in installed_on_nodes.iterdir():
        shutil.rmtree(one)


EXAM = ("eval", "--task", "arithmetic", "--limit", 2, "--count", 2, "--memory-tokens", 4096)
DEBATE = ("--method", "debate", "--rounds", 3, "--budgets", 24)


def test_a_machine_that_lacks_the_method_is_told(nodes: Any, site: Path, tmp_path: Path) -> None:
    """Five replicas died of a KeyError, one behind the other."""
    refused = ran(site, *EXAM, *DEBATE, "--out", tmp_path, "--ray", nodes.address)
    assert refused.returncode == 2, refused.stderr
    assert "error: a machine of the cluster has no method 'debate'" in refused.stderr
    assert "hint: install its distribution on all of them" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_an_exam_of_an_installed_method_says_what_it_says_alone(
    nodes: Any, site: Path, emptied: Path, tmp_path: Path
) -> None:
    shutil.copytree(site, emptied, dirs_exist_ok=True)
    ways = {"alone": (), "spread": ("--ray", nodes.address)}

    def take(name: str) -> subprocess.CompletedProcess[str]:
        return ran(site, *EXAM, *DEBATE, "--out", tmp_path / name, *ways[name])

    with ThreadPoolExecutor() as both:
        done = dict(zip(ways, both.map(take, ways), strict=True))
    found = []
    for name in ways:
        assert done[name].returncode == 0, done[name].stderr
        (file,) = (tmp_path / name).rglob("*.jsonl")
        header, *records = map(json.loads, file.read_text("utf-8").splitlines())
        assert header["versions"]["manyhands-debate"] == "1.0"
        kept = ("sample", "text", "forward_passes", "tokens", "error")
        found.append({one["sample"]: [one[each] for each in kept] for one in records})
    assert found[0] == found[1]
    assert len(found[0]) == 2
