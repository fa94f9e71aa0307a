"""Rows from files and from the hub; every mistake in them is said with its place."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from manyhands.errors import InvalidRequest
from manyhands.tasks import loading
from manyhands.tasks.loading import FIXTURES, Dataset, load_examples
from manyhands.tasks.task import TaskOptions

DATASET = Dataset(
    "owner/problems",
    {"question": (str,), "answer": (str, int)},
    "gsm8k.jsonl",
    config="main",
    split="test",
)
GOOD: list[dict[str, Any]] = [
    {"question": "1 + 1?", "answer": "2"},
    {"question": "2 + 2?", "answer": 4},
]
HINT = "in a clone of manyhands: pip install '.[exam]'"


def write(path: Path, *lines: str | dict[str, Any]) -> Path:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def parquet(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def refused(source: object, dataset: Dataset = DATASET) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as raised:
        load_examples(dataset, TaskOptions(source=source))  # type: ignore[arg-type]  # any wrong source
    return raised.value


# -- files -----------------------------------------------------------------------------------------


def test_jsonl_and_parquet_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{**row, "answer": str(row["answer"])} for row in GOOD]
    lines = load_examples(DATASET, TaskOptions(source=write(tmp_path / "a.jsonl", *rows)))
    table = load_examples(DATASET, TaskOptions(source=str(parquet(tmp_path / "a.parquet", rows))))
    assert [dict(row.values) for row in lines] == [dict(row.values) for row in table] == rows
    assert [row.id for row in lines] == [row.id for row in table] == ["1", "2"]
    assert [row.where for row in lines] == ["a.jsonl, line 1", "a.jsonl, line 2"]
    assert [row.where for row in table] == ["a.parquet, row 1", "a.parquet, row 2"]


def test_blank_lines_a_mark_and_windows_line_ends_are_welcome(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = "\r\n\r\n".join(json.dumps(row) for row in GOOD)
    path.write_bytes(b"\xef\xbb\xbf" + lines.encode() + b"\r\n")
    rows = load_examples(DATASET, TaskOptions(source=path))
    assert [row.where for row in rows] == ["a.jsonl, line 1", "a.jsonl, line 3"]


def test_ids_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {**GOOD[0], "id": "x-7"}, {**GOOD[1], "id": 8})
    assert [row.id for row in load_examples(DATASET, TaskOptions(source=path))] == ["x-7", "8"]


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("{", "bad.jsonl, line 3 is not JSON: Expecting property name", "one JSON object"),
        ('{"question": "1?", "answer"', "bad.jsonl, line 3 is not JSON", "one JSON object"),
        ("[" * 100_000, "bad.jsonl, line 3 is not JSON: maximum recursion", "one JSON object"),
        ("1" * 5_000, "bad.jsonl, line 3 is not JSON: Exceeds the limit", "one JSON object"),
        ("[1, 2]", "bad.jsonl, line 3 is list, not a record", '{"question"'),
        ("7", "bad.jsonl, line 3 is int, not a record", '{"question"'),
        (
            {"question": "1?"},
            "line 3 has no 'answer'; found: question",
            "columns are those of owner",
        ),
        ({"question": "1?", "answer": None}, "line 3 has no 'answer'", "question, answer"),
        ({}, "line 3 has no 'question'; found: nothing", "question, answer"),
        ({"question": 7, "answer": "1"}, "line 3: 'question' is int 7; expected text", ""),
        ({"question": "1?", "answer": 1.5}, "float 1.5; expected text or a whole number", ""),
        ({"question": "1?", "answer": True}, "bool True; expected text or a whole number", ""),
        ({"question": "1?", "answer": ["a" * 99]}, "list ['aaa", ""),
        ({"question": "  ", "answer": "1"}, "line 3: 'question' is empty", ""),
        ({**GOOD[0], "id": 2.5}, "line 3: 'id' is 2.5; expected a name", ""),
        ({**GOOD[0], "id": "2"}, "the id '2' was seen already, at bad.jsonl, line 2", "of its own"),
    ],
)
def test_a_bad_record_is_named(
    tmp_path: Path, line: str | dict[str, Any], said: str, hint: str
) -> None:
    error = refused(write(tmp_path / "bad.jsonl", *GOOD, line))
    assert said in str(error)
    assert hint in error.hint


def test_a_bad_byte_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(json.dumps(GOOD[0]).encode() + b'\n{"question": "\xff"}\n')
    assert str(refused(path)) == "bad.jsonl, line 2 is not UTF-8 (byte 14)"


def test_a_bad_row_of_parquet_is_named(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"question": "1?", "answer": "1"},
        {"question": "2?", "answer": None},
    ]
    error = refused(parquet(tmp_path / "bad.parquet", rows))
    assert "bad.parquet, row 2 has no 'answer'" in str(error)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and then nothing")
    assert "cannot be read as Parquet" in str(refused(tmp_path / "torn.parquet"))
    empty = pyarrow.Table.from_pylist([], schema=pyarrow.schema([("question", pyarrow.string())]))
    pyarrow.parquet.write_table(empty, tmp_path / "empty.parquet")
    assert "holds no records" in str(refused(tmp_path / "empty.parquet"))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("gone.jsonl", "there is no file gone.jsonl"),
        ("gone.parquet", "there is no file gone.parquet"),
        ("nothing", "there is no source 'nothing'"),
        ("a/b/c", "there is no source 'a/b/c'"),
        ("a/b:c:d:e", "there is no source 'a/b:c:d:e'"),
        ("/", "is not a file of questions"),
    ],
)
def test_a_source_that_is_none(source: str, said: str) -> None:
    error = refused(source)
    assert said in str(error)
    assert error.hint


def test_an_empty_file(tmp_path: Path) -> None:
    assert "holds no records" in str(refused(write(tmp_path / "a.jsonl", "")))
    assert "not a file of questions" in str(refused(write(tmp_path / "a.csv", "x")))


def test_the_fixture_stands_in_for_the_dataset() -> None:
    rows = load_examples(DATASET, TaskOptions(source="fixture"))
    lines = (FIXTURES / "gsm8k.jsonl").read_text("utf-8").splitlines()
    assert [dict(row.values) for row in rows] == [json.loads(line) for line in lines]


# -- the hub ---------------------------------------------------------------------------------------


class DatasetsError(Exception):
    """As `datasets` has one."""


def hub(
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[..., Any],
    reach: Callable[..., Any] = lambda name, timeout: None,
) -> None:
    """Puts stand-ins in the place of `datasets` and of the question whether the hub is there."""
    datasets = ModuleType("datasets")
    datasets.load_dataset = load  # type: ignore[attr-defined]  # a module made by hand
    datasets.exceptions = SimpleNamespace(DatasetsError=DatasetsError)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    api = SimpleNamespace(dataset_info=reach)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        (None, ("owner/problems", "main", "test")),
        ("owner/problems", ("owner/problems", "main", "test")),
        ("other/aime", ("other/aime", None, "test")),
        ("other/aime:II", ("other/aime", "II", "test")),
        ("other/aime:II:train", ("other/aime", "II", "train")),
        ("other/aime::train", ("other/aime", None, "train")),
    ],
)
def test_the_hub_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, source: str | None, asked: tuple[str, str | None, str]
) -> None:
    calls = []

    def load(name: str, config: str | None, split: str) -> list[dict[str, Any]]:
        calls.append((name, config, split))
        return GOOD

    hub(monkeypatch, load)
    rows = load_examples(DATASET, TaskOptions(source=source))
    assert calls == [asked]
    assert [dict(row.values) for row in rows] == GOOD
    assert rows[1].where == f"{asked[0]}, row 2"


def test_files_of_a_dataset_are_read_without_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load(kind: str, config: str | None = None, **options: Any) -> list[dict[str, Any]]:
        calls.append((kind, config, options))
        return GOOD

    hub(monkeypatch, load)
    dataset = replace(DATASET, files=("a.jsonl", "data.zip:data/b.jsonl"))
    assert len(load_examples(dataset, TaskOptions())) == 2
    addresses = [
        "hf://datasets/owner/problems/a.jsonl",
        "zip://data/b.jsonl::hf://datasets/owner/problems/data.zip",
    ]
    assert calls.pop() == ("json", None, {"data_files": {"test": addresses}, "split": "test"})
    load_examples(dataset, TaskOptions(source="other/problems"))
    assert calls.pop()[0] == "other/problems", "another dataset says for itself how it is read"


def test_a_row_of_the_hub_that_lacks_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, lambda *_, split: [{"problem": "1?", "answer": "1"}])
    error = refused("other/aime")
    assert str(error) == "other/aime, row 1 has no 'question'; found: problem, answer"


def fails(error: Exception) -> Callable[..., Any]:
    def load(*arguments: object, **options: object) -> Any:
        raise error

    return load


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionError("no"), "cannot be reached: no copy of it is kept on this machine"),
        (ValueError("Unknown split 'test'.\nmore"), "cannot be loaded: Unknown split 'test'."),
        (DatasetsError("scripts are no longer run"), "cannot be loaded: scripts are no longer run"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_what_datasets_may_say(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    hub(monkeypatch, fails(error))
    told = refused(None)
    assert said in str(told)
    assert "--source" in told.hint


def test_the_hub_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    no_name = HTTPError("[Errno -2] Name or service not known")
    for error in (no_name, TimeoutError(), ValueError("Unknown scheme for proxy URL")):
        hub(monkeypatch, fails(AssertionError("not asked")), fails(error))
        told = refused(None)
        assert "the dataset owner/problems cannot be reached" in str(told)
        assert "--source FILE" in told.hint
        assert "a network" in told.hint


def test_a_proxy_that_needs_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, fails(AssertionError("not asked")), fails(ImportError("no socksio")))
    told = refused(None)
    assert str(told) == "the dataset owner/problems cannot be asked for: no socksio"
    assert "pip install socksio" in told.hint


def test_offline_a_kept_copy_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import OfflineModeIsEnabled

    hub(monkeypatch, lambda *_, split: GOOD, fails(OfflineModeIsEnabled("offline")))
    assert len(load_examples(DATASET, TaskOptions())) == 2


def test_really_offline_it_takes_no_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    began = time.monotonic()
    assert "cannot be reached" in str(refused(None))
    assert time.monotonic() - began < 10


def test_not_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import RepositoryNotFoundError

    class NotFound(RepositoryNotFoundError):
        def __init__(self) -> None:  # the real one wants a response
            Exception.__init__(self, "404")

    hub(monkeypatch, fails(AssertionError("not asked")), fails(NotFound()))
    assert "the hub has no dataset owner/problems" in str(refused(None))


def test_a_name_that_no_dataset_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is no dataset's name" in str(refused("a b/c?"))


@pytest.mark.parametrize(
    ("package", "source"), [("datasets", None), ("pyarrow", "questions.parquet")]
)
def test_a_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, source: str | None
) -> None:
    path = None if source is None else parquet(tmp_path / source, [{"question": "1?"}])

    def not_there(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(loading, "import_module", not_there)
    error = refused(path)
    assert str(error) == f"this task needs the package {package}, which is not installed"
    assert error.hint == HINT
