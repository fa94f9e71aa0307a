"""Tests of each file in a random order: all of them, files where they were, and the same order for the same seed."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests import conftest
from tests.orders import shuffled

ITEMS = [(file, number) for file in ("b", "a", "c") for number in range(20)]


def file_of(item: tuple[str, int]) -> str:
    return item[0]


@pytest.mark.parametrize("seed", [0, 1, -7, 10**30])
def test_files_stay_and_their_tests_do_not(seed: int) -> None:
    found = shuffled(ITEMS, seed, file_of)
    assert [file for file, _ in groupby(found, file_of)] == ["b", "a", "c"]
    assert sorted(found) == sorted(ITEMS)
    for file in ("a", "b", "c"):
        assert [item for item in found if item[0] == file] != [
            item for item in ITEMS if item[0] == file
        ]
    assert shuffled(ITEMS, seed, file_of) == found
    assert shuffled(ITEMS, seed + 1, file_of) != found


def test_a_file_has_the_same_order_alone() -> None:
    """A failure is looked for by the seed and the file that it was in."""
    alone = [item for item in ITEMS if item[0] == "c"]
    assert shuffled(ITEMS, 3, file_of)[-20:] == shuffled(alone, 3, file_of)


@pytest.mark.parametrize("seed", [None, 0, 3])
def test_the_option_orders_what_is_run(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "tests/test_a.py"
    items: list[Any] = [Mock(path=path, number=number) for number in range(30)]
    chosen = items[10:]
    monkeypatch.setattr(conftest, "left_out", lambda items: items[:10])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    options = {"--every-case": False, "--shuffled": seed}
    config: Any = SimpleNamespace(getoption=options.get, stash={}, hook=Mock())
    conftest.pytest_collection_modifyitems(config, items)
    if seed is None:
        assert items == chosen
    else:
        assert items == shuffled(chosen, seed, lambda item: item.path) != chosen


@pytest.mark.parametrize("seed", [None, 0, 3])
def test_the_seed_is_said_where_something_can_say_it(seed: int | None) -> None:
    for reporter in (Mock(), None):
        config = SimpleNamespace(
            getoption={"--shuffled": seed}.get,
            pluginmanager=SimpleNamespace(get_plugin={"terminalreporter": reporter}.get),
        )
        session: Any = SimpleNamespace(config=config)
        conftest.pytest_sessionstart(session)
        if reporter is not None:
            said = [call.args for call in reporter.write_line.call_args_list]
            words = (f"tests of each file in a random order: --shuffled {seed}",)
            assert said == ([] if seed is None else [words])
