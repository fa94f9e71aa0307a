"""Replicas that are compared by their distributions and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyhands.cluster.installed import Installed, differences, installed_here, lacking
from manyhands.schema.open_registry import Offers, OpenRegistry
from manyhands.strategies import methods
from manyhands.strategies.methods import METHODS
from tests.installing import a_method, laid_out


def one(mark: str, machine: str, facts: Any = None, **offered: str) -> Installed:
    return Installed(mark, machine, facts or {}, offered)


def test_replicas_that_are_alike_have_no_differences() -> None:
    assert differences([]) == []
    assert lacking([]) == set()
    alike = [one(mark, mark, {"torch": "2"}, relay="my-relay 1.0") for mark in "abc"]
    assert differences(alike) == []
    assert lacking(alike) == set()
    assert differences(alike[:1]) == []


def test_a_method_that_some_lack() -> None:
    found = [one("a", "n1", relay="my-relay 1.0"), one("b", "n2"), one("c", "n2"), one("d", "n3")]
    assert lacking(found) == {"relay"}
    (told,) = differences(found)
    assert str(told) == (
        "the method 'relay' of my-relay 1.0 is installed for a on n1, and not for b on n2, c on n2, d on n3; "
        "requests for it that come there are refused"
    )
    assert told.hint == "install it on n2, n3 too (pip install my-relay==1.0), and start again"


def test_other_versions_and_other_weights() -> None:
    found = [
        one("a", "n1", {"torch": "2.9", "fingerprint": "11", "dtype": "x"}, relay="my-relay 1.0"),
        one("b", "n2", {"torch": "2.8", "fingerprint": "22", "dtype": "x"}, relay="my-relay 1.1"),
        one("c", "n3", {"torch": "2.9", "fingerprint": "11"}, relay="my-relay 1.0"),
    ]
    assert lacking(found) == set()
    said = [str(each) for each in differences(found)]
    assert [each.partition(":")[0] for each in said] == [
        "replicas differ in the method 'relay'",
        "replicas differ in dtype",
        "replicas differ in weights (by their fingerprint)",
        "replicas differ in torch",
    ]
    assert "my-relay 1.0 at a on n1; my-relay 1.1 at b on n2; my-relay 1.0 at c on n3" in said[0]
    assert "none at c on n3" in said[1]


def test_what_is_installed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out(
        tmp_path, "my-relay", {"relay": "relay_of_a_test:OWN"}, "relay_of_a_test", a_method("relay")
    )
    laid_out(tmp_path, "my-fault", {"broken": "relay_of_a_test:NONE"}, "no_module", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    look = OpenRegistry(
        METHODS.rows, Offers("method", "manyhands.methods", methods._TAKEN, methods._look)
    )
    monkeypatch.setattr("manyhands.cluster.installed.METHODS", look)
    place = {"dtype": "float32", "device": "cpu", "versions": {"torch": "2.9"}, "fingerprint": "ab"}
    here = installed_here("a", place)
    assert here.methods == {"relay": "my-relay 1.0"}, "one that cannot be used is not offered"
    assert here.facts == {"dtype": "float32", "fingerprint": "ab", "torch": "2.9"}
    assert here.machine
