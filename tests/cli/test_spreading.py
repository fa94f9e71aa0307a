"""Commands on a cluster say what they say alone. The cluster is one replica in this process, behind a pickle.

What a real one does when its machines die: `tests/cluster/test_on_ray.py`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from manyhands.cache.usage import Usage
from manyhands.cluster.replica import Answers
from manyhands.evaluation.judge import votes_file
from manyhands.evaluation.record import read_results, result_files
from tests.cli.conftest import Cli, module_of
from tests.cli.test_batch import chat, read, write
from tests.evaluation.small import header, record
from tests.evaluation.small import write as write_records


class OneReplica:
    """Rows come in twos, and between them there is none."""

    def __init__(self, make: Callable[[], Answers[Any, Any]]) -> None:
        self.answers: Answers[Any, Any] = pickle.loads(pickle.dumps(make))()
        self.facts = pickle.loads(pickle.dumps(self.answers.facts))

    @property
    def usage(self) -> Usage:
        return self.answers.usage()

    def wait(self) -> None:
        """It is there."""

    def answered(self, rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        coming = [pickle.loads(pickle.dumps(row)) for row in rows]

        def source() -> Iterator[Any]:
            while coming:
                yield from coming[:2]
                del coming[:2]
                yield None

        left = len(coming)
        while left:
            for row, told in self.answers.answered(source()):
                left -= 1
                yield row, pickle.loads(pickle.dumps(told))

    def results(self, rows: Iterable[Any]) -> Iterator[list[Any]]:
        for pair in self.answered(rows):
            yield [pair]
            yield []


@pytest.fixture(autouse=True)
def one_replica(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand for every cluster. What was asked for."""
    asked: list[str] = []

    @contextmanager
    def spread(settings: Any, make: Any, concurrency: int, note: Any) -> Iterator[OneReplica]:
        asked.append(settings.ray)
        yield OneReplica(make)

    monkeypatch.setattr(module_of("batch"), "spread", spread)
    monkeypatch.setattr("manyhands.cli.candidates.spread", spread)
    return asked


def test_a_batch(cli: Cli, model: Path, tmp_path: Path, one_replica: list[str]) -> None:
    requests = [chat(f"q{i}", f"Question {i}?", n=1 + i % 2) for i in range(7)]
    wrong = {"custom_id": "w", "url": "/v1/chat/completions", "body": {"messages": 5}}
    far = chat("far", "a" * 50_000)
    given = write(tmp_path / "in", *requests, wrong, far)
    for name, ray in (("alone", ()), ("spread", ("--ray", "auto"))):
        result = cli(
            "batch", "--model", model, "--memory-tokens", 4096, given, tmp_path / name, *ray
        )
        assert result.exit_code == 1, result.output
        assert "7 of 9 requests answered, 2 failed" in result.stdout
        assert "tokens written in" in result.stdout
    assert one_replica == ["auto"]
    alone, spread = (
        {line["custom_id"]: line for line in read(tmp_path / n)} for n in ("alone", "spread")
    )
    assert len(read(tmp_path / "spread")) == len(spread) == 9
    for name, line in alone.items():
        for each in (line, spread[name]):
            if each["response"] is not None:
                del each["response"]["body"]["created"], each["response"]["body"]["usage"]
        assert spread[name] == line


def test_an_exam_and_its_judge(cli: Cli, model: Path, tmp_path: Path) -> None:
    task: tuple[Any, ...] = (
        "--task",
        "arithmetic",
        "--limit",
        3,
        "--count",
        2,
        "--memory-tokens",
        8192,
    )
    task = (*task, "--set", "end.finisher_tokens=3", "--budgets", "3,6", "-n", 2, "--model", model)
    found = {}
    for name, ray in (("alone", ()), ("spread", ("--ray", "auto"))):
        result = cli("eval", *task, "--out", tmp_path / name, *ray)
        assert result.exit_code == 0, result.output
        (path,) = result_files(tmp_path / name)
        found[name] = read_results(path)
    alone, spread = found["alone"], found["spread"]
    assert spread.header.fingerprint == alone.header.fingerprint
    assert spread.header.date
    assert {r.sample: (r.text, r.answer, r.tokens) for r in spread.records} == {
        r.sample: (r.text, r.answer, r.tokens) for r in alone.records
    }
    assert "3 were known" in cli("eval", *task, "--out", tmp_path / "spread", "--ray", "x").output

    votes = {}
    for name, ray in (("alone", ()), ("spread", ("--ray", "auto"))):
        path = write_records(
            tmp_path / f"judged-{name}", header(), [record(f"s{n}") for n in range(4)]
        )
        judged = ("judge", tmp_path / f"judged-{name}", "--rubric", "quality", "--model", model)
        assert "4 votes" in cli(*judged, "--tokens", 4, *ray).output
        lines = votes_file(path, "quality").read_text().splitlines()[1:]
        votes[name] = sorted((v["sample"], v["text"]) for v in map(json.loads, lines))
    assert votes["spread"] == votes["alone"]


def test_an_endpoint_needs_no_cluster(cli: Cli, tmp_path: Path) -> None:
    door = ("--endpoint", "http://127.0.0.1:9/v1", "--endpoint-model", "m", "--ray", "auto")
    result = cli("eval", "--task", "arithmetic", "--out", tmp_path, "--method", "sequential", *door)
    assert result.exit_code == 2
    assert "an endpoint has no use for --ray" in result.output
