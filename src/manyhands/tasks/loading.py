"""Where the questions of others come from: a dataset of the hub, a file in its columns, our fixture.

    Dataset("openai/gsm8k", {"question": (str,), "answer": (str,)}, "gsm8k.jsonl", config="main", split="test")

`load_examples` gives checked examples, each with the place it stands at ("problems.jsonl, line 7"), which is
what an error names. Nothing is loaded before it is asked for: `datasets` and `pyarrow` belong to the
extra "exam", and the hub is only asked where no file was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from manyhands.errors import InvalidRequest, install_hint
from manyhands.hub import PROXY_HINT, in_short
from manyhands.tasks.task import FIXTURE, TaskOptions

INSTALL_EXAM = install_hint("exam")
FIXTURES = Path(__file__).with_name("fixtures")
REACH_SECONDS = 5.0  # how long the hub may take to say that it is there
_SUFFIXES = (".jsonl", ".parquet")
_TYPE_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    bool: "true or false",
}


@dataclass(frozen=True)
class Dataset:
    """A dataset of the hub: its id, the columns that we need with their types, and our fixture of it.

    `optional` columns are read where they are there, and checked then; they may be empty.
    """

    hub: str
    columns: Mapping[str, tuple[type, ...]]
    fixture: str  # a file in FIXTURES, in the same columns
    config: str | None = None
    split: str = "test"
    files: tuple[str, ...] = ()  # JSON lines or Parquet in it, where it has no other form
    optional: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    id_column: str = "id"  # where there is one; else an example is known by its number


@dataclass(frozen=True)
class Example:
    """One checked record: its values by column, the id, and where it stands."""

    id: str
    where: str
    values: Mapping[str, Any]


def load_examples(dataset: Dataset, options: TaskOptions) -> list[Example]:
    """All examples of the user's source, or of the dataset itself. Any mistake is an `InvalidRequest`."""
    source = "" if options.source is None else Path(options.source).as_posix()
    if source == FIXTURE:
        records = _jsonl(FIXTURES / dataset.fixture)
    elif Path(source).suffix in _SUFFIXES or (source and Path(source).exists()):
        records = _file(Path(source).expanduser())
    else:
        records = _hub(*_address(dataset, source), () if source else dataset.files)
    return _checked(records, dataset)


def missing_package(package: str) -> InvalidRequest:
    """The error when a package of the extra "exam" is not there."""
    return InvalidRequest(
        f"this task needs the package {package}, which is not installed",
        hint=INSTALL_EXAM,
    )


def _checked(records: Iterator[tuple[str, Any]], dataset: Dataset) -> list[Example]:
    examples: list[Example] = []
    seen: dict[str, str] = {}  # id -> where
    for where, record in records:
        if not isinstance(record, dict):
            raise InvalidRequest(
                f"{where} is {type(record).__name__}, not a record",
                hint='each line is one JSON object, such as {"question": "…", "answer": "…"}',
            )
        for column, types in dataset.columns.items():
            _check(record, column, types, where, dataset)
        for column, types in dataset.optional.items():
            if record.get(column) is not None:
                _check_type(record[column], column, types, where)
        known = record.get(dataset.id_column)
        if known is not None and not (isinstance(known, str | int) and str(known)):
            raise InvalidRequest(f"{where}: '{dataset.id_column}' is {known!r}; expected a name")
        name = str(len(examples) + 1) if known is None else str(known)
        if name in seen:
            raise InvalidRequest(
                f"{where}: the id {name!r} was seen already, at {seen[name]}",
                hint=f"let '{dataset.id_column}' be a name of its own in every record, or in none",
            )
        seen[name] = where
        examples.append(Example(name, where, record))
    return examples


def _check(
    record: Mapping[str, Any], column: str, types: tuple[type, ...], where: str, dataset: Dataset
) -> None:
    if record.get(column) is None:
        raise InvalidRequest(
            f"{where} has no '{column}'; found: {', '.join(map(str, record)) or 'nothing'}",
            hint=f"the columns are those of {dataset.hub}: {', '.join(dataset.columns)}",
        )
    value = record[column]
    _check_type(value, column, types, where)
    if isinstance(value, str) and not value.strip():
        raise InvalidRequest(f"{where}: '{column}' is empty; expected {_either(types)}")


def _check_type(value: object, column: str, types: tuple[type, ...], where: str) -> None:
    is_other_kind = isinstance(value, bool) and bool not in types  # which Python counts as a number
    if is_other_kind or not isinstance(value, types):
        raise InvalidRequest(
            f"{where}: '{column}' is {type(value).__name__} {_brief(value)}; expected {_either(types)}"
        )


def _either(types: tuple[type, ...]) -> str:
    return " or ".join(_TYPE_NAMES[kind] for kind in types)


