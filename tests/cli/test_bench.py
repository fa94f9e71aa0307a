"""`manyhands bench`: a table as it comes, or one JSON object; what cannot fit is said before it is tried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.cli.bench import _COUNTED, _life_line
from manyhands.evaluation.bench import _COPIED_BYTES
from manyhands.evaluation.life import everyday
from tests.cli.conftest import CONTEXT, Cli


@pytest.fixture(autouse=True)
def _little_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """To see how fast memory is; for a true number 64 MB are."""
    monkeypatch.setitem(_COPIED_BYTES, "cpu", 1 << 20)


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


def test_life_has_a_line_for_every_situation(cli: Cli, model: Path) -> None:
    result = cli("bench", "--model", model, "--life", "--passes", 2, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [line["name"] for line in found["life"]] == [
        each.name for each in everyday(2, small=True)
    ]
    for line in found["life"]:
        assert 0 < line["p50_ms"] <= line["p90_ms"] <= line["p99_ms"] <= line["worst_ms"]
        assert line["passes"] == line["eager"] == 2
        assert line["floor_ms"] > 0
        assert line["p50_ms"] <= line["gap_worst_ms"], "a run has its tokens pass by pass"
        assert line["tokens_per_second"] > 0


@pytest.mark.parametrize("words", [("--workers", "3"), ("--lengths", "16"), ("--desk", "4")])
def test_life_has_teams_of_its_own(cli: Cli, model: Path, words: tuple[str, ...]) -> None:
    result = cli("bench", "--model", model, "--life", *words)
    assert result.exit_code == 2
    assert f"leave out {words[0]}, or --life" in " ".join(result.output.split())


def test_what_a_gpu_lives_through_is_larger() -> None:
    small, large = (
        sum(n for s in everyday(9, small=each) for n, _ in s.crowd) for each in (True, False)
    )
    assert small < large
    assert {situation.num_passes for situation in everyday(9, small=False)} == {9}


def test_a_life_is_said_in_a_line() -> None:
    times = {"p50_ms": 1.0, "p90_ms": 2.0, "p99_ms": 3.0, "worst_ms": 40.0, "floor_ms": 0.5}
    counts = dict.fromkeys(_COUNTED, 0) | {"followed": 7, "compiled": 1}
    line = _life_line({"name": "a team", "tokens_per_second": 90.4, **times, **counts})
    assert line.split() == [
        "a",
        "team",
        "1.00",
        "2.00",
        "3.00",
        "40.00",
        "0.50",
        "90",
        "7",
        "followed,",
        "1",
        "compiled",
    ]
