"""Records to a file and back, and what must not pass for a record."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyhands.errors import InvalidRequest, OutputFailed
from manyhands.evaluation.record import RecordFile, file_of, keep_trace, read_results, result_files
from tests.evaluation.small import header, record, team_record, write


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    records = [record("d1"), team_record("d2", facts={"kind": "ü"}, names={"2": "Carol"})]
    path = write(tmp_path, header(), records)
    results = read_results(path)
    assert [r.line() for r in results.records] == [r.line() for r in records]
    assert results.header.label == "sequential"
    assert results.records[1].value(8) == 1.0
    assert results.records[1].spent(8, "tokens") == 16
    assert result_files(tmp_path) == result_files(tmp_path / "doubles") == [path]


def test_numbers_of_other_libraries_are_read_as_pythons_own(tmp_path: Path) -> None:
    numbers = {
        "tokens": np.arange(3),
        "seconds": np.float32(0.5),
        "memory": {"kv_bytes": np.int64(3)},
    }
    path = write(tmp_path, header(), [record("d1", np.float64(1), gold=np.arange(2), **numbers)])
    (found,) = read_results(path).records
    assert (found.tokens, found.seconds, found.memory) == ((0, 1, 2), 0.5, {"kv_bytes": 3})
    assert (found.value(8), found.gold) == (1.0, [0, 1])


@pytest.mark.parametrize(
    "wrong",
    [{"answer": 42}, {"text": None}, {"tokens": 3}, {"seconds": float("nan")}, {"gold": b"3"}],
)
def test_a_record_that_could_not_be_read_is_not_written(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidRequest, match=f"record of sample 'd1' cannot be kept: {name} is"):
        record("d1", **wrong).line()


def test_a_failure_may_be_followed_by_another_try(tmp_path: Path) -> None:
    failed = record("d1", value=0.0, error="OutOfMemory: no room")
    path = write(tmp_path, header(), [failed, record("d1")])
    assert [r.error for r in read_results(path).records] == [None]


def test_any_other_second_record_is_a_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, header(), [record("d1"), record("d2"), record("d1")])
    with pytest.raises(InvalidRequest, match=r"line 4 of .* holds a second record of sample 'd1'"):
        read_results(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "note"}, "its kind is 'note'"),
        ({"scores": {}}, "the field '8' is missing"),
        ({"scores": {"8": {"value": 3}}}, "not within 0 and 1"),
        ({"scores": {"8": {"value": "much"}}}, "value is 'much'; expected a number"),
        ({"scores": {"8": {"value": float("nan")}}}, "scores holds nan"),
        ({"scores": {"8": {"value": 1, "passes": [3]}}}, r"passes is \[3\]"),
        ({"scores": {"8": {"value": 1, "passes": float("inf")}}}, "scores holds inf"),
        ({"scores": {"8": {"value": 1, "tokens": 10**400}}}, "scores holds a huge number"),
        ({"scores": {"8": {"explanation": "right"}}}, "without value it is incomplete"),
        ({"scores": {"8": 1}}, "scores is 1"),
        ({"sample": 3}, "sample is 3; expected a text"),
        ({"repeat": "0"}, "repeat is '0'; expected a whole number"),
        ({"tokens": None}, "tokens is None"),
        ({"tokens": [True]}, "tokens is True"),
        ({"seconds": None}, "seconds is None; expected a number"),
        ({"seconds": float("-inf")}, "seconds holds -inf"),
        ({"elapsed": "1"}, "elapsed is '1'"),
        ({"question": ...}, "without question it is incomplete"),
        ({"steps": [{"worker": 0}]}, "lacks step"),
        ({"steps": 3}, "steps is 3"),
        ({"writing": [[0, [1], "a"]]}, r"writing is \[1\]"),
        ({"writing": [[0, 1]]}, r"writing is \(0, 1\)"),
        ({"names": {"0": 1}}, "names is 1"),
        ({"memory": {"kv_bytes": "much"}}, "memory is 'much'"),
    ],
)
def test_malformed_records_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = write(tmp_path, header(), [record("d1")])
    line = record("d2").line() | change
    line = {name: value for name, value in line.items() if value is not ...}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(InvalidRequest, match=said) as found:
        read_results(path)
    assert "line 3" in str(found.value)


@pytest.mark.parametrize("budgets", [8, ["8"], [float("inf")]])
def test_a_header_of_wrong_types(tmp_path: Path, budgets: Any) -> None:
    path = write(tmp_path, header(), [record("d1")])
    first, _, rest = path.read_text().partition("\n")
    path.write_text(json.dumps(json.loads(first) | {"budgets": budgets}) + "\n" + rest)
    with pytest.raises(InvalidRequest, match=r"line 1 .* budgets"):
        read_results(path)


def test_a_header_that_lacks_a_field(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"schema": 1, "kind": "header", "task": "t"}\n')
    with pytest.raises(InvalidRequest, match="line 1"):
        read_results(path)


def test_names_of_files_stay_in_the_folder(tmp_path: Path) -> None:
    path = file_of(tmp_path, "gsm8k-list", "Qwen/Qwen3 8B hogwild-2 layout=combined")
    assert path == tmp_path / "gsm8k-list" / "Qwen-Qwen3-8B-hogwild-2-layout=combined.jsonl"
    assert file_of(tmp_path, "..", "../x").parent.parent == tmp_path


@pytest.mark.parametrize("text", ["Solve these.\n1. 84 + 29\n", "", "[1]\n", '{"kind": "note"}\n'])
def test_a_file_that_is_no_record_is_not_told_to_lose_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "problem.txt"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as found:
        read_results(path)
    assert "remove" not in found.value.hint


def test_a_line_that_can_be_lost_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, header(), [record("d1")])
    path.write_text(path.read_text() + "broken\n")
    with pytest.raises(InvalidRequest, match="line 3") as found:
        read_results(path)
    assert found.value.hint.startswith("remove that line")


def test_a_trace_is_kept_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training would take half a run, with the score of the whole."""

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    records, lines = tmp_path / "out" / "team.jsonl", [{"kind": "header"}, {"kind": "end"}]
    place = keep_trace(records, ("a", 0), lines, 0.5)
    before = place.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for sample in ("a", "b"):
            with pytest.raises(OutputFailed, match="No space left on device") as found:
                keep_trace(records, (sample, 0), lines, 1.0)
            assert found.value.hint == "make room, and the same command goes on"
    assert [each.name for each in place.parent.iterdir()] == [place.name]
    assert place.read_text() == before