def _brief(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."


# -- files -----------------------------------------------------------------------------------------


def _file(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix not in _SUFFIXES:
        raise InvalidRequest(
            f"{path} is not a file of questions", hint="give a .jsonl or a .parquet file"
        )
    if not path.is_file():
        raise InvalidRequest(f"there is no file {path}", hint=f"or give --source {FIXTURE}")
    return _jsonl(path) if path.suffix == ".jsonl" else _parquet(path)


def _jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    """Each line that is not blank, with its place. Every error names the line."""
    empty = True
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror or error}") from error
    for number, line in enumerate(lines, start=1):
        where = f"{path.name}, line {number}"
        if not line.strip():
            continue
        empty = False
        try:
            yield where, json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"{where} is not UTF-8 (byte {error.start})", hint="save the file as UTF-8"
            ) from error
        except json.JSONDecodeError as error:
            raise InvalidRequest(
                f"{where} is not JSON: {error.msg} at column {error.colno}",
                hint="one JSON object on each line",
            ) from error
        except (ValueError, RecursionError) as error:  # numbers and nestings beyond measure
            raise InvalidRequest(
                f"{where} is not JSON: {error}", hint="one JSON object on each line"
            ) from error
    if empty:
        raise InvalidRequest(f"{path} holds no records", hint="one JSON object on each line")


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    parquet = _package("pyarrow.parquet")
    try:
        records = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # Arrow's own errors are kinds of these
        raise InvalidRequest(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}",
            hint="write it again, or give the same columns as .jsonl",
        ) from error
    if not records:
        raise InvalidRequest(f"{path} holds no records")
    yield from ((f"{path.name}, row {n}", record) for n, record in enumerate(records, start=1))


# -- the hub ---------------------------------------------------------------------------------------


def _address(dataset: Dataset, source: str) -> tuple[str, str | None, str]:
    """Id, configuration and split: the dataset's own, or those of `owner/name:config:split`."""
    if not source:
        return dataset.hub, dataset.config, dataset.split
    name, *rest = source.split(":")
    if name.count("/") != 1 or not all(name.split("/")) or len(rest) > 2:
        raise InvalidRequest(
            f"there is no source {source!r}",
            hint=f"give a .jsonl or .parquet file, {FIXTURE}, or a dataset as owner/name:config:split",
        )
    config, split = (*rest, "", "")[:2]
    own_config = dataset.config if name == dataset.hub else None
    return name, config or own_config, split or dataset.split


def _hub(
    name: str, config: str | None, split: str, files: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    datasets = _package("datasets")
    _reach(name)
    try:
        if files:  # a table by itself: a loading script of the dataset is not run
            kind = "parquet" if files[0].endswith(".parquet") else "json"
            paths = [_inside(f"hf://datasets/{name}", file) for file in files]
            table = datasets.load_dataset(kind, data_files={split: paths}, split=split)
        else:
            table = datasets.load_dataset(name, config, split=split)
    except ConnectionError as error:
        raise _unreachable(name, "no copy of it is kept on this machine") from error
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise InvalidRequest(
            f"the dataset {name} ({config or 'default'}, {split}) cannot be loaded: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}",
            hint="give --source owner/name:config:split, or a .jsonl or .parquet file",
        ) from error
    yield from ((f"{name}, row {n}", dict(row)) for n, row in enumerate(table, start=1))


def _inside(folder: str, file: str) -> str:
    """The address of a file; `data.zip:one.jsonl` is a file in an archive."""
    archive, _, member = file.rpartition(":")
    return f"zip://{member}::{folder}/{archive}" if archive else f"{folder}/{file}"


def _reach(name: str) -> None:
    """Asks the hub once, since `datasets` would go on asking for half a minute.

    With HF_HUB_OFFLINE=1 the hub is not asked, and a copy that is kept here will do.
    """
    hub, errors = import_module("huggingface_hub"), import_module("huggingface_hub.errors")
    try:
        hub.HfApi().dataset_info(name, timeout=REACH_SECONDS)
    except errors.OfflineModeIsEnabled:
        return
    except errors.HFValidationError as error:
        raise InvalidRequest(f"{name!r} is no dataset's name", hint="give owner/name") from error
    except errors.RepositoryNotFoundError as error:
        raise InvalidRequest(
            f"the hub has no dataset {name}, or does not show it to you",
            hint="check the spelling; log in with `hf auth login` if it is not public",
        ) from error
    except ImportError as error:  # of a proxy, before anything is asked
        raise InvalidRequest(
            f"the dataset {name} cannot be asked for: {in_short(error)}", hint=PROXY_HINT
        ) from error
    # The first is its HTTP library's; the last one is of a proxy that is none, or of an answer that is.
    except (errors.HTTPError, OSError, ValueError) as error:
        raise _unreachable(name, str(error).splitlines()[0] if str(error) else "") from error


def _unreachable(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"the dataset {name} cannot be reached: {reason or 'no network'}",
        hint=f"give --source FILE (.jsonl or .parquet) or --source {FIXTURE}, use a machine with a "
        "network, or set HF_HUB_OFFLINE=1 if you have loaded it before",
    )


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise missing_package(name.partition(".")[0]) from error


def first(examples: Sequence[Example], limit: int | None) -> Sequence[Example]:
    """The first `limit` of them; all without a limit."""
    return examples if limit is None else examples[:limit]
