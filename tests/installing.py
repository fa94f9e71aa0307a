"""Distributions that offer methods, laid out as pip leaves them: modules, and a folder of metadata beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.warm import COMMAND, run

ROOT = Path(__file__).parents[1]
EXAMPLE_METHOD = ROOT / "examples" / "your_own_method"
METHOD = """
from dataclasses import dataclass, replace
from manyhands import setting
from manyhands.strategies.methods import METHODS
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import SoloSettings


@dataclass(frozen=True, kw_only=True)
class OwnSettings(SoloSettings):
    {fields}


OWN = replace(METHODS["sequential"], name="{name}", about="one of our own", settings=OwnSettings)
"""


def a_method(name: str, fields: str = "pass") -> str:
    """The source of a module whose OWN is a method like `sequential`."""
    return METHOD.format(name=name, fields=fields)


def laid_out(
    site: Path,
    distribution: str,
    entry_points: Mapping[str, str],
    module: str,
    source: str,
    requires: str = "manyhands-llm>=0.1",
) -> None:
    """Install a distribution of one module, version 1.0, into the folder `site`."""
    metadata = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    told = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nRequires-Dist: {requires}\n"
    (metadata / "METADATA").write_text(told, encoding="utf-8")
    lines = [f"{name} = {value}\n" for name, value in entry_points.items()]
    offered = "".join(["[manyhands.methods]\n", *lines])
    (metadata / "entry_points.txt").write_text(offered, encoding="utf-8")
    (site / f"{module}.py").write_text(source, encoding="utf-8")


def example_installed(folder: Path) -> Path:
    """The example, built and installed by pip into `folder`, without a network; where its modules lie."""
    source = shutil.copytree(EXAMPLE_METHOD, folder / "source")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", "--quiet", *offline]
    done = subprocess.run(
        [*command, "--target", folder / "site", source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


def environment(site: Path) -> dict[str, str]:
    """That of a process which finds what is installed in `site`, and is offline."""
    known = os.environ.get("PYTHONPATH", "")
    paths = os.pathsep.join(filter(None, (str(site), str(ROOT / "src"), known)))
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


def ran(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`manyhands` with these arguments, where `site` is installed: in a copy of a process that has imported torch, and nothing of ours."""
    with open(os.devnull) as nothing:
        return run(
            [*COMMAND, *map(str, arguments)],
            env=environment(site),
            timeout=120,
            stdin=nothing.fileno(),
        )