def test_a_trace_has_a_name_for_any_id(tmp_path: Path) -> None:
    """Ids are those of somebody else's file: of any length, in any script, with halves of letters in them."""
    records, lines = tmp_path / "team.jsonl", [{"kind": "header"}, {"kind": "end"}]
    ids = ["ü" * 200, "ü" * 201, "x" * 5000, "\ud800", "..", "a/b", "x" * 200]
    places = [keep_trace(records, (each, 0), lines, 0.5) for each in ids]
    assert len({place.read_text() and place for place in places}) == len(ids)
    assert {place.parent for place in places} == {tmp_path / "traces" / "team"}
    assert places[-1].name == f"{'x' * 200}.0.jsonl"


def test_a_sample_that_was_asked_again_took_the_time_of_both(tmp_path: Path) -> None:
    """The seconds of all records add up to the exam's."""
    failed = record("d1", 0.0, error="X: y", elapsed=5.0)
    path = write(tmp_path, header(), [failed, record("d2"), record("d1", elapsed=2.0)])
    found = read_results(path).records
    assert {one.sample: one.elapsed for one in found} == {"d1": 7.0, "d2": 1.0}
    assert all(one.error is None for one in found)


@pytest.mark.parametrize("budgets", [[], [8, 4], [4, 4], [0, 8], [-1]])
def test_the_budgets_of_a_header_rise(tmp_path: Path, budgets: list[int]) -> None:
    """The last of them is taken for the largest: in another order the page would tell of a smaller one."""
    path = write(tmp_path, header(budgets=(4, 8)), [record("d1", budgets=(4, 8))])
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), "budgets": budgets}), *others, ""]))
    with pytest.raises(
        InvalidRequest, match=r"line 1 of .*: its budgets are .*; expected one or more"
    ):
        read_results(path)
    with pytest.raises(InvalidRequest, match="a header cannot be kept: its budgets are"):
        RecordFile(tmp_path / "new.jsonl", header(budgets=budgets))
    assert not (tmp_path / "new.jsonl").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"repeat": -1}, "repeat is -1; expected 0 or more"),
        ({"tokens": [8, -8]}, r"tokens is .*-8.*; expected 0 or more"),
        ({"elapsed": -0.5}, "elapsed is -0.5; expected 0 or more"),
        ({"forward_passes": -1}, "forward_passes is -1"),
        ({"scores": {"8": {"value": 1.0, "seconds": -2.0}}}, "seconds at budget 8 is -2.0"),
    ],
)
def test_nothing_costs_less_than_nothing(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    path = write(tmp_path, header(), [record("d1")])
    first, line = path.read_text().splitlines()
    path.write_text(f"{first}\n{json.dumps({**json.loads(line), **more})}\n")
    with pytest.raises(InvalidRequest, match=f"line 2 of .*{said}"):
        read_results(path)
