"""`manyhands bench`: a table as it comes, or one JSON object; what cannot fit is said before it is tried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import CONTEXT, Cli

SHORT = ("--workers", "1,2", "--passes", 2, "--desk", 4)


def test_a_line_for_every_number(cli: Cli, model: Path) -> None:
    result = cli("bench", "--model", model, *SHORT, "--lengths", "48,16")
    assert result.exit_code == 0
    what, head, *lines = result.stdout.splitlines()
    assert "cpu" in what
    assert head.split()[:2] == ["history", "workers"]
    assert [line.split()[:2] for line in lines] == [
        ["16", "1"],
        ["16", "2"],
        ["48", "1"],
        ["48", "2"],
    ]


def test_json_is_one_object(cli: Cli, model: Path) -> None:
    result = cli("bench", "--model", model, *SHORT, "--lengths", "16", "--json")
    found = json.loads(result.stdout)
    assert [timing["workers"] for timing in found["timings"]] == [1, 2]
    assert all(timing["ms"] > 0 and timing["floor_ms"] > 0 for timing in found["timings"])
    assert found["device"] == "cpu"
    assert set(found["versions"]) >= {"manyhands", "torch"}


def test_lengths_of_its_own_are_those_that_fit(cli: Cli, bundled: Path) -> None:
    assert bundled.exists()
    result = cli("bench", "-n", "1", "--passes", 1, "--memory-tokens", 1500, "--json")
    assert [t["history"] for t in json.loads(result.stdout)["timings"]] == [256, 1024]


def test_a_configuration_is_enough_for_dummy_weights(cli: Cli, copy: Path) -> None:
    for file in copy.iterdir():
        if file.name != "config.json":
            file.unlink()
    result = cli("bench", "--model", copy, *SHORT, "--lengths", 16, "--load", "dummy")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--workers", "0"), 2, "workers has 0; expected 1 or more"),
        (("--lengths", "1k"), 2, "lengths is '1k'; expected numbers with commas"),
        (("--lengths", str(CONTEXT)), 5, f"fit the model's {CONTEXT} positions"),
        (("--desk", str(CONTEXT)), 5, f"does not fit the model's {CONTEXT} positions"),
        (("--workers", "300"), 5, f"does not fit the model's {CONTEXT} positions"),
        (("--workers", "1", "--memory-tokens", "10"), 6, "the memory, which holds 16 tokens"),
        (
            ("--lengths", "1024", "--memory-tokens", "1024"),
            6,
            "the memory, which holds 1024 tokens",
        ),
    ],
)
def test_what_cannot_be_is_said(
    cli: Cli, model: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    result = cli("bench", "--model", model, *words)
    assert result.exit_code == code
    assert said in " ".join(result.output.split())
    assert "hint:" in result.output or "; expected " in result.output
    assert ("--memory-tokens" in result.output) == (code == 6), (
        "more memory is no mend for the rest"
    )
