"""A checkpoint whose layers keep states, at the front door: what will be refused of it is refused before a weight is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.cache.states import FORKING
from manyhands.model import hybrids
from manyhands.model.families import HYBRIDS
from tests.cli.conftest import Cli


@pytest.fixture
def unread(tmp_path: Path) -> Path:
    """A folder whose configuration says what it is; to read its weights is an error of its own (exit code 3)."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_moe"}))
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("solve", "2+3"), "the method hogwild"),
        (("solve", "--method", "branches", "--join", "keep", "2+3"), "the method branches"),
        (("chat",), "the method hogwild"),
        (("solve", "--method", "sequential", "--speculate", 2, "2+3"), "speculate was asked for"),
        (("chat", "--method", "sequential", "--cache", "c"), "cache was asked for"),
        (("serve", "--kv-cache-dtype", "int8"), "kv_cache_dtype int8 was asked for"),
    ],
)
def test_what_is_refused_is_refused_early(
    cli: Cli, unread: Path, asked: tuple[object, ...], said: str
) -> None:
    command, *others = asked
    result = cli(command, "--model", unread, *others)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


def test_a_method_that_forks_comes_to_the_weights(cli: Cli, unread: Path) -> None:
    """The control: what such a network bears is not refused for its kind."""
    assert FORKING[0] == "sequential"
    result = cli("solve", "--model", unread, "--method", "sequential", "2+3")
    assert result.exit_code == 3, result.output


def test_states_of_a_network_that_keeps_none(cli: Cli, copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"no weights")
    result = cli("solve", "--model", copy, "--states", 8, "2+3")
    assert result.exit_code == 2
    assert "none of those whose layers keep a state" in " ".join(result.output.split())


def test_types_are_those_of_the_table() -> None:
    assert (
        set(hybrids.MODEL_TYPES)
        == set(HYBRIDS)
        == set(hybrids.COMPOSITES.values()) | {"qwen3_next"}
    )
