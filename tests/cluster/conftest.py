"""A Ray cluster of several nodes in this machine, once for all tests of the room."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import cli, model

__all__ = ["cli", "model", "nodes", "second"]
ROOT = Path(__file__).parents[2]
_STORE = 80 << 20  # bytes of each node's object store, the least that Ray takes


@pytest.fixture(scope="session")
def installed_on_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which replicas find installed distributions; empty at first."""
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="session")
def nodes(installed_on_nodes: Path) -> Iterator[Any]:
    """The cluster: a head with one core. Tests add nodes and take them away."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_worker_niceness", "0")  # tests beside it are not to starve it
        paths = (ROOT, ROOT / "src", installed_on_nodes)
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from ray.cluster_utils import Cluster

            cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 1,
                    "include_dashboard": False,
                    "object_store_memory": _STORE,
                },
            )
        yield cluster
        cluster.shutdown()


@pytest.fixture(scope="session")
def second(nodes: Any) -> Any:
    """How a second machine joins."""
    return lambda: nodes.add_node(num_cpus=1, object_store_memory=_STORE)
