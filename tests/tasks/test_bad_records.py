"""Datasets as they may come: every field of every task missing, surplus or of another kind.

A task either reads the record or refuses it by an `InvalidRequest` that names the field; nothing else may reach the
user, and nothing is asked before all records are read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.errors import InvalidRequest
from manyhands.tasks.catalogue import make_task
from manyhands.tasks.loading import FIXTURES
from manyhands.tasks.task import TaskOptions
from tests.programs import isolation

FILES = {
    "gsm8k": "gsm8k.jsonl",
    "gsm8k-list": "gsm8k.jsonl",
    "limo": "limo.jsonl",
    "aime25": "aime25.jsonl",
    "math500": "math500.jsonl",
    "olympiad-maths": "olympiad_maths.jsonl",
    "olympiad-physics": "olympiad_physics.jsonl",
    "livecodebench": "livecodebench.jsonl",
    "apps": "apps.jsonl",
    "2wiki": "2wiki.jsonl",
    "planning": "planning.jsonl",
}
WITH_PROGRAMS = ("livecodebench", "apps")
MISSING = object()
WRONG: tuple[Any, ...] = (
    *(MISSING, None, True, 5, -1.5, "", "junk", "{", "[[]]", '{"a": 1}', "\u202e\x00"),
    *([], [[]], [None], [5], {}, {"a": None}),
)


def records_of(task: str) -> list[dict[str, Any]]:
    lines = (FIXTURES / FILES[task]).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def samples(task: str, records: list[dict[str, Any]], folder: Path) -> list[Any]:
    if task in WITH_PROGRAMS:
        isolation()
    file = folder / "own.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    options = TaskOptions(source=file, allow_code=task in WITH_PROGRAMS)
    return list(make_task(task, options).samples())


@pytest.mark.parametrize("task", FILES)
def test_surplus_fields_are_left_alone(task: str, tmp_path: Path) -> None:
    records = records_of(task)
    expected = samples(task, records, tmp_path)
    more = [{**one, "revision": 7, "notes": [None], "": {}} for one in records]
    assert samples(task, more, tmp_path) == expected


@pytest.mark.parametrize("task", FILES)
def test_a_wrong_field_is_read_or_named(task: str, tmp_path: Path) -> None:
    records = records_of(task)
    refused = 0
    for field in records[0]:
        for wrong in WRONG:
            spoilt = {name: value for name, value in records[0].items() if name != field}
            if wrong is not MISSING:
                spoilt = {**spoilt, field: wrong}
            try:
                samples(task, [*records[1:], spoilt], tmp_path)
            except InvalidRequest as error:
                refused += 1
                said = f"{error} {error.hint or ''}"
                assert f"own.jsonl, line {len(records)}" in said, (field, wrong, said)
                assert field in said, (field, wrong, said)
    assert refused >= 2 * len(WRONG) // 2  # control: the fields that are needed are missed
